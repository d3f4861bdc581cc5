//! Directory rename by hard links, for an overlay that refuses to rename.
//!
//! An overlay does not rename a directory that its lower layer has (`EXDEV`). Then the new tree is built first: its
//! directories with mode, times and attributes of the old ones, everything else as one more hard link. Only when it is
//! complete, the old tree is emptied. So at every moment one of the two trees is complete. An error before that moment
//! rolls back: the new tree is removed. After it both trees stay readable, and the new one is the complete one. Mounts in
//! the tree, such as masks of secrets, stop it before anything is changed.
//!
//! Unlike a rename by the kernel, it makes new directories: a process whose working directory or descriptor is an old one
//! has a deleted directory, and a watch of the tree reports new and deleted entries.
//!
//! Not here: the rights with which it runs (`rename_helper.rs`), and the calls (`rename_requests.rs`).

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, StatFs, Statx, StatxFlags, StatxTimestamp,
    Timespec, Timestamps, XattrFlags, fchmod, fgetxattr, flistxattr, fsetxattr, fstatfs, futimens, linkat, mkdirat,
    openat, openat2, renameat, renameat_with, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

/// File system type of an overlay.
const OVERLAY_MAGIC: rustix::fs::FsWord = 0x794c_7630;

/// An old tree to which other processes add entries is emptied this many times.
const MAX_PASSES: usize = 3;

/// Attributes of a directory that its owner can set.
const COPIED_XATTRS: [&[u8]; 2] = [b"user.", b"system.posix_acl_"];

/// The longest list of names of attributes, and the largest attribute, that the kernel permits.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// The arguments of a `renameat2` call.
#[derive(Debug)]
pub(crate) struct RenameArgs {
    pub(crate) old_base: OwnedFd,
    pub(crate) old_path: CString,
    pub(crate) new_base: OwnedFd,
    pub(crate) new_path: CString,
    pub(crate) flags: RenameFlags,
}

/// Bounds of one rename. A larger tree is not renamed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeRenameLimits {
    pub(crate) entries: usize,
    pub(crate) depth: usize,
    /// Time until the new tree is complete.
    pub(crate) time: Duration,
}

/// Renames as the kernel does, and a directory by links where the kernel refuses it.
pub(crate) fn rename(args: &RenameArgs, limits: TreeRenameLimits) -> Result<(), Errno> {
    match renameat_with(&args.old_base, &args.old_path, &args.new_base, &args.new_path, args.flags) {
        Err(Errno::XDEV) if !args.flags.contains(RenameFlags::EXCHANGE) => {}
        result => return result,
    }
    // Where nothing can be done about it, the error is the kernel's.
    let old = DirectoryEntry::find(&args.old_base, &args.old_path).map_err(|_| Errno::XDEV)?;
    let new = DirectoryEntry::find(&args.new_base, &args.new_path).map_err(|_| Errno::XDEV)?;
    if !fstatfs(&old.parent).is_ok_and(|found| is_overlay(&found)) || mount_id(&old.parent)? != mount_id(&new.parent)? {
        return Err(Errno::XDEV);
    }
    rename_by_links(&old, &new, args.flags, limits)
}

pub(crate) fn is_overlay(found: &StatFs) -> bool {
    found.f_type == OVERLAY_MAGIC
}

/// An entry of a directory, by name.
#[derive(Debug)]
struct DirectoryEntry {
    parent: OwnedFd,
    name: CString,
}

