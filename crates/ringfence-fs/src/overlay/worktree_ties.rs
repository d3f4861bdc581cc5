//! Worktree ties: paths of a worktree that are committed or dropped with the changes of their repository.
//!
//! Git moves contents between the worktree and its data: a stash takes an edit away, a checkout brings an earlier version.
//! If the data of such an operation is refused, its other half must not be kept, or the contents are lost. So a path is
//! tied if its new state comes from the repository, or if the run stored its previous contents there. What the program
//! wrote itself, even if it staged or committed it afterwards, is not tied.
//!
//! Not here: forming the groups (`group.rs`), and which changes of a repository are data (`repository_data.rs`).

use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd as _;

use ringfence_kernel::CallContext;

use crate::git::{
    EMPTY_BLOB, GitFile, GitIndex, GitIndexEntry, GitObjectStore, GitOid, GitReadBudget, GitReadError, RepositoryFiles,
    blob_names, oids_in, parse_oid,
};
use crate::mount::repository_files::LowerRepositoryFiles;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, join_path};
use crate::overlay::group::repository_of;
use crate::overlay::repository_data::{GitFileClass, RepositoryJudge, RepositoryVersions, differing_keys, relative_to};
use crate::path::relative::split;
use crate::root::{open_no_follow, stat};
use crate::sys::stat::FileKind;

/// A file of a repository that is larger is not searched for the names of objects.
const MOST_LIST_BYTES: u64 = 16 << 20;

/// A deleted directory with more is not searched for contents that the program stored: it was made by a build.
const MOST_DELETED_ENTRIES: u64 = 10_000;
const MOST_DELETED_BYTES: u64 = 64 << 20;

/// Permission to execute: all that git keeps of a mode.
const EXECUTABLE: u32 = 0o111;

impl RepositoryJudge<'_> {
    /// Paths of the worktree that stand or fall with what the program did to the repository.
    pub(super) fn worktree_ties(
        &self,
        indexes: &Result<Option<(GitIndex, GitIndex)>, GitReadError>,
        view: &RepositoryVersions<'_>,
        cx: &CallContext<'_>,
    ) -> Vec<Vec<u8>> {
        // What the verdicts may read is theirs.
        let (budget, directory_budget) = (GitReadBudget::new(cx), GitReadBudget::new(cx));
        let empty = (GitIndex::default(), GitIndex::default());
        let indexes = indexes.as_ref().map(|both| both.as_ref().unwrap_or(&empty));
        let operation = indexes.map_err(|error| *error).and_then(|indexes| {
            let stores = [GitObjectStore::open(&self.old, &budget)?, GitObjectStore::open(&self.new, &budget)?];
            GitOperation::new(self, indexes, stores, [&budget, &directory_budget], view)
        });
        let Ok(operation) = operation else { return self.possible_ties() };
        let is_tied = |item: &&OverlayChange| {
            let path = self.worktree_path(item);
            path.is_some_and(|path| operation.ties(item, path) || self.loses_nested_contents(item))
        };
        self.change_set.items.iter().filter(is_tied).map(|item| item.path.clone()).collect()
    }

    /// The same for a repository that cannot be read: everything that would be lost. An index by itself holds nothing that
    /// the worktree lacks.
    pub(super) fn possible_ties(&self) -> Vec<Vec<u8>> {
        let changes_data = |path: &[u8]| !path.is_empty() && path != b"index";
        if !self.changed_paths().any(changes_data) {
            return Vec::new();
        }
        let is_lost = |item: &&OverlayChange| self.worktree_path(item).is_some() && loses_contents(item);
        self.change_set.items.iter().filter(is_lost).map(|item| item.path.clone()).collect()
    }

    /// Changed paths of the repository, below it.
    fn changed_paths(&self) -> impl Iterator<Item = &[u8]> {
        self.change_set.items.iter().filter_map(|item| relative_to(&item.path, self.root))
    }

    fn worktree_path<'i>(&self, item: &'i OverlayChange) -> Option<&'i [u8]> {
        relative_to(&item.path, split(self.root).0).filter(|_| repository_of(&item.path).is_none())
    }

    /// Whether an item is lost in the worktree of a submodule, or in a linked one, whose repository in this one changed.
    fn loses_nested_contents<'i>(&self, item: &'i OverlayChange) -> bool {
        let is_nested = |path: &[u8]| {
            (path.starts_with(b"modules/") || path.starts_with(b"worktrees/")) && !path.ends_with(b"/index")
        };
        let above = |path: &&'i [u8]| Some(split(path).0).filter(|above| above.len() > split(self.root).0.len());
        let has_git_file = |directory: &[u8]| {
            let directory = open_no_follow(&self.change_set.mount, directory);
            let found = directory.and_then(|directory| stat(directory.as_fd(), b".git").ok()?);
            found.is_some_and(|found| found.kind == FileKind::File)
        };
        loses_contents(item)
            && self.changed_paths().any(is_nested)
            && std::iter::successors(above(&item.path.as_slice()), above).any(has_git_file)
    }
}

