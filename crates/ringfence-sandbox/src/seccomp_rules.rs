//! Seccomp rules, as data: the system calls that a jailed program may not make.
//!
//! Rules are grouped by reason. A refused call gets an error that programs handle: `EPERM`, or `ENOSYS` where they have
//! a fallback.
//!
//! Not here: compiling and installing them (`seccomp.rs`).

/// Calls that are refused whatever their arguments.
pub(crate) struct SyscallRule {
    pub(crate) error: i32,
    pub(crate) calls: &'static [i64],
}

pub(crate) const DENIED_SYSCALLS: &[SyscallRule] = &[
    // Another view of the files: what the jail shows is what there is.
    SyscallRule {
        error: libc::EPERM,
        calls: &[
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_mount_setattr,
        ],
    },
    // Other namespaces, where a program could be root over something.
    SyscallRule { error: libc::EPERM, calls: &[libc::SYS_unshare, libc::SYS_setns] },
    // Its flags are behind a pointer. The C library falls back to `clone`, whose flags are seen below.
    SyscallRule { error: libc::ENOSYS, calls: &[libc::SYS_clone3] },
    // Other processes' memory and descriptors.
    SyscallRule {
        error: libc::EPERM,
        calls: &[
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kcmp,
            libc::SYS_pidfd_getfd,
            libc::SYS_move_pages,
            libc::SYS_migrate_pages,
        ],
    },
    // Programs for the kernel, and looking into it.
    SyscallRule {
        error: libc::EPERM,
        calls: &[libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_syslog, libc::SYS_fanotify_init],
    },
    // Faults that the program itself answers hold the kernel up in the middle of its work.
    SyscallRule { error: libc::EPERM, calls: &[libc::SYS_userfaultfd] },
    // Keys are not kept by namespace.
    SyscallRule { error: libc::EPERM, calls: &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl] },
    // A second way to nearly every call, which this filter does not see.
    SyscallRule {
        error: libc::ENOSYS,
        calls: &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
    },
    // Files by number instead of by name, around every directory.
    SyscallRule { error: libc::EPERM, calls: &[libc::SYS_open_by_handle_at] },
    // Mounts of the host, by number. Programs read `/proc/self/mountinfo` instead.
    SyscallRule { error: libc::ENOSYS, calls: &[STATMOUNT, LISTMOUNT] },
    // The machine: its kernel, clock, name, swap, quotas, accounting.
    SyscallRule {
        error: libc::EPERM,
        calls: &[
            libc::SYS_kexec_load,
            KEXEC_FILE_LOAD,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_clock_adjtime,
            libc::SYS_adjtimex,
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
            libc::SYS_quotactl,
            libc::SYS_quotactl_fd,
            libc::SYS_acct,
            libc::SYS_vhangup,
            libc::SYS_nfsservctl,
        ],
    },
    // The processor's own tables and ports, and calls that only very old programs make.
    #[cfg(target_arch = "x86_64")]
    SyscallRule {
        error: libc::EPERM,
        calls: &[
            libc::SYS_iopl,
            libc::SYS_ioperm,
            libc::SYS_modify_ldt,
            libc::SYS_uselib,
            libc::SYS_ustat,
            libc::SYS_sysfs,
            libc::SYS__sysctl,
        ],
    },
];

/// Calls that are refused with certain arguments: all tests of a line must hold. The error `NOTIFY` stands for a request to the
/// listener.
#[derive(Clone, Copy)]
pub(crate) struct SyscallArgRule {
    pub(crate) error: i32,
    pub(crate) calls: &'static [(i64, &'static [SyscallArgTest])],
}

/// A test of one argument, by its position. All but pointers are 32 bits wide: the kernel looks at no more of them.
pub(crate) enum SyscallArgTest {
    Equals(u8, u32),
    NotEquals(u8, u32),
    /// The bits under the mask have this value.
    MaskedEquals(u8, u32, u32),
    /// One of these bits is set, or more.
    AnySet(u8, u32),
    /// The same in the upper half.
    AnySetUpper(u8, u32),
}

use SyscallArgTest::{AnySet, AnySetUpper, Equals, MaskedEquals, NotEquals};

