//! MCP over streamable HTTP, for `ringfence serve`.
//!
//! Every request shows a token, and names this server as it may be named (`request_source.rs`). A session belongs to the
//! token that opened it: to every other one it does not exist, whatever the method. A body is bounded, read whole, and
//! checked for keys that stand twice before the SDK sees it.
//!
//! Not here: connections (`listener.rs`); the sessions of older clients, which the SDK keeps and ends when they are idle.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use axum::routing::any;
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use ringfence_kernel::AuthScope;
use ringfence_kernel::sync::Mutex;
use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::app::session::live::TokenSessions;
use crate::codec::jsonrpc::check_message;
use crate::http::ENVELOPE_BYTES;
use crate::http::listener::ConnectionHandle;
use crate::http::request_auth::{AuthError, RequestBodyError, RequestBodyReader, TOKEN_RECHECK, authenticate};
use crate::http::request_rate::{RATE_LIMITED, RequestRate};
use crate::http::request_source::RequestSourceCheck;
use crate::http::token_slots::{AccessTokenSlots, TokenSlotLimits, TokenSlotPermit};
use crate::mcp::handler::McpServerHandler;
use crate::mcp::session::{McpHttpConnection, McpSessionSource, McpSessions, McpTokenId, SESSION_IDLE};
use crate::mcp::{McpFrontend, McpServerContext};
use crate::store::tokens::{TokenIdentity, TokenStore};

/// Requests and open streams at once.
const REQUEST_SLOTS: TokenSlotLimits = TokenSlotLimits { per_token: 256, total: 1536, reserved: 256 };

/// Sessions of clients with a handshake.
const SESSION_SLOTS: TokenSlotLimits = TokenSlotLimits { per_token: 64, total: 512, reserved: 64 };

const SESSION_ID: &str = "mcp-session-id";

#[cfg(not(feature = "conformance"))]
use crate::mcp::handler::McpServerHandler as HttpHandler;

#[cfg(not(feature = "conformance"))]
fn wrap_handler(server: McpServerHandler) -> HttpHandler {
    server
}

#[cfg(feature = "conformance")]
use crate::mcp::conformance::ConformanceServer as HttpHandler;

#[cfg(feature = "conformance")]
fn wrap_handler(server: McpServerHandler) -> HttpHandler {
    HttpHandler(server)
}

/// Authentication layer of MCP over HTTP.
#[derive(Clone)]
struct McpAuthLayer {
    service: StreamableHttpService<HttpHandler, LocalSessionManager>,
    tokens: TokenStore,
    bodies: RequestBodyReader,
    source: RequestSourceCheck,
    requests: AccessTokenSlots,
    rate: RequestRate,
    sessions: McpSessionTable,
}

/// The sessions of clients with a handshake, and whose they are.
#[derive(Clone, Debug)]
struct McpSessionTable {
    manager: Arc<LocalSessionManager>,
    slots: AccessTokenSlots,
    owners: Arc<Mutex<HashMap<String, McpSessionOwner>>>,
}

#[derive(Debug)]
struct McpSessionOwner {
    token: Arc<str>,
    _slot: TokenSlotPermit,
}

impl McpSessionTable {
    fn new(manager: Arc<LocalSessionManager>) -> Self {
        Self { manager, slots: AccessTokenSlots::new(SESSION_SLOTS), owners: Arc::default() }
    }

    /// Whether every session that a request names is of this token.
    fn all_owned_by(&self, headers: &HeaderMap, who: &TokenIdentity) -> bool {
        let owners = self.owners.lock();
        let is_theirs = |id: &str| owners.get(id).is_some_and(|owner| owner.token == who.id);
        headers.get_all(SESSION_ID).iter().all(|id| id.to_str().is_ok_and(is_theirs))
    }

    /// Notes whose a new session is. It ends at once where its token has too many.
    async fn register(&self, id: &str, who: &TokenIdentity) -> Result<(), Response> {
        self.remove_ended().await;
        match self.slots.acquire(who) {
            Some(slot) => {
                let owner = McpSessionOwner { token: Arc::clone(&who.id), _slot: slot };
                self.owners.lock().insert(id.to_owned(), owner);
                Ok(())
            }
            None => {
                let _ = self.manager.close_session(&id.into()).await;
                Err(text_response(StatusCode::TOO_MANY_REQUESTS, "too many open sessions; end some with DELETE"))
            }
        }
    }

