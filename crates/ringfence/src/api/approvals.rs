//! Requests that wait for a person, and what was allowed for good: seen and answered at the desk, by those who may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_kernel::{ApprovalRequest, ApprovalResponse, Assurance, Desk, DeskError, DraftOutcome, Principal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Api;
use super::feed::News;
use super::houses::off_thread;
use super::problem::Problem;
use super::routes::{Done, Nothing, Visit};
use super::views::{ApprovalView, Documented, GrantView};
use crate::tokens::Owner;

/// How often it is looked what other processes ask.
const LOOK: Duration = Duration::from_millis(300);

/// How long a preview of other arguments is waited for.
const PREVIEW_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Waiting {
    /// The oldest first.
    requests: Vec<Documented<ApprovalView>>,
    /// Sessions that were refused so often in a row that nobody is asked for them.
    paused: Vec<Paused>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Paused {
    session: String,
    principal: String,
    count: u64,
}

/// What a person says to a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Word {
    approved: bool,
    /// Arguments to use instead of the ones asked about.
    #[serde(default)]
    modified_args: Option<serde_json::Map<String, Value>>,
    /// Allow the same from now on, by the rule that the request shows.
    #[serde(default)]
    remember: bool,
    /// Why not, for the one who called.
    #[serde(default)]
    reason: Option<String>,
}

/// Arguments to be previewed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NewArguments {
    modified_args: serde_json::Map<String, Value>,
}

/// What the call would do with them.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ArgumentPreview {
    summary: String,
    preview: String,
    /// The preview shows what is or will be in a secret.
    secret: bool,
}

/// An answer that counts.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AnswerAccepted {
    /// Nothing happens yet: the call goes on when its caller calls again.
    waits_for_caller: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Grants {
    grants: Vec<Documented<GrantView>>,
}

/// A request as somebody may see it: contents are for a person.
fn shown(request: &ApprovalRequest, assurance: Assurance) -> Value {
    let request = if assurance == Assurance::Person { request.clone() } else { request.relayed() };
    json!(request)
}

impl Api {
    async fn at_desk<T: Send + 'static>(
        &self,
        who: Owner,
        work: impl FnOnce(Desk<'_>) -> Result<T, DeskError> + Send + 'static,
    ) -> Result<T, Problem> {
        let store = Arc::clone(&self.store);
        off_thread(move || {
            let by = who.principal();
            Ok(work(Desk { store: store.as_ref(), by: &by })?)
        })
        .await
    }

    /// The sessions that are paused.
    pub(super) async fn paused(&self) -> Result<BTreeSet<String>, Problem> {
        let (store, limit) = (Arc::clone(&self.store), self.pause_after);
        off_thread(move || {
            let reader = Principal::person("server");
            let paused = Desk { store: store.as_ref(), by: &reader }.paused(limit)?;
            Ok(paused.into_iter().map(|noes| noes.session).collect())
        })
        .await
    }

    /// Tells of requests that come and go, from whichever process. Goes on until the server stops.
    pub(super) async fn watch_requests(self: Arc<Self>) {
        // With whether their calls returned to their callers, which is told too.
        let mut known: BTreeMap<String, bool> = BTreeMap::new();
        loop {
            sleep(LOOK).await;
            let store = Arc::clone(&self.store);
            let look = move || {
                let reader = Principal::person("server");
                Ok(Desk { store: store.as_ref(), by: &reader }.pending(SystemTime::now())?)
            };
            // What cannot be read now is read the next time.
            let Ok(pending) = off_thread(look).await else { continue };
            let found: BTreeMap<String, bool> =
                pending.iter().map(|request| (request.id.clone(), request.suspended)).collect();
            for request in pending.iter().filter(|request| known.get(&request.id) != Some(&request.suspended)) {
                self.tell_of_request(request);
            }
            for id in known.keys().filter(|id| !found.contains_key(*id)) {
                self.feed.tell(News {
                    kind: "answered",
                    session: None,
                    owner: None,
                    data: json!({"request": id}),
                    contents: Value::Null,
                });
            }
            known = found;
        }
    }

