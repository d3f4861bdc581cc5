//! Write-ahead records of a multi-file transaction, for the process that rolls it back.
//!
//! A record is a file beside the locks, locked by its writer. While it is named `batch-…` the steps are to be rolled
//! back, once it is named `done-…` they are committed, and when it is gone there is nothing to do: one rename decides
//! for all of them.

use std::cell::Cell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{ErrorKind, ToolError};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::journal::{FileState, FileStateKind};
use crate::lock::{LockTable, lock_error};
use crate::root::{Durability, stat};
use crate::sys::file_ref::{BirthTime, FileRef};
use crate::sys::own_files::write_all;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{flock, fstat, fsync, pread};

pub(super) const PENDING: &str = "batch-";
pub(super) const DONE: &str = "done-";

/// More than the steps of any one change. A note that would be longer is not written.
const LONGEST: usize = 128 << 20;

/// One file of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxnEntry {
    pub(crate) step: TxnStep,
    /// Below the root, empty for the root itself.
    pub(crate) parent: Vec<u8>,
    /// Inodes of its directories, which may be renamed meanwhile: its own, and for a move the destination.
    pub(crate) directories: [Option<u64>; 2],
    pub(crate) name: Vec<u8>,
    /// Temporary name of the staged file, or of the displaced one. For a step with the image store, the name there.
    pub(crate) temporary: Vec<u8>,
    /// The old file's name in the image store, empty if it is deleted permanently. For a move, the destination path.
    pub(crate) other: Vec<u8>,
}

/// The operation, with the files that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnStep {
    /// Its temporary name may have a file; nothing else happened yet.
    Prepare,
    Create {
        new: FileIdentity,
    },
    Replace {
        old: FileIdentity,
        new: FileIdentity,
    },
    Remove {
        old: FileIdentity,
    },
    /// Exchanges the entry with an image.
    SwapImage {
        here: FileIdentity,
        kept: FileIdentity,
    },
    /// Moves the entry to the image store.
    StoreImage {
        here: FileIdentity,
    },
    /// Restores an image.
    RestoreImage {
        kept: FileIdentity,
    },
    /// Moves the entry to another path.
    Move {
        here: FileIdentity,
    },
    /// A file in the image store that was made for another step.
    ScratchFile,
    /// Renames a staged entry from the image store to a free name.
    Publish {
        new: FileIdentity,
    },
    /// Exchanges the entry with a staged one in the image store.
    Exchange {
        old: FileIdentity,
        new: FileIdentity,
    },
    /// Moves the entry to the image store, to stay there or to be deleted permanently.
    Displace {
        old: FileIdentity,
    },
    /// The permissions of a directory become others.
    Chmod {
        inode: u64,
        from: u32,
        to: u32,
    },
}

/// Value of `other` where the displaced entry is deleted permanently.
pub(crate) const DISCARDED: &[u8] = b"lost";

/// A file as it was when the note was written. An inode alone would not do: its number is given away again. A directory
/// changes with what is in it, and is known by the time at which it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) inode: u64,
    size: u64,
    modified: i128,
    birth_time: BirthTime,
}

impl FileIdentity {
    pub(crate) fn from_stat(stamp: &FileStat) -> Self {
        Self { inode: stamp.id.inode, size: stamp.size, modified: stamp.modified, birth_time: None }
    }

    /// The identity of an entry whose state the journal read at this path.
    pub(crate) fn from_state(state: &FileState, at: FileRef<'_>) -> Self {
        match state.kind {
            FileStateKind::Directory => Self { inode: state.inode, birth_time: at.birth_time(), ..Self::default() },
            _ => Self { inode: state.inode, size: state.size, modified: state.modified.into(), birth_time: None },
        }
    }

    /// The identity of the entry at a name.
    pub(crate) fn read_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Self>, Errno> {
        let found = stat(parent, name)?;
        Ok(found.map(|stamp| match stamp.kind {
            FileKind::Directory => {
                Self { inode: stamp.id.inode, birth_time: FileRef { fd: parent, name }.birth_time(), ..Self::default() }
            }
            _ => Self::from_stat(&stamp),
        }))
    }

