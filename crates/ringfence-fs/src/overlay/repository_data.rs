//! Git repository changes of a program: data, or settings that make git act.
//!
//! Git runs what the settings and hooks of a repository name, and only reads its objects, references and index. Changes of
//! these are ordinary, if the repository was there before, every new object is what its name says, and no protected path is
//! in the difference between what a reference or the index stood for and what it stands for now. Everything else below
//! `.git` stays protected: names that are not known here, and whatever cannot be read.
//!
//! Not here: reading a repository (`git/`), paths of the worktree that depend on it (`worktree_ties.rs`), and what is
//! asked about (the policy).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ringfence_kernel::{CallContext, Decision, PolicyAction, ResourceAccess, ToolError};

use crate::git::{
    GitFile, GitIndex, GitObjectStore, GitOid, GitReadBudget, GitReadError, GitRefStore, GitTreeDifference, LINK_MODE,
    RepositoryFiles, parse_oids, through_link,
};
use crate::mount::Mount;
use crate::mount::repository_files::LowerRepositoryFiles;
use crate::overlay::ChangeSet;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, join_path, resource_at};
use crate::overlay::group::repository_of;
use crate::overlay::masked_paths::{GitStagedEntry, staged_mask};
use crate::path::relative::split;
use crate::path::workspace::WORKSPACE_OF_PROGRAMS;
use crate::root::{open_no_follow, stat};

/// Findings about the repositories that a program changed.
#[derive(Debug, Default)]
pub(super) struct RepositoryFindings {
    /// Paths of the worktree that git itself wrote or removed, each with its repository.
    pub(super) worktree_ties: Vec<(Vec<u8>, Vec<u8>)>,
    /// Protected paths that a file of a repository leads to, by that file.
    pub(super) leads: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// Files of a repository that must not be kept, and why.
    pub(super) refused: Vec<(Vec<u8>, ToolError)>,
}

/// A path of the worktree of which a tree or the index has something else than before.
struct WorktreePathChange {
    path: Vec<u8>,
    staged: GitStagedEntry,
}

impl ChangeSet {
    /// Marks the items that are data of a repository, and drops an index whose contents did not change.
    pub(super) fn judge_repositories(&mut self, cx: &CallContext<'_>) {
        let roots: BTreeSet<Vec<u8>> =
            self.items.iter().filter_map(|item| repository_of(&item.path)).map(<[u8]>::to_vec).collect();
        let mut findings = RepositoryFindings::default();
        for root in roots.iter().filter(|root| was_repository(&self.mount, root)) {
            let budget = GitReadBudget::new(cx);
            let Ok(judge) = RepositoryJudge::new(self, root, &budget) else { continue };
            let Ok(judged) = judge.judge(cx) else {
                findings.refused.extend(judge.unread_index_mask());
                findings.worktree_ties.extend(judge.possible_ties().into_iter().map(|path| (root.clone(), path)));
                continue;
            };
            for (item, verdict) in self.items.iter_mut().zip(judged.verdicts) {
                match verdict {
                    RepositoryDataVerdict::Data => item.is_data = true,
                    RepositoryDataVerdict::LeadsTo(paths) => {
                        findings.leads.insert(item.path.clone(), paths);
                    }
                    RepositoryDataVerdict::StagedMask(error) => findings.refused.push((item.path.clone(), error)),
                    RepositoryDataVerdict::Outside
                    | RepositoryDataVerdict::Unchanged
                    | RepositoryDataVerdict::Protected => {}
                }
            }
            findings.worktree_ties.extend(judged.worktree_paths.into_iter().map(|path| (root.clone(), path)));
            self.items.retain(|item| !judged.unchanged.contains(&item.path));
        }
        self.repositories = findings;
    }
}

/// Whether a path was a repository before the program ran: a directory of exactly this name, with what makes it one.
fn was_repository(mount: &Mount, root: &[u8]) -> bool {
    let Some(directory) = open_no_follow(mount, root).filter(|_| split(root).1 == b".git") else { return false };
    [b"HEAD".as_slice(), b"objects", b"refs"].iter().all(|name| matches!(stat(directory.as_fd(), name), Ok(Some(_))))
}

/// The role of an item in a repository.
#[derive(Debug)]
enum RepositoryDataVerdict {
    /// It is not in this repository.
    Outside,
    Data,
    /// Its contents mean the same as before.
    Unchanged,
    /// It would be data, but leads to these protected paths.
    LeadsTo(Vec<Vec<u8>>),
    /// Git took the mask of a path for its contents.
    StagedMask(ToolError),
    Protected,
}

