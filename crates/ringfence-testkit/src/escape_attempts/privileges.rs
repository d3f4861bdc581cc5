//! Escape attempts: other users, and root's privileges.

use super::{EscapeAttempt, untried, works, works_for_root};

pub(super) const ALL: &[EscapeAttempt] = &[
    works_for_root("be root", r#"attempt(lambda: os.getuid() == 0 or os.geteuid() == 0)"#),
    works_for_root("become root", r#"attempt(lambda: os.setuid(0) or True)"#),
    works_for_root("become another user", r#"attempt(lambda: child(lambda: os.setresuid(1, 1, 1)))"#),
    works_for_root("become another group", r#"attempt(lambda: child(lambda: os.setresgid(0, 0, 0)))"#),
    works_for_root("have more groups", r#"attempt(lambda: child(lambda: os.setgroups([0])))"#),
    works_for_root(
        "have capabilities",
        r#"
def capable():
    lines = [line.split() for line in open("/proc/self/status") if line.startswith("Cap")]
    return [line for line in lines if int(line[1], 16)] or None
attempt(capable)"#,
    ),
    works_for_root(
        "keep a capability for others",
        r#"attempt(lambda: child(lambda: libc.prctl(47, 2, 21, 0, 0) == 0 or call("fsopen", b"tmpfs", 0)))"#,
    ),
    works_for_root(
        "regain all capabilities",
        r#"
def taken():
    header = buffer("Ii", 0x20080522, 0)
    data = buffer("6I", *[0xffffffff, 0xffffffff, 0] + [0x1ff, 0x1ff, 0])
    libc.capget(header, data)
    wanted = struct.unpack("6I", data.raw[:24])
    powers = buffer("6I", wanted[0] | 1 << 21, wanted[1] | 1 << 21, 0, wanted[3], wanted[4], 0)
    if libc.capset(buffer("Ii", 0x20080522, 0), powers) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    return True
attempt(taken)"#,
    ),
    works("gain by a program that is setuid", r#"attempt(lambda: libc.prctl(39, 0, 0, 0, 0) == 0)"#),
    works(
        "have programs that are setuid obeyed",
        r#"attempt(lambda: not os.statvfs("/usr/bin").f_flag & os.ST_NOSUID)"#,
    ),
    untried(
        "have them obeyed anywhere",
        r#"attempt(lambda: [p for p in ("/", "/tmp", "/dev/shm", "/workspace", "/usr", "/run/ringfence") if not os.statvfs(p).f_flag & os.ST_NOSUID] or None)"#,
    ),
    untried(
        "have devices obeyed anywhere",
        r#"attempt(lambda: [p for p in ("/", "/tmp", "/dev/shm", "/workspace", "/usr", "/run/ringfence", "/dev") if not os.statvfs(p).f_flag & os.ST_NODEV] or None)"#,
    ),
    untried(
        "become root by su",
        r#"attempt(lambda: child(lambda: os.close(2) or os.execvp("su", ["su", "root", "-c", "true"])))"#,
    ),
    works(
        "make a program setuid",
        r#"attempt(lambda: opens("shell", os.O_WRONLY | os.O_CREAT) and os.chmod("shell", 0o4755) or os.stat("shell").st_mode & 0o4000)"#,
    ),
    works(
        "make a program setgid",
        r#"attempt(lambda: opens("shell", os.O_WRONLY | os.O_CREAT) and os.chmod("shell", 0o2755) or os.stat("shell").st_mode & 0o2000)"#,
    ),
    works(
        "make a program setuid by its descriptor",
        r#"attempt(lambda: os.fchmod(os.open("shell", os.O_WRONLY | os.O_CREAT), 0o4755) or os.stat("shell").st_mode & 0o4000)"#,
    ),
    works(
        "make a program setuid from the start",
        r#"attempt(lambda: os.close(os.open("shell", os.O_WRONLY | os.O_CREAT, 0o4755)) or os.stat("shell").st_mode & 0o4000)"#,
    ),
    works(
        "make a program setuid with other high bits",
        r#"
def high():
    opens("shell", os.O_WRONLY | os.O_CREAT)
    libc.syscall(268 if platform.machine() == "x86_64" else 53, -100, b"shell", ctypes.c_ulong(1 << 32 | 0o4755), 0)
    return bool(os.stat("shell").st_mode & 0o4000)
attempt(high)"#,
    ),
    works_for_root(
        "give a file away",
        r#"attempt(lambda: opens("mine", os.O_WRONLY | os.O_CREAT) and os.chown("mine", 1, 1) or True)"#,
    ),
    works_for_root(
        "give a program capabilities",
        r#"attempt(lambda: opens("able", os.O_WRONLY | os.O_CREAT) and os.setxattr("able", "security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0)) or True)"#,
    ),
    untried(
        "raise a limit",
        r#"
def raised():
    got = []
    for name in ("NOFILE", "NPROC", "CPU", "FSIZE", "CORE", "MEMLOCK", "NICE", "RTPRIO"):
        limit = getattr(resource, "RLIMIT_" + name)
        before = resource.getrlimit(limit)
        try: resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError): pass
        if resource.getrlimit(limit) != before: got.append(name)
    return got or None
attempt(raised)"#,
    ),
    works(
        "have the machine's collector of cores started",
        r#"
def started():
    # One byte is the only limit with which it is not. Where the server itself has zero, there is no way to one.
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0: raise OSError(errno.ENOTSUP, "the server's own limit is zero")
    for value in (0, 1 << 20):
        try: resource.setrlimit(resource.RLIMIT_CORE, (value, value))
        except (ValueError, OSError): pass
    return resource.getrlimit(resource.RLIMIT_CORE)[0] != 1
attempt(started)"#,
    ),
    works_for_root(
        "run before all others",
        r#"attempt(lambda: child(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))))"#,
    ),
    works_for_root("be nicer to oneself", r#"attempt(lambda: child(lambda: os.nice(-5)))"#),
    works_for_root("read before all others", r#"attempt(lambda: child(lambda: call("ioprio_set", 1, 0, 1 << 13)))"#),
    works_for_root(
        "be spared when memory is short",
        r#"
def spared():
    with open("/proc/self/oom_score_adj", "r+") as file:
        before = int(file.read())
        file.seek(0); file.write(str(before - 1)); file.flush()
    return True
attempt(lambda: child(spared))"#,
    ),
    works_for_root(
        "keep much memory from being moved out",
        r#"
def locked():
    room = mmap.mmap(-1, 16 << 20)
    if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(room))), ctypes.c_size_t(16 << 20)) != 0:
        raise OSError(ctypes.get_errno(), "mlock")
    return True
attempt(lambda: child(locked))"#,
    ),
];
