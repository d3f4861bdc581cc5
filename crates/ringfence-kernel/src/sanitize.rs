//! Text sanitizing: control, bidi and invisible characters are escaped before a person sees them.
//!
//! Whatever a terminal would obey, reorder or leave out is written as an escape, such as `\u{202e}`. Text without such
//! characters comes out as it went in, but for lines that are too long to be read.
//!
//! Not here: what is worth showing. Each tool makes its own preview.

use std::fmt::Write as _;

use crate::sensitive::is_ignorable;

/// Most characters of a line that are shown. A longer one is truncated, with a notice.
const MAX_LINE_CHARS: usize = 2000;

/// Characters of these that are reserved for the notice.
const CUT_NOTICE_CHARS: usize = 64;

/// Text of several lines.
pub fn sanitize_text(text: &str) -> String {
    sanitize_lines(text, MAX_LINE_CHARS)
}

/// The same without truncation, for text that was requested in full.
pub fn sanitize_untruncated(text: &str) -> String {
    sanitize_lines(text, usize::MAX)
}

fn sanitize_lines(text: &str, longest: usize) -> String {
    let mut shown = String::with_capacity(text.len());
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            shown.push('\n');
        }
        push_sanitized_line(&mut shown, line, longest, |c| c == '\t');
    }
    shown
}

/// Text that must stay one line, such as a name: a newline or a tab in it is an escape too.
///
/// ```
/// use ringfence_kernel::sanitize_line;
///
/// assert_eq!(sanitize_line("invoice\u{202e}fdp.exe\n"), r"invoice\u{202e}fdp.exe\u{a}");
/// ```
pub fn sanitize_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    push_sanitized_line(&mut shown, text, MAX_LINE_CHARS, |_| false);
    shown
}

/// JSON in which nothing hides: every such character is written as JSON writes it, `\u202e`. Valid JSON has them in strings
/// alone, so that it still means the same; only white space between values stays as it is.
pub fn sanitize_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    let mut units = [0; 2];
    let mut plain = 0;
    for (start, c) in json.char_indices() {
        if matches!(c, '\n' | '\r' | '\t') || !is_misleading(c) {
            continue;
        }
        shown.push_str(&json[plain..start]);
        plain = start + c.len_utf8();
        for unit in c.encode_utf16(&mut units) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    shown.push_str(&json[plain..]);
    shown
}

