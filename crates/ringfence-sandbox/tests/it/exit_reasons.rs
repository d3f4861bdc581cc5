//! Exit reasons of runs, and that nothing of them is left.

use std::time::{Duration, Instant};

use ringfence_sandbox::{ExitReason, Isolation, JailError};
use ringfence_testkit::patience::PATIENCE;

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user};

#[test]
fn programs_say_hello() {
    as_each_user("exit_reasons::programs_say_hello", || {
        for pool in [0, 2] {
            let world = SandboxFixture::with_pool(pool);
            let ended = world.bash("echo hello; echo oops >&2; exit 3");
            assert_eq!(ended.stdout.text(), "hello\n");
            assert_eq!(ended.stderr.text(), "oops\n");
            assert_eq!((ended.exit_code, ended.signal, ended.exit_reason), (3, None, ExitReason::Exit));
            assert!(
                ended.isolation.contains(&Isolation::Seccomp) && ended.isolation.contains(&Isolation::Landlock),
                "{:?}",
                ended.isolation
            );
            for _ in 0..4 {
                let ended = world.python("import sys; print(sys.version_info[0]); sys.exit(7)");
                assert_eq!((ended.stdout.text().as_str(), ended.exit_code), ("3\n", 7), "{}", ended.stderr.text());
            }
        }
    });
}

#[test]
fn a_signal_is_named() {
    as_each_user("exit_reasons::a_signal_is_named", || {
        let ended = SandboxFixture::new().bash("kill -SEGV $$");
        assert_eq!((ended.exit_code, ended.signal, ended.exit_reason), (139, Some(11), ExitReason::Signal));
    });
}

#[test]
fn a_program_that_is_not_there_is_named() {
    as_each_user("exit_reasons::a_program_that_is_not_there_is_named", || {
        let failure = SandboxFixture::new().run(&["no-such-program"], "", &OutputObserver::default()).unwrap_err();
        assert!(matches!(&failure, JailError::ProgramNotFound { name } if name == "no-such-program"), "{failure:?}");
    });
}

#[test]
fn time_is_up_for_daemons_too() {
    as_each_user("exit_reasons::time_is_up_for_daemons_too", || {
        let mut world = SandboxFixture::new();
        world.limits.wall = Duration::from_millis(300);
        let began = Instant::now();
        let ended = loop {
            let ended =
                world.bash("(setsid bash -c 'trap \"\" TERM; echo born; sleep 1000' &); trap '' TERM; sleep 1000");
            assert_eq!(ended.exit_reason, ExitReason::Timeout);
            if !ended.stdout.bytes.is_empty() {
                break ended;
            }
            // On a busy machine the daemon was not there yet.
            world.limits.wall *= 2;
            assert!(world.limits.wall < PATIENCE, "the daemon says nothing");
        };
        assert_eq!(ended.stdout.text(), "born\n");
        assert!(ended.upper.is_some());
        assert!(began.elapsed() < PATIENCE, "a daemon holds up the run");
    });
}

#[test]
fn a_daemon_ends_with_its_program_and_delays_no_reply() {
    as_each_user("exit_reasons::a_daemon_ends_with_its_program_and_delays_no_reply", || {
        let began = Instant::now();
        let ended = SandboxFixture::new().bash("(setsid sleep 1000 &) ; echo done");
        assert_eq!((ended.stdout.text().as_str(), ended.exit_reason), ("done\n", ExitReason::Exit));
        assert!(began.elapsed() < PATIENCE, "a daemon holds up the run");
    });
}

#[test]
fn a_run_is_stopped() {
    as_each_user("exit_reasons::a_run_is_stopped", || {
        let watch = OutputObserver::stopping_at("going");
        let ended = SandboxFixture::new().run(&["bash", "-c", "echo going; sleep 1000"], "", &watch).unwrap();
        assert_eq!((ended.exit_reason, ended.stdout.text().as_str()), (ExitReason::Cancelled, "going\n"));
    });
}

#[test]
fn a_flood_of_output_is_ended() {
    as_each_user("exit_reasons::a_flood_of_output_is_ended", || {
        let mut world = SandboxFixture::new();
        world.limits.output_bytes = 1000;
        let ended = world.bash("yes");
        assert_eq!(ended.exit_reason, ExitReason::Output);
        assert!(ended.stdout.truncated && ended.stdout.total > 64 << 20 && ended.stdout.bytes.len() < 2000);
    });
}

#[test]
fn memory_is_bounded() {
    as_each_user("exit_reasons::memory_is_bounded", || {
        let mut world = SandboxFixture::new();
        world.limits.memory_bytes = 128 << 20;
        // Several processes, so that no bound on one of them is enough.
        let hog = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = bytearray(60 << 20)\n        \
                   time.sleep(1000)\ntime.sleep(1000)";
        let ended = world.python(hog);
        assert_eq!(ended.exit_reason, ExitReason::Memory, "{}", ended.stderr.text());
    });
}

#[test]
fn processes_are_bounded() {
    as_each_user("exit_reasons::processes_are_bounded", || {
        let mut world = SandboxFixture::new();
        world.limits.processes = 32;
        let many = "import os, time\nn = 0\ntry:\n    while n < 100:\n        if os.fork() == 0: time.sleep(1000)\n        n += 1\n\
                    except OSError: pass\nprint(n)";
        let ended = world.python(many);
        let started: u32 = ended.stdout.text().trim().parse().unwrap();
        assert!((16..32).contains(&started), "{started}");
        let counted = ended.isolation.contains(&Isolation::Cgroup);
        assert_eq!(ended.process_limit_hit, counted, "known where a cgroup counts");
        assert!(!world.bash("true").process_limit_hit, "the next run has a group that knows nothing of it");
    });
}

#[test]
fn processor_time_is_bounded() {
    as_each_user("exit_reasons::processor_time_is_bounded", || {
        let mut world = SandboxFixture::new();
        world.limits.cpu = Duration::from_secs(1);
        let ended = world.bash("while :; do :; done");
        assert_eq!((ended.exit_reason, ended.signal), (ExitReason::Cpu, Some(24)));
    });
}

#[test]
fn a_kill_with_processor_time_left_is_a_signal() {
    as_each_user("exit_reasons::a_kill_with_processor_time_left_is_a_signal", || {
        let ended = SandboxFixture::new().bash("kill -KILL $$");
        assert_eq!((ended.exit_reason, ended.signal), (ExitReason::Signal, Some(9)));
    });
}
