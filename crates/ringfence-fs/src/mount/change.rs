//! Changes of a mount in its journal: begun before they are made, ended, and settled for a process that died.
//!
//! Not here: the log and its files (`journal/`), and undoing changes (`undo/`).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{
    CallCommitState, CallContext, CallLimits, Dialect, IoMode, PolicyAction, ResourceAccess, Sensitivity, Ticket,
    ToolError,
};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;

use crate::journal::{
    ChangeStatus, DisplacedFileAction, DisplacementPosition, FileState, Journal, JournalChange, JournalEffect,
    JournalEntry, JournalLine, JournalSyncMode, Retention, TempFileOrigin, cost, image_name, journal_read_error,
    journal_write_error, not_kept_error,
};
use crate::mount::Mount;
use crate::mount::write_target::{CreatedParents, WriteTarget};
use crate::path::name::{escape, unescape};
use crate::path::relative::split;
use crate::root::{FileToReplace, open_parent, stat};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::names_in;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{accessat, fstat};

/// A change that is written down and not yet ended. Dropped, it did not happen.
#[derive(Debug)]
pub(crate) struct PendingChange<'a> {
    mount: &'a Mount,
    change: String,
    session: String,
    limits: CallLimits,
    copies: Vec<String>,
    retention: Retention,
    open: bool,
}

impl PendingChange<'_> {
    /// It happened.
    pub(crate) fn commit(mut self) {
        self.open = false;
        let Some(journal) = &self.mount.journal else { return };
        // Without the line, the next process to open the workspace sees from the files that it was made.
        let _ = journal.append(&JournalLine::Done { change: self.change.clone() }, JournalSyncMode::Deferred);
        if self.retention == Retention::Discard {
            delete_images(self.mount, &journal.evict_change(&self.change));
        }
        delete_images(self.mount, &journal.make_room(&self.change, &self.session, &self.limits));
        self.mount.compact_journal(journal);
    }

    /// Says what becomes of what it displaces.
    pub(crate) fn with_retention(mut self, displaced: Retention) -> Self {
        self.retention = displaced;
        self
    }
}

impl Drop for PendingChange<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if let Some(journal) = &self.mount.journal {
            delete_images(self.mount, &self.copies);
            let _ = journal.append(&JournalLine::Void { change: self.change.clone() }, JournalSyncMode::Deferred);
        }
    }
}

impl Mount {
    /// The handling of a file that is to be displaced. Without a journal, or where a person chose so, it is deleted
    /// permanently.
    pub(crate) fn disposition(
        &self,
        old: &FileToReplace,
        parent: BorrowedFd<'_>,
        position: DisplacementPosition,
        ticket: &Ticket<'_>,
    ) -> Result<DisplacedFileAction, ToolError> {
        let Some(journal) = &self.journal else { return Ok(DisplacedFileAction::Discarded) };
        let cx = ticket.context();
        if !self.fits_quota(cost(old.stat.size, 0).saturating_add(position.bytes_before), &[], cx)? {
            return if ticket.may_lose() { Ok(DisplacedFileAction::Discarded) } else { Err(not_kept_error()) };
        }
        let keep = journal.create_image_store(self)?;
        let image = image_name(ticket.change_id(), position.index);
        let here = fstat(parent).map(|stat| FileStat::from_stat(&stat).id.device).unwrap_or_default();
        if old.stat.links == 1 && here == keep.device {
            return Ok(DisplacedFileAction::Stored { image });
        }
        match self.copy_image(&keep, old, old.stat.size, &image, cx) {
            Ok(_) => Ok(DisplacedFileAction::Copied { image }),
            Err(_) if ticket.may_lose() && cx.check().is_ok() => Ok(DisplacedFileAction::Discarded),
            Err(error) => Err(error),
        }
    }

