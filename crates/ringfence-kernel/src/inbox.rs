//! Approval inbox: answering pending requests and revoking grants, with the caller's rights checked.
//!
//! Every frontend comes here: the terminal, the command line, the page and the protocols. An agent has no access to the
//! inbox: it sees no request and answers none, least of all its own.
//!
//! Not here: what the answer means for the call (`approval.rs`), which is checked again by the one who waits.

use std::time::SystemTime;

use serde_json::Value;

use crate::{
    Approval, ApprovalAnswerStatus, ApprovalDecision, ApprovalRequest, ApprovalResponse, ApprovalStore, ArgumentDraft,
    Assurance, AuthScope, DenialStreak, Grant, Principal, StoreError,
};

/// The requests and grants of a store, as one principal may see and answer them.
///
/// ```
/// use std::time::SystemTime;
///
/// use ringfence_kernel::{ApprovalInbox, InboxError, InMemoryApprovalStore, Principal};
///
/// let store = InMemoryApprovalStore::default();
/// let pending = |by: &Principal| ApprovalInbox { store: &store, principal: by }.pending(SystemTime::now());
/// assert!(pending(&Principal::person("ann")).is_ok_and(|requests| requests.is_empty()));
/// assert!(matches!(pending(&Principal::agent("bot")), Err(InboxError::MayNotApprove(_))));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ApprovalInbox<'a> {
    /// The store, shared with the hosts that wait for answers.
    pub store: &'a dyn ApprovalStore,
    /// The principal whose rights are checked.
    pub principal: &'a Principal,
}

