//! Upper directory reader: what a program left in an overlay, read by descriptors.
//!
//! Its contents are not trusted: it can have pipes, devices and links anywhere, directories deeper than a path, names
//! of any bytes and unreadable files. Nothing is opened before a stat, nothing through a link, and nothing that is
//! neither a directory nor a regular file is opened at all.
//!
//! Not here: what it means for the workspace (`compare.rs`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, XattrFlags, mknodat};
use rustix::io::Errno;

use crate::path::relative::{join, split};
use crate::root::attributes::chmod_fd;
use crate::root::resolver::PATH_ONLY;
use crate::root::stat;
use crate::root::walk::{TempVisibility, read_directory};
use crate::sys::errno::errno_error;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat, openat, openat2, statat, unlinkat};

/// Prefixes of overlayfs attributes: for users, and for root.
const PREFIXES: [&[u8]; 2] = [USER_PREFIX, b"trusted.overlay."];

/// Prefix of those of a mount in a user namespace, as every jail has it.
const USER_PREFIX: &[u8] = b"user.overlay.";

/// Mode of a directory that was made readable.
const READABLE: u32 = 0o700;

/// The upper directory of an overlay.
#[derive(Debug)]
pub(super) struct UpperLayer {
    root: OwnedFd,
    /// Modes of directories that were made readable to be read, by path: a kept layer is read again.
    closed_modes: Mutex<ClosedModes>,
    /// Its program runs, and must not see that they were.
    is_running: bool,
}

/// Modes of directories that their owner could not list, by path.
pub(super) type ClosedModes = BTreeMap<Vec<u8>, u32>;

/// An open directory of the overlay's upper part, with its entries.
#[derive(Debug)]
pub(super) struct UpperListing {
    pub(super) fd: OwnedFd,
    /// Hides the workspace's entries of this directory (an opaque directory).
    pub(super) opaque: bool,
    /// It was made for a directory of the workspace.
    pub(super) copied_up: bool,
    /// In the order of names.
    pub(super) entries: Vec<UpperEntry>,
}

/// An entry of such a directory.
#[derive(Debug)]
pub(super) struct UpperEntry {
    pub(super) name: Vec<u8>,
    pub(super) kind: UpperEntryKind,
    pub(super) stat: FileStat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpperEntryKind {
    /// Hides the workspace's entry of this name.
    Whiteout,
    File,
    Directory,
    Link,
    /// A pipe, a socket or a device.
    Special,
}

/// A regular file of the upper directory.
#[derive(Debug)]
pub(super) struct UpperFile {
    pub(super) fd: OwnedFd,
    /// It was made for a file of the workspace.
    pub(super) copied_up: bool,
}

impl UpperLayer {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self::with_closed_modes(root, ClosedModes::new())
    }

    /// The same where directories were made readable before.
    pub(super) fn with_closed_modes(root: OwnedFd, modes: ClosedModes) -> Self {
        Self { root, closed_modes: Mutex::new(modes), is_running: false }
    }

    /// The same while its program runs: directories that are made readable are closed again.
    pub(super) fn of_running(root: OwnedFd) -> Self {
        let mut upper = Self::new(root);
        upper.is_running = true;
        upper
    }

    /// Gives the directories that were made readable their modes again, the innermost first.
    pub(super) fn close_again(&mut self) {
        for (path, mode) in std::mem::take(self.closed_modes.get_mut()).iter().rev() {
            let place = PATH_ONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let Ok(directory) = open_beneath(self.root.as_fd(), path, place) else { continue };
            // Its program may have chosen another mode meanwhile.
            if fstat(&directory).is_ok_and(|found| FileStat::from_stat(&found).mode == READABLE) {
                let _ = chmod_fd(directory.as_fd(), *mode);
            }
        }
    }

    /// The modes of the directories that were made readable until now.
    pub(super) fn closed_modes(&self) -> ClosedModes {
        self.closed_modes.lock().clone()
    }

