//! Making something go away: first its name, in one step, then what is in it.
//!
//! Once the name is gone the thing is gone for everybody; taking it apart can then take its time. What is taken
//! apart is what was seen before: if something else had come to stand there, it gets its name back.

use std::os::fd::BorrowedFd;

use ringfence_kernel::{Context, ErrorKind, ToolError};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::again::unlinkat;
use crate::fault::fault;
use crate::mount::{Mount, look, rename_onto_nothing};
use crate::name::{RESERVED, show};
use crate::stamp::{FileId, Kind};
use crate::walk::{Ours, Step, Walk};

/// Takes a name away from `id`, and gives it another one that nobody sees.
pub(crate) fn rename_away(
    from: (BorrowedFd<'_>, &[u8]),
    to: (BorrowedFd<'_>, &[u8]),
    id: FileId,
    shown: &str,
) -> Result<(), ToolError> {
    let conflict = || {
        let message = format!("`{shown}` was replaced by another program at the same moment; nothing was changed");
        ToolError::new(ErrorKind::Conflict, message)
    };
    match rename_onto_nothing(from, to) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Err(conflict()),
        Err(errno) => return Err(fault(errno, shown)),
    }
    match look(to.0, to.1) {
        Ok(Some(moved)) if moved.id == id => Ok(()),
        _ => match rename_onto_nothing(to, from) {
            Ok(()) => Err(conflict()),
            // The name was taken again meanwhile. What has ours now would be out of everybody's sight.
            Err(_) => {
                let copy = keep_beside(from.0, to).map_err(|errno| fault(errno, shown))?;
                let hint = format!("what stood there was kept as `{copy}` beside it");
                Err(conflict().hint(&hint).detail("conflictCopy", copy))
            }
        },
    }
}

/// Removes what stands at a name, with everything in it. Links go, what they lead to stays.
pub(crate) fn purge(mount: &Mount, parent: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<(), ToolError> {
    let shown = show(name);
    let fail = |errno| fault(errno, &shown);
    let Some(found) = look(parent, name).map_err(fail)? else { return Ok(()) };
    if found.kind != Kind::Directory {
        return unlinkat(parent, name, AtFlags::empty()).map_err(fail);
    }
    let start = mount.resolver.open_child(parent, name).map_err(fail)?;
    let mut walk = Walk::seeing(Ours::Seen, mount, start, &shown, cx)?;
    while let Some(step) = walk.next()? {
        match step {
            Step::Entry(entry) if walk.is_directory(&entry)? => walk.descend(&entry)?.map_err(fail)?,
            Step::Entry(entry) => unlinkat(walk.directory()?, entry.name.as_slice(), AtFlags::empty()).map_err(fail)?,
            Step::Left(name) => unlinkat(walk.directory()?, name.as_slice(), AtFlags::REMOVEDIR).map_err(fail)?,
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(fail)
}

/// Gives something a name in `parent` that everybody sees.
pub(crate) fn keep_beside(parent: BorrowedFd<'_>, from: (BorrowedFd<'_>, &[u8])) -> Result<String, Errno> {
    let name = from.1.strip_prefix(RESERVED.as_bytes()).unwrap_or(from.1);
    let kept = format!("conflict-{}", String::from_utf8_lossy(name));
    rename_onto_nothing(from, (parent, kept.as_bytes()))?;
    Ok(kept)
}

/// Gives something that is not ours to remove, but has a temporary name of ours, a name that everybody sees.
pub(crate) fn keep_as_conflict(parent: BorrowedFd<'_>, name: &[u8]) -> Result<String, Errno> {
    if name.starts_with(RESERVED.as_bytes()) { keep_beside(parent, (parent, name)) } else { Ok(show(name)) }
}
