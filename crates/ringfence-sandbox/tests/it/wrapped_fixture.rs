//! Test fixture of wrapped programs: layers on disk, a user, and the host's side of a terminal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringfence_kernel::OverlayDirectories;
use ringfence_sandbox::{
    JailError, JailJob, OutputCapture, PlacedFile, ProgramObserver, RecordedCalls, RunResult, TerminalRelay,
    TerminalSize, ToolCache, WrappedCache, WrappedEnvironment, WrappedTerminal, WrappedUser,
};
use ringfence_testkit::patience::{PATIENCE, wait_until};
use tempfile::TempDir;

use crate::fixture::{OutputObserver, SandboxFixture, open_dir};

/// The user that a wrapped program sees itself as.
pub(crate) fn wrapped_user(home: &str) -> WrappedUser {
    WrappedUser { name: "me".to_owned(), home: home.into(), shell: "/bin/sh".into(), uid: 4321, gid: 4322 }
}

/// Layers on disk of a wrapped program.
pub(crate) struct TestLayers {
    directory: TempDir,
    workspace: OverlayDirectories,
    home_start: OwnedFd,
    home: OverlayDirectories,
}

impl TestLayers {
    pub(crate) fn new() -> Self {
        let layers = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let path = layers.path().join(name);
            fs::create_dir_all(&path).unwrap();
            open_dir(&path)
        };
        let pair = |name: &str| OverlayDirectories {
            upper: directory(&format!("{name}/upper")),
            work: directory(&format!("{name}/work")),
        };
        let (workspace, home, home_start) = (pair("workspace"), pair("home"), directory("home/start"));
        Self { directory: layers, workspace, home_start, home }
    }

    /// The environment of a program on these layers, on pipes.
    pub(crate) fn environment(&self, workspace_path: &Path, identity: WrappedUser) -> WrappedEnvironment<'_> {
        WrappedEnvironment {
            workspace_path: workspace_path.to_owned(),
            identity,
            workspace_layer: &self.workspace,
            home_start: &self.home_start,
            home_layer: &self.home,
            caches: Vec::new(),
            files: Vec::new(),
            terminal: None,
            recorded: RecordedCalls::default(),
        }
    }
}

/// A workspace with a sandbox, and the place of a wrapped program.
pub(crate) struct WrappedFixture {
    pub(crate) world: SandboxFixture,
    layers: TestLayers,
    pub(crate) workspace_path: PathBuf,
    pub(crate) identity: WrappedUser,
    pub(crate) files: Vec<PlacedFile>,
    /// Each with a layer, whose directory is that in the layers with its number: `cache-0`.
    pub(crate) caches: Vec<(ToolCache, OverlayDirectories)>,
    pub(crate) env: BTreeMap<String, String>,
}

impl WrappedFixture {
    pub(crate) fn new() -> Self {
        Self::with(SandboxFixture::with_pool(0))
    }

    pub(crate) fn with(mut world: SandboxFixture) -> Self {
        // Only the clock of the tests themselves: these programs have none.
        world.limits.wall = Duration::MAX;
        world.limits.cpu = Duration::MAX;
        Self {
            world,
            layers: TestLayers::new(),
            workspace_path: "/home/me/project".into(),
            identity: wrapped_user("/home/me"),
            files: Vec::new(),
            caches: Vec::new(),
            env: BTreeMap::from([("TERM".to_owned(), "xterm".to_owned())]),
        }
    }

    /// Gives the program a cache of a person with this home directory.
    pub(crate) fn add_cache(&mut self, home: &Path, path: &str) {
        let number = self.caches.len();
        let directory = |name: &str| {
            let path = self.layers.directory.path().join(format!("cache-{number}")).join(name);
            fs::create_dir_all(&path).unwrap();
            open_dir(&path)
        };
        let layer = OverlayDirectories { upper: directory("upper"), work: directory("work") };
        self.caches.push((ToolCache::find(home, Path::new(path)).0, layer));
    }

