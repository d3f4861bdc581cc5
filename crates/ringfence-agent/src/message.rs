//! What is said between a person, a model and its tools: the history of a session.
//!
//! An assistant's message with calls is followed by one result per call, in their order. Whoever builds a history keeps
//! that, and a provider may rely on it.

use serde::{Deserialize, Serialize};

/// One message of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Message {
    User {
        text: String,
    },
    Assistant {
        /// What the model said. Empty where it only made calls.
        text: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<RequestedCall>,
    },
    Tool {
        call_id: String,
        /// The tool's name as the session offers it.
        name: String,
        /// The reply, in the words of the session's dialect.
        text: String,
        #[serde(default)]
        is_error: bool,
    },
}

/// A call that a model asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedCall {
    /// Unique in its message; minted by us where the model gave none, or one twice.
    pub id: String,
    /// The tool's name as the session offers it; what the model wrote, where that is no offered tool.
    pub name: String,
    /// As the model wrote them: JSON text that nobody has checked.
    pub arguments: String,
}
