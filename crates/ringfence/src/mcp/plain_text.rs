//! Plain text rendering of `standard` replies.
//!
//! The text that a model reads over MCP: a file as it is, a list as names, a change in one line, an error as its sentence.
//! A field of a value that no format knows is printed as `name: value`, so nothing that a tool says is lost. The details of
//! an error are for programs, except what a program printed and which of its changes were kept.
//!
//! Not here: the bound of a message (`truncate.rs`), and the other dialects, which have their own texts.

use std::borrow::Cow;
use std::fmt::Write as _;

use ringfence_kernel::{Dialect, ToolError, ToolReply};
use serde_json::{Map, Value};

use crate::mcp::truncate::{self, ReplyCopies};

/// A note beside a text is never longer.
const MAX_NOTE_BYTES: usize = 4 << 10;

/// Bytes of a message that are reserved for notes beside a text that fills it.
const NOTES_BYTES: usize = 512;

/// Fields for programs and records, which tell a model nothing.
const PROGRAM_FIELDS: [&str; 3] = ["walls", "duration", "endedBy"];

/// Details of an error that its text has: the run of a program.
const SHOWN_DETAILS: [&str; 9] =
    ["notKept", "kept", "change", "denied", "truncated", "stdout", "stderr", "signal", "exitCode"];

/// Lists in the details of an error of which its message names the first, or none.
const LISTED_DETAILS: [&str; 3] = ["errors", "removed", "conflicts"];

/// The content blocks of a result: its text, then one for each note.
pub(super) fn render(tool: &str, reply: &ToolReply, most: usize) -> Vec<String> {
    let cut = truncate::truncate_reply(reply, ReplyCopies::PLAIN, most, Dialect::Standard);
    let page = match (cut, &reply.outcome) {
        (Some(cut), outcome) => truncated_page(tool, cut, outcome.as_ref().is_ok_and(|value| value.notes().modified)),
        (None, Err(error)) => error_page(error.message.clone(), error.details.clone(), None),
        (None, Ok(value)) => match value.to_value() {
            Value::Object(fields) => value_page(tool, fields, value.notes().modified),
            _ => TextWithNotes::new(reply.text.clone()),
        },
    };
    page.blocks(most)
}

/// The details of an error that its text leaves out, for programs, unless they are long.
pub(super) fn hidden_details(error: &ToolError) -> Option<Value> {
    let mut details = error.details.clone();
    if is_program_error(&details) {
        drop_fields(&mut details, &SHOWN_DETAILS);
    }
    let details = Value::Object(details);
    let size = details.to_string().len();
    (details != Value::Object(Map::new()) && size <= MAX_NOTE_BYTES).then_some(details)
}

/// A text, with its notes.
struct TextWithNotes {
    text: String,
    notes: Vec<String>,
}

impl TextWithNotes {
    fn new(text: String) -> Self {
        Self { text, notes: Vec::new() }
    }

    fn note(&mut self, note: &str) {
        let note = &note[..note.floor_char_boundary(MAX_NOTE_BYTES)];
        self.notes.push(format!("[{}]", note.trim_end()));
    }

    fn blocks(mut self, most: usize) -> Vec<String> {
        // A text that was cut has some room left, which is for the notes.
        let aside: usize = self.notes.iter().map(String::len).sum();
        if let Cow::Owned(start) =
            truncate::truncate_text(&self.text, most.saturating_sub(aside.saturating_sub(NOTES_BYTES)))
        {
            self.text = start;
            self.note(&truncate::truncation_hint(most));
        }
        // Some models' APIs take no empty text.
        let text = if self.text.is_empty() { "done".to_owned() } else { self.text };
        std::iter::once(text).chain(self.notes).collect()
    }
}

/// The page of a reply that was cut: its value or its error, as far as it is left.
fn truncated_page(tool: &str, mut cut: Value, modified: bool) -> TextWithNotes {
    let hint = cut.get("hint").and_then(Value::as_str).map(str::to_owned);
    let mut take = |name: &str| cut.get_mut(name).and_then(Value::as_object_mut).map(std::mem::take);
    if let Some(fields) = take("value") {
        return value_page(tool, fields, modified);
    }
    if let Some(mut error) = take("error")
        && let Some(message) = take_text(&mut error, "message")
    {
        let details = match error.remove("details") {
            Some(Value::Object(details)) => details,
            _ => Map::new(),
        };
        return error_page(message, details, hint);
    }
    TextWithNotes::new(cut.to_string())
}

