//! One question of a session at a time, and none after too many noes.
//!
//! Calls of a session may work side by side, but a person is asked about one of them and sees the next when that one
//! is over. A call that had to wait for its turn is planned again: what was before it may have changed what it would do,
//! or have been allowed for good. Where somebody said no several times in a row, the session pauses: nobody is asked
//! until a person resumes it, and what needs no question still goes.
//!
//! Not here: asking itself (`ask.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use tokio::sync::{Mutex as Line, OwnedMutexGuard};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::face::Offer;
use crate::trip::{Leg, Trip};
use crate::{Abandon, Assurance, ErrorKind, Fatal, Host, Session, ToolError};

/// The lines of all sessions that have one.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Weak<Line<()>>>>);

/// The right to ask, until it is dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// An answer that counts, for the session.
pub(crate) enum Said {
    Yes,
    No(Assurance),
}

impl Turns {
    /// The line of a session. It is there as long as somebody stands in it.
    fn line(&self, session: &str) -> Arc<Line<()>> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(session).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Line::new(()));
        lines.insert(session.to_owned(), Arc::downgrade(&line));
        line
    }
}

impl Host {
    /// As `set_out`, and where somebody has to be asked, with the turn to do so.
    pub(crate) async fn set_out_in_turn(
        &self,
        trip: &Arc<Trip>,
        offer: &Arc<dyn Offer>,
        turn: &mut Option<Turn>,
        cancel: &CancellationToken,
    ) -> Result<Leg, Fatal> {
        let asked = match self.set_out(trip, offer, cancel).await? {
            Leg::Asked(asked) if turn.is_none() => asked,
            leg => return Ok(leg),
        };
        let line = self.turns.line(&trip.session.id);
        if let Ok(ours) = Arc::clone(&line).try_lock_owned() {
            *turn = Some(ours);
            return Ok(Leg::Asked(asked));
        }
        // What was planned is let go meanwhile, with the descriptors that it holds. What a program left is not.
        let (touches, rest) = match asked.is_rest() {
            true => (Vec::new(), Some(asked)),
            false => (asked.touches, None),
        };
        let waited = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Abandon::Cancel.error()),
            ours = timeout(trip.session.limits.approval_time, line.lock_owned()) => ours.map_err(|_| not_reached()),
        };
        match (waited, rest) {
            (Ok(ours), rest) => {
                *turn = Some(ours);
                match rest {
                    Some(asked) => Ok(Leg::Asked(asked)),
                    None => self.set_out(trip, offer, cancel).await,
                }
            }
            (Err(error), Some(asked)) => trip.leave(*asked, error).map(Leg::Done),
            (Err(error), None) => trip.refuse(&touches, &error).map(Leg::Done),
        }
    }

    /// Why nobody may be asked for this session now, if that is so.
    pub(crate) async fn why_not_ask(&self, session: &Session) -> Result<Option<ToolError>, Fatal> {
        let (id, most) = (session.id.clone(), session.limits.denials_in_a_row);
        self.in_store(move |store| {
            let noes = store.noes()?.into_iter().find(|noes| noes.session == id);
            if let Some(noes) = noes.filter(|noes| noes.count >= most) {
                return Ok(Some(paused(&id, noes.count)));
            }
            let pending = store.pending(SystemTime::now())?;
            Ok(pending.into_iter().find(|request| request.session == id).map(|request| waits(&request.id)))
        })
        .await
    }

    /// Counts an answer: a yes ends the noes in a row, and a no that nobody said is none.
    pub(crate) async fn count_answer(&self, session: &Session, answer: Said) -> Result<(), Fatal> {
        let (id, principal) = (session.id.clone(), session.principal.name.clone());
        self.in_store(move |store| match answer {
            Said::Yes => store.forget_noes(&id).map(drop),
            Said::No(Assurance::None) => Ok(()),
            Said::No(_) => store.count_no(&id, &principal, SystemTime::now()),
        })
        .await
    }
}

fn not_reached() -> ToolError {
    let message = "not approved: requests of other calls of this session took all of the time to answer";
    ToolError::new(ErrorKind::ApprovalDenied, message)
}

fn waits(request: &str) -> ToolError {
    let message = format!(
        "not asked yet: another call of this session waits for an answer to the request `{request}`; call again when \
         that is answered"
    );
    ToolError::new(ErrorKind::ApprovalPending, message).detail("waitsFor", request)
}

fn paused(session: &str, count: u64) -> ToolError {
    let message = format!(
        "not asked: this session is paused, because it was refused {count} times in a row; a person resumes it with \
         `ringfence approvals resume {session}` at a terminal, or starts a new one. What needs no approval still goes"
    );
    ToolError::new(ErrorKind::ApprovalDenied, message).detail("paused", true).detail("session", session)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Turns;

    #[test]
    fn a_line_is_there_while_somebody_stands_in_it() {
        let turns = Turns::default();
        let line = turns.line("one");
        let other = turns.line("two");
        assert!(Arc::ptr_eq(&line, &turns.line("one")) && !Arc::ptr_eq(&line, &other));
        drop(other);
        drop(turns.line("three"));
        let left = |turns: &Turns| turns.0.lock().unwrap().len();
        assert_eq!(left(&turns), 2);
        assert!(Arc::ptr_eq(&line, &turns.line("one")));
        drop(line);
        drop(turns.line("four"));
        assert_eq!(left(&turns), 1);
    }
}
