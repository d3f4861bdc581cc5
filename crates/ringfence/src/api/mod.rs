//! The HTTP API of `ringfence serve`, and the page that uses it.
//!
//! Everything is under `/v1`, in JSON, for those who show a token: an agent's is for its own sessions and calls, a person's
//! page answers, takes back and sees all. Nothing here touches the world by itself: every call, look and undo goes to
//! `Host::call`, every answer to the desk.
//!
//! Not here: the Model Context Protocol, which the same server speaks (`mcp/`).

mod approvals;
mod calls;
mod door;
mod elsewhere;
mod events;
mod facts;
mod feed;
mod health;
mod houses;
mod idempotency;
mod login;
mod person;
mod problem;
mod reply;
mod routes;
mod runs;
mod sessions;
mod views;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::routing::{get, post};
use ringfence_kernel::{AuditSink, Scope};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::door::Door;
use self::feed::Feed;
use self::houses::{Houses, Waits};
use self::problem::Problem;
use self::routes::{Line, Need, Routes};
use self::runs::Runs;
use self::sessions::Sittings;
use crate::config::{Environment, Flags, Settings};
use crate::mcp::ENVELOPE;
use crate::pasts::Pasts;
use crate::request_rate::RequestRate;
use crate::request_source::SourceCheck;
use crate::session_owners::SessionOwners;
use crate::store::SqliteStore;
use crate::token_slots::TokenSlots;
use crate::tokens::Tokens;
use crate::wire::WireError;

/// What the API is made from.
#[derive(Debug)]
pub(crate) struct Ingredients {
    pub(crate) flags: Flags,
    pub(crate) environment: Environment,
    pub(crate) tokens: Tokens,
    /// How long a call waits for a person before its caller is told to come again.
    pub(crate) wait: Duration,
    /// Requests a second that a token may make.
    pub(crate) rate: u32,
}

/// What is there before anybody listens: the feed that every host of the server tells, and what tokens have been through.
#[derive(Debug)]
pub(crate) struct Before {
    feed: Feed,
    pasts: Pasts,
    rate: RequestRate,
    ingredients: Ingredients,
}

/// The state of the API.
#[derive(Debug)]
struct Api {
    door: Door,
    tokens: Tokens,
    houses: Houses,
    feed: Feed,
    waits: Waits,
    pasts: Pasts,
    sittings: Sittings,
    runs: Runs,
    streams: TokenSlots,
    store: Arc<SqliteStore>,
    state: PathBuf,
    program: PathBuf,
    /// After so many noes in a row a session is paused.
    pause_after: u64,
    stop: CancellationToken,
    counts: Counts,
    document: Value,
}

/// What the metrics say of requests.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    failures: AtomicU64,
}

/// The routes of the API, and what goes on beside them until it is dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) router: Router,
    watching: JoinHandle<()>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Before {
    pub(crate) fn new(ingredients: Ingredients) -> Self {
        let rate = RequestRate::new(ingredients.rate);
        Self { feed: Feed::new(), pasts: Pasts::default(), rate, ingredients }
    }

    /// What a host of the same server tells its records.
    pub(crate) fn tap(&self) -> Box<dyn AuditSink> {
        Box::new(self.feed.clone())
    }

    /// What the tokens of the same server have been through.
    pub(crate) fn pasts(&self) -> Pasts {
        self.pasts.clone()
    }

    /// Whose the sessions of the same server are.
    pub(crate) fn owners(&self) -> SessionOwners {
        self.feed.owners().clone()
    }

    /// The limit that requests of both fronts count towards.
    pub(crate) fn rate(&self) -> RequestRate {
        self.rate.clone()
    }

    /// Opens the API, for requests from where they may come.
    pub(crate) async fn open(
        self,
        settings: &Settings,
        source: SourceCheck,
        stop: CancellationToken,
    ) -> Result<Opened, WireError> {
        let Self { feed, pasts, rate, ingredients } = self;
        let Ingredients { flags, environment, tokens, wait, .. } = ingredients;
        let longest = usize::try_from(settings.limits.argument_bytes.saturating_add(ENVELOPE)).unwrap_or(usize::MAX);
        let (waits, program) = (Waits::new(wait), environment.program.clone());
        let (router, document) = routes().finish();
        let api = Arc::new(Api {
            door: Door::new(tokens.clone(), source, longest, rate),
            tokens,
            houses: Houses::new(flags, environment, feed.clone(), waits.clone())?,
            feed,
            waits,
            pasts,
            sittings: Sittings::new(),
            runs: Runs::new(),
            streams: events::streams(),
            store: Arc::new(SqliteStore::new(&settings.state)),
            state: settings.state.clone(),
            program,
            pause_after: settings.limits.denials_in_a_row,
            stop: stop.clone(),
            counts: Counts::default(),
            document,
        });
        // What cannot be opened again now is not lost: it is still in the store.
        let _ = api.reopen().await;
        let _ = api.know_runs().await;
        let ending = Arc::clone(&api);
        tokio::spawn(async move {
            stop.cancelled().await;
            ending.sittings.cancel_all();
            ending.runs.cancel_all();
        });
        let watching = tokio::spawn(Arc::clone(&api).watch_requests());
        let router = router
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready))
            .route("/v1/openapi.json", get(health::document))
            .route("/v1/login", post(login::login))
            .route("/", get(login::page))
            .route("/page/{*name}", get(login::asset))
            .fallback(|| async { Problem::missing("there is nothing here; `GET /v1/openapi.json` says what there is") })
            .with_state(api);
        Ok(Opened { router, watching })
    }
}

