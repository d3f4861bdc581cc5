//! HTTP client of providers, with a timeout on every wait.
//!
//! A question goes to the server that a person named and to no other: no proxy of the environment, and no redirect to
//! another origin. Keys are in headers of that server and in no message of ours.
//!
//! Not here: what is asked and what an answer means. Nothing is tried again, but for a connection that was kept and is dead.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use ringfence_kernel::sync::Mutex;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::body_reader::{BodyReader, ResponseParser, StreamProgress};
use super::error::{ProviderError, quote_text};
use super::optional_fields::RejectedRequestFields;
use super::{ModelProvider, ProviderTimeouts, SecretString};
use crate::model::{ModelError, ModelErrorKind, ModelResponse, ResponsePartSink};

/// Most redirects within one origin.
const MAX_REDIRECTS: usize = 3;

/// Most bytes of the body of an error, or of a list of models.
const MAX_ERROR_BYTES: usize = 64 * 1024;
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Time for trailing events once a response is complete: its usage, and the end of the stream.
const TRAILER_TIMEOUT: Duration = Duration::from_secs(2);

/// Time to end the body after the end of the stream. The connection is then reused.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(50);

/// A server of models.
pub(crate) struct ProviderClient {
    base_url: BaseUrl,
    headers: HeaderMap,
    secrets: Vec<SecretString>,
    timeouts: ProviderTimeouts,
    tls: Option<TlsConnector>,
    /// A connection that the last answer left open.
    idle_connection: Mutex<Option<ProviderConnection>>,
}

impl fmt::Display for ProviderClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base_url.fmt(f)
    }
}

/// A request to a server.
pub(crate) struct ProviderHttpRequest {
    method: Method,
    path: String,
    body: Bytes,
}

impl ProviderHttpRequest {
    pub(crate) fn post(path: &str, body: &Value) -> Self {
        Self { method: Method::POST, path: path.to_owned(), body: body.to_string().into() }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: Bytes::new() }
    }
}

impl ProviderClient {
    /// Reads the address and the headers. Nothing is sent yet.
    pub(crate) fn open(provider: &ModelProvider, headers: &[(&str, &SecretString)]) -> Result<Self, ModelError> {
        let base_url = BaseUrl::parse(&provider.base_url)?;
        let tls = if base_url.is_tls { Some(tls(&base_url)?) } else { None };
        let given = provider.headers.iter().map(|(name, value)| (name.as_str(), value));
        let mut map = HeaderMap::new();
        for (name, value) in headers.iter().copied().chain(given) {
            let wrong = || {
                config_error(format!(
                    "the header `{}` cannot be sent: it has a character that is not allowed in a header",
                    quote_text(name)
                ))
            };
            let name: HeaderName = name.parse().map_err(|_| wrong())?;
            let mut value: HeaderValue = value.reveal().parse().map_err(|_| wrong())?;
            value.set_sensitive(true);
            map.insert(name, value);
        }
        let secrets = provider.key.iter().chain(provider.headers.iter().map(|(_, value)| value)).cloned().collect();
        Ok(Self {
            base_url,
            headers: map,
            secrets,
            timeouts: provider.timeouts,
            tls,
            idle_connection: Mutex::new(None),
        })
    }

    pub(crate) fn host(&self) -> &str {
        &self.base_url.host
    }

    /// The path below which everything is.
    pub(crate) fn base(&self) -> &str {
        &self.base_url.path
    }

