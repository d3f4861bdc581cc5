//! Undo execution: an undo plan made on disk, all of it or nothing.
//!
//! Its steps are those of any transaction, to and from the image store (`txn/run.rs`). An undo is a change like any other, and can itself be undone.
//!
//! Not here: what has to be done (`plan.rs`), and which changes are meant and who may (`tools/undo.rs`).

use std::os::fd::AsFd as _;

use ringfence_kernel::{Assurance, CallContext, ErrorKind, PolicyAction, Ticket, ToolError};
use rustix::io::Errno;

use crate::journal::effect::JournalEffect;
use crate::journal::images::PreImageStore;
use crate::journal::state::{FileState, FileStateKind};
use crate::journal::{
    EscapedPath, FileIdentity, Retention, StagingName, TxnEntry, TxnStep, image_name, not_kept_error,
};
use crate::lock::HeldLock;
use crate::mount::Mount;
use crate::mount::node_source::FileEntryLocation;
use crate::path::name::escape;
use crate::path::relative::split;
use crate::read::content::read_up_to;
use crate::root::{FileToReplace, check_directory_writable, open_no_follow};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::FileStat;
use crate::sys::syscall::fstat;
use crate::txn::run::{PlannedStep, Transaction};
use crate::txn::step::StepError;
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
    pub(crate) fn execute(self, mount: &Mount, tree: &HeldLock, ticket: &Ticket<'_>) -> Result<Retention, ToolError> {
        let Some(journal) = mount.undo_journal() else { return Err(errno_error(Errno::NOENT, "journal")) };
        let retention = self.check(mount, ticket)?;
        let change = ticket.change_id();
        let keep = journal.create_image_store(mount)?;
        if !self.scratch_files.is_empty() {
            mount.reserve(ticket)?;
        }
        let scratch = match self.create_scratch_files(mount, &keep, change, ticket.context()) {
            Ok(scratch) => scratch,
            Err(error) => {
                mount.delete_images_of(change);
                mount.void_reservation(ticket);
                return Err(error);
            }
        };
        let transaction = Transaction {
            steps: self.steps.iter().map(|planned| planned.to_step(change, &scratch)).collect(),
            effects: self.effects.iter().map(|effect| self.name_effect(change, effect, &scratch)).collect(),
            undoes: self.undoes.clone(),
            retention,
            is_reserved: !self.scratch_files.is_empty(),
        };
        transaction.run(mount, &[tree], ticket, &|planned, error| match error {
            StepError::Changed { .. } => changed_error(&planned.shown),
            StepError::NoExchange => ToolError::new(
                ErrorKind::Unavailable,
                "this file system cannot exchange two files atomically; nothing was undone",
            ),
            StepError::System(errno) => errno_error(errno, &planned.shown),
            StepError::Tool(error) => error,
        })?;
        Ok(retention)
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
}

impl UndoStep {
    /// The step of the transaction, with the names of images and the scratch files that are known by now.
    fn to_step(&self, change: &str, scratch: &[FileIdentity]) -> PlannedStep<'static> {
        let known = |which| match which {
            TreeNodeIdentity::Existing(known) => known,
            TreeNodeIdentity::Scratch(index) => scratch.get(index).copied().unwrap_or_default(),
        };
        let (here, kept) = (known(self.here), known(self.kept));
        let fresh = matches!(self.kept, TreeNodeIdentity::Scratch(_));
        let staging = StagingName::Store(name_image(change, &self.image));
        let exchange = |old, new| TxnStep::Exchange { old, new, staging, fresh, discard: false };
        let step = match self.kind {
            UndoStepKind::SwapImage => exchange(Some(here), Some(kept)),
            UndoStepKind::StoreImage => exchange(Some(here), None),
            UndoStepKind::RestoreImage => exchange(None, Some(kept)),
            UndoStepKind::Move => TxnStep::Move {
                entry: here,
                to: EscapedPath(self.to.clone()),
                to_directory: self.directories[1],
                over: None,
                image: None,
            },
            UndoStepKind::Chmod { from, to } => TxnStep::Chmod { inode: here.inode, from, to },
        };
        let (parent, name) = split(&self.path);
        let entry = TxnEntry { step, parent: parent.into(), directory: self.directories[0], name: name.into() };
        PlannedStep {
            expected: self.expected.clone().map(|state| match self.here {
                TreeNodeIdentity::Existing(_) => state,
                // A scratch file is another one with the same contents.
                TreeNodeIdentity::Scratch(_) => FileState { inode: 0, ..state },
            }),
            must_be_empty: self.empty,
            ..PlannedStep::new(entry, None, &escape(&self.path))
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

fn name_image(change: &str, image: &str) -> String {
    match image.strip_prefix('-').and_then(|index| index.parse().ok()) {
        Some(index) => image_name(change, index),
        None => image.to_owned(),
    }
}
