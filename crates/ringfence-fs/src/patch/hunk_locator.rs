//! Hunk location: where the hunks of one file belong in its text.
//!
//! A position matches when it has exactly the old lines of the hunk, ends included, but for a newline at the end of the
//! file. Where there is none, one that has them by a relaxation of `edit` matches. A hunk that was applied already is
//! refused. No message has contents in it.

use std::ops::Range;

use memchr::memmem::{self, Finder};
use ringfence_kernel::{ErrorKind, ToolError};

use crate::edit::{LineMatch, RelaxedHunk, TextRelaxation, find_lines};
use crate::patch::apply::LineEndings;
use crate::patch::{PatchFormat, PatchHunk};

/// Most line numbers that a message has.
const MOST_LINES: usize = 20;

/// Most positions among which a hunk's own words may find the one that is meant.
const MOST_MATCHES: usize = 10_000;

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
    pub(super) end: usize,
    /// Replacement of the old lines, where that is not exactly the hunk's new lines.
    new: Option<String>,
    pub(super) relaxation: Option<TextRelaxation>,
}

impl HunkMatch {
    pub(super) fn new_text<'h>(&'h self, hunk: &'h PatchHunk) -> &'h str {
        self.new.as_deref().unwrap_or(&hunk.new.text)
    }

    pub(super) fn end_offset(&self, hunk: &PatchHunk) -> LineOffset {
        LineOffset { lines: self.start.lines + hunk.old.lines, at: self.end }
    }
}

pub(super) struct HunkLocator<'t> {
    text: &'t str,
    shown: &'t str,
    format: PatchFormat,
    /// Whether line numbers are believed: those of a patch with one wrong header are not.
    pub(super) trust_line_numbers: bool,
    /// The end of the hunk before, in the old text.
    previous_end: LineOffset,
    /// Ranges of the old lines of the hunks before.
    placed_ranges: Vec<Range<usize>>,
    /// How much further down than stated the hunk before was.
    offset: isize,
    /// Bytes that may still be searched.
    search_budget: usize,
}

impl<'t> HunkLocator<'t> {
    pub(super) fn new(text: &'t str, hunks: &[PatchHunk], shown: &'t str, format: PatchFormat) -> Self {
        let trust_line_numbers = hunks.iter().all(|hunk| hunk.stated.is_some());
        Self {
            text,
            shown,
            format,
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
            if hunk.at_end {
                return Ok(self.end_match(hunk));
            }
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

    /// The only position in the whole file that has the old lines: exactly, or else by the first relaxation by which any
    /// has.
    fn unique_match(
        &mut self,
        number: usize,
        hunk: &PatchHunk,
        stated: Option<LineOffset>,
    ) -> Result<HunkMatch, ToolError> {
        let found = self.search(number, hunk)?;
        if !found.is_empty() {
            let differs_in_ends = found.len() == 1 && self.matches_without_ends(hunk) > 1;
            return self.only_match(number, hunk, found).and_then(|only| match differs_in_ends {
                true => Err(self.ambiguous_error(number, hunk, &[only])),
                false => Ok(only),
            });
        }
        let levels = [
            TextRelaxation::TrailingBlanks,
            TextRelaxation::Indentation,
            TextRelaxation::IndentationAndTrailingBlanks,
            TextRelaxation::Typography,
        ];
        for level in levels {
            let found = self.search_relaxed(number, hunk, level)?;
            if !found.is_empty() {
                return self.only_match(number, hunk, found);
            }
        }
        Err(self.not_found_error(number, hunk, stated))
    }

    /// The one of several positions that the hunk says it is at.
    fn only_match(&self, number: usize, hunk: &PatchHunk, mut found: Vec<HunkMatch>) -> Result<HunkMatch, ToolError> {
        let narrow = |found: &mut Vec<HunkMatch>, keep: &dyn Fn(&HunkMatch) -> bool| {
            if found.len() > 1 && found.iter().any(keep) {
                found.retain(keep);
            }
        };
        narrow(&mut found, &|fit| hunk.at_end && fit.end == self.text.len());
        // The hunks of this format are in order.
        narrow(&mut found, &|fit| self.format == PatchFormat::V4a && fit.start.at >= self.previous_end.at);
        if found.len() > 1 && !hunk.anchors.is_empty() {
            let blocks = anchor_blocks(self.text, &hunk.anchors);
            narrow(&mut found, &|fit| blocks.iter().any(|block| block.contains(&fit.start.lines)));
        }
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(last), _) => {
                found.push(last);
                Err(self.ambiguous_error(number, hunk, &found))
            }
            (None, _) => Err(self.not_found_error(number, hunk, None)),
        }
    }

    /// Every position that has the old lines by a relaxation, less those of the hunks before.
    fn search_relaxed(
        &mut self,
        number: usize,
        hunk: &PatchHunk,
        level: TextRelaxation,
    ) -> Result<Vec<HunkMatch>, ToolError> {
        if !self.may_relax(hunk, level) {
            return Ok(Vec::new());
        }
        self.take_budget(number)?;
        let lines: Vec<&str> = self.text.split_inclusive('\n').collect();
        let eol = if lines.first().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
        let change = RelaxedHunk { old: &hunk.old.text, new: &hunk.new.text };
        let fit = |LineMatch { first, shift }: LineMatch| {
            let region = &lines[first..first + hunk.old.lines];
            let at: usize = lines[..first].iter().map(|line| line.len()).sum();
            let end = at + region.iter().map(|line| line.len()).sum::<usize>();
            let new = change.adapted(region, &shift, level, eol)?;
            // The file keeps its end.
            let is_open = region.last().is_some_and(|line| !line.ends_with('\n'));
            let new = if is_open { without_end(&new).to_owned() } else { new };
            let start = LineOffset { lines: first, at };
            Some(HunkMatch { start, end, new: Some(new), relaxation: Some(level) })
        };
        let found = find_lines(&lines, &hunk.old.text, level, MOST_LINES + 1);
        Ok(found.into_iter().filter_map(fit).filter(|fit| self.is_free(fit)).collect())
    }

