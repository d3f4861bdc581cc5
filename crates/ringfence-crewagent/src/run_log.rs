//! Workflow run log: one line per finished call, including rejected ones, in `logs/execution.jsonl` of its state.
//!
//! Readers of the run find it at `@state/logs/execution.jsonl`. Contents are in it as their size and hash; no tool can
//! change it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use ringfence_fs::{PLAIN_FILE_FLAGS, content_id};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{AuditEvent, AuditSink, AuditSinkError, CallRecord, ToolError, sanitize_json};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Texts longer than this are contents, whatever their argument is called.
const MAX_PLAIN_CHARS: usize = 200;

/// Arguments that say where and how, and never what: only their texts are written out.
const PLAIN_ARGUMENTS: [&str; 9] =
    ["path", "from", "to", "pattern", "glob", "operation", "encoding", "ifMatchSha256", "change"];

/// Longest name of an argument that is logged.
const MAX_NAME_CHARS: usize = 64;

/// Most characters of a message that are logged.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Writes the log of one run.
pub struct WorkflowRunLog {
    file: Mutex<File>,
}

impl WorkflowRunLog {
    /// Opens the log below the state directory of a run.
    pub fn open(state: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS);
        Ok(Self { file: Mutex::new(options.open(state.join("logs/execution.jsonl"))?) })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowRunLogLine<'a> {
    ts: String,
    kind: &'static str,
    tool_call_id: &'a str,
    tool_name: &'a str,
    agent_id: Option<&'a str>,
    input: Value,
    output: Value,
    duration_ms: u64,
}

impl AuditSink for WorkflowRunLog {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        let (error, reply, duration) = match record.event {
            AuditEvent::Begin { .. }
            | AuditEvent::Connection { .. }
            | AuditEvent::ChangesDiscarded { .. }
            | AuditEvent::LayerConflict { .. }
            | AuditEvent::TerminalWriter { .. }
            | AuditEvent::UnlistedConnections { .. } => {
                return Ok(());
            }
            AuditEvent::End { outcome, reply, duration } => (outcome.err(), reply, duration),
            AuditEvent::Refused { error, reply, duration } | AuditEvent::Overdue { error, reply, duration } => {
                (Some(error), reply, duration)
            }
        };
        let line = WorkflowRunLogLine {
            ts: humantime::format_rfc3339_millis(record.time).to_string(),
            kind: "tool.exec",
            tool_call_id: record.call_id,
            tool_name: record.tool,
            agent_id: record.session.agent.as_deref(),
            input: redacted_input(record.arguments),
            output: redacted_output(record, error, reply),
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        };
        let line = serde_json::to_string(&line).map_err(|error| AuditSinkError(error.into()))?;
        let text = sanitize_json(&line) + "\n";
        let mut file = self.file.lock();
        // A record in an unlinked file would be lost.
        match file.metadata().map_err(AuditSinkError)?.nlink() {
            0 => Err(AuditSinkError(std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "the log of the run was removed or replaced while it was open",
            ))),
            _ => file.write_all(text.as_bytes()).map_err(AuditSinkError),
        }
    }
}

/// The arguments, with contents as their size and hash.
fn redacted_input(arguments: &str) -> Value {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Ok(arguments) => arguments
            .into_iter()
            .map(|(key, value)| (truncate(&key, MAX_NAME_CHARS), without_contents(&key, value)))
            .collect(),
        Err(_) => content_digest(arguments),
    }
}

fn without_contents(key: &str, value: Value) -> Value {
    match value {
        Value::String(text) if !PLAIN_ARGUMENTS.contains(&key) || text.len() > MAX_PLAIN_CHARS => content_digest(&text),
        Value::Array(_) | Value::Object(_) => content_digest(&value.to_string()),
        plain => plain,
    }
}

fn redacted_output(record: &CallRecord<'_>, error: Option<&ToolError>, reply: &str) -> Value {
    match error {
        None => json!({"ok": true, "reply": content_digest(reply)}),
        Some(error) => {
            json!({"ok": false, "error": {"code": record.session.dialect.error_code(error), "message": truncate(&error.message, MAX_MESSAGE_CHARS)}})
        }
    }
}

fn truncate(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

fn content_digest(text: &str) -> Value {
    json!({"bytes": text.len(), "hash": content_id(text.as_bytes())})
}

impl fmt::Debug for WorkflowRunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkflowRunLog")
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use ringfence_kernel::{
        AuditEvent, AuditSink as _, CallLimits, CallRecord, Dialect, Principal, ReplyForm, ReplyValue, Session,
        SessionMemory, SessionTaint, ToolCatalog,
    };

    use super::WorkflowRunLog;

    #[test]
    fn a_log_that_was_removed_takes_no_line() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("logs")).unwrap();
        let session = Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Crewagent,
            agent: None,
            limits: CallLimits::for_dialect(Dialect::Crewagent),
            catalog: ToolCatalog::default(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        };
        let record = CallRecord {
            time: SystemTime::now(),
            session: &session,
            call_id: "1",
            tool: "fs.read",
            arguments: "{}",
            subject: None,
            accesses: &[],
            event: AuditEvent::End { outcome: Ok(&ReplyValue::default()), reply: "", duration: Duration::ZERO },
        };
        let log = WorkflowRunLog::open(state.path()).unwrap();
        log.record(&record).unwrap();
        std::fs::remove_dir_all(state.path().join("logs")).unwrap();
        assert!(format!("{:?}", log.record(&record).unwrap_err()).contains("removed or replaced"));
    }
}
