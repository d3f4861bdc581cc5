//! Approval queue: one request per session at a time, and a pause after too many denials.

use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalInbox, ApprovalResponse, ApprovalStore, Assurance, AuthScope, CallLimits, Dialect, ErrorKind, GrantedRules,
    InboxError, LayeredRules, MemoryStore, Preset, Principal,
};
use ringfence_testkit::approver::{ScriptedApprover, approve, approve_with_changes, decision_by_person, deny};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::{HookedStore, HostSetup, TestHost, ToolScript, assert_error, reply_json};

fn memory_store() -> Arc<dyn ApprovalStore> {
    Arc::new(MemoryStore::default())
}

fn response(approved: bool) -> ApprovalResponse {
    ApprovalResponse { approved, ..ApprovalResponse::default() }
}

/// Answers the one pending request at another front.
fn answer(road: &TestHost, response: ApprovalResponse) {
    let person = Principal::person("the person");
    let [request] = road.pending().try_into().unwrap();
    road.host.inbox(&person).answer(&request.id, response, Assurance::Person, SystemTime::now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_are_asked_about_one_after_the_other() {
    let road = HostSetup::default().build();
    let calls = ["ask/1", "ask/2", "ask/3"].map(|path| road.start(&json!({"path": path}), &CancellationToken::new()));
    for count in 1..=3 {
        road.approver.asked_notify.notified().await;
        assert_eq!((road.pending().len(), road.approver.asked_paths().len()), (1, count));
        answer(&road, response(true));
    }
    for call in calls {
        assert_eq!(call.await.unwrap().error, None);
    }
    assert_eq!(road.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_question_does_not_wait_for_one() {
    let road = HostSetup::default().build();
    let asked = road.start(&json!({"path": "ask"}), &CancellationToken::new());
    road.approver.asked_notify.notified().await;
    assert_eq!(road.call(&json!({"path": "free"})).await.error, None);
    assert!(!asked.is_finished());
    asked.abort();
}

#[tokio::test(start_paused = true)]
async fn sessions_do_not_wait_for_each_other() {
    let store = memory_store();
    let roads = ["one", "two"].map(|session| {
        let road = HostSetup { session, store: HookedStore::shared(&store), ..HostSetup::default() }.build();
        (road.start(&json!({"path": "ask"}), &CancellationToken::new()), road)
    });
    for (call, road) in roads {
        road.approver.asked_notify.notified().await;
        call.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_its_turn_is_planned_again() {
    let store = memory_store();
    let policy = Box::new(GrantedRules::new(LayeredRules::from_preset(Preset::Ask)));
    let road =
        HostSetup { policy, store: HookedStore::shared(&store), directory: Some("this one"), ..HostSetup::default() }
            .build();
    let calls = [1, 2].map(|_| road.start(&json!({"path": "a"}), &CancellationToken::new()));
    road.approver.asked_notify.notified().await;
    answer(&road, ApprovalResponse { remember: true, ..response(true) });
    let mut approved = Vec::new();
    for call in calls {
        approved.push(reply_json(&call.await.unwrap())["value"]["approved"] == true);
    }
    // The second one is covered by the grant of the first.
    assert_ne!(approved[0], approved[1]);
    assert_eq!((road.approver.asked_paths().len(), road.runs()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_turn_does_not_come_in_time_is_refused() {
    // The first one is asked about twice, which takes longer than the second one may wait.
    let road = HostSetup::with_answers([]).build();
    let first = road.start(&json!({"path": "ask"}), &CancellationToken::new());
    road.approver.asked_notify.notified().await;
    let second = road.start(&json!({"path": "ask/second"}), &CancellationToken::new());
    tokio::time::sleep(road.session.limits.approval_time / 2).await;
    answer(&road, ApprovalResponse { modified_args: Some(json!({"path": "ask2"})), ..response(true) });
    road.approver.asked_notify.notified().await;
    let reply = second.await.unwrap();
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("timed out waiting for other approval requests"), "{}", reply.text);
    assert_eq!(road.approver.asked_paths(), [json!("ask"), json!("ask2")]);
    assert_eq!((road.trace.lines(), road.runs()), (vec!["refused ApprovalDenied ask/second".to_owned()], 0));
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_waiting_for_a_turn() {
    let road = HostSetup::default().build();
    let first = road.start(&json!({"path": "ask"}), &CancellationToken::new());
    road.approver.asked_notify.notified().await;
    let cancel = CancellationToken::new();
    let second = road.start(&json!({"path": "ask/second"}), &cancel);
    tokio::time::sleep(road.session.limits.approval_time / 2).await;
    cancel.cancel();
    assert_error(&second.await.unwrap(), ErrorKind::Cancelled);
    assert!(!first.is_finished());
    first.abort();
}

#[tokio::test]
async fn no_request_is_opened_while_a_deferred_call_waits() {
    let store = memory_store();
    let somebody = ScriptedApprover::deferring();
    let road = HostSetup { approver: somebody, store: HookedStore::shared(&store), ..HostSetup::default() }.build();
    let suspended = road.call(&json!({"path": "ask"})).await.suspended.unwrap();
    let reply = road.call(&json!({"path": "ask/second"})).await;
    assert_error(&reply, ErrorKind::ApprovalPending);
    assert_eq!(reply_json(&reply)["error"]["details"], json!({"waitsFor": suspended.request_id}));
    assert_eq!((road.approver.asked_paths().len(), road.pending().len()), (1, 1));
    // Another session may ask.
    let somebody = ScriptedApprover::deferring();
    let other =
        HostSetup { session: "other", approver: somebody, store: HookedStore::shared(&store), ..HostSetup::default() }
            .build();
    assert!(other.call(&json!({"path": "ask"})).await.suspended.is_some());
    let person = Principal::person("the person");
    road.host
        .inbox(&person)
        .answer(&suspended.request_id, response(true), Assurance::Person, SystemTime::now())
        .unwrap();
    assert!(road.call(&json!({"path": "ask/second"})).await.suspended.is_some());
}

/// Outcomes of calls that need approval, with these answers in turn.
async fn paused_after(answers: impl IntoIterator<Item = ringfence_kernel::ApprovalDecision>) -> (TestHost, usize) {
    let answers: Vec<_> = answers.into_iter().collect();
    let count = answers.len();
    let road = HostSetup { store: HookedStore::shared(&memory_store()), ..HostSetup::with_answers(answers) }.build();
    for _ in 0..count {
        road.call(&json!({"path": "ask"})).await;
    }
    let asked = road.approver.asked_paths().len();
    (road, asked)
}

#[tokio::test]
async fn after_three_denials_in_a_row_the_session_is_paused() {
    let (road, asked) = paused_after([deny(), deny(), deny(), approve()]).await;
    assert_eq!((asked, road.runs()), (3, 0));
    let reply = road.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("`ringfence approvals resume test`"), "{}", reply.text);
    assert_eq!(reply_json(&reply)["error"]["details"], json!({"paused": true, "session": "test"}));
    assert_eq!(road.trace.lines().last().unwrap(), "refused ApprovalDenied ask");
    // What needs no question goes.
    assert_eq!(road.call(&json!({"path": "free"})).await.error, None);
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
        let road = HostSetup {
            session,
            store: HookedStore::shared(&store),
            ..HostSetup::with_answers([deny(), deny(), deny()])
        }
        .build();
        for _ in 0..4 {
            road.call(&json!({"path": "ask"})).await;
        }
        assert_eq!(road.approver.asked_paths().len(), 3);
    }
}

#[tokio::test]
async fn the_denial_limit_is_configurable() {
    let limits = CallLimits { denials_in_a_row: 1, ..CallLimits::for_dialect(Dialect::Standard) };
    let road = HostSetup { limits, ..HostSetup::with_answers([deny(), approve()]) }.build();
    for _ in 0..2 {
        assert_error(&road.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    }
    assert_eq!(road.approver.asked_paths().len(), 1);
}

#[tokio::test]
async fn a_denial_of_a_deferred_call_counts() {
    let store = memory_store();
    let limits = CallLimits { denials_in_a_row: 1, ..CallLimits::for_dialect(Dialect::Standard) };
    for (said, pauses) in [(true, false), (false, true)] {
        let somebody = ScriptedApprover::deferring();
        let setup = HostSetup {
            approver: somebody,
            store: HookedStore::shared(&store),
            limits: limits.clone(),
            ..HostSetup::default()
        };
        let road = setup.build();
        let token = road.call(&json!({"path": "ask"})).await.suspended.unwrap().token;
        answer(&road, response(said));
        road.host.resume(&road.session, &token, &CancellationToken::new()).await.unwrap();
        assert_eq!(road.call(&json!({"path": "ask"})).await.suspended.is_none(), pauses);
        road.pending().iter().for_each(|request| store.close_request(&request.id).unwrap());
    }
}

#[tokio::test]
async fn only_a_person_resumes_a_session() {
    let (road, _) = paused_after([deny(), deny(), deny()]).await;
    let agent = Principal::agent("another");
    let own = Principal { name: "test".to_owned(), scopes: [AuthScope::Call, AuthScope::Approve].into() };
    let person = Principal::person("somebody");
    let desk = |by| road.host.inbox(by);
    assert!(matches!(desk(&agent).paused_sessions(3), Err(InboxError::MayNotApprove(_))));
    assert!(matches!(desk(&agent).resume_session("test", Assurance::Person), Err(InboxError::MayNotApprove(_))));
    assert!(matches!(desk(&own).resume_session("test", Assurance::Person), Err(InboxError::OwnSession(_))));
    assert!(matches!(desk(&person).resume_session("test", Assurance::Relayed), Err(InboxError::NeedsPerson)));
    assert!(!desk(&person).resume_session("another", Assurance::Person).unwrap());
    assert_eq!(desk(&person).paused_sessions(3).unwrap().len(), 1);
    assert!(desk(&person).paused_sessions(4).unwrap().is_empty());
    road.approver.answers.lock().unwrap().push_back(approve());
    assert_error(&road.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    assert!(desk(&person).resume_session("test", Assurance::Person).unwrap());
    assert!(ApprovalInbox { ..desk(&person) }.paused_sessions(1).unwrap().is_empty());
    assert_eq!(road.call(&json!({"path": "ask"})).await.error, None);
}

#[tokio::test(start_paused = true)]
async fn the_next_is_asked_when_the_one_before_it_is_over_and_not_before() {
    // While the first one runs, the second is not asked about: it would be shown what is about to change.
    let script = ToolScript::run(|_, ticket| ticket.commit());
    let road = HostSetup { script, ..HostSetup::with_answers([approve(), approve()]) }.build();
    let calls = [1, 2].map(|_| road.start(&json!({"path": "ask"}), &CancellationToken::new()));
    for call in calls {
        assert_eq!(call.await.unwrap().error, None);
    }
    let approved = "begin approved change ask";
    assert_eq!(road.trace.lines(), [approved, "end ok ask", approved, "end ok ask"]);
}
