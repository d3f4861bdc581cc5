//! Property tests of the loop: for any answers, the run ends with a text, and the history is whole.

use std::time::Duration;

use ringfence_agent::AgentLimits;
use ringfence_kernel::Preset;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::{AgentFixture, AgentSetup, call, read, text, write};

/// Numbers that look like chance and are the same each time.
struct AnswerGenerator(u64);

impl AnswerGenerator {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % sides
    }

    fn answer(&mut self) -> Value {
        let name = format!("f{}", self.below(4));
        match self.below(20) {
            0 => text("done"),
            1 => text(""),
            2 => json!({"reasoning": "hm"}),
            3 => text("<tool_call>{\"name\":\"write_file\"}</tool_call>"),
            4 => json!({"text": "half", "finish": "length"}),
            5 => json!({"finish": "length", "calls": [{"name": "delete_file", "arguments": {"path": name}}]}),
            6 => json!({"error": "cut", "text": "ha"}),
            7 => json!({"error": "busy", "retry_after": 10}),
            8 => json!({"error": "too_long"}),
            9 => call("no_such_tool", json!({})),
            10 => json!({"calls": [{"name": "write_file", "arguments": "{\"path\":"}]}),
            11 => call("delete_file", json!({"path": name})),
            12 => call("list_directory", json!({"path": "."})),
            13 => {
                json!({"calls": [{"id": "a", "name": "read_file", "arguments": {"path": name}}, {"id": "a", "name": ""}]})
            }
            14 => json!({"calls": [{"name": "read_file", "arguments": {"path": "../x"}}], "calls_dropped": 3}),
            15 => {
                json!({"text": "and", "finish": "weird", "calls": [{"name": "append_file", "arguments": {"path": name, "content": "x\n"}}]})
            }
            16 | 17 => write(&name, &"line\n".repeat(self.below(900))),
            _ => read(&name),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_and_the_history_is_whole() {
    let mut ends = std::collections::BTreeMap::<&str, usize>::new();
    for seed in 0..150 {
        let mut dice = AnswerGenerator(seed);
        let script: Vec<Value> = (0..40).map(|_| dice.answer()).collect();
        let bounds = AgentLimits {
            steps: 1 + u32::try_from(dice.below(12)).unwrap_or_default(),
            context_tokens: (dice.below(2) == 0).then_some(9000),
            tokens: (dice.below(5) == 0).then_some(60_000),
            time: (dice.below(4) == 0).then_some(Duration::from_secs(3)),
            ..AgentLimits::default()
        };
        let preset = if dice.below(4) == 0 { Preset::ReadOnly } else { Preset::Edits };
        let go_on = [None, Some(true), Some(false)][dice.below(3)];
        let steps = bounds.steps;
        let mut world =
            AgentFixture::new(AgentSetup { bounds, preset, confirm_continue: go_on, ..AgentSetup::default() }, &script);
        for prompt in ["first", "second"] {
            let cancel = CancellationToken::new();
            if dice.below(4) == 0 {
                world.observer.cancel_after_results(1 + dice.below(5), &cancel);
            }
            // What holds of every run is checked in there.
            let outcome = world.prompt_until(prompt, &cancel).await;
            assert!(outcome.steps <= steps + 1, "seed {seed}: {} steps of {steps}", outcome.steps);
            *ends.entry(outcome.stop_reason.name()).or_default() += 1;
        }
    }
    assert!(ends.len() >= 6, "only these ends were met: {ends:?}");
}
