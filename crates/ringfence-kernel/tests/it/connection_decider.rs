//! Connections of a running program: each is decided when it is wanted, and none waits for another.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ringfence_kernel::{
    ApprovalResponse, Assurance, CallContext, ConnectionAttempt, ConnectionDecider, EgressChannel, ErrorKind,
    NET_MOUNT, PolicyAction, PolicyResource, Principal, ResourceAccess, Taint, ToolError,
};
use ringfence_testkit::approver::{ScriptedApprover, approve, deny};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::{HostSetup, TestHost, ToolScript};

/// Longer than any test.
const LONG: Duration = Duration::from_hours(1);

/// A host, and the decision about a connection to it.
type ConnectionOutcome = (String, Result<(), ToolError>);

/// Attempts of a program, and what became of them.
#[derive(Clone, Debug, Default)]
struct TestChannel {
    attempts: Arc<Mutex<VecDeque<ConnectionAttempt>>>,
    outcomes: Arc<Mutex<Vec<ConnectionOutcome>>>,
}

impl EgressChannel for TestChannel {
    fn socket(&mut self) -> Option<OwnedFd> {
        None
    }

    fn next_attempt(&self) -> Option<ConnectionAttempt> {
        self.attempts.lock().unwrap().pop_front()
    }
}

impl TestChannel {
    fn connect(&self, host: &str) {
        self.attempt(PolicyAction::Fetch, host);
    }

    fn attempt(&self, action: PolicyAction, host: &str) {
        let resource = PolicyResource {
            mount: Arc::from(NET_MOUNT),
            requested_path: host.to_owned(),
            display_path: host.to_owned(),
            ..PolicyResource::default()
        };
        let (outcomes, host) = (Arc::clone(&self.outcomes), host.to_owned());
        let access = ResourceAccess { action, resource };
        let reply = move |decision| outcomes.lock().unwrap().push((host, decision));
        self.attempts.lock().unwrap().push_back(ConnectionAttempt::undecided(access, reply));
    }

    /// Polls until there are this many outcomes.
    fn wait_for(&self, decider: &ConnectionDecider<'_>, count: usize) {
        while self.outcomes.lock().unwrap().len() < count {
            decider.poll(self);
            std::thread::yield_now();
        }
    }

    /// The outcome of one connection.
    fn outcome(&self, decider: &ConnectionDecider<'_>, host: &str) -> Result<(), ToolError> {
        self.connect(host);
        let count = self.outcomes.lock().unwrap().len();
        self.wait_for(decider, count + 1);
        self.outcomes.lock().unwrap().last().unwrap().1.clone()
    }
}

/// A call whose run is this.
fn host_running(
    approver: ScriptedApprover,
    run: impl Fn(&TestChannel, &CallContext<'_>) + Send + Sync + 'static,
) -> TestHost {
    let script = ToolScript::run(move |_, ticket| {
        run(&TestChannel::default(), ticket.context());
        ticket.commit()
    });
    HostSetup { approver, ..HostSetup::with_script(script) }.build()
}

async fn run(test_host: &TestHost) {
    let reply = test_host.call(&json!({"path": "a", "action": "read"})).await;
    assert_eq!(reply.error_kind(), None, "{}", reply.text);
}

/// A request on a connection that was decided about before has a path in its record, which no rule about hosts knows.
#[tokio::test]
async fn an_attempt_that_was_decided_is_only_recorded() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        let resource = PolicyResource {
            mount: Arc::from(NET_MOUNT),
            requested_path: "ask.org:443".to_owned(),
            display_path: "ask.org:443 POST /v1".to_owned(),
            ..PolicyResource::default()
        };
        let outcomes = Arc::clone(&channel.outcomes);
        let access = ResourceAccess { action: PolicyAction::Fetch, resource };
        let go = move || outcomes.lock().unwrap().push(("request".to_owned(), Ok(())));
        channel.attempts.lock().unwrap().push_back(ConnectionAttempt::new(access, None, go));
        channel.wait_for(&decider, 1);
    });
    run(&test_host).await;
    assert_eq!(test_host.trace.lines(), ["begin a", "reached ask.org:443 POST /v1", "end ok a"]);
    assert_eq!(test_host.approver.count(), 0);
}

#[tokio::test]
async fn rules_decide_about_each_connection_and_every_one_is_recorded_first() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        assert_eq!(channel.outcome(&decider, "a.org:443"), Ok(()));
        let denied = channel.outcome(&decider, "deny.org:443").unwrap_err();
        assert_eq!(denied.kind, ErrorKind::PermissionDenied);
        assert!(denied.message.contains("`deny.org:443` denied by rule `by name`"), "{}", denied.message);
        for _ in 0..5 {
            assert_eq!(channel.outcome(&decider, "a.org:443"), Ok(()));
        }
    });
    run(&test_host).await;
    let expected = [
        "begin a",
        "reached a.org:443",
        "kept from PermissionDenied deny.org:443",
        "reached 5 more, kept from 0 more a.org:443",
        "end ok a",
    ];
    assert_eq!(test_host.trace.lines(), expected);
    assert_eq!(test_host.approver.count(), 0);
}

