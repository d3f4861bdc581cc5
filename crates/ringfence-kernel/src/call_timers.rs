//! Timer pool: the deadline of a call on a timer that an earlier call had.
//!
//! A new timer wakes the runtime, which then finds out when it has to wake up next; one that is set to a later time does not. Calls of a
//! session have the same time limit, so that each deadline is later than the one before.
//!
//! Not here: what happens at a deadline (`worker.rs`).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::time::{Instant, Sleep, sleep};

use crate::sync::Mutex;

/// More timers are not kept: more calls at once are rare.
const MOST_KEPT: usize = 32;

/// Timers of calls that ended.
#[derive(Debug, Default)]
pub(crate) struct CallTimers(Mutex<Vec<KeptTimer>>);

/// A timer, and the runtime that wakes it.
#[derive(Debug)]
struct KeptTimer {
    runtime: runtime::Id,
    sleep: Pin<Box<Sleep>>,
}

/// A deadline. It is ready when that has passed.
#[derive(Debug)]
pub(crate) struct CallTimer<'a> {
    timers: &'a CallTimers,
    /// Taken when this is dropped.
    timer: Option<KeptTimer>,
}

impl CallTimers {
    /// A deadline after this time.
    pub(crate) fn start(&self, limit: Duration) -> CallTimer<'_> {
        let runtime = Handle::current().id();
        let kept = {
            let mut kept = self.0.lock();
            // Nothing wakes a timer of a runtime that ended.
            kept.retain(|timer| timer.runtime == runtime);
            kept.pop()
        };
        let timer = match (kept, Instant::now().checked_add(limit)) {
            (Some(mut kept), Some(deadline)) => {
                kept.sleep.as_mut().reset(deadline);
                kept
            }
            _ => KeptTimer { runtime, sleep: Box::pin(sleep(limit)) },
        };
        CallTimer { timers: self, timer: Some(timer) }
    }
}

impl Future for CallTimer<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Some(timer) => timer.sleep.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        let mut kept = self.timers.0.lock();
        // One that is over is as much work as a new one.
        let timer = self.timer.take().filter(|timer| kept.len() < MOST_KEPT && !timer.sleep.is_elapsed());
        kept.extend(timer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn kept(timers: &CallTimers) -> usize {
        timers.0.lock().len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_timer_has_the_deadline_of_the_call_that_has_it_now() {
        let timers = CallTimers::default();
        for limit in [MINUTE, MINUTE * 2, Duration::from_secs(1), MINUTE] {
            let unused = timers.start(limit / 2);
            tokio::select! {
                biased;
                () = unused => panic!("it is not over yet"),
                () = std::future::ready(()) => {}
            }
            assert_eq!(kept(&timers), 1);
            let started = Instant::now();
            timers.start(limit).await;
            assert_eq!(started.elapsed().as_secs(), limit.as_secs());
            assert_eq!(kept(&timers), 0, "it is over");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_calls_have_a_timer_each() {
        let timers = CallTimers::default();
        let many: Vec<_> = (0..MOST_KEPT + 8).map(|_| timers.start(MINUTE)).collect();
        assert_eq!(kept(&timers), 0);
        drop(many);
        assert_eq!(kept(&timers), MOST_KEPT);
        drop(timers.start(MINUTE));
        assert_eq!(kept(&timers), MOST_KEPT);
    }

    #[test]
    fn a_timer_of_a_runtime_that_ended_is_not_used() {
        let timers = CallTimers::default();
        for _ in 0..2 {
            let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                timers.start(MINUTE).await;
                tokio::select! {
                    biased;
                    () = timers.start(MINUTE) => panic!("it is not over yet"),
                    () = std::future::ready(()) => {}
                }
            });
            assert_eq!(kept(&timers), 1);
        }
    }
}
