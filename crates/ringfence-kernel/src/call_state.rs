//! States of a call and their transitions.
//!
//! ```text
//!  Found ─────► Planned ─┬─────────────► Running ─┬──────────► Done
//!    ▲             │     │                 ▲      └► Finishing ─┤
//!    │ changed     │     ▼                 │            │       │
//!    │ arguments   │  WaitingForApproval ──┼► Approved  │       │
//!    └─────────────┼──┘  ▲      │  └───────┼► Declined ─┼───────┤
//!  Resumed ────────┼─────┘      │          │            │       │
//!                  └────────────┴──────────┴── error ───┴───────┘
//! ```
//!
//! `Invocation::drive` owns the call: it asks, waits, and hands the other states to a thread. `Invocation::advance` takes
//! those as far as that thread can. A thread whose caller gave up, or that would have to wait where it must not, ends in
//! `Abandoned`: then the reply is not its to give.
//!
//! Not here: what a step does (`invocation.rs`, `follow_up.rs`, `ask_approval.rs`, `approval_queue.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::approval::{ApprovalDenial, ApprovalOutcome};
use crate::invocation::{Invocation, PriorApproval, arguments_fixed_error, plan_changed_error};
use crate::pending_approval::{AskOutcome, PendingApproval, ResumedCall, UndecidedChanges};
use crate::tool_binding::{ErasedPlan, ErasedTool};
use crate::{
    AbandonReason, Approval, CallContext, CommitState, ErrorKind, HostError, IoMode, ResourceAccess, ToolError,
    ToolReply, Verdict,
};

/// Changes of the arguments by a person after which a call is refused.
const MAX_ARGUMENT_CHANGES: usize = 3;

/// State of a call between two steps.
pub(crate) enum CallState {
    /// The tool is known, and nothing was looked at.
    Found(Arc<dyn ErasedTool>),
    /// Suspended before and answered since. It is planned again and compared with what was approved.
    Resumed(Arc<dyn ErasedTool>),
    /// The accesses are known, and the policy has not decided.
    Planned(Plan),
    /// A rule requires approval. The call waits for its turn in the session, then for an answer.
    WaitingForApproval(Box<PendingApproval>),
    /// Approved, and to be decided once more by the rules that hold now.
    Approved(Box<PendingApproval>, Approval),
    /// Declined after a run: what needed no approval is kept.
    Declined(Box<PendingApproval>, ApprovalDenial),
    /// Authorized, with the begin record still to be written.
    Running(AuthorizedPlan),
    /// The run left changes to decide about.
    Finishing(UndecidedChanges),
    /// The end is recorded.
    Done(ToolReply),
    /// The reply is not this thread's to give.
    Abandoned,
}

/// What a call would do.
pub(crate) struct Plan {
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) accesses: Vec<ResourceAccess>,
}

/// A plan that may run, and why.
pub(crate) struct AuthorizedPlan {
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) accesses: Vec<ResourceAccess>,
    pub(crate) verdict: Verdict,
    pub(crate) approval: Option<Approval>,
}

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
                        Some(resumed) => AskOutcome::Answered(self.evaluate_resumed(*resumed, &pending.prompt).await?),
                        None if turn.is_none() => {
                            (turn, state) = self.take_turn(pending, &tool, cancel).await?;
                            continue;
                        }
                        None => self.ask_approver(&pending.prompt, !pending.is_follow_up(), cancel).await?,
                    };
                    match outcome {
                        AskOutcome::Suspended(suspended) => self.suspended(&pending, suspended)?,
                        AskOutcome::Answered(ApprovalOutcome::ApprovedWithChanges(arguments, approval))
                            if !pending.is_follow_up() =>
                        {
                            changes += 1;
                            self = Arc::new(self.with_arguments(arguments, PriorApproval::new(*pending, approval)));
                            if changes < MAX_ARGUMENT_CHANGES { found() } else { self.changed_too_often()? }
                        }
                        AskOutcome::Answered(answer) => self.apply_answer(pending, answer).await?,
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
        self.advance_on_this_thread(CallState::Found(Arc::clone(tool)), IoMode::NonBlocking, &CommitState::new())
    }

    /// Advances a call here. A tool that panics has a bug: the call fails, and the host goes on. The end of a call that
    /// was abandoned is recorded already.
    pub(crate) fn advance_on_this_thread(
        &self,
        state: CallState,
        io_mode: IoMode,
        commit_state: &CommitState,
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
