//! ACP request handling: create, load and end sessions, and run prompts.
//!
//! A session works in a directory that the user declared, never in one that only the editor names. Each has a host of its
//! own, as `ringfence agent` has it, and one prompt at a time. Notifications and the beginning of a prompt take effect in
//! the order in which they came, so that a cancellation finds the prompt that it means.
//!
//! Not here: the messages of the protocol (`types.rs`), and the agent (`crate::agent`).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

use ringfence_agent::AgentObserver;
use ringfence_kernel::sync::Mutex;
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
use crate::agent::{AgentBuilder, AgentConversation, AgentError, open_model};
use crate::app::session::live::{InFlightWork, LiveSession};
use crate::app::session_mode::{SessionMode, SharedSessionMode};
use crate::app::{existing_workspace, workspace_id};
use crate::approval::approver_for;
use crate::codec::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, JsonRpcError, METHOD_NOT_FOUND};
use crate::config::{AppSettings, Environment};
use crate::process::messages::{error_chain, print_error};
use crate::store::SqliteStore;
use crate::store::transcripts::{SqliteTranscriptError, SqliteTranscripts};

/// More sessions than this no editor has open.
const MAX_SESSIONS: usize = 32;

/// ID of the one prompt that a session works on at a time.
const PROMPT: &str = "prompt";

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
    live: Arc<LiveSession>,
    conversation: tokio::sync::Mutex<AgentConversation>,
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
                    acp_session.live.cancel_all();
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
        self.sessions().values().for_each(|acp_session| acp_session.live.cancel_all());
    }

    async fn new_session(&self, given: Value) -> Result<Value, JsonRpcError> {
        let new: AcpNewSessionRequest = parse_params(given)?;
        let (id, modes_now) = self.open_session(&new, None).await?;
        Ok(json!({"sessionId": id, "modes": modes_now}))
    }

    async fn load_session(&self, given: Value, again: ReplayMode) -> Result<Value, JsonRpcError> {
        let AcpLoadSessionRequest { session_id, new } = parse_params(given)?;
        if let Ok(acp_session) = self.session(&session_id) {
            if !acp_session.live.is_idle() {
                return Err(busy_error());
            }
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
        made.print_dialect();
        let id = made.app.session.id.clone();
        screen.set_session(&id);
        let messages = match (&mut made.resumed, again) {
            (Some(resumed), Some(ReplayMode::Replay)) => resumed.messages.clone(),
            _ => Vec::new(),
        };
        let conversation = made.start(&CancellationToken::new()).await?;
        screen.replay(&messages);
        let live = LiveSession::new(Arc::clone(&conversation.agent.session), conversation.agent.host.clone());
        let conversation = tokio::sync::Mutex::new(conversation);
        let acp_session = AcpSession { root, mode: session_modes, live, conversation };
        self.sessions().insert(id.clone(), Arc::new(acp_session));
        Ok((id, modes(SessionMode::default())))
    }

    fn prompt(&self, given: Value, reply: AcpResponder, tasks: &mut JoinSet<()>) {
        let begun = parse_params(given).and_then(|AcpPromptRequest { session_id, prompt }| {
            let acp_session = self.session(&session_id)?;
            let text = prompt_text(&prompt, &acp_session.root)?;
            let work = acp_session.live.begin(PROMPT).ok_or_else(busy_error)?;
            Ok((acp_session, text, work))
        });
        match begun {
            Ok((acp_session, text, work)) => {
                tasks.spawn(async move { reply.respond(acp_session.run_prompt(&text, work).await) });
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
        self.session(&session_id)?.live.cancel_all();
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
        self.sessions.lock()
    }
}

impl AcpSession {
    async fn run_prompt(&self, prompt: &str, work: InFlightWork) -> Result<Value, JsonRpcError> {
        let mut conversation = self.conversation.lock().await;
        let outcome = conversation.run(prompt, &work.cancel).await;
        conversation.record(&outcome)?;
        let stop = match work.cancel.is_cancelled() {
            true => Some("cancelled"),
            false => stop_reason(&outcome.stop_reason),
        };
        match stop {
            Some(reason) => Ok(json!({ "stopReason": reason })),
            None => Err(JsonRpcError::new(INTERNAL_ERROR, outcome.stop_reason.explain())),
        }
    }
}

fn busy_error() -> JsonRpcError {
    JsonRpcError::new(INVALID_REQUEST, "a prompt is still running in this session; cancel it or wait")
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
