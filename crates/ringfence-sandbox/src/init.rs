//! Init process of a jail.
//!
//! It builds the jail, starts the process that will be the program, waits for a run spec, and stays to reap. When the
//! program ends, or exceeds its memory, it kills the remaining processes, and reports the exit status only when none is
//! left. It has no capabilities while the program runs, and is undumpable.
//!
//! Not here: timeouts and cancelling. The host kills this process for that, and the kernel everything below it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, wait, waitid};

use crate::bwrap::JailBackend;
use crate::call_recorder::CallRecorder;
use crate::environment::PROXY_PORT;
use crate::jail::{self, JailBlueprint, JailRoot};
use crate::lock_budget::FileLockBudget;
use crate::lockdown::{self, ProgramSession, drop_capabilities};
use crate::memory_monitor::{MemoryMonitor, ProcessSource, memory_mounts};
use crate::mounts::{READ_ONLY, clone_mount};
use crate::name_network::open_name_network;
use crate::program_control::ProgramControl;
use crate::protocol::{
    JailKind, LimitExceeded, MAX_MESSAGE_BYTES, ProgramStatus, RunSpec, SetupError, SetupStep, SpawnerReply,
};
use crate::rename_helper::HelperIsolation;
use crate::rename_requests::RenameRequests;
use crate::run_mounts::{self, JailOverlay, SCRIPT_DIR};
use crate::seccomp::SeccompFilters;
use crate::sys::{self, CallAnswer, ForkResult, MountFlagScope};
use crate::terminal::{JailTerminal, TerminalSize};
use crate::wrapped_mounts::{self, WorkspaceOverlay};

/// File in the directory of the run's own files that says what was refused.
const REFUSALS_FILE: &str = "refused";

/// Loopback addresses of the host that one run can reach.
const MAX_LISTENERS: usize = 63;

/// Runs the init process. The run spec comes from `socket`, the result goes to the host over `reply`.
pub(crate) fn run_init(
    socket: &OwnedFd,
    reply: &OwnedFd,
    cgroup_fds: &[OwnedFd],
    filter: &SeccompFilters,
    blueprint: &JailBlueprint,
) -> ! {
    // Descriptors of the spawner are closed here.
    let kept: Vec<BorrowedFd<'_>> = [socket, reply].into_iter().chain(cgroup_fds).map(AsFd::as_fd).collect();
    let Ok(()) = sys::keep_only(&kept) else { sys::exit() };
    let (socket, reply) = (sys::inherited_fd(0), sys::inherited_fd(1));
    let cgroup_fds = (2..kept.len()).map(sys::inherited_fd).collect();
    // Where the machine is short of memory, it is to end what runs in a jail before anything else. A process may always say
    // that of itself and of what it starts; there is no `/proc` here where a container refuses one.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut ready = jail::build_root(blueprint)
        .and_then(|furnished| PreparedJail::new(furnished, cgroup_fds, filter, blueprint.kind));

    let mut buffer = [0; MAX_MESSAGE_BYTES];
    let Ok((bytes, descriptors)) = sys::receive(socket.as_fd(), &mut buffer) else { sys::exit() };
    if bytes.is_empty() {
        sys::exit();
    }
    let end = ready.as_mut().map_err(|setup_error| *setup_error).and_then(|ready| ready.run(descriptors, &reply));
    let end = end.unwrap_or_else(|setup_error| {
        kill_and_reap_all();
        SpawnerReply::Failed(setup_error)
    });
    // The waiting process may be gone.
    let _ = end.send(reply.as_fd(), &[]);
    sys::exit()
}

/// A jail that is finished, with the process in it that will be the program.
struct PreparedJail<'a> {
    root: JailRoot,
    cgroup_fds: Vec<OwnedFd>,
    filter: &'a SeccompFilters,
    /// Nothing for a wrapped program, whose layers are on disk.
    overlay: Option<JailOverlay>,
    terminal: Option<JailTerminal>,
    program: Pid,
    /// To that process.
    socket: OwnedFd,
    /// Readable when a child ended.
    sigchld_fd: OwnedFd,
}

