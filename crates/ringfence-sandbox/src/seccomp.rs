//! Seccomp filter: compiled from the rules, and installed.
//!
//! Calls that no rule refuses are allowed up to the newest call we know: a list of allowed calls would break unforeseen
//! programs, and the other isolation remains. Newer calls than that fail as on an older kernel, and calls by another
//! architecture's table end the program.
//!
//! Not here: the rules (`seccomp_rules.rs`), and anything behind a pointer, such as paths and the flags of `clone3` and
//! `openat2`. A filter cannot see it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use seccompiler::{BpfProgram, sock_filter};

use crate::limits::MemoryLimiter;
use crate::seccomp_rules::SyscallArgTest::{self, AnySet, AnySetUpper, Equals, MaskedEquals, NotEquals};
use crate::seccomp_rules::{
    DENIED_BY_ARGS, DENIED_SYSCALLS, FILE_LOCKS, FILE_LOOKUPS, NAMED_SOCKETS, NOTIFY, PROGRAM_STARTS, RENAMES,
    SyscallArgRule, UNACCOUNTED_MEMORY,
};
use crate::sys;
use crate::wrapped_environment::RecordedCalls;

/// The newest call we know, `removexattrat`. Tables of all architectures have been the same from 424 on. Calls of the
/// old x32 table have a flag that makes them larger.
const NEWEST_SYSCALL: u32 = 466;

/// The filters, compiled. Made once, before any fork.
#[derive(Debug)]
pub(crate) struct SeccompFilters {
    /// With a cgroup as memory limit. Calls that lock files and renames notify the listener.
    with_cgroup: BpfProgram,
    /// The same for a process that has another listener: the kernel permits one.
    unasked: BpfProgram,
    /// With memory accounting (`memory_monitor.rs`): calls whose memory cannot be counted are refused or notify the
    /// listener.
    with_accounting: BpfProgram,
}

/// Failure to build or install a filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeccompError {
    #[error("the seccomp rules do not support this CPU architecture")]
    Architecture,
    #[error("the seccomp rules do not compile")]
    Compile,
    #[error("the kernel rejected the seccomp filter")]
    Install(#[from] seccompiler::Error),
    #[error("the kernel rejected the seccomp filter")]
    Listen(#[from] Errno),
}

impl SeccompError {
    /// The kernel's error, or the one that describes the failure best.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Architecture => Errno::NOSYS,
            Self::Install(seccompiler::Error::Prctl(cause) | seccompiler::Error::Seccomp(cause)) => {
                Errno::from_io_error(cause).unwrap_or(Errno::IO)
            }
            Self::Compile | Self::Install(_) => Errno::INVAL,
            Self::Listen(errno) => *errno,
        }
    }
}

impl SeccompFilters {
    /// Compiles them.
    ///
    /// It is our own compiler because the time to install counts in every run: the kernel tries a new filter on each call
    /// there is. The crate's own looks through its list from the top, and has one error a program. That made five programs
    /// that took 300 µs to install; one that halves the list at each step takes 100.
    pub(crate) fn new() -> Result<Self, SeccompError> {
        Self::with(&[])
    }

    /// The same for a jail that mounts host directories directly, in which a process may listen at a socket: no socket
    /// that could be connected to a name. Pairs stay.
    pub(crate) fn without_named_sockets() -> Result<Self, SeccompError> {
        Self::with(&[NAMED_SOCKETS])
    }

    fn with(further: &[SyscallArgRule]) -> Result<Self, SeccompError> {
        let kept = compile(&[further, &[FILE_LOCKS, RENAMES]].concat())?;
        let counted = compile(&[further, &[FILE_LOCKS, RENAMES], &UNACCOUNTED_MEMORY].concat())?;
        Ok(Self { with_cgroup: kept, unasked: compile(further)?, with_accounting: counted })
    }

    /// Installs the filter permanently, without calls that it asks about.
    pub(crate) fn install_without_listener(&self) -> Result<(), SeccompError> {
        Ok(seccompiler::apply_filter(&self.unasked)?)
    }

