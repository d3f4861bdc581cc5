//! Approval queue of a session: one request at a time, and a pause after too many consecutive denials.
//!
//! Calls of a session run concurrently, but approval is requested for one of them at a time. A call that waited in the
//! queue is planned again: the calls before it may have changed its effects, or a grant may allow it now. After several
//! consecutive denials the session pauses: requests are refused until a person resumes it, and calls that need no
//! approval still run.
//!
//! Not here: asking itself (`ask_approval.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use tokio::sync::{Mutex as Line, OwnedMutexGuard};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::invocation::{CallProgress, Invocation};
use crate::tool_binding::ErasedTool;
use crate::{AbandonReason, Assurance, ErrorKind, Host, HostError, Session, ToolError};

/// The lines of all sessions that have one.
#[derive(Debug, Default)]
pub(crate) struct ApprovalQueues(Mutex<HashMap<String, Weak<Line<()>>>>);

/// The right to ask, until it is dropped.
pub(crate) type ApprovalTurn = OwnedMutexGuard<()>;

/// An answer that counts, for the session.
pub(crate) enum AnswerKind {
    Approved,
    Denied(Assurance),
}

impl ApprovalQueues {
    /// The queue of a session. It exists as long as a call waits in it.
    fn queue(&self, session: &str) -> Arc<Line<()>> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(session).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Line::new(()));
        lines.insert(session.to_owned(), Arc::downgrade(&line));
        line
    }
}

impl Host {
    /// As `start`, and where approval is needed, with this session's turn to ask.
    pub(crate) async fn start_in_queue(
        &self,
        invocation: &Arc<Invocation>,
        offer: &Arc<dyn ErasedTool>,
        turn: &mut Option<ApprovalTurn>,
        cancel: &CancellationToken,
    ) -> Result<CallProgress, HostError> {
        let asked = match self.start(invocation, offer, cancel).await? {
            CallProgress::NeedsApproval(asked) if turn.is_none() => asked,
            step => return Ok(step),
        };
        let line = self.approval_queues.queue(&invocation.session.id);
        if let Ok(ours) = Arc::clone(&line).try_lock_owned() {
            *turn = Some(ours);
            return Ok(CallProgress::NeedsApproval(asked));
        }
        // The plan is dropped meanwhile, with the descriptors that it holds. A program's changes are not.
        let (accesses, rest) = match asked.is_follow_up() {
            true => (Vec::new(), Some(asked)),
            false => (asked.accesses, None),
        };
        let waited = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(AbandonReason::Cancel.error()),
            ours = timeout(invocation.session.limits.approval_time, line.lock_owned()) => ours.map_err(|_| queue_timeout_error()),
        };
        match (waited, rest) {
            (Ok(ours), rest) => {
                *turn = Some(ours);
                match rest {
                    Some(asked) => Ok(CallProgress::NeedsApproval(asked)),
                    None => self.start(invocation, offer, cancel).await,
                }
            }
            (Err(error), Some(asked)) => invocation.finish_without(*asked, error).map(CallProgress::Done),
            (Err(error), None) => invocation.refuse(&accesses, &error).map(CallProgress::Done),
        }
    }

    /// The error for a session that may not request approval now, if that is so.
    pub(crate) async fn approval_blocked(&self, session: &Session) -> Result<Option<ToolError>, HostError> {
        let (id, most) = (session.id.clone(), session.limits.denials_in_a_row);
        self.with_store(move |store| {
            let streak = store.denial_streaks()?.into_iter().find(|streak| streak.session == id);
            if let Some(streak) = streak.filter(|streak| streak.count >= most) {
                return Ok(Some(session_paused_error(&id, streak.count)));
            }
            let pending = store.pending(SystemTime::now())?;
            Ok(pending
                .into_iter()
                .find(|request| request.session == id)
                .map(|request| request_pending_error(&request.id)))
        })
        .await
    }

    /// Counts an answer: an approval resets the denial streak, and an automatic denial does not count.
    pub(crate) async fn record_answer(&self, session: &Session, answer: AnswerKind) -> Result<(), HostError> {
        let (id, principal) = (session.id.clone(), session.principal.name.clone());
        self.with_store(move |store| match answer {
            AnswerKind::Approved => store.reset_denials(&id).map(drop),
            AnswerKind::Denied(Assurance::None) => Ok(()),
            AnswerKind::Denied(_) => store.record_denial(&id, &principal, SystemTime::now()),
        })
        .await
    }
}

fn queue_timeout_error() -> ToolError {
    let message = "not approved: timed out waiting for other approval requests of this session";
    ToolError::new(ErrorKind::ApprovalDenied, message)
}

fn request_pending_error(request: &str) -> ToolError {
    let message = format!(
        "not requested yet: approval request `{request}` of this session is pending; call again when it is answered"
    );
    ToolError::new(ErrorKind::ApprovalPending, message).detail("waitsFor", request)
}

fn session_paused_error(session: &str, count: u64) -> ToolError {
    let message = format!(
        "not requested: this session is paused after {count} consecutive denials; resume it with \
         `ringfence approvals resume {session}`, or start a new session. Calls that need no approval still work"
    );
    ToolError::new(ErrorKind::ApprovalDenied, message).detail("paused", true).detail("session", session)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::ApprovalQueues;

    #[test]
    fn a_queue_exists_while_a_call_waits_in_it() {
        let turns = ApprovalQueues::default();
        let line = turns.queue("one");
        let other = turns.queue("two");
        assert!(Arc::ptr_eq(&line, &turns.queue("one")) && !Arc::ptr_eq(&line, &other));
        drop(other);
        drop(turns.queue("three"));
        let left = |turns: &ApprovalQueues| turns.0.lock().unwrap().len();
        assert_eq!(left(&turns), 2);
        assert!(Arc::ptr_eq(&line, &turns.queue("one")));
        drop(line);
        drop(turns.queue("four"));
        assert_eq!(left(&turns), 1);
    }
}
