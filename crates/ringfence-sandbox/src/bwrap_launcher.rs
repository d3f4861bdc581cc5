//! Bubblewrap launcher: our own binary, started again, which starts `bwrap` for each run.
//!
//! It replaces the spawner where only `bwrap` may make namespaces, and answers the same requests. It is small, has one
//! thread and no environment, and dies with the host; every `bwrap` dies with it, and its jail with that.
//!
//! Not here: the arguments of `bwrap` (`bwrap.rs`), and the first process inside (`bwrap_init.rs`).

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io::{Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Gid, MemfdFlags, Mode, OFlags, Uid, fstat, memfd_create, open, readlink};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, WaitId, WaitIdOptions, geteuid, getrlimit, set_dumpable_behavior, setrlimit,
    waitid,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::bwrap::{BwrapBinary, BwrapSpec, MaskKind, mount_path};
use crate::bwrap_init;
use crate::mounts::SYSTEM_DIRS;
use crate::protocol::{
    IdMapping, JailUser, MAX_MESSAGE_BYTES, RunSpec, SetupError, SetupStep, SpawnerRequest, read_paths,
};
use crate::run_mounts::resolve_beneath;
use crate::spawner::{refuse, refuse_all, reply_ready, run_as, take_socket};
use crate::sys::{self, ForkResult};
use crate::toolchain_secrets::{SecretPath, find_secrets};

/// Name of this process, by which it knows its role.
pub(crate) const NAME: &str = "ringfence-launcher";

/// `bwrap` takes 9000 words, and each cover has its own descriptor.
const MAX_MASKS: usize = 1000;

/// Exit status of `bwrap` for a setup error. Programs inside never end with it.
const BWRAP_FAILED: i32 = 1;

/// For the first line of `main`. Something, if this process was started as the launcher; it has ended then.
pub(crate) fn launcher_main() -> Option<ExitCode> {
    run_as(NAME, run_launcher)
}

/// Its standard input is the socket to the host.
fn run_launcher() -> Result<(), Errno> {
    let socket = take_socket()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match BwrapLauncher::new(socket.as_fd()) {
        Ok(launcher) => launcher.serve(),
        Err(setup_error) => refuse_all(socket.as_fd(), setup_error),
    }
    Ok(())
}

/// The state of the launcher.
struct BwrapLauncher<'a> {
    host: BorrowedFd<'a>,
    bwrap: BwrapBinary,
    /// Our own binary, to be started inside, where it has no path.
    program: OwnedFd,
    toolchains: Vec<PathBuf>,
    /// Runs that have no order yet, by the names that the host gave them.
    pending: HashMap<u64, PendingLaunch>,
    launched: Vec<LaunchedRun>,
}

struct PendingLaunch {
    identity: JailUser,
    reply: OwnedFd,
    /// Files to enter cgroups by.
    procs_files: Vec<OwnedFd>,
}

struct LaunchedRun {
    pidfd: OwnedFd,
    reply: OwnedFd,
}

