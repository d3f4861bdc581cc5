//! The files that a jail sees of the system: an image, made once, that every jail has a copy of.
//!
//! The image is read-only and has no device but a few harmless ones, no setuid program that works as one, and of `/etc`
//! only what `etc.rs` lists. It lives in a mount namespace of its own, so that a new jail copies a handful of mounts and
//! not all of the host's.
//!
//! Not here: what differs between jails (`jail.rs`) and between runs (`claim.rs`).

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, open, openat, readlinkat, statat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change,
    move_mount, open_tree, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::etc;
use crate::sys::{Reach, set_mount_flags};

/// Below this the image lies, in the namespace that new jails copy.
pub(crate) const IMAGE: &str = "/image";

/// What is mounted over what must not be seen: an empty file, and an empty directory.
pub(crate) const NO_FILE: &str = "/run/nothing/file";
pub(crate) const NO_DIRECTORY: &str = "/run/nothing/directory";

/// Directories of the host that are shown, or links that are shown as links.
pub(crate) const SYSTEM: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Devices that are no way to anything.
pub(crate) const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Names below `/dev` that point at a process's own descriptors.
pub(crate) const STREAMS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Where other mounts go. All are empty in the image.
const MOUNT_POINTS: [&str; 8] =
    ["proc", "tmp", "run/ringfence", "run/nothing/directory", "workspace", "mnt", "dev/shm", "var"];

/// Files of the host's `/etc` larger than this are left out.
const LARGEST_COPY: u64 = 8 << 20;

/// No program in a jail gains from a setuid bit or a device.
pub(crate) const TAME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
pub(crate) const READ_ONLY: MountAttrFlags = TAME.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// Leaves the current mount namespace for a new one in which there is nothing but a `/proc` and the image. The `/proc` is one
/// of this process's pid namespace or, where a container refuses that, the one that we were started with.
pub(crate) fn enter_image(toolchains: &[PathBuf]) -> Result<(), Errno> {
    // SAFETY: this process has one thread, and its descriptors stay its own.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let host = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;

    let base = tmpfs("1m", "64", Open::ToItsOwner)?;
    for name in ["proc", "image"] {
        mkdirat(&base, name, Mode::from_raw_mode(0o755))?;
    }
    // Over the root, where it hides nothing: paths are looked up from the held one.
    attach(&base, CWD, "/")?;
    let proc = match proc() {
        Err(Errno::PERM | Errno::ACCESS) => copy(host.as_fd(), "proc", Reach::Tree),
        made => made,
    };
    attach(&proc?, base.as_fd(), "proc")?;
    let image = tmpfs("32m", "4096", Open::ToItsOwner)?;
    attach(&image, base.as_fd(), "image")?;
    fill(&image, &Host(host), toolchains)?;
    set_mount_flags(image.as_fd(), READ_ONLY, Reach::Mount, None)?;
    become_root(&base)
}

/// Makes a mount the root, and lets go of everything else.
pub(crate) fn become_root(root: &OwnedFd) -> Result<(), Errno> {
    fchdir(root)?;
    pivot_root(".", ".")?;
    // The old root lies on top of the new one now.
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

/// Who may write to a new file system in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    ToItsOwner,
    ToAll,
}

/// A new file system in memory with caps on bytes and files, not attached anywhere yet.
pub(crate) fn tmpfs(size: &str, files: &str, open: Open) -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "size", size)?;
    fsconfig_set_string(&context, "nr_inodes", files)?;
    fsconfig_set_string(&context, "mode", if open == Open::ToAll { "1777" } else { "0755" })?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, TAME)
}

/// The processes of this pid namespace.
pub(crate) fn proc() -> Result<OwnedFd, Errno> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, TAME | MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

/// Attaches a mount at a path.
pub(crate) fn attach(mount: &OwnedFd, directory: BorrowedFd<'_>, path: impl rustix::path::Arg) -> Result<(), Errno> {
    move_mount(mount, "", directory, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Attaches a mount over what a descriptor stands for.
pub(crate) fn attach_over(mount: &OwnedFd, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

/// A copy of a mount, from there downwards, not attached anywhere yet.
pub(crate) fn copy(directory: BorrowedFd<'_>, path: impl rustix::path::Arg, reach: Reach) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if reach == Reach::Tree {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(directory, path, flags | OpenTreeFlags::AT_NO_AUTOMOUNT)
}

/// Directories laid over each other, the topmost first, from descriptors. Linux 6.13 has it.
pub(crate) fn overlay(lower: &[&OwnedFd], above: Option<(&OwnedFd, &OwnedFd)>) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for one in lower {
        fsconfig_set_fd(&context, "lowerdir+", one)?;
    }
    if let Some((upper, work)) = above {
        fsconfig_set_fd(&context, "upperdir", upper)?;
        fsconfig_set_fd(&context, "workdir", work)?;
    }
    finish_overlay(&context)
}

/// Before that, from paths below a directory.
pub(crate) fn overlay_by_paths(directory: &OwnedFd, lower: &str, above: &[(&str, &str)]) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fchdir(directory)?;
    let told = fsconfig_set_string(&context, "lowerdir", lower)
        .and_then(|()| above.iter().try_for_each(|(part, path)| fsconfig_set_string(&context, *part, *path)))
        .and_then(|()| finish_overlay(&context));
    chdir("/")?;
    told
}

fn finish_overlay(context: &OwnedFd) -> Result<OwnedFd, Errno> {
    fsconfig_set_string(context, "source", "workspace")?;
    fsconfig_set_flag(context, "userxattr")?;
    fsconfig_create(context)?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, TAME)
}