/// Classes of repository files, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GitFileClass {
    /// A loose object or a part of a pack.
    Object,
    Head,
    Reference,
    /// Objects that lines begin with, such as `FETCH_HEAD`.
    PseudoRef,
    PackedRefs,
    Index,
    /// A reflog.
    Log,
    /// Recorded conflict resolutions. Git copies any file that `MERGE_RR` names, wherever it lies, into `rr-cache` at the
    /// next commit, and writes what lies there into the worktree.
    Rerere,
    /// Text and numbers that lead nowhere.
    Plain,
    /// Settings, hooks, lists of commands, and every name that is not known.
    Other,
}

impl GitFileClass {
    pub(super) fn of(path: &[u8]) -> Self {
        let Ok(path) = std::str::from_utf8(path) else { return Self::Other };
        let parts: Vec<&str> = path.split('/').collect();
        if parts.iter().any(|part| part.ends_with(".lock") || part.starts_with('.')) {
            return Self::Other;
        }
        match parts[..] {
            ["HEAD"] => Self::Head,
            ["index"] => Self::Index,
            ["packed-refs"] => Self::PackedRefs,
            ["COMMIT_EDITMSG" | "SQUASH_MSG" | "MERGE_MSG" | "MERGE_MODE"] => Self::Plain,
            ["MERGE_AUTOSTASH" | "AUTO_MERGE"] => Self::PseudoRef,
            [name] if name.ends_with("_HEAD") => Self::PseudoRef,
            // However a file system that folds cases would take it.
            ["refs", kind, ..] if kind.eq_ignore_ascii_case("replace") => Self::Other,
            // Without it there is no repository, and git looks for another one above.
            ["refs"] => Self::Other,
            ["refs", ..] => Self::Reference,
            ["logs", ..] => Self::Log,
            ["MERGE_RR"] | ["rr-cache", ..] => Self::Rerere,
            ["objects", directory] if is_hex(directory, 2) => Self::Plain,
            ["objects", directory, file] if is_hex(directory, 2) && is_hex(file, 38) => Self::Object,
            ["objects", "pack" | "info"] | ["objects", "info", "packs"] | ["info", "refs"] => Self::Plain,
            ["objects", "pack", name] if is_pack_file(name) => Self::Object,
            _ => Self::Other,
        }
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_pack_file(name: &str) -> bool {
    let parts = name.strip_prefix("pack-").and_then(|name| name.split_once('.'));
    parts.is_some_and(|(hash, suffix)| is_hex(hash, 40) && matches!(suffix, "pack" | "idx" | "rev"))
}

struct RepositoryVerdicts {
    /// One for each item.
    verdicts: Vec<RepositoryDataVerdict>,
    unchanged: HashSet<Vec<u8>>,
    worktree_paths: Vec<Vec<u8>>,
}

/// A repository as it was and as it is going to be.
pub(super) struct RepositoryJudge<'a> {
    pub(super) change_set: &'a ChangeSet,
    pub(super) root: &'a [u8],
    pub(super) old: LowerRepositoryFiles<'a>,
    pub(super) new: MergedRepositoryFiles<'a>,
    budget: &'a GitReadBudget<'a>,
}

/// State of a repository, read once and used for every file of it.
pub(super) struct RepositoryVersions<'a> {
    old: GitObjectStore<'a>,
    new: GitObjectStore<'a>,
    old_refs: GitRefStore<'a>,
    new_refs: GitRefStore<'a>,
    pub(super) old_head: Option<GitOid>,
    /// Earlier values of references.
    pub(super) old_values: HashSet<GitOid>,
}

impl<'a> RepositoryJudge<'a> {
    fn new(left: &'a ChangeSet, root: &'a [u8], budget: &'a GitReadBudget<'a>) -> Result<Self, GitReadError> {
        let items: HashMap<&[u8], &OverlayChange> =
            left.items.iter().map(|item| (item.path.as_slice(), item)).collect();
        // A repository that is replaced as a whole is another one.
        if items.get(root).is_some_and(|item| item.directory_mode().is_none()) {
            return Err(GitReadError("the repository is a different one"));
        }
        let old = LowerRepositoryFiles { mount: &left.mount, root };
        Ok(Self {
            change_set: left,
            root,
            old: LowerRepositoryFiles { ..old },
            new: MergedRepositoryFiles { change_set: left, items, old },
            budget,
        })
    }

