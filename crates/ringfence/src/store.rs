//! The store on disk: one SQLite file in the state directory, shared by every process of this user. Sessions of the agent
//! are in it too (`sessions.rs`).
//!
//! Requests, answers and grants are on disk before anybody is told of them, and survive a restart. The file is made at
//! the first write, so that whoever never asks never has one. A file that is damaged, or was made by a later version,
//! is an error that says so: nothing is asked on a guess. A request whose process was killed goes as soon as somebody
//! looks (`owner.rs`), unless it was left to wait by itself.
//!
//! Not here: who may answer (the kernel's `desk.rs`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use ringfence_fs::PLAIN_FILE_FLAGS;
use ringfence_kernel::{
    AnswerStatus, ApprovalDecision, ApprovalRequest, ApprovalStore, ArgumentDraft, DENIAL_STREAK_LIFETIME,
    DenialStreak, Grant, Principal, StoreError, SuspendLifetime,
};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, TransactionBehavior, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::process_lock::ProcessLock;

/// The file, below the state directory.
pub const STORE_FILE: &str = "state.db";

/// Its name up to 0.1.0. The first open of a later version moves it, and leaves a database there that earlier versions
/// refuse as too new, so that none of them starts over with an empty store.
const FORMER_STORE_FILE: &str = "approvals.db";

/// A schema version that no release has.
const TOMBSTONE_VERSION: u32 = 1_000_000;

/// The smallest page that SQLite has.
const TOMBSTONE_BYTES: usize = 512;

/// Where the file format of SQLite has the schema version.
const USER_VERSION_OFFSET: usize = 60;

/// How long other processes may hold the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What makes each version out of the one before. Only ever added to.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE requests (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL,
        expires INTEGER NOT NULL,
        answer TEXT
    );
    CREATE TABLE grants (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL,
        until INTEGER NOT NULL
    );
    CREATE TABLE used (nonce TEXT PRIMARY KEY, expires INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE keys (name TEXT PRIMARY KEY, key BLOB NOT NULL) WITHOUT ROWID;
",
    "
    ALTER TABLE requests ADD COLUMN owner TEXT;
    CREATE TABLE noes (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        count INTEGER NOT NULL,
        last INTEGER NOT NULL
    );
    CREATE TABLE trusted (directory TEXT PRIMARY KEY, sha256 TEXT NOT NULL, who TEXT NOT NULL, since INTEGER NOT NULL)
        WITHOUT ROWID;
",
    "
    CREATE TABLE sittings (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
    CREATE TABLE runs (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
",
    "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        directory TEXT NOT NULL,
        model TEXT NOT NULL,
        agent TEXT,
        dialect TEXT NOT NULL,
        title TEXT NOT NULL,
        started INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        owner TEXT NOT NULL,
        bits TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE INDEX entries_of_sessions ON entries (session, number);
",
    "
    CREATE TABLE definitions (tool TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
",
    "
    ALTER TABLE requests ADD COLUMN draft TEXT;
    ALTER TABLE requests ADD COLUMN draft_id TEXT;
    CREATE TABLE idempotency_keys (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        digest TEXT NOT NULL,
        reply TEXT,
        at INTEGER NOT NULL,
        UNIQUE (scope, key)
    );
",
    "
    ALTER TABLE noes RENAME TO denials;
    ALTER TABLE sittings RENAME TO api_sessions;
    ALTER TABLE used RENAME TO used_resume_tokens;
    ALTER TABLE sessions RENAME COLUMN bits TO taint;
",
];

/// How long an idempotency key is kept, and how many there are of a scope (a token and a path) and in all.
const KEY_LIFETIME: Duration = Duration::from_hours(24);
const KEYS_PER_SCOPE: i64 = 128;
const MAX_KEYS: i64 = 4096;

/// Of a scope with too many keys the oldest go; one whose request is under way goes last.
const EVICT_OF_SCOPE: &str = "DELETE FROM idempotency_keys WHERE scope = ?1 AND number NOT IN
    (SELECT number FROM idempotency_keys WHERE scope = ?1 ORDER BY reply IS NULL DESC, number DESC LIMIT ?2)";

/// Where there are too many in all, the token that has most of them loses its oldest: no token pushes out what is another's.
const EVICT_OF_TOKEN: &str = "DELETE FROM idempotency_keys WHERE (SELECT count(*) FROM idempotency_keys) > ?1 AND number =
    (SELECT number FROM idempotency_keys WHERE substr(scope, 1, instr(scope, char(10))) =
        (SELECT substr(scope, 1, instr(scope, char(10))) FROM idempotency_keys GROUP BY 1 ORDER BY count(*) DESC LIMIT 1)
     ORDER BY reply IS NULL, number LIMIT 1)";

/// What is known of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdempotencyState {
    /// Nothing: it is the caller's now.
    New,
    /// Another request has it.
    Conflict,
    /// The same request has it, and its reply is not there.
    InProgress,
    /// The reply.
    Done(String),
}

/// What the API keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ApiTable {
    Sessions,
    Runs,
}

impl ApiTable {
    const fn table(self) -> &'static str {
        match self {
            Self::Sessions => "api_sessions",
            Self::Runs => "runs",
        }
    }

    /// Which of them are over, and may go. The others are in use.
    const fn ended_condition(self) -> &'static str {
        match self {
            Self::Sessions => "json_extract(body, '$.view.ended') IS NOT NULL",
            Self::Runs => "json_extract(body, '$.view.state') <> 'running'",
        }
    }
}

