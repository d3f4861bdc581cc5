//! Crash tests of a commit: it is there or it is not, whenever the process dies.
//!
//! This program starts itself again under `strace`, which kills it as it enters a call of the kernel, or lets the call fail.
//! Every point is tried: the first call of a kind, the second, and so on until the program gets through. With
//! `RINGFENCE_FULL=1` calls that only look are killed at too.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use ringfence_testkit::requirement::{Requirement, skip_without};
use ringfence_testkit::world::WorldDir;
use serde_json::{Value, json};

use crate::fixture::FsFixture;
use crate::overlay::{ModeTree, OverlayFixture, image_names, setup};

/// Says to a second process what it is to do.
const CHILD: &str = "RINGFENCE_LAYER_CHILD";

pub(crate) const KILLED_AT: &[&str] = &[
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "syncfs",
    "renameat2",
    "renameat",
    "unlinkat",
    "mkdirat",
    "symlinkat",
    "fchmod",
    "ftruncate",
    "flock",
];

/// Calls that only look, for a run that takes its time.
pub(crate) const LOOKING: &[&str] =
    &["openat2", "openat", "newfstatat", "fstat", "pread64", "getdents64", "flistxattr", "close"];

const FAILING: &[(&str, &str)] = &[
    ("write", "ENOSPC"),
    ("fsync", "EIO"),
    ("fdatasync", "EIO"),
    ("syncfs", "EIO"),
    ("renameat2", "EIO"),
    ("renameat2", "ENOSPC"),
    ("mkdirat", "ENOSPC"),
    ("symlinkat", "EDQUOT"),
    ("fchmod", "EPERM"),
    ("fchown", "EPERM"),
    ("unlinkat", "EIO"),
];

/// More calls of one kind than a commit makes.
pub(crate) const MANY: usize = 1000;

/// Whether files are synced one by one, or at once.
#[derive(Clone, Copy, Debug)]
enum CommitSize {
    Few,
    Many,
}

