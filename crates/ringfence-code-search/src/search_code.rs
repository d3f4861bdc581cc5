//! `search_code`: find the symbols that a question or a name is about.
//!
//! Every call looks at the stats of the tree, so what was changed a moment ago is found as it is now. Files that the index
//! lacks are read at once if they are few; else those that mention the query most. A hit is read again through the fence, and
//! judged, before it is shown.
//!
//! Not here: the ranking (`corpus.rs`), and the index (`index_store.rs`).

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use ringfence_fs::{Fence, SourceEntry, SourceListing, SourceReader, SourceTree};
use ringfence_kernel::lenient::optional_scalar;
use ringfence_kernel::{
    CallContext, Dialect, ModelText, PolicyAction, Preview, ResourceAccess, Ticket, Tool, ToolError, ToolPlan, Verdict,
    nearest_name, sanitize_line,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::corpus::{CorpusSymbol, RankingMethod};
use crate::extract::{ExtractionLimits, clip, extract_symbols};
use crate::index_store::{IndexStore, MountIndex};
use crate::language::SourceLanguage;
use crate::query::CodeQuery;
use crate::source_scan::SourceScan;

/// Hits of a reply.
const MAX_HITS: usize = 10;

/// Bytes of a reply's text.
const MAX_TEXT: usize = 6000;

/// Bytes of a query.
const MAX_QUERY: usize = 1000;

/// Bytes of a line that is shown.
const MAX_LINE: usize = 160;

/// Bytes of files that are read at once where the index lacks them; of more, those that mention the query most.
const READ_AT_ONCE: u64 = 4 << 20;

/// Symbols that are looked at for the hits of a reply: some may turn out not to be shown.
const MAX_RANKED: usize = 60;

/// Find code by a question in words, or by the name of a symbol. The reply lists the best matching functions, types and constants with their first lines. For exact text, search the contents of files.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SearchCodeArgs {
    /// What the code does, or a name such as `Host::call`.
    #[serde(alias = "pattern")]
    query: String,
    /// File or directory; the workspace if omitted.
    #[serde(default, alias = "file_path", alias = "dir_path", alias = "directory")]
    path: Option<String>,
    /// Only this language, such as `rust`.
    #[serde(default)]
    language: Option<String>,
    /// Most hits; 10 if omitted.
    #[serde(default, alias = "max_results", alias = "limit", deserialize_with = "optional_scalar")]
    #[schemars(range(min = 1, max = 10))]
    max_results: Option<u64>,
}

/// Checked arguments.
#[derive(Debug)]
pub(crate) struct SearchCodeRequest {
    text: String,
    query: CodeQuery,
    path: Option<String>,
    language: Option<SourceLanguage>,
    most: usize,
}

impl TryFrom<SearchCodeArgs> for SearchCodeRequest {
    type Error = ToolError;

    fn try_from(args: SearchCodeArgs) -> Result<Self, ToolError> {
        let text = args.query.trim().to_owned();
        if text.is_empty() || text.len() > MAX_QUERY {
            return Err(ToolError::invalid("query", "must have between 1 and 1000 bytes"));
        }
        let query = CodeQuery::new(&text);
        if query.terms.is_empty() && query.identifier.is_none() {
            return Err(ToolError::invalid(
                "query",
                "has only words without a meaning of their own; name what you look for",
            ));
        }
        let language = args.language.filter(|name| !name.is_empty()).map(|name| named_language(&name)).transpose()?;
        let most = match args.max_results {
            None => MAX_HITS,
            Some(0) => return Err(ToolError::invalid("maxResults", "must be at least 1")),
            Some(most) => usize::try_from(most).unwrap_or(MAX_HITS).min(MAX_HITS),
        };
        Ok(Self { text, query, path: args.path, language, most })
    }
}

fn named_language(name: &str) -> Result<SourceLanguage, ToolError> {
    SourceLanguage::by_name(name).ok_or_else(|| {
        let error = ToolError::invalid("language", &format!("`{}` is not known", clip(name, 64)));
        match nearest_name(name, SourceLanguage::all().map(SourceLanguage::name)) {
            Some(guess) => error.hint(&format!("did you mean `{guess}`?")),
            None => error.hint("omit it to search every language"),
        }
    })
}

/// The tool.
#[derive(Debug)]
pub(crate) struct SearchCodeTool {
    pub(crate) fence: Fence,
    pub(crate) store: IndexStore,
}

/// A search that was planned.
#[derive(Debug)]
pub(crate) struct PlannedSearch {
    request: SearchCodeRequest,
    tree: SourceTree,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SearchCodeResult {
    /// The best first.
    hits: Vec<CodeHit>,
    /// Files in the index that were searched.
    files: usize,
    /// Files that are not in the index. Those that mention the query most were searched too.
    pending_files: usize,
}

/// A symbol.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CodeHit {
    path: String,
    /// First line of the definition.
    line: u32,
    end_line: u32,
    kind: &'static str,
    /// Name, with the type or module that it belongs to.
    symbol: String,
    signature: String,
    /// The first lines after that of the name.
    text: String,
}

