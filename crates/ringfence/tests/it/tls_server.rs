//! TLS server for tests, on loopback, with an authority of its own.
//!
//! Not here: what it answers.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use ringfence_testkit::oauth_server::SyntheticAnswer;

/// A server that runs until the test ends.
#[derive(Clone, Debug)]
pub(crate) struct TlsTestServer {
    pub(crate) port: u16,
    /// The certificate of its authority.
    pub(crate) authority_pem: String,
}

impl TlsTestServer {
    /// Serves requests for a name: the head without its end, and the body. One request a connection.
    pub(crate) fn start(
        name: &str,
        answer: impl Fn(&str, &[u8]) -> SyntheticAnswer + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = || KeyPair::generate().map_err(io::Error::other);
        let issuer = CertifiedIssuer::self_signed(params, key()?).map_err(io::Error::other)?;
        let leaf_key = key()?;
        let leaf = CertificateParams::new(vec![name.to_owned()]).and_then(|leaf| leaf.signed_by(&leaf_key, &issuer));
        let leaf = leaf.map_err(io::Error::other)?;
        let secret = PrivateKeyDer::try_from(leaf_key.serialize_der()).map_err(io::Error::other)?;
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], secret))
            .map_err(io::Error::other)?;
        let (config, answer) = (Arc::new(config), Arc::new(answer));
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, answer) = (Arc::clone(&config), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                    serve_request(&mut StreamOwned::new(connection, stream), answer.as_ref())
                });
            }
        });
        Ok(Self { port, authority_pem: issuer.pem() })
    }
}

/// Reads one request, and answers it.
fn serve_request<S: Read + Write>(stream: &mut S, answer: &dyn Fn(&str, &[u8]) -> SyntheticAnswer) -> io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).trim_end().to_owned();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    let SyntheticAnswer { status, headers, body } = answer(&head, &body);
    let mut text = format!("HTTP/1.1 {status} Answer\r\nconnection: close\r\n");
    for (name, value) in &headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| name == "transfer-encoding") {
        text += &format!("content-length: {}\r\n", body.len());
    }
    stream.write_all(&[text.as_bytes(), b"\r\n", &body].concat())?;
    stream.flush()
}
