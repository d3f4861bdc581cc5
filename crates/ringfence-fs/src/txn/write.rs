//! File writes: new contents for one name or several, all or nothing.
//!
//! The new file is staged without a name, and takes the target's name in one step that also shows what it displaced. If
//! that is not the file that was seen, the change is a conflict. Whatever happens, the name has the old contents or the
//! new, never a part of either.
//!
//! Not here: where the contents come from. Each tool makes its own.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallContext, ErrorKind, Ticket, ToolError};
use rustix::fs::{Access, AtFlags, OFlags};
use rustix::io::Errno;

use crate::journal::{
    DisplacedFileAction, DisplacementPosition, EscapedPath, FileIdentity, FileState, FileStateKind, JournalEffect,
    StagingName, TxnEntry, TxnStep,
};
use crate::lock::{HeldLock, TreeLockMode};
use crate::mount::Mount;
use crate::mount::change::delete_images;
use crate::mount::write_target::WriteTarget;
use crate::path::name::escape;
use crate::path::relative::{join, split};
use crate::read::content::read_up_to;
use crate::read::digest::Digest;
use crate::root::resolver::PATH_ONLY;
use crate::root::{Durability, FileToReplace, StagingMode, check_directory_writable};
use crate::sys::errno::{errno_error, wrong_type};
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::{accessat, fstat};
use crate::txn::recover::recover;
use crate::txn::run::{PlannedStep, Transaction};
use crate::txn::stage::{FileBody, StagedContents, StagedFile, temporary_name};
use crate::txn::step::StepError;

/// A file that is to be changed, and what the plan found there.
#[derive(Debug)]
pub(crate) struct BatchTarget {
    pub(crate) target: WriteTarget,
    pub(crate) planned_stat: Option<FileStat>,
}

/// New contents of a target.
#[derive(Debug)]
pub(crate) enum DesiredContents {
    Contents(FileBody),
    Absent,
}

impl DesiredContents {
    /// The result where the file has these contents already.
    fn unchanged_result(&self, old: Option<&FileToReplace>, cx: &CallContext<'_>) -> Option<WriteResult> {
        let (Self::Contents(FileBody::Bytes(bytes)), Some(old)) = (self, old) else { return None };
        let size = old.stat.size;
        // One that cannot be read may have anything in it.
        let same = bytes.len() as u64 == size && read_up_to(&old.fd, size + 1, cx).is_ok_and(|there| there == *bytes);
        same.then(|| WriteResult::no_change(size, Some(Digest::of(bytes))))
    }

    /// Size of the new contents in bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Contents(FileBody::Bytes(bytes) | FileBody::MovedBytes { bytes, .. }) => bytes.len() as u64,
            Self::Contents(FileBody::File { .. }) | Self::Absent => 0,
        }
    }
}

/// The result of a change.
#[derive(Debug)]
pub(crate) struct WriteResult {
    /// The file had these contents already, and nothing was done.
    pub(crate) unchanged: bool,
    pub(crate) size: u64,
    pub(crate) digest: Option<Digest>,
    pub(crate) created: bool,
    /// Other names that had the old contents and still have.
    pub(crate) links_broken: u64,
    /// A name beside a new one that other systems would not tell from it.
    pub(crate) collides_with: Option<String>,
}

impl WriteResult {
    /// Nothing was done to a file that was there.
    pub(crate) fn no_change(size: u64, digest: Option<Digest>) -> Self {
        Self { unchanged: true, size, digest, created: false, links_broken: 0, collides_with: None }
    }
}

/// Gives a target new contents. `seen` is what the plan found there; `make` is called with what is there now,
/// under the lock, and says what shall be there instead.
pub(crate) fn replace(
    target: &WriteTarget,
    seen: Option<FileStat>,
    ticket: &Ticket<'_>,
    make: impl FnOnce(Option<&FileToReplace>) -> Result<FileBody, ToolError>,
) -> Result<WriteResult, ToolError> {
    let cx = ticket.context();
    let tree = target.lock_directory(TreeLockMode::Shared, cx)?;
    let site = WriteSite::find(target)?;
    let (lock, old) = lock_and_open(&site, cx)?;
    // Directories are created with the file, under the exclusive tree lock.
    let held = if site.lacks_parents() { &tree } else { &lock };
    let mut make = Some(make);
    let contents = |_: usize, old: Option<&FileToReplace>| {
        let make = make.take().ok_or_else(|| errno_error(Errno::INVAL, &target.shown))?;
        make(old).map(DesiredContents::Contents)
    };
    let mut written = write_locked(&[(site, seen)], vec![old], &[held], ticket, contents)?;
    written.pop().flatten().ok_or_else(|| errno_error(Errno::NOENT, &target.shown))
}

