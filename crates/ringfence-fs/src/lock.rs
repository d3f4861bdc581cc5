//! File locks across processes: one change to a file at a time.
//!
//! A lock is a file in our state directory, chosen by the identity of the file that is changed. Its holder notes the ID
//! of its change in it, and settles the note when the change is. A process that finds an unsettled one after acquiring
//! the lock knows that the writer died, and recovers the change from the journal first. A note need not survive a power
//! cut: no process does, and the next one to open the workspace recovers every change without an outcome.
//!
//! Not here: safety against programs that do not take the lock. Replacing compares what it displaced.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::root::{Durability, stat};
use crate::sys::own_files::{SAFE_OPEN, names_in, write_all};
use crate::sys::stat::{FileId, FileStat};
use crate::sys::syscall::{fdatasync, flock, fsync, ftruncate, openat, pread, pwrite, renameat};

/// Number of lock files, and so of files that can be changed at once without waiting, collisions aside.
const STRIPES: u64 = 256;

/// The longest pause between two attempts to acquire a lock.
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// Time that a migration waits for the writers of an earlier version.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// A note is shorter.
const LONGEST_NOTE: usize = 256;

/// Last byte of the note of a change that is under way.
const UNSETTLED: u8 = b'.';

/// The same once it is settled. To earlier processes of this version such a note is a torn one, which means nothing.
const SETTLED: u8 = b'-';

/// Version of the formats in the state of a mount: notes of locks, and the journal. Version 1 had records of its own
/// beside the locks.
const STATE_VERSION: u32 = 2;
const VERSION_FILE: &str = "version";

/// The tree lock beside the stripes.
const TREE: &str = "tree";

/// The lock of processes that settle the changes of crashed ones.
const RECOVERY: &str = "recovery";

/// Beginnings of the intents and names of the records that version 1 left beside the locks.
const EARLIER_INTENTS: [&[u8]; 4] = [b"remove\0", b"overwrite\0", b"step\0", b"append\0"];
const EARLIER_RECORDS: [&str; 2] = ["batch-", "done-"];

/// The state that an earlier version left.
enum EarlierState {
    /// Nothing was ever changed.
    Missing,
    Settled,
    /// A process died in the middle of a change.
    Interrupted,
}

/// The locks of one mount.
#[derive(Debug)]
pub(crate) struct LockTable {
    directory: OwnedFd,
}

/// Mode of the tree lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeLockMode {
    Shared,
    Exclusive,
}

/// A lock that is held until this is dropped: of a file, or of the tree.
#[derive(Debug)]
pub(crate) struct HeldLock {
    file: OwnedFd,
    /// The settled note of the last holder, once it was read.
    found: RefCell<Option<Vec<u8>>>,
    /// Length of the note in the file, once it is known.
    length: Cell<Option<usize>>,
}

impl HeldLock {
    fn new(file: OwnedFd) -> Self {
        Self { file, found: RefCell::default(), length: Cell::default() }
    }

    /// The change of the last holder, if it died before the change was settled.
    pub(crate) fn abandoned_change(&self) -> Result<Option<String>, ToolError> {
        let mut note = [0u8; LONGEST_NOTE];
        let length = pread(&self.file, &mut note, 0).map_err(lock_error)?;
        let note = &note[..length];
        self.length.set(Some(length));
        *self.found.borrow_mut() = is_settled_note(note).then(|| note.to_vec());
        match note.strip_suffix(&[UNSETTLED]) {
            Some(id) if id.iter().all(is_id_byte) => Ok(Some(String::from_utf8_lossy(id).into_owned())),
            // Settled, or torn: its writer died before it began anything.
            None if note.iter().all(is_id_byte) => Ok(None),
            // A process of version 1 that was refused by the journal left it, and nothing else.
            _ if EARLIER_INTENTS.iter().any(|kind| note.starts_with(kind)) => Ok(None),
            _ => Err(newer_state_error()),
        }
    }

    /// Says which change is carried out under this lock.
    pub(crate) fn note(&self, change: &str) -> Result<(), ToolError> {
        let note = [change.as_bytes(), &[UNSETTLED]].concat();
        if self.length.take().is_none_or(|length| length > note.len()) {
            ftruncate(&self.file, 0).map_err(lock_error)?;
        }
        match pwrite(&self.file, &note, 0) {
            Ok(written) if written == note.len() => {
                self.length.set(Some(written));
                Ok(())
            }
            Ok(_) => Err(lock_error(Errno::NOSPC)),
            Err(errno) => Err(lock_error(errno)),
        }
    }

    /// Settles the note. One byte costs less than a file that loses its block with every change and gets another.
    pub(crate) fn clear(&self) {
        let last = self.length.get().and_then(|length| length.checked_sub(1));
        let settled = last.is_some_and(|last| pwrite(&self.file, &[SETTLED], last as u64).is_ok());
        if !settled {
            // Left behind, it makes the next holder look for a change that is settled.
            let _ = ftruncate(&self.file, 0);
        }
    }

