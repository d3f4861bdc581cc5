//! Indexes in use: one for each mount, shared by the calls of a host and filled in the background.
//!
//! An index is loaded when it is first used. A thread adds the files that calls found missing; it ends with the host, at the
//! latest after the file that it reads. Every file that it reads, a call was allowed to read.
//!
//! Not here: the format on disk (`index_file.rs`), and what a call makes of an index (`search_code.rs`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use ringfence_fs::{KeptSourceListing, SourceEntry, SourceReader};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{AbandonReason, CallCommitState, CallContext, CallLimits, IoMode};

use crate::index_file::{IndexDirectory, StoredIndex};
use crate::model::SearchModel;
use crate::source_scan::SourceScan;
use crate::workspace_index::WorkspaceIndex;

/// Bytes of files that are indexed before the index is stored.
const SAVE_AFTER: u64 = 32 << 20;

/// Fewer bytes are not worth storing an index for: the next process reads the files again.
const SAVE_LEAST: u64 = 256 << 10;

/// Trees that wait for the thread.
const QUEUE: usize = 4;

/// Indexes of the mounts of a host.
#[derive(Debug)]
pub(crate) struct IndexStore {
    directory: IndexDirectory,
    model: fn() -> Option<&'static SearchModel>,
    indexes: Mutex<HashMap<String, Arc<MountIndex>>>,
    background: Mutex<Option<BackgroundIndexer>>,
}

/// The index of a mount.
#[derive(Debug)]
pub(crate) struct MountIndex {
    mount_id: String,
    directory: IndexDirectory,
    /// Of the model that its vectors are of.
    model_id: u32,
    pub(crate) index: Mutex<WorkspaceIndex>,
    pub(crate) listing: KeptSourceListing,
    /// The version of the listing of which the index has every file that may be read.
    complete: Mutex<Option<u64>>,
    stored: Mutex<StoredState>,
}

/// The file of an index, as it was seen last.
#[derive(Clone, Copy, Debug, Default)]
struct StoredState {
    stamp: Option<(u64, i64, i64)>,
    is_newer: bool,
}

/// Files to be indexed.
#[derive(Debug)]
struct IndexJob {
    target: Arc<MountIndex>,
    reader: SourceReader,
    limits: CallLimits,
    entries: Vec<SourceEntry>,
}

/// The thread.
#[derive(Debug)]
struct BackgroundIndexer {
    jobs: Option<SyncSender<IndexJob>>,
    commit_state: CallCommitState,
    thread: Option<JoinHandle<()>>,
}

impl IndexStore {
    pub(crate) fn new(state: PathBuf, model: fn() -> Option<&'static SearchModel>) -> Self {
        Self { directory: IndexDirectory::new(state), model, indexes: Mutex::default(), background: Mutex::default() }
    }

    /// The model of the ranking.
    pub(crate) fn model(&self) -> Option<&'static SearchModel> {
        (self.model)()
    }

    /// The index of a mount; an empty one, if none is stored.
    pub(crate) fn index_of(&self, mount_id: &str) -> Arc<MountIndex> {
        let mut indexes = self.indexes.lock();
        if let Some(known) = indexes.get(mount_id) {
            return Arc::clone(known);
        }
        let loaded = Arc::new(MountIndex {
            mount_id: mount_id.to_owned(),
            directory: self.directory.clone(),
            model_id: self.model().map_or(0, SearchModel::id),
            index: Mutex::default(),
            listing: KeptSourceListing::default(),
            complete: Mutex::default(),
            stored: Mutex::default(),
        });
        loaded.reload();
        indexes.insert(mount_id.to_owned(), Arc::clone(&loaded));
        loaded
    }

    /// Indexes files after the call. A tree that the thread has no room for waits for the next call.
    pub(crate) fn index_later(
        &self,
        target: &Arc<MountIndex>,
        reader: &SourceReader,
        limits: &CallLimits,
        entries: Vec<SourceEntry>,
    ) {
        let mut background = self.background.lock();
        if background.is_none() {
            *background = BackgroundIndexer::start(self.model());
        }
        let Some(jobs) = background.as_ref().and_then(|indexer| indexer.jobs.as_ref()) else { return };
        let job = IndexJob { target: Arc::clone(target), reader: reader.clone(), limits: limits.clone(), entries };
        // The files are as missing at the next call.
        let _ = jobs.try_send(job);
    }
}

impl MountIndex {
    /// Whether the index has every file of a version of the listing, as it is.
    pub(crate) fn has_all_of(&self, version: Option<u64>) -> bool {
        version.is_some() && *self.complete.lock() == version
    }

    /// Notes that it has.
    pub(crate) fn set_complete(&self, version: Option<u64>) {
        *self.complete.lock() = version;
    }

    /// Takes over what is stored, if that is not what was seen last.
    pub(crate) fn reload(&self) -> bool {
        let mut stored = self.stored.lock();
        let stamp = self.directory.stamp(&self.mount_id);
        if stamp == stored.stamp {
            return false;
        }
        let loaded = self.directory.load(&self.mount_id, self.model_id);
        *stored = StoredState { stamp, is_newer: matches!(loaded, StoredIndex::Newer) };
        let StoredIndex::Found(loaded) = loaded else { return false };
        *self.index.lock() = *loaded;
        *self.complete.lock() = None;
        true
    }

    /// Stores the index if enough of it is not stored. An index that cannot be stored is still used.
    pub(crate) fn save(&self, least: u64) {
        let mut stored = self.stored.lock();
        let mut index = self.index.lock();
        if stored.is_newer || index.unsaved < least.max(1) {
            return;
        }
        index.compact();
        if self.directory.save(&self.mount_id, self.model_id, &index).is_ok_and(|saved| saved) {
            index.unsaved = 0;
            stored.stamp = self.directory.stamp(&self.mount_id);
        }
    }

    /// Stores what a call added.
    pub(crate) fn save_if_worthwhile(&self) {
        self.save(SAVE_LEAST);
    }
}

impl BackgroundIndexer {
    fn start(model: Option<&'static SearchModel>) -> Option<Self> {
        let (jobs, waiting) = sync_channel(QUEUE);
        let commit_state = CallCommitState::new();
        let signal = commit_state.clone();
        let thread = std::thread::Builder::new()
            .name("code-search".to_owned())
            .spawn(move || run_jobs(&waiting, &signal, model))
            .ok()?;
        Some(Self { jobs: Some(jobs), commit_state, thread: Some(thread) })
    }
}

impl Drop for BackgroundIndexer {
    fn drop(&mut self) {
        self.jobs = None;
        self.commit_state.abandon(AbandonReason::Cancel);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread lost an index in memory only.
            let _ = thread.join();
        }
    }
}

fn run_jobs(waiting: &Receiver<IndexJob>, commit_state: &CallCommitState, model: Option<&SearchModel>) {
    while let Ok(IndexJob { target, reader, limits, entries }) = waiting.recv() {
        let scan = SourceScan { reader: &reader, limits: &limits, commit_state };
        let cx = CallContext::new(&limits, IoMode::Blocking, commit_state);
        for entry in &entries {
            if commit_state.check().is_err() {
                return;
            }
            let is_wanted = {
                let index = target.index.lock();
                if !index.has_room() {
                    break;
                }
                !index.is_fresh(entry)
            };
            if is_wanted && let Some(source) = scan.parse_one(entry, &cx) {
                target.index.lock().insert(&source, model);
                target.save(SAVE_AFTER);
            }
        }
        target.save(0);
    }
}
