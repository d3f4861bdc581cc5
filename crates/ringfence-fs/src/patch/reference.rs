//! Reference implementation of hunk location, for tests: each hunk is compared with every line of the text.
//!
//! It knows the rules of `hunk_locator.rs` and none of its searches. What it refuses has the same kind of error, and what
//! it applies is the same text.

use ringfence_kernel::ErrorKind;

use crate::edit::{IndentShift, RelaxedHunk, TextRelaxation, line_body};
use crate::patch::anchors::TextBlocks;
use crate::patch::apply::PatchedText;
use crate::patch::tests::{lines_of, script, without_final_newline};
use crate::patch::{HunkPlacement, PatchHunk};

/// The relaxations that texts of these tests can need.
const LEVELS: [TextRelaxation; 3] =
    [TextRelaxation::TrailingBlanks, TextRelaxation::Indentation, TextRelaxation::IndentationAndTrailingBlanks];

/// Position of a hunk, and its replacement there.
#[derive(Clone, Debug)]
struct ExpectedPlacement<'h> {
    number: usize,
    hunk: &'h PatchHunk,
    /// Number of lines before it.
    start: usize,
    new: String,
    relaxation: Option<TextRelaxation>,
}

impl ExpectedPlacement<'_> {
    fn end(&self) -> usize {
        self.start + self.hunk.old.lines
    }
}

/// The text and the reports that hunks of a unified diff make, or the kind of the first hunk's error. The hunks have the
/// line endings of the text.
pub(super) fn reference_apply(text: &str, hunks: &[PatchHunk]) -> Result<PatchedText, ErrorKind> {
    let trusted = hunks.iter().all(|hunk| hunk.stated.is_some());
    let mut numbered: Vec<(usize, &PatchHunk)> = (1..).zip(hunks).collect();
    if trusted {
        numbered.sort_by_key(|(_, hunk)| hunk.stated);
    }
    let mut reference = ReferenceLocator { text, lines: lines_of(text), trusted, drift: 0, placed: Vec::new() };
    for (number, hunk) in numbered {
        let placed = reference.place(number, hunk)?;
        if let Some(before) = hunk.lines_before().filter(|_| trusted) {
            reference.drift = placed.start as i64 - before as i64;
        }
        reference.placed.push(placed);
    }
    Ok(reference.result())
}

struct ReferenceLocator<'t> {
    text: &'t str,
    lines: Vec<&'t str>,
    /// Every header of the patch has numbers that can be right.
    trusted: bool,
    /// How much further down than stated the hunk before was.
    drift: i64,
    placed: Vec<ExpectedPlacement<'t>>,
}

