//! Bytes of any kind from a server: they are the same lines however they come, who asks is answered, and of the tools that are
//! listed only those are taken whose names are plain and whose words hide nothing.

use std::collections::BTreeSet;

use ringfence_fuzz::Target;
use ringfence_kernel::visible;
use serde_json::Value;

use super::definition::{self, Listed};
use super::speech::{self, Lines, Said};
use crate::mcp_config::{ForeignServer, Way};

fn listed(result: &Value) -> Listed {
    let way = Way::Url { url: "https://a.example/mcp".to_owned(), key: None };
    let tools = result["tools"].as_array().cloned().unwrap_or_default();
    definition::read(&ForeignServer { name: "far-away".to_owned(), way, timeout: None }, tools)
}

fn check_listed(listed: &Listed) {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    for (index, tool) in listed.tools.iter().enumerate() {
        assert!(tool.name.len() <= 64 && tool.name.bytes().all(plain), "{}", tool.name);
        assert!(listed.tools[..index].iter().all(|other| other.name != tool.name), "{}", tool.name);
        assert!(tool.place.starts_with("far-away/") && tool.place.matches('/').count() == 1, "{}", tool.place);
        assert_eq!(visible(&tool.description), tool.description);
        assert!(tool.parameters["type"] == "object" && !hides(&tool.parameters), "{}", tool.parameters);
    }
    for why in &listed.left_out {
        assert_eq!(&visible(why), why);
    }
}

/// Whether a text or a key anywhere in it would not be shown as it is.
fn hides(value: &Value) -> bool {
    match value {
        Value::String(text) => visible(text) != *text,
        Value::Array(values) => values.iter().any(hides),
        Value::Object(keys) => keys.iter().any(|(key, value)| visible(key) != *key || hides(value)),
        _ => false,
    }
}

/// The lines, with the one that has no end.
fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut lines = Lines::default();
    let mut whole: Vec<Vec<u8>> = pieces.iter().flat_map(|piece| lines.push(piece).unwrap()).collect();
    whole.push(lines.rest());
    whole
}

#[test]
fn what_a_server_says_is_taken_for_what_it_is_however_it_comes() {
    Target::new("server-lines", env!("CARGO_MANIFEST_DIR"))
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
            let heard = all.iter().map(|line| match speech::read(line) {
                Said::Answer { result: Ok(result), .. } => {
                    let listed = listed(&result);
                    check_listed(&listed);
                    (0, listed.tools.len().min(3), listed.left_out.len().min(3))
                }
                Said::Answer { result: Err(refusal), .. } => (1, usize::from(refusal.message.is_empty()), 0),
                Said::Asks { id, method } => {
                    let reply = speech::reply(&id, &method);
                    let read: Value = serde_json::from_slice(&reply).unwrap();
                    assert!(!reply.contains(&b'\n') && read["id"] == id, "{read}");
                    (2, usize::from(read["error"].is_object()), 0)
                }
                Said::Else => (3, 0, 0),
            });
            heard.collect::<BTreeSet<_>>()
        });
}
