//! Overlay commit: a program's changes become the workspace's, all or nothing.
//!
//! Everything new is staged in the image store first and synced. Then it is one transaction, and is undone like any
//! other change.
//!
//! Not here: what changed (`compare.rs`), and making the steps (`txn/run.rs`).

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::{Assurance, CallContext, ErrorKind, IoMode, Ticket, ToolError};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::journal::{
    FileIdentity, FileState, FileStateDepth, JournalEffect, PreImageStore, StagingName, TxnEntry, TxnStep, cost,
    image_name, not_kept_error,
};
use crate::lock::TreeLockMode;
use crate::mount::Mount;
use crate::overlay::ChangeSet;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path, resource_at};
use crate::overlay::stage::{OverlayStager, StagedOverlayEntry};
use crate::path::name::{escape, fold_name};
use crate::path::relative::split;
use crate::read::content::{hash_up_to, read_up_to};
use crate::root::{FileToReplace, MountAccess, check_directory_writable, stat};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::fstat;
use crate::txn::manifest::{EntryReportReasons, scan_tree};
use crate::txn::recover::recover_under;
use crate::txn::run::{PlannedStep, Transaction, interrupted_error, open_directory};
use crate::txn::step::StepError;
use crate::txn::write::id_of;

/// Makes everything that is to be kept of what a program left, or nothing.
pub(super) fn commit(mut left: ChangeSet, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mount = &*Arc::clone(&left.mount);
    left.drop_refused();
    if left.items.is_empty() {
        return Ok(());
    }
    if mount.rights == MountAccess::ReadOnly {
        return Err(ToolError::new(ErrorKind::ReadOnly, "the workspace is read-only; nothing was changed"));
    }
    let Some(journal) = mount.undo_journal() else {
        let message = "without a journal, a program's changes cannot be committed; nothing was changed";
        return Err(ToolError::new(ErrorKind::Unavailable, message));
    };
    if ticket.change_id().is_empty() {
        return Err(ToolError::new(ErrorKind::Internal, "a call that changes nothing cannot commit changes"));
    }
    mount.check_in_place(IoMode::Blocking)?;
    // Excludes every other writer of this program.
    let tree = mount.locks.lock_tree(TreeLockMode::Exclusive, ticket.context())?;
    if !recover_under(mount, &tree)? {
        return Err(interrupted_error("changed"));
    }
    withhold_stale(&mut left, ticket)?;
    if left.items.is_empty() {
        return Ok(());
    }
    check_guards(&left, ticket)?;
    let keep = journal.create_image_store(mount)?;
    mount.reserve(ticket)?;
    let transaction = match prepare_present(&mut left, &keep, ticket) {
        Ok(transaction) => Transaction { is_reserved: true, ..transaction },
        Err(error) => {
            // Nothing was published yet: every image with one of these names was made here.
            mount.delete_images_of(ticket.change_id());
            mount.void_reservation(ticket);
            return Err(error);
        }
    };
    let left = &left;
    transaction.run(mount, &[&tree], ticket, &|planned, error| match error {
        StepError::Changed { .. } => concurrent_change_error(&planned.shown),
        StepError::NoExchange => {
            let message =
                "this file system cannot exchange two files atomically, so a program's changes cannot be committed";
            ToolError::new(ErrorKind::Unavailable, message)
        }
        StepError::System(errno) => errno_error(errno, &planned.shown),
        StepError::Tool(error) => error,
    })?;
    record_sensitivity(left, &mut ParentCache::new(mount));
    Ok(())
}

/// Most times that a change is prepared again because its program removed something meanwhile.
const MOST_ROUNDS: usize = 4;

/// The same as `prepare`, without what a program that still runs removed meanwhile. The workspace has no entry of that name, so
/// the program left nothing that would hide one.
fn prepare_present(
    left: &mut ChangeSet,
    keep: &PreImageStore,
    ticket: &Ticket<'_>,
) -> Result<Transaction<'static>, ToolError> {
    for _ in 0..MOST_ROUNDS {
        let transaction = prepare(left, keep, ticket)?;
        let removed = left.removed_since();
        if removed.is_empty() {
            return Ok(transaction);
        }
        left.mount.delete_images_of(ticket.change_id());
        for (group, error) in left.refuse_groups(removed) {
            ticket.withhold(group, error);
        }
        left.drop_refused();
        if left.items.is_empty() {
            break;
        }
    }
    let message = "the program removed meanwhile what it had written; nothing was changed";
    Err(ToolError::new(ErrorKind::Conflict, message).hint("try again"))
}

