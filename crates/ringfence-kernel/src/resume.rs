//! Resuming a deferred call once its answer is there.
//!
//! The token says which call and what was shown; the store says what was answered. The call is planned again, and runs
//! only if the plan is the one that was approved. A token is good for one run, for who got it, until it expires.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::approval::denial_message;
use crate::approval_turn::ApprovalAnswerKind;
use crate::ask_approval::{in_store, record_first_answer};
use crate::invocation::pending_error;
use crate::pending_approval::ResumedCall;
use crate::resume_token::ResumeToken;
use crate::{
    Approval, ApprovalDecision, ApprovalInbox, ApprovalRequest, ApprovalStore, ErrorKind, Host, HostError, InboxError,
    ProgressListener, Session, SuspendedCall, ToolCall, ToolError, ToolReply,
};

impl Host {
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
        if let Some(opened) = self.open_token(session, &token).await? {
            if !opened.is_for_call(&call, session) {
                return self.refuse_resume(session, call, "the resume token belongs to another call");
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
        let Some(opened) = self.open_token(session, token).await? else {
            let call = ToolCall { id: String::new(), name: "resume".to_owned(), arguments: String::new() };
            return self.refuse_resume(session, call, "the resume token was not issued to this caller");
        };
        let call = ToolCall { id: opened.call.clone(), name: opened.tool.clone(), arguments: opened.arguments.clone() };
        let (request, decision) = match self.redeem_token(&opened).await? {
            ApprovalAnswerLookup::Answered(found) => *found,
            ApprovalAnswerLookup::Invalid(why) => return self.refuse_resume(session, call, why),
            ApprovalAnswerLookup::Pending => {
                let reply = self.new_invocation(session, call).refuse(&[], &pending_error(&opened.request))?;
                let suspended = SuspendedCall { token: token.to_owned(), request_id: opened.request };
                return Ok(ToolReply { suspended: Some(suspended), ..reply });
            }
        };
        let (invocation, tool) = match self.find_tool(session, call, listener)? {
            Ok(found) => found,
            Err(reply) => return Ok(reply),
        };
        // A denial needs no plan.
        if !decision.response.approved {
            let message = denial_message(&request.reason, &decision.response, &decision.approval);
            invocation.record_answer(ApprovalAnswerKind::Denied(decision.approval.assurance)).await?;
            return invocation.refuse(&[], &ToolError::new(ErrorKind::ApprovalDenied, message));
        }
        let resumed = ResumedCall { token: opened, request, decision };
        invocation.drive(tool, Some(Box::new(resumed)), cancel).await
    }

    /// The contents of a token, if it was issued to this session.
    async fn open_token(&self, session: &Session, token: &str) -> Result<Option<ResumeToken>, HostError> {
        let key = in_store(&self.config, |store| store.sealing_key()).await?;
        let is_theirs =
            |opened: &ResumeToken| opened.principal == session.principal.name && opened.session == session.id;
        Ok(ResumeToken::open(token, &key).filter(is_theirs))
    }

    fn refuse_resume(&self, session: &Arc<Session>, call: ToolCall, why: &str) -> Result<ToolReply, HostError> {
        let error = ToolError::new(ErrorKind::ApprovalDenied, format!("{why}; nothing was done"));
        self.new_invocation(session, call).refuse(&[], &error)
    }

    /// The answer to the request of a token that is still valid. The token is used up then.
    async fn redeem_token(&self, opened: &ResumeToken) -> Result<ApprovalAnswerLookup, HostError> {
        let ResumeToken { request: id, nonce, expires, .. } = opened.clone();
        in_store(&self.config, move |store| {
            let now = SystemTime::now();
            if expires <= now {
                return Ok(ApprovalAnswerLookup::Invalid("the resume token has expired"));
            }
            let found = store.request(&id)?;
            let answered = store.answer_of(&id)?;
            match (found, answered) {
                (Some(_), None) => Ok(ApprovalAnswerLookup::Pending),
                (Some(request), Some(answered)) if store.consume_nonce(&nonce, expires, now)? => {
                    store.close_request(&id)?;
                    Ok(ApprovalAnswerLookup::Answered(Box::new((request, answered))))
                }
                _ => Ok(ApprovalAnswerLookup::Invalid("the resume token was already used")),
            }
        })
        .await
    }
}

/// A suspended call that its caller's client brings back.
#[derive(Clone, Debug)]
pub struct ResumeRequest {
    /// The resume token, as the client got it.
    pub token: String,
    /// The call, as the client repeats it.
    pub call: ToolCall,
    /// The answer of the client's user, if they were asked.
    pub decision: Option<ApprovalDecision>,
    /// Listener for the progress of the call.
    pub listener: Option<Arc<dyn ProgressListener>>,
}

impl ResumeToken {
    /// Whether a call is this one, however its tool and its arguments are spelled.
    fn is_for_call(&self, call: &ToolCall, session: &Session) -> bool {
        let parsed = |arguments: &str| match arguments.trim().is_empty() {
            true => Some(Value::Object(Map::new())),
            false => serde_json::from_str(arguments).ok(),
        };
        session.catalog.get(&call.name).is_some_and(|tool| tool.name == self.tool)
            && parsed(&call.arguments).is_some_and(|arguments: Value| parsed(&self.arguments) == Some(arguments))
    }
}

/// State of a token's request in the store.
enum ApprovalAnswerLookup {
    Answered(Box<(ApprovalRequest, ApprovalDecision)>),
    Pending,
    Invalid(&'static str),
}
