//! Lines that match a pattern, in a file or a tree.
//!
//! One thread walks and several search, and the result is the same whatever they did: matches come in the order of
//! paths and lines, and a search that stops early stops at the same match every time. Files are opened by the
//! descriptors of the walk; contents never come from a path.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use globset::GlobSet;
use grep_matcher::{LineTerminator, Matcher as _};
use grep_regex::RegexMatcher;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use ringfence_kernel::{Context, Place, Sensitivity, Signal, ToolError, Touch, Verb, sensitivity};
use rustix::io::Errno;

use crate::fault::fault;
use crate::ignore_rules::IgnoreRules;
use crate::known::{At, Identity, Known};
use crate::mount::Mount;
use crate::name::{read_back, show};
use crate::walk::{Step, Walk};

/// A line longer than this is shown around its match only.
const LONGEST_LINE: usize = 1000;

/// A line longer than this makes its file one that is not searched.
const LONGEST_SEARCHED_LINE: usize = 1 << 20;

/// Files that wait for a searcher; each may hold a directory open.
const WAITING: usize = 128;

/// What to look for, and where not to.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) matcher: RegexMatcher,
    pub(crate) before: usize,
    pub(crate) after: usize,
    pub(crate) most: usize,
    pub(crate) scope: Scope,
}

/// Which entries of a tree are searched.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) hidden: Hidden,
    /// Whether ignore files of the tree are heeded.
    pub(crate) ignore_files: bool,
    /// Directories that are never entered.
    pub(crate) never: &'static [&'static str],
    /// Only paths, from the start of the search, that match.
    pub(crate) only: Option<GlobSet>,
}

/// What becomes of names that begin with a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    Searched,
    /// Files are searched, directories not entered.
    NotEntered,
    LeftOut,
}

/// A matching line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// From the start of the search; empty for a search in one file.
    pub(crate) path: String,
    pub(crate) line: u64,
    /// In characters, counted from one.
    pub(crate) column: u64,
    pub(crate) text: String,
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) hits: Vec<Hit>,
    /// There are more.
    pub(crate) truncated: bool,
    pub(crate) scanned: u64,
    pub(crate) skipped: Skipped,
}

/// Why a file was not searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skip {
    Binary,
    Unreadable,
    Secret,
    Denied,
}

/// Files that were not searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) binary: u64,
    pub(crate) unreadable: u64,
    /// Reading them would have to be asked for, one by one.
    pub(crate) secret: u64,
    /// A rule denies to read them, or wants to be asked about them by themselves.
    pub(crate) denied: u64,
}

impl Skipped {
    fn count(&mut self, why: Skip) {
        match why {
            Skip::Binary => self.binary += 1,
            Skip::Unreadable => self.unreadable += 1,
            Skip::Secret => self.secret += 1,
            Skip::Denied => self.denied += 1,
        }
    }
}

/// Searches one file.
pub(crate) fn search_file(query: &Query, file: OwnedFd, cx: &Context<'_>) -> Result<Found, ToolError> {
    let mut found = Found::default();
    match search_one(query, file, String::new(), cx.signal(), &mut searcher(query)) {
        Verdict::Searched { hits, .. } => {
            found.scanned = 1;
            found.hits = hits;
        }
        Verdict::Skipped(why) => found.skipped.count(why),
    }
    cx.check()?;
    found.truncated = found.hits.len() > query.most;
    found.hits.truncate(query.most);
    Ok(found)
}

/// Searches a tree.
pub(crate) fn search_tree(
    query: &Query,
    mount: &Mount,
    start: OwnedFd,
    rules: IgnoreRules,
    at: Start<'_>,
    cx: &Context<'_>,
) -> Result<Found, ToolError> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(4));
    let board = Board::default();
    let (sender, receiver) = sync_channel(WAITING);
    // Only searchers hold this: if they are all gone, nobody waits to send to them.
    let receiver = Arc::new(Mutex::new(receiver));
    let walked = std::thread::scope(|scope| {
        let mut started = 0;
        for _ in 0..threads {
            let (board, receiver, signal) = (&board, Arc::clone(&receiver), cx.signal().clone());
            // Fewer will do; none at all is found out below.
            let searcher = move || work(query, mount, &receiver, board, &signal);
            started += usize::from(std::thread::Builder::new().spawn_scoped(scope, searcher).is_ok());
        }
        drop(receiver);
        if started == 0 {
            return Err(fault(Errno::NOMEM, at.shown));
        }
        feed(query, mount, start, rules, &at, &sender, &board, cx)
            // Searchers end when nobody can send any more.
            .inspect(|_| drop(sender))
    });
    walked?;
    cx.check()?;
    Ok(board.into_found(query.most, &mount.known))
}

/// Where a search starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) shown: &'a str,
    /// Where it is, for what names say about secrets and what the policy says to each file.
    pub(crate) place: &'a Place,
}

struct Job {
    index: usize,
    directory: Arc<OwnedFd>,
    name: Vec<u8>,
    path: String,
}

