//! Path resolution below a root: `openat2` and its fallback.
//!
//! Two resolvers keep the one promise: `Openat2Resolver` asks Linux (`openat2`), `CapStdResolver` uses `cap-std` where
//! Linux does not answer. Everything else in this crate works on descriptors that came from here.
//!
//! Not here: what to do with the descriptor. See `root/mod.rs`.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use ringfence_kernel::IoMode;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fstat, openat, openat2, pread, statx};

/// Concurrent renames can disturb a lookup only if it climbs; this many failures in a row are deliberate.
const RETRIES: usize = 128;

/// Opens paths below a root, and nothing else.
pub(crate) trait PathResolver: Send + Sync + fmt::Debug {
    fn name(&self) -> &'static str;
    fn open(&self, root: BorrowedFd<'_>, path: &[u8], how: OpenHow) -> Result<OwnedFd, Errno>;
    /// Opens a name in a held directory: not through a link, not on another mount.
    fn open_named(&self, parent: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno>;
    /// The same for a directory.
    fn open_child(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_named(parent, name, CHILD_DIRECTORY)
    }
}

/// A descriptor of a path only: it is neither read nor written.
pub(crate) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The flags of the system for opening a file that is a file: no link, and no pipe to wait at.
#[expect(clippy::cast_possible_wrap, reason = "flags are bits, and these fit")]
pub const PLAIN_FILE_FLAGS: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;

const CHILD_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(SAFE_OPEN);

/// Options for opening.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    pub(crate) flags: OFlags,
    pub(crate) links: LinkPolicy,
    pub(crate) pace: IoMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkPolicy {
    /// A link anywhere in the path is `LOOP`.
    Refuse,
    /// Links are followed while they stay below the root.
    Follow,
}

/// The kernel's own resolver: Linux 5.6 and later.
#[derive(Debug)]
pub(crate) struct Openat2Resolver;

impl PathResolver for Openat2Resolver {
    fn name(&self) -> &'static str {
        "openat2"
    }

    fn open(&self, root: BorrowedFd<'_>, path: &[u8], how: OpenHow) -> Result<OwnedFd, Errno> {
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        if how.links == LinkPolicy::Refuse {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        if how.pace == IoMode::NonBlocking {
            resolve |= ResolveFlags::CACHED;
        }
        for _ in 0..RETRIES {
            match openat2(root, path, how.flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if how.pace == IoMode::Blocking => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    fn open_named(&self, parent: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        openat2(parent, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), within)
    }
}

/// `cap-std`, for kernels and sandboxes that refuse `openat2`.
#[derive(Debug)]
pub(crate) struct CapStdResolver {
    root: Dir,
    mount: MountId,
}

impl CapStdResolver {
    pub(crate) fn new(root: BorrowedFd<'_>) -> std::io::Result<Self> {
        let mount = mount_id(root)?;
        Ok(Self { root: Dir::from_std_file(root.try_clone_to_owned()?.into()), mount })
    }

    fn open_path(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        if flags.contains(OFlags::DIRECTORY) {
            return Ok(self.root.open_dir(path).map_err(|error| errno_of(&error))?.into_std_file().into());
        }
        let mut options = OpenOptions::new();
        options.read(true);
        // The only other flags that callers set fit a C int.
        options.custom_flags(i32::try_from((flags - OFlags::RDONLY).bits()).map_err(|_| Errno::INVAL)?);
        Ok(self.root.open_with(path, &options).map_err(|error| errno_of(&error))?.into_std().into())
    }

    /// Hides whether an entry on another mount, which is outside, exists.
    fn mask_errno(&self, path: &Path, errno: Errno) -> Errno {
        let reached = path.ancestors().find_map(|path| self.open_path(path, PATH_ONLY).ok());
        match reached {
            Some(reached) if mount_id(reached.as_fd()) != Ok(self.mount) => Errno::XDEV,
            _ => errno,
        }
    }
}

impl PathResolver for CapStdResolver {
    fn name(&self) -> &'static str {
        "cap-std"
    }

    fn open(&self, _: BorrowedFd<'_>, path: &[u8], how: OpenHow) -> Result<OwnedFd, Errno> {
        // It cannot promise not to wait, nor tell whether it went through a link.
        if how.pace == IoMode::NonBlocking {
            return Err(Errno::AGAIN);
        }
        if how.links == LinkPolicy::Refuse {
            return Err(Errno::LOOP);
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let opened = self.open_path(path, how.flags).map_err(|errno| self.mask_errno(path, errno))?;
        // A mount below the root has to be declared to be reached; the device number would not show a bind mount.
        if mount_id(opened.as_fd())? != self.mount {
            return Err(Errno::XDEV);
        }
        Ok(opened)
    }

    fn open_named(&self, parent: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let child = openat(parent, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if mount_id(child.as_fd())? != self.mount {
            return Err(Errno::XDEV);
        }
        Ok(child)
    }
}

/// The mount that a descriptor is on: by its id where the kernel tells (`statx` since Linux 5.8, `fdinfo` before),
/// else by its device, which does not tell a bind mount from where it leads.
fn mount_id(fd: BorrowedFd<'_>) -> Result<MountId, Errno> {
    if let Ok(found) = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        && found.stx_mask & StatxFlags::MNT_ID.bits() != 0
    {
        return Ok(MountId::Id(found.stx_mnt_id));
    }
    if let Some(id) = mount_id_by_info(fd) {
        return Ok(MountId::Id(id));
    }
    Ok(MountId::Device(FileStat::from_stat(&fstat(fd)?).id.device))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountId {
    Id(u64),
    Device(u64),
}

fn mount_id_by_info(fd: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 1024];
    let length = pread(info, &mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// `cap-std` has an error of its own for a path that would leave, without a number.
fn errno_of(error: &std::io::Error) -> Errno {
    match Errno::from_io_error(error) {
        Some(errno) => errno,
        None if error.kind() == std::io::ErrorKind::PermissionDenied => Errno::XDEV,
        None => Errno::IO,
    }
}
