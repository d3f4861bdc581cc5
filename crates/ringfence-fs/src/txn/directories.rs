//! Directories of a transaction's steps, found by inode where they were moved.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};

use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode, ToolError};

use crate::mount::Mount;
use crate::root::walk::{TreeWalk, WalkStep};
use crate::root::{open_parent, reopen_for_listing};
use crate::sys::errno::errno_error;
use crate::sys::stat::FileStat;
use crate::sys::syscall::fstat;

/// The directories that the steps of a batch were made in, wherever they are by now.
#[derive(Debug)]
pub(crate) struct TxnDirectories<'a> {
    pub(crate) mount: &'a Mount,
    /// Paths of directories that were searched for, below the root. `None` for those that are gone.
    found: RefCell<HashMap<u64, Option<Vec<u8>>>>,
}

impl<'a> TxnDirectories<'a> {
    pub(crate) fn new(mount: &'a Mount) -> Self {
        Self { mount, found: RefCell::default() }
    }

    /// The directory with this inode, which was at this path once. Where no inode was noted, the path has to do.
    pub(crate) fn open(&self, path: &[u8], inode: Option<u64>) -> Result<Option<OwnedFd>, ToolError> {
        let is_it = |fd: &OwnedFd| {
            inode.is_none_or(|inode| fstat(fd).is_ok_and(|stat| FileStat::from_stat(&stat).id.inode == inode))
        };
        let named = open_parent(self.mount, path).filter(is_it);
        let (Some(inode), None) = (inode, &named) else { return Ok(named) };
        let known = self.found.borrow().get(&inode).cloned();
        let place = match known {
            Some(place) => place,
            None => {
                let place = find_directory(self.mount, inode)?;
                self.found.borrow_mut().insert(inode, place.clone());
                place
            }
        };
        Ok(place.and_then(|path| open_parent(self.mount, &path)).filter(is_it))
    }
}

/// Searches the whole mount for a directory. That is bounded, and rarely done.
fn find_directory(mount: &Mount, inode: u64) -> Result<Option<Vec<u8>>, ToolError> {
    let (signal, limits) =
        (CallCommitState::new(), CallLimits { walk_entries: u64::MAX, ..CallLimits::for_dialect(Dialect::Standard) });
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    let start = reopen_for_listing(mount.root.as_fd()).map_err(|errno| errno_error(errno, "."))?;
    let mut walk = TreeWalk::new(mount, start, ".", &cx)?;
    while let Some(step) = walk.next()? {
        let WalkStep::Entry(entry) = step else { continue };
        if !walk.is_directory(&entry)? {
            continue;
        }
        if walk.stat(&entry)?.is_some_and(|found| found.id.inode == inode && found.id.device == mount.id.device) {
            return Ok(Some(walk.path_of(&entry.name)));
        }
        // Directories that cannot be entered are skipped.
        let _ = walk.descend(&entry)?;
    }
    Ok(None)
}
