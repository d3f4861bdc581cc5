//! Overlay comparison: every path of an upper directory that differs from the workspace.
//!
//! Contents are compared, never times. A directory that was removed and made again hides its old entries; each of them
//! is a delete here. An entry that cannot be committed at all, such as a pipe, is left out and named.
//!
//! Not here: reading the upper directory (`upper.rs`), and committing the changes (`commit.rs`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use ringfence_kernel::{CallContext, ErrorKind, PolicyAction, PolicyResource, Sensitivity, ToolError};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mount::Mount;
use crate::overlay::accepted_versions::{OverlayBaseline, replaced_version};
use crate::overlay::checkpoint_memory::EqualStats;
use crate::overlay::upper::{UpperEntry, UpperEntryKind, UpperLayer, UpperListing, open_file};
use crate::path::guest::LONGEST_PATH;
use crate::path::name::{escape, is_reserved, may_create};
use crate::path::relative::split;
use crate::read::content::hash_up_to;
use crate::read::digest::Digest;
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep, read_directory};
use crate::root::{open_no_follow, reopen_for_listing as listing_of, stat};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, readlinkat};
use crate::txn::manifest::{EntryReportReasons, RecursiveAccess, TreeManifest, scan_tree};

/// One path that is to be another than it is.
#[derive(Debug)]
pub(super) struct OverlayChange {
    /// Below the root.
    pub(super) path: Vec<u8>,
    /// Current state in the workspace.
    pub(super) lower: Option<OverlayLowerState>,
    /// State after the commit.
    pub(super) upper: Option<OverlayUpperState>,
    /// It comes with a new directory that it is in.
    pub(super) in_new_directory: bool,
    /// It is in a directory of the upper part that hides the workspace's entries: without it there, the one of the
    /// workspace would count as deleted.
    pub(super) in_hidden_directory: bool,
    /// Index of the group that is kept or discarded as one.
    pub(super) group: usize,
    /// Data of a git repository that was there before, which leads to nothing protected.
    pub(super) is_data: bool,
}

/// A path that cannot be committed, whatever the policy says, with everything below it.
#[derive(Debug)]
pub(super) struct RejectedPath {
    pub(super) path: Vec<u8>,
    pub(super) error: ToolError,
}

#[derive(Debug)]
pub(super) struct OverlayLowerState {
    pub(super) stat: FileStat,
    /// Sensitivity by names and by identity.
    pub(super) sensitivity: Sensitivity,
    /// The contents of a directory that is deleted.
    pub(super) tree: Option<TreeManifest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OverlayUpperState {
    File {
        /// In the upper directory.
        seen: FileStat,
        digest: Digest,
        mode: u32,
        /// The same contents are there already.
        only_mode: bool,
    },
    Link {
        target: Vec<u8>,
    },
    Directory {
        mode: u32,
    },
}

/// The result of a comparison.
#[derive(Debug)]
pub(super) struct OverlayComparison {
    pub(super) items: Vec<OverlayChange>,
    /// Paths that another process changed since the program started. Everything below a directory among them is stale
    /// too.
    pub(super) stale: BTreeSet<Vec<u8>>,
    pub(super) rejected: Vec<RejectedPath>,
}

impl OverlayChange {
    pub(super) fn new(path: Vec<u8>, lower: Option<OverlayLowerState>, upper: Option<OverlayUpperState>) -> Self {
        Self { path, lower, upper, in_new_directory: false, in_hidden_directory: false, group: 0, is_data: false }
    }

    /// A directory that was not there, or replaces something of another kind.
    pub(super) fn is_new_directory(&self) -> bool {
        matches!(self.upper, Some(OverlayUpperState::Directory { .. })) && self.directory_mode().is_none()
    }

    /// A name that the workspace does not have, in a directory where the program sees the names of both.
    pub(super) fn is_new_name(&self) -> bool {
        self.lower.is_none() && self.upper.is_some() && !self.in_new_directory && !self.in_hidden_directory
    }

    /// A directory replaces something of another kind, or is replaced by it: that cannot be done in one step.
    pub(super) fn changes_kind(&self) -> bool {
        let was = self.lower.as_ref().map(|was| was.stat.kind == FileKind::Directory);
        let now = self.upper.as_ref().map(|now| matches!(now, OverlayUpperState::Directory { .. }));
        matches!((was, now), (Some(was), Some(now)) if was != now)
    }

