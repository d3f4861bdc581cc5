//! Properties of V4A patches: of any edit, with and without anchors, they make it or nothing.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::patch::tests::{check, lines_of};
use crate::patch::{apply, parse};

/// The lines around a line of a text, the outer ones first: each the nearest one above that is indented less.
fn anchors(lines: &[&str], at: usize) -> Vec<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut least = lines[at..].iter().find(|line| !line.trim().is_empty()).map_or(0, |line| indent(line));
    let mut found = Vec::new();
    for line in lines[..at].iter().rev().filter(|line| !line.trim().is_empty()) {
        if indent(line) < least {
            least = indent(line);
            found.insert(0, line.trim().to_owned());
        }
    }
    found
}

/// A V4A patch with as many lines of context around each change, and the last of its anchors.
fn v4a(old: &str, new: &str, context: usize, most_anchors: usize) -> String {
    let diff = similar::TextDiff::from_lines(old, new);
    let mut patch = "*** Begin Patch\n*** Update File: f\n".to_owned();
    let lines = lines_of(old);
    for group in diff.grouped_ops(context) {
        let at = group.first().map_or(0, |op| op.old_range().start);
        let anchors = anchors(&lines, at);
        let named = &anchors[anchors.len().saturating_sub(most_anchors)..];
        named.iter().for_each(|anchor| patch.push_str(&format!("@@ {anchor}\n")));
        if named.is_empty() {
            patch.push_str("@@\n");
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let mark = match change.tag() {
                similar::ChangeTag::Equal => ' ',
                similar::ChangeTag::Delete => '-',
                similar::ChangeTag::Insert => '+',
            };
            patch.push(mark);
            patch.push_str(change.value());
            if change.missing_newline() {
                patch.push('\n');
            }
        }
    }
    patch + "*** End Patch\n"
}

#[test]
fn a_v4a_patch_of_any_edit_makes_it_or_nothing() {
    let line = || select(vec!["a\n", "b\n", "  a\n", "    b\n", "  c \n", "c \n", "}\n", "  }\n", "\n", "“q”\n"]);
    check(&(vec(line(), 0..14), vec(line(), 0..14), 0..4usize, 0..3usize), |(old, new, context, most_anchors)| {
        let (old, new) = (old.concat(), new.concat());
        if old == new {
            return;
        }
        let files = parse(&v4a(&old, &new, context, most_anchors)).unwrap();
        if let Ok(applied) = apply(&old, &files[0], "f") {
            assert_eq!(applied.text, new);
        }
    });
}

#[test]
fn an_anchor_tells_functions_with_the_same_lines_from_each_other() {
    let line = || select(vec!["x();", "y();", "if z {", "}", "x(); "]);
    let body = vec(line(), 0..5);
    check(&(vec(body, 2..5), any::<Index>(), vec(line(), 1..5)), |(mut bodies, changed, new_body)| {
        let text = |bodies: &[Vec<&str>]| -> String {
            let function = |(number, body): (usize, &Vec<&str>)| {
                let lines: String = body.iter().map(|line| format!("    {line}\n")).collect();
                format!("fn f{number}() {{\n{lines}}}\n")
            };
            bodies.iter().enumerate().map(function).collect()
        };
        let old = text(&bodies);
        let changed = changed.index(bodies.len());
        let removed: String = bodies[changed].iter().map(|line| format!("-    {}\n", line.trim_end())).collect();
        let added: String = new_body.iter().map(|line| format!("+    {line}\n")).collect();
        if bodies[changed].is_empty() || bodies[changed] == new_body {
            return;
        }
        let patch =
            format!("*** Begin Patch\n*** Update File: f\n@@ fn f{changed}() {{\n{removed}{added}*** End Patch\n");
        bodies[changed].clone_from(&new_body);
        // A line that stays keeps the blanks at its end.
        let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        if let Ok(applied) = apply(&old, &parse(&patch).unwrap()[0], "f") {
            assert_eq!(trimmed(&applied.text), trimmed(&text(&bodies)), "{patch}{old}");
        }
    });
}

#[test]
fn a_v4a_patch_with_context_is_applied_where_lines_differ() {
    // Each line is there once.
    check(&(vec(0..4, 1..20), 1..4usize), |(changes, context)| {
        let old: String = (0..changes.len()).map(|number| format!("{number}\n")).collect();
        let changed = |(number, change): (usize, &i32)| match change {
            0 | 1 => format!("{number}\n"),
            2 => format!("{number}\nnew {number}\n"),
            _ => format!("new {number}\n"),
        };
        let new: String = changes.iter().enumerate().map(changed).collect();
        if old == new {
            return;
        }
        let files = parse(&v4a(&old, &new, context, 0)).unwrap();
        assert_eq!(apply(&old, &files[0], "f").unwrap().text, new);
    });
}
