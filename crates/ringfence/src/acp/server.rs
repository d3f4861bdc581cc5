//! ACP request handling: create, load and end sessions, and run prompts.
//!
//! A session works in a directory that the user declared, never in one that only the editor names. Each has a host of its
//! own, as `ringfence agent` has it, and one prompt at a time. Notifications and the beginning of a prompt take effect in
//! the order in which they came, so that a cancellation finds the prompt that it means.
//!
//! Not here: the messages of the protocol (`types.rs`), and the agent (`crate::agent`).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_agent::{Agent, AgentObserver, MessageHistory};
use ringfence_kernel::{Approver, SessionTaint};
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::acp::connection::{AcpClientConnection, AcpMessage, AcpResponder, RESOURCE_NOT_FOUND};
use crate::acp::permission::AcpApprover;
use crate::acp::types::{
    AcpListSessionsRequest, AcpLoadSessionRequest, AcpNewSessionRequest, AcpPromptRequest, AcpSessionRequest,
    AcpSetModeRequest, capabilities, modes, parse_params, prompt_text, stop_reason,
};
use crate::acp::updates::AcpSessionUpdates;
use crate::agent::events::outcome_json;
use crate::agent::{AgentBuilder, AgentError, open_model};
use crate::app::session_mode::{SessionMode, SharedSessionMode};
use crate::app::{existing_workspace, workspace_id};
use crate::approval::approver_for;
use crate::codec::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, JsonRpcError, METHOD_NOT_FOUND};
use crate::config::{AppSettings, Environment};
use crate::process::messages::{error_chain, print_error};
use crate::store::SqliteStore;
use crate::store::transcripts::{SqliteTranscriptError, SqliteTranscripts, TranscriptWriter};

/// More sessions than this no editor has open.
const MAX_SESSIONS: usize = 32;

/// Serves one client.
#[derive(Debug)]
pub(super) struct AcpServer {
    settings: AppSettings,
    environment: Environment,
    client: AcpClientConnection,
    sessions: Mutex<HashMap<String, Arc<AcpSession>>>,
}

/// A session that is open.
#[derive(Debug)]
struct AcpSession {
    root: PathBuf,
    mode: SharedSessionMode,
    /// The prompt that is worked on.
    running_prompt: Mutex<Option<CancellationToken>>,
    conversation: tokio::sync::Mutex<AcpConversation>,
}

#[derive(Debug)]
struct AcpConversation {
    agent: Agent,
    history: MessageHistory,
    transcript: TranscriptWriter,
}

/// Mode of opening an existing session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplayMode {
    /// The transcript is shown again.
    Replay,
    Silent,
}

impl AcpServer {
    pub(super) fn new(settings: AppSettings, environment: Environment, client: AcpClientConnection) -> Self {
        Self { settings, environment, client, sessions: Mutex::default() }
    }

    /// Handles a message. Long work goes on in `tasks`.
    pub(super) fn handle(self: &Arc<Self>, message: AcpMessage, tasks: &mut JoinSet<()>) {
        let (method, given, reply) = match message {
            AcpMessage::Notification { method, params: given } => {
                if method == "session/cancel"
                    && let Ok(AcpSessionRequest { session_id }) = parse_params(given)
                    && let Ok(acp_session) = self.session(&session_id)
                {
                    acp_session.cancel();
                }
                return;
            }
            AcpMessage::Request { method, params, reply } => (method, params, reply),
        };
        match method.as_str() {
            "initialize" => reply.respond(Ok(capabilities())),
            "session/prompt" => self.prompt(given, reply, tasks),
            "session/set_mode" => reply.respond(self.set_mode(given)),
            "session/close" => reply.respond(self.close_session(given)),
            "session/list" => reply.respond(self.list_sessions(given)),
            "session/new" | "session/load" | "session/resume" => {
                let server = Arc::clone(self);
                tasks.spawn(async move {
                    let opened = match method.as_str() {
                        "session/new" => server.new_session(given).await,
                        "session/load" => server.load_session(given, ReplayMode::Replay).await,
                        _ => server.load_session(given, ReplayMode::Silent).await,
                    };
                    reply.respond(opened);
                });
            }
            other => reply.respond(Err(JsonRpcError::new(METHOD_NOT_FOUND, format!("unknown method `{other}`")))),
        }
    }

    /// Cancels every prompt.
    pub(super) fn cancel_all(&self) {
        self.sessions().values().for_each(|acp_session| acp_session.cancel());
    }

    async fn new_session(&self, given: Value) -> Result<Value, JsonRpcError> {
        let new: AcpNewSessionRequest = parse_params(given)?;
        let (id, modes_now) = self.open_session(&new, None).await?;
        Ok(json!({"sessionId": id, "modes": modes_now}))
    }

