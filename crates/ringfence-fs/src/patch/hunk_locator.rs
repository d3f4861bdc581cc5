//! Hunk location: where the hunks of one file belong in its text.
//!
//! A position matches when it has exactly the old lines of the hunk, ends included, but for a newline at the end of the
//! file. A hunk that was applied already is refused. No message has contents in it.

use std::ops::Range;

use memchr::memmem::{self, Finder};
use ringfence_kernel::{ErrorKind, ToolError};

use crate::patch::PatchHunk;
use crate::patch::apply::LineEndings;

/// Most line numbers that a message has.
const MOST_LINES: usize = 20;

/// Most bytes of a file that are searched for hunks that are not at their stated lines, so that a small patch of a
/// large file ends.
pub(super) const MOST_SEARCHED: usize = 512 << 20;

/// The start of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineOffset {
    /// Number of lines before it.
    pub(super) lines: usize,
    /// Number of bytes before it.
    pub(super) at: usize,
}

/// A position that has the old lines of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HunkMatch {
    pub(super) start: LineOffset,
    /// End of the old lines, in bytes.
    end: usize,
    /// Replacement of the old lines, where that is not exactly the hunk's new lines.
    new: Option<String>,
}

impl HunkMatch {
    pub(super) fn new_text<'h>(&'h self, hunk: &'h PatchHunk) -> &'h str {
        self.new.as_deref().unwrap_or(&hunk.new.text)
    }
}

pub(super) struct HunkLocator<'t> {
    text: &'t str,
    shown: &'t str,
    /// Whether line numbers are believed: those of a patch with one wrong header are not.
    pub(super) trust_line_numbers: bool,
    /// The end of the hunk before, in the old text.
    pub(super) previous_end: LineOffset,
    /// Ranges of the old lines of the hunks before.
    placed_ranges: Vec<Range<usize>>,
    /// How much further down than stated the hunk before was.
    offset: isize,
    /// Bytes that may still be searched.
    search_budget: usize,
}

impl<'t> HunkLocator<'t> {
    pub(super) fn new(text: &'t str, hunks: &[PatchHunk], shown: &'t str) -> Self {
        let trust_line_numbers = hunks.iter().all(|hunk| hunk.stated.is_some());
        Self {
            text,
            shown,
            trust_line_numbers,
            previous_end: LineOffset::default(),
            placed_ranges: Vec::new(),
            offset: 0,
            search_budget: MOST_SEARCHED,
        }
    }

    pub(super) fn place(&mut self, number: usize, hunk: &PatchHunk) -> Result<HunkMatch, ToolError> {
        let stated = hunk.lines_before().filter(|_| self.trust_line_numbers);
        let stated = stated.and_then(|before| self.start_of(before.checked_add_signed(self.offset)));
        let fit = if hunk.old.text.is_empty() {
            // Without old lines there is no evidence for another position, or for the stated one once lines have
            // shifted.
            let only = stated.or_else(|| self.text.is_empty().then(LineOffset::default));
            let fits = only.filter(|at| self.offset == 0 && self.matches_at(*at, hunk));
            self.exact_match(fits.ok_or_else(|| self.no_insertion_point_error(number, hunk))?, hunk)
        } else if let Some(at) = stated.filter(|at| self.matches_at(*at, hunk)) {
            self.exact_match(at, hunk)
        } else {
            self.unique_match(number, hunk, stated)?
        };
        let moved = stated.filter(|at| *at != fit.start);
        if moved.is_some_and(|at| self.has_new_lines(at, hunk)) || self.is_applied(&fit, hunk) {
            return Err(self.already_applied_error(number, hunk));
        }
        if self.is_repeatable(&fit, hunk) {
            let message = format!("hunk {number} would still match `{}` after it is applied", self.shown);
            let error = ToolError::new(ErrorKind::AmbiguousEdit, message);
            return Err(error.hint("add context lines above and below its change").detail("hunk", number));
        }
        Ok(fit)
    }

    /// The only position in the whole file that has the old lines.
    fn unique_match(
        &mut self,
        number: usize,
        hunk: &PatchHunk,
        stated: Option<LineOffset>,
    ) -> Result<HunkMatch, ToolError> {
        let mut found = self.search(number, hunk)?;
        let differs_in_ends = found.len() == 1 && self.matches_without_ends(hunk) > 1;
        match (found.pop(), found.is_empty()) {
            (Some(only), true) if differs_in_ends => Err(self.ambiguous_error(number, hunk, &[only])),
            (Some(only), true) if only.start.at >= self.previous_end.at => Ok(only),
            (Some(_), true) => Err(self.out_of_order_error(number, hunk)),
            (Some(last), false) => {
                found.push(last);
                Err(self.ambiguous_error(number, hunk, &found))
            }
            (None, _) => Err(self.not_found_error(number, hunk, stated)),
        }
    }

