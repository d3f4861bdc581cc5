//! Removal of directories that a program filled, by descriptors.
//!
//! Such a directory is untrusted: it may be deeper than a path or the stack, closed to its owner, and full of links. No link
//! is followed, no other mount is entered, and two descriptors are open at a time: a directory in a directory is moved to
//! the top before it is emptied. What was removed of an interrupted removal is gone, and the next one removes the rest.
//!
//! Not here: which directories are removed (`layer_store.rs`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallContext, ToolError};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::root::attributes::chmod_fd;
use crate::root::resolver::PATH_ONLY;
use crate::root::walk::{TempVisibility, read_directory};
use crate::root::{rename_noreplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, openat, unlinkat};

/// Names that directories have at the top until they are emptied.
const MOVED_PREFIX: &str = "removed-";

/// Removes what stands at a name in a directory of our own, with everything in it.
pub(super) fn remove_tree(parent: BorrowedFd<'_>, name: &[u8], cx: &CallContext<'_>) -> Result<(), ToolError> {
    let fail = |errno| errno_error(errno, "the removed directory");
    let Some(found) = stat(parent, name).map_err(fail)? else { return Ok(()) };
    if found.kind != FileKind::Directory {
        return unlinkat(parent, name, AtFlags::empty()).map_err(fail);
    }
    let top = open_emptied(parent, name, found.id.device).map_err(fail)?;
    let mut removal = TreeRemoval { top: &top, device: found.id.device, next_name: 0 };
    loop {
        let mut left = removal.empty(top.as_fd(), cx)?;
        if left.is_empty() {
            break;
        }
        while let Some(directory) = left.pop() {
            let opened = open_emptied(top.as_fd(), &directory, removal.device).map_err(fail)?;
            left.extend(removal.empty(opened.as_fd(), cx)?);
            unlinkat(&top, directory.as_slice(), AtFlags::REMOVEDIR).map_err(fail)?;
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(fail)
}

/// Opens a directory of a program by its name so that entries can be removed, whatever its mode is.
pub(super) fn open_emptied(parent: BorrowedFd<'_>, name: &[u8], device: u64) -> Result<OwnedFd, Errno> {
    let place = openat(parent, name, PATH_ONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    let found = FileStat::from_stat(&fstat(&place)?);
    if found.id.device != device {
        return Err(Errno::XDEV);
    }
    if found.mode & 0o700 != 0o700 {
        chmod_fd(place.as_fd(), 0o700)?;
    }
    openat(&place, c".", OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty())
}

struct TreeRemoval<'a> {
    top: &'a OwnedFd,
    device: u64,
    next_name: u64,
}

impl TreeRemoval<'_> {
    /// Removes what is in a directory. Returns the names at the top of the directories that still have entries.
    fn empty(&mut self, directory: BorrowedFd<'_>, cx: &CallContext<'_>) -> Result<Vec<Vec<u8>>, ToolError> {
        let fail = |errno| errno_error(errno, "the removed directory");
        let is_top = FileStat::from_stat(&fstat(directory).map_err(fail)?).id
            == FileStat::from_stat(&fstat(self.top).map_err(fail)?).id;
        let mut left = Vec::new();
        for entry in read_directory(directory, TempVisibility::Visible, u64::MAX, "", cx)? {
            cx.check()?;
            if !entry.is_directory_in(directory).map_err(fail)? {
                unlinkat(directory, entry.name.as_slice(), AtFlags::empty()).map_err(fail)?;
                continue;
            }
            match unlinkat(directory, entry.name.as_slice(), AtFlags::REMOVEDIR) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) if is_top => left.push(entry.name),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    // A directory is moved by those who may write to it.
                    open_emptied(directory, &entry.name, self.device).map_err(fail)?;
                    left.push(self.move_to_top(directory, &entry.name).map_err(fail)?);
                }
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(left)
    }

    fn move_to_top(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        loop {
            let to = format!("{MOVED_PREFIX}{}", self.next_name).into_bytes();
            self.next_name += 1;
            match rename_noreplace((directory, name), (self.top.as_fd(), &to)) {
                Err(Errno::EXIST) => {}
                moved => return moved.map(|()| to),
            }
        }
    }
}
