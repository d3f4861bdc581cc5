//! Escape attempts: inherited descriptors, terminals, other runs, and masked secrets.

use super::{EscapeAttempt, untried};

pub(super) const ALL: &[EscapeAttempt] = &[
    untried(
        "find a descriptor that was left open",
        r#"
def left():
    names = {}
    for name in os.listdir("/proc/self/fd"):
        try: names[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError: pass
    return [n for n, path in names.items() if n > 2 and not path.startswith("/run/ringfence")] or None
attempt(left)"#,
    ),
    untried("read from the process that started it", r#"attempt(lambda: os.read(0, 100) or None)"#),
    untried(
        "find a directory behind a stream",
        r#"attempt(lambda: any_of(*[lambda n=n: os.listdir(f"/proc/self/fd/{n}/..") for n in range(3)]))"#,
    ),
    untried(
        "have a terminal",
        r#"attempt(lambda: any_of(lambda: opens("/dev/tty", os.O_RDWR), lambda: opens("/dev/console", os.O_RDWR)))"#,
    ),
    untried("find a terminal of the host", r#"attempt(lambda: set(os.listdir("/dev/pts")) - {"ptmx"} or None)"#),
    untried(
        "type for the user",
        r#"attempt(lambda: any_of(*[lambda n=n: fcntl.ioctl(n, 0x5412, b"x") or True for n in range(3)]))"#,
    ),
    untried(
        "type for the user with other high bits",
        r#"attempt(lambda: libc.ioctl(0, ctypes.c_ulong(0x100005412), b"x") == 0)"#,
    ),
    untried(
        "steer the console",
        r#"attempt(lambda: any_of(*[lambda n=n, c=c: fcntl.ioctl(n, c, b"\x02") or True for n in range(3) for c in (0x541c, 0x541d, 0x5423)]))"#,
    ),
    untried(
        "take a terminal for one's own",
        r#"attempt(lambda: any_of(*[lambda n=n: fcntl.ioctl(n, 0x540e, 1) or True for n in range(3)]))"#,
    ),
    untried(
        "find another run's files",
        r#"attempt(lambda: [f for f in os.listdir("/tmp") + os.listdir("/tmp/home") if f != "home"] or None)"#,
    ),
    untried(
        "find another run's shared memory",
        r#"attempt(lambda: [line for kind in ("shm", "sem", "msg") for line in open("/proc/sysvipc/" + kind).read().splitlines()[1:]] + os.listdir("/dev/shm") or None)"#,
    ),
    untried("read a masked secret", r#"attempt(lambda: reads(".env"))"#),
    untried("read a masked secret below", r#"attempt(lambda: reads("deep/er/id_rsa"))"#),
    untried("read a masked secret by a link that was there", r#"attempt(lambda: reads("link-to-env"))"#),
    untried(
        "read a masked secret by a link of its own",
        r#"os.symlink("deep/er/id_rsa", "mine"); attempt(lambda: reads("mine"))"#,
    ),
    untried("read a masked secret by another name", r#"attempt(lambda: os.link(".env", "copy") or reads("copy"))"#),
    untried(
        "read a masked secret by its own root",
        r#"attempt(lambda: reads("/proc/self/root/workspace/.env") or reads("/proc/self/cwd/.env"))"#,
    ),
    untried(
        "find a masked secret anywhere",
        r#"
def found():
    for directory, below, names in os.walk("/"):
        if directory == "/":
            below[:] = [name for name in below if name not in ("proc", "usr")]
        for name in names:
            path = os.path.join(directory, name)
            try:
                if stat.S_ISREG(os.stat(path).st_mode) and b"masked" + b" secret" in open(path, "rb").read(64):
                    return path
            except OSError: pass
attempt(found)"#,
    ),
    untried(
        "find a masked secret by its handle",
        r#"
def by_handle():
    handle, mount = buffer("Ii", 128, 0, size=256), buffer("i", 0)
    call("name_to_handle_at", -100, b".env", handle, mount, 0)
    return os.read(call("open_by_handle_at", os.open(".", os.O_RDONLY), handle, 0), 100) or None
attempt(by_handle)"#,
    ),
    untried("move a masked secret away", r#"attempt(lambda: os.rename(".env", "moved") or reads("moved"))"#),
    untried("remove a masked secret", r#"attempt(lambda: os.unlink(".env") or True)"#),
    untried(
        "replace a masked secret",
        r#"attempt(lambda: opens("new", os.O_WRONLY | os.O_CREAT) and os.rename("new", ".env") or True)"#,
    ),
    untried("write to a masked secret", r#"attempt(lambda: opens(".env", os.O_WRONLY | os.O_APPEND))"#),
    untried(
        "move the directory of a masked secret",
        r#"attempt(lambda: os.rename("deep", "shallow") or reads("shallow/er/id_rsa"))"#,
    ),
    untried(
        "exchange the directory of a masked secret",
        r#"
def exchanged():
    os.mkdir("other")
    libc.renameat2(-100, b"deep", -100, b"other", 2)
    return reads("other/er/id_rsa")
attempt(exchanged)"#,
    ),
    untried(
        "remove the directory of a masked secret",
        r#"
import shutil
attempt(lambda: shutil.rmtree("deep") or True)"#,
    ),
    untried("see the trash", r#"attempt(lambda: os.listdir(".ringfence") or None)"#),
    untried("write into the trash", r#"attempt(lambda: opens(".ringfence/x", os.O_WRONLY | os.O_CREAT))"#),
    untried(
        "put another trash there",
        r#"attempt(lambda: any_of(lambda: os.rmdir(".ringfence") or True, lambda: os.rename(".ringfence", "trash") or True))"#,
    ),
    untried("leave a core behind", r#"attempt(lambda: resource.getrlimit(resource.RLIMIT_CORE)[1] > 1)"#),
    untried(
        "be told of the server's variables",
        r#"attempt(lambda: [n for n in os.environ if n.startswith(("CARGO", "RUST", "RINGFENCE", "SSH", "AWS", "LD_", "XDG_RUNTIME", "DBUS"))] or None)"#,
    ),
];
