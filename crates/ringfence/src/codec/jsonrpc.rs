//! JSON-RPC 2.0 framing: one message per line, strictly parsed.
//!
//! A line is bounded, and so is the depth of a message; an object with a duplicate key is refused, since another parser
//! would take the other value. A rejected message keeps its ID where it has one, so that its sender learns of it. The
//! MCP server, the MCP client and the ACP server all read and write through here.
//!
//! Not here: I/O, and the meaning of a message.

use ringfence_kernel::{StrictJsonError, check_json};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL_ERROR: i32 = -32603;

/// Error of a request, as it is sent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct JsonRpcError {
    #[serde(default)]
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
}

impl JsonRpcError {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

impl From<FramingError> for JsonRpcError {
    fn from(error: FramingError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Reason for refusing a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FramingError {
    #[error("this line has more than {0} bytes")]
    TooLong(usize),
    /// Also text that is not UTF-8, or nested too deeply.
    #[error("invalid JSON")]
    Syntax,
    #[error("{0}")]
    DuplicateKey(String),
    #[error("batches are not supported; send one message at a time")]
    Batch,
    #[error("not a JSON-RPC 2.0 request, notification or response")]
    NotMessage,
}

impl FramingError {
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Syntax => PARSE_ERROR,
            Self::TooLong(_) | Self::DuplicateKey(_) | Self::Batch | Self::NotMessage => INVALID_REQUEST,
        }
    }
}

/// A message of the peer.
#[derive(Debug, PartialEq)]
pub(crate) enum JsonRpcMessage {
    /// The ID is a string or a number.
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    Response {
        id: Value,
        result: Result<Value, JsonRpcError>,
    },
}

/// A line that is not a message.
#[derive(Debug, PartialEq)]
pub(crate) struct RejectedMessage {
    pub(crate) error: FramingError,
    sender: Option<RejectedId>,
}

/// ID of a rejected message. The two kinds count IDs separately.
#[derive(Debug, PartialEq)]
enum RejectedId {
    Request(Value),
    Response(Value),
}

impl RejectedMessage {
    /// The ID to answer with, where it was a request.
    pub(crate) fn request_id(&self) -> Option<&Value> {
        match &self.sender {
            Some(RejectedId::Request(id)) => Some(id),
            _ => None,
        }
    }

    /// The ID of the request that it was to answer.
    pub(crate) fn response_id(&self) -> Option<&Value> {
        match &self.sender {
            Some(RejectedId::Response(id)) => Some(id),
            _ => None,
        }
    }

    fn new(error: FramingError, bytes: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct JsonRpcIdFields {
            id: Option<Value>,
            method: Option<Value>,
        }
        let sender = match serde_json::from_slice(bytes) {
            Ok(JsonRpcIdFields { id: Some(id), method }) if is_valid_id(&id) => Some(match method {
                Some(_) => RejectedId::Request(id),
                None => RejectedId::Response(id),
            }),
            _ => None,
        };
        Self { error, sender }
    }
}

/// Fails unless the bytes are one JSON object without duplicate keys at any depth.
pub(crate) fn check_message(bytes: &[u8]) -> Result<(), RejectedMessage> {
    let error = match check_json(bytes) {
        Ok(()) if bytes.trim_ascii_start().starts_with(b"[") => FramingError::Batch,
        Ok(()) => return Ok(()),
        Err(StrictJsonError::Syntax) => return Err(RejectedMessage { error: FramingError::Syntax, sender: None }),
        Err(StrictJsonError::DuplicateKey(detail)) => FramingError::DuplicateKey(detail),
    };
    Err(RejectedMessage::new(error, bytes))
}

/// Rejects a message that passed `check_message` and still is not one.
pub(crate) fn reject(bytes: &[u8]) -> RejectedMessage {
    RejectedMessage::new(FramingError::NotMessage, bytes)
}

/// Parses one message.
pub(crate) fn parse_message(bytes: &[u8]) -> Result<JsonRpcMessage, RejectedMessage> {
    #[derive(Deserialize)]
    struct JsonRpcFields {
        id: Option<Value>,
        method: Option<String>,
        #[serde(default)]
        params: Value,
        #[serde(default, deserialize_with = "present")]
        result: Option<Value>,
        error: Option<JsonRpcError>,
    }
    check_message(bytes)?;
    let fields: JsonRpcFields = serde_json::from_slice(bytes).map_err(|_| reject(bytes))?;
    if fields.id.as_ref().is_some_and(|id| !is_valid_id(id)) {
        return Err(reject(bytes));
    }
    match fields {
        JsonRpcFields { id: Some(id), method: Some(method), params, .. } => {
            Ok(JsonRpcMessage::Request { id, method, params })
        }
        JsonRpcFields { id: None, method: Some(method), params, .. } => {
            Ok(JsonRpcMessage::Notification { method, params })
        }
        JsonRpcFields { id: Some(id), error: Some(error), .. } => {
            Ok(JsonRpcMessage::Response { id, result: Err(error) })
        }
        JsonRpcFields { id: Some(id), result: Some(result), .. } => {
            Ok(JsonRpcMessage::Response { id, result: Ok(result) })
        }
        _ => Err(reject(bytes)),
    }
}

/// A field that is there, also where it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

fn is_valid_id(id: &Value) -> bool {
    id.is_string() || id.is_number()
}

/// A request as a line.
pub(crate) fn encode_request(id: u64, method: &str, params: &Value) -> Vec<u8> {
    encode_call(Some(id), method, params)
}

/// A notification as a line.
pub(crate) fn encode_notification(method: &str, params: &Value) -> Vec<u8> {
    encode_call(None, method, params)
}

fn encode_call(id: Option<u64>, method: &str, params: &Value) -> Vec<u8> {
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if let Some(id) = id {
        message["id"] = id.into();
    }
    if !params.is_null() {
        message["params"] = params.clone();
    }
    line_of(&message)
}

/// A response as a line. The ID is null where that of the request is unknown.
pub(crate) fn encode_response(id: &Value, result: Result<Value, JsonRpcError>) -> Vec<u8> {
    line_of(&match result {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(JsonRpcError { code, message }) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
        }
    })
}

