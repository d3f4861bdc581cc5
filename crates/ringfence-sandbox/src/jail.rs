//! Jail setup: namespaces, and the root file system.
//!
//! A jail is built before its program is known, and used once. It is finished by its own first process, so that the
//! spawner does not wait; a setup error is kept for the run that claims the jail.
//!
//! Not here: what the run brings (`run_mounts.rs`), and the life of the first process (`init.rs`).

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, mkdirat, open};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, WaitId, WaitIdOptions, chroot, fchdir, set_dumpable_behavior, waitid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use crate::etc;
use crate::limits::JailLimits;
use crate::mounts::{
    EMPTY_DIR, EMPTY_FILE, IMAGE, MASKED_PROC_PATHS, READ_ONLY, TmpfsMode, attach, attach_over, clone_mount, devpts,
    max_inodes, pivot_into, procfs, tmpfs,
};
use crate::protocol::{IdMapping, JailKind, JailUser, SetupError, SetupStep};
use crate::sys::{self, ChildProcess, ForkResult, MountFlagScope};

/// Namespaces of every jail.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Path of `/proc` that programs may read but not write.
const READ_ONLY_PROC_PATH: &str = "sys";

/// Bounds that a jail has by settings of its own user namespace. Each instance of inotify keeps thousands of events.
const USER_SYSCTLS: [(&str, &str); 2] = [
    // The filter refuses them anyway; this also holds where a program finds a way around it.
    ("user/max_user_namespaces", "0"),
    ("user/max_inotify_instances", "32"),
];

/// Those of a network: a TCP connection may buffer this much (least, initial and most).
pub(crate) const NETWORK_SYSCTLS: [(&str, &str); 2] =
    [("net/ipv4/tcp_rmem", "4096 131072 262144"), ("net/ipv4/tcp_wmem", "4096 16384 131072")];

/// User and group of a tool's program inside the jail.
pub(crate) const INSIDE_USER: JailUser = JailUser { uid: etc::UID, gid: etc::GID };

/// The network of a jail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JailNetwork {
    Own,
    /// That of the spawner at the time, which other jails are in too.
    Shared,
}

/// Properties that a jail has before its program is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JailBlueprint {
    pub(crate) identity: IdMapping,
    pub(crate) network: JailNetwork,
    pub(crate) kind: JailKind,
}

/// A first process in the namespaces of a new jail.
pub(crate) fn clone_init(blueprint: &JailBlueprint) -> Result<ForkResult, SetupError> {
    let namespaces = match blueprint.network {
        JailNetwork::Own => NAMESPACES,
        JailNetwork::Shared => NAMESPACES & !libc::CLONE_NEWNET,
    };
    clone_with_id_map(namespaces, blueprint.identity)
}

/// Clones a process into namespaces of its own, with its user mapped when this returns there. The new process is still
/// dumpable, by the spawner among others; a process that stays changes that itself.
pub(crate) fn clone_with_id_map(namespaces: libc::c_int, map: IdMapping) -> Result<ForkResult, SetupError> {
    let failed = || SetupStep::Namespaces.failed::<Errno>();
    let (ours, theirs) = sys::message_pair().map_err(failed())?;
    // The files that take the mapping belong to the host's root while the process may not be looked into.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(failed())?;
    // SAFETY: the spawner has one thread.
    let side = unsafe { sys::clone_into(namespaces) };
    if !matches!(side, Ok(ForkResult::Child)) {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed())?;
    }
    match side.map_err(failed())? {
        ForkResult::Child => {
            drop(ours);
            // Nothing comes where the parent failed, or died.
            let go = sys::receive(theirs.as_fd(), &mut [0; 1]).is_ok_and(|(bytes, _)| !bytes.is_empty());
            if go { Ok(ForkResult::Child) } else { sys::exit() }
        }
        ForkResult::Parent(child) => {
            let mapped = write_id_map(&child, "uid_map", map.inside.uid, map.outside.uid)
                .and_then(|()| write_id_map(&child, "gid_map", map.inside.gid, map.outside.gid))
                .and_then(|()| sys::send(ours.as_fd(), b"g", &[]).map_err(SetupStep::Users.failed()));
            if mapped.is_err() {
                // It hears nothing, and ends.
                drop(ours);
                let _ = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
            }
            mapped.map(|()| ForkResult::Parent(child))
        }
    }
}

/// Path of a process in the current `/proc`, which may be of another pid namespace than ours.
pub(crate) fn process_path(child: &ChildProcess) -> std::io::Result<PathBuf> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", child.pidfd.as_raw_fd()))?;
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<u32>().ok());
    pid.map(|pid| Path::new("/proc").join(pid.to_string())).ok_or_else(|| Errno::SRCH.into())
}

fn write_id_map(child: &ChildProcess, file: &str, inside: u32, outside: u32) -> Result<(), SetupError> {
    process_path(child)
        .and_then(|process| OpenOptions::new().write(true).open(process.join(file)))
        .and_then(|mut map| map.write_all(format!("{inside} {outside} 1").as_bytes()))
        .map_err(|cause| SetupStep::Users.failed_with(&cause))
}

