//! The requests that are not answered yet.
//!
//! At most so many, of at most so many bytes together, and no id twice: the SDK has no bound, and of two requests with
//! one id it answers one. A request that was cancelled gets no answer, so it counts until its work is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::RequestId;
use tokio::sync::Notify;

/// Requests at once.
const MOST: usize = 1024;

/// Bytes of requests at once.
const MOST_BYTES: usize = 256 << 20;

/// Why a request is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// Another one with this id waits for its answer.
    SameId,
    TooMany,
}

/// What is known of every request that is not over.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Requests>,
    /// Told whenever the work on one is over.
    over: Notify,
}

#[derive(Debug, Default)]
struct Requests {
    by_id: HashMap<RequestId, State>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    cancelled: bool,
    worked: bool,
}

/// Goes with a request. Dropped, nobody works on it any more.
#[derive(Debug)]
pub(super) struct AtWork {
    all: InFlight,
    id: RequestId,
}

impl InFlight {
    /// Takes one more request.
    pub(super) fn take(&self, id: &RequestId, bytes: usize) -> Result<Arc<AtWork>, NotTaken> {
        let mut requests = self.lock();
        if requests.by_id.contains_key(id) {
            return Err(NotTaken::SameId);
        }
        if requests.by_id.len() >= MOST || requests.bytes.saturating_add(bytes) > MOST_BYTES {
            return Err(NotTaken::TooMany);
        }
        requests.bytes += bytes;
        requests.by_id.insert(id.clone(), State { bytes, ..State::default() });
        Ok(Arc::new(AtWork { all: self.clone(), id: id.clone() }))
    }

    /// Its answer is out.
    pub(super) fn answered(&self, id: &RequestId) {
        self.remove_if(id, |_| true);
    }

    /// No answer will come.
    pub(super) fn cancelled(&self, id: &RequestId) {
        self.remove_if(id, |state| {
            state.cancelled = true;
            state.worked
        });
    }

    /// Returns when nobody works on any of them.
    pub(super) async fn all_over(&self) {
        loop {
            let over = self.0.over.notified();
            if self.lock().by_id.values().all(|state| state.worked) {
                return;
            }
            over.await;
        }
    }

    fn remove_if(&self, id: &RequestId, is_over: impl FnOnce(&mut State) -> bool) {
        let mut requests = self.lock();
        if requests.by_id.get_mut(id).is_some_and(is_over)
            && let Some(state) = requests.by_id.remove(id)
        {
            requests.bytes -= state.bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.all.remove_if(&self.id, |state| {
            state.worked = true;
            state.cancelled
        });
        self.all.0.over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::RequestId;

    use super::{InFlight, MOST, MOST_BYTES, NotTaken};

    fn id(number: usize) -> RequestId {
        RequestId::Number(number.try_into().unwrap())
    }

    #[test]
    fn an_id_is_free_again_when_its_answer_is_out() {
        let all = InFlight::default();
        let work = all.take(&id(1), 10).unwrap();
        assert_eq!(all.take(&id(1), 10).unwrap_err(), NotTaken::SameId);
        drop(work);
        assert_eq!(all.take(&id(1), 10).unwrap_err(), NotTaken::SameId, "the answer is not out yet");
        all.answered(&id(1));
        all.take(&id(1), 10).unwrap();
    }

    #[test]
    fn a_cancelled_id_is_free_again_when_its_work_is_over() {
        let all = InFlight::default();
        let work = all.take(&id(1), 10).unwrap();
        all.cancelled(&id(1));
        assert_eq!(all.take(&id(1), 10).unwrap_err(), NotTaken::SameId);
        drop(work);
        let work = all.take(&id(1), 10).unwrap();
        drop(work);
        all.cancelled(&id(1));
        all.take(&id(1), 10).unwrap();
    }

    #[test]
    fn there_are_at_most_so_many() {
        let all = InFlight::default();
        let work: Vec<_> = (0..MOST).map(|number| all.take(&id(number), 1).unwrap()).collect();
        assert_eq!(all.take(&id(MOST), 1).unwrap_err(), NotTaken::TooMany);
        all.answered(&id(0));
        all.take(&id(MOST), 1).unwrap();
        drop(work);
    }

    #[test]
    fn there_are_at_most_so_many_bytes() {
        let all = InFlight::default();
        all.take(&id(1), MOST_BYTES).unwrap();
        assert_eq!(all.take(&id(2), 1).unwrap_err(), NotTaken::TooMany);
        all.answered(&id(1));
        all.take(&id(2), 1).unwrap();
    }
}
