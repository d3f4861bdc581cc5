//! The agent on a workspace: model, host, transcript and system prompt put together.
//!
//! Not here: the loop (`ringfence-agent`), where a session is kept (`store/transcripts.rs`), and the commands (`cli/agent.rs`).

pub(crate) mod cards;
pub(crate) mod events;
pub(crate) mod model;
mod system_prompt;
pub mod tool_prompt;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ringfence_agent::{
    Agent, AgentLimits, AgentObserver, AgentOutcome, LanguageModel, LedgerSink, MessageHistory, ToolLoading,
};
use ringfence_kernel::{Approver, AuditSink, Dialect, HostError, SessionTaint};
use tokio_util::sync::CancellationToken;

pub use self::model::OpenModelError;
pub(crate) use self::model::open_model;
use self::system_prompt::system_prompt;
use crate::agent::events::outcome_json;
use crate::app::audit_sinks::FanoutSink;
use crate::app::session_mode::SharedSessionMode;
use crate::app::{AgentSessionOptions, App, AppError, build_agent_app};
use crate::config::agents::ProviderChoice;
use crate::config::{AppSettings, Environment};
use crate::process::messages::print_error;
use crate::store::SqliteStore;
use crate::store::transcripts::{
    ResumedTranscript, SqliteTranscriptError, SqliteTranscripts, TranscriptHeader, TranscriptWriter,
};

/// Failure to build or start an agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Model(#[from] OpenModelError),
    #[error(transparent)]
    Session(#[from] SqliteTranscriptError),
    #[error("cannot start the async runtime: {0}")]
    Runtime(io::Error),
}

/// The model, where it is not the one of the config.
#[derive(Debug, Args)]
pub(crate) struct ModelOptions {
    /// Use another model of the same provider
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Replay answers from a file instead of using a model
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

impl ModelOptions {
    pub(crate) fn apply_to(self, settings: &mut AppSettings) {
        settings.model.model = self.model.or(settings.model.model.take());
        if let Some(script) = self.script {
            settings.model.script = Some(script);
            settings.model.provider = Some(ProviderChoice::Script);
        }
    }
}

/// Builder of an agent.
pub(crate) struct AgentBuilder<'a> {
    pub(crate) settings: AppSettings,
    pub(crate) environment: &'a Environment,
    pub(crate) model: Arc<dyn LanguageModel>,
    pub(crate) observer: Arc<dyn AgentObserver>,
    pub(crate) approver: Box<dyn Approver>,
    pub(crate) mode: SharedSessionMode,
    /// The taint of its session, where it is shared with others.
    pub(crate) taint: SessionTaint,
    /// A further audit sink.
    pub(crate) tap: Option<Box<dyn AuditSink>>,
}

/// An agent on a workspace, and the session that it goes on with.
pub(crate) struct PreparedAgent {
    pub(crate) app: App,
    model: Arc<dyn LanguageModel>,
    observer: Arc<dyn AgentObserver>,
    tap: LedgerSink,
    transcript: TranscriptWriter,
    pub(crate) resumed: Option<ResumedTranscript>,
}

impl AgentBuilder<'_> {
    /// Puts everything together. `resume` is the id of a session, or empty for the last one.
    pub(crate) fn build(self, resume: Option<&str>) -> Result<PreparedAgent, AgentError> {
        let Self { mut settings, environment, model, observer, approver, mode: modes, taint, tap: also } = self;
        let sessions = SqliteTranscripts::new(Arc::new(SqliteStore::new(&settings.state)));
        settings.choose_dialect_for_model();
        let directory = crate::app::workspace_id(&settings, environment)?;
        let resumed = resume.map(|id| sessions.resume(&directory, Some(id).filter(|id| !id.is_empty()))).transpose()?;
        if let Some(ResumedTranscript { head, .. }) = &resumed {
            // It goes on in the dialect of its calls, unless the settings name another.
            let chosen = Dialect::from_name(&head.dialect);
            settings.choose_dialect_for_client(chosen.filter(|it| it.is_model_family() || *it == Dialect::Standard));
            if head.dialect != settings.dialect.name() {
                return Err(SqliteTranscriptError::Dialect(head.id.clone(), head.dialect.clone()).into());
            }
        }
        let tap = LedgerSink::default();
        let options = AgentSessionOptions {
            resumed: resumed.as_ref().map(|resumed| (resumed.head.id.clone(), resumed.taint)),
            tap: Some(Box::new(FanoutSink(
                std::iter::once::<Box<dyn AuditSink>>(Box::new(tap.clone())).chain(also).collect(),
            ))),
            taint,
            mode: modes,
        };
        let app = build_agent_app(settings, environment, approver, options)?;
        app.print_warnings();
        let head = TranscriptHeader::new(&app.session, &app.workspace_id, model.name());
        let saved = sessions.open(&head, app.session.taint.clone())?;
        Ok(PreparedAgent { app, model, observer, tap, transcript: saved, resumed })
    }
}

impl PreparedAgent {
    /// Prints the dialect, where it was chosen by the model's name.
    pub(crate) fn print_dialect(&self) {
        if let Some(note) = self.app.settings.dialect_note() {
            print_error(&note);
        }
    }

    /// The agent with the history that it goes on with.
    pub(crate) async fn start(self, cancel: &CancellationToken) -> Result<AgentConversation, AgentError> {
        let Self { app, model, observer, tap, transcript: saved, resumed } = self;
        let system = system_prompt(&app.host, &app.session, &app.settings, cancel).await?;
        let memory = Box::new(saved.clone());
        let history = match resumed {
            None => MessageHistory::new(memory),
            Some(resumed) => MessageHistory::resume(resumed.messages, app.session.dialect, memory)
                .map_err(SqliteTranscriptError::Transcript)?,
        };
        let settings = &app.settings;
        let agent = Agent {
            model,
            host: app.host,
            session: app.session,
            system,
            temperature: settings.model.temperature,
            max_tokens: settings.model.max_tokens,
            repair: settings.model.repair_tool_calls,
            tool_loading: tool_loading(settings),
            limits: bounds(settings),
            tap,
            observer,
        };
        Ok(AgentConversation { agent, history, transcript: saved })
    }
}

/// An agent in a session, with its history and stored transcript.
#[derive(Debug)]
pub(crate) struct AgentConversation {
    pub(crate) agent: Agent,
    pub(crate) history: MessageHistory,
    transcript: TranscriptWriter,
}

impl AgentConversation {
    /// Works on a prompt.
    pub(crate) async fn run(&mut self, prompt: &str, cancel: &CancellationToken) -> AgentOutcome {
        self.agent.run(prompt, &mut self.history, cancel).await
    }

    /// Stores how a prompt ended.
    pub(crate) fn record(&self, outcome: &AgentOutcome) -> Result<(), SqliteTranscriptError> {
        self.transcript.record_outcome(&outcome_json(outcome))
    }
}

/// A script calls what it knows; a model chooses better among few.
pub(crate) fn tool_loading(settings: &AppSettings) -> ToolLoading {
    let is_script = settings.model.provider == Some(ProviderChoice::Script)
        || settings.model.provider.is_none() && settings.model.script.is_some();
    if is_script { ToolLoading::All } else { ToolLoading::CoreFirst }
}

fn bounds(settings: &AppSettings) -> AgentLimits {
    AgentLimits {
        steps: settings.max_tool_iterations,
        tokens: settings.model.max_prompt_tokens,
        time: settings.model.max_prompt_duration,
        context_tokens: settings.model.context_tokens,
        ..AgentLimits::default()
    }
}
