//! A workspace in a temporary directory, with a directory beside it in which nothing may ever happen.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The word in the file outside.
pub const SECRET: &str = "SECRET\n";

/// The directories of a test. A temporary one goes with this value.
#[derive(Debug)]
pub struct TestWorld {
    directory: WorldDir,
    /// The workspace.
    pub workspace: PathBuf,
    /// A directory beside it. It has a file `secret` with the word SECRET in it.
    pub outside: PathBuf,
    /// A directory for state, which does not exist yet.
    pub state: PathBuf,
}

/// Where a world is: a directory that goes with it, or one that is there already.
#[derive(Debug)]
pub enum WorldDir {
    /// Removed with the world.
    Temporary(TempDir),
    /// Left as it is.
    Existing(PathBuf),
}

impl TestWorld {
    /// In a temporary directory.
    ///
    /// # Panics
    /// If the directories cannot be made.
    #[must_use]
    pub fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    /// On a file system in memory, where there is one: for tests that do very much.
    ///
    /// # Panics
    /// If the directories cannot be made.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::at(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    /// In a directory, which may be a world already.
    ///
    /// # Panics
    /// If the directories cannot be made.
    pub fn at(directory: impl Into<WorldDir>) -> Self {
        let directory = directory.into();
        let root = std::fs::canonicalize(directory.path()).unwrap();
        let [workspace, outside, state] = ["ws", "outside", "state"].map(|name| root.join(name));
        for made in [&workspace, &outside] {
            std::fs::create_dir_all(made).unwrap();
        }
        std::fs::write(outside.join("secret"), SECRET).unwrap();
        Self { directory, workspace, outside, state }
    }

    /// Where all of it is: the host path that no reply may have in it.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The directory alone, for the next world in it.
    #[must_use]
    pub fn into_directory(self) -> WorldDir {
        self.directory
    }

    /// Writes a file of the workspace, and the directories above it.
    ///
    /// # Panics
    /// If it cannot be written.
    #[track_caller]
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.workspace.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// A text file of the workspace.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    #[track_caller]
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.workspace.join(path)).unwrap()
    }
}

impl Default for TestWorld {
    fn default() -> Self {
        Self::new()
    }
}

impl WorldDir {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Existing(path) => path,
        }
    }
}

impl From<TempDir> for WorldDir {
    fn from(directory: TempDir) -> Self {
        Self::Temporary(directory)
    }
}

impl Drop for WorldDir {
    fn drop(&mut self) {
        // Root removes what is closed too.
        if let Self::Temporary(directory) = self
            && !rustix::process::geteuid().is_root()
        {
            unlock(directory.path());
        }
    }
}

/// Lets its owner remove everything below a directory.
pub fn unlock(directory: &Path) {
    let _ = std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755));
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        unlock(&entry.path());
    }
}