    /// A directory by its inode, and the mode that it has or gets.
    fn with_mode(inode: u64, mode: u32) -> Self {
        Self { inode, size: u64::from(mode), ..Self::default() }
    }

    fn to_mode(self) -> u32 {
        u32::try_from(self.size).unwrap_or_default() & 0o7777
    }

    pub(crate) fn matches_stat(&self, stamp: &FileStat) -> bool {
        *self == Self::from_stat(stamp)
    }

    /// Whether it is what was found. Of a directory on a file system that tells no time of birth, and in a note of an earlier
    /// version, no more than the inode is known.
    pub(crate) fn matches(&self, found: Option<Self>) -> bool {
        let inode_only = Self { inode: self.inode, ..Self::default() };
        found.is_some_and(|found| found == *self || (*self == inode_only && found.inode == self.inode))
    }

    fn encode(&self) -> String {
        let Self { inode, size, modified, birth_time: born } = self;
        let born = born.map_or_else(String::new, |born| format!(":{born}"));
        format!("{inode}:{size}:{modified}{born}")
    }

    fn decode(text: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(text).ok()?.split(':');
        let (inode, size, modified) = (parts.next()?, parts.next()?, parts.next()?);
        let born = parts.next().map(str::parse).transpose().ok()?;
        Some(Self {
            inode: inode.parse().ok()?,
            size: size.parse().ok()?,
            modified: modified.parse().ok()?,
            birth_time: born,
        })
    }
}

/// The note of a batch that this process carries out. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct TxnRecord<'a> {
    locks: &'a LockTable,
    file: OwnedFd,
    id: Vec<u8>,
    /// Something is still to be done about it, by the next who opens the workspace.
    retained: Cell<bool>,
    /// The record's name is on disk.
    name_synced: Cell<bool>,
}

impl<'a> TxnRecord<'a> {
    /// Says which temporary names there will be, before there are any.
    pub(crate) fn write(locks: &'a LockTable, change: &str, entries: &[TxnEntry]) -> Result<Self, ToolError> {
        let note = loop {
            let id = change.as_bytes().to_vec();
            let file = locks.create(&record_name(PENDING, &id)).map_err(lock_error)?;
            let note = Self { locks, file, id, retained: Cell::new(false), name_synced: Cell::new(false) };
            flock(&note.file, FlockOperation::LockExclusive).map_err(lock_error)?;
            // A process that starts up in between takes it for a crashed one's, and removes it.
            if fstat(&note.file).map_err(lock_error)?.st_nlink > 0 {
                break note;
            }
        };
        write_all(note.file.as_fd(), &encode(entries)).map_err(lock_error)?;
        Ok(note)
    }

    pub(crate) fn id(&self) -> &[u8] {
        &self.id
    }

    /// Where temporary names are visible to others, the record is on disk before the first of them can be.
    pub(crate) fn sync_to_disk(&self, durability: Durability) -> Result<(), ToolError> {
        if durability == Durability::Full {
            fsync(&self.file).and_then(|()| self.locks.sync()).map_err(lock_error)?;
            self.name_synced.set(true);
        }
        Ok(())
    }

    /// Says which inodes take part, before the first step.
    pub(crate) fn complete(&self, entries: &[TxnEntry], durability: Durability) -> Result<(), ToolError> {
        let note = encode(entries);
        if note.len() > LONGEST / 2 {
            let message = "too many changes at once; nothing was changed";
            return Err(ToolError::new(ErrorKind::WriteLimit, message));
        }
        write_all(self.file.as_fd(), &note).map_err(lock_error)?;
        match (durability, self.name_synced.get()) {
            (Durability::Full, true) => fsync(&self.file).map_err(lock_error),
            (Durability::Full, false) => self.sync_to_disk(durability),
            (Durability::Ordered, _) => Ok(()),
        }
    }

    /// Commits: from now on no step is rolled back.
    pub(crate) fn mark_done(&self) -> Result<(), ToolError> {
        self.locks.rename(&record_name(PENDING, &self.id), &record_name(DONE, &self.id)).map_err(lock_error)
    }

    /// Syncs the record's name, before anything is deleted permanently.
    pub(crate) fn sync(&self, durability: Durability) -> Result<(), Errno> {
        match durability {
            Durability::Full => self.locks.sync(),
            Durability::Ordered => Ok(()),
        }
    }

