//! `branch_layer`: commit changes in the layer of a wrapped program to a new branch, for a person.
//!
//! Git in a jail without network, hooks and the repository's config makes the commit, from files that were staged for it. It
//! reads nothing of the layer itself, and changes neither the work tree nor the index nor a branch that was there. Its objects
//! and the branch are one change that can be undone.
//!
//! Not here: what is in a layer and what may be on a branch (`ringfence-fs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ringfence_fs::{LayerBranch, LayerBranchContents, LayerItemChoice, LayerSelection, StagedBranch};
use ringfence_kernel::{
    CallContext, CallLimits, ChangeGroupDecision, DuplicateToolError, ErrorKind, FollowUpMode, FollowUpPlan,
    PhasedTool, PolicyAction, Preview, ReviewRequirement, Ticket, ToolBinding, ToolError, ToolPhaseResult, ToolPlan,
    ToolRegistry,
};
use ringfence_sandbox::{FinishedRun, JailFile, ProgramReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::GitIdentity;
use crate::repository::{GitRunner, GitTarget, git_error, no_repository};

const NAME: &str = "branch_layer";

/// Directory of new branches, in which each has the id of its layer.
const BRANCHES: &str = "ringfence";

/// Name of the staged files in the jail, below `/mnt`.
const STAGED_ALIAS: &str = "ringfence-branch";

/// A whole agent may have run in a layer: to compare it takes longer than a change of one file.
const LEAST_TIME: Duration = Duration::from_secs(600);

/// Most attempts to find the files that a filter would change.
const MAX_ATTEMPTS: usize = 3;

/// Exit codes of the probe.
const NO_COMMIT: i32 = 3;
const BRANCH_EXISTS: i32 = 4;
const NAME_TAKEN: i32 = 5;

/// What the script says of a commit that would change nothing.
const UNCHANGED: &str = "unchanged";

const UNDO_NOTE: &str = "`undo` removes the branch and its objects; the layer keeps its changes until it is dropped";

/// What has to be there and what must not, before anything is made. Variables are set before it. A new repository is one in
/// which `HEAD` names a branch that is not there yet.
const PROBE_SCRIPT: &str = "
git rev-parse --git-dir >/dev/null || exit 1
git rev-parse --verify --quiet 'HEAD^{commit}' >/dev/null || exit 3
if git rev-parse --verify --quiet \"refs/heads/$branch\" >/dev/null; then exit 4; fi
if git rev-parse --verify --quiet \"refs/heads/${branch%%/*}\" >/dev/null; then exit 5; fi
if [ -n \"$list\" ]; then git ls-tree -r -z --name-only --full-tree HEAD; fi";

/// Makes the commit with an index of its own and the staged files as its work tree, and prints the name of the commit and the
/// filter of each file. Conversions of line endings are git's own and hold; a filter is a program, and none is known here.
const BUILD_SCRIPT: &str = "
set -e
export GIT_INDEX_FILE=/tmp/branch-index GIT_WORK_TREE=/mnt/ringfence-branch
git() { command git -c core.sparseCheckout=false \"$@\"; }
head=$(git rev-parse --verify 'HEAD^{commit}')
git read-tree \"$head\"
if [ -s /run/ringfence/removed ]; then
    git rm -r -f -q --cached --ignore-unmatch --pathspec-from-file=/run/ringfence/removed --pathspec-file-nul
fi
git update-index -z --add --replace --stdin < /run/ringfence/written
if git diff-index --cached --raw --ignore-submodules=none \"$head\" | grep -q '^:160000'; then
    echo 'fatal: the changes are in a submodule: name others' >&2
    exit 1
fi
tree=$(git write-tree)
if [ \"$tree\" = \"$(git rev-parse --verify \"$head^{tree}\")\" ]; then
    echo unchanged
else
    commit=$(git commit-tree -p \"$head\" -F /run/ringfence/message \"$tree\")
    git update-ref --no-deref --create-reflog -m 'branch of a layer' \"refs/heads/$branch\" \"$commit\" ''
    echo \"$commit\"
fi
git check-attr -z --stdin filter < /run/ringfence/written";

pub(crate) fn register(registry: &mut ToolRegistry, git: &Arc<GitRunner>) -> Result<(), DuplicateToolError> {
    let binding = ToolBinding::standard::<BranchLayerArgs, BranchLayerResult>(NAME).for_persons();
    registry.register(BranchLayer { git: Arc::clone(git) }, [binding])
}

/// Commit changes in the layer of a wrapped program to a new branch of the workspace's repository. The work tree, the index and
/// the current branch stay as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BranchLayerArgs {
    /// Its id, or the start of it.
    layer: String,
    /// What to commit, as for `keep_layer`. Without it, everything that could be kept and that the policy does not deny.
    items: Option<Vec<LayerItemChoice>>,
    /// Without `items`: only what the policy allows without approval.
    #[serde(default)]
    allowed_only: bool,
}

struct BranchLayer {
    git: Arc<GitRunner>,
}

enum BranchPlan {
    Build(Box<BranchRequest>),
    Keep(Box<FinishedRun>, Box<BranchLayerResult>),
}

struct BranchRequest {
    target: GitTarget,
    author: GitIdentity,
    branch: LayerBranch,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BranchLayerResult {
    /// Name of the new branch.
    branch: String,
    /// Name of the commit.
    commit: String,
    /// The id of this change, for `undo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    #[serde(flatten)]
    contents: LayerBranchContents,
    /// What an undo does.
    note: &'static str,
}

impl PhasedTool for BranchLayer {
    type Args = BranchLayerArgs;
    type Prepared = BranchPlan;
    type Outcome = BranchLayerResult;
    const GRACEFUL_STOP: bool = true;
    const ACTIONS: &'static [PolicyAction] = &[
        PolicyAction::Read,
        PolicyAction::Run,
        PolicyAction::Create,
        PolicyAction::Overwrite,
        PolicyAction::Delete,
        PolicyAction::Lose,
    ];

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time.max(LEAST_TIME)
    }

    fn plan(&self, args: BranchLayerArgs, cx: &CallContext<'_>) -> Result<ToolPlan<BranchPlan>, ToolError> {
        let selection = match args.items {
            Some(items) => LayerSelection::Items(items),
            None if args.allowed_only => LayerSelection::Allowed,
            None => LayerSelection::NotDenied,
        };
        let branch = self.git.setup.fence.plan_layer_branch(&args.layer, selection, cx)?;
        cx.set_subject(branch.id());
        let (target, mut accesses) = self.git.target(None, &[], cx)?;
        let author = self.git.author(&target).map_err(explain_repository)?;
        accesses.push(self.git.setup.runner.run_access("git", cx)?);
        accesses.extend(branch.accesses());
        let prepared = BranchPlan::Build(Box::new(BranchRequest { target, author, branch }));
        Ok(ToolPlan { accesses, prepared })
    }

    fn preview(&self, work: &mut BranchPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            BranchPlan::Build(request) => {
                let line = format!("as one commit on the new branch `{}`", request.branch_name());
                Ok(request.branch.preview(cx)?.with_line(&line))
            }
            BranchPlan::Keep(left, _) => left.preview(cx),
        }
    }

    fn run_phase(
        &self,
        work: BranchPlan,
        ticket: &Ticket<'_>,
    ) -> Result<ToolPhaseResult<BranchLayerResult, BranchPlan>, ToolError> {
        match work {
            BranchPlan::Build(mut request) => {
                let built = self.build(&mut request, ticket.context());
                request.branch.clear(ticket.context());
                let FollowUpPlan { groups, prepared } = built?;
                let commit = prepared.report().stdout_head().lines().next().unwrap_or_default().to_owned();
                let result = BranchLayerResult {
                    branch: request.branch_name(),
                    commit,
                    change: None,
                    contents: request.branch.contents(),
                    note: UNDO_NOTE,
                };
                let prepared = BranchPlan::Keep(prepared, Box::new(result));
                Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared }))
            }
            BranchPlan::Keep(left, mut result) => {
                let report = left.commit(ticket)?;
                result.change = report.change_id().map(str::to_owned);
                Ok(ToolPhaseResult::Done(*result))
            }
        }
    }

    fn required_review(&self, work: &BranchPlan) -> Option<ReviewRequirement> {
        match work {
            BranchPlan::Build(_) => None,
            BranchPlan::Keep(left, _) => left.required_review(),
        }
    }

    fn follow_up(&self, work: &BranchPlan) -> FollowUpMode {
        match work {
            BranchPlan::Build(_) => FollowUpMode::Policy,
            BranchPlan::Keep(left, _) => left.follow_up(),
        }
    }

    fn reconcile(&self, work: &mut BranchPlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            BranchPlan::Build(_) => wanted,
            BranchPlan::Keep(left, _) => left.reconcile(wanted),
        }
    }

    fn abort(&self, work: BranchPlan, refused: ToolError) -> Result<BranchLayerResult, ToolError> {
        match work {
            BranchPlan::Build(_) => Err(refused),
            BranchPlan::Keep(left, result) => left.abort(refused).map(|_| *result),
        }
    }
}

