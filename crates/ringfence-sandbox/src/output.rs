//! Output capture: the head and the tail of a stream, within a limit.
//!
//! The head and the tail of a stream are kept, half each, and a line between them has the number of omitted bytes.
//! Memory is bounded by the limit, whatever the program prints. Kept bytes are not changed: those that are not text are
//! escaped as `\xff` when text is requested, and terminal controls stay.
//!
//! Not here: making text safe to look at. The fronts do that.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// The longest character has four bytes, so that a cut leaves at most three of one.
const MAX_PARTIAL_CHAR: usize = 3;

/// The captured part of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// All of it, or the head, the mark and the tail.
    pub bytes: Vec<u8>,
    /// Bytes that were printed.
    pub total: u64,
    /// Whether something is left out. A program can print a line that looks like the mark; it cannot set this.
    pub truncated: bool,
    /// Bytes before what is left out: all of them, if nothing is.
    pub head: usize,
}

impl CapturedOutput {
    /// As text. Bytes that are not UTF-8 are escaped one by one.
    pub fn text(&self) -> String {
        escape_invalid(&self.bytes)
    }

    /// Length of the text of what comes before the part that is left out.
    pub(crate) fn head_text_len(&self) -> usize {
        self.bytes.get(..self.head).map_or(0, |head| escape_invalid(head).len())
    }
}

/// Text, with bytes that are not UTF-8 escaped one by one.
pub(crate) fn escape_invalid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Takes a stream in and keeps its head and its tail.
#[derive(Debug)]
pub struct HeadTailBuffer {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    total: u64,
}

impl HeadTailBuffer {
    /// Keeps this number of bytes; the mark comes on top.
    pub fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let tail_limit = limit / 2;
        Self { head: Vec::new(), tail: VecDeque::new(), head_limit: limit - tail_limit, tail_limit, total: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// Bytes so far, kept or not.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn finish(self) -> CapturedOutput {
        let Self { head: mut bytes, tail, total, .. } = self;
        let tail = Vec::from(tail);
        if (bytes.len() + tail.len()) as u64 == total {
            bytes.extend(tail);
            return CapturedOutput { head: bytes.len(), bytes, total, truncated: false };
        }
        bytes.truncate(bytes.len() - trailing_partial_char(&bytes));
        let tail = &tail[leading_partial_char(&tail)..];
        let head = bytes.len();
        let left_out = total - (bytes.len() + tail.len()) as u64;
        if bytes.last().is_some_and(|last| *last != b'\n') {
            bytes.push(b'\n');
        }
        bytes.extend(format!("[… {left_out} bytes left out …]\n").bytes());
        bytes.extend(tail);
        CapturedOutput { bytes, total, truncated: true, head }
    }
}

/// Number of bytes at the end that begin an incomplete character.
pub(crate) fn trailing_partial_char(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(MAX_PARTIAL_CHAR)..];
    match last.utf8_chunks().last() {
        // An error at the very end is a character cut short if more bytes could make it whole.
        Some(chunk) if !chunk.invalid().is_empty() && std::str::from_utf8(chunk.invalid()).is_err_and(is_short) => {
            chunk.invalid().len()
        }
        _ => 0,
    }
}

fn is_short(error: std::str::Utf8Error) -> bool {
    error.error_len().is_none()
}

/// Number of bytes at the beginning that end an incomplete character.
fn leading_partial_char(bytes: &[u8]) -> usize {
    bytes.iter().take(MAX_PARTIAL_CHAR).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CapturedOutput, HeadTailBuffer};

    fn capture(limit: u64, pieces: &[&[u8]]) -> CapturedOutput {
        let mut stream = HeadTailBuffer::new(limit);
        for piece in pieces {
            stream.push(piece);
        }
        stream.finish()
    }

    #[track_caller]
    fn check(limit: u64, printed: &[u8], expected: &str) {
        assert_eq!(capture(limit, &[printed]).text(), expected);
    }

    #[test]
    fn output_within_the_limit_is_kept_unchanged() {
        check(8, b"", "");
        check(8, b"12345678", "12345678");
        check(64, b"a\0b\x1b[2Jc\r\n", "a\0b\x1b[2Jc\r\n");
    }

    #[test]
    fn the_middle_of_what_does_not_fit_is_left_out() {
        check(8, b"123456789", "1234\n[… 1 bytes left out …]\n6789");
        check(8, b"123\n\n\n789\n", "123\n[… 2 bytes left out …]\n789\n");
        check(1, b"123", "1\n[… 2 bytes left out …]\n");
        check(0, b"123", "[… 3 bytes left out …]\n");
    }

    #[test]
    fn a_cut_falls_between_characters() {
        check(8, "abcé-----éxyz".as_bytes(), "abc\n[… 9 bytes left out …]\nxyz");
        check(9, "abc漢字漢字xyz".as_bytes(), "abc\n[… 12 bytes left out …]\nxyz");
        check(9, "ab漢字漢字yz".as_bytes(), "ab漢\n[… 9 bytes left out …]\nyz");
    }

    #[test]
    fn invalid_utf8_is_escaped() {
        check(64, b"a\xff\xfeb\xc3", "a\\xff\\xfeb\\xc3");
        check(64, b"\xe6\xbc", "\\xe6\\xbc");
        check(4, b"\xff\xffaaaa\xff\xff", "\\xff\\xff\n[… 4 bytes left out …]\n\\xff\\xff");
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(limit in 0u64..40, pieces in pieces()) {
            let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(capture(limit, &borrowed), capture(limit, &[&pieces.concat()]));
        }

        #[test]
        fn both_ends_are_what_was_printed(limit in 0u64..40, pieces in pieces()) {
            let printed = pieces.concat();
            let kept = capture(limit, &[&printed]);
            prop_assert_eq!(kept.total, printed.len() as u64);
            prop_assert_eq!(kept.truncated, kept.total > limit);
            if !kept.truncated {
                prop_assert_eq!(kept.bytes, printed);
                return Ok(());
            }
            let mark = kept.bytes.iter().position(|byte| *byte == b'[').unwrap();
            let tail = &kept.bytes[mark..];
            let tail = &tail[tail.iter().position(|byte| *byte == b'\n').unwrap() + 1..];
            prop_assert!(printed.ends_with(tail));
            // The line break before the mark may have been printed or not.
            let heads = [&kept.bytes[..mark], &kept.bytes[..mark.saturating_sub(1)]];
            prop_assert!(heads.iter().any(|head| {
                let notice = format!(" {} bytes", printed.len().saturating_sub(head.len() + tail.len()));
                printed.starts_with(head)
                    && (head.len() + tail.len()) as u64 <= limit
                    && kept.text().contains(&notice)
            }), "{:?}", kept.text());
        }

        #[test]
        fn text_stays_text(limit in 0u64..40, printed in "\\PC{0,60}") {
            let kept = capture(limit, &[printed.as_bytes()]);
            prop_assert!(String::from_utf8(kept.bytes).is_ok());
        }
    }

    /// Bytes of all kinds, without the mark's own bracket.
    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let piece = prop_oneof![
            prop::collection::vec(any::<u8>().prop_filter("no bracket", |byte| *byte != b'['), 0..12),
            "[a-zé漢👍\\n]{0,8}".prop_map(String::into_bytes),
        ];
        prop::collection::vec(piece, 0..12)
    }
}
