//! Layer checkpoints: what the policy allows of a running program's changes becomes the workspace's, as one change.
//!
//! Nothing moves under the program: what was kept stays in the layer, and does not differ from the workspace any more. The
//! program is not stopped. What it wrote before the checkpoint began is copied, and the copies are judged and committed; what
//! it writes meanwhile is left for the next checkpoint. While names come and go, only what went before the checkpoint before is
//! deleted: one of the new names may be that of what goes. A change that was undone since waits for the review, until the
//! program changes the path again.
//!
//! Not here: the copies (`captured_files.rs`), and when a checkpoint is made (the command line).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ringfence_kernel::{CallContext, Decision, ErrorKind, ToolError};

use crate::mount::Mount;
use crate::overlay::checkpoint_memory::{CheckpointMemory, LiveComparison};
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path};
use crate::overlay::landing_versions::landing_version;
use crate::overlay::layer_activity::LayerWatch;
use crate::overlay::layer_keep::LayerKeep;
use crate::overlay::layer_store::{LayerState, LayerStore, workspace_id};

impl LayerKeep {
    /// Finds out what a checkpoint of a program that this session runs would keep. Of one that ended, everything that the
    /// policy allows.
    pub(crate) fn plan_checkpoint(
        store: &LayerStore,
        mount: &Arc<Mount>,
        (id, memory): (&str, &Arc<CheckpointMemory>),
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        let session = cx.origin().map(|origin| origin.session.as_str()).unwrap_or_default();
        let mut layer = store.hold_own(id, &workspace_id(mount), session)?;
        let watch = match layer.state {
            LayerState::Running => LayerWatch::new(&layer.id, layer.directory()),
            LayerState::Ended | LayerState::Interrupted => None,
        };
        let live = LiveComparison::begin(layer.directory(), memory)?;
        let before = watch.as_ref().map(LayerWatch::look);
        layer.live = watch.is_some().then_some(live);
        let changes = layer.changes(mount, cx)?;
        let (along, refused, hunks) = (Vec::new(), Vec::new(), HashMap::new());
        let mut keep = Self { store: store.clone(), layer, changes, along, refused, hunks };
        let mut waiting = keep.groups_with_scripts(cx);
        waiting.extend(keep.undone_groups());
        // The program is not to see its directories open.
        keep.changes.upper.close_again();
        let structure = |watch: &LayerWatch| watch.look().structure;
        let is_quiet = watch.as_ref().map(structure) == before.map(|before| before.structure);
        let going = keep.changes.items.iter().filter(|item| goes(item)).map(|item| item.path.clone()).collect();
        let went_before = memory.replace_going(going);
        if !is_quiet || keep.changes.captured.as_ref().is_some_and(|captured| captured.misses_new) {
            waiting.extend(keep.removing_groups(&went_before));
        }
        keep.select_all(&[Decision::Deny, Decision::Ask], &waiting, cx);
        Ok(keep)
    }

    /// Groups whose newest version was kept before, and is not in the workspace any more.
    fn undone_groups(&self) -> Vec<(usize, ToolError)> {
        let accepted = self.layer.record.accepted();
        let is_undone = |item: &&OverlayChange| {
            let version = landing_version(item).filter(|_| !item.changes_permissions_only());
            version.is_some_and(|version| accepted.is_newest(&item.path, version))
        };
        let refusal = |item: &OverlayChange| {
            let shown = display_path(&self.changes.mount, &item.path);
            let message = format!("`{shown}` was kept before and undone since; decide in the review");
            (item.group, ToolError::new(ErrorKind::Conflict, message))
        };
        self.changes.items.iter().filter(is_undone).map(refusal).collect()
    }

    /// Groups in which something goes that was there at the checkpoint before.
    fn removing_groups(&self, went_before: &HashSet<Vec<u8>>) -> Vec<(usize, ToolError)> {
        let refusal = |item: &OverlayChange| {
            let shown = display_path(&self.changes.mount, &item.path);
            let message = format!("`{shown}` goes while other names come, and is left for the next checkpoint");
            (item.group, ToolError::new(ErrorKind::Conflict, message))
        };
        let goes_now = |item: &&OverlayChange| goes(item) && !went_before.contains(&item.path);
        self.changes.items.iter().filter(goes_now).map(refusal).collect()
    }
}

/// Whether something goes, or makes way for something of another kind.
fn goes(item: &OverlayChange) -> bool {
    item.upper.is_none() || item.changes_kind()
}

impl OverlayChange {
    fn changes_permissions_only(&self) -> bool {
        matches!(self.upper, Some(OverlayUpperState::File { only_mode: true, .. }))
    }
}
