//! Run limits: steps, tokens, time and the model's context; each ends with an answer.

use std::time::Duration;

use ringfence_agent::{AgentLimits, TranscriptMessage};
use serde_json::{Value, json};

use crate::fixture::{AgentFixture, AgentSetup, assert_ended, call, is_answered, read, text, write};

fn setup_with(bounds: AgentLimits) -> AgentSetup {
    AgentSetup { bounds, ..AgentSetup::default() }
}

fn setup_with_steps(steps: u32) -> AgentSetup {
    setup_with(AgentLimits { steps, ..AgentLimits::default() })
}

#[tokio::test]
async fn an_answer_in_the_last_step_is_an_answer() {
    let mut world = AgentFixture::new(setup_with_steps(2), &[write("a", "1"), text("wrote it")]);
    let outcome = world.prompt("write").await;
    assert!(is_answered(&outcome));
    assert_eq!((outcome.text.as_str(), outcome.by_host, outcome.steps), ("wrote it", false, 2));
    assert_eq!(world.file("a").as_deref(), Some("1"));
}

#[tokio::test]
async fn at_the_bound_the_model_is_asked_once_more_without_tools() {
    let mut world =
        AgentFixture::new(setup_with_steps(2), &[write("a", "1"), write("b", "2"), text("I wrote a and b")]);
    let outcome = world.prompt("write").await;
    assert_ended(&outcome, "step_limit");
    assert_eq!((outcome.text.as_str(), outcome.steps), ("I wrote a and b", 3));
    let asked = world.model.recorded();
    assert!(!asked[0].tools.is_empty() && !asked[1].tools.is_empty());
    assert!(asked[2].tools.is_empty());
    let Some(TranscriptMessage::User { text: told }) = asked[2].messages.last() else { panic!() };
    assert!(told.contains("no steps left"), "{told}");
    // The instruction is not kept.
    let is_instruction =
        |message: &TranscriptMessage| matches!(message, TranscriptMessage::User { text } if text.contains("ringfence"));
    assert!(!world.history.messages().iter().any(is_instruction));
}

#[tokio::test]
async fn calls_in_the_last_step_are_refused_and_stripped() {
    let pseudo = "All done.\n<tool_call>{\"name\":\"write_file\"}</tool_call>";
    let last = json!({"text": pseudo, "calls": [{"name": "write_file", "arguments": {"path": "late", "content": ""}}]});
    let mut world = AgentFixture::new(setup_with_steps(1), &[write("a", "1"), last]);
    let outcome = world.prompt("write").await;
    assert_ended(&outcome, "step_limit");
    assert_eq!((outcome.text.as_str(), outcome.by_host), ("All done.", false));
    assert_eq!(world.file("late"), None);
    assert!(world.observer.has_event("a call of `write_file` was refused"));
}

#[tokio::test]
async fn the_host_summarizes_when_the_model_gives_no_text() {
    for last in [
        text("{\"name\":\"write_file\",\"arguments\":{}}"),
        text(""),
        json!({"calls": [{"name": "read_file", "arguments": {"path": "a"}}]}),
        json!({"error": "denied"}),
    ] {
        let mut world = AgentFixture::new(setup_with_steps(1), &[write("a", "1"), last]);
        let outcome = world.prompt("write").await;
        assert_ended(&outcome, "step_limit");
        assert!(outcome.by_host && outcome.text.contains("created  a"), "{}", outcome.text);
    }
}

#[tokio::test]
async fn no_steps_at_all_still_means_one() {
    let mut world = AgentFixture::new(setup_with_steps(0), &[text("hi")]);
    assert!(is_answered(&world.prompt("hi").await));
}

