//! Patches, as unified diffs or in the V4A format: parsed once into types, then applied to the text of one file at a time.
//!
//! A hunk whose header is right is applied at its stated line. Any other, whether its numbers are wrong, miscounted or
//! left out, is applied at the only position that has its old lines, and is refused if there are two. The lines have to
//! be there exactly, or else by the relaxations of `edit`.
//!
//! Not here: files. A path is only text, and which file has it is the caller's business.

mod anchors;
mod apply;
mod header;
mod hunk;
mod hunk_locator;
mod lines;
mod match_rank;
mod parse;
mod v4a;

use std::collections::HashMap;

pub(crate) use apply::{HunkPlacement, apply};
pub(crate) use parse::parse;

/// The part of a diff about one file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FilePatch {
    pub(crate) change: PatchKind,
    /// As tools spell paths, without `a/` and `b/`. A diff of bare hunks names no file.
    pub(crate) path: Option<String>,
    /// The path that the file gets.
    pub(crate) moved_to: Option<String>,
    pub(crate) format: PatchFormat,
    /// None at all where a file is only moved, where V4A deletes one, or else only where an empty file is created or deleted.
    pub(crate) hunks: Vec<PatchHunk>,
}

impl FilePatch {
    /// It moves or deletes a file whatever is in it, text or not.
    pub(crate) fn takes_any_contents(&self) -> bool {
        let goes = self.moved_to.is_some() || self.change == PatchKind::Delete;
        self.format == PatchFormat::V4a && self.hunks.is_empty() && goes
    }
}

/// A format of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchFormat {
    Unified,
    /// `*** Begin Patch`: hunks have no line numbers, and are in the order of the file.
    V4a,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Modify,
    Create,
    Delete,
}

/// Some lines in a row and what they become. Both texts have the lines of context in them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PatchHunk {
    /// The old line that its header states; nothing where the header has no numbers, or counts that are wrong.
    stated: Option<usize>,
    /// Lines above it, such as the head of its function, that tell it from other places; the outer ones first.
    anchors: Vec<String>,
    /// It says that it is at the end of the file.
    at_end: bool,
    old: HunkSide,
    new: HunkSide,
    added: usize,
    removed: usize,
    /// It begins with a line of context.
    context_above: bool,
    /// It ends with a line of context.
    context_below: bool,
    /// The patch has it more than once.
    is_repeated: bool,
    /// Its lines of context by their number in the old and in the new lines, from zero. Empty where they have no mark.
    marked_context: Vec<(usize, usize)>,
}

/// The lines of a hunk in one of the two texts, with their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct HunkSide {
    text: String,
    lines: usize,
}

impl HunkSide {
    /// Nothing can follow in its text.
    fn lacks_newline(&self) -> bool {
        !self.text.is_empty() && !self.text.ends_with('\n')
    }
}

impl PatchHunk {
    /// The same hunk once more, at the same line or where there is one place for it, is the same change.
    fn without_repetitions(hunks: Vec<Self>) -> Vec<Self> {
        let mut kept: Vec<Self> = Vec::with_capacity(hunks.len());
        let mut places: HashMap<Self, usize> = HashMap::new();
        for hunk in hunks {
            let hunk = Self { is_repeated: false, ..hunk };
            match places.get(&hunk) {
                Some(first) => kept[*first].is_repeated = true,
                None => {
                    places.insert(hunk.clone(), kept.len());
                    kept.push(hunk);
                }
            }
        }
        kept
    }

    /// Number of lines of the old text before it, by its header.
    fn lines_before(&self) -> Option<usize> {
        self.stated.map(|line| line.saturating_sub(usize::from(self.old.lines > 0)))
    }

    /// The same hunk if what was read as the mark of its context belongs to the lines, as where a model left the marks out
    /// of lines that are all indented. Nothing where it has no such line.
    fn with_marks_as_text(&self) -> Option<Self> {
        let is_filled = |line: &&str| !line.trim().is_empty();
        let side = |side: &HunkSide, context: &dyn Fn(&(usize, usize)) -> usize| {
            let mut context = self.marked_context.iter().map(context).peekable();
            let lines = side.text.split_inclusive('\n').enumerate().map(|(number, line)| {
                let is_marked = context.next_if_eq(&number).is_some() && is_filled(&line);
                (if is_marked { " " } else { "" }, line)
            });
            HunkSide { text: lines.flat_map(|(mark, line)| [mark, line]).collect(), lines: side.lines }
        };
        let (old, new) = (side(&self.old, &|pair| pair.0), side(&self.new, &|pair| pair.1));
        (old != self.old).then(|| Self { old, new, marked_context: Vec::new(), ..self.clone() })
    }

    /// It can only be the end of a file.
    fn reaches_end(&self) -> bool {
        self.old.lacks_newline() || self.new.lacks_newline()
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod malformed;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod v4a_properties;
