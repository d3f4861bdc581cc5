//! A server that is posted to: streamable HTTP. One message a request; the answer is JSON, or an event among others.
//!
//! Not here: which hosts may be reached. The user wrote this one down, so it may, wherever it is, and no other.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ringfence_kernel::ErrorKind;
use ringfence_web::{Endpoint, Head, Message};
use serde_json::{Value, json};

use super::line::{Line, Patience, Trouble};
use super::speech::{self, LONGEST, Lines, Said};

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";

/// How long it may take to say that nobody waits any more.
const GOODBYE: Duration = Duration::from_secs(1);

/// A server behind a URL.
pub(crate) struct Posts {
    endpoint: Endpoint,
    next: AtomicU64,
    session: Mutex<Option<String>>,
    version: OnceLock<String>,
    over: AtomicBool,
}

impl Posts {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let (next, over) = (AtomicU64::new(1), AtomicBool::new(false));
        Self { endpoint, next, session: Mutex::default(), version: OnceLock::new(), over }
    }

    /// Posts a message, and gives the answer to it, if it is one that has an answer.
    fn post(&self, id: Option<u64>, body: Vec<u8>, patience: &Patience<'_>) -> Result<Option<Value>, Trouble> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let headers = [(SESSION, session.as_deref()), (VERSION, self.version.get().map(String::as_str))];
        let headers: Vec<(&str, &str)> = headers.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
        let message = Message { body, headers: &headers, within: patience.left() };
        let mut reading = Reading::new(id);
        let head = self.endpoint.post(&message, SESSION, patience.check, |head, bytes| reading.take(head, bytes));
        let head = head.map_err(|error| match ((patience.check)(), error.kind) {
            (Err(stopped), _) => Trouble::Unwanted(stopped),
            (Ok(()), ErrorKind::Timeout) => Trouble::Slow,
            (Ok(()), _) => Trouble::Network(error.message),
        })?;
        match head.status {
            200..300 => {}
            404 if session.is_some() => {
                self.over.store(true, Ordering::Relaxed);
                return Err(Trouble::Ended("it has forgotten this session".to_owned()));
            }
            status => return Err(Trouble::Network(format!("it answered with the status {status}"))),
        }
        if head.header.is_some() {
            *self.session.lock().unwrap_or_else(PoisonError::into_inner) = head.header.clone();
        }
        reading.finish(&head)
    }
}

impl Line for Posts {
    fn ask(&self, method: &str, params: &Value, patience: &Patience<'_>) -> Result<Value, Trouble> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = self.post(Some(id), speech::write(Some(id), method, params), patience);
        if matches!(answer, Err(Trouble::Slow | Trouble::Unwanted(_))) {
            let stop = json!({"requestId": id, "reason": "nobody waits any more"});
            let until = std::time::Instant::now() + GOODBYE;
            // Where that cannot be said, it is too late anyway.
            let _ = self.tell("notifications/cancelled", &stop, &Patience { until, check: &|| Ok(()) });
        }
        answer?.ok_or(Trouble::Nonsense("no answer to what was asked"))
    }

    fn tell(&self, method: &str, params: &Value, patience: &Patience<'_>) -> Result<(), Trouble> {
        self.post(None, speech::write(None, method, params), patience).map(drop)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn agree(&self, version: &str) {
        self.version.get_or_init(|| version.to_owned());
    }
}

/// A body as it comes.
struct Reading {
    id: Option<u64>,
    lines: Lines,
    /// The text of the event that is being read.
    event: Vec<u8>,
    answer: Option<Result<Value, speech::Refusal>>,
    too_long: bool,
}

impl Reading {
    fn new(id: Option<u64>) -> Self {
        Self { id, lines: Lines::default(), event: Vec::new(), answer: None, too_long: false }
    }

    /// True when there is nothing more to wait for.
    fn take(&mut self, head: &Head, bytes: &[u8]) -> bool {
        let Ok(lines) = self.lines.push(bytes) else {
            self.too_long = true;
            return true;
        };
        for line in lines {
            match is_events(head) {
                true => self.hear(&line),
                false => self.event.extend(line),
            }
        }
        self.too_long |= self.event.len() > LONGEST;
        self.too_long || self.answer.is_some()
    }

    /// One line of events: those about data belong together until there is an empty one.
    fn hear(&mut self, line: &[u8]) {
        let line = line.trim_ascii_end();
        if let Some(data) = line.strip_prefix(b"data:") {
            self.event.extend(data);
            self.event.push(b'\n');
        } else if line.is_empty() {
            self.judge();
        }
    }

    fn judge(&mut self) {
        if let Said::Answer { id, result } = speech::read(&std::mem::take(&mut self.event))
            && Some(id) == self.id
        {
            self.answer.get_or_insert(result);
        }
    }

    fn finish(mut self, head: &Head) -> Result<Option<Value>, Trouble> {
        if self.too_long {
            return Err(Trouble::TooLong);
        }
        let rest = std::mem::take(&mut self.lines).rest();
        match is_events(head) {
            true => self.hear(&rest),
            false => self.event.extend(rest),
        }
        self.judge();
        self.answer.transpose().map_err(Trouble::Refused)
    }
}

fn is_events(head: &Head) -> bool {
    head.content_type.to_ascii_lowercase().starts_with("text/event-stream")
}

impl fmt::Debug for Posts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posts").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ringfence_web::Head;
    use serde_json::{Value, json};

    use super::Reading;
    use crate::foreign::line::Trouble;
    use crate::foreign::speech::LONGEST;

    fn read(content_type: &str, body: &[u8], cut: usize) -> Result<Option<Value>, Trouble> {
        let head = Head { status: 200, content_type: content_type.to_owned(), header: None };
        let mut reading = Reading::new(Some(7));
        let _ = reading.take(&head, &body[..cut]) || reading.take(&head, &body[cut..]);
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
        assert!(matches!(read("text/html", &vec![b'x'; LONGEST + 1], 0), Err(Trouble::TooLong)));
        assert!(matches!(
            read("application/json", br#"{"id":7,"error":{"code":1,"message":"no"}}"#, 3),
            Err(Trouble::Refused(_))
        ));
    }
}
