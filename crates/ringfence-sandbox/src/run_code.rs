//! `run_code`: run a program in a jail, and commit its changes as one change of the workspace.
//!
//! The program works on an overlay above the workspace. Only when it succeeded is its upper directory read. Its changes
//! are judged group by group like those of other tools; those that may be kept are committed as one, and the rest is
//! dropped and named in an error. In any case, the reply has the program's output. The dialects of model families have it
//! as a shell that takes one command line.
//!
//! Not here: the run itself (`program_runner.rs`), the jail (`sandbox.rs`), and how changes are found and committed (the
//! kernel's `Workspace`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::{optional_scalar, scalar, strings};
use ringfence_kernel::{
    CallContext, CallLimits, ChangeGroupDecision, Dialect, DuplicateToolError, Egress, FollowUpMode, FollowUpPlan,
    PhasedTool, PolicyAction, Preview, ReviewRequirement, Ticket, ToolBinding, ToolError, ToolPhaseResult, ToolPlan,
    ToolRegistry, Workspace,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::command_args::{BashArgs, ExecCommandArgs, RunShellCommandArgs};
use crate::command_session::CommandSessions;
use crate::job_tool;
use crate::limits::JailLimits;
use crate::program_runner::{FinishedRun, ProgramRunner, RunPhase};
use crate::report::{RunCodeReply, RunOutcome};
use crate::run_request::{JobStdin, RunAttendance, RunCodeMode, RunCodeProgram, ScriptLanguage};
use crate::sandbox::SandboxSettings;
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
    /// The command state of the sessions.
    pub sessions: Arc<CommandSessions>,
}

/// Gives `run_code` and the tools for its background jobs to a registry.
pub fn register(registry: &mut ToolRegistry, runner: Arc<ProgramRunner>) -> Result<(), DuplicateToolError> {
    registry.register(
        RunCodeTool { runner: Arc::clone(&runner) },
        [
            ToolBinding::standard_with_text::<RunCodeArgs, RunCodeReply>("run_code"),
            ToolBinding::model::<BashArgs, RunCodeReply>(Dialect::Claude, "Bash"),
            ToolBinding::model::<ExecCommandArgs, RunCodeReply>(Dialect::Codex, "exec_command"),
            ToolBinding::model::<RunShellCommandArgs, RunCodeReply>(Dialect::Gemini, "run_shell_command"),
        ],
    )?;
    job_tool::register(registry, runner)
}

/// Run Python or bash code in a sandbox, in the workspace. It has no network except the hosts in `network`. When it exits,
/// the policy decides about each changed file; an error lists what was not kept. Only `/workspace` and `/tmp` are writable;
/// `/tmp` is empty in each run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunCodeArgs {
    /// `bash`, the default, for commands; `python` for the text of a Python program.
    #[serde(default = "bash")]
    language: ScriptLanguage,
    /// Commands, such as `python3 app.py`.
    #[serde(alias = "command", alias = "cmd")]
    code: String,
    /// Arguments.
    #[serde(default, deserialize_with = "strings")]
    args: Vec<String>,
    /// Environment variables.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Timeout in seconds.
    #[serde(default, deserialize_with = "optional_scalar")]
    timeout: Option<f64>,
    /// Hosts to reach by HTTP or HTTPS, such as `pypi.org`.
    #[serde(default, deserialize_with = "strings")]
    network: Vec<String>,
    /// `auto` keeps allowed changes, `review` asks a person and keeps all or none, `discard` drops them.
    #[serde(default)]
    mode: RunCodeMode,
    /// Run it as a background job, for `job_output` and `stop_job`.
    #[serde(default, deserialize_with = "scalar")]
    background: bool,
}

const fn bash() -> ScriptLanguage {
    ScriptLanguage::Bash
}

impl TryFrom<RunCodeArgs> for RunCodeProgram {
    type Error = ToolError;

    fn try_from(args: RunCodeArgs) -> Result<Self, ToolError> {
        let RunCodeArgs { language, code, args, env, timeout, network, mode, background } = args;
        if args.iter().any(|arg| arg.contains('\0')) {
            return Err(ToolError::invalid("args", "must not contain a NUL byte"));
        }
        let language = if is_python_command(&code) { ScriptLanguage::Bash } else { language };
        let timeout = timeout.map(seconds).transpose()?;
        let attendance = match background {
            true => RunAttendance::Background { stdin: JobStdin::Open },
            false => RunAttendance::ToTheEnd,
        };
        Ok(Self { language, code, args, env, timeout, network, mode, command: None, attendance })
    }
}

