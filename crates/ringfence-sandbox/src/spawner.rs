//! Spawner process: our own binary, started again, which creates jails.
//!
//! It is small, has one thread, no environment and no network, and is the first process of a pid namespace that all jails
//! live in: when it dies, the kernel kills them all, and it dies with the host. Its parent, the process that the host
//! started, only maps its users and waits for it.
//!
//! Not here: what a jail is (`jail.rs`). The host's side is `sandbox.rs`.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitId, WaitIdOptions, WaitOptions, geteuid, pidfd_send_signal,
    set_dumpable_behavior, umask, waitid, waitpid,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups, unshare_unsafe};

use crate::init;
use crate::isolation::scopes_abstract_sockets;
use crate::jail::{JailBlueprint, JailNetwork, clone_init, clone_with_id_map, process_path, set_network_sysctls};
use crate::layer_source::find_layer;
use crate::lockdown::SYSTEM_UMASK;
use crate::mounts::{READ_ONLY, clone_mount, enter_image};
use crate::program_network::NetworkHandle;
use crate::protocol::{
    IdMapping, ImagePlan, JailKind, JailUser, MAX_MESSAGE_BYTES, RunSpec, SetupError, SetupStep, SpawnerReply,
    SpawnerRequest, WrappedSpec, read_paths,
};
use crate::seccomp::SeccompFilters;
use crate::sys::{self, ChildProcess, ForkResult, MountFlagScope};

/// Name of this process, by which it knows its role.
pub(crate) const NAME: &str = "ringfence-spawner";

/// The spawner's own namespaces.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// For the first line of `main`. Something, if this process was started as the spawner; it has ended then.
pub(crate) fn spawner_main() -> Option<ExitCode> {
    run_as(NAME, run_spawner)
}

