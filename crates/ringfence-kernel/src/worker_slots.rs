//! Fair scheduling of calls on workers, by principal.
//!
//! A principal has at most three quarters of the workers, so that one with many long calls leaves some to the others. A
//! free worker goes to the waiting principal that has the fewest, and among equals to the call that waits longest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard};

use crate::sync::Mutex;

use tokio::sync::oneshot;

/// The workers for one kind of call.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSlots {
    total: usize,
    state: Arc<Mutex<SlotQueue>>,
}

#[derive(Debug, Default)]
struct SlotQueue {
    /// Number of busy workers, for each principal that has some.
    busy: BTreeMap<String, usize>,
    waiting: VecDeque<(String, oneshot::Sender<WorkerSlot>)>,
}

/// One worker, until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    slots: WorkerSlots,
    principal: String,
}

impl WorkerSlots {
    pub(crate) fn new(total: usize) -> Self {
        Self { total: total.max(1), state: Arc::default() }
    }

    /// Waits for a worker.
    pub(crate) async fn acquire(&self, principal: &str) -> Option<WorkerSlot> {
        let (sender, slot) = oneshot::channel();
        self.lock().waiting.push_back((principal.to_owned(), sender));
        self.assign();
        slot.await.ok()
    }

    /// Gives free workers to calls that wait.
    fn assign(&self) {
        while let Some((principal, sender)) = self.next_waiting() {
            // A caller that is gone drops its slot here, which frees the worker.
            let _ = sender.send(WorkerSlot { slots: self.clone(), principal });
        }
    }

    /// The call that is next, whose worker counts as busy from now on. `None` where all have to wait.
    fn next_waiting(&self) -> Option<(String, oneshot::Sender<WorkerSlot>)> {
        let mut queue = self.lock();
        queue.waiting.retain(|(_, sender)| !sender.is_closed());
        if queue.busy.values().sum::<usize>() >= self.total {
            return None;
        }
        let busy = |principal: &String| queue.busy.get(principal).copied().unwrap_or_default();
        let share = self.total - self.total / 4;
        let waiting = queue.waiting.iter().map(|(principal, _)| busy(principal)).enumerate();
        let (next, _) = waiting.filter(|(_, busy)| *busy < share).min_by_key(|(_, busy)| *busy)?;
        let (principal, sender) = queue.waiting.remove(next)?;
        *queue.busy.entry(principal.clone()).or_default() += 1;
        Some((principal, sender))
    }

    /// No invariant spans two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, SlotQueue> {
        self.state.lock()
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        {
            let mut queue = self.slots.lock();
            if let Some(count) = queue.busy.get_mut(&self.principal) {
                *count -= 1;
                if *count == 0 {
                    queue.busy.remove(&self.principal);
                }
            }
        }
        self.slots.assign();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::{WorkerSlot, WorkerSlots};

    type Acquiring<'a> = Pin<Box<dyn Future<Output = Option<WorkerSlot>> + 'a>>;

    fn start<'a>(slots: &'a WorkerSlots, principal: &'a str) -> Acquiring<'a> {
        let mut acquiring: Acquiring<'a> = Box::pin(slots.acquire(principal));
        if let Poll::Ready(slot) = acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Box::pin(async move { slot });
        }
        acquiring
    }

    fn poll(acquiring: &mut Acquiring<'_>) -> Option<WorkerSlot> {
        match acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => slot,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_principal_leaves_a_quarter_of_the_workers_to_others() {
        let slots = WorkerSlots::new(16);
        let mut greedy: Vec<_> = (0..40).map(|_| start(&slots, "greedy")).collect();
        let held: Vec<WorkerSlot> = greedy.iter_mut().filter_map(poll).collect();
        assert_eq!(held.len(), 12);
        let mut others: Vec<_> = (0..5).map(|_| start(&slots, "other")).collect();
        assert_eq!(others.iter_mut().filter_map(poll).count(), 5, "each is free again after its call");
    }

    #[test]
    fn a_free_worker_goes_to_the_principal_with_the_fewest() {
        let slots = WorkerSlots::new(4);
        let mut a: Vec<_> = (0..9).map(|_| start(&slots, "a")).collect();
        let mut held: Vec<WorkerSlot> = a[..3].iter_mut().filter_map(poll).collect();
        held.extend(poll(&mut start(&slots, "b")));
        assert_eq!(held.len(), 4);
        let (mut b, mut c, gone) = (start(&slots, "b"), start(&slots, "c"), start(&slots, "d"));
        drop(gone);
        assert!(poll(&mut b).is_none() && poll(&mut c).is_none() && poll(&mut a[3]).is_none());
        held.remove(0);
        let c = poll(&mut c);
        assert!(c.is_some() && poll(&mut b).is_none() && poll(&mut a[3]).is_none());
        held.remove(0);
        let longest = poll(&mut a[3]);
        assert!(longest.is_some() && poll(&mut b).is_none(), "both have one, and `a` waits longer");
        held.pop();
        let b = poll(&mut b);
        assert!(b.is_some() && poll(&mut a[4]).is_none(), "`b` has none, although `a` waits longer");
    }

    #[test]
    fn few_workers_are_all_for_one_principal() {
        for workers in [0, 1, 2, 3] {
            let slots = WorkerSlots::new(workers);
            let mut all: Vec<_> = (0..5).map(|_| start(&slots, "only")).collect();
            let held: Vec<WorkerSlot> = all.iter_mut().filter_map(poll).collect();
            assert_eq!(held.len(), workers.max(1));
        }
    }
}
