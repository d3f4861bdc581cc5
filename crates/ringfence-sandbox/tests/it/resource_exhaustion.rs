//! Resource exhaustion: programs that take all they can, refuse to end, or lie about their result.
//!
//! Bounds are small here, so that they are met soon. What each program does is never tried outside. Each is tried in the jail
//! of one program and in that of a wrapped one.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_sandbox::{ExitReason, OutputStream, ProgramObserver, RunResult};
use ringfence_testkit::patience::PATIENCE;

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user, as_each_user_isolated, in_each_jail};

#[test]
fn a_fork_bomb_stops_at_the_bound() {
    in_each_jail("resource_exhaustion::a_fork_bomb_stops_at_the_bound", |jail| {
        let mut world = jail.world();
        (world.limits.processes, world.limits.wall) = (24, Duration::from_millis(700));
        let bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
        loop {
            let (ended, most) = run_counting(&world, bomb);
            assert_eq!(ended.exit_reason, ExitReason::Timeout);
            assert!(most <= 24, "{most}");
            if most >= 8 {
                break;
            }
            // A busy machine did not let it fork often enough.
            world.limits.wall *= 2;
            assert!(world.limits.wall < PATIENCE, "it never had more than {most} processes");
        }
    });
}

#[test]
fn a_chain_of_forks_ends_with_its_program() {
    in_each_jail("resource_exhaustion::a_chain_of_forks_ends_with_its_program", |jail| {
        // A process that is examined has already handed over to the next.
        let chain = "import os\nif os.fork():\n    print('first', flush=True); os._exit(0)\n\
                     os.setsid()\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass";
        let (ended, _) = run_counting(&jail.world(), chain);
        assert_eq!((ended.exit_reason, ended.stdout.text().as_str()), (ExitReason::Exit, "first\n"));
    });
}

#[test]
fn a_thread_bomb_stops_at_the_bound() {
    in_each_jail("resource_exhaustion::a_thread_bomb_stops_at_the_bound", |jail| {
        let mut world = jail.world();
        world.limits.processes = 24;
        let printed = python_stdout(
            &world,
            "import os, threading\nn, gate = 0, threading.Event()\ntry:\n    while n < 200:\n        \
             threading.Thread(target=gate.wait, daemon=True).start(); n += 1\nexcept RuntimeError: pass\n\
             print(n, flush=True); os._exit(0)",
        );
        let started: u32 = printed.trim().parse().unwrap();
        assert!((8..24).contains(&started), "{started}");
    });
}

#[test]
fn memory_bombs_are_ended() {
    in_each_jail("resource_exhaustion::memory_bombs_are_ended", |jail| {
        let mut world = jail.world();
        world.limits.memory_bytes = 96 << 20;
        let greedy = "x = []\nwhile True: x.append(bytearray(8 << 20))";
        let small = "import os, signal\nfor _ in range(16):\n    if os.fork() == 0:\n        x = bytearray(16 << 20)\n        \
                     signal.pause()\nsignal.pause()";
        let shared =
            "import mmap\nx = []\nwhile True:\n    m = mmap.mmap(-1, 8 << 20); m.write(bytes(8 << 20)); x.append(m)";
        for program in [greedy, small, shared] {
            let ended = world.python(program);
            let refused = ended.exit_code == 1 && ended.stderr.text().contains("MemoryError");
            assert!(
                ended.exit_reason == ExitReason::Memory || refused,
                "{:?} {}",
                ended.exit_reason,
                ended.stderr.text()
            );
        }
    });
}

#[test]
fn memory_that_processes_share_counts_once() {
    in_each_jail("resource_exhaustion::memory_that_processes_share_counts_once", |jail| {
        let mut world = jail.world();
        world.limits.memory_bytes = 192 << 20;
        // All of them have it for longer than it takes to be counted.
        let program = "import mmap, os, time\nm = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20))\npids = []\n\
                       for _ in range(4):\n    pid = os.fork()\n    if pid == 0:\n        \
                       for at in range(0, len(m), 4096): m[at] = 1\n        time.sleep(1); os._exit(0)\n    \
                       pids.append(pid)\nfor pid in pids: os.waitpid(pid, 0)\nprint('all of it')";
        let ended = world.python(program);
        assert_eq!(ended.stdout.text(), "all of it\n", "{:?} {}", ended.exit_reason, ended.stderr.text());
    });
}

