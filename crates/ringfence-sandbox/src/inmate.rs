//! The first process of a jail that `bwrap` built: our own binary, inside.
//!
//! `bwrap` was told paths, and paths can change. So nothing runs before this looked: each directory of the view is the held
//! one, and what is to be covered is empty. Then it lives as the first process of any jail does.
//!
//! Not here: the walls that a program passes on its way (`lockdown.rs`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, PidfdFlags, getpid, pidfd_open, set_dumpable_behavior};

use crate::bwrap::{Backend, shown_at};
use crate::claim::find;
use crate::filter::Filters;
use crate::init::{Bounds, end_all, input_of, open_way, reap, wait_for_start};
use crate::lockdown::{self, drop_capabilities};
use crate::memory_watch::Processes;
use crate::message::{Order, Reply, ShownDirectory, Step, Trouble};
use crate::sys::{self, Side};

/// The one argument by which it knows what it is.
pub(crate) const NAME: &str = "ringfence-inmate";

/// The descriptors that it is given, in their order: our binary, where to reply, and those of the run.
pub(crate) fn order<'a>(own: [&'a OwnedFd; 2], run: &'a [OwnedFd]) -> impl Iterator<Item = BorrowedFd<'a>> {
    own.into_iter().chain(run).map(AsFd::as_fd)
}

/// For the first line of `main`. Does not come back, if this process was started inside a jail.
pub(crate) fn inmate_main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (getpid().is_init() && arguments.next()? == NAME && arguments.next().is_none()).then(|| live())
}

fn live() -> ! {
    sys::reset_signals();
    // The binary is open no longer than this.
    let [reply, text] = [sys::kept(1), sys::kept(2)];
    let Ok(order) = Order::read(&text) else { sys::leave() };
    let given: Vec<OwnedFd> = [reply, text]
        .into_iter()
        .chain((3..5 + order.shown.len() + usize::from(order.has_input) + usize::from(order.egress)).map(sys::kept))
        .collect();
    let Ok(()) = sys::keep_only(&sys::borrowed(&given)) else { sys::leave() };
    let count = given.len();
    // They are closed, or stand for something else by now.
    std::mem::forget(given);
    let mut given = (0..count).map(sys::kept);
    let Some(reply) = given.next() else { sys::leave() };
    let run: Vec<OwnedFd> = given.collect();
    let end = hold(&reply).and_then(|()| Ready::new(&order, &run)).and_then(|ready| ready.run(&order, &reply, run));
    let end = end.unwrap_or_else(|trouble| {
        end_all();
        Reply::Failed(trouble)
    });
    // Whoever waited may be gone.
    let _ = sys::send(reply.as_fd(), &end.encode(), &[]);
    sys::leave()
}

/// Nobody looks into this process, and the host can end it.
fn hold(reply: &OwnedFd) -> Result<(), Trouble> {
    sys::die_with_parent().map_err(Step::Hold.failed())?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(Step::Hold.failed())?;
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(Step::Hold.failed())?;
    sys::send(reply.as_fd(), &Reply::Made.encode(), &[own.as_fd()]).map_err(Step::Hold.failed())
}

/// The process that will be the program.
struct Ready {
    program: rustix::process::Pid,
    socket: OwnedFd,
    ended: OwnedFd,
}

impl Ready {
    fn new(order: &Order, run: &[OwnedFd]) -> Result<Self, Trouble> {
        let failed = || Step::Start.failed::<Errno>();
        check(order, run)?;
        let filter = Filters::without_named_sockets().map_err(|_| Step::Seccomp.failed()(Errno::INVAL))?;
        let (socket, theirs) = sys::message_pair().map_err(failed())?;
        let ended = sys::children_ended().map_err(failed())?;
        Self::start(&filter, socket, &theirs, ended)
    }

    fn start(filter: &Filters, socket: OwnedFd, theirs: &OwnedFd, ended: OwnedFd) -> Result<Self, Trouble> {
        // SAFETY: this process has one thread.
        match unsafe { sys::clone_into(0) }.map_err(Step::Start.failed())? {
            Side::Child => lockdown::live(theirs, &[], filter, Backend::Bwrap),
            Side::Parent(child) => Ok(Self { program: child.pid, socket, ended }),
        }
    }

    fn run(&self, order: &Order, reply: &OwnedFd, mut run: Vec<OwnedFd>) -> Result<Reply, Trouble> {
        // Open until this process ends, and the way with it.
        let _way = if order.egress { open_way(run.pop())? } else { None };
        let [text, output, errors, shown @ ..] = &run[..] else { return Err(Step::Order.failed()(Errno::BADMSG)) };
        let streams = [text, output, errors].into_iter().chain(input_of(order, shown));
        // If it is not there any more, it said why.
        let _ = sys::send(self.socket.as_fd(), b"o", &streams.map(AsFd::as_fd).collect::<Vec<_>>());
        // Among them the pipes, which must close with the program.
        drop(run);
        drop_capabilities().map_err(Step::Capabilities.failed())?;
        let Some(requests) = wait_for_start(&self.socket)? else {
            end_all();
            return Ok(Reply::NoProgram);
        };
        let _ = sys::send(reply.as_fd(), &Reply::Started { proc: true }.encode(), &[]);
        let requests = requests.into_iter().next();
        Ok(reap(self.program, &self.ended, Bounds::of(order, Processes::Own, Backend::Bwrap, requests)))
    }
}

/// That the jail is the one that was ordered.
fn check(order: &Order, run: &[OwnedFd]) -> Result<(), Trouble> {
    for (index, (directory, held)) in order.shown.iter().zip(run.iter().skip(3)).enumerate() {
        let place = shown_at(order, index);
        is_held(&place, held).map_err(Step::Find.failed())?;
        [&place, &directory.path]
            .into_iter()
            .try_for_each(|place| is_covered(place, directory, held).map_err(Step::Cover.failed()))?;
    }
    Ok(())
}

fn is_held(place: &Path, held: &OwnedFd) -> Result<(), Errno> {
    let found = open(place, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let (is, should) = (fstat(&found)?, fstat(held)?);
    if (is.st_dev, is.st_ino) == (should.st_dev, should.st_ino) { Ok(()) } else { Err(Errno::STALE) }
}

/// Whether what is not to be seen is empty there, and not by chance: it lies on another file system.
fn is_covered(place: &Path, directory: &ShownDirectory, held: &OwnedFd) -> Result<(), Errno> {
    let root = match open(place, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(root) => root,
        // The host's own path, which the jail mostly does not have.
        Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => return Ok(()),
        Err(other) => return Err(other),
    };
    let device = fstat(held)?.st_dev;
    for path in &directory.covered {
        let Some(target) = find(root.as_fd(), path)? else { continue };
        let found = fstat(&target)?;
        let empty = match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => is_empty(&target)?,
            _ => found.st_size == 0,
        };
        if found.st_dev == device || !empty {
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
