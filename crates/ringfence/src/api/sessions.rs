//! Sessions of the API: begun by who has a token, on a workspace that the user declared, and theirs alone.
//!
//! A session is on disk before anybody is told of it. What one has been through, all of the same token on the same workspace
//! have. One that comes back after a restart counts as having been through everything: what it saw before is not known any
//! more.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ringfence_kernel::{Assurance, Bit, Dialect, Principal, Scope, Session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex as Line, MutexGuard as Turn};
use tokio_util::sync::CancellationToken;

use super::Api;
use super::feed::News;
use super::houses::{Which, off_thread};
use super::problem::Problem;
use super::routes::{Nothing, Visit};
use crate::limits_config::LimitKeys;
use crate::lock::lock;
use crate::session_owners::SessionOwnership;
use crate::store::Shelf;
use crate::token_slots::{SlotLimits, SlotPermit, TokenSlots, heaviest_token};
use crate::tokens::{Owner, secret};
use crate::wire::Wired;

/// Sessions that are open at once.
const SESSIONS: SlotLimits = SlotLimits { per_token: 256, total: 1024, reserved: 128 };

/// Sessions that are over and still listed.
const MOST_ENDED: usize = 256;

/// Characters of a label.
const LONGEST_LABEL: usize = 200;

/// What a session is to be like.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NewSession {
    /// A workspace that the user declared; `main` where nothing is said.
    workspace: Option<String>,
    /// `standard`, `miniclaw` or `crewagent`.
    dialect: Option<String>,
    /// An agent of the config, whose limits hold too.
    agent: Option<String>,
    /// The run of a workflow whose state is `@state`; it exists already.
    run: Option<String>,
    /// Limits as in the config, for this session. They can only be tighter.
    limits: Map<String, Value>,
    /// What people call it.
    label: Option<String>,
}

/// A session, as it is listed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionView {
    pub(super) id: String,
    workspace: String,
    dialect: String,
    agent: Option<String>,
    /// The run whose state is `@state`.
    #[serde(default)]
    run: Option<String>,
    /// Who calls in it.
    principal: String,
    label: Option<String>,
    created: String,
    ended: Option<String>,
    /// Nobody is asked for it any more, after too many noes.
    #[serde(default)]
    paused: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionList {
    sessions: Vec<SessionView>,
}

/// What is kept of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    view: SessionView,
    /// The id of the token that it belongs to.
    owner: String,
    limits: Map<String, Value>,
}

/// A session, and what goes with it.
#[derive(Debug)]
pub(super) struct Sitting {
    kept: Mutex<Kept>,
    pub(super) session: Arc<Session>,
    pub(super) wired: Arc<Wired>,
    /// The calls that are under way.
    calls: Mutex<HashMap<String, CancellationToken>>,
    /// Held by a call that may change something.
    changes: Line<()>,
    count: AtomicU64,
    _owner: SessionOwnership,
    _slot: SlotPermit,
}

impl Sitting {
    /// Waits until no call that came before may still change something. At once where this one only reads.
    pub(super) async fn turn(&self, tool: &str) -> Option<Turn<'_, ()>> {
        let only_reads = self.session.catalog.get(tool).is_none_or(|tool| tool.effect.only_reads());
        if only_reads { None } else { Some(self.changes.lock().await) }
    }

    pub(super) fn next_call(&self) -> String {
        format!("call-{}", self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Enters a call. Nothing where one of this id is under way.
    pub(super) fn enter(self: &Arc<Self>, call: &str) -> Option<Entered> {
        let cancel = CancellationToken::new();
        let mut calls = lock(&self.calls);
        if calls.contains_key(call) {
            return None;
        }
        calls.insert(call.to_owned(), cancel.clone());
        Some(Entered { sitting: Arc::clone(self), call: call.to_owned(), cancel })
    }

    /// Cancels a call. False where none of this id is under way.
    pub(super) fn cancel(&self, call: &str) -> bool {
        lock(&self.calls).get(call).map(CancellationToken::cancel).is_some()
    }

    fn cancel_all(&self) {
        lock(&self.calls).values().for_each(CancellationToken::cancel);
    }

    fn view(&self) -> SessionView {
        lock(&self.kept).view.clone()
    }

    fn is_over(&self) -> bool {
        lock(&self.kept).view.ended.is_some()
    }

    fn is_of(&self, who: &Owner) -> bool {
        lock(&self.kept).owner == *who.id
    }
}

/// A call that is under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    sitting: Arc<Sitting>,
    call: String,
    pub(super) cancel: CancellationToken,
}

