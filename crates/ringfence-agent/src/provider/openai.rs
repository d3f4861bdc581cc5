//! OpenAI Chat Completions API, and compatible servers.
//!
//! Strict about what is done, tolerant about how it is written: a field may be missing, null, or of another type than it
//! should be, and only what no server means is an error. A server that was asked for a stream and sends the whole, or the
//! other way round, is understood.

use std::borrow::Cow;
use std::fmt;

use ringfence_net::SseEvent;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::body_reader::{ResponseParser, StreamProgress};
use super::error::{ProviderError, quote_text};
use super::http::{ProviderClient, ProviderHttpRequest};
use super::optional_fields::RejectedRequestFields;
use super::response_builder::{CallDelta, ResponseBuilder, ToolCallFormat};
use super::surrogates::mark;
use super::tool_names::ToolNameMap;
use super::{ModelProvider, SecretString};
use crate::message::{RequestedCall, TranscriptMessage};
use crate::model::{
    FinishReason, LanguageModel, ModelError, ModelErrorKind, ModelFuture, ModelRequest, ModelResponse,
    ResponsePartSink, TokenUsage,
};

/// A model behind `POST …/chat/completions`.
pub(crate) struct OpenAiModel {
    client: ProviderClient,
    model: String,
    stream: bool,
    optional: RejectedRequestFields,
}

/// Fields that a server may refuse, and a response does not need.
const OPTIONAL_FIELDS: [&str; 8] = [
    "stream_options",
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_content",
    "reasoning_details",
    "reasoning",
    "extra_content",
];

impl fmt::Debug for OpenAiModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiModel").field("at", &self.client.to_string()).field("model", &self.model).finish()
    }
}

impl OpenAiModel {
    pub(crate) fn open(provider: ModelProvider) -> Result<Self, ModelError> {
        let bearer = provider.key.as_ref().map(|key| SecretString::new(format!("Bearer {}", key.reveal())));
        let headers: Vec<(&str, &SecretString)> = bearer.iter().map(|value| ("authorization", value)).collect();
        let client = ProviderClient::open(&provider, &headers)?;
        Ok(Self { client, model: provider.model, stream: provider.stream, optional: RejectedRequestFields::default() })
    }

    fn body(&self, ask: &ModelRequest<'_>, names: &ToolNameMap) -> Value {
        let mut messages = Vec::new();
        if !ask.system.is_empty() {
            messages.push(json!({"role": "system", "content": ask.system}));
        }
        messages.extend(ask.messages.iter().filter_map(|message| self.message_json(message, names)));
        let mut body = json!({"model": self.model, "messages": messages, "stream": self.stream});
        if self.stream && self.optional.accepts("stream_options") {
            body["stream_options"] = json!({"include_usage": true});
        }
        if !ask.tools.is_empty() {
            let tool = |tool: &crate::model::ToolSpec| {
                let function = json!({
                    "name": names.to_wire(&tool.name), "description": tool.description, "parameters": tool.parameters,
                });
                json!({"type": "function", "function": function})
            };
            body["tools"] = ask.tools.iter().map(tool).collect();
        }
        if let Some(temperature) = ask.temperature.filter(|_| self.optional.accepts("temperature")) {
            body["temperature"] = json!(temperature);
        }
        if let Some(most) = ask.max_tokens {
            // OpenAI's own newer models refuse the name that all others know.
            let mut names = ["max_tokens", "max_completion_tokens"];
            if self.client.host() == "api.openai.com" {
                names.reverse();
            }
            if let Some(name) = names.into_iter().find(|name| self.optional.accepts(name)) {
                body[name] = json!(most);
            }
        }
        body
    }

