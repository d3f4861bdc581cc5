//! Applying the hunks of one file to its text.
//!
//! A place matches when it has exactly the old lines of the hunk, ends included. No message has contents in it.

use memchr::memmem::{self, Finder};
use ringfence_kernel::{ErrorKind, ToolError};

use super::{Change, FilePatch, Hunk};

/// More line numbers than this help nobody.
const MOST_LINES: usize = 20;

/// So many bytes of a file are gone through for hunks that are not where they say, or a small patch of a large file
/// could take for ever.
const MOST_SEARCHED: usize = 512 << 20;

/// The new text of a file, and where its hunks went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) text: String,
    pub(crate) hunks: Vec<Placed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Its number among the hunks of the file, from one.
    pub(crate) hunk: usize,
    /// Where it begins in the new text.
    pub(crate) line: usize,
    /// How many lines further down it was put than it said.
    pub(crate) offset: i64,
    pub(crate) added: usize,
    pub(crate) removed: usize,
}

/// Applies all hunks or none. A file that is created has no text yet; one that is deleted must have none left.
pub(crate) fn apply(text: &str, patch: &FilePatch, shown: &str) -> Result<Applied, ToolError> {
    if patch.change == Change::Create && !text.is_empty() {
        let message = format!("the patch creates `{shown}`, which is there already");
        return Err(ToolError::new(ErrorKind::AlreadyExists, message));
    }
    let mut finding = Finding { text, shown, done: Mark::default(), drift: 0, left: MOST_SEARCHED };
    let mut applied = Applied { text: String::with_capacity(text.len()), hunks: Vec::with_capacity(patch.hunks.len()) };
    let mut lines = 0;
    for (number, hunk) in (1..).zip(&patch.hunks) {
        let place = finding.place(number, hunk)?;
        applied.text.push_str(&text[finding.done.at..place.at]);
        lines += place.lines - finding.done.lines;
        finding.pass(place, hunk);
        let Hunk { added, removed, .. } = *hunk;
        let offset = finding.drift as i64;
        applied.hunks.push(Placed { hunk: number, line: lines + 1, offset, added, removed });
        applied.text.push_str(&hunk.new.text);
        lines += hunk.new.lines;
    }
    applied.text.push_str(&text[finding.done.at..]);
    if patch.change == Change::Delete && !applied.text.is_empty() {
        let message = format!("the patch deletes `{shown}`, which has more lines than it removes");
        return Err(ToolError::new(ErrorKind::Conflict, message).hint("use delete_file, or remove all its lines"));
    }
    Ok(applied)
}

/// The start of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// How many lines are before it.
    lines: usize,
    /// How many bytes are.
    at: usize,
}

struct Finding<'t> {
    text: &'t str,
    shown: &'t str,
    /// The end of the hunk before, in the old text.
    done: Mark,
    /// How much further down than it said that hunk was.
    drift: isize,
    /// How many bytes may still be gone through.
    left: usize,
}

