//! `git_status`: the branch, and the files that differ from it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{
    CallContext, CallLimits, Dialect, DuplicateToolError, ModelText, PolicyAction, Preview, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry, sanitize_line,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GIT_TOOLSET;
use crate::output_filter::{ReadFilter, bound_text};
use crate::repository::{GitRunner, GitTarget, reading_time};

const NAME: &str = "git_status";

/// Most files that a reply lists.
const MAX_FILES: usize = 500;

pub(crate) fn register(registry: &mut ToolRegistry, git: &Arc<GitRunner>) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<StatusArgs, StatusResult>(NAME);
    let family = |dialect| ToolBinding::model::<StatusArgs, StatusResult>(dialect, NAME);
    let bindings = [standard, family(Dialect::Claude), family(Dialect::Codex), family(Dialect::Gemini)];
    registry.register(GitStatus { git: Arc::clone(git) }, bindings.map(|binding| binding.in_toolset(GIT_TOOLSET)))
}

/// Show the branch and the changed, staged and untracked files of the git repository, as `git status --short` does.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatusArgs {
    /// Directory of the repository; the workspace if omitted.
    repo: Option<String>,
}

struct GitStatus {
    git: Arc<GitRunner>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct StatusResult {
    /// The branch, with its upstream if it has one.
    branch: String,
    files: Vec<StatusFile>,
    /// Files that are not listed, because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    more: usize,
    /// Files that are not compared, because they may not be read without approval.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hidden: Vec<String>,
    #[serde(skip)]
    text: String,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct StatusFile {
    path: String,
    /// Two letters as in `git status --short`: the staged change and the unstaged one.
    status: String,
    /// The earlier path of a renamed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
}

impl ModelText for StatusResult {
    fn model_text(&self, _: Dialect) -> String {
        self.text.clone()
    }
}

impl StatusResult {
    fn to_text(&self) -> String {
        let mut text = format!("## {}", self.branch);
        for StatusFile { path, status, from } in &self.files {
            let _ = match from {
                Some(from) => write!(text, "\n{status} {} -> {}", sanitize_line(from), sanitize_line(path)),
                None => write!(text, "\n{status} {}", sanitize_line(path)),
            };
        }
        if self.files.is_empty() {
            text.push_str("\n[nothing to commit, working tree clean]");
        }
        if self.more > 0 {
            let _ = write!(text, "\n[and {} more files]", self.more);
        }
        if !self.hidden.is_empty() {
            let _ = write!(
                text,
                "\n[not compared, because they may not be read without approval: {}]",
                sanitize_line(&self.hidden.join(", "))
            );
        }
        text
    }
}

impl Tool for GitStatus {
    type Args = StatusArgs;
    type Prepared = GitTarget;
    type Outcome = StatusResult;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn time_limit(limits: &CallLimits) -> Duration {
        reading_time(limits)
    }

    fn plan(&self, args: StatusArgs, cx: &CallContext<'_>) -> Result<ToolPlan<GitTarget>, ToolError> {
        let (prepared, accesses) = self.git.target(args.repo.as_deref(), &[], cx)?;
        Ok(ToolPlan { accesses, prepared })
    }

    fn preview(&self, _: &mut GitTarget, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("show the status of the git repository", ""))
    }

    fn run(&self, target: GitTarget, ticket: &Ticket<'_>) -> Result<StatusResult, ToolError> {
        let cx = ticket.context();
        let command = ["status", "--porcelain=v1", "--branch", "-z", "--ignore-submodules=dirty", "--find-renames"];
        let report = self.git.read(&target, &command, None, cx)?;
        let (branch, files) = parse(report.stdout_head());
        let mut filter = ReadFilter::new(&target, cx);
        // The jail has an empty file in the place of a secret, which would be a change. What is not tracked is not compared.
        let (files, _): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.status == "??" || filter.permits(&file.path));
        let more = files.len().saturating_sub(MAX_FILES);
        let files = files.into_iter().take(MAX_FILES).collect();
        let mut result = StatusResult { branch, files, more, hidden: filter.hidden(), text: String::new() };
        result.text = bound_text(result.to_text(), cx);
        Ok(result)
    }
}

/// Reads the porcelain format with NUL bytes.
fn parse(output: &str) -> (String, Vec<StatusFile>) {
    let mut branch = String::new();
    let mut files = Vec::new();
    let mut entries = output.split_terminator('\0');
    while let Some(entry) = entries.next() {
        if let Some(name) = entry.strip_prefix("## ") {
            name.clone_into(&mut branch);
            continue;
        }
        let Some((status, path)) = entry.split_at_checked(2) else { continue };
        let from = status.contains(['R', 'C']).then(|| entries.next().map(str::to_owned)).flatten();
        let path = path.strip_prefix(' ').unwrap_or(path).to_owned();
        files.push(StatusFile { path, status: status.to_owned(), from });
    }
    (branch, files)
}

#[cfg(test)]
mod tests {
    use super::{StatusFile, parse};

    #[test]
    fn entries_are_read_with_their_earlier_names() {
        let (branch, files) = parse("## main...origin/main [ahead 1]\0 M a b\0R  new\0old\0?? dir/\0");
        let file = |status: &str, path: &str, from: Option<&str>| StatusFile {
            path: path.to_owned(),
            status: status.to_owned(),
            from: from.map(str::to_owned),
        };
        assert_eq!(branch, "main...origin/main [ahead 1]");
        assert_eq!(files, [file(" M", "a b", None), file("R ", "new", Some("old")), file("??", "dir/", None)]);
        assert_eq!(parse(""), (String::new(), Vec::new()));
        assert_eq!(parse("é\0x"), (String::new(), vec![file("é", "", None)]));
    }
}