    fn message_json(&self, message: &TranscriptMessage, names: &ToolNameMap) -> Option<Value> {
        Some(match message {
            TranscriptMessage::User { text } => json!({"role": "user", "content": text}),
            TranscriptMessage::Assistant { text, calls, .. } if text.is_empty() && calls.is_empty() => return None,
            TranscriptMessage::Assistant { text, calls, .. } if calls.is_empty() => {
                json!({"role": "assistant", "content": text})
            }
            TranscriptMessage::Assistant { text, calls, reasoning } => {
                let call = |call: &RequestedCall| {
                    let function =
                        json!({"name": names.to_wire(&call.name), "arguments": arguments_for_server(&call.arguments)});
                    let mut made = json!({"id": call.id, "type": "function", "function": function});
                    let extra = reasoning.calls.get(&call.id).filter(|_| self.optional.accepts("extra_content"));
                    if let Some(extra) = extra {
                        made["extra_content"] = extra.clone();
                    }
                    made
                };
                let calls: Vec<Value> = calls.iter().map(call).collect();
                let text = if text.is_empty() { Value::Null } else { json!(text) };
                let mut assistant = json!({"role": "assistant", "content": text, "tool_calls": calls});
                for (name, value) in reasoning.fields.iter().filter(|(name, _)| self.optional.accepts(name)) {
                    assistant[name] = value.clone();
                }
                assistant
            }
            TranscriptMessage::Tool { call_id, text, .. } => {
                json!({"role": "tool", "tool_call_id": call_id, "content": text})
            }
        })
    }
}

impl LanguageModel for OpenAiModel {
    fn name(&self) -> &str {
        &self.model
    }

    fn respond<'a>(
        &'a self,
        ask: ModelRequest<'a>,
        parts: &'a mut ResponsePartSink<'_>,
    ) -> ModelFuture<'a, ModelResponse> {
        let names = ToolNameMap::new(ask.tools);
        let make = move || (self.body(&ask, &names), OpenAiParser::new(&self.model, &ask));
        Box::pin(async move {
            self.client.request_model("/chat/completions", (&self.optional, &OPTIONAL_FIELDS), make, parts).await
        })
    }

    /// Asks for the list of models. A server that has one and does not list ours does not know it.
    fn health(&self) -> ModelFuture<'_, ()> {
        Box::pin(async {
            let question = ProviderHttpRequest::get("/models");
            let known = |body: &[u8]| check_listed(&self.model, body);
            self.client.check(question, known).await
        })
    }
}

/// Arguments of an earlier call as a server takes them. Some fail on a history in which they are not a JSON object, so
/// other text is wrapped in one.
pub(crate) fn arguments_for_server(arguments: &str) -> String {
    match serde_json::from_str::<Value>(arguments) {
        Ok(Value::Object(_)) => arguments.to_owned(),
        _ if arguments.trim().is_empty() => "{}".to_owned(),
        _ => json!({"not_a_json_object": arguments}).to_string(),
    }
}

fn check_listed(model: &str, body: &[u8]) -> Result<(), ProviderError> {
    let list: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(models) = list.get("data").or_else(|| list.get("models")).and_then(Value::as_array) else {
        return Err(ProviderError::invalid_body("something other than a list of models", body));
    };
    let name =
        |model: &Value| ["id", "name", "model"].iter().find_map(|key| Some(model.get(*key)?.as_str()?.to_owned()));
    let known: Vec<String> = models.iter().filter_map(name).collect();
    let is_ours = |name: &String| name == model || name.strip_suffix(":latest") == Some(model);
    // llama.cpp has one model, and answers with it to any name.
    let is_for_any = matches!(&models[..], [one] if one["owned_by"] == "llamacpp");
    if is_for_any || known.iter().any(is_ours) {
        return Ok(());
    }
    let some: Vec<&str> = known.iter().take(5).map(String::as_str).collect();
    let text = format!("the server does not list the model `{model}`; it has {}", quote_text(&some.join(", ")));
    Err(ProviderError::new(ModelErrorKind::NoSuchModel, text))
}

/// A completion, or a chunk of one.
#[derive(Debug, Deserialize)]
struct OpenAiChunk {
    #[serde(default)]
    choices: Option<Vec<OpenAiChoice>>,
    #[serde(default)]
    error: Value,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    model: Value,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    message: Value,
    #[serde(default)]
    detail: Value,
}

