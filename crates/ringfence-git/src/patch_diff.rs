//! Patches of git as line diffs: files, hunks and lines, for cards.
//!
//! A hunk has as many lines as its header says, so contents never pass for a header. What is not a hunk of a file becomes
//! words.
//!
//! Not here: what may be shown of a patch (`output_filter.rs`).

use ringfence_kernel::{DiffHunk, DiffLine, DiffLineChange, DiffPart, DiffRange, FileDiff, LineDiff};

use crate::output_filter::{is_file_header, unquote};

/// Most lines of a patch that are looked at.
const MAX_LINES: usize = 20_000;

/// The files of a patch.
pub(crate) fn parse_patch(text: &str) -> LineDiff {
    let mut parts = Vec::new();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut lines = text.split('\n').take(MAX_LINES).peekable();
    while let Some(line) = lines.next() {
        if !is_file_header(line) {
            continue;
        }
        let mut section = vec![line];
        while let Some(next) = lines.next_if(|next| !is_file_header(next)) {
            section.push(next);
        }
        parts.push(parse_file(&section));
    }
    LineDiff { parts }
}

/// One file. Without hunks it is words: its mode changed, it is binary, or its contents are not shown.
fn parse_file(section: &[&str]) -> DiffPart {
    let header_length = section.iter().position(|line| line.starts_with("@@")).unwrap_or(section.len());
    let (header, body) = section.split_at(header_length);
    let path = |start: &str, prefix: &str| {
        let name = header.iter().find_map(|line| line.strip_prefix(start))?;
        let name = unquote(name.strip_suffix('\t').unwrap_or(name))?;
        if name == "/dev/null" { Some(None) } else { Some(Some(name.strip_prefix(prefix)?.to_owned())) }
    };
    let words = || DiffPart::Note { text: section.join("\n") };
    let (Some(old_path), Some(new_path)) = (path("--- ", "a/"), path("+++ ", "b/")) else { return words() };
    let mut file = FileDiff { old_path, new_path, hunks: Vec::new() };
    let mut rest = body.iter();
    while let Some(line) = rest.next() {
        let Some((old, new)) = parse_ranges(line) else { return words() };
        let mut hunk = DiffHunk { old, new, lines: Vec::new() };
        let (mut old_left, mut new_left) = (old.count, new.count);
        while old_left > 0 || new_left > 0 {
            let Some(line) = rest.next() else { break };
            let (change, from_old, from_new) = match line.as_bytes().first() {
                Some(b'+') => (DiffLineChange::Added, 0, 1),
                Some(b'-') => (DiffLineChange::Removed, 1, 0),
                Some(b' ') | None => (DiffLineChange::Unchanged, 1, 1),
                Some(b'\\') => {
                    mark_unterminated(&mut hunk);
                    continue;
                }
                Some(_) => return words(),
            };
            (old_left, new_left) = (old_left.saturating_sub(from_old), new_left.saturating_sub(from_new));
            let text = line.get(1..).unwrap_or_default().to_owned();
            hunk.lines.push(DiffLine { change, text, unterminated: false });
        }
        if rest.clone().next().is_some_and(|line| line.starts_with('\\')) {
            rest.next();
            mark_unterminated(&mut hunk);
        }
        file.hunks.push(hunk);
        // A log has an empty line before the next commit.
        if rest.clone().all(|line| line.is_empty()) {
            break;
        }
    }
    if file.hunks.is_empty() { words() } else { DiffPart::File(file) }
}

fn mark_unterminated(hunk: &mut DiffHunk) {
    hunk.lines.last_mut().into_iter().for_each(|line| line.unterminated = true);
}

/// The ranges of `@@ -1,2 +3 @@`.
fn parse_ranges(line: &str) -> Option<(DiffRange, DiffRange)> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    Some((parse_range(old)?, parse_range(new)?))
}

fn parse_range(text: &str) -> Option<DiffRange> {
    let (first, count) = text.split_once(',').unwrap_or((text, "1"));
    Some(DiffRange { first: first.parse().ok()?, count: count.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(patch: &str, expected: &str) {
        assert_eq!(parse_patch(patch).to_string().trim_end(), expected.trim_end(), "{patch}");
    }

    #[test]
    fn a_patch_of_git_is_a_diff() {
        let changed = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n--- b\n+++ c\n";
        check(&format!("diff --git a/x b/x\nindex 1..2 100644\n{changed}"), changed);
        let created = "--- /dev/null\n+++ b/n m\n@@ -0,0 +1,1 @@\n+diff --git a/y b/y\n";
        let header = "diff --git a/n m b/n m\nnew file mode 100644\n";
        check(&format!("{header}--- /dev/null\n+++ b/n m\t\n@@ -0,0 +1 @@\n+diff --git a/y b/y\n"), created);
        let cut = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@ fn main\n-a\n";
        check(cut, "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n");
        let open =
            "--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n";
        check(&format!("diff --git a/x b/x\n{open}"), open);
        let quoted = "diff --git \"a/\\303\\244\" \"b/\\303\\244\"\n--- \"a/\\303\\244\"\n+++ \"b/\\303\\244\"\n@@ -1 +1 @@\n-a\n+b\n\n";
        check(quoted, "--- a/ä\n+++ b/ä\n@@ -1,1 +1,1 @@\n-a\n+b\n");
    }

    #[test]
    fn what_has_no_hunks_is_words() {
        for patch in [
            "diff --git a/x b/x\nold mode 100644\nnew mode 100755",
            "diff --git a/.env b/.env\n[contents not shown: the file may not be read without approval]",
            "diff --cc x\nindex 1,2..3\n--- a/x\n+++ b/x\n@@@ -1,1 -1,1 +1,2 @@@\n++a",
            "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n?",
            "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -99999999999999999999 +1 @@",
        ] {
            assert_eq!(parse_patch(patch).parts, [DiffPart::Note { text: patch.to_owned() }]);
        }
        assert!(parse_patch("no patch\n").parts.is_empty());
    }
}
