//! The jail as the host sees it: a spawner that is kept, and programs that are run.
//!
//! `run` comes back when the program and everything that it started are dead, whatever they do: output is bounded, time is
//! bounded, and a process that keeps a pipe open holds nobody up. The host never forks: it starts its own binary once and
//! talks to that.
//!
//! Not here: how a program is confined. That happens in the spawner and in the jail.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{getegid, geteuid};

use ringfence_kernel::Shown;

use crate::bwrap::{Backend, Fallback, falls_back};
use crate::cgroup::Cgroups;
use crate::environment;
use crate::job::{Ended, Failure, Job, Watch};
use crate::message::{Identity, LONGEST_ORDER, Order, ShownDirectory};
use crate::run::Run;
use crate::sys;
use crate::toolchains::Toolchain;
use crate::walls::{self, Standing};
use crate::warden::{Claimed, Pool, Warden, owner};

/// The user that programs are when root started us, where the host has it: one that nobody is.
const NOBODY_ELSE: u32 = 2_000_000_000;
/// The one for containers, which have few users.
const NOBODY: u32 = 65_534;

/// What a sandbox is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Our own binary, whose `main` begins with `take_part`.
    pub program: PathBuf,
    /// How many jails wait, built ahead. With none, each is built when it is asked for.
    pub pool: u32,
    /// What jobs will bring. Others are possible, but the first run of each list waits for it.
    pub toolchains: Vec<Toolchain>,
    /// What to do where namespaces are refused.
    pub fallback: Fallback,
}

impl Settings {
    /// The running binary, and a small pool.
    pub fn new() -> Self {
        Self { program: "/proc/self/exe".into(), pool: 2, toolchains: Vec::new(), fallback: Fallback::default() }
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
    backend: Backend,
    /// Whom programs are unless the workspace's file system makes that impossible.
    identity: Identity,
    /// Nothing after the spawner died, until the next run.
    warden: Mutex<Option<Arc<Warden>>>,
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
        let cgroups = Cgroups::find();
        let warden = first_warden(&settings, identity, &cgroups)?;
        let (backend, warden) = (warden.backend(), Mutex::new(Some(Arc::new(warden))));
        Ok(Self { settings, backend, identity, warden, cgroups, walls: OnceLock::new() })
    }

    /// Which walls stand here. Found out when first asked.
    pub fn walls(&self) -> &[Standing] {
        self.walls.get_or_init(|| walls::probe(&self.settings.program))
    }