    /// Removes an entry whose change was made in the workspace. A directory that still has entries stays.
    pub(super) fn remove(&self, path: &[u8]) -> Result<(), Errno> {
        let (above, name) = split(path);
        let directory = self.open_directory(above)?;
        match unlinkat(&directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            Err(Errno::NOENT) => return Ok(()),
            removed => return removed,
        }
        match unlinkat(&directory, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Lets the entries of the workspace be seen in a directory that is in the workspace by now: overlayfs makes every new
    /// directory hide what could be below it.
    pub(super) fn unhide(&self, path: &[u8]) -> Result<(), Errno> {
        let directory = match self.open_directory(path) {
            Err(Errno::NOENT) => return Ok(()),
            directory => directory?,
        };
        PREFIXES.iter().try_for_each(|prefix| match fremovexattr(&directory, [*prefix, b"opaque"].concat()) {
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
            removed => removed,
        })
    }

    /// Whether there is an entry, other than one that hides that of the workspace.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        let (above, name) = split(path);
        let found = self.open_directory(above).and_then(|directory| stat(directory.as_fd(), name));
        found.is_ok_and(|found| found.is_some_and(|found| found.kind != FileKind::Device))
    }

    /// Hides an entry that the workspace has by now, if the program removed its own before: it left nothing that would.
    pub(super) fn hide_removed(&self, path: &[u8]) -> Result<(), Errno> {
        let (above, name) = split(path);
        let directory = self.open_directory(above)?;
        if stat(directory.as_fd(), name)?.is_some() {
            return Ok(());
        }
        match mknodat(&directory, name, FileType::CharacterDevice, Mode::empty(), 0) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }
    }

    /// Lets no entry of the workspace be seen in a new directory, which the workspace is about to have too. The overlay of a
    /// program looks it up again when it forgot it, and would show what the program removed in it.
    pub(super) fn hide_lower(&self, path: &[u8]) -> Result<(), Errno> {
        let directory = self.open_directory(path)?;
        fsetxattr(&directory, [USER_PREFIX, b"opaque"].concat(), b"y", XattrFlags::empty())
    }

    /// Puts the directories on disk that the entries at these paths were removed from.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.root)
    }

    /// Lists a directory, by its path from the root of the upper directory. At most `most` entries.
    pub(super) fn list(
        &self,
        path: &[u8],
        most: u64,
        shown: &str,
        cx: &CallContext<'_>,
    ) -> Result<UpperListing, ToolError> {
        let fail = |errno| errno_error(errno, shown);
        let fd = self.open_directory(path).map_err(fail)?;
        let attributes = OverlayXattrs::of(&fd, shown)?;
        let opaque = attributes.value(&fd, b"opaque");
        let hides_by_attribute = opaque.as_deref() == Some(b"x");
        let mut entries = Vec::new();
        for entry in read_directory(fd.as_fd(), TempVisibility::Visible, most, shown, cx)? {
            let stat = match statat(&fd, entry.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                // Its program runs, and removed it.
                Err(Errno::NOENT) if self.is_running => continue,
                stat => stat.map_err(fail)?,
            };
            let mut stamp = FileStat::from_stat(&stat);
            let is_node = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0;
            let what = match stamp.kind {
                FileKind::File
                    if hides_by_attribute
                        && stamp.size == 0
                        && is_whiteout_marker(fd.as_fd(), &entry.name, &stamp)? =>
                {
                    UpperEntryKind::Whiteout
                }
                FileKind::File => UpperEntryKind::File,
                FileKind::Directory => {
                    let closed = self.closed_modes.lock().get(&join(path, &entry.name)).copied();
                    stamp.mode = closed.unwrap_or(stamp.mode);
                    UpperEntryKind::Directory
                }
                FileKind::Link => UpperEntryKind::Link,
                FileKind::Device if is_node => UpperEntryKind::Whiteout,
                FileKind::Fifo | FileKind::Socket | FileKind::Device => UpperEntryKind::Special,
            };
            entries.push(UpperEntry { name: entry.name, kind: what, stat: stamp });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(UpperListing { fd, opaque: opaque.as_deref() == Some(b"y"), copied_up: attributes.has(b"origin"), entries })
    }

    /// Opens a directory by its path, through no link. One that its owner may not read is made readable first, and its
    /// mode is remembered.
    pub(super) fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_OPEN;
        let place = PATH_ONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        match self.open(path, flags) {
            Ok(fd) if is_searchable(&fd)? => Ok(fd),
            Ok(_) | Err(Errno::ACCESS) => {
                let closed = self.open(path, place)?;
                let mode = FileStat::from_stat(&fstat(&closed)?).mode;
                self.closed_modes.lock().entry(path.to_vec()).or_insert(mode);
                chmod_fd(closed.as_fd(), READABLE)?;
                self.open(path, flags)
            }
            Err(errno) => Err(errno),
        }
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        open_beneath(self.root.as_fd(), path, flags)
    }
}

impl Drop for UpperLayer {
    fn drop(&mut self) {
        if self.is_running {
            self.close_again();
        }
    }
}

