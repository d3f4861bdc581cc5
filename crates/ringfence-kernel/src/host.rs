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
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::ask::{Heard, Suspended, not_yet};
use crate::dialect::Notes;
use crate::face::Offer;
use crate::gate::Answer;
use crate::record::Moment;
use crate::tally::Tally;
use crate::trip::{Asked, Covered, Leg, Trip, guarded, too_late};
use crate::turn::Turns;
use crate::{
    Abandon, Approver, AuditLost, AuditSink, Bit, Desk, ErrorKind, Listener, Origin, Policy, Principal, Scope, Session,
    Signal, Store, StoreLost, ToolError,
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
    /// The same for calls that end by themselves, such as programs: however many go on for minutes, the others go on too.
    programs: Arc<Semaphore>,
    /// What each mount is, by its alias. Nothing can be granted on others.
    pub(crate) directories: Arc<BTreeMap<String, String>>,
    pub(crate) turns: Arc<Turns>,
}

impl Host {
    pub fn new(parts: Parts) -> Self {
        let places = || Arc::new(Semaphore::new(parts.workers.max(1)));
        let (workers, programs) = (places(), places());
        Self { parts: Arc::new(parts), workers, programs, directories: Arc::default(), turns: Arc::default() }
    }

    /// Lets people allow things for good on these mounts: for each alias, a name of the directory that no other one
    /// has, so that a grant is about the directory and not about whatever gets the alias next. For a tool of another
    /// program the alias is `mcp/server/tool`, and the name is a digest of what that program says about it.
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
        // What other programs say about their tools was read by whoever chose this one.
        if session.catalog.has_foreign() {
            session.bits.raise(Bit::SawUntrusted);
        }
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
            tally: Tally::default(),
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
            Some(offer) => ToolCall { name: offer.definition().name.to_string(), ..call },
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
            let offered = session.catalog.list().map(|definition| definition.name.as_ref());
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
            let answer = match self.ask(trip, &asked.shown, !asked.is_rest(), cancel).await? {
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
            Answer::Changed(..) if asked.is_rest() => return self.decline(trip, asked, too_late(), cancel).await,
            Answer::Changed(arguments, approval) => {
                let Asked { touches, bits, shown, .. } = *asked;
                let covered = Covered { touches, bits, fingerprint: shown.preview.fingerprint().to_owned(), approval };
                return Ok(ControlFlow::Continue(Arc::new(trip.changed(arguments, covered))));
            }
            Answer::No(error) if asked.is_rest() => return self.decline(trip, asked, error, cancel).await,
            Answer::No(error) => return trip.refuse(&asked.touches, &error).map(Leg::Done).map(ControlFlow::Break),
        };
        let run = move |trip: &Trip, signal: &Signal| match asked.is_rest() {
            true => trip.settle_rest(*asked, Ok(&approval), signal),
            false => trip.run_approved(asked, &approval, signal),
        };
        self.on_worker(trip, cancel, run).await.map(ControlFlow::Break)
    }

    /// Keeps the changes of a run that need no approval, after the others were declined.
    async fn decline(
        &self,
        trip: &Arc<Trip>,
        asked: Box<Asked>,
        refused: ToolError,
        cancel: &CancellationToken,
    ) -> Result<ControlFlow<Leg, Arc<Trip>>, Fatal> {
        // The caller does not wait any more: nothing is kept.
        if refused.kind == ErrorKind::Cancelled {
            return trip.leave(*asked, refused).map(Leg::Done).map(ControlFlow::Break);
        }
        let run = move |trip: &Trip, signal: &Signal| trip.settle_rest(*asked, Err(refused), signal);
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
        let workers = Arc::clone(if trip.stops_itself { &self.programs } else { &self.workers });
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
