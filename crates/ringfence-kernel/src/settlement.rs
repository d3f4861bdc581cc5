//! Deciding about what a run left, group by group.
//!
//! Every group of changes is judged by the rules that hold for a tool's own change. What is allowed and what a person says
//! yes to is made as one change; what is denied, or asked about without a yes, is dropped and leaves a record. There is at
//! most one question, about all groups that ask.
//!
//! Not here: which changes belong together. The tool that left them knows.

use crate::ask::Shown;
use crate::face::{Planned, Ran};
use crate::record::Moment;
use crate::rules::strictest;
use crate::trip::{Asked, Leg, Permission, Trip, denial, moved};
use crate::{
    Approval, AuditLost, BitSet, ChangeGroup, Context, Decision, ErrorKind, Fatal, KeepDecision, Pace, Reply, Signal,
    ToolError, Touch, Verdict,
};

/// What a run left, while a person is asked about some of it.
pub(crate) struct PendingGroups {
    /// What the run itself touched.
    ran: Vec<Touch>,
    groups: Vec<ChangeGroup>,
    /// What the policy said to each. Nothing for a group that cannot be kept at all.
    seen: Vec<Option<Verdict>>,
}

impl Trip {
    /// Polices what a run left, and makes what is allowed, unless a person has to be asked about the rest.
    pub(crate) fn run_rest(
        &self,
        mut rest: Box<dyn Planned>,
        groups: Vec<ChangeGroup>,
        ran: &[Touch],
        cx: &Context<'_>,
    ) -> Result<Option<Leg>, Fatal> {
        let is_allowed = |_: usize, verdict: &Verdict| verdict.decision == Decision::Allow;
        let (seen, bits) = self.judge_groups(&groups, rest.as_ref(), is_allowed)?;
        let decide = |(group, verdict): (&ChangeGroup, &Option<Verdict>)| match (&group.refused, verdict) {
            (None, Some(verdict)) => match verdict.decision {
                Decision::Allow => KeepDecision::Keep,
                Decision::Ask => KeepDecision::Ask,
                Decision::Deny => KeepDecision::Refuse(denial(verdict)),
            },
            (refused, _) => refuse(refused.as_ref()),
        };
        let decided = rest.settle(groups.iter().zip(&seen).map(decide).collect());
        let pending = PendingGroups { ran: ran.to_vec(), groups, seen };
        let asked: Vec<usize> = positions(&decided, |decision| *decision == KeepDecision::Ask);
        if asked.is_empty() {
            return self.keep_groups(rest, &pending, &decided, None, cx);
        }
        let asked_verdicts = asked.iter().filter_map(|index| pending.seen.get(*index).cloned().flatten());
        let verdict = strictest(asked_verdicts).unwrap_or_else(Verdict::unknown_effect);
        let touches = pending.touches_of(&asked);
        match rest.preview(cx) {
            Ok(preview) => {
                // What code did is never allowed for good.
                let shown = Shown { verdict, preview: preview.about(&touches), grant: None };
                let asked = Asked { planned: rest, touches, bits, shown, rest: Some(pending) };
                Ok(Some(Leg::Asked(Box::new(asked))))
            }
            Err(error) if is_over(&error) => self.leave_on_worker(rest, &pending.ran, error, cx),
            Err(error) => {
                let decided = rest.settle(instead_of_asking(decided, &KeepDecision::Refuse(error)));
                self.keep_groups(rest, &pending, &decided, None, cx)
            }
        }
    }

