//! Asking: a request goes to the store and to an approver, and the first answer counts.
//!
//! While a call waits it hears its own approver and, through the store, every other front. What nobody answers in time
//! is a no. An approver may also put the answer off: then the caller gets a sealed token, and the call is over until
//! somebody brings it back (`resume.rs`).
//!
//! Not here: what an answer means (`gate.rs`), and who may give one (`desk.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::gate::{Answer, Asker};
use crate::grants::{rule_line, subject};
use crate::seal::Sealed;
use crate::trip::{Trip, hold_grants};
use crate::turn::Said;
use crate::{
    Abandon, Answered, Approval, ApprovalRequest, ErrorKind, Fatal, GRANT_TIME, Grant, Host, Parts, Preview, Put,
    RuleText, Session, Store, StoreLost, SuspendLifetime, ToolError, Verdict, Word, id,
};

/// How often the store is looked at for an answer from elsewhere.
const LOOK: Duration = Duration::from_millis(150);

/// A call that waits for its answer, for fronts that can bring it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspended {
    /// To be given to `Host::resume`, once.
    pub token: String,
    /// The id of the request that has to be answered first.
    pub request: String,
}

/// What is shown of a plan. Only this goes in, not the plan itself: it is not `Sync`, and a call must be able to move
/// between threads while it waits.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) verdict: Verdict,
    pub(crate) preview: Preview,
    /// The rule that "always" would add.
    pub(crate) grant: Option<RuleText>,
}

/// How asking ended.
pub(crate) enum Heard {
    Answer(Answer),
    Later(Suspended),
}

impl Host {
    /// Asks and waits. Where the call cannot be put off, it waits for another front instead.
    pub(crate) async fn ask(
        &self,
        trip: &Trip,
        shown: &Shown,
        may_be_put_off: bool,
        cancel: &CancellationToken,
    ) -> Result<Heard, Fatal> {
        if let Some(error) = self.why_not_ask(&trip.session).await? {
            return Ok(Heard::Answer(Answer::No(error)));
        }
        let request = request(trip, shown)?;
        let pending = Pending::open(&self.parts, &request).await?;
        let word = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            word = timeout(trip.session.limits.approval_time, self.first_word(trip, &request, may_be_put_off)) => Some(word),
        };
        let answered = match word {
            None => {
                pending.close().await?;
                return Ok(Heard::Answer(Answer::No(Abandon::Cancel.error())));
            }
            Some(Ok(word)) => match word? {
                Word::Now(answered) => answered,
                Word::Later => {
                    pending.leave(SuspendLifetime::Persistent).await?;
                    return self.suspend(trip, &request).await;
                }
                Word::LaterInProcess => {
                    pending.leave(SuspendLifetime::Process).await?;
                    return self.suspend(trip, &request).await;
                }
            },
            Some(Err(_)) => Answered::no("no answer in time".to_owned()),
        };
        let answered = self.first_of(&request.id, answered).await?;
        pending.close().await?;
        let may_grant = request.grant.is_some();
        let asker = Asker { verdict: &shown.verdict, principal: &trip.session.principal, may_grant };
        self.weigh(&trip.session, answered, &asker).await.map(Heard::Answer)
    }

    /// What an answer comes to, which counts for the session too.
    pub(crate) async fn weigh(
        &self,
        session: &Session,
        answered: Answered,
        asker: &Asker<'_>,
    ) -> Result<Answer, Fatal> {
        let (approved, assurance) = (answered.response.approved, answered.approval.assurance);
        let answer = Answer::of(answered, asker);
        match &answer {
            Answer::No(_) if !approved => self.count_answer(session, Said::No(assurance)).await?,
            // A yes that does not count is neither.
            Answer::No(_) => {}
            _ => self.count_answer(session, Said::Yes).await?,
        }
        Ok(answer)
    }

    /// The answer of our own approver, or of another front that was first.
    async fn first_word(&self, trip: &Trip, request: &ApprovalRequest, may_be_put_off: bool) -> Result<Word, Fatal> {
        let word = tokio::select! {
            biased;
            word = self.parts.approver.ask(request) => Ok(word),
            answered = self.answered_elsewhere(trip, &request.id, may_be_put_off) => answered.map(Word::Now),
        };
        match word {
            Ok(Word::Later | Word::LaterInProcess) if !may_be_put_off => {
                self.answered_elsewhere(trip, &request.id, may_be_put_off).await.map(Word::Now)
            }
            word => word,
        }
    }

    /// The answer of another front. Meanwhile it is told what the call would do with other arguments, if it asks.
    async fn answered_elsewhere(&self, trip: &Trip, id: &str, may_change: bool) -> Result<Answered, Fatal> {
        loop {
            sleep(LOOK).await;
            let request = id.to_owned();
            let (answered, draft) =
                self.in_store(move |store| Ok((store.answer_of(&request)?, store.draft_of(&request)?))).await?;
            if let Some(answered) = answered {
                return Ok(answered);
            }
            if let Some(draft) = draft.filter(|draft| draft.outcome.is_none() && may_change) {
                self.answer_draft(trip, id, draft).await?;
            }
        }
    }

    /// Puts an answer, and gives the one that counts.
    pub(crate) async fn first_of(&self, id: &str, answered: Answered) -> Result<Answered, Fatal> {
        let id = id.to_owned();
        let work = move |store: &dyn Store| match store.answer(&id, &answered, SystemTime::now())? {
            Put::First => Ok(answered),
            Put::Already => Ok(store.answer_of(&id)?.unwrap_or_else(gone)),
            // Whoever came late is told, and a no needs no time.
            Put::Expired if answered.response.approved => Ok(Answered::no("no answer in time".to_owned())),
            Put::Expired => Ok(answered),
            Put::Unknown => Ok(gone()),
        };
        self.in_store(work).await
    }

    async fn suspend(&self, trip: &Trip, request: &ApprovalRequest) -> Result<Heard, Fatal> {
        let sealed = Sealed {
            request: request.id.clone(),
            call: trip.call.id.clone(),
            tool: trip.call.name.clone(),
            arguments: trip.call.arguments.clone(),
            fingerprint: request.fingerprint.clone(),
            principal: trip.session.principal.name.clone(),
            session: trip.session.id.clone(),
            expires: request.expires,
            nonce: id::mint("n")?,
        };
        let token = self.in_store(move |store| Ok(sealed.seal(&store.key()?))).await?;
        let token = token.ok_or_else(|| StoreLost(std::io::Error::other("the token cannot be sealed")))?;
        Ok(Heard::Later(Suspended { token, request: request.id.clone() }))
    }

    /// Withdraws the requests of suspended calls of a session that is over: an answer would reach nobody.
    pub fn withdraw_requests(&self, session: &str) -> Result<(), StoreLost> {
        let store = self.parts.store.as_ref();
        let pending = store.pending(SystemTime::now())?.into_iter();
        pending
            .filter(|request| request.suspended && request.session == session)
            .try_for_each(|request| store.close(&request.id))
    }

    /// Keeps what a person allowed for good.
    pub(crate) async fn keep_grant(&self, rule: RuleText, approval: &Approval) -> Result<(), Fatal> {
        let Some(directory) = subject(&rule).and_then(|subject| self.directories.get(&subject).cloned()) else {
            return Ok(());
        };
        let since = SystemTime::now();
        let by = approval.by.as_ref().map(|by| by.name.clone()).unwrap_or_default();
        let grant = Grant { id: id::mint("g")?, rule, directory, by, since, until: since + GRANT_TIME };
        let (parts, directories) = (Arc::clone(&self.parts), Arc::clone(&self.directories));
        self.in_store(move |store| {
            store.add_grant(&grant)?;
            hold_grants(&parts, &directories).map(drop)
        })
        .await
    }

    /// The store may wait for a disk or for other processes.
    pub(crate) async fn in_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreLost> + Send + 'static,
    ) -> Result<T, Fatal> {
        in_store(&self.parts, work).await
    }
}