impl Tool for SearchCodeTool {
    type Args = SearchCodeRequest;
    type Prepared = PlannedSearch;
    type Outcome = SearchCodeResult;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn plan(&self, request: SearchCodeRequest, cx: &CallContext<'_>) -> Result<ToolPlan<PlannedSearch>, ToolError> {
        let tree = self.fence.source_tree(request.path.clone(), cx)?;
        Ok(ToolPlan { accesses: vec![tree.access()], prepared: PlannedSearch { request, tree } })
    }

    fn preview(&self, search: &mut PlannedSearch, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let text = format!("search code for `{}` in `{}`", search.request.text, search.tree.shown());
        Ok(Preview::new(&text, ""))
    }

    fn run(&self, search: PlannedSearch, ticket: &Ticket<'_>) -> Result<SearchCodeResult, ToolError> {
        let cx = ticket.context();
        let PlannedSearch { request, tree } = search;
        let (below, reader) = (tree.path().to_owned(), tree.reader());
        let target = self.store.index_of(&tree.mount_id());
        let of_tree = cx.evaluate(&tree.access());
        let listing = target.listing.list(tree, |path| SourceLanguage::of_path(path).is_some(), cx)?;
        let listed = &*listing.entries;
        let scan = SourceScan { reader: &reader, limits: cx.limits, commit_state: cx.commit_state() };
        let RefreshedIndex { read_now, surplus, pending } = self.refresh(&target, &below, &listing, &request, scan);
        let found = self.rank(&target, listed, &read_now, &request);
        if !surplus.is_empty() {
            target.index.lock().remove_all(&surplus);
        }
        cx.check()?;
        let files = listed.iter().filter(|entry| entry.is_readable).count() - pending.len();
        let hits = HitReader { reader: &reader, of_tree: &of_tree, most: request.most, cx }.read(found)?;
        let result = SearchCodeResult { hits, files, pending_files: pending.len() };
        target.save_if_worthwhile();
        if !pending.is_empty() {
            self.store.index_later(&target, &reader, cx.limits, pending);
        }
        Ok(result)
    }
}

/// A symbol that was found, and the file that it was read from.
struct FoundSymbol {
    path: String,
    symbol: CorpusSymbol,
    entry: SourceEntry,
}

/// What became of the index.
struct RefreshedIndex {
    /// Files that were read for the call.
    read_now: HashSet<String>,
    /// Those of them that there is no room for after the call.
    surplus: Vec<String>,
    /// Files that it still lacks.
    pending: Vec<SourceEntry>,
}

impl SearchCodeTool {
    /// Brings the index up to date as far as that can be done at once.
    fn refresh(
        &self,
        target: &Arc<MountIndex>,
        below: &str,
        listing: &SourceListing,
        request: &SearchCodeRequest,
        scan: SourceScan<'_>,
    ) -> RefreshedIndex {
        let listed = &*listing.entries;
        let lacking = || -> Vec<&SourceEntry> {
            if target.has_all_of(listing.version) {
                return Vec::new();
            }
            let mut index = target.index.lock();
            index.retain_listed(below, listed);
            listed.iter().filter(|entry| entry.is_readable && !index.is_fresh(entry)).collect()
        };
        let is_small = |entries: &[&SourceEntry]| bytes_of(entries) <= READ_AT_ONCE;
        let mut stale = lacking();
        if stale.is_empty() {
            target.set_complete(listing.version);
        }
        // Another process may have stored more in the meantime.
        if !is_small(&stale) && target.reload() {
            stale = lacking();
        }
        let read_now = if is_small(&stale) {
            stale.clone()
        } else {
            let wanted = |entry: &&SourceEntry| {
                request.language.is_none_or(|language| SourceLanguage::of_path(&entry.path) == Some(language))
            };
            scan.best_files(&stale.iter().copied().filter(wanted).collect::<Vec<_>>(), &request.query)
        };
        let parsed = scan.parse(&read_now);
        let mut index = target.index.lock();
        index.compact();
        let mut surplus = Vec::new();
        for source in &parsed {
            if !index.has_room() {
                surplus.push(source.path.clone());
            }
            index.insert(source, self.store.model());
        }
        let read_now: HashSet<String> = parsed.into_iter().map(|source| source.path).collect();
        stale.retain(|entry| !read_now.contains(&entry.path));
        RefreshedIndex { read_now, surplus, pending: stale.into_iter().cloned().collect() }
    }

    fn rank(
        &self,
        target: &MountIndex,
        listed: &[SourceEntry],
        read_now: &HashSet<String>,
        request: &SearchCodeRequest,
    ) -> Vec<FoundSymbol> {
        let index = target.index.lock();
        let accepted = index.accepted(listed, read_now, request.language);
        let model = self.store.model();
        let ranked = index.corpus.search_in(&request.query, model, RankingMethod::Learned, MAX_RANKED, &accepted);
        let found = ranked.into_iter().filter_map(|ranked| {
            let path = index.corpus.file_of(ranked.symbol).path.to_string();
            let entry = listed.binary_search_by(|entry| entry.path.as_str().cmp(&path));
            let entry = match entry {
                Ok(at) => listed.get(at)?,
                // Directories are listed by their names, which is another order than that of whole paths.
                Err(_) => listed.iter().find(|entry| entry.path == path)?,
            };
            Some(FoundSymbol { path, symbol: index.corpus.symbol(ranked.symbol).clone(), entry: entry.clone() })
        });
        found.collect()
    }
}

