//! HTTP/1.1 exchange: one request and its response on a connection, within limits.
//!
//! The response is bounded in every direction: header lines and their bytes, the time until it begins, bytes of the body on
//! the wire and after decompression. Dropping an exchange closes its connection, so that a caller cancels by dropping.
//!
//! Not here: redirects (each is an exchange of its own, which the caller decides about) and retries.

use std::error::Error as _;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::decompress::{ACCEPT_ENCODING_VALUE, BodyDecoder, BoundedBuffer};
use crate::dial::NetStream;

/// Value of the header `User-Agent`.
const USER_AGENT: &str = concat!("ringfence/", env!("CARGO_PKG_VERSION"));

/// Most header lines of a response.
const MAX_HEADER_LINES: usize = 256;

/// Most bytes of a response header, where a caller has no limit of its own.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

/// A request as it is sent.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// Value of the header `Host`.
    pub host: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub coding: BodyCoding,
    /// Whether the connection is to serve another request.
    pub keep_alive: bool,
}

/// Content codings that a response may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyCoding {
    /// None: the body is read as it comes.
    Identity,
    /// One of those that `ResponseStream::read_body` decodes.
    Compressed,
}

/// Failed exchange.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("the path cannot be sent")]
    Target,
    #[error("the host cannot be sent")]
    Host,
    #[error("no response in time")]
    Timeout,
    /// The connection broke, or the response was not HTTP.
    #[error("{}", http_error_text(.0))]
    Http(hyper::Error),
    #[error("{0}")]
    Encoding(String),
}