/// Requests and grants that outlive the process.
#[derive(Debug)]
pub struct SqliteStore {
    file: PathBuf,
    connection: Mutex<Option<Connection>>,
    /// Who waits for what is opened here.
    process_lock: OnceLock<ProcessLock>,
    /// Set once it is known that no earlier version left a store here.
    has_no_former: OnceLock<()>,
}

impl SqliteStore {
    /// The store of a state directory. Nothing is opened yet.
    pub fn new(state: &Path) -> Self {
        Self {
            file: state.join(STORE_FILE),
            connection: Mutex::new(None),
            process_lock: OnceLock::new(),
            has_no_former: OnceLock::new(),
        }
    }

    fn exists(&self) -> io::Result<bool> {
        if self.has_no_former.get().is_some() {
            return self.file.try_exists();
        }
        let exists = self.file.parent().map_or(Ok(false), store_exists)?;
        if !exists {
            let _ = self.has_no_former.set(());
        }
        Ok(exists)
    }

    /// Whether a person trusts the file with this hash to say what may be done in a directory.
    pub fn is_trusted(&self, directory: &str, sha256: &str) -> Result<bool, StoreError> {
        self.read(false, |connection| {
            let query = "SELECT count(*) FROM trusted WHERE directory = ?1 AND sha256 = ?2";
            Ok(connection.query_row(query, [directory, sha256], |row| row.get::<_, i64>(0))? > 0)
        })
    }

    /// Trusts this one, and no other of the directory any more.
    pub fn trust(&self, directory: &str, sha256: &str, by: &Principal, now: SystemTime) -> Result<(), StoreError> {
        self.write(|connection| {
            let query = "INSERT OR REPLACE INTO trusted (directory, sha256, who, since) VALUES (?1, ?2, ?3, ?4)";
            connection.execute(query, params![directory, sha256, by.name, nanos(now)])?;
            Ok(())
        })
    }

    /// Trusts none of the directory any more. False where none was.
    pub fn distrust(&self, directory: &str) -> Result<bool, StoreError> {
        self.read(false, |connection| {
            Ok(connection.execute("DELETE FROM trusted WHERE directory = ?1", [directory])? > 0)
        })
    }

    /// The digest of what the server of this tool said about it when it was last used.
    pub fn definition(&self, tool: &str) -> Result<Option<String>, StoreError> {
        self.read(None, |connection| {
            let query = "SELECT digest FROM definitions WHERE tool = ?1";
            Ok(connection.query_row(query, [tool], |row| row.get(0)).optional()?)
        })
    }

