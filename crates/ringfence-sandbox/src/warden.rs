//! The spawner as the host holds it: its process, and the jails that it was told to make.
//!
//! Jails are made ahead, each in a cgroup of its own, and named by numbers. What takes time and is not the caller's, such
//! as making the next jail and putting a cgroup away, happens on a thread here after the caller has its answer. When the
//! last owner lets go, everything that was started is dead.
//!
//! Not here: what runs in a jail.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::bwrap::Backend;
use crate::cgroup::{Cgroup, Cgroups};
use crate::job::Failure;
use crate::launcher;
use crate::limits::JailLimits;
use crate::message::{Identity, LONGEST, Reply, Request, write_paths};
use crate::mounts::{READ_ONLY, copy};
use crate::spawner;
use crate::sys::{self, Reach};

/// How long the spawner may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many jails are made ahead, for whom, and where their cgroups come from.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) backend: Backend,
    pub(crate) size: usize,
    pub(crate) identity: Identity,
    pub(crate) cgroups: Cgroups,
}

/// A jail that one run has.
#[derive(Debug)]
pub(crate) struct Claimed {
    name: u64,
    pub(crate) backend: Backend,
    pub(crate) cgroup: Option<Cgroup>,
    /// What the spawner and the jail say about it.
    pub(crate) reply: OwnedFd,
    /// Whether it has its order.
    ordered: AtomicBool,
}

impl Claimed {
    pub(crate) fn has_cgroup(&self) -> bool {
        self.cgroup.is_some()
    }
}

/// The spawner, held.
#[derive(Debug)]
pub(crate) struct Warden {
    line: Arc<Line>,
    process: OwnedFd,
    keeper: Option<JoinHandle<()>>,
    /// Where jails go that are spent. Nothing while this is being dropped.
    spent: Option<mpsc::Sender<Claimed>>,
    cleaner: Option<JoinHandle<()>>,
    /// User namespaces that make owners the jail's user.
    maps: Mutex<HashMap<Identity, Arc<OwnedFd>>>,
}

/// The line to the spawner, and what waits at its end.
#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    pool: Pool,
    next: AtomicU64,
    stock: Mutex<Stock>,
}

/// Jails that were made ahead, and with which toolchains.
#[derive(Debug)]
struct Stock {
    ready: Vec<Claimed>,
    toolchains: Vec<PathBuf>,
}

impl Warden {
    /// Starts the spawner, and waits until it can make jails.
    pub(crate) fn start(program: &Path, pool: Pool, toolchains: Vec<PathBuf>) -> Result<Self, Failure> {
        let (socket, theirs) = sys::message_pair().map_err(Failure::io("start its spawner"))?;
        let (keeper, process) = keep(program, pool.backend, theirs).map_err(Failure::io("start its spawner"))?;
        let stock = Mutex::new(Stock { ready: Vec::new(), toolchains: Vec::new() });
        let line = Arc::new(Line { socket, pool, next: AtomicU64::new(0), stock });
        let (spent, to_clean) = mpsc::channel();
        let cleaned = Arc::clone(&line);
        let cleaner = thread::Builder::new().name("jail-cleaner".into()).spawn(move || {
            for jail in to_clean {
                // A spawner that is gone is for the next run to find out.
                let _ = cleaned.put_away(jail).and_then(|()| cleaned.fill());
            }
        });
        let cleaner = Some(cleaner.map_err(Failure::io("start a thread"))?);
        let warden = Self { line, process, keeper: Some(keeper), spent: Some(spent), cleaner, maps: Mutex::default() };
        warden.line.show(&mut warden.line.stock(), toolchains)?;
        warden.line.fill()?;
        Ok(warden)
    }

    pub(crate) fn backend(&self) -> Backend {
        self.line.pool.backend
    }

    /// Whether the spawner is at its end, or past it. That its socket is closed does not say so yet: a jail that it was
    /// just starting has a copy. An answer does.
    pub(crate) fn is_gone(&self) -> bool {
        self.line.ask(&Request::Greet, &[]).is_err()
    }

    /// Gives a jail its order, with the descriptors that go with one.
    pub(crate) fn order(&self, jail: &Claimed, descriptors: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        self.line.send(&Request::Run { name: jail.name }, descriptors)?;
        jail.ordered.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A jail with these toolchains and limits: one that was made ahead, or a new one.
    pub(crate) fn claim(
        &self,
        identity: Identity,
        toolchains: Vec<PathBuf>,
        limits: &JailLimits,
    ) -> Result<Claimed, Failure> {
        let mut stock = self.line.stock();
        if stock.toolchains != toolchains {
            self.line.show(&mut stock, toolchains)?;
        }
        let ready = if identity == self.line.pool.identity { stock.ready.pop() } else { None };
        drop(stock);
        let jail = match ready {
            Some(jail) => jail,
            None => self.line.make(identity)?,
        };
        if let Some(cgroup) = jail.cgroup.as_ref().filter(|_| *limits != JailLimits::default()) {
            cgroup.limit(limits).map_err(Failure::io("set the limits of its cgroup"))?;
        }
        Ok(jail)
    }

    /// Puts away what is left of a jail, and makes another.
    pub(crate) fn spent(&self, jail: Claimed) {
        if let Some(spent) = &self.spent {
            let _ = spent.send(jail);
        }
    }

    /// A read-only mount of a directory on which its owner is the jail's user, or why there is none.
    pub(crate) fn mapped(&self, directory: &OwnedFd, to: Identity) -> Result<Result<OwnedFd, Errno>, Failure> {
        let map = self.map(owner(directory)?, to)?;
        Ok(copy(directory.as_fd(), "", Reach::Mount).and_then(|mount| {
            sys::set_mount_flags(mount.as_fd(), READ_ONLY, Reach::Mount, Some((*map).as_fd()))?;
            Ok(mount)
        }))
    }

    fn map(&self, from: Identity, to: Identity) -> Result<Arc<OwnedFd>, Failure> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = maps.get(&from) {
            return Ok(Arc::clone(map));
        }
        let map = match self.line.ask(&Request::Map { from, to }, &[])? {
            (Reply::Mapped, Some(map)) => Arc::new(map),
            _ => return Err(Failure::Lost("the spawner")),
        };
        maps.insert(from, Arc::clone(&map));
        Ok(map)
    }
}

