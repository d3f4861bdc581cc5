//! Runs of the agent, started and followed through the API: a prompt, what the model says and does, and how it ended.
//!
//! A run is on disk before its id is told. One that was under way when the server stopped is interrupted: it goes on in the
//! session that it had, where every call has one result, if somebody wants it to. Who is asked is whoever is at the desk.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::response::Response;
use ringfence_agent::{Announced, Event, Front};
use ringfence_kernel::{ApprovalRequest, Approver, Assurance, Principal, Scope, Session, Word};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::Api;
use super::events::{From, stream};
use super::feed::{Feed, News};
use super::houses::{Which, off_thread};
use super::problem::Problem;
use super::routes::{Done, Nothing, Visit};
use crate::agent::{Making, finished, line, open_model};
use crate::approve::by_setting;
use crate::cli::Failure;
use crate::lock::lock;
use crate::mode::Modes;
use crate::store::Shelf;
use crate::token_slots::{SlotLimits, TokenSlots, heaviest_token};
use crate::tokens::{Owner, secret};
use crate::wire::directory_of;

/// Runs that are under way at once.
const UNDER_WAY: SlotLimits = SlotLimits { per_token: 16, total: 48, reserved: 16 };

/// Runs that are kept.
const MOST_KEPT: usize = 256;

/// What the model is told where a run goes on and nobody says more.
const GO_ON: &str = "Go on where you were interrupted.";

/// Characters of text that are told at once.
const PIECE: usize = 48;

/// What to do.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewRun {
    #[schemars(length(min = 1))]
    prompt: String,
    /// A workspace that the user declared; `main` where nothing is said.
    workspace: Option<String>,
    /// An agent of the config.
    agent: Option<String>,
    /// The session of an earlier run of yours, to go on with.
    session: Option<String>,
}

/// What more to say.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct GoOn {
    prompt: Option<String>,
}

/// A run, as it is listed.
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
    /// How it ended: the end, the last words, tokens, and what was truly done.
    outcome: Option<Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunList {
    /// Whether a model is set.
    available: bool,
    /// The newest first.
    runs: Vec<RunView>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    view: RunView,
    /// The id of the token that it belongs to.
    owner: String,
    /// The name of that token. Runs of version 0.1.0 have it as their owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_name: Option<String>,
    /// Whose is a person's page.
    #[serde(default)]
    is_page: bool,
}

impl Kept {
    fn token_name(&self) -> &str {
        self.token_name.as_deref().unwrap_or(&self.owner)
    }

    /// As somebody may see it: what was said is for whose it is, and for a person.
    fn shown_to(self, who: &Owner) -> RunView {
        let Self { mut view, owner, .. } = self;
        if who.assurance != Assurance::Person && owner != *who.id {
            view.prompt.clear();
            view.outcome = None;
        }
        view
    }

    /// Whether somebody may end it: whose it is, and those who may end any session.
    fn may_be_cancelled_by(&self, who: &Owner) -> bool {
        self.owner == *who.id || who.may(Scope::Admin)
    }

    /// Whether somebody may give it more to do. Its calls stay its owner's, so of others only a person may: a token that can
    /// approve would answer for what it asked for itself.
    fn may_be_resumed_by(&self, who: &Owner) -> bool {
        self.owner == *who.id || (who.may(Scope::Admin) && who.assurance == Assurance::Person)
    }
}

fn of_another_token() -> Problem {
    Problem::forbidden("this run is another token's")
}

#[derive(Debug)]
struct Run {
    kept: Mutex<Kept>,
    feed: Feed,
    cancel: Mutex<CancellationToken>,
}

/// Every run, by its id.
#[derive(Debug)]
pub(super) struct Runs(Mutex<BTreeMap<String, Arc<Run>>>, TokenSlots);

impl Runs {
    pub(super) fn new() -> Self {
        Self(Mutex::default(), TokenSlots::new(UNDER_WAY))
    }

    pub(super) fn cancel_all(&self) {
        lock(&self.0).values().for_each(|run| lock(&run.cancel).cancel());
    }

