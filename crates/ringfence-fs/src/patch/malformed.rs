//! Malformed diffs as models write them: the lines decide, or nothing is done.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::patch::reference::expected_text;
use crate::patch::tests::{check, diff, lines_of, text, without_final_newline};
use crate::patch::{apply, parse};

/// A way to write a diff of a text so that it says less, or something wrong, beside its lines.
#[derive(Clone, Copy, Debug)]
enum DiffDefect {
    WrongCounts(usize, usize),
    NoNumbers,
    Elided,
    OnlyOneHunkNumbered,
    CodeFence,
    OtherLineEndings,
    NoMarker,
}

fn any_defect() -> impl Strategy<Value = DiffDefect> {
    prop_oneof![
        (0..9usize, 0..9usize).prop_map(|(at, count)| DiffDefect::WrongCounts(at, count)),
        select(vec![
            DiffDefect::NoNumbers,
            DiffDefect::Elided,
            DiffDefect::OnlyOneHunkNumbered,
            DiffDefect::CodeFence,
            DiffDefect::OtherLineEndings,
            DiffDefect::NoMarker
        ]),
    ]
}

/// The diff, written like that. Only headers that really are such are changed.
fn with_defect(patch: &str, way: DiffDefect) -> String {
    let counts = lines_of(patch).into_iter().filter(|line| line.starts_with("@@")).count();
    let mut seen = 0;
    let mut header = |line: &str| {
        seen += 1;
        let Some((old, new)) = line.strip_prefix("@@ -").and_then(|rest| rest.split_once(" +")) else {
            return line.to_owned();
        };
        match way {
            DiffDefect::WrongCounts(at, count) if at % counts + 1 == seen => {
                format!("@@ -{},{count} +{new}", old.split(',').next().unwrap())
            }
            DiffDefect::OnlyOneHunkNumbered if seen > 1 => "@@\n".to_owned(),
            DiffDefect::NoNumbers => "@@\n".to_owned(),
            DiffDefect::Elided => "@@ ... @@\n".to_owned(),
            _ => line.to_owned(),
        }
    };
    let lines = lines_of(patch).into_iter().map(|line| match way {
        _ if line.starts_with("@@") => header(line),
        DiffDefect::NoMarker if line.starts_with("\\ ") => String::new(),
        _ => line.to_owned(),
    });
    let patch: String = lines.collect();
    match way {
        DiffDefect::CodeFence => format!("The change:\n```diff\n{patch}```\nThat is all.\n"),
        DiffDefect::OtherLineEndings if patch.contains('\r') => patch.replace("\r\n", "\n"),
        DiffDefect::OtherLineEndings => patch.replace('\n', "\r\n"),
        _ => patch,
    }
}

/// An added line of the diff, as it is once that is written like that. One without a newline has a marker below it.
fn added_with_defect(line: &str, patch: &str, way: DiffDefect) -> String {
    let is_open = !line.ends_with('\n');
    match way {
        DiffDefect::NoMarker if is_open => [line, "\n"].concat(),
        DiffDefect::OtherLineEndings if patch.contains('\r') && is_open => {
            line.strip_suffix('\r').unwrap_or(line).to_owned()
        }
        DiffDefect::OtherLineEndings if patch.contains('\r') => line.replace("\r\n", "\n"),
        DiffDefect::OtherLineEndings => line.replace('\n', "\r\n"),
        _ => line.to_owned(),
    }
}

#[test]
fn a_diff_that_was_written_carelessly_does_what_it_means_or_nothing() {
    check(&(text(), text(), 0..4usize, vec(any_defect(), 1..3)), |(old, new, context, ways)| {
        if old == new {
            return;
        }
        let mut patch = diff(&old, &new, context);
        let mut added: HashMap<&str, String> = lines_of(&new).into_iter().map(|line| (line, line.to_owned())).collect();
        for way in &ways {
            added.values_mut().for_each(|line| *line = added_with_defect(line, &patch, *way));
            patch = with_defect(&patch, *way);
        }
        let Ok(files) = parse(&patch) else { return };
        let Ok(applied) = apply(&old, &files[0], "f") else { return };
        let expected = expected_text(&old, &new, &files[0].hunks, |line| added[line].clone());
        // Without its marker, nothing in the patch says whether the last line has a newline.
        let is_marked = !ways.iter().any(|way| matches!(way, DiffDefect::NoMarker));
        let alike = |text: &str| if is_marked { text.to_owned() } else { without_final_newline(text).to_owned() };
        assert_eq!(alike(&applied.text), alike(&expected), "{patch}");
    });
}

