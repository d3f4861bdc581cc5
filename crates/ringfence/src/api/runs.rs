//! Agent runs through the API: start, follow, cancel and continue.
//!
//! A run is on disk before its ID is returned. One that was active when the server stopped is interrupted: on request
//! it continues in its session, where every call has one result. Approvals are answered through the inbox. Background jobs end
//! with the run.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use axum::response::Response;
use ringfence_agent::{AgentEvent, AgentObserver, AnnouncingApprover};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ApprovalRequest, Approver, ApproverReply, Assurance, AuthScope, Principal, ReplyValue};
use ringfence_sandbox::{CommandSessions, JobStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::agent::events::{event_json, outcome_json};
use crate::agent::{AgentBuilder, AgentError, open_model};
use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::events::{EventsQuery, open_stream};
use crate::api::feed::{EventFeed, FeedItem};
use crate::api::hosts::{HostPoolKey, run_blocking};
use crate::api::routes::{ApiRequestContext, EmptyRequest, EmptyResponse};
use crate::app::session::live::{EndToolsGuard, LiveSession};
use crate::app::session_mode::SharedSessionMode;
use crate::app::workspace_id;
use crate::approval::approver_for;
use crate::http::token_slots::{AccessTokenSlots, TokenSlotLimits, heaviest_token};
use crate::process::messages::{error_chain, print_error};
use crate::store::ApiTable;
use crate::store::tokens::{TokenIdentity, new_secret};

/// Runs that are under way at once.
const RUN_SLOTS: TokenSlotLimits = TokenSlotLimits { per_token: 16, total: 48, reserved: 16 };

/// Runs that are kept.
const MAX_RUNS: usize = 256;

/// Prompt of a continued run, where the request has none.
const CONTINUE_PROMPT: &str = "Continue where you were interrupted.";

/// Characters of text in one event.
const CHUNK_CHARS: usize = 48;

/// A task for the agent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewRunBody {
    #[schemars(length(min = 1))]
    prompt: String,
    /// A declared workspace; `main` if omitted.
    workspace: Option<String>,
    /// An agent defined in the config.
    agent: Option<String>,
    /// The session of one of your earlier runs, to continue it.
    session: Option<String>,
}

/// A follow-up prompt.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ResumeRunBody {
    prompt: Option<String>,
}

