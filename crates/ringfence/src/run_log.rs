//! The log of a run: one line for each finished call, rejected ones too, in `logs/execution.jsonl` of its state.
//!
//! Whoever follows the run reads it as `@state/logs/execution.jsonl`. Contents stand in it as their size and hash; no
//! tool can change it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ringfence_fs::{PLAIN_FILE_FLAGS, content_id};
use ringfence_kernel::{AuditLost, AuditSink, Moment, Record, ToolError, visible_json};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Texts longer than this are contents, whatever their argument is called.
const LONGEST_PLAIN: usize = 200;

/// Arguments that say where and how, and never what: only their texts are written out.
const PLAIN: [&str; 9] = ["path", "from", "to", "pattern", "glob", "operation", "encoding", "ifMatchSha256", "change"];

/// A longer name of an argument is no name of ours.
const LONGEST_NAME: usize = 64;

/// More of a message than this helps nobody.
const LONGEST_MESSAGE: usize = 1000;

/// Writes the log of one run.
pub struct RunLog {
    file: Mutex<File>,
}

impl RunLog {
    /// Opens the log below the state directory of a run.
    pub fn open(state: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS);
        Ok(Self { file: Mutex::new(options.open(state.join("logs/execution.jsonl"))?) })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    ts: String,
    kind: &'static str,
    tool_call_id: &'a str,
    tool_name: &'a str,
    agent_id: Option<&'a str>,
    input: Value,
    output: Value,
    duration_ms: u64,
}

impl AuditSink for RunLog {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        let (error, reply, duration) = match record.moment {
            Moment::Begin { .. } | Moment::Reached { .. } | Moment::NotKept { .. } | Moment::ReachedUnlisted { .. } => {
                return Ok(());
            }
            Moment::End { error, reply, duration } => (error, reply, duration),
            Moment::Refused { error, reply, duration } | Moment::Overdue { error, reply, duration } => {
                (Some(error), reply, duration)
            }
        };
        let line = Line {
            ts: humantime::format_rfc3339_millis(record.at).to_string(),
            kind: "tool.exec",
            tool_call_id: record.call_id,
            tool_name: record.tool,
            agent_id: record.session.agent.as_deref(),
            input: input(record.arguments),
            output: output(record, error, reply),
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        };
        let line = serde_json::to_string(&line).map_err(|error| AuditLost(error.into()))?;
        let text = visible_json(&line) + "\n";
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // What is written to a file that nobody finds is not recorded.
        match file.metadata().map_err(AuditLost)?.nlink() {
            0 => Err(AuditLost(std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "the log of the run was removed or replaced while it was open",
            ))),
            _ => file.write_all(text.as_bytes()).map_err(AuditLost),
        }
    }
}

/// The arguments, with contents as their size and hash.
fn input(arguments: &str) -> Value {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Ok(arguments) => arguments
            .into_iter()
            .map(|(key, value)| (clipped(&key, LONGEST_NAME), without_contents(&key, value)))
            .collect(),
        Err(_) => sum(arguments),
    }
}

fn without_contents(key: &str, value: Value) -> Value {
    match value {
        Value::String(text) if !PLAIN.contains(&key) || text.len() > LONGEST_PLAIN => sum(&text),
        Value::Array(_) | Value::Object(_) => sum(&value.to_string()),
        plain => plain,
    }
}

fn output(record: &Record<'_>, error: Option<&ToolError>, reply: &str) -> Value {
    match error {
        None => json!({"ok": true, "reply": sum(reply)}),
        Some(error) => {
            json!({"ok": false, "error": {"code": record.session.dialect.error_name(error), "message": clipped(&error.message, LONGEST_MESSAGE)}})
        }
    }
}

fn clipped(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

fn sum(text: &str) -> Value {
    json!({"bytes": text.len(), "hash": content_id(text.as_bytes())})
}

impl fmt::Debug for RunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunLog")
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use ringfence_kernel::{AuditSink as _, Bits, Catalog, Dialect, Limits, Moment, Principal, Record, Session};

    use super::RunLog;

    #[test]
    fn a_log_that_was_removed_takes_no_line() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("logs")).unwrap();
        let session = Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Crewagent,
            agent: None,
            limits: Limits::of(Dialect::Crewagent),
            catalog: Catalog::default(),
            bits: Bits::default(),
        };
        let record = Record {
            at: SystemTime::now(),
            session: &session,
            call_id: "1",
            tool: "fs.read",
            arguments: "{}",
            subject: None,
            touches: &[],
            moment: Moment::End { error: None, reply: "", duration: Duration::ZERO },
        };
        let log = RunLog::open(state.path()).unwrap();
        log.record(&record).unwrap();
        std::fs::remove_dir_all(state.path().join("logs")).unwrap();
        assert!(format!("{:?}", log.record(&record).unwrap_err()).contains("removed or replaced"));
    }
}
