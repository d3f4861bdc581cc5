//! Unified diff parser: files, each with its header and hunks.
//!
//! Text around a diff, such as the message of a commit, is ignored unless it is forbidden.

use std::collections::HashMap;

use ringfence_kernel::ToolError;

use crate::patch::header::{GitHeader, names_differ_error, read_names};
use crate::patch::hunk::{HEADER_LIKE, read_hunk};
use crate::patch::lines::{PatchLineCursor, syntax_error, with_last_newline};
use crate::patch::{FilePatch, PatchFormat, PatchHunk, PatchKind, v4a};

/// Each holds a few descriptors until all are changed, and a process may often have no more than 1,024.
const MOST_FILES: usize = 200;
const MOST_HUNKS: usize = 10_000;

/// Reads a diff of at least one file. No two have the same path.
pub(crate) fn parse(patch: &str) -> Result<Vec<FilePatch>, ToolError> {
    let patch = with_last_newline(patch);
    if let Some(lines) = v4a::find_start(PatchLineCursor::new(&patch)) {
        return v4a::parse(lines);
    }
    let mut lines = strip_code_fence(PatchLineCursor::new(&patch))?;
    let mut files: Vec<FilePatch> = Vec::new();
    let mut named = HashMap::new();
    let mut hunks = 0;
    while lines.peek().is_some() {
        let number = lines.number;
        let Some(start) = PatchSectionStart::of(lines)? else {
            lines.next();
            continue;
        };
        let file = read_file(&mut lines, start)?;
        if files.first().is_some_and(|first| first.path.is_none() || file.path.is_none()) {
            let problem = "a diff of several files, or with text between its hunks, must name the file of each hunk";
            return Err(syntax_error(number, problem).hint("put `--- a/…` and `+++ b/…` above the hunks of a file"));
        }
        if let Some(earlier) = named.insert(file.path.clone(), number) {
            let problem = format!("the same file is already at line {earlier}");
            return Err(syntax_error(number, problem).hint("put all hunks of a file below one header"));
        }
        hunks += file.hunks.len();
        files.push(file);
        check_counts(files.len(), hunks)?;
    }
    if files.is_empty() {
        let wanted = format!("expected a unified diff: `--- a/…` and `+++ b/…`, and {HEADER_LIKE}");
        return Err(ToolError::invalid("patch", "has no hunk").hint(&wanted));
    }
    Ok(files)
}

pub(super) fn check_counts(files: usize, hunks: usize) -> Result<(), ToolError> {
    if files <= MOST_FILES && hunks <= MOST_HUNKS {
        return Ok(());
    }
    let problem = format!("has more than {MOST_FILES} files or {MOST_HUNKS} hunks");
    Err(ToolError::invalid("patch", &problem).hint("apply it in parts"))
}

/// The contents of the markdown code fence that has the diff in it; everything, if there is no such fence.
fn strip_code_fence(patch: PatchLineCursor<'_>) -> Result<PatchLineCursor<'_>, ToolError> {
    let mut lines = patch;
    while let Some(line) = lines.peek() {
        if PatchSectionStart::of(lines)?.is_some() {
            return Ok(patch);
        }
        lines.next();
        if !line.starts_with("```") {
            continue;
        }
        let inside = lines;
        while lines.peek().is_some_and(|line| !closes_fence(line)) {
            lines.next();
        }
        let fenced = inside.up_to(lines);
        lines.next();
        if !has_start(fenced)? {
            continue;
        }
        // A line of a hunk that lost its first character may look like the end of the fence.
        for line in lines.by_ref() {
            if line.starts_with(['+', '-', ' ', '@', '\\']) {
                let problem = "the patch continues after the end of its code fence";
                return Err(syntax_error(lines.number - 1, problem).hint("send only the diff, without the ``` lines"));
            }
        }
        return Ok(fenced);
    }
    Ok(patch)
}

fn closes_fence(line: &str) -> bool {
    line.starts_with("```") && line.trim_end().bytes().all(|byte| byte == b'`')
}

fn has_start(mut lines: PatchLineCursor<'_>) -> Result<bool, ToolError> {
    while lines.peek().is_some() {
        if PatchSectionStart::of(lines)?.is_some() {
            return Ok(true);
        }
        lines.next();
    }
    Ok(false)
}

/// The first line of a file's part of a diff.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PatchSectionStart {
    Git,
    FileNames,
    Hunk,
}

