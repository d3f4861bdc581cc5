//! Fuzz target for MCP server output: parsing does not depend on chunking, requests are answered, and only tools with plain
//! names and no invisible characters are accepted.

use std::collections::BTreeSet;

use ringfence_fuzz::FuzzTarget;
use ringfence_kernel::sanitize_text;
use serde_json::Value;

use crate::codec::jsonrpc::{FramedLine, JsonRpcMessage, LineFramer, parse_message};
use crate::config::mcp_servers::{McpServerConfig, McpServerTransport};
use crate::mcp_client::definition::{self, McpToolList};
use crate::mcp_client::stdio::reply_to;
use crate::mcp_client::transport::MAX_MESSAGE_BYTES;

fn listed(result: &Value) -> McpToolList {
    let transport = McpServerTransport::Url { url: "https://a.example/mcp".to_owned(), key: None };
    let tools = result["tools"].as_array().cloned().unwrap_or_default();
    definition::parse_tools(&McpServerConfig { name: "far-away".to_owned(), transport, timeout: None }, tools)
}

fn check_listed(listed: &McpToolList) {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    for (index, tool) in listed.tools.iter().enumerate() {
        assert!(tool.name.len() <= 64 && tool.name.bytes().all(plain), "{}", tool.name);
        assert!(listed.tools[..index].iter().all(|other| other.name != tool.name), "{}", tool.name);
        assert!(
            tool.rule_name.starts_with("far-away/") && tool.rule_name.matches('/').count() == 1,
            "{}",
            tool.rule_name
        );
        assert_eq!(sanitize_text(&tool.description), tool.description);
        assert!(tool.parameters["type"] == "object" && !has_hidden_text(&tool.parameters), "{}", tool.parameters);
    }
    for why in &listed.skipped {
        assert_eq!(&sanitize_text(why), why);
    }
}

/// Whether a text or a key anywhere in it would not be shown as it is.
fn has_hidden_text(value: &Value) -> bool {
    match value {
        Value::String(text) => sanitize_text(text) != *text,
        Value::Array(values) => values.iter().any(has_hidden_text),
        Value::Object(keys) => keys.iter().any(|(key, value)| sanitize_text(key) != *key || has_hidden_text(value)),
        _ => false,
    }
}

/// The lines, with the one that has no end.
fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut framer = LineFramer::new(MAX_MESSAGE_BYTES);
    let mut all = Vec::new();
    for piece in pieces {
        framer.push(piece);
        all.extend(std::iter::from_fn(|| framer.next_line()));
    }
    all.extend(framer.finish());
    let complete = |line| match line {
        FramedLine::Complete(line) => line,
        FramedLine::TooLong => unreachable!("no input is that long"),
    };
    all.into_iter().map(complete).collect()
}

#[test]
fn server_messages_parse_the_same_for_any_chunking() {
    FuzzTarget::new("server-lines", env!("CARGO_MANIFEST_DIR"))
        .tokens(&[
            "{\"jsonrpc\":\"2.0\"",
            ",\"id\":1",
            ",\"id\":\"a\"",
            ",\"method\":\"ping\"",
            ",\"method\":\"sampling/createMessage\"",
            ",\"result\":{\"tools\":[",
            "{\"name\":\"a\"",
            ",\"description\":\"",
            ",\"inputSchema\":{\"type\":\"object\"",
            ",\"properties\":{",
            "}}]}}\n",
            ",\"error\":{\"code\":-1,\"message\":\"no\"}}",
            "\n",
            "\r\n",
            "\u{202e}",
            "\\u200b",
            "\u{1b}[2K",
            "../",
        ])
        .check(|bytes| {
            let all = lines(&[bytes]);
            for cut in 1..4 {
                let (head, tail) = bytes.split_at(bytes.len() * cut / 4);
                assert_eq!(lines(&[head, tail]), all, "cut at {}", head.len());
            }
            let heard = all.iter().map(|line| match parse_message(line) {
                Ok(JsonRpcMessage::Response { result: Ok(result), .. }) => {
                    let listed = listed(&result);
                    check_listed(&listed);
                    (0, listed.tools.len().min(3), listed.skipped.len().min(3))
                }
                Ok(JsonRpcMessage::Response { result: Err(refusal), .. }) => {
                    (1, usize::from(refusal.message.is_empty()), 0)
                }
                Ok(JsonRpcMessage::Request { id, method, .. }) => {
                    let reply = reply_to(&id, &method);
                    let read: Value = serde_json::from_slice(&reply).unwrap();
                    let end = reply.iter().position(|byte| *byte == b'\n');
                    assert!(end == Some(reply.len() - 1) && read["id"] == id, "{read}");
                    (2, usize::from(read["error"].is_object()), 0)
                }
                Ok(JsonRpcMessage::Notification { .. }) => (3, 0, 0),
                Err(rejected) => (4, usize::from(rejected.response_id().is_some()), 0),
            });
            heard.collect::<BTreeSet<_>>()
        });
}
