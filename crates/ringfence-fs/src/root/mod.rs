//! Mount roots: a directory held as a descriptor, and everything that is reached below it.
//!
//! A root is opened once. What happens to its name afterwards does not matter: every lookup starts at the
//! descriptor, goes through the resolver, and is judged by what was opened.
//!
//! Not here: locks, the journal, and rules about files. See `mount/`.

pub(crate) mod attributes;
pub(crate) mod directory_flush;
pub(crate) mod resolver;
pub(crate) mod symlinks;
pub(crate) mod trash;
pub(crate) mod walk;
pub(crate) mod watched_directories;

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_kernel::{ErrorKind, IoMode, ToolError};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::path::DecInt;

use crate::path::guest::GuestPath;
use crate::path::name::{NameRule, escape, is_reserved, unescape};
use crate::root::directory_flush::DirectoryFlushes;
use crate::root::resolver::{LinkPolicy, OpenHow, PATH_ONLY, PathResolver};
use crate::sys::errno::errno_error;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::{fstat, openat, readlinkat, renameat, renameat_with, statat};

/// Access mode of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountAccess {
    ReadOnly,
    ReadWrite,
}

/// Durability of a change when it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The content and the directory that names it.
    #[default]
    Full,
    /// The content; the last changes may be gone after a power cut, and none is ever torn.
    Ordered,
}

/// Has the kernel begin to write the contents of a file, without waiting for that. What comes of it is for a later fsync to
/// say.
pub type StartWriteback = fn(BorrowedFd<'_>);

/// How new files are staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StagingMode {
    /// Without a name, where the file system supports it.
    #[default]
    Unnamed,
    /// Always under a temporary name, which is logged first.
    Named,
}

/// The root of a mount: its descriptor, and the resolver of paths below it.
#[derive(Debug)]
pub(crate) struct MountRoot {
    pub(crate) alias: Arc<str>,
    /// Whether replies name the mount: the workspace itself goes without.
    pub(crate) shows_alias: bool,
    pub(crate) root: OwnedFd,
    pub(crate) id: FileId,
    /// Host paths of the root, to resolve absolute paths. Never shown.
    pub(crate) host_roots: Vec<PathBuf>,
    pub(crate) rights: MountAccess,
    /// The process is root and bypasses permission checks, so they are made here.
    pub(crate) privileged: bool,
    pub(crate) names: NameRule,
    pub(crate) durability: Durability,
    pub(crate) directory_flushes: DirectoryFlushes,
    pub(crate) start_writeback: Option<StartWriteback>,
    pub(crate) staging: StagingMode,
    pub(crate) resolver: Box<dyn PathResolver>,
    /// The file system answers from memory without a daemon or a network, so short reads need no worker.
    pub(crate) supports_non_blocking: bool,
    /// `/proc/self/fd`, if there is one.
    pub(crate) proc_self_fd: Option<OwnedFd>,
}

/// A descriptor of something that exists, and what it is.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) stat: FileStat,
    /// Its resolved path, if a link or `..` led there.
    pub(crate) resolved: Option<String>,
}

/// The file that is to be replaced, opened under its lock.
#[derive(Debug)]
pub(crate) struct FileToReplace {
    pub(crate) fd: OwnedFd,
    pub(crate) stat: FileStat,
}

impl MountRoot {
    /// A path with the links above its last name followed, as far as there is something; and where that name leads, if it is
    /// a relative link itself.
    pub(crate) fn real_parent(&self, path: &GuestPath) -> Option<(String, Option<GuestPath>)> {
        let (mut above, mut rest) = (path.clone(), Vec::new());
        while let Some((parent, name)) = above.split() {
            let joined = |first: &[u8], rest: &[u8]| match (first, rest) {
                (b"." | b"", rest) => rest.to_vec(),
                (first, b"") => first.to_vec(),
                (first, rest) => [first, b"/", rest].concat(),
            };
            let below = joined(name, &rest);
            if let Ok(found) = self.lookup(&parent, PATH_ONLY | OFlags::DIRECTORY, IoMode::Blocking) {
                let directory = found.resolved.map_or_else(|| parent.as_bytes().to_vec(), |name| unescape(&name));
                let target = readlinkat(&found.fd, name).ok().filter(|target| !target.to_bytes().starts_with(b"/"));
                let target = target.map(|target| joined(&directory, &joined(target.to_bytes(), &rest)));
                return Some((
                    escape(&joined(&directory, &below)),
                    target.map(|target| GuestPath::from_kernel(&target)),
                ));
            }
            rest = below;
            above = parent;
        }
        None
    }

