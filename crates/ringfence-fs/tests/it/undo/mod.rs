//! Undo: all changes or those that are named, exactly or not at all.

mod images;
mod log;
mod newer_version;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use expect_test::expect;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ringfence_fs::{MountAccess, ResolverBackend};
use ringfence_kernel::{CallLimits, ErrorKind, Preset, Principal, ReplyForm, Session, SessionMemory, SessionTaint};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::model::check;
use crate::snapshot::{SnapshotEntryKind, snapshot};

/// The tree of a workspace, without times.
type UndoTestTree = Vec<(String, SnapshotEntryKind, u32)>;

fn tree(root: &Path) -> UndoTestTree {
    let seen = snapshot(root).into_iter().filter(|(path, _)| !path.as_os_str().is_empty());
    seen.map(|(path, seen)| (path.to_str().unwrap().to_owned(), seen.kind, seen.mode)).collect()
}

impl FsFixture {
    /// The same workspace, in another session.
    fn by_session(mut self, id: &str, principal: Principal) -> Self {
        let old = &self.session;
        let session = Session {
            id: id.to_owned(),
            principal,
            dialect: old.dialect,
            agent: None,
            limits: old.limits.clone(),
            catalog: old.catalog.clone(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        };
        self.session = Arc::new(session);
        self
    }

    fn by_person(self) -> Self {
        self.by_session("person", Principal::person("a person"))
    }

    /// The same session, with other limits.
    fn with_limits(mut self, limits: CallLimits) -> Self {
        let old = &self.session;
        self.session = Arc::new(Session { limits, ..old.for_principal(&*old.id, old.principal.clone()) });
        self
    }

    fn change(&self, tool: &str, arguments: &Value) -> String {
        self.value(tool, arguments)["change"].as_str().unwrap().to_owned()
    }

    fn undo(&self, change: &str) -> Value {
        self.value("undo", &json!({"change": change}))
    }
}

/// One call, or a change by another program.
#[derive(Clone, Debug)]
struct UndoTestCall(&'static str, Value);

fn path() -> impl Strategy<Value = String> {
    vec(select(vec!["a", "b", "c"]), 1..=3).prop_map(|names| names.join("/"))
}

fn op() -> impl Strategy<Value = UndoTestCall> {
    let content = || "[xy\n]{0,6}";
    prop_oneof![
        4 => (path(), content()).prop_map(|(path, content)| {
            UndoTestCall("write_file", json!({"path": path, "content": content, "createDirs": true}))
        }),
        3 => (path(), content()).prop_map(|(path, content)| UndoTestCall("append_file", json!({"path": path, "content": content}))),
        2 => (path(), "[xy\n]{1,2}", "[xyz]{0,2}").prop_map(|(path, old, new)| {
            UndoTestCall("edit_file", json!({"path": path, "oldText": old, "newText": new, "replaceAll": true}))
        }),
        2 => (path(), path(), any::<bool>()).prop_map(|(from, to, overwrite)| {
            UndoTestCall("copy_file", json!({"from": from, "to": to, "overwrite": overwrite}))
        }),
        4 => (path(), path(), any::<bool>()).prop_map(|(from, to, overwrite)| {
            UndoTestCall("move_file", json!({"from": from, "to": to, "overwrite": overwrite}))
        }),
        3 => path().prop_map(|path| UndoTestCall("delete_file", json!({"path": path, "recursive": true}))),
        2 => path().prop_map(|path| UndoTestCall("create_directory", json!({"path": path}))),
        2 => (path(), path(), "[xy]{1,3}").prop_map(|(one, other, new)| {
            let create = |path| format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{new}\n");
            UndoTestCall("apply_patch", json!({"patch": create(one) + &create(other)}))
        }),
        1 => (path(), "[xy]{1,2}").prop_map(|(path, new)| {
            let patch = format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-x\n+{new}\n--- /dev/null\n+++ b/p\n@@ -0,0 +1 @@\n+p\n");
            UndoTestCall("apply_patch", json!({"patch": patch}))
        }),
    ]
}

/// A workspace with something of everything in it.
fn populated_fixture(setup: FsFixtureConfig) -> FsFixture {
    let world = FsFixture::in_memory(setup);
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
fn run_calls(world: &FsFixture, ops: &[UndoTestCall]) -> Vec<String> {
    let mut changes = Vec::new();
    for UndoTestCall(tool, arguments) in ops {
        let answer = world.call(tool, arguments);
        assert_ne!(answer.error, Some(ErrorKind::Internal), "{tool} {arguments}: {}", answer.text);
        let reply: Value = serde_json::from_str(&answer.text).unwrap();
        if let Some(change) = reply["value"]["change"].as_str() {
            changes.push(change.to_owned());
        }
    }
    changes
}

fn backends() -> impl Strategy<Value = ResolverBackend> {
    select(vec![ResolverBackend::Best, ResolverBackend::CapStd])
}

#[test]
fn undo_of_everything_gives_the_first_tree_back_one_by_one_or_at_once_and_redo_the_last() {
    check(160, &(vec(op(), 1..16), backends(), any::<bool>()), |(ops, backend, at_once)| {
        let world = populated_fixture(FsFixtureConfig::default().on(backend));
        let first = tree(&world.root);
        let changes = run_calls(&world, &ops);
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
fn undo_of_a_session_gives_the_first_tree_back_whatever_was_dropped_to_make_room() {
    check(160, &(vec(op(), 1..40), backends(), 2..8u64), |(ops, backend, room)| {
        let person = ScriptedApprover::denying();
        let limits = CallLimits { undo_session_bytes: room * 4200, ..FsFixtureConfig::default().limits };
        let world = populated_fixture(
            FsFixtureConfig { limits, person: Some(person), ..FsFixtureConfig::default() }.on(backend),
        );
        let first = tree(&world.root);
        if run_calls(&world, &ops).is_empty() {
            return;
        }
        let world = world.with_limits(FsFixtureConfig::default().limits);
        world.value("undo", &json!({"session": "test"}));
        assert_eq!(tree(&world.root), first, "after undo of {ops:?}");
    });
}

#[test]
fn undo_of_some_is_exact_or_refused_and_refused_it_changes_nothing() {
    check(160, &(vec(op(), 1..12), backends(), vec(any::<prop::sample::Index>(), 1..6)), |(ops, backend, picks)| {
        let world = populated_fixture(FsFixtureConfig::default().on(backend));
        let changes = run_calls(&world, &ops);
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
fn concurrent_changes_are_undone_as_a_whole() {
    const THREADS: usize = 4;
    check(24, &(vec(vec(op(), 6..12), THREADS), backends()), |(all, backend)| {
        let world = populated_fixture(FsFixtureConfig::default().on(backend));
        let first = tree(&world.root);
        std::thread::scope(|scope| {
            for ops in &all {
                scope.spawn(|| run_calls(&world, ops));
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
    let world = FsFixture::new();
    world.value("create_directory", &json!({"path": "a/b"}));
    world.value("delete_file", &json!({"path": "a", "recursive": true}));
    let undo = world.change("undo", &json!({"session": "test"}));
    world.value("redo", &json!({"change": undo}));
    assert_eq!(tree(&world.root), []);
    world.value("undo", &json!({}));
    assert_eq!(tree(&world.root).len(), 2);
}

#[test]
fn a_later_change_is_a_conflict_unless_a_person_forces_the_undo() {
    let world = FsFixture::new();
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
fn an_agent_undoes_its_own_session_and_a_person_any_change() {
    let world = FsFixture::new();
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
    let world = FsFixture::new();
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

/// The digest of a directory differs from run to run.
fn without_digests(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(" with ") {
        Some((start, _)) if line.contains("a directory") => start,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_person_is_shown_what_an_undo_would_do_to_contents() {
    let person = ScriptedApprover::approving();
    let world = FsFixture::with(FsFixtureConfig {
        person: Some(person.clone()),
        preset: Preset::Ask,
        ..FsFixtureConfig::default()
    });
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
    let request = person.last_request();
    assert!(!request.preview.is_secret());
    let shown = request.preview.text();
    let shown = shown.split_once('\n').unwrap();
    assert!(shown.0.starts_with("undo c-") && shown.0.contains("overwrite `f`"), "{}", shown.0);
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
fn a_secret_in_an_undo_preview_is_shown_only_to_the_approver() {
    let person = ScriptedApprover::approving();
    let world = FsFixture::with(FsFixtureConfig { person: Some(person.clone()), ..FsFixtureConfig::default() });
    world.write(".env", "KEY=hunter2\n");
    let change = world.change("write_file", &json!({"path": ".env", "content": "KEY=other\n"}));
    world.undo(&change);
    let request = person.last_request();
    assert!(
        request.preview.is_secret() && request.preview.text().contains("+KEY=hunter2"),
        "{}",
        request.preview.text()
    );
    assert!(!format!("{:?}", request.redacted_for_relay()).contains("hunter2"));
    assert!(request.redacted_for_relay().preview.summary().contains("overwrite `.env`"));
    // To be shown it without doing it is to read it.
    let world = world.reopened(FsFixtureConfig::default());
    let change = world.value("list_changes", &json!({}))["changes"][1]["change"].clone();
    assert_eq!(world.error("undo", &json!({"dryRun": true, "change": change})), ErrorKind::Conflict);
    let undo = world.value("list_changes", &json!({}))["changes"][0]["change"].clone();
    assert_eq!(world.error("undo", &json!({"dryRun": true, "change": undo})), ErrorKind::ApprovalDenied);
}

#[test]
fn undo_since_a_time_undoes_every_later_change() {
    let world = FsFixture::new();
    world.value("write_file", &json!({"path": "f", "content": "one"}));
    let time = world.value("list_changes", &json!({}))["changes"][0]["time"].as_str().unwrap().to_owned();
    assert_eq!(world.error("undo", &json!({"since": "9999-01-01T00:00:00Z"})), ErrorKind::NotFound);
    assert_eq!(world.error("undo", &json!({"since": "yesterday"})), ErrorKind::InvalidArgs);
    world.value("undo", &json!({"since": time}));
    assert!(!world.root.join("f").exists());
}

#[test]
fn changes_on_several_mounts_are_undone_and_redone_together_or_not_at_all() {
    let world = FsFixture::with(FsFixtureConfig {
        mounts: vec![("other", MountAccess::ReadWrite)],
        ..FsFixtureConfig::default()
    });
    let other = world.host_path().join("mount-other");
    world.write("f", "one");
    std::fs::write(other.join("g"), "one").unwrap();
    world.value("write_file", &json!({"path": "f", "content": "two"}));
    world.value("write_file", &json!({"path": "@other/g", "content": "two"}));
    world.value("delete_file", &json!({"path": "@other/g"}));
    let both = || (world.read("f"), std::fs::read_to_string(other.join("g")).ok());
    let (first, last) = (("one".to_owned(), Some("one".to_owned())), ("two".to_owned(), None));
    let session = json!({"session": "test"});
    // The last path has another file: nothing is changed, on the other mount neither.
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

/// Path of the workspace's journal.
fn journal_of(world: &FsFixture) -> PathBuf {
    let journals = std::fs::read_dir(world.host_path().join("state/journal")).unwrap();
    journals.last().unwrap().unwrap().path()
}

#[test]
fn undo_is_policed_as_what_it_does() {
    let world = FsFixture::with(FsFixtureConfig { preset: Preset::Ask, ..FsFixtureConfig::default() });
    world.value("write_file", &json!({"path": "f", "content": "x"}));
    // To undo a creation is to delete it.
    let answer = world.call("undo", &json!({}));
    assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{}", answer.text);
    assert_eq!(world.read("f"), "x");
    let moved = world.change("move_file", &json!({"from": "f", "to": "g"}));
    world.undo(&moved);
    assert_eq!(world.read("f"), "x");
}

#[test]
fn a_change_is_shown_as_a_diff_before_and_after_it_was_undone() {
    let world = FsFixture::new();
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
fn a_secret_stays_one_in_the_journal_and_after_an_undo() {
    let asking = |person| FsFixtureConfig { person, ..FsFixtureConfig::default() };
    let world = FsFixture::with(asking(None));
    world.write(".env", "KEY=hunter2\n");
    std::fs::hard_link(world.root.join(".env"), world.root.join("notes.txt")).unwrap();
    assert_eq!(world.error("read_file", &json!({"path": "notes.txt"})), ErrorKind::ApprovalDenied);
    let world = world.reopened(asking(Some(ScriptedApprover::approving())));
    let change = world.change("write_file", &json!({"path": "notes.txt", "content": "x"}));
    let world = world.reopened(asking(None));
    let shown = world.call("show_change", &json!({"change": change}));
    assert_eq!(shown.error, Some(ErrorKind::ApprovalDenied), "{}", shown.text);
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::ApprovalDenied);
    let world = world.reopened(asking(Some(ScriptedApprover::approving())));
    world.undo(&change);
    let world = world.reopened(asking(None));
    let read = world.call("read_file", &json!({"path": "notes.txt"}));
    assert_eq!(read.error, Some(ErrorKind::ApprovalDenied), "{}", read.text);
}