/// An agent run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct RunView {
    id: String,
    /// The agent's session.
    session: String,
    workspace: String,
    agent: Option<String>,
    prompt: String,
    created: String,
    /// `running`, `answered`, `cancelled`, `failed` or `interrupted`.
    state: String,
    /// The outcome: stop reason, final answer, tokens and actions taken.
    outcome: Option<Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunList {
    /// Whether a model is configured.
    available: bool,
    /// Newest first.
    runs: Vec<RunView>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredRun {
    view: RunView,
    /// The id of the token that it belongs to.
    owner: String,
    /// The name of that token. Runs of version 0.1.0 have it as their owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_name: Option<String>,
    /// Owned by a person's page.
    #[serde(default)]
    is_page: bool,
}

impl StoredRun {
    fn token_name(&self) -> &str {
        self.token_name.as_deref().unwrap_or(&self.owner)
    }

    /// The view for a token: the text is for its owner, and for a person.
    fn view_for(self, who: &TokenIdentity) -> RunView {
        let Self { mut view, owner, .. } = self;
        if who.assurance != Assurance::Person && owner != *who.id {
            view.prompt.clear();
            view.outcome = None;
        }
        view
    }

    /// Whether a token may cancel it: its owner, and those who may end any session.
    fn may_be_cancelled_by(&self, who: &TokenIdentity) -> bool {
        self.owner == *who.id || who.has_scope(AuthScope::Admin)
    }

    /// Whether a token may continue it. Its calls stay its owner's, so of others only a person may: a token that can
    /// approve would answer its own requests.
    fn may_be_resumed_by(&self, who: &TokenIdentity) -> bool {
        self.owner == *who.id || (who.has_scope(AuthScope::Admin) && who.assurance == Assurance::Person)
    }
}

fn other_token_error() -> ApiError {
    ApiError::forbidden("this run belongs to another token")
}

#[derive(Debug)]
struct ApiRun {
    stored: Mutex<StoredRun>,
    feed: EventFeed,
    /// The agent's session, unless the run is from before the server started.
    live: Option<Arc<LiveSession>>,
    /// Its background jobs, as long as the agent's host is there.
    commands: Weak<CommandSessions>,
}

impl ApiRun {
    fn cancel(&self) {
        if let Some(live) = &self.live {
            live.cancel_all();
        }
    }
}

/// Every run, by its id.
#[derive(Debug)]
pub(super) struct ApiRuns(Mutex<BTreeMap<String, Arc<ApiRun>>>, AccessTokenSlots);

impl ApiRuns {
    pub(super) fn new() -> Self {
        Self(Mutex::default(), AccessTokenSlots::new(RUN_SLOTS))
    }

    pub(super) fn cancel_all(&self) {
        self.0.lock().values().for_each(|run| run.cancel());
    }

    /// The background jobs of every run.
    pub(super) fn jobs(&self) -> Vec<JobStatus> {
        let hosts: Vec<_> = self.0.lock().values().filter_map(|run| run.commands.upgrade()).collect();
        hosts.iter().flat_map(|commands| commands.all_jobs()).collect()
    }

    /// Takes one in. Where there are too many, the token that has most of those that are over loses its oldest.
    fn insert(&self, id: String, run: Arc<ApiRun>) {
        let mut all = self.0.lock();
        all.insert(id, run);
        while all.len() > MAX_RUNS {
            let over = all.iter().filter_map(|(id, run)| {
                let StoredRun { view, owner, .. } = &*run.stored.lock();
                (view.state != "running").then(|| (owner.clone(), view.created.clone(), id.clone()))
            });
            let over: Vec<_> = over.collect();
            let heaviest = heaviest_token(over.iter().map(|(owner, ..)| owner.as_str()));
            let theirs = over.iter().filter(|(owner, ..)| Some(owner.as_str()) == heaviest);
            let Some((.., oldest)) = theirs.min() else { break };
            all.remove(oldest);
        }
    }

    /// The agent's sessions that runs began or went on with.
    pub(super) fn sessions(&self) -> BTreeSet<String> {
        self.0.lock().values().map(|run| run.stored.lock().view.session.clone()).collect()
    }
}

/// Asks no approver by itself: answers come through the inbox.
#[derive(Debug)]
struct InboxApprover;

impl Approver for InboxApprover {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        Box::pin(pending())
    }
}

/// Tells what happens in a run to those who follow it.
#[derive(Debug)]
struct RunFeedObserver {
    feed: EventFeed,
    owner: String,
    /// Text that is too short for an event yet.
    text: Mutex<String>,
}

impl RunFeedObserver {
    fn publish(&self, event: Value) {
        let kind = json!({"type": event["type"]});
        self.feed.publish(FeedItem {
            kind: "run",
            session: None,
            owner: Some(&self.owner),
            data: kind,
            contents: event,
        });
    }

    fn flush(&self, text: &mut String) {
        if !text.is_empty() {
            self.publish(json!({"type": "text", "text": std::mem::take(text)}));
        }
    }
}

impl AgentObserver for RunFeedObserver {
    fn on_event(&self, event: &AgentEvent<'_>) {
        let mut text = self.text.lock();
        if let AgentEvent::Text { text: piece } = event {
            text.push_str(piece);
            if text.len() >= CHUNK_CHARS {
                self.flush(&mut text);
            }
            return;
        }
        self.flush(&mut text);
        let mut value = event_json(event);
        if let AgentEvent::Result { reply, .. } = event
            && let Some(card) = reply.outcome.as_ref().ok().and_then(ReplyValue::card)
        {
            value["card"] = json!(card);
        }
        self.publish(value);
    }
}

impl ApiState {
    /// Knows the runs again that there were when the server stopped.
    pub(super) async fn restore_runs(self: &Arc<Self>) -> Result<(), ApiError> {
        let api = Arc::clone(self);
        let bodies = run_blocking(move || Ok(api.store.records(ApiTable::Runs)?)).await?;
        for body in bodies {
            let mut kept = match serde_json::from_str::<StoredRun>(&body) {
                Ok(kept) => kept,
                Err(error) => {
                    print_error(&format!("ignored a stored run that cannot be read: {error}"));
                    continue;
                }
            };
            if kept.view.state == "running" {
                "interrupted".clone_into(&mut kept.view.state);
            }
            let id = kept.view.id.clone();
            let run =
                ApiRun { stored: Mutex::new(kept), feed: EventFeed::starting_at(1), live: None, commands: Weak::new() };
            self.runs.0.lock().insert(id, Arc::new(run));
        }
        Ok(())
    }

