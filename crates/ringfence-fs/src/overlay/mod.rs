//! Workspace overlays: what programs see of the files, and how their changes are committed.
//!
//! A program changes an overlay and never the workspace itself. The upper directory is read as untrusted input and
//! becomes groups of changes that are judged and previewed; those that are kept are committed as one, and the rest is
//! discarded with the overlay.
//!
//! Not here: running a program (`ringfence-sandbox`).

mod accepted_versions;
mod captured_files;
mod changes;
mod checkpoint_memory;
mod commit;
mod committed_secrets;
mod compare;
mod group;
mod home_files;
mod home_keep;
mod home_review;
mod ignored_trees;
mod kept_directory;
mod landing_versions;
mod layer_activity;
mod layer_branch;
mod layer_cache;
mod layer_changes;
mod layer_checkpoint;
mod layer_collection;
mod layer_home;
mod layer_keep;
mod layer_record;
mod layer_review;
mod layer_store;
mod links_outside;
mod lower_sync;
mod mask_scan;
mod masked_paths;
mod repository_data;
mod stage;
mod store_directory;
mod text_hunks;
mod tree_removal;
mod upper;
mod upper_cover;
mod view;
mod watched_masks;
mod worktree_ties;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ringfence_kernel::{
    CallContext, ChangeGroup, ChangeGroupDecision, ExposedDir, LayerDescription, ResourceAccess, ToolError, Workspace,
    WorkspaceChanges, WorkspaceLayer, WorkspaceView,
};

use self::accepted_versions::OverlayBaseline;
use self::captured_files::CapturedFiles;
pub(crate) use self::checkpoint_memory::CheckpointMemory;
use self::compare::{OverlayChange, RejectedPath, compare};
pub(crate) use self::home_keep::{HomeKeep, HomeKeepOutcome};
pub(crate) use self::home_review::{HomeChoice, HomeReview, HomeReviewPlan, HomeTakeOutcome};
pub use self::layer_activity::{LayerActivity, LayerWatch};
pub use self::layer_branch::{LayerBranch, LayerBranchContents, StagedBranch};
pub use self::layer_collection::{
    LayerCollection, LayerCollectionMode, LayerCollectionPolicy, LayerStoreEntry, LayerStoreEntryKind,
};
pub use self::layer_keep::{LayerItemChoice, LayerSelection};
pub(crate) use self::layer_keep::{LayerKeep, LayerKeepOutcome};
pub(crate) use self::layer_review::{LayerReview, LayerReviewPlan, ListedLayerEntry, list_layers};
pub(crate) use self::layer_store::{LayerDrop, check_person};
pub use self::layer_store::{LayerState, LayerStore};
use self::masked_paths::MaskedPaths;
use self::repository_data::RepositoryFindings;
use self::upper::UpperLayer;
use self::view::MountView;
use self::watched_masks::MaskWatches;
use crate::Fence;
use crate::mount::Mount;
use crate::read::digest::Digest;
use crate::root::{MountAccess, path_of};
use crate::sys::directory_watch::WatchScope;

impl Fence {
    /// A mount as programs work on it, with the others beside it to be read. `None` for the state of a run, which
    /// programs do not see.
    pub fn workspace(&self, alias: &str) -> Option<Arc<dyn Workspace>> {
        self.workspace_with(alias, MaskWatches { scope: WatchScope::Entries, most: None })
    }
}

/// Watches of a workspace whose changes are followed while a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowedWatches {
    /// Most directories. By default, a share of the watches that the user has.
    pub most: Option<usize>,
}

impl Fence {
    /// The same for wrapped programs: while one of them runs, changes of others in the mount are followed.
    pub fn followed_workspace(&self, alias: &str, watches: FollowedWatches) -> Option<Arc<dyn Workspace>> {
        let watches = MaskWatches { scope: WatchScope::Contents, most: watches.most };
        self.workspace_with(alias, watches)
    }

    fn workspace_with(&self, alias: &str, watches: MaskWatches) -> Option<Arc<dyn Workspace>> {
        let others = self.mounts().iter().filter(|mount| mount.run_state.is_none());
        let (mut own, beside): (Vec<_>, Vec<_>) = others.cloned().partition(|mount| &*mount.alias == alias);
        let other_mounts = beside.into_iter().map(MountView::new).collect();
        let own = MountView::with_watches(own.pop()?, watches);
        Some(Arc::new(OverlayWorkspace { own, other_mounts, layers: self.layers() }))
    }
}

impl Fence {
    /// The kept layers of wrapped programs.
    pub(crate) fn layers(&self) -> LayerStore {
        LayerStore::new(self.state())
    }

    /// A directory of the workspace that a program on other files may read, without what is masked below it.
    pub fn expose_directory(
        &self,
        path: &str,
        alias: &str,
        masked: &[&str],
        cx: &CallContext<'_>,
    ) -> Result<ExposedDir, ToolError> {
        let directory = self.locate(path, cx)?.open_directory(cx)?.fd;
        let path = path_of(&directory)?;
        let masked = masked.iter().map(PathBuf::from).collect();
        Ok(ExposedDir { alias: alias.to_owned(), directory, path, masked, hidden: Vec::new() })
    }
}

