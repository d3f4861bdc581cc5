//! Agent run: one prompt, from its first step to its outcome.
//!
//! A step is one whole answer of the model. Its calls are made and their results go back, until it answers without a
//! call or something ends the run; every way to end is in `AgentStopReason`. After the last step that may ask for tools the model is
//! asked once more, without any, so that there is an answer. Whatever the model does, the history stays whole: every call
//! in it has its one result, and the model had the last word.
//!
//! Not here: asking (`request.rs`), and making calls (`tool_calls.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{Host, Session, Taint};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::event::{AgentEvent, AgentObserver};
use crate::history::{MessageHistory, TranscriptError};
use crate::ledger::LedgerSink;
use crate::limits::AgentLimits;
use crate::message::{RequestedCall, TranscriptMessage};
use crate::model::{FinishReason, LanguageModel, ModelResponse, TokenUsage, ToolSpec};
use crate::outcome::{AgentOutcome, AgentStopReason};
use crate::repair::{self, CallRepair};
use crate::repeat_detector::RepeatDetector;
use crate::request::{ModelRequestOptions, TokenEstimator};
use crate::text_calls;
use crate::tool_calls::MOST_CALLS;
use crate::tool_loading::{OfferedTools, ToolLoading};

const SUMMARY_NOTE: &str = "this prompt has no steps left, so no more tools can be called; summarise in plain words what was \
                         done, what was found and what is left to do";
const EMPTY_ANSWER_NOTE: &str = "your answer was empty; answer the prompt in plain words, or call a tool";
const TEXT_CALL_NOTE: &str = "you wrote a tool call as text, which is never executed; call the tool through the tool interface, \
                          or answer in plain words";
const TEXT_CALL_WARNING: &str = "the model writes its tool calls as text, which is never executed; `ringfence agent --probe` tells whether \
                          its server supports tools, and `repair_tool_calls = true` executes such calls";
const TRUNCATED_NOTE: &str = "your answer was cut off at the token limit, and no call in it was made; answer again in fewer words, and \
                   write long files in several calls";

/// An agent, which works on prompts.
#[derive(Debug)]
pub struct Agent {
    pub model: Arc<dyn LanguageModel>,
    pub host: Host,
    pub session: Arc<Session>,
    /// The system prompt.
    pub system: String,
    pub temperature: Option<f64>,
    pub max_tokens: Option<u64>,
    pub repair: CallRepair,
    pub tool_loading: ToolLoading,
    pub limits: AgentLimits,
    /// Hears the records of `host`.
    pub tap: LedgerSink,
    pub observer: Arc<dyn AgentObserver>,
}

impl Agent {
    /// Works on a prompt. Always comes back, with something to say.
    pub async fn run(&self, prompt: &str, history: &mut MessageHistory, cancel: &CancellationToken) -> AgentOutcome {
        let catalog = &self.session.catalog;
        let tools = OfferedTools::new(catalog, self.session.dialect, self.tool_loading, history.messages());
        self.tap.reset();
        let started = Instant::now();
        let mut run = AgentRun {
            agent: self,
            cancel,
            deadline: self.limits.time.map(|time| started + time),
            token_estimator: TokenEstimator::new(&self.system, &tools.sent),
            tools,
            history,
            steps: 0,
            usage: TokenUsage::default(),
            estimated: false,
            denials: 0,
            bad_answers: 0,
            repeats: RepeatDetector::default(),
            noted_empty: false,
            noted_text: false,
            noted_cut: false,
        };
        let ended = match run.history.prompt(prompt) {
            Ok(()) => run.drive().await,
            Err(lost) => FinalAnswer::without_text(AgentStopReason::Transcript(lost)),
        };
        let outcome = run.into_outcome(ended, started.elapsed());
        self.observer.on_event(&AgentEvent::Finished { outcome: &outcome });
        outcome
    }
}

