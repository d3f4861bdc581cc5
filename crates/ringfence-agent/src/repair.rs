//! Tool call repair: slightly wrong calls, corrected where they have one meaning.
//!
//! Off unless the config enables it. Nothing is invented: no bracket is closed, no half is used, and an ambiguous call
//! stays as it is. The result is still text, decoded by the host as strictly as any other, and every repair is
//! reported.
//!
//! Not here: defects of the wire format (the providers).

use std::fmt::{self, Write as _};

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::message::RequestedCall;
use crate::model::ToolSpec;

/// Whether slightly wrong calls are corrected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallRepair {
    #[default]
    Never,
    /// Corrected if they have one meaning.
    Unambiguous,
}

/// Prefixes that models put before the name of a tool.
const PREFIXES: [&str; 4] = ["functions.", "function.", "tools.", "tool."];

const FENCE: &str = "```";
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Makes a call good as far as it has one meaning, and says what was done to it.
pub(crate) fn repair(call: &mut RequestedCall, tools: &[ToolSpec]) -> Vec<String> {
    let mut done = Vec::new();
    if let Some(name) = offered_name(&call.name, tools) {
        done.push(format!("it was called `{}`", call.name));
        call.name = name.to_owned();
    }
    let Some(tool) = tools.iter().find(|tool| tool.name == call.name) else { return done };
    let Some((mut text, changed)) = as_object(&call.arguments) else { return done };
    done.extend(changed.map(str::to_owned));
    if let Some((fitted, changed)) = coerce_to_schema(&text, &tool.parameters) {
        text = fitted;
        done.extend(changed);
    }
    if !done.is_empty() {
        call.arguments = text;
    }
    done
}

/// The calls that a text consists of. Nothing, where anything else is in it: words around a call may say that it is quoted.
pub(crate) fn calls_in(text: &str, tools: &[ToolSpec]) -> Option<Vec<RequestedCall>> {
    let text = text.trim();
    if let Some(tagged) = text.strip_prefix(OPEN) {
        let mut calls = Vec::new();
        for piece in tagged.split(OPEN) {
            let (json, after) = piece.split_once(CLOSE)?;
            if !after.trim().is_empty() {
                return None;
            }
            calls.push(call_of(json, tools)?);
        }
        return Some(calls);
    }
    let json = strip_fence(text).unwrap_or(text);
    match serde_json::from_str::<Vec<&RawValue>>(json) {
        Ok(items) if !items.is_empty() => items.iter().map(|item| call_of(item.get(), tools)).collect(),
        _ => Some(vec![call_of(json, tools)?]),
    }
}

/// JSON that is a call of an offered tool, and nothing else, or an object with one as its `function`.
fn call_of(json: &str, tools: &[ToolSpec]) -> Option<RequestedCall> {
    let ObjectMembers(members) = serde_json::from_str(json.trim()).ok()?;
    if let [inner] = members.iter().filter(|(key, _)| key == "function").collect::<Vec<_>>()[..]
        && inner.1.get().starts_with('{')
    {
        let ObjectMembers(members) = serde_json::from_str(inner.1.get()).ok()?;
        return plain_call_of(&members, tools);
    }
    plain_call_of(&members, tools)
}

fn plain_call_of(members: &[(String, &RawValue)], tools: &[ToolSpec]) -> Option<RequestedCall> {
    let (mut name, mut arguments) = (None, None);
    for (key, value) in members {
        let slot = match key.as_str() {
            "name" | "tool" | "tool_name" | "function" => &mut name,
            "arguments" | "parameters" | "args" | "input" => &mut arguments,
            "type" | "id" => continue,
            _ => return None,
        };
        if slot.replace(value.get()).is_some() {
            return None;
        }
    }
    let wrote: String = serde_json::from_str(name?).ok()?;
    let name = match tools.iter().any(|tool| tool.name == wrote) {
        true => wrote,
        false => offered_name(&wrote, tools)?.to_owned(),
    };
    let (arguments, _) = as_object(arguments?)?;
    Some(RequestedCall { id: String::new(), name, arguments })
}

