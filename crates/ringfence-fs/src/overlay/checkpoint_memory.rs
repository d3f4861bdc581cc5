//! Checkpoint memory: what the last checkpoint of a running program found, so that the next one reads less.
//!
//! A stat cache has the files that were the same in the layer and the workspace when both were last read. A file that changed
//! after a comparison began is not in it, so that a later change at the same tick of the clock is not missed. What a program
//! writes to memory that it shares with a file may be: the comparison after its end uses no cache.
//!
//! Not here: the comparison (`compare.rs`).

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ErrorKind, ToolError};
use rustix::time::{ClockId, clock_gettime};

use crate::sys::stat::FileStat;

/// What a comparison of a layer needs whose program runs.
#[derive(Clone, Debug)]
pub(super) struct LiveComparison {
    /// When it began, in nanoseconds since 1970.
    pub(super) began: i128,
    pub(super) memory: Arc<CheckpointMemory>,
    /// The directory of the layer.
    pub(super) layer: Arc<OwnedFd>,
}

impl LiveComparison {
    /// One that begins now, of the layer in a directory.
    pub(super) fn begin(directory: &OwnedFd, memory: &Arc<CheckpointMemory>) -> Result<Self, ToolError> {
        let layer = directory.try_clone().map_err(|_| ToolError::new(ErrorKind::Io, "too many open files"))?;
        Ok(Self { began: now_by_coarse_clock(), memory: Arc::clone(memory), layer: Arc::new(layer) })
    }
}

/// The time that files which change now get: those that changed before have an earlier one or this one.
fn now_by_coarse_clock() -> i128 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// Both sides of a file, as they were when their contents and permissions were the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EqualStats {
    pub(super) upper: FileStat,
    pub(super) lower: FileStat,
}

impl EqualStats {
    /// Whether neither side changed since a time.
    pub(super) fn is_before(&self, time: i128) -> bool {
        self.upper.changed < time && self.lower.changed < time
    }
}

/// What the last checkpoint found, by path.
#[derive(Debug, Default)]
pub(crate) struct CheckpointMemory {
    equal: Mutex<HashMap<Vec<u8>, EqualStats>>,
    /// What the program removed, and the workspace still had.
    going: Mutex<HashSet<Vec<u8>>>,
}

impl CheckpointMemory {
    pub(super) fn is_equal(&self, path: &[u8], stats: &EqualStats) -> bool {
        self.equal.lock().get(path) == Some(stats)
    }

    pub(super) fn replace_equal(&self, found: HashMap<Vec<u8>, EqualStats>) {
        *self.equal.lock() = found;
    }

    /// Returns what was going at the checkpoint before.
    pub(super) fn replace_going(&self, found: HashSet<Vec<u8>>) -> HashSet<Vec<u8>> {
        std::mem::replace(&mut *self.going.lock(), found)
    }
}
