//! Login file: the tokens of a person's own client, which a wrapped run uses and keeps right.
//!
//! New tokens replace the old ones in one atomic step, and everything else of the file stays: its mode, its owner, and what
//! else is in it. A file that changed meanwhile is read again, and the newer tokens are kept. Whether it can be written is
//! known before tokens are refreshed, because a host may take the old ones back. The file is held against other runs, and
//! by the lock of the client itself.
//!
//! Not here: where tokens are in it (`login_setting.rs`), and the exchange (`ringfence-web`).

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ringfence_fs::PLAIN_FILE_FLAGS;
use ringfence_web::{LoginRefresh, LoginStore, LoginStoreError, OAuthTokens, RefreshedTokens, SecretText};
use rustix::fs::{CWD, Gid, RenameFlags, Uid, fchown, renameat_with};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::cli::wrapped_run::login_setting::{LoginSetting, put_at};
use crate::codec::io_text::IoText;

/// No login file is longer.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Room that is made for new tokens before they are asked for.
const ROOM_BYTES: usize = 64 << 10;

/// Time for another program to finish its refresh.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A lock directory that was not touched for so long was left by a client that died.
const STALE_LOCK: Duration = Duration::from_secs(60);

/// Times that a file may change between a look and its replacement.
const MAX_ATTEMPTS: usize = 8;

/// The login file of a person.
#[derive(Clone, Debug)]
pub(crate) struct LoginFile {
    setting: LoginSetting,
    home: PathBuf,
    /// Where our own locks are.
    locks: PathBuf,
}

/// A file as it was at one moment.
struct FileVersion {
    value: Value,
    bytes: Vec<u8>,
    identity: (u64, u64),
    mode: u32,
    owner: (u32, u32),
}

impl LoginFile {
    pub(crate) fn new(setting: LoginSetting, home: &Path, state: &Path) -> Self {
        Self { setting, home: home.to_owned(), locks: state.join("logins") }
    }

    /// The file for programs: these tokens, and the values that the setting names.
    pub(crate) fn with_placeholders(&self, tokens: &[(Option<&str>, &str)]) -> Result<String, LoginStoreError> {
        let (_, version) = self.read()?;
        let mut value = Value::Object(serde_json::Map::new());
        for pointer in &self.setting.copied {
            if let Some(found) = version.value.pointer(pointer) {
                put_at(&mut value, pointer, found.clone());
            }
        }
        for (pointer, placeholder) in tokens {
            if let Some(pointer) = pointer {
                put_at(&mut value, pointer, Value::from(*placeholder));
            }
        }
        Ok(value.to_string())
    }

    fn shown(&self) -> String {
        format!("the login file `~/{}`", self.setting.file)
    }

    fn unusable(&self, problem: &str, cause: &io::Error) -> LoginStoreError {
        LoginStoreError::Unusable(format!("{} {problem}: {}", self.shown(), IoText(cause)))
    }