pub(crate) const DENIED_BY_ARGS: &[SyscallArgRule] = &[
    // New namespaces by the older call.
    SyscallArgRule { error: libc::EPERM, calls: &[(libc::SYS_clone, &[AnySet(0, NEW_NAMESPACES)])] },
    // Only sockets that stay in the jail's own network. Virtual machine sockets and others know no network namespaces,
    // and most families are rarely used code of the kernel. Of netlink, the part that lists interfaces and addresses: the C
    // library asks it (`getifaddrs`), and without capabilities it only answers.
    SyscallArgRule {
        error: libc::EAFNOSUPPORT,
        calls: &[
            (libc::SYS_socket, &[NotEquals(0, UNIX), NotEquals(0, INET), NotEquals(0, INET6), NotEquals(0, NETLINK)]),
            (libc::SYS_socketpair, &[NotEquals(0, UNIX)]),
        ],
    },
    SyscallArgRule {
        error: libc::EPROTONOSUPPORT,
        calls: &[(libc::SYS_socket, &[Equals(0, NETLINK), NotEquals(2, libc::NETLINK_ROUTE as u32)])],
    },
    // Sockets that make their own packets.
    SyscallArgRule {
        error: libc::EPERM,
        calls: &[
            (
                libc::SYS_socket,
                &[NotEquals(0, UNIX), NotEquals(0, NETLINK), MaskedEquals(1, SOCKET_TYPE, libc::SOCK_RAW as u32)],
            ),
            (libc::SYS_socket, &[NotEquals(0, UNIX), NotEquals(0, NETLINK), MaskedEquals(1, SOCKET_TYPE, SOCK_PACKET)]),
        ],
    },
    // TCP, UDP and ping; others would load code into the kernel on demand.
    SyscallArgRule {
        error: libc::EPROTONOSUPPORT,
        calls: &[
            (
                libc::SYS_socket,
                &[Equals(0, INET), NotEquals(2, 0), NotEquals(2, TCP), NotEquals(2, UDP), NotEquals(2, ICMP)],
            ),
            (
                libc::SYS_socket,
                &[Equals(0, INET6), NotEquals(2, 0), NotEquals(2, TCP), NotEquals(2, UDP), NotEquals(2, ICMP6)],
            ),
        ],
    },
    // Injecting input into another terminal, controlling the console, and changing a line discipline.
    SyscallArgRule {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_ioctl, &[Equals(1, TIOCSTI)]),
            (libc::SYS_ioctl, &[Equals(1, TIOCLINUX)]),
            (libc::SYS_ioctl, &[Equals(1, TIOCCONS)]),
            (libc::SYS_ioctl, &[Equals(1, TIOCSETD)]),
        ],
    },
    // Another way for the kernel to run programs. Asking for the present one and setting the plain one is harmless.
    SyscallArgRule { error: libc::EPERM, calls: &[(libc::SYS_personality, &[NotEquals(0, 0), NotEquals(0, QUERY)])] },
    // The limit of cores, as it is, keeps the program that collects the machine's cores from being started; a lower one
    // would not (`limits.rs`). Setting it to none is reported as a success: it has that effect, and some programs end
    // on an error.
    SyscallArgRule {
        error: 0,
        calls: &[
            (libc::SYS_setrlimit, &[Equals(0, CORE)]),
            (libc::SYS_prlimit64, &[Equals(1, CORE), AnySet(2, u32::MAX)]),
            (libc::SYS_prlimit64, &[Equals(1, CORE), AnySetUpper(2, u32::MAX)]),
        ],
    },
    // Set-user-ID and set-group-ID files. Nothing in the jail would honour them; they would wait for a commit.
    SyscallArgRule {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_fchmod, &[AnySet(1, SETUID_OR_SETGID)]),
            (libc::SYS_fchmodat, &[AnySet(2, SETUID_OR_SETGID)]),
            (FCHMODAT2, &[AnySet(2, SETUID_OR_SETGID)]),
            (libc::SYS_mknodat, &[AnySet(2, SETUID_OR_SETGID)]),
            (libc::SYS_openat, &[AnySet(2, CREATE), AnySet(3, SETUID_OR_SETGID)]),
            (libc::SYS_openat, &[MaskedEquals(2, TMPFILE, TMPFILE), AnySet(3, SETUID_OR_SETGID)]),
        ],
    },
    // Devices, also the one that an overlay takes for a deleted file.
    SyscallArgRule {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_mknodat, &[MaskedEquals(2, FILE_TYPE, libc::S_IFCHR)]),
            (libc::SYS_mknodat, &[MaskedEquals(2, FILE_TYPE, libc::S_IFBLK)]),
            (libc::SYS_renameat2, &[AnySet(4, WHITEOUT)]),
        ],
    },
    // The same by calls that newer architectures do without.
    #[cfg(target_arch = "x86_64")]
    SyscallArgRule {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_chmod, &[AnySet(1, SETUID_OR_SETGID)]),
            (libc::SYS_creat, &[AnySet(1, SETUID_OR_SETGID)]),
            (libc::SYS_open, &[AnySet(1, CREATE), AnySet(2, SETUID_OR_SETGID)]),
            (libc::SYS_open, &[MaskedEquals(1, TMPFILE, TMPFILE), AnySet(2, SETUID_OR_SETGID)]),
            (libc::SYS_mknod, &[AnySet(1, SETUID_OR_SETGID)]),
            (libc::SYS_mknod, &[MaskedEquals(1, FILE_TYPE, libc::S_IFCHR)]),
            (libc::SYS_mknod, &[MaskedEquals(1, FILE_TYPE, libc::S_IFBLK)]),
        ],
    },
];

