//! `run_code`: run a program in a jail, and commit its changes as one change of the workspace.
//!
//! The program works on an overlay above the workspace. Only when it succeeded is its upper directory read. Its changes
//! are judged group by group like those of other tools; those that may be kept are committed as one, and the rest is
//! dropped and named in an error. In any case, the reply has the program's output.
//!
//! Not here: the jail (`sandbox.rs`), and how changes are found and committed (the kernel's `Workspace`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    CODE_MOUNT, CallContext, CallLimits, ChangeGroupDecision, DuplicateToolError, Egress, EgressChannel, ErrorKind,
    FollowUpMode, FollowUpPlan, NET_MOUNT, PhasedTool, PolicyAction, PolicyResource, Preview, PreviewBody,
    ProgressUpdate, ResourceAccess, ReviewRequirement, Taint, Ticket, ToolBinding, ToolError, ToolPhaseResult,
    ToolPlan, ToolRegistry, Workspace, WorkspaceChanges,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::diagnose::SandboxDenialKind;
use crate::job::{ExitReason, JailError, JailJob, JailScript, OutputStream, ProgramObserver, RunResult};
use crate::limits::JailLimits;
use crate::report::{RunCodeReply, RunCodeReport, RunSummary};
use crate::sandbox::{Sandbox, SandboxSettings};
use crate::toolchains::Toolchain;

/// The parts of the tool.
#[derive(Debug)]
pub struct RunCodeSetup {
    pub workspace: Arc<dyn Workspace>,
    /// Settings of the spawner, which is started with the first program.
    pub settings: SandboxSettings,
    pub toolchains: Vec<Toolchain>,
    /// The way out to the network, where there is one.
    pub egress: Option<Arc<dyn Egress>>,
}

/// Gives `run_code` to a registry.
pub fn register(registry: &mut ToolRegistry, jail: RunCodeSetup) -> Result<(), DuplicateToolError> {
    let tool = RunCodeTool { setup: jail, sandbox: Mutex::new(None) };
    registry.register(tool, [ToolBinding::standard::<RunCodeArgs, RunCodeReply>("run_code")])
}

/// Run Python or bash code in a sandbox, in the workspace. It has no network except the hosts in `network`. When it exits,
/// the policy decides about each changed file; an error lists what was not kept. Only `/workspace` and `/tmp` are writable;
/// `/tmp` is empty in each run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunCodeArgs {
    /// Interpreter.
    language: ScriptLanguage,
    /// Program text.
    code: String,
    /// Arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Environment variables.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Timeout in seconds.
    timeout: Option<f64>,
    /// Hosts to reach by HTTP or HTTPS, such as `pypi.org`.
    #[serde(default)]
    network: Vec<String>,
    /// `auto` keeps allowed changes, `review` asks a person and keeps all or none, `discard` drops them.
    #[serde(default)]
    mode: RunCodeMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ScriptLanguage {
    Python,
    Bash,
}

