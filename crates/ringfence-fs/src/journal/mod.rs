//! The journal: every change of a mount, with what is needed to take it back.
//!
//! An index in our state directory has a line for what is about to happen, on disk before it happens, and one for how it
//! ended. What a change displaces is kept at the root of the mount (`keep.rs`). A change whose process died is settled by
//! whoever finds its note: looking at what is there tells whether it was made.
//!
//! Not here: taking changes back (`reverse.rs`), and who may (`tools/undo.rs`).

mod effect;
mod held;
mod index;
mod keep;
mod picture;
mod retrace;
mod reverse;
mod sight;
mod state;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{
    Context, Dialect, ErrorKind, Limits, Pace, Sensitivity, Signal, Ticket, ToolError, Touch, Verb,
};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;

pub(crate) use self::effect::{Effect, split};
use self::index::{Change, Line, OnDisk};
pub(crate) use self::index::{Entry, Journal, Newest, Status};
pub(crate) use self::keep::Keep;
pub(crate) use self::picture::{Source, below, open_straight};
pub(crate) use self::reverse::{Doing, Force, Reversal};
pub(crate) use self::state::{Form, Look, State, cost};
use crate::again::{accessat, fstat};
use crate::fault::fault;
use crate::known::At;
use crate::mount::{Mount, look};
use crate::name::{read_back, show};
use crate::recover::open_parent;
use crate::replace::Old;
use crate::slot::{Made, Slot};
use crate::stamp::Stamp;
use crate::walk::names_in;

/// What becomes of a file that a change displaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes for good.
    Gone,
    Kept {
        image: String,
    },
    /// It has other names, or cannot be brought to the keep: a copy of it is there, and it goes.
    Copied {
        image: String,
    },
}

impl Fate {
    /// The name in the keep that the displaced file gets.
    pub(crate) fn image(&self) -> Option<&str> {
        match self {
            Self::Kept { image } => Some(image),
            Self::Gone | Self::Copied { .. } => None,
        }
    }
}

/// One of the files that a change displaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Its number among them.
    pub(crate) index: usize,
    /// What those before it count as in the quota.
    pub(crate) before: u64,
}

/// Whose a file is that was found at the temporary name of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The new one, which never took its name.
    Ours,
    /// The old one, which lost its name to it.
    Displaced,
    /// One that another program put where the old one was.
    Theirs,
}

/// A change that is written down and not yet ended. Dropped, it did not happen.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    mount: &'a Mount,
    change: String,
    session: String,
    limits: Limits,
    copies: Vec<String>,
    displaced: Afterwards,
    open: bool,
}

/// What becomes of what a change displaced, once it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    Kept,
    /// There is no room for it, and a person agreed.
    Lost,
}

impl Entered<'_> {
    /// It happened.
    pub(crate) fn done(mut self) {
        self.open = false;
        let Some(journal) = &self.mount.journal else { return };
        // Left out, whoever opens the workspace next sees by what is there that it happened.
        let _ = journal.append(&Line::Done { change: self.change.clone() }, OnDisk::Later);
        if self.displaced == Afterwards::Lost {
            drop_images(self.mount, &journal.lose(&self.change));
        }
        drop_images(self.mount, &journal.make_room(&self.change, &self.session, &self.limits));
        self.mount.shorten_journal(journal);
    }

    /// Says what becomes of what it displaces.
    pub(crate) fn then(mut self, displaced: Afterwards) -> Self {
        self.displaced = displaced;
        self
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if let Some(journal) = &self.mount.journal {
            drop_images(self.mount, &self.copies);
            let _ = journal.append(&Line::Void { change: self.change.clone() }, OnDisk::Later);
        }
    }
}

