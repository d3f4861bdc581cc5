//! The Model Context Protocol over HTTP, for `ringfence serve`.
//!
//! Nobody comes in without a token. A request for another host, or from a page of another origin, is turned away: a
//! browser could send one on behalf of a page that the user never trusted. A body is bounded, read whole, and checked for
//! keys that stand twice before the SDK sees it.
//!
//! Not here: connections (`connections.rs`); the sessions of older clients, which the SDK keeps and ends when they are idle.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use axum::routing::any;
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use ringfence_kernel::Scope;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connections::{self, Bounds};
use super::keys::{self, Bad};
use super::server::Server;
use super::talk::{Guest, Places, Source, Talks, Visitor};
use super::{ENVELOPE, Front, LAST, Served};
use crate::api::Before;
use crate::incoming::{Bodies, STILL_KNOWN, Unknown, Unread, owner};
use crate::tokens::Tokens;
use crate::wire::{WireError, Wired};

/// A session of an older client ends when it was idle for so long.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// Sessions and requests at once.
const MOST: usize = 256;

/// More than there are requests at once, since some clients keep a connection beside them.
const CONNECTIONS: Bounds = Bounds { most: 8 * MOST as u32, head: Duration::from_secs(30) };

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot serve there: {0}")]
    Listen(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Where and for whom to serve.
#[derive(Clone, Debug)]
pub struct Listening {
    pub address: SocketAddr,
    /// Pages that may call, beside those of this very server.
    pub origins: Vec<String>,
    pub tokens: Tokens,
}

#[cfg(not(feature = "conformance"))]
type Inside = Server;
#[cfg(feature = "conformance")]
type Inside = super::fixtures::Overlay;

#[cfg(not(feature = "conformance"))]
fn inside(server: Server) -> Inside {
    server
}

#[cfg(feature = "conformance")]
fn inside(server: Server) -> Inside {
    super::fixtures::Overlay(server)
}

/// What stands between the network and the server.
#[derive(Clone)]
struct Door {
    service: StreamableHttpService<Inside, LocalSessionManager>,
    tokens: Tokens,
    bodies: Bodies,
}

impl Front {
    /// Serves clients over HTTP until `stop` is told. Says where, once it listens.
    pub(crate) async fn serve_http(
        &self,
        wired: &Wired,
        listening: Listening,
        api: Before,
        stop: CancellationToken,
        listens: impl FnOnce(SocketAddr),
    ) -> Result<(), ServeError> {
        let listener = TcpListener::bind(listening.address).await?;
        let address = listener.local_addr()?;
        let talks = Talks::new(wired, api.pasts());
        let api = api.open(&wired.settings, address, &listening.origins, stop.clone()).await?;
        let door = self.door(wired, talks, listening, address, &stop);
        let router = Router::new().route("/mcp", any(enter)).with_state(door);
        let router = router.merge(api.router.clone());
        listens(address);
        let serving = connections::serve(listener, router, CONNECTIONS, stop.clone());
        let ended = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST).await;
        };
        tokio::select! {
            () = serving => {}
            // Who holds a connection open does not hold the server up.
            () = ended => {}
        }
        Ok(())
    }

    fn door(
        &self,
        wired: &Wired,
        talks: Talks,
        listening: Listening,
        address: SocketAddr,
        stop: &CancellationToken,
    ) -> Door {
        let longest = usize::try_from(wired.session.limits.argument_bytes.saturating_add(ENVELOPE));
        let longest = longest.unwrap_or(usize::MAX);
        let names = ["localhost", "127.0.0.1", "[::1]"];
        let own = names.map(|name| format!("http://{name}:{}", address.port()));
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop.clone())
            .with_max_request_body_bytes(longest)
            .with_allowed_hosts(names.map(str::to_owned).into_iter().chain([address.ip().to_string()]))
            .with_allowed_origins(own.into_iter().chain(listening.origins))
            .enforce_origin_validation();
        let (served, places) = (Served::new(self, wired), Places::default());
        let new = move || {
            let taken = places.take(MOST).ok_or_else(|| io::Error::other("there are too many sessions"))?;
            let guest = Guest { talks: talks.clone(), taken, own: OnceLock::new() };
            Ok(inside(Server::new(served.clone(), Source::Door(Box::new(guest)), CancellationToken::new())))
        };
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(IDLE);
        let service = StreamableHttpService::new(new, Arc::new(sessions), config);
        Door { service, tokens: listening.tokens, bodies: Bodies::new(longest) }
    }
}

