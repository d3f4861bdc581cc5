//! Pre-image store: a private directory at the root of a mount, so that a rename brings files there.
//!
//! It is identified by an ID that is recorded in our state directory. One that came from a clone or an archive is never
//! read and never used; as long as it is there, nothing on the mount is changed.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{Access, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::journal::state::FileState;
use crate::journal::{Journal, journal_write_error};
use crate::path::name::IMAGE_DIR;
use crate::read::content::read_chunk;
use crate::root::attributes::copy_attributes;
use crate::root::trash::purge;
use crate::root::{FileToReplace, MountRoot, rename_noreplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::{FileRef, InodeIdentity};
use crate::sys::own_files::{SAFE_OPEN, names_in, write_all};
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::{accessat, fchmod, fchown, fstat, fsync, futimens, mkdirat, openat, unlinkat};

/// The directory, open.
#[derive(Clone, Debug)]
pub(crate) struct PreImageStore {
    fd: Arc<OwnedFd>,
    id: FileId,
    /// This user, as it was private when it was opened.
    owner: u32,
}

impl Journal {
    /// Fails where another program's directory has the name of the image store.
    pub(crate) fn check_image_store(&self, mount: &MountRoot) -> Result<(), ToolError> {
        let fail = |errno| errno_error(errno, IMAGE_DIR);
        let Some(found) = stat(mount.root.as_fd(), IMAGE_DIR.as_bytes()).map_err(fail)? else { return Ok(()) };
        if self.held_store(&found).is_some() {
            return Ok(());
        }
        match self.is_owner(self.image_store_identity(mount, &found)).map_err(fail)? {
            true if is_private(&found) => Ok(()),
            true => Err(exposed_store_error()),
            false if is_unclaimed(mount, &found) => Ok(()),
            false => Err(foreign_store_error()),
        }
    }

    fn image_store_identity(&self, mount: &MountRoot, found: &FileStat) -> InodeIdentity {
        InodeIdentity::of(FileRef { fd: mount.root.as_fd(), name: IMAGE_DIR.as_bytes() }, found)
    }

    /// The directory if there is one and it is ours.
    pub(crate) fn image_store(&self, mount: &MountRoot) -> Option<PreImageStore> {
        self.find_image_store(mount).ok().flatten()
    }

    /// The same where it matters why there is none: what belongs there is not thrown away because it cannot be opened now.
    pub(crate) fn find_image_store(&self, mount: &MountRoot) -> Result<Option<PreImageStore>, Errno> {
        let Some(found) = stat(mount.root.as_fd(), IMAGE_DIR.as_bytes())? else { return Ok(None) };
        if let Some(held) = self.held_store(&found) {
            return Ok(Some(held));
        }
        let keep = match open(mount) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(None),
            keep => keep?,
        };
        if !self.is_owner(keep.identity()?)? {
            return Ok(None);
        }
        *self.open_store.lock() = Some(keep.clone());
        Ok(Some(keep))
    }

    /// The directory that was opened before, if it still has its name and is private. While it is held, its inode is not
    /// given to another.
    fn held_store(&self, found: &FileStat) -> Option<PreImageStore> {
        let held = self.open_store.lock().clone();
        held.filter(|held| held.id == found.id && is_private_to(held.owner, found))
    }

    /// The directory, made if there is none.
    pub(crate) fn create_image_store(&self, mount: &MountRoot) -> Result<PreImageStore, ToolError> {
        let fail = |errno| errno_error(errno, IMAGE_DIR);
        let found = stat(mount.root.as_fd(), IMAGE_DIR.as_bytes()).map_err(fail)?;
        if let Some(held) = found.and_then(|found| self.held_store(&found)).filter(|_| self.has_birth_time()) {
            return Ok(held);
        }
        self.check_image_store(mount)?;
        if let Some(keep) = self.image_store(mount) {
            let identity = keep.identity().map_err(fail)?;
            if identity.birth_time.is_some() && !self.has_birth_time() {
                self.record_ownership(identity).map_err(journal_write_error)?;
            }
            return Ok(keep);
        }
        match mkdirat(&mount.root, IMAGE_DIR, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let keep = open(mount).map_err(fail)?;
        let identity = keep.identity().map_err(fail)?;
        if !self.is_owner(identity).map_err(fail)? {
            // Blank, or it would have been refused: it is ours from now on.
            self.check_image_store(mount)?;
            self.record_ownership(identity).map_err(journal_write_error)?;
        }
        self.is_store_new.store(true, Ordering::Relaxed);
        Ok(keep)
    }

    /// Excludes a new image store from git commits. After the change that it was made for: on a full disk, that comes first.
    pub(crate) fn hide_new_store(&self, mount: &MountRoot) {
        if self.is_store_new.swap(false, Ordering::Relaxed)
            && let Some(keep) = self.image_store(mount)
        {
            keep.hide_from_git();
        }
    }

    /// Whether there is a directory for pre-images, or one could be made.
    pub(crate) fn can_create_image_store(&self, mount: &MountRoot) -> Result<bool, ToolError> {
        let fail = |errno| errno_error(errno, IMAGE_DIR);
        if self.image_store(mount).is_some() {
            return Ok(true);
        }
        if FileStat::from_stat(&fstat(&mount.root).map_err(fail)?).denies_write() {
            return Ok(false);
        }
        match accessat(&mount.root, c".", Access::WRITE_OK, AtFlags::EACCESS) {
            Ok(()) => Ok(true),
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok(false),
            Err(errno) => Err(fail(errno)),
        }
    }
}

impl PreImageStore {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn device(&self) -> u64 {
        self.id.device
    }

    fn identity(&self) -> Result<InodeIdentity, Errno> {
        Ok(InodeIdentity::of(FileRef::open(&self.fd), &FileStat::from_stat(&fstat(&self.fd)?)))
    }

    /// The stat of an image.
    pub(crate) fn stat(&self, image: &str) -> Option<FileStat> {
        stat(self.fd(), image.as_bytes()).ok().flatten()
    }

    /// Takes something in.
    pub(crate) fn store(&self, parent: BorrowedFd<'_>, name: &[u8], image: &str) -> Result<(), Errno> {
        rename_noreplace((parent, name), (self.fd(), image.as_bytes()))
    }

    /// Deletes a pre-image permanently.
    pub(crate) fn delete_image(&self, mount: &MountRoot, image: &str, cx: &CallContext<'_>) {
        // An image that cannot be deleted now stays, out of the workspace.
        let _ = purge(mount, self.fd(), image.as_bytes(), cx);
    }

    /// A copy of the first `length` bytes of a file, with its mode, owner and time. `observe` sees it before it is hashed.
    pub(crate) fn copy(
        &self,
        old: &FileToReplace,
        length: u64,
        image: &str,
        observe: impl FnOnce(FileRef<'_>, &FileStat),
        cx: &CallContext<'_>,
    ) -> Result<FileState, ToolError> {
        let fail = |errno| errno_error(errno, IMAGE_DIR);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | SAFE_OPEN;
        let fd = openat(&self.fd, image, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let copied = copy_into(&fd, old, length, cx);
        let state = copied.and_then(|()| {
            let stamp = FileStat::from_stat(&fstat(&fd).map_err(fail)?);
            observe(FileRef::open(&fd), &stamp);
            FileState::of_open(&fd, &stamp, IMAGE_DIR, cx)
        });
        if state.is_err() {
            let _ = unlinkat(&self.fd, image, AtFlags::empty());
        }
        state
    }

    /// Excludes the image store from git commits.
    fn hide_from_git(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | SAFE_OPEN;
        if let Ok(file) = openat(&self.fd, ".gitignore", flags, Mode::RUSR | Mode::WUSR) {
            // A missing line makes the directory show up in `git status`, and does no other harm.
            let _ = write_all(file.as_fd(), b"*\n");
        }
    }
}

fn copy_into(fd: &OwnedFd, old: &FileToReplace, length: u64, cx: &CallContext<'_>) -> Result<(), ToolError> {
    let fail = |errno| errno_error(errno, IMAGE_DIR);
    let mut chunk = vec![0; 1 << 20];
    let mut done = 0;
    while done < length {
        cx.check()?;
        let wanted = usize::try_from(length - done).unwrap_or(usize::MAX).min(chunk.len());
        match read_chunk(old.fd.as_fd(), &mut chunk[..wanted], done, cx).map_err(fail)? {
            0 => return Err(ToolError::new(ErrorKind::Conflict, "a file became shorter while it was copied")),
            more => {
                write_all(fd.as_fd(), &chunk[..more]).map_err(fail)?;
                done += more as u64;
            }
        }
    }
    let (user, group) = old.stat.owner;
    if FileStat::from_stat(&fstat(fd).map_err(fail)?).owner != old.stat.owner {
        fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(fail)?;
    }
    copy_attributes(&old.fd, fd).map_err(fail)?;
    fchmod(fd, Mode::from_raw_mode(old.stat.mode)).map_err(fail)?;
    let time = Timespec {
        tv_sec: i64::try_from(old.stat.modified.div_euclid(1_000_000_000)).unwrap_or_default(),
        tv_nsec: i64::try_from(old.stat.modified.rem_euclid(1_000_000_000)).unwrap_or_default(),
    };
    futimens(fd, &Timestamps { last_access: time, last_modification: time }).map_err(fail)?;
    fsync(fd).map_err(fail)
}

fn open(mount: &MountRoot) -> Result<PreImageStore, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_OPEN;
    let fd = openat(&mount.root, IMAGE_DIR, flags, Mode::empty())?;
    let stamp = FileStat::from_stat(&fstat(&fd)?);
    if !is_private(&stamp) {
        return Err(Errno::ACCESS);
    }
    Ok(PreImageStore { fd: Arc::new(fd), id: stamp.id, owner: stamp.owner.0 })
}

/// One that others can write to is not as we made it, whatever its inode is.
fn is_private(found: &FileStat) -> bool {
    is_private_to(geteuid().as_raw(), found)
}

fn is_private_to(user: u32, found: &FileStat) -> bool {
    found.mode & 0o077 == 0 && found.owner.0 == user
}

/// An empty directory of this user that no other user may enter: left by a crash before it was recorded, or made for
/// us. There is nothing in it that could be forged.
fn is_unclaimed(mount: &MountRoot, found: &FileStat) -> bool {
    found.kind == FileKind::Directory
        && found.mode == 0o700
        && found.owner.0 == geteuid().as_raw()
        && found.id.device == mount.id.device
        && open(mount).is_ok_and(|keep| names_in(keep.fd(), 2).is_ok_and(|names| names.len() == 2))
}

fn foreign_store_error() -> ToolError {
    let message = format!("`{IMAGE_DIR}` at the root was not created by Ringfence; nothing was changed");
    ToolError::new(ErrorKind::Unavailable, message).hint("move it away by hand")
}

fn exposed_store_error() -> ToolError {
    let message = format!("`{IMAGE_DIR}` at the root is accessible to other users; nothing was changed");
    ToolError::new(ErrorKind::Unavailable, message).hint("restore its owner and mode 700 by hand")
}
