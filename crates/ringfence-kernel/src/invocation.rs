//! Invocation of one tool call: plan, policy, approval, audit, run.
//!
//! All of it happens on one thread, the caller's own or a worker. A call that needs approval is handed back
//! (`CallProgress::NeedsApproval`).
//!
//! Not here: waiting for that thread, and asking (`host.rs`).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::approval::with_rule_details;
use crate::audit::AuditEvent;
use crate::connection_log::{ConnectionLog, ConnectionOutcome, UnlistedConnections};
use crate::dialect::ReplyNotes;
use crate::grants::access_subject;
use crate::pending_approval::{ApprovalPrompt, PendingApproval};
use crate::tool::CallServices;
use crate::tool_binding::{ErasedPlan, ErasedTool, RunOutcome};
use crate::{
    AbandonReason, Approval, AuditSinkError, CallContext, CallOrigin, CallRecord, CommitState, Decision, ErrorKind,
    Grant, HostConfig, HostError, IoMode, PolicyAction, PolicyRequest, Preview, ProgressListener, ProgressUpdate,
    ResourceAccess, Session, StoreError, Taint, TaintSet, Ticket, ToolCall, ToolError, ToolReply, Verdict, id,
};

/// Progress of one phase of a call.
pub(crate) enum CallProgress {
    Done(ToolReply),
    NeedsApproval(Box<PendingApproval>),
}

/// One call on its way.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) config: Arc<HostConfig>,
    pub(crate) mount_identities: Arc<BTreeMap<String, String>>,
    pub(crate) session: Arc<Session>,
    pub(crate) call: ToolCall,
    pub(crate) started: Instant,
    /// Time limit of each phase.
    pub(crate) time_limit: Duration,
    pub(crate) stops_gracefully: bool,
    pub(crate) origin: CallOrigin,
    /// The approval that came with changed arguments.
    pub(crate) prior_approval: Option<PriorApproval>,
    pub(crate) notes: ReplyNotes,
    pub(crate) listener: Option<Arc<dyn ProgressListener>>,
    pub(crate) connection_log: ConnectionLog,
}

/// The plan of an earlier approval.
#[derive(Debug)]
pub(crate) struct PriorApproval {
    pub(crate) accesses: Vec<ResourceAccess>,
    pub(crate) taint: TaintSet,
    pub(crate) fingerprint: String,
    pub(crate) approval: Approval,
}

impl PriorApproval {
    /// Fails where the same target is no longer what the approval was about.
    fn check_unchanged(
        &self,
        accesses: &[ResourceAccess],
        planned: &mut dyn ErasedPlan,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        if self.accesses == accesses && planned.preview(cx)?.bound_to(accesses).fingerprint() != self.fingerprint {
            return Err(plan_changed_error());
        }
        Ok(())
    }
}

impl Invocation {
    /// The same call with the arguments that a person put in.
    pub(crate) fn with_arguments(&self, arguments: String, covered: PriorApproval) -> Self {
        Self {
            config: Arc::clone(&self.config),
            mount_identities: Arc::clone(&self.mount_identities),
            session: Arc::clone(&self.session),
            call: ToolCall { arguments, ..self.call.clone() },
            started: self.started,
            time_limit: self.time_limit,
            stops_gracefully: self.stops_gracefully,
            origin: self.origin.clone(),
            prior_approval: Some(covered),
            notes: ReplyNotes { modified: true },
            listener: self.listener.clone(),
            connection_log: ConnectionLog::default(),
        }
    }

    /// Tries the call on the caller's own thread. `None` when it would have had to wait.
    pub(crate) fn try_inline(&self, offer: &dyn ErasedTool) -> Result<Option<CallProgress>, HostError> {
        let signal = CommitState::new();
        let cx = CallContext::new(&self.session.limits, IoMode::NonBlocking, &signal)
            .with_services(self)
            .with_origin(&self.origin);
        let step = catch_tool_panic(self, &signal, || self.plan_and_decide(offer, &cx))?;
        Ok(if cx.has_blocked() { None } else { step })
    }

    pub(crate) fn run_blocking(
        &self,
        offer: &dyn ErasedTool,
        signal: &CommitState,
    ) -> Result<Option<CallProgress>, HostError> {
        self.plan_and_decide(
            offer,
            &CallContext::new(&self.session.limits, IoMode::Blocking, signal)
                .with_services(self)
                .with_origin(&self.origin),
        )
    }

