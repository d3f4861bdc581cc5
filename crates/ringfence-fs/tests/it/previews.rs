//! Approval previews: what a person sees is what happens.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use expect_test::{Expect, expect};
use ringfence_kernel::{ErrorKind, Preset};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::file_clock::wait_for_tick;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

fn world(person: &ScriptedApprover) -> FsFixture {
    let world = FsFixture::with(FsFixtureConfig {
        preset: Preset::Ask,
        person: Some(person.clone()),
        ..FsFixtureConfig::default()
    });
    world.write("f", "one\ntwo\nthree\n");
    world
}

/// The preview of a call. It is denied, so nothing happens.
#[track_caller]
fn check(tool: &str, arguments: Value, expected: Expect) {
    let person = ScriptedApprover::denying();
    let world = world(&person);
    world.write("other", "two\nthree\nfour\n");
    world.write("binary", b"a\0b");
    world.write("d/a", "12345");
    world.write("d/e/b", "1");
    world.write(".env", "KEY=1\n");
    assert_eq!(world.error(tool, &arguments), ErrorKind::ApprovalDenied);
    expected.assert_eq(&person.last_request().preview.text());
}

#[test]
fn a_write_is_shown_as_a_diff() {
    check(
        "write_file",
        json!({"path": "f", "content": "one\n2\nthree\n"}),
        expect![[r#"
        replace `f` (14 bytes) with 12 bytes
        --- a/f
        +++ b/f
        @@ -1,3 +1,3 @@
         one
        -two
        +2
         three"#]],
    );
    check(
        "write_file",
        json!({"path": "binary", "content": "text"}),
        expect![[r#"
        replace `binary` (3 bytes) with 4 bytes
        `binary` is not shown as text: 3 bytes (SHA-256 59b271ae1bbcb1d31d41929817f4b16fb439eb4f31520b5ad1d5ce98920a7138) become 4 bytes (SHA-256 982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1)"#]],
    );
    check(
        "append_file",
        json!({"path": "f", "content": "four\n"}),
        expect![[r#"
        add 5 bytes to the end of `f` (14 bytes)
        --- a/f
        +++ b/f
        @@ -1,3 +1,4 @@
         one
         two
         three
        +four"#]],
    );
}

#[test]
fn an_edit_is_shown_as_it_would_be_made() {
    check(
        "edit_file",
        json!({"path": "f", "oldText": "two", "newText": "2"}),
        expect![[r#"
        make 1 replacement in `f`
        --- a/f
        +++ b/f
        @@ -1,3 +1,3 @@
         one
        -two
        +2
         three"#]],
    );
    // A failure is reported to the caller only where the caller may read the file.
    check(
        "edit_file",
        json!({"path": ".env", "oldText": "four", "newText": "4"}),
        expect![[r#"
        make 1 replacement in `.env`
        this will be refused: oldText not found in `.env`; read the file again and copy the text exactly"#]],
    );
}

#[test]
fn a_call_that_must_fail_needs_no_approval() {
    let other = "0".repeat(64);
    let patch = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-missing\n+2\n";
    let cases = [
        ("edit_file", json!({"path": "f", "oldText": "four", "newText": "4"}), ErrorKind::EditNotFound),
        ("edit_file", json!({"path": "f", "oldText": "e", "newText": "4"}), ErrorKind::AmbiguousEdit),
        (
            "edit_file",
            json!({"path": "f", "oldText": "two", "newText": "2", "ifMatchSha256": other}),
            ErrorKind::Conflict,
        ),
        ("write_file", json!({"path": "f", "content": "", "ifMatchSha256": other}), ErrorKind::Conflict),
        ("apply_patch", json!({"patch": patch}), ErrorKind::EditNotFound),
    ];
    for (tool, arguments, kind) in cases {
        let person = ScriptedApprover::denying();
        let world = world(&person);
        assert_eq!(world.error(tool, &arguments), kind, "{tool} {arguments}");
        assert_eq!(person.count(), 0, "{tool} {arguments}");
    }
}

#[test]
fn a_patch_is_shown_where_it_goes() {
    let patch = "--- a/f\n+++ b/f\n@@ -7,2 +7,2 @@\n two\n-three\n+3\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n";
    check(
        "apply_patch",
        json!({"patch": patch}),
        expect![[r#"
        patch `f`, `new`
        --- a/f
        +++ b/f
        @@ -1,3 +1,3 @@
         one
         two
        -three
        +3
        --- /dev/null
        +++ b/new
        @@ -0,0 +1,1 @@
        +x"#]],
    );
}

#[test]
fn a_copy_and_a_move_show_what_they_overwrite() {
    check(
        "copy_file",
        json!({"from": "f", "to": "other", "overwrite": true}),
        expect![[r#"
        copy `f` (14 bytes) to `other`, replacing the file of 15 bytes there
        --- a/other
        +++ b/other
        @@ -1,3 +1,3 @@
        +one
         two
         three
        -four"#]],
    );
    check(
        "move_file",
        json!({"from": "other", "to": "f", "overwrite": true}),
        expect![[r#"
        move `other` to `f`, replacing the file of 14 bytes there
        --- a/f
        +++ b/f
        @@ -1,3 +1,3 @@
        -one
         two
         three
        +four"#]],
    );
    check("move_file", json!({"from": ".env", "to": "notes.txt"}), expect!["move `.env` to `notes.txt`"]);
}

#[test]
fn a_delete_shows_what_goes() {
    check(
        "delete_file",
        json!({"path": "d", "recursive": true}),
        expect![[r#"
        delete the directory `d` with 3 entries (6 bytes)
        a (5 bytes)
        e (directory)
        e/b (1 bytes)"#]],
    );
    check(
        "delete_file",
        json!({"path": "f"}),
        expect![[r#"
        delete `f` (14 bytes)
        one
        two
        three"#]],
    );
    check(
        "delete_file",
        json!({"path": "binary"}),
        expect![[r#"
        delete `binary` (3 bytes)
        not text: 3 bytes (SHA-256 59b271ae1bbcb1d31d41929817f4b16fb439eb4f31520b5ad1d5ce98920a7138)"#]],
    );
}

#[test]
fn nothing_hides_in_a_preview() {
    check(
        "write_file",
        json!({"path": "f", "content": "one\r\n\u{202e}evil\u{1b}[1A"}),
        expect![[r#"
        replace `f` (14 bytes) with 16 bytes
        --- a/f
        +++ b/f
        @@ -1,3 +1,2 @@
        -one
        -two
        -three
        +one␍
        +\u{202e}evil\u{1b}[1A
        \ No newline at end of file"#]],
    );
}

#[test]
fn secret_content_is_marked_and_not_relayed() {
    let person = ScriptedApprover::denying();
    let world = world(&person);
    world.write(".env", "KEY=old\n");
    for (tool, arguments) in [
        ("write_file", json!({"path": ".env", "content": "KEY=new\n"})),
        ("edit_file", json!({"path": ".env", "oldText": "old", "newText": "new"})),
        ("append_file", json!({"path": ".env", "content": "B=new\n"})),
        ("copy_file", json!({"from": ".env", "to": "f", "overwrite": true})),
        ("copy_file", json!({"from": "f", "to": ".env", "overwrite": true})),
        ("move_file", json!({"from": ".env", "to": "f", "overwrite": true})),
        ("delete_file", json!({"path": ".env"})),
        ("apply_patch", json!({"patch": "--- a/.env\n+++ b/.env\n@@ -1 +1 @@\n-KEY=old\n+KEY=new\n"})),
    ] {
        assert_eq!(world.error(tool, &arguments), ErrorKind::ApprovalDenied);
        let request = person.last_request();
        assert!(
            request.preview.is_secret() && request.preview.text().contains("KEY=old"),
            "{tool}: {}",
            request.preview.text()
        );
        let relayed = serde_json::to_string(&request.redacted_for_relay()).unwrap();
        assert!(!relayed.contains("KEY") && relayed.contains(".env"), "{tool}: {relayed}");
    }
    assert_eq!(world.error("read_file", &json!({"path": ".env"})), ErrorKind::ApprovalDenied);
    expect!["read `.env` (8 bytes)"].assert_eq(&person.last_request().preview.text());
}

type ExternalEdit = fn(&Path);

/// Changes by another program while a person looks at the preview.
const CHANGES: [(&str, ExternalEdit); 7] = [
    ("other contents", |file| std::fs::write(file, "one\ntwo\nthree\nfour\n").unwrap()),
    ("contents of the same size and time", |file| {
        let before = std::fs::metadata(file).unwrap();
        wait_for_tick(file);
        std::fs::write(file, "ONE\ntwo\nthree\n").unwrap();
        let times = std::fs::FileTimes::new().set_modified(before.modified().unwrap());
        std::fs::File::options().write(true).open(file).unwrap().set_times(times).unwrap();
        assert_eq!(std::fs::metadata(file).unwrap().modified().unwrap(), before.modified().unwrap());
    }),
    ("another file", |file| {
        std::fs::write(file.with_extension("new"), "one\ntwo\nthree\n").unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    }),
    ("a link", |file| {
        std::fs::remove_file(file).unwrap();
        std::os::unix::fs::symlink("other", file).unwrap();
    }),
    ("a directory", |file| {
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
    }),
    ("nothing", |file| std::fs::remove_file(file).unwrap()),
    ("another mode", |file| std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o640)).unwrap()),
];

/// Everything below a directory, by name, kind and contents.
fn snapshot(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    // What is kept for an undo is ours.
    for entry in entries.filter(|entry| !entry.ends_with(".ringfence")) {
        let kind = std::fs::symlink_metadata(&entry).unwrap().file_type();
        let content = if kind.is_file() { std::fs::read_to_string(&entry).unwrap() } else { String::new() };
        found.push(format!("{} {kind:?} {content:?}", entry.display()));
        if kind.is_dir() {
            found.extend(snapshot(&entry));
        }
    }
    found.sort();
    found
}

/// Asks about a call, changes `target` before the yes, and wants a conflict that left everything as it was then.
#[track_caller]
fn check_conflict(tool: &str, arguments: &Value, target: &str, (what, change): (&str, ExternalEdit)) {
    let person = ScriptedApprover::approving();
    let world = world(&person);
    world.write("other", "2\n");
    world.write("d/f", "one\ntwo\nthree\n");
    let (file, root) = (world.root.join(target), world.root.clone());
    let after = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&after);
    person.before_answer(move || {
        change(&file);
        *seen.lock().unwrap() = snapshot(&root);
    });
    let answer = world.call(tool, arguments);
    assert_eq!(answer.error, Some(ErrorKind::Conflict), "{tool} {arguments} with {what}: {}", answer.text);
    assert_eq!(snapshot(&world.root), *after.lock().unwrap(), "{tool} {arguments} with {what}");
    assert_eq!(person.count(), 1);
}

#[test]
fn a_change_after_the_preview_is_a_conflict_and_stays() {
    let patch = "--- a/f\n+++ b/f\n@@ -2,2 +2,2 @@\n two\n-three\n+3\n";
    let two = format!("{patch}--- a/other\n+++ b/other\n@@ -1 +1 @@\n-2\n+two\n");
    for change in CHANGES {
        check_conflict("write_file", &json!({"path": "f", "content": "x"}), "f", change);
        check_conflict("append_file", &json!({"path": "f", "content": "x"}), "f", change);
        check_conflict("edit_file", &json!({"path": "f", "oldText": "three", "newText": "3"}), "f", change);
        check_conflict("apply_patch", &json!({"patch": patch}), "f", change);
        check_conflict("apply_patch", &json!({"patch": two}), "f", change);
        check_conflict("delete_file", &json!({"path": "f"}), "f", change);
        check_conflict("copy_file", &json!({"from": "other", "to": "f", "overwrite": true}), "f", change);
        check_conflict("move_file", &json!({"from": "other", "to": "f", "overwrite": true}), "f", change);
        check_conflict("move_file", &json!({"from": "f", "to": "other", "overwrite": true}), "f", change);
    }
    for change in CHANGES.into_iter().filter(|(what, _)| *what != "another mode") {
        check_conflict("delete_file", &json!({"path": "d", "recursive": true}), "d/f", change);
    }
    // The file that is copied is held, so only its contents can change.
    for change in &CHANGES[..2] {
        check_conflict("copy_file", &json!({"from": "f", "to": "other", "overwrite": true}), "f", *change);
    }
}

#[test]
fn an_approved_unchanged_call_runs() {
    let person = ScriptedApprover::approving();
    let world = world(&person);
    world.write("big", "x".repeat(3 << 20));
    world.value("write_file", &json!({"path": "f", "content": "1\n2\n"}));
    world.value("append_file", &json!({"path": "f", "content": "3\n"}));
    world.value("edit_file", &json!({"path": "f", "oldText": "2", "newText": "two"}));
    world.value("apply_patch", &json!({"patch": "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-1\n+one\n two\n"}));
    assert_eq!(world.read("f"), "one\ntwo\n3\n");
    world.value("copy_file", &json!({"from": "f", "to": "big", "overwrite": true}));
    world.value("move_file", &json!({"from": "big", "to": "f", "overwrite": true}));
    world.value("delete_file", &json!({"path": "f"}));
    assert_eq!((person.count(), snapshot(&world.root)), (7, Vec::new()));
}
