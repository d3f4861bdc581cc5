//! Messages, as Anthropic's interface has them.
//!
//! An answer is a list of blocks: text, thinking, and calls. It is whole once the reason for stopping was said.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::assemble::{Assembly, MOST_CALLS, Piece};
use super::fault::{Fault, quoted, shown};
use super::http::{Client, Question};
use super::intake::{Heard, Wire};
use super::names::Names;
use super::openai::{count, sendable};
use super::optional::OptionalFields;
use super::sse::Event;
use super::surrogates::mark;
use super::{Provider, Secret};
use crate::message::{Message, RequestedCall};
use crate::model::{Answer, Answering, Ask, Finish, Model, ModelError, Offered, Parts, Trouble, Usage};

/// The version of the interface that is spoken here.
const VERSION: &str = "2023-06-01";

/// The interface wants a bound on every answer.
const MAX_TOKENS: u64 = 8192;

/// A model behind `POST …/v1/messages`.
pub(crate) struct Anthropic {
    client: Client,
    model: String,
    stream: bool,
    optional: OptionalFields,
}

/// What a server may refuse, and an answer comes without. A signature that it does not know is one of another server.
const OPTIONAL: [&str; 5] = ["temperature", "cache_control", "signature", "thinking", "redacted_thinking"];

impl fmt::Debug for Anthropic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anthropic").field("at", &self.client.to_string()).field("model", &self.model).finish()
    }
}

impl Anthropic {
    pub(crate) fn open(provider: Provider) -> Result<Self, ModelError> {
        let version = Secret::new(VERSION);
        let mut headers = vec![("anthropic-version", &version)];
        headers.extend(provider.key.as_ref().map(|key| ("x-api-key", key)));
        let client = Client::open(&provider, &headers)?;
        Ok(Self { client, model: provider.model, stream: provider.stream, optional: OptionalFields::default() })
    }

    fn body(&self, ask: &Ask<'_>, names: &Names) -> Value {
        let most = ask.max_tokens.unwrap_or(MAX_TOKENS);
        let mut body = json!({
            "model": self.model, "max_tokens": most, "messages": self.turns(ask.messages, names), "stream": self.stream,
        });
        if !ask.system.trim().is_empty() {
            body["system"] = json!([{"type": "text", "text": ask.system}]);
            self.cache(&mut body["system"][0]);
        }
        if !ask.tools.is_empty() {
            let tool = |tool: &Offered| {
                json!({
                    "name": names.to_wire(&tool.name),
                    "description": tool.description,
                    "input_schema": tool.parameters,
                })
            };
            body["tools"] = ask.tools.iter().map(tool).collect();
        }
        if let Some(temperature) = ask.temperature.filter(|_| self.optional.takes("temperature")) {
            body["temperature"] = json!(temperature);
        }
        body
    }

