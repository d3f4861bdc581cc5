//! A change of several files that was cut short, and what people do before it is cleaned up.

use serde_json::json;

use super::{CrashPoint, CrashTamper, call_under_strace, has_strace, trigger_recovery};
use crate::site::{PROGRAM, TestSite, run_with_input};

#[test]
fn edits_made_after_a_crash_in_a_batch_stay() {
    if !has_strace() {
        return;
    }
    let patch = "--- f1\n+++ f1\n@@ -1 +1 @@\n-one\n+ONE\n--- f2\n+++ f2\n@@ -1 +1 @@\n-two\n+TWO\n";
    let crashed = || {
        let site = TestSite::in_memory();
        site.write("f1", "one\n");
        site.write("f2", "two\n");
        let point = CrashPoint { call: "renameat2", nth: 2, tamper: CrashTamper::Kill };
        assert!(call_under_strace(&site, point, "apply_patch", &json!({"patch": patch})).reached);
        assert_eq!((site.read("f1"), site.read("f2")), ("ONE\n".to_owned(), "two\n".to_owned()));
        site
    };
    let kept = |site: &TestSite| {
        let old = site.tree().into_iter().filter(|(name, _)| name.starts_with("conflict-"));
        old.map(|(_, content)| String::from_utf8(content.unwrap()).unwrap()).collect::<Vec<_>>()
    };
    // Nothing happened since: the first file goes back.
    let site = crashed();
    trigger_recovery(&site);
    assert_eq!((site.read("f1"), site.read("f2"), kept(&site)), ("one\n".to_owned(), "two\n".to_owned(), vec![]));
    // A person added a line.
    let site = crashed();
    let mut file = std::fs::OpenOptions::new().append(true).open(site.workspace.join("f1")).unwrap();
    std::io::Write::write_all(&mut file, b"of a person\n").unwrap();
    trigger_recovery(&site);
    assert_eq!((site.read("f1"), kept(&site)), ("ONE\nof a person\n".to_owned(), vec!["one\n".to_owned()]));
    // A person put another file there, which may well have got the number of the one that went.
    let site = crashed();
    std::fs::remove_file(site.workspace.join("f1")).unwrap();
    site.write("f1", "new\n");
    trigger_recovery(&site);
    assert_eq!((site.read("f1"), kept(&site)), ("new\n".to_owned(), vec!["one\n".to_owned()]));
    // A call that changes one of the files first rolls back the crashed one.
    let site = crashed();
    site.call("append_file", &json!({"path": "f1", "content": "more\n"})).value();
    assert_eq!((site.read("f1"), site.read("f2")), ("one\nmore\n".to_owned(), "two\n".to_owned()));
    assert_eq!(site.temp_files(), [""; 0]);
}

#[test]
fn a_batch_in_a_directory_that_was_moved_after_a_crash_is_cleaned_up_where_it_is() {
    if !has_strace() {
        return;
    }
    let patch = "--- d/f1\n+++ d/f1\n@@ -1 +1 @@\n-one\n+ONE\n--- d/f2\n+++ d/f2\n@@ -1 +1 @@\n-two\n+TWO\n";
    let crashed = |call, nth| {
        let site = TestSite::in_memory();
        site.write("d/f1", "one\n");
        site.write("d/f2", "two\n");
        // Files of ours are made, and their syncs not counted.
        trigger_recovery(&site);
        let point = CrashPoint { call, nth, tamper: CrashTamper::Kill };
        assert!(call_under_strace(&site, point, "apply_patch", &json!({"patch": patch})).reached);
        std::fs::create_dir(site.workspace.join("below")).unwrap();
        std::fs::rename(site.workspace.join("d"), site.workspace.join("below/e")).unwrap();
        site
    };
    let both = |site: &TestSite, directory: &str| ["f1", "f2"].map(|name| site.read(&format!("{directory}/{name}")));
    // Half of it was done: that half is rolled back, with another directory at the old path too.
    for another in [false, true] {
        let site = crashed("renameat2", 2);
        if another {
            site.write("d/f1", "of a person\n");
        }
        trigger_recovery(&site);
        assert_eq!(both(&site, "below/e"), ["one\n", "two\n"]);
        assert_eq!(site.temp_files(), [""; 0]);
        assert!(!another || site.read("d/f1") == "of a person\n");
    }
    // All of it was done, and the directory is about to be synced after the two files: what it displaced is kept.
    let site = crashed("fsync", 3);
    trigger_recovery(&site);
    assert_eq!(both(&site, "below/e"), ["ONE\n", "TWO\n"]);
    assert_eq!(site.temp_files(), [""; 0]);
    std::fs::rename(site.workspace.join("below/e"), site.workspace.join("d")).unwrap();
    assert_eq!(site.run(&["undo"]).code, Some(0));
    assert_eq!(both(&site, "d"), ["one\n", "two\n"]);
}

#[test]
fn a_batch_that_cannot_roll_back_reports_it_and_rolls_back_later() {
    if !has_strace() {
        return;
    }
    let site = TestSite::in_memory();
    site.write("f1", "one\n");
    site.write("f2", "two\n");
    let patch = "--- f1\n+++ f1\n@@ -1 +1 @@\n-one\n+ONE\n--- f2\n+++ f2\n@@ -1 +1 @@\n-two\n+TWO\n";
    let mut command = site.program("strace");
    command.args(["-f", "-o", "/dev/null", "--trace=renameat2", "--inject=renameat2:error=EIO:when=2+"]);
    command
        .arg(PROGRAM)
        .args(["--preset", "edits", "call", "apply_patch", "-"])
        .arg("--workspace")
        .arg(&site.workspace);
    let said = run_with_input(command, json!({"patch": patch}).to_string().as_bytes());
    assert_eq!(said.error(), "IO_ERROR");
    assert_eq!(said.reply()["error"]["details"]["committed"], "unknown", "{said:?}");
    trigger_recovery(&site);
    assert_eq!((site.read("f1"), site.read("f2")), ("one\n".to_owned(), "two\n".to_owned()));
    assert_eq!(site.temp_files(), [""; 0]);
}
