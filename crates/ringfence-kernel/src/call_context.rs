//! Call context: the limits, the commit state and the kernel services that a tool has while it plans and runs.
//!
//! Not here: the right to run (`ticket.rs`), and the services themselves (`invocation.rs`, `explain.rs`).

use std::cell::{Cell, RefCell};

use crate::approval::Approval;
use crate::commit_state::CallCommitState;
use crate::error::{ErrorKind, ToolError};
use crate::limits::CallLimits;
use crate::pending_connection::PendingConnection;
use crate::preview::Preview;
use crate::principal::Principal;
use crate::resource::{PolicyResource, ResourceAccess};
use crate::session_memory::SessionMemory;
use crate::taint::Taint;
use crate::verdict::{PolicyRevision, Verdict};

/// The context of a call while it is planned and run.
#[derive(Debug)]
pub struct CallContext<'a> {
    /// The limits of the session.
    pub limits: &'a CallLimits,
    /// Whether the call may block now.
    pub io_mode: IoMode,
    origin: Option<&'a CallOrigin>,
    commit_state: &'a CallCommitState,
    blocked: Cell<bool>,
    services: Option<&'a dyn CallServices>,
    lookups: RefCell<Vec<Box<dyn LookupTarget>>>,
}

impl<'a> CallContext<'a> {
    /// A context without origin and services: every decision is an ask, progress is dropped.
    pub fn new(limits: &'a CallLimits, io_mode: IoMode, commit_state: &'a CallCommitState) -> Self {
        let (blocked, lookups) = (Cell::new(false), RefCell::default());
        Self { limits, io_mode, origin: None, commit_state, blocked, services: None, lookups }
    }

    pub(crate) fn with_services(self, services: &'a dyn CallServices) -> Self {
        Self { services: Some(services), ..self }
    }

    /// The decision about an access that the call discovers, such as a file in a directory that is searched.
    pub fn evaluate(&self, access: &ResourceAccess) -> Verdict {
        self.services.map_or_else(Verdict::unknown_effect, |services| services.evaluate(access))
    }

    /// The revision of the decisions about this call: while it is the same, `evaluate` decides the same. `None` where that
    /// is not known.
    pub fn policy_revision(&self) -> Option<PolicyRevision> {
        self.services.and_then(|services| services.policy_revision())
    }

    /// Adds taint to the session. Only the tool knows whether the content it saw was untrusted.
    pub fn add_taint(&self, taint: Taint) {
        if let Some(services) = self.services {
            services.add_taint(taint);
        }
    }

    /// Reports progress to the listener, if there is one.
    pub fn report_progress(&self, progress: &ProgressUpdate<'_>) {
        if let Some(services) = self.services {
            services.report_progress(progress);
        }
    }

    /// Records that the call reaches something while it runs, or wanted to and may not. No record, no connection.
    pub fn record_connection(&self, access: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), ToolError> {
        self.services.map_or(Ok(()), |services| services.record_connection(access, refused))
    }

    /// The same for a connection that was decided one by one: with the approval if it is made, or the refusal. The first
    /// one to a host is recorded at once, and the further ones are counted.
    pub(crate) fn record_judged_connection(
        &self,
        access: &ResourceAccess,
        decision: Result<Option<&Approval>, &ToolError>,
    ) -> Result<(), ToolError> {
        self.services.map_or(Ok(()), |services| services.record_judged_connection(access, decision))
    }

    /// Records that the program of the call and another process changed the same resource, or another event of its layer.
    pub fn record_layer_conflict(&self, access: &ResourceAccess, error: &ToolError) -> Result<(), ToolError> {
        self.services.map_or(Ok(()), |services| services.record_layer_conflict(access, error))
    }

    /// Records that a person begins to type at the terminal of the call's program. No record, no typing.
    pub fn record_terminal_writer(&self, by: &Principal) -> Result<(), ToolError> {
        self.services.map_or(Ok(()), |services| services.record_terminal_writer(by))
    }

    /// Records the counts of connections whose minute is over.
    pub(crate) fn flush_connection_counts(&self) {
        if let Some(services) = self.services {
            services.flush_connection_counts();
        }
    }

    /// Decides about a connection, and where it may be made then, adds its taint in the same step.
    pub(crate) fn authorize_connection(
        &self,
        access: &ResourceAccess,
        may_connect: &dyn Fn(&Verdict) -> bool,
    ) -> Verdict {
        self.services
            .map_or_else(Verdict::unknown_effect, |services| services.authorize_connection(access, may_connect))
    }

