//! What a session has been through: three bits that go up and never down.
//!
//! Data leaks where all three come together: somebody who read a secret, was told something by a stranger, and can
//! send. So where two bits are up, what would raise the third is asked about (`rules.rs`). Raising is one atomic step
//! with what was known when the call was decided about: of two calls at once, the second one is decided about again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{Touch, Verb};

/// One thing that happened in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bit {
    /// A secret was read, or got another name under which it can be.
    ReadSecret,
    /// Content that strangers wrote was seen: the web, another program's tools.
    SawUntrusted,
    /// A request left for a host.
    HasEgress,
}

impl Bit {
    pub const ALL: [Self; 3] = [Self::ReadSecret, Self::SawUntrusted, Self::HasEgress];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadSecret => "read-secret",
            Self::SawUntrusted => "saw-untrusted",
            Self::HasEgress => "has-egress",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bit| bit.name() == name)
    }

    /// What doing this means for the session. Whether content is a stranger's is known only to the tool that saw it.
    pub fn raised_by(touch: &Touch) -> Option<Self> {
        match touch.verb {
            // What another program is told, it can send.
            Verb::Fetch | Verb::External => Some(Self::HasEgress),
            Verb::Read | Verb::MoveAway if touch.place.sensitive().secret => Some(Self::ReadSecret),
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

/// Some of the bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitSet(u8);

impl BitSet {
    #[must_use]
    pub const fn with(self, bit: Bit) -> Self {
        Self(self.0 | bit.mask())
    }

    pub const fn has(self, bit: Bit) -> bool {
        self.0 & bit.mask() != 0
    }

    pub const fn has_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Bit> {
        Bit::ALL.into_iter().filter(move |bit| self.has(*bit))
    }
}

impl FromIterator<Bit> for BitSet {
    fn from_iter<I: IntoIterator<Item = Bit>>(bits: I) -> Self {
        bits.into_iter().fold(Self::default(), Self::with)
    }
}

/// The bits of a session, shared by all of its calls.
#[derive(Clone, Debug, Default)]
pub struct Bits(Arc<AtomicU8>);

impl Bits {
    pub fn raise(&self, bit: Bit) {
        self.0.fetch_or(bit.mask(), Ordering::AcqRel);
    }

    pub fn has(&self, bit: Bit) -> bool {
        self.now().has(bit)
    }

    pub fn now(&self) -> BitSet {
        BitSet(self.0.load(Ordering::Acquire))
    }

    /// Raises `more` if the bits are still as they were `seen`. False when another call raised one since.
    pub(crate) fn raise_from(&self, seen: BitSet, more: BitSet) -> bool {
        self.0.compare_exchange(seen.0, seen.0 | more.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Bit, BitSet, Bits};

    #[test]
    fn a_bit_that_is_up_stays_up_for_everybody_who_holds_them() {
        let bits = Bits::default();
        let other = bits.clone();
        assert!(bits.now().is_empty());
        for (count, bit) in Bit::ALL.into_iter().enumerate() {
            assert!(!other.has(bit));
            bits.raise(bit);
            bits.raise(bit);
            assert!(other.has(bit));
            assert_eq!(other.now().iter().count(), count + 1);
        }
    }

    #[test]
    fn raising_fails_when_another_call_was_first() {
        let bits = Bits::default();
        let seen = bits.now();
        let secret = BitSet::from_iter([Bit::ReadSecret]);
        bits.raise(Bit::HasEgress);
        assert!(!bits.raise_from(seen, secret));
        assert!(!bits.has(Bit::ReadSecret));
        assert!(bits.raise_from(bits.now(), secret));
        assert!(bits.has(Bit::ReadSecret) && bits.has(Bit::HasEgress) && !bits.has(Bit::SawUntrusted));
        // What is up already stays up.
        let before = bits.now();
        assert!(bits.raise_from(before, secret));
        assert_eq!(bits.now(), before);
        assert_eq!(before.with(Bit::ReadSecret), before);
    }

    #[test]
    fn a_bit_has_one_name() {
        for bit in Bit::ALL {
            assert_eq!(Bit::named(bit.name()), Some(bit));
        }
        assert_eq!(Bit::named("read_secret"), None);
    }
}
