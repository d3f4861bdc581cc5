//! Requests in flight.
//!
//! Their number, their bytes in total and reuse of an ID are limited: the SDK has no bound, and of two requests with
//! one ID it answers one. A cancelled request gets no response, so it counts until its work is over.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use ringfence_kernel::sync::Mutex;
use rmcp::model::RequestId;
use tokio::sync::Notify;

/// Requests at once.
const MAX_REQUESTS: usize = 1024;

/// Bytes of requests at once.
const MAX_BYTES: usize = 256 << 20;

/// Reason for refusing a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InFlightError {
    /// Another one with this id waits for its answer.
    DuplicateId,
    TooMany,
}

/// Requests in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlightRequests(Arc<InFlightShared>);

#[derive(Debug, Default)]
struct InFlightShared {
    requests: Mutex<InFlightTable>,
    /// Notified whenever the work on one is over.
    finished: Notify,
}

#[derive(Debug, Default)]
struct InFlightTable {
    by_id: HashMap<RequestId, InFlightRequest>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct InFlightRequest {
    bytes: usize,
    cancelled: bool,
    work_done: bool,
}

/// Guard of a request. Dropped when its work is over.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    all: InFlightRequests,
    id: RequestId,
}

impl InFlightRequests {
    /// Takes one more request.
    pub(super) fn admit(&self, id: &RequestId, bytes: usize) -> Result<Arc<InFlightGuard>, InFlightError> {
        let mut requests = self.lock();
        if requests.by_id.contains_key(id) {
            return Err(InFlightError::DuplicateId);
        }
        if requests.by_id.len() >= MAX_REQUESTS || requests.bytes.saturating_add(bytes) > MAX_BYTES {
            return Err(InFlightError::TooMany);
        }
        requests.bytes += bytes;
        requests.by_id.insert(id.clone(), InFlightRequest { bytes, ..InFlightRequest::default() });
        Ok(Arc::new(InFlightGuard { all: self.clone(), id: id.clone() }))
    }

    /// Its answer is out.
    pub(super) fn mark_answered(&self, id: &RequestId) {
        self.remove_if(id, |_| true);
    }

    /// No answer will come.
    pub(super) fn mark_cancelled(&self, id: &RequestId) {
        self.remove_if(id, |state| {
            state.cancelled = true;
            state.work_done
        });
    }

    /// Returns when there is no request in flight.
    pub(super) async fn wait_until_idle(&self) {
        loop {
            let over = self.0.finished.notified();
            if self.lock().by_id.values().all(|state| state.work_done) {
                return;
            }
            over.await;
        }
    }

    fn remove_if(&self, id: &RequestId, is_over: impl FnOnce(&mut InFlightRequest) -> bool) {
        let mut requests = self.lock();
        if requests.by_id.get_mut(id).is_some_and(is_over)
            && let Some(state) = requests.by_id.remove(id)
        {
            requests.bytes -= state.bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, InFlightTable> {
        self.0.requests.lock()
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.all.remove_if(&self.id, |state| {
            state.work_done = true;
            state.cancelled
        });
        self.all.0.finished.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::RequestId;

    use super::{InFlightError, InFlightRequests, MAX_BYTES, MAX_REQUESTS};

    fn id(number: usize) -> RequestId {
        RequestId::Number(number.try_into().unwrap())
    }

    #[test]
    fn an_id_is_free_again_when_its_answer_is_out() {
        let all = InFlightRequests::default();
        let work = all.admit(&id(1), 10).unwrap();
        assert_eq!(all.admit(&id(1), 10).unwrap_err(), InFlightError::DuplicateId);
        drop(work);
        assert_eq!(all.admit(&id(1), 10).unwrap_err(), InFlightError::DuplicateId, "the answer is not out yet");
        all.mark_answered(&id(1));
        all.admit(&id(1), 10).unwrap();
    }

    #[test]
    fn a_cancelled_id_is_free_again_when_its_work_is_over() {
        let all = InFlightRequests::default();
        let work = all.admit(&id(1), 10).unwrap();
        all.mark_cancelled(&id(1));
        assert_eq!(all.admit(&id(1), 10).unwrap_err(), InFlightError::DuplicateId);
        drop(work);
        let work = all.admit(&id(1), 10).unwrap();
        drop(work);
        all.mark_cancelled(&id(1));
        all.admit(&id(1), 10).unwrap();
    }

    #[test]
    fn there_are_at_most_so_many() {
        let all = InFlightRequests::default();
        let work: Vec<_> = (0..MAX_REQUESTS).map(|number| all.admit(&id(number), 1).unwrap()).collect();
        assert_eq!(all.admit(&id(MAX_REQUESTS), 1).unwrap_err(), InFlightError::TooMany);
        all.mark_answered(&id(0));
        all.admit(&id(MAX_REQUESTS), 1).unwrap();
        drop(work);
    }

    #[test]
    fn there_are_at_most_so_many_bytes() {
        let all = InFlightRequests::default();
        all.admit(&id(1), MAX_BYTES).unwrap();
        assert_eq!(all.admit(&id(2), 1).unwrap_err(), InFlightError::TooMany);
        all.mark_answered(&id(1));
        all.admit(&id(2), 1).unwrap();
    }
}