/// Changes files of one mount, all or none. `make` is called for each with what is there now, under the locks of all,
/// and says what shall be there instead. Nothing comes back for a file that went.
pub(crate) fn change_all(
    targets: &[BatchTarget],
    ticket: &Ticket<'_>,
    make: impl FnMut(usize, Option<&FileToReplace>) -> Result<DesiredContents, ToolError>,
) -> Result<Vec<Option<WriteResult>>, ToolError> {
    let Some(BatchTarget { target: first, .. }) = targets.first() else { return Ok(Vec::new()) };
    let cx = ticket.context();
    // Exclusively: between the first step and the last, no other writer may rely on intermediate states.
    let tree = first.lock_directory(TreeLockMode::Exclusive, cx)?;
    for target in &targets[1..] {
        target.target.check_directory()?;
    }
    let sites = targets.iter().map(|target| Ok((WriteSite::find(&target.target)?, target.planned_stat)));
    let sites = sites.collect::<Result<Vec<_>, ToolError>>()?;
    let _locks = lock_all(&sites, cx)?;
    let current = sites.iter().map(|(site, _)| site.open_current()).collect::<Result<Vec<_>, _>>()?;
    write_locked(&sites, current, &[&tree], ticket, make)
}

/// A target with the directories that exist by now: others may have created some since the plan.
pub(crate) struct WriteSite<'t> {
    target: &'t WriteTarget,
    /// The deepest directory, where more exist than when the call was planned.
    opened: Option<OwnedFd>,
    /// Path of the deepest directory that exists, and the names below it that do not.
    path: Vec<u8>,
    missing: &'t [Vec<u8>],
}

impl<'t> WriteSite<'t> {
    pub(crate) fn find(target: &'t WriteTarget) -> Result<Self, ToolError> {
        let mut site =
            Self { target, opened: None, path: target.base_path().to_vec(), missing: target.missing_names() };
        while let Some((name, rest)) = site.missing.split_first() {
            match target.mount.resolver.open_child(site.directory(), name) {
                Ok(child) => site.opened = Some(child),
                Err(Errno::NOENT) => break,
                Err(Errno::LOOP) => return Err(errno_error(Errno::NOTDIR, &target.shown)),
                Err(errno) => return Err(errno_error(errno, &target.shown)),
            }
            site.path = join(&site.path, name);
            site.missing = rest;
        }
        Ok(site)
    }

