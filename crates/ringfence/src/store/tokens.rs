//! Access tokens for `ringfence serve`.
//!
//! A token is made once, printed once, and kept only as its hash. Its bearer acts under its name, with the rights of
//! its scopes: an agent's is for calls alone. Records belong to the ID of a token, so a new token with the name of a
//! revoked one owns none of them. One that the page got by a link of the server's own terminal is a person's, and
//! expires.
//!
//! Up to version 0.1.0 tokens were in a file of their own. The first use imports it, and leaves a file in its place that
//! earlier versions refuse.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use ringfence_fs::PLAIN_FILE_FLAGS;
use ringfence_kernel::{Assurance, AuthScope, Principal, StoreError};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::codec::io_text::IoText;
use crate::store::{SqliteError, SqliteStore, column_text, from_json, to_json};

/// Where tokens were up to version 0.1.0, and the lock of its writers.
const FORMER_FILE: &str = "tokens.json";
const FORMER_LOCK: &str = "tokens.lock";
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Contents of the former file after its import. Earlier versions expect a list, and refuse this.
const MOVED: &str = "{\"movedTo\": \"state.db\"}\n";

const MAX_NAME_CHARS: usize = 64;

/// Lifetime of a page's token.
pub const PAGE_TOKEN_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// Lifetime of a login link.
const LOGIN_CODE_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// Most tokens.
const MAX_TOKENS: i64 = 1024;

/// Prefix of every ID. Names have no full stop, so no ID is the name of a token without one.
const ID_MARK: &str = "tok.";

/// Characters of an id.
const ID_LENGTH: usize = ID_MARK.len() + 32;

/// Prefix of every token, by which leaked ones are recognised.
const TOKEN_PREFIX: &str = "rft_";

/// Failure of a token operation.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("invalid token name `{0}`: use up to {MAX_NAME_CHARS} letters, digits, `-` and `_`")]
    Name(String),
    #[error("a token `{0}` already exists; revoke it with `ringfence token revoke {0}`")]
    Taken(String),
    #[error("there is no token `{0}`; `ringfence token list` shows all tokens")]
    Unknown(String),
    #[error("the limit of {MAX_TOKENS} tokens is reached; revoke one with `ringfence token revoke NAME`")]
    TooMany,
    #[error("the system's random number generator failed")]
    Entropy,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "cannot import `{FORMER_FILE}` in the state directory: {}; move it away to continue without its tokens",
        IoText(.0)
    )]
    Import(io::Error),
}

/// The tokens of a user.
#[derive(Clone, Debug)]
pub struct TokenStore {
    store: Arc<SqliteStore>,
    /// Set once no former file is left to import.
    imported: Arc<OnceLock<()>>,
}

/// The identity of a token's bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIdentity {
    /// Owner of the token's records.
    pub id: Arc<str>,
    /// Display name.
    pub name: Arc<str>,
    pub scopes: BTreeSet<AuthScope>,
    /// Assurance of answers that come with it.
    pub assurance: Assurance,
}

impl TokenIdentity {
    pub fn has_scope(&self, scope: AuthScope) -> bool {
        self.scopes.contains(&scope)
    }

