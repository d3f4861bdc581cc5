//! API sessions: created with a token on a declared workspace, and visible to that token only.
//!
//! A session is on disk before its ID is returned. All sessions of one token on one workspace share their taint. One
//! that is restored after a restart counts as fully tainted: its earlier taint is not stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{Assurance, AuthScope, Dialect, Principal, Session, Taint};
use ringfence_sandbox::JobStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::feed::FeedItem;
use crate::api::hosts::{HostLease, HostPoolKey, run_blocking};
use crate::api::routes::{ApiRequestContext, EmptyRequest};
use crate::app::App;
use crate::app::session::live::LiveSession;
use crate::config::limits::LimitsConfigSection;
use crate::http::token_slots::{AccessTokenSlots, TokenSlotLimits, TokenSlotPermit, heaviest_token};
use crate::process::messages::print_error;
use crate::store::ApiTable;
use crate::store::tokens::{TokenIdentity, new_secret};

/// Sessions that are open at once.
const SESSION_SLOTS: TokenSlotLimits = TokenSlotLimits { per_token: 256, total: 1024, reserved: 128 };

/// Sessions that are over and still listed.
const MAX_ENDED: usize = 256;

/// Characters of a label.
const MAX_LABEL_CHARS: usize = 200;

/// Settings of a new session.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NewSessionBody {
    /// A declared workspace; `main` if omitted.
    workspace: Option<String>,
    /// `standard`, `miniclaw` or `crewagent`.
    dialect: Option<String>,
    /// An agent defined in the config, whose limits also apply.
    agent: Option<String>,
    /// An existing workflow run whose state is `@state`.
    run: Option<String>,
    /// Limits for this session, as in the config. They can only be tighter.
    limits: Map<String, Value>,
    /// A label for people.
    label: Option<String>,
}

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionView {
    pub(super) id: String,
    workspace: String,
    dialect: String,
    agent: Option<String>,
    /// The workflow run whose state is `@state`.
    #[serde(default)]
    run: Option<String>,
    /// The principal that makes the calls.
    principal: String,
    label: Option<String>,
    created: String,
    ended: Option<String>,
    /// Paused after too many consecutive denials.
    #[serde(default)]
    paused: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionList {
    sessions: Vec<SessionView>,
}

/// A background job of a session.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct JobView {
    /// Its number in the session.
    id: u64,
    /// The command line.
    command: String,
    started: String,
    /// Null while it runs; -1 if it could not be run.
    exit_code: Option<i32>,
    /// Bytes of output that the session has not read.
    unread_bytes: usize,
}

/// A background job of any session of this server.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerJobView {
    /// The session that started it: of the API, of a run, or of an MCP client of this server.
    session: String,
    /// The principal of that session.
    principal: String,
    #[serde(flatten)]
    job: JobView,
}

/// The background jobs of this server that the token may see, the oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ServerJobList {
    jobs: Vec<ServerJobView>,
}

/// Filter for background jobs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct JobsQuery {
    /// Only jobs of this session.
    session: Option<String>,
}

/// The background jobs that run, or have ended and not been read since.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct JobList {
    jobs: Vec<JobView>,
}

impl From<JobStatus> for JobView {
    fn from(job: JobStatus) -> Self {
        let JobStatus { session: _, principal: _, id, command, started, exit_code, unread_bytes } = job;
        Self { id, command, started: format_time(started), exit_code, unread_bytes }
    }
}

/// Stored form of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredSession {
    view: SessionView,
    /// The id of the token that it belongs to.
    owner: String,
    limits: Map<String, Value>,
}

/// A live session with its stored form.
#[derive(Debug)]
pub(super) struct ApiSession {
    stored: Mutex<StoredSession>,
    pub(super) live: Arc<LiveSession>,
    /// The pool keeps a host that is in use.
    app: Arc<App>,
    _slot: TokenSlotPermit,
    _lease: HostLease,
}