/// A new directory that gets its mode once it is published.
struct DeferredChmod {
    path: Vec<u8>,
    inode: u64,
    modes: [u32; 2],
}

/// Stages everything new in the image store, and returns the steps.
fn prepare(left: &ChangeSet, keep: &PreImageStore, ticket: &Ticket<'_>) -> Result<Transaction<'static>, ToolError> {
    let (mount, cx) = (&*left.mount, ticket.context());
    let bytes = left.items.iter().map(OverlayChange::displaced_bytes).fold(0u64, u64::saturating_add);
    let kept = mount.fits_quota(bytes, &[], cx)?;
    if !kept && !ticket.may_lose() {
        return Err(not_kept_error());
    }
    let stage = OverlayStager::new(mount, keep, left, cx)?;
    let mut planner = OverlayCommitPlanner {
        mount,
        images_dir: keep,
        stage,
        ticket,
        keeps_displaced: kept,
        images: 0,
        writable_directories: HashSet::new(),
        parents: ParentCache::new(mount),
        plan: Transaction::default(),
    };
    let tops: Vec<(&OverlayChange, &[OverlayChange])> = top_level_changes(&left.items).collect();
    let opens = |mode: u32| mode & 0o300 == 0o300;
    // Directories that become writable are changed first, and those that become read-only last.
    for (item, _) in &tops {
        if let Some(mode) = item.directory_mode().filter(|mode| opens(*mode)) {
            planner.plan_chmod(item, mode)?;
            planner.writable_directories.insert(item.path.clone());
        }
    }
    for (item, _) in tops.iter().filter(|(item, _)| item.upper.is_none() || item.changes_kind()) {
        planner.plan_removal(item)?;
    }
    let mut later = Vec::new();
    for (item, inside) in tops.iter().filter(|(item, _)| item.upper.is_some() && item.directory_mode().is_none()) {
        later.extend(planner.plan_publish(item, inside)?);
    }
    for (item, _) in &tops {
        if let Some(mode) = item.directory_mode().filter(|mode| !opens(*mode)) {
            planner.plan_chmod(item, mode)?;
        }
    }
    for DeferredChmod { path, inode, modes } in later {
        planner.push_mode(&path, inode, modes);
    }
    planner.stage.sync()?;
    Ok(planner.plan)
}

/// Items that have a step of their own, each with those that come with it.
fn top_level_changes(items: &[OverlayChange]) -> impl Iterator<Item = (&OverlayChange, &[OverlayChange])> {
    items.iter().enumerate().filter(|(_, item)| !item.in_new_directory).map(|(index, item)| {
        let rest = &items[index + 1..];
        let inside = rest.iter().take_while(|next| next.in_new_directory).count();
        (item, &rest[..inside])
    })
}

struct OverlayCommitPlanner<'a> {
    mount: &'a Mount,
    images_dir: &'a PreImageStore,
    stage: OverlayStager<'a>,
    ticket: &'a Ticket<'a>,
    /// Whether what is displaced is kept.
    keeps_displaced: bool,
    /// Number of names taken in the image store.
    images: usize,
    /// Directories that can be written to when their turn comes.
    writable_directories: HashSet<Vec<u8>>,
    parents: ParentCache<'a>,
    plan: Transaction<'static>,
}

