//! One call on its way: planned, policed, shown, recorded, run.
//!
//! All of it happens on one thread, the caller's own or a worker. What takes a person is handed back (`Leg::Asked`).
//!
//! Not here: waiting for that thread, and asking (`host.rs`).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::ask::Shown;
use crate::dialect::Notes;
use crate::face::{Offer, Planned, Ran};
use crate::gate::explained;
use crate::grants::subject_of;
use crate::record::Moment;
use crate::settlement::PendingGroups;
use crate::tally::{Outcome, Tally, Unlisted};
use crate::tool::Road;
use crate::{
    Abandon, Approval, AuditLost, Bit, BitSet, Context, Decision, ErrorKind, Fatal, Grant, Listener, Origin, Pace,
    Parts, Preview, Progress, Question, Record, Reply, Session, Signal, StoreLost, Ticket, ToolCall, ToolError, Touch,
    Verb, Verdict, id,
};

/// How far a piece of work got.
pub(crate) enum Leg {
    Done(Reply),
    Asked(Box<Asked>),
}

/// A plan that waits for a person.
pub(crate) struct Asked {
    pub(crate) planned: Box<dyn Planned>,
    pub(crate) touches: Vec<Touch>,
    /// What the session had been through then.
    pub(crate) bits: BitSet,
    pub(crate) shown: Shown,
    /// Where this is what a run left to decide about: all of it.
    pub(crate) rest: Option<PendingGroups>,
}

impl Asked {
    pub(crate) fn is_rest(&self) -> bool {
        self.rest.is_some()
    }
}

/// One call on its way.
#[derive(Debug)]
pub(crate) struct Trip {
    pub(crate) parts: Arc<Parts>,
    pub(crate) directories: Arc<BTreeMap<String, String>>,
    pub(crate) session: Arc<Session>,
    pub(crate) call: ToolCall,
    pub(crate) started: Instant,
    /// How long a piece of work for it may take.
    pub(crate) time: Duration,
    pub(crate) stops_itself: bool,
    pub(crate) origin: Origin,
    /// What a person said yes to when they changed the arguments.
    pub(crate) covered: Option<Covered>,
    pub(crate) notes: Notes,
    pub(crate) listener: Option<Arc<dyn Listener>>,
    pub(crate) tally: Tally,
}

/// What somebody saw when they said yes.
#[derive(Debug)]
pub(crate) struct Covered {
    pub(crate) touches: Vec<Touch>,
    pub(crate) bits: BitSet,
    pub(crate) fingerprint: String,
    pub(crate) approval: Approval,
}

impl Covered {
    /// Fails where the same target is no longer what a person saw when they said yes.
    fn check_unmoved(&self, touches: &[Touch], planned: &mut dyn Planned, cx: &Context<'_>) -> Result<(), ToolError> {
        if self.touches == touches && planned.preview(cx)?.about(touches).fingerprint() != self.fingerprint {
            return Err(moved());
        }
        Ok(())
    }
}

