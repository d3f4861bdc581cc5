//! Texts of the dialects of model families: one example of each form, and what must always hold.

use std::time::{Duration, SystemTime};

use ringfence_kernel::{CallLimits, Dialect, ErrorKind, MODEL_TEXT_BYTES};
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::model_edits::without_ids;

fn fixture(dialect: Dialect) -> FsFixture {
    FsFixture::with(FsFixtureConfig::of(dialect))
}

/// The text of a reply, where the digits of a change's ID are `…`.
#[track_caller]
fn check(world: &FsFixture, tool: &str, arguments: Value, expected: &str) {
    let reply = world.call(tool, &arguments);
    let mut text = reply.text.clone();
    while let Some(at) = text.find("(c-").filter(|at| text[at + 3..].starts_with(|c: char| c.is_ascii_hexdigit())) {
        text.replace_range(at + 3..at + 11, "…");
    }
    assert_eq!(text, expected, "{tool} {arguments}");
    assert_eq!(
        reply.error.is_some(),
        expected.contains("; ") && !expected.starts_with(|c: char| c.is_ascii_digit() || c == '['),
        "{tool} {arguments}: {text}"
    );
}

#[test]
fn files_are_numbered_lines() {
    for (dialect, tool, path, first) in [
        (Dialect::Claude, "Read", "file_path", "offset"),
        (Dialect::Gemini, "read_file", "file_path", "start_line"),
        (Dialect::Codex, "read_file", "path", "offset"),
    ] {
        let world = fixture(dialect);
        world.write("a.txt", "one\n\ttwo\nthree\n");
        world.write("empty", "");
        world.write("long", (1..=5321).map(|n| format!("{n}\n")).collect::<String>());
        check(&world, tool, json!({path: "a.txt"}), "1\tone\n2\t\ttwo\n3\tthree");
        check(&world, tool, json!({"path": "/workspace/a.txt", first: "2"}), "2\t\ttwo\n3\tthree");
        check(
            &world,
            tool,
            json!({path: "a.txt", first: 2, "limit": 1}),
            &format!("2\t\ttwo\n[lines 2–2 of 3; go on with {first} 3]"),
        );
        check(&world, tool, json!({path: "empty"}), "[the file is empty]");
        check(&world, tool, json!({path: "a.txt", first: 9}), "[the file has 3 lines; line 9 is past its end]");
        let page = world.call(tool, &json!({path: "long"})).text;
        assert!(page.ends_with(&format!("\n2000\t2000\n[lines 1–2000 of 5321; go on with {first} 2001]")), "{page}");
    }
}

#[test]
fn nothing_is_created_at_the_path_of_a_long_output() {
    let patch = "*** Begin Patch\n*** Add File: @output/a.txt\n+x\n*** End Patch";
    for (dialect, tool, arguments) in [
        (Dialect::Claude, "Write", json!({"file_path": "@output/a.txt", "content": "x"})),
        (Dialect::Claude, "Edit", json!({"file_path": "./@output/a.txt", "old_string": "", "new_string": "x"})),
        (Dialect::Codex, "apply_patch", json!({"input": patch})),
        (Dialect::Gemini, "write_file", json!({"file_path": "@output/deep/a.txt", "content": "x"})),
    ] {
        let world = fixture(dialect);
        let reply = world.call(tool, &arguments);
        let text = &reply.text;
        assert_eq!(reply.error, Some(ErrorKind::InvalidPath), "{tool}: {text}");
        assert!(text.ends_with("which can only be read; name the file without `@output/`"), "{tool}: {text}");
        assert!(!world.host_path().join("@output").exists(), "{tool}: {text}");
    }
}

#[test]
fn directories_are_names_with_sizes() {
    for (dialect, tool, path) in
        [(Dialect::Claude, "Read", "file_path"), (Dialect::Gemini, "list_directory", "dir_path")]
    {
        let world = fixture(dialect);
        world.write("d/b.txt", "12345");
        world.write("d/.hidden", "");
        world.write("d/sub/x", "");
        std::os::unix::fs::symlink("b.txt", world.root.join("d/link")).unwrap();
        std::fs::create_dir(world.root.join("none")).unwrap();
        check(&world, tool, json!({path: "d"}), ".hidden\t0\nb.txt\t5\nlink@\nsub/");
        check(&world, tool, json!({path: "none"}), "[the directory is empty]");
    }
    check(&fixture(Dialect::Gemini), "list_directory", json!({}), "[the directory is empty]");
}

