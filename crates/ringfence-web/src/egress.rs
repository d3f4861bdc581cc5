//! The jail's way out: a proxy for the hosts that a run was granted, and for no others.
//!
//! The jail listens for its programs and hands its sockets over; here they are served: the proxy, and each address of this
//! machine's loopback that was granted, which programs ask at the same address of their own. Every connection is recorded before it
//! is made, goes by the same addresses as any other request, and in it TLS must name the host that was asked for. A host
//! is granted whole: where only a part of it is allowed, the policy has said no before.
//!
//! Not here: who may have which host (the kernel's policy), and the jail.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_kernel::{Attempt, Context, Egress, ErrorKind, NET, Place, ToolError, Touch, Verb, Way};
use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::error::WebError;
use crate::hello::{self, Hello};
use crate::net::Net;
use crate::target::{Host, Target};

/// Connections of one run at once.
const MOST_CONNECTIONS: usize = 64;

/// Sockets that one jail hands over.
const MOST_LISTENERS: usize = 64;

/// How long a program may take to say what it wants, and whom it means.
const TO_SPEAK: Duration = Duration::from_secs(10);

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
pub struct Proxy {
    net: Arc<Net>,
}

impl Proxy {
    pub fn new(net: Arc<Net>) -> Self {
        Self { net }
    }
}

impl Egress for Proxy {
    fn open(&self, hosts: &[String], cx: &Context<'_>) -> Result<Box<dyn Way>, ToolError> {
        let granted = hosts.iter().map(|host| Grant::parse(host, &self.net)).collect::<Result<Vec<_>, _>>()?;
        let failed =
            |cause: io::Error| ToolError::new(ErrorKind::Network, format!("no way out could be made: {cause}"));
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        // The jail reads this before it listens.
        let loopback: String =
            granted.iter().filter_map(Grant::loopback).map(|address| format!("{address}\n")).collect();
        (&ours).write_all(loopback.as_bytes()).map_err(failed)?;
        let (asks, asked) = channel();
        let desk = Arc::new(Desk {
            net: Arc::clone(&self.net),
            granted,
            asks: Mutex::new(asks),
            connect: cx.limits.fetch_connect_time,
        });
        // It ends when the jail's end of the socket is closed.
        std::thread::Builder::new().name("egress".to_owned()).spawn(move || serve(ours, desk)).map_err(failed)?;
        Ok(Box::new(OpenWay { socket: Some(theirs.into()), asked }))
    }

    fn known_as(&self, host: &str) -> Result<String, ToolError> {
        let Grant { host, port } = Grant::parse(host, &self.net)?;
        Ok(format!("{host}:{port}"))
    }
}

#[derive(Debug)]
struct OpenWay {
    socket: Option<OwnedFd>,
    asked: Receiver<Attempt>,
}

impl Way for OpenWay {
    fn socket(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }

    fn next(&self) -> Option<Attempt> {
        self.asked.try_recv().ok()
    }
}

/// A host that a run was granted.
#[derive(Debug, PartialEq, Eq)]
struct Grant {
    host: Host,
    port: u16,
}

impl Grant {
    fn parse(text: &str, net: &Net) -> Result<Self, WebError> {
        let wrong = |_| WebError::Name(text.to_owned(), "a host looks like `pypi.org:443`");
        let target = Target::parse(&format!("http://{text}/"), net.private()).map_err(|error| match error {
            WebError::Url(_) => wrong(()),
            other => other,
        })?;
        if target.path_and_query() != "/" {
            return Err(wrong(()));
        }
        Ok(Self { host: target.host().clone(), port: target.port() })
    }

    /// Where programs find it on their own loopback, if it is at an address of this machine's that they ask no proxy for.
    fn loopback(&self) -> Option<SocketAddr> {
        let own = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        let ip = match &self.host {
            Host::Address(ip) => own.into_iter().find(|own| own == ip),
            Host::Name(name) => own.into_iter().next().filter(|_| name == "localhost"),
        };
        ip.map(|ip| SocketAddr::new(ip, self.port))
    }
}

/// What the connections of one run share.
#[derive(Debug)]
struct Desk {
    net: Arc<Net>,
    granted: Vec<Grant>,
    asks: Mutex<Sender<Attempt>>,
    connect: Duration,
}

