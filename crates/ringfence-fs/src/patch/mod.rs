//! Unified diffs: parsed once into types, then applied to the text of one file at a time.
//!
//! A hunk whose header is right is applied at its stated line. Any other, whether its numbers are wrong, miscounted or
//! left out, is applied at the only position that has exactly its old lines, and is refused if there are two. Only line
//! endings may differ, where the file has the same ending everywhere.
//!
//! Not here: files. A path is only text, and which file has it is the caller's business.

mod apply;
mod header;
mod hunk;
mod hunk_locator;
mod lines;
mod parse;

pub(crate) use apply::{HunkPlacement, apply};
pub(crate) use parse::parse;

/// The part of a diff about one file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FilePatch {
    pub(crate) change: PatchKind,
    /// As tools spell paths, without `a/` and `b/`. A diff of bare hunks names no file.
    pub(crate) path: Option<String>,
    /// None at all only where an empty file is created or deleted.
    pub(crate) hunks: Vec<PatchHunk>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Modify,
    Create,
    Delete,
}

/// Some lines in a row and what they become. Both texts have the lines of context in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatchHunk {
    /// The old line that its header states; nothing where the header has no numbers, or counts that are wrong.
    stated: Option<usize>,
    old: HunkSide,
    new: HunkSide,
    added: usize,
    removed: usize,
    /// It begins with a line of context.
    context_above: bool,
    /// It ends with a line of context.
    context_below: bool,
}

/// The lines of a hunk in one of the two texts, with their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Number of lines of the old text before it, by its header.
    fn lines_before(&self) -> Option<usize> {
        self.stated.map(|line| line.saturating_sub(usize::from(self.old.lines > 0)))
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
mod tests;
