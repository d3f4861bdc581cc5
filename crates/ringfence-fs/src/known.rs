//! Files that were seen under a name that deserves a second look, known by what they are.
//!
//! A secret that was linked, moved or copied has another name and is a secret still. So a mount remembers every such file
//! that it comes across, and a note in our state directory tells it to other processes. An inode is given out again when
//! its file is gone: a file is known by its device, its inode and the time at which it was made.
//!
//! Not here: which names those are (`sensitive.rs` in the kernel). What nobody came across under such a name is not known.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use ringfence_kernel::{Context, Pace, Sensitivity, ToolError, entry_sensitivity, sensitivity};
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::again::{fstat, pread, statx, write};
use crate::credentials::{has_credential, may_hold_credential};
use crate::fault::fault;
use crate::linked_directories::{LinkedDirectories, brings_settings, followed_inside};
use crate::mount::{Mount, look};
use crate::name::{is_reserved, read_back};
use crate::resolve::{CAREFUL, How, Links, PLACE};
use crate::slot::Slot;
use crate::stamp::{FileId, Kind, Stamp};
use crate::walk::typed_names_in;

/// So many files are remembered. Settings alone take at most half of it, so that there is room for secrets.
const MOST_FILES: usize = 1 << 16;

/// As much of the note is read, and no more is written.
const MOST_NOTED: u64 = 4 << 20;

/// In a larger directory nobody looks around.
const MOST_NAMES: usize = 20_000;

/// So many directories at the root are looked into, unless they are larger than that.
const MOST_DIRECTORIES: usize = 64;
const MOST_BELOW: usize = 2000;

/// So many links at the root are followed to directories.
const MOST_LINKS: usize = 1000;

const FOLLOWED_DIRECTORY: How =
    How { flags: OFlags::RDONLY.union(OFlags::DIRECTORY).union(CAREFUL), links: Links::Follow, pace: Pace::Patient };

/// What is known of the files of a mount.
#[derive(Debug)]
pub(crate) struct Known {
    files: RwLock<HashMap<FileId, Seen>>,
    /// One line for each file, only ever added to.
    note: OwnedFd,
    /// How much of it we know.
    read: AtomicU64,
    looked_at: RwLock<Option<LookedAt>>,
    linked: LinkedDirectories,
}

/// The directories that were looked through, each with the time of its last change. Links that are made there later change it.
#[derive(Debug, Default)]
struct LookedAt {
    root: i128,
    directories: Vec<(String, i128)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    born: Born,
    sensitivity: Sensitivity,
}

/// When a file was made, in nanoseconds since 1970. Some file systems do not say.
pub(crate) type Born = Option<i128>;

/// Which file it is, also after others had its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: FileId,
    pub(crate) born: Born,
}

/// Where a file can be looked at: a name in a directory, or with no name what the descriptor is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) name: &'a [u8],
}

impl<'a> At<'a> {
    pub(crate) fn open(fd: &'a OwnedFd) -> Self {
        Self { fd: fd.as_fd(), name: b"" }
    }

    pub(crate) fn born(self) -> Born {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let found = statx(self.fd, self.name, flags, StatxFlags::BTIME).ok()?;
        let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        told.then(|| i128::from(found.stx_btime.tv_sec) * 1_000_000_000 + i128::from(found.stx_btime.tv_nsec))
    }
}

impl Identity {
    pub(crate) fn of(at: At<'_>, stamp: &Stamp) -> Self {
        Self { id: stamp.id, born: at.born() }
    }
}

/// Whether the next process is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Noted,
    InMemory,
}

impl Known {
    /// What earlier processes noted.
    pub(crate) fn read(note: OwnedFd) -> Self {
        let known = Self {
            files: RwLock::default(),
            note,
            read: AtomicU64::new(0),
            looked_at: RwLock::default(),
            linked: LinkedDirectories::default(),
        };
        known.catch_up();
        if known.noted() != known.read.load(Ordering::Acquire) {
            // Whoever wrote it died in the middle of a line; the next one begins anew.
            known.append("\n");
        }
        known
    }