    pub(crate) fn run_approved(
        &self,
        asked: Box<PendingApproval>,
        approval: &Approval,
        signal: &CommitState,
    ) -> Result<Option<CallProgress>, HostError> {
        let cx = CallContext::new(&self.session.limits, IoMode::Blocking, signal)
            .with_services(self)
            .with_origin(&self.origin);
        let seen = asked.prompt.verdict.clone();
        // Where only a review is required by now, the approval was one.
        let enough =
            |verdict: &Verdict| *verdict == seen || verdict.is_review() && approval.assurance >= verdict.assurance;
        let may_run = |verdict: &Verdict| verdict.decision == Decision::Allow || enough(verdict);
        let (verdict, _) = self.authorize(&asked.accesses, asked.plan.as_ref(), &cx, may_run)?;
        let refused = match verdict.decision {
            Decision::Deny => denial_error(&verdict),
            // Other calls went on during the approval: this is no longer what was approved.
            Decision::Ask if !enough(&verdict) => plan_changed_error(),
            _ => {
                let permission = RunAuthorization { verdict: &verdict, approval: Some(approval) };
                return self.run(asked.plan, &asked.accesses, permission, &cx);
            }
        };
        self.finish_refused(&asked.accesses, &refused, &cx)
    }

    /// Decode, plan, police. `None` when the caller no longer waits for the result, or the quick attempt stalled.
    fn plan_and_decide(&self, offer: &dyn ErasedTool, cx: &CallContext<'_>) -> Result<Option<CallProgress>, HostError> {
        let (accesses, mut planned) = match offer.plan(&self.call.arguments, cx) {
            Ok(plan) => plan,
            Err(_) if cx.has_blocked() => return Ok(None),
            Err(error) => return self.finish_refused(&[], &self.mask_denied(error, cx), cx),
        };
        let covered = self.find_prior_approval(&accesses);
        let (verdict, taint) = self.authorize(&accesses, planned.as_ref(), cx, |verdict| match verdict.decision {
            Decision::Allow => true,
            Decision::Ask => covered.is_some(),
            Decision::Deny => false,
        })?;
        match (verdict.decision, covered) {
            (Decision::Allow, _) => {
                self.run(planned, &accesses, RunAuthorization { verdict: &verdict, approval: None }, cx)
            }
            (Decision::Ask, Some(covered)) => match covered.check_unchanged(&accesses, planned.as_mut(), cx) {
                Ok(()) => {
                    let approval = Some(&covered.approval);
                    self.run(planned, &accesses, RunAuthorization { verdict: &verdict, approval }, cx)
                }
                Err(_) if cx.has_blocked() => Ok(None),
                Err(error) => self.finish_refused(&accesses, &error, cx),
            },
            // The preview may take a while, and so may reloading grants.
            (Decision::Ask, None) if cx.io_mode == IoMode::NonBlocking => {
                let _ = cx.would_block();
                Ok(None)
            }
            (Decision::Ask, None) => match planned.preview(cx) {
                // No approval is requested for a call that is known to fail, as long as the caller may know the reason.
                Ok(preview) if preview.failure().is_some() && self.may_read_without_approval(&accesses) => {
                    let failure = preview.failure().cloned().unwrap_or_else(plan_changed_error);
                    self.finish_refused(&accesses, &failure, cx)
                }
                Ok(preview) => {
                    let asked = self.pending_approval(planned, accesses, verdict, taint, preview);
                    Ok(Some(CallProgress::NeedsApproval(Box::new(asked))))
                }
                Err(error) => self.finish_refused(&accesses, &error, cx),
            },
            (Decision::Deny, _) => self.finish_refused(&accesses, &self.mask_denied(denial_error(&verdict), cx), cx),
        }
    }

    /// Whether everything that a plan accesses may be read without approval, and without taint.
    fn may_read_without_approval(&self, accesses: &[ResourceAccess]) -> bool {
        let may_read = |access: &ResourceAccess| {
            let read = ResourceAccess { action: PolicyAction::Read, resource: access.resource.clone() };
            Taint::from_access(&read).is_none() && self.evaluate(&read).decision == Decision::Allow
        };
        accesses.iter().all(may_read)
    }

    /// The error where there is no plan, or a plan is denied. For a resource that the caller may not even list, both
    /// cases have the same text, so that it does not reveal whether the resource exists.
    fn mask_denied(&self, error: ToolError, cx: &CallContext<'_>) -> ToolError {
        let list = |resource| self.evaluate(&ResourceAccess { action: PolicyAction::List, resource });
        let denied = cx.lookup_resources().into_iter().map(list).find(|verdict| verdict.decision == Decision::Deny);
        match denied {
            Some(verdict) => denial_error(&verdict),
            None => error.suggest_name(|resource| list(resource.clone()).decision != Decision::Deny),
        }
    }