/// Until the jail is gone.
fn serve(socket: StdUnixStream, desk: Arc<Desk>) {
    let Ok(listeners) = hear_listeners(&socket) else { return };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() else { return };
    let _ = runtime.block_on(async {
        socket.set_nonblocking(true)?;
        let mut socket = UnixStream::from_std(socket)?;
        let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        for (index, listener) in listeners.into_iter().enumerate() {
            let address = listener.local_addr()?;
            // The first is the proxy's. Another that was not asked for is not served.
            let granted = desk.granted.iter().find(|grant| grant.loopback() == Some(address));
            let entrance = match granted.map(|grant| format!("{}:{}", grant.host, grant.port)) {
                _ if index == 0 => Entrance::Proxy,
                Some(authority) => Entrance::Loopback(authority),
                None => continue,
            };
            listener.set_nonblocking(true)?;
            tokio::spawn(accept(TcpListener::from_std(listener)?, entrance, Arc::clone(&desk), Arc::clone(&slots)));
        }
        // Nothing is ever said: it ends.
        socket.read(&mut [0]).await
    });
    runtime.shutdown_background();
}

/// Where a program came in.
#[derive(Clone, Debug)]
enum Entrance {
    Proxy,
    /// At an address that stands for this host.
    Loopback(String),
}

async fn accept(
    listener: TcpListener,
    entrance: Entrance,
    desk: Arc<Desk>,
    slots: Arc<Semaphore>,
) -> io::Result<Infallible> {
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = listener.accept().await?;
        tokio::spawn(speak(stream, entrance.clone(), Arc::clone(&desk), Arc::new(slot)));
    }
}

/// The sockets that the jail listens on. None where it never came to that.
fn hear_listeners(socket: &StdUnixStream) -> io::Result<Vec<StdListener>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_LISTENERS))];
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
type Slot = Arc<OwnedSemaphorePermit>;