impl OverlayCommitPlanner<'_> {
    /// A new name in the image store.
    fn image(&mut self) -> String {
        self.images += 1;
        image_name(self.ticket.change_id(), self.images - 1)
    }

    fn check_writable(&mut self, path: &[u8], shown: &str) -> Result<(), ToolError> {
        if self.writable_directories.contains(split(path).0) {
            return Ok(());
        }
        check_directory_writable(self.parents.open(path)?, shown)
    }

    fn push(&mut self, path: &[u8], step: TxnStep, displaced: Option<FileState>) {
        let (parent, name) = split(path);
        let directory = self.parents.open(path).ok().and_then(id_of).map(|id| id.inode);
        let entry = TxnEntry { step, parent: parent.into(), directory, name: name.into() };
        let planned = PlannedStep::new(entry, None, &display_path(self.mount, path));
        self.plan.steps.push(PlannedStep { displaced, ..planned });
    }

    fn plan_chmod(&mut self, item: &OverlayChange, mode: u32) -> Result<(), ToolError> {
        let name = display_path(self.mount, &item.path);
        let was = item.lower.as_ref().ok_or_else(|| concurrent_change_error(&name))?.stat;
        // Mode bits that a program cannot see stay.
        self.push_mode(&item.path, was.id.inode, [was.mode, was.mode & 0o7000 | mode]);
        Ok(())
    }

    fn push_mode(&mut self, path: &[u8], inode: u64, [from, to]: [u32; 2]) {
        self.push(path, TxnStep::Chmod { inode, from, to }, None);
        self.plan.effects.push(JournalEffect::Mode { path: escape(path), inode, before: from, after: to });
    }

    fn plan_removal(&mut self, item: &OverlayChange) -> Result<(), ToolError> {
        let name = display_path(self.mount, &item.path);
        let cx = self.ticket.context();
        let was = item.lower.as_ref().ok_or_else(|| concurrent_change_error(&name))?.stat;
        self.check_writable(&item.path, &name)?;
        let parent = self.parents.open(&item.path)?;
        let state = FileState::read_at(self.mount, parent, split(&item.path).1, FileStateDepth::Recursive, cx)?;
        let state = state.filter(|state| state.inode == was.id.inode).ok_or_else(|| concurrent_change_error(&name))?;
        let old = FileIdentity::from_state(&state, FileRef { fd: parent, name: split(&item.path).1 });
        let image = self.image();
        let tree = (was.kind == FileKind::Directory).then(|| state.clone());
        let (staging, discard) = (StagingName::Store(image.clone()), !self.keeps_displaced);
        self.push(&item.path, TxnStep::Exchange { old: Some(old), new: None, staging, fresh: false, discard }, tree);
        let path = escape(&item.path);
        self.plan.effects.push(match self.keeps_displaced {
            true => JournalEffect::Removed { path, before: state, image, copied: false },
            false => JournalEffect::Lost { path },
        });
        Ok(())
    }

    /// Stages a new entry and plans its publication. Returns the mode that a directory gets later.
    fn plan_publish(
        &mut self,
        item: &OverlayChange,
        inside: &[OverlayChange],
    ) -> Result<Option<DeferredChmod>, ToolError> {
        let name = display_path(self.mount, &item.path);
        self.check_writable(&item.path, &name)?;
        let was = item.lower.as_ref().filter(|_| !item.changes_kind()).map(|was| was.stat);
        let old = was.map(|was| self.open_current(item, &was)).transpose()?.flatten();
        let image = self.image();
        let above = fstat(self.parents.open(&item.path)?).map_err(|errno| errno_error(errno, &name))?;
        let staged = self
            .stage
            .make(&image, (item, inside), &FileStat::from_stat(&above), old.as_ref())?
            .ok_or_else(|| concurrent_change_error(&name))?;
        let new = Some(FileIdentity::at(FileRef { fd: self.images_dir.fd(), name: image.as_bytes() }, &staged.stat));
        let (path, staging) = (escape(&item.path), StagingName::Store(image.clone()));
        let Some(was) = was else {
            let step = TxnStep::Exchange { old: None, new, staging, fresh: true, discard: false };
            self.push(&item.path, step, None);
            let StagedOverlayEntry { stat: stamp, state, final_mode: later } = staged;
            self.plan.effects.push(JournalEffect::Created { path, after: state, image: Some(image) });
            let closing =
                |mode| DeferredChmod { path: item.path.clone(), inode: stamp.id.inode, modes: [stamp.mode, mode] };
            return Ok(later.map(closing));
        };
        let (effect, discard) = self.displacement_effect(item, &was, old.as_ref(), &image, staged.state)?;
        let old = Some(FileIdentity::from_stat(&was));
        self.push(&item.path, TxnStep::Exchange { old, new, staging, fresh: true, discard }, None);
        self.plan.effects.push(effect);
        Ok(None)
    }

    /// The effect of displacing a file or link, and whether it is deleted permanently.
    fn displacement_effect(
        &mut self,
        item: &OverlayChange,
        was: &FileStat,
        old: Option<&FileToReplace>,
        image: &str,
        after: FileState,
    ) -> Result<(JournalEffect, bool), ToolError> {
        let (path, name) = (escape(&item.path), display_path(self.mount, &item.path));
        let cx = self.ticket.context();
        if !self.keeps_displaced {
            return Ok((JournalEffect::Lost { path }, true));
        }
        if let Some(old) = old.filter(|_| was.links > 1) {
            // A writer by another hard link would change the pre-image.
            let copy = self.image();
            let before = self.mount.copy_image(self.images_dir, old, was.size, &copy, cx)?;
            return Ok((JournalEffect::Replaced { path, before, after, image: copy, copied: true }, true));
        }
        let before = FileState::read_at(
            self.mount,
            self.parents.open(&item.path)?,
            split(&item.path).1,
            FileStateDepth::Recursive,
            cx,
        )?;
        let before =
            before.filter(|state| state.inode == was.id.inode).ok_or_else(|| concurrent_change_error(&name))?;
        Ok((JournalEffect::Replaced { path, before, after, image: image.to_owned(), copied: false }, false))
    }

    /// The file that is to be replaced. Nothing for a link, and for what may not be read.
    fn open_current(&mut self, item: &OverlayChange, was: &FileStat) -> Result<Option<FileToReplace>, ToolError> {
        let name = display_path(self.mount, &item.path);
        if was.kind != FileKind::File {
            return Ok(None);
        }
        // Whether it may be written is not asked: the program gave its name to another one, and had the right to.
        let fd = match self.mount.open_at(self.parents.open(&item.path)?, split(&item.path).1, OFlags::RDONLY) {
            Err(Errno::ACCESS) => return Ok(None),
            opened => opened.map_err(|errno| errno_error(errno, &name))?,
        };
        let stamp = FileStat::from_stat(&fstat(&fd).map_err(|errno| errno_error(errno, &name))?);
        if stamp == *was { Ok(Some(FileToReplace { fd, stat: stamp })) } else { Err(concurrent_change_error(&name)) }
    }
}

