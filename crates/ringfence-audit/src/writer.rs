//! Audit log writer: appends records to the chain.
//!
//! Under the lock: find the end, drop a line that a dying process left incomplete and say so, append. The record of a
//! change that is about to be made is on disk before it is made.
//!
//! With a redo log, that record is flushed together with those of other calls, and outside of the lock. The flush of a
//! change of files can be left to the file engine (`BeginDurability::Deferred`), which flushes the redo log before it
//! gives anything a name: a begin that was never flushed has changed nothing. Programs, requests and tools of other
//! servers start only after the flush. Versions without a redo log flush the log themselves, and may append to it too.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{AuditEvent, AuditSink, AuditSinkError, CallRecord, ToolError, sanitize_json};
use ringfence_sys::commit_log::{CommitLog, CoveredFile};
use ringfence_sys::own_files::{acquire_lock, open_state, open_state_dir, release_lock, truncate_durably, write_all};
use ringfence_sys::stat::{FileId, FileStat};
use ringfence_sys::syscall::{fdatasync, fstat, ftruncate, pread, statat};
use rustix::fs::{AtFlags, CWD, OFlags, Stat};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::Value;

use crate::keys::AuditKeys;
use crate::vocabulary::RECORD_VERSION;
use crate::{ANCHOR, ChainLink, DIRECTORY, GENESIS_HASH, HEADS, LOCK, line_hash, open_file, segment_name, segments};

/// A segment that has grown past this is closed, and the next one begun.
const SEGMENT_BYTES: u64 = 64 << 20;

/// A head is signed after this number of records, or when the last one is old.
const HEAD_RECORDS: u64 = 1000;
const HEAD_AGE: Duration = Duration::from_secs(60);

/// Refused calls past this number in a minute are counted and not listed, so that they cannot fill the disk.
const MOST_REFUSED: u64 = 100;
const REFUSED_WINDOW: Duration = Duration::from_secs(60);

/// So much of a file is read first to find its last line.
const TAIL_BYTES: u64 = 64 << 10;

/// Bytes of a name or a path that a record has. Callers make them up, and what they make up does not fill the log; that
/// there was more is in the hash of the arguments.
const LONGEST_TEXT: usize = 4 << 10;

/// Failure to open the log.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log")]
pub struct AuditOpenError(#[from] io::Error);

/// Who flushes the record of a change of files before the change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginDurability {
    /// The audit log, before it returns.
    Immediate,
    /// The file engine, with its own record of the change.
    Deferred,
}

/// The log, open for appending.
pub struct AuditLog {
    /// Path of the log's directory.
    path: PathBuf,
    directory: OwnedFd,
    lock: OwnedFd,
    /// Identities of the directory and of the lock.
    ids: [FileId; 2],
    keys: AuditKeys,
    /// Beside the directory: a copy of every signed head.
    anchor: OwnedFd,
    /// The copy of signed heads.
    head_copy: Option<File>,
    /// Hears of an error at the end, when there is no caller left to return it to.
    close_report: fn(&io::Error),
    segment_bytes: u64,
    commit_log: Option<(Arc<CommitLog>, BeginDurability)>,
    state: Mutex<AuditWriterState>,
}

struct AuditWriterState {
    end: Option<ChainTail>,
    since_head: u64,
    last_head: Instant,
    refused: RefusalLogLimiter,
}

/// The end of the chain, as far as we know.
struct ChainTail {
    segment: u64,
    name: String,
    file: CoveredFile,
    id: FileId,
    /// Bytes in the segment. If there are others now, another process was here.
    length: u64,
    seq: u64,
    hash: String,
}

struct RefusalLogLimiter {
    since: Instant,
    count: u64,
    suppressed: u64,
}

