//! Entry points of calls: making one, resuming one, explaining one.
//!
//! Not here: what becomes of a call (`call_state.rs`), and the parts that every call uses (`host.rs`).

use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use crate::ask_approval::{in_store, record_first_answer};
use crate::call_state::CallState;
use crate::explain::explain_call;
use crate::invocation::Invocation;
use crate::pending_approval::ResumedCall;
use crate::resume::ApprovalAnswerLookup;
use crate::resume_token::ResumeToken;
use crate::{
    Approval, ApprovalDecision, ApprovalInbox, ApprovalStore, ErrorKind, Host, HostError, InboxError,
    PolicyExplanation, ProgressListener, ResumeRequest, Session, SuspendedCall, ToolCall, ToolError, ToolReply,
};

impl Host {
    /// Makes one call. The only way to run a tool.
    pub async fn call(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        self.call_with_progress(session, call, cancel, None).await
    }

    /// Makes one call, with a listener for its progress.
    pub async fn call_with_progress(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        cancel: &CancellationToken,
        listener: Option<Arc<dyn ProgressListener>>,
    ) -> Result<ToolReply, HostError> {
        let (invocation, state) = Invocation::start(self, session, call, listener)?;
        invocation.drive(state, cancel).await
    }

    /// Continues a suspended call. While its request has no answer, the reply says so and the token stays valid.
    pub async fn resume(
        &self,
        session: &Arc<Session>,
        token: &str,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        self.resume_with_progress(session, token, cancel, None).await
    }

    /// The same for a frontend whose client repeats the whole call, perhaps with the answer of its user. The call must be the
    /// one that the token is for. An answer without the required assurance is ignored, and the request stays open.
    pub async fn resume_call(
        &self,
        session: &Arc<Session>,
        resumed: ResumeRequest,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        let ResumeRequest { token, call, decision, listener } = resumed;
        let call = call.forwarded(session);
        if let Some(opened) = ResumeToken::open_for(self, session, &token).await? {
            if !opened.is_for_call(&call, session) {
                return refuse_resume(self, session, call, "the resume token belongs to another call");
            }
            match decision {
                Some(ApprovalDecision { response, approval: Approval { assurance, by: Some(by) } }) => {
                    let answer = move |store: &dyn ApprovalStore| {
                        let inbox = ApprovalInbox { store, principal: &by };
                        match inbox.answer(&opened.request, response, assurance, SystemTime::now()) {
                            Err(InboxError::Store(lost)) => Err(lost),
                            // The first answer counts, and a request that this principal may not answer stays open.
                            _ => Ok(()),
                        }
                    };
                    in_store(&self.config, answer).await?;
                }
                // A denial without a principal is the client's own: it gives up its call.
                Some(decision) if !decision.response.approved => {
                    record_first_answer(&self.config, &opened.request, decision).await?;
                }
                Some(_) | None => {}
            }
        }
        self.resume_with_progress(session, &token, cancel, listener).await
    }

    async fn resume_with_progress(
        &self,
        session: &Arc<Session>,
        token: &str,
        cancel: &CancellationToken,
        listener: Option<Arc<dyn ProgressListener>>,
    ) -> Result<ToolReply, HostError> {
        let Some(opened) = ResumeToken::open_for(self, session, token).await? else {
            let call = ToolCall { id: String::new(), name: "resume".to_owned(), arguments: String::new() };
            return refuse_resume(self, session, call, "the resume token was not issued to this caller");
        };
        let call = ToolCall { id: opened.call.clone(), name: opened.tool.clone(), arguments: opened.arguments.clone() };
        let (request, decision) = match opened.redeem(self).await? {
            ApprovalAnswerLookup::Answered(found) => *found,
            ApprovalAnswerLookup::Invalid(why) => return refuse_resume(self, session, call, why),
            ApprovalAnswerLookup::Pending => {
                let suspended = SuspendedCall { token: token.to_owned(), request_id: opened.request };
                let invocation = Arc::new(Invocation::new(self, session, call));
                return invocation.drive(CallState::Suspended(Vec::new(), suspended), cancel).await;
            }
        };
        let (invocation, state) = Invocation::start(self, session, call, listener)?;
        let state = match state {
            CallState::Found(tool) => {
                CallState::Resumed(tool, Box::new(ResumedCall { token: opened, request, decision }))
            }
            refused => refused,
        };
        invocation.drive(state, cancel).await
    }

    /// Explains what would be decided about a call. An error is one that the call itself would get before a decision.
    pub async fn explain(&self, session: &Arc<Session>, call: ToolCall) -> Result<PolicyExplanation, ToolError> {
        explain_call(self, session, call).await
    }
}

fn refuse_resume(host: &Host, session: &Arc<Session>, call: ToolCall, why: &str) -> Result<ToolReply, HostError> {
    let error = ToolError::new(ErrorKind::ApprovalDenied, format!("{why}; nothing was done"));
    Invocation::new(host, session, call).refuse(&[], &error)
}
