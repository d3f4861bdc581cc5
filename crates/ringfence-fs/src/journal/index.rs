//! In-memory index of a journal's log.
//!
//! A server that runs for weeks has every change with pre-images here, so each takes little memory: the offset of its
//! line, its outcome, and its size in the quota. Rare fields are stored apart, and the rest is read from the log again.
//!
//! Not here: reading and appending under the lock (`log.rs`).

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_sys::commit_log::CoveredFile;
use serde::Deserialize;

use crate::journal::effect::JournalEffect;
use crate::journal::line::{
    ChangeSequenceCounter, ChangeStatus, JournalChange, JournalEntry, JournalLine, image_owner,
};
use crate::journal::state::{FileState, FileStateKind};
use crate::sys::own_files::{truncate_durably, write_all};
use crate::sys::stat::{FileId, FileStat};
use crate::sys::syscall::{fstat, pread};

/// A session whose last change is older than this is over: what it kept may go where there is no room for others.
const SESSION_EXPIRY: Duration = Duration::from_secs(24 * 60 * 60);

/// As much of the log is read at once.
const CHUNK: u64 = 1 << 20;

/// An open log and its identity.
pub(super) struct IdentifiedLog {
    pub(super) file: CoveredFile,
    pub(super) id: FileId,
}

/// In-memory index of the log so far.
pub(super) struct JournalIndex {
    pub(super) log: Arc<OwnedFd>,
    /// The log as its first use found it.
    identified: Option<IdentifiedLog>,
    newest: Arc<ChangeSequenceCounter>,
    /// So much of it.
    pub(super) read: u64,
    /// The oldest first.
    pub(super) entries: Vec<IndexedChange>,
    positions_by_id: ChangeIdMap,
    undo_links: HashMap<u32, UndoLinks>,
    sessions: Vec<JournalSession>,
    numbers: HashMap<Box<str>, u32>,
    /// Effects of changes that are not committed yet, by position.
    pending: HashMap<u32, Box<[JournalEffect]>>,
    /// Size of all pre-images, as the quota counts it.
    pub(super) total_quota_bytes: u64,
}

/// The index entry of a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedChange {
    /// Offset of its intent in the log.
    start: u64,
    length: u32,
    /// The number of its session.
    session: u32,
    /// Size of its own pre-images, as the quota counts it.
    cost: u64,
    pub(super) status: ChangeStatus,
    pub(super) evicted: bool,
    is_undone: bool,
    /// It keeps something without which its session cannot be undone: the first version of a path in that session, one
    /// that another writer made in between, or one whose own change is not the plain writing of a file.
    keeps_original: bool,
}

/// Links of a change to others.
#[derive(Debug, Default)]
struct UndoLinks {
    undoes: Box<[String]>,
    undone_by: Option<String>,
    shared: Box<[String]>,
}

/// The index entry of a session.
#[derive(Debug, Default)]
struct JournalSession {
    /// Size of its pre-images, as the quota counts it.
    quota_bytes: u64,
    /// When it made its last change.
    last_change: Option<SystemTime>,
    /// The paths that it changed, as digests.
    paths: HashMap<u64, PathHistory>,
    /// Number of its effects.
    effects: u64,
}

/// What a session did to a path last.
#[derive(Debug, Default)]
struct PathHistory {
    /// The number of that effect.
    effect: u64,
    /// Digest of the file that it wrote, where nothing happened to the path or below it since.
    content: Option<u64>,
}

impl JournalSession {
    /// Takes in what a change did. True where it displaced something that an undo of the session cannot do without:
    /// what the session did not write itself, or wrote in a way that `undo/plan.rs` cannot bridge.
    fn record_effects(&mut self, effects: &[JournalEffect], is_undo: bool) -> bool {
        let mut displaces_original = false;
        for effect in effects {
            if let JournalEffect::Removed { path, before, .. } | JournalEffect::Replaced { path, before, .. } = effect {
                displaces_original |= !self.has_written(path, before);
            }
            self.effects += 1;
            for path in effect.paths() {
                self.paths.insert(digest(path), PathHistory { effect: self.effects, content: None });
                for directory in directories_above(path) {
                    self.paths.entry(digest(directory)).and_modify(|history| history.content = None);
                }
            }
            // An undo restores what was there before the session, or what it made: the path alone does not
            // distinguish them.
            if let JournalEffect::Created { path, after, .. } | JournalEffect::Replaced { path, after, .. } = effect
                && after.kind == FileStateKind::File
                && !is_undo
            {
                let content = Some(content_digest(after));
                self.paths.insert(digest(path), PathHistory { effect: self.effects, content });
            }
        }
        displaces_original
    }

