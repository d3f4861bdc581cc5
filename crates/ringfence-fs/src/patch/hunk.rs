//! Hunks of a unified diff.
//!
//! It is read by the counts in its header, so that a removed line `-- x` is never taken for the header of a file. Where
//! they are missing or do not agree with the lines, it goes as far as lines have a mark, and its numbers count for nothing.

use ringfence_kernel::ToolError;

use crate::patch::lines::{PatchLineCursor, is_blank, syntax_error};
use crate::patch::{HunkSide, PatchHunk};

pub(super) const HEADER_LIKE: &str = "a hunk starts with a line such as `@@ -12,7 +12,8 @@`";

/// Prefix of the marker for a line above it without a newline, in any language.
const NO_NEWLINE: &str = "\\ ";

pub(super) fn read_hunk(lines: &mut PatchLineCursor<'_>) -> Result<PatchHunk, ToolError> {
    let number = lines.number;
    let first = lines.next().unwrap_or_default();
    let header = HunkHeader::parse(first);
    let body = *lines;
    for marks in [ContextMark::Space, ContextMark::Missing] {
        if let Some(header) = &header
            && let Some(reading) = HunkParser::by_counts(lines, header, marks)
        {
            return Ok(reading.into_hunk(Some(header.start)));
        }
        *lines = body;
    }
    let reading = HunkParser::by_prefixes(lines, ContextMark::Space).or_else(|error| {
        *lines = body;
        HunkParser::by_prefixes(lines, ContextMark::Missing).map_err(|_| error)
    })?;
    if reading.first.is_none() {
        return Err(syntax_error(number, format!("the hunk has no lines; {HEADER_LIKE}")));
    }
    let anchors = if header.is_none() { anchor(first).into_iter().collect() } else { Vec::new() };
    Ok(PatchHunk { anchors, ..reading.into_hunk(None) })
}

/// The text that a hunk's first line has where others have numbers, or after them: a line above the hunk.
pub(super) fn anchor(line: &str) -> Option<String> {
    let text = line.trim_start_matches('@').trim();
    let text = match text.split_once("@@") {
        Some((numbers, section)) if numbers.trim_start().starts_with('-') => section,
        Some((text, _)) => text,
        None if text.starts_with('-') && text.contains(" +") => "",
        None => text,
    };
    let text = text.trim();
    (text.chars().any(char::is_alphanumeric)).then(|| text.to_owned())
}

/// The mark of context lines in a hunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ContextMark {
    #[default]
    Space,
    /// They are as in the file: some models leave the space out.
    Missing,
}

/// The first line of a hunk: where it is, and how many old and new lines it has.
struct HunkHeader {
    start: usize,
    old: usize,
    new: usize,
}

impl HunkHeader {
    /// Nothing where the line has no numbers, or none that can be right.
    fn parse(line: &str) -> Option<Self> {
        let (old, rest) = line.strip_prefix("@@ -")?.split_once(" +")?;
        let (new, _) = rest.split_once(" @@")?;
        let ((start, old), (_, new)) = (range(old)?, range(new)?);
        let sound = (start > 0 || old == 0) && (old > 0 || new > 0);
        sound.then_some(Self { start, old, new })
    }
}

/// A line number and a count, which is 1 when it is left out.
fn range(text: &str) -> Option<(usize, usize)> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok())?;
    let (start, count) = text.split_once(',').unwrap_or((text, "1"));
    let (start, count) = (number(start)?, number(count)?);
    start.checked_add(count)?;
    Some((usize::try_from(start).ok()?, usize::try_from(count).ok()?))
}

