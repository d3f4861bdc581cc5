//! The repository of a call, and git on it in the jail.
//!
//! To read, git gets a config that is written here, no hooks, no attributes of the repository's own, no system config and
//! none of a user, and writes nothing. To write, it has the repository as it is.
//!
//! Not here: the commands themselves (one file for each tool).

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_kernel::{
    CallContext, CallLimits, ErrorKind, ExposedDir, PolicyAction, PolicyResource, ResourceAccess, ToolError,
    ToolPhaseResult,
};
use ringfence_sandbox::{JailFile, JailProgram, OutputStream, ProgramChanges, ProgramPhase, ProgramReport};

use crate::GitSetup;
use crate::config::{GitIdentity, MAX_CONFIG_BYTES, reading_config, remote_url};
use crate::remote::{RemoteUrl, check_name};

/// Where the jail has the workspace.
const WORKSPACE: &str = "/workspace";

/// Files and directories of a repository that are empty for reading: hooks, attributes, what leads to another config, and what
/// gives commits other parents.
const MASKED_FOR_READING: [&str; 5] = ["hooks", "info/attributes", "config.worktree", "commondir", "info/grafts"];

/// Where the history of a repository ends. Without it a history that is not here is an error, and none is left out.
const SHALLOW: &str = "shallow";

/// Most bytes of a list of paths.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Variables of every git.
const VARIABLES: [&str; 3] = ["GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"];

/// Variables of a git that reads. Hooks would inherit those about paths. An object is shown as it is, not as what replaces it.
const READING_VARIABLES: [&str; 5] = [
    "GIT_CONFIG_GLOBAL=/dev/null",
    "GIT_OPTIONAL_LOCKS=0",
    "GIT_NO_LAZY_FETCH=1",
    "GIT_LITERAL_PATHSPECS=1",
    "GIT_NO_REPLACE_OBJECTS=1",
];

/// The history that a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryScope {
    /// As far as the repository says that it goes.
    Local,
    /// As far as there are objects: what a push sends.
    Sent,
}

/// Runs git for the tools.
#[derive(Debug)]
pub(crate) struct GitRunner {
    pub(crate) setup: GitSetup,
}

/// The repository and the paths that a call names.
#[derive(Clone)]
pub(crate) struct GitTarget {
    /// The directory of the repository below the workspace; empty for the workspace itself.
    directory: Vec<u8>,
    /// That directory, for the policy: itself, then those that it leads to as a link.
    resources: Vec<PolicyResource>,
    /// Pathspecs, from the directory of the repository.
    paths: Vec<OsString>,
}

impl fmt::Debug for GitTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitTarget").field("directory", &self.jail_directory()).finish_non_exhaustive()
    }
}

impl GitTarget {
    /// A file of the repository by each of its names, for the policy.
    pub(crate) fn resources_of(&self, path: &str) -> impl Iterator<Item = PolicyResource> {
        self.resources.iter().map(move |resource| resource.join(path))
    }

    /// Options end before the revision, and paths follow it. A command without revisions takes both marks for paths.
    fn arguments(&self, revision: Option<OsString>) -> impl Iterator<Item = OsString> {
        let revision = revision.into_iter().flat_map(|revision| [OsString::from("--end-of-options"), revision]);
        revision.chain([OsString::from("--")]).chain(self.paths.iter().cloned())
    }

    /// The directory as programs see it.
    fn jail_directory(&self) -> OsString {
        let mut path = WORKSPACE.as_bytes().to_vec();
        if !self.directory.is_empty() {
            path.push(b'/');
            path.extend(&self.directory);
        }
        OsString::from_vec(path)
    }

    /// The same as text, for the fence.
    pub(crate) fn file_path(&self, name: &str) -> String {
        self.repository_file(name).to_string_lossy().into_owned()
    }

    /// A file below the workspace.
    fn repository_file(&self, name: &str) -> PathBuf {
        let directory = PathBuf::from(OsString::from_vec(self.directory.clone()));
        directory.join(".git").join(name)
    }
}

