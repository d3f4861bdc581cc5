//! Response assembly from stream deltas.
//!
//! A server's indexes are compared for equality only: calls are kept in the order in which they began, at most 64, and
//! found again by index or id. Where the call of a delta is ambiguous, the result is a call that cannot be made (no
//! name, or arguments that are not JSON), never one that was not requested.
//!
//! Not here: the meaning of arguments. They stay the text that the model wrote.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use super::error::quote_text;
use super::surrogates::{join, unmark};
use super::tool_names::ToolNameMap;
use crate::message::{RequestedCall, TranscriptMessage};
use crate::model::{FinishReason, ModelResponse, ResponsePart, ResponsePartSink, TokenUsage};

/// Calls of one answer that are kept.
pub(crate) const MOST_CALLS: usize = 64;

/// Oddities that are worth a line in the log.
const MAX_WARNINGS: usize = 32;

/// Longer ids are replaced.
const MAX_ID_BYTES: usize = 128;

/// A part of a call, as far as the server sent it.
#[derive(Debug, Default)]
pub(crate) struct CallDelta {
    pub(crate) index: Option<u64>,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
    /// Extra state of the call for the next request.
    pub(crate) extra: Option<Value>,
    pub(crate) format: ToolCallFormat,
}

/// Format of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolCallFormat {
    #[default]
    Current,
    /// As it was before there were lists of calls. One is taken, and only where there is no other.
    Legacy,
}

/// An answer that is still coming.
#[derive(Debug)]
pub(crate) struct ResponseBuilder {
    names: ToolNameMap,
    /// Ids that the history has already.
    known_ids: HashSet<String>,
    answer: ModelResponse,
    partial_calls: Vec<PartialCall>,
    /// The first call beyond the limit that is still streaming.
    dropping: Option<(Option<u64>, Option<String>)>,
    finish: Option<FinishReason>,
    /// Whether halves of characters are marked in what was heard.
    has_marks: bool,
    /// A first half that waits for its second, in text and in reasoning.
    pending_surrogates: [Option<char>; 2],
}

#[derive(Debug, Default)]
struct PartialCall {
    format: ToolCallFormat,
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    extra: Option<Value>,
    scanner: JsonObjectScanner,
    /// End of the first delta of the arguments, and start of the last.
    first_end: usize,
    last_start: usize,
}

impl ResponseBuilder {
    pub(crate) fn new(names: ToolNameMap, history: &[TranscriptMessage]) -> Self {
        let ids = history.iter().flat_map(|message| match message {
            TranscriptMessage::Assistant { calls, .. } => calls.as_slice(),
            _ => &[],
        });
        let known_ids = ids.map(|call| call.id.clone()).collect();
        let (answer, partial_calls) = (ModelResponse::default(), Vec::new());
        Self {
            names,
            known_ids,
            answer,
            partial_calls,
            dropping: None,
            finish: None,
            has_marks: false,
            pending_surrogates: [None; 2],
        }
    }

    /// Notes that the text has marks of split surrogates.
    pub(crate) fn has_marks(&mut self) {
        self.has_marks = true;
        self.warn("lone surrogates were joined or replaced");
    }

    pub(crate) fn text(&mut self, text: &str, parts: &mut ResponsePartSink<'_>) {
        if self.accepts_more("text", text) {
            let text = if self.has_marks {
                Cow::Owned(join(text, &mut self.pending_surrogates[0]))
            } else {
                Cow::Borrowed(text)
            };
            self.answer.text.push_str(&text);
            parts(ResponsePart::Text(&text));
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str, parts: &mut ResponsePartSink<'_>) {
        if self.accepts_more("reasoning", text) {
            let text = if self.has_marks {
                Cow::Owned(join(text, &mut self.pending_surrogates[1]))
            } else {
                Cow::Borrowed(text)
            };
            self.answer.reasoning.push_str(&text);
            parts(ResponsePart::Reasoning(&text));
        }
    }

    /// Reasoning state of this response, delta by delta: texts and lists grow, and of anything else the last holds.
    pub(crate) fn state_field(&mut self, name: &str, value: &Value) {
        if self.finish.is_some() || value.is_null() {
            return;
        }
        let fields = &mut self.answer.reasoning_state.fields;
        match (fields.get_mut(name), value) {
            (Some(Value::String(known)), Value::String(more)) => known.push_str(more),
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more.iter().cloned()),
            _ => drop(fields.insert(name.to_owned(), value.clone())),
        }
    }

    /// A block that the server wants back with this answer.
    pub(crate) fn state_block(&mut self, block: Value) {
        if self.finish.is_none() {
            self.answer.reasoning_state.blocks.push(block);
        }
    }

    pub(crate) fn refusal(&mut self, text: &str) {
        if self.accepts_more("a refusal", text) {
            self.answer.refusal.get_or_insert_default().push_str(text);
        }
    }