impl<'t> ReferenceLocator<'t> {
    fn place(&self, number: usize, hunk: &'t PatchHunk) -> Result<ExpectedPlacement<'t>, ErrorKind> {
        let done = self.placed.iter().map(ExpectedPlacement::end).max().unwrap_or(0);
        let stated = hunk.lines_before().filter(|_| self.trusted).map(|before| before as i64 + self.drift);
        let stated = stated.and_then(|at| usize::try_from(at).ok()).filter(|at| *at >= done && self.is_line_start(*at));
        let exact = |start| ExpectedPlacement { number, hunk, start, new: hunk.new.text.clone(), relaxation: None };
        let placed = if hunk.old.lines == 0 {
            let only = if self.text.is_empty() && stated.is_none() { Some(0) } else { stated };
            let only = only.filter(|at| self.drift == 0 && self.is_exact(*at, hunk));
            exact(only.ok_or(ErrorKind::EditNotFound)?)
        } else if let Some(at) = stated.filter(|at| self.is_exact(*at, hunk)) {
            exact(at)
        } else {
            self.only_place(number, hunk, stated)?
        };
        let is_unmarked = placed.relaxation == Some(TextRelaxation::ContextMark);
        let new = if is_unmarked { &placed.new } else { &hunk.new.text };
        let changes = *new != hunk.old.text && hunk.new.lines > 0;
        let moved = stated.filter(|at| *at != placed.start && changes);
        if moved.is_some_and(|at| has_lines(&self.lines[at..], new)) {
            return Err(ErrorKind::EditNotFound);
        }
        self.check_once(&placed)?;
        Ok(placed)
    }

    /// Whether a line can begin after as many lines.
    fn is_line_start(&self, at: usize) -> bool {
        at < self.lines.len() || (at == self.lines.len() && (self.text.is_empty() || self.text.ends_with('\n')))
    }

    fn is_exact(&self, at: usize, hunk: &PatchHunk) -> bool {
        let old = lines_of(&hunk.old.text);
        self.lines[at..].starts_with(&old) && (!hunk.reaches_end() || at + old.len() == self.lines.len())
    }

    fn is_free(&self, at: usize, hunk: &PatchHunk) -> bool {
        !self.placed.iter().any(|placed| at < placed.end() && placed.start < at + hunk.old.lines)
    }

    /// The only place: exactly, or else by the first relaxation by which there is any.
    fn only_place(
        &self,
        number: usize,
        hunk: &'t PatchHunk,
        stated: Option<usize>,
    ) -> Result<ExpectedPlacement<'t>, ErrorKind> {
        let starts = || (0..=self.lines.len()).filter(|at| self.is_line_start(*at) && self.is_free(*at, hunk));
        let placed = |start, new, relaxation| ExpectedPlacement { number, hunk, start, new, relaxation };
        let mut exact: Vec<(usize, String)> =
            starts().filter(|at| self.is_exact(*at, hunk)).map(|at| (at, hunk.new.text.clone())).collect();
        exact.extend(self.loosely_at_end(hunk).filter(|(at, _)| self.is_free(*at, hunk)));
        if !exact.is_empty() {
            let (start, new) = self.only(hunk, exact)?;
            let two_words = stated.is_some_and(|at| at != start && self.is_like(at, hunk));
            if two_words || self.differs_in_endings_only(hunk) {
                return Err(ErrorKind::AmbiguousEdit);
            }
            return Ok(placed(start, new, None));
        }
        if let Some(unmarked) = hunk.with_marks_as_text() {
            let mut found: Vec<(usize, String)> =
                starts().filter(|at| self.is_exact(*at, &unmarked)).map(|at| (at, unmarked.new.text.clone())).collect();
            found.extend(self.loosely_at_end(&unmarked).filter(|(at, _)| self.is_free(*at, hunk)));
            if !found.is_empty() {
                let is_other = |at: &usize| !found.iter().any(|(start, _)| start == at);
                if self.may_relax(hunk) && starts().filter(is_other).any(|at| self.is_like(at, hunk)) {
                    return Err(ErrorKind::AmbiguousEdit);
                }
                let at_stated = stated.filter(|at| self.is_exact(*at, &unmarked));
                let (start, new) = match at_stated {
                    Some(at) => (at, unmarked.new.text.clone()),
                    None if self.differs_in_endings_only(&unmarked) => return Err(ErrorKind::AmbiguousEdit),
                    None => self.only(&unmarked, found)?,
                };
                let suits = hunk.removed > 0 || suits_context(hunk, &unmarked);
                return suits
                    .then(|| placed(start, new, Some(TextRelaxation::ContextMark)))
                    .ok_or(ErrorKind::EditNotFound);
            }
        }
        if !self.may_relax(hunk) {
            return Err(ErrorKind::EditNotFound);
        }
        for level in LEVELS {
            let found: Vec<_> =
                starts().filter_map(|at| Some((at, shift_at(&self.lines[at..], hunk, level)?))).collect();
            if !found.is_empty() {
                let (start, shift) = self.only(hunk, found)?;
                let new = self.adapted(start, hunk, &shift, level).ok_or(ErrorKind::EditNotFound)?;
                return Ok(placed(start, new, Some(level)));
            }
        }
        Err(ErrorKind::EditNotFound)
    }

    /// The one of these that a hunk means: of those in the block of its anchors, if there are any. One that the patch has
    /// twice could mean the others.
    fn only<F: Clone>(&self, hunk: &PatchHunk, found: Vec<(usize, F)>) -> Result<(usize, F), ErrorKind> {
        let scope = TextBlocks::new(self.text).scope(&hunk.anchors);
        let is_inside = |at: usize| scope.as_ref().is_none_or(|scope| scope.contains(&(at..at + hunk.old.lines)));
        let inside: Vec<_> = found.iter().filter(|(at, _)| is_inside(*at)).cloned().collect();
        let meant = if inside.is_empty() { &found } else { &inside };
        match &meant[..] {
            [only] if meant.len() == found.len() || !hunk.is_repeated => Ok(only.clone()),
            _ => Err(ErrorKind::AmbiguousEdit),
        }
    }

