//! Pseudo-random numbers of training: SplitMix64, the same sequence for a seed on every machine.
//!
//! Not here: secrets. Nothing of this is unpredictable.

#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound; zero for the bound zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % bound).unwrap_or_default()
    }

    /// Between -1 and 1.
    pub(crate) fn signed(&mut self) -> f32 {
        // 24 bits are exact in an `f32`.
        let bits = u16::try_from(self.next() >> 48).unwrap_or_default();
        f32::from(bits) / 32767.5 - 1.0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

/// FNV-1a: one number for a text, for choices that must not depend on the order of a run.
pub(crate) fn text_hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn a_seed_has_one_sequence_and_a_shuffle_keeps_every_item() {
        let sequence = |seed| {
            let mut random = SplitMix64::new(seed);
            let mut items: Vec<usize> = (0..100).collect();
            random.shuffle(&mut items);
            items
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        let mut sorted = sequence(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut random = SplitMix64::new(3);
        for _ in 0..1000 {
            assert!(random.below(7) < 7);
            assert!((-1.0..=1.0).contains(&random.signed()));
        }
        assert_eq!(random.below(0), 0);
    }
}
