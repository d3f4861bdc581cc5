//! `git_commit`: commit what is staged, or the named paths.
//!
//! The repository's hooks and filters run, in the jail. What they and git changed is one group of changes: it is kept whole, as
//! one change that can be undone, or not at all. Nothing is kept of a commit that failed.

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::strings;
use ringfence_kernel::{
    CallContext, CallLimits, ChangeGroupDecision, CommitCard, CommitListCard, Dialect, DuplicateToolError, ErrorKind,
    FollowUpMode, FollowUpPlan, ModelText, PhasedTool, PolicyAction, Preview, PreviewBody, ReplyCard,
    ReviewRequirement, Ticket, ToolBinding, ToolError, ToolPhaseResult, ToolPlan, ToolRegistry, short_change_id,
};
use ringfence_sandbox::{FinishedRun, JailFile, ProgramReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GIT_TOOLSET;
use crate::repository::{GitRunner, GitTarget};

const NAME: &str = "git_commit";

/// Longest message, in bytes.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Commits, and prints the name of the commit in the last line. Its arguments are paths. Keys are not in the jail, so nothing
/// is signed, and git asks no file monitor.
const COMMIT_SCRIPT: &str = "set -e
if [ $# -gt 0 ]; then
    git -c core.fsmonitor=false add --all -- \"$@\"
    git -c core.fsmonitor=false commit --no-gpg-sign --file=/run/ringfence/message --only -- \"$@\"
else
    git -c core.fsmonitor=false commit --no-gpg-sign --file=/run/ringfence/message
fi
git rev-parse --verify HEAD";

pub(crate) fn register(registry: &mut ToolRegistry, git: &Arc<GitRunner>) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<CommitArgs, CommitResult>(NAME);
    let family = |dialect| ToolBinding::model::<CommitArgs, CommitResult>(dialect, NAME);
    let bindings = [standard, family(Dialect::Claude), family(Dialect::Codex), family(Dialect::Gemini)];
    registry.register(GitCommit { git: Arc::clone(git) }, bindings.map(|binding| binding.in_toolset(GIT_TOOLSET)))
}

/// Commit to the git repository. The repository's hooks run in the sandbox. `undo` reverts the commit.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CommitArgs {
    /// Commit message.
    message: String,
    /// Files and directories to commit as they are, new and deleted ones too. Without them, what is staged is committed.
    #[serde(default, deserialize_with = "strings")]
    paths: Vec<String>,
    /// Directory of the repository; the workspace if omitted.
    repo: Option<String>,
}

struct GitCommit {
    git: Arc<GitRunner>,
}

enum CommitPlan {
    Run {
        target: GitTarget,
        message: String,
        paths: Vec<String>,
    },
    /// With the first line of the message.
    Keep(Box<FinishedRun>, String),
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct CommitResult {
    /// The name of the new commit.
    commit: String,
    /// Output of git and of the hooks.
    output: String,
    /// The id of the change, for `undo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    #[serde(skip)]
    subject: String,
}

impl ModelText for CommitResult {
    fn model_text(&self, _: Dialect) -> String {
        let change = self.change.as_deref().map(|change| format!(" ({})", short_change_id(change))).unwrap_or_default();
        format!("{}\n[committed {}{change}]", self.output.trim_end(), self.commit)
    }

    fn card(&self) -> Option<ReplyCard> {
        let commit = CommitCard { id: self.commit.clone(), subject: self.subject.clone(), ..CommitCard::default() };
        let (commits, change) = (vec![commit], self.change.clone());
        Some(ReplyCard::Commits(CommitListCard { commits, change, ..CommitListCard::default() }))
    }
}

impl CommitResult {
    fn new(report: &ProgramReport, subject: String) -> Self {
        let printed = report.stdout().trim_end();
        let (output, commit) = printed.rsplit_once('\n').unwrap_or(("", printed));
        let output = match report.stderr().trim_end() {
            "" => output.to_owned(),
            errors => format!("{output}\n{errors}"),
        };
        Self { commit: commit.to_owned(), output, change: report.change_id().map(str::to_owned), subject }
    }
}

impl PhasedTool for GitCommit {
    type Args = CommitArgs;
    type Prepared = CommitPlan;
    type Outcome = CommitResult;
    const GRACEFUL_STOP: bool = true;
    const ACTIONS: &'static [PolicyAction] = &[
        PolicyAction::Read,
        PolicyAction::Run,
        PolicyAction::Create,
        PolicyAction::Overwrite,
        PolicyAction::Delete,
        PolicyAction::Lose,
    ];

