//! The sandbox as the host uses it: a spawner that is kept, and programs that are run.
//!
//! `run` returns when the program and all of its descendants are dead, whatever they do: output is bounded, time is
//! bounded, and a process that keeps a pipe open does not block it. The host never forks: it starts its own binary once
//! and sends requests to that.
//!
//! Not here: how a program is confined. That happens in the spawner and in the jail.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, OnceLock};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{getegid, geteuid};

use ringfence_kernel::ExposedDir;
use ringfence_kernel::sync::Mutex;

use crate::bwrap::{JailBackend, JailFallback, needs_bwrap_fallback};
use crate::cgroup::CgroupManager;
use crate::environment::{self, RunEnvironmentError};
use crate::isolation;
use crate::isolation_status::IsolationStatus;
use crate::job::{JailError, JailFile, JailJob, OutputCapture, ProgramObserver, RunResult};
use crate::protocol::{JailUser, MAX_RUN_SPEC_BYTES, RunFile, RunMount, RunSpec};
use crate::run::ProgramRun;
use crate::spawner_handle::{JailLease, JailPoolConfig, SpawnerHandle, owner};
use crate::sys;
use crate::toolchains::Toolchain;
use crate::wrapped::WrappedSource;
use crate::wrapped_environment::WrappedEnvironment;

/// User ID of programs when root started us: one that no user has.
const RESERVED_UID: u32 = 2_000_000_000;
/// The one for containers, which have few users.
const OVERFLOW_UID: u32 = 65_534;

/// Settings of a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxSettings {
    /// Our own binary, whose `main` begins with `run_helper_if_requested`.
    pub program: PathBuf,
    /// Number of jails that are built ahead. With 0, each is built on request.
    pub pool: u32,
    /// Toolchains of later jobs. Others are possible, but the first run of each list waits for it.
    pub toolchains: Vec<Toolchain>,
    /// Fallback where namespaces are denied.
    pub fallback: JailFallback,
}

impl SandboxSettings {
    /// The running binary, and a small pool.
    pub fn new() -> Self {
        Self { program: "/proc/self/exe".into(), pool: 2, toolchains: Vec::new(), fallback: JailFallback::default() }
    }
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs programs, each in a jail of its own. Any number of threads may.
#[derive(Debug)]
pub struct Sandbox {
    settings: SandboxSettings,
    backend: JailBackend,
    /// The user of programs, unless the workspace's file system makes that impossible.
    identity: JailUser,
    /// Nothing after the spawner died, until the next run.
    spawner: Mutex<Option<Arc<SpawnerHandle>>>,
    cgroups: CgroupManager,
    isolation: OnceLock<Vec<IsolationStatus>>,
}

impl Sandbox {
    /// Starts the spawner, and waits until it can make jails.
    pub fn start(settings: SandboxSettings) -> Result<Self, JailError> {
        let identity = if geteuid().is_root() {
            reserved_user()?
        } else {
            JailUser { uid: geteuid().as_raw(), gid: getegid().as_raw() }
        };
        let cgroups = CgroupManager::detect();
        let spawner = start_backend(&settings, identity, &cgroups)?;
        let (backend, spawner) = (spawner.backend(), Mutex::new(Some(Arc::new(spawner))));
        Ok(Self { settings, backend, identity, spawner, cgroups, isolation: OnceLock::new() })
    }

    /// Availability of each isolation mechanism here. Probed on first use.
    pub fn isolation(&self) -> &[IsolationStatus] {
        self.isolation.get_or_init(|| isolation::probe(&self.settings.program))
    }