    /// Asks, and takes the answer in as it comes. A field of `known` that the server refuses is left out of the next body
    /// that `make` gives, and it is asked again.
    pub(crate) async fn request_model<W: ResponseParser>(
        &self,
        path: &str,
        optional: (&RejectedRequestFields, &[&'static str]),
        make: impl Fn() -> (Value, W) + Send,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let (refused, known) = optional;
        let mut left_out = Vec::new();
        loop {
            let (body, wire) = make();
            let question = ProviderHttpRequest::post(path, &body);
            let answer = async {
                let reply = self.send_checked(&question).await?;
                self.read_response(reply, BodyReader::new(wire), parts).await
            };
            match answer.await {
                Ok(mut answer) => {
                    answer.warnings.extend(left_out);
                    return Ok(answer);
                }
                Err(fault) => match refused.drop_refused(&fault, known, &body) {
                    Some(name) => {
                        left_out.push(format!("the server does not accept `{name}`; it is omitted from now on"))
                    }
                    None => return Err(self.error(&question, fault)),
                },
            }
        }
    }

    /// Asks for something small, and lets `judge` look at it.
    pub(crate) async fn check(
        &self,
        question: ProviderHttpRequest,
        judge: impl Fn(&[u8]) -> Result<(), ProviderError> + Send,
    ) -> Result<(), ModelError> {
        let checked = async {
            let mut reply = self.send_checked(&question).await?;
            let body = self.read_prefix(&mut reply, MAX_LIST_BYTES).await;
            judge(&body)
        };
        checked.await.map_err(|fault| self.error(&question, fault))
    }

    /// A reply whose status and encoding are good.
    async fn send_checked(&self, question: &ProviderHttpRequest) -> Result<ProviderHttpResponse, ProviderError> {
        let mut reply = self.send(question, &question.path).await?;
        for _ in 0..MAX_REDIRECTS {
            let Some(path) = self.redirect(&reply.response)? else { break };
            reply = self.send(question, &path).await?;
        }
        let (status, headers) = (reply.response.status(), reply.response.headers().clone());
        if status.is_redirection() {
            return Err(ProviderError::new(ModelErrorKind::NoSuchModel, "too many redirects; check the base URL"));
        }
        if status != StatusCode::OK {
            let body = self.read_prefix(&mut reply, MAX_ERROR_BYTES).await;
            return Err(ProviderError::from_status(status, &headers, &body));
        }
        match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
            // It ignored `accept-encoding`. An encoded body is not decoded, so it cannot expand.
            Some(encoding) if encoding != b"identity" => {
                let encoding = quote_text(&String::from_utf8_lossy(encoding));
                Err(ProviderError::new(
                    ModelErrorKind::Garbled,
                    format!("answered with content encoding `{encoding}`, which was not requested"),
                ))
            }
            _ => Ok(reply),
        }
    }

    /// Target of a redirect within the origin. One to another origin is not followed.
    fn redirect(&self, response: &Response<Incoming>) -> Result<Option<String>, ProviderError> {
        let status = response.status();
        if !status.is_redirection() {
            return Ok(None);
        }
        let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
        let elsewhere = || {
            let to = quote_text(to.split(['?', '#']).next().unwrap_or_default());
            let text = format!(
                "status {}: the server redirects to `{to}`; set the base URL to the final address",
                status.as_u16()
            );
            ProviderError::new(ModelErrorKind::NoSuchModel, text)
        };
        let keeps_the_method = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let to: Uri = to.parse().map_err(|_| elsewhere())?;
        let same_origin = match to.scheme_str() {
            // Two slashes begin the name of another host.
            None => to.authority().is_none() && to.path().starts_with('/') && !to.path().starts_with("//"),
            Some(scheme) => {
                (scheme == "https") == self.base_url.is_tls
                    && to.host() == Some(&self.base_url.host)
                    && to.port_u16().unwrap_or(default_port(self.base_url.is_tls)) == self.base_url.port
            }
        };
        if !keeps_the_method || !same_origin {
            return Err(elsewhere());
        }
        // The target is relative to the origin, not to the base URL.
        let path = to.path_and_query().map_or("/", |path| path.as_str());
        Ok(Some(format!("{ORIGIN}{path}")))
    }

    async fn send(&self, question: &ProviderHttpRequest, path: &str) -> Result<ProviderHttpResponse, ProviderError> {
        let kept = self.idle_connection.lock().take();
        if let Some(line) = kept.filter(|line| !line.sender.is_closed()) {
            // A server closes idle connections. It did not see the request then, so that it is sent again.
            match self.send_over(line, question, path).await {
                Err(fault) if fault.kind == ModelErrorKind::Cut => {}
                other => return other,
            }
        }
        let connecting = timeout(self.timeouts.connect, self.connect()).await;
        let line = connecting.unwrap_or_else(|_| {
            let text = format!("no connection within {}", seconds(self.timeouts.connect));
            Err(ProviderError::new(ModelErrorKind::Unreachable, text))
        })?;
        self.send_over(line, question, path).await
    }

    async fn send_over(
        &self,
        mut line: ProviderConnection,
        question: &ProviderHttpRequest,
        path: &str,
    ) -> Result<ProviderHttpResponse, ProviderError> {
        let asked = Instant::now();
        let mut request = Request::new(Full::new(question.body.clone()));
        *request.method_mut() = question.method.clone();
        *request.uri_mut() = self.base_url.target(path).parse().map_err(|_| {
            ProviderError::new(ModelErrorKind::BadRequest, "the model name or the base URL does not form a valid URL")
        })?;
        *request.headers_mut() = self.headers.clone();
        let plain = |value: &'static str| HeaderValue::from_static(value);
        let host = HeaderValue::from_str(&self.base_url.authority);
        let headers = request.headers_mut();
        headers.insert(header::HOST, host.unwrap_or_else(|_| plain("")));
        headers.insert(header::ACCEPT_ENCODING, plain("identity"));
        headers.insert(header::USER_AGENT, plain(concat!("ringfence/", env!("CARGO_PKG_VERSION"))));
        if question.method == Method::POST {
            headers.insert(header::CONTENT_TYPE, plain("application/json"));
        }
        let sending = async {
            line.sender.ready().await?;
            line.sender.send_request(request).await
        };
        let longest = self.timeouts.answer.unwrap_or(Duration::MAX).min(self.timeouts.first_byte);
        let response = match timeout(longest, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(connection_error(&error)),
            Err(_) => return Err(self.timeout_error(longest)),
        };
        Ok(ProviderHttpResponse { response, connection: line, sent_at: asked })
    }

    async fn read_response<W: ResponseParser>(
        &self,
        reply: ProviderHttpResponse,
        mut intake: BodyReader<W>,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<ModelResponse, ProviderError> {
        let ProviderHttpResponse { response, connection: line, sent_at: asked } = reply;
        let mut body = response.into_body();
        let mut clock = ResponseTimer::new(self.timeouts, asked);
        let cut = loop {
            let deadline = clock.deadline();
            let next = timeout_at(deadline, body.frame()).await.ok();
            // A server that sends without a pause would never time out otherwise.
            match next.filter(|_| Instant::now() < deadline) {
                Some(Some(Ok(frame))) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    match intake.push(&bytes, parts) {
                        Ok(heard) => clock.on_progress(heard, intake.is_finished(), Instant::now()),
                        Err(_) if intake.is_finished() => break None,
                        Err(fault) => return Err(fault),
                    }
                }
                Some(Some(Err(error))) => break Some(connection_error(&error)),
                Some(None) => {
                    self.keep_alive(line);
                    break None;
                }
                None if intake.is_finished() => break None,
                None => {
                    return Err(match self.timeouts.answer.filter(|most| asked.elapsed() >= *most) {
                        Some(most) => ProviderError::new(
                            ModelErrorKind::Stalled,
                            format!("the answer took longer than {} (`answer_timeout`)", seconds(most)),
                        ),
                        None => self.timeout_error(clock.waited(Instant::now())),
                    });
                }
            }
        };
        intake.end(cut, parts)
    }

    /// Reads the beginning of a body. A missing rest is not an error.
    async fn read_prefix(&self, reply: &mut ProviderHttpResponse, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let reading = async {
            while let Some(Ok(frame)) = reply.response.body_mut().frame().await {
                all.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
                if all.len() > most {
                    break;
                }
            }
        };
        // An error has the part of the body that came in time.
        let _ = timeout(self.timeouts.idle, reading).await;
        all.truncate(most);
        all
    }

    async fn connect(&self) -> Result<ProviderConnection, ProviderError> {
        let unreachable = |text: String| ProviderError::new(ModelErrorKind::Unreachable, text);
        let name = self.base_url.host.trim_start_matches('[').trim_end_matches(']');
        let addresses = tokio::net::lookup_host((name, self.base_url.port)).await;
        let addresses: Vec<_> =
            addresses.map_err(|error| unreachable(format!("cannot resolve this host: {error}")))?.collect();
        let share = self.timeouts.connect / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut failed = "the host name has no addresses".to_owned();
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return self.handshake(stream, name).await,
                Ok(Err(error)) => failed = format!("no connection: {error}; is the server running?"),
                Err(_) => failed = "no connection: the host does not respond".to_owned(),
            }
        }
        Err(unreachable(failed))
    }

    async fn handshake(&self, stream: TcpStream, name: &str) -> Result<ProviderConnection, ProviderError> {
        let unreachable = |text: String| ProviderError::new(ModelErrorKind::Unreachable, text);
        // Without it a question may wait for the acknowledgement of its own headers.
        stream.set_nodelay(true).map_err(|error| unreachable(format!("no connection: {error}")))?;
        let Some(tls) = &self.tls else {
            let (sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(|error| connection_error(&error))?;
            return Ok(ProviderConnection { sender, task: tokio::spawn(async { drop(connection.await) }) });
        };
        let name =
            ServerName::try_from(name.to_owned()).map_err(|_| unreachable("TLS: not a valid host name".to_owned()))?;
        let stream =
            tls.connect(name, stream).await.map_err(|error| unreachable(format!("no TLS connection: {error}")))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| connection_error(&error))?;
        Ok(ProviderConnection { sender, task: tokio::spawn(async { drop(connection.await) }) })
    }

    fn keep_alive(&self, line: ProviderConnection) {
        *self.idle_connection.lock() = Some(line);
    }

    fn timeout_error(&self, waited: Duration) -> ProviderError {
        let text = format!(
            "no data received for {}; `first_byte_timeout` or `idle_timeout` may be too short",
            seconds(waited)
        );
        ProviderError::new(ModelErrorKind::Stalled, text)
    }

    /// The error with the URL, and without secrets.
    fn error(&self, question: &ProviderHttpRequest, fault: ProviderError) -> ModelError {
        let message = format!("{} {}{}: {}", question.method, self.base_url, question.path, fault.text);
        let message = self.secrets.iter().fold(message, |message, secret| secret.redact_from(message));
        ModelError { kind: fault.kind, message }
    }
}

