//! Staged entries: new files, links and directories, made whole in the image store before they are published.
//!
//! Contents are streamed from the upper directory, and must be those that were compared and perhaps previewed. One call
//! syncs all of them, however many there are.
//!
//! Not here: publishing them (`txn/step.rs`).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chownat, syncfs};
use rustix::io::Errno;

use crate::journal::{FileState, FileStateDepth, PreImageStore};
use crate::mount::Mount;
use crate::overlay::captured_files::CapturedFiles;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path};
use crate::overlay::upper::{UpperLayer, open_beneath, open_file};
use crate::overlay::{ChangeSet, PartialContents};
use crate::path::relative::split;
use crate::read::content::read_chunk;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::attributes::copy_attributes;
use crate::root::{FileToReplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::own_files::{SAFE_OPEN, write_all};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fchmod, fchown, fstat, fsync, futimens, mkdirat, openat, symlinkat};
use crate::txn::run::MAX_SYNCED_EACH;

/// The mode of a directory that its owner can fill and move.
const STAGING_DIR_MODE: u32 = 0o700;

/// Set-group-ID bit: new entries of the directory inherit its group, and subdirectories the bit.
const SETGID: u32 = 0o2000;

/// Stages entries in the image store.
pub(super) struct OverlayStager<'a> {
    pub(super) mount: &'a Mount,
    pub(super) images: &'a PreImageStore,
    pub(super) upper: &'a UpperLayer,
    /// Contents that are not those of the upper directory.
    partial: &'a HashMap<Vec<u8>, PartialContents>,
    /// Copies of what is in the upper directory of a program that still runs.
    captured: Option<&'a CapturedFiles>,
    pub(super) cx: &'a CallContext<'a>,
    /// Few things are put on disk one by one, many at once.
    sync_each: bool,
    /// Owner of new entries, where we may set it.
    owner: Option<(Uid, Gid)>,
    /// The group of a directory that gives it to everything new in it.
    group: Cell<Option<Gid>>,
    buffer: RefCell<Vec<u8>>,
    /// The last directory that was read from the upper directory, with its path.
    last: RefCell<Option<(Vec<u8>, OwnedFd)>>,
}

/// An entry staged in the image store.
#[derive(Debug)]
pub(super) struct StagedOverlayEntry {
    pub(super) stat: FileStat,
    pub(super) state: FileState,
    /// The mode that a directory gets once published: with it, its owner could not move it there.
    pub(super) final_mode: Option<u32>,
}

impl<'a> OverlayStager<'a> {
    pub(super) fn new(
        mount: &'a Mount,
        keep: &'a PreImageStore,
        changes: &'a ChangeSet,
        cx: &'a CallContext<'a>,
    ) -> Result<Self, ToolError> {
        let owner = FileStat::from_stat(&fstat(&mount.root).map_err(|errno| errno_error(errno, "."))?).owner;
        let owner = mount.privileged.then(|| (Uid::from_raw(owner.0), Gid::from_raw(owner.1)));
        let (buffer, last) = (RefCell::new(vec![0; 256 << 10]), RefCell::default());
        Ok(Self {
            mount,
            images: keep,
            upper: &changes.upper,
            partial: &changes.partial,
            captured: changes.captured.as_ref(),
            cx,
            sync_each: changes.items.len() <= MAX_SYNCED_EACH,
            owner,
            group: Cell::new(None),
            buffer,
            last,
        })
    }

