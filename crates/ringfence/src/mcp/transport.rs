//! MCP stdio transport: one JSON-RPC message per line.
//!
//! Every incoming line gets a response or is one: a malformed one gets an error, where the SDK's own reader would drop
//! it. Messages are sent in order. Structured content that is a string is JSON already, and is sent as such
//! (`tools.rs`).
//!
//! Not here: the lines and what is refused of them (`codec/jsonrpc.rs`), and the meaning of a message, which is the SDK's.

use std::io;

use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorCode, ErrorData, GetExtensions as _, JsonRpcMessage, RequestId,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::codec::jsonrpc::{self, FramedLine, FramingError, LineFramer, RejectedMessage};
use crate::mcp::in_flight::{InFlightError, InFlightRequests};

/// More requests wait for their answer than may.
const SERVER_BUSY: ErrorCode = ErrorCode(-32000);

/// Size of a read from the input, and of a write to the output.
const CHUNK_BYTES: usize = 64 << 10;

/// A connection to a client.
#[derive(Debug)]
pub(super) struct StdioServerTransport<R> {
    input: BoundedLines<R>,
    output: OutputQueue,
    in_flight: InFlightRequests,
    /// Cancelled when the client closed its side.
    closed: CancellationToken,
}

impl<R: AsyncRead + Unpin + Send> StdioServerTransport<R> {
    /// `longest` is how many bytes a message may have.
    pub(super) fn new(
        input: R,
        output: impl AsyncWrite + Unpin + Send + 'static,
        longest: usize,
        in_flight: InFlightRequests,
        closed: CancellationToken,
    ) -> Self {
        let input = BoundedLines { input, framer: LineFramer::new(longest), at_end: false };
        Self { input, output: OutputQueue::new(output), in_flight, closed }
    }

    /// The message of a line, if it can be taken.
    fn read(&self, line: &[u8]) -> Result<RxJsonRpcMessage<RoleServer>, RejectedLine> {
        let checked = jsonrpc::check_message(line)
            .and_then(|()| serde_json::from_slice::<ClientJsonRpcMessage>(line).map_err(|_| jsonrpc::reject(line)));
        let mut message = checked.map_err(|rejected| RejectedLine::new(&rejected))?;
        match &mut message {
            JsonRpcMessage::Request(request) => {
                let taken = self.in_flight.admit(&request.id, line.len()).map_err(|why| {
                    let (code, message) = match why {
                        InFlightError::DuplicateId => {
                            (ErrorCode::INVALID_REQUEST, "a request with this id is still in flight")
                        }
                        InFlightError::TooMany => (SERVER_BUSY, "too many requests in flight; retry later"),
                    };
                    RejectedLine { id: Some(request.id.clone()), error: Box::new(ErrorData::new(code, message, None)) }
                })?;
                request.request.extensions_mut().insert(taken);
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.in_flight.mark_cancelled(id);
                }
            }
            _ => {}
        }
        Ok(message)
    }
}

impl<R: AsyncRead + Unpin + Send> Transport<RoleServer> for StdioServerTransport<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let answers = match &message {
            JsonRpcMessage::Response(response) => Some(response.id.clone()),
            JsonRpcMessage::Error(error) => error.id.clone(),
            _ => None,
        };
        let sent = self.output.send_line(message);
        let in_flight = self.in_flight.clone();
        async move {
            let sent = sent.await;
            if let Some(id) = answers {
                in_flight.mark_answered(&id);
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let line = tokio::select! {
                biased;
                // Where no answer gets out any more, none is waited for in vain.
                () = self.output.wait_closed() => Ok(None),
                line = self.input.next_line() => line,
            };
            let refusal = match line {
                // Where the input cannot be read any more, it is as good as closed.
                Ok(None) | Err(_) => {
                    self.closed.cancel();
                    return None;
                }
                Ok(Some(line)) if line.is_blank() => continue,
                Ok(Some(FramedLine::TooLong)) => {
                    let error = FramingError::TooLong(self.input.framer.max_bytes());
                    RejectedLine { id: None, error: Box::new(error_data(&error)) }
                }
                Ok(Some(FramedLine::Complete(line))) => match self.read(&line) {
                    Ok(message) => return Some(message),
                    Err(refusal) => refusal,
                },
            };
            let message: TxJsonRpcMessage<RoleServer> = JsonRpcMessage::error(*refusal.error, refusal.id);
            // A client that reads nothing is not read from either. Dropped here, the refusal is on its way already.
            let _ = self.output.send_line(message).await;
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.output.close().await
    }
}

