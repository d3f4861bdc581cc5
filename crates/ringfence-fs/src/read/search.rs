//! Line search in a file or a tree.
//!
//! One thread walks and several search, and the result is the same whatever they did: matches come in the order of
//! paths and lines, and a search that stops early stops at the same match every time. Files are opened by the
//! descriptors of the walk; contents never come from a path.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use globset::GlobSet;
use grep_matcher::{LineTerminator, Matcher as _};
use grep_regex::RegexMatcher;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    CallCommitState, CallContext, PolicyAction, PolicyResource, ResourceAccess, Sensitivity, ToolError, sensitivity,
};
use rustix::io::Errno;

use crate::path::name::{escape, unescape};
use crate::read::ignore::IgnoreRules;
use crate::root::MountRoot;
use crate::root::walk::{TreeWalk, WalkStep};
use crate::sensitive::files::SensitiveFiles;
use crate::sys::errno::errno_error;
use crate::sys::file_ref::{FileRef, InodeIdentity};

/// A line longer than this is shown around its match only.
const LONGEST_LINE: usize = 1000;

/// A line longer than this makes its file one that is not searched.
const LONGEST_SEARCHED_LINE: usize = 1 << 20;

/// Files that wait for a searcher; each may hold a directory open.
const QUEUE_LENGTH: usize = 128;

/// A search pattern, with its scope.
#[derive(Debug)]
pub(crate) struct SearchQuery {
    pub(crate) matcher: RegexMatcher,
    pub(crate) before: usize,
    pub(crate) after: usize,
    pub(crate) most: usize,
    pub(crate) collect: MatchCollection,
    pub(crate) scope: SearchScope,
}

/// The matches of a file that are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchCollection {
    /// Every matching line.
    Lines,
    /// The first one.
    First,
    /// The first one, with the number of all.
    Count,
}

/// Entries of a tree that are searched.
#[derive(Debug)]
pub(crate) struct SearchScope {
    pub(crate) hidden: HiddenFileHandling,
    /// Whether ignore files of the tree are heeded.
    pub(crate) ignore_files: bool,
    /// Directories that are never entered.
    pub(crate) excluded_directories: &'static [&'static str],
    /// Only paths, from the start of the search, that match.
    pub(crate) glob: Option<GlobSet>,
    /// Only names of these types.
    pub(crate) types: Option<GlobSet>,
}

/// Handling of names that begin with a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HiddenFileHandling {
    Searched,
    /// Files are searched, directories not entered.
    FilesOnly,
    Excluded,
}

/// A matching line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineMatch {
    /// From the start of the search; empty for a search in one file.
    pub(crate) path: String,
    pub(crate) line: u64,
    /// In characters, counted from one.
    pub(crate) column: u64,
    pub(crate) text: String,
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
    /// Number of matching lines that it stands for.
    pub(crate) count: u64,
}

/// The result of a search.
#[derive(Debug, Default)]
pub(crate) struct TextSearchResult {
    pub(crate) hits: Vec<LineMatch>,
    /// There are more.
    pub(crate) truncated: bool,
    pub(crate) scanned: u64,
    pub(crate) skipped: SkipCounts,
}

/// Reason for skipping a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkipReason {
    Binary,
    Unreadable,
    Secret,
    Denied,
}

/// Files that were not searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SkipCounts {
    pub(crate) binary: u64,
    pub(crate) unreadable: u64,
    /// Reading them would have to be asked for, one by one.
    pub(crate) secret: u64,
    /// A rule denies to read them, or wants to be asked about them by themselves.
    pub(crate) denied: u64,
}

impl SkipCounts {
    fn count(&mut self, why: SkipReason) {
        match why {
            SkipReason::Binary => self.binary += 1,
            SkipReason::Unreadable => self.unreadable += 1,
            SkipReason::Secret => self.secret += 1,
            SkipReason::Denied => self.denied += 1,
        }
    }
}

/// Searches one file.
pub(crate) fn search_file(
    query: &SearchQuery,
    file: OwnedFd,
    cx: &CallContext<'_>,
) -> Result<TextSearchResult, ToolError> {
    let mut found = TextSearchResult::default();
    match search_one(query, file, String::new(), cx.commit_state(), &mut searcher(query)) {
        FileSearchResult::Searched { hits, .. } => {
            found.scanned = 1;
            found.hits = hits;
        }
        FileSearchResult::Skipped(why) => found.skipped.count(why),
    }
    cx.check()?;
    found.truncated = found.hits.len() > query.most;
    found.hits.truncate(query.most);
    Ok(found)
}

