//! The state machine of a call: its states, and every transition between them.
//!
//! ```text
//!  Found ──► Planned ──┬─ allowed ─────────────────────► Running ──┬────────────────────────────► Done
//!    ▲                 │                                    ▲      │                               ▲
//!    │ changed         └─ asks ─► WaitingForApproval        │      └► Finishing ──┬─ decided ──────┤
//!    │ arguments                     │          │           │             ▲      └► WaitingFor     │
//!    └────────────────── Answered ◄──┘          ▼           │             │         Review         │
//!                         ▲  │  │            Suspended ─────┼─────────────┼─────────────┼──────────┤
//!  Resumed ─► Replanned ──┘  │  └─► Approved ───────────────┘             │             ▼          │
//!                            └─ denied ───────────────────────────────────┼───────── Reviewed ─────┤
//!                                                                         └── more changes ────────┘
//! ```
//!
//! From every state an error leads to `Done`. `drive` owns the call: it asks, waits, and hands the other states to a
//! thread; `advance` takes those as far as that thread can. A thread whose caller gave up, or that would have to wait
//! where it must not, ends in `Abandoned`: then the reply is not its to give. A call never outlives its deadline for its
//! caller, whatever the file system does; see `CallCommitState` for what that means for the work itself.
//!
//! Not here: decisions and records (`invocation.rs`, `follow_up.rs`), asking (`ask_approval.rs`), threads (`worker.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::approval::{ApprovalDenial, ApprovalOutcome};
use crate::approval_queue::ApprovalTurn;
use crate::audit::AuditEvent;
use crate::follow_up::FollowUpStep;
use crate::invocation::{
    Invocation, PriorApproval, arguments_fixed_error, denial_error, pending_error, plan_changed_error,
};
use crate::pending_approval::{
    ApprovalRequestOutcome, PendingApproval, PendingReview, ResumedCall, SuspendedCall, UndecidedChanges,
};
use crate::reply::RenderedReply;
use crate::tool_binding::{ErasedPlan, ErasedTool, PlanRunOutcome};
use crate::{
    AbandonReason, Approval, AuthScope, CallCommitState, CallContext, Decision, ErrorKind, Host, HostError, IoMode,
    ProgressListener, ResourceAccess, Session, Taint, ToolCall, ToolError, ToolReply, Verdict,
};

/// Changes of the arguments by a person after which a call is refused.
const MAX_ARGUMENT_CHANGES: usize = 3;

/// State of a call between two steps.
pub(crate) enum CallState {
    /// The tool is known, and nothing was looked at.
    Found(Arc<dyn ErasedTool>),
    /// Suspended before and answered since.
    Resumed(Arc<dyn ErasedTool>, Box<ResumedCall>),
    /// Planned again, to be compared with what was approved.
    Replanned(Box<PendingApproval>, Box<ResumedCall>),
    /// The accesses are known, and the policy has not decided.
    Planned(Plan),
    /// A rule requires approval. The call waits for its turn in the session, then for an answer.
    WaitingForApproval(Box<PendingApproval>),
    /// The answer is there.
    Answered(Box<PendingApproval>, ApprovalOutcome),
    /// The answer comes later: the call ends for its caller, who can resume it.
    Suspended(Vec<ResourceAccess>, SuspendedCall),
    /// Approved, and to be decided once more by the rules that hold now.
    Approved(Box<PendingApproval>, Approval),
    /// Authorized, with the begin record still to be written.
    Running(AuthorizedPlan),
    /// The run left changes to decide about.
    Finishing(UndecidedChanges),
    /// Some of these changes require approval.
    WaitingForReview(Box<PendingReview>),
    /// The answer about them is there. What needed no approval is kept in any case.
    Reviewed(Box<PendingReview>, Result<Approval, ApprovalDenial>),
    /// The end is recorded.
    Done(ToolReply),
    /// The reply is not this thread's to give.
    Abandoned,
}

