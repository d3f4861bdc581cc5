//! Screen model: the screen of a terminal as the output of a wrapped program draws it.
//!
//! It gives the screen as text, and as output that draws the same on another terminal of that size: lines, cursor, modes, and
//! the main screen behind the alternate one. What scrolled off is not kept, so its size has a bound whatever is written.
//!
//! Not here: which sequences pass (`output_filter.rs`).

use std::fmt;

use avt::Terminal;
use ringfence_sandbox::TerminalSize;

use crate::cli::wrapped_run::output_filter::OutputFilter;
use crate::cli::wrapped_run::sequence_policy::FilterOptions;
use crate::cli::wrapped_run::terminal_modes::TerminalModes;

/// The largest screen. A larger terminal shows it in its corner.
const LARGEST: TerminalSize = TerminalSize { rows: 400, columns: 1000 };

/// The screen of a terminal.
pub(crate) struct ScreenModel {
    terminal: Terminal,
    size: TerminalSize,
    /// Finds the modes that are set, and keeps incomplete sequences from the model.
    filter: OutputFilter,
}

impl ScreenModel {
    /// An empty screen.
    pub(crate) fn new(size: TerminalSize) -> Self {
        let size = clamp(size);
        // A size that is not zero is always taken.
        let terminal = Terminal::new(usize::from(size.columns), usize::from(size.rows));
        let terminal = terminal.unwrap_or_else(|_| unreachable!("a clamped size is not zero"));
        Self { terminal, size, filter: OutputFilter::new(FilterOptions::default()) }
    }

    /// Draws the next bytes of the output.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let mut passed = Vec::with_capacity(bytes.len());
        self.filter.filter(bytes, &mut passed);
        // The filter holds back the beginning of a character.
        self.terminal.feed(String::from_utf8_lossy(&passed).as_ref());
    }

    pub(crate) fn size(&self) -> TerminalSize {
        self.size
    }

    pub(crate) fn resize(&mut self, size: TerminalSize) {
        self.size = clamp(size);
        self.terminal.resize(usize::from(self.size.columns), usize::from(self.size.rows));
    }

    /// Whether other output may come now, and the program's after it.
    pub(crate) fn is_between_sequences(&self) -> bool {
        self.filter.is_between_sequences()
    }

    /// Output that draws this screen on a terminal, whatever was on it.
    pub(crate) fn repaint(&self) -> Vec<u8> {
        let mut output = TerminalModes::clear_terminal();
        output.extend(self.terminal.dump().into_bytes());
        output.extend(self.filter.modes().resume_input());
        output
    }

    /// The lines of the screen, without spaces at their ends.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.terminal.screen().visible_lines().map(|line| line.text().trim_end().to_owned()).collect()
    }
}

impl fmt::Debug for ScreenModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScreenModel").field("size", &self.size).finish_non_exhaustive()
    }
}

fn clamp(size: TerminalSize) -> TerminalSize {
    TerminalSize { rows: size.rows.clamp(1, LARGEST.rows), columns: size.columns.clamp(1, LARGEST.columns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: TerminalSize = TerminalSize { rows: 4, columns: 10 };

    fn screen(output: &[u8]) -> ScreenModel {
        let mut screen = ScreenModel::new(SIZE);
        screen.feed(output);
        screen
    }

    #[test]
    fn the_screen_is_text_as_it_was_drawn() {
        let check = |output: &[u8], expected: [&str; 4]| assert_eq!(screen(output).lines(), expected);
        check(b"one\r\ntwo", ["one", "two", "", ""]);
        check(b"1\r\n2\r\n3\r\n4\r\n5", ["2", "3", "4", "5"]);
        check(b"shell\x1b[?1049h\x1b[H\x1b[2J\x1b[2;3Hfull", ["", "  full", "", ""]);
        check(b"shell\x1b[?1049h\x1b[Hfull\x1b[?1049l", ["shell", "", "", ""]);
        check("\u{1b}[1;31mrot\u{1b}[m ä✳".as_bytes(), ["rot ä✳", "", "", ""]);
        check(b"<b>&amp;</b>\xff", ["<b>&amp;</", "b>\u{fffd}", "", ""]);
    }

    /// Whatever is on the other terminal.
    #[test]
    fn what_is_drawn_again_is_the_same_screen_with_the_same_modes() {
        for output in [
            &b"one\r\n\x1b[31mtwo\x1b[m\r\nthree"[..],
            b"shell\r\n\x1b[?1049h\x1b[?25l\x1b[2004h\x1b[H\x1b[2Jfull\x1b[3;3H\x1b[?1000h\x1b[?1006h\x1b[>1u",
            b"\x1b[2;3r\x1b[3;1Hin margins\x1b[?1h\x1b=",
        ] {
            let first = screen(output);
            for before in
                [&b""[..], b"\x1b[?1049h\x1b[5mother\x1b[2;3r\x1b[?1003h\x1b[?25l\x1b[=3;1u", b"\x1b[?6h\x1b(0x"]
            {
                let mut second = screen(before);
                second.feed(&first.repaint());
                assert_eq!(second.lines(), first.lines(), "{}", output.escape_ascii());
                assert_eq!(second.terminal.dump(), first.terminal.dump(), "{}", output.escape_ascii());
                let modes = |screen: &ScreenModel| {
                    let modes = screen.filter.modes();
                    (modes.resume_input(), modes.is_on_alternate_screen())
                };
                assert_eq!(modes(&second), modes(&first), "{}", output.escape_ascii());
            }
        }
    }

    #[test]
    fn sizes_are_bounded_on_both_sides() {
        let mut screen = ScreenModel::new(TerminalSize { rows: 0, columns: 0 });
        screen.feed(b"text\x1b[9999;9999Hx");
        screen.resize(TerminalSize { rows: u16::MAX, columns: u16::MAX });
        assert_eq!(screen.size(), LARGEST);
        screen.feed("x".repeat(100_000).as_bytes());
        screen.resize(SIZE);
        assert_eq!(screen.lines().len(), 4);
    }
}