async fn in_store<T: Send + 'static>(
    parts: &Arc<Parts>,
    work: impl FnOnce(&dyn Store) -> Result<T, StoreLost> + Send + 'static,
) -> Result<T, Fatal> {
    let parts = Arc::clone(parts);
    let done = spawn_blocking(move || work(parts.store.as_ref())).await;
    let lost = |_| Err(StoreLost(std::io::Error::other("the store failed in a way that it should not")));
    Ok(done.unwrap_or_else(lost)?)
}

fn gone() -> Answered {
    Answered::no("the request was withdrawn".to_owned())
}

fn request(trip: &Trip, shown: &Shown) -> Result<ApprovalRequest, Fatal> {
    let Shown { verdict, preview, grant } = shown;
    let opened = SystemTime::now();
    Ok(ApprovalRequest {
        id: id::mint("a")?,
        step_id: trip.call.id.clone(),
        session: trip.session.id.clone(),
        principal: trip.session.principal.name.clone(),
        agent: trip.session.agent.clone(),
        tool: trip.call.name.clone(),
        // It decoded before, so it parses; an empty text stands for no arguments.
        args: serde_json::from_str(&trip.call.arguments).unwrap_or_else(|_| Value::Object(Map::new())),
        reason: verdict.reason.clone(),
        rule: verdict.rule.to_string(),
        layer: verdict.layer,
        assurance: verdict.assurance,
        preview: preview.text(),
        summary: preview.summary().to_owned(),
        secret: preview.is_secret(),
        fingerprint: preview.fingerprint().to_owned(),
        grant: grant.as_ref().and_then(rule_line),
        suspended: false,
        opened,
        expires: opened + trip.session.limits.approval_time,
    })
}

/// What the caller is told of a call that waits.
pub(crate) fn not_yet(request: &str) -> ToolError {
    let message = "an approval request waits for its answer; nothing was done yet";
    ToolError::new(ErrorKind::ApprovalPending, message).detail("pending", true).detail("request", request)
}

/// A request in the store. It leaves the store also when the call that waits for it is dropped: an answer would
/// reach nobody.
struct Pending {
    parts: Arc<Parts>,
    id: Option<String>,
    dropped: Arc<AtomicBool>,
}

impl Pending {
    async fn open(parts: &Arc<Parts>, request: &ApprovalRequest) -> Result<Self, Fatal> {
        let dropped = Arc::new(AtomicBool::new(false));
        let pending = Self { parts: Arc::clone(parts), id: Some(request.id.clone()), dropped: Arc::clone(&dropped) };
        let request = request.clone();
        let work = move |store: &dyn Store| {
            store.open_request(&request)?;
            // The caller may have gone while this waited for a thread, and closed what was not there yet.
            if dropped.load(Ordering::SeqCst) { store.close(&request.id) } else { Ok(()) }
        };
        in_store(parts, work).await?;
        Ok(pending)
    }

    async fn close(mut self) -> Result<(), Fatal> {
        match self.id.take() {
            Some(id) => in_store(&self.parts, move |store| store.close(&id)).await,
            None => Ok(()),
        }
    }

    /// Lets it wait for an answer by itself.
    async fn leave(mut self, lifetime: SuspendLifetime) -> Result<(), Fatal> {
        if let Some(id) = self.id.clone() {
            in_store(&self.parts, move |store| store.leave(&id, lifetime)).await?;
        }
        self.id = None;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.dropped.store(true, Ordering::SeqCst);
            // Nobody is left who could be told that it failed.
            let _ = self.parts.store.close(id);
        }
    }
}
