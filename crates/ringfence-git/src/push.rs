//! `git_push`: send commits of a branch to a remote.
//!
//! What leaves cannot be recalled, so every push is approved by a person, whatever a rule allows, who sees the commits,
//! the protected paths and secrets in them, and the changed lines of each file. Exactly the commit that was shown is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::scalar;
use ringfence_kernel::{
    Assurance, CODE_MOUNT, CallContext, CallLimits, Dialect, DuplicateToolError, ErrorKind, ModelText, NET_MOUNT,
    PolicyAction, PolicyResource, Preview, PreviewBody, ResourceAccess, ReviewRequirement, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry, sanitize_line, sensitivity,
};
use ringfence_sandbox::{JailFile, ProgramReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GIT_TOOLSET;
use crate::courier::CourierRun;
use crate::output_filter::unquote;
use crate::remote::RemoteUrl;
use crate::repository::{GitRunner, GitTarget, HistoryScope};

const NAME: &str = "git_push";

/// Most commits and files that a preview lists.
const MAX_COMMITS: usize = 100;
const MAX_FILES: usize = 200;

/// Most remote-tracking branches whose commits are left out of a preview, the newest first.
const MAX_TRACKED: &str = "--count=2000";

/// Sends a commit. The arguments are the URL, the refspec and the commit. What the remote has was known from remote-tracking
/// branches, which are files of the workspace. So the remote is asked, and a commit that it lacks and that was not shown is an error.
/// Git would also send what the remote has only below commits that are not here, so these are to be fetched first.
const PUSH_SCRIPT: &str = "git ls-remote -- \"$1\" > /tmp/advertised
sed 's/^\\([0-9a-f]*\\).*/^\\1/' /tmp/advertised > /tmp/remote
git rev-list --ignore-missing --stdin \"$3\" < /tmp/remote > /tmp/sent
git rev-list --ignore-missing --stdin \"$3\" < /run/ringfence/tracked > /tmp/shown
hidden=$(grep -vxFc -f /tmp/shown /tmp/sent) || test $? = 1
if [ \"$hidden\" != 0 ]; then
    sed -n 's/^\\([0-9a-f]*\\).refs.heads.*/\\1/p' /tmp/advertised | git cat-file --batch-check > /tmp/branches
    if grep -q ' missing$' /tmp/branches; then echo 'not fetched'; fi
    echo \"not shown: $hidden\"
    exit 1
fi
exec git push --porcelain --no-verify -- \"$1\" \"$2\"";

pub(crate) fn register(registry: &mut ToolRegistry, git: &Arc<GitRunner>) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<PushArgs, PushResult>(NAME);
    let family = |dialect| ToolBinding::model::<PushArgs, PushResult>(dialect, NAME);
    let bindings = [standard, family(Dialect::Claude), family(Dialect::Codex), family(Dialect::Gemini)];
    registry.register(GitPush { git: Arc::clone(git) }, bindings.map(|binding| binding.in_toolset(GIT_TOOLSET)))
}

/// Send the commits of a branch to a remote over HTTPS. A person is always asked. It cannot be undone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PushArgs {
    /// The branch; the current one if omitted. It has the same name on the remote.
    branch: Option<String>,
    /// The remote; `origin` if omitted.
    remote: Option<String>,
    /// Replace the branch of the remote even if commits of it are lost.
    #[serde(default, deserialize_with = "scalar")]
    force: bool,
    /// Directory of the repository; the workspace if omitted.
    repo: Option<String>,
}

struct GitPush {
    git: Arc<GitRunner>,
}

struct PushPlan {
    target: GitTarget,
    url: RemoteUrl,
    branch: String,
    /// The commit that is sent.
    commit: String,
    /// Commits that the remote has, as the repository says. They and those before them are not shown.
    tracked: Vec<String>,
    force: bool,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PushResult {
    /// The URL of the remote.
    url: String,
    branch: String,
    /// The commit that the branch of the remote has now.
    commit: String,
    /// True if it had that commit before.
    up_to_date: bool,
}

impl ModelText for PushResult {
    fn model_text(&self, _: Dialect) -> String {
        let Self { url, branch, commit, up_to_date } = self;
        match up_to_date {
            true => format!("[{branch} of {url} has {commit} already]"),
            false => format!("[pushed {commit} to {branch} of {url}; this cannot be undone]"),
        }
    }
}

impl Tool for GitPush {
    type Args = PushArgs;
    type Prepared = PushPlan;
    type Outcome = PushResult;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::Read, PolicyAction::Run, PolicyAction::Send, PolicyAction::Lose];

    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn plan(&self, args: PushArgs, cx: &CallContext<'_>) -> Result<ToolPlan<PushPlan>, ToolError> {
        let PushArgs { branch, remote, force, repo } = args;
        let (target, mut accesses) = self.git.target(repo.as_deref(), &[], cx)?;
        let (remote, url) = self.git.remote(&target, remote)?;
        let branch = self.git.branch(&target, branch)?;
        let command = ["log", "--max-count=1", "--format=%H"];
        let revision = OsString::from(format!("refs/heads/{branch}"));
        let report = self.git.read(&target, &command, Some(revision), cx)?;
        let commit = report.stdout_head().trim().to_owned();
        accesses.extend(courier_accesses(&self.git, &url, PolicyAction::Send)?);
        if force {
            // Commits that only the remote has are lost.
            accesses.extend(courier_accesses(&self.git, &url, PolicyAction::Lose)?.pop());
        }
        let prefix = format!("refs/remotes/{remote}/");
        let command = ["for-each-ref", "--sort=-committerdate", MAX_TRACKED, "--format=%(objectname)", prefix.as_str()];
        let report = self.git.read(&target, &command, None, cx)?;
        let tracked: BTreeSet<String> = report.stdout_head().lines().map(str::to_owned).collect();
        let tracked = tracked.into_iter().collect();
        Ok(ToolPlan { accesses, prepared: PushPlan { target, url, branch, commit, tracked, force } })
    }

