//! How runs end, and that nothing of them is left.

use std::time::{Duration, Instant};

use ringfence_sandbox::{EndedBy, Failure, JailLimits, Wall};

use crate::world::{Seen, World, everyone};

#[test]
fn programs_say_hello() {
    everyone("endings::programs_say_hello", || {
        for pool in [0, 2] {
            let world = World::with_pool(pool);
            let ended = world.bash("echo hello; echo oops >&2; exit 3");
            assert_eq!(ended.stdout.text(), "hello\n");
            assert_eq!(ended.stderr.text(), "oops\n");
            assert_eq!((ended.exit_code, ended.signal, ended.ended_by), (3, None, EndedBy::Exit));
            assert!(ended.walls.contains(&Wall::Seccomp) && ended.walls.contains(&Wall::Landlock), "{:?}", ended.walls);
            for _ in 0..4 {
                let ended = world.python("import sys; print(sys.version_info[0]); sys.exit(7)");
                assert_eq!((ended.stdout.text().as_str(), ended.exit_code), ("3\n", 7), "{}", ended.stderr.text());
            }
        }
    });
}

#[test]
fn a_signal_is_named() {
    everyone("endings::a_signal_is_named", || {
        let ended = World::new().bash("kill -SEGV $$");
        assert_eq!((ended.exit_code, ended.signal, ended.ended_by), (139, Some(11), EndedBy::Signal));
    });
}

#[test]
fn a_program_that_is_not_there_is_named() {
    everyone("endings::a_program_that_is_not_there_is_named", || {
        let failure = World::new().run(&["no-such-program"], "", &Seen::default()).unwrap_err();
        assert!(matches!(&failure, Failure::NoProgram { name } if name == "no-such-program"), "{failure:?}");
    });
}

#[test]
fn time_is_up_for_daemons_too() {
    everyone("endings::time_is_up_for_daemons_too", || {
        let mut world = World::new();
        world.limits.wall = Duration::from_millis(300);
        let began = Instant::now();
        let ended = world.bash("(setsid bash -c 'trap \"\" TERM; echo born; sleep 1000' &); trap '' TERM; sleep 1000");
        assert_eq!(ended.ended_by, EndedBy::Timeout);
        assert_eq!(ended.stdout.text(), "born\n");
        assert!(ended.upper.is_some());
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn a_daemon_ends_with_its_program_and_holds_nobody_up() {
    everyone("endings::a_daemon_ends_with_its_program_and_holds_nobody_up", || {
        let began = Instant::now();
        let ended = World::new().bash("(setsid sleep 1000 &) ; echo done");
        assert_eq!((ended.stdout.text().as_str(), ended.ended_by), ("done\n", EndedBy::Exit));
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn a_run_is_stopped() {
    everyone("endings::a_run_is_stopped", || {
        let watch = Seen::until("going");
        let ended = World::new().run(&["bash", "-c", "echo going; sleep 1000"], "", &watch).unwrap();
        assert_eq!((ended.ended_by, ended.stdout.text().as_str()), (EndedBy::Cancelled, "going\n"));
    });
}

#[test]
fn a_flood_of_output_is_ended() {
    everyone("endings::a_flood_of_output_is_ended", || {
        let mut world = World::new();
        world.limits.output_bytes = 1000;
        let ended = world.bash("yes");
        assert_eq!(ended.ended_by, EndedBy::Output);
        assert!(ended.stdout.truncated && ended.stdout.total > 64 << 20 && ended.stdout.bytes.len() < 2000);
    });
}

#[test]
fn memory_is_bounded() {
    everyone("endings::memory_is_bounded", || {
        let mut world = World::new();
        world.limits = JailLimits { memory_bytes: 128 << 20, ..JailLimits::default() };
        // Several processes, so that no bound on one of them is enough.
        let hog = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = bytearray(60 << 20)\n        \
                   time.sleep(1000)\ntime.sleep(1000)";
        let ended = world.python(hog);
        assert_eq!(ended.ended_by, EndedBy::Memory, "{}", ended.stderr.text());
    });
}

#[test]
fn processes_are_bounded() {
    everyone("endings::processes_are_bounded", || {
        let mut world = World::new();
        world.limits.processes = 32;
        let many = "import os, time\nn = 0\ntry:\n    while n < 100:\n        if os.fork() == 0: time.sleep(1000)\n        n += 1\n\
                    except OSError: pass\nprint(n)";
        let ended = world.python(many);
        let started: u32 = ended.stdout.text().trim().parse().unwrap();
        assert!((16..32).contains(&started), "{started}");
        let counted = ended.walls.contains(&Wall::Cgroup);
        assert_eq!(ended.crowded, counted, "known where a cgroup counts");
        assert!(!world.bash("true").crowded, "the next run has a group that knows nothing of it");
    });
}

#[test]
fn processor_time_is_bounded() {
    everyone("endings::processor_time_is_bounded", || {
        let mut world = World::new();
        world.limits.cpu = Duration::from_secs(1);
        let ended = world.bash("while :; do :; done");
        assert_eq!((ended.ended_by, ended.signal), (EndedBy::Cpu, Some(24)));
    });
}

#[test]
fn a_kill_with_processor_time_left_is_a_signal() {
    everyone("endings::a_kill_with_processor_time_left_is_a_signal", || {
        let ended = World::new().bash("kill -KILL $$");
        assert_eq!((ended.ended_by, ended.signal), (EndedBy::Signal, Some(9)));
    });
}
