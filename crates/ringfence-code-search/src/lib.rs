//! Code search: symbols of source files, ranked for a question in words.
//!
//! Symbols come from tree-sitter or from lines, and are ranked by BM25F, by vectors of a static table and by a small learned
//! ranker. The tool reads through the fence and keeps its index in the state directory.
//!
//! Not here: files (`ringfence-fs`), training and benchmarks (`xtask`).

mod bm25f;
mod corpus;
mod extract;
mod features;
mod index_file;
mod index_store;
mod language;
mod model;
mod outline;
mod posting_list;
mod query;
mod search_code;
mod source_scan;
mod stem;
mod symbol;
mod syntax;
#[cfg(test)]
mod tests;
mod tokens;
mod workspace_index;

use std::path::PathBuf;

use ringfence_fs::Fence;
use ringfence_kernel::{Dialect, DuplicateToolError, ToolBinding, ToolRegistry};

pub use bm25f::Bm25fWeights;
pub use corpus::{CorpusFile, CorpusSymbol, RankCandidate, RankedSymbol, RankingMethod, SymbolCorpus};
pub use extract::{ExtractionLimits, extract_symbols};
pub use features::{FEATURE_COUNT, FEATURE_NAMES};
pub use language::SourceLanguage;
pub use model::{
    DIMENSIONS, LearnedRanker, QuantizedRows, SearchModel, SearchModelError, SearchVector, StemTable, embedded_model,
    field_weight,
};
pub use query::{CodeQuery, NamedSymbol};
pub use stem::stem;
pub use symbol::{CodeSymbol, FIELD_COUNT, FieldCounts, SymbolField, SymbolKind, SymbolTerms};
pub use tokens::{each_stem, stems};

use crate::index_store::IndexStore;
use crate::search_code::{SearchCodeArgs, SearchCodeResult, SearchCodeTool};

/// The toolset of the tool: sessions are offered it on request.
pub const CODE_TOOLSET: &str = "code";

/// What the tool works with.
#[derive(Debug)]
pub struct CodeSearchSetup {
    pub fence: Fence,
    /// The state directory, for the index.
    pub state: PathBuf,
    /// The model of the ranking, such as `embedded_model`: read by the first search, because it takes megabytes. Without one,
    /// only symbols that share words with a query are found.
    pub model: fn() -> Option<&'static SearchModel>,
}

/// Gives the tool to a registry.
pub fn register(registry: &mut ToolRegistry, setup: CodeSearchSetup) -> Result<(), DuplicateToolError> {
    const NAME: &str = "search_code";
    let CodeSearchSetup { fence, state, model } = setup;
    let standard = ToolBinding::standard_with_text::<SearchCodeArgs, SearchCodeResult>(NAME);
    let family = |dialect| ToolBinding::model::<SearchCodeArgs, SearchCodeResult>(dialect, NAME);
    let bindings = [standard, family(Dialect::Claude), family(Dialect::Codex), family(Dialect::Gemini)];
    let tool = SearchCodeTool { fence, store: IndexStore::new(state, model) };
    registry.register(tool, bindings.map(|binding| binding.in_toolset(CODE_TOOLSET)))
}
