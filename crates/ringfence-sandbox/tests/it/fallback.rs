//! Bubblewrap fallback: the same isolation, and a workspace that is read-only.
//!
//! Every test forces it, and says so where this machine has none.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_sandbox::{
    ExitReason, Isolation, IsolationStatus, JailError, JailFallback, Sandbox, SandboxSettings, Toolchain,
    needs_bwrap_fallback, probe,
};
use ringfence_testkit::escape_stage::{AttemptOutcome, EscapeHost};
use ringfence_testkit::patience::PATIENCE;
use ringfence_testkit::requirement::{Requirement, print_note, skip_without};
use rustix::process::geteuid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::egress::check_egress;
use crate::escapes::try_all;
use crate::files::check_replaced;
use crate::fixture::{
    OutputObserver, SandboxFixture, as_each_user, as_each_user_isolated, chown_to_plain_user, program,
    skip_without_opt, without_namespaces,
};
use crate::memory::check_memory_limits;
use crate::process_lifetimes::check_dialogue;
use crate::programs::{check_interfaces, check_setuid_gains_nothing, check_terminals};

/// Leaks of a directly mounted directory of the host, read-only or not: its path, whether a file is locked, and the
/// contents of a pipe. An overlay would not; the documentation says so.
const KNOWN_LEAKS: [&str; 5] = [
    "learn where the workspace is on the machine",
    "learn where a directory beside is on the machine",
    "meet a lock of the host in the workspace",
    "meet a lock of the host beside",
    "read from a pipe shown beside",
];

#[test]
fn attempts_are_held_but_for_what_a_bare_directory_tells() {
    as_each_user_isolated("fallback::attempts_are_held_but_for_what_a_bare_directory_tells", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        let host = EscapeHost::new();
        chown_to_plain_user(host.directory.path());
        let outcomes = try_all(&host, &world, |stage| chown_to_plain_user(stage.directory.path()));
        let count = outcomes.len();
        let is_wrong = |(name, outcome): &(&str, AttemptOutcome)| match outcome {
            AttemptOutcome::Refused(_) | AttemptOutcome::Nothing => KNOWN_LEAKS.contains(name),
            AttemptOutcome::Escaped(_) => !KNOWN_LEAKS.contains(name),
            // Some begin by making something in the workspace.
            AttemptOutcome::Wrong(why) => !why.contains("OSError: [Errno 30] Read-only file system"),
        };
        let wrong: Vec<String> =
            outcomes.into_iter().filter(is_wrong).map(|(name, outcome)| format!("{name}: {outcome:?}")).collect();
        let (user, held) = (geteuid().as_raw(), count - KNOWN_LEAKS.len() - wrong.len());
        print_note(&format!("by bwrap, user {user}: {count} attempts, {held} held, open: {}", KNOWN_LEAKS.join(", ")));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn programs_run_with_the_same_isolation() {
    as_each_user("fallback::programs_run_with_the_same_isolation", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        for _ in 0..3 {
            let ended = world.bash("echo hello; echo oops >&2; pwd; id -u; hostname; exit 3");
            assert_eq!(ended.stdout.text(), "hello\n/workspace\n1000\njail\n", "{}", ended.stderr.text());
            assert_eq!(
                (ended.stderr.text().as_str(), ended.exit_code, ended.exit_reason),
                ("oops\n", 3, ExitReason::Exit)
            );
            assert!(ended.upper.is_none());
            for mechanism in [
                Isolation::Bwrap,
                Isolation::UserNamespace,
                Isolation::NetNamespace,
                Isolation::Landlock,
                Isolation::Seccomp,
                Isolation::Proc,
            ] {
                assert!(ended.isolation.contains(&mechanism), "{mechanism} is not in {:?}", ended.isolation);
            }
            assert!(!ended.isolation.contains(&Isolation::Overlay));
        }
    });
}

#[test]
fn the_workspace_is_read_only_and_the_rest_is_as_in_any_jail() {
    as_each_user("fallback::the_workspace_is_read_only_and_the_rest_is_as_in_any_jail", || {
        let Some(mut world) = SandboxFixture::with_bwrap() else { return };
        world.write("kept", "old");
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("file"), "beside").unwrap();
        chown_to_plain_user(other.path());
        chown_to_plain_user(world.path());
        world.beside = vec![("docs", other.path().to_owned())];
        world.env.insert("CALLER".into(), "set".into());
        let found = world.stdout_of(
            "cat kept /mnt/docs/file; echo; (echo new > kept) 2>/dev/null || echo held; (rm kept) 2>/dev/null || echo held; \
             (echo x > /mnt/docs/x) 2>/dev/null || echo held; (echo x > /etc/x) 2>/dev/null || echo held; \
             echo x > /tmp/x && echo x > /dev/shm/x && echo x > ~/x && echo wrote; echo $CALLER; cat /run/ringfence/main | wc -l; \
             (: > /run/ringfence/main) 2>/dev/null || echo held; ls /proc | grep -cx '[0-9]*' > /tmp/n; test $(cat /tmp/n) -lt 9 && echo own",
        );
        assert_eq!(found, "oldbeside\nheld\nheld\nheld\nheld\nwrote\nset\n0\nheld\nown\n");
        assert_eq!(fs::read_to_string(world.path().join("kept")).unwrap(), "old");
    });
}

