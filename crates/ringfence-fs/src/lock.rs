//! File locks across processes: one change to a file at a time.
//!
//! A lock is a file in our state directory, chosen by the identity of the file that is changed. Its holder writes its
//! intent into it; a process that finds an intent after acquiring the lock knows that the writer died, and recovers
//! first. Intents are appended, never overwritten: a torn write in a power cut leaves the one before it intact.
//!
//! Not here: safety against programs that do not take the lock. Replacing compares what it displaced.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::sys::own_files::{SAFE_OPEN, names_in};
use crate::sys::stat::FileId;
use crate::sys::syscall::{fdatasync, flock, fsync, ftruncate, openat, pread, pwrite, renameat, unlinkat};

/// Number of lock files, and so of files that can be changed at once without waiting, collisions aside.
const STRIPES: u64 = 256;

/// The longest pause between two attempts to acquire a lock.
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// Notes are shorter than the first, but for what an append is to add, which is shorter than the second.
const SHORT_NOTE: usize = 16 << 10;
const LONGEST_NOTE: usize = 80 << 20;

/// Kinds of intents. One of a newer version must not begin like one of these, or it would be taken for a torn one.
const INTENT_KINDS: [&[u8]; 4] = [b"remove", b"overwrite", b"step", b"append"];

/// Version of the formats in the state of a mount: intents, transaction records and the journal.
const STATE_VERSION: u32 = 1;
const VERSION_FILE: &str = "version";

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

/// The tree, until this is dropped.
#[derive(Debug)]
pub(crate) struct TreeLock {
    lock: OwnedFd,
}

impl TreeLock {
    /// The batch of the exclusive holder of the tree lock, running or crashed.
    pub(crate) fn batch(&self) -> Option<Vec<u8>> {
        let mut id = [0u8; 256];
        let length = pread(&self.lock, &mut id, 0).ok()?;
        let id = id[..length].strip_suffix(b".")?;
        Some(id.to_vec())
    }

    /// Says which batch is carried out while the tree is held alone.
    pub(crate) fn log_intent(&self, batch: &[u8]) -> Result<(), ToolError> {
        let note = [batch, b"."].concat();
        match pwrite(&self.lock, &note, 0) {
            Ok(written) if written == note.len() => Ok(()),
            Ok(_) => Err(lock_error(Errno::NOSPC)),
            Err(errno) => Err(lock_error(errno)),
        }
    }

    pub(crate) fn clear_intent(&self) {
        // Left behind, it makes others look for a note that is not there.
        let _ = ftruncate(&self.lock, 0);
    }
}

/// A lock that is held until this is dropped.
#[derive(Debug)]
pub(crate) struct FileLock {
    stripe: OwnedFd,
    /// Length of the intents in the lock file.
    intents_length: Cell<usize>,
    /// Length of the part that a crashed holder left, and that could not be recovered yet.
    abandoned_length: Cell<usize>,
}

/// The intent of a change, for recovery after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteIntent {
    /// The file at this name is to be removed, if it is one of these inodes. Any other belongs to another program, and
    /// is renamed. No inode at all means that it is ours, unless the journal has the change: then it has our inode, and
    /// that of the displaced file, which goes to the image store.
    Remove { parent: Vec<u8>, name: Vec<u8>, inodes: Vec<u64>, journal: JournalRef },
    /// Two files are exchanged, and then the one that was at `to` is removed. Found exchanged, it is removed; otherwise
    /// both stay, because another program put them there.
    Overwrite { from: InodeRef, to: InodeRef, journal: JournalRef },
    /// Bytes are added to the end of a file that was `before` long. Found with a part of them at its end, and nothing
    /// else, it goes back to what it was.
    Append { parent: Vec<u8>, name: Vec<u8>, inode: u64, before: u64, content: Vec<u8>, change: Vec<u8> },
    /// One step of the kernel does it. Only the journal has to know whether it was done.
    SingleSyscall { change: Vec<u8> },
}

/// Reference to the journal's record of the change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalRef {
    pub(crate) change: Vec<u8>,
    /// The name of the displaced file in the image store; empty if it is deleted permanently.
    pub(crate) image: Vec<u8>,
}

