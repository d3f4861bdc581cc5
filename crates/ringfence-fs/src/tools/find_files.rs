//! `find_files`: paths by a pattern.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use globset::GlobSet;
use ringfence_kernel::{
    Context, Face, NameTaken, Place, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::mount::Spot;
use crate::name::show;
use crate::walk::{Step, Walk};

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(FindFiles { fence: fence.clone() }, [Face::standard::<StandardArgs, Outcome>("find_files")])
}

struct FindFiles {
    fence: Fence,
}

/// Find files and directories by a glob pattern. `*` matches within a name, `**` across directories; a pattern without `/`
/// matches names at any depth. `.git` is left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardArgs {
    /// The directory to search, by its path relative to the workspace; `.` is the workspace itself.
    path: String,
    /// The pattern, relative to `path`; `{a,b}` matches either.
    glob: String,
    /// At most so many.
    #[schemars(range(min = 1))]
    max_results: Option<u64>,
}

struct Args {
    path: String,
    pattern: String,
    matcher: GlobSet,
    most: Option<u64>,
}

impl TryFrom<StandardArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardArgs) -> Result<Self, ToolError> {
        let StandardArgs { path, glob, max_results: most } = args;
        let matcher = super::glob(&glob)?;
        if most == Some(0) {
            return Err(ToolError::invalid("maxResults", "must be at least 1"));
        }
        Ok(Self { path, pattern: glob, matcher, most })
    }
}

struct Work {
    spot: Spot,
    place: Place,
    directory: OwnedFd,
    /// Where it really is, below the root of the mount.
    real: String,
    args: Args,
}

/// What was found.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    /// Paths relative to the searched directory, sorted; a directory ends in `/`.
    paths: Vec<String>,
    /// True when there are more.
    truncated: bool,
    /// How many entries were looked at.
    scanned: u64,
    /// Directories that could not be looked into.
    #[serde(skip_serializing_if = "super::is_zero")]
    unreadable: u64,
}

impl Tool for FindFiles {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::List];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let spot = self.fence.locate(&args.path, cx)?;
        let opened = spot.open_directory(cx)?;
        let real = opened.resolved.clone().unwrap_or_else(|| spot.path.shown());
        let place = spot.place(opened.resolved);
        let touches = vec![Touch { verb: Verb::List, place: place.clone() }];
        Ok(Plan { touches, work: Work { spot, place, directory: opened.fd, real, args } })
    }

    fn preview(&self, work: &mut Work, _: &Context<'_>) -> Result<Preview, ToolError> {
        let text = format!("find `{}` in `{}`", work.args.pattern, work.spot.shown);
        Ok(Preview::new(&text, ""))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { spot, place, directory, real, args } = work;
        let cx = ticket.context();
        let most = args.most.unwrap_or(u64::MAX).min(cx.limits.find_results);
        let mut outcome = Outcome { paths: Vec::new(), truncated: false, scanned: 0, unreadable: 0 };
        let mut left = cx.limits.list_bytes;
        let of_whole = cx.judge(&Touch { verb: Verb::List, place: place.clone() }).strictness();
        let mut walk = Walk::new(&spot.mount, directory, &spot.shown, cx)?;
        while let Some(step) = walk.next()? {
            let Step::Entry(entry) = step else { continue };
            outcome.scanned += 1;
            let path = walk.path_of(&entry.name);
            let is_directory = walk.is_directory(&entry)?;
            if !is_directory {
                spot.mount.meet(&format!("{real}/{}", show(&path)), walk.directory()?, &entry.name);
            }
            if args.matcher.is_match(std::ffi::OsStr::from_bytes(&path)) {
                let shown = format!("{}{}", show(&path), if is_directory { "/" } else { "" });
                if outcome.paths.len() as u64 == most || shown.len() as u64 > left {
                    outcome.truncated = true;
                    break;
                }
                left -= shown.len() as u64;
                outcome.paths.push(shown);
            }
            if is_directory && entry.name != b".git" {
                let inside = Touch { verb: Verb::List, place: place.below(&show(&path)) };
                let kept_out = cx.judge(&inside).strictness() > of_whole;
                if kept_out || walk.descend(&entry)?.is_err() {
                    outcome.unreadable += 1;
                }
            }
        }
        Ok(outcome)
    }
}
