//! Patch tests: diffs that other programs made, and properties of any.

use std::fmt::Write as _;

use expect_test::Expect;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use ringfence_kernel::ErrorKind;

use crate::patch::apply::with_line_endings_of;
use crate::patch::reference::{expected_text, reference_apply};
use crate::patch::{FilePatch, PatchKind, apply, parse};

/// A parsed patch as text, or the error without its advice.
pub(super) fn read(patch: &str) -> String {
    match parse(patch) {
        Ok(files) => files.iter().map(described).collect::<Vec<_>>().join("; "),
        Err(error) => {
            assert_eq!((error.kind, error.field), (ErrorKind::InvalidArgs, Some("patch")));
            error.message.split("; ").next().unwrap().to_owned()
        }
    }
}

fn described(file: &FilePatch) -> String {
    let mut said = format!("{:?} {}", file.change, file.path.as_deref().unwrap_or("-"));
    if let Some(to) = &file.moved_to {
        write!(said, " to {to}").unwrap();
    }
    for hunk in &file.hunks {
        let stated = hunk.stated.map_or("?".to_owned(), |line| line.to_string());
        let end = if hunk.at_end { "$" } else { "" };
        let stated = hunk.anchors.iter().fold(stated, |stated, anchor| format!("{stated} <{anchor}>")) + end;
        write!(said, ", {stated}: {:?} -> {:?}", hunk.old.text, hunk.new.text).unwrap();
    }
    said
}

#[track_caller]
pub(super) fn check_read(patch: &str, expected: Expect) {
    expected.assert_eq(&read(patch));
}

/// A diff that git made of several files, as a mail.
const MAIL: &str = r#"From 7b9c3e78201ac83aa2851d86fd8cd3231a490062 Mon Sep 17 00:00:00 2001
Subject: [PATCH] change

Some message
--- not a header
---
 crlf.txt | 2 +-
 9 files changed, 12 insertions(+), 8 deletions(-)

diff --git a/crlf.txt b/crlf.txt
index b5eff57..d5a6cc6 100644
--- a/crlf.txt
+++ b/crlf.txt
@@ -1,3 +1,3 @@
 a<CR>
-b<CR>
+B<CR>
 c<CR>
diff --git a/empty.txt b/empty.txt
deleted file mode 100644
index e69de29..0000000
diff --git a/fresh.txt b/fresh.txt
new file mode 100644
index 0000000..e69de29
diff --git a/gone.txt b/gone.txt
deleted file mode 100644
index 286c5f5..0000000
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-gone
diff --git a/long.txt b/long.txt
index e8823e1..54de114 100644
--- a/long.txt
+++ b/long.txt
@@ -1,6 +1,6 @@
 1
 2
-3
+three
 4
 5
 6
@@ -23,6 +23,7 @@
 23
 24
 25
+twenty-five and a half
 26
 27
 28
diff --git a/new.txt b/new.txt
new file mode 100644
index 0000000..9c38d10
--- /dev/null
+++ b/new.txt
@@ -0,0 +1,2 @@
+new
+file
\ No newline at end of file
diff --git a/nonl.txt b/nonl.txt
index 1b32298..b77b4eb 100644
--- a/nonl.txt
+++ b/nonl.txt
@@ -1,2 +1,2 @@
 x
-y
\ No newline at end of file
+y
diff --git a/sql.txt b/sql.txt
index fbc0d8f..574d4d4 100644
--- a/sql.txt
+++ b/sql.txt
@@ -1,4 +1,2 @@
--- sql
 select
-++ plus
 end
diff --git a/with space.txt b/with space.txt
index b478595..3762249 100644
--- a/with space.txt<TAB>
+++ b/with space.txt<TAB>
@@ -1 +1 @@
-s
+S
diff --git "a/\303\244\tq\".txt" "b/\303\244\tq\".txt"
index bca70f3..73c52c3 100644
--- "a/\303\244\tq\".txt"
+++ "b/\303\244\tq\".txt"
@@ -1 +1 @@
-q
+Q
--<SPACE>
2.47.3

"#;

