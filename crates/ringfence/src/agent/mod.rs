//! `ringfence agent`: a model works on a prompt with the tools, or talks with a person at the terminal.
//!
//! The answer goes to standard output and everything else to standard error, or with `--json` an object a line to standard
//! output. Exit codes: 0 an answer, 1 a run that ended without one, 2 bad usage or config, 3 a model that cannot be had,
//! 130 a cancelled run.
//!
//! Not here: the loop (`ringfence-agent`), and where a session is kept (`sessions.rs`).

pub(crate) mod cards;
mod chat;
mod demo;
mod fronts;
mod instructions;
mod line_reader;
mod markdown;
mod open_model;

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ringfence_agent::{Ability, Agent, Announced, Bounds, End, Front, History, Model, Outcome, Tap, probe};
use ringfence_kernel::{Approver, AuditSink, Bits, visible, visible_line};
use tokio_util::sync::CancellationToken;

use self::chat::Chat;
pub(crate) use self::demo::{DemoError, DemoOptions, demo};
use self::fronts::{Lines, Progress, Writer};
pub(crate) use self::fronts::{finished, line};
use self::instructions::system_prompt;
pub use self::open_model::NoModel;
pub(crate) use self::open_model::open_model;
use crate::agents_config::Provider;
use crate::approve::{by_setting, nobody};
use crate::cli::{Failure, until_cancelled, warn_of};
use crate::config::{Environment, Settings};
use crate::log::All;
use crate::mode::Modes;
pub use crate::sessions::SessionError;
use crate::sessions::{Head, Resumed, Saved, Sessions};
use crate::signals::Signals;
use crate::terminal::Terminal;
use crate::wire::{Seat, Wired, wire_own};

const ANSWERED: u8 = 0;
const NO_ANSWER: u8 = 1;
const NO_MODEL: u8 = 3;
const CANCELLED: u8 = 130;

#[derive(Debug, Args)]
pub(crate) struct AgentOptions {
    /// What to do. Without it you talk with the agent here.
    prompt: Option<String>,
    /// The same as a flag.
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", conflicts_with = "prompt")]
    prompt_flag: Option<String>,
    /// Print what happens as a JSON object a line.
    #[arg(long)]
    json: bool,
    /// Go on with a session of this workspace: the last one, or the one that is named. The prompt is then given with `-p`.
    #[arg(long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    /// Only say whether the model can be reached.
    #[arg(long, conflicts_with_all = ["prompt", "prompt_flag", "resume"])]
    health: bool,
    /// Ask the model to call a tool, which does nothing, and say whether it can.
    #[arg(long, conflicts_with_all = ["prompt", "prompt_flag", "resume", "health"])]
    probe: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Which model, where it is not the one of the config.
#[derive(Debug, Args)]
pub(crate) struct ModelOptions {
    /// Another model of the same provider.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Play the answers of a file instead of asking a model.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

impl ModelOptions {
    pub(crate) fn choose(self, settings: &mut Settings) {
        settings.model.model = self.model.or(settings.model.model.take());
        if let Some(script) = self.script {
            settings.model.script = Some(script);
            settings.model.provider = Some(Provider::Script);
        }
    }
}

/// Where a front prints.
pub(crate) struct Voice {
    pub(crate) out: Box<dyn Write + Send>,
    pub(crate) err: Box<dyn Write + Send>,
    /// Standard output is a person's eyes.
    pub(crate) at_terminal: bool,
    /// And standard input is their keyboard.
    pub(crate) can_talk: bool,
}

impl fmt::Debug for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Voice")
    }
}

/// Runs the agent as the options want it.
pub(crate) fn agent(
    mut settings: Settings,
    environment: &Environment,
    options: AgentOptions,
    voice: Voice,
) -> Result<u8, Failure> {
    let AgentOptions { prompt, prompt_flag, json, resume, health, probe, model } = options;
    model.choose(&mut settings);
    let model = open_model(&settings.model, environment)?;
    let Voice { out, err, at_terminal, can_talk } = voice;
    let (out, err) = (Writer::new(out), Writer::new(err));
    if health {
        return tell_health(model.as_ref(), &out, &err);
    }
    if probe {
        return tell_ability(model.as_ref(), &out, &err);
    }
    let Some(prompt) = prompt.or(prompt_flag) else {
        return match can_talk && !json {
            true => Chat { settings, environment, out }.run(resume.as_deref()),
            false => Err(Failure::NoPrompt),
        };
    };
    let (front, answers): (Arc<dyn Front>, Option<Writer>) = match json {
        true => (Arc::new(Lines(out)), None),
        false => {
            let terminal = Some(Terminal::new(&settings, environment)).filter(Terminal::is_there);
            (Arc::new(Progress { out: Arc::new(err), terminal }), Some(out))
        }
    };
    let approver = approver(&settings, environment, &front);
    let (modes, bits) = Default::default();
    let making = Making { settings, environment, model, front, approver, modes, bits, also: None };
    let made = making.make(resume.as_deref())?;
    let outcome = one_prompt(made, &prompt)?;
    if let Some(answers) = answers {
        // For a person's eyes nothing hides in it; programs get it as it is.
        let text = if at_terminal { visible(&outcome.text) } else { outcome.text.clone() };
        answers.put(&format!("{}\n", text.trim_end()));
    }
    Ok(exit_code(&outcome.end))
}

/// Whether the model can be had, told without a prompt.
fn tell_health(model: &dyn Model, out: &Writer, err: &Writer) -> Result<u8, Failure> {
    Ok(match until_cancelled(model.health())? {
        Some(Ok(())) => {
            out.put(&format!("ok: {}\n", visible_line(model.name())));
            ANSWERED
        }
        Some(Err(error)) => {
            err.put(&format!("ringfence: {}\n", visible(&error.message)));
            NO_MODEL
        }
        None => CANCELLED,
    })
}

