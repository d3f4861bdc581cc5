//! `keep_home`: files of an agent's home layer go back into the person's home directory.
//!
//! Agents are not offered it, and a call of theirs is refused.
//!
//! Not here: finding and writing the files (`overlay/home_keep.rs`).

use std::path::PathBuf;
use std::time::Duration;

use ringfence_kernel::{
    CallContext, CallLimits, DuplicateToolError, ErrorKind, PolicyAction, Preview, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Fence;
use crate::overlay::{HomeKeep, HomeKeepOutcome, check_person};

/// Transcripts of a whole agent may be compared.
const LEAST_TIME: Duration = Duration::from_secs(600);

/// Registers the tool, with the person's home directory where files may go back. In other sessions it does nothing, and rules
/// about it are checked all the same.
pub fn register_home(
    registry: &mut ToolRegistry,
    fence: &Fence,
    home: Option<PathBuf>,
) -> Result<(), DuplicateToolError> {
    let binding = ToolBinding::standard::<KeepHomeArgs, HomeKeepOutcome>("keep_home").for_persons();
    registry.register(KeepHome { fence: fence.clone(), home }, [binding])
}

struct KeepHome {
    fence: Fence,
    home: Option<PathBuf>,
}

/// Take files of an agent's home layer into the home directory: new ones, and the rest of files that are there up to a point. Other
/// files there stay as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeepHomeArgs {
    /// Name of the agent's profile.
    profile: String,
    /// Files below the home directory, such as `.agent/sessions/*.jsonl`. A star stands for any text in a name.
    files: Vec<String>,
}

impl Tool for KeepHome {
    type Args = KeepHomeArgs;
    type Prepared = Box<HomeKeep>;
    type Outcome = HomeKeepOutcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List, PolicyAction::Create, PolicyAction::Overwrite];

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time.max(LEAST_TIME)
    }

    fn plan(&self, args: KeepHomeArgs, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        check_person(cx)?;
        let closed = || ToolError::new(ErrorKind::Unavailable, "no files go back into a home directory here");
        let home = self.home.as_ref().ok_or_else(closed)?;
        let mount = self.fence.mounts().first();
        let mount = mount.ok_or_else(|| ToolError::new(ErrorKind::Internal, "a host without a workspace"))?;
        let keep = HomeKeep::plan(&self.fence.layers(), mount, (home, &args.profile, &args.files), cx)?;
        Ok(ToolPlan { accesses: keep.accesses(), prepared: Box::new(keep) })
    }

    fn preview(&self, keep: &mut Self::Prepared, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let preview = Preview::new("take files of an agent into the home directory", "");
        Ok(keep.paths().fold(preview, |preview, path| preview.with_line(&path)))
    }

    fn run(&self, keep: Self::Prepared, ticket: &Ticket<'_>) -> Result<HomeKeepOutcome, ToolError> {
        keep.run(ticket)
    }
}
