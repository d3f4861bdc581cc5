//! `format_code`: format files with the project's formatter, as one undoable change.
//!
//! The formatter runs in the jail, because its settings may be a program. A change of any other file is refused, and nothing is kept
//! then. A check is the same run, of which nothing is kept.
//!
//! Not here: the formatters (`formatter.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::lenient::{scalar, strings};
use ringfence_kernel::{
    CallContext, CallLimits, ChangeGroupDecision, ChangedPath, Dialect, ErrorKind, FollowUpMode, FollowUpPlan,
    FormatCard, ModelText, PhasedTool, PolicyAction, Preview, PreviewBody, ReplyCard, ReviewRequirement, Ticket,
    ToolError, ToolPhaseResult, ToolPlan, Workspace, short_change_id,
};
use ringfence_sandbox::{
    FinishedRun, JailFile, JailProgram, OtherChanges, OutputCapture, ProgramChanges, ProgramReport, ProgramRunner,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::arguments::workspace_path;
use crate::formatter::{CodeFormatter, FormatCommand, commands, program_directories, script};
use crate::project_files::ViewFiles;
use crate::test_report::{shortened, without_escapes};

/// Files of one call.
const MAX_FILES: usize = 200;

/// Bytes of what a formatter says about a file that it cannot format.
const MAX_MESSAGE_BYTES: usize = 2000;

/// Format files with the project's formatter (rustfmt, ruff, black, prettier, biome, gofmt, clang-format, shfmt, taplo). Only the named files change.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FormatCodeArgs {
    /// Files to format.
    #[serde(alias = "path", alias = "file_path", deserialize_with = "strings")]
    paths: Vec<String>,
    /// Only report which files are not formatted.
    #[serde(default, deserialize_with = "scalar")]
    check: bool,
}

/// Checked arguments.
#[derive(Debug)]
pub(crate) struct FormatRequest {
    paths: Vec<String>,
    check: bool,
}

impl TryFrom<FormatCodeArgs> for FormatRequest {
    type Error = ToolError;

    fn try_from(args: FormatCodeArgs) -> Result<Self, ToolError> {
        if args.paths.is_empty() || args.paths.len() > MAX_FILES {
            return Err(ToolError::invalid("paths", "must have 1 to 200 files"));
        }
        let mut paths = Vec::with_capacity(args.paths.len());
        for path in &args.paths {
            let path = workspace_path("paths", path)?;
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        Ok(Self { paths, check: args.check })
    }
}

/// The tool.
#[derive(Debug)]
pub(crate) struct FormatCodeTool {
    pub(crate) runner: Arc<ProgramRunner>,
    pub(crate) workspace: Arc<dyn Workspace>,
    /// `format` of the config.
    pub(crate) setting: Option<String>,
}

/// The two halves of a call.
#[derive(Debug)]
pub(crate) enum FormatPlan {
    Run(PlannedFormat),
    Commit(PlannedFormat, Box<FinishedRun>),
}

#[derive(Debug)]
pub(crate) struct PlannedFormat {
    paths: Vec<String>,
    commands: BTreeMap<FormatCommand, Vec<String>>,
    script: String,
    check: bool,
}

impl PhasedTool for FormatCodeTool {
    type Args = FormatRequest;
    type Prepared = FormatPlan;
    type Outcome = FormatOutcome;
    const GRACEFUL_STOP: bool = true;
    const IDEMPOTENT: bool = true;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::Run, PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Delete, PolicyAction::Lose];

