//! Keys of a terminal, parsed from its input as it arrives.
//!
//! A terminal also sends what a person did not type: replies to queries of a program, focus and mouse reports. They have
//! the form of control sequences and strings, are never keys, and keep that meaning however late their rest arrives.
//!
//! Not here: what a key does (`dialog.rs`).

use std::time::{Duration, Instant};

use crate::approval::dialog::DialogKey;

/// Time after which a sequence without an end is given up, such as `Alt-]` of a person.
const SEQUENCE_TIMEOUT: Duration = Duration::from_secs(3);

/// Most bytes of a control sequence that are looked at.
const MAX_SEQUENCE_BYTES: usize = 64;

/// Bytes after a mouse report of the oldest form.
const MOUSE_REPORT_BYTES: u8 = 3;

/// A parser of terminal input.
#[derive(Debug, Default)]
pub(crate) struct TerminalKeyParser {
    state: KeyParserState,
    /// When the last input came.
    last: Option<Instant>,
    /// A character of which only the beginning came.
    partial: Vec<u8>,
}

#[derive(Debug, Default)]
enum KeyParserState {
    #[default]
    Ground,
    Escape,
    /// `ESC O` and a letter.
    SingleShift,
    Control(Vec<u8>),
    MouseReport(u8),
    String {
        is_ending: bool,
    },
}

impl TerminalKeyParser {
    /// The keys in bytes that came at once.
    pub(crate) fn parse(&mut self, bytes: &[u8], now: Instant) -> Vec<DialogKey> {
        let is_stale = self.last.is_some_and(|last| now.saturating_duration_since(last) > SEQUENCE_TIMEOUT);
        if is_stale {
            *self = Self::default();
        }
        self.last = Some(now);
        let mut keys = Vec::new();
        for byte in bytes {
            self.take_byte(*byte, &mut keys);
        }
        // Escape by itself: a terminal sends its sequences in one piece, up to their second byte at least.
        if matches!(self.state, KeyParserState::Escape) {
            self.state = KeyParserState::Ground;
            keys.push(DialogKey::Escape);
        }
        keys
    }

    fn take_byte(&mut self, byte: u8, keys: &mut Vec<DialogKey>) {
        match &mut self.state {
            KeyParserState::Ground if byte == 0x1b => {
                self.partial.clear();
                self.state = KeyParserState::Escape;
            }
            KeyParserState::Ground => keys.extend(self.typed(byte)),
            KeyParserState::Escape => {
                self.state = match byte {
                    b'[' => KeyParserState::Control(Vec::new()),
                    b'O' => KeyParserState::SingleShift,
                    b']' | b'P' | b'_' | b'^' | b'X' => KeyParserState::String { is_ending: false },
                    0x1b => KeyParserState::Escape,
                    // With Alt.
                    _ => {
                        keys.push(DialogKey::Other);
                        KeyParserState::Ground
                    }
                };
            }
            KeyParserState::SingleShift => {
                self.state = KeyParserState::Ground;
                keys.push(match byte {
                    b'A' => DialogKey::Up,
                    b'B' => DialogKey::Down,
                    b'M' => DialogKey::Enter,
                    _ => DialogKey::Other,
                });
            }
            KeyParserState::Control(_) if byte == 0x1b => self.state = KeyParserState::Escape,
            KeyParserState::Control(sequence) => {
                sequence.truncate(MAX_SEQUENCE_BYTES);
                sequence.push(byte);
                // `[` begins a function key of the Linux console.
                let is_final = (b'@'..=b'~').contains(&byte) && sequence.as_slice() != b"[";
                if is_final {
                    let sequence = std::mem::take(sequence);
                    self.state = match sequence.as_slice() {
                        b"M" => KeyParserState::MouseReport(MOUSE_REPORT_BYTES),
                        _ => KeyParserState::Ground,
                    };
                    keys.extend(control_key(&sequence));
                }
            }
            KeyParserState::MouseReport(left) => {
                *left -= 1;
                if *left == 0 {
                    self.state = KeyParserState::Ground;
                }
            }
            KeyParserState::String { is_ending: true } if byte == b'\\' => self.state = KeyParserState::Ground,
            KeyParserState::String { is_ending: true } => {
                self.state = KeyParserState::Escape;
                self.take_byte(byte, keys);
            }
            KeyParserState::String { is_ending } => match byte {
                0x1b => *is_ending = true,
                0x07 => self.state = KeyParserState::Ground,
                _ => {}
            },
        }
    }

