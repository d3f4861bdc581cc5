//! Change groups: changes that are committed or dropped together.
//!
//! Changes that belong together are one group: everything under one `.git`, both ends of a rename. Any set of groups
//! can be kept without the others, as long as `resolve_decisions` is applied to the choice: nothing is kept without the
//! new directory that it is in, no new directory without one of the entries that it was made for, no link that then
//! leads outside.
//!
//! Not here: what each group is allowed (the kernel asks the policy), and committing what is kept (`commit.rs`).

use std::collections::{BTreeSet, HashMap};

use ringfence_kernel::{ChangeGroup, ChangeGroupDecision, ErrorKind, PolicyAction, ResourceAccess, ToolError};

use crate::overlay::ChangeSet;
use crate::overlay::changes::DetectedRename;
use crate::overlay::commit::lower_changed_error;
use crate::overlay::compare::{OverlayChange, RejectedPath, display_path, resource_at};
use crate::overlay::links_outside::links_outside;
use crate::path::name::fold_name;
use crate::path::relative::split;
use crate::root::MountAccess;

impl ChangeSet {
    /// Finds what belongs together, and what cannot be kept whatever the policy says.
    pub(super) fn form_groups(
        &mut self,
        moved: &[DetectedRename],
        stale: &BTreeSet<Vec<u8>>,
        unkeepable: Vec<RejectedPath>,
    ) {
        let mut sets = DisjointSets::new(self.items.len());
        let index: HashMap<&[u8], usize> =
            self.items.iter().enumerate().map(|(index, item)| (item.path.as_slice(), index)).collect();
        let mut repositories: HashMap<&[u8], usize> = HashMap::new();
        for (at, item) in self.items.iter().enumerate() {
            if let Some(repository) = repository_of(&item.path) {
                sets.join(*repositories.entry(repository).or_insert(at), at);
            }
        }
        for DetectedRename { from, to } in moved {
            if let (Some(from), Some(to)) = (index.get(from.as_slice()), index.get(to.as_slice())) {
                sets.join(*from, *to);
            }
        }
        for (repository, path) in &self.repositories.worktree_ties {
            if let (Some(repository), Some(path)) =
                (repositories.get(repository.as_slice()), index.get(path.as_slice()))
            {
                sets.join(*repository, *path);
            }
        }
        let repositories: HashMap<Vec<u8>, usize> =
            repositories.into_iter().map(|(path, at)| (path.to_vec(), at)).collect();
        self.number_groups(&mut sets);
        self.refuse_stale(stale);
        for (path, why) in std::mem::take(&mut self.repositories.refused) {
            self.refuse_at_and_below(&path, &why);
        }
        self.refuse_rejected(unkeepable, &repositories);
        self.refuse_read_only();
        self.decisions = vec![ChangeGroupDecision::Ask; self.groups.len()];
    }

    /// In the order of their first items.
    fn number_groups(&mut self, sets: &mut DisjointSets) {
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        for (at, item) in self.items.iter_mut().enumerate() {
            let next = numbers.len();
            item.group = *numbers.entry(sets.find(at)).or_insert(next);
            if item.group == self.groups.len() {
                self.groups.push(ChangeGroup::default());
            }
            if let Some(group) = self.groups.get_mut(item.group) {
                group.accesses.extend(self.accesses.get(at).into_iter().flatten().cloned());
            }
        }
    }

    fn refuse_stale(&mut self, stale: &BTreeSet<Vec<u8>>) {
        for path in stale {
            let why = lower_changed_error(&display_path(&self.mount, path));
            self.refuse_at_and_below(path, &why);
        }
    }

    /// A path that cannot be committed takes along what is below it, and everything else of its repository.
    fn refuse_rejected(&mut self, unkeepable: Vec<RejectedPath>, repositories: &HashMap<Vec<u8>, usize>) {
        for one in &unkeepable {
            self.refuse_at_and_below(&one.path, &one.error);
        }
        for one in unkeepable {
            let repository = repository_of(&one.path).and_then(|repository| repositories.get(repository));
            let group = match repository.and_then(|at| self.items.get(*at)) {
                Some(item) => item.group,
                None => {
                    let access =
                        ResourceAccess { action: PolicyAction::Create, resource: resource_at(&self.mount, &one.path) };
                    self.groups.push(ChangeGroup { accesses: vec![access], refusal: None });
                    self.groups.len() - 1
                }
            };
            refuse_group(&mut self.groups, group, one.error.clone());
            self.rejected.push((one, group));
        }
    }