/// A run on its way.
#[derive(Debug)]
pub(crate) struct AgentRun<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) history: &'a mut MessageHistory,
    pub(crate) token_estimator: TokenEstimator,
    pub(crate) tools: OfferedTools,
    pub(crate) steps: u32,
    pub(crate) usage: TokenUsage,
    pub(crate) estimated: bool,
    pub(crate) denials: u32,
    /// Answers in a row of which no call made sense.
    pub(crate) bad_answers: u32,
    pub(crate) repeats: RepeatDetector,
    deadline: Option<Instant>,
    /// Whether the model got the note about an empty answer; it gets it once.
    noted_empty: bool,
    noted_text: bool,
    noted_cut: bool,
}

/// End of a run, with the model's last text.
struct FinalAnswer {
    stop_reason: AgentStopReason,
    text: String,
}

impl FinalAnswer {
    fn without_text(stop_reason: AgentStopReason) -> Self {
        Self { stop_reason, text: String::new() }
    }
}

/// The next action after a step.
enum LoopControl {
    Finish(FinalAnswer),
    /// The next step, with a note for the model.
    Continue(Option<&'static str>),
}

impl AgentRun<'_> {
    async fn drive(&mut self) -> FinalAnswer {
        let mut aside = None;
        let all = Arc::clone(&self.tools.all);
        let tools = &*all;
        loop {
            if let Some(end) = self.stop_requested() {
                return FinalAnswer::without_text(end);
            }
            self.emit(&AgentEvent::Step { step: self.steps + 1 });
            let sent = Arc::clone(&self.tools.sent);
            let answer = match self.request(ModelRequestOptions { tools: &sent, note: aside }).await {
                Ok(answer) => answer,
                Err(end) => return FinalAnswer::without_text(end),
            };
            self.steps += 1;
            self.emit(&AgentEvent::ResponseComplete { text: &answer.text });
            for oddity in &answer.warnings {
                self.emit(&AgentEvent::Note { text: oddity });
            }
            match self.handle_response(answer, tools).await {
                Err(lost) => return FinalAnswer::without_text(AgentStopReason::Transcript(lost)),
                Ok(LoopControl::Finish(ended)) => return ended,
                Ok(LoopControl::Continue(note)) => aside = note,
            }
            if self.over_budget() {
                return FinalAnswer::without_text(AgentStopReason::TokenLimit);
            }
            if self.is_last_step() {
                return self.request_summary(tools).await;
            }
        }
    }

    /// Does what an answer asks for.
    async fn handle_response(
        &mut self,
        answer: ModelResponse,
        tools: &[ToolSpec],
    ) -> Result<LoopControl, TranscriptError> {
        let ModelResponse { text, mut calls, calls_dropped, refusal, finish, reasoning_state: reasoning, .. } = answer;
        let final_text = refusal.clone().filter(|_| text.trim().is_empty()).unwrap_or_else(|| text.clone());
        match finish {
            _ if refusal.is_some() => return self.finish_with(AgentStopReason::Refusal, final_text),
            FinishReason::Refusal => return self.finish_with(AgentStopReason::Refusal, final_text),
            FinishReason::Filter => return self.finish_with(AgentStopReason::Filter, final_text),
            FinishReason::Length => return self.handle_truncated(text),
            FinishReason::Stop | FinishReason::Calls | FinishReason::Other(_) => {}
        }
        // Empty and `null` arguments mean no arguments.
        for call in calls.iter_mut().filter(|call| matches!(call.arguments.trim(), "" | "null")) {
            call.arguments = "{}".to_owned();
        }
        let (text, calls) = match self.agent.repair {
            CallRepair::Never => (text, calls),
            CallRepair::Unambiguous => self.repair_calls(text, calls, tools),
        };
        if !calls.is_empty() {
            let calls = self.ensure_unique_ids(calls);
            self.history.push(TranscriptMessage::Assistant { text, calls: calls.clone(), reasoning })?;
            if let Some(end) = self.make_calls(&calls).await {
                // Text beside calls is not an answer.
                return Ok(LoopControl::Finish(FinalAnswer::without_text(end)));
            }
            if calls_dropped > 0 {
                let note = format!(
                    "too_many_calls: {calls_dropped} further calls of that answer were not made; the limit is {MOST_CALLS}"
                );
                self.emit(&AgentEvent::Note { text: &note });
                self.history.note(&note)?;
            }
            return Ok(LoopControl::Continue(None));
        }
        if text.trim().is_empty() {
            return Ok(match self.may_retry(self.noted_empty) {
                true => {
                    self.noted_empty = true;
                    self.emit(&AgentEvent::Note { text: EMPTY_ANSWER_NOTE });
                    LoopControl::Continue(Some(EMPTY_ANSWER_NOTE))
                }
                false => LoopControl::Finish(FinalAnswer::without_text(AgentStopReason::Empty)),
            });
        }
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        if text_calls::has_call(&text, &names) {
            if self.may_retry(self.noted_text) {
                self.noted_text = true;
                self.push_text(text)?;
                return self.retry_with_note(TEXT_CALL_NOTE);
            }
            self.emit(&AgentEvent::Note { text: TEXT_CALL_WARNING });
        }
        self.finish_with(AgentStopReason::Answered, text)
    }

