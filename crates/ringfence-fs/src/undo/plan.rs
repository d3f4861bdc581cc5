//! Undo planning: the effects of the changes, from the last to the first.
//!
//! Every path must be as the change left it, every pre-image as it was stored. One that is not is a conflict, and
//! nothing will be done.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::fd::AsFd as _;

use ringfence_kernel::{CallContext, ErrorKind, ToolError};

use crate::journal::FileIdentity;
use crate::journal::JournalEntry;
use crate::journal::effect::JournalEffect;
use crate::journal::images::PreImageStore;
use crate::journal::state::{FileState, FileStateDepth, FileStateKind};
use crate::mount::Mount;
use crate::mount::node_source::FileEntryLocation;
use crate::path::name::{escape, unescape};
use crate::path::relative::{relative_to, split};
use crate::root::symlinks::{PathRelocation, check_links_stay_inside};
use crate::sys::file_ref::FileRef;
use crate::undo::apply::{GuardedContents, UndoConflict, UndoForce, UndoPlan, UndoScratchFile, UndoStep, UndoStepKind};
use crate::undo::preview::UndoPreview;
use crate::undo::removed_objects::used_object_conflicts;
use crate::undo::tree::{TreeEdit, TreeNode, TreeNodeIdentity, VirtualTree};

impl UndoPlan {
    /// Plans the undo of these changes, the newest first. Reads only.
    pub(crate) fn plan(
        mount: &Mount,
        entries: &[JournalEntry],
        force: UndoForce,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        let mut painter = UndoPlanner {
            tree: VirtualTree::new(mount, cx),
            force,
            images: mount.image_store(),
            plan: Self {
                undoes: entries.iter().map(|entry| entry.change.change.clone()).collect(),
                effects: Vec::new(),
                steps: Vec::new(),
                scratch_files: Vec::new(),
                guarded: Vec::new(),
                preview: UndoPreview::default(),
                conflicts: Vec::new(),
            },
        };
        for UndoEffect { change, effect, .. } in coalesce_effects(entries)? {
            cx.check()?;
            painter.undo_effect(change, &effect)?;
        }
        let mut plan = painter.plan;
        if force == UndoForce::No {
            plan.conflicts.extend(used_object_conflicts(mount, &plan.steps, cx));
        }
        Ok(plan)
    }
}

/// An effect that is to be undone.
struct UndoEffect<'a> {
    change: &'a str,
    effect: Cow<'a, JournalEffect>,
    /// Its pre-image went to make room.
    evicted: bool,
}

/// The effects of changes, the last first. Where a version between two of them was evicted, they are one: the path goes
/// from what the later made to what the earlier displaced.
fn coalesce_effects(entries: &[JournalEntry]) -> Result<Vec<UndoEffect<'_>>, ToolError> {
    let effects = entries.iter().flat_map(|entry| entry.change.effects.iter().rev().map(move |effect| (entry, effect)));
    let mut left: VecDeque<UndoEffect<'_>> = effects
        .map(|(entry, effect)| UndoEffect {
            change: &entry.change.change,
            effect: Cow::Borrowed(effect),
            evicted: entry.evicted,
        })
        .collect();
    let mut bridged = Vec::new();
    while let Some(next) = left.pop_front() {
        if !next.evicted || next.effect.image().is_none() {
            bridged.push(next);
            continue;
        }
        let path = next.effect.paths().next().unwrap_or_default();
        let is_related = |other: &str| other == path || is_inside(other, path) || is_inside(path, other);
        let earlier = left.iter_mut().find(|earlier| earlier.effect.paths().any(is_related));
        let joined = earlier.and_then(|earlier| Some((merge_effects(&next.effect, &earlier.effect)?, earlier)));
        let Some((effect, earlier)) = joined else {
            return Err(image_gone_error(next.change, "its pre-image was evicted to free space"));
        };
        match effect {
            Some(effect) => earlier.effect = Cow::Owned(effect),
            // It came and went: there is nothing to be done.
            None => {
                let path = path.to_owned();
                let position = left.iter().position(|earlier| earlier.effect.paths().any(|other| other == path));
                position.and_then(|position| left.remove(position));
            }
        }
    }
    Ok(bridged)
}

