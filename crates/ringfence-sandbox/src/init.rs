//! The life of a jail's first process.
//!
//! It builds the jail, starts the process that will be the program, waits for an order, and stays to reap. When the program ends, or uses too much
//! memory, it kills all that is left, and says how it ended only when nothing is. It has no capabilities while the program
//! runs, and nobody may look into it.
//!
//! Not here: timeouts and cancelling. The host kills this process for that, and the kernel everything below it.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, wait};

use crate::claim::{self, Layer};
use crate::environment::PROXY_PORT;
use crate::filter::Filter;
use crate::jail::{self, Furnished};
use crate::lockdown::{self, drop_capabilities};
use crate::message::{LONGEST, Order, Reply, Status, Step, Trouble};
use crate::sys::{self, Side};

/// How often the memory of a jail without a cgroup is counted.
const MEMORY_EVERY: Duration = Duration::from_millis(20);

/// All of it. `socket` is where the order comes from, `reply` where the host is told how it went.
pub(crate) fn live(socket: &OwnedFd, reply: &OwnedFd, doors: &[OwnedFd], filter: &Filter) -> ! {
    // What the spawner has open is not for here.
    let kept: Vec<BorrowedFd<'_>> = [socket, reply].into_iter().chain(doors).map(AsFd::as_fd).collect();
    let Ok(()) = sys::keep_only(&kept) else { sys::leave() };
    let (socket, reply) = (sys::kept(0), sys::kept(1));
    let doors = (2..kept.len()).map(sys::kept).collect();
    // Where the machine is short of memory, it is to end what runs in a jail before anything else. A process may always say
    // that of itself and of what it starts; there is no `/proc` here where a container refuses one.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let ready = jail::furnish().and_then(|furnished| Ready::new(furnished, doors, filter));

    let mut buffer = [0; LONGEST];
    let Ok((bytes, descriptors)) = sys::receive(socket.as_fd(), &mut buffer) else { sys::leave() };
    if bytes.is_empty() {
        sys::leave();
    }
    let end = ready.as_ref().map_err(|trouble| *trouble).and_then(|ready| ready.run(descriptors, &reply));
    let end = end.unwrap_or_else(|trouble| {
        end_all();
        Reply::Failed(trouble)
    });
    // Whoever waited may be gone.
    let _ = sys::send(reply.as_fd(), &end.encode(), &[]);
    sys::leave()
}

/// A jail that is finished, with the process in it that will be the program.
struct Ready {
    furnished: Furnished,
    layer: Layer,
    program: Pid,
    /// To that process.
    socket: OwnedFd,
    /// Readable when a child ended.
    ended: OwnedFd,
}

impl Ready {
    fn new(furnished: Furnished, doors: Vec<OwnedFd>, filter: &Filter) -> Result<Self, Trouble> {
        let failed = || Step::Start.failed::<Errno>();
        let layer = Layer::new().map_err(Step::Layer.failed())?;
        let (socket, theirs) = sys::message_pair().map_err(failed())?;
        let ended = sys::children_ended().map_err(failed())?;
        // SAFETY: this process has one thread.
        match unsafe { sys::clone_into(0) }.map_err(failed())? {
            Side::Child => lockdown::live(&theirs, &doors, filter),
            Side::Parent(child) => Ok(Self { furnished, layer, program: child.pid, socket, ended }),
        }
    }

    /// One order, with its descriptors: the order itself, and those that it says.
    fn run(&self, mut descriptors: Vec<OwnedFd>, reply: &OwnedFd) -> Result<Reply, Trouble> {
        let failed = || Step::Order.failed::<Errno>();
        let order = Order::read(descriptors.first().ok_or(Errno::BADMSG).map_err(failed())?).map_err(failed())?;
        // Open until this process ends, and the way with it.
        let _way = if order.egress { open_way(descriptors.pop())? } else { None };
        let [text, output, errors, shown @ ..] = &descriptors[..] else { return Err(failed()(Errno::BADMSG)) };
        claim::bring_in(&order, shown, &self.layer, &self.furnished.hall)?;
        // If it is not there any more, it said why.
        let _ = sys::send(self.socket.as_fd(), b"o", &[text.as_fd(), output.as_fd(), errors.as_fd()]);
        // Among them the pipes, which must close with the program.
        drop(descriptors);
        drop_capabilities().map_err(Step::Capabilities.failed())?;
        if !wait_for_start(&self.socket)? {
            end_all();
            return Ok(Reply::NoProgram);
        }
        let started = Reply::Started { proc: self.furnished.proc };
        let _ = sys::send(reply.as_fd(), &started.encode(), &[self.layer.upper.as_fd()]);
        let memory = (!order.memory_kept && self.furnished.proc).then_some(order.limits.memory_bytes);
        Ok(reap(self.program, &self.ended, memory))
    }
}

/// Listens for the jail's programs, and hands over the socket to whoever speaks for them outside.
#[expect(clippy::disallowed_methods, reason = "it is in the jail's own network, and served from outside")]
fn open_way(socket: Option<OwnedFd>) -> Result<Option<OwnedFd>, Trouble> {
    let socket = socket.ok_or(Errno::BADMSG).map_err(Step::Egress.failed())?;
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT)).map_err(|cause| Step::Egress.failed_with(&cause))?;
    sys::send(socket.as_fd(), b"l", &[listener.as_fd()]).map_err(Step::Egress.failed())?;
    Ok(Some(socket))
}

/// True once the program runs, behind every wall; false, if there is no such program.
fn wait_for_start(socket: &OwnedFd) -> Result<bool, Trouble> {
    let mut stands = false;
    loop {
        let mut buffer = [0; LONGEST];
        let (bytes, _) = sys::receive(socket.as_fd(), &mut buffer).map_err(Step::Start.failed())?;
        if bytes.is_empty() {
            // Its end of the socket closed with the change of programs, or with its death before that.
            return stands.then_some(true).ok_or(Errno::PIPE).map_err(Step::Start.failed());
        }
        match Reply::decode(bytes).map_err(Step::Start.failed())? {
            Reply::Started { .. } => stands = true,
            Reply::Failed(trouble) => return Err(trouble),
            _ => return Ok(false),
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
    end_all();
    Reply::Ended { status, memory: too_much }
}

/// Kills and reaps until nobody is left.
fn end_all() {
    loop {
        sys::kill_all();
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
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