impl AuditLog {
    /// Opens the log below `state`, and makes it if there is none.
    pub fn open(state: &Path) -> Result<Self, AuditOpenError> {
        let directory = open_state_dir(state, DIRECTORY)?;
        let lock = open_file(&directory, LOCK, OFlags::RDWR | OFlags::CREATE).map_err(io::Error::from)?;
        let beside = open_state(state)?;
        acquire_lock(&lock)?;
        let keys = check_not_removed(&directory, &beside).and_then(|()| AuditKeys::load(&directory));
        release_lock(&lock);
        let keys = keys?;
        let ids = [file_id(&directory)?, file_id(&lock)?];
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
        let anchor = open_file(&beside, ANCHOR, flags).map_err(io::Error::from)?;
        let now = Instant::now();
        let refused = RefusalLogLimiter { since: now, count: 0, suppressed: 0 };
        Ok(Self {
            path: state.join(DIRECTORY),
            directory,
            lock,
            ids,
            keys,
            anchor,
            head_copy: None,
            close_report: |_| {},
            segment_bytes: SEGMENT_BYTES,
            commit_log: None,
            state: Mutex::new(AuditWriterState { end: None, since_head: 0, last_head: now, refused }),
        })
    }

    /// Begins a new segment once one has this number of bytes.
    #[must_use]
    pub fn with_segment_bytes(mut self, segment_bytes: u64) -> Self {
        self.segment_bytes = segment_bytes;
        self
    }

    /// Reports an error when the log is dropped: its last head could not be signed or copied.
    #[must_use]
    pub fn with_close_report(mut self, report: fn(&io::Error)) -> Self {
        self.close_report = report;
        self
    }

    /// Copies every signed head to a second file, which must be out of reach of those who could rewrite the log.
    #[must_use]
    pub fn with_head_copy(mut self, second: File) -> Self {
        self.head_copy = Some(second);
        self
    }

    /// Makes records durable through a redo log of the same state directory, opened before this log.
    #[must_use]
    pub fn with_commit_log(mut self, commit_log: Arc<CommitLog>, durability: BeginDurability) -> Self {
        self.commit_log = Some((commit_log, durability));
        self
    }

    fn append(&self, record: &CallRecord<'_>) -> io::Result<()> {
        let mut state = self.state.lock();
        let unlisted = match record.event {
            AuditEvent::Refused { .. } => match state.refused.admit() {
                RefusalLogDecision::Suppressed => return Ok(()),
                RefusalLogDecision::Logged { unlisted } => unlisted,
            },
            _ => 0,
        };
        acquire_lock(&self.lock)?;
        let written = self.append_locked(&mut state, record, unlisted);
        release_lock(&self.lock);
        drop(state);
        match (written?, &self.commit_log) {
            (RecordFlush::Now, Some((commit_log, _))) => commit_log.begin_flush().wait(),
            (RecordFlush::Now | RecordFlush::Later, _) => Ok(()),
        }
    }

    fn append_locked(
        &self,
        state: &mut AuditWriterState,
        record: &CallRecord<'_>,
        unlisted: u64,
    ) -> io::Result<RecordFlush> {
        let length = self.check_in_place(state)?;
        self.find_end(state, length)?;
        if unlisted > 0 {
            self.write_line(state, &AuditLine::suppressed(unlisted))?;
        }
        self.write_line(state, &AuditLine::from_record(record, &self.keys))?;
        let flush = match record.event {
            AuditEvent::Begin { change, .. } if !change.is_empty() => self.cover_change(state, record)?,
            _ => RecordFlush::Later,
        };
        if state.since_head >= HEAD_RECORDS || state.last_head.elapsed() >= HEAD_AGE {
            self.sign(state)?;
        }
        Ok(flush)
    }

    /// Has the record of a change flushed before the change is made: here, by the caller, or by the file engine.
    fn cover_change(&self, state: &AuditWriterState, record: &CallRecord<'_>) -> io::Result<RecordFlush> {
        let Some(end) = &state.end else { return Err(Errno::BADF.into()) };
        let Some((commit_log, durability)) = &self.commit_log else {
            fdatasync(end.file.fd())?;
            return Ok(RecordFlush::Later);
        };
        commit_log.cover(&end.file, end.length)?;
        let is_file_change = record.accesses.iter().all(|access| access.action.is_file_action());
        let is_deferred = *durability == BeginDurability::Deferred && is_file_change;
        Ok(if is_deferred { RecordFlush::Later } else { RecordFlush::Now })
    }

