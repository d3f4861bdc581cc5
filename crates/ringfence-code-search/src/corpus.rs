//! Symbol corpus: an inverted index of symbols in memory, and the ranking of symbols for a query.
//!
//! Files are added and removed one by one; what was removed is never found. Symbols are numbered in the order in which they
//! came, so every list of postings is sorted.
//!
//! Not here: files on disk (`index_file.rs`), and which of them are looked at (`workspace_index.rs`).

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::bm25f::{Bm25f, Bm25fWeights, inverse_frequency};
use crate::extract::clip;
use crate::features::{BODY_FIELD, CandidateEvidence, FEATURE_COUNT, HEAD_FIELDS, features_of};
use crate::language::SourceLanguage;
use crate::model::{DIMENSIONS, SearchModel, SearchVector};
use crate::posting_list::{Posting, PostingList};
use crate::query::{CodeQuery, NamedSymbol};
use crate::symbol::{CodeSymbol, FIELD_COUNT, FieldCounts, SymbolKind, SymbolTerms, without_extension};
use crate::tokens::stems;

/// Candidates by BM25F, and by the vectors.
const CANDIDATES: usize = 200;
const VECTOR_CANDIDATES: usize = 100;

/// Bytes of a signature that are kept.
const KEPT_SIGNATURE: usize = 200;

/// Bytes of a stem and of its list without postings.
const BYTES_OF_STEM: usize = 130;

/// Bytes of a symbol without postings and vector.
const BYTES_OF_SYMBOL: usize = 220;

/// Symbols of files.
#[derive(Debug, Default)]
pub struct SymbolCorpus {
    pub(crate) stems: StemNumbers,
    pub(crate) postings: Vec<PostingList>,
    pub(crate) symbols: Vec<CorpusSymbol>,
    /// [`DIMENSIONS`] numbers for each symbol; empty without a table.
    pub(crate) vectors: Vec<i8>,
    pub(crate) files: Vec<CorpusFile>,
    /// Sums of the lengths of fields, of what is not removed.
    totals: [u64; FIELD_COUNT],
    live: usize,
    /// Bytes of postings.
    pub(crate) posted: usize,
}

/// Numbers of stems.
#[derive(Debug, Default)]
pub(crate) struct StemNumbers {
    numbers: HashMap<Arc<str>, u32>,
    pub(crate) texts: Vec<Arc<str>>,
}

/// A symbol of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorpusSymbol {
    pub name: Box<str>,
    pub owner: Box<str>,
    pub signature: Box<str>,
    pub kind: SymbolKind,
    pub start_line: u32,
    pub end_line: u32,
    pub(crate) file: u32,
    pub(crate) lengths: FieldCounts,
}

/// A file of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorpusFile {
    pub path: Box<str>,
    pub language: SourceLanguage,
    pub(crate) symbols: Range<u32>,
    pub(crate) is_live: bool,
}

/// A symbol that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedSymbol {
    /// Its number in the corpus.
    pub symbol: u32,
    /// More is better; only scores of one search can be compared.
    pub score: f32,
    /// The query is its name.
    pub is_exact: bool,
}

/// A symbol that may be what is searched for.
#[derive(Clone, Debug, PartialEq)]
pub struct RankCandidate {
    pub symbol: u32,
    pub bm25f: f32,
    pub features: [f32; FEATURE_COUNT],
}

/// How symbols are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankingMethod {
    Bm25f,
    /// By the learned ranker, as far as the model has one.
    Learned,
}

impl StemNumbers {
    pub(crate) fn get(&self, stem: &str) -> Option<u32> {
        self.numbers.get(stem).copied()
    }

    pub(crate) fn get_or_add(&mut self, stem: &str) -> u32 {
        if let Some(number) = self.numbers.get(stem) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = stem.into();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }
}

impl SymbolCorpus {
    /// Adds the symbols of a file, and gives the file its number.
    pub fn add_file(
        &mut self,
        path: &str,
        language: SourceLanguage,
        symbols: &[CodeSymbol],
        model: Option<&SearchModel>,
    ) -> usize {
        let terms: Vec<SymbolTerms> = symbols.iter().map(|symbol| SymbolTerms::new(path, symbol)).collect();
        self.add_terms(path, language, symbols, &terms, model)
    }