impl Drop for Entered {
    fn drop(&mut self) {
        lock(&self.sitting.calls).remove(&self.call);
    }
}

/// Every session, by its id.
#[derive(Debug)]
pub(super) struct Sittings {
    slots: TokenSlots,
    open: Mutex<BTreeMap<String, Arc<Sitting>>>,
    /// Those that are over, the oldest first.
    ended: Mutex<Vec<Kept>>,
}

impl Sittings {
    pub(super) fn new() -> Self {
        Self { slots: TokenSlots::new(SESSIONS), open: Mutex::default(), ended: Mutex::default() }
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.open).len()
    }

    pub(super) fn cancel_all(&self) {
        lock(&self.open).values().for_each(|sitting| sitting.cancel_all());
    }

    fn find(&self, id: &str) -> Option<Arc<Sitting>> {
        lock(&self.open).get(id).cloned()
    }
}

impl Api {
    /// Opens again what was open when the server stopped. A session whose workspace is no longer declared is over.
    pub(super) async fn reopen(self: &Arc<Self>) -> Result<(), Problem> {
        let api = Arc::clone(self);
        let kept = off_thread(move || Ok(api.store.kept(Shelf::Sessions)?)).await?;
        for body in kept {
            let Ok(kept) = serde_json::from_str::<Kept>(&body) else { continue };
            if kept.view.ended.is_some() {
                lock(&self.sittings.ended).push(kept);
                continue;
            }
            let id = kept.view.id.clone();
            let slot = self.sittings.slots.take_again(&kept.owner);
            match self.sit(kept.clone(), slot).await {
                Ok(sitting) => {
                    Bit::ALL.into_iter().for_each(|bit| sitting.session.bits.raise(bit));
                    lock(&self.sittings.open).insert(id, sitting);
                }
                Err(_) => self.close(kept).await?,
            }
        }
        Ok(())
    }

    async fn sit(&self, kept: Kept, slot: SlotPermit) -> Result<Arc<Sitting>, Problem> {
        let view = &kept.view;
        let which = Which {
            workspace: view.workspace.clone(),
            dialect: Dialect::named(&view.dialect),
            agent: view.agent.clone(),
            run: view.run.clone(),
        };
        let wired = self.houses.agent(which).await?;
        let model = &wired.session;
        let keys: LimitKeys = serde_json::from_value(Value::Object(kept.limits.clone()))
            .map_err(|error| Problem::bad(format!("limits: {error}")))?;
        let session = Arc::new(Session {
            limits: model.limits.tightened(&keys.over(&model.limits)),
            bits: self.pasts.of(&kept.owner, &wired.directory),
            ..model.like(&view.id, Principal::agent(&view.principal))
        });
        let _owner = self.feed.owners().register(&session, &kept.owner);
        let (calls, changes, count) = Default::default();
        Ok(Arc::new(Sitting { kept: Mutex::new(kept), session, wired, calls, changes, count, _owner, _slot: slot }))
    }

    async fn close(&self, mut kept: Kept) -> Result<(), Problem> {
        kept.view.ended.get_or_insert_with(now);
        self.keep(&kept).await?;
        let mut ended = lock(&self.sittings.ended);
        ended.push(kept);
        if ended.len() > MOST_ENDED {
            let owner = heaviest_token(ended.iter().map(|kept| kept.owner.as_str())).map(str::to_owned);
            if let Some(oldest) = ended.iter().position(|kept| owner.as_ref() == Some(&kept.owner)) {
                ended.remove(oldest);
            }
        }
        Ok(())
    }

    async fn keep(&self, kept: &Kept) -> Result<(), Problem> {
        let (store, id) = (Arc::clone(&self.store), kept.view.id.clone());
        let body = serde_json::to_string(kept).map_err(|_| Problem::internal("the session cannot be written"))?;
        off_thread(move || Ok(store.keep(Shelf::Sessions, &id, &body, MOST_ENDED)?)).await
    }

    /// An open session of whoever asks.
    pub(super) fn sitting(&self, visit: &Visit) -> Result<Arc<Sitting>, Problem> {
        let id = visit.name(0);
        let theirs = self.sittings.find(id).filter(|sitting| sitting.is_of(&visit.who));
        if let Some(sitting) = theirs {
            return Ok(sitting);
        }
        let is_over = |kept: &Kept| kept.view.id == id && kept.owner == *visit.who.id;
        match lock(&self.sittings.ended).iter().any(is_over) {
            true => Err(Problem::gone("this session is over; begin another")),
            false => Err(no_session()),
        }
    }

