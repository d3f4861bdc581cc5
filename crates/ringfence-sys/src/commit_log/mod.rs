//! Redo log with group commit: one flush for appends to several files.
//!
//! The audit log and the journals are append-only files below the state directory, appended to by several processes
//! under locks of their own, and not flushed by them. Instead, a process copies the bytes that are not known to be durable
//! to its redo log, and one fdatasync of that makes them durable together; calls that wait at the same time share it.
//! Opening replays the logs of processes that ended: files get back the bytes that a power cut took.
//!
//! The guarantee: when `PendingFlush::wait` returns without an error, every byte of a file up to an end that was passed to
//! `cover` before the flush began is in that file after a power cut, once a `CommitLog` has been opened on the state directory. So
//! it is opened before the files are read or appended to. What owners of files must keep: bytes up to a covered end are not
//! changed or removed, and are not zero; an incomplete line is dropped durably (`own_files::truncate_durably`) before the next
//! append, or a power cut could bring it back in the place of a record; and a file that replaces another is durable with its
//! name first.
//!
//! Each process has a slot (`commit-log/0`, `1`, …) while it lives. The next process continues the slot as it is, so that
//! a command that ends at once costs no flush for it. A slot that is full is recycled after a flush of the files.
//!
//! Versions without a redo log may append to the same files, and flush by themselves. That is harmless: their bytes are
//! copied with the next record, and after a power cut that they saw first, records that no longer continue a file are
//! skipped, because each begins with bytes that the file must have before it.
//!
//! A failed flush fails every call that waits for it, and its slot is not trusted again: the page cache may show bytes
//! that the disk does not have. The next flush makes the files durable directly, and begins a new generation of the slot. A
//! failed flush of a file itself cannot be made good; the log refuses every later flush until the process starts again.
//!
//! Not here: what the files contain, and their locks.

mod replay;
mod slot;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use self::replay::{open_covered, replay};
use self::slot::{LoadedSlot, RedoFileKey, RedoRecord, RedoSlot, is_below, read_at};
use crate::own_files::{acquire_lock, names_in, open_own_file, open_private_dir, open_state};
use crate::stat::FileStat;
use crate::syscall::{fdatasync, flock, fstat, fsync};

/// Directory of the log, below the state directory.
const DIRECTORY: &str = "commit-log";

/// Held while slots are taken and replayed.
const LOCK: &str = "lock";

/// A longer tail is flushed with its file instead of being copied.
const MAX_TAIL_BYTES: u64 = 256 << 10;

/// Bytes before a record's own that show where it belongs.
const CONTEXT_BYTES: usize = 128;

/// The redo log of this process.
pub struct CommitLog {
    shared: Arc<CommitLogShared>,
    /// Starts with the first flush, and ends with this log.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl CommitLog {
    /// Opens the redo log below the state directory, after a replay of every log whose process ended.
    pub fn open(state: &Path) -> io::Result<Arc<Self>> {
        Self::with_sync(state, Box::new(|fd| fdatasync(fd)))
    }

    fn with_sync(state: &Path, sync: SyncCall) -> io::Result<Arc<Self>> {
        let writer = RedoWriter::open(state, sync)?;
        let shared = CommitLogShared {
            queue: Mutex::new(FlushQueue::default()),
            wake: Condvar::new(),
            writer: Mutex::new(writer),
        };
        Ok(Arc::new(Self { shared: Arc::new(shared), thread: Mutex::new(None) }))
    }

    /// Has the bytes of a file up to `end` made durable by the next flush. They must have been written. Fails where no
    /// later flush can succeed.
    pub fn cover(&self, file: &CoveredFile, end: u64) -> io::Result<()> {
        let mut queue = lock(&self.shared.queue);
        if let Some(errno) = queue.lost {
            return Err(errno.into());
        }
        let (_, covered) = queue.covers.entry(file.key.clone()).or_insert_with(|| (Arc::clone(&file.fd), 0));
        *covered = end.max(*covered);
        Ok(())
    }

