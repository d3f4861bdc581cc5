//! Tool calls that a model wrote as text instead of making them.
//!
//! They are never run: text is text. They are detected so that the model gets a note, and so that they can be stripped
//! from its last text.

use serde_json::Value;

/// Tags that model templates put around calls: opening and closing.
const TAGS: [(&str, &str); 7] = [
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),
    ("<function_call>", "</function_call>"),
    ("<function=", "</function>"),
    ("<invoke ", "</invoke>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("[TOOL_CALLS]", "\n"),
];

/// Whether a text has a call of one of these tools in it.
pub(crate) fn has_call(text: &str, tools: &[&str]) -> bool {
    strip_calls(text, tools) != text.trim()
}

/// A text without the calls in it.
pub(crate) fn strip_calls(text: &str, tools: &[&str]) -> String {
    let mut left = text.trim().to_owned();
    for (open, close) in TAGS {
        while let Some(start) = left.find(open) {
            let after = start + open.len();
            let end = left[after..].find(close).map_or(left.len(), |at| after + at + close.len());
            left.replace_range(start..end, "");
        }
    }
    left = without_fences(&left, tools);
    if is_call(left.trim(), tools) {
        return String::new();
    }
    left.trim().to_owned()
}

/// The text without the code blocks that are calls.
fn without_fences(text: &str, tools: &[&str]) -> String {
    const FENCE: &str = "```";
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(FENCE) {
        let inside = &rest[start + FENCE.len()..];
        let (block, after) = match inside.find(FENCE) {
            Some(end) => (&inside[..end], &inside[end + FENCE.len()..]),
            None => (inside, ""),
        };
        let code = block.split_once('\n').map_or(block, |(_, code)| code);
        let whole = &rest[..rest.len() - after.len()];
        kept.push_str(if is_call(code.trim(), tools) { &rest[..start] } else { whole });
        rest = after;
    }
    kept.push_str(rest);
    kept
}

/// JSON that names a tool and has arguments for it, or a list of such.
fn is_call(text: &str, tools: &[&str]) -> bool {
    if !text.starts_with(['{', '[']) {
        return false;
    }
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => !items.is_empty() && items.iter().all(|item| names_call(item, tools)),
        Ok(value) => names_call(&value, tools),
        Err(_) => false,
    }
}

fn names_call(value: &Value, tools: &[&str]) -> bool {
    let value = if value["function"].is_object() { &value["function"] } else { value };
    let name = ["name", "tool", "tool_name", "function"].iter().find_map(|key| value[*key].as_str());
    let has_arguments = ["arguments", "parameters", "args", "input"].iter().any(|key| !value[*key].is_null());
    has_arguments && name.is_some_and(|name| tools.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::{has_call, strip_calls};

    #[track_caller]
    fn check(text: &str, left: &str) {
        let tools = ["read_file", "write_file"];
        assert_eq!(strip_calls(text, &tools), left, "{text}");
        assert_eq!(has_call(text, &tools), text.trim() != left, "{text}");
    }

    #[test]
    fn calls_as_text_are_found_in_every_dress() {
        check(r#"{"name": "read_file", "arguments": {"path": "a"}}"#, "");
        check(r#"[{"name": "read_file", "parameters": {"path": "a"}}]"#, "");
        check(r#"{"type":"function","function":{"name":"read_file","arguments":"{}"}}"#, "");
        check(
            "Let me look.\n```json\n{\"name\": \"read_file\", \"arguments\": {}}\n```\nThen we see.",
            "Let me look.\n\nThen we see.",
        );
        check("Sure.\n<tool_call>\n{\"name\": \"whatever\"}\n</tool_call>", "Sure.");
        check("<tool_call>{\"name\": \"read_file\"", "");
        check("Ok <function=read_file><parameter=path>a</parameter></function> done", "Ok  done");
        check("[TOOL_CALLS][{\"name\":\"read_file\"}]", "");
        check("```\n{\"tool\": \"write_file\", \"args\": {\"path\": \"a\"}}", "");
    }

    #[test]
    fn text_that_calls_no_offered_tool_stays() {
        check("The answer is 4.", "The answer is 4.");
        check(
            r#"{"name": "Ada", "arguments": ["for", "against"]}"#,
            r#"{"name": "Ada", "arguments": ["for", "against"]}"#,
        );
        check("```rust\nfn main() {}\n```", "```rust\nfn main() {}\n```");
        check(r#"{"name": "read_file"}"#, r#"{"name": "read_file"}"#);
        check("[1, 2]", "[1, 2]");
        check("[]", "[]");
        check("a ``` b", "a ``` b");
    }
}