    fn required_review(&self, _: &PushPlan) -> Option<ReviewRequirement> {
        Some(ReviewRequirement { reason: "what is sent cannot be recalled", assurance: Assurance::Person })
    }

    fn preview(&self, work: &mut PushPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let PushPlan { target, url, branch, commit, tracked, force } = work;
        let mut command = vec![
            "log",
            "--no-color",
            "--no-show-signature",
            "--no-renames",
            "--numstat",
            // A merge can have files that are in none of its parents.
            "--diff-merges=first-parent",
            "--format=%x01%h %as %an: %s",
            commit.as_str(),
            "--not",
        ];
        command.extend(tracked.iter().map(String::as_str));
        let report = self.git.read_history(target, HistoryScope::Sent, &command, None, cx)?;
        let sent = SentCommits::parse(report.stdout_head());
        let verb = if *force { "replace" } else { "push to" };
        let count = sent.commits.len();
        let unit = if count == 1 { "commit" } else { "commits" };
        let summary = format!("{verb} `{branch}` of {}: {count} {unit} and {} files", url.as_str(), sent.files.len());
        let mut preview = Preview::new(&summary, format!("{commit} {}", tracked.join(" ")));
        if *force {
            preview = preview.with_line("commits that only the remote has are lost");
        }
        for (kind, paths) in sent.sensitive_paths() {
            preview = preview.with_line(&format!("{kind}: {}", paths.join(", ")));
        }
        if report.is_truncated() {
            preview = preview.with_line("there are more commits than are listed");
        }
        Ok(preview.with_body(PreviewBody::Text(sent.to_text())))
    }

    fn run(&self, work: PushPlan, ticket: &Ticket<'_>) -> Result<PushResult, ToolError> {
        let PushPlan { target, url, branch, commit, tracked, force } = work;
        let sign = if force { "+" } else { "" };
        let refspec = OsString::from(format!("{sign}{commit}:refs/heads/{branch}"));
        let tracked: String = tracked.iter().map(|commit| format!("^{commit}\n")).collect();
        let files = vec![JailFile::new("tracked", tracked)];
        let arguments = vec![refspec, OsString::from(&commit)];
        let run = CourierRun { url: &url, script: PUSH_SCRIPT, arguments, files };
        let (report, _) = self.git.run_courier(&target, run, ticket.context())?;
        if report.exit_code() != 0 {
            return Err(push_error(&report, &branch));
        }
        let up_to_date = report.stdout().lines().any(|line| line.starts_with("=\t"));
        Ok(PushResult { url: url.as_str().to_owned(), branch, commit, up_to_date })
    }
}

/// What the courier does, for the policy: it runs git, and connects to the host.
pub(crate) fn courier_accesses(
    git: &GitRunner,
    url: &RemoteUrl,
    action: PolicyAction,
) -> Result<Vec<ResourceAccess>, ToolError> {
    let access = |action, mount: &str, path: &str| ResourceAccess {
        action,
        resource: PolicyResource {
            mount: Arc::from(mount),
            requested_path: path.to_owned(),
            display_path: path.to_owned(),
            ..PolicyResource::default()
        },
    };
    let hosts = git.setup.runner.canonical_hosts(&[url.endpoint()])?;
    let run = access(PolicyAction::Run, CODE_MOUNT, "git");
    Ok(std::iter::once(run).chain(hosts.iter().map(|host| access(action, NET_MOUNT, host))).collect())
}

