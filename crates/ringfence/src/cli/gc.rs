//! `ringfence gc`: removal of what wrapped programs left on disk and do not need any more.
//!
//! Also once a day at the end of a run, for a short time. A layer about which a person has to decide is listed, and never
//! removed. Kept outputs are in memory, so there are none to remove.
//!
//! Not here: the removal itself (`ringfence-fs`).

use std::time::{Duration, SystemTime};

use clap::Args;
use ringfence_fs::{
    LayerCollection, LayerCollectionMode, LayerCollectionPolicy, LayerStore, LayerStoreEntry, LayerStoreEntryKind,
};

use crate::cli::run::size;
use crate::cli::{CliError, ERROR_REPLY, SUCCESS, print};
use crate::config::AppSettings;
use crate::process::messages::print_error;

/// Days for which home directories and caches are kept after their last use.
const KEPT_DAYS: u64 = 30;

/// Bound on everything that is kept, where nothing says another.
const MOST_KEPT: u64 = 20 << 30;

/// Longest collection at the end of a run.
const LONGEST_AT_END: Duration = Duration::from_secs(2);

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// Options of `ringfence gc`.
#[derive(Debug, Args)]
pub(crate) struct GcOptions {
    /// Only list what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Days for which home directories of agents are kept after their last run.
    #[arg(long, value_name = "DAYS", default_value_t = KEPT_DAYS)]
    keep_homes: u64,
    /// Days for which caches of toolchains are kept after their last run.
    #[arg(long, value_name = "DAYS", default_value_t = KEPT_DAYS)]
    keep_caches: u64,
    /// Most that everything may use, such as `10G`; 20 GiB if neither this nor the config says. Beyond it, the home
    /// directories and caches that were not used for longest are removed.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
}

/// Removes what is old, and what is beyond the bound.
pub(crate) fn collect_garbage(settings: &AppSettings, options: &GcOptions) -> Result<u8, CliError> {
    let days = |days: u64| Duration::from_secs(days.saturating_mul(SECONDS_PER_DAY));
    let policy = LayerCollectionPolicy {
        keep_homes: days(options.keep_homes),
        keep_caches: days(options.keep_caches),
        max_bytes: settings.wrapped.kept_bytes.resolve(options.max_size, MOST_KEPT),
    };
    let mode = if options.dry_run { LayerCollectionMode::DryRun } else { LayerCollectionMode::Remove };
    match LayerStore::new(&settings.state).collect(&policy, mode) {
        Ok(collection) => print(&describe(&collection, mode, policy.max_bytes, SystemTime::now()), SUCCESS),
        Err(error) => {
            print_error(&error.message);
            Ok(ERROR_REPLY)
        }
    }
}

/// The same once a day, with the default ages. It says only what a person has to know.
pub(crate) fn collect_if_due(settings: &AppSettings) {
    let kept = Duration::from_secs(KEPT_DAYS * SECONDS_PER_DAY);
    let max_bytes = settings.wrapped.kept_bytes.resolve(None, MOST_KEPT);
    let policy = LayerCollectionPolicy { keep_homes: kept, keep_caches: kept, max_bytes };
    match LayerStore::new(&settings.state).collect_if_due(&policy, LONGEST_AT_END) {
        Ok(Some(collection)) if collection.bytes_left() > max_bytes => {
            let used = format_bytes(collection.bytes_left());
            let most = format_bytes(max_bytes);
            print_error(&format!("layers use {used}, more than {most}; `ringfence gc` lists those to decide about"));
        }
        Ok(_) => {}
        Err(_) => print_error("not all old layers and caches could be removed; run `ringfence gc`"),
    }
}

