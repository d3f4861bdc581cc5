//! Memory that no process is charged for, taken in four ways. Each works without a jail, and in one it is
//! refused, or the run is ended.

use std::process::{Command, Stdio};
use std::time::Duration;

use ringfence_sandbox::{ExitReason, RunResult};
use ringfence_testkit::patience::PATIENCE;
use ringfence_testkit::requirement::print_note;

use crate::fixture::{SandboxFixture, as_each_user};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;

/// A way to take memory: `take(n)` takes the n-th MiB, and whatever it returns is kept.
struct MemoryHog {
    name: &'static str,
    code: &'static str,
}

const HOGS: &[MemoryHog] = &[
    MemoryHog {
        name: "files of memfd that are not mapped",
        code: "def take(n):\n    f = os.memfd_create('x'); os.write(f, block); return f",
    },
    MemoryHog {
        name: "files of memfd in flight",
        code: "a, b = socket.socketpair()\ndef take(n):\n    f = os.memfd_create('x'); os.write(f, block)\n    \
               socket.send_fds(a, [b'x'], [f]); os.close(f)",
    },
    MemoryHog {
        name: "secret memory that is not mapped",
        code: "step = 15 * 4096\ndef take(n):\n    f = checked(libc.syscall(447, 0)); os.ftruncate(f, 1 << 20)\n    \
               for at in range(0, 1 << 20, step):\n        size = min(step, (1 << 20) - at)\n        \
               with mmap.mmap(f, size, offset=at) as m: m.write(b'x' * size)\n    return f",
    },
    MemoryHog {
        name: "System V shared memory that is not attached",
        code: "libc.shmat.restype = ctypes.c_void_p; libc.shmdt.argtypes = [ctypes.c_void_p]\ndef take(n):\n    \
               i = checked(libc.shmget(0, 1 << 20, 0o1600)); p = libc.shmat(i, None, 0)\n    \
               ctypes.memset(ctypes.c_void_p(p), 1, 1 << 20); libc.shmdt(p)",
    },
    MemoryHog {
        name: "System V messages",
        code: "class M(ctypes.Structure): _fields_ = [('t', ctypes.c_long), ('b', ctypes.c_char * 8192)]\n\
               m = M(1)\ndef take(n):\n    for _ in range(64):\n        q = checked(libc.msgget(0, 0o1600))\n        \
               for _ in range(2): checked(libc.msgsnd(q, ctypes.byref(m), 8192, 0o4000))",
    },
    MemoryHog { name: "System V semaphores", code: "def take(n): checked(libc.semget(0, 16384, 0o1600))" },
    MemoryHog {
        name: "shared memory that is dropped from the mapping",
        code: "def take(n):\n    m = mmap.mmap(-1, 1 << 20); m.write(block); m.madvise(mmap.MADV_DONTNEED); return m",
    },
    MemoryHog {
        name: "shared memory of which one page stays mapped",
        code: "libc.mmap.restype = ctypes.c_void_p\ndef take(n):\n    \
               p = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 0x21, -1, ctypes.c_long(0))\n    \
               if p == 2**64 - 1: raise OSError(ctypes.get_errno(), 'mmap')\n    \
               ctypes.memset(ctypes.c_void_p(p), 1, 1 << 20)\n    \
               checked(libc.munmap(ctypes.c_void_p(p + 4096), ctypes.c_size_t((1 << 20) - 4096)))",
    },
    MemoryHog {
        name: "shared memory of a process that hides",
        code: "libc.prctl(4, 0, 0, 0, 0)\ndef take(n):\n    \
               m = mmap.mmap(-1, 1 << 20); m.write(block); m.madvise(mmap.MADV_DONTNEED); return m",
    },
    MemoryHog {
        name: "shared memory by a device",
        code: "zero = os.open('/dev/zero', os.O_RDWR)\ndef take(n):\n    \
               m = mmap.mmap(zero, 1 << 20); m.write(block); m.madvise(mmap.MADV_DONTNEED); return m",
    },
    MemoryHog {
        name: "files in /dev/shm",
        code: "f = open('/dev/shm/ringfence-x', 'wb', buffering=0)\nos.unlink(f.name)\ndef take(n): f.write(block)",
    },
    MemoryHog {
        name: "files in /tmp",
        code: "f = open('/tmp/ringfence-x', 'wb', buffering=0)\nos.unlink(f.name)\ndef take(n): f.write(block)",
    },
    MemoryHog {
        name: "buffers of local sockets",
        code: "def fill(s):\n    s.setblocking(False); sent = 0\n    try:\n        while sent < 1 << 20: sent += s.send(block)\n    \
               except BlockingIOError: pass\n    return sent\ndef take(n):\n    sent, held = 0, []\n    \
               while sent < 1 << 20:\n        a, b = socket.socketpair(); held += [a, b]; sent += fill(a) + fill(b)\n    return held",
    },
    MemoryHog {
        name: "buffers of local sockets that were made larger",
        code: "def take(n):\n    a, b = socket.socketpair(); a.setsockopt(1, 7, 4 << 20); a.setblocking(False); sent = 0\n    \
               try:\n        while sent < 1 << 20: sent += a.send(block)\n    except BlockingIOError: pass\n    return a, b",
    },
    MemoryHog {
        name: "messages of sockets that were closed",
        code: "def take(n):\n    held = []\n    for _ in range(8):\n        a, b = socket.socketpair(); a.setblocking(False)\n        \
               try:\n            while True: a.send(b'x')\n        except BlockingIOError: pass\n        a.close(); held.append(b)\n    return held",
    },
    MemoryHog {
        name: "buffers of TCP connections",
        code: "server = socket.create_server(('127.0.0.1', 0), backlog=64)\ndef take(n):\n    held, sent = [], 0\n    \
               while sent < 1 << 20:\n        c = socket.create_connection(server.getsockname()); s = server.accept()[0]\n        \
               c.setblocking(False); held += [c, s]\n        try:\n            while True: sent += c.send(block)\n        \
               except BlockingIOError: pass\n    return held",
    },
    MemoryHog {
        name: "pages that pipes keep",
        code: "def take(n):\n    if n % 2: return\n    r, w = os.pipe(); size = 2 << 20\n    m = mmap.mmap(-1, 2 * size, flags=0x22); m.madvise(14)\n    \
               at = ctypes.addressof(ctypes.c_char.from_buffer(m)); at += -at % size; ctypes.memset(at, 1, size)\n    \
               vec = (ctypes.c_size_t * 2)(at, 1); checked(libc.vmsplice(w, vec, 1, 0)); return r, w",
    },
    MemoryHog {
        name: "page tables of memory that is only read",
        code: "libc.mmap.restype = ctypes.c_void_p\nsize = 1 << 29\ndef take(n):\n    \
               p = libc.mmap(None, ctypes.c_size_t(size), 1, 0x4022, -1, ctypes.c_long(0))\n    \
               if p == 2**64 - 1: raise OSError(ctypes.get_errno(), 'mmap')\n    \
               libc.madvise(ctypes.c_void_p(p), ctypes.c_size_t(size), 15)\n    \
               for at in range(0, size, 2 << 20): ctypes.c_char.from_address(p + at).value",
    },
    MemoryHog {
        name: "mappings that are split by their permissions",
        code: "libc.mmap.restype = ctypes.c_void_p; pages = 16000\n\
               p = libc.mmap(None, ctypes.c_size_t(4096 * pages), 0, 0x4022, -1, ctypes.c_long(0))\n\
               for at in range(0, pages, 2): checked(libc.mprotect(ctypes.c_void_p(p + 4096 * at), ctypes.c_size_t(4096), 1))\n\
               end, gate = os.pipe()\ndef take(n):\n    if n % 4 == 0 and os.fork() == 0: os.close(gate); os.read(end, 1); os._exit(0)",
    },
    MemoryHog {
        name: "names of files",
        code: "import tempfile\ntop = tempfile.TemporaryDirectory(dir='/dev/shm')\ndef take(n):\n    \
               for m in range(500): os.symlink('x' * 120, f'{top.name}/{n}-{m}')",
    },
    MemoryHog {
        name: "memory of processes whose first thread has ended",
        code: "import threading\nready, say = os.pipe(); end, gate = os.pipe()\ndef hold():\n    \
               x = bytearray(b'x') * (32 << 20); os.write(say, b'x'); os.read(end, 1); os._exit(0)\ndef take(n):\n    \
               if n % 32: return\n    if os.fork() == 0:\n        os.close(gate); threading.Thread(target=hold).start()\n        \
               libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\n    os.read(ready, 1)",
    },
    MemoryHog {
        name: "memory while processes come and go",
        code: "import threading\ndef storm():\n    while True:\n        pid = os.fork()\n        if pid == 0:\n            \
               if os.fork() == 0: os._exit(0)\n            os._exit(0)\n        os.waitpid(pid, 0)\n\
               for _ in range(2):\n    if os.fork() == 0: storm()\n\
               def take(n):\n    time.sleep(0.001); return bytearray(block)",
    },
];