    /// Whether the last effect of the session on a path, on a directory above it and on what is below it wrote this
    /// file. A directory that moved brought it under another path, or something else under this one.
    fn has_written(&self, path: &str, state: &FileState) -> bool {
        let Some(history) = self.paths.get(&digest(path)) else { return false };
        let is_later =
            |directory: &str| self.paths.get(&digest(directory)).is_some_and(|it| it.effect > history.effect);
        state.kind == FileStateKind::File
            && history.content == Some(content_digest(state))
            && !directories_above(path).any(is_later)
    }
}

fn directories_above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(slash, _)| &path[..slash])
}

fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Digest of a file that only files with equal contents and permissions have, or, where the contents are not known, the
/// file itself: equal digests are states that match.
fn content_digest(state: &FileState) -> u64 {
    match &state.sha256 {
        None => digest((state.inode, state.mode, state.size, state.modified)),
        known => digest((known, state.mode, state.size)),
    }
}

/// Positions by change ID. IDs made by the kernel are keyed by their digits, which takes a third of the memory.
#[derive(Debug, Default)]
struct ChangeIdMap {
    by_digits: HashMap<[u8; 10], u32>,
    by_name: HashMap<Box<str>, u32>,
}

impl ChangeIdMap {
    fn get(&self, change: &str) -> Option<u32> {
        match digits(change) {
            Some(digits) => self.by_digits.get(&digits).copied(),
            None => self.by_name.get(change).copied(),
        }
    }

    fn insert(&mut self, change: &str, position: u32) {
        match digits(change) {
            Some(digits) => self.by_digits.insert(digits, position),
            None => self.by_name.insert(change.into(), position),
        };
    }
}