    /// Has the server keep what was said up to this block, for the next question.
    fn cache(&self, block: &mut Value) {
        if self.optional.takes("cache_control") {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
    }

    /// The history as turns: results belong to the turn of the user, and nothing empty is sent.
    fn turns(&self, messages: &[Message], names: &Names) -> Vec<Value> {
        let with_state = ["signature", "thinking", "redacted_thinking"].iter().all(|name| self.optional.takes(name));
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

impl Model for Anthropic {
    fn name(&self) -> &str {
        &self.model
    }

    fn answer<'a>(&'a self, ask: Ask<'a>, parts: &'a mut Parts<'_>) -> Answering<'a, Answer> {
        let names = Names::of(ask.tools);
        let make = move || (self.body(&ask, &names), Reading::of(&self.model, &ask));
        let path = self.path("/messages");
        Box::pin(async move { self.client.ask(&path, (&self.optional, &OPTIONAL), make, parts).await })
    }

    /// Asks what the model is, which costs nothing.
    fn health(&self) -> Answering<'_, ()> {
        Box::pin(async {
            let question = Question::get(&self.path(&format!("/models/{}", self.model)));
            let known = |body: &[u8]| match serde_json::from_slice::<Value>(body) {
                Ok(model) if model.get("id").is_some() => Ok(()),
                _ => Err(Fault::wrong_body("something that is no model", body)),
            };
            self.client.check(question, known).await
        })
    }
}

fn blocks(message: &Message, names: &Names, with_state: bool) -> (&'static str, Vec<Value>) {
    let text = |text: &str| (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text.trim_end()}));
    match message {
        Message::User { text: said } => ("user", text(said).into_iter().collect()),
        Message::Assistant { text: said, calls, reasoning } => {
            let call = |call: &RequestedCall| {
                let input: Value = serde_json::from_str(&sendable(&call.arguments)).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": legal_id(&call.id), "name": names.to_wire(&call.name), "input": input})
            };
            // What it thought comes before what it did, and belongs to that.
            let thoughts = reasoning.blocks.iter().filter(|_| with_state && !calls.is_empty()).cloned();
            ("assistant", thoughts.chain(text(said)).chain(calls.iter().map(call)).collect())
        }
        Message::Tool { call_id, text, is_error, .. } => {
            let id = legal_id(call_id);
            ("user", vec![json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": is_error})])
        }
    }
}

/// An id of another provider, as this one takes it: different ids stay different.
fn legal_id(id: &str) -> String {
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
struct Told {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    message: Option<Box<Told>>,
    #[serde(default)]
    index: Option<u64>,
    #[serde(default)]
    content_block: Option<Block>,
    #[serde(default)]
    delta: Option<Block>,
    #[serde(default)]
    content: Option<Vec<Block>>,
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
struct Block {
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
    /// As it stands, so that whoever checks it sees a key that stands twice.
    #[serde(default)]
    input: Option<Box<RawValue>>,
    #[serde(default)]
    partial_json: Value,
    #[serde(default)]
    stop_reason: Value,
}

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct Reading {
    assembly: Assembly,
    asked: String,
    /// Calls that began: their index, and the arguments that stood in the block itself until others come.
    calls: Vec<(u64, Option<String>)>,
    /// What it thinks just now, and how that is signed.
    thought: Option<(String, String)>,
    usage: Usage,
}

impl Reading {
    pub(super) fn of(asked: &str, ask: &Ask<'_>) -> Self {
        let assembly = Assembly::new(Names::of(ask.tools), ask.messages);
        Self { assembly, asked: asked.to_owned(), calls: Vec::new(), thought: None, usage: Usage::default() }
    }
}

impl Wire for Reading {
    fn event(&mut self, event: &Event, parts: &mut Parts<'_>) -> Result<Heard, Fault> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(Heard::Life);
        }
        if event.mended {
            self.assembly.oddity("bytes that are no UTF-8 were replaced");
        }
        let marked = self.marked(data);
        let told: Told = match serde_json::from_str(&marked) {
            Ok(told) => told,
            Err(_) if self.is_finished() => return Ok(Heard::Life),
            Err(error) => {
                let head = quoted(data.as_bytes());
                let text = format!("the answer broke off at an event that cannot be read ({error}): {head}");
                return Err(Fault::new(Trouble::Cut, text));
            }
        };
        let kind = if told.kind.is_empty() { event.name.clone() } else { told.kind.clone() };
        self.take(&kind, told, parts)
    }

    fn whole(&mut self, body: &str, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let marked = self.marked(body);
        let told: Told = serde_json::from_str(&marked).map_err(|error| match error.classify() {
            serde_json::error::Category::Eof => Fault::new(Trouble::Cut, "the answer is JSON that was cut"),
            _ => Fault::wrong_body("JSON that is no message", body.as_bytes()),
        })?;
        if told.kind == "error" || !told.error.is_null() {
            return Err(Fault::of_error(&told.error));
        }
        let Some(blocks) = told.content else {
            return Err(Fault::wrong_body("JSON that is no message", body.as_bytes()));
        };
        self.name_and_count(&told.model, &told.usage);
        for (index, block) in (0..).zip(blocks) {
            self.begin(index, block, parts);
        }
        self.stop(&told.stop_reason, parts);
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.assembly.is_finished()
    }

    fn answer(self) -> Option<Answer> {
        self.assembly.answer()
    }
}

impl Reading {
    fn take(&mut self, kind: &str, told: Told, parts: &mut Parts<'_>) -> Result<Heard, Fault> {
        match kind {
            "ping" => return Ok(Heard::Life),
            "error" if !self.is_finished() => return Err(Fault::of_error(&told.error)),
            "message_stop" if self.is_finished() => return Ok(Heard::End),
            "message_start" => {
                if let Some(message) = told.message {
                    self.name_and_count(&message.model, &message.usage);
                }
            }
            "content_block_start" => {
                if let (Some(index), Some(block)) = (told.index, told.content_block) {
                    self.begin(index, block, parts);
                }
            }
            "content_block_delta" => {
                if let (Some(index), Some(piece)) = (told.index, told.delta) {
                    self.go_on(index, &piece, parts);
                }
            }
            "message_delta" => {
                self.name_and_count(&told.model, &told.usage);
                if let Some(delta) = told.delta {
                    self.stop(&delta.stop_reason, parts);
                }
            }
            // The end of a block, or something newer.
            _ => {}
        }
        Ok(Heard::Progress)
    }

    /// JSON that can be read, whatever halves of characters are in it.
    fn marked<'a>(&mut self, json: &'a str) -> Cow<'a, str> {
        let marked = mark(json);
        if matches!(marked, Cow::Owned(_)) {
            self.assembly.has_marks();
        }
        marked
    }

    /// What it thought is whole. Without a signature nobody wants it back.
    fn end_thought(&mut self) {
        if let Some((thinking, signature)) = self.thought.take().filter(|(_, signature)| !signature.is_empty()) {
            self.assembly.state_block(json!({"type": "thinking", "thinking": thinking, "signature": signature}));
        }
    }

    fn begin(&mut self, index: u64, block: Block, parts: &mut Parts<'_>) {
        self.end_thought();
        match block.kind.as_str() {
            "text" => self.assembly.text(block.text.as_str().unwrap_or_default(), parts),
            "thinking" => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                self.thought = Some((text(&block.thinking), text(&block.signature)));
                self.assembly.reasoning(&text(&block.thinking), parts);
            }
            "redacted_thinking" => {
                self.assembly.state_block(json!({"type": "redacted_thinking", "data": block.data}));
            }
            "tool_use" => {
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let piece =
                    Piece { index: Some(index), id: text(&block.id), name: text(&block.name), ..Piece::default() };
                self.assembly.whole_call(piece, parts);
                // Pieces of calls beyond the bound belong to none.
                if self.calls.len() == MOST_CALLS {
                    return;
                }
                let input = block.input.map(|raw| raw.get().to_owned()).filter(|input| input != "null");
                self.calls.push((index, input));
            }
            other => self.assembly.oddity(format!("a block of the kind `{}` was ignored", shown(other))),
        }
    }