impl JournalRef {
    pub(crate) fn new(change: &str, image: Option<&str>) -> Self {
        Self { change: change.as_bytes().to_vec(), image: image.unwrap_or_default().as_bytes().to_vec() }
    }
}

/// A name below the root, and the inode that stood there when the note was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InodeRef {
    pub(crate) parent: Vec<u8>,
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
}

impl LockTable {
    pub(crate) fn new(directory: OwnedFd) -> Self {
        Self { directory }
    }

    /// Waits for the lock on `id`, as long as the call is not cancelled. Second come the intents of crashed holders.
    pub(crate) fn lock(&self, id: FileId, cx: &CallContext<'_>) -> Result<(FileLock, Vec<WriteIntent>), ToolError> {
        let stripe = self.open(stripe_of(id)).map_err(lock_error)?;
        wait_for_lock(&stripe, FlockOperation::NonBlockingLockExclusive, cx)?;
        let lock = FileLock::new(stripe);
        let left = lock.read_intents()?;
        Ok((lock, left))
    }

    /// Waits for the tree lock: shared by changes to files, exclusive for moving directories. The directories of judged
    /// paths keep their names until this is dropped.
    pub(crate) fn lock_tree(&self, hold: TreeLockMode, cx: &CallContext<'_>) -> Result<TreeLock, ToolError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | SAFE_OPEN;
        let lock = openat(&self.directory, "tree", flags, Mode::RUSR | Mode::WUSR).map_err(lock_error)?;
        let operation = match hold {
            TreeLockMode::Shared => FlockOperation::NonBlockingLockShared,
            TreeLockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        wait_for_lock(&lock, operation, cx)?;
        Ok(TreeLock { lock })
    }

    /// The exclusive tree lock, if it is free.
    pub(crate) fn try_lock_tree(&self) -> Option<TreeLock> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | SAFE_OPEN;
        let lock = openat(&self.directory, "tree", flags, Mode::RUSR | Mode::WUSR).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(TreeLock { lock })
    }

    /// The locks on two files, in an order that two callers never take the other way round.
    pub(crate) fn lock_both(
        &self,
        one: FileId,
        other: FileId,
        cx: &CallContext<'_>,
    ) -> Result<Vec<(FileLock, Vec<WriteIntent>)>, ToolError> {
        self.lock_all(&[one, other], cx)
    }

    /// The locks on several files, each once, in an order that no two callers take differently.
    pub(crate) fn lock_all(
        &self,
        ids: &[FileId],
        cx: &CallContext<'_>,
    ) -> Result<Vec<(FileLock, Vec<WriteIntent>)>, ToolError> {
        let mut ids = ids.to_vec();
        ids.sort_by_key(|id| stripe_of(*id));
        ids.dedup_by_key(|id| stripe_of(*id));
        ids.into_iter().map(|id| self.lock(id, cx)).collect()
    }

    /// A new file beside the locks.
    pub(crate) fn create(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | SAFE_OPEN;
        openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)
    }

    pub(crate) fn open_named(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        openat(&self.directory, name, OFlags::RDWR | OFlags::NOFOLLOW | SAFE_OPEN, Mode::empty())
    }

    pub(crate) fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        renameat(&self.directory, from, &self.directory, to)
    }

    pub(crate) fn remove(&self, name: &[u8]) {
        // Left behind, it makes the next who looks do nothing that is not still to be done.
        let _ = unlinkat(&self.directory, name, AtFlags::empty());
    }

    pub(crate) fn sync(&self) -> Result<(), Errno> {
        fsync(&self.directory)
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Every lock in which crashed holders left intents. Fails if one of them had a newer version.
    pub(crate) fn abandoned_locks(&self) -> Result<Vec<(FileLock, Vec<WriteIntent>)>, ToolError> {
        let mut found = Vec::new();
        let all = || (0..STRIPES).map(stripe_name).collect();
        // Few are there before many files were changed. Where they cannot be listed, all are tried.
        let there: Vec<String> = names_in(self.directory(), usize::MAX).unwrap_or_else(|_| all());
        let is_stripe = |name: &str| {
            u64::from_str_radix(name, 16).is_ok_and(|number| number < STRIPES && stripe_name(number) == name)
        };
        for name in there.iter().filter(|name| is_stripe(name)) {
            let Ok(stripe) = self.open_named(name.as_bytes()) else { continue };
            if flock(&stripe, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let lock = FileLock::new(stripe);
            match lock.read_intents() {
                Ok(intents) if intents.is_empty() => {}
                Ok(intents) => found.push((lock, intents)),
                Err(IntentReadError::Newer) => return Err(IntentReadError::Newer.into()),
                // The next change to its files reports the error.
                Err(IntentReadError::Io(_)) => {}
            }
        }
        Ok(found)
    }

    fn open(&self, stripe: u64) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | SAFE_OPEN;
        openat(&self.directory, stripe_name(stripe), flags, Mode::RUSR | Mode::WUSR)
    }
}