    /// Installs the filter permanently, for this thread and its children. Returns the listener for requests for locks,
    /// renames and, where memory is counted, for shared memory.
    pub(crate) fn install(&self, memory: MemoryLimiter) -> Result<Option<OwnedFd>, SeccompError> {
        match memory {
            MemoryLimiter::Cgroup => match sys::install_filter_with_listener(&self.with_cgroup) {
                // A container that answers calls of its programs. Locks are not limited there (`docs/jail.md`).
                Err(Errno::BUSY) => self.install_without_listener().map(|()| None),
                installed => Ok(Some(installed?)),
            },
            MemoryLimiter::Rlimit => Ok(Some(sys::install_filter_with_listener(&self.with_accounting)?)),
        }
    }
}

/// Installs a filter permanently that also asks about each call that is recorded. It is made for the few runs that record
/// some. Returns the listener; nothing, where a container has one of its own.
pub(crate) fn install_with_recorded(
    memory: MemoryLimiter,
    recorded: RecordedCalls,
) -> Result<Option<OwnedFd>, SeccompError> {
    let mut asked = vec![FILE_LOCKS, RENAMES];
    asked.extend(recorded.lookups.then_some(FILE_LOOKUPS));
    asked.extend(recorded.starts.then_some(PROGRAM_STARTS));
    if memory == MemoryLimiter::Rlimit {
        asked.extend(UNACCOUNTED_MEMORY);
    }
    let filter = compile(&asked)?;
    match sys::install_filter_with_listener(&filter) {
        Err(Errno::BUSY) if memory == MemoryLimiter::Cgroup => Ok(None),
        installed => Ok(Some(installed?)),
    }
}

fn compile(further: &[SyscallArgRule]) -> Result<BpfProgram, SeccompError> {
    let mut program = vec![
        load(ARCH_OFFSET),
        jump(libc::BPF_JEQ, NATIVE_ARCH.ok_or(SeccompError::Architecture)?, 1, 0),
        ret(libc::SECCOMP_RET_KILL_PROCESS),
        load(NR_OFFSET),
        jump(libc::BPF_JGT, NEWEST_SYSCALL, 0, 1),
        ret_errno(libc::ENOSYS),
    ];
    let calls: Vec<(u32, BpfProgram)> = verdicts(further)?.into_iter().collect();
    program.extend(binary_search(&calls)?);
    Ok(program)
}

/// The action for each call of the lists. Every path through a piece ends with one.
fn verdicts(further: &[SyscallArgRule]) -> Result<BTreeMap<u32, BpfProgram>, SeccompError> {
    let number = |call: &i64| u32::try_from(*call).map_err(|_| SeccompError::Compile);
    let mut pieces: BTreeMap<u32, BpfProgram> = BTreeMap::new();
    for refusal in DENIED_BY_ARGS.iter().chain(further) {
        for (call, tests) in refusal.calls {
            pieces.entry(number(call)?).or_default().extend(deny_if(tests, refusal.error)?);
        }
    }
    pieces.values_mut().for_each(|piece| piece.push(ret(libc::SECCOMP_RET_ALLOW)));
    for refusal in DENIED_SYSCALLS {
        for call in refusal.calls {
            pieces.insert(number(call)?, vec![ret_errno(refusal.error)]);
        }
    }
    Ok(pieces)
}

