//! The time after which an event that a test waits for is taken to be missing.
//!
//! It guards against a test that waits forever, and says nothing about how long something may take: the machine may be slow,
//! and many tests run at once.

use std::time::{Duration, Instant};

/// After this an event is taken to be missing.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Looks again and again for something that no event announces, such as the end of another process.
///
/// # Panics
/// If it is still missing when patience ends.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "still missing after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until something holds that no event announces.
///
/// # Panics
/// If it does not hold when patience ends.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}
