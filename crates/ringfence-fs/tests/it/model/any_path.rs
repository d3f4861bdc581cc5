//! Property tests of paths and arguments: none leads out or breaks a call.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ringfence_fs::ResolverBackend;
use ringfence_kernel::ErrorKind;
use serde_json::{Value, json};

use super::{check, reply};
use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::snapshot::{TreeSnapshot, snapshot};

/// Every tool with a path in each of its path arguments.
fn calls_with(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read_file", json!({"path": path})),
        ("read_file", json!({"path": path, "startLine": 1, "endLine": 2})),
        ("list_directory", json!({"path": path, "recursive": true, "includeHidden": true})),
        ("get_file_info", json!({"path": path})),
        ("find_files", json!({"path": path, "glob": "**/*"})),
        ("find_files", json!({"path": ".", "glob": path})),
        ("append_file", json!({"path": path, "content": "x"})),
        ("edit_file", json!({"path": path, "oldText": "x", "newText": "y", "replaceAll": true})),
        ("search_files", json!({"path": path, "pattern": "x"})),
        ("apply_patch", json!({"path": path, "patch": "@@ -1 +1 @@\n-x\n+y\n"})),
        ("apply_patch", json!({"patch": format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-x\n+y\n")})),
        ("copy_file", json!({"from": path, "to": "copy", "overwrite": true})),
        ("copy_file", json!({"from": "f.txt", "to": path, "overwrite": true})),
        ("move_file", json!({"from": path, "to": "moved", "overwrite": true})),
        ("move_file", json!({"from": "moved", "to": path, "overwrite": true})),
        ("create_directory", json!({"path": path})),
        ("delete_file", json!({"path": path, "recursive": true})),
        ("write_file", json!({"path": path, "content": "x", "createDirs": true})),
    ]
}

/// Hostile paths, and any others.
fn hostile_path() -> impl Strategy<Value = String> {
    let parts = vec![
        "..",
        ".",
        "",
        "/",
        "f.txt",
        "d",
        "out",
        "out-file",
        "abs",
        "dangling",
        "loop",
        "outside",
        "secret",
        "ws",
        "\0",
        "\n",
        "\u{202e}",
        "\\",
        "\\x2e\\x2e",
        "\\xff",
        "\\x00",
        "~",
        "@workspace",
        "@",
        "C:",
        "file:",
        "*",
        "{a,b}",
        "[",
        "proc",
        "self",
        "root",
        "etc",
        "passwd",
        ".env",
        ".git",
        ".ringfence-tmp-0",
        "é",
        "ﬁ",
        "${HOME}",
        "%2e%2e",
        "．．",
        " ",
        "-rf",
    ];
    let separator = select(vec!["/", "/", "/", "//", "\\", "/./", ""]);
    let made = vec((select(parts), separator), 1..8)
        .prop_map(|parts| parts.into_iter().flat_map(|(part, separator)| [part, separator]).collect::<String>());
    let bytes = vec(any::<u8>(), 0..40).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    prop_oneof![8 => made, 2 => any::<String>(), 1 => bytes, 1 => "[a-z./]{200,5000}"]
}

/// A world with ways out of it, none of which may work.
fn fixture_with_escapes(backend: ResolverBackend) -> FsFixture {
    let world = FsFixture::in_memory(FsFixtureConfig::default().on(backend));
    world.write("f.txt", "x");
    world.write("d/g.txt", "x");
    let link = |target: &Path, name: &str| std::os::unix::fs::symlink(target, world.root.join(name)).unwrap();
    link(Path::new("../outside"), "out");
    link(Path::new("../outside/secret"), "out-file");
    link(&world.outside, "abs");
    link(Path::new("../outside/none"), "dangling");
    link(Path::new("loop"), "loop");
    world
}

/// Everything but the workspace and the host's own notes.
fn outside_snapshot(world: &FsFixture) -> TreeSnapshot {
    let mut found = snapshot(world.host_path());
    found.retain(|path, _| !path.starts_with("ws") && !path.starts_with("state"));
    found
}

#[test]
fn no_path_whatever_leads_out_breaks_a_call_or_shows_where_the_workspace_is() {
    // As it is, and below each directory that an absolute path could begin with.
    let start = select(vec!["", "", "", "", "/", "{host}/ws/", "{host}/", "{host}/ws/../"]);
    let strategy = (hostile_path(), start, select(vec![ResolverBackend::Best, ResolverBackend::CapStd]));
    check(128, &strategy, |(path, start, backend)| {
        let world = fixture_with_escapes(backend);
        let before = outside_snapshot(&world);
        let host_path = world.host_path().to_str().unwrap();
        let path = start.replace("{host}", host_path) + &path;
        for (tool, arguments) in calls_with(&path) {
            let answer = world.call(tool, &arguments);
            reply(&answer);
            assert_ne!(answer.error, Some(ErrorKind::Internal), "{tool} {arguments}: {}", answer.text);
            assert!(!answer.text.contains(host_path), "{tool} {arguments}: {}", answer.text);
            assert!(!answer.text.contains("SECRET"), "{tool} {arguments}: {}", answer.text);
            assert_eq!(outside_snapshot(&world), before, "{tool} {arguments}");
        }
    });
}

#[test]
fn no_arguments_whatever_break_a_call() {
    let world = FsFixture::in_memory(FsFixtureConfig::default());
    let outside = snapshot(&world.outside);
    let tools: Vec<String> = world.session.catalog.list().map(|definition| definition.name.to_string()).collect();
    let word = r#"[{}\[\]":,a-z0-9\\ue+. -]{0,40}"#;
    let text = prop_oneof![any::<String>(), word, word.prop_map(|word| format!(r#"{{"path":"f.txt",{word}}}"#))];
    check(256, &(select(tools), text), |(tool, arguments)| {
        let answer = world.call_text(&tool, &arguments);
        reply(&answer);
        assert_ne!(answer.error, Some(ErrorKind::Internal), "{tool} {arguments}: {}", answer.text);
    });
    assert_eq!(snapshot(&world.outside), outside);
}
