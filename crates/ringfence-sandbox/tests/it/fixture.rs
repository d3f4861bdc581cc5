//! Test fixture: a workspace, a sandbox, and programs to run in it.
//!
//! As root every test runs twice: once as root, and once more as an unused user, in a process of its own.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use ringfence_kernel::{ExposedDir, WorkspaceView};
use ringfence_sandbox::{
    Isolation, JailError, JailFallback, JailFile, JailJob, JailLimits, OutputCapture, OutputStream, ProgramObserver,
    RunResult, Sandbox, SandboxSettings, Toolchain,
};
use ringfence_testkit::executable::copy_executable;
use ringfence_testkit::patience::PATIENCE;
use ringfence_testkit::requirement::{Requirement, skip_without};
use ringfence_testkit::subprocess::{TestBinaryDir, run_test};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::wrapped_fixture::{TestLayers, wrapped_user};

/// An unused user ID.
pub(crate) const PLAIN_UID: u32 = 60_601;

/// Runs a test as the current user and, if that is root, as a plain user too. `name` is the test's, with its module.
pub(crate) fn as_each_user(name: &str, test: impl FnOnce()) {
    test();
    if geteuid().is_root() {
        rerun_as(name, PLAIN_UID);
    }
}

/// The same for a test that looks at its own process: nothing else runs in that.
pub(crate) fn as_each_user_isolated(name: &str, test: impl FnOnce()) {
    if was_started_with(ALONE) {
        return test();
    }
    rerun_as(name, geteuid().as_raw());
    if geteuid().is_root() {
        rerun_as(name, PLAIN_UID);
    }
}

/// The same for each user, in processes that are started with another umask.
pub(crate) fn with_umask(umask: &str, name: &str, test: impl FnOnce()) {
    if was_started_with(ALONE) {
        return test();
    }
    let script = format!("umask {umask}; exec \"$0\" \"$@\"");
    let plain_user = geteuid().is_root().then_some(PLAIN_UID);
    for user in [geteuid().as_raw()].into_iter().chain(plain_user) {
        rerun_through(name, user, &["sh", "-c", &script]);
    }
}

/// Whether this process was started with that word.
pub(crate) fn was_started_with(word: &str) -> bool {
    std::env::args().any(|argument| argument == word)
}

const ALONE: &str = "alone";

/// A secret in the environment of a process that is started for one test.
pub(crate) const MARK: (&str, &str) = ("RINGFENCE_TEST_TOKEN", "mark-3f1d9a77");

/// Runs one test in a process of its own, as that user.
fn rerun_as(name: &str, user: u32) {
    rerun_through(name, user, &[]);
}

/// The same in a container that hides a part of `/proc`, for which the kernel denies a new mount of it.
pub(crate) fn with_hidden_proc(name: &str, test: impl FnOnce()) {
    // What was mounted by others stays mounted in a new user namespace. The power to mount does not stay with the test.
    const HIDE: &str = "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\n\
        if libc.mount(b'/dev/null', b'/proc/keys', None, 4096, None): sys.exit(3)\nlibc.prctl(47, 4, 0, 0, 0)\n\
        os.execvp(sys.argv[1], sys.argv[1:])";
    const ROOT: [&str; 2] = ["unshare", "--mount"];
    const ANYBODY: [&str; 4] = ["unshare", "--mount", "--map-current-user", "--keep-caps"];
    if was_started_with(ALONE) {
        return test();
    }
    for (user, unshare) in [(0, &ROOT[..]), (PLAIN_UID, &ANYBODY[..])] {
        if user == 0 && !geteuid().is_root() {
            continue;
        }
        let by = [unshare, &["python3", "-c", HIDE]].concat();
        let mut tried = Command::new(by[0]);
        tried.args(&by[1..]).arg("true").current_dir("/");
        if geteuid().is_root() {
            tried.uid(user).gid(user);
        }
        if tried.output().is_ok_and(|tried| tried.status.success()) {
            rerun_through(name, if geteuid().is_root() { user } else { geteuid().as_raw() }, &by);
        } else {
            skip_without(Requirement::ProcMasks, &format!("no part of /proc can be hidden from user {user}"));
        }
    }
}