impl Finding<'_> {
    fn place(&mut self, number: usize, hunk: &Hunk) -> Result<Mark, ToolError> {
        let stated = self.start_of(hunk.before.checked_add_signed(self.drift));
        if hunk.old.text.is_empty() {
            // Nothing would tell that another place is right, or that the stated one still is once lines have shifted.
            return stated
                .filter(|at| self.drift == 0 && self.fits(*at, hunk))
                .ok_or_else(|| self.no_room(number, hunk));
        }
        if let Some(at) = stated.filter(|at| self.fits(*at, hunk)) {
            return Ok(at);
        }
        match self.search(number, hunk)?[..] {
            [only] => Ok(only),
            [] => Err(self.not_found(number, hunk, stated)),
            ref several => Err(self.ambiguous(number, hunk, several)),
        }
    }

    fn pass(&mut self, place: Mark, hunk: &Hunk) {
        self.drift = place.lines as isize - hunk.before as isize;
        self.done = Mark { lines: place.lines + hunk.old.lines, at: place.at + hunk.old.text.len() };
    }

    /// Where the line that has so many before it begins, if no hunk has passed it.
    fn start_of(&self, lines: Option<usize>) -> Option<Mark> {
        let skipped = lines?.checked_sub(self.done.lines)?;
        let rest = &self.text.as_bytes()[self.done.at..];
        let length = match skipped.checked_sub(1) {
            None => 0,
            Some(last) => memchr::memchr_iter(b'\n', rest).nth(last)? + 1,
        };
        Some(Mark { lines: self.done.lines + skipped, at: self.done.at + length })
    }

    fn fits(&self, at: Mark, hunk: &Hunk) -> bool {
        let rest = &self.text[at.at..];
        rest.starts_with(&hunk.old.text) && (!hunk.reaches_end() || rest.len() == hunk.old.text.len())
    }

    /// Every place, or one more than are told, that the hunk fits after the one before it.
    fn search(&mut self, number: usize, hunk: &Hunk) -> Result<Vec<Mark>, ToolError> {
        let (text, done) = (self.text.as_bytes(), self.done);
        self.left = self.left.checked_sub(text.len() - done.at).ok_or_else(|| {
            let message = format!("hunk {number} and too many others are not where they say in `{}`", self.shown);
            ToolError::new(ErrorKind::EditNotFound, message).hint("make the diff again from the file as it is now")
        })?;
        // With the newline before it, the old text is found at starts of lines only: every find is a place, and few
        // places are enough.
        let needle = ["\n", &hunk.old.text].concat();
        let after = |mark: Mark, at: usize| {
            let lines = mark.lines + memchr::memchr_iter(b'\n', &text[mark.at..at]).count();
            Mark { lines, at }
        };
        let mut found: Vec<Mark> = self.fits(done, hunk).then_some(done).into_iter().collect();
        if hunk.reaches_end() {
            if text[done.at..].ends_with(needle.as_bytes()) {
                found.push(after(done, text.len() - hunk.old.text.len()));
            }
            return Ok(found);
        }
        let finder = Finder::new(&needle);
        let mut last = done;
        while found.len() <= MOST_LINES
            && let Some(skipped) = finder.find(&text[last.at..])
        {
            last = after(last, last.at + skipped + 1);
            found.push(last);
        }
        Ok(found)
    }

    fn ambiguous(&self, number: usize, hunk: &Hunk, places: &[Mark]) -> ToolError {
        let lines: Vec<usize> = places.iter().take(MOST_LINES).map(|place| place.lines + 1).collect();
        let listed = lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let more = if places.len() > MOST_LINES { " and more" } else { "" };
        let message = format!(
            "hunk {number}, for line {}, is not there in `{}` but matches several places, at lines {listed}{more}",
            hunk.stated, self.shown
        );
        ToolError::new(ErrorKind::AmbiguousEdit, message)
            .hint("give more lines of context, or the right line number")
            .detail("hunk", number)
            .detail("lines", lines)
    }

    fn not_found(&self, number: usize, hunk: &Hunk, stated: Option<Mark>) -> ToolError {
        let message = format!("hunk {number}, for line {}, is not in `{}`: ", hunk.stated, self.shown);
        let error = match stated {
            None => ToolError::new(ErrorKind::EditNotFound, message + &self.why_no_line(hunk)),
            Some(at) => {
                let there = &self.text[at.at..];
                let differs = first_difference(there, &hunk.old.text);
                let line = at.lines + differs + 1;
                let why = if differs == hunk.old.lines {
                    format!("it ends the file without a newline, which goes on at line {line}")
                } else if there.split_inclusive('\n').nth(differs).is_none() {
                    format!("the file ends before line {} of its old lines", differs + 1)
                } else {
                    format!("line {} of its old lines is not line {line} of the file", differs + 1)
                };
                ToolError::new(ErrorKind::EditNotFound, message + &why).detail("differsAtLine", line)
            }
        };
        let advice = self.line_ends(hunk).unwrap_or("read the file again and make the diff from what it has now");
        error.hint(advice).detail("hunk", number)
    }

    /// Only for a hunk that has no lines to be found by.
    fn no_room(&self, number: usize, hunk: &Hunk) -> ToolError {
        let why = match self.start_of(Some(hunk.before)) {
            _ if self.drift != 0 => "the hunk before it was not where it said".to_owned(),
            None => self.why_no_line(hunk),
            Some(_) => "the file does not end there".to_owned(),
        };
        let message = format!(
            "hunk {number} only adds lines, so it can only follow line {} of `{}`, and {why}",
            hunk.stated, self.shown
        );
        ToolError::new(ErrorKind::EditNotFound, message).hint("give it lines of context").detail("hunk", number)
    }

    fn why_no_line(&self, hunk: &Hunk) -> String {
        let stated = hunk.before.checked_add_signed(self.drift);
        if stated.is_none_or(|lines| lines < self.done.lines) {
            return "that is before the end of the hunk before it".to_owned();
        }
        let whole = self.text.is_empty() || self.text.ends_with('\n');
        let end = if whole { "" } else { " and no newline at its end" };
        format!("the file has {} line(s){end}", self.text.split_inclusive('\n').count())
    }

    /// What to say when only the ends of lines keep the hunk from matching.
    fn line_ends(&self, hunk: &Hunk) -> Option<&'static str> {
        let old = &hunk.old.text;
        let loose = |text: &str| {
            let newline = if text.ends_with('\n') { "" } else { "\n" };
            ["\n", &text.replace("\r\n", "\n"), newline].concat()
        };
        let (file, wanted) = (loose(&self.text[self.done.at..]), loose(old));
        let alike = if hunk.reaches_end() {
            file.ends_with(&wanted)
        } else {
            memmem::find(file.as_bytes(), wanted.as_bytes()).is_some()
        };
        alike.then_some(match (self.text.contains("\r\n"), old.contains("\r\n")) {
            (true, false) => "the line ends differ: the file has CRLF and the patch has LF",
            (false, true) => "the line ends differ: the file has LF and the patch has CRLF",
            _ if self.text.ends_with('\n') == old.ends_with('\n') => {
                "the line ends differ: CRLF and LF are mixed, and each must be as in the file"
            }
            _ if old.ends_with('\n') => {
                "the line ends differ: the file has no newline at its end, so put `\\ No newline at end of file` there"
            }
            _ => "the line ends differ: the file has a newline at its end, so leave out `\\ No newline at end of file`",
        })
    }
}

