//! One run, as the host follows it: output, deadline, the wish to stop, and the end.
//!
//! It ends in one of three ways: the jail says that all is dead, the host has it killed and waits for the handle to say the
//! same, or the jail is lost. Memory is bounded whatever is printed.
//!
//! Not here: starting it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::bwrap::Backend;
use crate::cgroup::Cgroup;
use crate::job::{Ended, EndedBy, Failure, Job, Stream, Watch};
use crate::message::{Beyond, LONGEST, Reply, Status};
use crate::output::HeadTail;
use crate::sys;
use crate::walls::Wall;
use crate::warden::Claimed;

/// How often the watch is asked whether to stop.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// How often the cgroup is asked whether memory was short.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A run that prints more than this many times what is kept of it is ended.
const FLOOD: u64 = 16;
/// At least this much may always be printed.
const LEAST_FLOOD: u64 = 64 << 20;

/// Walls without which no program is started.
const ALWAYS: [Wall; 9] = [
    Wall::UserNamespace,
    Wall::MountNamespace,
    Wall::PidNamespace,
    Wall::NetNamespace,
    Wall::IpcNamespace,
    Wall::UtsNamespace,
    Wall::CgroupNamespace,
    Wall::Seccomp,
    Wall::Landlock,
];

/// A run that is under way.
pub(crate) struct Run<'a> {
    job: &'a Job<'a>,
    watch: &'a dyn Watch,
    backend: Backend,
    cgroup: Option<&'a Cgroup>,
    /// When the cgroup was last asked.
    looked: Instant,
    began: Instant,
    streams: [Tap; 2],
    reply: &'a OwnedFd,
    /// The first process of the jail, once we know it.
    jail: Option<OwnedFd>,
    upper: Option<OwnedFd>,
    walls: Vec<Wall>,
    /// Why we killed it.
    killed: Option<EndedBy>,
}

/// One output stream.
struct Tap {
    stream: Stream,
    pipe: Option<OwnedFd>,
    kept: HeadTail,
}

/// What the jail said last.
enum End {
    Status {
        status: Status,
        beyond: Option<Beyond>,
    },
    /// Killed, by us or by somebody else. All of it is dead.
    Killed,
}

impl<'a> Run<'a> {
    pub(crate) fn begin(
        job: &'a Job<'a>,
        watch: &'a dyn Watch,
        jail: &'a Claimed,
        [output, errors]: [OwnedFd; 2],
    ) -> Result<Self, Failure> {
        let tap = |stream, pipe: OwnedFd| -> Result<Tap, Failure> {
            fcntl_setfl(&pipe, OFlags::NONBLOCK).map_err(Failure::io("read a pipe"))?;
            Ok(Tap { stream, pipe: Some(pipe), kept: HeadTail::new(job.limits.output_bytes) })
        };
        let streams = [tap(Stream::Out, output)?, tap(Stream::Err, errors)?];
        let (began, walls) = (Instant::now(), Vec::new());
        let (looked, cgroup, reply) = (began, jail.cgroup.as_ref(), &jail.reply);
        let backend = jail.backend;
        Ok(Self {
            job,
            watch,
            backend,
            cgroup,
            looked,
            began,
            streams,
            reply,
            jail: None,
            upper: None,
            walls,
            killed: None,
        })
    }

    /// Follows it to its end.
    pub(crate) fn finish(mut self) -> Result<Ended, Failure> {
        let end = self.follow()?;
        self.drain();
        let duration = self.began.elapsed();
        let out_of_memory = self.cgroup.is_some_and(Cgroup::oom_killed);
        if self.cgroup.is_some() && !self.walls.is_empty() {
            self.walls.push(Wall::Cgroup);
        }
        let (status, beyond) = match end {
            End::Status { status, beyond } => (status, beyond),
            End::Killed if self.killed.is_none() && !out_of_memory => return Err(Failure::Lost("the jail")),
            End::Killed => (Status::Killed(libc::SIGKILL), None),
        };
        let beyond = if out_of_memory { Some(Beyond::Memory) } else { beyond };
        let (exit_code, signal) = match status {
            Status::Exited(code) => (code, None),
            Status::Killed(signal) => (128 + signal, Some(signal)),
        };
        let ended_by = self.killed.unwrap_or(match (beyond, signal) {
            (Some(Beyond::Memory), _) => EndedBy::Memory,
            (Some(Beyond::Cpu), _) | (None, Some(libc::SIGXCPU)) => EndedBy::Cpu,
            (None, Some(_)) => EndedBy::Signal,
            (None, None) => EndedBy::Exit,
        });
        let crowded = self.cgroup.is_some_and(Cgroup::pids_hit);
        let [stdout, stderr] = self.streams.map(|tap| tap.kept.finish());
        let (upper, walls) = (self.upper, self.walls);
        Ok(Ended { exit_code, signal, ended_by, crowded, stdout, stderr, duration, upper, walls })
    }

