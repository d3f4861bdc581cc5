//! What every request over HTTP brings: a token that it shows, and a body.
//!
//! A body is bounded and read whole. Long ones of a token wait for each other; a short one never waits, so that a slow
//! sender keeps nobody else from calling, or from saying yes or no.
//!
//! Not here: what is said to a request that is turned away. The API and the Model Context Protocol have words of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use futures_util::StreamExt as _;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::lock::lock;
use crate::token_slots::{SlotLimits, TokenSlots};
use crate::tokens::{Owner, Tokens};

/// Long bodies that are read at once; each can be as long as the arguments of a call.
const LONG: SlotLimits = SlotLimits { per_token: 4, total: 48, reserved: 8 };

/// Bytes of a body that waits for no other.
const SHORT: u64 = 64 << 10;

/// How long a client may take to send one.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(30);

/// How often it is looked whether the token of an open stream still holds.
pub(crate) const STILL_KNOWN: Duration = Duration::from_secs(5);

/// Why it is not known who comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    #[error("show a token: `Authorization: Bearer …`")]
    ShowsNone,
    #[error("this token is not known here")]
    Stranger,
    #[error("the tokens cannot be read")]
    Unreadable,
}

/// Whose token a request shows.
pub(crate) async fn owner(tokens: &Tokens, headers: &HeaderMap) -> Result<Owner, Unknown> {
    let shown = headers.get(AUTHORIZATION).and_then(|shown| shown.to_str().ok());
    let token =
        shown.and_then(|shown| shown.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let (_, token) = token.ok_or(Unknown::ShowsNone)?;
    let (tokens, token) = (tokens.clone(), token.trim().to_owned());
    match spawn_blocking(move || tokens.owner(&token)).await {
        Ok(Ok(owner)) => owner.ok_or(Unknown::Stranger),
        Ok(Err(_)) | Err(_) => Err(Unknown::Unreadable),
    }
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    #[error("a request may have {0} bytes")]
    TooLong(usize),
    #[error("the request did not come in time")]
    Late,
    #[error("the request broke off")]
    Broken,
    #[error("too many long requests are being read; try again in a moment")]
    Crowded,
}

/// Where bodies are read.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    /// Those of each token wait for each other.
    queues: Arc<Mutex<HashMap<Arc<str>, Arc<Semaphore>>>>,
    long: TokenSlots,
    longest: usize,
}

impl Bodies {
    pub(crate) fn new(longest: usize) -> Self {
        Self { queues: Arc::default(), long: TokenSlots::new(LONG), longest }
    }

    /// The body, whole. Nothing where there is none.
    pub(crate) async fn read(&self, who: &Owner, body: Body) -> Result<Bytes, Unread> {
        let is_short = body.size_hint().upper().is_some_and(|most| most <= SHORT);
        let reading = async {
            if is_short {
                return whole(body, self.longest).await;
            }
            // The semaphore is never closed, so this only ever waits.
            let _turn = self.queue(who).acquire_owned().await.ok();
            let _slot = self.long.take(who).ok_or(Unread::Crowded)?;
            whole(body, self.longest).await
        };
        timeout(BODY_TIME, reading).await.unwrap_or(Err(Unread::Late))
    }

    /// There are as many as there are tokens.
    fn queue(&self, who: &Owner) -> Arc<Semaphore> {
        let new = || Arc::new(Semaphore::new(LONG.per_token));
        Arc::clone(lock(&self.queues).entry(Arc::clone(&who.id)).or_insert_with(new))
    }
}

/// A body of at most so many bytes.
pub(crate) async fn whole(body: Body, most: usize) -> Result<Bytes, Unread> {
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Unread::Broken)?;
        if piece.len() > most - bytes.len() {
            return Err(Unread::TooLong(most));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use axum::body::Body;
    use futures_util::stream::{iter, pending};
    use ringfence_kernel::{Assurance, Scope};
    use tokio::time::timeout;

    use super::{Bodies, LONG, Unread};
    use crate::tokens::Owner;

    fn who(name: &str) -> Owner {
        Owner {
            id: name.into(),
            name: name.into(),
            scopes: BTreeSet::from([Scope::Call]),
            assurance: Assurance::Relayed,
        }
    }

    #[tokio::test]
    async fn long_bodies_that_never_come_hold_up_their_own_token_s_long_ones_alone() {
        let bodies = Bodies::new(10);
        let endless = || Body::from_stream(pending::<Result<&str, std::io::Error>>());
        let _slow: Vec<_> = (0..2 * LONG.per_token)
            .map(|_| {
                let bodies = bodies.clone();
                tokio::spawn(async move { bodies.read(&who("slow"), endless()).await })
            })
            .collect();
        while bodies.long.count() < LONG.per_token {
            tokio::task::yield_now().await;
        }
        let patience = Duration::from_secs(20);
        let short = timeout(patience, bodies.read(&who("slow"), "short".into())).await;
        assert_eq!(short.unwrap().unwrap(), "short");
        let long = || Body::from_stream(iter([Ok::<_, std::io::Error>("long")]));
        let other = timeout(patience, bodies.read(&who("other"), long())).await;
        assert_eq!(other.unwrap().unwrap(), "long");
        assert_eq!(bodies.queue(&who("slow")).available_permits(), 0);
    }

    #[tokio::test]
    async fn a_body_is_as_long_as_it_may_be_and_no_longer() {
        let (bodies, who) = (Bodies::new(10), who("agent"));
        assert_eq!(bodies.read(&who, "0123456789".into()).await.unwrap().len(), 10);
        assert_eq!(bodies.read(&who, "0123456789x".into()).await, Err(Unread::TooLong(10)));
        let pieces = |last| Body::from_stream(iter(["01234", "5678", last].map(Ok::<_, std::io::Error>)));
        assert_eq!(bodies.read(&who, pieces("9")).await.unwrap(), "0123456789");
        assert_eq!(bodies.read(&who, pieces("9x")).await, Err(Unread::TooLong(10)));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_not_too_long() {
        let broken = iter([Ok("01"), Err(std::io::Error::other("gone"))]);
        assert_eq!(Bodies::new(10).read(&who("agent"), Body::from_stream(broken)).await, Err(Unread::Broken));
    }
}
