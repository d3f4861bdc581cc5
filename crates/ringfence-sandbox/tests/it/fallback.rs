//! Programs in jails that the system's own `bwrap` built: the same walls, and a workspace that is read-only.
//!
//! Every test forces it, and says so where this machine has none.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_sandbox::{EndedBy, Failure, Fallback, Sandbox, Settings, Standing, Toolchain, Wall, falls_back, probe};
use rustix::process::geteuid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::escapes::{Host, Outcome, try_all};
use crate::lives::talk;
use crate::memory::bound_memory;
use crate::programs::{gain_by_setuid, list_interfaces, make_terminals};
use crate::ways::reach_out;
use crate::world::{Seen, World, everyone, everyone_alone, give_away, note, program, without_namespaces};

/// What a bare directory of the host tells, read-only or not: where it is, whether a file is locked, and what comes out of a
/// pipe. An overlay would not; the documentation says so.
const OPEN: [&str; 5] = [
    "learn where the workspace is on the machine",
    "learn where a directory beside is on the machine",
    "meet a lock of the host in the workspace",
    "meet a lock of the host beside",
    "read from a pipe shown beside",
];

#[test]
fn attempts_are_held_but_for_what_a_bare_directory_tells() {
    everyone_alone("fallback::attempts_are_held_but_for_what_a_bare_directory_tells", || {
        let Some(world) = World::by_bwrap() else { return };
        let host = Host::new();
        give_away(host.directory.path());
        let outcomes = try_all(&host, &world, |stage| give_away(stage.directory.path()));
        let count = outcomes.len();
        let is_wrong = |(name, outcome): &(&str, Outcome)| match outcome {
            Outcome::Refused(_) | Outcome::Nothing => OPEN.contains(name),
            Outcome::Escaped(_) => !OPEN.contains(name),
            // Some begin by making something in the workspace.
            Outcome::Wrong(why) => !why.contains("OSError: [Errno 30] Read-only file system"),
        };
        let wrong: Vec<String> =
            outcomes.into_iter().filter(is_wrong).map(|(name, outcome)| format!("{name}: {outcome:?}")).collect();
        let (user, held) = (geteuid().as_raw(), count - OPEN.len() - wrong.len());
        note(&format!("by bwrap, user {user}: {count} attempts, {held} held, open: {}", OPEN.join(", ")));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn programs_say_hello_behind_the_same_walls() {
    everyone("fallback::programs_say_hello_behind_the_same_walls", || {
        let Some(world) = World::by_bwrap() else { return };
        for _ in 0..3 {
            let ended = world.bash("echo hello; echo oops >&2; pwd; id -u; hostname; exit 3");
            assert_eq!(ended.stdout.text(), "hello\n/workspace\n1000\njail\n", "{}", ended.stderr.text());
            assert_eq!((ended.stderr.text().as_str(), ended.exit_code, ended.ended_by), ("oops\n", 3, EndedBy::Exit));
            assert!(ended.upper.is_none());
            for wall in
                [Wall::Bwrap, Wall::UserNamespace, Wall::NetNamespace, Wall::Landlock, Wall::Seccomp, Wall::Proc]
            {
                assert!(ended.walls.contains(&wall), "{wall} is not in {:?}", ended.walls);
            }
            assert!(!ended.walls.contains(&Wall::Overlay));
        }
    });
}

#[test]
fn the_workspace_is_read_only_and_the_rest_is_as_in_any_jail() {
    everyone("fallback::the_workspace_is_read_only_and_the_rest_is_as_in_any_jail", || {
        let Some(mut world) = World::by_bwrap() else { return };
        world.write("kept", "old");
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("file"), "beside").unwrap();
        give_away(other.path());
        give_away(world.path());
        world.beside = vec![("docs", other.path().to_owned())];
        world.env.insert("CALLER".into(), "set".into());
        let found = world.says(
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
    everyone("fallback::secrets_are_covered_wherever_they_are_seen", || {
        let Some(mut world) = World::by_bwrap() else { return };
        for name in [".env", "d/key", ".ringfence/trash", "linked-to", "open", "tools/bin/token"] {
            world.write(name, "secret");
        }
        symlink("linked-to", world.path().join("link")).unwrap();
        symlink("/etc", world.path().join("out")).unwrap();
        give_away(world.path());
        let token = PathBuf::from("tools/bin/token");
        world.masked = vec![".env".into(), "d".into(), "link".into(), "out/passwd".into(), "absent".into(), token];
        world.hidden = vec![".ringfence".into()];
        let found = world.says(
            "cat .env linked-to link tools/bin/token; ls -A d .ringfence; grep -c . /etc/passwd; \
             for f in .env d .ringfence linked-to; do rm -rf $f 2>/dev/null || echo held; done; cat open",
        );
        assert_eq!(found, ".ringfence:\n\nd:\n2\nheld\nheld\nheld\nheld\nsecret");
    });
}

#[test]
fn a_program_can_be_talked_to() {
    everyone("fallback::a_program_can_be_talked_to", || {
        let Some(world) = World::by_bwrap() else { return };
        talk(&world);
    });
}

#[test]
fn a_program_has_the_way_out_that_it_was_granted() {
    everyone("fallback::a_program_has_the_way_out_that_it_was_granted", || {
        let Some(world) = World::by_bwrap() else { return };
        reach_out(&world);
    });
}

#[test]
fn programs_find_what_they_expect_and_gain_nothing() {
    everyone("fallback::programs_find_what_they_expect_and_gain_nothing", || {
        let Some(world) = World::by_bwrap() else { return };
        list_interfaces(&world);
        make_terminals(&world);
        gain_by_setuid(&world);
    });
}

#[test]
fn memory_outside_of_processes_is_bounded() {
    everyone("fallback::memory_outside_of_processes_is_bounded", || {
        let Some(world) = World::by_bwrap() else { return };
        bound_memory(world);
    });
}

#[test]
fn toolchains_are_shown_and_their_secrets_are_not() {
    // Below `/tmp` no toolchain is shown, so that this takes a place that only root can make.
    let place = Path::new("/opt");
    if !geteuid().is_root() || !place.is_dir() {
        return note("skipped: a toolchain with a secret in it, which takes root and `/opt`");
    }
    let Some(mut world) = World::by_bwrap() else { return };
    let directory = tempfile::tempdir_in(place).unwrap();
    fs::write(directory.path().join("tool"), "works").unwrap();
    fs::write(directory.path().join("token"), "secret").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    give_away(directory.path());
    world.toolchains = vec![Toolchain {
        name: "tools".into(),
        shown: vec![directory.path().to_owned()],
        path: Vec::new(),
        env: Vec::new(),
    }];
    world.masked = vec!["token".into()];
    world.beside = vec![("tools", directory.path().to_owned())];
    let own = directory.path().display();
    assert_eq!(world.says(&format!("cat {own}/tool {own}/token /mnt/tools/token")), "works");
}

#[test]
fn a_workspace_among_the_systems_files_is_covered_there_too() {
    let place = Path::new("/usr/src");
    if !geteuid().is_root() || !place.is_dir() {
        return note("skipped: a workspace in `/usr/src`, which takes root");
    }
    let Some(world) = World::by_bwrap() else { return };
    let directory = tempfile::tempdir_in(place).unwrap();
    fs::write(directory.path().join(".env"), "secret").unwrap();
    fs::write(directory.path().join("open"), "open").unwrap();
    give_away(directory.path());
    let mut world = World { directory, ..world };
    world.masked = vec![".env".into()];
    let own = world.path().display().to_string();
    assert_eq!(world.says(&format!("cat .env {own}/.env open {own}/open")), "openopen");
}

#[test]
fn runs_end_as_in_any_jail() {
    everyone("fallback::runs_end_as_in_any_jail", || {
        let Some(mut world) = World::by_bwrap() else { return };
        let ended = world.bash("kill -SEGV $$");
        assert_eq!((ended.exit_code, ended.signal, ended.ended_by), (139, Some(11), EndedBy::Signal));
        let failure = world.run(&["no-such-program"], "", &Seen::default()).unwrap_err();
        assert!(matches!(&failure, Failure::NoProgram { name } if name == "no-such-program"), "{failure:?}");

        let began = Instant::now();
        let ended = world.bash("(setsid sleep 1000 &) ; echo done");
        assert_eq!((ended.stdout.text().as_str(), ended.ended_by), ("done\n", EndedBy::Exit));
        let watch = Seen::until("going");
        let ended = world.run(&["bash", "-c", "(setsid sleep 1000 &); echo going; sleep 1000"], "", &watch).unwrap();
        assert_eq!(ended.ended_by, EndedBy::Cancelled);
        world.limits.wall = Duration::from_millis(500);
        let ended = world.bash("(setsid bash -c 'trap \"\" TERM; sleep 1000' &); trap '' TERM; sleep 1000");
        assert_eq!(ended.ended_by, EndedBy::Timeout);
        assert!(began.elapsed() < Duration::from_secs(60));
    });
}

#[test]
fn limits_hold() {
    everyone("fallback::limits_hold", || {
        let Some(mut world) = World::by_bwrap() else { return };
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
        assert_eq!(world.python(hog).ended_by, EndedBy::Memory);
        let ended = world.bash("while :; do :; done");
        assert_eq!((ended.ended_by, ended.signal), (EndedBy::Cpu, Some(24)));
        let ended = world.bash("head -c 2000000 /dev/zero > /tmp/full");
        assert!(ended.stderr.text().contains("No space left on device"), "{}", ended.stderr.text());
    });
}

#[test]
fn a_directory_that_was_replaced_is_not_shown() {
    everyone("fallback::a_directory_that_was_replaced_is_not_shown", || {
        let Some(world) = World::by_bwrap() else { return };
        let mut view = world.view();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("file"), "of somebody else").unwrap();
        give_away(other.path());
        view.workspace.path = other.path().to_owned();
        let failure = world.run_with(&view, &["bash", "-c", "cat file"], "", &Seen::default()).unwrap_err();
        assert!(matches!(failure, Failure::Unavailable { .. }), "{failure:?}");
        assert!(failure.to_string().contains("not where it was found"), "{failure}");
    });
}

#[test]
fn roots_own_workspace_is_refused() {
    if !geteuid().is_root() {
        return;
    }
    let Some(world) = World::by_bwrap() else { return };
    std::os::unix::fs::chown(world.path(), Some(0), Some(0)).unwrap();
    let failure = world.run(&["true"], "", &Seen::default()).unwrap_err();
    assert!(failure.to_string().contains("the workspace is root's"), "{failure}");
}

/// Refuses this process what we build jails with and `bwrap` does not. That is as near as a test comes to a machine that lets
/// only `bwrap` do it.
#[test]
fn where_only_bwrap_can_build_jails_it_does() {
    everyone_alone("fallback::where_only_bwrap_can_build_jails_it_does", || {
        let Some(world) = World::by_bwrap() else { return };
        let calls = [libc::SYS_fsopen, libc::SYS_open_tree, libc::SYS_move_mount].map(|call| (call, Vec::new()));
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        let filter = SeccompFilter::new(calls.into_iter().collect(), SeccompAction::Allow, refuse, arch).unwrap();
        seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
        let start = |fallback| Sandbox::start(Settings { program: program(), fallback, ..Settings::new() });
        assert!(falls_back(&probe(&program())));
        assert!(matches!(start(Fallback::None), Err(Failure::Unavailable { .. })));
        let world = World { sandbox: start(Fallback::Bwrap).unwrap(), ..world };
        let ended = world.bash("echo hello");
        assert_eq!(ended.stdout.text(), "hello\n", "{}", ended.stderr.text());
        assert!(ended.walls.contains(&Wall::Bwrap), "{:?}", ended.walls);
    });
}

#[test]
fn where_bwrap_is_refused_too_nothing_runs() {
    without_namespaces("fallback::where_bwrap_is_refused_too_nothing_runs", || {
        let walls = probe(&program());
        let stands = |wall| walls.iter().any(|standing: &Standing| standing.wall == wall && standing.stands);
        assert!(!stands(Wall::UserNamespace) && !stands(Wall::Bwrap) && !falls_back(&walls), "{walls:?}");
        for fallback in [Fallback::None, Fallback::Bwrap] {
            let settings = Settings { program: program(), fallback, ..Settings::new() };
            let failure = Sandbox::start(settings).unwrap_err();
            assert!(failure.to_string().starts_with("no jail here: it could not make its namespaces"), "{failure}");
        }
    });
}
