//! Truncation of replies to the maximum message size.
//!
//! The response to one call is bounded as a whole and as it is sent: as JSON, and in each of the forms in which a
//! client gets it, so that neither escapes nor a second copy exceed the limit. A longer one is truncated where it is
//! longest, stays the same in all forms, and has a note about the truncation and how to go on.
//!
//! Not here: how much a tool reads, lists or finds. Tools have limits of their own.

use std::borrow::Cow;

use ringfence_kernel::{Dialect, ToolReply};
use serde_json::{Map, Value};

/// Bytes of a message besides its value: its ID, field names, and the truncation hint.
const ENVELOPE_OVERHEAD: usize = 1 << 10;

/// Smallest limit: something is always sent.
const MIN_BYTES: usize = 4 << 10;

/// Fields that are what a program printed.
const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// Text at an omitted middle.
const ELISION: &str = "\n[… omitted: the reply would be too long …]\n";

/// Number of copies of a value in a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyCopies {
    /// As it is.
    plain: usize,
    /// As a text that is its JSON.
    quoted: usize,
}

impl ReplyCopies {
    pub(super) const PLAIN: Self = Self { plain: 1, quoted: 0 };
    pub(super) const QUOTED: Self = Self { plain: 0, quoted: 1 };
    pub(super) const PLAIN_AND_QUOTED: Self = Self { plain: 1, quoted: 1 };

    /// The bytes that all copies of some JSON have in a message.
    fn json_bytes(self, json: &str) -> usize {
        self.plain * json.len() + self.quoted * quoted_bytes(json)
    }

    fn value_bytes(self, value: &Value) -> usize {
        match value {
            Value::String(text) => self.text_bytes(text),
            Value::Array(items) => {
                self.json_bytes("[]")
                    + items.iter().map(|item| self.value_bytes(item) + self.json_bytes(",")).sum::<usize>()
            }
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    self.text_bytes(name) + self.json_bytes(":,") + self.value_bytes(value)
                };
                self.json_bytes("{}") + fields.iter().map(field).sum::<usize>()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.json_bytes(&value.to_string()),
        }
    }

    fn text_bytes(self, text: &str) -> usize {
        self.json_bytes("\"\"") + text.chars().map(|c| self.char_bytes(c)).sum::<usize>()
    }

    /// The same for a character of a text.
    fn char_bytes(self, c: char) -> usize {
        let (json, again) = match c {
            '"' | '\\' => (2, 4),
            '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => (2, 3),
            '\0'..' ' => (6, 7),
            _ => (c.len_utf8(), c.len_utf8()),
        };
        self.plain * json + self.quoted * again
    }

    /// Whether it fits without looking at it: between two quotes, no byte of JSON becomes more than two.
    fn certainly_fits(self, json: &str, room: usize) -> bool {
        json.len().saturating_mul(self.plain + 2 * self.quoted) <= room
    }
}

/// The whole reply as a value that is cut so that its copies fit into a message of `most` bytes; nothing where all of
/// it fits. The field that marks it as truncated is the dialect's.
pub(super) fn truncate_reply(reply: &ToolReply, copies: ReplyCopies, most: usize, dialect: Dialect) -> Option<Value> {
    let room = byte_budget(most);
    if copies.certainly_fits(&reply.text, room) || copies.json_bytes(&reply.text) <= room {
        return None;
    }
    let mut value = reply.to_envelope(dialect).unwrap_or_default();
    cut(&mut value, copies, room);
    mark_truncated(&mut value, most, dialect);
    Some(value)
}

/// As much of a text as fits into a message of `most` bytes.
pub(super) fn truncate_text(text: &str, most: usize) -> Cow<'_, str> {
    // JSON makes at most six bytes of one.
    if text.len().saturating_mul(6) <= byte_budget(most) {
        return Cow::Borrowed(text);
    }
    let end = cut_position(text, byte_budget(most), |c| ReplyCopies::PLAIN.char_bytes(c));
    if end == text.len() { Cow::Borrowed(text) } else { Cow::Owned(text[..end].to_owned()) }
}