    fn run_for(&self, context: &ApiRequestContext) -> Result<Arc<ApiRun>, ApiError> {
        let may =
            |run: &Arc<ApiRun>| is_administrator(&context.identity) || run.stored.lock().owner == *context.identity.id;
        let found = self.runs.0.lock().get(context.path_param(0)).cloned().filter(may);
        found.ok_or_else(|| ApiError::not_found("you have no run with that id; `GET /v1/runs` lists yours"))
    }

    async fn store_run(&self, run: &ApiRun) -> Result<(), ApiError> {
        let kept = run.stored.lock().clone();
        let (store, id) = (Arc::clone(&self.store), kept.view.id.clone());
        let body = serde_json::to_string(&kept).map_err(|_| ApiError::internal("cannot store the run"))?;
        run_blocking(move || Ok(store.save_record(ApiTable::Runs, &id, &body, MAX_RUNS)?)).await
    }

    fn publish_run(&self, run: &ApiRun) {
        let StoredRun { view, owner, .. } = run.stored.lock().clone();
        let data = json!({"run": view.id, "state": view.state});
        let session = Some(view.session.as_str());
        self.feed.publish(FeedItem { kind: "run", session, owner: Some(&owner), data, contents: Value::Null });
    }

    /// Starts to work on a prompt, in a new session or in one that goes on.
    async fn start_run(
        self: &Arc<Self>,
        who: &TokenIdentity,
        mut kept: StoredRun,
        resume: Option<String>,
    ) -> Result<Arc<ApiRun>, ApiError> {
        let full = || format!("too many active runs; a token may have {}", RUN_SLOTS.per_token);
        let slot = self.runs.1.acquire(who).ok_or_else(|| ApiError::too_many_requests(full()))?;
        let feed = EventFeed::starting_at(1);
        let observer_feed =
            Arc::new(RunFeedObserver { feed: feed.clone(), owner: kept.owner.clone(), text: Mutex::default() });
        let which =
            HostPoolKey { agent: kept.view.agent.clone(), ..HostPoolKey::for_workspace(Some(&kept.view.workspace)) };
        let (settings, environment) = self.hosts.settings(&which)?;
        let (observer, also) = (Arc::clone(&observer_feed) as Arc<dyn AgentObserver>, Box::new(self.feed.clone()));
        let (tokens, owner) = (self.token_sessions.clone(), kept.owner.clone());
        let made = spawn_blocking(move || {
            let directory = workspace_id(&settings, &environment)?;
            let asks = || {
                Box::new(AnnouncingApprover { approver: Box::new(InboxApprover), observer: Arc::clone(&observer) }) as _
            };
            let making = AgentBuilder {
                model: open_model(&settings.model, &environment)?,
                approver: approver_for(&settings, asks),
                observer: Arc::clone(&observer),
                settings,
                environment: &environment,
                mode: SharedSessionMode::default(),
                taint: tokens.taint().for_token(&owner, &directory),
                tap: Some(also),
            };
            making.build(resume.as_deref())
        });
        let made = made.await.map_err(|_| ApiError::internal("the run could not be created"))?;
        let mut made = made.map_err(|failure| run_error(&failure))?;
        made.print_dialect();
        let session = &made.app.session;
        // Whose run it is, is who calls in it. A page's run asks its person; a script never answers for its own.
        let caller = Principal::agent(match kept.is_page {
            true => format!("agent of {}", kept.token_name()),
            false => kept.token_name().to_owned(),
        });
        let session = session.for_principal(&session.id, caller);
        let live = self.token_sessions.open(&kept.owner, &made.app.workspace_id, &made.app.host, session);
        made.app.session = Arc::clone(&live.session);
        kept.view.session.clone_from(&made.app.session.id);
        let (id, prompt) = (kept.view.id.clone(), kept.view.prompt.clone());
        let commands = Arc::downgrade(&made.app.commands);
        let work = live.begin(&id).ok_or_else(|| ApiError::conflict("this run is still active"))?;
        let tools = EndToolsGuard(Arc::clone(&live));
        let run = Arc::new(ApiRun { stored: Mutex::new(kept), feed, live: Some(live), commands });
        self.store_run(&run).await?;
        self.runs.insert(id, Arc::clone(&run));
        self.publish_run(&run);
        let (api, working) = (Arc::clone(self), Arc::clone(&run));
        tokio::spawn(async move {
            let _slot = slot;
            // The run is listed after its end, and so is its session: its jobs are not to wait for that.
            let tools = tools;
            let outcome = match made.start(&work.cancel).await {
                Ok(mut conversation) => {
                    let outcome = conversation.run(&prompt, &work.cancel).await;
                    // The run itself has the outcome too.
                    if let Err(error) = conversation.record(&outcome) {
                        print_error(&format!(
                            "cannot store the outcome of a run in its session: {}",
                            error_chain(&error)
                        ));
                    }
                    outcome_json(&outcome)
                }
                Err(failure) => json!({"end": "host_error", "why": failure.to_string(), "text": ""}),
            };
            drop(tools);
            {
                let view = &mut working.stored.lock().view;
                let state = match outcome["end"].as_str() {
                    Some("answered") => "answered",
                    Some("cancelled") => "cancelled",
                    _ => "failed",
                };
                state.clone_into(&mut view.state);
                view.outcome = Some(outcome);
            }
            if let Err(error) = api.store_run(&working).await {
                print_error(&format!("cannot store the outcome of a run: {error}"));
            }
            api.publish_run(&working);
        });
        Ok(run)
    }
}

