//! Per-session taint flags, which are set and never cleared.
//!
//! Data leaks where all three come together: a session that has read a secret, has seen untrusted content, and can
//! send. So with two of them set, an access that would add the third requires approval (`layered_rules.rs`). Adding is
//! a compare-and-set against the taint that the decision was made with: of two concurrent calls, the second one is
//! decided again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{PolicyAction, ResourceAccess};

/// One thing that happened in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taint {
    /// A secret was read, or got another name under which it can be.
    ReadSecret,
    /// Untrusted content was seen: the web, output of MCP tools.
    SawUntrusted,
    /// A request left for a host.
    HasEgress,
}

impl Taint {
    pub const ALL: [Self; 3] = [Self::ReadSecret, Self::SawUntrusted, Self::HasEgress];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadSecret => "read-secret",
            Self::SawUntrusted => "saw-untrusted",
            Self::HasEgress => "has-egress",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bit| bit.name() == name)
    }

    /// The taint that an access adds. Whether content is untrusted is known only to the tool that saw it.
    pub fn from_access(touch: &ResourceAccess) -> Option<Self> {
        match touch.action {
            // Arguments of an MCP tool can be sent on by its server.
            PolicyAction::Fetch | PolicyAction::External => Some(Self::HasEgress),
            PolicyAction::Read | PolicyAction::Move if touch.resource.effective_sensitivity().secret => {
                Some(Self::ReadSecret)
            }
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
    #[must_use]
    pub const fn with(self, bit: Taint) -> Self {
        Self(self.0 | bit.mask())
    }

    pub const fn contains(self, bit: Taint) -> bool {
        self.0 & bit.mask() != 0
    }

    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Taint> {
        Taint::ALL.into_iter().filter(move |bit| self.contains(*bit))
    }
}

impl FromIterator<Taint> for TaintSet {
    fn from_iter<I: IntoIterator<Item = Taint>>(bits: I) -> Self {
        bits.into_iter().fold(Self::default(), Self::with)
    }
}

/// The taint of a session, shared by all of its calls.
#[derive(Clone, Debug, Default)]
pub struct SessionTaint(Arc<AtomicU8>);

impl SessionTaint {
    pub fn add(&self, bit: Taint) {
        self.0.fetch_or(bit.mask(), Ordering::AcqRel);
    }

    pub fn contains(&self, bit: Taint) -> bool {
        self.snapshot().contains(bit)
    }

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
        let bits = SessionTaint::default();
        let other = bits.clone();
        assert!(bits.snapshot().is_empty());
        for (count, bit) in Taint::ALL.into_iter().enumerate() {
            assert!(!other.contains(bit));
            bits.add(bit);
            bits.add(bit);
            assert!(other.contains(bit));
            assert_eq!(other.snapshot().iter().count(), count + 1);
        }
    }

    #[test]
    fn adding_taint_fails_when_another_call_was_first() {
        let bits = SessionTaint::default();
        let seen = bits.snapshot();
        let secret = TaintSet::from_iter([Taint::ReadSecret]);
        bits.add(Taint::HasEgress);
        assert!(!bits.compare_and_add(seen, secret));
        assert!(!bits.contains(Taint::ReadSecret));
        assert!(bits.compare_and_add(bits.snapshot(), secret));
        assert!(
            bits.contains(Taint::ReadSecret) && bits.contains(Taint::HasEgress) && !bits.contains(Taint::SawUntrusted)
        );
        // What is up already stays up.
        let before = bits.snapshot();
        assert!(bits.compare_and_add(before, secret));
        assert_eq!(bits.snapshot(), before);
        assert_eq!(before.with(Taint::ReadSecret), before);
    }

    #[test]
    fn a_taint_has_one_name() {
        for bit in Taint::ALL {
            assert_eq!(Taint::from_name(bit.name()), Some(bit));
        }
        assert_eq!(Taint::from_name("read_secret"), None);
    }
}
