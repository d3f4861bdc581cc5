//! Escape attempts: files outside of the workspace.

use super::{EscapeAttempt, untried, works, works_for_root};

pub(super) const READ: &[EscapeAttempt] = &[
    works_for_root("read the shadow file", r#"attempt(lambda: reads("/etc/shadow"))"#),
    works("read a file beside the workspace by its path", r#"attempt(lambda: reads("{OUT}"))"#),
    works("read a file beside the workspace by dots", r#"attempt(lambda: reads("../outside/secret.txt"))"#),
    works("read through many dots", r#"attempt(lambda: reads("../" * 40 + "{OUT}".lstrip("/")))"#),
    works(
        "read through a link made in the workspace",
        r#"os.symlink("{OUT}", "way-out"); attempt(lambda: reads("way-out"))"#,
    ),
    works("read through a link that was there", r#"attempt(lambda: reads("planted-link"))"#),
    works("list through a link that was there", r#"attempt(lambda: os.listdir("planted-directory-link"))"#),
    works_for_root("read through the root of the first process", r#"attempt(lambda: reads("/proc/1/root{OUT}"))"#),
    works_for_root("read through the place of the first process", r#"attempt(lambda: os.listdir("/proc/1/cwd/"))"#),
    works("read through one's own root", r#"attempt(lambda: reads("/proc/self/root/proc/self/root{OUT}"))"#),
    works("read through the root of a parent", r#"attempt(lambda: reads(f"/proc/{os.getppid()}/root{OUT}"))"#),
    works(
        "step out of a directory that is moved away",
        r#"
def stepped():
    os.makedirs("a/b/c")
    held = os.open("a/b/c", os.O_RDONLY)
    os.rename("a/b/c", "c")
    os.fchdir(held)
    return reads("../../outside/secret.txt")
attempt(stepped)"#,
    ),
    works("list a home directory", r#"attempt(lambda: os.listdir("{HOME}"))"#),
    works("list all home directories", r#"attempt(lambda: [os.listdir("/home")])"#),
    works("read a key for other machines", r#"attempt(lambda: reads("{HOME}/.ssh/id_ed25519"))"#),
    untried(
        "find keys for other machines",
        r#"attempt(lambda: glob.glob("/etc/ssh/*key*") + glob.glob("/root/.ssh/*") + glob.glob("/home/*/.ssh/*") or None)"#,
    ),
    untried(
        "read the machine's id",
        r#"attempt(lambda: any_of(lambda: reads("/etc/machine-id"), lambda: reads("/var/lib/dbus/machine-id")))"#,
    ),
    untried(
        "read whom the machine asks for names",
        // The jail has a name server of its own.
        r#"
def read():
    paths = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
    lines = [line for path in paths for line in (any_of(lambda: open(path).read()) or [""])[0].splitlines()]
    own = ("nameserver 127.0.0.1", "nameserver 198.19.0.1", "options ")
    return [line for line in lines if not line.startswith(own)] or None
attempt(read)"#,
    ),
    works("read the spaces of the host", r#"attempt(lambda: os.listdir("/sys") or None)"#),
    works("read the bounds of the host's groups", r#"attempt(lambda: os.listdir("/sys/fs/cgroup") or None)"#),
    works_for_root(
        "read the kernel's memory",
        r#"attempt(lambda: opens("/proc/kcore", os.O_RDONLY) and os.stat("/proc/kcore").st_size or None)"#,
    ),
    untried("read the kernel's log", r#"attempt(lambda: call("syslog", 3, ctypes.create_string_buffer(64), 64))"#),
    works("read the list of keys", r#"attempt(lambda: reads("/proc/key-users"))"#),
    works("read the interrupts of the machine", r#"attempt(lambda: reads("/proc/interrupts"))"#),
    works_for_root("read the timers of the machine", r#"attempt(lambda: reads("/proc/timer_list"))"#),
    untried(
        "find a disk",
        r#"attempt(lambda: [p for p in glob.glob("/dev/*") if stat.S_ISBLK(os.stat(p).st_mode)] or None)"#,
    ),
    untried(
        "find a device that is not harmless",
        r#"
names = {"core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}
attempt(lambda: set(os.listdir("/dev")) - names or None)"#,
    ),
    works(
        "find the server's environment",
        r#"
def found():
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if b"{MARK}" in open(path, "rb").read(): return path
        except OSError: pass
attempt(found)"#,
    ),
    works("find the mark in one's own environment", r#"attempt(lambda: "{MARK}" in " ".join(os.environ.values()))"#),
    works(
        "see the machine's processes",
        r#"
def seen():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if b"{PROCESS}" in open(path, "rb").read(): return path
        except OSError: pass
attempt(seen)"#,
    ),
    untried(
        "see more processes than one's own and the first",
        r#"attempt(lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())] or None)"#,
    ),
    untried(
        "read how the first process was started",
        r#"attempt(lambda: any_of(*[lambda f=f: reads("/proc/1/" + f) for f in ("environ", "maps", "auxv", "io", "stack", "syscall")]))"#,
    ),
    works(
        "learn the machine's name",
        r#"attempt(lambda: socket.gethostname() == "{HOSTNAME}" or open("/proc/sys/kernel/hostname").read().strip() == "{HOSTNAME}")"#,
    ),
    works(
        "learn where the workspace is on the machine",
        r#"
def learnt():
    files = [f"/proc/{who}/{file}" for who in ("self", "1") for file in ("mountinfo", "mounts")]
    texts = [open(path).read() for path in files + ["/proc/self/mountstats", "/proc/self/maps"]]
    return "{ROOT}" in os.getcwd() + "".join(texts)
attempt(learnt)"#,
    ),
    untried(
        "learn where a directory beside is on the machine",
        r#"attempt(lambda: "{ROOT}" in open("/proc/self/mountinfo").read() or os.path.basename("{ROOT}") in open("/proc/self/mountinfo").read())"#,
    ),
    works(
        "learn the machine's groups",
        r#"attempt(lambda: [l for l in open("/proc/self/cgroup") if l.strip().split(":", 2)[2] != "/"] or None)"#,
    ),
];

pub(super) const WRITE: &[EscapeAttempt] = &[
    works("write beside the workspace", r#"attempt(lambda: opens("{OUT}.new", os.O_WRONLY | os.O_CREAT))"#),
    works("append to a file beside the workspace", r#"attempt(lambda: opens("{OUT}", os.O_WRONLY | os.O_APPEND))"#),
    works("write through a link that was there", r#"attempt(lambda: opens("planted-link", os.O_WRONLY))"#),
    works("truncate through a link that was there", r#"attempt(lambda: os.truncate("planted-link", 0) or True)"#),
    works("make a directory beside the workspace", r#"attempt(lambda: os.mkdir("{ROOT}/made") or True)"#),
    works("remove a file beside the workspace", r#"attempt(lambda: os.unlink("{OUT}") or True)"#),
    works("link a file from beside the workspace", r#"attempt(lambda: os.link("{OUT}", "linked") or True)"#),
    works("move a file from beside the workspace", r#"attempt(lambda: os.rename("{OUT}.spare", "moved") or True)"#),
    works("move a file out of the workspace", r#"attempt(lambda: os.rename("plain.txt", "{OUT}") or True)"#),
    works("write to a directory shown beside", r#"attempt(lambda: opens("{BESIDE}/new", os.O_WRONLY | os.O_CREAT))"#),
    works("write to a file shown beside", r#"attempt(lambda: opens("{BESIDE}/shown.txt", os.O_WRONLY))"#),
    works("touch a file shown beside", r#"attempt(lambda: os.utime("{BESIDE}/shown.txt") or True)"#),
    works(
        "change the mode of a file shown beside",
        r#"attempt(lambda: os.chmod("{BESIDE}/shown.txt", 0o777) or True)"#,
    ),
    works("speak to a socket shown beside", r#"attempt(lambda: hears(socket.AF_UNIX, "{BESIDE}/socket"))"#),
    works("write to a pipe shown beside", r#"attempt(lambda: opens("{BESIDE}/pipe", os.O_WRONLY | os.O_NONBLOCK))"#),
    works("speak to a socket in the workspace", r#"attempt(lambda: hears(socket.AF_UNIX, "socket"))"#),
    works(
        "meet a lock of the host in the workspace",
        r#"
def met():
    try: fcntl.flock(os.open("plain.txt", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: return True
attempt(met)"#,
    ),
    works(
        "meet a lock of the host beside",
        r#"
def met():
    try: fcntl.flock(os.open("{BESIDE}/shown.txt", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: return True
attempt(met)"#,
    ),
    works(
        "read from a pipe shown beside",
        r#"attempt(lambda: any(os.read(os.open("{BESIDE}/filled", os.O_RDONLY | os.O_NONBLOCK), 9)))"#,
    ),
    untried(
        "leave what an overlay takes for a removed file",
        r#"
def left():
    open("victim", "w").close()
    if libc.renameat2(-100, b"victim", -100, b"elsewhere", 4) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")
    return True
attempt(left)"#,
    ),
    works("write to a pipe in the workspace", r#"attempt(lambda: opens("pipe", os.O_WRONLY | os.O_NONBLOCK))"#),
    works_for_root("write a program", r#"attempt(lambda: opens("/usr/bin/true", os.O_WRONLY))"#),
    works_for_root(
        "write the C library",
        r#"attempt(lambda: any_of(*[lambda p=p: opens(p, os.O_WRONLY) for p in glob.glob("/lib/*/libc.so.6") + glob.glob("/usr/lib*/libc.so.6")]))"#,
    ),
    works_for_root("make a file among the programs", r#"attempt(lambda: os.access("/usr/local/bin", os.W_OK))"#),
    works_for_root("write the list of users", r#"attempt(lambda: opens("/etc/passwd", os.O_WRONLY))"#),
    works_for_root("write the list of preloaded libraries", r#"attempt(lambda: os.access("/etc", os.W_OK))"#),
    untried(
        "make a file at the root",
        r#"attempt(lambda: any_of(*[lambda d=d: opens(d + "/x", os.O_WRONLY | os.O_CREAT) for d in ("/", "/run", "/run/ringfence", "/run/nothing", "/mnt", "/dev", "/var", "/etc", "/proc")]))"#,
    ),
    untried("change the script that runs", r#"attempt(lambda: opens("/run/ringfence/main", os.O_WRONLY) or True)"#),
    works_for_root("set where cores go", r#"attempt(lambda: opens("/proc/sys/kernel/core_pattern", os.O_WRONLY))"#),
    works_for_root(
        "set the machine's name by file",
        r#"attempt(lambda: opens("/proc/sys/kernel/hostname", os.O_WRONLY))"#,
    ),
    works_for_root(
        "set what the kernel runs for modules",
        r#"attempt(lambda: opens("/proc/sys/kernel/modprobe", os.O_WRONLY))"#,
    ),
    works_for_root(
        "set what the kernel does when memory is short",
        r#"attempt(lambda: opens("/proc/sys/vm/overcommit_memory", os.O_WRONLY))"#,
    ),
    works_for_root(
        "set who may have namespaces",
        r#"attempt(lambda: opens("/proc/sys/user/max_user_namespaces", os.O_WRONLY))"#,
    ),
    untried(
        "set any switch of the kernel",
        r#"
def switched():
    for directory, _, names in os.walk("/proc/sys"):
        for name in names:
            try: return opens(os.path.join(directory, name), os.O_WRONLY)
            except OSError: pass
attempt(switched)"#,
    ),
    works_for_root(
        "add a kind of program",
        r#"attempt(lambda: os.access("/proc/sys/fs/binfmt_misc/register", os.W_OK) or os.access("/proc/sys/fs", os.R_OK) and opens("/proc/sys/fs/suid_dumpable", os.O_WRONLY))"#,
    ),
    works_for_root("reach the magic key", r#"attempt(lambda: opens("/proc/sysrq-trigger", os.O_WRONLY))"#),
    works_for_root(
        "set what runs on a new device",
        r#"attempt(lambda: any_of(lambda: opens("/sys/kernel/uevent_helper", os.O_WRONLY), lambda: opens("/sys/kernel/profiling", os.O_WRONLY), lambda: opens("/sys/power/state", os.O_WRONLY)))"#,
    ),
    works_for_root(
        "leave one's group",
        r#"attempt(lambda: any_of(*[lambda p=p: opens(p, os.O_WRONLY) for p in glob.glob("/sys/fs/cgroup/cgroup.procs") + glob.glob("/sys/fs/cgroup/*/cgroup.procs")]))"#,
    ),
    untried(
        "write the machine's memory",
        r#"attempt(lambda: any_of(lambda: opens("/dev/mem", os.O_RDWR), lambda: opens("/dev/port", os.O_RDWR)))"#,
    ),
    works_for_root("write the kernel's log", r#"attempt(lambda: opens("/dev/kmsg", os.O_WRONLY))"#),
    untried(
        "make a disk and open it",
        r#"attempt(lambda: os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)) or opens("disk", os.O_RDONLY))"#,
    ),
    untried(
        "make a device in the private directory",
        r#"attempt(lambda: os.mknod("/tmp/mem", 0o600 | stat.S_IFCHR, os.makedev(1, 1)) or True)"#,
    ),
    untried(
        "make what an overlay takes for a removed file",
        r#"attempt(lambda: os.mknod("gone", 0o600 | stat.S_IFCHR, 0) or True)"#,
    ),
    untried("overwrite the first process's program", r#"attempt(lambda: opens("/proc/1/exe", os.O_WRONLY))"#),
    works_for_root(
        "overwrite the interpreter",
        r#"attempt(lambda: opens("/proc/self/exe", os.O_RDONLY) and os.access(os.path.realpath(sys.executable), os.W_OK))"#,
    ),
    untried("move the workspace itself", r#"attempt(lambda: os.rename("/workspace", "/tmp/elsewhere") or True)"#),
    untried("remove the workspace itself", r#"attempt(lambda: os.rmdir("/workspace") or True)"#),
    untried(
        "write a mark of the overlay",
        r#"
def marked():
    os.mkdir("marked")
    names = ("trusted.overlay.redirect", "security.capability", "trusted.overlay.opaque")
    return any_of(*[lambda n=n: os.setxattr("marked", n, b"/../outside") or n for n in names])
attempt(marked)"#,
    ),
];