fn is_inside(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Two effects on one path as one, where the later displaced what the earlier made. The inner nothing is that they cancel
/// each other out.
fn merge_effects(later: &JournalEffect, earlier: &JournalEffect) -> Option<Option<JournalEffect>> {
    let (path, displaced, now) = match later {
        JournalEffect::Replaced { path, before, after, .. } => (path, before, Some(after)),
        JournalEffect::Removed { path, before, .. } => (path, before, None),
        _ => return None,
    };
    match earlier {
        JournalEffect::Created { path: at, after, .. } if at == path && after.matches(displaced) => {
            Some(now.map(|after| JournalEffect::Created { path: path.clone(), after: after.clone(), image: None }))
        }
        JournalEffect::Replaced { path: at, before, after, image, copied }
            if at == path && after.matches(displaced) =>
        {
            let (path, before, image, copied) = (path.clone(), before.clone(), image.clone(), *copied);
            Some(Some(match now {
                Some(after) => JournalEffect::Replaced { path, before, after: after.clone(), image, copied },
                None => JournalEffect::Removed { path, before, image, copied },
            }))
        }
        _ => None,
    }
}

/// Goes through the changes and paints what the tree would be.
struct UndoPlanner<'a> {
    tree: VirtualTree<'a>,
    force: UndoForce,
    images: Option<PreImageStore>,
    plan: UndoPlan,
}