    fn follow(&mut self) -> Result<End, Failure> {
        loop {
            self.wait();
            self.drain();
            self.judge();
            if let Some(end) = self.hear()? {
                return Ok(end);
            }
        }
    }

    /// Until there is something to read, or it is time to ask.
    fn wait(&self) {
        let mut watched = vec![PollFd::new(self.reply, PollFlags::IN)];
        watched.extend(self.streams.iter().filter_map(|tap| Some(PollFd::new(tap.pipe.as_ref()?, PollFlags::IN))));
        let left = self.job.limits.wall.saturating_sub(self.began.elapsed());
        let left = if self.killed.is_some() { ASK_EVERY } else { left.min(ASK_EVERY) };
        let _ = poll(&mut watched, Some(&Timespec::try_from(left).unwrap_or_default()));
    }

    /// Takes what was printed, as long as there is something at once.
    fn drain(&mut self) {
        for tap in &mut self.streams {
            tap.drain(self.watch);
        }
    }

    /// Ends it if it is to be ended.
    fn judge(&mut self) {
        let flood = self.job.limits.output_bytes.saturating_mul(FLOOD).max(LEAST_FLOOD);
        if self.killed.is_none() {
            self.killed = if self.watch.stopped() {
                Some(EndedBy::Cancelled)
            } else if self.began.elapsed() >= self.job.limits.wall {
                Some(EndedBy::Timeout)
            } else if self.is_out_of_memory() {
                Some(EndedBy::Memory)
            } else if self.job.input.is_none() && self.streams.iter().any(|tap| tap.kept.total() > flood) {
                Some(EndedBy::Output)
            } else {
                None
            };
        }
        // Until it has a jail there is nothing to kill.
        if let (Some(_), Some(jail)) = (self.killed, &self.jail) {
            let _ = pidfd_send_signal(jail, Signal::KILL);
        }
    }

    /// Some kernels end one process only where memory is short. The rest would wait for it in vain.
    fn is_out_of_memory(&mut self) -> bool {
        let Some(cgroup) = self.cgroup.filter(|_| self.looked.elapsed() >= LOOK_EVERY) else { return false };
        self.looked = Instant::now();
        cgroup.oom_killed()
    }

    /// One message, if there is one.
    fn hear(&mut self) -> Result<Option<End>, Failure> {
        let mut watched = [PollFd::new(self.reply, PollFlags::IN)];
        if poll(&mut watched, Some(&Timespec::default())) == Ok(0) {
            return Ok(None);
        }
        let mut buffer = [0; LONGEST];
        let (bytes, descriptors) = match sys::receive(self.reply.as_fd(), &mut buffer) {
            Ok(message) => message,
            Err(Errno::CONNRESET) => (&[][..], Vec::new()),
            Err(other) => return Err(Failure::Io("hear from a jail", other.into())),
        };
        if bytes.is_empty() {
            return self.await_death().map(Some);
        }
        let descriptor = descriptors.into_iter().next();
        match Reply::decode(bytes).map_err(|_| Failure::Lost("the jail"))? {
            Reply::Made => self.jail = descriptor,
            Reply::Started { proc } => {
                self.upper = descriptor;
                self.walls = ALWAYS.to_vec();
                self.walls.push(match self.backend {
                    Backend::Native => Wall::Overlay,
                    Backend::Bwrap => Wall::Bwrap,
                });
                self.walls.extend(proc.then_some(Wall::Proc));
            }
            Reply::Ended { status, beyond } => {
                return Ok(Some(End::Status { status, beyond }));
            }
            Reply::NoProgram => {
                let name = self.job.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                return Err(Failure::NoProgram { name });
            }
            Reply::Failed(trouble) => return Err(trouble.into()),
            Reply::Ready | Reply::Mapped => {}
        }
        Ok(None)
    }

    /// The jail's first process has closed everything. Its handle says when nothing of the jail is left.
    fn await_death(&mut self) -> Result<End, Failure> {
        let jail = self.jail.take().ok_or(Failure::Lost("the spawner"))?;
        loop {
            self.drain();
            let every = Timespec::try_from(ASK_EVERY).unwrap_or_default();
            match poll(&mut [PollFd::new(&jail, PollFlags::IN)], Some(&every)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(End::Killed),
                Err(other) => return Err(Failure::Io("wait for a jail", other.into())),
            }
        }
    }
}

impl Tap {
    fn drain(&mut self, watch: &dyn Watch) {
        let mut buffer = [0; 64 << 10];
        // Not for ever: who prints without end must not keep us from the clock.
        for _ in 0..16 {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    self.kept.push(bytes);
                    watch.output(self.stream, bytes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}
