//! Interactive chat with the agent in the terminal's scrollback.
//!
//! `Ctrl-C` cancels the current operation, and a second one leaves. Approvals are requested in place, by the same
//! dialog as everywhere (`tty.rs`). Lines with a `/` in front are commands and never sent to the model.
//!
//! Not here: the loop, and how lines are edited (`line_editor.rs`).

use std::pin::Pin;
use std::sync::Arc;

use ringfence_agent::{Agent, AgentEvent, AgentObserver, AgentOutcome};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{SessionTaint, sanitize_line, sanitize_text};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::agent::model::open_model;
use crate::agent::tool_prompt::first_sentence;
use crate::agent::{AgentBuilder, AgentConversation, cards};
use crate::app::build_person_app;
use crate::app::session_mode;
use crate::cli::agent::{EXIT_CANCELLED, approver};
use crate::cli::changes_text;
use crate::cli::line_editor::{LineEditor, LineHistoryMode, LineInput, TermiosGuard};
use crate::cli::markdown::MarkdownRenderer;
use crate::cli::observers::SharedWriter;
use crate::cli::{CliError, make_call};
use crate::config::{AppSettings, Environment};
use crate::process::signals::{ShutdownSignalKind, ShutdownSignals};

const PROMPT: &str = "> ";

const HELP: &str = "\
/undo         undo the changes of the last prompt
/log          list the changes of this session
/tools        list the agent's tools
/model [NAME] show the model, or switch to another model of the same provider
/clear        start a new session with an empty history
/help         show this help
/quit         quit (also Ctrl-D, or Ctrl-C twice)
Any other input is a prompt. Ctrl-C cancels the current prompt.
";

/// File of remembered lines, below the state directory.
const HISTORY_FILE: &str = "agent-lines";

/// A conversation.
pub(crate) struct TerminalChat<'a> {
    pub(crate) settings: AppSettings,
    pub(crate) environment: &'a Environment,
    pub(crate) out: SharedWriter,
}

/// Way in which a session was left.
enum ChatExit {
    /// For a new one.
    NewSession,
    Quit(u8),
}

/// A session that is talked in.
struct ChatSession {
    conversation: AgentConversation,
    /// The changes of the last prompt, the oldest first.
    last_changes: Vec<String>,
}