/// Takes four times the limit, by several processes where one has too few descriptors, keeps it for a while, and says so.
fn program(way: &MemoryHog, keep: Duration) -> String {
    format!(
        "import ctypes, mmap, os, socket, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\nblock = b'x' * (1 << 20)\n\
         def checked(result):\n    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n    return result\n\
         {}\nheld = []\nfor n in range({}): held.append(take(n))\ntime.sleep({})\nprint('TOOK IT', flush=True)\n\
         os.killpg(0, 9) if 'storm' in globals() else None\n",
        way.code,
        4 * LIMIT / MIB,
        keep.as_secs(),
    )
}

fn is_limited(ended: &RunResult) -> bool {
    let refused =
        ended.exit_reason == ExitReason::Exit && ended.exit_code == 1 && ended.stderr.text().contains("Error");
    (ended.exit_reason == ExitReason::Memory || refused) && !ended.stdout.text().contains("TOOK IT")
}

#[test]
fn memory_outside_of_processes_is_bounded() {
    as_each_user("memory::memory_outside_of_processes_is_bounded", || check_memory_limits(SandboxFixture::new()));
}

/// The same with jails that were built in another way.
pub(crate) fn check_memory_limits(mut world: SandboxFixture) {
    world.limits.memory_bytes = LIMIT;
    let mut passed = Vec::new();
    for way in HOGS {
        // Long enough for the limit to be noticed on a busy machine. It ends the program, so nothing waits that long.
        let ended = world.python(&program(way, PATIENCE / 5));
        let complained = ended.stderr.text();
        let why = complained.lines().last().unwrap_or_default();
        print_note(&format!("{}: ended by {} {why}", way.name, ended.exit_reason.name()));
        if !is_limited(&ended) {
            passed.push(format!(
                "{}: {:?} {} {}",
                way.name,
                ended.exit_reason,
                ended.stdout.text(),
                ended.stderr.text()
            ));
        }
    }
    assert!(passed.is_empty(), "{}", passed.join("\n"));
}