/// Whether something in the workspace is overwritten or deleted.
fn loses_contents(item: &OverlayChange) -> bool {
    let is_directory = item.directory_mode().is_some();
    let only_mode = matches!(item.upper, Some(OverlayUpperState::File { only_mode: true, .. }));
    item.lower.is_some() && !is_directory && !only_mode
}

/// Traces that the git commands of one run left in a repository.
struct GitOperation<'a> {
    judge: &'a RepositoryJudge<'a>,
    old_index: &'a GitIndex,
    new_index: &'a GitIndex,
    old: GitObjectStore<'a>,
    new: GitObjectStore<'a>,
    budget: &'a GitReadBudget<'a>,
    /// For deleted directories, which are not to keep files from being read.
    directory_budget: &'a GitReadBudget<'a>,
    /// Paths with other entries in the index than before.
    staged: BTreeSet<&'a [u8]>,
    /// A merge, rebase or the like was begun: what it wrote need not be in any object.
    merges: bool,
    /// Loose objects that the program wrote.
    stored: HashSet<GitOid>,
    /// It wrote packs too.
    stores_packs: bool,
    /// Paths of commits that came or went, where they differ from `HEAD` as it was.
    committed: BTreeSet<Vec<u8>>,
    /// Paths that a stash took from the worktree, or a merge brought.
    stashed: BTreeSet<Vec<u8>>,
}

