//! Agent observers for one-prompt runs: progress text for people, or JSON Lines for programs.
//!
//! A line of JSON has `type`, in the order in which things happen; the last one is `finished`.

use std::fmt;
use std::future::{Future, ready};
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;

use ringfence_agent::{AgentEvent, AgentObserver};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{sanitize_json, sanitize_line, sanitize_text};
use tokio::task::spawn_blocking;

use crate::agent::cards;
use crate::agent::events::event_json;
use crate::approval::tty::TtyApprover;

/// Somewhere to write to, from several threads.
pub(crate) struct SharedWriter(Mutex<Box<dyn Write + Send>>);

impl SharedWriter {
    pub(crate) fn new(to: Box<dyn Write + Send>) -> Self {
        Self(Mutex::new(to))
    }

    /// Prints; a closed stream is ignored.
    pub(crate) fn print(&self, text: &str) {
        let mut to = self.0.lock();
        let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
    }
}

impl fmt::Debug for SharedWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedWriter")
    }
}

/// Progress for a person who looks on.
#[derive(Debug)]
pub(crate) struct ProgressObserver {
    pub(crate) out: Arc<SharedWriter>,
    /// The terminal for approval requests.
    pub(crate) terminal: Option<TtyApprover>,
}

impl AgentObserver for ProgressObserver {
    fn on_event(&self, event: &AgentEvent<'_>) {
        match event {
            AgentEvent::Retrying { why, wait, attempt } => {
                let wait = wait.as_secs_f64();
                self.out.print(&format!("  retrying in {wait:.1} s (attempt {attempt}): {}\n", sanitize_line(why)));
            }
            AgentEvent::Note { text } => self.out.print(&format!("  note: {}\n", sanitize_line(text))),
            AgentEvent::Call { call } => {
                self.out.print(&format!("* {}\n", cards::call_line(call)));
                cards::change_lines(call).iter().for_each(|line| self.out.print(&format!("    {line}\n")));
            }
            AgentEvent::Output { text, .. } => {
                text.lines().for_each(|line| self.out.print(&format!("    > {}\n", sanitize_line(line))));
            }
            AgentEvent::AwaitingApproval { request } => {
                self.out.print(&format!("  waiting for your approval: {}\n", sanitize_text(&request.reason)))
            }
            AgentEvent::Result { reply, duration, .. } => {
                self.out.print(&format!("  {}\n", cards::result_line(reply, *duration)));
            }
            AgentEvent::Compacted { results, messages } => {
                self.out.print(&format!("  note: {}\n", cards::compaction_note(*results, *messages)));
            }
            AgentEvent::Finished { outcome } => self.out.print(&cards::outcome_line(outcome)),
            AgentEvent::Step { .. }
            | AgentEvent::Text { .. }
            | AgentEvent::Reasoning { .. }
            | AgentEvent::CallStarted { .. }
            | AgentEvent::ResponseComplete { .. }
            | AgentEvent::Usage { .. } => {}
        }
    }

    fn confirm_continue<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        let Some(terminal) = self.terminal.clone() else { return Box::pin(ready(None)) };
        let shown = format!("{}\n", sanitize_line(why));
        // An unanswered prompt does not block a cancelled run.
        let asked = spawn_blocking(move || terminal.confirm(&shown, "continue?"));
        Box::pin(async move { asked.await.ok()?.ok() })
    }
}

/// An object a line for a program.
#[derive(Debug)]
pub(crate) struct JsonLinesObserver(pub(crate) SharedWriter);

impl AgentObserver for JsonLinesObserver {
    fn on_event(&self, event: &AgentEvent<'_>) {
        self.0.print(&(sanitize_json(&event_json(event).to_string()) + "\n"));
    }
}