impl UndoPlanner<'_> {
    fn undo_effect(&mut self, change: &str, effect: &JournalEffect) -> Result<(), ToolError> {
        match effect {
            JournalEffect::Created { path, after, image } => self.remove(path, after, image.as_deref()),
            JournalEffect::Removed { path, before, image, .. } => self.restore(change, path, before, image),
            JournalEffect::Replaced { path, before, after, image, .. } => {
                self.exchange(change, path, [before, after], image)
            }
            JournalEffect::Moved { from, to, state } => self.move_back(from, to, state),
            JournalEffect::Appended { path, before, after } => self.truncate(path, before, after),
            JournalEffect::Lost { path } => {
                Err(image_gone_error(change, &format!("the pre-image of `{path}` was not kept")))
            }
            JournalEffect::Mode { path, inode, before, after } => self.restore_mode(path, *inode, [*before, *after]),
        }
    }

    /// Undoes a creation.
    fn remove(&mut self, shown: &str, after: &FileState, image: Option<&str>) -> Result<(), ToolError> {
        let path = unescape(shown);
        let Some(now) = self.tree.node(&path, after.depth())? else {
            self.conflict_unless_forced(shown, Some(after), None);
            return Ok(());
        };
        // The contents of a directory that this very undo changes can only be compared afterwards.
        let changed_inside = after.depth() == FileStateDepth::Recursive && self.tree.has_edits_below(&path);
        if !changed_inside
            && !after.matches(&now.state)
            && !self.conflict_unless_forced(shown, Some(after), Some(&now.state))
        {
            return Ok(());
        }
        let empty = after.kind == FileStateKind::Directory && after.depth() == FileStateDepth::Shallow;
        if empty && !self.tree.is_empty(&path, &now)? {
            let found = "a directory that is not empty".to_owned();
            let expected = "an empty directory".to_owned();
            self.plan.conflicts.push(UndoConflict { path: shown.to_owned(), expected, found });
            return Ok(());
        }
        self.judge(&path, Some(&now), None)?;
        self.plan.preview.add_change(&path, Some(&now), None);
        let image = image.map_or_else(|| self.new_image(), str::to_owned);
        let state =
            if changed_inside { FileState { inode: now.state.inode, ..after.clone() } } else { now.state.clone() };
        self.push(UndoStep {
            kind: UndoStepKind::StoreImage,
            path: path.clone(),
            image: image.clone(),
            to: Vec::new(),
            here: now.identity,
            kept: TreeNodeIdentity::Existing(FileIdentity::default()),
            expected: Some(state.clone()),
            empty,
            directories: [None; 2],
        })?;
        self.plan.effects.push(JournalEffect::Removed { path: shown.to_owned(), before: state, image, copied: false });
        self.tree.apply(TreeEdit::Set { path, thing: None });
        Ok(())
    }

    /// Undoes a removal.
    fn restore(&mut self, change: &str, shown: &str, before: &FileState, image: &str) -> Result<(), ToolError> {
        let path = unescape(shown);
        let thing = self.load_image(change, before, image)?;
        if let Some(there) = self.tree.node(&path, FileStateDepth::Recursive)? {
            if !self.conflict_unless_forced(shown, None, Some(&there.state)) {
                return Ok(());
            }
            self.remove(shown, &there.state, None)?;
        }
        if !self.has_directory(&path)? {
            return Ok(());
        }
        self.judge(&path, None, Some(&thing))?;
        self.plan.preview.add_change(&path, None, Some(&thing));
        self.push(UndoStep {
            kind: UndoStepKind::RestoreImage,
            path: path.clone(),
            image: image.to_owned(),
            to: Vec::new(),
            here: TreeNodeIdentity::Existing(FileIdentity::default()),
            kept: thing.identity,
            expected: None,
            empty: false,
            directories: [None; 2],
        })?;
        let image = Some(image.to_owned());
        self.plan.effects.push(JournalEffect::Created { path: shown.to_owned(), after: thing.state.clone(), image });
        self.tree.apply(TreeEdit::Set { path, thing: Some(thing) });
        Ok(())
    }

    /// Undoes a replacement.
    fn exchange(
        &mut self,
        change: &str,
        shown: &str,
        [before, after]: [&FileState; 2],
        image: &str,
    ) -> Result<(), ToolError> {
        let path = unescape(shown);
        let Some(now) = self.tree.node(&path, FileStateDepth::Shallow)? else {
            if self.conflict_unless_forced(shown, Some(after), None) {
                return self.restore(change, shown, before, image);
            }
            return Ok(());
        };
        if !after.matches(&now.state) && !self.conflict_unless_forced(shown, Some(after), Some(&now.state)) {
            return Ok(());
        }
        let thing = self.load_image(change, before, image)?;
        self.swap(shown, path, now, thing, image)
    }

    /// Undoes an append.
    fn truncate(&mut self, shown: &str, before: &FileState, after: &FileState) -> Result<(), ToolError> {
        let path = unescape(shown);
        let now = self.tree.node(&path, FileStateDepth::Shallow)?;
        let Some(now) = now.as_ref().filter(|now| after.matches(&now.state) && before.sha256.is_some()) else {
            let found = now.as_ref().map(|now| &now.state);
            self.record_conflict(shown, Some(after), found);
            return Ok(());
        };
        let image = self.new_image();
        let thing = TreeNode {
            identity: TreeNodeIdentity::Scratch(self.plan.scratch_files.len()),
            source: now.source.clone(),
            state: FileState { inode: 0, ..before.clone() },
        };
        self.plan.scratch_files.push(UndoScratchFile {
            from: now.source.clone(),
            state: thing.state.clone(),
            image: image.clone(),
            shown: shown.to_owned(),
        });
        self.swap(shown, path, now.clone(), thing, &image)
    }

    fn swap(
        &mut self,
        shown: &str,
        path: Vec<u8>,
        now: TreeNode,
        thing: TreeNode,
        image: &str,
    ) -> Result<(), ToolError> {
        self.judge(&path, Some(&now), Some(&thing))?;
        self.plan.preview.add_change(&path, Some(&now), Some(&thing));
        self.push(UndoStep {
            kind: UndoStepKind::SwapImage,
            path: path.clone(),
            image: image.to_owned(),
            to: Vec::new(),
            here: now.identity,
            kept: thing.identity,
            expected: Some(now.state.clone()),
            empty: false,
            directories: [None; 2],
        })?;
        self.plan.effects.push(JournalEffect::Replaced {
            path: shown.to_owned(),
            before: now.state,
            after: thing.state.clone(),
            image: image.to_owned(),
            copied: false,
        });
        self.tree.apply(TreeEdit::Set { path, thing: Some(thing) });
        Ok(())
    }

    /// Undoes a move.
    fn move_back(&mut self, from: &str, to: &str, state: &FileState) -> Result<(), ToolError> {
        let (back, here) = (unescape(from), unescape(to));
        let now = self.tree.node(&here, FileStateDepth::Shallow)?;
        let Some(now) = now.filter(|now| state.matches(&now.state)) else {
            let found = self.tree.node(&here, FileStateDepth::Shallow)?;
            self.record_conflict(to, Some(state), found.as_ref().map(|found| &found.state));
            return Ok(());
        };
        if let Some(there) = self.tree.node(&back, FileStateDepth::Recursive)? {
            if !self.conflict_unless_forced(from, None, Some(&there.state)) {
                return Ok(());
            }
            self.remove(from, &there.state, None)?;
        }
        if !self.has_directory(&back)? {
            return Ok(());
        }
        if let Some((parent, name)) = now.source.open_parent(self.tree.mount) {
            let moved = PathRelocation { at: (parent.as_fd(), &name), from: &here, to: &back };
            check_links_stay_inside(self.tree.mount, moved, self.tree.cx)?;
        }
        self.judge(&here, Some(&now), None)?;
        self.judge(&back, None, Some(&now))?;
        self.plan.preview.add_move(&here, &back);
        self.push(UndoStep {
            kind: UndoStepKind::Move,
            path: here.clone(),
            image: String::new(),
            to: back.clone(),
            here: now.identity,
            kept: TreeNodeIdentity::Existing(FileIdentity::default()),
            expected: Some(now.state.clone()),
            empty: false,
            directories: [None; 2],
        })?;
        self.plan.effects.push(JournalEffect::Moved { from: to.to_owned(), to: from.to_owned(), state: now.state });
        self.tree.apply(TreeEdit::Move { from: here, to: back });
        Ok(())
    }

    /// Undoes a change of a directory's permissions.
    fn restore_mode(&mut self, shown: &str, inode: u64, [before, after]: [u32; 2]) -> Result<(), ToolError> {
        let path = unescape(shown);
        let now = self.tree.node(&path, FileStateDepth::Shallow)?;
        let Some(now) = now.filter(|now| now.state.inode == inode && now.state.mode == after) else {
            let found = self.tree.node(&path, FileStateDepth::Shallow)?;
            let expected = format!("a directory of mode {after:o}");
            let found = found.map_or_else(|| "nothing".to_owned(), |found| found.state.describe());
            self.plan.conflicts.push(UndoConflict { path: shown.to_owned(), expected, found });
            return Ok(());
        };
        self.push(UndoStep {
            kind: UndoStepKind::Chmod { from: after, to: before },
            path,
            image: String::new(),
            to: Vec::new(),
            here: now.identity,
            kept: TreeNodeIdentity::Existing(FileIdentity::default()),
            expected: None,
            empty: false,
            directories: [None; 2],
        })?;
        self.plan.effects.push(JournalEffect::Mode { path: shown.to_owned(), inode, before: after, after: before });
        Ok(())
    }

    fn push(&mut self, mut planned: UndoStep) -> Result<(), ToolError> {
        let to = if planned.kind == UndoStepKind::Move { self.tree.directory_of(&planned.to)? } else { None };
        planned.directories = [self.tree.directory_of(&planned.path)?, to];
        self.plan.steps.push(planned);
        Ok(())
    }

    fn new_image(&self) -> String {
        format!("-{}", self.plan.steps.len())
    }

    /// Loads the pre-image of a path, if it is unchanged since it was stored.
    fn load_image(&mut self, change: &str, before: &FileState, image: &str) -> Result<TreeNode, ToolError> {
        let keep = self.images.as_ref().ok_or_else(|| image_gone_error(change, "its pre-image no longer exists"))?;
        let kept = FileState::read_at(self.tree.mount, keep.fd(), image.as_bytes(), before.depth(), self.tree.cx)?;
        let kept = kept.ok_or_else(|| image_gone_error(change, "its pre-image no longer exists"))?;
        if before.matches(&kept) {
            let known = FileIdentity::from_state(&kept, FileRef { fd: keep.fd(), name: image.as_bytes() });
            let source = FileEntryLocation::Image(image.to_owned(), Vec::new());
            return Ok(TreeNode { identity: TreeNodeIdentity::Existing(known), source, state: kept });
        }
        Err(image_gone_error(change, "its pre-image was modified"))
    }

    /// Asks about guarded files only; a directory that has one in it stays where it is.
    fn judge(&mut self, path: &[u8], before: Option<&TreeNode>, after: Option<&TreeNode>) -> Result<(), ToolError> {
        let is_file = |thing: Option<&TreeNode>| thing.is_none_or(|thing| thing.state.kind == FileStateKind::File);
        for guard in &self.tree.mount.guards {
            let inside = relative_to(&guard.path, path);
            if inside == Some(b"") && is_file(before) && is_file(after) {
                let contents = |thing: Option<&TreeNode>| thing.map(|thing| (thing.source.clone(), thing.state.size));
                let (before, after) = (contents(before), contents(after));
                self.plan.guarded.push(GuardedContents { path: path.to_vec(), before, after });
            } else if inside.is_some() {
                let message = format!("`{}` is or contains `{}`, which is guarded", escape(path), escape(&guard.path));
                return Err(ToolError::new(ErrorKind::PermissionDenied, message));
            }
        }
        Ok(())
    }

    /// Notes a conflict. True where the undo goes on all the same.
    fn conflict_unless_forced(&mut self, path: &str, expected: Option<&FileState>, found: Option<&FileState>) -> bool {
        if self.force == UndoForce::No {
            self.record_conflict(path, expected, found);
        }
        self.force == UndoForce::Yes
    }

    fn record_conflict(&mut self, path: &str, expected: Option<&FileState>, found: Option<&FileState>) {
        let described = |state: Option<&FileState>| state.map_or_else(|| "nothing".to_owned(), FileState::describe);
        let (expected, found) = (described(expected), described(found));
        self.plan.conflicts.push(UndoConflict { path: path.to_owned(), expected, found });
    }

    /// Whether the directory of a path would be there; a conflict if not.
    fn has_directory(&mut self, path: &[u8]) -> Result<bool, ToolError> {
        let (parent, _) = split(path);
        if parent.is_empty() {
            return Ok(true);
        }
        let found = self.tree.node(parent, FileStateDepth::Shallow)?;
        let there = found.as_ref().is_some_and(|found| found.state.kind == FileStateKind::Directory);
        if !there {
            let described = found.map_or_else(|| "nothing".to_owned(), |found| found.state.describe());
            let expected = "a directory".to_owned();
            self.plan.conflicts.push(UndoConflict { path: escape(parent), expected, found: described });
        }
        Ok(there)
    }
}

fn image_gone_error(change: &str, why: &str) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("the change `{change}` can no longer be undone: {why}"))
}
