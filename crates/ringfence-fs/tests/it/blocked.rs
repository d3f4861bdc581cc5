//! A call ends at its deadline and when it is cancelled, also where the file system does not answer.

use std::collections::BTreeSet;
use std::time::Duration;

use ringfence_fs::Backend;
use ringfence_kernel::ErrorKind;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::cpu_share::CpuShare;
use crate::slow::{Gate, Op, Slow};
use crate::snapshot::snapshot;
use crate::trace::Trace;
use crate::world::{Answer, Setup, World};

/// How long a call may take in these worlds.
const CALL_TIME: Duration = Duration::from_millis(300);

/// How long a waiting call may at most take to say so, as a share of the processor.
const PROMPT: Duration = Duration::from_millis(1500);

/// All the time that a test needs: only a cancel ends such a call.
const PATIENT: Duration = Duration::from_secs(600);

/// Every way in which a wait ends. Waiting for a deadline takes its time, so one backend has to do for that.
const ENDS: [(Backend, End); 3] =
    [(Backend::Best, End::Deadline), (Backend::Best, End::Cancel), (Backend::CapStd, End::Cancel)];

fn hurried(backend: Backend) -> Setup {
    let mut setup = Setup { workers: 1, trace: Some(Trace::default()), ..Setup::default().on(backend) };
    setup.limits.call_time = CALL_TIME;
    setup
}

fn patient(backend: Backend) -> Setup {
    let mut setup = hurried(backend);
    setup.limits.call_time = PATIENT;
    setup
}

/// A workspace that is a file system of its own, which can be told not to answer.
struct SlowWorld {
    slow: Slow,
    world: World,
    trace: Trace,
}

impl SlowWorld {
    fn new(setup: Setup) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("ws");
        std::fs::create_dir(&root).unwrap();
        let slow = Slow::mount(&root)?;
        let trace = setup.trace.clone().unwrap();
        let world = World::at(directory, setup);
        world.write("f.txt", "old\n");
        world.write("d/g.txt", "old\n");
        Some(Self { slow, world, trace })
    }

    fn gate(&self) -> &Gate {
        &self.slow.gate
    }

    /// Makes a call that comes to wait at the gate, and cancels it there if that is wanted. One that a busy machine does not
    /// get there before its deadline is made again with more time.
    fn call_into(&self, op: Op, tool: &str, arguments: &Value, end: End) -> StuckCall {
        let mut time = CALL_TIME;
        loop {
            let traced = self.trace.lines().len();
            let limit = if end == End::Deadline { time } else { PATIENT };
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
                if end == End::Cancel {
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
                self.gate().waits_for(1);
                return StuckCall { answer, traced };
            }
            self.settle();
            time *= 2;
        }
    }

    /// Lets the file system answer, and waits until the only worker is free again.
    fn settle(&self) {
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
    answer: Answer,
    /// Lines of the trace before it.
    traced: usize,
}

/// What ends a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Deadline,
    Cancel,
}

impl End {
    fn kind(self) -> ErrorKind {
        match self {
            Self::Deadline => ErrorKind::Timeout,
            Self::Cancel => ErrorKind::Cancelled,
        }
    }

    fn setup(self, backend: Backend) -> Setup {
        match self {
            Self::Deadline => hurried(backend),
            Self::Cancel => patient(backend),
        }
    }
}

fn committed(answer: &Answer) -> Value {
    serde_json::from_str::<Value>(&answer.text).unwrap()["error"]["details"]["committed"].clone()
}

#[test]
fn a_read_that_the_file_system_does_not_answer_ends_in_time() {
    for (backend, end) in ENDS {
        for op in [Op::Lookup, Op::Getattr, Op::Open, Op::Read] {
            let Some(slow) = SlowWorld::new(patient(backend)) else { return };
            let answer = slow.call_into(op, "read_file", &json!({"path": "f.txt"}), end).answer;
            assert_eq!(committed(&answer), false, "{op:?}");
            slow.settle();
            assert_eq!(slow.world.value("read_file", &json!({"path": "f.txt"}))["content"], "old\n");
        }
    }
}

#[test]
fn a_listing_that_the_file_system_does_not_answer_ends_in_time() {
    for (backend, end) in ENDS {
        let Some(slow) = SlowWorld::new(patient(backend)) else { return };
        slow.call_into(Op::Opendir, "list_directory", &json!({"path": "d", "recursive": true}), end);
        slow.settle();
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
        for op in [Op::Create, Op::Write, Op::Fsync] {
            let Some(slow) = SlowWorld::new(patient(backend)) else { return };
            let before = slow.names();
            for (tool, arguments) in &calls {
                let answer = slow.call_into(op, tool, arguments, end).answer;
                assert_eq!(committed(&answer), false, "{tool} {arguments} in {op:?}");
                slow.settle();
                assert_eq!(slow.names(), before, "{tool} {arguments} in {op:?}");
                assert_eq!(slow.world.read("f.txt") + &slow.world.read("d/g.txt"), "old\nold\n");
            }
        }
    }
}

