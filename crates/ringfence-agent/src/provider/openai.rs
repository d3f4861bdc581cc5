//! Chat completions, as OpenAI and everybody who is compatible with it speaks them.
//!
//! Strict about what is done, tolerant about how it is written: a field may be missing, null, or of another type than it
//! should be, and only what no server means is an error. A server that was asked for a stream and sends the whole, or the
//! other way round, is understood.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::assemble::{Assembly, Form, Piece};
use super::fault::{Fault, shown};
use super::http::{Client, Question};
use super::intake::{Heard, Wire};
use super::names::Names;
use super::optional::OptionalFields;
use super::sse::Event;
use super::surrogates::mark;
use super::{Provider, Secret};
use crate::message::{Message, RequestedCall};
use crate::model::{Answer, Answering, Ask, Finish, Model, ModelError, Parts, Trouble, Usage};

/// A model behind `POST …/chat/completions`.
pub(crate) struct OpenAi {
    client: Client,
    model: String,
    stream: bool,
    optional: OptionalFields,
}

/// What a server may refuse, and an answer comes without.
const OPTIONAL: [&str; 8] = [
    "stream_options",
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_content",
    "reasoning_details",
    "reasoning",
    "extra_content",
];

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAi").field("at", &self.client.to_string()).field("model", &self.model).finish()
    }
}

impl OpenAi {
    pub(crate) fn open(provider: Provider) -> Result<Self, ModelError> {
        let bearer = provider.key.as_ref().map(|key| Secret::new(format!("Bearer {}", key.reveal())));
        let headers: Vec<(&str, &Secret)> = bearer.iter().map(|value| ("authorization", value)).collect();
        let client = Client::open(&provider, &headers)?;
        Ok(Self { client, model: provider.model, stream: provider.stream, optional: OptionalFields::default() })
    }

    fn body(&self, ask: &Ask<'_>, names: &Names) -> Value {
        let mut messages = Vec::new();
        if !ask.system.is_empty() {
            messages.push(json!({"role": "system", "content": ask.system}));
        }
        messages.extend(ask.messages.iter().filter_map(|message| self.said(message, names)));
        let mut body = json!({"model": self.model, "messages": messages, "stream": self.stream});
        if self.stream && self.optional.takes("stream_options") {
            body["stream_options"] = json!({"include_usage": true});
        }
        if !ask.tools.is_empty() {
            let tool = |tool: &crate::model::Offered| {
                let function = json!({
                    "name": names.to_wire(&tool.name), "description": tool.description, "parameters": tool.parameters,
                });
                json!({"type": "function", "function": function})
            };
            body["tools"] = ask.tools.iter().map(tool).collect();
        }
        if let Some(temperature) = ask.temperature.filter(|_| self.optional.takes("temperature")) {
            body["temperature"] = json!(temperature);
        }
        if let Some(most) = ask.max_tokens {
            // OpenAI's own newer models refuse the name that all others know.
            let mut names = ["max_tokens", "max_completion_tokens"];
            if self.client.host() == "api.openai.com" {
                names.reverse();
            }
            if let Some(name) = names.into_iter().find(|name| self.optional.takes(name)) {
                body[name] = json!(most);
            }
        }
        body
    }

    fn said(&self, message: &Message, names: &Names) -> Option<Value> {
        Some(match message {
            Message::User { text } => json!({"role": "user", "content": text}),
            Message::Assistant { text, calls, .. } if text.is_empty() && calls.is_empty() => return None,
            Message::Assistant { text, calls, .. } if calls.is_empty() => json!({"role": "assistant", "content": text}),
            Message::Assistant { text, calls, reasoning } => {
                let call = |call: &RequestedCall| {
                    let function = json!({"name": names.to_wire(&call.name), "arguments": sendable(&call.arguments)});
                    let mut made = json!({"id": call.id, "type": "function", "function": function});
                    let extra = reasoning.calls.get(&call.id).filter(|_| self.optional.takes("extra_content"));
                    if let Some(extra) = extra {
                        made["extra_content"] = extra.clone();
                    }
                    made
                };
                let calls: Vec<Value> = calls.iter().map(call).collect();
                let text = if text.is_empty() { Value::Null } else { json!(text) };
                let mut said = json!({"role": "assistant", "content": text, "tool_calls": calls});
                for (name, value) in reasoning.fields.iter().filter(|(name, _)| self.optional.takes(name)) {
                    said[name] = value.clone();
                }
                said
            }
            Message::Tool { call_id, text, .. } => json!({"role": "tool", "tool_call_id": call_id, "content": text}),
        })
    }
}

