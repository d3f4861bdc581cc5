//! Transactions: planned steps, recorded, made and committed, all or none.
//!
//! The order is fixed. The intent goes to the log, and its flush and those of the staged contents overlap; only when all
//! of them are on disk is the first step made, so that nothing gets a name in the workspace before. The first step that
//! fails ends the transaction and rolls back those before it. What the steps displaced is deleted last. After a crash,
//! `recover.rs` does the same from the log.
//!
//! Not here: which steps there are. Writes are planned in `write.rs`, other changes by their tools, `undo/` and
//! `overlay/`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{ErrorKind, IoMode, Ticket, ToolError};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::journal::{FileState, FileStateKind, JournalEffect, PreImageStore, Retention, TxnEntry, TxnStep};
use crate::lock::HeldLock;
use crate::mount::Mount;
use crate::mount::change::{PendingChange, delete_images};
use crate::path::guest::GuestPath;
use crate::path::relative::split;
use crate::root::{Durability, reopen_for_listing, stat};
use crate::sys::errno::{errno_error, sync_error};
use crate::sys::own_files::{SAFE_OPEN, names_in};
use crate::sys::stat::{FileId, FileStat};
use crate::sys::syscall::{fstat, fsync};
use crate::txn::directories::TxnDirectories;
use crate::txn::stage::StagedFile;
use crate::txn::step::{OpenStep, StepError};

/// More directories than these are synced with everything else on their file system, in one call.
pub(crate) const MAX_SYNCED_EACH: usize = 16;

/// Steps that are made together, and what the journal has to know of them.
#[derive(Debug, Default)]
pub(crate) struct Transaction<'a> {
    pub(crate) steps: Vec<PlannedStep<'a>>,
    pub(crate) effects: Vec<JournalEffect>,
    /// The changes that it undoes.
    pub(crate) undoes: Vec<String>,
    pub(crate) retention: Retention,
    /// The log has a reservation for it: of temporary names, or of images that were made for it.
    pub(crate) is_reserved: bool,
}

/// A step with what has to hold when it is made.
#[derive(Debug)]
pub(crate) struct PlannedStep<'a> {
    pub(crate) entry: TxnEntry,
    /// The directory of its name, if it is held.
    pub(crate) parent: Option<BorrowedFd<'a>>,
    pub(crate) staged: Option<StagedFile>,
    /// The path for messages.
    pub(crate) shown: String,
    /// State of the entry that leaves its name, checked just before.
    pub(crate) expected: Option<FileState>,
    /// State of a directory that was displaced, checked where no path leads to it any more.
    pub(crate) displaced: Option<FileState>,
    /// The displaced directory must have no entries.
    pub(crate) must_be_empty: bool,
}

impl<'a> PlannedStep<'a> {
    pub(crate) fn new(entry: TxnEntry, parent: Option<BorrowedFd<'a>>, shown: &str) -> Self {
        Self {
            entry,
            parent,
            staged: None,
            shown: shown.to_owned(),
            expected: None,
            displaced: None,
            must_be_empty: false,
        }
    }
}

/// Error of a step, in the words of the tool.
pub(crate) type StepErrorText<'e> = dyn Fn(&PlannedStep<'_>, StepError) -> ToolError + 'e;

