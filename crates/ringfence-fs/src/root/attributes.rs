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
    // Few files have any, so the buffer is small at first.
    let with_buffer = |read: &dyn Fn(&mut [u8]) -> Result<usize, Errno>| {
        let mut bytes = vec![0u8; 256];
        let mut length = read(&mut bytes);
        if length == Err(Errno::RANGE) {
            bytes.resize(64 << 10, 0);
            length = read(&mut bytes);
        }
        bytes.truncate(length?);
        Ok::<_, Errno>(bytes)
    };
    if let Ok(list) = with_buffer(&|value| fgetxattr(from, ACCESS_LIST, value)) {
        fsetxattr(to, ACCESS_LIST, &list, XattrFlags::empty())?;
    }
    let Ok(names) = with_buffer(&|names| flistxattr(from, names)) else { return Ok(()) };
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        if let Ok(value) = with_buffer(&|value| fgetxattr(from, name, value)) {
            let _ = fsetxattr(to, name, &value, XattrFlags::empty());
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
