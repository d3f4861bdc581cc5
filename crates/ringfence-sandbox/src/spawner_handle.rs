//! Spawner handle of the host: the process, and its jails.
//!
//! Jails are made ahead, each in a cgroup of its own, and named by numbers. Work that the caller need not wait for,
//! such as making the next jail and removing a cgroup, happens on a thread here after the caller has its result. When
//! the last owner is dropped, every process that was started is dead.
//!
//! Not here: what runs in a jail.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringfence_kernel::sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::bwrap::JailBackend;
use crate::bwrap_launcher;
use crate::cgroup::{CgroupManager, RunCgroup};
use crate::jail::INSIDE_USER;
use crate::job::JailError;
use crate::limits::JailLimits;
use crate::mounts::{READ_ONLY, clone_mount};
use crate::program_network::NetworkHandle;
use crate::protocol::{
    IdMapping, ImagePlan, JailKind, JailUser, MAX_MESSAGE_BYTES, SpawnerReply, SpawnerRequest, write_paths,
};
use crate::spawner;
use crate::sys::{self, MountFlagScope};

/// Time for the spawner to exit by itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Number, user and cgroups of the jails that are made ahead.
#[derive(Debug)]
pub(crate) struct JailPoolConfig {
    pub(crate) backend: JailBackend,
    pub(crate) size: usize,
    pub(crate) identity: JailUser,
    pub(crate) cgroups: CgroupManager,
}

/// A jail that one run has.
#[derive(Debug)]
pub(crate) struct JailLease {
    name: u64,
    pub(crate) backend: JailBackend,
    pub(crate) cgroup: Option<RunCgroup>,
    /// Socket for the replies of the spawner and the jail.
    pub(crate) reply_socket: OwnedFd,
    /// Whether its run spec was sent.
    started: AtomicBool,
}

impl JailLease {
    pub(crate) fn has_cgroup(&self) -> bool {
        self.cgroup.is_some()
    }
}

/// The spawner, held.
#[derive(Debug)]
pub(crate) struct SpawnerHandle {
    channel: Arc<SpawnerChannel>,
    pidfd: OwnedFd,
    spawner_thread: Option<JoinHandle<()>>,
    /// Channel for used jails. `None` while this is being dropped.
    returned: Option<mpsc::Sender<JailLease>>,
    cleaner: Option<JoinHandle<()>>,
    /// User namespaces that make owners the jail's user.
    user_ns_cache: Mutex<HashMap<(JailUser, JailUser), Arc<OwnedFd>>>,
}

/// The line to the spawner, and what waits at its end.
#[derive(Debug)]
struct SpawnerChannel {
    socket: OwnedFd,
    config: JailPoolConfig,
    next: AtomicU64,
    pool: Mutex<JailPool>,
}

/// Jails that were made ahead, and with which toolchains.
#[derive(Debug)]
struct JailPool {
    ready: Vec<JailLease>,
    toolchains: Vec<PathBuf>,
}

impl SpawnerHandle {
    /// Starts the spawner, and waits until it can make jails.
    pub(crate) fn start(program: &Path, pool: JailPoolConfig, toolchains: Vec<PathBuf>) -> Result<Self, JailError> {
        let (socket, theirs) = sys::message_pair().map_err(JailError::io("start its spawner"))?;
        let (keeper, process) =
            spawn_on_thread(program, pool.backend, theirs).map_err(JailError::io("start its spawner"))?;
        let stock = Mutex::new(JailPool { ready: Vec::new(), toolchains: Vec::new() });
        let line = Arc::new(SpawnerChannel { socket, config: pool, next: AtomicU64::new(0), pool: stock });
        let (spent, to_clean) = mpsc::channel();
        let cleaned = Arc::clone(&line);
        let cleaner = thread::Builder::new().name("jail-cleaner".into()).spawn(move || {
            for jail in to_clean {
                // A spawner that is gone is for the next run to find out.
                let _ = cleaned.discard_unused(jail).and_then(|()| cleaned.refill());
            }
        });
        let cleaner = Some(cleaner.map_err(JailError::io("start a thread"))?);
        let spawner = Self {
            channel: line,
            pidfd: process,
            spawner_thread: Some(keeper),
            returned: Some(spent),
            cleaner,
            user_ns_cache: Mutex::default(),
        };
        spawner.channel.set_toolchains(&mut spawner.channel.lock_pool(), toolchains)?;
        spawner.channel.refill()?;
        Ok(spawner)
    }

    pub(crate) fn backend(&self) -> JailBackend {
        self.channel.config.backend
    }

    /// Whether the spawner is at its end, or past it. That its socket is closed does not say so yet: a jail that it was
    /// just starting has a copy. An answer does.
    pub(crate) fn is_dead(&self) -> bool {
        self.channel.request(&SpawnerRequest::Ping, &[]).is_err()
    }

