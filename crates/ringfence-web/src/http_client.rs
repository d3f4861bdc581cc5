//! HTTP client: one request and its response, without redirects or connection reuse.
//!
//! The response is bounded in every direction: headers, bytes on the wire, bytes after decompression, the time until it
//! begins. The caller's headers are bounded too: none that are about the connection instead of the request.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ringfence_kernel::CallLimits;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connector::WebConnector;
use crate::decompress::{ACCEPT_ENCODING_VALUE, BodyDecoder};
use crate::error::WebError;
use crate::fetch_target::FetchTarget;

/// Value of the header `User-Agent`.
const USER_AGENT: &str = concat!("ringfence/", env!("CARGO_PKG_VERSION"));

/// More header lines than this are not taken.
pub(crate) const MAX_HEADERS: usize = 256;

/// A request to a host.
#[derive(Clone, Debug)]
pub(crate) struct FetchRequest {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Size limits of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchLimits {
    pub(crate) connect_timeout: Duration,
    pub(crate) first_byte_timeout: Duration,
    pub(crate) header_bytes: usize,
    pub(crate) body_bytes: usize,
}

impl FetchLimits {
    pub(crate) fn from_limits(limits: &CallLimits) -> Self {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            connect_timeout: limits.fetch_connect_time,
            first_byte_timeout: limits.fetch_first_byte_time,
            header_bytes: size(limits.fetch_header_bytes),
            body_bytes: size(limits.fetch_bytes),
        }
    }
}

/// The response of a host.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// There was more than may be read.
    pub(crate) truncated: bool,
}

/// Target of a redirect, if the response is one.
pub(crate) fn redirect_location(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let sends_on = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = headers.get(hyper::header::LOCATION).filter(|_| sends_on)?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
}

/// Asks a host, and reads its answer to the end or to the bound. Of one that sends on, only the head is read.
pub(crate) async fn exchange(
    net: &WebConnector,
    target: &FetchTarget,
    ask: &FetchRequest,
    bounds: FetchLimits,
) -> Result<HttpResponse, WebError> {
    let wire = net.open(target, bounds.connect_timeout).await?;
    let broken =
        |cause: hyper::Error| WebError::Protocol { host: target.host().to_string(), cause: hyper_error_text(&cause) };
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_header_size(bounds.header_bytes);
    let (mut sender, connection) = builder.handshake(TokioIo::new(wire)).await.map_err(broken)?;
    // It ends with this call, whatever comes.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request = build_request(target, ask)?;
    let answer = timeout(bounds.first_byte_timeout, sender.send_request(request)).await;
    let answer =
        answer.map_err(|_| WebError::Timeout("waiting for the response", bounds.first_byte_timeout.as_secs_f64()))?;
    let answer = answer.map_err(broken)?;
    if redirect_location(answer.status(), answer.headers()).is_some() {
        let (head, _) = answer.into_parts();
        return Ok(HttpResponse { status: head.status, headers: head.headers, body: Vec::new(), truncated: false });
    }
    read_response(target, answer, bounds.body_bytes).await
}

async fn read_response(
    target: &FetchTarget,
    answer: Response<Incoming>,
    most: usize,
) -> Result<HttpResponse, WebError> {
    let (head, mut body) = answer.into_parts();
    let host = || target.host().to_string();
    let encodings = head.headers.get_all(hyper::header::CONTENT_ENCODING).iter();
    let encodings: Vec<_> = encodings.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let mut decoder =
        BodyDecoder::new(&encodings.join(","), most).map_err(|cause| WebError::Encoding { host: host(), cause })?;
    let mut wire = 0_usize;
    let mut truncated = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|cause| WebError::Protocol { host: host(), cause: hyper_error_text(&cause) })?;
        let Some(bytes) = frame.data_ref() else { continue };
        wire = wire.saturating_add(bytes.len());
        let goes_on =
            decoder.push(bytes).map_err(|cause| WebError::Encoding { host: host(), cause: cause.to_string() })?;
        if !goes_on || wire > most {
            truncated = true;
            break;
        }
    }
    let empty = wire == 0;
    let sink = match decoder.finish() {
        Ok(sink) => sink,
        // The answer to a `HEAD` says how a body would be packed, and has none.
        Err(_) if empty || truncated => crate::decompress::BoundedBuffer::default(),
        Err(cause) => return Err(WebError::Encoding { host: host(), cause: cause.to_string() }),
    };
    let truncated = truncated || sink.truncated;
    Ok(HttpResponse { status: head.status, headers: head.headers, body: sink.bytes, truncated })
}

pub(crate) fn build_request(target: &FetchTarget, ask: &FetchRequest) -> Result<Request<Full<Bytes>>, WebError> {
    let bad = |_| WebError::Url("cannot be sent in a request".to_owned());
    let mut request = Request::new(Full::new(ask.body.clone()));
    *request.method_mut() = ask.method.clone();
    *request.uri_mut() = target.path_and_query().parse().map_err(bad)?;
    let headers = request.headers_mut();
    headers.extend(ask.headers.clone());
    let host = HeaderValue::from_str(&target.host_header()).map_err(|_| WebError::Url("has no host".to_owned()))?;
    headers.insert(hyper::header::HOST, host);
    headers.insert(hyper::header::ACCEPT_ENCODING, HeaderValue::from_static(ACCEPT_ENCODING_VALUE));
    headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    headers.entry(hyper::header::USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT));
    headers.entry(hyper::header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    Ok(request)
}