#[test]
fn secrets_are_covered_wherever_they_are_seen() {
    as_each_user("fallback::secrets_are_covered_wherever_they_are_seen", || {
        let Some(mut world) = SandboxFixture::with_bwrap() else { return };
        for name in [".env", "d/key", ".ringfence/trash", "linked-to", "open", "tools/bin/token"] {
            world.write(name, "secret");
        }
        symlink("linked-to", world.path().join("link")).unwrap();
        symlink("/etc", world.path().join("out")).unwrap();
        chown_to_plain_user(world.path());
        let token = PathBuf::from("tools/bin/token");
        world.masked = vec![".env".into(), "d".into(), "link".into(), "out/passwd".into(), "absent".into(), token];
        world.hidden = vec![".ringfence".into()];
        let found = world.stdout_of(
            "cat .env linked-to link tools/bin/token; ls -A d .ringfence; grep -c . /etc/passwd; \
             for f in .env d .ringfence linked-to; do rm -rf $f 2>/dev/null || echo held; done; cat open",
        );
        assert_eq!(found, ".ringfence:\n\nd:\n2\nheld\nheld\nheld\nheld\nsecret");
    });
}

#[test]
fn files_of_a_run_are_mounted_over_those_of_the_workspace() {
    as_each_user("fallback::files_of_a_run_are_mounted_over_those_of_the_workspace", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        check_replaced(&world);
    });
}

#[test]
fn a_program_can_be_talked_to() {
    as_each_user("fallback::a_program_can_be_talked_to", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        check_dialogue(&world);
    });
}

#[test]
fn a_program_has_the_way_out_that_it_was_granted() {
    as_each_user("fallback::a_program_has_the_way_out_that_it_was_granted", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        check_egress(&world);
    });
}

#[test]
fn programs_find_what_they_expect_and_gain_nothing() {
    as_each_user("fallback::programs_find_what_they_expect_and_gain_nothing", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        check_interfaces(&world);
        check_terminals(&world);
        check_setuid_gains_nothing(&world);
    });
}

#[test]
fn memory_outside_of_processes_is_bounded() {
    as_each_user("fallback::memory_outside_of_processes_is_bounded", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        check_memory_limits(world);
    });
}