impl TerminalChat<'_> {
    /// Talks until the person leaves.
    pub(crate) fn run(mut self, resume: Option<&str>) -> Result<u8, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
        let _modes = TermiosGuard::save();
        let lines = LineEditor::start(self.settings.state.join(HISTORY_FILE)).map_err(CliError::Runtime)?;
        let mut signals = runtime.block_on(async { ShutdownSignals::install() }).map_err(CliError::Runtime)?;
        let out = Arc::new(std::mem::replace(&mut self.out, SharedWriter::new(Box::new(std::io::sink()))));
        let styled = !self.environment.no_color;
        let screen = Arc::new(ChatObserver { out, lines, markdown: Mutex::new(MarkdownRenderer::new(styled)), styled });
        let mut resume = resume.map(str::to_owned);
        let code = loop {
            let mut chat = self.open_session(&runtime, &screen, resume.take().as_deref())?;
            match self.chat_loop(&runtime, &screen, &mut chat, &mut signals)? {
                ChatExit::NewSession => {}
                ChatExit::Quit(code) => break code,
            }
        };
        // A worker that a file system holds must not hold the program too.
        runtime.shutdown_background();
        Ok(code)
    }

    fn open_session(
        &self,
        runtime: &Runtime,
        screen: &Arc<ChatObserver>,
        resume: Option<&str>,
    ) -> Result<ChatSession, CliError> {
        let observer = Arc::clone(screen) as Arc<dyn AgentObserver>;
        let making = AgentBuilder {
            model: open_model(&self.settings.model, self.environment)?,
            approver: approver(&self.settings, self.environment, &observer),
            settings: self.settings.clone(),
            environment: self.environment,
            observer,
            mode: session_mode::SharedSessionMode::default(),
            taint: SessionTaint::default(),
            tap: None,
        };
        let made = making.build(resume)?;
        let conversation = runtime.block_on(made.start(&CancellationToken::new()))?;
        let known = match conversation.history.messages().len() {
            0 => String::new(),
            count => format!(" with {}", cards::count(count, "message")),
        };
        let agent = &conversation.agent;
        let model = sanitize_line(agent.model.name());
        let dialect = agent.session.dialect.name();
        screen.print(&format!(
            "{model}, {dialect} tools, session {}{known}; type /help for commands\n",
            agent.session.id
        ));
        Ok(ChatSession { conversation, last_changes: Vec::new() })
    }

    fn chat_loop(
        &mut self,
        runtime: &Runtime,
        screen: &ChatObserver,
        chat: &mut ChatSession,
        signals: &mut ShutdownSignals,
    ) -> Result<ChatExit, CliError> {
        let mut interrupted = false;
        loop {
            let line = runtime.block_on(async {
                tokio::select! {
                    line = screen.lines.read(PROMPT, LineHistoryMode::Save) => line,
                    _ = signals.next() => LineInput::End,
                }
            });
            let text = match line {
                LineInput::End => return Ok(ChatExit::Quit(0)),
                LineInput::Interrupted if interrupted => return Ok(ChatExit::Quit(EXIT_CANCELLED)),
                LineInput::Interrupted => {
                    interrupted = true;
                    screen.print("press Ctrl-C again to quit\n");
                    continue;
                }
                LineInput::Text(text) => text,
            };
            interrupted = false;
            match text.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(ChatExit::Quit(0)),
                "/clear" => return Ok(ChatExit::NewSession),
                command if command.starts_with('/') => self.command(command, screen, chat),
                prompt => match runtime.block_on(run_prompt(chat, prompt, signals)) {
                    Some(outcome) => {
                        chat.last_changes = outcome.ledger.changes.clone();
                        chat.conversation.record(&outcome)?;
                        interrupted = matches!(outcome.stop_reason, ringfence_agent::AgentStopReason::Cancelled);
                    }
                    None => return Ok(ChatExit::Quit(EXIT_CANCELLED)),
                },
            }
        }
    }

    /// Executes a command with a `/` in front. An error is printed, and the conversation goes on.
    fn command(&mut self, command: &str, screen: &ChatObserver, chat: &mut ChatSession) {
        let (command_name, rest) = command.split_once(' ').unwrap_or((command, ""));
        let output = match (command_name, rest.trim()) {
            ("/help", _) => HELP.to_owned(),
            ("/tools", _) => tool_list(&chat.conversation.agent),
            ("/model", "") => format!("{}\n", chat.conversation.agent.model.name()),
            ("/model", name) => self.change_model(name, chat),
            ("/log", _) => self.log(chat).unwrap_or_else(|failure| format!("{failure}\n")),
            ("/undo", _) => self.undo(chat).unwrap_or_else(|failure| format!("{failure}\n")),
            (command_name, _) => format!("unknown command {command_name} (try /help)\n"),
        };
        screen.print(&sanitize_text(&output));
    }

    fn change_model(&mut self, name: &str, chat: &mut ChatSession) -> String {
        let mut settings = self.settings.model.clone();
        settings.model = Some(name.to_owned());
        match open_model(&settings, self.environment) {
            Ok(model) => {
                let output = format!("{}\n", model.name());
                chat.conversation.agent.model = model;
                self.settings.model = settings;
                output
            }
            Err(error) => format!("{error}\n"),
        }
    }

    fn log(&self, chat: &ChatSession) -> Result<String, CliError> {
        let value = self.call_as_person("list_changes", &json!({"session": chat.conversation.agent.session.id}))?;
        Ok(match value {
            Ok(value) if changes_text::format_changes(&value).is_empty() => "no changes\n".to_owned(),
            Ok(value) => changes_text::format_changes(&value),
            Err(message) => message,
        })
    }

    /// Undoes the changes of the last prompt, the newest first.
    fn undo(&self, chat: &mut ChatSession) -> Result<String, CliError> {
        let mut output = String::new();
        while let Some(change) = chat.last_changes.last() {
            match self.call_as_person("undo", &json!({ "change": change }))? {
                Ok(value) => output.push_str(&changes_text::format_undo(&value)),
                Err(message) => return Ok(output + &message),
            }
            chat.last_changes.pop();
        }
        Ok(if output.is_empty() { "the last prompt made no changes that can be undone\n".to_owned() } else { output })
    }

    /// A call of a person, through the host: its value, or the error.
    fn call_as_person(&self, tool: &str, arguments: &Value) -> Result<Result<Value, String>, CliError> {
        let app = build_person_app(self.settings.clone(), self.environment, ringfence_kernel::Assurance::Person, None)?;
        let reply = make_call(&app, tool.to_owned(), arguments.to_string())?;
        Ok(match reply.outcome {
            Ok(value) => Ok(value.to_value()),
            Err(error) => Err(format!("{}\n", error.message)),
        })
    }
}

