//! The index of a journal: a line for what is about to happen, and one for how it ended.
//!
//! Several processes append to it under a lock. A line without its end was cut by the death of its writer, and goes with
//! the next one. What was read once is remembered as far as every change asks about it; what a change did is read again
//! from its line when somebody wants to know, so that a server that runs for weeks does not have all of it in memory.
//!
//! Not here: pre-images (`keep.rs`).

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence_kernel::Limits;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, renameat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::effect::Effect;
use crate::again::{fdatasync, ftruncate, openat, pread};
use crate::audit::{hold, release};
use crate::known::Identity;
use crate::mount::look;
use crate::replace::write_all;
use crate::resolve::CAREFUL;
use crate::stamp::{FileId, Stamp};

const LOG: &str = "log";
const LOCK: &str = "lock";
const IDENTITY: &str = "keep";

/// A session whose last change is older than this is over: what it kept may go where there is no room for others.
const OVER: Duration = Duration::from_secs(24 * 60 * 60);

/// A log that is longer than this is written anew, with so many changes at most.
const LONGEST_LOG: u64 = 16 << 20;
const MOST_CHANGES: usize = 10_000;

/// When a line is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDisk {
    Now,
    Later,
}

/// The journal of one mount.
pub(crate) struct Journal {
    directory: OwnedFd,
    lock: OwnedFd,
    known: Mutex<Known>,
    keep: Mutex<Option<Identity>>,
}

/// What was read of the log so far.
struct Known {
    log: Arc<OwnedFd>,
    read: u64,
    entries: Vec<Held>,
    places: HashMap<Arc<str>, usize>,
    sessions: HashMap<Arc<str>, OfSession>,
    /// What is kept, as the quota counts it.
    kept_by_all: u64,
}

/// What is known of a session.
#[derive(Default)]
struct OfSession {
    /// What is kept, as the quota counts it.
    kept: u64,
    /// When it made its last change.
    last: String,
}

/// What is in memory of a change.
struct Held {
    change: Arc<str>,
    session: Arc<str>,
    /// Where the log tells what it is.
    line: Range<u64>,
    status: Status,
    evicted: bool,
    undoes: Box<[String]>,
    undone_by: Option<String>,
    shared: Box<[String]>,
    /// What its own pre-images are, as the quota counts them.
    cost: u64,
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
    /// Pre-images that are another's: of a redo, those of the changes that it brought back.
    shared: Box<[String]>,
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
pub(super) enum Line {
    Intent(Change),
    Done { change: String },
    Void { change: String },
    Evicted { change: String },
}

impl Entry {
    fn new(change: Change) -> Self {
        Self { change, status: Status::Pending, evicted: false, undone_by: None, shared: Box::default() }
    }

    /// Whether it holds and could be taken back.
    pub(crate) fn is_live(&self) -> bool {
        self.status == Status::Done && self.undone_by.is_none()
    }

    /// Whether it took another one back.
    pub(crate) fn is_undo(&self) -> bool {
        !self.change.undoes.is_empty()
    }

    /// The names of its pre-images.
    pub(super) fn images(&self) -> Vec<String> {
        self.own_images().map(|(image, _)| image.to_owned()).collect()
    }

    fn own_images(&self) -> impl Iterator<Item = (&str, u64)> {
        let images = self.change.effects.iter().filter_map(Effect::image);
        images.filter(|(image, _)| !self.shared.iter().any(|shared| shared == image))
    }

    /// What its own pre-images are, as the quota counts them.
    fn cost(&self) -> u64 {
        self.own_images().map(|(_, cost)| cost).fold(0, u64::saturating_add)
    }

    /// It as lines of a log.
    fn lines(&self) -> io::Result<Vec<u8>> {
        let change = || self.change.change.clone();
        let mut lines = vec![Line::Intent(self.change.clone())];
        lines.extend((self.status == Status::Done).then(|| Line::Done { change: change() }));
        lines.extend(self.evicted.then(|| Line::Evicted { change: change() }));
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, &line)?;
            bytes.push(b'\n');
        }
        Ok(bytes)
    }
}

impl Held {
    /// Whether it holds and could be taken back.
    fn is_live(&self) -> bool {
        self.status == Status::Done && self.undone_by.is_none()
    }

