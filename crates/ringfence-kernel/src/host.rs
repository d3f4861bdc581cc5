//! The road.
//!
//! `Host::call` takes a call from its name to its reply: find, decode, plan, police, ask, record, run, record.
//! A call never outlives its deadline for the one who waits, whatever the file system does; see `Signal` for
//! what that means for the work itself.
//!
//! Not here: what any step does. This file only says in which order they come.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::ask::{Heard, Shown, Suspended, not_yet};
use crate::dialect::Notes;
use crate::face::{Offer, Planned, Ran};
use crate::gate::{Answer, explained};
use crate::record::Moment;
use crate::tool::Road;
use crate::turn::Turns;
use crate::{
    Abandon, Approval, Approver, AuditLost, AuditSink, Bit, BitSet, Context, Decision, Desk, ErrorKind, Grant,
    Listener, Origin, Pace, Policy, Preview, Principal, Progress, Question, Record, Scope, Session, Signal, Store,
    StoreLost, Ticket, ToolError, Touch, Verb, Verdict, id,
};

/// How often a person may change the arguments of one call before it is refused.
const ROUNDS: usize = 3;

/// How long a committed change is waited for after its deadline, before the reply says that its end is unknown.
const GRACE: Duration = Duration::from_millis(250);

/// How long a call that ends by itself is given to do so.
const STOP_TIME: Duration = Duration::from_secs(5);

/// One request of a model: a tool by name, and its arguments as the model wrote them.
#[derive(Clone, Debug)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON text. It is parsed once, by the road.
    pub arguments: String,
}

/// What the model is told. An error reply is a reply.
#[derive(Clone, Debug)]
pub struct Reply {
    pub call_id: String,
    /// In the words of the session's dialect.
    pub text: String,
    pub error: Option<ErrorKind>,
    /// The call waits for a person, and can be brought back.
    pub suspended: Option<Suspended>,
}