    /// The same, for symbols whose stems are known.
    pub fn add_terms(
        &mut self,
        path: &str,
        language: SourceLanguage,
        symbols: &[CodeSymbol],
        terms: &[SymbolTerms],
        model: Option<&SearchModel>,
    ) -> usize {
        let first = self.next_symbol();
        let table = model.and_then(|model| model.table.as_ref());
        let file = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        for (symbol, terms) in symbols.iter().zip(terms) {
            let number = self.next_symbol();
            for (stem, counts) in &terms.counts {
                let stem = self.stems.get_or_add(stem) as usize;
                if self.postings.len() <= stem {
                    self.postings.resize_with(stem + 1, PostingList::default);
                }
                self.posted += self.postings[stem].push(Posting::new(number, counts));
            }
            if let Some(table) = table {
                self.vectors.extend(quantized(&table.symbol_vector(terms)));
            }
            self.symbols.push(CorpusSymbol {
                name: symbol.name.as_str().into(),
                owner: symbol.owner.as_str().into(),
                signature: clip(&symbol.signature, KEPT_SIGNATURE).into(),
                kind: symbol.kind,
                start_line: symbol.start_line,
                end_line: symbol.end_line,
                file,
                lengths: terms.lengths,
            });
        }
        self.push_file(CorpusFile { path: path.into(), language, symbols: first..self.next_symbol(), is_live: true })
    }

    /// Adds a file whose symbols are there.
    pub(crate) fn push_file(&mut self, file: CorpusFile) -> usize {
        let symbols = &self.symbols[file.symbols.start as usize..file.symbols.end as usize];
        for symbol in symbols {
            for (total, length) in self.totals.iter_mut().zip(symbol.lengths) {
                *total += u64::from(length);
            }
        }
        self.live += symbols.len();
        self.files.push(file);
        self.files.len() - 1
    }

    /// Removes a file and its symbols.
    pub fn remove_file(&mut self, file: usize) {
        let Some(file) = self.files.get_mut(file).filter(|file| file.is_live) else { return };
        file.is_live = false;
        let symbols = &self.symbols[file.symbols.start as usize..file.symbols.end as usize];
        for symbol in symbols {
            for (total, length) in self.totals.iter_mut().zip(symbol.lengths) {
                *total -= u64::from(length);
            }
        }
        self.live -= symbols.len();
    }

    /// Number of symbols, without those that were removed.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Number of symbols that were removed and still take room.
    pub(crate) fn removed(&self) -> usize {
        self.symbols.len() - self.live
    }

    /// Bytes in memory, as estimated from the number of things.
    pub(crate) fn memory(&self) -> u64 {
        let postings = self.posted + self.posted / 4;
        let stems = self.stems.texts.len() * BYTES_OF_STEM;
        (postings + stems + self.symbols.len() * BYTES_OF_SYMBOL + self.vectors.len()) as u64
    }

    /// Gives back the room of what was removed. Returns the new numbers of files by their old ones.
    pub(crate) fn compact(&mut self) -> Vec<Option<usize>> {
        let mut compacted = Self::default();
        let mut numbers: Vec<Option<u32>> = vec![None; self.symbols.len()];
        let mut files = vec![None; self.files.len()];
        for (at, file) in self.files.iter().enumerate().filter(|(_, file)| file.is_live) {
            let first = compacted.next_symbol();
            let number = u32::try_from(compacted.files.len()).unwrap_or(u32::MAX);
            for old in file.symbols.clone() {
                numbers[old as usize] = Some(compacted.next_symbol());
                let vector = old as usize * DIMENSIONS..(old as usize + 1) * DIMENSIONS;
                compacted.vectors.extend_from_slice(self.vectors.get(vector).unwrap_or_default());
                compacted.symbols.push(CorpusSymbol { file: number, ..self.symbols[old as usize].clone() });
            }
            let symbols = first..compacted.next_symbol();
            files[at] = Some(compacted.push_file(CorpusFile { symbols, ..file.clone() }));
        }
        for (stem, list) in self.stems.texts.iter().zip(&self.postings) {
            let mut kept = PostingList::default();
            for posting in list.iter() {
                if let Some(symbol) = numbers[posting.symbol as usize] {
                    compacted.posted += kept.push(Posting { symbol, ..posting });
                }
            }
            if kept.len() > 0 {
                compacted.stems.get_or_add(stem);
                compacted.postings.push(kept);
            }
        }
        *self = compacted;
        files
    }

