//! Relaxed matching of one text of an edit.

use std::borrow::Cow;

use memchr::memmem;

use crate::edit::line_match::{IndentShift, LineSearchError, RelaxedHunk, find_lines};
use crate::edit::typography::to_ascii;
use crate::edit::{TextRelaxation, line_body};

/// Most places that an error names.
const MOST_PLACES: usize = 20;

/// The relaxations, the first one first.
const ORDER: [TextRelaxation; 6] = [
    TextRelaxation::LineEndings,
    TextRelaxation::TrailingBlanks,
    TextRelaxation::Indentation,
    TextRelaxation::IndentationAndTrailingBlanks,
    TextRelaxation::Typography,
    TextRelaxation::LineNumbers,
];

/// The only place that a text matches, and what replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextMatch {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The replacement, adapted as the text was.
    pub(crate) new: String,
    /// Every difference, in the order of the relaxations.
    pub(crate) relaxations: Vec<TextRelaxation>,
}

/// The reason for which a text has no match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextMatchError {
    NotFound,
    /// The first relaxation that matches anything matches several places, at these lines.
    Ambiguous {
        relaxation: TextRelaxation,
        lines: Vec<usize>,
    },
    /// There is one place, but the replacement cannot be adapted to it as the text was.
    Unadaptable,
    /// The file is too large for relaxed matching.
    TooLarge,
}

/// The place of a text that is not in the file exactly, by the first relaxation that matches any place.
pub(crate) fn find_relaxed(text: &str, old: &str, new: &str) -> Result<TextMatch, TextMatchError> {
    let file = MatchedFile::new(text);
    let hunk = RelaxedHunk { old, new };
    for relaxation in ORDER {
        match file.find(hunk, relaxation) {
            Err(TextMatchError::NotFound) => {}
            done => return done,
        }
    }
    Err(TextMatchError::NotFound)
}

/// The replacement with the only kind of line ending that the file has. A text with CRLF in it stays as it is.
pub(crate) fn replacement_with_endings<'n>(text: &str, new: &'n str) -> Cow<'n, str> {
    let file = MatchedFile::new(text);
    match file.eol {
        "\r\n" if !file.mixed && new.contains('\n') && !new.contains('\r') => new.replace('\n', "\r\n").into(),
        _ => new.into(),
    }
}

/// Where in a line a text may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchStart {
    Anywhere,
    LineStart,
}

struct MatchedFile<'t> {
    text: &'t str,
    lines: Vec<&'t str>,
    /// The end of new lines: that of the first line.
    eol: &'static str,
    /// The file has both kinds of line endings.
    mixed: bool,
}

impl<'t> MatchedFile<'t> {
    fn new(text: &'t str) -> Self {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let eol = if lines.first().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
        let mixed = lines.iter().any(|line| line.ends_with('\n') && line.ends_with("\r\n") != (eol == "\r\n"));
        Self { text, lines, eol, mixed }
    }

    fn find(&self, hunk: RelaxedHunk<'_>, relaxation: TextRelaxation) -> Result<TextMatch, TextMatchError> {
        match relaxation {
            TextRelaxation::LineEndings => {
                let found = self.places_with_other_endings(hunk, MatchStart::Anywhere);
                // Lines that end in both ways are a place too.
                let lines = if found.len() == 1 && self.mixed { self.lines_whatever_endings(hunk) } else { Vec::new() };
                match lines.len() {
                    2.. => Err(TextMatchError::Ambiguous { relaxation, lines }),
                    _ => self.only(found, vec![relaxation]),
                }
            }
            TextRelaxation::TrailingBlanks
            | TextRelaxation::Indentation
            | TextRelaxation::IndentationAndTrailingBlanks => self.by_lines(hunk, relaxation),
            TextRelaxation::Typography => self.by_typography(hunk),
            TextRelaxation::LineNumbers => self.without_line_numbers(hunk),
            // Only hunks of patches have marks.
            TextRelaxation::ContextMark => Err(TextMatchError::NotFound),
        }
    }

    /// The text with all line endings of one kind: CRLF and LF, without the one that it has.
    fn variants(&self, hunk: RelaxedHunk<'_>) -> Vec<(String, String)> {
        let lf = |text: &str| text.replace("\r\n", "\n");
        let crlf = |text: &str| lf(text).replace('\n', "\r\n");
        let both = [(lf(hunk.old), lf(hunk.new)), (crlf(hunk.old), crlf(hunk.new))];
        let mut variants: Vec<_> = both.into_iter().filter(|(old, _)| old != hunk.old).collect();
        variants.dedup();
        variants
    }

