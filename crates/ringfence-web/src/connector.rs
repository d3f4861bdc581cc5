//! Connector: resolves a name once, checks the addresses, and connects to one of those.
//!
//! If any address of a name may not be reached, none is: a name that resolves to an internal address once is not
//! trusted for the others. The connection goes to an address that was judged, and its peer is checked again once it is
//! established. Proxies from the environment are not used.
//!
//! Not here: the protocol on the connection (`http_client.rs`).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use url::Url;

use crate::error::WebError;
use crate::fetch_target::{FetchTarget, TargetHost};
use crate::private_hosts::PrivateHosts;

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

/// Trusted roots of TLS certificates.
#[derive(Clone, Debug)]
pub enum TlsTrust {
    /// The certificates of this system.
    System,
    /// These and no others.
    Only(Vec<CertificateDer<'static>>),
}

/// The parts of a connection to a host.
#[derive(Debug)]
pub struct WebConnector {
    resolver: Arc<dyn NameResolver>,
    private_hosts: PrivateHosts,
    trust: TlsTrust,
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

/// A connection, encrypted or not.
pub(crate) trait WebStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> WebStream for T {}

impl WebConnector {
    pub fn new(resolver: Arc<dyn NameResolver>, private_hosts: PrivateHosts, trust: TlsTrust) -> Self {
        Self { resolver, private_hosts, trust, tls: OnceLock::new() }
    }

    /// The system's resolver and certificates.
    pub fn with_system_defaults(private: PrivateHosts) -> Self {
        Self::new(Arc::new(SystemResolver), private, TlsTrust::System)
    }

    /// The same, also for a host that the user wrote down, wherever it is.
    pub(crate) fn allowing(&self, url: &Url) -> Self {
        Self::new(Arc::clone(&self.resolver), self.private_hosts.with_url_host(url), self.trust.clone())
    }

    pub fn private_hosts(&self) -> &PrivateHosts {
        &self.private_hosts
    }

    /// A connection that a request can be sent over.
    pub(crate) async fn open(&self, target: &FetchTarget, within: Duration) -> Result<Box<dyn WebStream>, WebError> {
        let slow = |_| WebError::Timeout("connecting to the host", within.as_secs_f64());
        let until = Instant::now() + within;
        let stream = timeout_at(until, self.dial(target, within)).await.map_err(slow)??;
        if !target.is_encrypted() {
            return Ok(Box::new(stream));
        }
        let host = target.host();
        let failed = |cause| WebError::Tls { host: host.to_string(), cause };
        let name = match host {
            TargetHost::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|cause| failed(io::Error::other(cause)))?
            }
            TargetHost::Address(address) => ServerName::from(*address),
        };
        let connector = TlsConnector::from(self.tls_config()?);
        let encrypted = timeout_at(until, connector.connect(name, stream)).await.map_err(slow)?;
        Ok(Box::new(encrypted.map_err(failed)?))
    }

    /// A bare connection to one of the addresses of the host.
    pub(crate) async fn dial(&self, target: &FetchTarget, within: Duration) -> Result<TcpStream, WebError> {
        let addresses = self.resolve_checked(target).await?;
        let share = within / u32::try_from(addresses.len()).unwrap_or(1).max(1);
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match timeout(share, TcpStream::connect(SocketAddr::new(address, target.port()))).await {
                Ok(Ok(stream)) => return self.check_peer(stream, address, target),
                Ok(Err(cause)) => last = cause,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(WebError::Connect { host: target.host().to_string(), cause: last.kind().into() })
    }

    /// Every address that the host has, all of them fit to be reached.
    async fn resolve_checked(&self, target: &FetchTarget) -> Result<Vec<IpAddr>, WebError> {
        let mut addresses = match target.host() {
            TargetHost::Address(address) => vec![*address],
            TargetHost::Name(name) => {
                let failed = |cause: io::Error| WebError::Lookup { host: name.clone(), cause };
                // With a dot at the end it is never taken for the beginning of a local name. Those that the user allows
                // may be local ones.
                let is_local = self.private_hosts.contains(target.host(), target.port());
                let asked = if is_local { name.clone() } else { format!("{name}.") };
                let found = self.resolver.resolve(&asked).await.map_err(failed)?;
                if found.is_empty() {
                    return Err(failed(io::Error::other("the name has no addresses")));
                }
                found
            }
        };
        for address in &addresses {
            target.check_address(*address, &self.private_hosts)?;
        }
        let mut seen = Vec::new();
        addresses.retain(|address| {
            !seen.contains(address) && seen.len() < MAX_ADDRESSES && {
                seen.push(*address);
                true
            }
        });
        Ok(addresses)
    }

    /// Fails unless the peer is the address that was meant.
    fn check_peer(&self, stream: TcpStream, address: IpAddr, target: &FetchTarget) -> Result<TcpStream, WebError> {
        let failed = |cause| WebError::Connect { host: target.host().to_string(), cause };
        let peer = stream.peer_addr().map_err(failed)?;
        target.check_address(peer.ip(), &self.private_hosts)?;
        match peer.ip() == address && peer.port() == target.port() {
            true => Ok(stream),
            false => Err(failed(io::Error::other("the reply came from another address"))),
        }
    }

    fn tls_config(&self) -> Result<Arc<ClientConfig>, WebError> {
        let made = self.tls.get_or_init(|| client_config(&self.trust).map(Arc::new));
        made.clone().map_err(WebError::RootCertificates)
    }
}

fn client_config(trust: &TlsTrust) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match trust {
        TlsTrust::System => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        TlsTrust::Only(certificates) => {
            roots.add_parsable_certificates(certificates.iter().cloned());
        }
    }
    if roots.is_empty() {
        return Err("none found; install the package `ca-certificates`".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = versions.map_err(|cause| cause.to_string())?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
