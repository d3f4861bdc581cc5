//! Deadlines and cancelling, also where the file system does not answer.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use ringfence_fs::ResolverBackend;
use ringfence_kernel::{AuditEvent, ErrorKind};
use ringfence_testkit::audit_trace::AuditTrace;
use ringfence_testkit::cpu_share::CpuShare;
use ringfence_testkit::stalling_fs::{FuseGate, FuseOp, StallingFs};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::{FixtureReply, FsFixture, FsFixtureConfig};
use crate::snapshot::snapshot;

/// Time limit of a call in these tests.
const CALL_TIME: Duration = Duration::from_millis(300);

/// Most time until a waiting call returns, as a share of the processor.
const PROMPT: Duration = Duration::from_millis(1500);

/// All the time that a test needs: only a cancel ends such a call.
const PATIENT: Duration = Duration::from_secs(600);

/// Every way in which a wait ends. Waiting for a deadline takes its time, so one backend has to do for that.
const ENDS: [(ResolverBackend, WaitEnd); 3] = [
    (ResolverBackend::Best, WaitEnd::Deadline),
    (ResolverBackend::Best, WaitEnd::Cancel),
    (ResolverBackend::CapStd, WaitEnd::Cancel),
];

fn short_deadline(backend: ResolverBackend) -> FsFixtureConfig {
    let mut setup =
        FsFixtureConfig { workers: 1, trace: Some(AuditTrace::default()), ..FsFixtureConfig::default().on(backend) };
    setup.limits.call_time = CALL_TIME;
    setup
}

fn no_deadline(backend: ResolverBackend) -> FsFixtureConfig {
    let mut setup = short_deadline(backend);
    setup.limits.call_time = PATIENT;
    setup
}

/// A workspace that is a file system of its own, which can be made to stall.
struct StallingFixture {
    slow: StallingFs,
    world: FsFixture,
    trace: AuditTrace,
}

impl StallingFixture {
    fn new(setup: FsFixtureConfig) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("ws");
        std::fs::create_dir(&root).unwrap();
        let slow = StallingFs::mount(&root)?;
        let trace = setup.trace.clone().unwrap();
        let world = FsFixture::at(directory, setup);
        world.write("f.txt", "old\n");
        world.write("d/g.txt", "old\n");
        Some(Self { slow, world, trace })
    }

    fn gate(&self) -> &FuseGate {
        &self.slow.gate
    }

    /// Makes a call that comes to wait at the gate, and cancels it there if that is wanted. One that a busy machine does not
    /// get there before its deadline is made again with more time.
    fn call_into(&self, op: FuseOp, tool: &str, arguments: &Value, end: WaitEnd) -> StuckCall {
        let mut time = CALL_TIME;
        loop {
            let traced = self.trace.events().len();
            let limit = if end == WaitEnd::Deadline { time } else { PATIENT };
            self.gate().hold(op);
            let cancel = CancellationToken::new();
            let share = CpuShare::start();
            let (answer, is_stuck) = std::thread::scope(|scope| {
                let call = scope.spawn(|| {
                    let answer = self.world.call_within(limit, tool, arguments, &cancel);
                    self.gate().give_up();
                    answer
                });
                let is_stuck = self.gate().waits_or_gives_up();
                if end == WaitEnd::Cancel {
                    cancel.cancel();
                }
                (call.join().unwrap(), is_stuck)
            });
            let took = share.end();
            assert!(took < time + PROMPT, "{tool} in {op:?} took {took:?}");
            assert_eq!(answer.error, Some(end.kind()), "{tool} in {op:?}: {}", answer.text);
            let is_committed = committed(&answer) != json!(false);
            if is_stuck || is_committed {
                // Past its commit it goes on after its answer, up to the gate.
                self.gate().wait_until_held(1);
                return StuckCall { answer, traced };
            }
            self.release_and_wait();
            time *= 2;
        }
    }

    /// Lets the file system answer, and waits until the only worker is free again.
    fn release_and_wait(&self) {
        self.gate().release();
        let (look, never) = (json!({"path": "."}), CancellationToken::new());
        let answer = self.world.call_within(PATIENT, "get_file_info", &look, &never);
        assert_eq!(answer.error, None, "{}", answer.text);
    }

    fn names(&self) -> BTreeSet<String> {
        snapshot(&self.world.root).into_keys().map(|path| path.to_str().unwrap().to_owned()).collect()
    }
}

