//! Two-phase deletion: rename away in one step, then remove the contents.
//!
//! Once the name is gone the entry is deleted for every reader; removing its contents can then take its time. Only the
//! entry that was seen before is removed: another that replaced it gets its name back.

use std::os::fd::BorrowedFd;

use ringfence_kernel::{CallContext, ToolError};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::path::name::{TEMP_PREFIX, escape};
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep};
use crate::root::{MountRoot, rename_noreplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::stat::FileKind;
use crate::sys::syscall::unlinkat;

/// Removes what stands at a name, with everything in it. Links go, what they lead to stays.
pub(crate) fn purge(
    mount: &MountRoot,
    parent: BorrowedFd<'_>,
    name: &[u8],
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let shown = escape(name);
    let fail = |errno| errno_error(errno, &shown);
    let Some(found) = stat(parent, name).map_err(fail)? else { return Ok(()) };
    if found.kind != FileKind::Directory {
        return unlinkat(parent, name, AtFlags::empty()).map_err(fail);
    }
    let start = mount.resolver.open_child(parent, name).map_err(fail)?;
    let mut walk = TreeWalk::with_temp_visibility(TempVisibility::Visible, mount, start, &shown, cx)?;
    while let Some(step) = walk.next()? {
        match step {
            WalkStep::Entry(entry) if walk.is_directory(&entry)? => walk.descend(&entry)?.map_err(fail)?,
            WalkStep::Entry(entry) => {
                unlinkat(walk.directory()?, entry.name.as_slice(), AtFlags::empty()).map_err(fail)?
            }
            WalkStep::Leave(name) => unlinkat(walk.directory()?, name.as_slice(), AtFlags::REMOVEDIR).map_err(fail)?,
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(fail)
}

/// Gives an entry a visible name in `parent`.
pub(crate) fn rename_visible(parent: BorrowedFd<'_>, from: (BorrowedFd<'_>, &[u8])) -> Result<String, Errno> {
    let name = from.1.strip_prefix(TEMP_PREFIX.as_bytes()).unwrap_or(from.1);
    let kept = format!("conflict-{}", String::from_utf8_lossy(name));
    rename_noreplace(from, (parent, kept.as_bytes()))?;
    Ok(kept)
}
