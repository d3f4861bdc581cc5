//! Word list: phrases to avoid in pages, messages and comments, and their exceptions.

use super::lexer::{Token, TokenKind, comments, without_tests};

/// A phrase of the list, where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WordHit {
    pub(crate) phrase: &'static str,
    pub(crate) line: usize,
}

/// Phrases to avoid, in lower case.
const PHRASES: &[&str] = &[
    "whoever",
    "whom",
    "whomever",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
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
    let mut allowed = vec![false; flat.text.len()];
    for phrase in ALLOWED {
        for at in flat.occurrences(phrase) {
            allowed[at..at + phrase.len()].fill(true);
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

/// The same in the comments of Rust source, those of its tests included.
pub(crate) fn hits_in_comments(source: &str) -> Vec<WordHit> {
    let found = comments(source).into_iter().flat_map(|comment| {
        hits(&comment.text).into_iter().map(move |hit| WordHit { line: comment.line + hit.line - 1, ..hit })
    });
    found.collect()
}

/// A script whose comment lines have no marks, so that a phrase is found over the line breaks of a comment.
pub(crate) fn without_comment_marks(script: &str) -> String {
    let unmarked = |line: &str| {
        let start = line.trim_start();
        ["//", "/*", "*"].iter().find_map(|mark| start.strip_prefix(mark)).unwrap_or(line).to_owned()
    };
    script.lines().map(|line| unmarked(line) + "\n").collect()
}

/// A text in lower case whose runs of white space are one space each, with the line of every byte.
struct FlatText {
    text: String,
    lines: Vec<usize>,
}

impl FlatText {
    fn new(source: &str) -> Self {
        let (mut text, mut lines, mut line) = (String::with_capacity(source.len()), Vec::new(), 1);
        for c in source.chars() {
            if !(c.is_whitespace() && text.ends_with(' ')) {
                text.push(if c.is_whitespace() { ' ' } else { c.to_ascii_lowercase() });
                lines.resize(text.len(), line);
            }
            line += usize::from(c == '\n');
        }
        FlatText { text, lines }
    }

    /// Positions of a phrase, as whole words.
    fn occurrences(&self, phrase: &str) -> Vec<usize> {
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let (first_is_word, last_is_word) = (is_word(phrase.chars().next()), is_word(phrase.chars().next_back()));
        let starts = self.text.match_indices(phrase).map(|(at, _)| at);
        let whole = starts.filter(|at| {
            let before = self.text[..*at].chars().next_back();
            let after = self.text[at + phrase.len()..].chars().next();
            !(first_is_word && is_word(before) || last_is_word && is_word(after))
        });
        whole.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::{hits, hits_in_comments, hits_in_literals, without_comment_marks};

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
    }

    #[test]
    fn comments_of_scripts_are_read_over_their_line_breaks() {
        let found =
            phrases(&without_comment_marks("// nobody\nsay('anew');\n  // this is\n  // no name\n * whoever\n"));
        assert_eq!(found, [("nobody", 1), ("anew", 2), ("is no", 3), ("whoever", 5)]);
        assert_eq!(phrases(&without_comment_marks("// There is\n// no such name.\na = b\n  * c;\n")), []);
    }

    #[test]
    fn comments_are_read_and_literals_and_code_are_not() {
        let found = |source: &str| -> Vec<(&'static str, usize)> {
            hits_in_comments(source).into_iter().map(|hit| (hit.phrase, hit.line)).collect()
        };
        for (source, wanted) in [
            ("/// Whoever reads it.\nfn a() {}", vec![("whoever", 1)]),
            ("fn a() {\n    // This is\n    // no name.\n}", vec![("is no", 2)]),
            ("a(); // gone for good", vec![("for good", 1)]),
            ("/*\n * made anew\n */", vec![("anew", 2)]),
            ("#[cfg(test)]\nmod tests {\n    // nobody\n}", vec![("nobody", 3)]),
            ("// There is no such file; run as `nobody`.", vec![]),
            ("fn nobody() { say(\"nobody\", \"http://nobody/anew\", 'n', r#\"// anew\"#) }", vec![]),
            ("// is\nlet a = 1;\n// no", vec![]),
        ] {
            assert_eq!(found(source), wanted, "{source}");
        }
    }
}
