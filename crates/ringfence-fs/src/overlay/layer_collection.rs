//! Collection of the layer store: what it uses, and removal of what is not needed any more.
//!
//! Remains of layers that were decided about are removed, and home directories and caches that no program used for a while.
//! Beyond a bound on all of the store, the home directories and caches that were not used for longest go too. A layer
//! about which a person still has to decide is never removed here, however old and large it is.
//!
//! Not here: the limits of the journal.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence_kernel::{AbandonReason, CallCommitState, CallContext, CallLimits, Dialect, IoMode, ToolError};
use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW};

use crate::overlay::kept_directory::KeptDirectoryRecord;
use crate::overlay::layer_cache::CACHES;
use crate::overlay::layer_home::HOMES;
use crate::overlay::layer_store::{DECIDED_PREFIX, LayerState, LayerStore};
use crate::overlay::store_directory::{errno_store_error, is_locked, now_nanos, open_checked, try_lock};
use crate::overlay::tree_removal::remove_tree;
use crate::overlay::upper::open_beneath;
use crate::path::relative::join;
use crate::root::walk::{TempVisibility, read_directory};
use crate::root::{rename_noreplace, stat};
use crate::sys::own_files::{SAFE_OPEN, names_in, open_own_file};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{flock, fstat, futimens};

/// Its modification time is that of the last collection that was not asked for.
const STAMP: &str = "collected";

/// Interval of collections that are not asked for.
const INTERVAL: Duration = Duration::from_hours(24);

/// One thing in the layer store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerStoreEntry {
    /// What it is.
    pub kind: LayerStoreEntryKind,
    /// Its ID, or the name of its directory.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Time at which a program last used it; for a layer, at which its program started. Nothing where that is not known.
    pub used: Option<SystemTime>,
    /// Name of the program, or of the profile of a home directory and of a cache.
    pub program: String,
    /// Path of a layer's workspace, or of a cache below the home directory. Escaped; empty for others.
    pub path: String,
}

/// A kind of thing in the layer store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerStoreEntryKind {
    /// A layer about which a person has to decide.
    Layer(LayerState),
    /// The home directory of a profile in a workspace.
    Home,
    /// What programs of a profile in a workspace added to a cache.
    Cache,
    /// What is left of a layer about which everything was decided.
    Remains,
}

impl LayerStoreEntryKind {
    /// The directory of those that are kept from run to run.
    fn kept_in(self) -> Option<&'static str> {
        match self {
            Self::Home => Some(HOMES),
            Self::Cache => Some(CACHES),
            Self::Layer(_) | Self::Remains => None,
        }
    }
}

/// Whether a collection removes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCollectionMode {
    /// It only lists what it would remove.
    DryRun,
    /// It removes it.
    Remove,
}

/// What a collection leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCollectionPolicy {
    /// Home directories that a program used in this time.
    pub keep_homes: Duration,
    /// Caches that a program used in this time.
    pub keep_caches: Duration,
    /// Most bytes of everything.
    pub max_bytes: u64,
}

/// The result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCollection {
    /// What was removed, or would be.
    pub removed: Vec<LayerStoreEntry>,
    /// What is left.
    pub left: Vec<LayerStoreEntry>,
}

impl LayerCollection {
    /// Bytes of what is left.
    pub fn bytes_left(&self) -> u64 {
        self.left.iter().map(|entry| entry.bytes).sum()
    }
}

impl LayerStore {
    /// Everything in the store, with its size: layers, home directories, caches and remains.
    pub fn usage(&self) -> Result<Vec<LayerStoreEntry>, ToolError> {
        with_own_context(&CallCommitState::new(), |cx| self.entries(cx))
    }

    /// Removes the remains of layers, and home directories and caches that are old or beyond the bound.
    pub fn collect(
        &self,
        policy: &LayerCollectionPolicy,
        mode: LayerCollectionMode,
    ) -> Result<LayerCollection, ToolError> {
        with_own_context(&CallCommitState::new(), |cx| self.collect_within(policy, mode, cx))
    }

