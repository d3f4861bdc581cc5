//! Layer store: the kept layers of wrapped programs, in the state directory.
//!
//! A layer is a directory that only this user may enter, with the upper directory of the overlay on the workspace, its work
//! directory and a record. It is there until a person decided about everything in it: no age and no size removes it. A lock
//! that the process of the program holds says that it still runs; a layer without an end whose lock is free was interrupted.
//!
//! Not here: home directories (`layer_home.rs`), caches (`layer_cache.rs`), and what is in a layer (`layer_changes.rs`).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    CallContext, ErrorKind, LayerDescription, LayerSummary, LowerSync, OverlayDirectories, OverlayMount, ToolError,
    WorkspaceLayer, WorkspaceView,
};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::Mount;
use crate::overlay::checkpoint_memory::LiveComparison;
use crate::overlay::kept_directory::KeptDirectory;
use crate::overlay::layer_cache::{CACHES, create_caches};
use crate::overlay::layer_home::{HOMES, LayerHome, create_home};
use crate::overlay::layer_record::{LayerCounts, LayerEndRecord, LayerRecord};
use crate::overlay::lower_sync::{SyncedLayer, WatchedLowerSync};
use crate::overlay::started_nanos;
use crate::overlay::store_directory::{
    LOCK, StoreLock, UPPER, WORK, errno_store_error, has_name, is_locked, now_nanos, open_checked, store_error,
};
use crate::overlay::tree_removal::remove_tree;
use crate::overlay::upper_cover::{UpperCover, UpperTree};
use crate::overlay::view::MountView;
use crate::overlay::watched_masks::WatchedMasks;
use crate::path::name::escape;
use crate::root::path_of;
use crate::root::{rename_noreplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::{names_in, open_own_file, open_private_dir, open_state};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fchmod, flock, fstat, fsync, mkdirat};

/// The directory of the layers, below the state directory.
const LAYERS: &str = "layers";

/// Lock that a checkpoint and the end of its program take in turn.
const CHECKPOINT_LOCK: &str = "checkpoint.lock";

const ID_PREFIX: &str = "l-";
const ID_DIGITS: usize = 14;

/// Prefix of the name of a layer about which everything was decided, until it is removed.
pub(super) const DECIDED_PREFIX: &str = "decided-";

/// Layers and home directories in a state directory.
#[derive(Clone, Debug)]
pub struct LayerStore {
    state: PathBuf,
}

/// State of a kept layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// Its program runs.
    Running,
    /// Its program ended, and a person has to decide.
    Ended,
    /// The end of its program was not seen: its process died.
    Interrupted,
}

impl LayerState {
    /// Name of the state in replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended => "ended",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Whether others may look at a layer meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerLockMode {
    Shared,
    Exclusive,
}

/// A layer whose program does not run, or waits with its end until this is dropped. So do others that want the layer.
#[derive(Debug)]
pub(crate) struct HeldLayer {
    pub(super) id: String,
    pub(super) record: LayerRecord,
    pub(super) state: LayerState,
    /// For a comparison while the program runs.
    pub(super) live: Option<LiveComparison>,
    directory: OwnedFd,
    _lock: StoreLock,
}

/// A layer, as it is listed.
#[derive(Debug)]
pub(crate) struct ListedLayer {
    pub(super) id: String,
    pub(super) state: LayerState,
    pub(super) record: LayerRecord,
}