    /// Deletes the record, or leaves it where not everything could be rolled back or removed, for the next process that
    /// opens the workspace.
    pub(crate) fn delete_if(&self, all_is_well: bool) {
        self.retained.set(!all_is_well);
    }
}

impl Drop for TxnRecord<'_> {
    fn drop(&mut self) {
        let ended = if self.retained.get() { &[][..] } else { &[PENDING, DONE][..] };
        for prefix in ended {
            self.locks.remove(&record_name(prefix, &self.id));
        }
    }
}

pub(super) fn read_all(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    while bytes.len() < LONGEST {
        match pread(file, &mut chunk, bytes.len() as u64)? {
            0 => break,
            more => bytes.extend_from_slice(&chunk[..more]),
        }
    }
    Ok(bytes)
}

pub(super) fn record_name(prefix: &str, id: &[u8]) -> Vec<u8> {
    [prefix.as_bytes(), id].concat()
}

/// One list of steps, with its end.
fn encode(entries: &[TxnEntry]) -> Vec<u8> {
    let mut note = Vec::new();
    for TxnEntry { step, parent, directories, name, temporary, other } in entries {
        let (kind, old, new) = match step {
            TxnStep::Prepare => ("prepare", FileIdentity::default(), FileIdentity::default()),
            TxnStep::Create { new } => ("create", FileIdentity::default(), *new),
            TxnStep::Replace { old, new } => ("replace", *old, *new),
            TxnStep::Remove { old } => ("remove", *old, FileIdentity::default()),
            TxnStep::SwapImage { here, kept } => ("swap", *here, *kept),
            TxnStep::StoreImage { here } => ("keep", *here, FileIdentity::default()),
            TxnStep::RestoreImage { kept } => ("restore", *kept, FileIdentity::default()),
            TxnStep::Move { here } => ("move", *here, FileIdentity::default()),
            TxnStep::ScratchFile => ("spare", FileIdentity::default(), FileIdentity::default()),
            TxnStep::Publish { new } => ("put", FileIdentity::default(), *new),
            TxnStep::Exchange { old, new } => ("over", *old, *new),
            TxnStep::Displace { old } => ("away", *old, FileIdentity::default()),
            TxnStep::Chmod { inode, from, to } => {
                ("mode", FileIdentity::with_mode(*inode, *from), FileIdentity::with_mode(*inode, *to))
            }
        };
        let [of, to] = directories.map(|inode| inode.map(|inode| inode.to_string()).unwrap_or_default());
        let texts = [format!("{kind}@{of}@{to}"), old.encode(), new.encode()];
        let [kind, old, new] = texts.each_ref().map(String::as_bytes);
        for field in [kind, old, new, parent, name, temporary, other] {
            note.extend_from_slice(field);
            note.push(0);
        }
    }
    note.extend_from_slice(b".\0");
    note
}

