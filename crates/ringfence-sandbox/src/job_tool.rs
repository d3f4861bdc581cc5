//! Tools for background jobs: look at the output, write to the input, stop.
//!
//! A session has its own jobs only. Looking at one and stopping it need no new approval: starting it was decided as a run
//! is. Input is code that the start did not show, so it is decided as a run of the tool that started the job. The call that
//! reports the end of a job commits its changes, and they are judged and reviewed as those of `run_code`.
//!
//! Not here: starting a job (`run_code.rs`).

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::{optional_scalar, scalar};
use ringfence_kernel::{
    CODE_MOUNT, CallContext, CallLimits, ChangeGroupDecision, Dialect, DuplicateToolError, ErrorKind, FollowUpMode,
    FollowUpPlan, PhasedTool, PolicyAction, PolicyResource, Preview, PreviewBody, ResourceAccess, ReviewRequirement,
    Ticket, ToolBinding, ToolError, ToolPhaseResult, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::background_job::{BackgroundJob, StopChoice};
use crate::command_args::{MAX_YIELD_TIME, output_bytes};
use crate::command_text::MAX_OUTPUT_BYTES;
use crate::program_runner::{FinishedRun, JobLookKind, ProgramRunner, RunPhase};
use crate::report::{RunCodeReply, RunOutcome};

/// Time that a look waits for the end, if the call says nothing.
const TASK_WAIT: Duration = Duration::from_secs(30);
/// The same for a poll after input.
const POLL_WAIT: Duration = Duration::from_millis(250);

/// The character that a terminal sends for an interrupt.
const INTERRUPT: &str = "\u{3}";

pub(crate) fn register(registry: &mut ToolRegistry, runner: Arc<ProgramRunner>) -> Result<(), DuplicateToolError> {
    registry.register(
        JobTool { runner },
        [
            ToolBinding::standard_with_text::<JobOutputArgs, RunCodeReply>("job_output"),
            ToolBinding::standard_with_text::<StopJobArgs, RunCodeReply>("stop_job"),
            ToolBinding::model::<TaskOutputArgs, RunCodeReply>(Dialect::Claude, "TaskOutput"),
            ToolBinding::model::<TaskStopArgs, RunCodeReply>(Dialect::Claude, "TaskStop"),
            ToolBinding::model::<WriteStdinArgs, RunCodeReply>(Dialect::Codex, "write_stdin"),
            ToolBinding::model::<ReadBackgroundArgs, RunCodeReply>(Dialect::Gemini, "read_background_output"),
            ToolBinding::model::<StopBackgroundArgs, RunCodeReply>(Dialect::Gemini, "stop_background_command"),
        ],
    )
}

/// Output of a background job of `run_code` since the last call. If it has ended, its changes are committed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct JobOutputArgs {
    /// Job number.
    #[serde(deserialize_with = "job_number")]
    #[schemars(with = "u64")]
    job: u64,
    /// Text for its standard input.
    #[serde(default)]
    input: Option<String>,
    /// Seconds to wait for its end, at most 600.
    #[serde(default, deserialize_with = "optional_scalar")]
    wait: Option<f64>,
}

/// Stop a background job of `run_code`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopJobArgs {
    /// Job number.
    #[serde(deserialize_with = "job_number")]
    #[schemars(with = "u64")]
    job: u64,
    /// Commit its changes, which are discarded otherwise.
    #[serde(default, deserialize_with = "scalar")]
    keep_changes: bool,
}

/// Output of a background command since the last call. When it has ended, this also keeps its changes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskOutputArgs {
    #[serde(alias = "bash_id", deserialize_with = "job_number")]
    #[schemars(with = "String")]
    task_id: u64,
    /// Wait for its end; default true.
    #[serde(default, deserialize_with = "optional_scalar")]
    block: Option<bool>,
    /// Milliseconds to wait, default 30000.
    #[serde(default, deserialize_with = "optional_scalar")]
    timeout: Option<u64>,
}

/// Stop a background command and drop its file changes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskStopArgs {
    #[serde(alias = "shell_id", alias = "bash_id", deserialize_with = "job_number")]
    #[schemars(with = "String")]
    task_id: u64,
    /// Keep them instead.
    #[serde(default, deserialize_with = "scalar")]
    keep_changes: bool,
}

/// Write to a running command, or poll it with empty chars. Returns its output since the last call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteStdinArgs {
    #[serde(deserialize_with = "job_number")]
    #[schemars(with = "u64")]
    session_id: u64,
    #[serde(default, alias = "input")]
    chars: String,
    #[serde(default, deserialize_with = "optional_scalar")]
    yield_time_ms: Option<u64>,
    #[serde(default, deserialize_with = "optional_scalar")]
    max_output_tokens: Option<u64>,
}