    async fn load_session(&self, given: Value, again: ReplayMode) -> Result<Value, JsonRpcError> {
        let AcpLoadSessionRequest { session_id, new } = parse_params(given)?;
        if let Ok(acp_session) = self.session(&session_id) {
            acp_session.check_idle()?;
            // It is opened again, from the stored transcript.
            self.sessions().remove(&session_id);
        }
        let (_, modes_now) = self.open_session(&new, Some((session_id, again))).await?;
        Ok(json!({"modes": modes_now}))
    }

    /// Opens a session: a new one, or one that is kept.
    async fn open_session(
        &self,
        new: &AcpNewSessionRequest,
        known: Option<(String, ReplayMode)>,
    ) -> Result<(String, Value), JsonRpcError> {
        if self.sessions().len() >= MAX_SESSIONS {
            return Err(JsonRpcError::new(INVALID_REQUEST, "too many open sessions; close some"));
        }
        if !new.mcp_servers.is_empty() {
            print_error(
                "the editor's MCP servers are ignored: configure servers under `[mcp_servers]` in your own config",
            );
        }
        let (root, settings) = self.settings_for(&new.cwd)?;
        let screen = Arc::new(AcpSessionUpdates::new(self.client.clone(), root.clone()));
        let session_modes = SharedSessionMode::default();
        let (observer, environment) = (Arc::clone(&screen), self.environment.clone());
        let (id, again) = known.unzip();
        let its_modes = session_modes.clone();
        let made = spawn_blocking(move || {
            let making = AgentBuilder {
                model: open_model(&settings.model, &environment)?,
                approver: approver(&settings, &observer),
                settings,
                environment: &environment,
                observer: observer as Arc<dyn AgentObserver>,
                mode: its_modes,
                taint: SessionTaint::default(),
                tap: None,
            };
            making.build(id.as_deref())
        });
        let mut made =
            made.await.map_err(|_| JsonRpcError::new(INTERNAL_ERROR, "the session could not be created"))??;
        let id = made.app.session.id.clone();
        screen.set_session(&id);
        let messages = match (&mut made.resumed, again) {
            (Some(resumed), Some(ReplayMode::Replay)) => resumed.messages.clone(),
            _ => Vec::new(),
        };
        let (agent, history, saved) = made.start(&CancellationToken::new()).await?;
        screen.replay(&messages);
        let conversation = tokio::sync::Mutex::new(AcpConversation { agent, history, transcript: saved });
        let acp_session = AcpSession { root, mode: session_modes, running_prompt: Mutex::default(), conversation };
        self.sessions().insert(id.clone(), Arc::new(acp_session));
        Ok((id, modes(SessionMode::default())))
    }

    fn prompt(&self, given: Value, reply: AcpResponder, tasks: &mut JoinSet<()>) {
        let begun = parse_params(given).and_then(|AcpPromptRequest { session_id, prompt }| {
            let acp_session = self.session(&session_id)?;
            let text = prompt_text(&prompt, &acp_session.root)?;
            let cancel = acp_session.start_prompt()?;
            Ok((acp_session, text, cancel))
        });
        match begun {
            Ok((acp_session, text, cancel)) => {
                tasks.spawn(async move { reply.respond(acp_session.run_prompt(&text, cancel).await) });
            }
            Err(refusal) => reply.respond(Err(refusal)),
        }
    }

    fn set_mode(&self, given: Value) -> Result<Value, JsonRpcError> {
        let AcpSetModeRequest { session_id, mode_id } = parse_params(given)?;
        let acp_session = self.session(&session_id)?;
        let mode = SessionMode::from_name(&mode_id).ok_or_else(|| {
            let names = SessionMode::ALL.map(SessionMode::name).join(", ");
            JsonRpcError::new(INVALID_PARAMS, format!("unknown mode; available modes: {names}"))
        })?;
        acp_session.mode.set(mode);
        Ok(json!({}))
    }

    fn close_session(&self, given: Value) -> Result<Value, JsonRpcError> {
        let AcpSessionRequest { session_id } = parse_params(given)?;
        self.session(&session_id)?.cancel();
        self.sessions().remove(&session_id);
        Ok(json!({}))
    }

    /// The sessions of one workspace, or of all.
    fn list_sessions(&self, given: Value) -> Result<Value, JsonRpcError> {
        let wanted: AcpListSessionsRequest =
            if given.is_null() { AcpListSessionsRequest::default() } else { parse_params(given)? };
        // One may be declared twice.
        let workspaces: BTreeMap<PathBuf, AppSettings> = match wanted.cwd {
            Some(cwd) => BTreeMap::from([self.settings_for(&cwd)?]),
            None => self.declared_workspaces().collect(),
        };
        let mut listed = Vec::new();
        for (root, settings) in workspaces {
            let directory = workspace_id(&settings, &self.environment).map_err(AgentError::from)?;
            for head in SqliteTranscripts::new(Arc::new(SqliteStore::new(&settings.state))).list(&directory)? {
                let updated = humantime::format_rfc3339_millis(head.updated).to_string();
                listed.push(json!({"sessionId": head.id, "cwd": root, "title": head.title, "updatedAt": updated}));
            }
        }
        Ok(json!({ "sessions": listed }))
    }

