//! `install_package`: add packages of a registry to a project, as one change that a person approved.
//!
//! A first run in the jail changes the manifest and the lockfile, and nothing else. A person is shown that difference, whatever a
//! rule allows. A second run then fetches exactly what the lockfile says, and manifest, lockfile and packages are one change. No
//! script of a package runs in either.
//!
//! Not here: the package managers (`package_manager.rs`), and what is shown (`install_review.rs`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::{scalar, strings};
use ringfence_kernel::{
    Assurance, CallContext, CallLimits, ChangeGroup, ChangeGroupDecision, Decision, Dialect, ErrorKind, ExposedDir,
    FollowUpMode, FollowUpPlan, ModelText, PhasedTool, PolicyAction, PolicyResource, Preview, REGISTRY_MOUNT,
    ResourceAccess, ReviewRequirement, Ticket, ToolError, ToolPhaseResult, ToolPlan, Workspace, WorkspaceChanges,
    short_change_id,
};
use ringfence_sandbox::{FinishedRun, JailFile, JailProgram, ProgramChanges, ProgramReport, ProgramRunner};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::arguments::workspace_path;
use crate::detect::{EntryKind, ProjectFiles as _};
use crate::install_review::{InstallReview, resolve_error};
use crate::lockfile::LockfileDiff;
use crate::package_manager::{FILE_CHANGED, LOCK_CHANGED, MISSING_PROGRAM, PackageManager, PackageProject};
use crate::package_registry::{PackageRegistries, PackageRegistry};
use crate::package_spec::{PackageEcosystem, PackageSpec, python_key, requirement_name};
use crate::project_files::ViewFiles;
use crate::test_report::{shortened, without_escapes};

/// Packages of one call.
const MAX_PACKAGES: usize = 20;

/// Features of one call.
const MAX_FEATURES: usize = 50;

/// Largest lockfile.
const MAX_LOCKFILE_BYTES: u64 = 16 << 20;

/// Run time of a package manager, if the config does not say less.
const INSTALL_TIME: Duration = Duration::from_secs(300);

/// Bytes of what a package manager says in an error.
const MAX_MESSAGE_BYTES: usize = 2000;

/// Puts the files that were shown in place, if the project's are still those that were compared, and checks them afterwards.
/// The arguments are the manifest and the lockfile.
const CHECKED_INSTALL: &str = "same() { if [ -e \"$1\" ]; then cmp -s \"$1\" \"$2\"; else [ ! -e \"$2\" ]; fi; }
place() { cmp -s \"$1\" \"$2\" || cat \"$1\" > \"$2\"; }
files=/run/ringfence
same $files/manifest.old \"$1\" && same $files/lockfile.old \"$2\" || exit 91
place $files/manifest.new \"$1\" && place $files/lockfile.new \"$2\"
(
set -e
";
const CHECKED_INSTALL_END: &str = "
)
code=$?
[ $code = 0 ] || exit $code
cmp -s $files/manifest.new \"$1\" && cmp -s $files/lockfile.new \"$2\" || exit 92
";

/// Install packages of the public registry with the project's package manager (cargo, npm, pnpm, pip, uv). A person is always asked, and sees the changes of manifest and lockfile. Install scripts do not run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstallPackageArgs {
    /// Names with an optional version: `serde`, `react@18`, `requests>=2`.
    #[serde(alias = "package", alias = "name", alias = "names", deserialize_with = "strings")]
    packages: Vec<String>,
    /// The package manager; the one of the manifest nearest to `directory` if omitted.
    #[serde(default)]
    manager: Option<PackageManager>,
    /// Add them as development dependencies.
    #[serde(default, deserialize_with = "scalar")]
    dev: bool,
    /// Features of the crate, for cargo.
    #[serde(default, deserialize_with = "strings")]
    features: Vec<String>,
    /// Directory of the project; the workspace if omitted.
    #[serde(default, alias = "path", alias = "dir_path")]
    directory: Option<String>,
}

/// Checked arguments, but for the names, whose form depends on the manager.
#[derive(Debug)]
pub(crate) struct InstallRequest {
    packages: Vec<String>,
    manager: Option<PackageManager>,
    dev: bool,
    features: Vec<String>,
    directory: String,
}

impl TryFrom<InstallPackageArgs> for InstallRequest {
    type Error = ToolError;

