//! Processor share: a measure of time that a busy machine stretches.
//!
//! On an idle machine it is the time that passes. Where others want the processor too, it is the part of that time that one
//! busy thread gets, so a limit means the same on both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// CPU time of the calling thread so far. Other threads and programs do not add to it.
///
/// # Panics
/// If the kernel does not tell.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// A measurement, from `start` to `end`.
#[derive(Debug)]
pub struct CpuShare {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl CpuShare {
    /// Starts a thread that is busy until `end`.
    #[must_use]
    pub fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            thread_cpu_time()
        });
        Self { is_over, thread }
    }

    /// The time that the thread was given.
    ///
    /// # Panics
    /// If the kernel does not tell.
    #[must_use]
    pub fn end(self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
