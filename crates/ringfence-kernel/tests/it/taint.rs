//! Session taint: which call sets a flag, when, and two calls at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalDecision, ApprovalRequest, ApprovalStore, ErrorKind, InMemoryApprovalStore, LayeredRules, Policy,
    PolicyLayer, PolicyRequest, PolicyRule, Preset, ResourceAccess, SessionTaint, Taint, ToolError, Verdict,
};
use ringfence_testkit::approver::{ScriptedApprover, approve, approve_with_changes, deny};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{HookedStore, HostSetup, TestHost, ToolScript, assert_error, reply_json};

fn rules(texts: impl IntoIterator<Item = Value>) -> LayeredRules {
    let rule = |text: Value| PolicyRule::new(serde_json::from_value(text).unwrap(), "rule").unwrap();
    LayeredRules::from_preset(Preset::Edits).with_layer(PolicyLayer::User, texts.into_iter().map(rule).collect())
}

/// A host on which everything is allowed that no taint forbids.
fn allowing_setup() -> HostSetup {
    HostSetup { policy: Box::new(rules([json!({"decision": "allow"})])), ..HostSetup::default() }
}

fn taint_names(test_host: &TestHost) -> Vec<&'static str> {
    test_host.session.taint.snapshot().iter().map(Taint::name).collect()
}

#[tokio::test]
async fn reading_a_secret_and_fetching_add_lasting_taint() {
    let test_host = allowing_setup().build();
    test_host.call(&json!({"path": "a", "action": "read"})).await;
    test_host.call(&json!({"path": ".env"})).await;
    assert_eq!(taint_names(&test_host), [] as [&str; 0]);
    assert_eq!(test_host.call(&json!({"path": ".env", "action": "read"})).await.error_kind(), None);
    assert_eq!(taint_names(&test_host), ["read-secret"]);
    assert_eq!(test_host.call(&json!({"path": "docs.rs:443", "action": "fetch"})).await.error_kind(), None);
    assert_eq!(taint_names(&test_host), ["read-secret", "has-egress"]);
    test_host.call(&json!({"path": "a", "action": "read"})).await;
    assert_eq!(taint_names(&test_host), ["read-secret", "has-egress"]);
}

#[tokio::test]
async fn taint_is_added_before_the_call_runs_and_only_if_it_runs() {
    let taint = SessionTaint::default();
    let seen = taint.clone();
    let script = ToolScript::run(move |_, _| match seen.contains(Taint::ReadSecret) {
        true => Err(ToolError::new(ErrorKind::Io, "half of it was read")),
        false => Ok(()),
    });
    let test_host = HostSetup { script, taint, ..allowing_setup() }.build();
    assert_error(&test_host.call(&json!({"path": ".env", "action": "read"})).await, ErrorKind::Io);
    assert_eq!(taint_names(&test_host), ["read-secret"]);
    let denied = HostSetup { policy: Box::new(rules([json!({"decision": "deny"})])), ..HostSetup::default() }.build();
    assert_error(&denied.call(&json!({"path": ".env", "action": "read"})).await, ErrorKind::PermissionDenied);
    assert_eq!(taint_names(&denied), [] as [&str; 0]);
}

#[tokio::test]
async fn a_tool_says_that_it_saw_what_strangers_wrote() {
    let script = ToolScript::run(|args, ticket| {
        if args.path == "page" {
            ticket.context().add_taint(Taint::SawUntrusted);
        }
        ticket.commit()
    });
    let test_host = HostSetup { script, ..allowing_setup() }.build();
    test_host.call(&json!({"path": "a", "action": "read"})).await;
    assert_eq!(taint_names(&test_host), [] as [&str; 0]);
    test_host.call(&json!({"path": "page", "action": "read"})).await;
    assert_eq!(taint_names(&test_host), ["saw-untrusted"]);
}

#[tokio::test]
async fn after_two_taints_the_third_is_asked_about() {
    let test_host = HostSetup { approver: ScriptedApprover::with_answers([approve()]), ..allowing_setup() }.build();
    test_host.session.taint.add(Taint::SawUntrusted);
    assert_eq!(test_host.call(&json!({"path": ".env", "action": "read"})).await.error_kind(), None);
    assert_eq!(test_host.approver.asked_paths(), [] as [Value; 0]);
    let reply = test_host.call(&json!({"path": "docs.rs:443", "action": "fetch"})).await;
    assert_eq!(reply_json(&reply)["value"], json!({"path": "docs.rs:443", "approved": true}));
    assert_eq!(test_host.approver.asked_paths(), [json!("docs.rs:443")]);
    assert_eq!(taint_names(&test_host), ["read-secret", "saw-untrusted", "has-egress"]);
}

