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
    CallContext, ChangeGroupDecision, EgressChannel, ErrorKind, FollowUpMode, FollowUpPlan, Preview, ProgressUpdate,
    ReviewRequirement, Taint, Ticket, ToolError, ToolPhaseResult, WorkspaceChanges, WorkspaceView,
};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::background_job::{BackgroundJob, JobEndGuard, NewJob, ReportedEnd, StopChoice};
use crate::command_session::{CommandSession, EnteredJob, SharedNetwork};
use crate::command_text::{MAX_OUTPUT_BYTES, bound_output};
use crate::diagnose::SandboxDenialKind;
use crate::job::{ExitReason, JailError, JailJob, OutputCapture, OutputStream, ProgramObserver, RunResult};
use crate::limits::JailLimits;
use crate::report::{CommandDirectory, JobExplanation, RunCodeReport, RunOutcome, RunSummary, RunningJob};
use crate::run_code::RunCodeSetup;
use crate::run_mounts::WORKSPACE;
use crate::run_request::{JobStdin, RunAttendance, RunCodeMode, RunCodeProgram};
use crate::sandbox::Sandbox;
use crate::shell::{DirectoryPipe, DirectoryReport, StartDirectory, display_directory, jail_path};
use crate::toolchains::Toolchain;

/// Time that a call stays with a new background job, to report one that fails at once.
const JOB_START_TIME: Duration = Duration::from_millis(500);

/// What a phase of a run comes to: `W` is the work of the tool that waits.
pub(crate) type RunPhase = ToolPhaseResult<RunOutcome, Box<FinishedRun>>;

/// The call that looks at a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobLookKind {
    /// The one that started it.
    Start,
    Later,
}

/// A program that ended, and changes that wait.
#[derive(Debug)]
pub(crate) struct FinishedRun {
    report: RunCodeReport,
    changes: Box<dyn WorkspaceChanges>,
    review: bool,
    /// The decision about each group of changes.
    decisions: Vec<ChangeGroupDecision>,
    /// For a background job, the tool that started it.
    tool: Option<String>,
}

/// Runs programs of all sessions.
#[derive(Debug)]
pub(crate) struct ProgramRunner {
    pub(crate) setup: RunCodeSetup,
    /// Started with the first program.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
}

impl ProgramRunner {
    pub(crate) fn new(setup: RunCodeSetup) -> Self {
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
        let mut channel = match (&self.setup.egress, program.hosts()?.as_slice()) {
            (_, []) | (None, _) => None,
            (Some(egress), hosts) => Some(egress.open(hosts, cx)?),
        };
        let start = StartedShell::new(program, &session, &view)?;
        // In a shared network each program could use the egress of the others.
        let network = if channel.is_none() { session.network() } else { None };
        let job = JailJob {
            argv: program.argv(&start.directory),
            script: program.script(),
            env: program.environment(),
            limits,
            view: &view,
            toolchains: &self.setup.toolchains,
            egress: channel.as_mut().and_then(|channel| channel.socket()),
            stdin: None,
            output: if program.command.is_some() { OutputCapture::Merged } else { OutputCapture::Separate },
            directory_report: start.pipe.as_ref().map(|pipe| &pipe.theirs),
            network: network.as_ref().map(|network| network.id),
        };
        let observer = RunCodeObserver { cx, egress: channel.as_deref() };
        let mut ended = sandbox.run(&job, &observer).map_err(|failure| tool_error(&failure))?;
        let (upper, limits) = (ended.upper.take(), &job.limits);
        let mut printed = RunSummary::new(&ended, limits);
        // A run with egress gets no hint that there is no network.
        printed.denied =
            printed.denied.filter(|denied| job.egress.is_none() || denied.kind != SandboxDenialKind::Network);
        printed = printed.with_printed(max_output(program), cx);
        let report = limit_error(&ended, limits);
        drop(job);
        printed.directory = start.finish(&session);
        let report = match report {
            Some(error) => return Err(printed.attach_to(error)),
            None => RunCodeReport::new(printed),
        };
        self.collect_changes(report, &view, upper, program.mode, cx)
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
            None => RunCodeReport::new(printed),
        };
        let mut phase = self.collect_changes(report, &job.view, upper, mode, cx)?;
        if let ToolPhaseResult::FollowUp(left) = &mut phase {
            left.prepared.tool = Some(job.tool.clone());
        }
        Ok(phase)
    }

    /// Finds out what the program changed.
    fn collect_changes(
        &self,
        mut report: RunCodeReport,
        view: &WorkspaceView,
        upper: Option<OwnedFd>,
        mode: RunCodeMode,
        cx: &CallContext<'_>,
    ) -> Result<RunPhase, ToolError> {
        let done = |report| Ok(ToolPhaseResult::Done(ended(report)));
        let most_named = usize::try_from(cx.limits.delete_names).unwrap_or(usize::MAX);
        (report.max_listed, report.discarded) = (most_named, mode == RunCodeMode::Discard);
        let Some(upper) = upper else { return done(report) };
        let mut changes = match self.setup.workspace.changes(view, upper, cx) {
            Ok(changes) => changes,
            // Changes that are discarded need not be compared.
            Err(_) if report.discarded => return done(report),
            Err(error) => return report.with_changes_refused(Vec::new(), error).and_then(done),
        };
        if mode == RunCodeMode::Review {
            changes.merge();
        }
        report.changes = changes.changed_paths();
        if report.changes.is_empty() || report.discarded {
            return done(report);
        }
        let groups = changes.groups();
        let decisions = vec![ChangeGroupDecision::Ask; groups.len()];
        let prepared = FinishedRun { report, changes, review: mode == RunCodeMode::Review, decisions, tool: None };
        Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: Box::new(prepared) }))
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

fn ended(report: RunCodeReport) -> RunOutcome {
    RunOutcome::Ended(Box::new(report))
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
            script: self.program.script(),
            env: self.program.environment(),
            limits: self.job.limits.clone(),
            view: &self.job.view,
            toolchains: &self.toolchains,
            egress: None,
            stdin: self.input.as_ref(),
            output: OutputCapture::Streamed,
            directory_report: None,
            network: Some(self.network.id),
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
    pub(crate) fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        self.changes.preview(cx)
    }

    pub(crate) fn required_review(&self) -> Option<ReviewRequirement> {
        self.review.then_some(ReviewRequirement::REQUESTED_BY_CALLER)
    }

    pub(crate) fn acts_as(&self) -> Option<&str> {
        self.tool.as_deref()
    }

    pub(crate) fn follow_up(&self) -> FollowUpMode {
        if self.review { FollowUpMode::Review } else { FollowUpMode::Policy }
    }

    pub(crate) fn reconcile(&mut self, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        self.decisions = self.changes.reconcile(wanted);
        self.decisions.clone()
    }

    pub(crate) fn abort(self, refused: ToolError) -> Result<RunOutcome, ToolError> {
        self.report.with_changes_refused(self.decisions, refused).map(ended)
    }

    pub(crate) fn commit(self, ticket: &Ticket<'_>) -> Result<RunOutcome, ToolError> {
        let Self { mut report, changes, decisions: mut decided, .. } = self;
        if let Err(error) = changes.commit(ticket) {
            return report.with_changes_refused(decided, error).map(ended);
        }
        for (group, error) in ticket.withheld() {
            if let Some(decision) = decided.get_mut(group) {
                *decision = ChangeGroupDecision::Refuse(error);
            }
        }
        let change = decided.contains(&ChangeGroupDecision::Keep).then(|| ticket.change_id().to_owned());
        report.change = change;
        report.with_decisions(&decided).map(ended)
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
