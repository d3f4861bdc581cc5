//! `cargo xtask bench code-search`: how well and how fast symbols are found for questions in words.
//!
//! The queries are first sentences of documentation, and the corpora have no documentation. No part of training saw the
//! crates, which the command checks before it measures. All rankings are measured in the same run with the same queries.
//!
//! Not here: training (`train_search`).

mod keyword_search;
mod live_search;

use std::fs;
use std::path::PathBuf;

use ringfence_code_search::{CodeQuery, RankingMethod, SearchModel};

use crate::external_tools::{has_program, install_debian_packages};
use crate::train_search::{
    CUTOFF, CorpusQuery, MODEL, PackageCorpus, RankingQuality, SourceLanguage, SplitMix64, benchmark_corpora,
    check_disjoint, in_release, in_two, index, joined, ranks, standard_library, text_hash, work_directory,
};
use crate::{build_release, print_status, root};
use keyword_search::KeywordTree;
use live_search::{LiveFigures, measure_live};

/// Queries of each crate, of the standard library of Python, and of all crates as one.
const QUERIES_OF_CRATE: usize = 56;
const QUERIES_OF_LIBRARY: usize = 800;
const QUERIES_OF_ALL: usize = 600;

/// Position of the cosine among the features (`FEATURE_NAMES`).
const COSINE_FEATURE: usize = 3;

/// The rankings that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComparedRanking {
    Keywords,
    Bm25f,
    Vectors,
    Learned,
}

impl ComparedRanking {
    const ALL: [(&'static str, Self); 4] = [
        ("ripgrep, ranked by keywords", Self::Keywords),
        ("BM25F", Self::Bm25f),
        ("table alone", Self::Vectors),
        ("**ranker and table**", Self::Learned),
    ];
}

/// Corpora with the queries that are asked of each.
struct QuerySet {
    title: &'static str,
    language: SourceLanguage,
    corpora: Vec<PackageCorpus>,
    /// A program is started for each query, which takes too long for the largest corpus.
    with_keywords: bool,
}

/// Quality; false if the bench could not be run.
pub(crate) fn run() -> bool {
    if let Some(done) = in_release(&["bench", "code-search"]) {
        return done;
    }
    measure_quality().map_err(|error| print_status(&error)).is_ok()
}

/// The tool of this version or of another binary on a large tree; false if the bench could not be run.
pub(crate) fn run_tool(program: Option<&str>) -> bool {
    let print = |figures: LiveFigures| figures.rows().iter().for_each(|row| print_status(row));
    let program = program.map(PathBuf::from).or_else(build_release);
    let figures =
        program.ok_or_else(|| "the program does not build".to_owned()).and_then(|program| measure_live(&program));
    figures.map(print).map_err(|error| print_status(&error)).is_ok()
}

fn measure_quality() -> Result<(), String> {
    check_disjoint()?;
    let bytes = fs::read(root().join(MODEL)).map_err(|error| format!("cannot read {MODEL}: {error}"))?;
    let model = SearchModel::parse(&bytes).map_err(|error| format!("{MODEL}: {error}"))?;
    if !has_program("rg") && !install_debian_packages(&["ripgrep"]) {
        return Err("ripgrep (`rg`) is not here and could not be installed (that takes root and Debian)".into());
    }
    let sets = query_sets()?;
    let rows: Vec<String> = ComparedRanking::ALL
        .iter()
        .map(|(title, ranking)| row(title, *ranking, &sets, &model))
        .collect::<Result<_, _>>()?;
    let titles: Vec<String> = sets.iter().map(QuerySet::heading).collect();
    print_status(&format!("| MRR@10 (R@1 / R@10) | {} |", titles.join(" | ")));
    print_status(&format!("|---|{}", "---:|".repeat(sets.len())));
    rows.iter().for_each(|row| print_status(row));
    Ok(())
}

fn query_sets() -> Result<Vec<QuerySet>, String> {
    let language = SourceLanguage::Rust;
    let mut crates = benchmark_corpora(language, &work_directory())?;
    let mut all = joined(crates.clone());
    crates.iter_mut().for_each(|corpus| sample(corpus, QUERIES_OF_CRATE));
    sample(&mut all, QUERIES_OF_ALL);
    let mut library = standard_library()?;
    sample(&mut library, QUERIES_OF_LIBRARY);
    let set = |title, language, corpora, with_keywords| QuerySet { title, language, corpora, with_keywords };
    Ok(vec![
        set("Rust, each crate", language, crates, true),
        set("Python standard library", SourceLanguage::Python, vec![library], true),
        set("all crates as one", language, vec![all], false),
    ])
}

/// Keeps this number of queries, chosen by the name of the corpus.
fn sample(corpus: &mut PackageCorpus, most: usize) {
    SplitMix64::new(text_hash(&corpus.name)).shuffle(&mut corpus.queries);
    corpus.queries.truncate(most);
}

impl QuerySet {
    fn heading(&self) -> String {
        let symbols: usize = self.corpora.iter().map(|corpus| corpus.symbols.len()).sum();
        let queries: usize = self.corpora.iter().map(|corpus| corpus.queries.len()).sum();
        format!("{}: {} corpora, {symbols} symbols, {queries} queries", self.title, self.corpora.len())
    }
}

/// A row of the table: MRR@10, R@1 and R@10 of a ranking for each set.
fn row(title: &str, ranking: ComparedRanking, sets: &[QuerySet], model: &SearchModel) -> Result<String, String> {
    let mut line = format!("| {title} |");
    for set in sets {
        if ranking == ComparedRanking::Keywords && !set.with_keywords {
            line += " |";
            continue;
        }
        let mut found = Vec::new();
        for corpus in &set.corpora {
            found.extend(ranks_of(ranking, corpus, set.language, model)?);
        }
        let quality = RankingQuality::of(found);
        let cell = format!("{:.3} ({:.3} / {:.3})", quality.mrr(), quality.recall_at_1(), quality.recall_at_10());
        print_status(&format!("measured: {}, {title}   {cell}", set.title));
        line += &format!(" {cell} |");
    }
    Ok(line)
}

fn ranks_of(
    ranking: ComparedRanking,
    corpus: &PackageCorpus,
    language: SourceLanguage,
    model: &SearchModel,
) -> Result<Vec<Option<usize>>, String> {
    Ok(match ranking {
        ComparedRanking::Keywords => {
            KeywordTree::write(corpus, &work_directory().join("keywords"))?.ranks(&corpus.queries)
        }
        ComparedRanking::Bm25f => {
            // With the weights that were fitted, so that it is as good as it can be.
            let weights = SearchModel { bm25f: model.bm25f, ..SearchModel::default() };
            ranks(&index(corpus, language, None), &corpus.queries, Some(&weights), RankingMethod::Bm25f)
        }
        ComparedRanking::Learned => {
            let index = index(corpus, language, Some(model));
            ranks(&index, &corpus.queries, Some(model), RankingMethod::Learned)
        }
        ComparedRanking::Vectors => {
            let index = index(corpus, language, Some(model));
            in_two(&corpus.queries, |_, query: &CorpusQuery| {
                let mut candidates = index.candidates(&CodeQuery::new(&query.text), Some(model));
                let cosine = |at: usize| candidates[at].features[COSINE_FEATURE];
                let mut order: Vec<usize> = (0..candidates.len()).collect();
                order.sort_by(|a, b| cosine(*b).total_cmp(&cosine(*a)));
                order.truncate(CUTOFF);
                let rank = order.iter().position(|at| candidates[*at].symbol as usize == query.symbol);
                candidates.clear();
                rank
            })
        }
    })
}
