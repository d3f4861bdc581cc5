//! Isolation mechanisms of the jail, and those available on this machine to this user.
//!
//! Each is tried for real, in a process that ends afterwards: what a version number or a setting promises, a container or
//! a security module may still refuse. For what does not stand there is advice.
//!
//! Not here: building them. And nothing is tried in the server, which must not fork: `probe` starts our own program
//! under another name, and `probe_main` is what it does then.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{CWD, XattrFlags, setxattr};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, OpenTreeFlags, mount, mount_change, open_tree};
use rustix::pipe::pipe;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getgid, getpid, getuid, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};
use rustix::thread::{UnshareFlags, set_no_new_privs, unshare_unsafe};

use crate::bwrap::{BwrapBinary, BwrapError};
use crate::cgroup::{CgroupManager, CgroupVersion};
use crate::isolation_status::{Isolation, IsolationStatus};
use crate::limits::MemoryLimiter;
use crate::seccomp::SeccompFilters;

/// Name of this program when it runs as the prober.
const PROBE_NAME: &str = "ringfence-probe";

/// A probe that takes longer hangs, and is ended.
const PROBE_SECONDS: u32 = 20;

/// Probes every isolation mechanism by starting this program, our own, as the prober.
pub fn probe(program: &Path) -> Vec<IsolationStatus> {
    let mut command = Command::new(program);
    command.arg0(PROBE_NAME).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    parse(&command.output().map(|ended| ended.stdout).unwrap_or_default())
}

/// For the first lines of `main`: `Some` if this process was started as the prober.
pub(crate) fn probe_main() -> Option<ExitCode> {
    if std::env::args_os().next()? != PROBE_NAME {
        return None;
    }
    // SAFETY: only asks for a signal, which ends this process.
    unsafe { libc::alarm(PROBE_SECONDS) };
    let mut out = io::stdout().lock();
    let written = probe_all().try_for_each(|status| {
        let line = serde_json::to_string(&status)?;
        writeln!(out, "{line}")?;
        out.flush()
    });
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Parses the prober's output. A mechanism that it does not report is unavailable.
fn parse(printed: &[u8]) -> Vec<IsolationStatus> {
    let lines = printed.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let mut reported: BTreeMap<Isolation, IsolationStatus> =
        lines.map(|status: IsolationStatus| (status.mechanism, status)).collect();
    let unknown = |mechanism| IsolationStatus {
        mechanism,
        available: false,
        note: "could not be tested".to_owned(),
        advice: None,
    };
    Isolation::ALL
        .into_iter()
        .map(|mechanism| reported.remove(&mechanism).unwrap_or_else(|| unknown(mechanism)))
        .collect()
}

fn probe_all() -> impl Iterator<Item = IsolationStatus> {
    Isolation::ALL.into_iter().map(probe_one)
}

fn probe_one(mechanism: Isolation) -> IsolationStatus {
    match mechanism {
        Isolation::Landlock => landlock(),
        Isolation::Cgroup => cgroup(),
        Isolation::Bwrap => bwrap(),
        Isolation::IdmappedMounts if !getuid().is_root() => {
            IsolationStatus { mechanism, available: true, note: "only needed as root".to_owned(), advice: None }
        }
        _ => match in_child(|| try_isolation(mechanism)) {
            Ok(()) => IsolationStatus { mechanism, available: true, note: "works".to_owned(), advice: None },
            Err(error) => {
                let advice = Some(advice(mechanism, error, &KernelRestrictions::read()));
                IsolationStatus { mechanism, available: false, note: format!("refused: {}", errno_text(error)), advice }
            }
        },
    }
}

/// Tries one mechanism, in a process that is thrown away.
fn try_isolation(mechanism: Isolation) -> Result<(), Errno> {
    match mechanism {
        Isolation::UserNamespace => enter_user_ns(UnshareFlags::empty()),
        Isolation::MountNamespace => {
            enter_user_ns(UnshareFlags::NEWNS).and_then(|()| make_private()).and_then(|()| read_only_copy())
        }
        Isolation::PidNamespace => enter_user_ns(UnshareFlags::NEWPID).and_then(|()| in_child(check_pid_one)),
        Isolation::NetNamespace => enter_user_ns(UnshareFlags::NEWNET).and_then(|()| loopback_up()),
        Isolation::IpcNamespace => enter_user_ns(UnshareFlags::NEWIPC),
        Isolation::UtsNamespace => enter_user_ns(UnshareFlags::NEWUTS)
            .and_then(|()| rustix::system::sethostname(crate::etc::HOSTNAME.as_bytes())),
        Isolation::CgroupNamespace => enter_user_ns(UnshareFlags::NEWCGROUP),
        Isolation::Proc => enter_user_ns(UnshareFlags::NEWPID | UnshareFlags::NEWNS)
            .and_then(|()| make_private())
            .and_then(|()| in_child(|| mount("proc", "/proc", "proc", MountFlags::empty(), None))),
        Isolation::Overlay => enter_with_tmpfs().and_then(|()| overlay()),
        Isolation::TmpfsAttributes => enter_with_tmpfs().and_then(|()| check_tmpfs_xattr()),
        Isolation::IdmappedMounts => idmapped_mount(),
        Isolation::Seccomp => check_seccomp(),
        Isolation::Pidfd => {
            pidfd_open(getpid(), PidfdFlags::empty()).and_then(|own| pidfd_send_signal(own, Signal::CONT))
        }
        Isolation::Landlock | Isolation::Cgroup | Isolation::Bwrap => Ok(()),
    }
}

/// A new user namespace with its one user, and these others.
fn enter_user_ns(others: UnshareFlags) -> Result<(), Errno> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    // SAFETY: this process has one thread and ends soon; its descriptors are not unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | others)? };
    let write = |name: &str, text: &str| fs::write(format!("/proc/self/{name}"), text).map_err(|error| errno(&error));
    write("setgroups", "deny")?;
    write("uid_map", &format!("0 {user} 1"))?;
    write("gid_map", &format!("0 {group} 1"))
}

