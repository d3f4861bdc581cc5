//! Text of a command's reply: what it printed, then one line in brackets.
//!
//! ```text
//! [exit 3, 1.2 s, changed 2 files (c-1906185f): src/a.rs Cargo.lock]
//! ```
//!
//! The first quarter and the last three quarters of a long output are shown, and the whole is kept for the session. If changes were not kept, the reply is an error
//! that begins with them, and the output follows.
//!
//! Not here: that error's first line (`report.rs`).

use std::fmt::Write as _;
use std::time::Duration;

use ringfence_kernel::{CallContext, ChangedPath, Dialect, MODEL_TEXT_BYTES, short_change_id};

use crate::job::ExitReason;
use crate::report::{JobExplanation, ProgramReport, RunSummary, RunningJob};

/// Most bytes of output in a reply: the rest is for the lines around it.
pub(crate) const MAX_OUTPUT_BYTES: usize = MODEL_TEXT_BYTES - 2000;

/// Paths that the last line names.
const MAX_PATHS: usize = 10;

/// The text of a reply.
#[derive(Debug)]
pub(crate) enum CommandText {
    Ended(String),
    Running(RunningText),
}

/// The text of a job that goes on, whose tools each dialect names in its own way.
#[derive(Debug)]
pub(crate) struct RunningText {
    printed: String,
    id: u64,
    duration: Duration,
    is_start: bool,
    explanation: Option<JobExplanation>,
}

impl CommandText {
    pub(crate) fn ended(report: &ProgramReport) -> Self {
        let summary = &report.summary;
        let line = exit_line(summary) + &list_changes(report.change.as_deref(), &report.changes);
        Self::Ended(end_text(summary, &line))
    }

    pub(crate) fn running(job: &RunningJob) -> Self {
        let mut printed = String::new();
        push_output(&mut printed, &job.printed, job.lost);
        let &RunningJob { id, duration, is_start, explanation, .. } = job;
        Self::Running(RunningText { printed, id, duration, is_start, explanation })
    }

    pub(crate) fn render(&self, dialect: Dialect) -> String {
        match self {
            Self::Ended(text) => text.clone(),
            Self::Running(running) => running.render(dialect),
        }
    }
}

impl RunningText {
    fn render(&self, dialect: Dialect) -> String {
        let Self { printed, id, .. } = self;
        let (job, advice) = match dialect {
            Dialect::Claude => (format!("task_id {id}"), "TaskOutput has its output, TaskStop stops it"),
            Dialect::Codex => (format!("session_id {id}"), "write_stdin has its output, and stops it with \"\\u0003\""),
            Dialect::Gemini => {
                (format!("pid {id}"), "read_background_output has its output, stop_background_command stops it")
            }
            Dialect::Standard | Dialect::Miniclaw | Dialect::Crewagent => {
                (format!("job {id}"), "job_output has its output, stop_job stops it")
            }
        };
        if !self.is_start {
            return format!("{printed}[{job} is running, {}]", seconds(self.duration));
        }
        let (files, ports) = match self.explanation {
            Some(JobExplanation { shares_loopback }) => (
                "; files that it changes reach the workspace when it has ended by itself and its end was read",
                if shares_loopback { "; commands reach its ports on 127.0.0.1" } else { "" },
            ),
            None => ("", ""),
        };
        format!("{printed}[running in the background: {job}; {advice}{files}{ports}]")
    }
}

/// Everything of a program behind the message that names the changes that were not kept.
pub(crate) fn partly_kept_text(summary: &RunSummary, change: Option<&str>, kept: &[ChangedPath]) -> String {
    end_text(summary, &(exit_line(summary) + &list_changes(change, kept)))
}

/// Everything of a program behind the message of an error.
pub(crate) fn failed_text(summary: &RunSummary) -> String {
    match summary.exit_reason {
        ExitReason::Exit | ExitReason::Signal => end_text(summary, &exit_line(summary)),
        _ => summary.printed.trim_end_matches('\n').to_owned(),
    }
}

/// An output in this number of bytes. The whole of a longer one is kept, where the call has a session.
pub(crate) fn bound_output(output: String, most: usize, cx: &CallContext<'_>) -> String {
    match cx.memory() {
        Some(memory) => memory.outputs.bounded(output, most),
        None => output[output.ceil_char_boundary(output.len().saturating_sub(most))..].to_owned(),
    }
}

fn end_text(summary: &RunSummary, line: &str) -> String {
    let mut text = String::new();
    if let Some(gone) = summary.directory.as_ref().and_then(|directory| directory.gone.as_ref()) {
        let _ = writeln!(text, "[the directory `{gone}` is gone; this ran in the workspace]");
    }
    push_output(&mut text, &summary.printed, summary.lost);
    let _ = write!(text, "[{line}]");
    text
}

fn push_output(text: &mut String, output: &str, lost: u64) {
    if lost > 0 {
        let _ = writeln!(text, "[{lost} earlier bytes were dropped]");
    }
    let output = output.trim_end_matches('\n');
    text.push_str(output);
    if !output.is_empty() {
        text.push('\n');
    }
}

fn exit_line(summary: &RunSummary) -> String {
    let mut line = match (summary.exit_reason, summary.signal) {
        (ExitReason::Cancelled, _) => "stopped".to_owned(),
        (_, Some(signal)) => format!("exit {} (signal {signal})", summary.exit_code),
        (_, None) => format!("exit {}", summary.exit_code),
    };
    if summary.duration >= Duration::from_secs(1) {
        let _ = write!(line, ", {}", seconds(summary.duration));
    }
    if let Some(directory) = summary.directory.as_ref().map(|directory| &directory.now).filter(|now| !now.is_empty()) {
        let _ = write!(line, ", now in {directory}");
    }
    if let Some(denied) = &summary.denied {
        let _ = write!(line, "; {}", denied.message);
    }
    line
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The part of the last line that names changes: those of a committed change, or discarded ones.
fn list_changes(change: Option<&str>, changes: &[ChangedPath]) -> String {
    let (count, paths) = (changes.len(), list_paths(changes));
    let unit = if count == 1 { "file" } else { "files" };
    match change {
        _ if count == 0 => String::new(),
        Some(change) => format!(", changed {count} {unit} ({}): {paths}", short_change_id(change)),
        None => format!(", discarded changes of {count} {unit}: {paths}"),
    }
}

fn list_paths(changes: &[ChangedPath]) -> String {
    let first: Vec<&str> = changes.iter().take(MAX_PATHS).map(|change| change.path.as_str()).collect();
    match changes.len().saturating_sub(MAX_PATHS) {
        0 => first.join(" "),
        more => format!("{} and {more} more", first.join(" ")),
    }
}