    pub(super) fn mark_placed(&mut self, fit: &HunkMatch, hunk: &PatchHunk) {
        if let Some(before) = hunk.lines_before().filter(|_| self.trust_line_numbers) {
            self.offset = fit.start.lines as isize - before as isize;
        }
        self.previous_end = LineOffset { lines: fit.start.lines + hunk.old.lines, at: fit.end };
        self.placed_ranges.push(fit.start.at..fit.end);
    }

    /// Offset of a line by the number of lines before it, if no hunk has passed it.
    fn start_of(&self, lines: Option<usize>) -> Option<LineOffset> {
        let skipped = lines?.checked_sub(self.previous_end.lines)?;
        let rest = &self.text.as_bytes()[self.previous_end.at..];
        let length = match skipped.checked_sub(1) {
            None => 0,
            Some(last) => memchr::memchr_iter(b'\n', rest).nth(last)? + 1,
        };
        Some(LineOffset { lines: self.previous_end.lines + skipped, at: self.previous_end.at + length })
    }

    fn exact_match(&self, start: LineOffset, hunk: &PatchHunk) -> HunkMatch {
        HunkMatch { start, end: start.at + hunk.old.text.len(), new: None }
    }

    fn matches_at(&self, at: LineOffset, hunk: &PatchHunk) -> bool {
        let rest = &self.text[at.at..];
        rest.starts_with(&hunk.old.text) && (!hunk.reaches_end() || rest.len() == hunk.old.text.len())
    }

    /// Whether the new lines of a hunk that changes something are at a position.
    fn has_new_lines(&self, at: LineOffset, hunk: &PatchHunk) -> bool {
        !hunk.new.text.is_empty() && hunk.new.text != hunk.old.text && self.has_lines(at.at, &hunk.new.text)
    }

    /// Whether these lines are at a position, whatever the end of the file is.
    fn has_lines(&self, at: usize, lines: &str) -> bool {
        let rest = &self.text[at..];
        let alike = rest.ends_with('\n') != lines.ends_with('\n') && without_end(rest) == without_end(lines);
        (lines.ends_with('\n') && rest.starts_with(lines)) || (!rest.is_empty() && (alike || rest == lines))
    }

    /// Whether the new lines stand around the old ones already. Only context on both sides could tell that as many are to
    /// be added once more.
    fn is_applied(&self, fit: &HunkMatch, hunk: &PatchHunk) -> bool {
        let (old, new) = (&hunk.old.text, &hunk.new.text);
        if hunk.new.lines <= hunk.old.lines || (hunk.context_above && hunk.context_below) {
            return false;
        }
        let line_start = |above: usize| {
            let start = fit.start.at.checked_sub(above)?;
            (start == 0 || self.text.as_bytes()[start - 1] == b'\n').then_some(start)
        };
        let (around, exactly) = (
            |above| line_start(above).is_some_and(|start| self.has_lines(start, new)),
            |above| line_start(above).is_some_and(|start| self.text[start..].starts_with(new.as_str())),
        );
        if old.is_empty() {
            return exactly(0);
        }
        if hunk.context_above {
            return new.starts_with(old.as_str()) && around(0);
        }
        if hunk.context_below {
            return new.ends_with(old.as_str()) && around(new.len() - old.len());
        }
        let mut places = memmem::find_iter(new.as_bytes(), old.as_bytes())
            .filter(|at| *at == 0 || new.as_bytes()[at - 1] == b'\n')
            .take(MOST_LINES + 1)
            .enumerate();
        places.any(|(count, above)| count == MOST_LINES || exactly(above))
    }

    /// Whether fewer lines of the same kind would be left, so that the hunk would match there again: then it is for the end
    /// of the file if it has no context below, and for the beginning if it has none above.
    fn is_repeatable(&self, fit: &HunkMatch, hunk: &PatchHunk) -> bool {
        let (old, new) = (&hunk.old.text, fit.new_text(hunk));
        let at_edge = if hunk.context_above { fit.end == self.text.len() } else { fit.start.at == 0 };
        if hunk.new.lines >= hunk.old.lines || hunk.context_above == hunk.context_below || at_edge {
            return false;
        }
        old.strip_prefix(new).is_some_and(|more| self.text[fit.end..].starts_with(more))
    }