impl OverlayChange {
    /// Size of the pre-images, as the quota counts it.
    pub(super) fn displaced_bytes(&self) -> u64 {
        match (&self.lower, self.directory_mode()) {
            (Some(was), None) => {
                was.tree.as_ref().map_or_else(|| cost(was.stat.size, 0), |tree| cost(tree.bytes, tree.entries))
            }
            _ => 0,
        }
    }
}

/// Directories of the workspace, the last one held.
struct ParentCache<'a> {
    mount: &'a Mount,
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl<'a> ParentCache<'a> {
    fn new(mount: &'a Mount) -> Self {
        Self { mount, last: None }
    }

    /// The directory of a path, reached through no link.
    fn open(&mut self, path: &[u8]) -> Result<std::os::fd::BorrowedFd<'_>, ToolError> {
        let (above, _) = split(path);
        let gone = || concurrent_change_error(&display_path(self.mount, path));
        if self.last.as_ref().is_none_or(|(last, _)| last != above) {
            // An error does not mean that it is not there.
            let opened = open_directory(self.mount, above).map_err(|error| match error {
                StepError::System(errno) => errno_error(errno, &display_path(self.mount, path)),
                _ => gone(),
            })?;
            self.last = Some((above.to_vec(), opened));
        }
        self.last.as_ref().map(|(_, fd)| fd.as_fd()).ok_or_else(gone)
    }
}

/// New contents are another file: it is as sensitive as the one before.
fn record_sensitivity(left: &ChangeSet, parents: &mut ParentCache<'_>) {
    let named = |item: &&OverlayChange| !item.is_data && matches!(item.upper, Some(OverlayUpperState::File { .. }));
    for item in left.items.iter().filter(named) {
        let was = item.lower.as_ref().map(|was| was.sensitivity).unwrap_or_default();
        let known = resource_at(&left.mount, &item.path).effective_sensitivity().union(was);
        if !known.is_any() {
            continue;
        }
        let (_, name) = split(&item.path);
        if let Ok(parent) = parents.open(&item.path)
            && let Ok(Some(stamp)) = stat(parent, name)
        {
            left.mount.classify(known, FileRef { fd: parent, name }, &stamp);
        }
    }
}

