//! The journal: every change of a mount, with what is needed to take it back.
//!
//! An index in our state directory has a line for what is about to happen, on disk before it happens, and one for how it
//! ended. What a change displaces is kept at the root of the mount (`keep.rs`). A change whose process died is settled by
//! whoever finds its note: looking at what is there tells whether it was made.
//!
//! Not here: taking changes back (`reverse.rs`), and who may (`tools/undo.rs`).

mod effect;
mod keep;
mod picture;
mod retrace;
mod reverse;
mod state;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ringfence_kernel::{Context, Dialect, ErrorKind, Limits, Pace, Signal, Ticket, ToolError, Touch, Verb};
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, fstat, renameat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub(crate) use self::effect::{Effect, split};
pub(crate) use self::picture::Source;
pub(crate) use self::reverse::{Doing, Force, Reversal};
pub(crate) use self::state::{Form, Look, State};
use crate::again::{fdatasync, ftruncate, openat, pread};
use crate::audit::{hold, release};
use crate::mount::Mount;
use crate::name::show;
use crate::replace::{Old, write_all};
use crate::resolve::CAREFUL;
use crate::slot::{Made, Slot};
use crate::stamp::{FileId, Stamp};
use crate::walk::names_in;

const LOG: &str = "log";
const LOCK: &str = "lock";
const IDENTITY: &str = "keep";

/// A session whose last change is older than this is over: what it kept may go where there is no room for others.
const OVER: Duration = Duration::from_secs(24 * 60 * 60);

/// The journal of one mount.
pub(crate) struct Journal {
    directory: OwnedFd,
    lock: OwnedFd,
    log: OwnedFd,
    known: Mutex<Known>,
    keep: Mutex<Option<FileId>>,
}

/// What was read of the log so far.
#[derive(Default)]
struct Known {
    read: u64,
    entries: Vec<Entry>,
    places: HashMap<String, usize>,
    /// Bytes that are kept, by session and in all.
    kept: HashMap<String, u64>,
    kept_by_all: u64,
}

/// One change, as far as the log tells.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) change: Change,
    pub(crate) status: Status,
    /// What it kept is gone.
    pub(crate) evicted: bool,
    /// The change that took it back.
    pub(crate) undone_by: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Pending,
    Done,
    Void,
}

/// What is about to happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) change: String,
    pub(crate) at: String,
    pub(crate) session: String,
    pub(crate) call: String,
    pub(crate) tool: String,
    /// The changes that it takes back, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) undoes: Vec<String>,
    pub(crate) effects: Vec<Effect>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
enum Line {
    Intent(Change),
    Done { change: String },
    Void { change: String },
    Evicted { change: String },
}

impl Entry {
    /// Whether it holds and could be taken back.
    pub(crate) fn is_live(&self) -> bool {
        self.status == Status::Done && self.undone_by.is_none()
    }

    /// Whether it took another one back.
    pub(crate) fn is_undo(&self) -> bool {
        !self.change.undoes.is_empty()
    }

    fn kept_bytes(&self) -> u64 {
        let counts = self.is_live() && !self.evicted;
        if counts { self.change.effects.iter().filter_map(Effect::image).map(|(_, size)| size).sum() } else { 0 }
    }
}

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

/// A change that is written down and not yet ended. Dropped, it did not happen.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    mount: &'a Mount,
    change: String,
    session: String,
    limits: Limits,
    copies: Vec<String>,
    open: bool,
}

impl Entered<'_> {
    /// It happened.
    pub(crate) fn done(mut self) {
        self.open = false;
        let Some(journal) = &self.mount.journal else { return };
        // Left out, whoever opens the workspace next sees by what is there that it happened.
        let _ = journal.append(&Line::Done { change: self.change.clone() });
        journal.make_room(self.mount, &self.session, &self.limits);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if let Some(journal) = &self.mount.journal {
            drop_images(self.mount, &self.copies);
            let _ = journal.append(&Line::Void { change: self.change.clone() });
        }
    }
}