    /// Fails where the open log is not the one at its path. A log that was removed or replaced would swallow records:
    /// readers do not see them, and other writers use another lock. Returns the size of the current segment.
    fn check_in_place(&self, state: &AuditWriterState) -> io::Result<u64> {
        let gone =
            || io::Error::new(io::ErrorKind::NotFound, "the audit log was removed or replaced while it was open");
        let same = |open: FileId, named: Result<Stat, Errno>| match named.map(|named| FileStat::from_stat(&named)) {
            Ok(named) if named.id == open => Ok(named.size),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(gone()),
            Err(errno) => Err(io::Error::from(errno)),
        };
        let below = |name: &str| statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let [directory, lock] = self.ids;
        same(directory, statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW))?;
        same(lock, below(LOCK))?;
        state.end.as_ref().map_or(Ok(0), |end| same(end.id, below(&end.name)))
    }

    /// Finds where the chain ends now. Other processes may have appended, and one may have died while it did. `current` is
    /// the size of the current segment.
    fn find_end(&self, state: &mut AuditWriterState, current: u64) -> io::Result<()> {
        if let Some(end) = &state.end
            && current == end.length
            && (end.length < self.segment_bytes || self.last_segment()? == end.segment)
        {
            return self.rotate_if_full(state);
        }
        let segment = self.last_segment()?.max(1);
        let file = self.open_segment(segment)?;
        let size = FileStat::from_stat(&fstat(file.fd())?).size;
        let tail = read_tail(file.fd(), size)?;
        let last = match last_line(&tail) {
            Some(line) => Some(parse_end(line)?),
            None => last_record(&self.directory)?,
        };
        let torn = (tail.len() - complete_length(&tail)) as u64;
        let length = size - torn;
        if torn > 0 {
            truncate_durably(file.fd(), length)?;
        }
        let fresh = last.is_none();
        let (seq, hash) = last.unwrap_or_else(|| (0, GENESIS_HASH.to_owned()));
        let id = file_id(file.fd())?;
        state.end = Some(ChainTail { segment, name: segment_name(segment), file, id, length, seq, hash });
        if length == 0 {
            self.write_line(state, &AuditLine::event("genesis"))?;
        }
        if fresh {
            // From here on it is known that there is a log.
            if let Some(line) = self.head_line(state)? {
                append_line(&self.anchor, &line)?;
            }
        }
        if torn > 0 {
            self.write_line(state, &AuditLine { bytes: Some(torn), ..AuditLine::event("repaired") })?;
        }
        self.rotate_if_full(state)
    }

    fn rotate_if_full(&self, state: &mut AuditWriterState) -> io::Result<()> {
        let Some(end) = state.end.as_mut().filter(|end| end.length >= self.segment_bytes) else { return Ok(()) };
        // No later flush covers it, and the next segment goes on from its last record.
        fdatasync(end.file.fd())?;
        let segment = end.segment + 1;
        let file = self.open_segment(segment)?;
        let id = file_id(file.fd())?;
        // Only now: an error leaves the end where it is, and the next record tries again.
        let next = ChainTail {
            segment,
            name: segment_name(segment),
            file,
            id,
            length: 0,
            seq: end.seq,
            hash: end.hash.clone(),
        };
        let full = std::mem::replace(end, next);
        self.write_line(state, &AuditLine::event("genesis")).inspect_err(|_| state.end = Some(full))
    }

    fn write_line(&self, state: &mut AuditWriterState, line: &AuditLine<'_>) -> io::Result<()> {
        let Some(end) = &mut state.end else { return Err(Errno::BADF.into()) };
        let linked = ChainedAuditLine { v: RECORD_VERSION, seq: end.seq + 1, line, prev: &end.hash };
        let mut bytes = sanitize_json(&serde_json::to_string(&linked)?).into_bytes();
        let hash = line_hash(&bytes);
        bytes.push(b'\n');
        if let Err(errno) = write_all(end.file.fd().as_fd(), &bytes) {
            // Half a line would be taken for a crash; it goes, and the call with it.
            let _ = truncate_durably(end.file.fd(), end.length);
            return Err(errno.into());
        }
        end.length += bytes.len() as u64;
        end.seq += 1;
        end.hash = hash;
        state.since_head += 1;
        Ok(())
    }

    /// Signs how far the chain reaches.
    fn sign(&self, state: &mut AuditWriterState) -> io::Result<()> {
        let Some(line) = self.head_line(state)? else { return Ok(()) };
        let file = open_file(&self.directory, HEADS, OFlags::RDWR | OFlags::CREATE | OFlags::APPEND)?;
        append_line(&file, &line)?;
        append_line(&self.anchor, &line)?;
        if let Some(second) = &self.head_copy {
            write_all(second.as_fd(), &line)?;
        }
        state.since_head = 0;
        state.last_head = Instant::now();
        Ok(())
    }

    /// A signed head, as files of heads have it.
    fn head_line(&self, state: &AuditWriterState) -> io::Result<Option<Vec<u8>>> {
        let Some(end) = &state.end else { return Ok(None) };
        let mut line = serde_json::to_vec(&self.keys.sign(end.seq, &end.hash, &timestamp_now()))?;
        line.push(b'\n');
        Ok(Some(line))
    }

    fn last_segment(&self) -> io::Result<u64> {
        Ok(segments(&self.directory)?.last().copied().unwrap_or(0))
    }

    fn open_segment(&self, number: u64) -> io::Result<CoveredFile> {
        let (name, flags) = (segment_name(number), OFlags::RDWR | OFlags::CREATE | OFlags::APPEND);
        let file = open_file(&self.directory, &name, flags)?;
        CoveredFile::new(Path::new(DIRECTORY).join(name), Arc::new(file))
    }
}

