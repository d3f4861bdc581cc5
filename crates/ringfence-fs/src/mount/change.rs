//! Changes of a mount in its journal: begun before they are made, ended, and settled for a process that died.
//!
//! Not here: the log and its files (`journal/`), and undoing changes (`undo/`).

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{
    CallCommitState, CallContext, CallLimits, Dialect, ErrorKind, IoMode, PolicyAction, ResourceAccess, Sensitivity,
    Ticket, ToolError,
};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;

use crate::journal::{
    DisplacedFileAction, DisplacementPosition, FileState, IntentFlush, Journal, JournalChange, JournalEffect,
    JournalLine, Retention, TxnEntry, cost, image_name, journal_read_error, journal_write_error, not_kept_error,
};
use crate::mount::Mount;
use crate::mount::write_target::WriteTarget;
use crate::path::name::{escape, unescape};
use crate::path::relative::split;
use crate::root::trash::purge;
use crate::root::{FileToReplace, open_parent, stat};
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::names_in;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{accessat, unlinkat};

/// A change whose intent is in the log. Left without an outcome, it is settled by recovery.
#[derive(Debug)]
pub(crate) struct PendingChange<'a> {
    mount: &'a Mount,
    journal: &'a Journal,
    change: String,
    session: String,
    limits: CallLimits,
    flush: Option<IntentFlush>,
}

impl PendingChange<'_> {
    /// Waits until the intent is on disk.
    pub(crate) fn flush(&mut self) -> Result<(), ToolError> {
        self.flush.take().map_or(Ok(()), IntentFlush::wait).map_err(journal_write_error)
    }

    /// It was made.
    pub(crate) fn commit(&self) {
        // Without the line, the next process to open the workspace sees from the files that it was made.
        let _ = self.journal.log_outcome(JournalLine::Done { change: self.change.clone() });
    }

    /// It was made, and this is on disk when it returns.
    pub(crate) fn commit_durably(&self) -> Result<(), Errno> {
        let logged = self.journal.log_outcome_durably(JournalLine::Done { change: self.change.clone() });
        logged.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// It was rolled back.
    pub(crate) fn void(&self) {
        // Without the line, recovery finds nothing of it and writes it.
        let _ = self.journal.log_outcome(JournalLine::Void { change: self.change.clone() });
    }

    /// Evicts pre-images, of this change where a person agreed to that, and of others where there is no room.
    pub(crate) fn release_images(&self, retention: Retention) {
        let (mount, journal) = (self.mount, self.journal);
        journal.hide_new_store(mount);
        if retention == Retention::Discard {
            delete_images(mount, &journal.evict_change(&self.change));
        }
        delete_images(mount, &journal.make_room(&self.change, &self.session, &self.limits));
        mount.compact_journal(journal);
        journal.checkpoint();
    }
}

impl Mount {
    /// The handling of a file that is to be displaced. Without a journal, or where a person chose so, it is deleted
    /// permanently.
    pub(crate) fn disposition(
        &self,
        old: &FileToReplace,
        device: u64,
        position: DisplacementPosition,
        ticket: &Ticket<'_>,
    ) -> Result<DisplacedFileAction, ToolError> {
        let Some(journal) = self.undo_journal() else { return Ok(DisplacedFileAction::Discarded) };
        let cx = ticket.context();
        if !self.fits_quota(cost(old.stat.size, 0).saturating_add(position.bytes_before), &[], cx)? {
            return if ticket.may_lose() { Ok(DisplacedFileAction::Discarded) } else { Err(not_kept_error()) };
        }
        let keep = journal.create_image_store(self)?;
        let image = image_name(ticket.change_id(), position.index);
        if old.stat.links == 1 && device == keep.device() {
            return Ok(DisplacedFileAction::Stored { image });
        }
        self.reserve(ticket)?;
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
        device: u64,
        position: DisplacementPosition,
        ticket: &Ticket<'_>,
    ) -> Result<Option<String>, ToolError> {
        let Some(journal) = self.undo_journal() else { return Ok(None) };
        let cost = state.cost().saturating_add(position.bytes_before);
        if !self.fits_quota(cost, &[], ticket.context())? || device != self.id.device {
            return if ticket.may_lose() { Ok(None) } else { Err(not_kept_error()) };
        }
        journal.create_image_store(self)?;
        Ok(Some(image_name(ticket.change_id(), position.index)))
    }

    /// Whether this much, as the quota counts it, could be stored for this session once the `freed` changes are undone.
    /// Where that cannot be known now, a loss needs no approval either.
    pub(crate) fn fits_quota(&self, bytes: u64, freed: &[String], cx: &CallContext<'_>) -> Result<bool, ToolError> {
        let Some(journal) = self.undo_journal() else { return Ok(false) };
        let session = cx.origin().map_or("", |origin| origin.session.as_str());
        if bytes > cx.limits.undo_session_bytes || bytes > cx.limits.undo_bytes {
            return Ok(false);
        }
        Ok(journal.has_room(bytes, session, freed, cx.limits).map_err(journal_read_error)?
            && journal.can_create_image_store(self)?)
    }

