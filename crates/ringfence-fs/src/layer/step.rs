//! The steps of a commit, each of which can be taken back, also by another process.
//!
//! What is new waits in the keep. It comes to its place by one rename, or changes places with what is there. A thing is
//! known by its inode, size and time: what somebody else put there meanwhile is left, or gets a name that everybody sees.
//!
//! Not here: which steps there are (`commit.rs`), and the note of them (`batch_note.rs`).

use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::upper::permit;
use crate::again::{fchmod, fstat, openat, renameat_with};
use crate::batch_note::{Entry, Known, LOST, Step};
use crate::journal::{Keep, drop_images};
use crate::mount::{Mount, look, rename_onto_nothing};
use crate::resolve::{CAREFUL, PLACE};
use crate::stamp::{Kind, Stamp};
use crate::trash::keep_beside;

/// Makes one step, or leaves everything as it was. `BUSY` says that somebody else was there.
pub(super) fn make(keep: &Keep, parent: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
    let Entry { step, name, temporary, .. } = entry;
    let (here, kept) = ((parent, name.as_slice()), (keep.fd(), temporary.as_slice()));
    match step {
        Step::Put { .. } => rename_onto_nothing(kept, here).map_err(|errno| match errno {
            Errno::EXIST => Errno::BUSY,
            other => other,
        }),
        Step::Over { old, .. } => {
            let exchange = || renameat_with(here.0, here.1, kept.0, kept.1, RenameFlags::EXCHANGE);
            exchange().map_err(missing)?;
            if is_at(old, kept)? {
                return Ok(());
            }
            exchange()?;
            Err(Errno::BUSY)
        }
        Step::Away { old } => {
            rename_onto_nothing(here, kept).map_err(missing)?;
            if is_at(old, kept)? {
                return Ok(());
            }
            rename_onto_nothing(kept, here)?;
            Err(Errno::BUSY)
        }
        Step::Mode { inode, from, to } => permit_directory(here, *inode, [*from, *to]).map_err(missing),
        _ => Ok(()),
    }
}

/// Takes a step back, however far it had come. Safe to repeat.
pub(crate) fn take_back(mount: &Mount, parent: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
    let Entry { step, name, temporary, .. } = entry;
    let here = (parent, name.as_slice());
    if let Step::Mode { inode, from, to } = *step {
        return match permit_directory(here, inode, [to, from]) {
            // It has the old mode, or one that somebody else gave it.
            Err(Errno::NOENT) => Ok(()),
            done => done,
        };
    }
    let Some(keep) = mount.find_keep()? else { return Ok(()) };
    let kept = (keep.fd(), temporary.as_slice());
    match step {
        Step::Put { new } if is_at(new, here)? => rename_onto_nothing(here, kept)?,
        Step::Over { old, new } if is_at(old, kept)? => {
            if is_at(new, here)? {
                renameat_with(here.0, here.1, kept.0, kept.1, RenameFlags::EXCHANGE)?;
            } else {
                put_back(kept, here)?;
            }
        }
        Step::Away { old } if is_at(old, kept)? => put_back(kept, here)?,
        _ => {}
    }
    if let Step::Put { new } | Step::Over { new, .. } = step
        && is_at(new, kept)?
    {
        drop_images(mount, &[String::from_utf8_lossy(temporary).into_owned()]);
    }
    Ok(())
}

/// Removes what a step displaced, once all are made, where it goes for good.
pub(crate) fn clear(mount: &Mount, entry: &Entry) {
    let (Step::Over { old, .. } | Step::Away { old }) = &entry.step else { return };
    let Some(keep) = mount.keep().filter(|_| entry.other == LOST) else { return };
    if is_at(old, (keep.fd(), &entry.temporary)).unwrap_or(false) {
        drop_images(mount, &[String::from_utf8_lossy(&entry.temporary).into_owned()]);
    }
}

/// Gives a directory another mode, if it is the one that is meant and has the mode that it should have.
pub(crate) fn permit_directory(
    (parent, name): (BorrowedFd<'_>, &[u8]),
    inode: u64,
    [from, to]: [u32; 2],
) -> Result<(), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let is_it = |stamp: &Stamp| stamp.kind == Kind::Directory && stamp.id.inode == inode && stamp.mode == from;
    let fd = match openat(parent, name, OFlags::RDONLY | flags | CAREFUL, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let place = openat(parent, name, PLACE | flags, Mode::empty())?;
            return if is_it(&Stamp::of(&fstat(&place)?)) { permit(place.as_fd(), to) } else { Err(Errno::NOENT) };
        }
        opened => opened?,
    };
    if is_it(&Stamp::of(&fstat(&fd)?)) { fchmod(&fd, Mode::from_raw_mode(to)) } else { Err(Errno::NOENT) }
}

/// What had a name gets it back, or one beside it if somebody has it.
fn put_back(kept: (BorrowedFd<'_>, &[u8]), here: (BorrowedFd<'_>, &[u8])) -> Result<(), Errno> {
    rename_onto_nothing(kept, here).or_else(|_| keep_beside(here.0, kept).map(drop))
}

fn is_at(known: &Known, (parent, name): (BorrowedFd<'_>, &[u8])) -> Result<bool, Errno> {
    Ok(look(parent, name)?.is_some_and(|found| known.is(&found)))
}

fn missing(errno: Errno) -> Errno {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::BUSY,
        other => other,
    }
}
