//! `run_tests`: run the tests of a project in the jail, and reply with their failures.
//!
//! The tests work on an overlay of the workspace, and nothing that they change is kept. The reply is made from the runner's report;
//! only where there is none is it the end of the output.
//!
//! Not here: the runners (`test_runner.rs`), their reports (`report_files.rs`), and what a run comes to (`verdict.rs`).

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::optional_scalar;
use ringfence_kernel::{
    CallContext, CallLimits, Dialect, ErrorKind, FailedTestCard, ModelText, PolicyAction, Preview, PreviewBody,
    ReplyCard, TestRunCard, Ticket, Tool, ToolError, ToolPhaseResult, ToolPlan, Workspace,
};
use ringfence_sandbox::{
    JailFile, JailProgram, OutputCapture, OutputStream, ProgramChanges, ProgramReport, ProgramRunner,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::arguments::{plain_word, seconds, workspace_path};
use crate::detect::detect;
use crate::project_files::ViewFiles;
use crate::report_files::{RunOutput, plain_output, read_report};
use crate::report_text::{self, MAX_SHOWN, report_text};
use crate::test_report::{TestFailure, TestReport, without_escapes};
use crate::test_runner::{TestCommand, TestProject, TestRunner};
use crate::verdict::{TestVerdict, judge};

/// Run time of tests, if neither the call nor the config says more.
const TEST_TIME: Duration = Duration::from_secs(300);

/// Bytes of each stream that are kept: a report of some ten thousand tests.
const MAX_STREAM_BYTES: u64 = 8 << 20;

/// Bytes of output in a reply without a report.
const MAX_TAIL_BYTES: usize = 6000;

/// Run the project's tests in a sandbox. The reply lists the failures with file and line. The runner is detected by the manifest nearest to `path`. Changes that tests make are discarded.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunTestsArgs {
    /// File or directory of the tests; the workspace if omitted.
    #[serde(default, alias = "file_path", alias = "dir_path")]
    path: Option<String>,
    /// Run only tests with this in their name.
    #[serde(default)]
    name: Option<String>,
    /// Timeout in seconds.
    #[serde(default, deserialize_with = "optional_scalar")]
    timeout: Option<f64>,
}

/// Checked arguments.
#[derive(Debug)]
pub(crate) struct TestRequest {
    path: String,
    name: Option<String>,
    timeout: Option<Duration>,
}

impl TryFrom<RunTestsArgs> for TestRequest {
    type Error = ToolError;

    fn try_from(args: RunTestsArgs) -> Result<Self, ToolError> {
        let path = workspace_path("path", args.path.as_deref().unwrap_or_default())?;
        let name = args.name.filter(|name| !name.is_empty());
        let name = name.map(|name| plain_word("name", &name)).transpose()?;
        Ok(Self { path, name, timeout: args.timeout.map(seconds).transpose()? })
    }
}

/// The tool.
#[derive(Debug)]
pub(crate) struct RunTestsTool {
    pub(crate) runner: Arc<ProgramRunner>,
    pub(crate) workspace: Arc<dyn Workspace>,
    /// `test` of the config.
    pub(crate) setting: Option<String>,
}

/// The verdict of a run that has passed.
const PASSED: &str = "passed";

/// A run that was planned.
#[derive(Debug)]
pub(crate) struct PlannedTests {
    project: TestProject,
    script: String,
    timeout: Duration,
    has_filter: bool,
}

