//! Program runner: runs programs in jails, in the foreground and as background jobs, and collects their changes.
//!
//! Both kinds of run come to the same end: a report, and changes that the policy decides about group by group.
//!
//! Not here: the tools (`run_code.rs`, `job_tool.rs`), and the replies (`report.rs`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    CODE_MOUNT, CallContext, ChangeGroup, ChangeGroupDecision, ChangedPath, EgressChannel, ErrorKind, ExposedDir,
    FollowUpMode, FollowUpPlan, PolicyAction, PolicyResource, Preview, ProgressUpdate, ResourceAccess,
    ReviewRequirement, Sensitivity, Taint, Ticket, ToolError, ToolPhaseResult, WorkspaceChanges, WorkspaceView,
};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::background_job::{BackgroundJob, JobEndGuard, NewJob, ReportedEnd, StopChoice};
use crate::command_session::{CommandSession, EnteredJob, SharedNetwork};
use crate::command_text::{MAX_OUTPUT_BYTES, bound_output};
use crate::diagnose::SandboxDenialKind;
use crate::job::{ExitReason, JailError, JailJob, OutputCapture, OutputStream, ProgramObserver, RunResult};
use crate::limits::JailLimits;
use crate::program::{JailProgram, OtherChanges, ProgramChanges, is_change_of};
use crate::report::{CommandDirectory, JobExplanation, ProgramReport, RunOutcome, RunSummary, RunningJob};
use crate::run_code::RunCodeSetup;
use crate::run_mounts::WORKSPACE;
use crate::run_request::{JobStdin, RunAttendance, RunCodeProgram, jail_limits};
use crate::sandbox::Sandbox;
use crate::shell::{DirectoryPipe, DirectoryReport, StartDirectory, display_directory, jail_path};
use crate::toolchains::Toolchain;

/// Time that a call stays with a new background job, to report one that fails at once.
const JOB_START_TIME: Duration = Duration::from_millis(500);

/// What a phase of a run comes to: a job that goes on has no report yet.
pub(crate) type RunPhase = ToolPhaseResult<RunOutcome, Box<FinishedRun>>;

/// What a phase of a tool's program comes to: its report, or changes to be decided about.
pub type ProgramPhase = ToolPhaseResult<ProgramReport, Box<FinishedRun>>;

/// The call that looks at a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobLookKind {
    /// The one that started it.
    Start,
    Later,
}

/// A program that ended, and changes that wait. A tool passes the later steps of `PhasedTool` on to it.
#[derive(Debug)]
pub struct FinishedRun {
    report: ProgramReport,
    changes: Box<dyn WorkspaceChanges>,
    review: bool,
    /// The decision about each group of changes.
    decisions: Vec<ChangeGroupDecision>,
    /// For a background job, the tool that started it.
    tool: Option<String>,
}

/// Runs programs of all sessions.
#[derive(Debug)]
pub struct ProgramRunner {
    pub(crate) setup: RunCodeSetup,
    /// Started with the first program.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
}

impl ProgramRunner {
    pub fn new(setup: RunCodeSetup) -> Self {
        Self { setup, sandbox: Mutex::new(None) }
    }

    /// The command state of the session that calls.
    pub(crate) fn session(&self, cx: &CallContext<'_>) -> Arc<CommandSession> {
        self.setup.sessions.session(cx.origin().map(|origin| origin.session.as_str()).unwrap_or_default())
    }

    pub(crate) fn run(
        &self,
        program: &RunCodeProgram,
        limits: JailLimits,
        cx: &CallContext<'_>,
    ) -> Result<RunPhase, ToolError> {
        match program.attendance {
            RunAttendance::ToTheEnd => self.run_to_the_end(program, limits, cx),
            RunAttendance::Yield { after, stdin } => self.run_as_job(program, limits, stdin, after, cx),
            RunAttendance::Background { stdin } => self.run_as_job(program, limits, stdin, JOB_START_TIME, cx),
        }
    }

