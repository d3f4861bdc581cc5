//! The connections of `ringfence serve`: at most so many, and each has so long to say what it wants.
//!
//! Whoever sends the head of a request a byte at a time, or nothing at all, would otherwise hold a place for ever. So would
//! a client that keeps a connection and has nothing to ask: it makes a new one.
//!
//! Not here: who is let in, and how long a body may take (`http.rs`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// How long nobody is let in when the system has no more to give.
const PAUSE: Duration = Duration::from_millis(200);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) most: u32,
    /// From the opening, or from the last answer, to the end of the next head.
    pub(super) head: Duration,
}

/// Serves connections until `stop` is told, and the last of them is done.
pub(super) async fn serve(listener: TcpListener, router: Router, bounds: Bounds, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(bounds.most as usize));
    let accepting = async {
        // The semaphore is never closed, so this only ever waits.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let talk = talk(stream, router.clone(), bounds.head, stop.clone());
            // It ends with the client, or soon after `stop`.
            tokio::spawn(async move {
                talk.await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop.cancelled() => {}
    }
    let _ = places.acquire_many(bounds.most).await;
}

async fn talk(stream: TcpStream, router: Router, head: Duration, stop: CancellationToken) {
    // An answer goes out in pieces, and none of them waits until the one before is confirmed.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // How a client ends its connection is its own affair.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use axum::Router;
    use axum::routing::any;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, timeout};
    use tokio_util::sync::CancellationToken;

    use super::{Bounds, serve};

    const HEAD: Duration = Duration::from_millis(300);
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn server(most: u32) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let router = Router::new().route("/", any(async || "here"));
        let serving = tokio::spawn(serve(listener, router, Bounds { most, head: HEAD }, stop.clone()));
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
    async fn dribble(stream: &mut TcpStream) {
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
        timeout(PATIENCE, dribble(&mut slow)).await.unwrap();
        assert!(started.elapsed() >= HEAD - HEAD / 10, "it had its time: {:?}", started.elapsed());
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut rest = Vec::new();
        timeout(PATIENCE, silent.read_to_end(&mut rest)).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_crowd_that_says_nothing_keeps_others_out_only_for_so_long() {
        let (address, _stop, _serving) = server(2).await;
        let _crowd = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
        // A second request on the same connection is served too.
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
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
