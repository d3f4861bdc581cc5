//! Approval store: pending requests, answers and grants, which outlive a call.
//!
//! A request is in the store before any approver is asked, so that any frontend can show and answer it and a store on disk
//! can restore it after a restart. Of several answers the first one counts, in one atomic step here.
//!
//! Not here: who may answer (`inbox.rs`). The clock is the caller's.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::MutexGuard;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sync::Mutex;
use crate::{ApprovalDecision, ApprovalRequest, Grant, Preview};

/// The state store is unavailable; nothing may be asked without it.
#[derive(Debug, thiserror::Error)]
#[error("the state store is unavailable")]
pub struct StoreError(#[source] pub std::io::Error);

/// The outcome of storing an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalAnswerStatus {
    /// It is the one that counts.
    Accepted,
    /// Another one was there before.
    AlreadyAnswered,
    /// The time to answer is over.
    Expired,
    /// No call waits for it, any more or at all.
    UnknownRequest,
}

/// Lifetime of a denial streak.
pub const DENIAL_STREAK_LIFETIME: Duration = Duration::from_hours(30 * 24);

/// Consecutive denials in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialStreak {
    /// ID of the session.
    pub session: String,
    /// The session's principal.
    pub principal: String,
    /// Number of consecutive denials.
    pub count: u64,
}

/// Lifetime of the request of a suspended call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendLifetime {
    /// As long as the process that opened it is there: no other can bring the call back.
    Process,
    /// Until it expires.
    Persistent,
}

/// Other arguments for a call that waits, and what they would do. Approving them is a separate step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentDraft {
    /// Unique ID of the draft.
    pub id: String,
    /// The changed arguments.
    pub args: Value,
    /// From the process that waits with the call.
    pub outcome: Option<DraftOutcome>,
}

/// The plan of a call with the arguments of a draft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DraftOutcome {
    /// The call would be planned like this.
    Planned(Preview),
    /// The error of the changed call.
    Refused(String),
}

/// Stores requests, answers and grants. Each method is atomic for all users of the same store.
pub trait ApprovalStore: Send + Sync + fmt::Debug {
    /// Keeps a request until it is closed, or until no caller waits for it: the one that opened it is gone and did not
    /// `detach` it. Requests that expired before may be removed.
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreError>;
    /// The request with this ID, answered or not; `None` if it is unknown or closed.
    fn request(&self, id: &str) -> Result<Option<ApprovalRequest>, StoreError>;
    /// The unanswered requests, the oldest first.
    fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, StoreError>;
    /// Answers a request, unless it was answered before or its time is over.
    fn answer(
        &self,
        id: &str,
        answered: &ApprovalDecision,
        now: SystemTime,
    ) -> Result<ApprovalAnswerStatus, StoreError>;
    /// The answer to a request; `None` while there is none.
    fn answer_of(&self, id: &str) -> Result<Option<ApprovalDecision>, StoreError>;
    /// Lets a request wait for its answer by itself, and marks it as suspended.
    fn detach(&self, id: &str, lifetime: SuspendLifetime) -> Result<(), StoreError>;
    /// Sets the draft of a request. An outcome is only set for the draft that it is about. False where nothing was set.
    fn set_draft(&self, id: &str, draft: &ArgumentDraft) -> Result<bool, StoreError>;
    /// The draft of a request; `None` where none was set.
    fn draft_of(&self, id: &str) -> Result<Option<ArgumentDraft>, StoreError>;
    /// Forgets a request and its answer, once no caller waits for it.
    fn close_request(&self, id: &str) -> Result<(), StoreError>;

    /// Adds a grant.
    fn add_grant(&self, grant: &Grant) -> Result<(), StoreError>;
    /// The grants that still hold, the oldest first.
    fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, StoreError>;
    /// Revokes a grant. False where there is none.
    fn revoke_grant(&self, id: &str) -> Result<bool, StoreError>;

    /// Adds one denial to the streak of a session. Streaks older than `DENIAL_STREAK_LIFETIME` may go.
    fn record_denial(&self, session: &str, principal: &str, now: SystemTime) -> Result<(), StoreError>;
    /// The number of consecutive denials of each session that has any.
    fn denial_streaks(&self) -> Result<Vec<DenialStreak>, StoreError>;
    /// Resets the streak. False where there was none.
    fn reset_denials(&self, session: &str) -> Result<bool, StoreError>;

    /// Marks a nonce as used until it expires. False where it was used before.
    fn consume_nonce(&self, nonce: &str, expires: SystemTime, now: SystemTime) -> Result<bool, StoreError>;
    /// The key that seals tokens. It is made at its first use and stays as long as the store does.
    fn sealing_key(&self) -> Result<[u8; 32], StoreError>;
}

/// A store that ends with its process.
#[derive(Debug, Default)]
pub struct InMemoryApprovalStore {
    state: Mutex<InMemoryApprovalState>,
}

#[derive(Default)]
struct InMemoryApprovalState {
    requests: Vec<(ApprovalRequest, Option<ApprovalDecision>)>,
    /// By request.
    drafts: BTreeMap<String, ArgumentDraft>,
    grants: Vec<Grant>,
    /// With the time of the last one.
    denial_streaks: Vec<(DenialStreak, SystemTime)>,
    used_nonces: BTreeMap<String, SystemTime>,
    key: Option<[u8; 32]>,
}