fn push_sanitized_line(shown: &mut String, line: &str, longest: usize, is_plain: impl Fn(char) -> bool) {
    let (mut count, mut cut) = (0, shown.len());
    for c in line.chars() {
        let before = shown.len();
        match c {
            '\r' => shown.push('␍'),
            c if is_misleading(c) && !is_plain(c) => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
        // All but the return is one character or plain ASCII.
        count += if c == '\r' || shown.len() - before == c.len_utf8() { 1 } else { shown.len() - before };
        if count <= longest - CUT_NOTICE_CHARS {
            cut = shown.len();
        }
        if count > longest {
            shown.truncate(cut);
            let _ = write!(shown, "… (cut: the line has {} characters)", line.chars().count());
            return;
        }
    }
}

/// Whether a character is not displayed as itself: terminal controls, bidirectional controls, zero-width characters,
/// line separators and noncharacters.
fn is_misleading(c: char) -> bool {
    // Nearly all text is that, and every line of the audit log comes by here.
    if (' '..='~').contains(&c) {
        return false;
    }
    c.is_control()
        || is_ignorable(c)
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FFF9}'..='\u{FFFB}' | '\u{FDD0}'..='\u{FDEF}')
        || u32::from(c) & 0xfffe == 0xfffe
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{MAX_LINE_CHARS, is_misleading, sanitize_json, sanitize_line, sanitize_text, sanitize_untruncated};

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(sanitize_text(text), expected, "{text:?}");
    }

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        check("a\x1b[2Kb", "a\\u{1b}[2Kb");
        check("a\r\nb\rc", "a␍\nb␍c");
        check("x\u{202e}txt.exe\u{2066}", "x\\u{202e}txt.exe\\u{2066}");
        check("pass\u{200b}word\u{feff}", "pass\\u{200b}word\\u{feff}");
        check("one\u{2028}line", "one\\u{2028}line");
        check("\u{e0041}\u{fffe}\u{10ffff}\u{9b}\u{7f}\0", "\\u{e0041}\\u{fffe}\\u{10ffff}\\u{9b}\\u{7f}\\u{0}");
    }

    #[test]
    fn text_in_any_script_stays_as_it_is() {
        for text in ["", "a\tb\n\nc\n", "naïve ß 漢字 עברית العربية 👍", "\\u{202e} as somebody wrote it", "a␍b"]
        {
            check(text, text);
        }
    }

    #[test]
    fn json_means_the_same_with_nothing_hidden_in_it() {
        let value = serde_json::json!({"a\u{9b}2J": ["x\u{202e}y\u{7f}", "\u{e0041}", "naïve\n\t👍"]});
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let shown = sanitize_json(&json);
            assert!(!shown.contains(|c: char| is_misleading(c) && c != '\n'), "{shown:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
        assert_eq!(sanitize_json("\"\u{9b}\u{e0041}\""), r#""\u009b\udb40\udc41""#);
    }

    #[test]
    fn a_name_stays_one_line() {
        assert_eq!(sanitize_line("a\nallowed: yes\t"), "a\\u{a}allowed: yes\\u{9}");
    }

    #[test]
    fn a_long_line_is_cut_and_says_how_long_it_is() {
        let line = "é".repeat(MAX_LINE_CHARS);
        check(&line, &line);
        let shown = sanitize_text(&format!("a\n{line}é\nb"));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines[0], lines[2]), ("a", "b"));
        assert!(lines[1].ends_with("é… (cut: the line has 2001 characters)"), "{}", lines[1]);
        assert!(lines[1].chars().count() <= MAX_LINE_CHARS);
        // An escape is shown whole or not at all.
        let escapes = sanitize_text(&"\u{202e}".repeat(1000));
        assert!(escapes.contains("\\u{202e}… (cut: the line has 1000 characters)"), "{escapes}");
    }

    #[test]
    fn untruncated_text_is_not_cut() {
        let line = "x".repeat(3 * MAX_LINE_CHARS);
        assert_eq!(sanitize_untruncated(&format!("{line}\x1b[2J\n\t{line}")), format!("{line}\\u{{1b}}[2J\n\t{line}"));
    }

    proptest! {
        #[test]
        fn nothing_misleading_is_left(text in any_text()) {
            let shown = sanitize_text(&text);
            prop_assert!(!shown.chars().any(|c| is_misleading(c) && !matches!(c, '\n' | '\t')), "{shown:?}");
            prop_assert!(shown.lines().all(|line| line.chars().count() <= MAX_LINE_CHARS));
            prop_assert!(!sanitize_line(&text).chars().any(is_misleading));
        }

        #[test]
        fn sanitizing_is_idempotent(text in any_text()) {
            let shown = sanitize_text(&text);
            prop_assert_eq!(sanitize_text(&shown), shown.clone());
            prop_assert_eq!(shown.matches('\n').count(), text.matches('\n').count());
        }

        #[test]
        fn plain_text_is_unchanged(text in any_text()) {
            let plain: String = text.chars().filter(|c| !is_misleading(*c) || matches!(c, '\n' | '\t')).collect();
            prop_assume!(plain.lines().all(|line| line.chars().count() <= MAX_LINE_CHARS));
            prop_assert_eq!(sanitize_text(&plain), plain);
        }
    }

    /// Many characters of the kinds that matter, and now and then a long line.
    fn any_text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<char>().prop_map(String::from),
            "[\\x00-\\x9f\\u{2000}-\\u{206f}\\u{fdd0}-\\u{fdef}\\u{e0000}-\\u{e007f}]",
            "[a-z\\n\\t\\r ]{0,20}",
            (0usize..3000).prop_map(|count| "x".repeat(count)),
        ];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }
}