    /// The same once a day, given up after this time. What it removed until then is gone, and the next one goes on. `None`
    /// where it is not due.
    pub fn collect_if_due(
        &self,
        policy: &LayerCollectionPolicy,
        most: Duration,
    ) -> Result<Option<LayerCollection>, ToolError> {
        let state = self.state_directory()?;
        let stamp = match open_own_file(&state, Path::new(STAMP), OFlags::CREATE | OFlags::EXCL) {
            Ok(stamp) => stamp,
            Err(_) => {
                let stamp = open_own_file(&state, Path::new(STAMP), OFlags::empty()).map_err(errno_store_error)?;
                let last = FileStat::from_stat(&fstat(&stamp).map_err(errno_store_error)?).modified;
                if i128::from(now_nanos()) - last < nanos(INTERVAL) {
                    return Ok(None);
                }
                stamp
            }
        };
        if flock(&stamp, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        // Before the work: one that cannot be done in time is not tried again after every run.
        let now = || Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        futimens(&stamp, &Timestamps { last_access: now(), last_modification: now() }).map_err(errno_store_error)?;
        let signal = CallCommitState::new();
        let (done, is_done) = channel::<()>();
        std::thread::scope(|scope| {
            let timer = &signal;
            scope.spawn(move || {
                if is_done.recv_timeout(most) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    timer.abandon(AbandonReason::Deadline);
                }
            });
            let collected =
                with_own_context(&signal, |cx| self.collect_within(policy, LayerCollectionMode::Remove, cx));
            drop(done);
            collected.map(Some)
        })
    }

    fn collect_within(
        &self,
        policy: &LayerCollectionPolicy,
        mode: LayerCollectionMode,
        cx: &CallContext<'_>,
    ) -> Result<LayerCollection, ToolError> {
        let mut collection = LayerCollection::default();
        let mut kept = Vec::new();
        for entry in self.entries(cx)? {
            match entry.kind {
                LayerStoreEntryKind::Remains => self.discard(entry, mode, &mut collection, cx)?,
                LayerStoreEntryKind::Layer(_) => collection.left.push(entry),
                LayerStoreEntryKind::Home if is_older(&entry, policy.keep_homes) => {
                    self.discard(entry, mode, &mut collection, cx)?;
                }
                LayerStoreEntryKind::Cache if is_older(&entry, policy.keep_caches) => {
                    self.discard(entry, mode, &mut collection, cx)?;
                }
                LayerStoreEntryKind::Home | LayerStoreEntryKind::Cache => kept.push(entry),
            }
        }
        let mut bytes = collection.bytes_left() + kept.iter().map(|entry| entry.bytes).sum::<u64>();
        kept.sort_by_key(|entry| entry.used);
        for entry in kept {
            if bytes <= policy.max_bytes || entry.bytes == 0 {
                collection.left.push(entry);
                continue;
            }
            let (was_left, size) = (collection.left.len(), entry.bytes);
            self.discard(entry, mode, &mut collection, cx)?;
            if collection.left.len() == was_left {
                bytes -= size;
            }
        }
        Ok(collection)
    }

    /// Removes an entry that is not a layer. One that a program uses is left.
    fn discard(
        &self,
        entry: LayerStoreEntry,
        mode: LayerCollectionMode,
        collection: &mut LayerCollection,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let is_removed = match (entry.kind.kept_in(), mode) {
            (None, LayerCollectionMode::DryRun) => true,
            (None, LayerCollectionMode::Remove) => {
                remove_tree(self.remains()?.0.as_fd(), entry.name.as_bytes(), cx)?;
                true
            }
            (Some(parent), LayerCollectionMode::DryRun) => {
                let directory = open_checked(&self.open(parent)?, entry.name.as_bytes());
                directory.is_ok_and(|directory| !is_locked(&directory))
            }
            (Some(parent), LayerCollectionMode::Remove) => remove_kept(&self.open(parent)?, &entry.name, cx)?,
        };
        let to = if is_removed { &mut collection.removed } else { &mut collection.left };
        to.push(entry);
        Ok(())
    }

    fn entries(&self, cx: &CallContext<'_>) -> Result<Vec<LayerStoreEntry>, ToolError> {
        let mut found = Vec::new();
        for layer in self.layers()? {
            found.push(LayerStoreEntry {
                kind: LayerStoreEntryKind::Layer(layer.state),
                bytes: tree_bytes(&self.layer_directory(&layer.id)?, cx)?,
                name: layer.id,
                used: Some(UNIX_EPOCH + Duration::from_nanos(layer.record.started)),
                program: layer.record.program,
                path: layer.record.workspace_path,
            });
        }
        found.extend(self.kept_directories(LayerStoreEntryKind::Home, cx)?);
        found.extend(self.kept_directories(LayerStoreEntryKind::Cache, cx)?);
        found.extend(self.all_remains(cx)?);
        Ok(found)
    }