/// The last list that was written whole. `None` if it has a step of a newer version.
pub(super) fn decode(note: &[u8]) -> Option<Vec<TxnEntry>> {
    let mut fields = note.split(|byte| *byte == 0);
    let (mut whole, mut list) = (Vec::new(), Vec::new());
    while let Some(kind) = fields.next() {
        if kind == b"." {
            whole = std::mem::take(&mut list);
            continue;
        }
        let mut known = || FileIdentity::decode(fields.next()?);
        let (Some(old), Some(new)) = (known(), known()) else { break };
        let mut text = || fields.next().map(<[u8]>::to_vec);
        let (Some(parent), Some(name), Some(temporary), Some(other)) = (text(), text(), text(), text()) else { break };
        // A note of an earlier version names no directories.
        let mut words = kind.split(|byte| *byte == b'@');
        let step = match words.next() {
            Some(b"prepare") => TxnStep::Prepare,
            Some(b"create") => TxnStep::Create { new },
            Some(b"replace") => TxnStep::Replace { old, new },
            Some(b"remove") => TxnStep::Remove { old },
            Some(b"swap") => TxnStep::SwapImage { here: old, kept: new },
            Some(b"keep") => TxnStep::StoreImage { here: old },
            Some(b"restore") => TxnStep::RestoreImage { kept: old },
            Some(b"move") => TxnStep::Move { here: old },
            Some(b"spare") => TxnStep::ScratchFile,
            Some(b"put") => TxnStep::Publish { new },
            Some(b"over") => TxnStep::Exchange { old, new },
            Some(b"away") => TxnStep::Displace { old },
            Some(b"mode") => TxnStep::Chmod { inode: old.inode, from: old.to_mode(), to: new.to_mode() },
            _ => return None,
        };
        let mut inode = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let directories = [inode(), inode()];
        list.push(TxnEntry { step, parent, directories, name, temporary, other });
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::{FileIdentity, TxnEntry, TxnStep, decode, encode};

    #[test]
    fn the_last_whole_list_counts() {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let entry = |step| TxnEntry {
            step,
            parent: bytes("a/b"),
            directories: [Some(11), None],
            name: bytes("c\n"),
            temporary: bytes(".t"),
            other: bytes("c-1-0"),
        };
        let known = |inode| FileIdentity { inode, size: 5, modified: -3, birth_time: None };
        let directory = FileIdentity { inode: 5, birth_time: Some(-7), ..FileIdentity::default() };
        let first = [entry(TxnStep::Prepare), entry(TxnStep::Remove { old: known(7) }), entry(TxnStep::ScratchFile)];
        let second = [
            entry(TxnStep::Create { new: known(9) }),
            entry(TxnStep::Replace { old: known(7), new: known(8) }),
            entry(TxnStep::SwapImage { here: known(1), kept: known(2) }),
            entry(TxnStep::StoreImage { here: known(3) }),
            entry(TxnStep::RestoreImage { kept: directory }),
            TxnEntry { directories: [Some(11), Some(12)], ..entry(TxnStep::Move { here: directory }) },
            entry(TxnStep::Publish { new: known(6) }),
            entry(TxnStep::Exchange { old: known(7), new: known(8) }),
            entry(TxnStep::Displace { old: known(9) }),
            entry(TxnStep::Chmod { inode: 10, from: 0o755, to: 0o500 }),
        ];
        let (one, two) = (encode(&first), [encode(&first), encode(&second)].concat());
        assert_eq!(decode(&two).unwrap(), second);
        for end in 0..one.len() - 1 {
            assert_eq!(decode(&one[..end]).unwrap(), [], "{end}");
        }
        for end in one.len()..two.len() - 1 {
            assert_eq!(decode(&two[..end]).unwrap(), first, "{end}");
        }
    }

    #[test]
    fn a_note_of_an_earlier_version_is_read_too() {
        let note = b"swap\x007:0:0\x008:0:0\0d\0f\0c-1-0\0\0.\0";
        let entries = decode(note).unwrap();
        let [TxnEntry { step: TxnStep::SwapImage { here, kept }, directories: [None, None], .. }] = &entries[..] else {
            panic!("{entries:?}");
        };
        let found = |inode| Some(FileIdentity { inode, size: 5, modified: 6, birth_time: None });
        assert!(here.matches(found(7)) && kept.matches(found(8)) && !here.matches(found(8)) && !here.matches(None));
    }

    #[test]
    fn a_step_of_a_newer_version_is_not_skipped() {
        assert_eq!(decode(b".\0clone\x007:0:0\x008:0:0\0d\0f\0c-1-0\0\0.\0"), None);
    }

    #[test]
    fn an_inode_that_was_given_out_again_is_another_file() {
        let file = FileIdentity { inode: 7, size: 5, modified: 6, birth_time: None };
        let directory = FileIdentity { inode: 7, size: 0, modified: 0, birth_time: Some(3) };
        assert!(file.matches(Some(file)) && directory.matches(Some(directory)));
        for other in [
            FileIdentity { size: 6, ..file },
            FileIdentity { modified: 7, ..file },
            directory,
            FileIdentity { inode: 8, ..file },
        ] {
            assert!(!file.matches(Some(other)), "{other:?}");
        }
        for other in
            [FileIdentity { birth_time: Some(4), ..directory }, FileIdentity { birth_time: None, ..directory }, file]
        {
            assert!(!directory.matches(Some(other)), "{other:?}");
        }
    }
}
