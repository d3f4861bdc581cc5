//! HTTP listener of `ringfence serve`: connection admission and read timeouts.
//!
//! A connection that has shown no token yet is one of few, in all and of each address, and makes room for a newer one as
//! long as it has sent no whole request. One that has shown a token counts for that token. So neither a crowd that says
//! nothing nor one busy agent keeps others out.
//!
//! Not here: tokens and bodies (`request_auth.rs`), and how many requests a token may have under way (`token_slots.rs`).

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Extensions, Request, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ringfence_kernel::sync::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::http::request_source::TrustedProxies;

/// Pause of accepting when the system is out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// In all, and of one token.
    pub(crate) total: usize,
    pub(crate) per_token: usize,
    /// From the opening, or from the last answer, to the end of the next head.
    pub(crate) head_timeout: Duration,
    /// Of those that have shown no token.
    pub(crate) unauthenticated: UnauthenticatedLimits,
}

/// Limits of connections without a token so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnauthenticatedLimits {
    pub(crate) total: usize,
    /// Of one address, unless it is a trusted proxy's, which speaks for many.
    pub(crate) per_address: usize,
    pub(crate) head_timeout: Duration,
}

/// Handle of one connection, for its request handlers.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle(Arc<TrackedConnection>);

#[derive(Debug)]
struct TrackedConnection {
    number: u64,
    peer: IpAddr,
    table: ConnectionTable,
    state: Mutex<ConnectionState>,
    /// Cancelled when it has to make room.
    close: CancellationToken,
}

#[derive(Debug)]
struct ConnectionState {
    /// The token that it showed last.
    token: Option<Arc<str>>,
    /// Requests whose answers are not out yet.
    in_flight: usize,
    /// When it was opened, or last had an answer.
    idle_since: Instant,
}

impl ConnectionHandle {
    /// The connection of a request.
    pub(crate) fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// The address at the other end.
    pub(crate) fn peer(&self) -> IpAddr {
        self.0.peer
    }

    /// Says that a request on it showed a valid token. From here on the connection counts for that token, which makes room
    /// among its own where it has too many.
    pub(crate) fn authenticate(&self, token: &Arc<str>) {
        let is_new = self.0.state.lock().token.replace(Arc::clone(token)).as_ref() != Some(token);
        if is_new {
            self.0.table.enforce_token_limit(token, self.0.number);
        }
    }

    fn begin_request(&self) -> RequestGuard {
        self.0.state.lock().in_flight += 1;
        RequestGuard(self.clone())
    }
}

impl TrackedConnection {
    fn is_idle_and_unauthenticated(&self) -> bool {
        let state = self.state.lock();
        state.token.is_none() && state.in_flight == 0
    }
}

/// A request whose answer is not out yet.
#[derive(Debug)]
struct RequestGuard(ConnectionHandle);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.0.0.state.lock();
        state.in_flight -= 1;
        state.idle_since = Instant::now();
    }
}

/// All connections.
#[derive(Clone, Debug)]
struct ConnectionTable {
    bounds: ConnectionLimits,
    proxies: TrustedProxies,
    all: Arc<Mutex<HashMap<u64, Arc<TrackedConnection>>>>,
    numbers: Arc<AtomicU64>,
}

impl ConnectionTable {
    fn new(bounds: ConnectionLimits, proxies: TrustedProxies) -> Self {
        Self { bounds, proxies, all: Arc::default(), numbers: Arc::default() }
    }

