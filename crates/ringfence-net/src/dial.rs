//! Dial: resolves a name once, checks its addresses, and connects to one of those.
//!
//! If any address of a name may not be reached, none is: a name that resolves to an internal address once is not
//! trusted for the others. The connection goes to an address that was checked, and its peer is checked again once it is
//! established. Proxies from the environment are not used. No other file opens a connection.
//!
//! Not here: which addresses may be reached (the caller's policy), and the protocol on the connection (`exchange.rs`).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address_policy::{AddressPolicy, AddressRefusal};
use crate::tls::{HttpProtocol, TlsClient, TlsSetupError, TlsTrust};

/// More addresses of one host are not tried.
const MAX_ADDRESSES: usize = 4;

/// Resolver of host names.
pub trait NameResolver: Send + Sync + fmt::Debug {
    fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + '_>>;
}

/// The system's own, as every program uses it.
#[derive(Clone, Copy, Debug)]
pub struct SystemResolver;

impl NameResolver for SystemResolver {
    fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + '_>> {
        let name = name.to_owned();
        Box::pin(async move {
            let look = move || (name.as_str(), 0).to_socket_addrs().map(|found| found.map(|one| one.ip()).collect());
            tokio::task::spawn_blocking(look).await.map_err(io::Error::other)?
        })
    }
}

/// A host, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetHost {
    /// In lower case, without a dot at the end.
    Name(String),
    Address(IpAddr),
}

impl TargetHost {
    /// The host of an authority, which has IPv6 addresses in brackets.
    pub fn from_authority(host: &str) -> Self {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse().map_or_else(|_| Self::Name(bare.to_ascii_lowercase()), Self::Address)
    }
}

impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// A host and port to connect to.
#[derive(Clone, Copy, Debug)]
pub struct DialTarget<'a> {
    pub host: &'a TargetHost,
    pub port: u16,
    /// Decides about each address of the host.
    pub policy: &'a dyn AddressPolicy,
    /// Whether the name may be a local one, which is looked up in the search domains of this machine too.
    pub is_local: bool,
}

/// Failed connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("cannot resolve the host: {0}")]
    Resolve(io::Error),
    #[error("the name has no addresses")]
    NoAddresses,
    #[error("the host resolves to {}, which may not be reached", .0.reason)]
    Refused(AddressRefusal),
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The last address that was tried did not answer in its share of the time.
    #[error("the host does not respond")]
    NoResponse,
    #[error("the reply came from another address")]
    WrongPeer,
    /// The time for the connection is over.
    #[error("no connection in time")]
    Timeout,
    #[error("cannot load the root certificates: {0}")]
    TlsSetup(#[from] TlsSetupError),
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
}

/// A connection, encrypted or not.
pub trait NetStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> NetStream for T {}

/// Opens connections.
#[derive(Debug)]
pub struct Dialer {
    resolver: Arc<dyn NameResolver>,
    tls: TlsClient,
}

impl Dialer {
    pub fn new(resolver: Arc<dyn NameResolver>, trust: TlsTrust) -> Self {
        Self { resolver, tls: TlsClient::new(trust) }
    }

    /// The system's resolver and certificates.
    pub fn with_system_defaults() -> Self {
        Self::new(Arc::new(SystemResolver), TlsTrust::System)
    }

    /// Loads the root certificates now instead of with the first connection that needs them.
    pub fn load_tls(&self) -> Result<(), TlsSetupError> {
        self.tls.config().map(drop)
    }

    /// A connection that a request can be sent over.
    pub async fn connect(
        &self,
        target: DialTarget<'_>,
        is_encrypted: bool,
        within: Duration,
    ) -> Result<Box<dyn NetStream>, DialError> {
        let connecting = async {
            let stream = self.dial_any(target, within).await?;
            match is_encrypted {
                true => Ok(Box::new(self.tls.handshake(stream, target.host, &[HttpProtocol::Http1]).await?)
                    as Box<dyn NetStream>),
                false => Ok(Box::new(stream) as Box<dyn NetStream>),
            }
        };
        timeout(within, connecting).await.unwrap_or(Err(DialError::Timeout))
    }