    fn places_with_other_endings(&self, hunk: RelaxedHunk<'_>, from: MatchStart) -> Vec<(usize, usize, String)> {
        let mut found = Vec::new();
        for (old, new) in self.variants(hunk) {
            let starts = starts_of(self.text, &old, from);
            found.extend(starts.into_iter().map(|start| (start, start + old.len(), new.clone())));
        }
        found
    }

    /// The lines of all places that have the text if line endings are not compared.
    fn lines_whatever_endings(&self, hunk: RelaxedHunk<'_>) -> Vec<usize> {
        let (text, wanted) = (self.text.replace("\r\n", "\n"), hunk.old.replace("\r\n", "\n"));
        let line_of = |at: usize| memchr::memchr_iter(b'\n', &text.as_bytes()[..at]).count() + 1;
        starts_of(&text, &wanted, MatchStart::Anywhere).into_iter().map(line_of).collect()
    }

    /// The one place that was found, with its replacement.
    fn only(
        &self,
        mut found: Vec<(usize, usize, String)>,
        relaxations: Vec<TextRelaxation>,
    ) -> Result<TextMatch, TextMatchError> {
        match (found.pop(), found.is_empty()) {
            (None, _) => Err(TextMatchError::NotFound),
            (Some((start, end, new)), true) => Ok(TextMatch { start, end, new, relaxations }),
            (Some(last), false) => {
                let starts = found.iter().map(|(start, ..)| *start).chain([last.0]);
                let mut lines: Vec<usize> = starts.map(|at| self.line_of(at)).collect();
                lines.sort_unstable();
                lines.dedup();
                let relaxation = relaxations.first().copied().unwrap_or(TextRelaxation::LineEndings);
                Err(TextMatchError::Ambiguous { relaxation, lines })
            }
        }
    }

    fn line_of(&self, at: usize) -> usize {
        memchr::memchr_iter(b'\n', &self.text.as_bytes()[..at]).count() + 1
    }

    fn by_lines(&self, hunk: RelaxedHunk<'_>, level: TextRelaxation) -> Result<TextMatch, TextMatchError> {
        let mut found = Vec::new();
        let visited = find_lines(&self.lines, hunk.old, level, |place| {
            found.push(place);
            found.len() >= MOST_PLACES
        });
        visited.map_err(|LineSearchError| TextMatchError::TooLarge)?;
        let count = hunk.old.split_inclusive('\n').count();
        let [only] = &found[..] else {
            let lines: Vec<usize> = found.iter().map(|place| place.first + 1).collect();
            let ambiguous = TextMatchError::Ambiguous { relaxation: level, lines };
            return Err(if found.is_empty() { TextMatchError::NotFound } else { ambiguous });
        };
        let region = &self.lines[only.first..only.first + count];
        let start = self.lines[..only.first].iter().map(|line| line.len()).sum();
        let closed = hunk.old.ends_with('\n');
        let length: usize = region.iter().map(|line| line.len()).sum();
        let last_end = region.last().map_or(0, |line| line.len() - line_body(line).len());
        // The newline at the end of a file is a trailing blank, and the file keeps its end.
        let at_open_end = closed && last_end == 0;
        if at_open_end && level == TextRelaxation::Indentation {
            return Err(TextMatchError::NotFound);
        }
        let new = hunk.adapted(region, &only.shift, level, self.eol).ok_or(TextMatchError::Unadaptable)?;
        let new = if at_open_end { line_body(&new).to_owned() } else { new };
        let end = start + length - if closed { 0 } else { last_end };
        let endings = region.iter().zip(hunk.old.split_inclusive('\n')).any(|(there, line)| ends_differ(there, line));
        let relaxations = if endings { vec![TextRelaxation::LineEndings, level] } else { vec![level] };
        Ok(TextMatch { start, end, new, relaxations })
    }

