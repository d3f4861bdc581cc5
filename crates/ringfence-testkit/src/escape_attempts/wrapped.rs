//! Escape attempts: what a wrapped program has and others have not, such as a key outside and names of its own.

use super::{EscapeAttempt, untried, works};

pub(super) const ALL: &[EscapeAttempt] = &[
    works("reach the state of the host", r#"attempt(lambda: os.listdir("{STATE}"))"#),
    works(
        "write a decision into the state of the host",
        r#"attempt(lambda: opens("{STATE}/x", os.O_WRONLY | os.O_CREAT))"#,
    ),
    works(
        "find the key in the environment of a process",
        r#"
def found():
    key = "{YEK}"[::-1].encode()
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if key in open(path, "rb").read(): return path
        except OSError: pass
attempt(found)"#,
    ),
    untried(
        "find the key in the memory of another process",
        r#"
def found():
    key = "{YEK}"[::-1].encode()
    for place in glob.glob("/proc/[0-9]*"):
        if place == f"/proc/{os.getpid()}": continue
        try:
            memory = open(place + "/mem", "rb", 0)
            for line in open(place + "/maps"):
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                memory.seek(start)
                if key in memory.read(min(end - start, 1 << 26)): return place
        except (OSError, ValueError, OverflowError): pass
attempt(found)"#,
    ),
    untried(
        "find the key, or a private one of the run's authority, in a file",
        r#"
def found():
    words = ["{YEK}"[::-1].encode(), b"PRIVATE" + b" KEY"]
    home = os.environ.get("HOME", "/nowhere")
    for top in (home, os.getcwd(), "/etc", "/run", "/tmp", "/dev/shm"):
        for place, _, names in os.walk(top):
            for path in (os.path.join(place, name) for name in names):
                try:
                    if stat.S_ISREG(os.lstat(path).st_mode):
                        text = open(path, "rb").read(8 << 20)
                        if any(word in text for word in words): return path
                except OSError: pass
attempt(found)"#,
    ),
    untried(
        "give a name another address",
        r#"
def given():
    names = ("poison.ringfence-test.org", "POISON.Ringfence-Test.ORG", "poison.ringfence-test.org.")
    found = {socket.gethostbyname(name) for name in names for _ in range(3)}
    return len(found) != 1 or socket.gethostbyname("other.ringfence-test.org") in found
attempt(given)"#,
    ),
    untried(
        "reach an address of a name of another run",
        r#"attempt(lambda: any_of(*[lambda p=p: hears(socket.AF_INET, ("198.18.7.7", p)) for p in (22, 443, 5432)]))"#,
    ),
    untried(
        "route around the names",
        r#"
def routed():
    # RTM_NEWROUTE: everything by the link.
    table = socket.socket(16, socket.SOCK_RAW, 0)
    table.send(struct.pack("IHHII", 36, 24, 0x605, 1, 0) + struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0) + struct.pack("HHI", 8, 4, 1000))
    problem = -struct.unpack_from("i", table.recv(4096), 16)[0]
    if problem: raise OSError(problem, os.strerror(problem))
    return True
attempt(routed)"#,
    ),
];
