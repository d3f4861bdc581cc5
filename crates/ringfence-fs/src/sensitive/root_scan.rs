//! Scan of a workspace root: what usually is there is looked at before a call, so that a link to it is known.
//!
//! A scan looks at names that say something, and at links. Which these are is known from one scan to the next where the root
//! is large and can be watched: then a change of one entry costs the same whatever the number of others. Everything is
//! listed again where that cannot be known from reports.
//!
//! Not here: what is remembered of a file (`files.rs`), and of links (`linked_directories.rs`).

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallContext, IoMode, ToolError, sensitivity};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::path::name::{is_reserved, unescape};
use crate::root::resolver::{LinkPolicy, OpenHow, PATH_ONLY};
use crate::root::watched_directories::WatchedDirectories;
use crate::root::{MountRoot, stat};
use crate::sensitive::files::{SensitiveFiles, SensitivityStorage};
use crate::sensitive::linked_directories::{followed_inside, is_sensitive_link};
use crate::sys::directory_watch::WatchScope;
use crate::sys::errno::errno_error;
use crate::sys::file_ref::{FileRef, InodeIdentity};
use crate::sys::own_files::{SAFE_OPEN, typed_names_in};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::fstat;

/// Larger directories are not scanned.
const MOST_NAMES: usize = 20_000;

/// Most directories at the root that are scanned, unless they are larger than that.
const MOST_DIRECTORIES: usize = 64;
const MOST_BELOW: usize = 2000;

/// Most links at the root that are followed to directories.
const MOST_LINKS: usize = 1000;

/// A root with fewer names is listed again: the watches of a user are few.
const LEAST_WATCHED: usize = 200;

/// More reports cost more than a listing.
const MOST_REPORTED: usize = 1000;

const FOLLOWED_DIRECTORY: OpenHow = OpenHow {
    flags: OFlags::RDONLY.union(OFlags::DIRECTORY).union(SAFE_OPEN),
    links: LinkPolicy::Follow,
    pace: IoMode::Blocking,
};

/// The last scan of a mount.
#[derive(Debug, Default)]
pub(super) struct RootScan(Mutex<Option<ScannedRoot>>);

/// A root as it was looked at.
#[derive(Debug)]
struct ScannedRoot {
    /// Time of its last change before that. Nothing where reports were lost since.
    changed: Option<i128>,
    /// The directories that were looked through, each with the time of its last change. Links that are made there later
    /// change it.
    directories: Arc<[(String, i128)]>,
    entries: RootEntries,
    watch: Option<WatchedDirectories>,
    /// Entries that were reported since.
    reported: BTreeSet<Vec<u8>>,
}

/// The entries of a root that a scan looks at.
#[derive(Debug, Default)]
struct RootEntries {
    entries: Vec<RootEntry>,
    /// There are many others, so that a listing takes long.
    is_large: bool,
}

#[derive(Debug)]
struct RootEntry {
    name: String,
    /// Whether it may be a link: not every file system lists types.
    is_link: bool,
}

impl SensitiveFiles {
    /// Before a call: hears what other processes came across, and looks at what usually is at the root of a workspace, so that
    /// a link to it is known: the first time, and where something was made or removed there since.
    pub(crate) fn scan_root(&self, mount: &MountRoot, cx: &CallContext<'_>) -> Result<(), ToolError> {
        self.read_new_lines();
        if cx.io_mode == IoMode::NonBlocking {
            // About the root alone.
            let is_as_scanned = |last: &mut ScannedRoot| last.has_same_entries(mount);
            let last = self.root_scan.0.try_lock();
            let is_as_scanned = last.is_some_and(|mut last| last.as_mut().is_some_and(is_as_scanned));
            return if is_as_scanned { Ok(()) } else { Err(cx.would_block()) };
        }
        let mut last = self.root_scan.0.lock();
        let same = last.as_mut().and_then(|last| last.has_same_entries(mount).then(|| Arc::clone(&last.directories)));
        if let Some(directories) = same {
            drop(last);
            if directories.iter().all(|directory| is_unchanged(mount, directory)) {
                return Ok(());
            }
            last = self.root_scan.0.lock();
        }
        // It is put back when everything was looked at.
        let scanned = self.scan_again(mount, last.take(), cx)?;
        *last = Some(scanned);
        Ok(())
    }

