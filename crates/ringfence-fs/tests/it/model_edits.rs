//! Edits as models send them: the arguments that are accepted, what is matched, and the exact replies.

use expect_test::{Expect, expect};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use ringfence_kernel::{Dialect, ErrorKind, Preset};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

/// A workspace with one file, and a call on it.
struct EditExample {
    dialect: Dialect,
    tool: &'static str,
    content: &'static str,
    arguments: Value,
}

impl EditExample {
    fn claude(content: &'static str, arguments: Value) -> Self {
        Self { dialect: Dialect::Claude, tool: "Edit", content, arguments }
    }

    fn gemini(content: &'static str, arguments: Value) -> Self {
        Self { dialect: Dialect::Gemini, tool: "replace", content, arguments }
    }

    /// The reply, with the id of its change as `c-ID`, and the file afterwards if it changed.
    #[track_caller]
    fn check(self, expected: Expect) {
        let world = FsFixture::with(FsFixtureConfig::of(self.dialect));
        world.write("src/a.rs", self.content);
        let reply = world.call(self.tool, &self.arguments);
        let mut said = without_ids(&reply.text);
        let now = world.read("src/a.rs");
        if now != self.content {
            said += &format!("\n-> {now:?}");
        }
        expected.assert_eq(&said);
    }
}

/// Ids of changes differ in every run: 8 hex digits after `c-`.
pub(crate) fn without_ids(text: &str) -> String {
    let mut parts = text.split("c-");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |done, part| {
        let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits == 8 { done + "c-ID" + &part[8..] } else { done + "c-" + part }
    })
}

fn edit(old: &str, new: &str) -> Value {
    json!({"file_path": "src/a.rs", "old_string": old, "new_string": new})
}