impl Model for OpenAi {
    fn name(&self) -> &str {
        &self.model
    }

    fn answer<'a>(&'a self, ask: Ask<'a>, parts: &'a mut Parts<'_>) -> Answering<'a, Answer> {
        let names = Names::of(ask.tools);
        let make = move || (self.body(&ask, &names), Completion::of(&self.model, &ask));
        Box::pin(async move { self.client.ask("/chat/completions", (&self.optional, &OPTIONAL), make, parts).await })
    }

    /// Asks for the list of models. A server that has one and does not list ours does not know it.
    fn health(&self) -> Answering<'_, ()> {
        Box::pin(async {
            let question = Question::get("/models");
            let known = |body: &[u8]| lists(&self.model, body);
            self.client.check(question, known).await
        })
    }
}

/// Arguments of an earlier call as a server takes them. Some fail on a history in which they are no JSON object, so what
/// the model wrote then is shown to it inside one.
pub(crate) fn sendable(arguments: &str) -> String {
    match serde_json::from_str::<Value>(arguments) {
        Ok(Value::Object(_)) => arguments.to_owned(),
        _ if arguments.trim().is_empty() => "{}".to_owned(),
        _ => json!({"not_a_json_object": arguments}).to_string(),
    }
}

fn lists(model: &str, body: &[u8]) -> Result<(), Fault> {
    let list: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(models) = list.get("data").or_else(|| list.get("models")).and_then(Value::as_array) else {
        return Err(Fault::wrong_body("something that is no list of models", body));
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
    let text = format!("the server does not list the model `{model}`; it has {}", shown(&some.join(", ")));
    Err(Fault::new(Trouble::NoSuchModel, text))
}

/// A completion, or a chunk of one.
#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
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
struct Choice {
    #[serde(default)]
    index: Value,
    #[serde(default)]
    delta: Option<Said>,
    #[serde(default)]
    message: Option<Said>,
    #[serde(default)]
    finish_reason: Value,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    error: Value,
}

#[derive(Debug, Default, Deserialize)]
struct Said {
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
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    function_call: Option<Function>,
    #[serde(default)]
    usage: Value,
}

#[derive(Debug, Deserialize)]
struct ToolCall {
    #[serde(default)]
    index: Value,
    #[serde(default)]
    id: Value,
    #[serde(default)]
    function: Option<Function>,
    #[serde(default)]
    extra_content: Value,
}

#[derive(Debug, Default, Deserialize)]
struct Function {
    #[serde(default)]
    name: Value,
    /// As it stands, so that whoever checks it sees a key that stands twice.
    #[serde(default)]
    arguments: Option<Box<RawValue>>,
}

/// A completion that is being read.
#[derive(Debug)]
pub(super) struct Completion {
    assembly: Assembly,
    asked: String,
}

impl Completion {
    pub(super) fn of(asked: &str, ask: &Ask<'_>) -> Self {
        Self { assembly: Assembly::new(Names::of(ask.tools), ask.messages), asked: asked.to_owned() }
    }
}

impl Wire for Completion {
    fn event(&mut self, event: &Event, parts: &mut Parts<'_>) -> Result<Heard, Fault> {
        let data = event.data.trim();
        if data == "[DONE]" {
            return Ok(Heard::End);
        }
        if data.is_empty() {
            return Ok(Heard::Life);
        }
        if event.mended {
            self.assembly.oddity("bytes that are no UTF-8 were replaced");
        }
        let marked = self.marked(data);
        let chunk: Chunk = match serde_json::from_str(&marked) {
            Ok(chunk) => chunk,
            // The answer is whole already.
            Err(_) if self.is_finished() => return Ok(Heard::Life),
            Err(_) if event.name == "error" => return Err(Fault::of_error(&json!(data))),
            Err(error) => return Err(broken(&error, data)),
        };
        self.take(chunk, event.name == "error", Telling::Pieces, parts)
    }

    fn whole(&mut self, body: &str, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let marked = self.marked(body);
        let chunk: Chunk = serde_json::from_str(&marked).map_err(|error| match error.classify() {
            serde_json::error::Category::Eof => Fault::new(Trouble::Cut, "the answer is JSON that was cut"),
            _ => Fault::wrong_body("JSON that is no completion", body.as_bytes()),
        })?;
        if chunk.choices.is_none() && chunk.error.is_null() && chunk.object != "error" {
            return Err(match (&chunk.message, &chunk.detail) {
                (Value::Null, Value::Null) => Fault::wrong_body("JSON that is no completion", body.as_bytes()),
                (Value::Null, said) | (said, _) => Fault::of_error(said),
            });
        }
        self.take(chunk, false, Telling::Whole, parts).map(|_| ())
    }

    fn is_finished(&self) -> bool {
        self.assembly.is_finished()
    }

    fn answer(self) -> Option<Answer> {
        self.assembly.answer()
    }
}

/// How calls are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    Pieces,
    Whole,
}

