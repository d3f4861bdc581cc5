//! Corpora for training and measuring code search: the symbols of a package without their documentation, and the first
//! sentences of that documentation as queries.
//!
//! A corpus is the same for the same sources, whatever the order of the directory. No test code is in it.
//!
//! Not here: which packages are read (`packages.rs`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use ringfence_code_search::{CodeSymbol, ExtractionLimits, SourceLanguage as Grammar, extract_symbols, stems};

use super::packages::SourceLanguage;

/// Directories with code of tests, of others, or none.
const SKIPPED_DIRECTORIES: [&str; 22] = [
    "__pycache__",
    "_vendor",
    "bench",
    "benches",
    "conftest",
    "ensurepip",
    "examples",
    "external",
    "fuzz",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "target",
    "test",
    "tests",
    "third_party",
    "thirdparty",
    "turtledemo",
    "unittest_tests",
    "vendor",
    "vendored",
];

const FEWEST_QUERY_STEMS: usize = 3;
const MOST_QUERY_STEMS: usize = 40;

/// A symbol of a corpus. It has no documentation, in its body neither.
#[derive(Clone, Debug)]
pub(crate) struct CorpusSymbol {
    /// Path below the package.
    pub(crate) path: String,
    pub(crate) symbol: CodeSymbol,
}

/// The first sentence of the documentation of a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CorpusQuery {
    pub(crate) text: String,
    /// Index of the symbol in its corpus.
    pub(crate) symbol: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct PackageCorpus {
    pub(crate) name: String,
    pub(crate) symbols: Vec<CorpusSymbol>,
    /// Those that describe one symbol only.
    pub(crate) queries: Vec<CorpusQuery>,
}

impl PackageCorpus {
    /// Reads the sources of a package.
    pub(crate) fn read(name: &str, language: SourceLanguage, directory: &Path) -> Self {
        let mut corpus = Self { name: name.to_owned(), symbols: Vec::new(), queries: Vec::new() };
        for path in source_files(language, directory) {
            // What cannot be read has no symbols.
            let Ok(source) = fs::read(directory.join(&path)) else { continue };
            corpus.add_file(language, &path, &source);
        }
        corpus.keep_unambiguous_queries();
        corpus
    }

    fn add_file(&mut self, language: SourceLanguage, path: &str, source: &[u8]) {
        let grammar = match language {
            SourceLanguage::Rust => Grammar::Rust,
            SourceLanguage::Python => Grammar::Python,
        };
        let text = String::from_utf8_lossy(source);
        let lines: Vec<&str> = text.lines().collect();
        for mut symbol in extract_symbols(grammar, source, &ExtractionLimits::default()) {
            let doc = std::mem::take(&mut symbol.doc);
            symbol.body = without_documentation(language, &symbol.body);
            let sentence = first_sentence(&doc);
            let count = stems(&sentence).len();
            let is_query = (FEWEST_QUERY_STEMS..=MOST_QUERY_STEMS).contains(&count)
                && sentence.is_ascii()
                && !(language == SourceLanguage::Python && follows_comment(&lines, symbol.start_line));
            if is_query {
                self.queries.push(CorpusQuery { text: sentence, symbol: self.symbols.len() });
            }
            self.symbols.push(CorpusSymbol { path: path.to_owned(), symbol });
        }
    }

    /// A sentence that stands at several symbols asks for none of them.
    fn keep_unambiguous_queries(&mut self) {
        let mut count: HashMap<String, usize> = HashMap::new();
        for query in &self.queries {
            *count.entry(query_key(&query.text)).or_default() += 1;
        }
        self.queries.retain(|query| count.get(&query_key(&query.text)) == Some(&1));
    }
}

/// What two queries that ask for the same have in common.
pub(crate) fn query_key(text: &str) -> String {
    stems(text).join(" ")
}

/// The source files below a directory, in the order of their paths. Links are not followed.
fn source_files(language: SourceLanguage, directory: &Path) -> Vec<String> {
    let extension = match language {
        SourceLanguage::Rust => "rs",
        SourceLanguage::Python => "py",
    };
    let mut files = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(directory.join(&below)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            let path = below.join(&name);
            if kind.is_dir() && !name.starts_with('.') && !SKIPPED_DIRECTORIES.contains(&name.as_str()) {
                left.push(path);
            } else if kind.is_file() && is_source(&name, extension) {
                files.extend(path.to_str().map(str::to_owned));
            }
        }
    }
    files.sort();
    files
}

fn is_source(name: &str, extension: &str) -> bool {
    let Some(stem) = name.strip_suffix(extension).and_then(|name| name.strip_suffix('.')) else { return false };
    let is_test = matches!(stem, "build" | "conftest" | "setup" | "test" | "tests")
        || stem.starts_with("test_")
        || stem.ends_with("_test")
        || stem.ends_with("_tests");
    !is_test
}

/// Whether a comment stands right above a definition and its decorators.
fn follows_comment(lines: &[&str], start_line: u32) -> bool {
    let above = (start_line as usize).saturating_sub(1).min(lines.len());
    let mut above = lines[..above].iter().rev().map(|line| line.trim_start());
    above.find(|line| !line.starts_with('@')).is_some_and(|line| line.starts_with('#'))
}

/// A body without the documentation of what is defined in it.
fn without_documentation(language: SourceLanguage, body: &str) -> String {
    match language {
        SourceLanguage::Rust => without_doc_comments(body),
        SourceLanguage::Python => without_docstrings(body),
    }
}

