//! Collection of the layer store: what it uses, and removal of what is not needed any more.
//!
//! Remains of layers that were decided about are removed, and home directories that no program used for a while. A layer
//! about which a person still has to decide is never removed here, however old and large it is.
//!
//! Not here: when it is done, and the limits of the journal.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode, ToolError};
use rustix::fs::OFlags;

use crate::overlay::layer_home::{HOME_ABOUT, HOMES, HomeRecord};
use crate::overlay::layer_record::read_json;
use crate::overlay::layer_store::{DECIDED_PREFIX, LayerState, LayerStore};
use crate::overlay::store_directory::{errno_store_error, is_locked, open_checked, try_lock};
use crate::overlay::tree_removal::remove_tree;
use crate::overlay::upper::open_beneath;
use crate::path::relative::join;
use crate::root::walk::{TempVisibility, read_directory};
use crate::root::{rename_noreplace, stat};
use crate::sys::own_files::{SAFE_OPEN, names_in};
use crate::sys::stat::FileKind;

/// One thing in the layer store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerStoreEntry {
    /// What it is.
    pub kind: LayerStoreEntryKind,
    /// Its ID, or the name of its directory.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Start of the last program that used it. Nothing where that is not known.
    pub used: Option<SystemTime>,
    /// Name of the program, or of the profile of a home directory.
    pub program: String,
}

/// A kind of thing in the layer store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerStoreEntryKind {
    /// A layer about which a person has to decide.
    Layer(LayerState),
    /// The home directory of a profile in a workspace.
    Home,
    /// What is left of a layer about which everything was decided.
    Remains,
}

/// Whether a collection removes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCollectionMode {
    /// It only lists what it would remove.
    DryRun,
    /// It removes it.
    Remove,
}

impl LayerStore {
    /// Everything in the store, with its size: layers, home directories and remains.
    pub fn usage(&self) -> Result<Vec<LayerStoreEntry>, ToolError> {
        with_own_context(|cx| {
            let mut found = Vec::new();
            for layer in self.layers()? {
                found.push(LayerStoreEntry {
                    kind: LayerStoreEntryKind::Layer(layer.state),
                    bytes: tree_bytes(&self.layer_directory(&layer.id)?, cx)?,
                    name: layer.id,
                    used: Some(UNIX_EPOCH + Duration::from_nanos(layer.record.started)),
                    program: layer.record.program,
                });
            }
            found.extend(self.homes(cx)?);
            found.extend(self.all_remains(cx)?);
            Ok(found)
        })
    }

    /// Removes the remains of layers, and home directories that no program used for this long. Returns what was removed,
    /// or what would be.
    pub fn collect(
        &self,
        keep_homes_for: Duration,
        mode: LayerCollectionMode,
    ) -> Result<Vec<LayerStoreEntry>, ToolError> {
        with_own_context(|cx| {
            let is_old = |entry: &LayerStoreEntry| {
                entry.used.is_none_or(|used| used.elapsed().is_ok_and(|since| since >= keep_homes_for))
            };
            let homes = self.open(HOMES)?;
            let is_idle = |entry: &LayerStoreEntry| {
                open_checked(&homes, entry.name.as_bytes()).is_ok_and(|directory| !is_locked(&directory))
            };
            let mut found: Vec<LayerStoreEntry> =
                self.homes(cx)?.into_iter().filter(|entry| is_old(entry) && is_idle(entry)).collect();
            found.extend(self.all_remains(cx)?);
            if mode == LayerCollectionMode::DryRun {
                return Ok(found);
            }
            let mut removed = Vec::new();
            for entry in found {
                if entry.kind != LayerStoreEntryKind::Home {
                    remove_tree(self.remains()?.0.as_fd(), entry.name.as_bytes(), cx)?;
                } else if !remove_home(&homes, &entry.name, cx)? {
                    continue;
                }
                removed.push(entry);
            }
            Ok(removed)
        })
    }

    fn homes(&self, cx: &CallContext<'_>) -> Result<Vec<LayerStoreEntry>, ToolError> {
        let homes = self.open(HOMES)?;
        let mut found = Vec::new();
        for name in names_in(homes.as_fd(), usize::MAX).map_err(errno_store_error)? {
            if name == "." || name == ".." {
                continue;
            }
            let Ok(directory) = open_checked(&homes, name.as_bytes()) else { continue };
            let record = read_json::<HomeRecord>(&directory, HOME_ABOUT).ok();
            found.push(LayerStoreEntry {
                kind: LayerStoreEntryKind::Home,
                bytes: tree_bytes(&directory, cx)?,
                name,
                used: record.as_ref().map(|record| UNIX_EPOCH + Duration::from_nanos(record.used)),
                program: record.map(|record| record.profile).unwrap_or_default(),
            });
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
            let kind = LayerStoreEntryKind::Remains;
            found.push(LayerStoreEntry { kind, name, bytes, used: None, program: String::new() });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// Removes a home directory, unless a program runs with it. After the first step it is not found any more.
fn remove_home(homes: &OwnedFd, name: &str, cx: &CallContext<'_>) -> Result<bool, ToolError> {
    let directory = open_checked(homes, name.as_bytes())?;
    let Some(_lock) = try_lock(&directory)? else { return Ok(false) };
    let decided = if name.starts_with(DECIDED_PREFIX) { name.to_owned() } else { format!("{DECIDED_PREFIX}{name}") };
    if decided != name {
        // Left by an earlier removal that was interrupted.
        remove_tree(homes.as_fd(), decided.as_bytes(), cx)?;
        rename_noreplace((homes.as_fd(), name.as_bytes()), (homes.as_fd(), decided.as_bytes()))
            .map_err(errno_store_error)?;
    }
    remove_tree(homes.as_fd(), decided.as_bytes(), cx)?;
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

fn with_own_context<T>(work: impl FnOnce(&CallContext<'_>) -> Result<T, ToolError>) -> Result<T, ToolError> {
    let (signal, limits) = (CallCommitState::new(), CallLimits::for_dialect(Dialect::Standard));
    work(&CallContext::new(&limits, IoMode::Blocking, &signal))
}
