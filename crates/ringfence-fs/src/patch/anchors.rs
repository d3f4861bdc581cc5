//! Anchors of hunks: the lines of a file that `@@` lines name, such as the head of a function, and what belongs to them.
//!
//! Every step reads each line of the file once, whatever the anchors are.

use std::ops::Range;

/// Most anchors of a hunk that are read, the outer ones first.
const MOST_ANCHORS: usize = 8;

/// The blocks of a text: each line with the lines below it that belong to it.
pub(super) struct TextBlocks<'t> {
    /// Without the blanks around them.
    lines: Vec<&'t str>,
    /// For each line, the next line that is indented no more, but for one that only closes.
    ends: Vec<usize>,
}

/// The part of a text that anchors name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnchorScope {
    /// The first line that the innermost anchor names, as an index.
    pub(super) first: usize,
    /// For each line of the text, whether it belongs to a line that the anchors name.
    inside: Vec<bool>,
}

impl<'t> TextBlocks<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let all: Vec<&str> = text.lines().collect();
        let mut ends = vec![all.len(); all.len()];
        // Of the lines below, those that can end a block that begins above them, the nearest last. A line that only closes
        // ends no block of its own indentation.
        let mut below: Vec<(usize, usize)> = Vec::new();
        for (index, line) in all.iter().enumerate().rev() {
            let body = line.trim_start();
            if body.is_empty() {
                continue;
            }
            let own = 2 * (line.len() - body.len());
            while below.last().is_some_and(|(indent, _)| *indent > own) {
                below.pop();
            }
            ends[index] = below.last().map_or(all.len(), |(_, index)| *index);
            below.push((own + usize::from(body.starts_with(['}', ')', ']', '{'])), index));
        }
        Self { lines: all.into_iter().map(str::trim).collect(), ends }
    }

    /// The lines that anchors name, the outermost first. One that is not there ends the list, and nothing is named where
    /// the first is not.
    pub(super) fn scope(&self, anchors: &[String]) -> Option<AnchorScope> {
        let mut scope: Option<AnchorScope> = None;
        for anchor in anchors.iter().take(MOST_ANCHORS) {
            let is_inside = |index: usize| scope.as_ref().is_none_or(|scope| scope.inside[index]);
            let named = |is_named: &dyn Fn(&str) -> bool| -> Vec<usize> {
                (0..self.lines.len()).filter(|index| is_inside(*index) && is_named(self.lines[*index])).collect()
            };
            let exactly = named(&|line| line == anchor);
            let named = if exactly.is_empty() { named(&|line| line.starts_with(anchor.as_str())) } else { exactly };
            let Some(&first) = named.first() else { break };
            let mut inside = vec![false; self.lines.len()];
            let mut marked = 0;
            for head in named {
                inside[head.max(marked)..self.ends[head].max(marked)].fill(true);
                marked = marked.max(self.ends[head]);
            }
            scope = Some(AnchorScope { first, inside });
        }
        scope
    }
}

impl AnchorScope {
    /// Whether these lines are below the first line that is named, or have it among them.
    pub(super) fn is_above_or_in(&self, lines: &Range<usize>) -> bool {
        self.first < lines.end.max(lines.start + 1)
    }

    /// Whether these lines begin or end in what belongs to a line that is named.
    pub(super) fn contains(&self, lines: &Range<usize>) -> bool {
        let is_inside = |index: usize| self.inside.get(index).is_some_and(|inside| *inside);
        is_inside(lines.start) || lines.end.checked_sub(1).is_some_and(is_inside)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringfence_testkit::cpu_share::thread_cpu_time;

    use super::TextBlocks;

    /// The lines that belong to what anchors name, by number.
    fn inside(text: &str, anchors: &[&str]) -> Vec<usize> {
        let anchors: Vec<String> = anchors.iter().map(|anchor| (*anchor).to_owned()).collect();
        let scope = TextBlocks::new(text).scope(&anchors);
        scope.map_or(Vec::new(), |scope| (0..scope.inside.len()).filter(|line| scope.inside[*line]).collect())
    }

    #[test]
    fn a_block_ends_at_the_next_line_that_is_indented_no_more() {
        let text = "class A {\n  f() {\n    x\n\n  }\n  g()\n  {\n    y\n  }\n}\nclass B\n  f() {\n  }\nend\n";
        assert_eq!(inside(text, &["class A {"]), (0..10).collect::<Vec<_>>());
        assert_eq!(inside(text, &["class A"]), (0..10).collect::<Vec<_>>());
        assert_eq!(inside(text, &["f() {"]), [1, 2, 3, 4, 11, 12]);
        assert_eq!(inside(text, &["class B", "f() {"]), [11, 12]);
        assert_eq!(inside(text, &["class A", "g()"]), [5, 6, 7, 8]);
        // An anchor that is not in the one around it ends the list.
        assert_eq!(inside(text, &["class B", "g()"]), [10, 11, 12]);
        assert_eq!(inside(text, &["class C", "f() {"]), [0; 0]);
    }

    #[test]
    fn blocks_are_found_in_one_pass() {
        let text = "}a\n".repeat(100_000) + &"  b\n".repeat(100_000);
        let start = thread_cpu_time();
        assert_eq!(inside(&text, &["}a"; 1000]).len(), 200_000);
        let took = thread_cpu_time() - start;
        assert!(took < Duration::from_secs(2), "took {took:?}");
    }
}
