//! Previews of changed arguments, for a person who edits a call before approving it.
//!
//! The process that waits with the call plans the changed call like a real one and goes no further: nothing runs, no
//! taint is added, no record is written. The person approves the arguments in a separate step, and the call is planned
//! and decided again then.
//!
//! Not here: who may ask for a preview (`inbox.rs`).

use crate::explain::dry_run;
use crate::invocation::Invocation;
use crate::{ArgumentDraft, Decision, DraftOutcome, ErrorKind, HostError, Preview, ToolCall, ToolError};

impl Invocation {
    /// Puts the outcome of a draft where its author looks for it.
    pub(crate) async fn answer_draft(&self, request: &str, draft: ArgumentDraft) -> Result<(), HostError> {
        let call = ToolCall { arguments: draft.args.to_string(), ..self.call.clone() };
        let outcome = match self.preview_call(call).await {
            Ok(preview) => DraftOutcome::Planned(preview),
            Err(error) => DraftOutcome::Refused(error.message),
        };
        let (request, draft) = (request.to_owned(), ArgumentDraft { outcome: Some(outcome), ..draft });
        // Another draft may have replaced it: then this one has no author any more.
        self.with_store(move |store| store.set_draft(&request, &draft).map(drop)).await
    }

    async fn preview_call(&self, call: ToolCall) -> Result<Preview, ToolError> {
        let Some(tool) = self.session.catalog.find_tool(&call.name).cloned() else {
            return Err(ToolError::new(ErrorKind::UnknownTool, format!("unknown tool `{}`", call.name)));
        };
        dry_run(&self.host, &self.session, tool, call.arguments, |dry_run, accesses, mut plan, cx| {
            let verdict = dry_run.policy.decide(&dry_run.policy_request(&accesses));
            if verdict.decision == Decision::Deny {
                return Err(ToolError::new(ErrorKind::PermissionDenied, verdict.reason));
            }
            Ok(plan.preview(cx)?.bound_to(&accesses))
        })
        .await
    }
}