impl BranchLayer {
    /// Makes the commit. What git wrote is not in the repository yet.
    fn build(
        &self,
        request: &mut BranchRequest,
        cx: &CallContext<'_>,
    ) -> Result<FollowUpPlan<Box<FinishedRun>>, ToolError> {
        self.probe(request, cx)?;
        for _ in 0..MAX_ATTEMPTS {
            let StagedBranch { directory, written, removed } = request.branch.stage(STAGED_ALIAS, cx)?;
            let message = commit_message(request.branch.id(), request.branch.program());
            let files = [("written", written), ("removed", removed), ("message", message.into_bytes())];
            let files = files.into_iter().map(|(name, bytes)| JailFile::new(name, bytes)).collect();
            let script = request.script(BUILD_SCRIPT);
            let left = match self.git.store_beside(&request.target, &script, (files, &request.author, directory), cx)? {
                ToolPhaseResult::Done(report) => return Err(report.into_error(unchanged_error())),
                ToolPhaseResult::FollowUp(left) => left,
            };
            let report = left.prepared.report();
            let filtered = filtered_files(report);
            let is_unchanged = report.stdout_head().starts_with(UNCHANGED);
            if filtered.is_empty() && !is_unchanged {
                return Ok(left);
            }
            let discarded = left.prepared.discard(unchanged_error());
            if is_unchanged {
                return Err(discarded);
            }
            let why = "a filter of git changes it, and none runs here; keep it, and commit it with git";
            request.branch.leave_out_files(&filtered, why)?;
        }
        Err(ToolError::new(ErrorKind::Execution, "the attributes of git changed again and again; nothing was changed"))
    }

