//! Reply cards: what a person's frontend draws of a result, beside its text.
//!
//! A card is made of the typed result, never of its text, and is bounded: what is left out is counted or said. All of its
//! texts are untrusted, since programs and files of the workspace wrote them.
//!
//! Not here: drawing it, and the text for the model (`reply.rs`).

use schemars::JsonSchema;
use serde::Serialize;

use crate::line_diff::{DiffHunk, DiffLine, DiffPart, FileDiff, LineDiff};

/// Most bytes of the texts of a card.
const MAX_CARD_BYTES: usize = 48 << 10;

/// Most bytes of one text.
const MAX_TEXT_BYTES: usize = 2000;

/// Most entries of a list.
const MAX_ITEMS: usize = 200;

/// What counts for an entry besides its texts.
const ITEM_BYTES: usize = 16;

/// What is drawn of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum ReplyCard {
    /// A test run.
    Tests(TestRunCard),
    /// Changed lines of files.
    Diff(DiffCard),
    /// Commits.
    Commits(CommitListCard),
    /// Files that were formatted, or are not.
    Formatted(FormatCard),
}

/// The result of a test run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestRunCard {
    /// Whether the run has passed.
    pub is_pass: bool,
    /// Name of the test runner.
    pub runner: String,
    /// Run time in milliseconds.
    pub duration: u64,
    /// Number of tests that passed; null where the run has no report.
    pub passed: Option<u64>,
    /// Number of tests that failed.
    pub failed: Option<u64>,
    /// Number of tests that were skipped.
    pub skipped: Option<u64>,
    /// Number of failures outside of a test.
    pub errors: Option<u64>,
    /// The first failures.
    pub failures: Vec<FailedTestCard>,
    /// Number of failures that are not listed.
    pub more: usize,
}

/// A failed test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FailedTestCard {
    /// Name of the test.
    pub name: String,
    /// File of the failure, relative to the workspace.
    pub file: Option<String>,
    /// Its line.
    pub line: Option<u32>,
    /// The message.
    pub message: String,
}

/// Changed lines of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DiffCard {
    /// The files, hunks and lines.
    pub diff: LineDiff,
    /// True when the end was left out.
    pub truncated: bool,
}

/// Commits, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CommitListCard {
    /// The commits.
    pub commits: Vec<CommitCard>,
    /// Number of commits that are not listed.
    pub more: usize,
    /// The id of the change that made the commit, for `undo`.
    pub change: Option<String>,
    /// True when the end was left out.
    pub truncated: bool,
}

/// A commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CommitCard {
    /// Its name, which may be abbreviated.
    pub id: String,
    /// The first line of its message.
    pub subject: String,
    /// Name of the author.
    pub author: Option<String>,
    /// Date of the author.
    pub date: Option<String>,
    /// Branches and tags that lead to it.
    pub refs: Option<String>,
    /// Its changes, if they were asked for.
    pub diff: Option<LineDiff>,
}

/// Files that a formatter changed or would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FormatCard {
    /// Names of the formatters.
    pub formatters: String,
    /// Number of the files that were named.
    pub total: usize,
    /// Files that were formatted; with `check`, files that are not.
    pub paths: Vec<String>,
    /// Number of files that are not listed.
    pub more: usize,
    /// True if nothing was to be changed.
    pub check: bool,
    /// The id of the change, for `undo`.
    pub change: Option<String>,
}

impl ReplyCard {
    /// The same within the bounds of a card.
    #[must_use]
    pub(crate) fn bounded(mut self) -> Self {
        let mut budget = CardBudget(MAX_CARD_BYTES);
        match &mut self {
            Self::Tests(card) => {
                budget.clip(&mut card.runner);
                card.more += budget.keep(&mut card.failures, |budget, failure| {
                    budget.clip(&mut failure.name);
                    budget.clip_some(&mut failure.file);
                    budget.clip(&mut failure.message);
                });
            }
            Self::Diff(card) => card.truncated |= budget.bound_diff(&mut card.diff),
            Self::Commits(card) => {
                budget.clip_some(&mut card.change);
                let mut is_cut = false;
                card.more += budget.keep(&mut card.commits, |budget, commit| {
                    budget.clip(&mut commit.id);
                    budget.clip(&mut commit.subject);
                    for text in [&mut commit.author, &mut commit.date, &mut commit.refs] {
                        budget.clip_some(text);
                    }
                    is_cut |= commit.diff.as_mut().is_some_and(|diff| budget.bound_diff(diff));
                });
                card.truncated |= is_cut;
            }
            Self::Formatted(card) => {
                budget.clip(&mut card.formatters);
                budget.clip_some(&mut card.change);
                card.more += budget.keep(&mut card.paths, CardBudget::clip);
            }
        }
        self
    }
}

