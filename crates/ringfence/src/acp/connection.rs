//! JSON-RPC 2.0 connection to an ACP client: one message per line, in both directions.
//!
//! Every request of the client gets exactly one response, also where a bug of ours ends the work on it. A request of
//! ours that is no longer needed is cancelled. Nothing but messages is ever written.
//!
//! Not here: the meaning of a message (`server.rs`).

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_kernel::{StrictJsonError, check_json};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;
/// Of this protocol: what was named is not there.
pub(super) const RESOURCE_NOT_FOUND: i64 = -32002;

/// Longest message: a prompt may have files in it.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Lines that wait to be looked at.
const LINE_QUEUE: usize = 64;

/// Error of a request.
#[derive(Debug)]
pub(super) struct AcpError {
    pub(super) code: i64,
    pub(super) message: String,
}

impl AcpError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Something that came in.
#[derive(Debug)]
pub(super) enum AcpMessage {
    Request { method: String, params: Value, reply: AcpResponder },
    Notification { method: String, params: Value },
}

/// A message before its kind is known.
#[derive(Deserialize)]
struct RawAcpMessage {
    id: Option<Value>,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    error: Option<Value>,
}

/// The client, for notifications and requests.
#[derive(Clone, Debug)]
pub(super) struct AcpClientConnection(Arc<AcpClientConnectionInner>);

struct AcpClientConnectionInner {
    output: Mutex<Box<dyn Write + Send>>,
    pending: Mutex<AcpPendingRequests>,
    closed: CancellationToken,
}

impl fmt::Debug for AcpClientConnectionInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AcpClientConnectionInner")
    }
}

/// Our own requests that wait for an answer.
#[derive(Default)]
struct AcpPendingRequests {
    last_id: u64,
    waiting: HashMap<u64, oneshot::Sender<Option<Value>>>,
}

impl AcpClientConnection {
    /// `gone` is cancelled when nothing can be written any more.
    pub(super) fn new(output: Box<dyn Write + Send>, gone: CancellationToken) -> Self {
        Self(Arc::new(AcpClientConnectionInner { output: Mutex::new(output), pending: Mutex::default(), closed: gone }))
    }

    pub(super) fn notify(&self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Asks, and waits for the answer. Nothing where the client cannot answer. Dropped, it takes the question back.
    pub(super) async fn request(&self, method: &str, params: &Value) -> Option<Value> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut open = self.pending();
            open.last_id += 1;
            let id = open.last_id;
            open.waiting.insert(id, answer);
            id
        };
        let asked = AcpPendingRequest { client: self, id };
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let detail = answered.await.ok().flatten();
        drop(asked);
        detail
    }

    /// The message of a line, if it needs handling.
    pub(super) fn read(&self, line: &AcpLine) -> Option<AcpMessage> {
        let line = match line {
            AcpLine::Whole(line) => line,
            AcpLine::TooLong => {
                let message = format!("this line has more than {MAX_LINE_BYTES} bytes");
                self.send_error(&Value::Null, &AcpError::new(INVALID_REQUEST, message));
                return None;
            }
        };
        match parse(line) {
            Ok(RawAcpMessage { id: Some(id), method: Some(method), params, .. }) => {
                Some(AcpMessage::Request { method, params, reply: AcpResponder { client: self.clone(), id: Some(id) } })
            }
            Ok(RawAcpMessage { id: None, method: Some(method), params, .. }) => {
                Some(AcpMessage::Notification { method, params })
            }
            Ok(RawAcpMessage { id, result, error, .. }) => {
                self.resolve_request(id.as_ref(), error.is_none().then_some(result));
                None
            }
            Err(refusal) => {
                self.send_error(&Value::Null, &refusal);
                None
            }
        }
    }

    fn resolve_request(&self, id: Option<&Value>, detail: Option<Value>) {
        let waits = id.and_then(Value::as_u64).and_then(|id| self.pending().waiting.remove(&id));
        if let Some(waits) = waits {
            // The waiting request may be gone meanwhile.
            let _ = waits.send(detail);
        }
    }

    fn send_error(&self, id: &Value, refusal: &AcpError) {
        let AcpError { code, message } = refusal;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}));
    }

    fn send(&self, message: &Value) {
        let mut output = self.0.output.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{message}\n");
        if output.write_all(line.as_bytes()).and_then(|()| output.flush()).is_err() {
            self.0.closed.cancel();
        }
    }

    fn pending(&self) -> MutexGuard<'_, AcpPendingRequests> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question on the client's screen.
struct AcpPendingRequest<'a> {
    client: &'a AcpClientConnection,
    id: u64,
}

impl Drop for AcpPendingRequest<'_> {
    fn drop(&mut self) {
        if self.client.pending().waiting.remove(&self.id).is_some() {
            self.client.notify("$/cancel_request", &json!({"requestId": self.id}));
        }
    }
}

/// The one answer that a request gets.
#[derive(Debug)]
pub(super) struct AcpResponder {
    client: AcpClientConnection,
    id: Option<Value>,
}

impl AcpResponder {
    pub(super) fn respond(mut self, result: Result<Value, AcpError>) {
        let Some(id) = self.id.take() else { return };
        match result {
            Ok(result) => self.client.send(&json!({"jsonrpc": "2.0", "id": id, "result": result})),
            Err(refusal) => self.client.send_error(&id, &refusal),
        }
    }
}

impl Drop for AcpResponder {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.send_error(&id, &AcpError::new(INTERNAL_ERROR, "the request was not finished"));
        }
    }
}

fn parse(line: &[u8]) -> Result<RawAcpMessage, AcpError> {
    check_json(line).map_err(|bad| match bad {
        StrictJsonError::Syntax => AcpError::new(PARSE_ERROR, "invalid JSON"),
        StrictJsonError::DuplicateKey(detail) => AcpError::new(INVALID_REQUEST, detail),
    })?;
    let raw: RawAcpMessage = serde_json::from_slice(line)
        .map_err(|_| AcpError::new(INVALID_REQUEST, "not a JSON-RPC 2.0 request, notification or response"))?;
    let is_message = raw.method.is_some() || raw.id.is_some();
    let fine_id = raw.id.as_ref().is_none_or(|id| id.is_string() || id.is_number());
    match is_message && fine_id {
        true => Ok(raw),
        false => Err(AcpError::new(INVALID_REQUEST, "not a JSON-RPC 2.0 request, notification or response")),
    }
}

/// A line of input.
#[derive(Debug)]
pub(super) enum AcpLine {
    Whole(Vec<u8>),
    TooLong,
}

/// Reads lines on a thread of its own, which ends with the input, or with the program.
pub(super) fn spawn_line_reader(input: Box<dyn Read + Send>) -> std::io::Result<mpsc::Receiver<AcpLine>> {
    let (there, lines) = mpsc::channel(LINE_QUEUE);
    std::thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut input = BufReader::new(input);
        while let Ok(Some(line)) = next_line(&mut input) {
            if there.blocking_send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// Nothing at the end.
fn next_line(input: &mut BufReader<Box<dyn Read + Send>>) -> std::io::Result<Option<AcpLine>> {
    loop {
        let mut line = Vec::new();
        if input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.len() as u64 == MAX_LINE_BYTES && !line.ends_with(b"\n") {
            input.skip_until(b'\n')?;
            return Ok(Some(AcpLine::TooLong));
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Some(AcpLine::Whole(line)));
        }
    }
}