    /// Admits a connection, and closes another one where there are too many. `None` where none can be closed.
    fn admit(&self, peer: IpAddr) -> Option<ConnectionHandle> {
        let mut all = self.all.lock();
        let ConnectionLimits { total: most, unauthenticated, .. } = self.bounds;
        // One whose request is being processed shows its token shortly, or is refused.
        let is_silent = |connection: &TrackedConnection| connection.is_idle_and_unauthenticated();
        let of_peer = |connection: &TrackedConnection| connection.peer == peer && is_silent(connection);
        let count = |which: &dyn Fn(&TrackedConnection) -> bool| all.values().filter(|each| which(each)).count();
        let goes = if !self.proxies.contain(peer) && count(&of_peer) >= unauthenticated.per_address {
            oldest_idle(&all, of_peer)
        } else if count(&is_silent) >= unauthenticated.total {
            oldest_idle(&all, is_silent)
        } else if all.len() >= most {
            Some(oldest_idle(&all, is_silent).or_else(|| oldest_idle(&all, |_| true))?)
        } else {
            None
        };
        if let Some(connection) = goes.and_then(|number| all.remove(&number)) {
            connection.close.cancel();
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let state = ConnectionState { token: None, in_flight: 0, idle_since: Instant::now() };
        let (state, close) = (Mutex::new(state), CancellationToken::new());
        let connection = Arc::new(TrackedConnection { number, peer, table: self.clone(), state, close });
        all.insert(number, Arc::clone(&connection));
        Some(ConnectionHandle(connection))
    }

    fn enforce_token_limit(&self, token: &Arc<str>, newest: u64) {
        let mut all = self.all.lock();
        let is_theirs = |connection: &TrackedConnection| {
            connection.number != newest && connection.state.lock().token.as_ref() == Some(token)
        };
        if all.values().filter(|connection| is_theirs(connection)).count() >= self.bounds.per_token
            && let Some(connection) = oldest_idle(&all, is_theirs).and_then(|oldest| all.remove(&oldest))
        {
            connection.close.cancel();
        }
    }

    fn remove(&self, number: u64) {
        self.all.lock().remove(&number);
    }
}

/// Of these the one that has had nothing to do for longest.
fn oldest_idle(all: &HashMap<u64, Arc<TrackedConnection>>, which: impl Fn(&TrackedConnection) -> bool) -> Option<u64> {
    let idle = all.values().filter(|connection| which(connection)).filter_map(|connection| {
        let state = connection.state.lock();
        (state.in_flight == 0).then_some((state.idle_since, connection.number))
    });
    idle.min().map(|(_, number)| number)
}

/// Serves connections until `stop` is cancelled and the last of them is done.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: ConnectionLimits,
    proxies: TrustedProxies,
    stop: CancellationToken,
) {
    let table = ConnectionTable::new(bounds, proxies);
    let (alive, mut all_gone) = mpsc::channel::<()>(1);
    let accepting = async {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                sleep(ACCEPT_BACKOFF).await;
                continue;
            };
            let Some(connection) = table.admit(peer.ip().to_canonical()) else { continue };
            let (serving, alive) = (serve_connection(stream, router.clone(), connection, stop.clone()), alive.clone());
            // It ends with the client, or soon after `stop`.
            tokio::spawn(async move {
                serving.await;
                drop(alive);
            });
            // Pending requests are served before the next connection is accepted.
            yield_now().await;
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop.cancelled() => {}
    }
    drop(alive);
    let _ = all_gone.recv().await;
}

async fn serve_connection(stream: TcpStream, router: Router, connection: ConnectionHandle, stop: CancellationToken) {
    // An answer goes out in pieces, and none of them waits until the one before is confirmed.
    let _ = stream.set_nodelay(true);
    let ConnectionLimits { head_timeout: head, unauthenticated, .. } = connection.0.table.bounds;
    let service = TrackedService { router: TowerToHyperService::new(router), connection: connection.clone() };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let silent = async {
        loop {
            sleep(unauthenticated.head_timeout).await;
            if connection.0.is_idle_and_unauthenticated() {
                return;
            }
        }
    };
    // How a client ends its connection is its own affair.
    let is_over = tokio::select! {
        _ = served.as_mut() => true,
        () = connection.0.close.cancelled() => true,
        () = silent => true,
        () = stop.cancelled() => false,
    };
    if !is_over {
        served.as_mut().graceful_shutdown();
        let _ = served.await;
    }
    connection.0.table.remove(connection.0.number);
}

/// The router, with the connection of each request.
struct TrackedService {
    router: TowerToHyperService<Router>,
    connection: ConnectionHandle,
}

impl Service<Request<Incoming>> for TrackedService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.connection.clone());
        let guard = self.connection.begin_request();
        let answering = self.router.call(request);
        Box::pin(async move {
            let answer = answering.await?;
            Ok(answer.map(|body| Body::new(TrackedBody { body, _guard: guard })))
        })
    }
}

