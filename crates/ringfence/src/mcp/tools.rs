//! MCP tool definitions and results.
//!
//! The annotations of a tool follow from the actions that its plans may have, and from nothing else: a plan with
//! another action is refused by the kernel.
//!
//! Not here: the plain text of a reply (`plain_text.rs`).

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ringfence_kernel::{Dialect, MCP_TOOL_PREFIX, OutputStore, ReplyValue, Session, ToolDefinition, ToolReply};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, MetaObject, Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

use crate::mcp::plain_text;
use crate::mcp::truncate::{self, ReplyCopies};

/// Form of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolResultFormat {
    /// As text for a model: the one form that every client shows to its model whole.
    #[default]
    Plain,
    /// As the dialect's JSON, in text.
    Json,
    /// As the dialect's JSON, in text and as structured content that the output schema describes. For programs.
    Structured,
}

impl ToolResultFormat {
    /// A session whose replies have this form.
    pub(super) fn apply_to(self, session: Session) -> Session {
        if self == Self::Plain { session.for_model() } else { session }
    }
}

/// A tool in the form of the protocol.
pub(super) fn tool(definition: &ToolDefinition, form: ToolResultFormat) -> Tool {
    let prepare = match definition.dialect {
        Dialect::Claude | Dialect::Codex | Dialect::Gemini => compact_schema,
        Dialect::Standard if !definition.name.starts_with(MCP_TOOL_PREFIX) => compact_schema,
        // Schemas of other servers, and of the systems that the other dialects come from, are theirs.
        Dialect::Standard | Dialect::Miniclaw | Dialect::Crewagent => drop_widths,
    };
    let parameters = schema_object(definition.parameters(), prepare);
    let mut tool = Tool::new(tool_name(definition), definition.description().to_owned(), parameters);
    // Schemas are generated when they are asked for.
    if form == ToolResultFormat::Structured
        && let Some(output) = definition.output()
    {
        tool = tool.with_raw_output_schema(schema_object(&envelope_schema(output, definition.dialect), drop_widths));
    }
    tool = tool.with_title(tool_title(&definition.name)).with_annotations(annotations(definition));
    if definition.dialect.is_core_tool(&definition.name) {
        // Claude Code keeps the schemas of other tools back until its model searches for them.
        tool.meta = Some(meta("anthropic/alwaysLoad", Value::Bool(true)));
    }
    tool
}

fn meta(name: &str, value: Value) -> MetaObject {
    MetaObject(Map::from_iter([(name.to_owned(), value)]))
}

/// Models' APIs allow no dot in a name; a hyphen stands for it there, and is understood.
fn tool_name(definition: &ToolDefinition) -> String {
    definition.name.replace('.', "-")
}

/// A name for people: `read_file` is "Read file".
fn tool_title(name: &str) -> String {
    let words = name.split(['_', '.']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let mut letters = words.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

fn annotations(definition: &ToolDefinition) -> ToolAnnotations {
    let effect = definition.capabilities;
    let only_reads = effect.is_read_only();
    let hints = ToolAnnotations::new().read_only(only_reads).open_world(effect.is_open_world());
    match only_reads {
        // The other two mean nothing then.
        true => hints,
        false => hints.destructive(effect.is_destructive()).idempotent(effect.idempotent),
    }
}

fn schema_object(schema: &Value, prepare: fn(&mut Value)) -> Arc<JsonObject> {
    let mut schema = schema.clone();
    prepare(&mut schema);
    match schema {
        Value::Object(fields) => Arc::new(fields),
        _ => Arc::default(),
    }
}

/// Leaves out what tells a model nothing: `null` beside the type of a field that can be left out, defaults that are false,
/// null or empty, descriptions of a word or two, which repeat the name of the field, that a number is not negative, and
/// that unknown fields are refused, which the refusal says. Every session pays for each byte of the list.
fn compact_schema(schema: &mut Value) {
    drop_widths(schema);
    drop_silent_keywords(schema);
}

fn drop_silent_keywords(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Array(kinds)) = fields.get("type")
                && let [kind, other] = kinds.as_slice()
                && other == "null"
            {
                let kind = kind.clone();
                fields.insert("type".to_owned(), kind);
            }
            let is_empty = |value: &Value| [json!(false), json!(null), json!([]), json!({})].contains(value);
            if fields.contains_key("type") && fields.get("default").is_some_and(is_empty) {
                fields.shift_remove("default");
            }
            let is_name = |text: &Value| text.as_str().is_some_and(|text| text.split_whitespace().count() <= 2);
            if fields.contains_key("type") && fields.get("description").is_some_and(is_name) {
                fields.shift_remove("description");
            }
            if fields.contains_key("type") && fields.get("additionalProperties") == Some(&Value::Bool(false)) {
                fields.shift_remove("additionalProperties");
            }
            if fields.get("type").is_some_and(|kind| kind == "integer") && fields.get("minimum") == Some(&json!(0)) {
                fields.shift_remove("minimum");
            }
            fields.values_mut().for_each(drop_silent_keywords);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_silent_keywords),
        _ => {}
    }
}