    /// The workspace that an editor has open, and its settings.
    fn settings_for(&self, cwd: &str) -> Result<(PathBuf, AppSettings), JsonRpcError> {
        let directory = std::fs::canonicalize(cwd).ok().filter(|_| cwd.starts_with('/'));
        let found = directory.and_then(|directory| self.declared_workspaces().find(|(root, _)| *root == directory));
        found.ok_or_else(|| {
            let message = "the session's directory is not a declared workspace: declare it in your config file \
                           (`~/.config/ringfence/config.toml`) under `[workspaces]`, such as `name = \"~/project\"`, or \
                           start `ringfence acp --workspace DIR`";
            JsonRpcError::new(INVALID_PARAMS, message)
        })
    }

    /// The workspace of the command line or the config, and those that are declared beside it, as far as they are there.
    fn declared_workspaces(&self) -> impl Iterator<Item = (PathBuf, AppSettings)> {
        let others = self.settings.workspaces.values().map(|path| Some(path.clone()));
        let all = std::iter::once(self.settings.workspace.clone()).chain(others);
        all.filter_map(|workspace| {
            let settings = AppSettings { workspace, ..self.settings.clone() };
            let root = existing_workspace(&settings, &self.environment)?;
            Some((root, settings))
        })
    }

    fn session(&self, id: &str) -> Result<Arc<AcpSession>, JsonRpcError> {
        let found = self.sessions().get(id).cloned();
        found.ok_or_else(|| {
            JsonRpcError::new(RESOURCE_NOT_FOUND, "no open session with that id; use `session/load` to open it")
        })
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<AcpSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AcpSession {
    /// From now on a prompt is worked on.
    fn start_prompt(self: &Arc<Self>) -> Result<AcpPromptGuard, JsonRpcError> {
        let mut at_work = self.running_prompt();
        if at_work.is_some() {
            return Err(busy_error());
        }
        let cancel = CancellationToken::new();
        *at_work = Some(cancel.clone());
        Ok(AcpPromptGuard { session: Arc::clone(self), cancel })
    }

    fn check_idle(&self) -> Result<(), JsonRpcError> {
        if self.running_prompt().is_some() { Err(busy_error()) } else { Ok(()) }
    }

    fn cancel(&self) {
        if let Some(cancel) = &*self.running_prompt() {
            cancel.cancel();
        }
    }

    async fn run_prompt(&self, prompt: &str, work: AcpPromptGuard) -> Result<Value, JsonRpcError> {
        let mut conversation = self.conversation.lock().await;
        let AcpConversation { agent, history, transcript: saved } = &mut *conversation;
        let outcome = agent.run(prompt, history, &work.cancel).await;
        saved.record_outcome(&outcome_json(&outcome))?;
        let stop = match work.cancel.is_cancelled() {
            true => Some("cancelled"),
            false => stop_reason(&outcome.stop_reason),
        };
        match stop {
            Some(reason) => Ok(json!({ "stopReason": reason })),
            None => Err(JsonRpcError::new(INTERNAL_ERROR, outcome.stop_reason.explain())),
        }
    }

    fn running_prompt(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.running_prompt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy_error() -> JsonRpcError {
    JsonRpcError::new(INVALID_REQUEST, "a prompt is still running in this session; cancel it or wait")
}

/// A prompt that is worked on, for as long as this is held.
struct AcpPromptGuard {
    session: Arc<AcpSession>,
    cancel: CancellationToken,
}

impl Drop for AcpPromptGuard {
    fn drop(&mut self) {
        *self.session.running_prompt() = None;
    }
}

fn approver(settings: &AppSettings, screen: &Arc<AcpSessionUpdates>) -> Box<dyn Approver> {
    approver_for(settings, || Box::new(AcpApprover { updates: Arc::clone(screen) }))
}

impl From<AgentError> for JsonRpcError {
    fn from(failure: AgentError) -> Self {
        let code = match &failure {
            AgentError::Session(SqliteTranscriptError::Unknown(_) | SqliteTranscriptError::None) => RESOURCE_NOT_FOUND,
            _ => INTERNAL_ERROR,
        };
        Self::new(code, error_chain(&failure))
    }
}

impl From<SqliteTranscriptError> for JsonRpcError {
    fn from(error: SqliteTranscriptError) -> Self {
        AgentError::from(error).into()
    }
}
