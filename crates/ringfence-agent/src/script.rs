//! A model that says what a script has: for tests, and to try the agent without a model.
//!
//! A line of the script is one answer, a JSON object. The script ends with its last line; whoever asks more gets an
//! error that says so.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::message::RequestedCall;
use crate::model::{Answer, Answering, Ask, Finish, Model, ModelError, Part, Parts, Trouble, Usage};

/// A model that plays a script.
#[derive(Debug)]
pub struct Script {
    lines: Mutex<std::vec::IntoIter<Line>>,
}

/// A line is no answer.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the script is wrong: {problem}")]
pub struct BadScript {
    line: usize,
    problem: String,
}

/// One answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Line {
    text: String,
    reasoning: String,
    calls: Vec<CallLine>,
    /// `stop`, `calls`, `length`, `filter`, `refusal`, or anything else.
    finish: Option<String>,
    refusal: Option<String>,
    usage: Option<Usage>,
    /// Instead of an answer: `unreachable`, `busy`, `server`, `cut`, `stalled`, `garbled`, `too_long`, `denied`.
    error: Option<String>,
    /// Milliseconds that a busy server wants to be left alone.
    retry_after: Option<u64>,
    /// Says its text and then nothing more, for ever.
    stall: bool,
    calls_dropped: usize,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallLine {
    #[serde(default)]
    id: Option<String>,
    name: String,
    /// An object, or a text that may be no JSON.
    #[serde(default)]
    arguments: Value,
}

impl Script {
    /// Reads a script: a JSON object a line, empty lines and those that begin with `#` left out.
    pub fn parse(text: &str) -> Result<Self, BadScript> {
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = serde_json::from_str(line);
            lines.push(parsed.map_err(|error| BadScript { line: number + 1, problem: error.to_string() })?);
        }
        Ok(Self { lines: Mutex::new(lines.into_iter()) })
    }

    fn next(&self) -> Option<(usize, Line)> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.next()?;
        Some((lines.len(), line))
    }
}

impl Model for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn answer<'a>(&'a self, _: Ask<'a>, parts: &'a mut Parts<'_>) -> Answering<'a, Answer> {
        Box::pin(async move {
            let Some((left, line)) = self.next() else {
                return Err(error(Trouble::BadRequest, "the script has no further answer"));
            };
            if !line.reasoning.is_empty() {
                parts(Part::Reasoning(&line.reasoning));
            }
            for word in line.text.split_inclusive(' ') {
                parts(Part::Text(word));
            }
            for call in &line.calls {
                parts(Part::Call(&call.name));
            }
            if line.stall {
                std::future::pending::<()>().await;
            }
            line.play(left)
        })
    }

    fn health(&self) -> Answering<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Line {
    /// `left` makes the ids of calls differ from answer to answer.
    fn play(self, left: usize) -> Result<Answer, ModelError> {
        if let Some(what) = &self.error {
            return Err(error(self.trouble(what), &format!("the script says: {what}")));
        }
        let call = |(number, call): (usize, CallLine)| RequestedCall {
            id: call.id.unwrap_or_else(|| format!("call-{left}-{number}")),
            name: call.name,
            arguments: match call.arguments {
                Value::String(text) => text,
                Value::Null => String::new(),
                value => value.to_string(),
            },
        };
        let calls: Vec<RequestedCall> = self.calls.into_iter().enumerate().map(call).collect();
        let finish = match self.finish.as_deref() {
            None if calls.is_empty() => Finish::Stop,
            None | Some("calls") => Finish::Calls,
            Some("stop") => Finish::Stop,
            Some("length") => Finish::Length,
            Some("filter") => Finish::Filter,
            Some("refusal") => Finish::Refusal,
            Some(other) => Finish::Other(other.to_owned()),
        };
        Ok(Answer {
            text: self.text,
            reasoning: self.reasoning,
            calls,
            calls_dropped: self.calls_dropped,
            refusal: self.refusal,
            finish,
            usage: self.usage,
            ..Answer::default()
        })
    }

    fn trouble(&self, what: &str) -> Trouble {
        match what {
            "unreachable" => Trouble::Unreachable,
            "busy" => Trouble::Busy { retry_after: self.retry_after.map(Duration::from_millis) },
            "server" => Trouble::Server,
            "cut" => Trouble::Cut,
            "stalled" => Trouble::Stalled,
            "too_long" => Trouble::TooLong,
            "denied" => Trouble::Denied,
            _ => Trouble::Garbled,
        }
    }
}

fn error(trouble: Trouble, message: &str) -> ModelError {
    ModelError { trouble, message: message.to_owned() }
}
