//! Which calls to the kernel a jailed program may not make.
//!
//! The list is data, grouped by reason. What is refused gets an error that programs know how to go on from: `EPERM`, or
//! `ENOSYS` where they have an older way. What is not in the list is allowed up to the newest call we know: a list of
//! allowed calls would break programs nobody thought of, and the other walls stand before what gets through. Newer calls
//! than that are as if the kernel were older, and calls by another architecture's table end the program.
//!
//! Not here: anything behind a pointer, such as paths and the flags of `clone3` and `openat2`. A filter cannot see it.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

/// The newest call we know, `removexattrat`. Tables of all architectures have been the same from 424 on. Calls of the old
/// x32 table have a bit set that makes them larger.
const NEWEST: u32 = 466;

/// The filter, compiled. Made once, before any fork.
#[derive(Debug)]
pub(crate) struct Filter {
    program: BpfProgram,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("there is no list of refused system calls for this kind of processor")]
    Architecture,
    #[error("the list of refused system calls does not compile")]
    Compile,
    #[error("the kernel does not take the filter of system calls")]
    Install(#[from] seccompiler::Error),
}

/// Compiles the filter.
///
/// It is our own compiler because the time to install counts in every run: the kernel tries a new filter on each call there
/// is. The crate's own looks through its list from the top, and has one error a program. That made five programs that took
/// 300 µs to install; one that halves the list at each step takes 100.
pub(crate) fn program() -> Result<Filter, FilterError> {
    compile(&[])
}

/// The same for a jail that shows bare directories of the host, in which somebody may listen at a socket: no socket that
/// could be connected to a name. Pairs stay.
pub(crate) fn without_named_sockets() -> Result<Filter, FilterError> {
    compile(&[NAMED_SOCKETS])
}

fn compile(further: &[RefusedWith]) -> Result<Filter, FilterError> {
    let mut program = vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, OURS.ok_or(FilterError::Architecture)?, 1, 0),
        give(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
        jump(libc::BPF_JGT, NEWEST, 0, 1),
        refuse(libc::ENOSYS),
    ];
    let calls: Vec<(u32, BpfProgram)> = verdicts(further)?.into_iter().collect();
    program.extend(choose(&calls)?);
    Ok(Filter { program })
}

impl Filter {
    /// From here on and for good, for this thread and all that it starts.
    pub(crate) fn install(&self) -> Result<(), FilterError> {
        Ok(seccompiler::apply_filter(&self.program)?)
    }
}

/// What to do about each call of the lists. Every piece ends with a verdict, whichever way it is gone through.
fn verdicts(further: &[RefusedWith]) -> Result<BTreeMap<u32, BpfProgram>, FilterError> {
    let number = |call: &i64| u32::try_from(*call).map_err(|_| FilterError::Compile);
    let mut pieces: BTreeMap<u32, BpfProgram> = BTreeMap::new();
    for refusal in REFUSED_WITH.iter().chain(further) {
        for (call, tests) in refusal.calls {
            pieces.entry(number(call)?).or_default().extend(refuse_if(tests, refusal.error)?);
        }
    }
    pieces.values_mut().for_each(|piece| piece.push(give(libc::SECCOMP_RET_ALLOW)));
    for refusal in REFUSED {
        for call in refusal.calls {
            pieces.insert(number(call)?, vec![refuse(refusal.error)]);
        }
    }
    Ok(pieces)
}

