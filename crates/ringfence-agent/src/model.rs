//! Model interface: one request, one response, whole or not at all.
//!
//! While a response streams, its parts are shown as they arrive. They are for display only: actions come from the whole
//! `ModelResponse`, and there is one only if the model finished. To cancel is to drop the future.
//!
//! Not here: retries (the loop), and the wire format (the providers).

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{ReasoningState, RequestedCall, TranscriptMessage};

/// A language model.
pub trait LanguageModel: fmt::Debug + Send + Sync {
    /// Display name: its name at the provider.
    fn name(&self) -> &str;

    /// Answers once. `parts` hears what arrives, as it arrives.
    fn respond<'a>(
        &'a self,
        ask: ModelRequest<'a>,
        parts: &'a mut ResponsePartSink<'_>,
    ) -> ModelFuture<'a, ModelResponse>;

    /// Whether it can be reached and knows the model, checked without a prompt.
    fn health(&self) -> ModelFuture<'_, ()>;
}

/// A pending operation of a model.
pub type ModelFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ModelError>> + Send + 'a>>;

/// Sink for the parts of a streamed response.
pub type ResponsePartSink<'a> = dyn FnMut(ResponsePart<'_>) + Send + 'a;

/// A request to a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    pub system: &'a str,
    pub messages: &'a [TranscriptMessage],
    /// Empty in the step that ends a run: then no call is possible.
    pub tools: &'a [ToolSpec],
    pub temperature: Option<f64>,
    /// Most tokens of the response.
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
    /// Reasoning state for the next request.
    pub reasoning_state: ReasoningState,
    /// In the order in which the model made them. At most 64; see `calls_dropped`.
    pub calls: Vec<RequestedCall>,
    /// Number of calls beyond the limit. Their ids are lost, and the model is notified.
    pub calls_dropped: usize,
    /// The model's text of a refusal.
    pub refusal: Option<String>,
    pub finish: FinishReason,
    /// Nothing where the server did not say.
    pub usage: Option<TokenUsage>,
    /// The model that answered, where the server says it was another one.
    pub served_by: Option<String>,
    /// Oddities of the response that were corrected, for the log.
    pub warnings: Vec<String>,
}

/// Stop reason of a model.
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
    /// Another reason of the server. Treated as `Stop`.
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

/// Failed model request. Its text is for a person: what happened, at which server, what to do next; never a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    pub kind: ModelErrorKind,
    pub message: String,
}

/// Kind of a model error, which decides about a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelErrorKind {
    /// No connection: refused, no such name, TLS.
    Unreachable,
    /// The server is overloaded, or is still loading; it may have set a time to wait.
    Busy { retry_after: Option<Duration> },
    /// The server failed.
    Server,
    /// The response ended before the model finished. Nothing of it counts.
    Cut,
    /// Nothing came for too long.
    Stalled,
    /// Not a valid response: an HTML page, an error with status 200, broken JSON, too large.
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