impl<'a> PreparedJail<'a> {
    fn new(
        furnished: JailRoot,
        cgroup_fds: Vec<OwnedFd>,
        filter: &'a SeccompFilters,
        kind: JailKind,
    ) -> Result<Self, SetupError> {
        let failed = || SetupStep::Start.failed::<Errno>();
        let layer = match kind {
            JailKind::Tool => Some(JailOverlay::new().map_err(SetupStep::Layer.failed())?),
            JailKind::Wrapped | JailKind::WrappedOnTerminal => None,
        };
        // Before the program's process, which inherits it as its controlling terminal.
        let (terminal, session) = match kind {
            JailKind::WrappedOnTerminal => {
                (Some(JailTerminal::open().map_err(SetupStep::Terminal.failed())?), ProgramSession::OnTerminal)
            }
            JailKind::Tool | JailKind::Wrapped => (None, ProgramSession::Own),
        };
        let (socket, theirs) = sys::message_pair().map_err(failed())?;
        let ended = sys::sigchld_fd().map_err(failed())?;
        // SAFETY: this process has one thread.
        match unsafe { sys::clone_into(0) }.map_err(failed())? {
            ForkResult::Child => lockdown::run_child(&theirs, &cgroup_fds, filter, JailBackend::Native, session),
            ForkResult::Parent(child) => {
                let (program, overlay) = (child.pid, layer);
                Ok(Self { root: furnished, cgroup_fds, filter, overlay, terminal, program, socket, sigchld_fd: ended })
            }
        }
    }

    /// One order, with its descriptors: the order itself, and those that it says.
    fn run(&mut self, mut descriptors: Vec<OwnedFd>, reply: &OwnedFd) -> Result<SpawnerReply, SetupError> {
        let failed = || SetupStep::Order.failed::<Errno>();
        let spec = RunSpec::read(descriptors.first().ok_or(Errno::BADMSG).map_err(failed())?).map_err(failed())?;
        // Before this process moves into another.
        let network = spec.wrapped.as_ref().map(|_| open_network(&self.root)).transpose()?;
        let refusals = spec.wrapped.as_ref().map(|_| create_refusals_file()).transpose();
        let refusals = refusals.map_err(SetupStep::Place.failed())?;
        // Open until this process ends, and the way with it.
        let _way = match spec.egress {
            true => open_egress(descriptors.pop(), Some((&self.root, self.program)))?,
            false => None,
        };
        let [text, output, errors, shown @ ..] = &descriptors[..] else { return Err(failed()(Errno::BADMSG)) };
        let mounted = self.mount(&spec, shown)?;
        if refusals.is_some() {
            close_script_directory().map_err(SetupStep::Place.failed())?;
        }
        let streams: Vec<&OwnedFd> = match (&self.terminal, terminal_size(&spec)) {
            (Some(terminal), Some(size)) => {
                terminal.prepare(size, self.program).map_err(SetupStep::Terminal.failed())?;
                vec![text, terminal.slave(), terminal.slave(), terminal.slave()]
            }
            _ => [text, output, errors].into_iter().chain(more_streams(&spec, shown)).collect(),
        };
        // If it is gone, it reported why.
        let _ = sys::send(self.socket.as_fd(), b"o", &streams.into_iter().map(AsFd::as_fd).collect::<Vec<_>>());
        // Among them the pipes, which must close with the program.
        drop(descriptors);
        drop_capabilities().map_err(SetupStep::Capabilities.failed())?;
        let processes = if self.root.has_proc {
            ProcessSource::JailProc
        } else {
            ProcessSource::SpawnerProc(&self.root.spawner_proc)
        };
        let recorded = spec.wrapped.as_ref().map(|wrapped| wrapped.recorded).unwrap_or_default();
        let records = (!recorded.is_empty()).then(sys::message_pair).transpose();
        let (records, host) = records.map_err(SetupStep::Place.failed())?.unzip();
        let mut recorder = host.map(|host| CallRecorder::new(host, recorded, processes));
        let Some(requests) = wait_for_start(&self.socket, recorder.as_mut())? else {
            kill_and_reap_all();
            return Ok(SpawnerReply::ProgramNotFound);
        };
        if let Some(recorder) = recorder.as_mut().filter(|_| requests.is_empty()) {
            recorder.report_unavailable();
        }
        let started = SpawnerReply::Started { proc: self.root.has_proc };
        let upper = self.overlay.as_ref().map(|overlay| overlay.upper.as_fd());
        let master = self.terminal.as_ref().map(JailTerminal::master);
        let overlay = mounted.as_ref().into_iter().flat_map(WorkspaceOverlay::descriptors);
        let of_wrapped = overlay.chain(network.iter().chain(&refusals).chain(&records).map(AsFd::as_fd));
        let given: Vec<BorrowedFd<'_>> = of_wrapped.chain(master).chain(upper).collect();
        let _ = started.send(reply.as_fd(), &given);
        // The host has them, and the end of the mount is not to wait for this process.
        drop((mounted, network, refusals, records));
        let terminal = self.terminal.take().map(JailTerminal::into_program_side);
        let control = spec.wrapped.as_ref().map(|_| ProgramControl::new(reply, self.program, terminal));
        Ok(reap(
            self.program,
            &self.sigchld_fd,
            LimitMonitor::new(&spec, processes, JailBackend::Native, requests.into_iter().next())
                .with_rename_helper(HelperIsolation::new(&spec, &self.cgroup_fds, self.filter))
                .with_recorder(recorder),
            control,
        ))
    }

