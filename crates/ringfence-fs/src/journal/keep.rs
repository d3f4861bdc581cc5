//! Where pre-images are kept: a directory of our own at the root of a mount, so that a rename brings them there.
//!
//! It is known by its identity, which is written down in our state directory. One that came from elsewhere, with a clone
//! or an archive, is never read and never used; as long as it is there, nothing on the mount is changed.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{Context, ErrorKind, ToolError};
use rustix::fs::{Access, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::Journal;
use super::state::State;
use crate::again::{accessat, fchmod, fchown, fstat, fsync, futimens, mkdirat, openat, unlinkat};
use crate::content::read_chunk;
use crate::fault::fault;
use crate::known::{At, Identity};
use crate::mount::{Mount, look, rename_onto_nothing};
use crate::name::KEEP;
use crate::replace::{Old, copy_attributes, write_all};
use crate::resolve::CAREFUL;
use crate::stamp::{Kind, Stamp};
use crate::trash::purge;
use crate::walk::names_in;

/// The directory, open.
#[derive(Debug)]
pub(crate) struct Keep {
    fd: OwnedFd,
    pub(crate) device: u64,
}

impl Mount {
    /// Fails where a directory of somebody else's has the name of ours.
    pub(crate) fn check_keep(&self) -> Result<(), ToolError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let fail = |errno| fault(errno, KEEP);
        let Some(found) = look(self.root.as_fd(), KEEP.as_bytes()).map_err(fail)? else { return Ok(()) };
        match journal.owns(self.keep_identity(&found)).map_err(fail)? {
            true if is_private(&found) => Ok(()),
            true => Err(exposed()),
            false if is_blank(self, &found) => Ok(()),
            false => Err(foreign()),
        }
    }

    fn keep_identity(&self, found: &Stamp) -> Identity {
        Identity::of(At { fd: self.root.as_fd(), name: KEEP.as_bytes() }, found)
    }

    /// The directory if there is one and it is ours.
    pub(crate) fn keep(&self) -> Option<Keep> {
        self.find_keep().ok().flatten()
    }

    /// The same where it matters why there is none: what belongs there is not thrown away because it cannot be opened now.
    pub(crate) fn find_keep(&self) -> Result<Option<Keep>, Errno> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let keep = match open(self) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(None),
            keep => keep?,
        };
        Ok(journal.owns(keep.identity()?)?.then_some(keep))
    }

    /// The directory, made if there is none.
    pub(crate) fn make_keep(&self, journal: &Journal) -> Result<Keep, ToolError> {
        self.check_keep()?;
        let fail = |errno| fault(errno, KEEP);
        if let Some(keep) = self.keep() {
            let identity = keep.identity().map_err(fail)?;
            if identity.born.is_some() && !journal.knows_birth() {
                journal.own(identity).map_err(super::unwritable)?;
            }
            return Ok(keep);
        }
        match mkdirat(&self.root, KEEP, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let keep = open(self).map_err(fail)?;
        let identity = keep.identity().map_err(fail)?;
        if !journal.owns(identity).map_err(fail)? {
            // Blank, or it would have been refused: it is ours from now on.
            self.check_keep()?;
            journal.own(identity).map_err(super::unwritable)?;
        }
        keep.hide_from_git();
        Ok(keep)
    }

    /// Whether there is a directory for pre-images, or one could be made.
    pub(crate) fn can_have_keep(&self) -> Result<bool, ToolError> {
        let fail = |errno| fault(errno, KEEP);
        if self.keep().is_some() {
            return Ok(true);
        }
        if Stamp::of(&fstat(&self.root).map_err(fail)?).closed_to_writers() {
            return Ok(false);
        }
        match accessat(&self.root, c".", Access::WRITE_OK, AtFlags::EACCESS) {
            Ok(()) => Ok(true),
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok(false),
            Err(errno) => Err(fail(errno)),
        }
    }
}

impl Keep {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn identity(&self) -> Result<Identity, Errno> {
        Ok(Identity::of(At::open(&self.fd), &Stamp::of(&fstat(&self.fd)?)))
    }

    /// What is kept under a name.
    pub(crate) fn look(&self, image: &str) -> Option<Stamp> {
        look(self.fd(), image.as_bytes()).ok().flatten()
    }

