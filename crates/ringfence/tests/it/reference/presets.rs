//! The table of presets in `docs/policy.md`: each cell is what the program did when it was tried.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence::app::{App, build_app};
use ringfence::config::{CliFlags, load};
use ringfence_kernel::{ErrorKind, Host, Preset, Session, ToolCall, ToolReply};
use ringfence_testkit::approver::{ScriptedApprover, decision_by_person};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{head, row};
use crate::approval_table::answer;
use crate::site::TestSite;
use crate::web;

const BEGIN: &str = "<!-- presets: made by `cargo xtask docs` -->\n";
const END: &str = "<!-- /presets -->\n";

/// Stands for the ID of a change that was made before the call; for `redo`, of its undo.
const CHANGE: &str = "CHANGE";

/// Calls, with their descriptions.
fn calls() -> Vec<(&'static str, &'static str, Value)> {
    let run = |code: &str| json!({"language": "bash", "code": code});
    vec![
        ("list a directory", "list_directory", json!({"path": "."})),
        ("find files", "find_files", json!({"path": ".", "glob": "*.md"})),
        ("search files", "search_files", json!({"path": ".", "pattern": "old"})),
        ("look at a file's size and times", "get_file_info", json!({"path": "a.md"})),
        ("list changes", "list_changes", json!({})),
        ("show a change", "show_change", json!({"change": CHANGE})),
        ("read a file", "read_file", json!({"path": "a.md"})),
        ("read a secret", "read_file", json!({"path": ".env"})),
        ("create a file", "write_file", json!({"path": "new.md", "content": "x"})),
        ("create a directory", "create_directory", json!({"path": "new"})),
        ("copy a file to a new path", "copy_file", json!({"from": "a.md", "to": "new.md"})),
        ("move a file to a new path", "move_file", json!({"from": "a.md", "to": "new.md"})),
        ("overwrite a file", "write_file", json!({"path": "a.md", "content": "x"})),
        ("edit a file", "edit_file", json!({"path": "a.md", "oldText": "old", "newText": "x"})),
        ("append to a file", "append_file", json!({"path": "a.md", "content": "x"})),
        ("patch a file", "apply_patch", json!({"patch": "--- a/a.md\n+++ b/a.md\n@@ -1 +1 @@\n-old\n+x\n"})),
        ("copy over a file", "copy_file", json!({"from": "a.md", "to": "b.md", "overwrite": true})),
        ("move over a file", "move_file", json!({"from": "a.md", "to": "b.md", "overwrite": true})),
        ("delete a file", "delete_file", json!({"path": "a.md"})),
        ("delete a directory", "delete_file", json!({"path": "d", "recursive": true})),
        ("undo a change to a file", "undo", json!({"change": CHANGE})),
        ("redo a change to a file", "redo", json!({"change": CHANGE})),
        ("create a protected path", "write_file", json!({"path": ".envrc", "content": "x"})),
        ("overwrite a secret", "write_file", json!({"path": ".env", "content": "x"})),
        ("fetch from a host that no rule allows", "web_fetch", json!({"url": "https://example.org/"})),
        ("search the web with the configured engine", "web_search", json!({"query": "x"})),
        ("run a program", "run_code", run("true")),
        ("read the output of a background job", "job_output", json!({"job": 1})),
        ("stop a background job", "stop_job", json!({"job": 1})),
        ("a program creates a file", "run_code", run("echo x > new.md")),
        ("a program creates a directory", "run_code", run("mkdir new")),
        ("a program overwrites a file", "run_code", run("echo x > a.md")),
        ("a program changes permissions", "run_code", run("chmod 600 a.md")),
        ("a program deletes a file", "run_code", run("rm a.md")),
        ("a program deletes a directory", "run_code", run("rm -r d")),
        ("a program renames a file", "run_code", run("mv a.md new.md")),
        ("a program makes a link inside", "run_code", run("ln -s a.md link")),
        ("a program makes a link that leads outside", "run_code", run("ln -s /etc/passwd link")),
        ("a program creates a protected path", "run_code", run("echo x > .envrc")),
        ("a program reads a repository (`git status`)", "run_code", run("git status")),
        ("a program commits (`git commit`)", "run_code", run("echo x > new.md; git add new.md; git commit -qm x")),
        ("a program changes settings of git", "run_code", run("git config a.b c")),
        (
            "a program reaches a host that no rule allows",
            "run_code",
            json!({"language": "bash", "code": "true", "network": ["example.org"]}),
        ),
    ]
}

