//! The calls of one answer, made in their order, one at a time.
//!
//! Each gets exactly one result, whatever happens: what was not made because the run is over gets one that says so. A run
//! whose calls lead nowhere is over too.
//!
//! Not here: which tools there are and what a call may do. That is the host's to say; nothing is guessed or repaired.

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{ErrorKind, Listener, Progress, Reply, ToolCall, ToolError};
use tokio::time::Instant;

use crate::event::{Event, Front};
use crate::message::{Message, RequestedCall};
use crate::outcome::End;
use crate::run::Run;

/// Calls of one answer that are made. A provider passes on no more than this either.
pub(crate) const MOST_CALLS: usize = 64;

/// A longer id is replaced by ours in records; the model's own goes back to it.
const LONGEST_ID: usize = 64;

/// What came of one call.
struct Result {
    text: String,
    error: Option<ErrorKind>,
    duration: Duration,
}

impl Run<'_> {
    /// Makes the calls and adds a result for each to the history. Why the run is over, if it is.
    pub(crate) async fn make_calls(&mut self, calls: &[RequestedCall]) -> Option<End> {
        let mut over: Option<End> = None;
        let denied_before = self.denials;
        let (mut made, mut bad) = (0, 0);
        for (number, call) in calls.iter().enumerate() {
            let result = if let Some(end) = &over {
                self.unmade(&not_made(end))
            } else if number >= MOST_CALLS {
                self.unmade(&too_many())
            } else {
                match self.make(call, number).await {
                    Ok(result) => {
                        made += 1;
                        bad += u32::from(matches!(result.error, Some(ErrorKind::InvalidArgs | ErrorKind::UnknownTool)));
                        over = self.judge(call, &result, denied_before).await;
                        result
                    }
                    Err((result, end)) => {
                        over = Some(end);
                        result
                    }
                }
            };
            self.hear(&Event::Result { call, text: &result.text, error: result.error, duration: result.duration });
            let message = Message::Tool {
                call_id: call.id.clone(),
                name: call.name.clone(),
                text: result.text,
                is_error: result.error.is_some(),
            };
            if let Err(lost) = self.history.push(message) {
                over = Some(End::Memory(lost));
            }
        }
        // By answers and not by calls: the model sees what was wrong before it is counted again.
        self.bad_answers = if made > 0 && bad == made { self.bad_answers + 1 } else { 0 };
        over.or((self.bad_answers >= self.agent.bounds.bad_answers).then_some(End::BadCalls))
    }

    /// Makes one call.
    async fn make(&self, call: &RequestedCall, number: usize) -> std::result::Result<Result, (Result, End)> {
        if let Some(end) = self.over() {
            return Err((self.unmade(&not_made(&end)), end));
        }
        self.hear(&Event::Call { call });
        let started = Instant::now();
        let id = self.host_id(call, number);
        let listener = Arc::new(Output { front: Arc::clone(&self.agent.front), call_id: call.id.clone() });
        let asked = ToolCall { id, name: call.name.clone(), arguments: call.arguments.clone() };
        let stop = self.cancel.child_token();
        let reply = self.agent.host.call_heard(&self.agent.session, asked, &stop, Some(listener));
        tokio::pin!(reply);
        let reply = tokio::select! {
            biased;
            reply = &mut reply => reply,
            () = self.time_is_over() => {
                stop.cancel();
                reply.await
            }
        };
        let duration = started.elapsed();
        match reply {
            Ok(Reply { text, error, .. }) => {
                let result = Result { text, error, duration };
                match self.over() {
                    // A call that ended by itself ended well, whatever came right after.
                    Some(end) => Err((result, end)),
                    None => Ok(result),
                }
            }
            Err(fatal) => Err((Result { duration, ..self.unmade(&lost()) }, End::Host(fatal))),
        }
    }

    /// Whether the run should stop after this call, because it goes nowhere.
    async fn judge(&mut self, call: &RequestedCall, result: &Result, denied_before: u32) -> Option<End> {
        let is_denied = matches!(result.error, Some(ErrorKind::ApprovalDenied | ErrorKind::PermissionDenied));
        self.denials += u32::from(is_denied);
        let why = self.repeats.made(call);
        if is_denied && denied_before > 0 && self.denials >= self.agent.bounds.denials {
            return Some(End::Denied);
        }
        let why = why?;
        match self.unless_over(self.agent.front.go_on(&why)).await {
            Ok(Some(true)) => {
                self.repeats.forget();
                None
            }
            Ok(_) => {
                self.hear(&Event::Note { text: &why });
                Some(End::Repeated)
            }
            Err(end) => Some(end),
        }
    }

    fn unmade(&self, error: &ToolError) -> Result {
        let text = self.agent.session.dialect.render_error(error);
        Result { text, error: Some(error.kind), duration: Duration::ZERO }
    }

    /// What records call it: the model's own id, where it is one that records can have.
    fn host_id(&self, call: &RequestedCall, number: usize) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match !call.id.is_empty() && call.id.len() <= LONGEST_ID && call.id.chars().all(is_plain) {
            true => call.id.clone(),
            false => format!("step-{}-call-{}", self.steps, number + 1),
        }
    }
}

fn not_made(end: &End) -> ToolError {
    let message = match end {
        End::Cancelled => "cancelled; this call was not made".to_owned(),
        end => format!("this call was not made: {}", end.why()),
    };
    ToolError::new(ErrorKind::Cancelled, message)
}

fn too_many() -> ToolError {
    let message =
        format!("too_many_calls: at most {MOST_CALLS} calls of one answer are made; make it again in the next");
    ToolError::new(ErrorKind::InvalidArgs, message)
}

fn lost() -> ToolError {
    ToolError::new(ErrorKind::Internal, "interrupted; effects unknown").detail("committed", "unknown")
}

/// Passes on what a program prints.
#[derive(Debug)]
struct Output {
    front: Arc<dyn Front>,
    call_id: String,
}

impl Listener for Output {
    fn hear(&self, progress: &Progress<'_>) {
        let Progress { stream, text } = *progress;
        self.front.hear(&Event::Output { call_id: &self.call_id, stream, text });
    }
}