impl Mount {
    /// What becomes of a file that is to be displaced. Without a journal, or where a person said so, it goes for good.
    pub(crate) fn fate(
        &self,
        old: &Old,
        parent: BorrowedFd<'_>,
        index: usize,
        ticket: &Ticket<'_>,
    ) -> Result<Fate, ToolError> {
        let Some(journal) = &self.journal else { return Ok(Fate::Gone) };
        let cx = ticket.context();
        if !self.can_be_kept(old.stamp.size, cx) {
            return if ticket.approved() { Ok(Fate::Gone) } else { Err(unkept()) };
        }
        let keep = self.make_keep(journal)?;
        let image = image_name(ticket.change(), index);
        let here = fstat(parent).map(|stat| Stamp::of(&stat).id.device).unwrap_or_default();
        if old.stamp.links == 1 && here == keep.device {
            return Ok(Fate::Kept { image });
        }
        match keep.copy(old, old.stamp.size, &image, cx) {
            Ok(_) => Ok(Fate::Copied { image }),
            Err(_) if ticket.approved() && cx.check().is_ok() => Ok(Fate::Gone),
            Err(error) => Err(error),
        }
    }

    /// What something that is to be removed is called in the keep, as it is and with all of its names. Nothing where it
    /// goes for good.
    pub(crate) fn removal_image(
        &self,
        state: &State,
        parent: BorrowedFd<'_>,
        index: usize,
        ticket: &Ticket<'_>,
    ) -> Result<Option<String>, ToolError> {
        let Some(journal) = &self.journal else { return Ok(None) };
        if !self.can_be_kept(state.size, ticket.context()) || !self.is_on_its_device(parent) {
            return if ticket.approved() { Ok(None) } else { Err(unkept()) };
        }
        self.make_keep(journal)?;
        Ok(Some(image_name(ticket.change(), index)))
    }

    /// Whether something in this directory can be brought to the keep by a rename.
    fn is_on_its_device(&self, parent: BorrowedFd<'_>) -> bool {
        fstat(parent).is_ok_and(|stat| Stamp::of(&stat).id.device == self.id.device)
    }

    /// Whether so many bytes could be kept for this session.
    fn can_be_kept(&self, bytes: u64, cx: &Context<'_>) -> bool {
        let Some(journal) = &self.journal else { return false };
        let session = cx.origin().map_or("", |origin| origin.session.as_str());
        bytes <= cx.limits.undo_session_bytes
            && bytes <= cx.limits.undo_bytes
            && journal.has_room(bytes, session, cx.limits)
            && self.can_have_keep()
    }

