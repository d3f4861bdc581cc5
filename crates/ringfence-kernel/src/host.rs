//! The host: the entry point of every tool call.
//!
//! `Host::call` takes a call from its name to its reply: find, decode, plan, police, ask, record, run, record.
//! A call never outlives its deadline for the one who waits, whatever the file system does; see `CommitState` for
//! what that means for the work itself.
//!
//! Not here: what any step does. This file only says in which order they come.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::approval::ApprovalOutcome;
use crate::approval_queue::ApprovalQueues;
use crate::ask_approval::{AskOutcome, SuspendedCall, pending_error};
use crate::audit::AuditEvent;
use crate::connection_log::ConnectionLog;
use crate::dialect::ReplyNotes;
use crate::invocation::{CallProgress, Invocation, PriorApproval, arguments_fixed_error, catch_tool_panic};
use crate::pending_approval::PendingApproval;
use crate::tool_binding::ErasedTool;
use crate::{
    AbandonReason, ApprovalInbox, ApprovalStore, Approver, AuditSink, AuditSinkError, AuthScope, CallOrigin,
    CommitState, ErrorKind, Policy, Principal, ProgressListener, Session, StoreError, Taint, ToolError,
};

/// Most changes of the arguments of one call by an approver before it is refused.
const MAX_ARGUMENT_CHANGES: usize = 3;

/// Wait for a committed change after its deadline, before the reply says that its outcome is unknown.
const COMMIT_GRACE_TIME: Duration = Duration::from_millis(250);

/// Grace time of a call that stops by itself.
const GRACEFUL_STOP_TIME: Duration = Duration::from_secs(5);

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
    pub(crate) workers: Arc<Semaphore>,
    /// The same for calls that end by themselves, such as programs: however many go on for minutes, the others go on too.
    program_workers: Arc<Semaphore>,
    /// Identity of each mount, by its alias. On others no grants are possible.
    pub(crate) mount_identities: Arc<BTreeMap<String, String>>,
    pub(crate) approval_queues: Arc<ApprovalQueues>,
}

