//! JSON of agent events and outcomes, for programs.

use ringfence_agent::{AgentEvent, AgentOutcome};
use serde_json::{Value, json};

/// An event for programs.
pub(crate) fn event_json(event: &AgentEvent<'_>) -> Value {
    match event {
        AgentEvent::Step { step } => json!({"type": "step", "step": step}),
        AgentEvent::Text { text } => json!({"type": "text", "text": text}),
        AgentEvent::Reasoning { text } => json!({"type": "reasoning", "text": text}),
        AgentEvent::CallStarted { name } => json!({"type": "callStarted", "name": name}),
        AgentEvent::Retrying { why, wait, attempt } => {
            json!({"type": "retrying", "why": why, "waitMs": millis(*wait), "attempt": attempt})
        }
        AgentEvent::ResponseComplete { text } => json!({"type": "answered", "text": text}),
        AgentEvent::Note { text } => json!({"type": "note", "text": text}),
        AgentEvent::Call { call } => {
            json!({"type": "call", "id": call.id, "name": call.name, "arguments": call.arguments})
        }
        AgentEvent::Output { call_id, stream, text } => {
            json!({"type": "output", "id": call_id, "stream": stream, "text": text})
        }
        AgentEvent::AwaitingApproval { request } => json!({"type": "waiting", "request": request.redacted_for_relay()}),
        AgentEvent::Result { call, reply, duration } => json!({
            "type": "result", "id": call.id, "name": call.name, "text": reply.text, "isError": reply.outcome.is_err(),
            "durationMs": millis(*duration),
        }),
        AgentEvent::Compacted { results, messages } => {
            json!({"type": "compacted", "results": results, "messages": messages})
        }
        AgentEvent::Usage { total, estimated } => json!({"type": "usage", "usage": total, "estimated": estimated}),
        AgentEvent::Finished { outcome } => {
            let mut value = outcome_json(outcome);
            value["type"] = "finished".into();
            value
        }
    }
}

/// An outcome for programs.
pub(crate) fn outcome_json(outcome: &AgentOutcome) -> Value {
    json!({
        "end": outcome.stop_reason.name(), "why": outcome.stop_reason.explain(), "text": outcome.text, "byHost": outcome.by_host,
        "steps": outcome.steps, "usage": outcome.usage, "estimated": outcome.estimated, "ledger": outcome.ledger,
        "durationMs": millis(outcome.duration),
    })
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
