//! Model providers: over HTTP in two APIs, or from a script.
//!
//! `open` makes a model from the config. A provider sends one request and reads one response; only unambiguous defects
//! are corrected, and every oddity is in `ModelResponse::warnings`.
//!
//! Not here: the source of keys (the binary), and retries (the loop).

mod anthropic;
mod body_reader;
mod error;
mod http;
mod openai;
mod optional_fields;
mod response_builder;
mod scripted;
mod surrogates;
#[cfg(test)]
mod tests;
mod tool_names;

use std::time::Duration;

use crate::model::{LanguageModel, ModelError};

/// Settings of a provider.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has a key in it")]
pub struct ModelProvider {
    pub kind: ProviderProtocol,
    /// Such as `http://localhost:8080/v1` or `https://api.anthropic.com`. A query in it is sent and never shown.
    pub base_url: String,
    /// The model's name at the provider.
    pub model: String,
    pub key: Option<SecretString>,
    /// Further headers of each request. Their values are treated as keys are.
    pub headers: Vec<(String, SecretString)>,
    pub timeouts: ProviderTimeouts,
    /// Whether answers are asked for piece by piece.
    pub stream: bool,
}

/// API of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderProtocol {
    /// Chat completions, as OpenAI, llama.cpp, Ollama, vLLM and most gateways have them.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// No server: the text of a script. See `docs/models.md`.
    Scripted(String),
}

/// Timeouts of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderTimeouts {
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

impl Default for ProviderTimeouts {
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
#[expect(missing_debug_implementations, reason = "the key is hidden")]
pub struct SecretString(String);

/// Bytes of a key that distinguish it from other words.
const RECOGNIZABLE_BYTES: usize = 8;

impl SecretString {
    /// White space around it is not part of it: a key often comes from a file with a newline at its end.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().to_owned())
    }

    fn reveal(&self) -> &str {
        &self.0
    }

    /// The text without this key in it, for a server may repeat its request. The displayed part may be truncated, so
    /// that a prefix of the key is hidden too.
    fn redact_from(&self, text: String) -> String {
        // A shorter text cannot be a key, and would be found in any text.
        let Some(begin) =
            self.0.get(..RECOGNIZABLE_BYTES).or((self.0.len() >= RECOGNIZABLE_BYTES / 2).then_some(self.0.as_str()))
        else {
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
pub fn open(provider: ModelProvider) -> Result<Box<dyn LanguageModel>, ModelError> {
    Ok(match provider.kind {
        ProviderProtocol::OpenAi => Box::new(openai::OpenAiModel::open(provider)?),
        ProviderProtocol::Anthropic => Box::new(anthropic::AnthropicModel::open(provider)?),
        ProviderProtocol::Scripted(ref script) => Box::new(scripted::ScriptedProvider::parse(&provider.model, script)?),
    })
}
