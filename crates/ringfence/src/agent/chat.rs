//! Talking with the agent at the terminal: lines go in, text and short cards come out, in the terminal's own scrollback.
//!
//! `Ctrl-C` cancels what is going on, and a second one leaves. Whoever has to be asked about a call is asked in place, by
//! the same dialog as everywhere (`terminal.rs`). What is typed with a `/` in front is for us and never for the model.
//!
//! Not here: the loop, and how lines are edited (`line_reader.rs`).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_agent::{Agent, Event, Front, History, Outcome};
use ringfence_kernel::{Bits, visible, visible_line};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::fronts::{Writer, finished};
use super::line_reader::{Line, LineReader, Modes, Worth};
use super::markdown::Markdown;
use super::open_model::open_model;
use super::{CANCELLED, Making, approver, cards};
use crate::changes_text;
use crate::cli::{Failure, make_call};
use crate::config::{Environment, Settings};
use crate::mode;
use crate::prompt::first_sentence;
use crate::sessions::Saved;
use crate::signals::{Came, Signals};
use crate::wire::wire_for_person;

const PROMPT: &str = "> ";

const HELP: &str = "\
/undo         take back what the last prompt changed
/log          the changes of this session
/tools        the tools that the agent has
/model [NAME] the model, or another one of the same provider
/clear        begin a new session, which knows nothing of this one
/help         this
/quit         leave; so does Ctrl-D, or Ctrl-C twice
Anything else is a prompt. Ctrl-C cancels what is going on.
";

/// Where remembered lines are, below the state directory.
const REMEMBERED: &str = "agent-lines";

/// A conversation.
pub(crate) struct Chat<'a> {
    pub(crate) settings: Settings,
    pub(crate) environment: &'a Environment,
    pub(crate) out: Writer,
}

/// How a session was left.
enum Left {
    /// For a new one.
    Cleared,
    Gone(u8),
}

/// A session that is talked in.
struct Talk {
    agent: Agent,
    history: History,
    saved: Saved,
    /// The changes of the last prompt, the oldest first.
    last_changes: Vec<String>,
}

