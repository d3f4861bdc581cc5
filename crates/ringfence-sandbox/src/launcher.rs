//! The launcher: our own binary, started once more, that starts the system's `bwrap` for each run.
//!
//! It takes the spawner's place where only `bwrap` may make namespaces, and answers the same requests. It is small, has one
//! thread and no environment, and dies with the host; every `bwrap` dies with it, and what runs inside with that.
//!
//! Not here: what `bwrap` is told (`bwrap.rs`), and the first process inside (`inmate.rs`).

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

use crate::bwrap::{Bwrap, Cover, Told, shown_at};
use crate::claim::find;
use crate::inmate;
use crate::message::{Identity, LONGEST, Order, Request, Step, Trouble, read_paths};
use crate::mounts::SYSTEM;
use crate::spawner::{greet, refuse, refuse_all, started_as, take_socket};
use crate::sys::{self, Side};
use crate::toolchain_secrets::{Secret, secrets};

/// What the host calls this process, and how it knows what it is.
pub(crate) const NAME: &str = "ringfence-launcher";

/// `bwrap` takes 9000 words, and each cover has its own descriptor.
const MOST_COVERS: usize = 1000;

/// How `bwrap` says that it could not build something. What runs inside always ends otherwise.
const BWRAP_FAILED: i32 = 1;

/// For the first line of `main`. Something, if this process was started as the launcher; it has ended then.
pub(crate) fn launcher_main() -> Option<ExitCode> {
    started_as(NAME, begin)
}

/// Its standard input is the socket to the host.
fn begin() -> Result<(), Errno> {
    let socket = take_socket()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match Launcher::new(socket.as_fd()) {
        Ok(launcher) => launcher.serve(),
        Err(trouble) => refuse_all(socket.as_fd(), trouble),
    }
    Ok(())
}

/// The state of the launcher.
struct Launcher<'a> {
    host: BorrowedFd<'a>,
    bwrap: Bwrap,
    /// Our own binary, to be started inside, where it has no path.
    program: OwnedFd,
    toolchains: Vec<PathBuf>,
    /// Runs that have no order yet, by the names that the host gave them.
    waiting: HashMap<u64, Waiting>,
    running: Vec<Running>,
}

struct Waiting {
    identity: Identity,
    reply: OwnedFd,
    /// Files to enter cgroups by.
    doors: Vec<OwnedFd>,
}

struct Running {
    handle: OwnedFd,
    reply: OwnedFd,
}

