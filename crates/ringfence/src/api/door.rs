//! Who comes in, and how much of it.
//!
//! A request for another host, or from a page of another origin, is turned away before anything else
//! (`request_source.rs`). Nobody is served without a token. Bodies are bounded, read whole, and may not say the same thing
//! twice.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{Extensions, HeaderMap};
use tokio::time::timeout;

use super::problem::Problem;
use crate::incoming::{BODY_TIME, Bodies, Unknown, Unread, owner, whole};
use crate::lock::lock;
use crate::mcp::connections::ConnectionHandle;
use crate::mcp::keys::{self, Bad};
use crate::request_rate::{RequestRate, TOO_FAST};
use crate::request_source::{SourceCheck, SourceError};
use crate::token_slots::{SlotLimits, SlotPermit, TokenSlots};
use crate::tokens::{Owner, Tokens};

/// Requests at once, those that wait for a person among them.
const REQUESTS: SlotLimits = SlotLimits { per_token: 256, total: 1536, reserved: 256 };

/// Bytes that a page sends to be let in.
const LOGIN_BYTES: usize = 4096;

/// Pages that come in at once, in all and from one address.
const MOST_LOGINS: usize = 16;
const LOGINS_PER_ADDRESS: usize = 4;

/// What stands between the network and the API.
#[derive(Clone, Debug)]
pub(super) struct Door {
    tokens: Tokens,
    source: SourceCheck,
    requests: TokenSlots,
    logins: Logins,
    bodies: Bodies,
    rate: RequestRate,
}

impl Door {
    pub(super) fn new(tokens: Tokens, source: SourceCheck, longest: usize, rate: RequestRate) -> Self {
        Self {
            tokens,
            source,
            requests: TokenSlots::new(REQUESTS),
            logins: Logins::default(),
            bodies: Bodies::new(longest),
            rate,
        }
    }

    /// A slot for a request of a token, as long as it is held.
    pub(super) fn place(&self, who: &Owner) -> Result<SlotPermit, Problem> {
        let full = || format!("{} requests of this token are being served; wait for some", REQUESTS.per_token);
        self.requests.take(who).ok_or_else(|| Problem::too_many(full()))
    }

    /// The body of a login, which shows no token yet: short, and one of few from its address.
    pub(super) async fn read_login(&self, client: Option<IpAddr>, body: Body) -> Result<Bytes, Problem> {
        let _login = self.logins.enter(client).ok_or_else(|| Problem::too_many("too many logins at once"))?;
        timeout(BODY_TIME, whole(body, LOGIN_BYTES)).await.unwrap_or(Err(Unread::Late)).map_err(unread)
    }