    /// What other processes noted since.
    fn catch_up(&self) {
        let (start, end) = (self.read.load(Ordering::Acquire), self.noted().min(MOST_NOTED));
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        if bytes.is_empty() {
            return;
        }
        let length = pread(&self.note, &mut bytes, start).unwrap_or(0);
        // A line that is not whole yet is read the next time.
        let whole = memchr::memrchr(b'\n', &bytes[..length]).map_or(0, |last| last + 1);
        let text = String::from_utf8_lossy(&bytes[..whole]);
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        for (id, Seen { born, sensitivity }) in text.lines().filter_map(parse) {
            let before = files.get(&id).filter(|seen| seen.born == born).map(|seen| seen.sensitivity);
            if files.len() < MOST_FILES || files.contains_key(&id) {
                files.insert(id, Seen { born, sensitivity: before.unwrap_or_default().or(sensitivity) });
            }
        }
        self.read.store(start + whole as u64, Ordering::Release);
    }

    /// How long the note is.
    fn noted(&self) -> u64 {
        fstat(&self.note).map_or(0, |stat| Stamp::of(&stat).size)
    }

    /// One call, at the end of the file: lines of several processes do not mix. What cannot be noted is known as long as we
    /// are here.
    fn append(&self, line: &str) {
        if self.noted() < MOST_NOTED {
            let _ = write(&self.note, line.as_bytes());
        }
    }

    /// What is known of a file by what it is.
    pub(crate) fn recall(&self, at: At<'_>, stamp: &Stamp) -> Sensitivity {
        let seen = self.files.read().unwrap_or_else(PoisonError::into_inner).get(&stamp.id).copied();
        match seen {
            Some(seen) if seen.born == at.born() => seen.sensitivity,
            _ => Sensitivity::default(),
        }
    }

    /// The directories that links lead to.
    pub(crate) fn linked(&self) -> &LinkedDirectories {
        &self.linked
    }

    pub(crate) fn is_secret(&self, Identity { id, born }: Identity) -> bool {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&id).is_some_and(|seen| seen.born == born && seen.sensitivity.secret)
    }

    /// The inodes of every file that is known as a secret.
    pub(crate) fn secret_inodes(&self) -> HashSet<u64> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.iter().filter(|(_, seen)| seen.sensitivity.secret).map(|(id, _)| id.inode).collect()
    }

    fn remember(&self, identity: Identity, sensitivity: Sensitivity, keep: Keep) {
        let Identity { id, born } = identity;
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let before = files.get(&id).filter(|seen| seen.born == born).map(|seen| seen.sensitivity);
        let seen = Seen { born, sensitivity: before.unwrap_or_default().or(sensitivity) };
        let room = if seen.sensitivity.secret { MOST_FILES } else { MOST_FILES / 2 };
        if before == Some(seen.sensitivity) || (files.len() >= room && !files.contains_key(&id)) {
            return;
        }
        files.insert(id, seen);
        if keep == Keep::Noted {
            self.append(&format(id, seen));
        }
    }

    /// Whether nothing would have to be written to know this file.
    fn is_settled(&self, named: Sensitivity, id: FileId) -> bool {
        let knows = || self.files.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id);
        !named.is_any() || knows()
    }
}

impl Mount {
    /// What a file is, by the names that it has here and by those that it had. What its names say is remembered.
    pub(crate) fn weigh(&self, named: Sensitivity, at: At<'_>, stamp: &Stamp) -> Sensitivity {
        self.weigh_called(at.name, named, at, stamp)
    }

