//! Agent session transcripts: messages, calls and results, stored as they happen.
//!
//! A message is in the store before anything is done about it, so a killed process leaves a session that can be
//! continued: the result of its last call is reported as unknown. A session belongs to one workspace and to one process
//! at a time, and keeps its taint. One that was not continued for 90 days is removed.
//!
//! Not here: the part that the model sees (`ringfence-agent`'s `MessageHistory`), and the text for people
//! (`cli/sessions.rs`).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_agent::{TranscriptError, TranscriptMessage, TranscriptStore, complete_calls};
use ringfence_kernel::{Dialect, Session, SessionTaint, StoreError, Taint, TaintSet};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use serde::Serialize;
use serde_json::{Value, json};

use crate::process::process_lock::ProcessLock;
use crate::store::{SqliteError, SqliteStore, from_json, nanos, to_json};

/// Retention of a session that is not continued.
const RETENTION: Duration = Duration::from_hours(90 * 24);

/// The longest title of a session.
const MAX_TITLE_CHARS: usize = 80;

/// Failure to use a stored session.
#[derive(Debug, thiserror::Error)]
pub enum SqliteTranscriptError {
    #[error("this workspace has no session `{0}`; `ringfence sessions list` shows all")]
    Unknown(String),
    #[error("this workspace has no session yet")]
    None,
    #[error("the session `{0}` is in use by another process")]
    InUse(String),
    #[error("the session `{0}` uses another dialect: add `--dialect {1}`")]
    Dialect(String, String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Transcript(#[from] TranscriptError),
}

/// A session without its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TranscriptHeader {
    pub id: String,
    /// The workspace, by a name that no other directory has.
    #[serde(skip)]
    pub directory: String,
    pub model: String,
    pub agent: Option<String>,
    pub dialect: String,
    /// The first prompt, on one line.
    pub title: String,
    #[serde(with = "rfc3339")]
    pub started: SystemTime,
    #[serde(with = "rfc3339")]
    pub updated: SystemTime,
}

impl TranscriptHeader {
    pub fn new(session: &Session, workspace_id: &str, model: &str) -> Self {
        let now = SystemTime::now();
        Self {
            id: session.id.clone(),
            directory: workspace_id.to_owned(),
            model: model.to_owned(),
            agent: session.agent.clone(),
            dialect: session.dialect.name().to_owned(),
            title: String::new(),
            started: now,
            updated: now,
        }
    }
}

/// A session that goes on.
#[derive(Debug)]
pub struct ResumedTranscript {
    pub head: TranscriptHeader,
    pub messages: Vec<TranscriptMessage>,
    pub taint: TaintSet,
}

/// Something that a session has in it.
#[derive(Clone, Debug, PartialEq)]
pub enum TranscriptEntry {
    Message(TranscriptMessage),
    /// The end of a prompt.
    Outcome(Value),
}

/// Every session of a user.
#[derive(Debug)]
pub struct SqliteTranscripts {
    store: Arc<SqliteStore>,
}

impl SqliteTranscripts {
    /// The sessions in a store. Nothing is opened yet.
    pub fn new(store: Arc<SqliteStore>) -> Self {
        Self { store }
    }

    /// The sessions of a workspace, the last one first.
    pub fn list(&self, directory: &str) -> Result<Vec<TranscriptHeader>, SqliteTranscriptError> {
        Ok(self.store.read(Vec::new(), |connection| read_headers(connection, directory))?)
    }

    /// A session of a workspace with all that it has in it.
    pub fn show(
        &self,
        directory: &str,
        id: &str,
    ) -> Result<(TranscriptHeader, Vec<TranscriptEntry>), SqliteTranscriptError> {
        let found = self.store.read(None, |connection| {
            let head = read_headers(connection, directory)?.into_iter().find(|head| head.id == id);
            head.map(|head| Ok((head, read_entries(connection, id)?))).transpose()
        })?;
        found.ok_or_else(|| SqliteTranscriptError::Unknown(id.to_owned()))
    }

