//! Anthropic Messages API.
//!
//! A response is a list of blocks: text, thinking, and calls. It is complete once it has a stop reason.

use std::borrow::Cow;
use std::fmt;

use ringfence_net::SseEvent;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::body_reader::{ResponseParser, StreamProgress};
use super::error::{ProviderError, quote_bytes, quote_text};
use super::http::{ProviderClient, ProviderHttpRequest};
use super::openai::{arguments_for_server, count};
use super::optional_fields::RejectedRequestFields;
use super::response_builder::{CallDelta, MOST_CALLS, ResponseBuilder};
use super::surrogates::mark;
use super::tool_names::ToolNameMap;
use super::{ModelProvider, SecretString};
use crate::message::{RequestedCall, TranscriptMessage};
use crate::model::{
    FinishReason, LanguageModel, ModelError, ModelErrorKind, ModelFuture, ModelRequest, ModelResponse,
    ResponsePartSink, TokenUsage, ToolSpec,
};

/// The version of the interface that is spoken here.
const VERSION: &str = "2023-06-01";

/// The interface wants a bound on every answer.
const MAX_TOKENS: u64 = 8192;

/// A model behind `POST …/v1/messages`.
pub(crate) struct AnthropicModel {
    client: ProviderClient,
    model: String,
    stream: bool,
    optional: RejectedRequestFields,
}

/// Fields that a server may refuse, and a response does not need. A signature that it does not know is one of another
/// server.
const OPTIONAL_FIELDS: [&str; 5] = ["temperature", "cache_control", "signature", "thinking", "redacted_thinking"];

impl fmt::Debug for AnthropicModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnthropicModel").field("at", &self.client.to_string()).field("model", &self.model).finish()
    }
}

impl AnthropicModel {
    pub(crate) fn open(provider: ModelProvider) -> Result<Self, ModelError> {
        let version = SecretString::new(VERSION);
        let mut headers = vec![("anthropic-version", &version)];
        headers.extend(provider.key.as_ref().map(|key| ("x-api-key", key)));
        let client = ProviderClient::open(&provider, &headers)?;
        Ok(Self { client, model: provider.model, stream: provider.stream, optional: RejectedRequestFields::default() })
    }

    fn body(&self, ask: &ModelRequest<'_>, names: &ToolNameMap) -> Value {
        let most = ask.max_tokens.unwrap_or(MAX_TOKENS);
        let mut body = json!({
            "model": self.model, "max_tokens": most, "messages": self.turns(ask.messages, names), "stream": self.stream,
        });
        if !ask.system.trim().is_empty() {
            body["system"] = json!([{"type": "text", "text": ask.system}]);
            self.cache(&mut body["system"][0]);
        }
        if !ask.tools.is_empty() {
            let tool = |tool: &ToolSpec| {
                json!({
                    "name": names.to_wire(&tool.name),
                    "description": tool.description,
                    "input_schema": tool.parameters,
                })
            };
            body["tools"] = ask.tools.iter().map(tool).collect();
        }
        if let Some(temperature) = ask.temperature.filter(|_| self.optional.accepts("temperature")) {
            body["temperature"] = json!(temperature);
        }
        body
    }

    /// Marks a block as the end of the prompt cache, for the next request.
    fn cache(&self, block: &mut Value) {
        if self.optional.accepts("cache_control") {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
    }

    /// The history as turns: results belong to the turn of the user, and nothing empty is sent.
    fn turns(&self, messages: &[TranscriptMessage], names: &ToolNameMap) -> Vec<Value> {
        let with_state = ["signature", "thinking", "redacted_thinking"].iter().all(|name| self.optional.accepts(name));
        let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
        for message in messages {
            let (role, blocks) = blocks(message, names, with_state);
            match turns.last_mut() {
                Some((last, all)) if *last == role => all.extend(blocks),
                _ if blocks.is_empty() => {}
                _ => turns.push((role, blocks)),
            }
        }
        if let Some(block) = turns.last_mut().and_then(|(_, blocks)| blocks.last_mut()) {
            self.cache(block);
        }
        turns.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
    }

    /// A base URL is given with the version of the interface, or without.
    fn path(&self, path: &str) -> String {
        if self.client.base().ends_with("/v1") { path.to_owned() } else { format!("/v1{path}") }
    }
}

impl LanguageModel for AnthropicModel {
    fn name(&self) -> &str {
        &self.model
    }

