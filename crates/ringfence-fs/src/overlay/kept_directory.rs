//! Kept directories of the layer store: overlay directories that outlive a run, such as those of a home directory.
//!
//! Programs of one profile in one workspace share one. It is locked while a program runs with it, so of two runs at once
//! the second gets another one. Its lock file is written to at the start and at the end of a run: that is when it was last
//! used.
//!
//! Not here: what it is for (`layer_home.rs`, `layer_cache.rs`), and when it is removed (`layer_collection.rs`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_kernel::{CallContext, ErrorKind, OverlayDirectories, ToolError};
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW};
use serde::{Deserialize, Serialize};

use crate::overlay::layer_record::{read_json, write_json};
use crate::overlay::store_directory::{
    LOCK, StoreLock, UPPER, WORK, errno_store_error, has_name, now_nanos, open_checked, store_error, try_lock,
};
use crate::overlay::tree_removal::remove_tree;
use crate::read::digest::content_id;
use crate::root::stat;
use crate::sys::own_files::{open_own_file, open_private_dir};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fstat, futimens};

const ABOUT: &str = "about.json";
const ABOUT_NEW: &str = "about.new";

/// Programs of one profile that run in one workspace at once.
const MOST_AT_ONCE: usize = 64;

/// The description of a kept directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptDirectoryRecord {
    pub(super) profile: String,
    pub(super) workspace: String,
    /// Path of the cache below the home directory, escaped. None for a home directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cache: Option<String>,
    /// Time at which it was made, in nanoseconds since 1970.
    #[serde(default)]
    pub(super) used: u64,
}

/// A kept directory that a program runs with.
#[derive(Debug)]
pub(super) struct KeptDirectory {
    pub(super) directory: OwnedFd,
    pub(super) overlay: OverlayDirectories,
    lock: StoreLock,
}

impl KeptDirectory {
    /// One that no other program runs with, by what it is for. Made if there is none.
    pub(super) fn acquire(
        parent: &OwnedFd,
        prefix: &str,
        record: &KeptDirectoryRecord,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        for name in record.names(prefix) {
            let directory = open_checked(parent, name.as_bytes())?;
            let Some(lock) = try_lock(&directory)? else { continue };
            if !has_name(parent, name.as_bytes(), &directory)? {
                continue;
            }
            if KeptDirectoryRecord::load(&directory).is_none() {
                let record = KeptDirectoryRecord { used: now_nanos(), ..record.clone() };
                write_json(&directory, [ABOUT_NEW, ABOUT], &record).map_err(store_error)?;
            }
            // The overlay takes a work directory of an earlier run only if it is empty.
            remove_tree(directory.as_fd(), WORK, cx)?;
            let upper = open_private_dir(&directory, UPPER).map_err(errno_store_error)?;
            let work = open_private_dir(&directory, WORK).map_err(errno_store_error)?;
            let kept = Self { directory, overlay: OverlayDirectories { upper, work }, lock };
            kept.mark_used();
            return Ok(kept);
        }
        let message = format!("{MOST_AT_ONCE} programs with this profile run in this workspace already");
        Err(ToolError::new(ErrorKind::Unavailable, message))
    }

    /// Those that no program runs with now, each with its lock.
    pub(super) fn idle(
        parent: &OwnedFd,
        prefix: &str,
        record: &KeptDirectoryRecord,
    ) -> Result<Vec<(OwnedFd, StoreLock)>, ToolError> {
        let mut found = Vec::new();
        for name in record.names(prefix) {
            if stat(parent.as_fd(), name.as_bytes()).map_err(errno_store_error)?.is_none() {
                continue;
            }
            let directory = open_checked(parent, name.as_bytes())?;
            let Some(lock) = try_lock(&directory)? else { continue };
            if has_name(parent, name.as_bytes(), &directory)? {
                found.push((directory, lock));
            }
        }
        Ok(found)
    }

    /// Says that a program used it just now.
    pub(super) fn mark_used(&self) {
        let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // Without it, the directory only seems older than it is.
        let _ = futimens(&self.lock, &Timestamps { last_access: now(), last_modification: now() });
    }
}

impl KeptDirectoryRecord {
    /// Names of the directories for this: the second is used where a program runs with the first, and so on.
    fn names(&self, prefix: &str) -> impl Iterator<Item = String> {
        let cache = self.cache.iter().map(|path| format!("\0{path}")).collect::<String>();
        let key = content_id(format!("{}\0{}{cache}", self.profile, self.workspace).as_bytes());
        let key = format!("{prefix}{}", &key[..16]);
        (1..=MOST_AT_ONCE).map(move |number| if number == 1 { key.clone() } else { format!("{key}-{number}") })
    }

    /// The record in a kept directory. None if it cannot be read.
    pub(super) fn load(directory: &OwnedFd) -> Option<Self> {
        read_json(directory, ABOUT).ok()
    }

    /// Time at which the directory was last used, in nanoseconds since 1970.
    pub(super) fn last_used(&self, directory: &OwnedFd) -> u64 {
        let lock = open_own_file(directory, Path::new(LOCK), OFlags::empty()).and_then(fstat);
        let touched = lock.map_or(0, |found| u64::try_from(FileStat::from_stat(&found).modified).unwrap_or_default());
        self.used.max(touched)
    }
}
