//! Commit steps, each of which can be rolled back, also by another process.
//!
//! New entries wait in the image store. Each is published by one rename, or exchanged with the current entry. An entry
//! is identified by its inode, size and time: an entry that another process put there meanwhile is left, or gets a
//! visible name.
//!
//! Not here: which steps there are (`commit.rs`), and their record (`record.rs`).

use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::journal::{ImageStore, delete_images};
use crate::mount::resolver::PATH_ONLY;
use crate::mount::{Mount, rename_noreplace, stat};
use crate::overlay::upper::chmod_fd;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fchmod, fstat, openat, renameat_with};
use crate::txn::record::{DISCARDED, FileIdentity, TxnEntry, TxnStep};
use crate::txn::trash::rename_visible;

/// Makes one step, or leaves everything as it was. `BUSY` says that another program was first.
pub(super) fn apply(keep: &ImageStore, parent: BorrowedFd<'_>, entry: &TxnEntry) -> Result<(), Errno> {
    let TxnEntry { step, name, temporary, .. } = entry;
    let (here, kept) = ((parent, name.as_slice()), (keep.fd(), temporary.as_slice()));
    match step {
        TxnStep::Publish { .. } => rename_noreplace(kept, here).map_err(|errno| match errno {
            Errno::EXIST => Errno::BUSY,
            other => other,
        }),
        TxnStep::Exchange { old, .. } => {
            let exchange = || renameat_with(here.0, here.1, kept.0, kept.1, RenameFlags::EXCHANGE);
            exchange().map_err(missing_as_busy)?;
            if is_at(old, kept)? {
                return Ok(());
            }
            exchange()?;
            Err(Errno::BUSY)
        }
        TxnStep::Displace { old } => {
            rename_noreplace(here, kept).map_err(missing_as_busy)?;
            if is_at(old, kept)? {
                return Ok(());
            }
            rename_noreplace(kept, here)?;
            Err(Errno::BUSY)
        }
        TxnStep::Chmod { inode, from, to } => chmod_directory(here, *inode, [*from, *to]).map_err(missing_as_busy),
        _ => Ok(()),
    }
}

/// Takes a step back, however far it had come. Safe to repeat.
pub(crate) fn roll_back(mount: &Mount, parent: BorrowedFd<'_>, entry: &TxnEntry) -> Result<(), Errno> {
    let TxnEntry { step, name, temporary, .. } = entry;
    let here = (parent, name.as_slice());
    if let TxnStep::Chmod { inode, from, to } = *step {
        return match chmod_directory(here, inode, [to, from]) {
            // It has the old mode, or one that another process set.
            Err(Errno::NOENT) => Ok(()),
            done => done,
        };
    }
    let Some(keep) = mount.find_image_store()? else { return Ok(()) };
    let kept = (keep.fd(), temporary.as_slice());
    match step {
        TxnStep::Publish { new } if is_at(new, here)? => rename_noreplace(here, kept)?,
        TxnStep::Exchange { old, new } if is_at(old, kept)? => {
            if is_at(new, here)? {
                renameat_with(here.0, here.1, kept.0, kept.1, RenameFlags::EXCHANGE)?;
            } else {
                restore_name(kept, here)?;
            }
        }
        TxnStep::Displace { old } if is_at(old, kept)? => restore_name(kept, here)?,
        _ => {}
    }
    if let TxnStep::Publish { new } | TxnStep::Exchange { new, .. } = step
        && is_at(new, kept)?
    {
        delete_images(mount, &[String::from_utf8_lossy(temporary).into_owned()]);
    }
    Ok(())
}

/// Deletes what a step displaced permanently, once all steps are made.
pub(crate) fn finalize(mount: &Mount, entry: &TxnEntry) {
    let (TxnStep::Exchange { old, .. } | TxnStep::Displace { old }) = &entry.step else { return };
    let Some(keep) = mount.image_store().filter(|_| entry.other == DISCARDED) else { return };
    if is_at(old, (keep.fd(), &entry.temporary)).unwrap_or(false) {
        delete_images(mount, &[String::from_utf8_lossy(&entry.temporary).into_owned()]);
    }
}

/// Gives a directory another mode, if it is the one that is meant and has the mode that it should have.
pub(crate) fn chmod_directory(
    (parent, name): (BorrowedFd<'_>, &[u8]),
    inode: u64,
    [from, to]: [u32; 2],
) -> Result<(), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let is_it = |stamp: &FileStat| stamp.kind == FileKind::Directory && stamp.id.inode == inode && stamp.mode == from;
    let fd = match openat(parent, name, OFlags::RDONLY | flags | SAFE_OPEN, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let place = openat(parent, name, PATH_ONLY | flags, Mode::empty())?;
            return if is_it(&FileStat::from_stat(&fstat(&place)?)) {
                chmod_fd(place.as_fd(), to)
            } else {
                Err(Errno::NOENT)
            };
        }
        opened => opened?,
    };
    if is_it(&FileStat::from_stat(&fstat(&fd)?)) { fchmod(&fd, Mode::from_raw_mode(to)) } else { Err(Errno::NOENT) }
}

/// Gives an entry its name back, or one beside it if the name was taken.
fn restore_name(kept: (BorrowedFd<'_>, &[u8]), here: (BorrowedFd<'_>, &[u8])) -> Result<(), Errno> {
    rename_noreplace(kept, here).or_else(|_| rename_visible(here.0, kept).map(drop))
}

fn is_at(known: &FileIdentity, (parent, name): (BorrowedFd<'_>, &[u8])) -> Result<bool, Errno> {
    Ok(stat(parent, name)?.is_some_and(|found| known.matches_stat(&found)))
}

fn missing_as_busy(errno: Errno) -> Errno {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::BUSY,
        other => other,
    }
}