    fn judge(&self, cx: &CallContext<'_>) -> Result<RepositoryVerdicts, GitReadError> {
        let (old_refs, new_refs) =
            (GitRefStore::open(&self.old, self.budget)?, GitRefStore::open(&self.new, self.budget)?);
        let view = RepositoryVersions {
            old: GitObjectStore::open(&self.old, self.budget)?,
            new: GitObjectStore::open(&self.new, self.budget)?,
            old_head: old_refs.resolve(b"HEAD")?,
            old_values: old_refs.values()?,
            old_refs,
            new_refs,
        };
        let indexes = self.indexes();
        let mut judged =
            RepositoryVerdicts { verdicts: Vec::new(), unchanged: HashSet::new(), worktree_paths: Vec::new() };
        for item in &self.change_set.items {
            let Some(path) = relative_to(&item.path, self.root).filter(|path| !path.is_empty()) else {
                judged.verdicts.push(RepositoryDataVerdict::Outside);
                continue;
            };
            let verdict = self.judge_item(item, path, &view, &indexes, cx);
            if matches!(verdict, RepositoryDataVerdict::Unchanged) {
                judged.unchanged.insert(item.path.clone());
            }
            judged.verdicts.push(verdict);
        }
        judged.worktree_paths = self.worktree_ties(&indexes, &view, cx);
        Ok(judged)
    }

    fn judge_item(
        &self,
        item: &OverlayChange,
        path: &[u8],
        view: &RepositoryVersions<'_>,
        indexes: &Result<Option<(GitIndex, GitIndex)>, GitReadError>,
        cx: &CallContext<'_>,
    ) -> RepositoryDataVerdict {
        let class = GitFileClass::of(path);
        let has_other_names = item.lower.as_ref().is_some_and(|was| was.tree.is_none() && was.stat.links > 1);
        if class == GitFileClass::Other
            || matches!(item.upper, Some(OverlayUpperState::Link { .. }))
            || has_other_names && class != GitFileClass::Object
        {
            return RepositoryDataVerdict::Protected;
        }
        // A directory by itself says nothing, and what goes leads nowhere, but for the index and what covers a packed
        // reference.
        let is_file = matches!(item.upper, Some(OverlayUpperState::File { .. }));
        if !is_file && !matches!(class, GitFileClass::Index | GitFileClass::Head | GitFileClass::Reference) {
            return RepositoryDataVerdict::Data;
        }
        let changes = match class {
            GitFileClass::Object => match view.new.is_intact(path) {
                Ok(true) => Ok(Vec::new()),
                _ => return RepositoryDataVerdict::Protected,
            },
            GitFileClass::Index => match indexes {
                Ok(Some((old, new))) if old.says_the_same(new) && is_file => return RepositoryDataVerdict::Unchanged,
                Ok(Some((old, new))) => match self.index_mask(old, new, Some(view)) {
                    Some(error) => return RepositoryDataVerdict::StagedMask(error),
                    None => self.index_differences(old, new),
                },
                _ => return RepositoryDataVerdict::Protected,
            },
            GitFileClass::Head if !is_file => return RepositoryDataVerdict::Protected,
            GitFileClass::Head => view.new_refs.resolve(b"HEAD").and_then(|new| view.compare(new, view.old_head)),
            GitFileClass::Reference if !is_file => view.uncovered_differences(path),
            GitFileClass::Reference => self.reference_differences(path, view),
            GitFileClass::PackedRefs => view.packed_differences(),
            GitFileClass::PseudoRef => self.lines(path, &[0]).and_then(|oids| view.new_differences(&oids)),
            GitFileClass::Log => self.lines(path, &[0, 1]).and_then(|oids| view.new_differences(&oids)),
            GitFileClass::Plain => Ok(Vec::new()),
            // Git empties the list of conflicts when they are resolved.
            GitFileClass::Rerere if matches!(&item.upper, Some(OverlayUpperState::File { seen, .. }) if seen.size == 0) => {
                Ok(Vec::new())
            }
            GitFileClass::Rerere | GitFileClass::Other => return RepositoryDataVerdict::Protected,
        };
        let Ok(changes) = changes else { return RepositoryDataVerdict::Protected };
        if let Some(error) = changes.iter().find_map(|change| self.mask_of(change)) {
            return RepositoryDataVerdict::StagedMask(error);
        }
        let paths = changes.into_iter().map(|change| change.path);
        let mut leads: Vec<Vec<u8>> = paths.filter(|path| self.is_sensitive(path, cx)).collect();
        leads.dedup();
        if leads.is_empty() { RepositoryDataVerdict::Data } else { RepositoryDataVerdict::LeadsTo(leads) }
    }

