//! Intercepted connection: the exchange between a program and its host, once its TLS is ended.
//!
//! Each request is judged, recorded and sent on; each answer passes its filter. Upstream, the host proves its name with a
//! certificate of the system's roots, as for any other connection. Redirects are answers: they are not followed here.
//!
//! Not here: the program's side of TLS (`interceptor.rs`), the judgement (`request_guard.rs`), and bodies.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT_ENCODING, ALT_SVC, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST,
    HeaderName, HeaderValue, IF_RANGE, RANGE, RETRY_AFTER, SEC_WEBSOCKET_EXTENSIONS, TE, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use ringfence_kernel::sync::Mutex;
use ringfence_net::{HttpProtocol, RelayConnection, RelayError};
use tokio::io::{AsyncWriteExt as _, split};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::answer_filter::{AnswerFilter, FilteredBody, header_leak};
use crate::connector::WebConnector;
use crate::fetch_target::FetchTarget;
use crate::hop_by_hop::strip_hop_by_hop;
use crate::interceptor::{InterceptionObserver, InterceptionPatterns, RequestQuestion};
use crate::oauth_login::{LoginStoreError, OAuthLogin};
use crate::pack_commits::{MAX_PACK_PREFIX, PackCommits};
use crate::receive_pack::{MAX_COMMAND_BYTES, PushCommands, is_push};
use crate::request_body::GuardedBody;
use crate::request_guard::{HostGuard, JudgedRequest, RequestRefusal};
use crate::token_message::{
    MAX_TOKEN_ANSWER, MAX_TOKEN_REQUEST, RefreshRequest, TokenGrant, is_plain_refusal, read_answer,
};
use crate::websocket_relay::{FrameScanner, FrameSender, WebSocketCut, pump};

/// Time for a connection to the host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Times that a request is sent which the host did not begin to read.
const MAX_ATTEMPTS: usize = 3;

/// Time for a program to send what is read before anything is sent on: a request for tokens, or the commands of a push.
const OWN_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the host to answer it.
const TOKEN_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Characters of a path in a record.
const MAX_RECORDED_PATH: usize = 300;

/// What a program gets: our text, or the host's answer.
pub(crate) type InterceptedResponse = Response<Either<Full<Bytes>, FilteredBody>>;

/// What the host gets: the body of the program's request, or one that was made for it.
type RelayedBody = Either<GuardedBody, Full<Bytes>>;

type Upstream = RelayConnection<RelayedBody>;

/// One connection of a program to its host.
pub(crate) struct InterceptedConnection {
    guard: Arc<HostGuard>,
    patterns: InterceptionPatterns,
    connector: Arc<WebConnector>,
    target: FetchTarget,
    protocol: HttpProtocol,
    events: Arc<dyn InterceptionObserver>,
    /// Connections to the host, which may be in use.
    upstream: AsyncMutex<Vec<Upstream>>,
    websocket: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for InterceptedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterceptedConnection").field("target", &self.target).finish_non_exhaustive()
    }
}

fn text_response(status: StatusCode, text: &str) -> InterceptedResponse {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(format!("ringfence: {text}\n")))));
    *response.status_mut() = status;
    response
}

impl InterceptedConnection {
    pub(crate) fn new(
        guard: Arc<HostGuard>,
        patterns: InterceptionPatterns,
        connector: Arc<WebConnector>,
        target: FetchTarget,
        protocol: HttpProtocol,
        events: Arc<dyn InterceptionObserver>,
    ) -> Self {
        let (upstream, websocket) = (AsyncMutex::new(Vec::new()), Mutex::new(None));
        Self { guard, patterns, connector, target, protocol, events, upstream, websocket }
    }

    /// Resolves once the WebSocket is over that the connection became, if it did.
    pub(crate) async fn until_websocket_ends(&self) {
        let relay = self.websocket.lock().take();
        if let Some(relay) = relay {
            // A relay that panicked is over too.
            let _ = relay.await;
        }
    }

