//! Network namespace of a running program, as the host uses it: sockets in it, and the ports that programs listen at.
//!
//! The spawner has power over the network of each jail and opens what is needed there; what it opened is used here. No process
//! of the host enters the network.
//!
//! Not here: who may connect to which port (`run_program.rs`), and copying bytes (`published_ports.rs`).

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

/// Most of a table that is read. Its listening sockets come first.
const MAX_TABLE_BYTES: u64 = 256 << 10;

/// State of a listening socket in the kernel's table.
const LISTENING: &str = "0A";

/// Something of a network that is used outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NetworkHandle {
    /// A TCP socket of IPv4 or IPv6.
    Ipv4Socket,
    Ipv6Socket,
    /// The kernel's table of TCP sockets of IPv4 or IPv6.
    Ipv4Table,
    Ipv6Table,
}

/// Opens something in a network.
type NetworkOpener = Box<dyn Fn(NetworkHandle) -> io::Result<OwnedFd> + Send + Sync>;

/// The network of a running program.
pub struct ProgramNetwork(NetworkOpener);

impl ProgramNetwork {
    pub(crate) fn new(opener: impl Fn(NetworkHandle) -> io::Result<OwnedFd> + Send + Sync + 'static) -> Self {
        Self(Box::new(opener))
    }

    /// A socket in the network that is not connected, of the family of the address. It does not block.
    pub(crate) fn socket(&self, address: IpAddr) -> io::Result<TcpStream> {
        let handle = if address.is_ipv4() { NetworkHandle::Ipv4Socket } else { NetworkHandle::Ipv6Socket };
        (self.0)(handle).map(TcpStream::from)
    }

    /// The table of the sockets in the network.
    pub(crate) fn listener_table(&self) -> io::Result<ListenerTable> {
        let open = |handle| (self.0)(handle).map(File::from);
        // Some machines have no IPv6.
        let ipv6 = open(NetworkHandle::Ipv6Table).ok();
        Ok(ListenerTable(std::iter::once(open(NetworkHandle::Ipv4Table)?).chain(ipv6).collect()))
    }
}

impl fmt::Debug for ProgramNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgramNetwork")
    }
}

/// The kernel's tables of the TCP sockets of a network, held.
#[derive(Debug)]
pub(crate) struct ListenerTable(Vec<File>);

impl ListenerTable {
    /// Addresses at which programs listen now.
    pub(crate) fn read(&self) -> io::Result<BTreeSet<SocketAddr>> {
        let mut listeners = BTreeSet::new();
        for mut table in &self.0 {
            table.rewind()?;
            for line in BufReader::new(table.take(MAX_TABLE_BYTES)).lines().skip(1) {
                let Some(address) = parse_listener(&line?) else { break };
                listeners.insert(address);
            }
        }
        Ok(listeners)
    }
}

/// The address of a line about a listening socket. `None` for other sockets, which come behind them.
fn parse_listener(line: &str) -> Option<SocketAddr> {
    let mut fields = line.split_ascii_whitespace();
    let (local, state) = (fields.nth(1)?, fields.nth(1)?);
    let (address, port) = local.split_once(':')?;
    if !address.len().is_multiple_of(8) {
        return None;
    }
    // In words, as the kernel has them in memory.
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let octets = words.collect::<Option<Vec<_>>>()?.concat();
    let ip = match (<[u8; 4]>::try_from(&octets[..]), <[u8; 16]>::try_from(&octets[..])) {
        (Ok(octets), _) => IpAddr::from(Ipv4Addr::from(octets)),
        (_, Ok(octets)) => IpAddr::from(Ipv6Addr::from(octets)),
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == LISTENING).then_some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::{ListenerTable, parse_listener};

    #[test]
    fn listening_sockets_are_read_from_the_kernel_s_tables() {
        for (line, expected) in [
            (
                "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000",
                Some("127.0.0.1:8080"),
            ),
            ("   1: 00000000:0050 00000000:0000 0A 00000000:00000000", Some("0.0.0.0:80")),
            (
                "   0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0",
                Some("[::1]:22"),
            ),
            ("   2: 0100007F:1F90 0100007F:D2F0 01 00000000:00000000", None),
            ("   2: 0100007F 0100007F:D2F0 0A", None),
            ("   2: 0100007:1F90 0100007F:D2F0 0A", None),
            ("", None),
        ] {
            assert_eq!(parse_listener(line).map(|address| address.to_string()).as_deref(), expected, "{line}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another program of this machine")]
    fn a_table_is_read_again_as_it_is_then() {
        let table = ListenerTable(vec![std::fs::File::open("/proc/self/net/tcp").unwrap()]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(table.read().unwrap().contains(&address));
        drop(listener);
        assert!(!table.read().unwrap().contains(&address));
    }
}