/// A hunk, as far as it is read.
#[derive(Default)]
pub(super) struct HunkParser {
    old: HunkSide,
    new: HunkSide,
    added: usize,
    removed: usize,
    first: Option<HunkLineKind>,
    last: Option<HunkLineKind>,
    /// The newline of the last line was dropped.
    newline_dropped: bool,
    marks: ContextMark,
    marked_context: Vec<(usize, usize)>,
    /// It has as many lines as its header says.
    is_counted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HunkLineKind {
    Context,
    Removed,
    Added,
}

impl HunkParser {
    pub(super) fn with_marks(marks: ContextMark) -> Self {
        Self { marks, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Reads as many lines as the header says. Nothing where there are others.
    fn by_counts(lines: &mut PatchLineCursor<'_>, header: &HunkHeader, marks: ContextMark) -> Option<Self> {
        let mut reading = Self { marks, is_counted: true, ..Self::default() };
        while let Some(line) = lines.peek() {
            if line.starts_with(NO_NEWLINE) {
                reading.drop_newline(line).ok()?;
            } else if reading.old.lines == header.old && reading.new.lines == header.new {
                break;
            } else if line.starts_with("@@") || line.starts_with("diff ") {
                return None;
            } else {
                reading.push_line(line).ok()?;
            }
            if reading.old.lines > header.old || reading.new.lines > header.new {
                return None;
            }
            lines.next();
        }
        lines.skip_blank();
        let whole = reading.old.lines == header.old && reading.new.lines == header.new;
        (whole && !lines.at_hunk_line()).then_some(reading)
    }

    /// Reads to the next header, or to the end. Blank lines there are not part of the hunk.
    fn by_prefixes(lines: &mut PatchLineCursor<'_>, marks: ContextMark) -> Result<Self, ToolError> {
        let mut reading = Self { marks, ..Self::default() };
        let mut blank = Vec::new();
        while let Some(line) = lines.peek() {
            if line.starts_with("@@")
                || line.starts_with("diff --git ")
                || lines.at_signature()
                || at_file_header(*lines)?
            {
                break;
            }
            // Text below the diff.
            if !blank.is_empty() && reading.first.is_some() && !lines.at_hunk_line() && !lines.has_marked_line() {
                while lines.peek().is_some() {
                    lines.next();
                }
                break;
            }
            let number = lines.number;
            lines.next();
            if is_blank(line) {
                blank.push(line);
                continue;
            }
            let taken = blank.drain(..).try_for_each(|line| reading.push_line(line));
            let taken = taken.and_then(|()| match line.starts_with(NO_NEWLINE) {
                true => reading.drop_newline(line),
                false => reading.push_line(line),
            });
            taken.map_err(|problem| syntax_error(number, problem))?;
        }
        Ok(reading)
    }

    pub(super) fn into_hunk(self, stated: Option<usize>) -> PatchHunk {
        let Self { old, new, added, removed, first, last, marked_context, .. } = self;
        let [context_above, context_below] = [first, last].map(|kind| kind == Some(HunkLineKind::Context));
        let (anchors, at_end) = (Vec::new(), false);
        let is_repeated = false;
        PatchHunk {
            stated,
            anchors,
            at_end,
            old,
            new,
            added,
            removed,
            context_above,
            context_below,
            is_repeated,
            marked_context,
        }
    }

    pub(super) fn push_line(&mut self, line: &str) -> Result<(), &'static str> {
        let (kind, text) = match line.split_at_checked(1) {
            // An empty line of context whose space was trimmed.
            _ if is_blank(line) => (HunkLineKind::Context, line),
            Some((" ", text)) if self.marks == ContextMark::Space => (HunkLineKind::Context, text),
            Some(("-", text)) => (HunkLineKind::Removed, text),
            Some(("+", text)) => (HunkLineKind::Added, text),
            _ if self.marks == ContextMark::Missing && !self.ends_hunk(line) => (HunkLineKind::Context, line),
            _ => return Err("a line of a hunk must start with a space, `+` or `-`"),
        };
        if kind == HunkLineKind::Context && self.marks == ContextMark::Space {
            self.marked_context.push((self.old.lines, self.new.lines));
        }
        for side in self.sides(kind) {
            if side.lacks_newline() {
                return Err("a line without a newline must be the last one of its side");
            }
            side.text.push_str(text);
            side.lines += 1;
        }
        self.added += usize::from(kind == HunkLineKind::Added);
        self.removed += usize::from(kind == HunkLineKind::Removed);
        self.first = self.first.or(Some(kind));
        self.last = Some(kind);
        self.newline_dropped = false;
        Ok(())
    }

    /// Whether a line without a mark cannot be one of the hunk: the next header, or the end of a code fence, unless counts
    /// tell how far the hunk goes.
    fn ends_hunk(&self, line: &str) -> bool {
        line.starts_with("@@") || (!self.is_counted && line.starts_with("```"))
    }

    /// Heeds `\ No newline at end of file`.
    fn drop_newline(&mut self, marker: &str) -> Result<(), &'static str> {
        let last = self.last.filter(|_| !std::mem::replace(&mut self.newline_dropped, true));
        let last = last.ok_or("there is no line above that could lack a newline")?;
        // In a patch that has CRLF everywhere, the return is not part of the line.
        let end = if marker.ends_with("\r\n") { "\r\n" } else { "\n" };
        for side in self.sides(last) {
            let kept = side.text.strip_suffix(end).or(side.text.strip_suffix('\n')).map_or(0, str::len);
            side.text.truncate(kept);
            if !side.lacks_newline() {
                return Err("an empty line cannot lack a newline");
            }
        }
        Ok(())
    }

