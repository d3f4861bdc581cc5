//! Calls of the kernel that are made again when a signal, or a file system's daemon, interrupts them.
//!
//! They are used in place of rustix's own of the same name, so that no caller can forget.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

pub(crate) fn openat(parent: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    with(path, |path| retry_on_intr(|| rustix::fs::openat(parent.as_fd(), path, flags, mode)))
}

pub(crate) fn openat2(
    parent: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    with(path, |path| retry_on_intr(|| rustix::fs::openat2(parent.as_fd(), path, flags, mode, resolve)))
}

pub(crate) fn renameat_with(
    parent: impl AsFd,
    name: impl Arg,
    to_parent: impl AsFd,
    to: impl Arg,
    how: RenameFlags,
) -> Result<(), Errno> {
    with(name, |name| {
        with(to, |to| retry_on_intr(|| rustix::fs::renameat_with(parent.as_fd(), name, to_parent.as_fd(), to, how)))
    })
}

pub(crate) fn fsync(fd: impl AsFd) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fsync(fd.as_fd()))
}

pub(crate) fn fdatasync(fd: impl AsFd) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fdatasync(fd.as_fd()))
}

pub(crate) fn ftruncate(fd: impl AsFd, length: u64) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::ftruncate(fd.as_fd(), length))
}

pub(crate) fn pread(fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::pread(fd.as_fd(), &mut *buffer, offset))
}

pub(crate) fn pwrite(fd: impl AsFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::pwrite(fd.as_fd(), bytes, offset))
}

/// A path can be given to the kernel once; as a C string it can be given again.
fn with<T>(path: impl Arg, call: impl FnOnce(&CStr) -> Result<T, Errno>) -> Result<T, Errno> {
    path.into_with_c_str(call)
}