    /// Fails for a request that a page of another site may have sent. Gives the client's address.
    pub(super) fn check_source(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<Option<IpAddr>, Problem> {
        let peer = ConnectionHandle::of(extensions).map(ConnectionHandle::peer);
        self.source.check(headers, peer).map_err(|error| match error {
            SourceError::Host => Problem::misdirected(error.to_string()),
            SourceError::Origin => Problem::forbidden(error.to_string()),
        })?;
        Ok(self.source.client(headers, peer))
    }

    /// Who comes, as often as they may.
    pub(super) async fn know(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<Owner, Problem> {
        let owner = self.still_know(headers).await?;
        if let Some(connection) = ConnectionHandle::of(extensions) {
            connection.authenticate(&owner.id);
        }
        match self.rate.take(&owner.id, Instant::now()) {
            true => Ok(owner),
            false => Err(Problem::too_many(TOO_FAST)),
        }
    }

    /// Who is there. To look again whether a token holds is no request.
    pub(super) async fn still_know(&self, headers: &HeaderMap) -> Result<Owner, Problem> {
        owner(&self.tokens, headers).await.map_err(|unknown| match unknown {
            Unknown::ShowsNone | Unknown::Stranger => Problem::stranger(unknown.to_string()),
            Unknown::Unreadable => Problem::internal(unknown.to_string()),
        })
    }

    /// The body, whole. Nothing where there is none.
    pub(super) async fn read(&self, who: &Owner, body: Body) -> Result<Bytes, Problem> {
        self.bodies.read(who, body).await.map_err(unread)
    }
}

/// Logins that are being read, by the address that they come from.
#[derive(Clone, Debug, Default)]
struct Logins(Arc<Mutex<HashMap<Option<IpAddr>, usize>>>);

/// One of them, until it is dropped.
struct Login {
    logins: Logins,
    client: Option<IpAddr>,
}

impl Logins {
    fn enter(&self, client: Option<IpAddr>) -> Option<Login> {
        let mut all = lock(&self.0);
        let own = all.get(&client).copied().unwrap_or_default();
        if own >= LOGINS_PER_ADDRESS || all.values().sum::<usize>() >= MOST_LOGINS {
            return None;
        }
        all.insert(client, own + 1);
        Some(Login { logins: self.clone(), client })
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        let mut all = lock(&self.logins.0);
        match all.get_mut(&self.client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                all.remove(&self.client);
            }
        }
    }
}

fn unread(why: Unread) -> Problem {
    match why {
        Unread::TooLong(_) => Problem::too_large(why.to_string()),
        Unread::Late => Problem::late(why.to_string()),
        Unread::Broken => Problem::bad(why.to_string()),
        Unread::Crowded => Problem::too_many(why.to_string()),
    }
}

/// Fails where a body is no JSON, or says the same thing twice.
pub(super) fn check_json(body: &[u8]) -> Result<(), Problem> {
    keys::check(body).map_err(|bad| match bad {
        Bad::Syntax => Problem::bad("the body is no JSON"),
        Bad::Twice(said) => Problem::bad(said),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::body::Body;
    use axum::http::StatusCode;
    use futures_util::stream::pending;
    use ringfence_kernel::{Assurance, Scope};

    use super::{Door, LOGIN_BYTES, LOGINS_PER_ADDRESS, REQUESTS};
    use crate::lock::lock;
    use crate::request_rate::RequestRate;
    use crate::request_source::{SourceCheck, SourceOptions};
    use crate::tokens::{Owner, Tokens};

    /// A door that takes bodies of a mebibyte.
    fn door() -> Door {
        let tokens = Tokens::new(std::path::Path::new("."));
        let source = SourceCheck::new("127.0.0.1:7431".parse().unwrap(), SourceOptions::default());
        Door::new(tokens, source, 1 << 20, RequestRate::new(10))
    }

    fn who(name: &str) -> Owner {
        Owner {
            id: name.into(),
            name: name.into(),
            scopes: BTreeSet::from([Scope::Call]),
            assurance: Assurance::Relayed,
        }
    }

    #[test]
    fn a_token_has_so_many_places_and_takes_none_of_anothers() {
        let door = door();
        let (greedy, other) = (who("greedy"), who("other"));
        let mut taken: Vec<_> = (0..REQUESTS.per_token).map(|_| door.place(&greedy).unwrap()).collect();
        assert_eq!(door.place(&greedy).unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(door.place(&other).is_ok());
        taken.pop();
        assert!(door.place(&greedy).is_ok());
    }

    #[tokio::test]
    async fn a_login_is_short_and_one_of_few_from_its_address() {
        let door = door();
        let (here, there) = (Some("192.0.2.1".parse().unwrap()), Some("192.0.2.2".parse().unwrap()));
        assert_eq!(door.read_login(here, "x".repeat(LOGIN_BYTES).into()).await.unwrap().len(), LOGIN_BYTES);
        let longer = door.read_login(here, "x".repeat(LOGIN_BYTES + 1).into()).await.unwrap_err();
        assert_eq!(longer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let endless = || Body::from_stream(pending::<Result<&str, std::io::Error>>());
        let _slow: Vec<_> = (0..LOGINS_PER_ADDRESS)
            .map(|_| {
                let door = door.clone();
                tokio::spawn(async move { door.read_login(here, endless()).await })
            })
            .collect();
        while lock(&door.logins.0).get(&here) != Some(&LOGINS_PER_ADDRESS) {
            tokio::task::yield_now().await;
        }
        assert_eq!(door.read_login(here, "x".into()).await.unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(door.read_login(there, "x".into()).await.unwrap(), "x");
        assert_eq!(door.read(&who("agent"), "x".repeat(1 << 20).into()).await.unwrap().len(), 1 << 20);
    }
}