fn line_of(message: &Value) -> Vec<u8> {
    format!("{message}\n").into_bytes()
}

/// Splits bytes into bounded lines, however they are chunked.
#[derive(Debug)]
pub(crate) struct LineFramer {
    buffer: Vec<u8>,
    /// Start of the next line.
    start: usize,
    /// The bytes before this have been searched for the end of that line.
    searched: usize,
    max_bytes: usize,
    /// Its line was too long; the rest of it is dropped.
    skipping: bool,
}

/// A line with its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FramedLine {
    Complete(Vec<u8>),
    /// Reported once, as soon as the bound is passed.
    TooLong,
}

impl FramedLine {
    /// A blank line between messages is ignored.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self, Self::Complete(line) if line.trim_ascii().is_empty())
    }
}

impl LineFramer {
    /// `max_bytes` of a line include its end.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, searched: 0, max_bytes, skipping: false }
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.input_buffer(bytes.len()).extend_from_slice(bytes);
    }

    /// The buffer to append input to, with room for this number of bytes.
    pub(crate) fn input_buffer(&mut self, room: usize) -> &mut Vec<u8> {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.reserve(room);
        &mut self.buffer
    }

    /// The next line, if all of it is there.
    pub(crate) fn next_line(&mut self) -> Option<FramedLine> {
        while let Some(end) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            let line = self.take_until(self.searched + end + 1);
            if !std::mem::take(&mut self.skipping) {
                return Some(if line.len() > self.max_bytes {
                    FramedLine::TooLong
                } else {
                    FramedLine::Complete(line)
                });
            }
        }
        self.searched = self.buffer.len();
        if self.skipping || self.searched - self.start > self.max_bytes {
            drop(self.take_until(self.searched));
            return (!std::mem::replace(&mut self.skipping, true)).then_some(FramedLine::TooLong);
        }
        None
    }

    /// The bytes after the last line, at the end of the input.
    pub(crate) fn finish(&mut self) -> Option<FramedLine> {
        let rest = self.take_until(self.buffer.len());
        (!self.skipping && !rest.is_empty()).then_some(FramedLine::Complete(rest))
    }

    fn take_until(&mut self, end: usize) -> Vec<u8> {
        // One message per read is the common case, and its bytes are not copied.
        let line = match self.start == 0 && end == self.buffer.len() {
            true => std::mem::take(&mut self.buffer),
            false => self.buffer[self.start..end].to_vec(),
        };
        self.start = if self.buffer.is_empty() { 0 } else { end };
        self.searched = self.start;
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_request_a_notification_or_a_response() {
        let request = |id: Value| JsonRpcMessage::Request { id, method: "ping".to_owned(), params: Value::Null };
        let response = |result| JsonRpcMessage::Response { id: json!(3), result };
        let cases = [
            (r#"{"jsonrpc":"2.0","id":3,"result":{"a":1}}"#, response(Ok(json!({"a": 1})))),
            (r#"{"id":3,"result":null}"#, response(Ok(Value::Null))),
            (r#"{"id":3,"error":{"code":-1,"message":"no"}}"#, response(Err(JsonRpcError::new(-1, "no")))),
            (r#"{"id":3,"error":{},"result":1}"#, response(Err(JsonRpcError::new(0, "")))),
            (r#"{"id":"x","method":"ping"}"#, request(json!("x"))),
            (r#"{"id":-1,"method":"ping"}"#, request(json!(-1))),
            (
                r#"{"id":null,"method":"n","params":[1]}"#,
                JsonRpcMessage::Notification { method: "n".to_owned(), params: json!([1]) },
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_message(text.as_bytes()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_rejected_message_keeps_its_id() {
        let deep = format!(r#"{{"id":1,"method":"a","params":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
        let duplicate = |key: &str| FramingError::DuplicateKey(format!("duplicate key `{key}` in an object"));
        let cases = [
            ("starting up...", FramingError::Syntax, None, None),
            ("", FramingError::Syntax, None, None),
            ("\"\u{fffd}", FramingError::Syntax, None, None),
            (deep.as_str(), FramingError::Syntax, None, None),
            ("[]", FramingError::Batch, None, None),
            (r#" [{"id":1,"method":"a"}]"#, FramingError::Batch, None, None),
            (r#"{"id":1,"method":"a","params":{"p":1,"p":2}}"#, duplicate("p"), Some(json!(1)), None),
            (r#"{"id":1,"result":{"p":1,"p":2}}"#, duplicate("p"), None, Some(json!(1))),
            (r#"{"id":1,"id":2,"method":"a"}"#, duplicate("id"), None, None),
            (r#"{"id":1,"method":[]}"#, FramingError::NotMessage, Some(json!(1)), None),
            (r#"{"id":[],"method":"a"}"#, FramingError::NotMessage, None, None),
            (r#"{"id":"b"}"#, FramingError::NotMessage, None, Some(json!("b"))),
            (r#"{"id":1,"error":"no"}"#, FramingError::NotMessage, None, Some(json!(1))),
            ("{}", FramingError::NotMessage, None, None),
            ("1", FramingError::NotMessage, None, None),
        ];
        for (text, error, request, response) in cases {
            let rejected = parse_message(text.as_bytes()).unwrap_err();
            assert_eq!(rejected.error, error, "{text}");
            assert_eq!(
                (rejected.request_id(), rejected.response_id()),
                (request.as_ref(), response.as_ref()),
                "{text}"
            );
        }
        assert_eq!(parse_message(b"\"\xff\"").unwrap_err().error, FramingError::Syntax);
    }

    #[test]
    fn an_encoded_message_is_one_line() {
        let text = String::from_utf8(encode_request(1, "tools/call", &json!({"a": "x\ny"}))).unwrap();
        assert!(text.find('\n') == Some(text.len() - 1) && text.contains(r#""id":1"#), "{text}");
        assert_eq!(encode_notification("n", &Value::Null), b"{\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n");
        let failed = encode_response(&json!("a"), Err(FramingError::TooLong(10).into()));
        assert_eq!(
            String::from_utf8(failed).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"error\":{\"code\":-32600,\"message\":\"this line has more than 10 bytes\"}}\n"
        );
    }

    /// Every line of the pieces, and the rest.
    fn lines(pieces: &[&[u8]], max_bytes: usize) -> Vec<FramedLine> {
        let mut framer = LineFramer::new(max_bytes);
        let mut all = Vec::new();
        for piece in pieces {
            framer.push(piece);
            all.extend(std::iter::from_fn(|| framer.next_line()));
        }
        all.extend(framer.finish());
        assert_eq!((framer.next_line(), framer.finish()), (None, None));
        all
    }

    fn complete(line: &str) -> FramedLine {
        FramedLine::Complete(line.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_the_same_however_they_are_chunked() {
        let text = b"one\ntwo\n\n0123456789\nfour\n0123456789012345678\n012345678\nlast";
        let expected = [
            complete("one\n"),
            complete("two\n"),
            complete("\n"),
            FramedLine::TooLong,
            complete("four\n"),
            FramedLine::TooLong,
            complete("012345678\n"),
            complete("last"),
        ];
        assert_eq!(lines(&[text], 10), expected);
        for cut in 0..text.len() {
            for second in cut..text.len() {
                let pieces = [&text[..cut], &text[cut..second], &text[second..]];
                assert_eq!(lines(&pieces, 10), expected, "{cut} {second}");
            }
        }
        assert_eq!(lines(&text.chunks(1).collect::<Vec<_>>(), 10), expected);
    }

    #[test]
    fn an_endless_line_is_reported_at_once_and_not_kept() {
        let mut framer = LineFramer::new(10);
        framer.push(b"01234567890");
        assert_eq!(framer.next_line(), Some(FramedLine::TooLong));
        for _ in 0..100 {
            framer.push(&[b'x'; 10_000]);
            assert_eq!(framer.next_line(), None);
        }
        assert!(framer.buffer.capacity() < 20_000);
        framer.push(b"\nnext\n");
        assert_eq!(framer.next_line(), Some(complete("next\n")));
    }
}