    /// Sensitivity, by identity, of the files that a change was about: current ones and pre-images.
    pub(crate) fn sensitivity_of(&self, effects: &[JournalEffect]) -> Sensitivity {
        let recall = |parent: BorrowedFd<'_>, name: &[u8]| match stat(parent, name) {
            Ok(Some(stamp)) => self.sensitive_files.lookup(FileRef { fd: parent, name }, &stamp),
            _ => Sensitivity::default(),
        };
        let mut known = Sensitivity::default();
        for path in effects.iter().flat_map(JournalEffect::paths) {
            let path = unescape(path);
            let (parent, name) = split(&path);
            if let Some(parent) = open_parent(self, parent) {
                known = known.union(recall(parent.as_fd(), name));
            }
        }
        if let Some(keep) = self.image_store() {
            let images = effects.iter().filter_map(JournalEffect::image);
            known = images.fold(known, |known, (image, _)| known.union(recall(keep.fd(), image.as_bytes())));
        }
        known
    }

    /// Name in the image store of an entry that is to be removed, with all of its hard links. `None` where it is
    /// deleted permanently.
    pub(crate) fn removal_image(
        &self,
        state: &FileState,
        parent: BorrowedFd<'_>,
        position: DisplacementPosition,
        ticket: &Ticket<'_>,
    ) -> Result<Option<String>, ToolError> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let cost = state.cost().saturating_add(position.bytes_before);
        if !self.fits_quota(cost, &[], ticket.context())? || !self.is_on_image_device(parent)? {
            return if ticket.may_lose() { Ok(None) } else { Err(not_kept_error()) };
        }
        journal.create_image_store(self)?;
        Ok(Some(image_name(ticket.change_id(), position.index)))
    }

    /// Whether an entry of this directory can be renamed into the image store.
    fn is_on_image_device(&self, parent: BorrowedFd<'_>) -> Result<bool, ToolError> {
        let stat = fstat(parent).map_err(|errno| errno_error(errno, "."))?;
        Ok(FileStat::from_stat(&stat).id.device == self.id.device)
    }

    /// Whether this much, as the quota counts it, could be stored for this session once the `freed` changes are undone.
    /// Where that cannot be known now, a loss needs no approval either.
    pub(crate) fn fits_quota(&self, bytes: u64, freed: &[String], cx: &CallContext<'_>) -> Result<bool, ToolError> {
        let Some(journal) = &self.journal else { return Ok(false) };
        let session = cx.origin().map_or("", |origin| origin.session.as_str());
        if bytes > cx.limits.undo_session_bytes || bytes > cx.limits.undo_bytes {
            return Ok(false);
        }
        Ok(journal.has_room(bytes, session, freed, cx.limits).map_err(journal_read_error)?
            && journal.can_create_image_store(self)?)
    }

    /// Writes down what is about to happen, if the plan foresaw what it makes true. It is on disk when this returns. Every
    /// change comes by here, and has the tree.
    pub(crate) fn begin_change(
        &self,
        ticket: &Ticket<'_>,
        undoes: Vec<String>,
        effects: Vec<JournalEffect>,
    ) -> Result<PendingChange<'_>, ToolError> {
        self.check_foreseen(&effects, ticket)?;
        let origin = ticket.context().origin().cloned().unwrap_or_default();
        let mut entered = PendingChange {
            mount: self,
            change: ticket.change_id().to_owned(),
            session: origin.session.clone(),
            limits: ticket.context().limits.clone(),
            copies: effects.iter().filter_map(JournalEffect::copy).map(str::to_owned).collect(),
            retention: Retention::Keep,
            open: true,
        };
        let Some(journal) = &self.journal else { return Ok(entered) };
        let (at, order) = journal.next_timestamp();
        let change = JournalChange {
            change: entered.change.clone(),
            at,
            order,
            session: origin.session,
            call: origin.call,
            tool: origin.tool,
            undoes,
            effects,
        };
        if let Err(error) = journal.append(&JournalLine::Intent(change), JournalSyncMode::Immediate) {
            // Nothing at all is written to the journal of a newer version. After other errors the intent may be there.
            if error.kind() == io::ErrorKind::Unsupported {
                entered.open = false;
                delete_images(self, &entered.copies);
            }
            return Err(journal_write_error(error));
        }
        Ok(entered)
    }

    /// Owner of the file with this inode at the temporary name of a change, and its name in the image store. Before the
    /// intent is logged nothing is displaced, and afterwards the journal has both inodes.
    pub(crate) fn temp_owner(&self, change: &str, inode: u64) -> Result<(TempFileOrigin, Option<Vec<u8>>), Errno> {
        let Some(journal) = &self.journal else { return Ok((TempFileOrigin::New, None)) };
        let entry = journal.entry(change).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let effects = entry.map(|entry| entry.change.effects).unwrap_or_default();
        let replaced = effects.into_iter().find_map(|effect| match effect {
            JournalEffect::Replaced { before, after, image, copied: false, .. } => {
                Some((before.inode, after.inode, image))
            }
            _ => None,
        });
        Ok(match replaced {
            Some((before, _, image)) if before == inode => (TempFileOrigin::Displaced, Some(image.into_bytes())),
            Some((_, after, _)) if after != inode => (TempFileOrigin::Foreign, None),
            _ => (TempFileOrigin::New, None),
        })
    }

    /// Ends a change whose process died, after its note was dealt with.
    pub(crate) fn resolve_change(&self, change: &str) {
        let Some(journal) = &self.journal else { return };
        match journal.entry(change) {
            Ok(Some(entry)) if entry.status == ChangeStatus::Pending => self.resolve_entry(journal, &entry),
            // It died before it was written down: there can only be copies.
            Ok(None) if !change.is_empty() => {
                let prefix = image_name(change, 0);
                let prefix = prefix.trim_end_matches('0');
                let copies: Vec<String> =
                    self.image_names().into_iter().filter(|name| name.starts_with(prefix)).collect();
                delete_images(self, &copies);
            }
            // Ended already; or it cannot be known, and what is kept stays.
            Ok(_) | Err(_) => {}
        }
    }

    /// Resolves every change without an outcome, and evicts what was to be evicted. Only while there is no other
    /// writer.
    pub(crate) fn resolve_all_changes(&self) {
        let Some(journal) = &self.journal else { return };
        let entries = journal.unresolved().unwrap_or_default();
        for entry in entries.iter().filter(|entry| entry.status == ChangeStatus::Pending) {
            self.resolve_entry(journal, entry);
        }
        let evicted: Vec<String> =
            entries.iter().filter(|entry| entry.evicted).flat_map(|entry| entry.images()).collect();
        if !evicted.is_empty() {
            let there = self.image_names();
            delete_images(self, &evicted.into_iter().filter(|image| there.contains(image)).collect::<Vec<_>>());
        }
        self.compact_journal(journal);
    }

    /// Compacts the log if it became long. Only under the tree lock.
    fn compact_journal(&self, journal: &Journal) {
        if journal.needs_compaction() {
            delete_images(self, &journal.evict_expired());
            // A log that cannot be compacted now stays as it is.
            let _ = journal.compact(&self.image_names());
        }
    }

    /// Names of all images in the store.
    fn image_names(&self) -> BTreeSet<String> {
        let names = self.image_store().and_then(|keep| names_in(keep.fd(), usize::MAX).ok());
        names.unwrap_or_default().into_iter().collect()
    }

    fn resolve_entry(&self, journal: &Journal, entry: &JournalEntry) {
        let Ok(keep) = self.find_image_store() else { return };
        let effects = &entry.change.effects;
        // Directories were made before anything else was: only the last one says something.
        let telling = effects.iter().filter(|effect| !effect.makes_directory()).chain(effects.last());
        let change = entry.change.change.clone();
        let made = telling.map(|effect| effect.has_happened(self, keep.as_ref())).collect::<Result<Vec<_>, _>>();
        // An error does not mean that it was not made.
        let Ok(made) = made else { return };
        if made.contains(&true) {
            let _ = journal.append(&JournalLine::Done { change }, JournalSyncMode::Deferred);
        } else {
            let copies: Vec<String> = effects.iter().filter_map(JournalEffect::copy).map(str::to_owned).collect();
            delete_images(self, &copies);
            let _ = journal.append(&JournalLine::Void { change }, JournalSyncMode::Deferred);
        }
    }
}

