//! Approvals: what a person answers is what happens, and nothing happens before.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalStore, Assurance, CallLimits, Dialect, ErrorKind, HostError,
    InMemoryApprovalStore, Principal, StoreError,
};
use ringfence_testkit::approver::{approve, approve_with_changes, deny};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{HookedStore, HostSetup, ToolScript, assert_error, reply_json};

#[tokio::test]
async fn an_approved_call_runs_and_its_ticket_says_so() {
    let test_host = HostSetup::with_answers([approve()]).build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_eq!(reply_json(&reply), json!({"ok": true, "value": {"path": "ask", "approved": true}}));
    assert_eq!(test_host.trace.lines(), ["begin approved change ask", "end ok ask"]);
}

#[tokio::test]
async fn a_quick_call_is_asked_about_like_any_other() {
    let test_host = HostSetup { non_blocking: true, ..HostSetup::with_answers([approve(), deny()]) }.build();
    let reply = test_host.call(&json!({"path": "ask", "action": "read"})).await;
    assert_eq!(reply_json(&reply)["value"], json!({"path": "ask", "approved": true}));
    assert_error(&test_host.call(&json!({"path": "ask", "action": "read"})).await, ErrorKind::ApprovalDenied);
    assert_eq!(test_host.runs(), 1);
}

#[tokio::test]
async fn the_request_shows_the_call_and_the_refusal_says_why() {
    let test_host = HostSetup::with_answers([deny()]).build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("I do not like it"), "{}", reply.text);
    let request = test_host.approver.asked.lock().unwrap()[0].clone();
    assert_eq!((request.step_id.as_str(), request.session.as_str(), request.tool.as_str()), ("1", "test", "act"));
    assert_eq!((request.args, request.preview.text().as_str()), (json!({"path": "ask"}), "act on `ask`\nall of ask"));
    assert_eq!(request.reason, "the name says so");
    // What was found, and where.
    assert!(request.preview.fingerprint().starts_with("ask@"), "{}", request.preview.fingerprint());
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_relayed_request_shows_a_secret_in_one_line() {
    let test_host = HostSetup::with_answers([deny(), deny()]).build();
    test_host.call(&json!({"path": "ask"})).await;
    test_host.call(&json!({"path": "ask/secret"})).await;
    let asked = test_host.approver.asked.lock().unwrap().clone();
    let relayed: Vec<_> = asked.iter().map(|request| request.redacted_for_relay()).collect();
    assert_eq!((relayed[0].preview.text().as_str(), &relayed[0].args), ("act on `ask`\nall of ask", &asked[0].args));
    assert_eq!((relayed[1].preview.text().as_str(), &relayed[1].args), ("act on `ask/secret`", &json!(null)));
    assert!(asked[1].preview.is_secret() && asked[1].preview.text().contains("all of ask/secret"));
    // Nothing in it is the secret's any more.
    assert!(!relayed[1].preview.is_secret());
    assert_eq!((relayed[1].id.as_str(), &relayed[1].reason), (asked[1].id.as_str(), &asked[1].reason));
}

