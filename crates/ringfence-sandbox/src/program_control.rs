//! Commands of the host to the init process of a wrapped program, and stops of the program.
//!
//! A stop is reported once, and not again before the host continued the program: a program that stops itself without end
//! waits for the host each time, and the socket never fills up.
//!
//! Not here: how the terminal is opened (`terminal.rs`), and the end of the program (`init.rs`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group};

use crate::protocol::{HostCommand, MAX_MESSAGE_BYTES, SpawnerReply};
use crate::sys;
use crate::terminal::ProgramTerminal;

/// Signals that mean the whole program, and not only a job of it.
const SIGNALS_TO_ALL: [Signal; 2] = [Signal::HUP, Signal::TERM];

/// Control of one program by the host.
#[derive(Debug)]
pub(crate) struct ProgramControl<'a> {
    /// To the host. Nothing, when its other end is closed.
    socket: Option<&'a OwnedFd>,
    /// The program, which leads a process group.
    program: Pid,
    terminal: Option<ProgramTerminal>,
    /// Whether the host has yet to answer a stop.
    awaits_host: bool,
}

impl<'a> ProgramControl<'a> {
    pub(crate) fn new(socket: &'a OwnedFd, program: Pid, terminal: Option<ProgramTerminal>) -> Self {
        Self { socket: Some(socket), program, terminal, awaits_host: false }
    }

    /// Changes of a child to be reported, besides its end.
    pub(crate) fn wait_options(&self) -> WaitOptions {
        if self.terminal.is_some() { WaitOptions::UNTRACED } else { WaitOptions::empty() }
    }

    /// For `poll`.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'a>> {
        self.socket.map(|socket| socket.as_fd())
    }

    /// For `poll`, which reports it when the host has closed the terminal.
    pub(crate) fn terminal(&self) -> Option<BorrowedFd<'_>> {
        self.terminal.as_ref().map(ProgramTerminal::slave)
    }

    /// Hangs up, as the shell of a terminal that was closed: the kernel tells the leader of the session only, which is this
    /// process. The terminal is gone, and its foreground with it.
    pub(crate) fn hang_up(&mut self) {
        self.terminal = None;
        for signal in [Signal::HUP, Signal::CONT] {
            // It may have ended meanwhile.
            let _ = kill_process_group(self.program, signal);
        }
    }

    /// Reports that a child was stopped, if it is the program.
    pub(crate) fn report_stop(&mut self, child: Pid) {
        let Some(socket) = self.socket.filter(|_| child == self.program && !self.awaits_host) else { return };
        self.awaits_host = SpawnerReply::Stopped.send(socket.as_fd(), &[]).is_ok();
    }

    /// Follows one command. `socket` has something to read.
    pub(crate) fn follow_command(&mut self) {
        let Some(socket) = self.socket else { return };
        let mut buffer = [0; MAX_MESSAGE_BYTES];
        let command = match sys::receive(socket.as_fd(), &mut buffer) {
            Ok((bytes, _)) if !bytes.is_empty() => HostCommand::decode(bytes),
            Err(Errno::AGAIN) => return,
            // The host is gone, and this process goes with it.
            _ => return self.socket = None,
        };
        match command {
            Ok(HostCommand::Continue) => self.resume(),
            Ok(HostCommand::Signal(signal)) => self.deliver(signal),
            Err(_) => {}
        }
    }

    fn resume(&mut self) {
        self.awaits_host = false;
        if let Some(terminal) = &self.terminal {
            terminal.resume(self.program);
        }
    }

    fn deliver(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        let foreground = self.terminal.as_ref().and_then(ProgramTerminal::foreground);
        // A program can also name the group of this process, whose number means every process.
        let job = foreground.filter(|job| *job != self.program && !job.is_init());
        let program = (job.is_none() || SIGNALS_TO_ALL.contains(&signal)).then_some(self.program);
        for group in [job, program].into_iter().flatten() {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }
}