    /// Returns the overlay on the workspace of a wrapped program.
    fn mount(&self, spec: &RunSpec, shown: &[OwnedFd]) -> Result<Option<WorkspaceOverlay>, SetupError> {
        match (&spec.wrapped, &self.overlay) {
            (Some(wrapped), None) => wrapped_mounts::mount_place(spec, wrapped, shown, &self.root).map(Some),
            (None, Some(overlay)) => {
                run_mounts::mount_workspace(spec, shown, overlay, &self.root.hidden_root).map(|()| None)
            }
            _ => Err(SetupStep::Order.failed()(Errno::BADMSG)),
        }
    }
}

/// The network that this process and its program are in.
fn open_network(root: &JailRoot) -> Result<OwnedFd, SetupError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(&root.spawner_proc, "self/ns/net", flags, Mode::empty()).map_err(SetupStep::ProgramNetwork.failed())
}

/// The file in which the program finds what was refused, for the host to write to. It is in another mount of its directory,
/// which stays writable for its holder when the program's becomes read-only.
fn create_refusals_file() -> Result<OwnedFd, Errno> {
    let writable = clone_mount(CWD, SCRIPT_DIR, MountFlagScope::Mount)?;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(&writable, REFUSALS_FILE, flags, Mode::from_raw_mode(0o444))
}

fn close_script_directory() -> Result<(), Errno> {
    let shown = open(SCRIPT_DIR, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    sys::set_mount_flags(shown.as_fd(), READ_ONLY, MountFlagScope::Mount, None)
}

fn terminal_size(spec: &RunSpec) -> Option<TerminalSize> {
    spec.wrapped.as_ref().and_then(|wrapped| wrapped.terminal)
}

/// Listens for the jail's programs, and hands the sockets over to the proxy outside: the proxy's first, then one for
/// each loopback address that the other end has named, and those for names if it asked for them and the network of the
/// programs is ours to change. Programs that know the proxy do without those.
#[expect(clippy::disallowed_methods, reason = "it is in the jail's own network, and served from outside")]
pub(crate) fn open_egress(
    socket: Option<OwnedFd>,
    network: Option<(&JailRoot, Pid)>,
) -> Result<Option<OwnedFd>, SetupError> {
    let socket = socket.ok_or(Errno::BADMSG).map_err(SetupStep::Egress.failed())?;
    let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT));
    let listener = TcpListener::bind(proxy).map_err(|cause| SetupStep::Egress.failed_with(&cause))?;
    let wanted = WantedSockets::receive(&socket);
    // One that cannot be had is reached by the proxy.
    let loopback = wanted.loopback.into_iter().filter_map(|address| TcpListener::bind(address).ok());
    let mut sockets: Vec<OwnedFd> = std::iter::once(listener).chain(loopback).map(OwnedFd::from).collect();
    if let (Some(ports), Some((root, program))) = (&wanted.name_ports, network) {
        sockets.extend(open_name_network(root, program, ports).unwrap_or_default());
    }
    sys::send(socket.as_fd(), b"l", &sys::borrowed(&sockets)).map_err(SetupStep::Egress.failed())?;
    Ok(Some(socket))
}