#[tokio::test]
async fn a_non_blocking_call_is_not_judged_by_its_own_taint() {
    let once = rules([
        json!({"decision": "deny", "effect": "read", "secret": true, "when": "read-secret"}),
        json!({"decision": "allow"}),
    ]);
    let test_host = HostSetup { non_blocking: true, policy: Box::new(once), ..HostSetup::default() }.build();
    assert_eq!(test_host.call(&json!({"path": ".env", "action": "read"})).await.error_kind(), None);
    assert_eq!((taint_names(&test_host), test_host.runs()), (vec!["read-secret"], 1));
    assert_error(&test_host.call(&json!({"path": ".env", "action": "read"})).await, ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn of_two_calls_at_once_the_second_is_decided_about_again() {
    let rules = rules([json!({"decision": "allow"})]);
    let policy = TaintingPolicy { rules, tainted: AtomicBool::new(false) };
    let test_host = HostSetup { policy: Box::new(policy), ..HostSetup::with_answers([deny()]) }.build();
    test_host.session.taint.add(Taint::SawUntrusted);
    let reply = test_host.call(&json!({"path": "docs.rs:443", "action": "fetch"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert_eq!(reply_json(&reply)["error"]["details"]["rule"], "taint combination");
    assert_eq!((taint_names(&test_host), test_host.runs()), (vec!["read-secret", "saw-untrusted"], 0));
}

/// A policy that is slow: while it decides for the first time, another call reads a secret.
#[derive(Debug)]
struct TaintingPolicy {
    rules: LayeredRules,
    tainted: AtomicBool,
}

impl Policy for TaintingPolicy {
    fn evaluate(&self, access: &ResourceAccess, question: &PolicyRequest<'_>) -> Verdict {
        let verdict = self.rules.evaluate(access, question);
        if !self.tainted.swap(true, Ordering::SeqCst) {
            question.session.taint.add(Taint::ReadSecret);
        }
        verdict
    }
}

/// A host on which a secret is read during an approval.
fn host_tainted_while_asking(answers: impl IntoIterator<Item = ApprovalDecision>, policy: LayeredRules) -> TestHost {
    let taint = SessionTaint::default();
    taint.add(Taint::SawUntrusted);
    let raised = taint.clone();
    let store: Arc<dyn ApprovalStore> = Arc::new(InMemoryApprovalStore::default());
    // While the store opens the first request, another call reads a secret.
    let store = HookedStore::new(&store, move |step| {
        if step == "open_request" {
            raised.add(Taint::ReadSecret);
        }
        Ok(())
    });
    HostSetup { taint, store, policy: Box::new(policy), ..HostSetup::with_answers(answers) }.build()
}

#[tokio::test]
async fn a_yes_to_what_has_become_worse_meanwhile_does_not_count() {
    let fetch = json!({"path": "docs.rs:443", "action": "fetch"});
    let test_host = host_tainted_while_asking([approve()], rules([]));
    assert_error(&test_host.call(&fetch).await, ErrorKind::Conflict);
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused Conflict docs.rs:443".to_owned()], 0));
    let deny = json!({"decision": "deny", "effect": "fetch", "when": "read-secret"});
    let test_host = host_tainted_while_asking([approve()], rules([deny]));
    assert_error(&test_host.call(&fetch).await, ErrorKind::PermissionDenied);
    assert_eq!(test_host.runs(), 0);
    // What has nothing to do with it goes on.
    let test_host = host_tainted_while_asking([approve()], rules([json!({"decision": "ask", "path": "a"})]));
    assert_eq!(test_host.call(&json!({"path": "a"})).await.error_kind(), None);
    // And so does a call that is allowed by now, and adds its taint.
    let allow = json!({"decision": "allow", "effect": "fetch", "when": ["read-secret", "saw-untrusted"]});
    let rule = |text: Value| PolicyRule::new(serde_json::from_value(text).unwrap(), "rule").unwrap();
    let policy = rules([json!({"decision": "ask"})]).with_layer(PolicyLayer::Managed, vec![rule(allow)]);
    let test_host = host_tainted_while_asking([approve()], policy);
    assert_eq!(test_host.call(&fetch).await.error_kind(), None);
    assert_eq!(taint_names(&test_host), ["read-secret", "saw-untrusted", "has-egress"]);
}

#[tokio::test]
async fn a_yes_with_other_arguments_is_asked_again_when_the_session_went_on_meanwhile() {
    let fetch = json!({"path": "docs.rs:443", "action": "fetch"});
    let test_host = host_tainted_while_asking([approve_with_changes(fetch.clone()), deny()], rules([]));
    let reply = test_host.call(&fetch).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert_eq!(reply_json(&reply)["error"]["details"]["rule"], "taint combination");
    assert_eq!((test_host.approver.asked_paths().len(), test_host.runs()), (2, 0));
}

#[tokio::test]
async fn a_call_that_an_earlier_version_suspended_is_resumed_by_the_old_name_of_its_rule() {
    for (stored, error) in [("taint combination", None), ("third bit", None), ("secret", Some(ErrorKind::Conflict))] {
        let store: Arc<dyn ApprovalStore> = Arc::new(InMemoryApprovalStore::default());
        let approver = ScriptedApprover::deferring();
        let host = HostSetup { approver, store: HookedStore::shared(&store), ..allowing_setup() }.build();
        for taint in [Taint::ReadSecret, Taint::SawUntrusted] {
            host.session.taint.add(taint);
        }
        let suspended = host.call(&json!({"path": "docs.rs:443", "action": "fetch"})).await.suspended.unwrap();
        let request = store.request(&suspended.request_id).unwrap().unwrap();
        assert_eq!(request.rule, "taint combination");
        store.close_request(&request.id).unwrap();
        store.open_request(&ApprovalRequest { rule: stored.to_owned(), ..request.clone() }).unwrap();
        store.answer(&request.id, &approve(), SystemTime::now()).unwrap();
        let reply = host.host.resume(&host.session, &suspended.token, &CancellationToken::new()).await.unwrap();
        assert_eq!(reply.error_kind(), error, "{stored}: {}", reply.text);
    }
}
