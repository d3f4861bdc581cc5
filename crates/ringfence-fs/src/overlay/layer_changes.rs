//! Changes in a kept layer, as of now.
//!
//! The layer is compared with the live workspace whenever it is looked at. What a person or another program changed there
//! since the start is a conflict; what a keep of this layer changed is not.
//!
//! Not here: which of them a person keeps (`layer_keep.rs`).

use std::sync::Arc;

use ringfence_kernel::{CallContext, ChangeKind, ToolError, WorkspaceChanges as _};

use crate::mount::Mount;
use crate::overlay::ChangeSet;
use crate::overlay::accepted_versions::OverlayBaseline;
use crate::overlay::layer_record::LayerCounts;
use crate::overlay::layer_store::{HeldLayer, LayerState};
use crate::overlay::masked_paths::MaskedPaths;
use crate::overlay::upper::UpperLayer;

impl HeldLayer {
    /// The changes that are still in the layer.
    pub(super) fn changes(&mut self, mount: &Arc<Mount>, cx: &CallContext<'_>) -> Result<ChangeSet, ToolError> {
        let baseline = self.baseline();
        let upper = match self.state {
            LayerState::Running => UpperLayer::of_running(self.upper()?),
            _ => UpperLayer::with_closed_modes(self.upper()?, self.record.closed_modes()),
        };
        let masked = MaskedPaths::from_paths(self.record.masked());
        let mut changes = ChangeSet::compare(mount, upper, masked, &baseline, cx)?;
        changes.refuse_masked();
        if self.state != LayerState::Running && self.record.set_closed_modes(&changes.upper.closed_modes()) {
            self.save()?;
        }
        Ok(changes)
    }

    /// What the layer is compared with.
    pub(super) fn baseline(&self) -> OverlayBaseline {
        OverlayBaseline {
            started: i128::from(self.record.started),
            accepted: self.record.accepted(),
            synced: self.record.synced(),
            hidden: self.record.hidden(),
            // A whole agent ran here, and the time of the call is the limit.
            most_bytes: Some(u64::MAX),
            live: self.live.clone(),
        }
    }
}

impl ChangeSet {
    /// Each changed path counts once; one that cannot be kept is a conflict.
    pub(super) fn counts(&self) -> LayerCounts {
        let mut counts = LayerCounts::default();
        for changed in self.changed_paths() {
            let is_refused = self.groups.get(changed.group).is_none_or(|group| group.refusal.is_some());
            match changed.kind {
                _ if is_refused => counts.conflicts += 1,
                ChangeKind::Created => counts.created += 1,
                ChangeKind::Deleted => counts.deleted += 1,
                ChangeKind::Modified | ChangeKind::Renamed { .. } | ChangeKind::Mode | ChangeKind::Link => {
                    counts.changed += 1;
                }
            }
        }
        counts
    }
}
