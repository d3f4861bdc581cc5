//! Upper directory of a running overlay: what the program made at a path, read without a change.
//!
//! The program changes it meanwhile, so every answer is one of a moment. No link is followed, and what cannot be looked at
//! counts as the program's.
//!
//! Not here: reading all of it after the end (`upper.rs`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::Mount;
use crate::path::relative::split;
use crate::root::{open_no_follow, rename_noreplace};
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fgetxattr, openat, pread, readlinkat, statat, unlinkat};

/// A larger file is taken to differ.
const MOST_COMPARED_BYTES: u64 = 64 << 20;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

/// What the upper directory has at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpperCover {
    /// Nothing: the entry of the workspace is seen.
    Untouched,
    /// A directory through which the entries of the workspace are seen.
    Merged(FileStat),
    /// Something that hides the entry of the workspace, there or above.
    Hidden,
}

/// The upper directory.
#[derive(Debug)]
pub(super) struct UpperTree(OwnedFd);

impl UpperTree {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self(root)
    }

    /// What it has at a path.
    pub(super) fn cover(&self, path: &[u8]) -> UpperCover {
        self.try_cover(path).unwrap_or(UpperCover::Hidden)
    }

    fn try_cover(&self, path: &[u8]) -> Result<UpperCover, Errno> {
        let mut directory = openat(&self.0, c".", DIRECTORY | SAFE_OPEN, Mode::empty())?;
        let mut cover = UpperCover::Merged(FileStat::from_stat(&statat(&directory, c".", AtFlags::empty())?));
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let found = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => FileStat::from_stat(&found),
                Err(Errno::NOENT) => return Ok(UpperCover::Untouched),
                Err(errno) => return Err(errno),
            };
            if found.kind != FileKind::Directory {
                return Ok(UpperCover::Hidden);
            }
            directory = openat(&directory, name, DIRECTORY | SAFE_OPEN, Mode::empty())?;
            if has_attribute(&directory, "opaque", Some(b"y")) {
                return Ok(UpperCover::Hidden);
            }
            cover = UpperCover::Merged(found);
        }
        Ok(cover)
    }

    fn parent(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut directory = openat(&self.0, c".", DIRECTORY | SAFE_OPEN, Mode::empty())?;
        for name in split(path).0.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            directory = openat(&directory, name, DIRECTORY | SAFE_OPEN, Mode::empty())?;
        }
        Ok(directory)
    }

    /// Names in a directory.
    pub(super) fn names(&self, path: &[u8], most: usize) -> Vec<Vec<u8>> {
        let below = [path, b"/."].concat();
        let Ok(directory) = self.parent(&below) else { return Vec::new() };
        let names = Dir::read_from(&directory).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_bytes().to_vec());
        names.filter(|name| !matches!(name.as_slice(), b"." | b"..")).take(most).collect()
    }

    /// Whether what hides an entry of the workspace is another than that one. It may say so without reason.
    pub(super) fn differs(&self, mount: &Mount, path: &[u8], lower: Option<&FileStat>) -> bool {
        let (above, name) = split(path);
        let found = self.parent(path).and_then(|parent| {
            let found = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((parent, found))
        });
        // Where a directory above is hidden, there may be no such entry here.
        let Ok((parent, found)) = found else { return lower.is_some() };
        let is_whiteout = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0;
        let found = FileStat::from_stat(&found);
        match lower {
            None if is_whiteout => false,
            // A new one of the program, where another process had one for a while.
            None => open_file(&parent, name, &found).is_none_or(|file| has_attribute(&file, "origin", None)),
            Some(_) if is_whiteout => true,
            Some(lower) if (lower.kind, lower.mode) != (found.kind, found.mode) && lower.kind != FileKind::Link => true,
            Some(lower) => {
                let Some(below) = open_no_follow(mount, above) else { return true };
                match lower.kind {
                    FileKind::Link => {
                        let target = |parent: &OwnedFd| readlinkat(parent, name).ok();
                        found.kind != FileKind::Link || target(&parent) != target(&below)
                    }
                    FileKind::File if lower.size == found.size && lower.size <= MOST_COMPARED_BYTES => {
                        let other = mount.open_at(below.as_fd(), name, OFlags::RDONLY).ok();
                        let own = open_file(&parent, name, &found);
                        !own.zip(other).is_some_and(|(own, other)| has_same_contents(&own, &other))
                    }
                    _ => true,
                }
            }
        }
    }

    /// Removes a whiteout. It is moved to a private directory first, by the name `aside`: what the program made at its
    /// place meanwhile is moved back. True if the name is free.
    pub(super) fn remove_whiteout(&self, path: &[u8], (private, aside): (BorrowedFd<'_>, &[u8])) -> bool {
        let name = split(path).1;
        let Ok(parent) = self.parent(path) else { return false };
        match rename_noreplace((parent.as_fd(), name), (private, aside)) {
            Ok(()) => {}
            // The workspace had no entry of this name any more, so none was made.
            Err(errno) => return errno == Errno::NOENT,
        }
        let is_whiteout = statat(private, aside, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
            FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0
        });
        if !is_whiteout {
            let _ = rename_noreplace((private, aside), (parent.as_fd(), name));
            return false;
        }
        unlinkat(private, aside, AtFlags::empty()).is_ok()
    }
}

/// Opens a regular file that was seen.
fn open_file(parent: &OwnedFd, name: &[u8], seen: &FileStat) -> Option<OwnedFd> {
    if seen.kind != FileKind::File {
        return None;
    }
    let file = openat(parent, name, OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN, Mode::empty()).ok()?;
    let opened = FileStat::from_stat(&crate::sys::syscall::fstat(&file).ok()?);
    (opened.kind == FileKind::File && opened.id == seen.id).then_some(file)
}

fn has_same_contents(one: &OwnedFd, other: &OwnedFd) -> bool {
    let (mut first, mut second) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut offset = 0;
    loop {
        let (Ok(length), Ok(same)) = (pread(one, &mut first, offset), pread(other, &mut second, offset)) else {
            return false;
        };
        if length != same || first.get(..length) != second.get(..same) {
            return false;
        }
        if length == 0 {
            return true;
        }
        offset += length as u64;
    }
}

/// Whether an entry has an attribute of the overlay, with this value if one is given.
fn has_attribute(entry: &OwnedFd, name: &str, value: Option<&[u8]>) -> bool {
    ["user.overlay.", "trusted.overlay."].iter().any(|prefix| {
        let mut buffer = [0; 256];
        let read = fgetxattr(entry, format!("{prefix}{name}"), &mut buffer);
        read.is_ok_and(|length| value.is_none_or(|value| buffer.get(..length) == Some(value)))
    })
}