impl fmt::Debug for InMemoryApprovalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryApprovalState")
            .field("requests", &self.requests)
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

impl InMemoryApprovalState {
    fn find_request(&mut self, id: &str) -> Option<&mut (ApprovalRequest, Option<ApprovalDecision>)> {
        self.requests.iter_mut().find(|(request, _)| request.id == id)
    }
}

impl ApprovalStore for InMemoryApprovalStore {
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreError> {
        let mut kept = self.lock();
        kept.requests.retain(|(other, _)| other.expires > request.opened);
        kept.requests.push((request.clone(), None));
        Ok(())
    }

    fn request(&self, id: &str) -> Result<Option<ApprovalRequest>, StoreError> {
        Ok(self.lock().find_request(id).map(|(request, _)| request.clone()))
    }

    fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, StoreError> {
        let kept = self.lock();
        let waiting = kept.requests.iter().filter(|(request, answer)| answer.is_none() && request.expires > now);
        Ok(waiting.map(|(request, _)| request.clone()).collect())
    }

    fn answer(
        &self,
        id: &str,
        answered: &ApprovalDecision,
        now: SystemTime,
    ) -> Result<ApprovalAnswerStatus, StoreError> {
        Ok(match self.lock().find_request(id) {
            None => ApprovalAnswerStatus::UnknownRequest,
            Some((_, Some(_))) => ApprovalAnswerStatus::AlreadyAnswered,
            Some((request, None)) if request.expires <= now => ApprovalAnswerStatus::Expired,
            Some((_, answer)) => {
                *answer = Some(answered.clone());
                ApprovalAnswerStatus::Accepted
            }
        })
    }

    fn answer_of(&self, id: &str) -> Result<Option<ApprovalDecision>, StoreError> {
        Ok(self.lock().find_request(id).and_then(|(_, answer)| answer.clone()))
    }

    /// Nothing here outlives who opened it.
    fn detach(&self, id: &str, _: SuspendLifetime) -> Result<(), StoreError> {
        if let Some((request, _)) = self.lock().find_request(id) {
            request.suspended = true;
        }
        Ok(())
    }

    fn set_draft(&self, id: &str, draft: &ArgumentDraft) -> Result<bool, StoreError> {
        let mut kept = self.lock();
        let is_current = kept.drafts.get(id).is_some_and(|there| there.id == draft.id);
        let may_set = kept.find_request(id).is_some() && (draft.outcome.is_none() || is_current);
        if may_set {
            kept.drafts.insert(id.to_owned(), draft.clone());
        }
        Ok(may_set)
    }

    fn draft_of(&self, id: &str) -> Result<Option<ArgumentDraft>, StoreError> {
        Ok(self.lock().drafts.get(id).cloned())
    }

    fn close_request(&self, id: &str) -> Result<(), StoreError> {
        let mut kept = self.lock();
        kept.requests.retain(|(request, _)| request.id != id);
        kept.drafts.remove(id);
        Ok(())
    }

    fn add_grant(&self, grant: &Grant) -> Result<(), StoreError> {
        self.lock().grants.push(grant.clone());
        Ok(())
    }

    fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, StoreError> {
        Ok(self.lock().grants.iter().filter(|grant| grant.until > now).cloned().collect())
    }

    fn revoke_grant(&self, id: &str) -> Result<bool, StoreError> {
        let grants = &mut self.lock().grants;
        let before = grants.len();
        grants.retain(|grant| grant.id != id);
        Ok(grants.len() < before)
    }

    fn record_denial(&self, session: &str, principal: &str, now: SystemTime) -> Result<(), StoreError> {
        let streak = &mut self.lock().denial_streaks;
        streak.retain(|(_, last)| *last + DENIAL_STREAK_LIFETIME > now);
        match streak.iter_mut().find(|(streak, _)| streak.session == session) {
            Some((streak, last)) => {
                streak.count += 1;
                *last = now;
            }
            None => {
                let streak_now =
                    DenialStreak { session: session.to_owned(), principal: principal.to_owned(), count: 1 };
                streak.push((streak_now, now));
            }
        }
        Ok(())
    }

    fn denial_streaks(&self) -> Result<Vec<DenialStreak>, StoreError> {
        Ok(self.lock().denial_streaks.iter().map(|(streak, _)| streak.clone()).collect())
    }

    fn reset_denials(&self, session: &str) -> Result<bool, StoreError> {
        let streak = &mut self.lock().denial_streaks;
        let before = streak.len();
        streak.retain(|(streak, _)| streak.session != session);
        Ok(streak.len() < before)
    }

    fn consume_nonce(&self, nonce: &str, expires: SystemTime, now: SystemTime) -> Result<bool, StoreError> {
        let used = &mut self.lock().used_nonces;
        used.retain(|_, until| *until > now);
        Ok(used.insert(nonce.to_owned(), expires).is_none())
    }

    fn sealing_key(&self) -> Result<[u8; 32], StoreError> {
        let mut kept = self.lock();
        if let Some(key) = kept.key {
            return Ok(key);
        }
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .map_err(|_| StoreError(std::io::Error::other("the system's random number generator failed")))?;
        kept.key = Some(key);
        Ok(key)
    }
}

impl InMemoryApprovalStore {
    /// A panic of another holder cannot leave this half changed: each change is one call.
    fn lock(&self) -> MutexGuard<'_, InMemoryApprovalState> {
        self.state.lock()
    }
}
