//! Words that do not belong in what people read: a list of phrases, and those that look like them but are right.

use super::lexer::{Token, TokenKind, without_tests};

/// A phrase of the list, where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WordHit {
    pub(crate) phrase: &'static str,
    pub(crate) line: usize,
}

/// Phrases to avoid, in lower case.
const PHRASES: &[&str] = &[
    "whoever",
    "whomever",
    "somebody",
    "nobody",
    "is no",
    "are no",
    "was no",
    "were no",
    "is none",
    "anew",
    "take back",
    "takes back",
    "took back",
    "taken back",
    "taking back",
    "taken up again",
    "for good",
    "put off",
    "puts off",
    "noes",
    "(s)",
    "turned inward",
    "turn inward",
    "goes inward",
    "so many",
    "so much time",
    "has a word in",
];

/// Exceptions, which contain a phrase of the list.
const ALLOWED: &[&str] = &[
    "there is no",
    "there are no",
    "there was no",
    "there were no",
    "is no longer",
    "are no longer",
    "was no longer",
    "were no longer",
    "is no more than",
    "are no more than",
    "is there no",
    "there is none",
    // The user of that name.
    "`nobody`",
    "user nobody",
    "su nobody",
    "nobody:nogroup",
    "nobody:x:",
    "uid=65534(nobody)",
    // The table of that name in state of older versions.
    "table noes",
    "from noes",
    "into noes",
    "exists noes",
];

/// Every occurrence of a phrase of the list in a text. Phrases are found over line breaks too.
pub(crate) fn hits(text: &str) -> Vec<WordHit> {
    let flat = FlatText::new(text);
    let mut allowed = vec![false; flat.chars.len()];
    for phrase in ALLOWED {
        for at in flat.occurrences(phrase) {
            allowed[at..at + phrase.chars().count()].fill(true);
        }
    }
    let mut found = Vec::new();
    for &phrase in PHRASES {
        let places = flat.occurrences(phrase).into_iter().filter(|at| !allowed[*at]);
        found.extend(places.map(|at| WordHit { phrase, line: flat.lines[at] }));
    }
    found.sort_by_key(|hit| hit.line);
    found
}

/// The same in the string literals of Rust source, but for those of its tests.
pub(crate) fn hits_in_literals(tokens: &[Token]) -> Vec<WordHit> {
    let mut found = Vec::new();
    for token in without_tests(tokens) {
        if let TokenKind::Literal(text) = &token.kind {
            // A backslash at the end of a line joins it with the next one; `\n` and `\t` are white space.
            let joined = text.replace("\\\n", "\n").replace("\\n", " ").replace("\\t", " ");
            found.extend(hits(&joined).into_iter().map(|hit| WordHit { line: token.line + hit.line - 1, ..hit }));
        }
    }
    found
}

/// A script whose lines that are only a comment are empty.
pub(crate) fn without_line_comments(script: &str) -> String {
    let is_comment = |line: &str| ["//", "/*", "*"].iter().any(|mark| line.trim_start().starts_with(mark));
    script.lines().map(|line| if is_comment(line) { "\n".to_owned() } else { format!("{line}\n") }).collect()
}

/// A text in lower case whose runs of white space are one space each, with the line of every character.
struct FlatText {
    chars: Vec<char>,
    lines: Vec<usize>,
}

impl FlatText {
    fn new(text: &str) -> Self {
        let (mut chars, mut lines, mut line) = (Vec::new(), Vec::new(), 1);
        for c in text.chars() {
            let is_repeated_space = c.is_whitespace() && chars.last() == Some(&' ');
            if !is_repeated_space {
                chars.push(if c.is_whitespace() { ' ' } else { c.to_ascii_lowercase() });
                lines.push(line);
            }
            line += usize::from(c == '\n');
        }
        FlatText { chars, lines }
    }

    /// Positions of a phrase, as whole words.
    fn occurrences(&self, phrase: &str) -> Vec<usize> {
        let phrase: Vec<char> = phrase.chars().collect();
        let is_word = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric() || *c == '_');
        let (first_is_word, last_is_word) = (is_word(phrase.first()), is_word(phrase.last()));
        let starts = self.chars.windows(phrase.len()).enumerate().filter(|(_, window)| **window == phrase[..]);
        let whole = starts.map(|(at, _)| at).filter(|at| {
            let before = at.checked_sub(1).and_then(|at| self.chars.get(at));
            let after = self.chars.get(at + phrase.len());
            !(first_is_word && is_word(before) || last_is_word && is_word(after))
        });
        whole.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::{hits, hits_in_literals, without_line_comments};

    fn phrases(text: &str) -> Vec<(&'static str, usize)> {
        hits(text).into_iter().map(|hit| (hit.phrase, hit.line)).collect()
    }

    #[test]
    fn phrases_are_found_in_any_case_over_line_breaks_and_as_whole_words() {
        for (text, wanted) in [
            ("Nobody is asked", vec![("nobody", 1)]),
            ("`x` is\n  no name for a token", vec![("is no", 1)]),
            ("first\n2 step(s), so many of them", vec![("(s)", 2), ("so many", 2)]),
            ("it is not so, this no longer is, and a renewal", vec![]),
            ("can be taken back, for goods", vec![("taken back", 1)]),
        ] {
            assert_eq!(phrases(text), wanted, "{text}");
        }
    }

    #[test]
    fn allowed_phrases_allow_themselves_alone() {
        for text in ["there is no such file", "it is no longer there", "run it as `nobody`", "There are\nno rules"] {
            assert_eq!(phrases(text), [], "{text}");
        }
        assert_eq!(phrases("there is no name, and this is no name"), [("is no", 1)]);
        assert_eq!(phrases("as `nobody`, when nobody is there"), [("nobody", 1)]);
    }

    #[test]
    fn messages_are_read_and_comments_names_and_tests_are_not() {
        let source = "// nobody\nfn nobody() {\n  say(\"one\\\n    is no name\")\n}\n#[cfg(test)] mod tests { const A: &str = \"nobody\"; }";
        let found: Vec<_> = hits_in_literals(&tokens(source)).iter().map(|hit| (hit.phrase, hit.line)).collect();
        assert_eq!(found, [("is no", 4)]);
        assert_eq!(phrases(&without_line_comments("// nobody\nsay('anew');\n  * whoever\n")), [("anew", 2)]);
    }
}