impl FileLock {
    fn new(stripe: OwnedFd) -> Self {
        Self { stripe, intents_length: Cell::new(0), abandoned_length: Cell::new(0) }
    }

    /// Says what is about to be done. Of two notes about one name the later counts.
    pub(crate) fn log_intent(&self, intent: &WriteIntent) -> Result<(), ToolError> {
        let note = intent.encode();
        let start = self.intents_length.get();
        let mut written = 0;
        while written < note.len() {
            match pwrite(&self.stripe, &note[written..], (start + written) as u64) {
                Ok(more @ 1..) => written += more,
                Ok(0) => return Err(self.discard_partial(start, lock_error(Errno::NOSPC))),
                Err(errno) => return Err(self.discard_partial(start, lock_error(errno))),
            }
        }
        self.intents_length.set(start + note.len());
        Ok(())
    }

    /// The same, on disk: it is there after a power cut too.
    pub(crate) fn log_intent_durably(&self, intent: &WriteIntent) -> Result<(), ToolError> {
        let start = self.intents_length.get();
        self.log_intent(intent)?;
        fdatasync(&self.stripe).map_err(|errno| {
            let message = format!("the intent record cannot be synced to disk (error {})", errno.raw_os_error());
            self.discard_partial(start, ToolError::new(ErrorKind::Io, message))
        })
    }

    /// Removes an intent that could not be written whole.
    fn discard_partial(&self, start: usize, error: ToolError) -> ToolError {
        self.truncate(start);
        error
    }

    /// Removes our own intent, which is done or rolled back.
    pub(crate) fn clear_intent(&self) {
        self.truncate(self.abandoned_length.get());
    }

    /// Removes the intents of crashed holders too.
    pub(crate) fn clear_all_intents(&self) {
        self.abandoned_length.set(0);
        self.clear_intent();
    }

    fn truncate(&self, length: usize) {
        // Left behind, a note makes the next holder look once more, and do nothing that is not still to be done.
        if ftruncate(self.stripe.as_fd(), length as u64).is_ok() {
            self.intents_length.set(length);
        }
    }

    fn read_intents(&self) -> Result<Vec<WriteIntent>, IntentReadError> {
        let mut note = vec![0; SHORT_NOTE];
        let mut length = pread(&self.stripe, &mut note, 0).map_err(IntentReadError::Io)?;
        // Only what is to be appended makes a note long.
        if length == SHORT_NOTE {
            note.resize(LONGEST_NOTE, 0);
            while length < LONGEST_NOTE {
                match pread(&self.stripe, &mut note[length..], length as u64).map_err(IntentReadError::Io)? {
                    0 => break,
                    more => length += more,
                }
            }
        }
        let (intents, whole) = WriteIntent::decode_all(&note[..length]);
        if has_unknown_kind(&note[whole..length]) {
            return Err(IntentReadError::Newer);
        }
        // The next intent is written over an incomplete one.
        self.intents_length.set(whole);
        self.abandoned_length.set(whole);
        if whole < length {
            self.clear_intent();
        }
        Ok(intents)
    }
}

/// Failure to read the intents in a lock.
enum IntentReadError {
    Io(Errno),
    Newer,
}

impl From<IntentReadError> for ToolError {
    fn from(error: IntentReadError) -> Self {
        match error {
            IntentReadError::Io(errno) => lock_error(errno),
            IntentReadError::Newer => newer_state_error(),
        }
    }
}