    /// The deepest directory that exists.
    fn directory(&self) -> BorrowedFd<'_> {
        self.opened.as_ref().map_or_else(|| self.target.base(), |opened| opened.as_fd())
    }

    /// Identity of that directory.
    fn directory_id(&self) -> Option<FileId> {
        self.opened.as_ref().map_or(Some(self.target.base_id()), |opened| id_of(opened.as_fd()))
    }

    fn lacks_parents(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Paths of the directories that do not exist, from the top.
    fn missing_paths(&self) -> Vec<Vec<u8>> {
        let below = |path: &mut Vec<u8>, name: &Vec<u8>| {
            *path = join(path, name);
            Some(path.clone())
        };
        self.missing.iter().scan(self.path.clone(), below).collect()
    }

    fn stat(&self) -> Result<Option<FileStat>, ToolError> {
        if self.lacks_parents() { Ok(None) } else { self.target.stat_in(self.directory()) }
    }

    /// A step about the name of the target.
    fn entry(&self, step: TxnStep) -> TxnEntry {
        let directory = self.directory_id().filter(|_| !self.lacks_parents()).map(|id| id.inode);
        let (parent, name) = (EscapedPath(self.target.parent_path()), EscapedPath(self.target.name.clone()));
        TxnEntry { step, parent, directory, name }
    }

    /// A step about a name in the deepest directory that exists.
    fn entry_at(&self, name: &[u8], step: TxnStep) -> TxnEntry {
        let directory = self.directory_id().map(|id| id.inode);
        TxnEntry { step, parent: EscapedPath(self.path.clone()), directory, name: name.into() }
    }

    fn planned(&self, step: TxnStep) -> PlannedStep<'_> {
        let held = (!self.lacks_parents()).then(|| self.directory());
        PlannedStep::new(self.entry(step), held, &self.target.shown)
    }

    fn open_current(&self) -> Result<Option<FileToReplace>, ToolError> {
        if self.lacks_parents() {
            return Ok(None);
        }
        let (target, parent) = (self.target, self.directory());
        let opened = match target.mount.open_at_with_stat(parent, &target.name, OFlags::RDONLY) {
            // It may be written and not read; then it can still be replaced.
            Err(Errno::ACCESS) => target
                .mount
                .resolver
                .open_named(parent, &target.name, PATH_ONLY)
                .and_then(|fd| fstat(&fd).map(|stat| (fd, FileStat::from_stat(&stat)))),
            other => other,
        };
        let (fd, stamp) = match opened {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(wrong_type(&target.shown, FileKind::Link.with_article())),
            Err(errno) => return Err(errno_error(errno, &target.shown)),
        };
        match stamp.kind {
            FileKind::File => Ok(Some(FileToReplace { fd, stat: stamp })),
            other => Err(wrong_type(&target.shown, other.with_article())),
        }
    }

    fn check_writable(&self, old: Option<&FileToReplace>) -> Result<(), ToolError> {
        let shown = &self.target.shown;
        check_directory_writable(self.directory(), shown)?;
        let Some(old) = old else { return Ok(()) };
        // Taking a name asks nothing of the file that had it, so we ask.
        if old.stat.denies_write() {
            return Err(errno_error(Errno::ACCESS, shown));
        }
        accessat(self.directory(), self.target.name.as_slice(), Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|errno| errno_error(errno, shown))
    }
}

/// Makes a directory with those above it. False if it exists already.
pub(crate) fn make_directory(target: &WriteTarget, ticket: &Ticket<'_>) -> Result<bool, ToolError> {
    let cx = ticket.context();
    let tree = target.lock_directory(TreeLockMode::Shared, cx)?;
    let site = WriteSite::find(target)?;
    let lock = target.mount.locks.lock(lock_id(&site)?, cx)?;
    recover(&target.mount, &lock)?;
    match site.stat()? {
        Some(found) if found.kind == FileKind::Directory => return Ok(false),
        Some(_) => return Err(errno_error(Errno::EXIST, &target.shown)),
        None => site.check_writable(None)?,
    }
    let mut planner = WritePlanner::new(ticket);
    planner.plan_parents(&site);
    planner.transaction.steps.push(site.planned(TxnStep::MakeDirectory));
    let (path, after) = (escape(&target.path()), FileState::planned(FileStateKind::Directory));
    planner.transaction.effects.push(JournalEffect::Created { path, after, image: None });
    let held = if site.lacks_parents() { &tree } else { &lock };
    planner.transaction.run(&target.mount, &[held], ticket, &step_error)?;
    Ok(true)
}

