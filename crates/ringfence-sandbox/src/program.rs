//! Programs with typed arguments: what a tool of another crate runs in the jail, such as git or a test runner.
//!
//! The tool makes the arguments, so that no text of a caller is a command line. Everything else is as for `run_code`: the
//! program works on an overlay, and the policy decides about its changes.
//!
//! Not here: running it (`program_runner.rs`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_kernel::{ChangeKind, ChangedPath};

use crate::job::{JailFile, OutputCapture, OutputStream};
use crate::run_mounts::WORKSPACE;

/// A program of a tool.
#[derive(Clone, Debug, Default)]
pub struct JailProgram {
    /// The program, which is looked up on the jail's `PATH`, and its arguments.
    pub argv: Vec<OsString>,
    /// Variables, laid over those of every run.
    pub env: BTreeMap<String, String>,
    /// The directory that it starts in, below the workspace; empty for the workspace itself.
    pub directory: String,
    /// Read-only files of its own, at `/run/ringfence/<name>`; each may be mounted over a file of the workspace.
    pub files: Vec<JailFile>,
    /// Paths below the workspace that it finds empty, besides secrets.
    pub masked: Vec<PathBuf>,
    /// Hosts that it may connect to, as `ProgramRunner::canonical_hosts` returns them.
    pub hosts: Vec<String>,
    /// Time limit; `None` for that of programs in the config.
    pub timeout: Option<Duration>,
    pub output: OutputCapture,
    /// Bytes of each stream that are kept; `None` for the limit of programs in the config.
    pub max_output: Option<u64>,
    /// The stream that is data for the tool. It is not reported as progress.
    pub data_stream: Option<OutputStream>,
    pub changes: ProgramChanges,
}

/// What becomes of the changes that a program makes in the workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProgramChanges {
    /// None is kept.
    #[default]
    Discard,
    /// The policy decides about each group of them.
    Keep,
    /// The policy decides about all of them as one: all are kept or none.
    KeepTogether,
    /// A person is asked, and all are kept or none.
    Review,
    /// As `Keep`, for these paths alone.
    KeepOnly {
        /// Files as replies spell them.
        paths: Vec<String>,
        /// What becomes of changes elsewhere.
        others: OtherChanges,
    },
}

/// What becomes of a program's changes outside the files that it was to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherChanges {
    /// They are dropped, and the report names them.
    Drop,
    /// They are an error, and nothing is kept.
    Refuse,
}

impl JailProgram {
    /// The command line, which enters its directory first.
    pub(crate) fn command(&self) -> Vec<OsString> {
        if self.directory.is_empty() {
            return self.argv.clone();
        }
        let enter = ["sh", "-c", "cd -- \"$0\" && exec \"$@\""].map(OsString::from);
        let directory = OsString::from(format!("{WORKSPACE}/{}", self.directory));
        enter.into_iter().chain([directory]).chain(self.argv.iter().cloned()).collect()
    }
}

/// Whether a change is one of these files, or makes a directory above one.
pub(crate) fn is_change_of(paths: &[String], change: &ChangedPath) -> bool {
    let named = |path: &str| paths.iter().any(|named| named == path);
    match &change.kind {
        ChangeKind::Created => {
            let above = |named: &String| named.strip_prefix(&change.path).is_some_and(|rest| rest.starts_with('/'));
            named(&change.path) || change.size.is_none() && paths.iter().any(above)
        }
        ChangeKind::Renamed { from } => named(from) && named(&change.path),
        ChangeKind::Modified | ChangeKind::Deleted | ChangeKind::Mode | ChangeKind::Link => named(&change.path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_belongs_to_the_named_files_or_makes_a_directory_for_one() {
        let paths = ["src/a.rs".to_owned(), "b.rs".to_owned()];
        let renamed = |from: &str| ChangeKind::Renamed { from: from.to_owned() };
        for (path, kind, size, expected) in [
            ("src/a.rs", ChangeKind::Modified, Some(3), true),
            ("b.rs", ChangeKind::Created, Some(3), true),
            ("src", ChangeKind::Created, None, true),
            ("src", ChangeKind::Created, Some(3), false),
            ("s", ChangeKind::Created, None, false),
            ("other", ChangeKind::Modified, Some(3), false),
            ("src", ChangeKind::Deleted, None, false),
            ("b.rs", renamed("src/a.rs"), Some(3), true),
            ("b.rs", renamed("elsewhere"), Some(3), false),
        ] {
            let change = ChangedPath { path: path.to_owned(), kind, size, group: 0 };
            assert_eq!(is_change_of(&paths, &change), expected, "{change:?}");
        }
    }

    #[test]
    fn a_program_enters_its_directory_before_it_starts() {
        let program = |directory: &str| JailProgram {
            argv: vec!["cargo".into(), "test".into()],
            directory: directory.to_owned(),
            ..JailProgram::default()
        };
        assert_eq!(program("").command(), ["cargo", "test"]);
        let command = program("-a b").command();
        assert_eq!(
            command.get(2..),
            Some(["cd -- \"$0\" && exec \"$@\"", "/workspace/-a b", "cargo", "test"].map(OsString::from).as_slice())
        );
    }
}