    /// Whether a path of the worktree may not be written unasked, whatever writes it.
    fn is_sensitive(&self, path: &[u8], cx: &CallContext<'_>) -> bool {
        let path = join_path(split(self.root).0, path);
        let place = resource_at(&self.change_set.mount, &path);
        place.effective_sensitivity().is_any()
            || cx.evaluate(&ResourceAccess { action: PolicyAction::Overwrite, resource: place }).decision
                == Decision::Deny
                && cx.origin().is_some()
    }

    /// The error for a change that comes from the view of a masked path and not from the program.
    fn mask_of(&self, change: &WorktreePathChange) -> Option<ToolError> {
        let worktree = split(self.root).0;
        let full = join_path(worktree, &change.path);
        let masked = self.change_set.masked.mistaken(&self.change_set.mount, &full, change.staged)?;
        Some(staged_mask(
            relative_to(masked, worktree).filter(|path| !path.is_empty()).unwrap_or(masked),
            change.staged,
        ))
    }

    /// The same for the entries of the index, but for those that came with a commit that was there before.
    fn index_mask(&self, old: &GitIndex, new: &GitIndex, view: Option<&RepositoryVersions<'_>>) -> Option<ToolError> {
        let masks = |change: &WorktreePathChange| Some((change.path.clone(), self.mask_of(change)?));
        let masks: Vec<(Vec<u8>, ToolError)> = index_changes(old, new).iter().filter_map(masks).collect();
        if masks.is_empty() {
            return None;
        }
        let brought = view.and_then(|view| view.known_head_differences().ok()).unwrap_or_default();
        let is_brought = |path: &Vec<u8>| {
            let staged = new.entries.get(&(path.clone(), 0)).map(|entry| entry.oid);
            brought.iter().any(|one| one.path == *path && one.oid == staged)
        };
        masks.into_iter().find(|(path, _)| !is_brought(path)).map(|(_, error)| error)
    }

    /// The same where the rest of the repository cannot be read.
    fn unread_index_mask(&self) -> Option<(Vec<u8>, ToolError)> {
        let (old, new) = self.indexes().ok()??;
        Some((join_path(self.root, b"index"), self.index_mask(&old, &new, None)?))
    }

    fn index_differences(&self, old: &GitIndex, new: &GitIndex) -> Result<Vec<WorktreePathChange>, GitReadError> {
        let hides = |(key, entry): (&(Vec<u8>, u8), &crate::git::GitIndexEntry)| {
            entry.is_hidden && !old.entries.get(key).is_some_and(|old| old.is_hidden)
        };
        let is_replaced = |(name, data): (&Vec<u8>, &Vec<u8>)| {
            old.caches.get(name) != Some(data) && !(name == b"UNTR" && self.is_unused_cache(data))
        };
        if new.entries.iter().any(hides) || new.caches.iter().any(is_replaced) {
            return Err(GitReadError("the index hides changes"));
        }
        let is_link = |key: &&(Vec<u8>, u8)| new.entries.get(*key).is_some_and(|entry| entry.mode == LINK_MODE);
        let links = differing_keys(old, new).filter(is_link).filter_map(|(path, _)| through_link(path));
        let paths = differing_keys(old, new).map(|(path, _)| path.clone()).chain(links);
        // Masks were looked for before.
        Ok(paths.map(|path| WorktreePathChange { path, staged: GitStagedEntry::Known }).collect())
    }

    /// Whether a cache of untracked files was made by git in a program: git on the host does not use the cache of another
    /// directory than it works in.
    fn is_unused_cache(&self, data: &[u8]) -> bool {
        let jail = Path::new(WORKSPACE_OF_PROGRAMS);
        let location = GitIndex::untracked_cache_location(data).map(|path| Path::new(OsStr::from_bytes(path)));
        location.is_some_and(|location| location.starts_with(jail))
            && !self.change_set.mount.host_roots.iter().any(|root| root.starts_with(jail))
    }

