//! Terminal modes that a wrapped program set, as its output says.
//!
//! They are switched off while a question is on the screen, switched on again after it, and switched off at the end of a
//! program that left them on. Only modes that differ from those of a fresh terminal are written.
//!
//! Not here: which sequences pass (`sequence_policy.rs`).

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::wrapped_run::sequence_policy::ControlSequence;

/// The screens with a line buffer of their own: the last one to be entered counts.
const ALTERNATE_SCREENS: [u16; 3] = [47, 1047, 1049];

/// Private modes that are on in a fresh terminal: wrapping, the cursor.
const ON_BY_DEFAULT: [u16; 2] = [7, 25];

/// Private modes that are off there: cursor keys, reverse video, origin, margins at the sides, mouse, focus, paste,
/// synchronized updates, notifications of colours and sizes.
const OFF_BY_DEFAULT: [u16; 18] =
    [1, 5, 6, 9, 69, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031, 2048];

/// Private modes that say how text is drawn, and not what the terminal sends: wrapping, origin, margins at the sides, the cursor,
/// and updates that are held back.
const OF_DRAWING: [u16; 5] = [6, 7, 25, 69, 2026];

/// Deepest stack of the keyboard protocol.
const MAX_KEYBOARD_STACK: usize = 16;

/// Modes of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TerminalModes {
    /// Private modes that are not as in a fresh terminal.
    switched: BTreeSet<u16>,
    /// The alternate screen, by the mode that entered it.
    alternate: Option<u16>,
    /// Modes as they were saved.
    saved: BTreeMap<u16, bool>,
    /// Insert mode and newline mode.
    ansi: BTreeSet<u16>,
    /// Flags of the keyboard protocol, on the main and on the alternate screen. The last one applies.
    keyboard: [Vec<u16>; 2],
    modify_other_keys: u16,
    is_keypad_application: bool,
    /// The scroll region.
    margins: Option<Vec<u8>>,
    /// The character set of letters, if it is not ASCII.
    letters: Option<u8>,
    is_shifted: bool,
    is_cursor_styled: bool,
}

impl Default for TerminalModes {
    fn default() -> Self {
        Self {
            switched: BTreeSet::new(),
            alternate: None,
            saved: BTreeMap::new(),
            ansi: BTreeSet::new(),
            keyboard: [vec![0], vec![0]],
            modify_other_keys: 0,
            is_keypad_application: false,
            margins: None,
            letters: None,
            is_shifted: false,
            is_cursor_styled: false,
        }
    }
}

impl TerminalModes {
    /// Takes note of a control sequence.
    pub(crate) fn apply_control(&mut self, sequence: &ControlSequence<'_>) {
        let numbers = sequence.numbers().unwrap_or_default();
        let first = numbers.first().copied().unwrap_or(0);
        match (sequence.prefix, sequence.intermediates, sequence.final_byte) {
            (Some(b'?'), [], b'h') => numbers.iter().for_each(|mode| self.set_private(*mode, true)),
            (Some(b'?'), [], b'l') => numbers.iter().for_each(|mode| self.set_private(*mode, false)),
            (Some(b'?'), [], b's') => {
                let saved = numbers.iter().filter(|mode| is_tracked(**mode));
                self.saved.extend(saved.map(|mode| (*mode, self.private(*mode))).collect::<Vec<_>>());
            }
            (Some(b'?'), [], b'r') => {
                for mode in numbers {
                    let before = self.saved.get(&mode).copied().unwrap_or(ON_BY_DEFAULT.contains(&mode));
                    self.set_private(mode, before);
                }
            }
            (None, [], b'h') => self.ansi.extend(numbers.iter().filter(|mode| matches!(mode, 4 | 20))),
            (None, [], b'l') => self.ansi.retain(|mode| !numbers.contains(mode)),
            (None, [], b'r') => {
                let is_whole = numbers.iter().all(|number| *number == 0);
                self.margins = (!is_whole).then(|| sequence.parameters.to_vec());
            }
            (Some(b'>'), [], b'm') if first == 4 => {
                self.modify_other_keys = numbers.get(1).copied().unwrap_or(0);
            }
            (Some(b'>'), [], b'm' | b'n') if first == 0 || first == 4 => self.modify_other_keys = 0,
            (Some(b'>' | b'<' | b'='), [], b'u') => self.apply_keyboard(sequence.prefix, &numbers),
            (None, [b' '], b'q') => self.is_cursor_styled = first != 0,
            (None, [b'!'], b'p') => self.soft_reset(),
            _ => {}
        }
    }