    /// An encrypted connection, and the protocol that the host chose among these.
    pub async fn connect_with(
        &self,
        target: DialTarget<'_>,
        protocols: &[HttpProtocol],
        within: Duration,
    ) -> Result<(Box<dyn NetStream>, HttpProtocol), DialError> {
        let connecting = async {
            let stream = self.dial_any(target, within).await?;
            let stream = self.tls.handshake(stream, target.host, protocols).await?;
            let chosen = HttpProtocol::negotiated(stream.get_ref().1.alpn_protocol());
            Ok((Box::new(stream) as Box<dyn NetStream>, chosen))
        };
        timeout(within, connecting).await.unwrap_or(Err(DialError::Timeout))
    }

    /// A bare connection to one of the addresses of the host.
    pub async fn dial(&self, target: DialTarget<'_>, within: Duration) -> Result<TcpStream, DialError> {
        timeout(within, self.dial_any(target, within)).await.unwrap_or(Err(DialError::Timeout))
    }

    async fn dial_any(&self, target: DialTarget<'_>, within: Duration) -> Result<TcpStream, DialError> {
        let addresses = self.resolve_checked(target).await?;
        let share = within / u32::try_from(addresses.len()).unwrap_or(1).max(1);
        let mut last = DialError::NoAddresses;
        for address in addresses {
            match timeout(share, TcpStream::connect(SocketAddr::new(address, target.port))).await {
                Ok(Ok(stream)) => return check_peer(stream, address, target),
                Ok(Err(cause)) => last = DialError::Connect(cause),
                Err(_) => last = DialError::NoResponse,
            }
        }
        Err(last)
    }

    /// The addresses to try. Fails unless every address of the host may be reached.
    async fn resolve_checked(&self, target: DialTarget<'_>) -> Result<Vec<IpAddr>, DialError> {
        let addresses = match target.host {
            TargetHost::Address(address) => vec![*address],
            // With a dot at the end it is never taken for the beginning of a local name.
            TargetHost::Name(name) => {
                let asked = if target.is_local { name.clone() } else { format!("{name}.") };
                self.resolver.resolve(&asked).await.map_err(DialError::Resolve)?
            }
        };
        for address in &addresses {
            target.policy.check(*address).map_err(DialError::Refused)?;
        }
        Ok(select_addresses(&addresses))
    }
}

/// The addresses to try, each once. The families alternate (RFC 8305): without IPv6, a host with many IPv6 addresses
/// would not be reached otherwise.
fn select_addresses(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut distinct = Vec::new();
    for address in addresses {
        if !distinct.contains(address) {
            distinct.push(*address);
        }
    }
    let first_is_v4 = distinct.first().is_some_and(IpAddr::is_ipv4);
    let (first, second): (Vec<IpAddr>, Vec<IpAddr>) =
        distinct.iter().partition(|address| address.is_ipv4() == first_is_v4);
    let in_turn = (0..distinct.len()).flat_map(|index| [first.get(index), second.get(index)]);
    in_turn.flatten().copied().take(MAX_ADDRESSES).collect()
}

