//! Fixture of the relay's tests: a relay as a process of its own, on a terminal of the test, with a program on a terminal
//! that stands for that of a jail.
//!
//! The test binary runs itself as the relay ([`run_relay_process`]). The program is a child of a shell that is the leader of its
//! session, as in the jail, and tells the relay of stops and of the end.

#![allow(clippy::disallowed_methods, reason = "tests start programs, and set up what they see")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use ringfence_kernel::{
    ApprovalRequest, Approver as _, ApproverReply, Assurance, PolicyLayer, Preview, PreviewBody, sync::Mutex,
};
use ringfence_sandbox::{SignalSource as _, TerminalRelay as _};
use ringfence_testkit::patience::PATIENCE;
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};
use tempfile::TempDir;

use crate::approval::dialog_screen::poll_for;
use crate::approval::tty::TtyApprover;
use crate::cli::wrapped_run::person_terminal::PersonTerminal;
use crate::cli::wrapped_run::sequence_policy::FilterOptions;
use crate::cli::wrapped_run::terminal_relay::{InPlaceApprover, RelaySession};
use crate::config::{CliFlags, Environment, load};

/// The directory of a relay process: `program`, which it runs, `continue`, `answers` and `end`.
const DIRECTORY_VARIABLE: &str = "RINGFENCE_TEST_RELAY";

/// Relays everything, without a filter.
const RAW_VARIABLE: &str = "RINGFENCE_TEST_RELAY_RAW";

/// The test that is the relay process.
const RELAY_TEST: &str = "cli::wrapped_run::relay_tests::a_process_without_a_terminal_has_no_person_at_it";

/// The leader of the program's session: does job control, and says on its standard error what happens.
const LEADER: &str = r#"
exec 3>&2 2>&1
set -m
sh "$DIRECTORY/program"; status=$?
# A stop ends a loop, but not a function.
follow() {
    [ "$status" = 148 ] || return
    echo stopped >&3
    read -r _ < "$DIRECTORY/continue"
    fg > "$DIRECTORY/jobs"; status=$?
    follow
}
follow
echo "end $status" >&3
"#;

/// A PID namespace in which our session, its process groups and its leader have no number.
pub(crate) const PID_NAMESPACE: &[&str] =
    &["unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child"];

/// Whether a user may have one.
pub(crate) fn has_pid_namespaces() -> bool {
    let found = Command::new(PID_NAMESPACE[0]).args(&PID_NAMESPACE[1..]).arg("true").status();
    if !found.is_ok_and(|status| status.success()) {
        skip_without(Requirement::UserNamespaces, "`unshare --user --pid` is refused or missing");
        return false;
    }
    true
}

/// A pair of master and slave of a new terminal.
pub(crate) fn open_terminal_pair() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(master), slave)
}

/// The relay process, if this process was started as one. False elsewhere.
pub(crate) fn run_relay_process() -> bool {
    let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from) else { return false };
    let filter = std::env::var_os(RAW_VARIABLE).is_none().then(FilterOptions::default);
    let terminal = PersonTerminal::open().unwrap();
    let size = terminal.size();
    let session = Arc::new(RelaySession::new(terminal, filter, None).unwrap());
    session.start().unwrap();
    let (master, slave) = open_terminal_pair();
    tcsetwinsize(&master, size).unwrap();
    let mut leader = Command::new("setsid");
    leader.args(["--ctty", "bash", "--norc", "-c", LEADER]).env("DIRECTORY", &directory);
    leader.stdin(slave.try_clone().unwrap()).stdout(slave).stderr(Stdio::piped());
    let mut leader_process = leader.spawn().unwrap();
    drop(leader);
    let foreground = master.try_clone().unwrap();
    session.on_opened(OwnedFd::from(master));
    let end = follow_leader(&session, &mut leader_process, &foreground, &directory);
    let is_written = session.finish();
    drop(session);
    std::fs::write(directory.join("end"), format!("{end} {}", is_written.is_ok())).unwrap();
    true
}

/// Does what the leader and signals say, until the end of the program.
fn follow_leader(session: &Arc<RelaySession>, leader: &mut Child, foreground: &File, directory: &Path) -> String {
    let (sender, lines) = channel();
    let errors = BufReader::new(leader.stderr.take().unwrap());
    std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    loop {
        let line = match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return "gone".to_owned(),
            Err(RecvTimeoutError::Timeout) => String::new(),
        };
        match line.as_str() {
            "stopped" => {
                session.on_stopped();
                std::fs::write(directory.join("continue"), "go\n").unwrap();
            }
            "ask" => ask(session, directory),
            "panic" => panic!("as the program asked for"),
            line if line.starts_with("end") => return line.to_owned(),
            _ => {}
        }
        if let Some(signal) = session.signals().next_signal().and_then(Signal::from_named_raw) {
            kill_process_group(tcgetpgrp(foreground).unwrap(), signal).unwrap();
        }
        if session.signals().should_end() {
            leader.kill().unwrap();
        }
    }
}