    fn try_from(args: InstallPackageArgs) -> Result<Self, ToolError> {
        let InstallPackageArgs { packages, manager, dev, features, directory } = args;
        if packages.is_empty() || packages.len() > MAX_PACKAGES {
            return Err(ToolError::invalid("packages", "must have 1 to 20 packages"));
        }
        let is_feature = |feature: &String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '/' | '?');
            feature.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && feature.chars().all(plain)
        };
        if features.len() > MAX_FEATURES || !features.iter().all(is_feature) {
            return Err(ToolError::invalid("features", "must be at most 50 plain names such as `derive`"));
        }
        if !features.is_empty() && packages.len() > 1 {
            return Err(ToolError::invalid("features", "are of one package; name that package alone"));
        }
        let directory = workspace_path("directory", directory.as_deref().unwrap_or_default())?;
        Ok(Self { packages, manager, dev, features, directory })
    }
}

/// The tool.
#[derive(Debug)]
pub(crate) struct InstallPackageTool {
    pub(crate) runner: Arc<ProgramRunner>,
    pub(crate) workspace: Arc<dyn Workspace>,
    pub(crate) registries: PackageRegistries,
}

/// The parts of a call.
#[derive(Debug)]
pub(crate) enum InstallPlan {
    Resolve(Box<PlannedInstall>),
    /// A person is asked.
    Confirm(Box<ResolvedInstall>),
    Keep(Box<InstallReview>, Box<FinishedRun>),
}

#[derive(Debug)]
pub(crate) struct PlannedInstall {
    project: PackageProject,
    packages: Vec<PackageSpec>,
    dev: bool,
    features: Vec<String>,
    registry: PackageRegistry,
    /// Of the registry, as the policy knows them.
    hosts: Vec<String>,
    /// The access of the package manager.
    run: ResourceAccess,
}

/// What the first run left: the new manifest and lockfile.
#[derive(Debug)]
pub(crate) struct ResolvedInstall {
    planned: PlannedInstall,
    changes: Box<dyn WorkspaceChanges>,
    manifest: ChangedFile,
    lockfile: ChangedFile,
    review: InstallReview,
}

/// A file before and after.
#[derive(Debug)]
struct ChangedFile {
    old: Option<String>,
    new: String,
}