#[test]
fn the_machine_ends_a_program_before_anything_else() {
    in_each_jail("resource_exhaustion::the_machine_ends_a_program_before_anything_else", |jail| {
        assert_eq!(
            jail.world().stdout_of("cat /proc/self/oom_score_adj; sh -c 'cat /proc/$$/oom_score_adj'"),
            "1000\n1000\n"
        );
    });
}

#[test]
fn disks_are_full_at_the_bound() {
    as_each_user("resource_exhaustion::disks_are_full_at_the_bound", || {
        let mut world = SandboxFixture::new();
        (world.limits.disk_bytes, world.limits.tmp_bytes) = (4 << 20, 2 << 20);
        let printed = python_stdout(
            &world,
            r#"
import errno, os
def until(work):
    n = 0
    try:
        while n < 100000: work(n); n += 1
    except OSError as e: return n, errno.errorcode[e.errno]
for place in (".", "/tmp", "/dev/shm"):
    file = os.open(place + "/fill", os.O_WRONLY | os.O_CREAT)
    n, why = until(lambda n: os.write(file, bytes(65536)))
    print(place, n * 65536 >> 20, why)
    os.unlink(place + "/fill"); os.close(file)
    n, why = until(lambda n: os.close(os.open(f"{place}/{n}", os.O_WRONLY | os.O_CREAT)))
    print(place, n < 2000, why)
    os.system(f"cd {place} && ls | grep -E '^[0-9]+$' | xargs rm")
    n, why = until(lambda n: os.mkdir(f"{place}/{n}"))
    print(place, n < 2000, why)
    os.system(f"cd {place} && ls | grep -E '^[0-9]+$' | xargs rmdir")
    n, why = until(lambda n: os.symlink("x" * 4000, f"{place}/{n}"))
    print(place, n < 2000, why)
"#,
        );
        let wanted = |place: &str, most: u32| {
            let full = format!("{place} True ENOSPC\n");
            format!("{place} {most} ENOSPC\n{full}{full}{full}")
        };
        assert_eq!(printed, wanted(".", 4) + &wanted("/tmp", 2) + &wanted("/dev/shm", 2));
    });
}

#[test]
fn files_have_a_size() {
    as_each_user("resource_exhaustion::files_have_a_size", || {
        let mut world = SandboxFixture::new();
        (world.limits.file_bytes, world.limits.disk_bytes) = (1 << 20, 4 << 20);
        let printed = python_stdout(
            &world,
            r#"
import errno, os
def tried(work):
    try: return work()
    except OSError as e: return errno.errorcode[e.errno]
for place in ("x", "/tmp/x", "/dev/shm/x"):
    file = os.open(place, os.O_RDWR | os.O_CREAT)
    print(tried(lambda: os.ftruncate(file, (1 << 63) - 1)), tried(lambda: os.posix_fallocate(file, 0, 1 << 40)))
    print(tried(lambda: os.pwrite(file, b"x", 1 << 40)), tried(lambda: os.ftruncate(file, 1 << 20)), os.fstat(file).st_size)
"#,
        );
        assert_eq!(printed, "EFBIG EFBIG\nEFBIG None 1048576\n".repeat(3));
    });
}

#[test]
fn a_flood_on_both_streams_costs_no_memory() {
    as_each_user_isolated("resource_exhaustion::a_flood_on_both_streams_costs_no_memory", || {
        let mut world = SandboxFixture::new();
        world.limits.output_bytes = 10_000;
        world.stdout_of("true");
        let before = resident();
        let ended = world.bash("yes out & yes err >&2");
        assert_eq!(ended.exit_reason, ExitReason::Output);
        for (stream, line) in [(&ended.stdout, "out\n"), (&ended.stderr, "err\n")] {
            assert!(stream.bytes.len() < 11_000 && stream.text().starts_with(line), "{}", stream.bytes.len());
        }
        assert!(ended.stdout.truncated || ended.stderr.truncated);
        assert!(resident() < before + (4 << 20), "{before} {}", resident());
    });
}