    /// Stages an item under a name in the image store, with the items below it, as if it were made in the directory
    /// `above`. The replacement of a file keeps the file's owner and attributes.
    pub(super) fn make(
        &self,
        image: &str,
        (item, inside): (&OverlayChange, &[OverlayChange]),
        above: &FileStat,
        old: Option<&FileToReplace>,
    ) -> Result<Option<StagedOverlayEntry>, ToolError> {
        self.group.set((above.mode & SETGID != 0).then(|| Gid::from_raw(above.owner.1)));
        let name = display_path(self.mount, &item.path);
        let fail = |errno| errno_error(errno, &name);
        let keep = self.images.fd();
        let mut later = None;
        let digest = match &item.upper {
            None => return Ok(None),
            Some(OverlayUpperState::File { .. }) => Some(self.make_file((keep, image.as_bytes()), item, old)?),
            Some(OverlayUpperState::Link { target }) => {
                self.make_link((keep, image.as_bytes()), target, &name)?;
                None
            }
            Some(OverlayUpperState::Directory { mode }) => {
                self.make_tree(image, item, inside)?;
                // Its owner has to be able to write to what they move.
                let bit = if self.group.get().is_some() { SETGID } else { 0 };
                later = (mode & 0o200 == 0).then_some(mode | bit);
                None
            }
        };
        let stamp = stat(keep, image.as_bytes()).map_err(fail)?.ok_or_else(|| fail(Errno::NOENT))?;
        let state = match digest {
            Some(digest) => FileState::of_file(&stamp, Some(digest)),
            None => {
                let state = FileState::read_at(self.mount, keep, image.as_bytes(), FileStateDepth::Recursive, self.cx)?;
                state.ok_or_else(|| fail(Errno::NOENT))?
            }
        };
        Ok(Some(StagedOverlayEntry { stat: stamp, state, final_mode: later }))
    }

    fn make_tree(&self, image: &str, item: &OverlayChange, inside: &[OverlayChange]) -> Result<(), ToolError> {
        let top = item.path.len();
        let at = |path: &[u8]| [image.as_bytes(), &path[top..]].concat();
        let mut last: Option<(Vec<u8>, OwnedFd)> = None;
        for item in std::iter::once(item).chain(inside) {
            self.cx.check()?;
            let name = display_path(self.mount, &item.path);
            let fail = |errno| errno_error(errno, &name);
            let path = at(&item.path);
            let (above, entry) = split(&path);
            if last.as_ref().is_none_or(|(path, _)| path != above) {
                last = Some((above.to_vec(), self.open_staged(above).map_err(fail)?));
            }
            let Some((_, directory)) = &last else { return Err(fail(Errno::NOENT)) };
            let here = (directory.as_fd(), entry);
            match &item.upper {
                Some(OverlayUpperState::File { .. }) => self.make_file(here, item, None).map(drop)?,
                Some(OverlayUpperState::Link { target }) => self.make_link(here, target, &name)?,
                Some(OverlayUpperState::Directory { .. }) => {
                    mkdirat(here.0, here.1, Mode::from_raw_mode(STAGING_DIR_MODE)).map_err(fail)?;
                    self.set_owner(here, &name)?;
                }
                None => {}
            }
        }
        // The innermost first: a directory that may not be entered hides those below it.
        for item in std::iter::once(item).chain(inside).rev() {
            let Some(OverlayUpperState::Directory { mode }) = item.upper else { continue };
            let is_top = item.path.len() == top;
            let mode = if is_top && mode & 0o200 == 0 { mode | STAGING_DIR_MODE } else { mode };
            let mode = if self.group.get().is_some() { mode | SETGID } else { mode };
            let directory = self.open_staged(&at(&item.path));
            let permitted = directory.and_then(|directory| {
                fchmod(&directory, Mode::from_raw_mode(mode))?;
                if self.sync_each { fsync(directory) } else { Ok(()) }
            });
            permitted.map_err(|errno| errno_error(errno, &display_path(self.mount, &item.path)))?;
        }
        Ok(())
    }

    fn open_staged(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        open_beneath(self.images.fd(), path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_OPEN)
    }