/// A connection for one request at a time. It is closed when this is dropped.
#[derive(Debug)]
pub struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl HttpConnection {
    /// Speaks HTTP over a stream. `header_bytes` limits the header of each response.
    pub async fn open(stream: Box<dyn NetStream>, header_bytes: usize) -> Result<Self, ExchangeError> {
        let opened = client(header_bytes).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(ExchangeError::Http)?;
        Ok(Self { sender, task: tokio::spawn(async { drop(connection.await) }) })
    }

    /// Whether the server has closed it.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a request. The response must begin within this time.
    pub async fn send(mut self, request: HttpRequest, first_byte: Duration) -> Result<ResponseStream, ExchangeError> {
        let request = request.build()?;
        let sending = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let response = timeout(first_byte, sending).await.map_err(|_| ExchangeError::Timeout)?;
        let (head, body) = response.map_err(ExchangeError::Http)?.into_parts();
        Ok(ResponseStream { status: head.status, headers: head.headers, body, connection: self })
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A response whose body is still coming.
#[derive(Debug)]
pub struct ResponseStream {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    connection: HttpConnection,
}

impl ResponseStream {
    /// The next bytes of the body, as they are on the wire. Nothing at its end.
    pub async fn next_bytes(&mut self) -> Result<Option<Bytes>, ExchangeError> {
        while let Some(frame) = self.body.frame().await {
            // A frame without data is a trailer.
            if let Ok(bytes) = frame.map_err(ExchangeError::Http)?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// The beginning of the body, as far as it came in this time. A missing rest is not an error.
    pub async fn read_prefix(&mut self, most: usize, within: Duration) -> Vec<u8> {
        let mut all = Vec::new();
        let reading = async {
            while let Ok(Some(bytes)) = self.next_bytes().await {
                all.extend_from_slice(&bytes);
                if all.len() > most {
                    break;
                }
            }
        };
        // The bytes that came in time are kept.
        let _ = timeout(within, reading).await;
        all.truncate(most);
        all
    }

    /// Reads and decodes the body, to its end or to the limit.
    pub async fn read_body(mut self, most: usize) -> Result<HttpResponse, ExchangeError> {
        let encodings = self.headers.get_all(header::CONTENT_ENCODING).iter();
        let encodings: Vec<_> = encodings.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        let mut decoder = BodyDecoder::new(&encodings.join(","), most).map_err(ExchangeError::Encoding)?;
        let encoding = |cause: std::io::Error| ExchangeError::Encoding(cause.to_string());
        let mut wire = 0_usize;
        let mut truncated = false;
        while let Some(bytes) = self.next_bytes().await? {
            wire = wire.saturating_add(bytes.len());
            let goes_on = decoder.push(&bytes).map_err(encoding)?;
            if !goes_on || wire > most {
                truncated = true;
                break;
            }
        }
        let sink = match decoder.finish() {
            Ok(sink) => sink,
            // The response to a `HEAD` says how a body would be encoded, and has none.
            Err(_) if wire == 0 || truncated => BoundedBuffer::default(),
            Err(cause) => return Err(encoding(cause)),
        };
        let truncated = truncated || sink.truncated;
        Ok(HttpResponse { status: self.status, headers: self.headers, body: sink.bytes, truncated })
    }

    /// The connection, for the next request. The body must have been read to its end.
    pub fn into_connection(self) -> HttpConnection {
        self.connection
    }
}

/// A response that was read.
#[derive(Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// There was more than may be read.
    pub truncated: bool,
}

impl HttpRequest {
    fn build(self) -> Result<Request<Full<Bytes>>, ExchangeError> {
        let mut request = Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.target.parse().map_err(|_| ExchangeError::Target)?;
        let host = HeaderValue::try_from(self.host).map_err(|_| ExchangeError::Host)?;
        let coding = match self.coding {
            BodyCoding::Identity => "identity",
            BodyCoding::Compressed => ACCEPT_ENCODING_VALUE,
        };
        let mut headers = self.headers;
        headers.insert(header::HOST, host);
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(coding));
        headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT));
        if !self.keep_alive {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// Passes on the request of another client, and the response as it comes. Their bodies and their time are up to the two
/// ends: the caller drops the runtime with the client.
pub async fn forward<B>(stream: TcpStream, request: Request<B>) -> Result<Response<Incoming>, hyper::Error>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (mut sender, connection) = client(MAX_HEADER_BYTES).handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

pub(crate) fn client(header_bytes: usize) -> http1::Builder {
    let mut client = http1::Builder::new();
    client.max_headers(MAX_HEADER_LINES).max_header_size(header_bytes);
    client
}

/// hyper's error text, with its cause.
fn http_error_text(error: &hyper::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::{BodyCoding, ExchangeError, HttpConnection, HttpRequest, MAX_HEADER_BYTES, ResponseStream};
    use crate::{Bytes, HeaderMap, Method};

    const WITHIN: Duration = Duration::from_secs(60);

    fn request(target: &str) -> HttpRequest {
        HttpRequest {
            method: Method::GET,
            target: target.to_owned(),
            host: "docs.rs".to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            coding: BodyCoding::Compressed,
            keep_alive: true,
        }
    }

    /// A connection, and the end of its server.
    async fn connect() -> (HttpConnection, DuplexStream) {
        let (ours, theirs) = duplex(1 << 20);
        (HttpConnection::open(Box::new(ours), MAX_HEADER_BYTES).await.unwrap(), theirs)
    }

    /// The response to a request, from a server that sends these bytes after it.
    async fn respond_over(
        connection: HttpConnection,
        server: &mut DuplexStream,
        bytes: &str,
    ) -> Result<ResponseStream, ExchangeError> {
        let serve = async {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(server.read_u8().await.unwrap());
            }
            server.write_all(bytes.as_bytes()).await.unwrap();
        };
        tokio::join!(connection.send(request("/"), WITHIN), serve).0
    }

    /// The same, with the end of the server, which keeps the connection open.
    async fn respond(bytes: &str) -> Result<(ResponseStream, DuplexStream), ExchangeError> {
        let (connection, mut server) = connect().await;
        Ok((respond_over(connection, &mut server, bytes).await?, server))
    }

    #[tokio::test]
    async fn a_header_is_bounded_in_lines_and_bytes() {
        let with_lines =
            |count: usize| format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "a: b\r\n".repeat(count));
        let with_bytes =
            |count: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\na: {}\r\n\r\n", "b".repeat(count));
        assert!(respond(&with_lines(250)).await.is_ok());
        assert!(matches!(respond(&with_lines(260)).await, Err(ExchangeError::Http(_))));
        assert!(respond(&with_bytes(60 << 10)).await.is_ok());
        assert!(matches!(respond(&with_bytes(70 << 10)).await, Err(ExchangeError::Http(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_has_to_begin_in_time() {
        let (connection, _server) = connect().await;
        assert!(matches!(connection.send(request("/"), WITHIN).await, Err(ExchangeError::Timeout)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_prefix_is_what_came_in_time_and_within_the_limit() {
        let (mut response, _server) = respond("HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nhello").await.unwrap();
        assert_eq!(response.read_prefix(100, WITHIN).await, b"hello");
        let (mut response, _server) = respond("HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
        assert_eq!(response.read_prefix(4, WITHIN).await, b"hell");
    }

    #[tokio::test]
    async fn a_body_is_read_to_its_limit() {
        let read = async |most| {
            let (response, _server) = respond("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
            let response = response.read_body(most).await.unwrap();
            (response.body, response.truncated)
        };
        assert_eq!(read(5).await, (b"hello".to_vec(), false));
        assert_eq!(read(4).await, (b"hell".to_vec(), true));
    }

    #[tokio::test]
    async fn a_connection_serves_the_next_request_and_ends_with_its_owner() {
        let (mut response, mut server) = respond("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na").await.unwrap();
        assert_eq!(response.next_bytes().await.unwrap().unwrap(), "a");
        assert!(response.next_bytes().await.unwrap().is_none());
        let next = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb";
        let response = respond_over(response.into_connection(), &mut server, next).await.unwrap();
        assert_eq!(response.read_body(10).await.unwrap().body, b"b");
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_request_has_the_headers_of_its_client() {
        let (connection, mut server) = connect().await;
        let mut asked = vec![0; 1024];
        let request = HttpRequest { keep_alive: false, ..request("/a?b") };
        let sent = connection.send(request, WITHIN);
        let read = tokio::select! {
            read = server.read(&mut asked) => read.unwrap(),
            response = sent => panic!("{response:?}"),
        };
        assert_eq!(
            String::from_utf8_lossy(&asked[..read]),
            format!(
                "GET /a?b HTTP/1.1\r\nhost: docs.rs\r\naccept-encoding: gzip, br, zstd\r\nuser-agent: {}\r\nconnection: close\r\n\r\n",
                super::USER_AGENT
            )
        );
    }

    #[tokio::test]
    async fn a_request_that_would_be_more_than_one_line_is_not_sent() {
        for (target, host) in [("/a b", "docs.rs"), ("/a\r\nb", "docs.rs"), ("/", "docs.rs\r\na: b")] {
            let (connection, _server) = connect().await;
            let sent = connection.send(HttpRequest { host: host.to_owned(), ..request(target) }, WITHIN).await;
            assert!(matches!(sent, Err(ExchangeError::Target | ExchangeError::Host)), "{target:?} {host:?}");
        }
    }
}
