//! Undo execution: an undo plan made on disk, all of it or nothing.
//!
//! Only renames are made, to and from the image store, each recorded first, so that recovery rolls them back after a
//! crash. An undo is a change like any other, and can itself be undone.
//!
//! Not here: what has to be done (`plan.rs`), and which changes are meant and who may (`tools/undo.rs`).

use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{Assurance, CallContext, ErrorKind, PolicyAction, Ticket, ToolError};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::journal::effect::JournalEffect;
use crate::journal::images::PreImageStore;
use crate::journal::state::{FileState, FileStateKind};
use crate::journal::{Retention, image_name, not_kept_error};
use crate::lock::TreeLock;
use crate::mount::Mount;
use crate::mount::node_source::FileEntryLocation;
use crate::path::name::escape;
use crate::path::relative::split;
use crate::read::content::read_up_to;
use crate::root::{
    Durability, FileToReplace, check_directory_writable, open_no_follow, open_parent, rename_noreplace,
    reopen_for_listing, stat,
};
use crate::sys::errno::{errno_error, sync_error};
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::names_in;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fstat, fsync, renameat_with};
use crate::txn::directories::TxnDirectories;
use crate::txn::record::{FileIdentity, TxnEntry as Noted, TxnRecord, TxnStep};
use crate::txn::recover::has_unresolved_batch;
use crate::txn::step::{chmod_directory, roll_back};
use crate::undo::preview::UndoPreview;
use crate::undo::tree::{TreeNodeIdentity, changed_error, open_source};

/// Whether a path that is not as the change left it stops the undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UndoForce {
    No,
    /// The current entry is moved to the image store, too.
    Yes,
}

/// A planned undo of one or more changes.
#[derive(Debug)]
pub(crate) struct UndoPlan {
    pub(crate) undoes: Vec<String>,
    pub(crate) effects: Vec<JournalEffect>,
    pub(crate) steps: Vec<UndoStep>,
    pub(crate) scratch_files: Vec<UndoScratchFile>,
    pub(crate) guarded: Vec<GuardedContents>,
    pub(crate) preview: UndoPreview,
    /// Paths that are not as the changes left them.
    pub(crate) conflicts: Vec<UndoConflict>,
}

