//! Tools and replies, in the words of the protocol.
//!
//! What a client is told about a tool's effect follows from the verbs that its plans may have, and from nothing else: a
//! plan with another verb is refused by the kernel.

use std::borrow::Cow;
use std::sync::Arc;

use ringfence_kernel::{Definition, Dialect, Reply};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::fit::{self, Copies};

/// In what form a reply carries its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As text. Older clients know nothing else.
    Text,
    /// As structured content, and as text for those who show their model only that.
    Both,
    /// As structured content, and a line of text that says so.
    Structured,
}

/// How structured content is handed to whoever writes the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    /// As a value, as the SDK has it.
    Value,
    /// As a string that is the value's JSON, for our own wire. Reading a long listing into a value and writing it again takes
    /// as long as making it.
    Json,
}

/// What the protocol calls a tool.
pub(super) fn tool(definition: &Definition, form: Form) -> Tool {
    let mut tool = Tool::new(name(definition), definition.description.clone(), object(&definition.parameters));
    if let Some(output) = definition.output.as_ref().filter(|_| form != Form::Text) {
        tool = tool.with_raw_output_schema(object(output));
    }
    tool.with_annotations(annotations(definition))
}

/// Models' APIs allow no dot in a name; a hyphen stands for it there, and is understood.
fn name(definition: &Definition) -> String {
    definition.name.replace('.', "-")
}

fn annotations(definition: &Definition) -> ToolAnnotations {
    let effect = definition.effect;
    let only_reads = effect.only_reads();
    let hints = ToolAnnotations::new().read_only(only_reads).open_world(effect.reaches_out());
    match only_reads {
        // The other two mean nothing then.
        true => hints,
        false => hints.destructive(effect.destroys()).idempotent(effect.same_again),
    }
}

fn object(schema: &Value) -> Arc<JsonObject> {
    let mut schema = schema.clone();
    drop_widths(&mut schema);
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

/// Takes out how many bits a number has, such as `"format": "uint64"`: no standard has such formats, and clients that
/// check schemas complain about each.
fn drop_widths(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_number = |kind: &Value| kind == "integer" || kind == "number";
            let numeric = match fields.get("type") {
                Some(Value::Array(kinds)) => kinds.iter().any(is_number),
                Some(kind) => is_number(kind),
                None => false,
            };
            if numeric {
                fields.remove("format");
            }
            fields.values_mut().for_each(drop_widths);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_widths),
        _ => {}
    }
}

/// How results go to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) dialect: Dialect,
    pub(super) form: Form,
    pub(super) handed: Handed,
    /// Bytes that one may have, with all that it says.
    pub(super) most: usize,
}

/// What a call comes to.
pub(super) fn result(reply: &Reply, sending: Sending) -> CallToolResult {
    let Sending { dialect, form, handed, .. } = sending;
    if reply.error.is_some() {
        return CallToolResult::error(as_text(reply, sending));
    }
    let said = match form {
        Form::Text => None,
        Form::Both => Said::of(&reply.text, dialect).map(|said| said.fitted(Copies { plain: 1, quoted: 1 }, sending)),
        Form::Structured => {
            Said::of(&reply.text, dialect).map(|said| said.fitted(Copies { plain: 1, quoted: 0 }, sending))
        }
    };
    let Some((Said { text, modified }, value)) = said.and_then(|said| said.structured(handed)) else {
        return CallToolResult::success(as_text(reply, sending));
    };
    let mut content = match form {
        Form::Structured => vec![ContentBlock::text("The result is in structuredContent.")],
        Form::Text | Form::Both => vec![ContentBlock::text(text)],
    };
    if modified {
        content.push(ContentBlock::text("A person changed the arguments before this ran."));
    }
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(value);
    result
}

/// A reply as it is.
fn as_text(reply: &Reply, sending: Sending) -> Vec<ContentBlock> {
    let most = sending.most;
    match sending.dialect {
        Dialect::Standard | Dialect::Crewagent => {
            vec![ContentBlock::text(fit::json(&reply.text, Copies::QUOTED, most, sending.dialect))]
        }
        // It has no place for it but beside the text.
        Dialect::Miniclaw => match fit::text(&reply.text, most) {
            Cow::Borrowed(whole) => vec![ContentBlock::text(whole)],
            Cow::Owned(start) => vec![ContentBlock::text(start), ContentBlock::text(fit::hint(most))],
        },
    }
}

/// What a success reply of a dialect with values has to say.
struct Said {
    /// The value, as JSON.
    text: String,
    /// A person changed the arguments.
    modified: bool,
}

