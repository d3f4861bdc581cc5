//! One line for each call: what was called, on which path, how it ended and how long it took.
//!
//! Paths are the workspace's own, contents are never written, and every line is one JSON object, so that no name
//! can forge a second one.

use std::fmt;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use ringfence_kernel::{AuditLost, AuditSink, Moment, Record, visible_json};
use serde::Serialize;

/// Writes a line for each finished call.
pub struct LogLines {
    to: Mutex<Box<dyn Write + Send>>,
}

impl LogLines {
    pub fn new(to: Box<dyn Write + Send>) -> Self {
        Self { to: Mutex::new(to) }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
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

impl AuditSink for LogLines {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        let (error, duration) = match record.moment {
            Moment::Begin { .. } | Moment::Reached { .. } | Moment::NotKept { .. } | Moment::ReachedUnlisted { .. } => {
                return Ok(());
            }
            Moment::End { error, duration, .. } => (error, duration),
            Moment::Refused { error, duration, .. } | Moment::Overdue { error, duration, .. } => {
                (Some(error), duration)
            }
        };
        let line = Line {
            ts: humantime::format_rfc3339_millis(record.at).to_string(),
            session: &record.session.id,
            call: record.call_id,
            tool: record.tool,
            path: record.touches.first().map(|touch| touch.place.shown.as_str()).or(record.subject),
            ok: error.is_none(),
            duration_ms: (duration.as_secs_f64() * 1e6).round() / 1e3,
            error: error.map(|error| record.session.dialect.error_name(error)),
        };
        let line = serde_json::to_string(&line).map_err(|error| AuditLost(error.into()))?;
        let text = visible_json(&line) + "\n";
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        to.write_all(text.as_bytes()).and_then(|()| to.flush()).map_err(AuditLost)
    }
}

/// Several sinks for every record: it counts as kept when all of them have it.
#[derive(Debug)]
pub struct All(pub Vec<Box<dyn AuditSink>>);

impl AuditSink for All {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        self.0.iter().try_for_each(|sink| sink.record(record))
    }
}

impl fmt::Debug for LogLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogLines")
    }
}
