//! Tests in a subprocess: as another user, in another mount namespace, under other limits.
//!
//! The test binary runs itself with the name of one test. A mark in the environment tells the test which of the two it is.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_testkit::executable::copy_executable;

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

/// Says that a test was not made. Only where this machine cannot.
pub(crate) fn skip_test(why: &str) {
    println!("left out: {why}");
}

/// A directory that every user may enter, with a copy of this program and a directory for temporary files.
#[derive(Debug)]
pub(crate) struct TestSubprocess {
    place: tempfile::TempDir,
    program: PathBuf,
}

impl TestSubprocess {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("tests");
        copy_executable(&std::env::current_exe().unwrap(), &program);
        std::fs::create_dir(place.path().join("tmp")).unwrap();
        for (path, mode) in [(place.path(), 0o755), (&place.path().join("tmp"), 0o1777)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        Self { place, program }
    }

    /// Directory for temporary files of the process.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.place.path().join("tmp")
    }

    /// Runs one test as another user.
    pub(crate) fn run_as(&self, user: u32, test: &str) {
        std::os::unix::fs::chown(self.temporary(), Some(user), Some(user)).unwrap();
        let mut command = Command::new(&self.program);
        command.uid(user).gid(user);
        self.run(command, test);
    }

    /// Runs one test in a mount namespace of its own.
    pub(crate) fn run_with_mounts(&self, test: &str) {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private"]).arg(&self.program);
        self.run(command, test);
    }

    /// Runs one test after a shell has done something to its own process.
    pub(crate) fn run_after(&self, script: &str, test: &str) {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{script}; exec \"$0\" \"$@\"")).arg(&self.program);
        self.run(command, test);
    }

    fn run(&self, mut command: Command, test: &str) {
        let output = command
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .env(MARK, test)
            .env("TMPDIR", self.temporary())
            .current_dir(self.place.path())
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{test} failed elsewhere ({}):\n{said}", output.status);
        assert!(said.contains("test result: ok. 1 passed"), "{test} did not run elsewhere:\n{said}");
        for line in said.lines().filter(|line| line.starts_with("left out: ")) {
            println!("{line}");
        }
    }
}

/// Runs a program of the system and says whether it went well.
pub(crate) fn system(program: &str, arguments: &[&str], path: &Path) -> bool {
    Command::new(program).args(arguments).arg(path).output().is_ok_and(|output| output.status.success())
}
