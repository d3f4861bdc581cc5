//! `git_diff`: changes of the worktree, of the index, or between revisions.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::{scalar, strings};
use ringfence_kernel::{
    CallContext, CallLimits, Dialect, DiffCard, DuplicateToolError, ModelText, PolicyAction, Preview, ReplyCard,
    Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, sanitize_line,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GIT_TOOLSET;
use crate::output_filter::{ReadFilter, bound_text};
use crate::patch_diff::parse_patch;
use crate::repository::{GitRunner, GitTarget, reading_time};
use crate::revision::GitRevision;

const NAME: &str = "git_diff";

/// Options of every patch: no program and no setting decides about its form.
pub(crate) const PATCH_OPTIONS: [&str; 7] = [
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--ignore-submodules=dirty",
    "--find-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
];

pub(crate) fn register(registry: &mut ToolRegistry, git: &Arc<GitRunner>) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<DiffArgs, DiffResult>(NAME);
    let family = |dialect| ToolBinding::model::<DiffArgs, DiffResult>(dialect, NAME);
    let bindings = [standard, family(Dialect::Claude), family(Dialect::Codex), family(Dialect::Gemini)];
    registry.register(GitDiff { git: Arc::clone(git) }, bindings.map(|binding| binding.in_toolset(GIT_TOOLSET)))
}

/// Show changes as `git diff` does: of the working tree, staged ones, or those of a range of revisions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DiffArgs {
    /// A revision to compare with, or a range such as `main..feature`.
    range: Option<String>,
    /// Show staged changes.
    #[serde(default, deserialize_with = "scalar")]
    staged: bool,
    /// Only these files and directories.
    #[serde(default, deserialize_with = "strings")]
    paths: Vec<String>,
    /// Show the number of changed lines of each file only.
    #[serde(default, deserialize_with = "scalar")]
    stat: bool,
    /// Directory of the repository; the workspace if omitted.
    repo: Option<String>,
}

struct GitDiff {
    git: Arc<GitRunner>,
}

struct DiffPlan {
    target: GitTarget,
    range: Option<GitRevision>,
    staged: bool,
    stat: bool,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct DiffResult {
    /// The patch; with `stat`, a line for each file.
    diff: String,
    /// True when the end was omitted.
    truncated: bool,
    /// Files whose contents are not shown, because they may not be read without approval.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hidden: Vec<String>,
    #[serde(skip)]
    text: String,
    /// The diff is numbers of lines only.
    #[serde(skip)]
    is_stat: bool,
}

impl ModelText for DiffResult {
    fn model_text(&self, _: Dialect) -> String {
        self.text.clone()
    }

    fn card(&self) -> Option<ReplyCard> {
        let card = || DiffCard { diff: parse_patch(&self.diff), truncated: self.truncated };
        (!self.is_stat).then(card).map(ReplyCard::Diff)
    }
}

impl Tool for GitDiff {
    type Args = DiffArgs;
    type Prepared = DiffPlan;
    type Outcome = DiffResult;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn time_limit(limits: &CallLimits) -> Duration {
        reading_time(limits)
    }

    fn plan(&self, args: DiffArgs, cx: &CallContext<'_>) -> Result<ToolPlan<DiffPlan>, ToolError> {
        let DiffArgs { range, staged, paths, stat, repo } = args;
        let range = GitRevision::parse_optional(range)?;
        let (target, accesses) = self.git.target(repo.as_deref(), &paths, cx)?;
        Ok(ToolPlan { accesses, prepared: DiffPlan { target, range, staged, stat } })
    }

    fn preview(&self, _: &mut DiffPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("show changes of the git repository", ""))
    }

    fn run(&self, work: DiffPlan, ticket: &Ticket<'_>) -> Result<DiffResult, ToolError> {
        let (cx, DiffPlan { target, range, staged, stat }) = (ticket.context(), work);
        let mut command = vec!["diff"];
        command.extend(PATCH_OPTIONS);
        command.extend(staged.then_some("--cached"));
        command.extend(if stat { ["--numstat", "-z"].as_slice() } else { &[] });
        let report = self.git.read(&target, &command, range.map(|range| range.argument()), cx)?;
        let mut filter = ReadFilter::new(&target, cx);
        let diff = match stat {
            true => render_stat(report.stdout_head(), &mut filter),
            false => filter.patch(report.stdout_head()),
        };
        let mut text = match diff.as_str() {
            "" => "[no changes]".to_owned(),
            diff => diff.trim_end().to_owned(),
        };
        let truncated = report.is_truncated();
        if truncated {
            text.push_str("\n[the end was omitted; name fewer paths, or use `stat`]");
        }
        Ok(DiffResult { text: bound_text(text, cx), diff, truncated, hidden: filter.hidden(), is_stat: stat })
    }
}

/// Lines such as `src/a.rs +3 -1`, from the format with NUL bytes.
fn render_stat(output: &str, filter: &mut ReadFilter<'_>) -> String {
    let mut text = String::new();
    let (mut files, mut total_added, mut total_removed) = (0_usize, 0_u64, 0_u64);
    let mut entries = output.split_terminator('\0');
    while let Some(entry) = entries.next() {
        let mut fields = entry.splitn(3, '\t');
        let (Some(added), Some(removed), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        // Both names of a renamed file follow.
        let (from, path) = match path {
            "" => (entries.next(), entries.next().unwrap_or_default()),
            path => (None, path),
        };
        if !from.into_iter().chain([path]).all(|path| filter.permits(path)) {
            continue;
        }
        files += 1;
        let name = sanitize_line(&from.map_or_else(|| path.to_owned(), |from| format!("{from} -> {path}")));
        let _ = match (added.parse::<u64>(), removed.parse::<u64>()) {
            (Ok(added), Ok(removed)) => {
                total_added += added;
                total_removed += removed;
                writeln!(text, "{name} +{added} -{removed}")
            }
            // Git has a dash for the numbers of a file that is not text.
            _ => writeln!(text, "{name} binary"),
        };
    }
    if files > 1 {
        let _ = writeln!(text, "{files} files +{total_added} -{total_removed}");
    }
    text
}