/// The random digits of an ID that the kernel made.
fn digits(change: &str) -> Option<[u8; 10]> {
    let text = change.strip_prefix("c-")?.as_bytes();
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut digits = [0; 10];
    if text.len() != 2 * digits.len() {
        return None;
    }
    for (byte, pair) in digits.iter_mut().zip(text.chunks(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(digits)
}

impl IndexedChange {
    /// Whether it is committed and could be undone.
    fn is_live(&self) -> bool {
        self.status == ChangeStatus::Done && !self.is_undone
    }

    /// Size of its pre-images, as the quota counts it.
    pub(super) fn quota_bytes(&self) -> u64 {
        if self.is_live() && !self.evicted { self.cost } else { 0 }
    }

    fn log_range(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.length)
    }
}

impl JournalIndex {
    pub(super) fn new(log: OwnedFd, newest: &Arc<ChangeSequenceCounter>) -> Self {
        Self {
            log: Arc::new(log),
            identified: None,
            newest: Arc::clone(newest),
            read: 0,
            entries: Vec::new(),
            positions_by_id: ChangeIdMap::default(),
            undo_links: HashMap::new(),
            sessions: Vec::new(),
            numbers: HashMap::new(),
            pending: HashMap::new(),
            total_quota_bytes: 0,
        }
    }

    /// The open log with its identity. `path` is that of the journal's log, below the state directory.
    pub(super) fn identify(&mut self, path: &Path) -> io::Result<&IdentifiedLog> {
        let identified = match self.identified.take() {
            Some(known) => known,
            None => IdentifiedLog {
                id: FileStat::from_stat(&fstat(&self.log)?).id,
                file: CoveredFile::new(path, Arc::clone(&self.log))?,
            },
        };
        Ok(self.identified.insert(identified))
    }

    /// Appends a line to a log of `size` bytes, and returns the offset of its end.
    pub(super) fn write(&mut self, line: JournalLine, bytes: &[u8], size: u64) -> io::Result<u64> {
        let start = self.complete_lines_end(size)?;
        if let Err(errno) = write_all(self.log.as_fd(), bytes) {
            let _ = truncate_durably(&self.log, start);
            return Err(errno.into());
        }
        let end = start + bytes.len() as u64;
        // Otherwise it is read with the lines before it.
        if self.read == start && self.apply_line(line, start..end).is_ok() {
            self.read = end;
        }
        Ok(end)
    }

    /// End of the last whole line. A torn line behind it, left by a crash of its writer, is dropped.
    fn complete_lines_end(&self, size: u64) -> io::Result<u64> {
        // As far as it was read, the lines are whole.
        if self.read == size {
            return Ok(size);
        }
        let mut end = size;
        let mut byte = [0u8; 1];
        while end > 0 && pread(&*self.log, &mut byte, end - 1)? == 1 && byte != *b"\n" {
            end -= 1;
        }
        if end < size {
            truncate_durably(&self.log, end)?;
        }
        Ok(end)
    }

    /// Reads what came to the log, which has `size` bytes, since the last time.
    pub(super) fn read_new_lines(&mut self, size: u64) -> io::Result<()> {
        let (log, mut read) = (Arc::clone(&self.log), self.read);
        let applied = read_lines(&log, size, &mut read, |line, position| self.apply_line(line, position));
        self.read = read;
        applied
    }

    /// Whether a change has no outcome yet.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A part of the log, as far as it goes.
    fn read_range(&self, part: Range<u64>) -> io::Result<Vec<u8>> {
        read_range(&self.log, part)
    }

    fn apply_line(&mut self, line: JournalLine, position: Range<u64>) -> io::Result<()> {
        match line {
            JournalLine::Intent(change) => self.begin(change, position)?,
            JournalLine::Done { change } => {
                let keeps_first = self.mark_done(&change);
                self.update(&change, |indexed| {
                    indexed.status = ChangeStatus::Done;
                    indexed.keeps_original |= keeps_first;
                });
                for undone in self.undoes(&change) {
                    self.set_undone(&undone, Some(&change));
                    // Undoing an undo makes the changes it undid live again.
                    for again in self.undoes(&undone) {
                        self.set_undone(&again, None);
                    }
                    self.keep_later_versions(&undone);
                }
                self.resolve_shared_images(&change)?;
            }
            JournalLine::Void { change } => {
                _ = self.positions_by_id.get(&change).and_then(|position| self.pending.remove(&position));
                self.update(&change, |indexed| indexed.status = ChangeStatus::Void);
            }
            JournalLine::Evicted { change } => self.update(&change, |indexed| indexed.evicted = true),
        }
        Ok(())
    }

    /// A change was made. True where it keeps something that its session did not make.
    fn mark_done(&mut self, change: &str) -> bool {
        let Some(position) = self.positions_by_id.get(change) else { return false };
        let Some(effects) = self.pending.remove(&position) else { return false };
        let is_undo = self.undo_links.get(&position).is_some_and(|ties| !ties.undoes.is_empty());
        let session =
            self.entries.get(position as usize).and_then(|indexed| self.sessions.get_mut(indexed.session as usize));
        session.is_some_and(|session| session.record_effects(&effects, is_undo))
    }

    fn begin(&mut self, change: JournalChange, line: Range<u64>) -> io::Result<()> {
        let number = |many: usize| u32::try_from(many).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge));
        let session = match self.numbers.get(change.session.as_str()) {
            Some(session) => *session,
            None => {
                let session = number(self.sessions.len())?;
                self.sessions.push(JournalSession::default());
                self.numbers.insert(change.session.as_str().into(), session);
                session
            }
        };
        if let (Some(known), Ok(at)) = (self.sessions.get_mut(session as usize), humantime::parse_rfc3339(&change.at)) {
            known.last_change = known.last_change.max(Some(at));
        }
        self.newest.observe(change.sequence());
        // An intent that reserved a staging name is followed by the one of the change itself.
        let reserved = self.positions_by_id.get(&change.change).filter(|position| self.pending.contains_key(position));
        let position = reserved.map_or_else(|| number(self.entries.len()), Ok)?;
        self.positions_by_id.insert(&change.change, position);
        let entry = JournalEntry::new(change);
        let indexed = IndexedChange {
            start: line.start,
            length: u32::try_from(line.end - line.start).map_err(|_| io::ErrorKind::FileTooLarge)?,
            session,
            cost: entry.cost(),
            status: entry.status,
            evicted: false,
            is_undone: false,
            keeps_original: false,
        };
        match self.entries.get_mut(position as usize) {
            Some(reserved) => *reserved = indexed,
            None => self.entries.push(indexed),
        }
        self.pending.insert(position, entry.change.effects.clone().into());
        if entry.is_undo() {
            self.undo_links.insert(position, UndoLinks { undoes: entry.change.undoes.into(), ..UndoLinks::default() });
        }
        Ok(())
    }

    fn set_undone(&mut self, change: &str, by: Option<&str>) {
        let Some(position) = self.positions_by_id.get(change) else { return };
        match by {
            Some(by) => self.undo_links.entry(position).or_default().undone_by = Some(by.to_owned()),
            None => {
                if let Some(ties) = self.undo_links.get_mut(&position) {
                    ties.undone_by = None;
                }
            }
        }
        self.update(change, |indexed| indexed.is_undone = by.is_some());
    }

    /// The later changes of a session keep their pre-images: what they displaced was made by a change that is not undone
    /// with them any more.
    fn keep_later_versions(&mut self, undone: &str) {
        let Some(position) = self.positions_by_id.get(undone) else { return };
        let mut later = self.entries.iter_mut().skip(position as usize);
        let Some(session) = later.next().map(|indexed| indexed.session) else { return };
        later.filter(|indexed| indexed.session == session).for_each(|indexed| indexed.keeps_original = true);
    }

    /// Finds the images of an undo that belong to the changes it undid.
    fn resolve_shared_images(&mut self, change: &str) -> io::Result<()> {
        let Some(position) = self.positions_by_id.get(change).filter(|_| !self.undoes(change).is_empty()) else {
            return Ok(());
        };
        let Some(mut entry) = self.find(change)? else { return Ok(()) };
        entry.shared = self.shared_images(&entry);
        let cost = entry.cost();
        self.undo_links.entry(position).or_default().shared = entry.shared;
        self.update(change, |indexed| indexed.cost = cost);
        Ok(())
    }

    pub(super) fn indexed(&self, change: &str) -> Option<&IndexedChange> {
        self.entries.get(self.positions_by_id.get(change)? as usize)
    }

    /// All of a change, if there is one of that name.
    pub(super) fn find(&self, change: &str) -> io::Result<Option<JournalEntry>> {
        let position = self.positions_by_id.get(change).map(|position| position as usize);
        position.filter(|position| *position < self.entries.len()).map(|position| self.load(position)).transpose()
    }

    /// Loads all of the change at a position, with the parts that only the log has.
    pub(super) fn load(&self, position: usize) -> io::Result<JournalEntry> {
        let indexed = self.entries.get(position).ok_or(io::ErrorKind::InvalidData)?;
        let line: JournalLine = serde_json::from_slice(&self.read_range(indexed.log_range())?)?;
        let JournalLine::Intent(change) = line else { return Err(io::ErrorKind::InvalidData.into()) };
        let ties = u32::try_from(position).ok().and_then(|position| self.undo_links.get(&position));
        let undone_by = ties.and_then(|ties| ties.undone_by.clone());
        let shared = ties.map(|ties| ties.shared.clone()).unwrap_or_default();
        Ok(JournalEntry { change, status: indexed.status, evicted: indexed.evicted, undone_by, shared })
    }

    /// Positions of the changes that were not rolled back.
    pub(super) fn committed(&self) -> Vec<usize> {
        let all = self.entries.iter().enumerate();
        all.filter(|(_, indexed)| indexed.status != ChangeStatus::Void).map(|(position, _)| position).collect()
    }

    /// Positions of the changes that the one at this position undid.
    pub(super) fn undone_changes(&self, position: usize) -> impl Iterator<Item = usize> {
        let ties = u32::try_from(position).ok().and_then(|position| self.undo_links.get(&position));
        let undone = ties.into_iter().flat_map(|ties| ties.undoes.iter());
        undone
            .filter_map(|change| self.positions_by_id.get(change))
            .filter_map(|position| usize::try_from(position).ok())
    }

    fn undoes(&self, change: &str) -> Vec<String> {
        let ties = self.positions_by_id.get(change).and_then(|position| self.undo_links.get(&position));
        ties.map(|ties| ties.undoes.to_vec()).unwrap_or_default()
    }

    /// The images of a change that belong to another one which holds: each is called after its owner.
    fn shared_images(&self, entry: &JournalEntry) -> Box<[String]> {
        let is_shared = |image: &&str| {
            image_owner(image)
                .filter(|owner| *owner != entry.change.change)
                .and_then(|owner| self.indexed(owner))
                .is_some_and(IndexedChange::is_live)
        };
        entry.all_images().filter(is_shared).map(str::to_owned).collect()
    }

    /// Positions of a change, and of those whose pre-images it shares.
    pub(super) fn positions_sharing(&self, change: &str) -> Vec<usize> {
        let position = self.positions_by_id.get(change);
        let shared =
            position.and_then(|position| self.undo_links.get(&position)).map(|ties| &*ties.shared).unwrap_or_default();
        let owners = shared.iter().filter_map(|image| self.positions_by_id.get(image_owner(image)?));
        position.into_iter().chain(owners).map(|position| position as usize).collect()
    }

    /// Positions of changes.
    pub(super) fn positions<'a>(&self, changes: impl Iterator<Item = &'a str>) -> Vec<usize> {
        changes.filter_map(|change| self.positions_by_id.get(change)).map(|position| position as usize).collect()
    }

    /// Whether an undo has one of these images, which may be named after another change. For other changes the names
    /// suffice, and reading every line of a long log takes its time.
    pub(super) fn holds_image_for_other(&self, position: usize, images: &BTreeSet<String>) -> io::Result<bool> {
        let is_undo = self.undone_changes(position).next().is_some();
        Ok(is_undo && self.load(position)?.images().iter().any(|image| images.contains(image)))
    }

    fn update(&mut self, change: &str, how: impl FnOnce(&mut IndexedChange)) {
        let position = self.positions_by_id.get(change);
        let Some(indexed) = position.and_then(|position| self.entries.get_mut(position as usize)) else { return };
        let before = indexed.quota_bytes();
        how(indexed);
        let after = indexed.quota_bytes();
        if let Some(session) = self.sessions.get_mut(indexed.session as usize) {
            session.quota_bytes = session.quota_bytes.saturating_sub(before).saturating_add(after);
        }
        self.total_quota_bytes = self.total_quota_bytes.saturating_sub(before).saturating_add(after);
    }

    /// Size of the pre-images of a session, as the quota counts it.
    pub(super) fn session_quota_bytes(&self, session: &str) -> u64 {
        let number = self.numbers.get(session).and_then(|number| self.sessions.get(*number as usize));
        number.map_or(0, |session| session.quota_bytes)
    }

    pub(super) fn belongs_to(&self, indexed: &IndexedChange, session: &str) -> bool {
        self.numbers.get(session) == Some(&indexed.session)
    }

    /// Whether the pre-images of a change may be evicted to make room for a session without approval. Of its own those
    /// are versions of a path that it wrote between the first one and the current one.
    pub(super) fn is_evictable(&self, indexed: &IndexedChange, session: &str) -> bool {
        (self.belongs_to(indexed, session) && !indexed.keeps_original) || self.is_session_over(indexed)
    }

    /// Size of the pre-images of a session that may not be evicted, as the quota counts it.
    pub(super) fn unevictable_bytes(&self, session: &str, freed: &[usize]) -> u64 {
        let stays = |position: &usize, indexed: &IndexedChange| {
            self.belongs_to(indexed, session) && !self.is_evictable(indexed, session) && !freed.contains(position)
        };
        let entries = self.entries.iter().enumerate().filter(|(position, indexed)| stays(position, indexed));
        entries.map(|(_, indexed)| indexed.quota_bytes()).fold(0, u64::saturating_add)
    }

    /// Whether the session of a change is over.
    pub(super) fn is_session_over(&self, indexed: &IndexedChange) -> bool {
        let last = self.sessions.get(indexed.session as usize).and_then(|session| session.last_change);
        last.is_some_and(|at| at.elapsed().is_ok_and(|age| age > SESSION_EXPIRY))
    }

    /// A change as lines of a log.
    pub(super) fn lines(&self, position: usize) -> io::Result<Vec<u8>> {
        let indexed = self.entries.get(position).ok_or(io::ErrorKind::InvalidData)?;
        let mut bytes = self.read_range(indexed.log_range())?;
        if indexed.status == ChangeStatus::Pending && !indexed.evicted {
            return Ok(bytes);
        }
        let JournalLine::Intent(settled) = serde_json::from_slice(&bytes)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let change = settled.change.clone();
        if !settled.steps.is_empty() {
            bytes = serde_json::to_vec(&JournalLine::Intent(JournalChange { steps: Vec::new(), ..settled }))?;
            bytes.push(b'\n');
        }
        let ends = (indexed.status == ChangeStatus::Done).then(|| JournalLine::Done { change: change.clone() });
        for line in ends.into_iter().chain(indexed.evicted.then_some(JournalLine::Evicted { change })) {
            serde_json::to_writer(&mut bytes, &line)?;
            bytes.push(b'\n');
        }
        Ok(bytes)
    }
}