    fn respond<'a>(
        &'a self,
        ask: ModelRequest<'a>,
        parts: &'a mut ResponsePartSink<'_>,
    ) -> ModelFuture<'a, ModelResponse> {
        let names = ToolNameMap::new(ask.tools);
        let make = move || (self.body(&ask, &names), AnthropicParser::new(&self.model, &ask));
        let path = self.path("/messages");
        Box::pin(async move { self.client.request_model(&path, (&self.optional, &OPTIONAL_FIELDS), make, parts).await })
    }

    /// Asks what the model is, which costs nothing.
    fn health(&self) -> ModelFuture<'_, ()> {
        Box::pin(async {
            let question = ProviderHttpRequest::get(&self.path(&format!("/models/{}", self.model)));
            let known = |body: &[u8]| match serde_json::from_slice::<Value>(body) {
                Ok(model) if model.get("id").is_some() => Ok(()),
                _ => Err(ProviderError::invalid_body("something other than a model", body)),
            };
            self.client.check(question, known).await
        })
    }
}

fn blocks(message: &TranscriptMessage, names: &ToolNameMap, with_state: bool) -> (&'static str, Vec<Value>) {
    let text = |text: &str| (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text.trim_end()}));
    match message {
        TranscriptMessage::User { text: message_text } => ("user", text(message_text).into_iter().collect()),
        TranscriptMessage::Assistant { text: message_text, calls, reasoning } => {
            let call = |call: &RequestedCall| {
                let input: Value =
                    serde_json::from_str(&arguments_for_server(&call.arguments)).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": sanitize_id(&call.id), "name": names.to_wire(&call.name), "input": input})
            };
            // Thinking comes before the calls, and belongs to them.
            let thoughts = reasoning.blocks.iter().filter(|_| with_state && !calls.is_empty()).cloned();
            ("assistant", thoughts.chain(text(message_text)).chain(calls.iter().map(call)).collect())
        }
        TranscriptMessage::Tool { call_id, text, is_error, .. } => {
            let id = sanitize_id(call_id);
            ("user", vec![json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": is_error})])
        }
    }
}

/// An id of another provider, as this one takes it: different ids stay different.
fn sanitize_id(id: &str) -> String {
    let mut legal = String::with_capacity(id.len());
    for c in id.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => legal.push(c),
            c => legal.push_str(&format!("_{:x}_", u32::from(c))),
        }
    }
    legal
}

/// An event, or a whole message.
#[derive(Debug, Deserialize)]
struct AnthropicEvent {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    message: Option<Box<AnthropicEvent>>,
    #[serde(default)]
    index: Option<u64>,
    #[serde(default)]
    content_block: Option<AnthropicBlock>,
    #[serde(default)]
    delta: Option<AnthropicBlock>,
    #[serde(default)]
    content: Option<Vec<AnthropicBlock>>,
    #[serde(default)]
    stop_reason: Value,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    model: Value,
    #[serde(default)]
    error: Value,
}

/// A block of an answer, or a piece of one.
#[derive(Debug, Deserialize)]
struct AnthropicBlock {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    text: Value,
    #[serde(default)]
    thinking: Value,
    #[serde(default)]
    signature: Value,
    #[serde(default)]
    data: Value,
    #[serde(default)]
    id: Value,
    #[serde(default)]
    name: Value,
    /// Raw JSON, so that the argument check sees duplicate keys.
    #[serde(default)]
    input: Option<Box<RawValue>>,
    #[serde(default)]
    partial_json: Value,
    #[serde(default)]
    stop_reason: Value,
}

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct AnthropicParser {
    assembly: ResponseBuilder,
    requested_model: String,
    /// Calls that began: their index, and the arguments that stood in the block itself until others come.
    calls: Vec<(u64, Option<String>)>,
    /// The current thinking block, and its signature.
    thinking: Option<(String, String)>,
    usage: TokenUsage,
}