impl ApiSession {
    fn view(&self) -> SessionView {
        self.stored.lock().view.clone()
    }

    fn is_ended(&self) -> bool {
        self.stored.lock().view.ended.is_some()
    }

    fn is_owned_by(&self, who: &TokenIdentity) -> bool {
        self.stored.lock().owner == *who.id
    }
}

/// Every session, by its id.
#[derive(Debug)]
pub(super) struct ApiSessions {
    slots: AccessTokenSlots,
    open: Mutex<BTreeMap<String, Arc<ApiSession>>>,
    /// Those that are over, the oldest first.
    ended: Mutex<Vec<StoredSession>>,
}

impl ApiSessions {
    pub(super) fn new() -> Self {
        Self { slots: AccessTokenSlots::new(SESSION_SLOTS), open: Mutex::default(), ended: Mutex::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }

    pub(super) fn cancel_all(&self) {
        self.open.lock().values().for_each(|api_session| api_session.live.cancel_all());
    }

    fn find(&self, id: &str) -> Option<Arc<ApiSession>> {
        self.open.lock().get(id).cloned()
    }
}

impl ApiState {
    /// Opens again what was open when the server stopped. A session whose workspace is no longer declared is over.
    pub(super) async fn restore_sessions(self: &Arc<Self>) -> Result<(), ApiError> {
        let api = Arc::clone(self);
        let kept = run_blocking(move || Ok(api.store.records(ApiTable::Sessions)?)).await?;
        for body in kept {
            let kept = match serde_json::from_str::<StoredSession>(&body) {
                Ok(kept) => kept,
                Err(error) => {
                    print_error(&format!("ignored a stored session that cannot be read: {error}"));
                    continue;
                }
            };
            if kept.view.ended.is_some() {
                self.sessions.ended.lock().push(kept);
                continue;
            }
            let id = kept.view.id.clone();
            let slot = self.sessions.slots.acquire_existing(&kept.owner);
            match self.open_session(kept.clone(), slot).await {
                Ok(api_session) => {
                    Taint::ALL.into_iter().for_each(|bit| api_session.live.session.taint.add(bit));
                    self.sessions.open.lock().insert(id, api_session);
                }
                Err(error) => {
                    print_error(&format!(
                        "ended the session `{}`, which cannot be opened again: {error}",
                        kept.view.id
                    ));
                    self.close_session(kept).await?;
                }
            }
        }
        Ok(())
    }

    async fn open_session(&self, kept: StoredSession, slot: TokenSlotPermit) -> Result<Arc<ApiSession>, ApiError> {
        let view = &kept.view;
        let which = HostPoolKey {
            workspace: view.workspace.clone(),
            dialect: Dialect::from_name(&view.dialect),
            agent: view.agent.clone(),
            run: view.run.clone(),
        };
        let lease = self.hosts.lease(&kept.owner, &which)?;
        let app = self.hosts.agent_host(which).await?;
        let model = &app.session;
        let keys: LimitsConfigSection = serde_json::from_value(Value::Object(kept.limits.clone()))
            .map_err(|error| ApiError::bad_request(format!("limits: {error}")))?;
        let session = Session {
            limits: model.limits.tightened(&keys.apply_to(&model.limits)),
            ..model.for_principal(&view.id, Principal::agent(&view.principal))
        };
        let live = self.token_sessions.open(&kept.owner, &app.workspace_id, &app.host, session);
        Ok(Arc::new(ApiSession { stored: Mutex::new(kept), live, app, _slot: slot, _lease: lease }))
    }

    async fn close_session(&self, mut kept: StoredSession) -> Result<(), ApiError> {
        kept.view.ended.get_or_insert_with(now);
        self.store_session(&kept).await?;
        let mut ended = self.sessions.ended.lock();
        ended.push(kept);
        if ended.len() > MAX_ENDED {
            let owner = heaviest_token(ended.iter().map(|kept| kept.owner.as_str())).map(str::to_owned);
            if let Some(oldest) = ended.iter().position(|kept| owner.as_ref() == Some(&kept.owner)) {
                ended.remove(oldest);
            }
        }
        Ok(())
    }