    /// What it keeps, as the quota counts it.
    fn kept_bytes(&self) -> u64 {
        if self.is_live() && !self.evicted { self.cost } else { 0 }
    }
}

impl Journal {
    /// Opens the journal in a directory of our own, and makes it if there is none.
    pub(crate) fn open(directory: OwnedFd) -> Result<Self, Errno> {
        let (lock, log) = (open_own(&directory, LOCK)?, open_own(&directory, LOG)?);
        Ok(Self { directory, lock, known: Mutex::new(Known::new(log)), keep: Mutex::default() })
    }

    /// Every change, the oldest first.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let known = self.known()?;
        known.entries.iter().map(|held| known.whole(held)).collect()
    }

    pub(crate) fn entry(&self, change: &str) -> io::Result<Option<Entry>> {
        let known = self.known()?;
        known.held(change).map(|held| known.whole(held)).transpose()
    }

    /// What the log says by now.
    fn known(&self) -> io::Result<MutexGuard<'_, Known>> {
        let mut known = self.alone();
        self.refresh(&mut known)?;
        known.catch_up()?;
        Ok(known)
    }

    /// This thread alone. The lock is between processes: two threads of one would both have it.
    fn alone(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes over to the log that is there now: whoever shortens it puts another one in its place.
    fn refresh(&self, known: &mut Known) -> io::Result<()> {
        let held = Stamp::of(&fstat(&known.log)?).id;
        if look(self.directory.as_fd(), LOG.as_bytes())?.is_none_or(|now| now.id != held) {
            *known = Known::new(open_own(&self.directory, LOG)?);
        }
        Ok(())
    }

    /// Writes a line, on disk too where that is wanted.
    pub(super) fn append(&self, line: &Line, wanted: OnDisk) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let mut known = self.alone();
        hold(&self.lock)?;
        let written = self.refresh(&mut known).and_then(|()| known.write(&bytes));
        release(&self.lock);
        let log = Arc::clone(&known.log);
        drop(known);
        written?;
        match wanted {
            OnDisk::Now => Ok(fdatasync(&*log)?),
            OnDisk::Later => Ok(()),
        }
    }

    /// Whether the log became so long that it is worth writing anew.
    pub(super) fn is_long(&self) -> bool {
        self.known().is_ok_and(|known| known.read >= LONGEST_LOG)
    }

    /// Lets go what the oldest changes keep, of a log that became long. Those of a session that is not over stay.
    pub(super) fn retire(&self) -> Vec<String> {
        let Ok(known) = self.known() else { return Vec::new() };
        let made = known.made();
        let old = made.iter().take(made.len().saturating_sub(MOST_CHANGES));
        let over = |held: &&&Held| held.kept_bytes() > 0 && known.is_over(&held.session);
        let going = old.filter(over).filter_map(|held| known.whole(held).ok()).collect();
        drop(made);
        drop(known);
        self.evict(going)
    }

    /// Writes the log anew, without changes that were not made and without the oldest. One of which something is still kept
    /// stays, or nobody would know whose that is. Only while nobody changes anything.
    pub(super) fn shorten(&self, kept: &BTreeSet<String>) -> io::Result<()> {
        let mut known = self.alone();
        hold(&self.lock)?;
        let written = self.refresh(&mut known).and_then(|()| self.shorten_held(&mut known, kept));
        release(&self.lock);
        written
    }

    fn shorten_held(&self, known: &mut Known, kept: &BTreeSet<String>) -> io::Result<()> {
        const NEW: &str = "log.new";
        known.catch_up()?;
        let made = known.made();
        let old = made.len().saturating_sub(MOST_CHANGES);
        let mut bytes = Vec::new();
        for (index, held) in made.iter().enumerate() {
            let entry = known.whole(held)?;
            let keeps = || held.kept_bytes() > 0 || entry.images().iter().any(|image| kept.contains(image));
            if index >= old || held.status == Status::Pending || keeps() {
                bytes.extend_from_slice(&entry.lines()?);
            }
        }
        // Where little would go, it would be written anew at every start.
        if bytes.len() as u64 > known.read / 4 * 3 {
            return Ok(());
        }
        let _ = unlinkat(&self.directory, NEW, AtFlags::empty());
        let new = open_own(&self.directory, NEW)?;
        write_all(new.as_fd(), &bytes)?;
        fdatasync(&new)?;
        renameat(&self.directory, NEW, &self.directory, LOG)?;
        Ok(())
    }

    /// Whether the keep with this identity is the one that we made.
    pub(super) fn owns(&self, found: Identity) -> bool {
        let mut keep = self.keep.lock().unwrap_or_else(PoisonError::into_inner);
        if !keep.is_some_and(|ours| is_same(ours, found)) {
            // Another process may have made a new one.
            *keep = self.read_identity();
        }
        keep.is_some_and(|ours| is_same(ours, found))
    }

    /// Whether it was written down when it was made. Earlier versions did not.
    pub(super) fn knows_birth(&self) -> bool {
        let mut keep = self.keep.lock().unwrap_or_else(PoisonError::into_inner);
        if keep.is_none_or(|keep| keep.born.is_none()) {
            *keep = self.read_identity();
        }
        keep.is_some_and(|keep| keep.born.is_some())
    }

    fn read_identity(&self) -> Option<Identity> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | CAREFUL;
        let file = openat(&self.directory, IDENTITY, flags, Mode::empty()).ok()?;
        let mut text = [0u8; 128];
        let length = pread(&file, &mut text, 0).ok()?;
        parse_identity(std::str::from_utf8(&text[..length]).ok()?.trim_end())
    }

    /// Writes down which keep is ours.
    pub(super) fn own(&self, keep: Identity) -> io::Result<()> {
        const NEW: &str = "keep.new";
        let _alone = self.alone();
        hold(&self.lock)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | CAREFUL;
        let written = openat(&self.directory, NEW, flags, Mode::RUSR | Mode::WUSR).and_then(|file| {
            write_all(file.as_fd(), identity_line(keep).as_bytes())?;
            fdatasync(&file)?;
            renameat(&self.directory, NEW, &self.directory, IDENTITY)
        });
        release(&self.lock);
        Ok(written?)
    }

    /// Whether so much more could be kept for a session, if what may go for it went. What the `freed` changes keep does
    /// not count: they are about to be taken back.
    pub(super) fn has_room(&self, bytes: u64, session: &str, freed: &[String], limits: &Limits) -> bool {
        let Ok(known) = self.known() else { return false };
        let going = freed.iter().filter_map(|change| known.held(change)).map(Held::kept_bytes).sum();
        if known.kept_by_all.saturating_sub(going).saturating_add(bytes) <= limits.undo_bytes {
            return true;
        }
        let is_freed = |held: &Held| freed.iter().any(|change| **change == *held.change);
        let stays = known
            .entries
            .iter()
            .filter(|held| held.kept_bytes() > 0 && !known.may_go(held, session) && !is_freed(held));
        stays.map(Held::kept_bytes).sum::<u64>().saturating_add(bytes) <= limits.undo_bytes
    }

    /// Says which of the oldest pre-images go for a change that was just made, until those of its session, and those of all,
    /// are no more than they may be. Its own stay, and those of another session until that is over.
    pub(super) fn make_room(&self, change: &str, session: &str, limits: &Limits) -> Vec<String> {
        let Ok(known) = self.known() else { return Vec::new() };
        let mut of_session = known.sessions.get(session).map_or(0, |session| session.kept);
        let mut of_all = known.kept_by_all;
        if of_session <= limits.undo_session_bytes && of_all <= limits.undo_bytes {
            return Vec::new();
        }
        let stay = known.sharing(change);
        let mut going: Vec<Entry> = Vec::new();
        for held in known.entries.iter().filter(|held| held.kept_bytes() > 0) {
            let own = *held.session == *session;
            let stays = stay.iter().any(|change| **change == *held.change);
            let too_much = of_all > limits.undo_bytes && known.may_go(held, session);
            if !stays && ((own && of_session > limits.undo_session_bytes) || too_much) {
                // What cannot be read now stays, and the next one goes instead.
                let Ok(entry) = known.whole(held) else { continue };
                of_all = of_all.saturating_sub(held.kept_bytes());
                of_session = of_session.saturating_sub(if own { held.kept_bytes() } else { 0 });
                going.push(entry);
            }
        }
        drop(known);
        self.evict(going)
    }

    /// Says that what a change keeps goes, because a person agreed to that.
    pub(super) fn lose(&self, change: &str) -> Vec<String> {
        let Ok(known) = self.known() else { return Vec::new() };
        let going = known.sharing(change).iter().filter_map(|change| known.whole(known.held(change)?).ok()).collect();
        drop(known);
        self.evict(going)
    }

    /// First it is said, then it goes: what is listed as kept is kept.
    fn evict(&self, going: Vec<Entry>) -> Vec<String> {
        let said =
            |entry: &Entry| self.append(&Line::Evicted { change: entry.change.change.clone() }, OnDisk::Later).is_ok();
        going.into_iter().filter(said).flat_map(|entry| entry.images()).collect()
    }
}

