//! Text output of `ringfence log`, `undo` and `redo`.
//!
//! Not here: printing, and what a change did to contents, which comes as a diff.

use serde_json::Value;

/// A change a line, and a line more where there are older ones.
pub(crate) fn format_changes(value: &Value) -> String {
    let mut text = String::new();
    for change in value["changes"].as_array().into_iter().flatten() {
        let words =
            ["change", "time", "session", "call", "tool", "state"].map(|key| change[key].as_str().unwrap_or("-"));
        let paths = texts(&change["paths"]).join(" ");
        text.push_str(&format!("{}  {paths}\n", words.join("  ")));
    }
    if value["truncated"] == true {
        text.push_str("older changes are not listed\n");
    }
    text
}

/// The result of an undo, or its plan with the diff.
pub(crate) fn format_undo(value: &Value) -> String {
    format_reversal(value, "undid")
}

pub(crate) fn format_redo(value: &Value) -> String {
    format_reversal(value, "redid")
}

fn format_reversal(value: &Value, done: &str) -> String {
    let undone = texts(&value["undone"]).join(" ");
    let paths: String = texts(&value["paths"]).iter().map(|path| format!("  {path}\n")).collect();
    let lost = match value["lost"] == true {
        true => "the overwritten contents are too large to be kept: redo cannot restore them\n",
        false => "",
    };
    match value["change"].as_str() {
        Some(change) => format!("{done} {undone} (as {change}):\n{paths}{lost}"),
        None => format!("would undo {undone}:\n{paths}{lost}{}", format_diff(value)),
    }
}

pub(crate) fn format_diff(value: &Value) -> String {
    value["diff"].as_str().unwrap_or_default().to_owned()
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