    fn run_to_the_end(
        &self,
        program: &RunCodeProgram,
        limits: JailLimits,
        cx: &CallContext<'_>,
    ) -> Result<RunPhase, ToolError> {
        let (sandbox, session) = (self.sandbox()?, self.session(cx));
        let view = self.setup.workspace.view(cx)?;
        let mut channel = self.open_egress(&program.hosts()?, cx)?;
        let start = StartedShell::new(program, &session, &view)?;
        // In a shared network each program could use the egress of the others.
        let network = if channel.is_none() { session.network() } else { None };
        let job = JailJob {
            argv: program.argv(&start.directory),
            files: vec![program.script()],
            masked: Vec::new(),
            env: program.environment(),
            limits,
            view: &view,
            toolchains: &self.setup.toolchains,
            egress: channel.as_mut().and_then(|channel| channel.socket()),
            stdin: None,
            output: if program.command.is_some() { OutputCapture::Merged } else { OutputCapture::Separate },
            directory_report: start.pipe.as_ref().map(|pipe| &pipe.theirs),
            network: network.as_ref().map(|network| network.id),
            wrapped: None,
        };
        let observer = RunCodeObserver { cx, egress: channel.as_deref(), data_stream: None };
        let EndedProgram { mut summary, upper, error } = run_job(&sandbox, &job, &observer, max_output(program), cx)?;
        drop(job);
        summary.directory = start.finish(&session);
        let report = match error {
            Some(error) => return Err(summary.attach_to(error)),
            None => ProgramReport::new(summary),
        };
        self.collect_changes(report, &view, upper, &program.mode.into(), cx).map(with_outcome)
    }

    /// Runs a tool's program to its end. The tool's plan has named what it does to the policy.
    pub fn run_program(&self, program: &JailProgram, cx: &CallContext<'_>) -> Result<ProgramPhase, ToolError> {
        self.run_program_beside(program, None, cx)
    }

    /// The same with one more directory to read, at `/mnt` and its alias.
    pub fn run_program_beside(
        &self,
        program: &JailProgram,
        directory: Option<ExposedDir>,
        cx: &CallContext<'_>,
    ) -> Result<ProgramPhase, ToolError> {
        let mut view = self.setup.workspace.view(cx)?;
        view.read_only_mounts.extend(directory);
        let (report, upper) = self.run_apart(program, &view, cx)?;
        self.collect_changes(report, &view, upper, &program.changes, cx)
    }

    /// Runs a tool's program on other directories than the workspace. What it wrote is in the returned directory, which is
    /// untrusted, and is not collected.
    pub fn run_apart(
        &self,
        program: &JailProgram,
        view: &WorkspaceView,
        cx: &CallContext<'_>,
    ) -> Result<(ProgramReport, Option<OwnedFd>), ToolError> {
        let sandbox = self.sandbox()?;
        let mut channel = self.open_egress(&program.hosts, cx)?;
        let wall = program.timeout.unwrap_or(cx.limits.run_time).min(cx.limits.longest_run_time);
        let mut limits = jail_limits(cx.limits, wall);
        limits.output_bytes = program.max_output.unwrap_or(limits.output_bytes);
        let job = JailJob {
            argv: program.command(),
            files: program.files.clone(),
            masked: program.masked.clone(),
            env: program.env.clone(),
            limits,
            view,
            toolchains: &self.setup.toolchains,
            egress: channel.as_mut().and_then(|channel| channel.socket()),
            stdin: None,
            output: program.output,
            directory_report: None,
            network: None,
            wrapped: None,
        };
        let observer = RunCodeObserver { cx, egress: channel.as_deref(), data_stream: program.data_stream };
        let EndedProgram { summary, upper, error } = run_job(&sandbox, &job, &observer, MAX_OUTPUT_BYTES, cx)?;
        drop(job);
        match error {
            Some(error) => Err(summary.attach_to(error)),
            None => Ok((ProgramReport::new(summary), upper)),
        }
    }

    /// The access of a program, by the name that rules have for it. One that can read a committed secret is secret.
    pub fn run_access(&self, program: &str, cx: &CallContext<'_>) -> Result<ResourceAccess, ToolError> {
        let secret = self.setup.workspace.committed_secret(cx)?.is_some();
        let resource = PolicyResource {
            mount: Arc::from(CODE_MOUNT),
            requested_path: program.to_owned(),
            display_path: program.to_owned(),
            sensitivity: Sensitivity { secret, protected: false },
            ..PolicyResource::default()
        };
        Ok(ResourceAccess { action: PolicyAction::Run, resource })
    }

    /// Hosts (`host` or `host:port` each) as the policy knows them and programs may be given them.
    pub fn canonical_hosts(&self, hosts: &[String]) -> Result<Vec<String>, ToolError> {
        match &self.setup.egress {
            Some(egress) => hosts.iter().map(|host| egress.canonical_host(host)).collect(),
            None if hosts.is_empty() => Ok(Vec::new()),
            None => {
                let message = "network access is disabled; run it without `network`";
                Err(ToolError::new(ErrorKind::Unavailable, message))
            }
        }
    }