fn is_administrator(who: &TokenIdentity) -> bool {
    who.has_scope(AuthScope::Approve) || who.has_scope(AuthScope::Admin)
}

fn run_error(failure: &AgentError) -> ApiError {
    match failure {
        AgentError::Session(_) => ApiError::conflict(failure.to_string()),
        _ => ApiError::unavailable(failure.to_string()),
    }
}

pub(super) async fn list(api: Arc<ApiState>, context: ApiRequestContext, _: EmptyRequest) -> Result<RunList, ApiError> {
    let (settings, environment) = api.hosts.settings(&HostPoolKey::for_workspace(None))?;
    let available = spawn_blocking(move || open_model(&settings.model, &environment).is_ok()).await.unwrap_or(false);
    let all: Vec<StoredRun> = api.runs.0.lock().values().map(|run| run.stored.lock().clone()).collect();
    let mut runs: Vec<RunView> = all
        .into_iter()
        .filter(|kept| is_administrator(&context.identity) || kept.owner == *context.identity.id)
        .map(|kept| kept.view_for(&context.identity))
        .collect();
    runs.sort_by(|a, b| b.created.cmp(&a.created));
    Ok(RunList { available, runs })
}

pub(super) async fn create(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    new: NewRunBody,
) -> Result<RunView, ApiError> {
    let NewRunBody { prompt, workspace, agent, session } = new;
    if prompt.trim().is_empty() {
        return Err(ApiError::bad_request("a run needs a prompt"));
    }
    let (owner, token_name) = (context.identity.id.to_string(), Some(context.identity.name.to_string()));
    if let Some(session) = &session {
        let is_theirs = |run: &Arc<ApiRun>| {
            let kept = run.stored.lock();
            kept.view.session == *session && kept.owner == owner
        };
        if !api.runs.0.lock().values().any(is_theirs) {
            return Err(ApiError::not_found("you have no run in that session"));
        }
    }
    let id = new_secret("run-").map_err(|error| ApiError::internal(error.to_string()))?[..24].to_owned();
    let view = RunView {
        id,
        session: String::new(),
        workspace: workspace.unwrap_or_else(|| crate::api::hosts::MAIN_WORKSPACE.to_owned()),
        agent,
        prompt,
        created: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        state: "running".to_owned(),
        outcome: None,
    };
    let kept = StoredRun { view, owner, token_name, is_page: context.identity.assurance == Assurance::Person };
    let run = api.start_run(&context.identity, kept, session).await?;
    let view = run.stored.lock().view.clone();
    Ok(view)
}

