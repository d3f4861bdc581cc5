//! Approval requests for connections of a running program.
//!
//! The request is in the store as long as the program runs, so that any frontend can answer it. The host's own approver is
//! asked too, about one connection at a time and for as long as about any call. The first answer counts. Questions of a
//! run do not wait for the turn of its call, which that call may have itself.
//!
//! Not here: which connections require approval, and what waits for the answer (`connection_decider.rs`).

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::approval::{ApprovalContext, ApprovalOutcome};
use crate::ask_approval::{ApprovalRequestGuard, build_request, record_first_answer};
use crate::invocation::{Invocation, arguments_fixed_error};
use crate::pending_approval::ApprovalPrompt;
use crate::pending_connection::{ConnectionAnswer, PendingConnection};
use crate::sync::Mutex;
use crate::{
    ApprovalDecision, ApprovalRequest, ApproverReply, ErrorKind, HostError, PolicyAction, Preview, PreviewBody,
    ResourceAccess, ToolError, Verdict,
};

/// Lifetime of a question whose run does not end before.
const QUESTION_LIFETIME: Duration = Duration::from_hours(24);

impl Invocation {
    /// Opens the question about a connection. It is withdrawn when the result is dropped.
    pub(crate) fn open_connection_question(
        &self,
        access: &ResourceAccess,
        preview: Option<&Preview>,
        verdict: &Verdict,
    ) -> PendingConnection {
        let Ok(runtime) = Handle::try_current() else { return PendingConnection::refused(unavailable_error()) };
        let host = &access.resource.display_path;
        let (summary, args) = match access.action {
            PolicyAction::Listen => (format!("publish a port of the program at `{host}`"), json!({"port": host})),
            _ => (format!("connect to `{host}`"), json!({"host": host})),
        };
        let preview = preview.cloned().unwrap_or_else(|| {
            Preview::new(&summary, host.clone()).with_body(PreviewBody::Text("for the rest of this run".to_owned()))
        });
        let prompt = self.approval_prompt(std::slice::from_ref(access), verdict.clone(), preview);
        let Ok(request) = build_request(self, &prompt) else { return PendingConnection::refused(unavailable_error()) };
        let expires = request.opened + QUESTION_LIFETIME;
        let request = ApprovalRequest { args, expires, ..request };
        let guard = ApprovalRequestGuard::new(&self.host.config, &request);
        let (config, id, dropped) = (Arc::clone(&self.host.config), request.id.clone(), guard.dropped());
        let answer = Arc::new(Mutex::new(None));
        let (result, asking) = (Arc::clone(&answer), self.detached());
        let task = runtime.spawn(async move {
            let answered = asking.ask_about_connection(request, &prompt, guard).await;
            *result.lock() = Some(answered.unwrap_or_else(|error| Err(lost_error(&error))));
        });
        PendingConnection::new(answer, move || {
            task.abort();
            dropped.store(true, Ordering::SeqCst);
            // The failure cannot be reported any more.
            let _ = config.store.close_request(&id);
        })
    }

    async fn ask_about_connection(
        &self,
        request: ApprovalRequest,
        prompt: &ApprovalPrompt,
        guard: ApprovalRequestGuard,
    ) -> Result<ConnectionAnswer, HostError> {
        if let Some(error) = self.paused_error().await? {
            return Ok(Err(error));
        }
        guard.open(&request).await?;
        let decision = tokio::select! {
            biased;
            decision = self.ask_own_approver(&request) => decision,
            answered = self.poll_store_for_answer(&request.id, false) => answered?,
        };
        let decision = record_first_answer(&self.host.config, &request.id, decision).await?;
        guard.close().await?;
        let (verdict, principal) = (&prompt.verdict, &self.session.principal);
        let context = ApprovalContext { verdict, principal, may_grant: request.grant.is_some() };
        Ok(match self.evaluate_answer(decision, &context).await? {
            ApprovalOutcome::Approved(approval) => Ok(approval),
            ApprovalOutcome::ApprovedAlways(approval) => {
                if let Some(rule) = prompt.grant.clone() {
                    self.store_grant(rule, &approval).await?;
                }
                Ok(approval)
            }
            ApprovalOutcome::ApprovedWithChanges(..) => Err(arguments_fixed_error()),
            ApprovalOutcome::Denied(denial) => Err(denial.error(verdict)),
        })
    }

    /// The answer of our own approver, when it is its turn. An approver that defers, or takes too long, gives none.
    async fn ask_own_approver(&self, request: &ApprovalRequest) -> ApprovalDecision {
        let queue = self.host.approval_queues.queue(&format!("connections of {}", self.session.id));
        let turn = queue.lock_owned().await;
        let asked = self.host.config.approver.ask_in_call(request);
        let reply = timeout(self.session.limits.approval_time, asked).await;
        drop(turn);
        match reply {
            Ok(ApproverReply::Decided(decision)) => decision,
            Ok(ApproverReply::Deferred | ApproverReply::DeferredInProcess) | Err(_) => pending().await,
        }
    }
}

fn unavailable_error() -> ToolError {
    ToolError::new(ErrorKind::ApprovalDenied, "not approved: approval cannot be requested here")
}

fn lost_error(error: &HostError) -> ToolError {
    ToolError::new(ErrorKind::ApprovalDenied, format!("not approved: {error}"))
}
