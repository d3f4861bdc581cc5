//! The life of a jail's first process.
//!
//! It builds the jail, starts the process that will be the program, waits for an order, and stays to reap. When the program ends, or uses too much
//! memory, it kills all that is left, and says how it ended only when nothing is. It has no capabilities while the program
//! runs, and nobody may look into it.
//!
//! Not here: timeouts and cancelling. The host kills this process for that, and the kernel everything below it.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Dir, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, wait, waitid};

use crate::bwrap::Backend;
use crate::claim::{self, Layer};
use crate::environment::PROXY_PORT;
use crate::filter::Filter;
use crate::jail::{self, Furnished};
use crate::lockdown::{self, drop_capabilities};
use crate::message::{Beyond, LONGEST, Order, Reply, Status, Step, Trouble};
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
            Side::Child => lockdown::live(&theirs, &doors, filter, Backend::Native),
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
        let streams = [text, output, errors].into_iter().chain(input_of(&order, shown));
        // If it is not there any more, it said why.
        let _ = sys::send(self.socket.as_fd(), b"o", &streams.map(AsFd::as_fd).collect::<Vec<_>>());
        // Among them the pipes, which must close with the program.
        drop(descriptors);
        drop_capabilities().map_err(Step::Capabilities.failed())?;
        if !wait_for_start(&self.socket)? {
            end_all();
            return Ok(Reply::NoProgram);
        }
        let started = Reply::Started { proc: self.furnished.proc };
        let _ = sys::send(reply.as_fd(), &started.encode(), &[self.layer.upper.as_fd()]);
        let count = if self.furnished.proc { Count::Own } else { Count::Above(&self.furnished.above) };
        Ok(reap(self.program, &self.ended, &Bounds::of(&order, count)))
    }
}

/// Listens for the jail's programs, and hands over the socket to whoever speaks for them outside.
#[expect(clippy::disallowed_methods, reason = "it is in the jail's own network, and served from outside")]
pub(crate) fn open_way(socket: Option<OwnedFd>) -> Result<Option<OwnedFd>, Trouble> {
    let socket = socket.ok_or(Errno::BADMSG).map_err(Step::Egress.failed())?;
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT)).map_err(|cause| Step::Egress.failed_with(&cause))?;
    sys::send(socket.as_fd(), b"l", &[listener.as_fd()]).map_err(Step::Egress.failed())?;
    Ok(Some(socket))
}

/// Its standard input, behind what is shown to it.
pub(crate) fn input_of<'a>(order: &Order, shown: &'a [OwnedFd]) -> Option<&'a OwnedFd> {
    shown.get(order.shown.len()).filter(|_| order.has_input)
}

/// True once the program runs, behind every wall; false, if there is no such program.
pub(crate) fn wait_for_start(socket: &OwnedFd) -> Result<bool, Trouble> {
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

/// What the first process looks after while a program runs.
pub(crate) struct Bounds<'a> {
    /// Nothing, where a cgroup keeps it.
    memory: Option<u64>,
    cpu: Duration,
    count: Count<'a>,
}

impl<'a> Bounds<'a> {
    pub(crate) fn of(order: &Order, count: Count<'a>) -> Self {
        let memory = (!order.memory_kept).then_some(order.limits.memory_bytes);
        Self { memory, cpu: order.limits.cpu.max(Duration::from_secs(1)), count }
    }
}

/// Reaps whatever ends, until the program has, then kills and reaps the rest.
pub(crate) fn reap(program: Pid, ended: &OwnedFd, bounds: &Bounds<'_>) -> Reply {
    let mut beyond = None;
    let status = loop {
        let cpu = bounds.count.cpu_at_end(program);
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == program => {
                let status = match status.terminating_signal() {
                    Some(signal) => Status::Killed(signal),
                    None => Status::Exited(status.exit_status().unwrap_or_default()),
                };
                // Who does not heed the signal that says so is killed a second later.
                let used_up = status == Status::Killed(libc::SIGKILL) && cpu.is_some_and(|used| used >= bounds.cpu);
                beyond = beyond.or(used_up.then_some(Beyond::Cpu));
                break status;
            }
            Ok(Some(_)) => continue,
            Ok(None) => {}
            // The program was ours, and nobody else waits for it.
            Err(_) => break Status::Killed(libc::SIGKILL),
        }
        let every = bounds.memory.map(|_| Timespec::try_from(MEMORY_EVERY).unwrap_or_default());
        let quiet = poll(&mut [PollFd::new(ended, PollFlags::IN)], every.as_ref()) == Ok(0);
        if !quiet {
            let _ = rustix::io::read(ended, &mut [0; 1024]);
        } else if beyond.is_none() && bounds.memory.is_some_and(|most| bounds.count.has_more_than(most)) {
            beyond = Some(Beyond::Memory);
            sys::kill_all();
        }
    };
    end_all();
    Reply::Ended { status, beyond }
}