fn describe(collection: &LayerCollection, mode: LayerCollectionMode, max_bytes: u64, now: SystemTime) -> String {
    let verb = if mode == LayerCollectionMode::DryRun { "would remove" } else { "removed" };
    let line = |entry: &LayerStoreEntry| format!("{verb} {}\n", describe_entry(entry, now));
    let mut text: String = collection.removed.iter().map(line).collect();
    let is_layer = |entry: &&LayerStoreEntry| matches!(entry.kind, LayerStoreEntryKind::Layer(_));
    let mut undecided: Vec<&LayerStoreEntry> = collection.left.iter().filter(is_layer).collect();
    // The largest is worth a decision first.
    undecided.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
    for entry in &undecided {
        text.push_str(&format!("undecided: {}\n", describe_entry(entry, now)));
    }
    if !undecided.is_empty() {
        text.push_str("decide in its workspace: `ringfence layers review ID`, or `ringfence layers drop ID`\n");
    }
    let left = collection.bytes_left();
    text.push_str(&format!("layers, home directories and caches use {}\n", format_bytes(left)));
    if left > max_bytes {
        let over = format_bytes(left - max_bytes);
        text.push_str(&format!(
            "that is {over} more than the bound of {}: what is left is undecided or in use\n",
            format_bytes(max_bytes)
        ));
    }
    text
}

fn describe_entry(entry: &LayerStoreEntry, now: SystemTime) -> String {
    let LayerStoreEntry { kind, name, bytes, used, program, path } = entry;
    let size = format_bytes(*bytes);
    let age = used.and_then(|used| now.duration_since(used).ok()).map(|age| match age.as_secs() / SECONDS_PER_DAY {
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    });
    let last_used = age.as_ref().map_or(String::new(), |age| format!(", last used {age} ago"));
    match kind {
        LayerStoreEntryKind::Layer(state) => {
            let age = age.map_or(String::new(), |age| format!(", {age} old"));
            format!("layer {name} of `{program}` in `{path}`, {}{age}, {size}", state.name())
        }
        LayerStoreEntryKind::Home => format!("home directory of `{program}`{last_used}, {size}"),
        LayerStoreEntryKind::Cache => format!("cache `~/{path}` of `{program}`{last_used}, {size}"),
        LayerStoreEntryKind::Remains => format!("remains of a decided layer, {size}"),
    }
}

/// A size in the largest unit of which there is one, with one digit behind the point below ten.
fn format_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
        Some((name, unit)) if bytes < 10 * unit => {
            let tenths = bytes / (unit / 10);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        Some((name, unit)) => format!("{} {name}", bytes / unit),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_fs::LayerState;

    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (999, "999 bytes"),
            (1_000, "1.0 kB"),
            (9_999, "9.9 kB"),
            (10_000, "10 kB"),
            (999_999, "999 kB"),
            (1_500_000, "1.5 MB"),
            (20 << 30, "21 GB"),
            (3_200_000_000_000, "3.2 TB"),
        ] {
            assert_eq!(format_bytes(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn undecided_layers_are_listed_with_what_to_do() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100 * SECONDS_PER_DAY);
        let entry = |kind, name: &str, bytes, days: u64, program: &str, path: &str| LayerStoreEntry {
            kind,
            name: name.to_owned(),
            bytes,
            used: Some(now - Duration::from_secs(days * SECONDS_PER_DAY)),
            program: program.to_owned(),
            path: path.to_owned(),
        };
        let collection = LayerCollection {
            removed: vec![
                entry(LayerStoreEntryKind::Cache, "c-1", 1_500_000_000, 40, "codex", ".cargo/registry"),
                entry(LayerStoreEntryKind::Home, "h-1", 20_000, 1, "none", ""),
            ],
            left: vec![
                entry(LayerStoreEntryKind::Layer(LayerState::Interrupted), "l-1", 10, 0, "sh", "/w"),
                entry(LayerStoreEntryKind::Layer(LayerState::Ended), "l-2", 3_000_000, 90, "claude", "/w"),
            ],
        };
        assert_eq!(
            describe(&collection, LayerCollectionMode::DryRun, 1_000_000, now),
            "would remove cache `~/.cargo/registry` of `codex`, last used 40 days ago, 1.5 GB\n\
             would remove home directory of `none`, last used 1 day ago, 20 kB\n\
             undecided: layer l-2 of `claude` in `/w`, ended, 90 days old, 3.0 MB\n\
             undecided: layer l-1 of `sh` in `/w`, interrupted, 0 days old, 10 bytes\n\
             decide in its workspace: `ringfence layers review ID`, or `ringfence layers drop ID`\n\
             layers, home directories and caches use 3.0 MB\n\
             that is 2.0 MB more than the bound of 1.0 MB: what is left is undecided or in use\n"
        );
    }
}