/// What searching a file came to.
enum Verdict {
    Searched {
        hits: Vec<Hit>,
        /// For a file that has other names: the walk may still come to one that says that it is a secret.
        linked: Option<Identity>,
    },
    Skipped(Skip),
}

/// Walks the tree and hands its files out, in order.
#[expect(clippy::too_many_arguments, reason = "the inside of one function, kept apart to be read")]
fn feed(
    query: &Query,
    mount: &Mount,
    start: OwnedFd,
    mut rules: IgnoreRules,
    at: &Start<'_>,
    sender: &SyncSender<Job>,
    board: &Board,
    cx: &Context<'_>,
) -> Result<(), ToolError> {
    let scope = &query.scope;
    let mut index = 0;
    // Who may search the directory may search what the policy says no more to.
    let of_whole = cx.judge(&Touch { verb: Verb::Read, place: at.place.clone() }).strictness();
    let mut walk = Walk::new(mount, start, at.shown, cx)?;
    if scope.ignore_files {
        rules.enter(&walk, b"", cx)?;
    }
    while let Some(step) = walk.next()? {
        let entry = match step {
            Step::Entry(entry) => entry,
            Step::Left(_) => {
                rules.leave(walk.depth());
                continue;
            }
        };
        if board.enough.load(Ordering::Relaxed) {
            return Ok(());
        }
        let hidden = entry.name.starts_with(b".");
        let path = walk.path_of(&entry.name);
        let is_directory = walk.is_directory(&entry)?;
        let mut named = Sensitivity::default();
        if !is_directory {
            let real = format!("{}/{}", at.place.resolved.as_deref().unwrap_or(&at.place.given), show(&path));
            let below_root = real.strip_prefix("./").unwrap_or(&real);
            named = sensitivity(&real).or(mount.known.linked().sensitivity(&read_back(below_root)));
            if named.is_any() {
                // Also what is left out: another name of it may not be.
                mount.meet(&real, walk.directory()?, &entry.name);
            }
        }
        if hidden && scope.hidden == Hidden::LeftOut {
            continue;
        }
        if scope.ignore_files && rules.ignores(&path, is_directory) {
            continue;
        }
        if is_directory {
            let never = scope.never.iter().any(|never| never.as_bytes() == entry.name);
            if never || (hidden && scope.hidden == Hidden::NotEntered) {
                continue;
            }
            match walk.descend(&entry)? {
                Ok(()) if scope.ignore_files => rules.enter(&walk, &path, cx)?,
                Ok(()) => {}
                Err(_) => board.note(index, Skip::Unreadable),
            }
            continue;
        }
        if !walk.is_file(&entry)? {
            continue;
        }
        let path = show(&path);
        if scope.only.as_ref().is_some_and(|only| !only.is_match(&path)) {
            continue;
        }
        let touch = Touch { verb: Verb::Read, place: at.place.below(&path) };
        if named.secret || touch.place.sensitive().secret {
            board.note(index, Skip::Secret);
            continue;
        }
        if cx.judge(&touch).strictness() > of_whole {
            board.note(index, Skip::Denied);
            continue;
        }
        let job = Job { index, directory: walk.held_directory()?, name: entry.name, path };
        index += 1;
        if sender.send(job).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Searches files until there are no more.
fn work(query: &Query, mount: &Mount, jobs: &Mutex<Receiver<Job>>, board: &Board, signal: &Signal) {
    let mut searcher = searcher(query);
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { index, directory, name, path }) = job else { return };
        // What waits is taken and let go, so that the walk never waits for nobody.
        if signal.check().is_err() || board.enough.load(Ordering::Relaxed) {
            continue;
        }
        let verdict = match mount.open_entry(directory.as_fd(), &name) {
            Ok((file, stamp)) if mount.known.recall(At::open(&file), &stamp).secret => Verdict::Skipped(Skip::Secret),
            Ok((file, stamp)) => {
                let linked = (stamp.links > 1).then(|| Identity::of(At::open(&file), &stamp));
                match search_one(query, file, path, signal, &mut searcher) {
                    Verdict::Searched { hits, .. } => Verdict::Searched { hits, linked },
                    skipped => skipped,
                }
            }
            Err(_) => Verdict::Skipped(Skip::Unreadable),
        };
        board.put(index, verdict, query.most);
    }
}

fn searcher(query: &Query) -> Searcher {
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

fn search_one(query: &Query, file: OwnedFd, path: String, signal: &Signal, searcher: &mut Searcher) -> Verdict {
    let mut lines = Lines { query, path, hits: Vec::new(), recent: Vec::new(), binary: false };
    let reader = Stoppable { file: File::from(file), signal };
    match searcher.search_reader(&query.matcher, reader, &mut lines) {
        // A NUL far into a file that began as text makes it binary all the same.
        Ok(()) if lines.binary => Verdict::Skipped(Skip::Binary),
        Ok(()) => Verdict::Searched { hits: lines.hits, linked: None },
        Err(_) => Verdict::Skipped(Skip::Unreadable),
    }
}

/// A file that stops being read when nobody wants it any more.
struct Stoppable<'a> {
    file: File,
    signal: &'a Signal,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.signal.check().is_err() {
            return Err(io::ErrorKind::Other.into());
        }
        self.file.read(buffer)
    }
}

