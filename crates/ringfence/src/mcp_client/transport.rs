//! Transport to an MCP server: requests, responses and timeouts. Stdio and HTTP implement it.

use std::fmt;
use std::time::{Duration, Instant};

use ringfence_kernel::{ErrorKind, ToolError, sanitize_line};
use serde_json::Value;

use crate::codec::jsonrpc::{FramingError, JsonRpcError};

/// A message that has more bytes than this is not taken in.
pub(crate) const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Words of a server that a message of ours repeats.
const MAX_QUOTED_CHARS: usize = 500;

/// A connection to a server that runs.
pub(crate) trait McpTransport: Send + Sync + fmt::Debug {
    /// Asks, and waits for the answer.
    fn request(&self, method: &str, params: &Value, deadline: &McpDeadline<'_>) -> Result<Value, McpClientError>;

    /// Says something that has no answer.
    fn notify(&self, method: &str, params: &Value, deadline: &McpDeadline<'_>) -> Result<(), McpClientError>;

    /// Nothing can be asked any more.
    fn is_closed(&self) -> bool;

    /// From here on this version of the protocol is spoken.
    fn set_protocol_version(&self, _: &str) {}
}

/// Deadline of a request.
pub(crate) struct McpDeadline<'a> {
    pub(crate) until: Instant,
    /// Fails once the call is cancelled.
    pub(crate) check: &'a (dyn Fn() -> Result<(), ToolError> + 'a),
}

impl McpDeadline<'_> {
    pub(crate) fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

impl fmt::Debug for McpDeadline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpDeadline").field("until", &self.until).finish_non_exhaustive()
    }
}

/// Failed request to an MCP server.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum McpClientError {
    #[error("cannot start it: {0}")]
    Start(String),
    #[error("it ended: {0}")]
    Exited(String),
    #[error("it did not answer in time")]
    Timeout,
    #[error("it sent more than {} MiB at once", MAX_MESSAGE_BYTES >> 20)]
    TooLong,
    #[error("it no longer reads its input")]
    Busy,
    #[error("it refused: {}", truncate_line(&.0.message))]
    Refused(JsonRpcError),
    #[error("it violated the protocol: {0}")]
    ProtocolViolation(&'static str),
    #[error("it sent an invalid response: {}", truncate_line(&.0.to_string()))]
    InvalidResponse(FramingError),
    #[error("{0}")]
    Network(String),
    #[error("the definition of this tool changed during the session")]
    DefinitionChanged,
    #[error("{0}")]
    Cancelled(ToolError),
    /// Its grants could not be provided, so it was not started.
    #[error("{0}")]
    NotStarted(ToolError),
}

impl McpClientError {
    /// For who made a call that a server may have got.
    pub(crate) fn into_tool_error(self, server: &str) -> ToolError {
        let message = format!("the MCP server `{server}`: {self}");
        let unknown = |error: ToolError| {
            error.hint("it is unknown whether the call had an effect").detail("committed", "unknown")
        };
        match self {
            Self::Start(_) => ToolError::new(ErrorKind::Unavailable, message),
            Self::DefinitionChanged => {
                ToolError::new(ErrorKind::Conflict, message).hint("the call was not made; start a new session")
            }
            Self::Refused(_) => ToolError::new(ErrorKind::Execution, message),
            Self::Busy => {
                ToolError::new(ErrorKind::Unavailable, message).hint("the call was not made; try again later")
            }
            Self::Timeout => unknown(ToolError::new(ErrorKind::Timeout, message)),
            Self::Exited(_) => unknown(ToolError::new(ErrorKind::Unavailable, message)),
            Self::Network(_) => unknown(ToolError::new(ErrorKind::Network, message)),
            Self::TooLong | Self::ProtocolViolation(_) | Self::InvalidResponse(_) => {
                unknown(ToolError::new(ErrorKind::Execution, message))
            }
            Self::NotStarted(error) => error,
            Self::Cancelled(error) => unknown(error.hint("the MCP server was told to stop")),
        }
    }
}

/// Foreign text in one line of limited length.
pub(crate) fn truncate_line(words: &str) -> String {
    let cut = words.floor_char_boundary(MAX_QUOTED_CHARS);
    let (kept, more) = words.split_at(cut);
    format!("{}{}", sanitize_line(kept), if more.is_empty() { "" } else { "…" })
}