    /// Before another run with the same layers: an overlay takes a work directory only if it is empty.
    pub(crate) fn empty_work_directories(&self) {
        for layer in names_in(self.layers.directory.path()) {
            for entry in fs::read_dir(self.layer(&layer).join("work")).unwrap() {
                let path = entry.unwrap().path();
                // The kernel closes what it makes there.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
                fs::remove_dir_all(path).unwrap();
            }
        }
    }

    /// Path of a part of the layers.
    pub(crate) fn layer(&self, name: &str) -> PathBuf {
        self.layers.directory.path().join(name)
    }

    /// Names in a directory of the layers, sorted.
    pub(crate) fn names_in(&self, name: &str) -> Vec<String> {
        names_in(&self.layer(name))
    }

    fn environment<'a>(&'a self, terminal: Option<WrappedTerminal<'a>>) -> WrappedEnvironment<'a> {
        WrappedEnvironment {
            caches: self.caches.iter().map(|(cache, layer)| WrappedCache { cache, layer }).collect(),
            files: self.files.clone(),
            terminal,
            ..self.layers.environment(&self.workspace_path, self.identity.clone())
        }
    }

    fn run_in(
        &self,
        environment: &WrappedEnvironment<'_>,
        argv: &[&str],
        script: &str,
        watch: &dyn ProgramObserver,
    ) -> Result<RunResult, JailError> {
        let view = self.world.view();
        let job = JailJob {
            env: self.env.clone(),
            output: OutputCapture::StreamedSeparately,
            wrapped: Some(environment),
            ..self.world.job(&view, argv, script)
        };
        self.world.sandbox.run(&job, watch)
    }

    /// A program on pipes.
    pub(crate) fn try_run(&self, argv: &[&str], script: &str) -> Result<RunResult, JailError> {
        self.run_in(&self.environment(None), argv, script, &OutputObserver::default())
    }

    /// The same with an observer.
    pub(crate) fn run_observed(&self, script: &str, watch: &dyn ProgramObserver) -> Result<RunResult, JailError> {
        self.run_in(&self.environment(None), &["bash", "/run/ringfence/main"], script, watch)
    }

    /// Output of bash with this script on pipes, which must print no error.
    #[track_caller]
    pub(crate) fn stdout_of(&self, script: &str) -> String {
        let ended = self.try_run(&["bash", "/run/ringfence/main"], script).unwrap();
        assert_eq!((ended.exit_code, ended.stderr.text().as_str()), (0, ""), "{script}: {}", ended.stdout.text());
        ended.stdout.text()
    }

    /// A program on a terminal, with a dialogue meanwhile.
    pub(crate) fn on_terminal(
        &self,
        argv: &[&str],
        script: &str,
        dialogue: impl FnOnce(&TestRelay),
    ) -> Result<RunResult, JailError> {
        self.on_terminal_observed(argv, script, &OutputObserver::default(), dialogue)
    }

    /// The same with an observer.
    pub(crate) fn on_terminal_observed(
        &self,
        argv: &[&str],
        script: &str,
        watch: &(dyn ProgramObserver + Sync),
        dialogue: impl FnOnce(&TestRelay),
    ) -> Result<RunResult, JailError> {
        let relay = TestRelay::default();
        let result = thread::scope(|scope| {
            let run = scope.spawn(|| {
                let terminal = WrappedTerminal { size: TerminalSize { rows: 33, columns: 101 }, relay: &relay };
                let ended = self.run_in(&self.environment(Some(terminal)), argv, script, watch);
                relay.set(|state| state.is_over = true);
                ended
            });
            dialogue(&relay);
            run.join().unwrap()
        });
        relay.read_to_end();
        result
    }

    /// A program on a terminal with another host's side.
    pub(crate) fn with_relay(&self, argv: &[&str], relay: &dyn TerminalRelay) -> Result<RunResult, JailError> {
        let terminal = WrappedTerminal { size: TerminalSize::default(), relay };
        self.run_in(&self.environment(Some(terminal)), argv, "", &OutputObserver::default())
    }

