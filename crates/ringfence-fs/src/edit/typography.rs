//! Typographic characters and the ASCII ones that people and models write for them.

use std::borrow::Cow;

/// The same text with ASCII quotes, dashes and spaces. Every character stays one character.
pub(super) fn to_ascii(text: &str) -> Cow<'_, str> {
    if text.is_ascii() { text.into() } else { text.chars().map(ascii_of).collect::<String>().into() }
}

fn ascii_of(c: char) -> char {
    match c {
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}

/// A line that replaces `old`, with the characters of the file where it has not changed: at both ends.
pub(super) fn keep_ends(file: &str, old: &str, new: &str) -> String {
    let (file, old, new): (Vec<char>, Vec<char>, Vec<char>) =
        (file.chars().collect(), old.chars().collect(), new.chars().collect());
    // Blanks at the end of the file's line may be left out of the old one.
    let shared = file.len().min(old.len());
    let same = |pair: &(&char, &char)| pair.0 == pair.1;
    let head = old[..shared].iter().zip(&new).take_while(same).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(same).count();
    let tail = if file.len() == old.len() { tail } else { 0 };
    let kept = file[..head].iter().chain(&new[head..new.len() - tail]).chain(&file[file.len() - tail..]);
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::{keep_ends, to_ascii};

    #[test]
    fn every_character_stays_one_character() {
        for c in '\0'..='\u{ffff}' {
            assert_eq!(to_ascii(&c.to_string()).chars().count(), 1);
        }
        assert_eq!(to_ascii("“a” – ‘b’\u{a0}c"), "\"a\" - 'b' c");
    }

    #[test]
    fn a_changed_line_keeps_the_characters_around_its_change() {
        assert_eq!(keep_ends("say “a” – now", "say \"a\" - now", "say \"a\" - then"), "say “a” – then");
        assert_eq!(keep_ends("“a”, “b”", "\"a\", \"b\"", "\"a\", \"x\", \"b\""), "“a”, “x\", \"b”");
        assert_eq!(keep_ends("“a”", "\"a\"", ""), "");
        assert_eq!(keep_ends("“a”", "\"a\"", "\"a\""), "“a”");
        assert_eq!(keep_ends("“a”  ", "\"a\"", "\"ab\""), "“ab\"");
        assert_eq!(keep_ends("", "x", "y"), "y");
    }
}