impl Known {
    fn new(log: OwnedFd) -> Self {
        Self {
            log: Arc::new(log),
            read: 0,
            entries: Vec::new(),
            places: HashMap::new(),
            sessions: HashMap::new(),
            kept_by_all: 0,
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let end = self.whole_end()?;
        if let Err(errno) = write_all(self.log.as_fd(), bytes) {
            let _ = ftruncate(&*self.log, end);
            return Err(errno.into());
        }
        Ok(())
    }

    /// Where the last whole line ends. What stands behind it was cut by the death of its writer, and goes.
    fn whole_end(&self) -> io::Result<u64> {
        let size = Stamp::of(&fstat(&self.log)?).size;
        let mut end = size;
        let mut byte = [0u8; 1];
        while end > 0 && pread(&*self.log, &mut byte, end - 1)? == 1 && byte != *b"\n" {
            end -= 1;
        }
        if end < size {
            ftruncate(&*self.log, end)?;
        }
        Ok(end)
    }

    /// Reads what came to the log since the last time. A line without its end is not there yet.
    fn catch_up(&mut self) -> io::Result<()> {
        let size = Stamp::of(&fstat(&self.log)?).size;
        if size <= self.read {
            return Ok(());
        }
        let bytes = self.bytes(self.read..size)?;
        for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            let end = self.read + line.len() as u64;
            // A line that is not ours says nothing.
            if let Ok(heard) = serde_json::from_slice(line) {
                self.hear(heard, self.read..end)?;
            }
            self.read = end;
        }
        Ok(())
    }

