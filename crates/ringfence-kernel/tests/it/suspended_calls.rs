//! Suspended calls: answered by another front, or deferred and resumed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, SystemTime};

use ringfence_kernel::{
    ApprovalResponse, ApprovalStore, Assurance, CallLimits, Decision, Dialect, DraftOutcome, ErrorKind,
    InMemoryApprovalStore, InboxError, Policy, PolicyLayer, PolicyRequest, Principal, ResourceAccess, SuspendedCall,
    ToolReply, Verdict,
};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{HookedStore, HostSetup, TestHost, ToolScript, assert_error, reply_json};

fn memory_store() -> Arc<dyn ApprovalStore> {
    Arc::new(InMemoryApprovalStore::default())
}

/// A host whose approver defers every request.
fn deferring_setup(store: &Arc<dyn ApprovalStore>) -> HostSetup {
    let approver = ScriptedApprover::deferring();
    HostSetup { approver, store: HookedStore::shared(store), ..HostSetup::default() }
}

fn response(approved: bool) -> ApprovalResponse {
    ApprovalResponse { approved, ..ApprovalResponse::default() }
}

impl TestHost {
    fn answer(&self, request: &str, response: ApprovalResponse) {
        let person = Principal::person("the person");
        let inbox = self.host.inbox(&person);
        inbox.answer(request, response, Assurance::Person, SystemTime::now()).unwrap();
    }

    async fn defer(&self, arguments: &Value) -> SuspendedCall {
        let reply = self.call(arguments).await;
        assert_error(&reply, ErrorKind::ApprovalPending);
        let suspended = reply.suspended.clone().unwrap();
        let details = reply_json(&reply)["error"]["details"].clone();
        assert_eq!(details, json!({"pending": true, "request": suspended.request_id}));
        suspended
    }

    async fn resume(&self, token: &str) -> ToolReply {
        self.host.resume(&self.session, token, &CancellationToken::new()).await.unwrap()
    }
}

