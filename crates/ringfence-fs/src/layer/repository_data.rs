//! Which of a program's changes to a git repository are data, judged by what they lead to.
//!
//! Git runs what the settings and hooks of a repository name, and only reads its objects, references and index. Changes of
//! these are ordinary, if the repository was there before, every new object is what its name says, and no protected path is
//! in the difference between what a reference or the index stood for and what it stands for now. Everything else below
//! `.git` stays protected: names that are not known here, and whatever cannot be read.
//!
//! Not here: reading a repository (`git/`), and what is asked about (the policy).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ringfence_kernel::{Context, Decision, ToolError, Touch, Verb};
use rustix::fs::OFlags;

use super::Left;
use super::compare::{Item, Now, joined, place};
use super::group::repository_of;
use super::masked_paths::{StagedEntry, staged_mask};
use crate::fence::WORKSPACE_OF_PROGRAMS;
use crate::git::{
    Budget, GitIndex, HeldFile, LINK, ObjectStore, Oid, RefStore, RepositoryFiles, TreeDifference, Unreadable,
    parse_oids, through_link,
};
use crate::journal::{open_straight, split};
use crate::mount::{Mount, look};
use crate::stamp::Kind;
use crate::walk::names_in;

/// So many names of a directory of a repository are looked through.
const MOST_NAMES: usize = 100_000;

/// What was found out about the repositories that a program changed.
#[derive(Debug, Default)]
pub(super) struct RepositoryFindings {
    /// Paths of the worktree that git itself wrote or removed, each with its repository.
    pub(super) tied: Vec<(Vec<u8>, Vec<u8>)>,
    /// Protected paths that a file of a repository leads to, by that file.
    pub(super) leads: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// Files of a repository that must not be kept, and why.
    pub(super) refused: Vec<(Vec<u8>, ToolError)>,
}

/// A path of the worktree of which a tree or the index has something else than before.
struct PathChange {
    path: Vec<u8>,
    staged: StagedEntry,
}

impl Left {
    /// Marks the items that are data of a repository, and drops an index that says what it said before.
    pub(super) fn judge_repositories(&mut self, cx: &Context<'_>) {
        let roots: BTreeSet<Vec<u8>> =
            self.items.iter().filter_map(|item| repository_of(&item.path)).map(<[u8]>::to_vec).collect();
        let mut findings = RepositoryFindings::default();
        for root in roots.iter().filter(|root| was_repository(&self.mount, root)) {
            let budget = Budget::new(cx);
            let Ok(judge) = Judge::new(self, root, &budget) else { continue };
            let Ok(judged) = judge.judge(cx) else {
                findings.refused.extend(judge.unread_index_mask());
                continue;
            };
            for (item, verdict) in self.items.iter_mut().zip(judged.verdicts) {
                match verdict {
                    DataVerdict::Data => item.is_data = true,
                    DataVerdict::LeadsTo(paths) => {
                        findings.leads.insert(item.path.clone(), paths);
                    }
                    DataVerdict::StagedMask(error) => findings.refused.push((item.path.clone(), error)),
                    DataVerdict::Elsewhere | DataVerdict::Unchanged | DataVerdict::Protected => {}
                }
            }
            findings.tied.extend(judged.tied.into_iter().map(|path| (root.clone(), path)));
            self.items.retain(|item| !judged.unchanged.contains(&item.path));
        }
        self.repositories = findings;
    }
}

/// Whether a path was a repository before the program ran: a directory of exactly this name, with what makes it one.
fn was_repository(mount: &Mount, root: &[u8]) -> bool {
    let Some(directory) = open_straight(mount, root).filter(|_| split(root).1 == b".git") else { return false };
    [b"HEAD".as_slice(), b"objects", b"refs"].iter().all(|name| matches!(look(directory.as_fd(), name), Ok(Some(_))))
}

/// What an item is to a repository.
#[derive(Debug)]
enum DataVerdict {
    /// It is not in this repository.
    Elsewhere,
    Data,
    /// It says what it said before.
    Unchanged,
    /// It would be data, but leads to these protected paths.
    LeadsTo(Vec<Vec<u8>>),
    /// Git took the mask of a path for its contents.
    StagedMask(ToolError),
    Protected,
}

