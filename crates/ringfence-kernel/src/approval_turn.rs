//! The turn of a call to ask, and the streak of denials that pauses a session.
//!
//! After several denials in a row the session is paused: no request is opened until a person resumes it, and calls that
//! need no approval still run.
//!
//! Not here: asking itself (`ask_approval.rs`).

use std::time::SystemTime;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::approval_queue::ApprovalTurn;
use crate::invocation::Invocation;
use crate::{AbandonReason, Assurance, ErrorKind, HostError, ToolError};

/// An answer, as the streak of denials counts it.
pub(crate) enum ApprovalAnswerKind {
    Approved,
    Denied(Assurance),
}

impl Invocation {
    /// The session's turn to ask, if no other call has it.
    pub(crate) fn try_turn(&self) -> Option<ApprovalTurn> {
        self.host.approval_queues.queue(&self.session.id).try_lock_owned().ok()
    }

    /// Waits for the session's turn to ask.
    pub(crate) async fn wait_for_turn(&self, cancel: &CancellationToken) -> Result<ApprovalTurn, ToolError> {
        let queue = self.host.approval_queues.queue(&self.session.id);
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(AbandonReason::Cancel.error()),
            turn = timeout(self.session.limits.approval_time, queue.lock_owned()) => turn.map_err(|_| queue_timeout_error()),
        }
    }

    /// Why no request of this session may be opened now, if that is so.
    pub(crate) async fn approval_blocked(&self) -> Result<Option<ToolError>, HostError> {
        if let Some(error) = self.paused_error().await? {
            return Ok(Some(error));
        }
        let id = self.session.id.clone();
        self.with_store(move |store| {
            let pending = store.pending(SystemTime::now())?;
            Ok(pending
                .into_iter()
                .find(|request| request.session == id)
                .map(|request| request_pending_error(&request.id)))
        })
        .await
    }

    /// The error where the session is paused.
    pub(crate) async fn paused_error(&self) -> Result<Option<ToolError>, HostError> {
        let (id, most) = (self.session.id.clone(), self.session.limits.denials_in_a_row);
        self.with_store(move |store| {
            let streak = store.denial_streaks()?.into_iter().find(|streak| streak.session == id);
            let streak = streak.filter(|streak| streak.count >= most);
            Ok(streak.map(|streak| session_paused_error(&id, streak.count)))
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
