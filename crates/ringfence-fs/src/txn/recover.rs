//! Crash recovery: changes whose process died, settled from the journal.
//!
//! Every step of an interrupted change says by identity which entries take part, so what is there tells how far it came.
//! If all of its steps were made, the change is committed and finalized; otherwise those that were made are rolled back.
//! Everything here is safe to repeat.

use std::io;
use std::os::fd::AsFd as _;

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::io::Errno;

use crate::journal::{
    ChangeStatus, Journal, JournalEffect, JournalEntry, JournalLine, PreImageStore, TxnEntry, TxnStep,
    journal_read_error,
};
use crate::lock::{HeldLock, TreeLockMode};
use crate::mount::Mount;
use crate::mount::repository::is_repository_entry;
use crate::mount::write_target::WriteTarget;
use crate::root::is_transient;
use crate::txn::directories::TxnDirectories;
use crate::txn::step::{OpenStep, StepProgress};

/// Settles the change that the last holder of a lock did not, before the lock is used. Where that cannot be done now,
/// on a read-only disk for example, the files under the lock stay as they are.
pub(crate) fn recover(mount: &Mount, lock: &HeldLock) -> Result<(), ToolError> {
    let Some(change) = lock.abandoned_change()? else { return Ok(()) };
    let Some(journal) = &mount.journal else { return Ok(()) };
    // The tree lock may be shared with others that found the same.
    let _alone = mount.locks.lock_recovery()?;
    match journal.entry(&change).map_err(journal_read_error)? {
        Some(entry) if entry.status == ChangeStatus::Pending => match settle(mount, journal, &entry) {
            // One of several files must not stop the changes of all others: it is tried again at the next start.
            Err(_) if entry.change.steps.len() > 1 => {}
            settled => settled?,
        },
        Some(_) => {}
        // It died before its intent was logged: it can only have copies.
        None => mount.delete_images_of(&change),
    }
    lock.clear();
    Ok(())
}

/// Settles every change that crashed processes left on a mount. Fails, before anything is changed, if one had a newer
/// version.
pub(crate) fn recover_all(mount: &Mount) -> Result<(), ToolError> {
    let Some(journal) = &mount.journal else { return Ok(()) };
    match journal.needs_recovery() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return Err(journal_read_error(error)),
        // One that cannot be read now is left to the change that needs it.
        Ok(false) | Err(_) => return Ok(()),
        Ok(true) => {}
    }
    // Under the exclusive lock, every change without an outcome belongs to a crashed process. Where another process has
    // it, the next change recovers.
    if let Some(tree) = mount.locks.try_lock_tree() {
        // The next change to these files reports the error.
        if settle_all(mount, journal).unwrap_or(false) {
            tree.clear();
        }
    }
    Ok(())
}

/// Settles every change without an outcome under the exclusive tree lock. False where one of them cannot be settled now.
pub(crate) fn recover_under(mount: &Mount, tree: &HeldLock) -> Result<bool, ToolError> {
    let Some(journal) = &mount.journal else { return Ok(true) };
    let is_settled = settle_all(mount, journal).map_err(journal_read_error)?;
    if is_settled {
        tree.clear();
    }
    Ok(is_settled)
}

fn settle_all(mount: &Mount, journal: &Journal) -> io::Result<bool> {
    let entries = journal.unresolved()?;
    let mut is_settled = true;
    for entry in entries.iter().filter(|entry| entry.status == ChangeStatus::Pending) {
        is_settled &= settle(mount, journal, entry).is_ok();
    }
    let evicted: Vec<String> = entries.iter().filter(|entry| entry.evicted).flat_map(JournalEntry::images).collect();
    mount.tidy_images(&evicted);
    journal.checkpoint();
    Ok(is_settled)
}