/// A connection. Its other half ends with it.
struct ProviderConnection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for ProviderConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct ProviderHttpResponse {
    response: Response<Incoming>,
    connection: ProviderConnection,
    sent_at: Instant,
}

/// Timeouts of a response.
#[derive(Debug)]
struct ResponseTimer {
    timeouts: ProviderTimeouts,
    sent_at: Instant,
    last_byte_at: Instant,
    last_progress_at: Instant,
    begun: bool,
    /// When the answer is taken as it is, once it is whole.
    finish_by: Option<Instant>,
}

impl ResponseTimer {
    fn new(timeouts: ProviderTimeouts, sent_at: Instant) -> Self {
        Self { timeouts, sent_at, last_byte_at: sent_at, last_progress_at: sent_at, begun: false, finish_by: None }
    }

    fn on_progress(&mut self, heard: StreamProgress, is_finished: bool, now: Instant) {
        self.last_byte_at = now;
        self.begun = true;
        if heard >= StreamProgress::Progress {
            self.last_progress_at = now;
        }
        match heard {
            StreamProgress::End => {
                self.finish_by = Some(self.finish_by.unwrap_or(now + CLOSE_TIMEOUT).min(now + CLOSE_TIMEOUT))
            }
            _ if is_finished => self.finish_by = Some(self.finish_by.unwrap_or(now + TRAILER_TIMEOUT)),
            _ => {}
        }
    }

