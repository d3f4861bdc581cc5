//! Process lifetimes: which processes end together, which restart, and leftovers of many.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use ringfence_sandbox::{JailError, JailJob, OutputStream, ProgramObserver};
use ringfence_testkit::patience::{PATIENCE, wait_for, wait_until};
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, getpid, pidfd_open, pidfd_send_signal};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user, as_each_user_isolated, was_started_with};

#[test]
fn only_loopback_is_reachable() {
    as_each_user("process_lifetimes::only_loopback_is_reachable", || {
        let ended = SandboxFixture::new().python(
            "import socket, threading, os\n\
             s = socket.create_server(('127.0.0.1', 0))\n\
             threading.Thread(target=lambda: s.accept()[0].send(b'hi')).start()\n\
             print(socket.create_connection(s.getsockname()).recv(2))\n\
             try: socket.create_connection(('192.0.2.1', 80), 1)\n\
             except OSError as e: print(e.strerror)\n\
             print(os.getuid(), os.geteuid(), open('/proc/net/dev').read().count(':'))\n",
        );
        assert_eq!(ended.stdout.text(), "b'hi'\nNetwork is unreachable\n1000 1000 1\n", "{}", ended.stderr.text());
    });
}

/// Says the next line when it hears an answer to the last one.
struct DialogueObserver {
    input: Mutex<Option<File>>,
    received: Mutex<Vec<u8>>,
}

impl ProgramObserver for DialogueObserver {
    fn on_output(&self, stream: OutputStream, bytes: &[u8]) {
        let mut heard = self.received.lock().unwrap();
        heard.extend(bytes);
        let lines = heard.iter().filter(|&&byte| byte == b'\n').count();
        let mut input = self.input.lock().unwrap();
        match input.as_mut().filter(|_| stream == OutputStream::Stdout) {
            Some(file) if lines < 3 => file.write_all(format!("line {lines}\n").as_bytes()).unwrap(),
            // The program reads to the end, and that is here.
            _ => *input = None,
        }
    }

    fn should_stop(&self) -> bool {
        false
    }
}

#[test]
fn a_program_can_be_talked_to() {
    as_each_user("process_lifetimes::a_program_can_be_talked_to", || check_dialogue(&SandboxFixture::new()));
}

/// Talks to a program until it has heard enough.
pub(crate) fn check_dialogue(world: &SandboxFixture) {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let talker = DialogueObserver { input: Mutex::new(Some(ours.into())), received: Mutex::default() };
    let script = "echo ready; while read line; do echo \"got $line\"; done; echo over";
    let argv = ["bash", "/run/ringfence/main"];
    let view = world.view();
    let job = JailJob { stdin: Some(&theirs), ..world.job(&view, &argv, script) };
    let ended = world.sandbox.run(&job, &talker).unwrap();
    assert_eq!(ended.stdout.text(), "ready\ngot line 1\ngot line 2\nover\n", "{}", ended.stderr.text());
    // Who is not talked to has nothing to read.
    assert_eq!(world.stdout_of("cat; echo over"), "over\n");
}

#[test]
fn a_program_runs_as_an_unprivileged_user_and_cannot_change_it() {
    as_each_user("process_lifetimes::a_program_runs_as_an_unprivileged_user_and_cannot_change_it", || {
        let world = SandboxFixture::new();
        let found = world.stdout_of("grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid)' /proc/self/status; ls /proc | grep -c '^[0-9]'; ls /proc/self/fd | wc -l");
        let none = "0000000000000000";
        let wanted = format!(
            "Uid:\t1000\t1000\t1000\t1000\nCapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapBnd:\t{none}\nCapAmb:\t{none}\n\
             NoNewPrivs:\t1\nSeccomp:\t2\n"
        );
        assert!(found.starts_with(&wanted), "{found}");
        let ended = world
            .bash("cat /proc/1/environ; ls /proc/1/fd; readlink /proc/1/exe; unshare -U true; kill -9 1; echo alive");
        assert_eq!(ended.stdout.text(), "alive\n", "{}", ended.stderr.text());
        // The user that the host sees is not root.
        let watch = PrintObserver::default();
        let name = process_name(&world, 1);
        let command = format!("exec -a {name} sleep 1000");
        let sleeper = thread::scope(|scope| {
            let run = scope.spawn(|| world.run(&["bash", "-c", &command], "", &watch));
            let pid = find_process(&name);
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            watch.stop.store(true, std::sync::atomic::Ordering::Relaxed);
            run.join().unwrap().unwrap();
            status
        });
        let user = sleeper.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert!(!user.contains("\t0"), "{user}");
    });
}

