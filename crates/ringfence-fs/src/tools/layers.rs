//! `list_layers`, `review_layer`, `keep_layer` and `drop_layer`: a person decides about the changes of wrapped programs.
//! `checkpoint_layer`: the session that runs one keeps what the policy allows, while it goes on.
//!
//! Agents are not offered these tools, and a call of theirs is refused: a layer is what one of them wants to change.
//!
//! Not here: what is in a layer, and keeping it (`overlay/`).

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{
    CallContext, CallLimits, DuplicateToolError, ErrorKind, LAYER_MOUNT, PolicyAction, PolicyResource, Preview,
    ResourceAccess, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::mount::Mount;
use crate::overlay::{
    CheckpointMemory, LayerDrop, LayerItemChoice, LayerKeep, LayerKeepOutcome, LayerReview, LayerReviewPlan,
    LayerSelection, ListedLayerEntry, check_person, list_layers,
};

/// Name of the tool that makes checkpoints, for rules.
pub const CHECKPOINT_LAYER: &str = "checkpoint_layer";

/// A whole agent may have run in a layer: to compare it takes longer than a change of one file.
const LEAST_TIME: Duration = Duration::from_secs(600);

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let fence = || fence.clone();
    let list = ToolBinding::standard::<ListLayersArgs, LayerListing>("list_layers").for_persons();
    registry.register(ListLayers { fence: fence() }, [list])?;
    let review = ToolBinding::standard::<ReviewLayerArgs, LayerReview>("review_layer").for_persons();
    registry.register(ReviewLayer { fence: fence() }, [review])?;
    let keep = ToolBinding::standard::<KeepLayerArgs, LayerKeepOutcome>("keep_layer").for_persons();
    registry.register(KeepLayer { fence: fence() }, [keep])?;
    let checkpoint = ToolBinding::standard::<CheckpointLayerArgs, LayerKeepOutcome>(CHECKPOINT_LAYER).for_persons();
    registry.register(CheckpointLayer { fence: fence(), memory: Arc::default() }, [checkpoint])?;
    let drop = ToolBinding::standard::<DropLayerArgs, DroppedLayer>("drop_layer").for_persons();
    registry.register(DropLayer { fence: fence() }, [drop])
}

/// The workspace that the layers are for. Fails for an agent.
fn workspace_of<'f>(fence: &'f Fence, cx: &CallContext<'_>) -> Result<&'f Arc<Mount>, ToolError> {
    check_person(cx)?;
    own_workspace(fence)
}

fn own_workspace(fence: &Fence) -> Result<&Arc<Mount>, ToolError> {
    fence.mounts().first().ok_or_else(|| ToolError::new(ErrorKind::Internal, "a host without a workspace"))
}

fn list_access(fence: &Fence, cx: &CallContext<'_>) -> Result<ResourceAccess, ToolError> {
    let resource = fence.locate(".", cx)?.resource(None);
    Ok(ResourceAccess { action: PolicyAction::List, resource })
}

struct ListLayers {
    fence: Fence,
}

/// List the layers of wrapped programs in this workspace, the oldest first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListLayersArgs {}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct LayerListing {
    layers: Vec<ListedLayerEntry>,
}

impl Tool for ListLayers {
    type Args = ListLayersArgs;
    type Prepared = ();
    type Outcome = LayerListing;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List];
    const IDEMPOTENT: bool = true;

    fn plan(&self, _: ListLayersArgs, cx: &CallContext<'_>) -> Result<ToolPlan<()>, ToolError> {
        workspace_of(&self.fence, cx)?;
        Ok(ToolPlan { accesses: vec![list_access(&self.fence, cx)?], prepared: () })
    }

    fn preview(&self, (): &mut (), _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("list the layers", ""))
    }

    fn run(&self, (): (), ticket: &Ticket<'_>) -> Result<LayerListing, ToolError> {
        let mount = workspace_of(&self.fence, ticket.context())?;
        Ok(LayerListing { layers: list_layers(&self.fence.layers(), mount)? })
    }
}

struct ReviewLayer {
    fence: Fence,
}

/// Show the changes in the layer of a wrapped program, in sections.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReviewLayerArgs {
    /// Its id, or the start of it.
    layer: String,
    /// Only changes of this path and below it.
    path: Option<String>,
}

impl Tool for ReviewLayer {
    type Args = ReviewLayerArgs;
    type Prepared = Box<LayerReviewPlan>;
    type Outcome = LayerReview;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List, PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time.max(LEAST_TIME)
    }

    fn plan(&self, args: ReviewLayerArgs, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        let mount = workspace_of(&self.fence, cx)?;
        let mut accesses = vec![list_access(&self.fence, cx)?];
        let selection = (args.layer.as_str(), args.path.as_deref());
        let plan = LayerReviewPlan::new(&self.fence.layers(), mount, selection, cx)?;
        accesses.extend(plan.accesses());
        Ok(ToolPlan { accesses, prepared: Box::new(plan) })
    }

    fn preview(&self, _: &mut Self::Prepared, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("review a layer", ""))
    }

    fn run(&self, plan: Self::Prepared, ticket: &Ticket<'_>) -> Result<LayerReview, ToolError> {
        plan.run(ticket.context())
    }
}

