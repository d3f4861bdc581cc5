//! System mounts of a jail: one mount tree, built once and cloned for each jail.
//!
//! The image is read-only and has no device but a few harmless ones, no setuid program that works as one, and of `/etc`
//! only what `etc.rs` lists. It lives in a mount namespace of its own, so that a new jail copies a handful of mounts and
//! not all of the host's.
//!
//! Not here: what differs between jails (`jail.rs`) and between runs (`run_mounts.rs`).

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, XattrFlags, fsetxattr, fstatfs, mkdirat, open, openat, readlinkat,
    statat, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change,
    move_mount, open_tree, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::etc;
use crate::mount_points::{make_directory_in, make_file_in};
use crate::protocol::ImagePlan;
use crate::sys::{MountFlagScope, set_mount_flags};
use crate::toolchain_secrets::{SecretPath, find_secrets};

/// Below this the image lies, in the namespace that new jails copy.
pub(crate) const IMAGE: &str = "/image";

/// Sources of masks: an empty file, and an empty directory.
pub(crate) const EMPTY_FILE: &str = "/run/nothing/file";
pub(crate) const EMPTY_DIR: &str = "/run/nothing/directory";

/// Directories of the host that are shown, or links that are shown as links.
pub(crate) const SYSTEM_DIRS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Harmless devices. The last is a process's own terminal, which only ever is one of the jail's.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Names below `/dev` that point at the jail's own terminals, and at a process's own descriptors.
const DEV_LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Parts of `/proc` that tell about the host, its devices and its paths, or act on it.
pub(crate) const MASKED_PROC_PATHS: [&str; 27] = [
    "acpi",
    "asound",
    "bootconfig",
    "bus",
    "cmdline",
    "consoles",
    "device-tree",
    "diskstats",
    "driver",
    "fs",
    "interrupts",
    "irq",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    // Locks of an open file are listed for every holder, with the inode.
    "locks",
    "mdstat",
    "modules",
    "partitions",
    "sched_debug",
    "scsi",
    "swaps",
    // A path of the host, and the identity of its last start.
    "sys/kernel/core_pattern",
    "sys/kernel/random/boot_id",
    "sysrq-trigger",
    "timer_list",
];

/// Mount points. All are empty in the image.
const MOUNT_POINTS: [&str; 9] =
    ["proc", "tmp", "run/ringfence", "run/nothing/directory", "workspace", "mnt", "dev/pts", "dev/shm", "var"];

/// Single files of the host that are larger than this are left out.
const MAX_COPY_BYTES: u64 = 8 << 20;

/// No program in a jail gains from a setuid file or a device.
pub(crate) const NOSUID_NODEV: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
pub(crate) const READ_ONLY: MountAttrFlags = NOSUID_NODEV.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// Leaves the current mount namespace for a new one in which there is nothing but a `/proc` and the image. The `/proc` is one
/// of this process's pid namespace or, where a container refuses that, the one that we were started with.
pub(crate) fn enter_image(plan: &ImagePlan) -> Result<(), Errno> {
    // SAFETY: this process has one thread, and its descriptors stay its own.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let host = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;

    // Before there is another root.
    let mounted = mount_points();
    let base = tmpfs("8m", "16384", TmpfsMode::OwnerOnly)?;
    for name in ["proc", "image", "masks"] {
        mkdirat(&base, name, Mode::from_raw_mode(0o755))?;
    }
    // Over the root, where it hides nothing: paths are looked up from the held one.
    attach(&base, CWD, "/")?;
    let proc = match procfs() {
        Err(Errno::PERM | Errno::ACCESS) => clone_mount(host.as_fd(), "proc", MountFlagScope::Tree),
        made => made,
    };
    attach(&proc?, base.as_fd(), "proc")?;
    let image = tmpfs("32m", "4096", TmpfsMode::OwnerOnly)?;
    attach(&image, base.as_fd(), "image")?;
    fill_image(&JailImageBuilder { base: &base, image: &image, host: &HostRoot(host), mounted }, plan)?;
    set_mount_flags(image.as_fd(), READ_ONLY, MountFlagScope::Mount, None)?;
    pivot_into(&base)
}

/// An image that is being filled.
struct JailImageBuilder<'a> {
    /// Mount that the image is attached to, invisible to jails.
    base: &'a OwnedFd,
    image: &'a OwnedFd,
    host: &'a HostRoot,
    /// Mount points of the host.
    mounted: Vec<PathBuf>,
}

/// Of this process's mount namespace. A name with a space or the like in it is written otherwise there, and not found.
fn mount_points() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

