//! Per-session taint flags, which are set and never cleared.
//!
//! Data leaks where all three come together: a session that has read a secret, has seen untrusted content, and can
//! send. So with two of them set, an access that would add the third requires approval (`layered_rules.rs`). Adding is
//! a compare-and-set against the taint that the decision was made with: of two concurrent calls, the second one is
//! decided again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::resource::{PolicyAction, ResourceAccess};

/// One thing that happened in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taint {
    /// A secret was read, got another name under which it can be, or was in reach of a program.
    ReadSecret,
    /// Untrusted content was seen: the web, output of MCP tools.
    SawUntrusted,
    /// A request was sent to a host.
    HasEgress,
}

impl Taint {
    /// Every taint.
    pub const ALL: [Self; 3] = [Self::ReadSecret, Self::SawUntrusted, Self::HasEgress];

    /// Name of the taint in config and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadSecret => "read-secret",
            Self::SawUntrusted => "saw-untrusted",
            Self::HasEgress => "has-egress",
        }
    }

    /// The taint of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|taint| taint.name() == name)
    }

    /// The taint that an access adds. Whether content is untrusted is known only to the tool that saw it.
    pub fn from_access(access: &ResourceAccess) -> Option<Self> {
        match access.action {
            // Arguments of an MCP tool can be sent on by its server.
            PolicyAction::Fetch | PolicyAction::External | PolicyAction::Send | PolicyAction::Listen => {
                Some(Self::HasEgress)
            }
            PolicyAction::Read | PolicyAction::Move if access.resource.effective_sensitivity().secret => {
                Some(Self::ReadSecret)
            }
            // A program that can read a secret from the objects of a repository. Its name is that of a language.
            PolicyAction::Run if access.resource.sensitivity.secret => Some(Self::ReadSecret),
            _ => None,
        }
    }

    const fn mask(self) -> u8 {
        match self {
            Self::ReadSecret => 1,
            Self::SawUntrusted => 2,
            Self::HasEgress => 4,
        }
    }
}

/// A set of taints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaintSet(u8);

impl TaintSet {
    /// The set with one more taint.
    #[must_use]
    pub const fn with(self, taint: Taint) -> Self {
        Self(self.0 | taint.mask())
    }

    /// Whether the set has a taint.
    pub const fn contains(self, taint: Taint) -> bool {
        self.0 & taint.mask() != 0
    }

    /// Whether the set has every taint of another one.
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set has no taint.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The taints of the set, in the order of [`Taint::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Taint> {
        Taint::ALL.into_iter().filter(move |taint| self.contains(*taint))
    }
}

impl FromIterator<Taint> for TaintSet {
    fn from_iter<I: IntoIterator<Item = Taint>>(taints: I) -> Self {
        taints.into_iter().fold(Self::default(), Self::with)
    }
}

/// The taint of a session, shared by all of its calls.
///
/// ```
/// use ringfence_kernel::{SessionTaint, Taint};
///
/// let taint = SessionTaint::default();
/// taint.add(Taint::ReadSecret);
/// assert!(taint.contains(Taint::ReadSecret) && !taint.contains(Taint::HasEgress));
/// ```
#[derive(Clone, Debug, Default)]
pub struct SessionTaint(Arc<AtomicU8>);

impl SessionTaint {
    /// Adds a taint, which is never removed.
    pub fn add(&self, taint: Taint) {
        self.0.fetch_or(taint.mask(), Ordering::AcqRel);
    }

    /// Whether the session has a taint.
    pub fn contains(&self, taint: Taint) -> bool {
        self.snapshot().contains(taint)
    }

    /// The taint at this time.
    pub fn snapshot(&self) -> TaintSet {
        TaintSet(self.0.load(Ordering::Acquire))
    }

    /// Adds `more` if the taint is still as it was `seen`. False when another call added some since.
    pub(crate) fn compare_and_add(&self, seen: TaintSet, more: TaintSet) -> bool {
        self.0.compare_exchange(seen.0, seen.0 | more.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{SessionTaint, Taint, TaintSet};

    #[test]
    fn an_added_taint_stays_set_for_every_holder() {
        let session_taint = SessionTaint::default();
        let other = session_taint.clone();
        assert!(session_taint.snapshot().is_empty());
        for (count, taint) in Taint::ALL.into_iter().enumerate() {
            assert!(!other.contains(taint));
            session_taint.add(taint);
            session_taint.add(taint);
            assert!(other.contains(taint));
            assert_eq!(other.snapshot().iter().count(), count + 1);
        }
    }

    #[test]
    fn adding_taint_fails_when_another_call_was_first() {
        let session_taint = SessionTaint::default();
        let seen = session_taint.snapshot();
        let secret = TaintSet::from_iter([Taint::ReadSecret]);
        session_taint.add(Taint::HasEgress);
        assert!(!session_taint.compare_and_add(seen, secret));
        assert!(!session_taint.contains(Taint::ReadSecret));
        assert!(session_taint.compare_and_add(session_taint.snapshot(), secret));
        assert!(
            session_taint.contains(Taint::ReadSecret)
                && session_taint.contains(Taint::HasEgress)
                && !session_taint.contains(Taint::SawUntrusted)
        );
        // Taint that is set already stays set.
        let before = session_taint.snapshot();
        assert!(session_taint.compare_and_add(before, secret));
        assert_eq!(session_taint.snapshot(), before);
        assert_eq!(before.with(Taint::ReadSecret), before);
    }

    #[test]
    fn a_taint_has_one_name() {
        for taint in Taint::ALL {
            assert_eq!(Taint::from_name(taint.name()), Some(taint));
        }
        assert_eq!(Taint::from_name("read_secret"), None);
    }
}