/// What ends a run: without it no call can be made safely.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    #[error(transparent)]
    Audit(#[from] AuditLost),
    /// The world may have changed, and the trace does not say how it ended.
    #[error("the call was carried out, and its end could not be recorded")]
    EndUnrecorded(#[source] AuditLost),
    #[error(transparent)]
    Store(#[from] StoreLost),
    #[error("the system gives no random bytes")]
    Entropy(#[from] getrandom::Error),
}

/// What a host is made of.
#[derive(Debug)]
pub struct Parts {
    pub policy: Box<dyn Policy>,
    pub approver: Box<dyn Approver>,
    pub audit: Box<dyn AuditSink>,
    pub store: Box<dyn Store>,
    /// How many calls may be at work at once; further ones wait for their turn or their deadline.
    pub workers: usize,
}

/// Everything that stands between a call and the world.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) parts: Arc<Parts>,
    pub(crate) workers: Arc<Semaphore>,
    /// What each mount is, by its alias. Nothing can be granted on others.
    pub(crate) directories: Arc<BTreeMap<String, String>>,
    pub(crate) turns: Arc<Turns>,
}

impl Host {
    pub fn new(parts: Parts) -> Self {
        let workers = Arc::new(Semaphore::new(parts.workers.max(1)));
        Self { parts: Arc::new(parts), workers, directories: Arc::default(), turns: Arc::default() }
    }

    /// Lets people allow things for good on these mounts: for each alias, a name of the directory that no other one
    /// has, so that a grant is about the directory and not about whatever gets the alias next.
    #[must_use]
    pub fn with_grants(self, directories: BTreeMap<String, String>) -> Self {
        Self { directories: Arc::new(directories), ..self }
    }

    /// Where `by` sees and answers the requests that wait for a person.
    pub fn desk<'a>(&'a self, by: &'a Principal) -> Desk<'a> {
        Desk { store: self.parts.store.as_ref(), by }
    }

    /// Makes one call. The only way to run a tool.
    pub async fn call(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        cancel: &CancellationToken,
    ) -> Result<Reply, Fatal> {
        self.call_heard(session, call, cancel, None).await
    }

    /// Makes one call, and lets somebody hear how it is getting on.
    pub async fn call_heard(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        cancel: &CancellationToken,
        listener: Option<Arc<dyn Listener>>,
    ) -> Result<Reply, Fatal> {
        match self.depart(session, call, listener)? {
            Ok((trip, offer)) => self.go(trip, offer, cancel).await,
            Err(reply) => Ok(reply),
        }
    }

    pub(crate) fn trip(&self, session: &Arc<Session>, call: ToolCall) -> Trip {
        Trip {
            parts: Arc::clone(&self.parts),
            directories: Arc::clone(&self.directories),
            session: Arc::clone(session),
            origin: Origin {
                session: session.id.clone(),
                call: call.id.clone(),
                tool: call.name.clone(),
                may_undo: session.principal.may(Scope::Undo),
            },
            call,
            started: Instant::now(),
            time: session.limits.call_time,
            stops_itself: false,
            covered: None,
            notes: Notes::default(),
            listener: None,
        }
    }

    /// Finds the tool, for who may call it. A reply where there is none.
    pub(crate) fn depart(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        listener: Option<Arc<dyn Listener>>,
    ) -> Result<Result<Departed, Reply>, Fatal> {
        let offer = session.catalog.offer(&call.name).cloned();
        // Rules and records know a tool by one name, however it was spelled.
        let call = match &offer {
            Some(offer) => ToolCall { name: offer.definition().name.to_owned(), ..call },
            None => call,
        };
        let mut trip = Trip { listener, ..self.trip(session, call) };
        if let Some(offer) = &offer {
            trip.time = offer.time(&session.limits);
            trip.stops_itself = offer.stops_itself();
        }
        let trip = Arc::new(trip);
        if !session.principal.may(Scope::Call) {
            let message = format!("`{}` may not call tools", session.principal.name);
            return trip.refuse(&[], &ToolError::new(ErrorKind::PermissionDenied, message)).map(Err);
        }
        let Some(offer) = offer else {
            let offered = session.catalog.list().map(|definition| definition.name);
            return trip.refuse(&[], &session.dialect.unknown_tool(&trip.call.name, offered)).map(Err);
        };
        Ok(Ok((trip, offer)))
    }

    /// From the start to the reply, with as many questions as it takes.
    async fn go(&self, mut trip: Arc<Trip>, offer: Arc<dyn Offer>, cancel: &CancellationToken) -> Result<Reply, Fatal> {
        let mut turn = None;
        for _ in 0..ROUNDS {
            let leg = self.set_out_in_turn(&trip, &offer, &mut turn, cancel).await?;
            match self.settle_leg(&trip, leg, cancel).await? {
                ControlFlow::Break(reply) => return Ok(reply),
                ControlFlow::Continue(changed) => trip = changed,
            }
        }
        let message = "the arguments were changed too often without an answer";
        trip.refuse(&[], &ToolError::new(ErrorKind::ApprovalDenied, message))
    }

    /// Asks, as long as what was answered leads to another question. The reply, or the call as it was changed.
    async fn settle_leg(
        &self,
        trip: &Arc<Trip>,
        mut leg: Leg,
        cancel: &CancellationToken,
    ) -> Result<ControlFlow<Reply, Arc<Trip>>, Fatal> {
        loop {
            let asked = match leg {
                Leg::Done(reply) => return Ok(ControlFlow::Break(reply)),
                Leg::Asked(asked) => asked,
            };
            // What a program left is kept by nobody but this call, so the call has to wait.
            let answer = match self.ask(trip, &asked.shown, !asked.is_rest, cancel).await? {
                Heard::Answer(answer) => answer,
                Heard::Later(suspended) => {
                    let reply = trip.refuse(&asked.touches, &not_yet(&suspended.request))?;
                    return Ok(ControlFlow::Break(Reply { suspended: Some(suspended), ..reply }));
                }
            };
            match self.take(trip, asked, answer, cancel).await? {
                ControlFlow::Break(next) => leg = next,
                ControlFlow::Continue(changed) => return Ok(ControlFlow::Continue(changed)),
            }
        }
    }

    /// Does what was answered to a call that came back, and goes on from there.
    pub(crate) async fn heed(
        &self,
        trip: Arc<Trip>,
        offer: Arc<dyn Offer>,
        asked: Box<Asked>,
        answer: Answer,
        cancel: &CancellationToken,
    ) -> Result<Reply, Fatal> {
        let changed = match self.take(&trip, asked, answer, cancel).await? {
            ControlFlow::Break(leg) => match self.settle_leg(&trip, leg, cancel).await? {
                ControlFlow::Break(reply) => return Ok(reply),
                ControlFlow::Continue(changed) => changed,
            },
            ControlFlow::Continue(changed) => changed,
        };
        self.go(changed, offer, cancel).await
    }

    /// Runs what was approved, or gives the call as it was changed.
    async fn take(
        &self,
        trip: &Arc<Trip>,
        asked: Box<Asked>,
        answer: Answer,
        cancel: &CancellationToken,
    ) -> Result<ControlFlow<Leg, Arc<Trip>>, Fatal> {
        let approval = match answer {
            Answer::Yes(approval) => approval,
            Answer::Always(approval) => {
                if let Some(rule) = asked.shown.grant.clone() {
                    self.keep_grant(rule, &approval).await?;
                }
                approval
            }
            Answer::Changed(..) if asked.is_rest => {
                return trip.leave(*asked, too_late()).map(Leg::Done).map(ControlFlow::Break);
            }
            Answer::Changed(arguments, approval) => {
                let Asked { touches, bits, shown, .. } = *asked;
                let covered = Covered { touches, bits, fingerprint: shown.preview.fingerprint().to_owned(), approval };
                return Ok(ControlFlow::Continue(Arc::new(trip.changed(arguments, covered))));
            }
            Answer::No(error) if asked.is_rest => {
                return trip.leave(*asked, error).map(Leg::Done).map(ControlFlow::Break);
            }
            Answer::No(error) => return trip.refuse(&asked.touches, &error).map(Leg::Done).map(ControlFlow::Break),
        };
        let run = move |trip: &Trip, signal: &Signal| trip.run_approved(asked, &approval, signal);
        self.on_worker(trip, cancel, run).await.map(ControlFlow::Break)
    }

    /// Plans and polices; runs too, unless somebody has to be asked.
    pub(crate) async fn set_out(
        &self,
        trip: &Arc<Trip>,
        offer: &Arc<dyn Offer>,
        cancel: &CancellationToken,
    ) -> Result<Leg, Fatal> {
        if cancel.is_cancelled() {
            return trip.refuse(&[], &Abandon::Cancel.error()).map(Leg::Done);
        }
        if offer.quick()
            && let Some(leg) = trip.go_quickly(offer.as_ref())?
        {
            return Ok(leg);
        }
        let offer = Arc::clone(offer);
        self.on_worker(trip, cancel, move |trip, signal| trip.go(offer.as_ref(), signal)).await
    }

    /// Does a piece of work on a worker thread, and waits for it as long as the call may take. The thread ends
    /// by itself: at its next look at the signal, or when what it does returns.
    pub(crate) async fn on_worker<F>(&self, trip: &Arc<Trip>, cancel: &CancellationToken, work: F) -> Result<Leg, Fatal>
    where
        F: FnOnce(&Trip, &Signal) -> Result<Option<Leg>, Fatal> + Send + 'static,
    {
        let signal = Signal::new();
        let mut waiting = Waiting { trip: Arc::clone(trip), signal: signal.clone(), over: false };
        let workers = Arc::clone(&self.workers);
        let companion = Arc::clone(trip);
        let job = async move {
            // The semaphore is never closed, so this only ever waits.
            let permit = workers.acquire_owned().await.ok();
            let job = move || {
                let _permit = permit;
                guarded(&companion, &signal, || work(&companion, &signal))
            };
            // Where the system gives no more threads, this panics instead of failing.
            let job = catch_unwind(AssertUnwindSafe(|| spawn_blocking(job))).ok()?;
            job.await.ok()
        };
        tokio::pin!(job);
        let why = tokio::select! {
            biased;
            done = &mut job => {
                waiting.over = true;
                return trip.arrived(done);
            }
            () = cancel.cancelled() => Abandon::Cancel,
            () = sleep(trip.time) => Abandon::Deadline,
        };
        if trip.stops_itself {
            waiting.signal.stop(why);
            if let Ok(done) = timeout(STOP_TIME, &mut job).await {
                waiting.over = true;
                return trip.arrived(done);
            }
        }
        if let Some(reply) = waiting.give_up(why)? {
            return Ok(Leg::Done(reply));
        }
        let done = timeout(GRACE, &mut job).await;
        waiting.over = true;
        match done {
            Ok(done) => trip.arrived(done),
            Err(_) => trip.overdue(why, waiting.signal.subject()).map(Leg::Done),
        }
    }
}

/// Somebody who waits for a worker. Dropped while the work goes on, because the caller went away, it is a cancel.
struct Waiting {
    trip: Arc<Trip>,
    signal: Signal,
    /// Nothing is waited for any more.
    over: bool,
}

impl Waiting {
    /// Stops waiting. Nothing if the worker committed first.
    fn give_up(&mut self, why: Abandon) -> Result<Option<Reply>, Fatal> {
        if !self.signal.abandon(why) {
            return Ok(None);
        }
        self.over = true;
        let error = why.error().detail("committed", false);
        let reply = self.trip.error_reply(&error);
        let moment = Moment::End { error: Some(&error), reply: &reply.text, duration: self.trip.started.elapsed() };
        self.trip.record_about(self.signal.subject(), &[], moment)?;
        Ok(Some(reply))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.over {
            // There is nobody left to be told that the record failed.
            let _ = self.give_up(Abandon::Cancel);
        }
    }
}

/// A call that found its tool.
type Departed = (Arc<Trip>, Arc<dyn Offer>);

/// How far a piece of work got.
pub(crate) enum Leg {
    Done(Reply),
    Asked(Box<Asked>),
}

/// A plan that waits for a person.
pub(crate) struct Asked {
    planned: Box<dyn Planned>,
    pub(crate) touches: Vec<Touch>,
    /// What the session had been through then.
    bits: BitSet,
    pub(crate) shown: Shown,
    /// The call has run already, and this is what it left to decide about.
    pub(crate) is_rest: bool,
}

/// One call on its way.
#[derive(Debug)]
pub(crate) struct Trip {
    pub(crate) parts: Arc<Parts>,
    directories: Arc<BTreeMap<String, String>>,
    pub(crate) session: Arc<Session>,
    pub(crate) call: ToolCall,
    started: Instant,
    /// How long a piece of work for it may take.
    time: Duration,
    stops_itself: bool,
    origin: Origin,
    /// What a person said yes to when they changed the arguments.
    covered: Option<Covered>,
    notes: Notes,
    listener: Option<Arc<dyn Listener>>,
}

/// What somebody saw when they said yes.
#[derive(Debug)]
struct Covered {
    touches: Vec<Touch>,
    bits: BitSet,
    fingerprint: String,
    approval: Approval,
}

impl Covered {
    /// Fails where the same target is no longer what a person saw when they said yes.
    fn check_unmoved(&self, touches: &[Touch], planned: &mut dyn Planned, cx: &Context<'_>) -> Result<(), ToolError> {
        if self.touches == touches && planned.preview(cx)?.fingerprint() != self.fingerprint {
            return Err(moved());
        }
        Ok(())
    }
}

impl Trip {
    /// The same call with the arguments that a person put in.
    fn changed(&self, arguments: String, covered: Covered) -> Self {
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
        }
    }

    /// Tries the call on the caller's own thread. `None` when it would have had to wait.
    fn go_quickly(&self, offer: &dyn Offer) -> Result<Option<Leg>, Fatal> {
        let signal = Signal::new();
        let cx = Context::new(&self.session.limits, Pace::Quick, &signal).on_road(self).made_by(&self.origin);
        let leg = guarded(self, &signal, || self.travel(offer, &cx))?;
        Ok(if cx.stalled() { None } else { leg })
    }

    fn go(&self, offer: &dyn Offer, signal: &Signal) -> Result<Option<Leg>, Fatal> {
        self.travel(
            offer,
            &Context::new(&self.session.limits, Pace::Patient, signal).on_road(self).made_by(&self.origin),
        )
    }

    fn run_approved(&self, asked: Box<Asked>, approval: &Approval, signal: &Signal) -> Result<Option<Leg>, Fatal> {
        let cx = Context::new(&self.session.limits, Pace::Patient, signal).on_road(self).made_by(&self.origin);
        let (seen, is_rest) = (asked.shown.verdict.clone(), asked.is_rest);
        let may_run = |verdict: &Verdict| verdict.decision == Decision::Allow || *verdict == seen;
        let (verdict, _) = self.police(&asked.touches, asked.planned.as_ref(), is_rest, &cx, may_run)?;
        let refused = match verdict.decision {
            Decision::Deny => denial(&verdict),
            // Other calls went on while somebody was asked: this is no longer what they were told.
            Decision::Ask if verdict != seen => moved(),
            _ => {
                let permission = Permission { verdict: &verdict, approval: Some(approval) };
                return self.run(asked.planned, &asked.touches, permission, &cx);
            }
        };
        match is_rest {
            true => self.leave_on_worker(asked.planned, &asked.touches, refused, &cx),
            false => self.settle(&asked.touches, &refused, &cx),
        }
    }

    /// Decode, plan, police. `None` when nobody waits for the result any more, or the quick attempt stalled.
    fn travel(&self, offer: &dyn Offer, cx: &Context<'_>) -> Result<Option<Leg>, Fatal> {
        let (touches, mut planned) = match offer.plan(&self.call.arguments, cx) {
            Ok(plan) => plan,
            Err(_) if cx.stalled() => return Ok(None),
            Err(error) => return self.settle(&[], &error, cx),
        };
        let covered = self.covers(&touches);
        let (verdict, bits) = self.police(&touches, planned.as_ref(), false, cx, |verdict| match verdict.decision {
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
                Ok(preview) => {
                    let asked = self.show(planned, touches, verdict, bits, preview);
                    Ok(Some(Leg::Asked(Box::new(asked))))
                }
                Err(error) => self.settle(&touches, &error, cx),
            },
            (Decision::Deny, _) => self.settle(&touches, &denial(&verdict), cx),
        }
    }

    /// Plans and polices a call that came back with an answer, and runs nothing yet.
    pub(crate) fn look_again(&self, offer: &dyn Offer, signal: &Signal) -> Result<Option<Leg>, Fatal> {
        let cx = Context::new(&self.session.limits, Pace::Patient, signal).on_road(self).made_by(&self.origin);
        let (touches, mut planned) = match offer.plan(&self.call.arguments, &cx) {
            Ok(plan) => plan,
            Err(error) => return self.settle(&[], &error, &cx),
        };
        let (verdict, bits) = self.police(&touches, planned.as_ref(), false, &cx, |_| false)?;
        match verdict.decision {
            Decision::Deny => self.settle(&touches, &denial(&verdict), &cx),
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
        let is_ours =
            |touch: &Touch| touch.verb != Verb::Lose && self.directories.contains_key(touch.place.mount.as_ref());
        let grant = match touches.iter().all(is_ours) {
            true => self.parts.policy.grant_for(&self.question(&touches)),
            false => None,
        };
        let shown = Shown { verdict, preview, grant };
        Asked { planned, touches, bits, shown, is_rest: false }
    }

    /// Decides, and where the call may run then, raises the bits that it raises. Both are one step: if another call
    /// raised a bit in between, it is decided again.
    fn police(
        &self,
        touches: &[Touch],
        planned: &dyn Planned,
        in_jail: bool,
        cx: &Context<'_>,
        may_run: impl Fn(&Verdict) -> bool,
    ) -> Result<(Verdict, BitSet), Fatal> {
        loop {
            let question = self.question(touches).in_jail(in_jail);
            let verdict = match self.parts.policy.decide(&question) {
                verdict if verdict.decision == Decision::Allow && planned.wants_review() => verdict.for_review(),
                verdict => verdict,
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
    fn hear_of_grants(&self) -> Result<bool, StoreLost> {
        if self.directories.is_empty() {
            return Ok(false);
        }
        hold_grants(&self.parts, &self.directories)
    }

    fn question<'a>(&'a self, touches: &'a [Touch]) -> Question<'a> {
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
        let change = if changes { id::mint("c")? } else { String::new() };
        let Permission { verdict: Verdict { rule, layer, .. }, approval: approved } = permission;
        self.record(touches, Moment::Begin { rule, layer: *layer, approved, change: &change })?;
        let ticket = Ticket::new(cx, change, approved, touches);
        let result = match planned.run(&ticket, self.notes) {
            Ok(Ran::Rest(touches, rest)) => return self.run_rest(rest, touches, cx),
            Ok(Ran::Said(text)) => Ok(text),
            Err(error) => Err(error),
        };
        self.deliver(touches, result, cx)
    }

    /// Ends a call that ran, unless the road gave up on it first.
    fn deliver(
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

    /// Polices what a run left to decide about, and runs it, unless somebody has to be asked.
    fn run_rest(
        &self,
        mut rest: Box<dyn Planned>,
        touches: Vec<Touch>,
        cx: &Context<'_>,
    ) -> Result<Option<Leg>, Fatal> {
        let may_run = |verdict: &Verdict| verdict.decision == Decision::Allow;
        let (verdict, bits) = self.police(&touches, rest.as_ref(), true, cx, may_run)?;
        let refused = match verdict.decision {
            Decision::Allow => {
                return self.run(rest, &touches, Permission { verdict: &verdict, approval: None }, cx);
            }
            Decision::Deny => denial(&verdict),
            Decision::Ask => match rest.preview(cx) {
                Ok(preview) => {
                    // What code did is never allowed for good.
                    let shown = Shown { verdict, preview, grant: None };
                    let asked = Asked { planned: rest, touches, bits, shown, is_rest: true };
                    return Ok(Some(Leg::Asked(Box::new(asked))));
                }
                Err(error) => error,
            },
        };
        self.leave_on_worker(rest, &touches, refused, cx)
    }

    fn leave_on_worker(
        &self,
        rest: Box<dyn Planned>,
        touches: &[Touch],
        refused: ToolError,
        cx: &Context<'_>,
    ) -> Result<Option<Leg>, Fatal> {
        let result = rest.leave(refused, self.notes);
        self.deliver(touches, result, cx)
    }

    /// What a call comes to whose rest a person refused.
    pub(crate) fn leave(&self, asked: Asked, refused: ToolError) -> Result<Reply, Fatal> {
        let Asked { planned, touches, .. } = asked;
        self.end(&touches, planned.leave(refused, self.notes))
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
    fn arrived(&self, done: Option<Result<Option<Leg>, Fatal>>) -> Result<Leg, Fatal> {
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

    fn end(&self, touches: &[Touch], result: Result<String, ToolError>) -> Result<Reply, Fatal> {
        let (reply, error) = match result {
            Ok(text) => (Reply { call_id: self.call.id.clone(), text, error: None, suspended: None }, None),
            Err(error) => (self.error_reply(&error), Some(error)),
        };
        let duration = self.started.elapsed();
        self.record(touches, Moment::End { error: error.as_ref(), reply: &reply.text, duration })
            .map_err(Fatal::EndUnrecorded)?;
        Ok(reply)
    }

    fn overdue(&self, why: Abandon, subject: Option<&str>) -> Result<Reply, Fatal> {
        let error =
            why.error().hint("it was already being carried out, and may still be").detail("committed", "unknown");
        let reply = self.error_reply(&error);
        let moment = Moment::Overdue { error: &error, reply: &reply.text, duration: self.started.elapsed() };
        self.record_about(subject, &[], moment)?;
        Ok(reply)
    }

    fn error_reply(&self, error: &ToolError) -> Reply {
        let text = self.session.dialect.render_error(error);
        Reply { call_id: self.call.id.clone(), text, error: Some(error.kind), suspended: None }
    }

    fn record(&self, touches: &[Touch], moment: Moment<'_>) -> Result<(), AuditLost> {
        self.record_about(None, touches, moment)
    }

    fn record_about(&self, subject: Option<&str>, touches: &[Touch], moment: Moment<'_>) -> Result<(), AuditLost> {
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
}

/// What the policy refuses.
fn denial(verdict: &Verdict) -> ToolError {
    explained(ToolError::new(ErrorKind::PermissionDenied, verdict.reason.clone()), verdict)
}

/// A program that has run cannot be asked about any other way than while its call waits.
fn too_late() -> ToolError {
    let message = "the program has run already; what it changed can be approved or refused, now and as it is";
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
struct Permission<'a> {
    verdict: &'a Verdict,
    approval: Option<&'a Approval>,
}

/// A tool that panics is a bug of ours and not the caller's end: the call fails, the host goes on. Of a call that
/// the road gave up on, the end is recorded already.
fn guarded(
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