impl Mount {
    /// What becomes of a file that is to be displaced. Without a journal, or where a person said so, it goes for good.
    pub(crate) fn fate(
        &self,
        old: &Old,
        parent: BorrowedFd<'_>,
        turn: Turn,
        ticket: &Ticket<'_>,
    ) -> Result<Fate, ToolError> {
        let Some(journal) = &self.journal else { return Ok(Fate::Gone) };
        let cx = ticket.context();
        if !self.can_be_kept(cost(old.stamp.size, 0).saturating_add(turn.before), &[], cx)? {
            return if ticket.may_lose() { Ok(Fate::Gone) } else { Err(unkept()) };
        }
        let keep = self.make_keep(journal)?;
        let image = image_name(ticket.change(), turn.index);
        let here = fstat(parent).map(|stat| Stamp::of(&stat).id.device).unwrap_or_default();
        if old.stamp.links == 1 && here == keep.device {
            return Ok(Fate::Kept { image });
        }
        match keep.copy(self, old, old.stamp.size, &image, cx) {
            Ok(_) => Ok(Fate::Copied { image }),
            Err(_) if ticket.may_lose() && cx.check().is_ok() => Ok(Fate::Gone),
            Err(error) => Err(error),
        }
    }

    /// What is known, whatever they are called, of the files that a change was about: those that are there, and those that
    /// are kept.
    pub(crate) fn known_of(&self, effects: &[Effect]) -> Sensitivity {
        let recall = |parent: BorrowedFd<'_>, name: &[u8]| match look(parent, name) {
            Ok(Some(stamp)) => self.known.recall(At { fd: parent, name }, &stamp),
            _ => Sensitivity::default(),
        };
        let mut known = Sensitivity::default();
        for path in effects.iter().flat_map(Effect::paths) {
            let path = read_back(path);
            let (parent, name) = split(&path);
            if let Some(parent) = open_parent(self, parent) {
                known = known.or(recall(parent.as_fd(), name));
            }
        }
        if let Some(keep) = self.keep() {
            let images = effects.iter().filter_map(Effect::image);
            known = images.fold(known, |known, (image, _)| known.or(recall(keep.fd(), image.as_bytes())));
        }
        known
    }

    /// What something that is to be removed is called in the keep, as it is and with all of its names. Nothing where it
    /// goes for good.
    pub(crate) fn removal_image(
        &self,
        state: &State,
        parent: BorrowedFd<'_>,
        turn: Turn,
        ticket: &Ticket<'_>,
    ) -> Result<Option<String>, ToolError> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let cost = state.cost().saturating_add(turn.before);
        if !self.can_be_kept(cost, &[], ticket.context())? || !self.is_on_its_device(parent)? {
            return if ticket.may_lose() { Ok(None) } else { Err(unkept()) };
        }
        self.make_keep(journal)?;
        Ok(Some(image_name(ticket.change(), turn.index)))
    }

    /// Whether something in this directory can be brought to the keep by a rename.
    fn is_on_its_device(&self, parent: BorrowedFd<'_>) -> Result<bool, ToolError> {
        let stat = fstat(parent).map_err(|errno| fault(errno, "."))?;
        Ok(Stamp::of(&stat).id.device == self.id.device)
    }

    /// Whether so much, as the quota counts it, could be kept for this session once the `freed` changes are taken back. Where
    /// nobody can know that now, nobody is asked about a loss either.
    pub(crate) fn can_be_kept(&self, bytes: u64, freed: &[String], cx: &Context<'_>) -> Result<bool, ToolError> {
        let Some(journal) = &self.journal else { return Ok(false) };
        let session = cx.origin().map_or("", |origin| origin.session.as_str());
        if bytes > cx.limits.undo_session_bytes || bytes > cx.limits.undo_bytes {
            return Ok(false);
        }
        Ok(journal.has_room(bytes, session, freed, cx.limits).map_err(unreadable)? && self.can_have_keep()?)
    }

    /// Writes down what is about to happen, if the plan foresaw what it makes true. It is on disk when this returns. Every
    /// change comes by here, and has the tree.
    pub(crate) fn enter(
        &self,
        ticket: &Ticket<'_>,
        undoes: Vec<String>,
        effects: Vec<Effect>,
    ) -> Result<Entered<'_>, ToolError> {
        self.check_foreseen(&effects, ticket)?;
        let origin = ticket.context().origin().cloned().unwrap_or_default();
        let entered = Entered {
            mount: self,
            change: ticket.change().to_owned(),
            session: origin.session.clone(),
            limits: ticket.context().limits.clone(),
            copies: effects.iter().filter_map(Effect::copy).map(str::to_owned).collect(),
            displaced: Afterwards::Kept,
            open: true,
        };
        let Some(journal) = &self.journal else { return Ok(entered) };
        let (at, order) = journal.now();
        let change = Change {
            change: entered.change.clone(),
            at,
            order,
            session: origin.session,
            call: origin.call,
            tool: origin.tool,
            undoes,
            effects,
        };
        journal.append(&Line::Intent(change), OnDisk::Now).map_err(unwritable)?;
        Ok(entered)
    }

    /// Whose the file with this inode is, which stands at the temporary name of a change, and what it is called in the keep.
    /// Before the change is written down nothing is displaced, and afterwards the journal knows both inodes.
    pub(crate) fn whose(&self, change: &str, inode: u64) -> Result<(Whose, Option<Vec<u8>>), Errno> {
        let Some(journal) = &self.journal else { return Ok((Whose::Ours, None)) };
        let entry = journal.entry(change).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let effects = entry.map(|entry| entry.change.effects).unwrap_or_default();
        let replaced = effects.into_iter().find_map(|effect| match effect {
            Effect::Replaced { before, after, image, copied: false, .. } => Some((before.inode, after.inode, image)),
            _ => None,
        });
        Ok(match replaced {
            Some((before, _, image)) if before == inode => (Whose::Displaced, Some(image.into_bytes())),
            Some((_, after, _)) if after != inode => (Whose::Theirs, None),
            _ => (Whose::Ours, None),
        })
    }

    /// Ends a change whose process died, after its note was dealt with.
    pub(crate) fn settle(&self, change: &str) {
        let Some(journal) = &self.journal else { return };
        match journal.entry(change) {
            Ok(Some(entry)) if entry.status == Status::Pending => self.settle_entry(journal, &entry),
            // It died before it was written down: there can only be copies.
            Ok(None) if !change.is_empty() => {
                let prefix = image_name(change, 0);
                let prefix = prefix.trim_end_matches('0');
                let copies: Vec<String> =
                    self.kept_names().into_iter().filter(|name| name.starts_with(prefix)).collect();
                drop_images(self, &copies);
            }
            // Ended already; or it cannot be known, and what is kept stays.
            Ok(_) | Err(_) => {}
        }
    }

    /// Ends every change that nobody ended, and lets go what was to go. Only while nobody changes anything.
    pub(crate) fn settle_all(&self) {
        let Some(journal) = &self.journal else { return };
        let entries = journal.unsettled().unwrap_or_default();
        for entry in entries.iter().filter(|entry| entry.status == Status::Pending) {
            self.settle_entry(journal, entry);
        }
        let evicted: Vec<String> =
            entries.iter().filter(|entry| entry.evicted).flat_map(|entry| entry.images()).collect();
        if !evicted.is_empty() {
            let there = self.kept_names();
            drop_images(self, &evicted.into_iter().filter(|image| there.contains(image)).collect::<Vec<_>>());
        }
        self.shorten_journal(journal);
    }

    /// Writes the log anew if it became long. Only while the tree is held.
    fn shorten_journal(&self, journal: &Journal) {
        if journal.is_long() {
            drop_images(self, &journal.retire());
            // What cannot be written now is as long as before.
            let _ = journal.shorten(&self.kept_names());
        }
    }

    /// Everything in the keep.
    fn kept_names(&self) -> BTreeSet<String> {
        let names = self.keep().and_then(|keep| names_in(keep.fd(), usize::MAX).ok());
        names.unwrap_or_default().into_iter().collect()
    }

    fn settle_entry(&self, journal: &Journal, entry: &Entry) {
        let Ok(keep) = self.find_keep() else { return };
        let effects = &entry.change.effects;
        // Directories were made before anything else was: only the last one says something.
        let telling = effects.iter().filter(|effect| !effect.makes_directory()).chain(effects.last());
        let change = entry.change.change.clone();
        let made = telling.map(|effect| effect.is_made(self, keep.as_ref())).collect::<Result<Vec<_>, _>>();
        // Who cannot see it now does not say that it was not made.
        let Ok(made) = made else { return };
        if made.contains(&true) {
            let _ = journal.append(&Line::Done { change }, OnDisk::Later);
        } else {
            let copies: Vec<String> = effects.iter().filter_map(Effect::copy).map(str::to_owned).collect();
            drop_images(self, &copies);
            let _ = journal.append(&Line::Void { change }, OnDisk::Later);
        }
    }
}

