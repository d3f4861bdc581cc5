//! Isolation between runs, one after the other and side by side, and leftovers of many.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringfence_sandbox::{ExitReason, OutputStream, ProgramObserver};
use ringfence_testkit::patience::{PATIENCE, wait_until};
use ringfence_testkit::requirement::print_note;

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user, as_each_user_isolated};
use crate::wrapped_fixture::WrappedFixture;

/// Leaves something of every kind, and says so.
const LEAVE_TRACES: &str = r#"
import ctypes, os, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
for place in (".", "/tmp", "/tmp/home", "/dev/shm", "/var/tmp"):
    with open(place + "/left", "w") as file: file.write("left")
key = 0x52464e43
made = [libc.shmget(key, 4096, 0o1666), libc.semget(key, 1, 0o1666), libc.msgget(key, 0o1666)]
server = socket.create_server(("127.0.0.1", 47113)); named = socket.socket(socket.AF_UNIX); named.bind("\0left"); named.listen()
subprocess.Popen(["sleep", "1000"])
print("left", [m >= 0 for m in made], flush=True)
"#;

/// Looks for all of it. What it finds it prints.
const FIND_TRACES: &str = r#"
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
found = [place for place in (".", "/tmp", "/tmp/home", "/dev/shm", "/var/tmp", "/run/ringfence") if os.path.exists(place + "/left")]
key = 0x52464e43
found += [name for name, got in (("shm", libc.shmget(key, 0, 0)), ("sem", libc.semget(key, 0, 0)), ("msg", libc.msgget(key, 0))) if got >= 0]
for domain, address in ((socket.AF_INET, ("127.0.0.1", 47113)), (socket.AF_UNIX, "\0left")):
    try: socket.socket(domain).connect(address); found.append(str(address))
    except OSError: pass
found += [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
found += [name for name in os.listdir("/tmp") if name != "home"] + os.listdir("/dev/shm") + os.listdir(".")
print(found)
"#;

#[test]
fn a_run_finds_nothing_of_the_one_before() {
    as_each_user("isolation_between_runs::a_run_finds_nothing_of_the_one_before", || {
        for pool in [0, 2] {
            let world = SandboxFixture::with_pool(pool);
            for _ in 0..3 {
                let ended = world.python(LEAVE_TRACES);
                assert_eq!(ended.stdout.text(), "left [True, True, True]\n", "{}", ended.stderr.text());
                let ended = world.python(FIND_TRACES);
                assert_eq!(ended.stdout.text(), "[]\n", "{}", ended.stderr.text());
            }
        }
    });
}

#[test]
fn two_runs_at_once_find_nothing_of_each_other() {
    as_each_user("isolation_between_runs::two_runs_at_once_find_nothing_of_each_other", || {
        let world = SandboxFixture::new();
        let watch = PauseObserver::default();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                world.run(&["python3", "/run/ringfence/main"], &format!("{LEAVE_TRACES}signal.pause()"), &watch)
            });
            wait_until("the traces of the first run", || {
                watch.traces_left.load(Ordering::Relaxed) || first.is_finished()
            });
            let ended = world.python(FIND_TRACES);
            assert_eq!(ended.stdout.text(), "[]\n", "{}", ended.stderr.text());
            // The same port, the same names, the same keys: they are not taken.
            let ended = world.python(LEAVE_TRACES);
            assert_eq!(ended.stdout.text(), "left [True, True, True]\n", "{}", ended.stderr.text());
            watch.stop.store(true, Ordering::Relaxed);
            assert_eq!(first.join().unwrap().unwrap().exit_reason, ExitReason::Cancelled);
        });
    });
}

/// Nor do wrapped ones: not by their homes, nor by what one writes where both have a directory of that name.
#[test]
fn two_wrapped_programs_at_once_do_not_meet() {
    as_each_user("isolation_between_runs::two_wrapped_programs_at_once_do_not_meet", || {
        let (first, second) = (WrappedFixture::new(), WrappedFixture::new());
        let watch = OutputObserver::default();
        let script = "for place in ~ . /tmp /dev/shm; do echo of-one > $place/note; done; echo ready; sleep 1000";
        thread::scope(|scope| {
            let run = scope.spawn(|| first.run_observed(script, &watch));
            wait_until("the first program", || {
                String::from_utf8_lossy(&watch.bytes.lock().unwrap()).contains("ready") || run.is_finished()
            });
            let seen = second.stdout_of("cat ~/note note /tmp/note /dev/shm/note 2>/dev/null; ls -A ~ . /tmp /dev/shm");
            assert!(!seen.contains("note") && !seen.contains("of-one"), "{seen}");
            watch.stop();
            assert_eq!(run.join().unwrap().unwrap().exit_reason, ExitReason::Cancelled);
        });
    });
}

/// Detects when the first run has left everything, and ends it on request.
#[derive(Default)]
struct PauseObserver {
    traces_left: AtomicBool,
    stop: AtomicBool,
}

impl ProgramObserver for PauseObserver {
    fn on_output(&self, _: OutputStream, _: &[u8]) {
        self.traces_left.store(true, Ordering::Relaxed);
    }

    fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// How often a leak has to show.
const ROUNDS: usize = 3;

/// With `RINGFENCE_FULL=1` a thousand runs.
#[test]
fn a_crowd_leaves_nothing() {
    as_each_user_isolated("isolation_between_runs::a_crowd_leaves_nothing", || {
        let full = std::env::var_os("RINGFENCE_FULL").is_some();
        let (callers, each) = (8, if full { 125 } else { 13 });
        let world = SandboxFixture::new();
        world.write("file", "text");
        // The first ones make permanent state: threads, user maps, cgroup slots.
        run_many(&world, callers, 4);
        let (spawner, first) = (spawner(), settled_counts(None));
        let (ours, its) = (memory("self"), memory(&spawner));
        // On a busy machine a jail that is made ahead can be missing from one count and be there in the next, and another
        // process can mount something. What leaks, leaks in every round.
        let mut counts = vec![first];
        while counts.len() <= ROUNDS {
            run_many(&world, callers, each);
            let before = counts.last().unwrap();
            let after = settled_counts(Some(before));
            // Control groups that were made ahead may have gone since; nothing more may be there.
            let leaks = after.exceeds(before);
            counts.push(after);
            if !leaks {
                break;
            }
        }
        let rounds = counts.len() - 1;
        assert!(!counts[rounds].exceeds(&counts[rounds - 1]), "more in every round: {counts:?}");
        let (ours_now, its_now) = (memory("self"), memory(&spawner));
        print_note(&format!(
            "user {}: {} runs from {callers} callers left nothing; memory {ours} -> {ours_now} KiB here, {its} -> {its_now} KiB in the spawner",
            rustix::process::geteuid().as_raw(),
            callers * each * rounds,
        ));
        assert!(ours_now < ours + 4096 && its_now < its + 1024, "{ours} {ours_now} {its} {its_now}");
        drop(world);
        assert_eq!((descendants(), groups()), (0, 0));
    });
}

fn run_many(world: &SandboxFixture, callers: usize, each: usize) {
    thread::scope(|scope| {
        for caller in 0..callers {
            scope.spawn(move || {
                for turn in 0..each {
                    let script = format!("echo {caller} > out; (setsid sleep 1000 &); cat file out; echo {turn}");
                    assert_eq!(world.stdout_of(&script), format!("text{caller}\n{turn}\n"));
                }
            });
        }
    });
}

/// Resources that may leak.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ResourceCounts {
    descriptors: usize,
    spawners_descriptors: usize,
    mounts: usize,
    processes: usize,
    groups: usize,
    temporary: usize,
}

impl ResourceCounts {
    fn exceeds(&self, before: &Self) -> bool {
        self.descriptors > before.descriptors
            || self.spawners_descriptors > before.spawners_descriptors
            || self.mounts > before.mounts
            || self.processes > before.processes
            || self.groups > before.groups
            || self.temporary > before.temporary
    }
}

fn resource_counts() -> ResourceCounts {
    let entries = |path: &str| fs::read_dir(path).map_or(0, Iterator::count);
    ResourceCounts {
        descriptors: entries("/proc/self/fd"),
        // Only root may look there.
        spawners_descriptors: entries(&format!("/proc/{}/fd", spawner())),
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
        processes: descendants(),
        groups: groups(),
        temporary: fs::read_dir(std::env::temp_dir()).unwrap().count(),
    }
}

/// When nothing changes any more: jails are made and put away after the answer. Or when there is no more than there was.
fn settled_counts(wanted: Option<&ResourceCounts>) -> ResourceCounts {
    let began = Instant::now();
    let (mut now, mut since) = (resource_counts(), Instant::now());
    while wanted.is_none_or(|before| now.exceeds(before))
        && since.elapsed() < Duration::from_secs(5)
        && began.elapsed() < PATIENCE
    {
        let next = resource_counts();
        if next != now {
            (now, since) = (next, Instant::now());
        }
        thread::yield_now();
    }
    now
}

/// Every process with its parent.
fn parents() -> Vec<(u32, u32)> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?))
    })
    .collect()
}

/// Number of descendants of this process, living or dead.
fn descendants() -> usize {
    let all = parents();
    let (mut found, mut next) = (0, vec![std::process::id()]);
    while let Some(one) = next.pop() {
        let children: Vec<u32> = all.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid).collect();
        found += children.len();
        next.extend(children);
    }
    found
}

/// The child of our child: that one only waits.
fn spawner() -> String {
    let all = parents();
    let child = |of: u32| all.iter().find(|(_, parent)| *parent == of).map(|(pid, _)| *pid).unwrap();
    child(child(std::process::id())).to_string()
}

/// Control groups that bear our number.
fn groups() -> usize {
    let ours = format!("ringfence-run-{}-", std::process::id());
    let (mut found, mut next) = (0, vec!["/sys/fs/cgroup".into()]);
    while let Some(directory) = next.pop() {
        for entry in fs::read_dir::<std::path::PathBuf>(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found += usize::from(entry.file_name().to_string_lossy().starts_with(&ours));
                next.push(entry.path());
            }
        }
    }
    found
}

/// Resident memory of a process, in KiB.
fn memory(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