#[test]
fn globs_are_newest_first_without_ignored_files() {
    let age = |world: &FsFixture, path: &str, seconds: u64| {
        let file = std::fs::File::options().write(true).open(world.root.join(path)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - seconds)).unwrap();
    };
    for (dialect, tool, path, search) in
        [(Dialect::Claude, "Glob", "path", "Grep"), (Dialect::Gemini, "glob", "dir_path", "grep_search")]
    {
        let world = fixture(dialect);
        for (name, seconds) in
            [("src/old.rs", 30), ("src/new.rs", 10), ("src/deep/mid.rs", 20), ("target/x.rs", 1), ("src/a.txt", 5)]
        {
            world.write(name, "");
            age(&world, name, seconds);
        }
        world.write(".gitignore", "target\n");
        check(&world, tool, json!({"pattern": "**/*.rs"}), "src/new.rs\nsrc/deep/mid.rs\nsrc/old.rs");
        check(&world, tool, json!({"pattern": "/workspace/src/*.rs"}), "src/new.rs\nsrc/old.rs");
        check(&world, tool, json!({"pattern": "*.rs", path: "src/deep"}), "src/deep/mid.rs");
        let none = format!("[no path matches; {search} looks in contents]");
        check(&world, tool, json!({"pattern": "*.none"}), &none);
        for number in 0..105 {
            world.write(&format!("many/{number}.js"), "");
            age(&world, &format!("many/{number}.js"), 1000 - number);
        }
        let text = world.call(tool, &json!({"pattern": "*.js"})).text;
        let (first, last) = (text.lines().next().unwrap(), text.lines().last().unwrap());
        assert_eq!(first, "many/104.js");
        assert_eq!(last, "[the newest 100 of 105 files; narrow the pattern or the directory]");
    }
}

#[test]
fn matches_are_grouped_by_file() {
    let world = fixture(Dialect::Claude);
    world.write("src/a.rs", "fn a() {}\n// none\nfn b() {}\n");
    world.write("b.py", "FN\nfn\n");
    let content = |more: Value| {
        let mut arguments = json!({"pattern": "fn", "output_mode": "content"});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        arguments
    };
    check(&world, "Grep", json!({"pattern": "fn"}), "b.py\nsrc/a.rs\n[2 files]");
    check(&world, "Grep", json!({"pattern": "fn", "output_mode": "count"}), "b.py: 1\nsrc/a.rs: 2\n[2 files]");
    check(
        &world,
        "Grep",
        content(json!({})),
        "b.py\n2\tfn\nsrc/a.rs\n1\tfn a() {}\n3\tfn b() {}\n[3 matches in 2 files]",
    );
    check(
        &world,
        "Grep",
        content(json!({"-i": true, "type": "py", "-n": true})),
        "b.py\n1\tFN\n2\tfn\n[2 matches in 1 file]",
    );
    check(
        &world,
        "Grep",
        content(json!({"-C": "1", "glob": "*.rs"})),
        "src/a.rs\n1\tfn a() {}\n2-\t// none\n3\tfn b() {}\n[2 matches in 1 file]",
    );
    let page = "b.py\n2\tfn\n[1 match in 1 file; there are more: go on with offset 1, or narrow the search]";
    assert_eq!(world.call("Grep", &content(json!({"head_limit": 1}))).text, page);
    let page = "src/a.rs\n1\tfn a() {}\n[1 match in 1 file; there are more: go on with offset 2, or narrow the search]";
    assert_eq!(world.call("Grep", &content(json!({"head_limit": 1, "offset": 1}))).text, page);
    check(&world, "Grep", json!({"pattern": "absent"}), "[no match in 2 files]");
    let refused = world.call("Grep", &json!({"pattern": "a", "multiline": true}));
    assert_eq!(refused.error, Some(ErrorKind::InvalidArgs), "{}", refused.text);
    assert_eq!(world.error("Grep", &json!({"pattern": "a", "type": "pyt"})), ErrorKind::InvalidArgs);
    let world = fixture(Dialect::Gemini);
    world.write("b.py", "FN\nfn(\n");
    check(&world, "grep_search", json!({"pattern": "fn"}), "b.py\n1\tFN\n2\tfn(\n[2 matches in 1 file]");
    check(
        &world,
        "grep_search",
        json!({"pattern": "fn", "case_sensitive": true, "include_pattern": "*.py"}),
        "b.py\n2\tfn(\n[1 match in 1 file]",
    );
    check(
        &world,
        "grep_search",
        json!({"pattern": "fn(", "fixed_strings": true, "names_only": true}),
        "b.py\n[1 file]",
    );
}

