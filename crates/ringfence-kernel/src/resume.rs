//! Resume tokens of deferred calls: opening, redeeming, and the denial that a call comes back with.
//!
//! The token says which call and what was shown; the store says what was answered. A token is good for one run, for who
//! got it, until it expires.
//!
//! Not here: planning the call again and comparing it with what was approved (`call_state.rs`).

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};

use crate::approval::denial_message;
use crate::approval_turn::ApprovalAnswerKind;
use crate::ask_approval::in_store;
use crate::invocation::Invocation;
use crate::pending_approval::ResumedCall;
use crate::resume_token::ResumeToken;
use crate::{
    ApprovalDecision, ApprovalRequest, ErrorKind, Host, HostError, ProgressListener, Session, ToolCall, ToolError,
};

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
    /// The contents of a token, if it was issued to this session.
    pub(crate) async fn open_for(host: &Host, session: &Session, token: &str) -> Result<Option<Self>, HostError> {
        let key = in_store(&host.config, |store| store.sealing_key()).await?;
        let is_theirs = |opened: &Self| opened.principal == session.principal.name && opened.session == session.id;
        Ok(Self::open(token, &key).filter(is_theirs))
    }

    /// The answer to the request of a token that is still valid. The token is used up then.
    pub(crate) async fn redeem(&self, host: &Host) -> Result<ApprovalAnswerLookup, HostError> {
        let Self { request: id, nonce, expires, .. } = self.clone();
        in_store(&host.config, move |store| {
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

    /// Whether a call is this one, however its tool and its arguments are spelled.
    pub(crate) fn is_for_call(&self, call: &ToolCall, session: &Session) -> bool {
        let parsed = |arguments: &str| match arguments.trim().is_empty() {
            true => Some(Value::Object(Map::new())),
            false => serde_json::from_str(arguments).ok(),
        };
        session.catalog.get(&call.name).is_some_and(|tool| tool.name == self.tool)
            && parsed(&call.arguments).is_some_and(|arguments: Value| parsed(&self.arguments) == Some(arguments))
    }
}

/// State of a token's request in the store.
pub(crate) enum ApprovalAnswerLookup {
    Answered(Box<(ApprovalRequest, ApprovalDecision)>),
    Pending,
    Invalid(&'static str),
}

impl Invocation {
    /// Counts the denial that a resumed call comes back with, and says what became of the call.
    pub(crate) async fn record_declined(&self, resumed: ResumedCall) -> Result<ToolError, HostError> {
        let ApprovalDecision { response, approval } = &resumed.decision;
        let message = denial_message(&resumed.request.reason, response, approval);
        self.record_answer(ApprovalAnswerKind::Denied(approval.assurance)).await?;
        Ok(ToolError::new(ErrorKind::ApprovalDenied, message))
    }
}