    /// The same for a file that is open already and has this name.
    pub(crate) fn weigh_called(&self, name: &[u8], named: Sensitivity, at: At<'_>, stamp: &Stamp) -> Sensitivity {
        if stamp.kind != Kind::File {
            return Sensitivity::default();
        }
        let named = if named.secret || !may_hold_credential(name) {
            named
        } else {
            named.or(Sensitivity { secret: self.holds_credential(at, stamp), protected: false })
        };
        if !named.is_any() {
            return self.known.recall(at, stamp);
        }
        let known = self.known.recall(at, stamp).or(named);
        self.known.remember(Identity::of(at, stamp), known, Keep::Noted);
        known
    }

    /// The same for a call that must not wait. Nothing if it would have to.
    pub(crate) fn weigh_quickly(
        &self,
        name: &[u8],
        named: Sensitivity,
        at: At<'_>,
        stamp: &Stamp,
    ) -> Option<Sensitivity> {
        let settled = self.known.is_settled(named, stamp.id) && !may_hold_credential(name);
        settled.then(|| self.weigh(named, at, stamp))
    }

    /// Looks into a file of settings. One that cannot be looked into is taken for what its name says.
    fn holds_credential(&self, at: At<'_>, stamp: &Stamp) -> bool {
        const MOST_READ: usize = 64 << 10;
        let opened = if at.name.is_empty() {
            at.fd.try_clone_to_owned().ok()
        } else {
            self.open_at(at.fd, at.name, OFlags::RDONLY).ok()
        };
        let Some(file) = opened else { return false };
        let mut bytes = vec![0; usize::try_from(stamp.size).unwrap_or(MOST_READ).min(MOST_READ)];
        let length = pread(&file, &mut bytes, 0).unwrap_or(0);
        has_credential(&String::from_utf8_lossy(&bytes[..length]))
    }

    /// Remembers an entry that a walk or a listing came across, if its name says something. `path` is where it is below
    /// the root, or at least its last names.
    pub(crate) fn meet(&self, path: &str, directory: BorrowedFd<'_>, name: &[u8]) {
        let named = entry_sensitivity(path);
        if named.is_any()
            && let Ok(Some(stamp)) = look(directory, name)
        {
            self.weigh(named, At { fd: directory, name }, &stamp);
        }
    }

    /// Before a call: hears what other processes came across, and looks at what usually is at the root of a workspace, so that
    /// a link to it is known: the first time, and where something was made or removed there since.
    pub(crate) fn look_around(&self, cx: &Context<'_>) -> Result<(), ToolError> {
        self.known.catch_up();
        if self.is_as_looked_at(cx.pace) {
            return Ok(());
        }
        if cx.pace == Pace::Quick {
            return Err(cx.stall());
        }
        let root = self.root.as_fd();
        // Before it is listed: what comes while it is being listed counts as later.
        let mut looked_at = LookedAt { root: self.root_changed().unwrap_or_default(), ..LookedAt::default() };
        let mut names = settled(typed_names_in(root, MOST_NAMES))?;
        // What is kept there is what it was, and not a setting of ours.
        names.retain(|(name, _)| !is_reserved(name.as_bytes()));
        names.iter().for_each(|(name, _)| self.meet_settled(name, root, name));
        // The ones that bring settings come first, however many others there are.
        let mut links: Vec<&str> = names.iter().filter(|entry| may_be_link(entry)).map(|(name, _)| &**name).collect();
        links.sort_by_cached_key(|name| !brings_settings(name));
        links.iter().take(MOST_LINKS).try_for_each(|link| self.meet_directory_link(link))?;
        let telling = |(name, _): &&(String, _)| name.starts_with('.') || sensitivity(name).is_any();
        for (above, _) in names.iter().filter(telling).take(MOST_DIRECTORIES) {
            cx.check()?;
            let opened = self.resolver.open_child(root, above.as_bytes());
            if let Ok(directory) = &opened
                && let Ok(stat) = fstat(directory)
            {
                looked_at.directories.push((above.clone(), Stamp::of(&stat).changed));
            }
            let opened = opened.or_else(|_| self.open_followed(above, FOLLOWED_DIRECTORY));
            let Some(directory) = settled(opened.map(Some))? else { continue };
            for entry in settled(typed_names_in(directory.as_fd(), MOST_BELOW))? {
                let path = format!("{above}/{}", entry.0);
                self.meet_settled(&path, directory.as_fd(), &entry.0);
                if may_be_link(&entry) && brings_settings(&path) {
                    self.meet_directory_link(&path)?;
                }
            }
        }
        *self.known.looked_at.write().unwrap_or_else(PoisonError::into_inner) = Some(looked_at);
        Ok(())
    }

