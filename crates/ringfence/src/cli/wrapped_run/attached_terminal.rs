//! A person's terminal that is attached to a run of another process.
//!
//! It shows the screen of the run, and sends keys and sizes if it is the one that types. Its modes are those of the run while
//! it is attached, and as they were before at any other moment.
//!
//! Not here: the run's end of the connection (`attach_server.rs`).

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_kernel::sanitize_line;
use ringfence_sandbox::{SignalSource as _, TerminalSize};
use rustix::event::{PollFd, PollFlags};

use crate::approval::dialog_screen::poll_for;
use crate::cli::wrapped_run::detach_key::{DetachKey, TypedInput};
use crate::cli::wrapped_run::output_filter::OutputFilter;
use crate::cli::wrapped_run::person_terminal::PersonTerminal;
use crate::cli::wrapped_run::relay_signals::{SignalInbox, SignalThread};
use crate::cli::wrapped_run::sequence_policy::FilterOptions;
use crate::process::attach::connection::{AttachConnection, AttachError};
use crate::process::attach::protocol::{AttachFrame, AttachHello, AttachRole, PROTOCOL_VERSION, RoleNotice};

/// Most bytes of output that wait for the terminal before more are read.
const MAX_OUTPUT: usize = 64 << 10;

/// Most bytes of input that wait for the run.
const MAX_INPUT: usize = 16 << 10;

/// The time after which a key that was held back is sent.
const KEY_DELAY: Duration = Duration::from_millis(500);

/// Interval at which everything is looked at.
const TICK: Duration = Duration::from_secs(60);

/// How a terminal came to be attached no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttachEnd {
    /// The person left, or their terminal is gone. The run goes on.
    Detached,
    /// The run ended.
    RunEnded(Option<u8>),
    /// The process of the run is gone.
    Lost,
}

/// Attaches the terminal of this process to the run of a layer, by its ID or the start of it. Gives the whole ID.
pub(crate) fn attach_terminal(
    state: &Path,
    layer: &str,
    role: AttachRole,
    person: String,
) -> Result<Option<(String, AttachEnd)>, AttachError> {
    let Some(terminal) = PersonTerminal::open() else { return Ok(None) };
    let size = terminal_size(&terminal);
    let hello = AttachHello { version: PROTOCOL_VERSION, role, person, size: Some(size) };
    let mut connection = AttachConnection::open(state, layer, hello)?;
    let notice = loop {
        if let AttachFrame::Role(notice) = connection.next_frame()? {
            break notice;
        }
    };
    let layer = connection.layer().to_owned();
    let inbox = Arc::new(SignalInbox::new()?);
    let signals = SignalThread::start(Arc::clone(&inbox))?;
    connection.stream.set_nonblocking(true)?;
    let mut attached = AttachedTerminal {
        terminal,
        connection,
        inbox,
        role: notice.role,
        filter: OutputFilter::new(FilterOptions { clipboard_writes: false, notifications: true }),
        key: DetachKey::default(),
        held_until: None,
        input: Vec::new(),
        output: Vec::new(),
    };
    let end = attached.run();
    attached.leave();
    drop(signals);
    Ok(Some((layer, end?)))
}

fn terminal_size(terminal: &PersonTerminal) -> TerminalSize {
    let size = terminal.size();
    TerminalSize { rows: size.ws_row, columns: size.ws_col }
}

#[derive(Debug)]
struct AttachedTerminal {
    terminal: PersonTerminal,
    connection: AttachConnection,
    inbox: Arc<SignalInbox>,
    role: AttachRole,
    /// Finds the modes that the run set.
    filter: OutputFilter,
    key: DetachKey,
    /// When a key that is held back is sent.
    held_until: Option<Instant>,
    /// Bytes for the run.
    input: Vec<u8>,
    /// Bytes for the terminal.
    output: Vec<u8>,
}

