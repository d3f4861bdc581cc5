//! A directory that tools may reach, as a held descriptor.
//!
//! A mount is opened once. What happens to its name afterwards does not matter: every lookup starts at the
//! descriptor, goes through the resolver, and is judged by what was opened.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_kernel::{Context, ErrorKind, Pace, Place, Sought, ToolError};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::path::DecInt;

use crate::again::{fstat, openat, readlinkat, renameat, renameat_with, statat};
use crate::digest::Digests;
use crate::fault::{fault, wrong_type};
use crate::guard::Guard;
use crate::journal::Journal;
use crate::known::{At, Known};
use crate::locks::Locks;
use crate::missing;
use crate::name::{NameRule, is_reserved, read_back, show};
use crate::path::GuestPath;
use crate::resolve::{CAREFUL, How, Links, PLACE, Resolver};
use crate::stamp::{FileId, Kind, Stamp};

/// What may be done on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    ReadOnly,
    ReadWrite,
}

/// What is on disk before a change is acknowledged.
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
    pub(crate) named: bool,
    pub(crate) root: OwnedFd,
    pub(crate) id: FileId,
    /// What the root is called on the host, to understand absolute paths. Never shown.
    pub(crate) host_roots: Vec<PathBuf>,
    pub(crate) rights: Rights,
    /// We are root, whom the kernel lets through everywhere: what it would ask of others, we ask.
    pub(crate) privileged: bool,
    pub(crate) names: NameRule,
    pub(crate) durability: Durability,
    pub(crate) resolver: Box<dyn Resolver>,
    /// The file system answers from memory without asking anybody, so short reads need no worker.
    pub(crate) quick: bool,
    pub(crate) locks: Locks,
    /// Nothing on a mount that is not changed.
    pub(crate) journal: Option<Journal>,
    pub(crate) digests: Digests,
    /// Files that deserve a second look whatever they are called.
    pub(crate) known: Known,
    /// Files whose contents have rules of their own.
    pub(crate) guards: Vec<Guard>,
    /// `/proc/self/fd`, if there is one.
    pub(crate) own_descriptors: Option<OwnedFd>,
}

/// A path on a mount: where a caller pointed.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) mount: Arc<Mount>,
    pub(crate) path: GuestPath,
    /// As replies say it.
    pub(crate) shown: String,
}

/// A descriptor of something that exists, and what it is.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    pub(crate) stamp: Stamp,
    /// Where it really is, if a link or `..` led there.
    pub(crate) resolved: Option<String>,
}

impl Sought for Spot {
    /// With links followed as far as there is something: they do not lead around a rule about what is behind them. The
    /// last one is followed to its target, whether there is something or not.
    fn whereabouts(&self) -> Vec<Place> {
        const MOST_LINKS: usize = 8;
        let mut places = Vec::new();
        let mut next = Some(self.path.clone());
        while let Some(path) = next.take().filter(|_| places.len() <= MOST_LINKS) {
            let (real, target) = self.mount.real_parent(&path).unzip();
            places.push(self.place(real.filter(|real| *real != self.path.shown())));
            next = target.flatten();
        }
        places
    }
}

impl Spot {
    /// The one place that opens contents. Only a regular file that may be read comes back, and nothing else is opened:
    /// that alone would do something to a pipe or a device.
    pub(crate) fn open_content(&self, cx: &Context<'_>) -> Result<Opened, ToolError> {
        let found = self.open(PLACE, cx)?;
        match found.stamp.kind {
            Kind::File if self.path.must_be_directory() => {
                return Err(wrong_type(&self.shown, "a file and not a directory"));
            }
            Kind::File if found.stamp.closed_to_readers() => return Err(fault(Errno::ACCESS, &self.shown)),
            Kind::File => {}
            other => return Err(wrong_type(&self.shown, other.described())),
        }
        let by_name = |flags| self.mount.lookup(&self.path, flags, cx.pace).map(|opened| opened.fd);
        match self.mount.open_regular(&found.fd, &found.stamp, OFlags::RDONLY, by_name) {
            Ok(fd) => Ok(Opened { fd, ..found }),
            Err(Errno::AGAIN) if cx.pace == Pace::Quick => Err(cx.stall()),
            Err(errno) => Err(fault(errno, &self.shown)),
        }
    }

    /// A directory, to be listed.
    pub(crate) fn open_directory(&self, cx: &Context<'_>) -> Result<Opened, ToolError> {
        let opened = self.open(OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, cx)?;
        if opened.stamp.closed_to_readers() || opened.stamp.closed_to_entry() {
            return Err(fault(Errno::ACCESS, &self.shown));
        }
        // `cap-std` gives a descriptor that cannot be listed; for others this is one cheap call more.
        let fd = openat(&opened.fd, c".", OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, Mode::empty());
        Ok(Opened { fd: fd.map_err(|errno| fault(errno, &self.shown))?, ..opened })
    }