fn broken(error: &serde_json::Error, data: &str) -> Fault {
    let text = format!(
        "the answer broke off at an event that cannot be read ({error}): {}",
        super::fault::quoted(data.as_bytes())
    );
    Fault::new(Trouble::Cut, text)
}

impl Completion {
    /// JSON that can be read, whatever halves of characters are in it.
    fn marked<'a>(&mut self, json: &'a str) -> Cow<'a, str> {
        let marked = mark(json);
        if matches!(marked, Cow::Owned(_)) {
            self.assembly.has_marks();
        }
        marked
    }

    fn take(&mut self, chunk: Chunk, is_error: bool, telling: Telling, parts: &mut Parts<'_>) -> Result<Heard, Fault> {
        if !self.is_finished() && (is_error || !chunk.error.is_null() || chunk.object == "error") {
            let error = if chunk.error.is_null() { &chunk.message } else { &chunk.error };
            return Err(Fault::of_error(error));
        }
        if let Some(model) = chunk.model.as_str() {
            self.assembly.served_by(model, &self.asked);
        }
        self.count(&chunk.usage);
        let choices = chunk.choices.unwrap_or_default();
        // Where several have no index, the first is meant.
        let Some(choice) = choices.into_iter().find(|choice| matches!(number(&choice.index), None | Some(0))) else {
            return Ok(Heard::Life);
        };
        if !choice.error.is_null() && !self.is_finished() {
            return Err(Fault::of_error(&choice.error));
        }
        self.count(&choice.usage);
        let mut heard = Heard::Life;
        if let Some(delta) = choice.delta {
            heard = heard.max(self.hear(delta, telling, parts));
        } else if let Some(message) = choice.message {
            // Some servers say everything again at the end of a stream.
            match self.assembly.is_empty() {
                true => heard = heard.max(self.hear(message, Telling::Whole, parts)),
                false => self.assembly.oddity("a whole message after its pieces was ignored"),
            }
        }
        if let Some(reason) = choice.finish_reason.as_str().filter(|reason| !reason.is_empty()) {
            if reason == "error" && !self.is_finished() {
                return Err(Fault::new(Trouble::Server, "the server failed while the model answered"));
            }
            self.assembly.finish(finish(reason));
            heard = Heard::Progress;
        }
        Ok(heard)
    }

    fn hear(&mut self, said: Said, telling: Telling, parts: &mut Parts<'_>) -> Heard {
        self.count(&said.usage);
        let mut heard = Heard::Life;
        let reasoning = [&said.reasoning_content, &said.reasoning];
        for (name, value) in [
            ("reasoning_content", &said.reasoning_content),
            ("reasoning", &said.reasoning),
            ("reasoning_details", &said.reasoning_details),
            ("extra_content", &said.extra_content),
        ] {
            self.assembly.state_field(name, value);
        }
        if let Some(text) = reasoning.iter().find_map(|text| text.as_str().filter(|text| !text.is_empty())) {
            self.assembly.reasoning(text, parts);
            heard = Heard::Progress;
        }
        heard = heard.max(self.content(&said.content, parts));
        if let Some(text) = said.refusal.as_str().filter(|text| !text.is_empty()) {
            self.assembly.refusal(text);
            heard = Heard::Progress;
        }
        if let Some(call) = said.function_call {
            heard = Heard::Progress;
            self.assembly.call(Piece { form: Form::Old, ..call.piece() }, parts);
        }
        for call in said.tool_calls.unwrap_or_default() {
            heard = Heard::Progress;
            let piece = Piece {
                index: number(&call.index),
                id: call.id.as_str().filter(|id| !id.is_empty()).map(str::to_owned),
                extra: Some(call.extra_content).filter(|extra| !extra.is_null()),
                ..call.function.unwrap_or_default().piece()
            };
            match telling {
                Telling::Pieces => self.assembly.call(piece, parts),
                Telling::Whole => self.assembly.whole_call(piece, parts),
            }
        }
        heard
    }

    /// Text, or a list of parts.
    fn content(&mut self, content: &Value, parts: &mut Parts<'_>) -> Heard {
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
                        _ => self.assembly.oddity("content that is no text was ignored"),
                    }
                }
            }
            _ => return Heard::Life,
        }
        Heard::Progress
    }

    fn count(&mut self, usage: &Value) {
        if let Some(usage) = read_usage(usage) {
            self.assembly.usage(usage);
        }
    }
}

