//! Multi-file transactions: several files changed, all or none.
//!
//! Every new file is staged beside its target first. Then each is renamed to its name, one after the other; the first
//! that fails ends the transaction and rolls back those before it. A record in our state directory has every step, so
//! that recovery after a crash rolls the steps back or, once the record is marked as done, removes the files that they
//! displaced.
//!
//! Not here: directories, changes on different mounts, and one change alone (`replace.rs`).

use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{CallContext, ErrorKind, Ticket, ToolError};
use rustix::io::Errno;

use crate::journal::{DisplacedFileAction, DisplacementPosition, FileState, JournalEffect};
use crate::lock::{FileLock, TreeLockMode};
use crate::mount::Mount;
use crate::mount::write_target::{CreatedParents, WriteTarget};
use crate::path::name::escape;
use crate::read::digest::Digest;
use crate::root::{Durability, FileToReplace, rename_noreplace, stat};
use crate::sys::errno::{errno_error, sync_error};
use crate::sys::stat::{FileId, FileStat};
use crate::sys::syscall::{fstat, fsync};
use crate::txn::directories::TxnDirectories;
use crate::txn::record::{FileIdentity, TxnEntry, TxnRecord, TxnStep};
use crate::txn::recover::recover;
use crate::txn::replace::{
    DisplacedFile, FileBody, StagedFile, WriteResult, check_unchanged, check_writable, concurrent_change_error,
    new_file_lock_id, open_current, temporary_name,
};
use crate::txn::step::{exchange, finalize, roll_back};

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
        match self {
            Self::Contents(body) => body.unchanged_result(old?, cx),
            Self::Absent => None,
        }
    }

    /// Size of the new contents in bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Contents(FileBody::Bytes(bytes)) => bytes.len() as u64,
            Self::Contents(FileBody::File { .. }) | Self::Absent => 0,
        }
    }
}

/// Changes files of one mount, all or none. `make` is called for each with what is there now, under the locks of all,
/// and says what shall be there instead. Nothing comes back for a file that went.
pub(crate) fn change_all(
    targets: &[BatchTarget],
    ticket: &Ticket<'_>,
    mut make: impl FnMut(usize, Option<&FileToReplace>) -> Result<DesiredContents, ToolError>,
) -> Result<Vec<Option<WriteResult>>, ToolError> {
    let Some(BatchTarget { target: first, .. }) = targets.first() else { return Ok(Vec::new()) };
    let (mount, cx) = (&*first.mount, ticket.context());
    // Exclusively: between the first step and the last, no other writer may rely on intermediate states.
    let tree = first.lock_directory(TreeLockMode::Exclusive, cx)?;
    for target in &targets[1..] {
        target.target.check_directory()?;
    }
    let locks = lock_all(mount, targets, cx)?;
    let mut made = BatchCreatedDirs(Vec::new());
    let mut goals = Vec::new();
    for (index, BatchTarget { target, planned_stat: seen }) in targets.iter().enumerate() {
        let parents = target.make_parents(cx)?;
        let old = open_current(target, parents.parent.as_fd())?;
        check_unchanged(target, *seen, old.as_ref().map(|old| old.stat), ticket)?;
        check_writable(target, parents.parent.as_fd(), old.as_ref())?;
        goals.push((make(index, old.as_ref())?, old));
        made.0.push(parents);
    }
    let mut kept: Vec<Option<WriteResult>> =
        goals.iter().map(|(goal, old)| goal.unchanged_result(old.as_ref(), cx)).collect();
    let written = {
        let mut members = Vec::new();
        let changing = targets.iter().zip(goals).zip(&made.0).zip(&kept).filter(|(_, kept)| kept.is_none());
        for (((target, (goal, old)), parents), _) in changing {
            members.push(BatchMember::plan(&target.target, parents, goal, old, ticket)?);
        }
        if members.is_empty() {
            return Ok(kept);
        }
        let entries = members.iter().map(BatchMember::record_entry).collect::<Result<Vec<TxnEntry>, _>>()?;
        let note = TxnRecord::write(&mount.locks, ticket.change_id(), &entries)?;
        note.sync_to_disk(mount.durability)?;
        tree.log_intent(note.id())?;
        let written = plan_images(&mut members, ticket).and_then(|()| execute(&mut members, &note, mount, ticket));
        // Staged files are removed before the record that names them.
        drop(members);
        drop(note);
        tree.clear_intent();
        written?
    };
    drop(locks);
    for (parents, target) in std::mem::take(&mut made.0).into_iter().zip(targets) {
        parents.persist(mount.durability, &target.target.shown)?;
    }
    for (place, written) in kept.iter_mut().filter(|kept| kept.is_none()).zip(written) {
        *place = written;
    }
    Ok(kept)
}

