//! Authentication, scopes and request limits of the API.
//!
//! A request for another host, or from a page of another origin, is refused before anything else (`request_source.rs`).
//! Every request needs a token. Bodies are bounded, read whole, and may not have duplicate keys.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{Extensions, HeaderMap};
use ringfence_kernel::StrictJsonError;
use ringfence_kernel::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::error::ApiError;
use crate::http::listener::ConnectionHandle;
use crate::http::request_auth::{
    AuthError, BODY_TIMEOUT, RequestBodyError, RequestBodyReader, authenticate, read_bounded,
};
use crate::http::request_rate::{RATE_LIMITED, RequestRate};
use crate::http::request_source::{RequestSourceCheck, RequestSourceError};
use crate::http::token_slots::{AccessTokenSlots, TokenSlotLimits, TokenSlotPermit};
use crate::store::tokens::{TokenIdentity, TokenStore};

/// Requests at once, those that wait for a person among them.
const REQUEST_SLOTS: TokenSlotLimits = TokenSlotLimits { per_token: 256, total: 1536, reserved: 256 };

/// Bytes that a page sends to be let in.
const LOGIN_BYTES: usize = 4096;

/// Logins that are read at once, in all and from one address.
const MAX_LOGINS: usize = 16;
const LOGINS_PER_ADDRESS: usize = 4;

/// Authentication layer of the API.
#[derive(Clone, Debug)]
pub(super) struct ApiAuthLayer {
    tokens: TokenStore,
    source: RequestSourceCheck,
    requests: AccessTokenSlots,
    logins: LoginLimiter,
    bodies: RequestBodyReader,
    rate: RequestRate,
}

impl ApiAuthLayer {
    pub(super) fn new(tokens: TokenStore, source: RequestSourceCheck, longest: usize, rate: RequestRate) -> Self {
        Self {
            tokens,
            source,
            requests: AccessTokenSlots::new(REQUEST_SLOTS),
            logins: LoginLimiter::default(),
            bodies: RequestBodyReader::new(longest),
            rate,
        }
    }

    /// A slot for a request of a token, as long as it is held.
    pub(super) fn request_slot(&self, who: &TokenIdentity) -> Result<TokenSlotPermit, ApiError> {
        let full = || {
            format!("this token already has {} requests in flight; retry when some are done", REQUEST_SLOTS.per_token)
        };
        self.requests.acquire(who).ok_or_else(|| ApiError::too_many_requests(full()))
    }

    /// The body of a login, which shows no token yet: short, and one of few from its address.
    pub(super) async fn read_login(&self, client: Option<IpAddr>, body: Body) -> Result<Bytes, ApiError> {
        let login = self.logins.enter(client);
        tokio::select! {
            biased;
            read = timeout(BODY_TIMEOUT, read_bounded(body, LOGIN_BYTES)) => {
                read.unwrap_or(Err(RequestBodyError::Timeout)).map_err(body_error)
            }
            () = login.evicted.cancelled() => Err(ApiError::too_many_requests("too many concurrent logins")),
        }
    }