    /// Runs a program to its end, and to the end of all that it started.
    pub fn run(&self, job: &Job<'_>, watch: &dyn Watch) -> Result<Ended, Failure> {
        let warden = self.warden()?;
        let result = self.run_under(&warden, job, watch);
        if matches!(result, Err(Failure::Lost(_))) && warden.is_gone() {
            let mut now = self.lock();
            if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &warden)) {
                *now = None;
            }
        }
        result
    }

    fn run_under(&self, warden: &Warden, job: &Job<'_>, watch: &dyn Watch) -> Result<Ended, Failure> {
        let has_egress = job.egress.is_some();
        let env = environment::fixed(&environment::told(&job.env, has_egress), job.toolchains, has_egress)?;
        let (places, identity) = self.places(warden, job)?;
        let jail = warden.claim(identity, shown_by(job.toolchains), &job.limits)?;
        let order = order(job, env, &places, jail.has_cgroup());
        let result = order.and_then(|order| run_in(warden, &jail, &order, &places, job, watch));
        warden.spent(jail);
        result
    }

    /// For root: mounts on which the owner's files are the jail's user's. For others, and where that cannot be: the held
    /// directories, and a program that is the owner.
    fn places<'a>(&self, warden: &Warden, job: &'a Job<'_>) -> Result<(Vec<Place<'a>>, Identity), Failure> {
        let views = std::iter::once(&job.view.workspace).chain(&job.view.beside);
        let held = || views.clone().map(|shown| Place::Held(&shown.directory)).collect();
        if !geteuid().is_root() {
            return Ok((held(), self.identity));
        }
        if self.backend == Backend::Bwrap {
            return Ok((held(), not_root(&job.view.workspace, "that the system's bwrap shows as it is")?));
        }
        match warden.mapped(&job.view.workspace.directory, self.identity)? {
            Ok(workspace) => {
                let beside = job.view.beside.iter().map(|shown| {
                    let mapped = warden.mapped(&shown.directory, self.identity)?;
                    Ok(mapped.map_or(Place::Held(&shown.directory), Place::Mount))
                });
                let places =
                    std::iter::once(Ok(Place::Mount(workspace))).chain(beside).collect::<Result<_, Failure>>()?;
                Ok((places, self.identity))
            }
            Err(cause) => {
                let why = format!("on a file system that cannot map owners ({cause})");
                Ok((held(), not_root(&job.view.workspace, &why)?))
            }
        }
    }

    /// The one that runs, or a new one after that died.
    fn warden(&self) -> Result<Arc<Warden>, Failure> {
        let mut now = self.lock();
        if let Some(warden) = now.as_ref() {
            return Ok(Arc::clone(warden));
        }
        let new = Arc::new(start_warden(&self.settings, self.backend, self.identity, &self.cgroups)?);
        *now = Some(Arc::clone(&new));
        Ok(new)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Warden>>> {
        self.warden.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// By whoever may build jails here: we ourselves, or the system's `bwrap` where only that may.
fn first_warden(settings: &Settings, identity: Identity, cgroups: &Cgroups) -> Result<Warden, Failure> {
    let start = |backend| start_warden(settings, backend, identity, cgroups);
    match settings.fallback {
        Fallback::None => start(Backend::Native),
        Fallback::Forced => start(Backend::Bwrap),
        Fallback::Bwrap => match start(Backend::Native) {
            Err(Failure::Unavailable { .. }) if falls_back(&walls::probe(&settings.program)) => start(Backend::Bwrap),
            started => started,
        },
    }
}

fn start_warden(
    settings: &Settings,
    backend: Backend,
    identity: Identity,
    cgroups: &Cgroups,
) -> Result<Warden, Failure> {
    // `bwrap` makes none ahead.
    let size = if backend == Backend::Native { settings.pool as usize } else { 0 };
    let pool = Pool { backend, size, identity, cgroups: cgroups.clone() };
    Warden::start(&settings.program, pool, shown_by(&settings.toolchains))
}

/// Gives a jail its order, and follows the run to its end.
fn run_in(
    warden: &Warden,
    jail: &Claimed,
    order: &Order,
    places: &[Place<'_>],
    job: &Job<'_>,
    watch: &dyn Watch,
) -> Result<Ended, Failure> {
    let text = order.write().map_err(Failure::io("write its order"))?;
    let (output, their_output) = pipe_with(PipeFlags::CLOEXEC).map_err(Failure::io("make a pipe"))?;
    let (errors, their_errors) = pipe_with(PipeFlags::CLOEXEC).map_err(Failure::io("make a pipe"))?;
    let mut descriptors = vec![text.as_fd(), their_output.as_fd(), their_errors.as_fd()];
    descriptors.extend(places.iter().map(Place::descriptor));
    descriptors.extend(job.input.map(AsFd::as_fd));
    descriptors.extend(job.egress.as_ref().map(AsFd::as_fd));
    // With the one that the spawner adds.
    if descriptors.len() >= sys::MOST_DESCRIPTORS {
        return Err(Failure::unavailable("the view has too many mounts", "mount fewer beside the workspace"));
    }
    warden.order(jail, &descriptors)?;
    // From here on only the jail holds the other ends.
    drop(descriptors);
    drop((their_output, their_errors));
    Run::begin(job, watch, jail, [output, errors])?.finish()
}

/// What the spawner and the jail are told.
fn order(job: &Job<'_>, env: Vec<CString>, places: &[Place<'_>], memory_kept: bool) -> Result<Order, Failure> {
    let arguments: usize = job.argv.iter().map(|argument| argument.len()).sum();
    if arguments + job.script.bytes.len() > LONGEST_ORDER / 2 {
        return Err(Failure::Io("take a script and arguments of this size", Errno::TOOBIG.into()));
    }
    let views = std::iter::once(&job.view.workspace).chain(&job.view.beside);
    Ok(Order {
        argv: job.argv.clone(),
        env: env.into_iter().map(|one| OsString::from_vec(one.into_bytes())).collect(),
        script_name: job.script.name.into(),
        script: job.script.bytes.clone(),
        limits: job.limits.clone(),
        shown: views.zip(places).map(|(shown, place)| described(shown, place)).collect::<Result<_, _>>()?,
        memory_kept,
        has_input: job.input.is_some(),
        egress: job.egress.is_some(),
        cargo_home: job.egress.as_ref().and_then(|_| environment::shown_cargo_home(job.toolchains)).unwrap_or_default(),
    })
}

/// How a directory of the view gets into the jail.
enum Place<'a> {
    /// As a mount to be attached.
    Mount(OwnedFd),
    /// To be found again by the spawner.
    Held(&'a OwnedFd),
}

impl Place<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
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

/// The owner of a workspace, for a program that has to be that.
fn not_root(workspace: &Shown, why: &str) -> Result<Identity, Failure> {
    let owner = owner(&workspace.directory)?;
    if owner.uid != 0 {
        return Ok(owner);
    }
    Err(Failure::unavailable(
        format!("the workspace is root's, {why}"),
        "give it to another user, or start ringfence as a plain user",
    ))
}

fn shown_by(toolchains: &[Toolchain]) -> Vec<PathBuf> {
    toolchains.iter().flat_map(|toolchain| &toolchain.shown).cloned().collect()
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
