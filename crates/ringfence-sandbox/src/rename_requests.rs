//! Renames that the seccomp filter asks about.
//!
//! A call goes on unchanged unless it renames a directory in an overlay; then a helper with the rights of the program makes the call in
//! its place, because an overlay refuses directories of its lower layer. One helper runs at a time, so that two renames to
//! the same name do not mix. What is read here of the program's memory and files only selects between the two, and either is
//! something that the program may do.
//!
//! A process can restrict itself further by Landlock. The helper would not know these rules, so that from the first such
//! call on, calls of all processes go on unchanged.
//!
//! Not here: the calls in the filter (`seccomp_rules.rs`), and the helper (`rename_helper.rs`).

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, fstatfs, open, openat, statat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitStatus, pidfd_open};

use crate::memory_monitor::ProcessSource;
use crate::rename_helper::{HelperIsolation, result_of};
use crate::seccomp_rules::LANDLOCK_RESTRICT_SELF;
use crate::sys::{self, CallAnswer, SeccompNotification};
use crate::tree_rename::{RenameArgs, is_overlay};

/// Calls that wait for a helper. Each is of a thread that waits for its answer, so that there are no more than threads,
/// but for those that were killed.
const MAX_WAITING: usize = 4096;

/// The kernel takes no longer path, with the byte that ends it.
const PATH_MAX: usize = 4096;

/// The renames of one run.
pub(crate) struct RenameRequests<'a> {
    /// Nothing, where no helper may be started (any more).
    isolation: Option<HelperIsolation<'a>>,
    processes: ProcessSource<'a>,
    waiting: VecDeque<SeccompNotification>,
    running: Option<(Pid, SeccompNotification)>,
}

impl<'a> RenameRequests<'a> {
    pub(crate) fn new(isolation: Option<HelperIsolation<'a>>, processes: ProcessSource<'a>) -> Self {
        Self { isolation, processes, waiting: VecDeque::new(), running: None }
    }

    /// Takes a call, if it is one of these. Other calls are returned.
    pub(crate) fn take(&mut self, listener: BorrowedFd<'_>, call: SeccompNotification) -> Option<SeccompNotification> {
        if call.number == LANDLOCK_RESTRICT_SELF {
            self.close(Some(listener));
        } else if RenameCall::read(&call).is_none() {
            return Some(call);
        }
        if self.isolation.is_some() && self.waiting.len() < MAX_WAITING && self.renames_directory(&call) {
            self.waiting.push_back(call);
            self.start_next(listener);
        } else {
            let _ = sys::answer_call(listener, &call, CallAnswer::Continue);
        }
        None
    }

    /// Answers the call that a helper worked for, if this is it. The program may be gone, and the listener with it.
    pub(crate) fn finish(&mut self, listener: Option<BorrowedFd<'_>>, ended: Pid, status: WaitStatus) {
        let Some((_, call)) = self.running.take_if(|(helper, _)| *helper == ended) else { return };
        let Some(listener) = listener else { return };
        let _ = sys::answer_call(listener, &call, CallAnswer::Return(result_of(status)));
        self.start_next(listener);
    }

