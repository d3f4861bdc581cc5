//! File identity beyond the inode number: the inode with the time at which it was made.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, StatxFlags};

use crate::sys::stat::{FileId, FileStat};
use crate::sys::syscall::statx;

/// When a file was made, in nanoseconds since 1970. Some file systems do not say.
pub(crate) type BirthTime = Option<i128>;

/// Identity of a file that survives reuse of its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeIdentity {
    pub(crate) id: FileId,
    pub(crate) birth_time: BirthTime,
}

/// A file to inspect: a name in a directory, or without a name the descriptor's own file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileRef<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) name: &'a [u8],
}

impl<'a> FileRef<'a> {
    pub(crate) fn open(fd: &'a OwnedFd) -> Self {
        Self { fd: fd.as_fd(), name: b"" }
    }

    pub(crate) fn birth_time(self) -> BirthTime {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let found = statx(self.fd, self.name, flags, StatxFlags::BTIME).ok()?;
        let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        told.then(|| i128::from(found.stx_btime.tv_sec) * 1_000_000_000 + i128::from(found.stx_btime.tv_nsec))
    }
}

impl InodeIdentity {
    pub(crate) fn of(at: FileRef<'_>, stamp: &FileStat) -> Self {
        Self { id: stamp.id, birth_time: at.birth_time() }
    }
}
