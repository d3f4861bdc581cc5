//! Patch tests: diffs that other programs made, and properties of any.

use std::fmt::Write as _;

use expect_test::Expect;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use ringfence_kernel::ErrorKind;

use crate::patch::apply::{PatchedText, with_line_endings_of};
use crate::patch::{FilePatch, HunkPlacement, PatchHunk, PatchKind, apply, parse};

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
fn script<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<(char, &'t str)> {
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
            // Where all lines of the file end in CRLF, so do the ones that a patch with LF adds.
            let is_crlf = old.contains("\r\n") && !old.replace("\r\n", "").contains('\n');
            let ends = |text: &str| if is_crlf { text.replace("\r\n", "\n") } else { text.to_owned() };
            assert_eq!(ends(&applied.text), ends(&new), "{patch}");
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

/// Position of a hunk, and its replacement there.
type ExpectedPlacement = (usize, String);

/// Position of each hunk, by a look at every line of the text.
fn places(text: &str, hunks: &[PatchHunk]) -> Result<Vec<ExpectedPlacement>, ErrorKind> {
    let lines = lines_of(text);
    let trusted = hunks.iter().all(|hunk| hunk.stated.is_some());
    let (mut drift, mut places) = (0, Vec::<ExpectedPlacement>::new());
    for (index, hunk) in hunks.iter().enumerate() {
        let old = lines_of(&hunk.old.text);
        let ends = |count: usize| places.iter().zip(hunks).take(count).map(|((at, _), hunk)| at + hunk.old.lines);
        let done = ends(index).next_back().unwrap_or(0);
        let is_free =
            |at: usize| !places.iter().zip(ends(index)).any(|((start, _), end)| at < end && *start < at + old.len());
        let mut found: Vec<ExpectedPlacement> = (0..=lines.len())
            .filter(|at| {
                lines[*at..].starts_with(&old)
                    && (!hunk.reaches_end() || at + old.len() == lines.len())
                    && (*at < lines.len() || text.is_empty() || text.ends_with('\n'))
            })
            .map(|at| (at, hunk.new.text.clone()))
            .collect();
        let stated = hunk.lines_before().filter(|_| trusted).map(|before| before as i64 + drift);
        let at_stated = found.iter().find(|(at, _)| stated == Some(*at as i64) && *at >= done).cloned();
        let place = match at_stated {
            _ if old.is_empty() && !trusted && !text.is_empty() => return Err(ErrorKind::EditNotFound),
            Some(place) if drift == 0 || !old.is_empty() => place,
            _ if old.is_empty() && text.is_empty() => (0, hunk.new.text.clone()),
            _ if old.is_empty() => return Err(ErrorKind::EditNotFound),
            _ => {
                found.extend(loosely_at_end(text, hunk));
                found.retain(|(at, _)| is_free(*at));
                let same_end = |text: &str| text.replace("\r\n", "\n");
                let (all, wanted) = (same_end(text), same_end(&hunk.old.text));
                let is_mixed = text.contains("\r\n") && text.replace("\r\n", "").contains('\n');
                let starts = std::iter::once(0).chain(all.match_indices('\n').map(|(at, _)| at + 1));
                let loosely = starts.filter(|at| all[*at..].starts_with(&wanted)).count();
                match &found[..] {
                    [_] if is_mixed && loosely > 1 => return Err(ErrorKind::AmbiguousEdit),
                    [only] if only.0 >= done => only.clone(),
                    [] | [_] => return Err(ErrorKind::EditNotFound),
                    _ => return Err(ErrorKind::AmbiguousEdit),
                }
            }
        };
        let there = stated.and_then(|at| usize::try_from(at).ok()).filter(|at| *at >= done && *at <= lines.len());
        let moved = there.filter(|at| *at != place.0 && hunk.new != hunk.old && hunk.new.lines > 0);
        if moved.is_some_and(|at| has_new_lines(&lines[at..], hunk)) {
            return Err(ErrorKind::EditNotFound);
        }
        check_once(text, hunk, place.0)?;
        if let Some(before) = hunk.lines_before().filter(|_| trusted) {
            drift = place.0 as i64 - before as i64;
        }
        places.push(place);
    }
    Ok(places)
}

pub(super) fn without_final_newline(text: &str) -> &str {
    text.strip_suffix("\r\n").or(text.strip_suffix('\n')).unwrap_or(text)
}

/// Whether the new lines of a hunk are there.
fn has_new_lines(there: &[&str], hunk: &PatchHunk) -> bool {
    let new = lines_of(&hunk.new.text);
    let rest = there.concat();
    let one_ends = rest.ends_with('\n') == hunk.new.lacks_newline();
    let at_end = !there.is_empty()
        && (rest == hunk.new.text
            || (one_ends && without_final_newline(&rest) == without_final_newline(&hunk.new.text)));
    (!hunk.new.lacks_newline() && there.starts_with(&new)) || at_end
}

/// The last lines, where the hunk and the text only differ in the newline at the end.
fn loosely_at_end(text: &str, hunk: &PatchHunk) -> Option<ExpectedPlacement> {
    let (lines, old) = (lines_of(text), lines_of(&hunk.old.text));
    let at = lines.len().checked_sub(old.len())?;
    let differ = text.ends_with('\n') == hunk.old.lacks_newline();
    let alike = !without_final_newline(&hunk.old.text).is_empty()
        && without_final_newline(&lines[at..].concat()) == without_final_newline(&hunk.old.text);
    if !differ || !alike {
        return None;
    }
    if hunk.new.lines == 0 || hunk.old.lacks_newline() != hunk.new.lacks_newline() {
        return Some((at, hunk.new.text.clone()));
    }
    let new = without_final_newline(&hunk.new.text).to_owned() + &text[without_final_newline(text).len()..];
    let can_keep_end = text.ends_with('\n') || !(new.is_empty() || new.ends_with('\n'));
    Some((at, if can_keep_end { new } else { hunk.new.text.clone() }))
}

/// A hunk that was applied already is refused.
fn check_once(text: &str, hunk: &PatchHunk, at: usize) -> Result<(), ErrorKind> {
    let lines = lines_of(text);
    let (old, new) = (lines_of(&hunk.old.text), lines_of(&hunk.new.text));
    if hunk.context_above && hunk.context_below {
        return Ok(());
    }
    if old.is_empty() {
        let there = lines[at..].starts_with(&new) && !new.is_empty();
        return if there { Err(ErrorKind::EditNotFound) } else { Ok(()) };
    }
    if new.len() > old.len() {
        let same = |(new, old): (&&str, &&str)| new == old || (!old.ends_with('\n') && new.starts_with(*old));
        let aligned = (0..=new.len() - old.len()).filter(|above| new[*above..].iter().zip(&old).all(same));
        let aligned = aligned.filter(|above| match (hunk.context_above, hunk.context_below) {
            (true, _) => *above == 0,
            (_, true) => above + old.len() == new.len(),
            _ => true,
        });
        let mut starts = aligned.filter_map(|above| at.checked_sub(above));
        let in_context = hunk.context_above || hunk.context_below;
        let exactly = |start: usize| lines[start..].concat().starts_with(&hunk.new.text);
        if starts.any(|start| if in_context { has_new_lines(&lines[start..], hunk) } else { exactly(start) }) {
            return Err(ErrorKind::EditNotFound);
        }
        return Ok(());
    }
    let fewer = new.len() < old.len();
    let again = [new, lines[at + old.len()..].to_vec()].concat();
    let at_edge = if hunk.context_above { at + old.len() == lines.len() } else { at == 0 };
    let one_sided = hunk.context_above != hunk.context_below;
    let repeats = fewer && again.concat().starts_with(&hunk.old.text);
    if one_sided && repeats && !at_edge { Err(ErrorKind::AmbiguousEdit) } else { Ok(()) }
}

/// The text with nothing but the lines of its hunks changed, and the reports about them.
fn expected_result(text: &str, hunks: &[PatchHunk], places: &[ExpectedPlacement]) -> PatchedText {
    let lines = lines_of(text);
    let trusted = hunks.iter().all(|hunk| hunk.stated.is_some());
    let mut applied = PatchedText { text: String::new(), hunks: Vec::new() };
    let mut done = 0;
    for (number, (hunk, (place, new))) in (1..).zip(hunks.iter().zip(places)) {
        applied.text.push_str(&lines[done..*place].concat());
        let before = hunk.lines_before().filter(|_| trusted);
        applied.hunks.push(HunkPlacement {
            hunk: number,
            line: lines_of(&applied.text).len() + 1,
            offset: before.map(|before| *place as i64 - before as i64),
            added: hunk.added,
            removed: hunk.removed,
            relaxation: None,
        });
        applied.text.push_str(new);
        done = place + lines_of(&hunk.old.text).len();
    }
    applied.text.push_str(&lines[done..].concat());
    applied
}

/// Checks that nothing but lines like those of the hunks became lines like their new ones.
#[track_caller]
fn check_relaxed(text: &str, hunks: &[PatchHunk], applied: &PatchedText) {
    let loosely = |lines: &[&str]| -> Vec<String> {
        lines.iter().map(|line| line.trim().replace(['“', '”'], "\"").replace('–', "-")).collect()
    };
    let (old, new) = (lines_of(text), lines_of(&applied.text));
    let mut placed: Vec<_> = applied.hunks.iter().zip(hunks).collect();
    // What a hunk that leaves nothing replaces is before what is at that line now.
    placed.sort_by_key(|(placed, hunk)| (placed.line, hunk.new.lines > 0));
    let (mut old_at, mut new_at) = (0, 0);
    while let Some((first, _)) = placed.first() {
        let kept = first.line - 1 - new_at;
        assert_eq!(loosely(&new[new_at..][..kept]), loosely(&old[old_at..][..kept]), "lines between hunks");
        (old_at, new_at) = (old_at + kept, new_at + kept);
        // Several that leave nothing are at one line, in any order.
        let is_here = |hunk: &PatchHunk| {
            let there = old.get(old_at..old_at + hunk.old.lines);
            there.is_some_and(|there| loosely(there) == loosely(&lines_of(&hunk.old.text)))
        };
        let alike = placed.iter().take_while(|(other, hunk)| other.line == first.line && hunk.new.lines == 0);
        let next = alike.into_iter().position(|(_, hunk)| is_here(hunk)).unwrap_or(0);
        let (_, hunk) = placed.remove(next);
        assert_eq!(loosely(&old[old_at..][..hunk.old.lines]), loosely(&lines_of(&hunk.old.text)));
        assert_eq!(loosely(&new[new_at..][..hunk.new.lines]), loosely(&lines_of(&hunk.new.text)));
        (old_at, new_at) = (old_at + hunk.old.lines, new_at + hunk.new.lines);
    }
    assert_eq!(new[new_at..], old[old_at..]);
}

#[track_caller]
fn check_against_every_line(text: &str, files: &[FilePatch]) {
    for file in files.iter().filter(|file| file.change == PatchKind::Modify) {
        let hunks = with_line_endings_of(text, &file.hunks);
        // The reference knows no relaxations, and no hunks in another order.
        let more = |applied: &PatchedText| {
            let starts = applied.hunks.iter().map(|placed| placed.line);
            applied.hunks.iter().any(|placed| placed.relaxation.is_some())
                || !starts.is_sorted_by(|one, next| one < next)
        };
        // A line of the hunk is like the one at its stated line, or at one that the hunks before have shifted.
        let is_near = |hunk: &PatchHunk| {
            let there: Vec<&str> = text.lines().map(str::trim).collect();
            hunk.old.text.lines().next().is_some_and(|line| there.contains(&line.trim())) && hunk.stated.is_some()
        };
        match (apply(text, file, "f"), places(text, &hunks)) {
            (Ok(applied), Err(ErrorKind::EditNotFound | ErrorKind::AmbiguousEdit)) if more(&applied) => {
                check_relaxed(text, &hunks, &applied);
            }
            // Both refuse. Of several hunks that cannot be applied, either names the one that it finds first.
            (Err(error), Err(ErrorKind::EditNotFound | ErrorKind::AmbiguousEdit))
                if matches!(error.kind, ErrorKind::EditNotFound | ErrorKind::AmbiguousEdit) =>
            {
                assert!(!error.message.contains('§'), "{}", error.message);
            }
            (Err(error), Ok(_)) if error.kind == ErrorKind::AmbiguousEdit && hunks.iter().any(is_near) => {}
            (Ok(applied), Ok(places)) => assert_eq!(applied, expected_result(text, &hunks, &places)),
            (Err(error), Err(kind)) => {
                assert_eq!(error.kind, kind, "{}", error.message);
                assert!(!error.message.contains('§'), "{}", error.message);
            }
            (applied, places) => panic!("{applied:?}, but {places:?}"),
        }
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