    pub(crate) fn open_egress(
        &self,
        hosts: &[String],
        cx: &CallContext<'_>,
    ) -> Result<Option<Box<dyn EgressChannel>>, ToolError> {
        match (&self.setup.egress, hosts) {
            (_, []) | (None, _) => Ok(None),
            (Some(egress), hosts) => egress.open(hosts, cx).map(Some),
        }
    }

    /// Starts a job, and stays with it for a while.
    fn run_as_job(
        &self,
        program: &RunCodeProgram,
        limits: JailLimits,
        stdin: JobStdin,
        stay: Duration,
        cx: &CallContext<'_>,
    ) -> Result<RunPhase, ToolError> {
        let (sandbox, session) = (self.sandbox()?, self.session(cx));
        let view = self.setup.workspace.view(cx)?;
        let (input, their_input) = match stdin {
            JobStdin::Empty => (None, None),
            JobStdin::Open => {
                let (theirs, ours) = job_pipe().map_err(|cause| tool_error(&JailError::Io("make a pipe", cause)))?;
                (Some(ours), Some(theirs))
            }
        };
        let directory = start_directory(program, &session, &view);
        let origin = cx.origin().cloned().unwrap_or_default();
        let new = NewJob {
            command: program.code.clone(),
            tool: origin.tool,
            principal: origin.principal,
            language: program.language,
            mode: program.mode,
            limits,
            view,
            input,
        };
        let EnteredJob { job, network } = session.enter(new, &self.setup.sessions, &sandbox)?;
        let thread = JobThread {
            sandbox,
            job: Arc::clone(&job),
            program: program.clone(),
            directory,
            toolchains: self.setup.toolchains.clone(),
            input: their_input,
            network,
        };
        if let Err(cause) = thread::Builder::new().name(format!("job-{}", job.id)).spawn(move || thread.run()) {
            session.remove(job.id);
            return Err(tool_error(&JailError::Io("start a thread", cause)));
        }
        job.wait_for_end(stay, cx);
        if let Err(cancelled) = cx.check() {
            // Its number would never be known.
            job.stop(StopChoice::DiscardChanges);
            session.remove(job.id);
            return Err(cancelled.hint("the program was terminated; its changes were discarded"));
        }
        self.look(&job, &session, JobLookKind::Start, max_output(program), cx)
    }

    /// Reports what a job printed since the last look. If it has ended, that is its end for the session.
    pub(crate) fn look(
        &self,
        job: &BackgroundJob,
        session: &CommandSession,
        kind: JobLookKind,
        max_output: usize,
        cx: &CallContext<'_>,
    ) -> Result<RunPhase, ToolError> {
        let looked = job.look()?;
        let Some(ReportedEnd { result, mode }) = looked.end else {
            let is_start = kind == JobLookKind::Start;
            let explanation = (is_start && session.should_explain_jobs()).then(|| JobExplanation {
                shares_loopback: self.sandbox.lock().as_ref().is_some_and(|sandbox| sandbox.shares_networks()),
            });
            let outcome = RunningJob {
                id: job.id,
                is_start,
                explanation,
                printed: bound_output(looked.output.clone(), max_output, cx),
                output: looked.output,
                lost: looked.lost,
                duration: job.started_at.elapsed(),
            };
            return Ok(ToolPhaseResult::Done(RunOutcome::Running(outcome)));
        };
        session.remove(job.id);
        let mut ended = result.map_err(|failure| tool_error(&failure))?;
        let upper = ended.upper.take();
        let printed = RunSummary::new(&ended, &job.limits).with_output(looked.output, looked.lost);
        let mut printed = printed.with_printed(max_output, cx);
        printed.job = Some(job.id);
        let was_stopped = ended.exit_reason == ExitReason::Cancelled;
        let report = match limit_error(&ended, &job.limits).filter(|_| !was_stopped) {
            Some(error) => return Err(printed.attach_to(error)),
            None => ProgramReport::new(printed),
        };
        let mut phase = self.collect_changes(report, &job.view, upper, &mode.into(), cx)?;
        if let ToolPhaseResult::FollowUp(left) = &mut phase {
            left.prepared.tool = Some(job.tool.clone());
        }
        Ok(with_outcome(phase))
    }