impl AttachedTerminal {
    fn run(&mut self) -> Result<AttachEnd, AttachError> {
        self.terminal.enter_raw()?;
        // What is on the screen stays above.
        self.output.extend("\r\n".repeat(usize::from(self.terminal.size().ws_row)).into_bytes());
        loop {
            self.wait()?;
            if let Some(end) = self.take_signals()? {
                return Ok(end);
            }
            if self.input.len() < MAX_INPUT && !self.read_terminal() {
                return Ok(AttachEnd::Detached);
            }
            self.release_key();
            if let Some(end) = self.copy()? {
                self.write_rest();
                return Ok(end);
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let left = self.held_until.map_or(TICK, |until| until.saturating_duration_since(Instant::now()));
        let mut for_terminal = PollFlags::empty();
        for_terminal.set(PollFlags::IN, self.input.len() < MAX_INPUT);
        for_terminal.set(PollFlags::OUT, !self.output.is_empty());
        let mut for_run = PollFlags::empty();
        for_run.set(PollFlags::IN, self.output.len() < MAX_OUTPUT);
        for_run.set(PollFlags::OUT, !self.input.is_empty());
        let mut fds = vec![PollFd::from_borrowed_fd(self.inbox.as_fd(), PollFlags::IN)];
        if !for_terminal.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.terminal.as_fd(), for_terminal));
        }
        if !for_run.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.connection.stream.as_fd(), for_run));
        }
        poll_for(&mut fds, left)?;
        self.inbox.clear_wakes();
        Ok(())
    }

    /// A signal that would end us detaches. We were stopped by something else than a key if we are continued.
    fn take_signals(&mut self) -> io::Result<Option<AttachEnd>> {
        if self.inbox.next_signal().is_some() {
            return Ok(Some(AttachEnd::Detached));
        }
        let is_continued = self.inbox.take_continued();
        if is_continued {
            self.terminal.enter_raw()?;
        }
        if self.inbox.take_resized() || is_continued {
            self.input.extend(AttachFrame::Size(terminal_size(&self.terminal)).encode());
        }
        Ok(None)
    }

    /// Reads what was typed. False where the person leaves, or the terminal is gone.
    fn read_terminal(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let typed = match self.terminal.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => bytes.get(..count).unwrap_or_default(),
            Err(error) if is_temporary(&error) => return true,
            Err(_) => return false,
        };
        let keys = match self.key.take(typed) {
            TypedInput::Detach => return false,
            TypedInput::Keys(keys) => keys,
        };
        self.held_until = self.key.is_held().then(|| Instant::now() + KEY_DELAY);
        self.send_keys(keys);
        true
    }

    /// Sends a key that was held back, if nothing followed it.
    fn release_key(&mut self) {
        if self.held_until.is_some_and(|until| until <= Instant::now()) {
            self.held_until = None;
            let keys = self.key.release();
            self.send_keys(keys);
        }
    }

    fn send_keys(&mut self, keys: Vec<u8>) {
        if !keys.is_empty() && self.role == AttachRole::Writer {
            self.input.extend(AttachFrame::Input(keys).encode());
        }
    }

    /// Copies both ways what can be copied without waiting.
    fn copy(&mut self) -> Result<Option<AttachEnd>, AttachError> {
        while !self.input.is_empty() {
            match rustix::io::write(&self.connection.stream, &self.input).map_err(io::Error::from) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(error) if is_temporary(&error) => break,
                // What it said before its end is read.
                Err(_) => self.input.clear(),
            }
        }
        let mut is_over = false;
        if self.output.len() < MAX_OUTPUT {
            match self.connection.read_more() {
                Ok(is_open) => is_over = !is_open,
                Err(error) if is_temporary(&error) => {}
                Err(_) => is_over = true,
            }
        }
        while let Some(frame) = self.connection.read_frame()? {
            match frame {
                AttachFrame::Output(bytes) => self.filter.filter(&bytes, &mut self.output),
                AttachFrame::Role(notice) => self.take_role(&notice),
                AttachFrame::End(exit_code) => return Ok(Some(AttachEnd::RunEnded(exit_code))),
                AttachFrame::Refused(reason) => return Err(AttachError::Refused(reason)),
                _ => {}
            }
        }
        self.write_terminal();
        Ok(is_over.then_some(AttachEnd::Lost))
    }

    /// Another person types from now on, or this one.
    fn take_role(&mut self, notice: &RoleNotice) {
        self.role = notice.role;
        if let (AttachRole::Viewer, Some(writer)) = (notice.role, &notice.writer) {
            let columns = usize::from(self.terminal.size().ws_col);
            let text = format!(" ringfence: {} types now, and you view; ^\\ ^\\ detaches ", sanitize_line(writer));
            let text: String = text.chars().filter(|c| !c.is_control()).take(columns).collect();
            self.filter.interrupt(&mut self.output);
            self.output.extend(format!("\x1b7\x1b[999;1H\x1b[7m{text}\x1b[27m\x1b8").into_bytes());
        }
    }

    fn write_terminal(&mut self) {
        while !self.output.is_empty() {
            match self.terminal.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if is_temporary(&error) => return,
                Err(_) => self.output.clear(),
            }
        }
    }

    /// Writes everything that waits, unless a signal comes.
    fn write_rest(&mut self) {
        self.write_terminal();
        while !self.output.is_empty() && self.inbox.next_signal().is_none() {
            let mut fds = [
                PollFd::from_borrowed_fd(self.terminal.as_fd(), PollFlags::OUT),
                PollFd::from_borrowed_fd(self.inbox.as_fd(), PollFlags::IN),
            ];
            if poll_for(&mut fds, TICK).is_err() {
                return;
            }
            self.inbox.clear_wakes();
            self.write_terminal();
        }
    }

    /// Leaves the terminal with its modes and settings as they were, below what is on the screen.
    fn leave(&mut self) {
        self.filter.interrupt(&mut self.output);
        self.output.extend(self.filter.modes().reset());
        self.output.extend(b"\x1b[999;1H\r\n");
        self.write_rest();
        self.terminal.restore();
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