fn site() -> TestSite {
    let site = TestSite::in_memory();
    for path in ["a.md", "d/one", ".env"] {
        site.write(path, "old\n");
    }
    site.write("b.md", "other\n");
    site.write(".gitignore", ".env\n");
    let at = web::serve(|_| web::page("application/json", r#"{"results": []}"#));
    let engine = format!("[web.search]\nengine = \"searxng\"\nurl = \"http://{at}/\"\n");
    std::fs::write(config_file(&site), engine).unwrap();
    let git =
        "git init -q -b main && git config user.name a && git config user.email b && git add -A && git commit -qm x";
    let mut command = std::process::Command::new("sh");
    let ran = command.args(["-c", git]).current_dir(&site.workspace).env("HOME", &site.home).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    site
}

/// Names a search engine.
fn config_file(site: &TestSite) -> PathBuf {
    site.root().join("config.toml")
}

fn test_app(site: &TestSite, preset: Preset) -> App {
    let environment = site.environment();
    let workspace = Some(site.workspace.to_str().unwrap().to_owned());
    let flags = CliFlags { config: Some(config_file(site)), workspace, preset: Some(preset), ..CliFlags::default() };
    let settings = load(&flags, &environment).unwrap();
    build_app(settings, &environment, Box::new(ScriptedApprover::always(decision_by_person(answer(false))))).unwrap()
}

/// The outcome of a call where a person denies everything.
fn outcome_word(reply: &ToolReply, tool: &str) -> &'static str {
    match reply.error_kind() {
        None => "yes",
        Some(ErrorKind::ApprovalDenied) => "asks",
        Some(ErrorKind::PermissionDenied) => "no",
        Some(ErrorKind::WrongType) if tool == "run_code" => "never",
        Some(other) => panic!("{other:?}: {}", reply.text),
    }
}

async fn make_call(host: &Host, session: &Arc<Session>, tool: &str, arguments: &Value) -> ToolReply {
    let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
    host.call(session, call, &CancellationToken::new()).await.unwrap()
}

/// Changes a file, and undoes the change where it shall be redone. Returns the ID of the last change, and the session that
/// made it: another one does not see it.
fn make_change(site: &TestSite, tool: &str, runtime: &tokio::runtime::Runtime) -> (Value, Arc<Session>) {
    let app = test_app(site, Preset::Edits);
    let make = |tool: &str, arguments: Value| {
        let reply = runtime.block_on(make_call(&app.host, &app.session, tool, &arguments));
        assert_eq!(reply.error_kind(), None, "{}", reply.text);
        serde_json::from_str::<Value>(&reply.text).unwrap()["value"]["change"].clone()
    };
    let change = make("write_file", json!({"path": "a.md", "content": "x"}));
    let change = if tool == "redo" { make("undo", json!({"change": change})) } else { change };
    (change, app.session)
}

#[test]
fn every_tool_has_a_row_in_the_table_of_presets() {
    let site = site();
    let app = test_app(&site, Preset::Ask);
    let tools: BTreeSet<String> = app.session.catalog.list().map(|tool| tool.name.to_string()).collect();
    let rows: BTreeSet<String> = calls().into_iter().map(|(_, tool, _)| tool.to_owned()).collect();
    assert_eq!(rows, tools);
}

fn table() -> String {
    let presets = [Preset::Ask, Preset::Edits, Preset::ReadOnly];
    let mut text = head(["effect", "tried with", "`ask`", "`edits`", "`read-only`"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (effect, tool, arguments) in calls() {
        let words = presets.map(|preset| {
            // What another call changed must not decide about this one.
            let site = site();
            let tried = test_app(&site, preset);
            let reply = match arguments["change"] == CHANGE {
                true => {
                    let (change, session) = make_change(&site, tool, &runtime);
                    runtime.block_on(make_call(&tried.host, &session, tool, &json!({"change": change})))
                }
                false if arguments.get("job").is_some() => {
                    let job = json!({"code": "sleep 60", "background": true});
                    let started = runtime.block_on(make_call(&tried.host, &tried.session, "run_code", &job));
                    assert_eq!(started.error_kind(), None, "{}", started.text);
                    runtime.block_on(make_call(&tried.host, &tried.session, tool, &arguments))
                }
                false => runtime.block_on(make_call(&tried.host, &tried.session, tool, &arguments)),
            };
            outcome_word(&reply, tool)
        });
        text.push_str(&row([effect, &format!("`{tool}`"), words[0], words[1], words[2]]));
    }
    text
}

#[test]
fn the_table_of_presets_is_what_happens() {
    let file = super::directory().join("../policy.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (_, after) = rest.split_once(END).expect("the table ends");
    let made = format!("{before}{BEGIN}{}\n{END}{after}", table());
    if std::env::var_os("RINGFENCE_UPDATE_DOCS").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap();
    let differs = made.lines().zip(there.lines()).find(|(made, there)| made != there);
    assert!(made == there, "docs/policy.md: `cargo xtask docs` rewrites the table: {differs:?}");
}