#[test]
fn zombies_are_reaped() {
    in_each_jail("resource_exhaustion::zombies_are_reaped", |jail| {
        let mut world = jail.world();
        world.limits.processes = 32;
        // Each leaves a child behind that its parent does not wait for, many more than the bound in all.
        let printed = python_stdout(
            &world,
            "import os, time\nfor n in range(300):\n    pid = os.fork()\n    if pid == 0:\n        while True:\n            \
             try:\n                os.fork(); break\n            except OSError: time.sleep(0)\n        os._exit(0)\n    \
             os.waitpid(pid, 0)\nprint('all')",
        );
        assert_eq!(printed, "all\n");
    });
}

#[test]
fn a_program_that_hears_no_signal_is_ended() {
    in_each_jail("resource_exhaustion::a_program_that_hears_no_signal_is_ended", |jail| {
        let mut world = jail.world();
        world.limits.wall = Duration::from_millis(400);
        let deaf = "import signal, os\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    \
                    except (OSError, ValueError): pass\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n";
        for end in ["while True: pass", "os.kill(os.getpid(), signal.SIGSTOP)", "os.read(os.pipe()[0], 1)"] {
            let (ended, _) = run_counting(&world, &format!("{deaf}{end}"));
            assert_eq!((ended.exit_reason, ended.signal), (ExitReason::Timeout, Some(9)), "{end}");
        }
    });
}

#[test]
fn daemons_are_dead_when_the_run_is_over() {
    in_each_jail("resource_exhaustion::daemons_are_dead_when_the_run_is_over", |jail| {
        // The streams stay open in the daemon, which has a session of its own and a parent that adopts orphans.
        let daemon = "import ctypes, os, signal, sys\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nhear, say = os.pipe()\n\
                      if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        \
                      [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 13, 15)]\n        \
                      os.write(say, b'x')\n        while True: signal.pause()\n    os._exit(0)\n\
                      os.read(hear, 1)\nprint('left', flush=True)\n";
        for (end, status) in [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("os.kill(os.getpid(), 6)", 134)] {
            let (ended, _) = run_counting(&jail.world(), &format!("{daemon}{end}"));
            assert_eq!((ended.exit_code, ended.stdout.text().as_str()), (status, "left\n"));
        }
        // The control: the marks of living ones are found.
        let world = jail.world();
        let counter = ProcessCounter { stop_when_found: true, ..ProcessCounter::new(&world) };
        let script = "import signal\nsignal.pause()";
        let ended = world.run(&["python3", "/run/ringfence/main", &counter.mark], script, &counter).unwrap();
        assert_eq!(ended.exit_reason, ExitReason::Cancelled);
        assert!(counter.most.into_inner() > 0);
    });
}

#[test]
fn signals_do_not_leave_the_jail() {
    in_each_jail("resource_exhaustion::signals_do_not_leave_the_jail", |jail| {
        let world = jail.world();
        let ended = world.bash("sleep 1000 & sleep 1000 & kill -9 -1; echo still here; exit 4");
        // The shell does not mean itself; some kernels mean it all the same.
        assert!([(ExitReason::Exit, 4), (ExitReason::Signal, 137)].contains(&(ended.exit_reason, ended.exit_code)));
        let printed = python_stdout(
            &world,
            "import os, signal\nfor n in (9, 19, 15, 11, 6, 20, 2):\n    try: os.kill(1, n)\n    except PermissionError: print('no')\n\
             try: os.killpg(1, 9)\n except OSError: pass\nprint('here')"
                .replace("\n except", "\nexcept")
                .as_str(),
        );
        assert!(printed.ends_with("here\n"), "{printed}");
        // The spawner and the next jail are well.
        assert_eq!(world.stdout_of("echo well"), "well\n");
    });
}