#[derive(Debug, Deserialize)]
struct OpenAiChoice {
    #[serde(default)]
    index: Value,
    #[serde(default)]
    delta: Option<OpenAiDelta>,
    #[serde(default)]
    message: Option<OpenAiDelta>,
    #[serde(default)]
    finish_reason: Value,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    error: Value,
}

#[derive(Debug, Default, Deserialize)]
struct OpenAiDelta {
    #[serde(default)]
    content: Value,
    #[serde(default)]
    reasoning_content: Value,
    #[serde(default)]
    reasoning: Value,
    #[serde(default)]
    reasoning_details: Value,
    #[serde(default)]
    extra_content: Value,
    #[serde(default)]
    refusal: Value,
    #[serde(default)]
    tool_calls: Option<Vec<OpenAiToolCall>>,
    #[serde(default)]
    function_call: Option<OpenAiFunction>,
    #[serde(default)]
    usage: Value,
}

#[derive(Debug, Deserialize)]
struct OpenAiToolCall {
    #[serde(default)]
    index: Value,
    #[serde(default)]
    id: Value,
    #[serde(default)]
    function: Option<OpenAiFunction>,
    #[serde(default)]
    extra_content: Value,
}

#[derive(Debug, Default, Deserialize)]
struct OpenAiFunction {
    #[serde(default)]
    name: Value,
    /// Raw JSON, so that the argument check sees duplicate keys.
    #[serde(default)]
    arguments: Option<Box<RawValue>>,
}

/// A completion that is being read.
#[derive(Debug)]
pub(super) struct OpenAiParser {
    assembly: ResponseBuilder,
    requested_model: String,
}

impl OpenAiParser {
    pub(super) fn new(asked: &str, ask: &ModelRequest<'_>) -> Self {
        Self {
            assembly: ResponseBuilder::new(ToolNameMap::new(ask.tools), ask.messages),
            requested_model: asked.to_owned(),
        }
    }
}

impl ResponseParser for OpenAiParser {
    fn on_event(
        &mut self,
        event: &SseEvent,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<StreamProgress, ProviderError> {
        let data = event.data.trim();
        if data == "[DONE]" {
            return Ok(StreamProgress::End);
        }
        if data.is_empty() {
            return Ok(StreamProgress::KeepAlive);
        }
        if event.had_invalid_utf8 {
            self.assembly.warn("invalid UTF-8 was replaced");
        }
        let marked = self.mark_surrogates(data);
        let chunk: OpenAiChunk = match serde_json::from_str(&marked) {
            Ok(chunk) => chunk,
            // The answer is whole already.
            Err(_) if self.is_finished() => return Ok(StreamProgress::KeepAlive),
            Err(_) if event.name == "error" => return Err(ProviderError::from_error_body(&json!(data))),
            Err(error) => return Err(parse_error(&error, data)),
        };
        self.handle_chunk(chunk, event.name == "error", ToolCallDelivery::Streamed, parts)
    }

    fn on_body(&mut self, body: &str, parts: &mut ResponsePartSink<'_>) -> Result<(), ProviderError> {
        let marked = self.mark_surrogates(body);
        let chunk: OpenAiChunk = serde_json::from_str(&marked).map_err(|error| match error.classify() {
            serde_json::error::Category::Eof => ProviderError::new(ModelErrorKind::Cut, "the answer is truncated JSON"),
            _ => ProviderError::invalid_body("JSON that is not a completion", body.as_bytes()),
        })?;
        if chunk.choices.is_none() && chunk.error.is_null() && chunk.object != "error" {
            return Err(match (&chunk.message, &chunk.detail) {
                (Value::Null, Value::Null) => {
                    ProviderError::invalid_body("JSON that is not a completion", body.as_bytes())
                }
                (Value::Null, error) | (error, _) => ProviderError::from_error_body(error),
            });
        }
        self.handle_chunk(chunk, false, ToolCallDelivery::Whole, parts).map(|_| ())
    }

    fn is_finished(&self) -> bool {
        self.assembly.is_finished()
    }

    fn into_response(self) -> Option<ModelResponse> {
        self.assembly.build()
    }
}

/// Form in which calls are delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToolCallDelivery {
    Streamed,
    Whole,
}

