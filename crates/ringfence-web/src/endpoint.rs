//! Configured HTTP endpoints: requests of ours, not of agents.
//!
//! A message goes to exactly that URL, whatever its address, and redirects are not followed. The caller takes the
//! response piece by piece, and ends it when it has enough; the time is bounded here.
//!
//! Not here: the contents of messages.

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::ToolError;
use ringfence_net::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use ringfence_net::{BodyCoding, Bytes, HttpConnection, MAX_HEADER_BYTES, Method, StatusCode};

use crate::blocking::block_on_checked;
use crate::connector::WebConnector;
use crate::error::WebError;
use crate::fetch_target::FetchTarget;
use crate::http_client::{FetchRequest, parse_header, redirect_location};
use crate::search_engine::WebApiKey;

/// A configured HTTP endpoint.
#[derive(Debug)]
pub struct HttpEndpoint {
    net: Arc<WebConnector>,
    target: FetchTarget,
    key: Option<WebApiKey>,
}

/// One message.
#[derive(Debug)]
pub struct EndpointRequest<'a> {
    pub body: Vec<u8>,
    pub headers: &'a [(&'a str, &'a str)],
    /// Time limit of the whole exchange.
    pub timeout: Duration,
}

/// Status and headers of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponseHead {
    pub status: u16,
    pub content_type: String,
    /// The header that was asked for, if it was there.
    pub requested_header: Option<String>,
}

impl HttpEndpoint {
    /// Reads the URL. Nothing is sent yet. Fails with what is wrong with it.
    pub fn new(net: &WebConnector, url: &str, key: Option<WebApiKey>) -> Result<Self, String> {
        let parsed = url::Url::parse(url).map_err(|problem| problem.to_string())?;
        let net = net.allowing(&parsed);
        let target = FetchTarget::parse(url, net.private_hosts()).map_err(|problem| problem.to_string())?;
        Ok(Self { net: Arc::new(net), target, key })
    }

    /// Posts a message. `take` gets the head and each piece of the body, and is true when it has enough. `check` fails
    /// once the call is cancelled.
    pub fn post(
        &self,
        message: &EndpointRequest<'_>,
        wanted: &str,
        check: impl Fn() -> Result<(), ToolError>,
        take: impl FnMut(&HttpResponseHead, &[u8]) -> bool,
    ) -> Result<HttpResponseHead, ToolError> {
        Ok(block_on_checked(check, message.timeout, self.exchange(message, wanted, take))?)
    }

    async fn exchange(
        &self,
        message: &EndpointRequest<'_>,
        wanted: &str,
        mut take: impl FnMut(&HttpResponseHead, &[u8]) -> bool,
    ) -> Result<HttpResponseHead, WebError> {
        let failed = |error| WebError::from_exchange(error, &self.target, message.timeout);
        let wire = self.net.open(&self.target, message.timeout).await?;
        let connection = HttpConnection::open(wire, MAX_HEADER_BYTES).await.map_err(failed)?;
        let request = self.build_request(message)?.to_http(&self.target, BodyCoding::Identity);
        let mut answer = connection.send(request, message.timeout).await.map_err(failed)?;
        if redirect_location(answer.status, &answer.headers).is_some() || answer.status == StatusCode::NOT_MODIFIED {
            return Err(WebError::Backend(format!("`{}` redirects to another URL", self.target.host())));
        }
        let text = |name: &str| answer.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into());
        let content_type = text(CONTENT_TYPE.as_str()).unwrap_or_default();
        let head = HttpResponseHead { status: answer.status.as_u16(), content_type, requested_header: text(wanted) };
        while let Some(bytes) = answer.next_bytes().await.map_err(failed)? {
            if take(&head, &bytes) {
                break;
            }
        }
        Ok(head)
    }

    fn build_request(&self, message: &EndpointRequest<'_>) -> Result<FetchRequest, WebError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if let Some(key) = &self.key {
            let wrong = |_| WebError::Backend("the key has a character that is not allowed in a header".to_owned());
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.0)).map_err(wrong)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        for (name, value) in message.headers {
            let (name, value) = parse_header(name, value).map_err(WebError::Backend)?;
            headers.insert(name, value);
        }
        Ok(FetchRequest { method: Method::POST, headers, body: Bytes::from(message.body.clone()) })
    }
}