#[test]
fn a_write_over_contents_that_the_session_has_not_seen_is_refused() {
    for (dialect, read, write) in [(Dialect::Claude, "Read", "Write"), (Dialect::Gemini, "read_file", "write_file")] {
        let world = fixture(dialect);
        let put = |content: &str| json!({"file_path": "a.txt", "content": content});
        check(&world, write, put("one\n"), "created a.txt, 4 bytes (c-…)");
        check(&world, write, put("two\n"), "replaced a.txt, 4 bytes (c-…)");
        check(&world, write, put("two\n"), "a.txt has these contents already");
        world.write("a.txt", "of another program\n");
        let refusal = format!(
            "`a.txt` exists with 19 bytes that this session has not seen as they are now; nothing was written; read it with {read} first"
        );
        check(&world, write, put("three\n"), &refusal);
        assert_eq!(world.read("a.txt"), "of another program\n");
        world.call(read, &json!({"file_path": "a.txt"}));
        check(&world, write, put("three\n"), "replaced a.txt, 6 bytes (c-…)");
        world.write("empty", "");
        check(&world, write, json!({"path": "empty", "content": "x"}), "replaced empty, 1 bytes (c-…)");
        check(&world, write, json!({"file_path": "new/dir/f", "content": "x"}), "created new/dir/f, 1 bytes (c-…)");
    }
    let world = fixture(Dialect::Standard);
    world.write("a.txt", "of another program\n");
    world.value("write_file", &json!({"file_path": "a.txt", "content": "x"}));
}

#[test]
fn contents_are_seen_once_every_line_was_shown() {
    for (dialect, read, write, first) in
        [(Dialect::Claude, "Read", "Write", "offset"), (Dialect::Gemini, "read_file", "write_file", "start_line")]
    {
        let world = fixture(dialect);
        let replaces = |path: &str| world.call(write, &json!({"file_path": path, "content": "x\n"})).error.is_none();
        let shows = |path: &str, first_line: u64, limit: u64| {
            world.call(read, &json!({"file_path": path, first: first_line, "limit": limit})).text
        };
        world.write("a", "one\ntwo\nthree\n");
        shows("a", 9, 1);
        assert!(!replaces("a"), "nothing was shown");
        shows("a", 2, 5);
        assert!(!replaces("a"), "the first line was not shown");
        shows("a", 1, 1);
        assert!(replaces("a"));
        // Two pages.
        world.write("long", (0..3000).map(|number| format!("{number}\n")).collect::<String>());
        shows("long", 1, 2000);
        assert!(!replaces("long"));
        shows("long", 2001, 2000);
        assert!(replaces("long"));
        // A line that is shown in part.
        world.write("wide", "w".repeat(40_000));
        shows("wide", 1, 1);
        assert!(!replaces("wide"));
    }
}

#[test]
fn an_edit_of_contents_that_were_not_seen_leaves_such_contents() {
    for (dialect, read, edit, write) in
        [(Dialect::Claude, "Read", "Edit", "Write"), (Dialect::Gemini, "read_file", "replace", "write_file")]
    {
        let world = fixture(dialect);
        let edits = |old: &str, new: &str| {
            let reply = world.call(edit, &json!({"file_path": "a", "old_string": old, "new_string": new}));
            assert_eq!(reply.error, None, "{}", reply.text);
        };
        let replaces =
            |content: &str| world.call(write, &json!({"file_path": "a", "content": content})).error.is_none();
        world.write("a", "one\ntwo\n");
        edits("one", "1");
        assert!(!replaces("x\n"));
        world.call(read, &json!({"file_path": "a"}));
        edits("two", "2");
        assert!(replaces("x\n"));
        edits("x", "y");
        assert!(replaces("z\n"));
    }
}

