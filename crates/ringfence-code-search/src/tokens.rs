//! Tokenizer: text and identifiers as stems.
//!
//! Identifiers are split at underscores, at changes of case and at digits, lower-cased and stemmed. Stop words of English
//! are left out. Takes time in proportion to the text.
//!
//! Not here: the stemmer (`stem.rs`).

use crate::stem::stem;

/// A longer word is data.
const LONGEST_WORD: usize = 40;

/// A longer number is data.
const LONGEST_NUMBER: usize = 6;

/// Words without a meaning of their own, sorted.
const STOP_WORDS: &[&str] = &[
    "a", "about", "an", "and", "any", "are", "as", "at", "be", "been", "being", "but", "by", "can", "could", "did",
    "do", "does", "each", "for", "from", "had", "has", "have", "how", "i", "if", "in", "into", "is", "it", "its",
    "may", "must", "of", "on", "or", "our", "should", "so", "such", "than", "that", "the", "their", "them", "then",
    "there", "these", "they", "this", "those", "to", "was", "we", "were", "what", "when", "where", "which", "while",
    "who", "will", "with", "would", "you", "your",
];

/// The stems of a text, in its order.
pub fn stems(text: &str) -> Vec<String> {
    let mut stems = Vec::new();
    each_stem(text, |stem| stems.push(stem.to_owned()));
    stems
}

/// Passes each stem of a text on, in its order.
pub fn each_stem(text: &str, mut take: impl FnMut(&str)) {
    let mut word = String::new();
    each_word(text, |part| {
        word.clear();
        if part.is_ascii() {
            word.push_str(part);
            word.make_ascii_lowercase();
        } else {
            word.extend(part.chars().flat_map(char::to_lowercase));
        }
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        let longest = if is_number { LONGEST_NUMBER } else { LONGEST_WORD };
        if word.len() > longest || (word.len() < 2 && !is_number) || STOP_WORDS.binary_search(&word.as_str()).is_ok() {
            return;
        }
        stem(&mut word);
        take(&word);
    });
}

/// The kind of a character, for splitting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Upper,
    Lower,
    Digit,
    Separator,
}

impl CharClass {
    fn of(character: char) -> Self {
        match character {
            'a'..='z' => Self::Lower,
            'A'..='Z' => Self::Upper,
            '0'..='9' => Self::Digit,
            '\0'..='\x7f' => Self::Separator,
            other if other.is_uppercase() => Self::Upper,
            other if other.is_alphabetic() => Self::Lower,
            other if other.is_numeric() => Self::Digit,
            _ => Self::Separator,
        }
    }
}

/// Passes each word on as it is written: `HTTPServer2` has `HTTP`, `Server` and `2`.
fn each_word<'a>(text: &'a str, mut take: impl FnMut(&'a str)) {
    let mut start = 0;
    let mut before = CharClass::Separator;
    // Where the last capital of a run of several begins.
    let mut last_capital = None;
    for (at, character) in text.char_indices() {
        let class = CharClass::of(character);
        match (before, class) {
            (CharClass::Separator, _) => start = at,
            (CharClass::Upper, CharClass::Lower) => {
                if let Some(capital) = last_capital {
                    take(&text[start..capital]);
                    start = capital;
                }
            }
            (before, class) if before != class => {
                take(&text[start..at]);
                start = at;
            }
            _ => {}
        }
        last_capital = (class == CharClass::Upper && before == CharClass::Upper).then_some(at);
        before = class;
    }
    if before != CharClass::Separator {
        take(&text[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(stems(text).join(" "), expected, "{text}");
    }

    #[test]
    fn identifiers_are_split_lower_cased_and_stemmed() {
        check("parseHTTPRequest", "pars http request");
        check("read_file_bytes", "read file byte");
        check("MAX_WALK_ENTRIES", "max walk entri");
        check("sha256Sum", "sha 256 sum");
        check("IOError", "io error");
        check("HTTPServer2", "http server 2");
        check("x y Zed", "zed");
        check("where the files of a user are written", "file user written");
        check("größe ÄHNLICH", "größe ähnlich");
        check("deadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeef 1234567", "");
        check("", "");
        check("___", "");
        check("A", "");
    }

    #[test]
    fn stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
    }

    proptest::proptest! {
        #[test]
        fn any_text_has_stems_within_it(text in "\\PC{0,200}") {
            for stem in stems(&text) {
                assert!(!stem.is_empty() && stem.len() <= 2 * LONGEST_WORD);
            }
        }
    }
}
