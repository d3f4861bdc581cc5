//! Lone UTF-16 surrogates in JSON strings, joined or replaced.
//!
//! Servers split a character between two events, and models write a half by itself. Before an event is parsed, each
//! half is replaced by a private-use character; the deltas of a response are then joined, and matching halves become
//! one character again. A half that stays alone becomes `U+FFFD` in text, and in arguments the original escape, which
//! the argument check refuses.

use std::borrow::Cow;
use std::fmt::Write as _;

const SURROGATES: std::ops::RangeInclusive<u32> = 0xD800..=0xDFFF;
const FIRST_LOW: u32 = 0xDC00;

/// The mark of the first surrogate. The others follow.
const MARK: u32 = 0x10_F800;

/// JSON with every lone surrogate marked.
pub(crate) fn mark(json: &str) -> Cow<'_, str> {
    if !json.contains("\\ud") && !json.contains("\\uD") {
        return Cow::Borrowed(json);
    }
    let mut marked = String::new();
    let mut rest = json;
    let mut changed = false;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        marked.push_str(before);
        let (taken, half) = match unit(escape) {
            Some(high) if (0xD800..FIRST_LOW).contains(&high) => match escape.get(6..).and_then(unit) {
                Some(low) if (FIRST_LOW..=0xDFFF).contains(&low) => (12, None),
                _ => (6, Some(high)),
            },
            Some(low) if SURROGATES.contains(&low) => (6, Some(low)),
            // A backslash and what it stands before.
            _ => (1 + escape.chars().nth(1).map_or(0, char::len_utf8), None),
        };
        let (escape, after) = escape.split_at(taken);
        match half.and_then(|half| char::from_u32(half - 0xD800 + MARK)) {
            Some(half) => {
                marked.push(half);
                changed = true;
            }
            None => marked.push_str(escape),
        }
        rest = after;
    }
    marked.push_str(rest);
    if changed { Cow::Owned(marked) } else { Cow::Borrowed(json) }
}

/// The number of an escape such as `\ud83d` that a text begins with.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u32::from_str_radix(digits, 16).ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn surrogate(mark: char) -> Option<u32> {
    u32::from(mark).checked_sub(MARK).map(|at| at + 0xD800).filter(|half| SURROGATES.contains(half))
}

fn pair(high: u32, low: u32) -> Option<char> {
    let is_pair = high < FIRST_LOW && low >= FIRST_LOW;
    is_pair.then(|| char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (low - FIRST_LOW))).flatten()
}

/// A piece of words with its halves joined. A first half at its end waits for the next piece.
pub(crate) fn join(piece: &str, waiting: &mut Option<char>) -> String {
    let mut joined = String::with_capacity(piece.len());
    let halves = waiting.take();
    for c in halves.into_iter().chain(piece.chars()) {
        let before = waiting.take();
        match (before.and_then(surrogate), surrogate(c)) {
            (Some(high), Some(low)) if pair(high, low).is_some() => joined.extend(pair(high, low)),
            (before, now) => {
                joined.extend(before.map(|_| char::REPLACEMENT_CHARACTER));
                match now {
                    Some(half) if half < FIRST_LOW => *waiting = Some(c),
                    Some(_) => joined.push(char::REPLACEMENT_CHARACTER),
                    None => joined.push(c),
                }
            }
        }
    }
    joined
}

/// Arguments with their halves joined, and those that stay alone as the escapes that they were.
pub(crate) fn unmark(arguments: &str) -> String {
    let mut text = String::with_capacity(arguments.len());
    let mut rest = arguments.chars().peekable();
    while let Some(c) = rest.next() {
        let Some(half) = surrogate(c) else {
            text.push(c);
            continue;
        };
        match rest.peek().copied().and_then(surrogate).and_then(|low| pair(half, low)) {
            Some(whole) => {
                text.push(whole);
                rest.next();
            }
            None => {
                let _ = write!(text, "\\u{half:04x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{join, mark, unmark};

    #[test]
    fn halves_are_joined_and_lone_ones_are_told() {
        let check = |pieces: &[&str], words: &str, arguments: &str| {
            let read = |piece: &&str| serde_json::from_str::<String>(&mark(&format!("\"{piece}\""))).unwrap();
            let read: Vec<String> = pieces.iter().map(read).collect();
            let mut waiting = None;
            let mut joined: String = read.iter().map(|piece| join(piece, &mut waiting)).collect();
            joined.extend(waiting.map(|_| char::REPLACEMENT_CHARACTER));
            assert_eq!((joined.as_str(), unmark(&read.concat()).as_str()), (words, arguments), "{pieces:?}");
        };
        check(&["plain é"], "plain é", "plain é");
        check(&[r"\ud83d\ude00"], "😀", "😀");
        check(&[r"a\ud83d", r"\ude00b"], "a😀b", "a😀b");
        check(&[r"\uD83D", "", r"\uDE00"], "😀", "😀");
        check(&[r"a\ud83db"], "a\u{fffd}b", r"a\ud83db");
        check(&[r"\ude00\ud83d"], "\u{fffd}\u{fffd}", r"\ude00\ud83d");
        check(&[r"\ud83d\ud83d\ude00"], "\u{fffd}😀", r"\ud83d😀");
        check(&[r"\ud83d", "x"], "\u{fffd}x", r"\ud83dx");
        // One that is escaped is text.
        check(&[r"\\ud83d"], r"\ud83d", r"\ud83d");
        check(&[r"\\\ud83d"], "\\\u{fffd}", r"\\ud83d");
    }

    #[test]
    fn invalid_json_passes_through_unchanged() {
        for text in ["\\", "\\u", "\\ud8", "\\ud83", "\\udzzz", "é\\é\\ud83é", "\\u+d83d"] {
            assert_eq!(mark(text), text);
        }
    }
}