    fn deadline(&self) -> Instant {
        let silence = self.last_byte_at + if self.begun { self.timeouts.idle } else { self.timeouts.first_byte };
        // Signs of life are not waited for without end.
        let longest = self.timeouts.first_byte.max(self.timeouts.idle);
        let whole = self.timeouts.answer.map(|most| self.sent_at + most);
        let silence = silence.min(self.last_progress_at + longest);
        self.finish_by.unwrap_or(whole.map_or(silence, |whole| whole.min(silence)))
    }

    /// Since the answer last went on.
    fn waited(&self, now: Instant) -> Duration {
        now - self.last_progress_at
    }
}

/// Base URL of a server.
struct BaseUrl {
    is_tls: bool,
    host: String,
    port: u16,
    authority: String,
    /// Without a slash at its end.
    path: String,
    query: Option<String>,
}

/// Before a path that is the server's own and not one below the base.
const ORIGIN: &str = "\0";

impl BaseUrl {
    fn parse(url: &str) -> Result<Self, ModelError> {
        let no_url = || config_error("invalid base URL: use one such as `http://localhost:8080/v1`");
        let uri: Uri = url.trim().parse().map_err(|_| no_url())?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(no_url()),
        };
        let authority = uri.authority().ok_or_else(no_url)?;
        if authority.as_str().contains('@') {
            return Err(config_error("the base URL contains a user name or password; set the API key separately"));
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(no_url());
        }
        Ok(Self {
            is_tls,
            host,
            port: authority.port_u16().unwrap_or(default_port(is_tls)),
            authority: authority.as_str().to_owned(),
            path: uri.path().trim_end_matches('/').to_owned(),
            query: uri.query().map(str::to_owned),
        })
    }

    fn target(&self, path: &str) -> String {
        if let Some(whole) = path.strip_prefix(ORIGIN) {
            return whole.to_owned();
        }
        let query = self.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}{path}{query}", self.path)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority, self.path)
    }
}

