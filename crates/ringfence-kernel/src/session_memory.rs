//! Session memory: long outputs, and digests of the contents that a session has seen.
//!
//! It is in memory, bounded, and gone with its session. It decides nothing about safety: a policy never asks it.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use crate::output_store::OutputStore;
use crate::sync::Mutex;

const MAX_DIGESTS: usize = 4096;

/// Most contents that are seen in part, and most separate parts of one.
const MAX_PARTIAL: usize = 256;
const MAX_PARTS: usize = 256;

/// What a session remembers between its calls.
#[derive(Debug, Default)]
pub struct SessionMemory {
    /// Outputs that were too long for a reply.
    pub outputs: OutputStore,
    /// Contents that the session has read or written.
    pub seen: SeenContents,
}

/// Digests of contents that a session has read or written. The oldest ones are forgotten where there are too many.
///
/// ```
/// use ringfence_kernel::SeenContents;
///
/// let seen = SeenContents::default();
/// seen.add([1; 32]);
/// assert!(seen.contains(&[1; 32]) && !seen.contains(&[2; 32]));
/// ```
#[derive(Debug, Default)]
pub struct SeenContents(Mutex<SeenDigests>);

#[derive(Debug, Default)]
struct SeenDigests {
    known: HashSet<[u8; 32]>,
    /// The oldest first.
    order: VecDeque<[u8; 32]>,
    /// Contents of which some lines were shown, the oldest first.
    partial: VecDeque<PartialContents>,
}

/// The lines of contents that a session was shown.
#[derive(Debug)]
struct PartialContents {
    digest: [u8; 32],
    /// Sorted, and none touches another.
    shown: Vec<Range<u64>>,
    /// Number of all lines, once it is known.
    total: Option<u64>,
}

impl PartialContents {
    fn add(&mut self, lines: Range<u64>) {
        let first = self.shown.partition_point(|shown| shown.end < lines.start);
        let after = self.shown.partition_point(|shown| shown.start <= lines.end);
        let joined = self.shown[first..after]
            .iter()
            .fold(lines, |joined, shown| joined.start.min(shown.start)..joined.end.max(shown.end));
        self.shown.splice(first..after, [joined]);
        self.shown.truncate(MAX_PARTS);
    }

    fn is_whole(&self) -> bool {
        let Some(total) = self.total else { return false };
        total == 0 || matches!(&self.shown[..], [all, ..] if all.start <= 1 && all.end > total)
    }
}

impl SeenContents {
    /// Remembers contents by their SHA-256.
    pub fn add(&self, digest: [u8; 32]) {
        self.0.lock().add(digest);
    }

    /// Remembers that lines of contents were shown, numbered from 1, and how many they have, where that is known. Once all
    /// lines were shown, the contents are seen.
    ///
    /// ```
    /// use ringfence_kernel::SeenContents;
    ///
    /// let seen = SeenContents::default();
    /// seen.add_lines([1; 32], 1..3, None);
    /// assert!(!seen.contains(&[1; 32]));
    /// seen.add_lines([1; 32], 3..5, Some(4));
    /// assert!(seen.contains(&[1; 32]));
    /// ```
    pub fn add_lines(&self, digest: [u8; 32], lines: Range<u64>, total: Option<u64>) {
        let mut seen = self.0.lock();
        if seen.known.contains(&digest) {
            return;
        }
        let at = seen.partial.iter().position(|partial| partial.digest == digest);
        let known = at.and_then(|at| seen.partial.remove(at));
        let mut partial = known.unwrap_or(PartialContents { digest, shown: Vec::new(), total: None });
        partial.total = total.or(partial.total);
        if !lines.is_empty() {
            partial.add(lines);
        }
        if partial.is_whole() {
            seen.add(digest);
            return;
        }
        seen.partial.push_back(partial);
        if seen.partial.len() > MAX_PARTIAL {
            seen.partial.pop_front();
        }
    }

    /// Whether the session has seen these contents.
    pub fn contains(&self, digest: &[u8; 32]) -> bool {
        self.0.lock().known.contains(digest)
    }
}

impl SeenDigests {
    fn add(&mut self, digest: [u8; 32]) {
        if !self.known.insert(digest) {
            return;
        }
        self.order.push_back(digest);
        if self.order.len() > MAX_DIGESTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DIGESTS, MAX_PARTIAL, SeenContents};

    #[test]
    fn contents_are_seen_once_all_their_lines_were_shown() {
        let seen = SeenContents::default();
        let shown = |lines: &[(u64, u64)], total| {
            let seen = SeenContents::default();
            lines.iter().for_each(|(first, end)| seen.add_lines([1; 32], *first..*end, total));
            seen.contains(&[1; 32])
        };
        assert!(shown(&[(1, 11)], Some(10)));
        assert!(shown(&[(5, 11), (1, 3), (3, 5)], Some(10)));
        assert!(shown(&[(8, 11), (1, 4), (2, 9)], Some(10)));
        assert!(!shown(&[(1, 11)], None));
        assert!(!shown(&[(1, 10)], Some(10)));
        assert!(!shown(&[(2, 11)], Some(10)));
        assert!(!shown(&[(1, 5), (6, 11)], Some(10)));
        assert!(!shown(&[(11, 11)], Some(10)));
        // The oldest parts are forgotten first.
        (0..=MAX_PARTIAL).for_each(|number| {
            seen.add_lines([u8::try_from(number % 256).unwrap(), 0].repeat(16).try_into().unwrap(), 1..2, None)
        });
        seen.add_lines([7; 32], 1..2, None);
        assert!(seen.0.lock().partial.len() <= MAX_PARTIAL);
    }

    #[test]
    fn the_oldest_digest_is_forgotten_first() {
        let seen = SeenContents::default();
        let digest = |number: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            digest
        };
        (0..=MAX_DIGESTS).for_each(|number| seen.add(digest(number)));
        assert!(!seen.contains(&digest(0)));
        assert!((1..=MAX_DIGESTS).all(|number| seen.contains(&digest(number))));
    }
}