    /// The session of a workspace that is named, or the last one.
    pub fn resume(&self, directory: &str, id: Option<&str>) -> Result<ResumedTranscript, SqliteTranscriptError> {
        let heads = self.list(directory)?;
        let head = match id {
            Some(id) => heads
                .into_iter()
                .find(|head| head.id == id)
                .ok_or_else(|| SqliteTranscriptError::Unknown(id.to_owned()))?,
            None => heads.into_iter().next().ok_or(SqliteTranscriptError::None)?,
        };
        let (messages, taint) = self.store.read((Vec::new(), TaintSet::default()), |connection| {
            let stored = read_entries(connection, &head.id)?.into_iter().filter_map(|entry| match entry {
                TranscriptEntry::Message(message) => Some(message),
                TranscriptEntry::Outcome(_) => None,
            });
            let taint = connection
                .query_row("SELECT taint FROM sessions WHERE id = ?1", [&head.id], |row| row.get::<_, String>(0))?;
            Ok((stored.collect(), taint.split(' ').filter_map(Taint::from_name).collect()))
        })?;
        Ok(ResumedTranscript { head, messages, taint })
    }

    /// Makes a session, or takes one that is there, for this process alone.
    pub fn open(
        &self,
        head: &TranscriptHeader,
        taint: SessionTaint,
    ) -> Result<TranscriptWriter, SqliteTranscriptError> {
        // The store makes the directory, if it is missing.
        self.store.write(|_| Ok(()))?;
        let owner = ProcessLock::new(self.store.state()).map_err(StoreError)?;
        if !self.store.write(|connection| self.claim(connection, head, &owner))? {
            return Err(SqliteTranscriptError::InUse(head.id.clone()));
        }
        let store = Arc::clone(&self.store);
        let shared = TranscriptWriterInner { store, id: head.id.clone(), taint, _owner: owner };
        Ok(TranscriptWriter(Arc::new(shared)))
    }

    /// False where it is another process's.
    fn claim(
        &self,
        connection: &mut Connection,
        head: &TranscriptHeader,
        owner: &ProcessLock,
    ) -> Result<bool, SqliteError> {
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let long_ago = head.updated.checked_sub(RETENTION).unwrap_or(SystemTime::UNIX_EPOCH);
        change.execute(
            "DELETE FROM entries WHERE session IN (SELECT id FROM sessions WHERE updated <= ?1)",
            [nanos(long_ago)],
        )?;
        change.execute("DELETE FROM sessions WHERE updated <= ?1", [nanos(long_ago)])?;
        let query = "SELECT owner FROM sessions WHERE id = ?1";
        let other: Option<String> = change.query_row(query, [&head.id], |row| row.get(0)).optional()?;
        if let Some(other) = other
            && !ProcessLock::is_stale(self.store.state(), &other)?
        {
            return Ok(false);
        }
        let query = "INSERT INTO sessions (id, directory, model, agent, dialect, title, started, updated, owner, taint)
                     VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?6, ?7, '')
                     ON CONFLICT (id) DO UPDATE SET model = ?3, owner = ?7";
        let TranscriptHeader { id, directory, model, agent, dialect, started, .. } = head;
        change.execute(query, params![id, directory, model, agent, dialect, nanos(*started), owner.id()])?;
        change.commit()?;
        Ok(true)
    }
}

/// A session that is being written.
#[derive(Clone, Debug)]
pub struct TranscriptWriter(Arc<TranscriptWriterInner>);

#[derive(Debug)]
struct TranscriptWriterInner {
    store: Arc<SqliteStore>,
    id: String,
    taint: SessionTaint,
    /// Held as long as the session is this process's.
    _owner: ProcessLock,
}

impl TranscriptWriter {
    /// Keeps how a prompt ended.
    pub fn record_outcome(&self, outcome: &Value) -> Result<(), SqliteTranscriptError> {
        Ok(self.insert_entry("outcome", &outcome.to_string(), None)?)
    }

