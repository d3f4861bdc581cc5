//! Unified diffs: read once into types, then applied to the text of one file at a time.
//!
//! A hunk goes where it says, or to the only other place that has exactly its lines; how far that is, is reported.
//! Nothing is matched nearly.
//!
//! Not here: files. A path is only text, and which file has it is the caller's business.

mod apply;
mod header;
mod hunk;
mod lines;
mod parse;

pub(crate) use apply::{Placed, apply};
pub(crate) use parse::parse;

/// What a diff says about one file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FilePatch {
    pub(crate) change: Change,
    /// As tools spell paths, without `a/` and `b/`. A diff of bare hunks names no file.
    pub(crate) path: Option<String>,
    /// None at all only where an empty file is created or deleted.
    pub(crate) hunks: Vec<Hunk>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Modify,
    Create,
    Delete,
}

/// Some lines in a row and what they become. Both texts have the lines of context in them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hunk {
    /// The old line that its header states.
    stated: usize,
    /// How many lines, by its header, the old text has before it.
    before: usize,
    old: Side,
    new: Side,
    added: usize,
    removed: usize,
}

/// The lines of a hunk in one of the two texts, with their ends.
#[derive(Debug, Default, PartialEq, Eq)]
struct Side {
    text: String,
    lines: usize,
}

impl Side {
    /// Nothing can follow in its text.
    fn lacks_newline(&self) -> bool {
        !self.text.is_empty() && !self.text.ends_with('\n')
    }
}

impl Hunk {
    /// It can only be the end of a file.
    fn reaches_end(&self) -> bool {
        self.old.lacks_newline() || self.new.lacks_newline()
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
