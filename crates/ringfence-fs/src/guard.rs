//! Content guards: rules about the contents of single files.
//!
//! A guard belongs to a mount, so no tool and no dialect gets around it. Every change of a guarded file shows its rule
//! what is there and what shall be there instead, under the lock of that file and before anything is on disk.
//!
//! Not here: what a rule wants. `ringfence-crewagent` has one.

use std::fmt;
use std::sync::Arc;

use ringfence_kernel::ToolError;

/// Judges the contents of one file.
pub trait ChangeRule: Send + Sync + fmt::Debug {
    /// Fails where the change must not be.
    fn judge(&self, change: &GuardedChange<'_>) -> Result<(), ToolError>;
}

/// A pending change to a guarded file.
#[derive(Clone, Copy, Debug)]
pub struct GuardedChange<'a> {
    /// The file, as replies spell it.
    pub shown: &'a str,
    /// Current contents.
    pub before: Option<&'a [u8]>,
    /// Contents after the change; `None` if the file is to be deleted.
    pub after: Option<&'a [u8]>,
    /// A person saw this change and approved it.
    pub by_person: bool,
}

/// A file of a mount, and the rule about it.
#[derive(Clone, Debug)]
pub(crate) struct GuardedFile {
    /// Below the root.
    pub(crate) path: Vec<u8>,
    pub(crate) rule: Arc<dyn ChangeRule>,
}