    /// Takes something in.
    pub(crate) fn take(&self, parent: BorrowedFd<'_>, name: &[u8], image: &str) -> Result<(), Errno> {
        rename_onto_nothing((parent, name), (self.fd(), image.as_bytes()))
    }

    /// Lets a pre-image go for good.
    pub(crate) fn drop_image(&self, mount: &Mount, image: &str, cx: &Context<'_>) {
        // What cannot be removed now stays, out of sight.
        let _ = purge(mount, self.fd(), image.as_bytes(), cx);
    }

    /// A copy of the first `length` bytes of a file, with its mode, owner and time.
    pub(crate) fn copy(
        &self,
        mount: &Mount,
        old: &Old,
        length: u64,
        image: &str,
        cx: &Context<'_>,
    ) -> Result<State, ToolError> {
        let fail = |errno| fault(errno, KEEP);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | CAREFUL;
        let fd = openat(&self.fd, image, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let copied = copy_into(&fd, old, length, cx);
        let state = copied.and_then(|()| {
            let stamp = Stamp::of(&fstat(&fd).map_err(fail)?);
            // What is copied from a secret is one.
            let known = mount.known.recall(At::open(&old.fd), &old.stamp);
            mount.weigh(known, At::open(&fd), &stamp);
            State::of_open(&fd, &stamp, KEEP, cx)
        });
        if state.is_err() {
            let _ = unlinkat(&self.fd, image, AtFlags::empty());
        }
        state
    }

    /// Nobody wants pre-images in a commit.
    fn hide_from_git(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | CAREFUL;
        if let Ok(file) = openat(&self.fd, ".gitignore", flags, Mode::RUSR | Mode::WUSR) {
            // A missing line makes the directory show up in `git status`, and does no other harm.
            let _ = write_all(file.as_fd(), b"*\n");
        }
    }
}

fn copy_into(fd: &OwnedFd, old: &Old, length: u64, cx: &Context<'_>) -> Result<(), ToolError> {
    let fail = |errno| fault(errno, KEEP);
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
    let (user, group) = old.stamp.owner;
    if Stamp::of(&fstat(fd).map_err(fail)?).owner != old.stamp.owner {
        fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(fail)?;
    }
    copy_attributes(&old.fd, fd).map_err(fail)?;
    fchmod(fd, Mode::from_raw_mode(old.stamp.mode)).map_err(fail)?;
    let time = Timespec {
        tv_sec: i64::try_from(old.stamp.modified.div_euclid(1_000_000_000)).unwrap_or_default(),
        tv_nsec: i64::try_from(old.stamp.modified.rem_euclid(1_000_000_000)).unwrap_or_default(),
    };
    futimens(fd, &Timestamps { last_access: time, last_modification: time }).map_err(fail)?;
    fsync(fd).map_err(fail)
}

fn open(mount: &Mount) -> Result<Keep, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | CAREFUL;
    let fd = openat(&mount.root, KEEP, flags, Mode::empty())?;
    let stamp = Stamp::of(&fstat(&fd)?);
    if !is_private(&stamp) {
        return Err(Errno::ACCESS);
    }
    Ok(Keep { fd, device: stamp.id.device })
}

/// One that others can write to is not as we made it, whatever its inode is.
fn is_private(found: &Stamp) -> bool {
    found.mode & 0o077 == 0 && found.owner.0 == geteuid().as_raw()
}

/// A directory of this user that nobody else may enter, with nothing in it: we made it and died, or somebody made it for
/// us. There is nothing in it that could be forged.
fn is_blank(mount: &Mount, found: &Stamp) -> bool {
    found.kind == Kind::Directory
        && found.mode == 0o700
        && found.owner.0 == geteuid().as_raw()
        && found.id.device == mount.id.device
        && open(mount).is_ok_and(|keep| names_in(keep.fd(), 2).is_ok_and(|names| names.len() == 2))
}

fn foreign() -> ToolError {
    let message = format!("the `{KEEP}` at the root was not made by this host, so nothing is changed");
    ToolError::new(ErrorKind::Unavailable, message).hint("a person has to move it away")
}

fn exposed() -> ToolError {
    let message = format!("the `{KEEP}` at the root is open to others, so nothing is changed");
    ToolError::new(ErrorKind::Unavailable, message).hint("a person has to make it theirs alone again, with mode 700")
}
