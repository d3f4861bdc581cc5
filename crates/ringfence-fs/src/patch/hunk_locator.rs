//! Hunk location: where the hunks of one file belong in its text.
//!
//! A position matches when it has exactly the old lines of the hunk, ends included, but for a newline at the end of the
//! file. Where there is none, one that has them by a relaxation of `edit` matches. A hunk that was applied already is
//! refused. No message has contents in it.
//!
//! Hunks are placed one after the other, in the order of their line numbers where these are believed, and else in the order
//! of the patch. Lines that a hunk has are not looked at again, so a later one may have its only place above. The first hunk
//! that cannot be placed is the error: `AmbiguousEdit` where more than one position qualifies, or the hunk would match
//! again once it is applied; `EditNotFound` where none does, or its change is there already. `reference.rs` has the same
//! rules as a look at every line.

mod errors;

use std::ops::Range;

use memchr::memmem::{self, Finder};
use ringfence_kernel::{ErrorKind, ToolError};

use crate::edit::{LineMatch, LineSearchError, RelaxedHunk, TextRelaxation, find_lines};
use crate::patch::anchors::{AnchorScope, TextBlocks};
use crate::patch::apply::LineEndings;
use crate::patch::match_rank::{MOST_LINES, MatchRank, PositionVerdict, RankedMatches};
use crate::patch::{PatchFormat, PatchHunk};

/// Most bytes of a file that are searched for hunks that are not at their stated lines, so that a small patch of a
/// large file ends.
pub(super) const MOST_SEARCHED: usize = 512 << 20;

