//! Text matching tests: each relaxation by examples, and properties of any.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use memchr::memmem;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::edit::{TextMatch, TextMatchError, TextRelaxation, find_relaxed, nearest_lines};

/// The text after the edit and its relaxations, or why there is none.
fn edited(text: &str, old: &str, new: &str) -> String {
    match find_relaxed(text, old, new) {
        Ok(found) => format!("{:?} {:?}", replaced(text, &found), found.relaxations),
        Err(TextMatchError::NotFound | TextMatchError::Unadaptable) => "not found".to_owned(),
        Err(TextMatchError::TooLarge) => "too large".to_owned(),
        Err(TextMatchError::Ambiguous { relaxation, lines }) => format!("{relaxation:?} at lines {lines:?}"),
    }
}

fn replaced(text: &str, found: &TextMatch) -> String {
    [&text[..found.start], &found.new, &text[found.end..]].concat()
}

#[track_caller]
fn check(text: &str, old: &str, new: &str, expected: Expect) {
    expected.assert_eq(&edited(text, old, new));
}

#[test]
fn line_endings_are_those_of_the_file() {
    check("a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\nb\n", expect![[r#""a\r\nx\r\nb\r\nc\r\n" [LineEndings]"#]]);
    check("a\nb\n", "a\r\nb", "x\r\ny", expect![[r#""x\ny\n" [LineEndings]"#]]);
    check("a\r\nb\r\na\r\nb\r\n", "a\nb", "x", expect!["LineEndings at lines [1, 3]"]);
    // In a file with both, the lines that are meant have one of them.
    check("a\nb\nc\r\nd\r\n", "c\nd\n", "x\ny\n", expect![[r#""a\nb\nx\r\ny\r\n" [LineEndings]"#]]);
    // Mixed in the text and in the file.
    check("a\r\nb\nc\n", "a\nb\nc\r\n", "x\n", expect![[r#""x\r\n" [LineEndings, TrailingBlanks]"#]]);
}

#[test]
fn blanks_at_the_ends_of_lines_are_ignored() {
    check("a  \nb\t\nc\n", "a\nb\n", "a\nx\n", expect![[r#""a  \nx\nc\n" [TrailingBlanks]"#]]);
    check("a\nb\nc\n", "a \nb  \n", "a \nx\n", expect![[r#""a\nx\nc\n" [TrailingBlanks]"#]]);
    check("a \nb\na\t\nb\n", "a\nb\n", "x\n", expect!["TrailingBlanks at lines [1, 3]"]);
    check("a \r\nb\r\n", "a\nb\n", "a\nx\ny\n", expect![[r#""a \r\nx\r\ny\r\n" [LineEndings, TrailingBlanks]"#]]);
    // The text ends within the file, without the newline of its last line.
    check("a \nb\nc", "a\nb", "x", expect![[r#""x\nc" [TrailingBlanks]"#]]);
    // The newline at the end of a file.
    check("a\nb", "a\nb\n", "a\nx\n", expect![[r#""a\nx" [TrailingBlanks]"#]]);
    check("a\nb", "b\n", "", expect![[r#""a\n" [TrailingBlanks]"#]]);
    // Blank lines alone are everywhere.
    check("a\n\nb\n", "  \n", "x\n", expect!["not found"]);
}

#[test]
fn one_indentation_shift_is_that_of_all_lines() {
    let text = "fn f() {\n    if x {\n        y();\n\n    }\n}\n";
    check(
        text,
        "if x {\n    y();\n\n}\n",
        "if x {\n    z();\n    w();\n\n}\n",
        expect![[r#""fn f() {\n    if x {\n        z();\n        w();\n\n    }\n}\n" [Indentation]"#]],
    );
    check(
        text,
        "        if x {\n            y();\n\n        }\n",
        "        if x {\n            z();\n        }\n",
        expect![[r#""fn f() {\n    if x {\n        z();\n    }\n}\n" [Indentation]"#]],
    );
    check("\tif x {\n\t\ty();\n", "if x {\n\ty();\n", "z\n", expect![[r#""\tz\n" [Indentation]"#]]);
    // Each line by another shift, tabs for spaces, or a new line that cannot be shifted as the old ones.
    check("    a\n        b\n", "a\nb\n", "x\n", expect!["not found"]);
    check("\ta\n\tb\n", "    a\n    b\n", "x\n", expect!["not found"]);
    check("a\nb\n", "  a\n  b\n", "  a\nx\n", expect!["not found"]);
    check("  a\n  b\n    a\n    b\n", "a\nb\n", "x\n", expect!["Indentation at lines [1, 3]"]);
    check(
        "    a \n\n    b\n",
        "a\n  \nb\n",
        "a\n  \nc\n",
        expect![[r#""    a \n\n    c\n" [IndentationAndTrailingBlanks]"#]],
    );
}

#[test]
fn typographic_characters_are_those_of_the_file() {
    check("say “a” – now\n", "say \"a\" - now", "say \"a\" - then", expect![[r#""say “a” – then\n" [Typography]"#]]);
    check("x “a” y\n", "\"a\"", "\"b\"", expect![[r#""x “b” y\n" [Typography]"#]]);
    check("it's\n", "it’s", "it’s not", expect![[r#""it's not\n" [Typography]"#]]);
    check("a\u{a0}b\n", "a b", "c", expect![[r#""c\n" [Typography]"#]]);
    check("‘a’ ‘a’\n", "'a'", "b", expect!["Typography at lines [1]"]);
    check("“a”\r\nb\r\n", "\"a\"\nb\n", "\"a\"\nc\n", expect![[r#""“a”\r\nc\r\n" [LineEndings, Typography]"#]]);
    check("“a”\nb\n", "\"a\"\nb\n", "x\n\"a\"\n", expect![[r#""x\n“a”\n" [Typography]"#]]);
}

#[test]
fn consecutive_line_numbers_are_cut_off() {
    check("a\nb\nc\n", "2\tb\n3\tc\n", "2\tx\n3\tc\n", expect![[r#""a\nx\nc\n" [LineNumbers]"#]]);
    check("a\nb\nc\n", "2\tb\n3\tc", "x", expect![[r#""a\nx\n" [LineNumbers]"#]]);
    check("a\r\nb\r\n", "1\ta\n2\tb\n", "1\tx\n2\tb\n", expect![[r#""x\r\nb\r\n" [LineEndings, LineNumbers]"#]]);
    check("a\nb\na\nb\n", "1\ta\n2\tb\n", "x\n", expect!["LineNumbers at lines [1, 3]"]);
    check("a\nb\n", "1\ta\n3\tb\n", "x\n", expect!["not found"]);
    check("a\nb\n", "1\ta\nb\n", "x\n", expect!["not found"]);
    check("a\nb\n", "1\ta\n2\tb\n", "1\tx\ny\n", expect!["not found"]);
    check("a\n", "99999999999999999999999\ta\n", "x\n", expect!["not found"]);
}

#[test]
fn numbered_lines_begin_where_lines_begin() {
    check(
        "let data = 1;\na = 1;\n",
        "2\ta = 1;\n",
        "2\ta = 2;\n",
        expect![[r#""let data = 1;\na = 2;\n" [LineNumbers]"#]],
    );
    check("let data = 1;\n", "1\ta = 1;\n", "1\ta = 2;\n", expect!["not found"]);
    check("let data = 1;\r\nb\r\n", "1\ta = 1;\n2\tb\n", "1\ta = 2;\n2\tb\n", expect!["not found"]);
    check("ba\n", "1\ta", "x", expect!["not found"]);
}

#[test]
fn places_that_overlap_are_several() {
    check("a\r\na\r\na\r\n", "a\na\n", "x\n", expect!["LineEndings at lines [1, 2]"]);
    check("“““x\n", "\"\"", "x", expect!["Typography at lines [1]"]);
    check("a\na\na\n", "1\ta\n2\ta\n", "x\n", expect!["LineNumbers at lines [1, 2]"]);
    // With either line ending, or with both.
    check("a\na\r\na\r\n", "a\na\n", "x\n", expect!["LineEndings at lines [1, 2]"]);
    check("b\nb\r\n", "2\tb\n", "x\n", expect!["LineNumbers at lines [1, 2]"]);
    check("a \na \na \n", "a\na\n", "x\n", expect!["TrailingBlanks at lines [1, 2]"]);
}

#[test]
fn a_search_that_is_given_up_ends_with_that() {
    let text = "a \n".repeat(1_500_000) + "  b\n";
    check(&text, &("a\n".repeat(2000) + "c\n"), "x\n", expect!["too large"]);
}

#[test]
fn a_replacement_that_cannot_be_adapted_is_not_made_elsewhere() {
    // The text is at line 1 with less indentation, which a new line does not have.
    check("a\n“b”\nx\n", "  a\n  “b”\n", "y\n", expect!["not found"]);
    assert_eq!(find_relaxed("a\nb\n", "  a\n  b\n", "x\n"), Err(TextMatchError::Unadaptable));
}

#[test]
fn nothing_is_matched_by_similarity() {
    let text = "fn open(path: &str) -> File {\n    File::open(path)\n}\n";
    for old in [
        "fn open(path: &Path) -> File {\n",
        "fn open(path:&str) -> File {\n    File::open(path)\n}\n",
        "FN OPEN(path: &str) -> File {",
        "fn open(path: &str) -> File {\n\n    File::open(path)\n}\n",
        "fn open(path: &str) -> File {\n    ...\n}\n",
        "fn open(path: &str)  -> File {",
    ] {
        check(text, old, "x", expect!["not found"]);
    }
}

#[test]
fn the_nearest_lines_are_shown_as_they_are() {
    let text = "use a;\n\nfn open(path: &str) {\n    read(path);\n    close();\n}\n\nfn other() {}\n";
    let check = |old: &str, expected: Expect| expected.assert_eq(&nearest_lines(text, old).unwrap_or_default());
    check("fn open(path: &Path) {\n    read(path);\n", expect!["3\tfn open(path: &str) {\n4\t    read(path);"]);
    check("fn open(file: &str) {", expect!["3\tfn open(path: &str) {"]);
    check("}\n\nfn other() { }", expect!["6\t}\n7\t\n8\tfn other() {}"]);
    check("struct Nothing;", expect![""]);
    check("", expect![""]);
    let many: String = (0..100).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "line {number} {}", "é".repeat(400));
        text
    });
    let shown = nearest_lines(&many, &many.replace("line 50", "row 50")).unwrap();
    assert_eq!(shown.lines().count(), 8);
    assert!(shown.len() < 8 * 320, "{}", shown.len());
}

/// Lines that differ in what relaxations are about.
fn any_line() -> impl Strategy<Value = String> {
    let indent = select(vec!["", "  ", "    ", "\t"]);
    let body = select(vec!["a", "b", "\"c\"", "“c”", "d - e", "d – e", "", "1\ta", "2\tb"]);
    let tail = select(vec!["", "", " ", "\t"]);
    let end = select(vec!["\n", "\n", "\n", "\r\n"]);
    (indent, body, tail, end).prop_map(|(indent, body, tail, end)| [indent, body, tail, end].concat())
}

fn any_text(lines: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    (vec(any_line(), lines), any::<bool>()).prop_map(|(lines, open)| {
        let text = lines.concat();
        if open { text.trim_end_matches(['\n', '\r']).to_owned() } else { text }
    })
}

/// A text as a relaxation would have it: what is left is the same for every text that it can match.
fn loosest(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim().trim_start_matches(|c: char| c.is_ascii_digit() || c == '\t').trim();
        line.replace(['“', '”'], "\"").replace('–', "-")
    });
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// The starts of all places that a text is at by one relaxation, by a look at each of them.
fn places(text: &str, old: &str, relaxation: TextRelaxation) -> Vec<usize> {
    let starts = |wanted: &[String], text: &str| -> Vec<usize> {
        let bounds = text.char_indices().map(|(at, _)| at);
        bounds.filter(|at| wanted.iter().any(|wanted| text[*at..].starts_with(wanted.as_str()))).collect()
    };
    let endings = |old: &str| vec![old.replace("\r\n", "\n"), old.replace("\r\n", "\n").replace('\n', "\r\n")];
    let ascii = |text: &str| text.replace(['“', '”'], "\"").replace('–', "-");
    match relaxation {
        TextRelaxation::LineEndings => starts(&endings(old), text),
        TextRelaxation::Typography => {
            let wanted = [vec![old.to_owned()], endings(old)].concat();
            let found = starts(&wanted.iter().map(|old| ascii(old)).collect::<Vec<_>>(), &ascii(text));
            // As many characters, each of one byte.
            let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            found.into_iter().map(|at| bounds[at]).collect()
        }
        TextRelaxation::ContextMark => Vec::new(),
        TextRelaxation::LineNumbers => {
            let cut: String = old.split_inclusive('\n').filter_map(|line| Some(line.split_once('\t')?.1)).collect();
            let wanted = [vec![cut.clone()], endings(&cut)].concat();
            let found = starts(&wanted, text).into_iter();
            found.filter(|at| *at == 0 || text[..*at].ends_with('\n')).collect()
        }
        TextRelaxation::TrailingBlanks | TextRelaxation::Indentation | TextRelaxation::IndentationAndTrailingBlanks => {
            let (file, wanted): (Vec<&str>, Vec<&str>) = (text.lines().collect(), old.lines().collect());
            let at = |line: usize| text.split_inclusive('\n').take(line).map(str::len).sum::<usize>();
            let windows = file.windows(wanted.len().max(1)).enumerate();
            windows.filter(|(_, window)| are_alike(window, &wanted, relaxation)).map(|(line, _)| at(line)).collect()
        }
    }
}

/// Whether lines of a file are the wanted ones by a relaxation, tried with every shift there is.
fn are_alike(file: &[&str], wanted: &[&str], relaxation: TextRelaxation) -> bool {
    let trim = relaxation != TextRelaxation::Indentation;
    let trimmed = |line: &str| if trim { line.trim_end().to_owned() } else { line.to_owned() };
    if relaxation == TextRelaxation::TrailingBlanks {
        return file.iter().zip(wanted).all(|(there, line)| trimmed(there) == trimmed(line));
    }
    let shifts = file.iter().chain(wanted).flat_map(|line| {
        let blanks = line.len() - line.trim_start().len();
        (1..=blanks).map(|count| line[..count].to_owned())
    });
    let mut shifts = shifts.flat_map(|blanks| [(blanks.clone(), String::new()), (String::new(), blanks)]);
    shifts.any(|(more, less)| {
        file.iter().zip(wanted).all(|(there, line)| {
            let (there, line) = (trimmed(there), trimmed(line));
            let is_blank = line.trim().is_empty();
            (is_blank && there == line)
                || (!(is_blank && trim) && [less.as_str(), &there].concat() == [more.as_str(), &line].concat())
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_relaxed_match_replaces_what_is_the_same_text_but_for_its_relaxations(
        text in any_text(0..12),
        old in any_text(1..4),
        new in any_text(0..4),
    ) {
        if old.is_empty() || memmem::find(text.as_bytes(), old.as_bytes()).is_some() {
            return Ok(());
        }
        let Ok(found) = find_relaxed(&text, &old, &new) else { return Ok(()) };
        prop_assert!(!found.relaxations.is_empty());
        prop_assert_eq!(loosest(&text[found.start..found.end]), loosest(&old));
        prop_assert_eq!(loosest(&found.new), loosest(&new));
        // The old text in place of the new one changes nothing, or line endings alone.
        let same = find_relaxed(&text, &old, &old).map(|found| replaced(&text, &found));
        prop_assert_eq!(same.map(|text| text.replace('\r', "")), Ok(text.replace('\r', "")));
    }

    #[test]
    fn a_relaxed_match_is_the_only_place_that_a_look_at_each_one_finds(
        text in any_text(0..12),
        old in any_text(1..4),
        cut in 0..3usize,
    ) {
        // The text may begin and end within a line.
        let old = old.get(cut..).unwrap_or(&old);
        if old.is_empty() || memmem::find(text.as_bytes(), old.as_bytes()).is_some() {
            return Ok(());
        }
        let Ok(found) = find_relaxed(&text, old, old) else { return Ok(()) };
        let level = found.relaxations.last().copied().unwrap();
        prop_assert_eq!(places(&text, old, level), [found.start], "{:?} in {:?}: {:?}", old, text, level);
        // No stricter relaxation matches anything.
        if level > TextRelaxation::LineEndings && level != TextRelaxation::LineNumbers {
            prop_assert_eq!(places(&text, old, TextRelaxation::LineEndings), [0usize; 0]);
        }
    }

    #[test]
    fn a_text_with_one_difference_is_found_where_it_is_or_refused(
        text in any_text(1..12),
        from in any::<proptest::sample::Index>(),
        count in 1..4usize,
        way in 0..5usize,
    ) {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        if lines.is_empty() {
            return Ok(());
        }
        let from = from.index(lines.len());
        let meant = lines[from..lines.len().min(from + count)].concat();
        let relaxations = [
            TextRelaxation::LineEndings,
            TextRelaxation::TrailingBlanks,
            TextRelaxation::Indentation,
            TextRelaxation::Typography,
            TextRelaxation::LineNumbers,
        ];
        let old = match way {
            0 => meant.replace("\r\n", "\n"),
            1 => meant.lines().map(|line| format!("{}\n", line.trim_end())).collect(),
            2 => meant.lines().map(|line| format!("   {line}\n")).collect(),
            3 => meant.replace(['“', '”'], "\"").replace('–', "-"),
            _ => (from + 1..).zip(meant.split_inclusive('\n')).fold(String::new(), |mut old, (number, line)| {
                let _ = write!(old, "{number}\t{line}");
                old
            }),
        };
        if old.is_empty() || memmem::find(text.as_bytes(), old.as_bytes()).is_some() {
            return Ok(());
        }
        // A stricter relaxation may match another place, and goes first.
        if let Ok(found) = find_relaxed(&text, &old, "") && found.relaxations == [relaxations[way]] {
            let start = lines[..from].iter().map(|line| line.len()).sum::<usize>();
            prop_assert_eq!(found.start, start, "{:?} in {:?}", old, text);
        }
    }
}
