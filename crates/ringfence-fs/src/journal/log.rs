//! Journal log on disk: one line for an intent, and one for its outcome.
//!
//! Several processes append to it under a lock. A torn line, left by a writer that crashed, is dropped by the next
//! append. A log that became long is compacted into a new file that replaces it; processes that have the old one open
//! switch over.
//!
//! Not here: what is remembered of it (`index.rs`), and pre-images (`images.rs`).

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::SystemTime;

use ringfence_kernel::CallLimits;
use ringfence_kernel::sync::Mutex;
use ringfence_sys::commit_log::{CommitLog, CoveredFile, PendingFlush};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::journal::checkpoint::{INTERVAL_BYTES, JournalCheckpoint, LogTail};
use crate::journal::images::PreImageStore;
use crate::journal::index::{IndexedChange, JournalIndex, read_lines};
use crate::journal::line::{
    ChangeSequenceCounter, ChangeStatus, JournalChange, JournalEntry, JournalLine, image_owner, millis,
};
use crate::lock::StateVersionCheck;
use crate::root::stat;
use crate::sys::file_ref::InodeIdentity;
use crate::sys::own_files::{SAFE_OPEN, acquire_lock, release_lock, write_all};
use crate::sys::stat::{FileId, FileStat};
use crate::sys::syscall::{fdatasync, fstat, fsync, openat, pread, renameat, unlinkat};

const LOG: &str = "log";
const LOCK: &str = "lock";
const IMAGE_STORE_FILE: &str = "keep";

/// A longer log is compacted, to at most this number of changes.
const MAX_LOG_BYTES: u64 = 16 << 20;
const MOST_CHANGES: usize = 10_000;

/// So much has to come to a long log before it is looked once more whether it can be shorter.
const COMPACTION_STEP: u64 = MAX_LOG_BYTES / 4;

/// A flush of the log that is under way.
#[derive(Debug)]
pub(crate) enum IntentFlush {
    /// Of the log itself, when it is waited for.
    Own(CoveredFile),
    /// Of the redo log, together with the audit log and other journals.
    Shared(PendingFlush),
}

impl IntentFlush {
    /// Waits until the intent, and everything before it in the log, is on disk.
    pub(crate) fn wait(self) -> io::Result<()> {
        match self {
            Self::Own(log) => Ok(fdatasync(log.fd())?),
            Self::Shared(flush) => flush.wait(),
        }
    }
}

/// A line that was appended to the log.
struct AppendedLine {
    log: CoveredFile,
    /// Offset of its end.
    end: u64,
}

/// The journal of one mount.
pub(crate) struct Journal {
    /// Its directory, below the state directory.
    log_path: PathBuf,
    directory: OwnedFd,
    commit_log: Option<Arc<CommitLog>>,
    lock: OwnedFd,
    version: StateVersionCheck,
    index: Mutex<JournalIndex>,
    clock: Arc<ChangeSequenceCounter>,
    /// Log size at which it is compacted next.
    compact_at: AtomicU64,
    image_store: Mutex<Option<InodeIdentity>>,
    /// The image store was made by this process, and git does not know it yet.
    pub(super) is_store_new: AtomicBool,
    /// The image store, once it was opened.
    pub(super) open_store: Mutex<Option<PreImageStore>>,
    last_checkpoint: Mutex<JournalCheckpoint>,
}

impl Journal {
    /// Opens the journal in a directory of our own, and makes it if there is none. `Unsupported` if it is of a newer
    /// version.
    pub(crate) fn open(
        path: PathBuf,
        directory: OwnedFd,
        newest: &Arc<ChangeSequenceCounter>,
        commit_log: Option<Arc<CommitLog>>,
    ) -> io::Result<Self> {
        let version = StateVersionCheck::default();
        version.check(directory.as_fd())?;
        let (lock, log) = (open_private_file(&directory, LOCK)?, open_private_file(&directory, LOG)?);
        let (known, long) = (Mutex::new(JournalIndex::new(log, newest)), AtomicU64::new(MAX_LOG_BYTES));
        Ok(Self {
            log_path: path.join(LOG),
            directory,
            commit_log,
            lock,
            version,
            index: known,
            clock: Arc::clone(newest),
            compact_at: long,
            image_store: Mutex::default(),
            is_store_new: AtomicBool::new(false),
            open_store: Mutex::default(),
            last_checkpoint: Mutex::default(),
        })
    }

