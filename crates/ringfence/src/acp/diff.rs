//! ACP diff content: path, old text and new text of every hunk of a preview, or of a patch that a model sent.
//!
//! A hunk of a patch is as long as its header says, so that no line of a file is taken for a header. Text that is not a
//! diff stays text.
//!
//! Not here: making diffs. A preview has them.

use ringfence_kernel::{DiffHunk, DiffLineChange, DiffPart, FileDiff, LineDiff};

/// One stretch of a file that changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AcpHunk {
    pub(super) path: String,
    /// The first line of it, as it is now or shall be.
    pub(super) line: u64,
    /// Nothing for a file that comes to be.
    pub(super) old: Option<String>,
    pub(super) new: String,
}

/// A text with diffs in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TextWithDiffs {
    pub(super) text: String,
    pub(super) hunks: Vec<AcpHunk>,
}

/// The hunks of a preview.
pub(super) fn hunks_of(diff: &LineDiff) -> Vec<AcpHunk> {
    let files = diff.parts.iter().filter_map(|part| match part {
        DiffPart::File(file) => Some(file),
        DiffPart::Note { .. } => None,
    });
    let hunk = |file: &FileDiff, hunk: &DiffHunk| AcpHunk {
        path: file.new_path.as_ref().or(file.old_path.as_ref()).cloned().unwrap_or_default(),
        line: if hunk.new.count == 0 { hunk.old.first } else { hunk.new.first }.max(1),
        old: file.old_path.as_ref().map(|_| hunk.side(DiffLineChange::Removed)),
        new: hunk.side(DiffLineChange::Added),
    };
    files.flat_map(|file| file.hunks.iter().map(move |stretch| hunk(file, stretch))).collect()
}

/// Takes a patch apart that a model sent.
pub(super) fn parse_diffs(text: &str) -> TextWithDiffs {
    let mut shown = TextWithDiffs::default();
    let mut lines = text.lines().peekable();
    let mut file: Option<(Option<String>, String)> = None;
    while let Some(line) = lines.next() {
        if let Some(old) = line.strip_prefix("--- ")
            && let Some(new) = lines.next_if(|next| next.starts_with("+++ "))
        {
            file = Some(file_names(old, new.trim_start_matches("+++ ")));
            continue;
        }
        match (&file, AcpHunkHeader::parse(line)) {
            (Some((old, path)), Some(header)) => {
                let line = header.line;
                let (before, after) = header.take_sides(&mut lines);
                let old = old.as_ref().map(|_| before);
                shown.hunks.push(AcpHunk { path: path.clone(), line, old, new: after });
            }
            _ => {
                shown.text.push_str(line);
                shown.text.push('\n');
            }
        }
    }
    shown
}

/// The name of the old file, if there was one, and the name that counts.
fn file_names(old: &str, new: &str) -> (Option<String>, String) {
    let name = |text: &str, side: &str| match text {
        "/dev/null" => None,
        text => Some(text.strip_prefix(side).unwrap_or(text).to_owned()),
    };
    let (old, new) = (name(old, "a/"), name(new, "b/"));
    let path = new.or_else(|| old.clone()).unwrap_or_default();
    (old, path)
}

/// The header of a hunk.
struct AcpHunkHeader {
    line: u64,
    old: u64,
    new: u64,
}

impl AcpHunkHeader {
    /// Of a line such as `@@ -1,3 +1,4 @@`.
    fn parse(line: &str) -> Option<Self> {
        let (old, rest) = line.strip_prefix("@@ -")?.split_once(" +")?;
        let (new, _) = rest.split_once(" @@")?;
        let span = |text: &str| -> Option<(u64, u64)> {
            let (first, count) = text.split_once(',').unwrap_or((text, "1"));
            Some((first.parse().ok()?, count.parse().ok()?))
        };
        let ((was, old), (is, new)) = (span(old)?, span(new)?);
        Some(Self { line: if new == 0 { was } else { is }.max(1), old, new })
    }

    /// The lines that were and those that shall be.
    fn take_sides<'a>(mut self, lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> (String, String) {
        let (mut before, mut after) = (String::new(), String::new());
        let mut last = ' ';
        while let Some(line) = lines.peek() {
            let Some(mark) = line.chars().next() else { break };
            if mark == '\\' {
                let ended = |side: &mut String| side.truncate(side.strip_suffix('\n').map_or(side.len(), str::len));
                if last != '+' {
                    ended(&mut before);
                }
                if last != '-' {
                    ended(&mut after);
                }
                lines.next();
                continue;
            }
            let (is_old, is_new) = (matches!(mark, ' ' | '-'), matches!(mark, ' ' | '+'));
            if (!is_old && !is_new) || (is_old && self.old == 0) || (is_new && self.new == 0) {
                break;
            }
            let text = &line[1..];
            if is_old {
                self.old -= 1;
                before.push_str(text);
                before.push('\n');
            }
            if is_new {
                self.new -= 1;
                after.push_str(text);
                after.push('\n');
            }
            last = mark;
            lines.next();
        }
        (before, after)
    }
}

#[cfg(test)]
mod tests {
    use super::{AcpHunk, parse_diffs};

    fn hunk(path: &str, line: u64, old: Option<&str>, new: &str) -> AcpHunk {
        AcpHunk { path: path.to_owned(), line, old: old.map(str::to_owned), new: new.to_owned() }
    }

    #[test]
    fn every_hunk_is_a_text_that_goes_and_one_that_comes() {
        let text = "write `f`\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n@@ -9,1 +9,2 @@\n-x\n\\ No newline at end of file\n+x\n+y\n";
        let found = parse_diffs(text);
        assert_eq!(found.text, "write `f`\n");
        let first = hunk("f", 1, Some("one\ntwo\n"), "one\n2\n");
        assert_eq!(found.hunks, [first, hunk("f", 9, Some("x"), "x\ny\n")]);
    }

    #[test]
    fn files_come_to_be_and_go() {
        let found = parse_diffs(
            "--- /dev/null\n+++ b/new\n@@ -0,0 +1,1 @@\n+hello\n--- a/old\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-bye\n",
        );
        assert_eq!(found.hunks, [hunk("new", 1, None, "hello\n"), hunk("old", 1, Some("bye\n"), "")]);
        assert_eq!(found.text, "");
    }

    #[test]
    fn a_line_that_looks_like_a_header_is_a_line() {
        let found = parse_diffs("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n--- a/g\n-@@ -1,1 +1,1 @@\n+++ b/g\n+x\n");
        assert_eq!(found.hunks, [hunk("f", 1, Some("-- a/g\n@@ -1,1 +1,1 @@\n"), "++ b/g\nx\n")]);
    }

    #[test]
    fn text_without_a_diff_is_kept() {
        for text in ["", "delete `a`\nb (3 bytes)\n", "@@ -1,1 +1,1 @@\n-a\n+b\n", "--- a\n"] {
            let found = parse_diffs(text);
            assert_eq!((found.text.as_str(), found.hunks.len()), (text, 0));
        }
        let cut = parse_diffs("--- a/f\n+++ b/f\n@@ -1,9 +1,9 @@\n-a\n… the diff is cut here: 3 bytes\n");
        assert_eq!(cut.text, "… the diff is cut here: 3 bytes\n");
        assert_eq!(cut.hunks, [hunk("f", 1, Some("a\n"), "")]);
    }
}
