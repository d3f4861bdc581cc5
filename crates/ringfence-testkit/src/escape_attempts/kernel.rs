//! Escape attempts: other processes, and the kernel itself.

use super::{EscapeAttempt, untried, works, works_for_root};

pub(super) const ALL: &[EscapeAttempt] = &[
    works(
        "trace a process",
        r#"
def traced():
    pid = os.fork()
    if pid == 0:
        signal.pause(); os._exit(0)
    try: return call("ptrace", 16, pid, 0, 0) == 0
    finally: os.kill(pid, 9)
attempt(traced)"#,
    ),
    works("be traced", r#"attempt(lambda: child(lambda: call("ptrace", 0, 0, 0, 0)))"#),
    works_for_root("read the memory of the first process", r#"attempt(lambda: opens("/proc/1/mem", os.O_RDONLY))"#),
    works_for_root("list the descriptors of the first process", r#"attempt(lambda: [os.listdir("/proc/1/fd")])"#),
    works(
        "read memory across processes",
        r#"
def peeked():
    source, target = ctypes.create_string_buffer(b"mark"), ctypes.create_string_buffer(4)
    vec = lambda b: buffer("PN", ctypes.addressof(b), 4)
    return call("process_vm_readv", os.getpid(), vec(target), 1, vec(source), 1, 0)
attempt(peeked)"#,
    ),
    works(
        "write memory across processes",
        r#"
def poked():
    source, target = ctypes.create_string_buffer(b"mark"), ctypes.create_string_buffer(4)
    vec = lambda b: buffer("PN", ctypes.addressof(b), 4)
    return call("process_vm_writev", os.getpid(), vec(source), 1, vec(target), 1, 0)
attempt(poked)"#,
    ),
    works(
        "take a descriptor of another process",
        r#"attempt(lambda: call("pidfd_getfd", call("pidfd_open", os.getpid(), 0), 1, 0))"#,
    ),
    works("compare processes", r#"attempt(lambda: call("kcmp", os.getpid(), os.getpid(), 0, 1, 1) >= 0)"#),
    works_for_root("signal the first process", r#"attempt(lambda: os.kill(1, 0) or True)"#),
    untried(
        "signal a group of the server",
        r#"attempt(lambda: any_of(*[lambda p=p: os.kill(p, 0) or p for p in range(2, 400) if p != os.getpid()]))"#,
    ),
    works_for_root(
        "load a program into the kernel",
        r#"attempt(lambda: call("bpf", 0, buffer("5I", 2, 4, 4, 1, 0, size=120), 72))"#,
    ),
    works_for_root(
        "open a counter of events",
        r#"attempt(lambda: call("perf_event_open", buffer("IIQ", 1, 112, 0, size=112), 0, -1, -1, 0))"#,
    ),
    works(
        "open a ring to the kernel",
        r#"attempt(lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120)))"#,
    ),
    works("add a key", r#"attempt(lambda: call("add_key", b"user", b"ringfence-test", b"x", 1, -2))"#),
    works("use a keyring", r#"attempt(lambda: call("keyctl", 0, -3, 0))"#),
    untried("request a key", r#"attempt(lambda: call("request_key", b"user", b"ringfence-none", None, -2))"#),
    works_for_root("handle faults of memory", r#"attempt(lambda: call("userfaultfd", 0))"#),
    untried("handle faults of memory by the device", r#"attempt(lambda: opens("/dev/userfaultfd", os.O_RDWR))"#),
    untried("load a module", r#"attempt(lambda: call("init_module", b"", 0, b""))"#),
    untried(
        "load a module from a file",
        r#"attempt(lambda: call("finit_module", os.open("/dev/null", os.O_RDONLY), b"", 0))"#,
    ),
    untried("remove a module", r#"attempt(lambda: call("delete_module", b"ringfence-none", 0))"#),
    untried("load a kernel", r#"attempt(lambda: call("kexec_load", 0, 0, None, 0))"#),
    untried("stop the machine", r#"attempt(lambda: call("reboot", 0xfee1dead, 672274793, 0, None))"#),
    untried("swap to a file", r#"attempt(lambda: call("swapon", b"/workspace/none", 0))"#),
    untried("account processes", r#"attempt(lambda: call("acct", None))"#),
    untried("change quotas", r#"attempt(lambda: call("quotactl", 0x800001 << 8, None, 0, None))"#),
    untried(
        "set the clock",
        r#"attempt(lambda: call("clock_settime", 0, buffer("qq", *divmod(time.time_ns(), 10**9))))"#,
    ),
    untried("bend the clock", r#"attempt(lambda: call("adjtimex", buffer("I", 0x2, size=256)))"#),
    untried("hang up the terminal", r#"attempt(lambda: call("vhangup"))"#),
    untried("set the machine's name", r#"attempt(lambda: call("sethostname", b"x", 1))"#),
    works_for_root(
        "set a name in a namespace of one's own",
        r#"attempt(lambda: child(lambda: (call("unshare", 0x4000000), call("sethostname", b"x", 1))))"#,
    ),
    works_for_root(
        "open a file by its handle",
        r#"
def by_handle():
    handle, mount = buffer("Ii", 128, 0, size=256), buffer("i", 0)
    path = b"plain.txt" if os.path.exists("plain.txt") else b"/usr"
    call("name_to_handle_at", -100, path, handle, mount, 0)
    return call("open_by_handle_at", os.open(".", os.O_RDONLY), handle, 0)
attempt(by_handle)"#,
    ),
    works("turn randomisation off", r#"attempt(lambda: call("personality", 0x0040000) >= 0)"#),
    works("make what is read executable", r#"attempt(lambda: call("personality", 0x0400000) >= 0)"#),
    works_for_root("watch all files", r#"attempt(lambda: call("fanotify_init", 0, 0))"#),
    untried(
        "move pages of another process",
        r#"attempt(lambda: call("migrate_pages", os.getpid(), 0, None, None) >= 0)"#,
    ),
    untried(
        "call a number that is not known yet",
        r#"
def unknown():
    ctypes.set_errno(0)
    got = [n for n in range(467, 600) if libc.syscall(n, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS]
    return got or None
attempt(unknown)"#,
    ),
    untried(
        "call by the table of 32-bit programs",
        r#"
def old_call():
    # mov eax, 20; int 0x80; ret: which process this is, by the old table.
    if platform.machine() != "x86_64": return None
    room = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    room.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(room)))
    return child(lambda: function() > 0 or os._exit(1))
attempt(old_call)"#,
    ),
    untried(
        "call by the table of x32 programs",
        r#"
def old_call():
    if platform.machine() != "x86_64": return None
    return libc.syscall(ctypes.c_long(0x40000000 | 39)) > 0
attempt(old_call)"#,
    ),
    works_for_root(
        "open ports of the machine",
        r#"
def ports():
    if platform.machine() != "x86_64": raise OSError(errno.ENOSYS, "ioperm")
    if libc.syscall(173, 0x80, 1, 1) != 0: raise OSError(ctypes.get_errno(), "ioperm")
    return True
attempt(lambda: child(ports))"#,
    ),
];