    /// The calls after repair, with those that the model wrote as text. Every repair is reported.
    fn repair_calls(
        &self,
        text: String,
        mut calls: Vec<RequestedCall>,
        tools: &[ToolSpec],
    ) -> (String, Vec<RequestedCall>) {
        let mut final_text = text;
        if calls.is_empty()
            && !self.may_be_quoted(&final_text)
            && let Some(found) = repair::calls_in(&final_text, tools)
        {
            self.emit(&AgentEvent::Note { text: &format!("executing calls written as text: {}", found.len()) });
            (final_text, calls) = (String::new(), found);
        }
        for call in &mut calls {
            let done = repair::repair(call, tools);
            if !done.is_empty() {
                let note = format!("a call of `{}` was repaired: {}", call.name, done.join("; "));
                self.emit(&AgentEvent::Note { text: &note });
            }
        }
        (final_text, calls)
    }

    /// Whether a text may be a quote: the session saw untrusted content, or the text was there before.
    fn may_be_quoted(&self, text: &str) -> bool {
        let text = text.trim();
        let escaped = serde_json::to_string(text).unwrap_or_default();
        let escaped = escaped.trim_matches('"');
        let was_there = |message: &TranscriptMessage| match message {
            TranscriptMessage::User { text: final_text }
            | TranscriptMessage::Assistant { text: final_text, .. }
            | TranscriptMessage::Tool { text: final_text, .. } => {
                final_text.contains(text) || final_text.contains(escaped)
            }
        };
        self.agent.session.taint.contains(Taint::SawUntrusted) || self.history.messages().iter().any(was_there)
    }

    /// The calls with an id each that no other one of the answer has.
    fn ensure_unique_ids(&self, mut calls: Vec<RequestedCall>) -> Vec<RequestedCall> {
        let mut taken = BTreeSet::new();
        for (number, call) in calls.iter_mut().enumerate() {
            if call.id.is_empty() || !taken.insert(call.id.clone()) {
                let mut id = format!("call-{}-{}", self.steps, number + 1);
                while !taken.insert(id.clone()) {
                    id.push('+');
                }
                self.emit(&AgentEvent::Note {
                    text: &format!("a call of `{}` had no unique id; it was given `{id}`", call.name),
                });
                call.id = id;
            }
        }
        calls
    }

    /// An answer that was cut by a limit: nothing in it counts but what it says.
    fn handle_truncated(&mut self, text: String) -> Result<LoopControl, TranscriptError> {
        if !self.may_retry(self.noted_cut) {
            return self.finish_with(AgentStopReason::Length, text);
        }
        self.noted_cut = true;
        self.push_text(if text.trim().is_empty() { "(cut)".to_owned() } else { text })?;
        self.retry_with_note(TRUNCATED_NOTE)
    }

    /// Whether the model may get a note and retry: once each, and while it has steps.
    fn may_retry(&self, note: bool) -> bool {
        !note && !self.is_last_step()
    }