    /// Answers one request of the program.
    pub(crate) async fn answer(self: &Arc<Self>, mut request: Request<Incoming>) -> InterceptedResponse {
        let program = hyper::upgrade::on(&mut request);
        let (mut head, body) = request.into_parts();
        let judged = self.guard.judge(&mut head);
        let method = head.method.as_str().to_owned();
        let path = match self.patterns.placeholders.are_in(head.uri.path().as_bytes()) {
            true => "(not shown)".to_owned(),
            false => head.uri.path().chars().take(MAX_RECORDED_PATH).collect(),
        };
        let judged = match judged {
            Ok(judged) => judged,
            Err(refusal) => return self.refuse(&method, &path, &refusal),
        };
        if let Some(login) = &judged.token_exchange {
            return self.exchange_tokens((head, body), Arc::clone(login), path).await;
        }
        let (mut body, mut begun) = (body, Vec::new());
        if judged.is_asked {
            match self.ask(&head, &mut body, &path).await {
                Ok(pieces) => begun = pieces,
                Err(refused) => return *refused,
            }
        }
        if !self.events.record_request(&method, &path, judged.credential.as_deref()).await {
            return text_response(StatusCode::FORBIDDEN, "the run has ended, or its requests cannot be recorded");
        }
        let events = Arc::clone(&self.events);
        let on_tripwire = Box::new(move |place: &str| events.on_tripwire(place));
        let body = GuardedBody::new(body, &self.patterns.placeholders, on_tripwire).behind(begun);
        let tripwire = body.tripwire();
        self.prepare(&mut head, &judged);
        match self.send(head, Either::Left(body)).await {
            Ok(response) if judged.is_websocket && response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                self.open_websocket(program, response, path)
            }
            Ok(response) => self.filter(response),
            Err(_) if tripwire.is_tripped() => {
                text_response(StatusCode::FORBIDDEN, &RequestRefusal::tripwire("body".to_owned()).reason)
            }
            Err(why) => text_response(StatusCode::BAD_GATEWAY, &why),
        }
    }

    fn refuse(&self, method: &str, path: &str, refusal: &RequestRefusal) -> InterceptedResponse {
        match &refusal.tripwire {
            Some(place) => self.events.on_tripwire(place),
            None => self.events.on_refusal(method, path, &refusal.reason),
        }
        text_response(refusal.status, &refusal.reason)
    }

    /// Asks a person about a request. Returns what was read of its body for that, or the answer without one.
    async fn ask(&self, head: &Parts, body: &mut Incoming, path: &str) -> Result<Vec<Bytes>, Box<InterceptedResponse>> {
        let refuse = |status, reason: String| {
            let refusal = RequestRefusal::new(status, reason);
            Box::new(self.refuse(head.method.as_str(), path, &refusal))
        };
        let mut question = RequestQuestion { details: format!("{} {path}", head.method), ..RequestQuestion::default() };
        if !is_push(head.uri.path()) {
            let decision = self.events.ask_about(&question).await;
            return decision.map(|()| Vec::new()).map_err(|why| Box::new(text_response(StatusCode::FORBIDDEN, &why)));
        }
        if head.headers.contains_key(CONTENT_ENCODING) {
            return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a compressed push cannot be shown".to_owned()));
        }
        let (push, mut begun) = match timeout(OWN_REQUEST_TIMEOUT, read_push(body)).await {
            Ok(Ok(read)) => read,
            Ok(Err(reason)) => return Err(refuse(StatusCode::BAD_REQUEST, reason)),
            Err(_) => return Err(refuse(StatusCode::REQUEST_TIMEOUT, "the push did not begin in time".to_owned())),
        };
        if push.is_empty() {
            return Ok(begun);
        }
        question.details = format!("{} {}", question.details, push.summary());
        let commits = match push.moves_refs() {
            true => read_commits(body, push.length(), &mut begun).await,
            false => PackCommits::default(),
        };
        (question.losses, question.changes) = (push.losses(&commits), push.lines(&commits));
        match self.events.ask_about(&question).await {
            Ok(()) => Ok(begun),
            Err(why) => Err(Box::new(push.refusal(&why).map_or_else(
                || text_response(StatusCode::FORBIDDEN, &why),
                |report| {
                    let mut response = Response::new(Either::Left(Full::new(Bytes::from(report))));
                    let kind = HeaderValue::from_static("application/x-git-receive-pack-result");
                    response.headers_mut().insert(CONTENT_TYPE, kind);
                    response
                },
            ))),
        }
    }

    /// Refreshes the tokens of a login. It comes to its end also when the program hangs up: the host may have replaced the
    /// refresh token.
    async fn exchange_tokens(
        self: &Arc<Self>,
        request: (Parts, Incoming),
        login: Arc<OAuthLogin>,
        path: String,
    ) -> InterceptedResponse {
        let Some(open) = login.begin_exchange() else {
            let refusal = RequestRefusal::new(StatusCode::TOO_MANY_REQUESTS, "this run asked for tokens too often");
            return self.refuse("POST", &path, &refusal);
        };
        let connection = Arc::clone(self);
        let exchange = tokio::spawn(async move {
            let answered = connection.refresh_tokens(request, &login, &path).await;
            drop(open);
            answered.unwrap_or_else(|refusal| connection.refuse("POST", &path, &refusal))
        });
        exchange.await.unwrap_or_else(|_| text_response(StatusCode::BAD_GATEWAY, "the exchange of tokens failed"))
    }

    async fn refresh_tokens(
        &self,
        (mut head, body): (Parts, Incoming),
        login: &Arc<OAuthLogin>,
        path: &str,
    ) -> Result<InterceptedResponse, RequestRefusal> {
        let collected = timeout(OWN_REQUEST_TIMEOUT, Limited::new(body, MAX_TOKEN_REQUEST).collect()).await;
        let Ok(Ok(body)) = collected else {
            let reason = "the request for tokens is too long, or did not come to its end";
            return Err(RequestRefusal::new(StatusCode::BAD_REQUEST, reason));
        };
        let request = RefreshRequest::parse(head.headers.get(CONTENT_TYPE), &body.to_bytes())
            .map_err(|reason| RequestRefusal::new(StatusCode::FORBIDDEN, reason))?;
        if !login.is_refresh_placeholder(&request.refresh_token) {
            let reason = "the refresh token is not one of this run; what another login has is not exchanged";
            return Err(RequestRefusal::new(StatusCode::FORBIDDEN, reason));
        }
        if self.patterns.placeholders.are_in(request.body("").as_bytes()) {
            return Err(RequestRefusal::tripwire("body".to_owned()));
        }
        let name = &login.binding.name;
        if !self.events.record_request("POST", path, Some(name)).await {
            let reason = "the run has ended, or its requests cannot be recorded";
            return Err(RequestRefusal::new(StatusCode::FORBIDDEN, reason));
        }
        let unusable = |error: LoginStoreError| RequestRefusal::new(StatusCode::BAD_GATEWAY, error.to_string());
        let lost = |_| RequestRefusal::new(StatusCode::BAD_GATEWAY, "the login cannot be read");
        let store = Arc::clone(&login.binding.store);
        let refresh = spawn_blocking(move || store.begin_refresh()).await.map_err(lost)?.map_err(unusable)?;
        login.look_for(refresh.tokens()).map_err(unusable)?;
        let body = request.body(refresh.tokens().refresh.expose());
        head.headers.remove(CONTENT_LENGTH);
        head.headers.remove(CONTENT_ENCODING);
        // What it says beyond its body is not sent to a token endpoint.
        head.uri = Uri::try_from(login.binding.token_path.as_str()).unwrap_or_default();
        let judged = JudgedRequest {
            credential: Some(name.clone()),
            is_websocket: false,
            token_exchange: None,
            is_asked: false,
        };
        self.prepare(&mut head, &judged);
        let exchange = async {
            let response = self.send(head, Either::Right(Full::new(Bytes::from(body)))).await?;
            read_answer(response, MAX_TOKEN_ANSWER).await
        };
        let unanswered = |reason: String| RequestRefusal::new(StatusCode::BAD_GATEWAY, reason);
        let answered = timeout(TOKEN_ANSWER_TIMEOUT, exchange).await;
        let (answer, body) =
            answered.unwrap_or_else(|_| Err("the host did not answer in time".to_owned())).map_err(unanswered)?;
        if !answer.status.is_success() {
            return Ok(self.pass_token_refusal(&answer, body));
        }
        let Some(grant) = TokenGrant::parse(&body) else {
            return Ok(self.cut("token answer"));
        };
        // Also where they are not stored in the end, because something newer is there.
        let looked_for = login.look_for_new(&grant.tokens);
        let tokens = grant.tokens.clone();
        let stored = spawn_blocking(move || refresh.store(&tokens)).await.map_err(lost)?.map_err(unusable)?;
        looked_for.and_then(|()| login.look_for(&stored)).map_err(unusable)?;
        let placeholders = login.issue(&stored).map_err(unusable)?;
        let text = grant.for_program(&login.binding.answer_members, &placeholders);
        if self.patterns.secrets.are_in(text.as_bytes()) {
            return Ok(self.cut("token answer"));
        }
        let mut response = Response::new(Either::Left(Full::new(Bytes::from(text))));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// The answer of a token endpoint that gave no tokens, with no more of its head than a program needs.
    fn pass_token_refusal(&self, head: &hyper::http::response::Parts, body: Bytes) -> InterceptedResponse {
        if !is_plain_refusal(&body, &self.patterns.secrets) {
            return self.cut("token answer");
        }
        let mut response = Response::new(Either::Left(Full::new(body)));
        *response.status_mut() = head.status;
        for name in [CONTENT_TYPE, RETRY_AFTER] {
            if let Some(value) = head.headers.get(&name)
                && !self.patterns.secrets.are_in(value.as_bytes())
            {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }

    /// The head as the host is to have it.
    fn prepare(&self, head: &mut Parts, judged: &JudgedRequest) {
        let headers = &mut head.headers;
        let takes_trailers = headers.get(TE).is_some_and(|value| value == "trailers");
        strip_hop_by_hop(headers);
        headers.remove(EXPECT);
        if takes_trailers && head.version == Version::HTTP_2 {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if !self.patterns.secrets.is_empty() {
            // What is not compressed needs no decoding to be looked at.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if judged.credential.is_some() {
            // A part of an answer may hold a part of the secret.
            headers.remove(RANGE);
            headers.remove(IF_RANGE);
        }
        if judged.is_websocket {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.remove(SEC_WEBSOCKET_EXTENSIONS);
        }
    }

    /// Sends a request to the host. An error has its reason.
    async fn send(&self, head: Parts, body: RelayedBody) -> Result<Response<Incoming>, String> {
        let host = self.target.host();
        let path = head.uri.path_and_query().cloned();
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.headers_mut() = head.headers;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut upstream = self.connect().await?;
            let path = path.as_ref().map_or("/", |path| path.as_str());
            let name = self.host_header();
            let uri = match upstream.protocol() {
                HttpProtocol::Http1 => {
                    let value = HeaderValue::try_from(name).map_err(|_| "the host cannot be sent".to_owned())?;
                    request.headers_mut().insert(HOST, value);
                    *request.version_mut() = Version::HTTP_11;
                    path.parse::<Uri>()
                }
                HttpProtocol::Http2 => {
                    request.headers_mut().remove(HOST);
                    *request.version_mut() = Version::HTTP_2;
                    format!("https://{name}{path}").parse()
                }
            };
            *request.uri_mut() = uri.map_err(|_| "the path cannot be sent".to_owned())?;
            match upstream.send(request).await {
                Ok(response) => {
                    if upstream.protocol() == HttpProtocol::Http1 {
                        self.upstream.lock().await.push(upstream);
                    }
                    return Ok(response);
                }
                Err(RelayError { unsent: Some(unsent), .. }) if attempt < MAX_ATTEMPTS => request = unsent,
                Err(RelayError { cause, .. }) => return Err(format!("`{host}` did not answer: {cause}")),
            }
        }
    }

    /// The name of the host, with its port where that is not the one of https.
    fn host_header(&self) -> String {
        match self.target.port() {
            443 => self.target.host().to_string(),
            _ => self.target.authority(),
        }
    }

    /// A connection to the host that a request can be sent over.
    async fn connect(&self) -> Result<Upstream, String> {
        let mut connections = self.upstream.lock().await;
        connections.retain(|connection| !connection.is_closed());
        if let Some(shared) = connections.iter().find_map(Upstream::share) {
            return Ok(shared);
        }
        if let Some(ready) = connections.iter().position(Upstream::is_ready) {
            return Ok(connections.swap_remove(ready));
        }
        let protocols: &[HttpProtocol] = match self.protocol {
            HttpProtocol::Http1 => &[HttpProtocol::Http1],
            HttpProtocol::Http2 => &[HttpProtocol::Http2, HttpProtocol::Http1],
        };
        let opened = self.connector.open_encrypted(&self.target, protocols, CONNECT_TIMEOUT).await;
        let (stream, protocol) = opened.map_err(|error| error.to_string())?;
        let connection = Upstream::open(stream, protocol).await;
        let connection = connection.map_err(|cause| format!("`{}` did not answer: {cause}", self.target.host()))?;
        if let Some(shared) = connection.share() {
            connections.push(shared);
        }
        Ok(connection)
    }

    /// The answer as the program may have it.
    fn filter(&self, response: Response<Incoming>) -> InterceptedResponse {
        let (mut head, body) = response.into_parts();
        if head.status.is_informational() {
            return text_response(StatusCode::BAD_GATEWAY, "the host switched to a protocol that was not asked for");
        }
        if let Err(place) = self.check_head(&head.headers, head.extensions.get()) {
            return self.cut(place);
        }
        let encodings = head.headers.get_all(CONTENT_ENCODING).iter();
        let encodings: Vec<_> = encodings.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        let Ok(filter) = AnswerFilter::new(&self.patterns.secrets, &encodings.join(",")) else {
            return self.cut("content encoding");
        };
        let events = Arc::clone(&self.events);
        let on_cut = Box::new(move |place: &'static str| events.on_redaction(place));
        strip_hop_by_hop(&mut head.headers);
        // Another service of the host would not be intercepted.
        head.headers.remove(ALT_SVC);
        let body = FilteredBody::new(body, filter, self.patterns.secrets.clone(), on_cut);
        let mut answer = Response::new(Either::Right(body));
        *answer.status_mut() = head.status;
        *answer.headers_mut() = head.headers;
        answer
    }

    /// Fails with the part of the head that contains a secret.
    fn check_head(&self, headers: &HeaderMap, reason: Option<&ReasonPhrase>) -> Result<(), &'static str> {
        if reason.is_some_and(|reason| self.patterns.secrets.are_in(reason.as_bytes())) {
            return Err("status line");
        }
        match header_leak(headers, &self.patterns.secrets) {
            true => Err("headers"),
            false => Ok(()),
        }
    }

    fn cut(&self, place: &'static str) -> InterceptedResponse {
        self.events.on_redaction(place);
        let text = "the answer of the host was cut: it contains a credential, or cannot be checked for one";
        text_response(StatusCode::BAD_GATEWAY, text)
    }

    /// Connects the two ends of a WebSocket.
    fn open_websocket(
        &self,
        program: OnUpgrade,
        mut response: Response<Incoming>,
        path: String,
    ) -> InterceptedResponse {
        let server = hyper::upgrade::on(&mut response);
        let (mut head, _) = response.into_parts();
        if let Err(place) = self.check_head(&head.headers, head.extensions.get()) {
            return self.cut(place);
        }
        if head.headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
            return self.cut("WebSocket extensions");
        }
        strip_hop_by_hop(&mut head.headers);
        let upgrade: [(HeaderName, &str); 2] = [(CONNECTION, "Upgrade"), (UPGRADE, "websocket")];
        head.headers.extend(upgrade.map(|(name, value)| (name, HeaderValue::from_static(value))));
        let relay = relay_websocket(program, server, self.patterns.clone(), Arc::clone(&self.events), path);
        // It ends with either end of the connection, or with the runtime.
        *self.websocket.lock() = Some(tokio::spawn(async move {
            let _ = relay.await;
        }));
        let mut answer = Response::new(Either::Left(Full::default()));
        *answer.status_mut() = head.status;
        *answer.headers_mut() = head.headers;
        answer
    }
}

/// Reads the commands of a push, and the pieces that they came in.
async fn read_push(body: &mut Incoming) -> Result<(PushCommands, Vec<Bytes>), String> {
    let (mut pieces, mut read) = (Vec::new(), Vec::new());
    loop {
        if let Some(push) = PushCommands::parse(&read)? {
            return Ok((push, pieces));
        }
        let frame = body.frame().await.ok_or("the push ended before its commands did")?;
        let Ok(piece) = frame.map_err(|_| "the push cannot be read")?.into_data() else { continue };
        read.extend_from_slice(&piece);
        pieces.push(piece);
        if read.len() > MAX_COMMAND_BYTES {
            return match PushCommands::parse(&read)? {
                Some(push) => Ok((push, pieces)),
                None => Err("the push has too many refs to be shown".to_owned()),
            };
        }
    }
}

/// Reads the commits of a push, as far as they come in time.
async fn read_commits(body: &mut Incoming, commands: usize, pieces: &mut Vec<Bytes>) -> PackCommits {
    let (mut commits, mut read) = (PackCommits::default(), pieces.concat());
    let reading = async {
        while !commits.read(read.get(commands..).unwrap_or_default()) && read.len() < commands + MAX_PACK_PREFIX {
            let Some(Ok(frame)) = body.frame().await else { break };
            let Ok(piece) = frame.into_data() else { break };
            read.extend_from_slice(&piece);
            pieces.push(piece);
        }
    };
    // What has not come by then proves nothing.
    let _ = timeout(OWN_REQUEST_TIMEOUT, reading).await;
    commits
}

/// Passes frames on until one end closes the connection or a frame must not pass.
async fn relay_websocket(
    program: OnUpgrade,
    server: OnUpgrade,
    patterns: InterceptionPatterns,
    events: Arc<dyn InterceptionObserver>,
    path: String,
) -> io::Result<()> {
    let (program, server) = tokio::try_join!(program, server).map_err(io::Error::other)?;
    let (from_program, mut to_program) = split(TokioIo::new(program));
    let (from_server, mut to_server) = split(TokioIo::new(server));
    let outward = FrameScanner::new(FrameSender::Program, &patterns.placeholders);
    let inward = FrameScanner::new(FrameSender::Server, &patterns.secrets);
    tokio::select! {
        ended = pump(from_program, &mut to_server, outward) => match ended? {
            Some(WebSocketCut::Found) => events.on_tripwire("WebSocket message"),
            Some(WebSocketCut::Unreadable) => events.on_refusal("GET", &path, "a WebSocket frame cannot be read"),
            None => {}
        },
        ended = pump(from_server, &mut to_program, inward) => if ended?.is_some() {
            events.on_redaction("WebSocket message");
        },
    }
    let _ = tokio::join!(to_program.shutdown(), to_server.shutdown());
    Ok(())
}
