//! HTTP requests of web tools: one request and its response, without redirects or connection reuse.
//!
//! The limits of the call bound the response (`ringfence-net`). The caller's headers are bounded too: none that are about the
//! connection instead of the request.

use std::time::Duration;

use ringfence_kernel::CallLimits;
use ringfence_net::header::{self, HeaderMap, HeaderName, HeaderValue};
use ringfence_net::{BodyCoding, Bytes, HttpConnection, HttpRequest, HttpResponse, Method, ResponseStream, StatusCode};

use crate::connector::WebConnector;
use crate::error::WebError;
use crate::fetch_target::FetchTarget;

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

/// Target of a redirect, if the response is one.
pub(crate) fn redirect_location(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let sends_on = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = headers.get(header::LOCATION).filter(|_| sends_on)?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
}

/// Asks a host, and reads its answer to the end or to the bound. Of one that sends on, only the head is read.
pub(crate) async fn exchange(
    net: &WebConnector,
    target: &FetchTarget,
    ask: &FetchRequest,
    bounds: FetchLimits,
) -> Result<HttpResponse, WebError> {
    let failed = |error| WebError::from_exchange(error, target, bounds.first_byte_timeout);
    let wire = net.open(target, bounds.connect_timeout).await?;
    let connection = HttpConnection::open(wire, bounds.header_bytes).await.map_err(failed)?;
    let request = ask.to_http(target, BodyCoding::Compressed);
    let answer = connection.send(request, bounds.first_byte_timeout).await.map_err(failed)?;
    if redirect_location(answer.status, &answer.headers).is_some() {
        let ResponseStream { status, headers, .. } = answer;
        return Ok(HttpResponse { status, headers, body: Vec::new(), truncated: false });
    }
    answer.read_body(bounds.body_bytes).await.map_err(failed)
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
    /// The request as it is sent to a target.
    pub(crate) fn to_http(&self, target: &FetchTarget, coding: BodyCoding) -> HttpRequest {
        let mut headers = self.headers.clone();
        headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        HttpRequest {
            method: self.method.clone(),
            target: target.path_and_query().to_owned(),
            host: target.host_header(),
            headers,
            body: self.body.clone(),
            coding,
            keep_alive: false,
        }
    }

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
