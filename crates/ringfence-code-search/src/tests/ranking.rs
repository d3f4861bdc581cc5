//! Ranking, and the model's file.

use crate::{
    Bm25fWeights, CodeQuery, DIMENSIONS, ExtractionLimits, FEATURE_COUNT, LearnedRanker, QuantizedRows, RankingMethod,
    SearchModel, SearchModelError, SourceLanguage, StemTable, SymbolCorpus, embedded_model, extract_symbols,
};

const SOURCE: &str = "
/// Opens the file for writing.
pub fn open_file(path: &Path) -> File { File::create(path) }
/// Deletes a directory and all that is in it.
fn remove_tree(path: &Path) { }
struct Host;
impl Host { fn call(&self) { self.open(); } }
impl Client { fn call(&self) { } fn open(&self) { } }
fn caller() { let call = 1; call(); call(); call(); }
";

fn corpus(model: Option<&SearchModel>) -> SymbolCorpus {
    let mut corpus = SymbolCorpus::default();
    let symbols = extract_symbols(SourceLanguage::Rust, SOURCE.as_bytes(), &ExtractionLimits::default());
    corpus.add_file("src/disk.rs", SourceLanguage::Rust, &symbols, model);
    corpus
}

fn names(corpus: &SymbolCorpus, query: &str, model: Option<&SearchModel>) -> Vec<String> {
    let found = corpus.search(&CodeQuery::new(query), model, RankingMethod::Learned, 10, |_| true);
    let name = |number: u32| match corpus.symbol(number) {
        symbol if symbol.owner.is_empty() => symbol.name.to_string(),
        symbol => format!("{}::{}", symbol.owner, symbol.name),
    };
    found.iter().map(|found| name(found.symbol)).collect()
}

/// Vectors in which `erase` is near `delet`.
fn model() -> SearchModel {
    let stems: Vec<Box<str>> = ["delet", "directori", "eras", "open"].map(Box::from).to_vec();
    let mut vectors = vec![0.0; stems.len() * DIMENSIONS];
    for (row, column) in [(0, 0), (1, 1), (2, 0), (3, 2)] {
        vectors[row * DIMENSIONS + column] = 1.0;
    }
    let idf = vec![1.0; stems.len()];
    let table = StemTable::new(stems, idf, QuantizedRows::quantize(&vectors), None, [1.0; 5]).unwrap();
    let mut hidden = vec![0.0; FEATURE_COUNT];
    hidden[3] = 1.0;
    let ranker = LearnedRanker {
        means: vec![0.0; FEATURE_COUNT],
        scales: vec![1.0; FEATURE_COUNT],
        hidden,
        hidden_bias: vec![0.0],
        output: vec![1.0],
        output_bias: 0.0,
    };
    SearchModel { bm25f: Bm25fWeights::default(), table: Some(table), ranker: Some(ranker) }
}

#[test]
fn words_find_what_is_called_and_described_so() {
    assert_eq!(names(&corpus(None), "open a file for writing", None)[0], "open_file");
    assert_eq!(names(&corpus(None), "delete directories", None), ["remove_tree"]);
    assert!(names(&corpus(None), "quantum", None).is_empty());
    assert!(names(&corpus(None), "", None).is_empty());
}

#[test]
fn an_identifier_finds_its_symbols_first() {
    assert_eq!(names(&corpus(None), "call", None)[..2], ["Host::call", "Client::call"]);
    assert_eq!(names(&corpus(None), "Client::call", None)[..2], ["Client::call", "Host::call"]);
    assert_eq!(names(&corpus(None), "OPEN_FILE()", None)[0], "open_file");
}

#[test]
fn a_table_finds_other_words_for_the_same() {
    let model = model();
    assert_eq!(names(&corpus(Some(&model)), "erase", Some(&model))[0], "remove_tree");
}

#[test]
fn removed_files_are_not_found() {
    let mut corpus = corpus(None);
    corpus.add_file("b.rs", SourceLanguage::Rust, &[], None);
    assert_eq!(corpus.len(), 7);
    corpus.remove_file(0);
    corpus.remove_file(0);
    assert!(corpus.is_empty());
    assert!(names(&corpus, "open_file", None).is_empty());
}

#[test]
fn files_that_are_not_accepted_are_not_found() {
    let corpus = corpus(None);
    let found =
        corpus.search(&CodeQuery::new("call"), None, RankingMethod::Bm25f, 10, |file| &*file.path != "src/disk.rs");
    assert!(found.is_empty());
}

#[test]
fn a_model_is_the_same_after_writing_and_reading() {
    for model in [model(), SearchModel::default(), SearchModel { table: None, ..model() }] {
        assert_eq!(SearchModel::parse(&model.to_bytes()), Ok(model));
    }
}

#[test]
fn a_damaged_model_is_refused() {
    let bytes = model().to_bytes();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        assert!(SearchModel::parse(&damaged).is_err(), "byte {at}");
        assert!(SearchModel::parse(&bytes[..at]).is_err(), "{at} bytes");
    }
    let mut newer = bytes;
    newer[8] = 2;
    assert_eq!(SearchModel::parse(&newer), Err(SearchModelError::Version(2)));
}

#[test]
fn the_model_of_the_build_is_whole() {
    let bytes = include_bytes!("../../model/search.model");
    assert!(bytes.len() <= 3 << 20);
    assert_eq!(embedded_model().is_some(), !bytes.is_empty());
}