/// The locks of every target, so that what dead processes left there is cleaned up first.
fn lock_all(mount: &Mount, targets: &[BatchTarget], cx: &CallContext<'_>) -> Result<Vec<FileLock>, ToolError> {
    loop {
        let ids = targets.iter().map(|target| lock_id(&target.target)).collect::<Result<Vec<_>, _>>()?;
        let mut locks = Vec::new();
        for (lock, left) in mount.locks.lock_all(&ids, cx)? {
            recover(mount, &lock, &left)?;
            locks.push(lock);
        }
        // While waiting for one lock, another file may have replaced this one.
        if targets.iter().zip(&ids).all(|(target, id)| lock_id(&target.target).is_ok_and(|now| now == *id)) {
            return Ok(locks);
        }
        cx.check()?;
    }
}

fn lock_id(target: &WriteTarget) -> Result<FileId, ToolError> {
    let fail = |errno| errno_error(errno, &target.shown);
    if target.lacks_parents() {
        return new_file_lock_id(target.base(), &target.parent_path()).map_err(fail);
    }
    match target.stat()? {
        Some(found) => Ok(found.id),
        None => new_file_lock_id(target.base(), &target.name).map_err(fail),
    }
}

/// Directories that were made; the last ones go first, because they are inside the others.
struct BatchCreatedDirs(Vec<CreatedParents>);

impl Drop for BatchCreatedDirs {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// One change of a batch on its way.
struct BatchMember<'a> {
    target: &'a WriteTarget,
    parent: BorrowedFd<'a>,
    parents: &'a CreatedParents,
    goal: DesiredContents,
    old: Option<FileToReplace>,
    displaced: Option<DisplacedFile>,
    temporary: Vec<u8>,
    staged: Option<StagedFile<'a>>,
    written: (u64, Option<Digest>),
}

impl<'a> BatchMember<'a> {
    fn plan(
        target: &'a WriteTarget,
        made: &'a CreatedParents,
        goal: DesiredContents,
        old: Option<FileToReplace>,
        ticket: &Ticket<'_>,
    ) -> Result<Self, ToolError> {
        let goal = match goal {
            DesiredContents::Contents(body) => {
                DesiredContents::Contents(target.judge_contents(body, old.as_ref(), ticket)?)
            }
            DesiredContents::Absent if old.is_none() => return Err(errno_error(Errno::NOENT, &target.shown)),
            DesiredContents::Absent => {
                target.judge_removal(ticket)?;
                DesiredContents::Absent
            }
        };
        let temporary = temporary_name().map_err(|errno| errno_error(errno, &target.shown))?;
        let parent = made.parent.as_fd();
        Ok(Self {
            target,
            parent,
            parents: made,
            goal,
            old,
            displaced: None,
            temporary,
            staged: None,
            written: (0, None),
        })
    }

    /// Finds out what becomes of the file that is displaced.
    fn plan_image(&mut self, position: DisplacementPosition, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        let Some(old) = &self.old else { return Ok(()) };
        self.displaced = Some(match self.goal {
            DesiredContents::Contents(_) => DisplacedFile::new(self.target, self.parent, old, position, ticket)?,
            DesiredContents::Absent => {
                let state = FileState::of_open(&old.fd, &old.stat, &self.target.shown, ticket.context())?;
                let image = self.target.mount.removal_image(&state, self.parent, position, ticket)?;
                DisplacedFile {
                    state,
                    disposition: image
                        .map_or(DisplacedFileAction::Discarded, |image| DisplacedFileAction::Stored { image }),
                }
            }
        });
        Ok(())
    }

