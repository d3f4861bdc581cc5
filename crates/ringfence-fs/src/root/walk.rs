//! Directory walk by descriptors.
//!
//! The walk goes from a directory that we hold to its children by single names, never by a path, never through a
//! link and never onto another mount. It holds few descriptors however deep the tree: above a certain depth it
//! closes the upper ones and finds them again through `..`, which must turn out to be the same directory.
//!
//! Not here: what happens to an entry. The caller pulls one after the other, and says where to descend.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::path::guest::LONGEST_PATH;
use crate::path::name::is_reserved;
use crate::root::{MountRoot, stat};
use crate::sys::errno::errno_error;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::{fstat, openat};

/// Most levels that are held open at once.
const OPEN_LEVELS: usize = 64;

/// Directories below this depth are not entered: their names would not fit into a path.
const MAX_DEPTH: usize = 8192;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalkEntry {
    pub(crate) name: Vec<u8>,
    /// By its dirent; some file systems do not fill it in.
    pub(crate) kind: Option<FileKind>,
    /// As the directory says. Some file systems tell another one than a look does.
    pub(crate) inode: u64,
}

impl WalkEntry {
    /// An entry that a walk did not list.
    pub(crate) fn from_stat(name: &[u8], stamp: &FileStat) -> Self {
        Self { name: name.to_vec(), kind: Some(stamp.kind), inode: stamp.id.inode }
    }

    /// Whether the entry of a directory is a directory itself. A link never is.
    pub(crate) fn is_directory_in(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        match self.kind {
            Some(kind) => Ok(kind == FileKind::Directory),
            None => Ok(stat(directory, &self.name)?.is_some_and(|stamp| stamp.kind == FileKind::Directory)),
        }
    }
}

/// Whether temporary files of ours are listed. Only removal of a tree needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TempVisibility {
    Hidden,
    Visible,
}

/// The result of one step of the walk.
#[derive(Debug)]
pub(crate) enum WalkStep {
    /// An entry of the current directory.
    Entry(WalkEntry),
    /// All of a directory was seen; the current directory is the one that holds it.
    Leave(Vec<u8>),
}

/// A walk under way.
#[derive(Debug)]
pub(crate) struct TreeWalk<'a> {
    mount: &'a MountRoot,
    cx: &'a CallContext<'a>,
    shown: &'a str,
    temp_visibility: TempVisibility,
    levels: Vec<WalkLevel>,
    /// The path from the start to the current directory.
    path: Vec<u8>,
    entries_left: u64,
}

#[derive(Debug)]
struct WalkLevel {
    id: FileId,
    fd: Option<Arc<OwnedFd>>,
    /// Still to come, the next one last.
    entries: Vec<WalkEntry>,
    /// Length of `path` without this level.
    path_before: usize,
    name: Vec<u8>,
}

impl<'a> TreeWalk<'a> {
    /// A walk over the tree below `start`.
    pub(crate) fn new(
        mount: &'a MountRoot,
        start: OwnedFd,
        shown: &'a str,
        cx: &'a CallContext<'a>,
    ) -> Result<Self, ToolError> {
        Self::with_temp_visibility(TempVisibility::Hidden, mount, start, shown, cx)
    }

    pub(crate) fn with_temp_visibility(
        ours: TempVisibility,
        mount: &'a MountRoot,
        start: OwnedFd,
        shown: &'a str,
        cx: &'a CallContext<'a>,
    ) -> Result<Self, ToolError> {
        let left = cx.limits.walk_entries;
        let mut walk =
            Self { mount, cx, shown, temp_visibility: ours, levels: Vec::new(), path: Vec::new(), entries_left: left };
        walk.enter(start, Vec::new())?;
        Ok(walk)
    }