/// Every path must be as it was when the program started, and when it was looked at. A group with another one is withheld.
fn withhold_stale(left: &mut ChangeSet, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mount = Arc::clone(&left.mount);
    let mut parents = ParentCache::new(&mount);
    let mut stale: Vec<(usize, ToolError)> = Vec::new();
    for (item, _) in top_level_changes(&left.items) {
        ticket.context().check()?;
        if !is_unchanged(left, item, &mut parents, ticket.context())? {
            stale.push((item.group, lower_changed_error(&display_path(&mount, &item.path))));
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    for (group, error) in left.refuse_groups(stale) {
        ticket.withhold(group, error);
    }
    left.drop_refused();
    Ok(())
}

/// The error for a path that another process changed since the program started.
pub(super) fn lower_changed_error(shown: &str) -> ToolError {
    let message = format!("`{shown}` changed in the workspace since the program started");
    ToolError::new(ErrorKind::Conflict, message).hint("run it again")
}

fn is_unchanged(
    left: &ChangeSet,
    item: &OverlayChange,
    parents: &mut ParentCache<'_>,
    cx: &CallContext<'_>,
) -> Result<bool, ToolError> {
    let mount = &*left.mount;
    let (_, name) = split(&item.path);
    let name_shown = display_path(mount, &item.path);
    let parent = match parents.open(&item.path) {
        Err(error) if error.kind == ErrorKind::Conflict => return Ok(false),
        parent => parent?,
    };
    let now = stat(parent, name).map_err(|errno| errno_error(errno, &name_shown))?;
    let (was, now) = match (&item.lower, now) {
        (None, None) => return Ok(true),
        (Some(was), Some(now)) => (was, now),
        _ => return Ok(false),
    };
    if item.directory_mode().is_some() {
        return Ok(was.stat.id == now.id && was.stat.mode == now.mode);
    }
    if was.stat != now {
        return Ok(false);
    }
    if let Some(tree) = &was.tree {
        let start = mount.resolver.open_child(parent, name).map_err(|errno| errno_error(errno, &name_shown))?;
        return Ok(scan_tree(mount, start, &name_shown, |_| EntryReportReasons::default(), cx)?.digest == tree.digest);
    }
    let Some(seen) = left.previewed.get(&item.path) else { return Ok(true) };
    let fd = mount.open_at(parent, name, OFlags::RDONLY).map_err(|errno| errno_error(errno, &name_shown))?;
    Ok(hash_up_to(fd.as_fd(), now.size, &name_shown, cx)? == *seen)
}

/// Applies the rules about the contents of single files.
fn check_guards(left: &ChangeSet, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mount = &*left.mount;
    for guard in &mount.guards {
        for item in &left.items {
            let inside = |path: &[u8], above: &[u8]| {
                path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            };
            let alike = |path: &[u8]| fold_name(path).unwrap_or_default();
            let name = display_path(mount, &item.path);
            let refuse = |how: &str| {
                let message =
                    format!("`{name}` {how} `{}`, which is guarded; nothing was changed", escape(&guard.path));
                Err(ToolError::new(ErrorKind::PermissionDenied, message))
            };
            if item.path == guard.path {
                judge(left, item, ticket)?;
            } else if inside(alike(&item.path).as_bytes(), alike(&guard.path).as_bytes()) {
                return refuse("is too similar to, or is inside,");
            } else if inside(&guard.path, &item.path) && item.lower.is_some() && item.directory_mode().is_none() {
                return refuse("is or contains");
            }
        }
    }
    Ok(())
}

fn judge(left: &ChangeSet, item: &OverlayChange, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let (mount, cx) = (&*left.mount, ticket.context());
    let name = display_path(mount, &item.path);
    let most = cx.limits.appended_file_bytes;
    let read = |fd: OwnedFd, stamp: &FileStat| {
        if stamp.kind != FileKind::File || stamp.size > most {
            let message = format!("`{name}` is guarded, and only a file of up to {most} bytes can be checked");
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        read_up_to(&fd, stamp.size, cx).map_err(|errno| errno_error(errno, &name))
    };
    let before = match &item.lower {
        Some(was) => {
            let mut parents = ParentCache::new(mount);
            let parent = parents.open(&item.path)?;
            let fd = mount.open_at(parent, split(&item.path).1, OFlags::RDONLY);
            Some(read(fd.map_err(|errno| errno_error(errno, &name))?, &was.stat)?)
        }
        None => None,
    };
    let after = match &item.upper {
        Some(OverlayUpperState::File { seen, .. }) => match left.partial.get(&item.path) {
            Some(partial) => Some(partial.contents.clone()),
            None => Some(read(left.open(item, seen)?, seen)?),
        },
        Some(_) => {
            let message = format!("`{name}` is guarded and must be a file; nothing was changed");
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        None => None,
    };
    let by_person = ticket.approval().is_some_and(|approval| approval.assurance == Assurance::Person);
    mount.judge(&item.path, before.as_deref(), after.as_deref(), by_person)
}

fn concurrent_change_error(shown: &str) -> ToolError {
    let message = format!("`{shown}` was changed concurrently by another program; nothing was changed");
    ToolError::new(ErrorKind::Conflict, message)
}