    /// The file, past links, and what it is now.
    fn read(&self) -> Result<(PathBuf, FileVersion), LoginStoreError> {
        let absent = || {
            let text = format!("there is no login in `~/{}`; log in outside of the sandbox", self.setting.file);
            LoginStoreError::Absent(text)
        };
        let path = match std::fs::canonicalize(self.home.join(&self.setting.file)) {
            Ok(path) => path,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(absent());
            }
            Err(error) => return Err(self.unusable("cannot be read", &error)),
        };
        let version = match self.read_version(&path)? {
            Some(version) if self.tokens_in(&version.value).is_some() => version,
            _ => return Err(absent()),
        };
        Ok((path, version))
    }

    /// `None` where there is no such file.
    fn read_version(&self, path: &Path) -> Result<Option<FileVersion>, LoginStoreError> {
        let read = || {
            let file = OpenOptions::new().read(true).custom_flags(PLAIN_FILE_FLAGS).open(path)?;
            let found = file.metadata()?;
            if !found.is_file() || found.len() > MAX_FILE_BYTES {
                return Err(io::Error::other("it is not a plain file, or too long"));
            }
            let mut bytes = Vec::new();
            file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
            let value = serde_json::from_slice(&bytes).map_err(|_| io::Error::other("it is not JSON"))?;
            let (identity, owner) = ((found.dev(), found.ino()), (found.uid(), found.gid()));
            Ok(FileVersion { value, bytes, identity, mode: found.permissions().mode(), owner })
        };
        match read() {
            Ok(version) => Ok(Some(version)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unusable("cannot be read", &error)),
        }
    }

    fn tokens_in(&self, value: &Value) -> Option<OAuthTokens> {
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
        let secret = |pointer: &str| text(pointer).map(|text| SecretText::new(text.to_owned()));
        Some(OAuthTokens {
            access: secret(&self.setting.access_token)?,
            refresh: secret(&self.setting.refresh_token)?,
            id: self.setting.id_token.as_deref().and_then(secret),
        })
    }

    /// When the tokens of a file were new, or until when they are: what a newer file has more of.
    fn age_mark(&self, value: &Value) -> Option<u128> {
        let at = |pointer: &Option<String>| pointer.as_deref().and_then(|pointer| value.pointer(pointer));
        let millis = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|time| time.as_millis());
        let refreshed = || at(&self.setting.refreshed_at)?.as_str()?.parse::<humantime::Timestamp>().ok();
        match at(&self.setting.expires_at).and_then(Value::as_u64) {
            Some(expires) => Some(u128::from(expires)),
            None => refreshed().and_then(|time| millis(time.into())),
        }
    }

    /// The file with new tokens.
    fn with_tokens(&self, value: &Value, tokens: &RefreshedTokens, now: SystemTime) -> Value {
        let (mut value, setting) = (value.clone(), &self.setting);
        let mut put = |pointer: Option<&String>, text: Option<Value>| {
            if let (Some(pointer), Some(text)) = (pointer, text) {
                put_at(&mut value, pointer, text);
            }
        };
        let secret = |text: &SecretText| Value::from(text.expose());
        put(Some(&setting.access_token), Some(secret(&tokens.access)));
        put(Some(&setting.refresh_token), tokens.refresh.as_ref().map(secret));
        put(setting.id_token.as_ref(), tokens.id.as_ref().map(secret));
        let until = |seconds: Option<u64>| {
            let since = now.checked_add(Duration::from_secs(seconds?))?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            u64::try_from(since.as_millis()).ok().map(Value::from)
        };
        put(setting.expires_at.as_ref(), until(tokens.expires_in));
        put(setting.refresh_expires_at.as_ref(), until(tokens.refresh_expires_in));
        let text = humantime::format_rfc3339_micros(now).to_string();
        put(setting.refreshed_at.as_ref(), Some(Value::from(text)));
        value
    }

    /// Holds the login against other runs, and against the person's client.
    fn lock(&self, path: &Path) -> Result<HeldLogin, LoginStoreError> {
        let failed = |error: io::Error| self.unusable("cannot be locked", &error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.locks).map_err(failed)?;
        let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let ours = lock_file(&self.locks.join(format!("{name}.lock"))).map_err(failed)?;
        let file = self.setting.lock_file.as_ref().map(|file| lock_file(&self.home.join(file)));
        let directory = self.setting.lock_directory.as_ref().map(|path| LockDirectory::new(self.home.join(path)));
        Ok(HeldLogin {
            _client_file: file.transpose().map_err(failed)?,
            _client_directory: directory.transpose().map_err(failed)?,
            _ours: ours,
        })
    }
}

impl LoginStore for LoginFile {
    fn tokens(&self) -> Result<OAuthTokens, LoginStoreError> {
        let (_, version) = self.read()?;
        self.tokens_in(&version.value).ok_or_else(|| LoginStoreError::Absent("there is no login".to_owned()))
    }

    fn begin_refresh(&self) -> Result<Box<dyn LoginRefresh>, LoginStoreError> {
        let (path, _) = self.read()?;
        let held = self.lock(&path)?;
        // What the holder before us has made of it.
        let (path, version) = self.read()?;
        let tokens =
            self.tokens_in(&version.value).ok_or_else(|| LoginStoreError::Absent("there is no login".to_owned()))?;
        let staged = StagedLoginFile::new(&path, &version.bytes)
            .map_err(|error| self.unusable("cannot be replaced, so that its tokens are not refreshed", &error))?;
        Ok(Box::new(FileRefresh { login: self.clone(), path, tokens, staged, _held: held }))
    }
}

