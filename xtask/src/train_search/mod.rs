//! `cargo xtask train-search`: trains the model of `search_code` from the sources of published packages.
//!
//! Four stages, each with its result in `target/train-search`: fetch packages, read pairs, train the table, fit the ranker. A
//! result that is there is used again, so an interrupted run goes on where it ended; `--from STAGE` does that stage and those
//! after it again. The same sources give the same file to the byte.
//!
//! Not here: measuring the result (`bench_code_search`), and reading the file (`ringfence-code-search`).

mod corpora;
mod evaluation;
mod licence;
mod packages;
mod pairs;
mod random;
mod ranker;
mod table;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use ringfence_code_search::{
    Bm25fWeights, CodeQuery, FIELD_COUNT, QuantizedRows, RankingMethod, SearchModel, StemTable, SymbolCorpus,
};
use serde::{Deserialize, Serialize};

pub(crate) use corpora::{CorpusQuery, PackageCorpus, query_key};
pub(crate) use evaluation::{CUTOFF, RankingQuality, index, ranks};
use packages::TrainingPart;
pub(crate) use packages::{
    FetchedPackage, SourceLanguage, benchmark_groups, check_disjoint, fetch_python, fetch_rust, training_groups,
};
use pairs::PairSet;
pub(crate) use random::{SplitMix64, text_hash};
use ranker::{RankedList, fit_ranker};
pub(crate) use table::in_two;
use table::{TableSettings, TrainedTable, train_table};

use crate::{print_status, root, run_cargo};

/// The file of the model.
pub(crate) const MODEL: &str = "crates/ringfence-code-search/model/search.model";

/// What the file of the model may take.
const MAX_MODEL_BYTES: usize = 3_000_000;

const TABLE: TableSettings =
    TableSettings { stems: 20_000, epochs: 24, batch: 512, run: 128, rate: 0.004, temperature: 0.05 };

/// Queries of one package that the ranker is fitted on.
const MOST_RANKER_QUERIES: usize = 40;

/// Queries of one package, and rounds, for the weights of BM25F.
const MOST_TUNING_QUERIES: usize = 6;
const TUNING_ROUNDS: usize = 2;

/// Python packages are also searched together, as their standard library is.
const PACKAGES_TOGETHER: usize = 12;

/// The share of packages for the ranker that only check it, as its inverse.
const HELD_OUT: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TrainingStage {
    Fetch,
    Pairs,
    Table,
    Ranker,
}