async fn enter(State(door): State<Door>, request: Request) -> Response {
    match door.enter(request).await {
        Ok(response) => response,
        Err(turned_away) => turned_away,
    }
}

impl Door {
    async fn enter(&self, request: Request) -> Result<Response, Response> {
        let visitor = self.know(request.headers()).await?;
        let (mut parts, body) = request.into_parts();
        let headers = parts.headers.clone();
        let body = self.read(body).await?;
        if parts.method == Method::POST
            && let Some(refusal) = refusal(&body)
        {
            return Err(refusal);
        }
        parts.extensions.insert(visitor);
        let ends_session = parts.method == Method::DELETE;
        let mut answer = self.service.handle(Request::from_parts(parts, Body::from(body))).await;
        if ends_session && answer.status() == StatusCode::ACCEPTED {
            // It is over, and clients take "accepted" for a failure.
            *answer.status_mut() = StatusCode::NO_CONTENT;
        }
        let is_stream = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        let answer = answer.map(Body::new);
        Ok(if is_stream { answer.map(|body| self.while_known(headers, body)) } else { answer })
    }

    /// A stream that ends when its token does not hold any more.
    fn while_known(&self, headers: HeaderMap, body: Body) -> Body {
        let (pieces, door, checked) = (body.into_data_stream(), self.clone(), Instant::now());
        let stream = Stream { pieces, door, headers, checked, in_doubt: false };
        Body::from_stream(unfold(stream, |mut stream| async { Some((stream.next().await?, stream)) }))
    }

    /// Who comes.
    async fn know(&self, headers: &HeaderMap) -> Result<Visitor, Response> {
        match owner(&self.tokens, headers).await {
            Ok(owner) if owner.may(Scope::Call) => Ok(Visitor(owner.name)),
            Ok(_) => Err(said(StatusCode::FORBIDDEN, "this token is not for calls")),
            Err(unknown @ Unknown::Unreadable) => Err(said(StatusCode::INTERNAL_SERVER_ERROR, &unknown.to_string())),
            Err(unknown) => Err(stranger(&unknown.to_string())),
        }
    }

    async fn read(&self, body: Body) -> Result<Bytes, Response> {
        self.bodies.read(body).await.map_err(|unread| match unread {
            Unread::TooLong(_) => said(StatusCode::PAYLOAD_TOO_LARGE, &unread.to_string()),
            Unread::Late => said(StatusCode::REQUEST_TIMEOUT, &unread.to_string()),
            Unread::Broken => said(StatusCode::BAD_REQUEST, &unread.to_string()),
        })
    }
}

/// What a client hears for as long as it is known.
struct Stream {
    pieces: BodyDataStream,
    door: Door,
    headers: HeaderMap,
    /// When it was last looked whether the token holds.
    checked: Instant,
    /// The last time that could not be seen.
    in_doubt: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            let piece = timeout(STILL_KNOWN.saturating_sub(self.checked.elapsed()), self.pieces.next()).await;
            // Whoever lost their token hears no more.
            if self.checked.elapsed() >= STILL_KNOWN {
                self.in_doubt = match owner(&self.door.tokens, &self.headers).await {
                    Ok(owner) if owner.may(Scope::Call) => false,
                    // It is looked once more, and meanwhile nobody loses an answer.
                    Err(Unknown::Unreadable) if !self.in_doubt => true,
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

/// What is said to a body that is no JSON, or says the same thing twice.
fn refusal(body: &[u8]) -> Option<Response> {
    let (code, message) = match keys::check(body) {
        Ok(()) => return None,
        Err(Bad::Syntax) => (-32700, "the body is no JSON".to_owned()),
        Err(Bad::Twice(said)) => (-32600, said),
    };
    let error = json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}});
    let mut response = said(StatusCode::BAD_REQUEST, &error.to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Some(response)
}

fn stranger(message: &str) -> Response {
    let mut response = said(StatusCode::UNAUTHORIZED, message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn said(status: StatusCode, message: &str) -> Response {
    let mut response = Response::new(Body::from(format!("{message}\n")));
    *response.status_mut() = status;
    response
}