/// Plans and runs the transaction, under the locks.
fn write_locked(
    sites: &[(WriteSite<'_>, Option<FileStat>)],
    current: Vec<Option<FileToReplace>>,
    held: &[&HeldLock],
    ticket: &Ticket<'_>,
    mut make: impl FnMut(usize, Option<&FileToReplace>) -> Result<DesiredContents, ToolError>,
) -> Result<Vec<Option<WriteResult>>, ToolError> {
    let Some((first, _)) = sites.first() else { return Ok(Vec::new()) };
    let (mount, cx) = (&*first.target.mount, ticket.context());
    let mut desired = Vec::new();
    for (index, ((site, seen), old)) in sites.iter().zip(&current).enumerate() {
        check_unchanged(site.target, *seen, old.as_ref().map(|old| old.stat), ticket)?;
        site.check_writable(old.as_ref())?;
        desired.push(make(index, old.as_ref())?);
    }
    let mut planner = WritePlanner::new(ticket);
    let mut results = Vec::new();
    for (((site, _), old), desired) in sites.iter().zip(&current).zip(desired) {
        let result = match desired.unchanged_result(old.as_ref(), cx) {
            Some(kept) => Ok(Some(kept)),
            None => planner.plan(site, old.as_ref(), desired),
        };
        match result {
            Ok(result) => results.push(result),
            Err(error) => return Err(planner.transaction.discard(mount, ticket, error)),
        }
    }
    if planner.transaction.steps.is_empty() {
        return Ok(results);
    }
    planner.transaction.run(mount, held, ticket, &step_error)?;
    for ((site, _), result) in sites.iter().zip(&mut results) {
        if let Some(result) = result.as_mut().filter(|result| result.created && !site.lacks_parents()) {
            result.collides_with = site.target.collision(site.directory());
        }
    }
    Ok(results)
}

/// Plans the steps of a write.
struct WritePlanner<'a> {
    ticket: &'a Ticket<'a>,
    transaction: Transaction<'a>,
    /// Each displaced file counts for the next: all of them together must fit.
    position: DisplacementPosition,
    /// Directories that an earlier step creates.
    made: BTreeSet<Vec<u8>>,
    /// Temporary names that the log has, where files cannot be staged without one.
    reserved: Vec<TxnEntry>,
}

impl<'a> WritePlanner<'a> {
    fn new(ticket: &'a Ticket<'a>) -> Self {
        let (position, made, reserved) = (DisplacementPosition::default(), BTreeSet::new(), Vec::new());
        Self { ticket, transaction: Transaction::default(), position, made, reserved }
    }

    fn plan(
        &mut self,
        site: &'a WriteSite<'a>,
        old: Option<&FileToReplace>,
        desired: DesiredContents,
    ) -> Result<Option<WriteResult>, ToolError> {
        let (ticket, target) = (self.ticket, site.target);
        let body = match desired {
            DesiredContents::Contents(body) => target.judge_contents(body, old, ticket)?,
            DesiredContents::Absent => {
                let Some(old) = old else { return Err(errno_error(Errno::NOENT, &target.shown)) };
                target.judge_removal(ticket)?;
                return self.plan_removal(site, old).map(|()| None);
            }
        };
        // Staged first: what is displaced is looked at when there is room for the new file.
        let unnamed = self.stage_unnamed(site, &body, old)?;
        let device = site.directory_id().map_or(0, |id| id.device);
        let displaced = old.map(|old| DisplacedFile::new(target, device, old, self.position, ticket));
        let displaced = displaced.transpose()?;
        let copy = displaced.as_ref().and_then(DisplacedFile::copy);
        self.transaction.is_reserved |= copy.is_some();
        let (staging, discard) = match displaced.as_ref().map(|displaced| &displaced.disposition) {
            Some(DisplacedFileAction::Stored { image }) => (StagingName::Store(image.clone()), false),
            _ => (StagingName::Beside(temporary_name().map_err(|errno| errno_error(errno, &target.shown))?), true),
        };
        let (staged, contents) = match unnamed {
            Some(staged) => staged,
            None => self.stage_named(site, &staging, &body, old).inspect_err(|_| {
                // A copy that was made for it is not in an effect yet.
                delete_images(&target.mount, &copy.into_iter().collect::<Vec<_>>());
            })?,
        };
        let new = FileIdentity::from_stat(&contents.stat);
        let before = displaced.as_ref().map(|displaced| (&displaced.state, &displaced.disposition));
        let effect = target.effect(before, FileState::of_file(&contents.stat, Some(contents.digest)));
        if staged.is_named() && site.lacks_parents() {
            // It waits in a directory that exists, and moves into the new one.
            let reserved = site.entry_at(&target.name, reservation(&staging));
            self.transaction.steps.push(PlannedStep::new(reserved, Some(site.directory()), &target.shown));
            self.plan_parents(site);
            let to = EscapedPath(target.path());
            let step = TxnStep::Move { entry: new, to, to_directory: None, over: None, image: None };
            let moved =
                PlannedStep::new(site.entry_at(staging.as_bytes(), step), Some(site.directory()), &target.shown);
            self.transaction.steps.push(PlannedStep { staged: Some(staged), ..moved });
        } else {
            self.plan_parents(site);
            let old = old.map(|old| FileIdentity::from_stat(&old.stat));
            let step = TxnStep::Exchange { old, new: Some(new), staging, fresh: true, discard };
            self.transaction.steps.push(PlannedStep { staged: Some(staged), ..site.planned(step) });
        }
        self.transaction.effects.push(effect);
        self.count(displaced.as_ref());
        Ok(Some(WriteResult {
            unchanged: false,
            size: contents.stat.size,
            digest: Some(contents.digest),
            created: old.is_none(),
            links_broken: old.map_or(0, |old| old.stat.links.saturating_sub(1)),
            collides_with: None,
        }))
    }

    fn plan_removal(&mut self, site: &'a WriteSite<'a>, old: &FileToReplace) -> Result<(), ToolError> {
        let state = FileState::of_open(&old.fd, &old.stat, &site.target.shown, self.ticket.context())?;
        let identity = FileIdentity::from_stat(&old.stat);
        let removal = Removal::plan(site.target, identity, state, self.position, self.ticket)?;
        self.count(Some(&removal.displaced));
        self.transaction.effects.push(removal.effect);
        self.transaction.steps.push(site.planned(removal.step));
        Ok(())
    }

    fn count(&mut self, displaced: Option<&DisplacedFile>) {
        let kept = displaced.filter(|displaced| displaced.disposition != DisplacedFileAction::Discarded);
        let cost = kept.map_or(0, |displaced| displaced.state.cost());
        self.position.bytes_before = self.position.bytes_before.saturating_add(cost);
        self.position.index += 1;
    }

    /// Steps that create the missing directories of a target, each once.
    fn plan_parents(&mut self, site: &'a WriteSite<'a>) {
        for (index, path) in site.missing_paths().into_iter().enumerate() {
            if !self.made.insert(path.clone()) {
                continue;
            }
            let (parent, name) = split(&path);
            let held = (index == 0).then(|| site.directory());
            let entry = TxnEntry {
                step: TxnStep::MakeDirectory,
                parent: parent.into(),
                directory: held.and_then(|_| site.directory_id()).map(|id| id.inode),
                name: name.into(),
            };
            self.transaction.steps.push(PlannedStep::new(entry, held, &site.target.shown));
            let after = FileState::planned(FileStateKind::Directory);
            self.transaction.effects.push(JournalEffect::Created { path: escape(&path), after, image: None });
        }
    }

    /// Stages new contents without a name, where that is possible.
    fn stage_unnamed(
        &self,
        site: &WriteSite<'_>,
        body: &FileBody,
        old: Option<&FileToReplace>,
    ) -> Result<Option<(StagedFile, StagedContents)>, ToolError> {
        let (mount, shown) = (&*site.target.mount, &site.target.shown);
        if mount.staging == StagingMode::Named {
            return Ok(None);
        }
        let staged = StagedFile::unnamed(site.directory(), body, old).map_err(|errno| errno_error(errno, shown))?;
        let Some(staged) = staged else { return Ok(None) };
        let contents = staged.fill(body, old, site.directory(), self.ticket.context(), shown)?;
        if let (Durability::Full, Some(start_writeback)) = (mount.durability, mount.start_writeback) {
            // The disk is busy with them while the change is planned and logged.
            start_writeback(staged.fd());
        }
        Ok(Some((staged, contents)))
    }

    /// Stages new contents at a temporary name, which the log has on disk first.
    fn stage_named(
        &mut self,
        site: &WriteSite<'_>,
        staging: &StagingName,
        body: &FileBody,
        old: Option<&FileToReplace>,
    ) -> Result<(StagedFile, StagedContents), ToolError> {
        let (mount, shown) = (&*site.target.mount, &site.target.shown);
        let fail = |errno| errno_error(errno, shown);
        let reserved = site.entry_at(&site.target.name, reservation(staging));
        self.reserved.push(reserved.clone());
        self.transaction.is_reserved = true;
        mount.begin_change(self.ticket, Vec::new(), Vec::new(), self.reserved.clone())?.flush()?;
        let store = mount.find_image_store().map_err(fail)?;
        let directory = match (staging, &store) {
            (StagingName::Store(_), Some(store)) => store.fd(),
            _ => site.directory(),
        };
        let staged = StagedFile::named((directory, staging.as_bytes()), body, old).map_err(fail)?;
        match staged.fill(body, old, site.directory(), self.ticket.context(), shown) {
            Ok(contents) => Ok((staged, contents)),
            Err(error) => {
                // Rolled back with the transaction, it goes.
                self.transaction.steps.push(PlannedStep::new(reserved, None, shown));
                Err(error)
            }
        }
    }
}

/// A step that reserves a temporary name.
fn reservation(staging: &StagingName) -> TxnStep {
    TxnStep::Exchange { old: None, new: None, staging: staging.clone(), fresh: true, discard: true }
}

/// A file that is to be removed: its step and its effect.
pub(crate) struct Removal {
    pub(crate) displaced: DisplacedFile,
    pub(crate) step: TxnStep,
    pub(crate) effect: JournalEffect,
}

impl Removal {
    /// The entry goes to the image store, or to a temporary name to be deleted.
    pub(crate) fn plan(
        target: &WriteTarget,
        identity: FileIdentity,
        state: FileState,
        position: DisplacementPosition,
        ticket: &Ticket<'_>,
    ) -> Result<Self, ToolError> {
        let path = escape(&target.path());
        let image = target.mount.removal_image(&state, target.base_id().device, position, ticket)?;
        let (staging, disposition, effect) = match image {
            Some(image) => (
                StagingName::Store(image.clone()),
                DisplacedFileAction::Stored { image: image.clone() },
                JournalEffect::Removed { path, before: state.clone(), image, copied: false },
            ),
            None => {
                let name = temporary_name().map_err(|errno| errno_error(errno, &target.shown))?;
                (StagingName::Beside(name), DisplacedFileAction::Discarded, JournalEffect::Lost { path })
            }
        };
        let discard = disposition == DisplacedFileAction::Discarded;
        let step = TxnStep::Exchange { old: Some(identity), new: None, staging, fresh: false, discard };
        Ok(Self { displaced: DisplacedFile { state, disposition }, step, effect })
    }
}

/// A file that is about to lose its name, as the journal has to know it.
#[derive(Debug)]
pub(crate) struct DisplacedFile {
    pub(crate) state: FileState,
    pub(crate) disposition: DisplacedFileAction,
}

impl DisplacedFile {
    /// `device` is that of the directory that it leaves from.
    pub(crate) fn new(
        target: &WriteTarget,
        device: u64,
        old: &FileToReplace,
        position: DisplacementPosition,
        ticket: &Ticket<'_>,
    ) -> Result<Self, ToolError> {
        let disposition = target.mount.disposition(old, device, position, ticket)?;
        let of_old = || FileState::of_open(&old.fd, &old.stat, &target.shown, ticket.context());
        let state = match &disposition {
            DisplacedFileAction::Discarded => FileState::from_stat(&old.stat),
            DisplacedFileAction::Stored { .. } => of_old()?,
            // The copy is the pre-image.
            DisplacedFileAction::Copied { image } => {
                let copy = target.mount.image_store().and_then(|keep| keep.stat(image));
                let copy = FileState::from_stat(&copy.unwrap_or(old.stat));
                FileState { inode: copy.inode, modified: copy.modified, ..of_old()? }
            }
        };
        Ok(Self { state, disposition })
    }

    /// The copy that was made of it.
    fn copy(&self) -> Option<String> {
        match &self.disposition {
            DisplacedFileAction::Copied { image } => Some(image.clone()),
            DisplacedFileAction::Stored { .. } | DisplacedFileAction::Discarded => None,
        }
    }
}

/// The locks of every target, so that what dead processes left there is recovered first.
fn lock_all(sites: &[(WriteSite<'_>, Option<FileStat>)], cx: &CallContext<'_>) -> Result<Vec<HeldLock>, ToolError> {
    let Some((first, _)) = sites.first() else { return Ok(Vec::new()) };
    let mount = &*first.target.mount;
    loop {
        let ids = sites.iter().map(|(site, _)| lock_id(site)).collect::<Result<Vec<_>, _>>()?;
        let locks = mount.locks.lock_all(&ids, cx)?;
        locks.iter().try_for_each(|lock| recover(mount, lock))?;
        // While waiting for one lock, another file may have replaced this one.
        if sites.iter().zip(&ids).all(|((site, _), id)| lock_id(site).is_ok_and(|now| now == *id)) {
            return Ok(locks);
        }
        cx.check()?;
    }
}

fn lock_id(site: &WriteSite<'_>) -> Result<FileId, ToolError> {
    match site.stat()? {
        Some(found) => Ok(found.id),
        // The same for every writer, whichever directories exist by now.
        None => new_file_lock_id(&site.target.mount, &site.target.path())
            .map_err(|errno| errno_error(errno, &site.target.shown)),
    }
}

/// Locks the file at a target, and opens it.
pub(crate) fn lock_and_open(
    site: &WriteSite<'_>,
    cx: &CallContext<'_>,
) -> Result<(HeldLock, Option<FileToReplace>), ToolError> {
    let mount = &*site.target.mount;
    loop {
        let old = site.open_current()?;
        let id = match &old {
            Some(old) => old.stat.id,
            None => lock_id(site)?,
        };
        let lock = mount.locks.lock(id, cx)?;
        recover(mount, &lock)?;
        // While we waited for the lock of one file, another may have come to stand here.
        match (old, site.stat()?) {
            (None, None) => return Ok((lock, None)),
            (Some(old), Some(now)) if old.stat.id == now.id => {
                return Ok((lock, Some(FileToReplace { stat: now, ..old })));
            }
            _ => cx.check()?,
        }
    }
}

/// Fails unless the file is still the one that was planned with, and perhaps approved.
pub(crate) fn check_unchanged(
    target: &WriteTarget,
    seen: Option<FileStat>,
    now: Option<FileStat>,
    ticket: &Ticket<'_>,
) -> Result<(), ToolError> {
    let conflict = |what: &str| {
        let message = format!("`{}` {what} since the call was planned; nothing was changed", target.shown);
        Err(ToolError::new(ErrorKind::Conflict, message))
    };
    match (seen, now) {
        (None, Some(_)) => conflict("was created"),
        (Some(_), None) if ticket.is_approved() => conflict("was removed"),
        (Some(seen), Some(now)) if ticket.is_approved() && seen != now => conflict("changed"),
        _ => Ok(()),
    }
}

/// The error of a step that writes a file.
fn step_error(planned: &PlannedStep<'_>, error: StepError) -> ToolError {
    let shown = &planned.shown;
    match error {
        StepError::Changed { .. } if matches!(planned.entry.step, TxnStep::MakeDirectory) => {
            let message = format!("the parent directories of `{shown}` were changed concurrently by another program");
            ToolError::new(ErrorKind::Conflict, message).hint("try again")
        }
        StepError::Changed { .. } if matches!(planned.entry.step, TxnStep::Exchange { old: None, .. }) => {
            let message = format!("`{shown}` was created since the call was planned; nothing was changed");
            ToolError::new(ErrorKind::Conflict, message)
        }
        StepError::Changed { conflict_copy } => concurrent_change_error(shown, conflict_copy.as_deref()),
        StepError::NoExchange => {
            let message = "this file system does not support changes to several files that can be rolled back";
            ToolError::new(ErrorKind::Unavailable, message).hint("change the files one by one")
        }
        StepError::System(errno) => errno_error(errno, shown),
        StepError::Tool(error) => error,
    }
}

pub(crate) fn concurrent_change_error(shown: &str, conflict_copy: Option<&str>) -> ToolError {
    let message = format!("`{shown}` was changed concurrently by another program; nothing was changed");
    let error = ToolError::new(ErrorKind::Conflict, message);
    match conflict_copy {
        Some(copy) => {
            error.hint(&format!("a version of it was kept as `{copy}` beside it")).detail("conflictCopy", copy)
        }
        None => error,
    }
}

/// The lock for a file that does not exist yet.
fn new_file_lock_id(mount: &Mount, path: &[u8]) -> Result<FileId, Errno> {
    let FileId { device, inode } = mount.id;
    let mixed = path.iter().fold(inode, |mixed, byte| (mixed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    Ok(FileId { device, inode: mixed })
}

impl WriteTarget {
    /// A step about this name, in a directory that exists.
    pub(crate) fn entry(&self, step: TxnStep) -> TxnEntry {
        let (parent, name) = (EscapedPath(self.parent_path()), EscapedPath(self.name.clone()));
        TxnEntry { step, parent, directory: Some(self.base_id().inode), name }
    }
}

pub(crate) fn id_of(directory: BorrowedFd<'_>) -> Option<FileId> {
    fstat(directory).ok().map(|stat| FileStat::from_stat(&stat).id)
}
