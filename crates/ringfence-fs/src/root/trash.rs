//! Two-phase deletion: rename away in one step, then remove the contents.
//!
//! Once the name is gone the thing is gone for everybody; taking it apart can then take its time. What is taken
//! apart is what was seen before: if something else had come to stand there, it gets its name back.

use std::os::fd::BorrowedFd;

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::path::name::{TEMP_PREFIX, escape};
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep};
use crate::root::{MountRoot, rename_noreplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileId, FileKind};
use crate::sys::syscall::unlinkat;

/// Takes a name away from `id`, and gives it another one that nobody sees.
pub(crate) fn rename_aside(
    from: (BorrowedFd<'_>, &[u8]),
    to: (BorrowedFd<'_>, &[u8]),
    id: FileId,
    shown: &str,
) -> Result<(), ToolError> {
    let conflict = || {
        let message = format!("`{shown}` was replaced concurrently by another program; nothing was changed");
        ToolError::new(ErrorKind::Conflict, message)
    };
    match rename_noreplace(from, to) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Err(conflict()),
        Err(errno) => return Err(errno_error(errno, shown)),
    }
    match stat(to.0, to.1) {
        Ok(Some(moved)) if moved.id == id => Ok(()),
        _ => match rename_noreplace(to, from) {
            Ok(()) => Err(conflict()),
            // The name was taken again meanwhile. What has ours now would be out of everybody's sight.
            Err(_) => {
                let copy = rename_visible(from.0, to).map_err(|errno| errno_error(errno, shown))?;
                let hint = format!("the previous file was kept as `{copy}` beside it");
                Err(conflict().hint(&hint).detail("conflictCopy", copy))
            }
        },
    }
}

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

/// Gives something a name in `parent` that everybody sees.
pub(crate) fn rename_visible(parent: BorrowedFd<'_>, from: (BorrowedFd<'_>, &[u8])) -> Result<String, Errno> {
    let name = from.1.strip_prefix(TEMP_PREFIX.as_bytes()).unwrap_or(from.1);
    let kept = format!("conflict-{}", String::from_utf8_lossy(name));
    rename_noreplace(from, (parent, kept.as_bytes()))?;
    Ok(kept)
}

/// Gives something that is not ours to remove, but has a temporary name of ours, a name that everybody sees.
pub(crate) fn rename_to_conflict(parent: BorrowedFd<'_>, name: &[u8]) -> Result<String, Errno> {
    if name.starts_with(TEMP_PREFIX.as_bytes()) { rename_visible(parent, (parent, name)) } else { Ok(escape(name)) }
}
