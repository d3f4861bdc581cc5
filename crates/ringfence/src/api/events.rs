//! Server-sent event streams that can be resumed by `Last-Event-ID`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream::unfold;
use ringfence_kernel::AuthScope;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::feed::{EventFeed, FeedBatch};
use crate::api::json::response_with;
use crate::api::routes::ApiRequestContext;
use crate::http::request_auth::TOKEN_RECHECK;
use crate::http::token_slots::{AccessTokenSlots, TokenSlotLimits, TokenSlotPermit};
use crate::store::tokens::TokenIdentity;

/// Interval of keep-alive comments of a stream.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// Bytes after which a piece of a stream ends.
const CHUNK_BYTES: usize = 256 << 10;

/// Streams at once.
const STREAM_SLOTS: TokenSlotLimits = TokenSlotLimits { per_token: 32, total: 512, reserved: 128 };

/// Start position of the stream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    /// The id of the last event already received, like the header `Last-Event-ID`. Without either, only new events are
    /// sent.
    after: Option<u64>,
}

/// The streams that are open.
pub(super) fn stream_slots() -> AccessTokenSlots {
    AccessTokenSlots::new(STREAM_SLOTS)
}

/// All events that the token may see.
pub(super) async fn all_events(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    from: EventsQuery,
) -> Result<Response, ApiError> {
    open_stream(&api, &api.feed, context, from, None)
}

/// The events of one session.
pub(super) async fn session_events(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    from: EventsQuery,
) -> Result<Response, ApiError> {
    let in_charge = context.identity.has_scope(AuthScope::Approve) || context.identity.has_scope(AuthScope::Admin);
    if !in_charge {
        api.session_for(&context)?;
    }
    let session = context.path_param(0).to_owned();
    open_stream(&api, &api.feed, context, from, Some(session))
}

struct ApiEventStream {
    feed: EventFeed,
    news: watch::Receiver<u64>,
    identity: TokenIdentity,
    session: Option<String>,
    last: u64,
    api: Arc<ApiState>,
    headers: axum::http::HeaderMap,
    stop: CancellationToken,
    started: bool,
    /// When it was last looked whether the token holds.
    checked: Instant,
    _slot: TokenSlotPermit,
}

/// A stream of the feed, from the client's last event on.
pub(super) fn open_stream(
    api: &Arc<ApiState>,
    feed: &EventFeed,
    context: ApiRequestContext,
    from: EventsQuery,
    session: Option<String>,
) -> Result<Response, ApiError> {
    let last_event_id =
        context.headers.get("last-event-id").and_then(|last_event_id| last_event_id.to_str().ok()?.trim().parse().ok());
    let full = || format!("too many open event streams; a token may have {}", api.streams.per_token());
    let slot = api.streams.acquire(&context.identity).ok_or_else(|| ApiError::too_many_requests(full()))?;
    let stream = ApiEventStream {
        feed: feed.clone(),
        news: feed.watch(),
        last: last_event_id.or(from.after).unwrap_or_else(|| feed.last()),
        identity: context.identity,
        session,
        api: Arc::clone(api),
        headers: context.headers,
        stop: api.stop.clone(),
        started: false,
        checked: Instant::now(),
        _slot: slot,
    };
    let pieces = unfold(stream, |mut stream| async {
        let piece = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(piece)), stream))
    });
    Ok(response_with(StatusCode::OK, "text/event-stream", Body::from_stream(pieces)))
}

impl ApiEventStream {
    /// The next piece of text. Nothing when the stream is over.
    async fn next(&mut self) -> Option<String> {
        if !self.started {
            self.started = true;
            return Some(format!("retry: 1000\n: {}\n\n", self.last));
        }
        let mut quiet = Duration::ZERO;
        loop {
            // A stream ends with its token.
            if self.checked.elapsed() >= TOKEN_RECHECK {
                self.identity = self.api.auth.reauthenticate(&self.headers).await.ok()?;
                self.checked = Instant::now();
            }
            self.news.borrow_and_update();
            let FeedBatch { events, has_gap: is_cut, last } =
                self.feed.events_after(self.last, &self.identity, self.session.as_deref());
            self.last = last;
            let mut text = String::new();
            if is_cut {
                let before = events.first().map_or(last, |event| event.id - 1);
                text.push_str(&format!("id: {before}\nevent: gap\ndata: {{}}\n\n"));
            }
            for event in events {
                text.push_str(&format!(
                    "id: {}\nevent: {}\ndata: {}\n\n",
                    event.id,
                    event.kind,
                    event.json_for(&self.identity)
                ));
                // The rest follows once this chunk was read.
                if text.len() > CHUNK_BYTES {
                    self.last = event.id;
                    break;
                }
            }
            if !text.is_empty() {
                return Some(text);
            }
            let changed = tokio::select! {
                changed = timeout(TOKEN_RECHECK, self.news.changed()) => changed,
                () = self.stop.cancelled() => return None,
            };
            if changed.is_err() {
                quiet += TOKEN_RECHECK;
                if quiet >= PING_INTERVAL {
                    return Some(": ping\n\n".to_owned());
                }
            }
        }
    }
}
