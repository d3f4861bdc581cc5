//! Atomic file replacement: new contents for a name, all or nothing.
//!
//! The new file is written beside the old one, synced, and takes its name in one step that also shows what it
//! displaced. If that is not the file that was seen, the step is rolled back and the change is a conflict. Whatever
//! happens, the name has the old contents or the new, never a part of either.
//!
//! Not here: where the contents come from. Each tool makes its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallContext, ErrorKind, Ticket, ToolError};
use rustix::fs::{Access, AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use crate::journal::{DisplacedFileAction, DisplacementPosition, FileState};
use crate::lock::{FileLock, JournalRef, TreeLockMode, WriteIntent};
use crate::mount::write_target::{CreatedParents, WriteTarget};
use crate::path::name::TEMP_PREFIX;
use crate::read::content::{read_chunk, read_up_to};
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::attributes::{chmod_past_umask, copy_attributes};
use crate::root::resolver::PATH_ONLY;
use crate::root::trash::rename_to_conflict;
use crate::root::{Durability, FileToReplace, check_directory_writable, rename_noreplace, stat};
use crate::sys::errno::{errno_error, sync_error, wrong_type};
use crate::sys::own_files::{SAFE_OPEN, write_all};
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::{accessat, fchmod, fchown, fstat, fsync, linkat, openat, renameat, renameat_with, unlinkat};
use crate::txn::recover::recover;

/// Between two of these a long write looks whether it is still wanted.
const CHUNK: usize = 1 << 20;

/// Contents for a file.
#[derive(Debug)]
pub(crate) enum FileBody {
    Bytes(Vec<u8>),
    /// As much as another file has; a new file gets its mode too.
    File {
        from: OwnedFd,
        stamp: FileStat,
    },
}

impl FileBody {
    /// The result where a file has these contents already.
    pub(crate) fn unchanged_result(&self, old: &FileToReplace, cx: &CallContext<'_>) -> Option<WriteResult> {
        let Self::Bytes(bytes) = self else { return None };
        let size = old.stat.size;
        // One that cannot be read may have anything in it.
        let same = bytes.len() as u64 == size && read_up_to(&old.fd, size + 1, cx).is_ok_and(|there| there == *bytes);
        let digest = || Some(Digest::of(bytes));
        same.then(|| WriteResult::no_change(size, digest()))
    }

    /// A new file is as open as it should be, whatever the umask; a replacement stays closed until it has the old one's mode.
    pub(crate) fn mode(&self, old: Option<&FileToReplace>) -> u32 {
        match (old, self) {
            (Some(_), _) => 0o600,
            (None, Self::Bytes(_)) => 0o644,
            (None, Self::File { stamp, .. }) => stamp.mode & 0o777 | 0o600,
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
    let _place = target.lock_directory(TreeLockMode::Shared, cx)?;
    let (made, lock, old) = lock_for_change(target, cx)?;
    let parent = made.parent.as_fd();
    check_unchanged(target, seen, old.as_ref().map(|old| old.stat), ticket)?;
    check_writable(target, parent, old.as_ref())?;
    let body = target.judge_contents(make(old.as_ref())?, old.as_ref(), ticket)?;
    if let Some(kept) = old.as_ref().and_then(|old| body.unchanged_result(old, cx)) {
        return Ok(kept);
    }
    let name = temporary_name().map_err(|errno| errno_error(errno, &target.shown))?;
    let intend = |inodes| {
        let journal = JournalRef::new(ticket.change_id(), None);
        let intent = WriteIntent::Remove { parent: target.parent_path(), name: name.clone(), inodes, journal };
        match target.mount.durability {
            Durability::Full => lock.log_intent_durably(&intent),
            Durability::Ordered => lock.log_intent(&intent),
        }
    };
    // Any process's sync may put a name on disk as soon as it is made. Without an intent there, recovery would not find
    // it after a power cut.
    intend(Vec::new())?;
    let fail = |errno| errno_error(errno, &target.shown);
    let fresh = StagedFile::create(parent, name.clone(), body.mode(old.as_ref())).map_err(fail)?;
    let (size, digest) = fresh.fill(&body, cx, &target.shown)?;
    fresh.set_access(&body, old.as_ref(), &target.shown)?;
    let ours = FileStat::from_stat(&fstat(&fresh.fd).map_err(fail)?);
    fsync(&fresh.fd).map_err(fail)?;
    let displaced = old
        .as_ref()
        .map(|old| DisplacedFile::new(target, parent, old, DisplacementPosition::default(), ticket))
        .transpose()?;
    if let (Some(old), Some(DisplacedFile { disposition: fate, .. })) = (&old, &displaced) {
        // From now on the temporary name may have our file or the old one; any other belongs to another program. Where
        // the old one is stored, the journal has both inodes, on disk.
        let inodes = vec![ours.id.inode, old.stat.id.inode];
        match fate {
            DisplacedFileAction::Discarded | DisplacedFileAction::Copied { .. } => intend(inodes)?,
            DisplacedFileAction::Stored { image } => {
                let journal = JournalRef::new(ticket.change_id(), Some(image));
                lock.log_intent(&WriteIntent::Remove {
                    parent: target.parent_path(),
                    name: name.clone(),
                    inodes,
                    journal,
                })?;
            }
        }
    }
    let before = displaced.as_ref().map(|displaced| (&displaced.state, &displaced.disposition));
    let effects = target.effects(&made, before, FileState::of_file(&ours, Some(digest)));
    let entered = target.mount.begin_change(ticket, Vec::new(), effects)?;
    ticket.commit()?;
    let rest = match (&old, &displaced) {
        (Some(old), Some(displaced)) => fresh.publish_over(target, old, &displaced.disposition)?,
        _ => fresh.publish_new(target)?,
    };
    entered.commit();
    if target.mount.durability == Durability::Full {
        fsync(parent).map_err(|errno| sync_error(errno, &target.shown))?;
    }
    let collides_with = if old.is_none() { target.collision(parent) } else { None };
    made.persist(target.mount.durability, &target.shown)?;
    // A note about a name that could not be removed stays, for the next who opens the workspace.
    if rest == TempFilePresence::Removed {
        lock.clear_intent();
    }
    let links_broken = old.as_ref().map_or(0, |old| old.stat.links.saturating_sub(1));
    Ok(WriteResult {
        unchanged: false,
        size,
        digest: Some(digest),
        created: old.is_none(),
        links_broken,
        collides_with,
    })
}

/// A file that is about to lose its name, as the journal has to know it.
#[derive(Debug)]
pub(crate) struct DisplacedFile {
    pub(crate) state: FileState,
    pub(crate) disposition: DisplacedFileAction,
}

impl DisplacedFile {
    pub(crate) fn new(
        target: &WriteTarget,
        parent: BorrowedFd<'_>,
        old: &FileToReplace,
        position: DisplacementPosition,
        ticket: &Ticket<'_>,
    ) -> Result<Self, ToolError> {
        let fate = target.mount.disposition(old, parent, position, ticket)?;
        let of_old = || FileState::of_open(&old.fd, &old.stat, &target.shown, ticket.context());
        let state = match &fate {
            DisplacedFileAction::Discarded => FileState::from_stat(&old.stat),
            DisplacedFileAction::Stored { .. } => of_old()?,
            // The copy is the pre-image.
            DisplacedFileAction::Copied { image } => {
                let copy = target.mount.image_store().and_then(|keep| keep.stat(image));
                let copy = FileState::from_stat(&copy.unwrap_or(old.stat));
                FileState { inode: copy.inode, modified: copy.modified, ..of_old()? }
            }
        };
        Ok(Self { state, disposition: fate })
    }
}

/// The directory of a target, made if it is missing; the lock; and what is there.
fn lock_for_change(
    target: &WriteTarget,
    cx: &CallContext<'_>,
) -> Result<(CreatedParents, FileLock, Option<FileToReplace>), ToolError> {
    if !target.lacks_parents() {
        let made = target.make_parents(cx)?;
        let (lock, old) = lock_and_open(target, made.parent.as_fd(), cx)?;
        return Ok((made, lock, old));
    }
    // The lock first: a call that is cancelled while waiting for it leaves no directories behind.
    let id =
        new_file_lock_id(target.base(), &target.parent_path()).map_err(|errno| errno_error(errno, &target.shown))?;
    let (lock, left) = target.mount.locks.lock(id, cx)?;
    recover(&target.mount, &lock, &left)?;
    cx.check()?;
    let made = target.make_parents(cx)?;
    let old = open_current(target, made.parent.as_fd())?;
    Ok((made, lock, old))
}

/// Locks the file at a target, and opens it.
pub(crate) fn lock_and_open(
    target: &WriteTarget,
    parent: BorrowedFd<'_>,
    cx: &CallContext<'_>,
) -> Result<(FileLock, Option<FileToReplace>), ToolError> {
    loop {
        let old = open_current(target, parent)?;
        let id = match &old {
            Some(old) => old.stat.id,
            None => new_file_lock_id(parent, &target.name).map_err(|errno| errno_error(errno, &target.shown))?,
        };
        let (lock, left) = target.mount.locks.lock(id, cx)?;
        recover(&target.mount, &lock, &left)?;
        // While we waited for the lock of one file, another may have come to stand here.
        match (old, target.stat_in(parent)?) {
            (None, None) => return Ok((lock, None)),
            (Some(old), Some(now)) if old.stat.id == now.id => {
                let stamp = FileStat::from_stat(&fstat(&old.fd).map_err(|errno| errno_error(errno, &target.shown))?);
                return Ok((lock, Some(FileToReplace { stat: stamp, ..old })));
            }
            _ => cx.check()?,
        }
    }
}

pub(crate) fn open_current(target: &WriteTarget, parent: BorrowedFd<'_>) -> Result<Option<FileToReplace>, ToolError> {
    let opened = match target.mount.open_at(parent, &target.name, OFlags::RDONLY) {
        // It may be written and not read; then it can still be replaced.
        Err(Errno::ACCESS) => target.mount.resolver.open_named(parent, &target.name, PATH_ONLY),
        other => other,
    };
    let fd = match opened {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(wrong_type(&target.shown, FileKind::Link.with_article())),
        Err(errno) => return Err(errno_error(errno, &target.shown)),
    };
    let stamp = FileStat::from_stat(&fstat(&fd).map_err(|errno| errno_error(errno, &target.shown))?);
    match stamp.kind {
        FileKind::File => Ok(Some(FileToReplace { fd, stat: stamp })),
        other => Err(wrong_type(&target.shown, other.with_article())),
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

pub(crate) fn check_writable(
    target: &WriteTarget,
    parent: BorrowedFd<'_>,
    old: Option<&FileToReplace>,
) -> Result<(), ToolError> {
    check_directory_writable(parent, &target.shown)?;
    let Some(old) = old else { return Ok(()) };
    // Taking a name asks nothing of the file that had it, so we ask.
    if old.stat.denies_write() {
        return Err(errno_error(Errno::ACCESS, &target.shown));
    }
    accessat(parent, target.name.as_slice(), Access::WRITE_OK, AtFlags::EACCESS)
        .map_err(|errno| errno_error(errno, &target.shown))
}

/// A file under a temporary name. Removed when dropped.
#[derive(Debug)]
pub(crate) struct StagedFile<'a> {
    parent: BorrowedFd<'a>,
    name: Vec<u8>,
    pub(crate) fd: OwnedFd,
}

/// Whether a file of ours is still at the temporary name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TempFilePresence {
    Removed,
    Remaining,
}

impl<'a> StagedFile<'a> {
    pub(crate) fn create(parent: BorrowedFd<'a>, name: Vec<u8>, mode: u32) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | SAFE_OPEN;
        let fd = openat(parent, name.as_slice(), flags, Mode::from_raw_mode(mode))?;
        Ok(Self { parent, name, fd })
    }

    pub(crate) fn fill(&self, body: &FileBody, cx: &CallContext<'_>, shown: &str) -> Result<(u64, Digest), ToolError> {
        let mut hasher = Sha256Hasher::default();
        let mut size = 0u64;
        let mut put = |bytes: &[u8]| {
            cx.check()?;
            hasher.update(bytes);
            size += bytes.len() as u64;
            write_all(self.fd.as_fd(), bytes).map_err(|errno| errno_error(errno, shown))
        };
        match body {
            FileBody::Bytes(bytes) => bytes.chunks(CHUNK).try_for_each(&mut put)?,
            FileBody::File { from, stamp } => {
                let mut chunk = vec![0; CHUNK];
                let mut done = 0;
                while done < stamp.size {
                    let length =
                        read_chunk(from.as_fd(), &mut chunk, done, cx).map_err(|errno| errno_error(errno, shown))?;
                    if length == 0 {
                        break;
                    }
                    put(&chunk[..length])?;
                    done += length as u64;
                }
                let now = FileStat::from_stat(&fstat(from).map_err(|errno| errno_error(errno, shown))?);
                if done != stamp.size || !now.same_content(stamp) {
                    let message =
                        format!("the source of `{shown}` was modified while it was copied; nothing was changed");
                    return Err(ToolError::new(ErrorKind::Conflict, message));
                }
            }
        }
        Ok((size, hasher.finish()))
    }

    /// Sets owner and permissions: those of the file that it replaces, or those of new files.
    pub(crate) fn set_access(
        &self,
        body: &FileBody,
        old: Option<&FileToReplace>,
        shown: &str,
    ) -> Result<(), ToolError> {
        match old {
            Some(old) => self.copy_metadata(old, shown),
            None => chmod_past_umask(self.fd.as_fd(), self.parent, body.mode(None))
                .map_err(|errno| errno_error(errno, shown)),
        }
    }

    /// Owner, mode and attributes of the file that it replaces.
    fn copy_metadata(&self, old: &FileToReplace, shown: &str) -> Result<(), ToolError> {
        let fail = |errno| errno_error(errno, shown);
        let mine = FileStat::from_stat(&fstat(&self.fd).map_err(fail)?);
        if mine.owner != old.stat.owner {
            let (user, group) = old.stat.owner;
            fchown(&self.fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(|errno| match errno {
                Errno::PERM => ToolError::new(
                    ErrorKind::PermissionDenied,
                    format!("the owner of `{shown}` could not be preserved"),
                ),
                other => fail(other),
            })?;
        }
        copy_attributes(&old.fd, &self.fd).map_err(|_| {
            ToolError::new(
                ErrorKind::PermissionDenied,
                format!("the access control list of `{shown}` could not be preserved"),
            )
        })?;
        // Contents that another user chose must not run with the owner's rights.
        fchmod(&self.fd, Mode::from_raw_mode(old.stat.mode & 0o777)).map_err(fail)
    }

    fn publish_new(self, target: &WriteTarget) -> Result<TempFilePresence, ToolError> {
        match rename_noreplace((self.parent, &self.name), (self.parent, &target.name)) {
            Ok(()) => {
                self.disarm();
                Ok(TempFilePresence::Removed)
            }
            Err(Errno::EXIST) => Err(ToolError::new(
                ErrorKind::Conflict,
                format!("`{}` was created since the call was planned; nothing was changed", target.shown),
            )),
            Err(errno) => Err(errno_error(errno, &target.shown)),
        }
    }

    fn publish_over(
        self,
        target: &WriteTarget,
        old: &FileToReplace,
        fate: &DisplacedFileAction,
    ) -> Result<TempFilePresence, ToolError> {
        let fail = |errno| errno_error(errno, &target.shown);
        let keep = match fate {
            DisplacedFileAction::Stored { image } => {
                Some((target.mount.image_store().ok_or_else(|| fail(Errno::NOENT))?, image))
            }
            DisplacedFileAction::Discarded | DisplacedFileAction::Copied { .. } => None,
        };
        match self.exchange(&target.name) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(concurrent_change_error(target, None)),
            // No exchange on this file system: look once more, then replace.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let now = target.stat_in(self.parent)?;
                if now.is_none_or(|now| !now.same_content(&old.stat)) {
                    return Err(concurrent_change_error(target, None));
                }
                if let Some((keep, image)) = &keep {
                    linkat(self.parent, target.name.as_slice(), keep.fd(), image.as_str(), AtFlags::empty())
                        .map_err(fail)?;
                }
                renameat(self.parent, self.name.as_slice(), self.parent, target.name.as_slice()).map_err(fail)?;
                self.disarm();
                return Ok(TempFilePresence::Removed);
            }
            Err(errno) => return Err(fail(errno)),
        }
        // A file that cannot be inspected may be anything, and goes back as well.
        let displaced = stat(self.parent, &self.name).ok().flatten();
        if displaced.is_some_and(|displaced| displaced.same_content(&old.stat)) {
            // The old file has our temporary name now.
            if let Some((keep, image)) = &keep {
                if let Err(errno) = keep.store(self.parent, &self.name, image) {
                    let _ = self.roll_back(target);
                    return Err(fail(errno));
                }
                self.disarm();
                return Ok(TempFilePresence::Removed);
            }
            let removed = unlinkat(self.parent, self.name.as_slice(), AtFlags::empty()).is_ok();
            self.disarm();
            return Ok(if removed { TempFilePresence::Removed } else { TempFilePresence::Remaining });
        }
        Err(self.roll_back(target))
    }

    /// Gives the displaced file, which is not the one that was read, its name back.
    fn roll_back(self, target: &WriteTarget) -> ToolError {
        match self.exchange(&target.name) {
            Ok(()) => {}
            // Ours is gone from there already: what it displaced gets the free name, or the next best.
            Err(Errno::NOENT) => {
                if rename_noreplace((self.parent, &self.name), (self.parent, &target.name)).is_err() {
                    return self.keep_conflict_copy(target);
                }
                self.disarm();
                return concurrent_change_error(target, None);
            }
            Err(_) => return self.keep_conflict_copy(target),
        }
        match (fstat(&self.fd), stat(self.parent, &self.name)) {
            (Ok(mine), Ok(back)) if back.is_none_or(|back| back.id == FileStat::from_stat(&mine).id) => {
                concurrent_change_error(target, None)
            }
            // Another program replaced the file between our two steps.
            _ => self.keep_conflict_copy(target),
        }
    }

    /// Renames the file at our temporary name, which is another program's, to a visible name.
    fn keep_conflict_copy(self, target: &WriteTarget) -> ToolError {
        let kept = rename_to_conflict(self.parent, &self.name);
        self.disarm();
        match kept {
            Ok(copy) => concurrent_change_error(target, Some(&copy)),
            Err(errno) => errno_error(errno, &target.shown),
        }
    }

    fn exchange(&self, with: &[u8]) -> Result<(), Errno> {
        renameat_with(self.parent, self.name.as_slice(), self.parent, with, RenameFlags::EXCHANGE)
    }

    /// The temporary name is no longer ours to remove.
    pub(crate) fn disarm(mut self) {
        self.name.clear();
    }
}

impl Drop for StagedFile<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = unlinkat(self.parent, self.name.as_slice(), AtFlags::empty());
        }
    }
}

pub(crate) fn concurrent_change_error(target: &WriteTarget, copy: Option<&str>) -> ToolError {
    let message = format!("`{}` was changed concurrently by another program; nothing was changed", target.shown);
    let error = ToolError::new(ErrorKind::Conflict, message);
    match copy {
        Some(copy) => {
            error.hint(&format!("a version of it was kept as `{copy}` beside it")).detail("conflictCopy", copy)
        }
        None => error,
    }
}

/// An unguessable name that does not reveal the target's.
pub(crate) fn temporary_name() -> Result<Vec<u8>, Errno> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
    Ok(format!("{TEMP_PREFIX}{:032x}", u128::from_ne_bytes(random)).into_bytes())
}

/// The lock for a file that does not exist yet.
pub(crate) fn new_file_lock_id(parent: BorrowedFd<'_>, name: &[u8]) -> Result<FileId, Errno> {
    let FileId { device, inode } = FileStat::from_stat(&fstat(parent)?).id;
    let mixed = name.iter().fold(inode, |mixed, byte| (mixed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    Ok(FileId { device, inode: mixed })
}