fn without_doc_comments(body: &str) -> String {
    let mut kept = String::with_capacity(body.len());
    let mut in_block = false;
    for line in body.lines() {
        let start = line.trim_start();
        if in_block || start.starts_with("/**") || start.starts_with("/*!") {
            in_block = !start.contains("*/");
            continue;
        }
        if !["///", "//!", "#[doc", "#![doc"].iter().any(|sign| start.starts_with(sign)) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Leaves out strings in three quotes that begin a line: they are documentation of something.
fn without_docstrings(body: &str) -> String {
    let mut kept = String::with_capacity(body.len());
    let mut quotes: Option<&str> = None;
    for line in body.lines() {
        let start = line.trim_start().trim_start_matches(['r', 'R', 'u', 'U', 'b', 'B']);
        if let Some(end) = quotes {
            quotes = quotes.filter(|_| !line.contains(end));
            continue;
        }
        if let Some(sign) = ["\"\"\"", "'''"].into_iter().find(|sign| start.starts_with(sign)) {
            quotes = (!start[sign.len()..].contains(sign)).then_some(sign);
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// The first sentence of a documentation, without the signs of Markdown and reStructuredText.
pub(crate) fn first_sentence(doc: &str) -> String {
    let paragraph = doc.trim_start().lines().map(str::trim);
    let paragraph = paragraph.take_while(|line| !line.is_empty() && !line.starts_with("```") && !starts_section(line));
    let text = paragraph.collect::<Vec<_>>().join(" ");
    let end = text
        .match_indices(['.', '!', '?'])
        .map(|(at, _)| at)
        .find(|at| text[at + 1..].is_empty() || text[at + 1..].starts_with(' ') && !ends_abbreviation(&text[..*at]));
    plain_text(&text[..end.unwrap_or(text.len())])
}

fn starts_section(line: &str) -> bool {
    [">>>", ":param", ":return", ":type", "Args:", "Arguments:", "Parameters", "Returns:", "Example", "@param"]
        .iter()
        .any(|sign| line.starts_with(sign))
}

fn ends_abbreviation(text: &str) -> bool {
    ["e.g", "i.e", "etc", "cf", "vs"].iter().any(|end| text.ends_with(end))
}

/// Cuts targets of links and quotes of code.
fn plain_text(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain.retain(|character| !matches!(character, '`' | '[' | ']' | '*'));
    plain.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{PackageCorpus, first_sentence, without_documentation};
    use crate::train_search::packages::SourceLanguage;

    fn corpus(language: SourceLanguage, source: &str) -> PackageCorpus {
        let mut corpus = PackageCorpus { name: "p".into(), symbols: Vec::new(), queries: Vec::new() };
        corpus.add_file(language, "src/a", source.as_bytes());
        corpus.keep_unambiguous_queries();
        corpus
    }

    #[track_caller]
    fn check(language: SourceLanguage, source: &str, expected: &[(&str, &str)]) {
        let corpus = corpus(language, source);
        let found: Vec<(&str, &str)> = corpus
            .queries
            .iter()
            .map(|query| (query.text.as_str(), corpus.symbols[query.symbol].symbol.name.as_str()))
            .collect();
        assert_eq!(found, expected);
        for symbol in &corpus.symbols {
            assert!(symbol.symbol.doc.is_empty() && !symbol.symbol.body.contains("secret"), "{symbol:?}");
        }
    }

    #[test]
    fn a_query_is_the_first_sentence_of_a_doc_and_the_corpus_has_none() {
        check(
            SourceLanguage::Rust,
            "/// Reads every line of the `file`. A secret.\npub fn lines() {}\n\
             /// Walks over all of the open sockets\n/// and closes them.\nstruct Walk {\n    /// secret field\n    a: u8,\n}\n\
             /// Short.\nfn short() {}\nfn bare() {}\n",
            &[
                ("Reads every line of the file", "lines"),
                ("Walks over all of the open sockets and closes them", "Walk"),
            ],
        );
        check(
            SourceLanguage::Python,
            "def lines(path):\n    \"\"\"Return every line of a file.\n\n    A secret.\n    \"\"\"\n    return open(path)\n\
             # Splits a header in two parts\ndef commented(text):\n    pass\n",
            &[("Return every line of a file", "lines")],
        );
    }

    #[test]
    fn a_sentence_at_several_symbols_is_not_a_query() {
        let twice = "/// Returns the number of items.\nfn a() {}\n/// Returns the number of items!\nfn b() {}\n";
        check(SourceLanguage::Rust, twice, &[]);
    }

    #[test]
    fn a_sentence_ends_at_a_full_stop_a_section_or_an_empty_line() {
        for (doc, expected) in [
            ("Splits [the text](a.html) at `x.y`. Then more.", "Splits the text at x.y"),
            ("Uses e.g. a map for it. More.", "Uses e.g. a map for it"),
            ("Opens a file\n\nand more", "Opens a file"),
            ("Opens a file\n>>> open()", "Opens a file"),
            ("[`Vec`] of [items]", "Vec of items"),
            ("A [link](without an end", "A link"),
            ("", ""),
        ] {
            assert_eq!(first_sentence(doc), expected, "{doc}");
        }
    }

    #[test]
    fn bodies_lose_the_docs_of_what_is_in_them() {
        for (language, body, expected) in [
            (SourceLanguage::Rust, "a\n  /// b\n// c\n/** d\n e */\nf", "a\n// c\nf\n"),
            (SourceLanguage::Rust, "/** one line */\nx", "x\n"),
            (SourceLanguage::Python, "a\n  \"\"\"b\"\"\"\n  r'''c\n d '''\ne = '''x'''", "a\ne = '''x'''\n"),
        ] {
            assert_eq!(without_documentation(language, body), expected);
        }
    }
}