impl WriteTarget {
    /// The access that needs approval because it cannot be undone: losing the file that is replaced here.
    pub(crate) fn loss(&self, seen: &FileStat, cx: &CallContext<'_>) -> Result<Option<ResourceAccess>, ToolError> {
        self.loss_after(0, seen, cx)
    }

    /// The same where others were displaced before it, which count as so much.
    pub(crate) fn loss_after(
        &self,
        before: u64,
        seen: &FileStat,
        cx: &CallContext<'_>,
    ) -> Result<Option<ResourceAccess>, ToolError> {
        // One that has other names is copied, and has to be read for that.
        let readable = || accessat(self.base(), self.name.as_slice(), Access::READ_OK, AtFlags::EACCESS).is_ok();
        if self.mount.journal.is_some() && seen.links > 1 && !readable() {
            return Ok(Some(ResourceAccess { action: PolicyAction::Lose, resource: self.resource() }));
        }
        self.loss_of_cost(cost(seen.size, 0).saturating_add(before), cx)
    }

    fn loss_of_cost(&self, cost: u64, cx: &CallContext<'_>) -> Result<Option<ResourceAccess>, ToolError> {
        let kept = self.mount.journal.is_none() || self.mount.fits_quota(cost, &[], cx)?;
        Ok((!kept).then(|| ResourceAccess { action: PolicyAction::Lose, resource: self.resource() }))
    }

    /// The same for something that is to be removed as it is.
    pub(crate) fn loss_of_all(&self, cost: u64, cx: &CallContext<'_>) -> Result<Option<ResourceAccess>, ToolError> {
        let stays = self.mount.journal.is_none() || self.mount.is_on_image_device(self.base())?;
        if stays {
            self.loss_of_cost(cost, cx)
        } else {
            Ok(Some(ResourceAccess { action: PolicyAction::Lose, resource: self.resource() }))
        }
    }

    /// The effects of a file that takes this name, with the directories that were made for it.
    pub(crate) fn effects(
        &self,
        made: &CreatedParents,
        old: Option<(&FileState, &DisplacedFileAction)>,
        after: FileState,
    ) -> Vec<JournalEffect> {
        let mut effects = made.effects();
        let path = escape(&self.path());
        effects.push(match old {
            None => JournalEffect::Created { path, after, image: None },
            Some((_, DisplacedFileAction::Discarded)) => JournalEffect::Lost { path },
            Some((before, DisplacedFileAction::Stored { image })) => {
                JournalEffect::Replaced { path, before: before.clone(), after, image: image.clone(), copied: false }
            }
            Some((before, DisplacedFileAction::Copied { image })) => {
                JournalEffect::Replaced { path, before: before.clone(), after, image: image.clone(), copied: true }
            }
        });
        effects
    }
}

pub(crate) fn delete_images(mount: &Mount, images: &[String]) {
    let Some(keep) = mount.image_store().filter(|_| !images.is_empty()) else { return };
    let (signal, limits) = (CallCommitState::new(), CallLimits::for_dialect(Dialect::Standard));
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    for image in images {
        keep.delete_image(mount, image, &cx);
    }
}