    pub fn remember_definition(&self, tool: &str, digest: &str) -> Result<(), StoreError> {
        self.write(|connection| {
            connection.execute("INSERT OR REPLACE INTO definitions (tool, digest) VALUES (?1, ?2)", [tool, digest])?;
            Ok(())
        })
    }

    /// Keeps something of the API, in place of what was kept under its id before, and of those that are over only so many.
    /// Where there are more, the token that has most of them loses its oldest: no token pushes out what is another's.
    pub(crate) fn save_record(&self, shelf: ApiTable, id: &str, body: &str, most: usize) -> Result<(), StoreError> {
        let table = shelf.table();
        self.write(|connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let query =
                format!("INSERT INTO {table} (id, body) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET body = ?2");
            change.execute(&query, [id, body])?;
            let (over, owner) = (shelf.ended_condition(), "json_extract(body, '$.owner')");
            let query = format!(
                "DELETE FROM {table} WHERE (SELECT count(*) FROM {table} WHERE {over}) > ?1 AND number =
                     (SELECT min(number) FROM {table} WHERE {over} AND {owner} =
                         (SELECT {owner} FROM {table} WHERE {over} GROUP BY 1 ORDER BY count(*) DESC LIMIT 1))"
            );
            change.execute(&query, [i64::try_from(most).unwrap_or(i64::MAX)])?;
            Ok(change.commit()?)
        })
    }

    /// What is kept there, the oldest first.
    pub(crate) fn records(&self, shelf: ApiTable) -> Result<Vec<String>, StoreError> {
        self.read(Vec::new(), |connection| {
            let query = format!("SELECT body FROM {} ORDER BY number", shelf.table());
            let mut statement = connection.prepare(&query)?;
            Ok(statement.query_map([], column_text)?.collect::<Result<_, _>>()?)
        })
    }

    /// Claims an idempotency key for a request, or says what is known of it.
    pub(crate) fn claim_key(
        &self,
        scope: &str,
        key: &str,
        digest: &str,
        now: SystemTime,
    ) -> Result<IdempotencyState, StoreError> {
        self.write(|connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let long_ago = now.checked_sub(KEY_LIFETIME).unwrap_or(SystemTime::UNIX_EPOCH);
            change.execute("DELETE FROM idempotency_keys WHERE at <= ?1", [nanos(long_ago)])?;
            let query = "SELECT digest, reply FROM idempotency_keys WHERE scope = ?1 AND key = ?2";
            let found: Option<(String, Option<String>)> =
                change.query_row(query, [scope, key], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let state = match found {
                Some((other, _)) if other != digest => IdempotencyState::Conflict,
                Some((_, None)) => IdempotencyState::InProgress,
                Some((_, Some(reply))) => IdempotencyState::Done(reply),
                None => {
                    let query = "INSERT INTO idempotency_keys (scope, key, digest, at) VALUES (?1, ?2, ?3, ?4)";
                    change.execute(query, params![scope, key, digest, nanos(now)])?;
                    change.execute(EVICT_OF_SCOPE, params![scope, KEYS_PER_SCOPE])?;
                    change.execute(EVICT_OF_TOKEN, [MAX_KEYS])?;
                    IdempotencyState::New
                }
            };
            change.commit()?;
            Ok(state)
        })
    }

    /// Keeps the reply of a request that has a key.
    pub(crate) fn save_reply(&self, scope: &str, key: &str, reply: &str) -> Result<(), StoreError> {
        self.write(|connection| {
            let query = "UPDATE idempotency_keys SET reply = ?3 WHERE scope = ?1 AND key = ?2";
            connection.execute(query, [scope, key, reply])?;
            Ok(())
        })
    }

    /// Gives a key back: its request did nothing.
    pub(crate) fn release_key(&self, scope: &str, key: &str) -> Result<(), StoreError> {
        self.write(|connection| {
            connection.execute("DELETE FROM idempotency_keys WHERE scope = ?1 AND key = ?2", [scope, key])?;
            Ok(())
        })
    }

    /// Who waits for what this process opens. It is there from the first request on.
    fn process_lock(&self) -> Result<&ProcessLock, StoreError> {
        if let Some(owner) = self.process_lock.get() {
            return Ok(owner);
        }
        // The file makes the directory, if it is missing.
        self.write(|_| Ok(()))?;
        let owner = ProcessLock::new(self.state()).map_err(StoreError)?;
        Ok(self.process_lock.get_or_init(|| owner))
    }

    fn state(&self) -> &Path {
        self.file.parent().unwrap_or(&self.file)
    }

    /// Forgets the requests that nobody waits for any more.
    fn remove_abandoned(&self, connection: &Connection) -> Result<(), SqliteError> {
        let ours = self.process_lock.get().map(ProcessLock::id);
        let mut statement = connection.prepare("SELECT DISTINCT owner FROM requests WHERE owner IS NOT NULL")?;
        let owners: Vec<String> = statement.query_map([], column_text)?.collect::<Result<_, _>>()?;
        for owner in owners.iter().filter(|owner| Some(owner.as_str()) != ours) {
            if ProcessLock::is_stale(self.state(), owner)? {
                connection.execute("DELETE FROM requests WHERE owner = ?1", [owner])?;
            }
        }
        Ok(())
    }

    /// Reads, where there is something to read: what was never written is empty.
    fn read<T>(&self, empty: T, work: impl FnOnce(&mut Connection) -> Result<T, SqliteError>) -> Result<T, StoreError> {
        let unopened = self.lock().is_none();
        if unopened && !self.exists().map_err(StoreError)? {
            return Ok(empty);
        }
        self.write(work)
    }

    fn write<T>(&self, work: impl FnOnce(&mut Connection) -> Result<T, SqliteError>) -> Result<T, StoreError> {
        let mut connection = self.lock();
        let open = match connection.as_mut() {
            Some(open) => open,
            None => connection.insert(open(&self.file).map_err(SqliteError::into_store_error)?),
        };
        work(open).map_err(SqliteError::into_store_error)
    }

    /// SQLite ends a transaction by itself where a panic leaves one.
    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApprovalStore for SqliteStore {
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreError> {
        let owner = self.process_lock()?.id();
        self.write(|connection| {
            let body = to_json(request)?;
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            change.execute("DELETE FROM requests WHERE expires <= ?1", [nanos(request.opened)])?;
            let values = params![request.id, body, nanos(request.expires), owner];
            change.execute("INSERT INTO requests (id, body, expires, owner) VALUES (?1, ?2, ?3, ?4)", values)?;
            Ok(change.commit()?)
        })
    }

    fn request(&self, id: &str) -> Result<Option<ApprovalRequest>, StoreError> {
        self.read(None, |connection| {
            let found =
                connection.query_row("SELECT body FROM requests WHERE id = ?1", [id], column_text).optional()?;
            found.map(|body| from_json(&body)).transpose()
        })
    }

    fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, StoreError> {
        self.read(Vec::new(), |connection| {
            self.remove_abandoned(connection)?;
            let query = "SELECT body FROM requests WHERE answer IS NULL AND expires > ?1 ORDER BY number";
            query_all(connection, query, now)
        })
    }

    fn answer(&self, id: &str, answered: &ApprovalDecision, now: SystemTime) -> Result<AnswerStatus, StoreError> {
        self.read(AnswerStatus::UnknownRequest, |connection| {
            self.remove_abandoned(connection)?;
            let values = params![id, to_json(answered)?, nanos(now)];
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let query = "UPDATE requests SET answer = ?2 WHERE id = ?1 AND answer IS NULL AND expires > ?3";
            if change.execute(query, values)? == 1 {
                change.commit()?;
                return Ok(AnswerStatus::Accepted);
            }
            let query = "SELECT answer IS NULL FROM requests WHERE id = ?1";
            let open: Option<bool> = change.query_row(query, [id], |row| row.get(0)).optional()?;
            Ok(match open {
                None => AnswerStatus::UnknownRequest,
                Some(true) => AnswerStatus::Expired,
                Some(false) => AnswerStatus::AlreadyAnswered,
            })
        })
    }

    fn answer_of(&self, id: &str) -> Result<Option<ApprovalDecision>, StoreError> {
        self.read(None, |connection| {
            let query = "SELECT answer FROM requests WHERE id = ?1 AND answer IS NOT NULL";
            let found = connection.query_row(query, [id], column_text).optional()?;
            found.map(|answer| from_json(&answer)).transpose()
        })
    }

    fn detach(&self, id: &str, lifetime: SuspendLifetime) -> Result<(), StoreError> {
        self.read((), |connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let body = change.query_row("SELECT body FROM requests WHERE id = ?1", [id], column_text).optional()?;
            if let Some(body) = body {
                let request = ApprovalRequest { suspended: true, ..from_json(&body)? };
                change.execute("UPDATE requests SET body = ?2 WHERE id = ?1", [id, &to_json(&request)?])?;
            }
            if lifetime == SuspendLifetime::Persistent {
                change.execute("UPDATE requests SET owner = NULL WHERE id = ?1", [id])?;
            }
            Ok(change.commit()?)
        })
    }

    fn set_draft(&self, id: &str, draft: &ArgumentDraft) -> Result<bool, StoreError> {
        self.read(false, |connection| {
            let query = "UPDATE requests SET draft = ?2, draft_id = ?3 WHERE id = ?1 AND (?4 OR draft_id = ?3)";
            let values = params![id, to_json(draft)?, draft.id, draft.outcome.is_none()];
            Ok(connection.execute(query, values)? == 1)
        })
    }

    fn draft_of(&self, id: &str) -> Result<Option<ArgumentDraft>, StoreError> {
        self.read(None, |connection| {
            let query = "SELECT draft FROM requests WHERE id = ?1 AND draft IS NOT NULL";
            let found = connection.query_row(query, [id], column_text).optional()?;
            found.map(|draft| from_json(&draft)).transpose()
        })
    }

    fn close_request(&self, id: &str) -> Result<(), StoreError> {
        self.read((), |connection| {
            connection.execute("DELETE FROM requests WHERE id = ?1", [id])?;
            Ok(())
        })
    }

    fn add_grant(&self, grant: &Grant) -> Result<(), StoreError> {
        self.write(|connection| {
            let values = params![grant.id, to_json(grant)?, nanos(grant.until)];
            connection.execute("INSERT INTO grants (id, body, until) VALUES (?1, ?2, ?3)", values)?;
            Ok(())
        })
    }

    fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, StoreError> {
        self.read(Vec::new(), |connection| {
            query_all(connection, "SELECT body FROM grants WHERE until > ?1 ORDER BY number", now)
        })
    }

    fn revoke_grant(&self, id: &str) -> Result<bool, StoreError> {
        self.read(false, |connection| Ok(connection.execute("DELETE FROM grants WHERE id = ?1", [id])? > 0))
    }

    fn record_denial(&self, session: &str, principal: &str, now: SystemTime) -> Result<(), StoreError> {
        self.write(|connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let long_ago = now.checked_sub(DENIAL_STREAK_LIFETIME).unwrap_or(SystemTime::UNIX_EPOCH);
            change.execute("DELETE FROM denials WHERE last <= ?1", [nanos(long_ago)])?;
            let query = "INSERT INTO denials (session, principal, count, last) VALUES (?1, ?2, 1, ?3)
                         ON CONFLICT (session) DO UPDATE SET count = count + 1, last = ?3";
            change.execute(query, params![session, principal, nanos(now)])?;
            Ok(change.commit()?)
        })
    }

    fn denial_streaks(&self) -> Result<Vec<DenialStreak>, StoreError> {
        self.read(Vec::new(), |connection| {
            let mut statement = connection.prepare("SELECT session, principal, count FROM denials ORDER BY number")?;
            let noes = statement.query_map([], |row| {
                let count = u64::try_from(row.get::<_, i64>(2)?).unwrap_or_default();
                Ok(DenialStreak { session: row.get(0)?, principal: row.get(1)?, count })
            })?;
            Ok(noes.collect::<Result<_, _>>()?)
        })
    }

    fn reset_denials(&self, session: &str) -> Result<bool, StoreError> {
        self.read(false, |connection| Ok(connection.execute("DELETE FROM denials WHERE session = ?1", [session])? > 0))
    }

    fn consume_nonce(&self, nonce: &str, expires: SystemTime, now: SystemTime) -> Result<bool, StoreError> {
        self.write(|connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            change.execute("DELETE FROM used_resume_tokens WHERE expires <= ?1", [nanos(now)])?;
            let values = params![nonce, nanos(expires)];
            let query = "INSERT OR IGNORE INTO used_resume_tokens (nonce, expires) VALUES (?1, ?2)";
            let first = change.execute(query, values)? == 1;
            change.commit()?;
            Ok(first)
        })
    }

    fn sealing_key(&self) -> Result<[u8; 32], StoreError> {
        self.write(|connection| {
            let read = |connection: &Connection| {
                connection.query_row("SELECT key FROM keys WHERE name = 'seal'", [], |row| row.get(0)).optional()
            };
            if let Some(key) = read(connection)? {
                return Ok(key);
            }
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(|_| io::Error::other("the system gives no random bytes"))?;
            // Another process may be first: then its key is everybody's.
            connection.execute("INSERT OR IGNORE INTO keys (name, key) VALUES ('seal', ?1)", [key])?;
            read(connection)?.ok_or_else(|| io::Error::other("the key for tokens is missing").into())
        })
    }
}

