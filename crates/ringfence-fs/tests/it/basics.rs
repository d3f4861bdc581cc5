//! Basic behaviour: each tool does what its description says.

use ringfence_kernel::{Dialect, ErrorKind};
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

#[test]
fn a_file_is_written_read_edited_and_appended_to() {
    let world = FsFixture::new();
    let written = world.value("write_file", &json!({"path": "a/b.txt", "content": "one\ntwo\n", "createDirs": true}));
    assert_eq!(written["created"], true);
    let read = world.value("read_file", &json!({"path": "a/b.txt"}));
    assert_eq!((&read["content"], &read["sha256"]), (&json!("one\ntwo\n"), &written["sha256"]));
    world.value("edit_file", &json!({"path": "a/b.txt", "oldText": "two", "newText": "2"}));
    world.value("append_file", &json!({"path": "a/b.txt", "content": "three\n"}));
    assert_eq!(world.read("a/b.txt"), "one\n2\nthree\n");
}

#[test]
fn miniclaw_says_what_it_did_in_text() {
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Miniclaw));
    let say = |tool, arguments| world.call(tool, &arguments).text;
    assert_eq!(say("write_file", json!({"path": "d/f", "content": "hé"})), "ok: wrote 3 bytes to d/f");
    assert_eq!(say("append_file", json!({"path": "d/f", "content": "!\n"})), "ok: appended 2 bytes to d/f (size=5)");
    assert_eq!(say("read_file", json!({"path": "./d//f"})), "ok: read 5 bytes from d/f\nhé!\n");
    assert_eq!(
        say("edit_file", json!({"path": "d/f", "old_text": "!", "new_text": "?"})),
        "ok: replaced 1 match(es) in d/f"
    );
    assert_eq!(say("list_dir", json!({})), "ok: listed 1 entries in .\n- d\tdir\t0");
    assert_eq!(say("list_dir", json!({"path": "d"})), "ok: listed 1 entries in d\n- f\tfile\t5");
}

#[test]
fn a_missing_file_is_not_found() {
    let world = FsFixture::new();
    world.write("read_me.md", "");
    assert_eq!(world.error("read_file", &json!({"path": "readme.md"})), ErrorKind::NotFound);
    let answer = world.call("read_file", &json!({"path": "readme.md"}));
    assert!(answer.text.contains("did you mean `read_me.md`?"), "{}", answer.text);
}

/// Every argument that is a path, with its description.
fn places(parameters: &Value) -> Vec<(String, String)> {
    let named = parameters["properties"].as_object().into_iter().flatten();
    let named = named.filter(|(name, _)| matches!(name.as_str(), "path" | "from" | "to" | "glob"));
    named.map(|(name, schema)| (name.clone(), schema["description"].as_str().unwrap_or_default().to_owned())).collect()
}

#[test]
fn no_description_of_a_path_names_one() {
    for dialect in [Dialect::Standard, Dialect::Miniclaw, Dialect::Crewagent] {
        let world = FsFixture::with(FsFixtureConfig::of(dialect));
        for tool in world.session.catalog.list() {
            for (name, description) in places(tool.parameters()) {
                let quoted: Vec<&str> = description.split('`').skip(1).step_by(2).collect();
                let is_name =
                    |word: &&str| word.trim_start_matches(['.', '@']).contains(['.', '/']) && *word != "@state/";
                assert!(!quoted.iter().any(is_name), "{} {name}: {description}", tool.name);
            }
        }
    }
}

#[test]
fn an_edit_needs_both_of_its_texts_by_its_schema() {
    for (dialect, tool) in [(Dialect::Claude, "Edit"), (Dialect::Gemini, "replace")] {
        let world = FsFixture::with(FsFixtureConfig::of(dialect));
        let edit = world.session.catalog.list().find(|it| it.name == tool).unwrap();
        assert_eq!(edit.parameters()["required"], json!(["file_path", "old_string", "new_string"]), "{tool}");
    }
    let world = FsFixture::new();
    let edit = world.session.catalog.list().find(|tool| tool.name == "edit_file").unwrap();
    assert_eq!(edit.parameters()["required"], json!(["path", "oldText", "newText"]));
    assert_eq!(edit.parameters()["properties"]["newText"]["type"], "string");
    world.write("f", "a b c");
    let more = json!([{"oldText": "b", "newText": "B"}, {"oldText": "c", "newText": "C"}]);
    world.value("edit_file", &json!({"path": "f", "oldText": "a", "newText": "A", "edits": more}));
    assert_eq!(world.read("f"), "A B C");
    // As it could be sent before.
    world.value("edit_file", &json!({"path": "f", "edits": [{"oldText": "A", "newText": "a"}]}));
    assert_eq!(world.read("f"), "a B C");
}