    fn plan(&self, args: CommitArgs, cx: &CallContext<'_>) -> Result<ToolPlan<CommitPlan>, ToolError> {
        let CommitArgs { message, paths, repo } = args;
        if message.trim().is_empty() || message.contains('\0') {
            return Err(ToolError::invalid("message", "must have text, without NUL bytes"));
        }
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(ToolError::invalid("message", &format!("must have at most {MAX_MESSAGE_BYTES} bytes")));
        }
        let (target, mut accesses) = self.git.target(repo.as_deref(), &paths, cx)?;
        accesses.push(self.git.setup.runner.run_access("git", cx)?);
        Ok(ToolPlan { accesses, prepared: CommitPlan::Run { target, message, paths } })
    }

    fn preview(&self, work: &mut CommitPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            CommitPlan::Run { message, paths, .. } => {
                let summary = match paths.len() {
                    0 => "commit what is staged".to_owned(),
                    1 => format!("commit `{}`", paths.concat()),
                    count => format!("commit {count} paths"),
                };
                let mut preview = Preview::new(&summary, "");
                if paths.len() > 1 {
                    preview = preview.with_line(&format!("paths: {}", paths.join(", ")));
                }
                Ok(preview.with_body(PreviewBody::Text(message.clone())))
            }
            CommitPlan::Keep(left, _) => left.preview(cx),
        }
    }

    fn run_phase(
        &self,
        work: CommitPlan,
        ticket: &Ticket<'_>,
    ) -> Result<ToolPhaseResult<CommitResult, CommitPlan>, ToolError> {
        match work {
            CommitPlan::Run { target, message, .. } => {
                let subject = message.trim_start().lines().next().unwrap_or_default().to_owned();
                let message = JailFile::new("message", message);
                match self.git.write(&target, COMMIT_SCRIPT, vec![message], ticket.context())? {
                    // A commit that changed nothing was not made.
                    ToolPhaseResult::Done(report) => {
                        Err(report.into_error(ToolError::new(ErrorKind::Execution, "git made no commit")))
                    }
                    ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared }) => {
                        let prepared = CommitPlan::Keep(prepared, subject);
                        Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared }))
                    }
                }
            }
            CommitPlan::Keep(left, subject) => {
                let report = left.commit(ticket)?;
                Ok(ToolPhaseResult::Done(CommitResult::new(&report, subject)))
            }
        }
    }

    /// The time of a program, and that of a call for what comes before and after it.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn required_review(&self, work: &CommitPlan) -> Option<ReviewRequirement> {
        match work {
            CommitPlan::Run { .. } => None,
            CommitPlan::Keep(left, _) => left.required_review(),
        }
    }

    fn follow_up(&self, work: &CommitPlan) -> FollowUpMode {
        match work {
            CommitPlan::Run { .. } => FollowUpMode::Policy,
            CommitPlan::Keep(left, _) => left.follow_up(),
        }
    }

    fn reconcile(&self, work: &mut CommitPlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            CommitPlan::Run { .. } => wanted,
            CommitPlan::Keep(left, _) => left.reconcile(wanted),
        }
    }

    fn abort(&self, work: CommitPlan, refused: ToolError) -> Result<CommitResult, ToolError> {
        match work {
            CommitPlan::Run { .. } => Err(refused),
            CommitPlan::Keep(left, subject) => left.abort(refused).map(|report| CommitResult::new(&report, subject)),
        }
    }
}
