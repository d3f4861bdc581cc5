//! Group commit of directories: one flush for concurrent changes of the entries of one directory.
//!
//! A change that comes while its directory is being flushed waits for the next flush, which one of the waiting calls makes
//! for all of them. That flush begins after each of them made its change. If it fails, every call that shares it fails, and
//! nothing is flushed again for them.
//!
//! Not here: which directories a change has to flush (`txn/run.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use ringfence_kernel::sync::{Condvar, Mutex};
use rustix::io::Errno;

use crate::sys::stat::FileId;

/// The directories of a mount that are being flushed.
#[derive(Debug, Default)]
pub(crate) struct DirectoryFlushes {
    running: Mutex<HashMap<FileId, DirectoryFlushQueue>>,
    /// A flush ended, of whatever directory.
    is_done: Condvar,
}

/// What waits for the end of a flush.
#[derive(Debug, Default)]
struct DirectoryFlushQueue {
    /// The calls of the next one, if there are any.
    next: Option<Arc<DirectoryFlushGroup>>,
    /// The flush ended, and a call of the next group has not begun with that yet.
    is_idle: bool,
}

/// The calls that share a flush.
#[derive(Debug, Default)]
struct DirectoryFlushGroup {
    outcome: Mutex<Option<Result<(), Errno>>>,
}

impl DirectoryFlushes {
    /// Flushes a directory that the caller holds open, by `flush` or by that of another call that begins after this one
    /// came.
    pub(crate) fn flush(&self, directory: FileId, flush: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let group = {
            let mut running = self.running.lock();
            match running.get_mut(&directory) {
                None => {
                    running.insert(directory, DirectoryFlushQueue::default());
                    drop(running);
                    return DirectoryFlush { flushes: self, directory, group: None }.run(flush);
                }
                Some(queue) => Arc::clone(queue.next.get_or_insert_default()),
            }
        };
        let mut running = self.running.lock();
        loop {
            if let Some(outcome) = *group.outcome.lock() {
                return outcome;
            }
            if let Some(queue) = running.get_mut(&directory)
                && queue.is_idle
                && queue.next.as_ref().is_some_and(|next| Arc::ptr_eq(next, &group))
            {
                // Who comes from now on is in the group after this one.
                *queue = DirectoryFlushQueue::default();
                drop(running);
                return DirectoryFlush { flushes: self, directory, group: Some(group) }.run(flush);
            }
            running = self.is_done.wait(running);
        }
    }
}

/// A flush that is under way. It ends even if it panics, so that no call waits for ever.
struct DirectoryFlush<'a> {
    flushes: &'a DirectoryFlushes,
    directory: FileId,
    /// The calls that wait for it.
    group: Option<Arc<DirectoryFlushGroup>>,
}

impl DirectoryFlush<'_> {
    fn run(self, flush: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let outcome = flush();
        if let Some(group) = &self.group {
            *group.outcome.lock() = Some(outcome);
        }
        outcome
    }
}

impl Drop for DirectoryFlush<'_> {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            group.outcome.lock().get_or_insert(Err(Errno::IO));
        }
        let mut running = self.flushes.running.lock();
        let is_awaited = match running.get_mut(&self.directory) {
            Some(queue) if queue.next.is_some() => {
                queue.is_idle = true;
                true
            }
            _ => {
                running.remove(&self.directory);
                self.group.is_some()
            }
        };
        drop(running);
        if is_awaited {
            self.flushes.is_done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{Scope, ScopedJoinHandle, scope};

    use super::*;

    const DIRECTORY: FileId = FileId { device: 1, inode: 2 };
    const OTHER: FileId = FileId { device: 1, inode: 3 };

    /// A flush on a thread of its own.
    type FlushThread<'s> = ScopedJoinHandle<'s, Result<(), Errno>>;

    /// Starts a flush that ends when it is told to.
    fn held_flush<'s>(
        scope: &'s Scope<'s, '_>,
        flushes: &'s DirectoryFlushes,
    ) -> (FlushThread<'s>, Sender<Result<(), Errno>>) {
        let (end, ended) = channel();
        let (begin, begun): (Sender<()>, Receiver<()>) = channel();
        let flush = move || {
            begin.send(()).unwrap();
            ended.recv().unwrap()
        };
        let handle = scope.spawn(move || flushes.flush(DIRECTORY, flush));
        begun.recv().unwrap();
        (handle, end)
    }

    /// Starts calls that wait for the flush that is under way, and returns when all of them do.
    fn waiting_calls<'s>(
        scope: &'s Scope<'s, '_>,
        flushes: &'s DirectoryFlushes,
        calls: usize,
        flush: impl Fn() -> Result<(), Errno> + Clone + Send + 's,
    ) -> Vec<FlushThread<'s>> {
        let start = |_| {
            let flush = flush.clone();
            scope.spawn(move || flushes.flush(DIRECTORY, flush))
        };
        let handles = (0..calls).map(start).collect();
        // One reference is the queue's.
        let waiting = || {
            let running = flushes.running.lock();
            running.get(&DIRECTORY).and_then(|queue| queue.next.as_ref()).map_or(0, |next| Arc::strong_count(next) - 1)
        };
        while waiting() < calls {
            std::thread::yield_now();
        }
        handles
    }

    #[test]
    fn calls_that_wait_for_a_flush_share_the_next() {
        let (flushes, count) = (DirectoryFlushes::default(), AtomicUsize::new(0));
        scope(|scope| {
            let (first, end) = held_flush(scope, &flushes);
            let counted = || {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            let calls = waiting_calls(scope, &flushes, 5, counted);
            assert_eq!(count.load(Ordering::Relaxed), 0, "a flush that began before is not theirs");
            assert_eq!(flushes.flush(OTHER, || Ok(())), Ok(()), "another directory does not wait");
            end.send(Ok(())).unwrap();
            assert!(calls.into_iter().all(|call| call.join().unwrap() == Ok(())));
            assert_eq!(first.join().unwrap(), Ok(()));
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(flushes.running.lock().is_empty());
    }

    #[test]
    fn a_failed_flush_fails_the_calls_that_share_it_and_no_others() {
        let (flushes, count) = (DirectoryFlushes::default(), AtomicUsize::new(0));
        scope(|scope| {
            let (first, end) = held_flush(scope, &flushes);
            let failing = || {
                count.fetch_add(1, Ordering::Relaxed);
                Err(Errno::IO)
            };
            let calls = waiting_calls(scope, &flushes, 4, failing);
            end.send(Err(Errno::NOSPC)).unwrap();
            assert_eq!(first.join().unwrap(), Err(Errno::NOSPC));
            assert!(calls.into_iter().all(|call| call.join().unwrap() == Err(Errno::IO)));
        });
        assert_eq!(count.load(Ordering::Relaxed), 1, "it is not repeated");
        assert_eq!(flushes.flush(DIRECTORY, || Ok(())), Ok(()));
    }

    #[test]
    fn a_flush_that_panics_fails_the_calls_that_share_it() {
        let flushes = DirectoryFlushes::default();
        scope(|scope| {
            let (first, end) = held_flush(scope, &flushes);
            let calls = waiting_calls(scope, &flushes, 3, || panic!("in the flush"));
            end.send(Ok(())).unwrap();
            assert_eq!(first.join().unwrap(), Ok(()));
            let results: Vec<_> = calls.into_iter().map(ScopedJoinHandle::join).collect();
            assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
            assert!(results.into_iter().flatten().all(|result| result == Err(Errno::IO)));
        });
        assert!(flushes.running.lock().is_empty());
    }
}