/// The host's root, from which paths are looked up.
struct Host(OwnedFd);

impl Host {
    fn kind(&self, path: &Path) -> Option<FileType> {
        let found = statat(&self.0, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(found.st_mode))
    }
}

fn fill(image: &OwnedFd, host: &Host, toolchains: &[PathBuf]) -> Result<(), Errno> {
    for path in MOUNT_POINTS {
        make_directories(image, Path::new(path))?;
    }
    make_file(image, Path::new(NO_FILE), b"")?;
    symlinkat("/tmp", image, "var/tmp")?;
    for name in SYSTEM {
        show(image, host, Path::new(name))?;
    }
    for name in DEVICES {
        let path = Path::new("dev").join(name);
        make_file(image, &path, b"")?;
        let device = copy(host.0.as_fd(), &path, Reach::Mount)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        set_mount_flags(device.as_fd(), flags, Reach::Mount, None)?;
        attach(&device, image.as_fd(), &path)?;
    }
    for (name, target) in STREAMS {
        symlinkat(target, image, Path::new("dev").join(name))?;
    }
    fill_etc(image, host)?;
    for path in toolchains {
        let Ok(path) = path.strip_prefix("/") else { continue };
        // One that lies in what is shown already is there.
        if is_plain(path) && openat(image, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_err() {
            show(image, host, path)?;
            shut(image, path)?;
        }
    }
    Ok(())
}

/// Shuts the sockets and pipes of a directory that is shown: through an overlay there is nobody at their other end. Only
/// programs of the system's own are known to have none. What cannot be shut is not shown.
fn shut(image: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let shown = match openat(image, path, flags, Mode::empty()) {
        Ok(shown) => shown,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(other) => return Err(other),
    };
    let empty = openat(image, names(Path::new(NO_DIRECTORY)).collect::<PathBuf>(), flags, Mode::empty())?;
    let both = overlay(&[&shown, &empty], None).or_else(|_| {
        // Where scripts will be, there is nothing in the image yet.
        attach(&copy(shown.as_fd(), "", Reach::Mount)?, image.as_fd(), "run/ringfence")?;
        let both = overlay_by_paths(image, "run/ringfence:run/nothing/directory", &[]);
        let aside = openat(image, "run/ringfence", flags, Mode::empty())?;
        unmount(descriptor_path(&aside), UnmountFlags::DETACH)?;
        both
    });
    unmount(descriptor_path(&shown), UnmountFlags::DETACH)?;
    let Ok(both) = both else { return Ok(()) };
    set_mount_flags(both.as_fd(), READ_ONLY, Reach::Mount, None)?;
    attach(&both, image.as_fd(), path)
}

/// The path of what is mounted where a descriptor is.
fn descriptor_path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

fn fill_etc(image: &OwnedFd, host: &Host) -> Result<(), Errno> {
    let etc = Path::new("etc");
    make_directories(image, etc)?;
    for (name, contents) in etc::files() {
        make_file(image, &etc.join(name), contents.as_bytes())?;
    }
    for name in etc::from_host(Path::new("/etc")) {
        let path = etc.join(name);
        if host.kind(&path) != Some(FileType::RegularFile) {
            show(image, host, &path)?;
            continue;
        }
        // A copy costs a new jail nothing, a mount does.
        let source = std::fs::File::from(openat(&host.0, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        let mut contents = Vec::new();
        let read = std::io::Read::read_to_end(&mut std::io::Read::take(source, LARGEST_COPY), &mut contents);
        if read.is_ok_and(|length| (length as u64) < LARGEST_COPY) {
            make_file(image, &path, &contents)?;
        }
    }
    Ok(())
}

/// Shows a directory or file of the host where it is, read-only, or a link as the link that it is. What is not there, or
/// not for us to see, is not shown.
fn show(image: &OwnedFd, host: &Host, path: &Path) -> Result<(), Errno> {
    let Some(kind) = host.kind(path) else { return Ok(()) };
    match kind {
        FileType::Symlink => {
            if let Some(parent) = path.parent() {
                make_directories(image, parent)?;
            }
            let target = readlinkat(&host.0, path, Vec::new())?;
            return symlinkat(&target, image, path);
        }
        FileType::Directory => make_directories(image, path)?,
        FileType::RegularFile => make_file(image, path, b"")?,
        _ => return Ok(()),
    }
    let copied = match copy(host.0.as_fd(), path, Reach::Tree) {
        Ok(copied) => copied,
        Err(Errno::ACCESS | Errno::NOENT) => return Ok(()),
        Err(other) => return Err(other),
    };
    set_mount_flags(copied.as_fd(), READ_ONLY, Reach::Tree, None)?;
    attach(&copied, image.as_fd(), path)
}

fn make_directories(image: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let mut made = PathBuf::new();
    for name in names(path) {
        made.push(name);
        match mkdirat(image, &made, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

fn make_file(image: &OwnedFd, path: &Path, contents: &[u8]) -> Result<(), Errno> {
    let path: PathBuf = names(path).collect();
    if let Some(parent) = path.parent() {
        make_directories(image, parent)?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(openat(image, &path, flags, Mode::from_raw_mode(0o644))?);
    std::io::Write::write_all(&mut file, contents).map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO))
}

fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

/// Without a step up, and below none of the places that a jail has of its own.
pub(crate) fn is_plain(path: &Path) -> bool {
    let own = ["proc", "dev", "tmp", "run", "workspace", "mnt", "etc", "sys"];
    path.components().all(|part| matches!(part, Component::Normal(_)))
        && names(path).next().is_some_and(|first| !own.iter().any(|own| own.as_bytes() == first.as_bytes()))
}
