//! Jails without `/proc`, in containers that refuse a new one: every other mechanism is active.

use std::time::Duration;

use ringfence_sandbox::{ExitReason, Isolation, probe};
use ringfence_testkit::escape_stage::{AttemptOutcome, EscapeHost};
use ringfence_testkit::requirement::print_note;
use rustix::process::geteuid;

use crate::escapes::try_all;
use crate::fixture::{SandboxFixture, program, with_hidden_proc};

#[test]
fn programs_run_without_a_proc_and_that_is_said() {
    with_hidden_proc("hidden_proc::programs_run_without_a_proc_and_that_is_said", || {
        let statuses = probe(&program());
        assert!(statuses.iter().any(|status| status.mechanism == Isolation::Proc && !status.available), "{statuses:?}");
        let world = SandboxFixture::new();
        world.write("file", "text");
        let ended = world
            .bash("ls -A /proc; cat file; echo more > new; id -u; (sleep 0 | cat) & wait; echo $(true; echo done)");
        assert_eq!((ended.stdout.text().as_str(), ended.stderr.text().as_str()), ("text1000\ndone\n", ""));
        assert!(
            !ended.isolation.contains(&Isolation::Proc) && ended.isolation.contains(&Isolation::Landlock),
            "{:?}",
            ended.isolation
        );
        assert!(ended.upper.is_some());
    });
}

#[test]
fn directories_are_renamed_without_a_proc() {
    with_hidden_proc("hidden_proc::directories_are_renamed_without_a_proc", || {
        let world = SandboxFixture::new();
        world.write("src/deep/file", "text");
        let ended = world.python(
            "import os, threading\nos.rename('src', 'lib'); os.chdir('lib'); thread = threading.Thread(target=os.rename, \
             args=('deep', '/workspace/deep'))\nthread.start(); thread.join(); print(os.listdir('/workspace/deep'))",
        );
        assert_eq!((ended.stdout.text().as_str(), ended.stderr.text().as_str()), ("['file']\n", ""));
    });
}

#[test]
fn memory_and_endings_hold_without_a_proc() {
    with_hidden_proc("hidden_proc::memory_and_endings_hold_without_a_proc", || {
        let mut world = SandboxFixture::new();
        world.limits.memory_bytes = 128 << 20;
        let hog = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        os.setsid()\n        \
                   if os.fork(): os._exit(0)\n        x = bytearray(60 << 20)\n        time.sleep(1000)\ntime.sleep(1000)";
        assert_eq!(world.python(hog).exit_reason, ExitReason::Memory);
        world.limits.wall = Duration::from_millis(300);
        assert_eq!(world.bash("(setsid sleep 1000 &); trap '' TERM; sleep 1000").exit_reason, ExitReason::Timeout);
    });
}

#[test]
fn attempts_are_held_without_a_proc() {
    with_hidden_proc("hidden_proc::attempts_are_held_without_a_proc", || {
        let (host, world) = (EscapeHost::new(), SandboxFixture::new());
        let outcomes = try_all(&host, &world, |_| {});
        print_note(&format!("without a /proc, user {}: {} attempts", geteuid().as_raw(), outcomes.len()));
        let is_wrong =
            |outcome: &AttemptOutcome| !matches!(outcome, AttemptOutcome::Refused(_) | AttemptOutcome::Nothing);
        let wrong = outcomes.into_iter().filter(|(_, outcome)| is_wrong(outcome));
        let wrong: Vec<String> = wrong.map(|(name, outcome)| format!("{name}: {outcome:?}")).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
