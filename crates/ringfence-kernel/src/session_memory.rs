//! Session memory: long outputs, and digests of the contents that a session has seen.
//!
//! It is in memory, bounded, and gone with its session. It decides nothing about safety: a policy never asks it.

use std::collections::{HashSet, VecDeque};

use crate::output_store::OutputStore;
use crate::sync::Mutex;

const MAX_DIGESTS: usize = 4096;

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
}

impl SeenContents {
    /// Remembers contents by their SHA-256.
    pub fn add(&self, digest: [u8; 32]) {
        let mut seen = self.0.lock();
        if !seen.known.insert(digest) {
            return;
        }
        seen.order.push_back(digest);
        if seen.order.len() > MAX_DIGESTS
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.known.remove(&oldest);
        }
    }

    /// Whether the session has seen these contents.
    pub fn contains(&self, digest: &[u8; 32]) -> bool {
        self.0.lock().known.contains(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DIGESTS, SeenContents};

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
