//! HTTP client of providers, with a timeout on every wait.
//!
//! A question goes to the server that a person named and to no other: no proxy of the environment, and no redirect to
//! another origin. Keys are in headers of that server and in no message of ours.
//!
//! Not here: what is asked and what an answer means. Nothing is tried again, but for a connection that was kept and is dead.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use ringfence_kernel::sync::Mutex;
use ringfence_net::header::{self, HeaderMap, HeaderName, HeaderValue};
use ringfence_net::{
    AnyAddress, BodyCoding, Bytes, DialError, DialTarget, Dialer, ExchangeError, HttpConnection, HttpRequest,
    MAX_HEADER_BYTES, Method, ResponseStream, StatusCode, TargetHost, TlsSetupError, Uri,
};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

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
    dialer: Dialer,
    /// A connection that the last answer left open.
    idle_connection: Mutex<Option<HttpConnection>>,
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
        let dialer = Dialer::with_system_defaults();
        if base_url.is_tls {
            dialer.load_tls().map_err(|error| {
                let message = format!("{base_url}: {}", tls_setup_text(&error));
                ModelError { kind: ModelErrorKind::Unreachable, message }
            })?;
        }
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
            dialer,
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
            let body = reply.response.read_prefix(MAX_LIST_BYTES, self.timeouts.idle).await;
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
        let (status, headers) = (reply.response.status, reply.response.headers.clone());
        if status.is_redirection() {
            return Err(ProviderError::new(ModelErrorKind::NoSuchModel, "too many redirects; check the base URL"));
        }
        if status != StatusCode::OK {
            let body = reply.response.read_prefix(MAX_ERROR_BYTES, self.timeouts.idle).await;
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
    fn redirect(&self, response: &ResponseStream) -> Result<Option<String>, ProviderError> {
        let status = response.status;
        if !status.is_redirection() {
            return Ok(None);
        }
        let to = response.headers.get(header::LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
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
        if let Some(line) = kept.filter(|line| !line.is_closed()) {
            // A server closes idle connections. It did not see the request then, so that it is sent again.
            match self.send_over(line, question, path).await {
                Err(fault) if fault.kind == ModelErrorKind::Cut => {}
                other => return other,
            }
        }
        let line = self.connect().await?;
        self.send_over(line, question, path).await
    }

    async fn send_over(
        &self,
        line: HttpConnection,
        question: &ProviderHttpRequest,
        path: &str,
    ) -> Result<ProviderHttpResponse, ProviderError> {
        let asked = Instant::now();
        let mut headers = self.headers.clone();
        // Settings do not replace these.
        headers.remove(header::USER_AGENT);
        if question.method == Method::POST {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let request = HttpRequest {
            method: question.method.clone(),
            target: self.base_url.target(path),
            host: self.base_url.authority.clone(),
            headers,
            body: question.body.clone(),
            coding: BodyCoding::Identity,
            keep_alive: true,
        };
        let longest = self.timeouts.answer.unwrap_or(Duration::MAX).min(self.timeouts.first_byte);
        match line.send(request, longest).await {
            Ok(response) => Ok(ProviderHttpResponse { response, sent_at: asked }),
            Err(ExchangeError::Timeout) => Err(self.timeout_error(longest)),
            Err(error) => Err(exchange_error(&error)),
        }
    }

    async fn read_response<W: ResponseParser>(
        &self,
        reply: ProviderHttpResponse,
        mut intake: BodyReader<W>,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<ModelResponse, ProviderError> {
        let ProviderHttpResponse { mut response, sent_at: asked } = reply;
        let mut clock = ResponseTimer::new(self.timeouts, asked);
        let cut = loop {
            let deadline = clock.deadline();
            let next = timeout_at(deadline, response.next_bytes()).await.ok();
            // A server that sends without a pause would never time out otherwise.
            match next.filter(|_| Instant::now() < deadline) {
                Some(Ok(Some(bytes))) => match intake.push(&bytes, parts) {
                    Ok(heard) => clock.on_progress(heard, intake.is_finished(), Instant::now()),
                    Err(_) if intake.is_finished() => break None,
                    Err(fault) => return Err(fault),
                },
                Some(Err(error)) => break Some(exchange_error(&error)),
                Some(Ok(None)) => {
                    self.keep_alive(response.into_connection());
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

    /// A connection to the server, whatever its address: a person named it.
    async fn connect(&self) -> Result<HttpConnection, ProviderError> {
        let BaseUrl { dial_host, port, is_tls, .. } = &self.base_url;
        let target = DialTarget { host: dial_host, port: *port, policy: &AnyAddress, is_local: true };
        let stream = self.dialer.connect(target, *is_tls, self.timeouts.connect).await;
        let stream = stream.map_err(|error| {
            let text = match error {
                DialError::Resolve(cause) => format!("cannot resolve this host: {cause}"),
                DialError::NoAddresses => "the host name has no addresses".to_owned(),
                DialError::Connect(cause) => format!("no connection: {cause}; is the server running?"),
                DialError::Timeout => format!("no connection within {}", seconds(self.timeouts.connect)),
                DialError::TlsSetup(cause) => tls_setup_text(&cause),
                DialError::Tls(cause) => format!("no TLS connection: {cause}"),
                DialError::NoResponse | DialError::WrongPeer | DialError::Refused(_) => {
                    format!("no connection: {error}")
                }
            };
            ProviderError::new(ModelErrorKind::Unreachable, text)
        })?;
        HttpConnection::open(stream, MAX_HEADER_BYTES).await.map_err(|error| exchange_error(&error))
    }

    fn keep_alive(&self, line: HttpConnection) {
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

struct ProviderHttpResponse {
    response: ResponseStream,
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
    dial_host: TargetHost,
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
            dial_host: TargetHost::from_authority(&host),
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

fn tls_setup_text(error: &TlsSetupError) -> String {
    match error {
        TlsSetupError::NoRoots => {
            "this machine has no root certificates to verify the server; install `ca-certificates`".to_owned()
        }
        TlsSetupError::Config(cause) => format!("no TLS: {cause}"),
    }
}

/// The connection ended, the response was not HTTP, or the request cannot be sent.
fn exchange_error(error: &ExchangeError) -> ProviderError {
    let ExchangeError::Http(http) = error else {
        let text = "the model name or the base URL does not form a valid URL";
        return ProviderError::new(ModelErrorKind::BadRequest, text);
    };
    let cause = http.source().map(|cause| format!(" ({cause})")).unwrap_or_default();
    match http.is_parse() {
        true => ProviderError::new(
            ModelErrorKind::Garbled,
            format!("invalid HTTP response: {http}{cause}; is this the URL of a model API?"),
        ),
        false => ProviderError::new(ModelErrorKind::Cut, format!("the connection closed early: {http}{cause}")),
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

    use ringfence_net::{Dialer, SystemResolver, TlsTrust};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::Instant;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::rustls::{ServerConfig, crypto::ring};

    use super::{BaseUrl, CLOSE_TIMEOUT, ProviderClient, ProviderHttpRequest, ResponseTimer, TRAILER_TIMEOUT};
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
        client.dialer = Dialer::new(Arc::new(SystemResolver), TlsTrust::Only(vec![certificate]));
        client.base_url.is_tls = true;
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
