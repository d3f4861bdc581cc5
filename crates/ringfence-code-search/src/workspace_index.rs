//! Workspace index: the symbols of a mount's files, each with the state of the file that they were read from.
//!
//! A file whose state is not the one that was indexed, or was indexed so soon after its change that another one could have
//! left the same times, is read again. The index is bounded; files beyond the bound are never in it.
//!
//! Not here: reading files (`source_scan.rs`), and the index on disk (`index_file.rs`).

use std::collections::{HashMap, HashSet};

use ringfence_fs::{SourceEntry, SourceStamp};

use crate::corpus::SymbolCorpus;
use crate::language::SourceLanguage;
use crate::model::SearchModel;
use crate::source_scan::ParsedSource;

/// Symbols of an index.
const MAX_SYMBOLS: usize = 400_000;

/// Bytes of an index in memory, as estimated.
const MAX_MEMORY: u64 = 150 << 20;

/// Times of a file system have steps: two changes within one may look like one. The coarsest has steps of two seconds.
const TIME_STEP_NANOS: i128 = 2_000_000_000;

/// An index.
#[derive(Debug, Default)]
pub(crate) struct WorkspaceIndex {
    pub(crate) corpus: SymbolCorpus,
    pub(crate) entries: HashMap<Box<str>, IndexEntry>,
    /// Bytes of files that were indexed since the index was stored.
    pub(crate) unsaved: u64,
}

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) stamp: SourceStamp,
    /// Every later change has other times.
    pub(crate) is_settled: bool,
    /// Its number in the corpus.
    pub(crate) file: usize,
}

impl WorkspaceIndex {
    /// Whether the symbols of a file are those of its contents.
    pub(crate) fn is_fresh(&self, entry: &SourceEntry) -> bool {
        self.entries.get(entry.path.as_str()).is_some_and(|known| known.stamp == entry.stamp && known.is_settled)
    }

    /// Whether files can be added.
    pub(crate) fn has_room(&self) -> bool {
        self.corpus.len() < MAX_SYMBOLS && self.corpus.memory() < MAX_MEMORY
    }

    /// Adds or replaces a file, whether there is room or not. Returns its number in the corpus.
    pub(crate) fn insert(&mut self, source: &ParsedSource, model: Option<&SearchModel>) -> usize {
        self.remove(&source.path);
        let ParsedSource { path, language, symbols, terms, stamp, read_at } = source;
        let file = self.corpus.add_terms(path, *language, symbols, terms, model);
        let is_settled = stamp.is_some_and(|stamp| stamp.changed + TIME_STEP_NANOS < *read_at);
        // A file that changed while it was read is one of no state.
        let nowhere = SourceStamp { device: 0, inode: 0, size: 0, modified: 0, changed: 0 };
        let entry = IndexEntry { stamp: stamp.unwrap_or(nowhere), is_settled, file };
        self.entries.insert(path.as_str().into(), entry);
        self.unsaved += entry.stamp.size;
        file
    }

    /// Removes a file.
    pub(crate) fn remove(&mut self, path: &str) {
        if let Some(entry) = self.entries.remove(path) {
            self.corpus.remove_file(entry.file);
            self.unsaved += entry.stamp.size;
        }
    }

    /// Removes files that there is no room for.
    pub(crate) fn remove_all(&mut self, paths: &[String]) {
        let unsaved = self.unsaved;
        paths.iter().for_each(|path| self.remove(path));
        self.unsaved = unsaved;
        self.compact();
    }

    /// Removes files below a path that are not listed there any more.
    pub(crate) fn retain_listed(&mut self, below: &str, listed: &[SourceEntry]) {
        let listed: HashSet<&str> = listed.iter().map(|entry| entry.path.as_str()).collect();
        let is_below = |path: &str| {
            below.is_empty() || path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let gone: Vec<Box<str>> =
            self.entries.keys().filter(|path| is_below(path) && !listed.contains(&***path)).cloned().collect();
        for path in gone {
            self.remove(&path);
        }
    }

    /// Gives back the room of removed symbols once there are many.
    pub(crate) fn compact(&mut self) {
        if self.corpus.removed() > 1000 + self.corpus.len() / 4 {
            let files = self.corpus.compact();
            for entry in self.entries.values_mut() {
                entry.file = files.get(entry.file).copied().flatten().unwrap_or(usize::MAX);
            }
        }
    }

    /// Marks the files that a call may be shown, by their numbers in the corpus. `read_now` are files that the call itself
    /// read, whatever became of them since they were listed.
    pub(crate) fn accepted(
        &self,
        listed: &[SourceEntry],
        read_now: &HashSet<String>,
        language: Option<SourceLanguage>,
    ) -> Vec<bool> {
        let mut accepted = vec![false; self.corpus.files.len()];
        for entry in listed.iter().filter(|entry| entry.is_readable) {
            let Some(known) = self.entries.get(entry.path.as_str()) else { continue };
            let is_current = known.stamp == entry.stamp || read_now.contains(&entry.path);
            if let (Some(file), Some(accepted)) = (self.corpus.files.get(known.file), accepted.get_mut(known.file)) {
                *accepted = is_current && language.is_none_or(|language| file.language == language);
            }
        }
        accepted
    }
}