impl DirectoryEntry {
    /// The last component of a path, which is not resolved, and the directory that it is in.
    fn find(base: &OwnedFd, path: &CStr) -> Result<Self, Errno> {
        let path = path.to_bytes();
        let end = path.iter().rposition(|byte| *byte != b'/').ok_or(Errno::BUSY)? + 1;
        let path = path.get(..end).unwrap_or_default();
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => path.split_at(slash + 1),
            None => (&b"."[..], path),
        };
        if matches!(name, b"." | b"..") {
            return Err(Errno::BUSY);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A magic link is one of this process, and not of the program.
        let parent = openat2(base, parent, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
        Ok(Self { parent, name: CString::new(name).map_err(|_| Errno::INVAL)? })
    }
}

fn rename_by_links(
    old: &DirectoryEntry,
    new: &DirectoryEntry,
    flags: RenameFlags,
    limits: TreeRenameLimits,
) -> Result<(), Errno> {
    let source = open_directory(&old.parent, &old.name).map_err(|_| Errno::XDEV)?;
    let mut work = TreeRename::new(limits);
    work.check(source.as_fd(), mount_id(&source)?, limits.depth).map_err(|_| Errno::XDEV)?;

    let replaced = if flags.contains(RenameFlags::NOREPLACE) { None } else { remove_empty(new)? };
    if let Err(errno) = mkdirat(&new.parent, &new.name, Mode::RWXU) {
        restore_empty(new, replaced.as_ref());
        return Err(errno);
    }
    let linked = open_directory(&new.parent, &new.name).and_then(|target| {
        work.target = identity(&stat(target.as_fd())?);
        work.link_entries(&source, &target, Path::new(""), limits.depth).map(|()| target)
    });
    let target = match linked {
        Ok(target) => target,
        Err(errno) => {
            let _ = remove_tree(new.parent.as_fd(), &new.name);
            restore_empty(new, replaced.as_ref());
            // Programs that get `EXDEV` copy instead, which needs as much room.
            return Err(if errno == Errno::NOSPC { errno } else { Errno::XDEV });
        }
    };
    let mut removed = Ok(());
    for _ in 0..MAX_PASSES {
        removed = work.empty_and_remove(&old.parent, &old.name, &target);
        if removed.is_ok() {
            break;
        }
    }
    removed.map_err(|errno| if errno == Errno::NOSPC { errno } else { Errno::BUSY })
}

/// Removes the directory that is replaced. Returns its mode and times, or nothing if there is none.
fn remove_empty(entry: &DirectoryEntry) -> Result<Option<Statx>, Errno> {
    let found = stat_entry(entry.parent.as_fd(), &entry.name);
    match unlinkat(&entry.parent, &entry.name, AtFlags::REMOVEDIR) {
        Ok(()) => found.map(Some),
        Err(Errno::NOENT) => Ok(None),
        Err(other) => Err(other),
    }
}

fn restore_empty(entry: &DirectoryEntry, replaced: Option<&Statx>) {
    let Some(replaced) = replaced else { return };
    let _ = mkdirat(&entry.parent, &entry.name, Mode::RWXU)
        .and_then(|()| open_directory(&entry.parent, &entry.name))
        .and_then(|made| set_mode_and_times(&made, replaced));
}

/// A rename that is under way.
struct TreeRename {
    entries_left: usize,
    deadline: Option<Instant>,
    /// Old entries that the new tree has, by device and inode. Of a link or pipe of its lower layer, an overlay may report
    /// another inode once it is linked.
    linked: HashSet<(u64, u64)>,
    /// Files with several names, with the first new name of each, relative to the new tree.
    hard_linked: HashMap<(u64, u64), PathBuf>,
    /// The new tree.
    target: (u64, u64),
}

impl TreeRename {
    fn new(limits: TreeRenameLimits) -> Self {
        let deadline = Instant::now().checked_add(limits.time);
        Self {
            entries_left: limits.entries,
            deadline,
            linked: HashSet::new(),
            hard_linked: HashMap::new(),
            target: (0, 0),
        }
    }

    fn check_deadline(&self) -> Result<(), Errno> {
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) { Err(Errno::TIMEDOUT) } else { Ok(()) }
    }