impl<'a> BwrapLauncher<'a> {
    fn new(host: BorrowedFd<'a>) -> Result<Self, SetupError> {
        let bwrap = BwrapBinary::find().map_err(|_| SetupStep::Bwrap.failed()(Errno::NOENT))?;
        let program = open("/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let program = program.map_err(SetupStep::Bwrap.failed())?;
        // Every mask has a descriptor. Processes inside get their own limit.
        let most = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
        Ok(Self { host, bwrap, program, toolchains: Vec::new(), pending: HashMap::new(), launched: Vec::new() })
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

    /// Waits for the host, or for the end of a run. Whether the host asked.
    fn wait(&self) -> bool {
        let mut watched = vec![PollFd::new(&self.host, PollFlags::IN)];
        watched.extend(self.launched.iter().map(|run| PollFd::new(&run.pidfd, PollFlags::IN)));
        let _ = poll(&mut watched, None);
        watched.first().is_some_and(|host| !host.revents().is_empty())
    }

    /// Reaps ended processes, and reports runs that never began.
    fn reap(&mut self) {
        self.launched.retain(|run| {
            let ended = waitid(WaitId::PidFd(run.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            if let Ok(Some(ended)) = &ended
                && ended.exit_status() == Some(BWRAP_FAILED)
            {
                refuse(run.reply.as_fd(), SetupStep::Bwrap.failed()(Errno::PERM));
            }
            matches!(ended, Ok(None))
        });
    }

    fn handle_request(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let request = SpawnerRequest::decode(bytes);
        if let Ok(SpawnerRequest::Run { name }) = request {
            return self.run(name, descriptors);
        }
        let mut descriptors = descriptors.into_iter();
        if let Ok(SpawnerRequest::Discard { name }) = request {
            self.pending.remove(&name);
            return;
        }
        let Some(reply) = descriptors.next() else { return };
        match request {
            // `bwrap` shares no network.
            Ok(SpawnerRequest::Create { name, identity: IdMapping { outside: identity, .. }, .. }) => {
                self.pending.insert(name, PendingLaunch { identity, reply, procs_files: descriptors.collect() });
            }
            Ok(SpawnerRequest::Ping) => reply_ready(&reply),
            Ok(SpawnerRequest::SetImage) => {
                match descriptors.next().ok_or(Errno::BADMSG).and_then(|list| read_paths(&list)) {
                    Ok(toolchains) => {
                        self.toolchains = toolchains;
                        reply_ready(&reply);
                    }
                    Err(errno) => refuse(reply.as_fd(), SetupStep::Order.failed()(errno)),
                }
            }
            _ => refuse(reply.as_fd(), SetupStep::Order.failed()(Errno::BADMSG)),
        }
    }

    fn run(&mut self, name: u64, descriptors: Vec<OwnedFd>) {
        let Some(waiting) = self.pending.remove(&name) else { return };
        match self.start(&waiting, &descriptors) {
            Ok(handle) => self.launched.push(LaunchedRun { pidfd: handle, reply: waiting.reply }),
            Err(setup_error) => refuse(waiting.reply.as_fd(), setup_error),
        }
    }

    fn start(&self, waiting: &PendingLaunch, descriptors: &[OwnedFd]) -> Result<OwnedFd, SetupError> {
        let failed = || SetupStep::Order.failed::<Errno>();
        let [text, _, _, held @ ..] = descriptors else { return Err(failed()(Errno::BADMSG)) };
        let spec = RunSpec::read(text).map_err(failed())?;
        let covers = self.masks(&spec, held)?;
        let inside: Vec<BorrowedFd<'_>> =
            bwrap_init::descriptor_order([&self.program, &waiting.reply], descriptors).collect();
        let list = sys::FIRST_INHERITED_FD + inside.len() as RawFd;
        let host = Path::new("/");
        let bwrap_spec =
            BwrapSpec { spec: &spec, toolchains: &self.toolchains, masks: &covers, host, first_fd: list + 1 };
        let bwrap_spec = self.bwrap.build_args(&bwrap_spec);
        let contents = std::iter::once(bwrap_spec.bytes()).chain(bwrap_spec.data.iter().cloned());
        let contents: Vec<OwnedFd> = contents
            .map(|bytes| memfd_with(&bytes))
            .collect::<Result<_, _>>()
            .map_err(|cause| SetupStep::Order.failed_with(&cause))?;
        let kept: Vec<BorrowedFd<'_>> = inside.into_iter().chain(contents.iter().map(AsFd::as_fd)).collect();
        // SAFETY: this process has one thread.
        match unsafe { sys::clone_into(0) }.map_err(SetupStep::Start.failed())? {
            ForkResult::Child => self.exec_bwrap(waiting, &kept, list),
            ForkResult::Parent(child) => Ok(child.pidfd),
        }
    }

    /// In a new process.
    fn exec_bwrap(&self, waiting: &PendingLaunch, kept: &[BorrowedFd<'_>], list: RawFd) -> ! {
        let words = || -> Result<(CString, Vec<CString>), std::ffi::NulError> {
            let own = format!("/proc/self/fd/{}", sys::FIRST_INHERITED_FD);
            let words = ["bwrap", "--args", &list.to_string(), "--", &own, bwrap_init::NAME].map(CString::new);
            Ok((CString::new(self.bwrap.path.as_os_str().as_bytes())?, words.into_iter().collect::<Result<_, _>>()?))
        };
        if let (Ok((path, argv)), Ok(())) = (words(), self.prepare(waiting, kept)) {
            sys::execve(&path, &argv, &[]);
        }
        sys::exit_with(BWRAP_FAILED)
    }

    /// Its cgroup first, so that the namespace of cgroups begins there, and root's powers last.
    fn prepare(&self, waiting: &PendingLaunch, kept: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        for cgroup_fd in &waiting.procs_files {
            rustix::io::write(cgroup_fd, b"0")?;
        }
        // Where the machine is short of memory, it is to end what runs in a jail before anything else.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        sys::keep_only(kept)?;
        for index in 0..kept.len() {
            let descriptor = sys::inherited_fd(index);
            fcntl_setfd(&descriptor, FdFlags::empty())?;
            let _ = descriptor.into_raw_fd();
        }
        if geteuid().is_root() {
            let (user, group) = (Uid::from_raw(waiting.identity.uid), Gid::from_raw(waiting.identity.gid));
            set_thread_groups(&[])?;
            set_thread_res_gid(group, group, group)?;
            set_thread_res_uid(user, user, user)?;
        }
        sys::die_with_parent()
    }

    /// Every path in the jail that is masked, by the current entries. The init process checks that it is.
    fn masks<'b>(&self, spec: &'b RunSpec, held: &[OwnedFd]) -> Result<BTreeMap<PathBuf, MaskKind<'b>>, SetupError> {
        let failed = || SetupStep::Cover.failed::<Errno>();
        let mut covers = BTreeMap::new();
        for (index, (directory, held)) in spec.mounts.iter().zip(held).enumerate() {
            let root = path_of(held.as_fd()).map_err(failed())?;
            let empty = directory.masked.iter().map(|path| (path, b"".as_slice()));
            let own = spec.files.iter().filter(|file| index == 0 && !file.over.as_os_str().is_empty());
            for (path, contents) in empty.chain(own.map(|file| (&file.over, file.contents.as_slice()))) {
                let Some(target) = resolve_beneath(held.as_fd(), path).map_err(failed())? else { continue };
                let kind = FileType::from_raw_mode(fstat(&target).map_err(failed())?.st_mode);
                let cover = if kind == FileType::Directory { MaskKind::Directory } else { MaskKind::File(contents) };
                let real = path_of(target.as_fd()).map_err(failed())?;
                let below = real.strip_prefix(&root).map_err(|_| failed()(Errno::STALE))?;
                covers.insert(mount_path(spec, index).join(below), cover);
                covers.extend(self.jail_paths_of(&real).map(|jail_path| (jail_path, cover)));
            }
        }
        let host = Path::new("/");
        let system = SYSTEM_DIRS.iter().map(|name| host.join(name));
        for shown in system.chain(self.toolchains.iter().cloned()) {
            let Some(path) = shown.strip_prefix(host).ok().filter(|_| !is_link(&shown)) else { continue };
            // A directory that is too large to be searched for secrets is not shown at all.
            let secrets = find_secrets(host, path).ok_or(Errno::TOOBIG).map_err(failed())?;
            covers.extend(secrets.into_iter().map(|secret| match secret {
                SecretPath::File(path) => (shown.join(path), MaskKind::File(b"")),
                SecretPath::Directory(path) => (shown.join(path), MaskKind::Directory),
            }));
        }
        if covers.len() > MAX_MASKS {
            return Err(failed()(Errno::TOOBIG));
        }
        Ok(covers)
    }

    /// Other paths in the jail of a path of the host: a workspace may lie in `/usr/src`, or have a toolchain in it.
    fn jail_paths_of<'b>(&'b self, real: &'b Path) -> impl Iterator<Item = PathBuf> + 'b {
        let system = SYSTEM_DIRS.iter().map(|name| Path::new("/").join(name));
        system.chain(self.toolchains.iter().cloned()).filter(move |shown| !is_link(shown)).filter_map(move |shown| {
            let below = real.strip_prefix(std::fs::canonicalize(&shown).ok()?).ok()?;
            Some(shown.join(below))
        })
    }
}

/// A link is shown as a link, and what it leads to is shown somewhere else or not at all.
fn is_link(shown: &Path) -> bool {
    std::fs::symlink_metadata(shown).is_ok_and(|found| found.is_symlink())
}

/// The host path of a descriptor.
fn path_of(descriptor: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::ffi::OsStringExt as _;
    let path = readlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}

/// Contents to be read from the start.
fn memfd_with(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create("contents", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
