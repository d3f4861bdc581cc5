//! Relaxed matching of whole lines, for edits and for hunks of patches.
//!
//! Lines that the replacement leaves alone stay as the file has them, and only its other lines are adapted: with the line
//! endings of the file, and shifted as the old lines were.

use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::edit::typography::{keep_ends, to_ascii};
use crate::edit::{TextRelaxation, line_body, trim_blanks};

/// Most comparisons of lines in one search, so that every search ends.
const MOST_COMPARED: usize = 2_000_000;

/// Most pairs of lines for which the unchanged ones are looked for.
const MOST_DIFFED: usize = 4_000_000;

/// Blanks that all lines of a text have more or less than those of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum IndentShift {
    #[default]
    None,
    /// The file has these in front of each line.
    Add(String),
    /// The text has these in front of each line.
    Remove(String),
}

/// Lines of a file that a text was matched with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineMatch {
    /// The index of the first one.
    pub(crate) first: usize,
    pub(crate) shift: IndentShift,
}

/// The lines of a text before and after a change, both with their ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelaxedHunk<'a> {
    pub(crate) old: &'a str,
    pub(crate) new: &'a str,
}

/// The search was given up: what it did not look at could match too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineSearchError;

/// Visits every place where lines of a file match `old` by a relaxation, until the visitor has enough. A text without a
/// line that has more than blanks matches nothing.
pub(crate) fn find_lines(
    file: &[&str],
    old: &str,
    relaxation: TextRelaxation,
    mut has_enough: impl FnMut(LineMatch) -> bool,
) -> Result<(), LineSearchError> {
    let wanted: Vec<&str> = old.split_inclusive('\n').map(line_body).collect();
    let Some(anchor) = wanted.iter().position(|line| !line.trim().is_empty()) else { return Ok(()) };
    let comparer = LineComparer { relaxation };
    let mut left = MOST_COMPARED;
    for first in 0..(file.len() + 1).saturating_sub(wanted.len()) {
        let Some(shift) = comparer.shift_of(line_body(file[first + anchor]), wanted[anchor]) else { continue };
        let pairs = file[first..].iter().map(|line| line_body(line)).zip(&wanted);
        let mut compared = 0;
        let matches = pairs.inspect(|_| compared += 1).all(|(there, line)| comparer.matches(there, line, &shift));
        left = left.checked_sub(compared).ok_or(LineSearchError)?;
        if matches && has_enough(LineMatch { first, shift }) {
            break;
        }
    }
    Ok(())
}

struct LineComparer {
    relaxation: TextRelaxation,
}

impl LineComparer {
    /// The shift by which a line of the file, which is not blank, is `line`.
    fn shift_of(&self, there: &str, line: &str) -> Option<IndentShift> {
        use TextRelaxation::{Indentation, IndentationAndTrailingBlanks};
        if !matches!(self.relaxation, Indentation | IndentationAndTrailingBlanks) {
            return Some(IndentShift::None);
        }
        let indent = |line: &'_ str| line.len() - line.trim_start_matches([' ', '\t']).len();
        let (there, line) = (&there[..indent(there)], &line[..indent(line)]);
        let shift = match (there.strip_suffix(line), line.strip_suffix(there)) {
            (Some(""), _) => return None,
            (Some(more), _) => IndentShift::Add(more.to_owned()),
            (None, Some(less)) => IndentShift::Remove(less.to_owned()),
            (None, None) => return None,
        };
        Some(shift)
    }

    fn matches(&self, there: &str, line: &str, shift: &IndentShift) -> bool {
        match self.relaxation {
            TextRelaxation::LineEndings | TextRelaxation::LineNumbers | TextRelaxation::ContextMark => there == line,
            TextRelaxation::TrailingBlanks => trim_blanks(there) == trim_blanks(line),
            TextRelaxation::Indentation => shift.matches(there, line) || (there == line && line.trim().is_empty()),
            TextRelaxation::IndentationAndTrailingBlanks => {
                let (there, line) = (trim_blanks(there), trim_blanks(line));
                if line.is_empty() { there.is_empty() } else { shift.matches(there, line) }
            }
            TextRelaxation::Typography => trim_blanks(&to_ascii(there)) == trim_blanks(&to_ascii(line)),
        }
    }
}

