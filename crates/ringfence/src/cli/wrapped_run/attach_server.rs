//! Attach server of a run: shows its screen to those who attach, and lets one of them type.
//!
//! It is a thread of the run's process. A detached run has a terminal of its own, whose other end is here; another run shows
//! what its person sees, and only they type. A writer is on record before the first key, and the former one only views
//! from then on. Nothing here waits for a viewer.
//!
//! Not here: connections (`attach_peer.rs`), and what a detached run is (`detached_run.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{Principal, ToolError};
use ringfence_sandbox::{RunAttachments, TerminalSize};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use rustix::termios::{Winsize, tcsetwinsize};

use crate::approval::dialog_screen::poll_for;
use crate::cli::wrapped_run::attach_peer::{AttachPeer, PeerState};
use crate::cli::wrapped_run::detached_run::StartNotice;
use crate::cli::wrapped_run::relay_signals::SignalInbox;
use crate::cli::wrapped_run::screen_model::ScreenModel;
use crate::codec::io_text::IoText;
use crate::process::attach::attach_directory::{AttachDirectory, AttachListener};
use crate::process::attach::protocol::{
    AttachFrame, AttachHello, AttachRole, PROTOCOL_VERSION, RoleNotice, RunRequest, RunStatus,
};
use crate::process::messages::print_error;

/// Most connections at once.
const MAX_PEERS: usize = 32;

/// Most bytes that were typed and wait for the program.
const MAX_INPUT: usize = 16 << 10;

/// Interval at which everything is looked at.
const TICK: Duration = Duration::from_secs(60);

/// The longest that those who attached may take to read the end of the run.
const END_DELAY: Duration = Duration::from_secs(2);

/// What a run is, for those who attach.
#[derive(Clone, Debug)]
pub(crate) struct AttachedRunInfo {
    pub(crate) session: String,
    pub(crate) program: String,
    pub(crate) profile: String,
    pub(crate) makes_checkpoints: bool,
    pub(crate) signals: Arc<SignalInbox>,
}

/// The attach server of one run.
#[derive(Debug)]
pub(crate) struct AttachServer {
    shared: Arc<AttachShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The state directory.
    state: PathBuf,
    /// For who started a detached run.
    start_notice: Mutex<Option<StartNotice>>,
}

#[derive(Debug)]
struct AttachShared {
    state: Mutex<AttachState>,
    wake: OwnedFd,
    woken: OwnedFd,
}

#[derive(Debug)]
struct AttachState {
    screen: ScreenModel,
    /// The other end of the run's own terminal, if it is detached.
    terminal: Option<Arc<File>>,
    /// Keys for that terminal.
    input: VecDeque<u8>,
    listener: Option<Arc<AttachListener>>,
    /// The last connection could not be accepted: it waits until something else happens.
    cannot_accept: bool,
    layer: String,
    info: Option<AttachedRunInfo>,
    peers: BTreeMap<u64, AttachPeer>,
    next_peer: u64,
    writer: Option<u64>,
    /// The exit code of the run, if there is one, once it ended.
    end: Option<Option<u8>>,
}

/// What the thread waits for, without the lock.
struct WatchedSources {
    terminal: Option<(Arc<File>, PollFlags)>,
    listener: Option<Arc<AttachListener>>,
    peers: Vec<(Arc<UnixStream>, PollFlags)>,
}