    /// Tells of a session that began or ended.
    fn tell_of(&self, Kept { view, owner, .. }: &Kept) {
        let (session, owner) = (Some(view.id.as_str()), Some(owner.as_str()));
        self.feed.tell(News { kind: "session", session, owner, data: json!({"session": view}), contents: Value::Null });
    }
}

/// What a session of another token is to whoever asks: not there.
fn no_session() -> Problem {
    Problem::missing("you have no session of that id; `GET /v1/sessions` lists those that there are")
}

pub(super) async fn begin(api: Arc<Api>, visit: Visit, new: NewSession) -> Result<SessionView, Problem> {
    if let Some(name) = new.dialect.as_deref().filter(|name| Dialect::named(name).is_none()) {
        return Err(Problem::bad(format!("there is no dialect `{}`", &name[..name.floor_char_boundary(40)])));
    }
    if new.label.as_ref().is_some_and(|label| label.chars().count() > LONGEST_LABEL) {
        return Err(Problem::bad(format!("a label has up to {LONGEST_LABEL} characters")));
    }
    let full = || format!("too many sessions are open; a token may have {}", SESSIONS.per_token);
    let slot = api.sittings.slots.take(&visit.who).ok_or_else(|| Problem::too_many(full()))?;
    let (owner, name) = (visit.who.id.to_string(), visit.who.name.to_string());
    let mut view = SessionView {
        id: format!("api-{}", &secret("").map_err(|error| Problem::internal(error.to_string()))?[..20]),
        workspace: new.workspace.unwrap_or_else(|| super::houses::MAIN.to_owned()),
        dialect: new.dialect.unwrap_or_default(),
        agent: new.agent,
        run: new.run,
        // A person who calls by hand is asked like everybody: by another name, they can answer.
        principal: match visit.who.assurance {
            Assurance::Person => format!("by hand, {name}"),
            _ => name,
        },
        label: new.label,
        created: now(),
        ended: None,
        paused: false,
    };
    let kept = Kept { view: view.clone(), owner: owner.clone(), limits: new.limits.clone() };
    let sitting = api.sit(kept, slot).await?;
    view.dialect = sitting.session.dialect.name().to_owned();
    view.agent = sitting.session.agent.clone();
    let kept = Kept { view: view.clone(), owner, limits: new.limits };
    *lock(&sitting.kept) = kept.clone();
    api.keep(&kept).await?;
    lock(&api.sittings.open).insert(view.id.clone(), sitting);
    api.tell_of(&kept);
    Ok(view)
}

pub(super) async fn list(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<SessionList, Problem> {
    let sees_all = visit.who.may(Scope::Approve) || visit.who.may(Scope::Admin);
    let open: Vec<Arc<Sitting>> = lock(&api.sittings.open).values().cloned().collect();
    let open = open.into_iter().filter(|sitting| sees_all || sitting.is_of(&visit.who)).map(|sitting| sitting.view());
    let ended = lock(&api.sittings.ended).clone();
    let ended = ended.into_iter().filter(|kept| sees_all || kept.owner == *visit.who.id).map(|kept| kept.view);
    let mut sessions: Vec<SessionView> = open.chain(ended).collect();
    sessions.sort_by(|a, b| b.created.cmp(&a.created));
    let paused = api.paused().await?;
    for session in &mut sessions {
        session.paused = paused.contains(&session.id);
    }
    Ok(SessionList { sessions })
}

pub(super) async fn show(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<SessionView, Problem> {
    let id = visit.name(0).to_owned();
    let all = list(api, visit, Nothing {}).await?.sessions;
    all.into_iter().find(|session| session.id == id).ok_or_else(no_session)
}

pub(super) async fn end(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<SessionView, Problem> {
    let id = visit.name(0);
    let may = |sitting: &Arc<Sitting>| sitting.is_of(&visit.who) || visit.who.may(Scope::Admin);
    let Some(sitting) = api.sittings.find(id).filter(may) else {
        return Err(api.sitting(&visit).err().unwrap_or_else(no_session));
    };
    if sitting.is_over() {
        return Ok(sitting.view());
    }
    lock(&sitting.kept).view.ended = Some(now());
    let kept = lock(&sitting.kept).clone();
    sitting.cancel_all();
    let (host, session) = (sitting.wired.host.clone(), id.to_owned());
    off_thread(move || Ok(host.withdraw_requests(&session)?)).await?;
    api.close(kept.clone()).await?;
    lock(&api.sittings.open).remove(id);
    api.tell_of(&kept);
    Ok(sitting.view())
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}