    /// Gives a jail its order, with the descriptors that go with one.
    pub(crate) fn start_run(&self, jail: &JailLease, descriptors: &[BorrowedFd<'_>]) -> Result<(), JailError> {
        self.channel.send(&SpawnerRequest::Run { name: jail.name }, descriptors)?;
        jail.started.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A jail with these toolchains and limits: one that was made ahead, or a new one.
    pub(crate) fn lease(
        &self,
        identity: JailUser,
        toolchains: Vec<PathBuf>,
        limits: &JailLimits,
        network: Option<u64>,
    ) -> Result<JailLease, JailError> {
        let mut stock = self.channel.lock_pool();
        if stock.toolchains != toolchains {
            self.channel.set_toolchains(&mut stock, toolchains)?;
        }
        // Those that were made ahead have a network of their own.
        let is_common = identity == self.channel.config.identity && network.is_none();
        let ready = if is_common { stock.ready.pop() } else { None };
        drop(stock);
        let jail = match ready {
            Some(jail) => jail,
            None => self.channel.create_for_tools(identity, network)?,
        };
        if let Some(cgroup) = jail.cgroup.as_ref().filter(|_| *limits != JailLimits::default()) {
            cgroup.set_limits(limits).map_err(JailError::io("set the limits of its cgroup"))?;
        }
        Ok(jail)
    }

    /// A new jail in an image of its own.
    pub(crate) fn create_wrapped(
        &self,
        identity: IdMapping,
        kind: JailKind,
        plan: &ImagePlan,
        limits: &JailLimits,
    ) -> Result<JailLease, JailError> {
        let plan = plan.write().map_err(JailError::io("send the plan of its image to its spawner"))?;
        let name = self.channel.next_name();
        let request = SpawnerRequest::Create { name, identity, network: None, kind };
        self.channel.create(name, &request, &[plan.as_fd()], limits)
    }

    pub(crate) fn close_network(&self, network: u64) {
        // A spawner that is gone is for the next run to find out.
        let _ = self.channel.send(&SpawnerRequest::CloseNetwork { network }, &[]);
    }

    /// Opens something in the network of a running program.
    pub(crate) fn open_in_network(&self, network: &OwnedFd, handle: NetworkHandle) -> Result<OwnedFd, JailError> {
        match self.channel.request(&SpawnerRequest::OpenInNetwork { handle }, &[network.as_fd()])? {
            (SpawnerReply::Opened, Some(opened)) => Ok(opened),
            _ => Err(JailError::UnexpectedExit("the spawner")),
        }
    }

    /// Puts away what is left of a jail, and makes another.
    pub(crate) fn release(&self, jail: JailLease) {
        if let Some(spent) = &self.returned {
            let _ = spent.send(jail);
        }
    }

    /// A read-only mount of a directory on which its owner is the jail's user, or why there is none.
    pub(crate) fn idmapped_mount(
        &self,
        directory: &OwnedFd,
        to: JailUser,
    ) -> Result<Result<OwnedFd, Errno>, JailError> {
        let map = self.user_ns_for(owner(directory)?, to)?;
        Ok(clone_mount(directory.as_fd(), "", MountFlagScope::Mount).and_then(|mount| {
            sys::set_mount_flags(mount.as_fd(), READ_ONLY, MountFlagScope::Mount, Some((*map).as_fd()))?;
            Ok(mount)
        }))
    }

    /// A user namespace in which one user is another.
    pub(crate) fn user_ns_for(&self, from: JailUser, to: JailUser) -> Result<Arc<OwnedFd>, JailError> {
        let mut maps = self.user_ns_cache.lock();
        if let Some(map) = maps.get(&(from, to)) {
            return Ok(Arc::clone(map));
        }
        let map = match self.channel.request(&SpawnerRequest::MapUser { from, to }, &[])? {
            (SpawnerReply::Mapped, Some(map)) => Arc::new(map),
            _ => return Err(JailError::UnexpectedExit("the spawner")),
        };
        maps.insert((from, to), Arc::clone(&map));
        Ok(map)
    }
}

impl Drop for SpawnerHandle {
    /// When this is over, so is everything that was started.
    fn drop(&mut self) {
        self.returned = None;
        let _ = shutdown(&self.channel.socket, Shutdown::Both);
        let timeout = Timespec::try_from(EXIT_TIMEOUT).unwrap_or_default();
        if poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&timeout)) == Ok(0) {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
        for thread in [self.spawner_thread.take(), self.cleaner.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

impl SpawnerChannel {
    fn send(&self, request: &SpawnerRequest, descriptors: &[BorrowedFd<'_>]) -> Result<(), JailError> {
        request.send(self.socket.as_fd(), descriptors).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => JailError::UnexpectedExit("the spawner"),
            other => JailError::Io("send a request to its spawner", other.into()),
        })
    }

    /// Asks, and waits for the answer.
    fn request(
        &self,
        request: &SpawnerRequest,
        with: &[BorrowedFd<'_>],
    ) -> Result<(SpawnerReply, Option<OwnedFd>), JailError> {
        let (reply, theirs) = sys::message_pair().map_err(JailError::io("create a socket"))?;
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(theirs.as_fd()).chain(with.iter().copied()).collect();
        self.send(request, &descriptors)?;
        drop(descriptors);
        drop(theirs);
        let mut buffer = [0; MAX_MESSAGE_BYTES];
        let (bytes, descriptors) =
            sys::receive(reply.as_fd(), &mut buffer).map_err(|_| JailError::UnexpectedExit("the spawner"))?;
        match SpawnerReply::decode(bytes).map_err(|_| JailError::UnexpectedExit("the spawner"))? {
            SpawnerReply::Failed(setup_error) => Err(setup_error.into()),
            answer => Ok((answer, descriptors.into_iter().next())),
        }
    }

    fn lock_pool(&self) -> std::sync::MutexGuard<'_, JailPool> {
        self.pool.lock()
    }

    /// Has later jails made with these toolchains. Those that wait are gone.
    fn set_toolchains(&self, stock: &mut JailPool, toolchains: Vec<PathBuf>) -> Result<(), JailError> {
        let paths = write_paths(&toolchains).map_err(JailError::io("send the toolchains to its spawner"))?;
        stock.ready.drain(..).try_for_each(|jail| self.discard_unused(jail))?;
        self.request(&SpawnerRequest::SetImage, &[paths.as_fd()])?;
        stock.toolchains = toolchains;
        Ok(())
    }

    fn next_name(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn create_for_tools(&self, identity: JailUser, network: Option<u64>) -> Result<JailLease, JailError> {
        let (name, identity) = (self.next_name(), IdMapping { inside: INSIDE_USER, outside: identity });
        let request = SpawnerRequest::Create { name, identity, network, kind: JailKind::Tool };
        self.create(name, &request, &[], &JailLimits::default())
    }

    fn create(
        &self,
        name: u64,
        request: &SpawnerRequest,
        with: &[BorrowedFd<'_>],
        limits: &JailLimits,
    ) -> Result<JailLease, JailError> {
        let cgroup = self.config.cgroups.create(limits).map_err(JailError::io("create a cgroup"))?;
        let (reply, theirs) = sys::message_pair().map_err(JailError::io("create a socket"))?;
        let cgroup_fds = cgroup.iter().flat_map(RunCgroup::procs_files);
        let descriptors = std::iter::once(theirs.as_fd()).chain(with.iter().copied()).chain(cgroup_fds);
        self.send(request, &descriptors.collect::<Vec<_>>())?;
        let backend = self.config.backend;
        Ok(JailLease { name, backend, cgroup, reply_socket: reply, started: AtomicBool::new(false) })
    }

    /// Removes what is left of a jail.
    fn discard_unused(&self, jail: JailLease) -> Result<(), JailError> {
        if jail.started.load(Ordering::Relaxed) {
            Ok(())
        } else {
            self.send(&SpawnerRequest::Discard { name: jail.name }, &[])
        }
    }

    /// Makes jails until enough wait.
    fn refill(&self) -> Result<(), JailError> {
        while self.lock_pool().ready.len() < self.config.size {
            let toolchains = self.lock_pool().toolchains.clone();
            let jail = self.create_for_tools(self.config.identity, None)?;
            let mut stock = self.lock_pool();
            // One that was made from an older image is not for later.
            if stock.toolchains == toolchains {
                stock.ready.push(jail);
            } else {
                self.discard_unused(jail)?;
            }
        }
        Ok(())
    }
}

/// Owner of a directory.
pub(crate) fn owner(directory: &OwnedFd) -> Result<JailUser, JailError> {
    let found = fstat(directory).map_err(JailError::io("stat a directory of the workspace view"))?;
    Ok(JailUser { uid: found.st_uid, gid: found.st_gid })
}

/// Starts the spawner on a thread that stays until it ends: the kernel ties its life to the thread that started it.
fn spawn_on_thread(
    program: &Path,
    backend: JailBackend,
    socket: OwnedFd,
) -> std::io::Result<(JoinHandle<()>, OwnedFd)> {
    let mut command = Command::new(program);
    let name = match backend {
        JailBackend::Native => spawner::NAME,
        JailBackend::Bwrap => bwrap_launcher::NAME,
    };
    command.arg0(name).env_clear().stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
    // What a person types at the terminal is a signal for this process alone: it ends the runs, each with its reason.
    command.process_group(0);
    let (say, hear) = mpsc::channel();
    let keeper = thread::Builder::new().name("jail-keeper".into()).spawn(move || {
        let started = command.spawn();
        // It has the socket now. Ours would hide that it died.
        drop(command);
        match started {
            Ok(mut child) => {
                let handle = Pid::from_raw(child.id() as i32).ok_or(Errno::SRCH);
                let handle = handle.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
                let _ = say.send(handle.map_err(Into::into));
                let _ = child.wait();
            }
            Err(cause) => drop(say.send(Err(cause))),
        }
    })?;
    let process = hear.recv().unwrap_or_else(|_| Err(Errno::SRCH.into()))?;
    Ok((keeper, process))
}