impl PatchSectionStart {
    /// The kind of part that begins at the next line. Text around the diff is `None`, and malformed starts are an
    /// error.
    fn of(lines: PatchLineCursor<'_>) -> Result<Option<Self>, ToolError> {
        let begins = |starts: &[&str]| starts.iter().any(|start| lines.begin_with(start));
        let binary =
            begins(&["Binary files "]) && lines.peek().is_some_and(|line| line.trim_end().ends_with(" differ"));
        let problem = if begins(&["@@@", "diff --cc ", "diff --combined "]) {
            "a combined diff of a merge cannot be applied; make a diff against one version"
        } else if begins(&["diff --git "]) {
            return Ok(Some(Self::Git));
        } else if begins(&["@@"]) {
            return Ok(Some(Self::Hunk));
        } else if lines.at_file_names() {
            return Ok(Some(Self::FileNames));
        } else if begins(&["--- ", "+++ "]) && lines.after_next().begin_with("@@") {
            "the header of a file has two lines, `--- a/…` and then `+++ b/…`"
        } else if begins(&["GIT binary patch"]) || binary {
            "a binary patch cannot be applied; remove it"
        } else if begins(&["***************"]) || (begins(&["*** "]) && lines.after_next().begin_with("--- ")) {
            "unsupported format; expected a unified diff, as `diff -u` and `git diff` print it"
        } else {
            return Ok(None);
        };
        Err(syntax_error(lines.number, problem))
    }
}

fn read_file(lines: &mut PatchLineCursor<'_>, start: PatchSectionStart) -> Result<FilePatch, ToolError> {
    let number = lines.number;
    let git = if start == PatchSectionStart::Git { Some(GitHeader::read(lines)?) } else { None };
    let named = PatchSectionStart::of(*lines)? == Some(PatchSectionStart::FileNames);
    let (change, path) = match git {
        Some(git) if named => git
            .confirm(read_names(lines)?)
            .ok_or_else(|| syntax_error(number, "`diff --git` and the lines below it contradict `---` and `+++`"))?,
        Some(git) => {
            (git.change.unwrap_or(PatchKind::Modify), Some(git.path.ok_or_else(|| names_differ_error(number))?))
        }
        None if named => read_names(lines)?,
        None => (PatchKind::Modify, None),
    };
    if path.as_ref().is_some_and(String::is_empty) {
        return Err(syntax_error(number, "the file has no name"));
    }
    let hunks = read_hunks(lines, change)?;
    // Only git can say that an empty file comes or goes, and then it leaves `---` and `+++` out.
    let empty = change != PatchKind::Modify && !named && !lines.at_hunk_line();
    if hunks.is_empty() && !empty {
        PatchSectionStart::of(*lines)?;
        return Err(syntax_error(number, format!("no hunk follows the header of the file; {HEADER_LIKE}")));
    }
    Ok(FilePatch { change, path, moved_to: None, format: PatchFormat::Unified, hunks })
}

