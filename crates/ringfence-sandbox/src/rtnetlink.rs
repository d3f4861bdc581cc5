//! Route netlink (rtnetlink) requests: links, addresses and routes of a network namespace.
//!
//! A socket stays in the network in which it was made, also when its process goes on to another. Each request waits for
//! the kernel's acknowledgement.
//!
//! Not here: which links there are (`name_network.rs`).

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use rustix::process::Pid;

/// Attributes and values of `linux/if_link.h`, `linux/veth.h`, `linux/if_addr.h` and `linux/rtnetlink.h` that `libc`
/// does not have under these types.
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_PID: u16 = 19;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

const FAMILY_INET: u8 = libc::AF_INET as u8;

/// Flag of an attribute that has attributes in it.
const NESTED: u16 = 0x8000;

/// A netlink socket of one network.
#[derive(Debug)]
pub(crate) struct RouteSocket(OwnedFd);

/// A range of addresses: the first one, and the length of its prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipv4Prefix(pub(crate) Ipv4Addr, pub(crate) u8);

/// The way that packets of a route take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RouteTarget {
    /// To this machine itself, over the interface.
    Local(u32),
    /// To a router behind the interface.
    Gateway(Ipv4Addr, u32),
}

impl RouteSocket {
    /// For the network that this process is in now. Routes are the protocol without a number.
    pub(crate) fn new() -> Result<Self, Errno> {
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).map(Self)
    }

    /// Makes a pair of links: one here, and the other in the network of a process. Both get this index.
    pub(crate) fn add_link_pair(&self, names: [&str; 2], index: u32, process: Pid) -> Result<(), Errno> {
        let peer = Payload::link(index, 0)
            .attribute(IFLA_IFNAME, &zero_ended(names[1]))
            .attribute(IFLA_NET_NS_PID, &process.as_raw_nonzero().get().to_ne_bytes());
        let data = Payload::default().attribute(VETH_INFO_PEER | NESTED, &peer.0);
        let info = Payload::default().attribute(IFLA_INFO_KIND, b"veth").attribute(IFLA_INFO_DATA | NESTED, &data.0);
        let link = Payload::link(index, 0)
            .attribute(IFLA_IFNAME, &zero_ended(names[0]))
            .attribute(IFLA_LINKINFO | NESTED, &info.0);
        self.request(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &link)
    }

    /// Brings a link up.
    pub(crate) fn set_up(&self, index: u32) -> Result<(), Errno> {
        self.request(libc::RTM_NEWLINK, 0, &Payload::link(index, libc::IFF_UP as u32))
    }

    /// Gives a link an address.
    pub(crate) fn add_address(&self, index: u32, Ipv4Prefix(address, length): Ipv4Prefix) -> Result<(), Errno> {
        let [a, b, c, d] = index.to_ne_bytes();
        let payload = Payload(vec![FAMILY_INET, length, 0, libc::RT_SCOPE_UNIVERSE, a, b, c, d])
            .attribute(IFA_LOCAL, &address.octets())
            .attribute(IFA_ADDRESS, &address.octets());
        self.request(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &payload)
    }

    /// Adds a route.
    pub(crate) fn add_route(&self, to: Ipv4Prefix, target: RouteTarget) -> Result<(), Errno> {
        let Ipv4Prefix(address, length) = to;
        let (table, scope, kind, index) = match target {
            RouteTarget::Local(index) => (libc::RT_TABLE_LOCAL, libc::RT_SCOPE_HOST, libc::RTN_LOCAL, index),
            RouteTarget::Gateway(_, index) => (libc::RT_TABLE_MAIN, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST, index),
        };
        let head = vec![FAMILY_INET, length, 0, 0, table, libc::RTPROT_BOOT, scope, kind, 0, 0, 0, 0];
        let payload = Payload(head).attribute(RTA_DST, &address.octets()).attribute(RTA_OIF, &index.to_ne_bytes());
        let payload = match target {
            RouteTarget::Local(_) => payload,
            RouteTarget::Gateway(gateway, _) => payload.attribute(RTA_GATEWAY, &gateway.octets()),
        };
        self.request(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &payload)
    }

    /// Sends one request, and waits until it is acknowledged or refused.
    fn request(&self, kind: u16, flags: i32, payload: &Payload) -> Result<(), Errno> {
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let length = u32::try_from(16 + payload.0.len()).map_err(|_| Errno::MSGSIZE)?;
        let mut message = Vec::new();
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        // The number of the request, and the address of its sender, which the kernel knows.
        message.extend([0; 8]);
        message.extend(&payload.0);
        send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (received, _) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        parse_acknowledgement(answer.get(..received).unwrap_or_default())
    }
}

/// An acknowledgement is an error message whose number is zero.
fn parse_acknowledgement(message: &[u8]) -> Result<(), Errno> {
    let kind = message.get(4..6).and_then(|kind| kind.first_chunk()).map(|kind| u16::from_ne_bytes(*kind));
    let error = message.get(16..20).and_then(|error| error.first_chunk()).map(|error| i32::from_ne_bytes(*error));
    match (kind.map(i32::from), error) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(error)) => Err(Errno::from_raw_os_error(error.saturating_neg())),
        _ => Err(Errno::BADMSG),
    }
}

/// The body of a request: a header, and attributes behind it.
#[derive(Debug, Default)]
struct Payload(Vec<u8>);

impl Payload {
    /// A header about a link. The flags are those to be set.
    fn link(index: u32, flags: u32) -> Self {
        let mut header = vec![0; 4];
        header.extend(index.to_ne_bytes());
        header.extend(flags.to_ne_bytes());
        header.extend(flags.to_ne_bytes());
        Self(header)
    }

    /// Each attribute begins at a multiple of four.
    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

fn zero_ended(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::{Payload, parse_acknowledgement};

    #[test]
    fn attributes_are_aligned() {
        let payload = Payload::default().attribute(3, b"ab").attribute(1, &[1, 2, 3, 4]);
        assert_eq!(payload.0, [6, 0, 3, 0, b'a', b'b', 0, 0, 8, 0, 1, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_refusal_is_an_error() {
        let message = |kind: u16, error: i32| {
            let mut message = vec![36, 0, 0, 0];
            message.extend(kind.to_ne_bytes());
            message.extend([0; 10]);
            message.extend(error.to_ne_bytes());
            message
        };
        assert_eq!(parse_acknowledgement(&message(2, 0)), Ok(()));
        assert_eq!(parse_acknowledgement(&message(2, -1)), Err(Errno::PERM));
        assert_eq!(parse_acknowledgement(&message(3, 0)), Err(Errno::BADMSG));
        assert_eq!(parse_acknowledgement(&message(2, 0)[..18]), Err(Errno::BADMSG));
        assert_eq!(parse_acknowledgement(&[]), Err(Errno::BADMSG));
    }
}
