//! The turn of a call to ask, and the streak of denials that pauses a session.
//!
//! After several denials in a row the session is paused: no request is opened until a person resumes it, and calls that
//! need no approval still run.
//!
//! Not here: asking itself (`ask_approval.rs`).

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::approval::ApprovalDenial;
use crate::approval_queue::ApprovalTurn;
use crate::call_state::CallState;
use crate::invocation::Invocation;
use crate::pending_approval::PendingApproval;
use crate::tool_binding::ErasedTool;
use crate::{AbandonReason, Assurance, ErrorKind, HostError, ToolError};

/// An answer, as the streak of denials counts it.
pub(crate) enum ApprovalAnswerKind {
    Approved,
    Denied(Assurance),
}

impl Invocation {
    /// Waits for the session's turn to ask. A call that had to wait is planned again, because what ran before it may have
    /// changed what it would do; changes that a program left cannot be planned again and are asked about as they are.
    pub(crate) async fn take_turn(
        &self,
        pending: Box<PendingApproval>,
        tool: &Arc<dyn ErasedTool>,
        cancel: &CancellationToken,
    ) -> Result<(Option<ApprovalTurn>, CallState), HostError> {
        let queue = self.host.approval_queues.queue(&self.session.id);
        if let Ok(turn) = Arc::clone(&queue).try_lock_owned() {
            return Ok((Some(turn), CallState::WaitingForApproval(pending)));
        }
        // A plan holds descriptors: it is dropped before the wait.
        let (accesses, follow_up) = match pending.is_follow_up() {
            true => (Vec::new(), Some(pending)),
            false => (pending.accesses, None),
        };
        let turn = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(AbandonReason::Cancel.error()),
            turn = timeout(self.session.limits.approval_time, queue.lock_owned()) => turn.map_err(|_| queue_timeout_error()),
        };
        let (turn, error) = match turn {
            Ok(turn) => (Some(turn), None),
            Err(error) => (None, Some(error)),
        };
        let next = match (error, follow_up) {
            (None, Some(pending)) => CallState::WaitingForApproval(pending),
            (None, None) => CallState::Found(Arc::clone(tool)),
            (Some(error), Some(pending)) => CallState::Declined(pending, ApprovalDenial::Error(error)),
            (Some(error), None) => self.refused(&accesses, &error)?,
        };
        Ok((turn, next))
    }

    /// Why no request of this session may be opened now, if that is so.
    pub(crate) async fn approval_blocked(&self) -> Result<Option<ToolError>, HostError> {
        let (id, most) = (self.session.id.clone(), self.session.limits.denials_in_a_row);
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

    /// Counts an answer: an approval ends a streak of denials, and an automatic denial is not counted.
    pub(crate) async fn record_answer(&self, answer: ApprovalAnswerKind) -> Result<(), HostError> {
        let (id, principal) = (self.session.id.clone(), self.session.principal.name.clone());
        self.with_store(move |store| match answer {
            ApprovalAnswerKind::Approved => store.reset_denials(&id).map(drop),
            ApprovalAnswerKind::Denied(Assurance::None) => Ok(()),
            ApprovalAnswerKind::Denied(_) => store.record_denial(&id, &principal, SystemTime::now()),
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
