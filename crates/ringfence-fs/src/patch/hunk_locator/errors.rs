//! Errors of hunk location: what a message says of a hunk that cannot be placed. None has contents in it.

use memchr::memmem;
use ringfence_kernel::{ErrorKind, ToolError};

use crate::patch::PatchHunk;
use crate::patch::hunk_locator::{HunkLocator, LineOffset};
use crate::patch::match_rank::MOST_LINES;

impl HunkLocator<'_> {
    fn hunk_label(hunk: &PatchHunk) -> String {
        hunk.stated.map_or(String::new(), |line| format!(", for line {line},"))
    }

    pub(super) fn ambiguous_error(&self, number: usize, hunk: &PatchHunk, starts: &[usize]) -> ToolError {
        let lines: Vec<usize> = starts.iter().take(MOST_LINES).map(|start| start + 1).collect();
        if hunk.is_repeated && starts.len() == 1 {
            let message =
                format!("hunk {number} is in the patch twice, and may be for several places in `{}`", self.shown);
            let error = ToolError::new(ErrorKind::AmbiguousEdit, message);
            return error.hint("add context lines to each").detail("hunk", number).detail("lines", lines);
        }
        let listed = lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let more = if starts.len() > MOST_LINES { " and more" } else { "" };
        let (shown, called) = (self.shown, Self::hunk_label(hunk));
        let (message, advice) = if self.trust_line_numbers {
            let there = format!("hunk {number}{called} does not match there in `{shown}`, but matches several places");
            (there, "add context lines, or correct the line number")
        } else {
            (format!("hunk {number}{called} matches several places in `{shown}`"), self.context_advice())
        };
        ToolError::new(ErrorKind::AmbiguousEdit, format!("{message}, at lines {listed}{more}"))
            .hint(advice)
            .detail("hunk", number)
            .detail("lines", lines)
    }

    /// Advice for a hunk whose line numbers count for nothing.
    fn context_advice(&self) -> &'static str {
        "add context lines; line numbers are used only if every hunk header of the file has correct counts"
    }

    pub(super) fn not_found_error(&self, number: usize, hunk: &PatchHunk, stated: Option<LineOffset>) -> ToolError {
        let message = format!("hunk {number}{} is not in `{}`: ", Self::hunk_label(hunk), self.shown);
        let error = match stated {
            None if !self.trust_line_numbers => {
                ToolError::new(ErrorKind::EditNotFound, message + "its old lines are not in the file")
            }
            None => ToolError::new(ErrorKind::EditNotFound, message + &self.line_mismatch_reason(hunk)),
            Some(at) => {
                let there = &self.text[at.at..];
                let differs = first_difference(there, &hunk.old.text);
                let line = at.lines + differs + 1;
                let why = if differs == hunk.old.lines {
                    format!("it says that the file ends without a newline, but the file continues at line {line}")
                } else if there.split_inclusive('\n').nth(differs).is_none() {
                    format!("the file ends before line {} of its old lines", differs + 1)
                } else {
                    format!("line {} of its old lines differs from line {line} of the file", differs + 1)
                };
                ToolError::new(ErrorKind::EditNotFound, message + &why).detail("differsAtLine", line)
            }
        };
        let new = &hunk.new.text;
        let advice = match self.line_endings_advice(hunk) {
            Some(advice) => advice,
            None if hunk.added > 0 && memmem::find(self.text.as_bytes(), new.as_bytes()).is_some() => {
                "its new lines are in the file: it may already be applied"
            }
            None => "read the file again and regenerate the diff",
        };
        error.hint(advice).detail("hunk", number)
    }

    /// All lines of context have one space less than the file: they may be shifted, or only lack their mark, and then the
    /// new lines are not shifted with them. Nothing that the hunk adds tells which.
    pub(super) fn context_mark_error(&self, number: usize) -> ToolError {
        let message = format!("the context of hunk {number} has one space less than `{}` has", self.shown);
        ToolError::new(ErrorKind::EditNotFound, message)
            .hint("start each line of context with a space, before its own indentation")
            .detail("hunk", number)
    }

    /// The line is that of an anchor which the file has: nothing above it is meant.
    pub(super) fn above_anchor_error(&self, number: usize, line: usize) -> ToolError {
        let message = format!(
            "hunk {number} is not in `{}` below line {line}, which its `@@` line names: its old lines are only above",
            self.shown
        );
        ToolError::new(ErrorKind::EditNotFound, message)
            .hint("correct the `@@` line, or remove its text")
            .detail("hunk", number)
            .detail("anchorLine", line)
    }

    pub(super) fn already_applied_error(&self, number: usize, hunk: &PatchHunk) -> ToolError {
        let message = format!(
            "hunk {number}{} is already applied to `{}`: its new lines are there",
            Self::hunk_label(hunk),
            self.shown
        );
        let advice = "remove it; to add the same lines again, add context lines above and below";
        ToolError::new(ErrorKind::EditNotFound, message).hint(advice).detail("hunk", number)
    }

    /// Only for a hunk that has no lines to be found by.
    pub(super) fn no_insertion_point_error(&self, number: usize, hunk: &PatchHunk) -> ToolError {
        let Some(stated) = hunk.stated.filter(|_| self.trust_line_numbers) else {
            let message =
                format!("hunk {number} only adds lines, and nothing says where in `{}` they belong", self.shown);
            let error = ToolError::new(ErrorKind::EditNotFound, message);
            return error.hint("add context lines").detail("hunk", number);
        };
        let why = match self.start_of(hunk.lines_before()) {
            _ if self.offset != 0 => "the previous hunk was not at its stated line".to_owned(),
            None => self.line_mismatch_reason(hunk),
            Some(_) => "the file does not end there".to_owned(),
        };
        let message = format!(
            "hunk {number} only adds lines, so it can only follow line {stated} of `{}`, but {why}",
            self.shown
        );
        ToolError::new(ErrorKind::EditNotFound, message).hint("add context lines").detail("hunk", number)
    }

    fn line_mismatch_reason(&self, hunk: &PatchHunk) -> String {
        let stated = hunk.lines_before().and_then(|before| before.checked_add_signed(self.offset));
        if stated.is_none_or(|lines| lines < self.previous_end.lines) {
            return "it starts before the end of the previous hunk".to_owned();
        }
        let whole = self.text.is_empty() || self.text.ends_with('\n');
        let end = if whole { "" } else { " and no newline at its end" };
        let count = self.text.split_inclusive('\n').count();
        format!("the file has {count} {}{end}", if count == 1 { "line" } else { "lines" })
    }

    /// Advice for a hunk that only line endings keep from matching.
    fn line_endings_advice(&self, hunk: &PatchHunk) -> Option<&'static str> {
        let old = &hunk.old.text;
        let loose = |text: &str| {
            let newline = if text.ends_with('\n') { "" } else { "\n" };
            ["\n", &text.replace("\r\n", "\n"), newline].concat()
        };
        let (file, wanted) = (loose(&self.text[self.previous_end.at..]), loose(old));
        let alike = if hunk.reaches_end() {
            file.ends_with(&wanted)
        } else {
            memmem::find(file.as_bytes(), wanted.as_bytes()).is_some()
        };
        alike.then_some(match (self.text.contains("\r\n"), old.contains("\r\n")) {
            (true, false) => "the line endings differ: the file has CRLF and the patch has LF",
            (false, true) => "the line endings differ: the file has LF and the patch has CRLF",
            _ if self.text.ends_with('\n') == old.ends_with('\n') => {
                "the line endings differ: CRLF and LF are mixed, and each must match the file"
            }
            _ if old.ends_with('\n') => {
                "the line endings differ: the file has no newline at its end, so put `\\ No newline at end of file` there"
            }
            _ => "the line endings differ: the file has a newline at its end, so remove `\\ No newline at end of file`",
        })
    }
}

/// Number of lines of `old` that the text begins with.
fn first_difference(text: &str, old: &str) -> usize {
    let pairs = text.split_inclusive('\n').zip(old.split_inclusive('\n'));
    pairs.take_while(|(there, wanted)| there == wanted).count()
}
