//! What one run knows of another: nothing, whether it comes after or goes on beside it. And what many leave behind.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringfence_sandbox::{EndedBy, Stream, Watch};

use crate::world::{World, everyone, everyone_alone, note};

/// Leaves something of every kind, and says so.
const LEAVE: &str = r#"
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
const LOOK: &str = r#"
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
    everyone("between::a_run_finds_nothing_of_the_one_before", || {
        for pool in [0, 2] {
            let world = World::with_pool(pool);
            for _ in 0..3 {
                let ended = world.python(LEAVE);
                assert_eq!(ended.stdout.text(), "left [True, True, True]\n", "{}", ended.stderr.text());
                let ended = world.python(LOOK);
                assert_eq!(ended.stdout.text(), "[]\n", "{}", ended.stderr.text());
            }
        }
    });
}

#[test]
fn two_runs_at_once_find_nothing_of_each_other() {
    everyone("between::two_runs_at_once_find_nothing_of_each_other", || {
        let world = World::new();
        let watch = Held::default();
        thread::scope(|scope| {
            let first = scope
                .spawn(|| world.run(&["python3", "/run/ringfence/main"], &format!("{LEAVE}signal.pause()"), &watch));
            until(|| watch.left.load(Ordering::Relaxed) || first.is_finished());
            let ended = world.python(LOOK);
            assert_eq!(ended.stdout.text(), "[]\n", "{}", ended.stderr.text());
            // The same port, the same names, the same keys: they are not taken.
            let ended = world.python(LEAVE);
            assert_eq!(ended.stdout.text(), "left [True, True, True]\n", "{}", ended.stderr.text());
            watch.stop.store(true, Ordering::Relaxed);
            assert_eq!(first.join().unwrap().unwrap().ended_by, EndedBy::Cancelled);
        });
    });
}

/// Knows when the first run has left everything, and ends it when told.
#[derive(Default)]
struct Held {
    left: AtomicBool,
    stop: AtomicBool,
}

impl Watch for Held {
    fn output(&self, _: Stream, _: &[u8]) {
        self.left.store(true, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// With `RINGFENCE_FULL=1` a thousand runs.
#[test]
fn a_crowd_leaves_nothing() {
    everyone_alone("between::a_crowd_leaves_nothing", || {
        let full = std::env::var_os("RINGFENCE_FULL").is_some();
        let (callers, each) = (8, if full { 125 } else { 13 });
        let world = World::new();
        world.write("file", "text");
        // The first ones make what stays: threads, maps of users, places for groups.
        crowd(&world, callers, 4);
        let (spawner, before) = (spawner(), until_quiet(None));
        let (ours, its) = (memory("self"), memory(&spawner));
        crowd(&world, callers, each);
        let after = until_quiet(Some(&before));
        assert_eq!(after, before);
        let (ours_now, its_now) = (memory("self"), memory(&spawner));
        note(&format!(
            "user {}: {} runs from {callers} callers left nothing; memory {ours} -> {ours_now} KiB here, {its} -> {its_now} KiB in the spawner",
            rustix::process::geteuid().as_raw(),
            callers * each,
        ));
        assert!(ours_now < ours + 4096 && its_now < its + 1024, "{ours} {ours_now} {its} {its_now}");
        drop(world);
        assert_eq!((descendants(), groups()), (0, 0));
    });
}

fn crowd(world: &World, callers: usize, each: usize) {
    thread::scope(|scope| {
        for caller in 0..callers {
            scope.spawn(move || {
                for turn in 0..each {
                    let script = format!("echo {caller} > out; (setsid sleep 1000 &); cat file out; echo {turn}");
                    assert_eq!(world.says(&script), format!("text{caller}\n{turn}\n"));
                }
            });
        }
    });
}

/// What may leak.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    descriptors: usize,
    spawners_descriptors: usize,
    mounts: usize,
    processes: usize,
    groups: usize,
    temporary: usize,
}

fn left() -> Left {
    let entries = |path: &str| fs::read_dir(path).map_or(0, Iterator::count);
    Left {
        descriptors: entries("/proc/self/fd"),
        // Only root may look there.
        spawners_descriptors: entries(&format!("/proc/{}/fd", spawner())),
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
        processes: descendants(),
        groups: groups(),
        temporary: fs::read_dir(std::env::temp_dir()).unwrap().count(),
    }
}

/// When nothing changes any more: jails are made and put away after the answer. Or when it is as it was.
fn until_quiet(wanted: Option<&Left>) -> Left {
    let began = Instant::now();
    let (mut now, mut since) = (left(), Instant::now());
    while wanted != Some(&now) && since.elapsed() < Duration::from_secs(2) && began.elapsed() < Duration::from_secs(20)
    {
        let next = left();
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

/// How many processes come from this one, living or dead.
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

fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited in vain");
        thread::yield_now();
    }
}
