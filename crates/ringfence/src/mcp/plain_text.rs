//! Plain text of `standard` replies over MCP.
//!
//! A tool that has a text for models renders it itself (`ModelText`). Of any other value each field is a line, so nothing
//! that a tool says is lost. An error is its sentence; its details are for programs, except what a program printed and
//! which of its changes were kept.
//!
//! Not here: the other dialects, whose replies have their texts.

use std::borrow::Cow;
use std::fmt::Write as _;

use ringfence_kernel::{Dialect, MODEL_TEXT_BYTES, MODIFIED_NOTE, OutputStore, ReplyValue, ToolError, ToolReply};
use serde_json::{Map, Value};

use crate::mcp::truncate;

/// Longest details of an error that go with it.
const MAX_DETAIL_BYTES: usize = 4 << 10;

/// Text below the output of a program of which only the ends were kept.
const OMITTED_NOTE: &str = "[the middle of the output is omitted]\n";

/// Fields for programs and records, which tell a model nothing.
const PROGRAM_FIELDS: [&str; 3] = ["walls", "duration", "endedBy"];

/// Details of an error that its text has: the run of a program.
const SHOWN_DETAILS: [&str; 9] =
    ["notKept", "kept", "change", "denied", "truncated", "stdout", "stderr", "signal", "exitCode"];

/// Lists in the details of an error of which its message names the first, or none.
const LISTED_DETAILS: [&str; 3] = ["errors", "removed", "conflicts"];

/// The content blocks of a result: its text, then one for each note. A text that is too long for a model is kept whole as
/// an output of the session.
pub(super) fn render(reply: &ToolReply, outputs: &OutputStore, most: usize) -> Vec<String> {
    let (text, modified) = match &reply.outcome {
        Ok(value) if value.is_text() => (reply.text.clone(), value.notes().modified),
        Ok(value) => (value_text(value, outputs), value.notes().modified),
        Err(error) => (outputs.bounded(error_text(error), MODEL_TEXT_BYTES), false),
    };
    // Some models' APIs take no empty text.
    let text = if text.is_empty() { "done".to_owned() } else { text };
    let note = modified.then(|| format!("[{MODIFIED_NOTE}]"));
    match truncate::truncate_text(&text, most) {
        Cow::Borrowed(_) => std::iter::once(text).chain(note).collect(),
        Cow::Owned(start) => {
            let hint = format!("[{}]", truncate::truncation_hint(most));
            std::iter::once(start).chain(note).chain([hint]).collect()
        }
    }
}

fn value_text(value: &ReplyValue, outputs: &OutputStore) -> String {
    if let Some(text) = value.model_text(Dialect::Standard) {
        return outputs.bounded_start(text, MODEL_TEXT_BYTES);
    }
    match value.to_value() {
        Value::Object(fields) if fields.contains_key("exitCode") => {
            outputs.bounded(program_text(fields), MODEL_TEXT_BYTES)
        }
        Value::Object(fields) => {
            outputs.bounded_start(lines_of(&without_program_fields(fields)).trim_end().to_owned(), MODEL_TEXT_BYTES)
        }
        value => outputs.bounded_start(value.to_string(), MODEL_TEXT_BYTES),
    }
}

/// The details of an error that its text leaves out, for programs, unless they are long.
pub(super) fn hidden_details(error: &ToolError) -> Option<Value> {
    let mut details = (*error.details).clone();
    if is_program_error(&details) {
        drop_fields(&mut details, &SHOWN_DETAILS);
    }
    let details = Value::Object(details);
    let size = details.to_string().len();
    (details != Value::Object(Map::new()) && size <= MAX_DETAIL_BYTES).then_some(details)
}