    /// The time of a change that is made now, and its sequence number where that differs.
    pub(crate) fn next_timestamp(&self) -> (String, Option<u64>) {
        let now = SystemTime::now();
        let (time, sequence) = (millis(now), self.clock.next(millis(now)));
        (humantime::format_rfc3339_millis(now).to_string(), Some(sequence).filter(|sequence| *sequence != time))
    }

    /// Every change, the oldest first.
    pub(crate) fn entries(&self) -> io::Result<Vec<JournalEntry>> {
        let known = self.current_index()?;
        (0..known.entries.len()).map(|position| known.load(position)).collect()
    }

    /// Whether crashed processes may have left something to settle, or the log is long: then it has to be read whole.
    /// Reads no more than what came to it since the last checkpoint.
    pub(crate) fn needs_recovery(&self) -> io::Result<bool> {
        let log = Arc::clone(&self.lock_index().log);
        let checkpoint = JournalCheckpoint::load(&self.directory, &log)?;
        let mut tail = LogTail { newest: checkpoint.newest, ..LogTail::default() };
        let mut end = checkpoint.offset;
        let size = FileStat::from_stat(&fstat(&log)?).size;
        read_lines(&log, size, &mut end, |line, _| {
            tail.apply(line);
            Ok(())
        })?;
        self.clock.observe(tail.newest);
        let is_settled = tail.pending.is_empty() && !tail.has_evictions;
        if is_settled && end < MAX_LOG_BYTES && end >= checkpoint.offset + INTERVAL_BYTES {
            // Without it, the next start reads more.
            let _ = JournalCheckpoint { offset: end, newest: tail.newest, ..checkpoint }.store(&self.directory);
        }
        // One that was long at the last checkpoint could not be compacted then.
        Ok(!is_settled || (end >= MAX_LOG_BYTES && checkpoint.offset < MAX_LOG_BYTES))
    }

    /// Writes a checkpoint now and then, if no change is under way. Called after what was evicted is deleted.
    pub(crate) fn checkpoint(&self) {
        let mut known = self.lock_index();
        let Ok(inode) = known.identify(&self.log_path).map(|log| log.id.inode) else { return };
        let mut last = self.last_checkpoint.lock();
        if last.inode == inode && known.read < last.offset + INTERVAL_BYTES || known.has_pending() {
            return;
        }
        let checkpoint = JournalCheckpoint { inode, offset: known.read, newest: self.clock.newest() };
        if checkpoint.store(&self.directory).is_ok() {
            *last = checkpoint;
        }
    }

    /// Changes without an outcome, or with images that are still to be evicted.
    pub(crate) fn unresolved(&self) -> io::Result<Vec<JournalEntry>> {
        let known = self.current_index()?;
        let all = known.entries.iter().enumerate();
        let left = all.filter(|(_, indexed)| indexed.status == ChangeStatus::Pending || indexed.evicted);
        left.map(|(position, _)| known.load(position)).collect()
    }

    pub(crate) fn entry(&self, change: &str) -> io::Result<Option<JournalEntry>> {
        self.current_index()?.find(change)
    }

