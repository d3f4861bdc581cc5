//! The HTTP API of `ringfence serve`, and the web UI that uses it.
//!
//! Everything is under `/v1`, in JSON, with a token: an agent's is for its own sessions and calls, a person's page
//! approves, undoes and sees all. Nothing here has effects by itself: every call, read and undo goes to `Host::call`,
//! every answer to the approval inbox.
//!
//! Not here: MCP, which the same server provides (`mcp/`).

mod approvals;
mod auth;
mod calls;
mod changes;
mod error;
mod events;
mod feed;
mod health;
mod history;
mod hosts;
mod idempotency;
mod inspection;
mod json;
mod login;
mod routes;
mod runs;
mod sessions;
pub(crate) mod ui;
mod views;
mod wrapped_runs;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::routing::{any, get, post};
use ringfence_kernel::{AuditSink, AuthScope};
use ringfence_sandbox::CommandSessions;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::auth::ApiAuthLayer;
use self::error::ApiError;
use self::feed::EventFeed;
use self::hosts::{DeferringApprover, HostPool};
use self::routes::{AccessRequirement, Route, RouteTable};
use self::runs::ApiRuns;
use self::sessions::ApiSessions;
use crate::app::session::live::TokenSessions;
use crate::app::{App, AppError};
use crate::config::{CliFlags, Environment};
use crate::http::ENVELOPE_BYTES;
use crate::http::request_rate::RequestRate;
use crate::http::request_source::RequestSourceCheck;
use crate::http::token_slots::AccessTokenSlots;
use crate::process::messages::print_error;
use crate::store::SqliteStore;
use crate::store::tokens::TokenStore;

/// The parts of the API.
#[derive(Debug)]
pub(crate) struct ApiConfig {
    pub(crate) flags: CliFlags,
    pub(crate) environment: Environment,
    pub(crate) tokens: TokenStore,
    /// Time that a call waits for approval before its caller gets a deferred reply.
    pub(crate) wait: Duration,
    /// Requests a second that a token may make.
    pub(crate) rate: u32,
}

/// State that exists before the server listens: the feed that every host of the server publishes to, and the sessions of
/// its tokens.
#[derive(Debug)]
pub(crate) struct ApiBuilder {
    feed: EventFeed,
    token_sessions: TokenSessions,
    rate: RequestRate,
    config: ApiConfig,
}

/// The state of the API.
#[derive(Debug)]
struct ApiState {
    auth: ApiAuthLayer,
    tokens: TokenStore,
    hosts: HostPool,
    feed: EventFeed,
    approver: DeferringApprover,
    token_sessions: TokenSessions,
    /// Background jobs of the MCP sessions of this server.
    mcp_commands: Arc<CommandSessions>,
    sessions: ApiSessions,
    runs: ApiRuns,
    streams: AccessTokenSlots,
    store: Arc<SqliteStore>,
    state: PathBuf,
    program: PathBuf,
    /// Consecutive denials after which a session is paused.
    pause_after_denials: u64,
    stop: CancellationToken,
    counts: RequestCounts,
    document: Value,
}

/// Request counts for the metrics.
#[derive(Debug, Default)]
struct RequestCounts {
    requests: AtomicU64,
    failures: AtomicU64,
}

/// The routes of the API, and what goes on beside them until it is dropped.
#[derive(Debug)]
pub(crate) struct ApiService {
    pub(crate) router: Router,
    watcher: JoinHandle<()>,
}

impl Drop for ApiService {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl ApiBuilder {
    pub(crate) fn new(config: ApiConfig) -> Self {
        let rate = RequestRate::new(config.rate);
        let feed = EventFeed::new();
        Self { token_sessions: TokenSessions::new(feed.owners().clone()), feed, rate, config }
    }

    /// The audit sink of a host of the same server.
    pub(crate) fn tap(&self) -> Box<dyn AuditSink> {
        Box::new(self.feed.clone())
    }

    /// The sessions of the tokens of the same server.
    pub(crate) fn token_sessions(&self) -> TokenSessions {
        self.token_sessions.clone()
    }

    /// The limit that requests of both fronts count towards.
    pub(crate) fn rate(&self) -> RequestRate {
        self.rate.clone()
    }

