//! Whatever was done can be taken back: all of it, or what is named, exactly or not at all.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

use expect_test::expect;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use ringfence_fs::{Backend, Rights};
use ringfence_kernel::{Bits, ErrorKind, Limits, Preset, Principal, Session};
use serde_json::{Value, json};

use crate::person::Person;
use crate::snapshot::{What, snapshot};
use crate::world::{Home, Setup, World};

/// What is in a workspace, without times.
type Tree = Vec<(String, What, u32)>;

fn tree(root: &Path) -> Tree {
    let seen = snapshot(root).into_iter().filter(|(path, _)| !path.as_os_str().is_empty());
    seen.map(|(path, seen)| (path.to_str().unwrap().to_owned(), seen.what, seen.mode)).collect()
}

impl World {
    /// The same workspace, worked on by somebody else.
    fn by_session(mut self, id: &str, principal: Principal) -> Self {
        let old = &self.session;
        let session = Session {
            id: id.to_owned(),
            principal,
            dialect: old.dialect,
            agent: None,
            limits: old.limits.clone(),
            catalog: old.catalog.clone(),
            bits: Bits::default(),
        };
        self.session = Arc::new(session);
        self
    }

    fn by_person(self) -> Self {
        self.by_session("person", Principal::person("a person"))
    }

    fn change(&self, tool: &str, arguments: &Value) -> String {
        self.value(tool, arguments)["change"].as_str().unwrap().to_owned()
    }

    fn undo(&self, change: &str) -> Value {
        self.value("undo", &json!({"change": change}))
    }
}

