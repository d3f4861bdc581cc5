//! Deadlines: a caller is answered in time, with what is known about the call's end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_kernel::{ErrorKind, IoMode, ToolReply};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::{HostSetup, TestHost, ToolScript, assert_error, reply_json};

/// A tool that waits to be let go, and says when it waits.
struct BlockedTool {
    waiting: UnboundedReceiver<()>,
    release: Sender<()>,
}

/// Phase in which the tool blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockPoint {
    BeforeCommit,
    AfterCommit,
}

impl BlockedTool {
    /// A script that waits at `hold`; `effect` is set once it went past its commit.
    fn script(hold: BlockPoint, effect: &Arc<AtomicBool>) -> (Self, ToolScript) {
        let (waits, waiting) = unbounded_channel();
        let (go, gone) = channel();
        let (gone, effect) = (Mutex::new(gone), Arc::clone(effect));
        let script = ToolScript::run(move |_, ticket| {
            let wait = || {
                waits.send(()).unwrap();
                // An error means that the test is over, which is as good as being let go.
                let _ = gone.lock().unwrap().recv();
            };
            if hold == BlockPoint::BeforeCommit {
                wait();
            }
            ticket.commit()?;
            effect.store(true, Ordering::SeqCst);
            if hold == BlockPoint::AfterCommit {
                wait();
            }
            Ok(())
        });
        (Self { waiting, release: go }, script)
    }
}

/// Lets time pass until the call is answered, and not much longer.
async fn wait_for_reply(call: JoinHandle<ToolReply>, at_most: Duration) -> ToolReply {
    let step = Duration::from_millis(50);
    let mut passed = Duration::ZERO;
    while !call.is_finished() {
        assert!(passed <= at_most + step, "no answer after {passed:?}");
        tokio::time::advance(step).await;
        tokio::task::yield_now().await;
        passed += step;
    }
    call.await.unwrap()
}

