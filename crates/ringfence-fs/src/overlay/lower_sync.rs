//! Overlay synchronisation: changes of others in the workspace, while a program works on an overlay over it.
//!
//! The kernel leaves open what an overlay shows when its lower directory changes: it caches entries and never looks again. Here
//! each entry that a watch reports is compared through the overlay with the workspace, and where both differ, the kernel is made to
//! drop what it caches. That leaves nothing in the upper directory. An entry that a process holds open stays cached: a file that has no
//! name any more is moved aside through the overlay, and others are looked at again until they are closed. What the upper
//! directory has at such a path is the program's: both versions are kept, and it is a conflict.
//!
//! The version of each change that the program had not touched is recorded: it is what the layer is compared with at its end. A
//! later change is a conflict again. Every step assumes that the program changes the same entry at the same time: it
//! loses that race, and never one of the two versions.
//!
//! Not here: the mount (`ringfence-sandbox`), secrets (`watched_masks.rs`), and the state of the upper directory (`upper_cover.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    CallContext, ErrorKind, LowerSync, LowerSyncNotice, OverlayMount, PolicyAction, ResourceAccess, ToolError,
};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::Mount;
use crate::overlay::compare::resource_at;
use crate::overlay::layer_record::LayerRecord;
use crate::overlay::masked_paths::MaskedPaths;
use crate::overlay::upper::open_beneath;
use crate::overlay::upper_cover::{UpperCover, UpperTree};
use crate::overlay::watched_masks::{MaskUpdate, WatchedMasks};
use crate::path::name::is_reserved;
use crate::path::relative::{join, split};
use crate::root::attributes::chmod_fd;
use crate::root::resolver::PATH_ONLY;
use crate::root::walk::{TempVisibility, read_directory};
use crate::root::{open_no_follow, stat};
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, fstatfs, openat, unlinkat};

/// Reports are collected for at least this time, so that a burst of them drops the cache of the overlay once.
const INTERVAL: Duration = Duration::from_millis(30);

/// A held entry is looked at again after this time, which doubles, up to the second one.
const FIRST_RETRY: Duration = Duration::from_millis(30);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Most programs hold a file for a moment. The person hears of those that are held for longer.
const HELD_FOR: Duration = Duration::from_millis(150);

/// A larger file is not moved aside: the kernel would copy it first.
const MOST_MOVED_BYTES: u64 = 64 << 20;

/// Versions that are recorded. Beyond, a change counts as a conflict if the program changes the same path later.
const MOST_VERSIONS: usize = 100_000;

/// Entries of the upper directory that are looked at for one reported directory.
const MOST_UPPER_ENTRIES: usize = 10_000;

/// Searches of a workspace that changes meanwhile are tried this often, at growing intervals.
const MOST_FAILURES: u32 = 16;

/// Directories in a secret directory.
const MOST_DEPTH: usize = 64;

/// A file is compared this often while it is being written.
const MOST_COMPARISONS: usize = 3;

/// Type of an overlay in `statfs`.
const OVERLAY: u64 = 0x794c_7630;

/// Why changes are not followed.
const NO_WATCHES: &str =
    "its directories cannot all be watched; raise `fs.inotify.max_user_watches`, or use a local file system";

/// The same where there is nothing to bring up to date.
const NO_OVERLAY: &str = "the overlay of the program cannot be reached";

/// What a synchronisation found out, for the record of the layer.
#[derive(Debug, Default)]
pub(super) struct SyncedVersions {
    /// Versions of entries that others made, and that the program found when it changed the entry itself, if it did.
    pub(super) versions: BTreeMap<Vec<u8>, String>,
}

/// The layer that is synchronised, as its record has it.
#[derive(Debug)]
pub(super) struct SyncedLayer {
    pub(super) record: Mutex<LayerRecord>,
    pub(super) directory: OwnedFd,
    pub(super) synced: Mutex<SyncedVersions>,
}

