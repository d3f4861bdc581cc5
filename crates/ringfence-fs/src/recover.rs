//! Cleaning up after a process that died in the middle of a change.
//!
//! A note says what it was about to do. Every step here is safe to repeat, and touches only what the note names.

use std::os::fd::{AsFd, OwnedFd};

use ringfence_kernel::{Context, Dialect, Limits, Pace, Signal};
use rustix::fs::{AtFlags, OFlags, fstat, unlinkat};

use crate::again::{fsync, ftruncate, pread};
use crate::batch_note::recover_batches;
use crate::locks::{Held, Intent};
use crate::mount::{Mount, look};
use crate::path::GuestPath;
use crate::resolve::CAREFUL;
use crate::stamp::{Kind, Stamp};
use crate::trash::{keep_as_conflict, purge};

/// Finishes or undoes what a note says, then forgets it.
pub(crate) fn recover(mount: &Mount, held: &Held, intent: &Intent) {
    // What cannot be cleaned up now, because it moved or is not ours to remove, is not tried for ever.
    let _ = attempt(mount, intent);
    held.settle();
}

/// Cleans up whatever dead processes left on a mount.
pub(crate) fn recover_all(mount: &Mount) {
    for (held, intent) in mount.locks.abandoned() {
        recover(mount, &held, &intent);
    }
    recover_batches(mount);
}

fn attempt(mount: &Mount, intent: &Intent) -> Option<()> {
    match intent {
        Intent::Remove { parent, name, inodes } => {
            let parent = open_parent(mount, parent)?;
            let found = look(parent.as_fd(), name).ok()??;
            if !inodes.is_empty() && !inodes.contains(&found.id.inode) {
                return keep_as_conflict(parent.as_fd(), name).ok().map(drop);
            }
            if found.kind != Kind::Directory {
                return unlinkat(&parent, name.as_slice(), AtFlags::empty()).ok();
            }
            let (signal, limits) = (Signal::new(), Limits::of(Dialect::Standard));
            purge(mount, parent.as_fd(), name, &Context::new(&limits, Pace::Patient, &signal)).ok()
        }
        Intent::Overwrite { from, to } => {
            let (from_parent, to_parent) = (open_parent(mount, &from.parent)?, open_parent(mount, &to.parent)?);
            let inode_at = |parent: &OwnedFd, name: &[u8]| Some(look(parent.as_fd(), name).ok()??.id.inode);
            let swapped = inode_at(&from_parent, &from.name) == Some(to.inode)
                && inode_at(&to_parent, &to.name) == Some(from.inode);
            swapped.then(|| unlinkat(&from_parent, from.name.as_slice(), AtFlags::empty()).ok())?
        }
        Intent::Append { parent, name, inode, before, content } => {
            let parent = open_parent(mount, parent)?;
            let file = mount.open_at(parent.as_fd(), name, OFlags::RDWR).ok()?;
            let now = Stamp::of(&fstat(&file).ok()?);
            if now.id.inode == *inode && is_part(&file, *before, now.size, content)? {
                ftruncate(&file, *before).ok()?;
                fsync(&file).ok()?;
            }
            Some(())
        }
    }
}

pub(crate) fn open_parent(mount: &Mount, path: &[u8]) -> Option<OwnedFd> {
    Some(mount.lookup(&GuestPath::real(path), OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, Pace::Patient).ok()?.fd)
}

/// Whether what a file has past `before` is the beginning of `content`, and no more than a part of it. Anything else
/// there is somebody's.
fn is_part(file: &OwnedFd, before: u64, size: u64, content: &[u8]) -> Option<bool> {
    let added = usize::try_from(size.checked_sub(before)?).ok()?;
    if added == 0 || added >= content.len() {
        return Some(false);
    }
    let mut found = vec![0; added];
    let mut filled = 0;
    while filled < added {
        match pread(file, &mut found[filled..], before + filled as u64).ok()? {
            0 => return Some(false),
            more => filled += more,
        }
    }
    Some(found == content[..added])
}