    fn tell_of_request(&self, request: &ApprovalRequest) {
        self.feed.tell(News {
            kind: "request",
            session: Some(&request.session),
            owner: None,
            data: json!({"request": shown(request, Assurance::Relayed)}),
            contents: json!({"request": shown(request, Assurance::Person)}),
        });
    }
}

pub(super) async fn list(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Waiting, Problem> {
    let (assurance, limit) = (visit.who.assurance, api.pause_after);
    let look = move |desk: Desk<'_>| Ok((desk.pending(SystemTime::now())?, desk.paused(limit)?));
    let (pending, paused) = api.at_desk(visit.who, look).await?;
    let paused =
        paused.into_iter().map(|noes| Paused { session: noes.session, principal: noes.principal, count: noes.count });
    let requests = pending.iter().map(|request| shown(request, assurance).into()).collect();
    Ok(Waiting { requests, paused: paused.collect() })
}

pub(super) async fn show(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Documented<ApprovalView>, Problem> {
    let (id, assurance) = (visit.name(0).to_owned(), visit.who.assurance);
    let found = api.at_desk(visit.who, move |desk| desk.request(&id, SystemTime::now())).await?;
    Ok(shown(&found, assurance).into())
}

/// What a call would do with other arguments, from the process that waits with it. Nothing is approved by that.
pub(super) async fn preview(api: Arc<Api>, visit: Visit, wanted: NewArguments) -> Result<ArgumentPreview, Problem> {
    if visit.who.assurance != Assurance::Person {
        return Err(DeskError::NeedsPerson.into());
    }
    let (id, who, args) = (visit.name(0).to_owned(), visit.who, Value::Object(wanted.modified_args));
    let request = id.clone();
    let draft = api.at_desk(who.clone(), move |desk| desk.draft(&request, args, SystemTime::now())).await?;
    let until = Instant::now() + PREVIEW_TIME;
    loop {
        let (request, asked) = (id.clone(), draft.clone());
        let found = api.at_desk(who.clone(), move |desk| desk.draft_of(&request, &asked)).await?;
        match found.map(|draft| draft.outcome) {
            Some(Some(DraftOutcome::Planned { summary, preview, secret })) => {
                return Ok(ArgumentPreview { summary, preview, secret });
            }
            Some(Some(DraftOutcome::Refused(why))) => return Err(Problem::bad(why)),
            Some(None) if Instant::now() < until => sleep(LOOK / 3).await,
            _ => return Err(Problem::conflict("the request is settled, or its caller does not answer")),
        }
    }
}

pub(super) async fn answer(api: Arc<Api>, visit: Visit, word: Word) -> Result<AnswerAccepted, Problem> {
    let (id, assurance) = (visit.name(0).to_owned(), visit.who.assurance);
    let Word { approved, modified_args, remember, reason } = word;
    let modified_args = modified_args.map(Value::Object);
    let response = ApprovalResponse { approved, modified_args, remember, reason };
    let put = move |desk: Desk<'_>| {
        let suspended = desk.store.request(&id)?.is_some_and(|request| request.suspended);
        desk.answer(&id, response, assurance, SystemTime::now()).map(|()| suspended)
    };
    let waits_for_caller = api.at_desk(visit.who, put).await?;
    Ok(AnswerAccepted { waits_for_caller })
}

/// Lets a session ask again that was refused too often.
pub(super) async fn resume(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Done, Problem> {
    let (id, assurance) = (visit.name(0).to_owned(), visit.who.assurance);
    match api.at_desk(visit.who, move |desk| desk.resume(&id, assurance)).await? {
        true => Ok(Done {}),
        false => Err(Problem::missing("no session of that id is paused")),
    }
}

pub(super) async fn grants(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Grants, Problem> {
    let grants = api.at_desk(visit.who, |desk| desk.grants(SystemTime::now())).await?;
    Ok(Grants { grants: grants.iter().map(|grant| json!(grant).into()).collect() })
}

pub(super) async fn revoke(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Done, Problem> {
    let id = visit.name(0).to_owned();
    match api.at_desk(visit.who, move |desk| desk.revoke(&id)).await? {
        true => Ok(Done {}),
        false => Err(Problem::missing("there is no grant of that id")),
    }
}