/// The root of a jail, as its first process set it up.
#[derive(Debug)]
pub(crate) struct JailRoot {
    pub(crate) has_proc: bool,
    /// The spawner's `/proc`, which knows the jail's processes by other numbers. None of them finds it.
    pub(crate) spawner_proc: OwnedFd,
    /// A directory above the root of every process of the jail. Mounts here are visible to none of them, not even in
    /// the list of mounts.
    pub(crate) hidden_root: OwnedFd,
}

/// In the first process of a new jail: becomes its user, and builds its root.
pub(crate) fn build_root(blueprint: &JailBlueprint) -> Result<JailRoot, SetupError> {
    let user = blueprint.identity.inside;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_res_gid(gid, gid, gid).map_err(SetupStep::Users.failed())?;
    set_thread_res_uid(uid, uid, uid).map_err(SetupStep::Users.failed())?;
    // With every change of users these two are lost.
    sys::die_with_parent().map_err(SetupStep::Hold.failed())?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(SetupStep::Hold.failed())?;

    if blueprint.network == JailNetwork::Own {
        sys::bring_up_loopback().map_err(SetupStep::Loopback.failed())?;
    }
    rustix::system::sethostname(etc::HOSTNAME.as_bytes()).map_err(SetupStep::Root.failed())?;
    mount_root().map_err(SetupStep::Root.failed())
}

fn mount_root() -> Result<JailRoot, Errno> {
    let root = clone_mount(CWD, IMAGE, MountFlagScope::Tree)?;
    let hidden_root = tmpfs("64k", "1024", TmpfsMode::OwnerOnly)?;
    attach(&hidden_root, CWD, IMAGE)?;
    mkdirat(&hidden_root, "jail", Mode::from_raw_mode(0o755))?;
    attach(&root, hidden_root.as_fd(), "jail")?;
    let defaults = JailLimits::default();
    let (size, files) = (defaults.tmp_bytes.to_string(), max_inodes(defaults.tmp_bytes));
    for (path, open) in [
        ("tmp", TmpfsMode::WorldWritable),
        ("dev/shm", TmpfsMode::WorldWritable),
        ("run/ringfence", TmpfsMode::OwnerOnly),
    ] {
        attach(&tmpfs(&size, &files, open)?, root.as_fd(), path)?;
    }
    mkdirat(&root, "tmp/home", Mode::from_raw_mode(0o755))?;
    match devpts() {
        Ok(terminals) => attach(&terminals, root.as_fd(), "dev/pts")?,
        // Some containers refuse them. Programs then find that there are none.
        Err(Errno::PERM | Errno::ACCESS | Errno::NODEV) => {}
        Err(other) => return Err(other),
    }
    set_sysctls(&USER_SYSCTLS);
    set_network_sysctls();
    let proc = mount_proc(&root)?;
    let above = open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    pivot_into(&hidden_root)?;
    fchdir(&root)?;
    chroot(".")?;
    Ok(JailRoot { has_proc: proc, spawner_proc: above, hidden_root })
}

/// Of the network that this process is in, if it may.
pub(crate) fn set_network_sysctls() {
    set_sysctls(&NETWORK_SYSCTLS);
}

fn set_sysctls(all: &[(&str, &str)]) {
    for (name, value) in all {
        let _ = std::fs::write(Path::new("/proc/sys").join(name), value);
    }
}

/// A `/proc` of the jail's own processes. Some containers refuse one; then it is empty.
fn mount_proc(root: &OwnedFd) -> Result<bool, Errno> {
    let proc = match procfs() {
        Ok(proc) => proc,
        Err(Errno::PERM | Errno::ACCESS) => return Ok(false),
        Err(other) => return Err(other),
    };
    attach(&proc, root.as_fd(), "proc")?;
    let part = clone_mount(proc.as_fd(), READ_ONLY_PROC_PATH, MountFlagScope::Tree)?;
    sys::set_mount_flags(part.as_fd(), READ_ONLY, MountFlagScope::Tree, None)?;
    attach(&part, proc.as_fd(), READ_ONLY_PROC_PATH)?;
    for name in MASKED_PROC_PATHS {
        mask_path(root, proc.as_fd(), name)?;
    }
    Ok(true)
}

fn mask_path(root: &OwnedFd, directory: rustix::fd::BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    use rustix::fs::{FileType, fstat, openat};
    let target = match openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(target) => target,
        Err(Errno::NOENT) => return Ok(()),
        Err(other) => return Err(other),
    };
    let is_directory = FileType::from_raw_mode(fstat(&target)?.st_mode) == FileType::Directory;
    let nothing = if is_directory { EMPTY_DIR } else { EMPTY_FILE };
    let nothing = clone_mount(root.as_fd(), nothing.trim_start_matches('/'), MountFlagScope::Mount)?;
    attach_over(&nothing, target.as_fd())
}
