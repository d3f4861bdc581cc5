//! Output filter: a streaming parser of terminal control sequences on what a wrapped program writes.
//!
//! Everything that draws passes unchanged; sequences that the policy refuses (`sequence_policy.rs`) are removed, and so are
//! 8-bit controls (C1) in each encoding, the answerback request (ENQ) and malformed or overlong sequences. The result does
//! not depend on how the output is cut into chunks, and never more than [`MAX_HELD`] bytes wait for their continuation.
//! Text is UTF-8: bytes of a character are never taken for controls.
//!
//! Not here: reading and writing (`terminal_relay.rs`).

use crate::cli::wrapped_run::sequence_policy::{ControlSequence, ControlString, FilterOptions, is_escape_allowed};
use crate::cli::wrapped_run::terminal_modes::TerminalModes;

/// Most bytes that are held back until their sequence is decided.
pub(crate) const MAX_HELD: usize = 512;

const ENQ: u8 = 0x05;
const BEL: u8 = 0x07;
const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;
const ESC: u8 = 0x1b;
const DEL: u8 = 0x7f;

/// The end of a control string.
const STRING_TERMINATOR: &[u8] = b"\x1b\\";

/// A filter for one program's output.
#[derive(Debug)]
pub(crate) struct OutputFilter {
    options: FilterOptions,
    state: ParserState,
    /// The sequence so far as it was written, while it is not decided.
    held: Vec<u8>,
    /// The same after its introducer, without the controls that terminals execute in the middle of a sequence.
    content: Vec<u8>,
    /// The beginning of a character.
    partial: Vec<u8>,
    modes: TerminalModes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Ground,
    Escape,
    Control,
    /// A sequence that is longer than any, up to its end: a byte from this one on.
    Overlong {
        first_final: u8,
    },
    String {
        kind: ControlString,
        stage: StringStage,
        /// The last byte was `ESC`, which ends the string.
        is_ending: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringStage {
    Undecided,
    Passed,
    Removed,
}

/// What a text begins with.
enum TextUnit {
    Ascii(u8),
    /// A character of this length, or a byte that does not belong to one.
    Text(usize),
    /// An 8-bit control of this length.
    Control(usize),
    Incomplete,
}

impl OutputFilter {
    pub(crate) fn new(options: FilterOptions) -> Self {
        Self {
            options,
            state: ParserState::Ground,
            held: Vec::new(),
            content: Vec::new(),
            partial: Vec::new(),
            modes: TerminalModes::default(),
        }
    }

    /// The modes that the program set.
    pub(crate) fn modes(&self) -> &TerminalModes {
        &self.modes
    }

    /// Whether what was written so far ends outside of a sequence or string, so that a sequence of our own may follow.
    pub(crate) fn is_between_sequences(&self) -> bool {
        !matches!(self.state, ParserState::String { stage: StringStage::Passed, .. })
    }

    /// Bytes that wait for their continuation.
    #[cfg(test)]
    pub(crate) fn held_len(&self) -> usize {
        self.held.len() + self.partial.len()
    }

    /// Filters the next bytes of the output.
    pub(crate) fn filter(&mut self, input: &[u8], output: &mut Vec<u8>) {
        let joined;
        let input = if self.partial.is_empty() {
            input
        } else {
            joined = [std::mem::take(&mut self.partial).as_slice(), input].concat();
            joined.as_slice()
        };
        let mut rest = input;
        loop {
            if self.state == ParserState::Ground {
                let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
                let (text, after) = rest.split_at(plain);
                output.extend_from_slice(text);
                rest = after;
            }
            if rest.is_empty() {
                return;
            }
            let used = match first_unit(rest) {
                TextUnit::Ascii(byte) => {
                    self.take_byte(byte, output);
                    1
                }
                TextUnit::Text(length) => {
                    self.take_text(rest.get(..length).unwrap_or_default(), output);
                    length
                }
                TextUnit::Control(length) => length,
                TextUnit::Incomplete => {
                    self.partial = rest.to_vec();
                    return;
                }
            };
            rest = rest.get(used..).unwrap_or_default();
        }
    }

    /// Ends a string of which a part was written already, so that other output can follow. Its rest is removed.
    pub(crate) fn interrupt(&mut self, output: &mut Vec<u8>) {
        if let ParserState::String { stage: stage @ StringStage::Passed, .. } = &mut self.state {
            *stage = StringStage::Removed;
            output.extend_from_slice(STRING_TERMINATOR);
        }
    }

    fn take_text(&mut self, text: &[u8], output: &mut Vec<u8>) {
        match self.state {
            ParserState::Ground => output.extend_from_slice(text),
            // It is in no sequence, which ends here.
            ParserState::Escape | ParserState::Control | ParserState::Overlong { .. } => {
                self.state = ParserState::Ground;
                output.extend_from_slice(text);
            }
            ParserState::String { is_ending: true, .. } => {
                self.cut_string(output);
                self.state = ParserState::Ground;
                output.extend_from_slice(text);
            }
            ParserState::String { .. } => self.take_string_bytes(text, output),
        }
    }

    fn take_byte(&mut self, byte: u8, output: &mut Vec<u8>) {
        match self.state {
            ParserState::String { kind, stage, is_ending } => {
                self.take_byte_in_string(kind, stage, is_ending, byte, output);
            }
            _ if byte == ESC => self.begin_escape(),
            ParserState::Ground => match byte {
                ENQ => {}
                _ => {
                    self.modes.apply_shift(byte);
                    output.push(byte);
                }
            },
            _ if matches!(byte, CAN | SUB) => self.state = ParserState::Ground,
            ParserState::Escape => self.take_byte_in_escape(byte, output),
            ParserState::Control => self.take_byte_in_control(byte, output),
            ParserState::Overlong { first_final } => {
                if (first_final..=b'~').contains(&byte) {
                    self.state = ParserState::Ground;
                }
            }
        }
    }

    fn begin_escape(&mut self) {
        self.state = ParserState::Escape;
        self.held.clear();
        self.held.push(ESC);
        self.content.clear();
    }

    fn take_byte_in_escape(&mut self, byte: u8, output: &mut Vec<u8>) {
        match byte {
            ENQ | DEL => return,
            ..b' ' => {
                self.held.push(byte);
                return self.limit_held(b'0');
            }
            _ => {}
        }
        self.held.push(byte);
        if self.content.is_empty() {
            if byte == b'[' {
                self.state = ParserState::Control;
                return;
            }
            if let Some(kind) = ControlString::begun_by(byte) {
                self.state = ParserState::String { kind, stage: StringStage::Undecided, is_ending: false };
                return;
            }
        }
        self.content.push(byte);
        if (b' '..=b'/').contains(&byte) {
            return self.limit_held(b'0');
        }
        if is_escape_allowed(&self.content) {
            self.modes.apply_escape(&self.content);
            output.append(&mut self.held);
        }
        self.leave_sequence();
    }

    fn take_byte_in_control(&mut self, byte: u8, output: &mut Vec<u8>) {
        match byte {
            ENQ | DEL => return,
            ..b' ' => self.held.push(byte),
            _ => {
                self.held.push(byte);
                self.content.push(byte);
            }
        }
        if !(b'@'..=b'~').contains(&byte) {
            return self.limit_held(b'@');
        }
        if let Some(sequence) = ControlSequence::parse(&self.content).filter(ControlSequence::is_allowed) {
            self.modes.apply_control(&sequence);
            output.append(&mut self.held);
        }
        self.leave_sequence();
    }

    fn take_byte_in_string(
        &mut self,
        kind: ControlString,
        stage: StringStage,
        is_ending: bool,
        byte: u8,
        output: &mut Vec<u8>,
    ) {
        match byte {
            b'\\' if is_ending => self.end_string(kind, stage, STRING_TERMINATOR, output),
            // Another sequence begins without an end of this one.
            _ if is_ending => {
                self.cut_string(output);
                self.begin_escape();
                if byte != ESC {
                    self.take_byte(byte, output);
                }
            }
            ESC => self.state = ParserState::String { kind, stage, is_ending: true },
            BEL if kind == ControlString::Osc => self.end_string(kind, stage, &[BEL], output),
            CAN | SUB => {
                self.cut_string(output);
                self.leave_sequence();
            }
            // White space may be in data; other controls are executed or end the string, as the terminal has it.
            ..b' ' if !(b'\t'..=b'\r').contains(&byte) => {}
            byte => self.take_string_bytes(&[byte], output),
        }
    }

    fn take_string_bytes(&mut self, bytes: &[u8], output: &mut Vec<u8>) {
        let ParserState::String { kind, stage, is_ending } = self.state else { return };
        match stage {
            StringStage::Passed => output.extend_from_slice(bytes),
            StringStage::Removed => {}
            StringStage::Undecided => {
                self.held.extend_from_slice(bytes);
                self.content.extend_from_slice(bytes);
                let decision = kind.decide(&self.content, false, self.options);
                let stage = match decision {
                    Some(true) => StringStage::Passed,
                    Some(false) => StringStage::Removed,
                    None if self.held.len() > MAX_HELD - 8 => StringStage::Removed,
                    None => return,
                };
                if stage == StringStage::Passed {
                    output.append(&mut self.held);
                }
                self.leave_sequence();
                self.state = ParserState::String { kind, stage, is_ending };
            }
        }
    }

    fn end_string(&mut self, kind: ControlString, stage: StringStage, end: &[u8], output: &mut Vec<u8>) {
        match stage {
            StringStage::Passed => output.extend_from_slice(end),
            StringStage::Removed => {}
            StringStage::Undecided => {
                if kind.decide(&self.content, true, self.options) == Some(true) {
                    output.append(&mut self.held);
                    output.extend_from_slice(end);
                }
            }
        }
        self.leave_sequence();
    }

    /// Ends a string whose end is missing, so that the terminal is where the parser is.
    fn cut_string(&mut self, output: &mut Vec<u8>) {
        if let ParserState::String { stage: StringStage::Passed, .. } = self.state {
            output.extend_from_slice(STRING_TERMINATOR);
        }
    }

    fn limit_held(&mut self, first_final: u8) {
        if self.held.len() > MAX_HELD - 8 {
            self.leave_sequence();
            self.state = ParserState::Overlong { first_final };
        }
    }

    fn leave_sequence(&mut self) {
        self.state = ParserState::Ground;
        self.held.clear();
        self.content.clear();
    }
}

/// Whether a byte is output that no sequence begins with, and that changes no mode.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | BEL..=b'\r')
}

fn first_unit(bytes: &[u8]) -> TextUnit {
    let needed = match bytes.first() {
        None => return TextUnit::Incomplete,
        Some(byte @ 0..=0x7f) => return TextUnit::Ascii(*byte),
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        Some(0x80..=0x9f) => return TextUnit::Control(1),
        Some(_) => return TextUnit::Text(1),
    };
    let candidate = bytes.get(..needed.min(bytes.len())).unwrap_or_default();
    match std::str::from_utf8(candidate) {
        Ok(text) if text.chars().all(char::is_control) => TextUnit::Control(needed),
        Ok(_) => TextUnit::Text(needed),
        Err(error) if error.error_len().is_none() => TextUnit::Incomplete,
        // The first byte of a character that does not go on.
        Err(_) => TextUnit::Text(1),
    }
}

/// Filters a whole output.
#[cfg(test)]
pub(crate) fn filtered(input: &[u8]) -> Vec<u8> {
    let mut output = Vec::new();
    OutputFilter::new(FilterOptions::default()).filter(input, &mut output);
    output
}
