//! Model requests with retries.
//!
//! A failed response is requested again after a delay, because nothing of it was acted upon: actions come from whole
//! responses only. A request that is too long for the model is shortened once. Everything here ends at once when the
//! run is cancelled or its time is over.
//!
//! Not here: what becomes of an answer (`run.rs`).

use std::time::Duration;

use tokio::time::sleep;

use crate::event::AgentEvent;
use crate::model::{ModelError, ModelErrorKind, ModelRequest, ModelResponse, ResponsePart, TokenUsage, ToolSpec};
use crate::outcome::AgentStopReason;
use crate::run::AgentRun;

/// The first wait before an answer is asked for again; each further one is twice as long.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);

/// The same for a server that is busy or still loading.
const INITIAL_BUSY_BACKOFF: Duration = Duration::from_secs(2);

/// Default bytes per token, until a server reports its usage.
const BYTES_PER_TOKEN: f64 = 3.5;

/// Share of the model's context above which messages are omitted, and the share that is left then.
const COMPACT_ABOVE: f64 = 0.85;
const COMPACT_TO: f64 = 0.6;

/// Options of a model request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelRequestOptions<'a> {
    pub(crate) tools: &'a [ToolSpec],
    /// For this answer only.
    pub(crate) note: Option<&'a str>,
}

/// Estimates the tokens of a request.
#[derive(Debug)]
pub(crate) struct TokenEstimator {
    /// Of what is sent besides the messages.
    pub(crate) fixed_bytes: usize,
    bytes_per_token: f64,
}

impl TokenEstimator {
    pub(crate) fn new(system: &str, tools: &[ToolSpec]) -> Self {
        let tool = |tool: &ToolSpec| tool.name.len() + tool.description.len() + tool.parameters.to_string().len();
        let fixed_bytes = system.len() + tools.iter().map(tool).sum::<usize>();
        Self { fixed_bytes, bytes_per_token: BYTES_PER_TOKEN }
    }

    /// The same after more tools are sent. What was learned stays.
    pub(crate) fn set_tools(&mut self, system: &str, tools: &[ToolSpec]) {
        self.fixed_bytes = Self::new(system, tools).fixed_bytes;
    }

    fn tokens(&self, bytes: usize) -> u64 {
        (bytes as f64 / self.bytes_per_token) as u64
    }

    fn bytes(&self, tokens: f64) -> usize {
        (tokens * self.bytes_per_token) as usize
    }

    /// Learns from what a server counted.
    fn calibrate(&mut self, bytes: usize, tokens: u64) {
        if bytes > 4096 && tokens > 0 {
            self.bytes_per_token = (bytes as f64 / tokens as f64).clamp(1.5, 6.0);
        }
    }
}