/// What a call would do.
pub(crate) struct Plan {
    pub(crate) tool: Arc<dyn ErasedTool>,
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
    /// The first state of a call: its tool is found, or it is refused.
    pub(crate) fn start(
        host: &Host,
        session: &Arc<Session>,
        call: ToolCall,
        listener: Option<Arc<dyn ProgressListener>>,
    ) -> Result<(Arc<Self>, CallState), HostError> {
        let call = if session.catalog.has_forwards() { call.forwarded(session) } else { call };
        let tool = session.catalog.find_tool(&call.name).cloned();
        // Rules and records know a tool by one name, however it was spelled.
        let call = match &tool {
            Some(tool) => ToolCall { name: tool.definition().name.to_string(), ..call },
            None => call,
        };
        let mut invocation = Self { listener, ..Self::new(host, session, call) };
        let state = match tool {
            _ if !session.principal.has_scope(AuthScope::Call) => {
                let message = format!("`{}` may not call tools", session.principal.name);
                invocation.refused(&[], &ToolError::new(ErrorKind::PermissionDenied, message))?
            }
            None => {
                let offered = session.catalog.list().map(|definition| definition.name.as_ref());
                invocation.refused(&[], &session.dialect.unknown_tool_error(&invocation.call.name, offered))?
            }
            Some(tool) => {
                invocation.time_limit = tool.time_limit(&session.limits);
                invocation.stops_gracefully = tool.stops_gracefully();
                invocation.waits_for_job = tool.definition().capabilities.waits_for_job;
                CallState::Found(tool)
            }
        };
        Ok((Arc::new(invocation), state))
    }

    /// Takes a call to its reply.
    pub(crate) async fn drive(
        mut self: Arc<Self>,
        mut state: CallState,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        // The turn to ask is held until the end of the call.
        let mut turn: Option<ApprovalTurn> = None;
        let mut changes = 0;
        loop {
            state = match state {
                CallState::Done(reply) => return Ok(reply),
                CallState::Found(_) if cancel.is_cancelled() => self.refused(&[], &AbandonReason::Cancel.error())?,
                CallState::Found(tool) => match self.try_inline(&tool)? {
                    CallState::Abandoned => self.run_on_worker(CallState::Found(tool), cancel).await?,
                    next => next,
                },
                CallState::Resumed(_, resumed) if !resumed.decision.response.approved => {
                    let error = self.record_declined(*resumed).await?;
                    self.refused(&[], &error)?
                }
                CallState::Replanned(pending, resumed) if !resumed.matches_plan(&pending) => {
                    self.refused(&pending.accesses, &plan_changed_error())?
                }
                CallState::Replanned(pending, resumed) => {
                    let answer = self.evaluate_resumed(*resumed, &pending.prompt).await?;
                    CallState::Answered(pending, answer)
                }
                CallState::WaitingForApproval(pending) if turn.is_none() => {
                    turn = self.try_turn();
                    match turn {
                        Some(_) => CallState::WaitingForApproval(pending),
                        None => {
                            // A plan holds descriptors: it is dropped before the wait. What runs meanwhile may change what
                            // the call would do, so it is planned again.
                            let PendingApproval { tool, accesses, .. } = *pending;
                            match self.wait_for_turn(cancel).await {
                                Ok(taken) => {
                                    turn = Some(taken);
                                    CallState::Found(tool)
                                }
                                Err(error) => self.refused(&accesses, &error)?,
                            }
                        }
                    }
                }
                CallState::WaitingForApproval(pending) => {
                    match self.ask_approver(&pending.prompt, true, cancel).await? {
                        ApprovalRequestOutcome::Suspended(call) => CallState::Suspended(pending.accesses, call),
                        ApprovalRequestOutcome::Answered(answer) => CallState::Answered(pending, answer),
                    }
                }
                CallState::Answered(pending, answer) => match answer {
                    ApprovalOutcome::Approved(approval) => CallState::Approved(pending, approval),
                    ApprovalOutcome::ApprovedAlways(approval) => {
                        if let Some(rule) = pending.prompt.grant.clone() {
                            self.store_grant(rule, &approval).await?;
                        }
                        CallState::Approved(pending, approval)
                    }
                    ApprovalOutcome::ApprovedWithChanges(arguments, approval) => {
                        changes += 1;
                        let tool = Arc::clone(&pending.tool);
                        self = Arc::new(self.with_arguments(arguments, PriorApproval::new(*pending, approval)));
                        if changes < MAX_ARGUMENT_CHANGES {
                            CallState::Found(tool)
                        } else {
                            let message = "the arguments were changed too often without a decision";
                            self.refused(&[], &ToolError::new(ErrorKind::ApprovalDenied, message))?
                        }
                    }
                    ApprovalOutcome::Denied(denial) => {
                        self.refused(&pending.accesses, &denial.error(&pending.prompt.verdict))?
                    }
                },
                CallState::Suspended(accesses, suspended) => {
                    let reply = self.refuse(&accesses, &pending_error(&suspended.request_id))?;
                    CallState::Done(ToolReply { suspended: Some(suspended), ..reply })
                }
                CallState::WaitingForReview(review) if turn.is_none() => {
                    turn = self.try_turn();
                    match turn {
                        Some(_) => CallState::WaitingForReview(review),
                        None => match self.wait_for_turn(cancel).await {
                            Ok(taken) => {
                                turn = Some(taken);
                                CallState::WaitingForReview(review)
                            }
                            Err(error) => CallState::Reviewed(review, Err(ApprovalDenial::Error(error))),
                        },
                    }
                }
                CallState::WaitingForReview(review) => {
                    let answer = match self.ask_approver(&review.prompt, false, cancel).await? {
                        ApprovalRequestOutcome::Answered(answer) => review_answer(answer),
                        // An answer within the call is never deferred.
                        ApprovalRequestOutcome::Suspended(_) => Err(ApprovalDenial::Error(plan_changed_error())),
                    };
                    CallState::Reviewed(review, answer)
                }
                // The program has ended, and what needs no approval is kept also when the caller cancels.
                declined @ CallState::Reviewed(_, Err(_)) => {
                    self.run_on_worker(declined, &CancellationToken::new()).await?
                }
                working => self.run_on_worker(working, cancel).await?,
            }
        }
    }