    /// By characters, not by lines: the text may begin and end within one.
    fn by_typography(&self, hunk: RelaxedHunk<'_>) -> Result<TextMatch, TextMatchError> {
        let ascii = to_ascii(self.text);
        if hunk.old.trim().is_empty() || (self.text.is_ascii() && hunk.old.is_ascii()) {
            return Err(TextMatchError::NotFound);
        }
        let original = (hunk.old.to_owned(), hunk.new.to_owned());
        let mut found = Vec::new();
        let mut endings = false;
        for (nth, (old, new)) in std::iter::once(original).chain(self.variants(hunk)).enumerate() {
            let wanted = to_ascii(&old);
            let length = wanted.chars().count();
            for at in starts_of(&ascii, &wanted, MatchStart::Anywhere) {
                let before = ascii[..at].chars().count();
                let mut bounds = self.text.char_indices().map(|(at, _)| at).chain([self.text.len()]).skip(before);
                let (Some(start), Some(end)) = (bounds.next(), bounds.nth(length.saturating_sub(1))) else { continue };
                let region: Vec<&str> = self.text[start..end].split_inclusive('\n').collect();
                let variant = RelaxedHunk { old: &old, new: &new };
                let adapted = variant.adapted(&region, &IndentShift::None, TextRelaxation::Typography, self.eol);
                found.extend(adapted.map(|new| (start, end, new)));
                endings |= nth > 0;
            }
        }
        let mut relaxations = vec![TextRelaxation::Typography];
        let found = self.only(found, relaxations.clone())?;
        if endings {
            relaxations.insert(0, TextRelaxation::LineEndings);
        }
        Ok(TextMatch { relaxations, ..found })
    }

    fn without_line_numbers(&self, hunk: RelaxedHunk<'_>) -> Result<TextMatch, TextMatchError> {
        let Some(old) = cut_line_numbers(hunk.old).filter(|old| !old.trim().is_empty()) else {
            return Err(TextMatchError::NotFound);
        };
        let is_numbered = |line: &str| split_number(line).is_some();
        let new = match cut_line_numbers(hunk.new) {
            Some(new) => new,
            // Numbers on some lines only could be part of them.
            None if hunk.new.lines().any(is_numbered) => return Err(TextMatchError::NotFound),
            None => hunk.new.to_owned(),
        };
        let level = TextRelaxation::LineNumbers;
        // A number is in front of a whole line. Where the file has both line endings, either may be meant.
        let starts = starts_of(self.text, &old, MatchStart::LineStart).into_iter();
        let mut found: Vec<_> = starts.map(|start| (start, start + old.len(), new.clone())).collect();
        let has_own_endings = !found.is_empty();
        found.extend(self.places_with_other_endings(RelaxedHunk { old: &old, new: &new }, MatchStart::LineStart));
        let mut found = self.only(found, vec![level])?;
        if !has_own_endings {
            found.relaxations.insert(0, TextRelaxation::LineEndings);
        }
        Ok(found)
    }
}

/// Where a text begins, as many places as an error names. Two that overlap are two.
fn starts_of(text: &str, wanted: &str, from: MatchStart) -> Vec<usize> {
    let finder = memmem::Finder::new(wanted);
    let is_start = |at: usize| match from {
        MatchStart::Anywhere => true,
        MatchStart::LineStart => at == 0 || text.as_bytes()[at - 1] == b'\n',
    };
    let (mut starts, mut next) = (Vec::new(), 0);
    while starts.len() < MOST_PLACES
        && let Some(skipped) = text.as_bytes().get(next..).and_then(|rest| finder.find(rest))
    {
        let at = next + skipped;
        starts.extend(Some(at).filter(|at| is_start(*at)));
        next = match from {
            MatchStart::Anywhere => at + 1,
            // The next line.
            MatchStart::LineStart => {
                at + memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |end| end + 1)
            }
        };
    }
    starts
}

fn ends_differ(there: &str, line: &str) -> bool {
    let is_crlf = |line: &str| line.ends_with("\r\n");
    there.ends_with('\n') && line.ends_with('\n') && is_crlf(there) != is_crlf(line)
}

/// A number and the line after its tab.
fn split_number(line: &str) -> Option<(usize, &str)> {
    let (number, rest) = line.split_once('\t')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| Some((number.parse().ok()?, rest)))?
}

/// A text without the numbers of its lines, if every line has the one after that of the line above.
fn cut_line_numbers(text: &str) -> Option<String> {
    let mut next = None;
    let mut cut = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (number, rest) = split_number(line)?;
        if next.is_some_and(|next| next != number) {
            return None;
        }
        next = number.checked_add(1);
        cut.push_str(rest);
    }
    next.map(|_| cut)
}
