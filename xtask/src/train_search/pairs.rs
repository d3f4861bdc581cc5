//! Training pairs: what a documentation says, and the symbol that it says it of, as numbers of stems.
//!
//! No query of the benchmark is in a pair. The stems are numbered in the order of their texts, as the table has them.
//!
//! Not here: the corpora (`corpora.rs`).

use std::collections::{HashMap, HashSet};

use ringfence_code_search::{FIELD_COUNT, SymbolTerms, field_weight, stems};
use serde::{Deserialize, Serialize};

use super::corpora::{PackageCorpus, query_key};
use super::packages::FetchedPackage;
use super::random::{SplitMix64, text_hash};
use super::table::{TrainingPair, WeightedStem, as_f32, in_two};

/// Pairs of one package: no package decides alone.
const MOST_PAIRS: usize = 250;

/// A stem in fewer symbols and queries has no row.
const FEWEST_OCCURRENCES: u32 = 4;

/// Pairs with the stems that have rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PairSet {
    /// Sorted.
    pub(crate) stems: Vec<String>,
    pub(crate) idf: Vec<f32>,
    pub(crate) pairs: Vec<StemPair>,
}

/// A pair of one package: the stems of the query, and those of the symbol with their counts by field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StemPair {
    package: u32,
    query: Vec<u32>,
    symbol: Vec<(u32, [u16; FIELD_COUNT])>,
}

impl PairSet {
    /// Reads the pairs of packages. `benchmark` has the keys of queries that are measured.
    pub(crate) fn read(packages: &[FetchedPackage], benchmark: &HashSet<String>, most_stems: usize) -> Self {
        let by_package = in_two(packages, |_, package| {
            let corpus = PackageCorpus::read(&package.listed.name, package.language, &package.directory);
            pairs_of(&corpus, benchmark)
        });
        Self::number(by_package, most_stems)
    }

    /// Numbers stems. The most frequent ones are kept.
    fn number(by_package: Vec<Vec<TextPair>>, most_stems: usize) -> Self {
        let mut occurrences: HashMap<&str, u32> = HashMap::new();
        for pair in by_package.iter().flatten() {
            let symbol = pair.symbol.counts.iter().map(|(stem, _)| stem.as_str());
            for stem in symbol.chain(pair.query.iter().map(String::as_str)) {
                *occurrences.entry(stem).or_default() += 1;
            }
        }
        let mut frequent: Vec<(&str, u32)> =
            occurrences.into_iter().filter(|(_, count)| *count >= FEWEST_OCCURRENCES).collect();
        frequent.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        frequent.truncate(most_stems);
        frequent.sort_unstable();
        let numbers: HashMap<&str, u32> = (0..).zip(&frequent).map(|(number, (stem, _))| (*stem, number)).collect();
        let mut pairs = Vec::new();
        for (package, texts) in (0..).zip(&by_package) {
            for text in texts {
                let query: Vec<u32> =
                    text.query.iter().filter_map(|stem| numbers.get(stem.as_str()).copied()).collect();
                let counts = text.symbol.counts.iter();
                let symbol: Vec<(u32, [u16; FIELD_COUNT])> = counts
                    .filter_map(|(stem, counts)| numbers.get(stem.as_str()).map(|number| (*number, *counts)))
                    .collect();
                if !query.is_empty() && !symbol.is_empty() {
                    pairs.push(StemPair { package, query, symbol });
                }
            }
        }
        let mut with = vec![0_u32; frequent.len()];
        for (stem, _) in pairs.iter().flat_map(|pair| &pair.symbol) {
            with[*stem as usize] += 1;
        }
        let all = as_f32(pairs.len());
        let idf = with.iter().map(|count| (1.0 + all / (as_f32(*count as usize) + 1.0)).ln()).collect();
        Self { stems: frequent.into_iter().map(|(stem, _)| stem.to_owned()).collect(), idf, pairs }
    }

    /// The pairs with what each stem counts in the vector of a symbol (`StemTable::symbol_vector`).
    pub(crate) fn training_pairs(&self) -> Vec<TrainingPair> {
        self.pairs
            .iter()
            .map(|pair| TrainingPair {
                package: pair.package,
                query: pair.query.clone(),
                symbol: pair.weighted_symbol(),
            })
            .collect()
    }
}

impl StemPair {
    fn weighted_symbol(&self) -> Vec<WeightedStem> {
        // Stems without a row are few: a field is about as long as those with one.
        let length = |at: usize| {
            let counts = self.symbol.iter().map(|(_, counts)| counts[at]);
            counts.fold(0_u16, u16::saturating_add)
        };
        let lengths: [u16; FIELD_COUNT] = std::array::from_fn(length);
        let fields = |counts: &[u16; FIELD_COUNT]| std::array::from_fn(|at| field_weight(counts[at], lengths[at]));
        self.symbol.iter().map(|(stem, counts)| WeightedStem { stem: *stem, fields: fields(counts) }).collect()
    }
}

/// A pair before stems have numbers.
struct TextPair {
    query: Vec<String>,
    symbol: SymbolTerms,
}

fn pairs_of(corpus: &PackageCorpus, benchmark: &HashSet<String>) -> Vec<TextPair> {
    let mut queries: Vec<_> =
        corpus.queries.iter().filter(|query| !benchmark.contains(&query_key(&query.text))).collect();
    SplitMix64::new(text_hash(&corpus.name)).shuffle(&mut queries);
    queries.truncate(MOST_PAIRS);
    queries
        .into_iter()
        .map(|query| {
            let symbol = &corpus.symbols[query.symbol];
            let mut stems = stems(&query.text);
            let mut seen = HashSet::new();
            stems.retain(|stem| seen.insert(stem.clone()));
            TextPair { query: stems, symbol: SymbolTerms::new(&symbol.path, &symbol.symbol) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use ringfence_code_search::{FIELD_COUNT, SymbolTerms};

    use super::{PairSet, TextPair};

    fn pair(query: &str, symbol: &str) -> TextPair {
        let counts = symbol.split(' ').map(|stem| (stem.to_owned(), [1; FIELD_COUNT])).collect();
        let symbol = SymbolTerms { counts, lengths: [1; FIELD_COUNT] };
        TextPair { query: query.split(' ').map(str::to_owned).collect(), symbol }
    }

    #[test]
    fn frequent_stems_have_numbers_in_the_order_of_their_texts() {
        let pairs = || {
            vec![
                vec![pair("open file", "file io"), pair("open rare", "file io")],
                vec![pair("open file", "io odd"), pair("open", "io")],
            ]
        };
        let set = PairSet::number(pairs(), 10);
        assert_eq!(set.stems, ["file", "io", "open"]);
        assert_eq!(set.pairs.len(), 4);
        assert_eq!((set.pairs[2].package, set.pairs[2].query.clone()), (1, vec![2, 0]));
        assert!(set.idf[0] > set.idf[1], "{:?}", set.idf);
        assert_eq!(set, PairSet::number(pairs(), 10));
        assert_eq!(PairSet::number(pairs(), 2).stems, ["file", "io"]);
    }
}
