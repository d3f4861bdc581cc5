//! One question of a session at a time, and none after too many noes.

use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalResponse, Assurance, Desk, DeskError, Dialect, ErrorKind, GrantedRules, Limits, MemoryStore, Preset,
    Principal, Rules, Scope, Store,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::road::{Hooked, Road, Script, Setup, Somebody, assert_error, by_person, change, json, no, yes};

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

fn response(approved: bool) -> ApprovalResponse {
    ApprovalResponse { approved, ..ApprovalResponse::default() }
}

/// Somebody at another front answers the one request that waits.
fn answer(road: &Road, response: ApprovalResponse) {
    let person = Principal::person("the person");
    let [request] = road.pending().try_into().unwrap();
    road.host.desk(&person).answer(&request.id, response, Assurance::Person, SystemTime::now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_are_asked_about_one_after_the_other() {
    let road = Setup::default().road();
    let calls = ["ask/1", "ask/2", "ask/3"].map(|path| road.start(&json!({"path": path}), &CancellationToken::new()));
    for count in 1..=3 {
        road.somebody.bell.notified().await;
        assert_eq!((road.pending().len(), road.somebody.questions().len()), (1, count));
        answer(&road, response(true));
    }
    for call in calls {
        assert_eq!(call.await.unwrap().error, None);
    }
    assert_eq!(road.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_needs_no_question_does_not_wait_for_one() {
    let road = Setup::default().road();
    let asked = road.start(&json!({"path": "ask"}), &CancellationToken::new());
    road.somebody.bell.notified().await;
    assert_eq!(road.call(&json!({"path": "free"})).await.error, None);
    assert!(!asked.is_finished());
    asked.abort();
}

#[tokio::test(start_paused = true)]
async fn sessions_do_not_wait_for_each_other() {
    let store = memory();
    let roads = ["one", "two"].map(|session| {
        let road = Setup { session, store: Hooked::shared(&store), ..Setup::default() }.road();
        (road.start(&json!({"path": "ask"}), &CancellationToken::new()), road)
    });
    for (call, road) in roads {
        road.somebody.bell.notified().await;
        call.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_its_turn_is_planned_again() {
    let store = memory();
    let policy = Box::new(GrantedRules::new(Rules::of(Preset::Ask)));
    let road = Setup { policy, store: Hooked::shared(&store), directory: Some("this one"), ..Setup::default() }.road();
    let calls = [1, 2].map(|_| road.start(&json!({"path": "a"}), &CancellationToken::new()));
    road.somebody.bell.notified().await;
    answer(&road, ApprovalResponse { remember: true, ..response(true) });
    let mut approved = Vec::new();
    for call in calls {
        approved.push(json(&call.await.unwrap())["value"]["approved"] == true);
    }
    // Whichever was second is what the first was allowed for good.
    assert_ne!(approved[0], approved[1]);
    assert_eq!((road.somebody.questions().len(), road.runs()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_turn_does_not_come_in_time_is_refused() {
    // The first one is asked about twice, which takes longer than the second one may wait.
    let road = Setup::answering([]).road();
    let first = road.start(&json!({"path": "ask"}), &CancellationToken::new());
    road.somebody.bell.notified().await;
    let second = road.start(&json!({"path": "ask/second"}), &CancellationToken::new());
    tokio::time::sleep(road.session.limits.approval_time / 2).await;
    answer(&road, ApprovalResponse { modified_args: Some(json!({"path": "ask2"})), ..response(true) });
    road.somebody.bell.notified().await;
    let reply = second.await.unwrap();
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("took all of the time to answer"), "{}", reply.text);
    assert_eq!(road.somebody.questions(), [json!("ask"), json!("ask2")]);
    assert_eq!((road.trace.lines(), road.runs()), (vec!["refused ApprovalDenied ask/second".to_owned()], 0));
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_waiting_for_a_turn() {
    let road = Setup::default().road();
    let first = road.start(&json!({"path": "ask"}), &CancellationToken::new());
    road.somebody.bell.notified().await;
    let cancel = CancellationToken::new();
    let second = road.start(&json!({"path": "ask/second"}), &cancel);
    tokio::time::sleep(road.session.limits.approval_time / 2).await;
    cancel.cancel();
    assert_error(&second.await.unwrap(), ErrorKind::Cancelled);
    assert!(!first.is_finished());
    first.abort();
}

#[tokio::test]
async fn nobody_is_asked_while_a_call_that_was_put_off_waits() {
    let store = memory();
    let somebody = Somebody { puts_off: true, ..Somebody::default() };
    let road = Setup { somebody, store: Hooked::shared(&store), ..Setup::default() }.road();
    let suspended = road.call(&json!({"path": "ask"})).await.suspended.unwrap();
    let reply = road.call(&json!({"path": "ask/second"})).await;
    assert_error(&reply, ErrorKind::ApprovalPending);
    assert_eq!(json(&reply)["error"]["details"], json!({"waitsFor": suspended.request}));
    assert_eq!((road.somebody.questions().len(), road.pending().len()), (1, 1));
    // Another session may ask.
    let somebody = Somebody { puts_off: true, ..Somebody::default() };
    let other = Setup { session: "other", somebody, store: Hooked::shared(&store), ..Setup::default() }.road();
    assert!(other.call(&json!({"path": "ask"})).await.suspended.is_some());
    let person = Principal::person("the person");
    road.host.desk(&person).answer(&suspended.request, response(true), Assurance::Person, SystemTime::now()).unwrap();
    assert!(road.call(&json!({"path": "ask/second"})).await.suspended.is_some());
}

/// What becomes of calls that are asked about, when these answers are given in turn.
async fn paused_after(answers: impl IntoIterator<Item = ringfence_kernel::Answered>) -> (Road, usize) {
    let answers: Vec<_> = answers.into_iter().collect();
    let count = answers.len();
    let road = Setup { store: Hooked::shared(&memory()), ..Setup::answering(answers) }.road();
    for _ in 0..count {
        road.call(&json!({"path": "ask"})).await;
    }
    let asked = road.somebody.questions().len();
    (road, asked)
}

#[tokio::test]
async fn after_three_noes_in_a_row_nobody_is_asked() {
    let (road, asked) = paused_after([no(), no(), no(), yes()]).await;
    assert_eq!((asked, road.runs()), (3, 0));
    let reply = road.call(&json!({"path": "ask"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("`ringfence approvals resume test`"), "{}", reply.text);
    assert_eq!(json(&reply)["error"]["details"], json!({"paused": true, "session": "test"}));
    assert_eq!(road.trace.lines().last().unwrap(), "refused ApprovalDenied ask");
    // What needs no question goes.
    assert_eq!(road.call(&json!({"path": "free"})).await.error, None);
}

#[tokio::test]
async fn a_yes_ends_the_noes_in_a_row() {
    let always = by_person(ApprovalResponse { approved: true, remember: true, ..ApprovalResponse::default() });
    let unsure = |answered: ringfence_kernel::Answered| {
        let mut answered = answered;
        answered.approval.assurance = Assurance::None;
        answered
    };
    for (between, asked) in [
        (yes(), 6),
        (change(json!({"path": "free"})), 6),
        // A yes that does not count, and a no that nobody said, are neither.
        (always, 4),
        (unsure(yes()), 4),
        (unsure(no()), 4),
        (no(), 3),
    ] {
        let shown = format!("{between:?}");
        let answers = [no(), no(), between, no(), no(), no(), no()];
        assert_eq!(paused_after(answers).await.1, asked, "{shown}");
    }
}

#[tokio::test]
async fn the_session_that_was_refused_is_the_one_that_pauses() {
    let store = memory();
    for session in ["one", "two"] {
        let road = Setup { session, store: Hooked::shared(&store), ..Setup::answering([no(), no(), no()]) }.road();
        for _ in 0..4 {
            road.call(&json!({"path": "ask"})).await;
        }
        assert_eq!(road.somebody.questions().len(), 3);
    }
}

#[tokio::test]
async fn how_many_noes_it_takes_is_a_limit() {
    let limits = Limits { denials_in_a_row: 1, ..Limits::of(Dialect::Standard) };
    let road = Setup { limits, ..Setup::answering([no(), yes()]) }.road();
    for _ in 0..2 {
        assert_error(&road.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    }
    assert_eq!(road.somebody.questions().len(), 1);
}

#[tokio::test]
async fn a_no_to_a_call_that_was_put_off_counts() {
    let store = memory();
    let limits = Limits { denials_in_a_row: 1, ..Limits::of(Dialect::Standard) };
    for (said, pauses) in [(true, false), (false, true)] {
        let somebody = Somebody { puts_off: true, ..Somebody::default() };
        let setup = Setup { somebody, store: Hooked::shared(&store), limits: limits.clone(), ..Setup::default() };
        let road = setup.road();
        let token = road.call(&json!({"path": "ask"})).await.suspended.unwrap().token;
        answer(&road, response(said));
        road.host.resume(&road.session, &token, &CancellationToken::new()).await.unwrap();
        assert_eq!(road.call(&json!({"path": "ask"})).await.suspended.is_none(), pauses);
        road.pending().iter().for_each(|request| store.close(&request.id).unwrap());
    }
}

#[tokio::test]
async fn a_person_resumes_a_session_and_nobody_else_does() {
    let (road, _) = paused_after([no(), no(), no()]).await;
    let agent = Principal::agent("another");
    let own = Principal { name: "test".to_owned(), scopes: [Scope::Call, Scope::Approve].into() };
    let person = Principal::person("somebody");
    let desk = |by| road.host.desk(by);
    assert!(matches!(desk(&agent).paused(3), Err(DeskError::MayNotApprove(_))));
    assert!(matches!(desk(&agent).resume("test", Assurance::Person), Err(DeskError::MayNotApprove(_))));
    assert!(matches!(desk(&own).resume("test", Assurance::Person), Err(DeskError::OwnSession(_))));
    assert!(matches!(desk(&person).resume("test", Assurance::Relayed), Err(DeskError::NeedsPerson)));
    assert!(!desk(&person).resume("another", Assurance::Person).unwrap());
    assert_eq!(desk(&person).paused(3).unwrap().len(), 1);
    assert!(desk(&person).paused(4).unwrap().is_empty());
    road.somebody.answers.lock().unwrap().push_back(yes());
    assert_error(&road.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    assert!(desk(&person).resume("test", Assurance::Person).unwrap());
    assert!(Desk { ..desk(&person) }.paused(1).unwrap().is_empty());
    assert_eq!(road.call(&json!({"path": "ask"})).await.error, None);
}

#[tokio::test(start_paused = true)]
async fn the_next_is_asked_when_the_one_before_it_is_over_and_not_before() {
    // While the first one runs, the second is not asked about: it would be shown what is about to change.
    let script = Script::run(|_, ticket| ticket.commit());
    let road = Setup { script, ..Setup::answering([yes(), yes()]) }.road();
    let calls = [1, 2].map(|_| road.start(&json!({"path": "ask"}), &CancellationToken::new()));
    for call in calls {
        assert_eq!(call.await.unwrap().error, None);
    }
    let approved = "begin approved change ask";
    assert_eq!(road.trace.lines(), [approved, "end ok ask", approved, "end ok ask"]);
}
