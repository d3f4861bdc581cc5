//! Syscall wrappers that retry on EINTR.
//!
//! They are used instead of rustix's own of the same name, so that no caller can forget.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, FlockOperation, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, StatFs, Statx, StatxFlags,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

pub fn openat(parent: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    with_c_str(path, |path| retry_on_intr(|| rustix::fs::openat(parent.as_fd(), path, flags, mode)))
}

pub fn openat2(
    parent: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    with_c_str(path, |path| retry_on_intr(|| rustix::fs::openat2(parent.as_fd(), path, flags, mode, resolve)))
}

pub fn renameat_with(
    parent: impl AsFd,
    name: impl Arg,
    to_parent: impl AsFd,
    to: impl Arg,
    how: RenameFlags,
) -> Result<(), Errno> {
    with_c_str(name, |name| {
        with_c_str(to, |to| {
            retry_on_intr(|| rustix::fs::renameat_with(parent.as_fd(), name, to_parent.as_fd(), to, how))
        })
    })
}

pub fn fsync(fd: impl AsFd) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fsync(fd.as_fd()))
}

pub fn fdatasync(fd: impl AsFd) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fdatasync(fd.as_fd()))
}

pub fn ftruncate(fd: impl AsFd, length: u64) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::ftruncate(fd.as_fd(), length))
}

pub fn pread(fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::pread(fd.as_fd(), &mut *buffer, offset))
}

pub fn pwrite(fd: impl AsFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::pwrite(fd.as_fd(), bytes, offset))
}

pub fn write(fd: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::write(fd.as_fd(), bytes))
}

pub fn fstat(fd: impl AsFd) -> Result<Stat, Errno> {
    retry_on_intr(|| rustix::fs::fstat(fd.as_fd()))
}

pub fn statat(parent: impl AsFd, name: impl Arg, flags: AtFlags) -> Result<Stat, Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::statat(parent.as_fd(), name, flags)))
}

pub fn statx(parent: impl AsFd, name: impl Arg, flags: AtFlags, what: StatxFlags) -> Result<Statx, Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::statx(parent.as_fd(), name, flags, what)))
}

pub fn fstatfs(fd: impl AsFd) -> Result<StatFs, Errno> {
    retry_on_intr(|| rustix::fs::fstatfs(fd.as_fd()))
}

pub fn statfs(path: impl Arg) -> Result<StatFs, Errno> {
    with_c_str(path, |path| retry_on_intr(|| rustix::fs::statfs(path)))
}

pub fn accessat(parent: impl AsFd, name: impl Arg, access: Access, flags: AtFlags) -> Result<(), Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::accessat(parent.as_fd(), name, access, flags)))
}

pub fn readlinkat(parent: impl AsFd, name: impl Arg) -> Result<CString, Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::readlinkat(parent.as_fd(), name, Vec::new())))
}

pub fn mkdirat(parent: impl AsFd, name: impl Arg, mode: Mode) -> Result<(), Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::mkdirat(parent.as_fd(), name, mode)))
}

pub fn unlinkat(parent: impl AsFd, name: impl Arg, flags: AtFlags) -> Result<(), Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::unlinkat(parent.as_fd(), name, flags)))
}

pub fn renameat(parent: impl AsFd, name: impl Arg, to_parent: impl AsFd, to: impl Arg) -> Result<(), Errno> {
    with_c_str(name, |name| {
        with_c_str(to, |to| retry_on_intr(|| rustix::fs::renameat(parent.as_fd(), name, to_parent.as_fd(), to)))
    })
}

pub fn linkat(
    parent: impl AsFd,
    name: impl Arg,
    to_parent: impl AsFd,
    to: impl Arg,
    flags: AtFlags,
) -> Result<(), Errno> {
    with_c_str(name, |name| {
        with_c_str(to, |to| retry_on_intr(|| rustix::fs::linkat(parent.as_fd(), name, to_parent.as_fd(), to, flags)))
    })
}

pub fn symlinkat(target: impl Arg, parent: impl AsFd, name: impl Arg) -> Result<(), Errno> {
    with_c_str(target, |target| {
        with_c_str(name, |name| retry_on_intr(|| rustix::fs::symlinkat(target, parent.as_fd(), name)))
    })
}

pub fn chmodat(parent: impl AsFd, name: impl Arg, mode: Mode, flags: AtFlags) -> Result<(), Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::chmodat(parent.as_fd(), name, mode, flags)))
}

pub fn fchmod(fd: impl AsFd, mode: Mode) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fchmod(fd.as_fd(), mode))
}

pub fn fchown(fd: impl AsFd, owner: Option<Uid>, group: Option<Gid>) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fchown(fd.as_fd(), owner, group))
}

pub fn futimens(fd: impl AsFd, times: &Timestamps) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::futimens(fd.as_fd(), times))
}

pub fn fgetxattr(fd: impl AsFd, name: impl Arg, value: &mut [u8]) -> Result<usize, Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::fgetxattr(fd.as_fd(), name, &mut *value)))
}

pub fn fsetxattr(fd: impl AsFd, name: impl Arg, value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::fsetxattr(fd.as_fd(), name, value, flags)))
}

pub fn fremovexattr(fd: impl AsFd, name: impl Arg) -> Result<(), Errno> {
    with_c_str(name, |name| retry_on_intr(|| rustix::fs::fremovexattr(fd.as_fd(), name)))
}

pub fn flistxattr(fd: impl AsFd, names: &mut [u8]) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::fs::flistxattr(fd.as_fd(), &mut *names))
}

pub fn flock(fd: impl AsFd, operation: FlockOperation) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::flock(fd.as_fd(), operation))
}

/// A path can be given to the kernel once; as a C string it can be given again.
fn with_c_str<T>(path: impl Arg, call: impl FnOnce(&CStr) -> Result<T, Errno>) -> Result<T, Errno> {
    path.into_with_c_str(call)
}