impl PhasedTool for InstallPackageTool {
    type Args = InstallRequest;
    type Prepared = InstallPlan;
    type Outcome = InstallOutcome;
    const GRACEFUL_STOP: bool = true;
    const ACTIONS: &'static [PolicyAction] = &[
        PolicyAction::Run,
        PolicyAction::Fetch,
        PolicyAction::Create,
        PolicyAction::Overwrite,
        PolicyAction::Delete,
        PolicyAction::Lose,
    ];

    fn plan(&self, request: InstallRequest, cx: &CallContext<'_>) -> Result<ToolPlan<InstallPlan>, ToolError> {
        let InstallRequest { packages, manager, dev, features, directory } = request;
        cx.set_subject(packages.first().map(String::as_str).unwrap_or_default());
        let view = self.workspace.view(cx)?;
        let project = PackageProject::find(&ViewFiles { directory: &view.workspace }, &directory, manager)?;
        let (manager, ecosystem) = (project.manager, project.manager.ecosystem());
        let packages: Vec<PackageSpec> =
            packages.iter().map(|text| PackageSpec::parse(text, ecosystem)).collect::<Result<_, _>>()?;
        if !features.is_empty() && manager != PackageManager::Cargo {
            return Err(ToolError::invalid("features", &format!("are not known to {}", manager.name())));
        }
        if dev && manager == PackageManager::Pip {
            return Err(ToolError::invalid("dev", "is not known to pip; omit it"));
        }
        let registry = self.registries.get(ecosystem).clone();
        let hosts = self.runner.canonical_hosts(registry.endpoints())?;
        let run = self.runner.run_access(manager.name(), cx)?;
        let planned = PlannedInstall { project, packages, dev, features, registry, hosts, run };
        let mut accesses = planned.accesses();
        // Where the manifest may not change, the registry need not be asked.
        let manifest = planned.project.manifest();
        let resource = PolicyResource {
            mount: Arc::from(view.workspace.alias.as_str()),
            requested_path: manifest.clone(),
            display_path: manifest,
            ..PolicyResource::default()
        };
        let change = ResourceAccess { action: PolicyAction::Overwrite, resource };
        accesses.extend(Some(change).filter(|change| cx.evaluate(change).decision == Decision::Deny));
        Ok(ToolPlan { accesses, prepared: InstallPlan::Resolve(Box::new(planned)) })
    }

    fn preview(&self, work: &mut InstallPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            InstallPlan::Resolve(planned) => {
                let names = planned.arguments().join(", ");
                let summary = format!("look up {names} for {}", planned.project.manager.name());
                Ok(Preview::new(&summary, planned.registry.url()).with_line(&format!(
                    "from {}; nothing is installed before you have seen it",
                    planned.hosts.join(", ")
                )))
            }
            InstallPlan::Confirm(resolved) => {
                let shown = resolved.changes.preview(cx)?;
                let (body, is_secret) = (shown.body().clone(), shown.is_secret());
                let preview = Preview::new(&resolved.review.summary(), shown.fingerprint());
                let lines = resolved.review.lines();
                let preview = lines.iter().fold(preview, |preview, line| preview.with_line(line));
                Ok(preview.with_body(body).with_secret(is_secret))
            }
            InstallPlan::Keep(_, left) => left.preview(cx),
        }
    }

    fn run_phase(
        &self,
        work: InstallPlan,
        ticket: &Ticket<'_>,
    ) -> Result<ToolPhaseResult<InstallOutcome, InstallPlan>, ToolError> {
        match work {
            InstallPlan::Resolve(planned) => self.resolve(*planned, ticket.context()),
            InstallPlan::Confirm(resolved) => self.install(*resolved, ticket.context()),
            InstallPlan::Keep(review, left) => {
                let report = left.commit(ticket)?;
                Ok(ToolPhaseResult::Done(InstallOutcome::new(*review, report.change_id().map(str::to_owned))))
            }
        }
    }

    /// A package manager's own time, and that of a call for what comes before and after it.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn required_review(&self, work: &InstallPlan) -> Option<ReviewRequirement> {
        match work {
            InstallPlan::Resolve(_) => None,
            InstallPlan::Confirm(_) => {
                Some(ReviewRequirement { reason: "packages are code of others", assurance: Assurance::Person })
            }
            InstallPlan::Keep(_, left) => left.required_review(),
        }
    }

    fn follow_up(&self, work: &InstallPlan) -> FollowUpMode {
        match work {
            InstallPlan::Resolve(_) | InstallPlan::Confirm(_) => FollowUpMode::Policy,
            InstallPlan::Keep(_, left) => left.follow_up(),
        }
    }

    fn reconcile(&self, work: &mut InstallPlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            InstallPlan::Resolve(_) => wanted,
            InstallPlan::Confirm(resolved) => resolved.changes.reconcile(wanted),
            InstallPlan::Keep(_, left) => left.reconcile(wanted),
        }
    }

    fn abort(&self, work: InstallPlan, refused: ToolError) -> Result<InstallOutcome, ToolError> {
        match work {
            InstallPlan::Resolve(_) => Err(refused),
            InstallPlan::Confirm(resolved) => {
                let message = format!("{} not installed: {}", resolved.planned.arguments().join(", "), refused.message);
                Err(ToolError { message, ..refused })
            }
            InstallPlan::Keep(review, left) => {
                let report = left.abort(refused)?;
                Ok(InstallOutcome::new(*review, report.change_id().map(str::to_owned)))
            }
        }
    }
}