impl AgentRun<'_> {
    /// A whole answer, or why there is none.
    pub(crate) async fn request(&mut self, asking: ModelRequestOptions<'_>) -> Result<ModelResponse, AgentStopReason> {
        self.compact_if_needed();
        let mut attempt = 0;
        let mut shortened = false;
        loop {
            let error = match self.request_once(asking).await? {
                Ok(answer) => {
                    self.record_usage(&answer);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if error.kind == ModelErrorKind::TooLong && !shortened {
                shortened = true;
                if self.compact_to(self.history.bytes() / 2) {
                    continue;
                }
            }
            let Some(wait) = self.backoff(&error, attempt) else { return Err(AgentStopReason::Model(error)) };
            attempt += 1;
            self.emit(&AgentEvent::Retrying { why: &error.message, wait, attempt });
            self.or_stopped(sleep(wait)).await?;
        }
    }

    async fn request_once(
        &mut self,
        asking: ModelRequestOptions<'_>,
    ) -> Result<Result<ModelResponse, ModelError>, AgentStopReason> {
        let aside = asking.note.map(|text| self.history.add_transient_note(text));
        let agent = self.agent;
        let observer = &agent.observer;
        let mut parts = |part: ResponsePart<'_>| match part {
            ResponsePart::Text(text) => observer.on_event(&AgentEvent::Text { text }),
            ResponsePart::Reasoning(text) => observer.on_event(&AgentEvent::Reasoning { text }),
            ResponsePart::Call(name) => observer.on_event(&AgentEvent::CallStarted { name }),
        };
        let ask = ModelRequest {
            system: &agent.system,
            messages: self.history.messages(),
            tools: asking.tools,
            temperature: agent.temperature,
            max_tokens: agent.max_tokens,
        };
        let answered = self.or_stopped(agent.model.respond(ask, &mut parts)).await;
        if let Some(aside) = aside {
            self.history.remove_transient_note(aside);
        }
        answered
    }

    /// Delay before the next attempt. `None` where a retry would not help.
    fn backoff(&self, error: &ModelError, attempt: u32) -> Option<Duration> {
        if attempt >= self.agent.limits.retries {
            return None;
        }
        let longest = self.agent.limits.max_wait;
        let doubled = |first: Duration| first.saturating_mul(1 << attempt.min(10)).mul_f64(jitter());
        let wait = match error.kind {
            ModelErrorKind::Busy { retry_after: Some(wait) } => wait,
            ModelErrorKind::Busy { retry_after: None } => doubled(INITIAL_BUSY_BACKOFF),
            ModelErrorKind::Unreachable | ModelErrorKind::Server | ModelErrorKind::Cut | ModelErrorKind::Stalled => {
                doubled(INITIAL_BACKOFF)
            }
            ModelErrorKind::Garbled
            | ModelErrorKind::TooLong
            | ModelErrorKind::Denied
            | ModelErrorKind::NoSuchModel
            | ModelErrorKind::NoTools
            | ModelErrorKind::BadRequest => return None,
        };
        Some(wait.min(longest))
    }

    /// Leaves something out before the model's context is full.
    fn compact_if_needed(&mut self) {
        let Some(context) = self.agent.limits.context_tokens else { return };
        let room = context.saturating_sub(self.agent.max_tokens.unwrap_or(0)) as f64;
        let bytes = self.token_estimator.fixed_bytes + self.history.bytes();
        if self.token_estimator.tokens(bytes) as f64 > room * COMPACT_ABOVE {
            let most = self.token_estimator.bytes(room * COMPACT_TO).saturating_sub(self.token_estimator.fixed_bytes);
            self.compact_to(most);
        }
    }

    /// False where nothing could be left out.
    fn compact_to(&mut self, most: usize) -> bool {
        let Some(done) = self.history.compact(most) else { return false };
        self.emit(&AgentEvent::Compacted { results: done.results, messages: done.messages });
        true
    }

    /// Adds what an answer used; where the server does not say, what it is about.
    fn record_usage(&mut self, answer: &ModelResponse) {
        let bytes = self.token_estimator.fixed_bytes + self.history.bytes();
        let used = match answer.usage {
            Some(usage) => {
                self.token_estimator.calibrate(bytes, usage.input);
                usage
            }
            None => {
                self.estimated = true;
                let calls = answer.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
                let output = self.token_estimator.tokens(answer.text.len() + answer.reasoning.len() + calls);
                let input = self.token_estimator.tokens(bytes);
                TokenUsage { input, output, total: input.saturating_add(output), ..TokenUsage::default() }
            }
        };
        let total = if used.total > 0 { used.total } else { used.input.saturating_add(used.output) };
        self.usage.add(TokenUsage { total, ..used });
        self.emit(&AgentEvent::Usage { total: self.usage, estimated: self.estimated });
    }
}

/// Between a half and one, so that those who failed together do not come back together.
fn jitter() -> f64 {
    let mut random = [0; 1];
    match getrandom::fill(&mut random) {
        Ok(()) => 0.5 + f64::from(random[0]) / 512.0,
        Err(_) => 1.0,
    }
}