    /// Changes nothing. Whether the tree lies in one mount, within the limits, and can be read and emptied.
    fn check(&mut self, directory: BorrowedFd<'_>, mount: u64, depth_left: usize) -> Result<(), Errno> {
        let depth_left = depth_left.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
        let writable = stat(directory)?.stx_mode & 0o300 == 0o300;
        if !writable && stat(directory)?.stx_uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        for name in entry_names(directory)? {
            self.entries_left = self.entries_left.checked_sub(1).ok_or(Errno::TOOBIG)?;
            self.check_deadline()?;
            let Some(found) = existing(stat_entry(directory, &name))? else { continue };
            if found.stx_mnt_id != mount {
                return Err(Errno::XDEV);
            }
            if !is_directory(&found) {
                continue;
            }
            if let Some(below) = existing(open_directory(directory, &name))? {
                self.check(below.as_fd(), mount, depth_left)?;
            }
        }
        Ok(())
    }

    /// Builds the new tree. `path` is that of `to`, relative to the new tree.
    fn link_entries(&mut self, from: &OwnedFd, to: &OwnedFd, path: &Path, depth_left: usize) -> Result<(), Errno> {
        let depth_left = depth_left.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
        let attributes = stat(from.as_fd())?;
        for name in entry_names(from.as_fd())? {
            self.check_deadline()?;
            let Some(found) = existing(stat_entry(from.as_fd(), &name))? else { continue };
            if identity(&found) == self.target {
                return Err(Errno::INVAL);
            }
            let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            if is_directory(&found) {
                let Some(from) = existing(open_directory(from, &name))? else { continue };
                mkdirat(to, &name, Mode::RWXU)?;
                self.link_entries(&from, &open_directory(to, &name)?, &path, depth_left)?;
            } else {
                if existing(self.link_file(from, to, &name, &found, path))?.is_some() {
                    self.linked.insert(identity(&found));
                }
            }
        }
        copy_xattrs(from, to)?;
        set_mode_and_times(to, &attributes)
    }

    /// The first change of a file in an overlay makes it one of its own. So the second name of a file in the tree becomes one
    /// of the new file.
    fn link_file(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        found: &Statx,
        path: PathBuf,
    ) -> Result<(), Errno> {
        if found.stx_nlink < 2 {
            return linkat(from, name, to, name, AtFlags::empty());
        }
        match self.hard_linked.get(&identity(found)) {
            Some(first) => linkat_from_ancestor(to, path.components().count() - 1, first, name),
            None => {
                linkat(from, name, to, name, AtFlags::empty())?;
                self.hard_linked.insert(identity(found), path);
                Ok(())
            }
        }
    }

    /// Removes the old tree. Entries that are new in it move. What cannot be removed, because another process changes it
    /// at the same time, does not keep the rest.
    fn empty_and_remove(&self, parent: &OwnedFd, name: &CStr, to: &OwnedFd) -> Result<(), Errno> {
        let Some(from) = existing(open_directory(parent, name))? else { return Ok(()) };
        let mode = stat(from.as_fd())?.stx_mode;
        if mode & 0o300 != 0o300 {
            fchmod(&from, Mode::from_raw_mode((mode & 0o1777 | 0o700).into()))?;
        }
        let mut failure = None;
        for name in entry_names(from.as_fd())? {
            failure = failure.or(self.remove_or_move(&from, to, &name).err());
        }
        let removed = existing(unlinkat(parent, name, AtFlags::REMOVEDIR)).map(drop);
        removed.map_err(|errno| failure.unwrap_or(errno))
    }

    fn remove_or_move(&self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let Some(found) = existing(stat_entry(from.as_fd(), name))? else { return Ok(()) };
        if is_directory(&found) {
            let below = match existing(open_directory(to, name))? {
                Some(below) => below,
                None => {
                    mkdirat(to, name, Mode::from_raw_mode((found.stx_mode & 0o1777).into()))?;
                    open_directory(to, name)?
                }
            };
            return self.empty_and_remove(from, name, &below);
        }
        let is_linked = stat_entry(to.as_fd(), name)
            .is_ok_and(|new| identity(&new) == identity(&found) || self.linked.contains(&identity(&found)));
        let done = if is_linked { unlinkat(from, name, AtFlags::empty()) } else { renameat(from, name, to, name) };
        existing(done).map(drop)
    }
}

