//! What a run brings into its jail: the workspace under a layer, mounts beside it, covers over secrets, the script.
//!
//! What the program writes to the workspace lands in the layer, which lies in memory, has a size, and outlives the jail in
//! the descriptor that is given back. A cover is a mount over what exists at that moment, found from the descriptor of the
//! mount and never outside it.
//!
//! Not here: finding the directories on the host. They come as mounts.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, open, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, UnmountFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_fd,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, unmount,
};

use crate::jail::most_files;
use crate::limits::JailLimits;
use crate::message::{Order, Step, Trouble};
use crate::mounts::{NO_DIRECTORY, NO_FILE, Open, READ_ONLY, TAME, attach, attach_over, copy, tmpfs};
use crate::sys::{Reach, set_mount_flags};

pub(crate) const WORKSPACE: &str = "/workspace";
const BESIDE: &str = "/mnt";
/// Where the workspace is attached while the layer is laid over it.
const BELOW: &str = "/run/nothing/below";
const SCRIPTS: &str = "/run/ringfence";

/// Brings it all in. `shown` are the mounts of `order.shown`. Gives back the layer.
pub(crate) fn bring_in(order: &Order, shown: &[OwnedFd], layer: Layer) -> Result<OwnedFd, Trouble> {
    resize_tmp(order.limits.tmp_bytes).map_err(Step::Root.failed())?;
    let workspace = shown.first().ok_or(Errno::BADMSG).map_err(Step::Order.failed())?;
    let layer = layer.lay_over(workspace, order.limits.disk_bytes).map_err(Step::Layer.failed())?;
    show_beside(order, shown).map_err(Step::Show.failed())?;
    cover_all(order).map_err(Step::Cover.failed())?;
    write_script(order).map_err(|cause| Step::Script.failed_with(&cause))?;
    Ok(layer)
}

fn resize_tmp(bytes: u64) -> Result<(), Errno> {
    if bytes == JailLimits::default().tmp_bytes {
        return Ok(());
    }
    ["/tmp", "/dev/shm"].iter().try_for_each(|path| resize(CWD, path, bytes))
}

fn resize(directory: BorrowedFd<'_>, path: &str, bytes: u64) -> Result<(), Errno> {
    let context = fspick(directory, path, FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_string(&context, "size", bytes.to_string())?;
    fsconfig_set_string(&context, "nr_inodes", most_files(bytes))?;
    fsconfig_reconfigure(&context)
}

/// Memory for what the program writes to the workspace.
#[derive(Debug)]
pub(crate) struct Layer {
    memory: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
}

impl Layer {
    pub(crate) fn new() -> Result<Self, Errno> {
        let bytes = JailLimits::default().disk_bytes;
        let memory = tmpfs(&bytes.to_string(), &most_files(bytes), Open::ToItsOwner)?;
        let directory = |name| {
            mkdirat(&memory, name, Mode::from_raw_mode(0o700))?;
            openat(&memory, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        let (upper, work) = (directory("upper")?, directory("work")?);
        Ok(Self { memory, upper, work })
    }

    /// The workspace below, memory above.
    fn lay_over(self, workspace: &OwnedFd, bytes: u64) -> Result<OwnedFd, Errno> {
        if bytes != JailLimits::default().disk_bytes {
            resize(self.memory.as_fd(), "", bytes)?;
        }
        // The program sees the layer's own permissions at the top of the workspace.
        fchmod(&self.upper, Mode::from_raw_mode(fstat(workspace)?.st_mode & 0o777))?;
        // A mount that came from another namespace can be part of an overlay only where it is attached. Nobody gets
        // there: an empty directory covers it, and it goes when the program has started (`let_go`).
        attach(workspace, CWD, BELOW)?;
        let both = overlay(workspace, &self.upper, &self.work).or_else(|_| overlay_by_paths(&self.memory))?;
        attach(&copy(CWD, NO_DIRECTORY, Reach::Mount)?, CWD, BELOW)?;
        attach(&both, CWD, WORKSPACE)?;
        Ok(self.upper)
    }
}

/// Lets go of the mount of the workspace below the layer, which has its own. That takes longer than all the rest, because
/// the kernel waits for its other processors.
pub(crate) fn let_go(workspace: &OwnedFd) -> Result<(), Errno> {
    // By its descriptor: by its path it is the cover.
    unmount(format!("/proc/self/fd/{}", workspace.as_raw_fd()), UnmountFlags::DETACH)
}

/// From descriptors. Linux 6.13 has it.
fn overlay(lower: &OwnedFd, upper: &OwnedFd, work: &OwnedFd) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_fd(&context, "lowerdir+", lower)?;
    fsconfig_set_fd(&context, "upperdir", upper)?;
    fsconfig_set_fd(&context, "workdir", work)?;
    finish_overlay(&context)
}

/// Before that the memory has to be attached too, and to be gone from there when the program starts.
fn overlay_by_paths(memory: &OwnedFd) -> Result<OwnedFd, Errno> {
    attach(memory, CWD, WORKSPACE)?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "lowerdir", BELOW)?;
    fsconfig_set_string(&context, "upperdir", "/workspace/upper")?;
    fsconfig_set_string(&context, "workdir", "/workspace/work")?;
    let both = finish_overlay(&context)?;
    unmount(WORKSPACE, UnmountFlags::DETACH)?;
    Ok(both)
}

fn finish_overlay(context: &OwnedFd) -> Result<OwnedFd, Errno> {
    fsconfig_set_string(context, "source", "workspace")?;
    fsconfig_set_flag(context, "userxattr")?;
    fsconfig_create(context)?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, TAME)
}

fn show_beside(order: &Order, shown: &[OwnedFd]) -> Result<(), Errno> {
    if order.shown.len() < 2 {
        return Ok(());
    }
    let names = tmpfs("64k", "1024", Open::ToItsOwner)?;
    for directory in order.shown.iter().skip(1) {
        mkdirat(&names, &directory.alias, Mode::from_raw_mode(0o755))?;
    }
    attach(&names, CWD, BESIDE)?;
    for (directory, mount) in order.shown.iter().zip(shown).skip(1) {
        attach(mount, names.as_fd(), &directory.alias)?;
    }
    set_mount_flags(names.as_fd(), READ_ONLY, Reach::Mount, None)
}

fn cover_all(order: &Order) -> Result<(), Errno> {
    for (index, directory) in order.shown.iter().enumerate() {
        if directory.covered.is_empty() {
            continue;
        }
        let root = if index == 0 { WORKSPACE.into() } else { Path::new(BESIDE).join(&directory.alias) };
        let root = open(&root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        directory.covered.iter().try_for_each(|path| cover(root.as_fd(), path))?;
    }
    Ok(())
}

fn cover(root: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    let Some(target) = find(root, path)? else { return Ok(()) };
    let nothing = match FileType::from_raw_mode(fstat(&target)?.st_mode) {
        FileType::Directory => NO_DIRECTORY,
        _ => NO_FILE,
    };
    attach_over(&copy(CWD, nothing, Reach::Mount)?, target.as_fd())
}

/// What a path means now, beneath the root. A link is followed as long as it stays there: what it leads to would be read
/// through it. Nothing, where there is nothing.
fn find(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, Errno> {
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

fn write_script(order: &Order) -> std::io::Result<()> {
    let directory = open(SCRIPTS, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&directory, &order.script_name, flags, Mode::from_raw_mode(0o444))?;
    File::from(file).write_all(&order.script)?;
    Ok(set_mount_flags(directory.as_fd(), READ_ONLY, Reach::Mount, None)?)
}
