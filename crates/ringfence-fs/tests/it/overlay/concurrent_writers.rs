//! Concurrent writers while a program runs, or while a person reads.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use ringfence_kernel::{ErrorKind, Preset};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::file_clock::wait_for_tick;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use super::{ConcurrentWriter, OverlayFixture, OverlayProgram, setup};
use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::snapshot::snapshot;

#[test]
fn a_concurrent_change_is_a_conflict() {
    let cases: [(&str, OverlayProgram, ConcurrentWriter); 10] = [
        ("modified", |l| _ = l.write("a", "new"), |root| fs::write(root.join("a"), "mine").unwrap()),
        (
            "mode",
            |l| _ = l.write("a", "new"),
            |root| {
                fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o600)).unwrap();
            },
        ),
        (
            "deleted",
            |l| _ = l.write("a", "new").attribute("a", "origin", ""),
            |root| {
                fs::remove_file(root.join("a")).unwrap();
            },
        ),
        ("newly there", |l| _ = l.write("fresh", "new"), |root| fs::write(root.join("fresh"), "mine").unwrap()),
        (
            "removed here, changed there",
            |l| _ = l.whiteout("a"),
            |root| {
                fs::write(root.join("a"), "mine").unwrap();
            },
        ),
        ("in a directory that goes", |l| _ = l.whiteout("d"), |root| fs::write(root.join("d/e/x"), "y").unwrap()),
        (
            "added to a directory that goes",
            |l| _ = l.whiteout("d"),
            |root| {
                fs::write(root.join("d/e/more"), "y").unwrap();
            },
        ),
        (
            "added to a directory that is hidden",
            |l| _ = l.opaque("d"),
            |root| {
                fs::write(root.join("d/more"), "y").unwrap();
            },
        ),
        (
            "the directory is another",
            |l| _ = l.write("d/e/x", "new"),
            |root| {
                fs::rename(root.join("d/e"), root.join("d/was")).unwrap();
                fs::rename(root.join("other"), root.join("d/e")).unwrap();
            },
        ),
        (
            "the directory is gone",
            |l| _ = l.directory("d/e").attribute("d/e", "origin", "").write("d/e/new", "n"),
            |root| {
                fs::remove_dir_all(root.join("d/e")).unwrap();
            },
        ),
    ];
    for (what, program, somebody) in cases {
        let layered = OverlayFixture::new(&[("a", "a"), ("d/e/x", "x"), ("other/x", "x")]);
        program(&layered);
        somebody(&layered.world.root);
        eprintln!("{what}");
        layered.check_refused(ErrorKind::Conflict, "changed in the workspace since the program started");
    }
}

#[test]
fn a_change_right_before_the_start_does_not_conflict() {
    for world in [FsFixture::in_memory(setup()), FsFixture::with(setup())] {
        world.write("d/x", "x");
        let mut layered = OverlayFixture::start_over(world);
        for round in 1..20 {
            layered.world.write("a", round.to_string());
            layered.world.write("d/x", round.to_string());
            layered = OverlayFixture::start_over(layered.world);
            layered.write("a", format!("{round}!")).whiteout("d");
            layered.committed();
            layered.world.write("d/x", "x");
        }
    }
}

#[test]
fn a_change_right_after_the_start_always_conflicts() {
    for world in [FsFixture::in_memory(setup()), FsFixture::with(setup())] {
        world.write("a", "0");
        let mut layered = OverlayFixture::start_over(world);
        for round in 0..40 {
            layered = OverlayFixture::start_over(layered.world);
            layered.world.write("a", "1");
            layered.write("a", format!("{round}!"));
            layered.check_refused(ErrorKind::Conflict, "since the program started");
        }
    }
}

#[test]
fn a_directory_that_becomes_a_link_while_it_is_committed_to_leads_nowhere() {
    let world = FsFixture::in_memory(setup());
    let twin = world.outside.join("twin");
    fs::create_dir(&twin).unwrap();
    fs::write(twin.join("f"), "outside").unwrap();
    world.write("d/f", "inside");
    symlink("../outside/twin", world.root.join("l")).unwrap();
    let seconds = std::env::var("RINGFENCE_RACE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let until = std::time::Instant::now() + Duration::from_secs(seconds);
    let (root, outside) = (world.root.clone(), snapshot(&world.outside));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let outside_path = world.outside.clone();
    let (mut made, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = renameat_with(CWD, root.join("d"), CWD, root.join("l"), RenameFlags::EXCHANGE);
            }
        });
        let mut world = Some(world);
        for round in 0.. {
            let Some(here) = world.take().filter(|_| std::time::Instant::now() < until) else { break };
            let layered = OverlayFixture::start_over(here);
            layered.write("d/f", round.to_string()).write("d/n/new", "new").whiteout("d/old");
            // Nothing counts as changed: only the steps themselves stand between the two.
            let arguments = json!({"upper": layered.upper, "started": u64::MAX / 4});
            match layered.world.call("commit_layer", &arguments).error {
                None => made += 1,
                Some(_) => refused += 1,
            }
            assert_eq!(snapshot(&outside_path), outside);
            world = Some(layered.world);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    println!("{made} commits were made, {refused} refused");
}

#[test]
fn unrelated_concurrent_changes_do_not_conflict() {
    let layered = OverlayFixture::new(&[("a", "a"), ("d/x", "x"), ("d/y", "y")]);
    layered.write("d/x", "new").write("d/fresh", "f");
    layered.world.write("d/y", "mine");
    layered.world.write("d/z", "mine");
    layered.world.write("b", "mine");
    let (said, _) = layered.committed();
    assert_eq!(said, ["d/fresh created 1", "d/x modified 3"]);
    assert_eq!(layered.world.read("d/y"), "mine");
}

#[test]
fn a_change_while_a_person_reads_is_a_conflict() {
    for path in ["a", "d/x"] {
        let person = ScriptedApprover::approving();
        let layered = OverlayFixture::with(
            FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..setup() },
            &[("a", "a"), ("d/x", "x")],
        );
        layered.write("a", "b").whiteout("d");
        let changed = layered.world.root.join(path);
        person.before_answer(move || fs::write(&changed, "mine").unwrap());
        let answer = layered.commit();
        assert_eq!(answer.error, Some(ErrorKind::Conflict), "{}", answer.text);
        assert_eq!(fs::read_to_string(layered.world.root.join(path)).unwrap(), "mine");
    }
}

#[test]
fn a_layer_that_changes_while_a_person_reads_is_a_conflict() {
    let person = ScriptedApprover::approving();
    let layered = OverlayFixture::with(
        FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..setup() },
        &[("a", "a")],
    );
    layered.write("a", "b").write("evil", "harmless");
    let upper = layered.upper.join("evil");
    person.before_answer(move || {
        let before = fs::metadata(&upper).unwrap().modified().unwrap();
        wait_for_tick(&upper);
        fs::write(&upper, "harmful!").unwrap();
        fs::File::options().write(true).open(&upper).unwrap().set_modified(before).unwrap();
    });
    layered.check_refused(ErrorKind::Conflict, "`evil`");
}