#[test]
fn descriptors_run_out_at_the_bound() {
    in_each_jail("resource_exhaustion::descriptors_run_out_at_the_bound", |jail| {
        let mut world = jail.world();
        world.limits.open_files = 64;
        let printed = python_stdout(
            &world,
            "import os, socket, errno\nheld = []\ntry:\n    while len(held) < 1000: held.append(os.open('/dev/null', 0))\n\
             except OSError as e: print(len(held) < 64, errno.errorcode[e.errno])\n\
             [os.close(f) for f in held]\n\
             # Descriptors that travel in a circle of sockets are held by nobody.\n\
             try:\n    for _ in range(2000):\n        a, b = socket.socketpair()\n        \
             socket.send_fds(a, [b'x'], [a.fileno(), b.fileno()]); socket.send_fds(b, [b'x'], [a.fileno(), b.fileno()])\n        \
             a.close(); b.close()\n    print('all')\nexcept OSError as e: print(errno.errorcode[e.errno])",
        );
        assert!(["True EMFILE\nall\n", "True EMFILE\nETOOMANYREFS\n"].contains(&printed.as_str()), "{printed}");
    });
}

#[test]
fn pipes_cannot_be_hoarded() {
    in_each_jail("resource_exhaustion::pipes_cannot_be_hoarded", |jail| {
        let printed = python_stdout(
            &jail.world(),
            "import fcntl, os\ntotal, held = 0, []\ntry:\n    while len(held) < 400:\n        r, w = os.pipe(); held.append((r, w))\n        \
             try: fcntl.fcntl(w, 1031, 1 << 20)\n        except OSError: pass\n        os.set_blocking(w, False)\n        \
             try:\n            while True: total += os.write(w, bytes(65536))\n        except BlockingIOError: pass\n\
             except OSError: pass\nprint(total >> 20)",
        );
        let megabytes: u64 = printed.trim().parse().unwrap();
        assert!(megabytes <= 96, "{megabytes}");
    });
}

#[test]
fn processor_time_runs_out_for_who_does_not_listen() {
    in_each_jail("resource_exhaustion::processor_time_runs_out_for_who_does_not_listen", |jail| {
        let mut world = jail.world();
        world.limits.cpu = Duration::from_secs(1);
        let ended = world.python("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass");
        // The kernel's last step is the same signal for all causes. The time used says why.
        assert_eq!((ended.exit_reason, ended.signal), (ExitReason::Cpu, Some(9)), "{}", ended.stderr.text());
    });
}

#[test]
fn a_status_is_what_the_program_ended_with() {
    in_each_jail("resource_exhaustion::a_status_is_what_the_program_ended_with", |jail| {
        let world = jail.world();
        let cases = [
            ("(kill -9 $BASHPID) 2>/dev/null; exit 0", (0, None, ExitReason::Exit)),
            ("exit 137", (137, None, ExitReason::Exit)),
            ("exit 511", (255, None, ExitReason::Exit)),
            ("kill -KILL $$", (137, Some(9), ExitReason::Signal)),
            ("kill -TERM $$", (143, Some(15), ExitReason::Signal)),
            ("kill -XFSZ $$", (153, Some(25), ExitReason::Signal)),
            ("(sleep 1000; exit 1) & exec true", (0, None, ExitReason::Exit)),
        ];
        for (script, expected) in cases {
            let ended = world.bash(script);
            assert_eq!((ended.exit_code, ended.signal, ended.exit_reason), expected, "{script}");
        }
    });
}

