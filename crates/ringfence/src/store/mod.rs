//! SQLite store: one file in the state directory, shared by every process of this user. Access tokens (`tokens.rs`) and
//! transcripts of agent sessions (`transcripts.rs`) are in it too.
//!
//! Requests, answers and grants are on disk before they are visible, and survive a restart. The file is made at the
//! first write, so that a user without requests never has one. A file that is damaged, or was made by a later version,
//! is an error that says so. A request whose process was killed is removed on the next access (`process/process_lock.rs`),
//! unless it was detached.
//!
//! Not here: who may answer (the kernel's `inbox.rs`).

mod schema;
pub mod tokens;
pub mod transcripts;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    ApprovalAnswerStatus, ApprovalDecision, ApprovalRequest, ApprovalStore, ArgumentDraft, DENIAL_STREAK_LIFETIME,
    DenialStreak, Grant, Principal, StoreError, SuspendLifetime,
};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::schema::STORE_FILE;
use self::schema::{SqliteError, open, store_exists};
pub(crate) use self::schema::{refuse_earlier_versions, refuse_newer_store};
use crate::process::process_lock::ProcessLock;

/// Lifetime of an idempotency key, and the most keys of a scope (a token and a path) and in all.
const KEY_LIFETIME: Duration = Duration::from_hours(24);
const KEYS_PER_SCOPE: i64 = 128;
const MAX_KEYS: i64 = 4096;

/// Of a scope with too many keys the oldest go; one whose request is under way goes last.
const EVICT_OF_SCOPE: &str = "DELETE FROM idempotency_keys WHERE scope = ?1 AND number NOT IN
    (SELECT number FROM idempotency_keys WHERE scope = ?1 ORDER BY reply IS NULL DESC, number DESC LIMIT ?2)";

/// Over the limit, the token with the most keys loses its oldest: no token evicts another's.
const EVICT_OF_TOKEN: &str = "DELETE FROM idempotency_keys WHERE (SELECT count(*) FROM idempotency_keys) > ?1 AND number =
    (SELECT number FROM idempotency_keys WHERE substr(scope, 1, instr(scope, char(10))) =
        (SELECT substr(scope, 1, instr(scope, char(10))) FROM idempotency_keys GROUP BY 1 ORDER BY count(*) DESC LIMIT 1)
     ORDER BY reply IS NULL, number LIMIT 1)";

/// State of an idempotency key.
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

/// A table of the API's records.
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

    /// SQL condition of the records that are over, and may be removed. The others are in use.
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
    /// The process that waits for the requests opened here.
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

    /// The digest of the server's definition of this tool when it was last used.
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

    /// Stores a record of the API, replacing the one with its ID, and keeps a limited number of those that are over.
    /// Over the limit, the token with the most records loses its oldest: no token evicts another's.
    pub(crate) fn save_record(&self, api_table: ApiTable, id: &str, body: &str, most: usize) -> Result<(), StoreError> {
        let table = api_table.table();
        self.write(|connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let query =
                format!("INSERT INTO {table} (id, body) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET body = ?2");
            change.execute(&query, [id, body])?;
            let (over, owner) = (api_table.ended_condition(), "json_extract(body, '$.owner')");
            let query = format!(
                "DELETE FROM {table} WHERE (SELECT count(*) FROM {table} WHERE {over}) > ?1 AND number =
                     (SELECT min(number) FROM {table} WHERE {over} AND {owner} =
                         (SELECT {owner} FROM {table} WHERE {over} GROUP BY 1 ORDER BY count(*) DESC LIMIT 1))"
            );
            change.execute(&query, [i64::try_from(most).unwrap_or(i64::MAX)])?;
            Ok(change.commit()?)
        })
    }

    /// The stored records, the oldest first.
    pub(crate) fn records(&self, api_table: ApiTable) -> Result<Vec<String>, StoreError> {
        self.read(Vec::new(), |connection| {
            let query = format!("SELECT body FROM {} ORDER BY number", api_table.table());
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

    /// The lock of this process, made with its first request.
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

    /// Removes abandoned requests.
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
        self.connection.lock()
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

    fn answer(
        &self,
        id: &str,
        answered: &ApprovalDecision,
        now: SystemTime,
    ) -> Result<ApprovalAnswerStatus, StoreError> {
        self.read(ApprovalAnswerStatus::UnknownRequest, |connection| {
            self.remove_abandoned(connection)?;
            let values = params![id, to_json(answered)?, nanos(now)];
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let query = "UPDATE requests SET answer = ?2 WHERE id = ?1 AND answer IS NULL AND expires > ?3";
            if change.execute(query, values)? == 1 {
                change.commit()?;
                return Ok(ApprovalAnswerStatus::Accepted);
            }
            let query = "SELECT answer IS NULL FROM requests WHERE id = ?1";
            let open: Option<bool> = change.query_row(query, [id], |row| row.get(0)).optional()?;
            Ok(match open {
                None => ApprovalAnswerStatus::UnknownRequest,
                Some(true) => ApprovalAnswerStatus::Expired,
                Some(false) => ApprovalAnswerStatus::AlreadyAnswered,
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
            let streak = statement.query_map([], |row| {
                let count = u64::try_from(row.get::<_, i64>(2)?).unwrap_or_default();
                Ok(DenialStreak { session: row.get(0)?, principal: row.get(1)?, count })
            })?;
            Ok(streak.collect::<Result<_, _>>()?)
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
            getrandom::fill(&mut key).map_err(|_| io::Error::other("the system's random number generator failed"))?;
            // Another process may be first: then its key is used by all.
            connection.execute("INSERT OR IGNORE INTO keys (name, key) VALUES ('seal', ?1)", [key])?;
            read(connection)?.ok_or_else(|| io::Error::other("the key for resume tokens is missing").into())
        })
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

/// Nanoseconds since 1970. Later times saturate.
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
        for (api_table, open, over) in [
            (ApiTable::Sessions, json!({"ended": null}), json!({"ended": "t"})),
            (ApiTable::Runs, json!({"state": "running"}), json!({"state": "answered"})),
        ] {
            let keep = |id: &str, owner: &str, view: &serde_json::Value| {
                store
                    .save_record(api_table, id, &json!({"id": id, "owner": owner, "view": view}).to_string(), 3)
                    .unwrap();
            };
            keep("open", "other", &open);
            keep("over", "other", &over);
            (0..9).for_each(|number| keep(&format!("busy-{number}"), "busy", &over));
            let kept = store.records(api_table).unwrap();
            let ids = kept.iter().map(|body| serde_json::from_str::<serde_json::Value>(body).unwrap()["id"].clone());
            assert_eq!(ids.collect::<Vec<_>>(), ["open", "over", "busy-7", "busy-8"]);
        }
    }
}
