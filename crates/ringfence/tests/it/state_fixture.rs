//! Upgrade test: the state of a landed version keeps working.
//!
//! `tests/state/v0.1.0` was written by the program of commit 03a5332: its config, journal with kept images, audit log,
//! tokens, approvals and transcripts. The test puts it where a user would have it and goes on from there. Only what names a
//! place on the disk is adapted: the identity of the workspace and of its image store, which every file system gives anew,
//! and the hash of the workspace's path.
//!
//! Not here: states of versions that never landed.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use ringfence::store::STORE_FILE;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/state/v0.1.0");

/// The changes of the fixture, oldest first.
const CHANGES: [(&str, &str); 10] = [
    ("c-55e9304954a5f5ca15a8", "write_file"),
    ("c-a12a389cfb080083ef47", "write_file"),
    ("c-c7506f444a620004b792", "edit_file"),
    ("c-77e217797ae5b84b4d59", "append_file"),
    ("c-5913c4e43bbae27ca59b", "move_file"),
    ("c-e92e17de9474513e38de", "run_code"),
    ("c-8c89423d85a82b1148c6", "delete_file"),
    ("c-842aec2d660b1776bbd9", "undo"),
    ("c-87f6d9c6f63f7eb7c8c9", "write_file"),
    ("c-9f7f102baffb350a361a", "write_file"),
];

/// A site with the state of the landed version in it.
fn upgraded_site() -> TestSite {
    let site = TestSite::new();
    let fixture = Path::new(FIXTURE);
    copy_private(&fixture.join("config.toml"), &site.config.join("ringfence/config.toml"));
    copy_tree(&fixture.join("workspace"), &site.workspace);
    std::fs::create_dir(site.workspace.join("notes")).unwrap();
    let images = site.workspace.join(".ringfence");
    copy_tree(&fixture.join("images"), &images);
    std::fs::write(images.join(".gitignore"), "*\n").unwrap();
    std::fs::set_permissions(&images, PermissionsExt::from_mode(0o700)).unwrap();
    let state = fixture.join("state");
    for file in ["approvals.db", "tokens.json", "audit/000001.jsonl", "audit/heads.jsonl", "audit/key", "audit/key.pub"]
    {
        copy_private(&state.join(file), &site.state.join(file));
    }
    let journal = site.state.join("journal").join(identity(&site.workspace, '-'));
    copy_private(&state.join("journal/log"), &journal.join("log"));
    std::fs::write(journal.join("keep"), identity(&images, ':')).unwrap();
    adopt_transcripts(&site);
    site
}

/// A directory as the journal knows it: device, inode and birth.
fn identity(directory: &Path, before_birth: char) -> String {
    let metadata = std::fs::metadata(directory).unwrap();
    let identity = format!("{:x}-{:x}", metadata.dev(), metadata.ino());
    match metadata.created() {
        Ok(birth) => format!("{identity}{before_birth}{}", birth.duration_since(UNIX_EPOCH).unwrap().as_nanos()),
        Err(_) => identity,
    }
}

/// Gives the transcripts to the workspace of this site. Which hash its path has is seen in a state that it writes now.
fn adopt_transcripts(site: &TestSite) {
    let other = site.root().join("other-state");
    std::fs::write(site.current.join("script.jsonl"), "{\"text\": \"Hello.\"}\n").unwrap();
    let mut greeting = site.command(&["agent", "--script", "script.jsonl", "-p", "hello"]);
    assert!(greeting.env("RINGFENCE_STATE_DIR", &other).output().unwrap().status.success());
    let hash: String = Connection::open(other.join(STORE_FILE))
        .and_then(|store| store.query_row("SELECT directory FROM sessions", [], |row| row.get(0)))
        .unwrap();
    let store = Connection::open(site.state.join("approvals.db")).unwrap();
    assert_eq!(store.execute("UPDATE sessions SET directory = ?1", [hash]).unwrap(), 1);
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => std::fs::write(to, std::fs::read(entry.path()).unwrap()).unwrap(),
        }
    }
}

/// Copies a file as the program keeps its own: for its user alone.
fn copy_private(from: &Path, to: &Path) {
    let mut directory = to.parent().unwrap();
    std::fs::create_dir_all(directory).unwrap();
    while !directory.ends_with("state") && !directory.ends_with("ringfence") {
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
        directory = directory.parent().unwrap();
    }
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(to, std::fs::read(from).unwrap()).unwrap();
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o600)).unwrap();
}

#[track_caller]
fn ok(said: &CliOutput) -> &str {
    assert_eq!(said.code, Some(0), "{said:?}");
    &said.out
}

fn changes(site: &TestSite) -> Vec<Value> {
    let listed: Value = serde_json::from_str(ok(&site.run(&["log", "--json"]))).unwrap();
    listed["changes"].as_array().unwrap().iter().rev().cloned().collect()
}

#[test]
fn an_older_journal_is_listed_and_undone() {
    let site = upgraded_site();
    let listed = changes(&site);
    let listed: Vec<(&str, &str)> =
        listed.iter().map(|change| (change["change"].as_str().unwrap(), change["tool"].as_str().unwrap())).collect();
    assert_eq!(listed, CHANGES);
    ok(&site.run(&["undo", "c-9f7f102baffb350a361a"]));
    assert_eq!(site.read("lib/a.txt"), "one\n");
    ok(&site.run(&["redo"]));
    assert_eq!(site.read("lib/a.txt"), "changed\n");
    // The directory that the program made is known by inodes that this disk does not have, and the older changes lie
    // below that one.
    ok(&site.run(&["undo", "c-87f6d9c6f63f7eb7c8c9"]));
    assert!(!site.workspace.join("plan.md").exists());
}

#[test]
fn an_older_audit_log_verifies_and_goes_on() {
    let site = upgraded_site();
    let verified = site.run(&["audit", "verify"]);
    assert!(ok(&verified).starts_with("ok: 29 records, signed up to 29"), "{verified:?}");
    site.call("read_file", &json!({"path": "plan.md"})).value();
    let verified = site.run(&["audit", "verify"]);
    assert!(ok(&verified).starts_with("ok: 31 records, signed up to 31"), "{verified:?}");
}

#[test]
fn older_transcripts_tokens_and_config_are_read() {
    let site = upgraded_site();
    let sessions = site.run(&["sessions", "list"]);
    assert!(ok(&sessions).contains("agent-c099d24f3aabd129") && sessions.out.contains("write a plan"), "{sessions:?}");
    let shown = site.run(&["sessions", "show", "agent-c099d24f3aabd129"]);
    assert!(ok(&shown).contains("The plan is written."), "{shown:?}");
    let tokens = site.run(&["token", "list"]);
    assert!(ok(&tokens).contains("ci"), "{tokens:?}");
    let denied = site.call("write_file", &json!({"path": "docs/api/x.md", "content": "x", "createDirs": true}));
    assert_eq!(denied.error(), "PERMISSION_DENIED");
}