impl ScriptLanguage {
    const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
        }
    }

    /// The interpreter, and the file that it is given.
    const fn interpreter(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python3", "code.py"),
            Self::Bash => ("bash", "code.sh"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum RunCodeMode {
    #[default]
    Auto,
    Review,
    Discard,
}

impl TryFrom<RunCodeArgs> for RunCodeProgram {
    type Error = ToolError;

    fn try_from(args: RunCodeArgs) -> Result<Self, ToolError> {
        let RunCodeArgs { language, code, args, env, timeout, network, mode } = args;
        if args.iter().any(|arg| arg.contains('\0')) {
            return Err(ToolError::invalid("args", "must not contain a NUL byte"));
        }
        let timeout = timeout.map(seconds).transpose()?;
        Ok(Self { language, code, args, env, timeout, network, mode })
    }
}

fn seconds(timeout: f64) -> Result<Duration, ToolError> {
    let time = Duration::try_from_secs_f64(timeout).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| ToolError::invalid("timeout", "must be a positive number of seconds"))
}

/// The program to run.
#[derive(Clone, Debug)]
pub(crate) struct RunCodeProgram {
    language: ScriptLanguage,
    code: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    timeout: Option<Duration>,
    network: Vec<String>,
    mode: RunCodeMode,
}

impl RunCodeProgram {
    /// Hosts that the program may connect to, each with its port.
    fn hosts(&self) -> Result<Vec<String>, ToolError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        let host = |host: &String| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            match host.chars().all(plain) {
                true if has_port => Ok(host.clone()),
                true => Ok(format!("{host}:443")),
                false => Err(ToolError::invalid("network", "must list hosts such as `pypi.org` or `pypi.org:80`")),
            }
        };
        self.network.iter().map(host).collect()
    }

    fn accesses(&self) -> Result<Vec<ResourceAccess>, ToolError> {
        let access = |action, mount: &str, path: &str| ResourceAccess {
            action,
            resource: PolicyResource {
                mount: Arc::from(mount),
                requested_path: path.to_owned(),
                display_path: path.to_owned(),
                ..PolicyResource::default()
            },
        };
        let run = access(PolicyAction::Run, CODE_MOUNT, self.language.name());
        let hosts = self.hosts()?;
        Ok(std::iter::once(run).chain(hosts.iter().map(|host| access(PolicyAction::Fetch, NET_MOUNT, host))).collect())
    }

    fn limits(&self, limits: &CallLimits) -> Result<JailLimits, ToolError> {
        let longest = limits.longest_run_time;
        let wall = self.timeout.unwrap_or(limits.run_time.min(longest));
        if wall > longest {
            let problem = format!("must be at most {} seconds", longest.as_secs_f64());
            return Err(ToolError::invalid("timeout", &problem));
        }
        Ok(JailLimits {
            wall,
            cpu: limits.run_cpu_time,
            memory_bytes: limits.run_memory_bytes,
            processes: limits.run_processes,
            open_files: limits.run_open_files,
            file_bytes: limits.run_file_bytes,
            disk_bytes: limits.run_disk_bytes,
            tmp_bytes: limits.run_tmp_bytes,
            output_bytes: limits.run_output_bytes,
        })
    }

    fn argv(&self) -> Vec<OsString> {
        let (interpreter, file) = self.language.interpreter();
        let words = [interpreter.to_owned(), format!("/run/ringfence/{file}")];
        words.into_iter().chain(self.args.iter().cloned()).map(OsString::from).collect()
    }

    /// The caller's, and what lets a program find the modules beside it.
    fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        if self.language == ScriptLanguage::Python {
            env.entry("PYTHONPATH".to_owned()).or_insert_with(|| "/workspace".to_owned());
        }
        env
    }

    /// The preview: hosts are in the first line, before anything that could be long, and all of them are shown.
    fn preview(&self) -> Preview {
        let lines = self.code.lines().count();
        let unit = if lines == 1 { "line" } else { "lines" };
        let mut summary = format!("run {lines} {unit} of {} code", self.language.name());
        let mut hosts = wrap_hosts(&self.network).into_iter();
        if let Some(first) = hosts.next() {
            let _ = write!(summary, ", which may reach {}", first.join(", "));
            let more: usize = hosts.as_slice().iter().map(|hosts| hosts.len()).sum();
            if more > 0 {
                let _ = write!(summary, " and {more} more");
            }
        }
        let mut preview = Preview::new(&summary, "");
        for more in hosts {
            preview = preview.with_line(&format!("and may reach {}", more.join(", ")));
        }
        if !self.args.is_empty() {
            preview = preview.with_line(&format!("with the arguments {:?}", self.args));
        }
        if !self.env.is_empty() {
            preview = preview.with_line(&format!("with the variables {:?}", self.env));
        }
        preview.with_body(PreviewBody::Code(self.code.clone()))
    }
}

/// Hosts, as many in a line as are shown of one.
fn wrap_hosts(hosts: &[String]) -> Vec<&[String]> {
    const LONGEST: usize = 1500;
    let mut lines = Vec::new();
    let mut left = hosts;
    while !left.is_empty() {
        let mut length = 0;
        let fits = |host: &&String| {
            length += host.len() + 2;
            length <= LONGEST
        };
        // A host that is longer than a line has one of its own.
        let (line, rest) = left.split_at(left.iter().take_while(fits).count().max(1));
        lines.push(line);
        left = rest;
    }
    lines
}

/// The two halves of a call.
#[derive(Debug)]
pub(crate) enum RunCodePlan {
    Run(Box<RunCodeProgram>, JailLimits),
    Commit(Box<FinishedRun>),
}

/// A program that ended, and changes that wait.
#[derive(Debug)]
pub(crate) struct FinishedRun {
    report: RunCodeReport,
    changes: Box<dyn WorkspaceChanges>,
    review: bool,
    /// The decision about each group of changes.
    decisions: Vec<ChangeGroupDecision>,
}

/// What a phase of `run_code` comes to.
type RunCodePhase = ToolPhaseResult<RunCodeReport, RunCodePlan>;

#[derive(Debug)]
struct RunCodeTool {
    setup: RunCodeSetup,
    /// Started with the first program.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
}

