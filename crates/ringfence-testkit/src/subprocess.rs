//! Tests in a subprocess: as another user, in another namespace, under other limits.
//!
//! The test binary runs itself with the name of one test. A word among its arguments or in its environment tells the test
//! which of the two it is.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::executable::copy_executable;
use crate::requirement::forward_notes;

/// A directory that every user may enter, with a copy of this test binary and a directory for temporary files.
#[derive(Debug)]
pub struct TestBinaryDir {
    directory: TempDir,
    binary: PathBuf,
}

impl TestBinaryDir {
    /// Copies the test binary: where the build lies, another user may not be.
    ///
    /// # Panics
    /// If the directory cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let binary = directory.path().join("tests");
        copy_executable(&std::env::current_exe().expect("a test binary"), &binary);
        let stage = Self { directory, binary };
        std::fs::create_dir(stage.temporary()).expect("a directory for temporary files");
        for (path, mode) in [(stage.path(), 0o755), (&stage.temporary(), 0o1777)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("open directories");
        }
        stage
    }

    /// The directory, in which a test may put further programs.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The copy of the test binary.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The directory for temporary files of the test.
    #[must_use]
    pub fn temporary(&self) -> PathBuf {
        self.path().join("tmp")
    }

    /// Gives the temporary files to a user.
    ///
    /// # Panics
    /// If this user may not do that.
    pub fn give_to(&self, user: u32) {
        std::os::unix::fs::chown(self.temporary(), Some(user), Some(user)).expect("only root gives files away");
    }
}

impl Default for TestBinaryDir {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs one test by a command that ends with a test binary. `words` are further arguments, which the test can look for.
///
/// # Panics
/// If the test fails, or if there is no test of that name.
#[track_caller]
pub fn run_test(mut command: Command, test: &str, words: &[&str]) {
    let output = command.args([test, "--exact", "--nocapture"]).args(words).output().expect("the test starts");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // A name that no test has would run none and succeed.
    let passed = output.status.success() && printed.contains("test result: ok. 1 passed");
    assert!(passed, "{test} failed in its own process, or does not exist ({}):\n{printed}", output.status);
    forward_notes(&printed);
}
