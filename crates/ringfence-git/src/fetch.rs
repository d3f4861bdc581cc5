//! `git_fetch`: bring the branches of a remote into the repository.
//!
//! The courier fetches a pack into a repository of its own. Git in a jail without network, hooks and the repository's config
//! then checks it and stores it with the remote's branches, as one change that can be undone.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{
    CallContext, CallLimits, ChangeGroupDecision, Dialect, DuplicateToolError, ErrorKind, FollowUpMode, FollowUpPlan,
    ModelText, PhasedTool, PolicyAction, Preview, ReviewRequirement, Taint, Ticket, ToolBinding, ToolError,
    ToolPhaseResult, ToolPlan, ToolRegistry, short_change_id,
};
use ringfence_sandbox::{FinishedRun, JailFile, read_upper_file};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GIT_TOOLSET;
use crate::courier::CourierRun;
use crate::push::{courier_accesses, courier_error};
use crate::remote::{RemoteUrl, check_name};
use crate::repository::{GitRunner, GitTarget};

const NAME: &str = "git_fetch";

/// Largest pack that is taken over.
const MAX_PACK_BYTES: u64 = 30 << 20;
const MAX_REFS_BYTES: u64 = 1 << 20;

/// Fetches into the courier's repository, which has the repository's own branches so that only new objects are sent, and puts
/// the pack and the branches where they are read from.
const FETCH_SCRIPT: &str = "cp /run/ringfence/packed-refs \"$GIT_DIR/packed-refs\"
git fetch --quiet --no-tags --no-write-fetch-head --no-auto-maintenance -- \"$1\" \"$2\"
git for-each-ref --format='%(objectname) %(refname)' refs/remotes > refs
for pack in \"$GIT_DIR\"/objects/pack/*.pack; do
    if [ -e \"$pack\" ]; then cp \"$pack\" pack; fi
done";

/// Stores a pack and branches in the workspace's repository. A remote-tracking branch that leads to another reference is replaced.
const STORE_SCRIPT: &str = "set -e
if [ -e /run/ringfence/pack ]; then git index-pack --stdin < /run/ringfence/pack; fi
git update-ref --no-deref --stdin < /run/ringfence/refs";

pub(crate) fn register(registry: &mut ToolRegistry, git: &Arc<GitRunner>) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<FetchArgs, FetchResult>(NAME);
    let family = |dialect| ToolBinding::model::<FetchArgs, FetchResult>(dialect, NAME);
    let bindings = [standard, family(Dialect::Claude), family(Dialect::Codex), family(Dialect::Gemini)];
    registry.register(GitFetch { git: Arc::clone(git) }, bindings.map(|binding| binding.in_toolset(GIT_TOOLSET)))
}

/// Fetch branches of a remote over HTTPS into `refs/remotes`. To merge or rebase, run git.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FetchArgs {
    /// A branch of the remote; all branches if omitted.
    branch: Option<String>,
    /// The remote; `origin` if omitted.
    remote: Option<String>,
    /// Directory of the repository; the workspace if omitted.
    repo: Option<String>,
}

struct GitFetch {
    git: Arc<GitRunner>,
}

enum FetchPlan {
    Run(Box<FetchRequest>),
    Keep(Vec<FetchedRef>, Box<FinishedRun>),
}

/// The branches to fetch.
struct FetchRequest {
    target: GitTarget,
    url: RemoteUrl,
    refspec: String,
}

/// A branch of the remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct FetchedRef {
    /// Such as `refs/remotes/origin/main`.
    name: String,
    commit: String,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct FetchResult {
    /// Branches that have new commits or are new.
    updated: Vec<FetchedRef>,
    /// The id of the change, for `undo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
}

impl ModelText for FetchResult {
    fn model_text(&self, _: Dialect) -> String {
        if self.updated.is_empty() {
            return "[already up to date]".to_owned();
        }
        let mut text = String::new();
        for FetchedRef { name, commit } in &self.updated {
            let _ =
                writeln!(text, "{} {}", commit.get(..12).unwrap_or(commit), name.trim_start_matches("refs/remotes/"));
        }
        let change = self.change.as_deref().map(|change| format!(" ({})", short_change_id(change))).unwrap_or_default();
        text + &format!("[fetched{change}]")
    }
}

