//! Streamable HTTP transport to an MCP server: one message per request, the response is JSON or an event stream.
//!
//! Not here: which hosts may be reached. The user wrote this one down, so it may, wherever it is, and no other.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ringfence_kernel::ErrorKind;
use ringfence_kernel::sync::Mutex;
use ringfence_net::{SseDecoder, SseEvent, SseEventTooLong};
use ringfence_web::{EndpointRequest, HttpEndpoint, HttpResponseHead};
use serde_json::{Value, json};

use crate::codec::jsonrpc::{JsonRpcMessage, encode_notification, encode_request, parse_message};
use crate::mcp_client::transport::{MAX_MESSAGE_BYTES, McpClientError, McpDeadline, McpTransport};

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";

/// Time for the cancellation notice.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// A server behind a URL.
pub(crate) struct HttpTransport {
    endpoint: HttpEndpoint,
    next: AtomicU64,
    session: Mutex<Option<String>>,
    version: OnceLock<String>,
    closed: AtomicBool,
}

impl HttpTransport {
    pub(crate) fn new(endpoint: HttpEndpoint) -> Self {
        let (next, closed) = (AtomicU64::new(1), AtomicBool::new(false));
        Self { endpoint, next, session: Mutex::default(), version: OnceLock::new(), closed }
    }

    /// Posts a message, and gives the answer to it, if it is one that has an answer.
    fn post(
        &self,
        id: Option<u64>,
        body: Vec<u8>,
        deadline: &McpDeadline<'_>,
    ) -> Result<Option<Value>, McpClientError> {
        let session = self.session.lock().clone();
        let headers = [(SESSION_HEADER, session.as_deref()), (VERSION_HEADER, self.version.get().map(String::as_str))];
        let headers: Vec<(&str, &str)> = headers.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
        let message = EndpointRequest { body, headers: &headers, timeout: deadline.remaining() };
        let mut reading = McpBodyReader::new(id);
        let head =
            self.endpoint.post(&message, SESSION_HEADER, deadline.check, |head, bytes| reading.push(head, bytes));
        let head = head.map_err(|error| match ((deadline.check)(), error.kind) {
            (Err(stopped), _) => McpClientError::Cancelled(stopped),
            (Ok(()), ErrorKind::Timeout) => McpClientError::Timeout,
            (Ok(()), _) => McpClientError::Network(error.message),
        })?;
        match head.status {
            200..300 => {}
            404 if session.is_some() => {
                self.closed.store(true, Ordering::Relaxed);
                return Err(McpClientError::Exited("the session has expired".to_owned()));
            }
            status => return Err(McpClientError::Network(format!("HTTP status {status}"))),
        }
        if head.requested_header.is_some() {
            *self.session.lock() = head.requested_header.clone();
        }
        reading.finish(&head)
    }
}

impl McpTransport for HttpTransport {
    fn request(&self, method: &str, params: &Value, deadline: &McpDeadline<'_>) -> Result<Value, McpClientError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = self.post(Some(id), encode_request(id, method, params), deadline);
        if matches!(answer, Err(McpClientError::Timeout | McpClientError::Cancelled(_))) {
            let stop = json!({"requestId": id, "reason": "the caller is gone"});
            let until = std::time::Instant::now() + CANCEL_TIMEOUT;
            // A failed notice is ignored: it is too late anyway.
            let _ = self.notify("notifications/cancelled", &stop, &McpDeadline { until, check: &|| Ok(()) });
        }
        answer?.ok_or(McpClientError::ProtocolViolation("no response to the request"))
    }

    fn notify(&self, method: &str, params: &Value, deadline: &McpDeadline<'_>) -> Result<(), McpClientError> {
        self.post(None, encode_notification(method, params), deadline).map(drop)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn set_protocol_version(&self, version: &str) {
        self.version.get_or_init(|| version.to_owned());
    }
}

/// A body as it comes.
struct McpBodyReader {
    id: Option<u64>,
    events: SseDecoder,
    /// A body that is not a stream of events.
    whole: Vec<u8>,
    answer: Option<McpAnswer>,
    too_long: bool,
}

impl McpBodyReader {
    fn new(id: Option<u64>) -> Self {
        let events = SseDecoder::new(MAX_MESSAGE_BYTES);
        Self { id, events, whole: Vec::new(), answer: None, too_long: false }
    }