#[tokio::test]
async fn a_plan_without_accesses_is_asked_about() {
    let test_host = HostSetup::with_answers([deny()]).build();
    let reply = test_host.call(&json!({"path": "a", "action": "nothing"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert_eq!((test_host.approver.asked_paths(), test_host.runs()), (vec![json!("a")], 0));
}

#[tokio::test]
async fn a_change_to_a_plan_without_accesses_is_not_covered_by_the_answer() {
    let test_host =
        HostSetup::with_answers([approve_with_changes(json!({"path": "a", "action": "nothing"})), deny()]).build();
    assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    assert_eq!((test_host.approver.asked_paths(), test_host.runs()), (vec![json!("ask"), json!("a")], 0));
}

#[tokio::test]
async fn a_change_to_the_same_or_a_narrower_target_is_covered_and_said() {
    for narrower in ["ask", "ask/below", "ask/further/below"] {
        let test_host = HostSetup::with_answers([approve_with_changes(json!({"path": narrower}))]).build();
        let reply = test_host.call(&json!({"path": "ask"})).await;
        assert_eq!(
            reply_json(&reply),
            json!({"ok": true, "value": {"path": narrower, "approved": true}, "modified": true})
        );
        assert_eq!(test_host.approver.asked_paths(), [json!("ask")]);
        assert_eq!(
            test_host.trace.lines(),
            [format!("begin approved change {narrower}"), format!("end ok {narrower}")]
        );
    }
}

#[tokio::test]
async fn a_target_that_changed_while_the_arguments_were_edited_is_a_conflict() {
    let test_host = HostSetup::with_answers([approve_with_changes(json!({"path": "ask/moving"}))]).build();
    assert_error(&test_host.call(&json!({"path": "ask/moving"})).await, ErrorKind::Conflict);
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused Conflict ask/moving".to_owned()], 0));
}

#[tokio::test]
async fn a_change_to_another_target_is_asked_about_again() {
    for other in ["task", "ask2", "as/ask", "asking/below"] {
        let test_host = HostSetup::with_answers([approve_with_changes(json!({"path": other})), deny()]).build();
        assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
        assert_eq!((test_host.approver.asked_paths(), test_host.runs()), (vec![json!("ask"), json!(other)], 0));
    }
}

#[tokio::test]
async fn a_change_to_a_stricter_action_is_asked_about_again() {
    let test_host = HostSetup::with_answers([approve_with_changes(json!({"path": "ask"})), deny()]).build();
    assert_error(&test_host.call(&json!({"path": "ask", "action": "read"})).await, ErrorKind::ApprovalDenied);
    assert_eq!((test_host.approver.asked_paths().len(), test_host.runs()), (2, 0));
}

#[tokio::test]
async fn a_changed_call_that_is_approved_the_second_time_runs_as_changed() {
    let test_host = HostSetup::with_answers([approve_with_changes(json!({"path": "ask2"})), approve()]).build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_eq!(reply_json(&reply), json!({"ok": true, "value": {"path": "ask2", "approved": true}, "modified": true}));
}

#[tokio::test]
async fn a_change_to_what_the_policy_allows_runs() {
    let test_host = HostSetup::with_answers([approve_with_changes(json!({"path": "free"}))]).build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_eq!(reply_json(&reply), json!({"ok": true, "value": {"path": "free", "approved": false}, "modified": true}));
}

#[tokio::test]
async fn a_deny_stays_a_deny_whatever_a_person_changes() {
    let test_host = HostSetup::with_answers([approve_with_changes(json!({"path": "ask/deny"}))]).build();
    assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::PermissionDenied);
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn changed_arguments_are_decoded_like_any() {
    for bad in [json!({"pfad": "ask"}), json!([1]), json!({"path": 1}), json!("ask")] {
        let test_host = HostSetup::with_answers([approve_with_changes(bad)]).build();
        assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::InvalidArgs);
        assert_eq!(test_host.runs(), 0);
    }
}

#[tokio::test]
async fn after_three_changes_the_call_is_refused() {
    let changes = (1..=5).map(|round| approve_with_changes(json!({"path": format!("ask{round}")})));
    let test_host = HostSetup::with_answers(changes).build();
    assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    assert_eq!(test_host.approver.asked_paths(), [json!("ask"), json!("ask1"), json!("ask2")]);
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused ApprovalDenied".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_is_denied_at_its_deadline() {
    let test_host = HostSetup::default().build();
    let asked = tokio::time::Instant::now();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("the approval request timed out"), "{}", reply.text);
    let waited = asked.elapsed();
    let limit = test_host.session.limits.approval_time;
    assert!(waited >= limit && waited < limit + Duration::from_secs(1), "{waited:?}");
    assert!(test_host.pending().is_empty());
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused ApprovalDenied ask".to_owned()], 0));
}

#[tokio::test]
async fn a_request_is_open_for_as_long_as_a_person_has() {
    let test_host = HostSetup::with_answers([deny()]).build();
    test_host.call(&json!({"path": "ask"})).await;
    let request = test_host.approver.asked.lock().unwrap()[0].clone();
    assert_eq!(request.expires.duration_since(request.opened).unwrap(), test_host.session.limits.approval_time);
}

#[tokio::test]
async fn a_yes_that_comes_too_late_or_to_nothing_is_a_no() {
    let late = CallLimits { approval_time: Duration::ZERO, ..CallLimits::for_dialect(Dialect::Standard) };
    let reply = HostSetup { limits: late.clone(), ..HostSetup::with_answers([approve()]) }
        .build()
        .call(&json!({"path": "ask"}))
        .await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("the approval request timed out"), "{}", reply.text);
    // A no needs no time, and keeps its reason.
    let reply =
        HostSetup { limits: late, ..HostSetup::with_answers([deny()]) }.build().call(&json!({"path": "ask"})).await;
    assert!(reply.text.contains("I do not like it"), "{}", reply.text);
    // The request is removed just before the answer.
    let store: Arc<dyn ApprovalStore> = Arc::new(InMemoryApprovalStore::default());
    let inside = Arc::clone(&store);
    let hooked = HookedStore::new(&store, move |step| match step {
        "answer" => inside.pending(SystemTime::now())?.iter().try_for_each(|request| inside.close_request(&request.id)),
        _ => Ok(()),
    });
    let test_host = HostSetup { store: hooked, ..HostSetup::with_answers([approve()]) }.build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("the approval request was withdrawn"), "{}", reply.text);
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_answer_does_not_count_as_working() {
    let test_host = HostSetup::with_answers([]).build();
    let call = test_host.start(&json!({"path": "ask"}), &CancellationToken::new());
    test_host.approver.asked_notify.notified().await;
    tokio::time::advance(test_host.session.limits.call_time * 2).await;
    tokio::task::yield_now().await;
    assert!(!call.is_finished());
    assert_eq!(test_host.pending().len(), 1);
    call.abort();
}

