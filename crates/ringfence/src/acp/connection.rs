//! JSON-RPC 2.0 connection to an ACP client: one message per line, in both directions.
//!
//! Every request of the client gets exactly one response, also where a bug of ours ends the work on it. A request of
//! ours that is no longer needed is cancelled. Nothing but messages is ever written.
//!
//! Not here: the format of a message (`codec/jsonrpc.rs`), and its meaning (`server.rs`).

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, MutexGuard};

use ringfence_kernel::sync::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::codec::jsonrpc::{
    FramedLine, FramingError, INTERNAL_ERROR, JsonRpcError, JsonRpcMessage, LineFramer, encode_notification,
    encode_request, encode_response, parse_message,
};

/// Of this protocol: what was named is not there.
pub(super) const RESOURCE_NOT_FOUND: i32 = -32002;

/// Longest message: a prompt may have files in it.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Bytes of a read from the input.
const CHUNK_BYTES: usize = 64 << 10;

/// Lines that wait to be looked at.
const LINE_QUEUE: usize = 64;

/// Something that came in.
#[derive(Debug)]
pub(super) enum AcpMessage {
    Request { method: String, params: Value, reply: AcpResponder },
    Notification { method: String, params: Value },
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
        self.send(&encode_notification(method, params));
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
        self.send(&encode_request(id, method, params));
        let detail = answered.await.ok().flatten();
        drop(asked);
        detail
    }

    /// The message of a line, if it needs handling.
    pub(super) fn read(&self, line: &FramedLine) -> Option<AcpMessage> {
        let rejected = match line {
            FramedLine::TooLong => {
                self.send_error(&Value::Null, FramingError::TooLong(MAX_LINE_BYTES).into());
                return None;
            }
            FramedLine::Complete(line) => match parse_message(line) {
                Ok(JsonRpcMessage::Request { id, method, params }) => {
                    let reply = AcpResponder { client: self.clone(), id: Some(id) };
                    return Some(AcpMessage::Request { method, params, reply });
                }
                Ok(JsonRpcMessage::Notification { method, params }) => {
                    return Some(AcpMessage::Notification { method, params });
                }
                Ok(JsonRpcMessage::Response { id, result }) => {
                    self.resolve_request(&id, result.ok());
                    return None;
                }
                Err(rejected) => rejected,
            },
        };
        match rejected.response_id() {
            Some(id) => self.resolve_request(id, None),
            None => self.send_error(rejected.request_id().unwrap_or(&Value::Null), rejected.error.clone().into()),
        }
        None
    }

    fn resolve_request(&self, id: &Value, detail: Option<Value>) {
        let waits = id.as_u64().and_then(|id| self.pending().waiting.remove(&id));
        if let Some(waits) = waits {
            // The waiting request may be gone meanwhile.
            let _ = waits.send(detail);
        }
    }

    fn send_error(&self, id: &Value, error: JsonRpcError) {
        self.send(&encode_response(id, Err(error)));
    }

    fn send(&self, line: &[u8]) {
        let mut output = self.0.output.lock();
        if output.write_all(line).and_then(|()| output.flush()).is_err() {
            self.0.closed.cancel();
        }
    }

    fn pending(&self) -> MutexGuard<'_, AcpPendingRequests> {
        self.0.pending.lock()
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
    pub(super) fn respond(mut self, result: Result<Value, JsonRpcError>) {
        if let Some(id) = self.id.take() {
            self.client.send(&encode_response(&id, result));
        }
    }
}

impl Drop for AcpResponder {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.send_error(&id, JsonRpcError::new(INTERNAL_ERROR, "the request was not finished"));
        }
    }
}

/// Reads lines on a thread of its own, which ends with the input, or with the program.
pub(super) fn spawn_line_reader(mut input: Box<dyn Read + Send>) -> io::Result<mpsc::Receiver<FramedLine>> {
    let (there, lines) = mpsc::channel(LINE_QUEUE);
    std::thread::Builder::new().name("input".to_owned()).spawn(move || {
        let mut framer = LineFramer::new(MAX_LINE_BYTES);
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let at_end = match input.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => true,
                Ok(length) => {
                    framer.push(&chunk[..length]);
                    false
                }
            };
            while let Some(line) = framer.next_line().or_else(|| if at_end { framer.finish() } else { None }) {
                if !line.is_blank() && there.blocking_send(line).is_err() {
                    return;
                }
            }
            if at_end {
                return;
            }
        }
    })?;
    Ok(lines)
}