/// Refuses, or asks, if all tests hold, and goes on behind itself if not.
fn deny_if(tests: &[SyscallArgTest], error: i32) -> Result<BpfProgram, SeccompError> {
    let mut piece = vec![if error == NOTIFY { ret(libc::SECCOMP_RET_USER_NOTIF) } else { ret_errno(error) }];
    for test in tests.iter().rev() {
        let past = u8::try_from(piece.len()).map_err(|_| SeccompError::Compile)?;
        let mut step = match *test {
            Equals(position, value) => vec![load(arg_offset(position)), jump(libc::BPF_JEQ, value, 0, past)],
            NotEquals(position, value) => vec![load(arg_offset(position)), jump(libc::BPF_JEQ, value, past, 0)],
            AnySet(position, mask) => vec![load(arg_offset(position)), jump(libc::BPF_JSET, mask, 0, past)],
            AnySetUpper(position, mask) => vec![load(arg_offset(position) + 4), jump(libc::BPF_JSET, mask, 0, past)],
            MaskedEquals(position, mask, value) => vec![
                load(arg_offset(position)),
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
fn binary_search(calls: &[(u32, BpfProgram)]) -> Result<BpfProgram, SeccompError> {
    if let [(call, verdict)] = calls {
        let mut program = vec![jump(libc::BPF_JEQ, *call, 1, 0), ret(libc::SECCOMP_RET_ALLOW)];
        program.extend_from_slice(verdict);
        return Ok(program);
    }
    let (lower, upper) = calls.split_at(calls.len() / 2);
    let Some((middle, _)) = upper.first() else { return Ok(vec![ret(libc::SECCOMP_RET_ALLOW)]) };
    let (lower, upper) = (binary_search(lower)?, binary_search(upper)?);
    // A jump with a test reaches 255 instructions; one without reaches everything.
    let over = u32::try_from(upper.len()).map_err(|_| SeccompError::Compile)?;
    let mut program = vec![jump(libc::BPF_JGE, *middle, 1, 0), instruction(libc::BPF_JMP | libc::BPF_JA, over, 0, 0)];
    program.extend(upper);
    program.extend(lower);
    Ok(program)
}

// Where the kernel puts the number, the architecture and the arguments of a call. Of an argument, its lower half.
const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const fn arg_offset(position: u8) -> u32 {
    16 + 8 * position as u32
}

/// Audit number of the architecture whose table the lists are about.
const NATIVE_ARCH: Option<u32> = if cfg!(target_arch = "x86_64") {
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

fn ret(verdict: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, verdict, 0, 0)
}

fn ret_errno(error: i32) -> sock_filter {
    ret(libc::SECCOMP_RET_ERRNO | error.unsigned_abs())
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // The codes are all below 256.
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use proptest::prelude::*;
    use ringfence_testkit::requirement::{Requirement, skip_without};

    use super::{NAMED_SOCKETS, NEWEST_SYSCALL, SeccompFilters, SyscallArgTest, UNACCOUNTED_MEMORY, compile};
    use crate::seccomp_rules::{FCHMODAT2, LANDLOCK_RESTRICT_SELF};

    /// Makes a call in a thread that has the filter, and says how it ended: 0 or the error.
    fn call(number: i64, arguments: [i64; 5]) -> i32 {
        let [a, b, c, d, e] = arguments;
        // SAFETY: every call of these tests is refused, or is one that reads nothing and changes nothing of ours.
        let result = unsafe { libc::syscall(number, a, b, c, d, e) };
        if result == -1 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
    }

    /// A filter holds for the installing thread and its children. What it would ask about is allowed.
    fn run_filtered<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = thread::spawn(|| {
            SeccompFilters::new().unwrap().install_without_listener().unwrap();
            work()
        });
        thread.join().unwrap()
    }

    /// The result of the program, interpreted as the kernel does.
    fn verdict(program: &[seccompiler::sock_filter], call: u32, arguments: [u64; 6]) -> u32 {
        let mut data = vec![call, super::NATIVE_ARCH.unwrap(), 0, 0];
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
        let holds = |test: &SyscallArgTest| match *test {
            SyscallArgTest::Equals(position, value) => arguments[usize::from(position)] as u32 == value,
            SyscallArgTest::NotEquals(position, value) => arguments[usize::from(position)] as u32 != value,
            SyscallArgTest::MaskedEquals(position, mask, value) => {
                arguments[usize::from(position)] as u32 & mask == value
            }
            SyscallArgTest::AnySet(position, mask) => arguments[usize::from(position)] as u32 & mask != 0,
            SyscallArgTest::AnySetUpper(position, mask) => (arguments[usize::from(position)] >> 32) as u32 & mask != 0,
        };
        if call > NEWEST_SYSCALL {
            return error(libc::ENOSYS);
        }
        let always = super::DENIED_SYSCALLS.iter().find(|group| group.calls.contains(&i64::from(call)));
        let sometimes = super::DENIED_BY_ARGS.iter().find(|group| {
            group.calls.iter().any(|(other, tests)| *other == i64::from(call) && tests.iter().all(holds))
        });
        let found = always.map(|group| group.error).or(sometimes.map(|group| group.error));
        found.map_or(libc::SECCOMP_RET_ALLOW, error)
    }

    proptest! {
        #[test]
        fn the_program_says_what_the_lists_say(
            call in prop_oneof![0..NEWEST_SYSCALL + 10, any::<u32>()],
            arguments in prop::array::uniform6(prop_oneof![0u64..20, any::<u64>(), Just(0o4755), Just(0x5412)]),
        ) {
            let program = compile(&[]).unwrap();
            let often = [libc::SYS_socket, libc::SYS_openat, libc::SYS_mknodat, libc::SYS_prlimit64].map(|call| call as u32);
            for call in often.into_iter().chain([call]) {
                prop_assert_eq!(verdict(&program, call, arguments), expected(call, arguments));
            }
        }
    }

    #[test]
    fn every_call_is_judged_by_the_lists() {
        let program = compile(&[]).unwrap();
        assert!(program.len() < 4096, "the kernel takes no more");
        for call in 0..=NEWEST_SYSCALL + 1 {
            assert_eq!(verdict(&program, call, [0; 6]), expected(call, [0; 6]), "{call}");
        }
    }

    #[test]
    fn every_refused_call_gets_its_error() {
        let wrong: Vec<(i64, i32, i32)> = run_filtered(|| {
            let every =
                super::DENIED_SYSCALLS.iter().flat_map(|group| group.calls.iter().map(|call| (*call, group.error)));
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
            (libc::SYS_socket, [flags(libc::AF_NETLINK), 3, 0, 0, 0], 0),
            (
                libc::SYS_socket,
                [flags(libc::AF_NETLINK), flags(3 | libc::SOCK_CLOEXEC), 15, 0, 0],
                libc::EPROTONOSUPPORT,
            ),
            (libc::SYS_socket, [flags(libc::AF_NETLINK), 2, 4, 0, 0], libc::EPROTONOSUPPORT),
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
            // Reported as a success without reading memory: there is nothing at these addresses.
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
            (FCHMODAT2, [at, path, 0o2755, 0, 0], libc::EPERM),
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
            (i64::from(NEWEST_SYSCALL) + 1, [0; 5], libc::ENOSYS),
            (1 << 30, [0; 5], libc::ENOSYS),
        ];
        for (number, arguments, expected) in cases {
            assert_eq!(run_filtered(move || call(number, arguments)), expected, "{number} {arguments:x?}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_call_by_the_old_table_ends_the_program() {
        let status = run_filtered(|| {
            // SAFETY: the child makes one call, by the 32-bit gate, and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: number 20 of the 32-bit table is `getpid`; if it came back, the child would end at once.
                unsafe {
                    std::arch::asm!("int 0x80", inlateout("rax") 20_i64 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: our own child, and a buffer for its status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            status
        });
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS, "{status:x}");
    }

    #[test]
    fn named_sockets_are_denied_in_bare_directories() {
        let (open, shut) = (compile(&[]).unwrap(), compile(&[NAMED_SOCKETS]).unwrap());
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
    fn memory_that_cannot_be_counted_is_refused_or_asked_about() {
        let (kept, counted) = (compile(&[]).unwrap(), compile(&UNACCOUNTED_MEMORY).unwrap());
        let error = |error: i32| libc::SECCOMP_RET_ERRNO | error.unsigned_abs();
        let flags = |flags: i32| flags as u64;
        let (socket, shared) = (flags(libc::SOL_SOCKET), flags(libc::MAP_SHARED | libc::MAP_ANONYMOUS));
        let check = |call: i64, arguments: [u64; 6], expected: u32| {
            assert_eq!(verdict(&counted, call as u32, arguments), expected, "{call} {arguments:x?}");
            assert_eq!(verdict(&kept, call as u32, arguments), libc::SECCOMP_RET_ALLOW, "{call} {arguments:x?}");
        };
        check(libc::SYS_memfd_create, [1, 2, 0, 0, 0, 0], error(libc::ENOSYS));
        check(447, [0; 6], error(libc::ENOSYS));
        let thread = flags(libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD);
        check(libc::SYS_clone, [thread, 0, 0, 0, 0, 0], error(libc::EINVAL));
        check(libc::SYS_clone, [thread | flags(libc::CLONE_FILES), 0, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW);
        check(libc::SYS_clone, [flags(libc::SIGCHLD), 0, 0, 0, 0, 0], libc::SECCOMP_RET_ALLOW);
        check(libc::SYS_vmsplice, [1, 2, 3, 0, 0, 0], error(libc::EINVAL));
        check(libc::SYS_splice, [1, 0, 2, 0, 9, 0], error(libc::EINVAL));
        check(libc::SYS_setsockopt, [3, socket, flags(libc::SO_SNDBUF), 1, 4, 0], error(0));
        check(libc::SYS_setsockopt, [3, socket, flags(libc::SO_REUSEADDR), 1, 4, 0], libc::SECCOMP_RET_ALLOW);
        check(libc::SYS_mmap, [0, 4096, 3, shared, u64::MAX, 0], libc::SECCOMP_RET_USER_NOTIF);
        check(
            libc::SYS_mmap,
            [0, 4096, 3, shared | flags(libc::MAP_NORESERVE), u64::MAX, 0],
            libc::SECCOMP_RET_USER_NOTIF,
        );
        let private = flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        check(libc::SYS_mmap, [0, 4096, 3, private, u64::MAX, 0], libc::SECCOMP_RET_ALLOW);
        check(libc::SYS_mmap, [0, 4096, 3, flags(libc::MAP_SHARED), 3, 0], libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn calls_that_lock_files_are_asked_about() {
        let (ask, allow) = (libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_RET_ALLOW);
        let filters = SeccompFilters::new().unwrap();
        let check = |call: i64, argument: i32, expected: u32| {
            // The kernel does not look at the upper half of a command, so it must not help.
            for argument in [argument as u64, argument as u64 | 1 << 32] {
                let arguments = [3, argument, 0, 0, 0, 0];
                assert_eq!(verdict(&filters.with_cgroup, call as u32, arguments), expected, "{call} {argument:x}");
                assert_eq!(verdict(&filters.with_accounting, call as u32, arguments), expected, "{call} {argument:x}");
                assert_eq!(verdict(&filters.unasked, call as u32, arguments), allow, "{call} {argument:x}");
            }
        };
        let locking = [libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_SETLEASE];
        for command in 0..2048 {
            let is_locking = locking.contains(&command) || command == 1040;
            check(libc::SYS_fcntl, command, if is_locking { ask } else { allow });
        }
        for (operation, expected) in
            [(libc::LOCK_SH, ask), (libc::LOCK_EX | libc::LOCK_NB, ask), (libc::LOCK_UN, allow)]
        {
            check(libc::SYS_flock, operation, expected);
        }
    }

    #[test]
    fn renames_are_asked_about_but_for_exchanges() {
        let (ask, allow) = (libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_RET_ALLOW);
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let filters = SeccompFilters::new().unwrap();
        let check = |call: i64, flags: u32, expected: u32, unasked: u32| {
            let arguments = [0, 0, 0, 0, flags.into(), 0];
            assert_eq!(verdict(&filters.with_cgroup, call as u32, arguments), expected, "{call} {flags}");
            assert_eq!(verdict(&filters.with_accounting, call as u32, arguments), expected, "{call} {flags}");
            assert_eq!(verdict(&filters.unasked, call as u32, arguments), unasked, "{call} {flags}");
        };
        #[cfg(target_arch = "x86_64")]
        check(libc::SYS_rename, 0, ask, allow);
        check(libc::SYS_renameat, 0, ask, allow);
        check(LANDLOCK_RESTRICT_SELF, 0, ask, allow);
        for (flags, expected, unasked) in
            [(0, ask, allow), (libc::RENAME_NOREPLACE, ask, allow), (libc::RENAME_EXCHANGE, allow, allow)]
        {
            check(libc::SYS_renameat2, flags, expected, unasked);
            check(libc::SYS_renameat2, flags | libc::RENAME_WHITEOUT, refuse, refuse);
        }
    }

    #[test]
    fn ordinary_programs_do_not_notice() {
        let scripts = [
            (None, "bash", vec!["-c", "echo $(true | cat) && (exit 3) | cat; kill -0 $$"]),
            (Some(Requirement::Python), "python3", vec!["-c", PYTHON]),
            (Some(Requirement::Cargo), "cargo", vec!["--version"]),
        ];
        for (requirement, program, arguments) in scripts {
            let ended = run_filtered(move || Command::new(program).args(arguments).output());
            if let (Some(requirement), Err(_)) = (requirement, &ended) {
                skip_without(requirement, &format!("there is no `{program}`"));
                continue;
            }
            let ended = ended.unwrap();
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