/// The one tool that a name which is not offered must mean.
fn offered_name<'a>(wrote: &str, tools: &'a [ToolSpec]) -> Option<&'a str> {
    if tools.iter().any(|tool| tool.name == wrote) {
        return None;
    }
    let bare = PREFIXES.iter().find_map(|prefix| wrote.trim().strip_prefix(prefix)).unwrap_or(wrote);
    let mut meant =
        tools.iter().filter(|tool| fold_tool_name(&tool.name) == fold_tool_name(bare)).map(|tool| tool.name.as_str());
    meant.next().filter(|_| meant.next().is_none())
}

/// A name without case and separators.
fn fold_tool_name(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The text of an object, and what had to be done to it.
fn as_object(text: &str) -> Option<(String, Option<&'static str>)> {
    let text = text.trim();
    if is_object(text) {
        return Some((text.to_owned(), None));
    }
    if let Some(inner) = strip_fence(text).filter(|inner| is_object(inner)) {
        return Some((inner.to_owned(), Some("its arguments were in a code block")));
    }
    if let Some(inner) = serde_json::from_str::<String>(text).ok().filter(|inner| is_object(inner.trim())) {
        return Some((inner, Some("its arguments were a string that contains an object")));
    }
    let tidy = fix_json(text);
    is_object(&tidy).then_some((tidy, Some("its arguments had a trailing comma, or a raw line break in a string")))
}

fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The contents of a code fence, if there is nothing else.
fn strip_fence(text: &str) -> Option<&str> {
    let inside = text.strip_prefix(FENCE)?.strip_suffix(FENCE)?;
    let (language, code) = inside.split_once('\n')?;
    let is_plain = language.trim().chars().all(char::is_alphanumeric) && !code.contains(FENCE);
    is_plain.then(|| code.trim())
}

/// Without commas that nothing comes after, and with control characters in texts written as JSON wants them.
fn fix_json(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let (mut in_text, mut escaped) = (false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            c if in_text && c.is_ascii_control() => {
                let _ = write!(tidy, "\\u{:04x}", u32::from(c));
                continue;
            }
            '}' | ']' if !in_text => {
                let end = tidy.trim_end().len();
                if tidy[..end].ends_with(',') {
                    tidy.truncate(end - 1);
                }
            }
            _ => {}
        }
        tidy.push(c);
    }
    tidy
}

/// The object with its keys and values as the schema wants them. Nothing, where there is nothing to do.
fn coerce_to_schema(text: &str, schema: &Value) -> Option<(String, Vec<String>)> {
    let ObjectMembers(members) = serde_json::from_str(text).ok()?;
    let properties = schema["properties"].as_object()?;
    let mut done = Vec::new();
    let mut written = Vec::new();
    for (key, value) in &members {
        let mut key = key.clone();
        if !properties.contains_key(&key) {
            let mut meant = properties.keys().filter(|name| fold_tool_name(name) == fold_tool_name(&key));
            let is_taken = |name: &String| {
                members.iter().filter(|(other, _)| fold_tool_name(other) == fold_tool_name(name)).count() > 1
            };
            if let (Some(name), None) = (meant.next(), meant.next())
                && !is_taken(name)
            {
                done.push(format!("`{key}` is called `{name}`"));
                key.clone_from(name);
            }
        }
        let value = match properties.get(&key).and_then(|wanted| parse_stringified(value.get(), wanted)) {
            Some(plain) => {
                done.push(format!("`{key}` was a string"));
                plain
            }
            None => value.get().to_owned(),
        };
        written.push(format!("{}:{value}", Value::from(key)));
    }
    (!done.is_empty()).then(|| (format!("{{{}}}", written.join(",")), done))
}

