//! Tokens: what a client shows at the door of `ringfence serve`.
//!
//! A token is made once, printed once, and kept only as its hash. Whoever has one is the agent that it is named after, and
//! can call tools; nothing else comes with it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_fs::PLAIN_FILE_FLAGS;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const FILE: &str = "tokens.json";
const LONGEST_FILE: u64 = 1 << 20;
const LONGEST_NAME: usize = 64;

/// What every token begins with, so that it is known where one was left lying about.
const MARK: &str = "rft_";

/// Why nothing could be done about tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("`{0}` is no name for a token: up to {LONGEST_NAME} letters, digits, `-` and `_` are")]
    Name(String),
    #[error("there is a token `{0}` already; `ringfence token revoke {0}` takes it back")]
    Taken(String),
    #[error("there is no token `{0}`; `ringfence token list` has those that there are")]
    Unknown(String),
    #[error("there is no token yet; `ringfence token new NAME` makes one")]
    None,
    #[error("the system gives no random bytes")]
    Entropy,
    #[error("the file of tokens cannot be used")]
    File(#[source] io::Error),
}

/// The tokens of a user.
#[derive(Clone, Debug)]
pub struct Tokens {
    directory: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    name: String,
    /// SHA-256 of the token, which is random and long enough for that.
    hash: String,
    since: String,
}

impl Tokens {
    pub fn new(state: &Path) -> Self {
        Self { directory: state.to_owned() }
    }

    /// Makes a token. This is the only time that it can be seen.
    pub fn make(&self, name: &str) -> Result<String, TokenError> {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(fits) {
            return Err(TokenError::Name(name[..name.floor_char_boundary(LONGEST_NAME)].to_owned()));
        }
        let mut all = self.load()?;
        if all.iter().any(|kept| kept.name == name) {
            return Err(TokenError::Taken(name.to_owned()));
        }
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|_| TokenError::Entropy)?;
        let token = format!("{MARK}{}", hex(&bytes));
        let since = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        all.push(Kept { name: name.to_owned(), hash: hash(&token), since });
        self.save(&all)?;
        Ok(token)
    }

    /// Takes a token back, from the next request on.
    pub fn revoke(&self, name: &str) -> Result<(), TokenError> {
        let mut all = self.load()?;
        let before = all.len();
        all.retain(|kept| kept.name != name);
        match all.len() < before {
            true => self.save(&all),
            false => Err(TokenError::Unknown(name.to_owned())),
        }
    }

    /// A line for each: its name, and since when it is there.
    pub fn list(&self) -> Result<String, TokenError> {
        Ok(self.load()?.iter().map(|kept| format!("{}  {}\n", kept.since, kept.name)).collect())
    }

    /// Fails where nobody could be let in.
    pub fn check_any(&self) -> Result<(), TokenError> {
        if self.load()?.is_empty() { Err(TokenError::None) } else { Ok(()) }
    }

    /// Whose token this is.
    pub fn owner(&self, token: &str) -> Result<Option<Arc<str>>, TokenError> {
        let hash = hash(token);
        Ok(self.load()?.into_iter().find(|kept| kept.hash == hash).map(|kept| Arc::from(kept.name)))
    }

    fn load(&self) -> Result<Vec<Kept>, TokenError> {
        let mut options = OpenOptions::new();
        let file = match options.read(true).custom_flags(PLAIN_FILE_FLAGS).open(self.directory.join(FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(TokenError::File(error)),
        };
        let mut text = String::new();
        file.take(LONGEST_FILE).read_to_string(&mut text).map_err(TokenError::File)?;
        serde_json::from_str(&text).map_err(|error| TokenError::File(error.into()))
    }

    /// Whole or not at all: a new file takes the place of the old one.
    fn save(&self, all: &[Kept]) -> Result<(), TokenError> {
        let text = serde_json::to_vec_pretty(all).map_err(|error| TokenError::File(error.into()))?;
        let write = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            let new = self.directory.join(format!("{FILE}.{}", std::process::id()));
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&new, self.directory.join(FILE))
        };
        write().map_err(TokenError::File)
    }
}

fn hash(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::Tokens;

    #[test]
    fn a_token_is_good_until_it_is_taken_back_and_is_kept_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(&directory.path().join("state"));
        tokens.check_any().unwrap_err();
        let (first, second) = (tokens.make("first").unwrap(), tokens.make("second").unwrap());
        assert_ne!(first, second);
        assert_eq!(tokens.owner(&first).unwrap().as_deref(), Some("first"));
        for other in ["", "rft_", &first[..first.len() - 1], &format!("{first}0"), &first.to_uppercase()] {
            assert_eq!(tokens.owner(other).unwrap(), None, "{other}");
        }
        let file = directory.path().join("state/tokens.json");
        let kept = std::fs::read_to_string(&file).unwrap();
        assert!(!kept.contains(&first[4..]) && !kept.contains(&second[4..]));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        tokens.revoke("first").unwrap();
        tokens.revoke("first").unwrap_err();
        assert_eq!(tokens.owner(&first).unwrap(), None);
        assert_eq!(tokens.owner(&second).unwrap().as_deref(), Some("second"));
    }

    #[test]
    fn a_name_is_for_one_token_and_has_no_surprises() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(directory.path());
        tokens.make("a").unwrap();
        for name in ["a", "", "b c", "b/c", "ü", &"x".repeat(65)] {
            tokens.make(name).unwrap_err();
        }
    }
}
