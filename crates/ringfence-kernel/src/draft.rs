//! Previews of changed arguments, for a person who edits a call before approving it.
//!
//! The process that waits with the call plans the changed call like a real one and goes no further: nothing runs, no
//! taint is added, no record is written. The person approves the arguments in a separate step, and the call is planned
//! and decided again then.
//!
//! Not here: who may ask for a preview (`inbox.rs`).

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::explain::DryRun;
use crate::invocation::Invocation;
use crate::{
    AbandonReason, ArgumentDraft, CallContext, CommitState, Decision, DraftOutcome, ErrorKind, Host, HostError, IoMode,
    Preview, Session, ToolCall, ToolError,
};

impl Host {
    /// Puts the outcome of a draft where its author looks for it.
    pub(crate) async fn answer_draft(
        &self,
        invocation: &Invocation,
        request: &str,
        draft: ArgumentDraft,
    ) -> Result<(), HostError> {
        let call = ToolCall { arguments: draft.args.to_string(), ..invocation.call.clone() };
        let outcome = match self.preview_call(&invocation.session, call).await {
            Ok(preview) => DraftOutcome::Planned {
                summary: preview.summary().to_owned(),
                preview: preview.text(),
                secret: preview.is_secret(),
            },
            Err(error) => DraftOutcome::Refused(error.message),
        };
        let (request, draft) = (request.to_owned(), ArgumentDraft { outcome: Some(outcome), ..draft });
        // Another draft may have replaced it: then this one has no author any more.
        self.with_store(move |store| store.set_draft(&request, &draft).map(drop)).await
    }

    async fn preview_call(&self, session: &Arc<Session>, call: ToolCall) -> Result<Preview, ToolError> {
        let Some(offer) = session.catalog.find_tool(&call.name).cloned() else {
            return Err(ToolError::new(ErrorKind::UnknownTool, format!("unknown tool `{}`", call.name)));
        };
        let signal = CommitState::new();
        let (host, session, worker) = (self.clone(), Arc::clone(session), signal.clone());
        let limit = session.limits.call_time;
        let look = move || {
            let tool = offer.definition().name.as_ref();
            let looking = DryRun { policy: host.config.policy.as_ref(), session: &session, tool };
            let cx = CallContext::new(&session.limits, IoMode::Blocking, &worker).with_services(&looking);
            let (accesses, mut planned) = offer.plan(&call.arguments, &cx)?;
            let verdict = looking.policy.decide(&looking.policy_request(&accesses));
            if verdict.decision == Decision::Deny {
                return Err(ToolError::new(ErrorKind::PermissionDenied, verdict.reason));
            }
            Ok(planned.preview(&cx)?.bound_to(&accesses))
        };
        let lost = |_| Err(ToolError::new(ErrorKind::Internal, "internal error in the tool"));
        match timeout(limit, spawn_blocking(look)).await {
            Ok(done) => done.unwrap_or_else(lost),
            Err(_) => {
                signal.abandon(AbandonReason::Deadline);
                Err(AbandonReason::Deadline.error())
            }
        }
    }
}