fn ask(session: &Arc<RelaySession>, directory: &Path) {
    let environment = Environment::isolated(directory, "/proc/self/exe");
    let flags = CliFlags { workspace: directory.to_str().map(str::to_owned), ..CliFlags::default() };
    let approver = TtyApprover::new(&load(&flags, &environment).unwrap(), &environment);
    let request = ApprovalRequest {
        id: "a-1".to_owned(),
        step_id: "1".to_owned(),
        session: "s".to_owned(),
        principal: "an agent".to_owned(),
        agent: None,
        tool: "fetch_url".to_owned(),
        args: serde_json::json!({"host": "docs.example.org"}),
        reason: "this would connect to `docs.example.org`".to_owned(),
        rule: "preset ask".to_owned(),
        layer: PolicyLayer::Preset,
        assurance: Assurance::Relayed,
        preview: Preview::new("connect", "f").with_body(PreviewBody::Text("docs.example.org".to_owned())),
        grant: None,
        suspended: false,
        opened: SystemTime::now(),
        expires: SystemTime::now() + PATIENCE,
    };
    let approver = InPlaceApprover::new(Arc::clone(session), approver);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = match runtime.block_on(approver.ask(&request)) {
        ApproverReply::Decided(decision) if decision.response.approved => "yes\n",
        _ => "no\n",
    };
    let mut answers = File::options().create(true).append(true).open(directory.join("answers")).unwrap();
    answers.write_all(answer.as_bytes()).unwrap();
}

/// A relay on a terminal of the test.
pub(crate) struct RelayTerminal {
    pub(crate) directory: TempDir,
    master: Option<File>,
    slave: File,
    process: Child,
    before: String,
    seen: Mutex<ScreenText>,
}

#[derive(Default)]
struct ScreenText {
    bytes: Vec<u8>,
    /// How far it was looked at.
    read_to: usize,
}

/// A directory with the program of a relay process.
pub(crate) fn program_directory(program: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("program"), program).unwrap();
    let fifo = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, directory.path().join("continue"), fifo).unwrap();
    directory
}

/// The command line of the relay process, for a shell.
pub(crate) fn relay_command(directory: &Path) -> String {
    let binary = std::env::current_exe().unwrap();
    format!(
        "{DIRECTORY_VARIABLE}={} {} --exact {RELAY_TEST} --nocapture --quiet",
        directory.display(),
        binary.display()
    )
}

impl RelayTerminal {
    /// A relay process as the leader of its session, which no shell can stop.
    pub(crate) fn start(program: &str) -> Self {
        Self::start_with(program, "exec ")
    }

    /// The relay process in an interactive shell.
    pub(crate) fn start_in_shell(program: &str) -> Self {
        let mut terminal = Self::start_with("", "PS1='shell> ' exec bash --norc --noprofile -i; ");
        std::fs::write(terminal.directory.path().join("program"), program).unwrap();
        terminal.until("shell> ");
        terminal
    }

    /// The relay process after some words of shell.
    pub(crate) fn start_with(program: &str, shell: &str) -> Self {
        let directory = program_directory(program);
        let (master, slave) = open_terminal_pair();
        resize(&slave, 24, 80);
        let before = settings(&slave);
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        let line = format!("{shell}env {}", relay_command(directory.path()));
        command.args(["--ctty", "bash", "--norc", "-c", &line]).env("TERM", "xterm-256color");
        let process = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Self { directory, master: Some(master), slave, process, before, seen: Mutex::default() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        resize(&self.slave, rows, columns);
    }

    pub(crate) fn press(&self, keys: &str) {
        self.master.as_ref().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Closes the terminal, as its window does.
    pub(crate) fn close(&mut self) {
        self.master = None;
    }

    /// Whether its settings are those before the start.
    pub(crate) fn is_restored(&self) -> bool {
        settings(&self.slave) == self.before
    }

    /// Reads the screen until this is on it, after what was waited for before. Returns what came before it.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut seen = self.seen.lock();
            let unread = String::from_utf8_lossy(&seen.bytes[seen.read_to..]).into_owned();
            let found = memchr::memmem::find(&seen.bytes[seen.read_to..], text.as_bytes());
            if let Some(at) = found {
                let before = String::from_utf8_lossy(&seen.bytes[seen.read_to..seen.read_to + at]).into_owned();
                seen.read_to += at + text.len();
                return before;
            }
            drop(seen);
            assert!(Instant::now() < deadline, "no {text:?} on the screen: {unread:?}");
            assert!(self.read_screen(), "no {text:?} on the screen, which is gone: {unread:?}");
        }
    }

    /// Reads what is on the screen. False at its end.
    fn read_screen(&self) -> bool {
        let mut master = self.master.as_ref().unwrap();
        let mut fds = [PollFd::new(master, PollFlags::IN)];
        poll_for(&mut fds, Duration::from_secs(1)).unwrap();
        if fds[0].revents().is_empty() {
            return true;
        }
        let mut bytes = [0; 65536];
        match master.read(&mut bytes) {
            Ok(count) if count > 0 => {
                self.seen.lock().bytes.extend(&bytes[..count]);
                true
            }
            _ => false,
        }
    }

    /// The end of the process, and what it says of the program's.
    #[track_caller]
    pub(crate) fn end(mut self) -> String {
        assert!(self.wait().success());
        assert!(self.is_restored());
        std::fs::read_to_string(self.directory.path().join("end")).unwrap()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Drop for RelayTerminal {
    fn drop(&mut self) {
        // One that ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn resize(terminal: &File, rows: u16, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// The settings of a terminal, as `stty -g` has them.
fn settings(terminal: &File) -> String {
    let now = tcgetattr(terminal).unwrap();
    let (input, output, control, local) = (now.input_modes, now.output_modes, now.control_modes, now.local_modes);
    format!("{input:?} {output:?} {control:?} {local:?} {:?}", now.special_codes)
}