#[test]
fn an_edit_is_answered_in_one_line() {
    EditExample::claude("a\nb\nc\n", edit("b", "x")).check(expect![[r#"
        edited src/a.rs line 2 (c-ID)
        -> "a\nx\nc\n""#]]);
    EditExample::gemini("a\nb\nc\n", edit("b", "x")).check(expect![[r#"
        edited src/a.rs line 2 (c-ID)
        -> "a\nx\nc\n""#]]);
    EditExample::claude("a\nb\n", edit("b", "b")).check(expect!["src/a.rs has this text already; nothing was changed"]);
    let all = |count: usize| {
        let content: &'static str = Box::leak("b\n".repeat(count).into_boxed_str());
        let arguments = json!({"file_path": "src/a.rs", "old_string": "b", "new_string": "x\ny", "replace_all": true});
        EditExample::claude(content, arguments)
    };
    all(3).check(expect![[r#"
        edited src/a.rs lines 1, 3, 5 (c-ID)
        -> "x\ny\nx\ny\nx\ny\n""#]]);
    all(6).check(expect![[r#"
        edited src/a.rs in 6 places (c-ID)
        -> "x\ny\nx\ny\nx\ny\nx\ny\nx\ny\nx\ny\n""#]]);
}

#[test]
fn what_was_bent_is_in_brackets() {
    EditExample::claude("a \nb\n", edit("a\nb\n", "a\nx\n")).check(expect![[r#"
        edited src/a.rs line 1 (c-ID) [matched without trailing blanks]
        -> "a \nx\n""#]]);
    EditExample::gemini("a\r\nb\r\n", edit("a\nb", "x\ny")).check(expect![[r#"
        edited src/a.rs line 1 (c-ID) [matched with the file's line endings]
        -> "x\r\ny\r\n""#]]);
    EditExample::claude("a\r\nb\r\n", edit("b", "x\ny")).check(expect![[r#"
        edited src/a.rs line 2 (c-ID) [matched with the file's line endings]
        -> "a\r\nx\r\ny\r\n""#]]);
    EditExample::claude("  if a {\n    b();\n  }\n", edit("if a {\n  b();\n}", "if a {\n  c();\n}")).check(expect![[
        r#"
        edited src/a.rs line 1 (c-ID) [matched with another indentation]
        -> "  if a {\n    c();\n  }\n""#
    ]]);
    EditExample::claude("it’s\n", edit("it's", "it's so")).check(expect![[r#"
        edited src/a.rs line 1 (c-ID) [matched with other quotes, dashes or spaces]
        -> "it’s so\n""#]]);
    EditExample::claude("a\nb\n", edit("1\ta\n2\tb", "x")).check(expect![[r#"
        edited src/a.rs line 1 (c-ID) [matched without line numbers]
        -> "x\n""#]]);
}

#[test]
fn an_edit_that_fails_says_what_to_do() {
    EditExample::claude("a\nb\na\n", edit("a", "x")).check(expect![
        "old_string matched multiple locations in `src/a.rs`: 2 matches, in lines 1, 3; include more of the surrounding text, or replace all"
    ]);
    EditExample::claude("a \nb\na  \nb\n", edit("a\nb\n", "x")).check(expect![
        "old_string is not in `src/a.rs` as it is written; matched without trailing blanks it would be at lines 1, 3; include more of the surrounding text, copied exactly"
    ]);
    EditExample::gemini("use x;\nfn open(a: u8) {\n    b();\n}\n", edit("fn open(a: u16) {\n    b();", "x")).check(
        expect![[r#"
        old_string not found in `src/a.rs`; read the file again and copy the text exactly; the nearest lines are
        2	fn open(a: u8) {
        3	    b();"#]],
    );
    EditExample::claude("a\n", edit("nothing like it", "x"))
        .check(expect!["old_string not found in `src/a.rs`; read the file again and copy the text exactly"]);
    // Relaxed matches are never replaced all at once.
    let all = json!({"file_path": "src/a.rs", "old_string": "a\nb\n", "new_string": "x", "replace_all": true});
    EditExample::claude("a \nb\n", all).check(expect![[r#"
        old_string not found in `src/a.rs`; line 1 differs only in white space or trailing text; read it again; the nearest lines are
        1	a 
        2	b"#]]);
    EditExample::claude("a\n", json!({"file_path": "src/a.rs", "new_string": "x"})).check(expect![
        "old_string is missing: call this again with file_path, new_string, and the text to replace as old_string"
    ]);
    EditExample::claude(
        "a\n",
        json!({"file_path": "src/a.rs", "old_string": "a", "new_string": "x", "insert_line": 1}),
    )
    .check(expect!["insert_line cannot be combined with old_string"]);
    EditExample::claude("a\n", edit("", "x"))
        .check(expect!["old_string is empty, which creates a file, but `src/a.rs` exists; send the text to replace"]);
}

#[test]
fn habitual_arguments_are_understood() {
    for arguments in [
        json!({"path": "src/a.rs", "old_str": "b", "new_str": "x"}),
        json!({"filePath": "src/a.rs", "oldString": "b", "newString": "x", "replaceAll": "false"}),
        json!({"file_path": "/workspace/src/a.rs", "old_text": "b", "new_text": "x"}),
        json!({"file_path": "src/a.rs", "oldText": "b", "newText": "x", "replace_all": "True"}),
    ] {
        for (dialect, tool) in
            [(Dialect::Claude, "Edit"), (Dialect::Gemini, "replace"), (Dialect::Standard, "edit_file")]
        {
            let world = FsFixture::with(FsFixtureConfig::of(dialect));
            world.write("src/a.rs", "a\nb\n");
            let reply = world.call(tool, &arguments);
            assert_eq!((reply.error, &*world.read("src/a.rs")), (None, "a\nx\n"), "{arguments}: {}", reply.text);
        }
    }
    let arguments = json!({"file_path": "src/a.rs", "instruction": "why", "old_string": "b", "new_string": "x"});
    EditExample::gemini("a\nb\n", arguments).check(expect![[r#"
        edited src/a.rs line 2 (c-ID)
        -> "a\nx\n""#]]);
    let unknown = json!({"file_path": "src/a.rs", "old_string": "b", "new_string": "x", "replaceall": true});
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Claude));
    world.write("src/a.rs", "b");
    let reply = world.call("Edit", &unknown);
    assert_eq!(reply.error, Some(ErrorKind::InvalidArgs));
    assert!(reply.text.contains("unknown field `replaceall`"), "{}", reply.text);
}

#[test]
fn lines_are_inserted_after_a_line() {
    let insert = |content, line: Value, text: &str| {
        EditExample::claude(content, json!({"file_path": "src/a.rs", "insert_line": line, "new_string": text}))
    };
    insert("a\nb\n", json!(0), "x").check(expect![[r#"
        edited src/a.rs line 1 (c-ID)
        -> "x\na\nb\n""#]]);
    insert("a\nb\n", json!("1"), "x\ny\n").check(expect![[r#"
        edited src/a.rs line 2 (c-ID)
        -> "a\nx\ny\nb\n""#]]);
    insert("a\r\nb", json!(2), "x").check(expect![[r#"
        edited src/a.rs line 3 (c-ID)
        -> "a\r\nb\r\nx""#]]);
    insert("a\r\nb\r\n", json!(1), "x\ny").check(expect![[r#"
        edited src/a.rs line 2 (c-ID)
        -> "a\r\nx\r\ny\r\nb\r\n""#]]);
    insert("a\n", json!(2), "x").check(expect!["insert_line is 2, but `src/a.rs` has 1 line"]);
    let world = FsFixture::new();
    world.write("f", "a\n");
    assert_eq!(world.value("edit_file", &json!({"path": "f", "insertLine": 1, "newText": "b"}))["line"], 2);
    assert_eq!(world.read("f"), "a\nb\n");
}

#[test]
fn an_empty_old_text_creates_a_file_that_does_not_exist() {
    for (dialect, tool) in [(Dialect::Claude, "Edit"), (Dialect::Gemini, "replace")] {
        let world = FsFixture::with(FsFixtureConfig::of(dialect));
        let create = json!({"file_path": "new/b.rs", "old_string": "", "new_string": "x\n"});
        assert_eq!(without_ids(&world.call(tool, &create).text), "created new/b.rs (c-ID)");
        assert_eq!(world.read("new/b.rs"), "x\n");
        assert_eq!(world.error(tool, &create), ErrorKind::AlreadyExists);
        world.write("empty", "");
        let fill = json!({"file_path": "empty", "old_string": "", "new_string": "x\n"});
        assert_eq!(without_ids(&world.call(tool, &fill).text), "edited empty line 1 (c-ID)");
        let edit = json!({"file_path": "none", "old_string": "a", "new_string": "x\n"});
        assert_eq!(world.error(tool, &edit), ErrorKind::NotFound);
    }
}

#[test]
fn the_seeds_dialects_relax_nothing() {
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Miniclaw));
    for (content, old) in [
        ("a \nb\n", "a\nb\n"),
        ("a\r\nb\r\n", "a\nb"),
        ("  a\n  b\n", "a\nb"),
        ("it’s", "it's"),
        ("a\nb\n", "1\ta\n2\tb"),
        ("fn open(a: u8) {\n", "fn open(a: u16) {\n"),
    ] {
        world.write("f", content);
        let reply = world.call("edit_file", &json!({"path": "f", "old_text": old, "new_text": "x"}));
        assert_eq!(reply.error, Some(ErrorKind::EditNotFound));
        assert!(!reply.text.contains("nearest"), "{}", reply.text);
        assert_eq!(world.read("f"), content);
    }
    let other_name = json!({"path": "f", "old_string": "fn", "new_string": "x"});
    assert_eq!(world.error("edit_file", &other_name), ErrorKind::InvalidArgs);
    let text = json!({"path": "f", "old_text": "fn", "new_text": "x", "replace_all": "true"});
    assert_eq!(world.error("edit_file", &text), ErrorKind::InvalidArgs);
}

#[test]
fn the_preview_of_a_relaxed_edit_is_what_it_does() {
    let person = ScriptedApprover::approving();
    let setup =
        FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..FsFixtureConfig::of(Dialect::Claude) };
    let world = FsFixture::with(setup);
    world.write("src/a.rs", "    if a {\n        b();\n    }\n");
    let reply = world.call("Edit", &edit("if a {\n    b();\n}", "if a {\n    c();\n}"));
    assert_eq!(reply.error, None, "{}", reply.text);
    assert_eq!(world.read("src/a.rs"), "    if a {\n        c();\n    }\n");
    expect![[r#"
        make 1 replacement in `src/a.rs`
        --- a/src/a.rs
        +++ b/src/a.rs
        @@ -1,3 +1,3 @@
             if a {
        -        b();
        +        c();
             }"#]]
    .assert_eq(&person.last_request().preview.text());
}

#[test]
fn the_lines_of_a_file_that_may_not_be_read_are_not_shown() {
    let setup = FsFixtureConfig { preset: Preset::Ask, ..FsFixtureConfig::of(Dialect::Claude) };
    let world = FsFixture::with(setup);
    world.write(".env", "PASSWORD=hunter2 and more\n");
    let arguments = json!({"file_path": ".env", "old_string": "PASSWORD=hunter3 and more", "new_string": "x"});
    let reply = world.call("Edit", &arguments);
    assert!(reply.error.is_some() && !reply.text.contains("hunter2"), "{}", reply.text);
}

#[test]
fn undo_takes_the_short_id_of_a_reply() {
    let world = FsFixture::new();
    world.write("f", "a\n");
    let change = world.value("edit_file", &json!({"path": "f", "oldText": "a", "newText": "b"}))["change"].clone();
    let change = change.as_str().unwrap();
    assert_eq!(world.error("undo", &json!({"change": &change[..9]})), ErrorKind::NotFound);
    world.value("undo", &json!({"change": &change[..10]}));
    assert_eq!(world.read("f"), "a\n");
}

#[test]
fn null_is_the_default_of_a_flag_and_line_zero_the_first() {
    EditExample::claude(
        "a\nb\n",
        json!({"file_path": "src/a.rs", "old_string": "b", "new_string": "x", "replace_all": null}),
    )
    .check(expect![[r#"
            edited src/a.rs line 2 (c-ID)
            -> "a\nx\n""#]]);
    let world = FsFixture::new();
    world.write("a", "1\n2\n");
    assert_eq!(world.value("read_file", &json!({"path": "a", "offset": 0, "limit": 1}))["content"], "1\n");
}

/// Lines that differ in what relaxations are about.
fn any_lines(count: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    let line = select(vec!["a", "  a", "    a", "b ", "  b", "“c”", "d – e", "f", ""]);
    vec(line, count).prop_map(|lines| lines.iter().map(|line| format!("{line}\n")).collect())
}

#[test]
fn the_diff_of_the_preview_is_what_is_written() {
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let edits = (any_lines(1..8), any_lines(1..4), any_lines(0..4), any::<Option<Index>>());
    let made = std::cell::Cell::new(0);
    let result = TestRunner::new(config).run(&edits, |(content, other, new, place)| {
        // Lines of the file without what is around them, or any others.
        let lines: Vec<&str> = content.lines().collect();
        let old = match place.map(|place| place.index(lines.len().max(1))) {
            Some(at) => lines.iter().skip(at).take(2).map(|line| format!("{}\n", line.trim())).collect(),
            None => other,
        };
        for (dialect, tool) in [(Dialect::Claude, "Edit"), (Dialect::Codex, "apply_patch")] {
            let person = ScriptedApprover::approving();
            let setup =
                FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..FsFixtureConfig::of(dialect) };
            let world = FsFixture::with(setup);
            world.write("f", &content);
            let marked =
                |mark: char, text: &str| text.lines().map(|line| format!("{mark}{line}\n")).collect::<String>();
            let patch = format!(
                "*** Begin Patch\n*** Update File: f\n@@\n{}{}*** End Patch\n",
                marked('-', &old),
                marked('+', &new)
            );
            let arguments = match dialect {
                Dialect::Claude => json!({"file_path": "f", "old_string": old.trim(), "new_string": new.trim()}),
                _ => json!({"input": patch}),
            };
            let reply = world.call(tool, &arguments);
            let written = world.read("f");
            if reply.error.is_some() || written == content {
                prop_assert_eq!(written, content.clone());
                continue;
            }
            made.set(made.get() + 1);
            let shown = person.last_request().preview.text();
            let (_, diff) = shown.split_once('\n').unwrap();
            let other = FsFixture::new();
            other.write("f", &content);
            other.value("apply_patch", &json!({"patch": format!("{diff}\n")}));
            prop_assert_eq!(other.read("f"), written, "{}", diff);
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    assert!(made.get() > 10, "{} edits were made", made.get());
}
