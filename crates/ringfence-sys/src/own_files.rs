//! Private files: directories, listings, locks and writes in our own state directory.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::syscall::{fdatasync, flock, ftruncate, mkdirat, openat, write};

/// Every open of ours: no waiting for a pipe's other end, no terminal taken over, no child inherits it.
pub const SAFE_OPEN: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The longest that another process may keep the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The state directory, made if it is missing.
pub fn open_state(state: &Path) -> io::Result<OwnedFd> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    Ok(openat(CWD, state, OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty())?)
}

/// A directory of our own below the state directory, made if it is missing.
pub fn open_state_dir(state: &Path, name: &str) -> io::Result<OwnedFd> {
    Ok(open_private_dir(&open_state(state)?, name.as_bytes())?)
}

/// A directory that only we may enter, made if it is missing.
pub fn open_private_dir(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_OPEN, Mode::empty())
}

/// A file of our own below a directory that only we may enter, for reading and writing. With `OFlags::CREATE`, made if
/// it is missing.
pub fn open_own_file(directory: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(directory, path, OFlags::RDWR | OFlags::NOFOLLOW | SAFE_OPEN | flags, Mode::RUSR | Mode::WUSR)
}

/// The names in a directory, those that are text; none if there are more than `most`.
pub fn names_in(directory: BorrowedFd<'_>, most: usize) -> Result<Vec<String>, Errno> {
    Ok(typed_names_in(directory, most)?.into_iter().map(|(name, _)| name).collect())
}

/// The same, each with its type, where the file system lists it.
pub fn typed_names_in(directory: BorrowedFd<'_>, most: usize) -> Result<Vec<(String, FileType)>, Errno> {
    let listing = openat(directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty())?;
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut raw = RawDir::new(&listing, &mut buffer);
    while let Some(entry) = raw.next() {
        let entry = match entry {
            Err(Errno::INTR) => continue,
            entry => entry?,
        };
        if let Ok(name) = entry.file_name().to_str() {
            names.push((name.to_owned(), entry.file_type()));
        }
        if names.len() > most {
            return Ok(Vec::new());
        }
    }
    Ok(names)
}

/// Writes all of `bytes`.
pub fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(length) => bytes = &bytes[length..],
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Drops the end of a file, such as an incomplete line, so that a power cut does not bring it back.
pub fn truncate_durably(file: &OwnedFd, length: u64) -> Result<(), Errno> {
    ftruncate(file, length)?;
    fdatasync(file)
}

/// Acquires the lock, or fails if another process holds it too long.
pub fn acquire_lock(lock: &OwnedFd) -> io::Result<()> {
    let started = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) if started.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(2));
            }
            Err(Errno::AGAIN) => return Err(io::Error::new(io::ErrorKind::TimedOut, "another process holds its lock")),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Gives the lock back.
pub fn release_lock(lock: &OwnedFd) {
    // It also goes with the descriptor.
    let _ = flock(lock, FlockOperation::Unlock);
}
