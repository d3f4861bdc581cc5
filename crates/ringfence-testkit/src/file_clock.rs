//! The clock of file times, which ticks every few milliseconds on many kernels.
//!
//! A file that is changed twice within one tick has the same times after both changes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::patience::wait_until;

/// Waits until a change of a file gets a later time than its last one.
///
/// # Panics
/// If the clock stands still, or the file is not there.
pub fn wait_for_tick(file: &Path) {
    let changed = |path: &Path| path.symlink_metadata().map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
    let last = changed(file);
    wait_until("the next tick of the file clock", || changed(tempfile::NamedTempFile::new().unwrap().path()) > last);
}