/// Refuses if all tests hold, and goes on behind itself if not.
fn refuse_if(tests: &[Test], error: i32) -> Result<BpfProgram, FilterError> {
    let mut piece = vec![refuse(error)];
    for test in tests.iter().rev() {
        let past = u8::try_from(piece.len()).map_err(|_| FilterError::Compile)?;
        let mut step = match *test {
            Is(position, value) => vec![load(argument(position)), jump(libc::BPF_JEQ, value, 0, past)],
            IsNot(position, value) => vec![load(argument(position)), jump(libc::BPF_JEQ, value, past, 0)],
            Any(position, mask) => vec![load(argument(position)), jump(libc::BPF_JSET, mask, 0, past)],
            AnyUpper(position, mask) => vec![load(argument(position) + 4), jump(libc::BPF_JSET, mask, 0, past)],
            Bits(position, mask, value) => vec![
                load(argument(position)),
                instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask, 0, 0),
                jump(libc::BPF_JEQ, value, 0, past),
            ],
        };
        step.append(&mut piece);
        piece = step;
    }
    Ok(piece)
}

/// Finds the call by halves.
fn choose(calls: &[(u32, BpfProgram)]) -> Result<BpfProgram, FilterError> {
    if let [(call, verdict)] = calls {
        let mut program = vec![jump(libc::BPF_JEQ, *call, 1, 0), give(libc::SECCOMP_RET_ALLOW)];
        program.extend_from_slice(verdict);
        return Ok(program);
    }
    let (lower, upper) = calls.split_at(calls.len() / 2);
    let Some((middle, _)) = upper.first() else { return Ok(vec![give(libc::SECCOMP_RET_ALLOW)]) };
    let (lower, upper) = (choose(lower)?, choose(upper)?);
    // A jump with a test reaches 255 instructions; one without reaches everything.
    let over = u32::try_from(upper.len()).map_err(|_| FilterError::Compile)?;
    let mut program = vec![jump(libc::BPF_JGE, *middle, 1, 0), instruction(libc::BPF_JMP | libc::BPF_JA, over, 0, 0)];
    program.extend(upper);
    program.extend(lower);
    Ok(program)
}

// Where the kernel puts the number, the architecture and the arguments of a call. Of an argument, its lower half.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(position: u8) -> u32 {
    16 + 8 * position as u32
}

/// How the kernel calls the table of calls that the lists are about.
const OURS: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn jump(test: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, value, if_true, if_false)
}

fn give(verdict: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, verdict, 0, 0)
}

fn refuse(error: i32) -> sock_filter {
    give(libc::SECCOMP_RET_ERRNO | error.unsigned_abs())
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // The codes are all below 256.
    sock_filter { code: code as u16, jt, jf, k }
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

/// A test of one argument, by its position. All but pointers are 32 bits wide: the kernel looks at no more of them.
enum Test {
    Is(u8, u32),
    IsNot(u8, u32),
    /// The bits under the mask have this value.
    Bits(u8, u32, u32),
    /// One of these bits is set, or more.
    Any(u8, u32),
    /// The same in the upper half.
    AnyUpper(u8, u32),
}

use Test::{Any, AnyUpper, Bits, Is, IsNot};

const REFUSED_WITH: &[RefusedWith] = &[
    // New namespaces by the older call.
    RefusedWith { error: libc::EPERM, calls: &[(libc::SYS_clone, &[Any(0, NEW_NAMESPACES)])] },
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
            (libc::SYS_socket, &[IsNot(0, UNIX), Bits(1, SOCKET_TYPE, libc::SOCK_RAW as u32)]),
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
    // The limit of cores, as it is, keeps the program that collects the machine's cores from being started; a lower one
    // would not (`limits.rs`). Who wants to have none is told that it worked: it did, and some end where it does not.
    RefusedWith {
        error: 0,
        calls: &[
            (libc::SYS_setrlimit, &[Is(0, CORE)]),
            (libc::SYS_prlimit64, &[Is(1, CORE), Any(2, u32::MAX)]),
            (libc::SYS_prlimit64, &[Is(1, CORE), AnyUpper(2, u32::MAX)]),
        ],
    },
    // Programs that run as somebody else. Nothing in the jail would obey these bits; they would wait for a commit.
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_fchmod, &[Any(1, SETUID_OR_SETGID)]),
            (libc::SYS_fchmodat, &[Any(2, SETUID_OR_SETGID)]),
            (FCHMODAT2, &[Any(2, SETUID_OR_SETGID)]),
            (libc::SYS_mknodat, &[Any(2, SETUID_OR_SETGID)]),
            (libc::SYS_openat, &[Any(2, CREATE), Any(3, SETUID_OR_SETGID)]),
            (libc::SYS_openat, &[Bits(2, NAMELESS, NAMELESS), Any(3, SETUID_OR_SETGID)]),
        ],
    },
    // Devices, also the one that an overlay takes for a deleted file.
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_mknodat, &[Bits(2, FILE_TYPE, libc::S_IFCHR)]),
            (libc::SYS_mknodat, &[Bits(2, FILE_TYPE, libc::S_IFBLK)]),
            (libc::SYS_renameat2, &[Any(4, WHITEOUT)]),
        ],
    },
    // The same by calls that newer architectures do without.
    #[cfg(target_arch = "x86_64")]
    RefusedWith {
        error: libc::EPERM,
        calls: &[
            (libc::SYS_chmod, &[Any(1, SETUID_OR_SETGID)]),
            (libc::SYS_creat, &[Any(1, SETUID_OR_SETGID)]),
            (libc::SYS_open, &[Any(1, CREATE), Any(2, SETUID_OR_SETGID)]),
            (libc::SYS_open, &[Bits(1, NAMELESS, NAMELESS), Any(2, SETUID_OR_SETGID)]),
            (libc::SYS_mknod, &[Any(1, SETUID_OR_SETGID)]),
            (libc::SYS_mknod, &[Bits(1, FILE_TYPE, libc::S_IFCHR)]),
            (libc::SYS_mknod, &[Bits(1, FILE_TYPE, libc::S_IFBLK)]),
        ],
    },
];

