//! The jail as the host sees it: a spawner that is kept, and programs that are run.
//!
//! `run` comes back when the program and everything that it started are dead, whatever they do: output is bounded, time is
//! bounded, and a process that keeps a pipe open holds nobody up. The host never forks: it starts its own binary once and
//! talks to that.
//!
//! Not here: how a program is confined. That happens in the spawner and in the jail.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, pidfd_open, pidfd_send_signal};

use ringfence_kernel::Shown;

use crate::cgroup::{Cgroup, Cgroups};
use crate::environment;
use crate::job::{Ended, Failure, Job, Watch};
use crate::message::{Identity, LONGEST, LONGEST_ORDER, Order, Reply, Request, ShownDirectory, write_paths};
use crate::mounts::{READ_ONLY, copy};
use crate::run::Run;
use crate::spawner;
use crate::sys::{self, Reach};
use crate::toolchains::Toolchain;
use crate::walls::{self, Standing};

/// The user that programs are when root started us, where the host has it: one that nobody is.
const NOBODY_ELSE: u32 = 2_000_000_000;
/// The one for containers, which have few users.
const NOBODY: u32 = 65_534;

/// How long the spawner may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a sandbox is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Our own binary, whose `main` begins with `take_part`.
    pub program: PathBuf,
    /// How many jails wait, built ahead. With none, each is built when it is asked for.
    pub pool: u32,
    /// What jobs will bring. Others are possible, but the first run of each list waits for it.
    pub toolchains: Vec<Toolchain>,
}

impl Settings {
    /// The running binary, and a small pool.
    pub fn new() -> Self {
        Self { program: "/proc/self/exe".into(), pool: 2, toolchains: Vec::new() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs programs, each in a jail of its own. Any number of threads may.
#[derive(Debug)]
pub struct Sandbox {
    settings: Settings,
    /// Whom programs are unless the workspace's file system makes that impossible.
    identity: Identity,
    /// Nothing after the spawner died, until the next run.
    spawner: Mutex<Option<Arc<Spawner>>>,
    cgroups: Cgroups,
    walls: OnceLock<Vec<Standing>>,
}

impl Sandbox {
    /// Starts the spawner, and waits until it can make jails.
    pub fn start(settings: Settings) -> Result<Self, Failure> {
        let identity = if geteuid().is_root() {
            reserved()?
        } else {
            Identity { uid: geteuid().as_raw(), gid: getegid().as_raw() }
        };
        let spawner = Some(Arc::new(Spawner::start(&settings, identity)?));
        let (cgroups, walls) = (Cgroups::find(), OnceLock::new());
        Ok(Self { settings, identity, spawner: Mutex::new(spawner), cgroups, walls })
    }

    /// Which walls stand here. Found out when first asked.
    pub fn walls(&self) -> &[Standing] {
        self.walls.get_or_init(|| walls::probe(&self.settings.program))
    }

    /// Runs a program to its end, and to the end of all that it started.
    pub fn run(&self, job: &Job<'_>, watch: &dyn Watch) -> Result<Ended, Failure> {
        if job.egress.is_some() {
            return Err(Failure::unavailable("there is no network in a jail yet", "run without network"));
        }
        let spawner = self.spawner()?;
        let result = self.run_by(&spawner, job, watch);
        if matches!(result, Err(Failure::Lost(_))) {
            let mut now = self.lock();
            if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &spawner)) {
                *now = None;
            }
        }
        result
    }

    fn run_by(&self, spawner: &Spawner, job: &Job<'_>, watch: &dyn Watch) -> Result<Ended, Failure> {
        let cgroup = self.cgroups.make(&job.limits).map_err(Failure::io("make a cgroup"))?;
        let (mut order, shown, identity) = self.prepare(spawner, job)?;
        order.memory_kept = cgroup.is_some();
        order.cgroups = cgroup.iter().flat_map(Cgroup::doors).count() as u32;
        let text = order.write().map_err(Failure::io("write its order"))?;

        let (output, their_output) = pipe_with(PipeFlags::CLOEXEC).map_err(Failure::io("make a pipe"))?;
        let (errors, their_errors) = pipe_with(PipeFlags::CLOEXEC).map_err(Failure::io("make a pipe"))?;
        let (reply, their_reply) = sys::message_pair().map_err(Failure::io("make a socket"))?;
        let mut descriptors = vec![their_reply.as_fd(), text.as_fd(), their_output.as_fd(), their_errors.as_fd()];
        descriptors.extend(shown.iter().map(Place::descriptor));
        descriptors.extend(cgroup.iter().flat_map(Cgroup::doors));
        if descriptors.len() > sys::MOST_DESCRIPTORS {
            return Err(Failure::unavailable("the view has too many mounts", "mount fewer beside the workspace"));
        }

        spawner.send(&Request::Run { identity }, &descriptors)?;
        // From here on only the jail holds the other ends.
        drop(descriptors);
        drop((their_reply, their_output, their_errors, shown, text));
        Run::begin(job, watch, cgroup, [output, errors], reply)?.finish()
    }

    /// What the spawner is told, the descriptors of the view, and who the program is.
    fn prepare<'a>(&self, spawner: &Spawner, job: &'a Job<'_>) -> Result<(Order, Vec<Place<'a>>, Identity), Failure> {
        let env = environment::fixed(&job.env, job.toolchains)?;
        let (places, identity) = self.places(spawner, job)?;
        let views = std::iter::once(&job.view.workspace).chain(&job.view.beside);
        let order = Order {
            argv: job.argv.clone(),
            env: env.into_iter().map(|one| std::os::unix::ffi::OsStringExt::from_vec(one.into_bytes())).collect(),
            script_name: job.script.name.into(),
            script: job.script.bytes.clone(),
            limits: job.limits.clone(),
            shown: views.zip(&places).map(|(shown, place)| described(shown, place)).collect::<Result<_, _>>()?,
            toolchains: shown_by(job.toolchains),
            cgroups: 0,
            memory_kept: false,
        };
        let arguments: usize = job.argv.iter().map(|argument| argument.len()).sum();
        if arguments + job.script.bytes.len() > LONGEST_ORDER / 2 {
            return Err(Failure::Io("take a script and arguments of this size", Errno::TOOBIG.into()));
        }
        Ok((order, places, identity))
    }

