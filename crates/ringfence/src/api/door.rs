//! Who comes in, and how much of it.
//!
//! A request for another host, or from a page of another origin, is turned away before anything else: a browser could
//! send one on behalf of a page that the user never trusted. Nobody is served without a token. Bodies are bounded, read
//! whole, and may not say the same thing twice.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::Problem;
use crate::incoming::{BODY_TIME, Bodies, Unknown, Unread, owner, whole};
use crate::lock::lock;
use crate::mcp::keys::{self, Bad};
use crate::tokens::{Owner, Tokens};

/// Requests of one token at once, those that wait for a person among them. A page has as many of its own, so that no agent
/// keeps a person out.
const MOST: usize = 256;

/// Bytes that a page sends to be let in.
const LOGIN_BYTES: usize = 4096;

/// Pages that come in at once.
const MOST_LOGINS: usize = 16;

/// What stands between the network and the API.
#[derive(Clone, Debug)]
pub(super) struct Door {
    tokens: Tokens,
    /// What a request may call this server.
    hosts: Arc<[String]>,
    /// Pages that may call.
    origins: Arc<[String]>,
    requests: Arc<Mutex<HashMap<Arc<str>, Arc<Semaphore>>>>,
    logins: Arc<Semaphore>,
    bodies: Bodies,
    rates: Arc<Rates>,
}

