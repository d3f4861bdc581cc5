//! Text of others, as it is safe to show on a terminal.
//!
//! What would move the cursor, change the order of letters or not be seen at all is shown as an escape, so that nothing
//! on the screen looks like something else.

/// One line without anything that is not seen. A tab is a space, and a line break is an escape like the others.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push(' '),
            _ if c.is_control() || is_unseen(c) => shown.extend(c.escape_unicode()),
            _ => shown.push(c),
        }
    }
    shown
}

/// Each line by itself.
pub(crate) fn visible_lines(text: &str) -> Vec<String> {
    text.split('\n').map(|line| visible(line.strip_suffix('\r').unwrap_or(line))).collect()
}

/// Marks that turn the direction of text, have no width, or carry hidden letters.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::{visible, visible_lines};

    #[test]
    fn what_cannot_be_seen_is_shown_as_an_escape() {
        assert_eq!(visible("plain é 漢 🦀"), "plain é 漢 🦀");
        assert_eq!(visible("\u{1b}[2J\r\n\u{7}\u{9b}"), r"\u{1b}[2J\u{d}\u{a}\u{7}\u{9b}");
        assert_eq!(visible("gpj.\u{202e}exe\u{200b}"), r"gpj.\u{202e}exe\u{200b}");
        assert_eq!(visible("a\u{e0041}\u{2066}b\tc"), r"a\u{e0041}\u{2066}b c");
        assert_eq!(visible_lines("a\r\nb\rc\n"), ["a", r"b\u{d}c", ""]);
    }
}