    /// Fails for a request that a page of another site may have sent. Gives the client's address.
    pub(super) fn check_source(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Option<IpAddr>, ApiError> {
        let peer = ConnectionHandle::from_extensions(extensions).map(ConnectionHandle::peer);
        self.source.check(headers, peer).map_err(|error| match error {
            RequestSourceError::Host => ApiError::misdirected(error.to_string()),
            RequestSourceError::Origin => ApiError::forbidden(error.to_string()),
        })?;
        Ok(self.source.client(headers, peer))
    }

    /// Authenticates a request, and counts it for the rate limit.
    pub(super) async fn authenticate(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<TokenIdentity, ApiError> {
        let owner = self.reauthenticate(headers).await?;
        if let Some(connection) = ConnectionHandle::from_extensions(extensions) {
            connection.authenticate(&owner.id);
        }
        match self.rate.try_acquire(&owner.id, Instant::now()) {
            true => Ok(owner),
            false => Err(ApiError::too_many_requests(RATE_LIMITED)),
        }
    }

    /// Authenticates again without counting a request, for open streams.
    pub(super) async fn reauthenticate(&self, headers: &HeaderMap) -> Result<TokenIdentity, ApiError> {
        authenticate(&self.tokens, headers).await.map_err(|unknown| match unknown {
            AuthError::MissingToken | AuthError::UnknownToken => ApiError::unauthorized(unknown.to_string()),
            AuthError::Unreadable => ApiError::internal(unknown.to_string()),
        })
    }

    /// The body, whole. Nothing where there is none.
    pub(super) async fn read(&self, who: &TokenIdentity, body: Body) -> Result<Bytes, ApiError> {
        self.bodies.read(who, body).await.map_err(body_error)
    }
}

/// Logins that are being read, the oldest first. Where there are too many, the oldest is evicted: a client that sends
/// nothing more cannot keep others out.
#[derive(Clone, Debug, Default)]
struct LoginLimiter(Arc<Mutex<Vec<LoginEntry>>>);

#[derive(Debug)]
struct LoginEntry {
    client: Option<IpAddr>,
    evicted: CancellationToken,
    id: Arc<()>,
}

/// One of them, until it is dropped.
struct LoginPermit {
    logins: LoginLimiter,
    evicted: CancellationToken,
    id: Arc<()>,
}

impl LoginLimiter {
    fn enter(&self, client: Option<IpAddr>) -> LoginPermit {
        let mut all = self.0.lock();
        let from = |client: Option<IpAddr>| all.iter().filter(|login| login.client == client).count();
        let crowded = match from(client) >= LOGINS_PER_ADDRESS {
            true => Some(client),
            // The address with the most logins loses one.
            false if all.len() >= MAX_LOGINS => all.iter().map(|login| login.client).max_by_key(|client| from(*client)),
            false => None,
        };
        if let Some(oldest) = crowded.and_then(|client| all.iter().position(|login| login.client == client)) {
            all.remove(oldest).evicted.cancel();
        }
        let (evicted, id) = (CancellationToken::new(), Arc::new(()));
        all.push(LoginEntry { client, evicted: evicted.clone(), id: Arc::clone(&id) });
        LoginPermit { logins: self.clone(), evicted, id }
    }
}

impl Drop for LoginPermit {
    fn drop(&mut self) {
        self.logins.0.lock().retain(|login| !Arc::ptr_eq(&login.id, &self.id));
    }
}

fn body_error(why: RequestBodyError) -> ApiError {
    match why {
        RequestBodyError::TooLong(_) => ApiError::payload_too_large(why.to_string()),
        RequestBodyError::Timeout => ApiError::request_timeout(why.to_string()),
        RequestBodyError::Aborted => ApiError::bad_request(why.to_string()),
        RequestBodyError::TooMany => ApiError::too_many_requests(why.to_string()),
    }
}

/// Fails where a body is not JSON, or has duplicate keys.
pub(super) fn check_json(body: &[u8]) -> Result<(), ApiError> {
    ringfence_kernel::check_json(body).map_err(|bad| match bad {
        StrictJsonError::Syntax => ApiError::bad_request("the body is not valid JSON"),
        StrictJsonError::DuplicateKey(detail) => ApiError::bad_request(detail),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::StatusCode;
    use futures_util::stream::pending;
    use ringfence_kernel::{Assurance, AuthScope};

    use super::{ApiAuthLayer, LOGIN_BYTES, LOGINS_PER_ADDRESS, MAX_LOGINS, REQUEST_SLOTS};
    use crate::http::request_rate::RequestRate;
    use crate::http::request_source::{RequestSourceCheck, RequestSourceOptions};
    use crate::store::SqliteStore;
    use crate::store::tokens::{TokenIdentity, TokenStore};

    /// An authentication layer with a body limit of one mebibyte.
    fn test_auth_layer() -> ApiAuthLayer {
        let tokens = TokenStore::new(Arc::new(SqliteStore::new(std::path::Path::new("."))));
        let source = RequestSourceCheck::new("127.0.0.1:7431".parse().unwrap(), RequestSourceOptions::default());
        ApiAuthLayer::new(tokens, source, 1 << 20, RequestRate::new(10))
    }

    /// Waits until this number of logins is being read.
    async fn wait_for_logins(layer: &ApiAuthLayer, count: usize) {
        while layer.logins.0.lock().len() != count {
            tokio::task::yield_now().await;
        }
    }

    fn test_identity(name: &str) -> TokenIdentity {
        TokenIdentity {
            id: name.into(),
            name: name.into(),
            scopes: BTreeSet::from([AuthScope::Call]),
            assurance: Assurance::Relayed,
        }
    }

    #[test]
    fn request_slots_are_limited_per_token() {
        let layer = test_auth_layer();
        let (greedy, other) = (test_identity("greedy"), test_identity("other"));
        let mut taken: Vec<_> = (0..REQUEST_SLOTS.per_token).map(|_| layer.request_slot(&greedy).unwrap()).collect();
        assert_eq!(layer.request_slot(&greedy).unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(layer.request_slot(&other).is_ok());
        taken.pop();
        assert!(layer.request_slot(&greedy).is_ok());
    }

    #[tokio::test]
    async fn a_login_is_short_and_one_of_few_from_its_address() {
        let layer = test_auth_layer();
        let (here, there) = (Some("192.0.2.1".parse().unwrap()), Some("192.0.2.2".parse().unwrap()));
        assert_eq!(layer.read_login(here, "x".repeat(LOGIN_BYTES).into()).await.unwrap().len(), LOGIN_BYTES);
        let longer = layer.read_login(here, "x".repeat(LOGIN_BYTES + 1).into()).await.unwrap_err();
        assert_eq!(longer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let endless = || Body::from_stream(pending::<Result<&str, std::io::Error>>());
        let start = |client| {
            let (layer, body) = (layer.clone(), endless());
            tokio::spawn(async move { layer.read_login(client, body).await })
        };
        let mut slow: Vec<_> = (0..LOGINS_PER_ADDRESS).map(|_| start(here)).collect();
        wait_for_logins(&layer, LOGINS_PER_ADDRESS).await;
        // A login that is sent whole gets in, and the oldest unfinished one is evicted.
        assert_eq!(layer.read_login(here, "x".into()).await.unwrap(), "x");
        assert_eq!(slow.remove(0).await.unwrap().unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(slow.iter().all(|login| !login.is_finished()));
        assert_eq!(layer.read_login(there, "x".into()).await.unwrap(), "x");
        assert_eq!(layer.read(&test_identity("agent"), "x".repeat(1 << 20).into()).await.unwrap().len(), 1 << 20);
    }
    #[tokio::test]
    async fn a_login_gets_in_where_many_addresses_hold_all_places() {
        let layer = test_auth_layer();
        let address = |number: usize| Some(std::net::Ipv4Addr::from(0xc000_0200 + number as u32).into());
        let held: Vec<_> = (0..MAX_LOGINS)
            .map(|number| {
                let (layer, body) = (layer.clone(), Body::from_stream(pending::<Result<&str, std::io::Error>>()));
                // One address has two.
                tokio::spawn(async move { layer.read_login(address(number.max(1)), body).await })
            })
            .collect();
        wait_for_logins(&layer, MAX_LOGINS).await;
        assert_eq!(layer.read_login(address(99), "x".into()).await.unwrap(), "x");
        wait_for_logins(&layer, MAX_LOGINS - 1).await;
        let one = layer.logins.0.lock().iter().filter(|login| login.client == address(1)).count();
        assert_eq!(one, 1, "the address with two lost one");
        held.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
