//! Escape attempts, as programs: getting out of the jail, or taking more than it gives.
//!
//! A program prints `ESCAPED` when it got what it wanted, and `held` when it did not. One that does neither is wrong, and
//! fails its test. Words in braces are filled in by the stage: `{OUT}` is a file beside the workspace, `{HOME}` a home
//! directory, `{ROOT}` where both lie, `{MARK}` a word in the environment of the server, `{PROCESS}` one in its command line,
//! `{HOSTNAME}` the machine's name, `{PORT}` a port on its loopback, `{SOCKET}` an abstract socket and `{PATH}` one with a
//! path, `{BESIDE}` a directory that is shown beside the workspace.
//!
//! Not here: programs that use things up (`resource_exhaustion.rs` in the tests of the sandbox).

mod files;
mod kernel;
mod leftovers;
mod namespaces;
mod network;
mod privileges;
mod wrapped;

/// Whether the same program succeeds outside, which shows that the jail is what holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptControl {
    /// As any user.
    Works,
    /// As root.
    WorksForRoot,
    /// Not tried: it would do harm, or there is nothing like it outside.
    Untried,
}

/// One program and its control.
#[derive(Clone, Copy, Debug)]
pub struct EscapeAttempt {
    /// What it tries to do.
    pub name: &'static str,
    /// Whether it works outside.
    pub control: AttemptControl,
    /// The program, in Python, without the prelude.
    pub code: &'static str,
}

const fn works(name: &'static str, code: &'static str) -> EscapeAttempt {
    EscapeAttempt { name, control: AttemptControl::Works, code }
}

const fn works_for_root(name: &'static str, code: &'static str) -> EscapeAttempt {
    EscapeAttempt { name, control: AttemptControl::WorksForRoot, code }
}

const fn untried(name: &'static str, code: &'static str) -> EscapeAttempt {
    EscapeAttempt { name, control: AttemptControl::Untried, code }
}

/// All of them, by what they are after.
pub const GROUPS: [(&str, &[EscapeAttempt]); 7] = [
    ("read outside the workspace", files::READ),
    ("write outside the workspace", files::WRITE),
    ("gain privileges", privileges::ALL),
    ("create namespaces and mounts", namespaces::ALL),
    ("reach the kernel and other processes", kernel::ALL),
    ("communicate with the outside", network::ALL),
    ("find what was left behind", leftovers::ALL),
];

/// Those that are for wrapped programs only. Further words: `{STATE}` is the state directory, and `{YEK}` the key of a credential,
/// backwards, so that the program itself does not contain it.
pub const WRAPPED: &[EscapeAttempt] = wrapped::ALL;

/// Before every program.
pub const PRELUDE: &str = r#"
import ctypes, errno, fcntl, glob, mmap, os, platform, resource, signal, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "bpf": (321, 280), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "userfaultfd": (323, 282), "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104),
    "delete_module": (176, 106), "swapon": (167, 224), "acct": (163, 89), "clock_settime": (227, 112),
    "quotactl": (179, 60), "open_by_handle_at": (304, 265), "personality": (135, 92), "fanotify_init": (300, 262),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "unshare": (272, 97), "setns": (308, 268),
    "clone": (56, 220), "clone3": (435, 435), "fsopen": (430, 430), "open_tree": (428, 428), "statmount": (457, 457),
    "move_mount": (429, 429), "mount_setattr": (442, 442), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "syslog": (103, 116), "sethostname": (170, 161), "reboot": (169, 142), "vhangup": (153, 58),
    "adjtimex": (159, 171), "listmount": (458, 458), "fspick": (433, 433), "name_to_handle_at": (303, 264),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "process_vm_writev": (311, 271),
}
def call(name, *args):
    ctypes.set_errno(0)
    whole = lambda a: a if isinstance(a, (type(None), bytes, ctypes.Array)) else ctypes.c_long(a)
    result = libc.syscall(NUMBERS[name][0 if platform.machine() == "x86_64" else 1], *map(whole, args))
    if result < 0:
        raise OSError(ctypes.get_errno(), name + ": " + os.strerror(ctypes.get_errno()))
    return result
def attempt(work):
    # What is not an error of the system is a mistake in the program, and must be seen.
    try:
        got = work()
    except OSError as problem:
        print("held:", type(problem).__name__, problem, flush=True)
    else:
        print("held: nothing" if any(got is empty for empty in (None, False)) else "ESCAPED: " + repr(got)[:200], flush=True)
def any_of(*works):
    # What went through of several.
    got = []
    for work in works:
        try:
            got.append(work())
        except OSError:
            pass
    return [one for one in got if one is not None and one is not False] or None
def opens(path, flags):
    os.close(os.open(path, flags))
    return path
def reads(path):
    with open(path, "rb") as file:
        return file.read(4096) or None
def child(work):
    # True where the work went through in a process of its own.
    hear, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError as problem:
            os.write(say, struct.pack("i", problem.errno or errno.EIO))
        os._exit(0)
    os.close(say)
    failed = os.read(hear, 4)
    status = os.waitpid(pid, 0)[1]
    if failed:
        code = struct.unpack("i", failed)[0]
        raise OSError(code, os.strerror(code))
    return status == 0
def cloned(name, *args):
    pid = call(name, *args)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid
def buffer(pattern, *values, size=0):
    packed = struct.pack(pattern, *values)
    return ctypes.create_string_buffer(packed.ljust(size, b"\0"), max(size, len(packed)))
def family(domain, kind, protocol=0):
    socket.socket(domain, kind, protocol).close()
    return True
def hears(domain, address, kind=socket.SOCK_STREAM):
    with socket.socket(domain, kind) as one:
        one.settimeout(5)
        one.connect(address)
        return one.recv(5) or None
"#;
