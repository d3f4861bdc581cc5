//! Mounted overlay of a wrapped program, as the host holds it.
//!
//! The init process of the jail hands out the root of the overlay and a configuration of its mount while it still has the
//! right to. To reconfigure a mount without a change makes the kernel drop the entries that it caches of it, and the host
//! may do that: the user namespace of the jail is below its own.
//!
//! Not here: when that is done. The implementation of `LowerSync` knows.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::OverlayMount;
use rustix::mount::fsconfig_reconfigure;

/// The overlay on the workspace of a program that runs.
#[derive(Debug)]
pub struct MountedOverlay {
    root: OwnedFd,
    /// From `fspick`.
    configuration: OwnedFd,
}

impl MountedOverlay {
    pub(crate) fn new(root: OwnedFd, configuration: OwnedFd) -> Self {
        Self { root, configuration }
    }
}

impl OverlayMount for MountedOverlay {
    fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn drop_cached_entries(&self) -> io::Result<()> {
        Ok(fsconfig_reconfigure(&self.configuration)?)
    }
}
