//! Source scans: files of a tree that mention a query, and the symbols of files.
//!
//! Several threads read, each file once and within limits; a scan ends with its call.
//!
//! Not here: which files are in an index (`workspace_index.rs`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use aho_corasick::AhoCorasick;
use ringfence_fs::{SourceEntry, SourceReader, SourceStamp};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallCommitState, CallContext, CallLimits, IoMode};

use crate::bm25f::inverse_frequency;
use crate::extract::{ExtractionLimits, extract_symbols, is_source_text};
use crate::language::SourceLanguage;
use crate::query::CodeQuery;
use crate::symbol::{CodeSymbol, SymbolTerms};

/// Files that are parsed for a query when there is no index of them, and their bytes.
const BEST_FILES: usize = 150;
const BEST_BYTES: u64 = 5 << 20;

/// Terms that a scan counts.
const MAX_TERMS: usize = 12;

/// Threads of a scan.
const MAX_THREADS: usize = 4;

/// Where files are read, and how far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceScan<'a> {
    pub(crate) reader: &'a SourceReader,
    pub(crate) limits: &'a CallLimits,
    pub(crate) commit_state: &'a CallCommitState,
}

/// The symbols of a file.
#[derive(Debug)]
pub(crate) struct ParsedSource {
    pub(crate) path: String,
    pub(crate) language: SourceLanguage,
    pub(crate) symbols: Vec<CodeSymbol>,
    pub(crate) terms: Vec<SymbolTerms>,
    /// Its state while it was read; `None` if that changed.
    pub(crate) stamp: Option<SourceStamp>,
    /// When reading began, in nanoseconds since 1970.
    pub(crate) read_at: i128,
}

impl SourceScan<'_> {
    /// The symbols of files, in their order. Fewer once the call is over.
    pub(crate) fn parse(&self, entries: &[&SourceEntry]) -> Vec<ParsedSource> {
        self.each(entries, |entry, cx| self.parse_one(entry, cx))
    }

    /// The files that mention the query most, as many as can be parsed at once.
    pub(crate) fn best_files<'a>(&self, entries: &[&'a SourceEntry], query: &CodeQuery) -> Vec<&'a SourceEntry> {
        let patterns: Vec<&str> = query.terms.iter().take(MAX_TERMS).map(|term| common_start(term)).collect();
        let matcher = AhoCorasick::builder().ascii_case_insensitive(true).build(&patterns);
        let Ok(matcher) = matcher else { return Vec::new() };
        let most = ExtractionLimits::default().file_bytes as u64;
        let counted = self.each(entries, |entry, cx| {
            let content = self.reader.read(&entry.path, most, cx).ok().flatten()?;
            let mut counts = vec![0_u32; patterns.len()];
            for (text, weight) in [(content.bytes.as_slice(), 1), (entry.path.as_bytes(), 3)] {
                for found in matcher.find_iter(text) {
                    counts[found.pattern().as_usize()] += weight;
                }
            }
            (counts.iter().any(|count| *count > 0) && is_source_text(&content.bytes))
                .then_some((entry.path.clone(), counts))
        });
        let frequencies = (0..patterns.len()).map(|at| counted.iter().filter(|(_, counts)| counts[at] > 0).count());
        let idf: Vec<f32> = frequencies.map(|with| inverse_frequency(entries.len(), with)).collect();
        let score = |counts: &[u32]| -> f32 {
            counts.iter().zip(&idf).map(|(count, idf)| idf * *count as f32 / (*count as f32 + 2.0)).sum()
        };
        let mut best: Vec<(f32, &str)> = counted.iter().map(|(path, counts)| (score(counts), path.as_str())).collect();
        best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        best.truncate(BEST_FILES);
        let mut left = BEST_BYTES;
        let mut chosen = Vec::new();
        for (_, path) in best {
            let Some(entry) = entries.iter().find(|entry| entry.path == path) else { continue };
            if let Some(rest) = left.checked_sub(entry.stamp.size) {
                left = rest;
                chosen.push(*entry);
            }
        }
        chosen
    }

    /// The symbols of one file. A file that cannot be read has none.
    pub(crate) fn parse_one(&self, entry: &SourceEntry, cx: &CallContext<'_>) -> Option<ParsedSource> {
        let language = SourceLanguage::of_path(&entry.path)?;
        let limits = ExtractionLimits::default();
        let read_at = now_nanos();
        let content = self.reader.read(&entry.path, limits.file_bytes as u64, cx);
        cx.check().ok()?;
        let (symbols, stamp) = match content {
            Ok(Some(content)) => (extract_symbols(language, &content.bytes, &limits), content.stamp),
            // Its state is known: it is looked at again when that changes.
            Ok(None) | Err(_) => (Vec::new(), Some(entry.stamp)),
        };
        let terms = symbols.iter().map(|symbol| SymbolTerms::new(&entry.path, symbol)).collect();
        Some(ParsedSource { path: entry.path.clone(), language, symbols, terms, stamp, read_at })
    }

    /// Applies a function to each entry, on several threads, and returns what it returned in the order of the entries.
    fn each<T: Send>(
        &self,
        entries: &[&SourceEntry],
        apply: impl Fn(&SourceEntry, &CallContext<'_>) -> Option<T> + Sync,
    ) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<(usize, T)>> = Mutex::default();
        let work = || {
            let cx = CallContext::new(self.limits, IoMode::Blocking, self.commit_state);
            while cx.check().is_ok() {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(entry) = entries.get(at) else { return };
                if let Some(result) = apply(entry, &cx) {
                    results.lock().push((at, result));
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(entries.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Fewer will do: this thread works too.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let mut results = results.into_inner();
        results.sort_unstable_by_key(|(at, _)| *at);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

/// What a stem and the words that it is of have in common: `entri` of `entry` has `entr`.
fn common_start(stem: &str) -> &str {
    match stem.strip_suffix(['i', 'e']) {
        Some(start) if start.len() >= 3 => start,
        _ => stem,
    }
}

/// Now, in nanoseconds since 1970.
fn now_nanos() -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i128::try_from(now.as_nanos()).unwrap_or(i128::MAX)
}