/// The hint about a truncation.
pub(super) fn truncation_hint(most: usize) -> String {
    format!(
        "this reply was truncated to the limit of {} bytes; request less at once, for example fewer lines of a file",
        most.max(MIN_BYTES)
    )
}

fn byte_budget(most: usize) -> usize {
    most.max(MIN_BYTES) - ENVELOPE_OVERHEAD
}

/// The bytes that a text has between the quotes of JSON.
fn quoted_bytes(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x8 | 0xc => 2,
        0..0x20 => 6,
        _ => 1,
    });
    bytes.sum()
}

/// End position of a truncated text. At a multiple of four, so that base64 stays valid.
fn cut_position(text: &str, room: usize, cost: impl Fn(char) -> usize) -> usize {
    let mut left = room;
    for (at, c) in text.char_indices() {
        match left.checked_sub(cost(c)) {
            Some(less) => left = less,
            None => return text.floor_char_boundary(at - at % 4),
        }
    }
    text.len()
}

fn cut(value: &mut Value, copies: ReplyCopies, room: usize) {
    if copies.value_bytes(value) <= room {
        return;
    }
    match value {
        Value::String(text) => {
            let quotes = copies.json_bytes("\"\"");
            text.truncate(cut_position(text, room.saturating_sub(quotes), |c| copies.char_bytes(c)));
        }
        Value::Array(items) => cut_items(items, copies, room),
        Value::Object(fields) => cut_fields(fields, copies, room),
        Value::Null | Value::Bool(_) | Value::Number(_) => *value = Value::Null,
    }
}

/// The first ones stay. The very first is cut itself where it is too long.
fn cut_items(items: &mut Vec<Value>, copies: ReplyCopies, room: usize) {
    let mut left = room.saturating_sub(copies.json_bytes("[]"));
    let mut kept = 0;
    for item in items.iter_mut() {
        if kept == 0 {
            cut(item, copies, left);
        }
        match left.checked_sub(copies.value_bytes(item) + copies.json_bytes(",")) {
            Some(less) => left = less,
            None => break,
        }
        kept += 1;
    }
    items.truncate(kept);
}

/// The longest ones are cut, to the same length.
fn cut_fields(fields: &mut Map<String, Value>, copies: ReplyCopies, room: usize) {
    let names: usize = fields.keys().map(|name| copies.text_bytes(name) + copies.json_bytes(":,")).sum();
    let Some(left) = room.checked_sub(copies.json_bytes("{}") + names) else {
        fields.clear();
        return;
    };
    let mut costs: Vec<usize> = fields.values().map(|value| copies.value_bytes(value)).collect();
    costs.sort_unstable();
    let most = fair_share(&costs, left);
    for (name, value) in fields.iter_mut() {
        match value {
            // The end of a program's output is the most useful part.
            Value::String(text) if STREAMS.contains(&name.as_str()) => cut_middle(text, copies, most),
            value => cut(value, copies, most),
        }
    }
}

/// The beginning and the end of a text stay, with a line between them.
fn cut_middle(text: &mut String, copies: ReplyCopies, room: usize) {
    if copies.text_bytes(text) <= room {
        return;
    }
    let cost = |c: char| copies.char_bytes(c);
    let each = room.saturating_sub(copies.json_bytes("\"\"") + copies.text_bytes(ELISION)) / 2;
    let start = &text[..cut_position(text, each, cost)];
    let mut left = each;
    let fits = |c: &char| match left.checked_sub(cost(*c)) {
        Some(less) => {
            left = less;
            true
        }
        None => false,
    };
    let kept: usize = text.chars().rev().take_while(fits).map(char::len_utf8).sum();
    *text = format!("{start}{ELISION}{}", &text[text.len() - kept..]);
}

