//! Directories of the layer store: private, of this user, with a lock file each.
//!
//! A directory that is another user's, a link, or open to others is not used: what is in it could be forged.
//!
//! Not here: what is in them (`layer_store.rs`, `layer_home.rs`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfence_kernel::{ErrorKind, ToolError};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::path::name::escape;
use crate::root::stat;
use crate::sys::own_files::{open_own_file, open_private_dir, release_lock};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{flock, fstat};

pub(super) const UPPER: &[u8] = b"upper";
pub(super) const WORK: &[u8] = b"work";
pub(super) const LOCK: &str = "lock";

/// A directory of our own, made if it is missing. Refused if it is another user's, a link, or open to others.
pub(super) fn open_checked(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, ToolError> {
    let directory = match open_private_dir(parent, name) {
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(foreign_error(name)),
        directory => directory.map_err(errno_store_error)?,
    };
    let found = FileStat::from_stat(&fstat(&directory).map_err(errno_store_error)?);
    let is_own = found.owner.0 == geteuid().as_raw() && found.mode & 0o077 == 0;
    if is_own && found.kind == FileKind::Directory { Ok(directory) } else { Err(foreign_error(name)) }
}

fn foreign_error(name: &[u8]) -> ToolError {
    let message = format!("`{}` in the state directory is not a private directory of this user", escape(name));
    ToolError::new(ErrorKind::Unavailable, message).hint("move it away by hand, or restore its owner and mode 700")
}

/// Whether a directory still has its name: another process may have removed it before it was locked.
pub(super) fn has_name(parent: &OwnedFd, name: &[u8], directory: &OwnedFd) -> Result<bool, ToolError> {
    let found = stat(parent.as_fd(), name).map_err(errno_store_error)?;
    let held = FileStat::from_stat(&fstat(directory).map_err(errno_store_error)?);
    Ok(found.is_some_and(|found| found.id == held.id))
}

/// Whether a process has the lock in a directory.
pub(super) fn is_locked(directory: &OwnedFd) -> bool {
    let Ok(lock) = open_own_file(directory, Path::new(LOCK), OFlags::empty()) else { return false };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => drop(StoreLock::new(lock)),
        Err(errno) => return errno == Errno::AGAIN,
    }
    false
}

/// The lock in a directory, if it is free.
pub(super) fn try_lock(directory: &OwnedFd) -> Result<Option<StoreLock>, ToolError> {
    let lock = open_own_file(directory, Path::new(LOCK), OFlags::CREATE).map_err(errno_store_error)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(StoreLock::new(lock))),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno_store_error(errno)),
    }
}

/// A lock that is held until this is dropped. It is given back, and not only closed: a process that is just being started
/// shares the descriptor for a moment.
#[derive(Debug)]
pub(super) struct StoreLock(OwnedFd);

impl StoreLock {
    /// Of a file that is locked.
    pub(super) fn new(locked: OwnedFd) -> Self {
        Self(locked)
    }
}

impl AsFd for StoreLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        release_lock(&self.0);
    }
}

/// The time now, in nanoseconds since 1970.
pub(super) fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
pub(super) fn store_error(error: io::Error) -> ToolError {
    match Errno::from_io_error(&error) {
        Some(errno) => errno_store_error(errno),
        None => ToolError::new(ErrorKind::Io, "the layers in the state directory cannot be used"),
    }
}

pub(super) fn errno_store_error(errno: Errno) -> ToolError {
    let message = format!("the layers in the state directory cannot be used (error {})", errno.raw_os_error());
    ToolError::new(ErrorKind::Io, message)
}

#[cfg(test)]
mod tests {
    use super::{is_locked, try_lock};
    use crate::sys::own_files::open_state;

    #[test]
    fn a_lock_is_given_back_although_a_process_that_is_started_shares_its_descriptor() {
        let place = tempfile::tempdir().unwrap();
        let directory = open_state(place.path()).unwrap();
        let lock = try_lock(&directory).unwrap().unwrap();
        let shared = lock.0.try_clone().unwrap();
        assert!(is_locked(&directory) && try_lock(&directory).unwrap().is_none());
        drop(lock);
        assert!(!is_locked(&directory) && try_lock(&directory).unwrap().is_some());
        drop(shared);
    }
}
