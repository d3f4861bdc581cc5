//! Path errors with suggestions.
//!
//! Only a limited number of names is read, and only in directories of the workspace.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use ringfence_kernel::{ErrorKind, IoMode, NameSuggestions, PolicyResource, ToolError};
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use crate::mount::LocatedPath;
use crate::path::name::{escape, is_reserved};
use crate::root::{reopen_for_listing, stat};
use crate::sys::errno::errno_error;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::FileKind;

/// In a larger directory a guess is not worth the time.
const MOST_NAMES: usize = 2000;

/// The error for a path that could not be opened.
pub(crate) fn path_error(located: &LocatedPath, errno: Errno) -> ToolError {
    let error = errno_error(errno, &located.shown);
    match errno {
        Errno::XDEV if !located.path.has_dotdot() => {
            error.hint("a link with an absolute target counts as outside, as does another mount")
        }
        Errno::NOENT => missing_path_error(located, error),
        _ => error,
    }
}

fn missing_path_error(located: &LocatedPath, error: ToolError) -> ToolError {
    if let Err(gone) = located.mount.check_in_place(IoMode::Blocking) {
        return gone;
    }
    let Some((parent, name)) = located.path.split() else { return error };
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
    let Ok(directory) = located.mount.lookup(&parent, directory, IoMode::Blocking) else {
        if let Some(advice) = leading_space_hint(located.path.as_bytes()) {
            return error.hint(advice);
        }
        return error.hint(&format!("the directory `{}` does not exist", parent_display(located)));
    };
    if let Ok(Some(stamp)) = stat(directory.fd.as_fd(), name)
        && stamp.kind == FileKind::Link
    {
        return ToolError::new(
            ErrorKind::NotFound,
            format!("`{}` is a link whose target does not exist", located.shown),
        );
    }
    let resolved = directory.resolved;
    // `cap-std` gives a descriptor that cannot be listed.
    let Ok(directory) = reopen_for_listing(directory.fd.as_fd()) else { return error };
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if !is_reserved(name) && !matches!(name, b"." | b"..") {
            names.push(escape(name));
        }
        if names.len() == MOST_NAMES {
            break;
        }
    }
    let alternatives = NameSuggestions {
        // White space around a name is what models add most, and escaped it would look like letters.
        missing_name: String::from_utf8_lossy(name).into_owned(),
        names,
        directory: PolicyResource {
            requested_path: parent.display(),
            resolved_path: resolved,
            mount: Arc::clone(&located.mount.alias),
            ..PolicyResource::default()
        },
        display_prefix: match parent_display(located) {
            "" => String::new(),
            above => format!("{above}/"),
        },
    };
    ToolError { suggestions: Some(Box::new(alternatives)), ..error }
}

/// Advice for a path that is relative only because of white space before it.
pub(crate) fn leading_space_hint(path: &[u8]) -> Option<&'static str> {
    let trimmed = path.trim_ascii_start();
    let is_hidden = trimmed.len() < path.len() && trimmed.starts_with(b"/") | trimmed.starts_with(b"@");
    is_hidden.then_some("remove the white space at the start of the path")
}

/// The directory of a path, as replies say it; nothing for one in the workspace itself.
fn parent_display(located: &LocatedPath) -> &str {
    located.shown.rsplit_once('/').map_or("", |(above, _)| above)
}