    /// Plans and polices a call that came back with an answer, and runs nothing yet.
    pub(crate) fn replan(
        &self,
        offer: &dyn ErasedTool,
        signal: &CommitState,
    ) -> Result<Option<CallProgress>, HostError> {
        let cx = CallContext::new(&self.session.limits, IoMode::Blocking, signal)
            .with_services(self)
            .with_origin(&self.origin);
        let (accesses, mut planned) = match offer.plan(&self.call.arguments, &cx) {
            Ok(plan) => plan,
            Err(error) => return self.finish_refused(&[], &self.mask_denied(error, &cx), &cx),
        };
        let (verdict, taint) = self.authorize(&accesses, planned.as_ref(), &cx, |_| false)?;
        match verdict.decision {
            Decision::Deny => self.finish_refused(&accesses, &self.mask_denied(denial_error(&verdict), &cx), &cx),
            _ => match planned.preview(&cx) {
                Ok(preview) => Ok(Some(CallProgress::NeedsApproval(Box::new(
                    self.pending_approval(planned, accesses, verdict, taint, preview),
                )))),
                Err(error) => self.finish_refused(&accesses, &error, &cx),
            },
        }
    }

    fn pending_approval(
        &self,
        planned: Box<dyn ErasedPlan>,
        accesses: Vec<ResourceAccess>,
        verdict: Verdict,
        taint: TaintSet,
        preview: Preview,
    ) -> PendingApproval {
        // A permanent loss needs approval each time.
        let is_ours = |access: &ResourceAccess| {
            access.action != PolicyAction::Lose && self.mount_identities.contains_key(&access_subject(access))
        };
        let grant = match accesses.iter().all(is_ours) {
            true => self.config.policy.narrowest_grant(&self.policy_request(&accesses)),
            false => None,
        };
        let shown = ApprovalPrompt { verdict, preview: preview.bound_to(&accesses), grant };
        PendingApproval { plan: planned, accesses, taint, prompt: shown, follow_up: None }
    }

    /// Decides, and where the call may run then, adds its taint. Both are one atomic step: if another call added taint
    /// in between, it is decided again.
    fn authorize(
        &self,
        accesses: &[ResourceAccess],
        planned: &dyn ErasedPlan,
        cx: &CallContext<'_>,
        may_run: impl Fn(&Verdict) -> bool,
    ) -> Result<(Verdict, TaintSet), HostError> {
        loop {
            let question = self.policy_request(accesses);
            let verdict = self.config.policy.decide(&question);
            let review = planned.required_review().filter(|_| verdict.decision == Decision::Allow);
            let verdict = match review {
                Some(review) => verdict.requiring_review(review),
                None => verdict,
            };
            let grants_matter =
                verdict.decision == Decision::Ask || accesses.iter().any(|access| access.action.changes_files());
            if grants_matter && cx.io_mode == IoMode::Blocking && self.refresh_grants()? {
                continue;
            }
            // A non-blocking attempt that adds taint is repeated by a worker, and must not meet its own taint there.
            let runs = may_run(&verdict) && cx.io_mode == IoMode::Blocking;
            if !runs || self.session.taint.compare_and_add(question.taint, question.added_taint()) {
                return Ok((verdict, question.taint));
            }
        }
    }

    /// Reloads grants that another process added or revoked. True when there are any.
    pub(crate) fn refresh_grants(&self) -> Result<bool, StoreError> {
        if self.mount_identities.is_empty() {
            return Ok(false);
        }
        load_grants(&self.config, &self.mount_identities)
    }

    pub(crate) fn policy_request<'a>(&'a self, accesses: &'a [ResourceAccess]) -> PolicyRequest<'a> {
        PolicyRequest::new(&self.session, &self.call.name, accesses, self.session.taint.snapshot())
    }

    fn run(
        &self,
        planned: Box<dyn ErasedPlan>,
        accesses: &[ResourceAccess],
        permission: RunAuthorization<'_>,
        cx: &CallContext<'_>,
    ) -> Result<Option<CallProgress>, HostError> {
        let changes = accesses.iter().any(|access| access.action.changes_files());
        let matters = changes || accesses.iter().any(|access| Taint::from_access(access).is_some());
        if matters && cx.io_mode == IoMode::NonBlocking {
            let _ = cx.would_block();
            return Ok(None);
        }
        let ticket = self.issue_ticket(accesses, permission, cx)?;
        let result = match planned.run(&ticket, self.notes) {
            Ok(RunOutcome::FollowUp(groups, rest)) => return self.run_follow_up(rest, groups, accesses, cx),
            Ok(RunOutcome::Finished(text)) => Ok(text),
            Err(error) => Err(error),
        };
        self.finish(accesses, result, cx)
    }

