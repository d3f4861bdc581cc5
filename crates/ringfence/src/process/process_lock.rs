//! Process lock: held for the lifetime of a process, to detect whether a waiting caller or a user of a directory still
//! exists.
//!
//! A killed process releases its lock, and so others know that its requests are abandoned. A process ID would not do:
//! it is reused, and has another meaning in another container.
//!
//! Not here: the abandoned requests (`store/mod.rs`).

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ringfence_fs::PLAIN_FILE_FLAGS;

/// The lock of a live process.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    id: String,
    file: PathBuf,
    /// Held, never read.
    _lock: File,
}

impl ProcessLock {
    pub(crate) fn new(state: &Path) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| io::Error::other("the system's random number generator failed"))?;
        let id = format!("{:016x}", u64::from_le_bytes(random));
        let file = lock_file(state, &id);
        let lock =
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS).open(&file)?;
        lock.lock()?;
        Ok(Self { id, file, _lock: lock })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether the owner of this name is gone. Its files are removed then.
    pub(crate) fn is_stale(state: &Path, id: &str) -> io::Result<bool> {
        let file = lock_file(state, id);
        let lock = match OpenOptions::new().write(true).custom_flags(PLAIN_FILE_FLAGS).open(&file) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        match lock.try_lock() {
            Ok(()) => {
                // One that stays behind is found gone the next time too.
                let _ = std::fs::remove_file(&file);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn lock_file(state: &Path, id: &str) -> PathBuf {
    // A value from the store cannot name another file.
    let id: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    state.join(format!("approvals-{id}.lock"))
}

#[cfg(test)]
mod tests {
    use super::{ProcessLock, lock_file};

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let state = tempfile::tempdir().unwrap();
        let owner = ProcessLock::new(state.path()).unwrap();
        let other = ProcessLock::new(state.path()).unwrap();
        assert!(!ProcessLock::is_stale(state.path(), owner.id()).unwrap());
        let id = owner.id().to_owned();
        drop(owner);
        assert!(ProcessLock::is_stale(state.path(), &id).unwrap());
        assert!(!ProcessLock::is_stale(state.path(), other.id()).unwrap());
    }

    #[test]
    fn the_lock_of_a_killed_process_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let file = lock_file(state.path(), "00ff");
        std::fs::write(&file, "").unwrap();
        assert!(ProcessLock::is_stale(state.path(), "00ff").unwrap());
        assert!(!file.exists());
        assert!(ProcessLock::is_stale(state.path(), "../00ff/../..").unwrap());
    }
}
