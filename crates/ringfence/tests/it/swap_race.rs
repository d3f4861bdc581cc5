//! Two files that are swapped for each other while a program uses them, such as a directory and a link out.
//!
//! Both names exist at any time: the kernel exchanges them in one step. How long each state lasts differs from step to
//! step, from nothing to as long as a program takes between two lookups of a path, and in between the paths are left
//! alone: constant swapping would keep every lookup from succeeding, and so from losing a race.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// The longest state, in microseconds.
const LONGEST: u64 = 400;

/// Swaps until it is dropped.
#[derive(Debug)]
pub(crate) struct PathSwapper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PathSwapper {
    pub(crate) fn start(one: PathBuf, other: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut last = 1;
            while !told.load(Ordering::Relaxed) {
                // Whatever is in the way of one step, the next ones go on.
                let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
                last = next(last);
                match last % 4 {
                    0 => std::thread::yield_now(),
                    _ => std::thread::sleep(Duration::from_micros(last % LONGEST)),
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for PathSwapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Numbers in no order that a program could fall in step with.
fn next(number: u64) -> u64 {
    let number = number ^ number << 13;
    let number = number ^ number >> 7;
    number ^ number << 17
}
