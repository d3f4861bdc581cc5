//! One session of a client with the host, and what this front knows about it beside.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::http::request::Parts;
use ringfence_kernel::{Host, Principal, Scope, Session};
use rmcp::RoleServer;
use rmcp::model::ErrorData;
use rmcp::service::RequestContext;
use tokio::sync::{Mutex as Line, MutexGuard};

use super::client::Era;
use super::put_off::PutOff;
use crate::pasts::Pasts;
use crate::session_owners::{SessionOwners, SessionOwnership};
use crate::tokens::Owner;
use crate::wire::Wired;

/// Whether the client was asked what it has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    No,
    Yes,
}

/// A session, and what goes with it.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) session: Arc<Session>,
    host: Host,
    /// Whose it is, where the door let them in.
    _owner: Option<SessionOwnership>,
    pub(super) put_off: PutOff,
    /// Whether the session is narrowed to what the client has open.
    pub(super) roots: Line<Known>,
    /// Held by a call that may change something.
    changes: Line<()>,
    calls: AtomicU64,
}

impl Talk {
    pub(super) fn new(session: Arc<Session>, host: Host, owner: Option<SessionOwnership>) -> Arc<Self> {
        Arc::new(Self {
            session,
            host,
            _owner: owner,
            put_off: PutOff::default(),
            roots: Line::new(Known::No),
            changes: Line::new(()),
            calls: AtomicU64::new(0),
        })
    }

    /// A number for the next call.
    pub(super) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Bytes that a message to the client may have.
    pub(super) fn most(&self) -> usize {
        usize::try_from(self.session.limits.reply_bytes).unwrap_or(usize::MAX)
    }

    /// Waits until no call that came before may still change something. At once where this one only reads.
    pub(super) async fn turn(&self, tool: &str) -> Option<MutexGuard<'_, ()>> {
        let only_reads = self.session.catalog.get(tool).is_none_or(|tool| tool.effect.only_reads());
        if only_reads { None } else { Some(self.changes.lock().await) }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        if !self.put_off.is_empty() {
            // Nobody is left who could be told that it failed, and the requests end by themselves too.
            let _ = self.host.withdraw_requests(&self.session.id);
        }
    }
}

/// Somebody who came with a token, as the door let them in.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    /// The id of the token.
    token: Arc<str>,
    name: Arc<str>,
    /// Answers that its client gives count as relayed from a person, and not as the agent's own.
    may_relay: bool,
}

impl Visitor {
    pub(super) fn new(owner: &Owner) -> Self {
        Self { token: Arc::clone(&owner.id), name: Arc::clone(&owner.name), may_relay: owner.may(Scope::Relay) }
    }

    fn of(context: &RequestContext<RoleServer>) -> Option<&Self> {
        context.extensions.get::<Parts>()?.extensions.get()
    }
}

/// The talks of visitors.
#[derive(Clone, Debug)]
pub(super) struct Talks {
    /// What sessions are like.
    model: Arc<Session>,
    /// The workspace, by a name that no other directory has.
    directory: Arc<str>,
    /// What visitors have been through there.
    pasts: Pasts,
    owners: SessionOwners,
    /// Of those whose protocol has no sessions: one each.
    lasting: Arc<Mutex<HashMap<Arc<str>, Arc<Talk>>>>,
    host: Host,
}

impl Talks {
    pub(super) fn new(wired: &Wired, pasts: Pasts, owners: SessionOwners) -> Self {
        let (model, directory) = (Arc::clone(&wired.session), Arc::from(wired.directory.as_str()));
        Self { model, directory, pasts, owners, lasting: Arc::default(), host: wired.host.clone() }
    }

    /// A talk of a visitor.
    fn begin(&self, visitor: &Visitor, id: String) -> Arc<Talk> {
        let bits = self.pasts.of(&visitor.token, &self.directory);
        let session = Session { bits, ..self.model.like(id, Principal::agent(&*visitor.name)) };
        let owner = self.owners.register(&session, &visitor.token);
        Talk::new(Arc::new(session), self.host.clone(), Some(owner))
    }

    /// The one talk of a visitor. There are as many as there are tokens.
    fn lasting(&self, visitor: &Visitor) -> Arc<Talk> {
        let mut talks = self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || self.begin(visitor, format!("http-{}", visitor.token));
        Arc::clone(talks.entry(Arc::clone(&visitor.token)).or_insert_with(new))
    }
}

/// Where a connection has its talk from.
#[derive(Debug)]
pub(super) enum Source {
    /// There is one client, and it is known.
    Given(Arc<Talk>),
    /// Whoever the door lets in.
    Door(Box<Guest>),
}

/// A connection through the door.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) talks: Talks,
    /// The token whose connection it is, where it has a session of its own.
    pub(super) own: OnceLock<(Arc<str>, Arc<Talk>)>,
}

impl Source {
    /// The talk that a request belongs to.
    pub(super) fn talk(&self, era: Era, context: &RequestContext<RoleServer>) -> Result<Arc<Talk>, ErrorData> {
        let guest = match self {
            Self::Given(talk) => return Ok(Arc::clone(talk)),
            Self::Door(guest) => guest,
        };
        let visitor = Visitor::of(context);
        let visitor = visitor.ok_or_else(|| ErrorData::internal_error("nobody was let in", None))?;
        if era == Era::Stateless {
            return Ok(guest.talks.lasting(visitor));
        }
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|_| ErrorData::internal_error("the system gives no random bytes", None))?;
        let id = format!("http-{:016x}", u64::from_ne_bytes(bytes));
        let new = || (Arc::clone(&visitor.token), guest.talks.begin(visitor, id));
        match guest.own.get_or_init(new) {
            (owner, talk) if *owner == visitor.token => Ok(Arc::clone(talk)),
            _ => Err(ErrorData::invalid_request("this session belongs to another token", None)),
        }
    }

    /// Whether the client's own answer to an approval request counts. On standard input and output the user started the
    /// client; over HTTP the client is the agent, unless its token says otherwise.
    pub(super) fn may_relay(&self, context: &RequestContext<RoleServer>) -> bool {
        match self {
            Self::Given(_) => true,
            Self::Door(_) => Visitor::of(context).is_some_and(|visitor| visitor.may_relay),
        }
    }

    /// What sessions here are like.
    pub(super) fn model(&self) -> &Session {
        match self {
            Self::Given(talk) => &talk.session,
            Self::Door(guest) => &guest.talks.model,
        }
    }

    /// The talk that ends with this connection, if one does.
    pub(super) fn own(&self) -> Option<&Talk> {
        match self {
            Self::Given(talk) => Some(talk),
            Self::Door(guest) => guest.own.get().map(|(_, talk)| talk.as_ref()),
        }
    }
}