    /// A part of the log, as far as it goes.
    fn bytes(&self, part: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(part.end.saturating_sub(part.start)).unwrap_or(0)];
        let mut filled = 0;
        while filled < bytes.len() {
            match pread(&*self.log, &mut bytes[filled..], part.start + filled as u64)? {
                0 => break,
                more => filled += more,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn hear(&mut self, line: Line, place: Range<u64>) -> io::Result<()> {
        match line {
            Line::Intent(change) => self.begin(change, place),
            Line::Done { change } => {
                self.alter(&change, |held| held.status = Status::Done);
                for undone in self.undoes(&change) {
                    self.alter(&undone, |held| held.undone_by = Some(change.clone()));
                    // Whoever takes an undo back makes what it took back hold again.
                    for again in self.undoes(&undone) {
                        self.alter(&again, |held| held.undone_by = None);
                    }
                }
                self.share(&change)?;
            }
            Line::Void { change } => self.alter(&change, |held| held.status = Status::Void),
            Line::Evicted { change } => self.alter(&change, |held| held.evicted = true),
        }
        Ok(())
    }

    fn begin(&mut self, change: Change, line: Range<u64>) {
        let session = match self.sessions.get_key_value(change.session.as_str()) {
            Some((session, _)) => Arc::clone(session),
            None => Arc::from(change.session.as_str()),
        };
        let known = self.sessions.entry(Arc::clone(&session)).or_default();
        if known.last < change.at {
            known.last.clone_from(&change.at);
        }
        let id: Arc<str> = Arc::from(change.change.as_str());
        self.places.insert(Arc::clone(&id), self.entries.len());
        let undoes = change.undoes.clone().into();
        let entry = Entry::new(change);
        self.entries.push(Held {
            change: id,
            session,
            line,
            status: entry.status,
            evicted: false,
            undoes,
            undone_by: None,
            shared: entry.shared.clone(),
            cost: entry.cost(),
        });
    }

    /// Finds out which images of a change that took another back are not its own.
    fn share(&mut self, change: &str) -> io::Result<()> {
        let Some(held) = self.held(change).filter(|held| !held.undoes.is_empty()) else { return Ok(()) };
        let mut entry = self.whole(held)?;
        entry.shared = self.shared_by(&entry);
        let cost = entry.cost();
        self.alter(change, |held| (held.shared, held.cost) = (entry.shared, cost));
        Ok(())
    }

    fn held(&self, change: &str) -> Option<&Held> {
        self.entries.get(*self.places.get(change)?)
    }

    /// All of a change, with what only the log tells.
    fn whole(&self, held: &Held) -> io::Result<Entry> {
        let line: Line = serde_json::from_slice(&self.bytes(held.line.clone())?)?;
        let Line::Intent(change) = line else { return Err(io::ErrorKind::InvalidData.into()) };
        let Held { status, evicted, undone_by, shared, .. } = held;
        let (undone_by, shared) = (undone_by.clone(), shared.clone());
        Ok(Entry { change, status: *status, evicted: *evicted, undone_by, shared })
    }

    /// Those that were not given up.
    fn made(&self) -> Vec<&Held> {
        self.entries.iter().filter(|held| held.status != Status::Void).collect()
    }

    fn undoes(&self, change: &str) -> Vec<String> {
        self.held(change).map(|held| held.undoes.to_vec()).unwrap_or_default()
    }

    /// The images of a change that belong to another one which holds: each is called after its owner.
    fn shared_by(&self, entry: &Entry) -> Box<[String]> {
        let is_shared = |image: &&str| {
            owner(image)
                .filter(|owner| *owner != entry.change.change)
                .and_then(|owner| self.held(owner))
                .is_some_and(Held::is_live)
        };
        let images = entry.change.effects.iter().filter_map(Effect::image).map(|(image, _)| image);
        images.filter(is_shared).map(str::to_owned).collect()
    }

    /// A change, and those whose pre-images it shares.
    fn sharing(&self, change: &str) -> Vec<String> {
        let shared = self.held(change).map(|held| &*held.shared).unwrap_or_default();
        let owners = shared.iter().filter_map(|image| owner(image)).map(str::to_owned);
        std::iter::once(change.to_owned()).chain(owners).collect()
    }

    fn alter(&mut self, change: &str, how: impl FnOnce(&mut Held)) {
        let Some(held) = self.places.get(change).and_then(|place| self.entries.get_mut(*place)) else { return };
        let before = held.kept_bytes();
        how(held);
        let after = held.kept_bytes();
        if let Some(session) = self.sessions.get_mut(&held.session) {
            session.kept = session.kept.saturating_sub(before).saturating_add(after);
        }
        self.kept_by_all = self.kept_by_all.saturating_sub(before).saturating_add(after);
    }

    /// Whether what a change keeps may go to make room for a session.
    fn may_go(&self, held: &Held, session: &str) -> bool {
        *held.session == *session || self.is_over(&held.session)
    }

    fn is_over(&self, session: &str) -> bool {
        let last = self.sessions.get(session).and_then(|known| humantime::parse_rfc3339(&known.last).ok());
        last.is_some_and(|at| at.elapsed().is_ok_and(|age| age > OVER))
    }
}

/// The change that an image is called after.
fn owner(image: &str) -> Option<&str> {
    image.rsplit_once('-').map(|(owner, _)| owner)
}

/// An inode is given out again when its directory is gone; another one was made at another time.
fn is_same(ours: Identity, found: Identity) -> bool {
    let born_apart = matches!((ours.born, found.born), (Some(then), Some(now)) if then != now);
    ours.id == found.id && !born_apart
}

fn identity_line(Identity { id, born }: Identity) -> String {
    let born = born.map_or_else(String::new, |born| format!(":{born}"));
    format!("{:x}-{:x}{born}\n", id.device, id.inode)
}

fn parse_identity(line: &str) -> Option<Identity> {
    let (id, born) = line.split_once(':').map_or((line, None), |(id, born)| (id, Some(born)));
    let (device, inode) = id.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let born = born.map(str::parse).transpose().ok()?;
    Some(Identity { id: FileId { device: hex(device)?, inode: hex(inode)? }, born })
}

fn open_own(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | CAREFUL;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}
