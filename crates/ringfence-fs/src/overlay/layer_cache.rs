//! Cache layers of wrapped programs: what they download and build, kept from run to run.
//!
//! Each cache of a toolchain has an overlay directory for each profile and workspace. The person's own cache lies below it
//! and is never written to, so a poisoned download stays with the programs of that profile in that workspace.
//!
//! Not here: the person's caches, and which of them a run has.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use ringfence_kernel::{CallContext, LayerDescription, ToolError};

use crate::overlay::kept_directory::{KeptDirectory, KeptDirectoryRecord};
use crate::path::name::escape;

/// The directory of the cache layers, below the state directory.
pub(super) const CACHES: &str = "caches";

const CACHE_PREFIX: &str = "c-";

/// The cache layers for a program that starts now.
pub(super) fn create_caches(
    caches: &OwnedFd,
    workspace: &str,
    about: &LayerDescription,
    cx: &CallContext<'_>,
) -> Result<Vec<KeptDirectory>, ToolError> {
    let layer = |path: &std::path::PathBuf| {
        let record = KeptDirectoryRecord {
            profile: about.profile.clone(),
            workspace: workspace.to_owned(),
            cache: Some(escape(path.as_os_str().as_bytes())),
            ..KeptDirectoryRecord::default()
        };
        KeptDirectory::acquire(caches, CACHE_PREFIX, &record, cx)
    };
    about.caches.iter().map(layer).collect()
}
