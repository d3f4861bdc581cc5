//! Mounts: a directory that tools may reach, held as a descriptor.
//!
//! A mount is opened once. Later changes of its name do not matter: every lookup starts at the descriptor, goes through
//! the resolver, and is judged by the opened file.

pub(crate) mod resolver;
pub(crate) mod set;
pub(crate) mod suggest;
pub(crate) mod symlinks;
pub(crate) mod walk;
pub(crate) mod write_target;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_kernel::{CallContext, ErrorKind, IoMode, LookupTarget, PolicyResource, ToolError};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::path::DecInt;

use crate::guard::GuardedFile;
use crate::journal::Journal;
use crate::mount::resolver::{LinkPolicy, OpenHow, PATH_ONLY, PathResolver, SAFE_OPEN};
use crate::path::guest::GuestPath;
use crate::path::name::{NameRule, escape, is_reserved, unescape};
use crate::read::digest::DigestCache;
use crate::sensitive::files::{FileRef, SensitiveFiles};
use crate::sys::errno::{errno_error, wrong_type};
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::{fstat, openat, readlinkat, renameat, renameat_with, statat};
use crate::txn::lock::LockTable;

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

/// A directory that tools may reach.
#[derive(Debug)]
pub(crate) struct Mount {
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
    pub(crate) resolver: Box<dyn PathResolver>,
    /// The file system answers from memory without a daemon or a network, so short reads need no worker.
    pub(crate) supports_non_blocking: bool,
    pub(crate) locks: LockTable,
    /// Nothing on a mount that is not changed.
    pub(crate) journal: Option<Journal>,
    pub(crate) digests: DigestCache,
    /// Files that deserve a second look whatever they are called.
    pub(crate) sensitive_files: SensitiveFiles,
    /// Files whose contents have rules of their own.
    pub(crate) guards: Vec<GuardedFile>,
    /// `/proc/self/fd`, if there is one.
    pub(crate) proc_self_fd: Option<OwnedFd>,
}

/// A path on a mount: where a caller pointed.
#[derive(Clone, Debug)]
pub(crate) struct LocatedPath {
    pub(crate) mount: Arc<Mount>,
    pub(crate) path: GuestPath,
    /// As replies say it.
    pub(crate) shown: String,
}

/// A descriptor of something that exists, and what it is.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) stat: FileStat,
    /// Its resolved path, if a link or `..` led there.
    pub(crate) resolved: Option<String>,
}

impl LookupTarget for LocatedPath {
    /// With links followed as far as there is something: they do not lead around a rule about what is behind them. The
    /// last one is followed to its target, whether there is something or not.
    fn resources(&self) -> Vec<PolicyResource> {
        const MOST_LINKS: usize = 8;
        let mut places = Vec::new();
        let mut next = Some(self.path.clone());
        while let Some(path) = next.take().filter(|_| places.len() <= MOST_LINKS) {
            let (real, target) = self.mount.real_parent(&path).unzip();
            places.push(self.resource(real.filter(|real| *real != self.path.display())));
            next = target.flatten();
        }
        places
    }
}

impl LocatedPath {
    /// The only function that opens contents. It opens regular files that may be read, and nothing else: opening a pipe
    /// or a device has side effects.
    pub(crate) fn open_content(&self, cx: &CallContext<'_>) -> Result<OpenFile, ToolError> {
        let found = self.open(PATH_ONLY, cx)?;
        match found.stat.kind {
            FileKind::File if self.path.must_be_directory() => {
                return Err(wrong_type(&self.shown, "a file and not a directory"));
            }
            FileKind::File if found.stat.denies_read() => return Err(errno_error(Errno::ACCESS, &self.shown)),
            FileKind::File => {}
            other => return Err(wrong_type(&self.shown, other.with_article())),
        }
        let by_name = |flags| self.mount.lookup(&self.path, flags, cx.io_mode).map(|opened| opened.fd);
        match self.mount.open_regular(&found.fd, &found.stat, OFlags::RDONLY, by_name) {
            Ok(fd) => Ok(OpenFile { fd, ..found }),
            Err(Errno::AGAIN) if cx.io_mode == IoMode::NonBlocking => Err(cx.would_block()),
            Err(errno) => Err(errno_error(errno, &self.shown)),
        }
    }