/// A login file that is held while its tokens are refreshed.
struct FileRefresh {
    login: LoginFile,
    path: PathBuf,
    tokens: OAuthTokens,
    staged: StagedLoginFile,
    _held: HeldLogin,
}

impl LoginRefresh for FileRefresh {
    fn tokens(&self) -> &OAuthTokens {
        &self.tokens
    }

    fn store(mut self: Box<Self>, tokens: &RefreshedTokens) -> Result<OAuthTokens, LoginStoreError> {
        let removed = || LoginStoreError::Absent(format!("{} was removed meanwhile", self.login.shown()));
        let now = SystemTime::now();
        for _ in 0..MAX_ATTEMPTS {
            let version = self.login.read_version(&self.path)?.ok_or_else(removed)?;
            // An empty token is that of a person who logged out.
            let theirs = self.login.tokens_in(&version.value).ok_or_else(removed)?;
            let value = self.login.with_tokens(&version.value, tokens, now);
            let marks = (self.login.age_mark(&version.value), self.login.age_mark(&value));
            if !theirs.are_same(&self.tokens) && marks.0 >= marks.1 {
                return Ok(theirs);
            }
            let stored = self.login.tokens_in(&value).ok_or_else(removed)?;
            let text = match version.bytes.contains(&b'\n') {
                true => serde_json::to_string_pretty(&value),
                false => serde_json::to_string(&value),
            };
            let text = text.map_err(|error| self.login.unusable("cannot be replaced", &error.into()))?;
            let failed = |error| self.login.unusable("cannot be replaced", &error);
            if self
                .staged
                .write(text.as_bytes(), &version)
                .and_then(|()| self.staged.replace(&version))
                .map_err(failed)?
            {
                return Ok(stored);
            }
        }
        let error = io::Error::other("it changes all the time");
        Err(self.login.unusable("cannot be replaced", &error))
    }
}

/// The next version of a file, beside it.
struct StagedLoginFile {
    path: PathBuf,
    target: PathBuf,
    file: File,
}

impl StagedLoginFile {
    /// With room for what will be written.
    fn new(target: &Path, bytes: &[u8]) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| io::Error::other("there are no random numbers"))?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.{:016x}", u64::from_le_bytes(random)));
        let options =
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS).open(&path);
        let mut staged = Self { path, target: target.to_owned(), file: options? };
        staged.file.write_all(bytes)?;
        staged.file.write_all(&[b' '; ROOM_BYTES])?;
        staged.file.sync_all()?;
        Ok(staged)
    }

    /// Writes the contents over the room, with the mode and the owner of the present version.
    fn write(&mut self, bytes: &[u8], version: &FileVersion) -> io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(bytes)?;
        self.file.set_len(bytes.len() as u64)?;
        let (uid, gid) = version.owner;
        // Only root can give a file away, and root writes files of others only.
        let _ = fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        self.file.set_permissions(Permissions::from_mode(version.mode & 0o7777))?;
        self.file.sync_all()
    }

    /// Puts it in the place of this version. False: there was another one, which is there again.
    fn replace(&mut self, version: &FileVersion) -> io::Result<bool> {
        let exchange = || renameat_with(CWD, &self.path, CWD, &self.target, RenameFlags::EXCHANGE);
        match exchange() {
            Ok(()) => {}
            // A file system that cannot exchange names.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::rename(&self.path, &self.target)?,
            Err(error) => return Err(error.into()),
        }
        let before = std::fs::metadata(&self.path).ok().map(|found| (found.dev(), found.ino()));
        let is_known = match before {
            None => true,
            Some(identity) => identity == version.identity && std::fs::read(&self.path)? == version.bytes,
        };
        if !is_known {
            exchange()?;
            return Ok(false);
        }
        if let Some(directory) = self.target.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(true)
    }
}

