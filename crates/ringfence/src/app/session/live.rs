//! Live session: a session of a host that a frontend has open, with its work in flight.
//!
//! Calls that may change the same file take turns, in the order in which they came; calls that only read never wait. An ID is
//! of one piece of work at a time, and cancels it. A session of a token shares its taint with the token's other sessions on
//! the workspace, and is registered as the token's for as long as it lives.
//!
//! Not here: the protocol of a frontend. It keeps that state beside this one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{Host, Session, StoreError};
use tokio_util::sync::CancellationToken;

use crate::app::session::change_queue::{ChangePermit, ChangeQueue};
use crate::app::session::owners::{SessionOwners, SessionOwnership};
use crate::app::session::taint::TokenTaint;

/// A session that a frontend has open.
#[derive(Debug)]
pub(crate) struct LiveSession {
    pub(crate) session: Arc<Session>,
    pub(crate) host: Host,
    /// The work in flight, by its ID.
    in_flight: Mutex<HashMap<String, CancellationToken>>,
    /// Calls that may change something.
    changes: ChangeQueue,
    call_count: AtomicU64,
    /// The token that it belongs to, if it belongs to one.
    _owner: Option<SessionOwnership>,
}

impl LiveSession {
    /// The session of a local client.
    pub(crate) fn new(session: Arc<Session>, host: Host) -> Arc<Self> {
        Self::with_owner(session, host, None)
    }

    fn with_owner(session: Arc<Session>, host: Host, owner: Option<SessionOwnership>) -> Arc<Self> {
        let (in_flight, changes, call_count) = Default::default();
        Arc::new(Self { session, host, in_flight, changes, call_count, _owner: owner })
    }

    pub(crate) fn next_call_id(&self) -> String {
        format!("call-{}", self.call_count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Enters a call or a prompt. Nothing where one of this ID is in flight.
    pub(crate) fn begin(self: &Arc<Self>, id: &str) -> Option<InFlightWork> {
        let mut in_flight = self.in_flight.lock();
        if in_flight.contains_key(id) {
            return None;
        }
        let cancel = CancellationToken::new();
        in_flight.insert(id.to_owned(), cancel.clone());
        Some(InFlightWork { session: Arc::clone(self), id: id.to_owned(), cancel })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.lock().is_empty()
    }

    /// Cancels a call or a prompt. False where none of this ID is in flight.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        self.in_flight.lock().get(id).map(CancellationToken::cancel).is_some()
    }

    pub(crate) fn cancel_all(&self) {
        self.in_flight.lock().values().for_each(CancellationToken::cancel);
    }

    /// Waits until no call that came before may still change what this one may. At once where this one only reads, or is
    /// cancelled: the host reports what becomes of a cancelled call.
    pub(crate) async fn change_turn(
        &self,
        tool: &str,
        arguments: &str,
        cancel: &CancellationToken,
    ) -> Option<ChangePermit<'_>> {
        tokio::select! {
            turn = self.changes.acquire(&self.session, tool, arguments) => turn,
            () = cancel.cancelled() => None,
        }
    }

    /// Ends what tools keep for the session, such as background jobs.
    pub(crate) fn end_tools(&self) {
        self.session.catalog.end_session(&self.session.id);
    }

    /// Withdraws the approval requests of the session.
    pub(crate) fn withdraw_requests(&self) -> Result<(), StoreError> {
        self.host.withdraw_requests(&self.session.id)
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.end_tools();
    }
}

/// Ends what tools keep for a session when it is dropped: for work after which no call of the session comes, also where it
/// panics or is dropped.
#[derive(Debug)]
pub(crate) struct EndToolsGuard(pub(crate) Arc<LiveSession>);

impl Drop for EndToolsGuard {
    fn drop(&mut self) {
        self.0.end_tools();
    }
}

/// A call or a prompt in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightWork {
    session: Arc<LiveSession>,
    id: String,
    pub(crate) cancel: CancellationToken,
}

impl Drop for InFlightWork {
    fn drop(&mut self) {
        self.session.in_flight.lock().remove(&self.id);
    }
}

/// Opens the sessions of a server's tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenSessions {
    owners: SessionOwners,
    taint: TokenTaint,
}

impl TokenSessions {
    pub(crate) fn new(owners: SessionOwners) -> Self {
        Self { owners, taint: TokenTaint::default() }
    }

    pub(crate) fn taint(&self) -> &TokenTaint {
        &self.taint
    }

    /// Opens a session of the token with this ID. The workspace has a name that no other directory has.
    pub(crate) fn open(&self, token: &str, workspace_id: &str, host: &Host, session: Session) -> Arc<LiveSession> {
        let session = Session { taint: self.taint.for_token(token, workspace_id), ..session };
        let owner = self.owners.register(&session, token);
        LiveSession::with_owner(Arc::new(session), host.clone(), Some(owner))
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::{Dialect, Host, Taint};
    use ringfence_testkit::host::{session_without_tools, test_host_config};

    use super::{LiveSession, TokenSessions};
    use crate::app::session::owners::SessionOwners;

    #[test]
    fn an_id_is_of_one_piece_of_work_at_a_time_and_cancels_it() {
        let live = LiveSession::new(session_without_tools(Dialect::Standard).into(), Host::new(test_host_config()));
        assert!(live.is_idle() && !live.cancel("a"));
        let (first, second) = (live.begin("a").unwrap(), live.begin("b").unwrap());
        assert!(live.begin("a").is_none() && !live.is_idle());
        assert!(live.cancel("a"));
        assert_eq!((first.cancel.is_cancelled(), second.cancel.is_cancelled()), (true, false));
        drop(first);
        assert!(!live.begin("a").unwrap().cancel.is_cancelled(), "it is other work");
        live.cancel_all();
        assert!(second.cancel.is_cancelled());
        drop(second);
        assert!(live.is_idle());
        assert_eq!((live.next_call_id().as_str(), live.next_call_id().as_str()), ("call-1", "call-2"));
    }

    #[test]
    fn sessions_of_a_token_share_their_taint_on_a_workspace() {
        let (sessions, host) = (TokenSessions::new(SessionOwners::default()), Host::new(test_host_config()));
        let open = |token, workspace| sessions.open(token, workspace, &host, session_without_tools(Dialect::Standard));
        let (first, again) = (open("tok.1", "w"), open("tok.1", "w"));
        let others = [open("tok.2", "w"), open("tok.1", "v")];
        first.session.taint.add(Taint::ReadSecret);
        assert!(again.session.taint.snapshot().contains(Taint::ReadSecret));
        assert!(others.iter().all(|other| !other.session.taint.snapshot().contains(Taint::ReadSecret)));
    }
}