impl AttachServer {
    /// A server for a run with its own terminal, of which `terminal` is the other end, or for another run.
    pub(crate) fn start(state: &Path, size: TerminalSize, terminal: Option<OwnedFd>) -> io::Result<Self> {
        let (woken, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if let Some(terminal) = &terminal {
            fcntl_setfl(terminal, fcntl_getfl(terminal)? | OFlags::NONBLOCK)?;
        }
        let attach_state = AttachState {
            screen: ScreenModel::new(size),
            terminal: terminal.map(|terminal| Arc::new(File::from(terminal))),
            input: VecDeque::new(),
            listener: None,
            cannot_accept: false,
            layer: String::new(),
            info: None,
            peers: BTreeMap::new(),
            next_peer: 0,
            writer: None,
            end: None,
        };
        let shared = Arc::new(AttachShared { state: Mutex::new(attach_state), wake, woken });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("attach".to_owned()).spawn(move || served.serve())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), state: state.to_owned(), start_notice: Mutex::default() })
    }

    /// Has the starter of a detached run told when the program runs.
    pub(crate) fn notify_at_start(&self, notice: StartNotice) {
        *self.start_notice.lock() = Some(notice);
    }

    /// Says what the run is, before it starts.
    pub(crate) fn describe(&self, info: AttachedRunInfo) {
        self.shared.state.lock().info = Some(info);
    }

    /// Shows output of the program, where its terminal is not here.
    pub(crate) fn feed(&self, bytes: &[u8]) {
        let mut state = self.shared.state.lock();
        state.feed(bytes);
        let is_watched = !state.peers.is_empty();
        drop(state);
        if is_watched {
            self.shared.wake();
        }
    }

    /// The size of the person's terminal, where the program's is not here.
    pub(crate) fn resize(&self, size: TerminalSize) {
        self.shared.state.lock().screen.resize(size);
    }

    /// Whether the starter of a detached run was told that it runs.
    pub(crate) fn has_started(&self) -> bool {
        self.start_notice.lock().is_none()
    }

    /// Tells all connections that the run ended, and ends the server.
    pub(crate) fn finish(&self, exit_code: Option<u8>) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.shared.state.lock().end = Some(exit_code);
        self.shared.wake();
        // A panic there has been reported already.
        let _ = thread.join();
    }
}

impl Drop for AttachServer {
    fn drop(&mut self) {
        self.finish(None);
    }
}

impl RunAttachments for AttachServer {
    fn on_started(&self, layer: &str) {
        match AttachDirectory::open(&self.state).and_then(|directory| directory.bind(layer)) {
            Ok(listener) => {
                let mut state = self.shared.state.lock();
                (state.listener, state.layer) = (Some(Arc::new(listener)), layer.to_owned());
                drop(state);
                self.shared.wake();
            }
            Err(error) => print_error(&format!("note: the run cannot be attached to: {}", IoText(&error))),
        }
        if let Some(notice) = self.start_notice.lock().take() {
            notice.send(layer);
        }
    }

    fn record_writers(&self, record: &dyn Fn(&Principal) -> Result<(), ToolError>) {
        loop {
            let waiting = self.shared.state.lock().waiting_writer();
            let Some((id, person)) = waiting else { return };
            let recorded = record(&Principal::person(person));
            self.shared.state.lock().decide_writer(id, recorded);
            self.shared.wake();
        }
    }
}

impl AttachShared {
    fn wake(&self) {
        // A full pipe wakes it too.
        let _ = rustix::io::write(&self.wake, &[0]);
    }

    fn clear_wakes(&self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.woken, &mut bytes).is_ok_and(|count| count > 0) {}
    }

    /// Serves until the end of the run.
    fn serve(&self) {
        let mut until: Option<Instant> = None;
        loop {
            let (sources, end) = {
                let mut state = self.state.lock();
                if state.end.is_some() && until.is_none() {
                    until = Some(Instant::now() + END_DELAY);
                    state.begin_end();
                }
                (state.sources(), until)
            };
            let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
            if end.is_some() && (sources.peers.is_empty() || left.is_zero()) {
                return;
            }
            if self.wait(&sources, left).is_err() {
                return;
            }
            self.clear_wakes();
            self.state.lock().step();
        }
    }

    fn wait(&self, sources: &WatchedSources, at_most: Duration) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        if let Some((terminal, flags)) = &sources.terminal {
            fds.push(PollFd::from_borrowed_fd(terminal.as_fd(), *flags));
        }
        if let Some(listener) = &sources.listener {
            fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        // A connection with nothing to wait for would still report its end, again and again.
        let peers = sources.peers.iter().filter(|(_, flags)| !flags.is_empty());
        fds.extend(peers.map(|(stream, flags)| PollFd::from_borrowed_fd(stream.as_fd(), *flags)));
        poll_for(&mut fds, at_most)
    }
}

