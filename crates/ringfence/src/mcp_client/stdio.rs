//! Stdio transport to an MCP server: one message per line.
//!
//! No wait here is unbounded: a thread writes, so that a server that does not read blocks that thread alone, and
//! requests have deadlines. A server that sends too much at once is ended. When the last owner is dropped, so is the
//! server.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ringfence_kernel::sync::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::codec::jsonrpc::{
    FramedLine, JsonRpcError, JsonRpcMessage, LineFramer, METHOD_NOT_FOUND, encode_notification, encode_request,
    encode_response, parse_message,
};
use crate::mcp_client::transport::{MAX_MESSAGE_BYTES, McpClientError, McpDeadline, McpTransport};

/// Poll interval of the cancellation check.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Most messages that wait for a server to read them.
const MAX_QUEUED: usize = 16;

/// Routes a server's responses to the waiting requests.
#[derive(Debug)]
pub(crate) struct McpResponseRouter {
    state: Mutex<McpResponseRouterState>,
    changed: Condvar,
    /// The output queue. `None` once it is closed.
    out: Mutex<Option<SyncSender<Vec<u8>>>>,
}

#[derive(Debug)]
struct McpResponseRouterState {
    framer: LineFramer,
    /// Waiting requests, with their responses.
    waiting: HashMap<u64, Option<Result<Value, McpClientError>>>,
    closed: Option<McpClientError>,
}

impl McpResponseRouterState {
    /// A response to a request that waits no longer is ignored, and so is all but the first.
    fn resolve_request(&mut self, id: &Value, result: Result<Value, McpClientError>) {
        if let Some(response) = id.as_u64().and_then(|id| self.waiting.get_mut(&id)) {
            response.get_or_insert(result);
        }
    }
}

impl McpResponseRouter {
    /// With what is to be written to the server.
    pub(crate) fn new() -> (Arc<Self>, Receiver<Vec<u8>>) {
        let (out, to_write) = sync_channel(MAX_QUEUED);
        let framer = LineFramer::new(MAX_MESSAGE_BYTES);
        let state = McpResponseRouterState { framer, waiting: HashMap::new(), closed: None };
        let inbox = Self { state: Mutex::new(state), changed: Condvar::new(), out: Mutex::new(Some(out)) };
        (Arc::new(inbox), to_write)
    }

    /// Takes in what the server printed.
    pub(crate) fn receive(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.closed.is_some() {
            return;
        }
        state.framer.push(bytes);
        while let Some(line) = state.framer.next_line() {
            let FramedLine::Complete(line) = line else {
                drop(state);
                return self.close(McpClientError::TooLong);
            };
            match parse_message(&line) {
                Ok(JsonRpcMessage::Response { id, result }) => {
                    state.resolve_request(&id, result.map_err(McpClientError::Refused));
                }
                // A failed reply is the server's own problem.
                Ok(JsonRpcMessage::Request { id, method, .. }) => drop(self.send(reply_to(&id, &method))),
                Ok(JsonRpcMessage::Notification { .. }) => {}
                // Servers print other text too.
                Err(rejected) => {
                    if let Some(id) = rejected.response_id() {
                        state.resolve_request(id, Err(McpClientError::InvalidResponse(rejected.error.clone())));
                    }
                }
            }
        }
        self.changed.notify_all();
    }

    /// Nothing comes any more. The first reason counts.
    pub(crate) fn close(&self, why: McpClientError) {
        self.state().closed.get_or_insert(why);
        *self.out.lock() = None;
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed.is_some()
    }

    fn send(&self, message: Vec<u8>) -> Result<(), McpClientError> {
        match &*self.out.lock() {
            Some(out) => out.try_send(message).map_err(|_| McpClientError::Busy),
            None => Err(McpClientError::Exited("the process is gone".to_owned())),
        }
    }

    fn wait_for_response(&self, id: u64, deadline: &McpDeadline<'_>) -> Result<Value, McpClientError> {
        let mut state = self.state();
        loop {
            if let Some(Some(result)) = state.waiting.get_mut(&id).map(Option::take) {
                return result;
            }
            if let Some(why) = &state.closed {
                return Err(why.clone());
            }
            let left = deadline.remaining();
            if left.is_zero() {
                return Err(McpClientError::Timeout);
            }
            state = self.changed.wait_timeout(state, left.min(POLL_INTERVAL));
            (deadline.check)().map_err(McpClientError::Cancelled)?;
        }
    }

    fn state(&self) -> MutexGuard<'_, McpResponseRouterState> {
        self.state.lock()
    }
}

/// Writes what is to be written, until the server is gone.
pub(crate) fn write_messages(to_write: &Receiver<Vec<u8>>, mut input: impl Write) {
    for message in to_write {
        if input.write_all(&message).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

/// The reply to a server's request: `ping` is answered, any other method is unsupported.
pub(super) fn reply_to(id: &Value, method: &str) -> Vec<u8> {
    let result = match method {
        "ping" => Ok(json!({})),
        _ => Err(JsonRpcError::new(METHOD_NOT_FOUND, "method not supported by this client")),
    };
    encode_response(id, result)
}

/// Ends a program on drop.
pub(crate) trait ProcessGuard: Send + Sync + fmt::Debug {}

/// A program and the pipes to it.
#[derive(Debug)]
pub(crate) struct StdioTransport {
    router: Arc<McpResponseRouter>,
    next: AtomicU64,
    _program: Box<dyn ProcessGuard>,
}

impl StdioTransport {
    pub(crate) fn new(router: Arc<McpResponseRouter>, program: Box<dyn ProcessGuard>) -> Self {
        Self { router, next: AtomicU64::new(1), _program: program }
    }
}

impl McpTransport for StdioTransport {
    fn request(&self, method: &str, params: &Value, deadline: &McpDeadline<'_>) -> Result<Value, McpClientError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.router.state().waiting.insert(id, None);
        let answer = self
            .router
            .send(encode_request(id, method, params))
            .and_then(|()| self.router.wait_for_response(id, deadline));
        self.router.state().waiting.remove(&id);
        if matches!(answer, Err(McpClientError::Timeout | McpClientError::Cancelled(_))) {
            // A failed notice is ignored: the server does not read.
            let stop = json!({"requestId": id, "reason": "the caller is gone"});
            let _ = self.router.send(encode_notification("notifications/cancelled", &stop));
        }
        answer
    }

    fn notify(&self, method: &str, params: &Value, _: &McpDeadline<'_>) -> Result<(), McpClientError> {
        self.router.send(encode_notification(method, params))
    }

    fn is_closed(&self) -> bool {
        self.router.is_closed()
    }
}