struct KeepLayer {
    fence: Fence,
}

/// Keep changes in the layer of a wrapped program: they are made in the workspace, as one change that can be undone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KeepLayerArgs {
    /// Its id, or the start of it.
    layer: String,
    /// What to keep. Without it, everything that can be kept and that the policy does not deny.
    items: Option<Vec<LayerItemChoice>>,
    /// Without `items`: only what the policy allows without approval.
    #[serde(default)]
    allowed_only: bool,
}

impl Tool for KeepLayer {
    type Args = KeepLayerArgs;
    type Prepared = Box<LayerKeep>;
    type Outcome = LayerKeepOutcome;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Delete, PolicyAction::Lose];

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time.max(LEAST_TIME)
    }

    fn plan(&self, args: KeepLayerArgs, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        let mount = workspace_of(&self.fence, cx)?;
        mount.check_in_place(cx.io_mode)?;
        mount.check_image_store()?;
        let selection = match args.items {
            Some(items) => LayerSelection::Items(items),
            None if args.allowed_only => LayerSelection::Allowed,
            None => LayerSelection::NotDenied,
        };
        let keep = LayerKeep::plan(&self.fence.layers(), mount, (&args.layer, selection), cx)?;
        Ok(ToolPlan { accesses: keep.accesses(), prepared: Box::new(keep) })
    }

    fn preview(&self, keep: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        keep.preview(cx)
    }

    fn run(&self, keep: Self::Prepared, ticket: &Ticket<'_>) -> Result<LayerKeepOutcome, ToolError> {
        keep.run(ticket)
    }
}

struct CheckpointLayer {
    fence: Fence,
    /// What the last checkpoint found.
    memory: Arc<CheckpointMemory>,
}

/// Keep what the policy allows of the changes of a program that this session runs, as one change that can be undone. The
/// program goes on, and its layer stays as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CheckpointLayerArgs {
    /// The layer of the program.
    layer: String,
}

impl Tool for CheckpointLayer {
    type Args = CheckpointLayerArgs;
    type Prepared = Box<LayerKeep>;
    type Outcome = LayerKeepOutcome;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::List, PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Delete, PolicyAction::Lose];

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time.max(LEAST_TIME)
    }

    fn plan(&self, args: CheckpointLayerArgs, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        let mount = own_workspace(&self.fence)?;
        mount.check_in_place(cx.io_mode)?;
        mount.check_image_store()?;
        let keep = LayerKeep::plan_checkpoint(&self.fence.layers(), mount, (&args.layer, &self.memory), cx)?;
        let accesses = match keep.keeps_anything() {
            true => keep.accesses(),
            false => vec![list_access(&self.fence, cx)?],
        };
        Ok(ToolPlan { accesses, prepared: Box::new(keep) })
    }

    fn preview(&self, keep: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        keep.preview(cx)
    }

    fn run(&self, keep: Self::Prepared, ticket: &Ticket<'_>) -> Result<LayerKeepOutcome, ToolError> {
        keep.run(ticket)
    }
}

struct DropLayer {
    fence: Fence,
}

/// Drop the layer of a wrapped program with every change in it. This cannot be undone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DropLayerArgs {
    /// Its id, or the start of it.
    layer: String,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct DroppedLayer {
    /// The layer that was dropped.
    layer: String,
}

impl Tool for DropLayer {
    type Args = DropLayerArgs;
    type Prepared = LayerDrop;
    type Outcome = DroppedLayer;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Lose];

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time.max(LEAST_TIME)
    }

    fn plan(&self, args: DropLayerArgs, cx: &CallContext<'_>) -> Result<ToolPlan<LayerDrop>, ToolError> {
        let mount = workspace_of(&self.fence, cx)?;
        let layer = LayerDrop::plan(&self.fence.layers(), mount, &args.layer)?;
        cx.set_subject(layer.id());
        let resource = PolicyResource {
            mount: Arc::from(LAYER_MOUNT),
            requested_path: layer.id().to_owned(),
            display_path: layer.id().to_owned(),
            ..PolicyResource::default()
        };
        Ok(ToolPlan { accesses: vec![ResourceAccess { action: PolicyAction::Lose, resource }], prepared: layer })
    }

    fn preview(&self, layer: &mut LayerDrop, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let text = format!("drop the layer {} of `{}` with every change in it", layer.id(), layer.program());
        Ok(Preview::new(&text, layer.id().to_owned()))
    }

    fn run(&self, layer: LayerDrop, ticket: &Ticket<'_>) -> Result<DroppedLayer, ToolError> {
        ticket.commit()?;
        Ok(DroppedLayer { layer: layer.run(ticket.context())? })
    }
}
