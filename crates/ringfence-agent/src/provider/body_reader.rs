//! Streaming body reader: server-sent events or one JSON text, whichever the server sends.
//!
//! The format is detected from the first byte and not from the content type. The outcome does not depend on how the
//! bytes were split, and there is a response only if the model finished.
//!
//! Not here: sockets and clocks (`http.rs`), and what events mean (`openai.rs`, `anthropic.rs`).

use ringfence_net::{SseDecoder, SseEvent, SseEventTooLong};

use super::error::ProviderError;
use crate::model::{ModelErrorKind, ModelResponse, ResponsePartSink};

/// The most that one answer may have, decoded.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of the beginning that are kept for error messages.
const HEAD_BYTES: usize = 400;

/// Parser of one provider's responses.
pub(crate) trait ResponseParser {
    fn on_event(&mut self, event: &SseEvent, parts: &mut ResponsePartSink<'_>)
    -> Result<StreamProgress, ProviderError>;

    /// An answer that came in one piece.
    fn on_body(&mut self, body: &str, parts: &mut ResponsePartSink<'_>) -> Result<(), ProviderError>;

    /// Whether the model finished.
    fn is_finished(&self) -> bool;

    /// Nothing if it never did.
    fn into_response(self) -> Option<ModelResponse>;
}

/// The progress of a stream after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamProgress {
    /// A sign of life.
    KeepAlive,
    /// A part of the answer.
    Progress,
    /// The end: nothing that follows counts.
    End,
}

/// A body that is still coming.
#[derive(Debug)]
pub(crate) struct BodyReader<W> {
    parser: W,
    format: ResponseBodyFormat,
    head: Vec<u8>,
    received: usize,
    progress: StreamProgress,
}

#[derive(Debug)]
enum ResponseBodyFormat {
    /// Only space so far.
    Unknown(Vec<u8>),
    Events(SseDecoder),
    Whole(Vec<u8>),
    /// Nothing that a model says. Its begin is waited for, to be shown.
    Invalid,
}

impl<W: ResponseParser> BodyReader<W> {
    pub(crate) fn new(parser: W) -> Self {
        Self {
            parser,
            format: ResponseBodyFormat::Unknown(Vec::new()),
            head: Vec::new(),
            received: 0,
            progress: StreamProgress::KeepAlive,
        }
    }

    /// Takes more bytes.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<StreamProgress, ProviderError> {
        self.received = self.received.saturating_add(bytes.len());
        if self.received > MAX_BODY_BYTES {
            return Err(SseEventTooLong.into());
        }
        let room = HEAD_BYTES.saturating_sub(self.head.len());
        self.head.extend(bytes.iter().take(room));
        match &mut self.format {
            ResponseBodyFormat::Unknown(start) => {
                start.extend_from_slice(bytes);
                let Some(form) = detect_format(start) else { return Ok(StreamProgress::KeepAlive) };
                let start = std::mem::take(start);
                // Of one JSON text, its begin is the only progress that can be seen.
                let begun = if matches!(form, ResponseBodyFormat::Whole(_)) {
                    StreamProgress::Progress
                } else {
                    StreamProgress::KeepAlive
                };
                self.format = form;
                self.take(&start, parts).map(|heard| heard.max(begun))
            }
            _ => self.take(bytes, parts),
        }
    }

    /// The body ended. `cut` says that it did so before its time, and how.
    pub(crate) fn end(
        mut self,
        cut: Option<ProviderError>,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<ModelResponse, ProviderError> {
        match &self.format {
            ResponseBodyFormat::Unknown(_) => {
                return Err(
                    cut.unwrap_or_else(|| ProviderError::new(ModelErrorKind::Cut, "answered with an empty body"))
                );
            }
            ResponseBodyFormat::Invalid => {
                return Err(ProviderError::invalid_body(describe_body(&self.head), &self.head));
            }
            ResponseBodyFormat::Events(_) if !self.parser.is_finished() && !is_event_stream(&self.head) => {
                return Err(ProviderError::invalid_body("something other than an answer", &self.head));
            }
            ResponseBodyFormat::Events(_) => {}
            ResponseBodyFormat::Whole(body) => {
                let body = String::from_utf8_lossy(body.strip_prefix(BOM).unwrap_or(body)).into_owned();
                let read = self.parser.on_body(&body, parts);
                // JSON that is broken because it was truncated counts as truncated.
                read.map_err(|fault| cut.clone().filter(|_| fault.kind == ModelErrorKind::Cut).unwrap_or(fault))?;
            }
        }
        let void = "the answer ended before the model finished, and was discarded";
        self.parser.into_response().ok_or_else(|| cut.unwrap_or_else(|| ProviderError::new(ModelErrorKind::Cut, void)))
    }

    /// Whether the answer is whole, whatever may follow.
    pub(crate) fn is_finished(&self) -> bool {
        self.parser.is_finished()
    }

    fn take(&mut self, bytes: &[u8], parts: &mut ResponsePartSink<'_>) -> Result<StreamProgress, ProviderError> {
        match &mut self.format {
            ResponseBodyFormat::Events(decoder) => {
                let (wire, last) = (&mut self.parser, &mut self.progress);
                let mut most = StreamProgress::KeepAlive;
                decoder.push::<ProviderError>(bytes, &mut |event| {
                    if *last != StreamProgress::End {
                        *last = wire.on_event(&event, parts)?;
                        most = most.max(*last);
                    }
                    Ok(())
                })?;
                Ok(most)
            }
            ResponseBodyFormat::Whole(body) => {
                body.extend_from_slice(bytes);
                Ok(StreamProgress::KeepAlive)
            }
            ResponseBodyFormat::Invalid if self.head.len() >= HEAD_BYTES => {
                Err(ProviderError::invalid_body(describe_body(&self.head), &self.head))
            }
            ResponseBodyFormat::Invalid | ResponseBodyFormat::Unknown(_) => Ok(StreamProgress::KeepAlive),
        }
    }
}

/// An event has the limit of the whole answer.
impl From<SseEventTooLong> for ProviderError {
    fn from(_: SseEventTooLong) -> Self {
        let text = format!("the answer exceeds {} MiB and was discarded", MAX_BODY_BYTES / 1024 / 1024);
        Self::new(ModelErrorKind::Garbled, text)
    }
}

/// Byte order mark, which may precede a text.
const BOM: &[u8] = b"\xEF\xBB\xBF";

fn detect_format(start: &[u8]) -> Option<ResponseBodyFormat> {
    if BOM.starts_with(start) {
        return None;
    }
    let first = start.strip_prefix(BOM).unwrap_or(start).trim_ascii_start().first()?;
    Some(match first {
        b'{' | b'[' => ResponseBodyFormat::Whole(Vec::new()),
        // `: comment`, `data`, `event`, `id`, `retry`.
        b':' | b'd' | b'e' | b'i' | b'r' => ResponseBodyFormat::Events(SseDecoder::new(MAX_BODY_BYTES)),
        _ => ResponseBodyFormat::Invalid,
    })
}

fn is_event_stream(head: &[u8]) -> bool {
    let head = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start();
    [&b":"[..], b"data:", b"event:", b"id:", b"retry:"]
        .iter()
        .any(|field| head.starts_with(&field[..field.len().min(head.len())]))
}

fn describe_body(head: &[u8]) -> &'static str {
    let is_page = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start().starts_with(b"<");
    if is_page { "a page" } else { "something other than an answer" }
}