impl Said {
    fn of(reply: &str, dialect: Dialect) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            value: &'a RawValue,
            #[serde(default)]
            modified: bool,
        }
        match dialect {
            Dialect::Standard => {
                let Envelope { value, modified } = serde_json::from_str(reply).ok()?;
                Some(Self { text: value.get().to_owned(), modified })
            }
            Dialect::Crewagent => {
                let mut fields: Map<String, Value> = serde_json::from_str(reply).ok()?;
                fields.remove("ok");
                // A file has a time of that name.
                let modified = fields.get("modified") == Some(&Value::Bool(true));
                if modified {
                    fields.remove("modified");
                }
                Some(Self { text: Value::Object(fields).to_string(), modified })
            }
            Dialect::Miniclaw => None,
        }
    }

    /// It, cut so that a message can have these copies of it.
    fn fitted(mut self, copies: Copies, sending: Sending) -> Self {
        if let Cow::Owned(shorter) = fit::json(&self.text, copies, sending.most, sending.dialect) {
            self.text = shorter;
        }
        self
    }

    /// It, and its value for the other part of a result.
    fn structured(self, handed: Handed) -> Option<(Self, Value)> {
        // A message is one line.
        if handed == Handed::Json && !self.modified && !self.text.contains(['\n', '\r']) {
            let value = Value::String(self.text.clone());
            return Some((self, value));
        }
        let mut value: Value = serde_json::from_str(&self.text).ok()?;
        if self.modified
            && let Some(fields) = value.as_object_mut()
        {
            // Many clients show their model this part alone.
            fields.insert("argumentsModified".to_owned(), Value::Bool(true));
        }
        let value = match handed {
            Handed::Value => value,
            Handed::Json => Value::String(value.to_string()),
        };
        Some((self, value))
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::{Dialect, ErrorKind, Reply};
    use serde_json::{Value, json};

    use super::{Form, Handed, Sending, result};

    const MOST: usize = 1 << 20;

    fn check(text: &str, dialect: Dialect, form: Form, expected: &Value) {
        let reply = Reply { call_id: "1".to_owned(), text: text.to_owned(), error: None, suspended: None };
        for handed in [Handed::Value, Handed::Json] {
            let mut result = result(&reply, Sending { dialect, form, handed, most: MOST });
            if handed == Handed::Json {
                let json = result.structured_content.as_ref().map(|value| value.as_str().unwrap());
                result.structured_content = json.map(|json| serde_json::from_str(json).unwrap());
            }
            let mut said = serde_json::to_value(result).unwrap();
            said.as_object_mut().unwrap().remove("resultType");
            assert_eq!(&said, expected, "{text} {form:?} {handed:?}");
        }
    }

    fn by_our_wire(form: Form) -> Sending {
        Sending { dialect: Dialect::Standard, form, handed: Handed::Json, most: MOST }
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn a_value_is_sent_in_the_form_that_the_client_takes() {
        let reply = r#"{"ok":true,"value":{"b":1,"a":2}}"#;
        let value = json!({"a": 2, "b": 1});
        let both = json!({"content": [text(r#"{"b":1,"a":2}"#)], "structuredContent": value, "isError": false});
        check(reply, Dialect::Standard, Form::Both, &both);
        let line = text("The result is in structuredContent.");
        let once = json!({"content": [line], "structuredContent": value, "isError": false});
        check(reply, Dialect::Standard, Form::Structured, &once);
        check(reply, Dialect::Standard, Form::Text, &json!({"content": [text(reply)], "isError": false}));
    }

    #[test]
    fn it_is_said_that_a_person_changed_the_arguments() {
        let expected = json!({
            "content": [text(r#"{"a":1}"#), text("A person changed the arguments before this ran.")],
            "structuredContent": {"a": 1, "argumentsModified": true},
            "isError": false,
        });
        check(r#"{"ok":true,"value":{"a":1},"modified":true}"#, Dialect::Standard, Form::Both, &expected);
        check(r#"{"ok":true,"a":1,"modified":true}"#, Dialect::Crewagent, Form::Both, &expected);
    }

    #[test]
    fn a_value_with_line_breaks_between_its_parts_stays_in_one_line() {
        let text = "{\"ok\":true,\"value\":{\n\"a\": 1}}".to_owned();
        let reply = Reply { call_id: "1".to_owned(), text, error: None, suspended: None };
        let said = result(&reply, by_our_wire(Form::Structured));
        assert_eq!(said.structured_content, Some(json!("{\"a\":1}")));
    }

    #[test]
    fn a_dialect_of_plain_text_has_only_text() {
        let expected = json!({"content": [text("ok: read 3 bytes")], "isError": false});
        check("ok: read 3 bytes", Dialect::Miniclaw, Form::Both, &expected);
    }

    #[test]
    fn an_error_is_a_result_that_says_so() {
        let text = r#"{"ok":false,"error":{"code":"FILE_NOT_FOUND","message":"there is no `x`"}}"#;
        let error = Some(ErrorKind::NotFound);
        let reply = Reply { call_id: "1".to_owned(), text: text.to_owned(), error, suspended: None };
        let said = result(&reply, by_our_wire(Form::Both));
        assert_eq!(said.is_error, Some(true));
        assert_eq!(said.structured_content, None);
    }
}