impl Transaction<'_> {
    /// Makes every step, or none. `held` are the locks of the change; the exclusive tree lock where there are several
    /// steps. They name the change until it is settled.
    pub(crate) fn run(
        self,
        mount: &Mount,
        held: &[&HeldLock],
        ticket: &Ticket<'_>,
        explain: &StepErrorText<'_>,
    ) -> Result<(), ToolError> {
        let directories = TxnDirectories::new(mount);
        let store = match mount.find_image_store() {
            Ok(store) => store,
            Err(errno) => {
                let error = errno_error(errno, self.shown());
                return Err(self.discard(mount, ticket, error));
            }
        };
        if let Err(error) = held.iter().try_for_each(|lock| lock.note(ticket.change_id())) {
            held.iter().for_each(|lock| lock.restore());
            return Err(self.discard(mount, ticket, error));
        }
        let mut pending = None;
        let done = match self.make_all(&directories, store.as_ref(), ticket, explain, &mut pending) {
            Ok(touched) => self.commit(&directories, store.as_ref(), pending.as_ref(), touched),
            Err(error) if self.roll_back(&directories, store.as_ref()) => {
                if let Some(pending) = pending {
                    pending.void();
                }
                TransactionEnd { result: Err(error), is_settled: true }
            }
            Err(error) => TransactionEnd { result: Err(rollback_incomplete(error)), is_settled: false },
        };
        // Otherwise the next holder of the locks tries again.
        match &done.result {
            _ if !done.is_settled => {}
            Ok(()) => held.iter().for_each(|lock| lock.clear()),
            Err(_) => held.iter().for_each(|lock| lock.restore()),
        }
        done.result
    }

    /// Logs the intent, and makes every step. Returns the directories that have to be synced. After an error the steps
    /// that were made are to be rolled back.
    fn make_all<'m>(
        &self,
        directories: &TxnDirectories<'m>,
        store: Option<&PreImageStore>,
        ticket: &Ticket<'_>,
        explain: &StepErrorText<'_>,
        pending: &mut Option<PendingChange<'m>>,
    ) -> Result<TouchedDirectories, ToolError> {
        let mount = directories.mount;
        let entries: Vec<TxnEntry> = self.steps.iter().map(|planned| planned.entry.clone()).collect();
        let pending = pending.insert(mount.begin_change(ticket, self.undoes.clone(), self.effects.clone(), entries)?);
        for planned in &self.steps {
            if let Some(staged) = &planned.staged {
                fsync(staged.fd()).map_err(|errno| errno_error(errno, &planned.shown))?;
            }
        }
        pending.flush()?;
        ticket.commit()?;
        let mut touched = TouchedDirectories::default();
        for planned in &self.steps {
            planned
                .make(directories, store, self.steps.len() == 1, ticket, &mut touched)
                .map_err(|error| explain(planned, error))?;
        }
        Ok(touched)
    }

    /// Syncs the directories, deletes what the steps displaced, and logs the outcome. An error is of a change that was
    /// made and is not synced.
    fn commit(
        &self,
        directories: &TxnDirectories<'_>,
        store: Option<&PreImageStore>,
        pending: Option<&PendingChange<'_>>,
        touched: TouchedDirectories,
    ) -> TransactionEnd {
        let mut result = match directories.mount.durability {
            Durability::Full => self.sync(directories.mount, store, touched),
            Durability::Ordered => Ok(()),
        };
        let mut is_settled = true;
        for planned in &self.steps {
            is_settled &= planned.with_open(directories, store, |step| step.finalize()).is_ok();
        }
        // What cannot be deleted now is deleted by recovery, which then logs the outcome.
        if let Some(pending) = pending.filter(|_| is_settled) {
            match self.steps.len() {
                1 => pending.commit(),
                // None of several steps is rolled back any more, whatever becomes of the name of one.
                _ => result = result.and(pending.commit_durably()),
            }
            pending.release_images(self.retention);
        }
        TransactionEnd { result: result.map_err(|errno| sync_error(errno, self.shown())), is_settled }
    }

    /// Rolls back every step, however far it came. False where that could not be done now.
    fn roll_back(&self, directories: &TxnDirectories<'_>, store: Option<&PreImageStore>) -> bool {
        let mut is_whole = true;
        for planned in self.steps.iter().rev() {
            is_whole &= planned.with_open(directories, store, |step| step.roll_back()).is_ok();
        }
        if is_whole {
            let copies = self.effects.iter().filter_map(JournalEffect::copy).map(str::to_owned);
            delete_images(directories.mount, &copies.collect::<Vec<_>>());
        }
        is_whole
    }

    /// Removes what was staged for a transaction that never began, and returns the error that stopped it.
    pub(crate) fn discard(self, mount: &Mount, ticket: &Ticket<'_>, error: ToolError) -> ToolError {
        let store = mount.image_store();
        let is_whole = self.roll_back(&TxnDirectories::new(mount), store.as_ref());
        if is_whole && self.is_reserved {
            mount.void_reservation(ticket);
        }
        error
    }

    /// Path that a message about all of them names: the first.
    fn shown(&self) -> &str {
        self.steps.first().map_or("", |planned| &planned.shown)
    }

    /// Syncs the directories whose entries are others now.
    fn sync(&self, mount: &Mount, store: Option<&PreImageStore>, touched: TouchedDirectories) -> Result<(), Errno> {
        if touched.are_many {
            return rustix::fs::syncfs(&mount.root);
        }
        let flush = |(id, directory): (&FileId, &OwnedFd)| mount.directory_flushes.flush(*id, || fsync(directory));
        touched.held.iter().try_for_each(flush)?;
        // A rename between two directories is on disk with either of them; among many steps it is not known which.
        match store {
            Some(store) if self.steps.len() > 1 => fsync(store.fd()),
            _ => Ok(()),
        }
    }
}

/// Directories whose entries are others now. Few of them are held; a process may not open one for each step.
#[derive(Default)]
struct TouchedDirectories {
    held: BTreeMap<FileId, OwnedFd>,
    /// There are more than are synced one by one, and none is held.
    are_many: bool,
}

impl TouchedDirectories {
    fn add(&mut self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.are_many {
            return Ok(());
        }
        let id = FileStat::from_stat(&fstat(directory)?).id;
        if self.held.contains_key(&id) {
            return Ok(());
        }
        if self.held.len() == MAX_SYNCED_EACH {
            *self = Self { held: BTreeMap::new(), are_many: true };
            return Ok(());
        }
        self.held.insert(id, reopen_for_listing(directory)?);
        Ok(())
    }
}