/// Calls whose kernel memory no file of `/proc` shows, where memory is counted by those.
pub(crate) const UNACCOUNTED_MEMORY: [SyscallArgRule; 5] = [
    // Files in memory without a mount, and rules without a bound. Programs have other ways: `/dev/shm`, and doing without.
    SyscallArgRule {
        error: libc::ENOSYS,
        calls: &[(libc::SYS_memfd_create, &[]), (MEMFD_SECRET, &[]), (LANDLOCK_CREATE_RULESET, &[])],
    },
    // Threads with descriptors of their own: those of a process are counted once. No C library makes such threads.
    SyscallArgRule {
        error: libc::EINVAL,
        calls: &[(libc::SYS_clone, &[MaskedEquals(0, THREAD_WITH_FILES, libc::CLONE_THREAD as u32)])],
    },
    // Pages that go from a file or a process into pipes and sockets stay, and count by the bytes that are meant of them.
    SyscallArgRule {
        error: libc::EINVAL,
        calls: &[(libc::SYS_vmsplice, &[]), (libc::SYS_splice, &[]), (libc::SYS_tee, &[])],
    },
    // Larger buffers of sockets than the usual ones: as if they had been set. The kernel also gives less than is asked for.
    SyscallArgRule {
        error: 0,
        calls: &[
            (libc::SYS_setsockopt, &[Equals(1, libc::SOL_SOCKET as u32), Equals(2, libc::SO_SNDBUF as u32)]),
            (libc::SYS_setsockopt, &[Equals(1, libc::SOL_SOCKET as u32), Equals(2, libc::SO_RCVBUF as u32)]),
        ],
    },
    // Shared memory without a name lasts as long as a page of it is mapped. How much it is, only the request tells.
    SyscallArgRule {
        error: NOTIFY,
        calls: &[(libc::SYS_mmap, &[MaskedEquals(3, SHARING, libc::MAP_SHARED as u32 | ANONYMOUS)])],
    },
];

/// Locks and leases of files. The kernel charges their memory to no process and, in many versions, to no cgroup, and it
/// ignores `RLIMIT_LOCKS`. Unlocking a range may split a lock, so that it asks as well; its type is behind a pointer.
pub(crate) const FILE_LOCKS: SyscallArgRule = SyscallArgRule {
    error: NOTIFY,
    calls: &[
        (libc::SYS_fcntl, &[Equals(1, libc::F_SETLK as u32)]),
        (libc::SYS_fcntl, &[Equals(1, libc::F_SETLKW as u32)]),
        (libc::SYS_fcntl, &[Equals(1, libc::F_OFD_SETLK as u32)]),
        (libc::SYS_fcntl, &[Equals(1, libc::F_OFD_SETLKW as u32)]),
        (libc::SYS_fcntl, &[Equals(1, libc::F_SETLEASE as u32)]),
        (libc::SYS_fcntl, &[Equals(1, F_SETDELEG)]),
        (libc::SYS_flock, &[MaskedEquals(1, libc::LOCK_UN as u32, 0)]),
    ],
};