impl Drop for StagedLoginFile {
    fn drop(&mut self) {
        // What is left has a name that nothing reads.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Locks of a login, in the order in which they are given back.
struct HeldLogin {
    _client_directory: Option<LockDirectory>,
    _client_file: Option<File>,
    _ours: File,
}

fn lock_file(path: &Path) -> io::Result<File> {
    let options = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(PLAIN_FILE_FLAGS)
        .open(path);
    let file = options?;
    until(|| match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    })?;
    Ok(file)
}

/// Looks until something is so, for a limited time.
fn until(mut is_so: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > LOCK_TIMEOUT {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "another program refreshes it"));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(())
}

/// A lock that is a directory.
struct LockDirectory(PathBuf);

impl LockDirectory {
    fn new(path: PathBuf) -> io::Result<Self> {
        until(|| match std::fs::create_dir(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let age = std::fs::metadata(&path).and_then(|found| found.modified()).map(|time| time.elapsed());
                if matches!(age, Ok(Ok(age)) if age > STALE_LOCK) {
                    // Another one may have done so.
                    let _ = std::fs::remove_dir(&path);
                }
                Ok(false)
            }
            Err(error) => Err(error),
        })?;
        Ok(Self(path))
    }
}

impl Drop for LockDirectory {
    fn drop(&mut self) {
        // One that stays is found stale.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::cli::wrapped_run::login_setting::tests::SMALL;

    /// A home directory with a login.
    fn home(tokens: &Value) -> (tempfile::TempDir, LoginFile, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(directory.path()).unwrap().join("home");
        fs::create_dir_all(home.join(".agent")).unwrap();
        let path = home.join(".agent/login.json");
        fs::write(&path, json!({"z": 1, "tokens": tokens, "a": 2}).to_string()).unwrap();
        let setting = format!("{SMALL}expires_at = \"/tokens/expires\"\ncopied = [\"/tokens/plan\", \"/absent\"]\n");
        let login = LoginFile::new(toml::from_str(&setting).unwrap(), &home, &directory.path().join("state"));
        (directory, login, path)
    }

    fn person(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn refreshed(access: &str, expires_in: u64) -> RefreshedTokens {
        RefreshedTokens {
            access: SecretText::new(access.to_owned()),
            refresh: Some(SecretText::new(format!("refresh-of-{access}"))),
            id: None,
            expires_in: Some(expires_in),
            refresh_expires_in: None,
        }
    }

    fn first() -> Value {
        json!({"access": "access-1", "refresh": "refresh-1", "expires": 5, "plan": "max"})
    }

    #[test]
    fn new_tokens_take_the_place_of_the_old_ones_and_nothing_else_changes() {
        let (_directory, login, path) = home(&first());
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        // A file of dotfiles that is elsewhere stays there.
        let elsewhere = path.with_file_name("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink("elsewhere", &path).unwrap();
        let refresh = login.begin_refresh().unwrap();
        assert_eq!(refresh.tokens().refresh.expose(), "refresh-1");
        let stored = refresh.store(&refreshed("access-2", 3600)).unwrap();
        assert_eq!((stored.access.expose(), stored.refresh.expose()), ("access-2", "refresh-of-access-2"));
        let mut now = person(&path);
        assert!(now["tokens"]["expires"].take().as_u64().unwrap() > 1_000_000_000_000);
        let tokens = json!({"access": "access-2", "refresh": "refresh-of-access-2", "expires": null, "plan": "max"});
        assert_eq!(now, json!({"z": 1, "tokens": tokens, "a": 2}));
        assert_eq!(fs::metadata(&elsewhere).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2, "nothing is left beside it");
    }

    #[test]
    fn of_two_refreshes_the_newer_one_is_kept() {
        let far = 99_999_999_999_999_u64;
        for (meanwhile, kept) in [
            // The client refreshed, and its tokens are good for longer, or not so long.
            (json!({"access": "access-3", "refresh": "refresh-3", "expires": far}), "access-3"),
            (json!({"access": "access-3", "refresh": "refresh-3", "expires": 6}), "access-2"),
            // Something else changed.
            (json!({"access": "access-1", "refresh": "refresh-1", "expires": 5, "more": true}), "access-2"),
        ] {
            let (_directory, login, path) = home(&first());
            let refresh = login.begin_refresh().unwrap();
            fs::write(&path, json!({"tokens": meanwhile, "b": 3}).to_string()).unwrap();
            let stored = refresh.store(&refreshed("access-2", 3600)).unwrap();
            assert_eq!(stored.access.expose(), kept);
            let now = person(&path);
            assert_eq!((&now["tokens"]["access"], &now["b"]), (&kept.into(), &3.into()));
            assert_eq!(now["tokens"]["more"], meanwhile["more"]);
        }
    }

    #[test]
    fn a_file_that_changes_at_the_last_moment_is_not_lost() {
        let (_directory, login, path) = home(&first());
        let (_, version) = login.read().unwrap();
        let mut staged = StagedLoginFile::new(&path, b"").unwrap();
        staged.write(b"{\"ours\": 1}", &version).unwrap();
        let theirs = path.with_file_name("theirs");
        fs::write(&theirs, "{\"theirs\": 1}").unwrap();
        fs::rename(&theirs, &path).unwrap();
        assert!(!staged.replace(&version).unwrap());
        assert_eq!(person(&path), json!({"theirs": 1}));
        // In place, in the same file.
        let version = login.read_version(&path).unwrap().unwrap();
        fs::write(&path, "{\"theirs\": 2}").unwrap();
        assert!(!staged.replace(&version).unwrap());
        assert_eq!(person(&path), json!({"theirs": 2}));
        let version = login.read_version(&path).unwrap().unwrap();
        assert!(staged.replace(&version).unwrap());
        assert_eq!(person(&path), json!({"ours": 1}));
    }

    #[test]
    fn a_person_who_logs_out_meanwhile_stays_logged_out() {
        for logged_out in [None, Some(json!({"tokens": {"access": "", "refresh": ""}}))] {
            let (_directory, login, path) = home(&first());
            let refresh = login.begin_refresh().unwrap();
            match &logged_out {
                Some(file) => fs::write(&path, file.to_string()).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let error = refresh.store(&refreshed("access-2", 3600)).unwrap_err();
            assert_eq!(error.to_string(), "the login file `~/.agent/login.json` was removed meanwhile");
            assert_eq!(path.exists().then(|| person(&path)), logged_out);
            assert!(matches!(login.tokens(), Err(LoginStoreError::Absent(_))));
        }
    }

    #[test]
    fn what_cannot_be_used_is_said_without_its_contents() {
        for (contents, said) in [
            ("{\"tokens\": {\"access\": \"token-1-2-3\"}}", "there is no login in `~/.agent/login.json`"),
            ("not JSON token-1-2-3", "it is not JSON"),
        ] {
            let (_directory, login, path) = home(&first());
            fs::write(&path, contents).unwrap();
            let error = login.tokens().unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("token-1-2-3") && !error.contains("/home/"), "{error}");
        }
        let (_directory, login, path) = home(&first());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(login.tokens().unwrap_err().to_string().contains("it is not a plain file"));
    }

    #[test]
    fn programs_get_placeholders_and_named_values() {
        let (_directory, login, _) = home(&first());
        let inside = login.with_placeholders(&[
            (Some("/tokens/access"), "p-1"),
            (None, "p-2"),
            (Some("/tokens/refresh"), "p-3"),
        ]);
        let inside: Value = serde_json::from_str(&inside.unwrap()).unwrap();
        assert_eq!(inside, json!({"tokens": {"plan": "max", "access": "p-1", "refresh": "p-3"}}));
    }

    #[test]
    fn a_lock_of_a_client_that_died_is_taken_over_and_given_back() {
        let (_directory, login, path) = home(&first());
        let mut login = login;
        login.setting.lock_directory = Some(".agent/refresh.lock".to_owned());
        login.setting.lock_file = Some(".agent/lock".to_owned());
        let lock = path.with_file_name("refresh.lock");
        fs::create_dir(&lock).unwrap();
        let long_ago = SystemTime::now() - 2 * STALE_LOCK;
        File::open(&lock).unwrap().set_modified(long_ago).unwrap();
        let refresh = login.begin_refresh().unwrap();
        assert!(lock.is_dir());
        let client = File::open(path.with_file_name("lock")).unwrap();
        assert!(matches!(client.try_lock(), Err(TryLockError::WouldBlock)), "the client waits");
        drop(refresh);
        assert!(!lock.exists());
        client.try_lock().unwrap();
    }
}
