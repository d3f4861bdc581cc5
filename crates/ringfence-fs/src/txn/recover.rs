//! Crash recovery after a process that died in the middle of a change.
//!
//! An intent names the files of an interrupted change. Every step here is safe to repeat, and changes only those files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, ErrorKind, IoMode, ToolError};
use rustix::fs::{AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::journal::{Journal, TempFileOrigin, journal_read_error};
use crate::lock::{FileLock, TreeLock, TreeLockMode, WriteIntent, newer_state_error};
use crate::mount::Mount;
use crate::mount::repository::is_repository_entry;
use crate::mount::write_target::WriteTarget;
use crate::root::trash::{purge, rename_to_conflict};
use crate::root::{is_transient, parent_at, stat};
use crate::sys::own_files::names_in;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{flock, fstat, fsync, ftruncate, pread, unlinkat};
use crate::txn::directories::TxnDirectories;
use crate::txn::record::{DONE, PENDING, decode, read_all, record_name};
use crate::txn::step::{finalize, roll_back};

/// Finishes or rolls back intents, then removes them. On a read-only disk they stay, and their files are not changed
/// before they are resolved.
pub(crate) fn recover(mount: &Mount, lock: &FileLock, intents: &[WriteIntent]) -> Result<(), ToolError> {
    if intents.is_empty() {
        return Ok(());
    }
    check_journal(mount)?;
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
        let message = "an interrupted change cannot be recovered now; nothing was changed";
        return Err(ToolError::new(ErrorKind::Io, message).hint("try again"));
    }
    lock.clear_all_intents();
    Ok(())
}

/// Cleans up whatever dead processes left on a mount. Fails, before anything is changed, if one had a newer version.
pub(crate) fn recover_all(mount: &Mount) -> Result<(), ToolError> {
    check_journal(mount)?;
    recover_notes(mount)?;
    // Under the exclusive lock, every change without an outcome belongs to a crashed process.
    if let Some(tree) = mount.locks.try_lock_tree() {
        tree.clear_intent();
        mount.resolve_all_changes();
    }
    Ok(())
}

/// Fails if a newer version wrote to the journal. One that cannot be read now is left to the change that needs it.
fn check_journal(mount: &Mount) -> Result<(), ToolError> {
    match mount.journal.as_ref().map(Journal::read) {
        Some(Err(error)) if error.kind() == io::ErrorKind::Unsupported => Err(journal_read_error(error)),
        _ => Ok(()),
    }
}

/// Recovers from the intents of crashed processes. Fails if one of them had a newer version.
pub(crate) fn recover_notes(mount: &Mount) -> Result<(), ToolError> {
    for (lock, intents) in mount.locks.abandoned_locks()? {
        // The next change to these files reports the error.
        let _ = recover(mount, &lock, &intents);
    }
    recover_batches(mount)
}

/// Recovers before a change under the tree lock: its last exclusive holder may have crashed.
pub(crate) fn recover_tree(mount: &Mount, tree: &TreeLock) -> Result<(), ToolError> {
    if let Some(id) = tree.batch() {
        recover_batch(mount, &id)?;
        tree.clear_intent();
    }
    Ok(())
}

/// Finishes a batch whose process died. Called for a batch that the tree lock names, so the record can only be held by
/// another process that recovers it.
fn recover_batch(mount: &Mount, id: &[u8]) -> Result<(), ToolError> {
    [PENDING, DONE]
        .into_iter()
        .try_for_each(|prefix| recover_file(mount, &record_name(prefix, id), FlockOperation::LockExclusive))
}

/// Whether a batch of a crashed process is still to be rolled back.
pub(crate) fn has_unresolved_batch(mount: &Mount) -> bool {
    names_in(mount.locks.directory(), usize::MAX).unwrap_or_default().iter().any(|name| name.starts_with(PENDING))
}