/// Refusal of an inbox operation.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// The principal lacks the scope to approve.
    #[error("`{0}` may not view or answer approval requests")]
    MayNotApprove(String),
    /// The principal lacks the scope to administer.
    #[error("`{0}` may not change grants")]
    MayNotAdmin(String),
    /// The principal made the request itself.
    #[error("`{0}` cannot answer its own request")]
    OwnRequest(String),
    /// The session belongs to the principal itself.
    #[error("`{0}` cannot resume its own session")]
    OwnSession(String),
    /// There is no request with this ID, or it was withdrawn.
    #[error("no pending request `{0}`; list them with `ringfence approvals list`")]
    UnknownRequest(String),
    /// The request has an answer already.
    #[error("request `{0}` was already answered; the first answer counts")]
    AlreadyAnswered(String),
    /// The request's time limit passed.
    #[error("request `{0}` expired before it was answered")]
    Expired(String),
    /// The answer lacks the required assurance.
    #[error("only a person at Ringfence's own terminal or page can answer this request")]
    NeedsPerson,
    /// The request offers no grant.
    #[error("this answer cannot be remembered: persistent grants are disabled here")]
    NotGrantable,
    /// The process that holds the call is gone, so a draft cannot be planned.
    #[error(
        "no preview: the caller of request `{0}` is not connected; changed arguments are planned when it calls again"
    )]
    CallerNotWaiting(String),
    /// No random bytes for an ID.
    #[error("the system's random number generator failed")]
    Entropy,
    /// The state store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ApprovalInbox<'_> {
    /// The requests that wait, the oldest first.
    pub fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, InboxError> {
        self.check_may_approve()?;
        Ok(self.store.pending(now)?)
    }

    /// A request that waits.
    pub fn request(&self, id: &str, now: SystemTime) -> Result<ApprovalRequest, InboxError> {
        let found = self.pending(now)?.into_iter().find(|request| request.id == id);
        found.ok_or_else(|| InboxError::UnknownRequest(id.to_owned()))
    }

    /// Answers a request. An answer that could not count is refused here, and leaves the request to others.
    pub fn answer(
        &self,
        id: &str,
        response: ApprovalResponse,
        assurance: Assurance,
        now: SystemTime,
    ) -> Result<(), InboxError> {
        self.check_may_approve()?;
        let request = self.store.request(id)?.ok_or_else(|| InboxError::UnknownRequest(id.to_owned()))?;
        if request.principal == self.principal.name {
            return Err(InboxError::OwnRequest(self.principal.name.clone()));
        }
        let least = match (&response.modified_args, response.remember) {
            (None, false) => request.assurance,
            _ => Assurance::Person,
        };
        if response.approved && assurance < least {
            return Err(InboxError::NeedsPerson);
        }
        if response.approved && response.remember && request.grant.is_none() {
            return Err(InboxError::NotGrantable);
        }
        let answered =
            ApprovalDecision { response, approval: Approval { assurance, by: Some(self.principal.clone()) } };
        match self.store.answer(id, &answered, now)? {
            ApprovalAnswerStatus::Accepted => Ok(()),
            ApprovalAnswerStatus::AlreadyAnswered => Err(InboxError::AlreadyAnswered(id.to_owned())),
            ApprovalAnswerStatus::Expired => Err(InboxError::Expired(id.to_owned())),
            ApprovalAnswerStatus::UnknownRequest => Err(InboxError::UnknownRequest(id.to_owned())),
        }
    }

    /// Asks the process that waits with a request what the call would do with other arguments. `draft_of` has the
    /// outcome once it is there.
    pub fn open_draft(&self, id: &str, args: Value, now: SystemTime) -> Result<ArgumentDraft, InboxError> {
        let request = self.request(id, now)?;
        if request.principal == self.principal.name {
            return Err(InboxError::OwnRequest(self.principal.name.clone()));
        }
        if request.suspended {
            return Err(InboxError::CallerNotWaiting(id.to_owned()));
        }
        let draft = ArgumentDraft { id: crate::id::new_id("d").map_err(|_| InboxError::Entropy)?, args, outcome: None };
        match self.store.set_draft(id, &draft)? {
            true => Ok(draft),
            false => Err(InboxError::UnknownRequest(id.to_owned())),
        }
    }

    /// A draft of this request, as far as it got.
    pub fn draft_of(&self, id: &str, draft: &ArgumentDraft) -> Result<Option<ArgumentDraft>, InboxError> {
        self.check_may_approve()?;
        Ok(self.store.draft_of(id)?.filter(|found| found.id == draft.id))
    }

    /// The sessions that were refused so often in a row that they are paused.
    pub fn paused_sessions(&self, denials_in_a_row: u64) -> Result<Vec<DenialStreak>, InboxError> {
        self.check_may_approve()?;
        Ok(self.store.denial_streaks()?.into_iter().filter(|streak| streak.count >= denials_in_a_row).collect())
    }

    /// Resumes a paused session. False where it has no denials.
    pub fn resume_session(&self, session: &str, assurance: Assurance) -> Result<bool, InboxError> {
        self.check_may_approve()?;
        let streak = self.store.denial_streaks()?.into_iter().find(|streak| streak.session == session);
        if streak.is_some_and(|streak| streak.principal == self.principal.name) {
            return Err(InboxError::OwnSession(self.principal.name.clone()));
        }
        if assurance < Assurance::Person {
            return Err(InboxError::NeedsPerson);
        }
        Ok(self.store.reset_denials(session)?)
    }

    /// Persistent grants.
    pub fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, InboxError> {
        self.check_may_administer()?;
        Ok(self.store.grants(now)?)
    }

    /// Takes a grant back. False where there is none.
    pub fn revoke_grant(&self, id: &str) -> Result<bool, InboxError> {
        self.check_may_administer()?;
        Ok(self.store.revoke_grant(id)?)
    }

    fn check_may_approve(&self) -> Result<(), InboxError> {
        match self.principal.has_scope(AuthScope::Approve) {
            true => Ok(()),
            false => Err(InboxError::MayNotApprove(self.principal.name.clone())),
        }
    }

    fn check_may_administer(&self) -> Result<(), InboxError> {
        match self.principal.has_scope(AuthScope::Admin) {
            true => Ok(()),
            false => Err(InboxError::MayNotAdmin(self.principal.name.clone())),
        }
    }
}