/// The synchronisation of one overlay.
#[derive(Debug)]
pub(super) struct WatchedLowerSync {
    mount: Arc<Mount>,
    overlay: Box<dyn OverlayMount>,
    upper: UpperTree,
    layer: Arc<SyncedLayer>,
    /// Nothing where not everything is watched.
    masks: Option<Box<WatchedMasks>>,
    /// Paths that the jail has mounts on, or that are hidden.
    masked: MaskedPaths,
    started: i128,
    reported: BTreeSet<Vec<u8>>,
    /// Not every change was reported.
    is_lost: bool,
    updated_at: Option<Instant>,
    /// Searches of everything that failed one after the other.
    failures: u32,
    held: BTreeMap<Vec<u8>, HeldEntry>,
    /// Conflicts that the person was told of.
    conflicts: BTreeSet<Vec<u8>>,
    /// One that is not on disk yet.
    has_new_conflict: bool,
    notices: Vec<LowerSyncNotice>,
    next_name: u64,
}

/// An entry that is seen in an old state because a process holds it.
#[derive(Debug)]
struct HeldEntry {
    since: Instant,
    next: Instant,
    delay: Duration,
    is_told: bool,
}

/// An entry of the workspace, compared with what the program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// Seen as it is, or hidden by what the program made.
    Current,
    /// The same, but its permissions, or entries of a directory, may be cached.
    Attributes,
    /// Seen as it was.
    Stale,
}

