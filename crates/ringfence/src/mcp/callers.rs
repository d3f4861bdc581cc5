//! The calls that are under way, so that whoever has to ask about one finds the client that made it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::RoleServer;
use rmcp::service::Peer;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::news::News;

/// Who made a call, and waits for it.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) peer: Peer<RoleServer>,
    /// For what there is to say meanwhile.
    pub(super) news: News,
    /// Told when the client closed the connection.
    pub(super) gone: CancellationToken,
}

/// All of them, by session and call.
#[derive(Clone, Debug, Default)]
pub(super) struct Callers(Arc<Mutex<HashMap<(String, String), Caller>>>);

/// Keeps a caller among them until it is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    callers: Callers,
    key: (String, String),
}

impl Callers {
    pub(super) fn enter(&self, session: &str, call: &str, caller: Caller) -> Entered {
        let key = (session.to_owned(), call.to_owned());
        self.lock().insert(key.clone(), caller);
        Entered { callers: self.clone(), key }
    }

    pub(super) fn find(&self, session: &str, call: &str) -> Option<Caller> {
        self.lock().get(&(session.to_owned(), call.to_owned())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Caller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.callers.lock().remove(&self.key);
    }
}
