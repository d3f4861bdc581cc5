//! The terminal of the person who started a wrapped program: raw mode, its size, and restoring its settings.
//!
//! The settings are restored to the byte when this is dropped, in whatever way that happens. The terminal is opened by
//! itself, so that reads and writes that do not wait change nothing for the shell that shares its standard input.
//!
//! Not here: copying between this terminal and that of the program (`relay_loop.rs`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, Winsize, isatty, tcflush, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

/// The size where a terminal does not know its own.
const USUAL_SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// The person's terminal.
#[derive(Debug)]
pub(crate) struct PersonTerminal {
    terminal: File,
    before: Termios,
    is_raw: bool,
}

impl PersonTerminal {
    /// The controlling terminal, if standard input and output are it.
    pub(crate) fn open() -> Option<Self> {
        // Only of its controlling terminal a process may ask this. The group has no number where it is outside of our
        // PID namespace, and neither has our session: identifiers of sessions could not be compared.
        let is_ours = |end: BorrowedFd<'_>| isatty(end) && matches!(tcgetpgrp(end), Ok(_) | Err(Errno::OPNOTSUPP));
        if !is_ours(stdin()) || !is_ours(stdout()) {
            return None;
        }
        let flags = i32::try_from((OFlags::NOCTTY | OFlags::NONBLOCK).bits()).ok()?;
        let terminal = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/tty").ok()?;
        let before = tcgetattr(&terminal).ok()?;
        Some(Self { terminal, before, is_raw: false })
    }

    /// The size of its window.
    pub(crate) fn size(&self) -> Winsize {
        tcgetwinsize(&self.terminal).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0).unwrap_or(USUAL_SIZE)
    }

    /// Every key becomes input, and output is written as it is.
    pub(crate) fn enter_raw(&mut self) -> io::Result<()> {
        let mut modes = self.before.clone();
        modes.make_raw();
        // What was typed already is for the program.
        tcsetattr(&self.terminal, OptionalActions::Now, &modes)?;
        self.is_raw = true;
        Ok(())
    }

    /// Restores the settings that the terminal had.
    pub(crate) fn restore(&mut self) {
        if std::mem::take(&mut self.is_raw) {
            // A terminal that is gone needs nothing restored.
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
        }
    }

    /// Drops keys that were typed and not read.
    pub(crate) fn discard_input(&self) {
        // Nothing is pending on a terminal that is gone.
        let _ = tcflush(&self.terminal, QueueSelector::IFlush);
    }

    /// Reads keys without waiting.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.terminal, bytes)?)
    }

    /// Writes what fits without waiting.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.terminal, bytes)?)
    }
}

impl AsFd for PersonTerminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

impl Drop for PersonTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}
