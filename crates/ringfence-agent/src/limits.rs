//! Limits of one prompt.
//!
//! Every number that ends a run is here with its default. A single call is bounded by the kernel's `CallLimits`.

use std::time::Duration;

/// The bounds of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentLimits {
    /// Answers of the model that may ask for tools. After them it is asked once more, without tools.
    pub steps: u32,
    /// Tokens of all answers together, what they were asked with included.
    pub tokens: Option<u64>,
    /// From the prompt to the end; what is in flight then is cancelled.
    pub time: Option<Duration>,
    /// Tokens that the model takes at once. Near it, old results are left out of what it is shown.
    pub context_tokens: Option<u64>,
    /// Retries of a failed request.
    pub retries: u32,
    /// The longest wait before that, whatever the server wants.
    pub max_wait: Duration,
    /// Calls that may be denied before the run stops. It does not stop in the answer that has the first of them: the model
    /// has to see a denial before it can do better.
    pub denials: u32,
    /// Answers in a row of which every call names no tool or makes no sense, before the run stops.
    pub bad_answers: u32,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            steps: 20,
            tokens: None,
            time: None,
            context_tokens: None,
            retries: 5,
            max_wait: Duration::from_secs(60),
            denials: 8,
            bad_answers: 6,
        }
    }
}
