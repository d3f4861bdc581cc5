//! Tokens and comments of Rust source, as far as names, paths and texts need them.
//!
//! Lifetimes and numbers are dropped, comments are listed apart ([`comments`]). Items below `#[cfg(test)]` are dropped by
//! [`without_tests`].
//!
//! Not here: macros. Their expansions are not seen.

/// A token, with the line that it begins on, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Ident(String),
    Punct(char),
    /// The contents of a string literal as they are spelled, escapes included.
    Literal(String),
}

impl Token {
    pub(crate) fn ident(&self) -> Option<&str> {
        match &self.kind {
            TokenKind::Ident(name) => Some(name),
            _ => None,
        }
    }

    pub(crate) fn is_ident(&self, name: &str) -> bool {
        self.ident() == Some(name)
    }

    pub(crate) fn is_punct(&self, c: char) -> bool {
        self.kind == TokenKind::Punct(c)
    }
}

/// Splits source text into tokens. Text that is not Rust gives some tokens, never an error.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    Lexer::run(source).tokens
}

/// The text of a comment without its marker, with the line that it begins on. Line comments on consecutive lines are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comment {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The comments of source text. A `//` inside of a literal, such as that of a URL, begins none.
pub(crate) fn comments(source: &str) -> Vec<Comment> {
    let mut joined: Vec<Comment> = Vec::new();
    for comment in Lexer::run(source).comments {
        match joined.last_mut() {
            Some(last) if last.line + last.text.matches('\n').count() + 1 == comment.line => {
                last.text = format!("{}\n{}", last.text, comment.text);
            }
            _ => joined.push(comment),
        }
    }
    joined
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
    comments: Vec<Comment>,
}

impl Lexer {
    fn run(source: &str) -> Self {
        let (chars, tokens, comments) = (source.chars().collect(), Vec::new(), Vec::new());
        let mut lexer = Self { chars, at: 0, line: 1, tokens, comments };
        while lexer.at < lexer.chars.len() {
            lexer.next_token();
        }
        lexer
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn advance(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn advance_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.peek(0).filter(|c| wanted(*c)) {
            text.push(c);
            self.advance();
        }
        text
    }

    fn push(&mut self, kind: TokenKind, line: usize) {
        self.tokens.push(Token { kind, line });
    }

    fn next_token(&mut self) {
        let line = self.line;
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => {
                let comment = self.advance_while(|c| c != '\n');
                self.push_comment(comment.trim_start_matches(['/', '!']), line);
            }
            (Some('/'), Some('*')) => self.block_comment(line),
            (Some('"'), _) => self.string(line),
            (Some('\''), _) => self.quote(),
            (Some(c), _) if c.is_alphabetic() || c == '_' => self.word(line),
            (Some(c), _) if c.is_ascii_digit() => {
                self.advance_while(|c| c.is_alphanumeric() || c == '_');
            }
            (Some(c), _) => {
                if !c.is_whitespace() {
                    self.push(TokenKind::Punct(c), line);
                }
                self.advance();
            }
            (None, _) => {}
        }
    }

    fn push_comment(&mut self, text: &str, line: usize) {
        self.comments.push(Comment { text: text.to_owned(), line });
    }

    /// Block comments nest.
    fn block_comment(&mut self, line: usize) {
        let start = self.at;
        let mut depth = 0;
        while let Some(c) = self.advance() {
            match (c, self.peek(0)) {
                ('/', Some('*')) => depth += 1,
                ('*', Some('/')) => depth -= 1,
                _ => continue,
            }
            self.advance();
            if depth == 0 {
                break;
            }
        }
        let text: String = self.chars[start..self.at].iter().collect();
        self.push_comment(text.trim_matches(['/', '*', '!']), line);
    }

    fn string(&mut self, line: usize) {
        self.advance();
        let mut text = String::new();
        while let Some(c) = self.advance() {
            match c {
                '"' => break,
                '\\' => {
                    text.push(c);
                    text.extend(self.advance());
                }
                c => text.push(c),
            }
        }
        self.push(TokenKind::Literal(text), line);
    }

    /// A character literal or a lifetime.
    fn quote(&mut self) {
        self.advance();
        if self.peek(0) == Some('\\') {
            self.advance();
            self.advance();
            self.advance_while(|c| c != '\'');
            self.advance();
        } else if self.peek(1) == Some('\'') {
            self.advance();
            self.advance();
        } else {
            self.advance_while(|c| c.is_alphanumeric() || c == '_');
        }
    }

    /// An identifier, or a literal with a prefix such as `r#"…"#` or `b"…"`.
    fn word(&mut self, line: usize) {
        let name = self.advance_while(|c| c.is_alphanumeric() || c == '_');
        match (name.as_str(), self.peek(0)) {
            ("b" | "c", Some('"')) => self.string(line),
            ("b", Some('\'')) => self.quote(),
            ("r" | "br" | "cr", Some('"' | '#')) => self.raw(line),
            _ => self.push(TokenKind::Ident(name), line),
        }
    }

    fn raw(&mut self, line: usize) {
        let hashes = self.advance_while(|c| c == '#').len();
        if self.peek(0) != Some('"') {
            // `r#type` is an identifier.
            let name = self.advance_while(|c| c.is_alphanumeric() || c == '_');
            return self.push(TokenKind::Ident(name), line);
        }
        self.advance();
        let mut text = String::new();
        while let Some(c) = self.advance() {
            if c == '"' && (0..hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                self.at += hashes;
                break;
            }
            text.push(c);
        }
        self.push(TokenKind::Literal(text), line);
    }
}