    /// Starts a flush of everything that was covered so far. Calls that arrive while one is under way share the next.
    pub fn begin_flush(&self) -> PendingFlush {
        let mut queue = lock(&self.shared.queue);
        if queue.covers.is_empty() && !queue.has_failed {
            // Everything is durable, or will be with the flush that is under way.
            return PendingFlush(queue.in_flight.clone());
        }
        let group = Arc::clone(queue.next.get_or_insert_default());
        let is_idle = std::mem::take(&mut queue.is_idle);
        drop(queue);
        if let Err(errno) = self.start_thread() {
            group.finish(Err(errno));
        }
        if is_idle {
            self.shared.wake.notify_one();
        }
        PendingFlush(Some(group))
    }

    fn start_thread(&self) -> Result<(), Errno> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let named = std::thread::Builder::new().name("commit-log".to_owned());
            *thread = Some(named.spawn(move || shared.run()).map_err(|_| Errno::AGAIN)?);
        }
        Ok(())
    }
}

impl Drop for CommitLog {
    /// Ends the thread, after the flush that is under way or asked for.
    fn drop(&mut self) {
        lock(&self.shared.queue).is_closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic was reported by its thread.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for CommitLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommitLog")
    }
}

/// An append-only file, by its path below the state directory.
#[derive(Clone, Debug)]
pub struct CoveredFile {
    key: RedoFileKey,
    fd: Arc<OwnedFd>,
}

impl CoveredFile {
    /// The file at `path`, relative to the state directory, that `fd` has open for reading and writing.
    pub fn new(path: impl Into<PathBuf>, fd: Arc<OwnedFd>) -> io::Result<Self> {
        let path = path.into();
        if !is_below(&path) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a covered file is below the state directory"));
        }
        let inode = FileStat::from_stat(&fstat(&*fd)?).id.inode;
        Ok(Self { key: RedoFileKey { path, inode }, fd })
    }

    /// Its descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

/// A flush that was started.
#[must_use = "nothing is known to be durable before `wait` returns"]
#[derive(Debug)]
pub struct PendingFlush(Option<Arc<FlushGroup>>);

impl PendingFlush {
    /// Waits until everything that was covered before the flush was started is durable.
    pub fn wait(self) -> io::Result<()> {
        Ok(self.0.map_or(Ok(()), |group| group.wait())?)
    }
}

/// The calls that share a flush.
#[derive(Debug, Default)]
struct FlushGroup {
    state: Mutex<FlushGroupState>,
    is_done: Condvar,
}

#[derive(Debug, Default)]
struct FlushGroupState {
    outcome: Option<Result<(), Errno>>,
    /// A call sleeps until there is an outcome. Most come later: the flush of their contents takes longer.
    is_awaited: bool,
}