/// Every path under `/v1` that wants a token.
fn routes() -> Routes {
    let get = |path, need, summary| Line::new(Method::GET, path, need, summary);
    let post = |path, need, summary| Line::new(Method::POST, path, need, summary);
    let delete = |path, need, summary| Line::new(Method::DELETE, path, need, summary);
    let (token, call) = (Need::Token, Need::Scope(Scope::Call));
    let (approve, undo, admin) = (Need::Scope(Scope::Approve), Need::Scope(Scope::Undo), Need::Scope(Scope::Admin));
    let in_charge = Need::OneOf(&[Scope::Approve, Scope::Admin]);
    Routes::new()
        .json(get("/v1/me", token, "Who you are here"), facts::me)
        .json(get("/v1/tools", token, "The tools of a dialect"), facts::tools)
        .json(post("/v1/sessions", call, "Begin a session").created(), sessions::begin)
        .json(get("/v1/sessions", token, "The sessions that you may see"), sessions::list)
        .json(get("/v1/sessions/{session}", token, "One session"), sessions::show)
        .json(delete("/v1/sessions/{session}", token, "End a session, and what it is doing"), sessions::end)
        .json(post("/v1/sessions/{session}/calls", call, "Make one call"), calls::call)
        .json(post("/v1/sessions/{session}/calls/resume", call, "Go on with a call that was put off"), calls::go_on)
        .json(post("/v1/sessions/{session}/calls/{call}/cancel", call, "Cancel a call"), calls::cancel)
        .json(post("/v1/sessions/{session}/messages", call, "Make the calls of a message, in order"), calls::message)
        .json(post("/v1/sessions/{session}/resume", approve, "Let a paused session ask again"), approvals::resume)
        .other(
            get("/v1/sessions/{session}/events", token, "What happens in a session"),
            "text/event-stream",
            events::of_session,
        )
        .other(get("/v1/events", token, "What happens, as far as you may hear of it"), "text/event-stream", events::all)
        .json(get("/v1/approvals", approve, "The requests that wait for a person"), approvals::list)
        .json(get("/v1/approvals/{request}", approve, "One request"), approvals::show)
        .json(
            post("/v1/approvals/{request}/preview", approve, "What the call would do with other arguments"),
            approvals::preview,
        )
        .json(post("/v1/approvals/{request}", approve, "Answer a request; the first answer counts"), approvals::answer)
        .json(get("/v1/grants", admin, "What was allowed for good"), approvals::grants)
        .json(delete("/v1/grants/{grant}", admin, "Take a grant back"), approvals::revoke)
        .json(get("/v1/changes", undo, "The changes of a workspace, the newest first"), person::changes)
        .json(get("/v1/changes/{change}", undo, "What one change did"), person::change)
        .json(post("/v1/undo", undo, "Take changes back"), person::undo)
        .json(post("/v1/redo", undo, "Bring back what an undo took back"), person::redo)
        .json(get("/v1/files", Need::Person, "The entries of a directory"), person::files)
        .json(get("/v1/files/text", Need::Person, "A file as text"), person::text)
        .other(
            get("/v1/files/raw", Need::Person, "A file's bytes, to be saved"),
            "application/octet-stream",
            person::raw,
        )
        .json(get("/v1/history", Need::Person, "The sessions of other fronts"), elsewhere::list)
        .json(get("/v1/history/{session}", Need::Person, "What was said in one of them"), elsewhere::show)
        .json(post("/v1/runs", call, "Let the agent work on a prompt").created(), runs::begin)
        .json(get("/v1/runs", token, "The runs that you may see"), runs::list)
        .json(get("/v1/runs/{run}", token, "One run"), runs::show)
        .json(post("/v1/runs/{run}/cancel", call, "Cancel a run, and what it is doing"), runs::cancel)
        .json(post("/v1/runs/{run}/resume", call, "Go on with a run that is over"), runs::resume)
        .other(get("/v1/runs/{run}/events", token, "What happens in a run"), "text/event-stream", runs::events)
        .json(get("/v1/audit", in_charge, "Records of the audit log"), facts::records)
        .json(get("/v1/audit/verify", in_charge, "Check the audit log's chain"), facts::check)
        .json(get("/v1/policy", in_charge, "Every rule, in the order in which they decide"), facts::rules)
        .json(post("/v1/policy/explain", in_charge, "What would be decided about a call"), facts::explain)
        .json(get("/v1/doctor", in_charge, "Which walls stand on this machine"), facts::walls)
        .other(get("/metrics", token, "Figures for Prometheus"), "text/plain; version=0.0.4", health::metrics)
}
