//! Escape attempts: other namespaces and mounts.

use super::{EscapeAttempt, untried, works, works_for_root};

pub(super) const ALL: &[EscapeAttempt] = &[
    // Private first, so that outside it stays in the child's own namespace.
    works_for_root(
        "mount in a namespace of one's own",
        r#"
def mounted():
    call("unshare", 0x20000)
    call("mount", b"none", b"/", None, 0x44000, None)
    call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
attempt(lambda: child(mounted))"#,
    ),
    untried("mount", r#"attempt(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None))"#),
    untried(
        "mount the processes of another namespace",
        r#"attempt(lambda: os.makedirs("/tmp/p") or call("mount", b"proc", b"/tmp/p", b"proc", 0, None))"#,
    ),
    untried(
        "bind what is covered elsewhere",
        r#"attempt(lambda: os.makedirs("/tmp/b") or call("mount", b"/workspace", b"/tmp/b", None, 4096, None))"#,
    ),
    untried(
        "unmount what hides the host",
        r#"attempt(lambda: any_of(*[lambda p=p: call("umount2", p, 2) for p in (b"/proc", b"/proc/sys", b"/workspace", b"/workspace/.env", b"/tmp", b"/run/nothing/below", b"/")]))"#,
    ),
    untried(
        "mount again as writable",
        r#"attempt(lambda: any_of(*[lambda p=p: call("mount", None, p, None, 4096 | 32, None) for p in (b"/usr", b"/proc/sys", b"/", b"/mnt/beside")]))"#,
    ),
    works_for_root("open a file system", r#"attempt(lambda: call("fsopen", b"tmpfs", 0))"#),
    works_for_root("pick a file system", r#"attempt(lambda: call("fspick", -100, b"/", 0))"#),
    works_for_root("clone a tree of mounts", r#"attempt(lambda: call("open_tree", -100, b"/", 1 | 0x8000))"#),
    untried(
        "change a mount's attributes",
        r#"attempt(lambda: call("mount_setattr", -100, b"/usr", 0, buffer("4Q", 0, 1, 0, 0), 32))"#,
    ),
    untried("move a mount", r#"attempt(lambda: call("move_mount", -100, b"/tmp", -100, b"/usr", 0))"#),
    untried("turn the root around", r#"attempt(lambda: call("pivot_root", b".", b"."))"#),
    works_for_root("change the root", r#"attempt(lambda: child(lambda: os.chroot(".")))"#),
    works(
        "ask the kernel for all mounts",
        r#"attempt(lambda: call("listmount", buffer("IIQQ", 24, 0, 0xffffffffffffffff, 0), ctypes.create_string_buffer(8 * 64), 64, 0) or True)"#,
    ),
    works("make a user namespace", r#"attempt(lambda: child(lambda: call("unshare", 0x10000000)))"#),
    works_for_root("make a mount namespace", r#"attempt(lambda: child(lambda: call("unshare", 0x20000)))"#),
    works_for_root("make a network", r#"attempt(lambda: child(lambda: call("unshare", 0x40000000)))"#),
    works_for_root("make a process namespace", r#"attempt(lambda: child(lambda: call("unshare", 0x20000000)))"#),
    works_for_root(
        "make every other namespace",
        r#"attempt(lambda: any_of(*[lambda f=f: child(lambda: call("unshare", f)) for f in (0x08000000, 0x04000000, 0x02000000, 0x00000080)]))"#,
    ),
    works(
        "make a user namespace by clone",
        r#"attempt(lambda: cloned("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))"#,
    ),
    works(
        "make a user namespace by clone with other high bits",
        r#"attempt(lambda: cloned("clone", 1 << 40 | 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))"#,
    ),
    works_for_root(
        "make a mount namespace by clone",
        r#"attempt(lambda: cloned("clone", 0x20000 | signal.SIGCHLD, 0, 0, 0, 0))"#,
    ),
    works(
        "make a user namespace by clone3",
        r#"attempt(lambda: cloned("clone3", buffer("11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88))"#,
    ),
    works_for_root(
        "join a namespace of the first process",
        r#"
def joined():
    held = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    return child(lambda: call("setns", held, 0))
attempt(joined)"#,
    ),
    works_for_root(
        "join all namespaces of a parent",
        r#"
def joined():
    held = call("pidfd_open", os.getppid(), 0)
    return child(lambda: call("setns", held, 0x20000))
attempt(joined)"#,
    ),
    untried(
        "join one's own user namespace again",
        r#"
def joined():
    held = os.open("/proc/self/ns/user", os.O_RDONLY)
    return call("setns", held, 0)
attempt(joined)"#,
    ),
    untried(
        "find the namespace above by its handle",
        r#"
def above():
    held = os.open("/proc/self/ns/user", os.O_RDONLY)
    return fcntl.ioctl(held, 0xb701)
attempt(above)"#,
    ),
    untried(
        "find the process namespace above by its handle",
        r#"
def above():
    held = os.open("/proc/self/ns/pid", os.O_RDONLY)
    return fcntl.ioctl(held, 0xb702)
attempt(above)"#,
    ),
];