    /// A symbol by its number.
    pub fn symbol(&self, number: u32) -> &CorpusSymbol {
        &self.symbols[number as usize]
    }

    /// The file of a symbol.
    pub fn file_of(&self, number: u32) -> &CorpusFile {
        &self.files[self.symbols[number as usize].file as usize]
    }

    /// The best symbols for a query, the best first, of the files that are accepted.
    pub fn search(
        &self,
        query: &CodeQuery,
        model: Option<&SearchModel>,
        method: RankingMethod,
        most: usize,
        accepts: impl Fn(&CorpusFile) -> bool,
    ) -> Vec<RankedSymbol> {
        let accepted: Vec<bool> = self.files.iter().map(|file| file.is_live && accepts(file)).collect();
        self.search_in(query, model, method, most, &accepted)
    }

    /// The same for the files that are accepted by their numbers.
    pub(crate) fn search_in(
        &self,
        query: &CodeQuery,
        model: Option<&SearchModel>,
        method: RankingMethod,
        most: usize,
        accepted: &[bool],
    ) -> Vec<RankedSymbol> {
        let ranker = model.and_then(|model| model.ranker.as_ref()).filter(|_| method == RankingMethod::Learned);
        let candidates = self.candidates_in(query, model, accepted);
        let score = |candidate: &RankCandidate| match ranker {
            Some(ranker) => ranker.score(&candidate.features),
            None => candidate.bm25f,
        };
        let mut ranked: Vec<RankedSymbol> = match &query.identifier {
            Some(named) => self.exact_symbols(named, accepted),
            None => Vec::new(),
        };
        let exact = ranked.len();
        let found = candidates.iter().map(|candidate| (candidate.symbol, score(candidate)));
        let mut others: Vec<RankedSymbol> =
            found.map(|(symbol, score)| RankedSymbol { symbol, score, is_exact: false }).collect();
        others.retain(|other| !ranked[..exact].iter().any(|exact| exact.symbol == other.symbol));
        others.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.symbol.cmp(&b.symbol)));
        ranked.extend(others);
        ranked.truncate(most);
        ranked
    }

    /// Symbols that may be meant, with their features, in no order.
    pub fn candidates(&self, query: &CodeQuery, model: Option<&SearchModel>) -> Vec<RankCandidate> {
        let accepted: Vec<bool> = self.files.iter().map(|file| file.is_live).collect();
        self.candidates_in(query, model, &accepted)
    }

    fn candidates_in(&self, query: &CodeQuery, model: Option<&SearchModel>, accepted: &[bool]) -> Vec<RankCandidate> {
        let weights = model.map_or_else(Bm25fWeights::default, |model| model.bm25f);
        let mean = |at: usize| self.totals[at] as f32 / self.live.max(1) as f32;
        let bm25f = Bm25f { weights, mean_lengths: std::array::from_fn(mean) };
        let lists: Vec<&PostingList> = query.terms.iter().map(|stem| self.postings_of(stem)).collect();
        let idf: Vec<f32> = lists.iter().map(|list| inverse_frequency(self.symbols.len(), list.len())).collect();
        let mut scores = vec![0.0_f32; self.symbols.len()];
        for (list, idf) in lists.iter().zip(&idf) {
            for posting in list.iter() {
                let symbol = &self.symbols[posting.symbol as usize];
                scores[posting.symbol as usize] += bm25f.score(*idf, &posting.counts(), &symbol.lengths);
            }
        }
        let is_accepted = |number: usize| accepted[self.symbols[number].file as usize];
        let found = (0..scores.len()).filter(|number| scores[*number] > 0.0 && is_accepted(*number));
        let mut chosen = best_of(found.map(|number| (scores[number], number)).collect(), CANDIDATES);
        let table = model.and_then(|model| model.table.as_ref());
        let query_vector = table.map(|table| table.query_vector(query.terms.iter().map(String::as_str)));
        let quantized_query = query_vector.as_ref().map(quantized);
        let cosine = |number: usize| quantized_query.as_ref().map_or(0.0, |query| self.cosine(number, query));
        if query_vector.is_some_and(|vector| vector.iter().any(|value| *value != 0.0)) {
            let near = (0..scores.len()).filter(|number| is_accepted(*number));
            let near = best_of(near.map(|number| (cosine(number), number)).collect(), VECTOR_CANDIDATES);
            let by_score: HashSet<usize> = chosen.iter().copied().collect();
            chosen.extend(near.into_iter().filter(|number| !by_score.contains(number)));
        }
        chosen.sort_unstable();
        let counts_of_terms: Vec<Vec<FieldCounts>> = lists.iter().map(|list| list.counts_in(&chosen)).collect();
        let evidence: Vec<CandidateEvidence> = chosen
            .iter()
            .enumerate()
            .map(|(at, number)| {
                let symbol = &self.symbols[*number];
                let counts: Vec<FieldCounts> = counts_of_terms.iter().map(|counts| counts[at]).collect();
                let part = |fields: Range<usize>| {
                    let scores = counts.iter().zip(&idf);
                    scores
                        .map(|(counts, idf)| bm25f.score_of_fields(*idf, counts, &symbol.lengths, fields.clone()))
                        .sum()
                };
                let name = stems(&symbol.name);
                let name_cosine = match (table, &query_vector) {
                    (Some(table), Some(query)) => dot(&table.words_vector(name.iter().map(String::as_str)), query),
                    _ => 0.0,
                };
                let path = without_extension(&self.files[symbol.file as usize].path);
                CandidateEvidence {
                    bm25f: scores[*number],
                    head_score: part(HEAD_FIELDS),
                    body_score: part(BODY_FIELD),
                    cosine: cosine(*number),
                    name_cosine,
                    name,
                    owner: stems(&symbol.owner),
                    file: stems(path.rsplit('/').next().unwrap_or_default()),
                    counts,
                }
            })
            .collect();
        let features = features_of(&query.terms, &idf, &evidence);
        let candidates = chosen.into_iter().zip(features).zip(&evidence);
        candidates
            .map(|((number, features), evidence)| RankCandidate {
                symbol: u32::try_from(number).unwrap_or(u32::MAX),
                bm25f: evidence.bm25f,
                features,
            })
            .collect()
    }

    /// Symbols with the name, those of the owner and in the same case first.
    fn exact_symbols(&self, named: &NamedSymbol, accepted: &[bool]) -> Vec<RankedSymbol> {
        let mut found = Vec::new();
        for (number, symbol) in self.symbols.iter().enumerate() {
            let is_named = symbol.name.eq_ignore_ascii_case(&named.name);
            if !is_named || !accepted[symbol.file as usize] {
                continue;
            }
            let mut owners = symbol.owner.split(|character: char| !(character.is_alphanumeric() || character == '_'));
            let is_owner = !named.owner.is_empty() && owners.any(|owner| owner.eq_ignore_ascii_case(&named.owner));
            let is_same = *symbol.name == *named.name;
            let score = 1.0 + f32::from(u8::from(is_same)) + 2.0 * f32::from(u8::from(is_owner));
            found.push(RankedSymbol { symbol: u32::try_from(number).unwrap_or(u32::MAX), score, is_exact: true });
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.symbol.cmp(&b.symbol)));
        found
    }

    pub(crate) fn next_symbol(&self) -> u32 {
        u32::try_from(self.symbols.len()).unwrap_or(u32::MAX)
    }

    fn postings_of(&self, stem: &str) -> &PostingList {
        static NONE: PostingList = PostingList::EMPTY;
        self.stems.get(stem).and_then(|number| self.postings.get(number as usize)).unwrap_or(&NONE)
    }

    fn cosine(&self, number: usize, query: &[i8; DIMENSIONS]) -> f32 {
        let at = number * DIMENSIONS;
        let Some(vector) = self.vectors.get(at..at + DIMENSIONS) else { return 0.0 };
        let sum: i32 = vector.iter().zip(query).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        sum as f32 / (VECTOR_SCALE * VECTOR_SCALE)
    }
}

/// The largest number in a quantized vector of length one.
const VECTOR_SCALE: f32 = 127.0;

fn quantized(vector: &SearchVector) -> [i8; DIMENSIONS] {
    vector.map(|value| (value * VECTOR_SCALE).round() as i8)
}

fn dot(a: &SearchVector, b: &SearchVector) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The numbers with the highest scores.
fn best_of(mut scored: Vec<(f32, usize)>, most: usize) -> Vec<usize> {
    let order = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if scored.len() > most {
        scored.select_nth_unstable_by(most, order);
        scored.truncate(most);
    }
    scored.into_iter().map(|(_, number)| number).collect()
}
