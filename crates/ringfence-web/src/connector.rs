//! Web connector: connections of web tools and programs to the hosts that they may reach.
//!
//! A connection goes to a public address, or to one that the user allows for this host. A name is resolved in the search
//! domains of this machine only where the user allows it as a private host.
//!
//! Not here: resolving and connecting (`ringfence-net`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfence_net::{DialTarget, Dialer, HttpProtocol, NameResolver, NetStream, TlsTrust};
use tokio::net::TcpStream;
use url::Url;

use crate::error::WebError;
use crate::fetch_target::{FetchTarget, TargetAddressPolicy};
use crate::private_hosts::PrivateHosts;

/// The parts of a connection to a host.
#[derive(Clone, Debug)]
pub struct WebConnector {
    dialer: Arc<Dialer>,
    private_hosts: PrivateHosts,
}

impl WebConnector {
    pub fn new(resolver: Arc<dyn NameResolver>, private_hosts: PrivateHosts, trust: TlsTrust) -> Self {
        Self { dialer: Arc::new(Dialer::new(resolver, trust)), private_hosts }
    }

    /// The system's resolver and certificates.
    pub fn with_system_defaults(private_hosts: PrivateHosts) -> Self {
        Self { dialer: Arc::new(Dialer::with_system_defaults()), private_hosts }
    }

    /// The same, also for a host that the user wrote down, wherever it is.
    pub(crate) fn allowing(&self, url: &Url) -> Self {
        Self { private_hosts: self.private_hosts.with_url_host(url), ..self.clone() }
    }

    /// The same, also for one address and port.
    pub(crate) fn allowing_address(&self, address: SocketAddr) -> Self {
        Self { private_hosts: self.private_hosts.with_address(address), ..self.clone() }
    }

    pub fn private_hosts(&self) -> &PrivateHosts {
        &self.private_hosts
    }

    /// A connection that a request can be sent over.
    pub(crate) async fn open(&self, target: &FetchTarget, within: Duration) -> Result<Box<dyn NetStream>, WebError> {
        let policy = target.address_policy(&self.private_hosts);
        let opened = self.dialer.connect(self.dial_target(target, &policy), target.is_encrypted(), within).await;
        opened.map_err(|error| WebError::from_dial(error, target, within))
    }

    /// An encrypted connection, and the protocol that the host chose among these.
    pub(crate) async fn open_encrypted(
        &self,
        target: &FetchTarget,
        protocols: &[HttpProtocol],
        within: Duration,
    ) -> Result<(Box<dyn NetStream>, HttpProtocol), WebError> {
        let policy = target.address_policy(&self.private_hosts);
        let opened = self.dialer.connect_with(self.dial_target(target, &policy), protocols, within).await;
        opened.map_err(|error| WebError::from_dial(error, target, within))
    }

    /// A bare connection to one of the addresses of the host.
    pub(crate) async fn dial(&self, target: &FetchTarget, within: Duration) -> Result<TcpStream, WebError> {
        let policy = target.address_policy(&self.private_hosts);
        let dialled = self.dialer.dial(self.dial_target(target, &policy), within).await;
        dialled.map_err(|error| WebError::from_dial(error, target, within))
    }

    fn dial_target<'a>(&self, target: &'a FetchTarget, policy: &'a TargetAddressPolicy<'_>) -> DialTarget<'a> {
        let is_local = self.private_hosts.contains(target.host(), target.port());
        DialTarget { host: target.host(), port: target.port(), policy, is_local }
    }
}
