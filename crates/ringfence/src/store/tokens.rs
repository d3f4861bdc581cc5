//! Access tokens for `ringfence serve`.
//!
//! A token is made once, printed once, and kept only as its hash. Its bearer acts under its name, with the rights of
//! its scopes: an agent's is for calls alone. Records belong to the ID of a token, so a new token with the name of a
//! revoked one owns none of them. One that the page got by a link of the server's own terminal is a person's, and
//! expires.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_fs::PLAIN_FILE_FLAGS;
use ringfence_kernel::{Assurance, AuthScope, Principal, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::store::refuse_newer_store;

const FILE: &str = "tokens.json";
const LOCK: &str = "tokens.lock";
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_NAME_CHARS: usize = 64;

/// Lifetime of a page's token.
pub const PAGE_TOKEN_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// Lifetime of a login link.
const LOGIN_CODE_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// Most tokens.
const MAX_TOKENS: usize = 1024;

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
    NewerStore(#[from] StoreError),
    #[error("cannot use the token file")]
    File(#[source] io::Error),
}

/// The tokens of a user.
#[derive(Clone, Debug)]
pub struct TokenStore {
    directory: PathBuf,
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
}

fn calls_only() -> BTreeSet<AuthScope> {
    BTreeSet::from([AuthScope::Call])
}

impl TokenStore {
    pub fn new(state: &Path) -> Self {
        Self { directory: state.to_owned() }
    }

    /// Makes a token. This is the only time that it can be seen.
    pub fn create(&self, name: &str, scopes: BTreeSet<AuthScope>) -> Result<String, TokenError> {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
        if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.bytes().all(fits) {
            return Err(TokenError::Name(name[..name.floor_char_boundary(MAX_NAME_CHARS)].to_owned()));
        }
        self.add(name, scopes, None)
    }

    /// Makes a code that a page is let in by, once. For a person who can read where it is printed.
    pub fn create_login_code(&self) -> Result<String, TokenError> {
        // No agent's token is called so: the brackets are not for names that people give.
        let name = format!("link ({})", &new_secret("")?[..8]);
        self.add(&name, BTreeSet::new(), Some(SystemTime::now() + LOGIN_CODE_LIFETIME))
    }

    /// A page's token for a code, which is used up by it. Nothing for one that is not good.
    pub fn redeem(&self, code: &str) -> Result<Option<(String, TokenIdentity)>, TokenError> {
        let (hash, now) = (hash(code), SystemTime::now());
        {
            let _alone = self.lock_exclusive()?;
            let mut all = self.load()?;
            let is_it = |kept: &StoredToken| kept.hash == hash && kept.is_login_code() && kept.is_valid(now);
            let Some(index) = all.iter().position(is_it) else { return Ok(None) };
            all.remove(index);
            self.save(&all)?;
        }
        let token = self.create_page_token(PAGE_TOKEN_LIFETIME)?;
        let owner = self.authenticate(&token)?;
        Ok(owner.map(|owner| (token, owner)))
    }

    /// Makes a token for a page that a person opened.
    fn create_page_token(&self, time: Duration) -> Result<String, TokenError> {
        let name = format!("page ({})", &new_secret("")?[..8]);
        let scopes = Principal::person("").scopes;
        self.add(&name, scopes, Some(SystemTime::now() + time))
    }

    fn add(
        &self,
        name: &str,
        scopes: BTreeSet<AuthScope>,
        page_until: Option<SystemTime>,
    ) -> Result<String, TokenError> {
        let token = new_secret(TOKEN_PREFIX)?;
        let id = new_secret(ID_MARK)?[..ID_LENGTH].to_owned();
        let now = SystemTime::now();
        let _alone = self.lock_exclusive()?;
        let mut all = self.load()?;
        all.retain(|kept| kept.is_valid(now));
        if all.iter().any(|kept| kept.name == name) {
            return Err(TokenError::Taken(name.to_owned()));
        }
        if all.len() >= MAX_TOKENS {
            return Err(TokenError::TooMany);
        }
        let since = humantime::format_rfc3339_seconds(now).to_string();
        let until = page_until.and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|t| t.as_secs());
        let (name, page) = (name.to_owned(), page_until.is_some());
        all.push(StoredToken { name, id: Some(id), hash: hash(&token), since, scopes, page, until });
        self.save(&all)?;
        Ok(token)
    }

    /// Revokes a token, from the next request on.
    pub fn revoke(&self, name: &str) -> Result<(), TokenError> {
        let _alone = self.lock_exclusive()?;
        let mut all = self.load()?;
        let before = all.len();
        all.retain(|kept| kept.name != name);
        match all.len() < before {
            true => self.save(&all),
            false => Err(TokenError::Unknown(name.to_owned())),
        }
    }

    /// A line for each: since when it is there, its name, and what it is good for.
    pub fn list(&self) -> Result<String, TokenError> {
        let now = SystemTime::now();
        let line = |kept: &StoredToken| {
            let scopes: Vec<&str> = kept.scopes.iter().map(|scope| scope.name()).collect();
            format!("{}  {}  {}\n", kept.since, kept.name, scopes.join(","))
        };
        Ok(self.load()?.iter().filter(|kept| kept.is_valid(now) && !kept.is_login_code()).map(line).collect())
    }

    /// The identity of a token.
    pub fn authenticate(&self, token: &str) -> Result<Option<TokenIdentity>, TokenError> {
        let (hash, now) = (hash(token), SystemTime::now());
        let found =
            self.load()?.into_iter().find(|kept| kept.hash == hash && kept.is_valid(now) && !kept.is_login_code());
        Ok(found.map(|kept| TokenIdentity {
            id: Arc::from(kept.id.as_deref().unwrap_or(&kept.name)),
            name: Arc::from(kept.name),
            scopes: kept.scopes,
            assurance: if kept.page { Assurance::Person } else { Assurance::Relayed },
        }))
    }

    /// Locks the file against other writers, unless a newer version wrote the state.
    fn lock_exclusive(&self) -> Result<File, TokenError> {
        refuse_newer_store(&self.directory)?;
        let lock = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS);
            let file = options.open(self.directory.join(LOCK))?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(TokenError::File)
    }

    fn load(&self) -> Result<Vec<StoredToken>, TokenError> {
        let mut options = OpenOptions::new();
        let file = match options.read(true).custom_flags(PLAIN_FILE_FLAGS).open(self.directory.join(FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(TokenError::File(error)),
        };
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(TokenError::File)?;
        serde_json::from_str(&text).map_err(|error| TokenError::File(error.into()))
    }

    /// Saves atomically: a new file replaces the old one.
    fn save(&self, all: &[StoredToken]) -> Result<(), TokenError> {
        let text = serde_json::to_vec_pretty(all).map_err(|error| TokenError::File(error.into()))?;
        let write = || {
            let new = self.directory.join(format!("{FILE}.{}", std::process::id()));
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&new, self.directory.join(FILE))
        };
        write().map_err(TokenError::File)
    }
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
    use std::time::Duration;

    use ringfence_kernel::{Assurance, AuthScope};

    use super::{TokenStore, calls_only};

    #[test]
    fn a_token_is_valid_until_revoked_and_only_its_hash_is_stored() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(&directory.path().join("state"));
        let make = |name| tokens.create(name, calls_only()).unwrap();
        let (first, second) = (make("first"), make("second"));
        assert_ne!(first, second);
        let name = |token: &str| tokens.authenticate(token).unwrap().map(|owner| owner.name.to_string());
        assert_eq!(name(&first).as_deref(), Some("first"));
        for other in ["", "rft_", &first[..first.len() - 1], &format!("{first}0"), &first.to_uppercase()] {
            assert_eq!(name(other), None, "{other}");
        }
        let file = directory.path().join("state/tokens.json");
        let kept = std::fs::read_to_string(&file).unwrap();
        assert!(!kept.contains(&first[4..]) && !kept.contains(&second[4..]));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        tokens.revoke("first").unwrap();
        tokens.revoke("first").unwrap_err();
        assert_eq!(name(&first), None);
        assert_eq!(name(&second).as_deref(), Some("second"));
    }

    #[test]
    fn a_name_is_for_one_token_and_has_no_surprises() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(directory.path());
        tokens.create("a", calls_only()).unwrap();
        for name in ["a", "", "b c", "b/c", "ü", "page (0)", &"x".repeat(65)] {
            tokens.create(name, calls_only()).unwrap_err();
        }
    }

    #[test]
    fn a_token_is_good_for_its_scopes_and_only_a_page_s_is_a_person_s() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(directory.path());
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
        let page = tokens.authenticate(&tokens.create_page_token(Duration::from_secs(60)).unwrap()).unwrap().unwrap();
        assert_eq!((page.has_scope(AuthScope::Approve), page.assurance), (true, Assurance::Person));
        assert_eq!(tokens.authenticate(&tokens.create_page_token(Duration::ZERO).unwrap()).unwrap(), None);
    }

    #[test]
    fn an_id_is_for_one_token_and_is_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(directory.path());
        let id = |token: &str| tokens.authenticate(token).unwrap().unwrap().id;
        let make = || id(&tokens.create("agent", calls_only()).unwrap());
        let first = make();
        assert_eq!(id(&tokens.create_page_token(Duration::from_secs(60)).unwrap()).len(), first.len());
        tokens.revoke("agent").unwrap();
        assert_ne!(make(), first);
        tokens.create(&first, calls_only()).unwrap_err();
    }

    #[test]
    fn a_login_code_works_once_and_does_not_authenticate_requests() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(directory.path());
        let code = tokens.create_login_code().unwrap();
        assert_eq!(tokens.authenticate(&code).unwrap(), None);
        assert!(!tokens.list().unwrap().contains("link"));
        let agent = tokens.create("agent", calls_only()).unwrap();
        assert!(tokens.redeem(&agent).unwrap().is_none());
        let (token, owner) = tokens.redeem(&code).unwrap().unwrap();
        assert_eq!(tokens.authenticate(&token).unwrap(), Some(owner));
        assert!(tokens.redeem(&code).unwrap().is_none() && tokens.redeem(&token).unwrap().is_none());
    }

    #[test]
    fn tokens_of_an_older_file_are_for_calls_alone() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(directory.path());
        let kept = format!(r#"[{{"name":"old","hash":"{}","since":"2026-01-01T00:00:00Z"}}]"#, super::hash("rft_x"));
        std::fs::write(directory.path().join("tokens.json"), kept).unwrap();
        let owner = tokens.authenticate("rft_x").unwrap().unwrap();
        assert_eq!((owner.scopes, owner.assurance), (calls_only(), Assurance::Relayed));
        // It has no id, also after the file was written again, and owns what was kept by its name.
        assert_eq!(&*owner.id, "old");
        tokens.create("new", calls_only()).unwrap();
        assert_eq!(&*tokens.authenticate("rft_x").unwrap().unwrap().id, "old");
    }
}
