//! Git repositories and command directories, which other programs act on.
//!
//! Each entry of one is harmless. The call that adds the last one needs approval, by any tool, by an undo, and also
//! when several add entries concurrently.

use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use ringfence_fs::ResolverBackend;
use ringfence_kernel::{ErrorKind, Preset};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::patience::PATIENCE;
use ringfence_testkit::world::WorldDir;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::overlay::OverlayFixture;

fn denying_config() -> FsFixtureConfig {
    FsFixtureConfig { preset: Preset::Edits, person: Some(ScriptedApprover::denying()), ..FsFixtureConfig::default() }
}

/// As git sees it.
fn is_repository(directory: &Path) -> bool {
    let has = |name: &str| directory.join(name).symlink_metadata().is_ok();
    has("HEAD") && (has("commondir") || (has("objects") && has("refs")))
}

fn change(world: &FsFixture, tool: &str, arguments: &Value) -> Value {
    world.value(tool, arguments)["change"].clone()
}

#[test]
fn an_undo_or_a_redo_does_not_complete_a_repository() {
    let delete = |path: &str| ("delete_file", json!({"path": path, "recursive": true}));
    let write = |path: &str| ("write_file", json!({"path": path, "content": "ref: refs/heads/x", "createDirs": true}));
    let make = |path: &str| ("create_directory", json!({"path": path}));
    let rename = |from: &str, to: &str| ("move_file", json!({"from": from, "to": to}));
    for (there, first, then) in [
        ("x/refs/a", delete("x/refs"), vec![write("x/HEAD"), make("x/objects")]),
        ("x/objects/a", delete("x/objects"), vec![write("x/HEAD"), make("x/refs")]),
        ("x/HEAD", delete("x/HEAD"), vec![make("x/objects"), make("x/refs")]),
        ("x/commondir", delete("x/commondir"), vec![write("x/HEAD")]),
        ("x/refs/a", rename("x/refs", "x/r"), vec![write("x/HEAD"), make("x/objects")]),
        ("x/HEAD", rename("x/HEAD", "y"), vec![make("x/refs"), make("x/objects")]),
        ("a/b/x/refs/a", rename("a/b/x/refs", "refs2"), vec![write("a/b/x/HEAD"), make("a/b/x/objects")]),
        ("refs/a", delete("refs"), vec![write("HEAD"), make("objects")]),
    ] {
        for all in [false, true] {
            let world = FsFixture::with(denying_config());
            world.write(there, "ref: refs/heads/x");
            let undone = change(&world, first.0, &first.1);
            then.iter().for_each(|(tool, arguments)| _ = world.value(tool, arguments));
            let which = if all { json!({"since": "2000-01-01T00:00:00Z"}) } else { json!({"change": undone}) };
            // What the session made goes with it, if everything does: then there is nothing to be completed.
            if all {
                world.value("undo", &which);
                continue;
            }
            let answer = world.call("undo", &which);
            assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{first:?}: {}", answer.text);
            assert!(answer.text.contains("other programs act on"), "{}", answer.text);
        }
    }
    for (first, then) in [
        (write("x/HEAD"), vec![make("x/objects"), make("x/refs")]),
        (make("x/refs"), vec![write("x/HEAD"), make("x/objects")]),
        (write("x/commondir"), vec![write("x/HEAD")]),
    ] {
        let world = FsFixture::with(denying_config());
        world.write("x/keep", "");
        let done = change(&world, first.0, &first.1);
        let undo = change(&world, "undo", &json!({"change": done}));
        then.iter().for_each(|(tool, arguments)| _ = world.value(tool, arguments));
        assert_eq!(world.error("redo", &json!({"change": undo})), ErrorKind::ApprovalDenied, "{first:?}");
        assert!(!is_repository(&world.root.join("x")));
    }
}