/// Makes further mounts private to this process.
fn make_private() -> Result<(), Errno> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
}

fn enter_with_tmpfs() -> Result<(), Errno> {
    enter_user_ns(UnshareFlags::NEWNS)?;
    make_private()?;
    mount("tmpfs", "/tmp", "tmpfs", MountFlags::empty(), None)
}

/// A copy of a tree of mounts, read-only all the way down.
fn read_only_copy() -> Result<(), Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, "/usr", flags)?;
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    set_attributes(tree.as_raw_fd(), &attributes, libc::AT_RECURSIVE)
}

fn set_attributes(tree: i32, attributes: &libc::mount_attr, flags: i32) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH | flags;
    // SAFETY: the descriptor is open, the path is empty, and the attributes are read only.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree,
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(errno(&io::Error::last_os_error())) }
}

fn check_pid_one() -> Result<(), Errno> {
    if getpid().is_init() { Ok(()) } else { Err(Errno::NOSYS) }
}

fn loopback_up() -> Result<(), Errno> {
    // SAFETY: zeros are a valid request, its name is shorter than its buffer, and the socket is open meanwhile.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let result = libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw const request);
        let error = io::Error::last_os_error();
        libc::close(socket);
        if result == 0 { Ok(()) } else { Err(errno(&error)) }
    }
}

fn overlay() -> Result<(), Errno> {
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(Path::new("/tmp").join(name)).map_err(|error| errno(&error))?;
    }
    let options = c"lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr";
    mount("overlay", "/tmp/merged", "overlay", MountFlags::empty(), Some(options))?;
    fs::write("/tmp/merged/file", "x").map_err(|error| errno(&error))
}

fn check_tmpfs_xattr() -> Result<(), Errno> {
    fs::write("/tmp/file", "").map_err(|error| errno(&error))?;
    setxattr("/tmp/file", "user.ringfence", b"x", XattrFlags::empty())
}