/// Kills and reaps until nobody is left.
pub(crate) fn end_all() {
    loop {
        sys::kill_all();
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
}

/// How the processes of a jail are found.
pub(crate) enum Count<'a> {
    /// The jail's own `/proc` shows them and no others.
    Own,
    /// It has none. The spawner's shows them as what this process started, and what that started.
    Above(&'a OwnedFd),
}

impl Count<'_> {
    /// The time on a processor that a child of ours used, if it has ended and nobody has reaped it, and if that can be seen.
    fn cpu_at_end(&self, program: Pid) -> Option<Duration> {
        let Self::Own = self else { return None };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(program), look).ok()??;
        // Nobody else's end is looked at, and reading costs more than most ends do.
        ended.terminating_signal().filter(|signal| *signal == libc::SIGKILL)?;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.as_raw_nonzero())).ok()?;
        // The second field may have anything in it, and ends with the last parenthesis. These are the fourteenth and the next.
        let mut ticks = stat.rsplit_once(") ")?.1.split(' ').skip(11).map_while(|ticks| ticks.parse::<u64>().ok());
        let ticks = ticks.next()? + ticks.next()?;
        Some(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?)
    }

    /// Whether all processes of the jail together have more memory in use than so many bytes.
    fn has_more_than(&self, most: u64) -> bool {
        match self {
            Self::Own => match open("/proc", DIRECTORY, Mode::empty()) {
                Ok(proc) => in_use(&proc, &numbers(&proc, Path::new(".")), most) > most,
                Err(_) => false,
            },
            Self::Above(proc) => {
                // Every process that lost its parent is this one's child.
                let mut left = started_by(proc, Path::new("self"));
                let mut all = Vec::new();
                while let Some(process) = left.pop() {
                    left.extend(started_by(proc, &process));
                    all.push(process);
                }
                in_use(proc, &all, most) > most
            }
        }
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Bytes of memory of processes: their own, and what they share with each other. Files on a disk are not counted.
fn in_use(proc: &OwnedFd, processes: &[PathBuf], most: u64) -> u64 {
    let states: Vec<String> = processes.iter().map(|process| text(proc, &process.join("status"))).collect();
    let own: u64 = states.iter().map(|state| bytes(state, "RssAnon:")).sum();
    let shared: Vec<u64> = states.iter().map(|state| bytes(state, "RssShmem:")).collect();
    let at_most = own + shared.iter().sum::<u64>();
    if at_most <= most {
        return at_most;
    }
    // What several have is counted with each so far. To know better takes the kernel a look at every page.
    let parts = processes.iter().zip(shared).filter(|(_, shared)| *shared > 0).map(|(process, shared)| {
        match text(proc, &process.join("smaps_rollup")) {
            // Who hides how much it has of it has all.
            rollup if rollup.contains("Pss_Shmem:") => bytes(&rollup, "Pss_Shmem:"),
            _ => shared,
        }
    });
    own + parts.sum::<u64>()
}

/// A line of what the kernel tells of a process, such as `RssAnon:    120 kB`.
fn bytes(state: &str, name: &str) -> u64 {
    let line = state.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    number.unwrap_or_default() << 10
}

fn started_by(proc: &OwnedFd, process: &Path) -> Vec<PathBuf> {
    let lists = numbers(proc, &process.join("task")).into_iter().map(|task| text(proc, &task.join("children")));
    lists.flat_map(|list| list.split_whitespace().map(PathBuf::from).collect::<Vec<_>>()).collect()
}

/// Entries of a directory that are numbers.
fn numbers(proc: &OwnedFd, directory: &Path) -> Vec<PathBuf> {
    let entries = openat(proc, directory, DIRECTORY, Mode::empty()).and_then(Dir::new).into_iter().flatten().flatten();
    let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    let numbers = names.filter(|name| name.as_bytes().iter().all(u8::is_ascii_digit));
    numbers.map(|name| directory.join(name)).collect()
}

/// Nothing, where there is none any more.
fn text(proc: &OwnedFd, path: &Path) -> String {
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(std::fs::File::from);
    file.ok().and_then(|file| std::io::read_to_string(file).ok()).unwrap_or_default()
}
