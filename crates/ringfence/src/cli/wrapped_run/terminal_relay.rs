//! Terminal relay: the session between a person's terminal and the terminal of a wrapped program.
//!
//! The program has a terminal of its own in the jail; its bytes, size and stops are relayed, and the person's terminal never
//! enters the jail. A question about the program is asked in place: its output is held, the terminal gets known modes, and
//! the program draws again after the answer.
//!
//! Not here: the thread that copies (`relay_loop.rs`), and the dialog (`approval`).

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ApprovalRequest, Approver, ApproverReply};
use ringfence_sandbox::TerminalRelay;

use crate::approval::deny_all;
use crate::approval::tty::TtyApprover;
use crate::cli::wrapped_run::attach_server::AttachServer;
use crate::cli::wrapped_run::output_filter::OutputFilter;
use crate::cli::wrapped_run::person_terminal::PersonTerminal;
use crate::cli::wrapped_run::relay_loop::{RelayCommand, RelayLoop};
use crate::cli::wrapped_run::relay_signals::{SignalInbox, SignalThread};
use crate::cli::wrapped_run::sequence_policy::FilterOptions;

/// A person's terminal, for the time of a wrapped run. Dropping it restores the terminal.
#[derive(Debug)]
pub(crate) struct RelaySession {
    /// Without a filter the output is relayed as it is, and nothing is asked in place.
    filter: Option<FilterOptions>,
    /// Shows the screen to those who attached, too.
    viewers: Option<Arc<AttachServer>>,
    /// Until the program has a terminal.
    terminal: Mutex<Option<PersonTerminal>>,
    inbox: Arc<SignalInbox>,
    relay: Mutex<Option<RunningRelay>>,
    signals: Mutex<Option<SignalThread>>,
}

#[derive(Debug)]
struct RunningRelay {
    commands: Sender<RelayCommand>,
    thread: JoinHandle<io::Result<()>>,
}

impl RelaySession {
    /// A session with a filter, or one that relays everything (`--raw-terminal`). It shows the screen to `viewers`, if this
    /// terminal is not theirs.
    pub(crate) fn new(
        terminal: PersonTerminal,
        filter: Option<FilterOptions>,
        viewers: Option<Arc<AttachServer>>,
    ) -> io::Result<Self> {
        Ok(Self {
            filter,
            viewers,
            terminal: Mutex::new(Some(terminal)),
            inbox: Arc::new(SignalInbox::new()?),
            relay: Mutex::default(),
            signals: Mutex::default(),
        })
    }

    /// Takes the signals of the process. The terminal gets raw when the program has one of its own.
    pub(crate) fn start(&self) -> io::Result<()> {
        *self.signals.lock() = Some(SignalThread::start(Arc::clone(&self.inbox))?);
        Ok(())
    }

    /// Signals for the program.
    pub(crate) fn signals(&self) -> Arc<SignalInbox> {
        Arc::clone(&self.inbox)
    }

    /// Holds the program's output until the result is dropped, and gives the terminal known modes. None where nothing is asked
    /// in place. This waits until the output so far is written.
    pub(crate) fn pause(&self) -> Option<OutputPause> {
        self.filter?;
        let Some(commands) = self.relay.lock().as_ref().map(|relay| relay.commands.clone()) else {
            return Some(OutputPause { relay: None });
        };
        let (done, is_done) = channel();
        let pause = OutputPause { relay: Some((commands, Arc::clone(&self.inbox))) };
        pause.send(RelayCommand::Pause(done));
        // A relay that is over has restored the terminal.
        let _ = is_done.recv();
        Some(pause)
    }

    /// Shows a desktop notification, where the terminal has them. The screen of the program stays as it is.
    pub(crate) fn notify(&self, text: &str) {
        if let (Some(_), Some(relay)) = (self.filter.filter(|options| options.notifications), &*self.relay.lock()) {
            // A relay that is over has restored the terminal, and the text is printed.
            let _ = relay.commands.send(RelayCommand::Notify(text.to_owned()));
            self.inbox.wake();
        }
    }

    /// Writes the rest of the output, and restores the terminal.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let running = self.relay.lock().take();
        let result = match running {
            Some(RunningRelay { commands, thread }) => {
                // A relay that is over has restored the terminal.
                let _ = commands.send(RelayCommand::Finish);
                self.inbox.wake();
                thread.join().unwrap_or_else(|_| Err(io::Error::other("the relay of the terminal failed")))
            }
            None => Ok(()),
        };
        self.terminal.lock().take();
        self.signals.lock().take();
        result
    }

    fn open_relay(&self, master: OwnedFd) -> io::Result<()> {
        let mut running = self.relay.lock();
        let terminal = self.terminal.lock().take();
        let terminal = terminal.ok_or_else(|| io::Error::other("the terminal is in use by another program"))?;
        let (commands, received) = channel();
        let filter = self.filter.map(OutputFilter::new);
        let relay =
            RelayLoop::new(terminal, master, (filter, self.viewers.clone()), Arc::clone(&self.inbox), received)?;
        let thread = std::thread::Builder::new().name("terminal".to_owned()).spawn(move || relay.run())?;
        *running = Some(RunningRelay { commands, thread });
        Ok(())
    }
}

impl TerminalRelay for RelaySession {
    fn on_opened(&self, master: OwnedFd) {
        // Without a relay the master is closed, and the program hangs up.
        let _ = self.open_relay(master);
    }

    fn on_stopped(&self) {
        let Some(commands) = self.relay.lock().as_ref().map(|relay| relay.commands.clone()) else { return };
        let (done, is_done) = channel();
        if commands.send(RelayCommand::Stop(done)).is_ok() {
            self.inbox.wake();
            // A relay that is over lets the program continue, and hang up.
            let _ = is_done.recv();
        }
    }
}

impl Drop for RelaySession {
    fn drop(&mut self) {
        // The terminal is restored in any case.
        let _ = self.finish();
    }
}

/// The time of a question on the person's terminal.
#[derive(Debug)]
pub(crate) struct OutputPause {
    relay: Option<(Sender<RelayCommand>, Arc<SignalInbox>)>,
}

impl OutputPause {
    fn send(&self, command: RelayCommand) {
        if let Some((commands, inbox)) = &self.relay {
            // A relay that is over holds nothing.
            let _ = commands.send(command);
            inbox.wake();
        }
    }
}

impl Drop for OutputPause {
    fn drop(&mut self) {
        self.send(RelayCommand::Resume);
    }
}

/// Asks in place: on the terminal that a wrapped program has.
#[derive(Clone, Debug)]
pub(crate) struct InPlaceApprover {
    session: Arc<RelaySession>,
    approver: TtyApprover,
}

impl InPlaceApprover {
    pub(crate) fn new(session: Arc<RelaySession>, approver: TtyApprover) -> Self {
        Self { session, approver }
    }
}

impl Approver for InPlaceApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        Box::pin(async move {
            let session = Arc::clone(&self.session);
            // The terminal may be slow to take what was written.
            let paused = tokio::task::spawn_blocking(move || session.pause()).await;
            match paused.ok().flatten() {
                Some(_pause) => self.approver.ask(request).await,
                None => deny_all().ask(request).await,
            }
        })
    }
}