/// Another user's view of a directory, by a namespace that lives as long as a child of ours.
fn idmapped_mount() -> Result<(), Errno> {
    let (ready, tell) = pipe()?;
    // SAFETY: this process has one thread. The child unshares, says so, and waits to be ended.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as in `enter_user_ns`; `pause` and `_exit` access no memory.
        unsafe {
            let unshared = unshare_unsafe(UnshareFlags::NEWUSER);
            let _ = rustix::io::write(&tell, &[u8::from(unshared.is_ok())]);
            libc::pause();
            libc::_exit(0);
        }
    }
    let child = Pid::from_raw(child).ok_or(Errno::AGAIN)?;
    drop(tell);
    let result = map_child(child, &ready);
    let _ = kill_process(child, Signal::KILL);
    let _ = waitpid(Some(child), WaitOptions::empty());
    result
}

fn map_child(child: Pid, ready: &impl std::os::fd::AsFd) -> Result<(), Errno> {
    let mut unshared = [0];
    rustix::io::read(ready, &mut unshared)?;
    if unshared != [1] {
        return Err(Errno::PERM);
    }
    let own = format!("/proc/{}", child.as_raw_nonzero());
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("{own}/{map}"), "0 65534 1").map_err(|error| errno(&error))?;
    }
    let users = fs::File::open(format!("{own}/ns/user")).map_err(|error| errno(&error))?;
    let tree = open_tree(CWD, "/tmp", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    let descriptor = u64::try_from(users.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd: descriptor };
    set_attributes(tree.as_raw_fd(), &attributes, 0)
}

/// Our own filter, and one call that it refuses. As in a jail, `no_new_privs` comes first: without it, the kernel accepts a
/// filter from privileged processes only.
fn check_seccomp() -> Result<(), Errno> {
    set_no_new_privs(true)?;
    SeccompFilters::new()
        .and_then(|filters| filters.install(MemoryLimiter::Rlimit))
        .map_err(|failure| failure.errno())?;
    // SAFETY: refused, and without the filter it would only fail because the size is wrong.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0) };
    let error = errno(&io::Error::last_os_error());
    if result == -1 && error == Errno::NOSYS { Ok(()) } else { Err(Errno::INVAL) }
}

/// The first version of Landlock that scopes abstract sockets.
const SOCKET_SCOPE_ABI: libc::c_long = 6;

/// Whether Landlock keeps abstract sockets among a program's own processes.
pub(crate) fn scopes_abstract_sockets() -> bool {
    landlock_abi() >= SOCKET_SCOPE_ABI
}

fn landlock_abi() -> libc::c_long {
    // SAFETY: asks for the version and gives nothing to read or write.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) }
}

fn landlock() -> IsolationStatus {
    let abi = landlock_abi();
    let (available, note, advice) = match abi {
        SOCKET_SCOPE_ABI.. => (true, format!("version {abi}"), None),
        2..SOCKET_SCOPE_ABI => (
            true,
            format!("version {abi}"),
            Some("Linux 6.12 or newer also confines signals and abstract sockets".to_owned()),
        ),
        1 => (
            false,
            "version 1 cannot allow moving files between directories".to_owned(),
            Some("use Linux 5.19 or newer".to_owned()),
        ),
        _ => (
            false,
            format!("refused: {}", errno_text(errno(&io::Error::last_os_error()))),
            Some("use Linux 5.19 or newer with `landlock` in the kernel's `lsm=` list".to_owned()),
        ),
    };
    IsolationStatus { mechanism: Isolation::Landlock, available, note, advice }
}

fn cgroup() -> IsolationStatus {
    let delegate = "start with `systemd-run --user --scope -p Delegate=yes`, or in a service with `Delegate=yes`";
    let (available, note, advice) = match CgroupManager::detect().version() {
        Some(CgroupVersion::V2) => (true, "version 2", None),
        Some(CgroupVersion::V1) => (true, "version 1", None),
        None => {
            (false, "no delegated cgroup; resource limits apply to each process instead", Some(delegate.to_owned()))
        }
    };
    IsolationStatus { mechanism: Isolation::Cgroup, available, note: note.to_owned(), advice }
}