    fn kept_directories(
        &self,
        kind: LayerStoreEntryKind,
        cx: &CallContext<'_>,
    ) -> Result<Vec<LayerStoreEntry>, ToolError> {
        let Some(parent) = kind.kept_in() else { return Ok(Vec::new()) };
        let parent = self.open(parent)?;
        let mut found = Vec::new();
        for name in names_in(parent.as_fd(), usize::MAX).map_err(errno_store_error)? {
            if name == "." || name == ".." {
                continue;
            }
            let Ok(directory) = open_checked(&parent, name.as_bytes()) else { continue };
            // One whose removal was interrupted has no use any more.
            let record = KeptDirectoryRecord::load(&directory).filter(|_| !name.starts_with(DECIDED_PREFIX));
            let used = record.as_ref().map(|record| UNIX_EPOCH + Duration::from_nanos(record.last_used(&directory)));
            let record = record.unwrap_or_default();
            let (program, path) = (record.profile, record.cache.unwrap_or_default());
            found.push(LayerStoreEntry { kind, bytes: tree_bytes(&directory, cx)?, name, used, program, path });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn all_remains(&self, cx: &CallContext<'_>) -> Result<Vec<LayerStoreEntry>, ToolError> {
        let (layers, names) = self.remains()?;
        let mut found = Vec::new();
        for name in names {
            let bytes = match open_checked(&layers, name.as_bytes()) {
                Ok(directory) => tree_bytes(&directory, cx)?,
                Err(_) => 0,
            };
            let (kind, program, path) = (LayerStoreEntryKind::Remains, String::new(), String::new());
            found.push(LayerStoreEntry { kind, name, bytes, used: None, program, path });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// Whether no program used it for this long, as far as is known.
fn is_older(entry: &LayerStoreEntry, age: Duration) -> bool {
    entry.used.is_none_or(|used| used.elapsed().is_ok_and(|since| since >= age))
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)
}

/// Removes a kept directory, unless a program runs with it. After the first step it is not found any more.
fn remove_kept(parent: &OwnedFd, name: &str, cx: &CallContext<'_>) -> Result<bool, ToolError> {
    let directory = open_checked(parent, name.as_bytes())?;
    let Some(_lock) = try_lock(&directory)? else { return Ok(false) };
    let decided = if name.starts_with(DECIDED_PREFIX) { name.to_owned() } else { format!("{DECIDED_PREFIX}{name}") };
    if decided != name {
        // Left by an earlier removal that was interrupted.
        remove_tree(parent.as_fd(), decided.as_bytes(), cx)?;
        rename_noreplace((parent.as_fd(), name.as_bytes()), (parent.as_fd(), decided.as_bytes()))
            .map_err(errno_store_error)?;
    }
    remove_tree(parent.as_fd(), decided.as_bytes(), cx)?;
    Ok(true)
}

/// Bytes of all files below a directory. What cannot be listed counts as nothing.
fn tree_bytes(top: &OwnedFd, cx: &CallContext<'_>) -> Result<u64, ToolError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_OPEN;
    let (mut bytes, mut left) = (0u64, vec![Vec::new()]);
    while let Some(path) = left.pop() {
        let Ok(directory) = open_beneath(top.as_fd(), &path, flags) else { continue };
        for entry in read_directory(directory.as_fd(), TempVisibility::Visible, u64::MAX, "", cx)? {
            match stat(directory.as_fd(), &entry.name) {
                Ok(Some(found)) if found.kind == FileKind::Directory => left.push(join(&path, &entry.name)),
                Ok(Some(found)) if found.kind == FileKind::File => bytes = bytes.saturating_add(found.size),
                _ => {}
            }
        }
    }
    Ok(bytes)
}

fn with_own_context<T>(
    signal: &CallCommitState,
    work: impl FnOnce(&CallContext<'_>) -> Result<T, ToolError>,
) -> Result<T, ToolError> {
    let limits = CallLimits::for_dialect(Dialect::Standard);
    work(&CallContext::new(&limits, IoMode::Blocking, signal))
}