/// Whether the model can call tools, without which it cannot be an agent.
fn tell_ability(model: &dyn Model, out: &Writer, err: &Writer) -> Result<u8, Failure> {
    let name = visible_line(model.name());
    Ok(match until_cancelled(probe(model))? {
        Some(Ok(ability @ Ability::Calls)) => {
            out.put(&format!("ok: {name}: {}\n", ability.explain()));
            ANSWERED
        }
        Some(Ok(ability)) => {
            err.put(&format!("ringfence: {name}: {}\n", ability.explain()));
            NO_ANSWER
        }
        Some(Err(error)) => {
            err.put(&format!("ringfence: {}\n", visible(&error.message)));
            NO_MODEL
        }
        None => CANCELLED,
    })
}

fn exit_code(end: &End) -> u8 {
    match end {
        End::Answered => ANSWERED,
        End::Cancelled => CANCELLED,
        End::Model(_) => NO_MODEL,
        _ => NO_ANSWER,
    }
}

/// What an agent is made from.
pub(crate) struct Making<'a> {
    pub(crate) settings: Settings,
    pub(crate) environment: &'a Environment,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) front: Arc<dyn Front>,
    pub(crate) approver: Box<dyn Approver>,
    pub(crate) modes: Modes,
    /// The bits of its session, where others have the same.
    pub(crate) bits: Bits,
    /// Who else hears every record.
    pub(crate) also: Option<Box<dyn AuditSink>>,
}

/// An agent on a workspace, and the session that it goes on with.
pub(crate) struct Made {
    pub(crate) wired: Wired,
    model: Arc<dyn Model>,
    front: Arc<dyn Front>,
    tap: Tap,
    saved: Saved,
    pub(crate) resumed: Option<Resumed>,
}

impl Making<'_> {
    /// Puts everything together. `resume` is the id of a session, or empty for the last one.
    pub(crate) fn make(self, resume: Option<&str>) -> Result<Made, Failure> {
        let Self { settings, environment, model, front, approver, modes, bits, also } = self;
        let sessions = Sessions::new(&settings.state);
        let directory = crate::wire::directory_of(&settings, environment)?;
        let resumed = resume.map(|id| sessions.resume(&directory, Some(id).filter(|id| !id.is_empty()))).transpose()?;
        if let Some(Resumed { head, .. }) = &resumed
            && head.dialect != settings.dialect.name()
        {
            return Err(SessionError::Dialect(head.id.clone(), head.dialect.clone()).into());
        }
        let tap = Tap::default();
        let seat = Seat {
            resumed: resumed.as_ref().map(|resumed| (resumed.head.id.clone(), resumed.bits)),
            ear: Some(Box::new(All(std::iter::once::<Box<dyn AuditSink>>(Box::new(tap.clone()))
                .chain(also)
                .collect()))),
            bits,
            modes,
        };
        let wired = wire_own(settings, environment, approver, seat)?;
        warn_of(&wired);
        let head = Head::new(&wired, model.name());
        let saved = sessions.open(&head, wired.session.bits.clone())?;
        Ok(Made { wired, model, front, tap, saved, resumed })
    }
}

impl Made {
    /// The agent, and the history that it goes on with.
    pub(crate) async fn begin(self, cancel: &CancellationToken) -> Result<(Agent, History, Saved), Failure> {
        let Self { wired, model, front, tap, saved, resumed } = self;
        let system = system_prompt(&wired.host, &wired.session, &wired.settings, cancel).await?;
        let memory = Box::new(saved.clone());
        let history = match resumed {
            None => History::new(memory),
            Some(resumed) => {
                History::resumed(resumed.messages, wired.session.dialect, memory).map_err(SessionError::Memory)?
            }
        };
        let settings = &wired.settings;
        let agent = Agent {
            model,
            host: wired.host,
            session: wired.session,
            system,
            temperature: settings.model.temperature,
            max_tokens: settings.model.max_tokens,
            repair: settings.model.repair_tool_calls,
            bounds: bounds(settings),
            tap,
            front,
        };
        Ok((agent, history, saved))
    }
}

/// Who is asked; where that is a person, the front hears of it first.
fn approver(settings: &Settings, environment: &Environment, front: &Arc<dyn Front>) -> Box<dyn Approver> {
    by_setting(settings, || {
        let terminal = Terminal::new(settings, environment);
        match terminal.is_there() {
            true => Box::new(Announced { approver: Box::new(terminal), front: Arc::clone(front) }),
            false => Box::new(nobody()),
        }
    })
}

fn bounds(settings: &Settings) -> Bounds {
    Bounds {
        steps: settings.max_tool_iterations,
        tokens: settings.model.max_prompt_tokens,
        time: settings.model.max_prompt_duration,
        context_tokens: settings.model.context_tokens,
        ..Bounds::default()
    }
}

/// Works on one prompt until it is over, or a signal comes.
fn one_prompt(made: Made, prompt: &str) -> Result<Outcome, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let outcome = runtime.block_on(async {
        let cancel = CancellationToken::new();
        if let Ok(signals) = Signals::take() {
            tokio::spawn(signals.cancel(cancel.clone()));
        }
        let (agent, mut history, saved) = made.begin(&cancel).await?;
        let outcome = agent.run(prompt, &mut history, &cancel).await;
        saved.keep_outcome(&finished(&outcome))?;
        Ok(outcome)
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    outcome
}