fn read_hunks(lines: &mut PatchLineCursor<'_>, change: PatchKind) -> Result<Vec<PatchHunk>, ToolError> {
    let mut hunks: Vec<PatchHunk> = Vec::new();
    lines.skip_blank();
    while PatchSectionStart::of(*lines)? == Some(PatchSectionStart::Hunk) {
        let number = lines.number;
        let hunk = read_hunk(lines)?;
        let problem = if change == PatchKind::Create && (hunk.old.lines > 0 || !hunks.is_empty()) {
            "a created file has one hunk, `@@ -0,0 +1,n @@`, and no old lines"
        } else if change == PatchKind::Delete && hunk.new.lines > 0 {
            "a deleted file has no new lines, `@@ -1,n +0,0 @@`"
        } else if hunks.last().is_some_and(PatchHunk::reaches_end) {
            "the hunk above is the end of the file, by its `\\ No newline at end of file`"
        } else {
            hunks.push(hunk);
            continue;
        };
        return Err(syntax_error(number, problem));
    }
    Ok(PatchHunk::without_repetitions(hunks))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::parse;
    use crate::patch::tests::check_read as check;

    #[test]
    fn bare_hunks_are_one_file_without_a_name() {
        check("@@ -1 +1 @@\n-x\n+y\n", expect![[r#"Modify -, 1: "x\n" -> "y\n""#]]);
        check(
            "the change:\n\n@@ -1 +1 @@\n-x\n+y\n\n@@ -9 +9 @@ fn f() {\n-x\n+y",
            expect![[r#"Modify -, 1: "x\n" -> "y\n", 9: "x\n" -> "y\n""#]],
        );
        check(
            "@@ -1 +1 @@\n-x\n+y\nand then\n@@ -9 +9 @@\n-x\n+y\n",
            expect![
                "line 5 of the patch: a diff of several files, or with text between its hunks, must name the file of each hunk"
            ],
        );
        check(
            "@@ -1 +1 @@\n-x\n+y\n--- f\n+++ f\n@@ -9 +9 @@\n-x\n+y\n",
            expect![
                "line 4 of the patch: a diff of several files, or with text between its hunks, must name the file of each hunk"
            ],
        );
        check(
            "--- f\n+++ f\n@@ -1 +1 @@\n-x\n+y\nIndex: g\n@@ -9 +9 @@\n-x\n+y\n",
            expect![
                "line 7 of the patch: a diff of several files, or with text between its hunks, must name the file of each hunk"
            ],
        );
    }

    #[test]
    fn an_unsupported_patch_is_refused() {
        for (patch, expected) in [
            (
                "diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n",
                expect!["line 3 of the patch: the old and the new name differ, but a patch cannot rename or copy"],
            ),
            (
                "diff --git a/f b/g\nsimilarity index 90%\ncopy from f\ncopy to g\n",
                expect!["line 3 of the patch: the old and the new name differ, but a patch cannot rename or copy"],
            ),
            (
                "diff --git a/f b/f\nold mode 100644\nnew mode 100755\n",
                expect!["line 2 of the patch: a patch cannot change modes"],
            ),
            (
                "diff --git a/f b/f\nnew file mode 100755\n",
                expect!["line 2 of the patch: a patch can create only a plain file, of mode 100644"],
            ),
            (
                "diff --git a/f b/f\nnew file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+/etc\n",
                expect!["line 2 of the patch: a patch can create only a plain file, of mode 100644"],
            ),
            (
                "diff --git a/f b/f\nindex 1..2 120000\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n",
                expect!["line 2 of the patch: a patch can change only a plain file, of mode 100644 or 100755"],
            ),
            (
                "diff --git a/f b/f\nindex 1..2 100644\nGIT binary patch\nliteral 3\n",
                expect!["line 3 of the patch: a binary patch cannot be applied"],
            ),
            (
                "diff --git a/f b/f\nindex 1..2 100644\nBinary files a/f and b/f differ\n",
                expect!["line 3 of the patch: a binary patch cannot be applied"],
            ),
            (
                "--- f\n+++ f\n@@ -1 +1 @@\n-x\n+y\nBinary files a/g and b/g differ\n",
                expect!["line 6 of the patch: a binary patch cannot be applied"],
            ),
            (
                "diff --cc f\nindex 1,2..3\n--- a/f\n+++ b/f\n@@@ -1,1 -1,1 +1,1 @@@\n",
                expect!["line 1 of the patch: a combined diff of a merge cannot be applied"],
            ),
            (
                "--- a/f\n+++ b/f\n@@@ -1,1 -1,1 +1,1 @@@\n",
                expect!["line 3 of the patch: a combined diff of a merge cannot be applied"],
            ),
            (
                "*** a/f\t2026\n--- b/f\t2026\n***************\n*** 1 ****\n! x\n--- 1 ----\n! y\n",
                expect!["line 1 of the patch: unsupported format"],
            ),
            (
                "*** Begin Patch\n*** Update File: f\n@@\n-x\n+y\n*** End Patch\n",
                expect![[r#"Modify f, ?: "x\n" -> "y\n""#]],
            ),
        ] {
            check(patch, expected);
        }
    }

    #[test]
    fn text_around_a_diff_is_ignored() {
        check(
            "From 1\nSubject: x\n\n```\n*** stars\n\n--- dashes\n```\n---\n f | 2 +-\n\nIndex: f\n=====\n--- f\n+++ f\n\
             @@ -1 +1 @@\n-x\n+y\n\nIndex: g\n=====\n--- g\n+++ g\n@@ -1 +1 @@\n-x\n+y\n-- \n2.47.3\n\n",
            expect![[r#"Modify f, 1: "x\n" -> "y\n"; Modify g, 1: "x\n" -> "y\n""#]],
        );
    }

    #[test]
    fn a_code_fence_around_a_diff_is_not_part_of_it() {
        let diff = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n";
        for (before, after) in [
            ("```diff\n", "```\n"),
            ("```\n", "```"),
            ("Here it is:\n\n```patch\n", "```\n\nThat is all.\n"),
            ("````\n", "````\n"),
            ("```\nan example\n```\nand\n```diff\n", "```\n"),
            ("```diff\n", ""),
        ] {
            check(&format!("{before}{diff}{after}"), expect![[r#"Modify f, 1: "x\n" -> "y\n""#]]);
        }
        for after in ["```\n+z\n", "```\n```diff\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n```\n", "```\n z\n"] {
            let said = crate::patch::tests::read(&format!("```diff\n{diff}{after}"));
            assert!(said.ends_with("the patch continues after the end of its code fence"), "{said}");
        }
    }

    #[test]
    fn advice_says_what_to_do_next() {
        for (patch, advice) in [
            ("", "expected a unified diff"),
            ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-x\n+y\n", "use move_file first"),
            ("*** Begin Patch\n", "put `*** Update File: ` and a path below"),
            ("```\n@@ -1 +1 @@\n-x\n+y\n```\n+z\n", "send only the diff, without the ``` lines"),
            ("--- f\n+++ f\n@@\n-x\n--- g\n+++ g\n@@\n-y\n", "start the names with `a/` and `b/`"),
        ] {
            let message = parse(patch).unwrap_err().message;
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    fn a_diff_has_hunks() {
        check("", expect!["patch has no hunk"]);
        check("please fix it", expect!["patch has no hunk"]);
        check("--- f\n+++ f\n", expect!["line 1 of the patch: no hunk follows the header of the file"]);
        check("--- f\n+++ f\n-x\n+y\n", expect!["line 1 of the patch: no hunk follows the header of the file"]);
        check(
            "--- f\n@@ -1 +1 @@\n-x\n+y\n",
            expect!["line 1 of the patch: the header of a file has two lines, `--- a/…` and then `+++ b/…`"],
        );
        check(
            "+++ f\n@@ -1 +1 @@\n-x\n+y\n",
            expect!["line 1 of the patch: the header of a file has two lines, `--- a/…` and then `+++ b/…`"],
        );
    }

    #[test]
    fn there_are_only_so_many_files_and_hunks_and_each_file_once() {
        let file = |name: usize| format!("--- {name}\n+++ {name}\n@@ -1 +1 @@\n-x\n+y\n");
        let files = |count: usize| (0..count).map(file).collect::<String>();
        assert_eq!(parse(&files(200)).unwrap().len(), 200);
        check(&files(201), expect!["patch has more than 200 files or 10000 hunks"]);
        let hunks =
            |count: usize| (1..=count).map(|line| format!("@@ -{line} +{line} @@\n-x\n+y\n")).collect::<String>();
        assert_eq!(parse(&hunks(10_000)).unwrap()[0].hunks.len(), 10_000);
        check(&hunks(10_001), expect!["patch has more than 200 files or 10000 hunks"]);
        check(&(file(1) + &file(2) + &file(1)), expect!["line 11 of the patch: the same file is already at line 1"]);
        check(
            &(file(1) + "--- a/1\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"),
            expect!["line 6 of the patch: the same file is already at line 1"],
        );
    }
}