#[test]
fn toolchains_are_shown_and_their_secrets_are_not() {
    // Below `/tmp` no toolchain is shown, so that this takes a directory that only root can make.
    let place = Path::new("/opt");
    if !geteuid().is_root() || !place.is_dir() {
        return skip_without_opt("root makes a toolchain with a secret");
    }
    let Some(mut world) = SandboxFixture::with_bwrap() else { return };
    let directory = tempfile::tempdir_in(place).unwrap();
    fs::write(directory.path().join("tool"), "works").unwrap();
    fs::write(directory.path().join("token"), "secret").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown_to_plain_user(directory.path());
    world.toolchains = vec![Toolchain {
        name: "tools".into(),
        shown: vec![directory.path().to_owned()],
        path: Vec::new(),
        env: Vec::new(),
    }];
    world.masked = vec!["token".into()];
    world.beside = vec![("tools", directory.path().to_owned())];
    let own = directory.path().display();
    assert_eq!(world.stdout_of(&format!("cat {own}/tool {own}/token /mnt/tools/token")), "works");
}

#[test]
fn a_workspace_among_the_systems_files_is_covered_there_too() {
    let place = Path::new("/usr/src");
    if !geteuid().is_root() {
        return skip_without(Requirement::Root, "only root has a workspace in `/usr/src`");
    }
    if !place.is_dir() {
        return skip_without(Requirement::SystemDirectories, "this machine has no `/usr/src`");
    }
    let Some(world) = SandboxFixture::with_bwrap() else { return };
    let directory = tempfile::tempdir_in(place).unwrap();
    fs::write(directory.path().join(".env"), "secret").unwrap();
    fs::write(directory.path().join("open"), "open").unwrap();
    chown_to_plain_user(directory.path());
    let mut world = SandboxFixture { directory, ..world };
    world.masked = vec![".env".into()];
    let own = world.path().display().to_string();
    assert_eq!(world.stdout_of(&format!("cat .env {own}/.env open {own}/open")), "openopen");
}

#[test]
fn runs_end_as_in_any_jail() {
    as_each_user("fallback::runs_end_as_in_any_jail", || {
        let Some(mut world) = SandboxFixture::with_bwrap() else { return };
        let ended = world.bash("kill -SEGV $$");
        assert_eq!((ended.exit_code, ended.signal, ended.exit_reason), (139, Some(11), ExitReason::Signal));
        let failure = world.run(&["no-such-program"], "", &OutputObserver::default()).unwrap_err();
        assert!(matches!(&failure, JailError::ProgramNotFound { name } if name == "no-such-program"), "{failure:?}");

        let began = Instant::now();
        let ended = world.bash("(setsid sleep 1000 &) ; echo done");
        assert_eq!((ended.stdout.text().as_str(), ended.exit_reason), ("done\n", ExitReason::Exit));
        let watch = OutputObserver::stopping_at("going");
        let ended = world.run(&["bash", "-c", "(setsid sleep 1000 &); echo going; sleep 1000"], "", &watch).unwrap();
        assert_eq!(ended.exit_reason, ExitReason::Cancelled);
        world.limits.wall = Duration::from_millis(500);
        let ended = world.bash("(setsid bash -c 'trap \"\" TERM; sleep 1000' &); trap '' TERM; sleep 1000");
        assert_eq!(ended.exit_reason, ExitReason::Timeout);
        assert!(began.elapsed() < PATIENCE, "a daemon holds up a run");
    });
}

#[test]
fn limits_hold() {
    as_each_user("fallback::limits_hold", || {
        let Some(mut world) = SandboxFixture::with_bwrap() else { return };
        world.limits.memory_bytes = 128 << 20;
        world.limits.processes = 32;
        world.limits.tmp_bytes = 1 << 20;
        world.limits.cpu = Duration::from_secs(1);
        let many = "import os, time\nn = 0\ntry:\n    while n < 100:\n        if os.fork() == 0: time.sleep(1000)\n        n += 1\n\
                    except OSError: pass\nprint(n)";
        let started: u32 = world.python(many).stdout.text().trim().parse().unwrap();
        assert!((16..32).contains(&started), "{started}");
        let hog = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = bytearray(60 << 20)\n        \
                   time.sleep(1000)\ntime.sleep(1000)";
        assert_eq!(world.python(hog).exit_reason, ExitReason::Memory);
        let ended = world.bash("while :; do :; done");
        assert_eq!((ended.exit_reason, ended.signal), (ExitReason::Cpu, Some(24)));
        let ended = world.bash("head -c 2000000 /dev/zero > /tmp/full");
        assert!(ended.stderr.text().contains("No space left on device"), "{}", ended.stderr.text());
    });
}