impl TrainingStage {
    const ALL: [(&'static str, Self); 4] =
        [("fetch", Self::Fetch), ("pairs", Self::Pairs), ("table", Self::Table), ("ranker", Self::Ranker)];

    /// The file with its result.
    fn result(self, work: &Path) -> PathBuf {
        match self {
            Self::Fetch => work.join("packages.json"),
            Self::Pairs => work.join("pairs.json"),
            Self::Table => work.join("table.model"),
            Self::Ranker => root().join(MODEL),
        }
    }
}

/// False, with a message, if something failed.
pub(crate) fn run(words: &[&str]) -> bool {
    let first = match words {
        [] => None,
        ["--from", name] => match TrainingStage::ALL.iter().find(|(known, _)| known == name) {
            Some((_, stage)) => Some(*stage),
            None => return fail("unknown stage; known: fetch, pairs, table, ranker"),
        },
        _ => return fail("usage: cargo xtask train-search [--from fetch|pairs|table|ranker]"),
    };
    if let Some(done) = in_release(&[&["train-search"], words].concat()) {
        return done;
    }
    train(first).map_err(|error| print_status(&error)).is_ok()
}

/// Runs the command in a release build, unless this is one: in others the arithmetic takes twenty times as long.
pub(crate) fn in_release(words: &[&str]) -> Option<bool> {
    let command = ["run", "--quiet", "--release", "--package", "xtask", "--"];
    cfg!(debug_assertions).then(|| run_cargo(&[&command, words].concat(), &[]))
}

fn fail(message: &str) -> bool {
    print_status(message);
    false
}

/// Directory of the results of stages.
pub(crate) fn work_directory() -> PathBuf {
    root().join("target/train-search")
}

fn train(first: Option<TrainingStage>) -> Result<(), String> {
    check_disjoint()?;
    let work = work_directory();
    fs::create_dir_all(&work).map_err(|error| format!("cannot create target/train-search: {error}"))?;
    for (_, stage) in TrainingStage::ALL {
        if first.is_some_and(|first| stage >= first) && stage != TrainingStage::Ranker {
            // It may not be there.
            let _ = fs::remove_file(stage.result(&work));
        }
    }
    let packages = stage_result(&TrainingStage::Fetch.result(&work), || fetch(&work))?;
    let pairs = stage_result(&TrainingStage::Pairs.result(&work), || read_pairs(&packages, &work))?;
    let table_file = TrainingStage::Table.result(&work);
    if !table_file.exists() {
        write(&table_file, &trained_model(&pairs).to_bytes())?;
    }
    drop(pairs);
    let bytes = fs::read(&table_file).map_err(|error| format!("cannot read the table: {error}"))?;
    let model = SearchModel::parse(&bytes).map_err(|error| format!("the table: {error}"))?;
    let model = with_ranker(model, &packages)?;
    let bytes = model.to_bytes();
    if bytes.len() > MAX_MODEL_BYTES {
        return Err(format!("the model has {} bytes, and may have {MAX_MODEL_BYTES}", bytes.len()));
    }
    write(&TrainingStage::Ranker.result(&work), &bytes)?;
    print_status(&format!("{MODEL}: {} bytes", bytes.len()));
    Ok(())
}

/// The result of a stage, which is made if it is not there.
fn stage_result<T: Serialize + for<'de> Deserialize<'de>>(
    file: &Path,
    make: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    if let Ok(bytes) = fs::read(file) {
        return serde_json::from_slice(&bytes)
            .map_err(|error| format!("{}: {error}; run the stage again with `--from`", name_of(file)));
    }
    let made = make()?;
    let bytes = serde_json::to_vec(&made).map_err(|error| format!("{}: {error}", name_of(file)))?;
    write(file, &bytes)?;
    Ok(made)
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Writes a file so that one with this name is complete.
fn write(file: &Path, bytes: &[u8]) -> Result<(), String> {
    let unfinished = file.with_extension("unfinished");
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, file));
    written.map_err(|error| format!("cannot write {}: {error}", name_of(file)))
}

fn fetch(work: &Path) -> Result<Vec<FetchedPackage>, String> {
    let mut packages = fetch_rust(&training_groups(SourceLanguage::Rust)?, work)?;
    packages.extend(fetch_python(&training_groups(SourceLanguage::Python)?, work)?);
    Ok(packages)
}

fn read_pairs(packages: &[FetchedPackage], work: &Path) -> Result<PairSet, String> {
    let benchmark = benchmark_keys(work)?;
    let packages: Vec<FetchedPackage> =
        packages.iter().filter(|package| package.listed.part == TrainingPart::Table).cloned().collect();
    print_status(&format!("reading {} packages", packages.len()));
    let pairs = PairSet::read(&packages, &benchmark, TABLE.stems);
    print_status(&format!("{} pairs, {} stems", pairs.pairs.len(), pairs.stems.len()));
    Ok(pairs)
}

/// The keys of all queries that the benchmark may ask.
fn benchmark_keys(work: &Path) -> Result<HashSet<String>, String> {
    let mut keys = HashSet::new();
    for corpus in benchmark_corpora(SourceLanguage::Rust, work)?.iter().chain([&standard_library()?]) {
        keys.extend(corpus.queries.iter().map(|query| query_key(&query.text)));
    }
    Ok(keys)
}

/// The packages that the benchmark measures.
pub(crate) fn benchmark_corpora(language: SourceLanguage, work: &Path) -> Result<Vec<PackageCorpus>, String> {
    let packages = fetch_rust(&benchmark_groups(language)?, work)?;
    Ok(in_two(&packages, |_, package| PackageCorpus::read(&package.listed.name, language, &package.directory)))
}

/// The standard library of the `python3` of this machine.
pub(crate) fn standard_library() -> Result<PackageCorpus, String> {
    let program = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let output = std::process::Command::new("python3").args(["-c", program]).output();
    let output = output.map_err(|error| format!("cannot run python3: {error}"))?;
    let directory = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !output.status.success() || !directory.is_dir() {
        return Err("python3 has no standard library in files".into());
    }
    Ok(PackageCorpus::read("Python standard library", SourceLanguage::Python, &directory))
}

fn trained_model(pairs: &PairSet) -> SearchModel {
    print_status(&format!("training on {} pairs", pairs.pairs.len()));
    let settings = TableSettings { stems: pairs.stems.len(), ..TABLE };
    let trained = train_table(&pairs.training_pairs(), &pairs.idf, &settings, |epoch, loss| {
        print_status(&format!("  epoch {epoch:>2}   loss {loss:.4}"));
    });
    SearchModel { bm25f: Bm25fWeights::default(), table: quantized(&pairs.stems, &pairs.idf, &trained), ranker: None }
}

/// The table in small numbers. A vector is its row by the rarity of its stem.
fn quantized(stems: &[String], idf: &[f32], trained: &TrainedTable) -> Option<StemTable> {
    let rows = |rows: &[f32]| {
        let by_rarity = rows.chunks_exact(ringfence_code_search::DIMENSIONS).zip(idf);
        let plain: Vec<f32> = by_rarity.flat_map(|(row, idf)| row.iter().map(move |value| value / idf)).collect();
        QuantizedRows::quantize(&plain)
    };
    StemTable::new(
        stems.iter().map(|stem| stem.as_str().into()).collect(),
        idf.to_vec(),
        rows(&trained.queries),
        Some(rows(&trained.symbols)),
        trained.fields,
    )
}

/// A corpus for the ranker, with some of its queries.
struct RankerCorpus {
    index: SymbolCorpus,
    queries: Vec<CorpusQuery>,
    checks: bool,
}

fn with_ranker(model: SearchModel, packages: &[FetchedPackage]) -> Result<SearchModel, String> {
    let packages: Vec<&FetchedPackage> =
        packages.iter().filter(|package| package.listed.part == TrainingPart::Ranker).collect();
    let corpora = ranker_corpora(&packages, &benchmark_keys(&work_directory())?, &model);
    let model = SearchModel { bm25f: tuned_weights(&corpora), ..model };
    let lists: Vec<RankedList> = corpora
        .iter()
        .filter(|corpus| !corpus.checks)
        .flat_map(|corpus| in_two(&corpus.queries, |_, query| ranked_list(&corpus.index, query, &model)))
        .flatten()
        .collect();
    print_status(&format!("fitting the ranker on {} queries", lists.len()));
    let ranker = fit_ranker(&lists, |epoch, loss| {
        if epoch % 5 == 4 {
            print_status(&format!("  epoch {epoch:>2}   loss {loss:.4}"));
        }
    });
    let model = SearchModel { ranker: Some(ranker), ..model };
    for (title, method) in [("BM25F", RankingMethod::Bm25f), ("ranker and table", RankingMethod::Learned)] {
        let held_out = corpora.iter().filter(|corpus| corpus.checks);
        let ranks = held_out.flat_map(|corpus| ranks(&corpus.index, &corpus.queries, Some(&model), method));
        let quality = RankingQuality::of(ranks);
        print_status(&format!("  held out, {} queries: {title} MRR@10 {:.3}", quality.queries, quality.mrr()));
    }
    Ok(model)
}

fn ranker_corpora(packages: &[&FetchedPackage], benchmark: &HashSet<String>, model: &SearchModel) -> Vec<RankerCorpus> {
    let (rust, python): (Vec<&FetchedPackage>, Vec<&FetchedPackage>) =
        packages.iter().partition(|package| package.language == SourceLanguage::Rust);
    let single = rust.iter().chain(&python).map(|package| vec![*package]);
    let sets: Vec<Vec<&FetchedPackage>> =
        single.chain(python.chunks(PACKAGES_TOGETHER).map(<[&FetchedPackage]>::to_vec)).collect();
    in_two(&sets, |_, set| {
        let corpora: Vec<PackageCorpus> = set
            .iter()
            .map(|package| PackageCorpus::read(&package.listed.name, package.language, &package.directory))
            .collect();
        let corpus = joined(corpora);
        let mut queries: Vec<CorpusQuery> =
            corpus.queries.iter().filter(|query| !benchmark.contains(&query_key(&query.text))).cloned().collect();
        SplitMix64::new(text_hash(&corpus.name)).shuffle(&mut queries);
        queries.truncate(MOST_RANKER_QUERIES * set.len());
        let language = set[0].language;
        let checks = set.len() == 1 && text_hash(packages::family(&set[0].listed.name)).is_multiple_of(HELD_OUT);
        RankerCorpus { index: index(&corpus, language, Some(model)), queries, checks }
    })
}

/// Corpora as one.
pub(crate) fn joined(corpora: Vec<PackageCorpus>) -> PackageCorpus {
    let mut all = PackageCorpus { name: String::new(), symbols: Vec::new(), queries: Vec::new() };
    for corpus in corpora {
        let first = all.symbols.len();
        all.name += &corpus.name;
        all.symbols.extend(corpus.symbols);
        let queries = corpus.queries.into_iter();
        all.queries.extend(queries.map(|query| CorpusQuery { symbol: first + query.symbol, ..query }));
    }
    all
}

/// Weights of BM25F, improved one after the other as long as the queries of the ranker are answered better.
fn tuned_weights(corpora: &[RankerCorpus]) -> Bm25fWeights {
    let fitted: Vec<&RankerCorpus> = corpora.iter().filter(|corpus| !corpus.checks).collect();
    let measure = |bm25f: Bm25fWeights| {
        let model = SearchModel { bm25f, ..SearchModel::default() };
        let found = fitted.iter().flat_map(|corpus| {
            let queries = &corpus.queries[..corpus.queries.len().min(MOST_TUNING_QUERIES)];
            ranks(&corpus.index, queries, Some(&model), RankingMethod::Bm25f)
        });
        RankingQuality::of(found).mrr()
    };
    let mut best = Bm25fWeights::default();
    let mut best_mrr = measure(best);
    print_status(&format!("weights of BM25F: MRR@10 {best_mrr:.4} by default"));
    for round in 0..TUNING_ROUNDS {
        for at in 0..=2 * FIELD_COUNT {
            for factor in [0.5, 0.75, 1.5, 2.0] {
                let tried = scaled(best, at, factor);
                let mrr = measure(tried);
                if mrr > best_mrr {
                    (best, best_mrr) = (tried, mrr);
                }
            }
        }
        print_status(&format!("  round {round}   MRR@10 {best_mrr:.4}   {best:?}"));
    }
    best
}

/// The weights with one of them multiplied: saturation, then weights of fields, then what their lengths count.
fn scaled(mut weights: Bm25fWeights, at: usize, factor: f32) -> Bm25fWeights {
    match at {
        0 => weights.saturation *= factor,
        1..=FIELD_COUNT => weights.fields[at - 1] *= factor,
        _ => weights.length[at - 1 - FIELD_COUNT] = (weights.length[at - 1 - FIELD_COUNT] * factor).min(1.0),
    }
    weights
}

/// The candidates of a query, if the symbol that is meant is among them.
fn ranked_list(index: &SymbolCorpus, query: &CorpusQuery, model: &SearchModel) -> Option<RankedList> {
    let candidates = index.candidates(&CodeQuery::new(&query.text), Some(model));
    let meant = candidates.iter().position(|candidate| candidate.symbol as usize == query.symbol)?;
    Some(RankedList { features: candidates.iter().map(|candidate| candidate.features).collect(), meant })
}

#[cfg(test)]
mod tests {
    use ringfence_code_search::DIMENSIONS;

