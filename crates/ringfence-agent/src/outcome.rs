//! Run outcomes: the stop reason, and its text.
//!
//! There is always a text for the person: the model's last words, or the host's own where it has none.

use std::fmt::Write as _;
use std::time::Duration;

use ringfence_kernel::HostError;

use crate::history::TranscriptError;
use crate::ledger::Ledger;
use crate::model::{ModelError, TokenUsage};

/// Stop reason of a run.
#[derive(Debug)]
pub enum AgentStopReason {
    /// The model gave its answer.
    Answered,
    /// It still asked for tools after the last step that it had.
    StepLimit,
    Cancelled,
    /// The response was empty, twice.
    Empty,
    /// It would not answer.
    Refusal,
    /// The provider's filter cut it.
    Filter,
    /// Its answer was cut by a limit of tokens, twice.
    Length,
    /// It repeated the same calls, and was not allowed to go on.
    Repeated,
    /// Too many of its calls were denied.
    Denied,
    /// Too many of its calls in a row were malformed.
    BadCalls,
    /// The tokens for this prompt are used up.
    TokenLimit,
    /// The time for this prompt is over.
    TimeLimit,
    /// There is no answer to be had from the model.
    Model(ModelError),
    /// The transcript could not be stored.
    Transcript(TranscriptError),
    /// No call can be made safely any more.
    Host(HostError),
}

impl AgentStopReason {
    /// For programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::StepLimit => "step_limit",
            Self::Cancelled => "cancelled",
            Self::Empty => "empty_response",
            Self::Refusal => "refusal",
            Self::Filter => "content_filter",
            Self::Length => "length",
            Self::Repeated => "repeated_call",
            Self::Denied => "too_many_denials",
            Self::BadCalls => "invalid_calls",
            Self::TokenLimit => "token_budget",
            Self::TimeLimit => "time_budget",
            Self::Model(_) => "model_error",
            Self::Transcript(_) => "session_lost",
            Self::Host(_) => "host_error",
        }
    }

    /// For people: what happened, and what to do next.
    pub fn explain(&self) -> String {
        match self {
            Self::Answered => "the model answered".to_owned(),
            Self::StepLimit => {
                "the step limit was reached; prompt again to continue, or raise `max_tool_iterations`".to_owned()
            }
            Self::Cancelled => "cancelled".to_owned(),
            Self::Empty => "the model returned an empty answer twice; try another model".to_owned(),
            Self::Refusal => "the model refused".to_owned(),
            Self::Filter => "the provider's content filter stopped the answer".to_owned(),
            Self::Length => "the answer was cut off at the token limit twice; raise `max_tokens`".to_owned(),
            Self::Repeated => "the model repeated the same calls".to_owned(),
            Self::Denied => "too many calls were denied".to_owned(),
            Self::BadCalls => "too many consecutive answers had only invalid tool calls; try another model".to_owned(),
            Self::TokenLimit => "the token budget of this prompt is used up; raise `max_prompt_tokens`".to_owned(),
            Self::TimeLimit => "the time limit of this prompt was reached; raise `max_prompt_duration`".to_owned(),
            Self::Model(error) => error.to_string(),
            Self::Transcript(lost) => error_chain(lost),
            Self::Host(fatal) => error_chain(fatal),
        }
    }
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// The outcome of a prompt.
#[derive(Debug)]
pub struct AgentOutcome {
    pub stop_reason: AgentStopReason,
    /// The last words: the model's, or the host's where there are none.
    pub text: String,
    /// Whether `text` is the host's.
    pub by_host: bool,
    /// Answers that the model gave.
    pub steps: u32,
    pub usage: TokenUsage,
    /// Some of `usage` is our guess, because the server did not say.
    pub estimated: bool,
    /// The recorded effects.
    pub ledger: Ledger,
    pub duration: Duration,
}
