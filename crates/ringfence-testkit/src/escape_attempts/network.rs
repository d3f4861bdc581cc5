//! Escape attempts: the network.

use super::{EscapeAttempt, untried, works, works_for_root};

pub(super) const ALL: &[EscapeAttempt] = &[
    works("reach a service on the host's loopback", r#"attempt(lambda: hears(socket.AF_INET, ("127.0.0.1", {PORT})))"#),
    works("reach it by no address at all", r#"attempt(lambda: hears(socket.AF_INET, ("0.0.0.0", {PORT})))"#),
    works(
        "reach it by an address within another",
        r#"attempt(lambda: hears(socket.AF_INET6, ("::ffff:127.0.0.1", {PORT})))"#,
    ),
    works("reach an abstract socket of the host", r#"attempt(lambda: hears(socket.AF_UNIX, "\0{SOCKET}"))"#),
    works("reach a socket with a path", r#"attempt(lambda: hears(socket.AF_UNIX, "{PATH}"))"#),
    works("see an abstract socket of the host", r#"attempt(lambda: "{SOCKET}" in open("/proc/net/unix").read())"#),
    works(
        "see the ports that the host listens on",
        r#"attempt(lambda: ":%04X " % {PORT} in open("/proc/net/tcp").read())"#,
    ),
    untried(
        "find a well-known socket",
        r#"attempt(lambda: any_of(*[lambda p=p: hears(socket.AF_UNIX, p) or p for p in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/tmp/.X11-unix/X0", "\0/tmp/.X11-unix/X0")]))"#,
    ),
    untried("speak to the hypervisor", r#"attempt(lambda: family(40, socket.SOCK_STREAM))"#),
    works_for_root(
        "change the kernel's tables of interfaces",
        r#"
def changed():
    # RTM_NEWLINK, to be answered: the loopback is to be up, as it is.
    table = socket.socket(16, socket.SOCK_RAW, 0)
    table.send(struct.pack("IHHII", 32, 16, 5, 1, 0) + struct.pack("BxHiII", 0, 0, 1, 1, 1))
    problem = -struct.unpack_from("i", table.recv(4096), 16)[0]
    if problem: raise OSError(problem, os.strerror(problem))
    return True
attempt(changed)"#,
    ),
    untried(
        "hear of interfaces of the host",
        r#"attempt(lambda: [name for _, name in socket.if_nameindex() if name != "lo"] or None)"#,
    ),
    works("speak to the kernel's list of sockets", r#"attempt(lambda: family(16, socket.SOCK_RAW, 4))"#),
    works("watch the kernel's events", r#"attempt(lambda: family(16, socket.SOCK_RAW, 15))"#),
    untried("speak to the audit", r#"attempt(lambda: family(16, socket.SOCK_RAW, 9))"#),
    works_for_root("speak raw frames", r#"attempt(lambda: family(17, socket.SOCK_RAW))"#),
    works_for_root(
        "speak raw packets",
        r#"attempt(lambda: family(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))"#,
    ),
    works_for_root(
        "speak raw packets with other bits set",
        r#"attempt(lambda: family(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 255))"#,
    ),
    untried("speak to the kernel's ciphers", r#"attempt(lambda: family(38, socket.SOCK_SEQPACKET))"#),
    untried(
        "speak any other family",
        r#"
def spoken():
    families = [f for f in range(3, 64) if f not in (socket.AF_INET6, socket.AF_NETLINK)]
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
    return any_of(*[lambda f=f, k=k: family(f, k) and f for f in families for k in kinds])
attempt(spoken)"#,
    ),
    untried(
        "speak any other protocol",
        r#"attempt(lambda: any_of(*[lambda p=p, k=k: family(socket.AF_INET, k, p) and p for p in (132, 33, 136, 2, 115, 262) for k in (1, 2, 5)]))"#,
    ),
    untried("reach the metadata of a cloud", r#"attempt(lambda: hears(socket.AF_INET, ("169.254.169.254", 80)))"#),
    untried("reach the internet", r#"attempt(lambda: hears(socket.AF_INET, ("192.0.2.1", 53)))"#),
    untried(
        "reach the internet by the newer protocol",
        r#"attempt(lambda: hears(socket.AF_INET6, ("2001:db8::1", 53)))"#,
    ),
    untried(
        "send without connecting",
        r#"attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)))"#,
    ),
    untried(
        "send to everybody near",
        r#"
def sent():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    return one.sendto(b"x", ("255.255.255.255", 9))
attempt(sent)"#,
    ),
    untried(
        "send to a group",
        r#"attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("224.0.0.251", 5353)))"#,
    ),
    untried("resolve a name", r#"attempt(lambda: socket.getaddrinfo("example.com", 80))"#),
    untried(
        "see the host's interfaces",
        r#"attempt(lambda: [l for l in open("/proc/net/dev").read().splitlines()[2:] if not l.strip().startswith("lo:")] or None)"#,
    ),
    untried("see the host's routes", r#"attempt(lambda: open("/proc/net/route").read().splitlines()[1:] or None)"#),
    untried("make an interface", r#"attempt(lambda: opens("/dev/net/tun", os.O_RDWR))"#),
    untried(
        "give the loopback another address",
        r#"
def given():
    request = struct.pack("16sH2s4s8s", b"lo", socket.AF_INET, b"", socket.inet_aton("192.0.2.7"), b"")
    return fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8916, request)
attempt(given)"#,
    ),
    untried(
        "mark packets for another route",
        r#"attempt(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1) or True)"#,
    ),
];
