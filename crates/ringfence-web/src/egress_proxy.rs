//! Egress proxy of the jail: HTTP and CONNECT, to the hosts that a run was granted, or that are decided one by one.
//!
//! The jail listens for its programs and hands its sockets over; they are served here: the proxy, each granted address of
//! this machine's loopback, which programs reach at the same address of their own, and for connections that are decided
//! one by one a name server, the ports of names, and ports of this machine's loopback whose bytes are passed. Every connection is
//! recorded before it is made, is checked by the same address rules as any other request, and in it TLS must name the
//! requested host. A host is granted whole: where only a part of it is allowed, the policy has denied it before.
//!
//! Not here: who may have which host (the kernel's policy), and the jail.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    CallContext, ConnectionAttempt, Egress, EgressChannel, ErrorKind, NET_MOUNT, PolicyAction, PolicyResource,
    ResourceAccess, ToolError,
};
use ringfence_net::TargetHost;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType, recvmsg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::sleep;

use crate::captured_connection::{CAPTURED_PORTS, serve_captured, serve_loopback};
use crate::connector::WebConnector;
use crate::error::WebError;
use crate::fetch_target::FetchTarget;
use crate::interception_record::InterceptionRecorder;
use crate::interceptor::{InterceptionObserver as _, TlsInterceptor};
use crate::name_server;
use crate::name_table::NameTable;
use crate::private_hosts::PrivateHosts;
use crate::proxy_forward::{ProxyResponse, forward, text_response};
use crate::tls_greeting::{TlsGreeting, deny_access};

/// Connections of one run at once.
const MAX_CONNECTIONS: usize = 64;

/// The same for a wrapped program, whose connections are decided one by one.
const MAX_JUDGED_CONNECTIONS: usize = 1024;

/// Pause after a connection that could not be accepted, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Sockets that one jail hands over.
const MAX_LISTENERS: usize = 64;

/// Ports of names: with the proxy and the name server, no more sockets than a jail hands over.
const MAX_CAPTURED_PORTS: usize = MAX_LISTENERS - 4;

/// Port of the name server in the jail.
const NAME_SERVER_PORT: u16 = 53;

/// Time for a program to send its request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens ways out over the same connections that web tools have.
#[derive(Debug)]
pub struct EgressProxy {
    net: Arc<WebConnector>,
    captured_ports: BTreeSet<u16>,
    interceptor: Option<Arc<TlsInterceptor>>,
}

impl EgressProxy {
    pub fn new(net: Arc<WebConnector>) -> Self {
        Self { net, captured_ports: CAPTURED_PORTS.into_iter().collect(), interceptor: None }
    }

    /// The same, with TLS ended outside of the jail for the hosts of the interceptor.
    #[must_use]
    pub fn with_interceptor(self, interceptor: Arc<TlsInterceptor>) -> Self {
        Self { interceptor: Some(interceptor), ..self }
    }

    /// Opens further ports for names, such as those that rules name, besides the usual ones. There are no more than some
    /// dozens in all; those beyond are reached by the proxy only.
    #[must_use]
    pub fn with_captured_ports(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        let more = ports.into_iter().filter(|port| *port != 0 && *port != NAME_SERVER_PORT);
        for port in more {
            if self.captured_ports.len() < MAX_CAPTURED_PORTS {
                self.captured_ports.insert(port);
            }
        }
        self
    }

    /// Starts the proxy of one run. The jail reads `listeners` before it listens.
    fn start(
        &self,
        net: Arc<WebConnector>,
        hosts: ProxyHosts,
        listeners: &str,
        cx: &CallContext<'_>,
    ) -> Result<Box<dyn EgressChannel>, ToolError> {
        let failed = |cause: io::Error| {
            ToolError::new(ErrorKind::Network, format!("the egress proxy could not be started: {cause}"))
        };
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        (&ours).write_all(listeners.as_bytes()).map_err(failed)?;
        let (asks, asked) = channel();
        let state = Arc::new(ProxyState {
            net,
            interceptor: self.interceptor.clone(),
            hosts,
            attempts: Mutex::new(asks),
            connect_timeout: cx.limits.fetch_connect_time,
        });
        // It ends when the jail's end of the socket is closed.
        std::thread::Builder::new().name("egress".to_owned()).spawn(move || serve(ours, state)).map_err(failed)?;
        Ok(Box::new(ProxyChannel { socket: Some(theirs.into()), attempts: asked }))
    }
}

