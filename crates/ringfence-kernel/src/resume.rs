//! Resuming a deferred call once its answer is there.
//!
//! The token says which call and what was shown; the store says what was answered. The call is planned again, and runs
//! only if the plan is the one that was approved. A token is good for one run, for who got it, until it expires.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::approval::{ApprovalContext, denial_message};
use crate::approval_queue::AnswerKind;
use crate::ask_approval::pending_error;
use crate::grants::format_rule_line;
use crate::invocation::{CallProgress, plan_changed_error};
use crate::pending_approval::PendingApproval;
use crate::resume_token::ResumeToken;
use crate::{
    Approval, ApprovalDecision, ApprovalInbox, ApprovalRequest, ApprovalStore, Decision, ErrorKind, Host, HostError,
    InboxError, ProgressListener, Session, SuspendedCall, ToolCall, ToolError, ToolReply,
};

impl Host {
    /// Resumes a suspended call. While the request is not answered, the reply says so and the token stays valid.
    pub async fn resume(
        &self,
        session: &Arc<Session>,
        token: &str,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        self.resume_with_progress(session, token, cancel, None).await
    }

    async fn resume_with_progress(
        &self,
        session: &Arc<Session>,
        token: &str,
        cancel: &CancellationToken,
        listener: Option<Arc<dyn ProgressListener>>,
    ) -> Result<ToolReply, HostError> {
        let key = self.with_store(|store| store.sealing_key()).await?;
        let is_theirs =
            |sealed: &ResumeToken| sealed.principal == session.principal.name && sealed.session == session.id;
        let opened = ResumeToken::open(token, &key).filter(is_theirs);
        let Some(sealed) = opened else {
            let nothing = String::new;
            let call = ToolCall { id: nothing(), name: "resume".to_owned(), arguments: nothing() };
            return self
                .new_invocation(session, call)
                .refuse(&[], &resume_error("the resume token was not issued to this caller"));
        };
        let call = ToolCall { id: sealed.call.clone(), name: sealed.tool.clone(), arguments: sealed.arguments.clone() };
        let (request, answered) = match self.redeem_token(&sealed).await? {
            AnswerLookup::Answered(found) => *found,
            AnswerLookup::Invalid(why) => return self.new_invocation(session, call).refuse(&[], &resume_error(why)),
            AnswerLookup::Pending => {
                let reply = self.new_invocation(session, call).refuse(&[], &pending_error(&sealed.request))?;
                let suspended = SuspendedCall { token: token.to_owned(), request_id: sealed.request };
                return Ok(ToolReply { suspended: Some(suspended), ..reply });
            }
        };
        self.continue_resumed(
            session,
            call,
            ResumedCall { token: sealed, request, decision: answered, listener },
            cancel,
        )
        .await
    }

    /// The same for a front whose client brings the whole call back, perhaps with the answer of its user. The call must be
    /// the one that the token is for. An answer without the required assurance is ignored, and leaves the request open.
    pub async fn resume_call(
        &self,
        session: &Arc<Session>,
        back: ResumeRequest,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        let ResumeRequest { token, call, decision: answered, listener } = back;
        let key = self.with_store(|store| store.sealing_key()).await?;
        let is_theirs =
            |sealed: &ResumeToken| sealed.principal == session.principal.name && sealed.session == session.id;
        if let Some(sealed) = ResumeToken::open(&token, &key).filter(is_theirs) {
            if !sealed.is_for_call(&call, session) {
                return self
                    .new_invocation(session, call)
                    .refuse(&[], &resume_error("the resume token belongs to another call"));
            }
            match answered {
                Some(ApprovalDecision { response, approval: Approval { assurance, by: Some(by) } }) => {
                    let put = move |store: &dyn ApprovalStore| {
                        let inbox = ApprovalInbox { store, principal: &by };
                        match inbox.answer(&sealed.request, response, assurance, SystemTime::now()) {
                            Err(InboxError::Store(lost)) => Err(lost),
                            // The first answer counts, and an answer without the right to give it changes nothing.
                            _ => Ok(()),
                        }
                    };
                    self.with_store(put).await?;
                }
                // An automatic denial is the client's own: it gives its call up.
                Some(answered) if !answered.response.approved => {
                    self.record_first_answer(&sealed.request, answered).await?;
                }
                Some(_) | None => {}
            }
        }
        self.resume_with_progress(session, &token, cancel, listener).await
    }