fn default_port(is_tls: bool) -> u16 {
    if is_tls { 443 } else { 80 }
}

fn tls(base_url: &BaseUrl) -> Result<TlsConnector, ModelError> {
    let unreachable =
        |text: String| ModelError { kind: ModelErrorKind::Unreachable, message: format!("{base_url}: {text}") };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(unreachable(
            "this machine has no root certificates to verify the server; install `ca-certificates`".to_owned(),
        ));
    }
    connector(roots).map_err(|error| unreachable(format!("no TLS: {error}")))
}

fn connector(roots: RootCertStore) -> Result<TlsConnector, tokio_rustls::rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The connection ended, or the response was not HTTP.
fn connection_error(error: &hyper::Error) -> ProviderError {
    let cause = std::error::Error::source(error).map(|cause| format!(" ({cause})")).unwrap_or_default();
    match error.is_parse() {
        true => ProviderError::new(
            ModelErrorKind::Garbled,
            format!("invalid HTTP response: {error}{cause}; is this the URL of a model API?"),
        ),
        false => ProviderError::new(ModelErrorKind::Cut, format!("the connection closed early: {error}{cause}")),
    }
}

fn config_error(text: impl Into<String>) -> ModelError {
    ModelError { kind: ModelErrorKind::BadRequest, message: text.into() }
}