#[test]
fn output_is_data() {
    in_each_jail("resource_exhaustion::output_is_data", |jail| {
        let bytes = b"\0\x1b[2J\x1b]0;title\x07\xff\xfe\xc3(\r\n</result>{\"exitCode\":0}\xe2\x80\xae\0";
        let script = format!("import os\nos.write(1, {0})\nos.write(2, {0}[::-1])", python_bytes(bytes));
        let ended = jail.world().python(&script);
        let backwards: Vec<u8> = bytes.iter().rev().copied().collect();
        assert_eq!((ended.stdout.bytes.as_slice(), ended.stderr.bytes), (&bytes[..], backwards));
    });
}

#[test]
fn a_run_that_is_stopped_at_once_ends() {
    as_each_user("resource_exhaustion::a_run_that_is_stopped_at_once_ends", || {
        for pool in [0, 2] {
            let mut world = SandboxFixture::with_pool(pool);
            let ended = world.run(&["sleep", "1000"], "", &CancelledObserver).unwrap();
            assert_eq!(ended.exit_reason, ExitReason::Cancelled);
            world.limits.wall = Duration::ZERO;
            let ended = world.run(&["sleep", "1000"], "", &OutputObserver::default()).unwrap();
            assert_eq!(ended.exit_reason, ExitReason::Timeout);
            world.limits.wall = PATIENCE;
            assert_eq!(world.stdout_of("echo well"), "well\n");
        }
    });
}

#[test]
fn deep_directories_and_odd_names_do_not_block_a_run() {
    in_each_jail("resource_exhaustion::deep_directories_and_odd_names_do_not_block_a_run", |jail| {
        let printed = python_stdout(
            &jail.world(),
            "import os\nhere = os.getcwd()\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nos.chdir(here)\n\
             for name in ('n' * 255, 'a\\nb', '\\x1b[31m', '-rf', ' ', '\\udcff'): open(os.fsencode(name), 'w').close()\n\
             os.mkfifo('pipe'); print('made')",
        );
        assert_eq!(printed, "made\n");
    });
}

struct CancelledObserver;

impl ProgramObserver for CancelledObserver {
    fn on_output(&self, _: OutputStream, _: &[u8]) {}

    fn should_stop(&self) -> bool {
        true
    }
}

/// Runs a program that is marked, and says how many of it there were at one time. None is left.
fn run_counting(world: &SandboxFixture, script: &str) -> (RunResult, usize) {
    let counter = ProcessCounter::new(world);
    let ended = world.run(&["python3", "/run/ringfence/main", &counter.mark], script, &counter).unwrap();
    assert_eq!(counter.count(), 0, "something of it is alive");
    (ended, counter.most.into_inner())
}

/// Counts the processes whose command line has a mark, whenever it is asked whether to stop.
struct ProcessCounter {
    mark: String,
    most: AtomicUsize,
    /// Ends the run as soon as there is one.
    stop_when_found: bool,
}

impl ProcessCounter {
    fn new(world: &SandboxFixture) -> Self {
        let mark = format!("jailed-abuse-{}", world.path().file_name().unwrap().to_str().unwrap());
        Self { mark, most: AtomicUsize::new(0), stop_when_found: false }
    }

    fn count(&self) -> usize {
        let commands = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.unwrap().path();
            path.file_name()?.to_str()?.parse::<u32>().ok()?;
            fs::read(path.join("cmdline")).ok()
        });
        commands.filter(|command| String::from_utf8_lossy(command).contains(&self.mark)).count()
    }
}

impl ProgramObserver for ProcessCounter {
    fn on_output(&self, _: OutputStream, _: &[u8]) {}

    fn should_stop(&self) -> bool {
        let count = self.count();
        self.most.fetch_max(count, Ordering::Relaxed);
        self.stop_when_found && count > 0
    }
}

/// Output of a Python program, which must print no error.
fn python_stdout(world: &SandboxFixture, script: &str) -> String {
    let ended = world.python(script);
    assert_eq!(
        (ended.exit_code, ended.stderr.text().as_str()),
        (0, ""),
        "{:?}: {}",
        ended.exit_reason,
        ended.stdout.text()
    );
    ended.stdout.text()
}

fn python_bytes(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("b'{escaped}'")
}

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    pages * rustix::param::page_size() as u64
}
