//! `git_log`: commits, the newest first, with their patches if wanted.

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::{optional_scalar, scalar, strings};
use ringfence_kernel::{
    CallContext, CallLimits, CommitCard, CommitListCard, Dialect, DuplicateToolError, ModelText, PolicyAction, Preview,
    ReplyCard, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GIT_TOOLSET;
use crate::diff::PATCH_OPTIONS;
use crate::output_filter::{ReadFilter, bound_text, is_file_header};
use crate::patch_diff::parse_patch;
use crate::repository::{GitRunner, GitTarget, reading_time};
use crate::revision::GitRevision;

const NAME: &str = "git_log";

const DEFAULT_COMMITS: u32 = 20;
const MAX_COMMITS: u32 = 1000;

/// One line for a commit: its name, date, author, references and subject, which have no NUL bytes.
const LINE_FORMAT: &str = "--format=%h%x00%as%x00%an%x00%D%x00%s";

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
    #[serde(skip)]
    commits: Vec<CommitCard>,
}

impl ModelText for LogResult {
    fn model_text(&self, _: Dialect) -> String {
        self.text.clone()
    }

    fn card(&self) -> Option<ReplyCard> {
        let (commits, truncated) = (self.commits.clone(), self.truncated);
        Some(ReplyCard::Commits(CommitListCard { commits, truncated, ..CommitListCard::default() }))
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
        let (log, commits) = match patch {
            true => {
                let log = filter.patch(report.stdout_head());
                let commits = commits_with_patches(&log);
                (log, commits)
            }
            false => {
                let commits: Vec<CommitCard> = report.stdout_head().lines().filter_map(commit_of_line).collect();
                (commits.iter().map(commit_line).collect(), commits)
            }
        };
        let mut text = match log.as_str() {
            "" => "[no commits]".to_owned(),
            log => log.trim_end().to_owned(),
        };
        let truncated = report.is_truncated();
        if truncated {
            text.push_str("\n[the end was omitted; use a smaller `limit`, or name paths]");
        }
        Ok(LogResult { text: bound_text(text, cx), log, truncated, hidden: filter.hidden(), commits })
    }
}

/// The commit of a line in `LINE_FORMAT`.
fn commit_of_line(line: &str) -> Option<CommitCard> {
    let mut fields = line.splitn(5, '\0').map(str::to_owned);
    let (id, date, author, refs) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let refs = Some(refs).filter(|refs| !refs.is_empty());
    Some(CommitCard { id, subject: fields.next()?, author: Some(author), date: Some(date), refs, diff: None })
}

/// The line of a commit in the reply.
fn commit_line(commit: &CommitCard) -> String {
    let CommitCard { id, subject, author, date, refs, .. } = commit;
    let refs = refs.as_ref().map(|refs| format!(" ({refs})")).unwrap_or_default();
    let (date, author) = (date.as_deref().unwrap_or_default(), author.as_deref().unwrap_or_default());
    format!("{id} {date} {author}:{refs} {subject}\n")
}

/// The commits of a log in `FULL_FORMAT`, each with its patch. Lines of messages and of files have a first character of their
/// own, so only git wrote `commit` at the begin of one.
fn commits_with_patches(log: &str) -> Vec<CommitCard> {
    let mut commits = Vec::new();
    let mut lines = log.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let Some(header) = line.strip_prefix("commit ") else { continue };
        let (id, refs) = header.trim_end().split_once(' ').unwrap_or((header.trim_end(), ""));
        let refs = refs.strip_prefix('(').and_then(|refs| refs.strip_suffix(')')).map(str::to_owned);
        let mut commit = CommitCard { id: id.to_owned(), refs, ..CommitCard::default() };
        let mut patch = String::new();
        while let Some(line) = lines.next_if(|next| !next.starts_with("commit ")) {
            let text = line.trim_end();
            match (text.strip_prefix("Author: "), text.strip_prefix("Date: "), text.strip_prefix("    ")) {
                _ if !patch.is_empty() || is_file_header(line) => patch.push_str(line),
                (Some(author), ..) if commit.author.is_none() => commit.author = Some(author.to_owned()),
                (_, Some(date), _) if commit.date.is_none() => commit.date = Some(date.to_owned()),
                (.., Some(subject)) if commit.subject.is_empty() => commit.subject = subject.to_owned(),
                _ => {}
            }
        }
        commit.diff = Some(parse_patch(&patch)).filter(|diff| !diff.parts.is_empty());
        commits.push(commit);
    }
    commits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_git_prints_for_it() {
        let check = |fields: &str, expected: Option<&str>| {
            assert_eq!(commit_of_line(fields).as_ref().map(commit_line).as_deref(), expected, "{fields:?}");
        };
        check(
            "ab1\x002026-01-01\0A Person\0HEAD -> main\0first: (x)",
            Some("ab1 2026-01-01 A Person: (HEAD -> main) first: (x)\n"),
        );
        check("ab1\x002026-01-01\0A\0\0", Some("ab1 2026-01-01 A: \n"));
        check("ab1\x002026-01-01\0A\0\0with\0NUL", Some("ab1 2026-01-01 A: with\0NUL\n"));
        check("ab1 cut", None);
    }

    #[test]
    fn a_message_and_a_patch_do_not_pass_for_a_commit() {
        let log = "commit aa (HEAD -> main, tag: v1)\nAuthor: A <a@b>\nDate: 2026-01-01T00:00:00Z\n\n    first\n    commit bb\n\n\
                   diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-Author: x\n commit cc\n+    subject\n\n\
                   commit dd\nAuthor: B <a@b>\nDate: 2026-01-02T00:00:00Z\n\n    second\n";
        let commits = commits_with_patches(log);
        let facts: Vec<_> = commits.iter().map(|one| (&*one.id, &*one.subject, one.refs.as_deref())).collect();
        assert_eq!(facts, [("aa", "first", Some("HEAD -> main, tag: v1")), ("dd", "second", None)]);
        assert_eq!(commits[0].author.as_deref(), Some("A <a@b>"));
        assert_eq!(commits[0].diff.as_ref().map(|diff| diff.parts.len()), Some(1));
        assert_eq!((commits[1].date.as_deref(), &commits[1].diff), (Some("2026-01-02T00:00:00Z"), &None));
    }
}