    /// The principal of its answers.
    pub fn principal(&self) -> Principal {
        Principal { name: self.name.to_string(), scopes: self.scopes.clone() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredToken {
    name: String,
    /// Entries of version 0.1.0 have none: they own what was kept by their name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// SHA-256 of the token, which is random and long enough for that.
    hash: String,
    since: String,
    #[serde(default = "calls_only")]
    scopes: BTreeSet<AuthScope>,
    /// A page has it, which a person opened by a link of ours.
    #[serde(default)]
    page: bool,
    /// When it ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

impl StoredToken {
    /// Whether it is a login code, which a page exchanges for a token.
    fn is_login_code(&self) -> bool {
        self.page && self.scopes.is_empty()
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| SystemTime::UNIX_EPOCH + Duration::from_secs(until) > now)
    }

    /// An imported token may be there already.
    fn insert_into(&self, connection: &Connection) -> Result<(), SqliteError> {
        let query = "INSERT OR IGNORE INTO tokens (name, hash, until, body) VALUES (?1, ?2, ?3, ?4)";
        let until = self.until.map(|until| i64::try_from(until).unwrap_or(i64::MAX));
        connection.execute(query, params![self.name, self.hash, until, to_json(self)?])?;
        Ok(())
    }

    fn into_identity(self) -> TokenIdentity {
        TokenIdentity {
            id: Arc::from(self.id.as_deref().unwrap_or(&self.name)),
            name: Arc::from(self.name),
            scopes: self.scopes,
            assurance: if self.page { Assurance::Person } else { Assurance::Relayed },
        }
    }
}

fn calls_only() -> BTreeSet<AuthScope> {
    BTreeSet::from([AuthScope::Call])
}

impl TokenStore {
    /// The tokens of a store. Nothing is opened yet.
    pub fn new(store: Arc<SqliteStore>) -> Self {
        Self { store, imported: Arc::default() }
    }

    /// Makes a token. This is the only time that it can be seen.
    pub fn create(&self, name: &str, scopes: BTreeSet<AuthScope>) -> Result<String, TokenError> {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
        if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.bytes().all(fits) {
            return Err(TokenError::Name(name[..name.floor_char_boundary(MAX_NAME_CHARS)].to_owned()));
        }
        self.insert(&NewToken::new(name, scopes, None)?)
    }

    /// Makes a code that a page is let in by, once. For a person who can read where it is printed.
    pub fn create_login_code(&self) -> Result<String, TokenError> {
        // No agent's token is called so: the brackets are not for names that people give.
        let name = format!("link ({})", &new_secret("")?[..8]);
        self.insert(&NewToken::new(&name, BTreeSet::new(), Some(SystemTime::now() + LOGIN_CODE_LIFETIME))?)
    }

    /// A page's token for a code, which is used up by it. Nothing for one that is not good.
    pub fn redeem(&self, code: &str) -> Result<Option<(String, TokenIdentity)>, TokenError> {
        let (hash, now) = (hash(code), SystemTime::now());
        let new = NewToken::for_page(PAGE_TOKEN_LIFETIME)?;
        self.import_former_file()?;
        let redeemed = self.store.write(|connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if !find_token(&change, &hash)?.is_some_and(|kept| kept.is_login_code() && kept.is_valid(now)) {
                return Ok(Ok(false));
            }
            change.execute("DELETE FROM tokens WHERE hash = ?1", [&hash])?;
            match new.insert_into(&change)? {
                Ok(()) => change.commit()?,
                Err(error) => return Ok(Err(error)),
            }
            Ok(Ok(true))
        })??;
        Ok(redeemed.then(|| (new.token, new.kept.into_identity())))
    }

    fn insert(&self, new: &NewToken) -> Result<String, TokenError> {
        self.import_former_file()?;
        self.store.write(|connection| {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let inserted = new.insert_into(&change)?;
            change.commit()?;
            Ok(inserted)
        })??;
        Ok(new.token.clone())
    }

    /// Revokes a token, from the next request on.
    pub fn revoke(&self, name: &str) -> Result<(), TokenError> {
        self.import_former_file()?;
        let query = "DELETE FROM tokens WHERE name = ?1";
        match self.store.read(0, |connection| Ok(connection.execute(query, [name])?))? {
            0 => Err(TokenError::Unknown(name.to_owned())),
            _ => Ok(()),
        }
    }

    /// A line for each: since when it is there, its name, and what it is good for.
    pub fn list(&self) -> Result<String, TokenError> {
        let now = SystemTime::now();
        let line = |kept: &StoredToken| {
            let scopes: Vec<&str> = kept.scopes.iter().map(|scope| scope.name()).collect();
            format!("{}  {}  {}\n", kept.since, kept.name, scopes.join(","))
        };
        self.import_former_file()?;
        let all = self.store.read(Vec::new(), |connection| {
            let mut statement = connection.prepare("SELECT body FROM tokens ORDER BY number")?;
            let bodies = statement.query_map([], column_text)?;
            bodies.map(|body| from_json::<StoredToken>(&body?)).collect()
        })?;
        Ok(all.iter().filter(|kept| kept.is_valid(now) && !kept.is_login_code()).map(line).collect())
    }

    /// The identity of a token.
    pub fn authenticate(&self, token: &str) -> Result<Option<TokenIdentity>, TokenError> {
        let (hash, now) = (hash(token), SystemTime::now());
        self.import_former_file()?;
        let found = self.store.read(None, |connection| find_token(connection, &hash))?;
        Ok(found.filter(|kept| kept.is_valid(now) && !kept.is_login_code()).map(StoredToken::into_identity))
    }

    /// Imports the file of an earlier version. It is done before anything else, so a token that was revoked since cannot
    /// come back from there.
    fn import_former_file(&self) -> Result<(), TokenError> {
        if self.imported.get().is_some() {
            return Ok(());
        }
        if self.read_former_file().map_err(TokenError::Import)?.is_some() {
            // Opened before the file is: a newer version's store is refused.
            self.store.write(|_| Ok(()))?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS);
            let lock = options.open(self.store.state().join(FORMER_LOCK)).map_err(TokenError::Import)?;
            lock.lock().map_err(TokenError::Import)?;
            // Another process may have imported it meanwhile.
            if let Some(tokens) = self.read_former_file().map_err(TokenError::Import)? {
                self.store.write(|connection| {
                    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    tokens.iter().try_for_each(|kept| kept.insert_into(&change))?;
                    Ok(change.commit()?)
                })?;
                self.replace_former_file().map_err(TokenError::Import)?;
            }
        }
        self.imported.get_or_init(|| ());
        Ok(())
    }

    /// The tokens of an earlier version, unless they have been imported.
    fn read_former_file(&self) -> io::Result<Option<Vec<StoredToken>>> {
        let mut options = OpenOptions::new();
        let path = self.store.state().join(FORMER_FILE);
        let file = match options.read(true).custom_flags(PLAIN_FILE_FLAGS).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
        if text == MOVED { Ok(None) } else { Ok(Some(serde_json::from_str(&text)?)) }
    }

    /// Atomically: a new file replaces the old one.
    fn replace_former_file(&self) -> io::Result<()> {
        let state = self.store.state();
        let new = state.join(format!("{FORMER_FILE}.{}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(MOVED.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, state.join(FORMER_FILE))
    }
}

/// A token that is not stored yet.
struct NewToken {
    token: String,
    kept: StoredToken,
}

impl NewToken {
    fn new(name: &str, scopes: BTreeSet<AuthScope>, page_until: Option<SystemTime>) -> Result<Self, TokenError> {
        let token = new_secret(TOKEN_PREFIX)?;
        let id = new_secret(ID_MARK)?[..ID_LENGTH].to_owned();
        let since = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let until = page_until.and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|t| t.as_secs());
        let (name, page) = (name.to_owned(), page_until.is_some());
        let kept = StoredToken { name, id: Some(id), hash: hash(&token), since, scopes, page, until };
        Ok(Self { token, kept })
    }

    /// For a page that a person opened.
    fn for_page(time: Duration) -> Result<Self, TokenError> {
        let name = format!("page ({})", &new_secret("")?[..8]);
        Self::new(&name, Principal::person("").scopes, Some(SystemTime::now() + time))
    }

    /// Makes room by removing what expired.
    fn insert_into(&self, connection: &Connection) -> Result<Result<(), TokenError>, SqliteError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        connection.execute("DELETE FROM tokens WHERE until <= ?1", [i64::try_from(now).unwrap_or(i64::MAX)])?;
        let name = &self.kept.name;
        let query = "SELECT count(*), count(*) FILTER (WHERE name = ?1) FROM tokens";
        let (all, of_name): (i64, i64) = connection.query_row(query, [name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if of_name > 0 {
            return Ok(Err(TokenError::Taken(name.clone())));
        }
        if all >= MAX_TOKENS {
            return Ok(Err(TokenError::TooMany));
        }
        self.kept.insert_into(connection).map(Ok)
    }
}

fn find_token(connection: &Connection, hash: &str) -> Result<Option<StoredToken>, SqliteError> {
    let query = "SELECT body FROM tokens WHERE hash = ?1";
    let body = connection.query_row(query, [hash], column_text).optional()?;
    body.map(|body| from_json(&body)).transpose()
}

/// An unguessable secret.
pub(crate) fn new_secret(mark: &str) -> Result<String, TokenError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| TokenError::Entropy)?;
    Ok(format!("{mark}{}", hex(&bytes)))
}

pub(crate) fn hash(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use ringfence_kernel::{Assurance, AuthScope};

    use super::{FORMER_FILE, MOVED, NewToken, TokenError, TokenStore, calls_only, hash};
    use crate::store::{STORE_FILE, SqliteStore};

    fn token_store(state: &Path) -> TokenStore {
        TokenStore::new(Arc::new(SqliteStore::new(state)))
    }

    fn create_page_token(tokens: &TokenStore, time: Duration) -> String {
        tokens.insert(&NewToken::for_page(time).unwrap()).unwrap()
    }

    #[test]
    fn a_token_is_valid_until_revoked_and_only_its_hash_is_stored() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = token_store(&directory.path().join("state"));
        let make = |name| tokens.create(name, calls_only()).unwrap();
        let (first, second) = (make("first"), make("second"));
        assert_ne!(first, second);
        let name = |token: &str| tokens.authenticate(token).unwrap().map(|owner| owner.name.to_string());
        assert_eq!(name(&first).as_deref(), Some("first"));
        for other in ["", "rft_", &first[..first.len() - 1], &format!("{first}0"), &first.to_uppercase()] {
            assert_eq!(name(other), None, "{other}");
        }
        for file in std::fs::read_dir(directory.path().join("state")).unwrap().map(Result::unwrap) {
            let kept = std::fs::read(file.path()).unwrap();
            let contains = |token: &str| kept.windows(token.len()).any(|bytes| bytes == token.as_bytes());
            assert!(!contains(&first[4..]) && !contains(&second[4..]), "{file:?}");
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        }
        tokens.revoke("first").unwrap();
        tokens.revoke("first").unwrap_err();
        assert_eq!(name(&first), None);
        assert_eq!(name(&second).as_deref(), Some("second"));
    }