/// A call that was answered while the file system still holds it up.
struct StuckCall {
    answer: FixtureReply,
    /// Lines of the trace before it.
    traced: usize,
}

/// The event that ends a waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Deadline,
    Cancel,
}

impl WaitEnd {
    fn kind(self) -> ErrorKind {
        match self {
            Self::Deadline => ErrorKind::Timeout,
            Self::Cancel => ErrorKind::Cancelled,
        }
    }

    fn setup(self, backend: ResolverBackend) -> FsFixtureConfig {
        match self {
            Self::Deadline => short_deadline(backend),
            Self::Cancel => no_deadline(backend),
        }
    }
}

fn committed(answer: &FixtureReply) -> Value {
    serde_json::from_str::<Value>(&answer.text).unwrap()["error"]["details"]["committed"].clone()
}

#[test]
fn a_read_that_the_file_system_does_not_answer_ends_in_time() {
    for (backend, end) in ENDS {
        for op in [FuseOp::Lookup, FuseOp::Getattr, FuseOp::Open, FuseOp::Read] {
            let Some(slow) = StallingFixture::new(no_deadline(backend)) else { return };
            let answer = slow.call_into(op, "read_file", &json!({"path": "f.txt"}), end).answer;
            assert_eq!(committed(&answer), false, "{op:?}");
            slow.release_and_wait();
            assert_eq!(slow.world.value("read_file", &json!({"path": "f.txt"}))["content"], "old\n");
        }
    }
}

#[test]
fn a_listing_that_the_file_system_does_not_answer_ends_in_time() {
    for (backend, end) in ENDS {
        let Some(slow) = StallingFixture::new(no_deadline(backend)) else { return };
        slow.call_into(FuseOp::Opendir, "list_directory", &json!({"path": "d", "recursive": true}), end);
        slow.release_and_wait();
    }
}

#[test]
fn a_change_that_waits_before_its_commit_is_given_up_and_leaves_nothing() {
    let calls = [
        ("write_file", json!({"path": "f.txt", "content": "new\n"})),
        ("write_file", json!({"path": "x/y/z.txt", "content": "new\n", "createDirs": true})),
        ("edit_file", json!({"path": "f.txt", "oldText": "old", "newText": "new"})),
        ("copy_file", json!({"from": "f.txt", "to": "d/copy.txt"})),
        ("copy_file", json!({"from": "f.txt", "to": "d/g.txt", "overwrite": true})),
    ];
    for (backend, end) in ENDS {
        for op in [FuseOp::Create, FuseOp::Write, FuseOp::Fsync] {
            let Some(slow) = StallingFixture::new(no_deadline(backend)) else { return };
            let before = slow.names();
            for (tool, arguments) in &calls {
                let answer = slow.call_into(op, tool, arguments, end).answer;
                assert_eq!(committed(&answer), false, "{tool} {arguments} in {op:?}");
                slow.release_and_wait();
                assert_eq!(slow.names(), before, "{tool} {arguments} in {op:?}");
                assert_eq!(slow.world.read("f.txt") + &slow.world.read("d/g.txt"), "old\nold\n");
            }
        }
    }
}

#[test]
fn a_change_that_waits_after_its_commit_has_an_unknown_end_and_then_a_recorded_one() {
    let calls = [
        (FuseOp::Rename, "write_file", json!({"path": "f.txt", "content": "new\n"}), "f.txt"),
        (FuseOp::Rename, "write_file", json!({"path": "n.txt", "content": "new\n"}), "n.txt"),
        (FuseOp::Rename, "move_file", json!({"from": "n.txt", "to": "m.txt"}), "m.txt"),
        (FuseOp::Rename, "move_file", json!({"from": "m.txt", "to": "f.txt", "overwrite": true}), "f.txt"),
        (FuseOp::Write, "append_file", json!({"path": "f.txt", "content": "more\n"}), "f.txt"),
        (FuseOp::Mkdir, "create_directory", json!({"path": "made"}), "made"),
        (FuseOp::Rename, "delete_file", json!({"path": "d", "recursive": true}), "f.txt"),
    ];
    for end in [WaitEnd::Deadline, WaitEnd::Cancel] {
        let Some(slow) = StallingFixture::new(no_deadline(ResolverBackend::Best)) else { return };
        for (op, tool, arguments, there) in &calls {
            let StuckCall { answer, traced: before } = slow.call_into(*op, tool, arguments, end);
            assert_eq!(committed(&answer), "unknown", "{tool} {arguments}: {}", answer.text);
            assert_eq!(slow.trace.events()[before..], ["begin".to_owned(), format!("overdue {:?}", end.kind())]);
            slow.gate().release();
            assert_eq!(slow.trace.wait_for_events(before + 3)[before + 2], "end ok", "{tool} {arguments}");
            assert!(slow.world.root.join(there).exists(), "{tool} {arguments}");
            slow.release_and_wait();
        }
        assert_eq!(slow.world.read("f.txt"), "new\nmore\n");
        let names = slow.names();
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["", "f.txt", "made"]);
    }
}

