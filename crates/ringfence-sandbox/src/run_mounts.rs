//! Mounts of one run: the workspace under an overlay, further mounts, masks over secrets, the run's own files.
//!
//! The program's writes to the workspace land in an upper directory on a tmpfs, which has a size, and outlives the jail
//! through the returned descriptor. A mask is a mount over an entry that exists at that time, found from the descriptor
//! of the mount and never outside it.
//!
//! Not here: finding the directories on the host. They come as mounts.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, open, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_string, fspick};

use crate::limits::JailLimits;
use crate::mount_points::make_directory_beneath;
use crate::mounts::{
    EMPTY_DIR, EMPTY_FILE, READ_ONLY, TmpfsMode, attach, attach_over, clone_mount, max_inodes, overlay,
    overlay_by_paths, tmpfs,
};
use crate::protocol::{RunMount, RunSpec, SetupError, SetupStep};
use crate::sys::{MountFlagScope, set_mount_flags};

pub(crate) const WORKSPACE: &str = "/workspace";
const MOUNTS_DIR: &str = "/mnt";
pub(crate) const SCRIPT_DIR: &str = "/run/ringfence";

/// Mount point of a directory of the view other than the workspace.
pub(crate) fn mount_point(alias: &OsStr) -> PathBuf {
    Path::new(MOUNTS_DIR).join(alias)
}

/// Brings it all in. `shown` are the mounts of `order.shown`.
pub(crate) fn mount_workspace(
    spec: &RunSpec,
    shown: &[OwnedFd],
    layer: &JailOverlay,
    hidden_root: &OwnedFd,
) -> Result<(), SetupError> {
    resize_tmp(spec.limits.tmp_bytes).map_err(SetupStep::Root.failed())?;
    let workspace = shown.first().ok_or(Errno::BADMSG).map_err(SetupStep::Order.failed())?;
    layer.mount_overlay(workspace, spec.limits.disk_bytes, hidden_root).map_err(SetupStep::Layer.failed())?;
    mount_read_only_dirs(spec, shown, hidden_root).map_err(SetupStep::Show.failed())?;
    finish_workspace(spec)
}

/// Masks over what is mounted, and the files of the run.
pub(crate) fn finish_workspace(spec: &RunSpec) -> Result<(), SetupError> {
    mask_all(spec).map_err(SetupStep::Cover.failed())?;
    write_files(spec).map_err(|cause| SetupStep::Script.failed_with(&cause))?;
    replace_files(spec).map_err(SetupStep::Cover.failed())
}

pub(crate) fn resize_tmp(bytes: u64) -> Result<(), Errno> {
    if bytes == JailLimits::default().tmp_bytes {
        return Ok(());
    }
    ["/tmp", "/dev/shm"].iter().try_for_each(|path| resize(CWD, path, bytes))
}

