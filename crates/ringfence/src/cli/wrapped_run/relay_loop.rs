//! Relay between the person's terminal and that of a wrapped program: the thread that copies both ways.
//!
//! Buffers are bounded and nothing is dropped: when one side does not read, the other one waits, and input never waits behind
//! output. The person's terminal is in raw mode while the program has it, and as it was before at any other moment:
//! while the program is stopped, while a question is on the screen, and after the end.
//!
//! Not here: what the program may send (`output_filter.rs`), and the session that others hold (`terminal_relay.rs`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use ringfence_kernel::sanitize_line;
use ringfence_sandbox::TerminalSize;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::approval::dialog_screen::poll_for;
use crate::cli::wrapped_run::attach_server::AttachServer;
use crate::cli::wrapped_run::output_filter::OutputFilter;
use crate::cli::wrapped_run::person_terminal::PersonTerminal;
use crate::cli::wrapped_run::relay_signals::SignalInbox;

/// Most bytes of output that wait for the person's terminal before the program's is not read any more.
const MAX_OUTPUT: usize = 64 << 10;

/// Most bytes of input that wait for the program.
const MAX_INPUT: usize = 16 << 10;

/// Time that a program gets between two sizes of its terminal, to notice the first.
const REPAINT_DELAY: Duration = Duration::from_millis(60);

/// Time in which a stop takes effect. Without a shell that could continue us, there is none.
const STOP_DELAY: Duration = Duration::from_millis(300);

/// Interval at which a terminal is looked at that no process of the jail has open.
const HUNG_UP_TICK: Duration = Duration::from_millis(50);

/// Interval at which everything is looked at.
const TICK: Duration = Duration::from_secs(60);

/// Most characters of a notification.
const MOST_NOTIFIED: usize = 200;

/// What the relay is asked to do. The answer says that it is done.
#[derive(Debug)]
pub(crate) enum RelayCommand {
    /// Hold the output, and leave the terminal to a question.
    Pause(Sender<()>),
    /// The question is over.
    Resume,
    /// Show a notification.
    Notify(String),
    /// The program was stopped: stop us too. The answer comes when it is to continue.
    Stop(Sender<()>),
    /// The program ended.
    Finish,
}

/// The relay of one program.
#[derive(Debug)]
pub(crate) struct RelayLoop {
    terminal: PersonTerminal,
    master: File,
    filter: Option<OutputFilter>,
    /// Shows the output to those who attached, too.
    viewers: Option<Arc<AttachServer>>,
    inbox: Arc<SignalInbox>,
    commands: Receiver<RelayCommand>,
    /// Bytes for the program.
    input: Vec<u8>,
    /// Bytes for the person's terminal.
    output: Vec<u8>,
    is_terminal_gone: bool,
    /// No process of the jail has the terminal open.
    is_master_hung_up: bool,
    /// Questions that are open or wait.
    pauses: usize,
    /// A stop that came while a question was open.
    deferred_stop: Option<Sender<()>>,
    /// Sequences of our own that wait until the program is between two of its.
    notifications: Vec<Vec<u8>>,
    /// When the program's terminal gets its size again.
    repaint: Option<Instant>,
}

impl RelayLoop {
    pub(crate) fn new(
        terminal: PersonTerminal,
        master: OwnedFd,
        (filter, viewers): (Option<OutputFilter>, Option<Arc<AttachServer>>),
        inbox: Arc<SignalInbox>,
        commands: Receiver<RelayCommand>,
    ) -> io::Result<Self> {
        fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
        Ok(Self {
            terminal,
            master: File::from(master),
            filter,
            viewers,
            inbox,
            commands,
            input: Vec::new(),
            output: Vec::new(),
            is_terminal_gone: false,
            is_master_hung_up: false,
            pauses: 0,
            deferred_stop: None,
            notifications: Vec::new(),
            repaint: None,
        })
    }