    /// A directory, to be listed.
    pub(crate) fn open_directory(&self, cx: &CallContext<'_>) -> Result<OpenFile, ToolError> {
        let opened = self.open(OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, cx)?;
        if opened.stat.denies_read() || opened.stat.denies_search() {
            return Err(errno_error(Errno::ACCESS, &self.shown));
        }
        // `cap-std` gives a descriptor that cannot be listed; for others this is one cheap call more.
        let fd = openat(&opened.fd, c".", OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty());
        Ok(OpenFile { fd: fd.map_err(|errno| errno_error(errno, &self.shown))?, ..opened })
    }

    fn open(&self, flags: OFlags, cx: &CallContext<'_>) -> Result<OpenFile, ToolError> {
        if cx.io_mode == IoMode::NonBlocking && !self.mount.supports_non_blocking {
            return Err(cx.would_block());
        }
        match self.mount.lookup(&self.path, flags, cx.io_mode) {
            Ok(opened) => Ok(opened),
            // Only a patient call looks around for what may have been meant.
            Err(Errno::AGAIN | Errno::NOENT) if cx.io_mode == IoMode::NonBlocking => Err(cx.would_block()),
            Err(errno) => Err(suggest::path_error(self, errno)),
        }
    }

    pub(crate) fn resource(&self, resolved: Option<String>) -> PolicyResource {
        let real = resolved.as_deref().map_or_else(|| self.path.as_bytes().to_vec(), unescape);
        PolicyResource {
            sensitivity: self.mount.sensitive_files.linked().sensitivity(&real),
            mount: Arc::clone(&self.mount.alias),
            requested_path: self.path.display(),
            resolved_path: resolved,
            display_path: self.shown.clone(),
            ..PolicyResource::default()
        }
    }

    /// The policy resource of a file whose contents are requested.
    pub(crate) fn resource_of(&self, file: &mut OpenFile, cx: &CallContext<'_>) -> Result<PolicyResource, ToolError> {
        let mut place = self.resource(file.resolved.take());
        let (named, at) = (place.effective_sensitivity(), FileRef::open(&file.fd));
        let real = place.resolved_path.as_deref().unwrap_or(&place.requested_path);
        let name = real.rsplit('/').next().unwrap_or_default().as_bytes();
        let sensitivity = match cx.io_mode {
            IoMode::Blocking => self.mount.classify_named(name, named, at, &file.stat),
            IoMode::NonBlocking => {
                self.mount.classify_non_blocking(name, named, at, &file.stat).ok_or_else(|| cx.would_block())?
            }
        };
        place.sensitivity = sensitivity;
        Ok(place)
    }

    /// A slash at the end of a path is fine where a directory is going to be.
    #[must_use]
    pub(crate) fn allow_slash_for(mut self, kind: FileKind) -> Self {
        if kind == FileKind::Directory {
            self.path.drop_trailing_slash();
        }
        self
    }

    /// Fails before anything else does where nothing may be changed.
    pub(crate) fn check_writable(&self) -> Result<(), ToolError> {
        match self.mount.rights {
            MountAccess::ReadWrite => self.mount.check_image_store(),
            MountAccess::ReadOnly => {
                Err(ToolError::new(ErrorKind::ReadOnly, format!("`{}` is on a read-only mount", self.shown)))
            }
        }
    }
}

impl Mount {
    /// A path with the links above its last name followed, as far as there is something; and where that name leads, if it is
    /// a relative link itself.
    fn real_parent(&self, path: &GuestPath) -> Option<(String, Option<GuestPath>)> {
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
        let place = self.resolver.open_named(parent, name, PATH_ONLY)?;
        let stamp = FileStat::from_stat(&fstat(&place)?);
        match stamp.kind {
            FileKind::File => {
                self.open_regular(&place, &stamp, access, |flags| self.resolver.open_named(parent, name, flags))
            }
            FileKind::Link => Err(Errno::LOOP),
            _ => Ok(place),
        }
    }

    /// Opens the very file that a descriptor stands for, whatever has its name by now. Where there is no `/proc`, the name
    /// is opened once more, and has to lead to the same file.
    fn open_regular(
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