impl Door {
    pub(super) fn new(tokens: Tokens, address: SocketAddr, origins: &[String], longest: usize, rate: u32) -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned(), bracketed(address)];
        let port = address.port();
        let hosts: Vec<String> = names.iter().map(|name| format!("{name}:{port}")).collect();
        let own = hosts.iter().map(|host| format!("http://{host}"));
        Self {
            tokens,
            origins: own.chain(origins.iter().cloned()).collect(),
            hosts: hosts.into(),
            requests: Arc::default(),
            logins: Arc::new(Semaphore::new(MOST_LOGINS)),
            bodies: Bodies::new(longest),
            rates: Arc::new(Rates { a_second: rate, left: Mutex::default() }),
        }
    }

    /// A place for a request of somebody, as long as it is held. There are as many as there are tokens.
    pub(super) fn place(&self, who: &Owner) -> Result<OwnedSemaphorePermit, Problem> {
        let mut all = lock(&self.requests);
        let theirs = all.entry(Arc::clone(&who.name)).or_insert_with(|| Arc::new(Semaphore::new(MOST)));
        let place = Arc::clone(theirs).try_acquire_owned();
        place.map_err(|_| Problem::too_many(format!("{MOST} requests of this token are being served; wait for some")))
    }

    /// What somebody says who is not known yet: little, and in places of its own.
    pub(super) async fn read_login(&self, body: Body) -> Result<Bytes, Problem> {
        let _room = self.logins.try_acquire().map_err(|_| Problem::too_many("too many pages come in at once"))?;
        timeout(BODY_TIME, whole(body, LOGIN_BYTES)).await.unwrap_or(Err(Unread::Late)).map_err(unread)
    }

    /// Fails for a request that a page of somebody else may have sent.
    pub(super) fn check_source(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
            return Err(Problem::misdirected("this server does not go by that name"));
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_known = |origin: &axum::http::HeaderValue| self.origins.iter().any(|known| origin == known.as_str());
        match origins.all(is_known) {
            true => Ok(()),
            false => Err(Problem::forbidden("pages of this origin may not call; `--origin` allows one")),
        }
    }

    /// Who comes, as often as they may.
    pub(super) async fn know(&self, headers: &HeaderMap) -> Result<Owner, Problem> {
        let owner = self.still_know(headers).await?;
        match self.rates.take(&owner.name, Instant::now()) {
            true => Ok(owner),
            false => Err(Problem::too_many("requests come too fast with this token; try again in a moment")),
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
    pub(super) async fn read(&self, body: Body) -> Result<Bytes, Problem> {
        self.bodies.read(body).await.map_err(unread)
    }
}

fn unread(why: Unread) -> Problem {
    match why {
        Unread::TooLong(_) => Problem::too_large(why.to_string()),
        Unread::Late => Problem::late(why.to_string()),
        Unread::Broken => Problem::bad(why.to_string()),
    }
}

/// Fails where a body is no JSON, or says the same thing twice.
pub(super) fn check_json(body: &[u8]) -> Result<(), Problem> {
    keys::check(body).map_err(|bad| match bad {
        Bad::Syntax => Problem::bad("the body is no JSON"),
        Bad::Twice(said) => Problem::bad(said),
    })
}

fn bracketed(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

/// How many requests each token may still make now. It fills up as time goes by.
#[derive(Debug)]
struct Rates {
    a_second: u32,
    left: Mutex<HashMap<Arc<str>, (f64, Instant)>>,
}

impl Rates {
    fn take(&self, name: &Arc<str>, now: Instant) -> bool {
        let most = f64::from(self.a_second) * 2.0;
        let mut left = lock(&self.left);
        let (there, since) = left.entry(Arc::clone(name)).or_insert((most, now));
        let grown = now.saturating_duration_since(*since).as_secs_f64() * f64::from(self.a_second);
        *there = (*there + grown).min(most);
        *since = now;
        let fits = *there >= 1.0;
        if fits {
            *there -= 1.0;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use axum::body::Body;
    use axum::http::{HeaderMap, HeaderValue, StatusCode};
    use futures_util::stream::pending;
    use ringfence_kernel::{Assurance, Scope};

    use super::{Door, LOGIN_BYTES, MOST, MOST_LOGINS, Rates};
    use crate::tokens::{Owner, Tokens};

    /// A door that takes bodies of a mebibyte.
    fn door() -> Door {
        let tokens = Tokens::new(std::path::Path::new("."));
        Door::new(tokens, "127.0.0.1:7431".parse().unwrap(), &["http://a.example".to_owned()], 1 << 20, 10)
    }

    #[test]
    fn a_token_has_so_many_places_and_takes_none_of_anothers() {
        let door = door();
        let who = |name: &str| Owner {
            name: name.into(),
            scopes: BTreeSet::from([Scope::Call]),
            assurance: Assurance::Relayed,
        };
        let (greedy, other) = (who("greedy"), who("other"));
        let mut taken: Vec<_> = (0..MOST).map(|_| door.place(&greedy).unwrap()).collect();
        assert_eq!(door.place(&greedy).unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(door.place(&other).is_ok());
        taken.pop();
        assert!(door.place(&greedy).is_ok());
    }

    #[tokio::test]
    async fn who_is_not_known_yet_says_little_and_in_places_of_its_own() {
        let door = door();
        assert_eq!(door.read_login("x".repeat(LOGIN_BYTES).into()).await.unwrap().len(), LOGIN_BYTES);
        let longer = door.read_login("x".repeat(LOGIN_BYTES + 1).into()).await.unwrap_err();
        assert_eq!(longer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let endless = || Body::from_stream(pending::<Result<&str, std::io::Error>>());
        let _slow: Vec<_> = (0..MOST_LOGINS)
            .map(|_| {
                let door = door.clone();
                tokio::spawn(async move { door.read_login(endless()).await })
            })
            .collect();
        while door.logins.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(door.read_login("x".into()).await.unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(door.read("x".repeat(1 << 20).into()).await.unwrap().len(), 1 << 20);
    }

    #[test]
    fn only_who_means_this_server_and_comes_from_its_own_pages_is_heard() {
        let door = door();
        let check = |host: Option<&'static str>, origins: &[&'static str]| {
            let mut headers = HeaderMap::new();
            host.map(|host| headers.insert("host", HeaderValue::from_static(host)));
            for origin in origins {
                headers.append("origin", HeaderValue::from_static(origin));
            }
            door.check_source(&headers).is_ok()
        };
        for host in ["localhost:7431", "LOCALHOST:7431", "127.0.0.1:7431", "[::1]:7431"] {
            assert!(check(Some(host), &[]), "{host}");
        }
        for host in ["localhost", "localhost:80", "evil.example:7431", "127.0.0.1:7431@evil", "", "127.0.0.1.evil:7431"]
        {
            assert!(!check(Some(host), &[]), "{host}");
        }
        assert!(!check(None, &[]));
        let origin = |origins: &[&'static str]| check(Some("localhost:7431"), origins);
        assert!(origin(&["http://localhost:7431"]) && origin(&["http://a.example"]));
        for bad in
            [&["null"] as &[_], &["http://evil"], &["https://localhost:7431"], &["http://a.example", "http://evil"]]
        {
            assert!(!origin(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_token_has_so_many_requests_a_second_and_another_one_has_its_own() {
        let rates = Rates { a_second: 2, left: Mutex::new(HashMap::new()) };
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let now = Instant::now();
        let taken = (0..10).filter(|_| rates.take(&one, now)).count();
        assert_eq!(taken, 4);
        assert!(rates.take(&other, now));
        assert!(rates.take(&one, now + Duration::from_millis(500)));
        assert!(!rates.take(&one, now + Duration::from_millis(500)));
    }
}