/// Sockets with names in the file system, or in the kernel. One of a pair of datagram sockets could still be sent elsewhere.
const NAMED_SOCKETS: RefusedWith = RefusedWith {
    error: libc::EAFNOSUPPORT,
    calls: &[
        (libc::SYS_socket, &[Is(0, UNIX)]),
        (libc::SYS_socketpair, &[Bits(1, SOCKET_TYPE, libc::SOCK_DGRAM as u32)]),
        (libc::SYS_socketpair, &[Bits(1, SOCKET_TYPE, libc::SOCK_RAW as u32)]),
    ],
};

// Calls that the C library's table does not have everywhere.
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
const FCHMODAT2: i64 = 452;
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: i64 = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: i64 = 294;

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;
const UNIX: u32 = libc::AF_UNIX as u32;
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
const NAMELESS: u32 = libc::O_TMPFILE as u32;
const WHITEOUT: u32 = libc::RENAME_WHITEOUT;

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use proptest::prelude::*;

    use super::{NEWEST, Test, program};

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

    /// What the program says, by going through it as the kernel does.
    fn verdict(program: &[seccompiler::sock_filter], call: u32, arguments: [u64; 6]) -> u32 {
        let mut data = vec![call, super::OURS.unwrap(), 0, 0];
        data.extend(arguments.iter().flat_map(|argument| [*argument as u32, (*argument >> 32) as u32]));
        let (mut at, mut value) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let code = u32::from(step.code);
            let branch = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            match code & 0xf0 | code & 0x07 {
                0x20 => value = data[step.k as usize / 4],
                0x54 => value &= step.k,
                0x05 => at += step.k as usize,
                0x15 => at += branch(value == step.k),
                0x25 => at += branch(value > step.k),
                0x45 => at += branch(value & step.k != 0),
                0x35 => at += branch(value >= step.k),
                0x06 => return step.k,
                other => panic!("unknown instruction {other:x}"),
            }
        }
    }

    fn expected(call: u32, arguments: [u64; 6]) -> u32 {
        let error = |error: i32| libc::SECCOMP_RET_ERRNO | error.unsigned_abs();
        let holds = |test: &Test| match *test {
            Test::Is(position, value) => arguments[usize::from(position)] as u32 == value,
            Test::IsNot(position, value) => arguments[usize::from(position)] as u32 != value,
            Test::Bits(position, mask, value) => arguments[usize::from(position)] as u32 & mask == value,
            Test::Any(position, mask) => arguments[usize::from(position)] as u32 & mask != 0,
            Test::AnyUpper(position, mask) => (arguments[usize::from(position)] >> 32) as u32 & mask != 0,
        };
        if call > NEWEST {
            return error(libc::ENOSYS);
        }
        let always = super::REFUSED.iter().find(|group| group.calls.contains(&i64::from(call)));
        let sometimes = super::REFUSED_WITH.iter().find(|group| {
            group.calls.iter().any(|(other, tests)| *other == i64::from(call) && tests.iter().all(holds))
        });
        let found = always.map(|group| group.error).or(sometimes.map(|group| group.error));
        found.map_or(libc::SECCOMP_RET_ALLOW, error)
    }

    proptest! {
        #[test]
        fn the_program_says_what_the_lists_say(
            call in prop_oneof![0..NEWEST + 10, any::<u32>()],
            arguments in prop::array::uniform6(prop_oneof![0u64..20, any::<u64>(), Just(0o4755), Just(0x5412)]),
        ) {
            let program = program().unwrap().program;
            let often = [libc::SYS_socket, libc::SYS_openat, libc::SYS_mknodat, libc::SYS_prlimit64].map(|call| call as u32);
            for call in often.into_iter().chain([call]) {
                prop_assert_eq!(verdict(&program, call, arguments), expected(call, arguments));
            }
        }
    }

    #[test]
    fn every_call_is_judged_by_the_lists() {
        let program = program().unwrap().program;
        assert!(program.len() < 4096, "the kernel takes no more");
        for call in 0..=NEWEST + 1 {
            assert_eq!(verdict(&program, call, [0; 6]), expected(call, [0; 6]), "{call}");
        }
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
            (libc::SYS_clone, [flags(libc::CLONE_NEWCGROUP | libc::CLONE_VM), 0, 0, 0, 0], libc::EPERM),
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
            // Said to have worked, and never looked at: there is nothing at these addresses.
            (libc::SYS_setrlimit, [4, 8, 0, 0, 0], 0),
            (libc::SYS_prlimit64, [0, 4, 8, 0, 0], 0),
            (libc::SYS_prlimit64, [0, 4, 1 << 32, 0, 0], 0),
            (libc::SYS_prlimit64, [0, 4 | 1 << 32, 8, 0, 0], 0),
            (libc::SYS_prlimit64, [0, 3, 8, 0, 0], libc::EFAULT),
            (libc::SYS_prlimit64, [0, 4, 0, 0, 0], 0),
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
    fn where_directories_are_bare_no_socket_reaches_a_name() {
        let (open, shut) = (program().unwrap().program, super::without_named_sockets().unwrap().program);
        let stream = [libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0].map(|number| number as u64);
        let datagram = [libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0].map(|number| number as u64);
        let inet = [libc::AF_INET, libc::SOCK_STREAM, 0].map(|number| number as u64);
        let refused = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
        let check = |call: i64, [a, b, c]: [u64; 3], expected: u32| {
            assert_eq!(verdict(&shut, call as u32, [a, b, c, 0, 0, 0]), expected, "{call} {a} {b}");
            assert_eq!(verdict(&open, call as u32, [a, b, c, 0, 0, 0]), libc::SECCOMP_RET_ALLOW, "{call} {a} {b}");
        };
        check(libc::SYS_socket, stream, refused);
        check(libc::SYS_socket, datagram, refused);
        check(libc::SYS_socketpair, datagram, refused);
        check(libc::SYS_socketpair, stream, libc::SECCOMP_RET_ALLOW);
        check(libc::SYS_socket, inet, libc::SECCOMP_RET_ALLOW);
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