/// Makes a mount the root, and lets go of everything else.
pub(crate) fn pivot_into(root: &OwnedFd) -> Result<(), Errno> {
    fchdir(root)?;
    pivot_root(".", ".")?;
    // The old root lies on top of the new one now.
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

/// Permissions of a new tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TmpfsMode {
    OwnerOnly,
    WorldWritable,
}

/// A new file system in memory with caps on bytes and files, not attached anywhere yet.
pub(crate) fn tmpfs(size: &str, files: &str, open: TmpfsMode) -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "size", size)?;
    fsconfig_set_string(&context, "nr_inodes", files)?;
    fsconfig_set_string(&context, "mode", if open == TmpfsMode::WorldWritable { "1777" } else { "0755" })?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, NOSUID_NODEV)
}

/// The processes of this pid namespace.
pub(crate) fn procfs() -> Result<OwnedFd, Errno> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, NOSUID_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

/// Pseudo-terminals of the jail's own. The machine's are limited, so that each jail has a few.
pub(crate) fn devpts() -> Result<OwnedFd, Errno> {
    let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in [("ptmxmode", "0666"), ("mode", "0620"), ("max", "64")] {
        fsconfig_set_string(&context, name, value)?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
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
pub(crate) fn clone_mount(
    directory: BorrowedFd<'_>,
    path: impl rustix::path::Arg,
    reach: MountFlagScope,
) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if reach == MountFlagScope::Tree {
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

/// The same on any kernel: before that, by the links that a process has to its descriptors in `proc`.
pub(crate) fn overlay_of(
    proc: &OwnedFd,
    lower: &[&OwnedFd],
    (upper, work): (&OwnedFd, &OwnedFd),
) -> Result<OwnedFd, Errno> {
    overlay(lower, Some((upper, work))).or_else(|errno| {
        // The kernel knows descriptors, and did not take these.
        if errno != Errno::INVAL {
            return Err(errno);
        }
        let link = |descriptor: &OwnedFd| format!("self/fd/{}", descriptor.as_raw_fd());
        let lower = lower.iter().map(|one| link(one)).collect::<Vec<_>>().join(":");
        overlay_by_paths(proc, &lower, &[("upperdir", &link(upper)), ("workdir", &link(work))])
    })
}

/// Before that, from paths below a directory.
pub(crate) fn overlay_by_paths(directory: &OwnedFd, lower: &str, above: &[(&str, &str)]) -> Result<OwnedFd, Errno> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fchdir(directory)?;
    let configured = fsconfig_set_string(&context, "lowerdir", lower)
        .and_then(|()| above.iter().try_for_each(|(part, path)| fsconfig_set_string(&context, *part, *path)))
        .and_then(|()| finish_overlay(&context));
    chdir("/")?;
    configured
}

fn finish_overlay(context: &OwnedFd) -> Result<OwnedFd, Errno> {
    fsconfig_set_string(context, "source", "workspace")?;
    fsconfig_set_flag(context, "userxattr")?;
    fsconfig_create(context)?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, NOSUID_NODEV)
}

/// The host's root, from which paths are looked up.
struct HostRoot(OwnedFd);

impl HostRoot {
    fn kind(&self, path: &Path) -> Option<FileType> {
        let found = statat(&self.0, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(found.st_mode))
    }
}

fn fill_image(all: &JailImageBuilder<'_>, plan: &ImagePlan) -> Result<(), Errno> {
    let (image, host) = (all.image, all.host);
    for path in MOUNT_POINTS {
        make_directories(image, Path::new(path))?;
    }
    make_file(image, Path::new(EMPTY_FILE), b"")?;
    symlinkat("/tmp", image, "var/tmp")?;
    for name in SYSTEM_DIRS {
        bind_from_host(image, host, Path::new(name))?;
        // Where the kernel shows it by no overlay, it is shown as it is.
        all.overlay_directory(Path::new(name), JailImageSource::System)?;
    }
    for name in DEVICES {
        let path = Path::new("dev").join(name);
        make_file(image, &path, b"")?;
        let device = clone_mount(host.0.as_fd(), &path, MountFlagScope::Mount)?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        set_mount_flags(device.as_fd(), flags, MountFlagScope::Mount, None)?;
        attach(&device, image.as_fd(), &path)?;
    }
    for (name, target) in DEV_LINKS {
        symlinkat(target, image, Path::new("dev").join(name))?;
    }
    make_directories(image, Path::new("etc"))?;
    for (name, contents) in etc::files() {
        make_file(image, &Path::new("etc").join(name), contents.as_bytes())?;
    }
    for name in etc::host_files(Path::new("/etc")) {
        let path = Path::new("etc").join(name);
        bind_from_host(image, host, &path)?;
        all.overlay_directory(&path, JailImageSource::System)?;
    }
    for path in &plan.toolchains {
        let Ok(path) = path.strip_prefix("/") else { continue };
        // One that lies in what is shown already is there.
        if is_plain(path) && openat(image, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_err() {
            bind_from_host(image, host, path)?;
            if let JailImageOverlay::NotApplied(shown) = all.overlay_directory(path, JailImageSource::Toolchain)? {
                unmount(descriptor_path(&shown), UnmountFlags::DETACH)?;
            }
        }
    }
    // What cannot be made, such as a file in a directory of the system, is missing when the jail mounts something there.
    for path in &plan.directories {
        let _ = make_directory_in(image.as_fd(), path);
    }
    for path in &plan.files {
        let _ = make_file_in(image.as_fd(), path);
    }
    Ok(())
}

/// Source of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JailImageSource {
    System,
    Toolchain,
}

/// Whether a directory is mounted through an overlay.
enum JailImageOverlay {
    Applied,
    /// It is shown as it is.
    NotApplied(OwnedFd),
}

impl JailImageBuilder<'_> {
    /// Mounts a directory through an overlay: there is no process at the other end of its sockets and pipes, secrets in
    /// it are empty, and lists of mounts reveal nothing of the host's file system. Mounts inside it are lost, and later
    /// changes of the host may be missed. So a directory of the system, which packages change, is mounted directly, but
    /// for secrets, if its file system reveals nothing or has a mount inside.
    fn overlay_directory(&self, path: &Path, within: JailImageSource) -> Result<JailImageOverlay, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let shown = match openat(self.image, path, flags, Mode::empty()) {
            Ok(shown) => shown,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(JailImageOverlay::Applied),
            Err(other) => return Err(other),
        };
        let whole = Path::new("/").join(path);
        let Some(secrets) = find_secrets(&descriptor_directory(&self.host.0), path) else {
            return Ok(JailImageOverlay::NotApplied(shown));
        };
        let holds_mounts = self.mounted.iter().any(|point| *point != whole && point.starts_with(&whole));
        if within == JailImageSource::System && (holds_mounts || is_local(&shown)?) {
            self.mask_in_place(&shown, &secrets)?;
            return Ok(JailImageOverlay::NotApplied(shown));
        }
        let masks = self.build_mask(&secrets)?;
        let empty = openat(self.image, components(Path::new(EMPTY_DIR)).collect::<PathBuf>(), flags, Mode::empty())?;
        let lower: Vec<&OwnedFd> = masks.iter().map(|(_, directory)| directory).chain([&shown, &empty]).collect();
        let both = overlay(&lower, None).or_else(|_| {
            // Where scripts will be, there is nothing in the image yet.
            attach(&clone_mount(shown.as_fd(), "", MountFlagScope::Mount)?, self.image.as_fd(), "run/ringfence")?;
            let masks = masks.iter().map(|(path, _)| format!("{path}:")).collect::<String>();
            let paths = format!("{masks}image/run/ringfence:image/run/nothing/directory");
            let both = overlay_by_paths(self.base, &paths, &[]);
            let aside = openat(self.image, "run/ringfence", flags, Mode::empty())?;
            unmount(descriptor_path(&aside), UnmountFlags::DETACH)?;
            both
        });
        let Ok(both) = both else { return Ok(JailImageOverlay::NotApplied(shown)) };
        unmount(descriptor_path(&shown), UnmountFlags::DETACH)?;
        set_mount_flags(both.as_fd(), READ_ONLY, MountFlagScope::Mount, None)?;
        attach(&both, self.image.as_fd(), path).map(|()| JailImageOverlay::Applied)
    }

    fn mask_in_place(&self, shown: &OwnedFd, secrets: &[SecretPath]) -> Result<(), Errno> {
        for secret in secrets {
            let (path, nothing) = match secret {
                SecretPath::File(path) => (path, EMPTY_FILE),
                SecretPath::Directory(path) => (path, EMPTY_DIR),
            };
            let target = openat(shown, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            let nothing = clone_mount(self.image.as_fd(), nothing.trim_start_matches('/'), MountFlagScope::Mount)?;
            attach_over(&nothing, target.as_fd())?;
        }
        Ok(())
    }

    /// A directory with empty files and directories at the paths of secrets, to be mounted over them.
    fn build_mask(&self, secrets: &[SecretPath]) -> Result<Option<(String, OwnedFd)>, Errno> {
        if secrets.is_empty() {
            return Ok(None);
        }
        let masks = openat(self.base, "masks", DIRECTORY, Mode::empty())?;
        let number = Dir::read_from(&masks)?.count();
        mkdirat(&masks, number.to_string(), Mode::from_raw_mode(0o755))?;
        let mask = openat(&masks, number.to_string(), DIRECTORY, Mode::empty())?;
        for secret in secrets {
            match secret {
                SecretPath::File(path) => mask_file(&mask, path)?,
                SecretPath::Directory(path) => mask_directory(&mask, path)?,
            }
        }
        Ok(Some((format!("masks/{number}"), mask)))
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Makes an empty file in a layer, which hides one below it.
pub(crate) fn mask_file(layer: &OwnedFd, path: &Path) -> Result<(), Errno> {
    make_file(layer, path, b"")
}

/// Makes an empty directory in a layer, which hides one below it.
pub(crate) fn mask_directory(layer: &OwnedFd, path: &Path) -> Result<(), Errno> {
    make_directories(layer, path)?;
    let directory = openat(layer, path, DIRECTORY, Mode::empty())?;
    // Nothing of what lies below is merged into it.
    fsetxattr(&directory, "user.overlay.opaque", b"y", XattrFlags::empty())
}

/// Whether a file system is one of a local disk or of memory. Others, such as the overlay of a container, have options that
/// name directories and servers, which a list of mounts tells.
fn is_local(directory: &OwnedFd) -> Result<bool, Errno> {
    // ext2 to ext4, XFS, Btrfs, Bcachefs, F2FS, ZFS, SquashFS, EROFS, tmpfs.
    const LOCAL: [u64; 9] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0xca45_1a4e,
        0xf2f5_2010,
        0x2fc1_2fc1,
        0x7371_7368,
        0xe0f5_e1e2,
        0x0102_1994,
    ];
    let kind = fstatfs(directory)?.f_type;
    Ok(LOCAL.contains(&(kind as u64 & 0xffff_ffff)))
}

/// A path by which what a held directory has can be opened.
fn descriptor_directory(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(descriptor_path(directory))
}

/// The path of what is mounted where a descriptor is.
fn descriptor_path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Mounts a directory or file of the host at the same path, read-only, or copies a link. A missing or unreadable one is
/// skipped.
fn bind_from_host(image: &OwnedFd, host: &HostRoot, path: &Path) -> Result<(), Errno> {
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
        // A copy costs a new jail nothing, a mount does, and tells where the file is on the host.
        FileType::RegularFile => return copy_file(image, host, path),
        _ => return Ok(()),
    }
    let copied = match clone_mount(host.0.as_fd(), path, MountFlagScope::Tree) {
        Ok(copied) => copied,
        Err(Errno::ACCESS | Errno::NOENT) => return Ok(()),
        Err(other) => return Err(other),
    };
    set_mount_flags(copied.as_fd(), READ_ONLY, MountFlagScope::Tree, None)?;
    attach(&copied, image.as_fd(), path)
}