/// Searches a tree.
pub(crate) fn search_tree(
    query: &SearchQuery,
    start: OwnedFd,
    rules: IgnoreRules,
    at: SearchRoot<'_>,
    cx: &CallContext<'_>,
) -> Result<TextSearchResult, ToolError> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(4));
    let board = SearchMerger::default();
    let (sender, receiver) = sync_channel(QUEUE_LENGTH);
    // Only searchers hold this: if they are all gone, sending to them fails instead of blocking.
    let receiver = Arc::new(Mutex::new(receiver));
    let walked = std::thread::scope(|scope| {
        let mut started = 0;
        for _ in 0..threads {
            let (board, receiver, signal) = (&board, Arc::clone(&receiver), cx.commit_state().clone());
            // Fewer will do; none at all is found out below.
            let searcher = move || run_worker(query, at, &receiver, board, &signal);
            started += usize::from(std::thread::Builder::new().spawn_scoped(scope, searcher).is_ok());
        }
        drop(receiver);
        if started == 0 {
            return Err(errno_error(Errno::NOMEM, at.shown));
        }
        enqueue_files(query, start, rules, &at, &sender, &board, cx)
            // Searchers end when every sender is dropped.
            .inspect(|_| drop(sender))
    });
    walked?;
    cx.check()?;
    Ok(board.into_result(query.most, at.sensitive_files))
}

/// The start of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchRoot<'a> {
    pub(crate) mount: &'a MountRoot,
    pub(crate) sensitive_files: &'a SensitiveFiles,
    pub(crate) shown: &'a str,
    /// Its policy resource, for sensitivity by name and the decision about each file.
    pub(crate) resource: &'a PolicyResource,
}

struct SearchJob {
    index: usize,
    directory: Arc<OwnedFd>,
    name: Vec<u8>,
    path: String,
}

/// The result of searching one file.
enum FileSearchResult {
    Searched {
        hits: Vec<LineMatch>,
        /// For a file that has other names: the walk may still come to one that says that it is a secret.
        linked: Option<InodeIdentity>,
    },
    Skipped(SkipReason),
}