    /// A path below the root, as replies say it.
    pub(crate) fn display_path(&self, path: &str) -> String {
        if self.shows_alias { format!("@{}/{path}", self.alias) } else { path.to_owned() }
    }

    /// Opens a path below the root. The result was not reached through another mount or out of the root.
    pub(crate) fn lookup(&self, path: &GuestPath, flags: OFlags, pace: IoMode) -> Result<OpenFile, Errno> {
        let root = self.root.as_fd();
        let open = |links| self.resolver.open(root, path.as_bytes(), OpenHow { flags, links, pace });
        let (fd, straight) = match open(LinkPolicy::Refuse) {
            Ok(fd) => (fd, !path.has_dotdot()),
            Err(Errno::LOOP) => (open(LinkPolicy::Follow)?, false),
            Err(errno) => return Err(errno),
        };
        let stamp = FileStat::from_stat(&fstat(&fd)?);
        let resolved = if straight { None } else { self.real_name(fd.as_fd())? };
        let resolved = resolved.filter(|name| name.as_bytes() != path.as_bytes());
        if resolved.as_ref().is_some_and(|real| real.split('/').any(|name| is_reserved(name.as_bytes()))) {
            return Err(Errno::ACCESS);
        }
        if self.privileged {
            if path.must_be_directory() && stamp.denies_search() {
                return Err(Errno::ACCESS);
            }
            match &resolved {
                None => self.check_entry(path.as_bytes())?,
                Some(real) => self.check_entry(&unescape(real))?,
            }
        }
        Ok(OpenFile { fd, stat: stamp, resolved })
    }