fn bytes_of(entries: &[&SourceEntry]) -> u64 {
    entries.iter().map(|entry| entry.stamp.size).sum()
}

/// Reads hits as they are now.
struct HitReader<'a, 'cx> {
    reader: &'a SourceReader,
    /// The decision about the whole search: a file with a stricter one is not shown.
    of_tree: &'a Verdict,
    most: usize,
    cx: &'a CallContext<'cx>,
}

impl HitReader<'_, '_> {
    fn read(&self, found: Vec<FoundSymbol>) -> Result<Vec<CodeHit>, ToolError> {
        let mut hits: Vec<CodeHit> = Vec::new();
        let mut bytes = 0;
        for found in found {
            self.cx.check()?;
            if hits.len() == self.most {
                break;
            }
            let Some(hit) = self.hit(&found, lines_of_rank(hits.len())) else { continue };
            bytes += hit.heading().len() + hit.text.len() + 2;
            // A note about pending files takes the rest.
            if bytes > MAX_TEXT - 200 {
                break;
            }
            hits.push(hit);
        }
        Ok(hits)
    }

    /// The hit, if the file may be shown and still has it.
    fn hit(&self, found: &FoundSymbol, lines: usize) -> Option<CodeHit> {
        let limits = ExtractionLimits::default();
        let content = self.reader.read(&found.path, limits.file_bytes as u64, self.cx).ok()??;
        let access = ResourceAccess { action: PolicyAction::Read, resource: content.resource };
        if self.cx.evaluate(&access).strictness() > self.of_tree.strictness() {
            return None;
        }
        let CorpusSymbol { name, owner, signature, kind, mut start_line, mut end_line, .. } = found.symbol.clone();
        if content.stamp != Some(found.entry.stamp) {
            // It changed since it was listed.
            let language = SourceLanguage::of_path(&found.path)?;
            let symbols = extract_symbols(language, &content.bytes, &limits);
            let symbol = symbols.iter().find(|symbol| *symbol.name == *name && *symbol.owner == *owner)?;
            (start_line, end_line) = (symbol.start_line, symbol.end_line);
        }
        let text = String::from_utf8_lossy(&content.bytes);
        let below = usize::try_from(end_line.saturating_sub(start_line)).unwrap_or(usize::MAX);
        let first = usize::try_from(start_line).unwrap_or(usize::MAX);
        let shown = text.lines().skip(first).take(below.min(lines)).map(|line| clip(line.trim_end(), MAX_LINE));
        let symbol = if owner.is_empty() { name.to_string() } else { qualified(&owner, &name, &found.path) };
        Some(CodeHit {
            path: self.reader.shown(&found.path),
            line: start_line,
            end_line,
            kind: kind.name(),
            symbol,
            signature: signature.to_string(),
            text: shown.collect::<Vec<_>>().join("\n"),
        })
    }
}

/// Lines below the first of a hit at a place in the order.
fn lines_of_rank(rank: usize) -> usize {
    match rank {
        0..2 => 12,
        2..5 => 7,
        _ => 3,
    }
}

fn qualified(owner: &str, name: &str, path: &str) -> String {
    let joint = match SourceLanguage::of_path(path) {
        Some(SourceLanguage::Rust | SourceLanguage::C | SourceLanguage::Outlined("cpp")) => "::",
        _ => ".",
    };
    match owner.split_once(" for ") {
        Some((of, owner)) => format!("<{owner} as {of}>{joint}{name}"),
        None => format!("{owner}{joint}{name}"),
    }
}

impl CodeHit {
    fn heading(&self) -> String {
        let Self { path, line, symbol, signature, .. } = self;
        format!("{}:{line} {} {}", sanitize_line(path), sanitize_line(symbol), sanitize_line(signature))
    }
}

impl ModelText for SearchCodeResult {
    fn model_text(&self, dialect: Dialect) -> String {
        let mut text = String::new();
        for hit in &self.hits {
            let _ = writeln!(text, "{}", hit.heading());
            if !hit.text.is_empty() {
                let _ = writeln!(text, "{}", hit.text);
            }
        }
        if self.hits.is_empty() {
            let search = match dialect {
                Dialect::Claude => "Grep",
                Dialect::Gemini => "grep_search",
                _ => "search_files",
            };
            let _ = writeln!(text, "[no symbol matches; {search} looks for text]");
        }
        if self.pending_files > 0 {
            let _ = writeln!(
                text,
                "[{} of {} files are not in the index: of those, only the ones with most words of the query were searched]",
                self.pending_files,
                self.files + self.pending_files
            );
        }
        text.truncate(text.trim_end().len());
        text
    }
}