#[test]
fn a_mail_that_git_made_does_what_it_says() {
    let long: String = (1..=30).map(|n| format!("{n}\n")).collect();
    let longer = long.replacen("3\n", "three\n", 1).replace("\n25\n", "\n25\ntwenty-five and a half\n");
    let expected = [
        (PatchKind::Modify, "crlf.txt", "a\r\nb\r\nc\r\n", "a\r\nB\r\nc\r\n"),
        (PatchKind::Delete, "empty.txt", "", ""),
        (PatchKind::Create, "fresh.txt", "", ""),
        (PatchKind::Delete, "gone.txt", "gone\n", ""),
        (PatchKind::Modify, "long.txt", &long, &longer),
        (PatchKind::Create, "new.txt", "", "new\nfile"),
        (PatchKind::Modify, "nonl.txt", "x\ny", "x\ny\n"),
        (PatchKind::Modify, "sql.txt", "-- sql\nselect\n++ plus\nend\n", "select\nend\n"),
        (PatchKind::Modify, "with space.txt", "s\n", "S\n"),
        (PatchKind::Modify, "ä\\x09q\".txt", "q\n", "Q\n"),
    ];
    let mail = MAIL.replace("<CR>", "\r").replace("<TAB>", "\t").replace("<SPACE>", " ");
    let files = parse(&mail).unwrap();
    assert_eq!(files.len(), expected.len());
    for (file, (change, path, old, new)) in files.iter().zip(expected) {
        assert_eq!((file.change, file.path.as_deref()), (change, Some(path)));
        let applied = apply(old, file, path).unwrap();
        assert_eq!(applied.text, new, "{path}");
        assert!(applied.hunks.iter().all(|placed| placed.offset == Some(0)), "{path}");
    }
}

#[test]
fn diffs_that_other_programs_made_do_what_they_say() {
    for (patch, old, new) in [
        // `diff -U0`: a line before the first, and lines after the last.
        (
            "--- f\t2026-11-15 11:56:12.9 +0000\n+++ f\t2026-11-15 11:56:13.0 +0000\n@@ -0,0 +1 @@\n+0\n@@ -2,0 +4,2 @@\n+3\n+4\n",
            "1\n2\n",
            "0\n1\n2\n3\n4\n",
        ),
        // `git diff -U0`: the last line gets its newline, and another line after it.
        (
            "diff --git a/f b/f\nindex 1b32298..de98044 100644\n--- a/f\n+++ b/f\n@@ -2 +2,2 @@ a\n-b\n\\ No newline at end of file\n+b\n+c\n",
            "a\nb",
            "a\nb\nc\n",
        ),
        // As `svn diff` writes it.
        (
            "Index: f\n===================================================================\n--- f\t(revision 1)\n+++ f\t(working copy)\n@@ -1 +1,2 @@\n a\n+b\n",
            "a\n",
            "a\nb\n",
        ),
    ] {
        assert_eq!(apply(old, &parse(patch).unwrap()[0], "f").unwrap().text, new, "{patch}");
    }
}

