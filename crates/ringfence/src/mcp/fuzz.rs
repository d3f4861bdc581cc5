//! Fuzz targets for MCP input and client settings: every line is a message or is answered, however it is chunked, and
//! blanking comments keeps the settings' meaning.

use ringfence_fuzz::FuzzTarget;
use ringfence_kernel::{StrictJsonError, check_json};
use rmcp::transport::Transport as _;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

use crate::mcp::in_flight::InFlightRequests;
use crate::mcp::install::jsonc;
use crate::mcp::transport::StdioServerTransport;

/// So long a message may be here.
const MAX_LINE_BYTES: usize = 300;

/// Messages that were taken, as JSON, and what was answered to those that were not.
async fn read_all(head: &[u8], tail: &[u8]) -> (Vec<Value>, Vec<Value>) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let gone = CancellationToken::new();
    let mut wire =
        StdioServerTransport::new(head.chain(tail), ours, MAX_LINE_BYTES, InFlightRequests::default(), gone.clone());
    let mut taken = Vec::new();
    while let Some(message) = wire.receive().await {
        taken.push(serde_json::to_value(&message).unwrap());
    }
    assert!(gone.is_cancelled());
    wire.close().await.unwrap();
    drop(wire);
    let mut answers = String::new();
    theirs.read_to_string(&mut answers).await.unwrap();
    (taken, answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Finds duplicate keys in another way: a text that is parsed and written again has each key once.
fn check_keys(line: &[u8]) {
    let read = serde_json::from_slice::<Value>(line);
    match check_json(line) {
        Err(StrictJsonError::Syntax) => assert!(read.is_err()),
        // The rest of the text may be no JSON.
        Err(StrictJsonError::DuplicateKey(expected)) => assert!(expected.contains("duplicate key"), "{expected}"),
        Ok(()) => {
            let members = |text: &str| text.bytes().filter(|byte| *byte == b':').count();
            let text = std::str::from_utf8(line).unwrap();
            // Colons in strings are in both, unless they are written as escapes.
            let again = read.unwrap().to_string();
            assert!(text.contains('\\') || members(text) == members(&again), "{text} became {again}");
        }
    }
}

#[test]
fn every_line_is_a_message_or_is_answered_however_it_comes() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    FuzzTarget::new("mcp-lines", env!("CARGO_MANIFEST_DIR"))
        .tokens(&[
            "{\"jsonrpc\":\"2.0\"",
            ",\"id\":1",
            ",\"id\":\"a\"",
            ",\"id\":null",
            ",\"method\":\"tools/call\"",
            ",\"method\":\"ping\"",
            ",\"params\":{",
            "\"name\":\"read_file\"",
            ",\"arguments\":{",
            "}}\n",
            "\n",
            "\r\n",
            "\\n",
            ",\"result\":{}",
            "\"method\":\"notifications/cancelled\"",
            "\"requestId\":1",
            "[",
            "\u{feff}",
            "\\u0061",
        ])
        .check(|bytes| {
            let (taken, answers) = runtime.block_on(read_all(bytes, b""));
            let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
            let expected =
                lines.iter().filter(|line| line.len() >= MAX_LINE_BYTES || !line.trim_ascii().is_empty()).count();
            assert_eq!(taken.len() + answers.len(), expected, "{taken:?} {answers:?}");
            for answer in &answers {
                assert!(answer["error"]["code"].is_i64() && answer["jsonrpc"] == "2.0", "{answer}");
            }
            lines.iter().for_each(|line| check_keys(line));
            for cut in 1..4 {
                let (head, tail) = bytes.split_at(bytes.len() * cut / 4);
                assert_eq!(
                    runtime.block_on(read_all(head, tail)),
                    (taken.clone(), answers.clone()),
                    "cut at {}",
                    head.len()
                );
            }
            let codes = answers.iter().map(|answer| answer["error"]["code"].as_i64()).collect::<Vec<_>>();
            let methods = taken.iter().map(|message| message["method"].as_str().map(str::to_owned));
            (codes, methods.collect::<Vec<_>>())
        });
}

#[test]
fn blanked_settings_say_what_they_said() {
    FuzzTarget::new("jsonc", env!("CARGO_MANIFEST_DIR"))
        .tokens(&["//", "/*", "*/", "\n", "\"", "\\\"", ",", "{", "}", "[", "]", "\"a\": ", "1", "\\\\", "\r", "null"])
        .check(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            let blanked = jsonc::blank_comments(&text);
            assert_eq!(blanked.len(), text.len());
            let breaks = |text: &str| text.match_indices(['\n', '\r']).map(|(at, _)| at).collect::<Vec<_>>();
            assert_eq!(breaks(&blanked), breaks(&text));
            let kept = |(old, new): (u8, u8)| old == new || new == b' ';
            assert!(text.bytes().zip(blanked.bytes()).all(kept), "{blanked}");
            if jsonc::parse_jsonc(&text).is_some() {
                assert_eq!(jsonc::blank_comments(&blanked), blanked);
            }
            let plain = serde_json::from_str::<Value>(&text).ok();
            if plain.is_some() {
                assert_eq!((&*text, plain), (blanked.as_str(), jsonc::parse_jsonc(&text)));
            }
            (jsonc::parse_jsonc(&text).is_some(), text == blanked, blanked.trim().len().min(32))
        });
}