    /// Every position in the file that the hunk fits, less those of the hunks before it; at most one more than are
    /// reported.
    fn search(&mut self, number: usize, hunk: &PatchHunk) -> Result<Vec<HunkMatch>, ToolError> {
        let text = self.text.as_bytes();
        self.search_budget = self.search_budget.checked_sub(text.len()).ok_or_else(|| {
            let message =
                format!("hunk {number} and too many others are not at their stated lines in `{}`", self.shown);
            ToolError::new(ErrorKind::EditNotFound, message).hint("regenerate the diff from the current file")
        })?;
        let after = |mark: LineOffset, at: usize| {
            let lines = mark.lines + memchr::memchr_iter(b'\n', &text[mark.at..at]).count();
            LineOffset { lines, at }
        };
        let free = |fit: &HunkMatch| {
            !self.placed_ranges.iter().any(|passed| fit.start.at < passed.end && passed.start < fit.end)
        };
        let top = LineOffset::default();
        let mut found: Vec<HunkMatch> =
            self.matches_at(top, hunk).then(|| self.exact_match(top, hunk)).into_iter().collect();
        // With the newline before it, the old text is found at starts of lines only: every find is a match, and few
        // matches are enough.
        let needle = ["\n", &hunk.old.text].concat();
        if hunk.reaches_end() {
            if text.ends_with(needle.as_bytes()) {
                found.push(self.exact_match(after(top, text.len() - hunk.old.text.len()), hunk));
            }
        } else {
            let finder = Finder::new(&needle);
            let mut last = top;
            found.retain(&free);
            while found.len() <= MOST_LINES
                && let Some(skipped) = finder.find(&text[last.at..])
            {
                last = after(last, last.at + skipped + 1);
                found.extend(Some(self.exact_match(last, hunk)).filter(&free));
            }
        }
        found.extend(self.match_at_end(hunk).map(|(at, new)| HunkMatch {
            start: after(top, at),
            end: text.len(),
            new,
        }));
        found.retain(&free);
        Ok(found)
    }

    /// In a file with mixed line endings, how many positions would have the old lines if all ended alike; counts up to
    /// two.
    fn matches_without_ends(&self, hunk: &PatchHunk) -> usize {
        if LineEndings::of(self.text) != LineEndings::Mixed {
            return 0;
        }
        let text = ["\n", self.text].concat().replace("\r\n", "\n");
        let wanted = ["\n", &hunk.old.text].concat().replace("\r\n", "\n");
        let Some(first) = memmem::find(text.as_bytes(), wanted.as_bytes()) else { return 0 };
        1 + usize::from(memmem::find(&text.as_bytes()[first + 1..], wanted.as_bytes()).is_some())
    }

    /// Offset of the file's last lines if they are the old lines but for the newline at the end, which only one of them
    /// has. The file keeps its end, unless the hunk is about that.
    fn match_at_end(&self, hunk: &PatchHunk) -> Option<(usize, Option<String>)> {
        let (old, new) = (&hunk.old, &hunk.new);
        let ends = self.text.ends_with('\n');
        let (file, wanted) = (without_end(self.text), without_end(&old.text));
        if ends != old.lacks_newline() || wanted.is_empty() {
            return None;
        }
        let at = file.strip_suffix(wanted).filter(|above| above.is_empty() || above.ends_with('\n'))?.len();
        if new.text.is_empty() || old.lacks_newline() != new.lacks_newline() {
            return Some((at, None));
        }
        let new = [without_end(&new.text), &self.text[file.len()..]].concat();
        // A last line that is empty cannot be without its newline.
        (ends || !matches!(new.as_bytes(), [] | [.., b'\n'])).then_some((at, Some(new)))
    }

    fn hunk_label(hunk: &PatchHunk) -> String {
        hunk.stated.map_or(String::new(), |line| format!(", for line {line},"))
    }

    fn ambiguous_error(&self, number: usize, hunk: &PatchHunk, places: &[HunkMatch]) -> ToolError {
        let lines: Vec<usize> = places.iter().take(MOST_LINES).map(|place| place.start.lines + 1).collect();
        let listed = lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let more = if places.len() > MOST_LINES { " and more" } else { "" };
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

    fn not_found_error(&self, number: usize, hunk: &PatchHunk, stated: Option<LineOffset>) -> ToolError {
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

    fn already_applied_error(&self, number: usize, hunk: &PatchHunk) -> ToolError {
        let message = format!(
            "hunk {number}{} is already applied to `{}`: its new lines are there",
            Self::hunk_label(hunk),
            self.shown
        );
        let advice = "remove it; to add the same lines again, add context lines above and below";
        ToolError::new(ErrorKind::EditNotFound, message).hint(advice).detail("hunk", number)
    }

    fn out_of_order_error(&self, number: usize, hunk: &PatchHunk) -> ToolError {
        let message = format!(
            "hunk {number}{} is not in `{}`: it starts before the end of the previous hunk",
            Self::hunk_label(hunk),
            self.shown
        );
        let advice = "put the hunks of a file in the order of its lines";
        ToolError::new(ErrorKind::EditNotFound, message).hint(advice).detail("hunk", number)
    }

    /// Only for a hunk that has no lines to be found by.
    fn no_insertion_point_error(&self, number: usize, hunk: &PatchHunk) -> ToolError {
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

/// A text without the newline at its end.
fn without_end(text: &str) -> &str {
    text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text))
}

/// Number of lines of `old` that the text begins with.
fn first_difference(text: &str, old: &str) -> usize {
    let pairs = text.split_inclusive('\n').zip(old.split_inclusive('\n'));
    pairs.take_while(|(there, wanted)| there == wanted).count()
}
