//! Retries of failed model requests, and their limit.

use std::time::Duration;

use ringfence_agent::AgentLimits;
use serde_json::json;

use crate::fixture::{AgentFixture, AgentSetup, assert_ended, is_answered, text, write};

#[tokio::test(start_paused = true)]
async fn transient_errors_are_retried() {
    for error in ["unreachable", "busy", "server", "cut", "stalled"] {
        let mut world = AgentFixture::new(
            AgentSetup::default(),
            &[json!({ "error": error }), json!({ "error": error }), text("hi")],
        );
        let outcome = world.prompt("hello").await;
        assert!(is_answered(&outcome), "{error}: {outcome:?}");
        assert!(world.observer.has_event("again 1 after") && world.observer.has_event("again 2 after"), "{error}");
        assert_eq!(outcome.steps, 1, "an answer that failed is not a step");
        assert_eq!(world.history.messages().len(), 2, "and leaves no trace");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_reported_at_once() {
    for error in ["garbled", "denied"] {
        let mut world = AgentFixture::new(AgentSetup::default(), &[json!({ "error": error }), text("never")]);
        let outcome = world.prompt("hello").await;
        assert_ended(&outcome, "model_error");
        assert!(outcome.duration.is_zero() && outcome.text.contains(error), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_are_limited() {
    let script = vec![json!({"error": "server"}); 9];
    let bounds = AgentLimits { retries: 3, ..AgentLimits::default() };
    let mut world = AgentFixture::new(AgentSetup { bounds, ..AgentSetup::default() }, &script);
    assert_ended(&world.prompt("hello").await, "model_error");
    assert_eq!(world.model.recorded().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_how_long_is_left_alone_so_long_up_to_a_cap() {
    for (wanted, waited) in [(1234, 1234), (3_600_000, 60_000)] {
        let busy = json!({"error": "busy", "retry_after": wanted});
        let mut world = AgentFixture::new(AgentSetup::default(), &[busy, text("hi")]);
        let outcome = world.prompt("hello").await;
        assert!(is_answered(&outcome));
        let heard = format!("again 1 after {waited}ms");
        assert!(world.observer.has_event(&heard), "{:?}", world.observer.events());
        assert_eq!(outcome.duration, Duration::from_millis(waited));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_twice_because_a_later_answer_failed() {
    let script = [write("a", "1"), json!({"error": "cut", "text": "half"}), text("done")];
    let mut world = AgentFixture::new(AgentSetup::default(), &script);
    let outcome = world.prompt("write").await;
    assert!(is_answered(&outcome));
    assert_eq!(world.results().len(), 1);
    assert_eq!(outcome.ledger.calls, 1);
}