/// Commits or rolls back one change.
fn settle(mount: &Mount, journal: &Journal, entry: &JournalEntry) -> Result<(), ToolError> {
    let not_now = |_| {
        let message = "an interrupted change cannot be recovered now; nothing was changed";
        ToolError::new(ErrorKind::Io, message).hint("try again")
    };
    let store = mount.find_image_store().map_err(not_now)?;
    let is_made = match entry.change.steps.is_empty() {
        true => has_happened(mount, store.as_ref(), &entry.change.effects).map_err(not_now)?,
        false => settle_steps(mount, store.as_ref(), entry).map_err(not_now)?,
    };
    let change = entry.change.change.clone();
    if !is_made {
        mount.delete_images_of(&change);
    }
    let outcome = if is_made { JournalLine::Done { change } } else { JournalLine::Void { change } };
    journal.log_outcome(outcome).map_err(|error| not_now(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

/// Finalizes a change whose steps were all made, or rolls it back. True for the former.
fn settle_steps(mount: &Mount, store: Option<&PreImageStore>, entry: &JournalEntry) -> Result<bool, Errno> {
    let directories = TxnDirectories::new(mount);
    let steps = &entry.change.steps;
    let is_reservation = |entry: &&TxnEntry| matches!(entry.step, TxnStep::Exchange { old: None, new: None, .. });
    // A change that only reserved temporary names was never begun.
    let mut is_made = !steps.iter().all(|entry| is_reservation(&entry));
    for entry in steps.iter().filter(|entry| !is_reservation(entry)) {
        let progress = with_step(&directories, store, entry, |step| step.progress())?;
        is_made &= progress == Some(StepProgress::Made);
    }
    let mut failure = None;
    for entry in steps.iter().rev() {
        let settled = with_step(&directories, store, entry, |step| match is_made {
            true => step.finalize(),
            false => step.roll_back(),
        });
        // One step alone that cannot be settled, because its entry moved or is not ours to remove, is not retried for
        // ever. Of several, the others depend on it.
        failure = failure.or(settled.err().filter(|errno| steps.len() > 1 || is_transient(*errno)));
    }
    failure.map_or(Ok(is_made), Err)
}

/// `None` where the directory is gone: then there is nothing to do.
fn with_step<T>(
    directories: &TxnDirectories<'_>,
    store: Option<&PreImageStore>,
    entry: &TxnEntry,
    with: impl FnOnce(&OpenStep<'_>) -> Result<T, Errno>,
) -> Result<Option<T>, Errno> {
    let parent = directories.open(&entry.parent.0, entry.directory).map_err(|_| Errno::IO)?;
    let Some(parent) = parent else { return Ok(None) };
    with(&OpenStep { entry, parent: parent.as_fd(), directories, store }).map(Some)
}

/// Whether a change without steps, which an earlier version logged, was made.
fn has_happened(mount: &Mount, store: Option<&PreImageStore>, effects: &[JournalEffect]) -> Result<bool, Errno> {
    // Directories were made before anything else was: only the last one says something.
    let telling = effects.iter().filter(|effect| !effect.makes_directory()).chain(effects.last());
    let made = telling.map(|effect| effect.has_happened(mount, store)).collect::<Result<Vec<_>, _>>()?;
    Ok(made.contains(&true))
}

impl WriteTarget {
    /// Locks the directory at the path that the call was judged by, or fails if it was moved. The path decides whether
    /// the change is allowed, so it must not change between the plan and the change.
    pub(crate) fn lock_directory(&self, hold: TreeLockMode, cx: &CallContext<'_>) -> Result<HeldLock, ToolError> {
        // Of two writers that add the last entries of a repository, the second has to see the first; and directories
        // that a change creates are removed again if it fails, so no other writer may use them before it is made.
        let alone = self.lacks_parents() || is_repository_entry(&self.name);
        let hold = if alone { TreeLockMode::Exclusive } else { hold };
        let lock = self.mount.locks.lock_tree(hold, cx)?;
        recover(&self.mount, &lock)?;
        self.check_directory()?;
        Ok(lock)
    }
}