#[tokio::test]
async fn used_up_tokens_end_the_run_after_the_step() {
    let used = |path: &str| {
        let mut answer = write(path, "x");
        answer["usage"] =
            json!({"input": 90, "output": 10, "total": 100, "reasoning": 4, "cacheRead": 2, "cacheWrite": 1});
        answer
    };
    let setup = setup_with(AgentLimits { tokens: Some(200), ..AgentLimits::default() });
    let mut world = AgentFixture::new(setup, &[used("a"), used("b"), used("c")]);
    let outcome = world.prompt("write").await;
    assert_ended(&outcome, "token_budget");
    assert_eq!((outcome.steps, outcome.usage.total, outcome.usage.reasoning), (2, 200, 8));
    assert!(!outcome.estimated);
    assert_eq!(world.file("c"), None);
}

#[tokio::test]
async fn missing_token_counts_are_estimated() {
    let mut world = AgentFixture::new(AgentSetup::default(), &[text("hello there")]);
    let outcome = world.prompt("hi").await;
    assert!(outcome.estimated && outcome.usage.total > 0);
}

#[tokio::test(start_paused = true)]
async fn the_time_ends_a_wait_for_the_model() {
    let setup = setup_with(AgentLimits { time: Some(Duration::from_secs(9)), ..AgentLimits::default() });
    let mut world = AgentFixture::new(setup, &[json!({"text": "I thi", "stall": true})]);
    let outcome = world.prompt("think").await;
    assert_ended(&outcome, "time_budget");
    assert_eq!(outcome.duration.as_secs(), 9);
}

#[tokio::test]
async fn near_the_models_context_old_results_are_left_out() {
    let setup = setup_with(AgentLimits { steps: 20, context_tokens: Some(9000), ..AgentLimits::default() });
    let mut script: Vec<Value> = (0..6).map(|number| read(&format!("f{number}"))).collect();
    script.push(text("read them all"));
    let mut world = AgentFixture::new(setup, &script);
    for number in 0..6 {
        world.write(&format!("f{number}"), &"word ".repeat(1200));
    }
    let outcome = world.prompt("read").await;
    assert!(is_answered(&outcome), "{outcome:?}");
    assert!(world.observer.has_event("compacted"), "{:?}", world.observer.events());
    let asked = world.model.recorded();
    let last = &asked.last().unwrap().messages;
    assert!(
        matches!(&last[2], TranscriptMessage::Tool { text, .. } if text.contains("removed to save context")),
        "{:?}",
        last[2]
    );
    // The newest one is whole.
    assert!(matches!(last.last(), Some(TranscriptMessage::Tool { text, .. }) if text.len() > 6000));
}

#[tokio::test]
async fn an_overlong_history_is_compacted_once_then_reported() {
    let too_long = || json!({"error": "too_long"});
    let mut world = AgentFixture::new(AgentSetup::default(), &[read("f"), read("g"), too_long(), text("done")]);
    world.write("f", &"word ".repeat(1200));
    world.write("g", &"word ".repeat(1200));
    assert!(is_answered(&world.prompt("read").await));
    assert!(world.observer.has_event("compacted"));
    let mut world = AgentFixture::new(AgentSetup::default(), &[read("f"), too_long(), too_long()]);
    world.write("f", &"word ".repeat(1200));
    assert_ended(&world.prompt("read").await, "model_error");
    let mut world = AgentFixture::new(AgentSetup::default(), &[too_long()]);
    assert_ended(&world.prompt("hi").await, "model_error");
}

#[tokio::test]
async fn prompts_of_a_session_follow_each_other_and_other_sessions_know_nothing_of_them() {
    let script = [write("a", "1"), text("wrote"), call("read_file", json!({"path": "a"})), text("it says 1")];
    let mut world = AgentFixture::new(AgentSetup::default(), &script);
    world.prompt("write").await;
    let outcome = world.prompt("what does it say?").await;
    assert!(!outcome.ledger.has_changes(), "the ledger is one prompt's");
    let asked = world.model.recorded();
    assert_eq!(asked[2].messages.len(), 5);
    let other = AgentFixture::new(AgentSetup::default(), &[]);
    assert!(other.history.messages().is_empty());
}