/// Sockets that the other end wrote down before the run began.
#[derive(Debug, Default, PartialEq, Eq)]
struct WantedSockets {
    /// One a line, mostly none.
    loopback: Vec<SocketAddr>,
    /// A line `names`, with the ports of names.
    name_ports: Option<Vec<u16>>,
}

impl WantedSockets {
    fn receive(socket: &OwnedFd) -> Self {
        let mut buffer = [0; 4096];
        let read = recv(socket, &mut buffer, RecvFlags::DONTWAIT);
        Self::parse(&String::from_utf8_lossy(buffer.get(..read.map_or(0, |(read, _)| read)).unwrap_or_default()))
    }

    fn parse(text: &str) -> Self {
        let addresses = text.lines().filter_map(|line| line.parse::<SocketAddr>().ok());
        let loopback = addresses.filter(|address| address.ip().is_loopback()).take(MAX_LISTENERS).collect();
        let ports = |line: &str| {
            let ports = line.strip_prefix("names ")?.split(' ').filter_map(|port| port.parse().ok());
            // With the proxy, and two of the name server.
            Some(ports.filter(|port| *port != 0).take(MAX_LISTENERS - 2).collect())
        };
        Self { loopback, name_ports: text.lines().find_map(ports) }
    }
}

/// Its standard input and its report of the final directory, behind what is shown to it.
pub(crate) fn more_streams<'a>(spec: &RunSpec, shown: &'a [OwnedFd]) -> &'a [OwnedFd] {
    let count = usize::from(spec.has_stdin) + usize::from(spec.reports_directory);
    let first = spec.directory_count();
    shown.get(first..first + count).unwrap_or_default()
}

/// Waits until the program runs, behind every isolation. Returns the descriptors that came with the message: the
/// seccomp listener, if there is one. `None` if there is no such program.
pub(crate) fn wait_for_start(
    socket: &OwnedFd,
    mut recorder: Option<&mut CallRecorder<'_>>,
) -> Result<Option<Vec<OwnedFd>>, SetupError> {
    let mut started: Option<Vec<OwnedFd>> = None;
    loop {
        if let (Some(recorder), Some([requests, ..])) = (&mut recorder, started.as_deref()) {
            // The change of programs is one of the calls that are recorded.
            recorder.take_until_readable(requests.as_fd(), socket.as_fd());
        }
        let mut buffer = [0; MAX_MESSAGE_BYTES];
        let (bytes, descriptors) = sys::receive(socket.as_fd(), &mut buffer).map_err(SetupStep::Start.failed())?;
        if bytes.is_empty() {
            // Its end of the socket closed with the change of programs, or with its death before that.
            return started.ok_or(Errno::PIPE).map(Some).map_err(SetupStep::Start.failed());
        }
        match SpawnerReply::decode(bytes).map_err(SetupStep::Start.failed())? {
            SpawnerReply::Started { .. } => started = Some(descriptors),
            SpawnerReply::Failed(setup_error) => return Err(setup_error),
            _ => return Ok(None),
        }
    }
}

/// Monitors the limits while a program runs.
pub(crate) struct LimitMonitor<'a> {
    /// Nothing, where a cgroup keeps it.
    memory: Option<MemoryMonitor<'a>>,
    locks: FileLockBudget,
    /// The seccomp listener, as long as a process can notify it.
    requests: Option<OwnedFd>,
    cpu: Duration,
    processes: ProcessSource<'a>,
    renames: RenameRequests<'a>,
    recorder: Option<CallRecorder<'a>>,
}

