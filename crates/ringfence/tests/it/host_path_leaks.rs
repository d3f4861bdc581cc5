//! Nothing that the program says has a host path in it, nor anything from outside the workspace.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite};

/// A workspace with every kind of thing that a path can lead to, and ways out of it.
fn site() -> TestSite {
    let site = TestSite::in_memory();
    site.write("a.txt", "one\ntwo\n");
    site.write("d/b.txt", "b\n");
    site.write("binary", b"\0\xff\x01");
    site.write(".env", "TOKEN=hunter2\n");
    let link = |to: &std::path::Path, name: &str| symlink(to, site.workspace.join(name)).unwrap();
    link(&site.outside.join("secret"), "absolute-out");
    link("../outside/secret".as_ref(), "relative-out");
    link("../outside".as_ref(), "directory-out");
    link(&site.workspace.join("a.txt"), "absolute-in");
    link("a.txt".as_ref(), "relative-in");
    link("loop".as_ref(), "loop");
    link("gone".as_ref(), "dangling");
    link("/proc/self/environ".as_ref(), "environment");
    link("/proc/self/cwd".as_ref(), "cwd");
    site
}

/// Paths, good and bad, as a model might try them.
fn paths(site: &TestSite) -> Vec<String> {
    let shown = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let mut paths: Vec<String> = [
        "a.txt",
        "d",
        "d/b.txt",
        ".",
        "",
        "..",
        "../outside/secret",
        "d/../../outside/secret",
        "none",
        "none/below",
        "a.txt/below",
        "A.TXT",
        "binary",
        ".env",
        "absolute-out",
        "relative-out",
        "directory-out",
        "directory-out/secret",
        "directory-out/new",
        "absolute-in",
        "relative-in",
        "loop",
        "dangling",
        "environment",
        "cwd/a.txt",
        "/etc/passwd",
        "/",
        "~",
        "~/x",
        "@mount/x",
        "a\0b",
        "a\nb",
        "\\x00",
        "C:\\x",
        "file:///etc/passwd",
        ".ringfence-tmp-0",
        "d/",
        "a.txt/",
        "./././a.txt",
        "//a.txt",
        "/proc/self/root/etc/passwd",
    ]
    .map(str::to_owned)
    .into();
    paths.push("x".repeat(300));
    paths.push("d/".repeat(3000));
    // What the model may know of the host and says itself comes back in its own form, inside, or not at all.
    paths.extend([
        shown(site.workspace.join("a.txt")),
        shown(site.workspace.join("none")),
        shown(site.workspace.join("relative-out")),
        shown(site.outside.join("secret")),
        shown(site.root().join("ws-beside")),
        shown(site.home.clone()),
        shown(site.workspace.clone()),
    ]);
    paths
}

fn calls(dialect: &str, path: &str) -> Vec<(&'static str, Value)> {
    let mut calls = vec![
        ("read_file", json!({"path": path})),
        ("write_file", json!({"path": path, "content": "new"})),
        ("append_file", json!({"path": path, "content": "more"})),
    ];
    calls.extend(match dialect {
        "miniclaw" => vec![
            ("list_dir", json!({"path": path})),
            ("edit_file", json!({"path": path, "old_text": "one", "new_text": "1"})),
        ],
        _ => vec![
            ("list_directory", json!({"path": path})),
            ("edit_file", json!({"path": path, "oldText": "one", "newText": "1"})),
            ("search_files", json!({"path": path, "pattern": "."})),
            ("apply_patch", json!({"path": path, "patch": "@@ -1 +1 @@\n-one\n+1\n"})),
            ("apply_patch", json!({"patch": format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-one\n+1\n")})),
            ("get_file_info", json!({"path": path})),
            ("find_files", json!({"path": path, "glob": "**"})),
            ("create_directory", json!({"path": path})),
            ("copy_file", json!({"from": path, "to": "copied"})),
            ("move_file", json!({"from": path, "to": "moved"})),
            ("move_file", json!({"from": "d/b.txt", "to": path, "overwrite": true})),
            ("delete_file", json!({"path": path, "recursive": true})),
        ],
    });
    calls
}

#[track_caller]
fn check(site: &TestSite, said: &CliOutput, what: &str) {
    let host = [site.root().to_str().unwrap(), site.home.to_str().unwrap()];
    for text in [&said.out, &said.err] {
        for path in host {
            assert!(!text.contains(path), "{what}: {path} in {text}");
        }
        for secret in ["SECRET", "hunter2", "root:", "RINGFENCE_STATE_DIR"] {
            assert!(!text.contains(secret), "{what}: {secret} in {text}");
        }
    }
    assert!(matches!(said.code, Some(0 | 1)), "{what}: {said:?}");
}

fn check_outside(site: &TestSite, what: &str) {
    let names: Vec<_> = std::fs::read_dir(&site.outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"], "{what}");
    assert_eq!(std::fs::read_to_string(site.outside.join("secret")).unwrap(), "SECRET\n", "{what}");
}

#[test]
fn no_reply_and_no_log_line_has_a_host_path_or_anything_from_outside() {
    let log = |site: &TestSite| site.root().join("log.jsonl");
    let mut count = 0;
    for dialect in ["standard", "miniclaw"] {
        let shape = site();
        for number in 0..paths(&shape).len() {
            let site = site();
            let path = &paths(&site)[number];
            let config = site.root().join("log.toml");
            std::fs::write(&config, format!("log = {}", json!(log(&site)))).unwrap();
            for (tool, arguments) in calls(dialect, path) {
                let options = ["--dialect", dialect, "--config", config.to_str().unwrap()];
                let said = site.call_with(&options, tool, &arguments);
                let what = format!("{dialect} {tool} {arguments}");
                check(&site, &said, &what);
                count += 1;
            }
            check_outside(&site, path);
            let lines = std::fs::read_to_string(log(&site)).unwrap();
            assert_eq!(lines.lines().count(), calls(dialect, path).len(), "{path}");
            for secret in [site.root().to_str().unwrap(), "SECRET", "hunter2"] {
                assert!(!lines.contains(secret), "{path}: {secret} in {lines}");
            }
        }
    }
    println!("{count} calls");
}

#[test]
fn arguments_that_do_not_decode_give_nothing_away() {
    let site = site();
    let bad = [
        "",
        "{",
        "[]",
        "null",
        "5",
        "\"a.txt\"",
        "{}",
        r#"{"path":5}"#,
        r#"{"path":"a.txt","path":"b"}"#,
        r#"{"path":"a.txt","extra":1}"#,
        r#"{"path":"a.txt"}x"#,
        r#"{"path":"\ud800"}"#,
    ];
    for dialect in ["standard", "miniclaw"] {
        for arguments in bad {
            for tool in ["read_file", "write_file", "edit_file", "none", "../x"] {
                let said = site.run(&["--dialect", dialect, "call", tool, arguments]);
                assert_eq!(said.code, Some(1), "{tool} {arguments}: {said:?}");
                check(&site, &said, &format!("{dialect} {tool} {arguments}"));
            }
        }
    }
}