/// A body whose connection is not idle until it is out.
struct TrackedBody {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use axum::Router;
    use axum::routing::any;
    use ringfence_testkit::patience::PATIENCE;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, timeout};
    use tokio_util::sync::CancellationToken;

    use super::{ConnectionLimits, ConnectionTable, TrustedProxies, UnauthenticatedLimits, serve};

    const HEAD: Duration = Duration::from_millis(300);

    fn bounds(most: usize, head: Duration) -> ConnectionLimits {
        let unauthenticated = UnauthenticatedLimits { total: most, per_address: most, head_timeout: head };
        ConnectionLimits { total: 2 * most, per_token: most, head_timeout: head, unauthenticated }
    }

    async fn server(most: usize) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        server_of(bounds(most, HEAD)).await
    }

    async fn server_of(bounds: ConnectionLimits) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let router = Router::new().route("/", any(async || "here"));
        let serving = tokio::spawn(serve(listener, router, bounds, TrustedProxies::default(), stop.clone()));
        (address, stop, serving)
    }

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"here") {
            assert_ne!(timeout(PATIENCE, stream.read_buf(&mut answer)).await.unwrap().unwrap(), 0);
        }
        String::from_utf8(answer).unwrap()
    }

    /// Sends a byte of a head after another until the server hangs up.
    async fn send_slowly(stream: &mut TcpStream) {
        let mut beat = tokio::time::interval(HEAD / 10);
        for byte in b"GET / HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
            beat.tick().await;
            if stream.write_all(&[*byte]).await.is_err() || is_over(stream) {
                return;
            }
        }
    }

    fn is_over(stream: &TcpStream) -> bool {
        !matches!(stream.try_read(&mut [0; 256]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn a_head_that_comes_too_slowly_is_not_waited_for() {
        let (address, _stop, _serving) = server(8).await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        let started = Instant::now();
        timeout(PATIENCE, send_slowly(&mut slow)).await.unwrap();
        assert!(started.elapsed() >= HEAD - HEAD / 10, "it had its time: {:?}", started.elapsed());
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut rest = Vec::new();
        timeout(PATIENCE, silent.read_to_end(&mut rest)).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn silent_connections_do_not_block_others() {
        // The timeout of silent connections never passes here.
        let (address, _stop, _serving) = server_of(bounds(2, Duration::from_secs(600))).await;
        let mut crowd = Vec::new();
        for _ in 0..8 {
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
        // A second request on the same connection is served too.
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn unauthenticated_connections_are_evicted_first() {
        let mut bounds = bounds(4, HEAD);
        bounds.unauthenticated.per_address = 2;
        let table = ConnectionTable::new(bounds, TrustedProxies(["10.0.0.1".parse().unwrap()].into()));
        let open = |address: &str| table.admit(address.parse().unwrap());
        let known = open("192.0.2.1").unwrap();
        known.authenticate(&"agent".into());
        let asking = open("192.0.2.1").unwrap();
        let request = asking.begin_request();
        let (first, second) = (open("192.0.2.1").unwrap(), open("192.0.2.1").unwrap());
        assert!(!first.0.close.is_cancelled());
        let _third = open("192.0.2.1").unwrap();
        assert!(
            first.0.close.is_cancelled() && !second.0.close.is_cancelled(),
            "the oldest silent one of this address"
        );
        assert!(!asking.0.close.is_cancelled(), "it has spoken");
        drop(request);
        // A proxy forwards for many clients, and there is one limit for all addresses.
        let proxied = [open("10.0.0.1"), open("10.0.0.1"), open("10.0.0.1")].map(Option::unwrap);
        assert!(open("192.0.2.2").is_some());
        assert!(!proxied[2].0.close.is_cancelled() && !known.0.close.is_cancelled());
    }

    #[test]
    fn a_full_table_of_busy_connections_admits_no_other() {
        let table = ConnectionTable::new(bounds(1, HEAD), TrustedProxies::default());
        let open = || table.admit("192.0.2.1".parse().unwrap());
        let requests = [open().unwrap().begin_request(), open().unwrap().begin_request()];
        assert!(open().is_none());
        drop(requests);
        assert!(open().is_some());
    }

    #[test]
    fn a_token_makes_room_among_its_own_connections() {
        let table = ConnectionTable::new(bounds(2, HEAD), TrustedProxies::default());
        let open = |token: &str| {
            let connection = table.admit("192.0.2.1".parse().unwrap()).unwrap();
            connection.authenticate(&token.into());
            connection
        };
        let other = open("other");
        let theirs = [open("busy"), open("busy"), open("busy")];
        assert!(theirs[0].0.close.is_cancelled() && !theirs[1].0.close.is_cancelled());
        assert!(!other.0.close.is_cancelled());
    }

    #[tokio::test]
    async fn a_connection_that_is_kept_does_not_keep_the_server() {
        let (address, stop, serving) = server(2).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        ask(&mut stream).await;
        stop.cancel();
        timeout(HEAD * 10, serving).await.unwrap().unwrap();
    }
}
