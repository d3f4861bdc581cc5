//! Crash recovery after a process that died in the middle of a change.
//!
//! An intent names the files of an interrupted change. Every step here is safe to repeat, and changes only those files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallContext, CallLimits, CommitState, Dialect, ErrorKind, IoMode, ToolError};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::journal::TempOwner;
use crate::mount::resolver::SAFE_OPEN;
use crate::mount::walk::{TreeWalk, WalkStep};
use crate::mount::write_target::reopen_for_listing;
use crate::mount::{Mount, stat};
use crate::path::guest::GuestPath;
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, fsync, ftruncate, pread, unlinkat};
use crate::txn::lock::{FileLock, TreeLock, WriteIntent};
use crate::txn::record::{recover_batch, recover_batches};
use crate::txn::trash::{purge, rename_to_conflict};

/// Finishes or rolls back intents, then removes them. On a read-only disk they stay, and their files are not changed
/// before they are resolved.
pub(crate) fn recover(mount: &Mount, held: &FileLock, intents: &[WriteIntent]) -> Result<(), ToolError> {
    if intents.is_empty() {
        return Ok(());
    }
    let mut all = true;
    for intent in intents {
        let change = match intent {
            WriteIntent::Remove { journal, .. } | WriteIntent::Overwrite { journal, .. } => &journal.change,
            WriteIntent::Append { change, .. } | WriteIntent::SingleSyscall { change } => change,
        };
        match apply_intent(mount, intent) {
            Err(errno) if is_transient(errno) => all = false,
            // An intent that cannot be resolved, because its file moved or is not ours to remove, is not retried for
            // ever.
            _ => mount.resolve_change(&String::from_utf8_lossy(change)),
        }
    }
    if !all {
        let message = "an interrupted call cannot be cleaned up now; nothing was changed";
        return Err(ToolError::new(ErrorKind::Io, message).hint("try again"));
    }
    held.clear_all_intents();
    Ok(())
}

/// Whether another time may be better.
fn is_transient(errno: Errno) -> bool {
    use Errno as E;
    [E::ROFS, E::IO, E::NOSPC, E::DQUOT, E::MFILE, E::NFILE, E::NOMEM].contains(&errno)
}

/// Cleans up whatever dead processes left on a mount.
pub(crate) fn recover_all(mount: &Mount) {
    recover_notes(mount);
    // Under the exclusive lock, every change without an outcome belongs to a crashed process.
    if let Some(tree) = mount.locks.try_lock_tree() {
        tree.clear_intent();
        mount.resolve_all_changes();
    }
}

/// Recovers from the intents of crashed processes.
pub(crate) fn recover_notes(mount: &Mount) {
    for (held, intents) in mount.locks.abandoned_locks() {
        // The next change to these files reports the error.
        let _ = recover(mount, &held, &intents);
    }
    recover_batches(mount);
}

/// Recovers before a change under the tree lock: its last exclusive holder may have crashed.
pub(crate) fn recover_tree(mount: &Mount, tree: &TreeLock) {
    if let Some(id) = tree.batch() {
        recover_batch(mount, &id);
        tree.clear_intent();
    }
}

fn apply_intent(mount: &Mount, intent: &WriteIntent) -> Result<(), Errno> {
    match intent {
        WriteIntent::SingleSyscall { .. } => Ok(()),
        WriteIntent::Remove { parent, name, inodes, journal } => {
            let Some(parent) = parent_at(mount, parent)? else { return Ok(()) };
            let parent = parent.as_fd();
            let Some(found) = stat(parent, name)? else { return Ok(()) };
            let inode = found.id.inode;
            let (whose, image) = match (inodes.is_empty(), inodes.get(1) == Some(&inode)) {
                (true, _) => mount.temp_owner(&String::from_utf8_lossy(&journal.change), inode)?,
                (false, true) => (TempOwner::Displaced, Some(journal.image.clone())),
                (false, false) if inodes.contains(&inode) => (TempOwner::New, None),
                (false, false) => (TempOwner::Foreign, None),
            };
            let place = match whose {
                TempOwner::Displaced => move_to_images(mount, parent, name, &image.unwrap_or_default())?,
                TempOwner::Foreign => PreImageLocation::Unavailable,
                TempOwner::New => PreImageLocation::NotNeeded,
            };
            match place {
                PreImageLocation::Stored => return Ok(()),
                PreImageLocation::Unavailable => return rename_to_conflict(parent, name).map(drop),
                PreImageLocation::NotNeeded => {}
            }
            if found.kind != FileKind::Directory {
                return unlinkat(parent, name.as_slice(), AtFlags::empty());
            }
            let (signal, limits) = (CommitState::new(), CallLimits::for_dialect(Dialect::Standard));
            // Entries that cannot be removed now stay hidden.
            let _ = purge(mount, parent, name, &CallContext::new(&limits, IoMode::Blocking, &signal));
            Ok(())
        }
        WriteIntent::Overwrite { from, to, journal } => {
            let (Some(from_parent), Some(to_parent)) = (parent_at(mount, &from.parent)?, parent_at(mount, &to.parent)?)
            else {
                return Ok(());
            };
            let inode_at = |parent: &OwnedFd, name: &[u8]| Ok(stat(parent.as_fd(), name)?.map(|found| found.id.inode));
            let swapped = inode_at(&from_parent, &from.name)? == Some(to.inode)
                && inode_at(&to_parent, &to.name)? == Some(from.inode);
            if !swapped {
                return Ok(());
            }
            match move_to_images(mount, from_parent.as_fd(), &from.name, &journal.image)? {
                // Without an image store it stays where it is, under the name of the moved file.
                PreImageLocation::Stored | PreImageLocation::Unavailable => Ok(()),
                PreImageLocation::NotNeeded => unlinkat(&from_parent, from.name.as_slice(), AtFlags::empty()),
            }
        }
        WriteIntent::Append { parent, name, inode, before, content, change: _ } => {
            let Some(parent) = parent_at(mount, parent)? else { return Ok(()) };
            let file = mount.open_at(parent.as_fd(), name, OFlags::RDWR)?;
            let now = FileStat::from_stat(&fstat(&file)?);
            if now.id.inode == *inode && is_partial_append(&file, *before, now.size, content)? {
                ftruncate(&file, *before)?;
                fsync(&file)?;
            }
            Ok(())
        }
    }
}

