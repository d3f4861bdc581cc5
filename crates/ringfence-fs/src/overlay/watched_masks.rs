//! Masks that are kept from one program to the next, with watches that report what changed since.
//!
//! The first program has the whole workspace searched for secrets, the next ones only what was reported since. Whatever cannot
//! be known from reports means a search of everything: a full queue, another policy, another mount in the workspace, a secret
//! that became known under a name unknown to the watches. Where a directory cannot be watched, every program has
//! everything searched.
//!
//! Not here: what is masked (`mask_scan.rs`).

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use ringfence_kernel::{CallContext, ToolError};

use crate::mount::Mount;
use crate::mount::tree_conditions::TreeConditions;
use crate::overlay::mask_scan::{MaskScan, ViewMasks};
use crate::path::relative::split;
use crate::root::stat;
use crate::root::watched_directories::{WatchedDirectories, WatchedDirectory};
use crate::sys::directory_watch::WatchScope;
use crate::sys::errno::errno_error;

/// A workspace that changes faster than it is looked at is looked at this often. What is reported then waits for the next
/// program.
const MOST_ROUNDS: usize = 8;

/// Searches of everything for one program, where reports are lost during the search.
const MOST_SEARCHES: usize = 3;

/// The masks of a mount, as far as they are known.
#[derive(Debug)]
pub(super) struct MaskCache {
    watches: MaskWatches,
    state: Mutex<CacheState>,
}

/// What is watched to keep masks up to date.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskWatches {
    pub(super) scope: WatchScope,
    /// Most directories, where that is not the share of the user's watches.
    pub(super) most: Option<usize>,
}

#[derive(Debug, Default)]
enum CacheState {
    #[default]
    Empty,
    Watched(Box<WatchedMasks>),
    /// The directories cannot all be watched.
    Unwatchable,
}

/// The masks of a mount, and the watches that report what may change them.
#[derive(Debug)]
pub(super) struct WatchedMasks {
    watches: MaskWatches,
    conditions: TreeConditions,
    masks: ViewMasks,
    directories: WatchedDirectories,
    /// Inodes of secrets whose names are accounted for.
    known: HashSet<u64>,
}

/// Whether masks are up to date, or everything has to be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaskUpdate {
    Complete,
    SearchAll,
}

impl MaskCache {
    pub(super) fn new(watches: MaskWatches) -> Self {
        Self { watches, state: Mutex::default() }
    }

    pub(super) fn watches(&self) -> MaskWatches {
        self.watches
    }

    /// The masks with their watches, if there are some. They are not kept here any more.
    pub(super) fn take(&self) -> Option<Box<WatchedMasks>> {
        match std::mem::take(&mut *self.state.lock().ok()?) {
            CacheState::Watched(watched) => Some(watched),
            CacheState::Empty | CacheState::Unwatchable => None,
        }
    }

    /// Calls `use_masks` with the masks of the mount as of now. `root` is the path of the mount on the host.
    pub(super) fn with_masks<T>(
        &self,
        mount: &Mount,
        root: &[u8],
        cx: &CallContext<'_>,
        use_masks: impl FnOnce(&ViewMasks) -> T,
    ) -> Result<T, ToolError> {
        // Another program may be starting now. It is not waited for.
        if let Ok(mut state) = self.state.try_lock()
            && let Some(conditions) = TreeConditions::now(mount, root, cx)
            && !matches!(*state, CacheState::Unwatchable)
        {
            // It is put back when it is up to date.
            let cached = match std::mem::take(&mut *state) {
                CacheState::Watched(cached) if cached.conditions == conditions => Some(cached),
                _ => None,
            };
            let updated = match cached {
                Some(mut cached) => (cached.update(mount, cx)? == MaskUpdate::Complete).then_some(cached),
                None => None,
            };
            let found = match updated {
                Some(updated) => CacheState::Watched(updated),
                None => WatchedMasks::search(mount, self.watches, &conditions, cx)?,
            };
            let CacheState::Watched(found) = found else {
                *state = found;
                return search_once(mount, cx, use_masks);
            };
            let result = use_masks(&found.masks);
            // A policy that changed during the search decided about a part of the entries only.
            if TreeConditions::now(mount, root, cx).as_ref() == Some(&found.conditions) {
                *state = CacheState::Watched(found);
            }
            return Ok(result);
        }
        search_once(mount, cx, use_masks)
    }
}

impl WatchedMasks {
    /// Searches everything. `Unwatchable` where a directory cannot be watched, and `Empty` where reports are lost again and
    /// again.
    fn search(
        mount: &Mount,
        watches: MaskWatches,
        conditions: &TreeConditions,
        cx: &CallContext<'_>,
    ) -> Result<CacheState, ToolError> {
        for _ in 0..MOST_SEARCHES {
            let directories = match watches.most {
                Some(most) => WatchedDirectories::with_limit(watches.scope, most),
                None => WatchedDirectories::new(watches.scope),
            };
            let Ok(mut directories) = directories else {
                return Ok(CacheState::Unwatchable);
            };
            let mut masks = ViewMasks::default();
            let known = search_all(mount, cx, &mut masks, Some(&mut directories))?;
            if !directories.is_complete() {
                return Ok(CacheState::Unwatchable);
            }
            let mut found = Self { watches, conditions: conditions.clone(), masks, directories, known };
            // What happened during the search was reported.
            if found.update(mount, cx)? == MaskUpdate::Complete {
                return Ok(CacheState::Watched(Box::new(found)));
            }
        }
        Ok(CacheState::Empty)
    }