fn parse_error(error: &serde_json::Error, data: &str) -> ProviderError {
    let text = format!(
        "the answer ended at an event that cannot be parsed ({error}): {}",
        super::error::quote_bytes(data.as_bytes())
    );
    ProviderError::new(ModelErrorKind::Cut, text)
}

impl OpenAiParser {
    /// JSON that can be read, whatever halves of characters are in it.
    fn mark_surrogates<'a>(&mut self, json: &'a str) -> Cow<'a, str> {
        let marked = mark(json);
        if matches!(marked, Cow::Owned(_)) {
            self.assembly.has_marks();
        }
        marked
    }

    fn handle_chunk(
        &mut self,
        chunk: OpenAiChunk,
        is_error: bool,
        telling: ToolCallDelivery,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<StreamProgress, ProviderError> {
        if !self.is_finished() && (is_error || !chunk.error.is_null() || chunk.object == "error") {
            let error = if chunk.error.is_null() { &chunk.message } else { &chunk.error };
            return Err(ProviderError::from_error_body(error));
        }
        if let Some(model) = chunk.model.as_str() {
            self.assembly.served_by(model, &self.requested_model);
        }
        self.count(&chunk.usage);
        let choices = chunk.choices.unwrap_or_default();
        // Where several have no index, the first is meant.
        let Some(choice) = choices.into_iter().find(|choice| matches!(number(&choice.index), None | Some(0))) else {
            return Ok(StreamProgress::KeepAlive);
        };
        if !choice.error.is_null() && !self.is_finished() {
            return Err(ProviderError::from_error_body(&choice.error));
        }
        self.count(&choice.usage);
        let mut heard = StreamProgress::KeepAlive;
        if let Some(delta) = choice.delta {
            heard = heard.max(self.handle_delta(delta, telling, parts));
        } else if let Some(message) = choice.message {
            // Some servers say everything again at the end of a stream.
            match self.assembly.is_empty() {
                true => heard = heard.max(self.handle_delta(message, ToolCallDelivery::Whole, parts)),
                false => self.assembly.warn("a complete message after its deltas was ignored"),
            }
        }
        if let Some(reason) = choice.finish_reason.as_str().filter(|reason| !reason.is_empty()) {
            if reason == "error" && !self.is_finished() {
                return Err(ProviderError::new(
                    ModelErrorKind::Server,
                    "the server failed while the model was answering",
                ));
            }
            self.assembly.finish(finish(reason));
            heard = StreamProgress::Progress;
        }
        Ok(heard)
    }

    fn handle_delta(
        &mut self,
        delta: OpenAiDelta,
        telling: ToolCallDelivery,
        parts: &mut ResponsePartSink<'_>,
    ) -> StreamProgress {
        self.count(&delta.usage);
        let mut heard = StreamProgress::KeepAlive;
        let reasoning = [&delta.reasoning_content, &delta.reasoning];
        for (name, value) in [
            ("reasoning_content", &delta.reasoning_content),
            ("reasoning", &delta.reasoning),
            ("reasoning_details", &delta.reasoning_details),
            ("extra_content", &delta.extra_content),
        ] {
            self.assembly.state_field(name, value);
        }
        if let Some(text) = reasoning.iter().find_map(|text| text.as_str().filter(|text| !text.is_empty())) {
            self.assembly.reasoning(text, parts);
            heard = StreamProgress::Progress;
        }
        heard = heard.max(self.content(&delta.content, parts));
        if let Some(text) = delta.refusal.as_str().filter(|text| !text.is_empty()) {
            self.assembly.refusal(text);
            heard = StreamProgress::Progress;
        }
        if let Some(call) = delta.function_call {
            heard = StreamProgress::Progress;
            self.assembly.call(CallDelta { format: ToolCallFormat::Legacy, ..call.piece() }, parts);
        }
        for call in delta.tool_calls.unwrap_or_default() {
            heard = StreamProgress::Progress;
            let piece = CallDelta {
                index: number(&call.index),
                id: call.id.as_str().filter(|id| !id.is_empty()).map(str::to_owned),
                extra: Some(call.extra_content).filter(|extra| !extra.is_null()),
                ..call.function.unwrap_or_default().piece()
            };
            match telling {
                ToolCallDelivery::Streamed => self.assembly.call(piece, parts),
                ToolCallDelivery::Whole => self.assembly.whole_call(piece, parts),
            }
        }
        heard
    }

    /// Text, or a list of parts.
    fn content(&mut self, content: &Value, parts: &mut ResponsePartSink<'_>) -> StreamProgress {
        match content {
            Value::String(text) if !text.is_empty() => self.assembly.text(text, parts),
            Value::Array(pieces) if !pieces.is_empty() => {
                for piece in pieces {
                    match (piece["type"].as_str(), &piece["text"], &piece["thinking"]) {
                        (Some("text") | None, Value::String(text), _) => self.assembly.text(text, parts),
                        (_, _, Value::String(text)) => self.assembly.reasoning(text, parts),
                        (_, _, Value::Array(thoughts)) => {
                            for text in thoughts.iter().filter_map(|thought| thought["text"].as_str()) {
                                self.assembly.reasoning(text, parts);
                            }
                        }
                        _ => self.assembly.warn("content that is not text was ignored"),
                    }
                }
            }
            _ => return StreamProgress::KeepAlive,
        }
        StreamProgress::Progress
    }

    fn count(&mut self, usage: &Value) {
        if let Some(usage) = read_usage(usage) {
            self.assembly.usage(usage);
        }
    }
}