    /// Adds a call that came whole: it is a new one, whatever its index and id are.
    pub(crate) fn whole_call(&mut self, piece: CallDelta, parts: &mut ResponsePartSink<'_>) {
        if self.accepts_more("a call", "call") {
            self.begin(piece, parts);
        }
    }

    /// A piece of a call, new or begun.
    pub(crate) fn call(&mut self, piece: CallDelta, parts: &mut ResponsePartSink<'_>) {
        if !self.accepts_more("a call", "call") {
            return;
        }
        if self.belongs_to_dropped(&piece) {
            return;
        }
        match self.find(&piece) {
            Some(at) => self.add(at, piece, parts),
            None => self.begin(piece, parts),
        }
    }

    /// The first reason holds.
    pub(crate) fn finish(&mut self, finish: FinishReason) {
        self.finish.get_or_insert(finish);
    }

    /// Whether the response is empty so far.
    pub(crate) fn is_empty(&self) -> bool {
        let texts = [&self.answer.text, &self.answer.reasoning];
        texts.iter().all(|text| text.is_empty()) && self.answer.refusal.is_none() && self.partial_calls.is_empty()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Token usage by the server. Decreasing numbers are ignored.
    pub(crate) fn usage(&mut self, now: TokenUsage) {
        let Some(before) = self.answer.usage else {
            self.answer.usage = Some(now);
            return;
        };
        let larger = TokenUsage {
            input: before.input.max(now.input),
            output: before.output.max(now.output),
            total: before.total.max(now.total),
            reasoning: before.reasoning.max(now.reasoning),
            cache_read: before.cache_read.max(now.cache_read),
            cache_write: before.cache_write.max(now.cache_write),
        };
        if larger != now {
            self.warn("the token usage decreased");
        }
        self.answer.usage = Some(larger);
    }

    pub(crate) fn served_by(&mut self, model: &str, asked: &str) {
        if !model.is_empty() && model != asked && self.answer.served_by.is_none() {
            self.answer.served_by = Some(quote_text(model));
        }
    }

    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        let text = text.into();
        if self.answer.warnings.len() < MAX_WARNINGS && !self.answer.warnings.contains(&text) {
            self.answer.warnings.push(text);
        }
    }

    /// The complete response. `None` if the model did not finish.
    pub(crate) fn build(mut self) -> Option<ModelResponse> {
        let finish = self.finish.take()?;
        self.drop_legacy_calls();
        for draft in std::mem::take(&mut self.partial_calls) {
            let id = self.unique_id(draft.id);
            let name = self.names.to_session(&draft.name).to_owned();
            let arguments = if self.has_marks { unmark(&draft.arguments) } else { draft.arguments };
            self.answer.reasoning_state.calls.extend(draft.extra.map(|extra| (id.clone(), extra)));
            self.answer.calls.push(RequestedCall { id, name, arguments });
        }
        let [text, reasoning] = self.pending_surrogates.map(|half| half.map(|_| char::REPLACEMENT_CHARACTER));
        self.answer.text.extend(text);
        self.answer.reasoning.extend(reasoning);
        self.answer.finish = self.reconcile_finish(finish);
        Some(self.answer)
    }

    /// Whether more may come. Deltas after the end are ignored.
    fn accepts_more(&mut self, what: &str, text: &str) -> bool {
        if self.finish.is_some() && !text.is_empty() {
            self.warn(format!("{what} after the end was ignored"));
        }
        self.finish.is_none() && !text.is_empty()
    }

    /// The call that a piece belongs to, where it belongs to one that began.
    fn find(&self, piece: &CallDelta) -> Option<usize> {
        let last = |is_it: &dyn Fn(&PartialCall) -> bool| {
            self.partial_calls.iter().rposition(|draft| draft.format == piece.format && is_it(draft))
        };
        let at = match (piece.index, piece.id.as_deref()) {
            (Some(index), id) => {
                let known = id.and_then(|id| last(&|draft| draft.index == Some(index) && draft.id == id));
                known.or_else(|| last(&|draft| draft.index == Some(index)))
            }
            (None, Some(id)) => last(&|draft| draft.id == id),
            (None, None) => last(&|_| true),
        }?;
        self.partial_calls.get(at).filter(|draft| !draft.starts_other_call(piece)).map(|_| at)
    }

    fn begin(&mut self, piece: CallDelta, parts: &mut ResponsePartSink<'_>) {
        if self.partial_calls.len() == MOST_CALLS {
            self.answer.calls_dropped = self.answer.calls_dropped.saturating_add(1);
            self.dropping = Some((piece.index, piece.id));
            return;
        }
        self.partial_calls.push(PartialCall { format: piece.format, index: piece.index, ..PartialCall::default() });
        self.add(self.partial_calls.len() - 1, piece, parts);
    }

