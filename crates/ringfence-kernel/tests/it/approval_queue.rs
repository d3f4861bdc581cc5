//! Approval queue: one request per session at a time, and a pause after too many denials.

use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalInbox, ApprovalResponse, ApprovalStore, Assurance, AuthScope, CallLimits, Dialect, ErrorKind, GrantedRules,
    InMemoryApprovalStore, InboxError, LayeredRules, Preset, Principal,
};
use ringfence_testkit::approver::{ScriptedApprover, approve, approve_with_changes, decision_by_person, deny};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::{HookedStore, HostSetup, TestHost, ToolScript, assert_error, reply_json};

fn memory_store() -> Arc<dyn ApprovalStore> {
    Arc::new(InMemoryApprovalStore::default())
}

fn response(approved: bool) -> ApprovalResponse {
    ApprovalResponse { approved, ..ApprovalResponse::default() }
}

/// Answers the one pending request at another front.
fn answer(test_host: &TestHost, response: ApprovalResponse) {
    let person = Principal::person("the person");
    let [request] = test_host.pending().try_into().unwrap();
    test_host.host.inbox(&person).answer(&request.id, response, Assurance::Person, SystemTime::now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_are_asked_about_one_after_the_other() {
    let test_host = HostSetup::default().build();
    let calls =
        ["ask/1", "ask/2", "ask/3"].map(|path| test_host.start(&json!({"path": path}), &CancellationToken::new()));
    for count in 1..=3 {
        test_host.approver.asked_notify.notified().await;
        assert_eq!((test_host.pending().len(), test_host.approver.asked_paths().len()), (1, count));
        answer(&test_host, response(true));
    }
    for call in calls {
        assert_eq!(call.await.unwrap().error_kind(), None);
    }
    assert_eq!(test_host.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_question_does_not_wait_for_one() {
    let test_host = HostSetup::default().build();
    let asked = test_host.start(&json!({"path": "ask"}), &CancellationToken::new());
    test_host.approver.asked_notify.notified().await;
    assert_eq!(test_host.call(&json!({"path": "free"})).await.error_kind(), None);
    assert!(!asked.is_finished());
    asked.abort();
}

#[tokio::test(start_paused = true)]
async fn sessions_do_not_wait_for_each_other() {
    let store = memory_store();
    let roads = ["one", "two"].map(|session| {
        let test_host = HostSetup { session, store: HookedStore::shared(&store), ..HostSetup::default() }.build();
        (test_host.start(&json!({"path": "ask"}), &CancellationToken::new()), test_host)
    });
    for (call, test_host) in roads {
        test_host.approver.asked_notify.notified().await;
        call.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_its_turn_is_planned_again() {
    let store = memory_store();
    let policy = Box::new(GrantedRules::new(LayeredRules::from_preset(Preset::Ask)));
    let test_host =
        HostSetup { policy, store: HookedStore::shared(&store), directory: Some("this one"), ..HostSetup::default() }
            .build();
    let calls = [1, 2].map(|_| test_host.start(&json!({"path": "a"}), &CancellationToken::new()));
    test_host.approver.asked_notify.notified().await;
    answer(&test_host, ApprovalResponse { remember: true, ..response(true) });
    let mut approved = Vec::new();
    for call in calls {
        approved.push(reply_json(&call.await.unwrap())["value"]["approved"] == true);
    }
    // The second one is covered by the grant of the first.
    assert_ne!(approved[0], approved[1]);
    assert_eq!((test_host.approver.asked_paths().len(), test_host.runs()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_turn_does_not_come_in_time_is_refused() {
    // The first one is asked about twice, which takes longer than the second one may wait.
    let test_host = HostSetup::with_answers([]).build();
    let first = test_host.start(&json!({"path": "ask"}), &CancellationToken::new());
    test_host.approver.asked_notify.notified().await;
    let second = test_host.start(&json!({"path": "ask/second"}), &CancellationToken::new());
    tokio::time::sleep(test_host.session.limits.approval_time / 2).await;
    answer(&test_host, ApprovalResponse { modified_args: Some(json!({"path": "ask2"})), ..response(true) });
    test_host.approver.asked_notify.notified().await;
    let reply = second.await.unwrap();
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("timed out waiting for other approval requests"), "{}", reply.text);
    assert_eq!(test_host.approver.asked_paths(), [json!("ask"), json!("ask2")]);
    assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused ApprovalDenied ask/second".to_owned()], 0));
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_waiting_for_a_turn() {
    let test_host = HostSetup::default().build();
    let first = test_host.start(&json!({"path": "ask"}), &CancellationToken::new());
    test_host.approver.asked_notify.notified().await;
    let cancel = CancellationToken::new();
    let second = test_host.start(&json!({"path": "ask/second"}), &cancel);
    tokio::time::sleep(test_host.session.limits.approval_time / 2).await;
    cancel.cancel();
    assert_error(&second.await.unwrap(), ErrorKind::Cancelled);
    assert!(!first.is_finished());
    first.abort();
}

#[tokio::test]
async fn no_request_is_opened_while_a_deferred_call_waits() {
    let store = memory_store();
    let approver = ScriptedApprover::deferring();
    let test_host = HostSetup { approver, store: HookedStore::shared(&store), ..HostSetup::default() }.build();
    let suspended = test_host.call(&json!({"path": "ask"})).await.suspended.unwrap();
    let reply = test_host.call(&json!({"path": "ask/second"})).await;
    assert_error(&reply, ErrorKind::ApprovalPending);
    assert_eq!(reply_json(&reply)["error"]["details"], json!({"waitsFor": suspended.request_id}));
    assert_eq!((test_host.approver.asked_paths().len(), test_host.pending().len()), (1, 1));
    // Another session may ask.
    let approver = ScriptedApprover::deferring();
    let other =
        HostSetup { session: "other", approver, store: HookedStore::shared(&store), ..HostSetup::default() }.build();
    assert!(other.call(&json!({"path": "ask"})).await.suspended.is_some());
    let person = Principal::person("the person");
    test_host
        .host
        .inbox(&person)
        .answer(&suspended.request_id, response(true), Assurance::Person, SystemTime::now())
        .unwrap();
    assert!(test_host.call(&json!({"path": "ask/second"})).await.suspended.is_some());
}

/// Outcomes of calls that need approval, with these answers in turn.
async fn paused_after(answers: impl IntoIterator<Item = ringfence_kernel::ApprovalDecision>) -> (TestHost, usize) {
    let answers: Vec<_> = answers.into_iter().collect();
    let count = answers.len();
    let test_host =
        HostSetup { store: HookedStore::shared(&memory_store()), ..HostSetup::with_answers(answers) }.build();
    for _ in 0..count {
        test_host.call(&json!({"path": "ask"})).await;
    }
    let asked = test_host.approver.asked_paths().len();
    (test_host, asked)
}

#[tokio::test]
async fn after_three_denials_in_a_row_the_session_is_paused() {
    let (test_host, asked) = paused_after([deny(), deny(), deny(), approve()]).await;
    assert_eq!((asked, test_host.runs()), (3, 0));
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("`ringfence approvals resume test`"), "{}", reply.text);
    assert_eq!(reply_json(&reply)["error"]["details"], json!({"paused": true, "session": "test"}));
    assert_eq!(test_host.trace.lines().last().unwrap(), "refused ApprovalDenied ask");
    // What needs no question goes.
    assert_eq!(test_host.call(&json!({"path": "free"})).await.error_kind(), None);
}

#[tokio::test]
async fn an_approval_resets_the_denial_streak() {
    let always = decision_by_person(ApprovalResponse { approved: true, remember: true, ..ApprovalResponse::default() });
    let unsure = |answered: ringfence_kernel::ApprovalDecision| {
        let mut answered = answered;
        answered.approval.assurance = Assurance::None;
        answered
    };
    for (between, asked) in [
        (approve(), 6),
        (approve_with_changes(json!({"path": "free"})), 6),
        // An approval that does not count, and an automatic denial, are neither.
        (always, 4),
        (unsure(approve()), 4),
        (unsure(deny()), 4),
        (deny(), 3),
    ] {
        let shown = format!("{between:?}");
        let answers = [deny(), deny(), between, deny(), deny(), deny(), deny()];
        assert_eq!(paused_after(answers).await.1, asked, "{shown}");
    }
}

#[tokio::test]
async fn the_session_that_was_refused_is_the_one_that_pauses() {
    let store = memory_store();
    for session in ["one", "two"] {
        let test_host = HostSetup {
            session,
            store: HookedStore::shared(&store),
            ..HostSetup::with_answers([deny(), deny(), deny()])
        }
        .build();
        for _ in 0..4 {
            test_host.call(&json!({"path": "ask"})).await;
        }
        assert_eq!(test_host.approver.asked_paths().len(), 3);
    }
}

#[tokio::test]
async fn the_denial_limit_is_configurable() {
    let limits = CallLimits { denials_in_a_row: 1, ..CallLimits::for_dialect(Dialect::Standard) };
    let test_host = HostSetup { limits, ..HostSetup::with_answers([deny(), approve()]) }.build();
    for _ in 0..2 {
        assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    }
    assert_eq!(test_host.approver.asked_paths().len(), 1);
}

#[tokio::test]
async fn a_denial_of_a_deferred_call_counts() {
    let store = memory_store();
    let limits = CallLimits { denials_in_a_row: 1, ..CallLimits::for_dialect(Dialect::Standard) };
    for (approved, pauses) in [(true, false), (false, true)] {
        let approver = ScriptedApprover::deferring();
        let setup =
            HostSetup { approver, store: HookedStore::shared(&store), limits: limits.clone(), ..HostSetup::default() };
        let test_host = setup.build();
        let token = test_host.call(&json!({"path": "ask"})).await.suspended.unwrap().token;
        answer(&test_host, response(approved));
        test_host.host.resume(&test_host.session, &token, &CancellationToken::new()).await.unwrap();
        assert_eq!(test_host.call(&json!({"path": "ask"})).await.suspended.is_none(), pauses);
        test_host.pending().iter().for_each(|request| store.close_request(&request.id).unwrap());
    }
}

#[tokio::test]
async fn only_a_person_resumes_a_session() {
    let (test_host, _) = paused_after([deny(), deny(), deny()]).await;
    let agent = Principal::agent("another");
    let own = Principal { name: "test".to_owned(), scopes: [AuthScope::Call, AuthScope::Approve].into() };
    let person = Principal::person("ann");
    let inbox = |by| test_host.host.inbox(by);
    assert!(matches!(inbox(&agent).paused_sessions(3), Err(InboxError::MayNotApprove(_))));
    assert!(matches!(inbox(&agent).resume_session("test", Assurance::Person), Err(InboxError::MayNotApprove(_))));
    assert!(matches!(inbox(&own).resume_session("test", Assurance::Person), Err(InboxError::OwnSession(_))));
    assert!(matches!(inbox(&person).resume_session("test", Assurance::Relayed), Err(InboxError::NeedsPerson)));
    assert!(!inbox(&person).resume_session("another", Assurance::Person).unwrap());
    assert_eq!(inbox(&person).paused_sessions(3).unwrap().len(), 1);
    assert!(inbox(&person).paused_sessions(4).unwrap().is_empty());
    test_host.approver.answers.lock().unwrap().push_back(approve());
    assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    assert!(inbox(&person).resume_session("test", Assurance::Person).unwrap());
    assert!(ApprovalInbox { ..inbox(&person) }.paused_sessions(1).unwrap().is_empty());
    assert_eq!(test_host.call(&json!({"path": "ask"})).await.error_kind(), None);
}

#[tokio::test(start_paused = true)]
async fn the_next_is_asked_when_the_one_before_it_is_over_and_not_before() {
    // While the first one runs, the second is not asked about: it would be shown what is about to change.
    let script = ToolScript::run(|_, ticket| ticket.commit());
    let test_host = HostSetup { script, ..HostSetup::with_answers([approve(), approve()]) }.build();
    let calls = [1, 2].map(|_| test_host.start(&json!({"path": "ask"}), &CancellationToken::new()));
    for call in calls {
        assert_eq!(call.await.unwrap().error_kind(), None);
    }
    let approved = "begin approved change ask";
    assert_eq!(test_host.trace.lines(), [approved, "end ok ask", approved, "end ok ask"]);
}
