//! What outlives a call: requests that wait for a person, what was answered, what was granted for good.
//!
//! A request is in the store before anyone is asked, so that any front can show and answer it and a store on disk can
//! bring it back after a restart. Of several answers the first one counts, whoever gives it: that is one step here.
//!
//! Not here: who may answer (`desk.rs`). The clock is the caller's.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Answered, ApprovalRequest, Grant};

/// The store is gone; nothing may be asked without it.
#[derive(Debug, thiserror::Error)]
#[error("the store of approvals cannot be used")]
pub struct StoreLost(#[source] pub std::io::Error);

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is the one that counts.
    First,
    /// Another one was there before.
    Already,
    /// The time to answer is over.
    Expired,
    /// Nobody waits for it, any more or at all.
    Unknown,
}

/// How long it is remembered that no was said to a session.
pub const NOES_TIME: Duration = Duration::from_hours(30 * 24);

/// How often no was said to a session in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noes {
    pub session: String,
    /// Whose session it is.
    pub principal: String,
    pub count: u64,
}

/// How long the request of a suspended call waits.
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
    pub id: String,
    pub args: Value,
    /// From the process that waits with the call.
    pub outcome: Option<DraftOutcome>,
}

/// What a call would do with the arguments of a draft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DraftOutcome {
    Planned {
        summary: String,
        preview: String,
        secret: bool,
    },
    /// Why it would do nothing.
    Refused(String),
}

/// Keeps requests, answers and grants. Each method is one step for everybody who uses the same store.
pub trait Store: Send + Sync + fmt::Debug {
    /// Keeps a request until it is closed, or until nobody is left who waits for it: whoever opened it is gone and did
    /// not `leave` it. What expired before it was opened may go.
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreLost>;
    fn request(&self, id: &str) -> Result<Option<ApprovalRequest>, StoreLost>;
    /// The requests that nobody answered yet, the oldest first.
    fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, StoreLost>;
    /// Answers a request, if nobody did before and its time is not over.
    fn answer(&self, id: &str, answered: &Answered, now: SystemTime) -> Result<Put, StoreLost>;
    fn answer_of(&self, id: &str) -> Result<Option<Answered>, StoreLost>;
    /// Lets a request wait for its answer by itself, and marks it as suspended.
    fn leave(&self, id: &str, lifetime: SuspendLifetime) -> Result<(), StoreLost>;
    /// Sets the draft of a request. An outcome is only set for the draft that it is about. False where nothing was set.
    fn set_draft(&self, id: &str, draft: &ArgumentDraft) -> Result<bool, StoreLost>;
    fn draft_of(&self, id: &str) -> Result<Option<ArgumentDraft>, StoreLost>;
    /// Forgets a request and its answer: nobody waits for it any more.
    fn close(&self, id: &str) -> Result<(), StoreLost>;

    fn add_grant(&self, grant: &Grant) -> Result<(), StoreLost>;
    /// The grants that still hold, the oldest first.
    fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, StoreLost>;
    /// Takes a grant back. False where there is none.
    fn revoke(&self, id: &str) -> Result<bool, StoreLost>;

    /// Counts one more no that was said to a session in a row. What was counted longer ago than `NOES_TIME` may go.
    fn count_no(&self, session: &str, principal: &str, now: SystemTime) -> Result<(), StoreLost>;
    /// How often no was said in a row, of each session that it was said to.
    fn noes(&self) -> Result<Vec<Noes>, StoreLost>;
    /// Starts counting anew. False where nothing was counted.
    fn forget_noes(&self, session: &str) -> Result<bool, StoreLost>;

    /// True for the first one who uses this word, until it expires.
    fn use_once(&self, nonce: &str, expires: SystemTime, now: SystemTime) -> Result<bool, StoreLost>;
    /// The key that seals tokens. It is made at its first use and stays as long as the store does.
    fn key(&self) -> Result<[u8; 32], StoreLost>;
}

/// A store that ends with its process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    requests: Vec<(ApprovalRequest, Option<Answered>)>,
    /// By request.
    drafts: BTreeMap<String, ArgumentDraft>,
    grants: Vec<Grant>,
    /// With the time of the last one.
    noes: Vec<(Noes, SystemTime)>,
    used: BTreeMap<String, SystemTime>,
    key: Option<[u8; 32]>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("requests", &self.requests).field("grants", &self.grants).finish_non_exhaustive()
    }
}

impl Kept {
    fn find(&mut self, id: &str) -> Option<&mut (ApprovalRequest, Option<Answered>)> {
        self.requests.iter_mut().find(|(request, _)| request.id == id)
    }
}