/// Checks a property on as many cases as the environment says.
pub(super) fn check<S: Strategy>(strategy: &S, property: impl Fn(S::Value)) {
    let config = Config { failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(strategy, |value| {
        property(value);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A text of few different lines, some of which look like parts of a diff. Each has a § in it, unless it is empty.
pub(super) fn text() -> impl Strategy<Value = String> {
    let line = select(vec!["a§", "b§", "a§", "b§", "", "-- §", "++ §", "@@ -1 +1 @@ §", "\\ §", " §", "diff --git §"]);
    let end = prop_oneof![6 => Just("\n"), 1 => Just("\r\n")];
    (vec((line, end), 0..14), any::<bool>()).prop_map(|(lines, ended)| {
        let text: String = lines.into_iter().flat_map(|(line, end)| [line, end]).collect();
        // A text cannot end in an empty line without its newline.
        match text.strip_suffix('\n') {
            Some(cut) if !ended && !cut.ends_with('\n') => cut.to_owned(),
            _ => text,
        }
    })
}

pub(super) fn lines_of(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// An edit script: lines with ` `, `-` or `+` before them, by the longest common subsequence.
pub(super) fn script<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<(char, &'t str)> {
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for (i, there) in old.iter().enumerate().rev() {
        for (j, wanted) in new.iter().enumerate().rev() {
            let longest = common[i + 1][j].max(common[i][j + 1]);
            common[i][j] = if there == wanted { common[i + 1][j + 1] + 1 } else { longest };
        }
    }
    let (mut i, mut j, mut script) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            script.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            script.push(('-', old[i]));
            i += 1;
        } else {
            script.push(('+', new[j]));
            j += 1;
        }
    }
    script
}

/// A unified diff with this number of context lines.
pub(super) fn diff(old: &str, new: &str, context: usize) -> String {
    let script = script(&lines_of(old), &lines_of(new));
    let near = |at: usize| {
        let around = at.saturating_sub(context)..(at + context + 1).min(script.len());
        script[around].iter().any(|(sign, _)| *sign != ' ')
    };
    let count = |lines: &[(char, &str)], other: char| lines.iter().filter(|(sign, _)| *sign != other).count();
    let mut diff = String::from("--- a/f\n+++ b/f\n");
    let mut at = 0;
    while at < script.len() {
        let end = (at..script.len()).find(|end| !near(*end)).unwrap_or(script.len());
        if end == at {
            at += 1;
            continue;
        }
        let (before, hunk) = (&script[..at], &script[at..end]);
        let range = |other| {
            let (start, lines) = (count(before, other), count(hunk, other));
            format!("{},{lines}", start + usize::from(lines > 0))
        };
        writeln!(diff, "@@ -{} +{} @@", range('+'), range('-')).unwrap();
        for (sign, line) in hunk {
            let missing = if line.ends_with('\n') { "" } else { "\n\\ No newline at end of file\n" };
            write!(diff, "{sign}{line}{missing}").unwrap();
        }
        at = end;
    }
    diff
}

#[test]
fn the_diff_of_any_two_texts_makes_one_of_the_other() {
    check(&(text(), text(), 0..4usize), |(old, new, context)| {
        let patch = diff(&old, &new, context);
        if old == new {
            assert_eq!(read(&patch), "line 1 of the patch: no hunk follows the header of the file");
            return;
        }
        // As models write it: without spaces at the ends of lines, and without the last end.
        let trimmed = patch.replace("\n \n", "\n\n");
        let cut = if patch.contains('\r') { &patch } else { patch.trim_end_matches('\n') };
        for patch in [&patch, &trimmed, cut] {
            let files = parse(patch).unwrap();
            let applied = apply(&old, &files[0], "f").unwrap();
            assert_eq!(applied.text, expected_text(&old, &new, &files[0].hunks, str::to_owned), "{patch}");
            assert!(applied.hunks.iter().all(|placed| placed.offset == Some(0)), "{:?}", applied.hunks);
            let signs = |sign| script(&lines_of(&old), &lines_of(&new)).iter().filter(|line| line.0 == sign).count();
            assert_eq!(applied.hunks.iter().map(|placed| placed.added).sum::<usize>(), signs('+'));
            assert_eq!(applied.hunks.iter().map(|placed| placed.removed).sum::<usize>(), signs('-'));
        }
    });
}

#[test]
fn a_text_that_has_shifted_is_changed_in_the_same_lines() {
    // Each line is unique, so no position is like another.
    let change = prop_oneof![4 => Just(None), 1 => Just(Some("")), 1 => Just(Some("x\n")), 1 => Just(Some("x\r\ny\n"))];
    check(&(vec(change, 1..40), 1..4usize, 1..10usize), |(changes, context, top)| {
        let old: String = (0..changes.len()).map(|number| format!("{number}\n")).collect();
        let changed = |(number, change): (usize, &Option<&str>)| change.map_or(format!("{number}\n"), str::to_owned);
        let new: String = changes.iter().enumerate().map(changed).collect();
        if old == new {
            return;
        }
        let top_lines = "top\n".repeat(top);
        let files = parse(&diff(&old, &new, context)).unwrap();
        let applied = apply(&(top_lines.clone() + &old), &files[0], "f").unwrap();
        assert_eq!(applied.text, top_lines + &new);
        assert!(applied.hunks.iter().all(|placed| placed.offset == Some(top as i64)), "{:?}", applied.hunks);
    });
}

pub(super) fn without_final_newline(text: &str) -> &str {
    text.strip_suffix("\r\n").or(text.strip_suffix('\n')).unwrap_or(text)
}

#[track_caller]
fn check_against_every_line(text: &str, files: &[FilePatch]) {
    for file in files.iter().filter(|file| file.change == PatchKind::Modify) {
        let expected = reference_apply(text, &with_line_endings_of(text, &file.hunks));
        let applied = apply(text, file, "f").map_err(|error| {
            assert!(!error.message.contains('§'), "{}", error.message);
            error.kind
        });
        assert_eq!(applied, expected, "{:?} on {text:?}", file.hunks);
    }
}

#[test]
fn a_hunk_goes_where_a_look_at_every_line_says() {
    check(&(text(), text(), 0..4usize, text()), |(old, new, context, top)| {
        let files = parse(&diff(&old, &new, context)).unwrap_or_default();
        let top = if top.ends_with('\n') { top } else { top + "\n" };
        check_against_every_line(&(top.clone() + &old), &files);
        check_against_every_line(&(top + &old + &old), &files);
        check_against_every_line(&old.replace("\r\n", "\n"), &files);
        check_against_every_line(&new, &files);
    });
}

#[derive(Clone, Debug)]
enum PatchMutation {
    Drop(Index),
    Double(Index),
    Swap(Index, Index),
    Insert(Index, char),
    Remove(Index),
}

fn mutation() -> impl Strategy<Value = PatchMutation> {
    let chars = select("+- @\\,0129\n\r\t\"ab/*`§".chars().collect::<Vec<_>>());
    prop_oneof![
        any::<Index>().prop_map(PatchMutation::Drop),
        any::<Index>().prop_map(PatchMutation::Double),
        any::<(Index, Index)>().prop_map(|(one, other)| PatchMutation::Swap(one, other)),
        (any::<Index>(), chars).prop_map(|(at, char)| PatchMutation::Insert(at, char)),
        any::<Index>().prop_map(PatchMutation::Remove),
    ]
}

fn mutated(patch: &str, mutation: &PatchMutation) -> String {
    let mut lines = lines_of(patch);
    let mut chars: Vec<char> = patch.chars().collect();
    let count = lines.len();
    match mutation {
        _ if count == 0 => return String::new(),
        PatchMutation::Drop(at) => drop(lines.remove(at.index(count))),
        PatchMutation::Double(at) => lines.insert(at.index(count), lines[at.index(count)]),
        PatchMutation::Swap(one, other) => lines.swap(one.index(count), other.index(count)),
        PatchMutation::Insert(at, char) => {
            chars.insert(at.index(chars.len()), *char);
            return chars.into_iter().collect();
        }
        PatchMutation::Remove(at) => {
            chars.remove(at.index(chars.len()));
            return chars.into_iter().collect();
        }
    }
    lines.concat()
}

#[test]
fn a_diff_that_was_tampered_with_changes_nothing_but_its_hunks() {
    check(&(text(), text(), 0..4usize, vec(mutation(), 1..4)), |(old, new, context, mutations)| {
        let patch = mutations.iter().fold(diff(&old, &new, context), |patch, mutation| mutated(&patch, mutation));
        match parse(&patch) {
            Ok(files) => check_against_every_line(&old, &files),
            Err(error) => assert!(!error.message.contains('§'), "{}", error.message),
        }
    });
}

#[test]
fn no_text_whatever_breaks_the_reader() {
    let piece = select(vec![
        "--- a/f\n",
        "+++ b/f\n",
        "--- /dev/null\n",
        "+++ /dev/null\n",
        "diff --git a/f b/f\n",
        "diff --git \"a/\\303\\244\" \"b/\\303\\244\"\n",
        "new file mode 100644\n",
        "deleted file mode 100644\n",
        "@@ -1 +1 @@\n",
        "@@ -0,0 +1,2 @@\n",
        "@@ -1,2 +0,0 @@\r\n",
        "@@ -4294967294 +4294967294 @@\n",
        "@@ -2,4294967290 +1 @@\n",
        "-x\n",
        "+y\n",
        " z\n",
        "\n",
        "\\ No newline at end of file\n",
        "```\n",
        "-- \n",
        "\"",
        "é",
        "@@",
    ]);
    let pieces = vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    check(&prop_oneof![4 => pieces, 1 => any::<String>()], |patch| {
        if let Ok(files) = parse(&patch) {
            assert!(!files.is_empty());
            assert!(files.iter().all(|file| file.change != PatchKind::Modify || !file.hunks.is_empty()));
            for text in ["", "x\n", "x", "x\nz\nx\nz\n"] {
                check_against_every_line(text, &files);
            }
        }
    });
}