    /// The sides that a line belongs to.
    fn sides(&mut self, kind: HunkLineKind) -> impl Iterator<Item = &mut HunkSide> {
        let old = (kind != HunkLineKind::Added).then_some(&mut self.old);
        old.into_iter().chain((kind != HunkLineKind::Removed).then_some(&mut self.new))
    }
}

/// Whether the header of another file follows. Where counts are wrong, nothing else tells it from a removed line `-- x`
/// and an added one `++ x`.
fn at_file_header(lines: PatchLineCursor<'_>) -> Result<bool, ToolError> {
    if !lines.at_file_names() || !lines.after_next().after_next().begin_with("@@") {
        return Ok(false);
    }
    let prefixed = ["--- a/", "--- \"a/", "--- /dev/null"].iter().any(|start| lines.begin_with(start));
    let new = lines.after_next();
    if prefixed && ["+++ b/", "+++ \"b/", "+++ /dev/null"].iter().any(|start| new.begin_with(start)) {
        return Ok(true);
    }
    let problem = "this may be the header of a file or two lines of the hunk above, whose counts are wrong";
    Err(syntax_error(lines.number, problem).hint("start the names with `a/` and `b/`, or make one patch per file"))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use crate::patch::tests::{check_read, read};

    #[track_caller]
    fn check(hunk: &str, expected: Expect) {
        check_read(&format!("--- f\n+++ f\n{hunk}"), expected);
    }

    #[test]
    fn a_header_without_right_numbers_says_nothing() {
        for header in [
            "@@",
            "@@ @@",
            "@@ ... @@",
            "@@ fn main() @@",
            "@@ fn main() {",
            "@@ -1 +1",
            "@@ -a +1 @@",
            "@@ -+1 +1 @@",
            "@@ -1, +1 @@",
            "@@ -0 +1 @@",
            "@@ -0,0 +0,0 @@",
            "@@ -4294967296 +1 @@",
            "@@ -4294967295 +1 @@",
            "@@ -1 +1,99999999999999999999999 @@",
            "@@ - +1 @@",
        ] {
            let said = read(&format!("--- f\n+++ f\n{header}\n-x\n+y\n"));
            let anchor = if header.contains("{") {
                " <fn main() {>"
            } else if header.contains("main") {
                " <fn main()>"
            } else {
                ""
            };
            assert_eq!(said, format!(r#"Modify f, ?{anchor}: "x\n" -> "y\n""#), "{header}");
        }
        check("@@ -4294967294 +1 @@\n-x\n+y\n", expect![[r#"Modify f, 4294967294: "x\n" -> "y\n""#]]);
        check("@@\n", expect!["line 3 of the patch: the hunk has no lines"]);
        check("@@\n@@\n-x\n+y\n", expect!["line 3 of the patch: the hunk has no lines"]);
    }

    #[test]
    fn a_hunk_without_counts_goes_as_far_as_its_lines_have_a_mark() {
        check("@@\n a\n\n-x\n+y\n\n", expect![[r#"Modify f, ?: "a\n\nx\n" -> "a\n\ny\n""#]]);
        check("@@\n-x\n+y\n\n@@\n-z\n\n", expect![[r#"Modify f, ?: "x\n" -> "y\n", ?: "z\n" -> """#]]);
        check(
            "@@\n-x\n+y\n--- a/g\n+++ b/g\n@@\n-z\n",
            expect![[r#"Modify f, ?: "x\n" -> "y\n"; Modify g, ?: "z\n" -> """#]],
        );
        check(
            "@@\n-x\n+y\n--- g\n+++ g\n@@\n-z\n",
            expect![
                "line 6 of the patch: this may be the header of a file or two lines of the hunk above, whose counts are wrong"
            ],
        );
        check("@@\n-x\n--- a/g\n+++ b/g\n", expect![[r#"Modify f, ?: "x\n-- a/g\n" -> "++ b/g\n""#]]);
        check("@@\n-x\n--\n", expect![[r#"Modify f, ?: "x\n-\n" -> """#]]);
        check("@@\n-x\n-- \n2.47.3\n\n", expect![[r#"Modify f, ?: "x\n" -> """#]]);
        check("@@\n-x\n+y\nz\n", expect![[r#"Modify f, ?: "x\nz\n" -> "y\nz\n""#]]);
        check("@@\n-x\n+y\n\nThat is all.\n", expect![[r#"Modify f, ?: "x\n" -> "y\n""#]]);
        check("@@\n-x\n+y\nIndex: g\n", expect![[r#"Modify f, ?: "x\nIndex: g\n" -> "y\nIndex: g\n""#]]);
        check("@@\n-x\n+y\n\\ No newline at end of file\n", expect![[r#"Modify f, ?: "x\n" -> "y""#]]);
    }

    #[test]
    fn a_hunk_is_read_by_its_counts() {
        check(
            "@@ -1,3 +1,3 @@ f\n a\n--- x\n+++ y\n b\n",
            expect![[r#"Modify f, 1: "a\n-- x\nb\n" -> "a\n++ y\nb\n""#]],
        );
        check("@@ -1,3 +1,3 @@\n a\n\n-x\n+y\n", expect![[r#"Modify f, 1: "a\n\nx\n" -> "a\n\ny\n""#]]);
        check("@@ -1,2 +1 @@\r\n a\r\n-b\r\n", expect![[r#"Modify f, 1: "a\r\nb\r\n" -> "a\r\n""#]]);
        check("@@ -1 +1,3 @@\n a\r\n\n", expect![[r#"Modify f, ?: "a\r\n" -> "a\r\n""#]]);
        check("@@ -1,4 +1,2 @@\n a\n-b\n+c\n", expect![[r#"Modify f, ?: "a\nb\n" -> "a\nc\n""#]]);
        check(
            "@@ -1,4 +1,4 @@\n a\n-b\n+c\n@@ -9 +9 @@\n-x\n+y\n",
            expect![[r#"Modify f, ?: "a\nb\n" -> "a\nc\n", 9: "x\n" -> "y\n""#]],
        );
        check(
            "@@ -1,3 +1,3 @@\n a\n-b\n+c\n--- g\n+++ g\n@@ -9 +9 @@\n-x\n+y\n",
            expect![[r#"Modify f, 1: "a\nb\n-- g\n" -> "a\nc\n++ g\n", 9: "x\n" -> "y\n""#]],
        );
        check("@@ -1,2 +1,2 @@\n a\n-b\n+c\n d\n", expect![[r#"Modify f, ?: "a\nb\nd\n" -> "a\nc\nd\n""#]]);
        check("@@ -1,2 +1,2 @@\n a\n-b\n+c\n\n+d\n--\n", expect![[r#"Modify f, ?: "a\nb\n\n-\n" -> "a\nc\n\nd\n""#]]);
        check("@@ -1,2 +1 @@\n a\n--\n-b\n", expect![[r#"Modify f, ?: "a\n-\nb\n" -> "a\n""#]]);
        check("@@ -1 +1 @@\n-a\n-b\n+c\n", expect![[r#"Modify f, ?: "a\nb\n" -> "c\n""#]]);
        check("@@ -1,2 +1,2 @@\n a\nb\n", expect![[r#"Modify f, 1: " a\nb\n" -> " a\nb\n""#]]);
        check("@@ -1,2 +1,3 @@\n```\n+b\n`c`\n", expect![[r#"Modify f, 1: "```\n`c`\n" -> "```\nb\n`c`\n""#]]);
        check("@@\n`c`\n+b\n@d\n", expect![[r#"Modify f, ?: "`c`\n@d\n" -> "`c`\nb\n@d\n""#]]);
        check(
            "@@\n`c`\n+b\n```\n-d\n",
            expect!["line 4 of the patch: a line of a hunk must start with a space, `+` or `-`"],
        );
    }

    #[test]
    fn a_missing_newline_is_heeded_on_each_side() {
        let marker = "\\ No newline at end of file";
        check(&format!("@@ -1 +1 @@\n-a\n{marker}\n+a\n"), expect![[r#"Modify f, 1: "a" -> "a\n""#]]);
        check(&format!("@@ -1 +1 @@\n-a\n+a\n{marker}"), expect![[r#"Modify f, 1: "a\n" -> "a""#]]);
        check(&format!("@@ -1,2 +1 @@\n-a\n b\n{marker}\n"), expect![[r#"Modify f, 1: "a\nb" -> "b""#]]);
        check(&format!("@@ -1,2 +1 @@\r\n-a\r\n b\r\n{marker}\r\n"), expect![[r#"Modify f, 1: "a\r\nb" -> "b""#]]);
        check(
            &format!("@@ -1,2 +1 @@\n-a\n{marker}\n b\n"),
            expect!["line 6 of the patch: a line without a newline must be the last one of its side"],
        );
        check(
            &format!("@@ -1 +1 @@\n{marker}\n-a\n+b\n"),
            expect!["line 4 of the patch: there is no line above that could lack a newline"],
        );
        check(
            &format!("@@ -1 +1 @@\n-a\n+b\n{marker}\n{marker}\n"),
            expect!["line 7 of the patch: there is no line above that could lack a newline"],
        );
        check(
            &format!("@@ -1 +1 @@\n-a\n+\n{marker}\n"),
            expect!["line 6 of the patch: an empty line cannot lack a newline"],
        );
        check(
            &format!("@@ -1 +1 @@\n-a\n+b\n{marker}\n@@ -2 +2 @@\n-c\n+d\n"),
            expect![[
                r#"line 7 of the patch: the hunk above is the end of the file, by its `\ No newline at end of file`"#
            ]],
        );
    }

    #[test]
    fn the_last_line_of_a_patch_may_lack_its_end() {
        check("@@ -1 +1 @@\n-a\n+b", expect![[r#"Modify f, 1: "a\n" -> "b\n""#]]);
        check("@@ -1 +1 @@\n-a\r\n+b", expect![[r#"Modify f, 1: "a\r\n" -> "b\r\n""#]]);
        check("@@ -1 +1 @@\n-a\r\n+b\r", expect![[r#"Modify f, 1: "a\r\n" -> "b\r\n""#]]);
    }
}