/// The same on a machine that denies user namespaces, as a plain user. Whether this one can be made to seem so.
pub(crate) fn without_namespaces(name: &str, test: impl FnOnce()) {
    const REFUSE: &str = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    const UNSHARE: [&str; 3] = ["unshare", "--map-current-user", "--keep-caps"];
    if was_started_with(ALONE) {
        return test();
    }
    let tried = Command::new(UNSHARE[0]).args(&UNSHARE[1..]).args(["sh", "-c", REFUSE, "true"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        return skip_without(Requirement::UserNamespaces, "namespaces cannot be refused to a process");
    }
    let user = if geteuid().is_root() { PLAIN_UID } else { geteuid().as_raw() };
    rerun_through(name, user, &[&UNSHARE[..], &["sh", "-c", REFUSE]].concat());
}

/// By another program, with its first words.
fn rerun_through(name: &str, user: u32, by: &[&str]) {
    let stage = TestBinaryDir::new();
    copy_executable(&program(), &stage.path().join("ringfence-jail"));
    let mut words = by.iter().map(Path::new).chain([stage.binary()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).env(MARK.0, MARK.1).env("TMPDIR", stage.temporary()).current_dir("/");
    if geteuid().is_root() {
        stage.give_to(user);
        command.uid(user).gid(user);
    }
    run_test(command, name, &[ALONE]);
}

/// Gives a tree to a plain user, if it is root's: no program is ever root.
pub(crate) fn chown_to_plain_user(path: &Path) {
    if !geteuid().is_root() {
        return;
    }
    std::os::unix::fs::lchown(path, Some(PLAIN_UID), Some(PLAIN_UID)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| chown_to_plain_user(&entry.unwrap().path()));
    }
}

/// Skips a test that only root can run, on a machine with `/opt`.
pub(crate) fn skip_without_opt(why: &str) {
    let missing = if geteuid().is_root() { Requirement::SystemDirectories } else { Requirement::Root };
    skip_without(missing, &format!("{why} in `/opt`"));
}

/// The binary that is the spawner, beside us or where it was built.
pub(crate) fn program() -> PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name("ringfence-jail");
    if beside.exists() { beside } else { env!("CARGO_BIN_EXE_ringfence-jail").into() }
}

/// The kind of jail that the programs of a test run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JailVariant {
    /// Of one program for an agent.
    OneProgram,
    /// Of a wrapped program, on pipes. Each run has layers of its own.
    Wrapped,
}

impl JailVariant {
    pub(crate) const ALL: [Self; 2] = [Self::OneProgram, Self::Wrapped];

    /// A workspace with a sandbox whose jails are of this kind.
    pub(crate) fn world(self) -> SandboxFixture {
        SandboxFixture { variant: self, ..SandboxFixture::new() }
    }
}

/// As `as_each_user`, with each kind of jail.
pub(crate) fn in_each_jail(name: &str, test: impl Fn(JailVariant)) {
    as_each_user(name, || JailVariant::ALL.into_iter().for_each(&test));
}

/// A workspace with a sandbox.
pub(crate) struct SandboxFixture {
    pub(crate) variant: JailVariant,
    pub(crate) directory: TempDir,
    pub(crate) sandbox: Sandbox,
    pub(crate) limits: JailLimits,
    pub(crate) masked: Vec<PathBuf>,
    pub(crate) hidden: Vec<PathBuf>,
    pub(crate) beside: Vec<(&'static str, PathBuf)>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) toolchains: Vec<Toolchain>,
}

impl SandboxFixture {
    pub(crate) fn new() -> Self {
        Self::with_pool(2)
    }

    pub(crate) fn with_pool(pool: u32) -> Self {
        let settings = SandboxSettings { program: program(), pool, ..SandboxSettings::new() };
        Self {
            variant: JailVariant::OneProgram,
            directory: tempfile::tempdir().unwrap(),
            sandbox: Sandbox::start(settings).unwrap(),
            // A busy machine may take long for what a program does; tests of the time itself set another.
            limits: JailLimits { wall: PATIENCE, ..JailLimits::default() },
            masked: Vec::new(),
            hidden: Vec::new(),
            beside: Vec::new(),
            env: BTreeMap::new(),
            toolchains: Vec::new(),
        }
    }