/// The end of a transaction.
struct TransactionEnd {
    result: Result<(), ToolError>,
    /// Nothing of it is left to recovery.
    is_settled: bool,
}

impl PlannedStep<'_> {
    fn with_open<T>(
        &self,
        directories: &TxnDirectories<'_>,
        store: Option<&PreImageStore>,
        with: impl FnOnce(&OpenStep<'_>) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        let opened = match self.parent {
            Some(_) => None,
            None => directories.open(&self.entry.parent.0, self.entry.directory).map_err(|_| Errno::IO)?,
        };
        // Where the directory is gone, there is nothing to do.
        let Some(parent) = self.parent.or(opened.as_ref().map(|opened| opened.as_fd())) else { return Ok(None) };
        with(&OpenStep { entry: &self.entry, parent, directories, store }).map(Some)
    }

    /// Makes the step, and adds the directories that have to be synced for it.
    fn make(
        &self,
        directories: &TxnDirectories<'_>,
        store: Option<&PreImageStore>,
        alone: bool,
        ticket: &Ticket<'_>,
        touched: &mut TouchedDirectories,
    ) -> Result<(), StepError> {
        let mount = directories.mount;
        let opened = match self.parent {
            Some(_) => None,
            None => Some(open_directory(mount, &self.entry.parent.0)?),
        };
        let Some(parent) = self.parent.or(opened.as_ref().map(|opened| opened.as_fd())) else {
            return Err(StepError::CHANGED);
        };
        // Once it is made, nothing that can be had before may fail.
        if mount.durability == Durability::Full && !matches!(self.entry.step, TxnStep::Append { .. }) {
            touched.add(parent)?;
            if let TxnStep::Move { to, .. } = &self.entry.step {
                touched.add(open_directory(mount, split(&to.0).0)?.as_fd())?;
            }
        }
        self.check_expected(mount, parent, ticket)?;
        let step = OpenStep { entry: &self.entry, parent, directories, store };
        step.make(self.staged.as_ref(), alone)?;
        self.check_displaced(mount, store, ticket)
    }

    fn check_expected(&self, mount: &Mount, parent: BorrowedFd<'_>, ticket: &Ticket<'_>) -> Result<(), StepError> {
        let Some(expected) = &self.expected else { return Ok(()) };
        let name = &self.entry.name.0;
        let is_expected = if expected.kind == FileStateKind::Directory {
            let found = FileState::read_at(mount, parent, name, expected.depth(), ticket.context());
            found.map_err(StepError::Tool)?.is_some_and(|found| expected.matches(&found))
        } else {
            // Contents were compared while planning.
            let found = stat(parent, name)?.map(|found| FileState::from_stat(&found));
            found.is_some_and(|found| {
                let is_same = found.inode == expected.inode && found.modified == expected.modified;
                found.size == expected.size && (expected.inode == 0 || is_same)
            })
        };
        if is_expected { Ok(()) } else { Err(StepError::CHANGED) }
    }

    /// Checks an entry that no path leads to any more: now it shows whether it was displaced unchanged.
    fn check_displaced(
        &self,
        mount: &Mount,
        store: Option<&PreImageStore>,
        ticket: &Ticket<'_>,
    ) -> Result<(), StepError> {
        let (TxnStep::Exchange { staging, .. }, Some(store)) = (&self.entry.step, store) else { return Ok(()) };
        let name = staging.as_bytes();
        if let Some(displaced) = &self.displaced {
            let found = FileState::read_at(mount, store.fd(), name, displaced.depth(), ticket.context());
            if !found.map_err(StepError::Tool)?.is_some_and(|found| displaced.matches(&found)) {
                return Err(StepError::CHANGED);
            }
        }
        if self.must_be_empty {
            let directory = mount.resolver.open_child(store.fd(), name)?;
            if names_in(directory.as_fd(), 2)?.len() != 2 {
                return Err(StepError::CHANGED);
            }
        }
        Ok(())
    }
}

/// A directory below the root, reached through no link.
pub(crate) fn open_directory(mount: &Mount, path: &[u8]) -> Result<OwnedFd, StepError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
    let opened = mount.lookup(&GuestPath::from_kernel(path), flags, IoMode::Blocking)?;
    if opened.resolved.is_none() { Ok(opened.fd) } else { Err(StepError::CHANGED) }
}

/// The error where not every step could be rolled back.
fn rollback_incomplete(refused: ToolError) -> ToolError {
    refused
        .hint("some files were changed and could not be rolled back; the next start tries again")
        .detail("committed", "unknown")
}

/// The error of a transaction on a mount where an earlier one was interrupted and cannot be rolled back yet. Its steps
/// and those of the new one could be about the same files.
pub(crate) fn interrupted_error(nothing_was: &str) -> ToolError {
    let message =
        format!("an earlier change was interrupted and could not be rolled back yet; nothing was {nothing_was}");
    ToolError::new(ErrorKind::Conflict, message).hint("check what prevents changes to its files")
}