#[test]
fn a_file_that_is_too_large_to_hash_is_refused_with_what_works() {
    let limits = CallLimits { hash_bytes: 10, ..CallLimits::for_dialect(Dialect::Claude) };
    let world = FsFixture::with(FsFixtureConfig { limits, ..FsFixtureConfig::of(Dialect::Claude) });
    world.write("large", "more than ten bytes\n");
    world.call("Read", &json!({"file_path": "large"}));
    let reply = world.call("Write", &json!({"file_path": "large", "content": "x"}));
    assert!(reply.text.ends_with("it is too large to be replaced whole; change it with Edit"), "{}", reply.text);
}

#[test]
fn the_error_of_a_model_family_is_bounded() {
    let world = fixture(Dialect::Claude);
    let reply = world.call("Read", &json!({"x".repeat(100_000): 1}));
    assert_eq!(reply.error, Some(ErrorKind::InvalidArgs));
    assert!(reply.text.len() <= MODEL_TEXT_BYTES, "{} bytes", reply.text.len());
}

#[test]
fn changes_are_one_line_each_over_mcp() {
    let world = fixture(Dialect::Standard);
    world.write("a", "one\ntwo\n");
    let patch = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-two\n+2\n--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+b\n";
    for (tool, arguments, expected) in [
        ("edit_file", json!({"path": "a", "oldText": "one", "newText": "1"}), "edited a line 1 (c-ID)"),
        ("apply_patch", json!({"patch": patch}), "M a\nA b (c-ID)"),
        ("append_file", json!({"path": "a", "content": "3\n"}), "appended to a, 6 bytes (c-ID)"),
        ("copy_file", json!({"from": "a", "to": "c"}), "created c, 6 bytes (c-ID)"),
        ("move_file", json!({"from": "c", "to": "d"}), "moved c to d (c-ID)"),
        ("create_directory", json!({"path": "e"}), "created the directory e (c-ID)"),
        ("delete_file", json!({"path": "d"}), "deleted d (c-ID)"),
    ] {
        let reply = world.call(tool, &arguments);
        assert_eq!(without_ids(&reply.for_model.unwrap_or_default()), expected, "{tool}: {}", reply.text);
    }
}

#[test]
fn an_undo_takes_the_short_id_of_a_change() {
    for (dialect, undo) in [(Dialect::Claude, "Undo"), (Dialect::Gemini, "undo"), (Dialect::Codex, "undo")] {
        let world = fixture(dialect);
        if dialect == Dialect::Codex {
            assert_eq!(world.error(undo, &json!({})), ErrorKind::NotFound);
            continue;
        }
        let write = if dialect == Dialect::Claude { "Write" } else { "write_file" };
        let first = world.call(write, &json!({"file_path": "a", "content": "1"})).text;
        world.call(write, &json!({"file_path": "b", "content": "2"}));
        let id = &first[first.find("c-").unwrap()..first.len() - 1];
        assert_eq!(id.len(), 10, "{first}");
        let undone = world.call(undo, &json!({"change": id})).text;
        assert!(undone.starts_with(&format!("undid {id}: a (c-")), "{undone}");
        assert!(!world.root.join("a").exists() && world.root.join("b").exists());
        assert_eq!(world.error(undo, &json!({"change": &id[..6]})), ErrorKind::NotFound);
        assert!(world.call(undo, &json!({})).text.starts_with("undid c-"));
        assert!(!world.root.join("b").exists());
    }
}