    fn open(&self, flags: OFlags, cx: &Context<'_>) -> Result<Opened, ToolError> {
        if cx.pace == Pace::Quick && !self.mount.quick {
            return Err(cx.stall());
        }
        match self.mount.lookup(&self.path, flags, cx.pace) {
            Ok(opened) => Ok(opened),
            // Only a patient call looks around for what may have been meant.
            Err(Errno::AGAIN | Errno::NOENT) if cx.pace == Pace::Quick => Err(cx.stall()),
            Err(errno) => Err(missing::explain(self, errno)),
        }
    }

    pub(crate) fn place(&self, resolved: Option<String>) -> Place {
        let real = resolved.as_deref().map_or_else(|| self.path.as_bytes().to_vec(), read_back);
        Place {
            sensitivity: self.mount.known.linked().sensitivity(&real),
            mount: Arc::clone(&self.mount.alias),
            given: self.path.shown(),
            resolved,
            shown: self.shown.clone(),
            ..Place::default()
        }
    }

    /// The place of a file whose contents are wanted.
    pub(crate) fn place_of(&self, file: &mut Opened, cx: &Context<'_>) -> Result<Place, ToolError> {
        let mut place = self.place(file.resolved.take());
        let (named, at) = (place.sensitive(), At::open(&file.fd));
        let real = place.resolved.as_deref().unwrap_or(&place.given);
        let name = real.rsplit('/').next().unwrap_or_default().as_bytes();
        let sensitivity = match cx.pace {
            Pace::Patient => self.mount.weigh_called(name, named, at, &file.stamp),
            Pace::Quick => self.mount.weigh_quickly(name, named, at, &file.stamp).ok_or_else(|| cx.stall())?,
        };
        place.sensitivity = sensitivity;
        Ok(place)
    }

    /// A slash at the end of a path is fine where a directory is going to be.
    #[must_use]
    pub(crate) fn slashed_if(mut self, kind: Kind) -> Self {
        if kind == Kind::Directory {
            self.path.forget_slash();
        }
        self
    }