    fn probe(&self, request: &mut BranchRequest, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let list = if request.branch.has_ignored() { "list=1" } else { "list=" };
        let script = format!("{list}{}", request.script(PROBE_SCRIPT));
        let report = self.git.probe(&request.target, &script, cx)?;
        let branch = request.branch_name();
        let error = match report.exit_code() {
            0 => {
                let tracked = report.stdout_head().split('\0').filter(|path| !path.is_empty()).map(str::as_bytes);
                return request.branch.leave_out_ignored(tracked);
            }
            NO_COMMIT => {
                let message = "the repository has no commit that a branch could begin with";
                let hint = "make one, such as with `git commit --allow-empty -m start`, or keep the changes";
                ToolError::new(ErrorKind::NotFound, message).hint(hint)
            }
            BRANCH_EXISTS => {
                let hint = format!("rename it with `git branch -m {branch} OTHER`, or delete it");
                ToolError::new(ErrorKind::AlreadyExists, format!("the branch `{branch}` exists already")).hint(&hint)
            }
            NAME_TAKEN => {
                let message = format!("a branch named `{BRANCHES}` stands in the way of `{branch}`");
                ToolError::new(ErrorKind::AlreadyExists, message)
                    .hint(&format!("rename it with `git branch -m {BRANCHES} OTHER`"))
            }
            _ => explain_repository(git_error(&report)),
        };
        Err(report.into_error(error))
    }
}

impl BranchRequest {
    fn branch_name(&self) -> String {
        format!("{BRANCHES}/{}", self.branch.id())
    }

    /// A script that knows the name of the branch, which has letters, digits, `-` and `/` only.
    fn script(&self, script: &str) -> String {
        format!("\nbranch={}{script}", self.branch_name())
    }
}

/// Files that a filter would change on their way into a commit.
fn filtered_files(report: &ProgramReport) -> BTreeSet<Vec<u8>> {
    let (_, attributes) = report.stdout_head().split_once('\n').unwrap_or_default();
    let fields: Vec<&str> = attributes.split('\0').collect();
    let filter = |fields: &[&str]| match fields {
        [path, "filter", value] if !matches!(*value, "unspecified" | "unset") => Some(path.as_bytes().to_vec()),
        _ => None,
    };
    fields.chunks(3).filter_map(filter).collect()
}

/// A message that says where the changes come from.
fn commit_message(layer: &str, program: &str) -> String {
    let program: String = program.chars().filter(|c| !c.is_control()).take(100).collect();
    format!("Changes by {program}\n\nRingfence-Program: {program}\nRingfence-Layer: {layer}\n")
}

fn unchanged_error() -> ToolError {
    ToolError::new(ErrorKind::NotFound, "the commit would be empty: the current commit has all of it already")
}

/// An error about a missing repository, with what to do about it here.
fn explain_repository(error: ToolError) -> ToolError {
    if error.kind != ErrorKind::NotFound {
        return error;
    }
    let message = "the workspace is not the top directory of a git repository";
    let hint = "run `git init` in it and commit once, or keep the changes with `ringfence layers keep`";
    ToolError::new(no_repository().kind, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::commit_message;

    #[test]
    fn a_message_names_the_program_and_the_layer_in_a_line_each() {
        let expected = "Changes by agentx: y\n\nRingfence-Program: agentx: y\nRingfence-Layer: l-1\n";
        assert_eq!(commit_message("l-1", "agent\nx: y"), expected);
    }
}
