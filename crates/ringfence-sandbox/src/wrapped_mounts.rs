//! Mounts of a wrapped program: workspace and home at their own paths, each under an overlay on disk.
//!
//! Of the person's home, only what the run brings is there: the directory that it starts with, the toolchains, the
//! workspace if it lies below. Mount points in the home come from a layer of their own at the very bottom, so that none of
//! them is a change of the program. What an earlier run left in the home is untrusted: no link in it is followed.
//!
//! Not here: where the directories are on the host (`layer_source.rs`), and masks (`run_mounts.rs`).

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, readlinkat, statat, symlinkat};
use rustix::io::Errno;

use crate::jail::JailRoot;
use crate::mount_points::{find_beneath, find_in, make_directory_beneath, make_directory_in, make_file_beneath};
use crate::mounts::{READ_ONLY, TmpfsMode, attach_over, clone_mount, overlay_of, tmpfs};
use crate::protocol::{RunSpec, SetupError, SetupStep, WrappedSpec};
use crate::run_mounts::{attach_hidden, finish_workspace, mount_read_only_dirs, resize_tmp};
use crate::sys::{MountFlagScope, set_mount_flags};

/// Brings it all in. `shown` are the mounts of the view, and those of `wrapped`.
pub(crate) fn mount_place(
    spec: &RunSpec,
    wrapped: &WrappedSpec,
    shown: &[OwnedFd],
    jail: &JailRoot,
) -> Result<(), SetupError> {
    let malformed = || SetupStep::Order.failed::<Errno>()(Errno::BADMSG);
    let (Some(workspace), Some(directories)) = (shown.first(), shown.get(spec.mounts.len()..spec.directory_count()))
    else {
        return Err(malformed());
    };
    let [home_start, layers @ ..] = directories else { return Err(malformed()) };
    let Some((workspace_layer, home_layer)) = layers.split_at_checked(WrappedSpec::LAYER_DESCRIPTORS) else {
        return Err(malformed());
    };
    resize_tmp(spec.limits.tmp_bytes).map_err(SetupStep::Root.failed())?;
    let root = openat(CWD, "/", DIRECTORY, Mode::empty()).map_err(SetupStep::Root.failed())?;
    let place = WrappedPlace { wrapped, root, jail };
    let toolchains = place.take_toolchains();
    attach_hidden(workspace, &jail.hidden_root, "workspace").map_err(SetupStep::Layer.failed())?;
    attach_hidden(home_start, &jail.hidden_root, "home").map_err(SetupStep::Home.failed())?;
    let bottom = place.bottom(&toolchains).map_err(SetupStep::Home.failed())?;
    let home = place.layered(&[home_start, &bottom], home_layer, "home-layer")?;
    let workspace = place.layered(&[workspace], workspace_layer, "workspace-layer")?;

    mount_read_only_dirs(spec, &shown[..spec.mounts.len()], &jail.hidden_root).map_err(SetupStep::Show.failed())?;
    if wrapped.home.starts_with(&wrapped.workspace_path) {
        place.attach_workspace(&workspace, None)?;
        place.attach_home(&home)?;
    } else {
        place.attach_home(&home)?;
        place.attach_workspace(&workspace, Some(&home))?;
    }
    place.attach_toolchains(&home, &toolchains);
    finish_workspace(spec)?;
    place.place_files(&home)
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A toolchain below the home, taken from the image before the home hides it.
enum HomeToolchain {
    Mount { path: PathBuf, mount: OwnedFd, is_directory: bool },
    Link { path: PathBuf, target: std::ffi::CString },
}

/// The place of one wrapped program, while it is being made.
struct WrappedPlace<'a> {
    wrapped: &'a WrappedSpec,
    /// The root that the program sees.
    root: OwnedFd,
    jail: &'a JailRoot,
}