/// A value that was written as a text, where the schema wants no text.
fn parse_stringified(value: &str, wanted: &Value) -> Option<String> {
    let types: Vec<&str> = match &wanted["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    if !value.starts_with('"') || types.contains(&"string") {
        return None;
    }
    let inner: String = serde_json::from_str(value).ok()?;
    let inner = inner.trim();
    let fits = types.iter().any(|kind| match *kind {
        "boolean" => matches!(inner, "true" | "false"),
        "integer" => inner.parse::<i64>().is_ok_and(|number| number.to_string() == inner),
        "number" => serde_json::from_str::<f64>(inner).is_ok(),
        "array" => inner.starts_with('[') && serde_json::from_str::<IgnoredAny>(inner).is_ok(),
        "object" => is_object(inner),
        _ => false,
    });
    fits.then(|| inner.to_owned())
}

/// The members of an object as they are written: in their order, and those that are there twice, twice.
struct ObjectMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for ObjectMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(MembersVisitor).map(ObjectMembers)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{calls_in, repair};
    use crate::message::RequestedCall;
    use crate::model::ToolSpec;

    fn tools() -> Vec<ToolSpec> {
        let tool = |name: &str, properties| ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": properties}),
        };
        let lines = json!({"type": ["integer", "null"]});
        vec![
            tool("read_file", json!({"path": {"type": "string"}, "startLine": lines, "raw": {"type": "boolean"}})),
            tool("edit_file", json!({"path": {"type": "string"}, "edits": {"type": ["array", "null"]}})),
            tool("a_b", json!({})),
            tool("ab", json!({})),
        ]
    }

    fn repaired(name: &str, arguments: &str) -> (RequestedCall, Vec<String>) {
        let (name, arguments) = (name.to_owned(), arguments.to_owned());
        let mut call = RequestedCall { id: "1".to_owned(), name, arguments };
        let done = repair(&mut call, &tools());
        (call, done)
    }

    #[track_caller]
    fn check(name: &str, arguments: &str, expected: (&str, &str), done: &str) {
        let (call, repairs) = repaired(name, arguments);
        assert_eq!(
            (call.name.as_str(), call.arguments.as_str(), repairs.join("; ").as_str()),
            (expected.0, expected.1, done)
        );
    }

    /// It stays what the model wrote.
    #[track_caller]
    fn assert_unrepaired(name: &str, arguments: &str) {
        check(name, arguments, (name, arguments), "");
    }

    #[test]
    fn a_name_that_can_mean_one_tool_is_that_tool() {
        for name in ["functions.read_file", "functions.read_file:", "Read_File", "read-file", "readFile", " read_file "]
        {
            check(name, r#"{"path":"a"}"#, ("read_file", r#"{"path":"a"}"#), &format!("it was called `{name}`"));
        }
        for name in ["A_B", "read", "read_files", "", "cat"] {
            assert_unrepaired(name, "{}");
        }
    }

    #[test]
    fn arguments_that_can_mean_one_object_are_that_object() {
        let fence = "its arguments were in a code block";
        let comma = "its arguments had a trailing comma, or a raw line break in a string";
        let path = r#"{"path":"a"}"#;
        check("read_file", "```json\n{\"path\":\"a\"}\n```", ("read_file", path), fence);
        check(
            "read_file",
            r#""{\"path\":\"a\"}""#,
            ("read_file", path),
            "its arguments were a string that contains an object",
        );
        check("read_file", r#"{"path":"a", }"#, ("read_file", path), comma);
        check("read_file", "{\"path\":\"a\nb,}\"}", ("read_file", r#"{"path":"a\u000ab,}"}"#), comma);
        check(
            "read_file",
            r#"{"path":"a","startLine":"3"}"#,
            ("read_file", r#"{"path":"a","startLine":3}"#),
            "`startLine` was a string",
        );
        check(
            "read_file",
            r#"{"path":"a","raw":"true"}"#,
            ("read_file", r#"{"path":"a","raw":true}"#),
            "`raw` was a string",
        );
        check(
            "read_file",
            r#"{"path":"a","start_line":3}"#,
            ("read_file", r#"{"path":"a","startLine":3}"#),
            "`start_line` is called `startLine`",
        );
        check(
            "edit_file",
            r#"{"path":"a","edits":"[{\"oldText\":\"x\"}]"}"#,
            ("edit_file", r#"{"path":"a","edits":[{"oldText":"x"}]}"#),
            "`edits` was a string",
        );
    }

    #[test]
    fn ambiguous_or_incomplete_calls_are_not_repaired() {
        for arguments in [
            r#"{"path":"a""#,
            r#"{"path":"a"}{"path":"b"}"#,
            r#"{"path":"a"} and so on"#,
            r#"{"path":"a","path":"b"}"#,
            r#"{path:"a"}"#,
            r#"{'path':'a'}"#,
            r#"[{"path":"a"}]"#,
            r#"{"path":3}"#,
            r#"{"path":"a","startLine":"three"}"#,
            r#"{"path":"a","startLine":"1e3"}"#,
            r#"{"path":"a","startLine":"03"}"#,
            r#"{"path":"a","start_line":1,"startline":2}"#,
            r#"{"path":"3"}"#,
            "",
            "null",
        ] {
            assert_unrepaired("read_file", arguments);
        }
        assert_unrepaired("read_file", &format!("{{\"path\":{}", "[".repeat(100_000)));
        // A key that is there twice is there twice afterwards, for the host to refuse.
        let (call, _) = repaired("read_file", r#"{"path":"a","path":"b","raw":"true"}"#);
        assert_eq!(call.arguments, r#"{"path":"a","path":"b","raw":true}"#);
    }

    #[track_caller]
    fn check_text(text: &str, expected: Option<&[(&str, &str)]>) {
        let found = calls_in(text, &tools());
        let found: Option<Vec<_>> =
            found.map(|calls| calls.into_iter().map(|call| (call.name, call.arguments)).collect());
        let owned = |(name, arguments): &(&str, &str)| ((*name).to_owned(), (*arguments).to_owned());
        assert_eq!(found, expected.map(|calls| calls.iter().map(owned).collect()), "{text}");
    }

    #[test]
    fn a_text_that_is_nothing_but_calls_is_calls() {
        let one: &[(&str, &str)] = &[("read_file", r#"{"path":"a"}"#)];
        let call = r#"{"name":"read_file","arguments":{"path":"a"}}"#;
        check_text(call, Some(one));
        check_text(&format!("```json\n{call}\n```"), Some(one));
        check_text(&format!("[{call}]"), Some(one));
        check_text(r#"{"type":"function","function":{"name":"read_file","arguments":"{\"path\":\"a\"}"}}"#, Some(one));
        check_text(&format!("\n<tool_call>\n{call}\n</tool_call>"), Some(one));
        let two = format!("<tool_call>{call}</tool_call>\n<tool_call>{call}</tool_call>");
        check_text(&two, Some(&[one[0], one[0]]));
    }

    #[test]
    fn a_call_in_a_call_in_a_call_is_none_however_deep() {
        let call = r#"{"name":"read_file","arguments":{"path":"a"}}"#;
        for depth in [2, 20_000] {
            check_text(&format!("{}{call}{}", "{\"function\":".repeat(depth), "}".repeat(depth)), None);
        }
    }

    #[test]
    fn a_text_with_anything_else_in_it_is_a_text() {
        let call = r#"{"name":"read_file","arguments":{"path":"a"}}"#;
        for text in [
            "hello",
            "[]",
            "{}",
            &format!("You could write {call}"),
            &format!("The last line of that page is:\n<tool_call>{call}</tool_call>"),
            &format!("For example:\n```json\n{call}\n```\nwould read it."),
            &format!("<tool_call>{call}</tool_call> is how it is done."),
            &format!("<tool_call>{call}"),
            r#"{"name":"rm","arguments":{}}"#,
            r#"{"name":"read_file"}"#,
            r#"{"name":"read_file","name":"edit_file","arguments":{}}"#,
            r#"{"name":"read_file","arguments":{},"parameters":{}}"#,
            r#"{"name":"read_file","arguments":{},"why":"x"}"#,
            r#"{"name":"read_file","arguments":[1]}"#,
        ] {
            check_text(text, None);
        }
    }
}