    /// Writes down what is about to happen. It is on disk when this returns.
    pub(crate) fn enter(
        &self,
        ticket: &Ticket<'_>,
        undoes: Vec<String>,
        effects: Vec<Effect>,
    ) -> Result<Entered<'_>, ToolError> {
        let origin = ticket.context().origin().cloned().unwrap_or_default();
        let entered = Entered {
            mount: self,
            change: ticket.change().to_owned(),
            session: origin.session.clone(),
            limits: ticket.context().limits.clone(),
            copies: effects.iter().filter_map(Effect::copy).map(str::to_owned).collect(),
            open: true,
        };
        let Some(journal) = &self.journal else { return Ok(entered) };
        let change = Change {
            change: entered.change.clone(),
            at: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            session: origin.session,
            call: origin.call,
            tool: origin.tool,
            undoes,
            effects,
        };
        journal.append(&Line::Intent(change)).map_err(unwritable)?;
        fdatasync(&journal.log).map_err(|errno| unwritable(errno.into()))?;
        Ok(entered)
    }

    /// Ends a change whose process died, after its note was dealt with.
    pub(crate) fn settle(&self, change: &str) {
        let Some(journal) = &self.journal else { return };
        match journal.entry(change) {
            Some(entry) if entry.status == Status::Pending => self.settle_entry(journal, &entry),
            Some(_) => {}
            // It died before it was written down: there can only be copies.
            None if !change.is_empty() => {
                let names = self.keep().and_then(|keep| names_in(keep.fd(), usize::MAX).ok()).unwrap_or_default();
                let prefix = image_name(change, 0);
                let prefix = prefix.trim_end_matches('0');
                let copies: Vec<String> = names.into_iter().filter(|name| name.starts_with(prefix)).collect();
                drop_images(self, &copies);
            }
            None => {}
        }
    }

    /// Ends every change that nobody ended. Only while nobody changes anything.
    pub(crate) fn settle_all(&self) {
        let Some(journal) = &self.journal else { return };
        for entry in journal.entries().unwrap_or_default() {
            if entry.status == Status::Pending {
                self.settle_entry(journal, &entry);
            }
        }
    }

    fn settle_entry(&self, journal: &Journal, entry: &Entry) {
        let keep = self.keep();
        let effects = &entry.change.effects;
        // Directories were made before anything else was: only the last one says something.
        let telling = effects.iter().filter(|effect| !effect.makes_directory()).chain(effects.last());
        let change = entry.change.change.clone();
        if telling.into_iter().any(|effect| effect.is_made(self, keep.as_ref())) {
            let _ = journal.append(&Line::Done { change });
        } else {
            let copies: Vec<String> = effects.iter().filter_map(Effect::copy).map(str::to_owned).collect();
            drop_images(self, &copies);
            let _ = journal.append(&Line::Void { change });
        }
    }
}

impl Slot {
    /// What a person has to be asked about, because it could not be brought back: the file that is replaced here.
    pub(crate) fn loss(&self, seen: &Stamp, cx: &Context<'_>) -> Option<Touch> {
        // One that has other names is copied, and has to be read for that.
        let readable = || accessat(self.base(), self.name.as_slice(), Access::READ_OK, AtFlags::EACCESS).is_ok();
        if self.mount.journal.is_some() && seen.links > 1 && !readable() {
            return Some(Touch { verb: Verb::Lose, place: self.place() });
        }
        self.loss_of_bytes(seen.size, cx)
    }

    fn loss_of_bytes(&self, bytes: u64, cx: &Context<'_>) -> Option<Touch> {
        let kept = self.mount.journal.is_none() || self.mount.can_be_kept(bytes, cx);
        (!kept).then(|| Touch { verb: Verb::Lose, place: self.place() })
    }

    /// The same for something that is to be removed as it is.
    pub(crate) fn loss_of_all(&self, bytes: u64, cx: &Context<'_>) -> Option<Touch> {
        let stays = self.mount.journal.is_none() || self.mount.is_on_its_device(self.base());
        if stays { self.loss_of_bytes(bytes, cx) } else { Some(Touch { verb: Verb::Lose, place: self.place() }) }
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

impl Journal {
    /// Opens the journal in a directory of our own, and makes it if there is none.
    pub(crate) fn open(directory: OwnedFd) -> Result<Self, Errno> {
        let open = |name: &str| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | CAREFUL;
            openat(&directory, name, flags, Mode::RUSR | Mode::WUSR)
        };
        let (lock, log) = (open(LOCK)?, open(LOG)?);
        Ok(Self { directory, lock, log, known: Mutex::default(), keep: Mutex::default() })
    }

    /// Every change, the oldest first.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        Ok(self.known()?.entries.clone())
    }

    pub(crate) fn entry(&self, change: &str) -> Option<Entry> {
        let known = self.known().ok()?;
        known.places.get(change).and_then(|place| known.entries.get(*place)).cloned()
    }