/// The error of a push that the remote or the network refused.
fn push_error(report: &ProgramReport, branch: &str) -> ToolError {
    if report.stdout().lines().any(|line| line == "not fetched") {
        let message = format!(
            "nothing was sent: the remote has commits that this repository does not have, so commits of `{branch}` could be \
             sent that were not shown"
        );
        return ToolError::new(ErrorKind::Conflict, message).hint("fetch, then push again");
    }
    if let Some(count) = report.stdout().lines().find_map(|line| line.strip_prefix("not shown: ")) {
        let (unit, were) = if count == "1" { ("commit", "was") } else { ("commits", "were") };
        let message = format!(
            "nothing was sent: the remote lacks {count} {unit} that {were} not shown, because a remote-tracking branch has it"
        );
        return ToolError::new(ErrorKind::Conflict, message)
            .hint("delete remote-tracking branches that the remote does not have (`git branch -dr`), then push again");
    }
    if report.stdout().contains("[rejected]") {
        let message = format!("the remote has commits of `{branch}` that this repository does not have");
        return ToolError::new(ErrorKind::Conflict, message)
            .hint("fetch, then merge or rebase; `force` would lose those commits");
    }
    courier_error(report)
}

/// The error of a courier that failed.
pub(crate) fn courier_error(report: &ProgramReport) -> ToolError {
    let mut said = report.stderr().lines().chain(report.stdout().lines());
    let line = said.clone().find_map(|line| line.strip_prefix("fatal: ").or(line.strip_prefix("remote: ")));
    let line = line.or(said.rfind(|line| !line.trim().is_empty())).unwrap_or("git failed without a message");
    let error = ToolError::new(ErrorKind::Network, format!("git: {line}"));
    match line.contains("could not read Username") || line.contains("Authentication failed") {
        true => error.hint("set a token for the host in `[git.hosts]` of the config"),
        false => error,
    }
}

/// The commits that a push would send, and the files that they change.
#[derive(Debug, Default)]
struct SentCommits {
    commits: Vec<String>,
    /// Added and removed lines by path; none for a file that is not text.
    files: BTreeMap<String, Option<(u64, u64)>>,
}

impl SentCommits {
    fn parse(output: &str) -> Self {
        let mut sent = Self::default();
        for line in output.lines() {
            if let Some(commit) = line.strip_prefix('\u{1}') {
                sent.commits.push(commit.to_owned());
                continue;
            }
            let mut fields = line.splitn(3, '\t');
            let (Some(added), Some(removed), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let lines = added.parse::<u64>().ok().zip(removed.parse::<u64>().ok());
            // In quotes, a name is not one of a secret.
            let path = unquote(path).unwrap_or_else(|| path.trim_matches('"').to_owned());
            let total = sent.files.entry(path).or_insert(Some((0, 0)));
            *total = total.zip(lines).map(|((added, removed), more)| (added + more.0, removed + more.1));
        }
        sent
    }

    fn sensitive_paths(&self) -> Vec<(&'static str, Vec<&str>)> {
        let of = |test: fn(&str) -> bool| self.files.keys().map(String::as_str).filter(|path| test(path)).collect();
        let secrets: Vec<&str> = of(|path| sensitivity(path).secret);
        let protected: Vec<&str> = of(|path| sensitivity(path).protected && !sensitivity(path).secret);
        let found = [("may hold secrets", secrets), ("settings that other programs act on", protected)];
        found.into_iter().filter(|(_, paths)| !paths.is_empty()).collect()
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for commit in self.commits.iter().take(MAX_COMMITS) {
            let _ = writeln!(text, "{commit}");
        }
        if self.commits.len() > MAX_COMMITS {
            let _ = writeln!(text, "and {} more commits", self.commits.len() - MAX_COMMITS);
        }
        text.push('\n');
        for (path, lines) in self.files.iter().take(MAX_FILES) {
            let _ = match lines {
                Some((added, removed)) => writeln!(text, "{} +{added} -{removed}", sanitize_line(path)),
                None => writeln!(text, "{} binary", sanitize_line(path)),
            };
        }
        if self.files.len() > MAX_FILES {
            let _ = writeln!(text, "and {} more files", self.files.len() - MAX_FILES);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::SentCommits;

    #[test]
    fn commits_and_files_are_listed_and_sensitive_paths_named() {
        let log = "\u{1}abc 2026-01-01 A: two\n\n1\t0\ta.rs\n-\t-\tb.png\n\u{1}def 2026-01-01 A: one\n\n2\t3\ta.rs\n1\t0\t.env\n\
                   1\t1\t.github/workflows/ci.yml\n";
        let sent = SentCommits::parse(log);
        assert_eq!(
            sent.to_text(),
            "abc 2026-01-01 A: two\ndef 2026-01-01 A: one\n\n.env +1 -0\n.github/workflows/ci.yml +1 -1\na.rs +3 -3\nb.png binary\n"
        );
        let sensitive = sent.sensitive_paths();
        assert_eq!(sensitive.first().map(|(_, paths)| paths.as_slice()), Some([".env"].as_slice()));
        assert!(sensitive.iter().any(|(_, paths)| paths.contains(&".github/workflows/ci.yml")), "{sensitive:?}");
    }
}