/// Walks the tree and hands its files out, in order.
fn enqueue_files(
    query: &SearchQuery,
    start: OwnedFd,
    mut rules: IgnoreRules,
    at: &SearchRoot<'_>,
    sender: &SyncSender<SearchJob>,
    board: &SearchMerger,
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let scope = &query.scope;
    let mut index = 0;
    // A search that may read the directory may read every file with no stricter decision.
    let of_whole =
        cx.evaluate(&ResourceAccess { action: PolicyAction::Read, resource: at.resource.clone() }).strictness();
    let mut walk = TreeWalk::new(at.mount, start, at.shown, cx)?;
    if scope.ignore_files {
        rules.enter(&walk, b"", cx)?;
    }
    while let Some(step) = walk.next()? {
        let entry = match step {
            WalkStep::Entry(entry) => entry,
            WalkStep::Leave(_) => {
                rules.leave_depth(walk.depth());
                continue;
            }
        };
        if board.is_full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let hidden = entry.name.starts_with(b".");
        let path = walk.path_of(&entry.name);
        let is_directory = walk.is_directory(&entry)?;
        let mut named = Sensitivity::default();
        if !is_directory {
            let real = format!(
                "{}/{}",
                at.resource.resolved_path.as_deref().unwrap_or(&at.resource.requested_path),
                escape(&path)
            );
            let below_root = real.strip_prefix("./").unwrap_or(&real);
            named = sensitivity(&real).union(at.sensitive_files.linked().sensitivity(&unescape(below_root)));
            if named.is_any() {
                // Also what is left out: another name of it may not be.
                at.sensitive_files.observe(at.mount, &real, walk.directory()?, &entry.name);
            }
        }
        if hidden && scope.hidden == HiddenFileHandling::Excluded {
            continue;
        }
        if scope.ignore_files && rules.ignores(&path, is_directory) {
            continue;
        }
        if is_directory {
            let never = scope.excluded_directories.iter().any(|never| never.as_bytes() == entry.name);
            if never || (hidden && scope.hidden == HiddenFileHandling::FilesOnly) {
                continue;
            }
            match walk.descend(&entry)? {
                Ok(()) if scope.ignore_files => rules.enter(&walk, &path, cx)?,
                Ok(()) => {}
                Err(_) => board.record_skip(index, SkipReason::Unreadable),
            }
            continue;
        }
        if !walk.is_file(&entry)? {
            continue;
        }
        let path = escape(&path);
        if [&scope.glob, &scope.types].into_iter().flatten().any(|only| !only.is_match(&path)) {
            continue;
        }
        let access = ResourceAccess { action: PolicyAction::Read, resource: at.resource.join(&path) };
        if named.secret || access.resource.effective_sensitivity().secret {
            board.record_skip(index, SkipReason::Secret);
            continue;
        }
        if cx.evaluate(&access).strictness() > of_whole {
            board.record_skip(index, SkipReason::Denied);
            continue;
        }
        let job = SearchJob { index, directory: walk.held_directory()?, name: entry.name, path };
        index += 1;
        if sender.send(job).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Searches files until there are no more.
fn run_worker(
    query: &SearchQuery,
    at: SearchRoot<'_>,
    jobs: &Mutex<Receiver<SearchJob>>,
    board: &SearchMerger,
    signal: &CallCommitState,
) {
    let mut searcher = searcher(query);
    loop {
        let job = jobs.lock().recv();
        let Ok(SearchJob { index, directory, name, path }) = job else { return };
        // The queue is drained, so that the walk never blocks on it.
        if signal.check().is_err() || board.is_full.load(Ordering::Relaxed) {
            continue;
        }
        let verdict = match at.mount.open_entry(directory.as_fd(), &name) {
            Ok((file, stamp)) if at.sensitive_files.lookup(FileRef::open(&file), &stamp).secret => {
                FileSearchResult::Skipped(SkipReason::Secret)
            }
            Ok((file, stamp)) => {
                let linked = (stamp.links > 1).then(|| InodeIdentity::of(FileRef::open(&file), &stamp));
                match search_one(query, file, path, signal, &mut searcher) {
                    FileSearchResult::Searched { hits, .. } => FileSearchResult::Searched { hits, linked },
                    skipped => skipped,
                }
            }
            Err(_) => FileSearchResult::Skipped(SkipReason::Unreadable),
        };
        board.record_result(index, verdict, query.most);
    }
}

fn searcher(query: &SearchQuery) -> Searcher {
    SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_number(true)
        .bom_sniffing(false)
        .line_terminator(LineTerminator::crlf())
        .before_context(query.before)
        .after_context(query.after)
        .heap_limit(Some(LONGEST_SEARCHED_LINE))
        .build()
}

fn search_one(
    query: &SearchQuery,
    file: OwnedFd,
    path: String,
    signal: &CallCommitState,
    searcher: &mut Searcher,
) -> FileSearchResult {
    let mut lines = MatchCollector { query, path, hits: Vec::new(), context_buffer: Vec::new(), binary: false };
    let reader = CancellableReader { file: File::from(file), signal };
    match searcher.search_reader(&query.matcher, reader, &mut lines) {
        // A NUL far into a file that began as text makes it binary all the same.
        Ok(()) if lines.binary => FileSearchResult::Skipped(SkipReason::Binary),
        Ok(()) => FileSearchResult::Searched { hits: lines.hits, linked: None },
        Err(_) => FileSearchResult::Skipped(SkipReason::Unreadable),
    }
}

/// A file whose reading stops when the call is cancelled.
struct CancellableReader<'a> {
    file: File,
    signal: &'a CallCommitState,
}

impl Read for CancellableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.signal.check().is_err() {
            return Err(io::ErrorKind::Other.into());
        }
        self.file.read(buffer)
    }
}

/// Takes the lines of one file, and gives each match the lines around it.
struct MatchCollector<'a> {
    query: &'a SearchQuery,
    path: String,
    hits: Vec<LineMatch>,
    /// The last lines that went by, with their numbers.
    context_buffer: Vec<(u64, String)>,
    binary: bool,
}

impl MatchCollector<'_> {
    fn is_full(&self) -> bool {
        self.hits.len() > self.query.most
    }

    /// Whether lines after this one still stand around the last match that is wanted.
    fn needs_context_after(&self, number: u64) -> bool {
        let last = self.query.most.checked_sub(1).and_then(|last| self.hits.get(last));
        last.is_some_and(|last| number < last.line + self.query.after as u64)
    }

    fn push_context(&mut self, number: u64, text: &str) {
        for hit in self.hits.iter_mut().rev() {
            if number > hit.line + self.query.after as u64 {
                break;
            }
            if number > hit.line {
                hit.after.push(text.to_owned());
            }
        }
        self.context_buffer.push((number, text.to_owned()));
        if self.context_buffer.len() > self.query.before {
            self.context_buffer.remove(0);
        }
    }
}