#[tokio::test]
async fn a_yes_counts_for_the_run_and_is_in_the_record() {
    let test_host = host_running(ScriptedApprover::with_answers([approve()]), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        assert_eq!(channel.outcome(&decider, "ask.org:443"), Ok(()));
        assert_eq!(channel.outcome(&decider, "ask.org:443"), Ok(()));
        assert_eq!(decider.held_count(), 0);
    });
    run(&test_host).await;
    assert_eq!(
        test_host.trace.lines()[1..3],
        ["reached approved ask.org:443", "reached 1 more, kept from 0 more ask.org:443"]
    );
    let request = test_host.approver.last_request();
    assert_eq!(test_host.approver.count(), 1);
    assert_eq!((request.args, request.preview.summary()), (json!({"host": "ask.org:443"}), "connect to `ask.org:443`"));
}

#[tokio::test]
async fn a_no_counts_for_the_run_and_says_who_said_it() {
    let test_host = host_running(ScriptedApprover::with_answers([deny()]), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        for _ in 0..3 {
            let error = channel.outcome(&decider, "ask.org:443").unwrap_err();
            assert_eq!(error.kind, ErrorKind::ApprovalDenied);
            assert!(error.message.contains("I do not like it"), "{}", error.message);
        }
    });
    run(&test_host).await;
    assert_eq!(test_host.approver.count(), 1);
    assert!(!test_host.session.taint.contains(Taint::HasEgress), "nothing was sent");
}

#[tokio::test]
async fn an_answer_of_another_frontend_lets_a_held_connection_go() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        assert_eq!(channel.outcome(&decider, "ask.org:443"), Ok(()));
        assert!(cx.check().is_ok());
    });
    let call = test_host.start(&json!({"path": "a", "action": "read"}), &CancellationToken::new());
    answer_next(&test_host, true).await;
    assert_eq!(call.await.unwrap().error_kind(), None);
    assert!(
        test_host.session.taint.contains(Taint::HasEgress) && test_host.session.taint.contains(Taint::SawUntrusted)
    );
}

/// Answers the next request as another frontend does.
async fn answer_next(test_host: &TestHost, approved: bool) {
    let person = Principal::person("ann");
    let request = loop {
        if let Some(request) = test_host.pending().into_iter().next() {
            break request;
        }
        tokio::task::yield_now().await;
    };
    let response = ApprovalResponse { approved, ..ApprovalResponse::default() };
    test_host.host.inbox(&person).answer(&request.id, response, Assurance::Person, SystemTime::now()).unwrap();
}

#[tokio::test]
async fn after_the_hold_a_connection_is_refused_and_the_late_answer_counts_for_the_retry() {
    for approved in [true, false] {
        let test_host = host_running(ScriptedApprover::default(), move |channel, cx| {
            let decider = ConnectionDecider::with_hold_time(cx, Duration::ZERO);
            let error = channel.outcome(&decider, "ask.org:443").unwrap_err();
            assert_eq!(error.kind, ErrorKind::ApprovalPending);
            assert!(error.message.contains("ringfence approvals"), "{}", error.message);
            let mut retry = channel.outcome(&decider, "ask.org:443");
            while matches!(&retry, Err(error) if error.kind == ErrorKind::ApprovalPending) {
                retry = channel.outcome(&decider, "ask.org:443");
            }
            assert_eq!(
                retry.map_err(|error| error.kind),
                if approved { Ok(()) } else { Err(ErrorKind::ApprovalDenied) }
            );
        });
        let call = test_host.start(&json!({"path": "a", "action": "read"}), &CancellationToken::new());
        answer_next(&test_host, approved).await;
        assert_eq!(call.await.unwrap().error_kind(), None);
        assert_eq!(test_host.approver.count(), 1);
    }
}

#[tokio::test]
async fn a_port_is_held_until_its_answer_and_is_not_the_host_of_that_name() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, Duration::ZERO);
        channel.attempt(PolicyAction::Listen, "ask.org:443");
        channel.wait_for(&decider, 1);
        assert_eq!(channel.outcomes.lock().unwrap()[0].1, Ok(()));
        assert_eq!(channel.outcome(&decider, "ask.org:443").unwrap_err().kind, ErrorKind::ApprovalPending);
    });
    let call = test_host.start(&json!({"path": "a", "action": "read"}), &CancellationToken::new());
    answer_next(&test_host, true).await;
    assert_eq!(call.await.unwrap().error_kind(), None);
    let approved = test_host.trace.lines()[1].clone();
    assert_eq!(approved, "reached approved ask.org:443");
}

#[tokio::test]
async fn a_question_without_an_answer_holds_no_retry() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, Duration::from_millis(20));
        assert_eq!(channel.outcome(&decider, "ask.org:443").unwrap_err().kind, ErrorKind::ApprovalPending);
        channel.connect("ask.org:443");
        decider.poll(channel);
        assert_eq!((decider.held_count(), channel.outcomes.lock().unwrap().len()), (0, 2));
    });
    run(&test_host).await;
    assert_eq!(test_host.approver.count(), 1);
}