    /// One whose jails are built by the system's own `bwrap`, as if nothing else were allowed. Nothing, where there is none.
    pub(crate) fn with_bwrap() -> Option<Self> {
        let found =
            ringfence_sandbox::probe(&program()).into_iter().find(|status| status.mechanism == Isolation::Bwrap)?;
        if !found.available {
            skip_without(Requirement::Bwrap, &found.note);
            return None;
        }
        let settings = SandboxSettings { program: program(), fallback: JailFallback::Forced, ..SandboxSettings::new() };
        let world = Self { sandbox: Sandbox::start(settings).unwrap(), ..Self::with_pool(0) };
        chown_to_plain_user(world.path());
        Some(world)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn write(&self, name: &str, contents: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    pub(crate) fn view(&self) -> WorkspaceView {
        let beside = self.beside.iter();
        let beside = beside.map(|(alias, path)| ExposedDir { masked: self.masked.clone(), ..exposed_dir(alias, path) });
        let workspace =
            ExposedDir { masked: self.masked.clone(), hidden: self.hidden.clone(), ..exposed_dir("w", self.path()) };
        WorkspaceView { workspace, read_only_mounts: beside.collect(), started: SystemTime::now() }
    }

    /// Bash with this script.
    pub(crate) fn bash(&self, script: &str) -> RunResult {
        self.run(&["bash", "/run/ringfence/main"], script, &OutputObserver::default()).unwrap()
    }

    /// Output of bash with this script, which must print no error.
    pub(crate) fn stdout_of(&self, script: &str) -> String {
        let ended = self.bash(script);
        assert_eq!((ended.exit_code, ended.stderr.text().as_str()), (0, ""), "{script}: {}", ended.stdout.text());
        ended.stdout.text()
    }

    pub(crate) fn python(&self, script: &str) -> RunResult {
        self.run(&["python3", "/run/ringfence/main"], script, &OutputObserver::default()).unwrap()
    }

    pub(crate) fn run(&self, argv: &[&str], script: &str, watch: &dyn ProgramObserver) -> Result<RunResult, JailError> {
        self.run_with(&self.view(), argv, script, watch)
    }

    /// The same with another view than the world's own.
    pub(crate) fn run_with(
        &self,
        view: &WorkspaceView,
        argv: &[&str],
        script: &str,
        watch: &dyn ProgramObserver,
    ) -> Result<RunResult, JailError> {
        match self.variant {
            JailVariant::OneProgram => self.sandbox.run(&self.job(view, argv, script), watch),
            JailVariant::Wrapped => {
                let layers = TestLayers::new();
                let wrapped = layers.environment(Path::new("/place/me/project"), wrapped_user("/place/me"));
                let job = JailJob { wrapped: Some(&wrapped), ..self.job(view, argv, script) };
                self.sandbox.run(&job, watch)
            }
        }
    }

    /// A job, with nothing to read on standard input and no egress.
    pub(crate) fn job<'a>(&'a self, view: &'a WorkspaceView, argv: &[&str], script: &str) -> JailJob<'a> {
        JailJob {
            argv: argv.iter().map(Into::into).collect(),
            files: vec![JailFile::new("main", script)],
            masked: Vec::new(),
            env: self.env.clone(),
            limits: self.limits.clone(),
            view,
            toolchains: &self.toolchains,
            egress: None,
            stdin: None,
            output: OutputCapture::Separate,
            directory_report: None,
            network: None,
            wrapped: None,
        }
    }
}

pub(crate) fn exposed_dir(alias: &str, path: &Path) -> ExposedDir {
    ExposedDir {
        alias: alias.into(),
        directory: open_dir(path),
        path: path.into(),
        masked: Vec::new(),
        hidden: Vec::new(),
    }
}

pub(crate) fn open_dir(path: &Path) -> OwnedFd {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Sees output, and stops at a word.
#[derive(Default)]
pub(crate) struct OutputObserver {
    pub(crate) bytes: Mutex<Vec<u8>>,
    pub(crate) stop_at: Option<&'static str>,
    stopped: AtomicBool,
}

impl OutputObserver {
    pub(crate) fn stopping_at(word: &'static str) -> Self {
        Self { stop_at: Some(word), ..Self::default() }
    }

    /// Ends the program.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl ProgramObserver for OutputObserver {
    fn on_output(&self, _: OutputStream, bytes: &[u8]) {
        let mut seen = self.bytes.lock().unwrap();
        seen.extend(bytes);
        if let Some(word) = self.stop_at {
            let found = String::from_utf8_lossy(&seen).contains(word);
            self.stopped.fetch_or(found, Ordering::Relaxed);
        }
    }

    fn should_stop(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
