//! The lines of a file that are nearest to a text that is not in it, for the message that says so.
//!
//! Nearness is for the reader alone. Nothing is ever matched by it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

/// Most lines that a message has.
const MOST_SHOWN: usize = 8;

/// Longest line that is shown whole, in bytes.
const LONGEST_SHOWN: usize = 300;

/// Lines that are looked at, of the text and of the file.
const MOST_WANTED: usize = 200;
const MOST_LINES: usize = 100_000;
const LONGEST_LINE: usize = 2000;

/// The nearest lines as a read of the file has them, `N<tab>text` each; nothing where none is near.
pub(crate) fn nearest_lines(text: &str, old: &str) -> Option<String> {
    let file: Vec<&str> = text.lines().take(MOST_LINES).collect();
    let wanted: Vec<&str> = old.lines().take(MOST_WANTED).collect();
    let first = by_equal_lines(&file, &wanted).or_else(|| by_common_words(&file, &wanted))?;
    let count = wanted.len().min(MOST_SHOWN);
    let mut shown = String::new();
    for (index, line) in file.iter().enumerate().skip(first).take(count) {
        let cut = line.floor_char_boundary(LONGEST_SHOWN);
        let more = if cut < line.len() { "…" } else { "" };
        let _ = write!(shown, "\n{}\t{}{more}", index + 1, &line[..cut]);
    }
    (!shown.is_empty()).then(|| shown.split_off(1))
}

/// The start of the lines most of which are the wanted ones, but for white space.
fn by_equal_lines(file: &[&str], wanted: &[&str]) -> Option<usize> {
    let squeezed = |line: &str| -> Option<String> {
        let words: Vec<&str> = line.get(..LONGEST_LINE).unwrap_or(line).split_whitespace().collect();
        // A line of brackets is everywhere.
        words.iter().any(|word| word.chars().any(char::is_alphanumeric)).then(|| words.join(" "))
    };
    let mut places: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, line) in wanted.iter().enumerate() {
        if let Some(line) = squeezed(line) {
            places.entry(line).or_default().push(index);
        }
    }
    let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
    for (index, line) in file.iter().enumerate() {
        let Some(at) = squeezed(line).and_then(|line| places.get(&line)) else { continue };
        for first in at.iter().take(MOST_SHOWN).filter_map(|at| index.checked_sub(*at)) {
            *votes.entry(first).or_default() += 1;
        }
    }
    let most = votes.values().copied().max()?;
    votes.into_iter().find(|(_, count)| *count == most).map(|(first, _)| first)
}

/// The same by the line that has the most words of the longest wanted line, and at least half of them.
fn by_common_words(file: &[&str], wanted: &[&str]) -> Option<usize> {
    let words = |line: &str| -> HashSet<String> {
        let line = &line[..line.floor_char_boundary(LONGEST_LINE)];
        let split = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        split.map(str::to_lowercase).collect()
    };
    let (at, longest) = wanted.iter().map(|line| words(line)).enumerate().rev().max_by_key(|(_, words)| words.len())?;
    let score = |line: &str| {
        let there = words(line);
        let common = there.intersection(&longest).count();
        // Thousandths of the words of both that are in both.
        2000 * common / (there.len() + longest.len()).max(1)
    };
    let scored = file.iter().enumerate().map(|(index, line)| (score(line), index));
    let (best, index) = scored.rev().max_by_key(|(score, _)| *score)?;
    (best >= 500).then(|| index.saturating_sub(at))
}