/// Renames, which may be of a directory, and Landlock rules of a program's own: see `rename_requests.rs`. An exchange of
/// two directories is left to the kernel.
pub(crate) const RENAMES: SyscallArgRule = SyscallArgRule {
    error: NOTIFY,
    calls: &[
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rename, &[]),
        (libc::SYS_renameat, &[]),
        (libc::SYS_renameat2, &[MaskedEquals(4, EXCHANGE, 0)]),
        (LANDLOCK_RESTRICT_SELF, &[]),
    ],
};

/// Calls that look a path up, for a run that records them. They go on unchanged.
pub(crate) const FILE_LOOKUPS: SyscallArgRule = SyscallArgRule {
    error: NOTIFY,
    calls: &[
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, &[]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_stat, &[]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_lstat, &[]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_access, &[]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_readlink, &[]),
        (libc::SYS_openat, &[]),
        (libc::SYS_openat2, &[]),
        (libc::SYS_newfstatat, &[]),
        (libc::SYS_statx, &[]),
        (libc::SYS_faccessat, &[]),
        (libc::SYS_faccessat2, &[]),
        (libc::SYS_readlinkat, &[]),
    ],
};

/// Calls that start a program, for a run that records them. They go on unchanged.
pub(crate) const PROGRAM_STARTS: SyscallArgRule =
    SyscallArgRule { error: NOTIFY, calls: &[(libc::SYS_execve, &[]), (libc::SYS_execveat, &[])] };

/// Instead of an error: the listener is notified, and decides.
pub(crate) const NOTIFY: i32 = -1;

/// Sockets with names in the file system, or in the kernel. One of a pair of datagram sockets could still be connected
/// to another.
pub(crate) const NAMED_SOCKETS: SyscallArgRule = SyscallArgRule {
    error: libc::EAFNOSUPPORT,
    calls: &[
        (libc::SYS_socket, &[Equals(0, UNIX)]),
        (libc::SYS_socketpair, &[MaskedEquals(1, SOCKET_TYPE, libc::SOCK_DGRAM as u32)]),
        (libc::SYS_socketpair, &[MaskedEquals(1, SOCKET_TYPE, libc::SOCK_RAW as u32)]),
    ],
};

// Calls that the C library's table does not have everywhere.
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
pub(crate) const FCHMODAT2: i64 = 452;
const LANDLOCK_CREATE_RULESET: i64 = 444;
pub(crate) const LANDLOCK_RESTRICT_SELF: i64 = 446;
const MEMFD_SECRET: i64 = 447;
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: i64 = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: i64 = 294;
/// Leases of directories, newer than the C library's table.
const F_SETDELEG: u32 = 1040;

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;
const THREAD_WITH_FILES: u32 = (libc::CLONE_THREAD | libc::CLONE_FILES) as u32;
const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
/// Of the flags of a mapping: how it is shared, and whether it has a file.
const SHARING: u32 = 0xf | ANONYMOUS;
const UNIX: u32 = libc::AF_UNIX as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
/// The rest of the word are flags.
const SOCKET_TYPE: u32 = 0xf;
const SOCK_PACKET: u32 = 10;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
const ICMP: u32 = libc::IPPROTO_ICMP as u32;
const ICMP6: u32 = libc::IPPROTO_ICMPV6 as u32;
// The C libraries do not agree on the type of these.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const TIOCCONS: u32 = 0x541d;
const TIOCSETD: u32 = 0x5423;
const QUERY: u32 = 0xffff_ffff;
const CORE: u32 = 4;
const SETUID_OR_SETGID: u32 = libc::S_ISUID | libc::S_ISGID;
const FILE_TYPE: u32 = libc::S_IFMT;
const CREATE: u32 = libc::O_CREAT as u32;
/// `O_TMPFILE` is two bits. The other is set for any directory.
const TMPFILE: u32 = libc::O_TMPFILE as u32;
const WHITEOUT: u32 = libc::RENAME_WHITEOUT;
const EXCHANGE: u32 = libc::RENAME_EXCHANGE;