    /// For root: mounts on which the owner's files are the jail's user's. For others, and where that cannot be: the held
    /// directories, and a program that is the owner.
    fn places<'a>(&self, spawner: &Spawner, job: &'a Job<'_>) -> Result<(Vec<Place<'a>>, Identity), Failure> {
        let views = std::iter::once(&job.view.workspace).chain(&job.view.beside);
        let held = || views.clone().map(|shown| Place::Held(&shown.directory)).collect();
        if !geteuid().is_root() {
            return Ok((held(), self.identity));
        }
        match spawner.mapped(&job.view.workspace.directory, self.identity)? {
            Ok(workspace) => {
                let beside = job.view.beside.iter().map(|shown| {
                    let mapped = spawner.mapped(&shown.directory, self.identity)?;
                    Ok(mapped.map_or(Place::Held(&shown.directory), Place::Mount))
                });
                let places =
                    std::iter::once(Ok(Place::Mount(workspace))).chain(beside).collect::<Result<_, Failure>>()?;
                Ok((places, self.identity))
            }
            Err(cause) => {
                let owner = owner(&job.view.workspace.directory)?;
                if owner.uid == 0 {
                    return Err(Failure::unavailable(
                        format!("the workspace is root's, on a file system that cannot map owners ({cause})"),
                        "give it to another user, or start ringfence as a plain user",
                    ));
                }
                Ok((held(), owner))
            }
        }
    }

    /// The one that runs, or a new one after that died.
    fn spawner(&self) -> Result<Arc<Spawner>, Failure> {
        let mut now = self.lock();
        if let Some(spawner) = now.as_ref() {
            return Ok(Arc::clone(spawner));
        }
        let new = Arc::new(Spawner::start(&self.settings, self.identity)?);
        *now = Some(Arc::clone(&new));
        Ok(new)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Spawner>>> {
        self.spawner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a directory of the view gets into the jail.
enum Place<'a> {
    /// As a mount to be attached.
    Mount(OwnedFd),
    /// To be found again by the spawner.
    Held(&'a OwnedFd),
}

impl Place<'_> {
    fn descriptor(&self) -> rustix::fd::BorrowedFd<'_> {
        match self {
            Self::Mount(mount) => mount.as_fd(),
            Self::Held(directory) => directory.as_fd(),
        }
    }
}

fn described(shown: &Shown, place: &Place<'_>) -> Result<ShownDirectory, Failure> {
    let plain = !shown.alias.is_empty() && !shown.alias.contains(['/', '\0']) && !shown.alias.starts_with('.');
    if !plain {
        return Err(Failure::unavailable("a mount has a name that is no file name", "give it another"));
    }
    Ok(ShownDirectory {
        alias: shown.alias.clone().into(),
        path: shown.path.clone(),
        mounted: matches!(place, Place::Mount(_)),
        covered: shown.masked.iter().chain(&shown.hidden).cloned().collect(),
    })
}

