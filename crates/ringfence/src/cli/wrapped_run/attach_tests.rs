//! Tests of the attach server: real sockets, and a real terminal that stands for that of a detached run.

#![allow(clippy::disallowed_methods, reason = "tests set up what the server sees")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringfence_kernel::{ErrorKind, Principal, ToolError, sync::Mutex};
use ringfence_sandbox::{RunAttachments as _, SignalSource as _, TerminalSize};
use ringfence_testkit::patience::{wait_for, wait_until};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};
use tempfile::TempDir;

use crate::cli::wrapped_run::attach_server::{AttachServer, AttachedRunInfo};
use crate::cli::wrapped_run::relay_fixture::open_terminal_pair;
use crate::cli::wrapped_run::relay_signals::SignalInbox;
use crate::process::attach::connection::{AttachConnection, AttachError, request_run};
use crate::process::attach::protocol::{
    AttachFrame, AttachHello, AttachRole, PROTOCOL_VERSION, RoleNotice, RunRequest, RunStatus,
};

const SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };
const LAYER: &str = "l-00000000000001";

/// A run with a server, and what its process would do.
struct ServedRun {
    state: TempDir,
    server: AttachServer,
    signals: Arc<SignalInbox>,
    /// The end of the terminal that the run has, if it is detached.
    terminal: Option<File>,
    /// Who was recorded.
    writers: Mutex<Vec<String>>,
}

impl ServedRun {
    fn detached() -> Self {
        let (master, slave) = open_terminal_pair();
        let mut modes = tcgetattr(&slave).unwrap();
        modes.make_raw();
        tcsetattr(&slave, OptionalActions::Now, &modes).unwrap();
        Self::new(Some(OwnedFd::from(master)), Some(slave))
    }

    fn new(master: Option<OwnedFd>, terminal: Option<File>) -> Self {
        let state = tempfile::tempdir().unwrap();
        let server = AttachServer::start(state.path(), SIZE, master).unwrap();
        let signals = Arc::new(SignalInbox::new().unwrap());
        server.describe(AttachedRunInfo {
            session: "run-1".to_owned(),
            program: "sh".to_owned(),
            profile: "none".to_owned(),
            makes_checkpoints: false,
            signals: Arc::clone(&signals),
        });
        server.on_started(LAYER);
        Self { state, server, signals, terminal, writers: Mutex::default() }
    }