impl<'a> LimitMonitor<'a> {
    pub(crate) fn new(
        spec: &RunSpec,
        processes: ProcessSource<'a>,
        backend: JailBackend,
        requests: Option<OwnedFd>,
    ) -> Self {
        let watch = || MemoryMonitor::new(spec.limits.memory_bytes, processes, memory_mounts(spec, backend));
        let memory = (!spec.memory_by_cgroup).then(watch);
        let locks = FileLockBudget::within(spec.limits.memory_bytes);
        let (cpu, renames) = (spec.limits.cpu.max(Duration::from_secs(1)), RenameRequests::new(None, processes));
        Self { memory, locks, requests, cpu, processes, renames, recorder: None }
    }

    /// Has directories of the workspace renamed that its overlay does not rename.
    pub(crate) fn with_rename_helper(self, isolation: HelperIsolation<'a>) -> Self {
        Self { renames: RenameRequests::new(Some(isolation), self.processes), ..self }
    }

    /// Records calls, where the host wants to know of them.
    fn with_recorder(self, recorder: Option<CallRecorder<'a>>) -> Self {
        Self { recorder, ..self }
    }

    /// Until a child ended, or there is something to do about memory.
    fn wait(&mut self, ended: &OwnedFd, control: Option<&mut ProgramControl<'_>>) {
        let every = self.memory.as_ref().map(|memory| Timespec::try_from(memory.next_count()).unwrap_or_default());
        let mut watched = vec![PollFd::new(ended, PollFlags::IN)];
        watched.extend(self.requests.as_ref().map(|requests| PollFd::new(requests, PollFlags::IN)));
        let (commands, commands_at) = (control.as_ref().and_then(|control| control.socket()), watched.len());
        watched.extend(commands.as_ref().map(|commands| PollFd::new(commands, PollFlags::IN)));
        let (terminal, terminal_at) = (control.as_ref().and_then(|control| control.terminal()), watched.len());
        watched.extend(terminal.as_ref().map(|terminal| PollFd::new(terminal, PollFlags::empty())));
        let _ = poll(&mut watched, every.as_ref());
        let ready: Vec<bool> = watched.iter().map(|one| !one.revents().is_empty()).collect();
        if ready.first() == Some(&true) {
            let _ = rustix::io::read(ended, &mut [0; 1024]);
        }
        if let Some(control) = control {
            if commands_at < terminal_at && ready.get(commands_at) == Some(&true) {
                control.follow_command();
            }
            if ready.get(terminal_at) == Some(&true) {
                control.hang_up();
            }
        }
        if ready.get(1) == Some(&true) {
            self.answer_request();
        }
    }

    /// Decides about one call that the filter asks about: shared memory is counted, locks have a budget, renames of
    /// directories a helper.
    fn answer_request(&mut self) {
        let Some(requests) = &self.requests else { return };
        match sys::next_notification(requests.as_fd()) {
            Ok(Some(call)) => {
                let call = match &mut self.recorder {
                    Some(recorder) => recorder.take(requests.as_fd(), call),
                    None => Some(call),
                };
                let Some(call) = call.and_then(|call| self.renames.take(requests.as_fd(), call)) else { return };
                let permission = match (call.number, &mut self.memory) {
                    (libc::SYS_mmap, Some(memory)) => {
                        memory.add_shared(call.arguments[1]);
                        Ok(())
                    }
                    _ => self.locks.take(),
                };
                let answer = permission.map_or_else(|errno| CallAnswer::Return(Err(errno)), |()| CallAnswer::Continue);
                let _ = sys::answer_call(requests.as_fd(), &call, answer);
            }
            Ok(None) => {}
            // Every process that could ask is gone.
            Err(_) => self.requests = None,
        }
    }
}