    /// Puts back the note that was found here, after a change that was not made.
    pub(crate) fn restore(&self) {
        let found = self.found.take().unwrap_or_default();
        let restored = pwrite(&self.file, &found, 0).is_ok_and(|written| written == found.len());
        let _ = ftruncate(&self.file, if restored { found.len() as u64 } else { 0 });
    }
}

/// Whether a lock has no note, or that of a change which this version settled.
fn is_settled_note(note: &[u8]) -> bool {
    note.is_empty() || (note.ends_with(&[SETTLED]) && note.iter().all(is_id_byte))
}

fn is_id_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'-'
}

impl LockTable {
    pub(crate) fn new(directory: OwnedFd) -> Self {
        Self { directory }
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Waits for the lock on `id`, as long as the call is not cancelled.
    pub(crate) fn lock(&self, id: FileId, cx: &CallContext<'_>) -> Result<HeldLock, ToolError> {
        self.wait_for(&stripe_name(stripe_of(id)), FlockOperation::NonBlockingLockExclusive, cx)
    }

    /// The locks on several files, each once, in an order that no two callers take differently.
    pub(crate) fn lock_all(&self, ids: &[FileId], cx: &CallContext<'_>) -> Result<Vec<HeldLock>, ToolError> {
        let mut ids = ids.to_vec();
        ids.sort_by_key(|id| stripe_of(*id));
        ids.dedup_by_key(|id| stripe_of(*id));
        ids.into_iter().map(|id| self.lock(id, cx)).collect()
    }

    /// Waits for the tree lock: shared by changes to files, exclusive for moving directories. The directories of judged
    /// paths keep their names until this is dropped.
    pub(crate) fn lock_tree(&self, hold: TreeLockMode, cx: &CallContext<'_>) -> Result<HeldLock, ToolError> {
        let operation = match hold {
            TreeLockMode::Shared => FlockOperation::NonBlockingLockShared,
            TreeLockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        self.wait_for(TREE, operation, cx)
    }

    /// The exclusive tree lock, if it is free.
    pub(crate) fn try_lock_tree(&self) -> Option<HeldLock> {
        let file = self.open(TREE).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(HeldLock::new(file))
    }

    /// Waits for other processes that recover.
    pub(crate) fn lock_recovery(&self) -> Result<HeldLock, ToolError> {
        let file = self.open(RECOVERY).map_err(lock_error)?;
        flock(&file, FlockOperation::LockExclusive).map_err(lock_error)?;
        Ok(HeldLock::new(file))
    }

    /// Brings the state of an earlier version to this one: here, and in `directories`. From then on a process of that
    /// version that still runs is refused by the journal. Fails where it died in the middle of a change, or is busy.
    pub(crate) fn migrate(&self, directories: &[BorrowedFd<'_>]) -> io::Result<()> {
        let directories = || std::iter::once(self.directory.as_fd()).chain(directories.iter().copied());
        let mut is_current = true;
        for directory in directories() {
            is_current &= state_version(directory)? == STATE_VERSION;
        }
        if is_current {
            return Ok(());
        }
        let started = Instant::now();
        let _alone = loop {
            match self.try_lock_tree() {
                Some(tree) => break tree,
                None if started.elapsed() > MIGRATION_TIMEOUT => return Err(io::ErrorKind::ResourceBusy.into()),
                None => std::thread::sleep(LONGEST_PAUSE),
            }
        };
        let durability = match self.earlier_state()? {
            EarlierState::Interrupted => return Err(io::ErrorKind::InvalidData.into()),
            EarlierState::Settled => Durability::Full,
            // There is nothing that a process of version 1 could misread.
            EarlierState::Missing => Durability::Ordered,
        };
        directories().try_for_each(|directory| write_version(directory, durability))
    }

    /// What version 1 left beside the locks.
    fn earlier_state(&self) -> io::Result<EarlierState> {
        let mut found = EarlierState::Missing;
        let is_stripe =
            |name: &str| u64::from_str_radix(name, 16).is_ok_and(|it| it < STRIPES && stripe_name(it) == name);
        for name in names_in(self.directory.as_fd(), usize::MAX)? {
            if EARLIER_RECORDS.iter().any(|prefix| name.starts_with(prefix))
                || (is_stripe(&name) && !self.is_settled(&name)?)
            {
                return Ok(EarlierState::Interrupted);
            }
            if is_stripe(&name) {
                found = EarlierState::Settled;
            }
        }
        Ok(found)
    }

    fn is_settled(&self, name: &str) -> io::Result<bool> {
        let mut note = [0u8; LONGEST_NOTE];
        let length = pread(self.open(name)?, &mut note, 0)?;
        Ok(is_settled_note(&note[..length]))
    }

    fn wait_for(&self, name: &str, operation: FlockOperation, cx: &CallContext<'_>) -> Result<HeldLock, ToolError> {
        let file = self.open(name).map_err(lock_error)?;
        let mut pause = Duration::from_micros(50);
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(HeldLock::new(file)),
                Err(Errno::AGAIN) => {
                    cx.check()?;
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(errno) => return Err(lock_error(errno)),
            }
        }
    }

    fn open(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | SAFE_OPEN;
        openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)
    }
}

/// The version file of a directory, as it was when it was last read. A newer version replaces it.
#[derive(Debug, Default)]
pub(crate) struct StateVersionCheck {
    read: Mutex<Option<FileStat>>,
}

impl StateVersionCheck {
    /// Fails with `Unsupported` if a newer version keeps the state in this directory.
    pub(crate) fn check(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        let found = stat(directory, VERSION_FILE.as_bytes())?;
        if found.is_some() && *self.read.lock() == found {
            return Ok(());
        }
        state_version(directory)?;
        *self.read.lock() = found;
        Ok(())
    }
}

/// Version of the state in a directory. It says so in a file: without one the version is 1.
fn state_version(directory: BorrowedFd<'_>) -> io::Result<u32> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN;
    let file = match openat(directory, VERSION_FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(1),
        file => file?,
    };
    let mut text = [0u8; 16];
    let length = pread(&file, &mut text, 0)?;
    if length == 0 {
        // A power cut took what was written before anything was ever changed.
        return Ok(1);
    }
    let version = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.trim_end().parse().ok());
    version.filter(|version| *version <= STATE_VERSION).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

fn write_version(directory: BorrowedFd<'_>, durability: Durability) -> io::Result<()> {
    const NEW: &str = "version.new";
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | SAFE_OPEN;
    let file = openat(directory, NEW, flags, Mode::RUSR | Mode::WUSR)?;
    write_all(file.as_fd(), format!("{STATE_VERSION}\n").as_bytes())?;
    if durability == Durability::Ordered {
        return Ok(renameat(directory, NEW, directory, VERSION_FILE)?);
    }
    fdatasync(&file)?;
    renameat(directory, NEW, directory, VERSION_FILE)?;
    Ok(fsync(directory)?)
}

/// Reply to a change where a newer version left something to recover.
pub(crate) fn newer_state_error() -> ToolError {
    let message = "a newer version of Ringfence was interrupted in a change; nothing was changed";
    ToolError::new(ErrorKind::Unavailable, message).hint(INSTALL_NEWER)
}

pub(crate) const INSTALL_NEWER: &str = "install the newer version, or use another state directory";

fn stripe_of(id: FileId) -> u64 {
    // Fixed for ever: processes of different versions have to meet at the same file.
    (id.inode ^ id.device.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56
}

fn stripe_name(stripe: u64) -> String {
    format!("{stripe:02x}")
}

fn lock_error(errno: Errno) -> ToolError {
    if errno == Errno::FBIG {
        return ToolError::new(ErrorKind::WriteLimit, "it exceeds the file size limit of this process");
    }
    let message = format!("cannot use Ringfence's lock files (error {})", errno.raw_os_error());
    ToolError::new(ErrorKind::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, OFlags};

    use super::{HeldLock, LONGEST_NOTE, LockTable, RECOVERY, SAFE_OPEN, openat, pread};

    const CHANGE: &str = "c-00112233445566778899";

    /// A table of its own, and a way to hold one of its locks again.
    fn table() -> (tempfile::TempDir, LockTable) {
        let directory = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
        let opened = openat(CWD, directory.path(), flags, Mode::empty()).unwrap();
        (directory, LockTable::new(opened))
    }

    fn hold(table: &LockTable) -> (HeldLock, Option<String>) {
        let lock = table.lock_recovery().unwrap();
        let abandoned = lock.abandoned_change().unwrap();
        (lock, abandoned)
    }

    #[test]
    fn an_unsettled_note_names_its_change_and_a_settled_one_names_none() {
        let (_directory, table) = table();
        let (lock, abandoned) = hold(&table);
        assert_eq!(abandoned, None);
        lock.note(CHANGE).unwrap();
        drop(lock);
        let (lock, abandoned) = hold(&table);
        assert_eq!(abandoned.as_deref(), Some(CHANGE));
        lock.clear();
        drop(lock);
        assert!(table.is_settled(RECOVERY).unwrap());
        let (lock, abandoned) = hold(&table);
        assert_eq!(abandoned, None);
        lock.note("c-1").unwrap();
        drop(lock);
        assert_eq!(hold(&table).1.as_deref(), Some("c-1"), "nothing is left of a longer note");
    }

    #[test]
    fn a_change_that_was_not_made_leaves_the_note_that_it_found() {
        let (_directory, table) = table();
        let note = || {
            let mut note = [0u8; LONGEST_NOTE];
            let length = pread(table.open(RECOVERY).unwrap(), &mut note, 0).unwrap();
            note[..length].to_vec()
        };
        for made in [false, true] {
            let (lock, _) = hold(&table);
            let before = note();
            assert_eq!(before.is_empty(), !made);
            lock.note("c-ffffffffffffffffffff").unwrap();
            lock.restore();
            assert_eq!(note(), before);
            lock.note(CHANGE).unwrap();
            lock.clear();
        }
    }
}
