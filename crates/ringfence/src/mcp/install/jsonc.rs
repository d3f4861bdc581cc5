//! JSONC: JSON with comments and trailing commas.
//!
//! Everything that is not JSON is blanked, byte for byte, so that offsets in the blanked text are valid in the
//! original.

use serde_json::Value;

/// The value that a text has, if it is JSON once it is blanked.
pub(crate) fn parse_jsonc(text: &str) -> Option<Value> {
    serde_json::from_str(&blank_comments(text)).ok()
}

/// The text with spaces for its comments and for commas that nothing follows.
pub(crate) fn blank_comments(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let (mut at, mut comma) = (0, None);
    while let Some(byte) = bytes.get(at).copied() {
        let end = match (byte, bytes.get(at + 1)) {
            (b'"', _) => end_of_string(&bytes, at),
            (b'/', Some(b'/')) => blank_comment(&mut bytes, at, b"\n"),
            (b'/', Some(b'*')) => blank_comment(&mut bytes, at, b"*/"),
            _ => at + 1,
        };
        match byte {
            b',' => comma = Some(at),
            b'}' | b']' => {
                if let Some(lone) = comma.take().and_then(|comma: usize| bytes.get_mut(comma)) {
                    *lone = b' ';
                }
            }
            // Neither a comment nor a gap comes between a comma and what closes.
            b'/' if end > at + 1 => {}
            byte if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        at = end;
    }
    // Whole characters were replaced by as many spaces as they have bytes.
    String::from_utf8(bytes).unwrap_or_default()
}

/// End of the string that begins here.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Blanks a comment up to its mark, and says where it ends. Lines stay lines.
fn blank_comment(bytes: &mut [u8], start: usize, mark: &[u8]) -> usize {
    let rest = bytes.get(start + 2..).unwrap_or_default();
    let length = rest.windows(mark.len()).position(|piece| piece == mark).map_or(rest.len(), |at| at + mark.len());
    let end = start + 2 + length;
    for byte in bytes.iter_mut().take(end).skip(start).filter(|byte| !matches!(**byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    end
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{blank_comments, parse_jsonc};

    #[test]
    fn comments_and_commas_that_nothing_follows_are_passed_over() {
        let cases = [
            ("// a\n{\"a\": 1, // b\n /* c, } */ \"b\": [1, 2,],\n}", Some(json!({"a": 1, "b": [1, 2]}))),
            (r#"{"url": "http://x/*y*/", "q": "\"//"}"#, Some(json!({"url": "http://x/*y*/", "q": "\"//"}))),
            ("{\"a\": [1, // é\n ] /* ü */}", Some(json!({"a": [1]}))),
            ("{\"a\": 1,, }", None),
            ("{\"a\": \"unclosed", None),
            ("/* unclosed", None),
            ("{\"a\": 1 / 2}", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_jsonc(text), expected, "{text}");
            assert_eq!(blank_comments(text).len(), text.len(), "{text}");
        }
    }
}
