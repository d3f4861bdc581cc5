//! Quality of rankings: where the symbol that was meant is among the answers.
//!
//! Not here: the corpora and queries (`corpora.rs`), and who is compared (`bench_code_search`).

use ringfence_code_search::{
    CodeQuery, CodeSymbol, RankingMethod, SearchModel, SourceLanguage as Grammar, SymbolCorpus,
};

use super::corpora::{CorpusQuery, PackageCorpus};
use super::packages::SourceLanguage;
use super::table::{as_f32, in_two};

/// Answers that count.
pub(crate) const CUTOFF: usize = 10;

/// Figures of a ranking over queries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RankingQuality {
    pub(crate) queries: usize,
    reciprocal_ranks: f32,
    first: usize,
    found: usize,
}

impl RankingQuality {
    /// Adds a query: the rank from 0 of the symbol that was meant, if it is among the answers.
    pub(crate) fn add(&mut self, rank: Option<usize>) {
        self.queries += 1;
        let Some(rank) = rank.filter(|rank| *rank < CUTOFF) else { return };
        self.reciprocal_ranks += 1.0 / as_f32(rank + 1);
        self.first += usize::from(rank == 0);
        self.found += 1;
    }

    pub(crate) fn of(ranks: impl IntoIterator<Item = Option<usize>>) -> Self {
        let mut quality = Self::default();
        ranks.into_iter().for_each(|rank| quality.add(rank));
        quality
    }

    /// Mean reciprocal rank at [`CUTOFF`].
    pub(crate) fn mrr(&self) -> f32 {
        self.reciprocal_ranks / as_f32(self.queries.max(1))
    }

    /// Share of queries whose first answer is right.
    pub(crate) fn recall_at_1(&self) -> f32 {
        as_f32(self.first) / as_f32(self.queries.max(1))
    }

    /// Share of queries with the right symbol among the answers.
    pub(crate) fn recall_at_10(&self) -> f32 {
        as_f32(self.found) / as_f32(self.queries.max(1))
    }
}

/// The symbols of a corpus as the search has them, with the same numbers.
pub(crate) fn index(corpus: &PackageCorpus, language: SourceLanguage, model: Option<&SearchModel>) -> SymbolCorpus {
    let grammar = match language {
        SourceLanguage::Rust => Grammar::Rust,
        SourceLanguage::Python => Grammar::Python,
    };
    let mut index = SymbolCorpus::default();
    for file in corpus.symbols.chunk_by(|a, b| a.path == b.path) {
        let symbols: Vec<CodeSymbol> = file.iter().map(|symbol| symbol.symbol.clone()).collect();
        index.add_file(&file[0].path, grammar, &symbols, model);
    }
    index
}

/// The rank of the symbol that each query means.
pub(crate) fn ranks(
    index: &SymbolCorpus,
    queries: &[CorpusQuery],
    model: Option<&SearchModel>,
    method: RankingMethod,
) -> Vec<Option<usize>> {
    in_two(queries, |_, query| {
        let found = index.search(&CodeQuery::new(&query.text), model, method, CUTOFF, |_| true);
        found.iter().position(|found| found.symbol as usize == query.symbol)
    })
}

#[cfg(test)]
mod tests {
    use ringfence_code_search::RankingMethod;

    use super::{RankingQuality, index, ranks};
    use crate::train_search::corpora::PackageCorpus;
    use crate::train_search::packages::SourceLanguage;

    #[test]
    fn a_rank_counts_by_its_reciprocal_up_to_the_tenth() {
        let quality = RankingQuality::of([Some(0), Some(1), Some(9), Some(10), None]);
        let close = |a: f32, b: f32| (a - b).abs() < 1e-6;
        assert!(close(quality.mrr(), 0.32) && close(quality.recall_at_1(), 0.2) && close(quality.recall_at_10(), 0.6));
        assert!(close(RankingQuality::default().mrr(), 0.0));
    }

    #[test]
    fn symbols_have_the_numbers_of_the_corpus() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("b.rs", "/// Opens a socket to the server.\nfn connect_socket() {}\n");
        write("a.rs", "fn other() {}\n/// Reads all lines of a file.\nfn read_file_lines() {}\n");
        let corpus = PackageCorpus::read("p", SourceLanguage::Rust, directory.path());
        assert_eq!(corpus.queries.len(), 2);
        let index = index(&corpus, SourceLanguage::Rust, None);
        assert_eq!(ranks(&index, &corpus.queries, None, RankingMethod::Bm25f), [Some(0), Some(0)]);
    }
}
