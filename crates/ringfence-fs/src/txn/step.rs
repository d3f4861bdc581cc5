//! Transaction steps, each of which can be rolled back, also by another process.
//!
//! New entries wait in the image store. Each is published by one rename, or exchanged with the current entry. An entry
//! is identified by its inode, size and time: an entry that another process put there meanwhile is left, or gets a
//! visible name.
//!
//! Not here: which steps there are (`batch.rs`, `undo/`, `overlay/`), and their record (`record.rs`).

use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::journal::PreImageStore;
use crate::mount::Mount;
use crate::mount::change::delete_images;
use crate::path::relative::split;
use crate::root::attributes::chmod_fd;
use crate::root::resolver::PATH_ONLY;
use crate::root::trash::{rename_to_conflict, rename_visible};
use crate::root::{rename_noreplace, stat};
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fchmod, fstat, openat, renameat_with, unlinkat};
use crate::txn::directories::TxnDirectories;
use crate::txn::record::{DISCARDED, FileIdentity, TxnEntry, TxnStep};

/// Rolls back one step, however far it had come. Safe to repeat. A file that is not ours, by its contents too, is left,
/// or renamed to a visible name.
pub(crate) fn roll_back(
    directories: &TxnDirectories<'_>,
    parent: BorrowedFd<'_>,
    entry: &TxnEntry,
) -> Result<(), Errno> {
    let TxnEntry { step, name, temporary, .. } = entry;
    let (here, there) = ((parent, temporary.as_slice()), (parent, name.as_slice()));
    let remove = || unlinkat(parent, temporary.as_slice(), AtFlags::empty());
    let keep = || rename_to_conflict(parent, temporary).map(drop);
    // If the name was taken meanwhile, ours would stay hidden.
    let put_back = || rename_noreplace(here, there).or_else(|_| keep());
    let has =
        |place: &[u8], known: &FileIdentity| Ok(stat(parent, place)?.is_some_and(|found| known.matches_stat(&found)));
    // The name may have been replaced by another process just before.
    let remove_or_put_back = |new: &FileIdentity| if has(temporary, new)? { remove() } else { put_back() };
    match (step, stat(parent, temporary)?) {
        // Only we can have put it there.
        (TxnStep::Prepare, Some(_)) => remove(),
        (TxnStep::Create { new } | TxnStep::Replace { new, .. }, Some(found)) if new.matches_stat(&found) => remove(),
        (TxnStep::Create { new }, None) if has(name, new)? => {
            rename_noreplace(there, here)?;
            remove_or_put_back(new)
        }
        (TxnStep::Replace { new, .. }, Some(_)) if has(name, new)? => {
            exchange(parent, temporary, name)?;
            remove_or_put_back(new)
        }
        (TxnStep::Replace { .. } | TxnStep::Remove { .. }, Some(_)) => put_back(),
        (TxnStep::Create { .. }, Some(_)) => keep(),
        (TxnStep::Prepare | TxnStep::Create { .. } | TxnStep::Replace { .. } | TxnStep::Remove { .. }, None) => Ok(()),
        (
            TxnStep::SwapImage { .. }
            | TxnStep::StoreImage { .. }
            | TxnStep::RestoreImage { .. }
            | TxnStep::Move { .. }
            | TxnStep::ScratchFile,
            _,
        ) => roll_back_undo_step(directories, parent, entry),
        (TxnStep::Publish { .. } | TxnStep::Exchange { .. } | TxnStep::Displace { .. } | TxnStep::Chmod { .. }, _) => {
            roll_back_overlay_step(directories.mount, parent, entry)
        }
    }
}

/// The same for the steps of an undo. An entry that is not at a step's destination was not moved there. One that was
/// written to since stays where it is, and the other is stored beside it.
fn roll_back_undo_step(
    directories: &TxnDirectories<'_>,
    parent: BorrowedFd<'_>,
    entry: &TxnEntry,
) -> Result<(), Errno> {
    let TxnEntry { step, name, temporary, other, .. } = entry;
    let mount = directories.mount;
    if let TxnStep::Move { here: it } = step {
        let (to_parent, to_name) = split(other);
        let to_parent = directories.open(to_parent, entry.directories[1]).map_err(|_| Errno::IO)?;
        let Some(to_parent) = to_parent else { return Ok(()) };
        let there = (to_parent.as_fd(), to_name);
        return if it.matches(FileIdentity::read_at(there.0, there.1)?) {
            rename_noreplace(there, (parent, name))
        } else {
            Ok(())
        };
    }
    let Some(keep) = mount.find_image_store()? else { return Ok(()) };
    let (in_keep, at_name) = ((keep.fd(), temporary.as_slice()), (parent, name.as_slice()));
    let (kept, here) = (FileIdentity::read_at(in_keep.0, in_keep.1)?, FileIdentity::read_at(at_name.0, at_name.1)?);
    let back = || match rename_noreplace(in_keep, at_name) {
        Err(Errno::EXIST) => rename_visible(parent, in_keep).map(drop),
        result => result,
    };
    match step {
        TxnStep::SwapImage { here: old, kept: new } if old.matches(kept) && new.matches(here) => {
            renameat_with(in_keep.0, in_keep.1, at_name.0, at_name.1, RenameFlags::EXCHANGE)
        }
        TxnStep::SwapImage { here: old, .. } | TxnStep::StoreImage { here: old } if old.matches(kept) => back(),
        TxnStep::RestoreImage { kept: it } if it.matches(here) && kept.is_none() => rename_noreplace(at_name, in_keep),
        TxnStep::ScratchFile if kept.is_some() => unlinkat(in_keep.0, in_keep.1, AtFlags::empty()),
        _ => Ok(()),
    }
}

/// Removes the entry that a step displaced, once all steps are made: permanently, or into the image store. One that was
/// written to since gets a visible name.
pub(crate) fn finalize(mount: &Mount, parent: BorrowedFd<'_>, entry: &TxnEntry) -> Result<(), Errno> {
    let (TxnStep::Replace { old, .. } | TxnStep::Remove { old }) = &entry.step else {
        finalize_overlay_step(mount, entry);
        return Ok(());
    };
    let Some(found) = stat(parent, &entry.temporary)? else { return Ok(()) };
    match mount.find_image_store()? {
        _ if !old.matches_stat(&found) => {}
        _ if entry.other.is_empty() => return unlinkat(parent, entry.temporary.as_slice(), AtFlags::empty()),
        Some(keep) => return keep.store(parent, &entry.temporary, &String::from_utf8_lossy(&entry.other)),
        // Without an image store, a pre-image gets a visible name.
        None => {}
    }
    rename_to_conflict(parent, &entry.temporary).map(drop)
}

/// Makes one step, or leaves everything as it was. `BUSY` says that another program was first.
pub(crate) fn apply(keep: &PreImageStore, parent: BorrowedFd<'_>, entry: &TxnEntry) -> Result<(), Errno> {
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
pub(crate) fn roll_back_overlay_step(mount: &Mount, parent: BorrowedFd<'_>, entry: &TxnEntry) -> Result<(), Errno> {
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
pub(crate) fn finalize_overlay_step(mount: &Mount, entry: &TxnEntry) {
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

pub(super) fn exchange(parent: BorrowedFd<'_>, one: &[u8], other: &[u8]) -> Result<(), Errno> {
    renameat_with(parent, one, parent, other, RenameFlags::EXCHANGE)
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