    /// Takes note of an escape sequence, of the bytes after `ESC`.
    pub(crate) fn apply_escape(&mut self, bytes: &[u8]) {
        match bytes {
            b"c" => *self = Self::default(),
            b"=" => self.is_keypad_application = true,
            b">" => self.is_keypad_application = false,
            [b'(', set] => self.letters = Some(*set).filter(|set| *set != b'B'),
            _ => {}
        }
    }

    /// Takes note of a shift to another character set.
    pub(crate) fn apply_shift(&mut self, byte: u8) {
        match byte {
            0x0e => self.is_shifted = true,
            0x0f => self.is_shifted = false,
            _ => {}
        }
    }

    /// Whether the program has the alternate screen.
    #[cfg(test)]
    pub(crate) fn is_on_alternate_screen(&self) -> bool {
        self.alternate.is_some()
    }

    /// Switches every mode to that of a fresh terminal, for other output on the main screen.
    pub(crate) fn suspend(&self) -> Vec<u8> {
        let mut written = Vec::new();
        // Updates that are held back would hold back everything.
        if self.switched.contains(&2026) {
            written.extend(b"\x1b[?2026l");
        }
        for mode in self.switched.iter().filter(|mode| **mode != 2026) {
            written.extend(private_mode(*mode, ON_BY_DEFAULT.contains(mode)));
        }
        for mode in &self.ansi {
            written.extend(format!("\x1b[{mode}l").into_bytes());
        }
        if self.keyboard_flags() != 0 {
            written.extend(b"\x1b[=0;1u");
        }
        if self.modify_other_keys != 0 {
            written.extend(b"\x1b[>4;0m");
        }
        if self.is_keypad_application {
            written.extend(b"\x1b>");
        }
        if self.margins.is_some() {
            // The region is set with the cursor put to the start.
            written.extend(b"\x1b7\x1b[r\x1b8");
        }
        if self.is_shifted {
            written.push(0x0f);
        }
        if self.letters.is_some() {
            written.extend(b"\x1b(B");
        }
        if let Some(mode) = self.alternate {
            written.extend(private_mode(mode, false));
        }
        written
    }

    /// Switches the modes on again.
    pub(crate) fn resume(&self) -> Vec<u8> {
        let mut written = Vec::new();
        if let Some(mode) = self.alternate {
            written.extend(private_mode(mode, true));
        }
        if let Some(set) = self.letters {
            written.extend([0x1b, b'(', set]);
        }
        if self.is_shifted {
            written.push(0x0e);
        }
        if let Some(margins) = &self.margins {
            written.extend([b"\x1b7\x1b[", margins.as_slice(), b"r\x1b8"].concat());
        }
        written.extend(self.resume_keyboard());
        for mode in &self.ansi {
            written.extend(format!("\x1b[{mode}h").into_bytes());
        }
        for mode in &self.switched {
            written.extend(private_mode(*mode, !ON_BY_DEFAULT.contains(mode)));
        }
        written
    }

    /// Switches a terminal of any modes to those of a fresh one, with a clear main screen.
    pub(crate) fn clear_terminal() -> Vec<u8> {
        let mut written = b"\x1b[?2026l\x1b[?1049l\x1b[!p".to_vec();
        let off = OFF_BY_DEFAULT.iter().filter(|mode| !OF_DRAWING.contains(mode));
        written.extend(off.flat_map(|mode| private_mode(*mode, false)));
        written.extend(b"\x1b[=0;1u\x1b[>4;0m\x1b>\x0f\x1b(B\x1b[m\x1b[r\x1b[H\x1b[2J");
        written
    }