struct RejectedLine {
    id: Option<RequestId>,
    error: Box<ErrorData>,
}

impl RejectedLine {
    fn new(rejected: &RejectedMessage) -> Self {
        let id = rejected.request_id().and_then(|id| serde_json::from_value(id.clone()).ok());
        Self { id, error: Box::new(error_data(&rejected.error)) }
    }
}

fn error_data(error: &FramingError) -> ErrorData {
    ErrorData::new(ErrorCode(error.code()), error.to_string(), None)
}

/// Bounded lines of an input.
#[derive(Debug)]
struct BoundedLines<R> {
    input: R,
    framer: LineFramer,
    at_end: bool,
}

impl<R: AsyncRead + Unpin> BoundedLines<R> {
    /// The next line. It may be dropped and called again: nothing is lost.
    async fn next_line(&mut self) -> io::Result<Option<FramedLine>> {
        loop {
            if let Some(line) = self.framer.next_line() {
                return Ok(Some(line));
            }
            if self.at_end {
                return Ok(self.framer.finish());
            }
            self.at_end = self.input.read_buf(self.framer.input_buffer(CHUNK_BYTES)).await? == 0;
        }
    }
}

/// A line, and who waits until it is written.
type QueuedLine = (Vec<u8>, oneshot::Sender<io::Result<()>>);

/// A queue of messages, and the task that writes them out. It ends when the queue is closed, or the reader is gone.
#[derive(Debug)]
struct OutputQueue {
    queue: Option<mpsc::UnboundedSender<QueuedLine>>,
    writer: Option<JoinHandle<()>>,
}

impl OutputQueue {
    fn new(output: impl AsyncWrite + Unpin + Send + 'static) -> Self {
        let (queue, messages) = mpsc::unbounded_channel();
        Self { queue: Some(queue), writer: Some(tokio::spawn(write_lines(output, messages))) }
    }

    /// Puts a message in the queue at once, and returns when it is written.
    fn send_line(&self, message: TxJsonRpcMessage<RoleServer>) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let (written, is_written) = oneshot::channel();
        let put = encode_line(&message).and_then(|line| {
            let queue = self.queue.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
            queue.send((line, written)).map_err(|_| io::ErrorKind::BrokenPipe.into())
        });
        async move {
            put?;
            is_written.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
        }
    }

    /// Waits until nothing can be written any more.
    async fn wait_closed(&self) {
        if let Some(queue) = &self.queue {
            queue.closed().await;
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.queue = None;
        match self.writer.take() {
            Some(writer) => writer.await.map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

/// A message as it leaves.
fn encode_line(message: &TxJsonRpcMessage<RoleServer>) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

async fn write_lines(mut output: impl AsyncWrite + Unpin, mut messages: mpsc::UnboundedReceiver<QueuedLine>) {
    while let Some((mut bytes, written)) = messages.recv().await {
        let mut waiting = vec![written];
        // Queued messages are written in one piece.
        while bytes.len() < CHUNK_BYTES
            && let Ok((more, written)) = messages.try_recv()
        {
            bytes.extend_from_slice(&more);
            waiting.push(written);
        }
        let done = match output.write_all(&bytes).await {
            Ok(()) => output.flush().await,
            Err(error) => Err(error),
        };
        for written in waiting {
            // The sender may have stopped waiting.
            let _ = written.send(done.as_ref().copied().map_err(|error| error.kind().into()));
        }
        if done.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rmcp::model::{JsonRpcMessage, NumberOrString, ServerResult};
    use rmcp::transport::Transport as _;
    use tokio_util::sync::CancellationToken;

    use super::StdioServerTransport;
    use crate::mcp::in_flight::InFlightRequests;

    #[tokio::test]
    async fn a_connection_that_takes_no_answer_is_over_though_its_client_stays() {
        let (_client, input) = tokio::io::duplex(64);
        let (closed_reader, output) = tokio::io::duplex(64);
        drop(closed_reader);
        let gone = CancellationToken::new();
        let mut wire = StdioServerTransport::new(input, output, 64, InFlightRequests::default(), gone.clone());
        let pong = JsonRpcMessage::response(ServerResult::empty(()), NumberOrString::Number(1));
        assert!(wire.send(pong).await.is_err());
        let ended = tokio::time::timeout(Duration::from_secs(20), wire.receive()).await;
        assert!(matches!(ended, Ok(None)), "it waits for more");
        assert!(gone.is_cancelled());
    }
}
