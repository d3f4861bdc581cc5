//! Audit records: every call leaves them, and none runs without.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalStore, ErrorKind, HostError, InMemoryApprovalStore, InboxError, PolicyAction, Principal, StoreError,
    ToolError,
};
use ringfence_testkit::approver::deny;
use ringfence_testkit::audit_trace::AuditTrace;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::{HookedStore, HostSetup, ToolScript, assert_error, reply_json};

#[tokio::test]
async fn a_call_that_runs_is_recorded_before_and_after() {
    let test_host = HostSetup::default().build();
    let reply = test_host.call(&json!({"path": "a"})).await;
    assert_eq!(reply_json(&reply), json!({"ok": true, "value": {"path": "a", "approved": false}}));
    assert_eq!(test_host.trace.lines(), ["begin change a", "end ok a"]);
}

#[tokio::test]
async fn a_change_has_an_id_of_its_own() {
    let ids: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let seen = Arc::clone(&ids);
    let script = ToolScript::run(move |_, ticket| {
        seen.lock().unwrap().insert(ticket.change_id().to_owned());
        ticket.commit()
    });
    let test_host = HostSetup::with_script(script).build();
    for _ in 0..3 {
        test_host.call(&json!({"path": "a"})).await;
    }
    let ids = ids.lock().unwrap();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.starts_with("c-")), "{ids:?}");
}

#[tokio::test]
async fn a_call_that_changes_nothing_has_no_change_id() {
    let test_host = HostSetup::default().build();
    test_host.call(&json!({"path": "a", "action": "read"})).await;
    assert_eq!(test_host.trace.lines(), ["begin a", "end ok a"]);
    assert!(!PolicyAction::Read.changes_files());
}

#[tokio::test]
async fn an_unknown_tool_is_refused_and_recorded() {
    let test_host = HostSetup::default().build();
    let reply = test_host.try_call("acts", "{}", &CancellationToken::new()).await.unwrap();
    assert_error(&reply, ErrorKind::UnknownTool);
    assert!(reply.text.contains("did you mean `act`?"), "{}", reply.text);
    assert_eq!(test_host.trace.lines(), ["refused UnknownTool"]);
}

#[tokio::test]
async fn arguments_that_do_not_decode_are_refused_and_recorded() {
    for arguments in ["", "[]", "{", r#"{"path":1}"#, r#"{"path":"a","path":"b"}"#, r#"{"path":"a","more":1}"#] {
        let test_host = HostSetup::default().build();
        let reply = test_host.try_call("act", arguments, &CancellationToken::new()).await.unwrap();
        assert_error(&reply, ErrorKind::InvalidArgs);
        assert_eq!(
            (test_host.trace.lines(), test_host.runs()),
            (vec!["refused InvalidArgs".to_owned()], 0),
            "{arguments}"
        );
    }
}

#[tokio::test]
async fn a_plan_that_fails_is_refused_and_recorded_with_what_it_was_about() {
    let test_host =
        HostSetup::with_script(ToolScript::plan(|_, _| Err(ToolError::new(ErrorKind::NotFound, "it is not there"))))
            .build();
    assert_error(&test_host.call(&json!({"path": "a"})).await, ErrorKind::NotFound);
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused NotFound a".to_owned()], 0));
}

#[tokio::test]
async fn a_policy_denial_is_refused_and_recorded() {
    let test_host = HostSetup::default().build();
    let reply = test_host.call(&json!({"path": "deny"})).await;
    assert_error(&reply, ErrorKind::PermissionDenied);
    assert_eq!(reply_json(&reply)["error"]["details"]["rule"], "by name");
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused PermissionDenied deny".to_owned()], 0));
}

#[tokio::test]
async fn a_person_s_denial_is_recorded_as_refused() {
    let test_host = HostSetup::with_answers([deny()]).build();
    assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused ApprovalDenied ask".to_owned()], 0));
}