    fn root_changed(&self) -> Option<i128> {
        fstat(&self.root).ok().map(|stat| Stamp::of(&stat).changed)
    }

    /// Whether the directories that were looked through have the entries that they had. A call that must not wait asks about
    /// the root alone.
    fn is_as_looked_at(&self, pace: Pace) -> bool {
        let looked_at = self.known.looked_at.read().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(name, changed): &(String, i128)| matches!(look(self.root.as_fd(), name.as_bytes()), Ok(Some(stamp)) if stamp.changed == *changed);
        looked_at.as_ref().is_some_and(|looked_at| {
            self.root_changed() == Some(looked_at.root)
                && (pace == Pace::Quick || looked_at.directories.iter().all(is_same))
        })
    }

    /// Opens what a link leads to inside, as other programs follow it.
    fn open_followed(&self, path: &str, how: How) -> Result<OwnedFd, Errno> {
        let root = self.root.as_fd();
        match self.resolver.open(root, path.as_bytes(), how) {
            Err(Errno::XDEV) => {
                let inside = followed_inside(self, path.as_bytes()).ok_or(Errno::XDEV)?;
                self.resolver.open(root, if inside.is_empty() { b"." } else { &inside }, how)
            }
            opened => opened,
        }
    }

    /// Remembers where a link leads, if that is a directory inside.
    fn meet_directory_link(&self, link: &str) -> Result<(), ToolError> {
        let opened = self.open_followed(link, FOLLOWED_DIRECTORY);
        if let Some(directory) = settled(opened.map(Some))?
            && let Some(target) = settled(self.real_name(directory.as_fd()))?
            && target != link
        {
            self.known.linked.add(link, &read_back(&target));
        }
        Ok(())
    }

    /// What every process finds again by looking around, and only protects, is not worth a line.
    fn meet_settled(&self, path: &str, directory: BorrowedFd<'_>, name: &str) {
        let named = sensitivity(path);
        if !named.is_any() {
            return;
        }
        let at = At { fd: directory, name: name.as_bytes() };
        let keep = if named.secret { Keep::Noted } else { Keep::InMemory };
        match look(directory, at.name) {
            Ok(Some(stamp)) if stamp.kind == Kind::File => {
                self.known.remember(Identity::of(at, &stamp), named, keep);
            }
            // What a link leads to is read and obeyed under the name of the link.
            Ok(Some(stamp)) if stamp.kind == Kind::Link => {
                let how = How { flags: PLACE, links: Links::Follow, pace: Pace::Patient };
                if let Ok(target) = self.open_followed(path, how)
                    && let Ok(stamp) = fstat(&target).map(|stat| Stamp::of(&stat))
                    && stamp.kind == Kind::File
                {
                    self.known.remember(Identity::of(At::open(&target), &stamp), named, keep);
                }
            }
            _ => {}
        }
    }
}

/// Not every file system lists types. There, only names that begin with a dot are looked at.
fn may_be_link((name, kind): &(String, FileType)) -> bool {
    *kind == FileType::Symlink || (*kind == FileType::Unknown && name.starts_with('.'))
}

/// What was found, or nothing where it cannot be looked at. What is short only now is no reason to think that nothing is there.
fn settled<T: Default>(found: Result<T, Errno>) -> Result<T, ToolError> {
    match found {
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(fault(errno, ".")),
        found => Ok(found.unwrap_or_default()),
    }
}