    /// Records that something is about to be done, and gives the right to do it.
    pub(crate) fn issue_ticket<'t>(
        &self,
        accesses: &'t [ResourceAccess],
        RunAuthorization { verdict: Verdict { rule, layer, .. }, approval: approved }: RunAuthorization<'t>,
        cx: &'t CallContext<'t>,
    ) -> Result<Ticket<'t>, HostError> {
        let changes = accesses.iter().any(|access| access.action.changes_files());
        let change = if changes { id::new_id("c")? } else { String::new() };
        self.record(accesses, AuditEvent::Begin { rule, layer: *layer, approved, change: &change })?;
        Ok(Ticket::new(cx, change, approved, accesses))
    }

    /// Ends a call that ran, unless it was abandoned first.
    pub(crate) fn finish(
        &self,
        accesses: &[ResourceAccess],
        result: Result<String, ToolError>,
        cx: &CallContext<'_>,
    ) -> Result<Option<CallProgress>, HostError> {
        // From here on the reply belongs to this attempt, or is dropped.
        if cx.has_blocked() || cx.commit_state().commit().is_err() {
            return Ok(None);
        }
        self.record_end(accesses, result).map(|reply| Some(CallProgress::Done(reply)))
    }

    /// An earlier approval of these targets or wider ones, if the session has no more taint since. A plan without
    /// targets cannot have one.
    fn find_prior_approval(&self, accesses: &[ResourceAccess]) -> Option<&PriorApproval> {
        let covered = self.prior_approval.as_ref().filter(|_| !accesses.is_empty())?;
        if covered.taint != self.session.taint.snapshot() {
            return None;
        }
        let is_covered =
            |access: &ResourceAccess| covered.accesses.iter().any(|covered| is_covered_by(access, covered));
        accesses.iter().all(is_covered).then_some(covered)
    }

    /// Ends a call that never began to run, unless it was abandoned first.
    fn finish_refused(
        &self,
        accesses: &[ResourceAccess],
        error: &ToolError,
        cx: &CallContext<'_>,
    ) -> Result<Option<CallProgress>, HostError> {
        if cx.commit_state().commit().is_err() {
            return Ok(None);
        }
        let reply = self.error_reply(error);
        let event = AuditEvent::Refused { error, reply: &reply.text, duration: self.started.elapsed() };
        self.record_with_subject(cx.commit_state().subject(), accesses, event)?;
        Ok(Some(CallProgress::Done(reply)))
    }

    /// The progress of the call after a finished job.
    pub(crate) fn progress_after(
        &self,
        done: Option<Result<Option<CallProgress>, HostError>>,
    ) -> Result<CallProgress, HostError> {
        match done {
            Some(Ok(Some(step))) => Ok(step),
            Some(Err(fatal)) => Err(fatal),
            Some(Ok(None)) | None => self
                .record_end(&[], Err(ToolError::new(ErrorKind::Internal, "the call was lost before it finished")))
                .map(CallProgress::Done),
        }
    }

    pub(crate) fn refuse(&self, accesses: &[ResourceAccess], error: &ToolError) -> Result<ToolReply, HostError> {
        let reply = self.error_reply(error);
        self.record(accesses, AuditEvent::Refused { error, reply: &reply.text, duration: self.started.elapsed() })?;
        Ok(reply)
    }

    pub(crate) fn record_end(
        &self,
        accesses: &[ResourceAccess],
        result: Result<String, ToolError>,
    ) -> Result<ToolReply, HostError> {
        let (reply, error) = match result {
            Ok(text) => (ToolReply { call_id: self.call.id.clone(), text, error: None, suspended: None }, None),
            Err(error) => (self.error_reply(&error), Some(error)),
        };
        let duration = self.started.elapsed();
        self.record(accesses, AuditEvent::End { error: error.as_ref(), reply: &reply.text, duration })
            .map_err(HostError::EndUnrecorded)?;
        Ok(reply)
    }

    pub(crate) fn record_overdue(&self, why: AbandonReason, subject: Option<&str>) -> Result<ToolReply, HostError> {
        let error = why.error().hint("it had already started and may still be running").detail("committed", "unknown");
        let reply = self.error_reply(&error);
        let event = AuditEvent::Overdue { error: &error, reply: &reply.text, duration: self.started.elapsed() };
        self.record_with_subject(subject, &[], event)?;
        Ok(reply)
    }

    pub(crate) fn error_reply(&self, error: &ToolError) -> ToolReply {
        let text = self.session.dialect.render_error(error);
        ToolReply { call_id: self.call.id.clone(), text, error: Some(error.kind), suspended: None }
    }

    pub(crate) fn record(&self, accesses: &[ResourceAccess], event: AuditEvent<'_>) -> Result<(), AuditSinkError> {
        self.record_with_subject(None, accesses, event)
    }

    pub(crate) fn record_with_subject(
        &self,
        subject: Option<&str>,
        accesses: &[ResourceAccess],
        event: AuditEvent<'_>,
    ) -> Result<(), AuditSinkError> {
        if matches!(event, AuditEvent::End { .. }) {
            let UnlistedConnections { made, refused } = self.connection_log.take_unlisted();
            if made > 0 || refused > 0 {
                self.record(&[], AuditEvent::UnlistedConnections { made, refused })?;
            }
        }
        self.config.audit.record(&CallRecord {
            time: SystemTime::now(),
            session: &self.session,
            call_id: &self.call.id,
            tool: &self.call.name,
            arguments: &self.call.arguments,
            subject,
            accesses,
            event,
        })
    }
}

