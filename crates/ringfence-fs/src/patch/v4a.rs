//! V4A patches: `*** Begin Patch`, the format that GPT models are trained with.
//!
//! Hunks are found by their lines alone. `@@` lines name what is above them, and `*** End of File` the place below.
//! The shell command that a patch may be wrapped in, and text around it, are not part of it.

use std::collections::HashMap;

use ringfence_kernel::ToolError;

use crate::edit::line_body;
use crate::patch::hunk::{ContextMark, HunkParser, anchor};
use crate::patch::lines::{PatchLineCursor, is_blank, syntax_error};
use crate::patch::parse::check_counts;
use crate::patch::{FilePatch, PatchFormat, PatchHunk, PatchKind};

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const END_OF_FILE: &str = "*** End of File";
const MOVE_TO: &str = "*** Move to:";

/// The first line of a file's part of a patch.
const FILE_STARTS: [(&str, PatchKind); 3] = [
    ("*** Add File:", PatchKind::Create),
    ("*** Update File:", PatchKind::Modify),
    ("*** Delete File:", PatchKind::Delete),
];

/// The start of a V4A patch, unless a unified diff begins before it.
pub(super) fn find_start(mut lines: PatchLineCursor<'_>) -> Option<PatchLineCursor<'_>> {
    while let Some(line) = lines.peek() {
        if line.trim() == BEGIN || file_start(line).is_some() {
            return Some(lines);
        }
        if line.starts_with("@@") || line.starts_with("diff --git ") || lines.at_file_names() {
            return None;
        }
        lines.next();
    }
    None
}

/// Reads the files of a patch. Several parts about the same file are one.
pub(super) fn parse(mut lines: PatchLineCursor<'_>) -> Result<Vec<FilePatch>, ToolError> {
    let mut files: Vec<FilePatch> = Vec::new();
    let mut named: HashMap<String, (usize, usize)> = HashMap::new();
    if lines.peek().is_some_and(|line| line.trim() == BEGIN) {
        lines.next();
    }
    let mut hunks = 0;
    while let Some(line) = lines.peek() {
        let number = lines.number;
        if ends_patch(line) {
            break;
        }
        let Some((change, path)) = file_start(line) else {
            if is_blank(line) {
                lines.next();
                continue;
            }
            // What follows the files of a patch without its last line.
            if !files.is_empty() && !lines.has_marked_line() && !line.starts_with("***") {
                break;
            }
            let problem = "expected `*** Add File: `, `*** Update File: ` or `*** Delete File: ` and a path";
            return Err(syntax_error(number, problem));
        };
        lines.next();
        if path.is_empty() {
            return Err(syntax_error(number, "the file has no name"));
        }
        let file = read_file(&mut lines, change, path, number)?;
        hunks += file.hunks.len();
        check_counts(files.len() + 1, hunks)?;
        match named.get(path) {
            None => {
                named.insert(path.to_owned(), (files.len(), number));
                files.push(file);
            }
            Some(&(earlier, _)) if file.is_update() && files[earlier].is_update() => {
                let mut all = std::mem::take(&mut files[earlier].hunks);
                all.extend(file.hunks);
                files[earlier].hunks = PatchHunk::without_repetitions(all);
            }
            Some((_, earlier)) => {
                let problem = format!("the same file is already at line {earlier}");
                return Err(syntax_error(number, problem).hint("put all changes of a file below one header"));
            }
        }
    }
    if files.is_empty() {
        return Err(ToolError::invalid("patch", "changes no file")
            .hint("put `*** Update File: ` and a path below `*** Begin Patch`"));
    }
    Ok(files)
}

impl FilePatch {
    fn is_update(&self) -> bool {
        self.change == PatchKind::Modify && self.moved_to.is_none()
    }
}

fn file_start(line: &str) -> Option<(PatchKind, &str)> {
    FILE_STARTS.iter().find_map(|(start, change)| Some((*change, path_after(line, start)?)))
}

/// The path after the words of a header, with all its blanks but the one that separates it.
fn path_after<'p>(line: &'p str, start: &str) -> Option<&'p str> {
    let path = line_body(line.strip_prefix(start)?);
    Some(path.strip_prefix(' ').unwrap_or(path))
}

