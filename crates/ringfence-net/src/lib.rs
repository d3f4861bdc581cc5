//! Outgoing connections: dial, TLS, HTTP exchange and relay, server-sent events.
//!
//! Every connection of Ringfence to another host is opened by a `Dialer`, to an address that the caller's `AddressPolicy`
//! has passed. Every HTTP response is bounded in its header, its body and its time.
//!
//! Not here: URLs, redirects and which hosts may be reached. Callers decide those, before and between exchanges.

mod address_policy;
mod decompress;
mod dial;
mod exchange;
#[cfg(test)]
mod fuzz;
mod relay;
mod sse;
mod tls;
mod tls_server;

pub use address_policy::{AddressPolicy, AddressRefusal, AnyAddress, check_public};
pub use decompress::{ContentDecoder, inflate_first};
pub use dial::{DialError, DialTarget, Dialer, NameResolver, NetStream, SystemResolver, TargetHost};
pub use exchange::{
    BodyCoding, ExchangeError, HttpConnection, HttpRequest, HttpResponse, MAX_HEADER_BYTES, ResponseStream, forward,
};
pub use hyper::body::Bytes;
pub use hyper::{HeaderMap, Method, StatusCode, Uri, header};
pub use relay::{RelayConnection, RelayError};
pub use sse::{SseDecoder, SseEvent, SseEventTooLong};
pub use tls::{HttpProtocol, TlsSetupError, TlsTrust};
pub use tls_server::TlsServer;