impl PhasedTool for GitFetch {
    type Args = FetchArgs;
    type Prepared = FetchPlan;
    type Outcome = FetchResult;
    const GRACEFUL_STOP: bool = true;
    const ACTIONS: &'static [PolicyAction] = &[
        PolicyAction::Read,
        PolicyAction::Run,
        PolicyAction::Fetch,
        PolicyAction::Create,
        PolicyAction::Overwrite,
        PolicyAction::Delete,
        PolicyAction::Lose,
    ];

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn plan(&self, args: FetchArgs, cx: &CallContext<'_>) -> Result<ToolPlan<FetchPlan>, ToolError> {
        let FetchArgs { branch, remote, repo } = args;
        let (target, mut accesses) = self.git.target(repo.as_deref(), &[], cx)?;
        let (remote, url) = self.git.remote(&target, remote)?;
        branch.iter().try_for_each(|branch| check_name("branch", branch))?;
        let branch = branch.as_deref().unwrap_or("*");
        let refspec = format!("+refs/heads/{branch}:refs/remotes/{remote}/{branch}");
        accesses.extend(courier_accesses(&self.git, &url, PolicyAction::Fetch)?);
        Ok(ToolPlan { accesses, prepared: FetchPlan::Run(Box::new(FetchRequest { target, url, refspec })) })
    }

    fn preview(&self, work: &mut FetchPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            FetchPlan::Run(request) => {
                let FetchRequest { url, refspec, .. } = &**request;
                Ok(Preview::new(&format!("fetch from {}", url.as_str()), "").with_line(&format!("branches: {refspec}")))
            }
            FetchPlan::Keep(_, left) => left.preview(cx),
        }
    }

    fn run_phase(
        &self,
        work: FetchPlan,
        ticket: &Ticket<'_>,
    ) -> Result<ToolPhaseResult<FetchResult, FetchPlan>, ToolError> {
        let cx = ticket.context();
        let FetchRequest { target, url, refspec } = match work {
            FetchPlan::Run(request) => *request,
            FetchPlan::Keep(updated, left) => {
                let report = left.commit(ticket)?;
                let change = report.change_id().map(str::to_owned);
                return Ok(ToolPhaseResult::Done(FetchResult { updated, change }));
            }
        };
        let known = self.git.read(&target, &["for-each-ref", "--format=%(objectname) %(refname)"], None, cx)?;
        let known = known.stdout_head().to_owned();
        // Their names say nothing to the remote, and do not stand in the way of its own.
        let own = known.lines().filter_map(|line| line.split_once(' ')).enumerate();
        let packed: String = own.map(|(number, (oid, _))| format!("{oid} refs/known/{number}\n")).collect();
        let files = vec![JailFile::new("packed-refs", packed)];
        let run = CourierRun { url: &url, script: FETCH_SCRIPT, arguments: vec![OsString::from(refspec)], files };
        let (report, upper) = self.git.run_courier(&target, run, cx)?;
        // Commits and their messages are other people's.
        cx.add_taint(Taint::SawUntrusted);
        if report.exit_code() != 0 {
            return Err(courier_error(&report));
        }
        let file = |name: &str, most| match &upper {
            Some(upper) => read_upper_file(upper, name, most),
            None => Ok(None),
        };
        let too_large = || {
            let message =
                format!("the remote sent more than {} MiB; fetch it outside of the sandbox", MAX_PACK_BYTES >> 20);
            ToolError::new(ErrorKind::ReadLimit, message)
        };
        let refs = file("refs", MAX_REFS_BYTES).map_err(|_| too_large())?.unwrap_or_default();
        let pack = file("pack", MAX_PACK_BYTES).map_err(|_| too_large())?;
        let updated = new_refs(&String::from_utf8_lossy(&refs), &known);
        if updated.is_empty() {
            return Ok(ToolPhaseResult::Done(FetchResult { updated, change: None }));
        }
        let commands: String = updated.iter().map(|new| format!("update {} {}\n", new.name, new.commit)).collect();
        let mut files = vec![JailFile::new("refs", commands)];
        files.extend(pack.map(|pack| JailFile::new("pack", pack)));
        match self.git.store(&target, STORE_SCRIPT, files, cx)? {
            ToolPhaseResult::Done(_) => Ok(ToolPhaseResult::Done(FetchResult { updated: Vec::new(), change: None })),
            ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared }) => {
                let prepared = FetchPlan::Keep(updated, prepared);
                Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared }))
            }
        }
    }

    fn required_review(&self, work: &FetchPlan) -> Option<ReviewRequirement> {
        match work {
            FetchPlan::Run(_) => None,
            FetchPlan::Keep(_, left) => left.required_review(),
        }
    }

    fn follow_up(&self, work: &FetchPlan) -> FollowUpMode {
        match work {
            FetchPlan::Run(_) => FollowUpMode::Policy,
            FetchPlan::Keep(_, left) => left.follow_up(),
        }
    }

    fn reconcile(&self, work: &mut FetchPlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            FetchPlan::Run(_) => wanted,
            FetchPlan::Keep(_, left) => left.reconcile(wanted),
        }
    }

    fn abort(&self, work: FetchPlan, refused: ToolError) -> Result<FetchResult, ToolError> {
        match work {
            FetchPlan::Run(_) => Err(refused),
            FetchPlan::Keep(_, left) => left.abort(refused).map(|_| FetchResult { updated: Vec::new(), change: None }),
        }
    }
}

/// References that the remote has and the repository does not, or not so. What is not a plain line is left out.
fn new_refs(fetched: &str, known: &str) -> Vec<FetchedRef> {
    let is_known = |line: &str| known.lines().any(|known| known == line);
    let plain = |line: &&str| {
        line.split_once(' ').is_some_and(|(oid, name)| {
            let is_oid = oid.len() == 40 && oid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            is_oid && name.starts_with("refs/remotes/") && check_name("branch", name).is_ok()
        })
    };
    let new = fetched.lines().filter(plain).filter(|line| !is_known(line));
    new.filter_map(|line| line.split_once(' '))
        .map(|(oid, name)| FetchedRef { name: name.to_owned(), commit: oid.to_owned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::new_refs;

    #[test]
    fn only_plain_and_new_references_are_taken_over() {
        let oid = |digit: &str| digit.repeat(40);
        let known = format!("{} refs/remotes/origin/main\n{} refs/heads/main\n", oid("1"), oid("1"));
        let fetched = format!(
            "{} refs/remotes/origin/main\n{} refs/remotes/origin/new\n{} refs/heads/main\n{} refs/remotes/origin/a b\nx refs/remotes/o/x\n",
            oid("1"),
            oid("2"),
            oid("3"),
            oid("4"),
        );
        let new: Vec<String> = new_refs(&fetched, &known).into_iter().map(|new| new.name).collect();
        assert_eq!(new, ["refs/remotes/origin/new"]);
        assert_eq!(new_refs(&known, &known), []);
    }
}