/// What the files of a repository are, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileClass {
    /// A loose object or a part of a pack.
    Object,
    Head,
    Reference,
    /// Objects that lines begin with, such as `FETCH_HEAD`.
    PseudoRef,
    PackedRefs,
    Index,
    /// What a reference stood for, line by line.
    Log,
    /// Recorded conflict resolutions. Git copies any file that `MERGE_RR` names, wherever it lies, into `rr-cache` at the
    /// next commit, and writes what lies there into the worktree.
    Rerere,
    /// Text and numbers that lead nowhere.
    Plain,
    /// Settings, hooks, lists of commands, and every name that is not known.
    Other,
}

impl FileClass {
    fn of(path: &[u8]) -> Self {
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
            ["objects", "pack", name] if is_pack(name) => Self::Object,
            _ => Self::Other,
        }
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_pack(name: &str) -> bool {
    let parts = name.strip_prefix("pack-").and_then(|name| name.split_once('.'));
    parts.is_some_and(|(hash, suffix)| is_hex(hash, 40) && matches!(suffix, "pack" | "idx" | "rev"))
}

struct Judged {
    /// One for each item.
    verdicts: Vec<DataVerdict>,
    unchanged: HashSet<Vec<u8>>,
    tied: Vec<Vec<u8>>,
}

/// A repository as it was and as it is going to be.
struct Judge<'a> {
    left: &'a Left,
    root: &'a [u8],
    old: OldFiles<'a>,
    new: NewFiles<'a>,
    budget: &'a Budget<'a>,
}

/// What is read of a repository once, and asked about for every file of it.
struct View<'a> {
    old: ObjectStore<'a>,
    new: ObjectStore<'a>,
    old_refs: RefStore<'a>,
    new_refs: RefStore<'a>,
    old_head: Option<Oid>,
    /// What references stood for.
    old_values: HashSet<Oid>,
}

impl<'a> Judge<'a> {
    fn new(left: &'a Left, root: &'a [u8], budget: &'a Budget<'a>) -> Result<Self, Unreadable> {
        let items: HashMap<&[u8], &Item> = left.items.iter().map(|item| (item.path.as_slice(), item)).collect();
        // A repository that is replaced as a whole is another one.
        if items.get(root).is_some_and(|item| item.directory_mode().is_none()) {
            return Err(Unreadable("the repository is another one"));
        }
        let old = OldFiles { mount: &left.mount, root };
        Ok(Self { left, root, old: OldFiles { ..old }, new: NewFiles { left, items, old }, budget })
    }

    fn judge(&self, cx: &Context<'_>) -> Result<Judged, Unreadable> {
        let (old_refs, new_refs) = (RefStore::open(&self.old, self.budget)?, RefStore::open(&self.new, self.budget)?);
        let view = View {
            old: ObjectStore::open(&self.old, self.budget)?,
            new: ObjectStore::open(&self.new, self.budget)?,
            old_head: old_refs.resolve(b"HEAD")?,
            old_values: old_refs.values()?,
            old_refs,
            new_refs,
        };
        let indexes = self.indexes();
        let mut judged = Judged { verdicts: Vec::new(), unchanged: HashSet::new(), tied: Vec::new() };
        for item in &self.left.items {
            let Some(path) = below(&item.path, self.root).filter(|path| !path.is_empty()) else {
                judged.verdicts.push(DataVerdict::Elsewhere);
                continue;
            };
            let verdict = self.judge_item(item, path, &view, &indexes, cx);
            if matches!(verdict, DataVerdict::Unchanged) {
                judged.unchanged.insert(item.path.clone());
            }
            judged.verdicts.push(verdict);
        }
        if let Ok(Some((old, new))) = &indexes {
            judged.tied = self.tied(old, new, &view);
        }
        Ok(judged)
    }