impl PhasedTool for RunCodeTool {
    type Args = RunCodeProgram;
    type Prepared = RunCodePlan;
    type Outcome = RunCodeReport;
    const GRACEFUL_STOP: bool = true;
    const ACTIONS: &'static [PolicyAction] = &[
        PolicyAction::Run,
        PolicyAction::Fetch,
        PolicyAction::Create,
        PolicyAction::Overwrite,
        PolicyAction::Delete,
        PolicyAction::Lose,
    ];

    fn plan(&self, mut program: RunCodeProgram, cx: &CallContext<'_>) -> Result<ToolPlan<RunCodePlan>, ToolError> {
        cx.set_subject(program.language.name());
        let limits = program.limits(cx.limits)?;
        program.network = match &self.setup.egress {
            Some(egress) => {
                program.hosts()?.iter().map(|host| egress.canonical_host(host)).collect::<Result<_, _>>()?
            }
            None if program.network.is_empty() => Vec::new(),
            None => {
                let message = "network access is disabled; run it without `network`";
                return Err(ToolError::new(ErrorKind::Unavailable, message));
            }
        };
        Ok(ToolPlan { accesses: program.accesses()?, prepared: RunCodePlan::Run(Box::new(program), limits) })
    }

    fn preview(&self, work: &mut RunCodePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            RunCodePlan::Run(program, _) => Ok(program.preview()),
            RunCodePlan::Commit(left) => left.changes.preview(cx),
        }
    }

    fn run_phase(&self, work: RunCodePlan, ticket: &Ticket<'_>) -> Result<RunCodePhase, ToolError> {
        match work {
            RunCodePlan::Run(program, limits) => self.run_program(&program, limits, ticket.context()),
            RunCodePlan::Commit(left) => left.commit(ticket).map(ToolPhaseResult::Done),
        }
    }

    /// The program's own time, and that of a call for what comes before and after it.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn required_review(&self, work: &RunCodePlan) -> Option<ReviewRequirement> {
        matches!(work, RunCodePlan::Commit(left) if left.review).then_some(ReviewRequirement::REQUESTED_BY_CALLER)
    }

    fn follow_up(&self, work: &RunCodePlan) -> FollowUpMode {
        match work {
            RunCodePlan::Run(program, _) => match program.mode {
                RunCodeMode::Auto => FollowUpMode::Policy,
                RunCodeMode::Review => FollowUpMode::Review,
                RunCodeMode::Discard => FollowUpMode::Discard,
            },
            RunCodePlan::Commit(left) if left.review => FollowUpMode::Review,
            RunCodePlan::Commit(_) => FollowUpMode::Policy,
        }
    }

    fn reconcile(&self, work: &mut RunCodePlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            RunCodePlan::Commit(left) => {
                left.decisions = left.changes.reconcile(wanted);
                left.decisions.clone()
            }
            RunCodePlan::Run(..) => wanted,
        }
    }

    fn abort(&self, work: RunCodePlan, refused: ToolError) -> Result<RunCodeReport, ToolError> {
        match work {
            RunCodePlan::Commit(left) => left.report.with_changes_refused(left.decisions, refused),
            RunCodePlan::Run(..) => Err(refused),
        }
    }
}

impl FinishedRun {
    fn commit(self, ticket: &Ticket<'_>) -> Result<RunCodeReport, ToolError> {
        let Self { mut report, changes, decisions: mut decided, .. } = self;
        if let Err(error) = changes.commit(ticket) {
            return report.with_changes_refused(decided, error);
        }
        for (group, error) in ticket.withheld() {
            if let Some(decision) = decided.get_mut(group) {
                *decision = ChangeGroupDecision::Refuse(error);
            }
        }
        let change = decided.contains(&ChangeGroupDecision::Keep).then(|| ticket.change_id().to_owned());
        report.change = change;
        report.with_decisions(&decided)
    }
}

impl RunCodeTool {
    fn run_program(
        &self,
        program: &RunCodeProgram,
        limits: JailLimits,
        cx: &CallContext<'_>,
    ) -> Result<RunCodePhase, ToolError> {
        let sandbox = self.sandbox()?;
        let view = self.setup.workspace.view(cx)?;
        let mut channel = match (&self.setup.egress, program.hosts()?.as_slice()) {
            (_, []) | (None, _) => None,
            (Some(egress), hosts) => Some(egress.open(hosts, cx)?),
        };
        let (_, name) = program.language.interpreter();
        let job = JailJob {
            argv: program.argv(),
            script: JailScript { name, bytes: program.code.clone().into_bytes() },
            env: program.environment(),
            limits,
            view: &view,
            toolchains: &self.setup.toolchains,
            egress: channel.as_mut().and_then(|channel| channel.socket()),
            stdin: None,
        };
        let mut ended = sandbox
            .run(&job, &RunCodeObserver { cx, egress: channel.as_deref() })
            .map_err(|failure| tool_error(&failure))?;
        let upper = ended.upper.take();
        let limits = &job.limits;
        let mut printed = RunSummary::new(&ended, limits);
        // A run with egress gets no hint that there is no network.
        printed.denied =
            printed.denied.filter(|denied| job.egress.is_none() || denied.kind != SandboxDenialKind::Network);
        let report = match limit_error(&ended, limits) {
            Some(error) => return Err(printed.attach_to(error)),
            None => RunCodeReport::new(printed, ended.exit_code),
        };
        match upper {
            Some(upper) => self.collect_changes(report, &view, upper, program.mode, cx),
            None => Ok(ToolPhaseResult::Done(report)),
        }
    }