    /// What the log says by now.
    fn known(&self) -> io::Result<MutexGuard<'_, Known>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.catch_up(&self.log)?;
        Ok(known)
    }

    fn append(&self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        // The lock is between processes, this one between threads.
        let _alone = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        hold(&self.lock)?;
        let written = self.append_held(&bytes);
        release(&self.lock);
        written
    }

    fn append_held(&self, bytes: &[u8]) -> io::Result<()> {
        let end = self.whole_end()?;
        if let Err(errno) = write_all(self.log.as_fd(), bytes) {
            let _ = ftruncate(&self.log, end);
            return Err(errno.into());
        }
        Ok(())
    }

    /// Where the last whole line ends. What stands behind it was cut by the death of its writer, and goes.
    fn whole_end(&self) -> io::Result<u64> {
        let size = Stamp::of(&fstat(&self.log)?).size;
        let mut end = size;
        let mut byte = [0u8; 1];
        while end > 0 && pread(&self.log, &mut byte, end - 1)? == 1 && byte != *b"\n" {
            end -= 1;
        }
        if end < size {
            ftruncate(&self.log, end)?;
        }
        Ok(end)
    }

    /// Whether the keep with this identity is the one that we made.
    fn owns(&self, id: FileId) -> bool {
        let mut keep = self.keep.lock().unwrap_or_else(PoisonError::into_inner);
        if *keep != Some(id) {
            // Another process may have made a new one.
            *keep = self.read_identity();
        }
        *keep == Some(id)
    }

    fn read_identity(&self) -> Option<FileId> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | CAREFUL;
        let file = openat(&self.directory, IDENTITY, flags, Mode::empty()).ok()?;
        let mut text = [0u8; 64];
        let length = pread(&file, &mut text, 0).ok()?;
        let (device, inode) = std::str::from_utf8(&text[..length]).ok()?.trim_end().split_once('-')?;
        Some(FileId { device: u64::from_str_radix(device, 16).ok()?, inode: u64::from_str_radix(inode, 16).ok()? })
    }

    /// Writes down which keep is ours.
    fn own(&self, id: FileId) -> io::Result<()> {
        const NEW: &str = "keep.new";
        let _alone = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        hold(&self.lock)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | CAREFUL;
        let written = openat(&self.directory, NEW, flags, Mode::RUSR | Mode::WUSR).and_then(|file| {
            write_all(file.as_fd(), format!("{:x}-{:x}\n", id.device, id.inode).as_bytes())?;
            fdatasync(&file)?;
            renameat(&self.directory, NEW, &self.directory, IDENTITY)
        });
        release(&self.lock);
        Ok(written?)
    }

    /// Whether so many bytes more could be kept, if what may go for them went.
    fn has_room(&self, bytes: u64, session: &str, limits: &Limits) -> bool {
        let Ok(known) = self.known() else { return false };
        if known.kept_by_all.saturating_add(bytes) <= limits.undo_bytes {
            return true;
        }
        let stays = known.entries.iter().filter(|entry| entry.kept_bytes() > 0 && !known.may_go(entry, session));
        stays.map(Entry::kept_bytes).sum::<u64>().saturating_add(bytes) <= limits.undo_bytes
    }

    /// Lets the oldest pre-images go until those of the session, and those of all, are no more than they may be. The
    /// pre-images of another session go only when that is over.
    fn make_room(&self, mount: &Mount, session: &str, limits: &Limits) {
        let Ok(known) = self.known() else { return };
        let mut of_session = known.kept.get(session).copied().unwrap_or_default();
        let mut of_all = known.kept_by_all;
        if of_session <= limits.undo_session_bytes && of_all <= limits.undo_bytes {
            return;
        }
        let mut going: Vec<Entry> = Vec::new();
        for entry in known.entries.iter().filter(|entry| entry.kept_bytes() > 0) {
            let own = entry.change.session == session;
            let too_much = of_all > limits.undo_bytes && known.may_go(entry, session);
            if (own && of_session > limits.undo_session_bytes) || too_much {
                of_all -= entry.kept_bytes();
                of_session -= if own { entry.kept_bytes() } else { 0 };
                going.push(entry.clone());
            }
        }
        drop(known);
        for entry in going {
            // First it is said, then it goes: what is listed as kept is kept.
            if self.append(&Line::Evicted { change: entry.change.change.clone() }).is_ok() {
                let images = entry.change.effects.iter().filter_map(Effect::image);
                drop_images(mount, &images.map(|(image, _)| image.to_owned()).collect::<Vec<_>>());
            }
        }
    }
}