#[test]
fn with_every_worker_waiting_a_further_call_ends_in_time_and_other_workspaces_work() {
    let Some(slow) = StallingFixture::new(FsFixtureConfig { workers: 2, ..short_deadline(ResolverBackend::Best) })
    else {
        return;
    };
    let healthy = FsFixture::new();
    healthy.write("f.txt", "fine\n");
    slow.gate().hold(FuseOp::Read);
    std::thread::scope(|scope| {
        let read = || slow.world.call("read_file", &json!({"path": "f.txt"}));
        let stuck = [scope.spawn(read), scope.spawn(read)];
        slow.gate().wait_until_held(2);
        for worker in stuck {
            assert_eq!(worker.join().unwrap().error, Some(ErrorKind::Timeout));
        }
        // Both callers were answered, and both workers are still stuck.
        let share = CpuShare::start();
        let further = slow.world.call("get_file_info", &json!({"path": "d"}));
        assert_eq!((further.error, committed(&further)), (Some(ErrorKind::Timeout), json!(false)));
        assert!(share.end() < CALL_TIME + PROMPT);
        assert_eq!(healthy.value("read_file", &json!({"path": "f.txt"}))["content"], "fine\n");
    });
    slow.release_and_wait();
    assert_eq!(slow.world.value("read_file", &json!({"path": "f.txt"}))["content"], "old\n");
}

#[test]
fn a_cancelled_walk_stops_where_it_is() {
    let calls = [
        ("list_directory", json!({"path": "tree", "recursive": true})),
        ("find_files", json!({"path": "tree", "glob": "**/*.txt"})),
        ("search_files", json!({"path": "tree", "pattern": "nothing"})),
        ("delete_file", json!({"path": "tree", "recursive": true})),
        ("move_file", json!({"from": "tree", "to": "wood"})),
    ];
    for (tool, arguments) in &calls {
        let Some(slow) = StallingFixture::new(no_deadline(ResolverBackend::Best)) else { return };
        for n in 0..50 {
            slow.world.write(&format!("tree/{n:02}/leaf.txt"), "leaf");
        }
        let before = slow.names();
        slow.gate().hold_after(10, FuseOp::Opendir);
        let opened = slow.gate().count(FuseOp::Opendir);
        let cancel = CancellationToken::new();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| slow.world.call_with(tool, arguments, &cancel));
            slow.gate().wait_until_held(1);
            cancel.cancel();
            assert_eq!(call.join().unwrap().error, Some(ErrorKind::Cancelled), "{tool}");
        });
        slow.release_and_wait();
        let opened = slow.gate().count(FuseOp::Opendir) - opened;
        assert!((11..15).contains(&opened), "{tool} went on to open {opened} directories");
        assert_eq!(slow.names(), before, "{tool}");
    }
}

/// Cancels a call when it begins to run, and lets it go on when what comes second is dropped.
fn cancelling_trace(cancel: &CancellationToken) -> (AuditTrace, Sender<()>) {
    let (go, gone) = channel::<()>();
    let (cancel, gone) = (cancel.clone(), Mutex::new(gone));
    let trace = AuditTrace::default().after_record(move |record| {
        if matches!(record.event, AuditEvent::Begin { .. }) {
            cancel.cancel();
            let _ = gone.lock().unwrap().recv();
        }
    });
    (trace, go)
}

