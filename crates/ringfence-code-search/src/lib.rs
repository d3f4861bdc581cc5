//! Code search: symbols of source files, ranked for a question in words.
//!
//! Symbols come from tree-sitter or from lines, are ranked by BM25F, by vectors of a static table and by a small learned
//! ranker, all in memory.
//!
//! Not here: training and benchmarks (`xtask`).

mod bm25f;
mod corpus;
mod extract;
mod features;
mod language;
mod model;
mod outline;
mod query;
mod stem;
mod symbol;
mod syntax;
#[cfg(test)]
mod tests;
mod tokens;

pub use bm25f::Bm25fWeights;
pub use corpus::{CorpusFile, CorpusSymbol, RankCandidate, RankedSymbol, RankingMethod, SymbolCorpus};
pub use extract::{ExtractionLimits, extract_symbols};
pub use features::{FEATURE_COUNT, FEATURE_NAMES};
pub use language::SourceLanguage;
pub use model::{
    DIMENSIONS, LearnedRanker, QuantizedRows, SearchModel, SearchModelError, SearchVector, StemTable, embedded_model,
};
pub use query::{CodeQuery, NamedSymbol};
pub use stem::stem;
pub use symbol::{CodeSymbol, FIELD_COUNT, FieldCounts, SymbolField, SymbolKind, SymbolTerms};
pub use tokens::{each_stem, stems};
