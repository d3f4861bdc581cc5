//! Short text summaries of tool calls and results.
//!
//! Text of the model is sanitised, and truncated to a few lines.
//!
//! Not here: printing.

use std::time::Duration;

use ringfence_agent::{AgentOutcome, RequestedCall};
use ringfence_kernel::{ToolReply, sanitize_line};
use serde_json::Value;

/// Characters of a line.
const MAX_LINE_CHARS: usize = 100;

/// Lines of a change that are shown, of what goes and of what comes.
const MAX_CHANGE_LINES: usize = 4;

/// The tool and the subject of a call.
pub(crate) fn call_line(call: &RequestedCall) -> String {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let text = |key: &str| arguments[key].as_str().map(str::to_owned);
    let about = match (text("from"), text("to")) {
        (Some(from), Some(to)) => Some(format!("{from} to {to}")),
        _ => ["path", "pattern", "glob", "url", "query", "language"].into_iter().find_map(text),
    };
    let more = text("pattern").filter(|_| arguments["path"].is_string()).map(|pattern| format!(" for {pattern}"));
    let about = about.map(|about| format!(" {about}{}", more.unwrap_or_default())).unwrap_or_default();
    clip(&sanitize_line(&format!("{}{about}", call.name)))
}

/// A few removed and added lines, as far as the arguments of a call have them.
pub(crate) fn change_lines(call: &RequestedCall) -> Vec<String> {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let text = |value: &Value, keys: [&str; 2]| keys.iter().find_map(|key| value[*key].as_str()).map(str::to_owned);
    let edits = match arguments["edits"].as_array() {
        Some(edits) => edits.clone(),
        None => vec![arguments.clone()],
    };
    let mut lines = Vec::new();
    for edit in &edits {
        lines.extend(text(edit, ["oldText", "old_text"]).iter().flat_map(|old| first_lines(old, '-')));
        lines.extend(text(edit, ["newText", "new_text"]).iter().flat_map(|new| first_lines(new, '+')));
    }
    lines.extend(arguments["content"].as_str().into_iter().flat_map(|content| first_lines(content, '+')));
    lines.extend(arguments["code"].as_str().into_iter().flat_map(|code| first_lines(code, '|')));
    lines.extend(arguments["patch"].as_str().into_iter().flat_map(|patch| first_lines(patch, ' ')));
    lines
}

/// The result of a call.
pub(crate) fn result_line(reply: &ToolReply, duration: Duration) -> String {
    let time = format!("{} ms", duration.as_millis());
    match &reply.outcome {
        Err(error) => clip(&format!("failed ({time}): {}", sanitize_line(&error.message))),
        Ok(value) => match value.to_value()["exitCode"].as_i64() {
            Some(code) => format!("exit code {code} ({time})"),
            None => format!("ok ({time})"),
        },
    }
}

/// A number with its noun, such as `1 step` or `2 steps`.
pub(crate) fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number: u64 = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The note about a context from which old entries were removed.
pub(crate) fn compaction_note(results: usize, messages: usize) -> String {
    format!("{} and {} removed from the context", count(results, "old result"), count(messages, "message"))
}

/// The outcome of a run: actions taken, steps, tokens and duration.
pub(crate) fn outcome_line(outcome: &AgentOutcome) -> String {
    let mut text = String::new();
    if outcome.stop_reason.name() != "answered" {
        text.push_str(&format!("ended: {}\n", sanitize_line(&outcome.stop_reason.explain())));
    }
    text.push_str("actions taken:\n");
    for line in outcome.ledger.lines() {
        text.push_str(&format!("  {line}\n"));
    }
    let about = if outcome.estimated { "about " } else { "" };
    text.push_str(&format!(
        "{}, {about}{} tokens, {:.1} s\n",
        count(outcome.steps, "step"),
        outcome.usage.total,
        outcome.duration.as_secs_f64()
    ));
    text
}

fn first_lines(text: &str, mark: char) -> Vec<String> {
    let total = text.lines().count();
    let mut lines: Vec<String> =
        text.lines().take(MAX_CHANGE_LINES).map(|line| clip(&format!("{mark} {}", sanitize_line(line)))).collect();
    if total > MAX_CHANGE_LINES {
        lines.push(format!("{mark} … {}", count(total - MAX_CHANGE_LINES, "more line")));
    }
    lines
}

fn clip(line: &str) -> String {
    match line.char_indices().nth(MAX_LINE_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringfence_agent::RequestedCall;
    use ringfence_kernel::{ErrorKind, ReplyValue, ToolError, ToolReply};
    use serde_json::json;

    fn called(name: &str, arguments: &str) -> RequestedCall {
        RequestedCall { id: "a".to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn a_call_is_one_line_about_its_subject() {
        for (name, arguments, shown) in [
            ("read_file", r#"{"path":"a.txt"}"#, "read_file a.txt"),
            ("move_file", r#"{"from":"a","to":"b"}"#, "move_file a to b"),
            ("search_files", r#"{"path":"src","pattern":"fn"}"#, "search_files src for fn"),
            ("run_code", r#"{"language":"bash","code":"ls"}"#, "run_code bash"),
            ("read_file", "no json", "read_file"),
            ("read_file", "{\"path\":\"a\\u001b[2J\\nb\"}", "read_file a\\u{1b}[2J\\u{a}b"),
        ] {
            assert_eq!(super::call_line(&called(name, arguments)), shown);
        }
        assert_eq!(super::call_line(&called(&"x".repeat(500), "{}")).chars().count(), 101);
    }

    #[test]
    fn a_change_is_a_few_lines() {
        let edit = called("edit_file", r#"{"path":"a","oldText":"one\ntwo","newText":"1"}"#);
        assert_eq!(super::change_lines(&edit), ["- one", "- two", "+ 1"]);
        let write = called("write_file", r#"{"path":"a","content":"1\n2\n3\n4\n5\n6\n"}"#);
        assert_eq!(super::change_lines(&write), ["+ 1", "+ 2", "+ 3", "+ 4", "+ … 2 more lines"]);
        assert!(super::change_lines(&called("read_file", r#"{"path":"a"}"#)).is_empty());
    }

    #[test]
    fn a_result_says_how_it_went() {
        let line = |outcome| {
            let reply = ToolReply { call_id: "a".to_owned(), outcome, text: String::new(), suspended: None };
            super::result_line(&reply, Duration::from_millis(12))
        };
        assert_eq!(line(Ok(ReplyValue::default())), "ok (12 ms)");
        assert_eq!(line(Ok(ReplyValue::new(json!({"exitCode": 3})))), "exit code 3 (12 ms)");
        let error = ToolError::new(ErrorKind::NotFound, "no such file");
        assert_eq!(line(Err(error)), "failed (12 ms): no such file");
    }
}
