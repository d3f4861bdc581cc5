//! JSON-RPC messages of the MCP client, parsed and written. No socket, no clock.

use serde::Deserialize;
use serde_json::{Value, json};

/// A message that has more bytes than this is not taken in.
pub(crate) const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Supported protocol versions, the requested one first.
pub(crate) const PROTOCOL_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// A message of a server.
#[derive(Debug, PartialEq)]
pub(crate) enum McpServerMessage {
    Response {
        id: u64,
        result: Result<Value, McpServerError>,
    },
    /// It wants something of us.
    Request {
        id: Value,
        method: String,
    },
    /// A message without a waiting request.
    Other,
}

/// An error of the protocol, in the server's words.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct McpServerError {
    #[serde(default)]
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
}

/// Parses one message. An invalid one is ignored.
pub(crate) fn parse(bytes: &[u8]) -> McpServerMessage {
    #[derive(Deserialize)]
    struct RawServerMessage {
        id: Option<Value>,
        method: Option<String>,
        result: Option<Value>,
        error: Option<McpServerError>,
    }
    let Ok(message) = serde_json::from_slice::<RawServerMessage>(bytes) else { return McpServerMessage::Other };
    match message {
        RawServerMessage { id: Some(id), method: Some(method), .. } => McpServerMessage::Request { id, method },
        RawServerMessage { id: Some(id), method: None, result, error } => match (id.as_u64(), result, error) {
            (Some(id), _, Some(refusal)) => McpServerMessage::Response { id, result: Err(refusal) },
            (Some(id), Some(result), None) => McpServerMessage::Response { id, result: Ok(result) },
            _ => McpServerMessage::Other,
        },
        _ => McpServerMessage::Other,
    }
}

/// A request, a notification where there is no id.
pub(crate) fn encode_request(id: Option<u64>, method: &str, params: &Value) -> Vec<u8> {
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let Some(id) = id {
        message["id"] = id.into();
    }
    if !params.is_null() {
        message["params"] = params.clone();
    }
    message.to_string().into_bytes()
}

/// The reply to a server's request: `ping` is answered, any other method is unsupported.
pub(crate) fn encode_reply(id: &Value, method: &str) -> Vec<u8> {
    let message = match method {
        "ping" => json!({"jsonrpc": "2.0", "id": id, "result": {}}),
        _ => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "method not supported by this client"}})
        }
    };
    message.to_string().into_bytes()
}

/// Lines out of bytes, however they are cut.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    partial: Vec<u8>,
}

/// A line had more bytes than may be taken in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineTooLong;

impl LineSplitter {
    /// The lines that are whole now.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, LineTooLong> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.partial.len() + piece.len() > MAX_MESSAGE_BYTES {
                return Err(LineTooLong);
            }
            self.partial.extend(piece);
            if piece.ends_with(b"\n") {
                whole.push(std::mem::take(&mut self.partial));
            }
        }
        Ok(whole)
    }

    /// The bytes after the last line.
    #[cfg(test)]
    pub(crate) fn remainder(self) -> Vec<u8> {
        self.partial
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        LineSplitter, LineTooLong, MAX_MESSAGE_BYTES, McpServerError, McpServerMessage, encode_reply, encode_request,
        parse,
    };

    #[test]
    fn a_message_is_an_answer_a_wish_or_nothing_for_us() {
        let cases = [
            (
                r#"{"jsonrpc":"2.0","id":3,"result":{"a":1}}"#,
                McpServerMessage::Response { id: 3, result: Ok(json!({"a": 1})) },
            ),
            (
                r#"{"id":3,"error":{"code":-1,"message":"no"}}"#,
                McpServerMessage::Response {
                    id: 3,
                    result: Err(McpServerError { code: -1, message: "no".to_owned() }),
                },
            ),
            (r#"{"id":"x","method":"ping"}"#, McpServerMessage::Request { id: json!("x"), method: "ping".to_owned() }),
            (r#"{"method":"notifications/tools/list_changed"}"#, McpServerMessage::Other),
            (r#"{"id":"3","result":{}}"#, McpServerMessage::Other),
            (r#"{"id":-3,"result":{}}"#, McpServerMessage::Other),
            (r#"{"id":3}"#, McpServerMessage::Other),
            ("[1]", McpServerMessage::Other),
            ("starting up...", McpServerMessage::Other),
            ("", McpServerMessage::Other),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn an_encoded_message_is_one_line() {
        let text = String::from_utf8(encode_request(Some(1), "tools/call", &json!({"a": "x\ny"}))).unwrap();
        assert!(!text.contains('\n') && text.contains(r#""id":1"#), "{text}");
        assert!(!String::from_utf8(encode_request(None, "n", &Value::Null)).unwrap().contains("params"));
        assert!(String::from_utf8(encode_reply(&json!(1), "sampling/createMessage")).unwrap().contains("-32601"));
        assert!(String::from_utf8(encode_reply(&json!(1), "ping")).unwrap().contains("result"));
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut_and_none_is_too_long() {
        let text = b"one\ntwo\n\nthree";
        for cut in 0..text.len() {
            let mut lines = LineSplitter::default();
            let mut found = lines.push(&text[..cut]).unwrap();
            found.extend(lines.push(&text[cut..]).unwrap());
            assert_eq!(found, [&b"one\n"[..], b"two\n", b"\n"]);
            assert_eq!(lines.remainder(), b"three");
        }
        let mut lines = LineSplitter::default();
        assert!(lines.push(&vec![b'x'; MAX_MESSAGE_BYTES]).unwrap().is_empty());
        assert_eq!(lines.push(b"x"), Err(LineTooLong));
    }
}