impl AuditSink for AuditLog {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        self.append(record).map_err(AuditSinkError)
    }
}

impl Drop for AuditLog {
    /// The last word: what was not listed, and a signed head.
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if state.since_head == 0 && state.refused.suppressed == 0 {
            return;
        }
        // The records themselves are written.
        let closed = acquire_lock(&self.lock).and_then(|()| {
            let length = self.check_in_place(&state)?;
            self.find_end(&mut state, length)?;
            if state.refused.suppressed > 0 {
                let unlisted = state.refused.suppressed;
                self.write_line(&mut state, &AuditLine::suppressed(unlisted))?;
            }
            self.sign(&mut state)
        });
        release_lock(&self.lock);
        if let Err(error) = closed {
            (self.close_report)(&error);
        }
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditLog")
    }
}

fn file_id(file: &OwnedFd) -> io::Result<FileId> {
    Ok(FileStat::from_stat(&fstat(file)?).id)
}

/// When a record that was written is flushed.
enum RecordFlush {
    /// Before the call goes on.
    Now,
    /// With a later flush, or it is already.
    Later,
}

enum RefusalLogDecision {
    Suppressed,
    /// With how many were left out before.
    Logged {
        unlisted: u64,
    },
}

impl RefusalLogLimiter {
    fn admit(&mut self) -> RefusalLogDecision {
        let mut unlisted = 0;
        if self.since.elapsed() >= REFUSED_WINDOW {
            unlisted = self.suppressed;
            *self = Self { since: Instant::now(), count: 0, suppressed: 0 };
        }
        self.count += 1;
        if self.count > MOST_REFUSED {
            self.suppressed += 1;
            return RefusalLogDecision::Suppressed;
        }
        RefusalLogDecision::Logged { unlisted }
    }
}