impl Egress for EgressProxy {
    fn open(&self, hosts: &[String], cx: &CallContext<'_>) -> Result<Box<dyn EgressChannel>, ToolError> {
        let granted = hosts.iter().map(|host| ProxyHostGrant::parse(host, &self.net)).collect::<Result<Vec<_>, _>>()?;
        let loopback = granted.iter().filter_map(ProxyHostGrant::loopback);
        let listeners: String = loopback.map(|address| format!("{address}\n")).collect();
        self.start(Arc::clone(&self.net), ProxyHosts::Granted(granted), &listeners, cx)
    }

    fn open_judged(&self, loopback_ports: &[u16], cx: &CallContext<'_>) -> Result<Box<dyn EgressChannel>, ToolError> {
        let addresses = loopback_ports.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port)));
        let mut listeners: String = addresses.clone().map(|address| format!("{address}\n")).collect();
        let most = MAX_CAPTURED_PORTS.saturating_sub(loopback_ports.len());
        let ports: Vec<String> = self.captured_ports.iter().take(most).map(u16::to_string).collect();
        listeners += &format!("names {}\n", ports.join(" "));
        let net = addresses.fold((*self.net).clone(), |net, address| net.allowing_address(address));
        self.start(Arc::new(net), ProxyHosts::Judged(Arc::default()), &listeners, cx)
    }

    fn canonical_host(&self, host: &str) -> Result<String, ToolError> {
        let ProxyHostGrant { host, port } = ProxyHostGrant::parse(host, &self.net)?;
        Ok(format!("{host}:{port}"))
    }
}

#[derive(Debug)]
struct ProxyChannel {
    socket: Option<OwnedFd>,
    attempts: Receiver<ConnectionAttempt>,
}

impl EgressChannel for ProxyChannel {
    fn socket(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }

    fn next_attempt(&self) -> Option<ConnectionAttempt> {
        self.attempts.try_recv().ok()
    }
}

/// A host that a run was granted.
#[derive(Debug, PartialEq, Eq)]
struct ProxyHostGrant {
    host: TargetHost,
    port: u16,
}

impl ProxyHostGrant {
    fn parse(text: &str, net: &WebConnector) -> Result<Self, WebError> {
        let wrong = |_| WebError::Name(text.to_owned(), "write a host such as `pypi.org:443`");
        let target =
            FetchTarget::parse(&format!("http://{text}/"), net.private_hosts()).map_err(|error| match error {
                WebError::Url(_) => wrong(()),
                other => other,
            })?;
        if target.path_and_query() != "/" {
            return Err(wrong(()));
        }
        Ok(Self { host: target.host().clone(), port: target.port() })
    }

    /// Loopback address of the service for programs, if it is at a loopback address of this machine, which they reach
    /// without a proxy.
    fn loopback(&self) -> Option<SocketAddr> {
        let own = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        let ip = match &self.host {
            TargetHost::Address(ip) => own.into_iter().find(|own| own == ip),
            TargetHost::Name(name) => own.into_iter().next().filter(|_| name == "localhost"),
        };
        ip.map(|ip| SocketAddr::new(ip, self.port))
    }
}

/// Hosts that a run may reach.
#[derive(Debug)]
enum ProxyHosts {
    /// These, from the start.
    Granted(Vec<ProxyHostGrant>),
    /// Decided one by one. Programs that know no proxy reach them by the addresses in the table.
    Judged(Arc<NameTable>),
}

/// State that the connections of one run share.
#[derive(Debug)]
pub(crate) struct ProxyState {
    net: Arc<WebConnector>,
    interceptor: Option<Arc<TlsInterceptor>>,
    hosts: ProxyHosts,
    attempts: Mutex<Sender<ConnectionAttempt>>,
    connect_timeout: Duration,
}

/// Until the jail is gone.
fn serve(socket: StdUnixStream, state: Arc<ProxyState>) {
    let Ok(sockets) = receive_sockets(&socket) else { return };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() else { return };
    let _ = runtime.block_on(async {
        socket.set_nonblocking(true)?;
        let mut socket = UnixStream::from_std(socket)?;
        let most = match &state.hosts {
            ProxyHosts::Granted(_) => MAX_CONNECTIONS,
            ProxyHosts::Judged(_) => MAX_JUDGED_CONNECTIONS,
        };
        let slots = Arc::new(Semaphore::new(most));
        for (index, descriptor) in sockets.into_iter().enumerate() {
            start_serving(descriptor, index, &state, &slots)?;
        }
        // It never sends anything: it ends.
        let ended = socket.read(&mut [0]).await;
        if let Some(interceptor) = state.interceptor.clone() {
            // What a host has answered is stored. A thread that panicked has nothing to wait for.
            let _ = tokio::task::spawn_blocking(move || interceptor.finish_token_exchanges()).await;
        }
        ended
    });
    runtime.shutdown_background();
}