/// The relaxations of hunks, the first one first.
const RELAXATIONS: [TextRelaxation; 4] = [
    TextRelaxation::TrailingBlanks,
    TextRelaxation::Indentation,
    TextRelaxation::IndentationAndTrailingBlanks,
    TextRelaxation::Typography,
];

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
    /// The old lines of the hunks before, sorted: none overlaps another.
    placed_lines: Vec<Range<usize>>,
    /// Number of lines of the text.
    line_count: usize,
    /// The blocks of the text, once a hunk has anchors.
    blocks: Option<TextBlocks<'t>>,
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
            placed_lines: Vec::new(),
            line_count: text.split_inclusive('\n').count(),
            blocks: None,
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
        let new = if fit.relaxation == Some(TextRelaxation::ContextMark) { fit.new_text(hunk) } else { &hunk.new.text };
        if moved.is_some_and(|at| new != hunk.old.text && self.has_new_lines(at, new)) || self.is_applied(&fit, hunk) {
            return Err(self.already_applied_error(number, hunk));
        }
        if self.is_repeatable(&fit, hunk) {
            let message = format!("hunk {number} would still match `{}` after it is applied", self.shown);
            let error = ToolError::new(ErrorKind::AmbiguousEdit, message);
            return Err(error.hint("add context lines above and below its change").detail("hunk", number));
        }
        Ok(fit)
    }

    /// The only position in the whole file that has the old lines: exactly, or else with the marks of context as text, or
    /// else by the first relaxation by which any has. In a V4A patch it is not above the line that the hunk's anchors name, and those in the block of that line
    /// go before others.
    fn unique_match(
        &mut self,
        number: usize,
        hunk: &PatchHunk,
        stated: Option<LineOffset>,
    ) -> Result<HunkMatch, ToolError> {
        let scope = self.anchor_scope(number, hunk)?;
        let found = self.search(number, hunk, scope.as_ref())?;
        let mut is_above = found.is_above;
        if !found.matches.is_empty() && self.is_as_said(found.best) {
            return self.only_exact_match(number, hunk, found).and_then(|only| match stated {
                // Two words of the hunk name two positions: its line number one, and its lines as they are another.
                Some(at) if at != only.start && self.is_relaxed_at(at, hunk) => {
                    Err(self.ambiguous_error(number, hunk, &[at.lines, only.start.lines]))
                }
                _ => Ok(only),
            });
        }
        let elsewhere = Some(found).filter(|found| !found.matches.is_empty());
        if elsewhere.is_none()
            && let Some(unmarked) = hunk.with_marks_as_text()
        {
            let found = self.search(number, &unmarked, scope.as_ref())?;
            if !found.matches.is_empty() {
                self.check_not_relaxed_elsewhere(number, hunk, &found, scope.as_ref())?;
                return self.only_unmarked_match(number, hunk, &unmarked, found, stated);
            }
        }
        let mut relaxed_elsewhere = None;
        for level in RELAXATIONS {
            let found = self.search_relaxed(number, hunk, level, scope.as_ref())?;
            is_above |= found.is_above;
            if found.matches.is_empty() {
                continue;
            }
            if self.is_as_said(found.best) {
                return self.only_relaxed_match(number, hunk, level, found);
            }
            relaxed_elsewhere.get_or_insert((level, found));
        }
        match (elsewhere, relaxed_elsewhere, scope) {
            (Some(found), ..) => self.only_exact_match(number, hunk, found),
            (None, Some((level, found)), _) => self.only_relaxed_match(number, hunk, level, found),
            (None, None, Some(scope)) if is_above => Err(self.above_anchor_error(number, scope.first + 1)),
            (None, None, _) => Err(self.not_found_error(number, hunk, stated)),
        }
    }

    /// A relaxation by which other positions have the old lines could be meant as well.
    fn check_not_relaxed_elsewhere(
        &mut self,
        number: usize,
        hunk: &PatchHunk,
        unmarked: &RankedMatches<HunkMatch>,
        scope: Option<&AnchorScope>,
    ) -> Result<(), ToolError> {
        let mut starts: Vec<usize> = unmarked.matches.iter().map(|fit| fit.start.lines).collect();
        for level in RELAXATIONS {
            let relaxed = self.search_relaxed(number, hunk, level, scope)?;
            let others = relaxed.matches.iter().map(|place| place.first).filter(|first| !starts.contains(first));
            let others: Vec<usize> = others.collect();
            if !others.is_empty() {
                starts.extend(others);
                starts.sort_unstable();
                return Err(self.ambiguous_error(number, hunk, &starts));
            }
        }
        Ok(())
    }

    /// The match of a hunk whose context has no marks: at its stated line, or else the only one.
    fn only_unmarked_match(
        &self,
        number: usize,
        hunk: &PatchHunk,
        unmarked: &PatchHunk,
        found: RankedMatches<HunkMatch>,
        stated: Option<LineOffset>,
    ) -> Result<HunkMatch, ToolError> {
        let fit = match stated.filter(|at| self.matches_at(*at, unmarked)) {
            Some(at) => self.exact_match(at, unmarked),
            None => self.only_exact_match(number, unmarked, found)?,
        };
        // Removed lines that are there as they are tell that lines are not shifted.
        if hunk.removed == 0 && !is_added_unshifted(hunk, unmarked) {
            return Err(self.context_mark_error(number));
        }
        let new = Some(fit.new_text(unmarked).to_owned());
        Ok(HunkMatch { new, relaxation: Some(TextRelaxation::ContextMark), ..fit })
    }

    /// Whether a looser match cannot be meant. V4A has nothing but its words to say where a hunk is.
    fn is_as_said(&self, best: MatchRank) -> bool {
        self.format == PatchFormat::Unified || (best.at_end && best.in_block)
    }

    /// Whether a position has the old lines with the marks of context as text, or by any relaxation, unless they are said
    /// to be the end of the file.
    fn is_relaxed_at(&self, at: LineOffset, hunk: &PatchHunk) -> bool {
        if hunk.reaches_end() {
            return false;
        }
        if hunk.with_marks_as_text().is_some_and(|unmarked| self.matches_at(at, &unmarked)) {
            return true;
        }
        let there: Vec<&str> = self.text[at.at..].split_inclusive('\n').take(hunk.old.lines).collect();
        let mut matches = false;
        for level in RELAXATIONS {
            // A search of as many lines as are wanted always ends.
            let _ = find_lines(&there, &hunk.old.text, level, |_| {
                matches = true;
                true
            });
        }
        matches
    }

    fn only_exact_match(
        &self,
        number: usize,
        hunk: &PatchHunk,
        found: RankedMatches<HunkMatch>,
    ) -> Result<HunkMatch, ToolError> {
        let differs_in_ends = found.matches.len() == 1 && self.matches_without_ends(hunk) > 1;
        let starts: Vec<usize> = found.matches.iter().map(|fit| fit.start.lines).collect();
        match found.only_for(hunk) {
            Some(only) if !differs_in_ends => Ok(only),
            _ => Err(self.ambiguous_error(number, hunk, &starts)),
        }
    }

    /// The replacement is adapted only where one position is left: one that it cannot be adapted to is a match too.
    fn only_relaxed_match(
        &self,
        number: usize,
        hunk: &PatchHunk,
        level: TextRelaxation,
        found: RankedMatches<LineMatch>,
    ) -> Result<HunkMatch, ToolError> {
        let starts: Vec<usize> = found.matches.iter().map(|place| place.first).collect();
        let Some(LineMatch { first, shift }) = found.only_for(hunk) else {
            return Err(self.ambiguous_error(number, hunk, &starts));
        };
        if hunk.removed == 0 && shift.is_one_space() {
            return Err(self.context_mark_error(number));
        }
        let mut lines = self.text.split_inclusive('\n');
        let eol = if lines.clone().next().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
        let at: usize = lines.by_ref().take(first).map(str::len).sum();
        let region: Vec<&str> = lines.take(hunk.old.lines).collect();
        let end = at + region.iter().map(|line| line.len()).sum::<usize>();
        let change = RelaxedHunk { old: &hunk.old.text, new: &hunk.new.text };
        let new =
            change.adapted(&region, &shift, level, eol).ok_or_else(|| self.not_found_error(number, hunk, None))?;
        // The file keeps its end, unless its last line is an empty one now, which cannot be without its newline, or one of
        // V4A, where each line has one.
        let is_open = region.last().is_some_and(|line| !line.ends_with('\n'));
        let can_keep_end = !matches!(without_end(&new).as_bytes(), [] | [.., b'\n']);
        let keeps_end = is_open && can_keep_end && self.format == PatchFormat::Unified;
        let new = if keeps_end { without_end(&new).to_owned() } else { new };
        let start = LineOffset { lines: first, at };
        Ok(HunkMatch { start, end, new: Some(new), relaxation: Some(level) })
    }

    /// What the anchors of a hunk name. Those of a unified diff only tell one position of several.
    fn anchor_scope(&mut self, number: usize, hunk: &PatchHunk) -> Result<Option<AnchorScope>, ToolError> {
        if hunk.anchors.is_empty() {
            return Ok(None);
        }
        self.take_budget(number)?;
        let text = self.text;
        Ok(self.blocks.get_or_insert_with(|| TextBlocks::new(text)).scope(&hunk.anchors))
    }

    /// How well a position agrees with what the hunk says of it; nothing where a hunk before has it.
    fn judge(&self, first: usize, hunk: &PatchHunk, scope: Option<&AnchorScope>) -> PositionVerdict {
        let lines = first..first + hunk.old.lines;
        let is_v4a = self.format == PatchFormat::V4a;
        if !self.is_free(&lines) {
            return PositionVerdict::Taken;
        }
        if is_v4a && scope.is_some_and(|scope| !scope.is_above_or_in(&lines)) {
            return PositionVerdict::AboveAnchor;
        }
        PositionVerdict::Free(MatchRank {
            at_end: !hunk.at_end || lines.end == self.line_count,
            in_block: scope.is_none_or(|scope| scope.contains(&lines)),
            // The hunks of this format are in order.
            in_order: !is_v4a || first >= self.previous_end.lines,
        })
    }

    /// The best positions that have the old lines by a relaxation, less those of the hunks before.
    fn search_relaxed(
        &mut self,
        number: usize,
        hunk: &PatchHunk,
        level: TextRelaxation,
        scope: Option<&AnchorScope>,
    ) -> Result<RankedMatches<LineMatch>, ToolError> {
        let mut found = RankedMatches::default();
        if !self.may_relax(hunk, level) {
            return Ok(found);
        }
        self.take_budget(number)?;
        let lines: Vec<&str> = self.text.split_inclusive('\n').collect();
        let visited = find_lines(&lines, &hunk.old.text, level, |place| {
            found.add(self.judge(place.first, hunk, scope), place);
            found.is_settled()
        });
        visited.map_err(|LineSearchError| {
            let message = format!("hunk {number} is not in `{}` exactly, which is too large for more", self.shown);
            ToolError::new(ErrorKind::EditNotFound, message)
                .hint("regenerate the diff from the current file")
                .detail("hunk", number)
        })?;
        Ok(found)
    }

    /// Whether the old lines of a hunk could be there by a relaxation. One that is about the end of the file says exactly
    /// what is there, and where both kinds of line endings are, each is part of its line. A return at the end of the file is
    /// half of one: a newline behind it would make it another end than the others are.
    fn may_relax(&self, hunk: &PatchHunk, level: TextRelaxation) -> bool {
        const MOST_LOOKED_FOR: usize = 16;
        let ends = [self.text, &hunk.old.text, &hunk.new.text].map(LineEndings::of);
        let [file, old, new] = ends;
        if hunk.reaches_end()
            || self.text.ends_with('\r')
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
        let lines = self.line_count;
        let is_open = !self.text.is_empty() && !self.text.ends_with('\n');
        let eol = if LineEndings::of(self.text) == LineEndings::Crlf { "\r\n" } else { "\n" };
        let new = is_open.then(|| [eol, &hunk.new.text].concat());
        HunkMatch { start: LineOffset { lines, at: self.text.len() }, end: self.text.len(), new, relaxation: None }
    }

    /// Whether no hunk has one of the lines yet.
    fn is_free(&self, lines: &Range<usize>) -> bool {
        let next = self.placed_lines.partition_point(|placed| placed.end <= lines.start);
        self.placed_lines.get(next).is_none_or(|placed| lines.end <= placed.start)
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
        let lines = fit.start.lines..end.lines;
        let next = self.placed_lines.partition_point(|placed| (placed.start, placed.end) <= (lines.start, lines.end));
        self.placed_lines.insert(next, lines);
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

    /// Whether new lines are at a position.
    fn has_new_lines(&self, at: LineOffset, new: &str) -> bool {
        !new.is_empty() && self.has_lines(at.at, new)
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
        let (old, new) = self.texts_at(fit, hunk);
        if hunk.new.lines <= hunk.old.lines || (hunk.context_above && hunk.context_below) {
            return false;
        }
        let line_start = |above: usize| {
            let start = fit.start.at.checked_sub(above)?;
            (start == 0 || self.text.as_bytes()[start - 1] == b'\n').then_some(start)
        };
        let (around, exactly) = (
            |above| line_start(above).is_some_and(|start| self.has_lines(start, new)),
            |above| line_start(above).is_some_and(|start| self.text[start..].starts_with(new)),
        );
        if old.is_empty() {
            return exactly(0);
        }
        if hunk.context_above {
            return new.starts_with(old) && around(0);
        }
        if hunk.context_below {
            return new.ends_with(old) && around(new.len() - old.len());
        }
        let mut places = memmem::find_iter(new.as_bytes(), old.as_bytes())
            .filter(|at| *at == 0 || new.as_bytes()[at - 1] == b'\n')
            .take(MOST_LINES + 1)
            .enumerate();
        places.any(|(count, above)| count == MOST_LINES || exactly(above))
    }

    /// The old and the new lines of a hunk as they are at a position: by a relaxation, both are like those of the file.
    fn texts_at<'h>(&'h self, fit: &'h HunkMatch, hunk: &'h PatchHunk) -> (&'h str, &'h str) {
        match fit.relaxation {
            None => (&hunk.old.text, &hunk.new.text),
            Some(_) => (&self.text[fit.start.at..fit.end], fit.new_text(hunk)),
        }
    }

    /// Whether fewer lines of the same kind would be left, so that the hunk would match there again: then it is for the end
    /// of the file if it has no context below, and for the beginning if it has none above.
    fn is_repeatable(&self, fit: &HunkMatch, hunk: &PatchHunk) -> bool {
        let (old, new) = (self.texts_at(fit, hunk).0, fit.new_text(hunk));
        let at_edge = if hunk.context_above { fit.end == self.text.len() } else { fit.start.at == 0 };
        if hunk.new.lines >= hunk.old.lines || hunk.context_above == hunk.context_below || at_edge {
            return false;
        }
        old.strip_prefix(new).is_some_and(|more| self.text[fit.end..].starts_with(more))
    }

    /// The best positions in the file that have the old lines exactly, less those of the hunks before.
    fn search(
        &mut self,
        number: usize,
        hunk: &PatchHunk,
        scope: Option<&AnchorScope>,
    ) -> Result<RankedMatches<HunkMatch>, ToolError> {
        self.take_budget(number)?;
        let text = self.text.as_bytes();
        let after = |mark: LineOffset, at: usize| {
            let lines = mark.lines + memchr::memchr_iter(b'\n', &text[mark.at..at]).count();
            LineOffset { lines, at }
        };
        let top = LineOffset::default();
        let mut found = RankedMatches::default();
        let add = |found: &mut RankedMatches<HunkMatch>, fit: HunkMatch| {
            found.add(self.judge(fit.start.lines, hunk, scope), fit);
        };
        if self.matches_at(top, hunk) {
            add(&mut found, self.exact_match(top, hunk));
        }
        // With the newline before it, the old text is found at starts of lines only: every find is a match.
        let needle = ["\n", &hunk.old.text].concat();
        if hunk.reaches_end() {
            if text.ends_with(needle.as_bytes()) {
                add(&mut found, self.exact_match(after(top, text.len() - hunk.old.text.len()), hunk));
            }
        } else {
            let finder = Finder::new(&needle);
            let mut last = top;
            let mut compared = 0;
            while !found.is_settled()
                && let Some(skipped) = finder.find(&text[last.at..])
            {
                last = after(last, last.at + skipped + 1);
                add(&mut found, self.exact_match(last, hunk));
                // Matches of a long text that overlap are each compared whole.
                compared += needle.len();
                if compared > MOST_SEARCHED {
                    found.is_cut = true;
                    break;
                }
            }
        }
        if let Some((at, new)) = self.match_at_end(hunk) {
            add(&mut found, HunkMatch { start: after(top, at), end: text.len(), new, relaxation: None });
        }
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
    /// has. The file keeps its end, unless the hunk is about that: in V4A each line has a newline.
    fn match_at_end(&self, hunk: &PatchHunk) -> Option<(usize, Option<String>)> {
        let (old, new) = (&hunk.old, &hunk.new);
        let ends = self.text.ends_with('\n');
        let (file, wanted) = (without_end(self.text), without_end(&old.text));
        if ends != old.lacks_newline() || wanted.is_empty() {
            return None;
        }
        let at = file.strip_suffix(wanted).filter(|above| above.is_empty() || above.ends_with('\n'))?.len();
        let names_end = self.format == PatchFormat::V4a || old.lacks_newline() != new.lacks_newline();
        if new.text.is_empty() || names_end {
            return Some((at, None));
        }
        let new = [without_end(&new.text), &self.text[file.len()..]].concat();
        // A last line that is empty cannot be without its newline.
        let can_keep_end = ends || !matches!(new.as_bytes(), [] | [.., b'\n']);
        Some((at, can_keep_end.then_some(new)))
    }
}

/// Whether the lines that a hunk adds suit its context as it is without marks, and would not if all were shifted by a
/// space: either one of them is indented as the context is, or all indentation is even.
fn is_added_unshifted(hunk: &PatchHunk, unmarked: &PatchHunk) -> bool {
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let is_filled = |line: &&str| !line.trim().is_empty();
    let context: Vec<usize> = unmarked.old.text.lines().filter(is_filled).map(indent).collect();
    let is_added = |number: &usize| hunk.marked_context.binary_search_by_key(number, |pair| pair.1).is_err();
    let new = unmarked.new.text.lines().enumerate().filter(|(number, _)| is_added(number));
    let added: Vec<usize> = new.map(|(_, line)| line).filter(is_filled).map(indent).collect();
    let suits = |shift: usize| added.iter().any(|indent| context.contains(&(indent + shift)));
    let is_even = context.iter().chain(&added).all(|indent| indent % 2 == 0);
    added.is_empty() || is_even || (suits(0) && !suits(1))
}

/// A text without the newline at its end.
fn without_end(text: &str) -> &str {
    text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text))
}