    async fn store_session(&self, kept: &StoredSession) -> Result<(), ApiError> {
        let (store, id) = (Arc::clone(&self.store), kept.view.id.clone());
        let body = serde_json::to_string(kept).map_err(|_| ApiError::internal("cannot store the session"))?;
        run_blocking(move || Ok(store.save_record(ApiTable::Sessions, &id, &body, MAX_ENDED)?)).await
    }

    /// An open session of the request's token.
    pub(super) fn session_for(&self, context: &ApiRequestContext) -> Result<Arc<ApiSession>, ApiError> {
        let id = context.path_param(0);
        let theirs = self.sessions.find(id).filter(|api_session| api_session.is_owned_by(&context.identity));
        if let Some(api_session) = theirs {
            return Ok(api_session);
        }
        let is_over = |kept: &StoredSession| kept.view.id == id && kept.owner == *context.identity.id;
        match self.sessions.ended.lock().iter().any(is_over) {
            true => Err(ApiError::gone("this session has ended; create a new one")),
            false => Err(session_not_found()),
        }
    }

    /// Tells of a session that began or ended.
    fn publish_session(&self, StoredSession { view, owner, .. }: &StoredSession) {
        let (session, owner) = (Some(view.id.as_str()), Some(owner.as_str()));
        self.feed.publish(FeedItem {
            kind: "session",
            session,
            owner,
            data: json!({"session": view}),
            contents: Value::Null,
        });
    }
}

/// The error for a session of another token: not found.
fn session_not_found() -> ApiError {
    ApiError::not_found("you have no session with that id; `GET /v1/sessions` lists yours")
}

pub(super) async fn create(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    new: NewSessionBody,
) -> Result<SessionView, ApiError> {
    if let Some(name) = new.dialect.as_deref().filter(|name| Dialect::from_name(name).is_none()) {
        return Err(ApiError::bad_request(format!("unknown dialect `{}`", &name[..name.floor_char_boundary(40)])));
    }
    if new.label.as_ref().is_some_and(|label| label.chars().count() > MAX_LABEL_CHARS) {
        return Err(ApiError::bad_request(format!("a label may have at most {MAX_LABEL_CHARS} characters")));
    }
    let full = || format!("too many open sessions; a token may have {}", SESSION_SLOTS.per_token);
    let slot = api.sessions.slots.acquire(&context.identity).ok_or_else(|| ApiError::too_many_requests(full()))?;
    let (owner, name) = (context.identity.id.to_string(), context.identity.name.to_string());
    let mut view = SessionView {
        id: format!("api-{}", &new_secret("").map_err(|error| ApiError::internal(error.to_string()))?[..20]),
        workspace: new.workspace.unwrap_or_else(|| crate::api::hosts::MAIN_WORKSPACE.to_owned()),
        dialect: new.dialect.unwrap_or_default(),
        agent: new.agent,
        run: new.run,
        // A person's own calls need approval too: under another name, they can answer.
        principal: match context.identity.assurance {
            Assurance::Person => format!("by hand, {name}"),
            _ => name,
        },
        label: new.label,
        created: now(),
        ended: None,
        paused: false,
    };
    let kept = StoredSession { view: view.clone(), owner: owner.clone(), limits: new.limits.clone() };
    let api_session = api.open_session(kept, slot).await?;
    view.dialect = api_session.live.session.dialect.name().to_owned();
    view.agent = api_session.live.session.agent.clone();
    let kept = StoredSession { view: view.clone(), owner, limits: new.limits };
    *api_session.stored.lock() = kept.clone();
    api.store_session(&kept).await?;
    api.sessions.open.lock().insert(view.id.clone(), api_session);
    api.publish_session(&kept);
    Ok(view)
}

pub(super) async fn list(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<SessionList, ApiError> {
    let sees_all = context.identity.has_scope(AuthScope::Approve) || context.identity.has_scope(AuthScope::Admin);
    let open: Vec<Arc<ApiSession>> = api.sessions.open.lock().values().cloned().collect();
    let open = open
        .into_iter()
        .filter(|api_session| sees_all || api_session.is_owned_by(&context.identity))
        .map(|api_session| api_session.view());
    let ended = api.sessions.ended.lock().clone();
    let ended = ended.into_iter().filter(|kept| sees_all || kept.owner == *context.identity.id).map(|kept| kept.view);
    let mut sessions: Vec<SessionView> = open.chain(ended).collect();
    sessions.sort_by(|a, b| b.created.cmp(&a.created));
    let paused = api.paused().await?;
    for session in &mut sessions {
        session.paused = paused.contains(&session.id);
    }
    Ok(SessionList { sessions })
}

pub(super) async fn show(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<SessionView, ApiError> {
    let id = context.path_param(0).to_owned();
    let all = list(api, context, EmptyRequest {}).await?.sessions;
    all.into_iter().find(|session| session.id == id).ok_or_else(session_not_found)
}

pub(super) async fn jobs(api: Arc<ApiState>, context: ApiRequestContext, _: EmptyRequest) -> Result<JobList, ApiError> {
    let sees_all = context.identity.has_scope(AuthScope::Approve) || context.identity.has_scope(AuthScope::Admin);
    let api_session = match api.sessions.find(context.path_param(0)).filter(|_| sees_all) {
        Some(api_session) => api_session,
        None => api.session_for(&context)?,
    };
    let jobs = api_session.app.commands.jobs(&api_session.live.session.id);
    Ok(JobList { jobs: jobs.into_iter().map(JobView::from).collect() })
}

/// The jobs of all sessions of this process: each is visible to the token that its session belongs to, and to those in charge.
pub(super) async fn all_jobs(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    which: JobsQuery,
) -> Result<ServerJobList, ApiError> {
    let sees_all = context.identity.has_scope(AuthScope::Approve) || context.identity.has_scope(AuthScope::Admin);
    let owners = api.feed.owners();
    let is_visible = |job: &JobStatus| {
        let is_own = || owners.owner_by_name(&job.session, &job.principal).as_deref() == Some(&*context.identity.id);
        which.session.as_ref().is_none_or(|session| *session == job.session) && (sees_all || is_own())
    };
    let mut jobs = api.hosts.jobs();
    jobs.extend(api.runs.jobs());
    jobs.extend(api.mcp_commands.all_jobs());
    jobs.retain(is_visible);
    jobs.sort_by_key(|job| job.started);
    let view = |job: JobStatus| ServerJobView {
        session: job.session.clone(),
        principal: job.principal.clone(),
        job: JobView::from(job),
    };
    Ok(ServerJobList { jobs: jobs.into_iter().map(view).collect() })
}

pub(super) async fn end(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<SessionView, ApiError> {
    let id = context.path_param(0);
    let may = |api_session: &Arc<ApiSession>| {
        api_session.is_owned_by(&context.identity) || context.identity.has_scope(AuthScope::Admin)
    };
    let Some(api_session) = api.sessions.find(id).filter(may) else {
        return Err(api.session_for(&context).err().unwrap_or_else(session_not_found));
    };
    if api_session.is_ended() {
        return Ok(api_session.view());
    }
    api_session.stored.lock().view.ended = Some(now());
    let kept = api_session.stored.lock().clone();
    api_session.live.cancel_all();
    api_session.live.end_tools();
    let live = Arc::clone(&api_session.live);
    run_blocking(move || Ok(live.withdraw_requests()?)).await?;
    api.close_session(kept.clone()).await?;
    api.sessions.open.lock().remove(id);
    api.publish_session(&kept);
    Ok(api_session.view())
}

fn now() -> String {
    format_time(SystemTime::now())
}

fn format_time(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}
