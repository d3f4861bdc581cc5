//! Directories of the layer store: private, of this user, with a lock file each.
//!
//! A directory that is another user's, a link, or open to others is not used: what is in it could be forged.
//!
//! Not here: what is in them (`layer_store.rs`, `layer_home.rs`).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfence_kernel::{ErrorKind, ToolError};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::path::name::escape;
use crate::root::stat;
use crate::sys::own_files::{open_own_file, open_private_dir};
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
    flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::AGAIN)
}

/// The lock in a directory, if it is free.
pub(super) fn try_lock(directory: &OwnedFd) -> Result<Option<OwnedFd>, ToolError> {
    let lock = open_own_file(directory, Path::new(LOCK), OFlags::CREATE).map_err(errno_store_error)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno_store_error(errno)),
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