#[test]
fn a_walk_that_is_cancelled_as_it_begins_is_answered_at_once_and_gives_its_worker_back() {
    let calls = [
        ("list_directory", json!({"path": ".", "recursive": true})),
        ("find_files", json!({"path": ".", "glob": "**/*"})),
        ("search_files", json!({"path": ".", "pattern": "nothing"})),
        ("delete_file", json!({"path": "tree", "recursive": true})),
    ];
    for (tool, arguments) in &calls {
        let cancel = CancellationToken::new();
        let (trace, go) = cancelling_trace(&cancel);
        let world =
            FsFixture::in_memory(FsFixtureConfig { trace: Some(trace.clone()), ..no_deadline(ResolverBackend::Best) });
        for n in 0..200 {
            world.write(&format!("tree/{}/{n}", n / 10), "");
        }
        let answer = world.call_with(tool, arguments, &cancel);
        assert_eq!((answer.error, committed(&answer)), (Some(ErrorKind::Cancelled), json!(false)), "{tool}");
        drop(go);
        // There is one worker, so this waits until the first call is over.
        world.value("get_file_info", &json!({"path": "."}));
        assert_eq!(trace.events(), ["begin", "end Cancelled", "begin", "end ok"], "{tool}");
        assert_eq!(std::fs::read_dir(world.root.join("tree")).unwrap().count(), 20, "{tool}");
    }
}

#[test]
fn a_change_that_waits_for_a_lock_ends_in_time_and_changes_nothing() {
    let calls = [
        ("write_file", json!({"path": "f.txt", "content": "new\n"})),
        ("write_file", json!({"path": "new.txt", "content": "new\n"})),
        ("append_file", json!({"path": "f.txt", "content": "new\n"})),
        ("edit_file", json!({"path": "f.txt", "oldText": "old", "newText": "new"})),
        ("apply_patch", json!({"patch": "--- f.txt\n+++ f.txt\n@@ -1 +1 @@\n-old\n+new\n"})),
        (
            "apply_patch",
            json!({"patch": "--- f.txt\n+++ f.txt\n@@ -1 +1 @@\n-old\n+new\n\
            --- /dev/null\n+++ g.txt\n@@ -0,0 +1 @@\n+new\n"}),
        ),
        ("copy_file", json!({"from": "f.txt", "to": "copy.txt"})),
        ("move_file", json!({"from": "f.txt", "to": "moved.txt"})),
        ("delete_file", json!({"path": "f.txt"})),
    ];
    for (backend, end) in ENDS {
        let world = FsFixture::with(end.setup(backend));
        world.write("f.txt", "old\n");
        let before = snapshot(&world.root);
        let held = hold_every_lock(&world);
        for (tool, arguments) in &calls {
            let cancel_after = (end == WaitEnd::Cancel).then_some(CALL_TIME / 3);
            let share = CpuShare::start();
            let answer = world.call_until(tool, &arguments.to_string(), cancel_after);
            let took = share.end();
            assert!(took < CALL_TIME + PROMPT, "{tool} took {took:?}");
            assert_eq!((answer.error, committed(&answer)), (Some(end.kind()), json!(false)), "{tool}");
            assert_eq!(snapshot(&world.root), before, "{tool}");
        }
        // Looking needs no lock.
        let call = |tool: &str, arguments: Value| {
            let answer = world.call_within(PATIENT, tool, &arguments, &CancellationToken::new());
            assert_eq!(answer.error, None, "{tool}: {}", answer.text);
            serde_json::from_str::<Value>(&answer.text).unwrap()["value"].take()
        };
        assert_eq!(call("read_file", json!({"path": "f.txt"}))["content"], "old\n");
        drop(held);
        call("write_file", json!({"path": "f.txt", "content": "new\n"}));
    }
}

/// Takes every lock of the workspace, as another process would that changes everything at once.
fn hold_every_lock(world: &FsFixture) -> Vec<std::fs::File> {
    let locks = std::fs::read_dir(world.host_path().join("state/locks")).unwrap().next().unwrap().unwrap().path();
    let hold = |stripe: u32| {
        let file = std::fs::File::create(locks.join(format!("{stripe:02x}"))).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    };
    (0..256).map(hold).collect()
}