    use super::table::TrainedTable;
    use super::{CorpusQuery, PackageCorpus, joined, quantized};

    #[test]
    fn a_quantized_vector_points_where_the_trained_one_does() {
        let stems = ["a".to_owned(), "b".to_owned()];
        let row = |sign: f32| (0..DIMENSIONS).map(move |at| sign * (at % 7 + 1) as f32 / 10.0);
        let rows: Vec<f32> = row(1.0).chain(row(-0.01)).collect();
        let trained = TrainedTable { queries: rows.clone(), symbols: rows.clone(), fields: [1.0; 5] };
        let table = quantized(&stems, &[2.0, 8.0], &trained).unwrap();
        for (at, stem) in stems.iter().enumerate() {
            let wanted = &rows[at * DIMENSIONS..][..DIMENSIONS];
            let length = wanted.iter().map(|value| value * value).sum::<f32>().sqrt();
            let found = table.query_vector([stem.as_str()]);
            let cosine: f32 = found.iter().zip(wanted).map(|(a, b)| a * b / length).sum();
            assert!(cosine > 0.999, "{stem}: {cosine}");
        }
        // The shorter vector counts for less in a sum.
        let both = table.query_vector(["a", "b"]);
        assert!(both[0] > 0.0);
    }

    #[test]
    fn queries_of_joined_corpora_mean_the_same_symbols() {
        let part = |name: &str| PackageCorpus {
            name: name.to_owned(),
            symbols: Vec::new(),
            queries: vec![CorpusQuery { text: name.to_owned(), symbol: 0 }],
        };
        let all = joined(vec![part("a"), part("b")]);
        assert_eq!(all.queries.iter().map(|query| query.symbol).collect::<Vec<_>>(), [0, 0]);
    }
}