/// One call, or somebody else's hand.
#[derive(Clone, Debug)]
struct Op(&'static str, Value);

fn path() -> impl Strategy<Value = String> {
    vec(select(vec!["a", "b", "c"]), 1..=3).prop_map(|names| names.join("/"))
}

fn op() -> impl Strategy<Value = Op> {
    let content = || "[xy\n]{0,6}";
    prop_oneof![
        4 => (path(), content()).prop_map(|(path, content)| {
            Op("write_file", json!({"path": path, "content": content, "createDirs": true}))
        }),
        3 => (path(), content()).prop_map(|(path, content)| Op("append_file", json!({"path": path, "content": content}))),
        2 => (path(), "[xy\n]{1,2}", "[xyz]{0,2}").prop_map(|(path, old, new)| {
            Op("edit_file", json!({"path": path, "oldText": old, "newText": new, "replaceAll": true}))
        }),
        2 => (path(), path(), any::<bool>()).prop_map(|(from, to, overwrite)| {
            Op("copy_file", json!({"from": from, "to": to, "overwrite": overwrite}))
        }),
        4 => (path(), path(), any::<bool>()).prop_map(|(from, to, overwrite)| {
            Op("move_file", json!({"from": from, "to": to, "overwrite": overwrite}))
        }),
        3 => path().prop_map(|path| Op("delete_file", json!({"path": path, "recursive": true}))),
        2 => path().prop_map(|path| Op("create_directory", json!({"path": path}))),
        2 => (path(), path(), "[xy]{1,3}").prop_map(|(one, other, new)| {
            let create = |path| format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{new}\n");
            Op("apply_patch", json!({"patch": create(one) + &create(other)}))
        }),
        1 => (path(), "[xy]{1,2}").prop_map(|(path, new)| {
            let patch = format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-x\n+{new}\n--- /dev/null\n+++ b/p\n@@ -0,0 +1 @@\n+p\n");
            Op("apply_patch", json!({"patch": patch}))
        }),
    ]
}

/// A workspace with something of everything in it.
fn furnished(backend: Backend) -> World {
    let world = World::in_memory(Setup::default().on(backend));
    world.write("a/a", "x\n");
    world.write("b/c/a", "xy");
    world.write("c", "x\n");
    std::fs::set_permissions(world.root.join("c"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::set_permissions(world.root.join("a/a"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("a/a", world.root.join("a/b")).unwrap();
    symlink("nowhere", world.root.join("b/b")).unwrap();
    std::fs::hard_link(world.root.join("b/c/a"), world.root.join("b/a")).unwrap();
    world
}

/// Makes the calls, and says which changes came of them.
fn make(world: &World, ops: &[Op]) -> Vec<String> {
    let mut changes = Vec::new();
    for Op(tool, arguments) in ops {
        let answer = world.call(tool, arguments);
        assert_ne!(answer.error, Some(ErrorKind::Internal), "{tool} {arguments}: {}", answer.text);
        let reply: Value = serde_json::from_str(&answer.text).unwrap();
        if let Some(change) = reply["value"]["change"].as_str() {
            changes.push(change.to_owned());
        }
    }
    changes
}

fn check<S: Strategy>(cases: u32, strategy: &S, property: impl Fn(S::Value)) {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let outcome = TestRunner::new(config).run(strategy, |value| {
        property(value);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

fn backends() -> impl Strategy<Value = Backend> {
    select(vec![Backend::Best, Backend::CapStd])
}

#[test]
fn undo_of_everything_gives_the_first_tree_back_one_by_one_or_at_once_and_redo_the_last() {
    check(160, &(vec(op(), 1..16), backends(), any::<bool>()), |(ops, backend, at_once)| {
        let world = furnished(backend);
        let first = tree(&world.root);
        let changes = make(&world, &ops);
        let last = tree(&world.root);
        if changes.is_empty() {
            return;
        }
        let mut undos = Vec::new();
        if at_once {
            undos.push(world.change("undo", &json!({"session": "test"})));
        } else {
            for change in changes.iter().rev() {
                undos.push(world.undo(change)["change"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(tree(&world.root), first, "after undo of {ops:?}");
        for undo in undos.iter().rev() {
            world.value("redo", &json!({"change": undo}));
        }
        assert_eq!(tree(&world.root), last, "after redo of {ops:?}");
        world.value("undo", &json!({"session": "test"}));
        assert_eq!(tree(&world.root), first, "after undo once more of {ops:?}");
    });
}

#[test]
fn undo_of_some_is_exact_or_refused_and_refused_it_changes_nothing() {
    check(160, &(vec(op(), 1..12), backends(), vec(any::<prop::sample::Index>(), 1..6)), |(ops, backend, picks)| {
        let world = furnished(backend);
        let changes = make(&world, &ops);
        if changes.is_empty() {
            return;
        }
        for pick in picks {
            let change = pick.get(&changes);
            let before = tree(&world.root);
            let answer = world.call("undo", &json!({"change": change}));
            match answer.error {
                Some(kind) => {
                    assert_eq!(kind, ErrorKind::Conflict, "{}", answer.text);
                    assert_eq!(tree(&world.root), before, "refused, {ops:?}");
                }
                None => {
                    let reply: Value = serde_json::from_str(&answer.text).unwrap();
                    world.value("redo", &json!({"change": reply["value"]["change"]}));
                    assert_eq!(tree(&world.root), before, "undone and redone, {ops:?}");
                    world.undo(change);
                }
            }
        }
    });
}

#[test]
fn what_several_did_at_once_is_taken_back_whole() {
    const THREADS: usize = 4;
    check(24, &(vec(vec(op(), 6..12), THREADS), backends()), |(all, backend)| {
        let world = furnished(backend);
        let first = tree(&world.root);
        std::thread::scope(|scope| {
            for ops in &all {
                scope.spawn(|| make(&world, ops));
            }
        });
        let last = tree(&world.root);
        if last == first {
            return;
        }
        world.value("undo", &json!({"session": "test"}));
        assert_eq!(tree(&world.root), first);
    });
}

#[test]
fn a_directory_that_came_and_went_comes_and_goes_again() {
    let world = World::new();
    world.value("create_directory", &json!({"path": "a/b"}));
    world.value("delete_file", &json!({"path": "a", "recursive": true}));
    let undo = world.change("undo", &json!({"session": "test"}));
    world.value("redo", &json!({"change": undo}));
    assert_eq!(tree(&world.root), []);
    world.value("undo", &json!({}));
    assert_eq!(tree(&world.root).len(), 2);
}

#[test]
fn what_was_changed_since_is_shown_and_left_alone_unless_a_person_insists() {
    let world = World::new();
    world.write("f", "one\n");
    let change = world.change("write_file", &json!({"path": "f", "content": "two\n"}));
    world.write("f", "three\n");
    let answer = world.call("undo", &json!({"change": change}));
    assert_eq!(answer.error, Some(ErrorKind::Conflict));
    // What is there may not be an agent's to know.
    let reply: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(reply["error"]["details"]["conflicts"], json!(["f"]));
    assert!(!answer.text.contains("bytes"), "{}", answer.text);
    assert_eq!(world.read("f"), "three\n");
    let insist = json!({"change": change, "force": true});
    assert_eq!(world.error("undo", &insist), ErrorKind::PermissionDenied);
    let world = world.by_person();
    let answer = world.call("undo", &json!({"change": change}));
    let reply: Value = serde_json::from_str(&answer.text).unwrap();
    let conflict = &reply["error"]["details"]["conflicts"][0];
    assert_eq!(conflict["path"], "f");
    assert!(conflict["expected"].as_str().unwrap().contains("4 bytes"), "{conflict}");
    assert!(conflict["found"].as_str().unwrap().contains("6 bytes"), "{conflict}");
    let undo = world.change("undo", &insist);
    assert_eq!(world.read("f"), "one\n");
    world.value("redo", &json!({"change": undo}));
    assert_eq!(world.read("f"), "three\n");
}

#[test]
fn an_agent_takes_back_what_its_own_session_did_and_a_person_anything() {
    let world = World::new();
    let change = world.change("write_file", &json!({"path": "f", "content": "x"}));
    let world = world.by_session("other", Principal::agent("another"));
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::NotFound);
    assert_eq!(world.error("undo", &json!({"session": "test"})), ErrorKind::NotFound);
    assert_eq!(world.error("undo", &json!({})), ErrorKind::NotFound);
    assert_eq!(world.value("list_changes", &json!({}))["changes"], json!([]));
    assert_eq!(world.error("show_change", &json!({"change": change})), ErrorKind::NotFound);
    let world = world.by_person();
    assert_eq!(world.value("list_changes", &json!({}))["changes"][0]["change"], json!(change));
    assert_eq!(world.value("undo", &json!({}))["undone"], json!([change]));
    assert!(!world.root.join("f").exists());
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Conflict);
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_would_be() {
    let world = World::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let before = snapshot(&world.root);
    let said = world.value("undo", &json!({"dryRun": true}));
    let diff =
        "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-two\n\\ No newline at end of file\n+one\n\\ No newline at end of file\n";
    assert_eq!(said, json!({"undone": [change], "paths": ["f"], "dryRun": true, "diff": diff}));
    assert_eq!(snapshot(&world.root), before);
    assert_eq!(world.value("list_changes", &json!({}))["changes"].as_array().unwrap().len(), 1);
}

/// What differs from run to run is the digest of a directory.
fn without_digests(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(" with ") {
        Some((start, _)) if line.contains("a directory") => start,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_person_is_shown_what_an_undo_would_do_to_contents() {
    let person = Person::saying_yes();
    let world = World::with(Setup { person: Some(person.clone()), preset: Preset::Ask, ..Setup::default() });
    world.write("f", "one\ntwo\n");
    world.write("log", "1\n");
    world.write("d/inside", "x\n");
    world.value("edit_file", &json!({"path": "f", "oldText": "two", "newText": "2"}));
    world.value("edit_file", &json!({"path": "f", "oldText": "one", "newText": "1"}));
    world.value("append_file", &json!({"path": "log", "content": "2\n"}));
    world.value("delete_file", &json!({"path": "d", "recursive": true}));
    world.value("write_file", &json!({"path": "new", "content": "n\n"}));
    world.value("move_file", &json!({"from": "new", "to": "newer"}));
    world.value("undo", &json!({"session": "test"}));
    let request = person.last();
    assert!(!request.secret);
    let shown = request.preview.split_once('\n').unwrap();
    assert!(shown.0.starts_with("take back c-") && shown.0.contains("overwrite `f`"), "{}", shown.0);
    expect![[r"
        move `newer` to `new`
        --- a/new
        +++ /dev/null
        @@ -1,1 +0,0 @@
        -n
        `d`: nothing becomes a directory
        --- a/log
        +++ b/log
        @@ -1,2 +1,1 @@
         1
        -2
        --- a/f
        +++ b/f
        @@ -1,2 +1,2 @@
        -1
        -2
        +one
        +two"]]
    .assert_eq(&without_digests(shown.1));
}

#[test]
fn what_an_undo_shows_of_a_secret_is_for_the_one_who_is_asked_alone() {
    let person = Person::saying_yes();
    let world = World::with(Setup { person: Some(person.clone()), ..Setup::default() });
    world.write(".env", "KEY=hunter2\n");
    let change = world.change("write_file", &json!({"path": ".env", "content": "KEY=other\n"}));
    world.undo(&change);
    let request = person.last();
    assert!(request.secret && request.preview.contains("+KEY=hunter2"), "{}", request.preview);
    assert!(!format!("{:?}", request.relayed()).contains("hunter2"));
    assert!(request.relayed().summary.contains("overwrite `.env`"));
    // To be shown it without doing it is to read it.
    let world = world.reopened(Setup::default());
    let change = world.value("list_changes", &json!({}))["changes"][1]["change"].clone();
    assert_eq!(world.error("undo", &json!({"dryRun": true, "change": change})), ErrorKind::Conflict);
    let undo = world.value("list_changes", &json!({}))["changes"][0]["change"].clone();
    assert_eq!(world.error("undo", &json!({"dryRun": true, "change": undo})), ErrorKind::ApprovalDenied);
}

#[test]
fn undo_since_a_time_takes_back_what_came_after_it() {
    let world = World::new();
    world.value("write_file", &json!({"path": "f", "content": "one"}));
    let time = world.value("list_changes", &json!({}))["changes"][0]["time"].as_str().unwrap().to_owned();
    assert_eq!(world.error("undo", &json!({"since": "9999-01-01T00:00:00Z"})), ErrorKind::NotFound);
    assert_eq!(world.error("undo", &json!({"since": "yesterday"})), ErrorKind::InvalidArgs);
    world.value("undo", &json!({"since": time}));
    assert!(!world.root.join("f").exists());
}

#[test]
fn changes_on_several_mounts_are_undone_and_redone_together_or_not_at_all() {
    let world = World::with(Setup { mounts: vec![("other", Rights::ReadWrite)], ..Setup::default() });
    let other = world.host_path().join("mount-other");
    world.write("f", "one");
    std::fs::write(other.join("g"), "one").unwrap();
    world.value("write_file", &json!({"path": "f", "content": "two"}));
    world.value("write_file", &json!({"path": "@other/g", "content": "two"}));
    world.value("delete_file", &json!({"path": "@other/g"}));
    let both = || (world.read("f"), std::fs::read_to_string(other.join("g")).ok());
    let (first, last) = (("one".to_owned(), Some("one".to_owned())), ("two".to_owned(), None));
    let session = json!({"session": "test"});
    // Something in the place of the last one: nothing is touched, on the other mount neither.
    std::fs::write(other.join("g"), "of a person").unwrap();
    let answer = world.call("undo", &session);
    assert_eq!(answer.error, Some(ErrorKind::Conflict), "{}", answer.text);
    assert_eq!((answer.text.contains("@other/g"), world.read("f")), (true, "two".to_owned()));
    std::fs::remove_file(other.join("g")).unwrap();
    // A directory that lets nothing come is known before, too.
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o555)).unwrap();
    assert_eq!(world.error("undo", &session), ErrorKind::PermissionDenied);
    assert_eq!(both(), last);
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = world.value("undo", &json!({"session": "test", "dryRun": true}));
    assert!(said["diff"].as_str().unwrap().contains("+++ b/@other/g"), "{said}");
    let undo = world.value("undo", &session);
    assert_eq!((undo["undone"].as_array().unwrap().len(), &undo["paths"]), (3, &json!(["f", "@other/g"])));
    assert_eq!(both(), first);
    world.value("redo", &json!({"change": undo["change"]}));
    assert_eq!(both(), last);
    world.value("undo", &session);
    world.value("redo", &json!({}));
    assert_eq!(both(), last);
    // The last change is on one of them.
    world.value("undo", &json!({}));
    assert_eq!(both(), ("two".to_owned(), Some("two".to_owned())));
}

#[test]
fn a_forged_keep_is_never_used_and_stops_every_change() {
    let world = World::new();
    world.write("f", "one");
    world.write(".ringfence/c-00-0", "forged");
    for (tool, arguments) in [
        ("write_file", json!({"path": "f", "content": "two"})),
        ("append_file", json!({"path": "f", "content": "two"})),
        ("delete_file", json!({"path": "f"})),
        ("create_directory", json!({"path": "d"})),
        ("move_file", json!({"from": "f", "to": "g"})),
    ] {
        let answer = world.call(tool, &arguments);
        assert_eq!(answer.error, Some(ErrorKind::Unavailable), "{}", answer.text);
        assert!(answer.text.contains("move it away"), "{}", answer.text);
    }
    assert_eq!(world.value("read_file", &json!({"path": "f"}))["content"], "one");
    std::fs::rename(world.root.join(".ringfence"), world.root.join("moved")).unwrap();
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    // One that takes the place of ours later is no better.
    std::fs::rename(world.root.join(".ringfence"), world.root.join("ours")).unwrap();
    world.write(format!(".ringfence/{change}-0").as_str(), "forged");
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Unavailable);
    assert_eq!(world.read("f"), "two");
    std::fs::remove_dir_all(world.root.join(".ringfence")).unwrap();
    std::fs::rename(world.root.join("ours"), world.root.join(".ringfence")).unwrap();
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
}

/// Where the journal of the workspace is.
fn journal_of(world: &World) -> PathBuf {
    let journals = std::fs::read_dir(world.host_path().join("state/journal")).unwrap();
    journals.last().unwrap().unwrap().path()
}

#[test]
fn a_keep_that_was_made_anew_with_the_same_inode_is_not_ours() {
    let world = World::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let record = journal_of(&world).join("keep");
    let whole = std::fs::read_to_string(&record).unwrap();
    let Some((id, born)) = whole.trim_end().split_once(':') else {
        println!("this file system does not say when a file was made: nothing was tested");
        return;
    };
    let born: i128 = born.parse().unwrap();
    std::fs::write(&record, format!("{id}:{}\n", born - 1)).unwrap();
    let world = world.reopened(Setup::default());
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Unavailable);
    assert_eq!(world.error("write_file", &json!({"path": "g", "content": "x"})), ErrorKind::Unavailable);
    // Earlier versions did not write it down, and now it is.
    std::fs::write(&record, format!("{id}\n")).unwrap();
    let world = world.reopened(Setup::default());
    world.undo(&change);
    assert_eq!((world.read("f"), std::fs::read_to_string(&record).unwrap()), ("one".to_owned(), whole));
}

#[test]
fn a_workspace_that_was_made_anew_with_the_same_inode_has_no_changes_yet() {
    let world = World::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let journal = journal_of(&world);
    let name = journal.file_name().unwrap().to_str().unwrap().to_owned();
    let [device, inode, born] = name.split('-').collect::<Vec<_>>()[..] else {
        println!("this file system does not say when a file was made: nothing was tested");
        return;
    };
    let born: i128 = born.parse().unwrap();
    let before = journal.with_file_name(format!("{device}-{inode}-{}", born - 1));
    std::fs::rename(&journal, &before).unwrap();
    let world = world.reopened(Setup::default());
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::NotFound);
    // What the other one kept is not of this one.
    assert_eq!(world.error("write_file", &json!({"path": "f", "content": "x"})), ErrorKind::Unavailable);
    // Earlier versions called it by device and inode alone.
    std::fs::remove_dir_all(&journal).unwrap();
    std::fs::rename(&before, journal.with_file_name(format!("{device}-{inode}"))).unwrap();
    let world = world.reopened(Setup::default());
    world.undo(&change);
    assert_eq!((world.read("f"), journal.exists()), ("one".to_owned(), true));
}

#[test]
fn a_pre_image_that_was_changed_or_removed_is_not_restored() {
    let world = World::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let image = world.root.join(format!(".ringfence/{change}-0"));
    assert_eq!(std::fs::metadata(world.root.join(".ringfence")).unwrap().mode() & 0o777, 0o700);
    std::fs::write(&image, "eno").unwrap();
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Conflict);
    std::fs::remove_file(&image).unwrap();
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Conflict);
    assert_eq!(world.read("f"), "two");
}

#[test]
fn nobody_sees_or_names_the_keep() {
    let world = World::new();
    world.write("f", "needle");
    world.value("write_file", &json!({"path": "f", "content": "two"}));
    symlink(".ringfence", world.root.join("link")).unwrap();
    let listed = world.value("list_directory", &json!({"path": ".", "recursive": true, "includeHidden": true}));
    assert!(!listed.to_string().contains("ringfence"), "{listed}");
    let found = world.value("find_files", &json!({"path": ".", "glob": "**"}));
    assert!(!found.to_string().contains("ringfence"), "{found}");
    assert_eq!(world.value("search_files", &json!({"path": ".", "pattern": "needle"}))["matches"], json!([]));
    for path in [".ringfence", ".ringfence/.gitignore", "./.ringfence/", "link/.gitignore"] {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("list_directory", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x"})),
            ("delete_file", json!({"path": path, "recursive": true})),
            ("get_file_info", json!({"path": path})),
            ("move_file", json!({"from": path, "to": "x"})),
            ("search_files", json!({"path": path, "pattern": "x"})),
        ] {
            world.error(tool, &arguments);
        }
    }
    assert_eq!(world.error("list_directory", &json!({"path": "link"})), ErrorKind::PermissionDenied);
    assert!(world.root.join(".ringfence/.gitignore").exists());
}

#[test]
fn what_is_kept_stays_within_its_quota_and_the_oldest_goes_first() {
    let limits = Limits { undo_session_bytes: 8222, undo_bytes: 12_320, ..Setup::default().limits };
    let world = World::with(Setup { limits, ..Setup::default() });
    world.write("f", "0123456789");
    let write = |text: &str| world.change("write_file", &json!({"path": "f", "content": text}));
    let changes = [write("1-23456789"), write("2-23456789"), write("3-23456789")];
    let kept = || std::fs::read_dir(world.root.join(".ringfence")).unwrap().count() - 1;
    assert_eq!(kept(), 2);
    let listed = world.value("list_changes", &json!({}));
    let states: Vec<&str> =
        listed["changes"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["done", "done", "gone"]);
    world.undo(&changes[2]);
    world.undo(&changes[1]);
    assert_eq!(world.error("undo", &json!({"change": changes[0]})), ErrorKind::Conflict);
    assert_eq!(world.read("f"), "1-23456789");
    // What does not fit at all is asked about, and nobody is there.
    world.write("large", "x".repeat(4200));
    let answer = world.call("write_file", &json!({"path": "large", "content": "y"}));
    assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{}", answer.text);
    assert!(answer.text.contains("cannot be undone"), "{}", answer.text);
    assert_eq!(world.error("delete_file", &json!({"path": "large"})), ErrorKind::ApprovalDenied);
    // The pre-images of one session do not go for those of another.
    let world = world.by_session("other", Principal::agent("another"));
    world.write("g", "0123456789");
    world.write("h", "x".repeat(21));
    world.value("write_file", &json!({"path": "g", "content": "x"}));
    assert_eq!(world.error("write_file", &json!({"path": "h", "content": "x"})), ErrorKind::ApprovalDenied);
    let world = world.by_person();
    let listed = world.value("list_changes", &json!({"session": "test"}));
    assert_eq!(listed["changes"].as_array().unwrap().iter().filter(|one| one["state"] == "gone").count(), 1);
}

#[test]
fn an_undo_that_would_displace_more_than_is_kept_is_asked_about() {
    let limits = Limits { undo_session_bytes: 10_000, ..Setup::default().limits };
    let setup = |person| Setup { limits: limits.clone(), person, ..Setup::default() };
    let world = World::with(setup(None));
    let created = world.change("write_file", &json!({"path": "new", "content": "x".repeat(20_000)}));
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    world.write("f", "x".repeat(20_000));
    let answer = world.call("undo", &json!({"change": created}));
    assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{}", answer.text);
    assert!(answer.text.contains("cannot be undone"), "{}", answer.text);
    let said = world.value("undo", &json!({"change": created, "dryRun": true}));
    assert_eq!(said["lost"], json!(true));
    let insist = json!({"change": change, "force": true});
    let world = world.by_person();
    assert_eq!(world.error("undo", &json!({"change": created})), ErrorKind::WriteLimit);
    assert_eq!(world.error("undo", &insist), ErrorKind::ApprovalDenied);
    assert_eq!(world.read("f").len(), 20_000);
    let world = world.reopened(setup(Some(Person::saying_yes()))).by_person();
    let done = world.value("undo", &insist);
    assert_eq!((done["lost"].clone(), world.read("f")), (json!(true), "one".to_owned()));
    assert_eq!(world.error("redo", &json!({"change": done["change"]})), ErrorKind::Conflict);
    assert_eq!(std::fs::read_dir(world.root.join(".ringfence")).unwrap().count(), 1, "only what hides it from git");
    assert_eq!(world.value("list_changes", &json!({}))["changes"][0]["state"], "gone");
}

#[test]
fn a_change_never_lets_go_what_it_keeps_itself() {
    let limits = Limits { undo_session_bytes: 10_000, ..Setup::default().limits };
    let world = World::with(Setup { limits, ..Setup::default() });
    for name in ["a", "b", "c"] {
        world.write(name, "x\n");
    }
    let patch = |names: &[&str], old: &str, new: &str| {
        let one = |name: &&str| format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{old}\n+{new}\n");
        json!({"patch": names.iter().map(one).collect::<String>()})
    };
    // All of it together must fit, not each for itself.
    assert_eq!(world.error("apply_patch", &patch(&["a", "b", "c"], "x", "y")), ErrorKind::ApprovalDenied);
    let first = world.change("write_file", &json!({"path": "c", "content": "y\n"}));
    let second = world.change("apply_patch", &patch(&["a", "b"], "x", "y"));
    assert_eq!(world.error("undo", &json!({"change": first})), ErrorKind::Conflict);
    let undo = world.undo(&second)["change"].as_str().unwrap().to_owned();
    // Brought back, they are kept once and not twice.
    world.value("redo", &json!({"change": undo}));
    world.undo(&second);
    assert_eq!((world.read("a"), world.read("b")), ("x\n".to_owned(), "x\n".to_owned()));
}

#[test]
fn what_a_redo_brought_back_stays_when_the_one_who_did_it_changes_more() {
    let limits = Limits { undo_session_bytes: 5000, ..Setup::default().limits };
    let world = World::with(Setup { limits, ..Setup::default() });
    world.write("f", "one");
    world.write("g", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let world = world.by_person();
    let undo = world.undo(&change)["change"].as_str().unwrap().to_owned();
    world.value("redo", &json!({"change": undo}));
    world.value("write_file", &json!({"path": "g", "content": "two"}));
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn empty_files_are_not_kept_for_nothing() {
    let limits = Limits { undo_session_bytes: 40_960, ..Setup::default().limits };
    let world = World::with(Setup { limits, ..Setup::default() });
    for number in 0..10 {
        world.write(&format!("few/{number}"), "");
        world.write(&format!("many/{number}"), "");
    }
    std::fs::remove_file(world.root.join("few/9")).unwrap();
    assert_eq!(world.error("delete_file", &json!({"path": "many", "recursive": true})), ErrorKind::ApprovalDenied);
    let first = world.change("delete_file", &json!({"path": "few", "recursive": true}));
    let second = world.change("delete_file", &json!({"path": "many/0"}));
    assert_eq!(world.error("undo", &json!({"change": first})), ErrorKind::Conflict);
    world.undo(&second);
}

#[test]
fn what_is_too_large_to_be_hashed_is_known_by_its_identity() {
    let limits = Limits { hash_bytes: 4, ..Setup::default().limits };
    let world = World::with(Setup { limits, ..Setup::default() });
    for name in ["replaced", "deleted", "moved", "linked"] {
        world.write(name, "a long one");
    }
    std::fs::hard_link(world.root.join("linked"), world.root.join("other")).unwrap();
    let first = tree(&world.root);
    world.value("write_file", &json!({"path": "replaced", "content": "another long one"}));
    world.value("write_file", &json!({"path": "linked", "content": "another long one"}));
    world.value("delete_file", &json!({"path": "deleted"}));
    world.value("move_file", &json!({"from": "moved", "to": "there"}));
    let last = tree(&world.root);
    let undo = world.change("undo", &json!({"session": "test"}));
    assert_eq!(tree(&world.root), first);
    world.value("redo", &json!({"change": undo}));
    assert_eq!(tree(&world.root), last);
    // Somebody wrote to it since, even if the same.
    world.write("replaced", "another long one");
    let changes = world.value("list_changes", &json!({}));
    let write = changes["changes"].as_array().unwrap().iter().find(|one| one["paths"] == json!(["replaced"])).unwrap();
    assert_eq!(world.error("undo", &json!({"change": write["change"]})), ErrorKind::Conflict);
}

#[test]
fn undo_is_policed_as_what_it_does() {
    let world = World::with(Setup { preset: Preset::Ask, ..Setup::default() });
    world.value("write_file", &json!({"path": "f", "content": "x"}));
    // To take back that it came to be is to delete it.
    let answer = world.call("undo", &json!({}));
    assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{}", answer.text);
    assert_eq!(world.read("f"), "x");
    let moved = world.change("move_file", &json!({"from": "f", "to": "g"}));
    world.undo(&moved);
    assert_eq!(world.read("f"), "x");
}

#[test]
fn a_change_is_shown_as_a_diff_before_and_after_it_was_undone() {
    let world = World::new();
    world.write("f", "one\ntwo\n");
    let change = world.change("edit_file", &json!({"path": "f", "oldText": "two", "newText": "2"}));
    let expected = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
    assert_eq!(world.value("show_change", &json!({"change": change}))["diff"], expected);
    world.undo(&change);
    assert_eq!(world.value("show_change", &json!({"change": change}))["diff"], expected);
    let change = world.change("append_file", &json!({"path": "f", "content": "three\n"}));
    let said = world.value("show_change", &json!({"change": change}));
    assert_eq!(said["diff"], "--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n one\n two\n+three\n");
    let change = world.change("write_file", &json!({"path": "bin", "content": "AP8=", "encoding": "base64"}));
    let said = world.value("show_change", &json!({"change": change}));
    assert!(said["diff"].as_str().unwrap().contains("2 bytes"), "{said}");
}

#[test]
fn a_log_that_became_long_is_written_anew_and_what_it_listed_can_be_undone() {
    let world = World::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let undo = world.undo(&change)["change"].as_str().unwrap().to_owned();
    let log = journal_of(&world).join("log");
    let mut text = std::fs::read_to_string(&log).unwrap();
    let lines = text.lines().count();
    for number in 0..100_000 {
        let intent = json!({"record": "intent", "change": format!("v-{number}"), "at": "2026-01-01T00:00:00.000Z",
            "session": "test", "call": "1", "tool": "write_file", "effects": []});
        text += &format!("{intent}\n{}\n", json!({"record": "void", "change": format!("v-{number}")}));
    }
    std::fs::write(&log, text).unwrap();
    world.restart();
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), lines);
    // Whoever had the old one open goes over to the new.
    world.value("redo", &json!({"change": undo}));
    assert_eq!(world.read("f"), "two");
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn a_long_log_keeps_every_change_of_which_something_is_kept() {
    let world = World::new();
    for name in ["f", "g"] {
        world.write(name, "one");
    }
    let change = |name: &str| world.change("write_file", &json!({"path": name, "content": "two"}));
    let (mine, over) = (change("f"), change("g"));
    let log = journal_of(&world).join("log");
    // The second is of a session that is long over.
    let mut text = String::new();
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if line["change"] == json!(over) && line["record"] == "intent" {
            line["session"] = json!("old");
            line["at"] = json!("2020-01-01T00:00:00.000Z");
        }
        text += &format!("{line}\n");
    }
    text += &many_changes(0, 100_000);
    std::fs::write(&log, text).unwrap();
    world.restart();
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 2 * 10_001);
    let kept = || {
        let names = std::fs::read_dir(world.root.join(".ringfence")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(|name| name != ".gitignore")
    };
    assert_eq!(kept().collect::<Vec<_>>(), [format!("{mine}-0")]);
    world.undo(&mine);
    assert_eq!(world.read("f"), "one");
    assert_eq!(world.error("undo", &json!({"change": over})), ErrorKind::NotFound);
}

/// Lines of so many changes that were made long ago and of which nothing is kept.
fn many_changes(from: usize, count: usize) -> String {
    changes_with("1", from..from + count)
}

/// Enough of them for a long log are few.
fn long_changes(from: usize, count: usize) -> String {
    changes_with(&"1".repeat(800), from..from + count)
}

fn changes_with(call: &str, numbers: Range<usize>) -> String {
    let mut text = String::new();
    for number in numbers {
        let intent = json!({"record": "intent", "change": format!("n-{number}"), "at": "2026-01-01T00:00:00.000Z",
            "session": "many", "call": call, "tool": "create_directory", "effects": []});
        text += &format!("{intent}\n{}\n", json!({"record": "done", "change": format!("n-{number}")}));
    }
    text
}

/// Adds lines to the log, as another process does.
fn add_lines(world: &World, text: &str) {
    let journal = journal_of(world);
    let lock = File::open(journal.join("lock")).unwrap();
    lock.lock().unwrap();
    let mut log = OpenOptions::new().append(true).open(journal.join("log")).unwrap();
    log.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_log_that_becomes_long_is_written_anew_by_a_server_that_never_ends() {
    let world = World::new();
    world.write("f", "one");
    let first = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let log = journal_of(&world).join("log");
    let lines = || std::fs::read_to_string(&log).unwrap().lines().count();
    for round in 0..2 {
        add_lines(&world, &many_changes(round * 100_000, 100_000));
        let content = format!("round {round}");
        let change = world.change("write_file", &json!({"path": "g", "content": content}));
        // The first, of which something is kept, and the last 10,000.
        assert_eq!(lines(), 2 * 10_001);
        assert_eq!(world.value("show_change", &json!({"change": change}))["change"], json!(change));
    }
    world.undo(&first);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn a_change_that_was_taken_back_and_brought_back_holds_after_the_log_was_shortened() {
    let world = World::new();
    world.write("f", "one");
    let first = world.change("write_file", &json!({"path": "f", "content": "two"}));
    world.undo(&first);
    world.value("redo", &json!({}));
    add_lines(&world, &many_changes(0, 100_000));
    world.change("write_file", &json!({"path": "g", "content": "x"}));
    assert!(std::fs::read_to_string(journal_of(&world).join("log")).unwrap().lines().count() < 21_000);
    let world = world.reopened(Setup::default());
    assert_eq!(world.read("f"), "two");
    world.undo(&first);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn a_long_log_that_cannot_become_shorter_stays_until_it_can() {
    let world = World::new();
    world.write("f", "one");
    let log = journal_of(&world).join("log");
    // One change that is long by itself, and among the last.
    let long = json!({"record": "intent", "change": "long", "at": "2026-01-01T00:00:00.000Z", "session": "many",
        "call": "1".repeat(17 << 20), "tool": "create_directory", "effects": []});
    add_lines(&world, &format!("{long}\n{}\n", json!({"record": "done", "change": "long"})));
    let inode = || std::fs::metadata(&log).unwrap().ino();
    let before = inode();
    let first = world.change("write_file", &json!({"path": "f", "content": "two"}));
    assert_eq!(inode(), before, "it was written anew, with all that it had");
    add_lines(&world, &many_changes(0, 100_000));
    world.change("write_file", &json!({"path": "f", "content": "three"}));
    assert_ne!(inode(), before, "it is as long as before");
    assert!(std::fs::metadata(&log).unwrap().len() < 4 << 20);
    world.value("undo", &json!({}));
    world.undo(&first);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn changes_of_several_processes_stay_listed_while_one_of_them_shortens_the_log() {
    let world = World::new();
    let log = journal_of(&world).join("log");
    let other = |_| World::at(Home::Theirs(world.host_path().to_owned()), Setup::default());
    let others: Vec<World> = (0..3).map(other).collect();
    // What is made keeps nothing, and what is replaced does.
    (0..3).for_each(|number| world.write(&format!("f{number}"), "as it was"));
    let lines: Vec<String> = (0..3).map(|round| long_changes(round * 20_000, 20_000)).collect();
    let inode = || std::fs::metadata(&log).unwrap().ino();
    let added = AtomicBool::new(false);
    let made: Vec<String> = std::thread::scope(|scope| {
        let work = |(number, world): (usize, &World)| {
            let content = |round: usize| json!({"path": format!("f{number}"), "content": format!("{round}")});
            let rounds = (0..).take_while(|round| *round < 30 || !added.load(Ordering::SeqCst));
            rounds.map(|round| world.change("write_file", &content(round))).collect::<Vec<_>>()
        };
        let working: Vec<_> = others.iter().enumerate().map(|each| scope.spawn(move || work(each))).collect();
        for lines in &lines {
            let before = inode();
            add_lines(&world, lines);
            while inode() == before && !working.iter().any(ScopedJoinHandle::is_finished) {
                std::thread::yield_now();
            }
            assert_ne!(inode(), before, "nobody wrote it anew");
        }
        added.store(true, Ordering::SeqCst);
        working.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(made.len() >= 90);
    let text = std::fs::read_to_string(&log).unwrap();
    let ours: Vec<Value> =
        text.lines().filter(|line| line.contains("c-")).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut listed: Vec<_> =
        ours.iter().map(|line| (line["change"].as_str().unwrap(), line["record"].as_str().unwrap())).collect();
    let mut wanted: Vec<_> =
        made.iter().flat_map(|change| ["intent", "done"].map(|record| (change.as_str(), record))).collect();
    listed.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
}

#[test]
fn a_line_that_was_cut_goes_and_others_stay() {
    let world = World::new();
    let change = world.change("write_file", &json!({"path": "f", "content": "x"}));
    let log = journal_of(&world).join("log");
    let whole = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, format!("{whole}{{\"record\":\"inte")).unwrap();
    world.value("write_file", &json!({"path": "g", "content": "x"}));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.starts_with(&whole) && text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    world.undo(&change);
    assert!(!world.root.join("f").exists());
}

#[test]
fn a_secret_stays_one_in_the_journal_and_after_an_undo() {
    let asking = |person| Setup { person, ..Setup::default() };
    let world = World::with(asking(None));
    world.write(".env", "KEY=hunter2\n");
    std::fs::hard_link(world.root.join(".env"), world.root.join("notes.txt")).unwrap();
    assert_eq!(world.error("read_file", &json!({"path": "notes.txt"})), ErrorKind::ApprovalDenied);
    let world = world.reopened(asking(Some(Person::saying_yes())));
    let change = world.change("write_file", &json!({"path": "notes.txt", "content": "x"}));
    let world = world.reopened(asking(None));
    let shown = world.call("show_change", &json!({"change": change}));
    assert_eq!(shown.error, Some(ErrorKind::ApprovalDenied), "{}", shown.text);
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::ApprovalDenied);
    let world = world.reopened(asking(Some(Person::saying_yes())));
    world.undo(&change);
    let world = world.reopened(asking(None));
    let read = world.call("read_file", &json!({"path": "notes.txt"}));
    assert_eq!(read.error, Some(ErrorKind::ApprovalDenied), "{}", read.text);
}

#[test]
fn after_a_restart_what_is_kept_is_no_more_sensitive_than_before() {
    let world = World::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let world = world.reopened(Setup::default());
    world.value("list_directory", &json!({"path": "."}));
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
    let world = world.reopened(Setup::default());
    world.value("write_file", &json!({"path": "f", "content": "three"}));
}