    /// Opens the question about a connection.
    pub(crate) fn ask_connection(
        &self,
        access: &ResourceAccess,
        preview: Option<&Preview>,
        verdict: &Verdict,
    ) -> PendingConnection {
        let refused = || {
            let message = "not approved: approval cannot be requested here";
            PendingConnection::refused(ToolError::new(ErrorKind::ApprovalDenied, message))
        };
        self.services.map_or_else(refused, |services| services.ask_connection(access, preview, verdict))
    }

    /// The memory of the session; `None` where the host works for itself.
    pub fn memory(&self) -> Option<&'a SessionMemory> {
        self.services.map(|services| services.memory())
    }

    /// Sets the origin of the call.
    #[must_use]
    pub fn with_origin(self, origin: &'a CallOrigin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// The origin of the call. `None` where the host works for itself.
    pub fn origin(&self) -> Option<&'a CallOrigin> {
        self.origin
    }

    /// Fails once the call is cancelled or overdue.
    pub fn check(&self) -> Result<(), ToolError> {
        self.commit_state.check()
    }

    /// The error of a non-blocking attempt that would block. The kernel then starts the call again on a worker, and
    /// never shows this error.
    pub fn would_block(&self) -> ToolError {
        self.blocked.set(true);
        ToolError::new(ErrorKind::Internal, "a non-blocking call had to wait")
    }

    /// Says what the call is about, as replies spell it, so that a call that fails early leaves a trace with a name.
    pub fn set_subject(&self, shown: &str) {
        self.commit_state.set_subject(shown);
    }

    /// Sets the target of a lookup, before the lookup.
    pub fn add_lookup(&self, target: impl LookupTarget + 'static) {
        self.lookups.borrow_mut().push(Box::new(target));
    }

    pub(crate) fn lookup_resources(&self) -> Vec<PolicyResource> {
        self.lookups.borrow().iter().flat_map(|target| target.resources()).collect()
    }

    pub(crate) fn has_blocked(&self) -> bool {
        self.blocked.get()
    }

    /// The commit state, for threads that help with the call.
    pub fn commit_state(&self) -> &CallCommitState {
        self.commit_state
    }
}

/// Whether work may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// Only what the kernel can answer from memory: the caller's own thread does it.
    NonBlocking,
    /// A worker thread does it, and may wait.
    Blocking,
}

/// The origin of a call, for tools that keep records of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOrigin {
    /// ID of the session.
    pub session: String,
    /// ID of the call.
    pub call: String,
    /// Name of the tool.
    pub tool: String,
    /// Name of the principal.
    pub principal: String,
    /// The principal may reverse changes of any session: a person.
    pub may_undo: bool,
}

/// The target of a lookup. Where that fails, its resource decides whether the caller may know why.
pub trait LookupTarget: std::fmt::Debug {
    /// The resource itself, then those that it leads to as a link.
    fn resources(&self) -> Vec<PolicyResource>;
}

/// Kernel services for a running call.
pub(crate) trait CallServices: std::fmt::Debug {
    fn evaluate(&self, access: &ResourceAccess) -> Verdict;
    fn policy_revision(&self) -> Option<PolicyRevision>;
    fn add_taint(&self, taint: Taint);
    fn memory(&self) -> &SessionMemory;
    fn report_progress(&self, progress: &ProgressUpdate<'_>);
    fn record_connection(&self, access: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), ToolError>;
    fn record_judged_connection(
        &self,
        access: &ResourceAccess,
        decision: Result<Option<&Approval>, &ToolError>,
    ) -> Result<(), ToolError>;
    fn record_layer_conflict(&self, access: &ResourceAccess, error: &ToolError) -> Result<(), ToolError>;
    fn record_terminal_writer(&self, by: &Principal) -> Result<(), ToolError>;
    fn flush_connection_counts(&self);
    fn authorize_connection(&self, access: &ResourceAccess, may_connect: &dyn Fn(&Verdict) -> bool) -> Verdict;
    fn ask_connection(
        &self,
        access: &ResourceAccess,
        preview: Option<&Preview>,
        verdict: &Verdict,
    ) -> PendingConnection;
}

/// Progress of a running call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressUpdate<'a> {
    /// The output stream: `stdout`, `stderr`.
    pub stream: &'static str,
    /// A piece of output, of any length and with any line breaks.
    pub text: &'a str,
}

/// Listener for the progress of a call.
pub trait ProgressListener: Send + Sync + std::fmt::Debug {
    /// Takes one update. Called on the thread of the call, so it must not block.
    fn on_progress(&self, progress: &ProgressUpdate<'_>);
}