    /// Runs a program to its end, and to the end of all that it started.
    pub fn run(&self, job: &JailJob<'_>, watch: &dyn ProgramObserver) -> Result<RunResult, JailError> {
        let spawner = self.spawner()?;
        let result = self.run_with(&spawner, job, watch);
        if matches!(result, Err(JailError::UnexpectedExit(_))) && spawner.is_dead() {
            let mut now = self.lock();
            if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &spawner)) {
                *now = None;
            }
        }
        result
    }

    fn run_with(
        &self,
        spawner: &Arc<SpawnerHandle>,
        job: &JailJob<'_>,
        watch: &dyn ProgramObserver,
    ) -> Result<RunResult, JailError> {
        let env = run_environment(job)?;
        if let Some(wrapped) = job.wrapped {
            self.check_wrapped(wrapped)?;
        }
        let (sources, identity) = self.mount_sources(spawner, job)?;
        let wrapped = job.wrapped.map(|wrapped| WrappedSource::new(spawner, job, wrapped, identity)).transpose()?;
        let jail = match job.wrapped {
            None => spawner.lease(identity, toolchain_paths(job.toolchains), &job.limits, job.network)?,
            Some(wrapped) => {
                let (identity, plan) = (wrapped.id_mapping(identity), wrapped.image_plan(job.toolchains));
                spawner.create_wrapped(identity, wrapped.kind(), &plan, &job.limits)?
            }
        };
        let sources = RunSources { mounts: sources, wrapped };
        let spec = run_spec(job, env, &sources, jail.has_cgroup());
        let result = spec.and_then(|spec| run_in(spawner, &jail, &spec, &sources, job, watch));
        spawner.release(jail);
        result
    }

    fn check_wrapped(&self, wrapped: &WrappedEnvironment<'_>) -> Result<(), JailError> {
        if self.backend == JailBackend::Bwrap {
            return Err(JailError::unavailable(
                "a wrapped program needs namespaces of our own, and only the system's bwrap may create them here",
                "run `ringfence doctor` for advice on how to permit user namespaces",
            ));
        }
        wrapped.check()
    }

    /// Whether programs that name the same network share one. The system's `bwrap` gives each its own.
    pub(crate) fn shares_networks(&self) -> bool {
        self.backend == JailBackend::Native
    }

    /// Forgets a shared network. Programs in it keep it.
    pub fn close_network(&self, network: u64) {
        // After the spawner died there is nothing to forget.
        if let Some(spawner) = self.lock().clone() {
            spawner.close_network(network);
        }
    }

    /// For root: mounts on which the owner's files are the jail's user's. For others, and where that cannot be: the held
    /// directories, and a program that is the owner.
    fn mount_sources<'a>(
        &self,
        spawner: &SpawnerHandle,
        job: &'a JailJob<'_>,
    ) -> Result<(Vec<MountSource<'a>>, JailUser), JailError> {
        let views = std::iter::once(&job.view.workspace).chain(&job.view.read_only_mounts);
        let held = || views.clone().map(|shown| MountSource::HeldDir(&shown.directory)).collect();
        if !geteuid().is_root() {
            return Ok((held(), self.identity));
        }
        if self.backend == JailBackend::Bwrap {
            return Ok((held(), workspace_owner(&job.view.workspace, "and the system's bwrap cannot map its owner")?));
        }
        match spawner.idmapped_mount(&job.view.workspace.directory, self.identity)? {
            Ok(workspace) => {
                let beside = job.view.read_only_mounts.iter().map(|shown| {
                    let mapped = spawner.idmapped_mount(&shown.directory, self.identity)?;
                    Ok(mapped.map_or(MountSource::HeldDir(&shown.directory), MountSource::IdmappedMount))
                });
                let sources = std::iter::once(Ok(MountSource::IdmappedMount(workspace)))
                    .chain(beside)
                    .collect::<Result<_, JailError>>()?;
                Ok((sources, self.identity))
            }
            Err(cause) => {
                let why = format!("and its file system cannot map owners ({cause})");
                Ok((held(), workspace_owner(&job.view.workspace, &why)?))
            }
        }
    }

    /// The one that runs, or a new one after that died.
    fn spawner(&self) -> Result<Arc<SpawnerHandle>, JailError> {
        let mut now = self.lock();
        if let Some(spawner) = now.as_ref() {
            return Ok(Arc::clone(spawner));
        }
        let new = Arc::new(start_spawner(&self.settings, self.backend, self.identity, &self.cgroups)?);
        *now = Some(Arc::clone(&new));
        Ok(new)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<SpawnerHandle>>> {
        self.spawner.lock()
    }
}