#[test]
fn everything_dies_with_the_server() {
    const AS_SERVER: &str = "as-server";
    if was_started_with(AS_SERVER) {
        let world = SandboxFixture::new();
        let command = format!("echo {AS_SERVER}: $0; exec -a $0 sleep 1000");
        let _ = world.run(&["bash", "-c", &command, &process_name(&world, 2)], "", &PrintObserver::default());
        return;
    }
    as_each_user("process_lifetimes::everything_dies_with_the_server", || {
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["process_lifetimes::everything_dies_with_the_server", "--exact", "--nocapture", AS_SERVER])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(server.stdout.take().unwrap()).lines();
        let name = printed.find_map(|line| Some(line.unwrap().split_once("as-server: ")?.1.to_owned())).unwrap();
        let sleeper = pidfd(find_process(&name));
        let spawners: Vec<OwnedFd> = children(server.id()).into_iter().map(pidfd).collect();
        assert_eq!(spawners.len(), 1);
        server.kill().unwrap();
        server.wait().unwrap();
        assert_dies(&sleeper);
        assert_dies(&spawners[0]);
    });
}

#[test]
fn everything_dies_with_the_spawner_and_another_takes_its_place() {
    as_each_user("process_lifetimes::everything_dies_with_the_spawner_and_another_takes_its_place", || {
        let world = SandboxFixture::new();
        for depth in [0, 1] {
            let mut spawner = spawner_of(getpid(), &world);
            if depth == 1 {
                spawner = children(spawner)[0];
            }
            let name = process_name(&world, 3 + depth);
            let command = format!("exec -a {name} sleep 1000");
            thread::scope(|scope| {
                let run = scope.spawn(|| world.run(&["bash", "-c", &command], "", &OutputObserver::default()));
                let sleeper = pidfd(find_process(&name));
                pidfd_send_signal(pidfd(spawner), Signal::KILL).unwrap();
                assert!(matches!(run.join().unwrap(), Err(JailError::UnexpectedExit(_))));
                assert_dies(&sleeper);
            });
            assert_eq!(world.stdout_of("echo again"), "again\n");
        }
        // With no run active, the next run finds out.
        let spawner = pidfd(spawner_of(getpid(), &world));
        pidfd_send_signal(&spawner, Signal::KILL).unwrap();
        assert_dies(&spawner);
        let lost = world.run(&["true"], "", &OutputObserver::default());
        assert!(matches!(lost, Err(JailError::UnexpectedExit(_))), "{lost:?}");
        assert_eq!(world.stdout_of("echo again"), "again\n");
    });
}

#[test]
fn everything_dies_with_the_launcher_too() {
    as_each_user_isolated("process_lifetimes::everything_dies_with_the_launcher_too", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        let launcher = spawner_of(getpid(), &world);
        let name = process_name(&world, 1);
        let command = format!("(setsid bash -c 'exec -a {name} sleep 1000' &); sleep 1000");
        thread::scope(|scope| {
            let run = scope.spawn(|| world.run(&["bash", "-c", &command], "", &OutputObserver::default()));
            let sleeper = pidfd(find_process(&name));
            pidfd_send_signal(pidfd(launcher), Signal::KILL).unwrap();
            assert!(matches!(run.join().unwrap(), Err(JailError::UnexpectedExit(_))));
            assert_dies(&sleeper);
        });
        assert_eq!(world.stdout_of("echo again"), "again\n");
    });
}