/// A path that is not as the change left it.
#[derive(Clone, Debug)]
pub(crate) struct UndoConflict {
    pub(crate) path: String,
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// One thing that would be done, as the policy has to know it.
#[derive(Debug)]
pub(crate) struct UndoAction {
    pub(crate) action: PolicyAction,
    /// Below the root.
    pub(crate) path: String,
    /// A directory that it is done to, with all that is in it.
    pub(crate) tree: Option<FileEntryLocation>,
}

/// One rename.
#[derive(Debug)]
pub(crate) struct UndoStep {
    pub(crate) kind: UndoStepKind,
    pub(crate) path: Vec<u8>,
    /// The name in the image store. One that begins with `-` is new, and gets the change in front.
    pub(crate) image: String,
    pub(crate) to: Vec<u8>,
    pub(crate) here: TreeNodeIdentity,
    pub(crate) kept: TreeNodeIdentity,
    /// Required state of the entry that is moved away, checked just before the rename.
    pub(crate) expected: Option<FileState>,
    /// A directory that must have nothing in it.
    pub(crate) empty: bool,
    /// The directories of `path` and `to`, by inode.
    pub(crate) directories: [Option<u64>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UndoStepKind {
    SwapImage,
    StoreImage,
    RestoreImage,
    Move,
    /// A directory gets other permissions.
    Chmod {
        from: u32,
        to: u32,
    },
}

/// A file that has to be made first: the beginning of another one.
#[derive(Debug)]
pub(crate) struct UndoScratchFile {
    pub(crate) from: FileEntryLocation,
    pub(crate) state: FileState,
    pub(crate) image: String,
    pub(crate) shown: String,
}

/// Contents of a guarded file, before and after.
#[derive(Debug)]
pub(crate) struct GuardedContents {
    pub(crate) path: Vec<u8>,
    pub(crate) before: Option<(FileEntryLocation, u64)>,
    pub(crate) after: Option<(FileEntryLocation, u64)>,
}

impl UndoPlan {
    /// The actions of the undo, for the policy and for its preview.
    pub(crate) fn actions(&self) -> Vec<UndoAction> {
        let mut doings = Vec::new();
        for UndoStep { kind, path, image, to, expected: leaving, .. } in &self.steps {
            let is_tree = leaving.as_ref().is_some_and(|state| state.kind == FileStateKind::Directory);
            let here = is_tree.then(|| FileEntryLocation::Disk(path.clone()));
            let mut doing = |action, path: &[u8], tree| doings.push(UndoAction { action, path: escape(path), tree });
            match kind {
                UndoStepKind::SwapImage | UndoStepKind::Chmod { .. } => doing(PolicyAction::Overwrite, path, None),
                UndoStepKind::StoreImage => doing(PolicyAction::Delete, path, here),
                UndoStepKind::RestoreImage => {
                    doing(PolicyAction::Create, path, Some(FileEntryLocation::Image(image.clone(), Vec::new())))
                }
                UndoStepKind::Move => {
                    doing(PolicyAction::Move, path, here.clone());
                    doing(PolicyAction::Create, to, here);
                }
            }
        }
        doings
    }

    /// Whether two plans do the same.
    pub(crate) fn has_same_steps(&self, other: &Self) -> bool {
        self.undoes == other.undoes && self.effects == other.effects
    }

    pub(crate) fn effects(&self) -> &[JournalEffect] {
        &self.effects
    }

    pub(crate) fn undoes(&self) -> &[String] {
        &self.undoes
    }

    /// Whether the entries it displaces fit into the quota, so that the undo can itself be undone.
    pub(crate) fn fits_quota(&self, mount: &Mount, cx: &CallContext<'_>) -> Result<bool, ToolError> {
        let cost =
            self.effects.iter().filter_map(JournalEffect::image).map(|(_, cost)| cost).fold(0, u64::saturating_add);
        Ok(cost == 0 || mount.fits_quota(cost, &self.undoes, cx)?)
    }

    /// The paths of what it displaces.
    pub(crate) fn displaced(&self) -> impl Iterator<Item = &str> {
        self.effects.iter().filter(|effect| effect.image().is_some()).flat_map(JournalEffect::paths)
    }

    /// Every path that it changes, each once.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.effects.iter().flat_map(JournalEffect::paths).map(str::to_owned).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// Fails where it may not be done, whatever is there. Says what would become of what it displaces.
    pub(crate) fn check(&self, mount: &Mount, ticket: &Ticket<'_>) -> Result<Retention, ToolError> {
        self.judge(mount, ticket)?;
        // Some are opened on the way.
        let opened: Vec<&[u8]> =
            self.steps.iter().filter(|planned| planned.makes_writable()).map(|planned| &*planned.path).collect();
        for planned in &self.steps {
            planned.check_directories(mount, &opened)?;
        }
        // Its steps and ours would be about the same files: rolled back later, they would overwrite this undo.
        if has_unresolved_batch(mount) {
            let message = "an earlier change was interrupted and could not be rolled back yet; nothing was undone";
            return Err(ToolError::new(ErrorKind::Conflict, message).hint("check what prevents changes to its files"));
        }
        if self.fits_quota(mount, ticket.context())? {
            Ok(Retention::Keep)
        } else if ticket.may_lose() {
            Ok(Retention::Discard)
        } else {
            Err(not_kept_error())
        }
    }

    /// Executes the plan, and returns the retention of the entries it displaced. The caller holds the exclusive tree
    /// lock.
    pub(crate) fn execute(self, mount: &Mount, tree: &TreeLock, ticket: &Ticket<'_>) -> Result<Retention, ToolError> {
        let Some(journal) = &mount.journal else { return Err(errno_error(Errno::NOENT, "journal")) };
        let displaced = self.check(mount, ticket)?;
        let change = ticket.change_id();
        let keep = journal.create_image_store(mount)?;
        let named = |image: &str| name_image(change, image);
        let spare_entries: Vec<Noted> =
            self.scratch_files.iter().map(|spare| spare.record_entry(&named(&spare.image))).collect();
        let note = TxnRecord::write(&mount.locks, change, &spare_entries)?;
        tree.log_intent(note.id())?;
        let done = self.execute_recorded(mount, &keep, &note, spare_entries, displaced, ticket);
        drop(note);
        tree.clear_intent();
        done.map(|()| displaced)
    }

    fn execute_recorded(
        &self,
        mount: &Mount,
        keep: &PreImageStore,
        note: &TxnRecord<'_>,
        mut entries: Vec<Noted>,
        displaced: Retention,
        ticket: &Ticket<'_>,
    ) -> Result<(), ToolError> {
        let change = ticket.change_id();
        let made = self.create_scratch_files(mount, keep, change, ticket.context());
        let back = |entries: &[Noted]| {
            let directories = TxnDirectories::new(mount);
            let back = entries.iter().rev().map(|entry| roll_back_step(&directories, entry));
            note.delete_if(back.collect::<Vec<_>>().into_iter().all(|one| one));
        };
        let spares = match made {
            Ok(spares) => spares,
            Err(error) => {
                back(&entries);
                return Err(error);
            }
        };
        let first = entries.len();
        entries.extend(self.steps.iter().map(|planned| planned.record_entry(change, &spares)));
        let effects = self.effects.iter().map(|effect| self.name_effect(change, effect, &spares)).collect();
        let entered = note
            .complete(&entries, mount.durability)
            .and_then(|()| mount.begin_change(ticket, self.undoes.clone(), effects))
            .and_then(|entered| ticket.commit().map(|()| entered));
        let entered = match entered {
            Ok(entered) => entered,
            Err(error) => {
                back(&entries[..first]);
                return Err(error);
            }
        };
        for (index, planned) in self.steps.iter().enumerate() {
            let step = &entries[first + index];
            if let Err(error) = planned.perform(mount, keep, step, ticket.context()) {
                back(&entries[..first + index]);
                return Err(error);
            }
        }
        if let Err(error) = note.mark_done() {
            back(&entries);
            return Err(error);
        }
        entered.with_retention(displaced).commit();
        self.sync(mount, keep)
    }

    /// Asks the rules about guarded files, whatever the way that they change.
    fn judge(&self, mount: &Mount, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        let cx = ticket.context();
        let answered = ticket.approval().is_some_and(|approval| approval.assurance == Assurance::Person);
        let by_person = answered || cx.origin().is_some_and(|origin| origin.may_undo);
        for GuardedContents { path, before, after } in &self.guarded {
            let read = |thing: &Option<(FileEntryLocation, u64)>| {
                thing.as_ref().map(|(source, size)| contents(mount, source, *size, cx)).transpose()
            };
            mount.judge(path, read(before)?.as_deref(), read(after)?.as_deref(), by_person)?;
        }
        Ok(())
    }

    fn create_scratch_files(
        &self,
        mount: &Mount,
        keep: &PreImageStore,
        change: &str,
        cx: &CallContext<'_>,
    ) -> Result<Vec<FileIdentity>, ToolError> {
        let mut spares = Vec::new();
        for UndoScratchFile { from, state, image, shown } in &self.scratch_files {
            let fd = open_source(mount, from, shown)?;
            let stamp = FileStat::from_stat(&fstat(&fd).map_err(|errno| errno_error(errno, shown))?);
            let old = FileToReplace { fd, stat: FileStat { mode: state.mode, ..stamp } };
            let made = mount.copy_image(keep, &old, state.size, &name_image(change, image), cx)?;
            if !state.matches(&made) {
                return Err(changed_error(shown));
            }
            let name = name_image(change, image);
            spares.push(FileIdentity::from_state(&made, FileRef { fd: keep.fd(), name: name.as_bytes() }));
        }
        Ok(spares)
    }

    /// An effect for the journal, with what was not known before: names of images, and which file a spare one is.
    fn name_effect(&self, change: &str, effect: &JournalEffect, spares: &[FileIdentity]) -> JournalEffect {
        let mut effect = effect.clone();
        match &mut effect {
            JournalEffect::Removed { image, .. } => *image = name_image(change, image),
            JournalEffect::Replaced { image, after, .. } => {
                let spare = self.scratch_files.iter().position(|spare| spare.image == *image);
                after.inode = spare.and_then(|spare| spares.get(spare)).map_or(after.inode, |spare| spare.inode);
                *image = name_image(change, image);
            }
            JournalEffect::Created { .. }
            | JournalEffect::Moved { .. }
            | JournalEffect::Appended { .. }
            | JournalEffect::Lost { .. }
            | JournalEffect::Mode { .. } => {}
        }
        effect
    }

    fn sync(&self, mount: &Mount, keep: &PreImageStore) -> Result<(), ToolError> {
        if mount.durability != Durability::Full {
            return Ok(());
        }
        let mut parents: Vec<&[u8]> = Vec::new();
        for planned in &self.steps {
            parents.push(split(&planned.path).0);
            parents.push(if planned.kind == UndoStepKind::Move {
                split(&planned.to).0
            } else {
                split(&planned.path).0
            });
        }
        parents.sort_unstable();
        parents.dedup();
        let shown = self.steps.first().map(|planned| escape(&planned.path)).unwrap_or_default();
        fsync(keep.fd()).map_err(|errno| sync_error(errno, &shown))?;
        // One that went itself has nothing that could get lost.
        for parent in parents.into_iter().filter_map(|parent| open_parent(mount, parent)) {
            reopen_for_listing(parent.as_fd()).and_then(fsync).map_err(|errno| sync_error(errno, &shown))?;
        }
        Ok(())
    }
}

impl UndoStep {
    fn record_entry(&self, change: &str, spares: &[FileIdentity]) -> Noted {
        let known = |which| match which {
            TreeNodeIdentity::Existing(known) => known,
            TreeNodeIdentity::Scratch(index) => spares.get(index).copied().unwrap_or_default(),
        };
        let step = match self.kind {
            UndoStepKind::SwapImage => TxnStep::SwapImage { here: known(self.here), kept: known(self.kept) },
            UndoStepKind::StoreImage => TxnStep::StoreImage { here: known(self.here) },
            UndoStepKind::RestoreImage => TxnStep::RestoreImage { kept: known(self.kept) },
            UndoStepKind::Move => TxnStep::Move { here: known(self.here) },
            UndoStepKind::Chmod { from, to } => TxnStep::Chmod { inode: known(self.here).inode, from, to },
        };
        let (parent, name) = split(&self.path);
        Noted {
            step,
            parent: parent.to_vec(),
            directories: self.directories,
            name: name.to_vec(),
            temporary: name_image(change, &self.image).into_bytes(),
            other: self.to.clone(),
        }
    }

    /// Whether it lets things go and come in a directory.
    fn makes_writable(&self) -> bool {
        matches!(self.kind, UndoStepKind::Chmod { to, .. } if to & 0o200 != 0)
    }

    /// Fails at directories that are there already and let nothing go or come, but for those that are `opened` first.
    fn check_directories(&self, mount: &Mount, opened: &[&[u8]]) -> Result<(), ToolError> {
        let own = (!matches!(self.kind, UndoStepKind::Chmod { .. })).then_some(&self.path);
        let to = (self.kind == UndoStepKind::Move).then_some(&self.to);
        for path in own.into_iter().chain(to) {
            if opened.contains(&split(path).0) {
                continue;
            }
            if let Some(parent) = open_no_follow(mount, split(path).0) {
                check_directory_writable(parent.as_fd(), &escape(path))?;
            }
        }
        Ok(())
    }

    /// Does it, or leaves everything as it was and says why.
    fn perform(
        &self,
        mount: &Mount,
        keep: &PreImageStore,
        step: &Noted,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let shown = escape(&self.path);
        let fail = |errno| match errno {
            Errno::EXIST | Errno::NOENT => changed_error(&shown),
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => ToolError::new(
                ErrorKind::Unavailable,
                "this file system cannot exchange two files atomically; nothing was undone",
            ),
            other => errno_error(other, &shown),
        };
        let parent = open_no_follow(mount, &step.parent).ok_or_else(|| changed_error(&shown))?;
        if !matches!(self.kind, UndoStepKind::Chmod { .. }) {
            check_directory_writable(parent.as_fd(), &shown)?;
        }
        let (here, kept) = ((parent.as_fd(), step.name.as_slice()), (keep.fd(), step.temporary.as_slice()));
        self.check_leaving(mount, here, &shown, cx)?;
        match step.step {
            TxnStep::SwapImage { here: old, .. } => {
                let swap = || renameat_with(here.0, here.1, kept.0, kept.1, RenameFlags::EXCHANGE);
                swap().map_err(fail)?;
                if is_at(kept, old) {
                    return Ok(());
                }
                swap().map_err(fail)?;
                Err(changed_error(&shown))
            }
            TxnStep::StoreImage { here: it } => {
                rename_noreplace(here, kept).map_err(fail)?;
                if is_at(kept, it) && (!self.empty || is_empty(mount, kept.0, kept.1)) {
                    return Ok(());
                }
                rename_noreplace(kept, here).map_err(fail)?;
                Err(changed_error(&shown))
            }
            TxnStep::RestoreImage { .. } => rename_noreplace(kept, here).map_err(fail),
            TxnStep::Move { here: it } => {
                let (to, name) = split(&step.other);
                let to = open_no_follow(mount, to).ok_or_else(|| changed_error(&shown))?;
                check_directory_writable(to.as_fd(), &shown)?;
                let there = (to.as_fd(), name);
                rename_noreplace(here, there).map_err(fail)?;
                if is_at(there, it) {
                    return Ok(());
                }
                rename_noreplace(there, here).map_err(fail)?;
                Err(changed_error(&shown))
            }
            TxnStep::Chmod { inode, from, to } => chmod_directory(here, inode, [from, to]).map_err(fail),
            _ => Ok(()),
        }
    }

    /// Checks that the entry is still the one of the plan. The contents of a directory can only be checked now.
    fn check_leaving(
        &self,
        mount: &Mount,
        (parent, name): (BorrowedFd<'_>, &[u8]),
        shown: &str,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let Some(state) = &self.expected else { return Ok(()) };
        let fits = if state.kind == FileStateKind::Directory {
            FileState::read_at(mount, parent, name, state.depth(), cx)?.is_some_and(|now| state.matches(&now))
        } else {
            let now = stat(parent, name)
                .map_err(|errno| errno_error(errno, shown))?
                .map(|stamp| FileState::from_stat(&stamp));
            let known = matches!(self.here, TreeNodeIdentity::Existing(_));
            now.is_some_and(|now| {
                now.size == state.size && (!known || (now.inode == state.inode && now.modified == state.modified))
            })
        };
        if fits { Ok(()) } else { Err(changed_error(shown)) }
    }
}

impl UndoScratchFile {
    fn record_entry(&self, image: &str) -> Noted {
        Noted {
            step: TxnStep::ScratchFile,
            parent: Vec::new(),
            directories: [None; 2],
            name: Vec::new(),
            temporary: image.as_bytes().to_vec(),
            other: Vec::new(),
        }
    }
}

fn contents(mount: &Mount, source: &FileEntryLocation, size: u64, cx: &CallContext<'_>) -> Result<Vec<u8>, ToolError> {
    let most = cx.limits.appended_file_bytes;
    if size > most {
        let message = format!("a guarded file exceeds the {most} bytes that can be checked");
        return Err(ToolError::new(ErrorKind::WriteLimit, message));
    }
    let fd = open_source(mount, source, "a guarded file")?;
    read_up_to(&fd, size, cx).map_err(|errno| errno_error(errno, "a guarded file"))
}

fn is_empty(mount: &Mount, parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    let directory = mount.resolver.open_child(parent, name);
    directory.is_ok_and(|directory| names_in(directory.as_fd(), 2).is_ok_and(|names| names.len() == 2))
}

fn is_at((parent, name): (BorrowedFd<'_>, &[u8]), known: FileIdentity) -> bool {
    FileIdentity::read_at(parent, name).is_ok_and(|found| known.matches(found))
}

/// Takes one step back, wherever its directory is by now. False if it could not be done.
fn roll_back_step(directories: &TxnDirectories<'_>, entry: &Noted) -> bool {
    let parent = directories.open(&entry.parent, entry.directories[0]).ok().flatten();
    parent.is_some_and(|parent| roll_back(directories, parent.as_fd(), entry).is_ok())
}

fn name_image(change: &str, image: &str) -> String {
    match image.strip_prefix('-').and_then(|index| index.parse().ok()) {
        Some(index) => image_name(change, index),
        None => image.to_owned(),
    }
}
