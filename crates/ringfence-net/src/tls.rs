//! TLS client: one configuration, made when it is first needed.
//!
//! A server proves its name or address with a certificate that leads to a trusted root. HTTP/1.1 is the only protocol that is
//! offered, unless the caller also speaks HTTP/2.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::dial::{DialError, TargetHost};

/// Trusted roots of TLS certificates.
#[derive(Clone, Debug)]
pub enum TlsTrust {
    /// The certificates of this system.
    System,
    /// These and no others.
    Only(Vec<CertificateDer<'static>>),
}

/// A protocol that TLS negotiates (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpProtocol {
    /// HTTP/2.
    Http2,
    /// HTTP/1.1, also where nothing was negotiated.
    Http1,
}

impl HttpProtocol {
    /// The identifiers of these, in the order of preference.
    pub(crate) fn identifiers(offered: &[Self]) -> Vec<Vec<u8>> {
        offered.iter().map(|protocol| protocol.identifier().to_vec()).collect()
    }

    /// The protocol that was negotiated.
    pub(crate) fn negotiated(identifier: Option<&[u8]>) -> Self {
        if identifier == Some(Self::Http2.identifier()) { Self::Http2 } else { Self::Http1 }
    }

    const fn identifier(self) -> &'static [u8] {
        match self {
            Self::Http2 => b"h2",
            Self::Http1 => b"http/1.1",
        }
    }
}

/// Failed set-up of TLS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsSetupError {
    #[error("none found; install the package `ca-certificates`")]
    NoRoots,
    #[error("{0}")]
    Config(String),
}

/// The client's side of TLS.
#[derive(Debug)]
pub(crate) struct TlsClient {
    trust: TlsTrust,
    config: OnceLock<Result<Arc<ClientConfig>, TlsSetupError>>,
}

impl TlsClient {
    pub(crate) fn new(trust: TlsTrust) -> Self {
        Self { trust, config: OnceLock::new() }
    }

    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, TlsSetupError> {
        self.config.get_or_init(|| client_config(&self.trust).map(Arc::new)).clone()
    }

    /// Encrypts a connection to this host, whose certificate must be for it. `protocols` are offered by ALPN.
    pub(crate) async fn handshake(
        &self,
        stream: TcpStream,
        host: &TargetHost,
        protocols: &[HttpProtocol],
    ) -> Result<TlsStream<TcpStream>, DialError> {
        let name = match host {
            TargetHost::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|cause| DialError::Tls(io::Error::other(cause)))?
            }
            TargetHost::Address(address) => ServerName::from(*address),
        };
        let connector = TlsConnector::from(self.config()?);
        let connecting = connector.with_alpn(HttpProtocol::identifiers(protocols)).connect(name, stream);
        connecting.await.map_err(DialError::Tls)
    }
}

fn client_config(trust: &TlsTrust) -> Result<ClientConfig, TlsSetupError> {
    let mut roots = RootCertStore::empty();
    match trust {
        TlsTrust::System => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        TlsTrust::Only(certificates) => roots.add_parsable_certificates(certificates.iter().cloned()),
    };
    if roots.is_empty() {
        return Err(TlsSetupError::NoRoots);
    }
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|cause| TlsSetupError::Config(cause.to_string()))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}