impl AnthropicParser {
    pub(super) fn new(asked: &str, ask: &ModelRequest<'_>) -> Self {
        let assembly = ResponseBuilder::new(ToolNameMap::new(ask.tools), ask.messages);
        Self {
            assembly,
            requested_model: asked.to_owned(),
            calls: Vec::new(),
            thinking: None,
            usage: TokenUsage::default(),
        }
    }
}

impl ResponseParser for AnthropicParser {
    fn on_event(
        &mut self,
        event: &SseEvent,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<StreamProgress, ProviderError> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(StreamProgress::KeepAlive);
        }
        if event.had_invalid_utf8 {
            self.assembly.warn("invalid UTF-8 was replaced");
        }
        let marked = self.mark_surrogates(data);
        let event_body: AnthropicEvent = match serde_json::from_str(&marked) {
            Ok(event_body) => event_body,
            Err(_) if self.is_finished() => return Ok(StreamProgress::KeepAlive),
            Err(error) => {
                let head = quote_bytes(data.as_bytes());
                let text = format!("the answer ended at an event that cannot be parsed ({error}): {head}");
                return Err(ProviderError::new(ModelErrorKind::Cut, text));
            }
        };
        let kind = if event_body.kind.is_empty() { event.name.clone() } else { event_body.kind.clone() };
        self.handle_event(&kind, event_body, parts)
    }

    fn on_body(&mut self, body: &str, parts: &mut ResponsePartSink<'_>) -> Result<(), ProviderError> {
        let marked = self.mark_surrogates(body);
        let event_body: AnthropicEvent = serde_json::from_str(&marked).map_err(|error| match error.classify() {
            serde_json::error::Category::Eof => ProviderError::new(ModelErrorKind::Cut, "the answer is truncated JSON"),
            _ => ProviderError::invalid_body("JSON that is not a message", body.as_bytes()),
        })?;
        if event_body.kind == "error" || !event_body.error.is_null() {
            return Err(ProviderError::from_error_body(&event_body.error));
        }
        let Some(blocks) = event_body.content else {
            return Err(ProviderError::invalid_body("JSON that is not a message", body.as_bytes()));
        };
        self.record_model_and_usage(&event_body.model, &event_body.usage);
        for (index, block) in (0..).zip(blocks) {
            self.start_block(index, block, parts);
        }
        self.stop(&event_body.stop_reason, parts);
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.assembly.is_finished()
    }

    fn into_response(self) -> Option<ModelResponse> {
        self.assembly.build()
    }
}