impl Chat<'_> {
    /// Talks until the person leaves.
    pub(crate) fn run(mut self, resume: Option<&str>) -> Result<u8, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
        let _modes = Modes::keep();
        let lines = LineReader::start(self.settings.state.join(REMEMBERED)).map_err(Failure::Runtime)?;
        let mut signals = runtime.block_on(async { Signals::take() }).map_err(Failure::Runtime)?;
        let out = Arc::new(std::mem::replace(&mut self.out, Writer::new(Box::new(std::io::sink()))));
        let styled = !self.environment.no_color;
        let screen = Arc::new(Screen { out, lines, markdown: Mutex::new(Markdown::new(styled)), styled });
        let mut resume = resume.map(str::to_owned);
        let code = loop {
            let mut talk = self.begin(&runtime, &screen, resume.take().as_deref())?;
            match self.talk(&runtime, &screen, &mut talk, &mut signals)? {
                Left::Cleared => {}
                Left::Gone(code) => break code,
            }
        };
        // A worker that a file system holds must not hold the program too.
        runtime.shutdown_background();
        Ok(code)
    }

    fn begin(&self, runtime: &Runtime, screen: &Arc<Screen>, resume: Option<&str>) -> Result<Talk, Failure> {
        let front = Arc::clone(screen) as Arc<dyn Front>;
        let making = Making {
            model: open_model(&self.settings.model, self.environment)?,
            approver: approver(&self.settings, self.environment, &front),
            settings: self.settings.clone(),
            environment: self.environment,
            front,
            modes: mode::Modes::default(),
            bits: Bits::default(),
            also: None,
        };
        let made = making.make(resume)?;
        let (agent, history, saved) = runtime.block_on(made.begin(&CancellationToken::new()))?;
        let known = match history.messages().len() {
            0 => String::new(),
            count => format!(", which has {count} messages"),
        };
        let model = visible_line(agent.model.name());
        screen.put(&format!("{model}, session {}{known}; /help says what can be typed\n", agent.session.id));
        Ok(Talk { agent, history, saved, last_changes: Vec::new() })
    }

    fn talk(
        &mut self,
        runtime: &Runtime,
        screen: &Screen,
        talk: &mut Talk,
        signals: &mut Signals,
    ) -> Result<Left, Failure> {
        let mut interrupted = false;
        loop {
            let line = runtime.block_on(async {
                tokio::select! {
                    line = screen.lines.read(PROMPT, Worth::Remembering) => line,
                    _ = signals.next() => Line::End,
                }
            });
            let text = match line {
                Line::End => return Ok(Left::Gone(0)),
                Line::Interrupted if interrupted => return Ok(Left::Gone(CANCELLED)),
                Line::Interrupted => {
                    interrupted = true;
                    screen.put("once more to leave\n");
                    continue;
                }
                Line::Text(text) => text,
            };
            interrupted = false;
            match text.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(Left::Gone(0)),
                "/clear" => return Ok(Left::Cleared),
                command if command.starts_with('/') => self.command(command, screen, talk),
                prompt => match runtime.block_on(prompted(talk, prompt, signals)) {
                    Some(outcome) => {
                        talk.last_changes = outcome.ledger.changes.clone();
                        talk.saved.keep_outcome(&finished(&outcome))?;
                        interrupted = matches!(outcome.end, ringfence_agent::End::Cancelled);
                    }
                    None => return Ok(Left::Gone(CANCELLED)),
                },
            }
        }
    }

    /// Does what was typed with a `/` in front. What goes wrong is told, and the conversation goes on.
    fn command(&mut self, command: &str, screen: &Screen, talk: &mut Talk) {
        let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
        let said = match (word, rest.trim()) {
            ("/help", _) => HELP.to_owned(),
            ("/tools", _) => tools(&talk.agent),
            ("/model", "") => format!("{}\n", talk.agent.model.name()),
            ("/model", name) => self.change_model(name, talk),
            ("/log", _) => self.log(talk).unwrap_or_else(|failure| format!("{failure}\n")),
            ("/undo", _) => self.undo(talk).unwrap_or_else(|failure| format!("{failure}\n")),
            (word, _) => format!("there is no {word}; /help says what there is\n"),
        };
        screen.put(&visible(&said));
    }

    fn change_model(&mut self, name: &str, talk: &mut Talk) -> String {
        let mut settings = self.settings.model.clone();
        settings.model = Some(name.to_owned());
        match open_model(&settings, self.environment) {
            Ok(model) => {
                let said = format!("{}\n", model.name());
                talk.agent.model = model;
                self.settings.model = settings;
                said
            }
            Err(error) => format!("{error}\n"),
        }
    }

    fn log(&self, talk: &Talk) -> Result<String, Failure> {
        let value = self.for_person("list_changes", &json!({"session": talk.agent.session.id}))?;
        Ok(match value {
            Ok(value) if changes_text::listed(&value).is_empty() => "nothing was changed\n".to_owned(),
            Ok(value) => changes_text::listed(&value),
            Err(message) => message,
        })
    }

    /// Takes back the changes of the last prompt, the newest first.
    fn undo(&self, talk: &mut Talk) -> Result<String, Failure> {
        let mut said = String::new();
        while let Some(change) = talk.last_changes.last() {
            match self.for_person("undo", &json!({ "change": change }))? {
                Ok(value) => said.push_str(&changes_text::undone(&value)),
                Err(message) => return Ok(said + &message),
            }
            talk.last_changes.pop();
        }
        Ok(if said.is_empty() { "the last prompt changed nothing that could be taken back\n".to_owned() } else { said })
    }

    /// A call that a person makes, by the road: its value, or what went wrong.
    fn for_person(&self, tool: &str, arguments: &Value) -> Result<Result<Value, String>, Failure> {
        let wired =
            wire_for_person(self.settings.clone(), self.environment, ringfence_kernel::Assurance::Person, None)?;
        let reply = make_call(&wired, tool.to_owned(), arguments.to_string())?;
        let mut said: Value = serde_json::from_str(&reply.text).unwrap_or_default();
        Ok(match reply.error {
            None => Ok(said["value"].take()),
            Some(_) => Err(format!("{}\n", said["error"]["message"].as_str().unwrap_or(&reply.text))),
        })
    }
}