impl GitRunner {
    /// Resolves what a call names, and the accesses that the policy judges: contents of the repository, and of each path.
    pub(crate) fn target(
        &self,
        repository: Option<&str>,
        paths: &[String],
        cx: &CallContext<'_>,
    ) -> Result<(GitTarget, Vec<ResourceAccess>), ToolError> {
        let fence = &self.setup.fence;
        let found = fence.workspace_path(repository.unwrap_or("."), cx)?;
        // The files of a repository behind a link have other names than those that the policy would be asked about.
        if fence.workspace_path(&format!("{}/.git", repository.unwrap_or(".")), cx)?.resources.len() > 1 {
            return Err(no_repository());
        }
        let mut resources: Vec<PolicyResource> = found.resources.iter().map(|resource| resource.join(".git")).collect();
        let mut pathspecs = Vec::new();
        for path in paths {
            if path.starts_with('-') {
                return Err(ToolError::invalid("paths", "must not begin with `-`; put `./` in front of such a name"));
            }
            let located = fence.workspace_path(path, cx)?;
            pathspecs.push(pathspec(&located.path, &found.path).ok_or_else(|| {
                let message = format!("`{path}` is not in the repository `{}`", repository.unwrap_or("."));
                ToolError::new(ErrorKind::InvalidPath, message)
            })?);
            resources.extend(located.resources);
        }
        let accesses = resources.into_iter().map(|resource| ResourceAccess { action: PolicyAction::Read, resource });
        Ok((GitTarget { directory: found.path, resources: found.resources, paths: pathspecs }, accesses.collect()))
    }

    /// Runs a command that reads, such as `diff`, with its options and the arguments of the target.
    pub(crate) fn read(
        &self,
        target: &GitTarget,
        command: &[&str],
        revision: Option<OsString>,
        cx: &CallContext<'_>,
    ) -> Result<ProgramReport, ToolError> {
        self.read_history(target, HistoryScope::Local, command, revision, cx)
    }

    /// The same, for a part of the history.
    pub(crate) fn read_history(
        &self,
        target: &GitTarget,
        scope: HistoryScope,
        command: &[&str],
        revision: Option<OsString>,
        cx: &CallContext<'_>,
    ) -> Result<ProgramReport, ToolError> {
        let words = std::iter::once("env").chain(VARIABLES).chain(READING_VARIABLES).chain(["git", "--no-pager"]);
        let mut argv: Vec<OsString> = words.map(OsString::from).collect();
        let directory = target.jail_directory();
        // With the slash, a file in the place of the directory is an error: it would name another repository.
        for (option, end) in [("--git-dir=", "/.git/"), ("--work-tree=", "")] {
            let mut argument = OsString::from(option);
            argument.push(&directory);
            argument.push(end);
            argv.push(argument);
        }
        argv.extend(command.iter().map(OsString::from));
        argv.extend(target.arguments(revision));
        let mut program = JailProgram { argv, changes: ProgramChanges::Discard, ..self.masked_program(target)? };
        program.masked.extend((scope == HistoryScope::Sent).then(|| target.repository_file(SHALLOW)));
        let report = match self.setup.runner.run_program(&program, cx)? {
            ToolPhaseResult::Done(report) => report,
            ToolPhaseResult::FollowUp(left) => return Err(left.prepared.discard(wrote_error())),
        };
        if !report.changes().is_empty() {
            return Err(report.into_error(wrote_error()));
        }
        if report.exit_code() == 0 { Ok(report) } else { Err(git_error(&report)) }
    }

    /// A program that has a config of ours in the place of the repository's, and no hooks.
    fn masked_program(&self, target: &GitTarget) -> Result<JailProgram, ToolError> {
        let own = reading_config(&self.config(target)?);
        let over = Some(target.repository_file("config"));
        Ok(JailProgram {
            files: vec![JailFile { over, ..JailFile::new("config", own) }],
            masked: MASKED_FOR_READING.iter().map(|name| target.repository_file(name)).collect(),
            ..JailProgram::default()
        })
    }

    /// The text of the repository's config.
    fn config(&self, target: &GitTarget) -> Result<String, ToolError> {
        match self.setup.fence.read(&target.file_path("config"), MAX_CONFIG_BYTES) {
            Err(error) if error.kind == ErrorKind::WrongType => Err(no_repository()),
            read => Ok(String::from_utf8_lossy(&read?.unwrap_or_default()).into_owned()),
        }
    }

    /// The name and the URL of a remote.
    pub(crate) fn remote(&self, target: &GitTarget, name: Option<String>) -> Result<(String, RemoteUrl), ToolError> {
        let name = name.unwrap_or_else(|| "origin".to_owned());
        check_name("remote", &name)?;
        let url = remote_url(&self.config(target)?, &name).ok_or_else(|| {
            let message = format!("the repository has no remote `{name}` with a URL");
            ToolError::new(ErrorKind::InvalidArgs, message).hint("add one with `git remote add`")
        })?;
        Ok((name, RemoteUrl::parse(&url)?))
    }

