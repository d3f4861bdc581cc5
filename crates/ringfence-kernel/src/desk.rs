//! Where requests are answered and grants are taken back, by those who may.
//!
//! Every front comes here: the terminal, the command line, later pages and protocols. An agent has no business at the
//! desk: it sees no request and answers none, least of all its own.
//!
//! Not here: what the answer means for the call (`gate.rs`), which is checked again by the one who waits.

use std::time::SystemTime;

use serde_json::Value;

use crate::{
    Answered, Approval, ApprovalRequest, ApprovalResponse, ArgumentDraft, Assurance, Grant, Noes, Principal, Put,
    Scope, Store, StoreLost,
};

/// The requests and grants of a store, as one principal may see and answer them.
#[derive(Clone, Copy, Debug)]
pub struct Desk<'a> {
    pub store: &'a dyn Store,
    pub by: &'a Principal,
}

/// Why somebody was sent away.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    #[error("`{0}` may not see or answer requests")]
    MayNotApprove(String),
    #[error("`{0}` may not change what was granted")]
    MayNotAdmin(String),
    #[error("`{0}` cannot answer a request of its own")]
    Own(String),
    #[error("`{0}` cannot resume a session of its own")]
    OwnSession(String),
    #[error("there is no request `{0}` that waits for an answer; `ringfence approvals list` has those that do")]
    Unknown(String),
    #[error("the request `{0}` was answered already, and the first answer counts")]
    Already(String),
    #[error("the request `{0}` was not answered in time")]
    Expired(String),
    #[error("this request needs the answer of a person at ringfence's own terminal or page")]
    NeedsPerson,
    #[error("this answer cannot be remembered: nothing may be allowed for good here")]
    NotForGood,
    #[error(
        "no preview: the caller of request `{0}` is not waiting; changed arguments are planned when it calls again"
    )]
    CallerAway(String),
    #[error("the system gives no random bytes")]
    Entropy,
    #[error(transparent)]
    Store(#[from] StoreLost),
}

impl Desk<'_> {
    /// The requests that wait, the oldest first.
    pub fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, DeskError> {
        self.check_approves()?;
        Ok(self.store.pending(now)?)
    }

    /// A request that waits.
    pub fn request(&self, id: &str, now: SystemTime) -> Result<ApprovalRequest, DeskError> {
        let found = self.pending(now)?.into_iter().find(|request| request.id == id);
        found.ok_or_else(|| DeskError::Unknown(id.to_owned()))
    }

    /// Answers a request. An answer that could not count is refused here, and leaves the request to others.
    pub fn answer(
        &self,
        id: &str,
        response: ApprovalResponse,
        assurance: Assurance,
        now: SystemTime,
    ) -> Result<(), DeskError> {
        self.check_approves()?;
        let request = self.store.request(id)?.ok_or_else(|| DeskError::Unknown(id.to_owned()))?;
        if request.principal == self.by.name {
            return Err(DeskError::Own(self.by.name.clone()));
        }
        let least = match (&response.modified_args, response.remember) {
            (None, false) => request.assurance,
            _ => Assurance::Person,
        };
        if response.approved && assurance < least {
            return Err(DeskError::NeedsPerson);
        }
        if response.approved && response.remember && request.grant.is_none() {
            return Err(DeskError::NotForGood);
        }
        let answered = Answered { response, approval: Approval { assurance, by: Some(self.by.clone()) } };
        match self.store.answer(id, &answered, now)? {
            Put::First => Ok(()),
            Put::Already => Err(DeskError::Already(id.to_owned())),
            Put::Expired => Err(DeskError::Expired(id.to_owned())),
            Put::Unknown => Err(DeskError::Unknown(id.to_owned())),
        }
    }

    /// Asks the process that waits with a request what the call would do with other arguments. `draft_of` has the
    /// outcome once it is there.
    pub fn draft(&self, id: &str, args: Value, now: SystemTime) -> Result<ArgumentDraft, DeskError> {
        let request = self.request(id, now)?;
        if request.principal == self.by.name {
            return Err(DeskError::Own(self.by.name.clone()));
        }
        if request.suspended {
            return Err(DeskError::CallerAway(id.to_owned()));
        }
        let draft = ArgumentDraft { id: crate::id::mint("d").map_err(|_| DeskError::Entropy)?, args, outcome: None };
        match self.store.set_draft(id, &draft)? {
            true => Ok(draft),
            false => Err(DeskError::Unknown(id.to_owned())),
        }
    }

    /// A draft of this request, as far as it got.
    pub fn draft_of(&self, id: &str, draft: &ArgumentDraft) -> Result<Option<ArgumentDraft>, DeskError> {
        self.check_approves()?;
        Ok(self.store.draft_of(id)?.filter(|found| found.id == draft.id))
    }

    /// The sessions that were refused so often in a row that they are paused.
    pub fn paused(&self, denials_in_a_row: u64) -> Result<Vec<Noes>, DeskError> {
        self.check_approves()?;
        Ok(self.store.noes()?.into_iter().filter(|noes| noes.count >= denials_in_a_row).collect())
    }

    /// Lets a session ask again. False where nobody said no to it.
    pub fn resume(&self, session: &str, assurance: Assurance) -> Result<bool, DeskError> {
        self.check_approves()?;
        let noes = self.store.noes()?.into_iter().find(|noes| noes.session == session);
        if noes.is_some_and(|noes| noes.principal == self.by.name) {
            return Err(DeskError::OwnSession(self.by.name.clone()));
        }
        if assurance < Assurance::Person {
            return Err(DeskError::NeedsPerson);
        }
        Ok(self.store.forget_noes(session)?)
    }

    /// What was granted for good.
    pub fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, DeskError> {
        self.check_admin()?;
        Ok(self.store.grants(now)?)
    }

    /// Takes a grant back. False where there is none.
    pub fn revoke(&self, id: &str) -> Result<bool, DeskError> {
        self.check_admin()?;
        Ok(self.store.revoke(id)?)
    }

    fn check_approves(&self) -> Result<(), DeskError> {
        match self.by.may(Scope::Approve) {
            true => Ok(()),
            false => Err(DeskError::MayNotApprove(self.by.name.clone())),
        }
    }

    fn check_admin(&self) -> Result<(), DeskError> {
        match self.by.may(Scope::Admin) {
            true => Ok(()),
            false => Err(DeskError::MayNotAdmin(self.by.name.clone())),
        }
    }
}