    fn retry_with_note(&mut self, text: &'static str) -> Result<LoopControl, TranscriptError> {
        self.emit(&AgentEvent::Note { text });
        self.history.note(text)?;
        Ok(LoopControl::Continue(None))
    }

    fn push_text(&mut self, text: String) -> Result<(), TranscriptError> {
        self.history.push(TranscriptMessage::answer(text))
    }

    fn finish_with(&mut self, end: AgentStopReason, text: String) -> Result<LoopControl, TranscriptError> {
        if !text.trim().is_empty() {
            self.push_text(text.clone())?;
        }
        Ok(LoopControl::Finish(FinalAnswer { stop_reason: end, text }))
    }

    /// The one more step without tools, so that there is an answer.
    async fn request_summary(&mut self, tools: &[ToolSpec]) -> FinalAnswer {
        self.emit(&AgentEvent::Note { text: SUMMARY_NOTE });
        self.emit(&AgentEvent::Step { step: self.steps + 1 });
        let answer = match self.request(ModelRequestOptions { tools: &[], note: Some(SUMMARY_NOTE) }).await {
            Ok(answer) => answer,
            Err(AgentStopReason::Cancelled) => return FinalAnswer::without_text(AgentStopReason::Cancelled),
            // The host says it instead.
            Err(end) => {
                self.emit(&AgentEvent::Note { text: &end.explain() });
                return FinalAnswer::without_text(AgentStopReason::StepLimit);
            }
        };
        self.steps += 1;
        for call in &answer.calls {
            let refused = format!("a call of `{}` was refused: no tools are offered in this step", call.name);
            self.emit(&AgentEvent::Note { text: &refused });
        }
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let text = text_calls::strip_calls(&answer.text, &names);
        self.emit(&AgentEvent::ResponseComplete { text: &text });
        let pushed = if text.is_empty() { Ok(()) } else { self.push_text(text.clone()) };
        match pushed {
            Ok(()) => FinalAnswer { stop_reason: AgentStopReason::StepLimit, text },
            Err(lost) => FinalAnswer::without_text(AgentStopReason::Transcript(lost)),
        }
    }

    /// Puts together what there is to say.
    fn into_outcome(self, ended: FinalAnswer, duration: Duration) -> AgentOutcome {
        let FinalAnswer { stop_reason: end, text } = ended;
        let ledger = self.agent.tap.ledger();
        let by_host = text.trim().is_empty();
        let text = match by_host {
            false => text,
            true => {
                let done: String = ledger.lines().iter().map(|line| format!("- {line}\n")).collect();
                format!("{}.\nWhat was done:\n{done}", capitalize(&end.explain()))
            }
        };
        // The model continues from here with the next prompt, which reports a failure to store the transcript.
        let _ = self.history.ensure_closed(&format!("({})", end.explain()));
        let Self { steps, usage, estimated, .. } = self;
        AgentOutcome { stop_reason: end, text, by_host, steps, usage, estimated, ledger, duration }
    }

    fn is_last_step(&self) -> bool {
        self.steps >= self.agent.limits.steps.max(1)
    }

    fn over_budget(&self) -> bool {
        self.agent.limits.tokens.is_some_and(|most| self.usage.total >= most)
    }

    /// External stop reason, if the run was cancelled or is out of time.
    pub(crate) fn stop_requested(&self) -> Option<AgentStopReason> {
        if self.cancel.is_cancelled() {
            return Some(AgentStopReason::Cancelled);
        }
        self.deadline.is_some_and(|deadline| deadline <= Instant::now()).then_some(AgentStopReason::TimeLimit)
    }

    pub(crate) async fn deadline_elapsed(&self) {
        match self.deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for something, unless the run is over first.
    pub(crate) async fn or_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, AgentStopReason> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(AgentStopReason::Cancelled),
            () = self.deadline_elapsed() => Err(AgentStopReason::TimeLimit),
            done = work => Ok(done),
        }
    }

    pub(crate) fn emit(&self, event: &AgentEvent<'_>) {
        self.agent.observer.on_event(event);
    }
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