impl InstallPackageTool {
    /// Lets the package manager change the manifest and the lockfile.
    fn resolve(
        &self,
        planned: PlannedInstall,
        cx: &CallContext<'_>,
    ) -> Result<ToolPhaseResult<InstallOutcome, InstallPlan>, ToolError> {
        let view = self.workspace.view(cx)?;
        let files = ViewFiles { directory: &view.workspace };
        let paths = [planned.project.manifest(), planned.project.lockfile()];
        let [manifest, lockfile] = [read_whole(&files, &paths[0])?, read_whole(&files, &paths[1])?];
        let (report, upper) =
            self.runner.run_apart(&planned.resolve_program(&files, manifest.as_deref(), cx)?, &view, cx)?;
        if report.exit_code() != 0 {
            return Err(planned.failed(report));
        }
        let upper = upper.ok_or_else(|| ToolError::new(ErrorKind::Internal, "the program left no directory"))?;
        let left = left_files(&upper)?;
        let left = ViewFiles { directory: &left };
        let [manifest, lockfile] = [(manifest, &paths[0]), (lockfile, &paths[1])].map(|(old, path)| {
            let new = read_whole(&left, path)?.or_else(|| old.clone());
            new.map(|new| ChangedFile { old, new }).ok_or_else(|| {
                let message = format!("{} made no `{path}`; nothing was changed", planned.project.manager.name());
                ToolError::new(ErrorKind::Execution, message)
            })
        });
        let (manifest, lockfile) = (manifest?, lockfile?);
        let mut changes = self.workspace.changes(&view, upper, cx)?;
        changes.merge();
        let changed = changes.changed_paths();
        if let Some(other) = changed.iter().find(|change| !paths.contains(&change.path)) {
            let name = planned.project.manager.name();
            let message = format!(
                "{name} also changed `{}`, which is not the manifest or the lockfile; nothing was kept",
                other.path
            );
            return Err(report.into_error(ToolError::new(ErrorKind::Execution, message)));
        }
        let manager = planned.project.manager;
        let diff = LockfileDiff::new(manager, lockfile.old.as_deref(), &lockfile.new, &planned.registry);
        let diff = diff.map_err(|error| {
            ToolError::new(ErrorKind::PermissionDenied, format!("`{}` is not taken over: {error}", paths[1]))
                .hint("nothing was changed; packages are installed from the registry only")
        })?;
        let names = planned.packages.iter().map(|package| package.name.clone()).collect();
        let review = InstallReview::new(manager, &report, names, diff);
        if changed.is_empty() {
            return Ok(ToolPhaseResult::Done(InstallOutcome::new(review, None)));
        }
        let accesses =
            changes.groups().into_iter().flat_map(|group| group.accesses).chain(planned.accesses()).collect();
        let refusal = changes.groups().into_iter().find_map(|group| group.refusal);
        let groups = vec![ChangeGroup { accesses, refusal }];
        let resolved = ResolvedInstall { planned, changes, manifest, lockfile, review };
        Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: InstallPlan::Confirm(Box::new(resolved)) }))
    }

    /// Fetches what the lockfile says, on top of the manifest and the lockfile that were shown.
    fn install(
        &self,
        resolved: ResolvedInstall,
        cx: &CallContext<'_>,
    ) -> Result<ToolPhaseResult<InstallOutcome, InstallPlan>, ToolError> {
        let view = self.workspace.view(cx)?;
        let program = resolved.install_program(&ViewFiles { directory: &view.workspace }, cx)?;
        drop(view);
        let ResolvedInstall { planned, review, .. } = resolved;
        match self.runner.run_program(&program, cx)? {
            ToolPhaseResult::Done(report) if report.exit_code() != 0 => Err(planned.failed(report)),
            // The same change was made in the meantime.
            ToolPhaseResult::Done(_) => Ok(ToolPhaseResult::Done(InstallOutcome::new(review, None))),
            ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: left }) => {
                if left.report().exit_code() != 0 {
                    let error = planned.exit_error(left.report());
                    return Err(left.discard(error));
                }
                let stray = left.report().changes().iter().find(|change| !planned.project.may_change(&change.path));
                if let Some(stray) = stray {
                    let message = format!("the installation also changed `{}`; nothing was kept", stray.path);
                    return Err(left.discard(ToolError::new(ErrorKind::Execution, message)));
                }
                let prepared = InstallPlan::Keep(Box::new(review), left);
                Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared }))
            }
        }
    }
}

impl PlannedInstall {
    fn arguments(&self) -> Vec<String> {
        let ecosystem = self.project.manager.ecosystem();
        self.packages.iter().map(|package| package.to_argument(ecosystem)).collect()
    }

    /// The program, and the hosts of the registry.
    fn accesses(&self) -> Vec<ResourceAccess> {
        let host = |host: &String| ResourceAccess {
            action: PolicyAction::Fetch,
            resource: PolicyResource {
                mount: Arc::from(REGISTRY_MOUNT),
                requested_path: host.clone(),
                display_path: host.clone(),
                ..PolicyResource::default()
            },
        };
        std::iter::once(self.run.clone()).chain(self.hosts.iter().map(host)).collect()
    }

