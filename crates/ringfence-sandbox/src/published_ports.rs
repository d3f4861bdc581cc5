//! Published ports: connections to ports of this machine that lead to ports in the network of a running program.
//!
//! A port is bound before its program starts, or before its person is asked, so that one that cannot be had is known by then.
//! Bytes are copied as they are: nothing reads them, and nothing of ours, such as a key, is added. The number of connections
//! is limited.
//!
//! Not here: whether a port may be published (`run_program.rs`).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::job::JailError;
use crate::program_network::ProgramNetwork;

/// Connections to all published ports of a run at once. Others wait.
const MAX_CONNECTIONS: usize = 64;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Time for a program to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a connection that could not be accepted, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A port of this machine, and the port of the program that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublishedPort {
    /// The address and port outside.
    pub outside: SocketAddr,
    /// The port inside.
    pub inside: u16,
}

/// A text that is not a port to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `[ADDRESS:]PORT[:PORT]`, such as `5173`, `8080:5173` or `0.0.0.0:8080:5173`")]
pub struct PublishedPortError;

impl PublishedPort {
    /// At the same port of the loopback address.
    pub(crate) fn on_loopback(outside: u16, inside: u16) -> Self {
        Self { outside: SocketAddr::from((Ipv4Addr::LOCALHOST, outside)), inside }
    }
}

impl FromStr for PublishedPort {
    type Err = PublishedPortError;

    fn from_str(text: &str) -> Result<Self, PublishedPortError> {
        let (address, ports) = match text.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
            Some((address, ports)) => (address.parse::<Ipv6Addr>().map(IpAddr::from), ports),
            None => match text.split_once(':') {
                Some((address, ports)) if address.contains('.') => {
                    (address.parse::<Ipv4Addr>().map(IpAddr::from), ports)
                }
                _ => (Ok(IpAddr::from(Ipv4Addr::LOCALHOST)), text),
            },
        };
        let address = address.map_err(|_| PublishedPortError)?;
        let (outside, inside) = ports.split_once(':').unwrap_or((ports, ports));
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0).ok_or(PublishedPortError);
        Ok(Self { outside: SocketAddr::new(address, port(outside)?), inside: port(inside)? })
    }
}

impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.outside)?;
        if self.outside.port() == self.inside { Ok(()) } else { write!(f, " to {}", self.inside) }
    }
}

/// A port of this machine that is free. Nothing can connect to it yet.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    pub(crate) port: PublishedPort,
    socket: OwnedFd,
}

impl ReservedPort {
    /// Binds the port.
    pub(crate) fn reserve(port: PublishedPort) -> Result<Self, Errno> {
        let family = if port.outside.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        // Connections of an earlier run may linger.
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &port.outside)?;
        Ok(Self { port, socket })
    }

    /// Lets others connect, who wait until the port is served.
    pub(crate) fn listen(self) -> Result<OpenPort, Errno> {
        listen(&self.socket, BACKLOG)?;
        Ok(OpenPort { inside: self.port.inside, listener: StdListener::from(self.socket) })
    }
}

/// A port of this machine that others can connect to.
#[derive(Debug)]
pub(crate) struct OpenPort {
    inside: u16,
    listener: StdListener,
}

/// The reason why a port cannot be reserved, with what to do.
pub(crate) fn reserve_error(port: PublishedPort, errno: Errno) -> JailError {
    let (outside, inside) = (port.outside, port.inside);
    let other = outside.port().checked_add(1).unwrap_or(8080);
    let prefix = if outside.ip() == Ipv4Addr::LOCALHOST { String::new() } else { format!("{}:", shown_ip(outside)) };
    match errno {
        Errno::ADDRINUSE => JailError::port(
            format!("port `{outside}` is in use by another program"),
            format!("end that, or choose another port outside: `--publish {prefix}{other}:{inside}`"),
        ),
        Errno::ACCESS | Errno::PERM => JailError::port(
            format!("port `{outside}` needs a right that this user does not have"),
            format!("choose one from 1024 on: `--publish {prefix}{}:{inside}`", 8000 + outside.port() % 1000),
        ),
        Errno::ADDRNOTAVAIL => JailError::port(
            format!("`{}` is not an address of this machine", outside.ip()),
            format!("list them with `ip address`, or publish on loopback: `--publish {}:{inside}`", outside.port()),
        ),
        other => JailError::Io("publish a port", other.into()),
    }
}