impl WatchedLowerSync {
    pub(super) fn new(
        mount: &Arc<Mount>,
        overlay: Box<dyn OverlayMount>,
        upper: OwnedFd,
        layer: Arc<SyncedLayer>,
        masks: Option<Box<WatchedMasks>>,
    ) -> Self {
        // Entries are removed through it: it must not be the workspace itself.
        let is_overlay = fstatfs(overlay.root()).is_ok_and(|found| found.f_type as u64 & 0xffff_ffff == OVERLAY);
        let reason = if masks.is_none() { NO_WATCHES } else { NO_OVERLAY };
        let masks = masks.filter(|_| is_overlay);

        let notices = match masks {
            Some(_) => Vec::new(),
            None => vec![LowerSyncNotice::NotFollowed(reason.to_owned())],
        };
        let (masked, started) = {
            let record = layer.record.lock();
            (MaskedPaths::from_paths(record.masked()), i128::from(record.started))
        };
        Self {
            mount: Arc::clone(mount),
            overlay,
            upper: UpperTree::new(upper),
            layer,
            masks,
            masked,
            started,
            reported: BTreeSet::new(),
            is_lost: false,
            updated_at: None,
            failures: 0,
            held: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            has_new_conflict: false,
            notices,
            next_name: 0,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let interval = INTERVAL * (1 << self.failures.min(MOST_FAILURES / 2));
        let is_early = self.updated_at.is_some_and(|last| now.saturating_duration_since(last) < interval);
        let has_work = !self.reported.is_empty() || self.is_lost || self.held.values().any(|held| held.next <= now);
        has_work && !is_early
    }

    fn synchronise(&mut self, now: Instant, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let Some(mut masks) = self.masks.take() else { return Ok(()) };
        let mut changed = std::mem::take(&mut self.reported);
        let mut is_lost = std::mem::take(&mut self.is_lost);
        let mode = |path: &Vec<u8>| Some((path.clone(), masks.directories().mode_of(path)?));
        let modes: BTreeMap<Vec<u8>, u32> = changed.iter().filter_map(mode).collect();
        if !is_lost {
            // What goes while it is looked at fails, and so everything is looked at again.
            let updated = masks.update_entries(&self.mount, cx, &mut changed);
            is_lost = updated.is_err() || updated.is_ok_and(|update| update == MaskUpdate::SearchAll);
        }
        if is_lost {
            match masks.search_again(&self.mount, cx) {
                Ok(Some(found)) => masks = found,
                Ok(None) => {
                    self.notices.push(LowerSyncNotice::NotFollowed(NO_WATCHES.to_owned()));
                    return self.drop_cached_entries();
                }
                Err(error) if self.failures >= MOST_FAILURES => return Err(error),
                Err(_) => {
                    self.failures += 1;
                    (self.masks, self.is_lost) = (Some(masks), true);
                    return self.drop_cached_entries();
                }
            }
        }
        self.failures = 0;
        let secrets: Vec<Vec<u8>> = masks.masks().masked().into_iter().map(<[u8]>::to_vec).collect();
        self.masks = Some(masks);
        changed.extend(self.held.iter().filter(|(_, held)| held.next <= now).map(|(path, _)| path.clone()));
        self.hide_secrets(&secrets, (&changed, is_lost), cx)?;
        self.bring_up_to_date(&changed, &modes, is_lost, now)?;
        // A directory that was replaced is seen only now, and the mounts on what was in it are elsewhere.
        self.hide_secrets(&secrets, (&changed, is_lost), cx)
    }

    fn drop_cached_entries(&self) -> Result<(), ToolError> {
        self.overlay.drop_cached_entries().map_err(|_| {
            let message = "the overlay of the program cannot be brought up to date";
            ToolError::new(ErrorKind::Unavailable, message)
        })
    }

    fn bring_up_to_date(
        &mut self,
        changed: &BTreeSet<Vec<u8>>,
        modes: &BTreeMap<Vec<u8>, u32>,
        is_lost: bool,
        now: Instant,
    ) -> Result<(), ToolError> {
        // A directory that was moved takes its cached entries along as soon as it is found at its new name, so names that are
        // there come first. Of those that are gone, what was in a directory comes before it.
        let (present, gone): (Vec<_>, Vec<_>) = changed.iter().partition(|path| self.lower(path).is_some());
        let paths: Vec<&Vec<u8>> = present.into_iter().chain(gone.into_iter().rev()).collect();
        let states: Vec<EntryState> = paths.iter().map(|path| self.compare(path, modes.get(*path).copied())).collect();
        let mut stale: Vec<&Vec<u8>> = Vec::new();
        if is_lost || states.iter().any(|state| *state != EntryState::Current) {
            self.drop_cached_entries()?;
            let of_state = paths.iter().zip(states).filter(|(_, state)| *state == EntryState::Stale);
            stale = of_state.map(|(path, _)| *path).collect();
            stale.retain(|path| self.compare(path, None) == EntryState::Stale);
        }
        if !stale.is_empty() {
            let released: Vec<bool> = stale.iter().map(|path| self.release(path)).collect();
            if released.contains(&true) {
                self.drop_cached_entries()?;
                stale.retain(|path| self.compare(path, None) == EntryState::Stale);
            }
        }
        for path in changed {
            self.find_conflicts_below(path);
            if !stale.contains(&path) {
                self.held.remove(path);
            }
        }
        if is_lost {
            self.find_conflicts_below(b"");
        }
        stale.into_iter().for_each(|path| self.hold(path, now));
        Ok(())
    }

    /// Notes that an entry is held, and tells the person after a while.
    fn hold(&mut self, path: &[u8], now: Instant) {
        let first = HeldEntry { since: now, next: now, delay: FIRST_RETRY, is_told: false };
        let held = self.held.entry(path.to_vec()).or_insert(first);
        held.next = now + held.delay;
        held.delay = (held.delay * 2).min(LAST_RETRY);
        if !held.is_told && now.saturating_duration_since(held.since) >= HELD_FOR {
            held.is_told = true;
            let access = self.access(path);
            self.notices.push(LowerSyncNotice::InUse(access));
        }
    }

    /// The entry of the workspace.
    fn lower(&self, path: &[u8]) -> Option<FileStat> {
        let (parent, name) = split(path);
        let parent = open_no_follow(&self.mount, parent)?;
        stat(parent.as_fd(), name).ok().flatten()
    }

    /// The entry as the program sees it. An error where that cannot be told, such as behind a mask.
    fn inside(&self, path: &[u8]) -> Result<Option<FileStat>, Errno> {
        let (parent, name) = split(path);
        match open_beneath(self.overlay.root(), parent, PATH_ONLY | OFlags::DIRECTORY) {
            Ok(parent) => stat(parent.as_fd(), name),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Compares an entry of the workspace with what the program sees. `mode` is that of a directory before it changed.
    fn compare(&mut self, path: &[u8], mode: Option<u32>) -> EntryState {
        if self.is_hidden(path) {
            return EntryState::Current;
        }
        for _ in 0..MOST_COMPARISONS {
            let parent = self.lower(split(path).0).or_else(|| self.root_stat(path));
            let lower = self.lower(path);
            let Ok(inside) = self.inside(path) else { return EntryState::Current };
            // Last: what the program does after this, it does to what was compared.
            let cover = self.upper.cover(path);
            match cover {
                UpperCover::Untouched if is_same(lower.as_ref(), inside.as_ref()) => {
                    self.accept(path, lower.as_ref(), parent.as_ref());
                    // What is in a new directory may have been made before it was watched, and looked for before that.
                    let may_be_cached =
                        |stat: FileStat| stat.kind == FileKind::Directory || stat.changed != stat.modified;
                    return if lower.is_some_and(may_be_cached) { EntryState::Attributes } else { EntryState::Current };
                }
                // It may have been written between the two stats.
                UpperCover::Untouched => {}
                UpperCover::Merged(upper) => {
                    return self.compare_merged(path, &upper, (lower.as_ref(), inside.as_ref(), parent.as_ref()), mode);
                }
                UpperCover::Hidden => {
                    self.find_conflict(path, lower.as_ref());
                    return EntryState::Current;
                }
            }
        }
        EntryState::Stale
    }

    /// The root has no entry: its own stat is the one of the directory of the entries at the top.
    fn root_stat(&self, path: &[u8]) -> Option<FileStat> {
        split(path).0.is_empty().then(|| fstat(&self.mount.root).ok()).flatten().map(|stat| FileStat::from_stat(&stat))
    }

    /// A directory that the upper part has too, with entries of both.
    fn compare_merged(
        &mut self,
        path: &[u8],
        upper: &FileStat,
        (lower, inside, parent): (Option<&FileStat>, Option<&FileStat>, Option<&FileStat>),
        mode: Option<u32>,
    ) -> EntryState {
        let is_directory = |stat: &&FileStat| stat.kind == FileKind::Directory;
        match (lower.filter(is_directory), inside.filter(is_directory)) {
            (Some(lower), Some(_)) => {
                if lower.mode & 0o777 != upper.mode & 0o777 && mode.is_some_and(|mode| mode != lower.mode) {
                    if mode.is_some_and(|mode| mode & 0o777 == upper.mode & 0o777) {
                        // The program only has something in it.
                        self.copy_mode(path, lower);
                    } else {
                        self.add_conflict(path);
                    }
                }
                self.accept(path, Some(lower), parent);
                // The kernel may know one of both only: the program made one of this name too.
                EntryState::Attributes
            }
            // Another kind of entry came to its place.
            (None, _) if lower.is_some() => {
                self.add_conflict(path);
                EntryState::Current
            }
            (None, Some(_)) if self.conflicts.contains(path) => EntryState::Current,
            (None, Some(_)) => EntryState::Stale,
            (None, None) => EntryState::Current,
            (Some(_), None) => EntryState::Stale,
        }
    }

    /// Gives a directory of the upper part the permissions of the one in the workspace.
    fn copy_mode(&self, path: &[u8], lower: &FileStat) {
        if let Ok(directory) = open_beneath(self.overlay.root(), path, PATH_ONLY | OFlags::DIRECTORY) {
            // Otherwise it is a change of its permissions in the review.
            let _ = chmod_fd(directory.as_fd(), lower.mode);
        }
    }

    /// Records the version of an entry that the program has not touched, and that of the directory that it is in.
    fn accept(&self, path: &[u8], lower: Option<&FileStat>, parent: Option<&FileStat>) {
        let mut synced = self.layer.synced.lock();
        if synced.versions.len() >= MOST_VERSIONS {
            return;
        }
        if let Some(lower) = lower {
            synced.versions.insert(path.to_vec(), lower.version());
        }
        if let Some(parent) = parent {
            synced.versions.insert(split(path).0.to_vec(), parent.version());
        }
    }

    /// Whether the jail has a mount on it or above it, or a file of ours is meant.
    fn is_hidden(&self, path: &[u8]) -> bool {
        self.masked.affected_by(path, false).is_some() || path.split(|byte| *byte == b'/').any(is_reserved)
    }

    fn access(&self, path: &[u8]) -> ResourceAccess {
        ResourceAccess { action: PolicyAction::Overwrite, resource: resource_at(&self.mount, path) }
    }

    /// An entry that the program changed: whether another process did so since the program found it.
    fn find_conflict(&mut self, path: &[u8], lower: Option<&FileStat>) {
        let is_known = |lower: &FileStat| {
            let version = lower.version();
            lower.changed < self.started || self.layer.synced.lock().versions.get(path) == Some(&version)
        };
        if !lower.is_some_and(is_known) && self.upper.differs(&self.mount, path, lower) {
            self.add_conflict(path);
        }
    }

    fn add_conflict(&mut self, path: &[u8]) {
        if !self.conflicts.insert(path.to_vec()) {
            return;
        }
        self.layer.record.lock().add_conflict(path);
        self.has_new_conflict = true;
        let access = self.access(path);
        self.notices.push(LowerSyncNotice::Conflict(access));
    }

    /// Conflicts at what the upper directory has below a path: a directory is reported once, whatever is in it.
    fn find_conflicts_below(&mut self, path: &[u8]) {
        if !path.is_empty() && !matches!(self.upper.cover(path), UpperCover::Merged(_)) {
            return;
        }
        let mut left = vec![path.to_vec()];
        let mut most = MOST_UPPER_ENTRIES;
        while let Some(directory) = left.pop() {
            for name in self.upper.names(&directory, most) {
                most -= 1;
                let path = join(&directory, &name);
                if self.is_hidden(&path) {
                    continue;
                }
                match self.upper.cover(&path) {
                    UpperCover::Untouched => {}
                    UpperCover::Merged(_) => left.push(path),
                    UpperCover::Hidden => {
                        // One that is gone is reported by itself, if it was there.
                        if let Some(lower) = self.lower(&path) {
                            self.find_conflict(&path, Some(&lower));
                        }
                    }
                }
            }
        }
    }

    /// Makes the kernel forget an entry that a process holds. True if it did.
    fn release(&mut self, path: &[u8]) -> bool {
        let (parent, name) = split(path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
        let Ok(parent) = open_beneath(self.overlay.root(), parent, flags) else { return false };
        let Ok(Some(seen)) = stat(parent.as_fd(), name) else { return false };
        match self.upper.cover(path) {
            // A directory of which the program has nothing left: one with entries is not removed.
            UpperCover::Merged(_) if self.lower(path).is_none() => {
                let is_removed = unlinkat(&parent, name, AtFlags::REMOVEDIR).is_ok();
                if !is_removed {
                    self.add_conflict(path);
                }
                is_removed
            }
            // The kernel knows a file that has another name in the workspace by that one too.
            UpperCover::Untouched
                if matches!(seen.kind, FileKind::File | FileKind::Link)
                    && seen.links == 0
                    && seen.size <= MOST_MOVED_BYTES =>
            {
                self.move_aside(&parent, path, &seen)
            }
            _ => false,
        }
    }

    /// Moves a file without a name in the workspace aside through the overlay, and removes it there if the program did not write
    /// to it meanwhile. The kernel leaves a whiteout at its name, which is removed from the upper directory.
    fn move_aside(&mut self, parent: &OwnedFd, path: &[u8], seen: &FileStat) -> bool {
        let name = split(path).1;
        let aside = self.new_name();
        if self.overlay.rename_entry(parent.as_fd(), name, &aside).is_err() {
            return false;
        }
        let moved = stat(parent.as_fd(), &aside).ok().flatten();
        let is_pristine = |moved: FileStat| (moved.size, moved.modified) == (seen.size, seen.modified);
        if !moved.is_some_and(is_pristine) {
            // Where the program made another at its name meanwhile, both stay in the layer.
            let _ = self.overlay.rename_entry(parent.as_fd(), &aside, name);
            self.add_conflict(path);
            return false;
        }
        let _ = unlinkat(parent, aside.as_slice(), AtFlags::empty());
        let staged = self.new_name();
        self.upper.remove_whiteout(path, (self.layer.directory.as_fd(), &staged))
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.next_name += 1;
        format!(".ringfence-sync-{}-{}", std::process::id(), self.next_name).into_bytes()
    }

    /// Hides secrets that the program can see: those that came since the start, and those whose mask went elsewhere with its directory.
    fn hide_secrets(
        &mut self,
        secrets: &[Vec<u8>],
        (changed, is_lost): (&BTreeSet<Vec<u8>>, bool),
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let is_concerned = |path: &[u8]| {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            is_lost || ends.chain([path.len()]).any(|end| changed.contains(path.get(..end).unwrap_or_default()))
        };
        let mut is_dropped = false;
        for path in secrets.iter().filter(|path| is_concerned(path)) {
            let Some(lower) = self.lower(path) else { continue };
            if !is_dropped {
                // Else an entry that is cached as missing would be hidden by nothing later.
                self.drop_cached_entries()?;
                is_dropped = true;
            }
            let inside = self.inside(path).ok().flatten();
            let is_visible = is_same(Some(&lower), inside.as_ref()) && lower.size > 0;
            if is_visible && self.upper.cover(path) != UpperCover::Hidden {
                self.hide(path, cx)?;
            }
        }
        Ok(())
    }

    /// Removes a secret through the overlay: that leaves a whiteout in the upper directory, and the workspace as it is. The record has
    /// it first, so that it never counts as a deletion by the program.
    fn hide(&mut self, path: &[u8], cx: &CallContext<'_>) -> Result<(), ToolError> {
        {
            let mut record = self.layer.record.lock();
            record.add_hidden(path);
            let failed = |_| ToolError::new(ErrorKind::Io, "cannot write the record of the layer");
            record.save(&self.layer.directory).map_err(failed)?;
            self.masked = MaskedPaths::from_paths(record.masked());
        }
        let (parent, name) = split(path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
        if let Ok(parent) = open_beneath(self.overlay.root(), parent, flags) {
            hide_tree(parent.as_fd(), name, MOST_DEPTH, cx);
        }
        let (access, inside) = (self.access(path), self.inside(path).ok().flatten());
        self.notices.push(match inside {
            Some(_) if is_same(self.lower(path).as_ref(), inside.as_ref()) => LowerSyncNotice::Exposed(access),
            _ => LowerSyncNotice::Masked(access),
        });
        Ok(())
    }
}

impl LowerSync for WatchedLowerSync {
    fn wake_source(&self) -> Option<Arc<OwnedFd>> {
        self.masks.as_ref().map(|masks| masks.queue())
    }

    fn wake(&mut self) {
        match self.masks.as_mut().map(|masks| masks.take_reports()) {
            Some(Some(reported)) => self.reported.extend(reported),
            Some(None) => self.is_lost = true,
            None => {}
        }
    }

    fn update(&mut self, cx: &CallContext<'_>) -> Vec<LowerSyncNotice> {
        let now = Instant::now();
        if self.masks.is_some() && self.is_due(now) {
            self.updated_at = Some(now);
            let synchronised = self.synchronise(now, cx);
            // A call that is over is not told why.
            if let (Err(error), Ok(())) = (synchronised, cx.check()) {
                self.masks = None;
                self.notices.push(LowerSyncNotice::NotFollowed(error.message));
            }
        }
        if std::mem::take(&mut self.has_new_conflict) {
            // For lists in other processes. Conflicts are found again at the end.
            let _ = self.layer.record.lock().save(&self.layer.directory);
        }
        std::mem::take(&mut self.notices)
    }
}

/// Whether two stats, of the workspace and through the overlay, are of the same version. The overlay may add to the number of an
/// inode, and has numbers of its own for directories.
fn is_same(lower: Option<&FileStat>, inside: Option<&FileStat>) -> bool {
    let (Some(lower), Some(inside)) = (lower, inside) else { return lower.is_none() && inside.is_none() };
    let of = |stat: &FileStat| (stat.kind, stat.mode, stat.size, stat.modified, stat.changed);
    let number = |stat: &FileStat| stat.id.inode & 0xffff_ffff;
    of(lower) == of(inside) && (lower.kind == FileKind::Directory || number(lower) == number(inside))
}

/// Removes an entry through an overlay, with everything below it. What cannot be removed stays, and is still seen.
fn hide_tree(parent: BorrowedFd<'_>, name: &[u8], depth: usize, cx: &CallContext<'_>) {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) if depth > 0 => {}
        _ => return,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_OPEN;
    if let Ok(directory) = openat(parent, name, flags, Mode::empty()) {
        let entries = read_directory(directory.as_fd(), TempVisibility::Visible, cx.limits.walk_entries, ".", cx);
        for entry in entries.unwrap_or_default() {
            hide_tree(directory.as_fd(), &entry.name, depth - 1, cx);
        }
    }
    let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
}