    fn insert_entry(&self, kind: &str, body: &str, title: Option<&str>) -> Result<(), StoreError> {
        let TranscriptWriterInner { store, id, taint, .. } = &*self.0;
        store.write(|connection| {
            let taint = taint.snapshot().iter().map(Taint::name).collect::<Vec<_>>().join(" ");
            let now = nanos(SystemTime::now());
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let query = "INSERT INTO entries (session, kind, body, at) VALUES (?1, ?2, ?3, ?4)";
            change.execute(query, params![id, kind, body, now])?;
            let query = "UPDATE sessions SET updated = ?2, taint = ?3,
                         title = CASE title WHEN '' THEN ?4 ELSE title END WHERE id = ?1";
            change.execute(query, params![id, now, taint, title.unwrap_or_default()])?;
            Ok(change.commit()?)
        })
    }
}

impl TranscriptStore for TranscriptWriter {
    fn append(&mut self, message: &TranscriptMessage) -> Result<(), TranscriptError> {
        let title = match message {
            TranscriptMessage::User { text } => Some(title(text)),
            _ => None,
        };
        let body = to_json(message).map_err(SqliteError::into_store_error);
        let kept = body.and_then(|body| self.insert_entry("message", &body, title.as_deref()));
        kept.map_err(|StoreError(cause)| TranscriptError(cause))
    }
}

fn title(prompt: &str) -> String {
    let line = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_TITLE_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

fn read_headers(connection: &Connection, directory: &str) -> Result<Vec<TranscriptHeader>, SqliteError> {
    let query = "SELECT id, directory, model, agent, dialect, title, started, updated FROM sessions
                 WHERE directory = ?1 ORDER BY updated DESC, id";
    let mut statement = connection.prepare(query)?;
    let heads = statement.query_map([directory], |row| {
        Ok(TranscriptHeader {
            id: row.get(0)?,
            directory: row.get(1)?,
            model: row.get(2)?,
            agent: row.get(3)?,
            dialect: row.get(4)?,
            title: row.get(5)?,
            started: time_from_nanos(row.get(6)?),
            updated: time_from_nanos(row.get(7)?),
        })
    })?;
    Ok(heads.collect::<Result<_, _>>()?)
}

fn read_entries(connection: &Connection, id: &str) -> Result<Vec<TranscriptEntry>, SqliteError> {
    let mut statement = connection.prepare("SELECT kind, body FROM entries WHERE session = ?1 ORDER BY number")?;
    let rows = statement.query_map([id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    rows.map(|row| {
        let (kind, body) = row?;
        match kind.as_str() {
            "message" => from_json(&body).map(TranscriptEntry::Message),
            _ => from_json(&body).map(TranscriptEntry::Outcome),
        }
    })
    .collect()
}

fn time_from_nanos(nanos: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}

/// Times as texts.
mod rfc3339 {
    use std::time::SystemTime;

    use serde::Serializer;

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_millis(*time))
    }
}

/// A session, and every message and how each prompt ended as JSON.
pub(crate) fn entries_of(
    sessions: &SqliteTranscripts,
    directory: &str,
    id: &str,
) -> Result<(TranscriptHeader, Vec<Value>), SqliteTranscriptError> {
    let (head, entries) = sessions.show(directory, id)?;
    let entry = |entry: &TranscriptEntry| match entry {
        TranscriptEntry::Message(message) => json!(message),
        TranscriptEntry::Outcome(outcome) => json!({"role": "host", "outcome": outcome}),
    };
    let entries = close_open_calls(&head, entries).iter().map(entry).collect();
    Ok((head, entries))
}

/// The entries with one result for each call.
pub(crate) fn close_open_calls(head: &TranscriptHeader, entries: Vec<TranscriptEntry>) -> Vec<TranscriptEntry> {
    let dialect = Dialect::from_name(&head.dialect).unwrap_or_default();
    let mut closed = Vec::with_capacity(entries.len());
    let mut stored = Vec::new();
    let close = |stored: &mut Vec<TranscriptMessage>, closed: &mut Vec<TranscriptEntry>| {
        closed.extend(complete_calls(std::mem::take(stored), dialect).into_iter().map(TranscriptEntry::Message));
    };
    for entry in entries {
        match entry {
            TranscriptEntry::Message(message) => stored.push(message),
            TranscriptEntry::Outcome(_) => {
                close(&mut stored, &mut closed);
                closed.push(entry);
            }
        }
    }
    close(&mut stored, &mut closed);
    closed
}