/// Appends a line, over a torn line that a crashed process left.
fn append_line(file: &OwnedFd, line: &[u8]) -> io::Result<()> {
    let size = FileStat::from_stat(&fstat(file)?).size;
    let tail = read_tail(file, size)?;
    let whole = complete_length(&tail);
    if whole < tail.len() {
        ftruncate(file, size - (tail.len() - whole) as u64)?;
    }
    Ok(write_all(file.as_fd(), line)?)
}

/// A line with its position in the chain.
#[derive(Serialize)]
struct ChainedAuditLine<'a> {
    v: u64,
    seq: u64,
    #[serde(flatten)]
    line: &'a AuditLine<'a>,
    prev: &'a str,
}

#[derive(Default, Serialize)]
struct AuditLine<'a> {
    ts: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dialect: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<ContentHash>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    accesses: Vec<AuditLineAccess<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approved: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approver: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    assurance: Option<&'static str>,
    /// Who types at the program's terminal from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    writer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ok: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<ContentHash>,
    #[serde(skip_serializing_if = "Option::is_none")]
    micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    /// Of those that are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Contents, as the log knows them.
#[derive(Serialize)]
struct ContentHash {
    bytes: usize,
    hash: String,
}

#[derive(Serialize)]
struct AuditLineAccess<'a> {
    action: &'static str,
    path: &'a str,
    /// The resolved path, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    real: Option<String>,
}

/// Accesses that a record lists. More than this are those of a directory; the first ones say which.
const MAX_ACCESSES: usize = 20;

impl<'a> AuditLine<'a> {
    fn event(event: &'static str) -> Self {
        Self { ts: timestamp_now(), event, ..Self::default() }
    }

    fn suppressed(count: u64) -> Self {
        Self { count: Some(count), ..Self::event("refused-unlisted") }
    }

    fn from_record(record: &CallRecord<'a>, keys: &AuditKeys) -> Self {
        let sum = |text: &str| ContentHash { bytes: text.len(), hash: keys.hmac(text) };
        let session = record.session;
        let access = |access: &'a ringfence_kernel::ResourceAccess| AuditLineAccess {
            action: access.action.as_str(),
            path: truncate_text(&access.resource.display_path),
            real: access.resource.resolved_display_path().map(|real| truncate_text(&real).to_owned()),
        };
        let mut line = Self {
            ts: humantime::format_rfc3339_micros(record.time).to_string(),
            session: Some(truncate_text(&session.id)),
            principal: Some(truncate_text(&session.principal.name)),
            dialect: Some(session.dialect.name()),
            agent: session.agent.as_deref().map(truncate_text),
            call: Some(truncate_text(record.call_id)),
            tool: Some(truncate_text(record.tool)),
            accesses: record.accesses.iter().take(MAX_ACCESSES).map(access).collect(),
            about: record.subject.filter(|_| record.accesses.is_empty()).map(truncate_text),
            ..Self::default()
        };
        let (event, error, reply, duration) = match &record.event {
            AuditEvent::Begin { rule, layer, approved, change } => {
                line.event = "begin";
                line.rule = Some(rule);
                line.layer = Some(layer.name());
                line.approved = Some(approved.is_some());
                line.approver = approved.and_then(|approval| approval.by.as_ref()).map(|by| by.name.as_str());
                line.assurance = approved.map(|approval| approval.assurance.name());
                line.change = Some(*change).filter(|change| !change.is_empty());
                line.arguments = Some(sum(record.arguments));
                return line;
            }
            AuditEvent::Connection { refused, approved } => {
                line.event = "access";
                line.approved = approved.map(|_| true);
                line.approver = approved.and_then(|approval| approval.by.as_ref()).map(|by| by.name.as_str());
                line.assurance = approved.map(|approval| approval.assurance.name());
                line.ok = Some(refused.is_none());
                line.error = refused.map(|error| session.dialect.error_code(error));
                (line.rule, line.layer) = refused.map(rule_of).unwrap_or_default();
                return line;
            }
            AuditEvent::ChangesDiscarded { error } => {
                line.event = "discarded";
                line.ok = Some(false);
                line.error = Some(session.dialect.error_code(error));
                return line;
            }
            AuditEvent::LayerConflict { error } => {
                line.event = "layer-conflict";
                line.ok = Some(false);
                line.error = Some(session.dialect.error_code(error));
                return line;
            }
            AuditEvent::TerminalWriter { by } => {
                line.event = "terminal-writer";
                line.writer = Some(truncate_text(&by.name));
                return line;
            }
            AuditEvent::UnlistedConnections { made, refused } => {
                line.event = "access-unlisted";
                line.count = Some(made + refused);
                line.refused = Some(*refused);
                return line;
            }
            AuditEvent::End { outcome, reply, duration } => ("end", outcome.err(), reply, duration),
            AuditEvent::Refused { error, reply, duration } => {
                line.arguments = Some(sum(record.arguments));
                (line.rule, line.layer) = rule_of(error);
                ("refused", Some(*error), reply, duration)
            }
            AuditEvent::Overdue { error, reply, duration } => ("overdue", Some(*error), reply, duration),
        };
        line.event = event;
        line.ok = Some(error.is_none());
        line.error = error.map(|error| session.dialect.error_code(error));
        line.reply = Some(sum(reply));
        line.micros = Some(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        line
    }
}

