//! What "at once" is: 100 ms of the program's own, and what a busy machine adds to that.
//!
//! A wait for a processor is nobody's work. So the bound is told by a control that runs right afterwards: a bare program is
//! started and ended ten times. On an idle machine that adds a few milliseconds, and never more than a third of a second.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that something cancelled may go on.
const OURS: Duration = Duration::from_millis(100);

const CONTROLS: usize = 10;

/// The most that a machine may add.
const MOST: Duration = Duration::from_millis(333);

/// Fails where a time is longer, on this machine as it is now.
#[track_caller]
pub(crate) fn check(what: &str, took: Duration) {
    let began = Instant::now();
    for _ in 0..CONTROLS {
        let mut bare = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        bare.kill().unwrap();
        bare.wait().unwrap();
    }
    let machine = began.elapsed();
    assert!(took <= OURS + machine.min(MOST), "{what}: it took {took:?}, and ten bare programs {machine:?}");
}