/// Works on a prompt. Nothing where the person left meanwhile.
async fn run_prompt(chat: &mut ChatSession, prompt: &str, signals: &mut ShutdownSignals) -> Option<AgentOutcome> {
    let cancel = CancellationToken::new();
    let run = chat.conversation.run(prompt, &cancel);
    tokio::pin!(run);
    loop {
        tokio::select! {
            outcome = &mut run => return Some(outcome),
            came = signals.next() => match came {
                ShutdownSignalKind::Interrupt if !cancel.is_cancelled() => cancel.cancel(),
                ShutdownSignalKind::Interrupt | ShutdownSignalKind::Terminate => return None,
            },
        }
    }
}

fn tool_list(agent: &Agent) -> String {
    let line = |name: &str, text: &str| format!("{name}  {}\n", first_sentence(text));
    agent.session.catalog.list().map(|tool| line(&tool.name, tool.description())).collect()
}

/// Prints the events of a run for a person.
#[derive(Debug)]
struct ChatObserver {
    out: Arc<SharedWriter>,
    lines: LineEditor,
    markdown: Mutex<MarkdownRenderer>,
    styled: bool,
}

impl ChatObserver {
    fn print(&self, text: &str) {
        self.out.print(text);
    }

    /// A line that is less important than the answer.
    fn print_faint(&self, line: &str) {
        match self.styled {
            true => self.print(&format!("\x1b[2m{line}\x1b[0m\n")),
            false => self.print(&format!("{line}\n")),
        }
    }

    fn print_change(&self, line: &str) {
        match (line.chars().next(), self.styled) {
            (Some('+'), true) => self.print(&format!("    \x1b[32m{line}\x1b[0m\n")),
            (Some('-'), true) => self.print(&format!("    \x1b[31m{line}\x1b[0m\n")),
            _ => self.print(&format!("    {line}\n")),
        }
    }

    fn render(&self, work: impl FnOnce(&mut MarkdownRenderer) -> String) {
        let shown = work(&mut self.markdown.lock());
        self.print(&shown);
    }
}

impl AgentObserver for ChatObserver {
    fn on_event(&self, event: &AgentEvent<'_>) {
        match event {
            AgentEvent::Text { text } => self.render(|markdown| markdown.push(text)),
            AgentEvent::ResponseComplete { text } => {
                self.render(MarkdownRenderer::finish);
                if !text.trim().is_empty() {
                    self.print("\n");
                }
            }
            AgentEvent::Retrying { why, wait, attempt } => {
                self.render(MarkdownRenderer::finish);
                let wait = wait.as_secs_f64();
                self.print_faint(&format!("\n(partial response discarded: {})", sanitize_line(why)));
                self.print_faint(&format!("(retrying in {wait:.1} s, attempt {attempt})"));
            }
            AgentEvent::Note { text } => self.print_faint(&format!("({})", sanitize_line(text))),
            AgentEvent::Call { call } => {
                self.print(&format!("* {}\n", cards::call_line(call)));
                cards::change_lines(call).iter().for_each(|line| self.print_change(line));
            }
            AgentEvent::Output { text, .. } => {
                text.lines().for_each(|line| self.print_faint(&format!("    {}", sanitize_line(line))));
            }
            AgentEvent::Result { reply, duration, .. } => {
                self.print_faint(&format!("  {}", cards::result_line(reply, *duration)));
            }
            AgentEvent::Compacted { results, messages } => {
                self.print_faint(&format!("({})", cards::compaction_note(*results, *messages)));
            }
            AgentEvent::Finished { outcome } => {
                self.render(MarkdownRenderer::finish);
                if outcome.by_host {
                    self.print("\n");
                }
                cards::outcome_line(outcome).lines().for_each(|line| self.print_faint(line));
            }
            AgentEvent::Step { .. }
            | AgentEvent::Reasoning { .. }
            | AgentEvent::CallStarted { .. }
            | AgentEvent::AwaitingApproval { .. }
            | AgentEvent::Usage { .. } => {}
        }
    }

    fn confirm_continue<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(async move {
            self.print(&format!("{}\n", sanitize_line(why)));
            let line = self.lines.read("continue? [yes/no] ", LineHistoryMode::Skip).await;
            Some(matches!(line, LineInput::Text(text) if text.trim() == "yes"))
        })
    }
}
