//! Lockdown before exec: limits, capabilities, Landlock and seccomp, in order.
//!
//! The order of the steps is the promise: no step needs what an earlier one took away, the filter of system calls comes
//! last, and the program starts only when all of them are done. A step that fails ends the process. Steps that are the
//! same for every program are made before there is a run spec.
//!
//! Not here: the rules themselves (`landlock_rules.rs`, `seccomp.rs`, `limits.rs`).

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, chdir, setrlimit, setsid, umask};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, UnshareFlags, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
    unshare_unsafe,
};

use crate::bwrap::JailBackend;
use crate::cargo_home::link_cargo_home;
use crate::environment::CARGO_HOME;
use crate::landlock_rules::{LandlockEnforcement, LandlockError, LandlockRules, writable_rules};
use crate::limits::MemoryLimiter;
use crate::protocol::{MAX_MESSAGE_BYTES, RunSpec, SetupError, SetupStep, SpawnerReply};
use crate::run_mounts::WORKSPACE;
use crate::seccomp::{SeccompError, SeccompFilters, install_with_recorded};
use crate::sys;

/// Writable paths, besides the workspace, which is not mounted yet at this time.
const WRITABLE: [&str; 2] = ["/tmp", "/dev/shm"];

/// Descriptor on which a shell reports its final directory: the last that every shell can name.
pub(crate) const DIRECTORY_REPORT: RawFd = 9;

/// The umask of a plain system: of programs, and of the processes that build their root.
pub(crate) const SYSTEM_UMASK: Mode = Mode::from_raw_mode(0o022);

/// The session of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramSession {
    /// It leads one of its own, without a terminal.
    Own,
    /// It is a job in that of the init process, which has a terminal.
    OnTerminal,
}

/// Does what can be done ahead, waits for an order on `socket`, and becomes its program, or says there why not.
pub(crate) fn run_child(
    socket: &OwnedFd,
    cgroup_fds: &[OwnedFd],
    filter: &SeccompFilters,
    backend: JailBackend,
    session: ProgramSession,
) -> ! {
    let entered =
        cgroup_fds.iter().try_for_each(|cgroup_fd| rustix::io::write(cgroup_fd, b"0").map(drop)).and_then(|()| {
            match backend {
                JailBackend::Native => unshare_cgroup_ns(),
                // It made that namespace too.
                JailBackend::Bwrap => Ok(()),
            }
        });
    let Ok(()) = sys::keep_only(&[socket.as_fd()]) else { sys::exit() };
    let socket = sys::inherited_fd(0);
    let entered = entered.map_err(|errno| LockdownError::from(SetupStep::Cgroup.failed()(errno)));
    let reply = match entered
        .and_then(|()| prepare(backend, session))
        .and_then(|rules| receive_and_exec(&socket, rules, filter, backend))
    {
        Ok(never) => match never {},
        Err(LockdownError::ProgramNotFound) => SpawnerReply::ProgramNotFound,
        Err(LockdownError::Setup(setup_error)) => SpawnerReply::Failed(setup_error),
    };
    let _ = reply.send(socket.as_fd(), &[]);
    sys::exit()
}

/// Makes the cgroup of this process the topmost that it sees. The group's name would reveal which process of the host
/// made it.
fn unshare_cgroup_ns() -> Result<(), Errno> {
    // SAFETY: this process has one thread, and its descriptors stay its own.
    unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }
}

enum LockdownError {
    ProgramNotFound,
    Setup(SetupError),
}

impl From<SetupError> for LockdownError {
    fn from(setup_error: SetupError) -> Self {
        Self::Setup(setup_error)
    }
}

