//! Posting lists: the symbols that have a stem, with its occurrences by field, in few bytes.
//!
//! Symbols are stored as differences, which are small because a list is in their order; most postings take three bytes.
//!
//! Not here: stems and symbols (`corpus.rs`).

use crate::symbol::FieldCounts;

/// Largest counts in a posting, by field.
const MAX_COUNTS: FieldCounts = [15, 63, 15, 15, 1023];

/// Position of each field's bits. Occurrences in the body alone, the most common, take the lowest.
const SHIFTS: [u32; 5] = [24, 10, 20, 16, 0];

/// The symbols of a stem, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PostingList {
    bytes: Vec<u8>,
    last: u32,
    count: u32,
}

/// A symbol of a list, and the occurrences there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    pub(crate) symbol: u32,
    /// Counts of the fields.
    pub(crate) packed: u32,
}

impl Posting {
    pub(crate) fn new(symbol: u32, counts: &FieldCounts) -> Self {
        let parts = counts.iter().zip(MAX_COUNTS).zip(SHIFTS);
        let packed = parts.fold(0, |packed, ((count, most), shift)| packed | u32::from(*count.min(&most)) << shift);
        Self { symbol, packed }
    }

    pub(crate) fn counts(self) -> FieldCounts {
        std::array::from_fn(|at| (self.packed >> SHIFTS[at]) as u16 & MAX_COUNTS[at])
    }
}

impl PostingList {
    /// A list without symbols.
    pub(crate) const EMPTY: Self = Self { bytes: Vec::new(), last: 0, count: 0 };

    /// Adds a symbol, which comes after all that are there. Returns the bytes that it takes.
    pub(crate) fn push(&mut self, posting: Posting) -> usize {
        let before = self.bytes.len();
        put_number(&mut self.bytes, posting.symbol.wrapping_sub(self.last));
        put_number(&mut self.bytes, posting.packed);
        self.last = posting.symbol;
        self.count += 1;
        self.bytes.len() - before
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Posting> {
        let (mut rest, mut symbol) = (self.bytes.as_slice(), 0_u32);
        std::iter::from_fn(move || {
            symbol = symbol.wrapping_add(take_number(&mut rest)?);
            Some(Posting { symbol, packed: take_number(&mut rest)? })
        })
    }

    /// The occurrences in symbols, which are in their order; none where the list has not the symbol.
    pub(crate) fn counts_in(&self, symbols: &[usize]) -> Vec<FieldCounts> {
        let mut found = vec![FieldCounts::default(); symbols.len()];
        let mut at = 0;
        for posting in self.iter() {
            while symbols.get(at).is_some_and(|symbol| *symbol < posting.symbol as usize) {
                at += 1;
            }
            match symbols.get(at) {
                Some(symbol) if *symbol == posting.symbol as usize => found[at] = posting.counts(),
                Some(_) => {}
                None => break,
            }
        }
        found
    }
}

/// Seven bits a byte, the low ones first.
fn put_number(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    let mut shift = 0;
    loop {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 || shift >= 28 {
            return Some(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_list_gives_back_what_was_added(postings in proptest::collection::btree_map(0_u32..1_000_000, 0_u16..2000, 0..50)) {
            let mut list = PostingList::default();
            let counts = |count: u16| [count % 17, count % 65, count % 16, count % 3, count];
            let expected: Vec<Posting> =
                postings.iter().map(|(symbol, count)| Posting::new(*symbol, &counts(*count))).collect();
            let bytes: usize = expected.iter().map(|posting| list.push(*posting)).sum();
            assert_eq!(list.iter().collect::<Vec<_>>(), expected);
            assert_eq!((list.len(), list.bytes.len()), (expected.len(), bytes));
            let symbols: Vec<usize> = postings.keys().map(|symbol| *symbol as usize).collect();
            let found: Vec<FieldCounts> = expected.iter().map(|posting| posting.counts()).collect();
            assert_eq!(list.counts_in(&symbols), found);
            let others: Vec<usize> = symbols.iter().map(|symbol| symbol + 1_000_000).collect();
            assert!(list.counts_in(&others).iter().all(|counts| *counts == FieldCounts::default()));
        }
    }

    #[test]
    fn counts_beyond_the_bits_are_the_largest() {
        assert_eq!(Posting::new(1, &[u16::MAX; 5]).counts(), MAX_COUNTS);
        assert_eq!(Posting::new(1, &[1, 2, 3, 4, 5]).counts(), [1, 2, 3, 4, 5]);
    }
}