fn error_page(message: String, mut details: Map<String, Value>, hint: Option<String>) -> TextWithNotes {
    let mut text = error_sentence(message, &details);
    if is_program_error(&details) {
        text.push('\n');
        text.push_str(&kept_lines(&mut details));
        if let Some(denied) = take_text(&mut details, "denied") {
            let _ = writeln!(text, "denied: {denied}");
        }
        text.push_str(&program_output(&mut details));
    }
    let mut page = TextWithNotes::new(text.trim_end().to_owned());
    if details.get("truncated") == Some(&Value::Bool(true)) {
        page.note(cut_note("run_code"));
    }
    if let Some(hint) = hint {
        page.note(&hint);
    }
    page
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

fn value_page(tool: &str, mut fields: Map<String, Value>, modified: bool) -> TextWithNotes {
    let is_cut = fields.remove("truncated") == Some(Value::Bool(true));
    let hint = take_text(&mut fields, "hint");
    let mut page = match tool {
        "read_file" => file_page(fields),
        "list_directory" => entries_page(fields),
        "find_files" => paths_page(fields),
        "search_files" => matches_page(fields),
        "run_code" => program_page(fields),
        "web_fetch" => fetch_page(fields),
        "list_changes" => changes_page(fields),
        _ if fields.get("text").is_some_and(Value::is_string) => mcp_tool_page(fields),
        _ => TextWithNotes::new(change_line(tool, fields)),
    };
    match hint {
        Some(hint) => page.note(&hint),
        None if is_cut => page.note(cut_note(tool)),
        None => {}
    }
    if modified {
        page.note("the user edited the arguments before this call ran");
    }
    page
}

/// Advice for a tool that returned a part.
fn cut_note(tool: &str) -> &'static str {
    match tool {
        "read_file" => "truncated; continue with `startLine` and `endLine`",
        "run_code" => "the middle of the output is omitted",
        "web_fetch" => "truncated: only the first part of the page",
        _ => "truncated; narrow the request, for example to one directory",
    }
}

fn file_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let content = take_text(&mut fields, "content").unwrap_or_default();
    let mut page = TextWithNotes::new(content);
    if page.text.is_empty() {
        page.text.push_str("[empty: the file, or this part of it, has no text]");
    }
    drop_fields(&mut fields, &["size", "modified", "sha256", "encoding", "path"]);
    let rest = lines_of(&fields);
    if !rest.is_empty() {
        page.note(&rest);
    }
    page
}

fn entries_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let mut text = String::new();
    for entry in take_list(&mut fields, "entries") {
        let mark = match entry["type"].as_str() {
            Some("directory") => "/",
            Some("symlink") => "@",
            _ => "",
        };
        let _ = writeln!(text, "{}{mark}", entry["name"].as_str().unwrap_or_default());
    }
    drop_fields(&mut fields, &["path"]);
    list_page(text, "the directory is empty", &fields)
}

fn paths_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let text = take_list(&mut fields, "paths").iter().map(|path| inline(path) + "\n").collect();
    drop_fields(&mut fields, &["scanned"]);
    list_page(text, "no path matches", &fields)
}

/// `path:line: text` for a match, `path-line- text` for a line around it, as grep prints them.
fn matches_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let matches = take_list(&mut fields, "matches");
    let mut text = String::new();
    // The file, and the last of its lines that is printed.
    let mut printed: (&str, u64) = ("", 0);
    for (at, found) in matches.iter().enumerate() {
        let (path, line) = (found["path"].as_str().unwrap_or_default(), found["line"].as_u64().unwrap_or_default());
        if printed.0 != path {
            printed = (path, 0);
        }
        let (before, after) = (texts(&found["before"]), texts(&found["after"]));
        if at > 0 && !(before.is_empty() && after.is_empty()) && line > printed.1 + before.len() as u64 + 1 {
            text.push_str("--\n");
        }
        let first = line.saturating_sub(before.len() as u64);
        for (number, around) in (first..line).zip(before) {
            if number > printed.1 {
                let _ = writeln!(text, "{path}-{number}- {around}");
            }
        }
        let _ = writeln!(text, "{path}:{line}: {}", found["text"].as_str().unwrap_or_default());
        printed.1 = line;
        let next =
            matches.get(at + 1).filter(|next| next["path"] == found["path"]).and_then(|next| next["line"].as_u64());
        for (number, around) in (line + 1..next.unwrap_or(u64::MAX)).zip(after) {
            let _ = writeln!(text, "{path}-{number}- {around}");
            printed.1 = number;
        }
    }
    drop_fields(&mut fields, &["stats"]);
    list_page(text, "no match", &fields)
}

