//! Audit events of a call, and the sink that records them.
//!
//! Records are made by the kernel and never by tools. They have the accesses and the outcome of a call, never contents.
//! A sink that cannot take a record stops the call: no record, no run.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::{Approval, PolicyLayer, Principal, ReplyValue, ResourceAccess, Session, ToolError};

/// The record of one event of one call.
#[derive(Debug)]
pub struct CallRecord<'a> {
    /// The time of the event.
    pub time: SystemTime,
    /// The calling session.
    pub session: &'a Session,
    /// ID of the call, as the caller chose it.
    pub call_id: &'a str,
    /// Name of the tool, as the caller spelled it.
    pub tool: &'a str,
    /// As the caller wrote them. A sink keeps their size and a keyed hash, never the text.
    pub arguments: &'a str,
    /// The subject of a call that never got a plan.
    pub subject: Option<&'a str>,
    /// Accesses of the call, as far as it was planned.
    pub accesses: &'a [ResourceAccess],
    /// The event.
    pub event: AuditEvent<'a>,
}

/// The event of a record.
#[derive(Debug)]
pub enum AuditEvent<'a> {
    /// It is about to run; `rule` allowed it, or an approval that `rule` required. A non-blocking attempt that would
    /// block is begun once more.
    Begin {
        /// Name of the deciding rule.
        rule: &'a str,
        /// Its layer.
        layer: PolicyLayer,
        /// The approval, where one was required.
        approved: Option<&'a Approval>,
        /// ID of the change, should the call make one.
        change: &'a str,
    },
    /// While it runs, it is about to connect to a host or another resource; or may not.
    Connection {
        /// The refusal; `None` for a connection that is made.
        refused: Option<&'a ToolError>,
        /// The approval, where the connection itself required one.
        approved: Option<&'a Approval>,
    },
    /// After a run: changes that it left and that are not kept, and why.
    ChangesDiscarded {
        /// The reason.
        error: &'a ToolError,
    },
    /// While it runs, it and another process changed the same resource, or something of the workspace was hidden from it: the
    /// error says which.
    LayerConflict {
        /// What happened.
        error: &'a ToolError,
    },
    /// While its program runs on a terminal, a person begins to type there. The former writer only views from then on.
    TerminalWriter {
        /// The person.
        by: &'a Principal,
    },
    /// The number of further connections without a record each: before the end of the call, or to one host in a minute.
    UnlistedConnections {
        /// Number of connections that were made.
        made: u64,
        /// Number of connections that were refused.
        refused: u64,
    },
    /// It ran and ended.
    End {
        /// The structured content of the reply, or the error.
        outcome: Result<&'a ReplyValue, &'a ToolError>,
        /// The text of the reply to the caller.
        reply: &'a str,
        /// Time since the call was made.
        duration: Duration,
    },
    /// It never ran.
    Refused {
        /// The refusal.
        error: &'a ToolError,
        /// The text of the reply to the caller.
        reply: &'a str,
        /// Time since the call was made.
        duration: Duration,
    },
    /// The caller got the reply that the outcome is unknown; a late `End` follows.
    Overdue {
        /// The error in that reply.
        error: &'a ToolError,
        /// The text of the reply to the caller.
        reply: &'a str,
        /// Time since the call was made.
        duration: Duration,
    },
}

/// The audit log cannot be written; nothing may run without it.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to the audit log")]
pub struct AuditSinkError(#[source] pub std::io::Error);

/// Takes records.
pub trait AuditSink: Send + Sync + fmt::Debug {
    /// Records an event durably. An error stops the call.
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError>;
}

/// Records nothing.
#[derive(Clone, Copy, Debug)]
pub struct NullAuditSink;

impl AuditSink for NullAuditSink {
    fn record(&self, _: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        Ok(())
    }
}