    fn judge_item(
        &self,
        item: &Item,
        path: &[u8],
        view: &View<'_>,
        indexes: &Result<Option<(GitIndex, GitIndex)>, Unreadable>,
        cx: &Context<'_>,
    ) -> DataVerdict {
        let class = FileClass::of(path);
        let has_other_names = item.was.as_ref().is_some_and(|was| was.tree.is_none() && was.stamp.links > 1);
        if class == FileClass::Other
            || matches!(item.now, Some(Now::Link { .. }))
            || has_other_names && class != FileClass::Object
        {
            return DataVerdict::Protected;
        }
        // A directory by itself says nothing, and what goes leads nowhere, but for the index and what covers a packed
        // reference.
        let is_file = matches!(item.now, Some(Now::File { .. }));
        if !is_file && !matches!(class, FileClass::Index | FileClass::Head | FileClass::Reference) {
            return DataVerdict::Data;
        }
        let changes = match class {
            FileClass::Object => match view.new.is_honest(path) {
                Ok(true) => Ok(Vec::new()),
                _ => return DataVerdict::Protected,
            },
            FileClass::Index => match indexes {
                Ok(Some((old, new))) if old.says_the_same(new) && is_file => return DataVerdict::Unchanged,
                Ok(Some((old, new))) => match self.index_mask(old, new, Some(view)) {
                    Some(error) => return DataVerdict::StagedMask(error),
                    None => self.index_differences(old, new),
                },
                _ => return DataVerdict::Protected,
            },
            FileClass::Head if !is_file => return DataVerdict::Protected,
            FileClass::Head => view.new_refs.resolve(b"HEAD").and_then(|new| view.compare(new, view.old_head)),
            FileClass::Reference if !is_file => view.uncovered_differences(path),
            FileClass::Reference => self.reference_differences(path, view),
            FileClass::PackedRefs => view.packed_differences(),
            FileClass::PseudoRef => self.lines(path, &[0]).and_then(|oids| view.new_differences(&oids)),
            FileClass::Log => self.lines(path, &[0, 1]).and_then(|oids| view.new_differences(&oids)),
            FileClass::Plain => Ok(Vec::new()),
            // Git empties the list of conflicts when they are resolved.
            FileClass::Rerere if matches!(&item.now, Some(Now::File { seen, .. }) if seen.size == 0) => Ok(Vec::new()),
            FileClass::Rerere | FileClass::Other => return DataVerdict::Protected,
        };
        let Ok(changes) = changes else { return DataVerdict::Protected };
        if let Some(error) = changes.iter().find_map(|change| self.mask_of(change)) {
            return DataVerdict::StagedMask(error);
        }
        let paths = changes.into_iter().map(|change| change.path);
        let mut leads: Vec<Vec<u8>> = paths.filter(|path| self.is_weighty(path, cx)).collect();
        leads.dedup();
        if leads.is_empty() { DataVerdict::Data } else { DataVerdict::LeadsTo(leads) }
    }

    /// Whether a path of the worktree may not be written unasked, whatever writes it.
    fn is_weighty(&self, path: &[u8], cx: &Context<'_>) -> bool {
        let path = joined(split(self.root).0, path);
        let place = place(&self.left.mount, &path);
        place.sensitive().is_any()
            || cx.judge(&Touch { verb: Verb::Overwrite, place }).decision == Decision::Deny && cx.origin().is_some()
    }

    /// Why a change is not one that the program made, but what it saw of a masked path.
    fn mask_of(&self, change: &PathChange) -> Option<ToolError> {
        let worktree = split(self.root).0;
        let full = joined(worktree, &change.path);
        let masked = self.left.masked.mistaken(&self.left.mount, &full, change.staged)?;
        Some(staged_mask(below(masked, worktree).filter(|path| !path.is_empty()).unwrap_or(masked), change.staged))
    }

    /// The same for the entries of the index, but for those that came with a commit that was there before.
    fn index_mask(&self, old: &GitIndex, new: &GitIndex, view: Option<&View<'_>>) -> Option<ToolError> {
        let masks = |change: &PathChange| Some((change.path.clone(), self.mask_of(change)?));
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
        Some((joined(self.root, b"index"), self.index_mask(&old, &new, None)?))
    }