impl WrappedPlace<'_> {
    /// Toolchains that the image shows below the home, by their paths there.
    fn take_toolchains(&self) -> Vec<HomeToolchain> {
        let all = self.wrapped.home_toolchains.iter();
        all.filter_map(|whole| {
            let path = whole.strip_prefix(&self.wrapped.home).ok()?.to_owned();
            match FileType::from_raw_mode(statat(CWD, whole, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_mode) {
                FileType::Symlink => {
                    Some(HomeToolchain::Link { path, target: readlinkat(CWD, whole, Vec::new()).ok()? })
                }
                kind => {
                    let mount = clone_mount(CWD, whole, MountFlagScope::Tree).ok()?;
                    set_mount_flags(mount.as_fd(), READ_ONLY, MountFlagScope::Tree, None).ok()?;
                    Some(HomeToolchain::Mount { path, mount, is_directory: kind == FileType::Directory })
                }
            }
        })
        .collect()
    }

    /// The lowest layer of the home: mount points.
    fn bottom(&self, toolchains: &[HomeToolchain]) -> Result<OwnedFd, Errno> {
        let bottom = tmpfs("256k", "4096", TmpfsMode::OwnerOnly)?;
        let below_home = |path: &Path| path.strip_prefix(&self.wrapped.home).ok().map(Path::to_owned);
        for toolchain in toolchains {
            match toolchain {
                HomeToolchain::Mount { path, is_directory: true, .. } => {
                    make_directory_beneath(bottom.as_fd(), path)?;
                }
                HomeToolchain::Mount { path, .. } => make_file_beneath(bottom.as_fd(), path)?,
                HomeToolchain::Link { path, target } => {
                    let parent = make_directory_beneath(bottom.as_fd(), path.parent().unwrap_or(Path::new("")))?;
                    if let Some(name) = path.file_name() {
                        symlinkat(target, parent, name)?;
                    }
                }
            }
        }
        if let Some(path) = below_home(&self.wrapped.workspace_path) {
            make_directory_beneath(bottom.as_fd(), &path)?;
        }
        for path in self.wrapped.files.iter().filter_map(|file| below_home(&file.path)) {
            // Where a toolchain or the workspace has something else, it is found or missed there.
            let _ = make_file_beneath(bottom.as_fd(), &path);
        }
        attach_hidden(&bottom, &self.jail.hidden_root, "home-bottom")?;
        Ok(bottom)
    }

    /// Directories under a layer on disk.
    fn layered(&self, lower: &[&OwnedFd], layer: &[OwnedFd], name: &str) -> Result<OwnedFd, SetupError> {
        let [mount, upper, work] = layer else { return Err(SetupStep::Order.failed()(Errno::BADMSG)) };
        attach_hidden(mount, &self.jail.hidden_root, name).map_err(SetupStep::DiskLayer.failed())?;
        overlay_of(&self.jail.spawner_proc, lower, (upper, work)).map_err(SetupStep::DiskLayer.failed())
    }

    fn attach_home(&self, home: &OwnedFd) -> Result<(), SetupError> {
        make_directory_in(self.root.as_fd(), &self.wrapped.home)
            .and_then(|target| attach_over(home, target.as_fd()))
            .map_err(SetupStep::Place.failed())
    }

    /// `home` is mounted already, if there is one.
    fn attach_workspace(&self, workspace: &OwnedFd, home: Option<&OwnedFd>) -> Result<(), SetupError> {
        let path = &self.wrapped.workspace_path;
        let target = match home.zip(path.strip_prefix(&self.wrapped.home).ok()) {
            Some((home, path)) => make_directory_beneath(home.as_fd(), path).map_err(SetupStep::Home.failed()),
            None => make_directory_in(self.root.as_fd(), path).map_err(SetupStep::Place.failed()),
        };
        attach_over(workspace, target?.as_fd()).map_err(SetupStep::Layer.failed())
    }

    /// One whose place has another thing now is not shown.
    fn attach_toolchains(&self, home: &OwnedFd, toolchains: &[HomeToolchain]) {
        for toolchain in toolchains {
            if let HomeToolchain::Mount { path, mount, .. } = toolchain
                && let Ok(Some(target)) = find_beneath(home.as_fd(), path)
            {
                let _ = attach_over(mount, target.as_fd());
            }
        }
    }

    /// Mounts read-only files over what is at their paths.
    fn place_files(&self, home: &OwnedFd) -> Result<(), SetupError> {
        let files = &self.wrapped.files;
        let written = self.write_files().map_err(|cause| SetupStep::Place.failed_with(&cause))?;
        for (number, file) in files.iter().enumerate() {
            let found = match file.path.strip_prefix(&self.wrapped.home) {
                Ok(path) => find_beneath(home.as_fd(), path),
                Err(_) => find_in(self.root.as_fd(), &file.path),
            };
            found
                .and_then(|target| target.ok_or(Errno::NOENT))
                .and_then(|target| {
                    let mount = clone_mount(written.as_fd(), number.to_string(), MountFlagScope::Mount)?;
                    attach_over(&mount, target.as_fd())
                })
                .map_err(SetupStep::Place.failed())?;
        }
        Ok(())
    }

    /// A file system with their contents, by their numbers.
    fn write_files(&self) -> std::io::Result<OwnedFd> {
        const BLOCK: u64 = 4096;
        let files = &self.wrapped.files;
        let bytes: u64 = files.iter().map(|file| (file.contents.len() as u64).div_ceil(BLOCK) * BLOCK).sum();
        let count = files.len() as u64 + 4;
        let memory = tmpfs(&(bytes + BLOCK).to_string(), &count.to_string(), TmpfsMode::OwnerOnly)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for (number, file) in files.iter().enumerate() {
            let created = openat(&memory, number.to_string(), flags, Mode::from_raw_mode(0o444))?;
            File::from(created).write_all(&file.contents)?;
        }
        attach_hidden(&memory, &self.jail.hidden_root, "files")?;
        set_mount_flags(memory.as_fd(), READ_ONLY, MountFlagScope::Mount, None)?;
        Ok(memory)
    }
}