#[test]
fn a_kept_output_is_read_by_its_own_session_only() {
    for (dialect, tool, path, first) in [
        (Dialect::Claude, "Read", "file_path", "offset"),
        (Dialect::Gemini, "read_file", "file_path", "start_line"),
        (Dialect::Codex, "read_file", "path", "offset"),
        (Dialect::Standard, "read_file", "path", "startLine"),
    ] {
        let world = fixture(dialect);
        let id = world.session.memory.outputs.keep("one\ntwo\nthree\n").to_string();
        let text = |arguments: Value| world.call(tool, &arguments).text;
        if dialect == Dialect::Standard {
            assert_eq!(world.value(tool, &json!({path: id, first: 2}))["content"], "two\nthree\n");
        } else {
            assert_eq!(text(json!({path: id})), "1\tone\n2\ttwo\n3\tthree");
            assert_eq!(text(json!({path: id, first: 2})), "2\ttwo\n3\tthree");
        }
        let other = fixture(dialect);
        let refused = other.call(tool, &json!({path: id}));
        assert_eq!(refused.error, Some(ErrorKind::NotFound), "{}", refused.text);
        assert!(refused.text.contains("is not kept any more"), "{}", refused.text);
    }
}

#[test]
fn a_long_list_goes_on_in_an_output() {
    let world = fixture(Dialect::Claude);
    for number in 0..400 {
        world.write(&format!("d/{number:03}-{}", "n".repeat(100)), "");
    }
    let text = world.call("Read", &json!({"file_path": "d"})).text;
    assert!(text.len() <= MODEL_TEXT_BYTES);
    let note = text.lines().last().unwrap();
    let id = note.split_once("go on in ").unwrap().1.split(' ').next().unwrap();
    let next: u64 = note.trim_end_matches(']').rsplit(' ').next().unwrap().parse().unwrap();
    let rest = world.call("Read", &json!({"file_path": id, "offset": next})).text;
    assert!(rest.starts_with(&format!("{next}\t{:03}-nnn", next - 1)), "{}", &rest[..40]);
    assert!(rest.ends_with(&format!("399-{}", "n".repeat(100))), "{rest}");
}

/// Every entry has to be looked at for its size, and a long list is read for its names.
#[test]
fn sizes_are_in_lists_of_up_to_two_hundred_entries() {
    let world = fixture(Dialect::Claude);
    for number in 0..200 {
        world.write(&format!("d/{number:03}"), "x");
    }
    let list = || world.call("Read", &json!({"file_path": "d"})).text;
    assert!(list().starts_with("000\t1\n001\t1\n") && list().ends_with("199\t1"), "{}", list());
    world.write("d/200", "x");
    assert!(list().starts_with("000\n001\n") && list().ends_with("199\n200"), "{}", list());
}

#[test]
fn an_image_is_shown_as_one() {
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x06\0\0\0";
    for (dialect, tool, path) in [
        (Dialect::Claude, "Read", "file_path"),
        (Dialect::Gemini, "read_file", "file_path"),
        (Dialect::Codex, "view_image", "path"),
    ] {
        let world = fixture(dialect);
        world.write("a.bin", PNG);
        check(&world, tool, json!({path: "a.bin"}), "[a.bin: image/png, 640×480 pixels, 29 bytes]");
        world.write("wide.png", [&PNG[..16], &[0, 1, 0, 0], &PNG[20..]].concat());
        assert_eq!(world.error(tool, &json!({path: "wide.png"})), ErrorKind::ReadLimit);
        world.write("cut.png", &PNG[..12]);
        assert_eq!(world.error(tool, &json!({path: "cut.png"})), ErrorKind::NotText);
        let mut large = PNG.to_vec();
        large.resize(3_750_001, 0);
        world.write("large.png", large);
        assert_eq!(world.error(tool, &json!({path: "large.png"})), ErrorKind::ReadLimit);
    }
    let world = fixture(Dialect::Codex);
    world.write("a.txt", "text");
    assert_eq!(world.error("view_image", &json!({"path": "a.txt"})), ErrorKind::WrongType);
}

#[test]
fn unknown_arguments_are_refused_with_the_nearest_name() {
    let world = fixture(Dialect::Claude);
    let reply = world.call("Read", &json!({"file_pat": "a"}));
    assert_eq!(reply.error, Some(ErrorKind::InvalidArgs));
    assert!(reply.text.ends_with("did you mean `file_path`?"), "{}", reply.text);
    assert_eq!(world.error("Read", &json!({"path": "a", "file_path": "b"})), ErrorKind::InvalidArgs);
    assert_eq!(world.error("Read", &json!({"path": "a", "offset": "two"})), ErrorKind::InvalidArgs);
}
