//! Lookups of a wrapped program: absolute paths that it looked for and that do not exist inside.
//!
//! The seccomp listener is notified of calls that look a path up, where a run wants to know. Each call goes on unchanged, and
//! nothing is decided by what is read here: the path may be another one when the kernel reads it.
//!
//! Not here: whether a path exists on the host, which has the file that is written here.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, statat};
use rustix::io::Errno;

use crate::memory_monitor::ProcessSource;
use crate::rename_requests::read_path;
use crate::sys::{self, CallAnswer, SeccompNotification};

/// Most paths of a run, and most bytes of one.
const MAX_PATHS: usize = 10_000;
const MAX_PATH_BYTES: usize = 1024;

/// Directories whose contents are the jail's own, or not configuration.
const IGNORED_DIRECTORIES: [&[u8]; 4] = [b"/proc/", b"/dev/", b"/sys/", b"/run/"];

/// A path that a program looked for in vain, and the name of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLookup {
    pub path: PathBuf,
    /// As the kernel has it, which is the first 15 bytes.
    pub program: String,
}

/// Writes absent paths to a file of the host.
pub(crate) struct LookupRecorder<'a> {
    file: File,
    processes: ProcessSource<'a>,
    seen: HashSet<Vec<u8>>,
}

impl<'a> LookupRecorder<'a> {
    pub(crate) fn new(file: OwnedFd, processes: ProcessSource<'a>) -> Self {
        Self { file: File::from(file), processes, seen: HashSet::new() }
    }

    /// Takes a call, if it is one of these. Other calls are returned.
    pub(crate) fn take(&mut self, listener: BorrowedFd<'_>, call: SeccompNotification) -> Option<SeccompNotification> {
        let Some(address) = path_argument(&call) else { return Some(call) };
        if let Ok(path) = read_path(call.pid, address) {
            self.record(&call, &path);
        }
        let _ = sys::answer_call(listener, &call, CallAnswer::Continue);
        None
    }

    fn record(&mut self, call: &SeccompNotification, path: &CStr) {
        let bytes = path.to_bytes();
        let is_wanted = bytes.starts_with(b"/")
            && bytes.len() <= MAX_PATH_BYTES
            && !bytes.iter().any(u8::is_ascii_control)
            && !IGNORED_DIRECTORIES.iter().any(|directory| bytes.starts_with(directory));
        if !is_wanted || self.seen.len() >= MAX_PATHS || self.seen.contains(bytes) {
            return;
        }
        let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
        if matches!(found, Err(Errno::NOENT | Errno::NOTDIR)) {
            let program = self.program_name(call);
            // The file is the host's, which reads what there is.
            let _ = self.file.write_all(&[program.as_bytes(), b"\t", bytes, b"\n"].concat());
            self.seen.insert(bytes.to_owned());
        }
    }

    fn program_name(&self, call: &SeccompNotification) -> String {
        let ProcessSource::JailProc = self.processes else { return String::new() };
        let name = std::fs::read_to_string(format!("/proc/{}/comm", call.pid.as_raw_nonzero())).unwrap_or_default();
        name.chars().filter(|c| !c.is_control()).collect()
    }
}

/// The address of the path that a call looks up. `None` for other calls.
fn path_argument(call: &SeccompNotification) -> Option<u64> {
    let [first, second, ..] = call.arguments;
    #[cfg(target_arch = "x86_64")]
    if [libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink].contains(&call.number) {
        return Some(first);
    }
    let at_directory = [
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_readlinkat,
    ];
    at_directory.contains(&call.number).then_some(second)
}

/// Reads the file of a recorder.
pub(crate) fn parse_lookups(bytes: &[u8]) -> Vec<PathLookup> {
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let (program, path) = (line.get(..tab)?, line.get(tab + 1..)?);
        Some(PathLookup {
            path: PathBuf::from(OsStr::from_bytes(path)),
            program: String::from_utf8_lossy(program).into_owned(),
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse_lookups;

    #[test]
    fn lookups_are_read_line_by_line() {
        let lookups = parse_lookups(b"sh\t/home/me/.x\n\t/opt/a b\ncut");
        let seen: Vec<(&str, &Path)> =
            lookups.iter().map(|lookup| (lookup.program.as_str(), lookup.path.as_path())).collect();
        assert_eq!(seen, [("sh", Path::new("/home/me/.x")), ("", Path::new("/opt/a b"))]);
    }
}