/// A connection of one's own to the store of a state directory.
pub(crate) fn connect(state: &Path) -> Result<Connection, SqliteError> {
    open(&state.join(STORE_FILE))
}

/// Opens the file, makes it if it is missing, and brings it to this version.
fn open(file: &Path) -> Result<Connection, SqliteError> {
    if let Some(state) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    }
    // One at a time: SQLite does not wait for another process that changes the mode of the journal.
    let _opening = open_lock(file)?;
    adopt_former_store(file)?;
    // Made by us and not by SQLite, so that nobody else may read it from the first moment on. One that is there is not
    // opened besides SQLite: closing it would end the locks that this process has on it.
    match open_private(OpenOptions::new().create_new(true), file) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ if !std::fs::symlink_metadata(file)?.is_file() => {
            let message = format!("`{STORE_FILE}` in the state directory is not a regular file");
            return Err(io::Error::other(message).into());
        }
        _ => {}
    }
    let mut connection = open_existing(file)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Arguments have contents of files in them, which are nobody's business once they are answered.
    connection.pragma_update(None, "secure_delete", "ON")?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Whether a state directory has a store, by its name or the former one.
pub(crate) fn store_exists(state: &Path) -> io::Result<bool> {
    Ok(state.join(STORE_FILE).try_exists()? || is_former_store(&state.join(FORMER_STORE_FILE))?)
}