/// Passes every complete line of a log from the offset `read` on, with its position, and moves `read` behind it. A line
/// without its end is not there yet; a record of a newer version, which cannot be understood, is `Unsupported`.
pub(super) fn read_lines(
    log: &OwnedFd,
    size: u64,
    read: &mut u64,
    mut apply: impl FnMut(JournalLine, Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut wanted = CHUNK;
    while *read < size {
        let end = size.min(read.saturating_add(wanted));
        let bytes = read_range(log, *read..end)?;
        let before = *read;
        for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            let end = *read + line.len() as u64;
            match serde_json::from_slice(line) {
                Ok(record) => apply(record, *read..end)?,
                Err(_) if is_record(line) => return Err(io::ErrorKind::Unsupported.into()),
                // Bytes that a power cut left say nothing.
                Err(_) => {}
            }
            *read = end;
        }
        if *read == before {
            if end == size {
                break;
            }
            // The next line is longer than that.
            wanted = wanted.saturating_mul(2);
        }
    }
    Ok(())
}

fn read_range(log: &OwnedFd, part: Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(part.end.saturating_sub(part.start)).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        match pread(log, &mut bytes[filled..], part.start + filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Whether a line is a record, of whatever kind.
fn is_record(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct RecordKind {
        #[serde(rename = "record")]
        _kind: String,
    }
    serde_json::from_slice::<RecordKind>(line).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{ChangeIdMap, IndexedChange, digits};

    #[test]
    fn minted_and_foreign_change_ids_are_distinct() {
        let minted = ["c-00000000000000000000", "c-0123456789abcdefffff"];
        let others = ["c-0123456789ABCDEFFFFF", "c-012", "n-0123456789abcdefffff", "", "c-0123456789abcdeffff\u{e9}"];
        assert!(minted.iter().all(|name| digits(name).is_some()) && others.iter().all(|name| digits(name).is_none()));
        let mut positions = ChangeIdMap::default();
        for (position, name) in (0..).zip(minted.iter().chain(&others)) {
            positions.insert(name, position);
        }
        for (position, name) in (0..).zip(minted.iter().chain(&others)) {
            assert_eq!(positions.get(name), Some(position), "{name}");
        }
        assert_eq!(positions.get("c-0123456789abcdeffffe"), None);
    }

    #[test]
    fn a_change_takes_little_memory() {
        assert!(size_of::<IndexedChange>() <= 32 && size_of::<([u8; 10], u32)>() <= 16);
    }
}