impl Trip {
    /// The same call with the arguments that a person put in.
    pub(crate) fn changed(&self, arguments: String, covered: Covered) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
            directories: Arc::clone(&self.directories),
            session: Arc::clone(&self.session),
            call: ToolCall { arguments, ..self.call.clone() },
            started: self.started,
            time: self.time,
            stops_itself: self.stops_itself,
            origin: self.origin.clone(),
            covered: Some(covered),
            notes: Notes { modified: true },
            listener: self.listener.clone(),
            tally: Tally::default(),
        }
    }

    /// Tries the call on the caller's own thread. `None` when it would have had to wait.
    pub(crate) fn go_quickly(&self, offer: &dyn Offer) -> Result<Option<Leg>, Fatal> {
        let signal = Signal::new();
        let cx = Context::new(&self.session.limits, Pace::Quick, &signal).on_road(self).made_by(&self.origin);
        let leg = guarded(self, &signal, || self.travel(offer, &cx))?;
        Ok(if cx.stalled() { None } else { leg })
    }

    pub(crate) fn go(&self, offer: &dyn Offer, signal: &Signal) -> Result<Option<Leg>, Fatal> {
        self.travel(
            offer,
            &Context::new(&self.session.limits, Pace::Patient, signal).on_road(self).made_by(&self.origin),
        )
    }

    pub(crate) fn run_approved(
        &self,
        asked: Box<Asked>,
        approval: &Approval,
        signal: &Signal,
    ) -> Result<Option<Leg>, Fatal> {
        let cx = Context::new(&self.session.limits, Pace::Patient, signal).on_road(self).made_by(&self.origin);
        let seen = asked.shown.verdict.clone();
        // Where by now only a look is wanted, somebody just had it.
        let enough =
            |verdict: &Verdict| *verdict == seen || verdict.is_review() && approval.assurance >= verdict.assurance;
        let may_run = |verdict: &Verdict| verdict.decision == Decision::Allow || enough(verdict);
        let (verdict, _) = self.police(&asked.touches, asked.planned.as_ref(), &cx, may_run)?;
        let refused = match verdict.decision {
            Decision::Deny => denial(&verdict),
            // Other calls went on while somebody was asked: this is no longer what they were told.
            Decision::Ask if !enough(&verdict) => moved(),
            _ => {
                let permission = Permission { verdict: &verdict, approval: Some(approval) };
                return self.run(asked.planned, &asked.touches, permission, &cx);
            }
        };
        self.settle(&asked.touches, &refused, &cx)
    }

    /// Decode, plan, police. `None` when nobody waits for the result any more, or the quick attempt stalled.
    fn travel(&self, offer: &dyn Offer, cx: &Context<'_>) -> Result<Option<Leg>, Fatal> {
        let (touches, mut planned) = match offer.plan(&self.call.arguments, cx) {
            Ok(plan) => plan,
            Err(_) if cx.stalled() => return Ok(None),
            Err(error) => return self.settle(&[], &self.unless_hidden(error, cx), cx),
        };
        let covered = self.covers(&touches);
        let (verdict, bits) = self.police(&touches, planned.as_ref(), cx, |verdict| match verdict.decision {
            Decision::Allow => true,
            Decision::Ask => covered.is_some(),
            Decision::Deny => false,
        })?;
        match (verdict.decision, covered) {
            (Decision::Allow, _) => self.run(planned, &touches, Permission { verdict: &verdict, approval: None }, cx),
            (Decision::Ask, Some(covered)) => match covered.check_unmoved(&touches, planned.as_mut(), cx) {
                Ok(()) => {
                    let approval = Some(&covered.approval);
                    self.run(planned, &touches, Permission { verdict: &verdict, approval }, cx)
                }
                Err(_) if cx.stalled() => Ok(None),
                Err(error) => self.settle(&touches, &error, cx),
            },
            // What is shown may take a while, and so may a look at what was granted meanwhile.
            (Decision::Ask, None) if cx.pace == Pace::Quick => {
                let _ = cx.stall();
                Ok(None)
            }
            (Decision::Ask, None) => match planned.preview(cx) {
                // Nobody is asked about a call that is known to fail, as long as the reason is the caller's to know.
                Ok(preview) if preview.failure().is_some() && self.may_read_unasked(&touches) => {
                    let failure = preview.failure().cloned().unwrap_or_else(moved);
                    self.settle(&touches, &failure, cx)
                }
                Ok(preview) => {
                    let asked = self.show(planned, touches, verdict, bits, preview);
                    Ok(Some(Leg::Asked(Box::new(asked))))
                }
                Err(error) => self.settle(&touches, &error, cx),
            },
            (Decision::Deny, _) => self.settle(&touches, &self.unless_hidden(denial(&verdict), cx), cx),
        }
    }

    /// Whether everything that a plan touches may be read without a question, and without a trace in the session.
    fn may_read_unasked(&self, touches: &[Touch]) -> bool {
        let may_read = |touch: &Touch| {
            let read = Touch { verb: Verb::Read, place: touch.place.clone() };
            Bit::raised_by(&read).is_none() && self.judge(&read).decision == Decision::Allow
        };
        touches.iter().all(may_read)
    }

    /// Why there is no plan, or a plan is denied. What is or is not where nobody may even list is not told: both are said
    /// in the same words.
    fn unless_hidden(&self, error: ToolError, cx: &Context<'_>) -> ToolError {
        let list = |place| self.judge(&Touch { verb: Verb::List, place });
        let denied = cx.sought().into_iter().map(list).find(|verdict| verdict.decision == Decision::Deny);
        match denied {
            Some(verdict) => denial(&verdict),
            None => error.name_alternative(|place| list(place.clone()).decision != Decision::Deny),
        }
    }

    /// Plans and polices a call that came back with an answer, and runs nothing yet.
    pub(crate) fn look_again(&self, offer: &dyn Offer, signal: &Signal) -> Result<Option<Leg>, Fatal> {
        let cx = Context::new(&self.session.limits, Pace::Patient, signal).on_road(self).made_by(&self.origin);
        let (touches, mut planned) = match offer.plan(&self.call.arguments, &cx) {
            Ok(plan) => plan,
            Err(error) => return self.settle(&[], &self.unless_hidden(error, &cx), &cx),
        };
        let (verdict, bits) = self.police(&touches, planned.as_ref(), &cx, |_| false)?;
        match verdict.decision {
            Decision::Deny => self.settle(&touches, &self.unless_hidden(denial(&verdict), &cx), &cx),
            _ => match planned.preview(&cx) {
                Ok(preview) => Ok(Some(Leg::Asked(Box::new(self.show(planned, touches, verdict, bits, preview))))),
                Err(error) => self.settle(&touches, &error, &cx),
            },
        }
    }

    fn show(
        &self,
        planned: Box<dyn Planned>,
        touches: Vec<Touch>,
        verdict: Verdict,
        bits: BitSet,
        preview: Preview,
    ) -> Asked {
        // What goes for good is asked about each time.
        let is_ours = |touch: &Touch| touch.verb != Verb::Lose && self.directories.contains_key(&subject_of(touch));
        let grant = match touches.iter().all(is_ours) {
            true => self.parts.policy.grant_for(&self.question(&touches)),
            false => None,
        };
        let shown = Shown { verdict, preview: preview.about(&touches), grant };
        Asked { planned, touches, bits, shown, rest: None }
    }

    /// Decides, and where the call may run then, raises the bits that it raises. Both are one step: if another call
    /// raised a bit in between, it is decided again.
    fn police(
        &self,
        touches: &[Touch],
        planned: &dyn Planned,
        cx: &Context<'_>,
        may_run: impl Fn(&Verdict) -> bool,
    ) -> Result<(Verdict, BitSet), Fatal> {
        loop {
            let question = self.question(touches);
            let verdict = self.parts.policy.decide(&question);
            let review = planned.wants_review().filter(|_| verdict.decision == Decision::Allow);
            let verdict = match review {
                Some(review) => verdict.for_review(review),
                None => verdict,
            };
            let grants_matter = verdict.decision == Decision::Ask || touches.iter().any(|touch| touch.verb.changes());
            if grants_matter && cx.pace == Pace::Patient && self.hear_of_grants()? {
                continue;
            }
            // A quick attempt that raises a bit is made again by a worker, and must not meet its own bit there.
            let runs = may_run(&verdict) && cx.pace == Pace::Patient;
            if !runs || self.session.bits.raise_from(question.bits, question.raises()) {
                return Ok((verdict, question.bits));
            }
        }
    }

    /// Another process may have granted something, or taken it back. True when that is so.
    pub(crate) fn hear_of_grants(&self) -> Result<bool, StoreLost> {
        if self.directories.is_empty() {
            return Ok(false);
        }
        hold_grants(&self.parts, &self.directories)
    }

    pub(crate) fn question<'a>(&'a self, touches: &'a [Touch]) -> Question<'a> {
        Question::new(&self.session, &self.call.name, touches, self.session.bits.now())
    }

    fn run(
        &self,
        planned: Box<dyn Planned>,
        touches: &[Touch],
        permission: Permission<'_>,
        cx: &Context<'_>,
    ) -> Result<Option<Leg>, Fatal> {
        let changes = touches.iter().any(|touch| touch.verb.changes());
        let matters = changes || touches.iter().any(|touch| Bit::raised_by(touch).is_some());
        if matters && cx.pace == Pace::Quick {
            let _ = cx.stall();
            return Ok(None);
        }
        let ticket = self.begin(touches, permission, cx)?;
        let result = match planned.run(&ticket, self.notes) {
            Ok(Ran::Rest(groups, rest)) => return self.run_rest(rest, groups, touches, cx),
            Ok(Ran::Said(text)) => Ok(text),
            Err(error) => Err(error),
        };
        self.deliver(touches, result, cx)
    }

    /// Records that something is about to be done, and gives the right to do it.
    pub(crate) fn begin<'t>(
        &self,
        touches: &'t [Touch],
        Permission { verdict: Verdict { rule, layer, .. }, approval: approved }: Permission<'t>,
        cx: &'t Context<'t>,
    ) -> Result<Ticket<'t>, Fatal> {
        let changes = touches.iter().any(|touch| touch.verb.changes());
        let change = if changes { id::mint("c")? } else { String::new() };
        self.record(touches, Moment::Begin { rule, layer: *layer, approved, change: &change })?;
        Ok(Ticket::new(cx, change, approved, touches))
    }

    /// Ends a call that ran, unless the road gave up on it first.
    pub(crate) fn deliver(
        &self,
        touches: &[Touch],
        result: Result<String, ToolError>,
        cx: &Context<'_>,
    ) -> Result<Option<Leg>, Fatal> {
        // From here on the reply is ours to give, or nobody's.
        if cx.stalled() || cx.signal().commit().is_err() {
            return Ok(None);
        }
        self.end(touches, result).map(|reply| Some(Leg::Done(reply)))
    }

    /// What a person already said yes to, if it was these targets or wider ones, in a session that has been through
    /// no more since. Nobody can have said yes to a plan that names no target.
    fn covers(&self, touches: &[Touch]) -> Option<&Covered> {
        let covered = self.covered.as_ref().filter(|_| !touches.is_empty())?;
        if covered.bits != self.session.bits.now() {
            return None;
        }
        let is_covered = |touch: &Touch| covered.touches.iter().any(|covered| is_within(touch, covered));
        touches.iter().all(is_covered).then_some(covered)
    }

    /// Ends a call that never began to run, unless the road gave up on it first.
    fn settle(&self, touches: &[Touch], error: &ToolError, cx: &Context<'_>) -> Result<Option<Leg>, Fatal> {
        if cx.signal().commit().is_err() {
            return Ok(None);
        }
        let reply = self.error_reply(error);
        let moment = Moment::Refused { error, reply: &reply.text, duration: self.started.elapsed() };
        self.record_about(cx.signal().subject(), touches, moment)?;
        Ok(Some(Leg::Done(reply)))
    }

    /// What a finished job means for the one who waited.
    pub(crate) fn arrived(&self, done: Option<Result<Option<Leg>, Fatal>>) -> Result<Leg, Fatal> {
        match done {
            Some(Ok(Some(leg))) => Ok(leg),
            Some(Err(fatal)) => Err(fatal),
            Some(Ok(None)) | None => {
                self.end(&[], Err(ToolError::new(ErrorKind::Internal, "the call was lost on the way"))).map(Leg::Done)
            }
        }
    }

    pub(crate) fn refuse(&self, touches: &[Touch], error: &ToolError) -> Result<Reply, Fatal> {
        let reply = self.error_reply(error);
        self.record(touches, Moment::Refused { error, reply: &reply.text, duration: self.started.elapsed() })?;
        Ok(reply)
    }

    pub(crate) fn end(&self, touches: &[Touch], result: Result<String, ToolError>) -> Result<Reply, Fatal> {
        let (reply, error) = match result {
            Ok(text) => (Reply { call_id: self.call.id.clone(), text, error: None, suspended: None }, None),
            Err(error) => (self.error_reply(&error), Some(error)),
        };
        let duration = self.started.elapsed();
        self.record(touches, Moment::End { error: error.as_ref(), reply: &reply.text, duration })
            .map_err(Fatal::EndUnrecorded)?;
        Ok(reply)
    }

    pub(crate) fn overdue(&self, why: Abandon, subject: Option<&str>) -> Result<Reply, Fatal> {
        let error =
            why.error().hint("it was already being carried out, and may still be").detail("committed", "unknown");
        let reply = self.error_reply(&error);
        let moment = Moment::Overdue { error: &error, reply: &reply.text, duration: self.started.elapsed() };
        self.record_about(subject, &[], moment)?;
        Ok(reply)
    }

    pub(crate) fn error_reply(&self, error: &ToolError) -> Reply {
        let text = self.session.dialect.render_error(error);
        Reply { call_id: self.call.id.clone(), text, error: Some(error.kind), suspended: None }
    }

    pub(crate) fn record(&self, touches: &[Touch], moment: Moment<'_>) -> Result<(), AuditLost> {
        self.record_about(None, touches, moment)
    }

    pub(crate) fn record_about(
        &self,
        subject: Option<&str>,
        touches: &[Touch],
        moment: Moment<'_>,
    ) -> Result<(), AuditLost> {
        if matches!(moment, Moment::End { .. }) {
            let Unlisted { made, refused } = self.tally.unlisted();
            if made > 0 || refused > 0 {
                self.record(&[], Moment::ReachedUnlisted { made, refused })?;
            }
        }
        self.parts.audit.record(&Record {
            at: SystemTime::now(),
            session: &self.session,
            call_id: &self.call.id,
            tool: &self.call.name,
            arguments: &self.call.arguments,
            subject,
            touches,
            moment,
        })
    }
}

