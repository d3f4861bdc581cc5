//! TLS server for one host name: ends the connections of a program that asks for exactly this name.
//!
//! A ClientHello that names another server, or none, gets the alert `access_denied` and no certificate.
//!
//! Not here: making the certificate, and who may connect.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::dial::NetStream;
use crate::tls::{HttpProtocol, TlsSetupError};

/// The server's side of TLS for one name.
#[derive(Clone)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
}

impl fmt::Debug for TlsServer {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl TlsServer {
    /// A server for this name. `chain` begins with its certificate, and `key` is the certificate's in PKCS #8.
    pub fn new(name: &str, chain: Vec<CertificateDer<'static>>, key: Vec<u8>) -> Result<Self, TlsSetupError> {
        let failed = |cause: tokio_rustls::rustls::Error| TlsSetupError::Config(cause.to_string());
        let provider = Arc::new(ring::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
        let certificate = CertifiedKey::from_der(chain, key, &provider).map_err(failed)?;
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let resolver = NamedCertificate { name: name.to_owned(), certificate: Arc::new(certificate) };
        let mut config = versions.map_err(failed)?.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = HttpProtocol::identifiers(&[HttpProtocol::Http2, HttpProtocol::Http1]);
        Ok(Self { config: Arc::new(config) })
    }

    /// Answers the handshake of a client. The stream is in the clear, in the protocol that was negotiated.
    pub async fn accept<S>(&self, stream: S) -> io::Result<(Box<dyn NetStream>, HttpProtocol)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await?;
        let chosen = HttpProtocol::negotiated(stream.get_ref().1.alpn_protocol());
        Ok((Box::new(stream), chosen))
    }
}

/// The certificate of a name, for those who ask for that name.
#[derive(Debug)]
struct NamedCertificate {
    name: String,
    certificate: Arc<CertifiedKey>,
}

impl ResolvesServerCert for NamedCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name()?.trim_end_matches('.');
        asked.eq_ignore_ascii_case(&self.name).then(|| Arc::clone(&self.certificate))
    }
}