/// A plan that was made before a directory became a repository is refused afterwards.
#[test]
fn nothing_comes_into_a_repository_that_was_none_when_it_was_planned() {
    let patch = "--- a/x/config\n+++ b/x/config\n@@ -1 +1 @@\n-old\n+new\n";
    for (tool, arguments) in [
        ("write_file", json!({"path": "x/config", "content": "new"})),
        ("append_file", json!({"path": "x/config", "content": "new"})),
        ("edit_file", json!({"path": "x/config", "oldText": "old", "newText": "new"})),
        ("apply_patch", json!({"patch": patch})),
        ("copy_file", json!({"from": "new", "to": "x/config", "overwrite": true})),
        ("move_file", json!({"from": "new", "to": "x/config", "overwrite": true})),
        ("undo", json!({})),
    ] {
        for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
            let person = ScriptedApprover::approving();
            let world = FsFixture::with(
                FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..FsFixtureConfig::default() }
                    .on(backend),
            );
            ["x/objects/a", "x/refs/a", "new"].iter().for_each(|path| world.write(path, "new\n"));
            world.write("x/config", "new\n");
            world.value("write_file", &json!({"path": "x/config", "content": "old\n"}));
            let head = world.root.join("x/HEAD");
            person.before_answer(move || std::fs::write(head, "ref: refs/heads/x").unwrap());
            let answer = world.call(tool, &arguments);
            assert_eq!(answer.error, Some(ErrorKind::Conflict), "{tool}: {}", answer.text);
            assert_eq!((world.read("x/config"), world.read("new")), ("old\n".to_owned(), "new\n".to_owned()), "{tool}");
            // The next time it is known.
            let answer = world.call(tool, &arguments);
            assert_eq!(answer.error, None, "{tool}: {}", answer.text);
            assert!(
                person.last_request().reason.contains("other programs act on"),
                "{tool}: {}",
                person.last_request().reason
            );
        }
    }
}

#[test]
fn an_overlay_commit_does_not_change_a_directory_that_became_a_repository() {
    let person = ScriptedApprover::approving();
    let setup = FsFixtureConfig { person: Some(person.clone()), ..crate::overlay::setup() };
    // The secret is what they are asked about.
    let layered = OverlayFixture::with(setup, &[("x/objects/a", "a"), ("x/refs/a", "a"), ("x/.env", "KEY=1")]);
    layered.write("x/config", "[core]\nfsmonitor = evil\n").write("x/.env", "KEY=2");
    let head = layered.world.root.join("x/HEAD");
    person.before_answer(move || std::fs::write(head, "ref: refs/heads/x").unwrap());
    let answer = layered.commit();
    assert_eq!(answer.error, Some(ErrorKind::Conflict), "{}", answer.text);
    assert!(answer.text.contains("other programs act on"), "{}", answer.text);
    assert!(!layered.world.root.join("x/config").exists() && layered.world.read("x/.env") == "KEY=1");
}

#[test]
fn pieces_and_settings_that_a_program_left_are_asked_about_by_folded_names_and_behind_links() {
    for path in ["x/head", "cfg/tasks.json", "cfg/deep/new"] {
        let person = ScriptedApprover::approving();
        let world = FsFixture::in_memory(FsFixtureConfig { person: Some(person.clone()), ..crate::overlay::setup() });
        ["x/objects/a", "x/refs/a", "cfg/tasks.json"].iter().for_each(|path| world.write(path, "old"));
        std::os::unix::fs::symlink("cfg", world.root.join(".vscode")).unwrap();
        let layered = OverlayFixture::start_over(world);
        layered.write(path, "new");
        let answer = layered.commit();
        assert_eq!(answer.error, None, "{path}: {}", answer.text);
        assert!(
            person.last_request().reason.contains("other programs act on"),
            "{path}: {}",
            person.last_request().reason
        );
    }
}