/// Steps that do not depend on the program: a session of its own, no input yet, and nothing to be gained by a
/// capability.
fn prepare(backend: JailBackend, session: ProgramSession) -> Result<LandlockRules, LockdownError> {
    let failed = || SetupStep::Start.failed::<Errno>();
    if session == ProgramSession::Own {
        setsid().map_err(failed())?;
    }
    sys::unblock_signals();
    umask(SYSTEM_UMASK);
    let nothing = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed())?;
    sys::dup_onto(nothing.as_fd(), 0).map_err(failed())?;
    match backend {
        JailBackend::Native => clear_bounding_set().map_err(SetupStep::Capabilities.failed())?,
        // It left no capability, not even the one to say so.
        JailBackend::Bwrap => check_no_capabilities().map_err(SetupStep::Capabilities.failed())?,
    }
    set_no_new_privs(true).map_err(SetupStep::Capabilities.failed())?;
    Ok(writable_rules(&WRITABLE.map(Path::new)).map_err(landlock_setup_error)?)
}

fn receive_and_exec(
    socket: &OwnedFd,
    rules: LandlockRules,
    filter: &SeccompFilters,
    backend: JailBackend,
) -> Result<Infallible, LockdownError> {
    let failed = || SetupStep::Order.failed::<Errno>();
    let mut buffer = [0; MAX_MESSAGE_BYTES];
    let (_, descriptors) = sys::receive(socket.as_fd(), &mut buffer).map_err(failed())?;
    let [text, output, errors, more @ ..] = &descriptors[..] else { return Err(failed()(Errno::BADMSG).into()) };
    let spec = RunSpec::read(text).map_err(failed())?;
    sys::dup_onto(output.as_fd(), 1).map_err(failed())?;
    sys::dup_onto(errors.as_fd(), 2).map_err(failed())?;
    if let Some(input) = more.first().filter(|_| spec.has_stdin || spec.has_terminal()) {
        sys::dup_onto(input.as_fd(), 0).map_err(failed())?;
    }
    let report = descriptors.last().filter(|_| spec.reports_directory);
    // Above the number that it gets, which one of these may have now.
    let report = report.map(|report| fcntl_dupfd_cloexec(report, DIRECTORY_REPORT + 1)).transpose().map_err(failed())?;
    // From here on there is nothing open but the streams, and the socket that closes with the change of programs.
    drop(descriptors);
    if let Some(report) = report {
        sys::dup_onto(report.as_fd(), DIRECTORY_REPORT).map_err(failed())?;
    }
    let rules = match backend {
        JailBackend::Native => rules.allow_writes(&writable_layers(&spec)).map_err(landlock_setup_error)?,
        JailBackend::Bwrap => rules,
    };
    lock_down(&spec, socket, rules, filter)
}

/// Directories with a layer above.
pub(crate) fn writable_layers(spec: &RunSpec) -> Vec<&Path> {
    match &spec.wrapped {
        Some(wrapped) => vec![&wrapped.workspace_path, &wrapped.home],
        None => vec![Path::new(WORKSPACE)],
    }
}

/// Enforces the rules of files that a program in a native jail has, on another process of the jail.
pub(crate) fn restrict_files(layers: &[PathBuf]) -> Result<(), Errno> {
    let writable: Vec<&Path> = WRITABLE.iter().map(Path::new).chain(layers.iter().map(PathBuf::as_path)).collect();
    let rules = writable_rules(&writable).map_err(|_| Errno::PERM)?;
    match rules.restrict_self() {
        Ok(LandlockEnforcement::None) | Err(_) => Err(Errno::PERM),
        Ok(_) => Ok(()),
    }
}

fn landlock_setup_error(_: LandlockError) -> SetupError {
    SetupStep::Landlock.failed()(Errno::PERM)
}