impl Tool for RunTestsTool {
    type Args = TestRequest;
    type Prepared = PlannedTests;
    type Outcome = TestOutcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Run];
    const GRACEFUL_STOP: bool = true;

    fn plan(&self, request: TestRequest, cx: &CallContext<'_>) -> Result<ToolPlan<PlannedTests>, ToolError> {
        cx.set_subject(&request.path);
        let longest = cx.limits.longest_run_time;
        let timeout = request.timeout.unwrap_or_else(|| cx.limits.run_time.max(TEST_TIME).min(longest));
        if timeout > longest {
            let problem = format!("must be at most {} seconds", longest.as_secs_f64());
            return Err(ToolError::invalid("timeout", &problem));
        }
        let view = self.workspace.view(cx)?;
        let files = ViewFiles { directory: &view.workspace };
        let found = detect(&files, &request.path, self.setting.as_deref());
        let (project, mut selection) = found.map_err(|error| ToolError::new(ErrorKind::NotFound, error.to_string()))?;
        selection.name = request.name;
        let has_filter = selection.name.is_some();
        let prepared = PlannedTests { script: project.script(&selection), project, timeout, has_filter };
        Ok(ToolPlan { accesses: vec![self.runner.run_access(prepared.project.program(), cx)?], prepared })
    }

    fn preview(&self, tests: &mut PlannedTests, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let directory = if tests.project.directory.is_empty() { "." } else { &tests.project.directory };
        let summary = format!("run the tests of `{directory}` with {}", tests.project.display_name());
        let preview = Preview::new(&summary, tests.script.clone()).with_line("changes that they make are discarded");
        Ok(preview.with_body(PreviewBody::Code(tests.script.clone())))
    }

    fn run(&self, tests: PlannedTests, ticket: &Ticket<'_>) -> Result<TestOutcome, ToolError> {
        let program = JailProgram {
            argv: vec!["sh".into(), "/run/ringfence/tests.sh".into()],
            files: vec![JailFile::new("tests.sh", tests.script.clone())],
            timeout: Some(tests.timeout),
            output: OutputCapture::Separate,
            max_output: Some(MAX_STREAM_BYTES),
            data_stream: Some(OutputStream::Stdout),
            changes: ProgramChanges::Discard,
            ..JailProgram::default()
        };
        match self.runner.run_program(&program, ticket.context())? {
            ToolPhaseResult::Done(report) => TestOutcome::new(&tests, &report, ticket.context()),
            ToolPhaseResult::FollowUp(_) => {
                Err(ToolError::new(ErrorKind::Internal, "changes of a test run were to be kept"))
            }
        }
    }

    /// The tests' own time, and that of a call for what comes before and after them.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }
}

/// What the call replies.
#[derive(Debug)]
pub(crate) struct TestOutcome {
    runner: String,
    is_pass: bool,
    exit_code: i32,
    duration: Duration,
    report: Option<TestReport>,
    output: Option<String>,
    text: String,
}

impl TestOutcome {
    fn new(tests: &PlannedTests, ended: &ProgramReport, cx: &CallContext<'_>) -> Result<Self, ToolError> {
        let output = RunOutput { reports: ended.stdout(), truncated: ended.is_truncated(), text: ended.stderr() };
        let exit_code = ended.exit_code();
        let printed = without_escapes(&plain_output(&tests.project, output));
        if let Some(missing) = missing_program(&tests.project, exit_code, &printed) {
            return Err(ToolError::new(ErrorKind::Unavailable, missing));
        }
        let kept = match cx.memory() {
            Some(memory) if !printed.trim().is_empty() => Some(memory.outputs.keep(&printed).to_string()),
            _ => None,
        };
        let notes = TestRunNotes { others: &tests.project.others, output: kept.as_deref() };
        let outcome = |is_pass, report, text| Self {
            runner: tests.project.display_name().to_owned(),
            is_pass,
            exit_code,
            duration: ended.duration(),
            report,
            output: kept.clone(),
            text,
        };
        let failed = |message: String, text: String| {
            let error = ToolError::new(ErrorKind::Execution, message).with_model_text(text);
            let error = error.detail("exitCode", exit_code);
            Err(match &kept {
                Some(kept) => error.detail("output", kept.clone()),
                None => error,
            })
        };
        match judge(&tests.project.command, read_report(&tests.project, output), exit_code) {
            TestVerdict::Passed(report) => {
                let text = notes.add_to(report_text(&report, ended.duration()));
                Ok(outcome(true, Some(report), text))
            }
            TestVerdict::Failed(report) => {
                let text = notes.add_to(report_text(&report, ended.duration()));
                Ok(outcome(false, Some(report), text))
            }
            TestVerdict::NoTests => {
                let message = if tests.has_filter {
                    "no test has this in its name; nothing was tested"
                } else {
                    "no tests found; nothing was tested"
                };
                let message = format!("{}: {message}", tests.project.display_name());
                failed(message.clone(), notes.add_to(message))
            }
            TestVerdict::Disagreement { problem, report } => {
                let mut text = format!("{problem}; this is not a pass\n{}", report_text(&report, ended.duration()));
                if report.failures.is_empty() {
                    let _ = write!(text, "\n{}", tail(&printed));
                }
                failed(format!("{problem}; read the output"), notes.add_to(text))
            }
            TestVerdict::TextOnly { problem: None } => {
                let time = report_text::seconds(ended.duration());
                let text = format!("exit {exit_code} in {time} (no report; tests are not counted)\n{}", tail(&printed));
                Ok(outcome(exit_code == 0, None, notes.add_to(text)))
            }
            TestVerdict::TextOnly { problem: Some(problem) } => {
                let time = report_text::seconds(ended.duration());
                let first = format!("exit {exit_code} in {time}; {problem}, so this is the end of the output");
                let text = notes.add_to(format!("{first}\n{}", tail(&printed)));
                match exit_code {
                    0 => failed(format!("{problem}, so this is not a pass; read the output"), text),
                    _ => Ok(outcome(false, None, text)),
                }
            }
        }
    }
}

