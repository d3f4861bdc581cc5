//! Previews of changed arguments, for a person who edits a call before approving it.
//!
//! The process that waits with the call plans the changed call as on the road and goes no further: nothing runs, no
//! taint is added, no record is written. The person approves the arguments in a separate step, and the call is planned
//! and decided again then.
//!
//! Not here: who may ask for a preview (`desk.rs`).

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::explain::Looking;
use crate::trip::Trip;
use crate::{
    Abandon, ArgumentDraft, Context, Decision, DraftOutcome, ErrorKind, Fatal, Host, Pace, Preview, Session, Signal,
    ToolCall, ToolError,
};

impl Host {
    /// Puts the outcome of a draft where its author looks for it.
    pub(crate) async fn answer_draft(&self, trip: &Trip, request: &str, draft: ArgumentDraft) -> Result<(), Fatal> {
        let call = ToolCall { arguments: draft.args.to_string(), ..trip.call.clone() };
        let outcome = match self.preview_call(&trip.session, call).await {
            Ok(preview) => DraftOutcome::Planned {
                summary: preview.summary().to_owned(),
                preview: preview.text(),
                secret: preview.is_secret(),
            },
            Err(error) => DraftOutcome::Refused(error.message),
        };
        let (request, draft) = (request.to_owned(), ArgumentDraft { outcome: Some(outcome), ..draft });
        // Another draft may have taken its place: then this one has no author any more.
        self.in_store(move |store| store.set_draft(&request, &draft).map(drop)).await
    }

    async fn preview_call(&self, session: &Arc<Session>, call: ToolCall) -> Result<Preview, ToolError> {
        let Some(offer) = session.catalog.offer(&call.name).cloned() else {
            return Err(ToolError::new(ErrorKind::UnknownTool, format!("there is no tool `{}`", call.name)));
        };
        let signal = Signal::new();
        let (host, session, worker) = (self.clone(), Arc::clone(session), signal.clone());
        let limit = session.limits.call_time;
        let look = move || {
            let tool = offer.definition().name.as_ref();
            let looking = Looking { policy: host.parts.policy.as_ref(), session: &session, tool };
            let cx = Context::new(&session.limits, Pace::Patient, &worker).on_road(&looking);
            let (touches, mut planned) = offer.plan(&call.arguments, &cx)?;
            let verdict = looking.policy.decide(&looking.question(&touches));
            if verdict.decision == Decision::Deny {
                return Err(ToolError::new(ErrorKind::PermissionDenied, verdict.reason));
            }
            Ok(planned.preview(&cx)?.about(&touches))
        };
        let lost = |_| Err(ToolError::new(ErrorKind::Internal, "the tool failed in a way that it should not"));
        match timeout(limit, spawn_blocking(look)).await {
            Ok(done) => done.unwrap_or_else(lost),
            Err(_) => {
                signal.abandon(Abandon::Deadline);
                Err(Abandon::Deadline.error())
            }
        }
    }
}
