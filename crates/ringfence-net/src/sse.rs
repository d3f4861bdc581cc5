//! Server-sent events parser: bytes in, whole events out.
//!
//! However the bytes are split, the events are the same: they are kept as bytes until a line is complete. Lines end
//! with CR, LF or both, comments are skipped, several `data` lines are one text, and an incomplete event is dropped. An
//! event has a limit in bytes.
//!
//! Not here: the meaning of an event, and reconnecting.

use std::borrow::Cow;
use std::time::Duration;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Empty where the server gave no `event` line.
    pub name: String,
    pub data: String,
    /// Bytes that were not UTF-8 were replaced.
    pub had_invalid_utf8: bool,
}

/// An event has more bytes than may be read. The stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is too long")]
pub struct SseEventTooLong;

/// State of a stream so far.
#[derive(Debug)]
pub struct SseDecoder {
    /// Most bytes of an event, and of a line.
    limit: usize,
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
    /// The last line ended with CR: an LF that follows belongs to it.
    after_cr: bool,
    /// The first line was seen, and with it the mark that may stand before it.
    bom_checked: bool,
    next_event_id: String,
    last_event_id: String,
    retry: Option<Duration>,
}

impl SseDecoder {
    /// For a stream whose events have at most this many bytes each.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            event: SseEvent::default(),
            has_data: false,
            after_cr: false,
            bom_checked: false,
            next_event_id: String::new(),
            last_event_id: String::new(),
            retry: None,
        }
    }

    /// The id of the last complete event, which a client that reconnects sends as `Last-Event-ID`. It stays until another
    /// replaces it.
    pub fn last_event_id(&self) -> &str {
        &self.last_event_id
    }

    /// Delay that the server wants before a reconnection.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Takes more bytes. `hear` gets each event that they end.
    pub fn push<E: From<SseEventTooLong>>(
        &mut self,
        bytes: &[u8],
        hear: &mut dyn FnMut(SseEvent) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, tail) = rest.split_at(end);
            let is_return = tail.first() == Some(&b'\r');
            // The LF of a CR LF ends no line of its own, also where the two come apart.
            let is_second_half = text.is_empty() && self.after_cr && !is_return;
            self.after_cr = is_return;
            rest = tail.get(1..).unwrap_or_default();
            if is_second_half {
                continue;
            }
            self.extend_line(text)?;
            if let Some(event) = self.end_line() {
                hear(event)?;
            }
        }
        if !rest.is_empty() {
            self.after_cr = false;
            self.extend_line(rest)?;
        }
        Ok(())
    }

    /// The event in which the stream ended, if it has data. The standard discards it; some servers leave out the empty line
    /// after their last event.
    pub fn into_unterminated(mut self) -> Option<SseEvent> {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.end_line()
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), SseEventTooLong> {
        let held = self.line.len().saturating_add(self.event.data.len()).saturating_add(self.event.name.len());
        if bytes.len() > self.limit.saturating_sub(held) {
            return Err(SseEventTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let line = std::mem::take(&mut self.line);
        let line = if self.bom_checked { &line[..] } else { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line) };
        self.bom_checked = true;
        if line.is_empty() {
            self.last_event_id.clone_from(&self.next_event_id);
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
        match field {
            b"data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.had_invalid_utf8 |= matches!(value, Cow::Owned(_));
                self.event.data.push_str(&value);
            }
            b"event" => self.event.name = value.into_owned(),
            b"id" if !value.contains('\0') => self.next_event_id = value.into_owned(),
            b"retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis).or(self.retry);
            }
            // A comment, or a field that is unknown or invalid.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{SseDecoder, SseEvent, SseEventTooLong};

    fn events(pieces: &[&[u8]]) -> Vec<SseEvent> {
        let (mut decoder, mut heard) = (SseDecoder::new(1 << 20), Vec::new());
        for piece in pieces {
            let hear: Result<(), SseEventTooLong> = decoder.push(piece, &mut |event| {
                heard.push(event);
                Ok(())
            });
            hear.unwrap();
        }
        heard
    }

    #[track_caller]
    fn check(stream: &str, expected: &[(&str, &str)]) {
        let whole = events(&[stream.as_bytes()]);
        let found: Vec<(&str, &str)> = whole.iter().map(|event| (event.name.as_str(), event.data.as_str())).collect();
        assert_eq!(found, expected, "{stream:?}");
        for at in 0..=stream.len() {
            let (head, tail) = stream.as_bytes().split_at(at);
            assert_eq!(events(&[head, tail]), whole, "{stream:?} cut at {at}");
        }
    }

    #[test]
    fn lines_end_with_either_or_both() {
        for end in ["\n", "\r", "\r\n"] {
            check(&"data: a||data: b||".replace('|', end), &[("", "a"), ("", "b")]);
        }
        check("data: a\r\n\ndata: b\n\r\n", &[("", "a"), ("", "b")]);
    }

    #[test]
    fn fields_are_read_as_the_standard_says() {
        check(": ping\n\n:\n\ndata:a\n\n", &[("", "a")]);
        check("data: a\ndata: b\ndata\n\n", &[("", "a\nb\n")]);
        check("data:  two spaces\n\n", &[("", " two spaces")]);
        check("event: x\nid: 1\nretry: 5\ndata: a\nnew: field\n\ndata: b\n\n", &[("x", "a"), ("", "b")]);
        check("event: alone\n\ndata: b\n\n", &[("", "b")]);
        check("\u{feff}data: a\n\n\u{feff}data: no field\n\n", &[("", "a")]);
        check("data: über 漢字 👍\n\n", &[("", "über 漢字 👍")]);
        check("data\n\n", &[("", "")]);
    }

    #[test]
    fn an_unterminated_event_is_dropped() {
        check("data: a\n\ndata: b\n", &[("", "a")]);
        check("data: a", &[]);
    }

    #[test]
    fn the_last_event_may_lack_its_empty_line() {
        let last = |stream: &str| {
            let mut decoder = SseDecoder::new(100);
            let hear: Result<(), SseEventTooLong> = decoder.push(stream.as_bytes(), &mut |_| Ok(()));
            hear.unwrap();
            decoder.into_unterminated().map(|event| event.data)
        };
        assert_eq!(last("data: a\n\ndata: b\ndata: c"), Some("b\nc".to_owned()));
        assert_eq!(last("data: a\n"), Some("a".to_owned()));
        assert_eq!(last("data: a\n\n"), None);
        assert_eq!(last("data: a\n\nevent: x"), None);
    }

    #[test]
    fn an_id_counts_once_its_event_is_complete_and_a_delay_is_a_number() {
        let mut decoder = SseDecoder::new(100);
        for (text, id, retry) in [
            ("id: 1\n", "", None),
            ("\n", "1", None),
            ("data: a\n\n", "1", None),
            ("retry: 20\nid: a\0b\ndata: a\n\n", "1", Some(20)),
            ("retry: 2x\nretry\nretry: 99999999999999999999\nid: \u{e9}\ndata: a\n\n", "\u{e9}", Some(20)),
            ("id\ndata: a\n\n", "", Some(20)),
        ] {
            let pushed: Result<(), SseEventTooLong> = decoder.push(text.as_bytes(), &mut |_| Ok(()));
            pushed.unwrap();
            assert_eq!(decoder.last_event_id(), id, "{text:?}");
            assert_eq!(decoder.retry().map(|delay| delay.as_millis()), retry, "{text:?}");
        }
    }

    #[test]
    fn an_event_beyond_the_limit_is_refused() {
        let push = |pieces: &[&str]| {
            let (mut decoder, mut heard) = (SseDecoder::new(10), 0);
            let mut hear = |_| {
                heard += 1;
                Ok::<(), SseEventTooLong>(())
            };
            let result = pieces.iter().try_for_each(|piece| decoder.push(piece.as_bytes(), &mut hear));
            (result, heard)
        };
        assert_eq!(push(&["data:12345\n\n", "data:1\n\ndata:12345\n\n"]), (Ok(()), 3));
        assert_eq!(push(&["data:1\n\ndata:123456\n\n"]), (Err(SseEventTooLong), 1));
        assert_eq!(push(&["data:1\n\nda", "ta:123456"]), (Err(SseEventTooLong), 1));
        // Lines that each fit are one event.
        assert_eq!(push(&["data:123\n", "data:456\n"]), (Err(SseEventTooLong), 0));
        assert_eq!(push(&["event:123\n", "data:456\n"]), (Err(SseEventTooLong), 0));
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_said() {
        let found = events(&[b"data: a\xffb\n\ndata: c\n\n"]);
        assert_eq!((found[0].data.as_str(), found[0].had_invalid_utf8), ("a\u{fffd}b", true));
        assert!(!found[1].had_invalid_utf8);
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(text in "[ade:nvt \r\n\u{feff}é]{0,80}", cuts in prop::collection::vec(0..200_usize, 0..5)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            pieces.push(&bytes[from..]);
            prop_assert_eq!(events(&pieces), events(&[bytes]));
        }
    }
}
