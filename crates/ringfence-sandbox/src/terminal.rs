//! Pseudo-terminal of a wrapped program, and job control on it.
//!
//! The terminal is one of the jail's own devpts. Its master goes to the host and to no process of the jail, and the host's
//! terminal never comes in, so that input cannot be pushed into it. The init process is the leader of the session: it lives
//! as long as the jail and reaps the program anyway, so that a stopped program is seen where its end is seen, and the
//! program, in a process group of its own, is a job that can be stopped, as below a shell. A process between the two would
//! have to be watched itself, and would be one more that a program could signal.
//!
//! Not here: the host's terminal, its modes and its size. `TerminalRelay` is the host's side.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, ioctl_tiocsctty, kill_process_group, setpgid, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp, tcsetwinsize};
use serde::{Deserialize, Serialize};

use crate::sys;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Number of lines.
    pub rows: u16,
    /// Number of characters in a line.
    pub columns: u16,
}

/// The host's side of a terminal.
pub trait TerminalRelay: Sync + std::fmt::Debug {
    /// The program has a terminal. The relay owns the master from here on: it reads the output, writes the input, and sets
    /// the size. It must not block; after the end of the program, the master can still be read to its end (`EIO`).
    fn on_opened(&self, master: OwnedFd);

    /// The process group of the program was stopped (^Z). Returns when it is to continue. The run is not observed until
    /// then.
    fn on_stopped(&self);
}

/// The terminal of a jail, as its init process holds it.
#[derive(Debug)]
pub(crate) struct JailTerminal {
    master: OwnedFd,
    slave: OwnedFd,
}

impl JailTerminal {
    /// Opens one, as the controlling terminal of a new session that this process leads. Processes that it starts from now
    /// on are in that session.
    pub(crate) fn open() -> Result<Self, Errno> {
        setsid()?;
        // It changes the foreground process group, which is never its own.
        sys::block_signal(libc::SIGTTOU);
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        // Not by its name: the path of a terminal could be another one's.
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        ioctl_tiocsctty(&slave)?;
        let mut modes = tcgetattr(&slave)?;
        modes.input_modes |= InputModes::IUTF8;
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        Ok(Self { master, slave })
    }

    pub(crate) fn master(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }

    pub(crate) fn slave(&self) -> &OwnedFd {
        &self.slave
    }

    /// Sets the size, and puts the program, a child that waits, into the foreground.
    pub(crate) fn prepare(&self, size: TerminalSize, program: Pid) -> Result<(), Errno> {
        let TerminalSize { rows, columns } = size;
        tcsetwinsize(&self.slave, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        setpgid(Some(program), Some(program))?;
        tcsetpgrp(&self.slave, program)
    }

    /// Gives up the master, when the host has it: output ends when no process has the other end open.
    pub(crate) fn into_program_side(self) -> ProgramTerminal {
        ProgramTerminal { slave: self.slave }
    }
}

/// The program's end of a terminal.
#[derive(Debug)]
pub(crate) struct ProgramTerminal {
    slave: OwnedFd,
}

impl ProgramTerminal {
    /// Puts a stopped program into the foreground, and continues it.
    pub(crate) fn resume(&self, program: Pid) {
        // It may have ended meanwhile.
        let _ = tcsetpgrp(&self.slave, program);
        let _ = kill_process_group(program, Signal::CONT);
    }

    pub(crate) fn slave(&self) -> BorrowedFd<'_> {
        self.slave.as_fd()
    }

    /// The process group in the foreground: the program's, or a job of a shell.
    pub(crate) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.slave).ok()
    }
}