    fn make_link(
        &self,
        (directory, name): (BorrowedFd<'_>, &[u8]),
        target: &[u8],
        shown: &str,
    ) -> Result<(), ToolError> {
        let fail = |errno| errno_error(errno, shown);
        symlinkat(target, directory, name).map_err(fail)?;
        self.set_owner((directory, name), shown)
    }

    /// Sets the owner and group of a staged entry.
    fn set_owner(&self, (directory, name): (BorrowedFd<'_>, &[u8]), shown: &str) -> Result<(), ToolError> {
        let owned = match (self.owner, self.group.get()) {
            (Some((user, group)), above) => {
                let group = above.unwrap_or(group);
                chownat(directory, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
            }
            // A process outside of that group cannot set it, and keeps its own.
            (None, Some(group)) => {
                chownat(directory, name, None, Some(group), AtFlags::SYMLINK_NOFOLLOW).or_else(|errno| match errno {
                    Errno::PERM => Ok(()),
                    other => Err(other),
                })
            }
            (None, None) => Ok(()),
        };
        owned.map_err(|errno| errno_error(errno, shown))
    }

    fn make_file(
        &self,
        (directory, name): (BorrowedFd<'_>, &[u8]),
        item: &OverlayChange,
        old: Option<&FileToReplace>,
    ) -> Result<Digest, ToolError> {
        let Some(OverlayUpperState::File { seen, digest, mode, .. }) = &item.upper else {
            return Err(errno_error(Errno::NOENT, ""));
        };
        let shown = display_path(self.mount, &item.path);
        let fail = |errno| errno_error(errno, &shown);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | SAFE_OPEN;
        let file = openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let partial = self.partial.get(&item.path);
        match partial {
            Some(PartialContents { contents, .. }) => write_all(file.as_fd(), contents).map_err(fail)?,
            None => {
                let from = self.open_upper(&item.path, seen, &shown)?;
                if self.copy(&from, &file, seen.size, &shown)? != *digest {
                    return Err(changed_error(&shown));
                }
            }
        }
        match old {
            Some(old) => {
                let (user, group) = old.stat.owner;
                let mine = FileStat::from_stat(&fstat(&file).map_err(fail)?);
                if mine.owner != old.stat.owner {
                    fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(fail)?;
                }
                copy_attributes(&old.fd, &file).map_err(fail)?;
            }
            None => self.set_owner((directory, name), &shown)?,
        }
        fchmod(&file, Mode::from_raw_mode(*mode)).map_err(fail)?;
        // Builds go by which of two files is newer, so the time is the program's. Contents that it never had are new.
        if partial.is_none() {
            let modified = Timespec {
                tv_sec: i64::try_from(seen.modified.div_euclid(1_000_000_000)).unwrap_or_default(),
                tv_nsec: i64::try_from(seen.modified.rem_euclid(1_000_000_000)).unwrap_or_default(),
            };
            futimens(&file, &Timestamps { last_access: modified, last_modification: modified }).map_err(fail)?;
        }
        if self.sync_each {
            fsync(&file).map_err(fail)?;
        }
        Ok(*digest)
    }

    fn open_upper(&self, path: &[u8], seen: &FileStat, shown: &str) -> Result<OwnedFd, ToolError> {
        if let Some(copy) = self.captured.and_then(|captured| captured.open(path)) {
            return copy.map_err(|errno| errno_error(errno, shown));
        }
        let (above, name) = split(path);
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(path, _)| path != above) {
            *last =
                Some((above.to_vec(), self.upper.open_directory(above).map_err(|errno| errno_error(errno, shown))?));
        }
        let Some((_, directory)) = &*last else { return Err(changed_error(shown)) };
        Ok(open_file(directory.as_fd(), name, seen, shown)?.fd)
    }

    fn copy(&self, from: &OwnedFd, to: &OwnedFd, size: u64, shown: &str) -> Result<Digest, ToolError> {
        let fail = |errno| errno_error(errno, shown);
        let mut buffer = self.buffer.borrow_mut();
        let mut hasher = Sha256Hasher::default();
        let mut done = 0;
        while done < size {
            self.cx.check()?;
            let wanted = usize::try_from(size - done).unwrap_or(usize::MAX).min(buffer.len());
            match read_chunk(from.as_fd(), &mut buffer[..wanted], done, self.cx).map_err(fail)? {
                0 => return Err(changed_error(shown)),
                more => {
                    hasher.update(&buffer[..more]);
                    write_all(to.as_fd(), &buffer[..more]).map_err(fail)?;
                    done += more as u64;
                }
            }
        }
        Ok(hasher.finish())
    }

    /// Puts everything that was made on disk, with the directory that has it.
    pub(super) fn sync(&self) -> Result<(), ToolError> {
        let synced = if self.sync_each { fsync(self.images.fd()) } else { syncfs(self.images.fd()) };
        synced.map_err(|errno| {
            let code = errno.raw_os_error();
            let message = format!("the staged files could not be synced to disk (error {code}); nothing was changed");
            ToolError::new(ErrorKind::Io, message)
        })
    }
}

fn changed_error(shown: &str) -> ToolError {
    let message = format!("`{shown}` changed in the overlay after it was examined; nothing was changed");
    ToolError::new(ErrorKind::Conflict, message)
}