/// Whether a text is the command that runs a Python file. Small models pass it with the language `python`, where it can only
/// fail: nothing is called `python3` in it.
fn is_python_command(code: &str) -> bool {
    let code = code.trim();
    let mut words = code.split(' ');
    let is_python = matches!(words.next(), Some("python" | "python3"));
    let is_file = |word: &str| word.ends_with(".py") && !word.contains('=');
    is_python && !code.contains('\n') && words.next().is_some_and(is_file)
}

fn seconds(timeout: f64) -> Result<Duration, ToolError> {
    let time = Duration::try_from_secs_f64(timeout).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| ToolError::invalid("timeout", "must be a positive number of seconds"))
}

/// The two halves of a call.
#[derive(Debug)]
pub(crate) enum RunCodePlan {
    Run(Box<RunCodeProgram>, JailLimits),
    Commit(Box<FinishedRun>),
}

#[derive(Debug)]
struct RunCodeTool {
    runner: Arc<ProgramRunner>,
}

impl PhasedTool for RunCodeTool {
    type Args = RunCodeProgram;
    type Prepared = RunCodePlan;
    type Outcome = RunOutcome;
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
        program.check_attendance(cx.limits)?;
        let limits = program.limits(cx.limits)?;
        program.network = self.runner.canonical_hosts(&program.hosts()?)?;
        let mut accesses = vec![self.runner.run_access(program.language.name(), cx)?];
        accesses.extend(program.host_accesses()?);
        Ok(ToolPlan { accesses, prepared: RunCodePlan::Run(Box::new(program), limits) })
    }

    fn preview(&self, work: &mut RunCodePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            RunCodePlan::Run(program, limits) => Ok(program.preview(limits)),
            RunCodePlan::Commit(left) => left.preview(cx),
        }
    }

    fn run_phase(
        &self,
        work: RunCodePlan,
        ticket: &Ticket<'_>,
    ) -> Result<ToolPhaseResult<RunOutcome, RunCodePlan>, ToolError> {
        match work {
            RunCodePlan::Run(program, limits) => Ok(match self.runner.run(&program, limits, ticket.context())? {
                RunPhase::Done(outcome) => ToolPhaseResult::Done(outcome),
                RunPhase::FollowUp(FollowUpPlan { groups, prepared }) => {
                    let prepared = RunCodePlan::Commit(prepared);
                    ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared })
                }
            }),
            RunCodePlan::Commit(left) => left.commit(ticket).map(|report| ToolPhaseResult::Done(report.into())),
        }
    }

    /// The program's own time, and that of a call for what comes before and after it.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn required_review(&self, work: &RunCodePlan) -> Option<ReviewRequirement> {
        match work {
            RunCodePlan::Run(..) => None,
            RunCodePlan::Commit(left) => left.required_review(),
        }
    }

    fn follow_up(&self, work: &RunCodePlan) -> FollowUpMode {
        match work {
            RunCodePlan::Run(program, _) => program.mode.into(),
            RunCodePlan::Commit(left) => left.follow_up(),
        }
    }

    fn reconcile(&self, work: &mut RunCodePlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            RunCodePlan::Commit(left) => left.reconcile(wanted),
            RunCodePlan::Run(..) => wanted,
        }
    }

    fn abort(&self, work: RunCodePlan, refused: ToolError) -> Result<RunOutcome, ToolError> {
        match work {
            RunCodePlan::Commit(left) => left.abort(refused).map(RunOutcome::from),
            RunCodePlan::Run(..) => Err(refused),
        }
    }

    fn end_session(&self, session: &str) {
        self.runner.setup.sessions.end_session(session);
    }
}

#[cfg(test)]
mod tests {
    use super::is_python_command;

    #[test]
    fn only_what_fails_as_a_program_is_taken_for_a_command() {
        for command in
            ["python3 answer.py", " python src/main.py --fast\n", "python3 ./a.py", "python3 /workspace/a.py"]
        {
            assert!(is_python_command(command), "{command}");
        }
        for program in [
            "",
            "python3",
            "python3 = 5",
            "python3 =lambda:a.py",
            "python3 -m pytest",
            "python3 a.py\nprint(1)",
            "import a",
            "print('python3 a.py')",
        ] {
            assert!(!is_python_command(program), "{program}");
        }
    }
}
