//! Follow-up approval of the changes that a run left, group by group.
//!
//! Every group of changes is judged by the rules for a tool's own changes. Allowed and approved groups are committed as
//! one change; denied and unapproved ones are dropped and leave a record. There is at most one approval request, about
//! all groups that need one.
//!
//! Not here: which changes belong together. The tool that left them knows.

use crate::approval::ApprovalDenial;
use crate::audit::AuditEvent;
use crate::invocation::{Invocation, denial_error, plan_changed_error};
use crate::pending_approval::{ApprovalPrompt, PendingChangeGroups, PendingReview, UndecidedChanges};
use crate::reply::RenderedReply;
use crate::tool_binding::{ErasedPlan, PlanRunOutcome};
use crate::verdict::strictest;
use crate::{
    Approval, AuditSinkError, CallContext, ChangeGroup, ChangeGroupDecision, Decision, ErrorKind, HostError,
    ResourceAccess, ToolError, Verdict,
};

/// What follows from a decision about the changes of a run.
pub(crate) enum FollowUpStep {
    /// Some of them require approval.
    Review(Box<PendingReview>),
    /// Keeping some of them left others.
    More(UndecidedChanges),
    /// The call ends, with these accesses.
    End(Vec<ResourceAccess>, Result<RenderedReply, ToolError>),
}

impl Invocation {
    /// Decides about what a run left, and keeps what is allowed, unless some of it needs approval.
    pub(crate) fn decide_changes(
        &self,
        changes: UndecidedChanges,
        cx: &CallContext<'_>,
    ) -> Result<FollowUpStep, HostError> {
        let UndecidedChanges { plan: mut rest, groups, run_accesses } = changes;
        let is_allowed = |_: usize, verdict: &Verdict| verdict.decision == Decision::Allow;
        let seen = self.evaluate_groups(&groups, rest.as_ref(), is_allowed)?;
        let decide = |(group, verdict): (&ChangeGroup, &Option<Verdict>)| match (&group.refusal, verdict) {
            (None, Some(verdict)) => match verdict.decision {
                Decision::Allow => ChangeGroupDecision::Keep,
                Decision::Ask => ChangeGroupDecision::Ask,
                Decision::Deny => ChangeGroupDecision::Refuse(denial_error(verdict)),
            },
            (refused, _) => refuse_group(refused.as_ref()),
        };
        let decided = rest.reconcile(groups.iter().zip(&seen).map(decide).collect());
        let pending = PendingChangeGroups { run_accesses, groups, verdicts: seen };
        let asked: Vec<usize> = indices_where(&decided, |decision| *decision == ChangeGroupDecision::Ask);
        if asked.is_empty() {
            return self.keep_groups(rest, pending, &decided, None, cx);
        }
        let asked_verdicts = asked.iter().filter_map(|index| pending.verdicts.get(*index).cloned().flatten());
        let verdict = strictest(asked_verdicts).unwrap_or_else(Verdict::unknown_effect);
        let accesses = pending.accesses_of(&asked);
        match rest.preview(cx) {
            Ok(preview) => {
                // Changes of a program are never granted persistently.
                let prompt = ApprovalPrompt { verdict, preview: preview.bound_to(&accesses), grant: None };
                Ok(FollowUpStep::Review(Box::new(PendingReview { plan: rest, changes: pending, prompt })))
            }
            Err(error) if is_abandoned(&error) => {
                Ok(FollowUpStep::End(pending.run_accesses, rest.abort(error, self.notes)))
            }
            Err(error) => {
                let decided = rest.reconcile(replace_asks(decided, &ChangeGroupDecision::Refuse(error)));
                self.keep_groups(rest, pending, &decided, None, cx)
            }
        }
    }

    /// Decides about what a person answered, by the rules that hold now.
    pub(crate) fn decide_reviewed(
        &self,
        review: PendingReview,
        answer: Result<Approval, ApprovalDenial>,
        cx: &CallContext<'_>,
    ) -> Result<FollowUpStep, HostError> {
        let PendingReview { plan: mut planned, changes: pending, .. } = review;
        let answer = answer.as_ref();
        let refused = answer.err().cloned().unwrap_or_else(|| ApprovalDenial::Error(plan_changed_error()));
        let approval = answer.ok();
        let holds = |index: usize, verdict: &Verdict| match verdict.decision {
            Decision::Allow => true,
            // Where by now only a review is wanted, there just was one.
            Decision::Ask => approval.is_some_and(|approval| {
                pending.verdicts.get(index).is_some_and(|seen| seen.as_ref() == Some(verdict))
                    || verdict.is_review() && approval.assurance >= verdict.assurance
            }),
            Decision::Deny => false,
        };
        let judged = self.evaluate_groups(&pending.groups, planned.as_ref(), holds)?;
        let decide = |(index, group): (usize, &ChangeGroup)| match judged.get(index) {
            Some(Some(verdict)) if group.refusal.is_none() => match verdict.decision {
                _ if holds(index, verdict) => ChangeGroupDecision::Keep,
                Decision::Deny => ChangeGroupDecision::Refuse(denial_error(verdict)),
                _ => ChangeGroupDecision::Refuse(refused.error(verdict)),
            },
            _ => refuse_group(group.refusal.as_ref()),
        };
        let decided = planned.reconcile(pending.groups.iter().enumerate().map(decide).collect());
        self.keep_groups(planned, pending, &decided, approval, cx)
    }

