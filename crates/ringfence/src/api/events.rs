//! Events as a stream that can be taken up again where it broke off.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream::unfold;
use ringfence_kernel::Scope;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Api;
use super::feed::{Feed, Found};
use super::problem::Problem;
use super::reply::reply;
use super::routes::Visit;
use crate::incoming::STILL_KNOWN;
use crate::token_slots::{SlotLimits, SlotPermit, TokenSlots};
use crate::tokens::Owner;

/// How often a stream says that it is there.
const PING: Duration = Duration::from_secs(15);

/// Bytes after which a piece of a stream ends.
const PIECE: usize = 256 << 10;

/// Streams at once.
const STREAMS: SlotLimits = SlotLimits { per_token: 32, total: 512, reserved: 128 };

/// From where to begin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    /// The last event that is known already; the header `Last-Event-ID` says the same. Without either, only what is yet to
    /// come.
    after: Option<u64>,
}

/// The streams that are open.
pub(super) fn streams() -> TokenSlots {
    TokenSlots::new(STREAMS)
}

/// Everything that whoever asks may hear of.
pub(super) async fn all(api: Arc<Api>, visit: Visit, from: From) -> Result<Response, Problem> {
    stream(&api, &api.feed, visit, from, None)
}

/// What happens in one session.
pub(super) async fn of_session(api: Arc<Api>, visit: Visit, from: From) -> Result<Response, Problem> {
    let in_charge = visit.who.may(Scope::Approve) || visit.who.may(Scope::Admin);
    if !in_charge {
        api.sitting(&visit)?;
    }
    let session = visit.name(0).to_owned();
    stream(&api, &api.feed, visit, from, Some(session))
}

struct Stream {
    feed: Feed,
    news: watch::Receiver<u64>,
    who: Owner,
    session: Option<String>,
    last: u64,
    api: Arc<Api>,
    headers: axum::http::HeaderMap,
    stop: CancellationToken,
    begun: bool,
    /// When it was last looked whether the token holds.
    checked: Instant,
    _slot: SlotPermit,
}

/// What a feed tells whoever asks, from where they left off.
pub(super) fn stream(
    api: &Arc<Api>,
    feed: &Feed,
    visit: Visit,
    from: From,
    session: Option<String>,
) -> Result<Response, Problem> {
    let said = visit.headers.get("last-event-id").and_then(|said| said.to_str().ok()?.trim().parse().ok());
    let full = || format!("too many event streams are open; a token may have {}", api.streams.per_token());
    let slot = api.streams.take(&visit.who).ok_or_else(|| Problem::too_many(full()))?;
    let stream = Stream {
        feed: feed.clone(),
        news: feed.watch(),
        last: said.or(from.after).unwrap_or_else(|| feed.last()),
        who: visit.who,
        session,
        api: Arc::clone(api),
        headers: visit.headers,
        stop: api.stop.clone(),
        begun: false,
        checked: Instant::now(),
        _slot: slot,
    };
    let pieces = unfold(stream, |mut stream| async {
        let piece = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(piece)), stream))
    });
    Ok(reply(StatusCode::OK, "text/event-stream", Body::from_stream(pieces)))
}

impl Stream {
    /// The next piece of text. Nothing when the stream is over.
    async fn next(&mut self) -> Option<String> {
        if !self.begun {
            self.begun = true;
            return Some(format!("retry: 1000\n: {}\n\n", self.last));
        }
        let mut quiet = Duration::ZERO;
        loop {
            // Whoever lost their token hears no more.
            if self.checked.elapsed() >= STILL_KNOWN {
                self.who = self.api.door.still_know(&self.headers).await.ok()?;
                self.checked = Instant::now();
            }
            self.news.borrow_and_update();
            let Found { events, is_cut, last } = self.feed.after(self.last, &self.who, self.session.as_deref());
            self.last = last;
            let mut text = String::new();
            if is_cut {
                let before = events.first().map_or(last, |event| event.id - 1);
                text.push_str(&format!("id: {before}\nevent: gap\ndata: {{}}\n\n"));
            }
            for event in events {
                text.push_str(&format!("id: {}\nevent: {}\ndata: {}\n\n", event.id, event.kind, event.told(&self.who)));
                // The rest comes when somebody has read this.
                if text.len() > PIECE {
                    self.last = event.id;
                    break;
                }
            }
            if !text.is_empty() {
                return Some(text);
            }
            let changed = tokio::select! {
                changed = timeout(STILL_KNOWN, self.news.changed()) => changed,
                () = self.stop.cancelled() => return None,
            };
            if changed.is_err() {
                quiet += STILL_KNOWN;
                if quiet >= PING {
                    return Some(": ping\n\n".to_owned());
                }
            }
        }
    }
}