impl Slot {
    /// What a person has to be asked about, because it could not be brought back: the file that is replaced here.
    pub(crate) fn loss(&self, seen: &Stamp, cx: &Context<'_>) -> Result<Option<Touch>, ToolError> {
        self.loss_after(0, seen, cx)
    }

    /// The same where others were displaced before it, which count as so much.
    pub(crate) fn loss_after(&self, before: u64, seen: &Stamp, cx: &Context<'_>) -> Result<Option<Touch>, ToolError> {
        // One that has other names is copied, and has to be read for that.
        let readable = || accessat(self.base(), self.name.as_slice(), Access::READ_OK, AtFlags::EACCESS).is_ok();
        if self.mount.journal.is_some() && seen.links > 1 && !readable() {
            return Ok(Some(Touch { verb: Verb::Lose, place: self.place() }));
        }
        self.loss_of_cost(cost(seen.size, 0).saturating_add(before), cx)
    }

    fn loss_of_cost(&self, cost: u64, cx: &Context<'_>) -> Result<Option<Touch>, ToolError> {
        let kept = self.mount.journal.is_none() || self.mount.can_be_kept(cost, &[], cx)?;
        Ok((!kept).then(|| Touch { verb: Verb::Lose, place: self.place() }))
    }

    /// The same for something that is to be removed as it is.
    pub(crate) fn loss_of_all(&self, cost: u64, cx: &Context<'_>) -> Result<Option<Touch>, ToolError> {
        let stays = self.mount.journal.is_none() || self.mount.is_on_its_device(self.base())?;
        if stays { self.loss_of_cost(cost, cx) } else { Ok(Some(Touch { verb: Verb::Lose, place: self.place() })) }
    }