/// Finishes every batch whose process died.
fn recover_batches(mount: &Mount) -> Result<(), ToolError> {
    for name in names_in(mount.locks.directory(), usize::MAX).unwrap_or_default() {
        if name.starts_with(PENDING) || name.starts_with(DONE) {
            recover_file(mount, name.as_bytes(), FlockOperation::NonBlockingLockExclusive)?;
        }
    }
    Ok(())
}

/// Recovers a batch, unless its process is alive. Fails if that had a newer version.
fn recover_file(mount: &Mount, name: &[u8], wait: FlockOperation) -> Result<(), ToolError> {
    let Some((_locked, record)) = lock_record(mount, name, wait) else { return Ok(()) };
    let entries = decode(&record).ok_or_else(newer_state_error)?;
    check_journal(mount)?;
    let is_done = name.starts_with(DONE.as_bytes());
    let mut all = true;
    let directories = TxnDirectories::new(mount);
    for entry in entries.into_iter().rev() {
        let settled = match directories.open(&entry.parent, entry.directories[0]) {
            // Where the directory is gone, there is nothing to roll back.
            Ok(None) => true,
            Ok(Some(parent)) if is_done => finalize(mount, parent.as_fd(), &entry).is_ok(),
            Ok(Some(parent)) => roll_back(&directories, parent.as_fd(), &entry).is_ok(),
            Err(_) => false,
        };
        all &= settled;
    }
    // A step that cannot be resolved now is tried again at the next start.
    if all {
        let change = name.splitn(2, |byte| *byte == b'-').nth(1).unwrap_or_default();
        mount.resolve_change(&String::from_utf8_lossy(change));
        mount.locks.remove(name);
    }
    Ok(())
}

/// The record of a batch, locked. `None` if its process is alive, or another process recovered it already.
fn lock_record(mount: &Mount, name: &[u8], wait: FlockOperation) -> Option<(OwnedFd, Vec<u8>)> {
    let file = mount.locks.open_named(name).ok()?;
    flock(&file, wait).ok()?;
    let is_there = fstat(&file).ok()?.st_nlink > 0;
    let record = read_all(&file).ok()?;
    is_there.then_some((file, record))
}

impl WriteTarget {
    /// Locks the directory at the path that the call was judged by, or fails if it was moved. The path decides whether
    /// the change is allowed, so it must not change between the plan and the change.
    pub(crate) fn lock_directory(&self, hold: TreeLockMode, cx: &CallContext<'_>) -> Result<TreeLock, ToolError> {
        // Created directories are removed again if the change fails, so no other writer may use them before it is made.
        // And of two writers that add the last entries of a repository, the second has to see the first.
        let alone = self.lacks_parents() || is_repository_entry(&self.name);
        let hold = if alone { TreeLockMode::Exclusive } else { hold };
        let lock = self.mount.locks.lock_tree(hold, cx)?;
        recover_tree(&self.mount, &lock)?;
        self.check_directory()?;
        Ok(lock)
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
                (false, true) => (TempFileOrigin::Displaced, Some(journal.image.clone())),
                (false, false) if inodes.contains(&inode) => (TempFileOrigin::New, None),
                (false, false) => (TempFileOrigin::Foreign, None),
            };
            let place = match whose {
                TempFileOrigin::Displaced => move_to_images(mount, parent, name, &image.unwrap_or_default())?,
                TempFileOrigin::Foreign => PreImageLocation::Unavailable,
                TempFileOrigin::New => PreImageLocation::NotNeeded,
            };
            match place {
                PreImageLocation::Stored => return Ok(()),
                PreImageLocation::Unavailable => return rename_to_conflict(parent, name).map(drop),
                PreImageLocation::NotNeeded => {}
            }
            if found.kind != FileKind::Directory {
                return unlinkat(parent, name.as_slice(), AtFlags::empty());
            }
            let (signal, limits) = (CallCommitState::new(), CallLimits::for_dialect(Dialect::Standard));
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