    /// Fails before anything else does where nothing may be changed.
    pub(crate) fn writable(&self) -> Result<(), ToolError> {
        match self.mount.rights {
            Rights::ReadWrite => self.mount.check_keep(),
            Rights::ReadOnly => {
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
            if let Ok(found) = self.lookup(&parent, PLACE | OFlags::DIRECTORY, Pace::Patient) {
                let directory = found.resolved.map_or_else(|| parent.as_bytes().to_vec(), |name| read_back(&name));
                let target = readlinkat(&found.fd, name).ok().filter(|target| !target.to_bytes().starts_with(b"/"));
                let target = target.map(|target| joined(&directory, &joined(target.to_bytes(), &rest)));
                return Some((show(&joined(&directory, &below)), target.map(|target| GuestPath::real(&target))));
            }
            rest = below;
            above = parent;
        }
        None
    }

    /// A path below the root, as replies say it.
    pub(crate) fn shown(&self, path: &str) -> String {
        if self.named { format!("@{}/{path}", self.alias) } else { path.to_owned() }
    }

    /// Opens a path below the root. What comes back was not reached through another mount or out of the root.
    pub(crate) fn lookup(&self, path: &GuestPath, flags: OFlags, pace: Pace) -> Result<Opened, Errno> {
        let root = self.root.as_fd();
        let open = |links| self.resolver.open(root, path.as_bytes(), How { flags, links, pace });
        let (fd, straight) = match open(Links::Refuse) {
            Ok(fd) => (fd, !path.climbs()),
            Err(Errno::LOOP) => (open(Links::Follow)?, false),
            Err(errno) => return Err(errno),
        };
        let stamp = Stamp::of(&fstat(&fd)?);
        let resolved = if straight { None } else { self.real_name(fd.as_fd())? };
        let resolved = resolved.filter(|name| name.as_bytes() != path.as_bytes());
        if resolved.as_ref().is_some_and(|real| real.split('/').any(|name| is_reserved(name.as_bytes()))) {
            return Err(Errno::ACCESS);
        }
        if self.privileged {
            if path.must_be_directory() && stamp.closed_to_entry() {
                return Err(Errno::ACCESS);
            }
            match &resolved {
                None => self.check_entry(path.as_bytes())?,
                Some(real) => self.check_entry(&read_back(real))?,
            }
        }
        Ok(Opened { fd, stamp, resolved })
    }

    /// Fails where the directory that holds `path`, which goes through no link, may be entered by nobody. Root could
    /// enter it; the ones above it are not looked at, because every look costs as much as a quarter of a small read.
    fn check_entry(&self, path: &[u8]) -> Result<(), Errno> {
        let Some(slash) = memchr::memrchr(b'/', path) else { return Ok(()) };
        let above = Stamp::of(&statat(&self.root, &path[..slash], AtFlags::SYMLINK_NOFOLLOW)?);
        if above.kind == Kind::Directory && above.closed_to_entry() { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// Where below the root a descriptor is now. The kernel keeps that name; we only read it.
    pub(crate) fn real_name(&self, fd: BorrowedFd<'_>) -> Result<Option<String>, Errno> {
        let name_of = |fd: BorrowedFd<'_>| readlinkat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let root = name_of(self.root.as_fd())?;
        let name = name_of(fd)?;
        if root == name {
            return Ok(Some(".".to_owned()));
        }
        let root = root.as_bytes().strip_suffix(b"/").unwrap_or(root.as_bytes());
        match name.as_bytes().strip_prefix(root).and_then(|rest| rest.strip_prefix(b"/")) {
            Some(below) => Ok(Some(show(below))),
            // It was moved out after it was opened.
            None => Err(Errno::XDEV),
        }
    }

    /// Contents by one name in a directory that a walk holds: only a regular file that may be read.
    pub(crate) fn open_entry(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(OwnedFd, Stamp), Errno> {
        let place = self.resolver.open_named(directory, name, PLACE)?;
        let stamp = Stamp::of(&fstat(&place)?);
        match stamp.kind {
            Kind::File if stamp.closed_to_readers() => Err(Errno::ACCESS),
            Kind::File => {
                let by_name = |flags| self.resolver.open_named(directory, name, flags);
                Ok((self.open_regular(&place, &stamp, OFlags::RDONLY, by_name)?, stamp))
            }
            Kind::Link => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    /// A regular file by one name in a directory that we hold, for a change that was judged by that directory and
    /// name. What comes back still has to be looked at: a descriptor of anything else only stands for it.
    pub(crate) fn open_at(&self, parent: BorrowedFd<'_>, name: &[u8], access: OFlags) -> Result<OwnedFd, Errno> {
        let place = self.resolver.open_named(parent, name, PLACE)?;
        let stamp = Stamp::of(&fstat(&place)?);
        match stamp.kind {
            Kind::File => {
                self.open_regular(&place, &stamp, access, |flags| self.resolver.open_named(parent, name, flags))
            }
            Kind::Link => Err(Errno::LOOP),
            _ => Ok(place),
        }
    }

    /// Opens the very file that a descriptor stands for, whatever has its name by now. Where there is no `/proc`, the name
    /// is opened once more, and has to lead to the same file.
    fn open_regular(
        &self,
        place: &OwnedFd,
        stamp: &Stamp,
        access: OFlags,
        by_name: impl FnOnce(OFlags) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        let access = access | CAREFUL;
        if let Some(own) = &self.own_descriptors {
            return openat(own, DecInt::from_fd(place), access, Mode::empty());
        }
        let fd = by_name(access)?;
        if Stamp::of(&fstat(&fd)?).id == stamp.id { Ok(fd) } else { Err(Errno::BUSY) }
    }

    /// Fails where the directory that was mounted was removed, or its name leads to another one now: whoever put that one
    /// there means it, and we hold the old.
    pub(crate) fn check_in_place(&self, pace: Pace) -> Result<(), ToolError> {
        // A worker will look: only a local name can be looked up without waiting for anybody.
        if pace == Pace::Quick && !self.quick {
            return Ok(());
        }
        match self.host_roots.first().map(|name| statat(CWD, name, AtFlags::empty())) {
            Some(Ok(stat)) if Stamp::of(&stat).id == self.id => Ok(()),
            Some(Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => Err(self.lost()),
            // Whoever cannot tell goes by what is held.
            Some(Err(_)) | None => Ok(()),
        }
    }

    fn lost(&self) -> ToolError {
        let what = if self.named {
            format!("directory of the mount `@{}`", self.alias)
        } else {
            "workspace directory".to_owned()
        };
        let message = format!("the {what} was removed, moved or replaced since the host started");
        ToolError::new(ErrorKind::NotFound, message).hint("put it back, or start again")
    }
}

/// What stands at a name in a directory that we hold, without following it.
pub(crate) fn look(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stamp>, Errno> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(Stamp::of(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Gives something another name, where nothing has that name. File systems that cannot promise it, such as NFS, are
/// asked a moment before.
pub(crate) fn rename_onto_nothing(from: (BorrowedFd<'_>, &[u8]), to: (BorrowedFd<'_>, &[u8])) -> Result<(), Errno> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match look(to.0, to.1)? {
            None => renameat(from.0, from.1, to.0, to.1),
            Some(_) => Err(Errno::EXIST),
        },
        result => result,
    }
}