impl IndentShift {
    /// The file has one space more, as many as a mark of context has.
    pub(crate) fn is_one_space(&self) -> bool {
        matches!(self, Self::Add(more) if more == " ")
    }

    fn matches(&self, there: &str, line: &str) -> bool {
        match self {
            Self::None => there == line,
            Self::Add(more) => there.strip_prefix(more.as_str()) == Some(line),
            Self::Remove(less) => line.strip_prefix(less.as_str()) == Some(there),
        }
    }

    /// A new line, shifted as the old ones were. Nothing where it does not have the blanks that are to be removed.
    fn apply(&self, line: &str) -> Option<String> {
        match self {
            _ if line.trim().is_empty() => Some(line.to_owned()),
            Self::None => Some(line.to_owned()),
            Self::Add(more) => Some([more, line].concat()),
            Self::Remove(less) => line.strip_prefix(less.as_str()).map(str::to_owned),
        }
    }
}

impl RelaxedHunk<'_> {
    /// The new text for the lines of the file that the old text was matched with; nothing where it cannot be shifted as
    /// those were. `file` has as many lines as the old text, and `eol` ends new lines.
    pub(crate) fn adapted(
        self,
        file: &[&str],
        shift: &IndentShift,
        relaxation: TextRelaxation,
        eol: &str,
    ) -> Option<String> {
        let bodies = |text| str::split_inclusive(text, '\n').map(line_body).collect::<Vec<_>>();
        let (old, new) = (bodies(self.old), bodies(self.new));
        // A text that ends without a newline has its last line without an end.
        let open = !self.new.ends_with('\n');
        let mut adapted = String::with_capacity(self.new.len());
        let mut push = |index: usize, body: &str, end: &str| {
            adapted.push_str(body);
            if !(open && index + 1 == new.len()) {
                adapted.push_str(end);
            }
        };
        for op in diff_lines(&old, &new) {
            let (old_range, new_range) = (op.old_range(), op.new_range());
            match op {
                DiffOp::Equal { .. } => {
                    for (index, there) in new_range.zip(&file[old_range]) {
                        let body = line_body(there);
                        let end = &there[body.len()..];
                        push(index, body, if end.is_empty() { eol } else { end });
                    }
                }
                DiffOp::Delete { .. } | DiffOp::Insert { .. } | DiffOp::Replace { .. } => {
                    let paired = relaxation == TextRelaxation::Typography && old_range.len() == new_range.len();
                    for (nth, index) in new_range.enumerate() {
                        let line = if paired {
                            let at = old_range.start + nth;
                            keep_ends(line_body(file[at]), old[at], new[index])
                        } else {
                            shift.apply(new[index])?
                        };
                        push(index, &line, eol);
                    }
                }
            }
        }
        Some(adapted)
    }
}

/// The lines that are the same in both. Long texts are compared at their ends only.
fn diff_lines(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    if old.len().saturating_mul(new.len()) <= MOST_DIFFED {
        return capture_diff_slices(Algorithm::Myers, old, new);
    }
    let same = |pair: &(&&str, &&str)| pair.0 == pair.1;
    let head = old.iter().zip(new).take_while(same).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(same).count();
    let (old_len, new_len) = (old.len() - head - tail, new.len() - head - tail);
    let equal = |old_index, new_index, len| DiffOp::Equal { old_index, new_index, len };
    vec![
        equal(0, 0, head),
        DiffOp::Replace { old_index: head, old_len, new_index: head, new_len },
        equal(head + old_len, head + new_len, tail),
    ]
}