    fn reference_differences(
        &self,
        path: &[u8],
        view: &RepositoryVersions<'_>,
    ) -> Result<Vec<WorktreePathChange>, GitReadError> {
        let Some(new) = view.new_refs.resolve(path)? else { return Ok(Vec::new()) };
        match view.old_refs.resolve(path)? {
            Some(old) => {
                let mut changes = view.compare(Some(new), Some(old))?;
                if path == b"refs/stash" {
                    changes.extend(view.new_differences(&BTreeSet::from([new]))?);
                }
                Ok(changes)
            }
            None => view.new_differences(&BTreeSet::from([new])),
        }
    }

    /// The objects that the lines of a file name, and did not before.
    fn lines(&self, path: &[u8], words: &[usize]) -> Result<BTreeSet<GitOid>, GitReadError> {
        let read = |files: &dyn RepositoryFiles| match files.open(path)? {
            Some(file) => parse_oids(&file.read_whole(self.budget)?, words),
            None => Ok(BTreeSet::new()),
        };
        Ok(&read(&self.new)? - &read(&self.old)?)
    }

    /// The index before and after; `None` where there is neither.
    fn indexes(&self) -> Result<Option<(GitIndex, GitIndex)>, GitReadError> {
        let read = |files: &dyn RepositoryFiles| {
            let file = files.open(b"index")?;
            file.map(|file| GitIndex::parse(&file.read_whole(self.budget)?)).transpose()
        };
        let (old, new) = (read(&self.old)?, read(&self.new)?);
        Ok((old.is_some() || new.is_some()).then(|| (old.unwrap_or_default(), new.unwrap_or_default())))
    }
}

impl RepositoryVersions<'_> {
    /// Paths of one tree that are neither in another one nor in the index.
    fn compare(&self, new: Option<GitOid>, old: Option<GitOid>) -> Result<Vec<WorktreePathChange>, GitReadError> {
        let tree = |store: &GitObjectStore<'_>, oid: Option<GitOid>| oid.map(|oid| store.tree_of(&oid)).transpose();
        let mut olds: Vec<GitOid> = tree(&self.old, old)?.into_iter().collect();
        olds.extend(tree(&self.old, self.old_head)?);
        let new = tree(&self.new, new)?;
        let is_known = new.is_some_and(|new| self.old.contains(&new) == Ok(true));
        let change = |GitTreeDifference { path, oid }| match (oid, is_known) {
            (_, true) => WorktreePathChange { path, staged: GitStagedEntry::Known },
            (Some(oid), _) => WorktreePathChange { path, staged: GitStagedEntry::Object(oid) },
            (None, _) => WorktreePathChange { path, staged: GitStagedEntry::Removed },
        };
        Ok(self.new.differences(new, &olds)?.into_iter().map(change).collect())
    }

    /// Paths of an earlier commit that `HEAD` points to again.
    fn known_head_differences(&self) -> Result<Vec<GitTreeDifference>, GitReadError> {
        let Some(new) = self.new_refs.resolve(b"HEAD")? else { return Ok(Vec::new()) };
        let new = self.new.tree_of(&new)?;
        let old = self.old_head.map(|old| self.old.tree_of(&old)).transpose()?;
        if self.old.contains(&new)? { self.new.differences(Some(new), old.as_slice()) } else { Ok(Vec::new()) }
    }

    /// The same for objects that nothing stood for before. A stash has more than one tree: all of them count.
    fn new_differences(&self, oids: &BTreeSet<GitOid>) -> Result<Vec<WorktreePathChange>, GitReadError> {
        let mut changes = Vec::new();
        for oid in oids.iter().filter(|oid| !self.old_values.contains(*oid) && oid.iter().any(|byte| *byte != 0)) {
            changes.extend(self.compare(Some(*oid), None)?);
            for parent in self.new.parents_of(oid)?.iter().skip(1) {
                if !self.old_values.contains(parent) {
                    changes.extend(self.compare(Some(*parent), None)?);
                }
            }
        }
        Ok(changes)
    }

    fn packed_differences(&self) -> Result<Vec<WorktreePathChange>, GitReadError> {
        let (old, new) = (self.old_refs.packed(), self.new_refs.packed());
        self.packed_values_differences(new.iter().filter(|(name, oid)| old.get(*name) != Some(oid)))
    }

    /// Paths of packed references that apply again where the loose ones at a path, or below it, are gone.
    fn uncovered_differences(&self, path: &[u8]) -> Result<Vec<WorktreePathChange>, GitReadError> {
        let packed = self.new_refs.packed().iter();
        self.packed_values_differences(packed.filter(|(name, _)| relative_to(name, path).is_some()))
    }

    fn packed_values_differences<'r>(
        &self,
        packed: impl Iterator<Item = (&'r Vec<u8>, &'r GitOid)>,
    ) -> Result<Vec<WorktreePathChange>, GitReadError> {
        let mut changes = Vec::new();
        for (name, oid) in packed {
            if name.get(..13).is_some_and(|start| start.eq_ignore_ascii_case(b"refs/replace/")) {
                return Err(GitReadError("an object is replaced"));
            }
            let before = self.old_refs.resolve(name)?;
            if before == Some(*oid) {
                continue;
            }
            changes.extend(match before {
                Some(before) => self.compare(Some(*oid), Some(before))?,
                None => self.new_differences(&BTreeSet::from([*oid]))?,
            });
        }
        Ok(changes)
    }
}

