//! Network namespace for names: the addresses that a run's name server gives out lead here, and our sockets capture
//! them.
//!
//! The init process of a jail moves into a network of its own, joined to that of the programs by a pair of links. A
//! range of addresses is local here, so that one socket for each port serves every name, and all of the programs' own
//! network stays free for them: they may listen at any address and port. Neither network leads anywhere else. The
//! sockets are handed out like that of the proxy.
//!
//! Not here: serving the sockets. That is done outside of the jail.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::process::Pid;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::jail::{JailRoot, NETWORK_SYSCTLS};
use crate::mounts::{READ_ONLY, attach_over, clone_mount};
use crate::rtnetlink::{Ipv4Prefix, RouteSocket, RouteTarget};
use crate::sys::{self, MountFlagScope};

/// Addresses of names: one half of the range for benchmarks (RFC 2544), which is used nowhere.
const NAMES: Ipv4Prefix = Ipv4Prefix(Ipv4Addr::new(198, 18, 0, 0), 16);

/// Both ends of the link, in the other half.
const OUR_END: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
const THEIR_END: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 2);
const LINK_PREFIX: u8 = 30;

/// Index of both ends, behind those that a new network may have by itself.
const LINK_INDEX: u32 = 1000;
const LOOPBACK_INDEX: u32 = 1;
const LINK_NAMES: [&str; 2] = ["names", "eth0"];

/// Port of the name server.
const NAME_SERVER_PORT: u16 = 53;

/// Files that make programs ask the name server. Each is mounted over the one that every jail has.
const RESOLVER_FILES: [(&str, &str); 2] = [
    ("resolv.conf", "nameserver 198.19.0.1\noptions timeout:2 attempts:2\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"),
];

/// Moves this process into a network for names, and returns its sockets: the name server's, and one for each port. The
/// programs' network is that of `program`, and the one that this process is in.
#[expect(clippy::disallowed_methods, reason = "it is in a network without a way out, and served from outside")]
pub(crate) fn open_name_network(root: &JailRoot, program: Pid, ports: &[u16]) -> std::io::Result<Vec<OwnedFd>> {
    let programs = RouteSocket::new()?;
    // So that programs may serve 80 and 443 on their own addresses.
    write_sysctl(root, "net/ipv4/ip_unprivileged_port_start", "0");
    // SAFETY: this process has one thread, and its descriptors stay its own.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    let names = RouteSocket::new()?;
    for (name, value) in NETWORK_SYSCTLS {
        write_sysctl(root, name, value);
    }
    sys::bring_up_loopback()?;
    names.add_link_pair(LINK_NAMES, LINK_INDEX, program)?;
    for (socket, address) in [(&names, OUR_END), (&programs, THEIR_END)] {
        socket.add_address(LINK_INDEX, Ipv4Prefix(address, LINK_PREFIX))?;
        socket.set_up(LINK_INDEX)?;
    }
    names.add_route(NAMES, RouteTarget::Local(LOOPBACK_INDEX))?;
    programs.add_route(NAMES, RouteTarget::Gateway(OUR_END, LINK_INDEX))?;

    let server = SocketAddrV4::new(OUR_END, NAME_SERVER_PORT);
    let mut sockets: Vec<OwnedFd> = vec![UdpSocket::bind(server)?.into(), TcpListener::bind(server)?.into()];
    for port in ports.iter().filter(|port| **port != NAME_SERVER_PORT) {
        sockets.push(TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port))?.into());
    }
    replace_resolver_files(root)?;
    Ok(sockets)
}

/// Of the network that this process is in, if it may: some containers refuse it.
fn write_sysctl(root: &JailRoot, name: &str, value: &str) {
    let path = format!("sys/{name}");
    if let Ok(file) = openat(&root.spawner_proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = File::from(file).write_all(value.as_bytes());
    }
}

fn replace_resolver_files(root: &JailRoot) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let etc = open("/etc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for (name, contents) in RESOLVER_FILES {
        let file = openat(&root.hidden_root, name, flags, Mode::from_raw_mode(0o444))?;
        File::from(file).write_all(contents.as_bytes())?;
        let mount = clone_mount(root.hidden_root.as_fd(), name, MountFlagScope::Mount)?;
        sys::set_mount_flags(mount.as_fd(), READ_ONLY, MountFlagScope::Mount, None)?;
        let target = openat(&etc, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        attach_over(&mount, target.as_fd())?;
    }
    Ok(())
}
