//! Server-sent events parser: bytes in, whole events out.
//!
//! However the bytes are split, the events are the same: they are kept as bytes until a line is complete. Lines end
//! with CR, LF or both, comments are skipped, several `data` lines are one text, and an incomplete event is dropped.
//!
//! Not here: the meaning of an event, and a limit on the bytes.

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// Empty where the server gave no `event` line.
    pub(crate) name: String,
    pub(crate) data: String,
    /// Bytes that were not UTF-8 were replaced.
    pub(crate) had_invalid_utf8: bool,
}

/// State of a stream so far.
#[derive(Debug, Default)]
pub(crate) struct SseDecoder {
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
    /// The last line ended with CR: an LF that follows belongs to it.
    after_cr: bool,
    /// The first line was seen, and with it the mark that may stand before it.
    bom_checked: bool,
}

impl SseDecoder {
    /// Takes more bytes. `hear` gets each event that they end.
    pub(crate) fn push<E>(&mut self, bytes: &[u8], hear: &mut dyn FnMut(SseEvent) -> Result<(), E>) -> Result<(), E> {
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
            self.line.extend_from_slice(text);
            if let Some(event) = self.end_line() {
                hear(event)?;
            }
        }
        if !rest.is_empty() {
            self.after_cr = false;
            self.line.extend_from_slice(rest);
        }
        Ok(())
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let line = std::mem::take(&mut self.line);
        let line = if self.bom_checked { &line[..] } else { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line) };
        self.bom_checked = true;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                let text = String::from_utf8_lossy(value);
                self.event.had_invalid_utf8 |= matches!(text, std::borrow::Cow::Owned(_));
                self.event.data.push_str(&text);
            }
            b"event" => self.event.name = String::from_utf8_lossy(value).into_owned(),
            // A comment, an id, a time to wait before coming back, or something newer.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{SseDecoder, SseEvent};

    fn events(pieces: &[&[u8]]) -> Vec<SseEvent> {
        let (mut decoder, mut heard) = (SseDecoder::default(), Vec::new());
        for piece in pieces {
            let hear: Result<(), ()> = decoder.push(piece, &mut |event| {
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