/// Fair share of `room` for each, where small ones leave their rest to the others.
fn fair_share(ascending: &[usize], room: usize) -> usize {
    let mut left = room;
    for (at, cost) in ascending.iter().enumerate() {
        let each = left / (ascending.len() - at);
        if *cost > each {
            return each;
        }
        left -= cost;
    }
    usize::MAX
}

/// Says in the value that it was cut.
fn mark_truncated(value: &mut Value, most: usize, dialect: Dialect) {
    // A whole reply has its value in a field.
    let inner = ["value", "data"].into_iter().find(|name| value.get(name).is_some_and(Value::is_object));
    let target = match inner {
        Some(name) => value.get_mut(name),
        None => Some(value),
    };
    if let Some(fields) = target.and_then(Value::as_object_mut) {
        if dialect == Dialect::Crewagent {
            for (whole, part) in [("content", "contentPreview"), ("entries", "entriesPreview")] {
                fields.shift_remove(whole).and_then(|value| fields.insert(part.to_owned(), value));
            }
        }
        fields.insert("truncated".to_owned(), Value::Bool(true));
        fields.insert("hint".to_owned(), Value::String(truncation_hint(most)));
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::{Dialect, ErrorKind, ReplyValue, ToolError, ToolReply};
    use serde_json::{Value, json};

    use super::{ReplyCopies, truncate_reply, truncate_text};

    const MOST: usize = 64 << 10;
    const ALL_COPIES: [ReplyCopies; 3] = [ReplyCopies::PLAIN, ReplyCopies::QUOTED, ReplyCopies::PLAIN_AND_QUOTED];

    fn sent(json: &str, copies: ReplyCopies) -> usize {
        let quoted = serde_json::to_string(json).unwrap();
        copies.plain * json.len() + copies.quoted * quoted.len()
    }

    fn reply(value: &Value) -> ToolReply {
        let text = json!({"ok": true, "value": value}).to_string();
        ToolReply { call_id: String::new(), outcome: Ok(ReplyValue::new(value.clone())), text, suspended: None }
    }

    /// The reply that goes out for another one.
    fn fit(reply: &ToolReply, copies: ReplyCopies, most: usize) -> Value {
        let whole = || reply.to_envelope(Dialect::Standard).unwrap();
        truncate_reply(reply, copies, most, Dialect::Standard).unwrap_or_else(whole)
    }

    /// The value that goes out for another one.
    fn check(value: &Value, copies: ReplyCopies) -> Value {
        let reply = reply(value);
        let mut fitted = fit(&reply, copies, MOST);
        let size = sent(&fitted.to_string(), copies);
        assert!(size <= MOST, "{copies:?}: {size}");
        let fitted = fitted["value"].take();
        assert_eq!(fitted.get("hint").is_some(), sent(&reply.text, copies) > MOST - 1024, "{copies:?}");
        fitted
    }

    #[test]
    fn a_value_that_fits_is_unchanged() {
        for copies in ALL_COPIES {
            let value = json!({"content": "a\n".repeat(4000), "size": 8000});
            assert_eq!(check(&value, copies), value);
        }
    }

    #[test]
    fn the_longest_part_is_cut_and_the_others_stay() {
        for copies in ALL_COPIES {
            for unit in ["x", "ü", "\n", "\"", "\\", "\u{1}", "\u{7f}", "😀", "a\"\u{2}\n"] {
                let whole = unit.repeat(MOST);
                let value = json!({"content": whole, "sha256": "0123", "truncated": false, "size": MOST});
                let fitted = check(&value, copies);
                let content = fitted["content"].as_str().unwrap();
                assert!(whole.starts_with(content), "{unit:?}");
                assert_eq!((&fitted["sha256"], &fitted["truncated"]), (&json!("0123"), &json!(true)));
                let used = sent(&fitted.to_string(), copies);
                assert!(used > MOST - 2048, "{unit:?} {copies:?}: room for more than {used}");
            }
        }
    }

    #[test]
    fn of_a_list_the_first_ones_stay() {
        for copies in ALL_COPIES {
            let names: Vec<_> = (0..5000).map(|number| json!({"name": format!("{number}-\u{1}\"name")})).collect();
            let fitted = check(&json!({"entries": names, "total": 5000}), copies);
            let entries = fitted["entries"].as_array().unwrap();
            assert!(entries.len() > 500 && names.starts_with(entries), "{}", entries.len());
        }
    }

    #[test]
    fn every_value_is_cut_to_fit() {
        let long = "x".repeat(2 * MOST);
        let many: serde_json::Map<_, _> = (0..MOST).map(|number| (number.to_string(), json!(1))).collect();
        let deep = (0..120).fold(json!(long), |inner, _| json!([inner]));
        let values = [
            json!({"a": {"b": [[long]]}}),
            json!({"a": many}),
            Value::Object(many.clone()),
            json!([{"a": long}, 2]),
            deep,
        ];
        for value in values {
            for copies in ALL_COPIES {
                assert!(sent(&fit(&reply(&value), copies, MOST).to_string(), copies) <= MOST);
            }
        }
        assert!(fit(&reply(&json!({ "a": long })), ALL_COPIES[2], 0).to_string().len() < 4096);
    }

    #[test]
    fn two_long_parts_are_cut_alike() {
        let value = json!({"stdout": "o".repeat(MOST), "stderr": "e".repeat(2 * MOST), "exitCode": 0});
        let fitted = check(&value, ALL_COPIES[2]);
        let length = |name: &str| fitted[name].as_str().unwrap().len();
        assert_eq!(length("stdout"), length("stderr"));
    }

    #[test]
    fn of_what_a_program_printed_both_ends_stay() {
        for copies in ALL_COPIES {
            let stdout = format!("BEGUN{}THE END\n", "\"quoted\u{1} ü\"\n".repeat(MOST));
            let fitted = check(&json!({"stdout": stdout, "stderr": "", "exitCode": 0}), copies);
            let stdout = fitted["stdout"].as_str().unwrap();
            assert!(stdout.starts_with("BEGUN\"quoted") && stdout.ends_with("THE END\n"), "{copies:?}");
            assert!(stdout.contains(super::ELISION));
        }
    }

    #[test]
    fn crewagents_parts_have_names_of_their_own() {
        let reply = reply(&json!({"content": "x".repeat(MOST), "entries": []}));
        let fitted = truncate_reply(&reply, ALL_COPIES[2], MOST, Dialect::Crewagent).unwrap();
        let fields: Vec<&String> = fitted["value"].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["contentPreview", "entriesPreview", "truncated", "hint"]);
    }

    #[test]
    fn base64_that_is_cut_stays_base64() {
        let fitted = check(&json!({"content": "QUJD".repeat(MOST)}), ALL_COPIES[2]);
        assert_eq!(fitted["content"].as_str().unwrap().len() % 4, 0);
    }

    #[test]
    fn a_whole_reply_is_marked_in_its_value() {
        let fitted = check_reply(&reply(&json!({"content": "x".repeat(2 * MOST)})));
        assert_eq!((&fitted["ok"], &fitted["value"]["truncated"]), (&json!(true), &json!(true)));
        let error = ToolError::new(ErrorKind::Conflict, "no").detail("stdout", "x".repeat(2 * MOST));
        let fitted = check_reply(&ToolReply::from_error("", error, Dialect::Standard));
        assert_eq!((&fitted["ok"], &fitted["truncated"]), (&json!(false), &json!(true)));
    }

    fn check_reply(reply: &ToolReply) -> Value {
        let fitted = fit(reply, ReplyCopies::QUOTED, MOST);
        assert!(sent(&fitted.to_string(), ReplyCopies::QUOTED) <= MOST);
        fitted
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for unit in ["x", "ü", "\u{1}"] {
            let whole = unit.repeat(MOST);
            let fitted = truncate_text(&whole, MOST);
            assert!(whole.starts_with(&*fitted) && sent(&fitted, ReplyCopies::QUOTED) <= MOST, "{unit:?}");
        }
        assert_eq!(truncate_text("short", MOST), "short");
    }
}