impl LayerStore {
    /// The store below a state directory, which need not exist.
    pub fn new(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    /// A directory of the store, which no other user may reach. Made if it is missing.
    pub(super) fn open(&self, name: &str) -> Result<OwnedFd, ToolError> {
        open_checked(&self.state_directory()?, name.as_bytes())
    }

    /// The state directory itself.
    pub(super) fn state_directory(&self) -> Result<OwnedFd, ToolError> {
        open_state(&self.state).map_err(store_error)
    }

    /// The layers of all workspaces, the oldest first. One whose record cannot be read is not among them.
    pub(super) fn layers(&self) -> Result<Vec<ListedLayer>, ToolError> {
        let layers = self.open(LAYERS)?;
        let names = names_in(layers.as_fd(), usize::MAX).map_err(errno_store_error)?;
        let mut found: Vec<ListedLayer> =
            names.into_iter().filter(|name| is_layer_id(name)).filter_map(|id| listed_layer(&layers, id)).collect();
        found.sort_by(|a, b| (a.record.started, &a.id).cmp(&(b.record.started, &b.id)));
        Ok(found)
    }

    /// Names in the directory of the layers that are not layers to decide about: decided ones and unfinished ones.
    pub(super) fn remains(&self) -> Result<(OwnedFd, Vec<String>), ToolError> {
        let layers = self.open(LAYERS)?;
        let names = names_in(layers.as_fd(), usize::MAX).map_err(errno_store_error)?;
        let is_remains = |name: &String| {
            name.starts_with(DECIDED_PREFIX) || (is_layer_id(name) && is_unfinished(&layers, name).unwrap_or(false))
        };
        let remains = names.into_iter().filter(is_remains).collect();
        Ok((layers, remains))
    }

    /// The directory of a layer, for its size.
    pub(super) fn layer_directory(&self, id: &str) -> Result<OwnedFd, ToolError> {
        open_checked(&self.open(LAYERS)?, id.as_bytes())
    }

    /// A layer of a workspace, by its ID or the start of it. Fails while its program runs, and while another call holds it.
    pub(super) fn hold(&self, wanted: &str, workspace: &str, mode: LayerLockMode) -> Result<HeldLayer, ToolError> {
        let id = self.whole_id(wanted, workspace)?;
        let directory = self.layer_directory(&id)?;
        let lock = open_own_file(&directory, Path::new(LOCK), OFlags::CREATE).map_err(errno_store_error)?;
        let operation = match mode {
            LayerLockMode::Shared => FlockOperation::NonBlockingLockShared,
            LayerLockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let record = LayerRecord::load(&directory).map_err(|error| record_error(&id, &error))?;
        let state = match flock(&lock, operation) {
            Ok(()) if record.end.is_some() => LayerState::Ended,
            Ok(()) => LayerState::Interrupted,
            Err(Errno::AGAIN) if record.end.is_some() => {
                let message = format!("the layer `{id}` is in use by another call");
                return Err(ToolError::new(ErrorKind::Conflict, message).hint("try again"));
            }
            Err(Errno::AGAIN) => {
                let conflicts = running_conflicts_text(&record);
                let message = format!("the program of the layer `{id}` is still running{conflicts}");
                return Err(ToolError::new(ErrorKind::Conflict, message).hint("wait until it has ended"));
            }
            Err(errno) => return Err(errno_store_error(errno)),
        };
        if !has_name(&self.open(LAYERS)?, id.as_bytes(), &directory)? {
            return Err(ToolError::new(ErrorKind::NotFound, format!("the layer `{id}` was decided about meanwhile")));
        }
        // Between the reading and the lock, its program may have ended.
        let record = LayerRecord::load(&directory).map_err(|error| record_error(&id, &error))?;
        let state = if record.end.is_some() { LayerState::Ended } else { state };
        Ok(HeldLayer { id, record, state, live: None, directory, _lock: StoreLock::new(lock) })
    }

    /// The layer of a program that this session runs. If it ended meanwhile, as with `hold`.
    pub(super) fn hold_own(&self, wanted: &str, workspace: &str, session: &str) -> Result<HeldLayer, ToolError> {
        let id = self.whole_id(wanted, workspace)?;
        let directory = self.layer_directory(&id)?;
        let lock = lock_checkpoints(&directory, &id)?;
        let record = LayerRecord::load(&directory).map_err(|error| record_error(&id, &error))?;
        if record.session != session {
            let message = format!("only the session that runs the program of the layer `{id}` makes checkpoints of it");
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        if record.end.is_some() || !is_locked(&directory) {
            drop(lock);
            return self.hold(&id, workspace, LayerLockMode::Exclusive);
        }
        Ok(HeldLayer { id, record, state: LayerState::Running, live: None, directory, _lock: StoreLock::new(lock) })
    }

    /// A layer for a look at its changes. While its program runs, no checkpoint of it is made meanwhile.
    pub(super) fn hold_to_look(&self, wanted: &str, workspace: &str) -> Result<HeldLayer, ToolError> {
        let id = self.whole_id(wanted, workspace)?;
        let directory = self.layer_directory(&id)?;
        let runs = || {
            let record = LayerRecord::load(&directory).map_err(|error| record_error(&id, &error))?;
            Ok::<_, ToolError>((record.end.is_none() && is_locked(&directory)).then_some(record))
        };
        if runs()?.is_some() {
            let lock = lock_checkpoints(&directory, &id)?;
            // It may have ended before we had the lock.
            if let Some(record) = runs()? {
                let (state, lock) = (LayerState::Running, StoreLock::new(lock));
                return Ok(HeldLayer { id, record, state, live: None, directory, _lock: lock });
            }
        }
        self.hold(&id, workspace, LayerLockMode::Shared)
    }

    fn whole_id(&self, wanted: &str, workspace: &str) -> Result<String, ToolError> {
        let is_meant = |layer: &ListedLayer| layer.record.workspace == workspace && layer.id.starts_with(wanted);
        let mut found: Vec<String> = self.layers()?.into_iter().filter(is_meant).map(|layer| layer.id).collect();
        let shown = escape(&wanted.as_bytes()[..wanted.floor_char_boundary(64)]);
        match (found.pop(), found.is_empty()) {
            (Some(id), true) if wanted.len() > ID_PREFIX.len() => Ok(id),
            (Some(_), false) if wanted.len() > ID_PREFIX.len() => {
                let message = format!("`{shown}` is the start of several layers");
                Err(ToolError::new(ErrorKind::InvalidArgs, message).hint("give the whole id"))
            }
            _ => {
                let message = format!("this workspace has no layer `{shown}`");
                Err(ToolError::new(ErrorKind::NotFound, message).hint("`list_layers` lists them"))
            }
        }
    }

    /// Removes a layer about which everything was decided. After the first step it is not found any more.
    pub(super) fn remove(&self, layer: HeldLayer, cx: &CallContext<'_>) -> Result<(), ToolError> {
        self.remove_by_id(&layer.id, cx)
    }

    fn remove_by_id(&self, id: &str, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let layers = self.open(LAYERS)?;
        let decided = format!("{DECIDED_PREFIX}{id}");
        rename_noreplace((layers.as_fd(), id.as_bytes()), (layers.as_fd(), decided.as_bytes()))
            .map_err(errno_store_error)?;
        fsync(&layers).map_err(errno_store_error)?;
        // What cannot be removed now is collected later.
        let _ = remove_tree(layers.as_fd(), decided.as_bytes(), cx);
        Ok(())
    }

    /// Makes a layer for a program that starts now.
    pub(super) fn create(
        &self,
        exposed: &MountView,
        view: &WorkspaceView,
        about: &LayerDescription,
        cx: &CallContext<'_>,
    ) -> Result<Box<dyn WorkspaceLayer>, ToolError> {
        let mount = &exposed.mount;
        let workspace = workspace_id(mount);
        let home = create_home(&self.open(HOMES)?, &workspace, about, cx)?;
        let caches = match about.caches.is_empty() {
            true => Vec::new(),
            false => create_caches(&self.open(CACHES)?, &workspace, about, cx)?,
        };
        let layers = self.open(LAYERS)?;
        let (id, directory) = create_layer_directory(&layers)?;
        let lock = open_own_file(&directory, Path::new(LOCK), OFlags::CREATE).map_err(errno_store_error)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(errno_store_error)?;
        let upper = open_private_dir(&directory, UPPER).map_err(errno_store_error)?;
        let work = open_private_dir(&directory, WORK).map_err(errno_store_error)?;
        // The program sees the mode of the upper directory at the top of the workspace.
        let root = FileStat::from_stat(&fstat(&mount.root).map_err(|errno| errno_error(errno, "."))?);
        fchmod(&upper, Mode::from_raw_mode(root.mode & 0o777)).map_err(errno_store_error)?;
        let masked: Vec<Vec<u8>> =
            view.workspace.masked.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        let origin = cx.origin().cloned().unwrap_or_default();
        let host_path = path_of(&mount.root)?;
        let mut record = LayerRecord::new(workspace, &masked);
        record.workspace_path = escape(host_path.as_os_str().as_bytes());
        record.program.clone_from(&about.program);
        record.profile.clone_from(&about.profile);
        (record.session, record.principal) = (origin.session, origin.principal);
        record.started = u64::try_from(started_nanos(view)).unwrap_or_default();
        record.save(&directory).map_err(store_error)?;
        fsync(&layers).map_err(errno_store_error)?;
        let workspace = OverlayDirectories { upper, work };
        let store = self.clone();
        let masks = if exposed.is_followed() { exposed.take_masks() } else { None };
        let synced = SyncedLayer { record: Mutex::new(record), directory, synced: Mutex::default() };
        Ok(Box::new(RunningLayer {
            store,
            mount: Arc::clone(mount),
            id,
            layer: Arc::new(synced),
            is_followed: exposed.is_followed(),
            masks: Mutex::new(masks),
            workspace,
            home,
            caches,
            _lock: StoreLock::new(lock),
        }))
    }
}

impl HeldLayer {
    /// The directory that has everything of it.
    pub(super) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    pub(super) fn upper(&self) -> Result<OwnedFd, ToolError> {
        open_private_dir(&self.directory, UPPER).map_err(errno_store_error)
    }

    pub(super) fn save(&self) -> Result<(), ToolError> {
        self.record.save(&self.directory).map_err(store_error)
    }
}

/// A layer whose program runs.
#[derive(Debug)]
struct RunningLayer {
    store: LayerStore,
    mount: Arc<Mount>,
    id: String,
    layer: Arc<SyncedLayer>,
    is_followed: bool,
    /// Of the view, until the program runs.
    masks: Mutex<Option<Box<WatchedMasks>>>,
    workspace: OverlayDirectories,
    home: LayerHome,
    caches: Vec<KeptDirectory>,
    _lock: StoreLock,
}

impl WorkspaceLayer for RunningLayer {
    fn id(&self) -> &str {
        &self.id
    }

    fn workspace(&self) -> &OverlayDirectories {
        &self.workspace
    }

    fn home(&self) -> (&OwnedFd, &OverlayDirectories) {
        (&self.home.start, &self.home.kept.overlay)
    }

    fn caches(&self) -> Vec<&OverlayDirectories> {
        self.caches.iter().map(|cache| &cache.overlay).collect()
    }

    fn follow_lower(&self, mount: Box<dyn OverlayMount>) -> Result<Option<Box<dyn LowerSync>>, ToolError> {
        if !self.is_followed {
            return Ok(None);
        }
        let upper = self.workspace.upper.try_clone().map_err(|_| errno_store_error(Errno::MFILE))?;
        let masks = self.masks.lock().take();
        Ok(Some(Box::new(WatchedLowerSync::new(&self.mount, mount, upper, Arc::clone(&self.layer), masks))))
    }

    fn finish(self: Box<Self>, exit_code: i32, cx: &CallContext<'_>) -> Result<LayerSummary, ToolError> {
        let Self { store, mount, id, layer, workspace, home, caches, _lock: lock, .. } = *self;
        let directory = layer.directory.try_clone().map_err(|_| errno_store_error(Errno::MFILE))?;
        std::iter::once(&home.kept).chain(&caches).for_each(KeptDirectory::mark_used);
        // A checkpoint that is under way ends first. What it recorded is on disk, and so are secrets that were hidden.
        let ours = open_own_file(&directory, Path::new(CHECKPOINT_LOCK), OFlags::CREATE).map_err(errno_store_error)?;
        flock(&ours, FlockOperation::LockExclusive).map_err(errno_store_error)?;
        let ours = StoreLock::new(ours);
        let mut record = LayerRecord::load(&directory).map_err(|error| record_error(&id, &error))?;
        // A version is of use only where the program changed something.
        let upper = UpperTree::new(workspace.upper);
        let versions = std::mem::take(&mut *layer.synced.lock()).versions;
        record.set_synced(versions.into_iter().filter(|(path, _)| upper.cover(path) != UpperCover::Untouched));
        record.running_conflicts.clear();
        record.end = Some(LayerEndRecord { at: now_nanos(), exit_code });
        record.save(&directory).map_err(store_error)?;
        drop(ours);
        let mut layer = HeldLayer { id, record, state: LayerState::Ended, live: None, directory, _lock: lock };
        let counts = layer.changes(&mount, cx)?.counts();
        layer.record.summary = Some(counts);
        layer.save()?;
        if counts == LayerCounts::default() {
            store.remove(layer, cx)?;
        }
        Ok(counts.into())
    }
}

/// Fails for an agent: a layer is what one of them wants to change.
pub(crate) fn check_person(cx: &CallContext<'_>) -> Result<(), ToolError> {
    if cx.origin().is_some_and(|origin| origin.may_undo) {
        return Ok(());
    }
    let message = "only a person may decide about the layers of wrapped programs";
    Err(ToolError::new(ErrorKind::PermissionDenied, message))
}

/// Identity of a workspace's directory: as its journal is named.
pub(super) fn workspace_id(mount: &Mount) -> String {
    let id = mount.id;
    let born = FileRef::open(&mount.root).birth_time().map(|born| format!("-{born}")).unwrap_or_default();
    format!("{:x}-{:x}{born}", id.device, id.inode)
}

/// Makes the directory of a new layer. IDs are in the order in which layers were made: milliseconds since 1970, and random
/// digits.
fn create_layer_directory(layers: &OwnedFd) -> Result<(String, OwnedFd), ToolError> {
    loop {
        let mut random = [0u8; 2];
        getrandom::fill(&mut random)
            .map_err(|_| ToolError::new(ErrorKind::Unavailable, "the system gives no random numbers"))?;
        let millis = (now_nanos() / 1_000_000) & 0xfff_ffff_ffff;
        let id = format!("{ID_PREFIX}{millis:011x}{:03x}", u16::from_ne_bytes(random) & 0xfff);
        match mkdirat(layers, &id, Mode::RWXU) {
            Ok(()) => return Ok((id.clone(), open_checked(layers, id.as_bytes())?)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno_store_error(errno)),
        }
    }
}

/// Keeps others from making checkpoints, or comparing the layer, while its program runs.
fn lock_checkpoints(directory: &OwnedFd, id: &str) -> Result<OwnedFd, ToolError> {
    let lock = open_own_file(directory, Path::new(CHECKPOINT_LOCK), OFlags::CREATE).map_err(errno_store_error)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::AGAIN => {
            let message = format!("a checkpoint or a review of the layer `{id}` is being made");
            ToolError::new(ErrorKind::Conflict, message).hint("try again")
        }
        errno => errno_store_error(errno),
    })?;
    Ok(lock)
}

fn is_layer_id(name: &str) -> bool {
    let digits = name.strip_prefix(ID_PREFIX).unwrap_or_default();
    digits.len() == ID_DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn listed_layer(layers: &OwnedFd, id: String) -> Option<ListedLayer> {
    let directory = open_checked(layers, id.as_bytes()).ok()?;
    let record = LayerRecord::load(&directory).ok()?;
    let state = match (&record.end, is_locked(&directory)) {
        (Some(_), _) => LayerState::Ended,
        (None, true) => LayerState::Running,
        (None, false) => LayerState::Interrupted,
    };
    Some(ListedLayer { id, state, record })
}

/// A process died before it had made the layer: no program ran on it.
fn is_unfinished(layers: &OwnedFd, id: &str) -> Option<bool> {
    let directory = open_checked(layers, id.as_bytes()).ok()?;
    let has_record = stat(directory.as_fd(), b"about.json").ok()?.is_some();
    Some(!has_record && !is_locked(&directory))
}

/// Conflicts that were found while the program runs, for a message.
fn running_conflicts_text(record: &LayerRecord) -> String {
    const MOST_NAMED: usize = 20;
    let conflicts = &record.running_conflicts;
    if conflicts.is_empty() {
        return String::new();
    }
    let named: Vec<String> = conflicts.iter().take(MOST_NAMED).map(|path| format!("`{path}`")).collect();
    let more = match conflicts.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("; in conflict so far: {}{more}", named.join(", "))
}

fn record_error(id: &str, error: &io::Error) -> ToolError {
    if error.kind() == io::ErrorKind::Unsupported {
        let message = format!("the layer `{id}` was made by a newer version of Ringfence");
        return ToolError::new(ErrorKind::Unavailable, message).hint("install the newer version");
    }
    ToolError::new(ErrorKind::Unavailable, format!("the record of the layer `{id}` cannot be read"))
}

/// A layer that is to be dropped with everything in it. It is held until this is dropped.
#[derive(Debug)]
pub(crate) struct LayerDrop {
    store: LayerStore,
    layer: HeldLayer,
}

impl LayerDrop {
    /// Finds the layer. Fails while its program runs.
    pub(crate) fn plan(store: &LayerStore, mount: &Mount, id: &str) -> Result<Self, ToolError> {
        let layer = store.hold(id, &workspace_id(mount), LayerLockMode::Exclusive)?;
        Ok(Self { store: store.clone(), layer })
    }

    /// Its whole ID.
    pub(crate) fn id(&self) -> &str {
        &self.layer.id
    }

    /// Name of the program that wrote it.
    pub(crate) fn program(&self) -> &str {
        &self.layer.record.program
    }

    /// Removes it.
    pub(crate) fn run(self, cx: &CallContext<'_>) -> Result<String, ToolError> {
        let id = self.layer.id.clone();
        self.store.remove(self.layer, cx)?;
        Ok(id)
    }
}