impl CallServices for Invocation {
    fn evaluate(&self, access: &ResourceAccess) -> Verdict {
        self.config.policy.evaluate(access, &self.policy_request(std::slice::from_ref(access)))
    }

    fn add_taint(&self, taint: Taint) {
        self.session.taint.add(taint);
    }

    fn report_progress(&self, progress: &ProgressUpdate<'_>) {
        if let Some(listener) = &self.listener {
            listener.on_progress(progress);
        }
    }

    fn record_connection(&self, access: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), AuditSinkError> {
        let outcome = if refused.is_some() { ConnectionOutcome::Refused } else { ConnectionOutcome::Made };
        if self.connection_log.should_record(access, outcome) {
            self.record(std::slice::from_ref(access), AuditEvent::Connection { refused })?;
            if outcome == ConnectionOutcome::Made {
                self.connection_log.mark_recorded(access);
            }
        }
        Ok(())
    }
}

/// The error for a call that the policy denies.
pub(crate) fn denial_error(verdict: &Verdict) -> ToolError {
    with_rule_details(ToolError::new(ErrorKind::PermissionDenied, verdict.reason.clone()), verdict)
}

/// The error for changed arguments of a call that has begun: it can only be approved as it is.
pub(crate) fn arguments_fixed_error() -> ToolError {
    let message = "the call has started, so its arguments cannot be changed; approve or deny what it does next";
    ToolError::new(ErrorKind::ApprovalDenied, message)
}

/// The error for a plan that is not the approved one any more.
pub(crate) fn plan_changed_error() -> ToolError {
    ToolError::new(ErrorKind::Conflict, "the approved plan has changed in the meantime; nothing was done")
}

/// Lets the policy know which grants hold now. True when they are others than before.
pub(crate) fn load_grants(parts: &HostConfig, directories: &BTreeMap<String, String>) -> Result<bool, StoreError> {
    let grants = parts.store.grants(SystemTime::now())?;
    let ours: Vec<Grant> = grants.into_iter().filter(|grant| grant.applies_to(directories)).collect();
    Ok(parts.policy.set_grants(&ours))
}

/// Authorization of a plan.
pub(crate) struct RunAuthorization<'a> {
    pub(crate) verdict: &'a Verdict,
    pub(crate) approval: Option<&'a Approval>,
}

/// A panic of a tool is a bug and not the end of the process: the call fails, the host goes on. For an abandoned call,
/// the end is recorded already.
pub(crate) fn catch_tool_panic(
    invocation: &Invocation,
    signal: &CommitState,
    work: impl FnOnce() -> Result<Option<CallProgress>, HostError>,
) -> Result<Option<CallProgress>, HostError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        if signal.commit().is_err() {
            return Ok(None);
        }
        invocation
            .record_end(&[], Err(ToolError::new(ErrorKind::Internal, "internal error in the tool")))
            .map(|reply| Some(CallProgress::Done(reply)))
    })
}

fn is_covered_by(access: &ResourceAccess, covered: &ResourceAccess) -> bool {
    let real = |access: &ResourceAccess| {
        access.resource.resolved_path.clone().unwrap_or_else(|| access.resource.requested_path.clone())
    };
    let (inner, outer) = (real(access), real(covered));
    let beneath = inner.strip_prefix(&outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let no_worse = access.action == covered.action
        || access.action == PolicyAction::List
        || (access.action, covered.action) == (PolicyAction::Create, PolicyAction::Overwrite);
    access.resource.mount == covered.resource.mount && beneath && no_worse
}
