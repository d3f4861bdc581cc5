//! `ringfence agent`: run the agent loop on one prompt, or as an interactive chat.
//!
//! The answer goes to standard output and everything else to standard error, or with `--json` an object a line to standard
//! output. Exit codes: 0 an answer, 1 a run that ended without one, 2 bad usage or config, 3 a model that cannot be had,
//! 130 a cancelled run.
//!
//! Not here: the loop (`ringfence-agent`), and where a session is kept (`sessions.rs`).

pub(crate) mod cards;
mod chat;
mod demo;
mod line_editor;
mod markdown;
mod model;
mod observers;
mod system_prompt;

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ringfence_agent::{
    Agent, AgentLimits, AgentObserver, AgentOutcome, AgentStopReason, AnnouncingApprover, LanguageModel, LedgerSink,
    MessageHistory, ToolCallSupport, probe,
};
use ringfence_kernel::{Approver, AuditSink, SessionTaint, sanitize_line, sanitize_text};
use tokio_util::sync::CancellationToken;

use self::chat::TerminalChat;
pub(crate) use self::demo::{DemoError, DemoOptions, run_demo};
pub use self::model::OpenModelError;
pub(crate) use self::model::open_model;
use self::observers::{JsonLinesObserver, ProgressObserver, SharedWriter};
pub(crate) use self::observers::{event_json, outcome_json};
use self::system_prompt::system_prompt;
use crate::agents_config::ProviderChoice;
use crate::app::{AgentSessionOptions, App, build_agent_app};
use crate::approval::{approver_for, deny_all};
use crate::audit_sinks::FanoutSink;
use crate::cli::{CliError, print_warnings, until_cancelled};
use crate::config::{AppSettings, Environment};
use crate::session_mode::SharedMode;
use crate::signals::ShutdownSignals;
pub use crate::transcripts::SqliteTranscriptError;
use crate::transcripts::{ResumedTranscript, SqliteTranscripts, TranscriptHeader, TranscriptWriter};
use crate::tty::TtyApprover;

const EXIT_ANSWERED: u8 = 0;
const EXIT_NO_ANSWER: u8 = 1;
const EXIT_NO_MODEL: u8 = 3;
const EXIT_CANCELLED: u8 = 130;

#[derive(Debug, Args)]
pub(crate) struct AgentOptions {
    /// The task; without it, an interactive chat starts
    prompt: Option<String>,
    /// The task, as a flag
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", conflicts_with = "prompt")]
    prompt_flag: Option<String>,
    /// Print events as JSON Lines
    #[arg(long)]
    json: bool,
    /// Resume a session of this workspace, by default the last one; pass the prompt with `-p`
    #[arg(long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    /// Only check whether the model can be reached
    #[arg(long, conflicts_with_all = ["prompt", "prompt_flag", "resume"])]
    health: bool,
    /// Only check whether the model can call tools, with a tool that does nothing
    #[arg(long, conflicts_with_all = ["prompt", "prompt_flag", "resume", "health"])]
    probe: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Which model, where it is not the one of the config.
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

/// Where a front prints.
pub(crate) struct Console {
    pub(crate) out: Box<dyn Write + Send>,
    pub(crate) err: Box<dyn Write + Send>,
    /// Standard output is a person's eyes.
    pub(crate) stdout_is_terminal: bool,
    /// And standard input is their keyboard.
    pub(crate) is_interactive: bool,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Voice")
    }
}

/// Runs the agent as the options want it.
pub(crate) fn run_agent(
    mut settings: AppSettings,
    environment: &Environment,
    options: AgentOptions,
    voice: Console,
) -> Result<u8, CliError> {
    let AgentOptions { prompt, prompt_flag, json, resume, health, probe, model } = options;
    model.apply_to(&mut settings);
    let model = open_model(&settings.model, environment)?;
    let Console { out, err, stdout_is_terminal: at_terminal, is_interactive: can_talk } = voice;
    let (out, err) = (SharedWriter::new(out), SharedWriter::new(err));
    if health {
        return print_health(model.as_ref(), &out, &err);
    }
    if probe {
        return print_probe(model.as_ref(), &out, &err);
    }
    let Some(prompt) = prompt.or(prompt_flag) else {
        return match can_talk && !json {
            true => TerminalChat { settings, environment, out }.run(resume.as_deref()),
            false => Err(CliError::NoPrompt),
        };
    };
    let (observer, answers): (Arc<dyn AgentObserver>, Option<SharedWriter>) = match json {
        true => (Arc::new(JsonLinesObserver(out)), None),
        false => {
            let terminal = Some(TtyApprover::new(&settings, environment)).filter(TtyApprover::is_available);
            (Arc::new(ProgressObserver { out: Arc::new(err), terminal }), Some(out))
        }
    };
    let approver = approver(&settings, environment, &observer);
    let (modes, bits) = Default::default();
    let making = AgentBuilder { settings, environment, model, observer, approver, mode: modes, taint: bits, tap: None };
    let made = making.build(resume.as_deref())?;
    let outcome = run_prompt(made, &prompt)?;
    if let Some(answers) = answers {
        // For a person's eyes nothing hides in it; programs get it as it is.
        let text = if at_terminal { sanitize_text(&outcome.text) } else { outcome.text.clone() };
        answers.print(&format!("{}\n", text.trim_end()));
    }
    Ok(exit_code(&outcome.stop_reason))
}