    fn write(&self, text: &str) {
        self.terminal.as_ref().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// What was typed so far.
    fn read(&self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        self.terminal.as_ref().unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    fn connect(&self, role: AttachRole, person: &str, size: TerminalSize) -> TestPeer {
        let hello = AttachHello { version: PROTOCOL_VERSION, role, person: person.to_owned(), size: Some(size) };
        let connection = AttachConnection::open(self.state.path(), "l-0", hello).unwrap();
        TestPeer { connection, seen: String::new() }
    }

    /// A writer, who is recorded.
    fn writer(&self, person: &str, size: TerminalSize) -> TestPeer {
        let mut peer = self.connect(AttachRole::Writer, person, size);
        let before = self.writers.lock().len();
        wait_until("the record", || {
            self.server.record_writers(&|writer| {
                self.writers.lock().push(writer.name.clone());
                Ok(())
            });
            self.writers.lock().len() > before
        });
        assert_eq!(peer.role(), RoleNotice { role: AttachRole::Writer, writer: Some(person.to_owned()) });
        peer
    }

    fn viewer(&self) -> TestPeer {
        let mut peer = self.connect(AttachRole::Viewer, "someone", SIZE);
        assert_eq!(peer.role().role, AttachRole::Viewer);
        peer
    }

    fn request(&self, request: RunRequest) -> Result<RunStatus, AttachError> {
        request_run(self.state.path(), LAYER, "ana", request)
    }
}

/// A client that attached.
struct TestPeer {
    connection: AttachConnection,
    seen: String,
}

impl TestPeer {
    /// Reads what is shown up to this text.
    #[track_caller]
    fn until(&mut self, text: &str) {
        while !self.seen.contains(text) {
            if let AttachFrame::Output(bytes) = self.connection.next_frame().unwrap() {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        self.seen = self.seen.split_once(text).unwrap().1.to_owned();
    }

    /// Reads up to the next notice of a role.
    #[track_caller]
    fn role(&mut self) -> RoleNotice {
        loop {
            if let AttachFrame::Role(notice) = self.connection.next_frame().unwrap() {
                return notice;
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.connection.send(&AttachFrame::Input(keys.as_bytes().to_vec())).unwrap();
    }
}

#[test]
fn viewers_see_the_screen_and_one_types() {
    let run = ServedRun::detached();
    run.write("drawn before\r\n");
    let mut writer = run.writer("ana", SIZE);
    writer.until("drawn before");
    let mut viewers = [run.viewer(), run.viewer()];
    viewers[0].until("drawn before");
    viewers[1].until("drawn before");
    viewers[0].press("not typed");
    writer.press("typed");
    run.read("typed");
    run.write("drawn after");
    writer.until("drawn after");
    viewers.iter_mut().for_each(|viewer| viewer.until("drawn after"));
    // Nothing of the viewer's came before this either.
    writer.press("!");
    run.read("!");
    assert_eq!(*run.writers.lock(), ["ana"]);
}

#[test]
fn another_writer_takes_over_is_recorded_and_the_former_one_is_told() {
    let run = ServedRun::detached();
    let mut ana = run.writer("ana", SIZE);
    let mut bob = run.writer("bob", TerminalSize { rows: 40, columns: 132 });
    assert_eq!(ana.role(), RoleNotice { role: AttachRole::Viewer, writer: Some("bob".to_owned()) });
    let size = tcgetwinsize(run.terminal.as_ref().unwrap()).unwrap();
    assert_eq!((size.ws_row, size.ws_col), (40, 132));
    ana.press("ana");
    bob.press("bob");
    run.read("bob");
    // The former one still sees the screen.
    run.write("drawn");
    ana.until("drawn");
    assert_eq!(*run.writers.lock(), ["ana", "bob"]);
    // Without a writer, the screen keeps its size.
    drop(bob);
    wait_until("the end of the connection", || run.request(RunRequest::Status).unwrap().writer.is_none());
    assert_eq!(run.request(RunRequest::Status).unwrap().size, TerminalSize { rows: 40, columns: 132 });
}

#[test]
fn a_size_is_that_of_who_types() {
    let run = ServedRun::detached();
    let (mut writer, mut viewer) = (run.writer("ana", SIZE), run.viewer());
    viewer.connection.send(&AttachFrame::Size(TerminalSize { rows: 10, columns: 10 })).unwrap();
    // The screen comes again, when that was read.
    viewer.until("\x1b[2J");
    viewer.until("\x1b[2J");
    writer.connection.send(&AttachFrame::Size(TerminalSize { rows: 30, columns: 90 })).unwrap();
    let rows = || tcgetwinsize(run.terminal.as_ref().unwrap()).unwrap().ws_row;
    wait_until("the size", || rows() == 30);
}

#[test]
fn who_is_not_recorded_does_not_type() {
    let run = ServedRun::detached();
    let mut peer = run.connect(AttachRole::Writer, "ana", SIZE);
    let mut was_asked = false;
    let refused = wait_for("a refusal", || {
        let asked = Mutex::new(false);
        run.server.record_writers(&|_: &Principal| {
            *asked.lock() = true;
            Err(ToolError::new(ErrorKind::Internal, "cannot write to the audit log"))
        });
        was_asked |= *asked.lock();
        was_asked.then(|| peer.connection.next_frame())
    });
    assert_eq!(refused.unwrap_err().to_string(), "cannot write to the audit log");
}

#[test]
fn a_run_at_a_terminal_is_viewed_only() {
    let run = ServedRun::new(None, None);
    run.server.feed(b"of the person\r\n");
    let mut viewer = run.viewer();
    viewer.until("of the person");
    run.server.feed(b"more");
    viewer.until("more");
    let mut writer = run.connect(AttachRole::Writer, "ana", SIZE);
    let refused = writer.connection.next_frame().unwrap_err().to_string();
    assert!(refused.starts_with("only the terminal that started this run types to it"), "{refused}");
}

#[test]
fn the_state_is_told_and_the_program_asked_to_end() {
    let run = ServedRun::detached();
    run.write("\x1b[?1049h\x1b[H\x1b[2J<b>full screen</b>");
    let status = wait_for("the screen", || {
        let status = run.request(RunRequest::Status).unwrap();
        status.screen[0].contains("full screen").then_some(status)
    });
    assert_eq!((status.layer.as_str(), status.program.as_str(), status.is_detached), (LAYER, "sh", true));
    assert_eq!((status.size, status.screen[0].as_str()), (SIZE, "<b>full screen</b>"));
    assert_eq!(
        run.request(RunRequest::Checkpoint).unwrap_err().to_string(),
        "this run makes no checkpoints; start it with `--live`"
    );
    run.request(RunRequest::Stop).unwrap();
    assert_eq!((run.signals.next_signal(), run.signals.should_end()), (Some(15), false));
    run.request(RunRequest::Stop).unwrap();
    assert!(run.signals.should_end());
}

#[test]
fn more_connections_than_there_may_be_wait_for_one_that_ends() {
    let run = ServedRun::detached();
    let mut viewers: Vec<TestPeer> = (0..32).map(|_| run.viewer()).collect();
    let mut waiting = run.connect(AttachRole::Viewer, "late", SIZE);
    run.write("drawn");
    viewers.iter_mut().for_each(|viewer| viewer.until("drawn"));
    viewers.pop();
    assert_eq!(waiting.role().role, AttachRole::Viewer);
    waiting.until("drawn");
}

/// Neither the program nor others wait for it.
#[test]
fn a_viewer_that_reads_nothing_holds_up_no_other() {
    let run = ServedRun::detached();
    let _stuck = run.viewer();
    let mut viewer = run.viewer();
    let line = format!("{}\r\n", "x".repeat(78));
    for _ in 0..100_000 {
        run.write(&line);
    }
    run.write("THE END");
    viewer.until("THE END");
}

#[test]
fn all_are_told_of_the_end_and_the_socket_is_gone() {
    let mut run = ServedRun::detached();
    let (mut writer, mut viewer) = (run.writer("ana", SIZE), run.viewer());
    run.write("last words");
    run.terminal = None;
    run.server.finish(Some(7));
    for peer in [&mut writer, &mut viewer] {
        peer.until("last words");
        assert_eq!(peer.connection.next_frame().unwrap(), AttachFrame::End(Some(7)));
    }
    assert!(matches!(run.request(RunRequest::Status), Err(AttachError::NotRunning(_))));
    assert_eq!(std::fs::read_dir(run.state.path().join("attach")).unwrap().count(), 0);
}

#[test]
fn another_version_and_a_wrong_order_are_refused() {
    let run = ServedRun::detached();
    let hello = AttachHello { version: 2, role: AttachRole::Viewer, person: String::new(), size: None };
    let mut peer = AttachConnection::open(run.state.path(), LAYER, hello.clone()).unwrap();
    let refused = peer.next_frame().unwrap_err().to_string();
    assert!(refused.starts_with("another version of Ringfence"), "{refused}");
    let mut viewer = run.viewer();
    viewer.connection.send(&AttachFrame::Hello(hello)).unwrap();
    let refused = loop {
        match viewer.connection.next_frame() {
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(refused, "this is not expected here");
}
