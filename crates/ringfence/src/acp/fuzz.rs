//! Fuzz target for ACP input: every request gets exactly one response, and only messages are written.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use ringfence_fuzz::FuzzTarget;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::acp::connection::{AcpClientConnection, AcpMessage, spawn_line_reader};

/// Captured output to the editor.
#[derive(Clone, Default)]
struct CapturedAcpOutput(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedAcpOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_request_gets_one_response() {
    FuzzTarget::new("acp-lines", env!("CARGO_MANIFEST_DIR"))
        .tokens(&[
            "{\"jsonrpc\":\"2.0\"",
            ",\"id\":1",
            ",\"id\":null",
            ",\"id\":[]",
            ",\"method\":\"session/prompt\"",
            ",\"params\":{}",
            ",\"result\":{}",
            ",\"error\":{}",
            "}\n",
            "\n",
            "\r\n",
            "[",
            "\\u0061",
        ])
        .check(|bytes| {
            let kept = CapturedAcpOutput::default();
            let client = AcpClientConnection::new(Box::new(kept.clone()), CancellationToken::new());
            let mut input = spawn_line_reader(Box::new(Cursor::new(bytes.to_vec()))).unwrap();
            let (mut heard, mut silent, mut asked) = (0_usize, 0_usize, Vec::new());
            while let Some(line) = input.blocking_recv() {
                heard += 1;
                let before = kept.0.lock().unwrap().len();
                match client.read(&line) {
                    // Half of them get an answer, the others are let go of.
                    Some(AcpMessage::Request { method, reply, .. }) if heard % 2 == 0 => {
                        asked.push(method);
                        reply.respond(Ok(json!({})));
                    }
                    Some(AcpMessage::Request { .. }) => {}
                    Some(AcpMessage::Notification { .. }) => silent += 1,
                    None => silent += usize::from(kept.0.lock().unwrap().len() == before),
                }
            }
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
            assert_eq!(heard, lines);
            let written = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
            let answers: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(answers.len() + silent, heard, "{written}");
            for answer in &answers {
                let fine =
                    answer["jsonrpc"] == "2.0" && (answer.get("result").is_some() != answer.get("error").is_some());
                assert!(fine, "{answer}");
            }
            let codes = answers.iter().map(|answer| answer["error"]["code"].as_i64()).collect::<Vec<_>>();
            (codes, asked, silent)
        });
}
