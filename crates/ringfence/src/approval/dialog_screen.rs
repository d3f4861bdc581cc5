//! Screen of a dialog on a terminal: drawing, waiting for keys, and restoring what was there.
//!
//! The dialog is on the alternate screen. Whatever ends it, dropping the screen restores the terminal.
//!
//! Not here: what is drawn (`dialog.rs`), and what bytes mean (`terminal_keys.rs`).

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use crate::approval::dialog::{DialogKey, WindowSize};
use crate::approval::dialog_lines::{DialogLine, DialogStyle};
use crate::approval::terminal_keys::TerminalKeyParser;

/// Interval at which the window and the time are checked.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// What happened while a screen was waited for.
#[derive(Debug)]
pub(crate) enum DialogEvent {
    Nothing,
    Closed,
    Keys(Vec<DialogKey>),
}

/// The terminal while a dialog is on it.
#[derive(Debug)]
pub(crate) struct DialogScreen<'a> {
    terminal: &'a File,
    colours: ColorMode,
    before: Termios,
    drawn: Option<Vec<DialogLine>>,
    keys: TerminalKeyParser,
}

impl<'a> DialogScreen<'a> {
    pub(crate) fn enter(terminal: &'a File, colours: ColorMode) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN;
        modes.input_modes -= InputModes::IXON;
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        // An interrupt is a cancel, which we hear of. To be stopped or to dump core here would leave the terminal so.
        modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
        modes.special_codes[SpecialCodeIndex::VQUIT] = 0;
        let screen = Self { terminal, colours, before, drawn: None, keys: TerminalKeyParser::default() };
        tcsetattr(terminal, OptionalActions::Flush, &modes)?;
        screen.write_text("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    pub(crate) fn size(&self) -> WindowSize {
        let size = tcgetwinsize(self.terminal).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        size.map_or(WindowSize { rows: 24, columns: 80 }, |size| WindowSize {
            rows: usize::from(size.ws_row),
            columns: usize::from(size.ws_col),
        })
    }

    pub(crate) fn draw(&mut self, lines: &[DialogLine]) -> io::Result<()> {
        if self.drawn.as_deref() == Some(lines) {
            return Ok(());
        }
        let mut text = "\x1b[H\x1b[2J".to_owned();
        for (row, line) in lines.iter().enumerate() {
            let end = if row + 1 < lines.len() { "\n" } else { "" };
            text.push_str(&format!("\x1b[{}m{}\x1b[0m{end}", self.colours.escape_code(line.style), line.text));
        }
        self.write_text(&text)?;
        self.drawn = Some(lines.to_vec());
        Ok(())
    }

    /// Waits a tick for keys, or until the other descriptor is readable or closed, which closes the dialog.
    pub(crate) fn wait(&mut self, closing: Option<BorrowedFd<'_>>) -> io::Result<DialogEvent> {
        let mut fds = vec![PollFd::new(self.terminal, PollFlags::IN)];
        fds.extend(closing.map(|closing| PollFd::from_borrowed_fd(closing, PollFlags::IN)));
        poll_for(&mut fds, TICK)?;
        let typed = fds.first().map_or(PollFlags::empty(), PollFd::revents);
        let closed = fds.get(1).map_or(PollFlags::empty(), PollFd::revents);
        if !closed.is_empty() || typed.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Ok(DialogEvent::Closed);
        }
        if typed.is_empty() {
            return Ok(DialogEvent::Nothing);
        }
        let (mut bytes, mut terminal) = ([0; 1024], self.terminal);
        match terminal.read(&mut bytes) {
            Ok(0) => Ok(DialogEvent::Closed),
            Ok(count) => {
                let keys = self.keys.parse(bytes.get(..count).unwrap_or_default(), Instant::now());
                // What a terminal replies to a program leaves the dialog as it is.
                Ok(if keys.is_empty() { DialogEvent::Nothing } else { DialogEvent::Keys(keys) })
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(DialogEvent::Nothing),
            Err(error) => Err(error),
        }
    }

    fn write_text(&self, text: &str) -> io::Result<()> {
        let mut terminal = self.terminal;
        terminal.write_all(text.as_bytes())?;
        terminal.flush()
    }
}

impl Drop for DialogScreen<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _ = self.write_text("\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Waits up to a time for descriptors.
pub(crate) fn poll_for(fds: &mut [PollFd<'_>], at_most: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(at_most).map_err(|_| Errno::INVAL)?;
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether colours are used. Bold and faint are used without them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColorMode {
    All,
    None,
}

impl ColorMode {
    fn escape_code(self, style: DialogStyle) -> &'static str {
        match (style, self) {
            (DialogStyle::Plain, _) | (DialogStyle::Added | DialogStyle::Removed | DialogStyle::Hunk, Self::None) => {
                "0"
            }
            (DialogStyle::Title, _) | (DialogStyle::Prompt, Self::None) => "1",
            (DialogStyle::Faint, _) => "2",
            (DialogStyle::Added, Self::All) => "32",
            (DialogStyle::Removed, Self::All) => "31",
            (DialogStyle::Hunk, Self::All) => "36",
            (DialogStyle::Prompt, Self::All) => "1;33",
        }
    }
}