/// The last lines of a reply.
struct TestRunNotes<'a> {
    others: &'a [TestRunner],
    output: Option<&'a str>,
}

impl TestRunNotes<'_> {
    fn add_to(&self, mut text: String) -> String {
        if !self.others.is_empty() {
            let names: Vec<&str> = self.others.iter().map(|other| other.name()).collect();
            let _ = write!(text, "\n[not run: {}; give the path of a test file for it]", names.join(", "));
        }
        if let Some(output) = self.output {
            let _ = write!(text, "\n[output: {output}]");
        }
        text
    }
}

/// The last lines of an output.
fn tail(output: &str) -> &str {
    let output = output.trim_end();
    let from = output.ceil_char_boundary(output.len().saturating_sub(MAX_TAIL_BYTES));
    match output[from..].split_once('\n') {
        Some((_, rest)) if from > 0 => rest,
        _ => &output[from..],
    }
}

/// The sentence about a runner that is not there.
fn missing_program(project: &TestProject, exit_code: i32, output: &str) -> Option<String> {
    let TestCommand::Runner(runner) = project.command else { return None };
    let first_words = |words: &str| output.lines().rev().take(20).any(|line| line.contains(words));
    let is_missing = match runner {
        TestRunner::Pytest => first_words("No module named pytest") || exit_code == 127,
        TestRunner::Nextest => first_words("no such command: `nextest`") || exit_code == 127,
        _ => exit_code == 127 && first_words("not found"),
    };
    let program = match runner {
        TestRunner::Nextest => "cargo-nextest",
        TestRunner::Ctest => "cmake",
        _ => project.program(),
    };
    is_missing.then(|| {
        format!(
            "`{program}` is not installed where the sandbox finds it: install it in the project, or set `test` under \
             `[project]` in the config"
        )
    })
}

/// The reply of `run_tests`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunTestsReply {
    /// `passed` or `failed`. Anything else is an error.
    verdict: &'static str,
    /// Name of the test runner.
    runner: String,
    exit_code: i32,
    /// Run time in milliseconds.
    duration: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    passed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<u64>,
    /// Failures outside of a test.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<u64>,
    /// The first of the failures.
    failures: Vec<FailureReply>,
    /// Path of the whole output, for the read tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// The end of the output, for runs without a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    printed: Option<String>,
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FailureReply {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    message: String,
}

impl From<TestFailure> for FailureReply {
    fn from(failure: TestFailure) -> Self {
        let (file, line) = failure.at.map(|at| (at.file, at.line)).unzip();
        Self { name: failure.name, file, line, message: failure.message }
    }
}

impl From<TestOutcome> for RunTestsReply {
    fn from(outcome: TestOutcome) -> Self {
        let counts = outcome.report.as_ref().map(|report| report.counts);
        let printed = outcome.report.is_none().then(|| outcome.text.clone());
        let failures = outcome.report.map(|report| report.failures).unwrap_or_default();
        Self {
            verdict: if outcome.is_pass { PASSED } else { "failed" },
            runner: outcome.runner,
            exit_code: outcome.exit_code,
            duration: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
            passed: counts.map(|counts| counts.passed),
            failed: counts.map(|counts| counts.failed),
            skipped: counts.map(|counts| counts.skipped),
            errors: counts.map(|counts| counts.errors),
            failures: failures.into_iter().take(MAX_SHOWN).map(FailureReply::from).collect(),
            output: outcome.output,
            printed,
            text: outcome.text,
        }
    }
}

impl ModelText for RunTestsReply {
    fn model_text(&self, _: Dialect) -> String {
        self.text.clone()
    }

    fn card(&self) -> Option<ReplyCard> {
        let card = |failure: &FailureReply| {
            let FailureReply { name, file, line, message } = failure;
            FailedTestCard { name: name.clone(), file: file.clone(), line: *line, message: message.clone() }
        };
        let failures: Vec<_> = self.failures.iter().map(card).collect();
        let all = self.failed.unwrap_or_default().saturating_add(self.errors.unwrap_or_default());
        let more = usize::try_from(all).unwrap_or(usize::MAX).saturating_sub(failures.len());
        Some(ReplyCard::Tests(TestRunCard {
            is_pass: self.verdict == PASSED,
            runner: self.runner.clone(),
            duration: self.duration,
            passed: self.passed,
            failed: self.failed,
            skipped: self.skipped,
            errors: self.errors,
            failures,
            more,
        }))
    }
}