    /// Fails where the directory that holds `path`, which goes through no link, denies search to every user. Root could
    /// enter it; the ones above it are not checked, because each check costs as much as a quarter of a small read.
    fn check_entry(&self, path: &[u8]) -> Result<(), Errno> {
        let Some(slash) = memchr::memrchr(b'/', path) else { return Ok(()) };
        let above = FileStat::from_stat(&statat(&self.root, &path[..slash], AtFlags::SYMLINK_NOFOLLOW)?);
        if above.kind == FileKind::Directory && above.denies_search() { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// Current path of a descriptor below the root, as the kernel has it.
    pub(crate) fn real_name(&self, fd: BorrowedFd<'_>) -> Result<Option<String>, Errno> {
        let name_of = |fd: BorrowedFd<'_>| readlinkat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let root = name_of(self.root.as_fd())?;
        let name = name_of(fd)?;
        if root == name {
            return Ok(Some(".".to_owned()));
        }
        let root = root.as_bytes().strip_suffix(b"/").unwrap_or(root.as_bytes());
        match name.as_bytes().strip_prefix(root).and_then(|rest| rest.strip_prefix(b"/")) {
            Some(below) => Ok(Some(escape(below))),
            // It was moved out after it was opened.
            None => Err(Errno::XDEV),
        }
    }

    /// Contents by one name in a directory that a walk holds: only a regular file that may be read.
    pub(crate) fn open_entry(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(OwnedFd, FileStat), Errno> {
        let place = self.resolver.open_named(directory, name, PATH_ONLY)?;
        let stamp = FileStat::from_stat(&fstat(&place)?);
        match stamp.kind {
            FileKind::File if stamp.denies_read() => Err(Errno::ACCESS),
            FileKind::File => {
                let by_name = |flags| self.resolver.open_named(directory, name, flags);
                Ok((self.open_regular(&place, &stamp, OFlags::RDONLY, by_name)?, stamp))
            }
            FileKind::Link => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    /// Opens a regular file by one name in a held directory, for a change that was judged by that directory and name.
    /// The caller still has to check the result: for any other kind it is a path-only descriptor.
    pub(crate) fn open_at(&self, parent: BorrowedFd<'_>, name: &[u8], access: OFlags) -> Result<OwnedFd, Errno> {
        self.open_at_with_stat(parent, name, access).map(|(fd, _)| fd)
    }

    /// The same, with the stat that the file had before it was opened.
    pub(crate) fn open_at_with_stat(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        access: OFlags,
    ) -> Result<(OwnedFd, FileStat), Errno> {
        let place = self.resolver.open_named(parent, name, PATH_ONLY)?;
        let stamp = FileStat::from_stat(&fstat(&place)?);
        match stamp.kind {
            FileKind::File => {
                let by_name = |flags| self.resolver.open_named(parent, name, flags);
                Ok((self.open_regular(&place, &stamp, access, by_name)?, stamp))
            }
            FileKind::Link => Err(Errno::LOOP),
            _ => Ok((place, stamp)),
        }
    }

    /// Opens the very file that a descriptor stands for, whatever has its name by now. Where there is no `/proc`, the name
    /// is opened once more, and has to lead to the same file.
    pub(crate) fn open_regular(
        &self,
        place: &OwnedFd,
        stamp: &FileStat,
        access: OFlags,
        by_name: impl FnOnce(OFlags) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        let access = access | SAFE_OPEN;
        if let Some(own) = &self.proc_self_fd {
            return openat(own, DecInt::from_fd(place), access, Mode::empty());
        }
        let fd = by_name(access)?;
        if FileStat::from_stat(&fstat(&fd)?).id == stamp.id { Ok(fd) } else { Err(Errno::BUSY) }
    }

    /// Fails where the mounted directory was removed or replaced: the replacement is meant by the user, and we hold the
    /// old one.
    pub(crate) fn check_in_place(&self, pace: IoMode) -> Result<(), ToolError> {
        // A worker will check: only a local name can be looked up without blocking.
        if pace == IoMode::NonBlocking && !self.supports_non_blocking {
            return Ok(());
        }
        match self.host_roots.first().map(|name| statat(CWD, name, AtFlags::empty())) {
            Some(Ok(stat)) if FileStat::from_stat(&stat).id == self.id => Ok(()),
            Some(Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => Err(self.root_lost_error()),
            // Where it cannot be determined, the held directory is used.
            Some(Err(_)) | None => Ok(()),
        }
    }

    fn root_lost_error(&self) -> ToolError {
        let what = if self.shows_alias {
            format!("directory of the mount `@{}`", self.alias)
        } else {
            "workspace directory".to_owned()
        };
        let message = format!("the {what} was removed, moved or replaced since the host started");
        ToolError::new(ErrorKind::NotFound, message).hint("restore it, or restart the host")
    }
}

/// The stat of a name in a held directory, without following it.
pub(crate) fn stat(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FileStat>, Errno> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileStat::from_stat(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Renames an entry to a free name. On file systems without an atomic variant, such as NFS, the name is checked just
/// before.
pub(crate) fn rename_noreplace(from: (BorrowedFd<'_>, &[u8]), to: (BorrowedFd<'_>, &[u8])) -> Result<(), Errno> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match stat(to.0, to.1)? {
            None => renameat(from.0, from.1, to.0, to.1),
            Some(_) => Err(Errno::EXIST),
        },
        result => result,
    }
}

/// A directory below the root. Nothing where it is no longer there.
pub(crate) fn parent_at(mount: &MountRoot, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    match mount.lookup(&GuestPath::from_kernel(path), OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, IoMode::Blocking)
    {
        Ok(opened) => Ok(Some(opened.fd)),
        Err(errno) if is_transient(errno) => Err(errno),
        Err(_) => Ok(None),
    }
}

pub(crate) fn open_parent(mount: &MountRoot, path: &[u8]) -> Option<OwnedFd> {
    parent_at(mount, path).ok()?
}

/// A directory below the root, reached through no link.
pub(crate) fn open_no_follow(mount: &MountRoot, path: &[u8]) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
    let opened = mount.lookup(&GuestPath::from_kernel(path), flags, IoMode::Blocking).ok()?;
    opened.resolved.is_none().then_some(opened.fd)
}

/// The path of a held directory on the host, to find it again in another mount namespace. Never shown.
pub(crate) fn path_of(directory: &OwnedFd) -> Result<PathBuf, ToolError> {
    let name = readlinkat(CWD, format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let name = name.map_err(|errno| errno_error(errno, "."))?;
    Ok(PathBuf::from(OsStr::from_bytes(name.as_bytes())))
}

/// A descriptor of a held directory that can be listed and synced: one that only names it can be neither.
pub(crate) fn reopen_for_listing(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    openat(directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty())
}

/// Fails where the mode denies writing to every user, also for root.
pub(crate) fn check_directory_writable(directory: BorrowedFd<'_>, shown: &str) -> Result<(), ToolError> {
    let stamp = FileStat::from_stat(&fstat(directory).map_err(|errno| errno_error(errno, shown))?);
    if stamp.denies_write() { Err(errno_error(Errno::ACCESS, shown)) } else { Ok(()) }
}

/// Whether another time may be better.
pub(crate) fn is_transient(errno: Errno) -> bool {
    use Errno as E;
    [E::ROFS, E::IO, E::NOSPC, E::DQUOT, E::MFILE, E::NFILE, E::NOMEM].contains(&errno)
}
