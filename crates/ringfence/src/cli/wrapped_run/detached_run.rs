//! Detached run: a wrapped run in a session of its own, which goes on without the terminal that started it.
//!
//! The starter runs this program again. That process becomes the leader of a session, and its controlling terminal is one of
//! its own, whose other end is the attach server's. So the run is one at a terminal as any other: its questions, sizes and
//! keys are those of its writer. The starter waits until the program runs, and has shown until then what went wrong.
//!
//! Not here: those who attach (`attach_server.rs`, `attached_terminal.rs`).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use ringfence_sandbox::TerminalSize;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdout};
use rustix::termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use crate::cli::wrapped_run::person_terminal::PersonTerminal;
use crate::process::program_launcher::spawn_again;

/// The option with which the starter runs this program again.
pub(crate) const DETACHED_PROCESS_OPTION: &str = "--detached-process";

/// The size where the starter has no terminal.
pub(crate) const USUAL_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// Starts the run in a process of its own, from the arguments of this one. Gives its layer once the program runs, or the exit code
/// of a run that did not start.
pub(crate) fn start_detached(arguments: impl Iterator<Item = OsString>) -> io::Result<Result<String, u8>> {
    let size = PersonTerminal::open().map_or(USUAL_SIZE, |terminal| {
        let size = terminal.size();
        TerminalSize { rows: size.ws_row, columns: size.ws_col }
    });
    let mut arguments: Vec<OsString> = arguments.collect();
    // The command of the program is behind this; it is required.
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let own = [DETACHED_PROCESS_OPTION.to_owned(), format!("{}x{}", size.rows, size.columns)];
    arguments.splice(end..end, own.map(OsString::from));
    let (mut process, notices) = spawn_again(&arguments)?;
    let mut layer = String::new();
    BufReader::new(notices).read_line(&mut layer)?;
    if layer.ends_with('\n') {
        return Ok(Ok(layer.trim_end().to_owned()));
    }
    let code = process.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(Err(code.unwrap_or(u8::MAX)))
}

/// The size of a terminal, as the starter names it.
pub(crate) fn parse_size(text: &str) -> Result<TerminalSize, String> {
    let parse = || {
        let (rows, columns) = text.split_once('x')?;
        Some(TerminalSize { rows: rows.parse().ok()?, columns: columns.parse().ok()? })
    };
    parse().ok_or_else(|| "expected a size such as `24x80`".to_owned())
}

/// Makes this process the leader of a session with a terminal, which is its standard input and output, and its standard error
/// once the program runs. Gives the other end of that terminal.
pub(crate) fn open_detached_terminal(size: TerminalSize) -> io::Result<(OwnedFd, StartNotice)> {
    let starter = fcntl_dupfd_cloexec(stdout(), 3)?;
    setsid()?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    ioctl_tiocsctty(&slave)?;
    let TerminalSize { rows, columns } = size;
    tcsetwinsize(&slave, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let mut modes = tcgetattr(&slave)?;
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&slave, OptionalActions::Now, &modes)?;
    dup2_stdin(&slave)?;
    dup2_stdout(&slave)?;
    Ok((master, StartNotice { starter: File::from(starter) }))
}

/// Closes the terminal of this process, so that what was written to it can be read to its end.
pub(crate) fn close_detached_terminal() -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    Ok(dup2_stderr(&nothing)?)
}

/// Tells the starter that the program runs.
#[derive(Debug)]
pub(crate) struct StartNotice {
    starter: File,
}

impl StartNotice {
    /// From here on, messages are for those who attach.
    pub(crate) fn send(mut self, layer: &str) {
        // A terminal that cannot take them leaves them where they were.
        let _ = dup2_stderr(stdout().as_fd());
        // A starter that is gone needs to know nothing.
        let _ = writeln!(self.starter, "{layer}");
    }
}