/// Makes versions before the present name of the store refuse this state directory, also where there is no store: they
/// would append records of their own vocabulary, and start a store beside this version's.
pub(crate) fn refuse_earlier_versions(state: &Path) -> Result<(), StoreError> {
    let former = state.join(FORMER_STORE_FILE);
    let leave = || {
        let _opening = open_lock(&former)?;
        write_tombstone(&former)
    };
    if former.try_exists().map_err(StoreError)? { Ok(()) } else { leave().map_err(StoreError) }
}

fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.write(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS).open(path)
}

/// Held while a database is opened and brought to this version.
fn open_lock(database: &Path) -> io::Result<File> {
    let lock = open_private(OpenOptions::new().create(true), &database.with_extension("lock"))?;
    while let Err(error) = lock.lock() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(lock)
}

fn open_existing(file: &Path) -> Result<Connection, SqliteError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Moves the store of an earlier version to its present name, and leaves a tombstone for earlier versions.
fn adopt_former_store(file: &Path) -> Result<(), SqliteError> {
    let former = file.with_file_name(FORMER_STORE_FILE);
    let is_adopted = file.try_exists()?;
    if is_adopted && former.try_exists()? {
        return Ok(());
    }
    // Earlier versions open theirs under this lock.
    let _opening = open_lock(&former)?;
    if !is_adopted && is_former_store(&former)? {
        let connection = open_existing(&former)?;
        // This folds the write-ahead log into the file, and fails while another process has it open.
        connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
        drop(connection);
        std::fs::rename(&former, file)?;
    }
    Ok(write_tombstone(&former)?)
}