    /// Starts no helper any more. One that runs goes on.
    pub(crate) fn close(&mut self, listener: Option<BorrowedFd<'_>>) {
        self.isolation = None;
        for (call, listener) in self.waiting.drain(..).zip(std::iter::repeat(listener)) {
            let _ = listener.map(|listener| sys::answer_call(listener, &call, CallAnswer::Continue));
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    fn start_next(&mut self, listener: BorrowedFd<'_>) {
        while self.running.is_none() {
            let (Some(isolation), Some(call)) = (&self.isolation, self.waiting.pop_front()) else { return };
            let started = self.read_args(&call).and_then(|args| {
                // What was read is of the calling process only if it still waits.
                sys::check_notification(listener, &call)?;
                isolation.start(&args)
            });
            match started {
                Ok(helper) => self.running = Some((helper, call)),
                Err(_) => {
                    let _ = sys::answer_call(listener, &call, CallAnswer::Continue);
                }
            }
        }
    }

    /// Whether it renames a directory in an overlay.
    fn renames_directory(&self, call: &SeccompNotification) -> bool {
        self.find_source(call).is_ok_and(|(proc, path)| {
            let proc = proc.map_or(CWD, AsFd::as_fd);
            let found = statat(proc, &path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
            found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
                && openat(proc, &path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                    .and_then(fstatfs)
                    .is_ok_and(|found| is_overlay(&found))
        })
    }

    /// The path of what is renamed, as `process_path` has it.
    fn find_source(&self, call: &SeccompNotification) -> Result<(Option<&'a OwnedFd>, PathBuf), Errno> {
        let rename = RenameCall::read(call).ok_or(Errno::INVAL)?;
        let path = read_path(call.pid, rename.old_path)?;
        // Joined with an absolute path, it is that path.
        self.process_path(call.pid, base_name(rename.old_base).join(OsStr::from_bytes(path.to_bytes())))
    }

    fn read_args(&self, call: &SeccompNotification) -> Result<RenameArgs, Errno> {
        let rename = RenameCall::read(call).ok_or(Errno::INVAL)?;
        let (old_path, new_path) = (read_path(call.pid, rename.old_path)?, read_path(call.pid, rename.new_path)?);
        let old_base = self.open_base(call.pid, rename.old_base, &old_path)?;
        let new_base = self.open_base(call.pid, rename.new_base, &new_path)?;
        Ok(RenameArgs { old_base, old_path, new_base, new_path, flags: rename.flags })
    }

    /// The directory to which a path of a process is relative.
    fn open_base(&self, pid: Pid, base: i32, path: &CString) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if path.to_bytes().starts_with(b"/") {
            return open("/", flags, Mode::empty());
        }
        match self.process_path(pid, base_name(base))? {
            (Some(proc), path) => openat(proc, path, flags, Mode::empty()),
            (None, path) => open(path, flags, Mode::empty()),
        }
    }

    /// A path in the directory of a process, with the `/proc` to which it is relative, unless that is the jail's own.
    fn process_path(&self, pid: Pid, name: PathBuf) -> Result<(Option<&'a OwnedFd>, PathBuf), Errno> {
        match self.processes {
            ProcessSource::JailProc => Ok((None, Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join(name))),
            ProcessSource::SpawnerProc(proc) => {
                // It has other numbers for the jail's processes, which it tells of a descriptor.
                let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
                let info = Path::new("self/fdinfo").join(pidfd.as_raw_fd().to_string());
                let info = openat(proc, info, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                let mut text = [0; 1024];
                let length = rustix::io::read(&info, &mut text)?;
                let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned();
                let number = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<u32>().ok());
                Ok((Some(proc), Path::new(&number.ok_or(Errno::SRCH)?.to_string()).join(name)))
            }
        }
    }
}

/// The arguments of a rename, whichever of the calls it is.
struct RenameCall {
    old_base: i32,
    old_path: u64,
    new_base: i32,
    new_path: u64,
    flags: RenameFlags,
}

impl RenameCall {
    /// Nothing, if it is another call.
    fn read(call: &SeccompNotification) -> Option<Self> {
        let [first, second, third, fourth, fifth, _] = call.arguments;
        #[cfg(target_arch = "x86_64")]
        if call.number == libc::SYS_rename {
            let (base, flags) = (libc::AT_FDCWD, RenameFlags::empty());
            return Some(Self { old_base: base, old_path: first, new_base: base, new_path: second, flags });
        }
        let flags = match call.number {
            libc::SYS_renameat => RenameFlags::empty(),
            libc::SYS_renameat2 => RenameFlags::from_bits_retain(fifth as u32),
            _ => return None,
        };
        // The kernel looks at 32 bits of a descriptor.
        Some(Self { old_base: first as i32, old_path: second, new_base: third as i32, new_path: fourth, flags })
    }
}

/// Name of a base directory in the directory of a process.
fn base_name(base: i32) -> PathBuf {
    if base == libc::AT_FDCWD { "cwd".into() } else { Path::new("fd").join(base.to_string()) }
}

/// A path in the memory of a process.
pub(crate) fn read_path(pid: Pid, address: u64) -> Result<CString, Errno> {
    let mut buffer = [0; PATH_MAX];
    let length = sys::read_memory(pid, address, &mut buffer)?;
    let read = buffer.get(..length).unwrap_or_default();
    let text = CStr::from_bytes_until_nul(read).map_err(|_| Errno::NAMETOOLONG)?;
    Ok(text.to_owned())
}
