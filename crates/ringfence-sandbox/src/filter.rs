//! Which calls to the kernel a jailed program may not make.
//!
//! The list is data, grouped by reason. What is refused gets an error that programs know how to go on from: `EPERM`, or
//! `ENOSYS` where they have an older way. What is not in the list is allowed up to the newest call we know: a list of
//! allowed calls would break programs nobody thought of, and the other walls stand before what gets through. Newer calls
//! than that are as if the kernel were older, and calls by another architecture's table end the program.
//!
//! Not here: anything behind a pointer, such as paths and the flags of `clone3` and `openat2`. A filter cannot see it.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

/// The newest call we know, `removexattrat`. Tables of all architectures have been the same from 424 on. Calls of the old
/// x32 table have a bit set that makes them larger.
const NEWEST: u32 = 466;

/// The filter, compiled. Made once, before any fork.
#[derive(Debug)]
pub(crate) struct Filter {
    /// One for each error. The kernel asks all of them.
    programs: Vec<BpfProgram>,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("the list of refused system calls does not compile")]
    Compile(#[from] seccompiler::BackendError),
    #[error("the kernel does not take the filter of system calls")]
    Install(#[from] seccompiler::Error),
}

/// Compiles the filter.
pub(crate) fn program() -> Result<Filter, FilterError> {
    let mut by_error: BTreeMap<i32, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
    for refusal in REFUSED {
        let calls = by_error.entry(refusal.error).or_default();
        for call in refusal.calls {
            calls.insert(*call, Vec::new());
        }
    }
    for refusal in REFUSED_WITH {
        let calls = by_error.entry(refusal.error).or_default();
        for (call, when) in refusal.calls {
            let conditions: Result<Vec<_>, _> = when.iter().map(Test::condition).collect();
            calls.entry(*call).or_default().push(SeccompRule::new(conditions?)?);
        }
    }
    let mut programs = vec![newer_calls()];
    for (error, calls) in by_error {
        let refuse = SeccompAction::Errno(error.unsigned_abs());
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        programs.push(SeccompFilter::new(calls, SeccompAction::Allow, refuse, arch)?.try_into()?);
    }
    Ok(Filter { programs })
}

impl Filter {
    /// From here on and for good, for this thread and all that it starts.
    pub(crate) fn install(&self) -> Result<(), FilterError> {
        Ok(self.programs.iter().try_for_each(|program| seccompiler::apply_filter(program))?)
    }
}

/// Load the number of the call, compare, `ENOSYS` above the newest. The compiler has no word for this.
fn newer_calls() -> BpfProgram {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    vec![
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        sock_filter { code: (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16, jt: 0, jf: 1, k: NEWEST },
        statement(libc::BPF_RET | libc::BPF_K, refuse),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Calls that are refused whatever their arguments.
struct Refused {
    error: i32,
    calls: &'static [i64],
}

const REFUSED: &[Refused] = &[
    // Another view of the files: what the jail shows is what there is.
    Refused {
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
    Refused { error: libc::EPERM, calls: &[libc::SYS_unshare, libc::SYS_setns] },
    // Its flags are behind a pointer. The C library falls back to `clone`, whose flags are seen below.
    Refused { error: libc::ENOSYS, calls: &[libc::SYS_clone3] },
    // Other processes' memory and descriptors.
    Refused {
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
    Refused {
        error: libc::EPERM,
        calls: &[libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_syslog, libc::SYS_fanotify_init],
    },
    // Faults that the program itself answers hold the kernel up in the middle of its work.
    Refused { error: libc::EPERM, calls: &[libc::SYS_userfaultfd] },
    // Keys are not kept by namespace.
    Refused { error: libc::EPERM, calls: &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl] },
    // A second way to nearly every call, which this filter does not see.
    Refused {
        error: libc::ENOSYS,
        calls: &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
    },
    // Files by number instead of by name, around every directory.
    Refused { error: libc::EPERM, calls: &[libc::SYS_open_by_handle_at] },
    // What is mounted on the host, by number. Programs read `/proc/self/mountinfo` instead.
    Refused { error: libc::ENOSYS, calls: &[STATMOUNT, LISTMOUNT] },
    // The machine: its kernel, clock, name, swap, quotas, accounting.
    Refused {
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
    Refused {
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

/// Calls that are refused with certain arguments: all tests of a line must hold.
struct RefusedWith {
    error: i32,
    calls: &'static [(i64, &'static [Test])],
}

/// A test of one argument, by its position. All are 32 bits wide: the kernel looks at no more of them.
enum Test {
    Is(u8, u64),
    IsNot(u8, u64),
    /// The bits under the mask have this value.
    Bits(u8, u64, u64),
}

use Test::{Bits, Is, IsNot};

impl Test {
    fn condition(&self) -> Result<SeccompCondition, seccompiler::BackendError> {
        let (position, test, value) = match *self {
            Self::Is(position, value) => (position, SeccompCmpOp::Eq, value),
            Self::IsNot(position, value) => (position, SeccompCmpOp::Ne, value),
            Self::Bits(position, mask, value) => (position, SeccompCmpOp::MaskedEq(mask), value),
        };
        SeccompCondition::new(position, SeccompCmpArgLen::Dword, test, value)
    }
}

const REFUSED_WITH: &[RefusedWith] = &[
    // New namespaces by the older call.
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_clone, &[Bits(0, NEW_USER, NEW_USER)]),
            (libc::SYS_clone, &[Bits(0, NEW_MOUNTS, NEW_MOUNTS)]),
            (libc::SYS_clone, &[Bits(0, NEW_PIDS, NEW_PIDS)]),
            (libc::SYS_clone, &[Bits(0, NEW_NET, NEW_NET)]),
            (libc::SYS_clone, &[Bits(0, NEW_IPC, NEW_IPC)]),
            (libc::SYS_clone, &[Bits(0, NEW_NAMES, NEW_NAMES)]),
            (libc::SYS_clone, &[Bits(0, NEW_CGROUPS, NEW_CGROUPS)]),
        ],
    },
    // Only sockets that stay in the jail's own network. Virtual machine sockets and others know no network namespaces,
    // and most families are rarely used code of the kernel. Without netlink, programs ask for addresses another way.
    RefusedWith {
        error: libc::EAFNOSUPPORT,
        calls: &[
            (libc::SYS_socket, &[IsNot(0, UNIX), IsNot(0, INET), IsNot(0, INET6)]),
            (libc::SYS_socketpair, &[IsNot(0, UNIX)]),
        ],
    },
    // Sockets that make their own packets.
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_socket, &[IsNot(0, UNIX), Bits(1, SOCKET_TYPE, libc::SOCK_RAW as u64)]),
            (libc::SYS_socket, &[IsNot(0, UNIX), Bits(1, SOCKET_TYPE, SOCK_PACKET)]),
        ],
    },
    // TCP, UDP and ping; others would load code into the kernel on demand.
    RefusedWith {
        error: libc::EPROTONOSUPPORT,
        calls: &[
            (libc::SYS_socket, &[Is(0, INET), IsNot(2, 0), IsNot(2, TCP), IsNot(2, UDP), IsNot(2, ICMP)]),
            (libc::SYS_socket, &[Is(0, INET6), IsNot(2, 0), IsNot(2, TCP), IsNot(2, UDP), IsNot(2, ICMP6)]),
        ],
    },
    // Typing into a terminal that somebody else reads, steering the console, and changing what drives a line.
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_ioctl, &[Is(1, TIOCSTI)]),
            (libc::SYS_ioctl, &[Is(1, TIOCLINUX)]),
            (libc::SYS_ioctl, &[Is(1, TIOCCONS)]),
            (libc::SYS_ioctl, &[Is(1, TIOCSETD)]),
        ],
    },
    // Another way for the kernel to run programs. Asking for the present one and setting the plain one is harmless.
    RefusedWith { error: libc::EPERM, calls: &[(libc::SYS_personality, &[IsNot(0, 0), IsNot(0, QUERY)])] },
    // Programs that run as somebody else. Nothing in the jail would obey these bits; they would wait for a commit.
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_fchmod, &[Bits(1, SETUID, SETUID)]),
            (libc::SYS_fchmod, &[Bits(1, SETGID, SETGID)]),
            (libc::SYS_fchmodat, &[Bits(2, SETUID, SETUID)]),
            (libc::SYS_fchmodat, &[Bits(2, SETGID, SETGID)]),
            (FCHMODAT2, &[Bits(2, SETUID, SETUID)]),
            (FCHMODAT2, &[Bits(2, SETGID, SETGID)]),
            (libc::SYS_mknodat, &[Bits(2, SETUID, SETUID)]),
            (libc::SYS_mknodat, &[Bits(2, SETGID, SETGID)]),
            (libc::SYS_openat, &[Bits(2, CREATE, CREATE), Bits(3, SETUID, SETUID)]),
            (libc::SYS_openat, &[Bits(2, CREATE, CREATE), Bits(3, SETGID, SETGID)]),
            (libc::SYS_openat, &[Bits(2, NAMELESS, NAMELESS), Bits(3, SETUID, SETUID)]),
            (libc::SYS_openat, &[Bits(2, NAMELESS, NAMELESS), Bits(3, SETGID, SETGID)]),
        ],
    },
    // Devices, also the one that an overlay takes for a deleted file.
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_mknodat, &[Bits(2, FILE_TYPE, libc::S_IFCHR as u64)]),
            (libc::SYS_mknodat, &[Bits(2, FILE_TYPE, libc::S_IFBLK as u64)]),
            (libc::SYS_renameat2, &[Bits(4, WHITEOUT, WHITEOUT)]),
        ],
    },
    // The same by calls that newer architectures do without.
    #[cfg(target_arch = "x86_64")]
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_chmod, &[Bits(1, SETUID, SETUID)]),
            (libc::SYS_chmod, &[Bits(1, SETGID, SETGID)]),
            (libc::SYS_creat, &[Bits(1, SETUID, SETUID)]),
            (libc::SYS_creat, &[Bits(1, SETGID, SETGID)]),
            (libc::SYS_open, &[Bits(1, CREATE, CREATE), Bits(2, SETUID, SETUID)]),
            (libc::SYS_open, &[Bits(1, CREATE, CREATE), Bits(2, SETGID, SETGID)]),
            (libc::SYS_open, &[Bits(1, NAMELESS, NAMELESS), Bits(2, SETUID, SETUID)]),
            (libc::SYS_open, &[Bits(1, NAMELESS, NAMELESS), Bits(2, SETGID, SETGID)]),
            (libc::SYS_mknod, &[Bits(1, SETUID, SETUID)]),
            (libc::SYS_mknod, &[Bits(1, SETGID, SETGID)]),
            (libc::SYS_mknod, &[Bits(1, FILE_TYPE, libc::S_IFCHR as u64)]),
            (libc::SYS_mknod, &[Bits(1, FILE_TYPE, libc::S_IFBLK as u64)]),
        ],
    },
];