/// Does what a process of this name is for, if this is one.
pub(crate) fn run_as(name: &str, begin: fn() -> Result<(), Errno>) -> Option<ExitCode> {
    let called = std::env::args_os().next()?;
    (called == name).then(|| match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// The socket to the host, which came as standard input. Nothing else that was open stays so, and this process ends with the
/// host. The directories of a root have the modes of a plain system whatever umask the host has: the users of a jail must
/// be able to enter them.
pub(crate) fn take_socket() -> Result<OwnedFd, Errno> {
    sys::keep_only(&[rustix::stdio::stdin()])?;
    let socket = sys::inherited_fd(0);
    sys::dup_onto(open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?.as_fd(), 0)?;
    sys::reset_signals();
    umask(SYSTEM_UMASK);
    sys::die_with_parent()?;
    Ok(socket)
}

/// In the process that the host started. Its standard input is the socket to the host.
fn run_spawner() -> Result<(), Errno> {
    let socket = take_socket()?;
    match start_spawner() {
        Ok(ForkResult::Child) => {
            // In its own words, if it cannot even begin.
            match JailSpawner::new(socket.as_fd()) {
                Ok(spawner) => spawner.serve(),
                Err(setup_error) => refuse_all(socket.as_fd(), setup_error),
            }
            sys::exit()
        }
        Ok(ForkResult::Parent(child)) => {
            // The host learns of the spawner's end by this socket.
            drop(socket);
            waitpid(Some(child.pid), WaitOptions::empty()).map(drop)
        }
        Err(setup_error) => {
            refuse_all(socket.as_fd(), setup_error);
            Ok(())
        }
    }
}

/// Refuses every request with a setup error, until the host ends this process.
pub(crate) fn refuse_all(host: BorrowedFd<'_>, setup_error: SetupError) {
    let mut buffer = [0; MAX_MESSAGE_BYTES];
    while let Ok((bytes, descriptors)) = sys::receive(host, &mut buffer) {
        match descriptors.first() {
            _ if bytes.is_empty() => return,
            Some(reply) => refuse(reply.as_fd(), setup_error),
            None => {}
        }
    }
}

/// Sends a refusal. A closed socket is ignored.
pub(crate) fn refuse(socket: BorrowedFd<'_>, setup_error: SetupError) {
    let _ = SpawnerReply::Failed(setup_error).send(socket, &[]);
}

pub(crate) fn reply_ready(reply: &OwnedFd) {
    let _ = SpawnerReply::Ready.send(reply.as_fd(), &[]);
}

/// A process in namespaces of its own with all users that this one has; for a plain user, that is itself.
fn start_spawner() -> Result<ForkResult, SetupError> {
    let failed = || SetupStep::Namespaces.failed::<Errno>();
    if geteuid().is_root() {
        set_thread_groups(&[]).map_err(SetupStep::Users.failed())?;
    }
    let (ours, theirs) = sys::message_pair().map_err(failed())?;
    // SAFETY: this process has one thread.
    match unsafe { sys::clone_into(NAMESPACES) }.map_err(failed())? {
        ForkResult::Child => {
            drop(ours);
            let go = sys::receive(theirs.as_fd(), &mut [0; 1]).is_ok_and(|(bytes, _)| !bytes.is_empty());
            if !go {
                sys::exit();
            }
            sys::die_with_parent().map_err(SetupStep::Hold.failed())?;
            set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(SetupStep::Hold.failed())?;
            Ok(ForkResult::Child)
        }
        ForkResult::Parent(child) => {
            write_identity_maps(child.pid).map_err(|cause| SetupStep::Users.failed_with(&cause))?;
            set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(SetupStep::Hold.failed())?;
            sys::send(ours.as_fd(), b"g", &[]).map_err(SetupStep::Users.failed())?;
            Ok(ForkResult::Parent(child))
        }
    }
}

/// Maps every user to itself in the new namespace. Without root that is possible for one only.
fn write_identity_maps(pid: Pid) -> std::io::Result<()> {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    if geteuid().is_root() {
        for file in ["uid_map", "gid_map"] {
            let own = std::fs::read_to_string(PathBuf::from("/proc/self").join(file))?;
            std::fs::write(process.join(file), identity_map(&own))?;
        }
        return Ok(());
    }
    let own = std::fs::metadata("/proc/self")?;
    std::fs::write(process.join("uid_map"), format!("{0} {0} 1", own.uid()))?;
    std::fs::write(process.join("setgroups"), "deny")?;
    std::fs::write(process.join("gid_map"), format!("{0} {0} 1", own.gid()))
}

/// From the ranges that a namespace has, those ranges again, each on itself.
fn identity_map(own: &str) -> String {
    let mut map = String::new();
    for line in own.lines() {
        let mut numbers = line.split_whitespace();
        if let (Some(first), _, Some(count)) = (numbers.next(), numbers.next(), numbers.next()) {
            map.push_str(&format!("{first} {first} {count}\n"));
        }
    }
    map
}

/// A jail that is not claimed yet.
#[derive(Debug)]
struct IdleJail {
    init: ChildProcess,
    socket: OwnedFd,
    /// To the host.
    reply: OwnedFd,
}

impl IdleJail {
    /// Starts one. It finishes itself while the caller goes on. `cgroup_fds` lead into its cgroup. A failure is sent to the
    /// host.
    fn start(
        blueprint: &JailBlueprint,
        reply: OwnedFd,
        cgroup_fds: &[OwnedFd],
        filter: &SeccompFilters,
    ) -> Option<Self> {
        match Self::begin(blueprint, &reply, cgroup_fds, filter) {
            Ok((init, socket)) => {
                let _ = SpawnerReply::Created.send(reply.as_fd(), &[init.pidfd.as_fd()]);
                Some(Self { init, socket, reply })
            }
            Err(setup_error) => {
                let _ = SpawnerReply::Failed(setup_error).send(reply.as_fd(), &[]);
                None
            }
        }
    }

    fn begin(
        blueprint: &JailBlueprint,
        reply: &OwnedFd,
        cgroup_fds: &[OwnedFd],
        filter: &SeccompFilters,
    ) -> Result<(ChildProcess, OwnedFd), SetupError> {
        let (socket, theirs) = sys::message_pair().map_err(SetupStep::Namespaces.failed())?;
        match clone_init(blueprint)? {
            ForkResult::Child => init::run_init(&theirs, reply, cgroup_fds, filter, blueprint),
            ForkResult::Parent(child) => Ok((child, socket)),
        }
    }
}

/// The state of the spawner.
struct JailSpawner<'a> {
    host: BorrowedFd<'a>,
    /// Mount namespace with the host's files and the image.
    host_mount_ns: OwnedFd,
    image_mount_ns: OwnedFd,
    filter: SeccompFilters,
    /// The filter of jails that share a network, if that is another: an abstract socket leads to every process of a network,
    /// and a descriptor that is sent there would outlive the limits of its jail.
    shared_filter: Option<SeccompFilters>,
    /// The spawner's own network, in which nothing listens.
    own_network: OwnedFd,
    /// Networks that jails share, by the names that the host gave them.
    networks: HashMap<u64, OwnedFd>,
    /// Jails that wait, by the names that the host gave them.
    idle: HashMap<u64, IdleJail>,
    /// First processes of jails in use, to be reaped.
    running: Vec<OwnedFd>,
}

impl<'a> JailSpawner<'a> {
    fn new(host: BorrowedFd<'a>) -> Result<Self, SetupError> {
        let failed = || SetupStep::Root.failed::<Errno>();
        // Later mounts of the host propagate here, but none the other way.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).map_err(failed())?;
        let hosts_files = open_mount_ns().map_err(failed())?;
        let image = open_mount_ns().map_err(failed())?;
        let seccomp_failed = |_| SetupStep::Seccomp.failed()(Errno::INVAL);
        let filter = SeccompFilters::new().map_err(seccomp_failed)?;
        let shared_filter = match scopes_abstract_sockets() {
            true => None,
            false => Some(SeccompFilters::without_named_sockets().map_err(seccomp_failed)?),
        };
        Ok(Self {
            host,
            host_mount_ns: hosts_files,
            image_mount_ns: image,
            filter,
            shared_filter,
            own_network: open_network_ns().map_err(failed())?,
            networks: HashMap::new(),
            idle: HashMap::new(),
            running: Vec::new(),
        })
    }

    /// Until the host is gone.
    fn serve(mut self) {
        let mut buffer = [0; MAX_MESSAGE_BYTES];
        loop {
            let asked = self.wait();
            self.reap();
            if !asked {
                continue;
            }
            match sys::receive(self.host, &mut buffer) {
                Ok((bytes, descriptors)) if !bytes.is_empty() => self.handle_request(bytes, descriptors),
                Err(Errno::MSGSIZE) => {}
                _ => return,
            }
        }
    }

    fn handle_request(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let request = SpawnerRequest::decode(bytes);
        match request {
            Ok(SpawnerRequest::Create { name, identity, network, kind }) => {
                let mut descriptors = descriptors.into_iter();
                let Some(reply) = descriptors.next() else { return };
                let plan = if kind == JailKind::Tool { None } else { descriptors.next() };
                let cgroup_fds: Vec<OwnedFd> = descriptors.collect();
                let blueprint = JailBlueprint { identity, network: JailNetwork::Own, kind };
                let jail = match plan {
                    None => self.create(blueprint, reply, &cgroup_fds, network),
                    Some(plan) => self.create_wrapped(&blueprint, reply, &cgroup_fds, &plan),
                };
                self.idle.extend(jail.map(|jail| (name, jail)));
                return;
            }
            Ok(SpawnerRequest::Run { name }) => return self.run(name, descriptors),
            Ok(SpawnerRequest::CloseNetwork { network }) => {
                self.networks.remove(&network);
                return;
            }
            // It ends by itself, because the other end of its socket is closed.
            Ok(SpawnerRequest::Discard { name }) => {
                self.running.extend(self.idle.remove(&name).map(|jail| jail.init.pidfd));
                return;
            }
            _ => {}
        }
        let mut descriptors = descriptors.into_iter();
        let Some(reply) = descriptors.next() else { return };
        let answer = match request {
            Ok(SpawnerRequest::SetImage) => self.rebuild_image(descriptors.next()).map(|()| reply_ready(&reply)),
            Ok(SpawnerRequest::Ping) => {
                reply_ready(&reply);
                Ok(())
            }
            Ok(SpawnerRequest::MapUser { from, to }) => create_user_ns(from, to, &reply),
            Ok(SpawnerRequest::OpenInNetwork { handle }) => self.open_in_network(handle, descriptors.next(), &reply),
            _ => Err(SetupStep::Order.failed()(Errno::BADMSG)),
        };
        if let Err(setup_error) = answer {
            refuse(reply.as_fd(), setup_error);
        }
    }

    /// Starts a jail, in the network that it is to share if there is one.
    fn create(
        &mut self,
        blueprint: JailBlueprint,
        reply: OwnedFd,
        cgroup_fds: &[OwnedFd],
        network: Option<u64>,
    ) -> Option<IdleJail> {
        let Some(network) = network else {
            return IdleJail::start(&blueprint, reply, cgroup_fds, &self.filter);
        };
        if let Err(errno) = self.enter_network(network) {
            let _ = enter_network_ns(&self.own_network);
            refuse(reply.as_fd(), SetupStep::Network.failed()(errno));
            return None;
        }
        let filter = self.shared_filter.as_ref().unwrap_or(&self.filter);
        let blueprint = JailBlueprint { network: JailNetwork::Shared, ..blueprint };
        let jail = IdleJail::start(&blueprint, reply, cgroup_fds, filter);
        let _ = enter_network_ns(&self.own_network);
        jail
    }

    /// Starts a jail in an image of its own, which ends with it.
    fn create_wrapped(
        &self,
        blueprint: &JailBlueprint,
        reply: OwnedFd,
        cgroup_fds: &[OwnedFd],
        plan: &OwnedFd,
    ) -> Option<IdleJail> {
        let entered = ImagePlan::read(plan)
            .and_then(|plan| enter_mount_ns(&self.host_mount_ns).and_then(|()| enter_image(&plan)));
        let jail = match entered {
            Ok(()) => IdleJail::start(blueprint, reply, cgroup_fds, &self.filter),
            Err(errno) => {
                refuse(reply.as_fd(), SetupStep::Root.failed()(errno));
                None
            }
        };
        let _ = enter_mount_ns(&self.image_mount_ns);
        jail
    }

    /// Enters a shared network, which is made when it is first asked for. It belongs to the spawner's users, so that no
    /// process of a jail can change it.
    fn enter_network(&mut self, network: u64) -> Result<(), Errno> {
        if let Some(known) = self.networks.get(&network) {
            return enter_network_ns(known);
        }
        // SAFETY: this process has one thread, and its descriptors stay its own.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        sys::bring_up_loopback()?;
        set_network_sysctls();
        self.networks.insert(network, open_network_ns()?);
        Ok(())
    }

    /// Opens something in the network of a program, which belongs to a user namespace below ours.
    fn open_in_network(
        &self,
        handle: NetworkHandle,
        network: Option<OwnedFd>,
        reply: &OwnedFd,
    ) -> Result<(), SetupError> {
        let network = network.ok_or(Errno::BADMSG).map_err(SetupStep::ProgramNetwork.failed())?;
        enter_network_ns(&network).map_err(SetupStep::ProgramNetwork.failed())?;
        let opened = open_handle(handle);
        let _ = enter_network_ns(&self.own_network);
        let opened = opened.map_err(SetupStep::ProgramNetwork.failed())?;
        let _ = SpawnerReply::Opened.send(reply.as_fd(), &[opened.as_fd()]);
        Ok(())
    }

    /// Waits for the host, or for the end of a jail. Whether the host asked.
    fn wait(&self) -> bool {
        let mut watched = vec![PollFd::new(&self.host, PollFlags::IN)];
        watched.extend(self.running.iter().map(|jail| PollFd::new(jail, PollFlags::IN)));
        watched.extend(self.idle.values().map(|jail| PollFd::new(&jail.init.pidfd, PollFlags::IN)));
        let _ = poll(&mut watched, None);
        watched.first().is_some_and(|host| !host.revents().is_empty())
    }

    /// Reaps what died.
    fn reap(&mut self) {
        let is_dead = |jail: &OwnedFd| {
            let reaped = waitid(WaitId::PidFd(jail.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            !matches!(reaped, Ok(None))
        };
        self.running.retain(|jail| !is_dead(jail));
        self.idle.retain(|_, jail| !is_dead(&jail.init.pidfd));
    }

    /// Sends a jail its run spec. If it died meanwhile, the host sees its socket closed.
    fn run(&mut self, name: u64, descriptors: Vec<OwnedFd>) {
        let Some(jail) = self.idle.remove(&name) else { return };
        let sent = self.mount_view(descriptors).and_then(|descriptors| {
            sys::send(jail.socket.as_fd(), b"o", &sys::borrowed(&descriptors)).map_err(SetupStep::Order.failed())
        });
        if let Err(setup_error) = sent {
            refuse(jail.reply.as_fd(), setup_error);
        }
        self.running.push(jail.init.pidfd);
    }

    /// The image holds the toolchains. Other ones than before need another image; jails that wait keep theirs.
    fn rebuild_image(&mut self, toolchains: Option<OwnedFd>) -> Result<(), SetupError> {
        let failed = || SetupStep::Root.failed::<Errno>();
        let toolchains = read_paths(&toolchains.ok_or(Errno::BADMSG).map_err(failed())?).map_err(failed())?;
        enter_mount_ns(&self.host_mount_ns).map_err(failed())?;
        let entered = enter_image(&ImagePlan { toolchains, ..ImagePlan::default() });
        if entered.is_err() {
            enter_mount_ns(&self.image_mount_ns).map_err(failed())?;
        }
        entered.map_err(failed())?;
        self.image_mount_ns = open_mount_ns().map_err(failed())?;
        Ok(())
    }

    /// Replaces each held directory of the view by a mount of it.
    fn mount_view(&self, mut descriptors: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, SetupError> {
        let spec = descriptors.first().ok_or(Errno::BADMSG).map_err(SetupStep::Order.failed())?;
        let spec = RunSpec::read(spec).map_err(SetupStep::Order.failed())?;
        let shown = &spec.mounts;
        let wrapped = spec.wrapped.as_ref().filter(|wrapped| !wrapped.is_mounted);
        if shown.iter().all(|directory| directory.is_mount) && wrapped.is_none() {
            return Ok(descriptors);
        }
        enter_mount_ns(&self.host_mount_ns).map_err(SetupStep::Find.failed())?;
        // Behind the order and the two streams.
        let mount_fds = descriptors.iter_mut().skip(3).zip(shown).filter(|(_, directory)| !directory.is_mount);
        let mut found = Ok(());
        for (mount_fd, directory) in mount_fds {
            match mount_if_same(mount_fd.as_fd(), &directory.path) {
                Ok(mount) => *mount_fd = mount,
                Err(setup_error) => found = Err(setup_error),
            }
        }
        if let Some(wrapped) = wrapped {
            let directories = descriptors.get_mut(3 + shown.len()..).unwrap_or_default();
            found = found.and_then(|()| mount_wrapped_dirs(wrapped, directories));
        }
        enter_mount_ns(&self.image_mount_ns).map_err(SetupStep::Find.failed())?;
        found.map(|()| descriptors)
    }
}

/// Replaces the held directories of a wrapped program by mounts of them.
fn mount_wrapped_dirs(wrapped: &WrappedSpec, directories: &mut [OwnedFd]) -> Result<(), SetupError> {
    let Some((home_start, layers)) = directories.split_first_mut() else {
        return Err(SetupStep::Order.failed()(Errno::BADMSG));
    };
    *home_start = mount_if_same(home_start.as_fd(), &wrapped.home_start)?;
    let Some((layers, lowers)) = layers.split_at_mut_checked(wrapped.layer_descriptors()) else {
        return Err(SetupStep::Order.failed()(Errno::BADMSG));
    };
    for (cache, lower) in wrapped.caches.iter().filter(|cache| cache.has_lower()).zip(lowers) {
        *lower = mount_if_same(lower.as_fd(), &cache.lower)?;
    }
    let caches = wrapped.caches.iter().map(|cache| &cache.layer);
    let paths = [&wrapped.workspace_layer, &wrapped.home_layer].into_iter().chain(caches);
    for (path, held) in paths.zip(layers.chunks_mut(WrappedSpec::LAYER_DESCRIPTORS)) {
        let found = find_layer(path, &sys::borrowed(held)).map_err(SetupStep::Find.failed())?;
        held.iter_mut().zip(found).for_each(|(held, found)| *held = found);
    }
    Ok(())
}

/// A mount of a directory that was found by its path, if it is the one that is held.
fn mount_if_same(held: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, SetupError> {
    let failed = || SetupStep::Find.failed::<Errno>();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = open(path, flags, Mode::empty()).map_err(failed())?;
    let (is, should) = (fstat(&found).map_err(failed())?, fstat(held).map_err(failed())?);
    if (is.st_dev, is.st_ino) != (should.st_dev, should.st_ino) {
        return Err(failed()(Errno::STALE));
    }
    // Mounts inside, in a namespace that is not ours, cannot be excluded.
    let mount = clone_mount(found.as_fd(), "", MountFlagScope::Mount)
        .or_else(|_| clone_mount(found.as_fd(), "", MountFlagScope::Tree))
        .map_err(SetupStep::Show.failed())?;
    sys::set_mount_flags(mount.as_fd(), READ_ONLY, MountFlagScope::Tree, None).map_err(SetupStep::Show.failed())?;
    Ok(mount)
}

/// In the network that this process is in.
fn open_handle(handle: NetworkHandle) -> Result<OwnedFd, Errno> {
    let socket = |family| socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let table = |path| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    match handle {
        NetworkHandle::Ipv4Socket => socket(AddressFamily::INET),
        NetworkHandle::Ipv6Socket => socket(AddressFamily::INET6),
        NetworkHandle::Ipv4Table => table("/proc/self/net/tcp"),
        NetworkHandle::Ipv6Table => table("/proc/self/net/tcp6"),
    }
}

fn open_mount_ns() -> Result<OwnedFd, Errno> {
    open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn open_network_ns() -> Result<OwnedFd, Errno> {
    open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn enter_network_ns(namespace: &OwnedFd) -> Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

fn enter_mount_ns(namespace: &OwnedFd) -> Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
}

/// Makes a user namespace in which one user is another, for an idmapped mount. No process stays in it.
fn create_user_ns(from: JailUser, to: JailUser, reply: &OwnedFd) -> Result<(), SetupError> {
    let child = match clone_with_id_map(libc::CLONE_NEWUSER, IdMapping { inside: from, outside: to })? {
        ForkResult::Child => loop {
            // To be killed.
            let _ = poll(&mut [], None);
        },
        ForkResult::Parent(child) => child,
    };
    let namespace = process_path(&child).map_err(|cause| SetupStep::Users.failed_with(&cause)).and_then(|process| {
        open(process.join("ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(SetupStep::Users.failed())
    });
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
    let _ = SpawnerReply::Mapped.send(reply.as_fd(), &[namespace?.as_fd()]);
    Ok(())
}