#[test]
fn a_directory_that_was_replaced_is_not_shown() {
    as_each_user("fallback::a_directory_that_was_replaced_is_not_shown", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        let mut view = world.view();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("file"), "of somebody else").unwrap();
        chown_to_plain_user(other.path());
        view.workspace.path = other.path().to_owned();
        let failure = world.run_with(&view, &["bash", "-c", "cat file"], "", &OutputObserver::default()).unwrap_err();
        assert!(matches!(failure, JailError::Unavailable { .. }), "{failure:?}");
        assert!(failure.to_string().contains("moved or replaced"), "{failure}");
    });
}

#[test]
fn roots_own_workspace_is_refused() {
    if !geteuid().is_root() {
        return skip_without(Requirement::Root, "only root has a workspace of root's");
    }
    let Some(world) = SandboxFixture::with_bwrap() else { return };
    std::os::unix::fs::chown(world.path(), Some(0), Some(0)).unwrap();
    let failure = world.run(&["true"], "", &OutputObserver::default()).unwrap_err();
    assert!(failure.to_string().contains("the workspace belongs to root"), "{failure}");
}

/// Refuses this process what we build jails with and `bwrap` does not. That is as near as a test comes to a machine that lets
/// only `bwrap` do it.
#[test]
fn bwrap_builds_jails_when_only_it_can() {
    as_each_user_isolated("fallback::bwrap_builds_jails_when_only_it_can", || {
        let Some(world) = SandboxFixture::with_bwrap() else { return };
        let calls = [libc::SYS_fsopen, libc::SYS_open_tree, libc::SYS_move_mount].map(|call| (call, Vec::new()));
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        let filter = SeccompFilter::new(calls.into_iter().collect(), SeccompAction::Allow, refuse, arch).unwrap();
        seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
        let start =
            |fallback| Sandbox::start(SandboxSettings { program: program(), fallback, ..SandboxSettings::new() });
        assert!(needs_bwrap_fallback(&probe(&program())));
        assert!(matches!(start(JailFallback::None), Err(JailError::Unavailable { .. })));
        let world = SandboxFixture { sandbox: start(JailFallback::Bwrap).unwrap(), ..world };
        let ended = world.bash("echo hello");
        assert_eq!(ended.stdout.text(), "hello\n", "{}", ended.stderr.text());
        assert!(ended.isolation.contains(&Isolation::Bwrap), "{:?}", ended.isolation);
    });
}

#[test]
fn nothing_runs_when_bwrap_is_denied_too() {
    without_namespaces("fallback::nothing_runs_when_bwrap_is_denied_too", || {
        let statuses = probe(&program());
        let available = |mechanism| {
            statuses.iter().any(|status: &IsolationStatus| status.mechanism == mechanism && status.available)
        };
        assert!(
            !available(Isolation::UserNamespace) && !available(Isolation::Bwrap) && !needs_bwrap_fallback(&statuses),
            "{statuses:?}"
        );
        for fallback in [JailFallback::None, JailFallback::Bwrap] {
            let settings = SandboxSettings { program: program(), fallback, ..SandboxSettings::new() };
            let failure = Sandbox::start(settings).unwrap_err();
            assert!(
                failure.to_string().starts_with("sandbox unavailable: could not create its namespaces"),
                "{failure}"
            );
        }
    });
}