/// Writes the tombstone, unless there is something of its name. To be called under the lock of earlier versions.
fn write_tombstone(former: &Path) -> io::Result<()> {
    if former.try_exists()? {
        return Ok(());
    }
    let unfinished = former.with_extension("new");
    let mut file = open_private(OpenOptions::new().create(true).truncate(true), &unfinished)?;
    file.write_all(&tombstone_page())?;
    file.sync_all()?;
    std::fs::rename(&unfinished, former)
}

/// An SQLite database without tables: one page, in the journal mode of earlier versions, so that opening it changes nothing.
fn tombstone_page() -> [u8; TOMBSTONE_BYTES] {
    const HEADER: &[u8] = b"SQLite format 3\0\x02\x00\x02\x02\x00\x40\x20\x20";
    const EMPTY_TABLE_LEAF: &[u8] = b"\x0d\0\0\0\0\x02\0\0";
    let mut page = [0; TOMBSTONE_BYTES];
    page[..HEADER.len()].copy_from_slice(HEADER);
    // Change counter, pages, schema format, text encoding, schema version, and which SQLite wrote it at which change.
    let numbers =
        [(24, 1), (28, 1), (44, 4), (56, 1), (USER_VERSION_OFFSET, TOMBSTONE_VERSION), (92, 1), (96, 3_045_000)];
    for (offset, number) in numbers {
        page[offset..offset + 4].copy_from_slice(&u32::to_be_bytes(number));
    }
    page[100..100 + EMPTY_TABLE_LEAF.len()].copy_from_slice(EMPTY_TABLE_LEAF);
    page
}