impl Slot {
    /// New contents are another file: it is as sensitive as the one before, or as the one that it was made from.
    pub(crate) fn keep_known(&self, sensitivity: Sensitivity) {
        if sensitivity.is_any()
            && let Ok(Some(stamp)) = self.look()
        {
            self.mount.weigh(sensitivity, At { fd: self.base(), name: &self.name }, &stamp);
        }
    }
}

/// As many names as the longest rule about sensitive ones has, and one more: in a deep tree, the whole path of every
/// entry would be a great deal to look at.
pub(crate) fn last_names(path: &str) -> &str {
    path.rmatch_indices('/').nth(3).map_or(path, |(slash, _)| &path[slash + 1..])
}

fn format(id: FileId, seen: Seen) -> String {
    let born = seen.born.map_or_else(|| "-".to_owned(), |born| born.to_string());
    let Sensitivity { secret, protected } = seen.sensitivity;
    let why = match (secret, protected) {
        (true, true) => "both",
        (true, false) => "secret",
        _ => "protected",
    };
    format!("{:x}:{:x}:{born}:{why}\n", id.device, id.inode)
}

fn parse(line: &str) -> Option<(FileId, Seen)> {
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
    whole.then_some((id, Seen { born, sensitivity: Sensitivity { secret, protected } }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use ringfence_kernel::Sensitivity;

    use super::{Identity, Keep, Known, Seen, format, last_names, parse};
    use crate::stamp::FileId;

    const SECRET: Sensitivity = Sensitivity { secret: true, protected: false };
    const PROTECTED: Sensitivity = Sensitivity { secret: false, protected: true };

    fn identity(inode: u64, born: Option<i128>) -> Identity {
        Identity { id: FileId { device: 1, inode }, born }
    }

    fn note() -> std::fs::File {
        tempfile::tempfile().unwrap()
    }

    fn known(note: &std::fs::File) -> Known {
        Known::read(OwnedFd::from(note.try_clone().unwrap()))
    }

    #[test]
    fn other_processes_know_what_was_noted() {
        let note = note();
        let first = known(&note);
        first.remember(identity(7, Some(-5)), SECRET, Keep::Noted);
        first.remember(identity(8, None), PROTECTED, Keep::Noted);
        first.remember(identity(8, None), SECRET, Keep::Noted);
        first.remember(identity(9, None), SECRET, Keep::InMemory);
        let (next, beside) = (known(&note), known(&note));
        next.remember(identity(11, None), SECRET, Keep::Noted);
        beside.catch_up();
        assert!(beside.is_secret(identity(11, None)));
        assert!(next.is_secret(identity(7, Some(-5))) && next.is_secret(identity(8, None)));
        assert!(!next.is_secret(identity(9, None)) && first.is_secret(identity(9, None)));
    }

    #[test]
    fn an_inode_that_was_given_out_again_is_another_file() {
        let known = known(&note());
        known.remember(identity(7, Some(1)), SECRET, Keep::Noted);
        assert!(!known.is_secret(identity(7, Some(2))));
        known.remember(identity(7, Some(2)), PROTECTED, Keep::Noted);
        assert!(!known.is_secret(identity(7, Some(2))));
    }

    #[test]
    fn what_is_known_is_noted_once_and_lines_that_make_no_sense_are_passed_over() {
        use std::io::{Read as _, Seek as _, Write as _};
        let mut note = note();
        note.write_all(b"1:7:5:secret\nx:y\n\n1:8:-:public\n1:9:-:bo").unwrap();
        let known = known(&note);
        known.remember(identity(7, Some(5)), SECRET, Keep::Noted);
        known.remember(identity(10, None), SECRET, Keep::Noted);
        known.remember(identity(10, None), SECRET, Keep::Noted);
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
                let (id, seen) = (FileId { device: u64::MAX, inode: 0 }, Seen { born, sensitivity });
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
