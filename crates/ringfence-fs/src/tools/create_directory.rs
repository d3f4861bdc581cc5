//! `create_directory`: create a directory and its parents.

use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, ModelText, PolicyAction, Preview, ResourceAccess, Ticket,
    Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::sys::stat::FileKind;
use crate::tools::change_note;
use crate::txn::write::make_directory;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry.register(
        CreateDirectory { fence: fence.clone() },
        [ToolBinding::standard_with_text::<Args, Outcome>("create_directory")],
    )
}

struct CreateDirectory {
    fence: Fence,
}

/// Create a directory and its parents. An existing directory is left unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Relative to the workspace.
    #[serde(alias = "dir_path", alias = "directory")]
    path: String,
}

enum CreateDirectoryPlan {
    /// It is there.
    Exists {
        shown: String,
    },
    Make {
        target: Box<WriteTarget>,
    },
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    path: String,
    /// False when it already existed.
    created: bool,
    /// The id of this change, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
}

impl ModelText for Outcome {
    fn model_text(&self, _: Dialect) -> String {
        match &self.change {
            Some(change) => format!("created the directory {}{}", self.path, change_note(change)),
            None => format!("the directory {} exists already", self.path),
        }
    }
}

impl Tool for CreateDirectory {
    type Args = Args;
    type Prepared = CreateDirectoryPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List, PolicyAction::Create];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<CreateDirectoryPlan>, ToolError> {
        let located = self.fence.locate(&args.path, cx)?.allow_slash_for(FileKind::Directory);
        let target = WriteTarget::find(&located, WriteTargetKind::Any, ParentDirPolicy::CreateMissing)?;
        let place = target.resource();
        Ok(match target.found {
            None => {
                target.check_not_guarded()?;
                ToolPlan {
                    accesses: vec![ResourceAccess { action: PolicyAction::Create, resource: place }],
                    prepared: CreateDirectoryPlan::Make { target: Box::new(target) },
                }
            }
            Some(found) if found.kind == FileKind::Directory => ToolPlan {
                accesses: vec![ResourceAccess { action: PolicyAction::List, resource: place }],
                prepared: CreateDirectoryPlan::Exists { shown: target.shown },
            },
            Some(found) => {
                let message = format!("`{}` already exists and is {}", target.shown, found.kind.with_article());
                return Err(ToolError::new(ErrorKind::AlreadyExists, message));
            }
        })
    }

    fn preview(&self, work: &mut CreateDirectoryPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(match work {
            CreateDirectoryPlan::Exists { shown } => {
                Preview::new(&format!("the directory `{shown}` already exists"), "exists")
            }
            CreateDirectoryPlan::Make { target } => {
                Preview::new(&format!("create the directory `{}`", target.shown), "make")
                    .with_failure(target.directory_failure())
            }
        })
    }

    fn run(&self, work: CreateDirectoryPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let (path, created) = match work {
            CreateDirectoryPlan::Exists { shown } => (shown, false),
            CreateDirectoryPlan::Make { target } => {
                let created = make_directory(&target, ticket)?;
                (target.shown, created)
            }
        };
        Ok(Outcome { path, created, change: created.then(|| ticket.change_id().to_owned()) })
    }
}
