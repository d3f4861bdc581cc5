//! Staged files: new contents, written and complete before they have a name in the workspace.
//!
//! A staged file has no name at all (`O_TMPFILE`), so that nothing has to be recorded before it is made and nothing is
//! left of it after a crash. Where the file system does not support that, it has a temporary name, which the journal
//! has on disk first.
//!
//! Not here: publishing it (`step.rs`).

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::path::name::TEMP_PREFIX;
use crate::read::content::read_chunk;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::FileToReplace;
use crate::root::attributes::{chmod_past_umask, copy_attributes};
use crate::sys::errno::errno_error;
use crate::sys::own_files::{SAFE_OPEN, write_all};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fchmod, fchown, fstat, linkat, openat};

/// Between two of these a long write looks whether it is still wanted.
const CHUNK: usize = 1 << 20;

/// Contents for a file.
#[derive(Debug)]
pub(crate) enum FileBody {
    Bytes(Vec<u8>),
    /// Bytes of a file that moves and changes at once; the new file gets the mode of the old one.
    MovedBytes {
        bytes: Vec<u8>,
        mode: u32,
    },
    /// As much as another file has; a new file gets its mode too.
    File {
        from: OwnedFd,
        stamp: FileStat,
    },
}

impl FileBody {
    /// A new file is as open as it should be, whatever the umask; a replacement stays closed until it has the old one's mode.
    fn mode(&self, old: Option<&FileToReplace>) -> u32 {
        match (old, self) {
            (Some(_), _) => 0o600,
            (None, Self::Bytes(_)) => 0o644,
            (None, Self::MovedBytes { mode, .. }) => mode & 0o777,
            (None, Self::File { stamp, .. }) => stamp.mode & 0o777 | 0o600,
        }
    }
}

/// A file with new contents. It has no name unless the file system requires one.
#[derive(Debug)]
pub(crate) struct StagedFile {
    fd: OwnedFd,
    is_named: bool,
}

/// The contents of a staged file.
#[derive(Debug)]
pub(crate) struct StagedContents {
    pub(crate) stat: FileStat,
    pub(crate) digest: Digest,
}

impl StagedFile {
    /// A file without a name, as it would be made in `directory`. `None` where the file system does not support that.
    pub(crate) fn unnamed(
        directory: BorrowedFd<'_>,
        body: &FileBody,
        old: Option<&FileToReplace>,
    ) -> Result<Option<Self>, Errno> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | SAFE_OPEN;
        match openat(directory, c".", flags, Mode::from_raw_mode(body.mode(old))) {
            Ok(fd) => Ok(Some(Self { fd, is_named: false })),
            // The first is of the file system; the others are of kernels and sandboxes that do not know the flag.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// A file at a temporary name that the journal has.
    pub(crate) fn named(
        (directory, name): (BorrowedFd<'_>, &[u8]),
        body: &FileBody,
        old: Option<&FileToReplace>,
    ) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | SAFE_OPEN;
        let fd = openat(directory, name, flags, Mode::from_raw_mode(body.mode(old)))?;
        Ok(Self { fd, is_named: true })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Gives a file without a name its first one, which must be free. One that has a name keeps it.
    pub(super) fn link(&self, (directory, name): (BorrowedFd<'_>, &[u8])) -> Result<(), Errno> {
        let by_proc = || {
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            linkat(CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)
        };
        if self.is_named {
            return Ok(());
        }
        // Without `/proc`, only a privileged process may link a descriptor.
        by_proc().or_else(|errno| match errno {
            Errno::NOENT => linkat(&self.fd, c"", directory, name, AtFlags::EMPTY_PATH),
            other => Err(other),
        })
    }

    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Writes the contents, and sets owner and permissions: those of the file that it replaces, or those of new files in
    /// `directory`.
    pub(crate) fn fill(
        &self,
        body: &FileBody,
        old: Option<&FileToReplace>,
        directory: BorrowedFd<'_>,
        cx: &CallContext<'_>,
        shown: &str,
    ) -> Result<StagedContents, ToolError> {
        let fail = |errno| errno_error(errno, shown);
        let digest = self.write(body, cx, shown)?;
        match old {
            Some(old) => self.copy_metadata(old, shown)?,
            None => chmod_past_umask(self.fd.as_fd(), directory, body.mode(None)).map_err(fail)?,
        }
        Ok(StagedContents { stat: FileStat::from_stat(&fstat(&self.fd).map_err(fail)?), digest })
    }

    fn write(&self, body: &FileBody, cx: &CallContext<'_>, shown: &str) -> Result<Digest, ToolError> {
        let mut hasher = Sha256Hasher::default();
        let mut put = |bytes: &[u8]| {
            cx.check()?;
            hasher.update(bytes);
            write_all(self.fd.as_fd(), bytes).map_err(|errno| errno_error(errno, shown))
        };
        match body {
            FileBody::Bytes(bytes) | FileBody::MovedBytes { bytes, .. } => {
                bytes.chunks(CHUNK).try_for_each(&mut put)?
            }
            FileBody::File { from, stamp } => {
                let mut chunk = vec![0; CHUNK];
                let mut done = 0;
                while done < stamp.size {
                    let length =
                        read_chunk(from.as_fd(), &mut chunk, done, cx).map_err(|errno| errno_error(errno, shown))?;
                    if length == 0 {
                        break;
                    }
                    put(&chunk[..length])?;
                    done += length as u64;
                }
                let now = FileStat::from_stat(&fstat(from).map_err(|errno| errno_error(errno, shown))?);
                if done != stamp.size || !now.same_content(stamp) {
                    let message =
                        format!("the source of `{shown}` was modified while it was copied; nothing was changed");
                    return Err(ToolError::new(ErrorKind::Conflict, message));
                }
            }
        }
        Ok(hasher.finish())
    }

    /// Owner, mode and attributes of the file that it replaces.
    fn copy_metadata(&self, old: &FileToReplace, shown: &str) -> Result<(), ToolError> {
        let fail = |errno| errno_error(errno, shown);
        let mine = FileStat::from_stat(&fstat(&self.fd).map_err(fail)?);
        if mine.owner != old.stat.owner {
            let (user, group) = old.stat.owner;
            fchown(&self.fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(|errno| match errno {
                Errno::PERM => ToolError::new(
                    ErrorKind::PermissionDenied,
                    format!("the owner of `{shown}` could not be preserved"),
                ),
                other => fail(other),
            })?;
        }
        copy_attributes(&old.fd, &self.fd).map_err(|_| {
            ToolError::new(
                ErrorKind::PermissionDenied,
                format!("the access control list of `{shown}` could not be preserved"),
            )
        })?;
        // Contents that another user chose must not run with the owner's rights.
        fchmod(&self.fd, Mode::from_raw_mode(old.stat.mode & 0o777)).map_err(fail)
    }
}

/// An unguessable name that does not reveal the target's.
pub(crate) fn temporary_name() -> Result<String, Errno> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
    Ok(format!("{TEMP_PREFIX}{:032x}", u128::from_ne_bytes(random)))
}