// Calls that the C library's table does not have everywhere.
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
const FCHMODAT2: i64 = 452;
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: i64 = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: i64 = 294;

const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
const NEW_MOUNTS: u64 = libc::CLONE_NEWNS as u64;
const NEW_PIDS: u64 = libc::CLONE_NEWPID as u64;
const NEW_NET: u64 = libc::CLONE_NEWNET as u64;
const NEW_IPC: u64 = libc::CLONE_NEWIPC as u64;
const NEW_NAMES: u64 = libc::CLONE_NEWUTS as u64;
const NEW_CGROUPS: u64 = libc::CLONE_NEWCGROUP as u64;
const UNIX: u64 = libc::AF_UNIX as u64;
const INET: u64 = libc::AF_INET as u64;
const INET6: u64 = libc::AF_INET6 as u64;
/// The rest of the word are flags.
const SOCKET_TYPE: u64 = 0xf;
const SOCK_PACKET: u64 = 10;
const TCP: u64 = libc::IPPROTO_TCP as u64;
const UDP: u64 = libc::IPPROTO_UDP as u64;
const ICMP: u64 = libc::IPPROTO_ICMP as u64;
const ICMP6: u64 = libc::IPPROTO_ICMPV6 as u64;
// The C libraries do not agree on the type of these.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
const TIOCCONS: u64 = 0x541d;
const TIOCSETD: u64 = 0x5423;
const QUERY: u64 = 0xffff_ffff;
const SETUID: u64 = libc::S_ISUID as u64;
const SETGID: u64 = libc::S_ISGID as u64;
const FILE_TYPE: u64 = libc::S_IFMT as u64;
const CREATE: u64 = libc::O_CREAT as u64;
/// `O_TMPFILE` is two bits. The other is set for any directory.
const NAMELESS: u64 = libc::O_TMPFILE as u64;
const WHITEOUT: u64 = libc::RENAME_WHITEOUT as u64;

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::{NEWEST, program};

    /// Makes a call in a thread that has the filter, and says how it ended: 0 or the error.
    fn call(number: i64, arguments: [i64; 5]) -> i32 {
        let [a, b, c, d, e] = arguments;
        // SAFETY: every call of these tests is refused, or is one that reads nothing and changes nothing of ours.
        let result = unsafe { libc::syscall(number, a, b, c, d, e) };
        if result == -1 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
    }

    /// What a filter holds, it holds for the thread that installed it and for its children.
    fn filtered<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = thread::spawn(|| {
            program().unwrap().install().unwrap();
            work()
        });
        thread.join().unwrap()
    }

    #[test]
    fn every_refused_call_gets_its_error() {
        let wrong: Vec<(i64, i32, i32)> = filtered(|| {
            let every = super::REFUSED.iter().flat_map(|group| group.calls.iter().map(|call| (*call, group.error)));
            every.map(|(number, error)| (number, error, call(number, [0; 5]))).filter(|(_, e, got)| e != got).collect()
        });
        assert_eq!(wrong, []);
    }

    #[test]
    fn calls_are_refused_by_their_arguments() {
        let at = i64::from(libc::AT_FDCWD);
        let path = c"/nonexistent/x".as_ptr() as i64;
        let flags = |flags: i32| i64::from(flags);
        let cases = [
            (libc::SYS_clone, [flags(libc::CLONE_NEWUSER | libc::SIGCHLD), 0, 0, 0, 0], libc::EPERM),
            (libc::SYS_clone, [flags(libc::CLONE_NEWNET | libc::SIGCHLD), 0, 0, 0, 0], libc::EPERM),
            (libc::SYS_socket, [flags(libc::AF_VSOCK), 1, 0, 0, 0], libc::EAFNOSUPPORT),
            (libc::SYS_socket, [flags(libc::AF_NETLINK), 3, 0, 0, 0], libc::EAFNOSUPPORT),
            (libc::SYS_socket, [flags(libc::AF_PACKET), 3, 0, 0, 0], libc::EAFNOSUPPORT),
            (libc::SYS_socket, [flags(libc::AF_ALG), 5, 0, 0, 0], libc::EAFNOSUPPORT),
            (libc::SYS_socket, [flags(libc::AF_INET), 3, 1, 0, 0], libc::EPERM),
            (libc::SYS_socket, [flags(libc::AF_INET), flags(3 | libc::SOCK_CLOEXEC), 1, 0, 0], libc::EPERM),
            (libc::SYS_socket, [flags(libc::AF_INET), 1, 132, 0, 0], libc::EPROTONOSUPPORT),
            (libc::SYS_socket, [flags(libc::AF_INET6), 1, 262, 0, 0], libc::EPROTONOSUPPORT),
            (libc::SYS_ioctl, [0, 0x5412, 0, 0, 0], libc::EPERM),
            // The kernel does not look at the upper half, so it must not help.
            (libc::SYS_ioctl, [0, 0x5412 | 1 << 32, 0, 0, 0], libc::EPERM),
            (libc::SYS_ioctl, [-1, 0x541c, 0, 0, 0], libc::EPERM),
            (libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0], libc::EPERM),
            (libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0], 0),
            (libc::SYS_fchmodat, [at, path, 0o4755, 0, 0], libc::EPERM),
            (libc::SYS_fchmodat, [at, path, 0o755, 0, 0], libc::ENOENT),
            (libc::SYS_fchmodat, [at, path, 0o1777, 0, 0], libc::ENOENT),
            (libc::SYS_fchmod, [-1, 0o2755, 0, 0, 0], libc::EPERM),
            (super::FCHMODAT2, [at, path, 0o2755, 0, 0], libc::EPERM),
            (libc::SYS_openat, [at, path, flags(libc::O_CREAT | libc::O_WRONLY), 0o4755, 0], libc::EPERM),
            (libc::SYS_openat, [at, path, flags(libc::O_TMPFILE | libc::O_WRONLY), 0o4755, 0], libc::EPERM),
            (libc::SYS_openat, [at, path, flags(libc::O_CREAT | libc::O_WRONLY), 0o644, 0], libc::ENOENT),
            // Without a file to be made, the mode is whatever was in the register.
            (libc::SYS_openat, [at, path, flags(libc::O_RDONLY), 0o4755, 0], libc::ENOENT),
            (libc::SYS_openat, [at, path, flags(libc::O_DIRECTORY), 0o4755, 0], libc::ENOENT),
            (libc::SYS_mknodat, [at, path, i64::from(libc::S_IFCHR), 0, 0], libc::EPERM),
            (libc::SYS_mknodat, [at, path, i64::from(libc::S_IFBLK), 0, 0], libc::EPERM),
            (libc::SYS_mknodat, [at, path, i64::from(libc::S_IFREG) | 0o4000, 0, 0], libc::EPERM),
            (libc::SYS_mknodat, [at, path, i64::from(libc::S_IFIFO), 0, 0], libc::ENOENT),
            (libc::SYS_renameat2, [at, path, at, path, 4], libc::EPERM),
            (libc::SYS_renameat2, [at, path, at, path, 0], libc::ENOENT),
            (i64::from(NEWEST) + 1, [0; 5], libc::ENOSYS),
            (1 << 30, [0; 5], libc::ENOSYS),
        ];
        for (number, arguments, expected) in cases {
            assert_eq!(filtered(move || call(number, arguments)), expected, "{number} {arguments:x?}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_call_by_the_old_table_ends_the_program() {
        let status = filtered(|| {
            // SAFETY: the child makes one call, by the 32-bit gate, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: number 20 of the 32-bit table is `getpid`; if it came back, the child would end at once.
                unsafe {
                    std::arch::asm!("int 0x80", inlateout("rax") 20_i64 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: our own child, and a place for its status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            status
        });
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS, "{status:x}");
    }

    #[test]
    fn ordinary_programs_do_not_notice() {
        let scripts = [
            ("bash", vec!["-c", "echo $(true | cat) && (exit 3) | cat; kill -0 $$"]),
            ("python3", vec!["-c", PYTHON]),
            ("cargo", vec!["--version"]),
        ];
        for (program, arguments) in scripts {
            let ended = filtered(move || Command::new(program).args(arguments).output());
            let Ok(ended) = ended else {
                println!("{program} is not here");
                continue;
            };
            assert!(ended.status.success(), "{program}: {}", String::from_utf8_lossy(&ended.stderr));
        }
    }

    /// Threads, processes, loopback sockets, and files.
    const PYTHON: &str = "
import socket, subprocess, tempfile, threading, os
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
assert subprocess.run(['true']).returncode == 0
thread = threading.Thread(target=print); thread.start(); thread.join()
with tempfile.TemporaryDirectory() as d:
    open(d + '/a', 'w').close(); os.chmod(d + '/a', 0o755); os.rename(d + '/a', d + '/b'); os.mkfifo(d + '/c')
a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'
";
}
