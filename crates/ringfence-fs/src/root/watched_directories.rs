//! Watched directories of a mount, by their paths.
//!
//! Not here: what is looked at in them (`overlay/mask_scan.rs`, `source_listing.rs`), and the watch itself (`ringfence-sys`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::IoMode;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::path::relative::{join, range_below};
use crate::root::MountRoot;
use crate::root::resolver::{LinkPolicy, OpenHow};
use crate::sys::directory_watch::{DirectoryWatch, WatchId, WatchReports, WatchScope};
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::FileStat;
use crate::sys::syscall::fstat;

/// The directories of a mount that are watched. The root has an empty path.
#[derive(Debug)]
pub(crate) struct WatchedDirectories {
    watch: DirectoryWatch,
    ids: BTreeMap<Vec<u8>, WatchId>,
    paths: HashMap<WatchId, Vec<u8>>,
    /// Permissions of the directories when they were added.
    modes: HashMap<WatchId, u32>,
    /// The first failure to watch a directory: changes in that one are not reported.
    failure: Option<Errno>,
}

impl WatchedDirectories {
    pub(crate) fn new(scope: WatchScope) -> Result<Self, Errno> {
        DirectoryWatch::new(scope).map(Self::of)
    }

    /// The same with another limit on the watches.
    pub(crate) fn with_limit(scope: WatchScope, most: usize) -> Result<Self, Errno> {
        DirectoryWatch::with_limit(scope, most).map(Self::of)
    }

    fn of(watch: DirectoryWatch) -> Self {
        Self { watch, ids: BTreeMap::new(), paths: HashMap::new(), modes: HashMap::new(), failure: None }
    }

    /// Readable when there is a report.
    pub(crate) fn queue(&self) -> Arc<OwnedFd> {
        self.watch.queue()
    }

    /// Permissions of a directory when it was added.
    pub(crate) fn mode_of(&self, path: &[u8]) -> Option<u32> {
        self.modes.get(self.ids.get(path)?).copied()
    }

    /// Watches a directory from now on.
    pub(crate) fn add(&mut self, path: &[u8], directory: BorrowedFd<'_>) {
        match self.watch.add(directory) {
            Ok(id) => {
                // A directory that was moved has its old path until now.
                if let Some(old) = self.paths.insert(id, path.to_vec()).filter(|old| old != path) {
                    self.ids.remove(&old);
                }
                self.ids.insert(path.to_vec(), id);
                if let Ok(stat) = fstat(directory) {
                    self.modes.insert(id, FileStat::from_stat(&stat).mode);
                }
            }
            Err(errno) => self.failure = self.failure.or(Some(errno)),
        }
    }

    /// Whether every directory that was added is watched.
    pub(crate) fn is_complete(&self) -> bool {
        self.failure.is_none()
    }

    /// Whether there is a watched directory at a path.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.ids.contains_key(path)
    }

    /// Ends the watches of a directory and of those below it.
    pub(crate) fn forget(&mut self, path: &[u8]) {
        let (from, to) = range_below(path);
        let below = self.ids.range(from..to).map(|(path, _)| path.clone());
        let gone: Vec<_> = below.chain(std::iter::once(path.to_vec())).collect();
        for id in gone.iter().filter_map(|path| self.ids.remove(path)).collect::<Vec<_>>() {
            self.paths.remove(&id);
            self.modes.remove(&id);
            self.watch.remove(id);
        }
    }

    /// Paths of the entries that changed since the last time. Nothing if they cannot all be told.
    pub(crate) fn changed_entries(&mut self) -> Option<BTreeSet<Vec<u8>>> {
        match self.watch.read() {
            Ok(WatchReports::Entries(entries)) => {
                let path = |(id, name): (WatchId, Vec<u8>)| Some(join(self.paths.get(&id)?, &name));
                Some(entries.into_iter().filter_map(path).collect())
            }
            Ok(WatchReports::Lost) | Err(_) => None,
        }
    }

    /// Opens a directory by its path. `Changed` where that does not lead to the directory that is watched.
    pub(crate) fn open(&mut self, mount: &MountRoot, path: &[u8]) -> Result<WatchedDirectory, Errno> {
        let Some(id) = self.ids.get(path).copied() else { return Ok(WatchedDirectory::Unwatched) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
        let how = OpenHow { flags, links: LinkPolicy::Refuse, pace: IoMode::Blocking };
        let name = if path.is_empty() { b"." } else { path };
        match mount.resolver.open(mount.root.as_fd(), name, how) {
            Ok(directory) if self.watch.add(directory.as_fd()) == Ok(id) => Ok(WatchedDirectory::Open(directory)),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => {
                Ok(WatchedDirectory::Changed)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// A directory that an entry was reported in.
#[derive(Debug)]
pub(crate) enum WatchedDirectory {
    Open(OwnedFd),
    /// Another directory has its path by now.
    Changed,
    /// It is not watched any more.
    Unwatched,
}