fn ends_patch(line: &str) -> bool {
    line.trim_end() == END
}

fn read_file(
    lines: &mut PatchLineCursor<'_>,
    change: PatchKind,
    path: &str,
    number: usize,
) -> Result<FilePatch, ToolError> {
    let moved_to = lines.peek().and_then(|line| path_after(line, MOVE_TO)).map(str::to_owned);
    if let Some(to) = &moved_to {
        if change != PatchKind::Modify || to.is_empty() || to == path {
            return Err(syntax_error(lines.number, "`*** Move to: ` needs another path, below `*** Update File: `"));
        }
        lines.next();
    }
    let hunks = match change {
        PatchKind::Create => vec![read_added(lines)?],
        PatchKind::Delete => Vec::new(),
        PatchKind::Modify => read_hunks(lines)?,
    };
    if change == PatchKind::Modify && hunks.is_empty() && moved_to.is_none() {
        return Err(syntax_error(number, "no change follows `*** Update File: `"));
    }
    let hunks = hunks.into_iter().filter(|hunk| change != PatchKind::Create || hunk.new.lines > 0).collect();
    Ok(FilePatch { change, path: Some(path.to_owned()), moved_to, format: PatchFormat::V4a, hunks })
}

/// The lines of a new file, each with its `+`.
fn read_added(lines: &mut PatchLineCursor<'_>) -> Result<PatchHunk, ToolError> {
    let mut reading = HunkParser::default();
    let mut blank = 0;
    while let Some(line) = lines.peek() {
        if is_blank(line) {
            // Between two lines it is one that lost its mark; after the last it is not part of the file.
            blank += 1;
        } else if line.starts_with('+') {
            for _ in 0..std::mem::take(&mut blank) {
                let _ = reading.push_line("+\n");
            }
            reading.push_line(line).map_err(|problem| syntax_error(lines.number, problem))?;
        } else if line.starts_with("***") || line.starts_with(END_OF_FILE) || !lines.has_marked_line() {
            break;
        } else {
            return Err(syntax_error(lines.number, "each line of an added file must start with `+`"));
        }
        lines.next();
    }
    if lines.peek().is_some_and(|line| line.trim_end() == END_OF_FILE) {
        lines.next();
    }
    Ok(reading.into_hunk(None))
}

fn read_hunks(lines: &mut PatchLineCursor<'_>) -> Result<Vec<PatchHunk>, ToolError> {
    let mut hunks: Vec<PatchHunk> = Vec::new();
    loop {
        lines.skip_blank();
        let mut anchors = Vec::new();
        let number = lines.number;
        let headed = lines.begin_with("@@");
        let is_marked = ["+", "-", " "].iter().any(|mark| lines.begin_with(mark));
        if !headed && !is_marked && !hunks.is_empty() {
            return Ok(PatchHunk::without_repetitions(hunks));
        }
        while lines.begin_with("@@") {
            anchors.extend(lines.next().and_then(anchor));
        }
        let body = *lines;
        let hunk = read_hunk(lines, ContextMark::Space).or_else(|error| {
            *lines = body;
            read_hunk(lines, ContextMark::Missing).map_err(|_| error)
        })?;
        match hunk {
            Some(hunk) => hunks.push(PatchHunk { anchors, ..hunk }),
            None if headed => return Err(syntax_error(number, "the hunk has no lines")),
            None => return Ok(PatchHunk::without_repetitions(hunks)),
        }
    }
}