/// The tokens without the items that have `#[cfg(test)]` or `#[test]` in front.
pub(crate) fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(&tokens[at..]) {
            at = item_end(tokens, at);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The names of modules declared as `#[cfg(test)] mod name;`, whose files are tests as a whole.
pub(crate) fn test_modules(tokens: &[Token]) -> Vec<String> {
    let attributes = (0..tokens.len()).filter(|at| is_test_attribute(&tokens[*at..]));
    let modules = attributes.filter_map(|at| {
        let item = &tokens[at..item_end(tokens, at)];
        let keyword = item.iter().position(|token| token.is_ident("mod"))?;
        let ends = item.get(keyword + 2).is_some_and(|token| token.is_punct(';'));
        item.get(keyword + 1).and_then(Token::ident).filter(|_| ends).map(str::to_owned)
    });
    modules.collect()
}

fn is_test_attribute(tokens: &[Token]) -> bool {
    let spelled = |wanted: &[&str]| {
        wanted.iter().enumerate().all(|(at, text)| {
            tokens.get(at).is_some_and(|token| match &token.kind {
                TokenKind::Ident(name) => name == text,
                TokenKind::Punct(c) => text.chars().eq([*c]),
                TokenKind::Literal(_) => false,
            })
        })
    };
    spelled(&["#", "[", "cfg", "(", "test", ")", "]"]) || spelled(&["#", "[", "test", "]"])
}

/// Behind the item whose attributes begin here: behind its first `;` or block outside of brackets.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.kind {
            TokenKind::Punct('{' | '(' | '[') => depth += 1,
            // The end of what the item is in, such as a struct whose last field it is.
            TokenKind::Punct('}') if depth == 0 => return at,
            TokenKind::Punct('}') if depth == 1 => return at + 1,
            TokenKind::Punct('}' | ')' | ']') => depth = depth.saturating_sub(1),
            TokenKind::Punct(';') if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::{TokenKind, comments, test_modules, tokens, without_tests};

    fn names(source: &str) -> Vec<String> {
        without_tests(&tokens(source)).iter().filter_map(|token| token.ident().map(str::to_owned)).collect()
    }

    #[test]
    fn comments_literals_and_lifetimes_have_no_identifiers() {
        for (source, wanted) in [
            ("a // b\nc", vec!["a", "c"]),
            ("a /* b /* c */ d */ e", vec!["a", "e"]),
            (r##"a "b \" c" r#"d " e"# b"f" g"##, vec!["a", "g"]),
            ("a<'b> 'c' '\\'' '\\u{41}' d", vec!["a", "d"]),
            ("r#type 0x1f 1_000u64 z", vec!["type", "z"]),
        ] {
            assert_eq!(names(source), wanted, "{source}");
        }
    }

    #[test]
    fn comments_are_told_from_literals_and_joined_by_line() {
        let listed = |source: &str| -> Vec<(usize, String)> {
            comments(source).into_iter().map(|comment| (comment.line, comment.text)).collect()
        };
        for (source, wanted) in [
            ("//! one\n//! two\n\nfn a() {} // three", vec![(1, " one\n two"), (4, " three")]),
            ("/// a\n    // b\nc\n// d", vec![(1, " a\n b"), (4, " d")]),
            ("/* a /* b */\n c */ d // e\n// f", vec![(1, " a /* b */\n c "), (2, " e\n f")]),
            (r#"get("https://a.example/b", '"', "/* c") // d"#, vec![(1, " d")]),
            (r##"r#"one " // two"#, b"// three", "\\" // four"##, vec![(1, " four")]),
            ("a / b; '\\'' // c", vec![(1, " c")]),
            ("\"// a\n// b\"\n// c", vec![(3, " c")]),
        ] {
            let wanted: Vec<(usize, String)> = wanted.into_iter().map(|(line, text)| (line, text.to_owned())).collect();
            assert_eq!(listed(source), wanted, "{source}");
        }
    }

    #[test]
    fn literals_keep_their_text_and_line() {
        let found = tokens("\n\"one\"\n\nr#\"two \"2\" \"#");
        let literals: Vec<_> = found.iter().map(|token| (token.kind.clone(), token.line)).collect();
        let literal = |text: &str| TokenKind::Literal(text.to_owned());
        assert_eq!(literals, [(literal("one"), 2), (literal("two \"2\" "), 4)]);
    }

    #[test]
    fn tests_are_left_out_and_nothing_else() {
        let source =
            "struct A; #[cfg(test)] mod tests { fn b() { c(); } } struct D; #[test] fn e() -> [u8; 2] { f() } g";
        assert_eq!(names(source), ["struct", "A", "struct", "D", "g"]);
        assert_eq!(names("#[cfg(test)] mod fuzz; mod host;"), ["mod", "host"]);
        assert_eq!(names("struct A { a: u8, #[cfg(test)] b: u8 } c"), ["struct", "A", "a", "u8", "c"]);
        assert_eq!(names("#[cfg(not(test))] mod host;"), ["cfg", "not", "test", "mod", "host"]);
        assert_eq!(test_modules(&tokens("#[cfg(test)] mod fuzz; #[cfg(test)] mod tests { } mod host;")), ["fuzz"]);
    }
}
