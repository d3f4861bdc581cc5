//! Connections of programs that know no proxy, captured by the address that the name server gave a name.
//!
//! The address says the name, and the listener the port: both go to the policy like a request to the proxy. HTTP is
//! forwarded request by request, TLS has to name the host, and other ports pass bytes. A refusal is a text, a TLS alert,
//! or the end of the connection. On a port without a protocol of its own, a program that starts TLS has to name the host
//! as well. A connection to a service of this machine's loopback is that of its listener, and its bytes are passed.
//!
//! Not here: the proxy (`egress_proxy.rs`), and which name has which address (`name_table.rs`).

use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::sync::Arc;

use ringfence_net::TargetHost;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, copy_bidirectional, join};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::egress_proxy::{ProxyConnectError, ProxyConnectionPermit, ProxyIngress, ProxyState, serve_connection};
use crate::error::WebError;
use crate::fetch_target::FetchTarget;
use crate::name_table::NameTable;
use crate::tls_greeting::{TlsGreeting, deny_access, looks_like_tls};

/// Ports that are open for every name.
pub(crate) const CAPTURED_PORTS: [u16; 12] = [22, 80, 443, 3306, 5432, 6379, 8000, 8080, 8443, 9418, 9443, 27017];

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapturedProtocol {
    Http,
    Tls,
    /// Any, or one that the server starts.
    Bytes,
}

impl CapturedProtocol {
    fn of_port(port: u16) -> Self {
        match port {
            80 | 8000 | 8080 => Self::Http,
            443 | 8443 | 9443 => Self::Tls,
            _ => Self::Bytes,
        }
    }
}

/// Serves one captured connection to its end.
pub(crate) async fn serve_captured(
    stream: TcpStream,
    state: Arc<ProxyState>,
    names: Arc<NameTable>,
    slot: ProxyConnectionPermit,
) {
    let Ok(address) = stream.local_addr() else { return };
    let Some(name) = names.name_of(address.ip()) else {
        let why = "it is not the address of a name that this run looked up; connect by name";
        return state.refuse_connection(&address.to_string(), why).await;
    };
    let authority = format!("{name}:{}", address.port());
    let _ = match CapturedProtocol::of_port(address.port()) {
        CapturedProtocol::Http => {
            return serve_connection(stream, ProxyIngress::Captured(authority), state, slot).await;
        }
        CapturedProtocol::Tls => serve_tls(stream, address, &authority, &state).await,
        CapturedProtocol::Bytes => serve_bytes(stream, address, &authority, &state).await,
    };
    drop(slot);
}

/// Serves one connection to a service of this machine, which was named for the run by its port.
pub(crate) async fn serve_loopback(
    mut program: TcpStream,
    address: SocketAddr,
    state: Arc<ProxyState>,
    slot: ProxyConnectionPermit,
) {
    let authority = address.to_string();
    match captured_target(address, &authority, &state) {
        Ok(target) => {
            if let Ok(mut service) = state.connect(&target).await {
                // Either end may be gone.
                let _ = copy_bidirectional(&mut program, &mut service).await;
            }
        }
        Err(error) => state.refuse_connection(&authority, &error.to_string()).await,
    }
    drop(slot);
}

/// The host of a captured connection. Its port was opened for names, so it is not one of the ports that requests must
/// not have.
fn captured_target(address: SocketAddr, authority: &str, state: &ProxyState) -> Result<FetchTarget, WebError> {
    FetchTarget::for_captured(authority, address.port(), state.private_hosts())
}

/// Checks the name before the policy is asked: what is refused anyway is not asked about.
async fn serve_tls(
    mut program: TcpStream,
    address: SocketAddr,
    authority: &str,
    state: &Arc<ProxyState>,
) -> io::Result<()> {
    let greeting = match TlsGreeting::read(&mut program, Vec::new()).await {
        Ok(greeting) => greeting,
        Err(refusal) => {
            state.refuse_connection(authority, refusal.why).await;
            return if refusal.is_tls { deny_access(&mut program).await } else { Ok(()) };
        }
    };
    let target = match captured_target(address, authority, state) {
        Ok(target) if greeting.names(target.host()) => target,
        Ok(target) => {
            state.refuse_connection(authority, &wrong_name(target.host())).await;
            return deny_access(&mut program).await;
        }
        Err(error) => {
            state.refuse_connection(authority, &error.to_string()).await;
            return deny_access(&mut program).await;
        }
    };
    if let Some(interceptor) = state.interceptor_for(&target) {
        return match state.permit(&target).await {
            Ok(()) => {
                let (from_program, to_program) = program.into_split();
                let program = join(Cursor::new(greeting.bytes).chain(from_program), to_program);
                interceptor.serve(program, &target, state.recorder(authority.to_owned())).await;
                Ok(())
            }
            Err(ProxyConnectError::Refused(_)) => deny_access(&mut program).await,
            Err(ProxyConnectError::Failed(_)) => Ok(()),
        };
    }
    match state.connect(&target).await {
        Ok(mut upstream) => {
            upstream.write_all(&greeting.bytes).await?;
            copy_bidirectional(&mut program, &mut upstream).await.map(drop)
        }
        Err(ProxyConnectError::Refused(_)) => deny_access(&mut program).await,
        Err(ProxyConnectError::Failed(_)) => Ok(()),
    }
}

fn wrong_name(host: &TargetHost) -> String {
    format!("TLS does not name `{host}`; the server name must be that of the connection")
}

async fn serve_bytes(
    program: TcpStream,
    address: SocketAddr,
    authority: &str,
    state: &Arc<ProxyState>,
) -> io::Result<()> {
    let target = match captured_target(address, authority, state) {
        Ok(target) => target,
        Err(error) => {
            state.refuse_connection(authority, &error.to_string()).await;
            return Ok(());
        }
    };
    let Ok(upstream) = state.connect(&target).await else { return Ok(()) };
    let (mut from_server, to_server) = upstream.into_split();
    let (from_program, mut to_program) = program.into_split();
    // Many servers speak first.
    let back = async {
        copy(&mut from_server, &mut to_program).await?;
        to_program.shutdown().await
    };
    let forth = pass_program_bytes(from_program, to_server, target.host(), authority, state);
    tokio::try_join!(back, forth).map(drop)
}

/// What the program sends. If that is TLS, it has to name the host.
async fn pass_program_bytes(
    mut program: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    host: &TargetHost,
    authority: &str,
    state: &Arc<ProxyState>,
) -> io::Result<()> {
    let mut first = Vec::new();
    while first.len() < 3 && [22, 3].starts_with(&first[..first.len().min(2)]) {
        if program.read_buf(&mut first).await? == 0 {
            break;
        }
    }
    if looks_like_tls(&first) {
        let refused = match TlsGreeting::read(&mut program, first).await {
            Ok(greeting) if greeting.names(host) => {
                server.write_all(&greeting.bytes).await?;
                None
            }
            Ok(_) => Some(wrong_name(host)),
            Err(refusal) => Some(refusal.why.to_owned()),
        };
        if let Some(why) = refused {
            state.refuse_connection(authority, &why).await;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    } else {
        server.write_all(&first).await?;
    }
    copy(&mut program, &mut server).await?;
    server.shutdown().await
}
