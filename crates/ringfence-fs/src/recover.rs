//! Cleaning up after a process that died in the middle of a change.
//!
//! A note says what it was about to do. Every step here is safe to repeat, and touches only what the note names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_kernel::{Context, Dialect, ErrorKind, Limits, Pace, Signal, ToolError};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::again::{fstat, fsync, ftruncate, pread, unlinkat};
use crate::batch_note::{recover_batch, recover_batches};
use crate::fault::fault;
use crate::journal::Whose;
use crate::locks::{Held, Intent, TreeHeld};
use crate::mount::{Mount, look};
use crate::path::GuestPath;
use crate::resolve::CAREFUL;
use crate::slot::listing;
use crate::stamp::{Kind, Stamp};
use crate::trash::{keep_as_conflict, purge};
use crate::walk::{Step, Walk};

/// Finishes or undoes what notes say, then forgets them. On a disk that takes no changes now they stay, and nobody changes what
/// they are about before they are dealt with.
pub(crate) fn recover(mount: &Mount, held: &Held, intents: &[Intent]) -> Result<(), ToolError> {
    if intents.is_empty() {
        return Ok(());
    }
    let mut all = true;
    for intent in intents {
        let change = match intent {
            Intent::Remove { journal, .. } | Intent::Overwrite { journal, .. } => &journal.change,
            Intent::Append { change, .. } | Intent::OneStep { change } => change,
        };
        match attempt(mount, intent) {
            Err(errno) if passes(errno) => all = false,
            // What cannot be cleaned up, because it moved or is not ours to remove, is not tried for ever.
            _ => mount.settle(&String::from_utf8_lossy(change)),
        }
    }
    if !all {
        let message = "what a call left that was cut short cannot be cleaned up now; nothing was changed";
        return Err(ToolError::new(ErrorKind::Io, message).hint("try again"));
    }
    held.settle_all();
    Ok(())
}

/// Whether another time may be better.
fn passes(errno: Errno) -> bool {
    use Errno as E;
    [E::ROFS, E::IO, E::NOSPC, E::DQUOT, E::MFILE, E::NFILE, E::NOMEM].contains(&errno)
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
    for (held, intents) in mount.locks.abandoned() {
        // Whoever changes something there is told.
        let _ = recover(mount, &held, &intents);
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

fn attempt(mount: &Mount, intent: &Intent) -> Result<(), Errno> {
    match intent {
        Intent::OneStep { .. } => Ok(()),
        Intent::Remove { parent, name, inodes, journal } => {
            let Some(parent) = parent_at(mount, parent)? else { return Ok(()) };
            let parent = parent.as_fd();
            let Some(found) = look(parent, name)? else { return Ok(()) };
            let inode = found.id.inode;
            let (whose, image) = match (inodes.is_empty(), inodes.get(1) == Some(&inode)) {
                (true, _) => mount.whose(&String::from_utf8_lossy(&journal.change), inode)?,
                (false, true) => (Whose::Displaced, Some(journal.image.clone())),
                (false, false) if inodes.contains(&inode) => (Whose::Ours, None),
                (false, false) => (Whose::Theirs, None),
            };
            let place = match whose {
                Whose::Displaced => into_keep(mount, parent, name, &image.unwrap_or_default())?,
                Whose::Theirs => Place::None,
                Whose::Ours => Place::NotNeeded,
            };
            match place {
                Place::Kept => return Ok(()),
                Place::None => return keep_as_conflict(parent, name).map(drop),
                Place::NotNeeded => {}
            }
            if found.kind != Kind::Directory {
                return unlinkat(parent, name.as_slice(), AtFlags::empty());
            }
            let (signal, limits) = (Signal::new(), Limits::of(Dialect::Standard));
            // What is not taken apart now is out of everybody's sight.
            let _ = purge(mount, parent, name, &Context::new(&limits, Pace::Patient, &signal));
            Ok(())
        }
        Intent::Overwrite { from, to, journal } => {
            let (Some(from_parent), Some(to_parent)) = (parent_at(mount, &from.parent)?, parent_at(mount, &to.parent)?)
            else {
                return Ok(());
            };
            let inode_at = |parent: &OwnedFd, name: &[u8]| Ok(look(parent.as_fd(), name)?.map(|found| found.id.inode));
            let swapped = inode_at(&from_parent, &from.name)? == Some(to.inode)
                && inode_at(&to_parent, &to.name)? == Some(from.inode);
            if !swapped {
                return Ok(());
            }
            match into_keep(mount, from_parent.as_fd(), &from.name, &journal.image)? {
                // Without a keep it stays where it is, under the name of what was moved.
                Place::Kept | Place::None => Ok(()),
                Place::NotNeeded => unlinkat(&from_parent, from.name.as_slice(), AtFlags::empty()),
            }
        }
        Intent::Append { parent, name, inode, before, content, change: _ } => {
            let Some(parent) = parent_at(mount, parent)? else { return Ok(()) };
            let file = mount.open_at(parent.as_fd(), name, OFlags::RDWR)?;
            let now = Stamp::of(&fstat(&file)?);
            if now.id.inode == *inode && is_part(&file, *before, now.size, content)? {
                ftruncate(&file, *before)?;
                fsync(&file)?;
            }
            Ok(())
        }
    }
}

/// Where a displaced file is to be restored from.
enum Place {
    Kept,
    /// It is to be kept, and there is no keep that could be used: somebody opened it to others, or took it away.
    None,
    /// It was to go, or a copy of it is kept.
    NotNeeded,
}

/// Brings a displaced file to where it can be restored from.
fn into_keep(mount: &Mount, parent: BorrowedFd<'_>, name: &[u8], image: &[u8]) -> Result<Place, Errno> {
    if image.is_empty() {
        return Ok(Place::NotNeeded);
    }
    let Some(keep) = mount.find_keep()? else { return Ok(Place::None) };
    match keep.take(parent, name, &String::from_utf8_lossy(image)) {
        Ok(()) => Ok(Place::Kept),
        Err(errno) if passes(errno) => Err(errno),
        Err(Errno::EXIST) => Ok(Place::NotNeeded),
        Err(_) => Ok(Place::None),
    }
}

/// A directory below the root. Nothing where it is no longer there.
pub(crate) fn parent_at(mount: &Mount, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    match mount.lookup(&GuestPath::real(path), OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, Pace::Patient) {
        Ok(opened) => Ok(Some(opened.fd)),
        Err(errno) if passes(errno) => Err(errno),
        Err(_) => Ok(None),
    }
}

pub(crate) fn open_parent(mount: &Mount, path: &[u8]) -> Option<OwnedFd> {
    parent_at(mount, path).ok()?
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
fn is_part(file: &OwnedFd, before: u64, size: u64, content: &[u8]) -> Result<bool, Errno> {
    let added = size.checked_sub(before).and_then(|added| usize::try_from(added).ok()).unwrap_or(0);
    if added == 0 || added >= content.len() {
        return Ok(false);
    }
    let mut found = vec![0; added];
    let mut filled = 0;
    while filled < added {
        match pread(file, &mut found[filled..], before + filled as u64)? {
            0 => return Ok(false),
            more => filled += more,
        }
    }
    Ok(found == content[..added])
}