impl Known {
    /// Reads what came to the log since the last time. A line without its end is not there yet.
    fn catch_up(&mut self, log: &OwnedFd) -> io::Result<()> {
        let size = Stamp::of(&fstat(log)?).size;
        if size <= self.read {
            return Ok(());
        }
        let mut bytes = vec![0; usize::try_from(size - self.read).unwrap_or(0)];
        let mut filled = 0;
        while filled < bytes.len() {
            match pread(log, &mut bytes[filled..], self.read + filled as u64)? {
                0 => break,
                more => filled += more,
            }
        }
        let whole = bytes[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in bytes[..whole].split(|byte| *byte == b'\n') {
            // A line that is not ours says nothing.
            if let Ok(line) = serde_json::from_slice(line) {
                self.hear(line);
            }
        }
        self.read += whole as u64;
        Ok(())
    }

    fn hear(&mut self, line: Line) {
        match line {
            Line::Intent(change) => {
                self.places.insert(change.change.clone(), self.entries.len());
                self.entries.push(Entry { change, status: Status::Pending, evicted: false, undone_by: None });
            }
            Line::Done { change } => {
                self.alter(&change, |entry| entry.status = Status::Done);
                for undone in self.undoes(&change) {
                    self.alter(&undone, |entry| entry.undone_by = Some(change.clone()));
                    // Whoever takes an undo back makes what it took back hold again.
                    for again in self.undoes(&undone) {
                        self.alter(&again, |entry| entry.undone_by = None);
                    }
                }
            }
            Line::Void { change } => self.alter(&change, |entry| entry.status = Status::Void),
            Line::Evicted { change } => self.alter(&change, |entry| entry.evicted = true),
        }
    }

    fn undoes(&self, change: &str) -> Vec<String> {
        let entry = self.places.get(change).and_then(|place| self.entries.get(*place));
        entry.map(|entry| entry.change.undoes.clone()).unwrap_or_default()
    }

    fn alter(&mut self, change: &str, how: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.places.get(change).and_then(|place| self.entries.get_mut(*place)) else { return };
        let before = entry.kept_bytes();
        how(entry);
        let after = entry.kept_bytes();
        let kept = self.kept.entry(entry.change.session.clone()).or_default();
        *kept = kept.saturating_sub(before).saturating_add(after);
        self.kept_by_all = self.kept_by_all.saturating_sub(before).saturating_add(after);
    }

    /// Whether what an entry keeps may go to make room for a session.
    fn may_go(&self, entry: &Entry, session: &str) -> bool {
        let last = self.entries.iter().rev().find(|other| other.change.session == entry.change.session);
        let age = last.and_then(|last| humantime::parse_rfc3339(&last.change.at).ok());
        let over = age.is_some_and(|at| at.elapsed().is_ok_and(|age| age > OVER));
        entry.change.session == session || over
    }
}

/// The name of a pre-image: by its change, so that nobody else has it.
pub(crate) fn image_name(change: &str, index: usize) -> String {
    format!("{change}-{index}")
}

fn drop_images(mount: &Mount, images: &[String]) {
    let Some(keep) = mount.keep().filter(|_| !images.is_empty()) else { return };
    let (signal, limits) = (Signal::new(), Limits::of(Dialect::Standard));
    let cx = Context::new(&limits, Pace::Patient, &signal);
    for image in images {
        keep.drop_image(mount, image, &cx);
    }
}

fn unkept() -> ToolError {
    let message = "what is there became too large to be kept, so the change could not be undone; nothing was changed";
    ToolError::new(ErrorKind::Conflict, message).hint("try again, and it is asked about")
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn unwritable(error: io::Error) -> ToolError {
    let code = error.raw_os_error().unwrap_or_default();
    ToolError::new(
        ErrorKind::Io,
        format!("the journal of changes cannot be written (error {code}); nothing was changed"),
    )
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}