impl FlushGroup {
    fn finish(&self, result: Result<(), Errno>) {
        let mut state = lock(&self.state);
        state.outcome.get_or_insert(result);
        let is_awaited = std::mem::take(&mut state.is_awaited);
        drop(state);
        if is_awaited {
            self.is_done.notify_all();
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        loop {
            if let Some(result) = state.outcome {
                return result;
            }
            state.is_awaited = true;
            state = self.is_done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends a group even if its flush panics, so that no call waits for ever.
struct GroupGuard(Arc<FlushGroup>);

impl Drop for GroupGuard {
    fn drop(&mut self) {
        self.0.finish(Err(Errno::IO));
    }
}

struct CommitLogShared {
    queue: Mutex<FlushQueue>,
    wake: Condvar,
    writer: Mutex<RedoWriter>,
}

#[derive(Debug, Default)]
struct FlushQueue {
    /// Ends that the next flush makes durable.
    covers: HashMap<RedoFileKey, (Arc<OwnedFd>, u64)>,
    /// The group of the next flush, if a call waits for it.
    next: Option<Arc<FlushGroup>>,
    in_flight: Option<Arc<FlushGroup>>,
    /// The last flush failed: what it covered is not durable.
    has_failed: bool,
    /// A flush of a file failed: no later one can be trusted.
    lost: Option<Errno>,
    /// The thread sleeps until a call needs a flush.
    is_idle: bool,
    is_closed: bool,
}

impl CommitLogShared {
    /// Flushes group after group, until the log is closed.
    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            while queue.next.is_none() && !queue.is_closed {
                queue.is_idle = true;
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(group) = queue.next.take() else { return };
            let covers = std::mem::take(&mut queue.covers);
            queue.in_flight = Some(Arc::clone(&group));
            drop(queue);
            let group = GroupGuard(group);
            let mut writer = lock(&self.writer);
            let result = writer.flush(covers);
            let lost = writer.lost;
            drop(writer);
            let mut queue = lock(&self.queue);
            queue.in_flight = None;
            (queue.has_failed, queue.lost) = (result.is_err(), lost);
            drop(queue);
            group.0.finish(result);
        }
    }
}

/// The system call that makes a file durable. Tests replace it.
type SyncCall = Box<dyn Fn(&OwnedFd) -> Result<(), Errno> + Send + Sync>;

/// Writes the slot of this process.
struct RedoWriter {
    state: OwnedFd,
    directory: OwnedFd,
    slot: RedoSlot,
    /// The names of the slot and of its directory may not be durable.
    is_unnamed: bool,
    /// A flush of the slot failed: it must be recycled before it is used again.
    is_damaged: bool,
    /// The slot may have records of its last owner that are not durable.
    is_inherited: bool,
    /// The error of a flush of a file, which no later flush can make good.
    lost: Option<Errno>,
    files: HashMap<RedoFileKey, CoverProgress>,
    sync: SyncCall,
}

/// How far a file is durable.
#[derive(Debug, Default)]
struct CoverProgress {
    /// None for a file that only earlier owners of the slot used.
    fd: Option<Arc<OwnedFd>>,
    durable: Option<DurableEnd>,
    /// The end that the current flush makes durable.
    wanted: u64,
}

/// An end up to which a file is durable, itself or through the slot, and the bytes before it.
#[derive(Clone, Debug)]
struct DurableEnd {
    end: u64,
    context: Vec<u8>,
}

impl DurableEnd {
    /// The end of a record.
    fn of_record(record: &RedoRecord) -> Self {
        let from = record.bytes.len().saturating_sub(CONTEXT_BYTES);
        Self { end: record.end(), context: record.bytes.get(from..).unwrap_or_default().to_vec() }
    }
}

impl RedoWriter {
    fn open(state: &Path, sync: SyncCall) -> io::Result<Self> {
        let state = open_state(state)?;
        let directory = open_private_dir(&state, DIRECTORY.as_bytes())?;
        let guard = open_file(&directory, LOCK)?;
        acquire_lock(&guard)?;
        let names = names_in(directory.as_fd(), usize::MAX)?;
        let mut names: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
        names.sort_unstable();
        let mut ended = Vec::new();
        for name in names {
            ended.extend(take_slot(&directory, name)?.map(|loaded| (name, loaded)));
        }
        replay(&state, ended.iter().flat_map(|(_, loaded)| &loaded.records), &sync)?;
        let mut ended = ended.into_iter().map(|(_, loaded)| loaded);
        let own = match ended.next() {
            Some(own) => own,
            None => new_slot(&directory)?,
        };
        for mut other in ended {
            if !other.records.is_empty() && sync_files(&state, &other.records, &sync).is_ok() {
                other.slot.recycle();
                // An error leaves records that change nothing when they are replayed again.
                let _ = other.slot.append(&[]);
            }
        }
        let LoadedSlot { slot, records, has_failed, is_new } = own;
        let mut files: HashMap<RedoFileKey, CoverProgress> = HashMap::new();
        for record in records {
            files.entry(record.file.clone()).or_default().durable = Some(DurableEnd::of_record(&record));
        }
        Ok(Self {
            state,
            directory,
            slot,
            is_unnamed: is_new,
            is_damaged: has_failed,
            is_inherited: !files.is_empty(),
            lost: None,
            files,
            sync,
        })
    }

    /// Makes files durable up to the ends that were covered.
    fn flush(&mut self, covers: HashMap<RedoFileKey, (Arc<OwnedFd>, u64)>) -> Result<(), Errno> {
        if let Some(errno) = self.lost {
            return Err(errno);
        }
        let keys: Vec<RedoFileKey> = covers.keys().cloned().collect();
        for (key, (fd, end)) in covers {
            let progress = self.files.entry(key).or_default();
            (progress.fd, progress.wanted) = (Some(fd), end);
        }
        let result = if self.is_damaged { self.checkpoint() } else { self.commit(&keys) };
        self.is_damaged |= result.is_err();
        result
    }

    /// Copies the new bytes of files to the slot and flushes it; files with an unknown or a long tail are flushed themselves.
    fn commit(&mut self, keys: &[RedoFileKey]) -> Result<(), Errno> {
        let (mut records, mut direct, mut needs_slot) = (Vec::new(), Vec::new(), false);
        for key in keys {
            match self.files.get(key).map_or(Ok(UnflushedTail::Empty), |progress| progress.unflushed_tail(key))? {
                UnflushedTail::Empty => needs_slot |= self.is_inherited,
                UnflushedTail::Short(record) => records.push(record),
                UnflushedTail::Unknown => direct.push(key.clone()),
            }
        }
        if !self.slot.fits(records.iter().map(RedoRecord::encoded_bytes).sum()) {
            return self.checkpoint();
        }
        let bases = direct.iter().filter_map(|key| self.sync_file(key).transpose()).collect::<Result<Vec<_>, _>>()?;
        if needs_slot || !records.is_empty() {
            self.write_slot(&records)?;
            if let Err(errno) = (self.sync)(&self.slot.fd) {
                self.slot.mark_failed();
                return Err(errno);
            }
            self.is_inherited = false;
            for record in &records {
                if let Some(progress) = self.files.get_mut(&record.file) {
                    progress.durable = Some(DurableEnd::of_record(record));
                }
            }
        }
        self.write_bases(&bases);
        Ok(())
    }

    /// Flushes every file that the slot has bytes of, and begins a new generation.
    fn checkpoint(&mut self) -> Result<(), Errno> {
        let keys: Vec<RedoFileKey> = self.files.keys().cloned().collect();
        let used: HashSet<RedoFileKey> = keys.iter().filter(|key| self.is_open(key)).cloned().collect();
        let bases = keys.iter().filter_map(|key| self.sync_file(key).transpose()).collect::<Result<Vec<_>, _>>()?;
        self.slot.recycle();
        (self.is_damaged, self.is_inherited) = (false, false);
        // A file that was not covered since the last time is forgotten, and one that only this log has open is closed.
        self.files.retain(|key, _| used.contains(key));
        for progress in self.files.values_mut() {
            progress.fd.take_if(|fd| Arc::strong_count(fd) == 1);
        }
        self.write_bases(&bases);
        Ok(())
    }

    fn is_open(&self, key: &RedoFileKey) -> bool {
        self.files.get(key).is_some_and(|progress| progress.fd.is_some())
    }

    /// Flushes a file itself. Returns a record without new bytes, which says how far it is durable; none if it is gone.
    fn sync_file(&mut self, key: &RedoFileKey) -> Result<Option<RedoRecord>, Errno> {
        let Some(progress) = self.files.get_mut(key) else { return Ok(None) };
        if progress.fd.is_none() {
            progress.fd = open_covered(&self.state, key)?.map(Arc::new);
        }
        let Some(fd) = &progress.fd else { return Ok(None) };
        let size = FileStat::from_stat(&fstat(&**fd)?).size;
        if let Err(errno) = (self.sync)(fd) {
            self.lost = Some(errno);
            return Err(errno);
        }
        // Behind the wanted end, another process may be writing.
        let inherited = progress.durable.as_ref().filter(|_| progress.wanted == 0);
        let end = inherited.map_or(progress.wanted, |durable| durable.end).min(size);
        let start = end.saturating_sub(CONTEXT_BYTES as u64);
        let context = read_at(fd, start, usize::try_from(end - start).unwrap_or_default())?;
        let length = u16::try_from(context.len()).unwrap_or_default();
        let base = RedoRecord { file: key.clone(), offset: start, context: length, bytes: context };
        progress.durable = Some(DurableEnd::of_record(&base));
        Ok(Some(base))
    }

    /// Writes how far files are durable by themselves, for the next owner of the slot.
    fn write_bases(&mut self, bases: &[RedoRecord]) {
        if !bases.is_empty() && self.slot.fits(bases.iter().map(RedoRecord::encoded_bytes).sum()) {
            // Without them, the next owner flushes these files once more.
            let _ = self.write_slot(bases);
        }
    }

    /// Writes records to the slot. Its names are durable before it has the first one.
    fn write_slot(&mut self, records: &[RedoRecord]) -> Result<(), Errno> {
        if self.is_unnamed {
            fsync(&self.directory)?;
            fsync(&self.state)?;
            self.is_unnamed = false;
        }
        self.slot.append(records)
    }
}

/// The bytes of a file that are not durable.
enum UnflushedTail {
    Empty,
    Short(RedoRecord),
    /// Too long to copy, or not known.
    Unknown,
}

impl CoverProgress {
    fn unflushed_tail(&self, key: &RedoFileKey) -> Result<UnflushedTail, Errno> {
        let (Some(fd), Some(durable)) = (&self.fd, &self.durable) else { return Ok(UnflushedTail::Unknown) };
        if self.wanted <= durable.end {
            // A file that is shorter than it was lost bytes that were covered, and may have got others.
            let is_whole = FileStat::from_stat(&fstat(&**fd)?).size >= durable.end;
            return Ok(if is_whole { UnflushedTail::Empty } else { UnflushedTail::Unknown });
        }
        let offset = durable.end - durable.context.len() as u64;
        if self.wanted - durable.end > MAX_TAIL_BYTES {
            return Ok(UnflushedTail::Unknown);
        }
        let length = usize::try_from(self.wanted - offset).map_err(|_| Errno::FBIG)?;
        let bytes = read_at(fd, offset, length)?;
        if bytes.len() < length || !bytes.starts_with(&durable.context) {
            return Ok(UnflushedTail::Unknown);
        }
        let context = u16::try_from(durable.context.len()).map_err(|_| Errno::FBIG)?;
        Ok(UnflushedTail::Short(RedoRecord { file: key.clone(), offset, context, bytes }))
    }
}

/// Takes a slot and reads it. None if a process has it, or a newer version wrote it.
fn take_slot(directory: &OwnedFd, name: u64) -> io::Result<Option<LoadedSlot>> {
    let fd = open_file(directory, &name.to_string())?;
    match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(RedoSlot::load(fd)?),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes the first slot that there is not yet, or that is free again.
fn new_slot(directory: &OwnedFd) -> io::Result<LoadedSlot> {
    let mut name = 0;
    loop {
        match take_slot(directory, name)? {
            Some(loaded) => return Ok(loaded),
            None => name += 1,
        }
    }
}

/// Flushes every file that records belong to.
fn sync_files(state: &OwnedFd, records: &[RedoRecord], sync: &SyncCall) -> Result<(), Errno> {
    let mut keys: Vec<&RedoFileKey> = records.iter().map(|record| &record.file).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        open_covered(state, key)?.map_or(Ok(()), |file| sync(&file))?;
    }
    Ok(())
}

fn open_file(directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    open_own_file(directory, Path::new(name), OFlags::CREATE)
}

/// Nothing that a panicking thread leaves half done is relied on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