    /// Goes on with what a person was asked about. The rules are asked once more: what they say by now counts.
    pub(crate) fn settle_rest(
        &self,
        asked: Asked,
        answer: Result<&Approval, ToolError>,
        signal: &Signal,
    ) -> Result<Option<Leg>, Fatal> {
        let cx = Context::new(&self.session.limits, Pace::Patient, signal).on_road(self).made_by(&self.origin);
        let Asked { mut planned, rest: Some(pending), .. } = asked else { return Ok(None) };
        let refused = answer.as_ref().err().cloned().unwrap_or_else(moved);
        let approval = answer.ok();
        let holds = |index: usize, verdict: &Verdict| match verdict.decision {
            Decision::Allow => true,
            // Where by now only a review is wanted, there just was one.
            Decision::Ask => approval.is_some_and(|approval| {
                pending.seen.get(index).is_some_and(|seen| seen.as_ref() == Some(verdict))
                    || verdict.is_review() && approval.assurance >= verdict.assurance
            }),
            Decision::Deny => false,
        };
        let (judged, _) = self.judge_groups(&pending.groups, planned.as_ref(), holds)?;
        let decide = |(index, group): (usize, &ChangeGroup)| match judged.get(index) {
            Some(Some(verdict)) if group.refused.is_none() => match verdict.decision {
                _ if holds(index, verdict) => KeepDecision::Keep,
                Decision::Deny => KeepDecision::Refuse(denial(verdict)),
                _ => KeepDecision::Refuse(refused.clone()),
            },
            _ => refuse(group.refused.as_ref()),
        };
        let decided = planned.settle(pending.groups.iter().enumerate().map(decide).collect());
        self.keep_groups(planned, &pending, &decided, approval, &cx)
    }

    /// Makes every group that is to be kept, as one change. What is not kept leaves a record first.
    fn keep_groups(
        &self,
        planned: Box<dyn Planned>,
        pending: &PendingGroups,
        decided: &[KeepDecision],
        approval: Option<&Approval>,
        cx: &Context<'_>,
    ) -> Result<Option<Leg>, Fatal> {
        let refusal = |(index, decision): (usize, &KeepDecision)| match decision {
            KeepDecision::Refuse(error) => Some((index, error.clone())),
            KeepDecision::Keep | KeepDecision::Ask => None,
        };
        let refused: Vec<(usize, ToolError)> = decided.iter().enumerate().filter_map(refusal).collect();
        self.record_not_kept(pending, &refused)?;
        let kept = positions(decided, |decision| *decision == KeepDecision::Keep);
        if kept.is_empty() {
            let error = refused.into_iter().next().map_or_else(moved, |(_, error)| error);
            return self.leave_on_worker(planned, &pending.ran, error, cx);
        }
        let touches = pending.touches_of(&kept);
        let verdicts = kept.iter().filter_map(|index| pending.seen.get(*index).cloned().flatten());
        let verdict = strictest(verdicts).unwrap_or_else(Verdict::unknown_effect);
        let approval = approval.filter(|_| verdict.decision == Decision::Ask);
        let ticket = self.begin(&touches, Permission { verdict: &verdict, approval }, cx)?;
        let result = match planned.run(&ticket, self.notes) {
            Ok(Ran::Rest(groups, rest)) => return self.run_rest(rest, groups, &touches, cx),
            Ok(Ran::Said(text)) => Ok(text),
            Err(error) => Err(error),
        };
        let withheld = ticket.withheld();
        self.record_not_kept(pending, &withheld)?;
        let made: Vec<usize> =
            kept.into_iter().filter(|kept| !withheld.iter().any(|(index, _)| index == kept)).collect();
        let made = if made.is_empty() { pending.ran.clone() } else { pending.touches_of(&made) };
        self.deliver(&made, result, cx)
    }