/// Serves one of the jail's sockets. The first is the proxy's. Another that was not asked for is not served.
fn start_serving(descriptor: OwnedFd, index: usize, state: &Arc<ProxyState>, slots: &Arc<Semaphore>) -> io::Result<()> {
    if socket_type(&descriptor)? == SocketType::DGRAM {
        if let ProxyHosts::Judged(names) = &state.hosts {
            let socket = std::net::UdpSocket::from(descriptor);
            socket.set_nonblocking(true)?;
            tokio::spawn(name_server::serve_udp(UdpSocket::from_std(socket)?, Arc::clone(names)));
        }
        return Ok(());
    }
    let listener = StdListener::from(descriptor);
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let ingress = match &state.hosts {
        _ if index == 0 => ListenerIngress::Http(ProxyIngress::Proxy),
        ProxyHosts::Granted(grants) => match grants.iter().find(|grant| grant.loopback() == Some(address)) {
            Some(grant) => ListenerIngress::Http(ProxyIngress::Loopback(format!("{}:{}", grant.host, grant.port))),
            None => return Ok(()),
        },
        ProxyHosts::Judged(_) if address.ip().is_loopback() => ListenerIngress::Loopback(address),
        ProxyHosts::Judged(names) if address.port() == NAME_SERVER_PORT => {
            tokio::spawn(name_server::serve_tcp(listener, Arc::clone(names)));
            return Ok(());
        }
        ProxyHosts::Judged(names) => ListenerIngress::Captured(Arc::clone(names)),
    };
    tokio::spawn(accept(listener, ingress, Arc::clone(state), Arc::clone(slots)));
    Ok(())
}

/// The service behind a listener.
#[derive(Clone, Debug)]
enum ListenerIngress {
    Http(ProxyIngress),
    Captured(Arc<NameTable>),
    /// A service of any protocol at the same address of this machine.
    Loopback(SocketAddr),
}

/// The entrance of an HTTP request.
#[derive(Clone, Debug)]
pub(crate) enum ProxyIngress {
    Proxy,
    /// At an address that stands for this host.
    Loopback(String),
    /// At the address of a name.
    Captured(String),
}

async fn accept(
    listener: TcpListener,
    ingress: ListenerIngress,
    state: Arc<ProxyState>,
    slots: Arc<Semaphore>,
) -> io::Result<Infallible> {
    loop {
        let slot = Arc::new(Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?);
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let state = Arc::clone(&state);
        match &ingress {
            ListenerIngress::Http(ingress) => {
                tokio::spawn(serve_connection(stream, ingress.clone(), state, slot));
            }
            ListenerIngress::Captured(names) => {
                tokio::spawn(serve_captured(stream, state, Arc::clone(names), slot));
            }
            ListenerIngress::Loopback(address) => {
                tokio::spawn(serve_loopback(stream, *address, state, slot));
            }
        }
    }
}

