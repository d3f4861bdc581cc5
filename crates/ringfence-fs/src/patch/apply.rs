//! Patch application: the hunks of one file applied to its text.
//!
//! Where the file ends its lines in one way and the patch in the other, the patch is read with the file's ends.
//!
//! Not here: where a hunk belongs. See `hunk_locator.rs`.

use std::borrow::Cow;

use memchr::memmem;
use ringfence_kernel::{ErrorKind, ToolError};

use crate::edit::TextRelaxation;
use crate::patch::hunk_locator::{HunkLocator, LineOffset};
use crate::patch::{FilePatch, HunkSide, PatchFormat, PatchHunk, PatchKind};

/// The new text of a file, and where its hunks went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PatchedText {
    pub(crate) text: String,
    pub(crate) hunks: Vec<HunkPlacement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HunkPlacement {
    /// Its number among the hunks of the file, from one.
    pub(crate) hunk: usize,
    /// Its first line in the new text.
    pub(crate) line: usize,
    /// How many lines further down than stated it was applied, if it stated a line.
    pub(crate) offset: Option<i64>,
    pub(crate) added: usize,
    pub(crate) removed: usize,
    /// How its old lines were matched, where they are not in the file exactly.
    pub(crate) relaxation: Option<TextRelaxation>,
}

/// Applies all hunks or none. A file that is created has no text yet; one that is deleted must have none left.
pub(crate) fn apply(text: &str, patch: &FilePatch, shown: &str) -> Result<PatchedText, ToolError> {
    if patch.change == PatchKind::Create && !text.is_empty() {
        let message = format!("the patch creates `{shown}`, which already exists");
        return Err(ToolError::new(ErrorKind::AlreadyExists, message));
    }
    if patch.change == PatchKind::Delete && patch.format == PatchFormat::V4a {
        return Ok(PatchedText { text: String::new(), hunks: Vec::new() });
    }
    let hunks = with_line_endings_of(text, &patch.hunks);
    let mut finding = HunkLocator::new(text, &hunks, shown, patch.format);
    let mut numbered: Vec<(usize, &PatchHunk)> = (1..).zip(&*hunks).collect();
    if finding.trust_line_numbers {
        numbered.sort_by_key(|(_, hunk)| hunk.stated);
    }
    let mut placed = Vec::with_capacity(numbered.len());
    for (number, hunk) in numbered {
        let fit = finding.place(number, hunk)?;
        finding.mark_placed(&fit, hunk);
        placed.push((number, hunk, fit));
    }
    // Hunks that are found by their lines alone may be in any order.
    placed.sort_by_key(|(_, _, fit)| (fit.start.at, fit.end));
    let mut applied = PatchedText { text: String::with_capacity(text.len()), hunks: Vec::with_capacity(hunks.len()) };
    let (mut lines, mut end) = (0, LineOffset::default());
    for (number, hunk, fit) in &placed {
        applied.text.push_str(&text[end.at..fit.start.at]);
        lines += fit.start.lines - end.lines;
        let offset = hunk.lines_before().filter(|_| finding.trust_line_numbers);
        let offset = offset.map(|before| fit.start.lines as i64 - before as i64);
        let PatchHunk { added, removed, .. } = **hunk;
        let (hunk_number, relaxation) = (*number, fit.relaxation);
        applied.hunks.push(HunkPlacement { hunk: hunk_number, line: lines + 1, offset, added, removed, relaxation });
        applied.text.push_str(fit.new_text(hunk));
        lines += hunk.new.lines;
        end = fit.end_offset(hunk);
    }
    applied.text.push_str(&text[end.at..]);
    applied.hunks.sort_by_key(|placed| placed.hunk);
    if patch.change == PatchKind::Delete && !applied.text.is_empty() {
        let message = format!("the patch deletes `{shown}`, which has more lines than it removes");
        return Err(ToolError::new(ErrorKind::Conflict, message).hint("use delete_file, or remove all its lines"));
    }
    Ok(applied)
}

