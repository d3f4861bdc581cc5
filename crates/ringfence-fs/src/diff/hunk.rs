//! One hunk of a diff.
//!
//! It is read by the counts in its header, so that a removed line `-- x` is never taken for the header of a file.
//! Counts that do not agree with the lines are an error.

use ringfence_kernel::ToolError;

use super::lines::{Lines, is_blank, wrong};
use super::{Hunk, Side};

pub(super) const HEADER_LIKE: &str = "a hunk begins with a line like `@@ -12,7 +12,8 @@`";

/// What begins so says that the line above it has no newline, in any language.
const NO_NEWLINE: &str = "\\ ";

pub(super) fn read_hunk(lines: &mut Lines<'_>) -> Result<Hunk, ToolError> {
    let number = lines.number;
    let Some(header) = lines.next().and_then(Header::parse) else {
        return Err(wrong(number, format!("{HEADER_LIKE}, where line numbers begin at 1 and fit in 32 bits")));
    };
    let body = *lines;
    let mut reading = Reading::default();
    while let Some(line) = lines.peek() {
        if line.starts_with(NO_NEWLINE) {
            reading.drop_newline(line).map_err(|problem| wrong(lines.number, problem))?;
        } else if reading.old.lines == header.old && reading.new.lines == header.new {
            break;
        } else if line.starts_with("@@") || line.starts_with("diff ") {
            return Err(header.miscounted(body));
        } else if let Err(problem) = reading.take(line) {
            let counts = header.but_has(reading.old.lines, reading.new.lines);
            return Err(wrong(lines.number, problem).hint(&(counts + " up to here")));
        }
        if reading.old.lines > header.old || reading.new.lines > header.new {
            return Err(header.miscounted(body));
        }
        lines.next();
    }
    lines.skip_blank();
    if reading.old.lines < header.old || reading.new.lines < header.new || lines.at_body() {
        return Err(header.miscounted(body));
    }
    let Reading { old, new, added, removed, .. } = reading;
    let before = header.start.saturating_sub(usize::from(old.lines > 0));
    Ok(Hunk { stated: header.start, before, old, new, added, removed })
}

/// The first line of a hunk: where it is, and how many old and new lines it has.
struct Header {
    start: usize,
    old: usize,
    new: usize,
}

impl Header {
    fn parse(line: &str) -> Option<Self> {
        let (old, rest) = line.strip_prefix("@@ -")?.split_once(" +")?;
        let (new, _) = rest.split_once(" @@")?;
        let ((start, old), (_, new)) = (range(old)?, range(new)?);
        let sound = (start > 0 || old == 0) && (old > 0 || new > 0);
        sound.then_some(Self { start, old, new })
    }

    fn but_has(&self, old: usize, new: usize) -> String {
        format!("the hunk should have {} old and {} new lines, but has {old} and {new}", self.old, self.new)
    }

    /// Counts the lines that are there, for somebody who has to count better.
    fn miscounted(&self, mut body: Lines<'_>) -> ToolError {
        let number = body.number - 1;
        let (mut old, mut new, mut blank) = (0, 0, 0);
        while let Some(line) = body.peek() {
            if is_blank(line) {
                // It counts if more lines follow.
                blank += 1;
            } else if body.at_body() {
                old += blank + usize::from(!line.starts_with('+'));
                new += blank + usize::from(!line.starts_with('-'));
                blank = 0;
            } else if !line.starts_with(NO_NEWLINE) {
                break;
            }
            body.next();
        }
        let advice = "count again: lines of context are old and new, those with `-` old, those with `+` new";
        wrong(number, self.but_has(old, new)).hint(advice)
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
struct Reading {
    old: Side,
    new: Side,
    added: usize,
    removed: usize,
    last: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Context,
    Removed,
    Added,
}

impl Reading {
    fn take(&mut self, line: &str) -> Result<(), &'static str> {
        let (kind, text) = match line.split_at_checked(1) {
            // An empty line of context whose space was trimmed.
            _ if is_blank(line) => (Kind::Context, line),
            Some((" ", text)) => (Kind::Context, text),
            Some(("-", text)) => (Kind::Removed, text),
            Some(("+", text)) => (Kind::Added, text),
            _ => return Err("a line of a hunk must begin with a space, `+` or `-`"),
        };
        for side in self.sides(kind) {
            if side.lacks_newline() {
                return Err("a line without a newline must be the last one of its side");
            }
            side.text.push_str(text);
            side.lines += 1;
        }
        self.added += usize::from(kind == Kind::Added);
        self.removed += usize::from(kind == Kind::Removed);
        self.last = Some(kind);
        Ok(())
    }

    /// Heeds `\ No newline at end of file`.
    fn drop_newline(&mut self, marker: &str) -> Result<(), &'static str> {
        let last = self.last.take().ok_or("there is no line above whose newline could be missing")?;
        // In a patch that has CRLF everywhere, the return is not part of the line.
        let end = if marker.ends_with("\r\n") { "\r\n" } else { "\n" };
        for side in self.sides(last) {
            let kept = side.text.strip_suffix(end).or(side.text.strip_suffix('\n')).map_or(0, str::len);
            side.text.truncate(kept);
            if !side.lacks_newline() {
                return Err("an empty line cannot be without a newline");
            }
        }
        Ok(())
    }

