//! Line reader of a patch, with numbers and lookahead.

use std::borrow::Cow;
use std::fmt::Display;

use ringfence_kernel::{ErrorKind, ToolError};

/// First characters of the lines of a hunk that are not context.
const MARKS: [char; 3] = ['+', '-', '@'];

/// The rest of a patch. Every line has its newline.
#[derive(Clone, Copy)]
pub(super) struct PatchLineCursor<'p> {
    rest: &'p str,
    /// Of the next line.
    pub(super) number: usize,
    /// Number of the last line that could be one of a hunk, and not of context; zero where there is none.
    last_marked: usize,
}

impl<'p> PatchLineCursor<'p> {
    pub(super) fn new(patch: &'p str) -> Self {
        let numbered = (1..).zip(patch.split_inclusive('\n'));
        let marked = numbered.filter(|(_, line)| line.ends_with('\n') && line.starts_with(MARKS));
        Self { rest: patch, number: 1, last_marked: marked.last().map_or(0, |(number, _)| number) }
    }

    pub(super) fn peek(mut self) -> Option<&'p str> {
        self.next()
    }

    pub(super) fn begin_with(self, start: &str) -> bool {
        self.rest.starts_with(start)
    }

    /// The rest after the next line.
    pub(super) fn after_next(mut self) -> Self {
        self.next();
        self
    }

    pub(super) fn at_file_names(self) -> bool {
        self.begin_with("--- ") && self.after_next().begin_with("+++ ")
    }

    /// Whether the next line could be one of a hunk.
    pub(super) fn at_hunk_line(self) -> bool {
        self.rest.starts_with([' ', '+', '-']) && !self.at_file_names() && !self.at_signature()
    }

    /// Whether a line that could be one of a hunk, and not of context, is left.
    pub(super) fn has_marked_line(self) -> bool {
        self.number <= self.last_marked
    }

    /// Whether the end of a mail follows: `-- ` and then the version of git that made it.
    pub(super) fn at_signature(self) -> bool {
        let version = self.after_next().rest.starts_with(|first: char| first.is_ascii_digit());
        version && self.peek().is_some_and(|line| line.trim_end() == "--")
    }

    /// The rest up to `end`, which is further down.
    pub(super) fn up_to(self, end: Self) -> Self {
        let rest = &self.rest[..self.rest.len() - end.rest.len()];
        let last_marked = Self::new(rest).last_marked;
        // Lines before it are counted too.
        Self { rest, last_marked: if last_marked == 0 { 0 } else { self.number + last_marked - 1 }, ..self }
    }

    pub(super) fn skip_blank(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.next();
        }
    }
}

impl<'p> Iterator for PatchLineCursor<'p> {
    type Item = &'p str;

    fn next(&mut self) -> Option<&'p str> {
        let (line, rest) = self.rest.split_at(memchr::memchr(b'\n', self.rest.as_bytes())? + 1);
        self.rest = rest;
        self.number += 1;
        Some(line)
    }
}

pub(super) fn is_blank(line: &str) -> bool {
    matches!(line, "\n" | "\r\n")
}

/// The last line may come without its end, and then ends as the one above it does.
pub(super) fn with_last_newline(patch: &str) -> Cow<'_, str> {
    if patch.ends_with('\n') {
        return patch.into();
    }
    let returns = patch.rsplit_once('\n').is_some_and(|(above, last)| above.ends_with('\r') && !last.ends_with('\r'));
    [patch, if returns { "\r\n" } else { "\n" }].concat().into()
}

/// A patch that cannot be read, and where.
pub(super) fn syntax_error(number: usize, problem: impl Display) -> ToolError {
    let message = format!("line {number} of the patch: {problem}");
    ToolError { field: Some("patch"), ..ToolError::new(ErrorKind::InvalidArgs, message) }
}
