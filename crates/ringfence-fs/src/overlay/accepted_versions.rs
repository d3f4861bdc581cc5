//! Accepted versions of workspace entries: those that a layer was compared with when a part of it was kept.
//!
//! A kept layer is compared with the live workspace, in which everything that changed since the start is a conflict. What
//! a keep itself changed there is none: before it is made, the version before and the one after it are recorded. A version
//! is a digest of contents and never a time, so an undo of the keep does not conflict either.
//!
//! Not here: where they are stored (`layer_record.rs`), and what a running program's checkpoints add (`layer_checkpoint.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{CallContext, ToolError};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mount::Mount;
use crate::overlay::ChangeSet;
use crate::overlay::checkpoint_memory::LiveComparison;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path};
use crate::path::name::{escape, unescape};
use crate::path::relative::split;
use crate::read::content::hash_up_to;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::walk::{TempVisibility, read_directory};
use crate::root::{open_no_follow, reopen_for_listing, stat};
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, readlinkat};

/// The start of a program, and what counts as unchanged since.
#[derive(Debug, Default)]
pub(super) struct OverlayBaseline {
    /// In nanoseconds since 1970.
    pub(super) started: i128,
    pub(super) accepted: AcceptedVersions,
    /// Versions that others made while the program ran and that it found, by path.
    pub(super) synced: BTreeMap<Vec<u8>, String>,
    /// Secrets that were hidden from the program by a deletion.
    pub(super) hidden: BTreeSet<Vec<u8>>,
    /// Most bytes of new contents, where that is not the limit of the call.
    pub(super) most_bytes: Option<u64>,
    /// Where the program still runs.
    pub(super) live: Option<LiveComparison>,
}

impl OverlayBaseline {
    /// Whether an entry is as the program found it, although others changed it since the start.
    pub(super) fn is_synced(&self, path: &[u8], stat: &FileStat) -> bool {
        self.synced.get(path).is_some_and(|version| *version == stat.version())
    }
}

/// Most versions of one path. Older ones are forgotten: a workspace that has one of them again is in conflict.
const MOST_VERSIONS: usize = 256;

/// Versions by path, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AcceptedVersions(BTreeMap<Vec<u8>, Vec<String>>);

impl AcceptedVersions {
    pub(super) fn has_path(&self, path: &[u8]) -> bool {
        self.0.contains_key(path)
    }

    pub(super) fn contains(&self, path: &[u8], version: Digest) -> bool {
        self.0.get(path).is_some_and(|versions| versions.contains(&version.to_hex()))
    }

    /// Whether this is the version that was accepted last.
    pub(super) fn is_newest(&self, path: &[u8], version: Digest) -> bool {
        self.0.get(path).and_then(|versions| versions.last()).is_some_and(|newest| *newest == version.to_hex())
    }

    pub(super) fn insert(&mut self, path: &[u8], version: Digest) {
        let (versions, version) = (self.0.entry(path.to_vec()).or_default(), version.to_hex());
        versions.retain(|other| *other != version);
        versions.push(version);
        if versions.len() > MOST_VERSIONS {
            versions.remove(0);
        }
    }

    /// Forgets a version that did not come to be.
    pub(super) fn forget(&mut self, path: &[u8], version: Digest) {
        if let Some(versions) = self.0.get_mut(path) {
            let version = version.to_hex();
            versions.retain(|other| *other != version);
        }
    }

    /// The form in which they are stored, by escaped path.
    pub(super) fn to_stored(&self) -> BTreeMap<String, Vec<String>> {
        self.0.iter().map(|(path, versions)| (escape(path), versions.clone())).collect()
    }

    pub(super) fn from_stored(stored: &BTreeMap<String, Vec<String>>) -> Self {
        Self(stored.iter().map(|(path, versions)| (unescape(path), versions.clone())).collect())
    }

    /// Whether a directory has an accepted version.
    pub(super) fn contains_directory(
        &self,
        (path, directory): (&[u8], BorrowedFd<'_>),
        shown: &str,
        cx: &CallContext<'_>,
    ) -> Result<bool, ToolError> {
        if !self.has_path(path) {
            return Ok(false);
        }
        Ok(self.contains_version(path, &DirectoryVersion::read(directory, shown, cx)?))
    }

    fn contains_version(&self, path: &[u8], version: &DirectoryVersion) -> bool {
        self.contains(path, version.digest()) || self.contains(path, version.of_new_directory().digest())
    }
}

/// What a directory is and which names it has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirectoryVersion {
    inode: u64,
    mode: u32,
    names: BTreeSet<Vec<u8>>,
}

impl DirectoryVersion {
    fn read(directory: BorrowedFd<'_>, shown: &str, cx: &CallContext<'_>) -> Result<Self, ToolError> {
        let fail = |errno: Errno| errno_error(errno, shown);
        let listed = reopen_for_listing(directory).map_err(fail)?;
        let stat = FileStat::from_stat(&fstat(&listed).map_err(fail)?);
        let most = cx.limits.walk_entries;
        let entries = read_directory(listed.as_fd(), TempVisibility::Hidden, most, shown, cx)?;
        Ok(Self { inode: stat.id.inode, mode: stat.mode, names: entries.into_iter().map(|entry| entry.name).collect() })
    }

    /// The version of a directory that a keep makes, of which only the names are known before.
    fn of_new_directory(&self) -> Self {
        Self { inode: 0, mode: 0, names: self.names.clone() }
    }