    fn refuse_at_and_below(&mut self, path: &[u8], why: &ToolError) {
        // Items are sorted name by name, so what is in a directory comes right behind it.
        let first = self.items.partition_point(|item| path_components(&item.path).lt(path_components(path)));
        let items = self.items.iter().skip(first).take_while(|item| is_at_or_below(&item.path, path));
        for item in items {
            refuse_group(&mut self.groups, item.group, why.clone());
        }
    }

    /// Refuses what a program did to paths that it saw empty: it cannot have meant what is there.
    pub(super) fn refuse_masked(&mut self) {
        for index in 0..self.items.len() {
            let Some(item) = self.items.get(index) else { continue };
            let goes_whole = item.upper.is_none() || item.changes_kind();
            let Some(masked) = self.masked.affected_by(&item.path, goes_whole) else { continue };
            let name = display_path(&self.mount, masked);
            let message = format!("`{name}` is masked in programs, so changes of it are not kept");
            refuse_group(&mut self.groups, item.group, ToolError::new(ErrorKind::PermissionDenied, message));
        }
    }

    fn refuse_read_only(&mut self) {
        if self.mount.rights == MountAccess::ReadOnly {
            for group in 0..self.groups.len() {
                let error = ToolError::new(ErrorKind::ReadOnly, "the program wrote to a workspace that is read-only");
                refuse_group(&mut self.groups, group, error);
            }
        }
    }

    /// All or nothing.
    pub(super) fn merge_groups(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        let refused = groups.iter().find_map(|group| group.refusal.clone());
        let accesses = groups.into_iter().flat_map(|group| group.accesses).collect();
        self.groups = vec![ChangeGroup { accesses, refusal: refused }];
        self.decisions = vec![ChangeGroupDecision::Ask];
        self.items.iter_mut().for_each(|item| item.group = 0);
        self.rejected.iter_mut().for_each(|(_, group)| *group = 0);
    }

    /// Combines the decisions about the groups.
    pub(super) fn resolve_decisions(&mut self, mut wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        wanted.resize(self.groups.len(), ChangeGroupDecision::Ask);
        self.decisions = wanted;
        let parents = self.parents();
        loop {
            let before = self.decisions.iter().map(ChangeGroupDecision::strictness).map(u64::from).sum::<u64>();
            self.follow_parents(&parents);
            self.drop_empty_directories(&parents);
            self.drop_links_outside();
            if self.decisions.iter().map(ChangeGroupDecision::strictness).map(u64::from).sum::<u64>() == before {
                return self.decisions.clone();
            }
        }
    }

    /// Refuses groups that turned out not to be possible. Returns every group that falls with them.
    pub(super) fn refuse_groups(&mut self, refused: Vec<(usize, ToolError)>) -> Vec<(usize, ToolError)> {
        let before = self.decisions.clone();
        let mut wanted = before.clone();
        for (group, error) in refused {
            if let Some(decision) = wanted.get_mut(group) {
                *decision = decision.clone().or_stricter(&ChangeGroupDecision::Refuse(error));
            }
        }
        let newly = |(group, (before, now)): (usize, (&ChangeGroupDecision, ChangeGroupDecision))| match now {
            ChangeGroupDecision::Refuse(error) if *before == ChangeGroupDecision::Keep => Some((group, error)),
            _ => None,
        };
        let settled = self.resolve_decisions(wanted);
        before.iter().zip(settled).enumerate().filter_map(newly).collect()
    }

    /// Forgets what is not to be kept.
    pub(super) fn drop_refused(&mut self) {
        let decided = &self.decisions;
        self.items.retain(|item| decided.get(item.group) == Some(&ChangeGroupDecision::Keep));
    }

    pub(super) fn needs_approval(&self, item: &OverlayChange) -> bool {
        self.decisions.get(item.group) == Some(&ChangeGroupDecision::Ask)
    }

