//! Canned HTTP server: sends exactly the bytes it was given.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// The reply to one request.
pub(super) struct CannedReply {
    pub(super) bytes: Vec<u8>,
    pub(super) after: AfterReply,
}

/// The server's behaviour after a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterReply {
    Close,
    /// Nothing, until the other side leaves.
    Hold,
    /// The next request comes on the same connection.
    Next,
    /// Signs of life, until the other side leaves.
    Ping,
}

/// A server that ends with this value.
pub(super) struct CannedServer {
    pub(super) url: String,
    requests: Arc<Mutex<Vec<String>>>,
    /// Hears when a reply was sent after which a connection is held.
    pub(super) held: mpsc::UnboundedReceiver<()>,
    /// Hears when the other side left a connection that was held.
    pub(super) disconnected: mpsc::UnboundedReceiver<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for CannedServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CannedServer {
    pub(super) async fn start(replies: Vec<CannedReply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (hold, held) = mpsc::unbounded_channel();
        let (leave, disconnected) = mpsc::unbounded_channel();
        let task = tokio::spawn(serve(listener, replies, requests.clone(), [hold, leave]));
        Self { url, requests, held, disconnected, task }
    }

    /// A server that says the same body to one request.
    pub(super) async fn with_body(status: &str, kind: &str, body: &[u8]) -> Self {
        Self::start(vec![reply(status, kind, body, AfterReply::Close)]).await
    }

    /// Received requests, head and body.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The body of the last request.
    pub(super) fn last_body(&self) -> serde_json::Value {
        let requests = self.requests();
        let (_, body) = requests.last().unwrap().split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }
}

pub(super) fn reply(status: &str, kind: &str, body: &[u8], then: AfterReply) -> CannedReply {
    let head = match then {
        AfterReply::Next => {
            format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len())
        }
        _ => format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"),
    };
    CannedReply { bytes: [head.as_bytes(), body].concat(), after: then }
}

async fn serve(
    listener: TcpListener,
    replies: Vec<CannedReply>,
    requests: Arc<Mutex<Vec<String>>>,
    [hold, leave]: [mpsc::UnboundedSender<()>; 2],
) {
    let mut kept: Option<TcpStream> = None;
    for reply in replies {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => listener.accept().await.unwrap().0,
        };
        let request = request(&mut stream).await;
        requests.lock().unwrap().push(request);
        // The other side may have heard enough.
        if stream.write_all(&reply.bytes).await.is_err() {
            continue;
        }
        match reply.after {
            AfterReply::Close => {}
            AfterReply::Next => kept = Some(stream),
            AfterReply::Hold => {
                let _ = hold.send(());
                let _ = stream.read(&mut [0]).await;
                let _ = leave.send(());
            }
            AfterReply::Ping => {
                let mut beat = tokio::time::interval(std::time::Duration::from_millis(5));
                while stream.write_all(b": ping\n\n").await.is_ok() {
                    beat.tick().await;
                }
            }
        }
    }
    // Further connections stay open until the end of the test.
    std::future::pending::<()>().await;
}

async fn request(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        // A request that is not HTTP is answered nevertheless.
        if all.first().is_some_and(|byte| !byte.is_ascii_alphabetic()) {
            return text;
        }
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
            });
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return text,
            Ok(count) => all.extend_from_slice(&buffer[..count]),
        }
    }
}