    /// For the journal, once the new file is there.
    fn effects(&self) -> Result<Vec<JournalEffect>, ToolError> {
        let before = self.displaced.as_ref().map(|displaced| (&displaced.state, &displaced.disposition));
        let Some(fresh) = &self.staged else {
            let path = escape(&self.target.path());
            return Ok(match before {
                Some((before, DisplacedFileAction::Stored { image })) => {
                    vec![JournalEffect::Removed { path, before: before.clone(), image: image.clone(), copied: false }]
                }
                _ => vec![JournalEffect::Lost { path }],
            });
        };
        let stamp = FileStat::from_stat(&fstat(&fresh.fd).map_err(|errno| errno_error(errno, &self.target.shown))?);
        Ok(self.target.effects(self.parents, before, FileState::of_file(&stamp, self.written.1)))
    }

    /// For the note: as far as it is known, which files stand where.
    fn record_entry(&self) -> Result<TxnEntry, ToolError> {
        let stamp_of = |fd: BorrowedFd<'_>| match fstat(fd) {
            Ok(stat) => Ok(FileStat::from_stat(&stat)),
            Err(errno) => Err(errno_error(errno, &self.target.shown)),
        };
        let new = self
            .staged
            .as_ref()
            .map(|fresh| stamp_of(fresh.fd.as_fd()))
            .transpose()?
            .map(|stamp| FileIdentity::from_stat(&stamp));
        let old = self.old.as_ref().map(|old| FileIdentity::from_stat(&old.stat));
        let step = match (&self.goal, old, new) {
            (DesiredContents::Absent, Some(old), _) => TxnStep::Remove { old },
            (DesiredContents::Contents(_), Some(old), Some(new)) => TxnStep::Replace { old, new },
            (DesiredContents::Contents(_), None, Some(new)) => TxnStep::Create { new },
            _ => TxnStep::Prepare,
        };
        let (parent, name) = (self.target.parent_path(), self.target.name.clone());
        let image = self.displaced.as_ref().and_then(|displaced| displaced.disposition.image()).unwrap_or_default();
        let directory = Some(stamp_of(self.parent)?.id.inode);
        let (temporary, other) = (self.temporary.clone(), image.as_bytes().to_vec());
        Ok(TxnEntry { step, parent, directories: [directory, None], name, temporary, other })
    }

    /// Stages the new file beside its target.
    fn prepare(&mut self, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let DesiredContents::Contents(body) = &self.goal else { return Ok(()) };
        let fail = |errno| errno_error(errno, &self.target.shown);
        let fresh =
            StagedFile::create(self.parent, self.temporary.clone(), body.mode(self.old.as_ref())).map_err(fail)?;
        let (size, digest) = fresh.fill(body, cx, &self.target.shown)?;
        fresh.set_access(body, self.old.as_ref(), &self.target.shown)?;
        fsync(&fresh.fd).map_err(fail)?;
        self.written = (size, Some(digest));
        self.staged = Some(fresh);
        Ok(())
    }

    /// Publishes the staged file, or returns an error and leaves everything as it was.
    fn publish(&self) -> Result<(), ToolError> {
        let Self { target, parent, temporary, .. } = self;
        let (here, there) = ((*parent, temporary.as_slice()), (*parent, target.name.as_slice()));
        match (&self.goal, &self.old) {
            (DesiredContents::Contents(_), None) => rename_noreplace(here, there).map_err(|errno| match errno {
                Errno::EXIST => concurrent_change_error(target, None),
                other => errno_error(other, &target.shown),
            }),
            (DesiredContents::Contents(_), Some(old)) => {
                exchange(*parent, temporary, &target.name).map_err(|errno| exchange_error(errno, target))?;
                if self.is_displaced(old) {
                    return Ok(());
                }
                // The displaced file is not the one that was read: it gets its name back.
                exchange(*parent, temporary, &target.name).map_err(|errno| errno_error(errno, &target.shown))?;
                Err(concurrent_change_error(target, None))
            }
            (DesiredContents::Absent, old) => {
                rename_noreplace(there, here).map_err(|errno| errno_error(errno, &target.shown))?;
                if old.as_ref().is_some_and(|old| self.is_displaced(old)) {
                    return Ok(());
                }
                rename_noreplace(here, there).map_err(|errno| errno_error(errno, &target.shown))?;
                Err(concurrent_change_error(target, None))
            }
        }
    }

    fn is_displaced(&self, old: &FileToReplace) -> bool {
        matches!(stat(self.parent, &self.temporary), Ok(Some(now)) if now.same_content(&old.stat))
    }

    fn outcome(&self) -> Option<WriteResult> {
        let (size, digest) = self.written;
        matches!(self.goal, DesiredContents::Contents(_)).then(|| WriteResult {
            unchanged: false,
            size,
            digest,
            created: self.old.is_none(),
            links_broken: self.old.as_ref().map_or(0, |old| old.stat.links.saturating_sub(1)),
            collides_with: if self.old.is_none() { self.target.collision(self.parent) } else { None },
        })
    }
}