    /// A branch by its name, or the current one.
    pub(crate) fn branch(&self, target: &GitTarget, name: Option<String>) -> Result<String, ToolError> {
        let name = match name {
            Some(name) => name,
            None => {
                let head = self.setup.fence.read(&target.file_path("HEAD"), MAX_CONFIG_BYTES)?.unwrap_or_default();
                let head = String::from_utf8_lossy(&head).trim().to_owned();
                let name = head.strip_prefix("ref: refs/heads/").map(str::to_owned);
                name.ok_or_else(|| ToolError::invalid("branch", "is missing, and no branch is checked out"))?
            }
        };
        check_name("branch", &name).map(|()| name)
    }

    /// Runs a script of git commands that store objects and references, without the repository's config and hooks.
    pub(crate) fn store(
        &self,
        target: &GitTarget,
        script: &str,
        files: Vec<JailFile>,
        cx: &CallContext<'_>,
    ) -> Result<ProgramPhase, ToolError> {
        let program = JailProgram { changes: ProgramChanges::KeepTogether, ..self.script(target, script, files)? };
        self.run_all_or_nothing(&program, None, cx)
    }

    /// The same for commits of this author, with a directory to read beside the workspace. Standard output is data.
    pub(crate) fn store_beside(
        &self,
        target: &GitTarget,
        script: &str,
        (files, author, directory): (Vec<JailFile>, &GitIdentity, ExposedDir),
        cx: &CallContext<'_>,
    ) -> Result<ProgramPhase, ToolError> {
        let named = [("NAME", &author.name), ("EMAIL", &author.email)].into_iter();
        let env = named.flat_map(|(what, value)| {
            let of = |role: &str| Some((format!("GIT_{role}_{what}"), value.clone()?));
            [of("AUTHOR"), of("COMMITTER")].into_iter().flatten()
        });
        let program = JailProgram {
            env: env.collect(),
            changes: ProgramChanges::KeepTogether,
            timeout: Some(cx.limits.longest_run_time),
            max_output: Some(MAX_LIST_BYTES),
            data_stream: Some(OutputStream::Stdout),
            ..self.script(target, script, files)?
        };
        self.run_all_or_nothing(&program, Some(directory), cx)
    }

    /// Runs a script of git commands that read. Its exit code is for the caller, and standard output is data.
    pub(crate) fn probe(
        &self,
        target: &GitTarget,
        script: &str,
        cx: &CallContext<'_>,
    ) -> Result<ProgramReport, ToolError> {
        let program = JailProgram {
            max_output: Some(MAX_LIST_BYTES),
            data_stream: Some(OutputStream::Stdout),
            ..self.script(target, script, Vec::new())?
        };
        match self.setup.runner.run_program(&program, cx)? {
            ToolPhaseResult::Done(report) => Ok(report),
            ToolPhaseResult::FollowUp(left) => Err(left.prepared.discard(wrote_error())),
        }
    }

    /// The author of commits: as the repository says, else the person.
    pub(crate) fn author(&self, target: &GitTarget) -> Result<GitIdentity, ToolError> {
        if self.setup.fence.read(&target.file_path("HEAD"), MAX_CONFIG_BYTES)?.is_none() {
            return Err(no_repository());
        }
        let author = GitIdentity::from_config(&self.config(target)?).or(self.setup.identity.clone());
        if author.name.is_some() && author.email.is_some() {
            return Ok(author);
        }
        let message = "git does not know your name and mail address";
        let hint = "set them with `git config --global user.name` and `git config --global user.email`";
        Err(ToolError::new(ErrorKind::Unavailable, message).hint(hint))
    }

    /// A script without the repository's config and hooks.
    fn script(&self, target: &GitTarget, script: &str, files: Vec<JailFile>) -> Result<JailProgram, ToolError> {
        let mut directory = OsString::from("GIT_DIR=");
        directory.push(target.jail_directory());
        directory.push("/.git/");
        let words = std::iter::once("env").chain(VARIABLES).chain(READING_VARIABLES).map(OsString::from);
        let mut program = JailProgram {
            argv: words.chain([directory]).chain(["sh", "-c", script].map(OsString::from)).collect(),
            ..self.masked_program(target)?
        };
        program.files.extend(files);
        Ok(program)
    }