#[test]
fn a_whole_repository_is_asked_about_whatever_it_is_called() {
    for (repository, path) in [("bare", "bare"), ("a/deep/bare", "a"), ("bare", "bare/"), ("worktree", "worktree")] {
        let pieces: &[&str] = match repository {
            "worktree" => &["head", "commondir"],
            _ => &["HEAD", "objects/a", "refs/a"],
        };
        for (tool, arguments) in [
            ("move_file", json!({"from": path, "to": "elsewhere"})),
            ("delete_file", json!({"path": path, "recursive": true})),
        ] {
            let world = FsFixture::with(denying_config());
            pieces.iter().for_each(|piece| world.write(&format!("{repository}/{piece}"), "x"));
            assert_eq!(world.error(tool, &arguments), ErrorKind::ApprovalDenied, "{repository}: {tool}");
        }
    }
    let world = FsFixture::with(denying_config());
    // None of these is a repository.
    for path in ["one/HEAD", "one/objects/x", "two/refs/x", "two/objects/HEAD", "two/x/HEAD"] {
        world.write(path, "x");
    }
    for path in ["one", "two"] {
        world.value("move_file", &json!({"from": path, "to": format!("new-{path}")}));
    }
}

#[test]
fn a_move_of_a_whole_repository_is_undone_only_with_a_yes() {
    let person = ScriptedApprover::approving();
    let world = FsFixture::with(FsFixtureConfig { person: Some(person.clone()), ..denying_config() });
    ["bare/HEAD", "bare/objects/a", "bare/refs/a"].iter().for_each(|path| world.write(path, "x"));
    let moved = change(&world, "move_file", &json!({"from": "bare", "to": "elsewhere"}));
    assert!(person.last_request().reason.contains("other programs act on"), "{}", person.last_request().reason);
    let asked = person.count();
    world.value("undo", &json!({"change": moved}));
    assert_eq!(person.count(), asked + 1);
}

/// Two at once, each with a piece of its own that completes nothing by itself.
#[test]
fn two_sessions_at_once_do_not_complete_a_repository() {
    let write = |path: &str| ("write_file", json!({"path": path, "content": "ref: refs/heads/x"}));
    let make = |path: &str| ("create_directory", json!({"path": path}));
    let rename = |from: &str, to: &str| ("move_file", json!({"from": from, "to": to}));
    let copy = |from: &str, to: &str| ("copy_file", json!({"from": from, "to": to}));
    let append = |path: &str| ("append_file", json!({"path": path, "content": "ref: refs/heads/x"}));
    let patch =
        |path: &str| ("apply_patch", json!({"patch": format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n")}));
    let pairs = [
        [write("x/HEAD"), make("x/refs")],
        [append("x/HEAD"), make("x/refs")],
        [copy("a", "x/HEAD"), rename("d", "x/refs")],
        [rename("a", "x/HEAD"), make("x/refs/heads")],
        [patch("x/HEAD"), patch("x/refs/a")],
        [rename("a", "x/HEAD"), rename("d", "x/refs")],
    ];
    let directory = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" }).unwrap();
    let worlds = [(), ()].map(|()| FsFixture::at(WorldDir::Existing(directory.path().to_owned()), denying_config()));
    let root = &worlds[0].root;
    let mut both_began = 0;
    for round in 0..40 {
        for pair in &pairs {
            for path in ["x", "d", "a"] {
                let _ = std::fs::remove_dir_all(root.join(path)).or_else(|_| std::fs::remove_file(root.join(path)));
            }
            worlds[0].write("x/objects/a", "a");
            worlds[0].write("d/a", "a");
            worlds[0].write("a", "a");
            let barrier = Barrier::new(2);
            let answers = std::thread::scope(|scope| {
                let callers: Vec<_> = worlds
                    .iter()
                    .zip(pair)
                    .map(|(world, (tool, arguments))| {
                        let barrier = &barrier;
                        scope.spawn(move || {
                            barrier.wait();
                            world.call(tool, arguments)
                        })
                    })
                    .collect();
                callers.into_iter().map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
            });
            assert!(!is_repository(&root.join("x")), "round {round}, {pair:?}: {answers:?}");
            let refused = answers.iter().filter_map(|answer| answer.error).collect::<Vec<_>>();
            assert!(refused.len() == 1, "one of two goes ahead: {pair:?}: {answers:?}");
            both_began += usize::from(refused == [ErrorKind::Conflict]);
        }
    }
    println!("in {both_began} of {} rounds both were planned before either was done", 40 * pairs.len());
    control_completes_a_repository(&root.join("control"));
}

/// Checking and then acting without a lock completes one: otherwise the race would prove nothing.
fn control_completes_a_repository(directory: &Path) {
    let until = Instant::now() + PATIENCE;
    while !is_repository(directory) {
        assert!(Instant::now() < until, "the control never made a repository");
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir_all(directory.join("objects")).unwrap();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                if !directory.join("refs").exists() {
                    std::fs::write(directory.join("HEAD"), "ref: refs/heads/x").unwrap();
                }
            });
            scope.spawn(|| {
                barrier.wait();
                if !directory.join("HEAD").exists() {
                    std::fs::create_dir(directory.join("refs")).unwrap();
                }
            });
        });
    }
}

