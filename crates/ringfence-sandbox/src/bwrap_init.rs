//! Init process of a jail that `bwrap` built: our own binary, inside.
//!
//! `bwrap` got paths, and paths can change. So nothing runs before this checks: each directory of the view is the held
//! one, and every masked path is empty. Then it works as the init process of any jail does.
//!
//! Not here: the lockdown of the program (`lockdown.rs`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, PidfdFlags, getpid, pidfd_open, set_dumpable_behavior};

use crate::bwrap::{JailBackend, mount_path};
use crate::init::{LimitMonitor, kill_and_reap_all, more_streams, open_egress, reap, wait_for_start};
use crate::lockdown::{self, ProgramSession, drop_capabilities};
use crate::memory_monitor::ProcessSource;
use crate::protocol::{RunSpec, SetupError, SetupStep, SpawnerReply};
use crate::run_mounts::resolve_beneath;
use crate::seccomp::SeccompFilters;
use crate::sys::{self, ForkResult};

/// The one argument by which it knows what it is.
pub(crate) const NAME: &str = "ringfence-bwrap-init";

/// The descriptors that it is given, in their order: our binary, where to reply, and those of the run.
pub(crate) fn descriptor_order<'a>(own: [&'a OwnedFd; 2], run: &'a [OwnedFd]) -> impl Iterator<Item = BorrowedFd<'a>> {
    own.into_iter().chain(run).map(AsFd::as_fd)
}

/// For the first line of `main`. Does not come back, if this process was started inside a jail.
pub(crate) fn bwrap_init_main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (getpid().is_init() && arguments.next()? == NAME && arguments.next().is_none()).then(|| run_bwrap_init())
}

fn run_bwrap_init() -> ! {
    sys::reset_signals();
    // The binary is open no longer than this.
    let [reply, text] = [sys::inherited_fd(1), sys::inherited_fd(2)];
    let Ok(spec) = RunSpec::read(&text) else { sys::exit() };
    let given: Vec<OwnedFd> = [reply, text]
        .into_iter()
        .chain(
            (3..5
                + spec.mounts.len()
                + usize::from(spec.has_stdin)
                + usize::from(spec.reports_directory)
                + usize::from(spec.egress))
                .map(sys::inherited_fd),
        )
        .collect();
    let Ok(()) = sys::keep_only(&sys::borrowed(&given)) else { sys::exit() };
    let count = given.len();
    // They are closed, or stand for something else by now.
    std::mem::forget(given);
    let mut given = (0..count).map(sys::inherited_fd);
    let Some(reply) = given.next() else { sys::exit() };
    let run: Vec<OwnedFd> = given.collect();
    let end =
        harden(&reply).and_then(|()| PreparedProgram::new(&spec, &run)).and_then(|ready| ready.run(&spec, &reply, run));
    let end = end.unwrap_or_else(|setup_error| {
        kill_and_reap_all();
        SpawnerReply::Failed(setup_error)
    });
    // The waiting process may be gone.
    let _ = end.send(reply.as_fd(), &[]);
    sys::exit()
}

/// Makes this process undumpable, and lets the host end it.
fn harden(reply: &OwnedFd) -> Result<(), SetupError> {
    sys::die_with_parent().map_err(SetupStep::Hold.failed())?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(SetupStep::Hold.failed())?;
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(SetupStep::Hold.failed())?;
    SpawnerReply::Created.send(reply.as_fd(), &[own.as_fd()]).map_err(SetupStep::Hold.failed())
}

/// The process that will be the program.
struct PreparedProgram {
    program: rustix::process::Pid,
    socket: OwnedFd,
    sigchld_fd: OwnedFd,
}

impl PreparedProgram {
    fn new(spec: &RunSpec, run: &[OwnedFd]) -> Result<Self, SetupError> {
        let failed = || SetupStep::Start.failed::<Errno>();
        verify_mounts(spec, run)?;
        let filter = SeccompFilters::without_named_sockets().map_err(|_| SetupStep::Seccomp.failed()(Errno::INVAL))?;
        let (socket, theirs) = sys::message_pair().map_err(failed())?;
        let ended = sys::sigchld_fd().map_err(failed())?;
        Self::start(&filter, socket, &theirs, ended)
    }

