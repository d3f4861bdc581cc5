//! Mapping from errno to tool errors.
//!
//! One table. A message names the path as the caller gave it, and never where it is on the host.

use ringfence_kernel::{ErrorKind, ToolError};
use rustix::io::Errno;

/// The error for `errno`, met while doing something to the thing that replies call `shown`.
pub(crate) fn errno_error(errno: Errno, shown: &str) -> ToolError {
    let (kind, message) = match errno {
        Errno::NOENT => (ErrorKind::NotFound, format!("`{shown}` does not exist")),
        Errno::EXIST => (ErrorKind::AlreadyExists, format!("`{shown}` already exists")),
        Errno::XDEV => (ErrorKind::OutsideWorkspace, format!("`{shown}` leads outside the workspace")),
        Errno::NOTDIR => (ErrorKind::WrongType, format!("`{shown}` or one of its parents is not a directory")),
        Errno::ISDIR => (ErrorKind::WrongType, format!("`{shown}` is a directory")),
        Errno::NOTEMPTY => (ErrorKind::WrongType, format!("`{shown}` is a directory that is not empty")),
        Errno::NXIO | Errno::NODEV => (ErrorKind::WrongType, format!("`{shown}` is not a regular file")),
        Errno::ACCESS | Errno::PERM => (ErrorKind::PermissionDenied, format!("permission denied for `{shown}`")),
        Errno::ROFS => (ErrorKind::PermissionDenied, format!("`{shown}` is on a read-only file system")),
        Errno::LOOP => (
            ErrorKind::InvalidPath,
            format!("`{shown}` goes through too many links, or a link that may not be followed"),
        ),
        Errno::NAMETOOLONG => (ErrorKind::InvalidPath, format!("`{shown}` is longer than the file system allows")),
        Errno::INVAL | Errno::ILSEQ => {
            (ErrorKind::InvalidPath, format!("the file system does not support this operation on `{shown}`"))
        }
        Errno::FBIG => (ErrorKind::WriteLimit, format!("`{shown}` would exceed the file size limit of this process")),
        Errno::NOSPC | Errno::DQUOT => (ErrorKind::Io, format!("no space left for `{shown}`; nothing was changed")),
        Errno::AGAIN | Errno::BUSY | Errno::TXTBSY => (ErrorKind::Io, format!("`{shown}` is busy; try again")),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
            (ErrorKind::Io, format!("the host is short of resources for `{shown}`; try again"))
        }
        other => (ErrorKind::Io, format!("the file system failed on `{shown}` (error {})", other.raw_os_error())),
    };
    ToolError::new(kind, message)
}

/// The error for a change that is made, and that the disk may not keep through a power cut.
pub(crate) fn sync_error(errno: Errno, shown: &str) -> ToolError {
    let message = format!(
        "`{shown}` was changed, but the file system could not sync it to disk (error {})",
        errno.raw_os_error()
    );
    ToolError::new(ErrorKind::Io, message).detail("committed", true)
}

pub(crate) fn wrong_type(shown: &str, is: &str) -> ToolError {
    ToolError::new(ErrorKind::WrongType, format!("`{shown}` is {is}"))
}