/// Opens what has a path below a directory that we hold, through no link and on no other mount.
pub(super) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        // Not every kernel, or sandbox around us, lets it through.
        Err(Errno::NOSYS | Errno::PERM) => open_by_steps(root, path, flags),
        opened => opened,
    }
}

fn open_by_steps(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut at = openat(root, c".", PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = names.next() {
        let flags = if names.peek().is_some() { PATH_ONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW } else { flags };
        at = openat(&at, name, flags, Mode::empty())?;
    }
    Ok(at)
}

/// Opens a regular file that was seen in a directory, if it is still what was seen.
pub(super) fn open_file(
    directory: BorrowedFd<'_>,
    name: &[u8],
    seen: &FileStat,
    shown: &str,
) -> Result<UpperFile, ToolError> {
    let fd = open_regular(directory, name, seen).map_err(|errno| match errno {
        // Only a program that still runs does that, and then this one path has to wait.
        Errno::BUSY => ToolError::new(ErrorKind::Conflict, format!("`{shown}` was changed while it was read")),
        errno => errno_error(errno, shown),
    })?;
    let attributes = OverlayXattrs::of(&fd, shown)?;
    Ok(UpperFile { fd, copied_up: attributes.has(b"origin") })
}

fn open_regular(directory: BorrowedFd<'_>, name: &[u8], seen: &FileStat) -> Result<OwnedFd, Errno> {
    let is_it = |found: &FileStat| found.kind == FileKind::File && found.same_content(seen);
    if stat(directory, name)?.is_none_or(|found| !is_it(&found)) {
        return Err(Errno::BUSY);
    }
    let open = || openat(directory, name, OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN, Mode::empty());
    let fd = match open() {
        Err(Errno::ACCESS) => {
            let place = openat(directory, name, PATH_ONLY | OFlags::NOFOLLOW, Mode::empty())?;
            if !is_it(&FileStat::from_stat(&fstat(&place)?)) {
                return Err(Errno::BUSY);
            }
            chmod_fd(place.as_fd(), 0o600)?;
            let opened = open();
            chmod_fd(place.as_fd(), seen.mode)?;
            opened?
        }
        opened => opened?,
    };
    if is_it(&FileStat::from_stat(&fstat(&fd)?)) { Ok(fd) } else { Err(Errno::BUSY) }
}

/// Whether an empty file says that what has its name below is gone.
fn is_whiteout_marker(directory: BorrowedFd<'_>, name: &[u8], seen: &FileStat) -> Result<bool, ToolError> {
    let fd = open_regular(directory, name, seen).map_err(|errno| errno_error(errno, "."))?;
    Ok(OverlayXattrs::read(&fd).map_err(|errno| errno_error(errno, "."))?.has(b"whiteout"))
}

fn is_searchable(directory: &OwnedFd) -> Result<bool, Errno> {
    let stamp = FileStat::from_stat(&fstat(directory)?);
    Ok(!stamp.denies_search() && !stamp.denies_read())
}

/// The overlay's own attributes of a file or directory, by their names without the prefix.
struct OverlayXattrs(Vec<Vec<u8>>);

impl OverlayXattrs {
    /// Fails where an attribute redirects the entry to another path: that is not trusted.
    fn of(fd: &OwnedFd, shown: &str) -> Result<Self, ToolError> {
        let attributes = Self::read(fd).map_err(|errno| errno_error(errno, shown))?;
        if attributes.has(b"redirect") || attributes.has(b"metacopy") {
            let message = format!("`{shown}` was left as a reference to another file; nothing was changed");
            return Err(ToolError::new(ErrorKind::WrongType, message));
        }
        Ok(attributes)
    }

    fn read(fd: &OwnedFd) -> Result<Self, Errno> {
        let mut names = vec![0u8; 64 << 10];
        let length = match flistxattr(fd, &mut names[..]) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => 0,
            Err(errno) => return Err(errno),
        };
        let names = names[..length].split(|byte| *byte == 0);
        let own = names.filter_map(|name| PREFIXES.iter().find_map(|prefix| name.strip_prefix(*prefix)));
        Ok(Self(own.map(<[u8]>::to_vec).collect()))
    }

    fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|own| own == name)
    }

    fn value(&self, fd: &OwnedFd, name: &[u8]) -> Option<Vec<u8>> {
        let mut value = [0u8; 16];
        let read = |prefix: &&[u8]| {
            let length = fgetxattr(fd, [*prefix, name].concat(), &mut value[..]).ok()?;
            Some(value[..length].to_vec())
        };
        if self.has(name) { PREFIXES.iter().find_map(read) } else { None }
    }
}