/// Each displaced file counts for the next: all of them together must fit.
fn plan_images(members: &mut [BatchMember<'_>], ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mut position = DisplacementPosition::default();
    for member in members {
        member.plan_image(position, ticket)?;
        let kept =
            member.displaced.as_ref().filter(|displaced| displaced.disposition != DisplacedFileAction::Discarded);
        position.bytes_before =
            position.bytes_before.saturating_add(kept.map_or(0, |displaced| displaced.state.cost()));
        position.index += 1;
    }
    Ok(())
}

/// From the first temporary file to the last that is cleared away.
fn execute(
    members: &mut [BatchMember<'_>],
    note: &TxnRecord<'_>,
    mount: &Mount,
    ticket: &Ticket<'_>,
) -> Result<Vec<Option<WriteResult>>, ToolError> {
    for member in &mut *members {
        member.prepare(ticket.context())?;
    }
    let entries = members.iter().map(BatchMember::record_entry).collect::<Result<Vec<TxnEntry>, _>>()?;
    note.complete(&entries, mount.durability)?;
    let effects = members.iter().map(BatchMember::effects).collect::<Result<Vec<_>, _>>()?;
    let entered = mount.begin_change(ticket, Vec::new(), effects.concat())?;
    ticket.commit()?;
    let published = members.iter().try_for_each(BatchMember::publish);
    // From now on a temporary name may have a file that is not ours: what goes there goes by its inode.
    for fresh in members.iter_mut().filter_map(|member| member.staged.take()) {
        fresh.disarm();
    }
    let done = published.and_then(|()| {
        let synced = sync(members, mount);
        note.mark_done().map(|()| synced)
    });
    let synced = match done {
        Ok(synced) => {
            synced.and_then(|()| note.sync(mount.durability).map_err(|errno| sync_error(errno, first_path(members))))
        }
        Err(refused) => {
            let directories = TxnDirectories::new(mount);
            let back =
                members.iter().zip(&entries).rev().map(|(member, entry)| roll_back(&directories, member.parent, entry));
            let all = back.collect::<Vec<_>>().iter().all(Result::is_ok);
            note.delete_if(all);
            return Err(if all { refused } else { rollback_incomplete(refused) });
        }
    };
    let cleared = members.iter().zip(&entries).map(|(member, entry)| finalize(mount, member.parent, entry));
    let cleared = cleared.collect::<Vec<_>>();
    entered.commit();
    note.delete_if(cleared.iter().all(Result::is_ok));
    synced?;
    Ok(members.iter().map(BatchMember::outcome).collect())
}

/// The path that a message about all of them names: the first.
fn first_path<'a>(members: &[BatchMember<'a>]) -> &'a str {
    members.first().map_or("", |member| &member.target.shown)
}

fn sync(members: &[BatchMember<'_>], mount: &Mount) -> Result<(), ToolError> {
    if mount.durability != Durability::Full {
        return Ok(());
    }
    let mut synced = Vec::new();
    for member in members {
        let id = fstat(member.parent).map_err(|errno| sync_error(errno, &member.target.shown))?;
        let id = FileStat::from_stat(&id).id;
        if !synced.contains(&id) {
            fsync(member.parent).map_err(|errno| sync_error(errno, &member.target.shown))?;
            synced.push(id);
        }
    }
    Ok(())
}

/// The error where not every step could be rolled back.
fn rollback_incomplete(refused: ToolError) -> ToolError {
    refused
        .hint("some files were changed and could not be rolled back; the next start tries again")
        .detail("committed", "unknown")
}

fn exchange_error(errno: Errno, target: &WriteTarget) -> ToolError {
    match errno {
        Errno::NOENT => concurrent_change_error(target, None),
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => {
            let message = "this file system does not support changes to several files that can be rolled back";
            ToolError::new(ErrorKind::Unavailable, message).hint("change the files one by one")
        }
        other => errno_error(other, &target.shown),
    }
}