/// Location of a pre-image.
enum PreImageLocation {
    Stored,
    /// It is to be stored, and the image store cannot be used: its permissions were opened, or it was removed.
    Unavailable,
    /// It was to go, or a copy of it is kept.
    NotNeeded,
}

/// Brings a displaced file to where it can be restored from.
fn move_to_images(mount: &Mount, parent: BorrowedFd<'_>, name: &[u8], image: &[u8]) -> Result<PreImageLocation, Errno> {
    if image.is_empty() {
        return Ok(PreImageLocation::NotNeeded);
    }
    let Some(keep) = mount.find_image_store()? else { return Ok(PreImageLocation::Unavailable) };
    match keep.store(parent, name, &String::from_utf8_lossy(image)) {
        Ok(()) => Ok(PreImageLocation::Stored),
        Err(errno) if is_transient(errno) => Err(errno),
        Err(Errno::EXIST) => Ok(PreImageLocation::NotNeeded),
        Err(_) => Ok(PreImageLocation::Unavailable),
    }
}

/// A directory below the root. Nothing where it is no longer there.
pub(crate) fn parent_at(mount: &Mount, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    match mount.lookup(&GuestPath::from_kernel(path), OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, IoMode::Blocking)
    {
        Ok(opened) => Ok(Some(opened.fd)),
        Err(errno) if is_transient(errno) => Err(errno),
        Err(_) => Ok(None),
    }
}

pub(crate) fn open_parent(mount: &Mount, path: &[u8]) -> Option<OwnedFd> {
    parent_at(mount, path).ok()?
}

/// The directories that the steps of a batch were made in, wherever they are by now.
#[derive(Debug)]
pub(crate) struct TxnDirectories<'a> {
    pub(crate) mount: &'a Mount,
    /// Paths of directories that were searched for, below the root. `None` for those that are gone.
    found: RefCell<HashMap<u64, Option<Vec<u8>>>>,
}

impl<'a> TxnDirectories<'a> {
    pub(crate) fn new(mount: &'a Mount) -> Self {
        Self { mount, found: RefCell::default() }
    }

    /// The directory with this inode, which was at this path once. Where no inode was noted, the path has to do.
    pub(crate) fn open(&self, path: &[u8], inode: Option<u64>) -> Result<Option<OwnedFd>, ToolError> {
        let is_it = |fd: &OwnedFd| {
            inode.is_none_or(|inode| fstat(fd).is_ok_and(|stat| FileStat::from_stat(&stat).id.inode == inode))
        };
        let named = open_parent(self.mount, path).filter(is_it);
        let (Some(inode), None) = (inode, &named) else { return Ok(named) };
        let known = self.found.borrow().get(&inode).cloned();
        let place = match known {
            Some(place) => place,
            None => {
                let place = find_directory(self.mount, inode)?;
                self.found.borrow_mut().insert(inode, place.clone());
                place
            }
        };
        Ok(place.and_then(|path| open_parent(self.mount, &path)).filter(is_it))
    }
}

/// Searches the whole mount for a directory. That is bounded, and rarely done.
fn find_directory(mount: &Mount, inode: u64) -> Result<Option<Vec<u8>>, ToolError> {
    let (signal, limits) =
        (CommitState::new(), CallLimits { walk_entries: u64::MAX, ..CallLimits::for_dialect(Dialect::Standard) });
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    let start = reopen_for_listing(mount.root.as_fd()).map_err(|errno| errno_error(errno, "."))?;
    let mut walk = TreeWalk::new(mount, start, ".", &cx)?;
    while let Some(step) = walk.next()? {
        let WalkStep::Entry(entry) = step else { continue };
        if !walk.is_directory(&entry)? {
            continue;
        }
        if walk.stat(&entry)?.is_some_and(|found| found.id.inode == inode && found.id.device == mount.id.device) {
            return Ok(Some(walk.path_of(&entry.name)));
        }
        // Directories that cannot be entered are skipped.
        let _ = walk.descend(&entry)?;
    }
    Ok(None)
}

/// Whether the bytes of a file past `before` are a proper prefix of `content`. Other bytes there belong to another
/// program.
fn is_partial_append(file: &OwnedFd, before: u64, size: u64, content: &[u8]) -> Result<bool, Errno> {
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
