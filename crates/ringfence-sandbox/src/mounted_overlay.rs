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
use rustix::fs::{Gid, RenameFlags, Uid, fstat, renameat_with};
use rustix::io::Errno;
use rustix::mount::fsconfig_reconfigure;
use rustix::process::geteuid;
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

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

    fn rename_entry(&self, directory: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> io::Result<()> {
        let root = fstat(&self.root)?;
        let _identity = ThreadIdentity::take(Uid::from_raw(root.st_uid), Gid::from_raw(root.st_gid))?;
        Ok(renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE)?)
    }
}

/// The identity of a user on this thread, until it is dropped. Root is not in the user namespace of the overlay, where the kernel makes
/// an entry for what is renamed away.
struct ThreadIdentity {
    is_changed: bool,
}

impl ThreadIdentity {
    fn take(user: Uid, group: Gid) -> Result<Self, Errno> {
        let mut identity = Self { is_changed: false };
        if geteuid().is_root() {
            // The saved one stays, by which it comes back.
            identity.is_changed = true;
            set_thread_res_gid(None, group, None)?;
            set_thread_res_uid(None, user, None)?;
        }
        Ok(identity)
    }
}

impl Drop for ThreadIdentity {
    fn drop(&mut self) {
        if self.is_changed {
            let _ = set_thread_res_uid(None, Uid::ROOT, None);
            let _ = set_thread_res_gid(None, Gid::ROOT, None);
        }
    }
}
