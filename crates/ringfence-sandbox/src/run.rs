//! Supervision of one run by the host: output, deadline, cancelling, and the end.
//!
//! It ends in one of three ways: the jail says that all is dead, the host has it killed and waits for the handle to say the
//! same, or the jail is lost. Memory is bounded whatever is printed.
//!
//! Not here: starting it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::bwrap::JailBackend;
use crate::cgroup::RunCgroup;
use crate::isolation_status::Isolation;
use crate::job::{
    ExitReason, JailError, JailJob, OutputCapture, OutputStream, ProgramObserver, RunResult, StartedProgram,
};
use crate::mounted_overlay::MountedOverlay;
use crate::output::HeadTailBuffer;
use crate::program_network::ProgramNetwork;
use crate::protocol::{HostCommand, LimitExceeded, MAX_MESSAGE_BYTES, ProgramStatus, SpawnerReply};
use crate::spawner_handle::{JailLease, SpawnerHandle};
use crate::sys;
use crate::wrapped_environment::WrappedTerminal;

/// Poll interval of the observer's request to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Poll interval of the cgroup's OOM count.
const OOM_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A run that prints more than this many times what is kept of it is ended.
const MAX_OUTPUT_FACTOR: u64 = 16;
/// At least this much may always be printed.
const MIN_OUTPUT_LIMIT: u64 = 64 << 20;

/// Isolation without which no program is started.
const REQUIRED_ISOLATION: [Isolation; 9] = [
    Isolation::UserNamespace,
    Isolation::MountNamespace,
    Isolation::PidNamespace,
    Isolation::NetNamespace,
    Isolation::IpcNamespace,
    Isolation::UtsNamespace,
    Isolation::CgroupNamespace,
    Isolation::Seccomp,
    Isolation::Landlock,
];

/// A run that is under way.
pub(crate) struct ProgramRun<'a> {
    job: &'a JailJob<'a>,
    observer: &'a dyn ProgramObserver,
    backend: JailBackend,
    cgroup: Option<&'a RunCgroup>,
    /// When the cgroup was last asked.
    oom_checked_at: Instant,
    started_at: Instant,
    streams: [StreamReader; 2],
    reply_socket: &'a OwnedFd,
    spawner: &'a Arc<SpawnerHandle>,
    /// The first process of the jail, once we know it.
    jail_pidfd: Option<OwnedFd>,
    upper: Option<OwnedFd>,
    isolation: Vec<Isolation>,
    /// The reason for which it was killed.
    kill_reason: Option<ExitReason>,
}

/// One output stream.
struct StreamReader {
    stream: OutputStream,
    pipe: Option<OwnedFd>,
    buffer: HeadTailBuffer,
}

/// The last message of the jail.
enum JailExit {
    Status {
        status: ProgramStatus,
        beyond: Option<LimitExceeded>,
    },
    /// Killed, by us or by another process. All of it is dead.
    Killed,
}

impl<'a> ProgramRun<'a> {
    pub(crate) fn start(
        job: &'a JailJob<'a>,
        watch: &'a dyn ProgramObserver,
        (spawner, jail): (&'a Arc<SpawnerHandle>, &'a JailLease),
        [output, errors]: [Option<OwnedFd>; 2],
    ) -> Result<Self, JailError> {
        let tap = |stream, pipe: Option<OwnedFd>| -> Result<StreamReader, JailError> {
            if let Some(pipe) = &pipe {
                fcntl_setfl(pipe, OFlags::NONBLOCK).map_err(JailError::io("read a pipe"))?;
            }
            Ok(StreamReader { stream, pipe, buffer: HeadTailBuffer::new(job.limits.output_bytes) })
        };
        let streams = [tap(OutputStream::Stdout, output)?, tap(OutputStream::Err, errors)?];
        let (began, isolation) = (Instant::now(), Vec::new());
        let (looked, cgroup, reply) = (began, jail.cgroup.as_ref(), &jail.reply_socket);
        let backend = jail.backend;
        Ok(Self {
            job,
            observer: watch,
            backend,
            cgroup,
            oom_checked_at: looked,
            started_at: began,
            streams,
            reply_socket: reply,
            spawner,
            jail_pidfd: None,
            upper: None,
            isolation,
            kill_reason: None,
        })
    }