fn seconds(time: Duration) -> String {
    format!("{} s", (time.as_secs_f64() * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::Instant;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring};

    use super::{
        BaseUrl, CLOSE_TIMEOUT, ProviderClient, ProviderHttpRequest, ResponseTimer, TRAILER_TIMEOUT, connector,
    };
    use crate::model::{ModelError, ModelErrorKind};
    use crate::provider::body_reader::StreamProgress;
    use crate::provider::{ModelProvider, ProviderProtocol, ProviderTimeouts};

    /// Asks a server whose certificate is for `name`, as a client that trusts it.
    async fn ask_with_tls(name: &str) -> Result<(), ModelError> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let stream = listener.accept().await.unwrap().0;
            let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
            stream.read_exact(&mut [0; 4]).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await?;
            stream.flush().await
        });
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let provider = ModelProvider {
            kind: ProviderProtocol::OpenAi,
            base_url: format!("http://localhost:{port}/v1"),
            model: "tiny".to_owned(),
            key: None,
            headers: Vec::new(),
            timeouts: ProviderTimeouts::default(),
            stream: false,
        };
        let mut client = ProviderClient::open(&provider, &[]).unwrap();
        client.tls = Some(connector(roots).unwrap());
        let checked = client.check(ProviderHttpRequest::get("/models"), |body| {
            assert_eq!(body, b"hi");
            Ok(())
        });
        let answer = checked.await;
        server.abort();
        answer
    }

    #[tokio::test]
    async fn a_server_is_known_by_its_certificate() {
        assert_eq!(ask_with_tls("localhost").await, Ok(()));
        let error = ask_with_tls("other.example").await.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::Unreachable);
        assert!(error.message.contains("no TLS connection: invalid peer certificate"), "{error}");
    }

    #[test]
    fn a_first_byte_may_take_longer_than_the_next() {
        let (asked, timeouts) = (Instant::now(), ProviderTimeouts::default());
        let second = |count: u64| asked + Duration::from_secs(count);
        let mut clock = ResponseTimer::new(timeouts, asked);
        assert_eq!(clock.deadline(), second(120));
        clock.on_progress(StreamProgress::Progress, false, second(100));
        assert_eq!(clock.deadline(), second(160));
    }

    #[test]
    fn pings_keep_a_connection_open_for_a_limited_time() {
        let (asked, timeouts) = (Instant::now(), ProviderTimeouts::default());
        let second = |count: u64| asked + Duration::from_secs(count);
        let mut clock = ResponseTimer::new(timeouts, asked);
        for at in [10, 50, 90] {
            clock.on_progress(StreamProgress::KeepAlive, false, second(at));
        }
        assert_eq!(clock.deadline(), second(120));
        assert_eq!(clock.waited(second(120)), Duration::from_secs(120));
        clock.on_progress(StreamProgress::Progress, false, second(110));
        clock.on_progress(StreamProgress::KeepAlive, false, second(200));
        assert_eq!(clock.deadline(), second(230));
    }

    #[test]
    fn a_whole_answer_is_soon_left() {
        let (asked, timeouts) = (Instant::now(), ProviderTimeouts::default());
        let mut clock = ResponseTimer::new(timeouts, asked);
        clock.on_progress(StreamProgress::Progress, true, asked);
        assert_eq!(clock.deadline(), asked + TRAILER_TIMEOUT);
        let later = asked + Duration::from_secs(1);
        clock.on_progress(StreamProgress::KeepAlive, true, later);
        assert_eq!(clock.deadline(), asked + TRAILER_TIMEOUT);
        clock.on_progress(StreamProgress::End, true, later);
        assert_eq!(clock.deadline(), later + CLOSE_TIMEOUT);
    }

    #[test]
    fn an_address_is_read_once() {
        let check = |url: &str, shown: &str, target: &str| {
            let base_url = BaseUrl::parse(url).unwrap();
            assert_eq!((base_url.to_string().as_str(), base_url.target("/x").as_str()), (shown, target));
        };
        check("http://localhost:8080/v1/", "http://localhost:8080/v1", "/v1/x");
        check(" https://Host.example ", "https://Host.example", "/x");
        check("http://[::1]:1/a?key=hidden", "http://[::1]:1/a", "/a/x?key=hidden");
        assert_eq!(BaseUrl::parse("https://host").unwrap().port, 443);
        assert_eq!(BaseUrl::parse("http://host").unwrap().port, 80);
    }
}