fn lock_down(
    spec: &RunSpec,
    socket: &OwnedFd,
    rules: LandlockRules,
    filter: &SeccompFilters,
) -> Result<Infallible, LockdownError> {
    let program = ExecSpec::from(spec)?;
    let workspace = spec.wrapped.as_ref().map_or(Path::new(WORKSPACE), |wrapped| &wrapped.workspace_path);
    chdir(workspace).map_err(SetupStep::Start.failed())?;
    if !spec.cargo_home.as_os_str().is_empty() {
        link_cargo_home(&spec.cargo_home, Path::new(CARGO_HOME));
    }
    let keeper = if spec.memory_by_cgroup { MemoryLimiter::Cgroup } else { MemoryLimiter::Rlimit };
    for (resource, limit) in spec.limits.rlimits(keeper) {
        setrlimit(resource, limit).map_err(SetupStep::Limits.failed())?;
    }
    if spec.wrapped.is_some() {
        setrlimit(Resource::Nofile, spec.limits.raised_open_files()).map_err(SetupStep::Limits.failed())?;
    }
    if rules.restrict_self().map_err(landlock_setup_error)? == LandlockEnforcement::None {
        return Err(SetupStep::Landlock.failed()(Errno::NOSYS).into());
    }
    drop_capabilities().map_err(SetupStep::Capabilities.failed())?;
    let recorded = spec.wrapped.as_ref().map(|wrapped| wrapped.recorded).filter(|recorded| !recorded.is_empty());
    let install = || match recorded.map(|recorded| install_with_recorded(keeper, recorded)).transpose()?.flatten() {
        Some(requests) => Ok(Some(requests)),
        None => filter.install(keeper),
    };
    let requests = install().map_err(|_: SeccompError| SetupStep::Seccomp.failed()(Errno::PERM))?;

    let (started, requests) = (SpawnerReply::Started { proc: true }, requests.as_slice());
    started.send(socket.as_fd(), &sys::borrowed(requests)).map_err(SetupStep::Start.failed())?;
    Err(program.exec())
}

/// No program that is started from here on gains a capability, and there is no way to change that.
fn clear_bounding_set() -> Result<(), Errno> {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits)?;
    clear_ambient_capability_set()?;
    for number in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // Past the last one that this kernel knows.
            Err(Errno::INVAL) => break,
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// Checks that there is no capability to be lost, and none to be gained.
fn check_no_capabilities() -> Result<(), Errno> {
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    let none = effective.union(permitted).union(inheritable).is_empty();
    if none { clear_ambient_capability_set() } else { Err(Errno::PERM) }
}

/// Drops all capabilities permanently.
pub(crate) fn drop_capabilities() -> Result<(), Errno> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Arguments of `execve` in the kernel's form, so that nothing is left to prepare in lockdown.
struct ExecSpec {
    /// Candidate paths, in order.
    paths: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl ExecSpec {
    fn from(spec: &RunSpec) -> Result<Self, LockdownError> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| SetupStep::Order.failed()(Errno::INVAL));
        let texts = |list: &[std::ffi::OsString]| list.iter().map(|one| text(one.as_bytes())).collect();
        let (argv, env): (Result<Vec<_>, _>, Result<Vec<_>, _>) = (texts(&spec.argv), texts(&spec.env));
        let name = spec.argv.first().map(|name| name.as_bytes()).unwrap_or_default();
        if name.is_empty() {
            return Err(LockdownError::ProgramNotFound);
        }
        let path = spec.env.iter().find_map(|one| one.as_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
        let places = if name.contains(&b'/') {
            vec![text(name)?]
        } else {
            let directories = path.split(|&byte| byte == b':').filter(|directory| directory.starts_with(b"/"));
            directories.map(|directory| text(&[directory, b"/", name].concat())).collect::<Result<_, _>>()?
        };
        Ok(Self { paths: places, argv: argv?, env: env? })
    }

    /// Comes back only with the reason why it could not.
    fn exec(&self) -> LockdownError {
        for path in &self.paths {
            match sys::execve(path, &self.argv, &self.env) {
                Errno::NOENT | Errno::NOTDIR | Errno::ACCESS => {}
                other => return LockdownError::Setup(SetupStep::Start.failed()(other)),
            }
        }
        LockdownError::ProgramNotFound
    }
}
