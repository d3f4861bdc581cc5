//! The host: the parts that every call uses, and the types of a call and its reply.
//!
//! Not here: making a call (`call.rs`), resuming one (`resume.rs`), and explaining one (`explain.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use crate::approval_queue::ApprovalQueues;
use crate::call_timers::CallTimers;
use crate::worker_slots::WorkerSlots;
use crate::{
    ApprovalInbox, ApprovalStore, Approver, AuditSink, AuditSinkError, Dialect, ErrorKind, Policy, Principal,
    ReplyValue, Session, StoreError, SuspendedCall, ToolError,
};

/// One request of a model: a tool by name, and its arguments as the model wrote them.
#[derive(Clone, Debug)]
pub struct ToolCall {
    /// ID of the call, chosen by the caller.
    pub id: String,
    /// Name of the tool in the session's dialect.
    pub name: String,
    /// JSON text. It is parsed once, by the kernel.
    pub arguments: String,
}

impl ToolCall {
    /// The call that this one means in a session: itself, or one of another tool.
    pub(crate) fn forwarded(self, session: &Session) -> Self {
        match session.catalog.forwarded(&self.name, &self.arguments) {
            Some((name, arguments)) => Self { name, arguments, ..self },
            None => self,
        }
    }
}

/// The reply to the model. An error reply is a reply.
#[derive(Clone, Debug)]
pub struct ToolReply {
    /// ID of the call that this is the reply to.
    pub call_id: String,
    /// The structured content, or the error.
    pub outcome: Result<ReplyValue, ToolError>,
    /// For the model, in the words of the session's dialect.
    pub text: String,
    /// The call waits for a person, and can be brought back.
    pub suspended: Option<SuspendedCall>,
}

impl ToolReply {
    /// The reply to a call that failed.
    pub fn from_error(call_id: &str, error: ToolError, dialect: Dialect) -> Self {
        let text = dialect.render_error(&error);
        Self { call_id: call_id.to_owned(), outcome: Err(error), text, suspended: None }
    }

    /// The whole reply as a value; `None` where the dialect replies in text.
    pub fn to_envelope(&self, dialect: Dialect) -> Option<Value> {
        match &self.outcome {
            Ok(value) => value.to_envelope(),
            Err(error) => dialect.error_envelope(error),
        }
    }

    /// The kind of error; `None` for a success.
    pub fn error_kind(&self) -> Option<ErrorKind> {
        self.outcome.as_ref().err().map(|error| error.kind)
    }
}

/// An error that ends a run: without its cause fixed no call can be made safely.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A record could not be written, so the call did not run.
    #[error(transparent)]
    Audit(#[from] AuditSinkError),
    /// The world may have changed, and the trace does not say how it ended.
    #[error("the call ran, but its end could not be recorded")]
    EndUnrecorded(#[source] AuditSinkError),
    /// The state store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No random bytes for an ID or a token.
    #[error("the system's random number generator failed")]
    Entropy(#[from] getrandom::Error),
}

/// The parts of a host.
#[derive(Debug)]
pub struct HostConfig {
    /// The policy that judges every plan.
    pub policy: Box<dyn Policy>,
    /// The approver that requests are sent to first.
    pub approver: Box<dyn Approver>,
    /// The sink for audit records.
    pub audit: Box<dyn AuditSink>,
    /// The store for approval requests, answers and grants.
    pub store: Box<dyn ApprovalStore>,
    /// Most calls that run concurrently; further ones wait for a worker or their deadline. A principal has at most
    /// three quarters of the workers.
    pub workers: usize,
}

/// Everything that stands between a call and the world.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) config: Arc<HostConfig>,
    pub(crate) workers: Arc<WorkerLimits>,
    pub(crate) timers: Arc<CallTimers>,
    /// What each mount is, by its alias. Nothing can be granted on others.
    pub(crate) mount_identities: Arc<BTreeMap<String, String>>,
    pub(crate) approval_queues: Arc<ApprovalQueues>,
}

impl Host {
    /// A host without grants, see [`Host::with_grants`].
    pub fn new(config: HostConfig) -> Self {
        Self {
            workers: Arc::new(WorkerLimits::new(config.workers)),
            timers: Arc::default(),
            config: Arc::new(config),
            mount_identities: Arc::default(),
            approval_queues: Arc::default(),
        }
    }

    /// Enables grants on these mounts: for each alias, a unique name of the directory, so that a grant is about the
    /// directory and not about the next one with the alias. For an MCP tool the alias is `mcp/server/tool`, and the
    /// name is a digest of its definition.
    #[must_use]
    pub fn with_grants(self, directories: BTreeMap<String, String>) -> Self {
        Self { mount_identities: Arc::new(directories), ..self }
    }

    /// The approval inbox of `by`.
    pub fn inbox<'a>(&'a self, by: &'a Principal) -> ApprovalInbox<'a> {
        ApprovalInbox { store: self.config.store.as_ref(), principal: by }
    }

    /// Withdraws the requests of suspended calls of a session that ended: their answers would not be used.
    pub fn withdraw_requests(&self, session: &str) -> Result<(), StoreError> {
        let store = self.config.store.as_ref();
        let pending = store.pending(SystemTime::now())?.into_iter();
        pending
            .filter(|request| request.suspended && request.session == session)
            .try_for_each(|request| store.close_request(&request.id))
    }
}

/// Limits on calls that work at the same time. Further ones wait for a worker or for their deadline.
#[derive(Debug)]
pub(crate) struct WorkerLimits {
    pub(crate) calls: WorkerSlots,
    /// For calls that stop by themselves, such as programs. Those may take minutes, and the others must not wait for them.
    pub(crate) programs: WorkerSlots,
    /// For calls that wait for a background job. They only wait, so there are more of them, and no program waits for one.
    pub(crate) job_waits: WorkerSlots,
}

impl WorkerLimits {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            calls: WorkerSlots::new(workers),
            programs: WorkerSlots::new(workers),
            job_waits: WorkerSlots::new(workers.saturating_mul(4)),
        }
    }
}