/// A commit with every kind of step.
fn overlay_with_every_step(size: CommitSize) -> OverlayFixture {
    let files = [("a", "old"), ("gone", "g"), ("d/x", "x"), ("d/e/y", "y"), ("f", "f"), ("m/x", "x"), ("o/1", "1")];
    let layered = OverlayFixture::new(&files);
    layered.write("a", "new").whiteout("gone").whiteout("d").write("f/in", "in").write("n/s/t", "t").opaque("o");
    symlink("a", layered.upper.join("l")).unwrap();
    let mode = |path: &str, mode| {
        fs::create_dir_all(layered.upper.join(path)).unwrap();
        fs::set_permissions(layered.upper.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("m", 0o700);
    mode("n", 0o555);
    if let CommitSize::Many = size {
        (0..20).for_each(|n| _ = layered.write(&format!("many/{n}"), "many"));
    }
    layered
}

/// The second process: one commit.
#[test]
fn the_second_process() {
    let Ok(child) = std::env::var(CHILD) else { return };
    let asked: Value = serde_json::from_str(&child).unwrap();
    let home = Path::new(asked["home"].as_str().unwrap()).to_owned();
    let world = FsFixture::at(WorldDir::Existing(home), setup());
    let answer = world.call("commit_layer", &asked["arguments"]);
    println!("SAID {}", answer.text);
}

/// Makes a commit under `strace`. Returns its reply, and whether the point was hit at all.
fn commit_under_strace(layered: &OverlayFixture, call: &str, nth: usize, how: &str) -> (Option<Value>, bool) {
    let log = layered.world.host_path().join("strace.log");
    // As the list of tests has it, without the name of the program.
    let test = format!("{}::the_second_process", module_path!().split_once("::").unwrap().1);
    let asked = json!({"home": layered.world.host_path(), "arguments": layered.arguments()}).to_string();
    run_under_strace((&test, CHILD, &asked), &log, call, nth, how)
}

/// Runs one test of this program under `strace`, with a variable that says what it is to do. Returns the reply that it
/// prints, and whether the point was hit at all.
pub(crate) fn run_under_strace(
    (test, variable, asked): (&str, &str, &str),
    log: &Path,
    call: &str,
    nth: usize,
    how: &str,
) -> (Option<Value>, bool) {
    let output = Command::new("strace")
        .args(["-f", "-o"])
        .arg(log)
        .arg(format!("--trace={call}"))
        .arg(format!("--inject={call}:{how}:when={nth}"))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(variable, asked)
        .output()
        .unwrap();
    let log = fs::read_to_string(log).unwrap_or_default();
    let met = log.contains("(INJECTED)") || log.contains("killed by SIGKILL");
    let text = String::from_utf8_lossy(&output.stdout);
    let said =
        text.lines().find_map(|line| line.split_once("SAID ").and_then(|(_, said)| serde_json::from_str(said).ok()));
    (said, met)
}

pub(crate) fn can_trace() -> bool {
    let works = Command::new("strace").arg("true").output().is_ok_and(|output| output.status.success());
    if !works {
        skip_without(Requirement::Strace, "`strace` kills the process");
    }
    works
}

/// The tree before a commit and after one.
fn trees(size: CommitSize) -> (ModeTree, ModeTree) {
    let layered = overlay_with_every_step(size);
    let before = layered.tree();
    layered.committed();
    (before, layered.tree())
}

/// Opens the workspace once more. It must be as it was or as it was to be; then the commit can be undone, or be made.
fn check_whole(layered: OverlayFixture, (before, after): &(ModeTree, ModeTree), point: &str) -> bool {
    let arguments = layered.arguments();
    let upper = layered.upper.clone();
    let world = layered.world.reopened(setup());
    let now = crate::overlay::tree(&world.root);
    assert!(now == *before || now == *after, "{point}: neither before nor after: {now:#?}");
    let changes = world.value("list_changes", &json!({}));
    let states: Vec<&str> =
        changes["changes"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    let made = now == *after;
    assert_eq!(states, if made { vec!["done"] } else { vec![] }, "{point}");
    if made {
        world.value("undo", &json!({"change": changes["changes"][0]["change"]}));
        assert_eq!(crate::overlay::tree(&world.root), *before, "{point}: undone");
        return made;
    }
    let left: Vec<String> = image_names(&world.root).into_iter().filter(|name| name != ".gitignore").collect();
    assert!(left.is_empty(), "{point}: {left:?}");
    // What was renamed back and forth has another time, so this is another run.
    let again = OverlayFixture::restart_over(world, upper);
    assert_ne!(again.arguments(), arguments);
    again.committed();
    assert_eq!(again.tree(), *after, "{point}: made again");
    made
}

fn kill_everywhere(size: CommitSize, calls: &[&str]) {
    let trees = trees(size);
    let (mut points, mut made) = (0, 0);
    for call in calls {
        for nth in 1..MANY {
            let layered = overlay_with_every_step(size);
            let (said, met) = commit_under_strace(&layered, call, nth, "signal=SIGKILL");
            if !met {
                assert!(said.is_some_and(|said| said["ok"] == true), "{call} {nth}");
                break;
            }
            points += 1;
            made += usize::from(check_whole(layered, &trees, &format!("killed at {call} {nth}")));
        }
    }
    println!("killed at {points} points, and the commit was made at {made} of them");
    assert!(points > 0);
}

#[test]
fn a_commit_that_is_killed_anywhere_is_made_or_not() {
    if can_trace() {
        kill_everywhere(CommitSize::Few, KILLED_AT);
    }
}

#[test]
fn a_commit_that_is_killed_while_it_looks_is_made_or_not() {
    if can_trace() && std::env::var_os("RINGFENCE_FULL").is_some() {
        kill_everywhere(CommitSize::Few, LOOKING);
    }
}

#[test]
fn a_commit_of_many_files_that_is_killed_is_made_or_not() {
    if can_trace() {
        kill_everywhere(CommitSize::Many, &["syncfs", "renameat2", "fdatasync"]);
    }
}

#[test]
fn a_commit_in_which_a_call_fails_is_made_or_not() {
    if !can_trace() {
        return;
    }
    for size in [CommitSize::Few, CommitSize::Many] {
        let trees = trees(size);
        for (call, errno) in FAILING {
            for nth in 1..MANY {
                let layered = overlay_with_every_step(size);
                let (said, met) = commit_under_strace(&layered, call, nth, &format!("error={errno}"));
                if !met {
                    break;
                }
                let point = format!("{call} {nth} fails with {errno}");
                let made = check_whole(layered, &trees, &point);
                let Some(said) = said else { continue };
                let unsure = !said["error"]["details"]["committed"].is_null();
                assert!(said["ok"] == made || unsure, "{point}: {said}");
            }
            if matches!(size, CommitSize::Many) && !matches!(*call, "syncfs" | "renameat2") {
                break;
            }
        }
    }
}