/// Links a file whose path is relative to an ancestor of a directory, this number of levels up.
fn linkat_from_ancestor(directory: &OwnedFd, levels: usize, path: &Path, name: &CStr) -> Result<(), Errno> {
    let up: PathBuf = std::iter::repeat_n("..", levels).collect();
    linkat(directory, up.join(path), directory, name, AtFlags::empty())
}

fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let directory = open_directory(parent, name)?;
    fchmod(&directory, Mode::RWXU)?;
    for entry in entry_names(directory.as_fd())? {
        if is_directory(&stat_entry(directory.as_fd(), &entry)?) {
            remove_tree(directory.as_fd(), &entry)?;
        } else {
            unlinkat(&directory, &entry, AtFlags::empty())?;
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn copy_xattrs(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let mut names = vec![0; MAX_XATTR_BYTES];
    let length = match flistxattr(from, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        listed => listed?,
    };
    names.truncate(length);
    let copied = |name: &&[u8]| COPIED_XATTRS.iter().any(|prefix| name.starts_with(prefix));
    for name in names.split(|byte| *byte == 0).filter(copied) {
        let mut value = vec![0; MAX_XATTR_BYTES];
        let length = fgetxattr(from, name, &mut value[..])?;
        fsetxattr(to, name, value.get(..length).unwrap_or_default(), XattrFlags::empty())?;
    }
    Ok(())
}

/// Without the setuid and setgid bits, which no program of a jail sets.
fn set_mode_and_times(directory: &OwnedFd, like: &Statx) -> Result<(), Errno> {
    fchmod(directory, Mode::from_raw_mode((like.stx_mode & 0o1777).into()))?;
    let time = |time: StatxTimestamp| Timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec.into() };
    futimens(directory, &Timestamps { last_access: time(like.stx_atime), last_modification: time(like.stx_mtime) })
}

/// A directory of the same mount, to be listed. A link is refused.
fn open_directory(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(parent, name, flags, Mode::empty(), within)
}

/// All names, before the first entry changes.
fn entry_names(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let listed = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let names = Dir::new(listed)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    names.filter(|name| !name.as_ref().is_ok_and(|name| matches!(name.to_bytes(), b"." | b".."))).collect()
}

fn stat_entry(directory: BorrowedFd<'_>, name: impl Arg) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    statx(directory, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

fn stat(directory: BorrowedFd<'_>) -> Result<Statx, Errno> {
    stat_entry(directory, "")
}

fn mount_id(directory: &OwnedFd) -> Result<u64, Errno> {
    let found = stat(directory.as_fd())?;
    // Linux 5.8 has it.
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 { Err(Errno::XDEV) } else { Ok(found.stx_mnt_id) }
}

/// Nothing, if another process removed the entry meanwhile.
fn existing<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Err(Errno::NOENT) => Ok(None),
        other => other.map(Some),
    }
}

fn identity(found: &Statx) -> (u64, u64) {
    (u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor), found.stx_ino)
}

