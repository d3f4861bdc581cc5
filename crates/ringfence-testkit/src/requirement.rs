//! Test requirements: what a test needs of the machine, and skips where that is missing.
//!
//! A test that cannot run says so in one form and passes. Where `RINGFENCE_REQUIRE` names what it needs (a comma-separated
//! list, or `all`), it fails instead, so that a machine that has everything cannot skip anything unnoticed.
//!
//! Not here: looking for it. A test knows best how to find out whether something works.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// The variable with the requirements that must not be missing.
pub const REQUIRE_VARIABLE: &str = "RINGFENCE_REQUIRE";

/// The variable with the file that skips are added to.
pub const SKIP_LOG_VARIABLE: &str = "RINGFENCE_SKIP_LOG";

/// The word for every requirement.
const ALL: &str = "all";

/// Before every line that a test has for the person who runs it. A test that runs itself in another process passes them on.
const NOTE: &str = "| ";

const SKIPPED: &str = "skipped without ";

macro_rules! requirements {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// A property of the machine that some tests need.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Requirement {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Requirement {
            /// All of them, by name.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in `RINGFENCE_REQUIRE`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

requirements! {
    /// A file system with append-only and immutable files, and `chattr`.
    AppendOnlyFiles = "append-only-files",
    /// A file system that has the time at which a file was created.
    BirthTime = "birth-time",
    /// Chromium and its chromedriver.
    Browser = "browser",
    /// `bwrap` as a user, which the sandbox falls back to.
    Bwrap = "bwrap",
    /// Cargo in the search path.
    Cargo = "cargo",
    /// Groups that can be created in the memory and pids controllers of version 1.
    CgroupV1 = "cgroup-v1",
    /// Groups that can be created in version 2.
    CgroupV2 = "cgroup-v2",
    /// curl.
    Curl = "curl",
    /// Device nodes that can be created.
    Devices = "devices",
    /// `/dev/fuse`, and the right to mount.
    Fuse = "fuse",
    /// Landlock.
    Landlock = "landlock",
    /// Landlock that also restricts signals and abstract sockets.
    LandlockScopes = "landlock-scopes",
    /// A mount namespace of root's.
    MountNamespaces = "mount-namespaces",
    /// `musl-gcc`.
    MuslGcc = "musl-gcc",
    /// A network namespace of a user's, and `ip`.
    NetworkNamespaces = "network-namespaces",
    /// Node.js.
    Node = "node",
    /// npm in the jail.
    Npm = "npm",
    /// An overlay that a user mounts.
    Overlayfs = "overlayfs",
    /// pip in the jail.
    Pip = "pip",
    /// pnpm in the jail.
    Pnpm = "pnpm",
    /// A container that hides a part of `/proc` can be imitated: `unshare`, `python3`.
    ProcMasks = "proc-masks",
    /// Python 3.
    Python = "python",
    /// The user is root.
    Root = "root",
    /// Jails can be built.
    Sandbox = "sandbox",
    /// `script`, of util-linux.
    Script = "script",
    /// SearXNG, as Debian's package `searx`.
    Searxng = "searxng",
    /// Temporary files on a file system that obeys setuid bits.
    SetuidFiles = "setuid-files",
    /// A client of SSH.
    Ssh = "ssh",
    /// `strace` that may trace.
    Strace = "strace",
    /// `/opt` and `/usr/src`.
    SystemDirectories = "system-directories",
    /// tmux.
    Tmux = "tmux",
    /// A user namespace in which a user may refuse further ones.
    UserNamespaces = "user-namespaces",
    /// A file system with attributes of users.
    UserXattrs = "user-xattrs",
    /// uv in the jail.
    Uv = "uv",
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Says that a test, or a part of it, is skipped because this machine does not meet a requirement.
///
/// # Panics
/// If `RINGFENCE_REQUIRE` names the requirement, or names one that does not exist.
#[track_caller]
pub fn skip_without(requirement: Requirement, why: &str) {
    let required = required().unwrap_or_else(|error| panic!("{error}"));
    assert!(!required.contains(&requirement), "required by {REQUIRE_VARIABLE}: {requirement}: {why}");
    print_note(&format!("{SKIPPED}{requirement}: {why}"));
    log_skip(&format!("{requirement}: {why}"));
}

/// Tells the person who runs a test something. It is seen with `--nocapture`, also from a test that runs in another process.
pub fn print_note(text: &str) {
    // The line may have begun with the name of the test.
    println!("\n{NOTE}{text}");
}

/// Prints the notes in the output of a test that ran in another process.
pub(crate) fn forward_notes(output: &str) {
    for note in output.lines().filter_map(|line| line.strip_prefix(NOTE)) {
        print_note(note);
        if let Some(skip) = note.strip_prefix(SKIPPED) {
            log_skip(skip);
        }
    }
}

/// The requirements that `RINGFENCE_REQUIRE` names.
///
/// # Errors
/// If one of the names does not exist.
pub fn required() -> Result<BTreeSet<Requirement>, String> {
    parse_required(&std::env::var(REQUIRE_VARIABLE).unwrap_or_default())
}

fn parse_required(list: &str) -> Result<BTreeSet<Requirement>, String> {
    let mut required = BTreeSet::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match Requirement::ALL.iter().find(|requirement| requirement.name() == word) {
            Some(requirement) => _ = required.insert(*requirement),
            None if word == ALL => required.extend(Requirement::ALL),
            None => {
                let names: Vec<&str> = Requirement::ALL.iter().map(|requirement| requirement.name()).collect();
                return Err(format!(
                    "{REQUIRE_VARIABLE} has the unknown requirement `{word}`; use `{ALL}` or some of: {}",
                    names.join(", ")
                ));
            }
        }
    }
    Ok(required)
}

/// Adds a skip to the log. A test of another user may not write there; the test that started it adds the same line.
fn log_skip(skip: &str) {
    let Some(log) = std::env::var_os(SKIP_LOG_VARIABLE) else { return };
    let thread = std::thread::current();
    let line = format!("{skip} [{}]\n", thread.name().unwrap_or_default());
    let _ = OpenOptions::new().append(true).create(true).open(log).and_then(|mut log| log.write_all(line.as_bytes()));
}

/// How many different skips a log has for each requirement.
#[must_use]
pub fn count_skips(log: &Path) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let skips: BTreeSet<&str> = text.lines().collect();
    let mut counts = BTreeMap::new();
    for (requirement, _) in skips.iter().filter_map(|skip| skip.split_once(": ")) {
        *counts.entry(requirement.to_owned()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &str, expected: &[Requirement]) {
        assert_eq!(parse_required(list).unwrap(), expected.iter().copied().collect(), "{list}");
    }

    #[test]
    fn a_list_names_requirements_and_all_is_every_one() {
        check("", &[]);
        check("root", &[Requirement::Root]);
        check(" root, bwrap,root,", &[Requirement::Root, Requirement::Bwrap]);
        check("all", Requirement::ALL);
        check("browser,all", Requirement::ALL);
    }

    #[test]
    fn an_unknown_requirement_is_an_error_that_lists_the_valid_ones() {
        let error = parse_required("root,chrome").unwrap_err();
        let expected =
            "RINGFENCE_REQUIRE has the unknown requirement `chrome`; use `all` or some of: append-only-files, ";
        assert!(error.starts_with(expected), "{error}");
        assert!(Requirement::ALL.iter().all(|requirement| error.contains(requirement.name())), "{error}");
    }

    #[test]
    fn names_of_requirements_are_unique_and_in_order() {
        let names: Vec<&str> = Requirement::ALL.iter().map(|requirement| requirement.name()).collect();
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
    }

    #[test]
    fn the_requirements_of_this_run_exist() {
        required().unwrap();
    }

    #[test]
    fn a_skip_of_a_missing_requirement_fails_where_it_is_required_and_is_counted_elsewhere() {
        const CHILD: &str = "RINGFENCE_TEST_SKIP";
        if std::env::var_os(CHILD).is_some() {
            skip_without(Requirement::Searxng, "this is a test");
            return skip_without(Requirement::Searxng, "this is a test");
        }
        let log = tempfile::tempdir().unwrap();
        let log = log.path().join("skips");
        let run = |required: &str| {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.env(CHILD, "1").env(REQUIRE_VARIABLE, required).env(SKIP_LOG_VARIABLE, &log);
            let test = "a_skip_of_a_missing_requirement_fails_where_it_is_required_and_is_counted_elsewhere";
            let output = again.args([&format!("requirement::tests::{test}"), "--exact", "--nocapture"]).output();
            let output = output.unwrap();
            (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        };
        let (passed, output) = run("root,searxng");
        assert!(!passed && output.contains("required by RINGFENCE_REQUIRE: searxng: this is a test"), "{output}");
        assert_eq!(count_skips(&log), BTreeMap::new());
        let (passed, output) = run("browser");
        assert!(passed && output.contains("\n| skipped without searxng: this is a test\n"), "{output}");
        assert_eq!(count_skips(&log), BTreeMap::from([("searxng".to_owned(), 1)]));
        let (passed, output) = run("serxng");
        assert!(!passed && output.contains("unknown requirement `serxng`"), "{output}");
    }
}