/// Fails unless the peer is the address that was meant.
fn check_peer(stream: TcpStream, address: IpAddr, target: DialTarget<'_>) -> Result<TcpStream, DialError> {
    let peer = stream.peer_addr().map_err(DialError::Connect)?;
    target.policy.check(peer.ip()).map_err(DialError::Refused)?;
    if peer != SocketAddr::new(address, target.port) {
        return Err(DialError::WrongPeer);
    }
    // Without it a request may wait for the acknowledgement of its own header.
    stream.set_nodelay(true).map_err(DialError::Connect)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{IpAddr, Ipv4Addr};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::{DialError, DialTarget, Dialer, NameResolver, TargetHost, select_addresses};
    use crate::address_policy::{AddressPolicy, AddressRefusal, AnyAddress, check_public};
    use crate::tls::TlsTrust;

    const WITHIN: Duration = Duration::from_secs(60);

    /// Resolves any name to these addresses, and refuses names that end differently than expected.
    #[derive(Debug)]
    struct FixedResolver {
        addresses: Vec<IpAddr>,
        asked: &'static str,
    }

    impl NameResolver for FixedResolver {
        fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + '_>> {
            assert_eq!(name, self.asked);
            Box::pin(std::future::ready(Ok(self.addresses.clone())))
        }
    }

    /// The public internet, and this machine.
    #[derive(Debug)]
    struct LoopbackPolicy;

    impl AddressPolicy for LoopbackPolicy {
        fn check(&self, address: IpAddr) -> Result<(), AddressRefusal> {
            if address.is_loopback() { Ok(()) } else { check_public(address) }
        }
    }

    async fn dial(addresses: &[&str], port: u16, is_local: bool) -> Result<IpAddr, DialError> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let asked = if is_local { "name.example" } else { "name.example." };
        let dialer = Dialer::new(Arc::new(FixedResolver { addresses, asked }), TlsTrust::System);
        let host = TargetHost::Name("name.example".to_owned());
        let target = DialTarget { host: &host, port, policy: &LoopbackPolicy, is_local };
        dialer.dial(target, WITHIN).await.map(|stream| stream.peer_addr().unwrap().ip())
    }

    #[tokio::test]
    async fn one_address_that_may_not_be_reached_refuses_the_name() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(dial(&["127.0.0.1"], port, false).await.unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        for inside in ["10.0.0.5", "169.254.169.254", "::ffff:127.0.0.1"] {
            let refused = dial(&["127.0.0.1", "127.0.0.1", inside], port, false).await;
            assert!(matches!(refused, Err(DialError::Refused(_))), "{inside}: {refused:?}");
        }
        assert!(matches!(dial(&[], port, false).await, Err(DialError::NoAddresses)));
    }

    #[tokio::test]
    async fn the_next_address_is_tried_and_a_local_name_has_no_dot() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(dial(&["127.0.0.9", "127.0.0.1"], port, true).await.unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        drop(listener);
        assert!(matches!(dial(&["127.0.0.1"], port, true).await, Err(DialError::Connect(_))));
    }

    #[tokio::test]
    async fn an_address_is_checked_and_not_resolved() {
        let dialer = Dialer::new(Arc::new(FixedResolver { addresses: Vec::new(), asked: "" }), TlsTrust::System);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (own, private) = (TargetHost::from_authority("127.0.0.1"), TargetHost::from_authority("[fd00::1]"));
        let target = DialTarget { host: &own, port, policy: &AnyAddress, is_local: false };
        dialer.dial(target, WITHIN).await.unwrap();
        let refused = dialer.dial(DialTarget { host: &private, policy: &LoopbackPolicy, ..target }, WITHIN).await;
        assert!(matches!(refused, Err(DialError::Refused(_))), "{refused:?}");
    }

    #[test]
    fn families_alternate_and_nothing_is_tried_twice() {
        let check = |found: &[&str], tried: &[&str]| {
            let parse = |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect::<Vec<IpAddr>>();
            assert_eq!(select_addresses(&parse(found)), parse(tried));
        };
        check(&[], &[]);
        check(&["1.1.1.1", "1.1.1.1"], &["1.1.1.1"]);
        check(&["2a00::1", "2a00::2", "2a00::3", "2a00::4", "1.1.1.1"], &["2a00::1", "1.1.1.1", "2a00::2", "2a00::3"]);
        check(&["1.1.1.1", "2a00::1", "1.0.0.1"], &["1.1.1.1", "2a00::1", "1.0.0.1"]);
        check(&["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "1.1.1.5"], &["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]);
    }

    #[test]
    fn a_host_of_an_authority_is_an_address_or_a_name() {
        let address = |text: &str| TargetHost::Address(text.parse().unwrap());
        assert_eq!(TargetHost::from_authority("[::1]"), address("::1"));
        assert_eq!(TargetHost::from_authority("10.0.0.1"), address("10.0.0.1"));
        assert_eq!(TargetHost::from_authority("Docs.RS"), TargetHost::Name("docs.rs".to_owned()));
        assert_eq!(TargetHost::from_authority("0x7f.1"), TargetHost::Name("0x7f.1".to_owned()));
    }
}