    /// Commits every group that is to be kept, as one change. Discarded groups are recorded first.
    fn keep_groups(
        &self,
        planned: Box<dyn ErasedPlan>,
        pending: PendingChangeGroups,
        decided: &[ChangeGroupDecision],
        approval: Option<&Approval>,
        cx: &CallContext<'_>,
    ) -> Result<FollowUpStep, HostError> {
        let refusal = |(index, decision): (usize, &ChangeGroupDecision)| match decision {
            ChangeGroupDecision::Refuse(error) => Some((index, error.clone())),
            ChangeGroupDecision::Keep | ChangeGroupDecision::Ask => None,
        };
        let refused: Vec<(usize, ToolError)> = decided.iter().enumerate().filter_map(refusal).collect();
        self.record_discarded(&pending, &refused)?;
        let kept = indices_where(decided, |decision| *decision == ChangeGroupDecision::Keep);
        if kept.is_empty() {
            let error = refused.into_iter().next().map_or_else(plan_changed_error, |(_, error)| error);
            return Ok(FollowUpStep::End(pending.run_accesses, planned.abort(error, self.notes)));
        }
        let accesses = pending.accesses_of(&kept);
        let verdicts = kept.iter().filter_map(|index| pending.verdicts.get(*index).cloned().flatten());
        let verdict = strictest(verdicts).unwrap_or_else(Verdict::unknown_effect);
        let approval = approval.filter(|_| verdict.decision == Decision::Ask);
        let ticket = self.issue_ticket(&accesses, &verdict, approval, cx)?;
        let result = match planned.run(&ticket, self.notes) {
            Ok(PlanRunOutcome::FollowUp(groups, plan)) => {
                return Ok(FollowUpStep::More(UndecidedChanges { plan, groups, run_accesses: accesses }));
            }
            Ok(PlanRunOutcome::Finished(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        let withheld = ticket.withheld();
        self.record_discarded(&pending, &withheld)?;
        let made: Vec<usize> =
            kept.into_iter().filter(|kept| !withheld.iter().any(|(index, _)| index == kept)).collect();
        let made = if made.is_empty() { pending.run_accesses } else { pending.accesses_of(&made) };
        Ok(FollowUpStep::End(made, result))
    }

    /// The decision about each group, as about its strictest access. The taint of the groups that may be kept is added
    /// in the same step: if another call added taint in between, the groups are judged again.
    fn evaluate_groups(
        &self,
        groups: &[ChangeGroup],
        planned: &dyn ErasedPlan,
        holds: impl Fn(usize, &Verdict) -> bool,
    ) -> Result<Vec<Option<Verdict>>, HostError> {
        loop {
            let possible = groups.iter().filter(|group| group.refusal.is_none());
            let accesses: Vec<ResourceAccess> = possible.flat_map(|group| group.accesses.iter().cloned()).collect();
            let request = self.policy_request_as(planned.acts_as(), &accesses);
            let judge = |group: &ChangeGroup| {
                let judged = group.accesses.iter().map(|access| self.host.config.policy.evaluate(access, &request));
                let verdict = strictest(judged).unwrap_or_else(Verdict::unknown_effect);
                match planned.required_review() {
                    Some(review) => verdict.requiring_review(review),
                    None => verdict,
                }
            };
            let judged: Vec<Option<Verdict>> =
                groups.iter().map(|group| group.refusal.is_none().then(|| judge(group))).collect();
            if self.refresh_grants()? {
                continue;
            }
            let is_kept = |(index, verdict): (usize, &Option<Verdict>)| {
                verdict.as_ref().is_some_and(|verdict| holds(index, verdict))
            };
            let kept: Vec<bool> = judged.iter().enumerate().map(is_kept).collect();
            let kept_groups = groups.iter().zip(kept).filter(|(_, kept)| *kept);
            let kept_accesses: Vec<ResourceAccess> =
                kept_groups.flat_map(|(group, _)| group.accesses.iter().cloned()).collect();
            let raises = self.policy_request(&kept_accesses).added_taint();
            if self.session.taint.compare_and_add(request.taint, raises) {
                return Ok(judged);
            }
        }
    }

    /// One record for each kind of reason, with everything that it holds for.
    fn record_discarded(
        &self,
        pending: &PendingChangeGroups,
        refused: &[(usize, ToolError)],
    ) -> Result<(), AuditSinkError> {
        let mut kinds: Vec<(&ToolError, Vec<usize>)> = Vec::new();
        for (index, error) in refused {
            match kinds.iter_mut().find(|(first, _)| first.kind == error.kind) {
                Some((_, indices)) => indices.push(*index),
                None => kinds.push((error, vec![*index])),
            }
        }
        for (error, indices) in kinds {
            let mut accesses = pending.accesses_of(&indices);
            // A host that a redirect leads to and that is not asked is in the error of the call.
            accesses.retain(|access| access.action.changes_files());
            if !accesses.is_empty() {
                self.record(&accesses, AuditEvent::ChangesDiscarded { error })?;
            }
        }
        Ok(())
    }
}

fn indices_where<T>(all: &[T], wanted: impl Fn(&T) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, one)| wanted(one)).map(|(index, _)| index).collect()
}

fn refuse_group(why: Option<&ToolError>) -> ChangeGroupDecision {
    ChangeGroupDecision::Refuse(why.cloned().unwrap_or_else(plan_changed_error))
}

fn replace_asks(decided: Vec<ChangeGroupDecision>, instead: &ChangeGroupDecision) -> Vec<ChangeGroupDecision> {
    let replace = |decision| if decision == ChangeGroupDecision::Ask { instead.clone() } else { decision };
    decided.into_iter().map(replace).collect()
}

/// Whether the call was cancelled or timed out.
fn is_abandoned(error: &ToolError) -> bool {
    matches!(error.kind, ErrorKind::Cancelled | ErrorKind::Timeout)
}