    /// Logs the intent of a change, if the plan foresaw what it makes true. Every change comes by here, under the tree
    /// lock.
    pub(crate) fn begin_change(
        &self,
        ticket: &Ticket<'_>,
        undoes: Vec<String>,
        effects: Vec<JournalEffect>,
        steps: Vec<TxnEntry>,
    ) -> Result<PendingChange<'_>, ToolError> {
        self.check_foreseen(&effects, ticket)?;
        let Some(journal) = &self.journal else {
            return Err(ToolError::new(ErrorKind::Internal, "a read-only mount has no journal"));
        };
        let origin = ticket.context().origin().cloned().unwrap_or_default();
        let (at, order) = journal.next_timestamp();
        let change = JournalChange {
            change: ticket.change_id().to_owned(),
            at,
            order,
            session: origin.session.clone(),
            call: origin.call,
            tool: origin.tool,
            undoes,
            effects,
            steps,
        };
        let flush = journal.log_intent(change).map_err(journal_write_error)?;
        Ok(PendingChange {
            mount: self,
            journal,
            change: ticket.change_id().to_owned(),
            session: origin.session,
            limits: ticket.context().limits.clone(),
            flush: Some(flush),
        })
    }

    /// Logs that a change is being prepared: images with its name are removed with it, should this process die.
    pub(crate) fn reserve(&self, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        self.begin_change(ticket, Vec::new(), Vec::new(), Vec::new()).map(drop)
    }

    /// Says that a change with a reservation is not made.
    pub(crate) fn void_reservation(&self, ticket: &Ticket<'_>) {
        let Some(journal) = &self.journal else { return };
        // Without the line, recovery finds nothing of it and writes it.
        let _ = journal.log_outcome(JournalLine::Void { change: ticket.change_id().to_owned() });
    }

    /// Deletes the images that were to be evicted, and compacts the log. Only while there is no other writer.
    pub(crate) fn tidy_images(&self, evicted: &[String]) {
        let Some(journal) = &self.journal else { return };
        if !evicted.is_empty() {
            let there = self.image_names();
            delete_images(self, &evicted.iter().filter(|image| there.contains(*image)).cloned().collect::<Vec<_>>());
        }
        self.compact_journal(journal);
    }

    /// Deletes every image with the name of a change that was not made: what it staged, and copies.
    pub(crate) fn delete_images_of(&self, change: &str) {
        let prefix = image_name(change, 0);
        let prefix = prefix.trim_end_matches('0');
        delete_images(
            self,
            &self.image_names().into_iter().filter(|name| name.starts_with(prefix)).collect::<Vec<_>>(),
        );
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
        if self.mount.undo_journal().is_some() && seen.links > 1 && !readable() {
            return Ok(Some(ResourceAccess { action: PolicyAction::Lose, resource: self.resource() }));
        }
        self.loss_of_cost(cost(seen.size, 0).saturating_add(before), cx)
    }

    fn loss_of_cost(&self, cost: u64, cx: &CallContext<'_>) -> Result<Option<ResourceAccess>, ToolError> {
        let kept = self.mount.undo_journal().is_none() || self.mount.fits_quota(cost, &[], cx)?;
        Ok((!kept).then(|| ResourceAccess { action: PolicyAction::Lose, resource: self.resource() }))
    }

    /// The same for something that is to be removed as it is.
    pub(crate) fn loss_of_all(&self, cost: u64, cx: &CallContext<'_>) -> Result<Option<ResourceAccess>, ToolError> {
        // An entry of another device cannot be renamed into the image store.
        let stays = self.mount.undo_journal().is_none() || self.base_id().device == self.mount.id.device;
        if stays {
            self.loss_of_cost(cost, cx)
        } else {
            Ok(Some(ResourceAccess { action: PolicyAction::Lose, resource: self.resource() }))
        }
    }

    /// The effect of a file that takes this name.
    pub(crate) fn effect(&self, old: Option<(&FileState, &DisplacedFileAction)>, after: FileState) -> JournalEffect {
        let path = escape(&self.path());
        match old {
            None => JournalEffect::Created { path, after, image: None },
            Some((_, DisplacedFileAction::Discarded)) => JournalEffect::Lost { path },
            Some((before, DisplacedFileAction::Stored { image })) => {
                JournalEffect::Replaced { path, before: before.clone(), after, image: image.clone(), copied: false }
            }
            Some((before, DisplacedFileAction::Copied { image })) => {
                JournalEffect::Replaced { path, before: before.clone(), after, image: image.clone(), copied: true }
            }
        }
    }
}

/// Deletes an entry that has left the workspace, with everything in it.
pub(crate) fn delete_entry(mount: &Mount, (parent, name): (BorrowedFd<'_>, &[u8])) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        done => return done,
    }
    let (signal, limits) = (CallCommitState::new(), CallLimits::for_dialect(Dialect::Standard));
    purge(mount, parent, name, &CallContext::new(&limits, IoMode::Blocking, &signal)).map_err(|_| Errno::IO)
}

pub(crate) fn delete_images(mount: &Mount, images: &[String]) {
    if images.is_empty() {
        return;
    }
    let Some(keep) = mount.image_store() else { return };
    let (signal, limits) = (CallCommitState::new(), CallLimits::for_dialect(Dialect::Standard));
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    for image in images {
        keep.delete_image(mount, image, &cx);
    }
}