    fn digest(&self) -> Digest {
        let mut hasher = Sha256Hasher::default();
        hasher.update(format!("directory {} {:o}\0", self.inode, self.mode).as_bytes());
        for name in &self.names {
            hasher.update(name);
            hasher.update(b"\0");
        }
        hasher.finish()
    }
}

/// The version of a link with this target.
pub(super) fn link_version(target: &[u8]) -> Digest {
    Digest::of(&[b"link\0".as_slice(), target].concat())
}

/// The version of an entry that is as it was seen. Nothing where it has none, or cannot be read.
pub(super) fn replaced_version(
    mount: &Mount,
    parent: BorrowedFd<'_>,
    name: &[u8],
    seen: &FileStat,
    cx: &CallContext<'_>,
) -> Result<Option<Digest>, ToolError> {
    let is_seen = |found: &FileStat| found == seen;
    match seen.kind {
        FileKind::File => {
            let Ok(file) = mount.open_at(parent, name, OFlags::RDONLY) else { return Ok(None) };
            let is_it = fstat(&file).is_ok_and(|found| is_seen(&FileStat::from_stat(&found)));
            let version = hash_up_to(file.as_fd(), seen.size, "", cx);
            Ok(version.ok().filter(|_| is_it))
        }
        FileKind::Link => {
            let target = readlinkat(parent, name).ok();
            let is_it = stat(parent, name).is_ok_and(|found| found.as_ref().is_some_and(is_seen));
            let version = target.map(|target| link_version(target.as_bytes()));
            Ok(version.filter(|_| is_it))
        }
        FileKind::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let Ok(directory) = mount.open_at(parent, name, flags) else { return Ok(None) };
            let is_it = fstat(&directory).is_ok_and(|found| is_seen(&FileStat::from_stat(&found)));
            let version = DirectoryVersion::read(directory.as_fd(), &escape(name), cx)?;
            Ok(Some(version.digest()).filter(|_| is_it))
        }
        _ => Ok(None),
    }
}

impl ChangeSet {
    /// Adds the versions before and after a keep of these items: of the files whose contents are kept in part, and of the
    /// directories whose names and modes change. Of everything else that it replaces or removes, the version before: a keep
    /// that is rolled back leaves the same entries with another time.
    pub(super) fn accept_keep(
        &self,
        accepted: &mut AcceptedVersions,
        kept: &[&OverlayChange],
        baseline: &OverlayBaseline,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        for item in kept {
            if let (Some(before), Some(OverlayUpperState::File { digest, .. })) =
                (self.partial.get(&item.path).map(|partial| partial.base), &item.upper)
            {
                accepted.insert(&item.path, before);
                accepted.insert(&item.path, *digest);
            } else {
                self.accept_replaced(accepted, item, cx)?;
            }
        }
        for directory in kept.iter().filter(|item| item.is_new_directory()) {
            let inside = kept.iter().filter(|item| split(&item.path).0 == directory.path);
            let names = inside.map(|item| split(&item.path).1.to_vec()).collect();
            accepted.insert(&directory.path, DirectoryVersion { inode: 0, mode: 0, names }.digest());
        }
        // By directory: its own new mode, and what happens to its names.
        let mut directories: BTreeMap<&[u8], Vec<&OverlayChange>> = BTreeMap::new();
        for item in kept.iter().filter(|item| !item.in_new_directory) {
            directories.entry(split(&item.path).0).or_default().push(item);
            if item.directory_mode().is_some() {
                directories.entry(&item.path).or_default().push(item);
            }
        }
        for (path, items) in directories {
            self.accept_directory(accepted, path, &items, baseline, cx)?;
        }
        Ok(())
    }

    /// Adds the version of the entry that an item replaces or removes, if it has one that can be read.
    fn accept_replaced(
        &self,
        accepted: &mut AcceptedVersions,
        item: &OverlayChange,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let Some(was) = item.lower.as_ref().filter(|_| item.directory_mode().is_none()) else { return Ok(()) };
        let (above, name) = split(&item.path);
        let Some(parent) = open_no_follow(&self.mount, above) else { return Ok(()) };
        let version = replaced_version(&self.mount, parent.as_fd(), name, &was.stat, cx)?;
        version.into_iter().for_each(|version| accepted.insert(&item.path, version));
        Ok(())
    }

    fn accept_directory(
        &self,
        accepted: &mut AcceptedVersions,
        path: &[u8],
        items: &[&OverlayChange],
        baseline: &OverlayBaseline,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let shown = display_path(&self.mount, path);
        let Some(directory) = open_no_follow(&self.mount, path) else { return Ok(()) };
        let found = FileStat::from_stat(&fstat(&directory).map_err(|errno| errno_error(errno, &shown))?);
        let before = DirectoryVersion::read(directory.as_fd(), &shown, cx)?;
        // Of a directory that others changed since the start, no version is accepted.
        let is_synced = baseline.is_synced(path, &found);
        if found.changed >= baseline.started && !is_synced && !accepted.contains_version(path, &before) {
            return Ok(());
        }
        let mut after = before.clone();
        for item in items {
            let name = split(&item.path).1;
            match (&item.lower, &item.upper) {
                _ if item.path == path => {
                    after.mode = item.directory_mode().map_or(after.mode, |mode| after.mode & 0o7000 | mode);
                }
                (_, None) => _ = after.names.remove(name),
                (None, Some(_)) => _ = after.names.insert(name.to_vec()),
                (Some(_), Some(_)) => {}
            }
        }
        accepted.insert(path, before.digest());
        accepted.insert(path, after.digest());
        Ok(())
    }
}
