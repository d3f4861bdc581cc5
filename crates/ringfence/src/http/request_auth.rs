//! HTTP request authentication by bearer token, and body limits.
//!
//! A body is bounded and read whole. Long ones of a token wait for each other; a short one never waits, so that a slow
//! sender does not block other calls and approvals.
//!
//! Not here: the response to a refused request. The API and MCP have error formats of their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use futures_util::StreamExt as _;
use ringfence_kernel::sync::Mutex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::http::token_slots::{AccessTokenSlots, TokenSlotLimits};
use crate::process::messages::{error_chain, print_error};
use crate::store::tokens::{TokenIdentity, TokenStore};

/// Long bodies that are read at once; each can be as long as the arguments of a call.
const LONG_BODY_SLOTS: TokenSlotLimits = TokenSlotLimits { per_token: 4, total: 48, reserved: 8 };

/// Bytes of a body that waits for no other.
const SHORT_BODY_BYTES: u64 = 64 << 10;

/// Time for a client to send a body.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which the token of an open stream is checked again.
pub(crate) const TOKEN_RECHECK: Duration = Duration::from_secs(5);

/// Failed authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("token required: `Authorization: Bearer …`")]
    MissingToken,
    #[error("unknown token")]
    UnknownToken,
    #[error("cannot read the tokens")]
    Unreadable,
}

/// The identity of a request's token.
pub(crate) async fn authenticate(tokens: &TokenStore, headers: &HeaderMap) -> Result<TokenIdentity, AuthError> {
    let shown = headers.get(AUTHORIZATION).and_then(|shown| shown.to_str().ok());
    let token =
        shown.and_then(|shown| shown.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let (_, token) = token.ok_or(AuthError::MissingToken)?;
    let (tokens, token) = (tokens.clone(), token.trim().to_owned());
    match spawn_blocking(move || tokens.authenticate(&token)).await {
        Ok(Ok(owner)) => owner.ok_or(AuthError::UnknownToken),
        Ok(Err(error)) => {
            print_error(&format!("cannot authenticate a request: {}", error_chain(&error)));
            Err(AuthError::Unreadable)
        }
        Err(_) => Err(AuthError::Unreadable),
    }
}

/// Failure to read a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestBodyError {
    #[error("the request body is larger than {0} bytes")]
    TooLong(usize),
    #[error("the request timed out")]
    Timeout,
    #[error("the request was interrupted")]
    Aborted,
    #[error("too many large requests in flight; try again in a moment")]
    TooMany,
}

/// Reader of request bodies.
#[derive(Clone, Debug)]
pub(crate) struct RequestBodyReader {
    /// Those of each token wait for each other.
    queues: Arc<Mutex<HashMap<Arc<str>, Arc<Semaphore>>>>,
    long: AccessTokenSlots,
    max_bytes: usize,
}

impl RequestBodyReader {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { queues: Arc::default(), long: AccessTokenSlots::new(LONG_BODY_SLOTS), max_bytes }
    }

    /// The body, whole. Nothing where there is none.
    pub(crate) async fn read(&self, who: &TokenIdentity, body: Body) -> Result<Bytes, RequestBodyError> {
        let is_short = body.size_hint().upper().is_some_and(|most| most <= SHORT_BODY_BYTES);
        let reading = async {
            if is_short {
                return read_bounded(body, self.max_bytes).await;
            }
            // The semaphore is never closed, so this only ever waits.
            let _turn = self.queue(who).acquire_owned().await.ok();
            let _slot = self.long.acquire(who).ok_or(RequestBodyError::TooMany)?;
            read_bounded(body, self.max_bytes).await
        };
        timeout(BODY_TIMEOUT, reading).await.unwrap_or(Err(RequestBodyError::Timeout))
    }

    /// There are as many as there are tokens.
    fn queue(&self, who: &TokenIdentity) -> Arc<Semaphore> {
        let new = || Arc::new(Semaphore::new(LONG_BODY_SLOTS.per_token));
        Arc::clone(self.queues.lock().entry(Arc::clone(&who.id)).or_insert_with(new))
    }
}

/// Reads a body, within a limit in bytes.
pub(crate) async fn read_bounded(body: Body, most: usize) -> Result<Bytes, RequestBodyError> {
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| RequestBodyError::Aborted)?;
        if piece.len() > most - bytes.len() {
            return Err(RequestBodyError::TooLong(most));
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
    use ringfence_kernel::{Assurance, AuthScope};
    use tokio::time::timeout;

    use super::{LONG_BODY_SLOTS, RequestBodyError, RequestBodyReader};
    use crate::store::tokens::TokenIdentity;

    fn test_identity(name: &str) -> TokenIdentity {
        TokenIdentity {
            id: name.into(),
            name: name.into(),
            scopes: BTreeSet::from([AuthScope::Call]),
            assurance: Assurance::Relayed,
        }
    }

    #[tokio::test]
    async fn long_bodies_that_never_come_hold_up_their_own_token_s_long_ones_alone() {
        let bodies = RequestBodyReader::new(10);
        let endless = || Body::from_stream(pending::<Result<&str, std::io::Error>>());
        let _slow: Vec<_> = (0..2 * LONG_BODY_SLOTS.per_token)
            .map(|_| {
                let bodies = bodies.clone();
                tokio::spawn(async move { bodies.read(&test_identity("slow"), endless()).await })
            })
            .collect();
        while bodies.long.count() < LONG_BODY_SLOTS.per_token {
            tokio::task::yield_now().await;
        }
        let limit = Duration::from_secs(20);
        let short = timeout(limit, bodies.read(&test_identity("slow"), "short".into())).await;
        assert_eq!(short.unwrap().unwrap(), "short");
        let long = || Body::from_stream(iter([Ok::<_, std::io::Error>("long")]));
        let other = timeout(limit, bodies.read(&test_identity("other"), long())).await;
        assert_eq!(other.unwrap().unwrap(), "long");
        assert_eq!(bodies.queue(&test_identity("slow")).available_permits(), 0);
    }

    #[tokio::test]
    async fn a_body_is_as_long_as_it_may_be_and_no_longer() {
        let (bodies, who) = (RequestBodyReader::new(10), test_identity("agent"));
        assert_eq!(bodies.read(&who, "0123456789".into()).await.unwrap().len(), 10);
        assert_eq!(bodies.read(&who, "0123456789x".into()).await, Err(RequestBodyError::TooLong(10)));
        let pieces = |last| Body::from_stream(iter(["01234", "5678", last].map(Ok::<_, std::io::Error>)));
        assert_eq!(bodies.read(&who, pieces("9")).await.unwrap(), "0123456789");
        assert_eq!(bodies.read(&who, pieces("9x")).await, Err(RequestBodyError::TooLong(10)));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_not_too_long() {
        let broken = iter([Ok("01"), Err(std::io::Error::other("gone"))]);
        assert_eq!(
            RequestBodyReader::new(10).read(&test_identity("agent"), Body::from_stream(broken)).await,
            Err(RequestBodyError::Aborted)
        );
    }
}