    /// Those that the SDK ended because they were idle.
    async fn remove_ended(&self) {
        let ids: Vec<String> = self.owners.lock().keys().cloned().collect();
        for id in ids {
            if !self.manager.has_session(&id.as_str().into()).await.unwrap_or(false) {
                self.owners.lock().remove(&id);
            }
        }
    }
}

/// State that MCP over HTTP shares with the other routes of the server.
#[derive(Debug)]
pub(crate) struct McpHttpShared {
    pub(crate) tokens: TokenStore,
    pub(crate) source: RequestSourceCheck,
    pub(crate) rate: RequestRate,
    pub(crate) sessions: TokenSessions,
}

impl McpFrontend {
    /// The route of MCP clients, for a server with a listener of its own.
    pub(crate) fn http_router(&self, app: &App, shared: McpHttpShared, stop: &CancellationToken) -> Router {
        let McpHttpShared { tokens, source, rate, sessions } = shared;
        let limits = app.session.limits.clone();
        let sessions = McpSessions::new(app, limits, self.form, sessions);
        let auth = self.auth_layer(app, sessions, tokens, source, (rate, stop));
        Router::new().route("/mcp", any(enter)).with_state(auth)
    }

    fn auth_layer(
        &self,
        app: &App,
        mcp_sessions: McpSessions,
        tokens: TokenStore,
        source: RequestSourceCheck,
        (rate, stop): (RequestRate, &CancellationToken),
    ) -> McpAuthLayer {
        let longest = usize::try_from(app.session.limits.argument_bytes.saturating_add(ENVELOPE_BYTES));
        let longest = longest.unwrap_or(usize::MAX);
        // Hosts and origins are checked before the SDK sees a request.
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop.clone())
            .with_max_request_body_bytes(longest)
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let served = McpServerContext::new(self, app);
        let new = move || {
            let guest = McpHttpConnection { sessions: mcp_sessions.clone(), session: OnceLock::new() };
            Ok(wrap_handler(McpServerHandler::new(
                served.clone(),
                McpSessionSource::Http(Box::new(guest)),
                CancellationToken::new(),
            )))
        };
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(SESSION_IDLE);
        let sessions = McpSessionTable::new(Arc::new(sessions));
        let service = StreamableHttpService::new(new, Arc::clone(&sessions.manager), config);
        let (bodies, requests) = (RequestBodyReader::new(longest), AccessTokenSlots::new(REQUEST_SLOTS));
        McpAuthLayer { service, tokens, bodies, source, requests, rate, sessions }
    }
}

async fn enter(State(layer): State<McpAuthLayer>, request: Request) -> Response {
    match layer.enter(request).await {
        Ok(response) => response,
        Err(turned_away) => turned_away,
    }
}

impl McpAuthLayer {
    async fn enter(&self, request: Request) -> Result<Response, Response> {
        let (mut parts, body) = request.into_parts();
        let connection = ConnectionHandle::from_extensions(&parts.extensions);
        let checked = self.source.check(&parts.headers, connection.map(ConnectionHandle::peer));
        checked.map_err(|error| text_response(StatusCode::FORBIDDEN, &error.to_string()))?;
        let who = self.authenticate(&parts.headers).await?;
        if let Some(connection) = connection {
            connection.authenticate(&who.id);
        }
        if !self.rate.try_acquire(&who.id, Instant::now()) {
            return Err(text_response(StatusCode::TOO_MANY_REQUESTS, RATE_LIMITED));
        }
        if !self.sessions.all_owned_by(&parts.headers, &who) {
            return Err(text_response(StatusCode::NOT_FOUND, "Not Found: Session not found"));
        }
        let slot = self.requests.acquire(&who).ok_or_else(|| {
            let message = format!(
                "this token already has {} requests in flight; retry when some are done",
                REQUEST_SLOTS.per_token
            );
            text_response(StatusCode::TOO_MANY_REQUESTS, &message)
        })?;
        let headers = parts.headers.clone();
        let body = self.read(&who, body).await?;
        if parts.method == Method::POST
            && let Some(refusal) = json_error(&body)
        {
            return Err(refusal);
        }
        parts.extensions.insert(McpTokenId::new(&who));
        let ends_session = parts.method == Method::DELETE;
        let mut answer = self.service.handle(Request::from_parts(parts, Body::from(body))).await;
        if ends_session && answer.status() == StatusCode::ACCEPTED {
            // It is over, and clients take "accepted" for a failure.
            *answer.status_mut() = StatusCode::NO_CONTENT;
        }
        let opened = answer.headers().get(SESSION_ID).and_then(|id| id.to_str().ok());
        if let Some(id) = opened.filter(|_| !headers.contains_key(SESSION_ID)) {
            self.sessions.register(id, &who).await?;
        }
        let is_stream = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        let answer = answer.map(Body::new);
        Ok(if is_stream { answer.map(|body| self.while_authenticated(headers, body, slot)) } else { answer })
    }

