//! Model interface: one request, one response, whole or not at all.
//!
//! While an answer comes, its parts are shown as they arrive. They are for eyes only: what is done comes from the whole
//! `ModelResponse`, and there is one only if the model said that it had finished. To cancel is to drop the future.
//!
//! Not here: when to ask again (the loop), and how a request looks on the wire (the providers).

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{ReasoningState, RequestedCall, TranscriptMessage};

/// A language model.
pub trait LanguageModel: fmt::Debug + Send + Sync {
    /// What people call it: its name at the provider.
    fn name(&self) -> &str;

    /// Answers once. `parts` hears what arrives, as it arrives.
    fn respond<'a>(&'a self, ask: ModelRequest<'a>, parts: &'a mut PartSink<'_>) -> ModelFuture<'a, ModelResponse>;

    /// Whether it can be reached and knows the model, told without asking it anything.
    fn health(&self) -> ModelFuture<'_, ()>;
}

/// What a model is doing for us.
pub type ModelFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ModelError>> + Send + 'a>>;

/// Who hears the parts of an answer.
pub type PartSink<'a> = dyn FnMut(ResponsePart<'_>) + Send + 'a;

/// What a model is asked.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    pub system: &'a str,
    pub messages: &'a [TranscriptMessage],
    /// Empty in the step that ends a run: then no call is possible.
    pub tools: &'a [ToolSpec],
    pub temperature: Option<f64>,
    /// How many tokens the answer may have.
    pub max_tokens: Option<u64>,
}

/// A tool that a model may call.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// As the session offers it. A provider whose interface forbids such a name maps it, and maps it back.
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// A piece of an answer that is still coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsePart<'a> {
    Text(&'a str),
    Reasoning(&'a str),
    /// A call began. Its name is the model's word so far, and nothing is done with it.
    Call(&'a str),
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelResponse {
    pub text: String,
    pub reasoning: String,
    /// What its provider wants back with its calls.
    pub reasoning_state: ReasoningState,
    /// In the order in which the model made them. At most 64; see `calls_dropped`.
    pub calls: Vec<RequestedCall>,
    /// How many calls were beyond the bound. Their ids are lost, and the model has to be told.
    pub calls_dropped: usize,
    /// What the model said instead of an answer.
    pub refusal: Option<String>,
    pub finish: FinishReason,
    /// Nothing where the server did not say.
    pub usage: Option<TokenUsage>,
    /// The model that answered, where the server says it was another one.
    pub served_by: Option<String>,
    /// What was odd about the answer and was made good, for the log.
    pub warnings: Vec<String>,
}

/// Why a model stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FinishReason {
    #[default]
    Stop,
    Calls,
    /// Cut by a limit of tokens: no call of it may be made.
    Length,
    /// Cut by the provider's filter.
    Filter,
    Refusal,
    /// What the server called it. Treated as `Stop`.
    Other(String),
}

/// Tokens, as a server counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TokenUsage {
    pub input: u64,
    pub output: u64,
    pub total: u64,
    pub reasoning: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

impl TokenUsage {
    /// Adds another answer's.
    pub fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.total = self.total.saturating_add(other.total);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
    }
}

/// Why there is no answer. Its text is for a person: what happened, at which server, what to do next; never a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    pub kind: ModelErrorKind,
    pub message: String,
}

/// What kind of trouble it is, for the one who decides whether to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelErrorKind {
    /// No connection: refused, no such name, TLS.
    Unreachable,
    /// The server has too much to do, or is still loading; it may have said how long to wait.
    Busy { retry_after: Option<Duration> },
    /// The server failed.
    Server,
    /// The answer ended before the model said that it had finished. Nothing of it counts.
    Cut,
    /// Nothing came for too long.
    Stalled,
    /// What came is no answer: a page, an error in disguise, broken JSON, too much.
    Garbled,
    /// The history is longer than the model takes.
    TooLong,
    /// The key is missing, wrong, or not enough.
    Denied,
    /// The server does not know the model, or the address is not an interface of models.
    NoSuchModel,
    /// The server, or the model at it, takes no tools.
    NoTools,
    /// The server calls the request wrong.
    BadRequest,
}
