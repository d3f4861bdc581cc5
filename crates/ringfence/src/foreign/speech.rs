//! What is said between a server and us: messages of JSON-RPC, read and written. No socket, no clock.

use serde::Deserialize;
use serde_json::{Value, json};

/// A message that has more bytes than this is not taken in.
pub(crate) const LONGEST: usize = 8 << 20;

/// What the server is told by us first, and what it must be one of.
pub(crate) const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// What a server said.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    Answer {
        id: u64,
        result: Result<Value, Refusal>,
    },
    /// It wants something of us.
    Asks {
        id: Value,
        method: String,
    },
    /// Something that nobody here waits for.
    Else,
}

/// An error of the protocol, in the server's words.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Refusal {
    #[serde(default)]
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
}

/// Reads one message. What does not read is nothing that we wait for.
pub(crate) fn read(bytes: &[u8]) -> Said {
    #[derive(Deserialize)]
    struct Message {
        id: Option<Value>,
        method: Option<String>,
        result: Option<Value>,
        error: Option<Refusal>,
    }
    let Ok(message) = serde_json::from_slice::<Message>(bytes) else { return Said::Else };
    match message {
        Message { id: Some(id), method: Some(method), .. } => Said::Asks { id, method },
        Message { id: Some(id), method: None, result, error } => match (id.as_u64(), result, error) {
            (Some(id), _, Some(refusal)) => Said::Answer { id, result: Err(refusal) },
            (Some(id), Some(result), None) => Said::Answer { id, result: Ok(result) },
            _ => Said::Else,
        },
        _ => Said::Else,
    }
}

/// A request, a notification where there is no id.
pub(crate) fn write(id: Option<u64>, method: &str, params: &Value) -> Vec<u8> {
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let Some(id) = id {
        message["id"] = id.into();
    }
    if !params.is_null() {
        message["params"] = params.clone();
    }
    message.to_string().into_bytes()
}

/// What a server gets that wants something of us: we are there, and nothing else.
pub(crate) fn reply(id: &Value, method: &str) -> Vec<u8> {
    let message = match method {
        "ping" => json!({"jsonrpc": "2.0", "id": id, "result": {}}),
        _ => json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "this client does not do that"}}),
    };
    message.to_string().into_bytes()
}

/// Lines out of bytes, however they are cut.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

/// A line had more bytes than may be taken in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Lines {
    /// The lines that are whole now.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.begun.len() + piece.len() > LONGEST {
                return Err(TooLong);
            }
            self.begun.extend(piece);
            if piece.ends_with(b"\n") {
                whole.push(std::mem::take(&mut self.begun));
            }
        }
        Ok(whole)
    }

    /// What came after the last line.
    pub(crate) fn rest(self) -> Vec<u8> {
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{LONGEST, Lines, Refusal, Said, TooLong, read, reply, write};

    #[test]
    fn a_message_is_an_answer_a_wish_or_nothing_for_us() {
        let cases = [
            (r#"{"jsonrpc":"2.0","id":3,"result":{"a":1}}"#, Said::Answer { id: 3, result: Ok(json!({"a": 1})) }),
            (
                r#"{"id":3,"error":{"code":-1,"message":"no"}}"#,
                Said::Answer { id: 3, result: Err(Refusal { code: -1, message: "no".to_owned() }) },
            ),
            (r#"{"id":"x","method":"ping"}"#, Said::Asks { id: json!("x"), method: "ping".to_owned() }),
            (r#"{"method":"notifications/tools/list_changed"}"#, Said::Else),
            (r#"{"id":"3","result":{}}"#, Said::Else),
            (r#"{"id":-3,"result":{}}"#, Said::Else),
            (r#"{"id":3}"#, Said::Else),
            ("[1]", Said::Else),
            ("starting up...", Said::Else),
            ("", Said::Else),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_we_write_is_one_line() {
        let text = String::from_utf8(write(Some(1), "tools/call", &json!({"a": "x\ny"}))).unwrap();
        assert!(!text.contains('\n') && text.contains(r#""id":1"#), "{text}");
        assert!(!String::from_utf8(write(None, "n", &Value::Null)).unwrap().contains("params"));
        assert!(String::from_utf8(reply(&json!(1), "sampling/createMessage")).unwrap().contains("-32601"));
        assert!(String::from_utf8(reply(&json!(1), "ping")).unwrap().contains("result"));
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut_and_none_is_too_long() {
        let text = b"one\ntwo\n\nthree";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut found = lines.push(&text[..cut]).unwrap();
            found.extend(lines.push(&text[cut..]).unwrap());
            assert_eq!(found, [&b"one\n"[..], b"two\n", b"\n"]);
            assert_eq!(lines.rest(), b"three");
        }
        let mut lines = Lines::default();
        assert!(lines.push(&vec![b'x'; LONGEST]).unwrap().is_empty());
        assert_eq!(lines.push(b"x"), Err(TooLong));
    }
}
