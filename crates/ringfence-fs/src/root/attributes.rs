//! Owner, mode and extended attributes of new files.

use std::ffi::CStr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, XattrFlags};
use rustix::io::Errno;

use crate::sys::stat::FileStat;
use crate::sys::syscall::{chmodat, fchmod, fgetxattr, flistxattr, fsetxattr, fstat};

/// Attributes of users go along where they can; labels and capabilities do not. An access list goes along, or the
/// change is refused: without it, the mode would say more than was meant.
pub(crate) fn copy_attributes(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    const ACCESS_LIST: &CStr = c"system.posix_acl_access";
    let mut value = vec![0u8; 64 << 10];
    if let Ok(length) = fgetxattr(from, ACCESS_LIST, &mut value[..]) {
        fsetxattr(to, ACCESS_LIST, &value[..length], XattrFlags::empty())?;
    }
    let mut names = vec![0u8; 64 << 10];
    let Ok(length) = flistxattr(from, &mut names[..]) else { return Ok(()) };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        if let Ok(length) = fgetxattr(from, name, &mut value[..]) {
            let _ = fsetxattr(to, name, &value[..length], XattrFlags::empty());
        }
    }
    Ok(())
}

/// Gives what was just made in a directory the permissions that it was asked for, of which the umask may have taken some.
/// Where the directory says by an access list what its entries get, that is what they have.
pub(crate) fn chmod_past_umask(made: BorrowedFd<'_>, parent: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    let has = FileStat::from_stat(&fstat(made)?).mode;
    if has & 0o777 == mode || fgetxattr(parent, c"system.posix_acl_default", &mut []).is_ok() {
        return Ok(());
    }
    fchmod(made, Mode::from_raw_mode(has & 0o7000 | mode))
}

/// Changes the mode of what a descriptor stands for: that very thing, whatever has its name by now.
pub(crate) fn chmod_fd(held: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    chmodat(CWD, format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::from_raw_mode(mode), AtFlags::empty())
}