    fn plan(&self, request: FormatRequest, cx: &CallContext<'_>) -> Result<ToolPlan<FormatPlan>, ToolError> {
        cx.set_subject(request.paths.first().map(String::as_str).unwrap_or_default());
        let setting = self.setting.as_deref().map(|name| {
            CodeFormatter::from_name(name).ok_or_else(|| {
                let known: Vec<&str> = CodeFormatter::ALL.iter().map(|formatter| formatter.name()).collect();
                let message = format!("the config names an unknown formatter; use one of {}", known.join(", "));
                ToolError::new(ErrorKind::Unavailable, message)
            })
        });
        let setting = setting.transpose()?;
        let view = self.workspace.view(cx)?;
        let files = ViewFiles { directory: &view.workspace };
        let commands = commands(&files, &request.paths, setting)
            .map_err(|error| ToolError::new(ErrorKind::NotFound, error.to_string()))?;
        let script = script(&commands, &program_directories(&files, &request.paths));
        let access = |command: &FormatCommand| self.runner.run_access(command.formatter.name(), cx);
        let accesses = commands.keys().map(access).collect::<Result<_, _>>()?;
        let FormatRequest { paths, check } = request;
        Ok(ToolPlan { accesses, prepared: FormatPlan::Run(PlannedFormat { paths, commands, script, check }) })
    }

    fn preview(&self, work: &mut FormatPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            FormatPlan::Run(planned) => {
                let unit = if planned.paths.len() == 1 { "file" } else { "files" };
                let summary = format!("format {} {unit} with {}", planned.paths.len(), planned.names());
                let preview = Preview::new(&summary, planned.script.clone());
                Ok(preview.with_body(PreviewBody::Code(planned.script.clone())))
            }
            FormatPlan::Commit(_, left) => left.preview(cx),
        }
    }

    fn run_phase(
        &self,
        work: FormatPlan,
        ticket: &Ticket<'_>,
    ) -> Result<ToolPhaseResult<FormatOutcome, FormatPlan>, ToolError> {
        match work {
            FormatPlan::Run(planned) => self.run_formatters(planned, ticket.context()),
            FormatPlan::Commit(planned, left) => {
                let report = left.commit(ticket)?;
                Ok(ToolPhaseResult::Done(FormatOutcome::new(&planned, &report)))
            }
        }
    }

    /// The formatters' own time, and that of a call for what comes before and after them.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn required_review(&self, work: &FormatPlan) -> Option<ReviewRequirement> {
        match work {
            FormatPlan::Run(_) => None,
            FormatPlan::Commit(_, left) => left.required_review(),
        }
    }

    fn follow_up(&self, work: &FormatPlan) -> FollowUpMode {
        match work {
            FormatPlan::Run(_) => FollowUpMode::Policy,
            FormatPlan::Commit(_, left) => left.follow_up(),
        }
    }

    fn reconcile(&self, work: &mut FormatPlan, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        match work {
            FormatPlan::Run(_) => wanted,
            FormatPlan::Commit(_, left) => left.reconcile(wanted),
        }
    }

    fn abort(&self, work: FormatPlan, refused: ToolError) -> Result<FormatOutcome, ToolError> {
        match work {
            FormatPlan::Run(_) => Err(refused),
            FormatPlan::Commit(planned, left) => {
                left.abort(refused).map(|report| FormatOutcome::new(&planned, &report))
            }
        }
    }
}

impl FormatCodeTool {
    fn run_formatters(
        &self,
        planned: PlannedFormat,
        cx: &CallContext<'_>,
    ) -> Result<ToolPhaseResult<FormatOutcome, FormatPlan>, ToolError> {
        let program = JailProgram {
            argv: vec!["sh".into(), "/run/ringfence/format.sh".into()],
            files: vec![JailFile::new("format.sh", planned.script.clone())],
            output: OutputCapture::Merged,
            changes: ProgramChanges::KeepOnly { paths: planned.paths.clone(), others: OtherChanges::Refuse },
            ..JailProgram::default()
        };
        match self.runner.run_program(&program, cx)? {
            ToolPhaseResult::Done(report) => match planned.failure(&report) {
                Some(error) => Err(error),
                None => Ok(ToolPhaseResult::Done(FormatOutcome::new(&planned, &report))),
            },
            ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: left }) => {
                match planned.failure(left.report()) {
                    Some(error) => Err(error),
                    None if planned.check => Ok(ToolPhaseResult::Done(FormatOutcome::new(&planned, left.report()))),
                    None => {
                        let prepared = FormatPlan::Commit(planned, left);
                        Ok(ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared }))
                    }
                }
            }
        }
    }
}

