//! TLS interceptor: ends the TLS of programs outside of the jail, for the hosts that have a credential or a path rule.
//!
//! The secret of a credential is put into requests here, so that it is never inside. Answers, and frames of WebSockets, are looked at
//! before they pass. Other hosts are not intercepted: their connections stay encrypted from end to end.
//!
//! Not here: which hosts may be reached (`egress_proxy.rs`), what a request may be (`request_guard.rs`), and the
//! exchange with the host (`intercepted_connection.rs`).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ringfence_net::{HttpProtocol, MAX_HEADER_BYTES, NetStream, TargetHost, TlsServer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::connector::WebConnector;
use crate::credential::{BoundHost, CredentialBinding, CredentialError, HostPathRule, check_bindings};
use crate::fetch_target::FetchTarget;
use crate::intercepted_connection::InterceptedConnection;
use crate::leak_scanner::LeakPatterns;
use crate::oauth_login::{LoginStoreError, OAuthLogin, OAuthLoginBinding, OAuthPlaceholders};
use crate::request_body::GuardedBody;
use crate::request_guard::{HostGuard, RequestRefusal, placeholder_header};
use crate::run_ca::{RunCaError, RunCertificateAuthority};

/// Time for the TLS handshake of a program.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the head of the next request on a connection of HTTP/1.1.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests at once on a connection of HTTP/2.
const MAX_STREAMS: u32 = 64;

/// Bytes that a program may send on a stream of HTTP/2 before they are taken.
const STREAM_WINDOW: u32 = 1 << 20;

/// Resolves when a request is on record. False: it cannot be recorded, and is not sent.
pub type RequestRecorded<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// Resolves when a person has decided about a request. An error is the reason for which it is not sent.
pub type RequestDecision<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// A request that a person is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestQuestion {
    /// Method, path, and what it changes: what the answer is about.
    pub details: String,
    /// One line each.
    pub losses: Vec<String>,
    /// The same.
    pub changes: Vec<String>,
}

/// Told what happens on intercepted connections. No text contains a secret or a placeholder.
pub trait InterceptionObserver: Send + Sync {
    /// A request is about to be sent, with the credential of this name.
    fn on_request(&self, method: &str, path: &str, credential: Option<&str>);

    /// The placeholder of a credential was seen where it must not be, such as "header `cookie`". The request was refused.
    fn on_tripwire(&self, place: &str);

    /// A part of an answer, such as "body", contained a credential or could not be read. The answer was cut.
    fn on_redaction(&self, place: &str);

    /// A request was refused for another reason.
    fn on_refusal(&self, method: &str, path: &str, reason: &str) {
        let _ = (method, path, reason);
    }

    /// Asks about a request that sends something. An observer that knows a person overrides this.
    fn ask_about<'a>(&'a self, question: &'a RequestQuestion) -> RequestDecision<'a> {
        let _ = question;
        Box::pin(std::future::ready(Err("it requires approval, and there is no one to ask".to_owned())))
    }

    /// Records a request before it is sent. An observer that can say when it is on record overrides this.
    fn record_request<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
        credential: Option<&'a str>,
    ) -> RequestRecorded<'a> {
        self.on_request(method, path, credential);
        Box::pin(std::future::ready(true))
    }
}

/// Failed set-up of an interceptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterceptorError {
    /// A binding or rule is invalid.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The certificates could not be made.
    #[error(transparent)]
    Ca(#[from] RunCaError),
    /// There is too much to look for.
    #[error("cannot prepare the search for credentials: {0}")]
    Patterns(String),
    /// The tokens of a login cannot be used.
    #[error(transparent)]
    Login(#[from] LoginStoreError),
}

/// What programs use and never see, and where.
#[derive(Clone, Debug, Default)]
pub struct InterceptedCredentials {
    pub bindings: Vec<CredentialBinding>,
    pub logins: Vec<OAuthLoginBinding>,
    /// A host that has rules passes only requests that one of them names.
    pub rules: Vec<HostPathRule>,
}

/// The texts that are looked for.
#[derive(Clone, Debug)]
pub(crate) struct InterceptionPatterns {
    pub(crate) secrets: LeakPatterns,
    pub(crate) placeholders: LeakPatterns,
}

impl InterceptionPatterns {
    fn new(bindings: &[CredentialBinding]) -> Result<Self, InterceptorError> {
        let failed = |cause: aho_corasick::BuildError| InterceptorError::Patterns(cause.to_string());
        Ok(Self {
            secrets: LeakPatterns::new(bindings.iter().map(|binding| binding.secret.expose())).map_err(failed)?,
            placeholders: LeakPatterns::new(bindings.iter().map(|binding| binding.placeholder.as_str()))
                .map_err(failed)?,
        })
    }
}

/// A host whose TLS is ended here.
#[derive(Debug)]
struct InterceptedHost {
    server: TlsServer,
    guard: Arc<HostGuard>,
}

/// Ends the TLS of the hosts that have a credential or a path rule, with certificates of one run.
pub struct TlsInterceptor {
    hosts: BTreeMap<(String, u16), InterceptedHost>,
    authority: RunCertificateAuthority,
    patterns: InterceptionPatterns,
    /// In lower case.
    placeholders: Vec<String>,
    logins: Vec<Arc<OAuthLogin>>,
    connector: Arc<WebConnector>,
}

impl fmt::Debug for TlsInterceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsInterceptor").field("hosts", &self.hosts.keys()).finish_non_exhaustive()
    }
}