    fn go_on(&mut self, index: u64, piece: &Block, parts: &mut Parts<'_>) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match piece.kind.as_str() {
            "text_delta" => self.assembly.text(&text(&piece.text), parts),
            "thinking_delta" => {
                if let Some((thinking, _)) = &mut self.thought {
                    thinking.push_str(&text(&piece.thinking));
                }
                self.assembly.reasoning(&text(&piece.thinking), parts);
            }
            "signature_delta" => {
                if let Some((_, signature)) = &mut self.thought {
                    signature.push_str(&text(&piece.signature));
                }
            }
            "input_json_delta" => {
                let arguments = text(&piece.partial_json);
                let Some((_, input)) = self.calls.iter_mut().rfind(|(begun, _)| *begun == index) else {
                    self.assembly.oddity("arguments of a call that never began were ignored");
                    return;
                };
                if !arguments.is_empty() {
                    *input = None;
                    self.assembly
                        .call(Piece { index: Some(index), arguments: Some(arguments), ..Piece::default() }, parts);
                }
            }
            _ => {}
        }
    }

    fn stop(&mut self, reason: &Value, parts: &mut Parts<'_>) {
        let Some(reason) = reason.as_str().filter(|reason| !reason.is_empty()) else { return };
        self.end_thought();
        for (index, input) in std::mem::take(&mut self.calls) {
            if input.is_some() {
                self.assembly.call(Piece { index: Some(index), arguments: input, ..Piece::default() }, parts);
            }
        }
        self.assembly.finish(match reason {
            "end_turn" | "stop_sequence" => Finish::Stop,
            "tool_use" => Finish::Calls,
            "max_tokens" | "model_context_window_exceeded" => Finish::Length,
            "refusal" => Finish::Refusal,
            other => Finish::Other(shown(other)),
        });
    }

    /// The counts of an answer come in two parts, and each says what it knows.
    fn name_and_count(&mut self, model: &Value, usage: &Value) {
        if let Some(model) = model.as_str() {
            self.assembly.served_by(model, &self.asked);
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
        // What came from a cache is input too.
        let cached = self.usage.cache_read.saturating_add(self.usage.cache_write);
        self.usage.input = self.usage.input.max(fresh.unwrap_or_default().saturating_add(cached));
        self.usage.output = self.usage.output.max(output.unwrap_or_default());
        self.usage.total = self.usage.input.saturating_add(self.usage.output);
        self.assembly.usage(self.usage);
    }
}