    fn add(&mut self, at: usize, piece: CallDelta, parts: &mut ResponsePartSink<'_>) {
        let Some(draft) = self.partial_calls.get_mut(at) else { return };
        let mut odd = None;
        if let Some(id) = piece.id {
            match draft.id.as_str() {
                "" => draft.id = id,
                known if known != id => odd = Some("a call changed its id"),
                _ => {}
            }
        }
        if let Some(name) = piece.name.filter(|name| !name.is_empty() && *name != draft.name) {
            if draft.name.is_empty() {
                parts(ResponsePart::Call(self.names.to_session(&name)));
            }
            if draft.arguments.is_empty() {
                draft.name.push_str(&name);
            } else {
                odd = Some("a call changed its name");
            }
        }
        if piece.extra.is_some() {
            draft.extra = piece.extra;
        }
        if let Some(text) = piece.arguments.filter(|text| !text.is_empty())
            && !draft.take_arguments(&text)
        {
            odd = Some("a call's arguments came twice");
        }
        if let Some(odd) = odd {
            self.warn(odd);
        }
    }

    /// A piece that goes on with a call that was dropped.
    fn belongs_to_dropped(&self, piece: &CallDelta) -> bool {
        let Some((index, id)) = &self.dropping else { return false };
        let begins = piece.name.as_ref().is_some_and(|name| !name.is_empty());
        match (piece.index, &piece.id) {
            (Some(_), _) => piece.index == *index && (!begins || piece.id.is_none() || piece.id == *id),
            (None, Some(_)) => piece.id == *id,
            (None, None) => !begins,
        }
    }

    fn unique_id(&mut self, id: String) -> String {
        let is_plain = id.len() <= MAX_ID_BYTES && id.chars().all(|c| c.is_ascii_graphic());
        if is_plain && !id.is_empty() && self.known_ids.insert(id.clone()) {
            return id;
        }
        let minted = (1_usize..).map(|number| format!("call_{number}"));
        let fresh = minted.into_iter().find(|fresh| !self.known_ids.contains(fresh)).unwrap_or_default();
        self.known_ids.insert(fresh.clone());
        self.warn(match id.as_str() {
            "" => format!("a call without an id was given the id {fresh}"),
            id => format!("a call with the id {} was given the id {fresh}", quote_text(id)),
        });
        fresh
    }

    /// Where calls come in both formats, keeps those in the current one.
    fn drop_legacy_calls(&mut self) {
        let is_current = |draft: &PartialCall| draft.format == ToolCallFormat::Current;
        if self.partial_calls.iter().any(is_current) && !self.partial_calls.iter().all(is_current) {
            self.partial_calls.retain(is_current);
            self.warn("`function_call` beside `tool_calls` was ignored");
        }
    }

    /// The finish reason, reconciled with the contents.
    fn reconcile_finish(&mut self, finish: FinishReason) -> FinishReason {
        let has_calls = !self.answer.calls.is_empty();
        match finish {
            FinishReason::Stop | FinishReason::Calls if self.answer.refusal.is_some() => FinishReason::Refusal,
            FinishReason::Stop if has_calls => {
                self.warn("the model stopped but made calls");
                FinishReason::Calls
            }
            FinishReason::Calls if !has_calls => {
                self.warn("the model stopped for calls but made none");
                FinishReason::Stop
            }
            other => other,
        }
    }
}

impl PartialCall {
    /// Whether a piece with this one's index or id is the begin of another call.
    fn starts_other_call(&self, piece: &CallDelta) -> bool {
        let Some(name) = piece.name.as_deref().filter(|name| !name.is_empty()) else { return false };
        match piece.id.as_deref() {
            Some(id) if id == self.id => false,
            Some(_) if !self.id.is_empty() => true,
            // Without ids, a name after arguments begins a call, unless it is a repetition.
            _ if self.arguments.is_empty() => false,
            _ if name != self.name => true,
            _ => self.scanner.is_closed() && piece.arguments.as_deref().is_some_and(|text| !self.already_has(text)),
        }
    }

    /// False if this was heard before.
    fn take_arguments(&mut self, text: &str) -> bool {
        if self.scanner.is_closed() && self.already_has(text) {
            return false;
        }
        self.last_start = self.arguments.len();
        if self.arguments.is_empty() {
            self.first_end = text.len();
        }
        self.arguments.push_str(text);
        self.scanner.take(text);
        true
    }

    /// Whether complete arguments are repeated: all of them, their first delta or their last.
    fn already_has(&self, text: &str) -> bool {
        let first = self.arguments.get(..self.first_end);
        let last = self.arguments.get(self.last_start..);
        text == self.arguments || Some(text) == first || Some(text) == last
    }
}

/// Tracks whether a JSON object is complete, without parsing it.
#[derive(Clone, Copy, Debug, Default)]
struct JsonObjectScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    closed: bool,
}

impl JsonObjectScanner {
    fn take(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.closed |= self.depth == 0;
                }
                _ => {}
            }
        }
    }

    fn is_closed(self) -> bool {
        self.closed && self.depth == 0
    }
}