    fn index_differences(&self, old: &GitIndex, new: &GitIndex) -> Result<Vec<PathChange>, Unreadable> {
        let hides = |(key, entry): (&(Vec<u8>, u8), &crate::git::IndexEntry)| {
            entry.is_hidden && !old.entries.get(key).is_some_and(|old| old.is_hidden)
        };
        let is_replaced = |(name, data): (&Vec<u8>, &Vec<u8>)| {
            old.caches.get(name) != Some(data) && !(name == b"UNTR" && self.is_unused_cache(data))
        };
        if new.entries.iter().any(hides) || new.caches.iter().any(is_replaced) {
            return Err(Unreadable("the index hides changes"));
        }
        let is_link = |key: &&(Vec<u8>, u8)| new.entries.get(*key).is_some_and(|entry| entry.mode == LINK);
        let links = differing_keys(old, new).filter(is_link).filter_map(|(path, _)| through_link(path));
        let paths = differing_keys(old, new).map(|(path, _)| path.clone()).chain(links);
        // Masks were looked for before.
        Ok(paths.map(|path| PathChange { path, staged: StagedEntry::Known }).collect())
    }

    /// Whether a cache of untracked files was made by git in a program: git on the host does not use the cache of another
    /// directory than it works in.
    fn is_unused_cache(&self, data: &[u8]) -> bool {
        let jail = Path::new(WORKSPACE_OF_PROGRAMS);
        let location = GitIndex::untracked_cache_location(data).map(|path| Path::new(OsStr::from_bytes(path)));
        location.is_some_and(|location| location.starts_with(jail))
            && !self.left.mount.host_roots.iter().any(|root| root.starts_with(jail))
    }

    fn reference_differences(&self, path: &[u8], view: &View<'_>) -> Result<Vec<PathChange>, Unreadable> {
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
    fn lines(&self, path: &[u8], words: &[usize]) -> Result<BTreeSet<Oid>, Unreadable> {
        let read = |files: &dyn RepositoryFiles| match files.open(path)? {
            Some(file) => parse_oids(&file.read_whole(self.budget)?, words),
            None => Ok(BTreeSet::new()),
        };
        Ok(&read(&self.new)? - &read(&self.old)?)
    }

    /// The index before and after; nothing where there was none and is none.
    fn indexes(&self) -> Result<Option<(GitIndex, GitIndex)>, Unreadable> {
        let read = |files: &dyn RepositoryFiles| {
            let file = files.open(b"index")?;
            file.map(|file| GitIndex::parse(&file.read_whole(self.budget)?)).transpose()
        };
        let (old, new) = (read(&self.old)?, read(&self.new)?);
        Ok((old.is_some() || new.is_some()).then(|| (old.unwrap_or_default(), new.unwrap_or_default())))
    }

    /// Paths of the worktree that git wrote or removed itself: they mean the same as what it did to the repository.
    fn tied(&self, old: &GitIndex, new: &GitIndex, view: &View<'_>) -> Vec<Vec<u8>> {
        let differing: BTreeSet<&[u8]> = differing_keys(old, new).map(|(path, _)| path.as_slice()).collect();
        let worktree = split(self.root).0;
        let moves_worktree = self.left.items.iter().filter(|item| item.now.is_some()).any(|item| {
            below(&item.path, self.root).is_some_and(|path| {
                let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
                first.starts_with(b"MERGE_")
                    || first.starts_with(b"rebase-")
                    || first.ends_with(b"_HEAD") && first != b"FETCH_HEAD"
                    || [b"sequencer".as_slice(), b"AUTO_MERGE"].contains(&first)
            })
        });
        let is_tied = |item: &&Item| {
            let Some(path) = below(&item.path, worktree).filter(|_| repository_of(&item.path).is_none()) else {
                return false;
            };
            if item.now.is_none() && item.was.as_ref().is_some_and(|was| was.tree.is_some()) {
                return differing.range(path..).next().is_some_and(|first| below(first, path).is_some());
            }
            let Some(entry) = differing.contains(path).then(|| new.entries.get(&(path.to_vec(), 0))) else {
                return false;
            };
            match entry {
                _ if moves_worktree => true,
                None => item.now.is_none() || (1..4).any(|stage| new.entries.contains_key(&(path.to_vec(), stage))),
                Some(entry) => item.now.is_some() && view.old.has(&entry.oid) == Ok(true),
            }
        };
        self.left.items.iter().filter(is_tied).map(|item| item.path.clone()).collect()
    }
}

impl View<'_> {
    /// What is in one tree, and neither in another one nor in what was checked out.
    fn compare(&self, new: Option<Oid>, old: Option<Oid>) -> Result<Vec<PathChange>, Unreadable> {
        let tree = |store: &ObjectStore<'_>, oid: Option<Oid>| oid.map(|oid| store.tree_of(&oid)).transpose();
        let mut olds: Vec<Oid> = tree(&self.old, old)?.into_iter().collect();
        olds.extend(tree(&self.old, self.old_head)?);
        let new = tree(&self.new, new)?;
        let is_known = new.is_some_and(|new| self.old.has(&new) == Ok(true));
        let change = |TreeDifference { path, oid }| match (oid, is_known) {
            (_, true) => PathChange { path, staged: StagedEntry::Known },
            (Some(oid), _) => PathChange { path, staged: StagedEntry::Object(oid) },
            (None, _) => PathChange { path, staged: StagedEntry::Removed },
        };
        Ok(self.new.differences(new, &olds)?.into_iter().map(change).collect())
    }