    /// Whether the old lines are at a line by a relaxation.
    fn is_like(&self, at: usize, hunk: &PatchHunk) -> bool {
        let is_unmarked = hunk.with_marks_as_text().is_some_and(|unmarked| self.is_exact(at, &unmarked));
        let is_relaxed = |level: &TextRelaxation| shift_at(&self.lines[at..], hunk, *level).is_some();
        !hunk.reaches_end() && (is_unmarked || LEVELS.iter().any(is_relaxed))
    }

    /// Whether there are several places where the text has both line endings and they are not compared.
    fn differs_in_endings_only(&self, hunk: &PatchHunk) -> bool {
        let same_end = |text: &str| text.replace("\r\n", "\n");
        let (all, wanted) = (same_end(self.text), same_end(&hunk.old.text));
        let starts = std::iter::once(0).chain(all.match_indices('\n').map(|(at, _)| at + 1));
        ends_of(self.text).len() == 2 && starts.filter(|at| all[*at..].starts_with(&wanted)).count() > 1
    }

    /// Whether all lines end alike and none in half of an end, and the hunk is not about the end of the file.
    fn may_relax(&self, hunk: &PatchHunk) -> bool {
        let [file, old, new] = [self.text, &hunk.old.text, &hunk.new.text].map(ends_of);
        let is_whole = !hunk.reaches_end() && !self.text.ends_with('\r');
        is_whole && file.len() <= 1 && file == old && (new.is_empty() || new == old)
    }

    /// The last lines, where the hunk and the text only differ in the newline at the end.
    fn loosely_at_end(&self, hunk: &PatchHunk) -> Option<(usize, String)> {
        let (text, old) = (self.text, lines_of(&hunk.old.text));
        let at = self.lines.len().checked_sub(old.len())?;
        let differ = text.ends_with('\n') == hunk.old.lacks_newline();
        let alike = !without_final_newline(&hunk.old.text).is_empty()
            && without_final_newline(&self.lines[at..].concat()) == without_final_newline(&hunk.old.text);
        if !differ || !alike {
            return None;
        }
        if hunk.new.lines == 0 || hunk.old.lacks_newline() != hunk.new.lacks_newline() {
            return Some((at, hunk.new.text.clone()));
        }
        let new = without_final_newline(&hunk.new.text).to_owned() + &text[without_final_newline(text).len()..];
        let can_keep_end = text.ends_with('\n') || !(new.is_empty() || new.ends_with('\n'));
        Some((at, if can_keep_end { new } else { hunk.new.text.clone() }))
    }

    /// The new lines for a relaxed match. `check_adapted` says what they must be.
    fn adapted(&self, at: usize, hunk: &PatchHunk, shift: &IndentShift, level: TextRelaxation) -> Option<String> {
        if hunk.removed == 0 && *shift == IndentShift::Add(" ".to_owned()) {
            return None;
        }
        let eol = ends_of(self.text).first().copied().unwrap_or("\n");
        let file = &self.lines[at..at + hunk.old.lines];
        let change = RelaxedHunk { old: &hunk.old.text, new: &hunk.new.text };
        let new = change.adapted(file, shift, level, eol)?;
        check_adapted(file, hunk, shift, &new, eol);
        // The file keeps its end, unless its last line would be an empty one, which cannot be without a newline.
        let cut = without_final_newline(&new);
        let is_open = file.last().is_some_and(|line| !line.ends_with('\n'));
        Some(if is_open && !cut.is_empty() && !cut.ends_with('\n') { cut.to_owned() } else { new })
    }

    /// A hunk that was applied already is refused.
    fn check_once(&self, placed: &ExpectedPlacement<'_>) -> Result<(), ErrorKind> {
        let (lines, at, hunk) = (&self.lines, placed.start, placed.hunk);
        let region = lines[at..].iter().take(hunk.old.lines).copied().collect::<String>();
        let (old_text, new_text) = match placed.relaxation {
            None => (&hunk.old.text, &hunk.new.text),
            Some(_) => (&region, &placed.new),
        };
        let (old, new) = (lines_of(old_text), lines_of(new_text));
        if hunk.context_above && hunk.context_below {
            return Ok(());
        }
        if old.is_empty() {
            let there = lines[at..].starts_with(&new) && !new.is_empty();
            return if there { Err(ErrorKind::EditNotFound) } else { Ok(()) };
        }
        if new.len() > old.len() {
            let same = |(new, old): (&&str, &&str)| new == old || (!old.ends_with('\n') && new.starts_with(*old));
            let aligned = (0..=new.len() - old.len()).filter(|above| new[*above..].iter().zip(&old).all(same));
            let aligned = aligned.filter(|above| match (hunk.context_above, hunk.context_below) {
                (true, _) => *above == 0,
                (_, true) => above + old.len() == new.len(),
                _ => true,
            });
            let mut starts = aligned.filter_map(|above| at.checked_sub(above));
            let in_context = hunk.context_above || hunk.context_below;
            let exactly = |start: usize| lines[start..].concat().starts_with(new_text);
            if starts.any(|start| if in_context { has_lines(&lines[start..], new_text) } else { exactly(start) }) {
                return Err(ErrorKind::EditNotFound);
            }
            return Ok(());
        }
        let fewer = new.len() < old.len();
        let again = [new, lines[at + old.len()..].to_vec()].concat();
        let at_edge = if hunk.context_above { at + old.len() == lines.len() } else { at == 0 };
        let one_sided = hunk.context_above != hunk.context_below;
        let repeats = fewer && again.concat().starts_with(old_text);
        if one_sided && repeats && !at_edge { Err(ErrorKind::AmbiguousEdit) } else { Ok(()) }
    }