/// A list, or a text for an empty one, and the other fields.
fn list_page(text: String, nothing: &str, rest: &Map<String, Value>) -> TextWithNotes {
    let text = if text.is_empty() { format!("[{nothing}]") } else { text.trim_end_matches('\n').to_owned() };
    let mut page = TextWithNotes::new(text);
    let rest = lines_of(rest);
    if !rest.is_empty() {
        page.note(&rest);
    }
    page
}

/// Discarded changes come first, then the output, then the exit status.
fn program_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let output = program_output(&mut fields);
    let changed = changed_line(&mut fields);
    let mut text = lines_of(&without_program_fields(fields));
    text.push_str(&output);
    text.push_str(&changed);
    TextWithNotes::new(text.trim_end().to_owned())
}

/// Discarded changes of a program, then the committed ones.
fn kept_lines(fields: &mut Map<String, Value>) -> String {
    let id = take_text(fields, "change").map(|id| format!(" ({id})")).unwrap_or_default();
    let lists = [("notKept", "not kept".to_owned()), ("kept", format!("kept{id}"))];
    let lists = lists.into_iter().filter_map(|(name, title)| Some(Map::from_iter([(title, fields.remove(name)?)])));
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
    let signal = fields.remove("signal");
    if let Some(code) = fields.remove("exitCode") {
        let signal = signal.map(|signal| format!(", ended by signal {signal}")).unwrap_or_default();
        let _ = writeln!(text, "[exit {code}{signal}]");
    }
    text
}

/// The paths that a program changed, in one line that says whether they are kept.
fn changed_line(fields: &mut Map<String, Value>) -> String {
    let (changes, total) = (take_list(fields, "changes"), fields.remove("totalChanges"));
    let id = take_text(fields, "change").map(|id| format!(" ({id})")).unwrap_or_default();
    let committed = take_text(fields, "committed");
    let discarded = fields.remove("discarded") == Some(Value::Bool(true));
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

fn fetch_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let body = take_text(&mut fields, "body").unwrap_or_default();
    let head = ["status", "contentType", "finalUrl", "title"].iter().filter_map(|name| fields.remove(*name));
    let head: Vec<String> = head.map(|value| inline(&value)).collect();
    drop_fields(&mut fields, &["headers", "encoding", "size", "sha256"]);
    TextWithNotes::new(format!("HTTP {}\n{}\n{body}", head.join(" "), lines_of(&fields)))
}

fn changes_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let line = |change: &Value| {
        let field = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
        let paths = texts(&change["paths"]).join(", ");
        format!("{} {} {} {}: {paths}\n", field("change"), field("time"), field("state"), field("tool"))
    };
    let text = take_list(&mut fields, "changes").iter().map(line).collect();
    list_page(text, "no changes", &fields)
}

/// The answer of another server's tool. Its data is mostly the same as its text.
fn mcp_tool_page(mut fields: Map<String, Value>) -> TextWithNotes {
    let text = take_text(&mut fields, "text").unwrap_or_default();
    let data = fields.remove("structured").filter(|_| text.is_empty()).map(|data| data.to_string());
    let mut page = TextWithNotes::new(data.unwrap_or(text));
    let rest = lines_of(&fields);
    if !rest.is_empty() {
        page.note(&rest);
    }
    page
}

/// A change in one line, and the other fields below.
fn change_line(tool: &str, mut fields: Map<String, Value>) -> String {
    let is_new = fields.get("created") != Some(&Value::Bool(false));
    let field = |fields: &mut Map<String, Value>, name: &str| fields.remove(name).map(|value| inline(&value));
    let line = match tool {
        "write_file" => Some(if is_new { "created" } else { "replaced" }),
        "append_file" => Some(if is_new { "created" } else { "appended to" }),
        "edit_file" => Some("edited"),
        "copy_file" => Some("copied to"),
        "create_directory" => Some(if is_new { "created directory" } else { "directory exists already:" }),
        _ => None,
    };
    let mut text = String::new();
    if let Some(verb) = line {
        let path = field(&mut fields, "path").unwrap_or_default();
        let size = field(&mut fields, "size").map(|size| format!(", {size} bytes")).unwrap_or_default();
        let times = field(&mut fields, "replaced").filter(|times| times != "1");
        let times = times.map(|times| format!(", {times} replacements")).unwrap_or_default();
        let change = field(&mut fields, "change").map(|id| format!(" ({id})")).unwrap_or_default();
        let _ = writeln!(text, "{verb} {path}{size}{times}{change}");
        drop_fields(&mut fields, &["created", "sha256"]);
    } else if tool == "move_file" {
        let (from, to) = (field(&mut fields, "from"), field(&mut fields, "to"));
        let change = field(&mut fields, "change").map(|id| format!(" ({id})")).unwrap_or_default();
        let _ = writeln!(text, "moved {} to {}{change}", from.unwrap_or_default(), to.unwrap_or_default());
        if fields.get("overwritten") == Some(&Value::Bool(false)) {
            fields.remove("overwritten");
        }
    }
    text.push_str(&lines_of(&fields));
    text.trim_end().to_owned()
}