fn shown_ip(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Serves published ports, until it is dropped. No connection is left then.
#[derive(Debug)]
pub(crate) struct PublishedPorts {
    /// Nothing while this is being dropped.
    ports: Option<UnboundedSender<(OpenPort, Arc<ProgramNetwork>)>>,
    thread: Option<JoinHandle<()>>,
}

impl PublishedPorts {
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (ports, received) = unbounded_channel();
        let thread = std::thread::Builder::new().name("ports".to_owned()).spawn(move || {
            runtime.block_on(serve_all(received));
            runtime.shutdown_background();
        })?;
        Ok(Self { ports: Some(ports), thread: Some(thread) })
    }

    /// Leads connections to the program.
    pub(crate) fn serve(&self, port: OpenPort, network: &Arc<ProgramNetwork>) {
        if let Some(ports) = &self.ports {
            // A thread that is over serves nothing more.
            let _ = ports.send((port, Arc::clone(network)));
        }
    }
}

impl Drop for PublishedPorts {
    fn drop(&mut self) {
        self.ports = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Until the other end of the channel is dropped.
async fn serve_all(mut ports: UnboundedReceiver<(OpenPort, Arc<ProgramNetwork>)>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Some((OpenPort { inside, listener }, network)) = ports.recv().await {
        if let Ok(listener) = TcpListener::from_std(listener) {
            tokio::spawn(accept(listener, inside, network, Arc::clone(&slots)));
        }
    }
}

async fn accept(listener: TcpListener, inside: u16, network: Arc<ProgramNetwork>, slots: Arc<Semaphore>) {
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let Ok((mut outside, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let network = Arc::clone(&network);
        tokio::spawn(async move {
            if let Some(mut program) = connect(&network, inside).await {
                // Either end may be gone.
                let _ = copy_bidirectional(&mut outside, &mut program).await;
            }
            drop(slot);
        });
    }
}

/// A connection to a program, at either of its loopback addresses.
async fn connect(network: &Arc<ProgramNetwork>, port: u16) -> Option<TcpStream> {
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let opener = Arc::clone(network);
        let Ok(Ok(socket)) = spawn_blocking(move || opener.socket(ip)).await else { return None };
        let connected = TcpSocket::from_std_stream(socket).connect(SocketAddr::new(ip, port));
        if let Ok(Ok(program)) = timeout(CONNECT_TIMEOUT, connected).await {
            return Some(program);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::io::Errno;

    use super::{PublishedPort, ReservedPort, reserve_error};

    #[test]
    fn a_port_is_read_with_its_defaults() {
        for (text, expected) in [
            ("5173", "127.0.0.1:5173"),
            ("8080:5173", "127.0.0.1:8080 to 5173"),
            ("0.0.0.0:5173", "0.0.0.0:5173"),
            ("192.0.2.1:80:5173", "192.0.2.1:80 to 5173"),
            ("[::1]:8080:5173", "[::1]:8080 to 5173"),
        ] {
            assert_eq!(text.parse::<PublishedPort>().unwrap().to_string(), expected, "{text}");
        }
        for text in
            ["", "0", "65536", "a", "1:2:3", "::1:80", "[::1]", "0.0.0.0", "0.0.0:80", "-1", "80:0", "1.2.3.4:1:2:3"]
        {
            assert!(text.parse::<PublishedPort>().is_err(), "{text}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another program of this machine")]
    fn a_port_that_cannot_be_had_is_an_error_that_says_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let wanted: PublishedPort = format!("{port}:5173").parse().unwrap();
        assert_eq!(ReservedPort::reserve(wanted).unwrap_err(), Errno::ADDRINUSE);
        for (port, errno, expected) in [
            (
                "5173",
                Errno::ADDRINUSE,
                "port `127.0.0.1:5173` is in use by another program; end that, or choose another port outside: \
                 `--publish 5174:5173`",
            ),
            (
                "80:3000",
                Errno::ACCESS,
                "port `127.0.0.1:80` needs a right that this user does not have; choose one from 1024 on: `--publish \
                 8080:3000`",
            ),
            (
                "192.0.2.1:443:8443",
                Errno::ADDRNOTAVAIL,
                "`192.0.2.1` is not an address of this machine; list them with `ip address`, or publish on loopback: \
                 `--publish 443:8443`",
            ),
        ] {
            assert_eq!(reserve_error(port.parse().unwrap(), errno).to_string(), expected);
        }
    }
}