fn copy_file(image: &OwnedFd, host: &HostRoot, path: &Path) -> Result<(), Errno> {
    let source = match openat(&host.0, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(source) => std::fs::File::from(source),
        Err(Errno::ACCESS | Errno::NOENT) => return Ok(()),
        Err(other) => return Err(other),
    };
    let mut contents = Vec::new();
    let read = std::io::Read::read_to_end(&mut std::io::Read::take(source, MAX_COPY_BYTES), &mut contents);
    if read.is_ok_and(|length| (length as u64) < MAX_COPY_BYTES) { make_file(image, path, &contents) } else { Ok(()) }
}

fn make_directories(image: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let mut made = PathBuf::new();
    for name in components(path) {
        made.push(name);
        match mkdirat(image, &made, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

fn make_file(image: &OwnedFd, path: &Path, contents: &[u8]) -> Result<(), Errno> {
    let path: PathBuf = components(path).collect();
    if let Some(parent) = path.parent() {
        make_directories(image, parent)?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(openat(image, &path, flags, Mode::from_raw_mode(0o644))?);
    std::io::Write::write_all(&mut file, contents).map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO))
}

pub(crate) fn components(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

/// Whether a path has no `..`, and is below none of the jail's own mounts.
pub(crate) fn is_plain(path: &Path) -> bool {
    let own = ["proc", "dev", "tmp", "run", "workspace", "mnt", "etc", "sys"];
    path.components().all(|part| matches!(part, Component::Normal(_)))
        && components(path).next().is_some_and(|first| !own.iter().any(|own| own.as_bytes() == first.as_bytes()))
}

/// As many files as there are small blocks.
pub(crate) fn max_inodes(bytes: u64) -> String {
    (bytes / 4096).max(1024).to_string()
}
