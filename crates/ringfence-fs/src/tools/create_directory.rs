//! `create_directory`: create a directory and its parents.

use std::os::fd::AsFd;

use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use rustix::fs::Mode;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::journal::{FileState, FileStateKind, JournalEffect};
use crate::lock::TreeLockMode;
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::path::name::escape;
use crate::root::attributes::chmod_past_umask;
use crate::root::{Durability, check_directory_writable};
use crate::sys::errno::{errno_error, sync_error};
use crate::sys::stat::FileKind;
use crate::sys::syscall::{fsync, mkdirat};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry.register(
        CreateDirectory { fence: fence.clone() },
        [ToolBinding::standard::<Args, Outcome>("create_directory")],
    )
}

struct CreateDirectory {
    fence: Fence,
}

/// Create a directory and its parents. An existing directory is left unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Path of the directory, relative to the workspace.
    path: String,
}

enum CreateDirectoryPlan {
    /// It is there.
    Exists {
        shown: String,
    },
    Make {
        target: WriteTarget,
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
        Ok(match target.stat()? {
            None => {
                target.check_not_guarded()?;
                ToolPlan {
                    accesses: vec![ResourceAccess { action: PolicyAction::Create, resource: place }],
                    prepared: CreateDirectoryPlan::Make { target },
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
                let created = make(&target, ticket)?;
                (target.shown, created)
            }
        };
        Ok(Outcome { path, created, change: created.then(|| ticket.change_id().to_owned()) })
    }
}

/// Makes a directory with those above it. False if it exists already.
fn make(target: &WriteTarget, ticket: &Ticket<'_>) -> Result<bool, ToolError> {
    let _place = target.lock_directory(TreeLockMode::Shared, ticket.context())?;
    let made = target.make_parents(ticket.context())?;
    let parent = made.parent.as_fd();
    check_directory_writable(parent, &target.shown)?;
    let after = FileState::planned(FileStateKind::Directory);
    let mut effects = made.effects();
    effects.push(JournalEffect::Created { path: escape(&target.path()), after, image: None });
    let entered = target.mount.begin_change(ticket, Vec::new(), effects)?;
    ticket.commit()?;
    let created = match mkdirat(parent, target.name.as_slice(), Mode::from_raw_mode(0o755)) {
        Ok(()) => true,
        Err(Errno::EXIST) if target.stat_in(parent)?.is_some_and(|found| found.kind == FileKind::Directory) => false,
        Err(errno) => return Err(errno_error(errno, &target.shown)),
    };
    if created {
        entered.commit();
        // It is there by now: with a mode that the umask made, rather than as an error about something that was done.
        if let Ok(child) = target.mount.resolver.open_child(parent, &target.name) {
            let _ = chmod_past_umask(child.as_fd(), parent, 0o755);
        }
    }
    if target.mount.durability == Durability::Full {
        fsync(parent).map_err(|errno| sync_error(errno, &target.shown))?;
    }
    made.persist(target.mount.durability, &target.shown)?;
    Ok(created)
}