fn is_directory(found: &Statx) -> bool {
    FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::Path;
    use std::time::Duration;

    use rustix::fs::{CWD, Mode, OFlags, RenameFlags, openat};
    use rustix::io::Errno;

    use super::{DirectoryEntry, TreeRename, TreeRenameLimits, open_directory, rename_by_links};

    const ENOUGH: TreeRenameLimits = TreeRenameLimits { entries: 100, depth: 10, time: Duration::MAX };

    /// A directory with `src/a/b/file` and `src/one`.
    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("src/a/b")).unwrap();
        fs::write(directory.path().join("src/a/b/file"), "deep").unwrap();
        fs::write(directory.path().join("src/one"), "1").unwrap();
        directory
    }

    fn entry(directory: &Path, path: &str) -> DirectoryEntry {
        let base = openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        DirectoryEntry::find(&base, &std::ffi::CString::new(path).unwrap()).unwrap()
    }

    fn rename(directory: &Path, old: &str, new: &str, limits: TreeRenameLimits) -> Result<(), Errno> {
        rename_by_links(&entry(directory, old), &entry(directory, new), RenameFlags::empty(), limits)
    }

    fn paths(directory: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                found.extend(paths(&entry.path()).iter().map(|below| format!("{name}/{below}")));
            }
            found.push(name);
        }
        found.sort();
        found
    }

    const OLD_TREE: [&str; 5] = ["src", "src/a", "src/a/b", "src/a/b/file", "src/one"];

    #[test]
    fn a_tree_has_the_same_files_at_another_name() {
        let directory = tree();
        let inode = |path: &str| fs::metadata(directory.path().join(path)).unwrap().ino();
        let before = inode("src/a/b/file");
        rename(directory.path(), "src", "lib//", ENOUGH).unwrap();
        assert_eq!(paths(directory.path()), ["lib", "lib/a", "lib/a/b", "lib/a/b/file", "lib/one"]);
        assert_eq!(inode("lib/a/b/file"), before);
    }

    #[test]
    fn a_tree_beyond_the_limits_is_left_as_it_is() {
        let directory = tree();
        let cases = [
            TreeRenameLimits { entries: 3, ..ENOUGH },
            TreeRenameLimits { depth: 2, ..ENOUGH },
            TreeRenameLimits { time: Duration::ZERO, ..ENOUGH },
        ];
        for limits in cases {
            assert_eq!(rename(directory.path(), "src", "lib", limits), Err(Errno::XDEV), "{limits:?}");
            assert_eq!(paths(directory.path()), OLD_TREE, "{limits:?}");
        }
        rename(directory.path(), "src", "lib", TreeRenameLimits { entries: 4, depth: 3, ..ENOUGH }).unwrap();
    }

    #[test]
    fn an_error_rolls_back_and_restores_what_was_replaced() {
        let directory = tree();
        let replaced = directory.path().join("src/a/empty");
        fs::create_dir(&replaced).unwrap();
        fs::set_permissions(&replaced, fs::Permissions::from_mode(0o750)).unwrap();
        let before = (paths(directory.path()), fs::metadata(&replaced).unwrap().modified().unwrap());
        // The kernel refuses this before; here it is an error after the first links.
        assert_eq!(rename(directory.path(), "src", "src/a/empty", ENOUGH), Err(Errno::XDEV));
        let after = fs::metadata(&replaced).unwrap();
        assert_eq!((paths(directory.path()), after.modified().unwrap()), before);
        assert_eq!(after.permissions().mode() & 0o777, 0o750);
    }

    #[test]
    fn a_directory_with_entries_is_not_replaced() {
        let directory = tree();
        fs::create_dir_all(directory.path().join("lib/x")).unwrap();
        assert_eq!(rename(directory.path(), "src", "lib", ENOUGH), Err(Errno::NOTEMPTY));
        assert_eq!(paths(directory.path()), [&["lib", "lib/x"][..], &OLD_TREE].concat());
    }

    #[test]
    fn entries_that_are_new_or_replaced_meanwhile_move_too() {
        let directory = tree();
        let (parent, path) = (entry(directory.path(), "src").parent, directory.path());
        let mut work = TreeRename::new(ENOUGH);
        fs::create_dir(path.join("lib")).unwrap();
        let (old, new) = (open_directory(&parent, c"src").unwrap(), open_directory(&parent, c"lib").unwrap());
        work.link_entries(&old, &new, Path::new(""), 10).unwrap();
        fs::write(path.join("src/a/late"), "late").unwrap();
        fs::write(path.join("src/new"), "replaced").unwrap();
        fs::rename(path.join("src/new"), path.join("src/one")).unwrap();
        fs::create_dir(path.join("src/more")).unwrap();
        fs::write(path.join("src/more/file"), "more").unwrap();
        work.empty_and_remove(&parent, c"src", &new).unwrap();
        assert_eq!(
            paths(path),
            ["lib", "lib/a", "lib/a/b", "lib/a/b/file", "lib/a/late", "lib/more", "lib/more/file", "lib/one"]
        );
        assert_eq!(fs::read_to_string(path.join("lib/one")).unwrap(), "replaced");
    }
}