/// hyper's error text, with its cause.
pub(crate) fn hyper_error_text(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// A header that a caller wants to send, if it may be.
pub(crate) fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let known = HeaderName::try_from(name);
    let known = known
        .map_err(|_| format!("`{}` is not a valid header name", name.escape_debug().take(64).collect::<String>()))?;
    let matches = |entry: &&(&str, &str)| match entry.0.strip_suffix('*') {
        Some(beginning) => known.as_str().starts_with(beginning),
        None => known.as_str() == entry.0,
    };
    if let Some((_, why)) = RESERVED_HEADERS.iter().find(matches) {
        return Err(format!("`{known}` cannot be set: {why}"));
    }
    let value = HeaderValue::try_from(value);
    let value = value.map_err(|_| format!("the value of `{known}` has a character that is not allowed in a header"))?;
    Ok((known, value))
}

/// Headers that are not the caller's to set, and why. A star stands for any ending.
const RESERVED_HEADERS: &[(&str, &str)] = &[
    ("host", "it is taken from the URL"),
    ("content-length", "it is computed from the body"),
    ("transfer-encoding", "it frames the request"),
    ("te", "it is a connection header"),
    ("trailer", "it frames the request"),
    ("connection", "it is a connection header"),
    ("keep-alive", "it is a connection header"),
    ("upgrade", "it upgrades the connection"),
    ("http2-settings", "it upgrades the connection"),
    ("proxy-*", "it is for proxies, and none is used"),
    ("expect", "it delays sending the body"),
    ("accept-encoding", "it is set by the client, which decompresses bodies"),
    ("forwarded", "it claims that a proxy sent the request"),
    ("via", "it claims that a proxy sent the request"),
    ("x-forwarded-*", "it claims that a proxy sent the request"),
    ("x-real-ip", "it claims that a proxy sent the request"),
    ("x-original-*", "it overrides the request target or method"),
    ("x-rewrite-url", "it overrides the request target or method"),
    ("x-http-method*", "it overrides the request target or method"),
    ("x-method-override", "it overrides the request target or method"),
    ("metadata*", "it is required by cloud metadata services"),
    ("x-aws-ec2-metadata-*", "it is required by cloud metadata services"),
];

/// Headers that say who asks: they do not go to another host than they were meant for.
const CREDENTIAL_HEADERS: &[&str] =
    &["authorization", "cookie", "cookie2", "x-api-key", "api-key", "x-auth-token", "x-subscription-token"];

/// Headers that go along to another host too.
const CROSS_ORIGIN_HEADERS: &[&str] = &["accept", "accept-language", "user-agent"];

/// Whether a channel that others hear must not have these.
pub(crate) fn carries_credentials(headers: &HeaderMap) -> bool {
    CREDENTIAL_HEADERS.iter().any(|name| headers.contains_key(*name))
}

impl FetchRequest {
    /// The request for the target of a redirect.
    pub(crate) fn redirected(mut self, status: StatusCode, to_same_origin: bool) -> Self {
        let changes = status == StatusCode::SEE_OTHER
            || matches!(status.as_u16(), 301 | 302) && self.method == Method::POST
            || !to_same_origin;
        if changes && self.method != Method::HEAD {
            self.method = Method::GET;
            self.body = Bytes::new();
            let about_body: Vec<HeaderName> =
                self.headers.keys().filter(|name| name.as_str().starts_with("content-")).cloned().collect();
            for name in about_body {
                self.headers.remove(name);
            }
        }
        if !to_same_origin {
            // Whatever else a caller sent was meant for the first one.
            let others: Vec<HeaderName> =
                self.headers.keys().filter(|name| !CROSS_ORIGIN_HEADERS.contains(&name.as_str())).cloned().collect();
            for name in others {
                self.headers.remove(name);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::parse_header;

    #[test]
    fn connection_headers_cannot_be_set_by_the_caller() {
        for name in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "TE",
            "trailer",
            "Connection",
            "Keep-Alive",
            "Upgrade",
            "HTTP2-Settings",
            "Proxy-Authorization",
            "proxy-connection",
            "Expect",
            "Accept-Encoding",
            "Forwarded",
            "X-Forwarded-For",
            "x-forwarded-host",
            "X-Real-IP",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-HTTP-Method-Override",
            "Metadata-Flavor",
            "Metadata",
            "X-aws-ec2-metadata-token",
        ] {
            assert!(parse_header(name, "x").unwrap_err().contains("cannot be set"), "{name}");
        }
    }

    #[test]
    fn a_header_is_one_line() {
        for (name, value) in [
            ("a", "x\r\nHost: y"),
            ("a", "x\ny"),
            ("a", "x\ry"),
            ("a", "\0"),
            ("a\r\nb", "x"),
            ("a:", "x"),
            ("a b", "x"),
            ("", "x"),
            ("h\u{f6}st", "x"),
        ] {
            assert!(parse_header(name, value).is_err(), "{name:?} {value:?}");
        }
        assert!(parse_header("Authorization", "Bearer x").is_ok());
        assert!(parse_header("X-Anything", "\u{fc}ber").is_ok());
    }
}
