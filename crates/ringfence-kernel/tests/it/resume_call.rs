//! Resumed calls: a client sends a deferred call again whole, perhaps with its user's answer.

use std::sync::Arc;

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalResponse, ApprovalStore, Assurance, CallForward, Dialect, ErrorKind,
    InMemoryApprovalStore, Principal, ResumeRequest, SuspendedCall, ToolCall, ToolReply,
};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{HookedStore, HostSetup, TestHost, assert_error, reply_json};

fn deferring_host() -> TestHost {
    let store: Arc<dyn ApprovalStore> = Arc::new(InMemoryApprovalStore::default());
    let approver = ScriptedApprover::deferring();
    HostSetup { approver, store: HookedStore::shared(&store), ..HostSetup::default() }.build()
}

/// The answer of a client's user.
fn relayed_decision(approved: bool) -> Option<ApprovalDecision> {
    let response = ApprovalResponse { approved, ..ApprovalResponse::default() };
    let by = Some(Principal::person("the client's user"));
    Some(ApprovalDecision { response, approval: Approval { assurance: Assurance::Relayed, by } })
}

impl TestHost {
    async fn suspend(&self, arguments: &Value) -> SuspendedCall {
        self.call(arguments).await.suspended.unwrap()
    }

    async fn resume_call(&self, token: &str, arguments: &str, answered: Option<ApprovalDecision>) -> ToolReply {
        let call = ToolCall { id: "2".to_owned(), name: "act".to_owned(), arguments: arguments.to_owned() };
        let back = ResumeRequest { token: token.to_owned(), call, decision: answered, listener: None };
        self.host.resume_call(&self.session, back, &CancellationToken::new()).await.unwrap()
    }
}

#[tokio::test]
async fn a_resumed_call_brings_its_answer_along() {
    for approved in [true, false] {
        let test_host = deferring_host();
        let SuspendedCall { token, .. } = test_host.suspend(&json!({"path": "ask"})).await;
        let reply = test_host.resume_call(&token, r#" { "path" : "ask" } "#, relayed_decision(approved)).await;
        assert_eq!(
            (reply.error_kind().is_none(), test_host.runs()),
            (approved, usize::from(approved)),
            "{}",
            reply.text
        );
        let again = test_host.resume_call(&token, r#"{"path":"ask"}"#, relayed_decision(true)).await;
        assert_error(&again, ErrorKind::ApprovalDenied);
        assert_eq!(test_host.runs(), usize::from(approved));
    }
}

#[tokio::test]
async fn a_call_that_means_another_is_that_one_to_everyone() {
    let arguments = |arguments: &str| arguments.contains("alias").then(|| r#"{"path":"ask"}"#.to_owned());
    let forward = CallForward { dialect: Dialect::Standard, from: "act", to: "act", arguments };
    let store: Arc<dyn ApprovalStore> = Arc::new(InMemoryApprovalStore::default());
    let (approver, store) = (ScriptedApprover::deferring(), HookedStore::shared(&store));
    let test_host = HostSetup { approver, store, forward: Some(forward), ..HostSetup::default() }.build();
    let SuspendedCall { token, .. } = test_host.suspend(&json!({"path": "alias"})).await;
    assert_eq!(test_host.trace.lines(), ["refused ApprovalPending ask"]);
    // The client repeats the call as it made it.
    let reply = test_host.resume_call(&token, r#"{"path":"alias"}"#, relayed_decision(true)).await;
    assert_eq!((reply.error_kind(), test_host.runs()), (None, 1), "{}", reply.text);
    let call = ToolCall { id: "3".to_owned(), name: "act".to_owned(), arguments: r#"{"path":"alias"}"#.to_owned() };
    let explained = test_host.host.explain(&test_host.session, call).await.unwrap();
    assert!(format!("{explained:?}").contains("\"ask\""), "{explained:?}");
}

#[tokio::test]
async fn without_an_answer_a_resumed_call_keeps_waiting() {
    let test_host = deferring_host();
    let suspended = test_host.suspend(&json!({"path": "ask"})).await;
    let reply = test_host.resume_call(&suspended.token, r#"{"path":"ask"}"#, None).await;
    assert_eq!(reply.suspended, Some(suspended));
}

#[tokio::test]
async fn another_call_cannot_come_in_its_place() {
    let test_host = deferring_host();
    let SuspendedCall { token, .. } = test_host.suspend(&json!({"path": "ask"})).await;
    for arguments in [r#"{"path":"ask2"}"#, "", "{"] {
        let reply = test_host.resume_call(&token, arguments, relayed_decision(true)).await;
        assert_error(&reply, ErrorKind::ApprovalDenied);
        assert!(reply.text.contains("another call"), "{}", reply.text);
        assert_eq!(test_host.runs(), 0);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_sure_enough_leaves_the_request_to_a_person() {
    let test_host = deferring_host();
    let SuspendedCall { token, request_id: request } = test_host.suspend(&json!({"path": "ask/person"})).await;
    let reply = test_host.resume_call(&token, r#"{"path":"ask/person"}"#, relayed_decision(true)).await;
    assert!(reply.suspended.is_some(), "{}", reply.text);
    assert_eq!((test_host.runs(), test_host.pending()[0].id.as_str()), (0, request.as_str()));
    let person = Principal::person("the person");
    let yes = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
    test_host.host.inbox(&person).answer(&request, yes, Assurance::Person, std::time::SystemTime::now()).unwrap();
    let reply = test_host.resume_call(&token, r#"{"path":"ask/person"}"#, None).await;
    assert_eq!(reply_json(&reply)["value"]["approved"], true);
}

#[tokio::test]
async fn a_client_that_abandons_its_call_ends_the_request_and_counts_no_denial() {
    let test_host = deferring_host();
    let SuspendedCall { token, .. } = test_host.suspend(&json!({"path": "ask"})).await;
    let none = ApprovalDecision::automatic_denial("the client declined".to_owned());
    let reply = test_host.resume_call(&token, r#"{"path":"ask"}"#, Some(none)).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("not approved: the client declined"), "{}", reply.text);
    assert_eq!((test_host.runs(), test_host.pending().len()), (0, 0));
    // An approval that no person gave does not count.
    let SuspendedCall { token, .. } = test_host.suspend(&json!({"path": "ask"})).await;
    let mut yes = ApprovalDecision::automatic_denial(String::new());
    yes.response.approved = true;
    let reply = test_host.resume_call(&token, r#"{"path":"ask"}"#, Some(yes)).await;
    assert!(reply.suspended.is_some(), "{}", reply.text);
    assert_eq!((test_host.runs(), test_host.pending().len()), (0, 1));
}