    /// Takes a call as far as one thread can: to its end, or to where approval is needed.
    fn advance(&self, mut state: CallState, cx: &CallContext<'_>) -> Result<CallState, HostError> {
        loop {
            state = match state {
                CallState::Found(tool) => self.plan(tool, cx)?,
                CallState::Resumed(tool, resumed) => self.replan(tool, resumed, cx)?,
                CallState::Planned(plan) => self.decide(plan, cx)?,
                CallState::Approved(pending, approval) => self.decide_approved(*pending, approval, cx)?,
                CallState::Running(authorized) => self.run(authorized, cx)?,
                CallState::Finishing(changes) => self.follow(self.decide_changes(changes, cx)?, cx)?,
                CallState::Reviewed(review, answer) => self.follow(self.decide_reviewed(*review, answer, cx)?, cx)?,
                settled @ (CallState::Replanned(..)
                | CallState::WaitingForApproval(_)
                | CallState::Answered(..)
                | CallState::Suspended(..)
                | CallState::WaitingForReview(_)
                | CallState::Done(_)
                | CallState::Abandoned) => return Ok(settled),
            }
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

    /// Decodes and plans.
    fn plan(&self, tool: Arc<dyn ErasedTool>, cx: &CallContext<'_>) -> Result<CallState, HostError> {
        match tool.plan(&self.call.arguments, cx) {
            Ok((accesses, plan)) => match self.check_output_paths(&accesses) {
                Ok(()) => Ok(CallState::Planned(Plan { tool, plan, accesses })),
                Err(error) => self.finish_refused(&accesses, &error, cx),
            },
            Err(_) if cx.has_blocked() => Ok(CallState::Abandoned),
            Err(error) => self.finish_refused(&[], &self.mask_denied(error, cx), cx),
        }
    }

    /// Decides about a plan.
    fn decide(&self, plan: Plan, cx: &CallContext<'_>) -> Result<CallState, HostError> {
        let Plan { tool, mut plan, accesses } = plan;
        let prior = self.find_prior_approval(&accesses);
        let (verdict, taint) = self.authorize(&accesses, plan.as_ref(), cx, |verdict| match verdict.decision {
            Decision::Allow => true,
            Decision::Ask => prior.is_some(),
            Decision::Deny => false,
        })?;
        match (verdict.decision, prior) {
            (Decision::Allow, _) => Ok(CallState::Running(AuthorizedPlan { plan, accesses, verdict, approval: None })),
            (Decision::Ask, Some(prior)) => match prior.check_unchanged(&accesses, plan.as_mut(), cx) {
                Ok(()) => {
                    let approval = Some(prior.approval.clone());
                    Ok(CallState::Running(AuthorizedPlan { plan, accesses, verdict, approval }))
                }
                Err(_) if cx.has_blocked() => Ok(CallState::Abandoned),
                Err(error) => self.finish_refused(&accesses, &error, cx),
            },
            // A preview may take a while, and so may a look at the grants of other processes.
            (Decision::Ask, None) if cx.io_mode == IoMode::NonBlocking => {
                let _ = cx.would_block();
                Ok(CallState::Abandoned)
            }
            (Decision::Ask, None) => match plan.preview(cx) {
                // A call that is known to fail is not asked about, as long as the caller may know the reason.
                Ok(preview) if preview.failure().is_some() && self.may_read_without_approval(&accesses) => {
                    let failure = preview.failure().cloned().unwrap_or_else(plan_changed_error);
                    self.finish_refused(&accesses, &failure, cx)
                }
                Ok(preview) => {
                    let prompt = self.approval_prompt(&accesses, verdict, preview);
                    let pending = PendingApproval { tool, plan, accesses, taint, prompt };
                    Ok(CallState::WaitingForApproval(Box::new(pending)))
                }
                Err(error) => self.finish_refused(&accesses, &error, cx),
            },
            (Decision::Deny, _) => self.finish_refused(&accesses, &self.mask_denied(denial_error(&verdict), cx), cx),
        }
    }

    /// Decides about an approved plan, by the rules that hold now.
    fn decide_approved(
        &self,
        pending: PendingApproval,
        approval: Approval,
        cx: &CallContext<'_>,
    ) -> Result<CallState, HostError> {
        let PendingApproval { plan, accesses, prompt, .. } = pending;
        // Where only a review is required by now, this was one.
        let is_enough = |verdict: &Verdict| {
            *verdict == prompt.verdict || verdict.is_review() && approval.assurance >= verdict.assurance
        };
        let may_run = |verdict: &Verdict| verdict.decision == Decision::Allow || is_enough(verdict);
        let (verdict, _) = self.authorize(&accesses, plan.as_ref(), cx, may_run)?;
        let refused = match verdict.decision {
            Decision::Deny => denial_error(&verdict),
            // Other calls of the session ran meanwhile: this is not what was approved.
            Decision::Ask if !is_enough(&verdict) => plan_changed_error(),
            _ => {
                let approval = Some(approval);
                return Ok(CallState::Running(AuthorizedPlan { plan, accesses, verdict, approval }));
            }
        };
        self.finish_refused(&accesses, &refused, cx)
    }

    /// Plans and decides about a call that was suspended, and runs nothing yet.
    fn replan(
        &self,
        tool: Arc<dyn ErasedTool>,
        resumed: Box<ResumedCall>,
        cx: &CallContext<'_>,
    ) -> Result<CallState, HostError> {
        let (accesses, mut plan) = match tool.plan(&self.call.arguments, cx) {
            Ok(planned) => planned,
            Err(error) => return self.finish_refused(&[], &self.mask_denied(error, cx), cx),
        };
        let (verdict, taint) = self.authorize(&accesses, plan.as_ref(), cx, |_| false)?;
        match verdict.decision {
            Decision::Deny => self.finish_refused(&accesses, &self.mask_denied(denial_error(&verdict), cx), cx),
            _ => match plan.preview(cx) {
                Ok(preview) => {
                    let prompt = self.approval_prompt(&accesses, verdict, preview);
                    let pending = PendingApproval { tool, plan, accesses, taint, prompt };
                    Ok(CallState::Replanned(Box::new(pending), resumed))
                }
                Err(error) => self.finish_refused(&accesses, &error, cx),
            },
        }
    }

    /// Runs an authorized plan.
    fn run(&self, authorized: AuthorizedPlan, cx: &CallContext<'_>) -> Result<CallState, HostError> {
        let AuthorizedPlan { plan, accesses, verdict, approval } = authorized;
        let changes = accesses.iter().any(|access| access.action.changes_files());
        let matters = changes || accesses.iter().any(|access| Taint::from_access(access).is_some());
        if matters && cx.io_mode == IoMode::NonBlocking {
            let _ = cx.would_block();
            return Ok(CallState::Abandoned);
        }
        let ticket = self.issue_ticket(&accesses, &verdict, approval.as_ref(), cx)?;
        match plan.run(&ticket, self.notes) {
            Ok(PlanRunOutcome::FollowUp(groups, plan)) => {
                Ok(CallState::Finishing(UndecidedChanges { plan, groups, run_accesses: accesses }))
            }
            Ok(PlanRunOutcome::Finished(reply)) => self.finish(&accesses, Ok(reply), cx),
            Err(error) => self.finish(&accesses, Err(error), cx),
        }
    }

    /// The state after a decision about the changes that a run left.
    fn follow(&self, step: FollowUpStep, cx: &CallContext<'_>) -> Result<CallState, HostError> {
        match step {
            FollowUpStep::Review(review) => Ok(CallState::WaitingForReview(review)),
            FollowUpStep::More(changes) => Ok(CallState::Finishing(changes)),
            FollowUpStep::End(accesses, result) => self.finish(&accesses, result, cx),
        }
    }

    /// Ends a call that ran, unless it was abandoned first.
    fn finish(
        &self,
        accesses: &[ResourceAccess],
        result: Result<RenderedReply, ToolError>,
        cx: &CallContext<'_>,
    ) -> Result<CallState, HostError> {
        // From here on the reply is this thread's to give, or was given.
        if cx.has_blocked() || cx.commit_state().commit().is_err() {
            return Ok(CallState::Abandoned);
        }
        self.record_end(accesses, result).map(CallState::Done)
    }

    /// Ends a call that never began to run, unless it was abandoned first.
    fn finish_refused(
        &self,
        accesses: &[ResourceAccess],
        error: &ToolError,
        cx: &CallContext<'_>,
    ) -> Result<CallState, HostError> {
        if cx.commit_state().commit().is_err() {
            return Ok(CallState::Abandoned);
        }
        let reply = self.error_reply(error);
        let event = AuditEvent::Refused { error, reply: &reply.text, duration: self.started.elapsed() };
        self.record_with_subject(cx.commit_state().subject(), accesses, event)?;
        Ok(CallState::Done(reply))
    }

    /// Ends a call that nothing was run of.
    fn refused(&self, accesses: &[ResourceAccess], error: &ToolError) -> Result<CallState, HostError> {
        self.refuse(accesses, error).map(CallState::Done)
    }
}

/// An answer about changes that exist already: it cannot change the arguments, and grants nothing.
fn review_answer(answer: ApprovalOutcome) -> Result<Approval, ApprovalDenial> {
    match answer {
        ApprovalOutcome::Approved(approval) | ApprovalOutcome::ApprovedAlways(approval) => Ok(approval),
        ApprovalOutcome::ApprovedWithChanges(..) => Err(ApprovalDenial::Error(arguments_fixed_error())),
        ApprovalOutcome::Denied(denial) => Err(denial),
    }
}
