//! Message types: user, assistant, and tool results.
//!
//! An assistant's message with calls is followed by one result per call, in their order. Code that builds a history
//! keeps that, and a provider may rely on it.

use std::collections::BTreeMap;

use ringfence_kernel::ToolReply;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Bytes of a summary in a transcript.
const MAX_SUMMARY_BYTES: usize = 16 << 10;

/// One message of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum TranscriptMessage {
    User {
        text: String,
    },
    Assistant {
        /// The model's text. Empty where it only made calls.
        text: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<RequestedCall>,
        #[serde(default, skip_serializing_if = "ReasoningState::is_empty")]
        reasoning: ReasoningState,
    },
    Tool {
        call_id: String,
        /// The tool's name as the session offers it.
        name: String,
        /// The reply, in the words of the session's dialect.
        text: String,
        #[serde(default)]
        is_error: bool,
        #[serde(default, skip_serializing_if = "ToolResultSummary::is_empty")]
        summary: ToolResultSummary,
    },
}

/// Facts of a tool's reply for people, beside the text for the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolResultSummary {
    /// The call created a file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    /// The part that people read, where the text has more than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl ToolResultSummary {
    /// The summary of a reply: the sentence of an error, or the output of a program.
    pub fn from_reply(reply: &ToolReply) -> Self {
        let value = match &reply.outcome {
            Ok(value) => value.to_value(),
            Err(error) => return Self { created: false, text: Some(error.message.clone()) },
        };
        let field = |name: &str| value[name].as_str().map(str::to_owned);
        let printed = || Some(field("stdout")? + &field("stderr")?);
        Self { created: value["created"] == true, text: printed() }
    }

    /// The same, no longer than a transcript stores it.
    pub(crate) fn truncated(mut self) -> Self {
        if let Some(text) = &mut self.text {
            text.truncate(text.floor_char_boundary(MAX_SUMMARY_BYTES));
        }
        self
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl TranscriptMessage {
    /// A model's text without calls, or the host's in its place.
    pub fn answer(text: impl Into<String>) -> Self {
        Self::Assistant { text: text.into(), calls: Vec::new(), reasoning: ReasoningState::default() }
    }
}

/// Reasoning state that a provider needs back with the calls of an answer, exactly as it sent it: without that, some
/// lose their reasoning, and some refuse the next request. Each provider sends back only state of its own format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReasoningState {
    /// Fields of a message of chat completions, such as `reasoning_content`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
    /// `extra_content` of calls of chat completions, by the ids of the calls.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<String, Value>,
    /// Signed blocks of Anthropic's messages, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Value>,
}

impl ReasoningState {
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.calls.is_empty() && self.blocks.is_empty()
    }

    /// Size in bytes on the wire.
    pub(crate) fn size(&self) -> usize {
        let length = |value: &Value| value.to_string().len();
        self.fields.values().chain(self.calls.values()).chain(&self.blocks).map(length).sum()
    }
}

/// A call that a model asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedCall {
    /// Unique in its message; minted by us where the model gave none, or one twice.
    pub id: String,
    /// The tool's name as the session offers it; the model's own spelling, where there is no such tool.
    pub name: String,
    /// As the model wrote them: unchecked JSON text.
    pub arguments: String,
}