impl TlsInterceptor {
    /// An interceptor for the hosts of these credentials, logins and rules.
    pub fn new(
        credentials: InterceptedCredentials,
        connector: Arc<WebConnector>,
        now: SystemTime,
    ) -> Result<Self, InterceptorError> {
        let InterceptedCredentials { bindings, logins, rules } = credentials;
        check_bindings(&bindings)?;
        let patterns = InterceptionPatterns::new(&bindings)?;
        let login =
            |binding| OAuthLogin::new(binding, patterns.secrets.clone(), patterns.placeholders.clone()).map(Arc::new);
        let logins = logins.into_iter().map(login).collect::<Result<Vec<_>, _>>()?;
        let mut bound = Vec::new();
        let credentials = bindings.iter().map(|binding| (&binding.name, &binding.hosts));
        for (name, hosts) in credentials.chain(logins.iter().map(|login| (&login.binding.name, &login.binding.hosts))) {
            for host in hosts {
                bound.push(BoundHost::parse(name, host)?);
            }
        }
        bound.extend(logins.iter().map(|login| login.token_host().clone()));
        for rule in &rules {
            bound.push(BoundHost::parse(&rule.host, &rule.host)?);
        }
        let names: Vec<String> = bound.iter().map(|host| host.name.clone()).collect();
        let authority = RunCertificateAuthority::new(&names, now)?;
        let mut hosts = BTreeMap::new();
        for host in bound {
            let server = authority.server(&host.name)?;
            let guard = Arc::new(HostGuard::new(host.clone(), (&bindings, &logins), &rules, &patterns.placeholders)?);
            hosts.insert((host.name, host.port), InterceptedHost { server, guard });
        }
        let placeholders = bindings.iter().map(|binding| binding.placeholder.to_ascii_lowercase()).collect();
        Ok(Self { hosts, authority, patterns, placeholders, logins, connector })
    }

    /// Placeholders for the tokens of a login that is there now. `None` if there is none.
    pub fn login_placeholders(&self, name: &str) -> Result<Option<OAuthPlaceholders>, InterceptorError> {
        let login = self.logins.iter().find(|login| login.binding.name == name);
        Ok(login.map(|login| login.placeholders()).transpose()?.flatten())
    }

    /// Waits until no exchange of tokens is open: a host may have replaced a refresh token. Each has a time limit.
    pub fn finish_token_exchanges(&self) {
        self.logins.iter().for_each(|login| login.until_idle());
    }

    /// The certificate of the run, for programs to trust.
    pub fn ca_certificate_pem(&self) -> &str {
        self.authority.certificate_pem()
    }

    /// Whether connections to this host and port are ended here.
    pub fn intercepts(&self, host: &str, port: u16) -> bool {
        self.hosts.contains_key(&(host.trim_end_matches('.').to_ascii_lowercase(), port))
    }

    /// Whether connections to this target are ended here.
    pub(crate) fn intercepts_target(&self, target: &FetchTarget) -> bool {
        matches!(target.host(), TargetHost::Name(name) if self.intercepts(name, target.port()))
    }

    /// Serves the connection of a program that was granted this target, until it ends.
    pub(crate) async fn serve<S>(&self, program: S, target: &FetchTarget, events: Arc<dyn InterceptionObserver>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let host = self.hosts.get(&(target.host().to_string(), target.port()));
        let Some(InterceptedHost { server, guard }) = host else { return };
        let Ok(Ok((stream, protocol))) = timeout(HANDSHAKE_TIMEOUT, server.accept(program)).await else { return };
        let connection = Arc::new(InterceptedConnection::new(
            Arc::clone(guard),
            self.patterns.clone(),
            Arc::clone(&self.connector),
            target.clone(),
            protocol,
            events,
        ));
        serve_http(stream, protocol, &connection).await;
        connection.until_websocket_ends().await;
    }

    /// The place of a placeholder in a request that is not encrypted, if it has one.
    pub(crate) fn tripwire(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let target = uri.to_string();
        if self.patterns.placeholders.are_in(target.as_bytes()) {
            return Some("URL".to_owned());
        }
        if uri.host().is_some_and(|host| self.is_in_name(host)) {
            return Some("host name".to_owned());
        }
        placeholder_header(headers, &self.patterns.placeholders)
    }

    /// Whether a host name has a placeholder, which may be split into labels and has lost its capital letters.
    pub fn is_in_name(&self, name: &str) -> bool {
        let joined = name.replace('.', "").to_ascii_lowercase();
        if self.logins.iter().any(|login| login.is_in_name(&joined)) {
            return true;
        }
        self.placeholders.iter().any(|placeholder| joined.contains(&placeholder.replace('.', "")))
    }

    /// The body of a request that is not encrypted, behind a tripwire.
    pub(crate) fn guard_body(&self, body: Incoming, events: Arc<dyn InterceptionObserver>) -> GuardedBody {
        GuardedBody::new(body, &self.patterns.placeholders, Box::new(move |place| events.on_tripwire(place)))
    }

    /// The text of a refusal for a placeholder in this place.
    pub(crate) fn tripwire_text(place: String) -> String {
        RequestRefusal::tripwire(place).reason
    }
}

async fn serve_http(stream: Box<dyn NetStream>, protocol: HttpProtocol, connection: &Arc<InterceptedConnection>) {
    let service = service_fn(|request: Request<Incoming>| {
        let connection = Arc::clone(connection);
        async move { Ok::<_, Infallible>(connection.answer(request).await) }
    });
    let stream = TokioIo::new(stream);
    // The program sees how a connection ends.
    let _ = match protocol {
        HttpProtocol::Http1 => {
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_headers(256).half_close(true);
            server.max_buf_size(MAX_HEADER_BYTES);
            server.serve_connection(stream, service).with_upgrades().await
        }
        HttpProtocol::Http2 => {
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
            server.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(4 * STREAM_WINDOW);
            server.max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX));
            server.serve_connection(stream, service).await
        }
    };
}