    /// The effects of a file that takes this name, with the directories that were made for it.
    pub(crate) fn effects(&self, made: &Made, old: Option<(&State, &Fate)>, after: State) -> Vec<Effect> {
        let mut effects = made.effects();
        let path = show(&self.path());
        effects.push(match old {
            None => Effect::Created { path, after, image: None },
            Some((_, Fate::Gone)) => Effect::Lost { path },
            Some((before, Fate::Kept { image })) => {
                Effect::Replaced { path, before: before.clone(), after, image: image.clone(), copied: false }
            }
            Some((before, Fate::Copied { image })) => {
                Effect::Replaced { path, before: before.clone(), after, image: image.clone(), copied: true }
            }
        });
        effects
    }
}

/// The name of a pre-image: by its change, so that nobody else has it.
pub(crate) fn image_name(change: &str, index: usize) -> String {
    format!("{change}-{index}")
}

pub(crate) fn drop_images(mount: &Mount, images: &[String]) {
    let Some(keep) = mount.keep().filter(|_| !images.is_empty()) else { return };
    let (signal, limits) = (Signal::new(), Limits::of(Dialect::Standard));
    let cx = Context::new(&limits, Pace::Patient, &signal);
    for image in images {
        keep.drop_image(mount, image, &cx);
    }
}

pub(crate) fn unkept() -> ToolError {
    let message = "what is there became too large to be kept, so the change could not be undone; nothing was changed";
    ToolError::new(ErrorKind::Conflict, message).hint("try again, and it is asked about")
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn unreadable(error: io::Error) -> ToolError {
    let message = format!("the journal of changes cannot be read ({}); nothing was changed", reason(&error));
    ToolError::new(ErrorKind::Io, message).hint("try again")
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn unwritable(error: io::Error) -> ToolError {
    let message = format!("the journal of changes cannot be written ({}); nothing was changed", reason(&error));
    let failed = ToolError::new(ErrorKind::Io, message);
    if error.kind() == io::ErrorKind::TimedOut { failed.hint("try again") } else { failed }
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => format!("error {code}"),
        None if error.kind() == io::ErrorKind::TimedOut => "another process is at it".to_owned(),
        None => "it is not what was written".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use expect_test::expect;

    use super::unwritable;

    #[test]
    fn what_stands_in_the_way_of_the_journal_is_said() {
        let said = |error: io::Error| unwritable(error).to_string();
        expect!["the journal of changes cannot be written (error 28); nothing was changed"]
            .assert_eq(&said(io::Error::from_raw_os_error(28)));
        expect!["the journal of changes cannot be written (another process is at it); nothing was changed; try again"]
            .assert_eq(&said(io::ErrorKind::TimedOut.into()));
    }
}