impl<'a> GitOperation<'a> {
    fn new(
        judge: &'a RepositoryJudge<'a>,
        (old_index, new_index): &'a (GitIndex, GitIndex),
        [old, new]: [GitObjectStore<'a>; 2],
        [budget, directory_budget]: [&'a GitReadBudget<'a>; 2],
        view: &RepositoryVersions<'_>,
    ) -> Result<Self, GitReadError> {
        let mut operation = Self {
            judge,
            old_index,
            new_index,
            old,
            new,
            budget,
            directory_budget,
            staged: differing_keys(old_index, new_index).map(|(path, _)| path.as_slice()).collect(),
            merges: judge.begins_merge(),
            stored: judge.changed_paths().filter_map(loose_object).collect(),
            stores_packs: judge.changed_paths().any(|path| path.starts_with(b"objects/pack/")),
            committed: BTreeSet::new(),
            stashed: BTreeSet::new(),
        };
        operation.find_commits(view)?;
        Ok(operation)
    }

    fn find_commits(&mut self, view: &RepositoryVersions<'_>) -> Result<(), GitReadError> {
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        for path in self.judge.changed_paths().filter(|path| GitFileClass::of(path) != GitFileClass::Object) {
            if path != b"index" {
                before.extend(self.oids_in_file(&self.judge.old, path)?);
                after.extend(self.oids_in_file(&self.judge.new, path)?);
            }
        }
        let head = view.old_head.map(|head| self.old.tree_of(&head)).transpose()?;
        let (mut committed, mut stashed) = (BTreeSet::new(), BTreeSet::new());
        let came = after.difference(&before).filter(|oid| !view.old_values.contains(*oid)).map(|oid| (&self.new, oid));
        let went = before.difference(&after).map(|oid| (&self.old, oid));
        for (store, oid) in came.chain(went) {
            if !store.contains(oid)? {
                continue;
            }
            let paths = |tree: &GitOid, base: Option<GitOid>| -> Result<Vec<Vec<u8>>, GitReadError> {
                let found = store.differences(Some(store.tree_of(tree)?), base.as_slice())?;
                Ok(found.into_iter().filter(|one| one.oid.is_some()).map(|one| one.path).collect())
            };
            committed.extend(paths(oid, head)?);
            // A stash is a merge of the worktree, of the index, and of files that are not tracked.
            let [base, merged @ ..] = &store.parents_of(oid)?[..] else { continue };
            let base = store.tree_of(base)?;
            if !merged.is_empty() {
                stashed.extend(paths(oid, Some(base))?);
            }
            for parent in merged {
                stashed.extend(paths(parent, Some(base))?);
            }
        }
        committed.extend(stashed.iter().cloned());
        (self.committed, self.stashed) = (committed, stashed);
        Ok(())
    }

    fn oids_in_file(&self, files: &dyn RepositoryFiles, path: &[u8]) -> Result<BTreeSet<GitOid>, GitReadError> {
        match files.open(path) {
            Ok(Some(file)) if file.size <= MOST_LIST_BYTES => Ok(oids_in(&file.read_whole(self.budget)?)),
            Ok(Some(_)) => Err(GitReadError("a file is too large")),
            // A link names no object.
            Ok(None) | Err(_) => Ok(BTreeSet::new()),
        }
    }

    fn ties(&self, item: &OverlayChange, path: &[u8]) -> bool {
        if let (None, Some(tree)) = (&item.upper, item.lower.as_ref().and_then(|was| was.tree.as_ref())) {
            let is_searched = tree.entries <= MOST_DELETED_ENTRIES && tree.bytes <= MOST_DELETED_BYTES;
            return has_path_at_or_below(self.staged.range(path..).copied(), path)
                || has_path_at_or_below(self.committed.range(path.to_vec()..).map(Vec::as_slice), path)
                || is_searched && self.stores_contents_below(path).unwrap_or(false);
        }
        let is_gone = item.upper.is_none();
        let is_known = self.entries(path).next().is_some() || self.committed.contains(path);
        self.is_staged_by_git(item, path)
            || is_gone && self.committed.contains(path)
            || self.stashed.contains(path) && item.lower.is_some()
            || is_known && self.comes_from_repository(item, path).unwrap_or(true)
            || (is_known || is_gone) && self.stores_previous_contents(item, path).unwrap_or(is_known)
    }

    /// Whether git changed the entry of the index together with the file.
    fn is_staged_by_git(&self, item: &OverlayChange, path: &[u8]) -> bool {
        if !self.staged.contains(path) {
            return false;
        }
        let is_conflict = || (1..4).any(|stage| self.new_index.entries.contains_key(&(path.to_vec(), stage)));
        match self.new_index.entries.get(&(path.to_vec(), 0)) {
            _ if self.merges => true,
            None => item.upper.is_none() || is_conflict(),
            Some(entry) => item.upper.is_some() && self.old.contains(&entry.oid) == Ok(true),
        }
    }

    /// Entries of a path in the index as it was and as it is.
    fn entries(&self, path: &[u8]) -> impl Iterator<Item = &GitIndexEntry> {
        let keys = (0..4).map(|stage| (path.to_vec(), stage));
        keys.flat_map(|key| [self.old_index.entries.get(&key), self.new_index.entries.get(&key)]).flatten()
    }

    /// Whether a path of the repository has contents that were in the repository before the program ran.
    fn comes_from_repository(&self, item: &OverlayChange, path: &[u8]) -> Result<bool, GitReadError> {
        let names = match &item.upper {
            None | Some(OverlayUpperState::Directory { .. }) => return Ok(false),
            Some(OverlayUpperState::File { only_mode: true, mode, .. }) => {
                let is_executable = mode & EXECUTABLE != 0;
                let was_executable = item.lower.as_ref().is_some_and(|was| was.stat.mode & EXECUTABLE != 0);
                let has_mode = |entry: &GitIndexEntry| (entry.mode & EXECUTABLE != 0) == is_executable;
                return Ok(is_executable != was_executable && self.entries(path).any(has_mode));
            }
            Some(OverlayUpperState::Link { target }) => blob_names(target),
            Some(OverlayUpperState::File { seen, .. }) => {
                let unreadable = |_| GitReadError("a file cannot be read");
                let fd = self.judge.change_set.open(item, seen).map_err(unreadable)?;
                blob_names(&GitFile { fd, size: seen.size }.read_whole(self.budget)?)
            }
        };
        for name in names {
            // Any program makes empty files.
            let is_likely = name != EMPTY_BLOB || self.entries(path).any(|entry| entry.oid == name);
            if is_likely && self.old.contains(&name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the program put the previous contents into the repository, which did not have them.
    fn stores_previous_contents(&self, item: &OverlayChange, path: &[u8]) -> Result<bool, GitReadError> {
        let is_file = item.lower.as_ref().is_some_and(|was| was.stat.kind == FileKind::File);
        if !is_file || !loses_contents(item) || !self.stores_anything() {
            return Ok(false);
        }
        match self.worktree().open(path)? {
            Some(file) => self.is_stored(&file, self.budget),
            None => Ok(false),
        }
    }

    /// The same for the files of a directory that is deleted.
    fn stores_contents_below(&self, directory: &[u8]) -> Result<bool, GitReadError> {
        let worktree = self.worktree();
        let mut left: Vec<Vec<u8>> = self.stores_anything().then(|| directory.to_vec()).into_iter().collect();
        while let Some(directory) = left.pop() {
            for name in worktree.names(&directory)? {
                let path = join_path(&directory, &name);
                match worktree.open(&path) {
                    Ok(Some(file)) if self.is_stored(&file, self.directory_budget)? => return Ok(true),
                    Ok(None) => left.push(path),
                    // Links, and files that cannot be read.
                    Ok(Some(_)) | Err(_) => {}
                }
            }
        }
        Ok(false)
    }

    fn worktree(&self) -> LowerRepositoryFiles<'a> {
        LowerRepositoryFiles { mount: &self.judge.change_set.mount, root: split(self.judge.root).0 }
    }

    fn stores_anything(&self) -> bool {
        self.stores_packs || !self.stored.is_empty()
    }

    /// Whether the program stored these contents, and the repository did not have them.
    fn is_stored(&self, file: &GitFile, budget: &GitReadBudget<'_>) -> Result<bool, GitReadError> {
        for name in blob_names(&file.read_whole(budget)?) {
            let is_there = self.stored.contains(&name) || self.stores_packs && self.new.contains(&name)?;
            if is_there && !self.old.contains(&name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The object that a path of a repository has the name of, if it is not in a pack.
fn loose_object(path: &[u8]) -> Option<GitOid> {
    let (directory, file) = path.strip_prefix(b"objects/")?.split_at_checked(2)?;
    parse_oid(&[directory, file.strip_prefix(b"/")?].concat())
}

impl RepositoryJudge<'_> {
    /// Whether the program left the state of a merge, rebase or the like behind.
    fn begins_merge(&self) -> bool {
        let items = self.change_set.items.iter().filter(|item| item.upper.is_some());
        items.filter_map(|item| relative_to(&item.path, self.root)).any(|path| {
            let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
            first.starts_with(b"MERGE_")
                || first.starts_with(b"rebase-")
                || first.ends_with(b"_HEAD") && first != b"FETCH_HEAD"
                || [b"sequencer".as_slice(), b"AUTO_MERGE"].contains(&first)
        })
    }
}

/// Whether one of sorted paths, from a directory on, is the directory or lies in it.
fn has_path_at_or_below<'p>(mut paths: impl Iterator<Item = &'p [u8]>, directory: &[u8]) -> bool {
    // Names such as `directory-1` come before those in `directory/`.
    paths.by_ref().take_while(|path| path.starts_with(directory)).any(|path| relative_to(path, directory).is_some())
}
