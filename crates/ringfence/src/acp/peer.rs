//! The other side of the connection: one JSON-RPC 2.0 message a line, each way.
//!
//! Every request that comes in gets exactly one answer, also where a bug of ours ends the work on it. A question of ours
//! that is no longer open is taken back. Nothing but messages is ever written.
//!
//! Not here: what a message means (`server.rs`).

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::mcp::keys::{self, Bad};

pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const NO_SUCH_METHOD: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL: i64 = -32603;
/// Of this protocol: what was named is not there.
pub(super) const NOT_FOUND: i64 = -32002;

/// A prompt may bring files along; a longer message than this is nobody's.
const LONGEST_LINE: u64 = 16 << 20;

/// Lines that wait to be looked at.
const WAITING: usize = 64;

/// Why a request is not done.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Something that came in.
#[derive(Debug)]
pub(super) enum Message {
    Request { method: String, params: Value, reply: Reply },
    Notification { method: String, params: Value },
}

/// What is there on the line, before it is known what it is.
#[derive(Deserialize)]
struct Raw {
    id: Option<Value>,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    error: Option<Value>,
}

/// The client, to be told and asked.
#[derive(Clone, Debug)]
pub(super) struct Client(Arc<Inner>);

struct Inner {
    output: Mutex<Box<dyn Write + Send>>,
    open: Mutex<Questions>,
    gone: CancellationToken,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// Our own requests that wait for an answer.
#[derive(Default)]
struct Questions {
    asked: u64,
    waiting: HashMap<u64, oneshot::Sender<Option<Value>>>,
}

impl Client {
    /// `gone` is told when nothing can be written any more.
    pub(super) fn new(output: Box<dyn Write + Send>, gone: CancellationToken) -> Self {
        Self(Arc::new(Inner { output: Mutex::new(output), open: Mutex::default(), gone }))
    }

    pub(super) fn notify(&self, method: &str, params: &Value) {
        self.put(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Asks, and waits for the answer. Nothing where the client cannot answer. Dropped, it takes the question back.
    pub(super) async fn ask(&self, method: &str, params: &Value) -> Option<Value> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut open = self.open();
            open.asked += 1;
            let id = open.asked;
            open.waiting.insert(id, answer);
            id
        };
        let asked = Asked { client: self, id };
        self.put(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let said = answered.await.ok().flatten();
        drop(asked);
        said
    }

    /// What a line has in it, for those who have to do something about it.
    pub(super) fn read(&self, line: &Line) -> Option<Message> {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong => {
                let message = format!("this line has more than {LONGEST_LINE} bytes");
                self.refuse(&Value::Null, &Refusal::new(INVALID_REQUEST, message));
                return None;
            }
        };
        match parse(line) {
            Ok(Raw { id: Some(id), method: Some(method), params, .. }) => {
                Some(Message::Request { method, params, reply: Reply { client: self.clone(), id: Some(id) } })
            }
            Ok(Raw { id: None, method: Some(method), params, .. }) => Some(Message::Notification { method, params }),
            Ok(Raw { id, result, error, .. }) => {
                self.answered(id.as_ref(), error.is_none().then_some(result));
                None
            }
            Err(refusal) => {
                self.refuse(&Value::Null, &refusal);
                None
            }
        }
    }

    fn answered(&self, id: Option<&Value>, said: Option<Value>) {
        let waits = id.and_then(Value::as_u64).and_then(|id| self.open().waiting.remove(&id));
        if let Some(waits) = waits {
            // Whoever asked may have gone meanwhile.
            let _ = waits.send(said);
        }
    }

    fn refuse(&self, id: &Value, refusal: &Refusal) {
        let Refusal { code, message } = refusal;
        self.put(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}));
    }

    fn put(&self, message: &Value) {
        let mut output = self.0.output.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{message}\n");
        if output.write_all(line.as_bytes()).and_then(|()| output.flush()).is_err() {
            self.0.gone.cancel();
        }
    }

    fn open(&self) -> MutexGuard<'_, Questions> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question on the client's screen.
struct Asked<'a> {
    client: &'a Client,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.client.open().waiting.remove(&self.id).is_some() {
            self.client.notify("$/cancel_request", &json!({"requestId": self.id}));
        }
    }
}

/// The one answer that a request gets.
#[derive(Debug)]
pub(super) struct Reply {
    client: Client,
    id: Option<Value>,
}

impl Reply {
    pub(super) fn give(mut self, result: Result<Value, Refusal>) {
        let Some(id) = self.id.take() else { return };
        match result {
            Ok(result) => self.client.put(&json!({"jsonrpc": "2.0", "id": id, "result": result})),
            Err(refusal) => self.client.refuse(&id, &refusal),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.refuse(&id, &Refusal::new(INTERNAL, "this was not finished"));
        }
    }
}

fn parse(line: &[u8]) -> Result<Raw, Refusal> {
    keys::check(line).map_err(|bad| match bad {
        Bad::Syntax => Refusal::new(PARSE_ERROR, "this line is no JSON"),
        Bad::Twice(said) => Refusal::new(INVALID_REQUEST, said),
    })?;
    let raw: Raw = serde_json::from_slice(line)
        .map_err(|_| Refusal::new(INVALID_REQUEST, "this is no JSON-RPC 2.0 request, notification or response"))?;
    let is_message = raw.method.is_some() || raw.id.is_some();
    let fine_id = raw.id.as_ref().is_none_or(|id| id.is_string() || id.is_number());
    match is_message && fine_id {
        true => Ok(raw),
        false => Err(Refusal::new(INVALID_REQUEST, "this is no JSON-RPC 2.0 request, notification or response")),
    }
}

/// A line of input.
#[derive(Debug)]
pub(super) enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// Reads lines on a thread of its own, which ends with the input, or with the program.
pub(super) fn lines(input: Box<dyn Read + Send>) -> std::io::Result<mpsc::Receiver<Line>> {
    let (there, lines) = mpsc::channel(WAITING);
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
fn next_line(input: &mut BufReader<Box<dyn Read + Send>>) -> std::io::Result<Option<Line>> {
    loop {
        let mut line = Vec::new();
        if input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.len() as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
            input.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Some(Line::Whole(line)));
        }
    }
}
