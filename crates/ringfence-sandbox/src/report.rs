//! Replies of `run_code`: exit status, output, and changes.
//!
//! Not here: running it (`run_code.rs`).

use std::time::Duration;

use ringfence_kernel::{
    CallContext, ChangeGroupDecision, ChangeKind, ChangedPath, Dialect, ErrorKind, ModelText, ToolError,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::command_text::{self, CommandText};
use crate::diagnose::{SandboxDenial, WRITABLE, WRITABLE_BY_BWRAP, diagnose_stderr, process_limit_denial};
use crate::isolation_status::Isolation;
use crate::job::{ExitReason, RunResult};
use crate::limits::JailLimits;

/// Most paths that an error lists of those that were kept, and of those that were not, with a reason each.
const MAX_PATHS_IN_ERROR: usize = 100;

/// The outcome of a call that ran a program, or looked at one.
#[derive(Debug)]
pub(crate) enum RunOutcome {
    Ended(Box<ProgramReport>),
    Running(RunningJob),
}

impl From<ProgramReport> for RunOutcome {
    fn from(report: ProgramReport) -> Self {
        Self::Ended(Box::new(report))
    }
}

/// What a session is told about jobs with the first that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobExplanation {
    /// Commands reach its ports.
    pub(crate) shares_loopback: bool,
}

/// A background job that goes on.
#[derive(Debug)]
pub(crate) struct RunningJob {
    pub(crate) id: u64,
    /// Output since the last look.
    pub(crate) output: String,
    /// Bytes before that which were dropped.
    pub(crate) lost: u64,
    pub(crate) duration: Duration,
    /// The call started it.
    pub(crate) is_start: bool,
    /// Present where the reply says how jobs behave.
    pub(crate) explanation: Option<JobExplanation>,
    /// The output for a model, which is bounded.
    pub(crate) printed: String,
}

/// The report about a program that ended by itself, or a job that was stopped.
#[derive(Debug)]
pub struct ProgramReport {
    pub(crate) summary: RunSummary,
    /// Every path that it changed.
    pub(crate) changes: Vec<ChangedPath>,
    /// Most paths that are listed.
    pub(crate) max_listed: usize,
    pub(crate) committed: KeptChangesExtent,
    /// The caller wanted them dropped.
    pub(crate) discarded: bool,
    pub(crate) change: Option<String>,
    /// Groups of changes that the tool does not want, whatever the policy decides. Dropping them is not an error.
    pub(crate) unwanted: Vec<usize>,
    /// Paths of those.
    pub(crate) dropped: Vec<ChangedPath>,
}

/// The part of a program's changes that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptChangesExtent {
    All,
    Some,
    None,
}

impl KeptChangesExtent {
    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Some => "some",
            Self::None => "none",
        }
    }
}

/// The part of a report that every ending has.
#[derive(Debug)]
pub(crate) struct RunSummary {
    pub(crate) stdout: String,
    /// Bytes of `stdout` before the part that was omitted.
    stdout_head: usize,
    stderr: String,
    truncated: bool,
    pub(crate) exit_code: i32,
    pub(crate) duration: Duration,
    pub(crate) signal: Option<i32>,
    pub(crate) exit_reason: ExitReason,
    isolation: Vec<String>,
    pub(crate) denied: Option<SandboxDenial>,
    /// Both streams for a model, bounded.
    pub(crate) printed: String,
    /// Where a command ended, if that is kept.
    pub(crate) directory: Option<CommandDirectory>,
    /// The background job that it was.
    pub(crate) job: Option<u64>,
    /// Bytes of a job's output that were dropped before this part.
    pub(crate) lost: u64,
}

/// The directory of a session's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandDirectory {
    /// Where the next command starts; empty for the workspace.
    pub(crate) now: String,
    /// Where this one was to start, if that is gone.
    pub(crate) gone: Option<String>,
}