    fn scan_again(
        &self,
        mount: &MountRoot,
        last: Option<ScannedRoot>,
        cx: &CallContext<'_>,
    ) -> Result<ScannedRoot, ToolError> {
        // Before anything is looked at: what comes meanwhile counts as later.
        let changed = root_changed(mount);
        let (entries, watch) = match last {
            Some(last) => last.current_entries(mount, changed)?,
            None => (RootEntries::list(mount)?, None),
        };
        let directories = self.look_at(mount, &entries, cx)?;
        Ok(ScannedRoot { changed, directories: directories.into(), entries, watch, reported: BTreeSet::new() })
    }

    /// Looks at entries of the root. Returns the directories that were looked through.
    fn look_at(
        &self,
        mount: &MountRoot,
        RootEntries { entries, .. }: &RootEntries,
        cx: &CallContext<'_>,
    ) -> Result<Vec<(String, i128)>, ToolError> {
        let root = mount.root.as_fd();
        entries.iter().for_each(|entry| self.observe_unrecorded(mount, &entry.name, root, &entry.name));
        // The ones that bring settings come first, however many others there are.
        let mut links: Vec<&str> = entries.iter().filter(|entry| entry.is_link).map(|entry| &*entry.name).collect();
        links.sort_by_cached_key(|name| !is_sensitive_link(name));
        links.iter().take(MOST_LINKS).try_for_each(|link| self.observe_directory_link(mount, link))?;
        let mut directories = Vec::new();
        for above in entries.iter().map(|entry| &entry.name).filter(|name| is_telling(name)).take(MOST_DIRECTORIES) {
            cx.check()?;
            let opened = mount.resolver.open_child(root, above.as_bytes());
            if let Ok(directory) = &opened
                && let Ok(stat) = fstat(directory)
            {
                directories.push((above.clone(), FileStat::from_stat(&stat).changed));
            }
            let opened = opened.or_else(|_| open_followed(mount, above, FOLLOWED_DIRECTORY));
            let Some(directory) = default_if_absent(opened.map(Some))? else { continue };
            for entry in default_if_absent(typed_names_in(directory.as_fd(), MOST_BELOW))? {
                let path = format!("{above}/{}", entry.0);
                self.observe_unrecorded(mount, &path, directory.as_fd(), &entry.0);
                if may_be_link(&entry) && is_sensitive_link(&path) {
                    self.observe_directory_link(mount, &path)?;
                }
            }
        }
        Ok(directories)
    }

    /// Remembers where a link leads, if that is a directory inside.
    fn observe_directory_link(&self, mount: &MountRoot, link: &str) -> Result<(), ToolError> {
        let opened = open_followed(mount, link, FOLLOWED_DIRECTORY);
        if let Some(directory) = default_if_absent(opened.map(Some))?
            && let Some(target) = default_if_absent(mount.real_name(directory.as_fd()))?
            && target != link
        {
            self.linked().add(link, &unescape(&target));
        }
        Ok(())
    }

    /// Observes an entry that every process finds by scanning and that is only protected, without storing it.
    fn observe_unrecorded(&self, mount: &MountRoot, path: &str, directory: BorrowedFd<'_>, name: &str) {
        let named = sensitivity(path);
        if !named.is_any() {
            return;
        }
        let at = FileRef { fd: directory, name: name.as_bytes() };
        let keep = if named.secret { SensitivityStorage::Recorded } else { SensitivityStorage::InMemory };
        match stat(directory, at.name) {
            Ok(Some(stamp)) if stamp.kind == FileKind::File => {
                self.insert(InodeIdentity::of(at, &stamp), named, keep);
            }
            // A link's target is read and obeyed under the name of the link.
            Ok(Some(stamp)) if stamp.kind == FileKind::Link => {
                let how = OpenHow { flags: PATH_ONLY, links: LinkPolicy::Follow, pace: IoMode::Blocking };
                if let Ok(target) = open_followed(mount, path, how)
                    && let Ok(stamp) = fstat(&target).map(|stat| FileStat::from_stat(&stat))
                    && stamp.kind == FileKind::File
                {
                    self.insert(InodeIdentity::of(FileRef::open(&target), &stamp), named, keep);
                }
            }
            _ => {}
        }
    }
}

impl ScannedRoot {
    /// Whether the root has the entries that it had.
    fn has_same_entries(&mut self, mount: &MountRoot) -> bool {
        // Reports are read even so: a change has its time before it is reported.
        let changed = root_changed(mount);
        self.read_reports();
        changed.is_some() && changed == self.changed && self.reported.is_empty()
    }

    fn read_reports(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        match watch.changed_entries() {
            Some(reported) => self.reported.extend(reported),
            None => (self.watch, self.changed) = (None, None),
        }
    }

