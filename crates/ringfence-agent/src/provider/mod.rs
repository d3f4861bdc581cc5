//! Models as their providers offer them: over HTTP in two dialects, or from a script.
//!
//! `open` makes a model of what a person wrote into the config. A provider asks once and reads once; nothing is repaired
//! beyond what has one meaning, and everything that was odd is said in `Answer::oddities`.
//!
//! Not here: where keys come from (the binary), and when to ask again (the loop).

mod anthropic;
mod assemble;
mod fault;
mod http;
mod intake;
mod names;
mod openai;
mod optional;
mod scripted;
mod sse;
mod surrogates;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::model::{Model, ModelError};

/// What is known of a provider.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has a key in it")]
pub struct Provider {
    pub kind: Kind,
    /// Such as `http://localhost:8080/v1` or `https://api.anthropic.com`. A query in it is sent and never shown.
    pub base_url: String,
    /// What the provider calls the model.
    pub model: String,
    pub key: Option<Secret>,
    /// Further headers of each request. Their values are treated as keys are.
    pub headers: Vec<(String, Secret)>,
    pub timeouts: Timeouts,
    /// Whether answers are asked for piece by piece.
    pub stream: bool,
}

/// How a provider speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Chat completions, as OpenAI, llama.cpp, Ollama, vLLM and most gateways have them.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// No server: the text of a script. See `docs/models.md`.
    Scripted(String),
}

/// How long a server is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection.
    pub connect: Duration,
    /// From the question to the first byte of the answer. A local model reads the whole history in that time.
    pub first_byte: Duration,
    /// Between two bytes. A server that only shows that it lives is waited for as long as for a first byte, or this if it
    /// is longer.
    pub idle: Duration,
    /// For a whole answer, where there is a bound.
    pub answer: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(120),
            idle: Duration::from_secs(60),
            answer: None,
        }
    }
}

/// A key. It can be sent and not be shown: it has neither `Debug` nor `Display`.
#[derive(Clone, PartialEq, Eq)]
#[expect(missing_debug_implementations, reason = "a key is not shown")]
pub struct Secret(String);

/// How many bytes of a key tell it from other words.
const BEGIN: usize = 8;

impl Secret {
    /// White space around it is not part of it: a key often comes from a file with a newline at its end.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().to_owned())
    }

    fn reveal(&self) -> &str {
        &self.0
    }

    /// The text without this key in it, for a server may repeat what it was sent. What is shown of that may be cut, so that
    /// the begin of the key is hidden too.
    fn hidden_in(&self, text: String) -> String {
        // What is shorter is no key, and would be found in any text.
        let Some(begin) = self.0.get(..BEGIN).or((self.0.len() >= BEGIN / 2).then_some(self.0.as_str())) else {
            return text;
        };
        let (mut hidden, mut rest) = (String::with_capacity(text.len()), text.as_str());
        while let Some((before, _)) = rest.split_once(begin) {
            let (_, found) = rest.split_at(before.len());
            let same = found.chars().zip(self.0.chars()).take_while(|(a, b)| a == b);
            let length = same.map(|(c, _)| c.len_utf8()).sum();
            hidden.push_str(before);
            hidden.push_str("[key]");
            rest = found.split_at(length).1;
        }
        hidden.push_str(rest);
        hidden
    }
}

/// The model that a provider offers. Nothing is sent yet.
pub fn open(provider: Provider) -> Result<Box<dyn Model>, ModelError> {
    Ok(match provider.kind {
        Kind::OpenAi => Box::new(openai::OpenAi::open(provider)?),
        Kind::Anthropic => Box::new(anthropic::Anthropic::open(provider)?),
        Kind::Scripted(ref script) => Box::new(scripted::Scripted::read(&provider.model, script)?),
    })
}