    /// The answer, if this token may still be used. Then it is used up.
    async fn redeem_token(&self, sealed: &ResumeToken) -> Result<AnswerLookup, HostError> {
        let ResumeToken { request: id, nonce, expires, .. } = sealed.clone();
        self.with_store(move |store| {
            let now = SystemTime::now();
            if expires <= now {
                return Ok(AnswerLookup::Invalid("the resume token has expired"));
            }
            let found = store.request(&id)?;
            let answered = store.answer_of(&id)?;
            match (found, answered) {
                (Some(_), None) => Ok(AnswerLookup::Pending),
                (Some(request), Some(answered)) if store.consume_nonce(&nonce, expires, now)? => {
                    store.close_request(&id)?;
                    Ok(AnswerLookup::Answered(Box::new((request, answered))))
                }
                _ => Ok(AnswerLookup::Invalid("the resume token was already used")),
            }
        })
        .await
    }

    async fn continue_resumed(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        mut comeback: ResumedCall,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        let (invocation, offer) = match self.resolve_tool(session, call, comeback.listener.take())? {
            Ok(departed) => departed,
            Err(reply) => return Ok(reply),
        };
        // A no needs no second look.
        let ApprovalDecision { response, approval } = &comeback.decision;
        if !response.approved {
            let message = denial_message(&comeback.request.reason, response, approval);
            self.record_answer(session, AnswerKind::Denied(approval.assurance)).await?;
            return invocation.refuse(&[], &ToolError::new(ErrorKind::ApprovalDenied, message));
        }
        let again = Arc::clone(&offer);
        let step = self
            .run_on_worker(&invocation, cancel, move |invocation, signal| invocation.replan(again.as_ref(), signal))
            .await?;
        let asked = match step {
            CallProgress::Done(reply) => return Ok(reply),
            CallProgress::NeedsApproval(asked) => asked,
        };
        if !comeback.matches_plan(&asked) {
            return invocation.refuse(&asked.accesses, &plan_changed_error());
        }
        let may_grant = asked.prompt.grant.as_ref().and_then(format_rule_line) == comeback.request.grant
            && comeback.request.grant.is_some();
        let asker = ApprovalContext { verdict: &asked.prompt.verdict, principal: &session.principal, may_grant };
        let answer = self.evaluate_answer(session, comeback.decision, &asker).await?;
        self.resume_with_answer(invocation, offer, asked, answer, cancel).await
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
enum AnswerLookup {
    Answered(Box<(ApprovalRequest, ApprovalDecision)>),
    Pending,
    Invalid(&'static str),
}

/// A call on its way back.
struct ResumedCall {
    token: ResumeToken,
    request: ApprovalRequest,
    decision: ApprovalDecision,
    listener: Option<Arc<dyn ProgressListener>>,
}

impl ResumedCall {
    /// Whether a plan is the one that was shown, and is asked about for the same reason, if at all.
    fn matches_plan(&self, asked: &PendingApproval) -> bool {
        let (verdict, request) = (&asked.prompt.verdict, &self.request);
        let same_question =
            verdict.rule.as_ref() == request.rule && verdict.layer == request.layer && verdict.reason == request.reason;
        asked.prompt.preview.fingerprint() == self.token.fingerprint
            && (verdict.decision == Decision::Allow || same_question)
    }
}

fn resume_error(why: &str) -> ToolError {
    ToolError::new(ErrorKind::ApprovalDenied, format!("{why}; nothing was done"))
}
