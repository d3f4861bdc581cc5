//! Layers on disk as mounts: both parts of a layer, found again below one mount.
//!
//! The kernel wants the upper and the work directory of an overlay below one mount, and the host holds them by descriptors.
//! So the directory that has both is mounted once, and both are opened below that; they count only if they are the held
//! ones.
//!
//! Not here: the overlay itself (`wrapped_mounts.rs`).

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::OverlayDirectories;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Uid, XattrFlags, chownat, fchmod, fremovexattr, fsetxattr, fstat, fstatfs, open, openat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::job::JailError;
use crate::mounts::{NOSUID_NODEV, clone_mount};
use crate::protocol::{JailUser, LayerPath};
use crate::sys::{MountFlagScope, held_path, set_mount_flags};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const READABLE: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An attribute that tells whether the file system has those that an overlay needs.
const PROBE_ATTRIBUTE: &str = "user.ringfence.probe";

/// Names of the parts of a layer, which are entries of one directory.
pub(crate) fn locate_layer(layer: &OverlayDirectories) -> Result<LayerPath, Errno> {
    let (upper, work) = (held_path(&layer.upper)?, held_path(&layer.work)?);
    match (upper.parent(), upper.file_name(), work.parent(), work.file_name()) {
        (Some(directory), Some(upper), Some(other), Some(work)) if directory == other => {
            Ok(LayerPath { directory: directory.to_owned(), upper: upper.to_owned(), work: work.to_owned() })
        }
        _ => Err(Errno::XDEV),
    }
}

/// A mount of the directory of a layer, and its upper and work directory below that, if they are those that are held at the
/// second and third place. It may be written to.
pub(crate) fn find_layer(path: &LayerPath, held: &[BorrowedFd<'_>]) -> Result<[OwnedFd; 3], Errno> {
    let [_, held_upper, held_work] = held else { return Err(Errno::BADMSG) };
    let found = open(&path.directory, DIRECTORY, Mode::empty())?;
    // Mounts inside, in a namespace that is not ours, cannot be excluded.
    let mount = clone_mount(found.as_fd(), "", MountFlagScope::Mount)
        .or_else(|_| clone_mount(found.as_fd(), "", MountFlagScope::Tree))?;
    let part = |name: &OsStr, held: &BorrowedFd<'_>| {
        let part = openat(&mount, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        let (is, should) = (fstat(&part)?, fstat(held)?);
        if (is.st_dev, is.st_ino) == (should.st_dev, should.st_ino) { Ok(part) } else { Err(Errno::STALE) }
    };
    let (upper, work) = (part(&path.upper, held_upper)?, part(&path.work, held_work)?);
    set_mount_flags(mount.as_fd(), NOSUID_NODEV, MountFlagScope::Tree, None)?;
    Ok([mount, upper, work])
}

/// Checks that a layer can lie where it is, and gives its directories to the owner of the workspace if root started us.
pub(crate) fn prepare_layer(layer: &OverlayDirectories, owner: JailUser, mode: Option<u32>) -> Result<(), JailError> {
    const OVERLAY: u64 = 0x794c_7630;
    let failed = || JailError::io::<Errno>("prepare a layer on disk");
    let kind = fstatfs(&layer.upper).map_err(failed())?.f_type;
    if kind as u64 & 0xffff_ffff == OVERLAY {
        return Err(unusable("is an overlay itself, as in a container"));
    }
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        for directory in [&layer.upper, &layer.work] {
            chownat(directory, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(failed())?;
        }
    }
    let work = openat(&layer.work, ".", READABLE, Mode::empty()).map_err(failed())?;
    match fsetxattr(&work, PROBE_ATTRIBUTE, b"", XattrFlags::empty()) {
        Ok(()) => fremovexattr(&work, PROBE_ATTRIBUTE).map_err(failed())?,
        Err(Errno::NOTSUP) => return Err(unusable("has no extended attributes")),
        Err(other) => return Err(failed()(other)),
    }
    if let Some(mode) = mode {
        let upper = openat(&layer.upper, ".", READABLE, Mode::empty()).map_err(failed())?;
        fchmod(&upper, Mode::from_raw_mode(mode)).map_err(failed())?;
    }
    Ok(())
}

/// For a file system that cannot hold a layer.
pub(crate) fn unusable(why: &str) -> JailError {
    JailError::unavailable(
        format!("the file system of the state directory {why}"),
        "set `RINGFENCE_STATE_DIR` to a directory on a local file system such as ext4, XFS or Btrfs",
    )
}
