//! Approval queues: calls of a session run concurrently, and one of them asks at a time.
//!
//! Not here: waiting in a queue (`approval_turn.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Queues of all sessions that have a call in one.
#[derive(Debug, Default)]
pub(crate) struct ApprovalQueues(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

/// The right to ask, until it is dropped.
pub(crate) type ApprovalTurn = OwnedMutexGuard<()>;

impl ApprovalQueues {
    /// The queue of a session. It exists while a call waits in it.
    pub(crate) fn queue(&self, session: &str) -> Arc<AsyncMutex<()>> {
        let mut queues = self.0.lock();
        if let Some(queue) = queues.get(session).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(AsyncMutex::new(()));
        queues.insert(session.to_owned(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::ApprovalQueues;

    #[test]
    fn a_queue_exists_while_a_call_waits_in_it() {
        let turns = ApprovalQueues::default();
        let line = turns.queue("one");
        let other = turns.queue("two");
        assert!(Arc::ptr_eq(&line, &turns.queue("one")) && !Arc::ptr_eq(&line, &other));
        drop(other);
        drop(turns.queue("three"));
        let left = |turns: &ApprovalQueues| turns.0.lock().len();
        assert_eq!(left(&turns), 2);
        assert!(Arc::ptr_eq(&line, &turns.queue("one")));
        drop(line);
        drop(turns.queue("four"));
        assert_eq!(left(&turns), 1);
    }
}