/// One connection of a program.
async fn speak(stream: TcpStream, entrance: Entrance, desk: Arc<Desk>, slot: Slot) {
    let service = service_fn(move |request| {
        let (entrance, desk, slot) = (entrance.clone(), Arc::clone(&desk), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(answer(request, &entrance, desk, slot).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(TO_SPEAK).max_headers(256).half_close(true);
    let _ = server.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

type Said = Response<Either<Full<Bytes>, Incoming>>;

fn say(status: StatusCode, text: &str) -> Said {
    let mut said = Response::new(Either::Left(Full::new(Bytes::from(format!("ringfence: {text}\n")))));
    *said.status_mut() = status;
    said
}

async fn answer(request: Request<Incoming>, entrance: &Entrance, desk: Arc<Desk>, slot: Slot) -> Said {
    let asked = match entrance {
        Entrance::Proxy => where_to(&request, &desk.net),
        Entrance::Loopback(authority) => page_of(&request, authority, &desk.net),
    };
    let asked = match asked {
        Ok(target) => target,
        Err(error) => return desk.turn_away(request.uri(), error).await,
    };
    let upstream = match desk.open(&asked).await {
        Ok(upstream) => upstream,
        Err(Closed::Refused(why)) => return say(StatusCode::FORBIDDEN, &why),
        Err(Closed::Failed(why)) => return say(StatusCode::BAD_GATEWAY, &why),
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
        false => forward(request, upstream, &asked).await.unwrap_or_else(|why| say(StatusCode::BAD_GATEWAY, &why)),
    }
}

/// What a request is for: a tunnel to a host, or a page of one.
pub(crate) fn where_to<B>(request: &Request<B>, net: &Net) -> Result<Target, WebError> {
    let wrong = || WebError::Url("is not what a proxy is asked for".to_owned());
    let uri = request.uri();
    let authority = uri.authority().ok_or_else(wrong)?.as_str();
    let text = match (request.method(), uri.scheme_str()) {
        (&Method::CONNECT, None) if uri.port_u16().is_some() => format!("http://{authority}/"),
        (&Method::CONNECT, _) => return Err(wrong()),
        (_, Some("http")) => uri.to_string(),
        _ => return Err(wrong()),
    };
    Target::parse(&text, net.private())
}

/// A page of the host that an entrance stands for.
fn page_of<B>(request: &Request<B>, authority: &str, net: &Net) -> Result<Target, WebError> {
    let page = request.uri().path_and_query().filter(|_| request.uri().authority().is_none());
    let page = page.ok_or_else(|| WebError::Url("is not what a web server is asked for".to_owned()))?;
    Target::parse(&format!("http://{authority}{page}"), net.private())
}

/// Why a program gets no connection.
enum Closed {
    Refused(String),
    Failed(String),
}

impl Desk {
    /// A connection, once it is recorded.
    async fn open(&self, target: &Target) -> Result<TcpStream, Closed> {
        let grant = Grant { host: target.host().clone(), port: target.port() };
        let refused = (!self.granted.contains(&grant)).then(|| {
            let message = format!("the run was not granted `{}`; name it in `network`", target.authority());
            ToolError::new(ErrorKind::Network, message)
        });
        let why = refused.as_ref().map(|refused| refused.message.clone());
        self.recorded(touch(target), refused).await?;
        if let Some(why) = why {
            return Err(Closed::Refused(why));
        }
        let dialled = timeout(self.connect, self.net.dial(target, self.connect)).await;
        let dialled = dialled.unwrap_or(Err(WebError::Slow("reaching the host", self.connect.as_secs_f64())));
        dialled.map_err(|error| match error {
            WebError::Inward { .. } => Closed::Refused(error.to_string()),
            _ => Closed::Failed(error.to_string()),
        })
    }

    /// What may be asked for by nobody is recorded as well.
    async fn turn_away(&self, uri: &Uri, error: WebError) -> Said {
        let why = error.to_string();
        if let Some(authority) = uri.authority() {
            let given: String = authority.as_str().chars().take(300).collect();
            let place = Place { mount: Arc::from(NET), shown: given.clone(), given, ..Place::default() };
            let refused = ToolError::new(ErrorKind::Network, why.clone());
            let _ = self.recorded(Touch { verb: Verb::Fetch, place }, Some(refused)).await;
        }
        say(StatusCode::FORBIDDEN, &why)
    }

    async fn recorded(&self, touch: Touch, refused: Option<ToolError>) -> Result<(), Closed> {
        let closed = || Closed::Refused("the run is over, or its connections cannot be recorded".to_owned());
        let (go, goes) = oneshot::channel();
        let attempt = Attempt::new(touch, refused, move || {
            // Nobody may wait for it any more.
            let _ = go.send(());
        });
        self.asks.lock().unwrap_or_else(PoisonError::into_inner).send(attempt).map_err(|_| closed())?;
        goes.await.map_err(|_| closed())
    }
}

/// The host alone: of an encrypted connection nobody knows more.
fn touch(target: &Target) -> Touch {
    let mut touch = target.touch(NET);
    touch.place.given = target.authority();
    touch.place.shown = target.authority();
    touch
}

/// Bytes to and fro, once the program has named the host that it was granted.
async fn tunnel(mut program: TokioIo<Upgraded>, mut upstream: TcpStream, host: &Host) -> io::Result<()> {
    let mut greeting = Vec::new();
    let named = timeout(TO_SPEAK, async {
        loop {
            match hello::read(&greeting) {
                Hello::Partial if program.read_buf(&mut greeting).await? == 0 => return Ok(None),
                Hello::Partial => {}
                Hello::Refused(_) => return Ok(None),
                Hello::Whole(name) => return io::Result::Ok(Some(name)),
            }
        }
    });
    let Ok(Ok(Some(name))) = named.await else { return Ok(()) };
    let is_meant = match (host, name) {
        (Host::Name(host), Some(name)) => name.trim_end_matches('.').eq_ignore_ascii_case(host),
        // TLS has no addresses for names.
        (Host::Address(_), None) => true,
        _ => false,
    };
    if is_meant {
        upstream.write_all(&greeting).await?;
        copy_bidirectional(&mut program, &mut upstream).await?;
    }
    Ok(())
}

/// The request as the host is to have it, and its answer.
async fn forward(mut request: Request<Incoming>, upstream: TcpStream, target: &Target) -> Result<Said, String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(upstream))
        .await
        .map_err(|cause| format!("`{}` did not answer: {cause}", target.host()))?;
    // It ends with the connection of the program, whose runtime it is in.
    tokio::spawn(connection);
    *request.uri_mut() = target.path_and_query().parse::<Uri>().map_err(|_| "the path cannot be sent".to_owned())?;
    between(request.headers_mut());
    let host = HeaderValue::from_str(&target.host_header()).map_err(|_| "the host cannot be sent".to_owned())?;
    request.headers_mut().insert(HOST, host);
    let answer = sender.send_request(request).await;
    let mut answer = answer.map_err(|cause| format!("`{}` did not answer: {cause}", target.host()))?;
    between(answer.headers_mut());
    Ok(answer.map(Either::Right))
}

/// Takes out what is said between two machines only.
fn between(headers: &mut hyper::HeaderMap) {
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