    #[test]
    fn a_name_is_for_one_token_and_has_no_surprises() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = token_store(directory.path());
        tokens.create("a", calls_only()).unwrap();
        for name in ["a", "", "b c", "b/c", "ü", "page (0)", &"x".repeat(65)] {
            tokens.create(name, calls_only()).unwrap_err();
        }
    }

    #[test]
    fn a_token_is_good_for_its_scopes_and_only_a_page_s_is_a_person_s() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = token_store(directory.path());
        let agent = tokens.authenticate(&tokens.create("agent", calls_only()).unwrap()).unwrap().unwrap();
        assert!(
            agent.has_scope(AuthScope::Call)
                && !agent.has_scope(AuthScope::Approve)
                && !agent.has_scope(AuthScope::Undo)
        );
        let script = tokens.create("script", BTreeSet::from([AuthScope::Approve])).unwrap();
        let script = tokens.authenticate(&script).unwrap().unwrap();
        assert_eq!((script.has_scope(AuthScope::Call), script.has_scope(AuthScope::Approve)), (false, true));
        assert_eq!((agent.assurance, script.assurance), (Assurance::Relayed, Assurance::Relayed));
        let page = tokens.authenticate(&create_page_token(&tokens, Duration::from_secs(60))).unwrap().unwrap();
        assert_eq!((page.has_scope(AuthScope::Approve), page.assurance), (true, Assurance::Person));
        assert_eq!(tokens.authenticate(&create_page_token(&tokens, Duration::ZERO)).unwrap(), None);
    }

    #[test]
    fn an_id_is_for_one_token_and_is_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = token_store(directory.path());
        let id = |token: &str| tokens.authenticate(token).unwrap().unwrap().id;
        let make = || id(&tokens.create("agent", calls_only()).unwrap());
        let first = make();
        assert_eq!(id(&create_page_token(&tokens, Duration::from_secs(60))).len(), first.len());
        tokens.revoke("agent").unwrap();
        assert_ne!(make(), first);
        tokens.create(&first, calls_only()).unwrap_err();
    }

    #[test]
    fn a_login_code_works_once_and_does_not_authenticate_requests() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = token_store(directory.path());
        let code = tokens.create_login_code().unwrap();
        assert_eq!(tokens.authenticate(&code).unwrap(), None);
        assert!(!tokens.list().unwrap().contains("link"));
        let agent = tokens.create("agent", calls_only()).unwrap();
        assert!(tokens.redeem(&agent).unwrap().is_none());
        let (token, owner) = tokens.redeem(&code).unwrap().unwrap();
        assert_eq!(tokens.authenticate(&token).unwrap(), Some(owner));
        assert!(tokens.redeem(&code).unwrap().is_none() && tokens.redeem(&token).unwrap().is_none());
    }

    /// A state directory with the file of version 0.1.0, which has the token `rft_x`.
    fn former_state() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let kept = format!(r#"[{{"name":"old","hash":"{}","since":"2026-01-01T00:00:00Z"}}]"#, hash("rft_x"));
        std::fs::write(directory.path().join(FORMER_FILE), kept).unwrap();
        directory
    }

    #[test]
    fn tokens_of_an_older_file_are_for_calls_alone() {
        let directory = former_state();
        let tokens = token_store(directory.path());
        let owner = tokens.authenticate("rft_x").unwrap().unwrap();
        assert_eq!((owner.scopes, owner.assurance), (calls_only(), Assurance::Relayed));
        // It has no id, and owns what was kept by its name.
        assert_eq!(&*owner.id, "old");
        tokens.create("old", calls_only()).unwrap_err();
        assert!(tokens.list().unwrap().starts_with("2026-01-01T00:00:00Z  old  call"));
    }

    #[test]
    fn an_older_file_is_imported_once_and_revoked_tokens_stay_revoked() {
        let directory = former_state();
        let file = directory.path().join(FORMER_FILE);
        let former = std::fs::read(&file).unwrap();
        token_store(directory.path()).list().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), MOVED);
        // Killed between the import and the replacement of the file.
        std::fs::write(&file, former).unwrap();
        token_store(directory.path()).revoke("old").unwrap();
        assert_eq!(token_store(directory.path()).authenticate("rft_x").unwrap(), None);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), MOVED);
    }

    #[test]
    fn an_older_file_that_does_not_read_is_an_error_and_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FORMER_FILE);
        std::fs::write(&file, "[{").unwrap();
        let tokens = token_store(directory.path());
        let error = tokens.create("a", calls_only()).unwrap_err();
        assert!(matches!(error, TokenError::Import(_)), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[{");
        assert!(!directory.path().join(STORE_FILE).exists());
        std::fs::remove_file(&file).unwrap();
        tokens.create("a", calls_only()).unwrap();
    }
}