#[tokio::test(start_paused = true)]
async fn a_request_is_in_the_store_while_it_waits_and_gone_afterwards() {
    let test_host = HostSetup::default().build();
    let cancel = CancellationToken::new();
    assert!(test_host.pending().is_empty());
    let call = test_host.start(&json!({"path": "ask"}), &cancel);
    test_host.approver.asked_notify.notified().await;
    let pending = test_host.pending();
    assert_eq!(pending.len(), 1);
    assert_eq!((pending[0].step_id.as_str(), &pending[0].args), ("1", &json!({"path": "ask"})));
    cancel.cancel();
    assert_error(&call.await.unwrap(), ErrorKind::Cancelled);
    assert!(test_host.pending().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_call_is_dropped_leaves_the_store() {
    let test_host = HostSetup::default().build();
    let call = test_host.start(&json!({"path": "ask"}), &CancellationToken::new());
    test_host.approver.asked_notify.notified().await;
    assert_eq!(test_host.pending().len(), 1);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert!(test_host.pending().is_empty());
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn every_answer_takes_its_request_out_of_the_store() {
    for answers in [vec![approve()], vec![deny()], vec![approve_with_changes(json!({"path": "ask2"})), approve()]] {
        let test_host = HostSetup::with_answers(answers).build();
        test_host.call(&json!({"path": "ask"})).await;
        assert!(test_host.pending().is_empty());
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_taken_out_of_the_store_ends_the_run() {
    for answer in [approve(), deny()] {
        let store: Arc<dyn ApprovalStore> = Arc::new(InMemoryApprovalStore::default());
        let hooked = HookedStore::new(&store, |step| match step {
            "close_request" => Err(StoreError(std::io::Error::other("the disk is gone"))),
            _ => Ok(()),
        });
        let test_host = HostSetup { store: hooked, ..HostSetup::with_answers([answer]) }.build();
        let lost = test_host.try_call("act", r#"{"path":"ask"}"#, &CancellationToken::new()).await;
        assert!(matches!(lost, Err(HostError::Store(_))), "{lost:?}");
        assert_eq!(test_host.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_while_waiting_for_an_answer_ends_the_call_at_once() {
    let test_host = HostSetup::default().build();
    let cancel = CancellationToken::new();
    let call = test_host.start(&json!({"path": "ask"}), &cancel);
    test_host.approver.asked_notify.notified().await;
    let asked = tokio::time::Instant::now();
    cancel.cancel();
    assert_error(&call.await.unwrap(), ErrorKind::Cancelled);
    assert!(asked.elapsed() < Duration::from_secs(1));
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused Cancelled ask".to_owned()], 0));
}

/// The same answer, from another channel.
fn decision_with(assurance: Assurance, by: Option<Principal>, answered: ApprovalDecision) -> ApprovalDecision {
    ApprovalDecision { approval: Approval { assurance, by }, ..answered }
}

#[tokio::test]
async fn an_answer_counts_only_if_it_is_as_sure_as_the_rule_wants() {
    use Assurance::{None, Person, Relayed};
    let cases = [
        ("ask", None, false),
        ("ask", Relayed, true),
        ("ask", Person, true),
        ("ask/person", None, false),
        ("ask/person", Relayed, false),
        ("ask/person", Person, true),
    ];
    for (path, assurance, counts) in cases {
        let test_host = HostSetup::with_answers([decision_with(assurance, Option::None, approve())]).build();
        let reply = test_host.call(&json!({"path": path})).await;
        assert_eq!(reply.error_kind().is_none(), counts, "{path} {assurance:?}: {}", reply.text);
        assert_eq!(test_host.runs(), usize::from(counts));
        if !counts {
            assert_error(&reply, ErrorKind::ApprovalDenied);
            let needed = if path == "ask" { "must come from an approver" } else { "must come from a person" };
            assert!(reply.text.contains(needed), "{}", reply.text);
            assert_eq!(test_host.trace.lines(), [format!("refused ApprovalDenied {path}")]);
        }
    }
}

#[tokio::test]
async fn the_request_says_what_an_answer_must_be() {
    let test_host = HostSetup::with_answers([deny(), deny()]).build();
    test_host.call(&json!({"path": "ask"})).await;
    test_host.call(&json!({"path": "ask/person"})).await;
    let asked: Vec<Value> =
        test_host.approver.asked.lock().unwrap().iter().map(|request| serde_json::to_value(request).unwrap()).collect();
    assert_eq!((&asked[0]["assurance"], &asked[0]["rule"]), (&json!("relayed"), &json!("by name")));
    assert_eq!((&asked[1]["assurance"], &asked[1]["layer"]), (&json!("person"), &json!("user")));
}

#[tokio::test]
async fn a_relayed_answer_cannot_change_the_arguments() {
    let answer = decision_with(Assurance::Relayed, None, approve_with_changes(json!({"path": "ask/below"})));
    let test_host = HostSetup::with_answers([answer]).build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("may change the arguments"), "{}", reply.text);
    assert_eq!((test_host.approver.asked_paths().len(), test_host.runs()), (1, 0));
}

#[tokio::test]
async fn a_principal_without_the_approve_scope_cannot_approve() {
    let answer = decision_with(Assurance::Person, Some(Principal::agent("the agent itself")), approve());
    let test_host = HostSetup::with_answers([answer]).build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("`the agent itself` may not approve"), "{}", reply.text);
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn the_record_names_the_rule_and_who_said_yes() {
    let answers = [
        approve(),
        decision_with(Assurance::Relayed, None, approve()),
        approve_with_changes(json!({"path": "ask/below"})),
    ];
    let test_host = HostSetup::with_answers(answers).build();
    for path in ["ask", "ask", "ask", "free"] {
        assert_eq!(test_host.call(&json!({"path": path})).await.error_kind(), None);
    }
    let expected =
        ["user by name the approver", "user by name no person", "user by name the approver", "user by name no person"];
    assert_eq!(*test_host.trace.permissions.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_refusal_names_the_rule_for_programs() {
    let test_host = HostSetup::with_answers([deny()]).build();
    let details = reply_json(&test_host.call(&json!({"path": "ask"})).await)["error"]["details"].clone();
    assert_eq!(details, json!({"rule": "by name", "layer": "user"}));
    let denied = reply_json(&test_host.call(&json!({"path": "deny"})).await)["error"]["details"].clone();
    assert_eq!(denied, json!({"rule": "by name", "layer": "user"}));
}

#[tokio::test]
async fn a_caller_cannot_approve_its_own_call_whatever_its_scopes() {
    let own = Principal::person("test");
    let test_host = HostSetup::with_answers([decision_with(Assurance::Person, Some(own), approve())]).build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("cannot approve a call of its own"), "{}", reply.text);
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn an_approval_does_not_cover_an_irrecoverable_loss() {
    for (arguments, may_lose) in [
        (json!({"path": "ask"}), false),
        (json!({"path": "ask", "action": "read"}), false),
        (json!({"path": "ask", "action": "fetch"}), false),
        (json!({"path": "free"}), false),
        (json!({"path": "ask", "action": "lose"}), true),
    ] {
        let script = ToolScript::run(move |_, ticket| {
            assert_eq!(ticket.may_lose(), may_lose);
            ticket.commit()
        });
        let test_host = HostSetup { script, ..HostSetup::with_answers([approve()]) }.build();
        let reply = test_host.call(&arguments).await;
        assert_eq!((reply.error_kind(), test_host.runs()), (None, 1), "{arguments}: {}", reply.text);
    }
}

#[tokio::test]
async fn a_request_names_the_session_that_asks() {
    for session in ["one", "two"] {
        let test_host = HostSetup { session, ..HostSetup::with_answers([deny()]) }.build();
        test_host.call(&json!({"path": "ask"})).await;
        assert_eq!(test_host.approver.asked.lock().unwrap()[0].session, session);
    }
}

#[tokio::test]
async fn a_tool_is_told_who_approved() {
    let script = ToolScript::run(|args, ticket| {
        let sure = ticket.approval().map(|approval| approval.assurance);
        assert_eq!(sure, if args.path == "free" { None } else { Some(Assurance::Relayed) });
        assert_eq!(ticket.is_approved(), sure.is_some());
        ticket.commit()
    });
    let test_host =
        HostSetup { script, ..HostSetup::with_answers([decision_with(Assurance::Relayed, None, approve())]) }.build();
    for path in ["ask", "free"] {
        assert_eq!(test_host.call(&json!({"path": path})).await.error_kind(), None);
    }
}
