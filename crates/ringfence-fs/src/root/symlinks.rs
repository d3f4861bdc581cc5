//! Symbolic links that would lead out of the root from another directory.
//!
//! A relative link is where it leads from where it stands. Moved up, alone or with the directory that it is in, it can come
//! to lead out. We would never follow it, but other programs would.

use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{CallContext, ErrorKind, ToolError};

use crate::path::name::escape;
use crate::path::relative::split;
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep};
use crate::root::{MountRoot, stat};
use crate::sys::errno::errno_error;
use crate::sys::stat::FileKind;
use crate::sys::syscall::readlinkat;

/// Something that is to get another path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathRelocation<'a> {
    /// The directory that has it now, and its name there.
    pub(crate) at: (BorrowedFd<'a>, &'a [u8]),
    /// Below the root.
    pub(crate) from: &'a [u8],
    pub(crate) to: &'a [u8],
}

/// Fails where a link that gets another path, or one in a directory that does, would lead out from there.
pub(crate) fn check_links_stay_inside(
    mount: &MountRoot,
    moved: PathRelocation<'_>,
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let (PathRelocation { at: (parent, name), from, to }, shown) = (moved, escape(moved.from));
    if split(from).0 == split(to).0 {
        return Ok(());
    }
    let fail = |errno| errno_error(errno, &shown);
    match stat(parent, name).map_err(fail)?.map(|stamp| stamp.kind) {
        Some(FileKind::Link) => {
            let target = readlinkat(parent, name).map_err(fail)?;
            if leads_out(split(to).0, target.to_bytes()) { Err(link_escape_error(mount, from)) } else { Ok(()) }
        }
        Some(FileKind::Directory) => {
            let start = mount.resolver.open_child(parent, name).map_err(fail)?;
            let mut walk = TreeWalk::with_temp_visibility(TempVisibility::Visible, mount, start, &shown, cx)?;
            while let Some(step) = walk.next()? {
                let WalkStep::Entry(entry) = step else { continue };
                let Some(stamp) = walk.stat(&entry)? else { continue };
                if stamp.kind == FileKind::Directory {
                    walk.descend(&entry)?.map_err(fail)?;
                } else if stamp.kind == FileKind::Link {
                    let target = readlinkat(walk.directory()?.as_fd(), entry.name.as_slice()).map_err(fail)?;
                    let inside = walk.path_of(&entry.name);
                    let directory = [to, b"/", split(&inside).0].concat();
                    if leads_out(&directory, target.to_bytes()) {
                        return Err(link_escape_error(mount, &[from, b"/", inside.as_slice()].concat()));
                    }
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether a link in a directory below the root leads above the root, as far as its text tells. One with an absolute target
/// leads to the same place from everywhere.
fn leads_out(directory: &[u8], target: &[u8]) -> bool {
    let is_name = |part: &&[u8]| !part.is_empty() && *part != b".";
    let mut depth = directory.split(|byte| *byte == b'/').filter(is_name).count();
    if target.starts_with(b"/") {
        return false;
    }
    for part in target.split(|byte| *byte == b'/').filter(is_name) {
        match (part, depth) {
            (b"..", 0) => return true,
            (b"..", _) => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

fn link_escape_error(mount: &MountRoot, path: &[u8]) -> ToolError {
    let shown = mount.display_path(&escape(path));
    let message = format!("`{shown}` is a link that would lead outside the workspace from there; nothing was moved");
    ToolError::new(ErrorKind::OutsideWorkspace, message).hint("delete the link first, or move what it leads to")
}

#[cfg(test)]
mod tests {
    use super::leads_out;

    #[test]
    fn a_link_leads_out_by_one_step_above_the_root() {
        for (directory, target, expected) in [
            ("", "a", false),
            ("", "..", true),
            ("a", "..", false),
            ("a", "../..", true),
            ("a/b", "../../c", false),
            ("a/b", "../../../c", true),
            ("a", "./b/.././../../x", true),
            ("a", "b/../../c", false),
            ("", "/etc/passwd", false),
        ] {
            assert_eq!(leads_out(directory.as_bytes(), target.as_bytes()), expected, "{directory} {target}");
        }
    }
}