    /// Only the permissions of a directory are others.
    pub(super) fn directory_mode(&self) -> Option<u32> {
        match (&self.lower, &self.upper) {
            (Some(_), Some(OverlayUpperState::Directory { mode })) if !self.changes_kind() => Some(*mode),
            _ => None,
        }
    }
}

/// Compares an upper directory with the workspace.
pub(super) fn compare(
    mount: &Mount,
    upper: &UpperLayer,
    baseline: &OverlayBaseline,
    cx: &CallContext<'_>,
) -> Result<OverlayComparison, ToolError> {
    let mut comparer = OverlayComparer {
        mount,
        upper,
        baseline,
        cx,
        entries_left: cx.limits.walk_entries,
        bytes_left: baseline.most_bytes.unwrap_or(cx.limits.copy_bytes),
        directories: vec![OverlayDirectory::root()],
        equal: HashMap::new(),
        found: OverlayComparison { items: Vec::new(), stale: BTreeSet::new(), rejected: Vec::new() },
    };
    while let Some(directory) = comparer.directories.pop() {
        let compared = comparer.compare_directory(&directory);
        comparer.reject_path(compared, &directory.path)?;
    }
    if let Some(live) = &baseline.live {
        live.memory.replace_equal(comparer.equal);
    }
    let mut found = comparer.found;
    // Entries of a directory come right behind it.
    found.items.sort_by(|a, b| a.path.split(|byte| *byte == b'/').cmp(b.path.split(|byte| *byte == b'/')));
    Ok(found)
}

/// Display form of a path below the root.
pub(super) fn display_path(mount: &Mount, path: &[u8]) -> String {
    let path = escape(path);
    if mount.shows_alias { format!("@{}/{path}", mount.alias) } else { path }
}

/// A path below the root, as the policy has to know it.
pub(super) fn resource_at(mount: &Mount, path: &[u8]) -> PolicyResource {
    let given = escape(path);
    let sensitivity = mount.sensitive_files.linked().sensitivity(path);
    PolicyResource {
        mount: Arc::clone(&mount.alias),
        display_path: display_path(mount, path),
        requested_path: given,
        sensitivity,
        ..PolicyResource::default()
    }
}

struct OverlayComparer<'a> {
    mount: &'a Mount,
    upper: &'a UpperLayer,
    baseline: &'a OverlayBaseline,
    cx: &'a CallContext<'a>,
    /// Entries that may still be read.
    entries_left: u64,
    bytes_left: u64,
    /// Still to be compared.
    directories: Vec<OverlayDirectory>,
    /// Files that are the same on both sides, where the program still runs.
    equal: HashMap<Vec<u8>, EqualStats>,
    found: OverlayComparison,
}

struct OverlayDirectory {
    path: Vec<u8>,
    below: LowerVisibility,
    /// The workspace has nothing of this name in a directory that it has.
    unmatched: bool,
    /// It or one above it hides the workspace's entries.
    hides: bool,
}

impl OverlayDirectory {
    fn root() -> Self {
        Self { path: Vec::new(), below: LowerVisibility::Visible, unmatched: false, hides: false }
    }
}

/// Visibility of the workspace's directory below one of the upper directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LowerVisibility {
    /// A directory whose entries are seen through the overlay.
    Visible,
    /// A directory whose entries are hidden.
    Hidden,
    /// No directory.
    Absent,
}

