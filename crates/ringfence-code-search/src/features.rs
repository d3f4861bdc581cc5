//! Features of a symbol for a query: the input of the learned ranker.
//!
//! Nothing in them tells the kind, the length or the visibility of a symbol: documented symbols are long and public, so a
//! ranker that is fitted on documentation would learn those instead of what is asked.
//!
//! Not here: the candidates (`corpus.rs`), and the ranker (`model.rs`).

use crate::symbol::{FIELD_COUNT, FieldCounts, SymbolField};

/// Number of features.
pub const FEATURE_COUNT: usize = 24;

/// What each feature is.
pub const FEATURE_NAMES: [&str; FEATURE_COUNT] = [
    "BM25F, of the best",
    "BM25F, logarithm",
    "reciprocal rank by BM25F",
    "cosine of vectors",
    "cosine, below the best",
    "reciprocal rank by cosine",
    "cosine of the name's vector",
    "share of the query in any field",
    "share of the query in the name",
    "share of the query in the signature",
    "share of the query in the owner",
    "share of the query in the path",
    "share of the query in the body",
    "share of the query's stems in any field",
    "share of the name in the query",
    "share of the owner in the query",
    "share of the file's name in the query",
    "the name is the query",
    "the first stems are the same",
    "share of the name in the order of the query",
    "rarest stem of the query, in the name",
    "rarest stem of the query, in any field",
    "BM25F of name and signature, of the best",
    "BM25F of the body, of the best",
];

/// What is known of a candidate before its features.
#[derive(Debug)]
pub(crate) struct CandidateEvidence {
    pub(crate) bm25f: f32,
    pub(crate) head_score: f32,
    pub(crate) body_score: f32,
    pub(crate) cosine: f32,
    pub(crate) name_cosine: f32,
    /// By stem of the query.
    pub(crate) counts: Vec<FieldCounts>,
    pub(crate) name: Vec<String>,
    pub(crate) owner: Vec<String>,
    pub(crate) file: Vec<String>,
}

/// The features of candidates, in their order.
pub(crate) fn features_of(
    terms: &[String],
    idf: &[f32],
    candidates: &[CandidateEvidence],
) -> Vec<[f32; FEATURE_COUNT]> {
    let best =
        |score: fn(&CandidateEvidence) -> f32| candidates.iter().map(score).fold(0.0, f32::max).max(f32::EPSILON);
    let best_score = best(|candidate| candidate.bm25f);
    let best_head = best(|candidate| candidate.head_score);
    let best_body = best(|candidate| candidate.body_score);
    let best_cosine = best(|candidate| candidate.cosine);
    let by_score = ranks(candidates.iter().map(|candidate| candidate.bm25f));
    let by_cosine = ranks(candidates.iter().map(|candidate| candidate.cosine));
    let all_idf = idf.iter().sum::<f32>().max(f32::EPSILON);
    let rarest = (0..terms.len()).max_by(|a, b| idf[*a].total_cmp(&idf[*b]));
    let rows = candidates.iter().zip(by_score.into_iter().zip(by_cosine));
    rows.map(|(candidate, (score_rank, cosine_rank))| {
        let share = |has: &dyn Fn(&FieldCounts) -> bool| {
            let found = candidate.counts.iter().zip(idf).filter(|(counts, _)| has(counts));
            found.map(|(_, idf)| idf).sum::<f32>() / all_idf
        };
        let in_any = |counts: &FieldCounts| counts.iter().any(|count| *count > 0);
        let of_field = |field: SymbolField| share(&|counts| counts[field as usize] > 0);
        let is_in = |position: Option<usize>, has: &dyn Fn(&FieldCounts) -> bool| {
            position.is_some_and(|at| candidate.counts.get(at).is_some_and(has))
        };
        let flag = |is_set: bool| if is_set { 1.0 } else { 0.0 };
        let CandidateEvidence { name, owner, file, .. } = candidate;
        let stems_found = candidate.counts.iter().filter(|counts| in_any(counts)).count();
        [
            candidate.bm25f / best_score,
            candidate.bm25f.ln_1p(),
            1.0 / (1.0 + score_rank as f32),
            candidate.cosine,
            candidate.cosine - best_cosine,
            1.0 / (1.0 + cosine_rank as f32),
            candidate.name_cosine,
            share(&in_any),
            of_field(SymbolField::Name),
            of_field(SymbolField::Signature),
            of_field(SymbolField::Owner),
            of_field(SymbolField::Path),
            of_field(SymbolField::Body),
            stems_found as f32 / terms.len().max(1) as f32,
            share_in(name, terms),
            share_in(owner, terms),
            share_in(file, terms),
            flag(!name.is_empty() && name.len() == terms.len() && name.iter().all(|stem| terms.contains(stem))),
            flag(name.first().is_some_and(|first| terms.first() == Some(first))),
            share_in_order(name, terms),
            flag(is_in(rarest, &|counts| counts[SymbolField::Name as usize] > 0)),
            flag(is_in(rarest, &in_any)),
            candidate.head_score / best_head,
            candidate.body_score / best_body,
        ]
    })
    .collect()
}

/// The place of each score when they are sorted, the best first.
fn ranks(scores: impl Iterator<Item = f32>) -> Vec<usize> {
    let scores: Vec<f32> = scores.collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut ranks = vec![0; scores.len()];
    for (rank, at) in order.into_iter().enumerate() {
        ranks[at] = rank;
    }
    ranks
}

/// The share of the stems that are among the terms.
fn share_in(stems: &[String], terms: &[String]) -> f32 {
    stems.iter().filter(|stem| terms.contains(stem)).count() as f32 / stems.len().max(1) as f32
}

/// The share of the stems that the terms have in the same order.
fn share_in_order(stems: &[String], terms: &[String]) -> f32 {
    let mut from = 0;
    let mut found = 0;
    for stem in stems {
        if let Some(at) = terms[from..].iter().position(|term| term == stem) {
            from += at + 1;
            found += 1;
        }
    }
    found as f32 / stems.len().max(1) as f32
}

/// Fields that say what a symbol is called.
pub(crate) const HEAD_FIELDS: std::ops::Range<usize> = 0..2;

/// The field with what it holds.
pub(crate) const BODY_FIELD: std::ops::Range<usize> = FIELD_COUNT - 1..FIELD_COUNT;
