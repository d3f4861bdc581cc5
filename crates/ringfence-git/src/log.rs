//! `git_log`: commits, the newest first, with their patches if wanted.

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::{optional_scalar, scalar, strings};
use ringfence_kernel::{
    CallContext, CallLimits, Dialect, DuplicateToolError, ModelText, PolicyAction, Preview, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GIT_TOOLSET;
use crate::diff::PATCH_OPTIONS;
use crate::output_filter::{ReadFilter, bound_text};
use crate::repository::{GitRunner, GitTarget, reading_time};
use crate::revision::GitRevision;

const NAME: &str = "git_log";

const DEFAULT_COMMITS: u32 = 20;
const MAX_COMMITS: u32 = 1000;

/// One line for a commit.
const LINE_FORMAT: &str = "--format=%h %as %an:%d %s";

/// Lines of a message are indented, so that none of them can pass for the header of a commit or a patch.
const FULL_FORMAT: &str = "--format=commit %H%d%nAuthor: %an <%ae>%nDate: %aI%n%n%w(0,4,4)%B";

pub(crate) fn register(registry: &mut ToolRegistry, git: &Arc<GitRunner>) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<LogArgs, LogResult>(NAME);
    let family = |dialect| ToolBinding::model::<LogArgs, LogResult>(dialect, NAME);
    let bindings = [standard, family(Dialect::Claude), family(Dialect::Codex), family(Dialect::Gemini)];
    registry.register(GitLog { git: Arc::clone(git) }, bindings.map(|binding| binding.in_toolset(GIT_TOOLSET)))
}

/// List commits of the git repository, the newest first: hash, date, author and subject.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogArgs {
    /// A revision or a range such as `main..feature`; the current branch if omitted.
    range: Option<String>,
    /// Only commits that change these files and directories.
    #[serde(default, deserialize_with = "strings")]
    paths: Vec<String>,
    /// Show whole messages and patches.
    #[serde(default, deserialize_with = "scalar")]
    patch: bool,
    /// Most commits; 20 if omitted.
    #[serde(default, deserialize_with = "optional_scalar")]
    limit: Option<u32>,
    /// Directory of the repository; the workspace if omitted.
    repo: Option<String>,
}

struct GitLog {
    git: Arc<GitRunner>,
}

struct LogPlan {
    target: GitTarget,
    range: Option<GitRevision>,
    patch: bool,
    limit: u32,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct LogResult {
    /// A line for each commit; with `patch`, its message and its patch.
    log: String,
    /// True when the end was omitted.
    truncated: bool,
    /// Files whose contents are not shown, because they may not be read without approval.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hidden: Vec<String>,
    #[serde(skip)]
    text: String,
}

impl ModelText for LogResult {
    fn model_text(&self, _: Dialect) -> String {
        self.text.clone()
    }
}

impl Tool for GitLog {
    type Args = LogArgs;
    type Prepared = LogPlan;
    type Outcome = LogResult;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn time_limit(limits: &CallLimits) -> Duration {
        reading_time(limits)
    }

    fn plan(&self, args: LogArgs, cx: &CallContext<'_>) -> Result<ToolPlan<LogPlan>, ToolError> {
        let LogArgs { range, paths, patch, limit, repo } = args;
        let limit = limit.unwrap_or(DEFAULT_COMMITS);
        if !(1..=MAX_COMMITS).contains(&limit) {
            return Err(ToolError::invalid("limit", &format!("must be from 1 to {MAX_COMMITS}")));
        }
        let range = GitRevision::parse_optional(range)?;
        let (target, accesses) = self.git.target(repo.as_deref(), &paths, cx)?;
        Ok(ToolPlan { accesses, prepared: LogPlan { target, range, patch, limit } })
    }

    fn preview(&self, _: &mut LogPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("list commits of the git repository", ""))
    }

    fn run(&self, work: LogPlan, ticket: &Ticket<'_>) -> Result<LogResult, ToolError> {
        let (cx, LogPlan { target, range, patch, limit }) = (ticket.context(), work);
        let limit = format!("--max-count={limit}");
        let mut command = vec!["log", "--no-color", "--no-show-signature", "--no-mailmap", limit.as_str()];
        match patch {
            true => command.extend(PATCH_OPTIONS.into_iter().chain([FULL_FORMAT, "--patch"])),
            false => command.push(LINE_FORMAT),
        }
        let report = self.git.read(&target, &command, range.map(|range| range.argument()), cx)?;
        let mut filter = ReadFilter::new(&target, cx);
        let log = match patch {
            true => filter.patch(report.stdout_head()),
            false => report.stdout_head().to_owned(),
        };
        let mut text = match log.as_str() {
            "" => "[no commits]".to_owned(),
            log => log.trim_end().to_owned(),
        };
        let truncated = report.is_truncated();
        if truncated {
            text.push_str("\n[the end was omitted; use a smaller `limit`, or name paths]");
        }
        Ok(LogResult { text: bound_text(text, cx), log, truncated, hidden: filter.hidden() })
    }
}
