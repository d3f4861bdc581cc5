//! Execution of the tool calls of one answer: in order, and calls in a row that only read at the same time.
//!
//! Each gets exactly one result, whatever happens: what was not made because the run is over gets one that says so. A run
//! whose calls lead nowhere is over too.
//!
//! Not here: which tools there are and what a call may do. That is the host's to say; nothing is guessed or repaired.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_kernel::{ErrorKind, ProgressListener, ProgressUpdate, ToolCall, ToolError, ToolReply};
use tokio::time::Instant;

use crate::event::{AgentEvent, AgentObserver};
use crate::message::{RequestedCall, ToolResultSummary, TranscriptMessage};
use crate::outcome::AgentStopReason;
use crate::run::AgentRun;

/// Calls of one answer that are made. A provider passes on no more than this either.
pub(crate) const MOST_CALLS: usize = 64;

/// Calls that are made at the same time.
const MAX_PARALLEL_CALLS: usize = 8;

/// A longer id is replaced by ours in records; the model's own goes back to it.
const MAX_ID_BYTES: usize = 64;

/// The result of one call.
struct AgentToolCallResult {
    reply: ToolReply,
    duration: Duration,
}

impl AgentRun<'_> {
    /// Makes the calls and adds a result for each to the history. Why the run is over, if it is.
    pub(crate) async fn make_calls(&mut self, calls: &[RequestedCall]) -> Option<AgentStopReason> {
        let mut over: Option<AgentStopReason> = None;
        let denied_before = self.denials;
        let (mut made, mut bad) = (0, 0);
        let mut results = VecDeque::new();
        for (number, call) in calls.iter().enumerate() {
            if results.is_empty() && over.is_none() && number < MOST_CALLS {
                let together = calls[number..MOST_CALLS.min(calls.len())].iter().take(MAX_PARALLEL_CALLS);
                let count = together.take_while(|call| self.only_reads(call)).count().max(1);
                let group = calls[number..].iter().take(count).enumerate();
                results.extend(join_all(group.map(|(at, call)| self.make(call, number + at))).await);
            }
            let result = if let Some(result) = results.pop_front() {
                match result {
                    Ok(result) => {
                        made += 1;
                        let kind = result.reply.error_kind();
                        bad += u32::from(matches!(kind, Some(ErrorKind::InvalidArgs | ErrorKind::UnknownTool)));
                        over = over.or(self.check_denials(&result, denied_before));
                        self.load_tools(call);
                        result
                    }
                    Err((result, end)) => {
                        over = Some(end);
                        result
                    }
                }
            } else if let Some(end) = &over {
                self.failed_call(skipped_call_error(end))
            } else {
                self.failed_call(too_many_calls_error())
            };
            let AgentToolCallResult { reply, duration } = result;
            self.emit(&AgentEvent::Result { call, reply: &reply, duration });
            let message = TranscriptMessage::Tool {
                call_id: call.id.clone(),
                name: call.name.clone(),
                is_error: reply.outcome.is_err(),
                summary: ToolResultSummary::from_reply(&reply).truncated(),
                text: reply.text,
            };
            if let Err(lost) = self.history.push(message) {
                over = Some(AgentStopReason::Transcript(lost));
            }
        }
        // By answers and not by calls: the model sees what was wrong before it is counted again.
        self.bad_answers = if made > 0 && bad == made { self.bad_answers + 1 } else { 0 };
        if over.is_none() {
            over = self.check_repetition(calls).await;
        }
        over.or((self.bad_answers >= self.agent.limits.bad_answers).then_some(AgentStopReason::BadCalls))
    }

    /// Sends what a call loads with the next requests.
    fn load_tools(&mut self, call: &RequestedCall) {
        if self.tools.load(call) {
            self.token_estimator.set_tools(&self.agent.system, &self.tools.sent);
        }
    }

    /// Whether a call changes nothing, so that it does not matter which of several is made first.
    fn only_reads(&self, call: &RequestedCall) -> bool {
        let definition = self.agent.session.catalog.get(&call.name);
        self.tools.is_load_call(call) || definition.is_some_and(|tool| tool.capabilities.is_read_only())
    }

    /// Makes one call.
    async fn make(
        &self,
        call: &RequestedCall,
        number: usize,
    ) -> Result<AgentToolCallResult, (AgentToolCallResult, AgentStopReason)> {
        if let Some(end) = self.stop_requested() {
            return Err((self.failed_call(skipped_call_error(&end)), end));
        }
        self.emit(&AgentEvent::Call { call });
        if self.tools.is_load_call(call) {
            return Ok(AgentToolCallResult { reply: self.tools.load_reply(call), duration: Duration::ZERO });
        }
        let started = Instant::now();
        let id = self.host_id(call, number);
        let listener =
            Arc::new(OutputForwarder { observer: Arc::clone(&self.agent.observer), call_id: call.id.clone() });
        let asked = ToolCall { id, name: call.name.clone(), arguments: call.arguments.clone() };
        let stop = self.cancel.child_token();
        let reply = self.agent.host.call_with_progress(&self.agent.session, asked, &stop, Some(listener));
        tokio::pin!(reply);
        let reply = tokio::select! {
            biased;
            reply = &mut reply => reply,
            () = self.deadline_elapsed() => {
                stop.cancel();
                reply.await
            }
        };
        let duration = started.elapsed();
        match reply {
            Ok(reply) => {
                let result = AgentToolCallResult { reply, duration };
                match self.stop_requested() {
                    // A call that ended by itself ended well, whatever came right after.
                    Some(end) => Err((result, end)),
                    None => Ok(result),
                }
            }
            Err(fatal) => Err((
                AgentToolCallResult { duration, ..self.failed_call(interrupted_error()) },
                AgentStopReason::Host(fatal),
            )),
        }
    }

    /// Whether the run should stop after this call, because too many were denied.
    fn check_denials(&mut self, result: &AgentToolCallResult, denied_before: u32) -> Option<AgentStopReason> {
        let is_denied =
            matches!(result.reply.error_kind(), Some(ErrorKind::ApprovalDenied | ErrorKind::PermissionDenied));
        self.denials += u32::from(is_denied);
        let is_over = is_denied && denied_before > 0 && self.denials >= self.agent.limits.denials;
        is_over.then_some(AgentStopReason::Denied)
    }

    /// Whether the run should stop after these calls of one answer, because it repeats itself.
    async fn check_repetition(&mut self, calls: &[RequestedCall]) -> Option<AgentStopReason> {
        let why = self.repeats.observe(calls)?;
        match self.or_stopped(self.agent.observer.confirm_continue(&why)).await {
            Ok(Some(true)) => {
                self.repeats.clear();
                None
            }
            Ok(_) => {
                self.emit(&AgentEvent::Note { text: &why });
                Some(AgentStopReason::Repeated)
            }
            Err(end) => Some(end),
        }
    }

    fn failed_call(&self, error: ToolError) -> AgentToolCallResult {
        let reply = ToolReply::from_error("", error, self.agent.session.dialect);
        AgentToolCallResult { reply, duration: Duration::ZERO }
    }

    /// ID of the call in records: the model's own, where it is valid there.
    fn host_id(&self, call: &RequestedCall, number: usize) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match !call.id.is_empty() && call.id.len() <= MAX_ID_BYTES && call.id.chars().all(is_plain) {
            true => call.id.clone(),
            false => format!("step-{}-call-{}", self.steps, number + 1),
        }
    }
}

fn skipped_call_error(end: &AgentStopReason) -> ToolError {
    let message = match end {
        AgentStopReason::Cancelled => "cancelled; this call was not made".to_owned(),
        end => format!("this call was not made: {}", end.explain()),
    };
    ToolError::new(ErrorKind::Cancelled, message)
}

fn too_many_calls_error() -> ToolError {
    let message = format!("too_many_calls: at most {MOST_CALLS} calls per answer are made; repeat it in the next one");
    ToolError::new(ErrorKind::InvalidArgs, message)
}

fn interrupted_error() -> ToolError {
    ToolError::new(ErrorKind::Internal, "interrupted; effects unknown").detail("committed", "unknown")
}

/// Passes on what a program prints.
#[derive(Debug)]
struct OutputForwarder {
    observer: Arc<dyn AgentObserver>,
    call_id: String,
}

impl ProgressListener for OutputForwarder {
    fn on_progress(&self, progress: &ProgressUpdate<'_>) {
        let ProgressUpdate { stream, text } = *progress;
        self.observer.on_event(&AgentEvent::Output { call_id: &self.call_id, stream, text });
    }
}