impl Road for Trip {
    fn judge(&self, touch: &Touch) -> Verdict {
        self.parts.policy.judge(touch, &self.question(std::slice::from_ref(touch)))
    }

    fn raise(&self, bit: Bit) {
        self.session.bits.raise(bit);
    }

    fn report(&self, progress: &Progress<'_>) {
        if let Some(listener) = &self.listener {
            listener.hear(progress);
        }
    }

    fn reached(&self, touch: &Touch, refused: Option<&ToolError>) -> Result<(), AuditLost> {
        let outcome = if refused.is_some() { Outcome::Refused } else { Outcome::Made };
        if self.tally.lists(touch, outcome) {
            self.record(std::slice::from_ref(touch), Moment::Reached { refused })?;
            if outcome == Outcome::Made {
                self.tally.recorded(touch);
            }
        }
        Ok(())
    }
}

/// What the policy refuses.
pub(crate) fn denial(verdict: &Verdict) -> ToolError {
    explained(ToolError::new(ErrorKind::PermissionDenied, verdict.reason.clone()), verdict)
}

/// What a call has begun cannot be asked about any other way than while it waits.
pub(crate) fn too_late() -> ToolError {
    let message =
        "the call has begun, and its arguments stay as they are; what it does next can be approved or refused";
    ToolError::new(ErrorKind::ApprovalDenied, message)
}