/// Whether the model can be had, told without a prompt.
fn print_health(model: &dyn LanguageModel, out: &SharedWriter, err: &SharedWriter) -> Result<u8, CliError> {
    Ok(match until_cancelled(model.health())? {
        Some(Ok(())) => {
            out.print(&format!("ok: {}\n", sanitize_line(model.name())));
            EXIT_ANSWERED
        }
        Some(Err(error)) => {
            err.print(&format!("ringfence: {}\n", sanitize_text(&error.message)));
            EXIT_NO_MODEL
        }
        None => EXIT_CANCELLED,
    })
}

/// Whether the model can call tools, without which it cannot be an agent.
fn print_probe(model: &dyn LanguageModel, out: &SharedWriter, err: &SharedWriter) -> Result<u8, CliError> {
    let name = sanitize_line(model.name());
    Ok(match until_cancelled(probe(model))? {
        Some(Ok(ability @ ToolCallSupport::Supported)) => {
            out.print(&format!("ok: {name}: {}\n", ability.explain()));
            EXIT_ANSWERED
        }
        Some(Ok(ability)) => {
            err.print(&format!("ringfence: {name}: {}\n", ability.explain()));
            EXIT_NO_ANSWER
        }
        Some(Err(error)) => {
            err.print(&format!("ringfence: {}\n", sanitize_text(&error.message)));
            EXIT_NO_MODEL
        }
        None => EXIT_CANCELLED,
    })
}

fn exit_code(end: &AgentStopReason) -> u8 {
    match end {
        AgentStopReason::Answered => EXIT_ANSWERED,
        AgentStopReason::Cancelled => EXIT_CANCELLED,
        AgentStopReason::Model(_) => EXIT_NO_MODEL,
        _ => EXIT_NO_ANSWER,
    }
}

/// What an agent is made from.
pub(crate) struct AgentBuilder<'a> {
    pub(crate) settings: AppSettings,
    pub(crate) environment: &'a Environment,
    pub(crate) model: Arc<dyn LanguageModel>,
    pub(crate) observer: Arc<dyn AgentObserver>,
    pub(crate) approver: Box<dyn Approver>,
    pub(crate) mode: SharedMode,
    /// The bits of its session, where others have the same.
    pub(crate) taint: SessionTaint,
    /// Who else hears every record.
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
    pub(crate) fn build(self, resume: Option<&str>) -> Result<PreparedAgent, CliError> {
        let Self { settings, environment, model, observer, approver, mode: modes, taint: bits, tap: also } = self;
        let sessions = SqliteTranscripts::new(&settings.state);
        let directory = crate::app::workspace_id(&settings, environment)?;
        let resumed = resume.map(|id| sessions.resume(&directory, Some(id).filter(|id| !id.is_empty()))).transpose()?;
        if let Some(ResumedTranscript { head, .. }) = &resumed
            && head.dialect != settings.dialect.name()
        {
            return Err(SqliteTranscriptError::Dialect(head.id.clone(), head.dialect.clone()).into());
        }
        let tap = LedgerSink::default();
        let seat = AgentSessionOptions {
            resumed: resumed.as_ref().map(|resumed| (resumed.head.id.clone(), resumed.taint)),
            tap: Some(Box::new(FanoutSink(
                std::iter::once::<Box<dyn AuditSink>>(Box::new(tap.clone())).chain(also).collect(),
            ))),
            taint: bits,
            mode: modes,
        };
        let app = build_agent_app(settings, environment, approver, seat)?;
        print_warnings(&app);
        let head = TranscriptHeader::new(&app, model.name());
        let saved = sessions.open(&head, app.session.taint.clone())?;
        Ok(PreparedAgent { app, model, observer, tap, transcript: saved, resumed })
    }
}

impl PreparedAgent {
    /// The agent, and the history that it goes on with.
    pub(crate) async fn start(
        self,
        cancel: &CancellationToken,
    ) -> Result<(Agent, MessageHistory, TranscriptWriter), CliError> {
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
            limits: bounds(settings),
            tap,
            observer,
        };
        Ok((agent, history, saved))
    }
}

/// Who is asked; where that is a person, the front hears of it first.
fn approver(settings: &AppSettings, environment: &Environment, observer: &Arc<dyn AgentObserver>) -> Box<dyn Approver> {
    approver_for(settings, || {
        let terminal = TtyApprover::new(settings, environment);
        match terminal.is_available() {
            true => Box::new(AnnouncingApprover { approver: Box::new(terminal), observer: Arc::clone(observer) }),
            false => Box::new(deny_all()),
        }
    })
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

/// Works on one prompt until it is over, or a signal comes.
fn run_prompt(made: PreparedAgent, prompt: &str) -> Result<AgentOutcome, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let outcome = runtime.block_on(async {
        let cancel = CancellationToken::new();
        if let Ok(signals) = ShutdownSignals::install() {
            tokio::spawn(signals.cancel_on_signal(cancel.clone()));
        }
        let (agent, mut history, saved) = made.start(&cancel).await?;
        let outcome = agent.run(prompt, &mut history, &cancel).await;
        saved.record_outcome(&outcome_json(&outcome))?;
        Ok(outcome)
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    outcome
}