    /// What both programs have.
    fn program(&self, files: &ViewFiles<'_>, cx: &CallContext<'_>) -> Result<JailProgram, ToolError> {
        Ok(JailProgram {
            env: self.project.manager.environment(&self.registry),
            files: self.project.files(files, &self.registry)?,
            masked: self.project.masked(),
            hosts: self.hosts.clone(),
            timeout: Some(INSTALL_TIME.min(cx.limits.longest_run_time)),
            ..JailProgram::default()
        })
    }

    fn resolve_program(
        &self,
        files: &ViewFiles<'_>,
        manifest: Option<&str>,
        cx: &CallContext<'_>,
    ) -> Result<JailProgram, ToolError> {
        let mut program = self.program(files, cx)?;
        let manager = self.project.manager;
        let script = format!("{}{}", self.project.prepare_script(), manager.resolve_script());
        let dev = match manager {
            PackageManager::Npm | PackageManager::Pnpm => "--save-dev",
            PackageManager::Cargo | PackageManager::Uv | PackageManager::Pip => "--dev",
        };
        let mut arguments: Vec<String> = self.dev.then(|| dev.to_owned()).into_iter().collect();
        if !self.features.is_empty() {
            arguments.push(format!("--features={}", self.features.join(",")));
        }
        match manager {
            PackageManager::Pip => {
                let list = self.requirements(manifest.unwrap_or_default())?;
                program.files.push(JailFile::new("requirements.in", list));
                arguments = self.packages.iter().map(|package| python_key(&package.name)).collect();
            }
            _ => {
                arguments.push("--".to_owned());
                arguments.extend(self.arguments());
            }
        }
        program.argv = ["sh", "-c", script.as_str(), "sh"].map(OsString::from).into_iter().collect();
        program.argv.extend(arguments.into_iter().map(OsString::from));
        program.directory.clone_from(&self.project.directory);
        Ok(program)
    }

    /// `requirements.in` with the packages of the call, each in the place of its old line.
    fn requirements(&self, old: &str) -> Result<String, ToolError> {
        let mut wanted: BTreeMap<String, String> = self
            .packages
            .iter()
            .map(|package| (python_key(&package.name), package.to_argument(PackageEcosystem::Python)))
            .collect();
        let mut list = String::new();
        for line in old.lines() {
            let requirement = line.split(" #").next().unwrap_or_default().trim();
            if requirement.is_empty() || requirement.starts_with('#') {
                let _ = writeln!(list, "{line}");
                continue;
            }
            let name = requirement_name(requirement).ok_or_else(|| {
                let message = format!(
                    "`{}` has a line that is not a package of the registry: `{}`",
                    self.project.manifest(),
                    shortened(requirement, 200)
                );
                ToolError::new(ErrorKind::Unavailable, message)
                    .hint("remove the line; options, URLs and paths are not installed")
            })?;
            let _ = writeln!(list, "{}", wanted.remove(&python_key(name)).as_deref().unwrap_or(line));
        }
        for requirement in wanted.into_values() {
            let _ = writeln!(list, "{requirement}");
        }
        Ok(list)
    }

    /// The error of a package manager that failed, with its output.
    fn failed(&self, report: ProgramReport) -> ToolError {
        let error = self.exit_error(&report);
        report.into_error(error)
    }

    fn exit_error(&self, report: &ProgramReport) -> ToolError {
        let name = self.project.manager.name();
        let printed = without_escapes(&format!("{}\n{}", report.stderr(), report.stdout()));
        let missing = printed.lines().find_map(|line| line.strip_prefix("missing: "));
        match (report.exit_code(), missing) {
            (MISSING_PROGRAM, Some(missing)) => {
                let message = format!("{missing} is not installed where the sandbox finds it; nothing was changed");
                ToolError::new(ErrorKind::Unavailable, message)
            }
            (FILE_CHANGED, _) => {
                let (manifest, lockfile) = (self.project.manifest(), self.project.lockfile());
                let message = format!("`{manifest}` or `{lockfile}` changed after the question; nothing was installed");
                ToolError::new(ErrorKind::Conflict, message).hint("call it again")
            }
            (LOCK_CHANGED, _) => {
                let message =
                    format!("{name} changed the manifest or the lockfile that was approved; nothing was kept");
                ToolError::new(ErrorKind::Execution, message)
            }
            (code, _) => resolve_error(self.project.manager, &printed, &self.packages).unwrap_or_else(|| {
                let message = format!("{name} exited with {code}; nothing was changed");
                let text = format!("{message}\n{}", shortened(printed.trim(), MAX_MESSAGE_BYTES));
                ToolError::new(ErrorKind::Execution, message).with_model_text(text.trim_end().to_owned())
            }),
        }
    }
}