/// What somebody said yes to is no longer so.
pub(crate) fn moved() -> ToolError {
    ToolError::new(ErrorKind::Conflict, "what was approved has changed meanwhile; nothing was done")
}

/// Lets the policy know which grants hold now. True when they are others than before.
pub(crate) fn hold_grants(parts: &Parts, directories: &BTreeMap<String, String>) -> Result<bool, StoreLost> {
    let grants = parts.store.grants(SystemTime::now())?;
    let ours: Vec<Grant> = grants.into_iter().filter(|grant| grant.is_about(directories)).collect();
    Ok(parts.policy.hold_grants(&ours))
}

/// Why a plan may run.
pub(crate) struct Permission<'a> {
    pub(crate) verdict: &'a Verdict,
    pub(crate) approval: Option<&'a Approval>,
}

/// A tool that panics is a bug of ours and not the caller's end: the call fails, the host goes on. Of a call that
/// the road gave up on, the end is recorded already.
pub(crate) fn guarded(
    trip: &Trip,
    signal: &Signal,
    work: impl FnOnce() -> Result<Option<Leg>, Fatal>,
) -> Result<Option<Leg>, Fatal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        if signal.commit().is_err() {
            return Ok(None);
        }
        trip.end(&[], Err(ToolError::new(ErrorKind::Internal, "the tool failed in a way that it should not")))
            .map(|reply| Some(Leg::Done(reply)))
    })
}

fn is_within(touch: &Touch, covered: &Touch) -> bool {
    let real = |touch: &Touch| touch.place.resolved.clone().unwrap_or_else(|| touch.place.given.clone());
    let (inner, outer) = (real(touch), real(covered));
    let beneath = inner.strip_prefix(&outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let no_worse = touch.verb == covered.verb
        || touch.verb == Verb::List
        || (touch.verb, covered.verb) == (Verb::Create, Verb::Overwrite);
    touch.place.mount == covered.place.mount && beneath && no_worse
}