impl RunSummary {
    pub(crate) fn new(ended: &RunResult, limits: &JailLimits) -> Self {
        let stderr = ended.stderr.text();
        let writable = if ended.isolation.contains(&Isolation::Bwrap) { WRITABLE_BY_BWRAP } else { WRITABLE };
        let denied = match ended.process_limit_hit {
            true => Some(process_limit_denial(limits.processes, writable)),
            false => diagnose_stderr(&stderr, writable),
        };
        let stdout = ended.stdout.text();
        let denied = denied.or_else(|| diagnose_stderr(&stdout, writable).filter(|_| stderr.is_empty()));
        Self {
            stdout_head: ended.stdout.head_text_len(),
            stdout,
            exit_code: ended.exit_code,
            printed: String::new(),
            directory: None,
            job: None,
            lost: 0,
            denied: denied.filter(|_| ended.exit_code != 0),
            stderr,
            truncated: ended.stdout.truncated || ended.stderr.truncated,
            duration: ended.duration,
            signal: ended.signal,
            exit_reason: ended.exit_reason,
            isolation: ended.isolation.iter().map(ToString::to_string).collect(),
        }
    }

    /// The same with the part of the output that was not looked at before.
    pub(crate) fn with_output(self, output: String, lost: u64) -> Self {
        Self { stdout_head: output.len(), stdout: output, stderr: String::new(), truncated: lost > 0, lost, ..self }
    }

    /// The same with the output for a model, in this number of bytes. The whole of a longer one is kept for the session.
    pub(crate) fn with_printed(self, max_output: usize, cx: &CallContext<'_>) -> Self {
        let both = match (self.stdout.as_str(), self.stderr.as_str()) {
            (stdout, "") => stdout.to_owned(),
            (stdout, stderr) => {
                let gap = if stdout.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
                format!("{stdout}{gap}[stderr]\n{stderr}")
            }
        };
        Self { printed: command_text::bound_output(both, max_output, cx), ..self }
    }