impl OpenAiFunction {
    fn piece(self) -> CallDelta {
        let arguments = self.arguments.and_then(|raw| match raw.get() {
            "null" => None,
            text if text.starts_with('"') => serde_json::from_str(text).ok(),
            text => Some(text.to_owned()),
        });
        CallDelta { name: self.name.as_str().map(str::to_owned), arguments, ..CallDelta::default() }
    }
}

/// A number that a server uses as an identifier. An invalid one counts as missing.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn finish(reason: &str) -> FinishReason {
    match reason {
        "stop" | "eos" | "end_turn" => FinishReason::Stop,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::Calls,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" => FinishReason::Filter,
        "refusal" => FinishReason::Refusal,
        other => FinishReason::Other(quote_text(other)),
    }
}

/// Nothing where there is no number in it.
fn read_usage(usage: &Value) -> Option<TokenUsage> {
    let pick = |names: &[&str]| names.iter().find_map(|name| count(usage.pointer(name)?));
    let input = pick(&["/prompt_tokens", "/input_tokens"]);
    let output = pick(&["/completion_tokens", "/output_tokens"]);
    let total = pick(&["/total_tokens"]);
    if input.is_none() && output.is_none() && total.is_none() {
        return None;
    }
    let (input, output) = (input.unwrap_or_default(), output.unwrap_or_default());
    Some(TokenUsage {
        input,
        output,
        total: total.unwrap_or_default().max(input.saturating_add(output)),
        reasoning: pick(&["/completion_tokens_details/reasoning_tokens", "/output_tokens_details/reasoning_tokens"])
            .unwrap_or_default(),
        cache_read: pick(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/prompt_cache_hit_tokens",
        ])
        .unwrap_or_default(),
        cache_write: pick(&["/prompt_tokens_details/cache_write_tokens"]).unwrap_or_default(),
    })
}

/// A count of tokens. Negative numbers become 0, and larger ones saturate.
pub(crate) fn count(value: &Value) -> Option<u64> {
    let number = value.as_number()?;
    // A cast from a float saturates, and a value that is not a number becomes `None`.
    number.as_u64().or_else(|| number.as_f64().map(|number| number as u64))
}
