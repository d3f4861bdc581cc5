//! Audit events of a call, and the sink that records them.
//!
//! Records are made by the road and never by tools. They say what was touched and how it ended, never contents.
//! A sink that cannot take a record stops the call: no record, no run.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::{Approval, PolicyLayer, ResourceAccess, Session, ToolError};

/// One moment of one call.
#[derive(Debug)]
pub struct CallRecord<'a> {
    pub time: SystemTime,
    pub session: &'a Session,
    pub call_id: &'a str,
    pub tool: &'a str,
    /// As the caller wrote them. A sink keeps their size and a keyed hash, never the text.
    pub arguments: &'a str,
    /// What the call is about, where it never got as far as a plan.
    pub subject: Option<&'a str>,
    /// What the call touches, as far as it was planned.
    pub accesses: &'a [ResourceAccess],
    pub event: AuditEvent<'a>,
}

/// Which moment it is.
#[derive(Debug)]
pub enum AuditEvent<'a> {
    /// It is about to run; `rule` let it, or somebody whom `rule` wanted to be asked. A quick attempt that turned out to have to wait is begun once more.
    Begin { rule: &'a str, layer: PolicyLayer, approved: Option<&'a Approval>, change: &'a str },
    /// While it runs, it is about to reach what it touches, such as a host that its program asks for; or may not.
    Connection { refused: Option<&'a ToolError> },
    /// After a run: changes that it left and that are not kept, and why.
    ChangesDiscarded { error: &'a ToolError },
    /// Before its end: so many more of those, without a record each.
    UnlistedConnections { made: u64, refused: u64 },
    /// It ran, and this is how it ended.
    End { error: Option<&'a ToolError>, reply: &'a str, duration: Duration },
    /// It never ran.
    Refused { error: &'a ToolError, reply: &'a str, duration: Duration },
    /// The caller was told that the end is not known; a late `End` follows.
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
