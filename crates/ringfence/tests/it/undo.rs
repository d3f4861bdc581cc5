//! Undo, redo and the log at the command line.

use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite};

fn log(site: &TestSite) -> Vec<Value> {
    let said = site.run(&["log", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    serde_json::from_str::<Value>(&said.out).unwrap()["changes"].as_array().unwrap().clone()
}

#[track_caller]
fn ok(said: &CliOutput) -> &str {
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    &said.out
}

#[test]
fn a_person_lists_shows_undoes_and_redoes_changes_of_other_processes() {
    let site = TestSite::new();
    site.write("f.txt", "one\n");
    site.call("write_file", &json!({"path": "f.txt", "content": "two\n"})).value();
    site.call("delete_file", &json!({"path": "f.txt"})).value();
    let changes = log(&site);
    let tools: Vec<&str> = changes.iter().map(|change| change["tool"].as_str().unwrap()).collect();
    assert_eq!(tools, ["delete_file", "write_file"]);
    assert!(changes[0]["session"].as_str().unwrap().starts_with("cli-"));
    let write = changes[1]["change"].as_str().unwrap();
    assert_eq!(ok(&site.run(&["diff", write])), "--- a/f.txt\n+++ b/f.txt\n@@ -1 +1 @@\n-one\n+two\n");
    let listed = site.run(&["log"]);
    assert!(ok(&listed).lines().nth(1).unwrap().starts_with(write), "{listed:?}");
    let said = site.run(&["undo", "--dry-run"]);
    assert!(ok(&said).ends_with("  f.txt\n--- /dev/null\n+++ b/f.txt\n@@ -0,0 +1,1 @@\n+two\n"), "{said:?}");
    assert_eq!(site.tree(), []);
    // The default preset requires approval to delete or overwrite; a person who types the command has approved.
    ok(&site.run(&["undo"]));
    assert_eq!(site.read("f.txt"), "two\n");
    ok(&site.run(&["undo"]));
    assert_eq!(site.read("f.txt"), "one\n");
    ok(&site.run(&["redo"]));
    assert_eq!(site.read("f.txt"), "two\n");
    ok(&site.run(&["redo"]));
    assert_eq!(site.tree(), []);
    let nothing = site.run(&["redo"]);
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
    let session = changes[0]["session"].as_str().unwrap();
    ok(&site.run(&["undo", "--session", session]));
    assert_eq!(site.read("f.txt"), "two\n");
}

#[test]
fn an_undo_conflict_is_shown_and_can_be_forced() {
    let site = TestSite::new();
    site.write("f.txt", "one\n");
    site.call("write_file", &json!({"path": "f.txt", "content": "two\n"})).value();
    site.write("f.txt", "three\n");
    let said = site.run(&["undo"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("4 bytes") && said.err.contains("6 bytes"), "{said:?}");
    assert_eq!(site.read("f.txt"), "three\n");
    ok(&site.run(&["undo", "--force"]));
    assert_eq!(site.read("f.txt"), "one\n");
    ok(&site.run(&["redo"]));
    assert_eq!(site.read("f.txt"), "three\n");
}

#[test]
fn a_person_undoes_what_agents_may_not_but_not_under_read_only() {
    let site = TestSite::new();
    site.call("write_file", &json!({"path": "f.txt", "content": "x"})).value();
    site.write("ringfence.toml", "[tools]\ndeny = [\"undo\"]\n");
    assert_eq!(site.call("undo", &json!({})).code, Some(1));
    assert_eq!(site.run(&["undo", "--read-only"]).code, Some(1));
    assert_eq!(site.read("f.txt"), "x");
    ok(&site.run(&["undo"]));
    assert_eq!(site.tree().len(), 1);
}

#[test]
fn a_keep_that_came_with_a_clone_is_refused_and_reads_go_on() {
    let site = TestSite::new();
    site.write("f.txt", "one\n");
    site.write(".ringfence/c-0-0", "forged");
    let said = site.call("write_file", &json!({"path": "f.txt", "content": "two\n"}));
    assert_eq!(said.error(), "UNAVAILABLE");
    site.call("read_file", &json!({"path": "f.txt"})).value();
    assert_eq!(site.run(&["undo"]).code, Some(1));
    assert_eq!(std::fs::read_to_string(site.workspace.join(".ringfence/c-0-0")).unwrap(), "forged");
}

#[test]
fn reading_commands_create_no_workspace() {
    let mut site = TestSite::new();
    let missing = site.root().join("missing");
    site.workspace.clone_from(&missing);
    for arguments in [&["log"][..], &["diff", "c-1"], &["undo"], &["undo", "--dry-run"], &["redo"]] {
        let said = site.run(arguments);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains("workspace `") && said.err.contains("` does not exist"), "{said:?}");
        assert!(!missing.exists(), "{arguments:?}");
    }
}

#[test]
fn a_time_that_is_none_is_bad_usage() {
    let site = TestSite::new();
    let said = site.run(&["undo", "--since", "bogus"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("2026-01-31T12:00:00Z"), "{said:?}");
}

#[test]
fn the_log_names_the_session_of_every_change() {
    let site = TestSite::new();
    site.call("write_file", &json!({"path": "a", "content": "x"})).value();
    site.call("write_file", &json!({"path": "b", "content": "x"})).value();
    let sessions: Vec<String> =
        log(&site).iter().map(|change| change["session"].as_str().unwrap().to_owned()).collect();
    // Each process is a session of its own.
    assert!(sessions[0] != sessions[1] && sessions.iter().all(|session| session.starts_with("cli-")), "{sessions:?}");
    for (session, path) in sessions.iter().zip(["b", "a"]) {
        let said = site.run(&["log", "--session", session]);
        assert_eq!(ok(&said).lines().count(), 1);
        assert!(ok(&said).contains(session.as_str()) && ok(&said).ends_with(&format!("  {path}\n")), "{said:?}");
    }
    ok(&site.run(&["undo", "--session", &sessions[1]]));
    assert_eq!(site.tree(), [("b".to_owned(), Some(b"x".to_vec()))]);
}