    /// The text with nothing but the lines of its hunks changed, and the reports about them.
    fn result(mut self) -> PatchedText {
        self.placed.sort_by_key(|placed| (placed.start, placed.end()));
        let mut applied = PatchedText { text: String::new(), hunks: Vec::new() };
        let mut done = 0;
        for placed in &self.placed {
            applied.text.push_str(&self.lines[done..placed.start].concat());
            let hunk = placed.hunk;
            let before = hunk.lines_before().filter(|_| self.trusted);
            applied.hunks.push(HunkPlacement {
                hunk: placed.number,
                line: lines_of(&applied.text).len() + 1,
                offset: before.map(|before| placed.start as i64 - before as i64),
                added: hunk.added,
                removed: hunk.removed,
                relaxation: placed.relaxation,
            });
            applied.text.push_str(&placed.new);
            done = placed.end();
        }
        applied.text.push_str(&self.lines[done..].concat());
        applied.hunks.sort_by_key(|placed| placed.hunk);
        applied
    }
}

/// The result that a diff of `old` means, whose hunks these are. Lines that stay have the ends that the file has, and those
/// that are added have the ends that the patch has, as `added` says: but where all lines of the file end in CRLF and all
/// of the hunks in LF, or the other way round, they end as the file's do. Lines that are only added to a file with LF end
/// as the patch says, since a patch has no CRLF by itself.
pub(super) fn expected_text(old: &str, new: &str, hunks: &[PatchHunk], added: impl Fn(&str) -> String) -> String {
    let ends = |side: fn(&PatchHunk) -> &str| ends_of(&hunks.iter().map(side).collect::<String>());
    let (old_ends, new_ends) = (ends(|hunk| &hunk.old.text), ends(|hunk| &hunk.new.text));
    let end = match (&ends_of(old)[..], &old_ends[..], &new_ends[..]) {
        (["\r\n"], [] | ["\n"], ["\n"]) => Some("\r\n"),
        (["\n"], ["\r\n"], ["\r\n"]) => Some("\n"),
        _ => None,
    };
    let line = |(sign, line): &(char, &str)| match (sign, end) {
        ('+', None) => added(line),
        ('+', Some(end)) => added(line).replace("\r\n", "\n").replace('\n', end),
        (' ', _) => (*line).to_owned(),
        _ => String::new(),
    };
    script(&lines_of(old), &lines_of(new)).iter().map(line).collect()
}

/// The kinds of line endings that a text has.
fn ends_of(text: &str) -> Vec<&'static str> {
    let has_lf = text.replace("\r\n", "").contains('\n');
    [("\n", has_lf), ("\r\n", text.contains("\r\n"))].into_iter().filter(|end| end.1).map(|end| end.0).collect()
}

/// Whether these lines are at the start of others, whatever the end of the file is.
fn has_lines(there: &[&str], new: &str) -> bool {
    let rest = there.concat();
    let is_open = !new.is_empty() && !new.ends_with('\n');
    let one_ends = rest.ends_with('\n') == is_open;
    let at_end =
        !there.is_empty() && (rest == new || (one_ends && without_final_newline(&rest) == without_final_newline(new)));
    (!is_open && there.starts_with(&lines_of(new))) || at_end
}