#[test]
fn a_change_that_waits_after_its_commit_has_an_unknown_end_and_then_a_recorded_one() {
    let calls = [
        (Op::Rename, "write_file", json!({"path": "f.txt", "content": "new\n"}), "f.txt"),
        (Op::Rename, "write_file", json!({"path": "n.txt", "content": "new\n"}), "n.txt"),
        (Op::Rename, "move_file", json!({"from": "n.txt", "to": "m.txt"}), "m.txt"),
        (Op::Rename, "move_file", json!({"from": "m.txt", "to": "f.txt", "overwrite": true}), "f.txt"),
        (Op::Write, "append_file", json!({"path": "f.txt", "content": "more\n"}), "f.txt"),
        (Op::Mkdir, "create_directory", json!({"path": "made"}), "made"),
        (Op::Rename, "delete_file", json!({"path": "d", "recursive": true}), "f.txt"),
    ];
    for end in [End::Deadline, End::Cancel] {
        let Some(slow) = SlowWorld::new(patient(Backend::Best)) else { return };
        for (op, tool, arguments, there) in &calls {
            let StuckCall { answer, traced: before } = slow.call_into(*op, tool, arguments, end);
            assert_eq!(committed(&answer), "unknown", "{tool} {arguments}: {}", answer.text);
            assert_eq!(slow.trace.lines()[before..], ["begin".to_owned(), format!("overdue {:?}", end.kind())]);
            slow.gate().release();
            assert_eq!(slow.trace.reaches(before + 3)[before + 2], "end ok", "{tool} {arguments}");
            assert!(slow.world.root.join(there).exists(), "{tool} {arguments}");
            slow.settle();
        }
        assert_eq!(slow.world.read("f.txt"), "new\nmore\n");
        let names = slow.names();
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["", "f.txt", "made"]);
    }
}

#[test]
fn with_every_worker_waiting_a_further_call_ends_in_time_and_other_workspaces_work() {
    let Some(slow) = SlowWorld::new(Setup { workers: 2, ..hurried(Backend::Best) }) else { return };
    let healthy = World::new();
    healthy.write("f.txt", "fine\n");
    slow.gate().hold(Op::Read);
    std::thread::scope(|scope| {
        let read = || slow.world.call("read_file", &json!({"path": "f.txt"}));
        let stuck = [scope.spawn(read), scope.spawn(read)];
        slow.gate().waits_for(2);
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
    slow.settle();
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
        let Some(slow) = SlowWorld::new(patient(Backend::Best)) else { return };
        for n in 0..50 {
            slow.world.write(&format!("tree/{n:02}/leaf.txt"), "leaf");
        }
        let before = slow.names();
        slow.gate().hold_after(10, Op::Opendir);
        let opened = slow.gate().count(Op::Opendir);
        let cancel = CancellationToken::new();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| slow.world.call_with(tool, arguments, &cancel));
            slow.gate().waits_for(1);
            cancel.cancel();
            assert_eq!(call.join().unwrap().error, Some(ErrorKind::Cancelled), "{tool}");
        });
        slow.settle();
        let opened = slow.gate().count(Op::Opendir) - opened;
        assert!((11..15).contains(&opened), "{tool} went on to open {opened} directories");
        assert_eq!(slow.names(), before, "{tool}");
    }
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
        let (trace, go) = Trace::cancelling_at_begin(&cancel);
        let world = World::in_memory(Setup { trace: Some(trace.clone()), ..patient(Backend::Best) });
        for n in 0..200 {
            world.write(&format!("tree/{}/{n}", n / 10), "");
        }
        let answer = world.call_with(tool, arguments, &cancel);
        assert_eq!((answer.error, committed(&answer)), (Some(ErrorKind::Cancelled), json!(false)), "{tool}");
        drop(go);
        // There is one worker, so this waits until the first call is over.
        world.value("get_file_info", &json!({"path": "."}));
        assert_eq!(trace.lines(), ["begin", "end Cancelled", "begin", "end ok"], "{tool}");
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
        let world = World::with(end.setup(backend));
        world.write("f.txt", "old\n");
        let before = snapshot(&world.root);
        let held = hold_every_lock(&world);
        for (tool, arguments) in &calls {
            let cancel_after = (end == End::Cancel).then_some(CALL_TIME / 3);
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
fn hold_every_lock(world: &World) -> Vec<std::fs::File> {
    let locks = std::fs::read_dir(world.host_path().join("state/locks")).unwrap().next().unwrap().unwrap().path();
    let hold = |stripe: u32| {
        let file = std::fs::File::create(locks.join(format!("{stripe:02x}"))).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    };
    (0..256).map(hold).collect()
}