    /// The next step, in the order of names' bytes, a directory before what is in it.
    pub(crate) fn next(&mut self) -> Result<Option<WalkStep>, ToolError> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        if let Some(entry) = level.entries.pop() {
            return Ok(Some(WalkStep::Entry(entry)));
        }
        let Some(done) = self.levels.pop() else { return Ok(None) };
        self.path.truncate(done.path_before);
        if self.levels.is_empty() {
            return Ok(None);
        }
        self.reopen(&done)?;
        Ok(Some(WalkStep::Leave(done.name)))
    }

    /// The directory that the last entry is in.
    pub(crate) fn directory(&self) -> Result<BorrowedFd<'_>, ToolError> {
        let fd = self.levels.last().and_then(|level| level.fd.as_deref());
        fd.map(AsFd::as_fd).ok_or_else(|| errno_error(Errno::BADF, self.shown))
    }

    /// The same, to be kept while the walk goes on.
    pub(crate) fn held_directory(&self) -> Result<Arc<OwnedFd>, ToolError> {
        let fd = self.levels.last().and_then(|level| level.fd.clone());
        fd.ok_or_else(|| errno_error(Errno::BADF, self.shown))
    }

    pub(crate) fn mount(&self) -> &'a MountRoot {
        self.mount
    }

    /// Depth of the current directory below the start.
    pub(crate) fn depth(&self) -> usize {
        self.levels.len().saturating_sub(1)
    }

    /// Path of an entry from the start of the walk.
    pub(crate) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Whether an entry is a directory, to be descended into. A link never is.
    pub(crate) fn is_directory(&self, entry: &WalkEntry) -> Result<bool, ToolError> {
        entry.is_directory_in(self.directory()?).map_err(|errno| errno_error(errno, self.shown))
    }

    /// Whether an entry is a regular file.
    pub(crate) fn is_file(&self, entry: &WalkEntry) -> Result<bool, ToolError> {
        match entry.kind {
            Some(kind) => Ok(kind == FileKind::File),
            None => Ok(self.stat(entry)?.is_some_and(|stamp| stamp.kind == FileKind::File)),
        }
    }

    /// The stat of an entry. `None` if it was removed meanwhile.
    pub(crate) fn stat(&self, entry: &WalkEntry) -> Result<Option<FileStat>, ToolError> {
        stat(self.directory()?, &entry.name).map_err(|errno| errno_error(errno, self.shown))
    }

    /// Goes into a directory of the current one. The error is the kernel's, for the caller to weigh.
    pub(crate) fn descend(&mut self, entry: &WalkEntry) -> Result<Result<(), Errno>, ToolError> {
        self.descend_after(entry, |_| {})
    }

    /// The same. `before_listing` gets the directory once it is open.
    pub(crate) fn descend_after(
        &mut self,
        entry: &WalkEntry,
        before_listing: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<Result<(), Errno>, ToolError> {
        // Deeper entries have no valid path; only removal of a tree descends there.
        let unnameable =
            self.temp_visibility == TempVisibility::Hidden && self.path.len() + entry.name.len() >= LONGEST_PATH;
        if self.levels.len() >= MAX_DEPTH || unnameable {
            return Ok(Err(Errno::NAMETOOLONG));
        }
        match open_listable(self.mount, self.directory()?, &entry.name) {
            Ok(child) => {
                before_listing(child.as_fd());
                self.enter(child, entry.name.clone())?;
                Ok(Ok(()))
            }
            Err(errno) => Ok(Err(errno)),
        }
    }

    fn enter(&mut self, fd: OwnedFd, name: Vec<u8>) -> Result<(), ToolError> {
        let id = FileStat::from_stat(&fstat(&fd).map_err(|errno| errno_error(errno, self.shown))?).id;
        let mut entries = self.read(fd.as_fd())?;
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        let path_before = self.path.len();
        if !name.is_empty() {
            self.path = self.path_of(&name);
        }
        self.levels.push(WalkLevel { id, fd: Some(Arc::new(fd)), entries, path_before, name });
        if let Some(upper) = self.levels.len().checked_sub(OPEN_LEVELS + 1) {
            self.levels[upper].fd = None;
        }
        Ok(())
    }

    fn read(&mut self, fd: BorrowedFd<'_>) -> Result<Vec<WalkEntry>, ToolError> {
        let entries = read_directory(fd, self.temp_visibility, self.entries_left, self.shown, self.cx)?;
        self.entries_left = self.entries_left.saturating_sub(entries.len() as u64);
        Ok(entries)
    }

    /// Comes back to a directory whose descriptor was given up: through `..`, and only if it is the same one.
    fn reopen(&mut self, below: &WalkLevel) -> Result<(), ToolError> {
        let shown = self.shown;
        let Some(level) = self.levels.last_mut().filter(|level| level.fd.is_none()) else { return Ok(()) };
        let Some(child) = &below.fd else { return Err(errno_error(Errno::BADF, shown)) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
        let parent = openat(child.as_fd(), c"..", flags, Mode::empty()).map_err(|errno| errno_error(errno, shown))?;
        if FileStat::from_stat(&fstat(&parent).map_err(|errno| errno_error(errno, shown))?).id != level.id {
            let message = format!("`{shown}` was moved while it was being walked");
            return Err(ToolError::new(ErrorKind::Conflict, message));
        }
        level.fd = Some(Arc::new(parent));
        Ok(())
    }
}

/// Opens a directory of a held one, if it may be listed: also root does not list one that denies it to every user.
pub(crate) fn open_listable(mount: &MountRoot, directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let child = mount.resolver.open_child(directory, name)?;
    if FileStat::from_stat(&fstat(&child)?).denies_read() { Err(Errno::ACCESS) } else { Ok(child) }
}

/// The names in a directory, in no order. More than `most` is an error.
pub(crate) fn read_directory(
    fd: BorrowedFd<'_>,
    ours: TempVisibility,
    most: u64,
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<Vec<WalkEntry>, ToolError> {
    let mut entries = Vec::new();
    let mut buffer = vec![MaybeUninit::uninit(); 64 << 10];
    let mut raw = RawDir::new(fd, &mut buffer);
    loop {
        if raw.is_buffer_empty() {
            cx.check()?;
        }
        let Some(entry) = raw.next() else { return Ok(entries) };
        let entry = match entry {
            Err(Errno::INTR) => continue,
            entry => entry.map_err(|errno| errno_error(errno, shown))?,
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || (ours == TempVisibility::Hidden && is_reserved(name)) {
            continue;
        }
        if entries.len() as u64 == most {
            let message = format!("`{shown}` exceeds the {} entries that one call may visit", cx.limits.walk_entries);
            return Err(ToolError::new(ErrorKind::ReadLimit, message).hint("choose a smaller directory"));
        }
        let kind = FileKind::from_file_type(entry.file_type());
        entries.push(WalkEntry { name: name.to_vec(), kind, inode: entry.ino() });
    }
}
