//! HTTP relay: requests of another client, sent on over HTTP/1.1 or HTTP/2 with bodies that stream.
//!
//! A request that the server never began to read comes back to the caller, who may send it over a new connection: a
//! server may close an idle connection at any moment.
//!
//! Not here: what is sent, and limits on bodies and time. The two ends decide those.

use std::error::Error;

use hyper::body::{Body, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::dial::NetStream;
use crate::exchange::{MAX_HEADER_BYTES, client};
use crate::tls::HttpProtocol;

/// Bytes that a server may send on a stream of HTTP/2 before they are taken.
const STREAM_WINDOW: u32 = 1 << 20;

/// A connection that requests are relayed over: one at a time in HTTP/1.1, many in HTTP/2.
#[derive(Debug)]
pub enum RelayConnection<B> {
    /// For one request at a time.
    Http1(http1::SendRequest<B>),
    /// For many.
    Http2(http2::SendRequest<B>),
}

/// Failed relay of a request.
#[derive(Debug)]
pub struct RelayError<B> {
    /// The request, if the server has not begun to read it.
    pub unsent: Option<Request<B>>,
    /// The failure.
    pub cause: hyper::Error,
}

impl<B> RelayConnection<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    /// Speaks the protocol over a stream. The connection ends with its last request once this is dropped.
    pub async fn open(stream: Box<dyn NetStream>, protocol: HttpProtocol) -> Result<Self, hyper::Error> {
        let stream = TokioIo::new(stream);
        match protocol {
            HttpProtocol::Http1 => {
                let (sender, connection) = client(MAX_HEADER_BYTES).handshake(stream).await?;
                tokio::spawn(connection.with_upgrades());
                Ok(Self::Http1(sender))
            }
            HttpProtocol::Http2 => {
                let mut client = http2::Builder::new(TokioExecutor::new());
                client.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(4 * STREAM_WINDOW);
                client.max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX));
                let (sender, connection) = client.handshake(stream).await?;
                tokio::spawn(connection);
                Ok(Self::Http2(sender))
            }
        }
    }

    /// The protocol of the connection.
    pub fn protocol(&self) -> HttpProtocol {
        match self {
            Self::Http1(_) => HttpProtocol::Http1,
            Self::Http2(_) => HttpProtocol::Http2,
        }
    }

    /// Whether a request can be sent now.
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_ready(),
            Self::Http2(sender) => sender.is_ready(),
        }
    }

    /// Whether the server has closed it.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }

    /// Another handle to the same connection, where the protocol has many requests at once.
    pub fn share(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(sender) => Some(Self::Http2(sender.clone())),
        }
    }

    /// Sends a request, and returns the head of the response with its body still to come.
    pub async fn send(&mut self, request: Request<B>) -> Result<Response<Incoming>, RelayError<B>> {
        let unsent = |mut error: TrySendError<Request<B>>| {
            let unsent = error.take_message();
            RelayError { unsent, cause: error.into_error() }
        };
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await.map_err(unsent),
            Self::Http2(sender) => sender.try_send_request(request).await.map_err(unsent),
        }
    }
}
