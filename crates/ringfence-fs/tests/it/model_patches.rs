//! V4A patches as models send them, and the exact replies.

use expect_test::expect;
use ringfence_kernel::{Dialect, ErrorKind, Preset};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::json;

use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::model_edits::without_ids;

fn world() -> FsFixture {
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Codex));
    world.write("src/a.rs", "fn a() {\n    one();\n}\n");
    world.write("old.txt", "one\ntwo\n");
    world.write("gone.txt", "x\n");
    world
}

#[test]
fn a_patch_is_answered_with_a_line_for_each_file() {
    let world = world();
    let patch = "*** Begin Patch\n*** Update File: src/a.rs\n@@ fn a() {\n-    one();\n+    two();\n\
                 *** Add File: new/b.rs\n+b\n*** Delete File: gone.txt\n*** End Patch";
    let reply = world.call("apply_patch", &json!({"input": patch}));
    expect![[r#"
        M src/a.rs
        A new/b.rs
        D gone.txt (c-ID)"#]]
    .assert_eq(&without_ids(&reply.text));
    assert_eq!(world.read("src/a.rs"), "fn a() {\n    two();\n}\n");
    assert_eq!(world.read("new/b.rs"), "b\n");
    assert!(!world.root.join("gone.txt").exists());
}

#[test]
fn habitual_forms_are_understood_and_what_was_bent_is_said() {
    for (patch, said) in [
        ("*** Begin Patch\n*** Update File: /workspace/old.txt\n@@\n-one\n+1\n", "M old.txt (c-ID)"),
        (
            "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: old.txt\n@@\n-one\n+1\n*** End Patch\nEOF",
            "M old.txt (c-ID)",
        ),
        ("--- a/old.txt\n+++ b/old.txt\n@@ -1 +1 @@\n-one\n+1\n", "M old.txt (c-ID)"),
        (
            "*** Begin Patch\n*** Update File: old.txt\n@@\n-one \n+1\n*** End Patch\n",
            "M old.txt [hunk 1 matched without trailing blanks] (c-ID)",
        ),
    ] {
        for key in ["input", "patch"] {
            let world = world();
            let reply = world.call("apply_patch", &json!({key: patch}));
            assert_eq!(without_ids(&reply.text), said);
            assert_eq!(world.read("old.txt"), "1\ntwo\n");
        }
    }
    // The standard dialect takes both formats too.
    let world = FsFixture::new();
    world.write("f", "a\n");
    let patch = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch\n";
    world.value("apply_patch", &json!({"patch": patch}));
    assert_eq!(world.read("f"), "b\n");
}

#[test]
fn a_file_is_moved_and_changed_at_once() {
    let world = world();
    let patch = "*** Begin Patch\n*** Update File: old.txt\n*** Move to: dir/new.txt\n@@\n-one\n+1\n*** End Patch\n";
    let reply = world.call("apply_patch", &json!({"input": patch}));
    assert_eq!(without_ids(&reply.text), "D old.txt\nA dir/new.txt (c-ID)");
    assert_eq!(world.read("dir/new.txt"), "1\ntwo\n");
    assert!(!world.root.join("old.txt").exists());
    // Not over another file.
    let patch = "*** Begin Patch\n*** Update File: gone.txt\n*** Move to: dir/new.txt\n*** End Patch\n";
    assert_eq!(world.error("apply_patch", &json!({"input": patch})), ErrorKind::AlreadyExists);
    let patch = "*** Begin Patch\n*** Update File: gone.txt\n*** Move to: moved.txt\n*** End Patch\n";
    world.call("apply_patch", &json!({"input": patch}));
    assert_eq!(world.read("moved.txt"), "x\n");
}

#[test]
fn files_that_are_not_text_are_moved_and_deleted() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = world();
    let bytes = b"\x7fELF\0\xff".as_slice();
    std::fs::write(world.root.join("tool"), bytes).unwrap();
    std::fs::set_permissions(world.root.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(world.root.join("data"), bytes).unwrap();
    let patch = "*** Begin Patch\n*** Update File: tool\n*** Move to: bin/tool\n*** Delete File: data\n*** End Patch\n";
    let reply = world.call("apply_patch", &json!({"input": patch}));
    assert_eq!(without_ids(&reply.text), "D tool\nA bin/tool\nD data (c-ID)");
    assert_eq!(std::fs::read(world.root.join("bin/tool")).unwrap(), bytes);
    assert_eq!(std::fs::metadata(world.root.join("bin/tool")).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(!world.root.join("data").exists());
    // A hunk is about text.
    let patch = "*** Begin Patch\n*** Update File: bin/tool\n*** Move to: t\n@@\n-x\n+y\n*** End Patch\n";
    assert_eq!(world.error("apply_patch", &json!({"input": patch})), ErrorKind::NotText);
}

#[test]
fn a_patch_changes_all_files_or_none_and_is_undone_as_one() {
    let standard = FsFixture::new();
    standard.write("a", "a\n");
    standard.write("b", "b\n");
    let patch = |b: &str| {
        format!(
            "*** Begin Patch\n*** Update File: a\n@@\n-a\n+x\n*** Update File: b\n*** Move to: c\n@@\n-{b}\n+y\n*** End Patch\n"
        )
    };
    assert_eq!(standard.error("apply_patch", &json!({"patch": patch("other")})), ErrorKind::EditNotFound);
    assert_eq!((standard.read("a"), standard.read("b")), ("a\n".to_owned(), "b\n".to_owned()));
    let done = standard.value("apply_patch", &json!({"patch": patch("b")}));
    assert_eq!((standard.read("a"), standard.read("c")), ("x\n".to_owned(), "y\n".to_owned()));
    let short = &done["change"].as_str().unwrap()[..10];
    standard.value("undo", &json!({"change": short}));
    assert_eq!((standard.read("a"), standard.read("b")), ("a\n".to_owned(), "b\n".to_owned()));
    assert!(!standard.root.join("c").exists());
}

#[test]
fn the_preview_of_a_patch_is_what_it_does() {
    let person = ScriptedApprover::approving();
    let setup =
        FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..FsFixtureConfig::of(Dialect::Codex) };
    let world = FsFixture::with(setup);
    world.write("f", "    one \n    two\n");
    world.write("g", "g\n");
    let patch =
        "*** Begin Patch\n*** Update File: f\n@@\n one\n-two\n+2\n*** Update File: g\n*** Move to: h\n*** End Patch\n";
    let reply = world.call("apply_patch", &json!({"input": patch}));
    assert_eq!(reply.error, None, "{}", reply.text);
    assert_eq!(world.read("f"), "    one \n    2\n");
    expect![[r#"
        patch `f`, `g`, `h`
        --- a/f
        +++ b/f
        @@ -1,2 +1,2 @@
             one 
        -    two
        +    2
        --- a/g
        +++ /dev/null
        @@ -1,1 +0,0 @@
        -g
        --- /dev/null
        +++ b/h
        @@ -0,0 +1,1 @@
        +g"#]]
    .assert_eq(&person.last_request().preview.text());
}