/// Whether this is the store of an earlier version, and not the tombstone.
fn is_former_store(former: &Path) -> io::Result<bool> {
    if !former.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    let mut version = [0; 4];
    let file = OpenOptions::new().read(true).custom_flags(PLAIN_FILE_FLAGS).open(former)?;
    match file.read_exact_at(&mut version, USER_VERSION_OFFSET as u64) {
        // A database that is empty has no header.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        read => read.map(|()| u32::from_be_bytes(version) != TOMBSTONE_VERSION),
    }
}

fn schema_version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn migrate(connection: &mut Connection) -> Result<(), SqliteError> {
    let newest = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    if schema_version(connection)? == newest {
        return Ok(());
    }
    // Of several processes at once, one does it and the others find it done.
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = schema_version(&change)?;
    let Some(missing) = usize::try_from(found).ok().and_then(|found| MIGRATIONS.get(found..)) else {
        return Err(SqliteError::Newer { found, newest });
    };
    for step in missing {
        change.execute_batch(step)?;
    }
    change.pragma_update(None, "user_version", newest)?;
    Ok(change.commit()?)
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqliteError {
    #[error(
        "`{STORE_FILE}` in the state directory was made by a later ringfence: version {found}, and this one knows {newest}"
    )]
    Newer { found: u32, newest: u32 },
    #[error(
        "the store in the state directory, `{STORE_FILE}` or `{FORMER_STORE_FILE}` of an earlier version, is damaged; move it \
         away to go on: persistent grants are lost and asked about again"
    )]
    Damaged(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "another process holds the store in the state directory, `{STORE_FILE}` or `{FORMER_STORE_FILE}` of an earlier version; \
         stop ringfence processes of an earlier version and try again"
    )]
    Busy,
    #[error(transparent)]
    Other(rusqlite::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.into()),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            // A table that is not there, or has something else in it.
            None | Some(ErrorCode::Unknown | ErrorCode::TypeMismatch) => Self::Damaged(error.into()),
            Some(_) => Self::Other(error),
        }
    }
}