impl Store for MemoryStore {
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreLost> {
        let mut kept = self.lock();
        kept.requests.retain(|(other, _)| other.expires > request.opened);
        kept.requests.push((request.clone(), None));
        Ok(())
    }

    fn request(&self, id: &str) -> Result<Option<ApprovalRequest>, StoreLost> {
        Ok(self.lock().find(id).map(|(request, _)| request.clone()))
    }

    fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, StoreLost> {
        let kept = self.lock();
        let waiting = kept.requests.iter().filter(|(request, answer)| answer.is_none() && request.expires > now);
        Ok(waiting.map(|(request, _)| request.clone()).collect())
    }

    fn answer(&self, id: &str, answered: &Answered, now: SystemTime) -> Result<Put, StoreLost> {
        Ok(match self.lock().find(id) {
            None => Put::Unknown,
            Some((_, Some(_))) => Put::Already,
            Some((request, None)) if request.expires <= now => Put::Expired,
            Some((_, answer)) => {
                *answer = Some(answered.clone());
                Put::First
            }
        })
    }

    fn answer_of(&self, id: &str) -> Result<Option<Answered>, StoreLost> {
        Ok(self.lock().find(id).and_then(|(_, answer)| answer.clone()))
    }

    /// Nothing here outlives who opened it.
    fn leave(&self, id: &str, _: SuspendLifetime) -> Result<(), StoreLost> {
        if let Some((request, _)) = self.lock().find(id) {
            request.suspended = true;
        }
        Ok(())
    }

    fn set_draft(&self, id: &str, draft: &ArgumentDraft) -> Result<bool, StoreLost> {
        let mut kept = self.lock();
        let is_current = kept.drafts.get(id).is_some_and(|there| there.id == draft.id);
        let may_set = kept.find(id).is_some() && (draft.outcome.is_none() || is_current);
        if may_set {
            kept.drafts.insert(id.to_owned(), draft.clone());
        }
        Ok(may_set)
    }

    fn draft_of(&self, id: &str) -> Result<Option<ArgumentDraft>, StoreLost> {
        Ok(self.lock().drafts.get(id).cloned())
    }

    fn close(&self, id: &str) -> Result<(), StoreLost> {
        let mut kept = self.lock();
        kept.requests.retain(|(request, _)| request.id != id);
        kept.drafts.remove(id);
        Ok(())
    }

    fn add_grant(&self, grant: &Grant) -> Result<(), StoreLost> {
        self.lock().grants.push(grant.clone());
        Ok(())
    }

    fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, StoreLost> {
        Ok(self.lock().grants.iter().filter(|grant| grant.until > now).cloned().collect())
    }

    fn revoke(&self, id: &str) -> Result<bool, StoreLost> {
        let grants = &mut self.lock().grants;
        let before = grants.len();
        grants.retain(|grant| grant.id != id);
        Ok(grants.len() < before)
    }

    fn count_no(&self, session: &str, principal: &str, now: SystemTime) -> Result<(), StoreLost> {
        let noes = &mut self.lock().noes;
        noes.retain(|(_, last)| *last + NOES_TIME > now);
        match noes.iter_mut().find(|(noes, _)| noes.session == session) {
            Some((noes, last)) => {
                noes.count += 1;
                *last = now;
            }
            None => {
                let noes_now = Noes { session: session.to_owned(), principal: principal.to_owned(), count: 1 };
                noes.push((noes_now, now));
            }
        }
        Ok(())
    }

    fn noes(&self) -> Result<Vec<Noes>, StoreLost> {
        Ok(self.lock().noes.iter().map(|(noes, _)| noes.clone()).collect())
    }

    fn forget_noes(&self, session: &str) -> Result<bool, StoreLost> {
        let noes = &mut self.lock().noes;
        let before = noes.len();
        noes.retain(|(noes, _)| noes.session != session);
        Ok(noes.len() < before)
    }

    fn use_once(&self, nonce: &str, expires: SystemTime, now: SystemTime) -> Result<bool, StoreLost> {
        let used = &mut self.lock().used;
        used.retain(|_, until| *until > now);
        Ok(used.insert(nonce.to_owned(), expires).is_none())
    }

    fn key(&self) -> Result<[u8; 32], StoreLost> {
        let mut kept = self.lock();
        if let Some(key) = kept.key {
            return Ok(key);
        }
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|_| StoreLost(std::io::Error::other("the system gives no random bytes")))?;
        kept.key = Some(key);
        Ok(key)
    }
}

impl MemoryStore {
    /// A panic elsewhere cannot leave this half changed: each change is one call.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