    /// Puts it into the details of an error, and behind the message in its text for models.
    pub(crate) fn attach_to(self, error: ToolError) -> ToolError {
        let text = format!("{}\n{}", error.message, command_text::failed_text(&self));
        let error = error.with_model_text(text.trim_end().to_owned());
        let mut error = error
            .detail("stdout", self.stdout)
            .detail("stderr", self.stderr)
            .detail("truncated", self.truncated)
            .detail("duration", millis(self.duration))
            .detail("endedBy", self.exit_reason.name())
            .detail("committed", KeptChangesExtent::None.name())
            .detail("walls", self.isolation);
        if let Some(signal) = self.signal {
            error = error.detail("signal", signal);
        }
        match self.denied {
            Some(denied) => error.detail("denied", denied.message),
            None => error,
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl ProgramReport {
    /// The same program without any of its changes. A cancelled call, and one whose effect is not
    /// known, keep their own error.
    pub(crate) fn with_changes_refused(
        self,
        mut decided: Vec<ChangeGroupDecision>,
        refused: ToolError,
    ) -> Result<Self, ToolError> {
        let exit_code = self.summary.exit_code;
        if let Some(committed) = refused.details.get("committed").cloned() {
            // A commit that may not survive a power cut counts as made.
            let committed = if committed == true { Value::from(KeptChangesExtent::All.name()) } else { committed };
            return Err(self.summary.attach_to(refused).detail("exitCode", exit_code).detail("committed", committed));
        }
        if matches!(refused.kind, ErrorKind::Cancelled | ErrorKind::Timeout) || self.changes.is_empty() {
            return Err(self.summary.attach_to(refused).detail("exitCode", exit_code));
        }
        for decision in &mut decided {
            if !matches!(decision, ChangeGroupDecision::Refuse(_)) {
                *decision = ChangeGroupDecision::Refuse(refused.clone());
            }
        }
        self.with_decisions(&decided)
    }

    /// The report once every group was decided. Discarded changes make it an error that names them.
    pub(crate) fn with_decisions(mut self, decided: &[ChangeGroupDecision]) -> Result<Self, ToolError> {
        let refusal = |change: &ChangedPath| match decided.get(change.group) {
            Some(ChangeGroupDecision::Refuse(error)) => Some(error),
            _ => None,
        };
        let (dropped, wanted): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.changes).into_iter().partition(|change| self.unwanted.contains(&change.group));
        self.dropped = dropped;
        let (kept, not_kept): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|change| refusal(change).is_none());
        let errors: Vec<&ToolError> = not_kept.iter().filter_map(refusal).collect();
        let of_kind = |kind: ErrorKind| errors.iter().find(|error| error.kind == kind);
        let first = of_kind(ErrorKind::ApprovalDenied).or(of_kind(ErrorKind::PermissionDenied)).or(errors.first());
        let Some(first) = first else {
            let committed = if kept.is_empty() { KeptChangesExtent::None } else { KeptChangesExtent::All };
            return Ok(Self { committed, changes: kept, ..self });
        };
        let committed = if kept.is_empty() { KeptChangesExtent::None } else { KeptChangesExtent::Some };
        let others = match kept.len() {
            0 => "none of the program's changes were kept".to_owned(),
            1 => "1 other change was kept".to_owned(),
            count => format!("{count} other changes were kept"),
        };
        let message = format!("not kept: {}: {}; {others}", list_paths(&not_kept), first.message);
        let program = command_text::partly_kept_text(&self.summary, self.change.as_deref(), &kept);
        let text = format!("{message}\n{program}");
        let most = self.max_listed.min(MAX_PATHS_IN_ERROR);
        let named = |changes: Vec<ChangedPath>| -> Vec<Value> {
            let value = |change: ChangedPath| {
                let reason = refusal(&change).map(|error| error.message.clone());
                let mut value = serde_json::to_value(RunCodeChange::from(change)).unwrap_or_default();
                if let Some(reason) = reason {
                    value["reason"] = Value::from(reason);
                }
                value
            };
            changes.into_iter().take(most).map(value).collect()
        };
        let (total_kept, total_not_kept) = (kept.len(), not_kept.len());
        let exit_code = self.summary.exit_code;
        let mut error = self
            .summary
            .attach_to(ToolError::new(first.kind, message))
            .with_model_text(text)
            .detail("exitCode", exit_code)
            .detail("committed", committed.name())
            .detail("kept", named(kept))
            .detail("notKept", named(not_kept))
            .detail("totalKept", total_kept)
            .detail("totalNotKept", total_not_kept);
        if let Some(change) = self.change {
            error = error.detail("change", change);
        }
        Err(error)
    }
}

/// The first of some paths, and how many there are besides.
fn list_paths(changes: &[ChangedPath]) -> String {
    const MOST: usize = 5;
    let first: Vec<String> = changes.iter().take(MOST).map(|change| format!("`{}`", change.path)).collect();
    match changes.len().saturating_sub(MOST) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

impl ProgramReport {
    pub(crate) fn new(summary: RunSummary) -> Self {
        Self {
            summary,
            changes: Vec::new(),
            max_listed: 0,
            committed: KeptChangesExtent::None,
            discarded: false,
            change: None,
            unwanted: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// As a shell says it: the status, or 128 and the signal.
    pub fn exit_code(&self) -> i32 {
        self.summary.exit_code
    }

    pub fn signal(&self) -> Option<i32> {
        self.summary.signal
    }

    pub fn stdout(&self) -> &str {
        &self.summary.stdout
    }

    /// Standard output up to where its middle was omitted; all of it, if nothing was. For tools that read it line by line.
    pub fn stdout_head(&self) -> &str {
        self.summary.stdout.get(..self.summary.stdout_head).unwrap_or_default()
    }

    /// Empty where both streams were captured as one.
    pub fn stderr(&self) -> &str {
        &self.summary.stderr
    }

    /// Whether the middle of an output was omitted.
    pub fn is_truncated(&self) -> bool {
        self.summary.truncated
    }

    pub fn duration(&self) -> Duration {
        self.summary.duration
    }

    /// What the sandbox denied the program, as far as its output tells.
    pub fn denied(&self) -> Option<&SandboxDenial> {
        self.summary.denied.as_ref()
    }

    /// The changes that were kept, or those that were discarded by request.
    pub fn changes(&self) -> &[ChangedPath] {
        &self.changes
    }

    /// Changes outside the files that the program was to change, which were dropped.
    pub fn dropped(&self) -> &[ChangedPath] {
        &self.dropped
    }

    /// The committed change, for `undo`.
    pub fn change_id(&self) -> Option<&str> {
        self.change.as_deref()
    }

    /// An error that carries the program's output.
    pub fn into_error(self, error: ToolError) -> ToolError {
        let exit_code = self.summary.exit_code;
        self.summary.attach_to(error).detail("exitCode", exit_code)
    }
}

/// The reply of `run_code`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunCodeReply {
    stdout: String,
    stderr: String,
    /// 128 plus the signal number if a signal terminated it. Absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Run time in milliseconds.
    duration: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// `exit` or `signal`; `running` or `cancelled` for a background job.
    ended_by: &'static str,
    /// True when the middle of an output was omitted.
    truncated: bool,
    /// Which of its workspace changes were kept: `all`, or `none` if there were none or `mode` is `discard`.
    committed: &'static str,
    /// The first of the changed paths.
    changes: Vec<RunCodeChange>,
    /// Number of changed paths.
    total_changes: usize,
    /// The id of the change, for `undo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    /// True if `mode` was `discard`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    discarded: bool,
    /// What the sandbox denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied: Option<RunCodeDenial>,
    /// Number of the background job. `stdout` has its output since the last look.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<u64>,
    /// The isolation mechanisms that were active.
    #[serde(rename = "walls")]
    isolation: Vec<String>,
    #[serde(skip)]
    text: CommandText,
}

impl ModelText for RunCodeReply {
    fn model_text(&self, dialect: Dialect) -> String {
        self.text.render(dialect)
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunCodeChange {
    path: String,
    /// `created`, `modified`, `deleted`, `renamed`, `mode` or `link`.
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RunCodeDenial {
    message: String,
    /// Writable directories.
    writable: Vec<&'static str>,
}

impl From<RunOutcome> for RunCodeReply {
    fn from(outcome: RunOutcome) -> Self {
        match outcome {
            RunOutcome::Ended(report) => (*report).into(),
            RunOutcome::Running(job) => job.into(),
        }
    }
}

impl From<RunningJob> for RunCodeReply {
    fn from(job: RunningJob) -> Self {
        Self {
            text: CommandText::running(&job),
            stdout: job.output,
            stderr: String::new(),
            exit_code: None,
            duration: millis(job.duration),
            signal: None,
            ended_by: "running",
            truncated: job.lost > 0,
            committed: KeptChangesExtent::None.name(),
            changes: Vec::new(),
            total_changes: 0,
            change: None,
            discarded: false,
            denied: None,
            job: Some(job.id),
            isolation: Vec::new(),
        }
    }
}

impl From<ProgramReport> for RunCodeReply {
    fn from(report: ProgramReport) -> Self {
        let text = CommandText::ended(&report);
        let summary = report.summary;
        let denial = |SandboxDenial { message, writable, .. }| RunCodeDenial { message, writable: writable.to_vec() };
        Self {
            stdout: summary.stdout,
            stderr: summary.stderr,
            exit_code: Some(summary.exit_code),
            duration: millis(summary.duration),
            signal: summary.signal,
            ended_by: summary.exit_reason.name(),
            truncated: summary.truncated,
            committed: report.committed.name(),
            total_changes: report.changes.len(),
            changes: report.changes.into_iter().take(report.max_listed).map(RunCodeChange::from).collect(),
            change: report.change,
            discarded: report.discarded,
            denied: summary.denied.map(denial),
            job: summary.job,
            isolation: summary.isolation,
            text,
        }
    }
}

impl From<ChangedPath> for RunCodeChange {
    fn from(ChangedPath { path, kind: what, size, .. }: ChangedPath) -> Self {
        let (kind, from) = match what {
            ChangeKind::Created => ("created", None),
            ChangeKind::Modified => ("modified", None),
            ChangeKind::Deleted => ("deleted", None),
            ChangeKind::Renamed { from } => ("renamed", Some(from)),
            ChangeKind::Mode => ("mode", None),
            ChangeKind::Link => ("link", None),
        };
        Self { path, kind, from, size }
    }
}
