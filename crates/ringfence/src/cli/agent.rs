//! `ringfence agent`: a model works on a prompt with the tools, or chats with a person at the terminal.
//!
//! The answer goes to standard output and everything else to standard error, or with `--json` an object a line to standard
//! output. Exit codes: 0 an answer, 1 a run that ended without one, 2 bad usage or config, 3 a model that cannot be had,
//! 130 a cancelled run.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use clap::Args;
use ringfence_agent::{
    AgentObserver, AgentOutcome, AgentStopReason, AnnouncingApprover, LanguageModel, ToolCallSupport, probe,
};
use ringfence_kernel::{Approver, sanitize_line, sanitize_text};
use tokio_util::sync::CancellationToken;

use crate::agent::{AgentBuilder, ModelOptions, PreparedAgent, open_model};
use crate::approval::tty::TtyApprover;
use crate::approval::{approver_for, deny_all};
use crate::cli::chat::TerminalChat;
use crate::cli::observers::{JsonLinesObserver, ProgressObserver, SharedWriter};
use crate::cli::{CliError, until_cancelled};
use crate::config::{AppSettings, Environment};
use crate::process::signals::ShutdownSignals;

pub(crate) const EXIT_ANSWERED: u8 = 0;
pub(crate) const EXIT_NO_ANSWER: u8 = 1;
pub(crate) const EXIT_NO_MODEL: u8 = 3;
pub(crate) const EXIT_CANCELLED: u8 = 130;

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

/// Output streams of a front.
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
        f.write_str("Console")
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
    let (modes, taint) = Default::default();
    let making = AgentBuilder { settings, environment, model, observer, approver, mode: modes, taint, tap: None };
    let made = making.build(resume.as_deref())?;
    made.print_dialect();
    let outcome = run_prompt(made, &prompt)?;
    if let Some(answers) = answers {
        // For a person's eyes nothing hides in it; programs get it as it is.
        let text = if at_terminal { sanitize_text(&outcome.text) } else { outcome.text.clone() };
        answers.print(&format!("{}\n", text.trim_end()));
    }
    Ok(exit_code(&outcome.stop_reason))
}

/// Prints whether the model is available, checked without a prompt.
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

/// Prints whether the model can call tools, which an agent needs.
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

/// The approver; where that is a person, the front is notified first.
pub(crate) fn approver(
    settings: &AppSettings,
    environment: &Environment,
    observer: &Arc<dyn AgentObserver>,
) -> Box<dyn Approver> {
    approver_for(settings, || {
        let terminal = TtyApprover::new(settings, environment);
        match terminal.is_available() {
            true => Box::new(AnnouncingApprover { approver: Box::new(terminal), observer: Arc::clone(observer) }),
            false => Box::new(deny_all()),
        }
    })
}

/// Works on one prompt until it is over, or a signal comes.
pub(crate) fn run_prompt(made: PreparedAgent, prompt: &str) -> Result<AgentOutcome, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let outcome = runtime.block_on(async {
        let cancel = CancellationToken::new();
        if let Ok(signals) = ShutdownSignals::install() {
            tokio::spawn(signals.cancel_on_signal(cancel.clone()));
        }
        let mut conversation = made.start(&cancel).await?;
        let outcome = conversation.run(prompt, &cancel).await;
        conversation.record(&outcome)?;
        Ok(outcome)
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    outcome
}