/// Starts the backend that may build jails here: our spawner, or the system's `bwrap` where only that may.
fn start_backend(
    settings: &SandboxSettings,
    identity: JailUser,
    cgroups: &CgroupManager,
) -> Result<SpawnerHandle, JailError> {
    let start = |backend| start_spawner(settings, backend, identity, cgroups);
    match settings.fallback {
        JailFallback::None => start(JailBackend::Native),
        JailFallback::Forced => start(JailBackend::Bwrap),
        JailFallback::Bwrap => match start(JailBackend::Native) {
            Err(JailError::Unavailable { .. }) if needs_bwrap_fallback(&isolation::probe(&settings.program)) => {
                start(JailBackend::Bwrap)
            }
            started => started,
        },
    }
}

fn start_spawner(
    settings: &SandboxSettings,
    backend: JailBackend,
    identity: JailUser,
    cgroups: &CgroupManager,
) -> Result<SpawnerHandle, JailError> {
    // `bwrap` makes none ahead.
    let size = if backend == JailBackend::Native { settings.pool as usize } else { 0 };
    let pool = JailPoolConfig { backend, size, identity, cgroups: cgroups.clone() };
    SpawnerHandle::start(&settings.program, pool, toolchain_paths(&settings.toolchains))
}

/// Gives a jail its order, and follows the run to its end.
fn run_in(
    spawner: &Arc<SpawnerHandle>,
    jail: &JailLease,
    spec: &RunSpec,
    sources: &RunSources<'_>,
    job: &JailJob<'_>,
    watch: &dyn ProgramObserver,
) -> Result<RunResult, JailError> {
    let text = spec.write().map_err(JailError::io("write its run spec"))?;
    let (output, their_output) = pipe_with(PipeFlags::CLOEXEC).map_err(JailError::io("make a pipe"))?;
    let (errors, their_errors) = match job.output {
        OutputCapture::Separate | OutputCapture::StreamedSeparately => {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(JailError::io("make a pipe"))?;
            (Some(ours), Some(theirs))
        }
        OutputCapture::Merged | OutputCapture::Streamed => (None, None),
    };
    let error_stream = their_errors.as_ref().unwrap_or(&their_output);
    let mut descriptors = vec![text.as_fd(), their_output.as_fd(), error_stream.as_fd()];
    descriptors.extend(sources.mounts.iter().map(MountSource::descriptor));
    descriptors.extend(sources.wrapped.iter().flat_map(WrappedSource::descriptors));
    descriptors.extend(job.stdin.map(AsFd::as_fd));
    descriptors.extend(job.directory_report.map(AsFd::as_fd));
    descriptors.extend(job.egress.as_ref().map(AsFd::as_fd));
    // With the one that the spawner adds.
    if descriptors.len() >= sys::MAX_DESCRIPTORS {
        return Err(JailError::unavailable("there are too many mounts", "declare fewer mounts"));
    }
    spawner.start_run(jail, &descriptors)?;
    // From here on only the jail holds the other ends.
    drop(descriptors);
    drop((their_output, their_errors));
    ProgramRun::start(job, watch, (spawner, jail), [Some(output), errors])?.finish()
}

/// The run spec for the spawner and the jail.
fn run_spec(
    job: &JailJob<'_>,
    env: Vec<CString>,
    sources: &RunSources<'_>,
    memory_kept: bool,
) -> Result<RunSpec, JailError> {
    let arguments: usize = job.argv.iter().map(|argument| argument.len()).sum();
    let placed = job.wrapped.iter().flat_map(|wrapped| &wrapped.files).map(|file| file.contents.len());
    let files: usize = job.files.iter().map(|file| file.bytes.len()).chain(placed).sum();
    if arguments + files > MAX_RUN_SPEC_BYTES / 2 {
        return Err(JailError::Io("pass files and arguments of this size", Errno::TOOBIG.into()));
    }
    let views = std::iter::once(&job.view.workspace).chain(&job.view.read_only_mounts);
    let mounts = views.zip(&sources.mounts).map(|(shown, source)| run_mount(shown, source));
    let mut mounts: Vec<RunMount> = mounts.collect::<Result<_, _>>()?;
    if let Some(workspace) = mounts.first_mut() {
        workspace.masked.extend(job.masked.iter().cloned());
    }
    let wrapped = sources.wrapped.as_ref().map(|wrapped| wrapped.spec.clone());
    Ok(RunSpec {
        argv: job.argv.clone(),
        env: env.into_iter().map(|one| OsString::from_vec(one.into_bytes())).collect(),
        files: job.files.iter().map(run_file).collect(),
        limits: job.limits.clone(),
        mounts,
        memory_by_cgroup: memory_kept,
        has_stdin: job.stdin.is_some(),
        reports_directory: job.directory_report.is_some(),
        egress: job.egress.is_some(),
        cargo_home: own_cargo_home(job).unwrap_or_default(),
        wrapped,
    })
}