    /// The index, up to date with the log.
    fn current_index(&self) -> io::Result<MutexGuard<'_, JournalIndex>> {
        let mut known = self.lock_index();
        let size = self.refresh(&mut known)?;
        known.read_new_lines(size)?;
        Ok(known)
    }

    /// This thread alone. The lock is between processes: two threads of one would both have it.
    fn lock_index(&self) -> MutexGuard<'_, JournalIndex> {
        self.index.lock()
    }

    /// Switches to the current log file: compaction replaces it. Returns its size.
    fn refresh(&self, known: &mut JournalIndex) -> io::Result<u64> {
        let open_id = known.identify(&self.log_path)?.id;
        match stat(self.directory.as_fd(), LOG.as_bytes())? {
            Some(now) if now.id == open_id => Ok(now.size),
            _ => {
                *known = JournalIndex::new(open_private_file(&self.directory, LOG)?, &self.clock);
                known.identify(&self.log_path)?;
                Ok(FileStat::from_stat(&fstat(&known.log)?).size)
            }
        }
    }

    /// Writes an intent, and starts to put it on disk. `Unsupported` if a newer version has written to the journal.
    pub(crate) fn log_intent(&self, change: JournalChange) -> io::Result<IntentFlush> {
        self.begin_flush(&self.append(JournalLine::Intent(change))?)
    }

    /// Writes the outcome of a change, which a newer version does not prevent. It is on disk with the next intent.
    pub(crate) fn log_outcome(&self, outcome: JournalLine) -> io::Result<()> {
        self.append(outcome).map(drop)
    }

    /// The same, on disk when this returns.
    pub(crate) fn log_outcome_durably(&self, outcome: JournalLine) -> io::Result<()> {
        self.begin_flush(&self.append(outcome)?)?.wait()
    }

    /// Starts a flush of the log up to the end of a line.
    fn begin_flush(&self, line: &AppendedLine) -> io::Result<IntentFlush> {
        let Some(commit_log) = &self.commit_log else { return Ok(IntentFlush::Own(line.log.clone())) };
        commit_log.cover(&line.log, line.end)?;
        Ok(IntentFlush::Shared(commit_log.begin_flush()))
    }

    fn append(&self, line: JournalLine) -> io::Result<AppendedLine> {
        let mut bytes = serde_json::to_vec(&line)?;
        bytes.push(b'\n');
        let mut known = self.lock_index();
        acquire_lock(&self.lock)?;
        let written = self.refresh(&mut known).and_then(|size| {
            if matches!(line, JournalLine::Intent(_)) {
                self.version.check(self.directory.as_fd())?;
                known.read_new_lines(size)?;
            }
            known.write(line, &bytes, size)
        });
        release_lock(&self.lock);
        written.and_then(|end| Ok(AppendedLine { log: known.identify(&self.log_path)?.file.clone(), end }))
    }

    /// Whether the log, as it was last read, is long enough to compact.
    pub(crate) fn needs_compaction(&self) -> bool {
        self.lock_index().read >= self.compact_at.load(Ordering::Relaxed)
    }

    /// Lets go what the oldest changes keep, of a log that became long. Those of a session that is not over stay.
    pub(crate) fn evict_expired(&self) -> Vec<String> {
        let Ok(known) = self.current_index() else { return Vec::new() };
        let mut old = known.committed();
        old.truncate(old.len().saturating_sub(MOST_CHANGES));
        let over = |indexed: &IndexedChange| indexed.quota_bytes() > 0 && known.is_session_over(indexed);
        let going = old.into_iter().filter(|position| known.entries.get(*position).is_some_and(over));
        let going = going.filter_map(|position| known.load(position).ok()).collect();
        drop(known);
        self.evict(going)
    }

    /// Compacts the log: drops rolled-back changes and the oldest. One whose images still exist stays, because their
    /// owner would be unknown otherwise. Only under the tree lock: an undo reads what may be dropped here.
    pub(crate) fn compact(&self, kept: &BTreeSet<String>) -> io::Result<()> {
        let mut known = self.lock_index();
        acquire_lock(&self.lock)?;
        let written = self.refresh(&mut known).and_then(|size| self.compact_locked(&mut known, size, kept));
        release_lock(&self.lock);
        let length = written.as_ref().map_or(known.read, |length| *length);
        self.compact_at.store(MAX_LOG_BYTES.max(length.saturating_add(COMPACTION_STEP)), Ordering::Relaxed);
        written.map(drop)
    }

    /// Compacts under the log's lock. Returns the new size of the log.
    fn compact_locked(&self, known: &mut JournalIndex, size: u64, kept: &BTreeSet<String>) -> io::Result<u64> {
        const NEW: &str = "log.new";
        known.read_new_lines(size)?;
        // Another process was faster.
        if known.read < MAX_LOG_BYTES {
            return Ok(known.read);
        }
        let made = known.committed();
        let old = made.len().saturating_sub(MOST_CHANGES);
        let (mut bytes, mut staying) = (Vec::new(), BTreeSet::new());
        let keeping: BTreeSet<usize> =
            known.positions(kept.iter().filter_map(|image| image_owner(image))).into_iter().collect();
        for (index, position) in made.into_iter().enumerate() {
            let Some(indexed) = known.entries.get(position) else { continue };
            // An undo of a change that stays does so too, or that change would change its state.
            let undoes_kept = || known.undone_changes(position).any(|undone| staying.contains(&undone));
            let stays =
                index >= old || indexed.status == ChangeStatus::Pending || indexed.quota_bytes() > 0 || undoes_kept();
            if stays || keeping.contains(&position) || known.holds_image_for_other(position, kept)? {
                bytes.extend_from_slice(&known.lines(position)?);
                staying.insert(position);
            }
        }
        // Where little would be dropped, compaction would repeat with every append.
        if bytes.len() as u64 > known.read / 4 * 3 {
            return Ok(known.read);
        }
        let _ = unlinkat(&self.directory, NEW, AtFlags::empty());
        let new = open_private_file(&self.directory, NEW)?;
        write_all(new.as_fd(), &bytes)?;
        fdatasync(&new)?;
        renameat(&self.directory, NEW, &self.directory, LOG)?;
        // Later appends to the new log are on disk only if its name is.
        fsync(&self.directory)?;
        Ok(bytes.len() as u64)
    }

    /// Whether the image store with this identity is ours.
    pub(crate) fn is_owner(&self, found: InodeIdentity) -> Result<bool, Errno> {
        let mut keep = self.image_store.lock();
        if !keep.is_some_and(|ours| is_same_inode(ours, found)) {
            // Another process may have made a new one.
            *keep = self.read_identity()?;
        }
        Ok(keep.is_some_and(|ours| is_same_inode(ours, found)))
    }

    /// Whether it was written down when it was made. Earlier versions did not.
    pub(crate) fn has_birth_time(&self) -> bool {
        let mut keep = self.image_store.lock();
        if keep.is_none_or(|keep| keep.birth_time.is_none()) {
            *keep = self.read_identity().unwrap_or_default();
        }
        keep.is_some_and(|keep| keep.birth_time.is_some())
    }

    fn read_identity(&self) -> Result<Option<InodeIdentity>, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN;
        let file = match openat(&self.directory, IMAGE_STORE_FILE, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file?,
        };
        let mut text = [0u8; 128];
        let length = pread(&file, &mut text, 0)?;
        Ok(std::str::from_utf8(&text[..length]).ok().and_then(|line| parse_identity(line.trim_end())))
    }

    /// Writes down which keep is ours.
    pub(crate) fn record_ownership(&self, keep: InodeIdentity) -> io::Result<()> {
        const NEW: &str = "keep.new";
        let _alone = self.lock_index();
        acquire_lock(&self.lock)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | SAFE_OPEN;
        let written = openat(&self.directory, NEW, flags, Mode::RUSR | Mode::WUSR).and_then(|file| {
            write_all(file.as_fd(), identity_line(keep).as_bytes())?;
            fdatasync(&file)?;
            renameat(&self.directory, NEW, &self.directory, IMAGE_STORE_FILE)
        });
        release_lock(&self.lock);
        Ok(written?)
    }

    /// Whether this much more fits into the quota of a session after evictions that need no approval. The pre-images of
    /// the `freed` changes do not count: they are about to be undone.
    pub(crate) fn has_room(
        &self,
        bytes: u64,
        session: &str,
        freed: &[String],
        limits: &CallLimits,
    ) -> io::Result<bool> {
        let known = self.current_index()?;
        let freed = known.positions(freed.iter().map(String::as_str));
        let most = limits.undo_session_bytes;
        if known.session_quota_bytes(session).saturating_add(bytes) > most
            && known.unevictable_bytes(session, &freed).saturating_add(bytes) > most
        {
            return Ok(false);
        }
        let going =
            freed.iter().filter_map(|position| known.entries.get(*position)).map(IndexedChange::quota_bytes).sum();
        if known.total_quota_bytes.saturating_sub(going).saturating_add(bytes) <= limits.undo_bytes {
            return Ok(true);
        }
        let stays = known.entries.iter().enumerate().filter(|(position, indexed)| {
            indexed.quota_bytes() > 0 && !known.is_evictable(indexed, session) && !freed.contains(position)
        });
        Ok(stays.map(|(_, indexed)| indexed.quota_bytes()).sum::<u64>().saturating_add(bytes) <= limits.undo_bytes)
    }

    /// Says which of the oldest pre-images go for a change that was just made, until those of its session, and those of all,
    /// are no more than they may be. Its own stay, those of another session until that is over, and every one that the
    /// session did not make itself.
    pub(crate) fn make_room(&self, change: &str, session: &str, limits: &CallLimits) -> Vec<String> {
        let is_over = |known: &JournalIndex| {
            known.session_quota_bytes(session) > limits.undo_session_bytes
                || known.total_quota_bytes > limits.undo_bytes
        };
        // An index that has this outcome has every line before it. Later ones are for the processes that log them.
        let is_indexed =
            |known: &JournalIndex| known.indexed(change).is_some_and(|indexed| indexed.status == ChangeStatus::Done);
        let known = self.lock_index();
        if is_indexed(&known) && !is_over(&known) {
            return Vec::new();
        }
        drop(known);
        let Ok(known) = self.current_index() else { return Vec::new() };
        let mut of_session = known.session_quota_bytes(session);
        let mut of_all = known.total_quota_bytes;
        if !is_over(&known) {
            return Vec::new();
        }
        let stay = known.positions_sharing(change);
        let mut going: Vec<JournalEntry> = Vec::new();
        for (position, indexed) in known.entries.iter().enumerate().filter(|(_, indexed)| indexed.quota_bytes() > 0) {
            let own = known.belongs_to(indexed, session);
            let too_much = of_all > limits.undo_bytes || (own && of_session > limits.undo_session_bytes);
            if !stay.contains(&position) && too_much && known.is_evictable(indexed, session) {
                // An image that cannot be read now stays, and the next one is evicted instead.
                let Ok(entry) = known.load(position) else { continue };
                of_all = of_all.saturating_sub(indexed.quota_bytes());
                of_session = of_session.saturating_sub(if own { indexed.quota_bytes() } else { 0 });
                going.push(entry);
            }
        }
        drop(known);
        self.evict(going)
    }

    /// Says that what a change keeps goes, because a person agreed to that.
    pub(crate) fn evict_change(&self, change: &str) -> Vec<String> {
        let Ok(known) = self.current_index() else { return Vec::new() };
        let going =
            known.positions_sharing(change).into_iter().filter_map(|position| known.load(position).ok()).collect();
        drop(known);
        self.evict(going)
    }

    /// Logged first, then deleted: every image that is listed exists.
    fn evict(&self, going: Vec<JournalEntry>) -> Vec<String> {
        let said = |entry: &JournalEntry| {
            self.log_outcome(JournalLine::Evicted { change: entry.change.change.clone() }).is_ok()
        };
        going.into_iter().filter(said).flat_map(|entry| entry.images()).collect()
    }
}

/// An inode is given out again when its directory is gone; another one was made at another time.
fn is_same_inode(ours: InodeIdentity, found: InodeIdentity) -> bool {
    let born_apart = matches!((ours.birth_time, found.birth_time), (Some(then), Some(now)) if then != now);
    ours.id == found.id && !born_apart
}

fn identity_line(InodeIdentity { id, birth_time: born }: InodeIdentity) -> String {
    let born = born.map_or_else(String::new, |born| format!(":{born}"));
    format!("{:x}-{:x}{born}\n", id.device, id.inode)
}

fn parse_identity(line: &str) -> Option<InodeIdentity> {
    let (id, born) = line.split_once(':').map_or((line, None), |(id, born)| (id, Some(born)));
    let (device, inode) = id.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let born = born.map(str::parse).transpose().ok()?;
    Some(InodeIdentity { id: FileId { device: hex(device)?, inode: hex(inode)? }, birth_time: born })
}

fn open_private_file(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | SAFE_OPEN;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}