impl WriteIntent {
    fn encode(&self) -> Vec<u8> {
        let (kind, texts, numbers) = match self {
            Self::Remove { parent, name, inodes, journal } => {
                ("remove", vec![parent, name, &journal.change, &journal.image], inodes.clone())
            }
            Self::Overwrite { from, to, journal } => (
                "overwrite",
                vec![&from.parent, &from.name, &to.parent, &to.name, &journal.change, &journal.image],
                vec![from.inode, to.inode],
            ),
            Self::SingleSyscall { change } => ("step", vec![change], Vec::new()),
            Self::Append { parent, name, inode, before, content, change } => {
                ("append", vec![parent, name, change], vec![*inode, *before, content.len() as u64])
            }
        };
        let numbers = numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let mut note = kind.as_bytes().to_vec();
        for text in std::iter::once(numbers.as_bytes()).chain(texts.into_iter().map(Vec::as_slice)) {
            note.push(0);
            note.extend_from_slice(text);
        }
        // A note without its end was cut by the death of its writer: nothing was begun yet.
        note.extend_from_slice(b"\0.");
        if let Self::Append { content, .. } = self {
            note.extend_from_slice(content);
        }
        note
    }

    /// Every complete intent, and their total length. A rest was torn by a crash of its writer, or never reached the
    /// disk.
    fn decode_all(notes: &[u8]) -> (Vec<Self>, usize) {
        let (mut intents, mut rest) = (Vec::new(), notes);
        while let Some((intent, behind)) = Self::decode(rest) {
            intents.retain(|earlier: &Self| !intent.supersedes(earlier));
            intents.push(intent);
            rest = behind;
        }
        (intents, notes.len() - rest.len())
    }

    /// Whether it is about the same name, and knows more.
    fn supersedes(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Remove { parent, name, .. }, Self::Remove { parent: its_parent, name: its_name, .. }) => {
                (parent, name) == (its_parent, its_name)
            }
            _ => false,
        }
    }

    /// The first of several notes, and what is behind it.
    fn decode(notes: &[u8]) -> Option<(Self, &[u8])> {
        let (kind, rest) = field(notes)?;
        let (numbers, rest) = field(rest)?;
        let numbers = std::str::from_utf8(numbers).ok()?.split(',').filter(|number| !number.is_empty());
        let numbers = numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let many = match kind {
            b"remove" => 4,
            b"overwrite" => 6,
            b"step" => 1,
            b"append" => 3,
            _ => return None,
        };
        let (mut texts, mut rest) = (Vec::new(), rest);
        for _ in 0..many {
            let (text, behind) = field(rest)?;
            texts.push(text.to_vec());
            rest = behind;
        }
        let mut rest = rest.strip_prefix(b".")?;
        let mut texts = texts.into_iter();
        let mut text = || texts.next().unwrap_or_default();
        let intent = match (kind, &numbers[..]) {
            (b"remove", _) => {
                let (parent, name) = (text(), text());
                Self::Remove { parent, name, inodes: numbers, journal: JournalRef { change: text(), image: text() } }
            }
            (b"overwrite", &[source, target]) => {
                let mut place = |inode| InodeRef { parent: text(), name: text(), inode };
                let (from, to) = (place(source), place(target));
                Self::Overwrite { from, to, journal: JournalRef { change: text(), image: text() } }
            }
            (b"step", []) => Self::SingleSyscall { change: text() },
            (b"append", &[inode, before, length]) => {
                let (content, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                rest = behind;
                let (parent, name, content) = (text(), text(), content.to_vec());
                Self::Append { parent, name, inode, before, content, change: text() }
            }
            _ => return None,
        };
        Some((intent, rest))
    }
}

/// Whether what cannot be decoded is an intent of a newer version. A torn one has a known kind or the start of one.
fn has_unknown_kind(note: &[u8]) -> bool {
    field(note).is_some_and(|(kind, _)| !INTENT_KINDS.iter().any(|known| known.starts_with(kind)))
}