    fn start(filter: &SeccompFilters, socket: OwnedFd, theirs: &OwnedFd, ended: OwnedFd) -> Result<Self, SetupError> {
        // SAFETY: this process has one thread.
        match unsafe { sys::clone_into(0) }.map_err(SetupStep::Start.failed())? {
            ForkResult::Child => lockdown::run_child(theirs, &[], filter, JailBackend::Bwrap, ProgramSession::Own),
            ForkResult::Parent(child) => Ok(Self { program: child.pid, socket, sigchld_fd: ended }),
        }
    }

    fn run(&self, spec: &RunSpec, reply: &OwnedFd, mut run: Vec<OwnedFd>) -> Result<SpawnerReply, SetupError> {
        // Open until this process ends, and the way with it.
        let _way = if spec.egress { open_egress(run.pop(), None)? } else { None };
        let [text, output, errors, shown @ ..] = &run[..] else { return Err(SetupStep::Order.failed()(Errno::BADMSG)) };
        let streams = [text, output, errors].into_iter().chain(more_streams(spec, shown));
        // If it is gone, it reported why.
        let _ = sys::send(self.socket.as_fd(), b"o", &streams.map(AsFd::as_fd).collect::<Vec<_>>());
        // Among them the pipes, which must close with the program.
        drop(run);
        drop_capabilities().map_err(SetupStep::Capabilities.failed())?;
        let Some(requests) = wait_for_start(&self.socket, None)? else {
            kill_and_reap_all();
            return Ok(SpawnerReply::ProgramNotFound);
        };
        let _ = SpawnerReply::Started { proc: true }.send(reply.as_fd(), &[]);
        let requests = requests.into_iter().next();
        Ok(reap(
            self.program,
            &self.sigchld_fd,
            LimitMonitor::new(spec, ProcessSource::JailProc, JailBackend::Bwrap, requests),
            None,
        ))
    }
}

/// Checks that the mounts of the jail are those of the run spec.
fn verify_mounts(spec: &RunSpec, run: &[OwnedFd]) -> Result<(), SetupError> {
    for (index, (directory, held)) in spec.mounts.iter().zip(run.iter().skip(3)).enumerate() {
        let mounted = mount_path(spec, index);
        check_same_dir(&mounted, held).map_err(SetupStep::Find.failed())?;
        let empty = directory.masked.iter().map(|path| (path, 0));
        let own = spec.files.iter().filter(|file| index == 0 && !file.over.as_os_str().is_empty());
        let masks: Vec<(&PathBuf, usize)> = empty.chain(own.map(|file| (&file.over, file.contents.len()))).collect();
        [&mounted, &directory.path]
            .into_iter()
            .try_for_each(|mounted| check_masked(mounted, &masks, held).map_err(SetupStep::Cover.failed()))?;
    }
    Ok(())
}

fn check_same_dir(mounted: &Path, held: &OwnedFd) -> Result<(), Errno> {
    let found = open(mounted, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let (is, should) = (fstat(&found)?, fstat(held)?);
    if (is.st_dev, is.st_ino) == (should.st_dev, should.st_ino) { Ok(()) } else { Err(Errno::STALE) }
}

/// Checks that a masked path has the size of its mask because of it: it lies on another file system.
fn check_masked(mounted: &Path, masks: &[(&PathBuf, usize)], held: &OwnedFd) -> Result<(), Errno> {
    let root = match open(mounted, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(root) => root,
        // The host's own path, which the jail mostly does not have.
        Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => return Ok(()),
        Err(other) => return Err(other),
    };
    let device = fstat(held)?.st_dev;
    for (path, size) in masks {
        let Some(target) = resolve_beneath(root.as_fd(), path)? else { continue };
        let found = fstat(&target)?;
        let is_mask = match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => is_empty(&target)?,
            _ => usize::try_from(found.st_size) == Ok(*size),
        };
        if found.st_dev == device || !is_mask {
            return Err(Errno::STALE);
        }
    }
    Ok(())
}

fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    let listed = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut entries = Dir::new(listed)?;
    Ok(entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))))
}