/// Reaps whatever ends, until the program has, then kills and reaps the rest. A rename that began is finished before.
pub(crate) fn reap(
    program: Pid,
    ended: &OwnedFd,
    mut bounds: LimitMonitor<'_>,
    mut control: Option<ProgramControl<'_>>,
) -> SpawnerReply {
    let options = control.as_ref().map_or(WaitOptions::empty(), ProgramControl::wait_options) | WaitOptions::NOHANG;
    let (mut beyond, mut exited) = (None, None);
    let status = loop {
        if let Some(status) = exited.take_if(|_| !bounds.renames.is_running()) {
            break status;
        }
        let has_proc = matches!(bounds.processes, ProcessSource::JailProc);
        let cpu = if has_proc { cpu_time_at_exit(program) } else { None };
        match wait(options) {
            Ok(Some((pid, status))) if status.stopped() => {
                if let Some(control) = &mut control {
                    control.report_stop(pid);
                }
            }
            Ok(Some((pid, status))) if pid == program && exited.is_none() => {
                let status = match status.terminating_signal() {
                    Some(signal) => ProgramStatus::Killed(signal),
                    None => ProgramStatus::Exited(status.exit_status().unwrap_or_default()),
                };
                // A process that ignores the signal is killed a second later.
                let used_up =
                    status == ProgramStatus::Killed(libc::SIGKILL) && cpu.is_some_and(|used| used >= bounds.cpu);
                beyond = beyond.or(used_up.then_some(LimitExceeded::Cpu));
                exited = Some(status);
                bounds.renames.close(bounds.requests.as_ref().map(AsFd::as_fd));
            }
            Ok(Some((pid, status))) => {
                bounds.renames.finish(bounds.requests.as_ref().map(AsFd::as_fd), pid, status);
            }
            Ok(None) => bounds.wait(ended, control.as_mut()),
            // The program was our child, and no other process reaps it.
            Err(_) => break exited.unwrap_or(ProgramStatus::Killed(libc::SIGKILL)),
        }
        // By the clock, not when nothing else happens: a program can see to it that something always does.
        if beyond.is_none() && bounds.memory.as_mut().is_some_and(MemoryMonitor::is_exceeded) {
            beyond = Some(LimitExceeded::Memory);
            sys::kill_all();
        }
    };
    kill_and_reap_all();
    SpawnerReply::Exited { status, beyond }
}

/// Kills and reaps until no process is left.
pub(crate) fn kill_and_reap_all() {
    loop {
        sys::kill_all();
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
}

/// CPU time of a child of ours, if it has ended and is not reaped yet, and if that can be read.
fn cpu_time_at_exit(program: Pid) -> Option<Duration> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(program), look).ok()??;
    // Only this kind of exit is examined: reading costs more than most exits do.
    ended.terminating_signal().filter(|signal| *signal == libc::SIGKILL)?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.as_raw_nonzero())).ok()?;
    // The second field may have anything in it, and ends with the last parenthesis. These are the fourteenth and the next.
    let mut ticks = stat.rsplit_once(") ")?.1.split(' ').skip(11).map_while(|ticks| ticks.parse::<u64>().ok());
    let ticks = ticks.next()? + ticks.next()?;
    Some(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::WantedSockets;

    #[test]
    fn wanted_sockets_are_loopback_addresses_and_ports_of_names() {
        let check = |text, loopback: &[&str], name_ports: Option<&[u16]>| {
            let loopback = loopback.iter().map(|address| address.parse().unwrap()).collect();
            let expected = WantedSockets { loopback, name_ports: name_ports.map(<[u16]>::to_vec) };
            assert_eq!(WantedSockets::parse(text), expected, "{text}");
        };
        check("", &[], None);
        check("127.0.0.1:80\n10.0.0.1:80\nx\n[::1]:90\n", &["127.0.0.1:80", "[::1]:90"], None);
        check("names 22 443 0 x 70000\n", &[], Some(&[22, 443]));
        check("127.0.0.1:80\nnames 80\n", &["127.0.0.1:80"], Some(&[80]));
    }
}
