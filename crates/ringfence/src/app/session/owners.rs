//! Session ownership: which token each live session of a server belongs to.
//!
//! Names of principals are for people and can be used again. A record of a session is visible to the token with the ID
//! that the session was registered for, and to no other of the same name.
//!
//! Not here: the owner of stored records (each record has the ID of its token).

use std::collections::HashMap;
use std::sync::Arc;

use ringfence_kernel::Session;
use ringfence_kernel::sync::Mutex;

/// A session by its id and the name of its principal: people share the session of a workspace.
type SessionLookupKey = (String, String);

/// The tokens of live sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionOwners(Arc<Mutex<HashMap<SessionLookupKey, Vec<Arc<str>>>>>);

/// A session's entry, until it is dropped.
#[derive(Debug)]
pub(crate) struct SessionOwnership {
    owners: SessionOwners,
    session: SessionLookupKey,
    token: Arc<str>,
}

impl SessionOwners {
    /// Notes that a session belongs to the token with this id.
    pub(crate) fn register(&self, session: &Session, token: &str) -> SessionOwnership {
        let (session, token) = (key_of(session), Arc::from(token));
        self.0.lock().entry(session.clone()).or_default().push(Arc::clone(&token));
        SessionOwnership { owners: self.clone(), session, token }
    }

    /// The id of the token that a session belongs to. Nothing where that is not known, or two tokens of one name share it.
    pub(crate) fn owner_of(&self, session: &Session) -> Option<Arc<str>> {
        self.owner_by_name(&session.id, &session.principal.name)
    }

    /// The same by the id of the session and the name of its principal.
    pub(crate) fn owner_by_name(&self, session: &str, principal: &str) -> Option<Arc<str>> {
        let owners = self.0.lock();
        let (first, others) = owners.get(&(session.to_owned(), principal.to_owned()))?.split_first()?;
        others.iter().all(|other| other == first).then(|| Arc::clone(first))
    }
}

fn key_of(session: &Session) -> SessionLookupKey {
    (session.id.clone(), session.principal.name.clone())
}

impl Drop for SessionOwnership {
    fn drop(&mut self) {
        let mut owners = self.owners.0.lock();
        if let Some(tokens) = owners.get_mut(&self.session) {
            if let Some(index) = tokens.iter().position(|token| *token == self.token) {
                tokens.swap_remove(index);
            }
            if tokens.is_empty() {
                owners.remove(&self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::{
        CallLimits, Dialect, Principal, ReplyForm, Session, SessionMemory, SessionTaint, ToolCatalog,
    };

    use super::SessionOwners;

    fn session(id: &str, principal: &str) -> Session {
        Session {
            id: id.to_owned(),
            principal: Principal::agent(principal),
            dialect: Dialect::Standard,
            agent: None,
            limits: CallLimits::for_dialect(Dialect::Standard),
            catalog: ToolCatalog::default(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        }
    }

    #[test]
    fn a_session_belongs_to_the_one_token_that_it_is_registered_for() {
        let (owners, session, other) = (SessionOwners::default(), session("s", "a"), session("s", "b"));
        let owner = || owners.owner_of(&session);
        assert_eq!(owner(), None);
        let (first, again) = (owners.register(&session, "tok.1"), owners.register(&session, "tok.1"));
        assert_eq!((owner().as_deref(), owners.owner_of(&other)), (Some("tok.1"), None));
        drop(first);
        assert_eq!(owner().as_deref(), Some("tok.1"));
        // With two tokens of one name it is not known whose a record is, so neither hears it.
        let second = owners.register(&session, "tok.2");
        assert_eq!(owner(), None);
        drop(again);
        assert_eq!(owner().as_deref(), Some("tok.2"));
        drop(second);
        assert!(owners.0.lock().is_empty());
    }
}