/// Output of a background command since the last call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadBackgroundArgs {
    #[serde(alias = "job", alias = "id", deserialize_with = "job_number")]
    #[schemars(with = "u64")]
    pid: u64,
    /// Milliseconds to wait for its end.
    #[serde(default, deserialize_with = "optional_scalar")]
    delay_ms: Option<u64>,
    #[serde(default, rename = "lines")]
    #[schemars(skip)]
    _lines: IgnoredAny,
}

/// Stop a background command and drop its file changes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopBackgroundArgs {
    #[serde(alias = "job", alias = "id", deserialize_with = "job_number")]
    #[schemars(with = "u64")]
    pid: u64,
    /// Keep them instead.
    #[serde(default, deserialize_with = "scalar")]
    keep_changes: bool,
}

/// The number of a job, also where it is a string such as `job-1`.
fn job_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    use serde::de::Error as _;
    let value = serde_json::Value::deserialize(deserializer)?;
    let number = match &value {
        serde_json::Value::Number(number) => number.as_u64(),
        serde_json::Value::String(text) => {
            text.trim().trim_start_matches("job").trim_start_matches(['-', ' ']).parse().ok()
        }
        _ => None,
    };
    number.ok_or_else(|| D::Error::custom("expected the number of a job"))
}

/// A request about a job.
#[derive(Clone, Debug)]
pub(crate) struct JobRequest {
    id: u64,
    action: JobAction,
    max_output: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum JobAction {
    /// Writes this, then waits for the end.
    Look {
        input: String,
        wait: Duration,
    },
    Stop(StopChoice),
}

impl TryFrom<JobOutputArgs> for JobRequest {
    type Error = ToolError;

    fn try_from(args: JobOutputArgs) -> Result<Self, ToolError> {
        let wait = Duration::try_from_secs_f64(args.wait.unwrap_or_default());
        let wait = wait.map_err(|_| ToolError::invalid("wait", "must be a number of seconds"))?;
        Ok(Self::look(args.job, args.input.unwrap_or_default(), wait, MAX_OUTPUT_BYTES))
    }
}

impl From<StopJobArgs> for JobRequest {
    fn from(args: StopJobArgs) -> Self {
        Self::stop(args.job, args.keep_changes, MAX_OUTPUT_BYTES)
    }
}

impl From<TaskOutputArgs> for JobRequest {
    fn from(args: TaskOutputArgs) -> Self {
        let wait = match args.block {
            Some(false) => Duration::ZERO,
            _ => args.timeout.map_or(TASK_WAIT, Duration::from_millis),
        };
        Self::look(args.task_id, String::new(), wait, MAX_OUTPUT_BYTES)
    }
}

impl From<TaskStopArgs> for JobRequest {
    fn from(args: TaskStopArgs) -> Self {
        Self::stop(args.task_id, args.keep_changes, MAX_OUTPUT_BYTES)
    }
}

impl From<WriteStdinArgs> for JobRequest {
    fn from(args: WriteStdinArgs) -> Self {
        let max_output = output_bytes(args.max_output_tokens);
        if args.chars == INTERRUPT {
            return Self::stop(args.session_id, false, max_output);
        }
        let wait = args.yield_time_ms.map_or(POLL_WAIT, Duration::from_millis);
        Self::look(args.session_id, args.chars, wait, max_output)
    }
}

impl From<ReadBackgroundArgs> for JobRequest {
    fn from(args: ReadBackgroundArgs) -> Self {
        Self::look(args.pid, String::new(), Duration::from_millis(args.delay_ms.unwrap_or_default()), MAX_OUTPUT_BYTES)
    }
}

impl From<StopBackgroundArgs> for JobRequest {
    fn from(args: StopBackgroundArgs) -> Self {
        Self::stop(args.pid, args.keep_changes, MAX_OUTPUT_BYTES)
    }
}

impl JobRequest {
    fn look(id: u64, input: String, wait: Duration, max_output: usize) -> Self {
        Self { id, action: JobAction::Look { input, wait: wait.min(MAX_YIELD_TIME) }, max_output }
    }

    fn stop(id: u64, keep_changes: bool, max_output: usize) -> Self {
        let choice = if keep_changes { StopChoice::KeepChanges } else { StopChoice::DiscardChanges };
        Self { id, action: JobAction::Stop(choice), max_output }
    }