    /// The same search again. `None` where not everything can be watched.
    pub(super) fn search_again(&self, mount: &Mount, cx: &CallContext<'_>) -> Result<Option<Box<Self>>, ToolError> {
        match Self::search(mount, self.watches, &self.conditions, cx)? {
            CacheState::Watched(found) => Ok(Some(found)),
            CacheState::Empty | CacheState::Unwatchable => Ok(None),
        }
    }

    /// Readable when an entry was reported.
    pub(super) fn queue(&self) -> Arc<OwnedFd> {
        self.directories.queue()
    }

    /// The entries that were reported since. Nothing if they cannot all be told. They are for `update_entries`.
    pub(super) fn take_reports(&mut self) -> Option<BTreeSet<Vec<u8>>> {
        self.directories.changed_entries()
    }

    pub(super) fn masks(&self) -> &ViewMasks {
        &self.masks
    }

    pub(super) fn directories(&self) -> &WatchedDirectories {
        &self.directories
    }

    /// Looks again at the entries that were reported.
    fn update(&mut self, mount: &Mount, cx: &CallContext<'_>) -> Result<MaskUpdate, ToolError> {
        self.update_entries(mount, cx, &mut BTreeSet::new())
    }

    /// The same for entries that were taken, to which those are added that are reported meanwhile.
    pub(super) fn update_entries(
        &mut self,
        mount: &Mount,
        cx: &CallContext<'_>,
        taken: &mut BTreeSet<Vec<u8>>,
    ) -> Result<MaskUpdate, ToolError> {
        let known = mount.sensitive_files.secret_inodes();
        self.masks.has_hard_links = false;
        self.masks.single_names.clear();
        let mut paths = self.masks.volatile.clone();
        paths.extend(taken.iter().cloned());
        for _ in 0..MOST_ROUNDS {
            let Some(reported) = self.directories.changed_entries() else { return Ok(MaskUpdate::SearchAll) };
            taken.extend(reported.iter().cloned());
            paths.extend(reported);
            if paths.is_empty() {
                break;
            }
            // A directory comes before what is in it.
            for path in std::mem::take(&mut paths) {
                cx.check()?;
                if self.update_entry(mount, cx, &known, &path)? == MaskUpdate::SearchAll {
                    return Ok(MaskUpdate::SearchAll);
                }
            }
        }
        let now = mount.sensitive_files.secret_inodes();
        let is_new = |inode: &&u64| !self.known.contains(inode) && !self.masks.single_names.contains(inode);
        // Another name of such a secret is a name that no directory reported.
        if self.masks.has_hard_links || !self.directories.is_complete() || now.iter().any(|inode| is_new(&inode)) {
            return Ok(MaskUpdate::SearchAll);
        }
        self.known = now;
        Ok(MaskUpdate::Complete)
    }

    fn update_entry(
        &mut self,
        mount: &Mount,
        cx: &CallContext<'_>,
        known: &HashSet<u64>,
        path: &[u8],
    ) -> Result<MaskUpdate, ToolError> {
        let (parent, name) = split(path);
        self.masks.forget(path);
        self.directories.forget(path);
        let opened = self.directories.open(mount, parent).map_err(|errno| errno_error(errno, "."))?;
        let directory = match opened {
            WatchedDirectory::Open(directory) => directory,
            WatchedDirectory::Changed => return Ok(MaskUpdate::SearchAll),
            WatchedDirectory::Unwatched => return Ok(MaskUpdate::Complete),
        };
        let directory = directory.as_fd();
        if let Some(stamp) = stat(directory, name).map_err(|errno| errno_error(errno, "."))? {
            let directories = Some(&mut self.directories);
            let mut scan = MaskScan { mount, cx, known, masks: &mut self.masks, directories };
            scan.scan_entry(directory, &stamp, name, path)?;
        } else {
            self.masks.committed.remove(path);
        }
        Ok(MaskUpdate::Complete)
    }
}

/// Searches the whole mount, without watches.
fn search_once<T>(
    mount: &Mount,
    cx: &CallContext<'_>,
    use_masks: impl FnOnce(&ViewMasks) -> T,
) -> Result<T, ToolError> {
    let mut masks = ViewMasks::default();
    search_all(mount, cx, &mut masks, None)?;
    Ok(use_masks(&masks))
}

/// Searches the whole mount, and says which secrets are accounted for.
fn search_all(
    mount: &Mount,
    cx: &CallContext<'_>,
    masks: &mut ViewMasks,
    mut directories: Option<&mut WatchedDirectories>,
) -> Result<HashSet<u64>, ToolError> {
    let mut known = mount.sensitive_files.secret_inodes();
    MaskScan { mount, cx, known: &known, masks, directories: directories.as_deref_mut() }.scan_root()?;
    if masks.has_hard_links {
        // A secret has other names, and they may have been passed before it was known as one.
        known = mount.sensitive_files.secret_inodes();
        masks.has_hard_links = false;
        MaskScan { mount, cx, known: &known, masks, directories }.scan_root()?;
    }
    known.extend(&masks.single_names);
    Ok(known)
}

#[cfg(test)]
mod tests;