    /// What another commit brings that was there before, where `HEAD` stands for it now.
    fn known_head_differences(&self) -> Result<Vec<TreeDifference>, Unreadable> {
        let Some(new) = self.new_refs.resolve(b"HEAD")? else { return Ok(Vec::new()) };
        let new = self.new.tree_of(&new)?;
        let old = self.old_head.map(|old| self.old.tree_of(&old)).transpose()?;
        if self.old.has(&new)? { self.new.differences(Some(new), old.as_slice()) } else { Ok(Vec::new()) }
    }

    /// The same for objects that nothing stood for before. A stash has more than one tree: all of them count.
    fn new_differences(&self, oids: &BTreeSet<Oid>) -> Result<Vec<PathChange>, Unreadable> {
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

    fn packed_differences(&self) -> Result<Vec<PathChange>, Unreadable> {
        let (old, new) = (self.old_refs.packed(), self.new_refs.packed());
        self.packed_values_differences(new.iter().filter(|(name, oid)| old.get(*name) != Some(oid)))
    }

    /// What packed references lead to where the loose ones at a path, or below it, are gone.
    fn uncovered_differences(&self, path: &[u8]) -> Result<Vec<PathChange>, Unreadable> {
        let packed = self.new_refs.packed().iter();
        self.packed_values_differences(packed.filter(|(name, _)| below(name, path).is_some()))
    }

    fn packed_values_differences<'r>(
        &self,
        packed: impl Iterator<Item = (&'r Vec<u8>, &'r Oid)>,
    ) -> Result<Vec<PathChange>, Unreadable> {
        let mut changes = Vec::new();
        for (name, oid) in packed {
            if name.get(..13).is_some_and(|start| start.eq_ignore_ascii_case(b"refs/replace/")) {
                return Err(Unreadable("an object is replaced"));
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
fn differing_keys<'i>(old: &'i GitIndex, new: &'i GitIndex) -> impl Iterator<Item = &'i (Vec<u8>, u8)> {
    let changed = new.entries.iter().filter(|(key, entry)| old.entries.get(*key) != Some(entry)).map(|(key, _)| key);
    let gone = old.entries.keys().filter(|key| !new.entries.contains_key(*key));
    changed.chain(gone)
}

fn index_changes(old: &GitIndex, new: &GitIndex) -> Vec<PathChange> {
    let change = |key: &(Vec<u8>, u8)| {
        let is_gone = || !(0..4).any(|stage| new.entries.contains_key(&(key.0.clone(), stage)));
        let staged = match new.entries.get(key) {
            Some(entry) => StagedEntry::Object(entry.oid),
            None if is_gone() => StagedEntry::Removed,
            // A conflict was resolved: the path is there still.
            None => StagedEntry::Known,
        };
        PathChange { path: key.0.clone(), staged }
    };
    differing_keys(old, new).map(change).collect()
}

/// The files of a repository in the workspace as it is.
#[derive(Clone, Copy)]
struct OldFiles<'a> {
    mount: &'a Mount,
    root: &'a [u8],
}

impl RepositoryFiles for OldFiles<'_> {
    fn open(&self, path: &[u8]) -> Result<Option<HeldFile>, Unreadable> {
        let full = joined(self.root, path);
        let (parent, name) = split(&full);
        let Some(parent) = open_straight(self.mount, parent) else { return Ok(None) };
        let unreadable = |_| Unreadable("a file cannot be read");
        match look(parent.as_fd(), name).map_err(unreadable)? {
            None => Ok(None),
            Some(stamp) if stamp.kind == Kind::File => {
                let fd = self.mount.open_at(parent.as_fd(), name, OFlags::RDONLY).map_err(unreadable)?;
                Ok(Some(HeldFile { fd, size: stamp.size }))
            }
            Some(stamp) if stamp.kind == Kind::Directory => Ok(None),
            Some(_) => Err(Unreadable("a file is a link")),
        }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, Unreadable> {
        let Some(directory) = open_straight(self.mount, &joined(self.root, path)) else { return Ok(Vec::new()) };
        let names = names_in(directory.as_fd(), MOST_NAMES).map_err(|_| Unreadable("a directory cannot be read"))?;
        Ok(names.into_iter().filter(|name| name != "." && name != "..").map(String::into_bytes).collect())
    }
}

/// The files of a repository as a program left them.
struct NewFiles<'a> {
    left: &'a Left,
    items: HashMap<&'a [u8], &'a Item>,
    old: OldFiles<'a>,
}

impl NewFiles<'_> {
    /// Whether what the workspace has at a path is not seen any more, because of a directory above it.
    fn is_covered(&self, full: &[u8]) -> bool {
        let above = |path: &[u8]| Some(split(path).0.to_vec()).filter(|above| !above.is_empty());
        let mut line = std::iter::successors(above(full), |path| above(path));
        line.any(|path| self.items.get(path.as_slice()).is_some_and(|item| item.directory_mode().is_none()))
    }
}

impl RepositoryFiles for NewFiles<'_> {
    fn open(&self, path: &[u8]) -> Result<Option<HeldFile>, Unreadable> {
        let full = joined(self.old.root, path);
        match self.items.get(full.as_slice()).map(|item| (item, &item.now)) {
            Some((item, Some(Now::File { seen, .. }))) => {
                let fd = self.left.open(item, seen).map_err(|_| Unreadable("a file cannot be read"))?;
                Ok(Some(HeldFile { fd, size: seen.size }))
            }
            Some((_, Some(Now::Link { .. }))) => Err(Unreadable("a file is a link")),
            Some((_, None | Some(Now::Directory { .. }))) => Ok(None),
            None if self.is_covered(&full) => Ok(None),
            None => self.old.open(path),
        }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, Unreadable> {
        let full = joined(self.old.root, path);
        let is_new = |item: &&Item| item.directory_mode().is_none();
        let is_gone = self.items.get(full.as_slice()).is_some_and(is_new) || self.is_covered(&full);
        let mut names: BTreeSet<Vec<u8>> =
            if is_gone { BTreeSet::new() } else { self.old.names(path)?.into_iter().collect() };
        for item in self.items.values() {
            let (parent, name) = split(&item.path);
            if parent == full.as_slice() {
                match item.now {
                    Some(_) => names.insert(name.to_vec()),
                    None => names.remove(name),
                };
            }
        }
        Ok(names.into_iter().collect())
    }
}

/// What is left of a path below a directory; all of it below the root.
fn below<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    match directory.is_empty() {
        true => Some(path),
        false => path
            .strip_prefix(directory)
            .and_then(|rest| if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }),
    }
}