fn resize(directory: BorrowedFd<'_>, path: &str, bytes: u64) -> Result<(), Errno> {
    let context = fspick(directory, path, FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_string(&context, "size", bytes.to_string())?;
    fsconfig_set_string(&context, "nr_inodes", max_inodes(bytes))?;
    fsconfig_reconfigure(&context)
}

/// Memory for the program's writes to the workspace. Its owner keeps it to the end of its process: to close a detached
/// mount, the kernel waits for its other processors, and a run would wait with it.
#[derive(Debug)]
pub(crate) struct JailOverlay {
    memory: OwnedFd,
    pub(crate) upper: OwnedFd,
    work: OwnedFd,
}

impl JailOverlay {
    pub(crate) fn new() -> Result<Self, Errno> {
        let bytes = JailLimits::default().disk_bytes;
        let memory = tmpfs(&bytes.to_string(), &max_inodes(bytes), TmpfsMode::OwnerOnly)?;
        let directory = |name| {
            mkdirat(&memory, name, Mode::from_raw_mode(0o700))?;
            openat(&memory, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        let (upper, work) = (directory("upper")?, directory("work")?);
        Ok(Self { memory, upper, work })
    }

    /// The workspace below, memory above.
    fn mount_overlay(&self, workspace: &OwnedFd, bytes: u64, hidden_root: &OwnedFd) -> Result<(), Errno> {
        if bytes != JailLimits::default().disk_bytes {
            resize(self.memory.as_fd(), "", bytes)?;
        }
        // The program sees the upper directory's own permissions at the top of the workspace.
        fchmod(&self.upper, Mode::from_raw_mode(fstat(workspace)?.st_mode & 0o777))?;
        attach_hidden(workspace, hidden_root, "workspace")?;
        let both = overlay(&[workspace], Some((&self.upper, &self.work))).or_else(|_| {
            attach_hidden(&self.memory, hidden_root, "memory")?;
            overlay_by_paths(hidden_root, "workspace", &[("upperdir", "memory/upper"), ("workdir", "memory/work")])
        })?;
        attach(&both, CWD, WORKSPACE)
    }
}

/// Attaches a mount in the hall. One that came from another namespace can be part of an overlay only where it is attached;
/// in the hall no program sees it, and it stays there until the jail ends, because to detach it takes longer than all the
/// rest: the kernel waits for its other processors.
pub(crate) fn attach_hidden(mount: &OwnedFd, hidden_root: &OwnedFd, name: &str) -> Result<(), Errno> {
    mkdirat(hidden_root, name, Mode::from_raw_mode(0o700))?;
    attach(mount, hidden_root.as_fd(), name)
}

/// Each is the lower part of an overlay without an upper one: through a plain mount, read-only or not, a program could
/// connect to a listening socket in it, and would see the host path of the directory in its list of mounts.
pub(crate) fn mount_read_only_dirs(spec: &RunSpec, shown: &[OwnedFd], hidden_root: &OwnedFd) -> Result<(), Errno> {
    if spec.mounts.len() < 2 {
        return Ok(());
    }
    let names = tmpfs("64k", "1024", TmpfsMode::OwnerOnly)?;
    for directory in spec.mounts.iter().skip(1) {
        make_directory_beneath(names.as_fd(), Path::new(&directory.alias))?;
    }
    // A wrapped program may have its place here too.
    for path in spec.wrapped.iter().flat_map(|wrapped| [&wrapped.workspace_path, &wrapped.home]) {
        if let Ok(path) = path.strip_prefix(MOUNTS_DIR) {
            make_directory_beneath(names.as_fd(), path)?;
        }
    }
    attach(&names, CWD, MOUNTS_DIR)?;
    // An overlay has two parts at least.
    mkdirat(hidden_root, "empty", Mode::from_raw_mode(0o755))?;
    let empty = openat(hidden_root, "empty", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for (number, (directory, mount)) in spec.mounts.iter().zip(shown).enumerate().skip(1) {
        let mounted = format!("beside-{number}");
        attach_hidden(mount, hidden_root, &mounted)?;
        let both = overlay(&[mount, &empty], None)
            .or_else(|_| overlay_by_paths(hidden_root, &format!("{mounted}:empty"), &[]))?;
        set_mount_flags(both.as_fd(), READ_ONLY, MountFlagScope::Mount, None)?;
        attach(&both, names.as_fd(), &directory.alias)?;
    }
    set_mount_flags(names.as_fd(), READ_ONLY, MountFlagScope::Mount, None)
}

fn mask_all(spec: &RunSpec) -> Result<(), Errno> {
    for (index, directory) in spec.mounts.iter().enumerate() {
        for root in open_roots(spec, index, directory)? {
            directory.masked.iter().try_for_each(|path| mask_path(root.as_fd(), path))?;
        }
    }
    Ok(())
}

/// A directory of the view where the jail has it. It may also lie in what every jail shows, as `/usr/src/app` does in many
/// containers, or have a toolchain in it.
fn open_roots(spec: &RunSpec, index: usize, directory: &RunMount) -> Result<Vec<OwnedFd>, Errno> {
    let shown = match (index, &spec.wrapped) {
        (0, Some(wrapped)) => wrapped.workspace_path.clone(),
        (0, None) => WORKSPACE.into(),
        _ => mount_point(&directory.alias),
    };
    let open = |path: &Path| open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = open(&shown)?;
    let elsewhere = (directory.path != shown).then(|| open(&directory.path).ok()).flatten();
    Ok(std::iter::once(root).chain(elsewhere).collect())
}

fn mask_path(root: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    let Some(target) = resolve_beneath(root, path)? else { return Ok(()) };
    let nothing = match FileType::from_raw_mode(fstat(&target)?.st_mode) {
        FileType::Directory => EMPTY_DIR,
        _ => EMPTY_FILE,
    };
    attach_over(&clone_mount(CWD, nothing, MountFlagScope::Mount)?, target.as_fd())
}

/// Resolves a path beneath the root. A link is followed as long as it stays there: its target would be read through it.
/// `None` where there is no entry.
pub(crate) fn resolve_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let found = match openat2(root, path, flags, Mode::empty(), strict | ResolveFlags::NO_SYMLINKS) {
        Err(Errno::LOOP) => openat2(root, path, flags, Mode::empty(), strict),
        other => other,
    };
    match found {
        Ok(target) => Ok(Some(target)),
        // Not there, or a link that leads out, to what the jail has there.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP) => Ok(None),
        Err(other) => Err(other),
    }
}

fn write_files(spec: &RunSpec) -> std::io::Result<()> {
    let directory = open(SCRIPT_DIR, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for file in &spec.files {
        let created = openat(&directory, &file.name, flags, Mode::from_raw_mode(0o444))?;
        File::from(created).write_all(&file.contents)?;
    }
    Ok(set_mount_flags(directory.as_fd(), READ_ONLY, MountFlagScope::Mount, None)?)
}

/// Mounts files of the run over files of the workspace.
fn replace_files(spec: &RunSpec) -> Result<(), Errno> {
    let mut replacing = spec.files.iter().filter(|file| !file.over.as_os_str().is_empty()).peekable();
    let Some(workspace) = spec.mounts.first().filter(|_| replacing.peek().is_some()) else { return Ok(()) };
    let roots = open_roots(spec, 0, workspace)?;
    for file in replacing {
        for root in &roots {
            let Some(target) = resolve_beneath(root.as_fd(), &file.over)? else { continue };
            if FileType::from_raw_mode(fstat(&target)?.st_mode) == FileType::Directory {
                return Err(Errno::ISDIR);
            }
            let mount = clone_mount(CWD, Path::new(SCRIPT_DIR).join(&file.name), MountFlagScope::Mount)?;
            attach_over(&mount, target.as_fd())?;
        }
    }
    Ok(())
}