    /// For each item the item that it cannot be kept without: a new directory that it is in, or one that lets it be
    /// written by its new mode.
    pub(super) fn parents(&self) -> Vec<Option<usize>> {
        let opens = |item: &OverlayChange| {
            let was = item.lower.as_ref().map_or(0, |was| was.stat.mode);
            item.directory_mode().is_some_and(|mode| mode & 0o300 == 0o300 && was & 0o300 != 0o300)
        };
        let is_needed = |item: &OverlayChange| item.is_new_directory() || opens(item);
        // The needed directories that the item is in, the innermost last. A directory comes before what is in it.
        let mut above: Vec<usize> = Vec::new();
        let mut parents = Vec::with_capacity(self.items.len());
        for (at, item) in self.items.iter().enumerate() {
            let is_above = |index: &usize| {
                self.items.get(*index).is_some_and(|directory| is_at_or_below(&item.path, &directory.path))
            };
            while above.last().is_some_and(|index| !is_above(index)) {
                above.pop();
            }
            parents.push(above.last().copied());
            if is_needed(item) {
                above.push(at);
            }
        }
        parents
    }

    fn follow_parents(&mut self, parents: &[Option<usize>]) {
        // A directory comes before what is in it.
        for (at, parent) in parents.iter().enumerate() {
            let Some(above) = parent.and_then(|parent| self.items.get(parent)).map(|item| item.group) else { continue };
            let Some(above) = self.decisions.get(above).cloned() else { continue };
            self.raise_decision(self.items.get(at).map(|item| item.group), &above);
        }
    }

    /// A new directory is kept with the first of the entries that it was made for, or with none where it never had any.
    fn drop_empty_directories(&mut self, parents: &[Option<usize>]) {
        let mut least: HashMap<usize, ChangeGroupDecision> = HashMap::new();
        let index: HashMap<&[u8], usize> =
            self.items.iter().enumerate().map(|(index, item)| (item.path.as_slice(), index)).collect();
        for (one, _) in &self.rejected {
            if let Some(parent) = index.get(split(&one.path).0) {
                least.insert(*parent, ChangeGroupDecision::Refuse(one.error.clone()));
            }
        }
        // Entries of a directory come behind it.
        for at in (0..self.items.len()).rev() {
            let Some(item) = self.items.get(at) else { continue };
            let group = item.group;
            if item.is_new_directory()
                && let Some(least) = least.get(&at).cloned()
            {
                self.raise_decision(Some(group), &least);
            }
            let Some(parent) = parents.get(at).copied().flatten() else { continue };
            let Some(own) = self.decisions.get(group).cloned() else { continue };
            let is_less = |other: &ChangeGroupDecision| own.strictness() < other.strictness();
            if least.get(&parent).is_none_or(is_less) {
                least.insert(parent, own);
            }
        }
    }

    fn drop_links_outside(&mut self) {
        let kept: Vec<&OverlayChange> = self.items.iter().filter(|item| self.may_be_kept(item)).collect();
        let outside = links_outside(&self.mount, &kept);
        let outside: Vec<(usize, ToolError)> = outside.into_iter().map(|(item, error)| (item.group, error)).collect();
        for (group, error) in outside {
            self.raise_decision(Some(group), &ChangeGroupDecision::Refuse(error));
        }
    }

    fn may_be_kept(&self, item: &OverlayChange) -> bool {
        !matches!(self.decisions.get(item.group), Some(ChangeGroupDecision::Refuse(_)))
    }

    fn raise_decision(&mut self, group: Option<usize>, least: &ChangeGroupDecision) {
        if let Some(decision) = group.and_then(|group| self.decisions.get_mut(group)) {
            *decision = decision.clone().or_stricter(least);
        }
    }
}

/// The `.git` that a path is or lies in, whatever case it is spelled in.
pub(super) fn repository_of(path: &[u8]) -> Option<&[u8]> {
    let mut end = 0;
    for name in path.split(|byte| *byte == b'/') {
        end += name.len();
        // However it is spelled, it begins with a dot and is short.
        if name.starts_with(b".") && name.len() <= 16 && fold_name(name).is_some_and(|name| name == ".git") {
            return path.get(..end);
        }
        end += 1;
    }
    None
}

fn path_components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

pub(super) fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn refuse_group(groups: &mut [ChangeGroup], group: usize, why: ToolError) {
    if let Some(group) = groups.get_mut(group) {
        group.refusal.get_or_insert(why);
    }
}

/// Union-find over items.
struct DisjointSets(Vec<usize>);

impl DisjointSets {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn find(&mut self, at: usize) -> usize {
        let mut root = at;
        while let Some(above) = self.0.get(root).copied().filter(|above| *above != root) {
            root = above;
        }
        if let Some(own) = self.0.get_mut(at) {
            *own = root;
        }
        root
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.find(one), self.find(other));
        if let Some(own) = self.0.get_mut(one.max(other)) {
            *own = one.min(other);
        }
    }
}