/// How many lines of `old` the text begins with.
fn first_difference(text: &str, old: &str) -> usize {
    let pairs = text.split_inclusive('\n').zip(old.split_inclusive('\n'));
    pairs.take_while(|(there, wanted)| there == wanted).count()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use expect_test::{Expect, expect};
    use ringfence_kernel::ErrorKind;

    use super::{MOST_SEARCHED, apply};
    use crate::diff::parse;

    /// The new text and where the hunks went; or the error.
    fn applied(text: &str, patch: &str) -> String {
        let files = parse(patch).unwrap();
        match apply(text, &files[0], "f") {
            Ok(applied) => {
                let hunks: Vec<String> = applied
                    .hunks
                    .iter()
                    .map(|placed| {
                        format!(
                            "#{} {}{:+} +{}-{}",
                            placed.hunk, placed.line, placed.offset, placed.added, placed.removed
                        )
                    })
                    .collect();
                format!("{:?} {}", applied.text, hunks.join(", "))
            }
            Err(error) => format!("{:?}: {}", error.kind, error.message),
        }
    }

    #[track_caller]
    fn check(text: &str, patch: &str, expected: Expect) {
        expected.assert_eq(&applied(text, patch));
    }

    #[test]
    fn hunks_go_where_they_say_or_to_the_only_other_place() {
        check("a\nb\nc\n", "@@ -2 +2 @@\n-b\n+B\n", expect![[r#""a\nB\nc\n" #1 2+0 +1-1"#]]);
        check("a\nb\nc\n", "@@ -1 +1 @@\n-b\n+B\n", expect![[r#""a\nB\nc\n" #1 2+1 +1-1"#]]);
        check("a\nb\nc\n", "@@ -99 +99 @@\n-b\n+B\n", expect![[r#""a\nB\nc\n" #1 2-97 +1-1"#]]);
        check("b\nb\nc\n", "@@ -2 +2 @@\n-b\n+B\n", expect![[r#""b\nB\nc\n" #1 2+0 +1-1"#]]);
        check(
            "0\na\nb\nc\nd\nb\ne\n",
            "@@ -1 +1 @@\n-a\n+A\n@@ -5 +4,0 @@\n-b\n",
            expect![[r#""0\nA\nb\nc\nd\ne\n" #1 2+1 +1-1, #2 6+1 +0-1"#]],
        );
        check(
            "0\na\nb\nc\nd\nb\ne\n",
            "@@ -1 +1,2 @@\n-a\n+A\n+A\n@@ -5 +6 @@\n-b\n+B\n",
            expect![[r#""0\nA\nA\nb\nc\nd\nB\ne\n" #1 2+1 +2-1, #2 7+1 +1-1"#]],
        );
        check("ab\nb\n", "@@ -1 +1 @@\n-b\n+B\n", expect![[r#""ab\nB\n" #1 2+1 +1-1"#]]);
        check("b\nbc\n", "@@ -2 +2 @@\n-b\n+B\n", expect![[r#""B\nbc\n" #1 1-1 +1-1"#]]);
    }

    #[test]
    fn several_places_are_ambiguous() {
        check(
            "a\nb\na\nb\n",
            "@@ -3 +3 @@\n-b\n+B\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 3, is not there in `f` but matches several places, at lines 2, 4; give more lines of context, or the right line number"
            ],
        );
        check(
            "a\na\na\na\n",
            "@@ -9,2 +9 @@\n-a\n a\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 9, is not there in `f` but matches several places, at lines 1, 2, 3; give more lines of context, or the right line number"
            ],
        );
        check(
            &"a\n".repeat(20),
            "@@ -21 +21 @@\n-a\n+b\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 21, is not there in `f` but matches several places, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20; give more lines of context, or the right line number"
            ],
        );
        check(
            &"a\n".repeat(21),
            "@@ -22 +22 @@\n-a\n+b\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 22, is not there in `f` but matches several places, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and more; give more lines of context, or the right line number"
            ],
        );
        // Only places after the hunk before it count.
        check(
            "a\nx\na\n",
            "@@ -2 +2 @@\n-x\n+X\n@@ -9 +9 @@\n-a\n+A\n",
            expect![[r#""a\nX\nA\n" #1 2+0 +1-1, #2 3-6 +1-1"#]],
        );
    }

    #[test]
    fn what_is_nowhere_is_not_applied() {
        check(
            "a\nb\nc\n",
            "@@ -1,3 +1,3 @@\n a\n-x\n+y\n c\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 2 of its old lines is not line 2 of the file; read the file again and make the diff from what it has now"
            ],
        );
        check(
            "a\n",
            "@@ -1,3 +1,3 @@\n a\n-x\n+y\n c\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: the file ends before line 2 of its old lines; read the file again and make the diff from what it has now"
            ],
        );
        check(
            "a\n",
            "@@ -7 +7 @@\n-x\n+y\n",
            expect![
                "EditNotFound: hunk 1, for line 7, is not in `f`: the file has 1 line(s); read the file again and make the diff from what it has now"
            ],
        );
        check(
            "",
            "@@ -1 +1 @@\n-x\n+y\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: the file ends before line 1 of its old lines; read the file again and make the diff from what it has now"
            ],
        );
        check(
            "a\nb\n",
            "@@ -2 +2 @@\n-b\n+B\n@@ -1 +1 @@\n-a\n+A\n",
            expect![
                "EditNotFound: hunk 2, for line 1, is not in `f`: that is before the end of the hunk before it; read the file again and make the diff from what it has now"
            ],
        );
        check(
            "a\nb\nc\n",
            "@@ -1,2 +1,2 @@\n a\n-b\n+B\n@@ -2,2 +2,2 @@\n-b\n+B\n c\n",
            expect![
                "EditNotFound: hunk 2, for line 2, is not in `f`: that is before the end of the hunk before it; read the file again and make the diff from what it has now"
            ],
        );
        check(
            "0\na\nb\nc\n",
            "@@ -1 +1 @@\n-a\n+A\n@@ -3,2 +3 @@\n c\n-d\n",
            expect![
                "EditNotFound: hunk 2, for line 3, is not in `f`: the file ends before line 2 of its old lines; read the file again and make the diff from what it has now"
            ],
        );
    }

    #[test]
    fn ends_of_lines_are_part_of_them() {
        check("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+B\r\n", expect![[r#""a\r\nB\r\n" #1 1+0 +1-1"#]]);
        check(
            "a\r\nb\r\n",
            "@@ -1,2 +1,2 @@\n a\n-b\n+B\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines is not line 1 of the file; the line ends differ: the file has CRLF and the patch has LF"
            ],
        );
        check(
            "0\r\na\r\nb\r\n",
            "@@ -1,2 +1,2 @@\n a\n-b\n+B\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines is not line 1 of the file; the line ends differ: the file has CRLF and the patch has LF"
            ],
        );
        check(
            "a\nb\n",
            "@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+B\r\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines is not line 1 of the file; the line ends differ: the file has LF and the patch has CRLF"
            ],
        );
        check(
            "a\r\nb\nc\n",
            "@@ -1,2 +1,2 @@\n a\n-b\r\n+B\r\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines is not line 1 of the file; the line ends differ: CRLF and LF are mixed, and each must be as in the file"
            ],
        );
        check(
            "a\nb",
            "@@ -1,2 +1,2 @@\n a\n-b\n+B\n",
            expect![[
                r#"EditNotFound: hunk 1, for line 1, is not in `f`: line 2 of its old lines is not line 2 of the file; the line ends differ: the file has no newline at its end, so put `\ No newline at end of file` there"#
            ]],
        );
        check(
            "a\nb\n",
            "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+B\n",
            expect![[
                r#"EditNotFound: hunk 1, for line 1, is not in `f`: line 2 of its old lines is not line 2 of the file; the line ends differ: the file has a newline at its end, so leave out `\ No newline at end of file`"#
            ]],
        );
    }

    #[test]
    fn a_missing_newline_is_only_at_the_end() {
        let marker = "\\ No newline at end of file\n";
        check("a\nb", &format!("@@ -2 +2 @@\n-b\n{marker}+B\n"), expect![[r#""a\nB\n" #1 2+0 +1-1"#]]);
        check("a\nb\n", &format!("@@ -2 +2 @@\n-b\n+B\n{marker}"), expect![[r#""a\nB" #1 2+0 +1-1"#]]);
        check("a\nb", &format!("@@ -2 +2,2 @@\n+x\n b\n{marker}"), expect![[r#""a\nx\nb" #1 2+0 +1-0"#]]);
        check("b\nb", &format!("@@ -1 +1 @@\n-b\n{marker}+B\n"), expect![[r#""b\nB\n" #1 2+1 +1-1"#]]);
        check("b\na\nb", &format!("@@ -9 +9 @@\n-b\n{marker}+B\n"), expect![[r#""b\na\nB\n" #1 3-6 +1-1"#]]);
        check(
            "ab",
            &format!("@@ -1 +1 @@\n-b\n{marker}+B\n"),
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines is not line 1 of the file; read the file again and make the diff from what it has now"
            ],
        );
        check(
            "b\nc\n",
            &format!("@@ -1 +1 @@\n-b\n+B\n{marker}"),
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: it ends the file without a newline, which goes on at line 2; read the file again and make the diff from what it has now"
            ],
        );
        check("b\nc\nb\n", &format!("@@ -1 +1 @@\n-b\n+B\n{marker}"), expect![[r#""b\nc\nB" #1 3+2 +1-1"#]]);
    }

    #[test]
    fn lines_without_context_go_only_where_they_say() {
        check("a\nb\n", "@@ -1,0 +2 @@\n+x\n", expect![[r#""a\nx\nb\n" #1 2+0 +1-0"#]]);
        check("a\nb\n", "@@ -0,0 +1 @@\n+x\n", expect![[r#""x\na\nb\n" #1 1+0 +1-0"#]]);
        check("a\nb\n", "@@ -2,0 +3 @@\n+x\n", expect![[r#""a\nb\nx\n" #1 3+0 +1-0"#]]);
        check("", "@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n", expect![[r#""x" #1 1+0 +1-0"#]]);
        check(
            "a\nb\n",
            "@@ -3,0 +4 @@\n+x\n",
            expect![
                "EditNotFound: hunk 1 only adds lines, so it can only follow line 3 of `f`, and the file has 2 line(s); give it lines of context"
            ],
        );
        check(
            "a\nb",
            "@@ -2,0 +3 @@\n+x\n",
            expect![
                "EditNotFound: hunk 1 only adds lines, so it can only follow line 2 of `f`, and the file has 2 line(s) and no newline at its end; give it lines of context"
            ],
        );
        check(
            "a\nb\n",
            "@@ -1,0 +2 @@\n+x\n\\ No newline at end of file\n",
            expect![
                "EditNotFound: hunk 1 only adds lines, so it can only follow line 1 of `f`, and the file does not end there; give it lines of context"
            ],
        );
        check(
            "0\na\nb\n",
            "@@ -1 +1 @@\n-a\n+A\n@@ -2,0 +3 @@\n+x\n",
            expect![
                "EditNotFound: hunk 2 only adds lines, so it can only follow line 2 of `f`, and the hunk before it was not where it said; give it lines of context"
            ],
        );
        check(
            "a\nb\n",
            "@@ -2 +2 @@\n-b\n+B\n@@ -1,0 +2 @@\n+x\n",
            expect![
                "EditNotFound: hunk 2 only adds lines, so it can only follow line 1 of `f`, and that is before the end of the hunk before it; give it lines of context"
            ],
        );
    }

    #[test]
    fn a_created_file_was_not_there_and_a_deleted_one_is_empty() {
        let create = "--- /dev/null\n+++ f\n@@ -0,0 +1,2 @@\n+a\n+b\n";
        check("", create, expect![[r#""a\nb\n" #1 1+0 +2-0"#]]);
        check("x\n", create, expect!["AlreadyExists: the patch creates `f`, which is there already"]);
        check("", "diff --git a/f b/f\nnew file mode 100644\n", expect![[r#""" "#]]);
        let delete = "--- f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n";
        check("a\nb\n", delete, expect![[r#""" #1 1+0 +0-2"#]]);
        check(
            "a\nb\nc\n",
            delete,
            expect![
                "Conflict: the patch deletes `f`, which has more lines than it removes; use delete_file, or remove all its lines"
            ],
        );
        check(
            "a\nx\n",
            delete,
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 2 of its old lines is not line 2 of the file; read the file again and make the diff from what it has now"
            ],
        );
        check(
            "a\n",
            "diff --git a/f b/f\ndeleted file mode 100644\n",
            expect![
                "Conflict: the patch deletes `f`, which has more lines than it removes; use delete_file, or remove all its lines"
            ],
        );
    }

    /// Far less than a search that starts over at each line would take.
    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn equal_lines_are_searched_in_one_pass() {
        let text = "a\n".repeat(200_000);
        let context = " a\n".repeat(100_000);
        let cases = [
            (text.clone(), format!("@@ -1,100001 +1,100000 @@\n{context}-b\n"), ErrorKind::EditNotFound),
            (text.clone(), format!("@@ -1,100001 +1,100000 @@\n-b\n{context}"), ErrorKind::EditNotFound),
            (text.clone(), format!("@@ -150000,100000 +1,100001 @@\n+b\n{context}"), ErrorKind::AmbiguousEdit),
            // At the end of each line, but of no whole one.
            ("xa\n".repeat(200_000), format!("@@ -1,100000 +1,100001 @@\n+b\n{context}"), ErrorKind::EditNotFound),
            (
                text.clone(),
                format!("@@ -1,100001 +1,100000 @@\n{context}-a\n\\ No newline at end of file\n"),
                ErrorKind::EditNotFound,
            ),
        ];
        for (text, patch, kind) in cases {
            let files = parse(&patch).unwrap();
            let start = Instant::now();
            assert_eq!(apply(&text, &files[0], "f").unwrap_err().kind, kind);
            assert!(start.elapsed() < SOON, "{kind:?} took {:?}", start.elapsed());
        }
        let patch = format!("@@ -1,100001 +1,100001 @@\n{context}-b\n+B\n");
        let applied = apply(&(text.clone() + "b\n"), &parse(&patch).unwrap()[0], "f").unwrap();
        assert_eq!((applied.text, applied.hunks[0].offset), (text + "B\n", 100_000));
    }

    #[test]
    fn too_many_searches_through_a_large_file_are_given_up() {
        // Each hunk is one line further down than the one before it would make it be.
        let count = 200;
        let text = (0..count).map(|n| format!("{n}\nx\n")).collect::<String>() + &"y\n".repeat(MOST_SEARCHED / 200);
        let patch: String = (0..count).map(|n| format!("@@ -{0} +{0} @@\n-{n}\n+!\n", n + 1)).collect();
        let start = Instant::now();
        let error = apply(&text, &parse(&patch).unwrap()[0], "f").unwrap_err();
        expect![
            "hunk 101 and too many others are not where they say in `f`; make the diff again from the file as it is now"
        ]
        .assert_eq(&error.message);
        assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
        let text = (0..count).map(|n| format!("{n}\nx\n")).collect::<String>();
        let applied = apply(&text, &parse(&patch).unwrap()[0], "f").unwrap();
        assert!(applied.hunks.iter().all(|placed| placed.offset == placed.hunk as i64 - 1));
    }
}