#[test]
fn commands_that_a_shell_finds_are_asked_about() {
    let write = |path: &str| json!({"path": path, "content": "x", "createDirs": true});
    for path in [
        "venv/bin/python",
        ".venv/bin/activate",
        "sub/.venv/Scripts/python.exe",
        "node_modules/.bin/tsc",
        "web/node_modules/.bin/tsc",
        "my-env/bin/ls",
        "my-env/bin/sub/ls",
        "my-env/pyvenv.cfg",
    ] {
        let world = FsFixture::with(denying_config());
        world.write("my-env/pyvenv.cfg", "home = /usr/bin\n");
        world.write("my-env/bin/python", "x");
        assert_eq!(world.error("write_file", &write(path)), ErrorKind::ApprovalDenied, "{path}");
        world.write("plain", "x");
        if path != "my-env/pyvenv.cfg" {
            std::fs::create_dir_all(world.root.join(path).parent().unwrap()).unwrap();
            let arguments = json!({"from": "plain", "to": path});
            assert_eq!(world.error("move_file", &arguments), ErrorKind::ApprovalDenied, "{path}");
            assert_eq!(world.error("copy_file", &arguments), ErrorKind::ApprovalDenied, "{path}");
        }
    }
    let world = FsFixture::with(denying_config());
    for path in ["bin/x", "scripts/x", "my-env/bin/x", "node_modules/x/bin/x.js", "venv/lib/x.py"] {
        world.value("write_file", &write(path));
    }
}

#[test]
fn a_program_installs_an_environment_and_is_asked_before_it_changes_one() {
    let new = OverlayFixture::new(&[("a", "a")]);
    new.write("venv/pyvenv.cfg", "home = /usr/bin\n")
        .write("venv/bin/python", "x")
        .write("venv/lib/python3/site-packages/pip/x.py", "x")
        .write("node_modules/x/.github/workflows/ci.yml", "x")
        .write("node_modules/x/.gitattributes", "x")
        .write("vendor/y/.github/workflows/ci.yml", "x")
        .write("node_modules/.bin/tsc", "x");
    new.committed();
    for path in ["venv/bin/ls", "venv/bin/python", "venv/pyvenv.cfg", "node_modules/.bin/ls"] {
        let there = [
            ("venv/pyvenv.cfg", "a"),
            ("venv/bin/python", "a"),
            ("node_modules/.bin/tsc", "a"),
            ("node_modules/x/y", "a"),
        ];
        let layered = OverlayFixture::new(&there);
        layered.write(path, "x");
        layered.check_refused(ErrorKind::ApprovalDenied, "other programs act on");
    }
}