#[track_caller]
fn assert_refused(reply: &ToolReply, why: &str) {
    assert_error(reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains(why), "{}", reply.text);
    assert_eq!(reply.suspended, None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_another_front_ends_the_waiting() {
    for (approved, runs) in [(true, 1), (false, 0)] {
        let store = memory_store();
        let test_host = HostSetup { store: HookedStore::shared(&store), ..HostSetup::default() }.build();
        let call = test_host.start(&json!({"path": "ask"}), &CancellationToken::new());
        test_host.approver.asked_notify.notified().await;
        let id = test_host.pending()[0].id.clone();
        test_host.answer(&id, response(approved));
        let reply = call.await.unwrap();
        assert_eq!((reply.error_kind().is_none(), test_host.runs()), (approved, runs), "{}", reply.text);
        assert!(store.request(&id).unwrap().is_none());
        if approved {
            assert_eq!(*test_host.trace.permissions.lock().unwrap(), ["user by name the person"]);
        }
    }
}

#[tokio::test]
async fn the_second_of_two_concurrent_answers_is_overruled() {
    let store = memory_store();
    let inside = Arc::clone(&store);
    // Right before our own approver's approval is stored, another front denies.
    let hooked = HookedStore::new(&store, move |step| {
        if step == "answer" {
            let pending = inside.pending(SystemTime::now())?;
            let no = ringfence_testkit::approver::decision_by_person(response(false));
            inside.answer(&pending[0].id, &no, SystemTime::now()).map(drop)?;
        }
        Ok(())
    });
    let test_host =
        HostSetup { store: hooked, ..HostSetup::with_answers([ringfence_testkit::approver::approve()]) }.build();
    assert_error(&test_host.call(&json!({"path": "ask"})).await, ErrorKind::ApprovalDenied);
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_deferred_call_runs_once_when_it_is_approved() {
    let store = memory_store();
    let test_host = deferring_setup(&store).build();
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    assert_eq!(test_host.trace.lines(), ["refused ApprovalPending ask"]);
    let early = test_host.resume(&token).await;
    assert_error(&early, ErrorKind::ApprovalPending);
    assert_eq!(early.suspended, Some(SuspendedCall { token: token.clone(), request_id: request.clone() }));
    test_host.answer(&request, response(true));
    let reply = test_host.resume(&token).await;
    assert_eq!(
        (reply_json(&reply)["value"].clone(), reply.call_id.as_str()),
        (json!({"path": "ask", "approved": true}), "1")
    );
    assert_refused(&test_host.resume(&token).await, "already used");
    assert_eq!(test_host.runs(), 1);
}

#[tokio::test]
async fn a_deferred_call_that_is_denied_does_not_run() {
    let test_host = deferring_setup(&memory_store()).build();
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    test_host.answer(&request, ApprovalResponse { reason: Some("not today".to_owned()), ..response(false) });
    assert_refused(&test_host.resume(&token).await, "not today");
    assert_refused(&test_host.resume(&token).await, "already used");
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_request_outlives_the_host_that_opened_it() {
    let store = memory_store();
    let SuspendedCall { token, request_id: request } =
        deferring_setup(&store).build().defer(&json!({"path": "ask"})).await;
    let later = deferring_setup(&store).build();
    assert_eq!(later.pending()[0].id, request);
    later.answer(&request, response(true));
    assert_eq!(later.resume(&token).await.error_kind(), None);
    assert_eq!(later.runs(), 1);
}

#[tokio::test]
async fn a_token_of_another_store_principal_or_session_is_refused() {
    let store = memory_store();
    let test_host = deferring_setup(&store).build();
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    test_host.answer(&request, response(true));
    let stranger = HostSetup { principal: Principal::agent("another"), ..deferring_setup(&store) }.build();
    assert_refused(&stranger.resume(&token).await, "not issued to this caller");
    let another = HostSetup { session: "another", ..deferring_setup(&store) }.build();
    assert_refused(&another.resume(&token).await, "not issued to this caller");
    assert_refused(&deferring_setup(&memory_store()).build().resume(&token).await, "not issued to this caller");
    for altered in [String::new(), "rf1.".to_owned(), format!("{token}x"), token.replacen('.', "_", 1)] {
        assert_refused(&test_host.resume(&altered).await, "not issued to this caller");
    }
    // None of this used it up.
    assert_eq!(test_host.resume(&token).await.error_kind(), None);
}

#[tokio::test]
async fn a_late_token_is_refused() {
    let limits = CallLimits { approval_time: Duration::from_millis(1), ..CallLimits::for_dialect(Dialect::Standard) };
    let test_host = HostSetup { limits, ..deferring_setup(&memory_store()) }.build();
    let SuspendedCall { token, .. } = test_host.defer(&json!({"path": "ask"})).await;
    while !test_host.pending().is_empty() {
        std::thread::yield_now();
    }
    assert_refused(&test_host.resume(&token).await, "expired");
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_target_that_changed_before_the_call_came_back_is_a_conflict() {
    let test_host = deferring_setup(&memory_store()).build();
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask/moving"})).await;
    test_host.answer(&request, response(true));
    assert_error(&test_host.resume(&token).await, ErrorKind::Conflict);
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_plan_that_fails_when_the_call_comes_back_fails_it() {
    let script = ToolScript::plan(|_, _| {
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        match LOOKS.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(ringfence_kernel::ToolError::new(ErrorKind::NotFound, "it went away")),
        }
    });
    let test_host = HostSetup { script, ..deferring_setup(&memory_store()) }.build();
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    test_host.answer(&request, response(true));
    assert_error(&test_host.resume(&token).await, ErrorKind::NotFound);
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn arguments_that_were_changed_go_the_same_way_as_ever() {
    let changed = |path: &str| ApprovalResponse { modified_args: Some(json!({"path": path})), ..response(true) };
    let test_host = deferring_setup(&memory_store()).build();
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    test_host.answer(&request, changed("ask/below"));
    let reply = test_host.resume(&token).await;
    assert_eq!(reply_json(&reply)["value"], json!({"path": "ask/below", "approved": true}));
    assert_eq!(reply_json(&reply)["modified"], true);
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    test_host.answer(&request, changed("ask/deny"));
    assert_error(&test_host.resume(&token).await, ErrorKind::PermissionDenied);
    // Another target is another request, and can be deferred again.
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    test_host.answer(&request, changed("ask2"));
    let again = test_host.resume(&token).await.suspended.unwrap();
    test_host.answer(&again.request_id, response(true));
    assert_eq!(reply_json(&test_host.resume(&again.token).await)["value"]["path"], "ask2");
    assert_eq!(test_host.runs(), 2);
}

#[tokio::test]
async fn of_two_who_bring_a_call_back_at_once_one_runs_it() {
    let store = memory_store();
    let test_host = deferring_setup(&store).build();
    let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "ask"})).await;
    test_host.answer(&request, response(true));
    // Both have seen the answer before either of them goes on.
    let (arrived, both) = (AtomicUsize::new(0), Barrier::new(2));
    let hooked = HookedStore::new(&store, move |step| {
        if matches!(step, "consume_nonce" | "close_request") && arrived.fetch_add(1, Ordering::SeqCst) < 2 {
            both.wait();
        }
        Ok(())
    });
    let test_host = HostSetup { store: hooked, ..HostSetup::default() }.build();
    let (one, two) = tokio::join!(test_host.resume(&token), test_host.resume(&token));
    assert_eq!(test_host.runs(), 1);
    let late = if one.error_kind().is_some() { one } else { two };
    assert_refused(&late, "already used");
}

/// A policy that requires approval by a rule, in a layer and for a reason that tests can change.
#[derive(Clone, Debug)]
struct AskingPolicy(Arc<Mutex<(&'static str, PolicyLayer, &'static str)>>);

impl Policy for AskingPolicy {
    fn evaluate(&self, _: &ResourceAccess, _: &PolicyRequest<'_>) -> Verdict {
        let (rule, layer, reason) = *self.0.lock().unwrap();
        Verdict {
            decision: Decision::Ask,
            rule: Arc::from(rule),
            layer,
            reason: reason.to_owned(),
            assurance: Assurance::Person,
            grant: None,
        }
    }
}

#[tokio::test]
async fn an_answer_is_to_one_question_and_to_no_other_about_the_same_target() {
    let asked = ("a rule", PolicyLayer::User, "a reason");
    for (later, same) in [
        (asked, true),
        (("another", PolicyLayer::User, "a reason"), false),
        (("a rule", PolicyLayer::Managed, "a reason"), false),
        (("a rule", PolicyLayer::User, "another"), false),
    ] {
        let asks = AskingPolicy(Arc::new(Mutex::new(asked)));
        let test_host = HostSetup { policy: Box::new(asks.clone()), ..deferring_setup(&memory_store()) }.build();
        let SuspendedCall { token, request_id: request } = test_host.defer(&json!({"path": "a"})).await;
        test_host.answer(&request, response(true));
        *asks.0.lock().unwrap() = later;
        let reply = test_host.resume(&token).await;
        assert_eq!(reply.error_kind(), (!same).then_some(ErrorKind::Conflict), "{later:?}: {}", reply.text);
        assert_eq!(test_host.runs(), usize::from(same));
    }
}

#[tokio::test]
async fn other_arguments_are_shown_before_they_are_approved_and_do_nothing_by_that() {
    let store = memory_store();
    let test_host = HostSetup { store: HookedStore::shared(&store), ..HostSetup::default() }.build();
    let call = test_host.start(&json!({"path": "ask"}), &CancellationToken::new());
    test_host.approver.asked_notify.notified().await;
    let id = test_host.pending()[0].id.clone();
    let person = Principal::person("the person");
    let inbox = test_host.host.inbox(&person);
    for (args, planned) in [(json!({"path": "ask2"}), true), (json!({"path": "deny"}), false), (json!({"x": 1}), false)]
    {
        let draft = inbox.open_draft(&id, args.clone(), SystemTime::now()).unwrap();
        let outcome = loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if let Some(outcome) = inbox.draft_of(&id, &draft).unwrap().unwrap().outcome {
                break outcome;
            }
        };
        assert_eq!(matches!(outcome, DraftOutcome::Planned { .. }), planned, "{args}: {outcome:?}");
    }
    assert_eq!((test_host.trace.lines(), test_host.runs(), call.is_finished()), (Vec::<String>::new(), 0, false));
    let agent = Principal::agent("agent");
    assert!(test_host.host.inbox(&agent).open_draft(&id, json!({}), SystemTime::now()).is_err());
    test_host.answer(&id, ApprovalResponse { modified_args: Some(json!({"path": "ask"})), ..response(true) });
    assert_eq!((call.await.unwrap().error_kind(), test_host.runs()), (None, 1));
    // A deferred call has no approver that could answer.
    let away = deferring_setup(&store).build();
    let SuspendedCall { request_id: request, .. } = away.defer(&json!({"path": "ask"})).await;
    let refused = inbox.open_draft(&request, json!({"path": "ask2"}), SystemTime::now()).unwrap_err();
    assert!(matches!(refused, InboxError::CallerNotWaiting(_)), "{refused}");
}

#[tokio::test]
async fn requests_of_a_session_that_is_over_are_withdrawn() {
    let store = memory_store();
    let (test_host, other) =
        (deferring_setup(&store).build(), HostSetup { session: "other", ..deferring_setup(&store) }.build());
    test_host.defer(&json!({"path": "ask"})).await;
    let SuspendedCall { request_id: request, .. } = other.defer(&json!({"path": "ask"})).await;
    test_host.host.withdraw_requests(&test_host.session.id).unwrap();
    let left: Vec<String> = test_host.pending().into_iter().map(|request| request.id).collect();
    assert_eq!(left, [request]);
}