/// The schema of a whole reply: a success with its value, or an error.
fn envelope_schema(value: &Value, dialect: Dialect) -> Value {
    let success = match dialect {
        Dialect::Crewagent => {
            let mut flat = value.clone();
            flat["properties"]["ok"] = json!({"const": true});
            flat
        }
        Dialect::Standard | Dialect::Miniclaw | Dialect::Claude | Dialect::Codex | Dialect::Gemini => json!({
            "properties": {"ok": {"const": true}, "value": value, "modified": {"type": "boolean"}},
            "required": ["ok", "value"],
        }),
    };
    let body = json!({
        "type": "object",
        "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
        "required": ["code", "message"],
    });
    let failure = json!({"properties": {"ok": {"const": false}, "error": body}, "required": ["ok", "error"]});
    json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "anyOf": [success, failure]})
}

/// Removes integer widths, such as `"format": "uint64"`: no standard has such formats, and clients that validate
/// schemas complain about each.
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
                fields.shift_remove("format");
            }
            fields.values_mut().for_each(drop_widths);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_widths),
        _ => {}
    }
}

/// Settings of results.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolResultSettings<'a> {
    /// Where a text goes that is too long for a model.
    pub(super) outputs: &'a OutputStore,
    pub(super) dialect: Dialect,
    pub(super) form: ToolResultFormat,
    /// Bytes that one may have, with all that it says.
    pub(super) most: usize,
}

/// The result of a call. The code and the details of an error are for programs: they are in fields that clients do not
/// show to their models.
pub(super) fn call_result(reply: &ToolReply, settings: ToolResultSettings<'_>) -> CallToolResult {
    let ToolResultSettings { outputs, dialect, form, most } = settings;
    let hidden = match (dialect, form, &reply.outcome) {
        (Dialect::Standard, ToolResultFormat::Plain, Err(error)) => plain_text::hidden_details(error),
        _ => None,
    };
    let hidden_bytes = hidden.as_ref().map_or(0, |details| details.to_string().len()).min(most);
    let (texts, structured) = match (dialect, form) {
        (Dialect::Miniclaw | Dialect::Claude | Dialect::Codex | Dialect::Gemini, _) => {
            (truncated_blocks(&reply.text, most), None)
        }
        (Dialect::Standard, ToolResultFormat::Plain) => (plain_text::render(reply, outputs, most - hidden_bytes), None),
        (Dialect::Standard | Dialect::Crewagent, ToolResultFormat::Structured) => {
            match truncate::truncate_reply(reply, ReplyCopies::PLAIN_AND_QUOTED, most, dialect) {
                None => (vec![reply.text.clone()], reply.to_envelope(dialect)),
                Some(cut) => (vec![cut.to_string()], Some(cut)),
            }
        }
        (Dialect::Standard | Dialect::Crewagent, ToolResultFormat::Plain | ToolResultFormat::Json) => {
            let cut = truncate::truncate_reply(reply, ReplyCopies::QUOTED, most, dialect);
            (vec![cut.map_or_else(|| reply.text.clone(), |cut| cut.to_string())], None)
        }
    };
    let image = reply.outcome.as_ref().ok().and_then(ReplyValue::image);
    let image = image.map(|image| ContentBlock::image(BASE64.encode(&image.bytes), image.media_type));
    let content = texts.into_iter().map(ContentBlock::text).chain(image).collect();
    let mut result = match reply.error_kind() {
        None => CallToolResult::success(content),
        Some(kind) => {
            let mut error = CallToolResult::error(content);
            let mut fields = meta("ringfence/code", kind.code().into());
            fields.0.extend(hidden.map(|details| ("ringfence/details".to_owned(), details)));
            error.meta = Some(fields);
            error
        }
    };
    result.structured_content = structured;
    result
}