    /// Takes one in. Where there are too many, the token that has most of those that are over loses its oldest.
    fn put(&self, id: String, run: Arc<Run>) {
        let mut all = lock(&self.0);
        all.insert(id, run);
        while all.len() > MOST_KEPT {
            let over = all.iter().filter_map(|(id, run)| {
                let Kept { view, owner, .. } = &*lock(&run.kept);
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
        lock(&self.0).values().map(|run| lock(&run.kept).view.session.clone()).collect()
    }
}

/// Asks nobody by itself: whoever is at the desk answers.
#[derive(Debug)]
struct AtDesk;

impl Approver for AtDesk {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        Box::pin(pending())
    }
}

/// Tells what happens in a run to those who follow it.
#[derive(Debug)]
struct Told {
    feed: Feed,
    owner: String,
    /// Text that is too short to be told yet.
    text: Mutex<String>,
}

impl Told {
    fn tell(&self, said: Value) {
        let kind = json!({"type": said["type"]});
        self.feed.tell(News { kind: "run", session: None, owner: Some(&self.owner), data: kind, contents: said });
    }

    fn flush(&self, text: &mut String) {
        if !text.is_empty() {
            self.tell(json!({"type": "text", "text": std::mem::take(text)}));
        }
    }
}

impl Front for Told {
    fn hear(&self, event: &Event<'_>) {
        let mut text = lock(&self.text);
        if let Event::Text { text: piece } = event {
            text.push_str(piece);
            if text.len() >= PIECE {
                self.flush(&mut text);
            }
            return;
        }
        self.flush(&mut text);
        self.tell(line(event));
    }
}

impl Api {
    /// Knows the runs again that there were when the server stopped.
    pub(super) async fn know_runs(self: &Arc<Self>) -> Result<(), Problem> {
        let api = Arc::clone(self);
        let bodies = off_thread(move || Ok(api.store.kept(Shelf::Runs)?)).await?;
        for body in bodies {
            let Ok(mut kept) = serde_json::from_str::<Kept>(&body) else { continue };
            if kept.view.state == "running" {
                "interrupted".clone_into(&mut kept.view.state);
            }
            let id = kept.view.id.clone();
            let run = Run { kept: Mutex::new(kept), feed: Feed::from(1), cancel: Mutex::default() };
            lock(&self.runs.0).insert(id, Arc::new(run));
        }
        Ok(())
    }

    fn run(&self, visit: &Visit) -> Result<Arc<Run>, Problem> {
        let may = |run: &Arc<Run>| in_charge(&visit.who) || lock(&run.kept).owner == *visit.who.id;
        let found = lock(&self.runs.0).get(visit.name(0)).cloned().filter(may);
        found.ok_or_else(|| Problem::missing("you have no run of that id; `GET /v1/runs` lists those that there are"))
    }

    async fn keep_run(&self, run: &Run) -> Result<(), Problem> {
        let kept = lock(&run.kept).clone();
        let (store, id) = (Arc::clone(&self.store), kept.view.id.clone());
        let body = serde_json::to_string(&kept).map_err(|_| Problem::internal("the run cannot be written"))?;
        off_thread(move || Ok(store.keep(Shelf::Runs, &id, &body, MOST_KEPT)?)).await
    }

    fn tell_of_run(&self, run: &Run) {
        let Kept { view, owner, .. } = lock(&run.kept).clone();
        let data = json!({"run": view.id, "state": view.state});
        let session = Some(view.session.as_str());
        self.feed.tell(News { kind: "run", session, owner: Some(&owner), data, contents: Value::Null });
    }

    /// Starts to work on a prompt, in a new session or in one that goes on.
    async fn start(self: &Arc<Self>, who: &Owner, mut kept: Kept, resume: Option<String>) -> Result<Arc<Run>, Problem> {
        let full = || format!("too many runs are under way; a token may have {}", UNDER_WAY.per_token);
        let slot = self.runs.1.take(who).ok_or_else(|| Problem::too_many(full()))?;
        let feed = Feed::from(1);
        let told = Arc::new(Told { feed: feed.clone(), owner: kept.owner.clone(), text: Mutex::default() });
        let which = Which { agent: kept.view.agent.clone(), ..Which::of(Some(&kept.view.workspace)) };
        let (settings, environment) = self.houses.settings(&which)?;
        let (front, also) = (Arc::clone(&told) as Arc<dyn Front>, Box::new(self.feed.clone()));
        let (pasts, owner) = (self.pasts.clone(), kept.owner.clone());
        let made = spawn_blocking(move || {
            let directory = directory_of(&settings, &environment)?;
            let asks = || Box::new(Announced { approver: Box::new(AtDesk), front: Arc::clone(&front) }) as _;
            let making = Making {
                model: open_model(&settings.model, &environment)?,
                approver: by_setting(&settings, asks),
                front: Arc::clone(&front),
                settings,
                environment: &environment,
                modes: Modes::default(),
                bits: pasts.of(&owner, &directory),
                also: Some(also),
            };
            making.make(resume.as_deref())
        });
        let made = made.await.map_err(|_| Problem::internal("the run could not be made"))?;
        let mut made = made.map_err(|failure| no_run(&failure))?;
        let session = &made.wired.session;
        // Whose run it is, is who calls in it. A page's run asks its person; a script never answers for its own.
        let caller = Principal::agent(match kept.is_page {
            true => format!("agent of {}", kept.token_name()),
            false => kept.token_name().to_owned(),
        });
        made.wired.session = Arc::new(Session { bits: session.bits.clone(), ..session.like(&session.id, caller) });
        let ownership = self.feed.owners().register(&made.wired.session, &kept.owner);
        kept.view.session.clone_from(&made.wired.session.id);
        let (id, prompt) = (kept.view.id.clone(), kept.view.prompt.clone());
        let cancel = CancellationToken::new();
        let run = Arc::new(Run { kept: Mutex::new(kept), feed, cancel: Mutex::new(cancel.clone()) });
        self.keep_run(&run).await?;
        self.runs.put(id, Arc::clone(&run));
        self.tell_of_run(&run);
        let (api, working) = (Arc::clone(self), Arc::clone(&run));
        tokio::spawn(async move {
            let (_slot, _owner) = (slot, ownership);
            let outcome = match made.begin(&cancel).await {
                Ok((agent, mut history, saved)) => {
                    let outcome = finished(&agent.run(&prompt, &mut history, &cancel).await);
                    // Whoever cannot be told of it in the session still finds it in the run.
                    let _ = saved.keep_outcome(&outcome);
                    outcome
                }
                Err(failure) => json!({"end": "host_error", "why": failure.to_string(), "text": ""}),
            };
            {
                let view = &mut lock(&working.kept).view;
                let state = match outcome["end"].as_str() {
                    Some("answered") => "answered",
                    Some("cancelled") => "cancelled",
                    _ => "failed",
                };
                state.clone_into(&mut view.state);
                view.outcome = Some(outcome);
            }
            let _ = api.keep_run(&working).await;
            api.tell_of_run(&working);
        });
        Ok(run)
    }
}

fn in_charge(who: &Owner) -> bool {
    who.may(Scope::Approve) || who.may(Scope::Admin)
}

fn no_run(failure: &Failure) -> Problem {
    match failure {
        Failure::Session(_) => Problem::conflict(failure.to_string()),
        _ => Problem::unavailable(failure.to_string()),
    }
}

pub(super) async fn list(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<RunList, Problem> {
    let (settings, environment) = api.houses.settings(&Which::of(None))?;
    let available = spawn_blocking(move || open_model(&settings.model, &environment).is_ok()).await.unwrap_or(false);
    let all: Vec<Kept> = lock(&api.runs.0).values().map(|run| lock(&run.kept).clone()).collect();
    let mut runs: Vec<RunView> = all
        .into_iter()
        .filter(|kept| in_charge(&visit.who) || kept.owner == *visit.who.id)
        .map(|kept| kept.shown_to(&visit.who))
        .collect();
    runs.sort_by(|a, b| b.created.cmp(&a.created));
    Ok(RunList { available, runs })
}

pub(super) async fn begin(api: Arc<Api>, visit: Visit, new: NewRun) -> Result<RunView, Problem> {
    let NewRun { prompt, workspace, agent, session } = new;
    if prompt.trim().is_empty() {
        return Err(Problem::bad("a run needs a prompt"));
    }
    let (owner, token_name) = (visit.who.id.to_string(), Some(visit.who.name.to_string()));
    if let Some(session) = &session {
        let is_theirs = |run: &Arc<Run>| {
            let kept = lock(&run.kept);
            kept.view.session == *session && kept.owner == owner
        };
        if !lock(&api.runs.0).values().any(is_theirs) {
            return Err(Problem::missing("you have no run with that session"));
        }
    }
    let id = secret("run-").map_err(|error| Problem::internal(error.to_string()))?[..24].to_owned();
    let view = RunView {
        id,
        session: String::new(),
        workspace: workspace.unwrap_or_else(|| super::houses::MAIN.to_owned()),
        agent,
        prompt,
        created: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        state: "running".to_owned(),
        outcome: None,
    };
    let kept = Kept { view, owner, token_name, is_page: visit.who.assurance == Assurance::Person };
    let run = api.start(&visit.who, kept, session).await?;
    let view = lock(&run.kept).view.clone();
    Ok(view)
}

pub(super) async fn show(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<RunView, Problem> {
    let run = api.run(&visit)?;
    let kept = lock(&run.kept).clone();
    Ok(kept.shown_to(&visit.who))
}

pub(super) async fn events(api: Arc<Api>, visit: Visit, from: From) -> Result<Response, Problem> {
    let run = api.run(&visit)?;
    stream(&api, &run.feed, visit, from, None)
}

pub(super) async fn cancel(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Done, Problem> {
    let run = api.run(&visit)?;
    if !lock(&run.kept).may_be_cancelled_by(&visit.who) {
        return Err(of_another_token());
    }
    lock(&run.cancel).cancel();
    Ok(Done {})
}

/// Goes on with a run that is over, in its session.
pub(super) async fn resume(api: Arc<Api>, visit: Visit, go_on: GoOn) -> Result<RunView, Problem> {
    let run = api.run(&visit)?;
    let mut kept = lock(&run.kept).clone();
    if !kept.may_be_resumed_by(&visit.who) {
        return Err(of_another_token());
    }
    if kept.view.state == "running" {
        return Err(Problem::conflict("this run is under way"));
    }
    let session = kept.view.session.clone();
    kept.view.prompt = go_on.prompt.filter(|prompt| !prompt.trim().is_empty()).unwrap_or_else(|| GO_ON.to_owned());
    "running".clone_into(&mut kept.view.state);
    kept.view.outcome = None;
    let run = api.start(&visit.who, kept, Some(session)).await?;
    let view = lock(&run.kept).view.clone();
    Ok(view)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::{Assurance, Feed, Kept, MOST_KEPT, Owner, Run, RunView, Runs, Scope, lock};

    fn run(number: usize, state: &str, owner: &str) -> (String, Arc<Run>) {
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
        let kept = Mutex::new(Kept { view, owner: owner.to_owned(), token_name: None, is_page: false });
        (id, Arc::new(Run { kept, feed: Feed::from(1), cancel: Mutex::default() }))
    }

    #[test]
    fn a_run_of_another_token_is_ended_by_an_administrator_and_resumed_by_a_person() {
        let (_, run) = run(0, "running", "own");
        let check = |name: &str, scope: Scope, assurance: Assurance, expected: (bool, bool)| {
            let who = Owner {
                id: name.into(),
                name: name.into(),
                scopes: [Scope::Call, Scope::Approve, scope].into(),
                assurance,
            };
            let kept = lock(&run.kept);
            assert_eq!((kept.may_be_cancelled_by(&who), kept.may_be_resumed_by(&who)), expected, "{who:?}");
        };
        check("own", Scope::Call, Assurance::Relayed, (true, true));
        check("other", Scope::Call, Assurance::Relayed, (false, false));
        check("other", Scope::Admin, Assurance::Relayed, (true, false));
        check("other", Scope::Admin, Assurance::Person, (true, true));
    }

    #[test]
    fn the_oldest_runs_that_are_over_are_forgotten_and_none_that_goes_on() {
        let runs = Runs::new();
        let put = |number, state, owner| {
            let (id, run) = run(number, state, owner);
            runs.put(id, run);
        };
        put(0, "running", "busy");
        put(1, "answered", "other");
        (2..MOST_KEPT + 10).for_each(|number| put(number, "answered", "busy"));
        let all = lock(&runs.0);
        assert_eq!(all.len(), MOST_KEPT);
        assert!(all.contains_key("run-0") && !all.contains_key("run-2") && !all.contains_key("run-11"));
        assert!(all.contains_key("run-12"));
        assert!(all.contains_key("run-1"), "one token pushes out no run of another");
    }
}