    /// Finds out what the program changed.
    fn collect_changes(
        &self,
        mut report: ProgramReport,
        view: &WorkspaceView,
        upper: Option<OwnedFd>,
        mode: &ProgramChanges,
        cx: &CallContext<'_>,
    ) -> Result<ProgramPhase, ToolError> {
        let done = |report| Ok(ToolPhaseResult::Done(report));
        let most_named = usize::try_from(cx.limits.delete_names).unwrap_or(usize::MAX);
        (report.max_listed, report.discarded) = (most_named, *mode == ProgramChanges::Discard);
        let Some(upper) = upper else { return done(report) };
        let mut changes = match self.setup.workspace.changes(view, upper, cx) {
            Ok(changes) => changes,
            // Changes that are discarded need not be compared.
            Err(_) if report.discarded => return done(report),
            Err(error) => return report.with_changes_refused(Vec::new(), error).and_then(done),
        };
        let is_review = *mode == ProgramChanges::Review;
        if is_review || *mode == ProgramChanges::KeepTogether {
            changes.merge();
        }
        report.changes = changes.changed_paths();
        if report.changes.is_empty() || report.discarded {
            return done(report);
        }
        let mut groups = changes.groups();
        if let ProgramChanges::KeepOnly { paths, others } = mode {
            report = refuse_others(report, &mut groups, paths, *others)?;
        }
        let decisions = vec![ChangeGroupDecision::Ask; groups.len()];
        let prepared = FinishedRun { report, changes, review: is_review, decisions, tool: None };
        Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: Box::new(prepared) }))
    }

    pub(crate) fn sandbox(&self) -> Result<Arc<Sandbox>, ToolError> {
        let mut sandbox = self.sandbox.lock();
        if let Some(sandbox) = &*sandbox {
            return Ok(Arc::clone(sandbox));
        }
        let started = Sandbox::start(self.setup.settings.clone()).map_err(|failure| tool_error(&failure))?;
        Ok(Arc::clone(sandbox.insert(Arc::new(started))))
    }
}

/// A program that ended, before its changes are looked at.
struct EndedProgram {
    summary: RunSummary,
    upper: Option<OwnedFd>,
    /// Present where it did not end by itself.
    error: Option<ToolError>,
}

fn run_job(
    sandbox: &Sandbox,
    job: &JailJob<'_>,
    observer: &RunCodeObserver<'_>,
    max_output: usize,
    cx: &CallContext<'_>,
) -> Result<EndedProgram, ToolError> {
    let mut ended = sandbox.run(job, observer).map_err(|failure| tool_error(&failure))?;
    let upper = ended.upper.take();
    let mut summary = RunSummary::new(&ended, &job.limits);
    // A run with egress gets no hint that there is no network.
    summary.denied = summary.denied.filter(|denied| job.egress.is_none() || denied.kind != SandboxDenialKind::Network);
    let summary = summary.with_printed(max_output, cx);
    Ok(EndedProgram { summary, upper, error: limit_error(&ended, &job.limits) })
}

fn with_outcome(phase: ProgramPhase) -> RunPhase {
    match phase {
        ToolPhaseResult::Done(report) => ToolPhaseResult::Done(report.into()),
        ToolPhaseResult::FollowUp(left) => ToolPhaseResult::FollowUp(left),
    }
}

/// Takes changes outside the named files out of those that may be kept.
fn refuse_others(
    mut report: ProgramReport,
    groups: &mut [ChangeGroup],
    paths: &[String],
    others: OtherChanges,
) -> Result<ProgramReport, ToolError> {
    let (named, strange): (Vec<&ChangedPath>, Vec<&ChangedPath>) =
        report.changes.iter().partition(|change| is_change_of(paths, change));
    let is_named = |group: usize| named.iter().any(|change| change.group == group);
    let refused = strange.iter().find(|change| others == OtherChanges::Refuse || is_named(change.group));
    if let Some(change) = refused {
        let message = format!("the program also changed `{}`; none of its changes were kept", change.path);
        return Err(report.into_error(ToolError::new(ErrorKind::Execution, message)));
    }
    let mut unwanted: Vec<usize> = strange.iter().map(|change| change.group).collect();
    unwanted.dedup();
    for index in &unwanted {
        if let Some(group) = groups.get_mut(*index) {
            let message = "the change is not one of a file that the tool was to change";
            group.refusal = Some(ToolError::new(ErrorKind::PermissionDenied, message));
        }
    }
    report.unwanted = unwanted;
    Ok(report)
}

/// Where a command starts, and the report of where it ended.
struct StartedShell {
    /// In the jail.
    directory: String,
    /// For a command whose directory is kept.
    pipe: Option<DirectoryPipe>,
}

