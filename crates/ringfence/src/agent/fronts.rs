//! How a run of one prompt looks from outside: progress for a person, or a JSON object a line for a program.
//!
//! A line of JSON has `type`, in the order in which things happen; the last one is `finished`.

use std::fmt;
use std::future::{Future, ready};
use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_agent::{Event, Front, Outcome};
use ringfence_kernel::{visible, visible_json, visible_line};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::cards;
use crate::terminal::Terminal;

/// Somewhere to write to, from several threads.
pub(crate) struct Writer(Mutex<Box<dyn Write + Send>>);

impl Writer {
    pub(crate) fn new(to: Box<dyn Write + Send>) -> Self {
        Self(Mutex::new(to))
    }

    /// Whoever closed it does not want to know.
    pub(crate) fn put(&self, text: &str) {
        let mut to = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

/// Progress for a person who looks on.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) out: Arc<Writer>,
    /// Where they can be asked.
    pub(crate) terminal: Option<Terminal>,
}

impl Front for Progress {
    fn hear(&self, event: &Event<'_>) {
        match event {
            Event::BeganAgain { why, wait, attempt } => {
                let wait = wait.as_secs_f64();
                self.out.put(&format!("  again in {wait:.1} s (attempt {attempt}): {}\n", visible_line(why)));
            }
            Event::Note { text } => self.out.put(&format!("  note: {}\n", visible_line(text))),
            Event::Call { call } => {
                self.out.put(&format!("* {}\n", cards::call(call)));
                cards::change(call).iter().for_each(|line| self.out.put(&format!("    {line}\n")));
            }
            Event::Output { text, .. } => {
                text.lines().for_each(|line| self.out.put(&format!("    > {}\n", visible_line(line))));
            }
            Event::Waiting { request } => self.out.put(&format!("  waits for you: {}\n", visible(&request.reason))),
            Event::Result { text, error, duration, .. } => {
                self.out.put(&format!("  {}\n", cards::result(text, *error, *duration)));
            }
            Event::Compacted { results, messages } => {
                self.out
                    .put(&format!("  note: {results} old result(s) and {messages} message(s) left out to save room\n"));
            }
            Event::Finished { outcome } => self.out.put(&cards::outcome(outcome)),
            Event::Step { .. }
            | Event::Text { .. }
            | Event::Reasoning { .. }
            | Event::CallComing { .. }
            | Event::Answered { .. }
            | Event::Usage { .. } => {}
        }
    }

    fn go_on<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        let Some(terminal) = self.terminal.clone() else { return Box::pin(ready(None)) };
        let shown = format!("{}\n", visible_line(why));
        // Who is asked and does not answer is not waited for once the run is cancelled.
        let asked = spawn_blocking(move || terminal.confirm(&shown, "let it go on?"));
        Box::pin(async move { asked.await.ok()?.ok() })
    }
}

/// An object a line for a program.
#[derive(Debug)]
pub(crate) struct Lines(pub(crate) Writer);

impl Front for Lines {
    fn hear(&self, event: &Event<'_>) {
        self.0.put(&(visible_json(&line(event).to_string()) + "\n"));
    }
}

/// An event for programs.
pub(crate) fn line(event: &Event<'_>) -> Value {
    match event {
        Event::Step { step } => json!({"type": "step", "step": step}),
        Event::Text { text } => json!({"type": "text", "text": text}),
        Event::Reasoning { text } => json!({"type": "reasoning", "text": text}),
        Event::CallComing { name } => json!({"type": "callComing", "name": name}),
        Event::BeganAgain { why, wait, attempt } => {
            json!({"type": "beganAgain", "why": why, "waitMs": millis(*wait), "attempt": attempt})
        }
        Event::Answered { text } => json!({"type": "answered", "text": text}),
        Event::Note { text } => json!({"type": "note", "text": text}),
        Event::Call { call } => {
            json!({"type": "call", "id": call.id, "name": call.name, "arguments": call.arguments})
        }
        Event::Output { call_id, stream, text } => {
            json!({"type": "output", "id": call_id, "stream": stream, "text": text})
        }
        Event::Waiting { request } => json!({"type": "waiting", "request": request.relayed()}),
        Event::Result { call, text, error, duration } => json!({
            "type": "result", "id": call.id, "name": call.name, "text": text, "isError": error.is_some(),
            "durationMs": millis(*duration),
        }),
        Event::Compacted { results, messages } => {
            json!({"type": "compacted", "results": results, "messages": messages})
        }
        Event::Usage { total, estimated } => json!({"type": "usage", "usage": total, "estimated": estimated}),
        Event::Finished { outcome } => {
            let mut value = finished(outcome);
            value["type"] = "finished".into();
            value
        }
    }
}

/// An outcome for programs.
pub(crate) fn finished(outcome: &Outcome) -> Value {
    json!({
        "end": outcome.end.name(), "why": outcome.end.why(), "text": outcome.text, "byHost": outcome.by_host,
        "steps": outcome.steps, "usage": outcome.usage, "estimated": outcome.estimated, "ledger": outcome.ledger,
        "durationMs": millis(outcome.duration),
    })
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