/// Entries that one index has and the other has not, or not the same.
pub(super) fn differing_keys<'i>(old: &'i GitIndex, new: &'i GitIndex) -> impl Iterator<Item = &'i (Vec<u8>, u8)> {
    let changed = new.entries.iter().filter(|(key, entry)| old.entries.get(*key) != Some(entry)).map(|(key, _)| key);
    let gone = old.entries.keys().filter(|key| !new.entries.contains_key(*key));
    changed.chain(gone)
}

fn index_changes(old: &GitIndex, new: &GitIndex) -> Vec<WorktreePathChange> {
    let change = |key: &(Vec<u8>, u8)| {
        let is_gone = || !(0..4).any(|stage| new.entries.contains_key(&(key.0.clone(), stage)));
        let staged = match new.entries.get(key) {
            Some(entry) => GitStagedEntry::Object(entry.oid),
            None if is_gone() => GitStagedEntry::Removed,
            // A conflict was resolved: the path is there still.
            None => GitStagedEntry::Known,
        };
        WorktreePathChange { path: key.0.clone(), staged }
    };
    differing_keys(old, new).map(change).collect()
}

/// The files of a repository as a program left them.
pub(super) struct MergedRepositoryFiles<'a> {
    change_set: &'a ChangeSet,
    items: HashMap<&'a [u8], &'a OverlayChange>,
    old: LowerRepositoryFiles<'a>,
}

impl MergedRepositoryFiles<'_> {
    /// Whether what the workspace has at a path is not seen any more, because of a directory above it.
    fn is_covered(&self, full: &[u8]) -> bool {
        let above = |path: &[u8]| Some(split(path).0.to_vec()).filter(|above| !above.is_empty());
        let mut line = std::iter::successors(above(full), |path| above(path));
        line.any(|path| self.items.get(path.as_slice()).is_some_and(|item| item.directory_mode().is_none()))
    }
}

impl RepositoryFiles for MergedRepositoryFiles<'_> {
    fn open(&self, path: &[u8]) -> Result<Option<GitFile>, GitReadError> {
        let full = join_path(self.old.root, path);
        match self.items.get(full.as_slice()).map(|item| (item, &item.upper)) {
            Some((item, Some(OverlayUpperState::File { seen, .. }))) => {
                let fd = self.change_set.open(item, seen).map_err(|_| GitReadError("a file cannot be read"))?;
                Ok(Some(GitFile { fd, size: seen.size }))
            }
            Some((_, Some(OverlayUpperState::Link { .. }))) => Err(GitReadError("a file is a link")),
            Some((_, None | Some(OverlayUpperState::Directory { .. }))) => Ok(None),
            None if self.is_covered(&full) => Ok(None),
            None => self.old.open(path),
        }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, GitReadError> {
        let full = join_path(self.old.root, path);
        let is_new = |item: &&OverlayChange| item.directory_mode().is_none();
        let is_gone = self.items.get(full.as_slice()).is_some_and(is_new) || self.is_covered(&full);
        let mut names: BTreeSet<Vec<u8>> =
            if is_gone { BTreeSet::new() } else { self.old.names(path)?.into_iter().collect() };
        for item in self.items.values() {
            let (parent, name) = split(&item.path);
            if parent == full.as_slice() {
                match item.upper {
                    Some(_) => names.insert(name.to_vec()),
                    None => names.remove(name),
                };
            }
        }
        Ok(names.into_iter().collect())
    }
}

/// The rest of a path below a directory; all of it below the root.
pub(super) fn relative_to<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    match directory.is_empty() {
        true => Some(path),
        false => path
            .strip_prefix(directory)
            .and_then(|rest| if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }),
    }
}
