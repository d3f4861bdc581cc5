//! `keep_home`, `review_home` and `take_home`: files of an agent's home layer go back into the person's home directory,
//! without a question or by a person's choice.
//!
//! Agents are not offered them, and a call of theirs is refused.
//!
//! Not here: finding and writing the files (`overlay/home_keep.rs`, `overlay/home_review.rs`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence_kernel::{
    CallContext, CallLimits, DuplicateToolError, ErrorKind, PolicyAction, Preview, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Fence;
use crate::mount::Mount;
use crate::overlay::{
    HomeChoice, HomeKeep, HomeKeepOutcome, HomeReview, HomeReviewPlan, HomeTakeOutcome, check_person,
};

/// Transcripts of a whole agent may be compared.
const LEAST_TIME: Duration = Duration::from_secs(600);

/// Registers the tool, with the person's home directory where files may go back. In other sessions it does nothing, and rules
/// about it are checked all the same.
pub fn register_home(
    registry: &mut ToolRegistry,
    fence: &Fence,
    home: Option<PathBuf>,
) -> Result<(), DuplicateToolError> {
    let place = HomePlace { fence: fence.clone(), home: home.map(Arc::from) };
    let keep = ToolBinding::standard::<KeepHomeArgs, HomeKeepOutcome>("keep_home").for_persons();
    registry.register(KeepHome(place.clone()), [keep])?;
    let review = ToolBinding::standard::<ReviewHomeArgs, HomeReview>("review_home").for_persons();
    registry.register(ReviewHome(place.clone()), [review])?;
    let take = ToolBinding::standard::<TakeHomeArgs, HomeTakeOutcome>("take_home").for_persons();
    registry.register(TakeHome(place), [take])
}

/// Where the tools work.
#[derive(Clone)]
struct HomePlace {
    fence: Fence,
    /// The person's home directory, where files may go back.
    home: Option<Arc<Path>>,
}

impl HomePlace {
    /// The home directory, and the workspace that the home layers are for. Fails for an agent.
    fn open(&self, cx: &CallContext<'_>) -> Result<(&Path, &Arc<Mount>), ToolError> {
        check_person(cx)?;
        let closed = || ToolError::new(ErrorKind::Unavailable, "no files go back into a home directory here");
        let home = self.home.as_deref().ok_or_else(closed)?;
        let mount = self.fence.mounts().first();
        Ok((home, mount.ok_or_else(|| ToolError::new(ErrorKind::Internal, "a host without a workspace"))?))
    }
}

struct KeepHome(HomePlace);

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
        let (home, mount) = self.0.open(cx)?;
        let keep = HomeKeep::plan(&self.0.fence.layers(), mount, (home, &args.profile, &args.files), cx)?;
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

struct ReviewHome(HomePlace);

/// Show what an agent changed in its own home directory of files that agents act on, such as settings, memories and plugins.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReviewHomeArgs {
    /// Name of the agent's profile.
    profile: String,
    /// Files below the home directory, such as `.agent/settings.json`; `#` and a JSON pointer for one value of a file.
    files: Vec<String>,
    /// Only changes after this time (RFC 3339).
    since: Option<String>,
}

impl Tool for ReviewHome {
    type Args = ReviewHomeArgs;
    type Prepared = Box<HomeReviewPlan>;
    type Outcome = HomeReview;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List, PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: ReviewHomeArgs, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        let (home, mount) = self.0.open(cx)?;
        let named = (home, args.profile.as_str(), args.files.as_slice());
        let plan = HomeReviewPlan::new(&self.0.fence.layers(), mount, named, parse_since(args.since.as_deref())?, cx)?;
        Ok(ToolPlan { accesses: plan.read_accesses(), prepared: Box::new(plan) })
    }

    fn preview(&self, _: &mut Self::Prepared, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("review the home directory of an agent", ""))
    }

    fn run(&self, plan: Self::Prepared, ticket: &Ticket<'_>) -> Result<HomeReview, ToolError> {
        Ok(plan.show(ticket.context()))
    }
}

/// Nanoseconds since 1970.
fn parse_since(text: Option<&str>) -> Result<i128, ToolError> {
    let Some(text) = text else { return Ok(0) };
    let time: SystemTime = humantime::parse_rfc3339_weak(text)
        .map_err(|_| ToolError::invalid("since", "must be a time such as `2026-01-31T12:00:00Z`"))?;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(i128::try_from(since.as_nanos()).unwrap_or_default())
}

struct TakeHome(HomePlace);

/// Take changes of an agent's home directory into your own: the person's earlier version stays beside the file, with
/// `.before-ringfence` behind its name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TakeHomeArgs {
    /// Name of the agent's profile.
    profile: String,
    /// The changes, as `review_home` lists them.
    changes: Vec<HomeChoice>,
}

impl Tool for TakeHome {
    type Args = TakeHomeArgs;
    type Prepared = Box<HomeReviewPlan>;
    type Outcome = HomeTakeOutcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List, PolicyAction::Create, PolicyAction::Overwrite];

    fn plan(&self, args: TakeHomeArgs, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        let (home, mount) = self.0.open(cx)?;
        let files: Vec<String> = args.changes.iter().map(|change| change.file().to_owned()).collect();
        let named = (home, args.profile.as_str(), files.as_slice());
        let plan = HomeReviewPlan::new(&self.0.fence.layers(), mount, named, 0, cx)?.choose(&args.changes)?;
        Ok(ToolPlan { accesses: plan.take_accesses(), prepared: Box::new(plan) })
    }

    fn preview(&self, plan: &mut Self::Prepared, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let preview = Preview::new("take changes of an agent's home directory into yours", "");
        Ok(plan.paths().fold(preview, |preview, path| preview.with_line(&path)))
    }

    fn run(&self, plan: Self::Prepared, ticket: &Ticket<'_>) -> Result<HomeTakeOutcome, ToolError> {
        plan.take(ticket)
    }
}