    /// Runs a program, and keeps nothing if it fails.
    fn run_all_or_nothing(
        &self,
        program: &JailProgram,
        beside: Option<ExposedDir>,
        cx: &CallContext<'_>,
    ) -> Result<ProgramPhase, ToolError> {
        match self.setup.runner.run_program_beside(program, beside, cx)? {
            ToolPhaseResult::Done(report) if report.exit_code() != 0 => {
                let error = git_error(&report).hint("nothing was changed");
                Err(report.into_error(error))
            }
            ToolPhaseResult::FollowUp(left) if left.prepared.report().exit_code() != 0 => {
                let error = git_error(left.prepared.report()).hint("nothing was changed");
                Err(left.prepared.discard(error))
            }
            phase => Ok(phase),
        }
    }

    /// Runs a script of git commands that write, in the directory of the repository. The script gets the paths as arguments.
    pub(crate) fn write(
        &self,
        target: &GitTarget,
        script: &str,
        files: Vec<JailFile>,
        cx: &CallContext<'_>,
    ) -> Result<ProgramPhase, ToolError> {
        let mut argv: Vec<OsString> = std::iter::once("env").chain(VARIABLES).map(OsString::from).collect();
        argv.extend(["GIT_CONFIG_GLOBAL=/run/ringfence/gitconfig", "sh", "-c", script, "sh"].map(OsString::from));
        argv.extend(target.paths.iter().map(|path| {
            let mut pathspec = OsString::from(":(literal)");
            pathspec.push(path);
            pathspec
        }));
        let identity = JailFile::new("gitconfig", self.setup.identity.to_config());
        let program = JailProgram {
            argv,
            directory: String::from_utf8(target.directory.clone())
                .map_err(|_| ToolError::invalid("repo", "must be the path of a directory in UTF-8"))?,
            files: std::iter::once(identity).chain(files).collect(),
            changes: ProgramChanges::KeepTogether,
            ..JailProgram::default()
        };
        self.run_all_or_nothing(&program, None, cx)
    }
}

/// Time limit of a call that reads: that of a program, and that of a call for what comes before and after it.
pub(crate) fn reading_time(limits: &CallLimits) -> Duration {
    limits.run_time.min(limits.longest_run_time) + limits.call_time
}

/// A path below the directory of a repository, as git takes it.
fn pathspec(path: &[u8], directory: &[u8]) -> Option<OsString> {
    let below = match path.strip_prefix(directory)? {
        below if directory.is_empty() => below,
        [] => &[],
        below => below.strip_prefix(b"/")?,
    };
    Some(if below.is_empty() { OsString::from(".") } else { OsString::from_vec(below.to_vec()) })
}

fn wrote_error() -> ToolError {
    let message = "git wrote to the workspace although it was to read only; nothing was kept";
    ToolError::new(ErrorKind::Execution, message)
}

/// The error for a git that failed.
pub(crate) fn git_error(report: &ProgramReport) -> ToolError {
    let mut said = report.stderr().lines().chain(report.stdout().lines());
    let line = said.clone().find_map(|line| line.strip_prefix("fatal: ").or(line.strip_prefix("error: ")));
    let line = line.or(said.rfind(|line| !line.trim().is_empty())).unwrap_or("git failed without a message");
    if line.starts_with("not a git repository") {
        return no_repository();
    }
    if line.starts_with("no changes added to commit") || line.starts_with("nothing added to commit") {
        return ToolError::new(ErrorKind::InvalidArgs, "nothing is staged").hint("name the files to commit in `paths`");
    }
    let of_arguments = ["bad revision", "ambiguous argument", "pathspec", "bad object", "Invalid revision"];
    match of_arguments.iter().any(|start| line.starts_with(start)) {
        // As the caller wrote it, without what `GitRevision` adds.
        true => ToolError::new(ErrorKind::InvalidArgs, line.replace("^{commit}", "")),
        false => ToolError::new(ErrorKind::Execution, format!("git: {line}")),
    }
}

pub(crate) fn no_repository() -> ToolError {
    let message = "no git repository found there: `.git` is not a directory, or a link to one";
    ToolError::new(ErrorKind::NotFound, message).hint("name the directory of a repository in `repo`, or run `git init`")
}

#[cfg(test)]
mod tests {
    use super::pathspec;

    #[test]
    fn a_pathspec_is_below_its_repository() {
        let check = |path: &str, directory: &str, expected: Option<&str>| {
            let found = pathspec(path.as_bytes(), directory.as_bytes());
            assert_eq!(found, expected.map(Into::into), "{path} in {directory}");
        };
        check("a/b", "", Some("a/b"));
        check("", "", Some("."));
        check("sub/a", "sub", Some("a"));
        check("sub", "sub", Some("."));
        check("subs/a", "sub", None);
        check("a", "sub", None);
    }
}