/// Whether added lines go with context that has no marks: all indentation is even, or some line is indented as the context
/// is and none would be if it had a space more.
fn suits_context(hunk: &PatchHunk, unmarked: &PatchHunk) -> bool {
    let spaces = |line: &&str| line.chars().take_while(|c| *c == ' ').count();
    let mut added = lines_of(&hunk.new.text);
    // Each context line is among the new ones, in order.
    for (_, new) in hunk.marked_context.iter().rev() {
        added.remove(*new);
    }
    let indents =
        |lines: Vec<&str>| -> Vec<usize> { lines.iter().filter(|line| !line.trim().is_empty()).map(spaces).collect() };
    let (added, context) = (indents(added), indents(lines_of(&unmarked.old.text)));
    let even = added.iter().chain(&context).all(|count| count % 2 == 0);
    let same = added.iter().any(|count| context.contains(count));
    let shifted = added.iter().any(|count| context.contains(&(count + 1)));
    added.is_empty() || even || (same && !shifted)
}

/// The blanks by which lines are those of a hunk, if they are by a relaxation.
fn shift_at(there: &[&str], hunk: &PatchHunk, level: TextRelaxation) -> Option<IndentShift> {
    let old: Vec<&str> = hunk.old.text.lines().collect();
    let there: Vec<&str> = there.iter().take(old.len()).map(|line| line_body(line)).collect();
    if there.len() < old.len() || old.iter().all(|line| line.trim().is_empty()) {
        return None;
    }
    let trimmed = |line: &str| line.trim_end_matches([' ', '\t', '\r']).to_owned();
    let all = |same: &dyn Fn(&str, &str) -> bool| there.iter().zip(&old).all(|(there, line)| same(there, line));
    let with = |more: &str, line: &str, there: &str| match level {
        TextRelaxation::Indentation => there == [more, line].concat() || (there == line && line.trim().is_empty()),
        _ if trimmed(line).is_empty() || trimmed(there).is_empty() => trimmed(line) == trimmed(there),
        _ => trimmed(there) == [more, &trimmed(line)].concat(),
    };
    if level == TextRelaxation::TrailingBlanks {
        return all(&|there, line| trimmed(there) == trimmed(line)).then_some(IndentShift::None);
    }
    // Every text of blanks that any line begins with.
    let blanks = |lines: &[&str]| -> Vec<String> {
        let indent = |line: &str| line[..line.len() - line.trim_start_matches([' ', '\t']).len()].to_owned();
        lines
            .iter()
            .map(|line| indent(line))
            .flat_map(|all| (1..=all.len()).map(move |to| all[..to].to_owned()))
            .collect()
    };
    let add = blanks(&there).into_iter().find(|more| all(&|there, line| with(more, line, there)));
    let remove = || blanks(&old).into_iter().find(|less| all(&|there, line| with(less, there, line)));
    add.map(IndentShift::Add).or_else(|| remove().map(IndentShift::Remove))
}

/// Checks that as many lines as can stay are as the file has them, and that the others are the new ones, shifted as the
/// old ones were.
#[track_caller]
fn check_adapted(file: &[&str], hunk: &PatchHunk, shift: &IndentShift, adapted: &str, eol: &str) {
    let (old, new) = (lines_of(&hunk.old.text), lines_of(&hunk.new.text));
    let got = lines_of(adapted);
    assert_eq!(got.len(), new.len());
    let shifted = |line: &str| match shift {
        IndentShift::Add(more) if !line.trim().is_empty() => [more, line].concat(),
        IndentShift::Remove(less) if !line.trim().is_empty() => line.strip_prefix(less.as_str()).unwrap().to_owned(),
        _ => line.to_owned(),
    };
    let kept = |line: &str| if line.ends_with('\n') { line.to_owned() } else { [line, eol].concat() };
    // Most lines that stay, from a pair of an old and a new line on; nothing where a line is neither.
    let mut most = vec![vec![None; new.len() + 1]; old.len() + 1];
    for i in (0..=old.len()).rev() {
        most[i][new.len()] = Some(0);
        for j in (0..new.len()).rev() {
            let added = if got[j] == shifted(new[j]) { most[i][j + 1] } else { None };
            let gone = if i < old.len() { most[i + 1][j] } else { None };
            let stays = i < old.len() && old[i] == new[j] && got[j] == kept(file[i]);
            let stays = if stays { most[i + 1][j + 1].map(|count: usize| count + 1) } else { None };
            most[i][j] = added.max(gone).max(stays);
        }
    }
    let can_stay = script(&old, &new).iter().filter(|(sign, _)| *sign == ' ').count();
    assert_eq!(most[0][0], Some(can_stay), "{adapted:?} for {file:?}");
}
