//! Audit events of a call, and the sink that records them.
//!
//! Records are made by the kernel and never by tools. They have the accesses and the outcome of a call, never contents.
//! A sink that cannot take a record stops the call: no record, no run.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::{Approval, PolicyLayer, ResourceAccess, Session, ToolError};

/// The record of one event of one call.
#[derive(Debug)]
pub struct CallRecord<'a> {
    pub time: SystemTime,
    pub session: &'a Session,
    pub call_id: &'a str,
    pub tool: &'a str,
    /// As the caller wrote them. A sink keeps their size and a keyed hash, never the text.
    pub arguments: &'a str,
    /// The subject of a call that never got a plan.
    pub subject: Option<&'a str>,
    /// Accesses of the call, as far as it was planned.
    pub accesses: &'a [ResourceAccess],
    pub event: AuditEvent<'a>,
}

/// The event of a record.
#[derive(Debug)]
pub enum AuditEvent<'a> {
    /// It is about to run; `rule` allowed it, or an approval that `rule` required. A non-blocking attempt that would
    /// block is begun once more.
    Begin { rule: &'a str, layer: PolicyLayer, approved: Option<&'a Approval>, change: &'a str },
    /// While it runs, it is about to connect to a host or another resource; or may not.
    Connection { refused: Option<&'a ToolError> },
    /// After a run: changes that it left and that are not kept, and why.
    ChangesDiscarded { error: &'a ToolError },
    /// Before its end: the number of further connections without a record each.
    UnlistedConnections { made: u64, refused: u64 },
    /// It ran, and this is how it ended.
    End { error: Option<&'a ToolError>, reply: &'a str, duration: Duration },
    /// It never ran.
    Refused { error: &'a ToolError, reply: &'a str, duration: Duration },
    /// The caller got the reply that the outcome is unknown; a late `End` follows.
    Overdue { error: &'a ToolError, reply: &'a str, duration: Duration },
}

/// The trace was lost; nothing may run without it.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to the audit log")]
pub struct AuditSinkError(#[source] pub std::io::Error);

/// Takes records.
pub trait AuditSink: Send + Sync + fmt::Debug {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError>;
}

/// Keeps no trace.
#[derive(Clone, Copy, Debug)]
pub struct NullAuditSink;

impl AuditSink for NullAuditSink {
    fn record(&self, _: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        Ok(())
    }
}