    /// Copies until the end of the program. The terminal is restored on every way out.
    pub(crate) fn run(mut self) -> io::Result<()> {
        self.terminal.enter_raw()?;
        self.apply_size();
        loop {
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    RelayCommand::Pause(done) => self.pause(&done),
                    RelayCommand::Resume => self.resume()?,
                    RelayCommand::Notify(text) => self.notifications.push(notification(&text)),
                    RelayCommand::Stop(done) if self.pauses > 0 => self.deferred_stop = Some(done),
                    RelayCommand::Stop(done) => self.stop(&done)?,
                    RelayCommand::Finish => {
                        self.finish();
                        return Ok(());
                    }
                }
            }
            self.write_notifications();
            self.take_signals();
            self.wait()?;
            self.copy();
        }
    }

    fn write_notifications(&mut self) {
        let is_between = self.filter.as_ref().is_some_and(OutputFilter::is_between_sequences);
        if self.pauses == 0 && is_between && !self.is_terminal_gone {
            self.output.extend(self.notifications.drain(..).flatten());
        }
    }

    fn take_signals(&mut self) {
        let is_continued = self.inbox.take_continued();
        if self.repaint.is_some_and(|at| at <= Instant::now()) {
            self.repaint = None;
            self.apply_size();
        }
        if self.pauses > 0 || self.is_terminal_gone {
            return;
        }
        // We were stopped by something else than our program, and a shell has set the terminal for itself.
        if is_continued {
            self.enter_raw();
        }
        if self.inbox.take_resized() || is_continued {
            self.apply_size();
        }
    }

    /// Takes the terminal again. One that was closed meanwhile is lost.
    fn enter_raw(&mut self) {
        if self.terminal.enter_raw().is_err() {
            self.lose_terminal();
        }
    }

    /// Waits until one of the sides can go on, or there is a command.
    fn wait(&mut self) -> io::Result<()> {
        let mut timeout = self.repaint.map_or(TICK, |at| at.saturating_duration_since(Instant::now()));
        let mut for_terminal = PollFlags::empty();
        let mut for_master = PollFlags::empty();
        if self.pauses == 0 && !self.is_terminal_gone {
            for_terminal.set(PollFlags::IN, self.input.len() < MAX_INPUT);
            for_terminal.set(PollFlags::OUT, !self.output.is_empty());
        }
        if self.is_master_hung_up {
            timeout = timeout.min(HUNG_UP_TICK);
        } else {
            for_master.set(PollFlags::IN, self.reads_output());
            for_master.set(PollFlags::OUT, !self.input.is_empty());
        }
        let mut fds = vec![PollFd::from_borrowed_fd(self.inbox.as_fd(), PollFlags::IN)];
        // A descriptor with nothing to wait for would still report its end, again and again.
        if !for_terminal.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.terminal.as_fd(), for_terminal));
        }
        if !for_master.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.master.as_fd(), for_master));
        }
        poll_for(&mut fds, timeout)?;
        self.inbox.clear_wakes();
        Ok(())
    }

    fn reads_output(&self) -> bool {
        self.pauses == 0 && self.output.len() < MAX_OUTPUT
    }

    fn copy(&mut self) {
        if self.pauses == 0 && !self.is_terminal_gone && self.input.len() < MAX_INPUT {
            self.read_terminal();
        }
        self.write_master();
        if self.reads_output() {
            self.read_master();
        }
        if self.pauses == 0 {
            self.write_terminal();
        }
    }

    fn read_terminal(&mut self) {
        let mut bytes = [0; 4096];
        match self.terminal.read(&mut bytes) {
            Ok(count) if count > 0 => {
                let typed = bytes.get(..count).unwrap_or_default();
                if !self.inbox.takes_key(typed) {
                    self.input.extend_from_slice(typed);
                }
            }
            Err(error) if is_temporary(&error) => {}
            Ok(_) | Err(_) => self.lose_terminal(),
        }
    }

    /// The person's terminal is gone, as a signal would say it, and the program is told so.
    fn lose_terminal(&mut self) {
        self.output.clear();
        if std::mem::replace(&mut self.is_terminal_gone, true) {
            return;
        }
        self.inbox.forwarder.lock().push(Signal::HUP, Instant::now());
    }

    fn write_master(&mut self) {
        while !self.input.is_empty() {
            match rustix::io::write(&self.master, &self.input).map_err(io::Error::from) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(error) if is_temporary(&error) => return,
                // The program is gone, and with it the reader of what was typed.
                Err(_) => self.input.clear(),
            }
        }
    }

    /// Reads output once. False if there is none.
    fn read_master(&mut self) -> bool {
        let mut bytes = [0; 16 << 10];
        let read = rustix::io::read(&self.master, &mut bytes).map_err(io::Error::from);
        self.is_master_hung_up = match &read {
            Ok(count) => *count == 0,
            Err(error) => !is_temporary(error),
        };
        let bytes = read.ok().and_then(|count| bytes.get(..count)).unwrap_or_default();
        let waiting = self.output.len();
        match &mut self.filter {
            _ if self.is_terminal_gone => {}
            Some(filter) => filter.filter(bytes, &mut self.output),
            None => self.output.extend_from_slice(bytes),
        }
        if let Some(viewers) = &self.viewers {
            viewers.feed(self.output.get(waiting..).unwrap_or_default());
        }
        !bytes.is_empty()
    }

    fn write_terminal(&mut self) {
        while !self.output.is_empty() {
            match self.terminal.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if is_temporary(&error) => return,
                Err(_) => self.lose_terminal(),
            }
        }
    }

    /// Writes everything that waits, if the terminal takes it.
    fn flush_output(&mut self) {
        self.write_terminal();
        while !self.output.is_empty() && !self.inbox.forwarder.lock().is_ending() {
            let mut fds = [
                PollFd::from_borrowed_fd(self.terminal.as_fd(), PollFlags::OUT),
                PollFd::from_borrowed_fd(self.inbox.as_fd(), PollFlags::IN),
            ];
            if poll_for(&mut fds, TICK).is_err() {
                return;
            }
            // Commands are looked at after this.
            self.inbox.clear_wakes();
            self.write_terminal();
        }
    }

    fn apply_size(&self) {
        let size = self.terminal.size();
        // A program whose terminal is gone has no use for a size.
        let _ = tcsetwinsize(&self.master, size);
        if let Some(viewers) = &self.viewers {
            viewers.resize(TerminalSize { rows: size.ws_row, columns: size.ws_col });
        }
    }

    /// Leaves the terminal to others, with its modes and settings as they were.
    fn hold_output(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.interrupt(&mut self.output);
            self.output.extend(filter.modes().suspend());
        }
        self.flush_output();
        self.terminal.restore();
    }

    fn release_output(&mut self) {
        self.enter_raw();
        if let Some(filter) = &self.filter {
            self.output.extend(filter.modes().resume());
        }
        self.apply_size();
    }

    fn pause(&mut self, done: &Sender<()>) {
        self.pauses += 1;
        if self.pauses == 1 {
            self.hold_output();
            self.terminal.discard_input();
        }
        // A requester that is gone resumes by itself.
        let _ = done.send(());
    }

    fn resume(&mut self) -> io::Result<()> {
        self.pauses = self.pauses.saturating_sub(1);
        if self.pauses > 0 {
            return Ok(());
        }
        self.terminal.discard_input();
        self.release_output();
        // Two sizes, one after the other, make a program draw everything again.
        let size = self.terminal.size();
        let smaller = Winsize { ws_row: size.ws_row.saturating_sub(1).max(1), ..size };
        if tcsetwinsize(&self.master, smaller).is_ok() {
            self.repaint = Some(Instant::now() + REPAINT_DELAY);
        }
        match self.deferred_stop.take() {
            Some(done) => self.stop(&done),
            None => Ok(()),
        }
    }

    /// Stops our process group, as a shell expects it of a job, and returns when it is continued.
    fn stop(&mut self, done: &Sender<()>) -> io::Result<()> {
        self.hold_output();
        self.inbox.take_continued();
        // In a group without a shell this has no effect, and the program goes on.
        kill_current_process_group(Signal::TSTP)?;
        let until = Instant::now() + STOP_DELAY;
        while !self.inbox.take_continued() && Instant::now() < until {
            let mut fds = [PollFd::from_borrowed_fd(self.inbox.as_fd(), PollFlags::IN)];
            poll_for(&mut fds, until.saturating_duration_since(Instant::now()))?;
            self.inbox.clear_wakes();
        }
        self.release_output();
        // The waiting thread may be gone with the jail.
        let _ = done.send(());
        Ok(())
    }

    /// Writes the rest of the output, and leaves the terminal as a program does that ends in order.
    fn finish(&mut self) {
        self.pauses = 0;
        while self.read_master() {
            self.flush_output();
        }
        if let Some(filter) = &mut self.filter {
            filter.interrupt(&mut self.output);
            self.output.extend(filter.modes().reset());
        }
        self.flush_output();
        self.terminal.restore();
    }
}

/// A desktop notification with this text. A terminal that has none ignores it.
fn notification(text: &str) -> Vec<u8> {
    let text: String = sanitize_line(text).chars().filter(|c| !c.is_control()).take(MOST_NOTIFIED).collect();
    format!("\x1b]9;ringfence: {text}\x07").into_bytes()
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
