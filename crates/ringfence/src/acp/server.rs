//! What editors ask for, done: sessions begun, taken up again and ended, and prompts worked on in them.
//!
//! A session works in a directory that the user declared, never in one that only the editor names. Each has a host of its
//! own, as `ringfence agent` has it, and one prompt at a time. Notifications and the beginning of a prompt take effect in
//! the order in which they came, so that a cancellation finds the prompt that it means.
//!
//! Not here: the words of the protocol (`words.rs`), and the agent (`crate::agent`).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_agent::{Agent, Front, History};
use ringfence_kernel::{Approver, Bits};
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::approve::ThroughEditor;
use super::peer::{
    Client, INTERNAL, INVALID_PARAMS, INVALID_REQUEST, Message, NO_SUCH_METHOD, NOT_FOUND, Refusal, Reply,
};
use super::screen::Screen;
use super::words::{
    KnownSession, ListSessions, NewSession, OfSession, Prompt, SetMode, capabilities, modes, params, prompt_text,
    stop_reason,
};
use crate::agent::{Making, SessionError, finished, open_model};
use crate::approve::by_setting;
use crate::cli::{Failure, chain, complain};
use crate::config::{Environment, Settings};
use crate::mode::{Mode, Modes};
use crate::sessions::{Saved, Sessions};
use crate::wire::{directory_of, existing_workspace};

/// More sessions than this no editor has open.
const MOST_SESSIONS: usize = 32;

/// Serves one client.
#[derive(Debug)]
pub(super) struct Server {
    settings: Settings,
    environment: Environment,
    client: Client,
    sessions: Mutex<HashMap<String, Arc<Talk>>>,
}

/// A session that is open.
#[derive(Debug)]
struct Talk {
    root: PathBuf,
    modes: Modes,
    /// The prompt that is worked on.
    at_work: Mutex<Option<CancellationToken>>,
    conversation: tokio::sync::Mutex<Conversation>,
}

#[derive(Debug)]
struct Conversation {
    agent: Agent,
    history: History,
    saved: Saved,
}

/// How a session that is there already is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// What was said is shown once more.
    Shown,
    Silently,
}

impl Server {
    pub(super) fn new(settings: Settings, environment: Environment, client: Client) -> Self {
        Self { settings, environment, client, sessions: Mutex::default() }
    }

    /// Takes a message. What takes time goes on in `tasks`.
    pub(super) fn take(self: &Arc<Self>, message: Message, tasks: &mut JoinSet<()>) {
        let (method, given, reply) = match message {
            Message::Notification { method, params: given } => {
                if method == "session/cancel"
                    && let Ok(OfSession { session_id }) = params(given)
                    && let Ok(talk) = self.talk(&session_id)
                {
                    talk.cancel();
                }
                return;
            }
            Message::Request { method, params, reply } => (method, params, reply),
        };
        match method.as_str() {
            "initialize" => reply.give(Ok(capabilities())),
            "session/prompt" => self.prompt(given, reply, tasks),
            "session/set_mode" => reply.give(self.set_mode(given)),
            "session/close" => reply.give(self.close(given)),
            "session/list" => reply.give(self.list(given)),
            "session/new" | "session/load" | "session/resume" => {
                let server = Arc::clone(self);
                tasks.spawn(async move {
                    let opened = match method.as_str() {
                        "session/new" => server.begin(given).await,
                        "session/load" => server.go_on(given, Again::Shown).await,
                        _ => server.go_on(given, Again::Silently).await,
                    };
                    reply.give(opened);
                });
            }
            other => reply.give(Err(Refusal::new(NO_SUCH_METHOD, format!("there is no method `{other}`")))),
        }
    }

    /// Cancels every prompt.
    pub(super) fn cancel_all(&self) {
        self.sessions().values().for_each(|talk| talk.cancel());
    }

    async fn begin(&self, given: Value) -> Result<Value, Refusal> {
        let new: NewSession = params(given)?;
        let (id, modes_now) = self.open(&new, None).await?;
        Ok(json!({"sessionId": id, "modes": modes_now}))
    }