pub(super) async fn show(api: Arc<ApiState>, context: ApiRequestContext, _: EmptyRequest) -> Result<RunView, ApiError> {
    let run = api.run_for(&context)?;
    let kept = run.stored.lock().clone();
    Ok(kept.view_for(&context.identity))
}

pub(super) async fn events(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    from: EventsQuery,
) -> Result<Response, ApiError> {
    let run = api.run_for(&context)?;
    open_stream(&api, &run.feed, context, from, None)
}

pub(super) async fn cancel(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<EmptyResponse, ApiError> {
    let run = api.run_for(&context)?;
    if !run.stored.lock().may_be_cancelled_by(&context.identity) {
        return Err(other_token_error());
    }
    run.cancel();
    Ok(EmptyResponse {})
}

/// Goes on with a run that is over, in its session.
pub(super) async fn resume(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    go_on: ResumeRunBody,
) -> Result<RunView, ApiError> {
    let run = api.run_for(&context)?;
    let mut kept = run.stored.lock().clone();
    if !kept.may_be_resumed_by(&context.identity) {
        return Err(other_token_error());
    }
    if kept.view.state == "running" {
        return Err(ApiError::conflict("this run is still active"));
    }
    let session = kept.view.session.clone();
    kept.view.prompt =
        go_on.prompt.filter(|prompt| !prompt.trim().is_empty()).unwrap_or_else(|| CONTINUE_PROMPT.to_owned());
    "running".clone_into(&mut kept.view.state);
    kept.view.outcome = None;
    let run = api.start_run(&context.identity, kept, Some(session)).await?;
    let view = run.stored.lock().view.clone();
    Ok(view)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use ringfence_kernel::sync::Mutex;

    use super::{ApiRun, ApiRuns, Assurance, AuthScope, EventFeed, MAX_RUNS, RunView, StoredRun, TokenIdentity};

    fn run(number: usize, state: &str, owner: &str) -> (String, Arc<ApiRun>) {
        let id = format!("run-{number}");
        let view = RunView {
            id: id.clone(),
            session: String::new(),
            workspace: String::new(),
            agent: None,
            prompt: String::new(),
            created: format!("{number:06}"),
            state: state.to_owned(),
            outcome: None,
        };
        let kept = Mutex::new(StoredRun { view, owner: owner.to_owned(), token_name: None, is_page: false });
        (id, Arc::new(ApiRun { stored: kept, feed: EventFeed::starting_at(1), live: None, commands: Weak::new() }))
    }

    #[test]
    fn a_run_of_another_token_is_ended_by_an_administrator_and_resumed_by_a_person() {
        let (_, run) = run(0, "running", "own");
        let check = |name: &str, scope: AuthScope, assurance: Assurance, expected: (bool, bool)| {
            let who = TokenIdentity {
                id: name.into(),
                name: name.into(),
                scopes: [AuthScope::Call, AuthScope::Approve, scope].into(),
                assurance,
            };
            let kept = run.stored.lock();
            assert_eq!((kept.may_be_cancelled_by(&who), kept.may_be_resumed_by(&who)), expected, "{who:?}");
        };
        check("own", AuthScope::Call, Assurance::Relayed, (true, true));
        check("other", AuthScope::Call, Assurance::Relayed, (false, false));
        check("other", AuthScope::Admin, Assurance::Relayed, (true, false));
        check("other", AuthScope::Admin, Assurance::Person, (true, true));
    }

    #[test]
    fn the_oldest_runs_that_are_over_are_forgotten_and_none_that_goes_on() {
        let runs = ApiRuns::new();
        let put = |number, state, owner| {
            let (id, run) = run(number, state, owner);
            runs.insert(id, run);
        };
        put(0, "running", "busy");
        put(1, "answered", "other");
        (2..MAX_RUNS + 10).for_each(|number| put(number, "answered", "busy"));
        let all = runs.0.lock();
        assert_eq!(all.len(), MAX_RUNS);
        assert!(all.contains_key("run-0") && !all.contains_key("run-2") && !all.contains_key("run-11"));
        assert!(all.contains_key("run-12"));
        assert!(all.contains_key("run-1"), "one token pushes out no run of another");
    }
}