impl ResolvedInstall {
    fn install_program(&self, files: &ViewFiles<'_>, cx: &CallContext<'_>) -> Result<JailProgram, ToolError> {
        let project = &self.planned.project;
        let mut program = self.planned.program(files, cx)?;
        let script = format!(
            "{}{CHECKED_INSTALL}{}{CHECKED_INSTALL_END}",
            project.prepare_script(),
            project.manager.install_script()
        );
        let in_jail = |path: String| OsString::from(format!("/workspace/{path}"));
        program.argv = ["sh", "-c", script.as_str(), "sh"].map(OsString::from).into_iter().collect();
        program.argv.extend([in_jail(project.manifest()), in_jail(project.lockfile())]);
        project.lock_directory().clone_into(&mut program.directory);
        for (name, file) in [("manifest", &self.manifest), ("lockfile", &self.lockfile)] {
            program.files.push(JailFile::new(&format!("{name}.new"), file.new.clone()));
            program.files.extend(file.old.as_ref().map(|old| JailFile::new(&format!("{name}.old"), old.clone())));
        }
        program.changes = ProgramChanges::KeepTogether;
        Ok(program)
    }
}

/// The text of a file; `None` if there is none. One that cannot be read whole is an error.
fn read_whole(files: &ViewFiles<'_>, path: &str) -> Result<Option<String>, ToolError> {
    match (files.kind(path), files.read_up_to(path, MAX_LOCKFILE_BYTES)) {
        (None, _) => Ok(None),
        (Some(EntryKind::File), Some(text)) => Ok(Some(text)),
        _ => {
            let message = format!("`{path}` is not a text file of at most 16 MiB, or is a link");
            Err(ToolError::new(ErrorKind::WrongType, message))
        }
    }
}

/// What a program left, to be read like the workspace.
fn left_files(upper: &OwnedFd) -> Result<ExposedDir, ToolError> {
    let directory = upper.try_clone().map_err(|_| ToolError::new(ErrorKind::Io, "too many open files"))?;
    Ok(ExposedDir {
        alias: "workspace".to_owned(),
        directory,
        path: PathBuf::new(),
        masked: Vec::new(),
        hidden: Vec::new(),
    })
}

/// What the call replies.
#[derive(Debug)]
pub(crate) struct InstallOutcome {
    review: InstallReview,
    change: Option<String>,
}

impl InstallOutcome {
    fn new(review: InstallReview, change: Option<String>) -> Self {
        Self { review, change }
    }

    fn text(&self) -> String {
        let name = self.review.manager.name();
        let Some(change) = &self.change else {
            return format!("{} already there; nothing was changed ({name})", self.review.requested.join(", "));
        };
        let mut text = format!("{} with {name} ({})", self.review.summary(), short_change_id(change));
        for line in self.review.reply_lines() {
            let _ = write!(text, "\n{line}");
        }
        text
    }
}

/// The reply of `install_package`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstallPackageReply {
    /// The package manager.
    manager: &'static str,
    /// Packages that are new or have another version, with those that the named ones depend on.
    packages: Vec<InstalledPackage>,
    /// The directory that they were installed into.
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<&'static str>,
    /// Scripts that did not run, and other notes.
    notes: Vec<String>,
    /// The id of the change, for `undo`. Absent if nothing was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    #[serde(skip)]
    text: String,
}

/// A package that was installed.
#[derive(Debug, Serialize, JsonSchema)]
struct InstalledPackage {
    name: String,
    version: String,
}

impl From<InstallOutcome> for InstallPackageReply {
    fn from(outcome: InstallOutcome) -> Self {
        let text = outcome.text();
        let InstallOutcome { review, change } = outcome;
        let package =
            |(name, version): (&str, &str)| InstalledPackage { name: name.to_owned(), version: version.to_owned() };
        Self {
            manager: review.manager.name(),
            packages: review.added().map(package).collect(),
            directory: review.manager.installs_into(),
            notes: review.reply_lines(),
            change,
            text,
        }
    }
}

impl ModelText for InstallPackageReply {
    fn model_text(&self, _: Dialect) -> String {
        self.text.clone()
    }
}