    /// Follows it to its end.
    pub(crate) fn finish(mut self) -> Result<RunResult, JailError> {
        let end = self.event_loop()?;
        self.drain();
        let duration = self.started_at.elapsed();
        let out_of_memory = self.cgroup.is_some_and(RunCgroup::oom_killed);
        if self.cgroup.is_some() && !self.isolation.is_empty() {
            self.isolation.push(Isolation::Cgroup);
        }
        let (status, beyond) = match end {
            JailExit::Status { status, beyond } => (status, beyond),
            JailExit::Killed if self.kill_reason.is_none() && !out_of_memory => {
                return Err(JailError::UnexpectedExit("the jail"));
            }
            JailExit::Killed => (ProgramStatus::Killed(libc::SIGKILL), None),
        };
        let beyond = if out_of_memory { Some(LimitExceeded::Memory) } else { beyond };
        let (exit_code, signal) = match status {
            ProgramStatus::Exited(code) => (code, None),
            ProgramStatus::Killed(signal) => (128 + signal, Some(signal)),
        };
        let ended_by = self.kill_reason.unwrap_or(match (beyond, signal) {
            (Some(LimitExceeded::Memory), _) => ExitReason::Memory,
            (Some(LimitExceeded::Cpu), _) | (None, Some(libc::SIGXCPU)) => ExitReason::Cpu,
            (None, Some(_)) => ExitReason::Signal,
            (None, None) => ExitReason::Exit,
        });
        let crowded = self.cgroup.is_some_and(RunCgroup::pids_limit_hit);
        let [stdout, stderr] = self.streams.map(|tap| tap.buffer.finish());
        let (upper, isolation) = (self.upper, self.isolation);
        Ok(RunResult {
            exit_code,
            signal,
            exit_reason: ended_by,
            process_limit_hit: crowded,
            stdout,
            stderr,
            duration,
            upper,
            isolation,
        })
    }

    fn event_loop(&mut self) -> Result<JailExit, JailError> {
        loop {
            self.wait();
            self.drain();
            self.enforce_limits();
            self.forward_signal();
            if let Some(end) = self.receive_reply()? {
                return Ok(end);
            }
        }
    }

    /// Until there is something to read, or it is time to ask.
    fn wait(&self) {
        let mut watched = vec![PollFd::new(self.reply_socket, PollFlags::IN)];
        watched.extend(self.streams.iter().filter_map(|tap| Some(PollFd::new(tap.pipe.as_ref()?, PollFlags::IN))));
        let left = self.job.limits.wall.saturating_sub(self.started_at.elapsed());
        let left = if self.kill_reason.is_some() { POLL_INTERVAL } else { left.min(POLL_INTERVAL) };
        let wake_source = self.observer.wake_source();
        watched.extend(wake_source.as_ref().map(|source| PollFd::new(&**source, PollFlags::IN)));
        let _ = poll(&mut watched, Some(&Timespec::try_from(left).unwrap_or_default()));
        let is_woken = watched.last().is_some_and(|last| !last.revents().is_empty());
        if wake_source.is_some() && is_woken {
            self.observer.on_wake();
        }
    }

    /// Takes what was printed, as long as there is something at once.
    fn drain(&mut self) {
        for tap in &mut self.streams {
            tap.drain(self.observer);
        }
    }

    /// Ends it if it is to be ended.
    fn enforce_limits(&mut self) {
        let flood = self.job.limits.output_bytes.saturating_mul(MAX_OUTPUT_FACTOR).max(MIN_OUTPUT_LIMIT);
        if self.kill_reason.is_none() {
            self.kill_reason = if self.observer.should_stop() {
                Some(ExitReason::Cancelled)
            } else if self.started_at.elapsed() >= self.job.limits.wall {
                Some(ExitReason::Timeout)
            } else if self.is_out_of_memory() {
                Some(ExitReason::Memory)
            } else if self.has_output_limit() && self.streams.iter().any(|tap| tap.buffer.total() > flood) {
                Some(ExitReason::Output)
            } else {
                None
            };
        }
        // Until it has a jail there is nothing to kill.
        if let (Some(_), Some(jail)) = (self.kill_reason, &self.jail_pidfd) {
            let _ = pidfd_send_signal(jail, Signal::KILL);
        }
    }

    /// Passes a signal on, once the program runs.
    fn forward_signal(&self) {
        if self.job.wrapped.is_none() || self.isolation.is_empty() {
            return;
        }
        if let Some(signal) = self.observer.signal() {
            // A jail at its end says so by itself.
            let _ = HostCommand::Signal(signal).send(self.reply_socket.as_fd());
        }
    }

    /// Where another reader bounds the output, its total has no limit.
    fn has_output_limit(&self) -> bool {
        let is_captured = matches!(self.job.output, OutputCapture::Separate | OutputCapture::Merged);
        self.job.stdin.is_none() && is_captured
    }

    /// Some kernels end one process only where memory is short. The rest would wait for it in vain.
    fn is_out_of_memory(&mut self) -> bool {
        let Some(cgroup) = self.cgroup.filter(|_| self.oom_checked_at.elapsed() >= OOM_POLL_INTERVAL) else {
            return false;
        };
        self.oom_checked_at = Instant::now();
        cgroup.oom_killed()
    }