    /// What the policy says to each group, as to its strictest touch. The bits of what may be kept then are raised in the
    /// same step: if another call raised one in between, it is judged again.
    fn judge_groups(
        &self,
        groups: &[ChangeGroup],
        planned: &dyn Planned,
        holds: impl Fn(usize, &Verdict) -> bool,
    ) -> Result<(Vec<Option<Verdict>>, BitSet), Fatal> {
        loop {
            let possible = groups.iter().filter(|group| group.refused.is_none());
            let touches: Vec<Touch> = possible.flat_map(|group| group.touches.iter().cloned()).collect();
            let question = self.question(&touches);
            let judge = |group: &ChangeGroup| {
                let judged = group.touches.iter().map(|touch| self.parts.policy.judge(touch, &question));
                let verdict = strictest(judged).unwrap_or_else(Verdict::unknown_effect);
                match planned.wants_review().filter(|_| verdict.decision == Decision::Allow) {
                    Some(review) => verdict.for_review(review),
                    None => verdict,
                }
            };
            let judged: Vec<Option<Verdict>> =
                groups.iter().map(|group| group.refused.is_none().then(|| judge(group))).collect();
            if self.hear_of_grants()? {
                continue;
            }
            let is_kept = |(index, verdict): (usize, &Option<Verdict>)| {
                verdict.as_ref().is_some_and(|verdict| holds(index, verdict))
            };
            let kept: Vec<bool> = judged.iter().enumerate().map(is_kept).collect();
            let kept_groups = groups.iter().zip(kept).filter(|(_, kept)| *kept);
            let kept_touches: Vec<Touch> = kept_groups.flat_map(|(group, _)| group.touches.iter().cloned()).collect();
            let raises = self.question(&kept_touches).raises();
            if self.session.bits.raise_from(question.bits, raises) {
                return Ok((judged, question.bits));
            }
        }
    }

    /// One record for each kind of reason, with everything that it holds for.
    fn record_not_kept(&self, pending: &PendingGroups, refused: &[(usize, ToolError)]) -> Result<(), AuditLost> {
        let mut kinds: Vec<(&ToolError, Vec<usize>)> = Vec::new();
        for (index, error) in refused {
            match kinds.iter_mut().find(|(first, _)| first.kind == error.kind) {
                Some((_, indices)) => indices.push(*index),
                None => kinds.push((error, vec![*index])),
            }
        }
        for (error, indices) in kinds {
            let mut touches = pending.touches_of(&indices);
            // A host that a redirect leads to and that is not asked is in the error of the call.
            touches.retain(|touch| touch.verb.changes());
            if !touches.is_empty() {
                self.record(&touches, Moment::NotKept { error })?;
            }
        }
        Ok(())
    }

    /// Ends a call without anything of its rest.
    fn leave_on_worker(
        &self,
        rest: Box<dyn Planned>,
        ran: &[Touch],
        refused: ToolError,
        cx: &Context<'_>,
    ) -> Result<Option<Leg>, Fatal> {
        let result = rest.leave(refused, self.notes);
        self.deliver(ran, result, cx)
    }

    /// Ends a call whose caller cancelled it while a person was asked about its rest.
    pub(crate) fn leave(&self, asked: Asked, refused: ToolError) -> Result<Reply, Fatal> {
        let Asked { planned, rest, .. } = asked;
        let ran = match rest {
            Some(pending) => {
                let all = positions(&pending.groups, |_| true);
                let all: Vec<(usize, ToolError)> = all.into_iter().map(|index| (index, refused.clone())).collect();
                self.record_not_kept(&pending, &all)?;
                pending.ran
            }
            None => Vec::new(),
        };
        self.end(&ran, planned.leave(refused, self.notes))
    }
}

impl PendingGroups {
    fn touches_of(&self, indices: &[usize]) -> Vec<Touch> {
        let groups = indices.iter().filter_map(|index| self.groups.get(*index));
        groups.flat_map(|group| group.touches.iter().cloned()).collect()
    }
}

fn positions<T>(all: &[T], wanted: impl Fn(&T) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, one)| wanted(one)).map(|(index, _)| index).collect()
}

fn refuse(why: Option<&ToolError>) -> KeepDecision {
    KeepDecision::Refuse(why.cloned().unwrap_or_else(moved))
}

fn instead_of_asking(decided: Vec<KeepDecision>, instead: &KeepDecision) -> Vec<KeepDecision> {
    let replace = |decision| if decision == KeepDecision::Ask { instead.clone() } else { decision };
    decided.into_iter().map(replace).collect()
}

/// Whether the call was cancelled or timed out.
fn is_over(error: &ToolError) -> bool {
    matches!(error.kind, ErrorKind::Cancelled | ErrorKind::Timeout)
}