impl<'a> Launcher<'a> {
    fn new(host: BorrowedFd<'a>) -> Result<Self, Trouble> {
        let bwrap = Bwrap::find().map_err(|_| Step::Bwrap.failed()(Errno::NOENT))?;
        let program = open("/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let program = program.map_err(Step::Bwrap.failed())?;
        // Every cover has a descriptor. What runs inside gets its own limit.
        let most = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
        Ok(Self { host, bwrap, program, toolchains: Vec::new(), waiting: HashMap::new(), running: Vec::new() })
    }

    /// Until the host is gone.
    fn serve(mut self) {
        let mut buffer = [0; LONGEST];
        loop {
            let asked = self.wait();
            self.bury();
            if !asked {
                continue;
            }
            match sys::receive(self.host, &mut buffer) {
                Ok((bytes, descriptors)) if !bytes.is_empty() => self.answer(bytes, descriptors),
                Err(Errno::MSGSIZE) => {}
                _ => return,
            }
        }
    }

    /// Waits for the host, or for the end of a run. Whether the host asked.
    fn wait(&self) -> bool {
        let mut watched = vec![PollFd::new(&self.host, PollFlags::IN)];
        watched.extend(self.running.iter().map(|run| PollFd::new(&run.handle, PollFlags::IN)));
        let _ = poll(&mut watched, None);
        watched.first().is_some_and(|host| !host.revents().is_empty())
    }

    /// Reaps what ended. Whoever waits for a run that never began is told so.
    fn bury(&mut self) {
        self.running.retain(|run| {
            let ended = waitid(WaitId::PidFd(run.handle.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            if let Ok(Some(ended)) = &ended
                && ended.exit_status() == Some(BWRAP_FAILED)
            {
                refuse(run.reply.as_fd(), Step::Bwrap.failed()(Errno::PERM));
            }
            matches!(ended, Ok(None))
        });
    }

    fn answer(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let request = Request::decode(bytes);
        if let Ok(Request::Run { name }) = request {
            return self.run(name, descriptors);
        }
        let mut descriptors = descriptors.into_iter();
        if let Ok(Request::Discard { name }) = request {
            self.waiting.remove(&name);
            return;
        }
        let Some(reply) = descriptors.next() else { return };
        match request {
            Ok(Request::Make { name, identity }) => {
                self.waiting.insert(name, Waiting { identity, reply, doors: descriptors.collect() });
            }
            Ok(Request::Greet) => greet(&reply),
            Ok(Request::Image) => match descriptors.next().ok_or(Errno::BADMSG).and_then(|list| read_paths(&list)) {
                Ok(toolchains) => {
                    self.toolchains = toolchains;
                    greet(&reply);
                }
                Err(errno) => refuse(reply.as_fd(), Step::Order.failed()(errno)),
            },
            _ => refuse(reply.as_fd(), Step::Order.failed()(Errno::BADMSG)),
        }
    }

    fn run(&mut self, name: u64, descriptors: Vec<OwnedFd>) {
        let Some(waiting) = self.waiting.remove(&name) else { return };
        match self.start(&waiting, &descriptors) {
            Ok(handle) => self.running.push(Running { handle, reply: waiting.reply }),
            Err(trouble) => refuse(waiting.reply.as_fd(), trouble),
        }
    }

    fn start(&self, waiting: &Waiting, descriptors: &[OwnedFd]) -> Result<OwnedFd, Trouble> {
        let failed = || Step::Order.failed::<Errno>();
        let [text, _, _, held @ ..] = descriptors else { return Err(failed()(Errno::BADMSG)) };
        let order = Order::read(text).map_err(failed())?;
        let covers = self.covers(&order, held)?;
        let inside: Vec<BorrowedFd<'_>> = inmate::order([&self.program, &waiting.reply], descriptors).collect();
        let list = sys::FIRST + inside.len() as RawFd;
        let host = Path::new("/");
        let told = Told { order: &order, toolchains: &self.toolchains, covers: &covers, host, first: list + 1 };
        let told = self.bwrap.told(&told);
        let contents = std::iter::once(told.bytes()).chain(told.data.iter().cloned());
        let contents: Vec<OwnedFd> = contents
            .map(|bytes| readable(&bytes))
            .collect::<Result<_, _>>()
            .map_err(|cause| Step::Order.failed_with(&cause))?;
        let kept: Vec<BorrowedFd<'_>> = inside.into_iter().chain(contents.iter().map(AsFd::as_fd)).collect();
        // SAFETY: this process has one thread.
        match unsafe { sys::clone_into(0) }.map_err(Step::Start.failed())? {
            Side::Child => self.become_bwrap(waiting, &kept, list),
            Side::Parent(child) => Ok(child.handle),
        }
    }

    /// In a new process.
    fn become_bwrap(&self, waiting: &Waiting, kept: &[BorrowedFd<'_>], list: RawFd) -> ! {
        let words = || -> Result<(CString, Vec<CString>), std::ffi::NulError> {
            let own = format!("/proc/self/fd/{}", sys::FIRST);
            let words = ["bwrap", "--args", &list.to_string(), "--", &own, inmate::NAME].map(CString::new);
            Ok((CString::new(self.bwrap.path.as_os_str().as_bytes())?, words.into_iter().collect::<Result<_, _>>()?))
        };
        if let (Ok((path, argv)), Ok(())) = (words(), self.prepare(waiting, kept)) {
            sys::execute(&path, &argv, &[]);
        }
        sys::leave_with(BWRAP_FAILED)
    }

    /// Its cgroup first, so that the namespace of cgroups begins there, and root's powers last.
    fn prepare(&self, waiting: &Waiting, kept: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        for door in &waiting.doors {
            rustix::io::write(door, b"0")?;
        }
        // Where the machine is short of memory, it is to end what runs in a jail before anything else.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        sys::keep_only(kept)?;
        for index in 0..kept.len() {
            let descriptor = sys::kept(index);
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

    /// Every place in the jail that must be empty, by what is there now. The inmate looks whether it is.
    fn covers(&self, order: &Order, held: &[OwnedFd]) -> Result<BTreeMap<PathBuf, Cover>, Trouble> {
        let failed = || Step::Cover.failed::<Errno>();
        let mut covers = BTreeMap::new();
        for (index, (directory, held)) in order.shown.iter().zip(held).enumerate() {
            let root = path_of(held.as_fd()).map_err(failed())?;
            for path in &directory.covered {
                let Some(target) = find(held.as_fd(), path).map_err(failed())? else { continue };
                let kind = FileType::from_raw_mode(fstat(&target).map_err(failed())?.st_mode);
                let cover = if kind == FileType::Directory { Cover::Directory } else { Cover::File };
                let real = path_of(target.as_fd()).map_err(failed())?;
                let below = real.strip_prefix(&root).map_err(|_| failed()(Errno::STALE))?;
                covers.insert(shown_at(order, index).join(below), cover);
                covers.extend(self.seen_at(&real).map(|place| (place, cover)));
            }
        }
        let host = Path::new("/");
        let system = SYSTEM.iter().map(|name| host.join(name));
        for shown in system.chain(self.toolchains.iter().cloned()) {
            let Some(path) = shown.strip_prefix(host).ok().filter(|_| !is_link(&shown)) else { continue };
            // What cannot be looked through cannot be left out here.
            let secrets = secrets(host, path).ok_or(Errno::TOOBIG).map_err(failed())?;
            covers.extend(secrets.into_iter().map(|secret| match secret {
                Secret::File(path) => (shown.join(path), Cover::File),
                Secret::Directory(path) => (shown.join(path), Cover::Directory),
            }));
        }
        if covers.len() > MOST_COVERS {
            return Err(failed()(Errno::TOOBIG));
        }
        Ok(covers)
    }

    /// Where else the jail has a path of the host: a workspace may lie in `/usr/src`, or have a toolchain in it.
    fn seen_at<'b>(&'b self, real: &'b Path) -> impl Iterator<Item = PathBuf> + 'b {
        let system = SYSTEM.iter().map(|name| Path::new("/").join(name));
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

/// Where a descriptor leads, as the host calls it.
fn path_of(descriptor: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::ffi::OsStringExt as _;
    let path = readlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}

/// Contents to be read from the start.
fn readable(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create("contents", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
