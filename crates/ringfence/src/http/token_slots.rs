//! Per-token limits on things that last: sessions, event streams, requests, long bodies.
//!
//! A token has its own limit first. Of the total, some slots are reserved for people (tokens with the scope `approve`), so
//! that agents together cannot lock out the person who would stop them.
//!
//! Not here: connections that have shown no token yet (`listener.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use ringfence_kernel::AuthScope;
use ringfence_kernel::sync::Mutex;

use crate::store::tokens::TokenIdentity;

/// Limits on concurrent slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenSlotLimits {
    pub(crate) per_token: usize,
    pub(crate) total: usize,
    /// Of the total, those that only people get.
    pub(crate) reserved: usize,
}

/// The slots of one kind of thing.
#[derive(Clone, Debug)]
pub(crate) struct AccessTokenSlots {
    limits: TokenSlotLimits,
    taken: Arc<Mutex<HashMap<Arc<str>, usize>>>,
}

/// One slot, until it is dropped.
#[derive(Debug)]
pub(crate) struct TokenSlotPermit {
    slots: AccessTokenSlots,
    token: Arc<str>,
}

impl AccessTokenSlots {
    pub(crate) fn new(limits: TokenSlotLimits) -> Self {
        Self { limits, taken: Arc::default() }
    }

    /// A slot for the owner of a token. Nothing where the token, or the server, has as many as it may.
    pub(crate) fn acquire(&self, who: &TokenIdentity) -> Option<TokenSlotPermit> {
        let reserved = if who.has_scope(AuthScope::Approve) { 0 } else { self.limits.reserved };
        let mut taken = self.taken.lock();
        let own = taken.get(&who.id).copied().unwrap_or_default();
        let fits = own < self.limits.per_token && taken.values().sum::<usize>() + reserved < self.limits.total;
        fits.then(|| self.permit(&mut taken, &who.id))
    }

    /// A slot for something that was there before the server started, whatever the limits are.
    pub(crate) fn acquire_existing(&self, token: &str) -> TokenSlotPermit {
        self.permit(&mut self.taken.lock(), &Arc::from(token))
    }

    pub(crate) fn count(&self) -> usize {
        self.taken.lock().values().sum()
    }

    pub(crate) fn per_token(&self) -> usize {
        self.limits.per_token
    }

    fn permit(&self, taken: &mut HashMap<Arc<str>, usize>, token: &Arc<str>) -> TokenSlotPermit {
        *taken.entry(Arc::clone(token)).or_default() += 1;
        TokenSlotPermit { slots: self.clone(), token: Arc::clone(token) }
    }
}

impl Drop for TokenSlotPermit {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        if let Some(count) = taken.get_mut(&self.token) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.token);
            }
        }
    }
}

/// The token that owns most of these things. Where there are too many in all, it is the one to lose some.
pub(crate) fn heaviest_token<'a>(owners: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    owners.for_each(|owner| *counts.entry(owner).or_default() += 1);
    counts.into_iter().max_by_key(|(owner, count)| (*count, *owner)).map(|(owner, _)| owner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ringfence_kernel::{Assurance, AuthScope};

    use super::{AccessTokenSlots, TokenSlotLimits};
    use crate::store::tokens::TokenIdentity;

    fn test_identity(name: &str, scope: AuthScope) -> TokenIdentity {
        TokenIdentity {
            id: name.into(),
            name: name.into(),
            scopes: BTreeSet::from([scope]),
            assurance: Assurance::Relayed,
        }
    }

    #[test]
    fn a_token_takes_its_own_slots_and_agents_together_leave_some_to_people() {
        let slots = AccessTokenSlots::new(TokenSlotLimits { per_token: 3, total: 8, reserved: 2 });
        let (a, b, c) = (
            test_identity("a", AuthScope::Call),
            test_identity("b", AuthScope::Call),
            test_identity("c", AuthScope::Call),
        );
        let person = test_identity("page", AuthScope::Approve);
        let mut held: Vec<_> = (0..3).map(|_| slots.acquire(&a).unwrap()).collect();
        assert!(slots.acquire(&a).is_none());
        held.extend((0..3).map(|_| slots.acquire(&b).unwrap()));
        assert!(slots.acquire(&c).is_none(), "the rest is for people");
        held.extend((0..2).map(|_| slots.acquire(&person).unwrap()));
        assert!(slots.acquire(&person).is_none());
        assert_eq!(slots.count(), 8);
        held.clear();
        assert_eq!(slots.count(), 0);
        assert!(slots.acquire(&a).is_some());
    }
}