#[test]
fn the_launcher_keeps_nothing_of_its_runs() {
    if !geteuid().is_root() {
        return skip_without(Requirement::Root, "only root sees what the launcher has open");
    }
    let Some(world) = SandboxFixture::with_bwrap() else { return };
    let launcher = spawner_of(getpid(), &world);
    let open = || fs::read_dir(format!("/proc/{launcher}/fd")).unwrap().count();
    wait_until("the end of the children of the launcher", || children(launcher).is_empty());
    let before = open();
    for _ in 0..20 {
        world.stdout_of("true");
        assert!(world.run(&["no-such-program"], "", &OutputObserver::default()).is_err());
    }
    wait_until("the descriptors from before", || children(launcher).is_empty() && open() == before);
}

/// A promised isolation mechanism that is unavailable is an error.
#[test]
fn nothing_runs_where_the_kernel_has_no_landlock() {
    as_each_user_isolated("process_lifetimes::nothing_runs_where_the_kernel_has_no_landlock", || {
        let calls = [(libc::SYS_landlock_create_ruleset, Vec::new())].into_iter().collect();
        let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, refuse, arch).unwrap();
        seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
        let world = SandboxFixture::new();
        let failure = world.run(&["bash", "/run/ringfence/main"], "true", &OutputObserver::default()).unwrap_err();
        assert!(matches!(failure, JailError::Unavailable { .. }), "{failure:?}");
    });
}

/// Prints the output, and stops on request.
#[derive(Default)]
struct PrintObserver {
    stop: std::sync::atomic::AtomicBool,
}

impl ProgramObserver for PrintObserver {
    fn on_output(&self, _: OutputStream, bytes: &[u8]) {
        println!("{}", String::from_utf8_lossy(bytes));
    }

    fn should_stop(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Every process, with the words of its command line and its parent.
fn processes() -> Vec<(u32, String, u32)> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, String::from_utf8_lossy(&command).replace('\0', " "), parent))
    })
    .collect()
}

fn children(of: u32) -> Vec<u32> {
    processes().into_iter().filter(|(_, _, parent)| *parent == of).map(|(pid, ..)| pid).collect()
}

/// The process that we started as the spawner. Several tests may have one; ours runs a program in our workspace.
fn spawner_of(us: Pid, world: &SandboxFixture) -> u32 {
    let name = process_name(world, 0);
    let watch = PrintObserver::default();
    let command = format!("exec -a {name} sleep 1000");
    let argv = ["bash", "-c", &command];
    thread::scope(|scope| {
        let run = scope.spawn(|| world.run(&argv, "", &watch));
        let mut pid = find_process(&name);
        let all = processes();
        let parent = |of: u32| all.iter().find(|(pid, ..)| *pid == of).map(|(_, _, parent)| *parent).unwrap();
        while parent(pid) != us.as_raw_nonzero().get() as u32 {
            pid = parent(pid);
        }
        watch.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        run.join().unwrap().unwrap();
        pid
    })
}

/// A name for a process that no other process of the machine has: other runs of these tests have theirs.
fn process_name(world: &SandboxFixture, number: usize) -> String {
    let unique = world.path().file_name().unwrap().to_str().unwrap().replace('.', "");
    format!("jailed-{number}-{unique}")
}

/// Waits for a process that calls itself so.
fn find_process(name: &str) -> u32 {
    wait_for(&format!("a process `{name}`"), || {
        processes().into_iter().find(|(_, command, _)| command.split(' ').next() == Some(name)).map(|(pid, ..)| pid)
    })
}

fn pidfd(pid: u32) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
}

fn assert_dies(process: &OwnedFd) {
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)), Ok(1), "still alive");
}
