//! Mount points inside a jail's root, resolved as if that were `/`.
//!
//! A path is never followed out of the root that is given. Missing parts are made where the root is writable.
//!
//! Not here: what is mounted there.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;

use crate::mounts::components;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const ENTRY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Links are followed inside the root: the system has them, and no program made them.
const IN_ROOT: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
/// For directories that programs wrote to.
const WITHOUT_LINKS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Opens an entry at an absolute path. `None` where there is none.
pub(crate) fn find_in(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    found(openat2(root, path, ENTRY, Mode::empty(), IN_ROOT))
}

/// Opens the directory at an absolute path, and makes it where it is missing.
pub(crate) fn make_directory_in(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    make_directories(root, path, IN_ROOT)
}

/// Makes an empty file at an absolute path, if nothing is there.
pub(crate) fn make_file_in(root: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    make_file(root, path, IN_ROOT)
}

/// Opens an entry at a relative path, without following any link. `None` where there is none.
pub(crate) fn find_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    found(openat2(root, path, ENTRY, Mode::empty(), WITHOUT_LINKS))
}

/// Opens the directory at a relative path, and makes it where it is missing, without following any link.
pub(crate) fn make_directory_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    make_directories(root, path, WITHOUT_LINKS)
}

/// Makes an empty file at a relative path, if nothing is there, without following any link.
pub(crate) fn make_file_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    make_file(root, path, WITHOUT_LINKS)
}

fn found(opened: Result<OwnedFd, Errno>) -> Result<Option<OwnedFd>, Errno> {
    match opened {
        Ok(entry) => Ok(Some(entry)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(other) => Err(other),
    }
}

fn make_directories(root: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let mut directory = openat(root, ".", DIRECTORY, Mode::empty())?;
    let mut made = PathBuf::new();
    for name in components(path) {
        made.push(name);
        directory = match openat2(root, &made, DIRECTORY, Mode::empty(), resolve) {
            Err(Errno::NOENT) => {
                mkdirat(&directory, name, Mode::from_raw_mode(0o755))?;
                openat(&directory, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?
            }
            opened => opened?,
        };
    }
    Ok(directory)
}

fn make_file(root: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> Result<(), Errno> {
    if openat2(root, path, ENTRY, Mode::empty(), resolve).is_ok() {
        return Ok(());
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let parent = make_directories(root, parent, resolve)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent.as_fd(), name, flags, Mode::from_raw_mode(0o644)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rustix::fs::{Mode, OFlags, open};

    use super::{find_beneath, find_in, make_directory_beneath, make_directory_in, make_file_in};

    #[test]
    fn links_stay_inside_the_root() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let held = open(root.path(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        fs::create_dir_all(root.path().join("usr/home")).unwrap();
        symlink("/usr/home", root.path().join("home")).unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        make_directory_in(held.as_fd(), Path::new("/home/me/project")).unwrap();
        assert!(root.path().join("usr/home/me/project").is_dir());
        make_file_in(held.as_fd(), Path::new("/home/me/settings/one.json")).unwrap();
        assert!(find_in(held.as_fd(), Path::new("/home/me/settings/one.json")).unwrap().is_some());
        assert!(find_in(held.as_fd(), Path::new("/home/other")).unwrap().is_none());
        assert!(make_directory_in(held.as_fd(), Path::new("/out/new")).is_err(), "a link without a target");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        // Where a program may have made links, none is followed.
        assert!(make_directory_beneath(held.as_fd(), Path::new("home/me")).is_err());
        assert!(find_beneath(held.as_fd(), Path::new("home/me")).is_err());
        assert!(find_beneath(held.as_fd(), Path::new("usr/home/me")).unwrap().is_some());
    }
}