#[test]
fn a_diff_that_was_written_carelessly_is_often_understood() {
    // Each line is there once, so that every diff with a line of context means one thing.
    for way in [
        DiffDefect::WrongCounts(0, 7),
        DiffDefect::NoNumbers,
        DiffDefect::Elided,
        DiffDefect::CodeFence,
        DiffDefect::OtherLineEndings,
        DiffDefect::NoMarker,
    ] {
        for (old, end) in [("1\n2\n3\n4\n5\n", "\n"), ("1\n2\n3\n4\n5", ""), ("1\r\n2\r\n3\r\n4\r\n5\r\n", "\r\n")] {
            let eol = if end.is_empty() { "\n" } else { end };
            for new in [["1", "x", "2", "3", "4", "5"], ["1", "2", "x", "y", "4", "5"], ["0", "1", "2", "3", "x", "5"]]
            {
                let new = new.join(eol) + end;
                let patch = with_defect(&diff(old, &new, 1), way);
                let applied = apply(old, &parse(&patch).unwrap()[0], "f").unwrap();
                assert_eq!(applied.text, new, "{way:?}: {patch}");
            }
        }
    }
}

#[test]
fn a_diff_without_marks_of_context_makes_its_change_or_nothing() {
    let line = || (select(vec!["", "  ", "    ", "        "]), select(vec!["a", "b", "c", "}"]));
    let change = prop_oneof![5 => Just(None), 2 => line().prop_map(Some)];
    let lines = || vec((line(), change.clone(), any::<bool>()), 1..14);
    check(&(lines(), 1..4usize, any::<bool>(), any::<bool>()), |(lines, context, is_numbered, is_v4a)| {
        let of = |(indent, text): (&str, &str)| format!("{indent}{text}\n");
        let old: String = lines.iter().map(|(line, ..)| of(*line)).collect();
        let changed = lines.iter().map(|(line, change, keeps)| match change {
            None => of(*line),
            Some(new) if *keeps => of(*line) + &of(*new),
            Some(new) => of(*new),
        });
        let new: String = changed.collect();
        if old == new {
            return;
        }
        let mut patch: String =
            lines_of(&diff(&old, &new, context)).into_iter().skip(2).fold(String::new(), |all, line| {
                let header = if is_numbered && !is_v4a { line } else { "@@\n" };
                all + if line.starts_with("@@") { header } else { line.strip_prefix(' ').unwrap_or(line) }
            });
        patch.insert_str(0, if is_v4a { "*** Begin Patch\n*** Update File: f\n" } else { "--- a/f\n+++ b/f\n" });
        let Ok(files) = parse(&patch) else { return };
        if let Ok(applied) = apply(&old, &files[0], "f") {
            assert_eq!(applied.text, new, "{patch}");
        }
    });
}

#[test]
fn a_diff_that_was_applied_is_not_applied_again() {
    // Lines that are there once, and are added or replaced: the same lines as before could be meant once more.
    let change = prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)];
    check(&(vec(change, 1..12), 0..4usize, vec(any_defect(), 0..2)), |(changes, context, ways)| {
        let old: String = (0..changes.len()).map(|number| format!("{number}\n")).collect();
        let changed = |(number, change): (usize, &i32)| match change {
            0 => format!("{number}\n"),
            1 => format!("new {number}\n{number}\n"),
            2 => format!("{number}\nnew {number}\n"),
            _ => format!("new {number}\n"),
        };
        let new: String = changes.iter().enumerate().map(changed).collect();
        if old == new {
            return;
        }
        let patch = ways.iter().fold(diff(&old, &new, context), |patch, way| with_defect(&patch, *way));
        let Ok(files) = parse(&patch) else { return };
        let Ok(applied) = apply(&old, &files[0], "f") else { return };
        let again = apply(&applied.text, &files[0], "f");
        assert!(again.is_err(), "{patch}: {again:?}");
    });
}
