//! Text matching for edits: where a text that a model wrote is in a file, and what replaces it there.
//!
//! A text is matched exactly, and only if it is not there by six relaxations in a fixed order. Each of them counts only
//! where it matches one place, is named in the result, and changes the replacement in the same way. Nothing is matched by
//! similarity.
//!
//! Not here: files, and which tools relax anything at all.

mod line_match;
mod nearest;
mod text_match;
mod typography;

#[cfg(test)]
pub(crate) use line_match::IndentShift;
pub(crate) use line_match::{LineMatch, LineSearchError, RelaxedHunk, find_lines};
pub(crate) use nearest::nearest_lines;
pub(crate) use text_match::{TextMatch, TextMatchError, find_relaxed, replacement_with_endings};

/// A difference between a text and the place that it was matched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TextRelaxation {
    /// CRLF for LF, or the other way round.
    LineEndings,
    /// Blanks at the ends of lines, and the newline at the end of the file.
    TrailingBlanks,
    /// All lines are indented by the same blanks more, or less.
    Indentation,
    /// Both of these.
    IndentationAndTrailingBlanks,
    /// Typographic quotes, dashes and spaces for those of ASCII, or the other way round.
    Typography,
    /// `N<tab>` before each line, as a read of the file has it.
    LineNumbers,
    /// Lines of context of a hunk without the space that marks them.
    ContextMark,
}

impl TextRelaxation {
    /// For the reply: what was different.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::LineEndings => "matched with the file's line endings",
            Self::TrailingBlanks => "matched without trailing blanks",
            Self::Indentation => "matched with another indentation",
            Self::IndentationAndTrailingBlanks => "matched with another indentation and without trailing blanks",
            Self::Typography => "matched with other quotes, dashes or spaces",
            Self::LineNumbers => "matched without line numbers",
            Self::ContextMark => "matched with context lines that lack their mark",
        }
    }
}

/// A line without its end.
pub(crate) fn line_body(line: &str) -> &str {
    line.strip_suffix('\n').map_or(line, |line| line.strip_suffix('\r').unwrap_or(line))
}

fn trim_blanks(line: &str) -> &str {
    line.trim_end_matches([' ', '\t', '\r'])
}

#[cfg(test)]
mod tests;