impl Host {
    /// A host without grants, see [`Host::with_grants`].
    pub fn new(parts: HostConfig) -> Self {
        let semaphore = || Arc::new(Semaphore::new(parts.workers.max(1)));
        let (workers, program_workers) = (semaphore(), semaphore());
        Self {
            config: Arc::new(parts),
            workers,
            program_workers,
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
        match self.resolve_tool(session, call, listener)? {
            Ok((invocation, offer)) => self.drive(invocation, offer, cancel).await,
            Err(reply) => Ok(reply),
        }
    }

    pub(crate) fn new_invocation(&self, session: &Arc<Session>, call: ToolCall) -> Invocation {
        // Descriptions of MCP tools are untrusted content that the caller has read.
        if session.catalog.has_mcp_tools() {
            session.taint.add(Taint::SawUntrusted);
        }
        Invocation {
            config: Arc::clone(&self.config),
            mount_identities: Arc::clone(&self.mount_identities),
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

    /// Finds the tool, for who may call it. A reply where there is none.
    pub(crate) fn resolve_tool(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        listener: Option<Arc<dyn ProgressListener>>,
    ) -> Result<Result<ResolvedCall, ToolReply>, HostError> {
        let offer = session.catalog.find_tool(&call.name).cloned();
        // Rules and records know a tool by one name, however it was spelled.
        let call = match &offer {
            Some(offer) => ToolCall { name: offer.definition().name.to_string(), ..call },
            None => call,
        };
        let mut invocation = Invocation { listener, ..self.new_invocation(session, call) };
        if let Some(offer) = &offer {
            invocation.time_limit = offer.time_limit(&session.limits);
            invocation.stops_gracefully = offer.stops_gracefully();
        }
        let invocation = Arc::new(invocation);
        if !session.principal.has_scope(AuthScope::Call) {
            let message = format!("`{}` may not call tools", session.principal.name);
            return invocation.refuse(&[], &ToolError::new(ErrorKind::PermissionDenied, message)).map(Err);
        }
        let Some(offer) = offer else {
            let offered = session.catalog.list().map(|definition| definition.name.as_ref());
            return invocation
                .refuse(&[], &session.dialect.unknown_tool_error(&invocation.call.name, offered))
                .map(Err);
        };
        Ok(Ok((invocation, offer)))
    }

    /// From the start to the reply, with as many questions as it takes.
    async fn drive(
        &self,
        mut invocation: Arc<Invocation>,
        offer: Arc<dyn ErasedTool>,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        let mut turn = None;
        for _ in 0..MAX_ARGUMENT_CHANGES {
            let step = self.start_in_queue(&invocation, &offer, &mut turn, cancel).await?;
            match self.resolve_approvals(&invocation, step, cancel).await? {
                ControlFlow::Break(reply) => return Ok(reply),
                ControlFlow::Continue(changed) => invocation = changed,
            }
        }
        let message = "the arguments were changed too often without a decision";
        invocation.refuse(&[], &ToolError::new(ErrorKind::ApprovalDenied, message))
    }

    /// Asks, as long as what was answered leads to another question. The reply, or the call as it was changed.
    async fn resolve_approvals(
        &self,
        invocation: &Arc<Invocation>,
        mut step: CallProgress,
        cancel: &CancellationToken,
    ) -> Result<ControlFlow<ToolReply, Arc<Invocation>>, HostError> {
        loop {
            let asked = match step {
                CallProgress::Done(reply) => return Ok(ControlFlow::Break(reply)),
                CallProgress::NeedsApproval(asked) => asked,
            };
            // A program's changes exist only as long as this call, so the call has to wait.
            let answer = match self.ask_approver(invocation, &asked.prompt, !asked.is_follow_up(), cancel).await? {
                AskOutcome::Answered(answer) => answer,
                AskOutcome::Suspended(suspended) => {
                    let reply = invocation.refuse(&asked.accesses, &pending_error(&suspended.request_id))?;
                    return Ok(ControlFlow::Break(ToolReply { suspended: Some(suspended), ..reply }));
                }
            };
            match self.apply_answer(invocation, asked, answer, cancel).await? {
                ControlFlow::Break(next) => step = next,
                ControlFlow::Continue(changed) => return Ok(ControlFlow::Continue(changed)),
            }
        }
    }

    /// Does what was answered to a call that came back, and goes on from there.
    pub(crate) async fn resume_with_answer(
        &self,
        invocation: Arc<Invocation>,
        offer: Arc<dyn ErasedTool>,
        asked: Box<PendingApproval>,
        answer: ApprovalOutcome,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        let changed = match self.apply_answer(&invocation, asked, answer, cancel).await? {
            ControlFlow::Break(step) => match self.resolve_approvals(&invocation, step, cancel).await? {
                ControlFlow::Break(reply) => return Ok(reply),
                ControlFlow::Continue(changed) => changed,
            },
            ControlFlow::Continue(changed) => changed,
        };
        self.drive(changed, offer, cancel).await
    }

    /// Runs what was approved, or gives the call as it was changed.
    async fn apply_answer(
        &self,
        invocation: &Arc<Invocation>,
        asked: Box<PendingApproval>,
        answer: ApprovalOutcome,
        cancel: &CancellationToken,
    ) -> Result<ControlFlow<CallProgress, Arc<Invocation>>, HostError> {
        let approval = match answer {
            ApprovalOutcome::Approved(approval) => approval,
            ApprovalOutcome::ApprovedAlways(approval) => {
                if let Some(rule) = asked.prompt.grant.clone() {
                    self.store_grant(rule, &approval).await?;
                }
                approval
            }
            ApprovalOutcome::ApprovedWithChanges(..) if asked.is_follow_up() => {
                return self.decline_follow_up(invocation, asked, arguments_fixed_error(), cancel).await;
            }
            ApprovalOutcome::ApprovedWithChanges(arguments, approval) => {
                let PendingApproval { accesses, taint, prompt: shown, .. } = *asked;
                let covered =
                    PriorApproval { accesses, taint, fingerprint: shown.preview.fingerprint().to_owned(), approval };
                return Ok(ControlFlow::Continue(Arc::new(invocation.with_arguments(arguments, covered))));
            }
            ApprovalOutcome::Denied(error) if asked.is_follow_up() => {
                return self.decline_follow_up(invocation, asked, error, cancel).await;
            }
            ApprovalOutcome::Denied(error) => {
                return invocation.refuse(&asked.accesses, &error).map(CallProgress::Done).map(ControlFlow::Break);
            }
        };
        let run = move |invocation: &Invocation, signal: &CommitState| match asked.is_follow_up() {
            true => invocation.apply_follow_up_answer(*asked, Ok(&approval), signal),
            false => invocation.run_approved(asked, &approval, signal),
        };
        self.run_on_worker(invocation, cancel, run).await.map(ControlFlow::Break)
    }

    /// Keeps the changes of a run that need no approval, after the others were declined.
    async fn decline_follow_up(
        &self,
        invocation: &Arc<Invocation>,
        asked: Box<PendingApproval>,
        refused: ToolError,
        cancel: &CancellationToken,
    ) -> Result<ControlFlow<CallProgress, Arc<Invocation>>, HostError> {
        // The caller does not wait any more: nothing is kept.
        if refused.kind == ErrorKind::Cancelled {
            return invocation.finish_without(*asked, refused).map(CallProgress::Done).map(ControlFlow::Break);
        }
        let run = move |invocation: &Invocation, signal: &CommitState| {
            invocation.apply_follow_up_answer(*asked, Err(refused), signal)
        };
        self.run_on_worker(invocation, cancel, run).await.map(ControlFlow::Break)
    }

    /// Plans and judges; runs too, unless approval is required.
    pub(crate) async fn start(
        &self,
        invocation: &Arc<Invocation>,
        offer: &Arc<dyn ErasedTool>,
        cancel: &CancellationToken,
    ) -> Result<CallProgress, HostError> {
        if cancel.is_cancelled() {
            return invocation.refuse(&[], &AbandonReason::Cancel.error()).map(CallProgress::Done);
        }
        if offer.supports_non_blocking()
            && let Some(step) = invocation.try_inline(offer.as_ref())?
        {
            return Ok(step);
        }
        let offer = Arc::clone(offer);
        self.run_on_worker(invocation, cancel, move |invocation, signal| {
            invocation.run_blocking(offer.as_ref(), signal)
        })
        .await
    }

    /// Does a piece of work on a worker thread, and waits for it as long as the call may take. The thread ends
    /// by itself: at its next look at the signal, or when what it does returns.
    pub(crate) async fn run_on_worker<F>(
        &self,
        invocation: &Arc<Invocation>,
        cancel: &CancellationToken,
        work: F,
    ) -> Result<CallProgress, HostError>
    where
        F: FnOnce(&Invocation, &CommitState) -> Result<Option<CallProgress>, HostError> + Send + 'static,
    {
        let signal = CommitState::new();
        let mut waiting =
            WorkerGuard { invocation: Arc::clone(invocation), commit_state: signal.clone(), finished: false };
        let workers = Arc::clone(if invocation.stops_gracefully { &self.program_workers } else { &self.workers });
        let companion = Arc::clone(invocation);
        let job = async move {
            // The semaphore is never closed, so this only ever waits.
            let permit = workers.acquire_owned().await.ok();
            let job = move || {
                let _permit = permit;
                catch_tool_panic(&companion, &signal, || work(&companion, &signal))
            };
            // Where the system gives no more threads, this panics instead of failing.
            let job = catch_unwind(AssertUnwindSafe(|| spawn_blocking(job))).ok()?;
            job.await.ok()
        };
        tokio::pin!(job);
        let why = tokio::select! {
            biased;
            done = &mut job => {
                waiting.finished = true;
                return invocation.progress_after(done);
            }
            () = cancel.cancelled() => AbandonReason::Cancel,
            () = sleep(invocation.time_limit) => AbandonReason::Deadline,
        };
        if invocation.stops_gracefully {
            waiting.commit_state.request_stop(why);
            if let Ok(done) = timeout(GRACEFUL_STOP_TIME, &mut job).await {
                waiting.finished = true;
                return invocation.progress_after(done);
            }
        }
        if let Some(reply) = waiting.abandon(why)? {
            return Ok(CallProgress::Done(reply));
        }
        let done = timeout(COMMIT_GRACE_TIME, &mut job).await;
        waiting.finished = true;
        match done {
            Ok(done) => invocation.progress_after(done),
            Err(_) => invocation.record_overdue(why, waiting.commit_state.subject()).map(CallProgress::Done),
        }
    }
}

/// A caller that waits for a worker. Dropped while the work goes on, because the caller went away, it cancels the call.
struct WorkerGuard {
    invocation: Arc<Invocation>,
    commit_state: CommitState,
    /// Nothing is waited for any more.
    finished: bool,
}

impl WorkerGuard {
    /// Stops waiting. Nothing if the worker committed first.
    fn abandon(&mut self, why: AbandonReason) -> Result<Option<ToolReply>, HostError> {
        if !self.commit_state.abandon(why) {
            return Ok(None);
        }
        self.finished = true;
        let error = why.error().detail("committed", false);
        let reply = self.invocation.error_reply(&error);
        let event =
            AuditEvent::End { error: Some(&error), reply: &reply.text, duration: self.invocation.started.elapsed() };
        self.invocation.record_with_subject(self.commit_state.subject(), &[], event)?;
        Ok(Some(reply))
    }
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        if !self.finished {
            // The failure of the record cannot be reported any more.
            let _ = self.abandon(AbandonReason::Cancel);
        }
    }
}

/// A call that found its tool.
type ResolvedCall = (Arc<Invocation>, Arc<dyn ErasedTool>);