    /// Where a line goes.
    fn sides(&mut self, kind: Kind) -> impl Iterator<Item = &mut Side> {
        let old = (kind != Kind::Added).then_some(&mut self.old);
        old.into_iter().chain((kind != Kind::Removed).then_some(&mut self.new))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use crate::diff::tests::{check_read, read};

    #[track_caller]
    fn check(hunk: &str, expected: Expect) {
        check_read(&format!("--- f\n+++ f\n{hunk}"), expected);
    }

    #[test]
    fn a_hunk_has_numbers() {
        check(
            "@@\n-x\n+y\n",
            expect![
                "line 3 of the patch: a hunk begins with a line like `@@ -12,7 +12,8 @@`, where line numbers begin at 1 and fit in 32 bits"
            ],
        );
        for bad in [
            "@@ fn main() @@",
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
            let said = read(&format!("--- f\n+++ f\n{bad}\n-x\n+y\n"));
            assert!(said.starts_with("line 3 of the patch: a hunk begins with a line like "), "{bad}: {said}");
        }
        check("@@ -4294967294 +1 @@\n-x\n+y\n", expect![[r#"Modify f, 4294967294: "x\n" -> "y\n""#]]);
    }

    #[test]
    fn a_hunk_is_read_by_its_counts() {
        check(
            "@@ -1,3 +1,3 @@ f\n a\n--- x\n+++ y\n b\n",
            expect![[r#"Modify f, 1: "a\n-- x\nb\n" -> "a\n++ y\nb\n""#]],
        );
        check("@@ -1,3 +1,3 @@\n a\n\n-x\n+y\n", expect![[r#"Modify f, 1: "a\n\nx\n" -> "a\n\ny\n""#]]);
        check("@@ -1,2 +1 @@\r\n a\r\n-b\r\n", expect![[r#"Modify f, 1: "a\r\nb\r\n" -> "a\r\n""#]]);
        check(
            "@@ -1 +1,3 @@\n a\r\n\n",
            expect!["line 3 of the patch: the hunk should have 1 old and 3 new lines, but has 1 and 1"],
        );
        check(
            "@@ -1,4 +1,2 @@\n a\n-b\n+c\n",
            expect!["line 3 of the patch: the hunk should have 4 old and 2 new lines, but has 2 and 2"],
        );
        check(
            "@@ -1,4 +1,4 @@\n a\n-b\n+c\n@@ -9 +9 @@\n-x\n+y\n",
            expect!["line 3 of the patch: the hunk should have 4 old and 4 new lines, but has 2 and 2"],
        );
        check(
            "@@ -1,3 +1,3 @@\n a\n-b\n+c\n--- g\n+++ g\n@@ -9 +9 @@\n-x\n+y\n",
            expect![[r#"Modify f, 1: "a\nb\n-- g\n" -> "a\nc\n++ g\n", 9: "x\n" -> "y\n""#]],
        );
        check(
            "@@ -1,2 +1,2 @@\n a\n-b\n+c\n d\n",
            expect!["line 3 of the patch: the hunk should have 2 old and 2 new lines, but has 3 and 3"],
        );
        check(
            "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\n+d\n--\n",
            expect!["line 3 of the patch: the hunk should have 2 old and 2 new lines, but has 3 and 4"],
        );
        check(
            "@@ -1,2 +1 @@\n a\n--\n-b\n",
            expect!["line 3 of the patch: the hunk should have 2 old and 1 new lines, but has 3 and 1"],
        );
        check(
            "@@ -1 +1 @@\n-a\n-b\n+c\n",
            expect!["line 3 of the patch: the hunk should have 1 old and 1 new lines, but has 2 and 1"],
        );
        check(
            "@@ -1,2 +1,2 @@\n a\nb\n",
            expect!["line 5 of the patch: a line of a hunk must begin with a space, `+` or `-`"],
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
            expect!["line 4 of the patch: there is no line above whose newline could be missing"],
        );
        check(
            &format!("@@ -1 +1 @@\n-a\n+b\n{marker}\n{marker}\n"),
            expect!["line 7 of the patch: there is no line above whose newline could be missing"],
        );
        check(
            &format!("@@ -1 +1 @@\n-a\n+\n{marker}\n"),
            expect!["line 6 of the patch: an empty line cannot be without a newline"],
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
