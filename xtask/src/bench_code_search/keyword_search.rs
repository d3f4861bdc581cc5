//! Keyword search as an agent does it without an index: ripgrep for the words of a question, symbols ranked by how many of the
//! words they have, then by how many their first line has, then the shorter ones first.
//!
//! Not here: rankings of our own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_code_search::stems;

use crate::train_search::{CorpusQuery, PackageCorpus, in_two};

/// A word that is shorter says nothing.
const SHORTEST_WORD: usize = 3;

/// The symbols of a corpus as text files: one for each source file, a symbol after the other.
#[derive(Debug)]
pub(super) struct KeywordTree {
    directory: PathBuf,
    /// For each file, what each line is.
    lines: Vec<Vec<SymbolLine>>,
}

/// A line of a symbol.
#[derive(Clone, Copy, Debug)]
struct SymbolLine {
    symbol: usize,
    /// Lines of the symbol.
    of: usize,
    is_signature: bool,
}

/// The words that a symbol has, and those of its signature.
#[derive(Debug, Default)]
struct WordsFound<'a> {
    any: BTreeSet<&'a str>,
    signature: BTreeSet<&'a str>,
    lines: usize,
}

impl KeywordTree {
    /// Writes the files below an own directory, which is emptied before.
    pub(super) fn write(corpus: &PackageCorpus, directory: &Path) -> Result<Self, String> {
        // It may not be there.
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).map_err(|error| format!("cannot create a directory: {error}"))?;
        let mut files = Vec::new();
        let mut first = 0;
        for file in corpus.symbols.chunk_by(|a, b| a.path == b.path) {
            let mut text = String::new();
            let mut lines = Vec::new();
            for (at, symbol) in file.iter().enumerate() {
                let own: Vec<&str> =
                    [symbol.symbol.signature.as_str()].into_iter().chain(symbol.symbol.body.lines()).collect();
                for (line_at, line) in own.iter().enumerate() {
                    text.push_str(line);
                    text.push('\n');
                    lines.push(SymbolLine { symbol: first + at, of: own.len(), is_signature: line_at == 0 });
                }
            }
            let name = directory.join(format!("{}.txt", files.len()));
            fs::write(name, text).map_err(|error| format!("cannot write a file: {error}"))?;
            files.push(lines);
            first += file.len();
        }
        Ok(Self { directory: directory.to_owned(), lines: files })
    }

    /// The rank of the symbol that each query means.
    pub(super) fn ranks(&self, queries: &[CorpusQuery]) -> Vec<Option<usize>> {
        in_two(queries, |_, query| self.search(&query.text).iter().position(|symbol| *symbol == query.symbol))
    }

    /// Symbols, the best first.
    fn search(&self, text: &str) -> Vec<usize> {
        let words = keywords(text);
        let mut command = Command::new("rg");
        command.args(["--no-config", "--no-ignore", "--ignore-case", "--fixed-strings", "--only-matching"]);
        command.args(["--line-number", "--no-heading", "--with-filename", "--threads=1"]);
        command.args(words.iter().flat_map(|word| ["-e", word])).arg(".").current_dir(&self.directory);
        // A search that finds nothing fails.
        let output = command.output().map(|output| output.stdout).unwrap_or_default();
        self.rank_matches(&String::from_utf8_lossy(&output))
    }

    /// The symbols of matches as ripgrep prints them.
    fn rank_matches(&self, printed: &str) -> Vec<usize> {
        let printed = printed.to_lowercase();
        let mut found: BTreeMap<usize, WordsFound<'_>> = BTreeMap::new();
        for match_line in printed.lines() {
            let Some((line, word)) = self.parse_match(match_line) else { continue };
            let words = found.entry(line.symbol).or_default();
            words.lines = line.of;
            words.any.insert(word);
            if line.is_signature {
                words.signature.insert(word);
            }
        }
        let mut ranked: Vec<(Reverse<usize>, Reverse<usize>, usize, usize)> = found
            .into_iter()
            .map(|(symbol, words)| (Reverse(words.any.len()), Reverse(words.signature.len()), words.lines, symbol))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, _, _, symbol)| symbol).collect()
    }

    /// `./FILE.txt:LINE:MATCH`.
    fn parse_match<'a>(&self, text: &'a str) -> Option<(SymbolLine, &'a str)> {
        let (file, rest) = text.strip_prefix("./")?.split_once(".txt:")?;
        let (line, word) = rest.split_once(':')?;
        let line = line.parse::<usize>().ok()?.checked_sub(1)?;
        Some((*self.lines.get(file.parse::<usize>().ok()?)?.get(line)?, word))
    }
}

/// The words of a question that are worth searching for, each once.
fn keywords(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(|character: char| !character.is_alphanumeric() && character != '_') {
        let word = word.to_lowercase();
        if word.len() >= SHORTEST_WORD && !stems(&word).is_empty() && !words.contains(&word) {
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{KeywordTree, keywords};
    use crate::train_search::{PackageCorpus, SourceLanguage};

    #[test]
    fn keywords_are_words_with_a_meaning() {
        assert_eq!(
            keywords("Returns the first_item of an open file; the file!"),
            ["returns", "first_item", "open", "file"]
        );
        assert!(keywords("to be or is").is_empty());
    }

    #[test]
    fn symbols_with_more_of_the_words_are_first() {
        let directory = tempfile::tempdir().unwrap();
        let source = "fn open() { file(); file(); }\nfn read_lines() { open_file(); }\nfn other() {}\n";
        std::fs::write(directory.path().join("a.rs"), source).unwrap();
        let corpus = PackageCorpus::read("p", SourceLanguage::Rust, directory.path());
        let tree = KeywordTree::write(&corpus, &directory.path().join("keywords")).unwrap();
        // The signature and the body of a symbol are lines of their own.
        let matches =
            "./0.txt:2:file\n./0.txt:2:file\n./0.txt:3:read\n./0.txt:4:File\n./1.txt:1:no such file\nnonsense\n";
        assert_eq!(tree.rank_matches(matches), [1, 0]);
    }
}
