//! Tests in a subprocess: as another user, in another mount namespace, under other limits.
//!
//! The test binary runs itself with the name of one test. A mark in the environment tells the test which of the two it is.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_testkit::subprocess::{TestBinaryDir, run_test};

const MARK: &str = "RINGFENCE_TEST_CHILD";

/// `nobody`, on every common system.
pub(crate) const NOBODY: u32 = 65534;

/// Whether this is the process that a test started for itself.
pub(crate) fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The test binary, where every user may run it.
#[derive(Debug)]
pub(crate) struct TestSubprocess(TestBinaryDir);

impl TestSubprocess {
    pub(crate) fn new() -> Self {
        Self(TestBinaryDir::new())
    }

    /// Directory for temporary files of the process.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.0.temporary()
    }

    /// Runs one test as another user.
    pub(crate) fn run_as(&self, user: u32, test: &str) {
        self.0.give_to(user);
        let mut command = Command::new(self.0.binary());
        command.uid(user).gid(user);
        self.run(command, test);
    }

    /// Runs one test in a mount namespace of its own.
    pub(crate) fn run_with_mounts(&self, test: &str) {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private"]).arg(self.0.binary());
        self.run(command, test);
    }

    /// Runs one test after a shell has done something to its own process.
    pub(crate) fn run_after(&self, script: &str, test: &str) {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{script}; exec \"$0\" \"$@\"")).arg(self.0.binary());
        self.run(command, test);
    }

    fn run(&self, mut command: Command, test: &str) {
        command.env(MARK, test).env("TMPDIR", self.temporary()).current_dir(self.0.path());
        run_test(command, test, &["--test-threads=1"]);
    }
}

/// Runs a program of the system and says whether it went well.
pub(crate) fn system(program: &str, arguments: &[&str], path: &Path) -> bool {
    Command::new(program).args(arguments).arg(path).output().is_ok_and(|output| output.status.success())
}