/// Fails with `Unsupported` if a newer version keeps the state in this directory. It says so in a file: without one the
/// version is 1.
pub(crate) fn check_state_version(directory: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN;
    let file = match openat(directory, VERSION_FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        file => file?,
    };
    let mut text = [0u8; 16];
    let length = pread(&file, &mut text, 0)?;
    let version = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.trim_end().parse().ok());
    if version.is_some_and(|version: u32| version <= STATE_VERSION) {
        Ok(())
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Reply to a change where a newer version left something to recover.
pub(crate) fn newer_state_error() -> ToolError {
    let message = "a newer version of Ringfence was interrupted in a change; nothing was changed";
    ToolError::new(ErrorKind::Unavailable, message).hint(INSTALL_NEWER)
}

pub(crate) const INSTALL_NEWER: &str = "install the newer version, or use another state directory";

/// The text up to the next zero, and what is behind that.
fn field(note: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = note.iter().position(|byte| *byte == 0)?;
    Some((&note[..end], &note[end + 1..]))
}

/// Retries a lock until the call is cancelled.
fn wait_for_lock(lock: &OwnedFd, operation: FlockOperation, cx: &CallContext<'_>) -> Result<(), ToolError> {
    let mut pause = Duration::from_micros(50);
    loop {
        match flock(lock, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) => {
                cx.check()?;
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(errno) => return Err(lock_error(errno)),
        }
    }
}

fn stripe_of(id: FileId) -> u64 {
    // Fixed for ever: processes of different versions have to meet at the same file.
    (id.inode ^ id.device.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56
}

fn stripe_name(stripe: u64) -> String {
    format!("{stripe:02x}")
}

pub(crate) fn lock_error(errno: Errno) -> ToolError {
    if errno == Errno::FBIG {
        return ToolError::new(ErrorKind::WriteLimit, "it exceeds the file size limit of this process");
    }
    let message = format!("cannot use Ringfence's lock files (error {})", errno.raw_os_error());
    ToolError::new(ErrorKind::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use super::{InodeRef, JournalRef, WriteIntent, has_unknown_kind};

    #[test]
    fn a_note_is_read_back_and_a_torn_one_is_none() {
        let intents = [
            WriteIntent::Remove {
                parent: b"a/b".to_vec(),
                name: b".ringfence-tmp-1".to_vec(),
                inodes: vec![],
                journal: JournalRef::default(),
            },
            WriteIntent::Remove {
                parent: b"a/b".to_vec(),
                name: b".ringfence-tmp-1".to_vec(),
                inodes: vec![7, 8],
                journal: JournalRef::new("c-1", Some("c-1-0")),
            },
            WriteIntent::SingleSyscall { change: b"c-1".to_vec() },
            WriteIntent::Overwrite {
                from: InodeRef { parent: b"a".to_vec(), name: b"b".to_vec(), inode: 3 },
                to: InodeRef { parent: Vec::new(), name: b"c".to_vec(), inode: 4 },
                journal: JournalRef::new("c-1", None),
            },
            WriteIntent::Append {
                parent: Vec::new(),
                name: b"log".to_vec(),
                inode: 7,
                before: 10,
                content: b"a\0.b".to_vec(),
                change: b"c-1".to_vec(),
            },
        ];
        let mut all = Vec::new();
        for intent in &intents {
            let note = intent.encode();
            assert_eq!(WriteIntent::decode_all(&note), (vec![intent.clone()], note.len()));
            for end in 0..note.len() {
                assert_eq!(WriteIntent::decode_all(&note[..end]), (Vec::new(), 0));
                assert!(!has_unknown_kind(&note[..end]));
            }
            all.extend(note);
        }
        // The second knows more about the name that the first is about.
        assert_eq!(WriteIntent::decode_all(&all), (intents[1..].to_vec(), all.len()));
    }

    /// The file on disk after a power cut that kept its new length and lost the bytes.
    #[test]
    fn a_note_that_is_lost_in_a_power_cut_leaves_the_one_before_it() {
        let note = |inodes: &[u64]| WriteIntent::Remove {
            parent: Vec::new(),
            name: b".ringfence-tmp-1".to_vec(),
            inodes: inodes.to_vec(),
            journal: JournalRef::new("c-1", None),
        };
        let (first, second) = (note(&[]).encode(), note(&[7, 8]).encode());
        for kept in 0..second.len() {
            let lost = vec![0; second.len() - kept];
            let on_disk = [&first[..], &second[..kept], &lost].concat();
            assert_eq!(WriteIntent::decode_all(&on_disk), (vec![note(&[])], first.len()), "{kept}");
            assert!(!has_unknown_kind(&on_disk[first.len()..]), "{kept}");
        }
    }
}
