//! Approval table: every row, approved and denied, with the real tools.

use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence::app::{App, build_app};
use ringfence::config::{CliFlags, load};
use ringfence::store::SqliteStore;
use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalInbox, ApprovalResponse, ApprovalStore as _, Assurance, ErrorKind, Principal,
    SuspendedCall, ToolCall, ToolReply,
};
use ringfence_testkit::approver::{ScriptedApprover, decision_by_person};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::site::TestSite;

pub(crate) fn answer(approved: bool) -> ApprovalResponse {
    ApprovalResponse { approved, ..ApprovalResponse::default() }
}

fn change(arguments: Value) -> ApprovalResponse {
    ApprovalResponse { modified_args: Some(arguments), ..answer(true) }
}

/// A workspace with a file of every sort.
fn site() -> TestSite {
    let site = TestSite::in_memory();
    for path in ["a.md", "d/one", "d/two", ".env", ".git/config"] {
        site.write(path, "old\n");
    }
    site.write("b.md", "other\n");
    site
}

fn test_app(site: &TestSite, approver: &ScriptedApprover) -> App {
    let environment = site.environment();
    let workspace = Some(site.workspace.to_str().unwrap().to_owned());
    let settings = load(&CliFlags { workspace, ..CliFlags::default() }, &environment).unwrap();
    build_app(settings, &environment, Box::new(approver.clone())).unwrap()
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn call(app: &App, tool: &str, arguments: &Value) -> ToolReply {
    let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
    wait(app.host.call(&app.session, call, &CancellationToken::new())).unwrap()
}

/// Calls that run without approval, whatever the answer would have been.
fn automatic() -> Vec<(&'static str, Value)> {
    vec![
        ("list_directory", json!({"path": "."})),
        ("find_files", json!({"path": ".", "glob": "*.md"})),
        ("search_files", json!({"path": ".", "pattern": "old"})),
        ("get_file_info", json!({"path": "a.md"})),
        ("read_file", json!({"path": "a.md"})),
        ("write_file", json!({"path": "new.md", "content": "x"})),
        ("append_file", json!({"path": "new.md", "content": "x"})),
        ("create_directory", json!({"path": "new"})),
        ("copy_file", json!({"from": "a.md", "to": "new.md"})),
        ("move_file", json!({"from": "a.md", "to": "new.md"})),
        ("apply_patch", json!({"patch": "--- /dev/null\n+++ b/new.md\n@@ -0,0 +1 @@\n+x\n"})),
        ("run_code", json!({"language": "bash", "code": "echo x > new.md; mkdir new"})),
    ]
}

/// Calls that need approval.
fn confirmed() -> Vec<(&'static str, Value)> {
    vec![
        ("write_file", json!({"path": "a.md", "content": "x"})),
        ("append_file", json!({"path": "a.md", "content": "x"})),
        ("edit_file", json!({"path": "a.md", "oldText": "old", "newText": "x"})),
        ("apply_patch", json!({"patch": "--- a/a.md\n+++ b/a.md\n@@ -1 +1 @@\n-old\n+x\n"})),
        ("copy_file", json!({"from": "a.md", "to": "b.md", "overwrite": true})),
        ("move_file", json!({"from": "a.md", "to": "b.md", "overwrite": true})),
        ("delete_file", json!({"path": "a.md"})),
        ("delete_file", json!({"path": "d", "recursive": true})),
        ("read_file", json!({"path": ".env"})),
        ("write_file", json!({"path": ".env", "content": "x"})),
        ("write_file", json!({"path": ".git/hooks/pre-commit", "content": "x", "createDirs": true})),
        ("edit_file", json!({"path": ".git/config", "oldText": "old", "newText": "x"})),
        ("run_code", json!({"language": "bash", "code": "echo x > a.md; rm b.md"})),
        ("run_code", json!({"language": "bash", "code": "echo x >> .git/config"})),
    ]
}

#[test]
fn automatic_calls_do_not_ask() {
    for (tool, arguments) in automatic() {
        for approved in [true, false] {
            let (site, approver) = (site(), ScriptedApprover::always(decision_by_person(answer(approved))));
            let reply = call(&test_app(&site, &approver), tool, &arguments);
            assert_eq!(reply.error_kind(), None, "{tool} {arguments}: {}", reply.text);
            assert_eq!(approver.count(), 0, "{tool} {arguments}");
        }
    }
}

#[test]
fn a_confirmed_call_runs_only_after_approval() {
    for (tool, arguments) in confirmed() {
        let (site, approver) = (site(), ScriptedApprover::always(decision_by_person(answer(false))));
        let before = site.tree();
        let reply = call(&test_app(&site, &approver), tool, &arguments);
        assert_eq!(reply.error_kind(), Some(ErrorKind::ApprovalDenied), "{tool} {arguments}: {}", reply.text);
        assert_eq!((site.tree(), approver.count()), (before.clone(), 1), "{tool} {arguments}");
        let approver = ScriptedApprover::always(decision_by_person(answer(true)));
        let reply = call(&test_app(&site, &approver), tool, &arguments);
        assert_eq!(reply.error_kind(), None, "{tool} {arguments}: {}", reply.text);
        assert_eq!(approver.count(), 1, "{tool} {arguments}");
        assert_eq!(site.tree() == before, tool == "read_file", "{tool} {arguments}");
    }
}

#[test]
fn adding_to_a_secret_does_not_tell_its_hash() {
    for (path, told) in [(".env", false), ("a.md", true), ("new/.env", true)] {
        let (site, approver) = (site(), ScriptedApprover::always(decision_by_person(answer(true))));
        std::fs::create_dir(site.workspace.join("new")).unwrap();
        let reply = call(&test_app(&site, &approver), "append_file", &json!({"path": path, "content": "x"}));
        let value: Value = serde_json::from_str(&reply.text).unwrap();
        assert_eq!(value["value"]["sha256"].is_string(), told, "{path}: {}", reply.text);
        assert_eq!(value["ok"], true);
    }
}

#[test]
fn changed_arguments_that_leave_the_workspace_are_refused() {
    for outside in ["../outside/secret", "/etc/passwd", "d/../../outside/secret", "way-out"] {
        for (tool, arguments) in confirmed() {
            let mut changed = arguments.clone();
            for key in ["path", "to", "from"] {
                if let Some(path) = changed.get_mut(key) {
                    *path = json!(outside);
                }
            }
            // A link itself may go: it is inside.
            let takes_links = outside == "way-out" && matches!(tool, "delete_file" | "move_file");
            if changed == arguments || takes_links {
                continue;
            }
            let (site, approver) = (site(), ScriptedApprover::always(decision_by_person(change(changed))));
            std::os::unix::fs::symlink(site.outside.join("secret"), site.workspace.join("way-out")).unwrap();
            let before = site.tree();
            let reply = call(&test_app(&site, &approver), tool, &arguments);
            let refused = matches!(
                reply.error_kind(),
                Some(ErrorKind::OutsideWorkspace | ErrorKind::InvalidPath | ErrorKind::WrongType)
            );
            assert!(refused, "{tool} {outside}: {}", reply.text);
            assert_eq!(site.tree(), before, "{tool} {outside}");
            assert_eq!(std::fs::read_to_string(site.outside.join("secret")).unwrap(), "SECRET\n");
        }
    }
}

/// A host in a session that a front goes on with after a restart.
fn resumed_app(site: &TestSite) -> App {
    let mut app = test_app(site, &ScriptedApprover::deferring());
    Arc::get_mut(&mut app.session).unwrap().id = "lasting".to_owned();
    app
}

/// A deferred call, and its site.
fn suspended_call(arguments: &Value) -> (TestSite, SuspendedCall) {
    let site = site();
    let reply = call(&resumed_app(&site), "write_file", arguments);
    assert_eq!(reply.error_kind(), Some(ErrorKind::ApprovalPending));
    assert_eq!(site.read("a.md"), "old\n");
    (site, reply.suspended.unwrap())
}

/// The same call after a restart, once it was approved.
fn resume(site: &TestSite, suspended: &SuspendedCall) -> ToolReply {
    let app = resumed_app(site);
    wait(app.host.resume(&app.session, &suspended.token, &CancellationToken::new())).unwrap()
}

fn approve_request(site: &TestSite, suspended: &SuspendedCall) {
    let (store, person) = (SqliteStore::new(&site.state), Principal::person("approver"));
    let desk = ApprovalInbox { store: &store, principal: &person };
    desk.answer(&suspended.request_id, answer(true), Assurance::Person, SystemTime::now()).unwrap();
}

#[test]
fn a_suspended_call_resumes_once_after_a_restart() {
    let (site, suspended) = suspended_call(&json!({"path": "a.md", "content": "new\n"}));
    assert_eq!(resume(&site, &suspended).suspended, Some(suspended.clone()));
    approve_request(&site, &suspended);
    assert_eq!(resume(&site, &suspended).error_kind(), None);
    assert_eq!(site.read("a.md"), "new\n");
    site.write("a.md", "old\n");
    let again = resume(&site, &suspended);
    assert_eq!((again.error_kind(), site.read("a.md").as_str()), (Some(ErrorKind::ApprovalDenied), "old\n"));
    assert!(again.text.contains("already used"), "{}", again.text);
}

#[test]
fn a_target_that_was_swapped_before_a_call_came_back_stays() {
    let (site, suspended) = suspended_call(&json!({"path": "a.md", "content": "new\n"}));
    approve_request(&site, &suspended);
    std::fs::remove_file(site.workspace.join("a.md")).unwrap();
    site.write("a.md", "another\n");
    assert_eq!(resume(&site, &suspended).error_kind(), Some(ErrorKind::Conflict));
    assert_eq!(site.read("a.md"), "another\n");
    assert!(SqliteStore::new(&site.state).pending(SystemTime::now()).unwrap().is_empty());
}

#[test]
fn an_answer_from_an_unauthorized_principal_is_refused() {
    let (site, suspended) = suspended_call(&json!({"path": "a.md", "content": "new\n"}));
    let store = SqliteStore::new(&site.state);
    let agent = Principal::agent("command line");
    let desk = ApprovalInbox { store: &store, principal: &agent };
    assert!(desk.pending(SystemTime::now()).is_err());
    assert!(desk.answer(&suspended.request_id, answer(true), Assurance::Person, SystemTime::now()).is_err());
    // Even what got into the store some other way is checked again.
    let approval = Approval { assurance: Assurance::Person, by: Some(agent) };
    let forged = ApprovalDecision { response: answer(true), approval };
    store.answer(&suspended.request_id, &forged, SystemTime::now()).unwrap();
    assert_eq!(resume(&site, &suspended).error_kind(), Some(ErrorKind::ApprovalDenied));
    assert_eq!(site.read("a.md"), "old\n");
}