/// Cargo's home on the host, if the run gets one of its own above it.
fn own_cargo_home(job: &JailJob<'_>) -> Option<PathBuf> {
    let is_wanted = job.egress.is_some() && !job.env.contains_key("CARGO_HOME");
    is_wanted.then(|| environment::host_cargo_home(job.toolchains)).flatten()
}

/// All variables of a run.
fn run_environment(job: &JailJob<'_>) -> Result<Vec<CString>, RunEnvironmentError> {
    let has_egress = job.egress.is_some();
    match job.wrapped {
        Some(wrapped) => environment::wrapped_environment(&job.env, &wrapped.identity, job.toolchains, has_egress),
        None => {
            let caller = environment::with_proxy_vars(&job.env, has_egress);
            environment::run_environment(&caller, job.toolchains, has_egress)
        }
    }
}

/// The directories of one run, as the spawner gets them.
struct RunSources<'a> {
    /// The workspace first.
    mounts: Vec<MountSource<'a>>,
    wrapped: Option<WrappedSource>,
}

/// The way a directory of the view is mounted into the jail.
enum MountSource<'a> {
    /// As a mount to be attached.
    IdmappedMount(OwnedFd),
    /// To be found again by the spawner.
    HeldDir(&'a OwnedFd),
}

impl MountSource<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::IdmappedMount(mount) => mount.as_fd(),
            Self::HeldDir(directory) => directory.as_fd(),
        }
    }
}

fn run_file(file: &JailFile) -> RunFile {
    let JailFile { name, bytes, over } = file;
    RunFile { name: name.into(), contents: bytes.clone(), over: over.clone().unwrap_or_default() }
}

fn run_mount(shown: &ExposedDir, source: &MountSource<'_>) -> Result<RunMount, JailError> {
    let plain = !shown.alias.is_empty() && !shown.alias.contains(['/', '\0']) && !shown.alias.starts_with('.');
    if !plain {
        return Err(JailError::unavailable("a mount alias is not a valid file name", "rename the mount"));
    }
    Ok(RunMount {
        alias: shown.alias.clone().into(),
        path: shown.path.clone(),
        is_mount: matches!(source, MountSource::IdmappedMount(_)),
        masked: shown.masked.iter().chain(&shown.hidden).cloned().collect(),
    })
}

/// The owner of a workspace, for a program that has to be that.
fn workspace_owner(workspace: &ExposedDir, why: &str) -> Result<JailUser, JailError> {
    let owner = owner(&workspace.directory)?;
    if owner.uid != 0 {
        return Ok(owner);
    }
    Err(JailError::unavailable(
        format!("the workspace belongs to root, {why}"),
        "change its owner, or start ringfence as a user other than root",
    ))
}

fn toolchain_paths(toolchains: &[Toolchain]) -> Vec<PathBuf> {
    toolchains.iter().flat_map(|toolchain| &toolchain.shown).cloned().collect()
}

/// An unused user and group of our own namespace.
fn reserved_user() -> Result<JailUser, JailError> {
    let has = |file: &str, id: u32| {
        let map = std::fs::read_to_string(Path::new("/proc/self").join(file)).unwrap_or_default();
        map.lines().any(|line| {
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            matches!(numbers[..], [first, _, count] if (first..first.saturating_add(count)).contains(&id.into()))
        })
    };
    [RESERVED_UID, OVERFLOW_UID]
        .into_iter()
        .find(|&id| has("uid_map", id) && has("gid_map", id))
        .map(|id| JailUser { uid: id, gid: id })
        .ok_or_else(|| {
            JailError::unavailable(
                "ringfence runs as root, and there is no other user to run programs as",
                "start ringfence as a user other than root, or map more users into the container",
            )
        })
}
