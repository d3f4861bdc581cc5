//! YAML rendering of values on one line.
//!
//! Nothing that a value contains can end the line, the value or the block: text is always in double quotes, and
//! every character that some reader could take for the end of a line is an escape.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// A value in flow style. It is JSON too, but for white space.
pub(super) fn render_flow(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", joined(items)),
        Value::Object(pairs) => format!("{{{}}}", joined_pairs(pairs)),
        Value::Number(number) => with_point(number.to_string()),
        Value::Null | Value::Bool(_) => value.to_string(),
    }
}

/// Readers of YAML 1.1 take a number with an exponent for text if it has no point.
fn with_point(number: String) -> String {
    match number.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => number,
    }
}

/// Items of a flow sequence, without the brackets.
pub(super) fn joined(items: &[Value]) -> String {
    items.iter().map(render_flow).collect::<Vec<_>>().join(", ")
}

fn joined_pairs(pairs: &Map<String, Value>) -> String {
    pairs.iter().map(|(key, value)| format!("{}: {}", quoted(key), render_flow(value))).collect::<Vec<_>>().join(", ")
}

/// A key of its own, without quotes if no reader could take it for something other than a word.
pub(super) fn render_key(name: &str) -> String {
    let word = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let constant = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let taken = constant.iter().any(|constant| constant.eq_ignore_ascii_case(name));
    if word && !taken { name.to_owned() } else { quoted(name) }
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if crate::is_forbidden(c) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