/// Takes the lines of one file, and gives each match the lines around it.
struct Lines<'a> {
    query: &'a Query,
    path: String,
    hits: Vec<Hit>,
    /// The last lines that went by, with their numbers.
    recent: Vec<(u64, String)>,
    binary: bool,
}

impl Lines<'_> {
    fn is_full(&self) -> bool {
        self.hits.len() > self.query.most
    }

    /// Whether lines after this one still stand around the last match that is wanted.
    fn goes_on_after(&self, number: u64) -> bool {
        let last = self.query.most.checked_sub(1).and_then(|last| self.hits.get(last));
        last.is_some_and(|last| number < last.line + self.query.after as u64)
    }

    fn pass(&mut self, number: u64, text: &str) {
        for hit in self.hits.iter_mut().rev() {
            if number > hit.line + self.query.after as u64 {
                break;
            }
            if number > hit.line {
                hit.after.push(text.to_owned());
            }
        }
        self.recent.push((number, text.to_owned()));
        if self.recent.len() > self.query.before {
            self.recent.remove(0);
        }
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let number = found.line_number().unwrap_or(0);
        let line = without_end(found.bytes());
        let at = self.query.matcher.find(line).ok().flatten().map_or(0, |at| at.start());
        let text = shown_around(line, at);
        let first = number.saturating_sub(self.query.before as u64);
        let before = self.recent.iter().filter(|(line, _)| *line >= first).map(|(_, text)| text.clone()).collect();
        let column = String::from_utf8_lossy(&line[..at]).chars().count() as u64 + 1;
        self.pass(number, &text);
        // One more than wanted shows that there are more. What comes then is only looked at as what stands after
        // the last one that is wanted.
        if self.is_full() {
            return Ok(self.goes_on_after(number));
        }
        self.hits.push(Hit { path: self.path.clone(), line: number, column, text, before, after: Vec::new() });
        Ok(!self.is_full() || self.goes_on_after(number))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        let text = shown_around(without_end(context.bytes()), 0);
        let number = context.line_number().unwrap_or(0);
        self.pass(number, &text);
        Ok(!self.is_full() || self.goes_on_after(number))
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
fn shown_around(line: &[u8], at: usize) -> String {
    if line.len() <= LONGEST_LINE {
        return String::from_utf8_lossy(line).into_owned();
    }
    let start = at.saturating_sub(LONGEST_LINE / 4).min(line.len() - LONGEST_LINE);
    let part = String::from_utf8_lossy(&line[start..start + LONGEST_LINE]).into_owned();
    // A character that was cut through at either end is not shown as a broken one.
    let part = part.trim_matches('\u{fffd}');
    format!("{}{part}{}", if start > 0 { "…" } else { "" }, if start + LONGEST_LINE < line.len() { "…" } else { "" })
}

/// Where searchers put what they found.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
    /// The finished files from the first on have more matches than are wanted.
    enough: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Finished files, by their place in the order.
    verdicts: BTreeMap<usize, Verdict>,
    /// What the walk passed over, by the place of the file that came next.
    passed_over: Vec<(usize, Skip)>,
    /// How many files from the first on are finished.
    finished: usize,
    hits: usize,
    /// The file after which nothing counts any more.
    cut: Option<usize>,
}

impl Board {
    fn note(&self, index: usize, why: Skip) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).passed_over.push((index, why));
    }

    fn put(&self, index: usize, verdict: Verdict, most: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.verdicts.insert(index, verdict);
        while state.cut.is_none() {
            let next = state.finished;
            let Some(verdict) = state.verdicts.get(&next) else { break };
            if let Verdict::Searched { hits, .. } = verdict {
                state.hits += hits.len();
            }
            state.finished += 1;
            if state.hits > most {
                state.cut = Some(next);
                self.enough.store(true, Ordering::Relaxed);
            }
        }
    }

    fn into_found(self, most: usize, known: &Known) -> Found {
        let State { verdicts, passed_over, cut, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let counts = |index: &usize| cut.is_none_or(|cut| *index <= cut);
        let mut found = Found { truncated: cut.is_some(), ..Found::default() };
        for (_, why) in passed_over.iter().filter(|(index, _)| counts(index)) {
            found.skipped.count(*why);
        }
        for (_, verdict) in verdicts.into_iter().filter(|(index, _)| counts(index)) {
            match verdict {
                Verdict::Searched { linked: Some(linked), .. } if known.is_secret(linked) => {
                    found.skipped.count(Skip::Secret);
                }
                Verdict::Searched { hits, .. } => {
                    found.scanned += 1;
                    found.hits.extend(hits);
                }
                Verdict::Skipped(why) => found.skipped.count(why),
            }
        }
        found.hits.truncate(most);
        found
    }
}
