//! A line to a server: something is asked and answered, or is not in time. Pipes and HTTP are two kinds of it.

use std::fmt;
use std::time::{Duration, Instant};

use ringfence_kernel::{ErrorKind, ToolError, visible_line};
use serde_json::Value;

use super::speech::{LONGEST, Refusal};

/// Words of a server that a message of ours repeats.
const LONGEST_WORDS: usize = 500;

/// A connection to a server that runs.
pub(crate) trait Line: Send + Sync + fmt::Debug {
    /// Asks, and waits for the answer.
    fn ask(&self, method: &str, params: &Value, patience: &Patience<'_>) -> Result<Value, Trouble>;

    /// Says something that has no answer.
    fn tell(&self, method: &str, params: &Value, patience: &Patience<'_>) -> Result<(), Trouble>;

    /// Nothing can be asked any more.
    fn is_over(&self) -> bool;

    /// From here on this version of the protocol is spoken.
    fn agree(&self, _: &str) {}
}

/// How long somebody waits.
pub(crate) struct Patience<'a> {
    pub(crate) until: Instant,
    /// Fails as soon as nobody waits any more.
    pub(crate) check: &'a (dyn Fn() -> Result<(), ToolError> + 'a),
}

impl Patience<'_> {
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

impl fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("until", &self.until).finish_non_exhaustive()
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("it cannot be started: {0}")]
    Start(String),
    #[error("it ended: {0}")]
    Ended(String),
    #[error("it did not answer in time")]
    Slow,
    #[error("it said more than {} MiB at once", LONGEST >> 20)]
    TooLong,
    #[error("it takes in nothing any more")]
    Busy,
    #[error("it refused: {}", shortened(&.0.message))]
    Refused(Refusal),
    #[error("it answered what the protocol does not have: {0}")]
    Nonsense(&'static str),
    #[error("{0}")]
    Network(String),
    #[error("it says something else about this tool than when the session began")]
    Changed,
    #[error("{0}")]
    Unwanted(ToolError),
    /// What it was to be given could not be had, so it was not started.
    #[error("{0}")]
    NotStarted(ToolError),
}

impl Trouble {
    /// For who made a call that a server may have got.
    pub(crate) fn of_call(self, server: &str) -> ToolError {
        let message = format!("the MCP server `{server}`: {self}");
        let unknown =
            |error: ToolError| error.hint("whether it did something is not known").detail("committed", "unknown");
        match self {
            Self::Start(_) => ToolError::new(ErrorKind::Unavailable, message),
            Self::Changed => ToolError::new(ErrorKind::Conflict, message).hint("nothing was done; begin a new session"),
            Self::Refused(_) => ToolError::new(ErrorKind::Execution, message),
            Self::Busy => ToolError::new(ErrorKind::Unavailable, message).hint("nothing was done; try again later"),
            Self::Slow => unknown(ToolError::new(ErrorKind::Timeout, message)),
            Self::Ended(_) => unknown(ToolError::new(ErrorKind::Unavailable, message)),
            Self::Network(_) => unknown(ToolError::new(ErrorKind::Network, message)),
            Self::TooLong | Self::Nonsense(_) => unknown(ToolError::new(ErrorKind::Execution, message)),
            Self::NotStarted(error) => error,
            Self::Unwanted(error) => unknown(error.hint("the MCP server was told to stop")),
        }
    }
}

/// A stranger's words in one line of ours.
pub(crate) fn shortened(words: &str) -> String {
    let cut = words.floor_char_boundary(LONGEST_WORDS);
    let (kept, more) = words.split_at(cut);
    format!("{}{}", visible_line(kept), if more.is_empty() { "" } else { "…" })
}
