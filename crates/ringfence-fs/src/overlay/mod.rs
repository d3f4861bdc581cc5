//! Workspace overlays: what programs see of the files, and how their changes are committed.
//!
//! A program changes an overlay and never the workspace itself. The upper directory is read as untrusted input and
//! becomes groups of changes that are judged and previewed; those that are kept are committed as one, and the rest is
//! discarded with the overlay.
//!
//! Not here: running a program (`ringfence-sandbox`).

mod changes;
mod commit;
mod committed_secrets;
mod compare;
mod group;
mod mask_scan;
mod masked_paths;
mod repository_data;
mod stage;
mod upper;
mod view;
mod watched_directories;
mod watched_masks;
mod worktree_ties;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ringfence_kernel::{
    CallContext, ChangeGroup, ChangeGroupDecision, ErrorKind, ExposedDir, LayerDescription, ResourceAccess, ToolError,
    Workspace, WorkspaceChanges, WorkspaceLayer, WorkspaceView,
};

use self::compare::{OverlayChange, RejectedPath, compare};
use self::masked_paths::MaskedPaths;
use self::repository_data::RepositoryFindings;
use self::upper::UpperLayer;
use self::view::MountView;
use crate::Fence;
use crate::mount::Mount;
use crate::read::digest::Digest;

impl Fence {
    /// A mount as programs work on it, with the others beside it to be read. `None` for the state of a run, which
    /// programs do not see.
    pub fn workspace(&self, alias: &str) -> Option<Arc<dyn Workspace>> {
        let others = self.mounts().iter().filter(|mount| mount.run_state.is_none());
        let (mut own, beside): (Vec<_>, Vec<_>) = others.cloned().partition(|mount| &*mount.alias == alias);
        let other_mounts = beside.into_iter().map(MountView::new).collect();
        Some(Arc::new(OverlayWorkspace { own: MountView::new(own.pop()?), other_mounts }))
    }
}

impl Fence {
    /// A directory of the workspace that a program on other files may read, without what is masked below it.
    pub fn expose_directory(
        &self,
        path: &str,
        alias: &str,
        masked: &[&str],
        cx: &CallContext<'_>,
    ) -> Result<ExposedDir, ToolError> {
        let directory = self.locate(path, cx)?.open_directory(cx)?.fd;
        let path = view::path_of(&directory)?;
        let masked = masked.iter().map(PathBuf::from).collect();
        Ok(ExposedDir { alias: alias.to_owned(), directory, path, masked, hidden: Vec::new() })
    }
}

/// The files that programs work on.
#[derive(Debug)]
struct OverlayWorkspace {
    own: MountView,
    other_mounts: Vec<MountView>,
}

impl Workspace for OverlayWorkspace {
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
        self.own.mount.scan_root(cx)?;
        let since = view.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = i128::try_from(since.as_nanos()).unwrap_or_default();
        let upper = UpperLayer::new(upper);
        let found = compare(&self.own.mount, &upper, started, cx)?;
        let mut left = ChangeSet {
            mount: Arc::clone(&self.own.mount),
            upper,
            items: found.items,
            rejected: Vec::new(),
            accesses: Vec::new(),
            renamed: HashMap::new(),
            groups: Vec::new(),
            decisions: Vec::new(),
            repositories: RepositoryFindings::default(),
            masked: MaskedPaths::of(&view.workspace),
            previewed: HashMap::new(),
        };
        left.judge_repositories(cx);
        left.find_accesses(cx)?;
        let moved = left.find_renames(cx)?;
        left.form_groups(&moved, &found.stale, found.rejected);
        Ok(Box::new(left))
    }

    fn create_layer(
        &self,
        _: &WorkspaceView,
        _: &LayerDescription,
        _: &CallContext<'_>,
    ) -> Result<Box<dyn WorkspaceLayer>, ToolError> {
        Err(ToolError::new(ErrorKind::Unavailable, "layers on disk are not available"))
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
}