fn error_text(error: &ToolError) -> String {
    if let Some(text) = &error.model_text {
        return text.to_string();
    }
    let mut details = (*error.details).clone();
    let mut text = error_sentence(error.message.clone(), &details);
    if is_program_error(&details) {
        text.push('\n');
        text.push_str(&kept_lines(&mut details));
        if let Some(denied) = take_text(&mut details, "denied") {
            let _ = writeln!(text, "denied: {denied}");
        }
        text.push_str(&program_output(&mut details));
        if details.get("truncated") == Some(&Value::Bool(true)) {
            text.push_str(OMITTED_NOTE);
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// The message of an error, with the items of its lists that it does not name.
fn error_sentence(message: String, details: &Map<String, Value>) -> String {
    let listed = LISTED_DETAILS.iter().filter_map(|name| details.get(*name)?.as_array()).flatten();
    let unnamed: Vec<String> = listed.map(inline).filter(|item| !message.contains(item)).collect();
    if unnamed.is_empty() { message } else { format!("{message}; {}", unnamed.join("; ")) }
}

/// Whether an error is about a program that ran.
fn is_program_error(details: &Map<String, Value>) -> bool {
    details.contains_key("exitCode") || details.contains_key("stdout")
}

/// Discarded changes come first, then the output, then the exit status.
fn program_text(mut fields: Map<String, Value>) -> String {
    let is_cut = fields.shift_remove("truncated") == Some(Value::Bool(true));
    let output = program_output(&mut fields);
    let changed = changed_line(&mut fields);
    let mut text = lines_of(&without_program_fields(fields));
    text.push_str(&output);
    text.push_str(&changed);
    if is_cut {
        text.push_str(OMITTED_NOTE);
    }
    text.truncate(text.trim_end().len());
    text
}

/// Discarded changes of a program, then the committed ones.
fn kept_lines(fields: &mut Map<String, Value>) -> String {
    let id = take_text(fields, "change").map(|id| format!(" ({id})")).unwrap_or_default();
    let lists = [("notKept", "not kept".to_owned()), ("kept", format!("kept{id}"))];
    let lists =
        lists.into_iter().filter_map(|(name, title)| Some(Map::from_iter([(title, fields.shift_remove(name)?)])));
    lists.map(|list| lines_of(&list)).collect()
}

/// Output of a program, and its exit code.
fn program_output(fields: &mut Map<String, Value>) -> String {
    let (stdout, stderr) = (take_text(fields, "stdout"), take_text(fields, "stderr"));
    let mut text = stdout.unwrap_or_default();
    end_line(&mut text);
    if let Some(stderr) = stderr.filter(|stderr| !stderr.is_empty()) {
        if !text.is_empty() {
            text.push_str("[stderr]\n");
        }
        text.push_str(&stderr);
        end_line(&mut text);
    }
    let signal = fields.shift_remove("signal");
    if let Some(code) = fields.shift_remove("exitCode") {
        let signal = signal.map(|signal| format!(", ended by signal {signal}")).unwrap_or_default();
        let _ = writeln!(text, "[exit {code}{signal}]");
    }
    text
}

/// The paths that a program changed, in one line that says whether they are kept.
fn changed_line(fields: &mut Map<String, Value>) -> String {
    let (changes, total) = (take_list(fields, "changes"), fields.shift_remove("totalChanges"));
    let id = take_text(fields, "change").map(|id| format!(" ({id})")).unwrap_or_default();
    let committed = take_text(fields, "committed");
    let discarded = fields.shift_remove("discarded") == Some(Value::Bool(true));
    if changes.is_empty() {
        return String::new();
    }
    let named: Vec<String> = changes.iter().map(inline).collect();
    let more = total.and_then(|total| total.as_u64()).unwrap_or_default().saturating_sub(changes.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let word = match committed.as_deref() {
        _ if discarded => "discarded",
        Some("none") => "not kept",
        _ => "changed",
    };
    format!("[{word}{id}: {}{more}]\n", named.join("; "))
}

fn without_program_fields(mut fields: Map<String, Value>) -> Map<String, Value> {
    drop_fields(&mut fields, &PROGRAM_FIELDS);
    if fields.get("truncated") == Some(&Value::Bool(false)) {
        fields.shift_remove("truncated");
    }
    fields
}

/// Each field as a line, or as several where it is a list or has line breaks.
fn lines_of(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        match value {
            Value::Null => {}
            Value::Array(items) if items.is_empty() => {}
            Value::Array(items) => {
                let _ = writeln!(text, "{name}:");
                items.iter().for_each(|item| {
                    let _ = writeln!(text, "  {}", inline(item));
                });
            }
            Value::String(long) if long.contains('\n') => {
                let _ = write!(text, "{name}:\n{long}");
                end_line(&mut text);
            }
            value => {
                let _ = writeln!(text, "{name}: {}", inline(value));
            }
        }
    }
    text
}

/// A value within a line. Of an object its path comes first.
fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let path = fields.get("path").and_then(Value::as_str);
            let rest = fields.iter().filter(|(name, value)| *name != "path" && !value.is_null());
            let rest: Vec<String> = rest.map(|(name, value)| format!("{name} {}", inline(value))).collect();
            match (path, rest.is_empty()) {
                (Some(path), true) => path.to_owned(),
                (Some(path), false) => format!("{path} ({})", rest.join(", ")),
                (None, _) => rest.join(", "),
            }
        }
        Value::Array(items) => items.iter().map(inline).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}

fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    match fields.shift_remove(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn take_list(fields: &mut Map<String, Value>, name: &str) -> Vec<Value> {
    match fields.shift_remove(name) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn drop_fields(fields: &mut Map<String, Value>, names: &[&str]) {
    names.iter().for_each(|name| drop(fields.shift_remove(*name)));
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::{
        Dialect, ErrorKind, MODEL_TEXT_BYTES, ModelText, OutputStore, ReplyValue, ToolError, ToolReply,
    };
    use serde::Serialize;
    use serde_json::{Value, json};

    use super::{hidden_details, render};

    const MOST: usize = 1 << 20;

    fn success(value: ReplyValue) -> ToolReply {
        ToolReply { call_id: String::new(), outcome: Ok(value), text: String::new(), suspended: None }
    }

    fn error(message: &str, details: &Value) -> ToolError {
        let details = Box::new(details.as_object().cloned().unwrap_or_default());
        ToolError { details, ..ToolError::new(ErrorKind::Conflict, message) }
    }

    #[track_caller]
    fn check(value: &Value, expected: &[&str]) {
        let reply = success(ReplyValue::new(value.clone()));
        assert_eq!(render(&reply, &OutputStore::default(), MOST), expected, "{value}");
    }

    #[track_caller]
    fn check_error(error: ToolError, expected: &str) {
        let reply = ToolReply::from_error("", error, Dialect::Standard);
        assert_eq!(render(&reply, &OutputStore::default(), MOST), [expected], "{reply:?}");
    }

    #[derive(Serialize)]
    struct OwnText(String);

    impl ModelText for OwnText {
        fn model_text(&self, dialect: Dialect) -> String {
            format!("{} in {}", self.0, dialect.name())
        }
    }

    #[test]
    fn a_result_with_a_text_of_its_own_is_that_text() {
        let reply = success(ReplyValue::for_models(OwnText("text".to_owned())));
        assert_eq!(render(&reply, &OutputStore::default(), MOST), ["text in standard"]);
        let outputs = OutputStore::default();
        let long = success(ReplyValue::for_models(OwnText("line\n".repeat(20_000))));
        let [text] = render(&long, &outputs, MOST).try_into().unwrap();
        assert!(text.len() <= MODEL_TEXT_BYTES, "{}", text.len());
        let id = text.split_once("go on in ").unwrap().1.split(' ').next().unwrap();
        assert!(outputs.get(id).unwrap().text.ends_with("line\n in standard"));
    }

    #[test]
    fn any_other_value_is_its_fields() {
        let files = json!([{"path": "a", "action": "modified"}, {"path": "b", "action": "created"}]);
        let value = json!({"change": "c-1", "files": files});
        check(&value, &["change: c-1\nfiles:\n  a (action modified)\n  b (action created)"]);
        check(&json!({}), &["done"]);
        check(&json!([1, [2]]), &["[1,[2]]"]);
    }

    #[test]
    fn of_a_program_its_output_comes_before_its_end() {
        let value = json!({"stdout": "hi\n", "stderr": "no", "exitCode": 3, "endedBy": "exit", "committed": "all",
            "changes": [{"path": "z", "kind": "created"}], "totalChanges": 2, "change": "c-1", "walls": ["w"],
            "duration": 7, "truncated": false});
        let text = "hi\n[stderr]\nno\n[exit 3]\n[changed (c-1): z (kind created) and 1 more]";
        check(&value, &[text]);
        let value = |discarded: bool| {
            json!({"stdout": "ok\n", "stderr": "", "exitCode": 0, "committed": "none", "discarded": discarded,
                "changes": [{"path": "a", "kind": "modified"}], "totalChanges": 1})
        };
        check(&value(true), &["ok\n[exit 0]\n[discarded: a (kind modified)]"]);
        check(&value(false), &["ok\n[exit 0]\n[not kept: a (kind modified)]"]);
        let nothing = json!({"stdout": "", "stderr": "", "exitCode": 0, "committed": "none", "changes": []});
        check(&nothing, &["[exit 0]"]);
    }

    #[test]
    fn an_error_is_its_sentence() {
        let cases = [
            (json!({}), "no"),
            (json!({"layer": "preset", "rule": "preset ask", "grant": "allow x", "waitsFor": "a-1"}), "no"),
            (json!({"hunk": 1, "differsAtLine": 1, "lines": [1, 2], "committed": false}), "no"),
            (json!({"errors": ["no", "`b` is missing", "`c` is missing"]}), "no; `b` is missing; `c` is missing"),
            (json!({"removed": ["one", "two"]}), "no; one; two"),
        ];
        for (details, expected) in cases {
            check_error(error("no", &details), expected);
        }
        check_error(error("no", &json!({"stdout": "x"})).with_model_text("own words".to_owned()), "own words");
    }

    #[test]
    fn of_a_program_that_failed_the_model_sees_what_it_printed_and_what_was_kept() {
        let details = json!({
            "committed": "some", "exitCode": 0, "kept": ["a"], "totalKept": 1, "totalNotKept": 2, "change": "c-1",
            "notKept": [{"path": ".git/HEAD", "reason": "asks"}, "b"], "stdout": "done\n", "stderr": "", "walls": ["w"],
            "truncated": false,
        });
        let error = error("2 changes were not kept", &details);
        let text =
            "2 changes were not kept\nnot kept:\n  .git/HEAD (reason asks)\n  b\nkept (c-1):\n  a\ndone\n[exit 0]";
        let hidden = json!({"committed": "some", "totalKept": 1, "totalNotKept": 2, "walls": ["w"]});
        assert_eq!(hidden_details(&error), Some(hidden));
        check_error(error, text);
    }

    #[test]
    fn a_text_fits_into_its_message_and_says_when_it_was_cut() {
        const MOST: usize = 20_000;
        let outputs = OutputStore::default();
        let values = [
            json!({"stdout": "\u{1}\n".repeat(2 * MOST), "stderr": "e\n".repeat(2 * MOST), "exitCode": 1}),
            json!({"a": vec!["\u{1}\"x\n".repeat(90); 500]}),
        ];
        for value in values {
            let blocks = render(&success(ReplyValue::new(value)), &outputs, MOST);
            let size = serde_json::to_string(&blocks).unwrap().len();
            assert!(size <= MOST, "{size}");
            assert!(blocks.last().unwrap().contains("was truncated"), "{:?}", blocks.last());
        }
        let long = error("no", &json!({"stdout": "o\n".repeat(2 * MOST), "exitCode": 1}));
        let blocks = render(&ToolReply::from_error("", long, Dialect::Standard), &outputs, 1 << 20);
        assert!(blocks[0].starts_with("no\no\no") && blocks[0].ends_with("o\n[exit 1]"), "{blocks:?}");
        assert!(blocks[0].contains("bytes omitted; the whole output is @output/"), "{blocks:?}");
    }
}