impl PlannedFormat {
    fn names(&self) -> String {
        let mut names: Vec<&str> = self.commands.keys().map(|command| command.formatter.name()).collect();
        names.dedup();
        names.join(", ")
    }

    /// The error for a formatter that failed. Nothing is kept then, of any file.
    fn failure(&self, report: &ProgramReport) -> Option<ToolError> {
        let code = report.exit_code();
        (code != 0).then_some(())?;
        let printed = without_escapes(report.stdout());
        if let Some(program) = printed.lines().find_map(|line| line.strip_prefix("missing: ")).filter(|_| code == 127) {
            let message = format!(
                "the formatter is not installed where the sandbox finds it: {program}; install it in the project, or set \
                 `format` under `[project]` in the config"
            );
            return Some(ToolError::new(ErrorKind::Unavailable, message));
        }
        let message = format!("{} exited with {code}; no file was changed", self.names());
        let text = format!("{message}\n{}", shortened(printed.trim(), MAX_MESSAGE_BYTES));
        let error = ToolError::new(ErrorKind::Execution, message).with_model_text(text.trim_end().to_owned());
        Some(error.detail("exitCode", code).detail("stderr", shortened(printed.trim(), MAX_MESSAGE_BYTES)))
    }
}

/// What the call replies.
#[derive(Debug)]
pub(crate) struct FormatOutcome {
    formatters: String,
    files: usize,
    changed: Vec<String>,
    check: bool,
    change: Option<String>,
}

impl FormatOutcome {
    fn new(planned: &PlannedFormat, report: &ProgramReport) -> Self {
        let path = |change: &ChangedPath| change.path.clone();
        Self {
            formatters: planned.names(),
            files: planned.paths.len(),
            changed: report.changes().iter().map(path).collect(),
            check: planned.check,
            change: report.change_id().map(str::to_owned),
        }
    }

    fn text(&self) -> String {
        let total = self.files;
        let files = if total == 1 { "file" } else { "files" };
        match (self.changed.as_slice(), &self.change) {
            ([], _) => format!("{total} {files} already formatted ({})", self.formatters),
            (changed, None) => format!(
                "{} of {total} {files} not formatted ({}): {}",
                changed.len(),
                self.formatters,
                changed.join(" ")
            ),
            (changed, Some(change)) => {
                let id = short_change_id(change);
                format!(
                    "formatted {} of {total} {files} with {} ({id}): {}",
                    changed.len(),
                    self.formatters,
                    changed.join(" ")
                )
            }
        }
    }
}

/// The reply of `format_code`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FormatCodeReply {
    /// Files that were formatted; with `check`, files that are not.
    paths: Vec<String>,
    /// Number of the named files.
    total: usize,
    /// Names of the formatters.
    formatters: String,
    /// True if nothing was to be changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    check: bool,
    /// The id of the change, for `undo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    #[serde(skip)]
    text: String,
}

impl From<FormatOutcome> for FormatCodeReply {
    fn from(outcome: FormatOutcome) -> Self {
        let text = outcome.text();
        let FormatOutcome { formatters, files, changed, check, change } = outcome;
        Self { paths: changed, total: files, formatters, check, change, text }
    }
}

impl ModelText for FormatCodeReply {
    fn model_text(&self, _: Dialect) -> String {
        self.text.clone()
    }

    fn card(&self) -> Option<ReplyCard> {
        let Self { paths, total, formatters, check, change, text: _ } = self;
        Some(ReplyCard::Formatted(FormatCard {
            formatters: formatters.clone(),
            total: *total,
            paths: paths.clone(),
            more: 0,
            check: *check,
            change: change.clone(),
        }))
    }
}
