//! Cleaning up after a process that died in the middle of a change.
//!
//! A note says what it was about to do. Every step here is safe to repeat, and touches only what the note names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_kernel::{Context, Dialect, Limits, Pace, Signal, ToolError};
use rustix::fs::{AtFlags, OFlags, fstat, unlinkat};

use crate::again::{fsync, ftruncate, pread};
use crate::batch_note::{recover_batch, recover_batches};
use crate::fault::fault;
use crate::locks::{Held, Intent, Noted, TreeHeld};
use crate::mount::{Mount, look};
use crate::path::GuestPath;
use crate::resolve::CAREFUL;
use crate::slot::listing;
use crate::stamp::{Kind, Stamp};
use crate::trash::{keep_as_conflict, purge};
use crate::walk::{Step, Walk};

/// Finishes or undoes what a note says, then forgets it.
pub(crate) fn recover(mount: &Mount, held: &Held, intent: &Intent) {
    // What cannot be cleaned up now, because it moved or is not ours to remove, is not tried for ever.
    let _ = attempt(mount, intent);
    let change = match intent {
        Intent::Remove { journal, .. } | Intent::Overwrite { journal, .. } => &journal.change,
        Intent::Append { change, .. } | Intent::OneStep { change } => change,
        // Its own note does it.
    };
    mount.settle(&String::from_utf8_lossy(change));
    held.settle();
}

/// Cleans up whatever dead processes left on a mount.
pub(crate) fn recover_all(mount: &Mount) {
    recover_notes(mount);
    // While nobody changes anything, whatever is not ended is a dead process's.
    if let Some(tree) = mount.locks.try_hold_tree() {
        tree.settle();
        mount.settle_all();
    }
}

/// What the notes of dead processes say.
pub(crate) fn recover_notes(mount: &Mount) {
    for (held, intent) in mount.locks.abandoned() {
        recover(mount, &held, &intent);
    }
    recover_batches(mount);
}

/// Before a change under a hold on the tree: somebody may have died while they had it alone.
pub(crate) fn recover_tree(mount: &Mount, tree: &TreeHeld) {
    if let Some(id) = tree.batch() {
        recover_batch(mount, &id);
        tree.settle();
    }
}

fn attempt(mount: &Mount, intent: &Intent) -> Option<()> {
    match intent {
        Intent::OneStep { .. } => Some(()),
        Intent::Remove { parent, name, inodes, journal } => {
            let parent = open_parent(mount, parent)?;
            let found = look(parent.as_fd(), name).ok()??;
            if inodes.get(1) == Some(&found.id.inode) && into_keep(mount, parent.as_fd(), name, journal) {
                return Some(());
            }
            if !inodes.is_empty() && !inodes.contains(&found.id.inode) {
                return keep_as_conflict(parent.as_fd(), name).ok().map(drop);
            }
            if found.kind != Kind::Directory {
                return unlinkat(&parent, name.as_slice(), AtFlags::empty()).ok();
            }
            let (signal, limits) = (Signal::new(), Limits::of(Dialect::Standard));
            purge(mount, parent.as_fd(), name, &Context::new(&limits, Pace::Patient, &signal)).ok()
        }
        Intent::Overwrite { from, to, journal } => {
            let (from_parent, to_parent) = (open_parent(mount, &from.parent)?, open_parent(mount, &to.parent)?);
            let inode_at = |parent: &OwnedFd, name: &[u8]| Some(look(parent.as_fd(), name).ok()??.id.inode);
            let swapped = inode_at(&from_parent, &from.name) == Some(to.inode)
                && inode_at(&to_parent, &to.name) == Some(from.inode);
            if swapped && into_keep(mount, from_parent.as_fd(), &from.name, journal) {
                return Some(());
            }
            swapped.then(|| unlinkat(&from_parent, from.name.as_slice(), AtFlags::empty()).ok())?
        }
        Intent::Append { parent, name, inode, before, content, change: _ } => {
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

/// Brings a displaced file to where it can be restored from. False where it has no place there.
fn into_keep(mount: &Mount, parent: BorrowedFd<'_>, name: &[u8], journal: &Noted) -> bool {
    let image = String::from_utf8_lossy(&journal.image);
    !image.is_empty() && mount.keep().is_some_and(|keep| keep.take(parent, name, &image).is_ok())
}

pub(crate) fn open_parent(mount: &Mount, path: &[u8]) -> Option<OwnedFd> {
    Some(mount.lookup(&GuestPath::real(path), OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, Pace::Patient).ok()?.fd)
}

/// The directories that the steps of a batch were made in, wherever they are by now.
#[derive(Debug)]
pub(crate) struct Directories<'a> {
    pub(crate) mount: &'a Mount,
    /// Where those are that were looked for, below the root. Nothing for those that are gone.
    found: RefCell<HashMap<u64, Option<Vec<u8>>>>,
}

impl<'a> Directories<'a> {
    pub(crate) fn new(mount: &'a Mount) -> Self {
        Self { mount, found: RefCell::default() }
    }

    /// The directory with this inode, which was at this path once. Where no inode was noted, the path has to do.
    pub(crate) fn open(&self, path: &[u8], inode: Option<u64>) -> Result<Option<OwnedFd>, ToolError> {
        let is_it =
            |fd: &OwnedFd| inode.is_none_or(|inode| fstat(fd).is_ok_and(|stat| Stamp::of(&stat).id.inode == inode));
        let named = open_parent(self.mount, path).filter(is_it);
        let (Some(inode), None) = (inode, &named) else { return Ok(named) };
        let known = self.found.borrow().get(&inode).cloned();
        let place = match known {
            Some(place) => place,
            None => {
                let place = search(self.mount, inode)?;
                self.found.borrow_mut().insert(inode, place.clone());
                place
            }
        };
        Ok(place.and_then(|path| open_parent(self.mount, &path)).filter(is_it))
    }
}

/// Looks for a directory through the whole mount. Nobody waits for more than that, and it is rarely done.
fn search(mount: &Mount, inode: u64) -> Result<Option<Vec<u8>>, ToolError> {
    let (signal, limits) = (Signal::new(), Limits { walk_entries: u64::MAX, ..Limits::of(Dialect::Standard) });
    let cx = Context::new(&limits, Pace::Patient, &signal);
    let start = listing(mount.root.as_fd()).map_err(|errno| fault(errno, "."))?;
    let mut walk = Walk::new(mount, start, ".", &cx)?;
    while let Some(step) = walk.next()? {
        let Step::Entry(entry) = step else { continue };
        if !walk.is_directory(&entry)? {
            continue;
        }
        if walk.look(&entry)?.is_some_and(|found| found.id.inode == inode && found.id.device == mount.id.device) {
            return Ok(Some(walk.path_of(&entry.name)));
        }
        // What cannot be entered is passed over.
        let _ = walk.descend(&entry)?;
    }
    Ok(None)
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
