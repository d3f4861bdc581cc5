//! Ranks of positions: which of several places a hunk can mean.
//!
//! Only matches of the best rank count, whatever their number, so that no more are kept than an error names.

use crate::patch::PatchHunk;

/// Most line numbers that a message has.
pub(super) const MOST_LINES: usize = 20;

/// What a hunk says of a position that has its old lines, the most telling first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MatchRank {
    /// It is the end of the file, or the hunk does not say so.
    pub(super) at_end: bool,
    /// It is in the block that the hunk's anchors name, or they name none.
    pub(super) in_block: bool,
    /// It is below the hunk before, or the format has no order.
    pub(super) in_order: bool,
}

impl MatchRank {
    const BEST: Self = Self { at_end: true, in_block: true, in_order: true };
}

/// What a position is to a hunk.
pub(super) enum PositionVerdict {
    Free(MatchRank),
    /// A hunk before has it.
    Taken,
    /// The hunk's anchors name a line below it.
    AboveAnchor,
}

/// The matches of the best rank of those that were met, and as many as an error names.
pub(super) struct RankedMatches<M> {
    pub(super) best: MatchRank,
    pub(super) matches: Vec<M>,
    /// There are matches above the anchors.
    pub(super) is_above: bool,
    /// There are matches of a lower rank.
    has_lower: bool,
    /// The search ended before the end of the text, so that there may be others.
    pub(super) is_cut: bool,
}

impl<M> Default for RankedMatches<M> {
    fn default() -> Self {
        Self { best: MatchRank::default(), matches: Vec::new(), is_above: false, has_lower: false, is_cut: false }
    }
}

impl<M> RankedMatches<M> {
    pub(super) fn add(&mut self, verdict: PositionVerdict, found: M) {
        match verdict {
            PositionVerdict::Taken => {}
            PositionVerdict::AboveAnchor => self.is_above = true,
            PositionVerdict::Free(rank) => {
                self.has_lower |= rank < self.best || (rank > self.best && !self.matches.is_empty());
                if rank > self.best {
                    self.matches.clear();
                }
                if rank >= self.best && self.matches.len() <= MOST_LINES {
                    self.matches.push(found);
                }
                self.best = self.best.max(rank);
            }
        }
    }

    /// Whether nothing that may still be found changes the answer.
    pub(super) fn is_settled(&self) -> bool {
        self.best == MatchRank::BEST && self.matches.len() > MOST_LINES
    }

    /// The match, if it is the only one that a hunk can mean. One that the patch has twice may mean two.
    pub(super) fn only_for(mut self, hunk: &PatchHunk) -> Option<M> {
        let has_other = self.is_cut || (hunk.is_repeated && (self.has_lower || self.is_above));
        self.matches.pop().filter(|_| self.matches.is_empty() && !has_other)
    }
}