fn bwrap() -> IsolationStatus {
    let found = BwrapBinary::find().and_then(|bwrap| bwrap.try_run().map(|()| bwrap));
    let advice = |problem| match problem {
        BwrapError::NotFound | BwrapError::TooOld => {
            "only needed where user namespaces are refused: install bubblewrap 0.8 or newer"
        }
        BwrapError::NotRootOwned => {
            "only needed where user namespaces are refused: install the system's own bubblewrap"
        }
        BwrapError::NamespacesDenied => {
            "only needed where user namespaces are refused: an administrator can allow them for bwrap"
        }
    };
    let (available, note, advice) = match found {
        Ok(BwrapBinary { version: (major, minor), .. }) => (true, format!("version {major}.{minor}"), None),
        Err(problem) => (false, problem.to_string(), Some(advice(problem).to_owned())),
    };
    IsolationStatus { mechanism: Isolation::Bwrap, available, note, advice }
}

/// Settings of the machine that are known to disable isolation mechanisms.
#[derive(Debug, Default)]
struct KernelRestrictions {
    apparmor_restricts: bool,
    userns_clone_disabled: bool,
    userns_limit_zero: bool,
    in_container: bool,
}

impl KernelRestrictions {
    fn read() -> Self {
        let is = |name: &str, value: &str| {
            fs::read_to_string(Path::new("/proc/sys").join(name)).is_ok_and(|text| text.trim() == value)
        };
        Self {
            apparmor_restricts: is("kernel/apparmor_restrict_unprivileged_userns", "1"),
            userns_clone_disabled: is("kernel/unprivileged_userns_clone", "0"),
            userns_limit_zero: is("user/max_user_namespaces", "0"),
            in_container: ["/.dockerenv", "/run/.containerenv"].iter().any(|name| Path::new(name).exists()),
        }
    }
}