    /// A stream that ends when its token does not hold any more.
    fn while_authenticated(&self, headers: HeaderMap, body: Body, slot: TokenSlotPermit) -> Body {
        let (pieces, layer, checked) = (body.into_data_stream(), self.clone(), Instant::now());
        let stream = McpEventStream { pieces, layer, headers, checked, unverified: false, _slot: slot };
        Body::from_stream(unfold(stream, |mut stream| async { Some((stream.next().await?, stream)) }))
    }

    /// Authenticates a request.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<TokenIdentity, Response> {
        match authenticate(&self.tokens, headers).await {
            Ok(owner) if owner.has_scope(AuthScope::Call) => Ok(owner),
            Ok(_) => Err(text_response(StatusCode::FORBIDDEN, "this token lacks the scope `call`")),
            Err(unknown @ AuthError::Unreadable) => {
                Err(text_response(StatusCode::INTERNAL_SERVER_ERROR, &unknown.to_string()))
            }
            Err(unknown) => Err(unauthorized(&unknown.to_string())),
        }
    }

    async fn read(&self, who: &TokenIdentity, body: Body) -> Result<Bytes, Response> {
        self.bodies.read(who, body).await.map_err(|unread| match unread {
            RequestBodyError::TooMany => text_response(StatusCode::TOO_MANY_REQUESTS, &unread.to_string()),
            RequestBodyError::TooLong(_) => text_response(StatusCode::PAYLOAD_TOO_LARGE, &unread.to_string()),
            RequestBodyError::Timeout => text_response(StatusCode::REQUEST_TIMEOUT, &unread.to_string()),
            RequestBodyError::Aborted => text_response(StatusCode::BAD_REQUEST, &unread.to_string()),
        })
    }
}

/// Event stream of a client, for the lifetime of its session.
struct McpEventStream {
    pieces: BodyDataStream,
    layer: McpAuthLayer,
    headers: HeaderMap,
    /// When it was last looked whether the token holds.
    checked: Instant,
    /// The last time that could not be seen.
    unverified: bool,
    _slot: TokenSlotPermit,
}

impl McpEventStream {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            let piece = timeout(TOKEN_RECHECK.saturating_sub(self.checked.elapsed()), self.pieces.next()).await;
            // A stream ends with its token.
            if self.checked.elapsed() >= TOKEN_RECHECK {
                self.unverified = match authenticate(&self.layer.tokens, &self.headers).await {
                    Ok(owner) if owner.has_scope(AuthScope::Call) => false,
                    // It is checked once more, and meanwhile no response is lost.
                    Err(AuthError::Unreadable) if !self.unverified => true,
                    _ => return None,
                };
                self.checked = Instant::now();
            }
            if let Ok(piece) = piece {
                return piece;
            }
        }
    }
}

/// The error response for a body that is not JSON, or has duplicate keys.
fn json_error(body: &[u8]) -> Option<Response> {
    let error = check_message(body).err()?.error;
    let error = json!({"jsonrpc": "2.0", "error": {"code": error.code(), "message": error.to_string()}});
    let mut response = text_response(StatusCode::BAD_REQUEST, &error.to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Some(response)
}

fn unauthorized(message: &str) -> Response {
    let mut response = text_response(StatusCode::UNAUTHORIZED, message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn text_response(status: StatusCode, message: &str) -> Response {
    let mut response = Response::new(Body::from(format!("{message}\n")));
    *response.status_mut() = status;
    response
}