impl Drop for Warden {
    /// When this is over, so is everything that was started.
    fn drop(&mut self) {
        self.spent = None;
        let _ = shutdown(&self.line.socket, Shutdown::Both);
        let patience = Timespec::try_from(PATIENCE).unwrap_or_default();
        if poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&patience)) == Ok(0) {
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
        }
        for thread in [self.keeper.take(), self.cleaner.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

impl Line {
    fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        sys::send(self.socket.as_fd(), &request.encode(), descriptors).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Failure::Lost("the spawner"),
            other => Failure::Io("ask its spawner", other.into()),
        })
    }

    /// Asks, and waits for the answer.
    fn ask(&self, request: &Request, with: &[BorrowedFd<'_>]) -> Result<(Reply, Option<OwnedFd>), Failure> {
        let (reply, theirs) = sys::message_pair().map_err(Failure::io("make a socket"))?;
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(theirs.as_fd()).chain(with.iter().copied()).collect();
        self.send(request, &descriptors)?;
        drop(descriptors);
        drop(theirs);
        let mut buffer = [0; LONGEST];
        let (bytes, descriptors) =
            sys::receive(reply.as_fd(), &mut buffer).map_err(|_| Failure::Lost("the spawner"))?;
        match Reply::decode(bytes).map_err(|_| Failure::Lost("the spawner"))? {
            Reply::Failed(trouble) => Err(trouble.into()),
            answer => Ok((answer, descriptors.into_iter().next())),
        }
    }

    fn stock(&self) -> std::sync::MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has later jails made with these toolchains. Those that wait are gone.
    fn show(&self, stock: &mut Stock, toolchains: Vec<PathBuf>) -> Result<(), Failure> {
        let paths = write_paths(&toolchains).map_err(Failure::io("name the toolchains"))?;
        stock.ready.drain(..).try_for_each(|jail| self.put_away(jail))?;
        self.ask(&Request::Image, &[paths.as_fd()])?;
        stock.toolchains = toolchains;
        Ok(())
    }

    fn make(&self, identity: Identity) -> Result<Claimed, Failure> {
        let cgroup = self.pool.cgroups.make(&JailLimits::default()).map_err(Failure::io("make a cgroup"))?;
        let name = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, theirs) = sys::message_pair().map_err(Failure::io("make a socket"))?;
        let doors = cgroup.iter().flat_map(Cgroup::doors);
        self.send(
            &Request::Make { name, identity },
            &std::iter::once(theirs.as_fd()).chain(doors).collect::<Vec<_>>(),
        )?;
        let backend = self.pool.backend;
        Ok(Claimed { name, backend, cgroup, reply, ordered: AtomicBool::new(false) })
    }

    /// Removes what is left of a jail.
    fn put_away(&self, jail: Claimed) -> Result<(), Failure> {
        if jail.ordered.load(Ordering::Relaxed) {
            Ok(())
        } else {
            self.send(&Request::Discard { name: jail.name }, &[])
        }
    }

    /// Makes jails until enough wait.
    fn fill(&self) -> Result<(), Failure> {
        while self.stock().ready.len() < self.pool.size {
            let toolchains = self.stock().toolchains.clone();
            let jail = self.make(self.pool.identity)?;
            let mut stock = self.stock();
            // One that was made from an older image is not for later.
            if stock.toolchains == toolchains {
                stock.ready.push(jail);
            } else {
                self.put_away(jail)?;
            }
        }
        Ok(())
    }
}

/// Whose a directory is.
pub(crate) fn owner(directory: &OwnedFd) -> Result<Identity, Failure> {
    let found = fstat(directory).map_err(Failure::io("look at a directory of the view"))?;
    Ok(Identity { uid: found.st_uid, gid: found.st_gid })
}

/// Starts the spawner on a thread that stays until it ends: the kernel ties its life to the thread that started it.
fn keep(program: &Path, backend: Backend, socket: OwnedFd) -> std::io::Result<(JoinHandle<()>, OwnedFd)> {
    let mut command = Command::new(program);
    let name = match backend {
        Backend::Native => spawner::NAME,
        Backend::Bwrap => launcher::NAME,
    };
    command.arg0(name).env_clear().stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
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
