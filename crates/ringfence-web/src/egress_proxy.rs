//! Egress proxy of the jail: HTTP and CONNECT, to the hosts that a run was granted.
//!
//! The jail listens for its programs and hands its sockets over; they are served here: the proxy, and each granted
//! address of this machine's loopback, which programs reach at the same address of their own. Every connection is
//! recorded before it is made, is checked by the same address rules as any other request, and in it TLS must name the
//! requested host. A host is granted whole: where only a part of it is allowed, the policy has denied it before.
//!
//! Not here: who may have which host (the kernel's policy), and the jail.

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
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    CallContext, ConnectionAttempt, Egress, EgressChannel, ErrorKind, NET_MOUNT, PolicyAction, PolicyResource,
    ResourceAccess, ToolError,
};
use ringfence_net::TargetHost;
use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::client_hello::{self, ClientHello};
use crate::connector::WebConnector;
use crate::error::WebError;
use crate::fetch_target::FetchTarget;
use crate::interception_record::InterceptionRecorder;
use crate::interceptor::{InterceptionObserver as _, TlsInterceptor};

/// Connections of one run at once.
const MAX_CONNECTIONS: usize = 64;

/// Sockets that one jail hands over.
const MAX_LISTENERS: usize = 64;

/// Time for a program to send its request, and the ClientHello with the server name.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Headers between two machines, which go no further.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Opens ways out over the same connections that web tools have.
#[derive(Debug)]
pub struct EgressProxy {
    net: Arc<WebConnector>,
    interceptor: Option<Arc<TlsInterceptor>>,
}

impl EgressProxy {
    pub fn new(net: Arc<WebConnector>) -> Self {
        Self { net, interceptor: None }
    }

    /// The same, with TLS ended outside of the jail for the hosts of the interceptor.
    #[must_use]
    pub fn with_interceptor(self, interceptor: Arc<TlsInterceptor>) -> Self {
        Self { interceptor: Some(interceptor), ..self }
    }
}

impl Egress for EgressProxy {
    fn open(&self, hosts: &[String], cx: &CallContext<'_>) -> Result<Box<dyn EgressChannel>, ToolError> {
        let granted = hosts.iter().map(|host| ProxyHostGrant::parse(host, &self.net)).collect::<Result<Vec<_>, _>>()?;
        let failed = |cause: io::Error| {
            ToolError::new(ErrorKind::Network, format!("the egress proxy could not be started: {cause}"))
        };
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        // The jail reads this before it listens.
        let loopback: String =
            granted.iter().filter_map(ProxyHostGrant::loopback).map(|address| format!("{address}\n")).collect();
        (&ours).write_all(loopback.as_bytes()).map_err(failed)?;
        let (asks, asked) = channel();
        let state = Arc::new(ProxyState {
            net: Arc::clone(&self.net),
            interceptor: self.interceptor.clone(),
            grants: granted,
            attempts: Mutex::new(asks),
            connect_timeout: cx.limits.fetch_connect_time,
        });
        // It ends when the jail's end of the socket is closed.
        std::thread::Builder::new().name("egress".to_owned()).spawn(move || serve(ours, state)).map_err(failed)?;
        Ok(Box::new(ProxyChannel { socket: Some(theirs.into()), attempts: asked }))
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

/// State that the connections of one run share.
#[derive(Debug)]
struct ProxyState {
    net: Arc<WebConnector>,
    interceptor: Option<Arc<TlsInterceptor>>,
    grants: Vec<ProxyHostGrant>,
    attempts: Mutex<Sender<ConnectionAttempt>>,
    connect_timeout: Duration,
}

/// Until the jail is gone.
fn serve(socket: StdUnixStream, state: Arc<ProxyState>) {
    let Ok(listeners) = receive_listeners(&socket) else { return };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() else { return };
    let _ = runtime.block_on(async {
        socket.set_nonblocking(true)?;
        let mut socket = UnixStream::from_std(socket)?;
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        for (index, listener) in listeners.into_iter().enumerate() {
            let address = listener.local_addr()?;
            // The first is the proxy's. Another that was not asked for is not served.
            let granted = state.grants.iter().find(|grant| grant.loopback() == Some(address));
            let entrance = match granted.map(|grant| format!("{}:{}", grant.host, grant.port)) {
                _ if index == 0 => ProxyIngress::Proxy,
                Some(authority) => ProxyIngress::Loopback(authority),
                None => continue,
            };
            listener.set_nonblocking(true)?;
            tokio::spawn(accept(TcpListener::from_std(listener)?, entrance, Arc::clone(&state), Arc::clone(&slots)));
        }
        // It never sends anything: it ends.
        socket.read(&mut [0]).await
    });
    runtime.shutdown_background();
}

/// The socket that a program connected to.
#[derive(Clone, Debug)]
enum ProxyIngress {
    Proxy,
    /// At an address that stands for this host.
    Loopback(String),
}

async fn accept(
    listener: TcpListener,
    entrance: ProxyIngress,
    state: Arc<ProxyState>,
    slots: Arc<Semaphore>,
) -> io::Result<Infallible> {
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_connection(stream, entrance.clone(), Arc::clone(&state), Arc::new(slot)));
    }
}