impl AnthropicParser {
    fn handle_event(
        &mut self,
        kind: &str,
        event_body: AnthropicEvent,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<StreamProgress, ProviderError> {
        match kind {
            "ping" => return Ok(StreamProgress::KeepAlive),
            "error" if !self.is_finished() => return Err(ProviderError::from_error_body(&event_body.error)),
            "message_stop" if self.is_finished() => return Ok(StreamProgress::End),
            "message_start" => {
                if let Some(message) = event_body.message {
                    self.record_model_and_usage(&message.model, &message.usage);
                }
            }
            "content_block_start" => {
                if let (Some(index), Some(block)) = (event_body.index, event_body.content_block) {
                    self.start_block(index, block, parts);
                }
            }
            "content_block_delta" => {
                if let (Some(index), Some(piece)) = (event_body.index, event_body.delta) {
                    self.continue_block(index, &piece, parts);
                }
            }
            "message_delta" => {
                self.record_model_and_usage(&event_body.model, &event_body.usage);
                if let Some(delta) = event_body.delta {
                    self.stop(&delta.stop_reason, parts);
                }
            }
            // The end of a block, or something newer.
            _ => {}
        }
        Ok(StreamProgress::Progress)
    }

    /// JSON that can be read, whatever halves of characters are in it.
    fn mark_surrogates<'a>(&mut self, json: &'a str) -> Cow<'a, str> {
        let marked = mark(json);
        if matches!(marked, Cow::Owned(_)) {
            self.assembly.has_marks();
        }
        marked
    }

    /// Ends the thinking block. Without a signature it is not sent back.
    fn finish_thinking(&mut self) {
        if let Some((thinking, signature)) = self.thinking.take().filter(|(_, signature)| !signature.is_empty()) {
            self.assembly.state_block(json!({"type": "thinking", "thinking": thinking, "signature": signature}));
        }
    }

    fn start_block(&mut self, index: u64, block: AnthropicBlock, parts: &mut ResponsePartSink<'_>) {
        self.finish_thinking();
        match block.kind.as_str() {
            "text" => self.assembly.text(block.text.as_str().unwrap_or_default(), parts),
            "thinking" => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                self.thinking = Some((text(&block.thinking), text(&block.signature)));
                self.assembly.reasoning(&text(&block.thinking), parts);
            }
            "redacted_thinking" => {
                self.assembly.state_block(json!({"type": "redacted_thinking", "data": block.data}));
            }
            "tool_use" => {
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let piece = CallDelta {
                    index: Some(index),
                    id: text(&block.id),
                    name: text(&block.name),
                    ..CallDelta::default()
                };
                self.assembly.whole_call(piece, parts);
                // Pieces of calls beyond the bound belong to none.
                if self.calls.len() == MOST_CALLS {
                    return;
                }
                let input = block.input.map(|raw| raw.get().to_owned()).filter(|input| input != "null");
                self.calls.push((index, input));
            }
            other => self.assembly.warn(format!("a block of the kind `{}` was ignored", quote_text(other))),
        }
    }

    fn continue_block(&mut self, index: u64, piece: &AnthropicBlock, parts: &mut ResponsePartSink<'_>) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match piece.kind.as_str() {
            "text_delta" => self.assembly.text(&text(&piece.text), parts),
            "thinking_delta" => {
                if let Some((thinking, _)) = &mut self.thinking {
                    thinking.push_str(&text(&piece.thinking));
                }
                self.assembly.reasoning(&text(&piece.thinking), parts);
            }
            "signature_delta" => {
                if let Some((_, signature)) = &mut self.thinking {
                    signature.push_str(&text(&piece.signature));
                }
            }
            "input_json_delta" => {
                let arguments = text(&piece.partial_json);
                let Some((_, input)) = self.calls.iter_mut().rfind(|(begun, _)| *begun == index) else {
                    self.assembly.warn("arguments of a call that never started were ignored");
                    return;
                };
                if !arguments.is_empty() {
                    *input = None;
                    self.assembly.call(
                        CallDelta { index: Some(index), arguments: Some(arguments), ..CallDelta::default() },
                        parts,
                    );
                }
            }
            _ => {}
        }
    }

    fn stop(&mut self, reason: &Value, parts: &mut ResponsePartSink<'_>) {
        let Some(reason) = reason.as_str().filter(|reason| !reason.is_empty()) else { return };
        self.finish_thinking();
        for (index, input) in std::mem::take(&mut self.calls) {
            if input.is_some() {
                self.assembly.call(CallDelta { index: Some(index), arguments: input, ..CallDelta::default() }, parts);
            }
        }
        self.assembly.finish(match reason {
            "end_turn" | "stop_sequence" => FinishReason::Stop,
            "tool_use" => FinishReason::Calls,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "refusal" => FinishReason::Refusal,
            other => FinishReason::Other(quote_text(other)),
        });
    }

    /// The counts of an answer come in two parts, and each says what it knows.
    fn record_model_and_usage(&mut self, model: &Value, usage: &Value) {
        if let Some(model) = model.as_str() {
            self.assembly.served_by(model, &self.requested_model);
        }
        let pick = |name: &str| usage.get(name).and_then(count);
        let fresh = pick("input_tokens");
        let (read, write) = (pick("cache_read_input_tokens"), pick("cache_creation_input_tokens"));
        let output = pick("output_tokens");
        if fresh.is_none() && output.is_none() {
            return;
        }
        self.usage.cache_read = self.usage.cache_read.max(read.unwrap_or_default());
        self.usage.cache_write = self.usage.cache_write.max(write.unwrap_or_default());
        // Cached tokens are input too.
        let cached = self.usage.cache_read.saturating_add(self.usage.cache_write);
        self.usage.input = self.usage.input.max(fresh.unwrap_or_default().saturating_add(cached));
        self.usage.output = self.usage.output.max(output.unwrap_or_default());
        self.usage.total = self.usage.input.saturating_add(self.usage.output);
        self.assembly.usage(self.usage);
    }
}