#[test]
fn the_ways_to_take_memory_are_real() {
    let mut shown = 0;
    for way in HOGS {
        // In a session of its own, in which everything can be ended at once, and with its own System V objects.
        let mut outside = Command::new("setsid");
        outside.args([
            "--wait",
            "unshare",
            "--ipc",
            "--map-current-user",
            "python3",
            "-c",
            &program(way, Duration::ZERO),
        ]);
        let ended = outside.stdin(Stdio::null()).output().unwrap();
        let (printed, complained) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        if printed.contains("TOOK IT") {
            shown += 1;
        } else {
            print_note(&format!("works nowhere on this machine: {} ({})", way.name, complained.trim()));
        }
    }
    assert!(shown > HOGS.len() / 2, "too few of the ways are real ones: {shown}");
}

/// Everyday uses of such memory, well within the limit.
#[test]
fn memory_within_the_limit_is_not_in_the_way() {
    as_each_user("memory::memory_within_the_limit_is_not_in_the_way", || {
        let mut world = SandboxFixture::new();
        world.limits.memory_bytes = 256 << 20;
        let ended = world.python(
            "import mmap, os, socket\nfrom multiprocessing import Pool, shared_memory\n\
             for _ in range(200):\n    m = mmap.mmap(-1, 8 << 20); m[0] = 1; m.close()\n\
             s = shared_memory.SharedMemory(create=True, size=1 << 20); s.buf[0] = 1; s.close(); s.unlink()\n\
             pairs = [socket.socketpair() for _ in range(100)]\n\
             pairs[0][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n\
             if __name__ == '__main__':\n    with Pool(4) as pool: print(sum(pool.map(abs, range(-100, 0))))",
        );
        assert_eq!(ended.stdout.text(), "5050\n", "{:?} {}", ended.exit_reason, ended.stderr.text());
        // A forked process has what its parent has, once.
        let ended = world.python(
            "import os, time\nx = bytearray(b'x') * (100 << 20)\nfor _ in range(4):\n    if os.fork() == 0:\n        \
             time.sleep(0.5); os._exit(0)\nfor _ in range(4): os.wait()\nprint('all')",
        );
        assert_eq!(ended.stdout.text(), "all\n", "{:?} {}", ended.exit_reason, ended.stderr.text());
    });
}