impl SqliteError {
    pub(crate) fn into_store_error(self) -> StoreError {
        StoreError(io::Error::other(self))
    }
}

fn column_text(row: &rusqlite::Row<'_>) -> rusqlite::Result<String> {
    row.get(0)
}

fn query_all<T: DeserializeOwned>(
    connection: &Connection,
    query: &str,
    now: SystemTime,
) -> Result<Vec<T>, SqliteError> {
    let mut statement = connection.prepare(query)?;
    let rows = statement.query_map([nanos(now)], column_text)?;
    rows.map(|body| from_json(&body?)).collect()
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<String, SqliteError> {
    serde_json::to_string(value).map_err(|error| SqliteError::Io(error.into()))
}

pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, SqliteError> {
    serde_json::from_str(text).map_err(|error| SqliteError::Damaged(error.into()))
}

/// Since 1970. What is later than these numbers reach is as late as they do.
pub(crate) fn nanos(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::{ApiTable, EVICT_OF_TOKEN, IdempotencyState, SqliteStore};

    #[test]
    fn one_token_pushes_out_no_idempotency_key_of_another() {
        const MOST: i64 = 4;
        let state = tempfile::tempdir().unwrap();
        let store = SqliteStore::new(state.path());
        let claim = |scope: &str, key: &str| {
            let claimed = store.claim_key(scope, key, "d", SystemTime::now()).unwrap();
            store.write(|connection| Ok(connection.execute(EVICT_OF_TOKEN, [MOST])?)).unwrap();
            claimed
        };
        assert_eq!(claim("other\n/p", "k"), IdempotencyState::New);
        store.save_reply("other\n/p", "k", "r").unwrap();
        assert_eq!(claim("busy\n/0", "under way"), IdempotencyState::New);
        for number in 0..MOST * 2 {
            let (scope, key) = (format!("busy\n/{number}"), number.to_string());
            assert_eq!(claim(&scope, &key), IdempotencyState::New);
            store.save_reply(&scope, &key, "r").unwrap();
        }
        assert_eq!(claim("other\n/p", "k"), IdempotencyState::Done("r".to_owned()));
        // Of its own the oldest are gone, and none whose request is under way.
        assert_eq!(claim("busy\n/0", "under way"), IdempotencyState::InProgress);
        assert_eq!(claim("busy\n/0", "0"), IdempotencyState::New);
    }

    #[test]
    fn only_what_is_over_goes_and_first_that_of_the_token_with_most() {
        let state = tempfile::tempdir().unwrap();
        let store = SqliteStore::new(state.path());
        for (shelf, open, over) in [
            (ApiTable::Sessions, json!({"ended": null}), json!({"ended": "t"})),
            (ApiTable::Runs, json!({"state": "running"}), json!({"state": "answered"})),
        ] {
            let keep = |id: &str, owner: &str, view: &serde_json::Value| {
                store.save_record(shelf, id, &json!({"id": id, "owner": owner, "view": view}).to_string(), 3).unwrap();
            };
            keep("open", "other", &open);
            keep("over", "other", &over);
            (0..9).for_each(|number| keep(&format!("busy-{number}"), "busy", &over));
            let kept = store.records(shelf).unwrap();
            let ids = kept.iter().map(|body| serde_json::from_str::<serde_json::Value>(body).unwrap()["id"].clone());
            assert_eq!(ids.collect::<Vec<_>>(), ["open", "over", "busy-7", "busy-8"]);
        }
    }
}