    /// Whether the old lines of a hunk could be there by a relaxation. One that is about the end of the file says exactly
    /// what is there, and where both kinds of line endings are, each is part of its line.
    fn may_relax(&self, hunk: &PatchHunk, level: TextRelaxation) -> bool {
        const MOST_LOOKED_FOR: usize = 16;
        let ends = [self.text, &hunk.old.text, &hunk.new.text].map(LineEndings::of);
        let [file, old, new] = ends;
        if hunk.reaches_end()
            || ends.contains(&LineEndings::Mixed)
            || file != old
            || (new != old && new != LineEndings::None)
        {
            return false;
        }
        if level == TextRelaxation::Typography {
            return !(self.text.is_ascii() && hunk.old.text.is_ascii());
        }
        let mut distinct: Vec<&str> = Vec::new();
        for line in hunk.old.text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if distinct.len() < MOST_LOOKED_FOR && !distinct.contains(&line) {
                distinct.push(line);
            }
        }
        distinct.iter().all(|line| memmem::find(self.text.as_bytes(), line.as_bytes()).is_some())
    }

    /// New lines at the end of the file.
    fn end_match(&self, hunk: &PatchHunk) -> HunkMatch {
        let lines = self.text.split_inclusive('\n').count();
        let is_open = !self.text.is_empty() && !self.text.ends_with('\n');
        let new = is_open.then(|| ["\n", without_end(&hunk.new.text)].concat());
        HunkMatch { start: LineOffset { lines, at: self.text.len() }, end: self.text.len(), new, relaxation: None }
    }

    /// Whether no hunk has the position yet.
    fn is_free(&self, fit: &HunkMatch) -> bool {
        !self.placed_ranges.iter().any(|passed| fit.start.at < passed.end && passed.start < fit.end)
    }

    fn take_budget(&mut self, number: usize) -> Result<(), ToolError> {
        self.search_budget = self.search_budget.checked_sub(self.text.len()).ok_or_else(|| {
            let message =
                format!("hunk {number} and too many others are not at their stated lines in `{}`", self.shown);
            ToolError::new(ErrorKind::EditNotFound, message).hint("regenerate the diff from the current file")
        })?;
        Ok(())
    }

    pub(super) fn mark_placed(&mut self, fit: &HunkMatch, hunk: &PatchHunk) {
        if let Some(before) = hunk.lines_before().filter(|_| self.trust_line_numbers) {
            self.offset = fit.start.lines as isize - before as isize;
        }
        let end = fit.end_offset(hunk);
        if end.at >= self.previous_end.at {
            self.previous_end = end;
        }
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
        HunkMatch { start, end: start.at + hunk.old.text.len(), new: None, relaxation: None }
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
        self.take_budget(number)?;
        let text = self.text.as_bytes();
        // With anchors, the right one of many may be further down.
        let most =
            if hunk.anchors.is_empty() && self.format == PatchFormat::Unified { MOST_LINES } else { MOST_MATCHES };
        let after = |mark: LineOffset, at: usize| {
            let lines = mark.lines + memchr::memchr_iter(b'\n', &text[mark.at..at]).count();
            LineOffset { lines, at }
        };
        let free = |fit: &HunkMatch| self.is_free(fit);
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
            while found.len() <= most
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
            relaxation: None,
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
        let can_keep_end = ends || !matches!(new.as_bytes(), [] | [.., b'\n']);
        Some((at, can_keep_end.then_some(new)))
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

/// The lines that belong to the lines that anchors name, as indexes: each to the next line that is indented no more, but
/// for one that only closes. The first anchor is the outermost.
fn anchor_blocks(text: &str, anchors: &[String]) -> Vec<Range<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let closes = |line: &str| line.trim_start().starts_with(['}', ')', ']', '{']);
    let block = |first: usize, end: usize| {
        let own = indent(lines[first]);
        let below = (first + 1..end).find(|index| {
            let line = lines[*index];
            !line.trim().is_empty() && (indent(line) < own || (indent(line) == own && !closes(line)))
        });
        first..below.unwrap_or(end)
    };
    let whole = 0..lines.len();
    let mut blocks = vec![whole];
    for anchor in anchors {
        let named = |is_named: &dyn Fn(&str) -> bool| -> Vec<Range<usize>> {
            let firsts = blocks.iter().flat_map(|within| within.clone().map(|first| (first, within.end)));
            firsts.filter(|(first, _)| is_named(lines[*first].trim())).map(|(first, end)| block(first, end)).collect()
        };
        let exactly = named(&|line| line == anchor);
        blocks = if exactly.is_empty() { named(&|line| line.starts_with(anchor.as_str())) } else { exactly };
    }
    blocks
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