impl Function {
    fn piece(self) -> Piece {
        let arguments = self.arguments.and_then(|raw| match raw.get() {
            "null" => None,
            text if text.starts_with('"') => serde_json::from_str(text).ok(),
            text => Some(text.to_owned()),
        });
        Piece { name: self.name.as_str().map(str::to_owned), arguments, ..Piece::default() }
    }
}

/// A number that a server uses as a name. One that is none is as good as missing.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn finish(reason: &str) -> Finish {
    match reason {
        "stop" | "eos" | "end_turn" => Finish::Stop,
        "tool_calls" | "function_call" | "tool_use" => Finish::Calls,
        "length" | "max_tokens" | "model_length" => Finish::Length,
        "content_filter" => Finish::Filter,
        "refusal" => Finish::Refusal,
        other => Finish::Other(shown(other)),
    }
}

/// Nothing where there is no number in it.
fn read_usage(usage: &Value) -> Option<Usage> {
    let pick = |names: &[&str]| names.iter().find_map(|name| count(usage.pointer(name)?));
    let input = pick(&["/prompt_tokens", "/input_tokens"]);
    let output = pick(&["/completion_tokens", "/output_tokens"]);
    let total = pick(&["/total_tokens"]);
    if input.is_none() && output.is_none() && total.is_none() {
        return None;
    }
    let (input, output) = (input.unwrap_or_default(), output.unwrap_or_default());
    Some(Usage {
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

/// A count of tokens. What is below nothing is nothing, and what is beyond counting is as much as can be counted.
pub(crate) fn count(value: &Value) -> Option<u64> {
    let number = value.as_number()?;
    // A cast from a float saturates, and what is no number becomes nothing.
    number.as_u64().or_else(|| number.as_f64().map(|number| number as u64))
}