/// The hunks with the ends of lines that the text has, where both have the same end everywhere.
pub(super) fn with_line_endings_of<'h>(text: &str, hunks: &'h [PatchHunk]) -> Cow<'h, [PatchHunk]> {
    let with_ends = |from: &str, to: &str| {
        let side = |side: &HunkSide| HunkSide { text: side.text.replace(from, to), lines: side.lines };
        hunks.iter().map(|hunk| PatchHunk { old: side(&hunk.old), new: side(&hunk.new), ..hunk.clone() }).collect()
    };
    let ends = |side: fn(&PatchHunk) -> &HunkSide| {
        hunks.iter().map(|hunk| LineEndings::of(&side(hunk).text)).fold(LineEndings::None, LineEndings::combine)
    };
    let (old, new) = (ends(|hunk| &hunk.old), ends(|hunk| &hunk.new));
    // With other ends than the file has, no old line that has one is in it.
    match (LineEndings::of(text), old) {
        // Lines that are only added: LF is what a patch has by itself, and CRLF is not.
        (LineEndings::Crlf, LineEndings::None) if new == LineEndings::Lf => Cow::Owned(with_ends("\n", "\r\n")),
        _ if old.combine(new) != old => Cow::Borrowed(hunks),
        (LineEndings::Crlf, LineEndings::Lf) => Cow::Owned(with_ends("\n", "\r\n")),
        (LineEndings::Lf, LineEndings::Crlf) => Cow::Owned(with_ends("\r\n", "\n")),
        _ => Cow::Borrowed(hunks),
    }
}

/// Line endings of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineEndings {
    None,
    Lf,
    Crlf,
    Mixed,
}

impl LineEndings {
    pub(super) fn of(text: &str) -> Self {
        let lines = memchr::memchr_iter(b'\n', text.as_bytes()).count();
        match memmem::find_iter(text.as_bytes(), b"\r\n").count() {
            _ if lines == 0 => Self::None,
            0 => Self::Lf,
            returns if returns == lines => Self::Crlf,
            _ => Self::Mixed,
        }
    }

    fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, ends) | (ends, Self::None) => ends,
            (one, other) if one == other => one,
            _ => Self::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::{Expect, expect};
    use ringfence_kernel::ErrorKind;
    use ringfence_testkit::cpu_share::thread_cpu_time;

    use super::apply;
    use crate::patch::hunk_locator::MOST_SEARCHED;
    use crate::patch::parse;

    /// The new text and where the hunks went; or the error.
    fn applied(text: &str, patch: &str) -> String {
        let files = parse(patch).unwrap();
        match apply(text, &files[0], "f") {
            Ok(applied) => {
                let hunks: Vec<String> = applied
                    .hunks
                    .iter()
                    .map(|placed| {
                        let offset = placed.offset.map_or(String::new(), |offset| format!("{offset:+}"));
                        format!("#{} {}{offset} +{}-{}", placed.hunk, placed.line, placed.added, placed.removed)
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
    fn a_line_number_and_lines_that_contradict_each_other_are_ambiguous() {
        check(
            "a\nx \nb\nx\n",
            "@@ -2 +2 @@\n-x\n+y\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 2, does not match there in `f`, but matches several places, at lines 2, 4; add context lines, or correct the line number"
            ],
        );
        check("a\nx \nb\n", "@@ -2 +2 @@\n-x\n+y\n", expect![[r#""a\ny\nb\n" #1 2+0 +1-1"#]]);
    }

    #[test]
    fn hunks_with_line_numbers_are_placed_in_their_order() {
        // The hunk for line 1 is at its line, which leaves one place for the other.
        let (first, last) = ("@@ -1 +1 @@\n-x\n+w\n", "@@ -4294967294 +4294967294 @@\n+y\n-x\n");
        for patch in [[first, last].concat(), [last, first].concat()] {
            assert_eq!(applied("x\nz\nx\n", &patch).split(' ').next(), Some(r#""w\nz\ny\n""#), "{patch}");
        }
        // Without numbers the first one is placed first, and could be either.
        for patch in ["@@\n+y\n-x\n@@\n-x\n+w\n", "@@\n-x\n+w\n@@\n+y\n-x\n"] {
            let said = applied("x\nz\nx\n", patch);
            assert!(said.starts_with("AmbiguousEdit: hunk 1 matches several places"), "{said}");
        }
        // The error is that of the first one that has no place, not of the first in the patch.
        check(
            "x\nz\nx\n",
            "@@ -9 +9 @@\n-x\n+w\n@@ -2 +2 @@\n-q\n+r\n",
            expect![
                "EditNotFound: hunk 2, for line 2, is not in `f`: line 1 of its old lines differs from line 2 of the file; read the file again and regenerate the diff"
            ],
        );
    }

    #[test]
    fn several_places_are_ambiguous() {
        check(
            "a\nb\na\nb\n",
            "@@ -3 +3 @@\n-b\n+B\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 3, does not match there in `f`, but matches several places, at lines 2, 4; add context lines, or correct the line number"
            ],
        );
        check(
            "a\na\na\na\n",
            "@@ -9,2 +9 @@\n-a\n a\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 9, does not match there in `f`, but matches several places, at lines 1, 2, 3; add context lines, or correct the line number"
            ],
        );
        check(
            &"a\n".repeat(20),
            "@@ -21 +21 @@\n-a\n+b\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 21, does not match there in `f`, but matches several places, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20; add context lines, or correct the line number"
            ],
        );
        check(
            &"a\n".repeat(21),
            "@@ -22 +22 @@\n-a\n+b\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 22, does not match there in `f`, but matches several places, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and more; add context lines, or correct the line number"
            ],
        );
        // Only lines after the hunk before it count.
        check(
            "a\nx\na\n",
            "@@ -2 +2 @@\n-x\n+X\n@@ -9 +9 @@\n-a\n+A\n",
            expect![
                "AmbiguousEdit: hunk 2, for line 9, does not match there in `f`, but matches several places, at lines 1, 3; add context lines, or correct the line number"
            ],
        );
    }

    #[test]
    fn a_hunk_without_a_match_is_not_applied() {
        check(
            "a\nb\nc\n",
            "@@ -1,3 +1,3 @@\n a\n-x\n+y\n c\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 2 of its old lines differs from line 2 of the file; read the file again and regenerate the diff"
            ],
        );
        check(
            "a\n",
            "@@ -1,3 +1,3 @@\n a\n-x\n+y\n c\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: the file ends before line 2 of its old lines; read the file again and regenerate the diff"
            ],
        );
        check(
            "a\n",
            "@@ -7 +7 @@\n-x\n+y\n",
            expect![
                "EditNotFound: hunk 1, for line 7, is not in `f`: the file has 1 line; read the file again and regenerate the diff"
            ],
        );
        check(
            "",
            "@@ -1 +1 @@\n-x\n+y\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: the file ends before line 1 of its old lines; read the file again and regenerate the diff"
            ],
        );
        check(
            "a\nb\n",
            "@@ -2 +2 @@\n-b\n+B\n@@ -1 +1 @@\n-a\n+A\n",
            expect![[r#""A\nB\n" #1 2+0 +1-1, #2 1+0 +1-1"#]],
        );
        check(
            "a\nb\nc\n",
            "@@ -1,2 +1,2 @@\n a\n-b\n+B\n@@ -2,2 +2,2 @@\n-b\n+B\n c\n",
            expect![
                "EditNotFound: hunk 2, for line 2, is not in `f`: it starts before the end of the previous hunk; read the file again and regenerate the diff"
            ],
        );
        check(
            "0\na\nb\nc\n",
            "@@ -1 +1 @@\n-a\n+A\n@@ -3,2 +3 @@\n c\n-d\n",
            expect![
                "EditNotFound: hunk 2, for line 3, is not in `f`: the file ends before line 2 of its old lines; read the file again and regenerate the diff"
            ],
        );
    }

    #[test]
    fn lines_end_as_those_of_the_file_do() {
        check("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+B\r\n", expect![[r#""a\r\nB\r\n" #1 1+0 +1-1"#]]);
        check("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\n-b\n+B\n", expect![[r#""a\r\nB\r\n" #1 1+0 +1-1"#]]);
        check("0\r\na\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\n-b\n+B\n", expect![[r#""0\r\na\r\nB\r\n" #1 2+1 +1-1"#]]);
        check("a\nb\n", "@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+B\r\n", expect![[r#""a\nB\n" #1 1+0 +1-1"#]]);
        check("a\r\nb\r\n", "@@ -1,0 +2 @@\n+x\n", expect![[r#""a\r\nx\r\nb\r\n" #1 2+0 +1-0"#]]);
        check("a\nb\n", "@@ -1,0 +2 @@\n+x\r\n", expect![[r#""a\nx\r\nb\n" #1 2+0 +1-0"#]]);
        // Where they are mixed, each is part of its line.
        check("a\r\nb\nc\n", "@@ -2 +2 @@\n-b\n+B\r\n", expect![[r#""a\r\nB\r\nc\n" #1 2+0 +1-1"#]]);
        check(
            "a\r\nb\nc\n",
            "@@ -1,2 +1,2 @@\n a\n-b\n+B\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines differs from line 1 of the file; the line endings differ: the file has CRLF and the patch has LF"
            ],
        );
        check(
            "a\r\nb\nc\n",
            "@@ -1,2 +1,2 @@\n a\n-b\r\n+B\r\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines differs from line 1 of the file; the line endings differ: CRLF and LF are mixed, and each must match the file"
            ],
        );
    }

    #[test]
    fn a_hunk_without_right_numbers_goes_to_the_only_place() {
        for header in ["@@", "@@ ... @@", "@@ fn f() {", "@@ -1,9 +1,9 @@", "@@ -99,9 +99 @@", "@@ -0,0 +1,2 @@"] {
            let patch = format!("{header}\n a\n-b\n+B\n c\n");
            check("x\na\nb\nc\n", &patch, expect![[r#""x\na\nB\nc\n" #1 2 +1-1"#]]);
            check(
                "a\nb\nc\na\nb\nc\n",
                &patch.replace("@@ -1,9", "@@ -4,9"),
                expect![
                    "AmbiguousEdit: hunk 1 matches several places in `f`, at lines 1, 4; add context lines; line numbers are used only if every hunk header of the file has correct counts"
                ],
            );
        }
        check(
            "a\nb\nc\n",
            "@@\n-x\n+y\n",
            expect![
                "EditNotFound: hunk 1 is not in `f`: its old lines are not in the file; read the file again and regenerate the diff"
            ],
        );
        check("a\nb\nc\n", "@@\n-c\n+C\n@@\n-a\n+A\n", expect![[r#""A\nb\nC\n" #1 3 +1-1, #2 1 +1-1"#]]);
        check(
            "a\nb\na\nc\n",
            "@@\n-b\n+B\n@@\n-a\n+A\n",
            expect![
                "AmbiguousEdit: hunk 2 matches several places in `f`, at lines 1, 3; add context lines; line numbers are used only if every hunk header of the file has correct counts"
            ],
        );
        check(
            "b\na\nb\nc\n",
            "@@ -3 +3 @@\n-b\n+B\n@@\n-c\n+C\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 3, matches several places in `f`, at lines 1, 3; add context lines; line numbers are used only if every hunk header of the file has correct counts"
            ],
        );
        check(
            "a\n",
            "@@\n+x\n",
            expect![
                "EditNotFound: hunk 1 only adds lines, and nothing says where in `f` they belong; add context lines"
            ],
        );
        check("", "@@\n+x\n", expect![[r#""x\n" #1 1 +1-0"#]]);
    }

    #[test]
    fn an_applied_hunk_is_not_applied_again() {
        for (text, patch) in [
            ("a\n", "@@ -1 +1,2 @@\n a\n+b\n"),
            ("a", "@@ -1 +1,2 @@\n a\n+b\n"),
            ("a\r\n", "@@ -1 +1,2 @@\n a\n+b\n"),
            ("a\nc\n", "@@ -1 +1,2 @@\n a\n+b\n"),
            ("a\nc\n", "@@\n a\n+b\n"),
            ("x\na\n", "@@ -2 +2,2 @@\n+b\n a\n"),
            ("x\na\n", "@@\n+b\n a\n"),
            ("a\nb\n", "@@ -1,0 +2 @@\n+x\n"),
            ("a\nb\n", "@@ -2,0 +3 @@\n+x\n"),
            ("a\nb\n", "@@ -0,0 +1 @@\n+x\n"),
            ("x\nb\nx\n", "@@ -1 +1 @@\n-x\n+y\n"),
            ("a\nb\nc\na\nb\n", "@@ -1,2 +1 @@\n a\n-b\n"),
            ("x\n", "@@\n-x\n+x\n+y\n"),
            ("x\n", "@@\n-x\n+p\n+x\n+q\n"),
            ("a\na\n", "@@\n a\n+a\n a\n"),
        ] {
            let files = parse(patch).unwrap();
            let once = apply(text, &files[0], "f").unwrap().text;
            let again = apply(&once, &files[0], "f").map(|applied| applied.text);
            assert!(again.is_err(), "{patch}{text:?} -> {once:?} -> {again:?}");
        }
        check(
            "a\nb\n",
            "@@ -1 +1,2 @@\n a\n+b\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is already applied to `f`: its new lines are there; remove it; to add the same lines again, add context lines above and below"
            ],
        );
        // Nothing tells which of the lines is meant.
        check(
            "a\na\na\na\n",
            "@@ -1,2 +1 @@\n a\n-a\n",
            expect![
                "AmbiguousEdit: hunk 1 would still match `f` after it is applied; add context lines above and below its change"
            ],
        );
        // A right line number does. Once more, it tells of another line.
        check("a\nb\nb\nb\n", "@@ -2 +1,0 @@\n-b\n", expect![[r#""a\nb\nb\n" #1 2+0 +0-1"#]]);
        check("a\na\na\na\n", "@@ -3,2 +3 @@\n a\n-a\n", expect![[r#""a\na\na\n" #1 3+0 +0-1"#]]);
    }

    #[test]
    fn the_end_of_a_file_stays_as_it_is() {
        let marker = "\\ No newline at end of file\n";
        check("a\nb", "@@ -2 +2 @@\n-b\n+B\n", expect![[r#""a\nB" #1 2+0 +1-1"#]]);
        check("a\nb", "@@ -1,2 +1,3 @@\n a\n b\n+c\n", expect![[r#""a\nb\nc" #1 1+0 +1-0"#]]);
        check("a\nb", "@@ -1,2 +1 @@\n a\n-b\n", expect![[r#""a" #1 1+0 +0-1"#]]);
        check("a\nb\n", &format!("@@ -2 +2 @@\n-b\n{marker}+B\n{marker}"), expect![[r#""a\nB\n" #1 2+0 +1-1"#]]);
        check("a\nb\n", &format!("@@ -2 +2 @@\n-b\n{marker}+B\n"), expect![[r#""a\nB\n" #1 2+0 +1-1"#]]);
        check("a\nb", &format!("@@ -2 +2 @@\n-b\n+B\n{marker}"), expect![[r#""a\nB" #1 2+0 +1-1"#]]);
        // Another occurrence has the same line, with its newline.
        check(
            "b\na\nb",
            "@@ -3 +3 @@\n-b\n+B\n",
            expect![
                "AmbiguousEdit: hunk 1, for line 3, does not match there in `f`, but matches several places, at lines 1, 3; add context lines, or correct the line number"
            ],
        );
    }

    #[test]
    fn an_empty_last_line_has_its_newline() {
        check("a\nx", "@@ -2 +2 @@\n-x\n+\n", expect![[r#""a\n\n" #1 2+0 +1-1"#]]);
        check("a\nx ", "@@ -2 +2 @@\n-x\n+\n", expect![[r#""a\n\n" #1 2+0 +1-1"#]]);
        // A newline behind a return would be another line ending than the file has.
        check(
            "b\na\r",
            "@@ -1,2 +1,2 @@\n-b\n-a\n+a\n+a\n",
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 2 of its old lines differs from line 2 of the file; read the file again and regenerate the diff"
            ],
        );
        check("a\n  x", "@@ -2 +2,2 @@\n-x\n+y\n+\n", expect![[r#""a\n  y\n\n" #1 2+0 +2-1"#]]);
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
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 1 of its old lines differs from line 1 of the file; read the file again and regenerate the diff"
            ],
        );
        check(
            "b\nc\n",
            &format!("@@ -1 +1 @@\n-b\n+B\n{marker}"),
            expect![
                "EditNotFound: hunk 1, for line 1, is not in `f`: it says that the file ends without a newline, but the file continues at line 2; read the file again and regenerate the diff"
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
                "EditNotFound: hunk 1 only adds lines, so it can only follow line 3 of `f`, but the file has 2 lines; add context lines"
            ],
        );
        check(
            "a\nb",
            "@@ -2,0 +3 @@\n+x\n",
            expect![
                "EditNotFound: hunk 1 only adds lines, so it can only follow line 2 of `f`, but the file has 2 lines and no newline at its end; add context lines"
            ],
        );
        check(
            "a\nb\n",
            "@@ -1,0 +2 @@\n+x\n\\ No newline at end of file\n",
            expect![
                "EditNotFound: hunk 1 only adds lines, so it can only follow line 1 of `f`, but the file does not end there; add context lines"
            ],
        );
        check(
            "0\na\nb\n",
            "@@ -1 +1 @@\n-a\n+A\n@@ -2,0 +3 @@\n+x\n",
            expect![
                "EditNotFound: hunk 2 only adds lines, so it can only follow line 2 of `f`, but the previous hunk was not at its stated line; add context lines"
            ],
        );
        check(
            "a\nb\n",
            "@@ -2 +2 @@\n-b\n+B\n@@ -1,0 +2 @@\n+x\n",
            expect![[r#""a\nx\nB\n" #1 3+0 +1-1, #2 2+0 +1-0"#]],
        );
    }

    #[test]
    fn a_created_file_was_not_there_and_a_deleted_one_is_empty() {
        let create = "--- /dev/null\n+++ f\n@@ -0,0 +1,2 @@\n+a\n+b\n";
        check("", create, expect![[r#""a\nb\n" #1 1+0 +2-0"#]]);
        check("x\n", create, expect!["AlreadyExists: the patch creates `f`, which already exists"]);
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
                "EditNotFound: hunk 1, for line 1, is not in `f`: line 2 of its old lines differs from line 2 of the file; read the file again and regenerate the diff"
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

    /// CPU time, far less than a search that starts over at each line would take.
    const MAX_CPU_TIME: Duration = Duration::from_secs(5);

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
                format!("@@ -1,100001 +1,100000 @@\n{context}-b\n\\ No newline at end of file\n"),
                ErrorKind::EditNotFound,
            ),
        ];
        for (text, patch, kind) in cases {
            let files = parse(&patch).unwrap();
            let start = thread_cpu_time();
            assert_eq!(apply(&text, &files[0], "f").unwrap_err().kind, kind);
            let took = thread_cpu_time() - start;
            assert!(took < MAX_CPU_TIME, "{kind:?} took {took:?}");
        }
        let patch = format!("@@ -1,100001 +1,100001 @@\n{context}-b\n+B\n");
        let applied = apply(&(text.clone() + "b\n"), &parse(&patch).unwrap()[0], "f").unwrap();
        assert_eq!((applied.text, applied.hunks[0].offset), (text + "B\n", Some(100_000)));
    }

    #[test]
    fn too_many_searches_through_a_large_file_are_given_up() {
        // Each hunk is one line further down than the one before it would make it be.
        let count = 200;
        let text = (0..count).map(|n| format!("{n}\nx\n")).collect::<String>() + &"y\n".repeat(MOST_SEARCHED / 200);
        let patch: String = (0..count).map(|n| format!("@@ -{0} +{0} @@\n-{n}\n+!\n", n + 1)).collect();
        let start = thread_cpu_time();
        let error = apply(&text, &parse(&patch).unwrap()[0], "f").unwrap_err();
        expect![
            "hunk 101 and too many others are not at their stated lines in `f`; regenerate the diff from the current file"
        ]
        .assert_eq(&error.message);
        let took = thread_cpu_time() - start;
        assert!(took < MAX_CPU_TIME, "took {took:?}");
        let text = (0..count).map(|n| format!("{n}\nx\n")).collect::<String>();
        let applied = apply(&text, &parse(&patch).unwrap()[0], "f").unwrap();
        assert!(applied.hunks.iter().all(|placed| placed.offset == Some(placed.hunk as i64 - 1)));
    }
}