impl StartedShell {
    fn new(program: &RunCodeProgram, session: &CommandSession, view: &WorkspaceView) -> Result<Self, ToolError> {
        let is_carried = program.command.as_ref().is_some_and(|command| command.start == StartDirectory::Carried);
        let pipe = is_carried.then(DirectoryPipe::new).transpose();
        let pipe = pipe.map_err(|cause| tool_error(&JailError::Io("make a pipe", cause)))?;
        Ok(Self { directory: start_directory(program, session, view), pipe })
    }

    /// Keeps the directory for the next command, and returns what a reply says about it.
    fn finish(self, session: &CommandSession) -> Option<CommandDirectory> {
        let DirectoryReport { was_gone, last } = self.pipe?.read();
        let shown = |path: &str| display_directory(path).to_owned();
        let gone = was_gone.then(|| shown(&self.directory));
        let last = last.unwrap_or_else(|| if was_gone { WORKSPACE.to_owned() } else { self.directory });
        let now = shown(&last);
        session.set_directory(last);
        Some(CommandDirectory { now, gone })
    }
}

fn start_directory(program: &RunCodeProgram, session: &CommandSession, view: &WorkspaceView) -> String {
    match program.command.as_ref().map(|command| &command.start) {
        Some(StartDirectory::Carried) => session.directory(),
        Some(StartDirectory::Given(path)) => jail_path(path, &view.workspace.path),
        None => WORKSPACE.to_owned(),
    }
}

/// Most bytes of output for a model.
fn max_output(program: &RunCodeProgram) -> usize {
    program.command.as_ref().map_or(MAX_OUTPUT_BYTES, |command| command.max_output)
}

/// A job, as the thread that follows it has it.
struct JobThread {
    sandbox: Arc<Sandbox>,
    job: Arc<BackgroundJob>,
    program: RunCodeProgram,
    directory: String,
    toolchains: Vec<Toolchain>,
    input: Option<OwnedFd>,
    network: Arc<SharedNetwork>,
}

impl JobThread {
    /// Ends with the program, which ends with its session.
    fn run(self) {
        let mut end = JobEndGuard { job: Arc::clone(&self.job), result: None };
        let job = JailJob {
            argv: self.program.argv(&self.directory),
            files: vec![self.program.script()],
            masked: Vec::new(),
            env: self.program.environment(),
            limits: self.job.limits.clone(),
            view: &self.job.view,
            toolchains: &self.toolchains,
            egress: None,
            stdin: self.input.as_ref(),
            output: OutputCapture::Streamed,
            directory_report: None,
            network: Some(self.network.id),
            wrapped: None,
        };
        end.result = Some(self.sandbox.run(&job, &*self.job));
    }
}

/// A pipe for standard input: the program's end, and ours, which does not block.
fn job_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((theirs, ours))
}

impl FinishedRun {
    /// The report so far: no change is kept yet.
    pub fn report(&self) -> &ProgramReport {
        &self.report
    }

    /// Drops the changes, for a tool that keeps none of a program that failed.
    pub fn discard(self, error: ToolError) -> ToolError {
        self.report.into_error(error)
    }

    pub fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        self.changes.preview(cx)
    }

    pub fn required_review(&self) -> Option<ReviewRequirement> {
        self.review.then_some(ReviewRequirement::REQUESTED_BY_CALLER)
    }

    pub(crate) fn acts_as(&self) -> Option<&str> {
        self.tool.as_deref()
    }

    pub fn follow_up(&self) -> FollowUpMode {
        if self.review { FollowUpMode::Review } else { FollowUpMode::Policy }
    }

    pub fn reconcile(&mut self, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        self.decisions = self.changes.reconcile(wanted);
        self.decisions.clone()
    }

    /// The end of a call whose changes were all refused.
    pub fn abort(self, refused: ToolError) -> Result<ProgramReport, ToolError> {
        self.report.with_changes_refused(self.decisions, refused)
    }

    /// Commits the changes that may be kept, as one.
    pub fn commit(self, ticket: &Ticket<'_>) -> Result<ProgramReport, ToolError> {
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

/// The error for a run without a result.
pub(crate) fn tool_error(failure: &JailError) -> ToolError {
    let kind = match failure {
        JailError::Unavailable { .. } | JailError::Port { .. } | JailError::ProgramNotFound { .. } => {
            ErrorKind::Unavailable
        }
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
    /// Not reported.
    data_stream: Option<OutputStream>,
}

impl ProgramObserver for RunCodeObserver<'_> {
    fn on_output(&self, stream: OutputStream, bytes: &[u8]) {
        if self.data_stream == Some(stream) {
            return;
        }
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