impl OverlayComparer<'_> {
    fn compare_directory(&mut self, directory: &OverlayDirectory) -> Result<(), ToolError> {
        let OverlayDirectory { path, below, unmatched, hides } = directory;
        let name = display_path(self.mount, path);
        let listing = self.upper.list(path, self.entries_left, &name, self.cx)?;
        self.entries_left = self.entries_left.saturating_sub(listing.entries.len() as u64);
        let below = if *below == LowerVisibility::Visible && listing.opaque { LowerVisibility::Hidden } else { *below };
        if below == LowerVisibility::Absent {
            if listing.copied_up && *unmatched {
                // It was made for a directory that is no longer there.
                self.found.stale.insert(path.clone());
            }
            return listing.entries.iter().try_for_each(|entry| self.compare_one(directory, &listing, None, entry));
        }
        let lower = open_no_follow(self.mount, path).ok_or_else(|| lower_gone_error(&name))?;
        self.check_directory((path, lower.as_fd()), below)?;
        let hides = *hides || below == LowerVisibility::Hidden;
        let inside = OverlayDirectory { path: path.clone(), below, unmatched: *unmatched, hides };
        for entry in &listing.entries {
            self.compare_one(&inside, &listing, Some(lower.as_fd()), entry)?;
        }
        if below == LowerVisibility::Hidden {
            self.remove_hidden(path, lower.as_fd(), &listing)?;
        }
        Ok(())
    }

    /// Detects a directory that was moved, or whose mode or hidden entries changed, during the run.
    fn check_directory(
        &mut self,
        (path, directory): (&[u8], BorrowedFd<'_>),
        below: LowerVisibility,
    ) -> Result<(), ToolError> {
        let name = display_path(self.mount, path);
        let stamp = FileStat::from_stat(&fstat(directory).map_err(|errno| errno_error(errno, &name))?);
        let started = self.baseline.started;
        let moved = stamp.changed >= started && stamp.modified < started;
        let hidden = below == LowerVisibility::Hidden && stamp.changed >= started;
        if !path.is_empty()
            && (moved || hidden)
            && !self.baseline.is_synced(path, &stamp)
            && !self.baseline.accepted.contains_directory((path, directory), &name, self.cx)?
        {
            self.found.stale.insert(path.to_vec());
        }
        Ok(())
    }

    /// Records the deletion of entries that a recreated directory hides.
    fn remove_hidden(&mut self, path: &[u8], lower: BorrowedFd<'_>, listing: &UpperListing) -> Result<(), ToolError> {
        let name = display_path(self.mount, path);
        let kept: HashSet<&[u8]> = listing.entries.iter().map(|entry| entry.name.as_slice()).collect();
        // `cap-std` gives a descriptor that cannot be listed.
        let listed = listing_of(lower).map_err(|errno| errno_error(errno, &name))?;
        let there = read_directory(listed.as_fd(), TempVisibility::Hidden, self.entries_left, &name, self.cx)?;
        self.entries_left = self.entries_left.saturating_sub(there.len() as u64);
        for entry in there.iter().filter(|entry| !kept.contains(entry.name.as_slice())) {
            let stamp = stat(lower, &entry.name).map_err(|errno| errno_error(errno, &name))?;
            if let Some(stamp) = stamp {
                let path = join_path(path, &entry.name);
                let removed = self.remove(lower, &path, &stamp);
                self.reject_path(removed, &path)?;
            }
        }
        Ok(())
    }

    fn compare_one(
        &mut self,
        directory: &OverlayDirectory,
        listing: &UpperListing,
        lower: Option<BorrowedFd<'_>>,
        entry: &UpperEntry,
    ) -> Result<(), ToolError> {
        let compared = self.compare_entry(directory, listing, lower, entry);
        self.reject_path(compared, &join_path(&directory.path, &entry.name))
    }

    /// An error about one path leaves out that path alone. One that ends the call, or is about all paths, fails the whole.
    fn reject_path(&mut self, compared: Result<(), ToolError>, path: &[u8]) -> Result<(), ToolError> {
        let is_about_all = |kind: ErrorKind| {
            use ErrorKind::{Cancelled, Internal, Io, ReadLimit, Timeout, WriteLimit};
            path.is_empty() || matches!(kind, Cancelled | Internal | Io | ReadLimit | Timeout | WriteLimit)
        };
        match compared {
            Err(error) if !is_about_all(error.kind) => {
                self.found.rejected.push(RejectedPath { path: path.to_vec(), error });
                Ok(())
            }
            compared => compared,
        }
    }

    fn compare_entry(
        &mut self,
        directory: &OverlayDirectory,
        listing: &UpperListing,
        lower: Option<BorrowedFd<'_>>,
        entry: &UpperEntry,
    ) -> Result<(), ToolError> {
        self.cx.check()?;
        let path = join_path(&directory.path, &entry.name);
        let name = display_path(self.mount, &path);
        if is_reserved(&entry.name) {
            // Hidden or not, it is never a program's to remove.
            return if entry.kind == UpperEntryKind::Whiteout {
                Ok(())
            } else {
                Err(refusal_error(&name, "is reserved by the host"))
            };
        }
        if path.len() > LONGEST_PATH {
            let start: String = name.chars().take(200).collect();
            let message = format!("the path `{start}…` is too long");
            return Err(ToolError::new(ErrorKind::InvalidPath, message));
        }
        let fail = |errno| errno_error(errno, &name);
        let was = lower.map(|lower| stat(lower, &entry.name)).transpose().map_err(fail)?.flatten();
        if was.is_some_and(|was| was.id.device != self.mount.id.device) {
            return Err(fail(Errno::XDEV));
        }
        if was.is_none() && entry.kind != UpperEntryKind::Whiteout {
            may_create(&entry.name, self.mount.names)?;
        }
        match (entry.kind, lower.zip(was)) {
            (UpperEntryKind::Whiteout, None) => Ok(()),
            // The host made it.
            (UpperEntryKind::Whiteout, Some(_)) if self.baseline.hidden.contains(&path) => Ok(()),
            (UpperEntryKind::Whiteout, Some((lower, was))) => self.remove(lower, &path, &was),
            (UpperEntryKind::Special, _) => {
                Err(refusal_error(&name, &format!("is {}, which cannot be committed", entry.stat.kind.with_article())))
            }
            (UpperEntryKind::Directory, was) => self.compare_subdirectory(directory, path, entry, was),
            (UpperEntryKind::Link, was) => self.compare_link(directory, path, listing, entry, was),
            (UpperEntryKind::File, was) => self.compare_file(directory, path, (listing, lower), entry, was),
        }
    }

    fn compare_subdirectory(
        &mut self,
        directory: &OverlayDirectory,
        path: Vec<u8>,
        entry: &UpperEntry,
        was: Option<(BorrowedFd<'_>, FileStat)>,
    ) -> Result<(), ToolError> {
        // Its owner keeps the right to look into it: what cannot be looked into can be neither searched nor undone.
        let mode = entry.stat.mode & 0o777 | 0o500;
        let now = OverlayUpperState::Directory { mode };
        let merged = was.filter(|(_, was)| was.kind == FileKind::Directory);
        let Some((_, stamp)) = merged else {
            let unmatched = was.is_none() && directory.below != LowerVisibility::Absent;
            self.add_change(directory, path.clone(), was, now)?;
            let hides = directory.hides;
            self.directories.push(OverlayDirectory { path, below: LowerVisibility::Absent, unmatched, hides });
            return Ok(());
        };
        let below =
            if directory.below == LowerVisibility::Hidden { LowerVisibility::Hidden } else { LowerVisibility::Visible };
        let hides = directory.hides;
        self.directories.push(OverlayDirectory { path: path.clone(), below, unmatched: false, hides });
        if stamp.mode & 0o777 != mode {
            let was = Some(OverlayLowerState { stat: stamp, sensitivity: Sensitivity::default(), tree: None });
            self.found.items.push(OverlayChange::new(path, was, Some(now)));
        }
        Ok(())
    }

    fn compare_link(
        &mut self,
        directory: &OverlayDirectory,
        path: Vec<u8>,
        listing: &UpperListing,
        entry: &UpperEntry,
        was: Option<(BorrowedFd<'_>, FileStat)>,
    ) -> Result<(), ToolError> {
        let fail = |errno| errno_error(errno, &display_path(self.mount, &path));
        let read = |parent: BorrowedFd<'_>| readlinkat(parent, entry.name.as_slice()).map_err(fail);
        let target = read(listing.fd.as_fd())?.into_bytes();
        if let Some((lower, FileStat { kind: FileKind::Link, .. })) = was
            && read(lower)?.as_bytes() == target
        {
            return Ok(());
        }
        self.add_change(directory, path, was, OverlayUpperState::Link { target })
    }

    fn compare_file(
        &mut self,
        directory: &OverlayDirectory,
        path: Vec<u8>,
        (listing, lower): (&UpperListing, Option<BorrowedFd<'_>>),
        entry: &UpperEntry,
        was: Option<(BorrowedFd<'_>, FileStat)>,
    ) -> Result<(), ToolError> {
        let name = display_path(self.mount, &path);
        let pair = was.map(|(_, was)| EqualStats { upper: entry.stat, lower: was });
        if let (Some(live), Some(pair)) = (&self.baseline.live, pair)
            && live.memory.is_equal(&path, &pair)
        {
            self.equal.insert(path, pair);
            return Ok(());
        }
        let file = open_file(listing.fd.as_fd(), &entry.name, &entry.stat, &name)?;
        let size = entry.stat.size;
        self.bytes_left = self.bytes_left.checked_sub(size).ok_or_else(|| {
            let message = format!(
                "with `{name}`, the written files exceed the {} bytes that can be committed at once",
                self.cx.limits.copy_bytes
            );
            ToolError::new(ErrorKind::WriteLimit, message).hint("nothing was changed; write less")
        })?;
        let digest = hash_up_to(file.fd.as_fd(), size, &name, self.cx)?;
        let mode = entry.stat.mode & 0o777;
        let old = was.filter(|(_, was)| was.kind == FileKind::File && was.size == size);
        let same = old.is_some_and(|(lower, was)| self.has_contents(lower, &entry.name, &was, digest));
        if same && was.is_some_and(|(_, was)| was.mode & 0o777 == mode) {
            if let (Some(live), Some(pair)) = (&self.baseline.live, pair)
                && pair.is_before(live.began)
            {
                self.equal.insert(path, pair);
            }
            return Ok(());
        }
        if let (None, true, Some(lower)) = (was, file.copied_up, lower) {
            // It was copied up from a file that has no name here now: the program renamed that, or another process
            // removed it.
            let above = FileStat::from_stat(&fstat(lower).map_err(|errno| errno_error(errno, &name))?);
            let is_accepted = || self.baseline.accepted.contains_directory((&directory.path, lower), &name, self.cx);
            if above.modified >= self.baseline.started
                && !self.baseline.is_synced(&directory.path, &above)
                && !is_accepted()?
            {
                self.found.stale.insert(path.clone());
            }
        }
        self.add_change(
            directory,
            path,
            was,
            OverlayUpperState::File { seen: entry.stat, digest, mode, only_mode: same },
        )
    }

    /// Whether a file of the workspace has these contents. One that cannot be read has others.
    fn has_contents(&self, lower: BorrowedFd<'_>, name: &[u8], was: &FileStat, digest: Digest) -> bool {
        let Ok(fd) = self.mount.open_at(lower, name, OFlags::RDONLY) else { return false };
        let is_it = fstat(&fd).is_ok_and(|stat| FileStat::from_stat(&stat) == *was);
        is_it && hash_up_to(fd.as_fd(), was.size, "", self.cx).is_ok_and(|old| old == digest)
    }

    /// Whether an entry, and everything below it that is newer than the start, has the version that the program found.
    fn is_synced(&self, path: &[u8], stamp: &FileStat) -> Result<bool, ToolError> {
        let is_found =
            |path: &[u8], stat: &FileStat| stat.changed < self.baseline.started || self.baseline.is_synced(path, stat);
        if !is_found(path, stamp) || self.baseline.synced.is_empty() {
            return Ok(false);
        }
        if stamp.kind != FileKind::Directory {
            return Ok(true);
        }
        let name = display_path(self.mount, path);
        let Some(start) = open_no_follow(self.mount, path) else { return Ok(false) };
        let Ok(start) = listing_of(start.as_fd()) else { return Ok(false) };
        let mut walk = TreeWalk::with_temp_visibility(TempVisibility::Hidden, self.mount, start, &name, self.cx)?;
        while let Some(step) = walk.next()? {
            let WalkStep::Entry(entry) = step else { continue };
            let Some(stat) = walk.stat(&entry)? else { return Ok(false) };
            if !is_found(&join_path(path, &walk.path_of(&entry.name)), &stat) {
                return Ok(false);
            }
            if stat.kind == FileKind::Directory && walk.descend(&entry)?.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether an entry, with everything in it, has a version that a keep of this layer found or left.
    fn is_accepted(&self, lower: BorrowedFd<'_>, path: &[u8], was: &FileStat) -> Result<bool, ToolError> {
        let accepted = &self.baseline.accepted;
        if !accepted.has_path(path) {
            return Ok(false);
        }
        if was.kind == FileKind::Directory {
            return self.is_accepted_tree(path);
        }
        let version = replaced_version(self.mount, lower, split(path).1, was, self.cx)?;
        Ok(version.is_some_and(|version| accepted.contains(path, version)))
    }

    /// Whether everything in a directory, and itself, has an accepted version or did not change since the start.
    fn is_accepted_tree(&self, top: &[u8]) -> Result<bool, ToolError> {
        let (started, accepted) = (self.baseline.started, &self.baseline.accepted);
        let mut left = vec![top.to_vec()];
        while let Some(path) = left.pop() {
            self.cx.check()?;
            let name = display_path(self.mount, &path);
            let fail = |errno: Errno| errno_error(errno, &name);
            let Some(directory) = open_no_follow(self.mount, &path) else { return Ok(false) };
            let found = FileStat::from_stat(&fstat(&directory).map_err(fail)?);
            if found.changed >= started && !accepted.contains_directory((&path, directory.as_fd()), &name, self.cx)? {
                return Ok(false);
            }
            let listed = listing_of(directory.as_fd()).map_err(fail)?;
            let most = self.cx.limits.walk_entries;
            for entry in read_directory(listed.as_fd(), TempVisibility::Hidden, most, &name, self.cx)? {
                let Some(found) = stat(directory.as_fd(), &entry.name).map_err(fail)? else { return Ok(false) };
                let path = join_path(&path, &entry.name);
                match found.kind {
                    FileKind::Directory => left.push(path),
                    _ if found.changed < started => {}
                    _ if self.is_accepted(directory.as_fd(), &path, &found)? => {}
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// Records a new entry at a path, perhaps replacing another.
    fn add_change(
        &mut self,
        directory: &OverlayDirectory,
        path: Vec<u8>,
        was: Option<(BorrowedFd<'_>, FileStat)>,
        now: OverlayUpperState,
    ) -> Result<(), ToolError> {
        let was = was.map(|(lower, stamp)| self.inspect_lower(lower, &path, &stamp)).transpose()?;
        let within = directory.below == LowerVisibility::Absent;
        self.found.items.push(OverlayChange {
            in_new_directory: within,
            in_hidden_directory: directory.hides,
            ..OverlayChange::new(path, was, Some(now))
        });
        Ok(())
    }

    fn remove(&mut self, lower: BorrowedFd<'_>, path: &[u8], stamp: &FileStat) -> Result<(), ToolError> {
        let was = self.inspect_lower(lower, path, stamp)?;
        self.found.items.push(OverlayChange::new(path.to_vec(), Some(was), None));
        Ok(())
    }

    /// Something that is about to go: what is known of it, what is in it, and whether the program can have seen it so.
    fn inspect_lower(
        &mut self,
        lower: BorrowedFd<'_>,
        path: &[u8],
        stamp: &FileStat,
    ) -> Result<OverlayLowerState, ToolError> {
        let (_, name) = split(path);
        let place = resource_at(self.mount, path);
        let sensitivity = self.mount.classify(place.effective_sensitivity(), FileRef { fd: lower, name }, stamp);
        let mut inside = i128::MIN;
        let tree = match stamp.kind {
            FileKind::Directory => {
                let start = self
                    .mount
                    .resolver
                    .open_child(lower, name)
                    .map_err(|errno| errno_error(errno, &place.display_path))?;
                let whole = [RecursiveAccess::new(PolicyAction::Delete, &place, self.cx)];
                let classify = |path: &str| EntryReportReasons::of(&whole, path, self.cx);
                let tree = scan_tree(self.mount, start, &place.display_path, classify, self.cx)?;
                if let Some(locked) = &tree.locked_directory {
                    return Err(errno_error(
                        Errno::ACCESS,
                        format!("{}/{locked}", place.display_path).trim_end_matches('/'),
                    ));
                }
                inside = tree.newest;
                Some(tree)
            }
            _ => None,
        };
        let newest = stamp.changed.max(inside);
        if newest >= self.baseline.started && !self.is_synced(path, stamp)? && !self.is_accepted(lower, path, stamp)? {
            self.found.stale.insert(path.to_vec());
        }
        Ok(OverlayLowerState { stat: *stamp, sensitivity, tree })
    }
}

/// A path in a directory, both below the root.
pub(super) fn join_path(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

pub(super) fn refusal_error(shown: &str, why: &str) -> ToolError {
    ToolError::new(ErrorKind::WrongType, format!("`{shown}` {why}"))
}

fn lower_gone_error(shown: &str) -> ToolError {
    let message = format!("`{shown}` was removed or replaced while the program ran");
    ToolError::new(ErrorKind::Conflict, message)
}