/// Reads to the next line that begins with `@@` or `***`. Nothing where there is no line.
fn read_hunk(lines: &mut PatchLineCursor<'_>, marks: ContextMark) -> Result<Option<PatchHunk>, ToolError> {
    let mut reading = HunkParser::with_marks(marks);
    let mut blank = Vec::new();
    let mut at_end = false;
    while let Some(line) = lines.peek() {
        if line.trim_end() == END_OF_FILE {
            at_end = true;
            lines.next();
            break;
        }
        if line.starts_with("@@") || line.starts_with("*** ") {
            break;
        }
        let is_marked = line.starts_with(['+', '-', ' ']);
        // What follows a patch without its last line.
        if !is_blank(line) && !is_marked && !reading.is_empty() && !lines.has_marked_line() {
            break;
        }
        if is_blank(line) {
            blank.push(line);
        } else {
            let taken = blank.drain(..).try_for_each(|line| reading.push_line(line));
            let taken = taken.and_then(|()| reading.push_line(line));
            taken.map_err(|problem| syntax_error(lines.number, problem))?;
        }
        lines.next();
    }
    Ok((!reading.is_empty()).then(|| PatchHunk { at_end, ..reading.into_hunk(None) }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::{Expect, expect};
    use ringfence_testkit::cpu_share::thread_cpu_time;

    use crate::patch::tests::check_read as check;
    use crate::patch::{apply, parse};

    #[test]
    fn every_part_is_read() {
        check(
            "*** Begin Patch\n*** Add File: a/b.txt\n+one\n+\n+two\n*** Delete File: gone\n*** Update File: f\n\
             *** Move to: g\n@@ class A\n@@   def f(self):\n x\n-y\n+z\n\n*** End of File\n*** End Patch\n",
            expect![[
                r#"Create a/b.txt, ?: "" -> "one\n\ntwo\n"; Delete gone; Modify f to g, ? <class A> <def f(self):>$: "x\ny\n" -> "x\nz\n""#
            ]],
        );
        check("*** Begin Patch\n*** Add File: empty\n*** End Patch\n", expect!["Create empty"]);
        check("*** Begin Patch\n*** Update File: f\n*** Move to: g\n*** End Patch\n", expect!["Modify f to g"]);
    }

    #[test]
    fn wrappers_and_careless_forms_are_understood() {
        let expected = || expect![[r#"Modify f, ?: "x\ny\n" -> "x\nz\n""#]];
        let body = "*** Update File: f\n@@\n x\n-y\n+z\n";
        for patch in [
            format!("*** Begin Patch\n{body}*** End Patch\n"),
            format!("*** Begin Patch\n{body}*** End Patch"),
            format!("*** Begin Patch\n{body}"),
            body.to_owned(),
            format!("apply_patch <<'EOF'\n*** Begin Patch\n{body}*** End Patch\nEOF\n"),
            format!("apply_patch <<'EOF'\n*** Begin Patch\n{body}EOF\n"),
            format!("Here it is:\n```\n*** Begin Patch\n{body}*** End Patch\n```\nThat is all.\n"),
            format!("*** Begin Patch\n{body}```\n"),
            format!("*** Begin Patch\n{body}\n\nThat is all.\n"),
            "*** Begin Patch\n*** Update File: f\n x\n-y\n+z\n*** End Patch\n".to_owned(),
            "*** Begin Patch\n*** Update File: f\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n*** End Patch\n".to_owned(),
            "*** Begin Patch\n*** Update File: f\n@@\nx\n-y\n+z\n*** End Patch\n".to_owned(),
            format!("*** Begin Patch\n{body}{body}*** End Patch\n"),
            format!("*** Begin Patch\n{body}@@\n x\n-y\n+z\n*** End Patch\n"),
        ] {
            expected().assert_eq(&crate::patch::tests::read(&patch));
        }
    }

    #[test]
    fn a_patch_that_says_nothing_is_refused() {
        check("*** Begin Patch\n*** End Patch\n", expect!["patch changes no file"]);
        check(
            "*** Begin Patch\n*** Update File: f\n*** End Patch\n",
            expect!["line 2 of the patch: no change follows `*** Update File: `"],
        );
        check("*** Begin Patch\n*** Update File:\n", expect!["line 2 of the patch: the file has no name"]);
        check(
            "*** Begin Patch\n*** Update File: f\n@@\n*** End Patch\n",
            expect!["line 3 of the patch: the hunk has no lines"],
        );
        check(
            "*** Begin Patch\n*** Add File: f\nx\n+y\n",
            expect!["line 3 of the patch: each line of an added file must start with `+`"],
        );
        check(
            "*** Begin Patch\n*** Rename File: f\n-x\n",
            expect![
                "line 2 of the patch: expected `*** Add File: `, `*** Update File: ` or `*** Delete File: ` and a path"
            ],
        );
        check(
            "*** Begin Patch\n*** Delete File: f\n*** Add File: f\n+x\n",
            expect!["line 3 of the patch: the same file is already at line 2"],
        );
    }

    #[track_caller]
    fn check_applied(text: &str, hunks: &str, expected: Expect) {
        let files = parse(&format!("*** Begin Patch\n*** Update File: f\n{hunks}*** End Patch\n")).unwrap();
        expected.assert_eq(&match apply(text, &files[0], "f") {
            Ok(applied) => format!("{:?}", applied.text),
            Err(error) => error.message,
        });
    }

    #[test]
    fn hunks_are_found_by_their_lines() {
        let text = "fn a() {\n    x();\n}\n\nfn b() {\n    x();\n}\n";
        check_applied(
            text,
            "@@ fn b() {\n-    x();\n+    y();\n",
            expect![[r#""fn a() {\n    x();\n}\n\nfn b() {\n    y();\n}\n""#]],
        );
        check_applied(
            text,
            "@@ fn a()\n-    x();\n+    y();\n",
            expect![[r#""fn a() {\n    y();\n}\n\nfn b() {\n    x();\n}\n""#]],
        );
        check_applied(
            text,
            "@@\n fn a() {\n-    x();\n+    y();\n@@\n-    x();\n+    z();\n",
            expect![[r#""fn a() {\n    y();\n}\n\nfn b() {\n    z();\n}\n""#]],
        );
        check_applied(
            text,
            "@@\n-    x();\n+    y();\n",
            expect![
                "hunk 1 matches several places in `f`, at lines 2, 6; add context lines; line numbers are used only if every hunk header of the file has correct counts"
            ],
        );
        check_applied(
            text,
            "@@\n x();\n }\n-\n fn b() {\n",
            expect![
                "hunk 1 is not in `f`: its old lines are not in the file; read the file again and regenerate the diff"
            ],
        );
        check_applied("a \nb\n", "@@\n a\n-b\n+c\n", expect![[r#""a \nc\n""#]]);
        check_applied("“a”\nb\n", "@@\n \"a\"\n-b\n+c\n", expect![[r#""“a”\nc\n""#]]);
        check_applied("a\nb\na\n", "@@\n-a\n+c\n*** End of File\n", expect![[r#""a\nb\nc\n""#]]);
        check_applied("a\nb", "@@\n+c\n*** End of File\n", expect![[r#""a\nb\nc\n""#]]);
        check_applied(
            "a\nb\n",
            "@@\n+c\n",
            expect!["hunk 1 only adds lines, and nothing says where in `f` they belong; add context lines"],
        );
        check_applied("a\nb\nc\n", "@@\n-c\n+z\n@@\n-a\n+x\n", expect![[r#""x\nb\nz\n""#]]);
    }

    #[test]
    fn a_hunk_is_never_above_the_line_that_its_anchor_names() {
        // The line of `b` has a blank at its end.
        check_applied(
            "fn a() {\n    x();\n}\nfn b() {\n    x(); \n}\n",
            "@@ fn b() {\n-    x();\n+    y();\n",
            expect![[r#""fn a() {\n    x();\n}\nfn b() {\n    y();\n}\n""#]],
        );
        check_applied(
            "fn a() {\n    x(); \n}\nfn b() {\n    x();\n}\n",
            "@@ fn a() {\n-    x();\n+    y();\n",
            expect![[r#""fn a() {\n    y();\n}\nfn b() {\n    x();\n}\n""#]],
        );
        check_applied(
            "fn a() {\n    x();\n}\nfn b() {\n    z();\n}\n",
            "@@ fn b() {\n-    x();\n+    y();\n",
            expect![
                "hunk 1 is not in `f` below line 4, which its `@@` line names: its old lines are only above; correct the `@@` line, or remove its text"
            ],
        );
        check_applied(
            "fn a() {\n    x(); \n}\nfn b() {\n    z();\n}\n",
            "@@ fn b() {\n-    x();\n+    y();\n",
            expect![
                "hunk 1 is not in `f` below line 4, which its `@@` line names: its old lines are only above; correct the `@@` line, or remove its text"
            ],
        );
        // An anchor that is not in the file says nothing.
        check_applied(
            "fn a() {\n    x();\n}\n",
            "@@ fn c\n-    x();\n+    y();\n",
            expect![[r#""fn a() {\n    y();\n}\n""#]],
        );
        // The hunk may have the line that is named, and lines above it.
        for context in ["", " fn b() {\n", " }\n fn b() {\n"] {
            check_applied(
                "fn a() {\n    x();\n}\nfn b() {\n    x();\n}\n",
                &format!("@@ fn b() {{\n{context}-    x();\n+    y();\n"),
                expect![[r#""fn a() {\n    x();\n}\nfn b() {\n    y();\n}\n""#]],
            );
        }
    }

    #[test]
    fn the_anchor_of_a_hunk_goes_before_the_order_of_hunks() {
        let text = "fn a() {\n    x();\n}\nfn m() {\n    m();\n}\nfn b() {\n    x();\n}\n";
        check_applied(
            text,
            "@@ fn m\n-    m();\n+    n();\n@@ fn a\n-    x();\n+    y();\n",
            expect![[r#""fn a() {\n    y();\n}\nfn m() {\n    n();\n}\nfn b() {\n    x();\n}\n""#]],
        );
        // A line that only stands above: then the order tells.
        check_applied(
            text,
            "@@ fn m\n-    m();\n+    n();\n@@ fn m\n-    x();\n+    y();\n",
            expect![[r#""fn a() {\n    x();\n}\nfn m() {\n    n();\n}\nfn b() {\n    y();\n}\n""#]],
        );
    }

    #[test]
    fn a_hunk_that_is_there_twice_is_not_dropped_where_it_may_mean_two_places() {
        let hunk = "@@\n-x\n+y\n";
        check_applied("a\nx\nb\n", &hunk.repeat(2), expect![[r#""a\ny\nb\n""#]]);
        check_applied(
            "x\nm\nx\n",
            &["@@\n-m\n+n\n", &hunk.repeat(2)].concat(),
            expect!["hunk 2 is in the patch twice, and may be for several places in `f`; add context lines to each"],
        );
    }

    #[test]
    fn the_end_of_a_file_goes_before_an_exact_match_elsewhere() {
        check_applied("a\nb\na \n", "@@\n-a\n+c\n*** End of File\n", expect![[r#""a\nb\nc\n""#]]);
        check_applied("a\r\nb", "@@\n+c\n*** End of File\n", expect![[r#""a\r\nb\r\nc\r\n""#]]);
    }

    #[test]
    fn the_last_line_of_a_file_gets_a_newline_if_a_hunk_has_it() {
        check_applied("one\ntwo", "@@\n one\n-two\n+2\n", expect![[r#""one\n2\n""#]]);
        check_applied("one\ntwo", "@@\n-one\n+1\n two\n", expect![[r#""1\ntwo\n""#]]);
        check_applied("one\r\ntwo", "@@\n one\n-two\n+2\n", expect![[r#""one\r\n2\r\n""#]]);
        check_applied("one\n  two ", "@@\n-two\n+2\n", expect![[r#""one\n  2\n""#]]);
        check_applied("one\ntwo", "@@\n one\n-two\n", expect![[r#""one\n""#]]);
        // Nothing else of the file changes.
        check_applied("one\ntwo\nthree", "@@\n-one\n+1\n two\n", expect![[r#""1\ntwo\nthree""#]]);
    }

    #[test]
    fn long_patches_and_many_anchors_take_little_time() {
        const MAX_CPU_TIME: Duration = Duration::from_secs(5);
        let start = thread_cpu_time();
        for (above, below) in [("@@\n-a\n", "+y\n"), ("@@ -1 +1 @@\n-a\n\n", "+y\n")] {
            let lines = "x\n".repeat(500_000);
            let _ = parse(&format!("*** Begin Patch\n*** Update File: f\n{above}{lines}{below}*** End Patch\n"));
            let _ = parse(&format!("*** Begin Patch\n*** Add File: f\n{lines}{below}*** End Patch\n"));
            let _ = parse(&format!("--- a/f\n+++ b/f\n{above}{lines}{below}"));
            let blank = "x\n\n".repeat(250_000);
            let _ = parse(&format!("--- a/f\n+++ b/f\n{above}{blank}{below}"));
        }
        let files = parse(&format!("*** Begin Patch\n*** Update File: f\n{}-x\n", "@@ }a\n".repeat(1000))).unwrap();
        let text = "}a\n".repeat(100_000) + &"x\n".repeat(3);
        assert!(apply(&text, &files[0], "f").is_err());
        let took = thread_cpu_time() - start;
        assert!(took < MAX_CPU_TIME, "took {took:?}");
    }

    #[test]
    fn a_relaxed_hunk_is_applied_once() {
        for (text, hunk) in [
            ("    a\n    c\n", "@@\n a\n+b\n"),
            ("    a\n    c\n", "@@\n+b\n a\n"),
            ("a \nc\n", "@@\n a\n+b\n"),
            ("“a”\nc\n", "@@\n \"a\"\n+\"b\"\n"),
            ("c\n    a", "@@\n a\n+b\n"),
            ("    a\n    c\n", "@@\n-a\n+a\n+b\n"),
        ] {
            let files = parse(&format!("*** Begin Patch\n*** Update File: f\n{hunk}*** End Patch\n")).unwrap();
            let once = apply(text, &files[0], "f").unwrap().text;
            let again = apply(&once, &files[0], "f").map(|applied| applied.text);
            assert!(again.is_err(), "{hunk}{text:?} -> {once:?} -> {again:?}");
        }
    }

    #[test]
    fn context_may_lack_its_mark_where_lines_tell_so() {
        let text = "fn f() {\n    a();\n    b();\n}\n";
        check_applied(
            text,
            "@@\n    a();\n+    x();\n    b();\n",
            expect![[r#""fn f() {\n    a();\n    x();\n    b();\n}\n""#]],
        );
        check_applied(
            text,
            "@@\n    a();\n-    b();\n+    x();\n",
            expect![[r#""fn f() {\n    a();\n    x();\n}\n""#]],
        );
        // All lines have two spaces less.
        check_applied(
            text,
            "@@\n   a();\n+  x();\n   b();\n",
            expect![[r#""fn f() {\n    a();\n    x();\n    b();\n}\n""#]],
        );
        // Either the hunk is shifted by one space, or the space in front of its context is that of the line itself.
        check_applied(
            "/*\n * a\n * b\n */\n",
            "@@\n * a\n+* x\n * b\n",
            expect![
                "the context of hunk 1 has one space less than `f` has; start each line of context with a space, before its own indentation"
            ],
        );
        // A line that only lost blanks at its end could be meant too.
        check_applied(
            "a \nb\n a\n",
            "@@\n a\n+  x\n",
            expect![
                "hunk 1 matches several places in `f`, at lines 1, 3; add context lines; line numbers are used only if every hunk header of the file has correct counts"
            ],
        );
    }

    #[test]
    fn a_relaxed_match_that_the_new_lines_do_not_fit_is_one_too() {
        // Line 1 has less indentation than the new line has.
        check_applied(
            "a\n    a\n",
            "@@\n-  a\n+b\n",
            expect![
                "hunk 1 matches several places in `f`, at lines 1, 2; add context lines; line numbers are used only if every hunk header of the file has correct counts"
            ],
        );
        // More than a message names are placed before the one that is left.
        let text = " a\n".repeat(30) + "b\n";
        let hunks = "@@\n-a\n+c\n";
        check_applied(
            &text,
            hunks,
            expect![
                "hunk 1 matches several places in `f`, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and more; add context lines; line numbers are used only if every hunk header of the file has correct counts"
            ],
        );
    }
}