    async fn go_on(&self, given: Value, again: Again) -> Result<Value, Refusal> {
        let KnownSession { session_id, new } = params(given)?;
        if let Ok(talk) = self.talk(&session_id) {
            talk.is_free()?;
            // It is opened anew, from what was kept.
            self.sessions().remove(&session_id);
        }
        let (_, modes_now) = self.open(&new, Some((session_id, again))).await?;
        Ok(json!({"modes": modes_now}))
    }

    /// Opens a session: a new one, or one that is kept.
    async fn open(&self, new: &NewSession, known: Option<(String, Again)>) -> Result<(String, Value), Refusal> {
        if self.sessions().len() >= MOST_SESSIONS {
            return Err(Refusal::new(INVALID_REQUEST, "too many sessions are open; close some"));
        }
        if !new.mcp_servers.is_empty() {
            complain("the editor's MCP servers are not used: which servers an agent has is said in your own config");
        }
        let (root, settings) = self.settings_for(&new.cwd)?;
        let screen = Arc::new(Screen::new(self.client.clone(), root.clone()));
        let session_modes = Modes::default();
        let (front, environment) = (Arc::clone(&screen), self.environment.clone());
        let (id, again) = known.unzip();
        let its_modes = session_modes.clone();
        let made = spawn_blocking(move || {
            let making = Making {
                model: open_model(&settings.model, &environment)?,
                approver: approver(&settings, &front),
                settings,
                environment: &environment,
                front: front as Arc<dyn Front>,
                modes: its_modes,
                bits: Bits::default(),
                also: None,
            };
            making.make(id.as_deref())
        });
        let mut made = made.await.map_err(|_| Refusal::new(INTERNAL, "the session could not be made"))??;
        let id = made.wired.session.id.clone();
        screen.is_of(&id);
        let said = match (&mut made.resumed, again) {
            (Some(resumed), Some(Again::Shown)) => resumed.messages.clone(),
            _ => Vec::new(),
        };
        let (agent, history, saved) = made.begin(&CancellationToken::new()).await?;
        screen.replay(&said);
        let conversation = tokio::sync::Mutex::new(Conversation { agent, history, saved });
        let talk = Talk { root, modes: session_modes, at_work: Mutex::default(), conversation };
        self.sessions().insert(id.clone(), Arc::new(talk));
        Ok((id, modes(Mode::default())))
    }

    fn prompt(&self, given: Value, reply: Reply, tasks: &mut JoinSet<()>) {
        let begun = params(given).and_then(|Prompt { session_id, prompt }| {
            let talk = self.talk(&session_id)?;
            let text = prompt_text(&prompt, &talk.root)?;
            let cancel = talk.start()?;
            Ok((talk, text, cancel))
        });
        match begun {
            Ok((talk, text, cancel)) => {
                tasks.spawn(async move { reply.give(talk.work_on(&text, cancel).await) });
            }
            Err(refusal) => reply.give(Err(refusal)),
        }
    }

    fn set_mode(&self, given: Value) -> Result<Value, Refusal> {
        let SetMode { session_id, mode_id } = params(given)?;
        let talk = self.talk(&session_id)?;
        let mode = Mode::named(&mode_id).ok_or_else(|| {
            let names = Mode::ALL.map(Mode::name).join(", ");
            Refusal::new(INVALID_PARAMS, format!("there is no mode of that name; there are {names}"))
        })?;
        talk.modes.change(mode);
        Ok(json!({}))
    }

    fn close(&self, given: Value) -> Result<Value, Refusal> {
        let OfSession { session_id } = params(given)?;
        self.talk(&session_id)?.cancel();
        self.sessions().remove(&session_id);
        Ok(json!({}))
    }

    /// The sessions of one workspace, or of all.
    fn list(&self, given: Value) -> Result<Value, Refusal> {
        let wanted: ListSessions = if given.is_null() { ListSessions::default() } else { params(given)? };
        // One may be declared twice.
        let places: BTreeMap<PathBuf, Settings> = match wanted.cwd {
            Some(cwd) => BTreeMap::from([self.settings_for(&cwd)?]),
            None => self.declared().collect(),
        };
        let mut listed = Vec::new();
        for (root, settings) in places {
            let directory = directory_of(&settings, &self.environment).map_err(Failure::from)?;
            for head in Sessions::new(&settings.state).list(&directory)? {
                let updated = humantime::format_rfc3339_millis(head.updated).to_string();
                listed.push(json!({"sessionId": head.id, "cwd": root, "title": head.title, "updatedAt": updated}));
            }
        }
        Ok(json!({ "sessions": listed }))
    }

