//! Start of a TLS connection of a program: its ClientHello, and the name that it has to have.
//!
//! Not here: parsing (`client_hello.rs`), and ending TLS.

use std::io;
use std::time::Duration;

use ringfence_net::TargetHost;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::client_hello::{self, ClientHello};

/// Time for a program to send its ClientHello.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// A fatal alert `access_denied` in a record of its own (RFC 8446, section 6).
const ACCESS_DENIED_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// A ClientHello as it was received, with the name of the server if it has one.
#[derive(Debug)]
pub(crate) struct TlsGreeting {
    pub(crate) bytes: Vec<u8>,
    pub(crate) server_name: Option<String>,
}

/// The start of a connection that is not a ClientHello which can be judged.
#[derive(Debug)]
pub(crate) struct GreetingRefusal {
    pub(crate) why: &'static str,
    /// Whether the program speaks TLS, so that it understands an alert.
    pub(crate) is_tls: bool,
}

impl TlsGreeting {
    /// Reads from a program until its ClientHello is complete. `bytes` came before.
    pub(crate) async fn read<S: AsyncRead + Unpin>(
        program: &mut S,
        mut bytes: Vec<u8>,
    ) -> Result<Self, GreetingRefusal> {
        let received = timeout(GREETING_TIMEOUT, async {
            loop {
                match client_hello::parse_client_hello(&bytes) {
                    ClientHello::Partial => match program.read_buf(&mut bytes).await {
                        Ok(0) | Err(_) => return Err("the connection ended before its ClientHello"),
                        Ok(_) => {}
                    },
                    ClientHello::Refused(why) => return Err(why),
                    ClientHello::Complete(name) => return Ok(name),
                }
            }
        });
        match received.await.unwrap_or(Err("no ClientHello was sent in time")) {
            Ok(server_name) => Ok(Self { bytes, server_name }),
            Err(why) => Err(GreetingRefusal { why, is_tls: looks_like_tls(&bytes) }),
        }
    }

    /// Whether it names the host of the connection.
    pub(crate) fn names(&self, host: &TargetHost) -> bool {
        match (host, &self.server_name) {
            (TargetHost::Name(host), Some(name)) => name.trim_end_matches('.').eq_ignore_ascii_case(host),
            // TLS has no addresses for names.
            (TargetHost::Address(_), None) => true,
            _ => false,
        }
    }
}

/// Whether these bytes begin a TLS handshake in a version since 1.0.
pub(crate) fn looks_like_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [22, 3, 1..=4, ..])
}

/// Tells a TLS client that it may not connect.
pub(crate) async fn deny_access<S: AsyncWrite + Unpin>(program: &mut S) -> io::Result<()> {
    program.write_all(&ACCESS_DENIED_ALERT).await?;
    program.shutdown().await
}