impl Sink for MatchCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        if let (MatchCollection::Count, Some(first)) = (self.query.collect, self.hits.first_mut()) {
            first.count += 1;
            return Ok(true);
        }
        let number = found.line_number().unwrap_or(0);
        let line = without_end(found.bytes());
        let at = self.query.matcher.find(line).ok().flatten().map_or(0, |at| at.start());
        let text = clip_around(line, at);
        let first = number.saturating_sub(self.query.before as u64);
        let before =
            self.context_buffer.iter().filter(|(line, _)| *line >= first).map(|(_, text)| text.clone()).collect();
        let column = String::from_utf8_lossy(&line[..at]).chars().count() as u64 + 1;
        self.push_context(number, &text);
        // One more match than the limit shows that there are more. Later lines only serve as context of the last one
        // within the limit.
        if self.is_full() {
            return Ok(self.needs_context_after(number));
        }
        let path = self.path.clone();
        self.hits.push(LineMatch { path, line: number, column, text, before, after: Vec::new(), count: 1 });
        if self.query.collect == MatchCollection::First {
            return Ok(false);
        }
        Ok(!self.is_full() || self.needs_context_after(number))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        let text = clip_around(without_end(context.bytes()), 0);
        let number = context.line_number().unwrap_or(0);
        self.push_context(number, &text);
        Ok(!self.is_full() || self.needs_context_after(number))
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> Result<bool, io::Error> {
        self.binary = true;
        Ok(false)
    }

    fn finish(&mut self, _: &Searcher, end: &SinkFinish) -> Result<(), io::Error> {
        self.binary |= end.binary_byte_offset().is_some();
        Ok(())
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// A line as text, cut so that what stands at `at` is in view.
fn clip_around(line: &[u8], at: usize) -> String {
    if line.len() <= LONGEST_LINE {
        return String::from_utf8_lossy(line).into_owned();
    }
    let start = at.saturating_sub(LONGEST_LINE / 4).min(line.len() - LONGEST_LINE);
    let part = String::from_utf8_lossy(&line[start..start + LONGEST_LINE]).into_owned();
    // A character that was cut through at either end is not shown as a broken one.
    let part = part.trim_matches('\u{fffd}');
    format!("{}{part}{}", if start > 0 { "…" } else { "" }, if start + LONGEST_LINE < line.len() { "…" } else { "" })
}

/// Merges the results of searchers.
#[derive(Default)]
struct SearchMerger {
    state: Mutex<SearchMergerState>,
    /// The finished files from the first on have more matches than are wanted.
    is_full: AtomicBool,
}

#[derive(Default)]
struct SearchMergerState {
    /// Finished files, by their position in the order.
    verdicts: BTreeMap<usize, FileSearchResult>,
    /// Entries that the walk skipped, by the position of the next file.
    skipped: Vec<(usize, SkipReason)>,
    /// Number of finished files from the first on.
    finished: usize,
    hits: usize,
    /// The file after which nothing counts any more.
    last_counted: Option<usize>,
}

impl SearchMerger {
    fn record_skip(&self, index: usize, why: SkipReason) {
        self.state.lock().skipped.push((index, why));
    }

    fn record_result(&self, index: usize, verdict: FileSearchResult, most: usize) {
        let mut state = self.state.lock();
        state.verdicts.insert(index, verdict);
        while state.last_counted.is_none() {
            let next = state.finished;
            let Some(verdict) = state.verdicts.get(&next) else { break };
            if let FileSearchResult::Searched { hits, .. } = verdict {
                state.hits += hits.len();
            }
            state.finished += 1;
            if state.hits > most {
                state.last_counted = Some(next);
                self.is_full.store(true, Ordering::Relaxed);
            }
        }
    }

    fn into_result(self, most: usize, known: &SensitiveFiles) -> TextSearchResult {
        let SearchMergerState { verdicts, skipped: passed_over, last_counted: cut, .. } = self.state.into_inner();
        let counts = |index: &usize| cut.is_none_or(|cut| *index <= cut);
        let mut found = TextSearchResult { truncated: cut.is_some(), ..TextSearchResult::default() };
        for (_, why) in passed_over.iter().filter(|(index, _)| counts(index)) {
            found.skipped.count(*why);
        }
        for (_, verdict) in verdicts.into_iter().filter(|(index, _)| counts(index)) {
            match verdict {
                FileSearchResult::Searched { linked: Some(linked), .. } if known.is_secret(linked) => {
                    found.skipped.count(SkipReason::Secret);
                }
                FileSearchResult::Searched { hits, .. } => {
                    found.scanned += 1;
                    found.hits.extend(hits);
                }
                FileSearchResult::Skipped(why) => found.skipped.count(why),
            }
        }
        found.hits.truncate(most);
        found
    }
}