/// Bytes that a card may still have.
struct CardBudget(usize);

impl CardBudget {
    /// Cuts a text that is longer than one may be, or than what is left.
    fn clip(&mut self, text: &mut String) {
        let most = MAX_TEXT_BYTES.min(self.0);
        if text.len() > most {
            text.truncate(text.floor_char_boundary(most));
            text.push('…');
        }
        self.0 = self.0.saturating_sub(text.len() + ITEM_BYTES);
    }

    fn clip_some(&mut self, text: &mut Option<String>) {
        text.iter_mut().for_each(|text| self.clip(text));
    }

    /// Keeps the first entries. Returns the number of the others.
    fn keep<T>(&mut self, items: &mut Vec<T>, mut clip: impl FnMut(&mut Self, &mut T)) -> usize {
        let mut kept = 0;
        for item in items.iter_mut().take(MAX_ITEMS) {
            if self.0 == 0 {
                break;
            }
            clip(self, item);
            kept += 1;
        }
        items.drain(kept..).count()
    }

    /// Keeps the first lines. Returns whether any were left out.
    fn bound_diff(&mut self, diff: &mut LineDiff) -> bool {
        let mut is_cut = false;
        let dropped = self.keep(&mut diff.parts, |budget, part| match part {
            DiffPart::Note { text } => budget.clip(text),
            DiffPart::File(FileDiff { old_path, new_path, hunks }) => {
                [old_path, new_path].into_iter().for_each(|path| budget.clip_some(path));
                let dropped = budget.keep(hunks, |budget, DiffHunk { lines, .. }| is_cut |= budget.bound_lines(lines));
                is_cut |= dropped > 0;
            }
        });
        is_cut || dropped > 0
    }

    fn bound_lines(&mut self, lines: &mut Vec<DiffLine>) -> bool {
        let mut kept = 0;
        for line in lines.iter_mut() {
            if self.0 == 0 {
                break;
            }
            self.clip(&mut line.text);
            kept += 1;
        }
        lines.drain(kept..).count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line_diff::DiffLineChange;

    fn hunk(lines: usize, text: &str) -> DiffHunk {
        let line = DiffLine { change: DiffLineChange::Added, text: text.to_owned(), unterminated: false };
        DiffHunk { lines: vec![line; lines], ..DiffHunk::default() }
    }

    fn diff(lines: usize, text: &str) -> LineDiff {
        let file = FileDiff { new_path: Some("a".to_owned()), hunks: vec![hunk(lines, text)], ..FileDiff::default() };
        LineDiff { parts: vec![DiffPart::File(file.clone()), DiffPart::File(file)] }
    }

    #[track_caller]
    fn check(card: ReplyCard, expected: &[&str]) {
        let text = serde_json::to_string(&card.bounded()).unwrap();
        assert!(text.len() < 4 * MAX_CARD_BYTES, "{}", text.len());
        expected.iter().for_each(|part| assert!(text.contains(part), "no {part}"));
    }

    #[test]
    fn a_card_is_bounded_and_counts_what_it_leaves_out() {
        let failure =
            FailedTestCard { name: "é".repeat(5000), message: "m".repeat(9000), ..FailedTestCard::default() };
        let failures = vec![failure; 5000];
        check(ReplyCard::Tests(TestRunCard { failures, ..TestRunCard::default() }), &["\"more\":49", "…"]);
        let commit = CommitCard { id: "a".repeat(40), diff: Some(diff(3000, "x")), ..CommitCard::default() };
        let commits = vec![commit; 300];
        check(
            ReplyCard::Commits(CommitListCard { commits, ..CommitListCard::default() }),
            &["\"more\":299", "\"truncated\":true"],
        );
        check(
            ReplyCard::Diff(DiffCard { diff: diff(9000, "line"), truncated: false }),
            &["\"kind\":\"diff\"", "\"truncated\":true"],
        );
        let paths = vec!["a".to_owned(); 250];
        check(ReplyCard::Formatted(FormatCard { paths, ..FormatCard::default() }), &["\"more\":50"]);
    }

    #[test]
    fn a_small_card_is_left_as_it_is() {
        let card = ReplyCard::Diff(DiffCard { diff: diff(3, "line"), truncated: false });
        assert_eq!(card.clone().bounded(), card);
    }
}