#[tokio::test]
async fn a_held_connection_keeps_no_other_waiting_and_its_question_ends_with_the_run() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        channel.connect("ask.org:443");
        channel.connect("ask.org:443");
        channel.connect("ask.net:443");
        assert_eq!(channel.outcome(&decider, "a.org:443"), Ok(()));
        assert_eq!(decider.held_count(), 3);
    });
    run(&test_host).await;
    assert_eq!(test_host.pending(), []);
    assert_eq!(test_host.trace.lines(), ["begin a", "reached a.org:443", "end ok a"]);
}

#[tokio::test]
async fn what_is_held_at_the_end_is_on_record() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        channel.connect("ask.org:443");
        decider.poll(channel);
        channel.connect("ask.net:443");
        decider.finish(channel);
        assert_eq!(channel.outcomes.lock().unwrap()[0].1.as_ref().unwrap_err().kind, ErrorKind::ApprovalPending);
    });
    run(&test_host).await;
    assert_eq!(test_host.pending(), []);
    let [begin, held, end] = &test_host.trace.lines()[..] else { panic!("{:?}", test_host.trace.lines()) };
    assert_eq!((begin.as_str(), end.as_str()), ("begin a", "end ok a"));
    assert!(held.contains("ask.org:443") && !held.starts_with("reached ask"), "{held}");
}

#[tokio::test]
async fn the_questions_of_a_run_are_limited() {
    let test_host = host_running(ScriptedApprover::default(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        for number in 0..32 {
            channel.connect(&format!("ask{number}.org:443"));
        }
        let error = channel.outcome(&decider, "ask32.org:443").unwrap_err();
        assert!(error.message.contains("32 hosts already"), "{}", error.message);
        assert_eq!(decider.held_count(), 32);
        assert_eq!(channel.outcome(&decider, "a.org:443"), Ok(()));
    });
    run(&test_host).await;
    assert_eq!(test_host.pending(), []);
}

#[tokio::test]
async fn denials_in_a_row_pause_the_questions() {
    let test_host = host_running(ScriptedApprover::denying(), |channel, cx| {
        let decider = ConnectionDecider::with_hold_time(cx, LONG);
        let most = cx.limits.denials_in_a_row;
        for number in 0..most {
            assert!(channel.outcome(&decider, &format!("ask{number}.org:443")).is_err());
        }
        let error = channel.outcome(&decider, "ask.org:443").unwrap_err();
        assert!(error.message.contains("paused"), "{}", error.message);
        assert_eq!(channel.outcome(&decider, "a.org:443"), Ok(()));
    });
    run(&test_host).await;
    assert_eq!(test_host.approver.count() as u64, test_host.session.limits.denials_in_a_row);
}

#[tokio::test]
async fn a_call_that_was_approved_itself_can_ask_about_its_connections() {
    let script = ToolScript::run(|_, ticket| {
        let (channel, decider) = (TestChannel::default(), ConnectionDecider::with_hold_time(ticket.context(), LONG));
        assert_eq!(channel.outcome(&decider, "ask.org:443"), Ok(()));
        ticket.commit()
    });
    let approver = ScriptedApprover::with_answers([approve(), approve()]);
    let test_host = HostSetup { approver, ..HostSetup::with_script(script) }.build();
    let reply = test_host.call(&json!({"path": "ask"})).await;
    assert_eq!(reply.error_kind(), None, "{}", reply.text);
    assert_eq!(test_host.approver.count(), 2);
}

#[tokio::test]
async fn without_a_decider_an_undecided_connection_is_refused() {
    let test_host = host_running(ScriptedApprover::approving(), |channel, cx| {
        channel.connect("a.org:443");
        channel.next_attempt().unwrap().record(cx);
        assert!(channel.outcomes.lock().unwrap()[0].1.is_err());
    });
    run(&test_host).await;
    assert_eq!(test_host.trace.lines()[1], "kept from PermissionDenied a.org:443");
}

#[tokio::test]
async fn a_connection_that_cannot_be_recorded_is_not_made() {
    let script = ToolScript::run(|_, ticket| {
        let (channel, decider) = (TestChannel::default(), ConnectionDecider::with_hold_time(ticket.context(), LONG));
        channel.connect("a.org:443");
        decider.poll(&channel);
        assert!(channel.outcomes.lock().unwrap().is_empty());
        ticket.commit()
    });
    let trace = ringfence_testkit::audit_trace::AuditTrace::with_capacity(1);
    let test_host = HostSetup { trace, ..HostSetup::with_script(script) }.build();
    let (arguments, cancel) = (json!({"path": "a", "action": "read"}).to_string(), CancellationToken::new());
    assert!(test_host.try_call("act", &arguments, &cancel).await.is_err());
    assert_eq!(test_host.trace.lines(), ["begin a"]);
}