/// Far more mappings than can be read between two forks.
#[test]
fn many_mappings_end_a_run_before_all_are_made() {
    as_each_user("memory::many_mappings_end_a_run_before_all_are_made", || {
        let mut world = SandboxFixture::new();
        world.limits.memory_bytes = 256 * MIB;
        let ended = world.python(
            "import ctypes, os, signal\nlibc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p; size = 4096 * 64000\n\
             start = libc.mmap(None, ctypes.c_size_t(size), 0, 0x4022, -1, ctypes.c_long(0))\n\
             for at in range(start, start + size, 8192): libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 1)\n\
             for _ in range(200):\n    if os.fork() == 0: signal.pause()\nprint('TOOK IT', flush=True)",
        );
        assert!(is_limited(&ended), "{:?} {} {}", ended.exit_reason, ended.stdout.text(), ended.stderr.text());
    });
}

/// Each process is the child of the one before, with a thousand mappings that the kernel links to those of every ancestor.
const FORK_IN_A_CHAIN: &str = "
import ctypes, os, time
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(4096 * 1000), 3, 0x4022, -1, ctypes.c_long(0))
for at in range(start, start + 4096 * 1000, 8192):
    ctypes.memset(ctypes.c_void_p(at), 1, 1); libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 1)
for depth in range(120):
    child = os.fork()
    if child: os.waitpid(child, 0); os._exit(0)
time.sleep(KEEP); print('TOOK IT', flush=True)
";

#[test]
fn links_between_mappings_of_forked_processes_are_bounded() {
    as_each_user("memory::links_between_mappings_of_forked_processes_are_bounded", || {
        let mut world = SandboxFixture::new();
        world.limits.memory_bytes = 256 * MIB;
        let keep = (PATIENCE / 5).as_secs().to_string();
        let ended = world.python(&FORK_IN_A_CHAIN.replace("KEEP", &keep));
        assert!(is_limited(&ended), "{:?} {} {}", ended.exit_reason, ended.stdout.text(), ended.stderr.text());
    });
}

/// Locks every other byte of files. Each call makes two locks: one for the byte, and one for what it splits off. Then tries
/// every other call that takes a lock, and some that take none.
const TAKE_LOCKS: &str = "
import fcntl, os, struct
def lock(command, kind, start, length):
    fcntl.fcntl(file, command, struct.pack('hhqqii', kind, 0, start, length, 0, 0))
def refused(call, *arguments):
    try: call(*arguments)
    except OSError as error: return error.errno
def take():
    global file
    for number in range(FILES):
        file = os.open(f'/tmp/{number}', os.O_RDWR | os.O_CREAT)
        lock(fcntl.F_SETLK, fcntl.F_RDLCK, 0, 0)
        for at in range(500): lock(fcntl.F_SETLK, fcntl.F_WRLCK, 2 * at, 1)
    print('TOOK IT')
mine = os.open('/tmp/mine', os.O_RDONLY | os.O_CREAT)
fcntl.flock(mine, fcntl.LOCK_EX)
print(refused(take))
for command in 6, 7, 37, 38: print(refused(lock, command, fcntl.F_RDLCK, 5000, 1))
print(refused(fcntl.flock, mine, fcntl.LOCK_SH), refused(fcntl.fcntl, mine, fcntl.F_SETLEASE, fcntl.F_RDLCK))
print(refused(fcntl.flock, mine, fcntl.LOCK_UN), refused(fcntl.fcntl, mine, fcntl.F_GETFL))
";

/// The kernel charges locks to no process, and not every kernel charges them to a cgroup.
#[test]
fn locks_of_files_are_bounded() {
    as_each_user("memory::locks_of_files_are_bounded", || {
        let mut world = SandboxFixture::new();
        world.limits.memory_bytes = 32 * MIB;
        // A lock takes about 200 bytes.
        let files = 4 * world.limits.memory_bytes / 200 / 1000;
        let ended = world.python(&TAKE_LOCKS.replace("FILES", &files.to_string()));
        let expected = "37\n37\n37\n37\n37\n37 37\nNone None\n";
        assert_eq!(ended.stdout.text(), expected, "{:?} {}", ended.exit_reason, ended.stderr.text());
    });
}

#[test]
fn databases_lock_their_files() {
    as_each_user("memory::databases_lock_their_files", || {
        let ended = SandboxFixture::new().python(
            "import sqlite3\nbase = sqlite3.connect('/tmp/base'); base.execute('create table t (n)')\n\
             for n in range(1000):\n    with base: base.execute('insert into t values (?)', (n,))\n\
             other = sqlite3.connect('/tmp/base', timeout=0); base.execute('begin exclusive')\n\
             try: other.execute('insert into t values (1)')\nexcept sqlite3.OperationalError as error: print(error)\n\
             base.commit(); print(other.execute('select count(*) from t').fetchone()[0])",
        );
        assert_eq!(
            ended.stdout.text(),
            "database is locked\n1000\n",
            "{:?} {}",
            ended.exit_reason,
            ended.stderr.text()
        );
    });
}