fn without_program_fields(mut fields: Map<String, Value>) -> Map<String, Value> {
    drop_fields(&mut fields, &PROGRAM_FIELDS);
    if fields.get("truncated") == Some(&Value::Bool(false)) {
        fields.remove("truncated");
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

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    match fields.remove(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn take_list(fields: &mut Map<String, Value>, name: &str) -> Vec<Value> {
    match fields.remove(name) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn drop_fields(fields: &mut Map<String, Value>, names: &[&str]) {
    names.iter().for_each(|name| drop(fields.remove(*name)));
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::{Dialect, ErrorKind, ReplyValue, ToolError, ToolReply};
    use serde_json::{Value, json};

    use super::{hidden_details, render};

    fn success(value: &Value) -> ToolReply {
        let text = json!({"ok": true, "value": value}).to_string();
        ToolReply { call_id: String::new(), outcome: Ok(ReplyValue::new(value.clone())), text, suspended: None }
    }

    fn error(message: &str, details: &Value) -> ToolError {
        let details = details.as_object().cloned().unwrap_or_default();
        ToolError { details, ..ToolError::new(ErrorKind::Conflict, message) }
    }

    #[track_caller]
    fn check(tool: &str, value: &Value, expected: &[&str]) {
        assert_eq!(render(tool, &success(value), 1 << 20), expected, "{tool} {value}");
    }

    #[track_caller]
    fn check_error(error: ToolError, expected: &str) {
        let reply = ToolReply::from_error("", error, Dialect::Standard);
        assert_eq!(render("run_code", &reply, 1 << 20), [expected], "{reply:?}");
    }

    #[test]
    fn a_file_is_its_contents() {
        let file = |content: &str| json!({"content": content, "size": 9, "sha256": "ab", "truncated": false});
        check("read_file", &file("a \"b\"\n\tc\n"), &["a \"b\"\n\tc\n"]);
        check("read_file", &file(""), &["[empty: the file, or this part of it, has no text]"]);
        let part = json!({"content": "a", "truncated": true});
        check("read_file", &part, &["a", "[truncated; continue with `startLine` and `endLine`]"]);
        let part = json!({"content": "a", "truncated": true, "hint": "read lines", "unread": 7});
        check("read_file", &part, &["a", "[unread: 7]", "[read lines]"]);
    }

    #[test]
    fn a_list_is_names() {
        let entries = json!([
            {"name": "a b", "type": "file", "size": 1},
            {"name": "src", "type": "directory"},
            {"name": "l", "type": "symlink"},
        ]);
        check("list_directory", &json!({"entries": entries}), &["a b\nsrc/\nl@"]);
        check("list_directory", &json!({"entries": []}), &["[the directory is empty]"]);
        check("find_files", &json!({"paths": ["a", "b/c"], "truncated": false, "scanned": 3}), &["a\nb/c"]);
        let unread = json!({"paths": [], "skipped": ["locked"]});
        check("find_files", &unread, &["[no path matches]", "[skipped:\n  locked]"]);
    }

    #[test]
    fn a_match_is_its_place_and_its_line() {
        let found = |path: &str, line: u64, before: &[&str], after: &[&str]| json!({"path": path, "line": line, "column": 1, "text": format!("t{line}"), "before": before, "after": after});
        let bare = json!({"matches": [found("a", 2, &[], &[]), found("b", 7, &[], &[])], "stats": {"filesScanned": 2}});
        check("search_files", &bare, &["a:2: t2\nb:7: t7"]);
        let around = json!({"matches": [
            found("a", 2, &["x1"], &["x3"]),
            found("a", 4, &["x3"], &["t5"]),
            found("a", 5, &["t4"], &["x6"]),
            found("a", 9, &["x8"], &[]),
        ]});
        let text = "a-1- x1\na:2: t2\na-3- x3\na:4: t4\na:5: t5\na-6- x6\n--\na-8- x8\na:9: t9";
        check("search_files", &around, &[text]);
        check("search_files", &json!({"matches": []}), &["[no match]"]);
    }

    #[test]
    fn a_change_is_a_line() {
        let value = json!({"path": "a", "size": 3, "sha256": "ab", "change": "c-1", "created": true});
        check("write_file", &value, &["created a, 3 bytes (c-1)"]);
        let value = json!({"path": "a", "size": 3, "sha256": "ab", "change": "c-1", "created": false, "replaced": 2});
        check("edit_file", &value, &["edited a, 3 bytes, 2 replacements (c-1)"]);
        let value = json!({"from": "a", "to": "b", "overwritten": false, "change": "c-1"});
        check("move_file", &value, &["moved a to b (c-1)"]);
        let files = json!([{"path": "a", "action": "modified"}, {"path": "b", "action": "created"}]);
        let value = json!({"change": "c-1", "files": files});
        check("apply_patch", &value, &["change: c-1\nfiles:\n  a (action modified)\n  b (action created)"]);
        check("anything", &json!({}), &["done"]);
    }

    #[test]
    fn of_a_program_its_output_comes_before_its_end() {
        let value = json!({"stdout": "hi\n", "stderr": "no", "exitCode": 3, "endedBy": "exit", "committed": "all",
            "changes": [{"path": "z", "kind": "created"}], "totalChanges": 2, "change": "c-1", "walls": ["w"],
            "duration": 7, "truncated": false});
        let text = "hi\n[stderr]\nno\n[exit 3]\n[changed (c-1): z (kind created) and 1 more]";
        check("run_code", &value, &[text]);
        let value = |discarded: bool| {
            json!({"stdout": "ok\n", "stderr": "", "exitCode": 0, "committed": "none", "discarded": discarded,
                "changes": [{"path": "a", "kind": "modified"}], "totalChanges": 1})
        };
        check("run_code", &value(true), &["ok\n[exit 0]\n[discarded: a (kind modified)]"]);
        check("run_code", &value(false), &["ok\n[exit 0]\n[not kept: a (kind modified)]"]);
        let nothing = json!({"stdout": "", "stderr": "", "exitCode": 0, "committed": "none", "changes": []});
        check("run_code", &nothing, &["[exit 0]"]);
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
    fn other_servers_answers_are_their_text() {
        check("mcp__far__echo", &json!({"text": "hi", "structured": {"a": 1}, "truncated": false}), &["hi"]);
        check("mcp__far__echo", &json!({"text": "", "structured": {"a": 1}}), &["{\"a\":1}"]);
    }

    #[test]
    fn a_text_fits_into_its_message_and_says_when_it_was_cut() {
        const MOST: usize = 20_000;
        let long = format!("{}/{}", "\u{1}".repeat(90), "d".repeat(90));
        let around = vec![long.clone(); 20];
        let matches: Vec<Value> = (0..200)
            .map(|at| json!({"path": long, "line": at * 50 + 30, "text": long, "before": around, "after": around}))
            .collect();
        let values = [
            ("read_file", json!({"content": "\u{1}\"x\n".repeat(MOST), "truncated": false})),
            ("search_files", json!({"matches": matches})),
            ("run_code", json!({"stdout": "o".repeat(2 * MOST), "stderr": "e".repeat(2 * MOST), "exitCode": 1})),
            ("anything", json!({"a": vec![long; 500]})),
        ];
        for (tool, value) in values {
            let blocks = render(tool, &success(&value), MOST);
            let size = serde_json::to_string(&blocks).unwrap().len();
            assert!((MOST / 2..=MOST).contains(&size), "{tool}: {size}");
            assert!(blocks.last().unwrap().contains("was truncated"), "{tool}: {:?}", blocks.last());
        }
        assert_eq!(render("anything", &success(&json!([1, [2]])), MOST), [r#"{"ok":true,"value":[1,[2]]}"#]);
        let long = error("no", &json!({"stdout": "o".repeat(2 * MOST), "exitCode": 1}));
        let blocks = render("run_code", &ToolReply::from_error("", long, Dialect::Standard), MOST);
        assert!(blocks[0].starts_with("no\nooo") && blocks[0].ends_with("[exit 1]"), "{blocks:?}");
        assert!(blocks.last().unwrap().contains("was truncated"), "{blocks:?}");
    }
}