/// The most likely reason first: nearly every mechanism needs a user namespace.
fn advice(mechanism: Isolation, error: Errno, settings: &KernelRestrictions) -> String {
    let needs_users = !matches!(
        mechanism,
        Isolation::Landlock
            | Isolation::Seccomp
            | Isolation::Cgroup
            | Isolation::Pidfd
            | Isolation::IdmappedMounts
            | Isolation::Bwrap
    );
    let advice = match mechanism {
        _ if needs_users && settings.userns_limit_zero => {
            "an administrator can allow user namespaces: `sysctl -w user.max_user_namespaces=15000`"
        }
        _ if needs_users && settings.userns_clone_disabled => {
            "an administrator can allow user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1`"
        }
        _ if needs_users && settings.apparmor_restricts => {
            "AppArmor denies user namespaces to this program. An administrator can add a profile with `userns,`, or \
             allow all programs: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        }
        Isolation::Proc if settings.in_container => {
            "the container hides parts of /proc; start it with `--security-opt systempaths=unconfined`"
        }
        _ if needs_users && settings.in_container && matches!(error, Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
            "the container refuses namespaces; start it with a seccomp profile that allows `unshare`, `clone` and `mount`, \
             such as `--security-opt seccomp=unconfined`"
        }
        Isolation::MountNamespace => "use Linux 5.12 or newer",
        Isolation::Overlay => "use Linux 5.11 or newer with the overlay file system",
        Isolation::TmpfsAttributes => "use Linux 6.6 or newer, with CONFIG_TMPFS_XATTR",
        Isolation::IdmappedMounts => {
            "use Linux 5.12 or newer and a file system that supports them, or do not run as root"
        }
        Isolation::Seccomp if error == Errno::BUSY => {
            "another program, such as a container runtime, has a listener for system calls of this process; start Ringfence \
             without it"
        }
        Isolation::Seccomp => "use a kernel with CONFIG_SECCOMP_FILTER",
        Isolation::Pidfd => "use Linux 5.4 or newer",
        _ => "use a kernel with user namespaces (CONFIG_USER_NS) that this user may create",
    };
    advice.to_owned()
}

/// Runs something in a forked process and gives back how it ended there.
fn in_child(work: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: the prober has one thread, so that its copy is whole.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = work().err().map_or(0, Errno::raw_os_error);
        // SAFETY: ends the child at once. Nothing of the parent's is flushed or dropped twice.
        unsafe { libc::_exit(code) };
    }
    let child = Pid::from_raw(child).filter(|_| child > 0).ok_or(Errno::AGAIN)?;
    let (_, status) = waitpid(Some(child), WaitOptions::empty())?.ok_or(Errno::CHILD)?;
    match status.exit_status() {
        Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw_os_error(code)),
        // Some filters end a process instead of telling it.
        None => Err(Errno::NOSYS),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Without the number, which is for programs.
fn errno_text(error: Errno) -> String {
    let words = io::Error::from(error).to_string();
    words.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::io::Errno;

    use super::{Isolation, IsolationStatus, KernelRestrictions, advice, parse, probe, probe_all};

    #[test]
    fn every_mechanism_is_probed_and_an_unavailable_one_has_advice() {
        let found: Vec<IsolationStatus> = probe_all().collect();
        assert_eq!(found.iter().map(|status| status.mechanism).collect::<Vec<_>>(), Isolation::ALL);
        for status in found {
            println!("{}: {} ({})", status.mechanism, status.available, status.note);
            assert!(status.available || status.advice.is_some(), "{status:?}");
        }
    }

    #[test]
    fn a_silent_prober_means_that_nothing_is_available() {
        for program in ["/bin/true", "/nonexistent"] {
            let found = probe(Path::new(program));
            assert_eq!(found.len(), Isolation::ALL.len());
            assert!(found.iter().all(|status| !status.available && status.note == "could not be tested"));
        }
    }

    #[test]
    fn the_probers_output_is_parsed() {
        let reported = IsolationStatus {
            mechanism: Isolation::Landlock,
            available: true,
            note: "version 7".to_owned(),
            advice: None,
        };
        let printed = format!("noise\n{}\n", serde_json::to_string(&reported).unwrap());
        assert!(printed.contains(r#""mechanism":"landlock""#), "{printed}");
        let found = parse(printed.as_bytes());
        assert_eq!(found.iter().filter(|status| status.available).collect::<Vec<_>>(), [&reported]);
    }

    #[test]
    fn advice_names_the_setting_that_is_in_the_way() {
        let check = |mechanism, settings: &KernelRestrictions, expected: &str| {
            let found = advice(mechanism, Errno::PERM, settings);
            assert!(found.contains(expected), "{mechanism}: {found}");
        };
        let ubuntu = KernelRestrictions { apparmor_restricts: true, ..KernelRestrictions::default() };
        check(Isolation::UserNamespace, &ubuntu, "kernel.apparmor_restrict_unprivileged_userns=0");
        check(Isolation::Overlay, &ubuntu, "kernel.apparmor_restrict_unprivileged_userns=0");
        check(Isolation::Seccomp, &ubuntu, "CONFIG_SECCOMP_FILTER");
        let busy = advice(Isolation::Seccomp, Errno::BUSY, &ubuntu);
        assert!(busy.contains("listener"), "{busy}");
        let debian = KernelRestrictions { userns_clone_disabled: true, ..KernelRestrictions::default() };
        check(Isolation::NetNamespace, &debian, "kernel.unprivileged_userns_clone=1");
        let none = KernelRestrictions { userns_limit_zero: true, ..KernelRestrictions::default() };
        check(Isolation::PidNamespace, &none, "user.max_user_namespaces");
        let container = KernelRestrictions { in_container: true, ..KernelRestrictions::default() };
        check(Isolation::Proc, &container, "systempaths=unconfined");
        check(Isolation::UserNamespace, &container, "seccomp=unconfined");
        check(Isolation::Overlay, &KernelRestrictions::default(), "5.11");
        check(Isolation::TmpfsAttributes, &KernelRestrictions::default(), "6.6");
    }
}