    /// Opens the API, for requests from where they may come.
    pub(crate) async fn open(
        self,
        app: &App,
        source: RequestSourceCheck,
        stop: CancellationToken,
    ) -> Result<ApiService, AppError> {
        let Self { feed, token_sessions, rate, config: ingredients } = self;
        let settings = &app.settings;
        let ApiConfig { flags, environment, tokens, wait, .. } = ingredients;
        let longest =
            usize::try_from(settings.limits.argument_bytes.saturating_add(ENVELOPE_BYTES)).unwrap_or(usize::MAX);
        let (waits, program) = (DeferringApprover::new(wait), environment.program.clone());
        let (router, document) = routes().finish();
        let api = Arc::new(ApiState {
            auth: ApiAuthLayer::new(tokens.clone(), source, longest, rate),
            tokens,
            hosts: HostPool::new(flags, environment, feed.clone(), waits.clone())?,
            feed,
            approver: waits,
            token_sessions,
            mcp_commands: Arc::clone(&app.commands),
            sessions: ApiSessions::new(),
            runs: ApiRuns::new(),
            streams: events::stream_slots(),
            store: Arc::new(SqliteStore::new(&settings.state)),
            state: settings.state.clone(),
            program,
            pause_after_denials: settings.limits.denials_in_a_row,
            stop: stop.clone(),
            counts: RequestCounts::default(),
            document,
        });
        // What cannot be restored now is still in the store.
        for restored in [api.restore_sessions().await, api.restore_runs().await] {
            if let Err(error) = restored {
                print_error(&format!("cannot restore sessions and runs of the server: {error}"));
            }
        }
        let ending = Arc::clone(&api);
        tokio::spawn(async move {
            stop.cancelled().await;
            ending.sessions.cancel_all();
            ending.runs.cancel_all();
        });
        let watching = tokio::spawn(Arc::clone(&api).watch_requests());
        let router = router
            .route("/healthz", get(health::liveness))
            .route("/readyz", get(health::readiness))
            .route("/v1/openapi.json", get(health::openapi_document))
            .route("/v1/login", post(login::exchange_code))
            .route("/v1/elsewhere", any(history::renamed))
            .route("/v1/elsewhere/{session}", any(history::renamed))
            .route("/", get(login::index_page))
            .route("/page/{*name}", get(login::asset))
            .fallback(|| async { ApiError::not_found("not found; `GET /v1/openapi.json` lists the available paths") })
            .with_state(api);
        Ok(ApiService { router, watcher: watching })
    }
}

/// Every path under `/v1` that wants a token.
fn routes() -> RouteTable {
    let get = |path, need, summary| Route::new(Method::GET, path, need, summary);
    let post = |path, need, summary| Route::new(Method::POST, path, need, summary);
    let delete = |path, need, summary| Route::new(Method::DELETE, path, need, summary);
    let (token, call) = (AccessRequirement::Token, AccessRequirement::Scope(AuthScope::Call));
    let (approve, undo, admin) = (
        AccessRequirement::Scope(AuthScope::Approve),
        AccessRequirement::Scope(AuthScope::Undo),
        AccessRequirement::Scope(AuthScope::Admin),
    );
    let (view_run, control_run) =
        (AccessRequirement::WrappedRun(AuthScope::Approve), AccessRequirement::WrappedRun(AuthScope::Admin));
    let in_charge = AccessRequirement::OneOf(&[AuthScope::Approve, AuthScope::Admin]);
    RouteTable::new()
        .json(get("/v1/me", token, "Get the current token's identity and scopes"), inspection::token_info)
        .json(get("/v1/tools", token, "List the tools of a dialect"), inspection::tools)
        .json(post("/v1/sessions", call, "Create a session").created(), sessions::create)
        .json(get("/v1/sessions", token, "List sessions"), sessions::list)
        .json(get("/v1/sessions/{session}", token, "Get a session"), sessions::show)
        .json(delete("/v1/sessions/{session}", token, "End a session and cancel its calls"), sessions::end)
        .json(get("/v1/jobs", token, "List the background jobs visible to the token"), sessions::all_jobs)
        .json(get("/v1/sessions/{session}/jobs", token, "List the background jobs of a session"), sessions::jobs)
        .json(post("/v1/sessions/{session}/calls", call, "Call a tool"), calls::call)
        .json(post("/v1/sessions/{session}/calls/resume", call, "Resume a deferred call"), calls::resume)
        .json(post("/v1/sessions/{session}/calls/{call}/cancel", call, "Cancel a call"), calls::cancel)
        .json(
            post("/v1/sessions/{session}/messages", call, "Run the tool calls of a chat message, in order"),
            calls::run_message,
        )
        .json(post("/v1/sessions/{session}/resume", approve, "Resume a paused session"), approvals::resume)
        .non_json(
            get("/v1/sessions/{session}/events", token, "Stream the events of a session"),
            "text/event-stream",
            events::session_events,
        )
        .non_json(
            get("/v1/events", token, "Stream all events visible to the token"),
            "text/event-stream",
            events::all_events,
        )
        .json(get("/v1/approvals", approve, "List pending approval requests"), approvals::list)
        .json(get("/v1/approvals/{request}", approve, "Get an approval request"), approvals::show)
        .json(
            post("/v1/approvals/{request}/preview", approve, "Preview a call with edited arguments"),
            approvals::preview,
        )
        .json(
            post("/v1/approvals/{request}", approve, "Answer an approval request; the first answer counts"),
            approvals::answer,
        )
        .json(get("/v1/grants", admin, "List persistent grants"), approvals::grants)
        .json(delete("/v1/grants/{grant}", admin, "Revoke a grant"), approvals::revoke)
        .json(get("/v1/changes", undo, "List the changes of a workspace, newest first"), changes::changes)
        .json(get("/v1/changes/{change}", undo, "Get a change with its diff"), changes::change)
        .json(post("/v1/undo", undo, "Undo changes"), changes::undo)
        .json(post("/v1/redo", undo, "Redo an undone change"), changes::redo)
        .json(get("/v1/files", AccessRequirement::Person, "List a directory"), changes::files)
        .json(get("/v1/files/text", AccessRequirement::Person, "Read a file as text"), changes::file_text)
        .non_json(
            get("/v1/files/raw", AccessRequirement::Person, "Download a file"),
            "application/octet-stream",
            changes::raw_file,
        )
        .json(get("/v1/history", AccessRequirement::Person, "List sessions of other clients"), history::list)
        .json(
            get("/v1/history/{session}", AccessRequirement::Person, "Get the transcript of another client's session"),
            history::show,
        )
        .json(post("/v1/runs", call, "Start an agent run").created(), runs::create)
        .json(get("/v1/runs", token, "List agent runs"), runs::list)
        .json(get("/v1/runs/{run}", token, "Get an agent run"), runs::show)
        .json(post("/v1/runs/{run}/cancel", call, "Cancel an agent run"), runs::cancel)
        .json(post("/v1/runs/{run}/resume", call, "Continue a finished agent run"), runs::resume)
        .non_json(
            get("/v1/runs/{run}/events", token, "Stream the events of an agent run"),
            "text/event-stream",
            runs::events,
        )
        .json(get("/v1/wrapped-runs", view_run, "List wrapped runs that go on"), wrapped_runs::list)
        .json(get("/v1/wrapped-runs/{layer}", view_run, "Get a wrapped run with its screen"), wrapped_runs::show)
        .json(
            get(
                "/v1/wrapped-runs/{layer}/changes",
                view_run,
                "Get the changes of a wrapped run so far, with their hunks",
            ),
            wrapped_runs::changes,
        )
        .json(
            post(
                "/v1/wrapped-runs/{layer}/stop",
                control_run,
                "Ask a wrapped run to end; a second time soon after, end it",
            ),
            wrapped_runs::stop,
        )
        .json(
            post("/v1/wrapped-runs/{layer}/checkpoint", control_run, "Make a checkpoint of a wrapped run"),
            wrapped_runs::checkpoint,
        )
        .json(post("/v1/wrapped-runs/{layer}/input", control_run, "Type to a detached run"), wrapped_runs::input)
        .json(get("/v1/audit", in_charge, "List audit log records"), inspection::audit_records)
        .json(get("/v1/audit/verify", in_charge, "Verify the audit log's hash chain"), inspection::verify_audit)
        .json(get("/v1/policy", in_charge, "List the policy rules, in order of precedence"), inspection::policy)
        .json(post("/v1/policy/explain", in_charge, "Explain the policy decision for a call"), inspection::explain)
        .json(get("/v1/doctor", in_charge, "Isolation mechanisms available on this machine"), inspection::isolation)
        .non_json(get("/metrics", token, "Prometheus metrics"), "text/plain; version=0.0.4", health::metrics)
}
