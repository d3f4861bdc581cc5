//! The life of a jail's first process.
//!
//! It builds the jail, waits for an order, starts the program, and stays to reap. When the program ends, or uses too much
//! memory, it kills all that is left, and says how it ended only when nothing is. It has no capabilities while the program
//! runs, and nobody may look into it.
//!
//! Not here: timeouts and cancelling. The host kills this process for that, and the kernel everything below it.

use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, wait};

use crate::claim;
use crate::filter::Filter;
use crate::jail::{self, Furnished};
use crate::lockdown::{self, drop_capabilities};
use crate::message::{LONGEST, Order, Reply, Status, Step, Trouble};
use crate::sys::{self, Side};

/// How often the memory of a jail without a cgroup is counted.
const MEMORY_EVERY: Duration = Duration::from_millis(20);

/// All of it. `socket` is where the order comes from.
pub(crate) fn live(socket: OwnedFd, filter: &Filter) -> ! {
    // What the spawner has open is not for here.
    let Ok(()) = sys::keep_only(&[socket.as_fd()]) else { sys::leave() };
    let socket = sys::kept(0);
    let furnished = jail::furnish();
    let mut buffer = [0; LONGEST];
    let Ok((bytes, descriptors)) = sys::receive(socket.as_fd(), &mut buffer) else { sys::leave() };
    if bytes.is_empty() {
        sys::leave();
    }
    drop(socket);
    let mut descriptors = descriptors.into_iter();
    if let Some(reply) = descriptors.next() {
        let end = run(furnished, descriptors.collect(), &reply, filter).unwrap_or_else(Reply::Failed);
        // Whoever waited may be gone.
        let _ = sys::send(reply.as_fd(), &end.encode(), &[]);
    }
    sys::leave()
}

/// One order, with its descriptors: the order itself, and those that it says.
fn run(
    furnished: Result<Furnished, Trouble>,
    descriptors: Vec<OwnedFd>,
    reply: &OwnedFd,
    filter: &Filter,
) -> Result<Reply, Trouble> {
    let furnished = furnished?;
    let Delivery { order, streams, shown, cgroups } = Delivery::unpack(descriptors)?;
    for cgroup in &cgroups {
        rustix::io::write(cgroup, b"0").map_err(Step::Cgroup.failed())?;
    }
    let layer = claim::bring_in(&order, &shown)?;
    drop(cgroups);

    let (ours, theirs) = sys::message_pair().map_err(Step::Start.failed())?;
    let ended = sys::children_ended().map_err(Step::Start.failed())?;
    // SAFETY: this process has one thread.
    let program = match unsafe { sys::clone_into(0) }.map_err(Step::Start.failed())? {
        Side::Child => lockdown::become_program(&order, streams, theirs, filter),
        Side::Parent(child) => child.pid,
    };
    drop((streams, theirs));
    if let Some(workspace) = shown.first().filter(|_| furnished.proc) {
        claim::let_go(workspace).map_err(Step::Layer.failed())?;
    }
    drop(shown);
    drop_capabilities().map_err(Step::Capabilities.failed())?;
    let landlock = match wait_for_start(&ours)? {
        Some(landlock) => landlock,
        None => return Ok(Reply::NoProgram),
    };
    let started = Reply::Started { landlock, proc: furnished.proc };
    let _ = sys::send(reply.as_fd(), &started.encode(), &[layer.as_fd()]);
    let memory = (!order.memory_kept && furnished.proc).then_some(order.limits.memory_bytes);
    Ok(reap(program, &ended, memory))
}

/// An order that came, taken apart.
struct Delivery {
    order: Order,
    streams: [OwnedFd; 2],
    shown: Vec<OwnedFd>,
    cgroups: Vec<OwnedFd>,
}

impl Delivery {
    fn unpack(descriptors: Vec<OwnedFd>) -> Result<Self, Trouble> {
        let missing = || Step::Order.failed()(Errno::BADMSG);
        let mut left = descriptors.into_iter();
        let order = Order::read(&left.next().ok_or_else(missing)?).map_err(Step::Order.failed())?;
        let streams = [left.next().ok_or_else(missing)?, left.next().ok_or_else(missing)?];
        let shown: Vec<OwnedFd> = left.by_ref().take(order.shown.len()).collect();
        let cgroups: Vec<OwnedFd> = left.take(order.cgroups as usize).collect();
        if shown.len() != order.shown.len() || cgroups.len() != order.cgroups as usize {
            return Err(missing());
        }
        Ok(Self { order, streams, shown, cgroups })
    }
}

/// Whether Landlock stands, once the program runs; nothing, if there is no such program.
fn wait_for_start(socket: &OwnedFd) -> Result<Option<bool>, Trouble> {
    let mut stands = None;
    loop {
        let mut buffer = [0; 64];
        let (bytes, _) = sys::receive(socket.as_fd(), &mut buffer).map_err(Step::Start.failed())?;
        if bytes.is_empty() {
            // Its end of the socket closed with the change of programs, or with its death before that.
            return stands.map(Some).ok_or(Errno::PIPE).map_err(Step::Start.failed());
        }
        match Reply::decode(bytes).map_err(Step::Start.failed())? {
            Reply::Started { landlock, .. } => stands = Some(landlock),
            Reply::Failed(trouble) => return Err(trouble),
            _ => return Ok(None),
        }
    }
}

/// Reaps whatever ends, until the program has, then kills and reaps the rest.
fn reap(program: Pid, ended: &OwnedFd, memory: Option<u64>) -> Reply {
    let mut too_much = false;
    let status = loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == program => {
                break match status.terminating_signal() {
                    Some(signal) => Status::Killed(signal),
                    None => Status::Exited(status.exit_status().unwrap_or_default()),
                };
            }
            Ok(Some(_)) => continue,
            Ok(None) => {}
            // The program was ours, and nobody else waits for it.
            Err(_) => break Status::Killed(libc::SIGKILL),
        }
        let every = memory.map(|_| Timespec::try_from(MEMORY_EVERY).unwrap_or_default());
        let quiet = poll(&mut [PollFd::new(ended, PollFlags::IN)], every.as_ref()) == Ok(0);
        if !quiet {
            let _ = rustix::io::read(ended, &mut [0; 1024]);
        } else if !too_much && memory.is_some_and(|most| resident() > most) {
            too_much = true;
            sys::kill_all();
        }
    };
    loop {
        sys::kill_all();
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    Reply::Ended { status, memory: too_much }
}

/// Bytes of memory that all processes of the jail have for themselves.
fn resident() -> u64 {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let is_process = |name: &OsString| name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let pages: u64 = processes
        .flatten()
        .map(|entry| entry.file_name())
        .filter(is_process)
        .filter_map(|name| {
            let sizes = std::fs::read_to_string(std::path::Path::new("/proc").join(name).join("statm")).ok()?;
            let mut sizes = sizes.split(' ').skip(1).map_while(|size| size.parse::<u64>().ok());
            let (resident, shared) = (sizes.next()?, sizes.next()?);
            Some(resident.saturating_sub(shared))
        })
        .sum();
    pages * rustix::param::page_size() as u64
}