fn shown_by(toolchains: &[Toolchain]) -> Vec<PathBuf> {
    toolchains.iter().flat_map(|toolchain| &toolchain.shown).cloned().collect()
}

fn owner(directory: &OwnedFd) -> Result<Identity, Failure> {
    let found = fstat(directory).map_err(Failure::io("look at a directory of the view"))?;
    Ok(Identity { uid: found.st_uid, gid: found.st_gid })
}

/// A user and group of our own namespace that nobody is.
fn reserved() -> Result<Identity, Failure> {
    let has = |file: &str, id: u32| {
        let map = std::fs::read_to_string(Path::new("/proc/self").join(file)).unwrap_or_default();
        map.lines().any(|line| {
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            matches!(numbers[..], [first, _, count] if (first..first.saturating_add(count)).contains(&id.into()))
        })
    };
    [NOBODY_ELSE, NOBODY]
        .into_iter()
        .find(|&id| has("uid_map", id) && has("gid_map", id))
        .map(|id| Identity { uid: id, gid: id })
        .ok_or_else(|| {
            Failure::unavailable(
                "root started us, and there is no other user for programs",
                "start ringfence as a plain user, or give the container more users",
            )
        })
}

/// A spawner, and the thread that it lives by.
#[derive(Debug)]
struct Spawner {
    socket: OwnedFd,
    process: OwnedFd,
    keeper: Option<JoinHandle<()>>,
    /// User namespaces that make owners the jail's user.
    maps: Mutex<HashMap<Identity, Arc<OwnedFd>>>,
}

impl Spawner {
    fn start(settings: &Settings, identity: Identity) -> Result<Self, Failure> {
        let starting = || Failure::io("start its spawner");
        let (socket, theirs) = sys::message_pair().map_err(Failure::io("start its spawner"))?;
        let toolchains = write_paths(&shown_by(&settings.toolchains)).map_err(starting())?;
        let request = Request::Start { pool: settings.pool, identity };
        sys::send(socket.as_fd(), &request.encode(), &[toolchains.as_fd()])
            .map_err(Failure::io("start its spawner"))?;

        let (keeper, process) = keep(&settings.program, theirs).map_err(starting())?;
        let spawner = Self { socket, process, keeper: Some(keeper), maps: Mutex::default() };
        let mut buffer = [0; LONGEST];
        match sys::receive(spawner.socket.as_fd(), &mut buffer).map(|(bytes, _)| Reply::decode(bytes)) {
            Ok(Ok(Reply::Ready)) => Ok(spawner),
            Ok(Ok(Reply::Failed(trouble))) => Err(trouble.into()),
            _ => Err(Failure::Lost("the spawner")),
        }
    }

    fn send(&self, request: &Request, descriptors: &[rustix::fd::BorrowedFd<'_>]) -> Result<(), Failure> {
        sys::send(self.socket.as_fd(), &request.encode(), descriptors).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Failure::Lost("the spawner"),
            other => Failure::Io("ask its spawner", other.into()),
        })
    }

    /// A read-only mount of a directory on which its owner is the jail's user, or why there is none.
    fn mapped(&self, directory: &OwnedFd, to: Identity) -> Result<Result<OwnedFd, Errno>, Failure> {
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
        let (reply, theirs) = sys::message_pair().map_err(Failure::io("make a socket"))?;
        self.send(&Request::Map { from, to }, &[theirs.as_fd()])?;
        drop(theirs);
        let mut buffer = [0; 64];
        let (bytes, descriptors) = sys::receive(reply.as_fd(), &mut buffer).map_err(Failure::io("ask its spawner"))?;
        match (Reply::decode(bytes), descriptors.into_iter().next()) {
            (Ok(Reply::Mapped), Some(map)) => {
                let map = Arc::new(map);
                maps.insert(from, Arc::clone(&map));
                Ok(map)
            }
            (Ok(Reply::Failed(trouble)), _) => Err(trouble.into()),
            _ => Err(Failure::Lost("the spawner")),
        }
    }
}

impl Drop for Spawner {
    /// When this is over, so is everything that it started.
    fn drop(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
        let patience = Timespec::try_from(PATIENCE).unwrap_or_default();
        if poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&patience)) == Ok(0) {
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Starts the spawner on a thread that stays until it ends: the kernel ties its life to the thread that started it.
fn keep(program: &Path, socket: OwnedFd) -> std::io::Result<(JoinHandle<()>, OwnedFd)> {
    let mut command = Command::new(program);
    command.arg0(spawner::NAME).env_clear().stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
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
