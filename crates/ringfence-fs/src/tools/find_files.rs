//! `find_files`: find paths by a glob pattern.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use globset::GlobSet;
use ringfence_kernel::{
    CallContext, DuplicateToolError, PolicyAction, PolicyResource, Preview, ResourceAccess, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::mount::LocatedPath;
use crate::path::name::escape;
use crate::root::walk::{TreeWalk, WalkStep};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry.register(
        FindFiles { fence: fence.clone() },
        [ToolBinding::standard::<StandardFindArgs, Outcome>("find_files")],
    )
}

struct FindFiles {
    fence: Fence,
}

/// Find files and directories by a glob pattern. `*` matches within a name, `**` across directories; a pattern without `/`
/// matches names at any depth. `.git` is left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardFindArgs {
    /// Path of the directory to search, relative to the workspace; `.` is its root.
    path: String,
    /// The pattern, relative to `path`; `{a,b}` matches either.
    glob: String,
    /// Maximum number of results.
    #[schemars(range(min = 1))]
    max_results: Option<u64>,
}

struct Args {
    path: String,
    pattern: String,
    matcher: GlobSet,
    most: Option<u64>,
}

impl TryFrom<StandardFindArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardFindArgs) -> Result<Self, ToolError> {
        let StandardFindArgs { path, glob, max_results: most } = args;
        let matcher = crate::tools::glob(&glob)?;
        if most == Some(0) {
            return Err(ToolError::invalid("maxResults", "must be at least 1"));
        }
        Ok(Self { path, pattern: glob, matcher, most })
    }
}

struct FindFilesPlan {
    located: LocatedPath,
    resource: PolicyResource,
    directory: OwnedFd,
    /// Its resolved path below the root of the mount.
    real_path: String,
    args: Args,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    /// Paths relative to the searched directory, sorted; a directory ends in `/`.
    paths: Vec<String>,
    /// True when there are more.
    truncated: bool,
    /// Number of entries visited.
    scanned: u64,
    /// Directories that could not be read.
    #[serde(skip_serializing_if = "crate::tools::is_zero")]
    unreadable: u64,
}

impl Tool for FindFiles {
    type Args = Args;
    type Prepared = FindFilesPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<FindFilesPlan>, ToolError> {
        let located = self.fence.locate(&args.path, cx)?;
        let opened = located.open_directory(cx)?;
        let real = opened.resolved.clone().unwrap_or_else(|| located.path.display());
        let place = located.resource(opened.resolved);
        let accesses = vec![ResourceAccess { action: PolicyAction::List, resource: place.clone() }];
        Ok(ToolPlan {
            accesses,
            prepared: FindFilesPlan { located, resource: place, directory: opened.fd, real_path: real, args },
        })
    }

    fn preview(&self, work: &mut FindFilesPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let text = format!("find `{}` in `{}`", work.args.pattern, work.located.shown);
        Ok(Preview::new(&text, ""))
    }

    fn run(&self, work: FindFilesPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let FindFilesPlan { located, resource: place, directory, real_path: real, args } = work;
        let cx = ticket.context();
        let most = args.most.unwrap_or(u64::MAX).min(cx.limits.find_results);
        let mut outcome = Outcome { paths: Vec::new(), truncated: false, scanned: 0, unreadable: 0 };
        let mut left = cx.limits.list_bytes;
        let of_whole =
            cx.evaluate(&ResourceAccess { action: PolicyAction::List, resource: place.clone() }).strictness();
        let mut walk = TreeWalk::new(&located.mount, directory, &located.shown, cx)?;
        while let Some(step) = walk.next()? {
            let WalkStep::Entry(entry) = step else { continue };
            outcome.scanned += 1;
            let path = walk.path_of(&entry.name);
            let is_directory = walk.is_directory(&entry)?;
            if !is_directory {
                located.mount.observe(&format!("{real}/{}", escape(&path)), walk.directory()?, &entry.name);
            }
            if args.matcher.is_match(std::ffi::OsStr::from_bytes(&path)) {
                let shown = format!("{}{}", escape(&path), if is_directory { "/" } else { "" });
                if outcome.paths.len() as u64 == most || shown.len() as u64 > left {
                    outcome.truncated = true;
                    break;
                }
                left -= shown.len() as u64;
                outcome.paths.push(shown);
            }
            if is_directory && entry.name != b".git" {
                let inside = ResourceAccess { action: PolicyAction::List, resource: place.join(&escape(&path)) };
                let kept_out = cx.evaluate(&inside).strictness() > of_whole;
                if kept_out || walk.descend(&entry)?.is_err() {
                    outcome.unreadable += 1;
                }
            }
        }
        Ok(outcome)
    }
}