/// The sockets that the jail made. None where it never came to that.
fn receive_sockets(socket: &StdUnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    retry_on_intr(|| {
        recvmsg(socket.as_fd(), &mut [io::IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().collect())
}

/// One of the connections that a run may have, until nothing of it is left.
pub(crate) type ProxyConnectionPermit = Arc<OwnedSemaphorePermit>;

/// One connection of a program.
pub(crate) async fn serve_connection(
    stream: TcpStream,
    entrance: ProxyIngress,
    state: Arc<ProxyState>,
    slot: ProxyConnectionPermit,
) {
    let service = service_fn(move |request| {
        let (entrance, state, slot) = (entrance.clone(), Arc::clone(&state), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(handle_request(request, &entrance, state, slot).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HANDSHAKE_TIMEOUT).max_headers(256).half_close(true);
    let _ = server.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

async fn handle_request(
    request: Request<Incoming>,
    entrance: &ProxyIngress,
    state: Arc<ProxyState>,
    slot: ProxyConnectionPermit,
) -> ProxyResponse {
    if let Some(refused) = state.check_tripwire(&request, entrance) {
        return refused;
    }
    let asked = match entrance {
        ProxyIngress::Proxy => proxy_target(&request, &state.net),
        ProxyIngress::Loopback(authority) | ProxyIngress::Captured(authority) => {
            loopback_target(&request, authority, &state.net)
        }
    };
    let asked = match asked {
        Ok(target) => target,
        Err(error) => {
            let authority = match entrance {
                ProxyIngress::Captured(authority) => Some(authority.as_str()),
                _ => request.uri().authority().map(Authority::as_str),
            };
            return state.refuse(authority, &error).await;
        }
    };
    let ends_tls = request.method() == Method::CONNECT;
    if let Some(interceptor) = state.interceptor_for(&asked).filter(|_| ends_tls) {
        return intercept(request, asked, interceptor, state, slot).await;
    }
    let upstream = match state.connect(&asked).await {
        Ok(upstream) => upstream,
        Err(ProxyConnectError::Refused(why)) => return text_response(StatusCode::FORBIDDEN, &why),
        Err(ProxyConnectError::Failed(why)) => return text_response(StatusCode::BAD_GATEWAY, &why),
    };
    match request.method() == Method::CONNECT {
        true => {
            tokio::spawn(async move {
                if let Ok(upgraded) = hyper::upgrade::on(request).await {
                    let _ = tunnel(TokioIo::new(upgraded), upstream, asked.host()).await;
                }
                drop(slot);
            });
            Response::new(Either::Left(Full::default()))
        }
        false => {
            let answer = forward(request, upstream, &asked, &state).await;
            answer.unwrap_or_else(|why| text_response(StatusCode::BAD_GATEWAY, &why))
        }
    }
}

/// Hands the connection of a program over to the interceptor, once it is permitted and recorded.
async fn intercept(
    request: Request<Incoming>,
    target: FetchTarget,
    interceptor: Arc<TlsInterceptor>,
    state: Arc<ProxyState>,
    slot: ProxyConnectionPermit,
) -> ProxyResponse {
    if let Err(ProxyConnectError::Refused(why) | ProxyConnectError::Failed(why)) = state.permit(&target).await {
        return text_response(StatusCode::FORBIDDEN, &why);
    }
    let events = state.recorder(target.authority());
    tokio::spawn(async move {
        if let Ok(upgraded) = hyper::upgrade::on(request).await {
            interceptor.serve(TokioIo::new(upgraded), &target, events).await;
        }
        drop(slot);
    });
    Response::new(Either::Left(Full::default()))
}

/// The target of a request: a tunnel to a host, or a URL of one.
pub(crate) fn proxy_target<B>(request: &Request<B>, net: &WebConnector) -> Result<FetchTarget, WebError> {
    let wrong = || WebError::Url("is not a valid proxy request".to_owned());
    let uri = request.uri();
    let authority = uri.authority().ok_or_else(wrong)?.as_str();
    let text = match (request.method(), uri.scheme_str()) {
        (&Method::CONNECT, None) if uri.port_u16().is_some() => format!("http://{authority}/"),
        (&Method::CONNECT, _) => return Err(wrong()),
        (_, Some("http")) => uri.to_string(),
        _ => return Err(wrong()),
    };
    FetchTarget::parse(&text, net.private_hosts())
}

/// A page of the host that an entrance stands for.
fn loopback_target<B>(request: &Request<B>, authority: &str, net: &WebConnector) -> Result<FetchTarget, WebError> {
    let page = request.uri().path_and_query().filter(|_| request.uri().authority().is_none());
    let page = page.ok_or_else(|| WebError::Url("is not a valid HTTP request".to_owned()))?;
    FetchTarget::parse(&format!("http://{authority}{page}"), net.private_hosts())
}

/// Failure of a program's connection.
pub(crate) enum ProxyConnectError {
    Refused(String),
    Failed(String),
}

impl ProxyState {
    /// Refuses a request that has the placeholder of a credential where it can be read.
    fn check_tripwire(&self, request: &Request<Incoming>, entrance: &ProxyIngress) -> Option<ProxyResponse> {
        let interceptor = self.interceptor.as_ref()?;
        let place = interceptor.tripwire(request.uri(), request.headers())?;
        let host = request.uri().host().unwrap_or_default();
        let authority = match entrance {
            ProxyIngress::Loopback(authority) | ProxyIngress::Captured(authority) => authority.clone(),
            ProxyIngress::Proxy if interceptor.is_in_name(host) => "(a name with a placeholder)".to_owned(),
            ProxyIngress::Proxy => host.chars().take(300).collect(),
        };
        self.recorder(authority).on_tripwire(&place);
        Some(text_response(StatusCode::FORBIDDEN, &TlsInterceptor::tripwire_text(place)))
    }

    /// The interceptor, if it ends TLS for a host.
    pub(crate) fn interceptor_for(&self, target: &FetchTarget) -> Option<Arc<TlsInterceptor>> {
        self.interceptor.as_ref().filter(|interceptor| interceptor.intercepts_target(target)).map(Arc::clone)
    }

    /// The interceptor, for what is not encrypted.
    pub(crate) fn interceptor(&self) -> Option<&Arc<TlsInterceptor>> {
        self.interceptor.as_ref()
    }

    pub(crate) fn recorder(&self, authority: String) -> Arc<InterceptionRecorder> {
        Arc::new(InterceptionRecorder::new(authority, self.attempts.lock().clone()))
    }

    /// A connection, once it is recorded.
    pub(crate) async fn connect(&self, target: &FetchTarget) -> Result<TcpStream, ProxyConnectError> {
        self.permit(target).await?;
        self.net.dial(target, self.connect_timeout).await.map_err(|error| match error {
            WebError::NotPublic { .. } => ProxyConnectError::Refused(error.to_string()),
            _ => ProxyConnectError::Failed(error.to_string()),
        })
    }

    /// Fails unless the host may be reached. The request is recorded either way.
    pub(crate) async fn permit(&self, target: &FetchTarget) -> Result<(), ProxyConnectError> {
        let access = host_access(target);
        let ProxyHosts::Granted(grants) = &self.hosts else { return self.decide_attempt(access).await };
        let grant = ProxyHostGrant { host: target.host().clone(), port: target.port() };
        let refused = (!grants.contains(&grant)).then(|| {
            let message = format!("the run may not reach `{}`; list it in `network`", target.authority());
            ToolError::new(ErrorKind::Network, message)
        });
        let why = refused.as_ref().map(|refused| refused.message.clone());
        self.record_attempt(access, refused).await?;
        why.map_or(Ok(()), |why| Err(ProxyConnectError::Refused(why)))
    }

    /// Records a refused request.
    async fn refuse(&self, authority: Option<&str>, error: &WebError) -> ProxyResponse {
        let why = error.to_string();
        if let Some(authority) = authority {
            self.refuse_connection(authority, &why).await;
        }
        text_response(StatusCode::FORBIDDEN, &why)
    }

    /// Records a connection that is refused whatever the policy says.
    pub(crate) async fn refuse_connection(&self, authority: &str, why: &str) {
        let given: String = authority.chars().take(300).collect();
        let resource = PolicyResource {
            mount: Arc::from(NET_MOUNT),
            display_path: given.clone(),
            requested_path: given,
            ..PolicyResource::default()
        };
        let refused = ToolError::new(ErrorKind::Network, why.to_owned());
        let _ = self.record_attempt(ResourceAccess { action: PolicyAction::Fetch, resource }, Some(refused)).await;
    }

    pub(crate) fn private_hosts(&self) -> &PrivateHosts {
        self.net.private_hosts()
    }

    /// Waits for the decision about a connection.
    async fn decide_attempt(&self, access: ResourceAccess) -> Result<(), ProxyConnectError> {
        let (decide, decided) = oneshot::channel();
        let attempt = ConnectionAttempt::undecided(access, move |decision| {
            // The receiver may be gone.
            let _ = decide.send(decision);
        });
        self.attempts.lock().send(attempt).map_err(|_| unrecorded())?;
        let decision = decided.await.map_err(|_| unrecorded())?;
        decision.map_err(|error| ProxyConnectError::Refused(error.message))
    }

    async fn record_attempt(
        &self,
        access: ResourceAccess,
        refused: Option<ToolError>,
    ) -> Result<(), ProxyConnectError> {
        let (go, goes) = oneshot::channel();
        let attempt = ConnectionAttempt::new(access, refused, move || {
            // The receiver may be gone.
            let _ = go.send(());
        });
        self.attempts.lock().send(attempt).map_err(|_| unrecorded())?;
        goes.await.map_err(|_| unrecorded())
    }
}

fn unrecorded() -> ProxyConnectError {
    ProxyConnectError::Refused("the run has ended, or its connections cannot be recorded".to_owned())
}

/// The access to the host alone: the path of an encrypted connection is unknown.
fn host_access(target: &FetchTarget) -> ResourceAccess {
    let mut access = target.access(NET_MOUNT);
    access.resource.requested_path = target.authority();
    access.resource.display_path = target.authority();
    access
}

/// Bytes to and fro, once the program has named the host that it was granted.
async fn tunnel(mut program: TokioIo<Upgraded>, mut upstream: TcpStream, host: &TargetHost) -> io::Result<()> {
    match TlsGreeting::read(&mut program, Vec::new()).await {
        Ok(greeting) if greeting.names(host) => {
            upstream.write_all(&greeting.bytes).await?;
            copy_bidirectional(&mut program, &mut upstream).await.map(drop)
        }
        Err(refusal) if !refusal.is_tls => Ok(()),
        _ => deny_access(&mut program).await,
    }
}
