//! Text hunks: the stretches in which two texts differ, and the text with some of them.
//!
//! The comparison has no clock in it, so that a hunk has the same number whenever the same two texts are compared. Texts
//! that would take long to compare have no hunks: they are taken whole.
//!
//! Not here: diffs in approval prompts (`preview.rs`), which are cut to a time.

use std::ops::Range;

use ringfence_kernel::{DiffHunk, DiffLine, DiffLineChange, DiffRange, sanitize_untruncated};
use similar::{Algorithm, DiffOp, capture_diff_slices, group_diff_ops};

/// Longest text that has hunks, in bytes.
pub(super) const LONGEST_TEXT: u64 = 1 << 20;

/// Most lines between the first and the last that differ, of both texts together.
const MOST_LINES: usize = 20_000;

/// Lines around a change.
const CONTEXT_LINES: usize = 3;

/// Two texts by lines, and their hunks.
#[derive(Debug)]
pub(super) struct TextHunks<'a> {
    old: Vec<&'a str>,
    new: Vec<&'a str>,
    hunks: Vec<Vec<DiffOp>>,
}

impl<'a> TextHunks<'a> {
    /// Compares two texts. `None` where that would take too long.
    pub(super) fn compare(old: &'a str, new: &'a str) -> Option<Self> {
        let lines = |text: &'a str| -> Vec<&'a str> { text.split_inclusive('\n').collect() };
        let (old, new) = (lines(old), lines(new));
        let same = |(one, other): &(&&str, &&str)| one == other;
        let start = old.iter().zip(&new).take_while(same).count();
        let end = old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(same).count();
        if old.len() + new.len() - 2 * (start + end) > MOST_LINES {
            return None;
        }
        let ops = capture_diff_slices(Algorithm::Myers, &old, &new);
        let hunks = group_diff_ops(ops, CONTEXT_LINES);
        Some(Self { old, new, hunks })
    }

    pub(super) fn len(&self) -> usize {
        self.hunks.len()
    }

    /// The old text with these hunks applied.
    pub(super) fn apply(&self, chosen: &[usize]) -> String {
        let mut text = String::new();
        let mut at = 0;
        for (_, ops) in self.hunks.iter().enumerate().filter(|(index, _)| chosen.contains(index)) {
            for op in ops {
                let was = op.old_range();
                text.extend(self.old[at..was.start].iter().copied());
                text.extend(self.new[op.new_range()].iter().copied());
                at = was.end;
            }
        }
        text.extend(self.old[at..].iter().copied());
        text
    }

    /// The hunks for people, with nothing in them that a terminal would obey.
    pub(super) fn shown(&self) -> Vec<DiffHunk> {
        self.hunks.iter().map(|ops| self.shown_hunk(ops)).collect()
    }

    fn shown_hunk(&self, ops: &[DiffOp]) -> DiffHunk {
        let (Some(first), Some(last)) = (ops.first(), ops.last()) else { return DiffHunk::default() };
        let mut lines = Vec::new();
        for op in ops {
            if let DiffOp::Equal { .. } = op {
                lines.extend(self.old[op.old_range()].iter().map(|line| diff_line(line, DiffLineChange::Unchanged)));
                continue;
            }
            lines.extend(self.old[op.old_range()].iter().map(|line| diff_line(line, DiffLineChange::Removed)));
            lines.extend(self.new[op.new_range()].iter().map(|line| diff_line(line, DiffLineChange::Added)));
        }
        let old = first.old_range().start..last.old_range().end;
        let new = first.new_range().start..last.new_range().end;
        DiffHunk { old: diff_range(&old), new: diff_range(&new), lines }
    }
}

fn diff_line(line: &str, change: DiffLineChange) -> DiffLine {
    let text = line.strip_suffix('\n');
    DiffLine { change, text: sanitize_untruncated(text.unwrap_or(line)), unterminated: text.is_none() }
}

fn diff_range(lines: &Range<usize>) -> DiffRange {
    let first = if lines.is_empty() { lines.start } else { lines.start + 1 };
    DiffRange { first: first as u64, count: lines.len() as u64 }
}

/// Bytes as text that has lines.
pub(super) fn as_text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() as u64 > LONGEST_TEXT || memchr::memchr(0, bytes).is_some() {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::TextHunks;

    fn text(lines: std::ops::Range<u32>) -> String {
        lines.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn hunks_are_applied_one_by_one() {
        let old = text(0..40);
        let new = old.replace("3\n", "three\n").replace("39\n", "end");
        let hunks = TextHunks::compare(&old, &new).unwrap();
        let headers: Vec<String> = hunks.shown().iter().map(ToString::to_string).collect();
        assert_eq!(headers.len(), hunks.len());
        let all: Vec<usize> = (0..hunks.len()).collect();
        assert_eq!(hunks.apply(&[]), old);
        assert_eq!(hunks.apply(&all), new);
        let first = hunks.apply(&[0]);
        assert!(first.contains("three\n") && first.ends_with("39\n"), "{first}");
    }

    #[test]
    fn texts_that_take_long_to_compare_have_no_hunks() {
        let (old, new) = (text(0..11_000), text(20_000..31_000));
        assert!(TextHunks::compare(&old, &new).is_none());
        let long = text(0..100_000);
        assert_eq!(TextHunks::compare(&long, &long.replace("\n5000\n", "\nfive\n")).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn some_hunks_and_then_the_rest_give_the_new_text(
            old in proptest::collection::vec("[ab]{0,2}\n?", 0..60),
            new in proptest::collection::vec("[ab]{0,2}\n?", 0..60),
            choice in any::<u64>(),
        ) {
            let (old, new) = (old.concat(), new.concat());
            let hunks = TextHunks::compare(&old, &new).unwrap();
            let chosen: Vec<usize> = (0..hunks.len()).filter(|index| choice >> (index % 64) & 1 == 1).collect();
            let partial = hunks.apply(&chosen);
            let rest = TextHunks::compare(&partial, &new).unwrap();
            let all: Vec<usize> = (0..rest.len()).collect();
            prop_assert_eq!(rest.apply(&all), new);
        }
    }
}