/// The rule behind a refusal, and its layer, where policy refused it.
fn rule_of(error: &ToolError) -> (Option<&str>, Option<&str>) {
    let text = |key: &str| error.details.get(key).and_then(Value::as_str);
    (text("rule").map(truncate_text), text("layer"))
}

fn timestamp_now() -> String {
    humantime::format_rfc3339_micros(SystemTime::now()).to_string()
}

/// Fails where the heads beside the log say that there were records, and there are none: a new chain in their place would
/// hide that they were removed.
fn check_not_removed(directory: &OwnedFd, state: &OwnedFd) -> io::Result<()> {
    if last_record(directory)?.is_some() {
        return Ok(());
    }
    match statat(state, ANCHOR, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(anchor) if FileStat::from_stat(&anchor).size > 0 => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let message = format!(
        "its records are gone, and `{ANCHOR}` shows that there were some; restore `{DIRECTORY}`, or move `{DIRECTORY}` and \
         `{ANCHOR}` elsewhere together to start a new log"
    );
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// The number and the hash of the last record. A process that died between two segments left the last one empty.
fn last_record(directory: &OwnedFd) -> io::Result<Option<(u64, String)>> {
    for segment in segments(directory)?.into_iter().rev() {
        let file = open_file(directory, &segment_name(segment), OFlags::RDONLY)?;
        let tail = read_tail(&file, FileStat::from_stat(&fstat(&file)?).size)?;
        if let Some(line) = last_line(&tail) {
            return parse_end(line).map(Some);
        }
    }
    Ok(None)
}

/// The number and the hash of a record.
fn parse_end(line: &[u8]) -> io::Result<(u64, String)> {
    Ok((ChainLink::parse(line)?.seq, line_hash(line)))
}

fn last_line(tail: &[u8]) -> Option<&[u8]> {
    let complete = tail[..complete_length(tail)].trim_ascii_end();
    complete.rsplit(|byte| *byte == b'\n').next().filter(|line| !line.is_empty())
}

/// Length up to the end of the last complete line.
fn complete_length(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}

/// The end of a file: the last whole line, however long it is, and what may stand behind it.
fn read_tail(file: &OwnedFd, size: u64) -> io::Result<Vec<u8>> {
    let mut length = size.min(TAIL_BYTES);
    loop {
        let tail = read_at(file, size - length, length)?;
        let ends = tail.iter().filter(|byte| **byte == b'\n').take(2).count();
        if ends == 2 || length == size {
            return Ok(tail);
        }
        length = size.min(length * 4);
    }
}

fn read_at(file: &OwnedFd, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match pread(file, &mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn truncate_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}