/// The sockets that the jail listens on. None where it never came to that.
fn receive_listeners(socket: &StdUnixStream) -> io::Result<Vec<StdListener>> {
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
    Ok(descriptors.flatten().map(StdListener::from).collect())
}

/// One of the connections that a run may have, until nothing of it is left.
type ProxyConnectionPermit = Arc<OwnedSemaphorePermit>;

/// One connection of a program.
async fn serve_connection(
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

type ProxyResponse = Response<Either<Full<Bytes>, Incoming>>;

fn text_response(status: StatusCode, text: &str) -> ProxyResponse {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(format!("ringfence: {text}\n")))));
    *response.status_mut() = status;
    response
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
        ProxyIngress::Loopback(authority) => loopback_target(&request, authority, &state.net),
    };
    let asked = match asked {
        Ok(target) => target,
        Err(error) => return state.refuse(request.uri(), error).await,
    };
    if let Some(interceptor) = state.interceptor_for(&request, &asked) {
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
        false => forward(request, upstream, &asked, &state)
            .await
            .unwrap_or_else(|why| text_response(StatusCode::BAD_GATEWAY, &why)),
    }
}

/// Hands the connection of a program over to the interceptor, once it is granted and recorded.
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
enum ProxyConnectError {
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
            ProxyIngress::Loopback(authority) => authority.clone(),
            ProxyIngress::Proxy if interceptor.is_in_name(host) => "(a name with a placeholder)".to_owned(),
            ProxyIngress::Proxy => host.chars().take(300).collect(),
        };
        self.recorder(authority).on_tripwire(&place);
        Some(text_response(StatusCode::FORBIDDEN, &TlsInterceptor::tripwire_text(place)))
    }

    /// The interceptor, if it ends the connection that is requested.
    fn interceptor_for(&self, request: &Request<Incoming>, target: &FetchTarget) -> Option<Arc<TlsInterceptor>> {
        let interceptor = self.interceptor.as_ref().filter(|_| request.method() == Method::CONNECT)?;
        interceptor.intercepts_target(target).then(|| Arc::clone(interceptor))
    }

    fn recorder(&self, authority: String) -> Arc<InterceptionRecorder> {
        Arc::new(InterceptionRecorder::new(authority, self.attempts.lock().clone()))
    }

    /// A connection, once it is recorded.
    async fn connect(&self, target: &FetchTarget) -> Result<TcpStream, ProxyConnectError> {
        self.permit(target).await?;
        self.net.dial(target, self.connect_timeout).await.map_err(|error| match error {
            WebError::NotPublic { .. } => ProxyConnectError::Refused(error.to_string()),
            _ => ProxyConnectError::Failed(error.to_string()),
        })
    }

    /// Fails unless the host was granted. The request is recorded either way.
    async fn permit(&self, target: &FetchTarget) -> Result<(), ProxyConnectError> {
        let grant = ProxyHostGrant { host: target.host().clone(), port: target.port() };
        let refused = (!self.grants.contains(&grant)).then(|| {
            let message = format!("the run may not reach `{}`; list it in `network`", target.authority());
            ToolError::new(ErrorKind::Network, message)
        });
        let why = refused.as_ref().map(|refused| refused.message.clone());
        self.record_attempt(host_access(target), refused).await?;
        why.map_or(Ok(()), |why| Err(ProxyConnectError::Refused(why)))
    }

    /// Records a refused request.
    async fn refuse(&self, uri: &Uri, error: WebError) -> ProxyResponse {
        let why = error.to_string();
        if let Some(authority) = uri.authority() {
            let given: String = authority.as_str().chars().take(300).collect();
            let resource = PolicyResource {
                mount: Arc::from(NET_MOUNT),
                display_path: given.clone(),
                requested_path: given,
                ..PolicyResource::default()
            };
            let refused = ToolError::new(ErrorKind::Network, why.clone());
            let _ = self.record_attempt(ResourceAccess { action: PolicyAction::Fetch, resource }, Some(refused)).await;
        }
        text_response(StatusCode::FORBIDDEN, &why)
    }

    async fn record_attempt(
        &self,
        access: ResourceAccess,
        refused: Option<ToolError>,
    ) -> Result<(), ProxyConnectError> {
        let closed =
            || ProxyConnectError::Refused("the run has ended, or its connections cannot be recorded".to_owned());
        let (go, goes) = oneshot::channel();
        let attempt = ConnectionAttempt::new(access, refused, move || {
            // The receiver may be gone.
            let _ = go.send(());
        });
        self.attempts.lock().send(attempt).map_err(|_| closed())?;
        goes.await.map_err(|_| closed())
    }
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
    let mut greeting = Vec::new();
    let named = timeout(HANDSHAKE_TIMEOUT, async {
        loop {
            match client_hello::parse_client_hello(&greeting) {
                ClientHello::Partial if program.read_buf(&mut greeting).await? == 0 => return Ok(None),
                ClientHello::Partial => {}
                ClientHello::Refused(_) => return Ok(None),
                ClientHello::Complete(name) => return io::Result::Ok(Some(name)),
            }
        }
    });
    let Ok(Ok(Some(name))) = named.await else { return Ok(()) };
    let is_meant = match (host, name) {
        (TargetHost::Name(host), Some(name)) => name.trim_end_matches('.').eq_ignore_ascii_case(host),
        // TLS has no addresses for names.
        (TargetHost::Address(_), None) => true,
        _ => false,
    };
    if is_meant {
        upstream.write_all(&greeting).await?;
        copy_bidirectional(&mut program, &mut upstream).await?;
    }
    Ok(())
}

/// The request as the host is to have it, and its answer.
async fn forward(
    mut request: Request<Incoming>,
    upstream: TcpStream,
    target: &FetchTarget,
    state: &ProxyState,
) -> Result<ProxyResponse, String> {
    *request.uri_mut() = target.path_and_query().parse::<Uri>().map_err(|_| "the path cannot be sent".to_owned())?;
    strip_hop_by_hop(request.headers_mut());
    let host = HeaderValue::from_str(&target.host_header()).map_err(|_| "the host cannot be sent".to_owned())?;
    request.headers_mut().insert(HOST, host);
    // Its connection ends with that of the program, whose runtime it is in.
    let answer = match &state.interceptor {
        Some(interceptor) => {
            let events = state.recorder(target.authority());
            ringfence_net::forward(upstream, request.map(|body| interceptor.guard_body(body, events))).await
        }
        None => ringfence_net::forward(upstream, request).await,
    };
    let mut answer = answer.map_err(|cause| format!("`{}` did not answer: {cause}", target.host()))?;
    strip_hop_by_hop(answer.headers_mut());
    Ok(answer.map(Either::Right))
}

/// Removes hop-by-hop headers.
pub(crate) fn strip_hop_by_hop(headers: &mut hyper::HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(*name);
    }
}
