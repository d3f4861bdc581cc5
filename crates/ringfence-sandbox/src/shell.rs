//! Shell invocation of a command line: `bash -c`, or `sh` where there is no bash.
//!
//! The command line is a file of the jail, so that it has any length. A shell whose directory is kept for the next call
//! reports where it ended, on a descriptor that the shell chooses. The report is written by the program and therefore untrusted: all
//! that it can do is to name a directory of the next jail.
//!
//! Not here: which directory a session is in (`command_session.rs`).

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::environment::SYSTEM_PATH;
use crate::run_mounts::WORKSPACE;

/// File of the command line, in the jail.
pub(crate) const COMMAND_FILE: &str = "command";

/// Most bytes of a directory that is kept.
const MAX_DIRECTORY_BYTES: usize = 4096;

/// Where a command starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartDirectory {
    /// Where the last command of the session ended; the workspace if that is gone.
    Carried,
    /// Here, relative to the workspace. A directory that does not exist is an error of the shell.
    Given(String),
}

/// How a shell enters its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryEntry {
    /// Where that is gone, the workspace; the shell reports that, and where it ended.
    Reported,
    /// Where that is gone, the workspace.
    Fallback,
    /// Where that is gone, an error.
    Strict,
}

/// A shell to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Sh,
}

impl Shell {
    /// The shell that jails have here: they show the system's programs.
    pub(crate) fn detect() -> Self {
        let has_bash = SYSTEM_PATH.iter().any(|directory| Path::new(directory).join("bash").exists());
        if has_bash { Self::Bash } else { Self::Sh }
    }

    /// Its arguments for the command line in `COMMAND_FILE`.
    pub(crate) fn argv(self, directory: &str, entry: DirectoryEntry) -> Vec<OsString> {
        let (name, text) = match self {
            Self::Bash => ("bash", "$(</run/ringfence/command)"),
            Self::Sh => ("sh", "$(cat /run/ringfence/command)"),
        };
        let enter = match entry {
            // The script may use descriptor 9 for itself, such as for a lock. A report into anything but a pipe would be
            // a change of the user's files.
            DirectoryEntry::Reported => match self {
                Self::Bash => {
                    "cd -- \"$1\" 2>/dev/null || { cd /workspace; echo >&9; }; exec {d}>&9 9>&-; \
                     trap \"[ ! -p /dev/fd/$d ] || pwd -P >&$d\" EXIT; unset d"
                }
                Self::Sh => {
                    "cd -- \"$1\" 2>/dev/null || { cd /workspace; echo >&9; }; \
                     trap '[ ! -p /proc/self/fd/9 ] || pwd -P >&9' EXIT"
                }
            },
            DirectoryEntry::Fallback => {
                "cd -- \"$1\" 2>/dev/null || { cd /workspace; echo '[the directory is gone; this runs in the workspace]'; }"
            }
            DirectoryEntry::Strict => "cd -- \"$1\" || exit",
        };
        let script = format!("{enter}; set --; eval \"{text}\"");
        [name, "-c", &script, name, directory].map(OsString::from).into()
    }
}

/// An absolute path of the jail, from one that may be relative to the workspace.
pub(crate) fn jail_path(path: &str, workspace: &Path) -> String {
    match Path::new(path).strip_prefix(workspace).ok().and_then(Path::to_str) {
        // Clients tell their models the path that the workspace has on the host.
        Some("") => WORKSPACE.to_owned(),
        Some(below) => format!("{WORKSPACE}/{below}"),
        None if path.starts_with('/') => path.to_owned(),
        None => format!("{WORKSPACE}/{path}"),
    }
}

/// A directory as replies spell it: relative to the workspace, and empty for that itself.
pub(crate) fn display_directory(path: &str) -> &str {
    match path.strip_prefix(WORKSPACE) {
        Some("") => "",
        Some(rest) => rest.strip_prefix('/').unwrap_or(path),
        None => path,
    }
}

/// The pipe on which a shell reports its final directory.
#[derive(Debug)]
pub(crate) struct DirectoryPipe {
    ours: OwnedFd,
    pub(crate) theirs: OwnedFd,
}

/// The report of a shell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectoryReport {
    /// The directory to start in was gone.
    pub(crate) was_gone: bool,
    /// Its last directory, if it said so.
    pub(crate) last: Option<String>,
}

impl DirectoryPipe {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&ours, OFlags::NONBLOCK)?;
        Ok(Self { ours, theirs })
    }

    /// What is in it. Every process that could write is dead.
    pub(crate) fn read(self) -> DirectoryReport {
        drop(self.theirs);
        let mut bytes = Vec::new();
        let most = MAX_DIRECTORY_BYTES as u64 + 2;
        let read = File::from(self.ours).take(most).read_to_end(&mut bytes);
        read.map(|_| DirectoryReport::parse(&bytes)).unwrap_or_default()
    }
}

impl DirectoryReport {
    /// An empty line where the first directory was gone, and the last directory.
    fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let (was_gone, rest) = text.strip_prefix('\n').map_or((false, text), |rest| (true, rest));
        let last = rest.strip_suffix('\n').filter(|path| path.starts_with('/') && path.len() <= MAX_DIRECTORY_BYTES);
        let last = last.filter(|path| !path.contains(['\0', '\n']));
        Self { was_gone, last: last.map(str::to_owned) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(report: &str, was_gone: bool, last: Option<&str>) {
        let expected = DirectoryReport { was_gone, last: last.map(str::to_owned) };
        assert_eq!(DirectoryReport::parse(report.as_bytes()), expected, "{report:?}");
    }

    #[test]
    fn a_report_has_the_last_directory_and_whether_the_first_was_gone() {
        check("/workspace/src\n", false, Some("/workspace/src"));
        check("\n/workspace\n", true, Some("/workspace"));
        check("\n", true, None);
        check("", false, None);
        check("src\n", false, None);
        check("/a\n/b\n", false, None);
        check("/a", false, None);
        check(&format!("/{}\n", "x".repeat(MAX_DIRECTORY_BYTES)), false, None);
    }

    #[test]
    fn a_directory_is_spelled_relative_to_the_workspace() {
        for (path, shown) in
            [("/workspace", ""), ("/workspace/a/b", "a/b"), ("/workspaces", "/workspaces"), ("/tmp", "/tmp")]
        {
            assert_eq!(display_directory(path), shown, "{path}");
        }
        for (path, expected) in [
            ("src", "/workspace/src"),
            ("/tmp", "/tmp"),
            ("/home/me/project", "/workspace"),
            ("/home/me/project/src", "/workspace/src"),
            ("/home/me/projects", "/home/me/projects"),
        ] {
            assert_eq!(jail_path(path, Path::new("/home/me/project")), expected);
        }
    }

    proptest! {
        #[test]
        fn any_report_is_a_plain_absolute_path_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(last) = DirectoryReport::parse(&bytes).last {
                prop_assert!(last.starts_with('/') && !last.contains(['\0', '\n']));
            }
        }
    }
}
