//! Conditions of what is kept about a whole mount between calls: what it depends on besides the entries of directories.
//!
//! While they are the same, the same entries are judged alike, and changes of entries are reported by watches.
//!
//! Not here: the watches (`root/watched_directories.rs`), and what is kept.

use ringfence_kernel::{CallContext, PolicyRevision};

use crate::mount::Mount;
use crate::sys::directory_watch::mounts_below;

/// The conditions of one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeConditions {
    /// Nothing where the host works for itself: then no policy decides.
    policy: Option<PolicyRevision>,
    /// Links that make paths sensitive.
    directory_links: usize,
    /// The part of the mount table that lies in the workspace.
    mounts: Vec<u8>,
    walk_entries: u64,
}

impl TreeConditions {
    /// Nothing where nothing can be kept. `root` is the path of the mount on the host.
    pub(crate) fn now(mount: &Mount, root: &[u8], cx: &CallContext<'_>) -> Option<Self> {
        let policy = match cx.origin() {
            None => None,
            Some(_) => Some(cx.policy_revision()?),
        };
        // Only a local file system reports what others change.
        let mounts = mount.supports_non_blocking.then(|| mounts_below(root))?.ok()?;
        let directory_links = mount.sensitive_files.linked().count();
        Some(Self { policy, directory_links, mounts, walk_entries: cx.limits.walk_entries })
    }
}