    /// Finds out what the program changed.
    fn collect_changes(
        &self,
        mut report: RunCodeReport,
        view: &ringfence_kernel::WorkspaceView,
        upper: OwnedFd,
        mode: RunCodeMode,
        cx: &CallContext<'_>,
    ) -> Result<RunCodePhase, ToolError> {
        let most_named = usize::try_from(cx.limits.delete_names).unwrap_or(usize::MAX);
        (report.max_listed, report.discarded) = (most_named, mode == RunCodeMode::Discard);
        let mut changes = match self.setup.workspace.changes(view, upper, cx) {
            Ok(changes) => changes,
            // Changes that are discarded need not be compared.
            Err(_) if report.discarded => return Ok(ToolPhaseResult::Done(report)),
            Err(error) => return report.with_changes_refused(Vec::new(), error).map(ToolPhaseResult::Done),
        };
        if mode == RunCodeMode::Review {
            changes.merge();
        }
        report.changes = changes.changed_paths();
        if report.changes.is_empty() || report.discarded {
            return Ok(ToolPhaseResult::Done(report));
        }
        let groups = changes.groups();
        let decisions = vec![ChangeGroupDecision::Ask; groups.len()];
        let finished = FinishedRun { report, changes, review: mode == RunCodeMode::Review, decisions };
        Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: RunCodePlan::Commit(Box::new(finished)) }))
    }

    fn sandbox(&self) -> Result<Arc<Sandbox>, ToolError> {
        let mut sandbox = self.sandbox.lock();
        if let Some(sandbox) = &*sandbox {
            return Ok(Arc::clone(sandbox));
        }
        let started = Sandbox::start(self.setup.settings.clone()).map_err(|failure| tool_error(&failure))?;
        Ok(Arc::clone(sandbox.insert(Arc::new(started))))
    }
}

/// The error for a run without a result.
fn tool_error(failure: &JailError) -> ToolError {
    let kind = match failure {
        JailError::Unavailable { .. } | JailError::ProgramNotFound { .. } => ErrorKind::Unavailable,
        JailError::Environment(_) => ErrorKind::InvalidArgs,
        JailError::UnexpectedExit(_) | JailError::Io(..) => ErrorKind::Execution,
    };
    ToolError::new(kind, failure.to_string())
}

/// The error for a program that did not end by itself.
fn limit_error(ended: &RunResult, limits: &JailLimits) -> Option<ToolError> {
    let error = |kind, message: String| Some(ToolError::new(kind, message));
    match ended.exit_reason {
        ExitReason::Exit | ExitReason::Signal => None,
        ExitReason::Timeout => error(
            ErrorKind::Timeout,
            format!("the program was terminated after {} s; its changes were discarded", limits.wall.as_secs_f64()),
        ),
        ExitReason::Cancelled => {
            error(ErrorKind::Cancelled, "the program was terminated; its changes were discarded".to_owned())
        }
        ExitReason::Memory => error(
            ErrorKind::Execution,
            format!(
                "the program was terminated for using more than {} bytes of memory; its changes were discarded",
                limits.memory_bytes
            ),
        ),
        ExitReason::Cpu => error(
            ErrorKind::Execution,
            format!(
                "the program was terminated for using more than {} s of CPU time; its changes were discarded",
                limits.cpu.as_secs_f64()
            ),
        ),
        ExitReason::Output => error(
            ErrorKind::Execution,
            "the program exceeded the output limit and was terminated; its changes were discarded; write to a file instead"
                .to_owned(),
        ),
    }
}

/// Passes on a program's output, records its connections, and cancels the jail when the call is abandoned.
struct RunCodeObserver<'a> {
    cx: &'a CallContext<'a>,
    egress: Option<&'a dyn EgressChannel>,
}

impl ProgramObserver for RunCodeObserver<'_> {
    fn on_output(&self, stream: OutputStream, bytes: &[u8]) {
        self.cx.report_progress(&ProgressUpdate { stream: stream.name(), text: &String::from_utf8_lossy(bytes) });
    }

    fn should_stop(&self) -> bool {
        while let Some(attempt) = self.egress.and_then(|channel| channel.next_attempt()) {
            // Responses from the network are untrusted content.
            self.cx.add_taint(Taint::SawUntrusted);
            attempt.record(self.cx);
        }
        self.cx.check().is_err()
    }
}