impl AttachState {
    fn sources(&self) -> WatchedSources {
        let terminal = self.terminal.as_ref().map(|terminal| {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.input.is_empty());
            (Arc::clone(terminal), flags)
        });
        let peers = self.peers.iter().map(|(id, peer)| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, self.reads_from(*id));
            flags.set(PollFlags::OUT, peer.has_output());
            (Arc::clone(&peer.stream), flags)
        });
        // One that is not accepted would be reported again and again.
        let listener = self.listener.clone().filter(|_| self.peers.len() < MAX_PEERS && !self.cannot_accept);
        WatchedSources { terminal, listener, peers: peers.collect() }
    }

    /// Whether more may be read of this connection. The writer waits for the program.
    fn reads_from(&self, id: u64) -> bool {
        let is_open = self.peers.get(&id).is_some_and(AttachPeer::is_open);
        is_open && (self.writer != Some(id) || self.input.len() < MAX_INPUT)
    }

    /// Does what can be done without waiting.
    fn step(&mut self) {
        self.accept();
        self.read_terminal();
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            self.read_peer(id);
        }
        self.write_terminal();
        self.write_peers();
    }

    fn accept(&mut self) {
        let Some(listener) = self.listener.clone() else { return };
        self.cannot_accept = false;
        while self.peers.len() < MAX_PEERS {
            match listener.accept() {
                Ok(Some(stream)) => {
                    self.next_peer += 1;
                    self.peers.insert(self.next_peer, AttachPeer::new(stream));
                }
                Ok(None) => return,
                // It was one of another user.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                // Such as too many open files, which may pass.
                Err(_) => return self.cannot_accept = true,
            }
        }
    }

    /// Reads the output of a detached run.
    fn read_terminal(&mut self) {
        let Some(terminal) = self.terminal.clone() else { return };
        let mut bytes = [0; 16 << 10];
        match rustix::io::read(&*terminal, &mut bytes) {
            Ok(count) if count > 0 => self.feed(bytes.get(..count).unwrap_or_default()),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // No process has the other end open.
            Ok(_) | Err(_) => self.terminal = None,
        }
    }

    fn write_terminal(&mut self) {
        let Some(terminal) = self.terminal.clone() else { return self.input.clear() };
        while !self.input.is_empty() {
            match rustix::io::write(&*terminal, self.input.as_slices().0) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(_) => return,
            }
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.screen.feed(bytes);
        self.peers.values_mut().filter(|peer| peer.sees_screen()).for_each(|peer| peer.send_output(bytes));
    }

    fn write_peers(&mut self) {
        let screen = &self.screen;
        for peer in self.peers.values_mut() {
            peer.write(|| screen.is_between_sequences().then(|| screen.repaint()));
        }
        self.peers.retain(|_, peer| !peer.is_gone());
        self.writer = self.writer.filter(|writer| self.peers.contains_key(writer));
    }

    fn read_peer(&mut self, id: u64) {
        if self.reads_from(id) {
            self.peers.get_mut(&id).into_iter().for_each(AttachPeer::read);
        }
        while let Some(frame) = self.peers.get_mut(&id).and_then(AttachPeer::next_frame) {
            self.take_frame(id, frame);
        }
    }

    fn take_frame(&mut self, id: u64, frame: AttachFrame) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match (peer.state, frame) {
            (PeerState::Greeting, AttachFrame::Hello(hello)) => self.greet(id, hello),
            (PeerState::Writer, AttachFrame::Input(bytes)) => self.input.extend(bytes),
            // They hear soon that they do not type any more.
            (PeerState::Viewer | PeerState::WaitingWriter, AttachFrame::Input(_)) => {}
            (PeerState::WaitingWriter, AttachFrame::Size(size)) => peer.size = Some(size),
            (PeerState::Viewer | PeerState::Writer, AttachFrame::Size(size)) => {
                peer.size = Some(size);
                peer.send_screen();
                if peer.state == PeerState::Writer {
                    self.apply_size(size);
                }
            }
            (PeerState::Viewer | PeerState::Writer, AttachFrame::Leave) => {
                peer.state = PeerState::Viewer;
                self.writer = self.writer.filter(|writer| *writer != id);
                peer.send(&AttachFrame::Role(RoleNotice { role: AttachRole::Viewer, writer: None }));
            }
            (PeerState::Control, AttachFrame::Request(request)) => self.answer(id, request),
            _ => peer.refuse("this is not expected here"),
        }
    }

    fn greet(&mut self, id: u64, hello: AttachHello) {
        let writer = self.writer_name();
        let (is_detached, has_ended) = (self.terminal.is_some(), self.end.is_some());
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if hello.version != PROTOCOL_VERSION {
            return peer.refuse("another version of Ringfence started this run; attach with that version");
        }
        (peer.person, peer.size) = (hello.person, hello.size);
        match hello.role {
            _ if has_ended => peer.refuse("the run has ended"),
            AttachRole::Control => peer.state = PeerState::Control,
            AttachRole::Viewer => {
                peer.state = PeerState::Viewer;
                peer.send(&AttachFrame::Role(RoleNotice { role: AttachRole::Viewer, writer }));
                peer.send_screen();
            }
            AttachRole::Writer if is_detached => peer.state = PeerState::WaitingWriter,
            AttachRole::Writer => peer.refuse(
                "only the terminal that started this run types to it: view it with `--view`, or start runs with `--detach`",
            ),
        }
    }

    fn writer_name(&self) -> Option<String> {
        self.writer.and_then(|writer| self.peers.get(&writer)).map(|peer| peer.person.clone())
    }

    /// The next one who wants to type.
    fn waiting_writer(&self) -> Option<(u64, String)> {
        let mut waiting = self.peers.iter().filter(|(_, peer)| peer.state == PeerState::WaitingWriter);
        waiting.next().map(|(id, peer)| (*id, peer.person.clone()))
    }

    /// Makes a recorded person the writer.
    fn decide_writer(&mut self, id: u64, recorded: Result<(), ToolError>) {
        let former = self.writer;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Err(error) = recorded {
            peer.state = PeerState::Viewer;
            return peer.refuse(&error.message);
        }
        peer.state = PeerState::Writer;
        let writer = Some(peer.person.clone());
        peer.send(&AttachFrame::Role(RoleNotice { role: AttachRole::Writer, writer: writer.clone() }));
        peer.send_screen();
        let size = peer.size;
        self.writer = Some(id);
        // What the former one typed is typed; the keys of two persons are not mixed.
        if let Some(former) = former.and_then(|former| self.peers.get_mut(&former)) {
            former.state = PeerState::Viewer;
            former.send(&AttachFrame::Role(RoleNotice { role: AttachRole::Viewer, writer }));
        }
        if let Some(size) = size {
            self.apply_size(size);
        }
    }

    fn apply_size(&mut self, size: TerminalSize) {
        self.screen.resize(size);
        let TerminalSize { rows, columns } = self.screen.size();
        if let Some(terminal) = &self.terminal {
            // A run at its end has no use for a size.
            let _ = tcsetwinsize(&**terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 });
        }
    }

    fn answer(&mut self, id: u64, request: RunRequest) {
        let done = match (request, &self.info) {
            (RunRequest::Status, _) => Ok(()),
            (_, None) => Err("the run has not started yet"),
            (RunRequest::Stop, Some(info)) => {
                info.signals.forwarder.lock().push(Signal::TERM, Instant::now());
                info.signals.wake();
                Ok(())
            }
            (RunRequest::Checkpoint, Some(info)) if info.signals.request_checkpoint() => Ok(()),
            (RunRequest::Checkpoint, Some(_)) => Err("this run makes no checkpoints; start it with `--live`"),
        };
        let status = self.status();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match done {
            Ok(()) => peer.send(&AttachFrame::Reply(status)),
            Err(reason) => peer.refuse(reason),
        }
    }

    fn status(&self) -> RunStatus {
        let info = self.info.as_ref();
        RunStatus {
            layer: self.layer.clone(),
            session: info.map(|info| info.session.clone()).unwrap_or_default(),
            program: info.map(|info| info.program.clone()).unwrap_or_default(),
            profile: info.map(|info| info.profile.clone()).unwrap_or_default(),
            is_detached: self.terminal.is_some(),
            makes_checkpoints: info.is_some_and(|info| info.makes_checkpoints),
            writer: self.writer_name(),
            viewers: self.peers.values().filter(|peer| peer.sees_screen()).count(),
            size: self.screen.size(),
            screen: self.screen.lines(),
        }
    }

    /// Shows what is left of the output, and says good-bye.
    fn begin_end(&mut self) {
        self.listener = None;
        // To its end: no process has the other one open any more, or everything that it wrote is here.
        while let Some(terminal) = self.terminal.clone() {
            let mut fds = [PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::IN)];
            if poll_for(&mut fds, END_DELAY).is_err() || fds.iter().all(|fd| fd.revents().is_empty()) {
                break;
            }
            self.read_terminal();
        }
        let end = self.end.flatten();
        self.peers.values_mut().for_each(|peer| peer.end(end));
        self.write_peers();
    }
}
