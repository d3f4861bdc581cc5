//! Commit state of a call in flight: running, committing or abandoned.
//!
//! Two sides hold a `CallCommitState`: the worker that does the work, and the host that waits for it. One atomic
//! step decides who was first. Until the worker commits, the host can abandon the call and nothing will
//! have happened; once the worker commits, it finishes, and the host can only say that it does not know yet.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use crate::{ErrorKind, ToolError};

const RUNNING: u8 = 0;
const COMMITTING: u8 = 1;
const TIMED_OUT: u8 = 2;
const CANCELLED: u8 = 3;

/// The reason for abandoning a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonReason {
    /// The time limit of the call passed.
    Deadline,
    /// The caller cancelled the call or went away.
    Cancel,
}

impl AbandonReason {
    const fn state_code(self) -> u8 {
        match self {
            Self::Deadline => TIMED_OUT,
            Self::Cancel => CANCELLED,
        }
    }

    pub(crate) fn error(self) -> ToolError {
        match self {
            Self::Deadline => ToolError::new(ErrorKind::Timeout, "the call timed out"),
            Self::Cancel => ToolError::new(ErrorKind::Cancelled, "the call was cancelled"),
        }
    }
}

/// The state of one call, shared by its two sides.
#[derive(Clone, Debug, Default)]
pub struct CallCommitState(Arc<CallCommitStateInner>);

#[derive(Debug, Default)]
struct CallCommitStateInner {
    state: AtomicU8,
    /// The reason to stop by itself, before the call is abandoned: `TIMED_OUT` or `CANCELLED`.
    stop: AtomicU8,
    /// The subject of the call, as soon as the worker knows it.
    subject: OnceLock<String>,
}

impl CallCommitState {
    /// The state of a call that is running and has not committed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asked by a worker wherever it could go on for long.
    pub fn check(&self) -> Result<(), ToolError> {
        let state = self.0.state.load(Ordering::Acquire);
        let reason = if state == RUNNING { self.0.stop.load(Ordering::Acquire) } else { state };
        match reason {
            TIMED_OUT => Err(AbandonReason::Deadline.error()),
            CANCELLED => Err(AbandonReason::Cancel.error()),
            _ => Ok(()),
        }
    }

    /// Asks the worker to end by itself. It may still say how that went.
    pub(crate) fn request_stop(&self, why: AbandonReason) {
        self.0.stop.store(why.state_code(), Ordering::Release);
    }

    pub(crate) fn set_subject(&self, shown: &str) {
        self.0.subject.get_or_init(|| shown.to_owned());
    }

    pub(crate) fn subject(&self) -> Option<&str> {
        self.0.subject.get().map(String::as_str)
    }

    /// The worker's last chance to be stopped: after this the change is made.
    pub(crate) fn commit(&self) -> Result<(), ToolError> {
        match self.0.state.compare_exchange(RUNNING, COMMITTING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(COMMITTING) => Ok(()),
            Err(_) => self.check(),
        }
    }

    /// Abandons the call, because the caller stopped waiting. False when the worker committed first.
    pub fn abandon(&self, why: AbandonReason) -> bool {
        self.0.state.compare_exchange(RUNNING, why.state_code(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{AbandonReason, CallCommitState};
    use crate::ErrorKind;

    #[test]
    fn an_abandoned_call_cannot_commit() {
        let state = CallCommitState::new();
        assert!(state.abandon(AbandonReason::Deadline));
        assert_eq!(state.commit().unwrap_err().kind, ErrorKind::Timeout);
    }

    #[test]
    fn a_worker_asked_to_stop_still_replies() {
        let state = CallCommitState::new();
        state.request_stop(AbandonReason::Cancel);
        assert_eq!(state.check().unwrap_err().kind, ErrorKind::Cancelled);
        state.commit().unwrap();
        state.check().unwrap();
    }

    #[test]
    fn a_committed_call_cannot_be_abandoned_and_is_not_stopped_half_way() {
        let state = CallCommitState::new();
        state.commit().unwrap();
        assert!(!state.abandon(AbandonReason::Cancel));
        state.check().unwrap();
        state.commit().unwrap();
    }
}
