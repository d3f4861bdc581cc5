//! No-op changes: they succeed, and nothing is recorded for undo.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use ringfence_fs::ResolverBackend;
use ringfence_kernel::Dialect;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

/// Number of changes that can be undone.
fn changes(world: &FsFixture) -> usize {
    world.value("list_changes", &json!({}))["changes"].as_array().unwrap().len()
}

#[test]
fn a_no_op_change_is_not_recorded() {
    let both = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\n+a\n b\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-g\n+g\n";
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        let world = FsFixture::with(FsFixtureConfig::default().on(backend));
        world.write("f", "a\nb\n");
        world.write("g", "g\n");
        world.write("empty", "");
        world.write("d/x", "");
        let before = world.root.join("f").metadata().unwrap();
        for (tool, arguments) in [
            ("write_file", json!({"path": "f", "content": "a\nb\n"})),
            ("write_file", json!({"path": "empty", "content": ""})),
            ("append_file", json!({"path": "f", "content": ""})),
            ("edit_file", json!({"path": "f", "oldText": "a", "newText": "a"})),
            (
                "edit_file",
                json!({"path": "f", "oldText": "a", "newText": "c", "edits": [{"oldText": "c", "newText": "a"}]}),
            ),
            ("apply_patch", json!({"path": "f", "patch": "@@ -1 +1 @@\n-a\n+a\n"})),
            ("apply_patch", json!({"patch": both})),
            ("create_directory", json!({"path": "d"})),
        ] {
            let answer = world.call(tool, &arguments);
            assert_eq!(answer.error, None, "{tool} {arguments}: {}", answer.text);
            let reply: Value = serde_json::from_str(&answer.text).unwrap();
            assert_eq!(reply["value"]["change"], Value::Null, "{tool} {arguments}");
            assert_eq!(changes(&world), 0, "{tool} {arguments}");
        }
        let after = world.root.join("f").metadata().unwrap();
        assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    }
}

#[test]
fn a_patch_that_changes_one_of_two_files_is_recorded_with_that_one() {
    let world = FsFixture::new();
    world.write("f", "a\n");
    world.write("g", "g\n");
    let patch = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+a\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-g\n+G\n";
    let value = world.value("apply_patch", &json!({ "patch": patch }));
    let names: Vec<&Value> = value["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(names, ["f", "g"]);
    assert_eq!((world.read("f").as_str(), world.read("g").as_str()), ("a\n", "G\n"));
    let shown = world.value("show_change", &json!({"change": value["change"]})).to_string();
    assert!(shown.contains("\"g\"") && !shown.contains("\"f\""), "{shown}");
    world.value("undo", &json!({}));
    assert_eq!((world.read("f").as_str(), world.read("g").as_str()), ("a\n", "g\n"));
}

#[test]
fn an_effective_change_is_recorded() {
    let world = FsFixture::new();
    world.write("f", "a\n");
    for (tool, arguments, so_far) in [
        ("write_file", json!({"path": "f", "content": "b\n"}), 1),
        ("append_file", json!({"path": "f", "content": "c\n"}), 2),
        ("append_file", json!({"path": "new", "content": ""}), 3),
        ("write_file", json!({"path": "other", "content": ""}), 4),
    ] {
        assert!(world.value(tool, &arguments)["change"].is_string(), "{tool} {arguments}");
        assert_eq!(changes(&world), so_far, "{tool} {arguments}");
    }
}

#[test]
fn the_texts_of_the_other_dialects_are_the_same_where_nothing_changes() {
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Miniclaw));
    world.write("f", "ab");
    for (tool, arguments, said) in [
        ("write_file", json!({"path": "f", "content": "ab"}), "ok: wrote 2 bytes to f"),
        ("append_file", json!({"path": "f", "content": ""}), "ok: appended 0 bytes to f (size=2)"),
        ("edit_file", json!({"path": "f", "old_text": "a", "new_text": "a"}), "ok: replaced 1 match(es) in f"),
    ] {
        assert_eq!(world.call(tool, &arguments).text, said);
    }
}

#[test]
fn a_search_for_names_says_what_it_could_not_look_into() {
    let world = FsFixture::new();
    world.write("d/closed/f.txt", "x");
    world.write("d/f.txt", "x");
    let mode =
        |mode| std::fs::set_permissions(world.root.join("d/closed"), std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o000);
    let value = world.value("find_files", &json!({"path": ".", "glob": "*.txt"}));
    assert_eq!((&value["paths"], &value["unreadable"]), (&json!(["d/f.txt"]), &json!(1)));
    mode(0o755);
    let value = world.value("find_files", &json!({"path": ".", "glob": "*.txt"}));
    assert_eq!((&value["paths"], &value["unreadable"]), (&json!(["d/closed/f.txt", "d/f.txt"]), &Value::Null));
}