    fn typed(&mut self, byte: u8) -> Option<DialogKey> {
        self.partial.push(byte);
        let text = match std::str::from_utf8(&self.partial) {
            Ok(text) => text.chars().next(),
            Err(error) if error.error_len().is_none() => return None,
            Err(_) => Some(char::REPLACEMENT_CHARACTER),
        };
        self.partial.clear();
        match text? {
            '\n' | '\r' => Some(DialogKey::Enter),
            '\x08' | '\x7f' => Some(DialogKey::Backspace),
            c => Some(DialogKey::Char(c)),
        }
    }
}

/// The key of a control sequence, without its introducer. None for a report of the terminal.
fn control_key(sequence: &[u8]) -> Option<DialogKey> {
    match sequence {
        b"A" => Some(DialogKey::Up),
        b"B" => Some(DialogKey::Down),
        b"5~" => Some(DialogKey::PageUp),
        b"6~" => Some(DialogKey::PageDown),
        // Replies have a prefix or an intermediate byte; reports are those of the state, cursor, window, focus, mouse.
        [b'?' | b'>' | b'=' | b'<', ..] | [.., b'n' | b'R' | b't' | b'c' | b'x' | b'I' | b'O' | b'M' | b'm'] => None,
        [.., b'$' | b'"' | b'\'' | b'#' | b' ', _] => None,
        _ => Some(DialogKey::Other),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::TerminalKeyParser;
    use crate::approval::dialog::DialogKey;

    /// The keys of inputs that come one after the other.
    fn parsed(inputs: &[&str]) -> Vec<DialogKey> {
        let (mut parser, now) = (TerminalKeyParser::default(), Instant::now());
        inputs.iter().flat_map(|input| parser.parse(input.as_bytes(), now)).collect()
    }

    #[test]
    fn keys_are_letters_and_sequences_of_known_keys() {
        let char = DialogKey::Char;
        assert_eq!(parsed(&["aé漢\r\n\x7f"]).len(), 6);
        assert_eq!(parsed(&["é"]), [char('é')]);
        assert_eq!(parsed(&["\x1b[A", "\x1b[B", "\x1bOA"]), [DialogKey::Up, DialogKey::Down, DialogKey::Up]);
        assert_eq!(parsed(&["\x1b[5~\x1b[6~"]), [DialogKey::PageUp, DialogKey::PageDown]);
        assert_eq!(parsed(&["\x1b"]), [DialogKey::Escape]);
        assert_eq!(parsed(&["\x1b", "y"]), [DialogKey::Escape, char('y')]);
        assert_eq!(parsed(&["\x1by"]), [DialogKey::Other]);
        assert_eq!(parsed(&["\x1b[3~", "\x1b[1;5C", "\x1b[[A"]).len(), 3);
    }

    #[test]
    fn replies_to_queries_are_no_keys_wherever_they_are_cut() {
        let replies = [
            "\x1b[?62;4;22c",
            "\x1b[>41;370;0c",
            "\x1b[0n",
            "\x1b[12;40R",
            "\x1b[?2026;2$y",
            "\x1b[4;2$y",
            "\x1b[8;24;80t",
            "\x1b[?1u",
            "\x1b[I",
            "\x1b[O",
            "\x1b[<0;10;10M",
            "\x1b[<0;10;10m",
            "\x1b[Myny",
            "\x1b]11;rgb:1e1e/1e1e/2e2e\x07",
            "\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
            "\x1bP>|xterm(370) y\x1b\\",
            "\x1bP1+r544e=78746572\x1b\\",
            "\x1bP1$r0 q\x1b\\",
            "\x1b_Gi=31;OK y\x1b\\",
        ];
        for reply in replies {
            for cut in 2..=reply.len() {
                assert_eq!(parsed(&[&reply[..cut], &reply[cut..]]), [], "{reply:?} cut at {cut}");
                assert_eq!(parsed(&[&reply[..cut], &reply[cut..], "y"]), [DialogKey::Char('y')], "{reply:?}");
            }
        }
    }

    #[test]
    fn a_sequence_without_an_end_is_given_up_after_a_time() {
        let (mut parser, now) = (TerminalKeyParser::default(), Instant::now());
        assert_eq!(parser.parse(b"\x1b]", now), []);
        assert_eq!(parser.parse(b"y", now + Duration::from_secs(2)), []);
        assert_eq!(parser.parse(b"y", now + Duration::from_secs(6)), [DialogKey::Char('y')]);
        // Escape ends it at once.
        assert_eq!(parsed(&["\x1b]", "y\x1b\x1b", "y"]), [DialogKey::Escape, DialogKey::Char('y')]);
    }
}
