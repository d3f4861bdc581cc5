//! Kept source listings: the sources of a mount, walked once and then brought up to date by watches.
//!
//! A listing is what a walk would find. A file that was written is looked at again; whatever else was reported, such as a new
//! source, a directory or an ignore file, means another walk, and so does everything that cannot be known from reports: a full
//! queue, another policy, another mount in the workspace, files with names in other directories. Where a directory cannot be
//! watched, every listing is a walk.
//!
//! Not here: the walk (`source_tree.rs`). Writes through a mapping, and by a name that a source gets later in a directory without
//! sources, are not reported; contents are read again before they are shown.

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex};

use ringfence_kernel::{CallContext, ToolError, sensitivity};

use crate::mount::Mount;
use crate::mount::tree_conditions::TreeConditions;
use crate::path::name::escape;
use crate::path::relative::split;
use crate::root::watched_directories::{WatchedDirectories, WatchedDirectory};
use crate::root::{path_of, stat};
use crate::source_tree::{SourceEntry, SourceStamp, SourceTree};
use crate::sys::directory_watch::WatchScope;
use crate::sys::errno::errno_error;
use crate::sys::stat::FileKind;

/// Reported entries beyond which a walk is cheaper.
const MOST_REPORTED: usize = 200;

/// The listing of a mount, as far as it is known.
#[derive(Debug, Default)]
pub struct KeptSourceListing(Mutex<ListingState>);

/// The sources of a tree at one time.
#[derive(Clone, Debug)]
pub struct SourceListing {
    /// Every wanted file that is not a secret, in the order in which a walk finds them.
    pub entries: Arc<Vec<SourceEntry>>,
    /// The same number means the same entries. Nothing for a listing that is not kept.
    pub version: Option<u64>,
}

#[derive(Debug, Default)]
struct ListingState {
    last_version: u64,
    watched: Option<WatchedListing>,
}

/// A listing, and the watches that report what may change it.
#[derive(Debug)]
struct WatchedListing {
    conditions: TreeConditions,
    /// Inodes of secrets that were known.
    secrets: HashSet<u64>,
    directories: WatchedDirectories,
    entries: Arc<Vec<SourceEntry>>,
    version: u64,
}

/// What reports mean for a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingUpdate {
    Same,
    /// Files that are listed were written.
    Written,
    WalkAgain,
}

impl KeptSourceListing {
    /// The sources of a tree as of now. `wanted` is the same for every call.
    pub fn list(
        &self,
        tree: SourceTree,
        wanted: impl Fn(&str) -> bool,
        cx: &CallContext<'_>,
    ) -> Result<SourceListing, ToolError> {
        let mount = Arc::clone(tree.mount());
        // Another call may be listing. It is not waited for.
        let kept = tree.is_whole_mount().then(|| self.0.try_lock().ok()).flatten();
        let root = path_of(&mount.root)?;
        let conditions = |cx| TreeConditions::now(&mount, root.as_os_str().as_bytes(), cx);
        let (Some(mut state), Some(now)) = (kept, conditions(cx)) else {
            let walked = tree.walk(wanted, None, cx)?;
            return Ok(SourceListing { entries: Arc::new(walked.entries), version: None });
        };
        let secrets = mount.sensitive_files.secret_inodes();
        // It is put back when it is up to date.
        let known = state.watched.take().filter(|known| known.conditions == now && known.secrets == secrets);
        if let Some(mut known) = known {
            let update = known.update(&mount, &wanted, cx)?;
            if update == ListingUpdate::Written {
                state.last_version += 1;
                known.version = state.last_version;
            }
            if update != ListingUpdate::WalkAgain {
                let listing = SourceListing { entries: Arc::clone(&known.entries), version: Some(known.version) };
                state.watched = Some(known);
                return Ok(listing);
            }
        }
        let mut directories = WatchedDirectories::new(WatchScope::Contents).ok();
        let walked = tree.walk(wanted, directories.as_mut(), cx)?;
        let entries = Arc::new(walked.entries);
        let directories = directories.filter(|watched| watched.is_complete() && !walked.has_other_names);
        // A policy that changed during the walk decided about a part of the entries only.
        let is_same = conditions(cx).as_ref() == Some(&now);
        let Some(directories) = directories.filter(|_| is_same) else {
            return Ok(SourceListing { entries, version: None });
        };
        state.last_version += 1;
        let version = state.last_version;
        // Names that the walk itself found out about are accounted for.
        let secrets = mount.sensitive_files.secret_inodes();
        state.watched =
            Some(WatchedListing { conditions: now, secrets, directories, entries: Arc::clone(&entries), version });
        Ok(SourceListing { entries, version: Some(version) })
    }
}

impl WatchedListing {
    /// Looks again at the files that were reported.
    fn update(
        &mut self,
        mount: &Mount,
        wanted: &impl Fn(&str) -> bool,
        cx: &CallContext<'_>,
    ) -> Result<ListingUpdate, ToolError> {
        let reported = self.directories.changed_entries().filter(|reported| reported.len() <= MOST_REPORTED);
        let Some(reported) = reported else { return Ok(ListingUpdate::WalkAgain) };
        let mut update = ListingUpdate::Same;
        for path in reported {
            cx.check()?;
            match self.update_entry(mount, wanted, &path)? {
                ListingUpdate::Same => {}
                ListingUpdate::Written => update = ListingUpdate::Written,
                ListingUpdate::WalkAgain => return Ok(ListingUpdate::WalkAgain),
            }
        }
        Ok(update)
    }

    fn update_entry(
        &mut self,
        mount: &Mount,
        wanted: &impl Fn(&str) -> bool,
        path: &[u8],
    ) -> Result<ListingUpdate, ToolError> {
        let (parent, name) = split(path);
        // Ignore files and secrets are hidden files.
        if name.starts_with(b".") || self.directories.has(path) {
            return Ok(ListingUpdate::WalkAgain);
        }
        let shown = escape(path);
        let opened = self.directories.open(mount, parent).map_err(|errno| errno_error(errno, "."))?;
        let WatchedDirectory::Open(directory) = opened else { return Ok(ListingUpdate::WalkAgain) };
        let found = stat(directory.as_fd(), name).map_err(|errno| errno_error(errno, "."))?;
        let listed = self.entries.iter().position(|entry| entry.path == shown);
        // A source, or something that makes another name one of a secret.
        let is_of_interest = || wanted(&shown) || sensitivity(&shown).is_any();
        match (found, listed) {
            (Some(stat), Some(at)) if stat.kind == FileKind::File && stat.links == 1 => {
                let stamp = SourceStamp::of(&stat);
                if self.entries.get(at).is_some_and(|entry| entry.stamp == stamp) {
                    return Ok(ListingUpdate::Same);
                }
                if let Some(entry) = Arc::make_mut(&mut self.entries).get_mut(at) {
                    entry.stamp = stamp;
                }
                Ok(ListingUpdate::Written)
            }
            (Some(stat), None) if stat.kind == FileKind::File && stat.links == 1 && !is_of_interest() => {
                Ok(ListingUpdate::Same)
            }
            (None, None) if !is_of_interest() => Ok(ListingUpdate::Same),
            _ => Ok(ListingUpdate::WalkAgain),
        }
    }
}

#[cfg(test)]
mod tests;