/// The files that programs work on.
#[derive(Debug)]
struct OverlayWorkspace {
    own: MountView,
    other_mounts: Vec<MountView>,
    layers: LayerStore,
}

impl Workspace for OverlayWorkspace {
    fn create_staging(&self, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let mount = &self.own.mount;
        mount.check_in_place(cx.io_mode)?;
        match mount.undo_journal() {
            Some(journal) if mount.rights != MountAccess::ReadOnly => journal.create_image_store(mount).map(drop),
            _ => Ok(()),
        }
    }

    fn view(&self, cx: &CallContext<'_>) -> Result<WorkspaceView, ToolError> {
        self.own.mount.check_in_place(cx.io_mode)?;
        let workspace = self.own.expose(cx)?;
        let beside = self.other_mounts.iter().map(|mount| mount.expose(cx)).collect::<Result<Vec<_>, _>>()?;
        // Last: whatever happened until now, the program sees.
        Ok(WorkspaceView { workspace, read_only_mounts: beside, started: view::start_time(&self.own.mount)? })
    }

    fn committed_secret(&self, cx: &CallContext<'_>) -> Result<Option<String>, ToolError> {
        for mount in std::iter::once(&self.own).chain(&self.other_mounts) {
            if let Some(found) = mount.committed_secret(cx)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn changes(
        &self,
        view: &WorkspaceView,
        upper: OwnedFd,
        cx: &CallContext<'_>,
    ) -> Result<Box<dyn WorkspaceChanges>, ToolError> {
        let baseline = OverlayBaseline { started: started_nanos(view), ..OverlayBaseline::default() };
        let masked = MaskedPaths::of(&view.workspace);
        Ok(Box::new(ChangeSet::compare(&self.own.mount, UpperLayer::new(upper), masked, &baseline, cx)?))
    }

    fn create_layer(
        &self,
        view: &WorkspaceView,
        about: &LayerDescription,
        cx: &CallContext<'_>,
    ) -> Result<Box<dyn WorkspaceLayer>, ToolError> {
        self.layers.create(&self.own, view, about, cx)
    }
}

/// Changes that a program made, relative to the workspace.
#[derive(Debug)]
struct ChangeSet {
    mount: Arc<Mount>,
    upper: UpperLayer,
    items: Vec<OverlayChange>,
    /// Paths that cannot be committed, with their groups.
    rejected: Vec<(RejectedPath, usize)>,
    /// For each item what the policy has to judge.
    accesses: Vec<Vec<ResourceAccess>>,
    /// New files by the path that had the same contents and is gone.
    renamed: HashMap<Vec<u8>, Vec<u8>>,
    groups: Vec<ChangeGroup>,
    /// The decision about each group.
    decisions: Vec<ChangeGroupDecision>,
    repositories: RepositoryFindings,
    /// Paths that the program saw empty.
    masked: MaskedPaths,
    /// Digests of the workspace files that were previewed.
    previewed: HashMap<Vec<u8>, Digest>,
    /// New contents that are not those of the upper directory: some of the hunks of a file.
    partial: HashMap<Vec<u8>, PartialContents>,
    /// Copies of new contents, where the program still runs.
    captured: Option<CapturedFiles>,
}

/// A file with some of its hunks.
#[derive(Debug)]
struct PartialContents {
    /// Of the file in the workspace that the hunks are applied to.
    base: Digest,
    contents: Vec<u8>,
}

impl ChangeSet {
    /// The changes of an upper directory.
    fn compare(
        mount: &Arc<Mount>,
        upper: UpperLayer,
        masked: MaskedPaths,
        baseline: &OverlayBaseline,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        mount.scan_root(cx)?;
        let mut found = compare(mount, &upper, baseline, cx)?;
        // Before anything is decided by what is in a file.
        let captured =
            baseline.live.as_ref().map(|live| CapturedFiles::of(mount, &upper, &mut found, live, cx)).transpose()?;
        let mut changes = Self {
            mount: Arc::clone(mount),
            upper,
            items: found.items,
            rejected: Vec::new(),
            accesses: Vec::new(),
            renamed: HashMap::new(),
            groups: Vec::new(),
            decisions: Vec::new(),
            repositories: RepositoryFindings::default(),
            masked,
            previewed: HashMap::new(),
            partial: HashMap::new(),
            captured,
        };
        changes.judge_repositories(cx);
        changes.find_accesses(cx)?;
        let moved = changes.find_renames(cx)?;
        changes.form_groups(&moved, &found.stale, found.rejected);
        Ok(changes)
    }
}

/// The start of a view in nanoseconds since 1970.
fn started_nanos(view: &WorkspaceView) -> i128 {
    let since = view.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    i128::try_from(since.as_nanos()).unwrap_or_default()
}