fn call_time(test_host: &TestHost) -> Duration {
    test_host.session.limits.call_time
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_answered_at_its_deadline() {
    let effect = Arc::new(AtomicBool::new(false));
    let (mut held, script) = BlockedTool::script(BlockPoint::BeforeCommit, &effect);
    let test_host = HostSetup::with_script(script).build();
    let call = test_host.start(&json!({"path": "a"}), &CancellationToken::new());
    held.waiting.recv().await.unwrap();
    let reply = wait_for_reply(call, call_time(&test_host)).await;
    assert_error(&reply, ErrorKind::Timeout);
    assert_eq!(reply_json(&reply)["error"]["details"]["committed"], false);
    assert_eq!(test_host.trace.lines(), ["begin change a", "end Timeout a"]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_was_given_up_cannot_commit_later() {
    let effect = Arc::new(AtomicBool::new(false));
    let (mut held, script) = BlockedTool::script(BlockPoint::BeforeCommit, &effect);
    let test_host = HostSetup { workers: 1, ..HostSetup::with_script(script) }.build();
    let cancel = CancellationToken::new();
    let call = test_host.start(&json!({"path": "a"}), &cancel);
    held.waiting.recv().await.unwrap();
    cancel.cancel();
    let reply = call.await.unwrap();
    assert_error(&reply, ErrorKind::Cancelled);
    assert_eq!(reply_json(&reply)["error"]["details"]["committed"], false);
    held.release.send(()).unwrap();
    // The only worker comes back when the first call is over, so the next one proves that it is.
    let next = test_host.start(&json!({"path": "b"}), &CancellationToken::new());
    held.waiting.recv().await.unwrap();
    assert!(!effect.load(Ordering::SeqCst), "an abandoned call changed something");
    held.release.send(()).unwrap();
    assert_eq!(next.await.unwrap().error_kind(), None);
    assert_eq!(test_host.trace.lines(), ["begin change a", "end Cancelled a", "begin change b", "end ok b"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_goes_away_is_cancelled_and_recorded() {
    let effect = Arc::new(AtomicBool::new(false));
    let (mut held, script) = BlockedTool::script(BlockPoint::BeforeCommit, &effect);
    let test_host = HostSetup { workers: 1, ..HostSetup::with_script(script) }.build();
    let call = test_host.start(&json!({"path": "a"}), &CancellationToken::new());
    held.waiting.recv().await.unwrap();
    call.abort();
    assert!(call.await.is_err());
    held.release.send(()).unwrap();
    let next = test_host.start(&json!({"path": "b"}), &CancellationToken::new());
    held.waiting.recv().await.unwrap();
    assert!(!effect.load(Ordering::SeqCst), "an abandoned call changed something");
    held.release.send(()).unwrap();
    assert_eq!(next.await.unwrap().error_kind(), None);
    assert_eq!(test_host.trace.lines(), ["begin change a", "end Cancelled a", "begin change b", "end ok b"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_late_has_an_unknown_end_and_then_a_recorded_one() {
    for cancelled in [false, true] {
        let effect = Arc::new(AtomicBool::new(false));
        let (mut held, script) = BlockedTool::script(BlockPoint::AfterCommit, &effect);
        let test_host = HostSetup::with_script(script).build();
        let cancel = CancellationToken::new();
        let call = test_host.start(&json!({"path": "a"}), &cancel);
        held.waiting.recv().await.unwrap();
        if cancelled {
            cancel.cancel();
        }
        let kind = if cancelled { ErrorKind::Cancelled } else { ErrorKind::Timeout };
        let reply = wait_for_reply(call, call_time(&test_host) + Duration::from_secs(1)).await;
        assert_error(&reply, kind);
        assert_eq!(reply_json(&reply)["error"]["details"]["committed"], "unknown");
        assert_eq!(test_host.trace.lines(), ["begin change a".to_owned(), format!("overdue {kind:?} a")]);
        held.release.send(()).unwrap();
        assert_eq!(test_host.trace.wait_for_lines(3).await[2], "end ok a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_ends_soon_after_its_deadline_gives_its_own_reply() {
    let effect = Arc::new(AtomicBool::new(false));
    let (mut held, script) = BlockedTool::script(BlockPoint::AfterCommit, &effect);
    let test_host = HostSetup::with_script(script).build();
    let cancel = CancellationToken::new();
    let call = test_host.start(&json!({"path": "a"}), &cancel);
    held.waiting.recv().await.unwrap();
    cancel.cancel();
    tokio::task::yield_now().await;
    held.release.send(()).unwrap();
    let reply = call.await.unwrap();
    assert_eq!(reply_json(&reply)["value"]["path"], "a", "{}", reply.text);
    assert_eq!(test_host.trace.lines(), ["begin change a", "end ok a"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_before_it_begins_never_begins() {
    for quick in [false, true] {
        let test_host = HostSetup { non_blocking: quick, ..HostSetup::default() }.build();
        let cancel = CancellationToken::new();
        cancel.cancel();
        let reply = test_host.try_call("act", r#"{"path":"a","action":"read"}"#, &cancel).await.unwrap();
        assert_error(&reply, ErrorKind::Cancelled);
        assert_eq!((test_host.trace.lines(), test_host.runs()), (vec!["refused Cancelled".to_owned()], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_no_free_worker_is_answered_at_its_deadline_and_never_runs() {
    let effect = Arc::new(AtomicBool::new(false));
    let (mut held, script) = BlockedTool::script(BlockPoint::BeforeCommit, &effect);
    let test_host = HostSetup { workers: 1, ..HostSetup::with_script(script) }.build();
    let first = test_host.start(&json!({"path": "a"}), &CancellationToken::new());
    held.waiting.recv().await.unwrap();
    let second = test_host.start(&json!({"path": "b"}), &CancellationToken::new());
    let cancelled = CancellationToken::new();
    let third = test_host.start(&json!({"path": "c"}), &cancelled);
    cancelled.cancel();
    assert_error(&third.await.unwrap(), ErrorKind::Cancelled);
    let reply = wait_for_reply(second, call_time(&test_host)).await;
    assert_error(&reply, ErrorKind::Timeout);
    assert_eq!(reply_json(&reply)["error"]["details"]["committed"], false);
    assert_error(&first.await.unwrap(), ErrorKind::Timeout);
    held.release.send(()).unwrap();
    drop(held.release);
    // Neither waits in line any more: the next call gets the worker.
    assert_eq!(test_host.call(&json!({"path": "d"})).await.error_kind(), None);
    assert_eq!(test_host.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_looks_whether_it_is_wanted_stops_when_it_is_not() {
    let (stops, mut stopped) = unbounded_channel();
    let (enters, mut entered) = unbounded_channel();
    let script = ToolScript::run(move |_, ticket| {
        enters.send(()).unwrap();
        loop {
            if let Err(error) = ticket.context().check() {
                stops.send(error.kind).unwrap();
                return Err(error);
            }
            std::thread::yield_now();
        }
    });
    let test_host = HostSetup::with_script(script).build();
    let cancel = CancellationToken::new();
    let call = test_host.start(&json!({"path": "a"}), &cancel);
    entered.recv().await.unwrap();
    cancel.cancel();
    assert_error(&call.await.unwrap(), ErrorKind::Cancelled);
    assert_eq!(stopped.recv().await, Some(ErrorKind::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_panics_after_it_was_given_up_leaves_no_second_end() {
    let (waits, mut waiting) = unbounded_channel();
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(gone);
    let script = ToolScript::run(move |args, _| {
        if args.path == "boom" {
            waits.send(()).unwrap();
            let _ = gone.lock().unwrap().recv();
            panic!("as the test wants it");
        }
        Ok(())
    });
    let test_host = HostSetup { workers: 1, ..HostSetup::with_script(script) }.build();
    let cancel = CancellationToken::new();
    let call = test_host.start(&json!({"path": "boom"}), &cancel);
    waiting.recv().await.unwrap();
    cancel.cancel();
    assert_error(&call.await.unwrap(), ErrorKind::Cancelled);
    go.send(()).unwrap();
    // The only worker comes back when the first call is over.
    assert_eq!(test_host.call(&json!({"path": "a"})).await.error_kind(), None);
    assert_eq!(test_host.trace.lines(), ["begin change boom", "end Cancelled boom", "begin change a", "end ok a"]);
}

#[tokio::test]
async fn a_quick_call_runs_on_the_callers_own_thread() {
    let here = std::thread::current().id();
    let script = ToolScript::run(move |_, ticket| {
        assert_eq!((std::thread::current().id(), ticket.context().io_mode), (here, IoMode::NonBlocking));
        Ok(())
    });
    let test_host = HostSetup { non_blocking: true, ..HostSetup::with_script(script) }.build();
    assert_eq!(test_host.call(&json!({"path": "a", "action": "read"})).await.error_kind(), None);
    assert_eq!(test_host.runs(), 1);
}

#[tokio::test]
async fn a_quick_call_that_stalls_runs_again_on_a_worker_and_its_reply_is_right() {
    let paces = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&paces);
    let stalling = move |cx: &ringfence_kernel::CallContext<'_>| {
        seen.lock().unwrap().push(cx.io_mode);
        if cx.io_mode == IoMode::NonBlocking { Err(cx.would_block()) } else { Ok(()) }
    };
    let stalling = Arc::new(stalling);
    let in_plan = Arc::clone(&stalling);
    for script in
        [ToolScript::plan(move |_, cx| in_plan(cx)), ToolScript::run(move |_, ticket| stalling(ticket.context()))]
    {
        paces.lock().unwrap().clear();
        let test_host = HostSetup { non_blocking: true, ..HostSetup::with_script(script) }.build();
        let reply = test_host.call(&json!({"path": "a", "action": "read"})).await;
        assert_eq!(reply_json(&reply), json!({"ok": true, "value": {"path": "a", "approved": false}}));
        assert_eq!(*paces.lock().unwrap(), [IoMode::NonBlocking, IoMode::Blocking]);
        assert_eq!(test_host.trace.lines().last().unwrap(), "end ok a");
        assert_eq!(test_host.trace.lines().iter().filter(|line| line.starts_with("end")).count(), 1);
    }
}

#[tokio::test]
async fn a_quick_tool_that_would_change_something_does_it_on_a_worker() {
    let here = std::thread::current().id();
    let script = ToolScript::run(move |_, ticket| {
        assert_ne!(std::thread::current().id(), here);
        assert_eq!(ticket.context().io_mode, IoMode::Blocking);
        ticket.commit()
    });
    let test_host = HostSetup { non_blocking: true, ..HostSetup::with_script(script) }.build();
    assert_eq!(test_host.call(&json!({"path": "a"})).await.error_kind(), None);
    assert_eq!(
        (test_host.runs(), test_host.trace.lines()),
        (1, vec!["begin change a".to_owned(), "end ok a".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn many_calls_at_once_all_end_and_never_more_than_the_workers_run() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, high) = (Arc::clone(&running), Arc::clone(&most));
    let script = ToolScript::run(move |_, ticket| {
        high.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        ticket.commit()?;
        std::thread::yield_now();
        now.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    });
    let test_host = HostSetup { workers: 3, ..HostSetup::with_script(script) }.build();
    let calls: Vec<_> =
        (0..100).map(|n| test_host.start(&json!({"path": format!("f{n}")}), &CancellationToken::new())).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().error_kind(), None);
    }
    assert_eq!(test_host.runs(), 100);
    assert!(most.load(Ordering::SeqCst) <= 3);
}