    /// One message, if there is one.
    fn receive_reply(&mut self) -> Result<Option<JailExit>, JailError> {
        let mut watched = [PollFd::new(self.reply_socket, PollFlags::IN)];
        if poll(&mut watched, Some(&Timespec::default())) == Ok(0) {
            return Ok(None);
        }
        let mut buffer = [0; MAX_MESSAGE_BYTES];
        let received = sys::receive(self.reply_socket.as_fd(), &mut buffer);
        let (bytes, descriptors) = received.map_err(JailError::io("read from a jail"))?;
        if bytes.is_empty() {
            return self.await_jail_exit().map(Some);
        }
        let mut descriptors = descriptors.into_iter();
        match SpawnerReply::decode(bytes).map_err(|_| JailError::UnexpectedExit("the jail"))? {
            SpawnerReply::Created => self.jail_pidfd = descriptors.next(),
            SpawnerReply::Started { proc } => {
                self.take_started(descriptors)?;
                self.isolation = REQUIRED_ISOLATION.to_vec();
                self.isolation.push(match self.backend {
                    JailBackend::Native => Isolation::Overlay,
                    JailBackend::Bwrap => Isolation::Bwrap,
                });
                self.isolation.extend(proc.then_some(Isolation::Proc));
            }
            SpawnerReply::Exited { status, beyond } => {
                return Ok(Some(JailExit::Status { status, beyond }));
            }
            SpawnerReply::ProgramNotFound => {
                let name = self.job.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                return Err(JailError::ProgramNotFound { name });
            }
            SpawnerReply::Failed(setup_error) => return Err(setup_error.into()),
            SpawnerReply::Stopped => {
                if let Some(terminal) = self.terminal() {
                    terminal.relay.on_stopped();
                }
                // A jail at its end says so by itself.
                let _ = HostCommand::Continue.send(self.reply_socket.as_fd());
            }
            SpawnerReply::Ready | SpawnerReply::Mapped | SpawnerReply::Opened => {}
        }
        Ok(None)
    }

    /// Takes what came with the start: the upper directory, or the overlay on the workspace, the network, the file of
    /// refusals and the master of a terminal.
    fn take_started(&mut self, mut descriptors: impl Iterator<Item = OwnedFd>) -> Result<(), JailError> {
        let Some(wrapped) = self.job.wrapped else {
            self.upper = descriptors.next();
            return Ok(());
        };
        if let (Some(root), Some(configuration)) = (descriptors.next(), descriptors.next()) {
            self.observer.on_mounted(MountedOverlay::new(root, configuration));
        }
        let upper = wrapped.workspace_layer.upper.try_clone();
        self.upper = Some(upper.map_err(JailError::io("hold a layer on disk"))?);
        if let Some((network, refusals)) = descriptors.next().zip(descriptors.next()) {
            let network = self.program_network(network);
            let records = if wrapped.recorded.is_empty() { None } else { descriptors.next() };
            self.observer.on_started(StartedProgram { network, refusals: File::from(refusals), records });
        }
        if let Some((terminal, master)) = self.terminal().zip(descriptors.next()) {
            terminal.relay.on_opened(master);
        }
        Ok(())
    }

    fn program_network(&self, namespace: OwnedFd) -> ProgramNetwork {
        let spawner = Arc::clone(self.spawner);
        ProgramNetwork::new(move |handle| spawner.open_in_network(&namespace, handle).map_err(std::io::Error::other))
    }

    fn terminal(&self) -> Option<&'a WrappedTerminal<'a>> {
        self.job.wrapped.and_then(|wrapped| wrapped.terminal.as_ref())
    }

    /// The jail's first process has closed everything. Its handle says when nothing of the jail is left.
    fn await_jail_exit(&mut self) -> Result<JailExit, JailError> {
        let jail = self.jail_pidfd.take().ok_or(JailError::UnexpectedExit("the spawner"))?;
        loop {
            self.drain();
            let every = Timespec::try_from(POLL_INTERVAL).unwrap_or_default();
            match poll(&mut [PollFd::new(&jail, PollFlags::IN)], Some(&every)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(JailExit::Killed),
                Err(other) => return Err(JailError::Io("wait for a jail", other.into())),
            }
        }
    }
}

impl StreamReader {
    fn drain(&mut self, watch: &dyn ProgramObserver) {
        let mut buffer = [0; 64 << 10];
        // Not for ever: who prints without end must not keep us from the clock.
        for _ in 0..16 {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    self.buffer.push(bytes);
                    watch.on_output(self.stream, bytes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}
