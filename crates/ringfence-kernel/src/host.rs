//! The host: the entry point of every tool call.
//!
//! A call never outlives its deadline for its caller, whatever the file system does; see `CommitState` for what that means
//! for the work itself.
//!
//! Not here: the steps of a call and their order (`call_state.rs`), and suspended calls (`resume.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::approval_queue::ApprovalQueues;
use crate::connection_log::ConnectionLog;
use crate::dialect::ReplyNotes;
use crate::explain::{PolicyExplanation, explain};
use crate::invocation::Invocation;
use crate::tool_binding::ErasedTool;
use crate::worker::WorkerLimits;
use crate::{
    ApprovalInbox, ApprovalStore, Approver, AuditSink, AuditSinkError, AuthScope, CallOrigin, ErrorKind, Policy,
    Principal, ProgressListener, Session, StoreError, SuspendedCall, Taint, ToolError,
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

/// The reply to the model. An error reply is a reply.
#[derive(Clone, Debug)]
pub struct ToolReply {
    /// ID of the call that this is the reply to.
    pub call_id: String,
    /// In the words of the session's dialect.
    pub text: String,
    /// The kind of error; `None` for a success.
    pub error: Option<ErrorKind>,
    /// The call waits for a person, and can be brought back.
    pub suspended: Option<SuspendedCall>,
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
    /// The approval store failed.
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
    /// Most calls that run concurrently; further ones wait for a worker or their deadline.
    pub workers: usize,
}

/// Everything that stands between a call and the world.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) config: Arc<HostConfig>,
    pub(crate) workers: Arc<WorkerLimits>,
    /// What each mount is, by its alias. Nothing can be granted on others.
    pub(crate) mount_identities: Arc<BTreeMap<String, String>>,
    pub(crate) approval_queues: Arc<ApprovalQueues>,
}

impl Host {
    /// A host without grants, see [`Host::with_grants`].
    pub fn new(parts: HostConfig) -> Self {
        Self {
            workers: Arc::new(WorkerLimits::new(parts.workers)),
            config: Arc::new(parts),
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

    /// Makes one call. The only way to run a tool.
    pub async fn call(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        self.call_with_progress(session, call, cancel, None).await
    }

    /// Makes one call, with a listener for its progress.
    pub async fn call_with_progress(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        cancel: &CancellationToken,
        listener: Option<Arc<dyn ProgressListener>>,
    ) -> Result<ToolReply, HostError> {
        match self.find_tool(session, call, listener)? {
            Ok((invocation, tool)) => invocation.drive(tool, None, cancel).await,
            Err(reply) => Ok(reply),
        }
    }

    /// Explains what would be decided about a call. An error is one that the call itself would get before a decision.
    pub async fn explain(&self, session: &Arc<Session>, call: ToolCall) -> Result<PolicyExplanation, ToolError> {
        explain(self, session, call).await
    }

    /// Withdraws the requests of suspended calls of a session that ended: their answers would not be used.
    pub fn withdraw_requests(&self, session: &str) -> Result<(), StoreError> {
        let store = self.config.store.as_ref();
        let pending = store.pending(SystemTime::now())?.into_iter();
        pending
            .filter(|request| request.suspended && request.session == session)
            .try_for_each(|request| store.close_request(&request.id))
    }

    pub(crate) fn new_invocation(&self, session: &Arc<Session>, call: ToolCall) -> Invocation {
        // Descriptions of MCP tools are untrusted content that the caller has read.
        if session.catalog.has_mcp_tools() {
            session.taint.add(Taint::SawUntrusted);
        }
        Invocation {
            host: self.clone(),
            session: Arc::clone(session),
            origin: CallOrigin {
                session: session.id.clone(),
                call: call.id.clone(),
                tool: call.name.clone(),
                may_undo: session.principal.has_scope(AuthScope::Undo),
            },
            call,
            started: Instant::now(),
            time_limit: session.limits.call_time,
            stops_gracefully: false,
            prior_approval: None,
            notes: ReplyNotes::default(),
            listener: None,
            connection_log: ConnectionLog::default(),
        }
    }

    /// Finds the tool of a call. A reply where there is none, or the principal may not call tools.
    pub(crate) fn find_tool(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        listener: Option<Arc<dyn ProgressListener>>,
    ) -> Result<Result<FoundCall, ToolReply>, HostError> {
        let tool = session.catalog.find_tool(&call.name).cloned();
        // Rules and records know a tool by one name, however it was spelled.
        let call = match &tool {
            Some(tool) => ToolCall { name: tool.definition().name.to_string(), ..call },
            None => call,
        };
        let mut invocation = Invocation { listener, ..self.new_invocation(session, call) };
        if !session.principal.has_scope(AuthScope::Call) {
            let message = format!("`{}` may not call tools", session.principal.name);
            return invocation.refuse(&[], &ToolError::new(ErrorKind::PermissionDenied, message)).map(Err);
        }
        let Some(tool) = tool else {
            let offered = session.catalog.list().map(|definition| definition.name.as_ref());
            let error = session.dialect.unknown_tool_error(&invocation.call.name, offered);
            return invocation.refuse(&[], &error).map(Err);
        };
        invocation.time_limit = tool.time_limit(&session.limits);
        invocation.stops_gracefully = tool.stops_gracefully();
        Ok(Ok((Arc::new(invocation), tool)))
    }
}

/// A call that found its tool.
type FoundCall = (Arc<Invocation>, Arc<dyn ErasedTool>);