    /// True when there is nothing more to wait for.
    fn push(&mut self, head: &HttpResponseHead, bytes: &[u8]) -> bool {
        let Self { id, events, whole, answer, .. } = self;
        self.too_long = match is_event_stream(head) {
            true => {
                let pushed: Result<(), SseEventTooLong> = events.push(bytes, &mut |event| {
                    *answer = answer.take().or_else(|| answer_in_event(*id, &event));
                    Ok(())
                });
                pushed.is_err()
            }
            false => {
                whole.extend(bytes);
                whole.len() > MAX_MESSAGE_BYTES
            }
        };
        self.too_long || self.answer.is_some()
    }

    fn finish(self, head: &HttpResponseHead) -> Result<Option<Value>, McpClientError> {
        let Self { id, events, whole, answer, too_long } = self;
        if too_long {
            return Err(McpClientError::TooLong);
        }
        let answer = answer.or_else(|| match is_event_stream(head) {
            true => answer_in_event(id, &events.into_unterminated()?),
            false => answer_in(id, &whole),
        });
        answer.transpose()
    }
}

type McpAnswer = Result<Value, McpClientError>;

/// The response to the request with this id, if the message is that.
fn answer_in(wanted: Option<u64>, message: &[u8]) -> Option<McpAnswer> {
    let (id, result) = match parse_message(message) {
        Ok(JsonRpcMessage::Response { id, result }) => (id.as_u64(), result.map_err(McpClientError::Refused)),
        Ok(_) => return None,
        Err(rejected) => {
            let id = rejected.response_id().and_then(Value::as_u64);
            (id, Err(McpClientError::InvalidResponse(rejected.error)))
        }
    };
    (id.is_some() && id == wanted).then_some(result)
}

fn answer_in_event(wanted: Option<u64>, event: &SseEvent) -> Option<McpAnswer> {
    // With replaced bytes it is not what the server sent.
    if event.had_invalid_utf8 { None } else { answer_in(wanted, event.data.as_bytes()) }
}

fn is_event_stream(head: &HttpResponseHead) -> bool {
    head.content_type.to_ascii_lowercase().starts_with("text/event-stream")
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTransport").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ringfence_web::HttpResponseHead;
    use serde_json::{Value, json};

    use super::McpBodyReader;
    use crate::mcp_client::transport::{MAX_MESSAGE_BYTES, McpClientError};

    fn read(content_type: &str, body: &[u8], cut: usize) -> Result<Option<Value>, McpClientError> {
        let head = HttpResponseHead { status: 200, content_type: content_type.to_owned(), requested_header: None };
        let mut reading = McpBodyReader::new(Some(7));
        let _ = reading.push(&head, &body[..cut]) || reading.push(&head, &body[cut..]);
        reading.finish(&head)
    }

    #[test]
    fn an_answer_is_found_in_json_and_among_events_however_they_are_cut() {
        let json_body = b"{\"jsonrpc\":\"2.0\",\n\"id\":7,\"result\":{\"a\":1}}";
        let events = b"event: message\r\ndata: {\"method\":\"notifications/progress\"}\r\n\r\nid: 4\ndata: {\"id\":7,\ndata: \"result\":{\"a\":1}}\n\ndata: {\"id\":7,\"result\":{\"a\":2}}\n\n";
        for cut in 0..json_body.len() {
            assert_eq!(read("application/json", json_body, cut).unwrap(), Some(json!({"a": 1})));
        }
        for cut in 0..events.len() {
            assert_eq!(read("text/event-stream; charset=utf-8", events, cut).unwrap(), Some(json!({"a": 1})), "{cut}");
        }
        assert_eq!(read("application/json", br#"{"id":8,"result":{}}"#, 0).unwrap(), None);
        assert!(matches!(
            read("application/json", br#"{"id":7,"result":{"a":1,"a":2}}"#, 9),
            Err(McpClientError::InvalidResponse(_))
        ));
        assert!(matches!(read("text/html", &vec![b'x'; MAX_MESSAGE_BYTES + 1], 0), Err(McpClientError::TooLong)));
        assert!(matches!(
            read("application/json", br#"{"id":7,"error":{"code":1,"message":"no"}}"#, 3),
            Err(McpClientError::Refused(_))
        ));
    }

    #[test]
    fn the_last_event_may_lack_its_empty_line_and_invalid_text_is_not_an_answer() {
        let last = br#"data: {"id":7,"result":{"a":1}}"#;
        assert_eq!(read("text/event-stream", last, 9).unwrap(), Some(json!({"a": 1})));
        let invalid = b"data: {\"id\":7,\"result\":\"\xff\"}\n\n";
        assert_eq!(read("text/event-stream", invalid, 9).unwrap(), None);
        let endless = [&b"data: "[..], &vec![b'x'; MAX_MESSAGE_BYTES]].concat();
        assert!(matches!(read("text/event-stream", &endless, 9), Err(McpClientError::TooLong)));
    }
}
