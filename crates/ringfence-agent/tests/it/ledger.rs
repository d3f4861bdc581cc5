//! The ledger has what was done, and not what the model says.

use expect_test::{Expect, expect};
use ringfence_kernel::Preset;
use serde_json::{Value, json};

use crate::world::{Setup, World, call, text};

async fn check(preset: Preset, calls: &[(&str, Value)], expected: Expect) {
    let mut script: Vec<Value> = calls.iter().map(|(name, arguments)| call(name, arguments.clone())).collect();
    script.push(text("I have deleted everything and created world.txt."));
    let mut setup = Setup { preset, ..Setup::default() };
    setup.bounds.steps = 20;
    let mut world = World::new(setup, &script);
    world.write("old.txt", "old\n");
    world.write("other.txt", "other\n");
    let outcome = world.prompt("go").await;
    let mut said = outcome.ledger.lines().join("\n");
    said.push('\n');
    expected.assert_eq(&said);
    let written = serde_json::to_value(&outcome.ledger).unwrap();
    assert_eq!(serde_json::from_value::<ringfence_agent::Ledger>(written).unwrap(), outcome.ledger);
}

#[tokio::test]
async fn files_are_created_changed_deleted_and_moved() {
    let calls = [
        ("write_file", json!({"path": "new.txt", "content": "1"})),
        ("edit_file", json!({"path": "new.txt", "oldText": "1", "newText": "2"})),
        ("append_file", json!({"path": "old.txt", "content": "more\n"})),
        ("move_file", json!({"from": "other.txt", "to": "moved.txt"})),
        ("write_file", json!({"path": "brief.txt", "content": "x"})),
        ("delete_file", json!({"path": "brief.txt"})),
        ("create_directory", json!({"path": "d"})),
    ];
    check(
        Preset::Edits,
        &calls,
        expect![[r#"
            created  brief.txt, and deleted it again
            created  d
            moved    other.txt to moved.txt
            created  new.txt
            changed  old.txt
        "#]],
    )
    .await;
}

#[tokio::test]
async fn what_was_deleted_and_made_again_is_changed() {
    let calls = [
        ("delete_file", json!({"path": "old.txt"})),
        ("write_file", json!({"path": "old.txt", "content": "new\n"})),
        ("delete_file", json!({"path": "other.txt"})),
    ];
    check(
        Preset::Edits,
        &calls,
        expect![[r#"
            changed  old.txt
            deleted  other.txt
        "#]],
    )
    .await;
}

#[tokio::test]
async fn what_was_denied_and_what_failed_is_said_and_a_false_claim_is_not() {
    let calls = [
        ("delete_file", json!({"path": "old.txt"})),
        ("read_file", json!({"path": "nowhere.txt"})),
        ("read_file", json!({"path": "../outside"})),
        ("no_such_tool", json!({})),
    ];
    check(Preset::ReadOnly, &calls, expect![[r#"
        no file was changed
        denied   delete_file old.txt: this would delete `old.txt`, and the preset `read-only` allows no change; listing and reading is allowed; `preset = "edits"` instead would lift this
        failed   read_file nowhere.txt: `nowhere.txt` does not exist
        failed   read_file ../outside: `../outside` leads outside the workspace
        failed   no_such_tool: there is no tool `no_such_tool` here
    "#]]).await;
}

#[tokio::test]
async fn a_name_that_would_steer_a_terminal_is_shown_as_what_it_is() {
    let calls = [("read_file", json!({"path": "a\u{1b}[2Jb"}))];
    check(
        Preset::ReadOnly,
        &calls,
        expect![[r#"
        no file was changed
        failed   read_file a\x1b[2Jb: `a\x1b[2Jb` does not exist
    "#]],
    )
    .await;
}