    /// Output of bash with this script on a terminal.
    pub(crate) fn printed_on_terminal(&self, script: &str) -> String {
        let mut printed = String::new();
        let ended = self.on_terminal(&["bash", "/run/ringfence/main"], script, |relay| printed = relay.until_the_end());
        assert_eq!(ended.unwrap().exit_code, 0, "{printed}");
        printed
    }
}

/// Names in a directory, sorted.
pub(crate) fn names_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

/// The host's side of a terminal: keeps what is printed, and types.
#[derive(Debug, Default)]
pub(crate) struct TestRelay {
    state: Arc<(Mutex<RelayState>, Condvar)>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct RelayState {
    printed: Vec<u8>,
    master: Option<Arc<File>>,
    stops: usize,
    /// Whether a stop waits for `resume`.
    holds_stops: bool,
    is_over: bool,
}

impl TestRelay {
    fn set(&self, change: impl FnOnce(&mut RelayState)) {
        change(&mut self.state.0.lock().unwrap());
        self.state.1.notify_all();
    }

    fn get<T>(&self, look: impl FnOnce(&RelayState) -> T) -> T {
        look(&self.state.0.lock().unwrap())
    }

    pub(crate) fn printed(&self) -> String {
        self.get(|state| String::from_utf8_lossy(&state.printed).replace('\r', ""))
    }

    pub(crate) fn stops(&self) -> usize {
        self.get(|state| state.stops)
    }

    /// Waits until this was printed.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        wait_until(&format!("`{text}` on the terminal"), || {
            let is_over = self.get(|state| state.is_over);
            if is_over {
                // The last output may not be read yet.
                self.read_to_end();
            }
            let is_printed = self.printed().contains(text);
            assert!(!is_over || is_printed, "{}", self.printed());
            is_printed
        });
    }

    /// Waits until the program has its terminal.
    pub(crate) fn wait_until_open(&self) {
        wait_until("a terminal", || self.get(|state| state.master.is_some() || state.is_over));
    }

    pub(crate) fn type_in(&self, text: &str) {
        let master = self.get(|state| state.master.clone()).unwrap();
        (&*master).write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let master = self.get(|state| state.master.clone()).unwrap();
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&*master, size).unwrap();
    }

    /// From here on a stop waits for `resume`.
    pub(crate) fn hold_stops(&self) {
        self.set(|state| state.holds_stops = true);
    }

    pub(crate) fn wait_for_stop(&self, number: usize) {
        wait_until("a stop", || self.stops() == number);
    }

    pub(crate) fn resume(&self) {
        self.set(|state| state.holds_stops = false);
    }

    /// Waits for the end of the program, and of its output.
    pub(crate) fn until_the_end(&self) -> String {
        let (state, changed) = &*self.state;
        let ended = changed.wait_timeout_while(state.lock().unwrap(), PATIENCE, |state| !state.is_over).unwrap();
        assert!(!ended.1.timed_out(), "the program did not end");
        drop(ended);
        self.read_to_end();
        self.printed()
    }

    fn read_to_end(&self) {
        if let Some(reader) = self.reader.lock().unwrap().take() {
            reader.join().unwrap();
        }
    }
}

impl TerminalRelay for TestRelay {
    fn on_opened(&self, master: OwnedFd) {
        let master = Arc::new(File::from(master));
        self.set(|state| state.master = Some(Arc::clone(&master)));
        let state = Arc::clone(&self.state);
        *self.reader.lock().unwrap() = Some(thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end is an error: no process has the other side.
            while let Ok(length @ 1..) = (&*master).read(&mut buffer) {
                state.0.lock().unwrap().printed.extend(&buffer[..length]);
                state.1.notify_all();
            }
        }));
    }

    fn on_stopped(&self) {
        self.set(|state| state.stops += 1);
        let (state, changed) = &*self.state;
        let held = changed.wait_timeout_while(state.lock().unwrap(), PATIENCE, |state| state.holds_stops).unwrap();
        assert!(!held.1.timed_out(), "not resumed");
    }
}