    /// Switches on what the terminal is to send: mouse, paste, keys. The rest of the modes is that of what is drawn.
    pub(crate) fn resume_input(&self) -> Vec<u8> {
        let switched = self.switched.iter().filter(|mode| !OF_DRAWING.contains(mode));
        switched.flat_map(|mode| private_mode(*mode, true)).chain(self.resume_keyboard()).collect()
    }

    fn resume_keyboard(&self) -> Vec<u8> {
        let mut written = Vec::new();
        if self.is_keypad_application {
            written.extend(b"\x1b=");
        }
        if self.modify_other_keys != 0 {
            written.extend(format!("\x1b[>4;{}m", self.modify_other_keys).into_bytes());
        }
        if self.keyboard_flags() != 0 {
            written.extend(format!("\x1b[={};1u", self.keyboard_flags()).into_bytes());
        }
        written
    }

    /// As `suspend`, when the program is gone: it leaves nothing that a shell would have to know.
    pub(crate) fn reset(&self) -> Vec<u8> {
        let mut written = Vec::new();
        let pushed = |stack: &Vec<u16>| stack.len().saturating_sub(1);
        let [main, alternate] = &self.keyboard;
        if self.alternate.is_some() && pushed(alternate) > 0 {
            written.extend(format!("\x1b[<{}u", pushed(alternate)).into_bytes());
        }
        written.extend(self.suspend());
        if pushed(main) > 0 {
            written.extend(format!("\x1b[<{}u", pushed(main)).into_bytes());
        }
        if self.is_cursor_styled {
            written.extend(b"\x1b[0 q");
        }
        // Colours and the like, which are not tracked.
        written.extend(b"\x1b[m");
        written
    }

    fn private(&self, mode: u16) -> bool {
        match ALTERNATE_SCREENS.contains(&mode) {
            true => self.alternate.is_some(),
            false => self.switched.contains(&mode) != ON_BY_DEFAULT.contains(&mode),
        }
    }

    fn set_private(&mut self, mode: u16, is_on: bool) {
        if ALTERNATE_SCREENS.contains(&mode) {
            self.alternate = is_on.then_some(mode);
        } else if is_tracked(mode) {
            match is_on == ON_BY_DEFAULT.contains(&mode) {
                true => self.switched.remove(&mode),
                false => self.switched.insert(mode),
            };
        }
    }

    fn keyboard_stack(&mut self) -> &mut Vec<u16> {
        let [main, alternate] = &mut self.keyboard;
        if self.alternate.is_some() { alternate } else { main }
    }

    fn keyboard_flags(&self) -> u16 {
        let [main, alternate] = &self.keyboard;
        let stack = if self.alternate.is_some() { alternate } else { main };
        stack.last().copied().unwrap_or(0)
    }

    fn apply_keyboard(&mut self, prefix: Option<u8>, numbers: &[u16]) {
        let first = numbers.first().copied().unwrap_or(0);
        let stack = self.keyboard_stack();
        match prefix {
            Some(b'>') => {
                stack.push(first);
                if stack.len() > MAX_KEYBOARD_STACK {
                    stack.remove(0);
                }
            }
            Some(b'<') => {
                let left = stack.len().saturating_sub(usize::from(first.max(1)));
                stack.truncate(left);
                if stack.is_empty() {
                    stack.push(0);
                }
            }
            _ => {
                if let Some(flags) = stack.last_mut() {
                    match numbers.get(1).copied().unwrap_or(1) {
                        2 => *flags |= first,
                        3 => *flags &= !first,
                        _ => *flags = first,
                    }
                }
            }
        }
    }

    fn soft_reset(&mut self) {
        for mode in [1, 6, 7, 25, 69] {
            self.switched.remove(&mode);
        }
        self.ansi.clear();
        self.margins = None;
        self.letters = None;
        self.is_shifted = false;
        self.is_keypad_application = false;
    }
}

fn is_tracked(mode: u16) -> bool {
    ON_BY_DEFAULT.contains(&mode) || OFF_BY_DEFAULT.contains(&mode) || ALTERNATE_SCREENS.contains(&mode)
}

fn private_mode(mode: u16, is_on: bool) -> Vec<u8> {
    format!("\x1b[?{mode}{}", if is_on { 'h' } else { 'l' }).into_bytes()
}