    /// The entries that a scan looks at now, and their watch. `changed` is the time of the root's last change.
    fn current_entries(
        mut self,
        mount: &MountRoot,
        changed: Option<i128>,
    ) -> Result<(RootEntries, Option<WatchedDirectories>), ToolError> {
        self.read_reports();
        // A change of the root without a report is one that the watch does not tell.
        let is_told = !self.reported.is_empty() || (changed.is_some() && changed == self.changed);
        if self.watch.is_some() && is_told && self.reported.len() <= MOST_REPORTED {
            self.entries.update(mount, &self.reported)?;
            return Ok((self.entries, self.watch));
        }
        // Watched before it is listed. Only a local file system reports what others change.
        let is_wanted = self.entries.is_large && mount.supports_non_blocking;
        let watch = self.watch.or_else(|| is_wanted.then(|| watch_root(mount)).flatten());
        Ok((RootEntries::list(mount)?, watch))
    }
}

impl RootEntries {
    fn list(mount: &MountRoot) -> Result<Self, ToolError> {
        let names = default_if_absent(typed_names_in(mount.root.as_fd(), MOST_NAMES))?;
        // Of more than can be listed there are none.
        let is_large = names.is_empty() || names.len() >= LEAST_WATCHED;
        let entries = names.into_iter().map(|entry| RootEntry { is_link: may_be_link(&entry), name: entry.0 });
        Ok(Self { entries: entries.filter(RootEntry::is_of_interest).collect(), is_large })
    }

    /// Looks again at what was reported.
    fn update(&mut self, mount: &MountRoot, reported: &BTreeSet<Vec<u8>>) -> Result<(), ToolError> {
        for name in reported {
            let Ok(name) = std::str::from_utf8(name) else { continue };
            let found = default_if_absent(stat(mount.root.as_fd(), name.as_bytes()))?;
            let entry = found
                .map(|found| RootEntry { name: name.to_owned(), is_link: found.kind == FileKind::Link })
                .filter(RootEntry::is_of_interest);
            let position = self.entries.iter().position(|known| known.name == name);
            match (position, entry) {
                (Some(position), Some(entry)) => self.entries[position] = entry,
                (Some(position), None) => drop(self.entries.remove(position)),
                (None, Some(entry)) => self.entries.push(entry),
                (None, None) => {}
            }
        }
        Ok(())
    }
}

impl RootEntry {
    /// Images keep the sensitivity of their files, and are not settings. What is above is not in the workspace.
    fn is_of_interest(&self) -> bool {
        let is_outside = is_reserved(self.name.as_bytes()) || matches!(&*self.name, "." | "..");
        !is_outside && (self.is_link || is_telling(&self.name))
    }
}

/// Whether a name may be that of a directory of settings, or says something itself.
fn is_telling(name: &str) -> bool {
    name.starts_with('.') || sensitivity(name).is_any()
}

fn watch_root(mount: &MountRoot) -> Option<WatchedDirectories> {
    let mut watch = WatchedDirectories::new(WatchScope::Entries).ok()?;
    watch.add(b"", mount.root.as_fd());
    watch.is_complete().then_some(watch)
}

fn root_changed(mount: &MountRoot) -> Option<i128> {
    fstat(&mount.root).ok().map(|stat| FileStat::from_stat(&stat).changed)
}

fn is_unchanged(mount: &MountRoot, (name, changed): &(String, i128)) -> bool {
    matches!(stat(mount.root.as_fd(), name.as_bytes()), Ok(Some(stamp)) if stamp.changed == *changed)
}

/// Opens what a link leads to inside, as other programs follow it.
fn open_followed(mount: &MountRoot, path: &str, how: OpenHow) -> Result<OwnedFd, Errno> {
    let root = mount.root.as_fd();
    match mount.resolver.open(root, path.as_bytes(), how) {
        Err(Errno::XDEV) => {
            let inside = followed_inside(mount, path.as_bytes()).ok_or(Errno::XDEV)?;
            mount.resolver.open(root, if inside.is_empty() { b"." } else { &inside }, how)
        }
        opened => opened,
    }
}

/// Not every file system lists types. There, only names that begin with a dot are looked at.
fn may_be_link((name, kind): &(String, FileType)) -> bool {
    *kind == FileType::Symlink || (*kind == FileType::Unknown && name.starts_with('.'))
}

/// The value that was found, or the default where there is none. A shortage of resources is an error, not an absence.
fn default_if_absent<T: Default>(found: Result<T, Errno>) -> Result<T, ToolError> {
    match found {
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(errno_error(errno, ".")),
        found => Ok(found.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests;