    /// What it writes to the job.
    fn input(&self) -> &str {
        match &self.action {
            JobAction::Look { input, .. } => input,
            JobAction::Stop(_) => "",
        }
    }
}

/// The two halves of a call.
#[derive(Debug)]
pub(crate) enum JobPlan {
    Request(JobRequest, Arc<BackgroundJob>),
    Commit(Box<FinishedRun>),
}

#[derive(Debug)]
struct JobTool {
    runner: Arc<ProgramRunner>,
}

impl JobTool {
    fn run_request(
        &self,
        request: JobRequest,
        job: &BackgroundJob,
        cx: &CallContext<'_>,
    ) -> Result<RunPhase, ToolError> {
        let JobRequest { id, action, max_output } = request;
        match action {
            JobAction::Look { input, wait } => {
                job.write(&input)?;
                job.wait_alone_for_end(wait, cx);
                // What a cancelled call would take is for the next one.
                cx.check()?;
            }
            JobAction::Stop(choice) => {
                job.stop(choice);
                // It is killed, so that only a machine that is out of order makes this long.
                job.wait_for_end(MAX_YIELD_TIME, cx);
                if !job.has_ended() {
                    return Err(ToolError::new(ErrorKind::Timeout, format!("job {id} is being stopped")));
                }
            }
        }
        self.runner.look(job, &self.runner.session(cx), JobLookKind::Later, max_output, cx)
    }
}

impl PhasedTool for JobTool {
    type Args = JobRequest;
    type Prepared = JobPlan;
    type Outcome = RunOutcome;
    const GRACEFUL_STOP: bool = true;
    const WAITS_FOR_JOB: bool = true;
    const ACTIONS: &'static [PolicyAction] = &[
        PolicyAction::Read,
        PolicyAction::Run,
        PolicyAction::Create,
        PolicyAction::Overwrite,
        PolicyAction::Delete,
        PolicyAction::Lose,
    ];

    fn plan(&self, request: JobRequest, cx: &CallContext<'_>) -> Result<ToolPlan<JobPlan>, ToolError> {
        let name = format!("job {}", request.id);
        cx.set_subject(&name);
        let job = self.runner.session(cx).find(request.id)?;
        let access = match request.input() {
            "" => {
                let (mount, requested_path) = (Arc::from(CODE_MOUNT), name.clone());
                let resource =
                    PolicyResource { mount, requested_path, display_path: name, ..PolicyResource::default() };
                ResourceAccess { action: PolicyAction::Read, resource }
            }
            _ => self.runner.run_access(job.language.name(), cx)?,
        };
        Ok(ToolPlan { accesses: vec![access], prepared: JobPlan::Request(request, job) })
    }

    fn preview(&self, work: &mut JobPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            JobPlan::Request(JobRequest { id, action: JobAction::Look { input, .. }, .. }, job) => Ok(match &**input {
                "" => Preview::new(&format!("look at background job {id}"), ""),
                _ => Preview::new(&format!("write to the standard input of background job {id}"), "")
                    .with_line(&format!("which runs {:?}", job.command))
                    .with_body(PreviewBody::Code(input.clone()))
                    .with_failure(job.input_error()),
            }),
            JobPlan::Request(JobRequest { id, .. }, _) => Ok(Preview::new(&format!("stop background job {id}"), "")),
            JobPlan::Commit(left) => left.preview(cx),
        }
    }

    fn run_phase(&self, work: JobPlan, ticket: &Ticket<'_>) -> Result<ToolPhaseResult<RunOutcome, JobPlan>, ToolError> {
        match work {
            JobPlan::Request(request, job) => Ok(match self.run_request(request, &job, ticket.context())? {
                RunPhase::Done(outcome) => ToolPhaseResult::Done(outcome),
                RunPhase::FollowUp(FollowUpPlan { groups, prepared }) => {
                    ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: JobPlan::Commit(prepared) })
                }
            }),
            JobPlan::Commit(left) => left.commit(ticket).map(|report| ToolPhaseResult::Done(report.into())),
        }
    }

    /// The longest wait, and the time of a call for what comes after it.
    fn time_limit(limits: &CallLimits) -> Duration {
        MAX_YIELD_TIME + limits.call_time
    }

    fn required_review(&self, work: &JobPlan) -> Option<ReviewRequirement> {
        match work {
            JobPlan::Request(..) => None,
            JobPlan::Commit(left) => left.required_review(),
        }
    }

    fn follow_up(&self, work: &JobPlan) -> FollowUpMode {
        match work {
            JobPlan::Request(..) => FollowUpMode::Policy,
            JobPlan::Commit(left) => left.follow_up(),
        }
    }

    fn acts_as<'a>(&self, work: &'a JobPlan) -> Option<&'a str> {
        match work {
            JobPlan::Request(request, job) => (!request.input().is_empty()).then_some(&job.tool),
            JobPlan::Commit(left) => left.acts_as(),
        }
    }

    fn reconcile(&self, work: &mut JobPlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            JobPlan::Commit(left) => left.reconcile(wanted),
            JobPlan::Request(..) => wanted,
        }
    }

    fn abort(&self, work: JobPlan, refused: ToolError) -> Result<RunOutcome, ToolError> {
        match work {
            JobPlan::Commit(left) => left.abort(refused).map(RunOutcome::from),
            JobPlan::Request(..) => Err(refused),
        }
    }
}
