//! A call from its request to its reply: the entry point, and the driver of its states.
//!
//! A call never outlives its deadline for its caller, whatever the file system does; see `CallCommitState` for what that means
//! for the work itself.
//!
//! Not here: the states (`call_state.rs`), what a step does (`invocation.rs`), and suspended calls (`resume.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::approval::{ApprovalDenial, ApprovalOutcome};
use crate::call_state::CallState;
use crate::connection_log::ConnectionLog;
use crate::invocation::{Invocation, PriorApproval, arguments_fixed_error, plan_changed_error};
use crate::pending_approval::{ApprovalRequestOutcome, PendingApproval, ResumedCall};
use crate::reply::ReplyNotes;
use crate::tool_binding::ErasedTool;
use crate::{
    AbandonReason, AuthScope, CallCommitState, CallContext, CallOrigin, ErrorKind, Host, HostError, IoMode,
    ProgressListener, Session, Taint, ToolCall, ToolError, ToolReply,
};

/// Changes of the arguments by a person after which a call is refused.
const MAX_ARGUMENT_CHANGES: usize = 3;

impl Host {
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

impl Invocation {
    /// Takes a call to its reply. `resumed` is the answer that a suspended call comes back with.
    pub(crate) async fn drive(
        mut self: Arc<Self>,
        tool: Arc<dyn ErasedTool>,
        mut resumed: Option<Box<ResumedCall>>,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        let (mut turn, mut changes) = (None, 0);
        let found = || CallState::Found(Arc::clone(&tool));
        let mut state = if resumed.is_some() { CallState::Resumed(Arc::clone(&tool)) } else { found() };
        loop {
            state = match state {
                CallState::Done(reply) => return Ok(reply),
                CallState::Found(_) if cancel.is_cancelled() => self.refused(&[], &AbandonReason::Cancel.error())?,
                CallState::Found(tool) => match self.try_inline(&tool)? {
                    CallState::Abandoned => self.run_on_worker(CallState::Found(tool), cancel).await?,
                    next => next,
                },
                CallState::WaitingForApproval(pending) => {
                    let outcome = match resumed.take() {
                        Some(resumed) if !resumed.matches_plan(&pending) => {
                            state = self.refused(&pending.accesses, &plan_changed_error())?;
                            continue;
                        }
                        Some(resumed) => {
                            ApprovalRequestOutcome::Answered(self.evaluate_resumed(*resumed, &pending.prompt).await?)
                        }
                        None if turn.is_none() => {
                            (turn, state) = self.take_turn(pending, &tool, cancel).await?;
                            continue;
                        }
                        None => self.ask_approver(&pending.prompt, !pending.is_follow_up(), cancel).await?,
                    };
                    match outcome {
                        ApprovalRequestOutcome::Suspended(suspended) => self.suspended(&pending, suspended)?,
                        ApprovalRequestOutcome::Answered(ApprovalOutcome::ApprovedWithChanges(arguments, approval))
                            if !pending.is_follow_up() =>
                        {
                            changes += 1;
                            self = Arc::new(self.with_arguments(arguments, PriorApproval::new(*pending, approval)));
                            if changes < MAX_ARGUMENT_CHANGES { found() } else { self.changed_too_often()? }
                        }
                        ApprovalRequestOutcome::Answered(answer) => self.apply_answer(pending, answer).await?,
                    }
                }
                // The program has ended, and what needs no approval is kept also when the caller cancels.
                declined @ CallState::Declined(..) => self.run_on_worker(declined, &CancellationToken::new()).await?,
                working => self.run_on_worker(working, cancel).await?,
            }
        }
    }

    /// Takes a call as far as one thread can: to its end, or to where approval is needed.
    pub(crate) fn advance(&self, mut state: CallState, cx: &CallContext<'_>) -> Result<CallState, HostError> {
        loop {
            state = match state {
                CallState::Found(tool) => self.plan(tool.as_ref(), cx)?,
                CallState::Resumed(tool) => self.replan(tool.as_ref(), cx)?,
                CallState::Planned(plan) => self.decide(plan, cx)?,
                CallState::Approved(pending, approval) => match pending.is_follow_up() {
                    true => self.decide_answered_changes(*pending, Ok(approval), cx)?,
                    false => self.decide_approved(*pending, approval, cx)?,
                },
                CallState::Declined(pending, refused) => self.decide_answered_changes(*pending, Err(refused), cx)?,
                CallState::Running(authorized) => self.run(authorized, cx)?,
                CallState::Finishing(changes) => self.decide_changes(changes, cx)?,
                settled @ (CallState::WaitingForApproval(_) | CallState::Done(_) | CallState::Abandoned) => {
                    return Ok(settled);
                }
            }
        }
    }

    /// The state after an answer that leaves the arguments as they are.
    async fn apply_answer(
        &self,
        pending: Box<PendingApproval>,
        answer: ApprovalOutcome,
    ) -> Result<CallState, HostError> {
        let refused = match answer {
            ApprovalOutcome::Approved(approval) => return Ok(CallState::Approved(pending, approval)),
            ApprovalOutcome::ApprovedAlways(approval) => {
                if let Some(rule) = pending.prompt.grant.clone() {
                    self.store_grant(rule, &approval).await?;
                }
                return Ok(CallState::Approved(pending, approval));
            }
            ApprovalOutcome::ApprovedWithChanges(..) => ApprovalDenial::Error(arguments_fixed_error()),
            ApprovalOutcome::Denied(denial) => denial,
        };
        match pending.is_follow_up() {
            true => Ok(CallState::Declined(pending, refused)),
            false => self.refused(&pending.accesses, &refused.error(&pending.prompt.verdict)),
        }
    }

    /// Tries a call on the caller's own thread. `Abandoned` where it would have to wait.
    fn try_inline(&self, tool: &Arc<dyn ErasedTool>) -> Result<CallState, HostError> {
        if !tool.supports_non_blocking() {
            return Ok(CallState::Abandoned);
        }
        self.advance_on_this_thread(CallState::Found(Arc::clone(tool)), IoMode::NonBlocking, &CallCommitState::new())
    }

    /// Advances a call here. A tool that panics has a bug: the call fails, and the host goes on. The end of a call that
    /// was abandoned is recorded already.
    pub(crate) fn advance_on_this_thread(
        &self,
        state: CallState,
        io_mode: IoMode,
        commit_state: &CallCommitState,
    ) -> Result<CallState, HostError> {
        let cx =
            CallContext::new(&self.session.limits, io_mode, commit_state).with_services(self).with_origin(&self.origin);
        let next = catch_unwind(AssertUnwindSafe(|| self.advance(state, &cx))).unwrap_or_else(|_| {
            if commit_state.commit().is_err() {
                return Ok(CallState::Abandoned);
            }
            self.record_end(&[], Err(ToolError::new(ErrorKind::Internal, "internal error in the tool")))
                .map(CallState::Done)
        })?;
        Ok(if cx.has_blocked() { CallState::Abandoned } else { next })
    }

    fn changed_too_often(&self) -> Result<CallState, HostError> {
        let message = "the arguments were changed too often without a decision";
        self.refused(&[], &ToolError::new(ErrorKind::ApprovalDenied, message))
    }
}
