//! Asking the model for one answer, as often as it takes.
//!
//! An answer that fails on its way is asked for again after a while, because nothing of it was done: what is done comes
//! from whole answers only. What is too long for the model is shortened once. Everything here ends at once when the run
//! is cancelled or its time is over.
//!
//! Not here: what becomes of an answer (`run.rs`).

use std::time::Duration;

use tokio::time::sleep;

use crate::event::Event;
use crate::model::{Answer, Ask, ModelError, Offered, Part, Trouble, Usage};
use crate::outcome::End;
use crate::run::Run;

/// The first wait before an answer is asked for again; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The same for a server that is busy or still loading.
const FIRST_BUSY_WAIT: Duration = Duration::from_secs(2);

/// Bytes of a token, as long as no server has told us better.
const BYTES_PER_TOKEN: f64 = 3.5;

/// How much of the model's context is used before something is left out, and how much is left then.
const FULL: f64 = 0.85;
const COMPACTED: f64 = 0.6;

/// How an answer is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) tools: &'a [Offered],
    /// For this answer only.
    pub(crate) aside: Option<&'a str>,
}

/// What a run knows about the size of what it asks.
#[derive(Debug)]
pub(crate) struct Gauge {
    /// Of what is sent besides the messages.
    pub(crate) fixed_bytes: usize,
    bytes_per_token: f64,
}

impl Gauge {
    pub(crate) fn new(system: &str, tools: &[Offered]) -> Self {
        let tool = |tool: &Offered| tool.name.len() + tool.description.len() + tool.parameters.to_string().len();
        let fixed_bytes = system.len() + tools.iter().map(tool).sum::<usize>();
        Self { fixed_bytes, bytes_per_token: BYTES_PER_TOKEN }
    }

    fn tokens(&self, bytes: usize) -> u64 {
        (bytes as f64 / self.bytes_per_token) as u64
    }

    fn bytes(&self, tokens: f64) -> usize {
        (tokens * self.bytes_per_token) as usize
    }

    /// Learns from what a server counted.
    fn learn(&mut self, bytes: usize, tokens: u64) {
        if bytes > 4096 && tokens > 0 {
            self.bytes_per_token = (bytes as f64 / tokens as f64).clamp(1.5, 6.0);
        }
    }
}

impl Run<'_> {
    /// A whole answer, or why there is none.
    pub(crate) async fn ask(&mut self, asking: Asking<'_>) -> Result<Answer, End> {
        self.make_room();
        let mut attempt = 0;
        let mut shortened = false;
        loop {
            let error = match self.ask_once(asking).await? {
                Ok(answer) => {
                    self.count(&answer);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if error.trouble == Trouble::TooLong && !shortened {
                shortened = true;
                if self.compact_to(self.history.bytes() / 2) {
                    continue;
                }
            }
            let Some(wait) = self.wait_before(&error, attempt) else { return Err(End::Model(error)) };
            attempt += 1;
            self.hear(&Event::BeganAgain { why: &error.message, wait, attempt });
            self.unless_over(sleep(wait)).await?;
        }
    }

    async fn ask_once(&mut self, asking: Asking<'_>) -> Result<Result<Answer, ModelError>, End> {
        let aside = asking.aside.map(|text| self.history.set_aside(text));
        let agent = self.agent;
        let front = &agent.front;
        let mut parts = |part: Part<'_>| match part {
            Part::Text(text) => front.hear(&Event::Text { text }),
            Part::Reasoning(text) => front.hear(&Event::Reasoning { text }),
            Part::Call(name) => front.hear(&Event::CallComing { name }),
        };
        let ask = Ask {
            system: &agent.system,
            messages: self.history.messages(),
            tools: asking.tools,
            temperature: agent.temperature,
            max_tokens: agent.max_tokens,
        };
        let answered = self.unless_over(agent.model.answer(ask, &mut parts)).await;
        if let Some(aside) = aside {
            self.history.take_back(aside);
        }
        answered
    }

    /// How long to wait before asking again. Nothing where that would not help.
    fn wait_before(&self, error: &ModelError, attempt: u32) -> Option<Duration> {
        if attempt >= self.agent.bounds.retries {
            return None;
        }
        let longest = self.agent.bounds.longest_wait;
        let doubled = |first: Duration| first.saturating_mul(1 << attempt.min(10)).mul_f64(jitter());
        let wait = match error.trouble {
            Trouble::Busy { retry_after: Some(wait) } => wait,
            Trouble::Busy { retry_after: None } => doubled(FIRST_BUSY_WAIT),
            Trouble::Unreachable | Trouble::Server | Trouble::Cut | Trouble::Stalled => doubled(FIRST_WAIT),
            Trouble::Garbled
            | Trouble::TooLong
            | Trouble::Denied
            | Trouble::NoSuchModel
            | Trouble::NoTools
            | Trouble::BadRequest => return None,
        };
        Some(wait.min(longest))
    }

    /// Leaves something out before the model's context is full.
    fn make_room(&mut self) {
        let Some(context) = self.agent.bounds.context_tokens else { return };
        let room = context.saturating_sub(self.agent.max_tokens.unwrap_or(0)) as f64;
        let bytes = self.gauge.fixed_bytes + self.history.bytes();
        if self.gauge.tokens(bytes) as f64 > room * FULL {
            let most = self.gauge.bytes(room * COMPACTED).saturating_sub(self.gauge.fixed_bytes);
            self.compact_to(most);
        }
    }

    /// False where nothing could be left out.
    fn compact_to(&mut self, most: usize) -> bool {
        let Some(done) = self.history.compact(most) else { return false };
        self.hear(&Event::Compacted { results: done.results, messages: done.messages });
        true
    }

    /// Adds what an answer used; where the server does not say, what it is about.
    fn count(&mut self, answer: &Answer) {
        let bytes = self.gauge.fixed_bytes + self.history.bytes();
        let used = match answer.usage {
            Some(usage) => {
                self.gauge.learn(bytes, usage.input);
                usage
            }
            None => {
                self.estimated = true;
                let calls = answer.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
                let output = self.gauge.tokens(answer.text.len() + answer.reasoning.len() + calls);
                let input = self.gauge.tokens(bytes);
                Usage { input, output, total: input.saturating_add(output), ..Usage::default() }
            }
        };
        let total = if used.total > 0 { used.total } else { used.input.saturating_add(used.output) };
        self.usage.add(Usage { total, ..used });
        self.hear(&Event::Usage { total: self.usage, estimated: self.estimated });
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
