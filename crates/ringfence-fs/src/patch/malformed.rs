//! Malformed diffs as models write them: the lines decide, or nothing is done.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

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

#[test]
fn a_diff_that_was_written_carelessly_does_what_it_means_or_nothing() {
    check(&(text(), text(), 0..4usize, vec(any_defect(), 1..3)), |(old, new, context, ways)| {
        if old == new {
            return;
        }
        let patch = ways.iter().fold(diff(&old, &new, context), |patch, way| with_defect(&patch, *way));
        let Ok(files) = parse(&patch) else { return };
        let Ok(applied) = apply(&old, &files[0], "f") else { return };
        let has = |wanted: fn(&DiffDefect) -> bool| ways.iter().any(wanted);
        // Ends that the text has both of, or no old line has, are what the patch says.
        let one_end = |text: &str| !text.contains('\r') || !text.replace("\r\n", "").contains('\n');
        let told = one_end(&old) && one_end(&new) && old.contains("\r\n") == new.contains("\r\n");
        let told = told && files[0].hunks.iter().any(|hunk| hunk.old.text.contains('\n')) && old.contains('\n');
        let alike = |text: &str| {
            let text = if has(|way| matches!(way, DiffDefect::NoMarker)) { without_final_newline(text) } else { text };
            // A return before a newline that is not there is part of the line.
            let exact = (told || !has(|way| matches!(way, DiffDefect::OtherLineEndings))) && !new.ends_with('\r');
            // Where all lines of the file end in CRLF, so do the ones that a patch with LF adds.
            let exact = exact && (!old.contains("\r\n") || !one_end(&old) || one_end(&new));
            if exact { text.to_owned() } else { text.replace('\r', "") }
        };
        assert_eq!(alike(&applied.text), alike(&new), "{patch}");
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
