//! Sensitive files by identity: seen once under a sensitive name, and known under any other.
//!
//! A secret that was linked, moved or copied has another name and is a secret still. So a mount remembers every such file
//! that it comes across, and a note in our state directory tells it to other processes. An inode is given out again when
//! its file is gone: a file is known by its device, its inode and the time at which it was made.
//!
//! Not here: the names themselves (`sensitive/` in the kernel), and the scan of a root (`root_scan.rs`). A file that was
//! never seen under such a name is not known.

use std::collections::{HashMap, HashSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_kernel::sync::RwLock;
use ringfence_kernel::{Sensitivity, entry_sensitivity};
use rustix::fs::OFlags;

use crate::root::{MountRoot, stat};
use crate::sensitive::credentials::{has_credential, may_hold_credential};
use crate::sensitive::linked_directories::LinkedDirectories;
use crate::sensitive::root_scan::RootScan;
use crate::sys::file_ref::{BirthTime, FileRef, InodeIdentity};
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::{fstat, pread, write};

/// Most files that are remembered. Settings take at most half of it, so that there is room for secrets.
const MOST_FILES: usize = 1 << 16;

/// As much of the note is read, and no more is written.
const MOST_NOTED: u64 = 4 << 20;

/// Sensitive files of a mount, by identity.
#[derive(Debug)]
pub(crate) struct SensitiveFiles {
    files: RwLock<HashMap<FileId, SensitiveFile>>,
    /// One line for each file, only ever added to.
    note: OwnedFd,
    /// Bytes of the note that were read.
    bytes_read: AtomicU64,
    pub(super) root_scan: RootScan,
    linked_directories: LinkedDirectories,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SensitiveFile {
    birth_time: BirthTime,
    sensitivity: Sensitivity,
}

/// Whether an observation is stored for the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SensitivityStorage {
    Recorded,
    InMemory,
}

impl SensitiveFiles {
    /// Reads the observations of earlier processes.
    pub(crate) fn read(note: OwnedFd) -> Self {
        let known = Self {
            files: RwLock::default(),
            note,
            bytes_read: AtomicU64::new(0),
            root_scan: RootScan::default(),
            linked_directories: LinkedDirectories::default(),
        };
        known.read_new_lines();
        if known.note_length() != known.bytes_read.load(Ordering::Acquire) {
            // The last writer crashed in the middle of a line; the next line begins here.
            known.append("\n");
        }
        known
    }

    /// Reads the observations that other processes added since.
    pub(super) fn read_new_lines(&self) {
        let (start, end) = (self.bytes_read.load(Ordering::Acquire), self.note_length().min(MOST_NOTED));
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        if bytes.is_empty() {
            return;
        }
        let length = pread(&self.note, &mut bytes, start).unwrap_or(0);
        // A line that is not whole yet is read the next time.
        let whole = memchr::memrchr(b'\n', &bytes[..length]).map_or(0, |last| last + 1);
        let text = String::from_utf8_lossy(&bytes[..whole]);
        let mut files = self.files.write();
        for (id, SensitiveFile { birth_time: born, sensitivity }) in text.lines().filter_map(parse) {
            let before = files.get(&id).filter(|seen| seen.birth_time == born).map(|seen| seen.sensitivity);
            if files.len() < MOST_FILES || files.contains_key(&id) {
                files.insert(
                    id,
                    SensitiveFile { birth_time: born, sensitivity: before.unwrap_or_default().union(sensitivity) },
                );
            }
        }
        self.bytes_read.store(start + whole as u64, Ordering::Release);
    }

    /// Length of the note in bytes.
    fn note_length(&self) -> u64 {
        fstat(&self.note).map_or(0, |stat| FileStat::from_stat(&stat).size)
    }

    /// One call, at the end of the file: lines of several processes do not mix. An observation that cannot be stored is
    /// known to this process only.
    fn append(&self, line: &str) {
        if self.note_length() < MOST_NOTED {
            let _ = write(&self.note, line.as_bytes());
        }
    }

    /// Sensitivity of a file by its identity.
    pub(crate) fn lookup(&self, at: FileRef<'_>, stamp: &FileStat) -> Sensitivity {
        let seen = self.files.read().get(&stamp.id).copied();
        match seen {
            Some(seen) if seen.birth_time == at.birth_time() => seen.sensitivity,
            _ => Sensitivity::default(),
        }
    }

    /// The directories that links lead to.
    pub(crate) fn linked(&self) -> &LinkedDirectories {
        &self.linked_directories
    }

    pub(crate) fn is_secret(&self, InodeIdentity { id, birth_time: born }: InodeIdentity) -> bool {
        let files = self.files.read();
        files.get(&id).is_some_and(|seen| seen.birth_time == born && seen.sensitivity.secret)
    }

    /// The inodes of every file that is known as a secret.
    pub(crate) fn secret_inodes(&self) -> HashSet<u64> {
        let files = self.files.read();
        files.iter().filter(|(_, seen)| seen.sensitivity.secret).map(|(id, _)| id.inode).collect()
    }

    pub(super) fn insert(&self, identity: InodeIdentity, sensitivity: Sensitivity, keep: SensitivityStorage) {
        let InodeIdentity { id, birth_time: born } = identity;
        let mut files = self.files.write();
        let before = files.get(&id).filter(|seen| seen.birth_time == born).map(|seen| seen.sensitivity);
        let seen = SensitiveFile { birth_time: born, sensitivity: before.unwrap_or_default().union(sensitivity) };
        let room = if seen.sensitivity.secret { MOST_FILES } else { MOST_FILES / 2 };
        if before == Some(seen.sensitivity) || (files.len() >= room && !files.contains_key(&id)) {
            return;
        }
        files.insert(id, seen);
        if keep == SensitivityStorage::Recorded {
            self.append(&format(id, seen));
        }
    }

    /// Whether nothing would have to be written to know this file.
    fn is_recorded(&self, named: Sensitivity, id: FileId) -> bool {
        let knows = || self.files.read().contains_key(&id);
        !named.is_any() || knows()
    }
}

impl SensitiveFiles {
    /// Sensitivity of a file by its current and earlier names. The verdict by its current names is remembered.
    pub(crate) fn classify(
        &self,
        mount: &MountRoot,
        named: Sensitivity,
        at: FileRef<'_>,
        stamp: &FileStat,
    ) -> Sensitivity {
        self.classify_named(mount, at.name, named, at, stamp)
    }

    /// The same for a file that is open already and has this name.
    pub(crate) fn classify_named(
        &self,
        mount: &MountRoot,
        name: &[u8],
        named: Sensitivity,
        at: FileRef<'_>,
        stamp: &FileStat,
    ) -> Sensitivity {
        if stamp.kind != FileKind::File {
            return Sensitivity::default();
        }
        let named = if named.secret || !may_hold_credential(name) {
            named
        } else {
            named.union(Sensitivity { secret: self.holds_credential(mount, at, stamp), protected: false })
        };
        if !named.is_any() {
            return self.lookup(at, stamp);
        }
        let known = self.lookup(at, stamp).union(named);
        self.insert(InodeIdentity::of(at, stamp), known, SensitivityStorage::Recorded);
        known
    }

    /// The same for a call that must not wait. Nothing if it would have to.
    pub(crate) fn classify_non_blocking(
        &self,
        mount: &MountRoot,
        name: &[u8],
        named: Sensitivity,
        at: FileRef<'_>,
        stamp: &FileStat,
    ) -> Option<Sensitivity> {
        let settled = self.is_recorded(named, stamp.id) && !may_hold_credential(name);
        settled.then(|| self.classify(mount, named, at, stamp))
    }

    /// Looks into a file of settings. One that cannot be looked into is taken for what its name says.
    fn holds_credential(&self, mount: &MountRoot, at: FileRef<'_>, stamp: &FileStat) -> bool {
        const MOST_READ: usize = 64 << 10;
        let opened = if at.name.is_empty() {
            at.fd.try_clone_to_owned().ok()
        } else {
            mount.open_at(at.fd, at.name, OFlags::RDONLY).ok()
        };
        let Some(file) = opened else { return false };
        let mut bytes = vec![0; usize::try_from(stamp.size).unwrap_or(MOST_READ).min(MOST_READ)];
        let length = pread(&file, &mut bytes, 0).unwrap_or(0);
        has_credential(&String::from_utf8_lossy(&bytes[..length]))
    }

    /// Remembers an entry that a walk or a listing came across, if its name says something. `path` is where it is below
    /// the root, or at least its last names.
    pub(crate) fn observe(&self, mount: &MountRoot, path: &str, directory: BorrowedFd<'_>, name: &[u8]) {
        self.observe_named(mount, entry_sensitivity(path), directory, name);
    }

    /// The same where the sensitivity of the name is known.
    pub(crate) fn observe_named(&self, mount: &MountRoot, named: Sensitivity, directory: BorrowedFd<'_>, name: &[u8]) {
        if named.is_any()
            && let Ok(Some(stamp)) = stat(directory, name)
        {
            self.classify(mount, named, FileRef { fd: directory, name }, &stamp);
        }
    }
}

/// As many names as the longest rule about sensitive ones has, and one more: in a deep tree, the whole path of every
/// entry would be a great deal to look at.
pub(crate) fn last_names(path: &str) -> &str {
    path.rmatch_indices('/').nth(3).map_or(path, |(slash, _)| &path[slash + 1..])
}

fn format(id: FileId, seen: SensitiveFile) -> String {
    let born = seen.birth_time.map_or_else(|| "-".to_owned(), |born| born.to_string());
    let Sensitivity { secret, protected } = seen.sensitivity;
    let why = match (secret, protected) {
        (true, true) => "both",
        (true, false) => "secret",
        _ => "protected",
    };
    format!("{:x}:{:x}:{born}:{why}\n", id.device, id.inode)
}

fn parse(line: &str) -> Option<(FileId, SensitiveFile)> {
    let mut parts = line.split(':');
    let mut hex = || u64::from_str_radix(parts.next()?, 16).ok();
    let id = FileId { device: hex()?, inode: hex()? };
    let born = match parts.next()? {
        "-" => None,
        nanos => Some(nanos.parse().ok()?),
    };
    let (secret, protected) = match parts.next()? {
        "both" => (true, true),
        "secret" => (true, false),
        "protected" => (false, true),
        _ => return None,
    };
    let whole = parts.next().is_none();
    whole.then_some((id, SensitiveFile { birth_time: born, sensitivity: Sensitivity { secret, protected } }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use ringfence_kernel::Sensitivity;

    use super::{InodeIdentity, SensitiveFile, SensitiveFiles, SensitivityStorage, format, last_names, parse};
    use crate::sys::stat::FileId;

    const SECRET: Sensitivity = Sensitivity { secret: true, protected: false };
    const PROTECTED: Sensitivity = Sensitivity { secret: false, protected: true };

    fn identity(inode: u64, born: Option<i128>) -> InodeIdentity {
        InodeIdentity { id: FileId { device: 1, inode }, birth_time: born }
    }

    fn note() -> std::fs::File {
        tempfile::tempfile().unwrap()
    }

    fn known(note: &std::fs::File) -> SensitiveFiles {
        SensitiveFiles::read(OwnedFd::from(note.try_clone().unwrap()))
    }

    #[test]
    fn recorded_files_are_known_to_other_processes() {
        let note = note();
        let first = known(&note);
        first.insert(identity(7, Some(-5)), SECRET, SensitivityStorage::Recorded);
        first.insert(identity(8, None), PROTECTED, SensitivityStorage::Recorded);
        first.insert(identity(8, None), SECRET, SensitivityStorage::Recorded);
        first.insert(identity(9, None), SECRET, SensitivityStorage::InMemory);
        let (next, beside) = (known(&note), known(&note));
        next.insert(identity(11, None), SECRET, SensitivityStorage::Recorded);
        beside.read_new_lines();
        assert!(beside.is_secret(identity(11, None)));
        assert!(next.is_secret(identity(7, Some(-5))) && next.is_secret(identity(8, None)));
        assert!(!next.is_secret(identity(9, None)) && first.is_secret(identity(9, None)));
    }

    #[test]
    fn an_inode_that_was_given_out_again_is_another_file() {
        let known = known(&note());
        known.insert(identity(7, Some(1)), SECRET, SensitivityStorage::Recorded);
        assert!(!known.is_secret(identity(7, Some(2))));
        known.insert(identity(7, Some(2)), PROTECTED, SensitivityStorage::Recorded);
        assert!(!known.is_secret(identity(7, Some(2))));
    }

    #[test]
    fn a_sensitive_file_is_recorded_once_and_invalid_lines_are_skipped() {
        use std::io::{Read as _, Seek as _, Write as _};
        let mut note = note();
        note.write_all(b"1:7:5:secret\nx:y\n\n1:8:-:public\n1:9:-:bo").unwrap();
        let known = known(&note);
        known.insert(identity(7, Some(5)), SECRET, SensitivityStorage::Recorded);
        known.insert(identity(10, None), SECRET, SensitivityStorage::Recorded);
        known.insert(identity(10, None), SECRET, SensitivityStorage::Recorded);
        let mut text = String::new();
        note.rewind().unwrap();
        note.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\n1:9:-:bo\n1:a:-:secret\n"), "{text}");
        assert!(known.is_secret(identity(7, Some(5))));
    }

    #[test]
    fn a_line_is_read_back_as_it_was_written() {
        for sensitivity in [SECRET, PROTECTED, Sensitivity { secret: true, protected: true }] {
            for born in [None, Some(0), Some(i128::from(i64::MAX) * 1_000_000_000)] {
                let (id, seen) =
                    (FileId { device: u64::MAX, inode: 0 }, SensitiveFile { birth_time: born, sensitivity });
                assert_eq!(parse(format(id, seen).trim_end()), Some((id, seen)));
            }
        }
    }

    #[test]
    fn the_last_names_are_enough_for_every_rule() {
        assert_eq!(last_names("a/b/c/d/e"), "b/c/d/e");
        assert_eq!(last_names("a/b"), "a/b");
    }
}