/// Works on a prompt. Nothing where the person left meanwhile.
async fn prompted(talk: &mut Talk, prompt: &str, signals: &mut Signals) -> Option<Outcome> {
    let cancel = CancellationToken::new();
    let run = talk.agent.run(prompt, &mut talk.history, &cancel);
    tokio::pin!(run);
    loop {
        tokio::select! {
            outcome = &mut run => return Some(outcome),
            came = signals.next() => match came {
                Came::Interrupt if !cancel.is_cancelled() => cancel.cancel(),
                Came::Interrupt | Came::End => return None,
            },
        }
    }
}

fn tools(agent: &Agent) -> String {
    let line = |name: &str, text: &str| format!("{name}  {}\n", first_sentence(text));
    agent.session.catalog.list().map(|tool| line(&tool.name, &tool.description)).collect()
}

/// What the person sees.
#[derive(Debug)]
struct Screen {
    out: Arc<Writer>,
    lines: LineReader,
    markdown: Mutex<Markdown>,
    styled: bool,
}

impl Screen {
    fn put(&self, text: &str) {
        self.out.put(text);
    }

    /// A line that is less important than the answer.
    fn aside(&self, line: &str) {
        match self.styled {
            true => self.put(&format!("\x1b[2m{line}\x1b[0m\n")),
            false => self.put(&format!("{line}\n")),
        }
    }

    fn changed(&self, line: &str) {
        match (line.chars().next(), self.styled) {
            (Some('+'), true) => self.put(&format!("    \x1b[32m{line}\x1b[0m\n")),
            (Some('-'), true) => self.put(&format!("    \x1b[31m{line}\x1b[0m\n")),
            _ => self.put(&format!("    {line}\n")),
        }
    }

    fn text(&self, work: impl FnOnce(&mut Markdown) -> String) {
        let shown = work(&mut self.markdown.lock().unwrap_or_else(PoisonError::into_inner));
        self.put(&shown);
    }
}

impl Front for Screen {
    fn hear(&self, event: &Event<'_>) {
        match event {
            Event::Text { text } => self.text(|markdown| markdown.show(text)),
            Event::Answered { text } => {
                self.text(Markdown::end);
                if !text.trim().is_empty() {
                    self.put("\n");
                }
            }
            Event::BeganAgain { why, wait, attempt } => {
                self.text(Markdown::end);
                let wait = wait.as_secs_f64();
                self.aside(&format!("\n(what came so far counts for nothing: {})", visible_line(why)));
                self.aside(&format!("(again in {wait:.1} s, attempt {attempt})"));
            }
            Event::Note { text } => self.aside(&format!("({})", visible_line(text))),
            Event::Call { call } => {
                self.put(&format!("* {}\n", cards::call(call)));
                cards::change(call).iter().for_each(|line| self.changed(line));
            }
            Event::Output { text, .. } => {
                text.lines().for_each(|line| self.aside(&format!("    {}", visible_line(line))));
            }
            Event::Result { text, error, duration, .. } => {
                self.aside(&format!("  {}", cards::result(text, *error, *duration)));
            }
            Event::Compacted { results, messages } => {
                self.aside(&format!("({results} old result(s) and {messages} message(s) left out to save room)"));
            }
            Event::Finished { outcome } => {
                self.text(Markdown::end);
                if outcome.by_host {
                    self.put("\n");
                }
                cards::outcome(outcome).lines().for_each(|line| self.aside(line));
            }
            Event::Step { .. }
            | Event::Reasoning { .. }
            | Event::CallComing { .. }
            | Event::Waiting { .. }
            | Event::Usage { .. } => {}
        }
    }

    fn go_on<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(async move {
            self.put(&format!("{}\n", visible_line(why)));
            let line = self.lines.read("let it go on? [yes/no] ", Worth::Nothing).await;
            Some(matches!(line, Line::Text(text) if text.trim() == "yes"))
        })
    }
}