/// A text, and beside it that it was cut, where it was.
fn truncated_blocks(text: &str, most: usize) -> Vec<String> {
    match truncate::truncate_text(text, most) {
        Cow::Borrowed(whole) => vec![whole.to_owned()],
        Cow::Owned(start) => vec![start, truncate::truncation_hint(most)],
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::{
        Dialect, ErrorKind, ModelText, OutputStore, ReplyImage, ReplyNotes, ReplyValue, ToolError, ToolReply,
    };
    use serde_json::{Value, json};

    use super::{ToolResultFormat, ToolResultSettings, call_result, compact_schema, envelope_schema, tool_title};

    #[track_caller]
    fn check(reply: &ToolReply, dialect: Dialect, form: ToolResultFormat, expected: &Value) {
        let settings = ToolResultSettings { outputs: &OutputStore::default(), dialect, form, most: 1 << 20 };
        let mut result = serde_json::to_value(call_result(reply, settings)).unwrap();
        result.as_object_mut().unwrap().remove("resultType");
        assert_eq!(&result, expected, "{dialect:?} {form:?}");
    }

    fn success(text: &str, value: ReplyValue) -> ToolReply {
        ToolReply { call_id: "1".to_owned(), outcome: Ok(value), text: text.to_owned(), suspended: None }
    }

    fn texts(texts: &[&str]) -> Value {
        texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
    }

    #[test]
    fn a_value_is_text_for_a_model_unless_a_program_asks_for_json() {
        let text = r#"{"ok":true,"value":{"content":"one","size":4}}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        let reply = success(text, ReplyValue::new(value["value"].clone()));
        let plain = json!({"content": texts(&["content: one\nsize: 4"]), "isError": false});
        check(&reply, Dialect::Standard, ToolResultFormat::Plain, &plain);
        let json = json!({"content": texts(&[text]), "isError": false});
        check(&reply, Dialect::Standard, ToolResultFormat::Json, &json);
        let both = json!({"content": texts(&[text]), "structuredContent": value, "isError": false});
        check(&reply, Dialect::Standard, ToolResultFormat::Structured, &both);
    }

    #[test]
    fn the_other_dialects_keep_their_texts() {
        let expected = json!({"content": texts(&["ok: read 3 bytes"]), "isError": false});
        for form in [ToolResultFormat::Plain, ToolResultFormat::Structured] {
            check(&success("ok: read 3 bytes", ReplyValue::default()), Dialect::Miniclaw, form, &expected);
        }
        let flat = r#"{"ok":true,"path":"@project/a","modified":true}"#;
        let expected = json!({"content": texts(&[flat]), "isError": false});
        check(&success(flat, ReplyValue::default()), Dialect::Crewagent, ToolResultFormat::Plain, &expected);
    }

    #[derive(serde::Serialize)]
    struct Picture;

    impl ModelText for Picture {
        fn model_text(&self, _: Dialect) -> String {
            "[a.png]".to_owned()
        }

        fn image(&self) -> Option<ReplyImage> {
            Some(ReplyImage { media_type: "image/png", bytes: [1, 2, 3].into() })
        }
    }

    #[test]
    fn an_image_is_a_block_beside_its_text() {
        let block = json!({"type": "image", "data": "AQID", "mimeType": "image/png"});
        let content = json!([{"type": "text", "text": "[a.png]"}, block]);
        let expected = json!({"content": content, "isError": false});
        let reply = success("[a.png]", ReplyValue::for_models(Picture));
        check(&reply, Dialect::Claude, ToolResultFormat::Plain, &expected);
    }

    #[test]
    fn an_error_is_a_sentence_with_its_code_beside_it() {
        let text = r#"{"ok":false,"error":{"code":"FILE_NOT_FOUND","message":"there is no `x`"}}"#;
        let error = |message: &str| ToolError::new(ErrorKind::NotFound, message);
        let reply = ToolReply::from_error("1", error("there is no `x`"), Dialect::Standard);
        let meta = json!({"ringfence/code": "FILE_NOT_FOUND"});
        let plain = json!({"content": texts(&["there is no `x`"]), "isError": true, "_meta": meta});
        check(&reply, Dialect::Standard, ToolResultFormat::Plain, &plain);
        let value: Value = serde_json::from_str(text).unwrap();
        let both = json!({"content": texts(&[text]), "structuredContent": value, "isError": true, "_meta": meta});
        check(&reply, Dialect::Standard, ToolResultFormat::Structured, &both);
        let error = error("no").detail("rule", "preset ask").detail("layer", "preset");
        let reply = ToolReply::from_error("1", error, Dialect::Standard);
        let meta =
            json!({"ringfence/code": "FILE_NOT_FOUND", "ringfence/details": {"rule": "preset ask", "layer": "preset"}});
        let plain = json!({"content": texts(&["no"]), "isError": true, "_meta": meta});
        check(&reply, Dialect::Standard, ToolResultFormat::Plain, &plain);
    }

    #[test]
    fn it_is_said_that_a_person_changed_the_arguments() {
        let value =
            ReplyValue::new(json!({"content": "a"})).with_notes(ReplyNotes { modified: true, ..ReplyNotes::default() });
        let reply = success(r#"{"ok":true,"value":{"content":"a"},"modified":true}"#, value);
        let note = "[the user edited the arguments before this call ran]";
        let expected = json!({"content": texts(&["content: a", note]), "isError": false});
        check(&reply, Dialect::Standard, ToolResultFormat::Plain, &expected);
    }

    #[test]
    fn schemas_say_what_a_model_needs_and_no_more() {
        let mut schema = json!({"type": "object", "additionalProperties": false, "properties": {
            "a": {"type": ["string", "null"], "default": false},
            "b": {"type": ["integer", "null"], "format": "uint64", "default": 3},
            "default": {"type": "object", "default": {}},
        }});
        compact_schema(&mut schema);
        let expected = json!({"type": "object", "properties": {
            "a": {"type": "string"},
            "b": {"type": "integer", "default": 3},
            "default": {"type": "object"},
        }});
        assert_eq!(schema, expected);
    }

    #[test]
    fn the_schema_of_a_reply_is_an_object_for_success_and_error() {
        for dialect in [Dialect::Standard, Dialect::Crewagent] {
            let schema = envelope_schema(&json!({"type": "object", "properties": {"a": {}}}), dialect);
            assert_eq!((&schema["type"], &schema["required"]), (&json!("object"), &json!(["ok"])));
            assert_eq!(schema["anyOf"][0]["properties"]["ok"], json!({"const": true}));
        }
    }

    #[test]
    fn titles_are_words() {
        assert_eq!(tool_title("read_file"), "Read file");
        assert_eq!(tool_title("fs.read"), "Fs read");
        assert_eq!(tool_title("mcp__far__echo"), "Mcp far echo");
    }
}
