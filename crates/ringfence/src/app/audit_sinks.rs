//! Audit sinks: one log line per call with tool, path, result and duration.
//!
//! Paths are the workspace's own, contents are never written, and every line is one JSON object, so that no name
//! can forge a second one.

use std::fmt;
use std::io::Write;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{AuditEvent, AuditSink, AuditSinkError, CallRecord, sanitize_json};
use serde::Serialize;

/// Writes a line for each finished call.
pub struct CallLog {
    writer: Mutex<Box<dyn Write + Send>>,
}

impl CallLog {
    pub fn new(to: Box<dyn Write + Send>) -> Self {
        Self { writer: Mutex::new(to) }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallLogLine<'a> {
    ts: String,
    session: &'a str,
    call: &'a str,
    tool: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    ok: bool,
    duration_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

impl AuditSink for CallLog {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        let (error, duration) = match record.event {
            AuditEvent::Begin { .. }
            | AuditEvent::Connection { .. }
            | AuditEvent::ChangesDiscarded { .. }
            | AuditEvent::LayerConflict { .. }
            | AuditEvent::TerminalWriter { .. }
            | AuditEvent::UnlistedConnections { .. } => {
                return Ok(());
            }
            AuditEvent::End { outcome, duration, .. } => (outcome.err(), duration),
            AuditEvent::Refused { error, duration, .. } | AuditEvent::Overdue { error, duration, .. } => {
                (Some(error), duration)
            }
        };
        let line = CallLogLine {
            ts: humantime::format_rfc3339_millis(record.time).to_string(),
            session: &record.session.id,
            call: record.call_id,
            tool: record.tool,
            path: record.accesses.first().map(|access| access.resource.display_path.as_str()).or(record.subject),
            ok: error.is_none(),
            duration_ms: (duration.as_secs_f64() * 1e6).round() / 1e3,
            error: error.map(|error| record.session.dialect.error_code(error)),
        };
        let line = serde_json::to_string(&line).map_err(|error| AuditSinkError(error.into()))?;
        let text = sanitize_json(&line) + "\n";
        let mut to = self.writer.lock();
        to.write_all(text.as_bytes()).and_then(|()| to.flush()).map_err(AuditSinkError)
    }
}

/// Several sinks for every record: it counts as kept when all of them have it.
#[derive(Debug)]
pub struct FanoutSink(pub Vec<Box<dyn AuditSink>>);

impl AuditSink for FanoutSink {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        self.0.iter().try_for_each(|sink| sink.record(record))
    }
}

impl fmt::Debug for CallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallLog")
    }
}
