//! The index of a journal: a line for what is about to happen, and one for how it ended.
//!
//! Several processes append to it under a lock. A line without its end was cut by the death of its writer, and goes with
//! the next one. What was read once is remembered, and only what came since is read again.
//!
//! Not here: pre-images (`keep.rs`).

use std::collections::HashMap;
use std::fmt;
use std::io;
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
    keep: Mutex<Option<FileId>>,
}

/// What was read of the log so far.
struct Known {
    log: Arc<OwnedFd>,
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
pub(super) enum Line {
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

    /// The names of its pre-images.
    pub(super) fn images(&self) -> Vec<String> {
        self.change.effects.iter().filter_map(Effect::image).map(|(image, _)| image.to_owned()).collect()
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

    fn kept_bytes(&self) -> u64 {
        let counts = self.is_live() && !self.evicted;
        if counts { self.change.effects.iter().filter_map(Effect::image).map(|(_, size)| size).sum() } else { 0 }
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
        Ok(self.known()?.entries.clone())
    }

    pub(crate) fn entry(&self, change: &str) -> io::Result<Option<Entry>> {
        let known = self.known()?;
        Ok(known.places.get(change).and_then(|place| known.entries.get(*place)).cloned())
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

    /// Writes the log anew where it became long: without changes that were not made, and without the oldest, whose
    /// pre-images come back to be let go. Only while nobody changes anything.
    pub(super) fn shorten(&self) -> io::Result<Vec<String>> {
        let mut known = self.alone();
        self.refresh(&mut known)?;
        if Stamp::of(&fstat(&known.log)?).size < LONGEST_LOG {
            return Ok(Vec::new());
        }
        hold(&self.lock)?;
        let gone = self.refresh(&mut known).and_then(|()| self.shorten_held(&mut known));
        release(&self.lock);
        gone
    }

    fn shorten_held(&self, known: &mut Known) -> io::Result<Vec<String>> {
        const NEW: &str = "log.new";
        known.catch_up()?;
        let made: Vec<&Entry> = known.entries.iter().filter(|entry| entry.status != Status::Void).collect();
        let (old, kept) = made.split_at(made.len().saturating_sub(MOST_CHANGES));
        let _ = unlinkat(&self.directory, NEW, AtFlags::empty());
        let new = open_own(&self.directory, NEW)?;
        for entry in kept {
            write_all(new.as_fd(), &entry.lines()?)?;
        }
        fdatasync(&new)?;
        renameat(&self.directory, NEW, &self.directory, LOG)?;
        Ok(old.iter().filter(|entry| entry.is_live()).flat_map(|entry| entry.images()).collect())
    }

    /// Whether the keep with this identity is the one that we made.
    pub(super) fn owns(&self, id: FileId) -> bool {
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
    pub(super) fn own(&self, id: FileId) -> io::Result<()> {
        const NEW: &str = "keep.new";
        let _alone = self.alone();
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
    pub(super) fn has_room(&self, bytes: u64, session: &str, limits: &Limits) -> bool {
        let Ok(known) = self.known() else { return false };
        if known.kept_by_all.saturating_add(bytes) <= limits.undo_bytes {
            return true;
        }
        let stays = known.entries.iter().filter(|entry| entry.kept_bytes() > 0 && !known.may_go(entry, session));
        stays.map(Entry::kept_bytes).sum::<u64>().saturating_add(bytes) <= limits.undo_bytes
    }

    /// Says which of the oldest pre-images go, until those of the session, and those of all, are no more than they may be. The
    /// pre-images of another session go only when that is over.
    pub(super) fn make_room(&self, session: &str, limits: &Limits) -> Vec<String> {
        let Ok(known) = self.known() else { return Vec::new() };
        let mut of_session = known.kept.get(session).copied().unwrap_or_default();
        let mut of_all = known.kept_by_all;
        if of_session <= limits.undo_session_bytes && of_all <= limits.undo_bytes {
            return Vec::new();
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
        // First it is said, then it goes: what is listed as kept is kept.
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
            kept: HashMap::new(),
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
        let log = Arc::clone(&self.log);
        let size = Stamp::of(&fstat(&log)?).size;
        if size <= self.read {
            return Ok(());
        }
        let mut bytes = vec![0; usize::try_from(size - self.read).unwrap_or(0)];
        let mut filled = 0;
        while filled < bytes.len() {
            match pread(&*log, &mut bytes[filled..], self.read + filled as u64)? {
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

fn open_own(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | CAREFUL;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}