    /// The workspace that an editor has open, and its settings.
    fn settings_for(&self, cwd: &str) -> Result<(PathBuf, Settings), Refusal> {
        let directory = std::fs::canonicalize(cwd).ok().filter(|_| cwd.starts_with('/'));
        let found = directory.and_then(|directory| self.declared().find(|(root, _)| *root == directory));
        found.ok_or_else(|| {
            let message = "the directory of this session is no workspace of yours: declare it in your config file \
                           (`~/.config/ringfence/config.toml`) below `[workspaces]`, such as `name = \"~/project\"`, or \
                           start `ringfence acp --workspace DIR`";
            Refusal::new(INVALID_PARAMS, message)
        })
    }

    /// The workspace of the command line or the config, and those that are declared beside it, as far as they are there.
    fn declared(&self) -> impl Iterator<Item = (PathBuf, Settings)> {
        let others = self.settings.workspaces.values().map(|path| Some(path.clone()));
        let all = std::iter::once(self.settings.workspace.clone()).chain(others);
        all.filter_map(|workspace| {
            let settings = Settings { workspace, ..self.settings.clone() };
            let root = existing_workspace(&settings, &self.environment)?;
            Some((root, settings))
        })
    }

    fn talk(&self, id: &str) -> Result<Arc<Talk>, Refusal> {
        let found = self.sessions().get(id).cloned();
        found.ok_or_else(|| Refusal::new(NOT_FOUND, "no session of that id is open here; `session/load` opens one"))
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Talk>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Talk {
    /// From now on a prompt is worked on.
    fn start(self: &Arc<Self>) -> Result<Work, Refusal> {
        let mut at_work = self.at_work();
        if at_work.is_some() {
            return Err(busy());
        }
        let cancel = CancellationToken::new();
        *at_work = Some(cancel.clone());
        Ok(Work { talk: Arc::clone(self), cancel })
    }

    fn is_free(&self) -> Result<(), Refusal> {
        if self.at_work().is_some() { Err(busy()) } else { Ok(()) }
    }

    fn cancel(&self) {
        if let Some(cancel) = &*self.at_work() {
            cancel.cancel();
        }
    }

    async fn work_on(&self, prompt: &str, work: Work) -> Result<Value, Refusal> {
        let mut conversation = self.conversation.lock().await;
        let Conversation { agent, history, saved } = &mut *conversation;
        let outcome = agent.run(prompt, history, &work.cancel).await;
        saved.keep_outcome(&finished(&outcome))?;
        let stop = match work.cancel.is_cancelled() {
            true => Some("cancelled"),
            false => stop_reason(&outcome.end),
        };
        match stop {
            Some(reason) => Ok(json!({ "stopReason": reason })),
            None => Err(Refusal::new(INTERNAL, outcome.end.why())),
        }
    }

    fn at_work(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy() -> Refusal {
    Refusal::new(INVALID_REQUEST, "a prompt of this session is still worked on; cancel it, or wait")
}

/// A prompt that is worked on, for as long as this is held.
struct Work {
    talk: Arc<Talk>,
    cancel: CancellationToken,
}

impl Drop for Work {
    fn drop(&mut self) {
        *self.talk.at_work() = None;
    }
}

fn approver(settings: &Settings, screen: &Arc<Screen>) -> Box<dyn Approver> {
    by_setting(settings, || Box::new(ThroughEditor { screen: Arc::clone(screen) }))
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let code = match &failure {
            Failure::Session(SessionError::Unknown(_) | SessionError::None) => NOT_FOUND,
            _ => INTERNAL,
        };
        Self::new(code, chain(&failure))
    }
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        Failure::from(error).into()
    }
}