#[tokio::test]
async fn a_principal_without_the_scope_to_call_is_refused_and_recorded() {
    let principal = Principal { scopes: [].into(), ..Principal::agent("watcher") };
    let test_host = HostSetup { principal, ..HostSetup::default() }.build();
    assert_error(&test_host.call(&json!({"path": "a"})).await, ErrorKind::PermissionDenied);
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused PermissionDenied".to_owned()], 0));
}

#[tokio::test]
async fn without_a_record_nothing_runs() {
    let test_host = HostSetup { trace: AuditTrace::with_capacity(0), ..HostSetup::default() }.build();
    for (tool, arguments) in
        [("act", r#"{"path":"a"}"#), ("act", r#"{"path":"deny"}"#), ("act", "{}"), ("no_such_tool", "{}")]
    {
        let fatal = test_host.try_call(tool, arguments, &CancellationToken::new()).await.unwrap_err();
        assert!(matches!(fatal, HostError::Audit(_)), "{fatal:?}");
    }
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_quick_call_does_not_run_without_a_record_either() {
    let test_host =
        HostSetup { trace: AuditTrace::with_capacity(0), non_blocking: true, ..HostSetup::default() }.build();
    let fatal =
        test_host.try_call("act", r#"{"path":"a","action":"read"}"#, &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(fatal, HostError::Audit(_)), "{fatal:?}");
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn an_end_that_cannot_be_recorded_ends_the_run() {
    let test_host = HostSetup { trace: AuditTrace::with_capacity(1), ..HostSetup::default() }.build();
    let fatal = test_host.try_call("act", r#"{"path":"a"}"#, &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(fatal, HostError::EndUnrecorded(_)), "{fatal:?}");
    assert_eq!((test_host.runs(), test_host.trace.lines()), (1, vec!["begin change a".to_owned()]));
}

/// A store that is gone.
fn lost_store() -> Box<HookedStore> {
    let store: Arc<dyn ApprovalStore> = Arc::new(InMemoryApprovalStore::default());
    HookedStore::new(&store, |_| Err(StoreError(std::io::Error::other("gone"))))
}

#[tokio::test]
async fn without_a_store_nobody_is_asked_and_nothing_runs() {
    let test_host = HostSetup { store: lost_store(), ..HostSetup::default() }.build();
    let fatal = test_host.try_call("act", r#"{"path":"ask"}"#, &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(fatal, HostError::Store(_)), "{fatal:?}");
    assert!(test_host.approver.asked_paths().is_empty());
    let person = Principal::person("ann");
    let pending = test_host.host.inbox(&person).pending(SystemTime::now());
    assert!(matches!(pending, Err(InboxError::Store(_))), "{pending:?}");
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_tool_that_panics_is_an_internal_error_and_the_host_goes_on() {
    for quick in [false, true] {
        let script =
            ToolScript::run(|args, _| if args.path == "boom" { panic!("as the test wants it") } else { Ok(()) });
        let test_host = HostSetup { non_blocking: quick, workers: 1, ..HostSetup::with_script(script) }.build();
        assert_error(&test_host.call(&json!({"path": "boom", "action": "read"})).await, ErrorKind::Internal);
        assert_eq!(test_host.trace.lines(), ["begin boom", "end Internal"]);
        // The only worker is free again.
        assert_eq!(test_host.call(&json!({"path": "a", "action": "read"})).await.error_kind(), None);
        assert_eq!(test_host.call(&json!({"path": "a"})).await.error_kind(), None);
    }
}

#[tokio::test]
async fn a_plan_that_panics_is_an_internal_error_and_the_host_goes_on() {
    for quick in [false, true] {
        let script =
            ToolScript::plan(|args, _| if args.path == "boom" { panic!("as the test wants it") } else { Ok(()) });
        let test_host = HostSetup { non_blocking: quick, workers: 1, ..HostSetup::with_script(script) }.build();
        let reply = test_host.call(&json!({"path": "boom"})).await;
        assert_error(&reply, ErrorKind::Internal);
        assert!(!reply.text.contains("as the test wants it"), "{}", reply.text);
        assert_eq!(test_host.runs(), 0);
        assert_eq!(test_host.call(&json!({"path": "a"})).await.error_kind(), None);
    }
}
