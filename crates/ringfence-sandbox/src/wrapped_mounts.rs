//! Mounts of a wrapped program: workspace, home and caches at their own paths, each under an overlay on disk.
//!
//! Of the person's home, only what the run brings is there: the directory that it starts with, the toolchains, the
//! workspace if it lies below. Mount points in the home come from a layer of their own at the very bottom, so that none of
//! them is a change of the program. What an earlier run left in the home is untrusted: no link in it is followed.
//!
//! Not here: where the directories are on the host (`layer_source.rs`), and masks (`run_mounts.rs`).

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, readlinkat, statat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fspick};

use crate::jail::JailRoot;
use crate::mount_points::{find_beneath, find_in, make_directory_beneath, make_directory_in, make_file_beneath};
use crate::mounts::{READ_ONLY, TmpfsMode, attach_over, clone_mount, mask_directory, mask_file, overlay_of, tmpfs};
use crate::protocol::{RunSpec, SetupError, SetupStep, WrappedSpec};
use crate::run_mounts::{attach_hidden, finish_workspace, mount_read_only_dirs, resize_tmp};
use crate::sys::{MountFlagScope, set_mount_flags};

/// Brings it all in. `shown` are the mounts of the view, and those of `wrapped`.
pub(crate) fn mount_place(
    spec: &RunSpec,
    wrapped: &WrappedSpec,
    shown: &[OwnedFd],
    jail: &JailRoot,
) -> Result<WorkspaceOverlay, SetupError> {
    let malformed = || SetupStep::Order.failed::<Errno>()(Errno::BADMSG);
    let (Some(workspace), Some(directories)) = (shown.first(), shown.get(spec.mounts.len()..spec.directory_count()))
    else {
        return Err(malformed());
    };
    let [home_start, layers @ ..] = directories else { return Err(malformed()) };
    let Some((layers, lowers)) = layers.split_at_checked(wrapped.layer_descriptors()) else { return Err(malformed()) };
    let mut layers = layers.chunks_exact(WrappedSpec::LAYER_DESCRIPTORS);
    let (Some(workspace_layer), Some(home_layer)) = (layers.next(), layers.next()) else { return Err(malformed()) };
    resize_tmp(spec.limits.tmp_bytes).map_err(SetupStep::Root.failed())?;
    let root = openat(CWD, "/", DIRECTORY, Mode::empty()).map_err(SetupStep::Root.failed())?;
    let place = WrappedPlace { wrapped, root, jail };
    let toolchains = place.take_toolchains();
    attach_hidden(workspace, &jail.hidden_root, "workspace").map_err(SetupStep::Layer.failed())?;
    attach_hidden(home_start, &jail.hidden_root, "home").map_err(SetupStep::Home.failed())?;
    let bottom = place.bottom(&toolchains).map_err(SetupStep::Home.failed())?;
    let home = place.layered(&[home_start, &bottom], home_layer, "home-layer")?;
    let workspace = place.layered(&[workspace], workspace_layer, "workspace-layer")?;
    let caches = place.layered_caches(layers, lowers)?;

    mount_read_only_dirs(spec, &shown[..spec.mounts.len()], &jail.hidden_root).map_err(SetupStep::Show.failed())?;
    if wrapped.home.starts_with(&wrapped.workspace_path) {
        place.attach_workspace(&workspace, None)?;
        place.attach_home(&home)?;
    } else {
        place.attach_home(&home)?;
        place.attach_workspace(&workspace, Some(&home))?;
    }
    place.attach_toolchains(&home, &toolchains);
    place.attach_caches(&home, &caches);
    finish_workspace(spec)?;
    place.place_files(&home)?;
    WorkspaceOverlay::of(workspace).map_err(SetupStep::Layer.failed())
}

/// The overlay on the workspace, for the host: its root, and what reconfigures its mount.
#[derive(Debug)]
pub(crate) struct WorkspaceOverlay {
    root: OwnedFd,
    configuration: OwnedFd,
}

impl WorkspaceOverlay {
    fn of(root: OwnedFd) -> Result<Self, Errno> {
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        let configuration = fspick(&root, "", flags)?;
        Ok(Self { root, configuration })
    }

    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.root.as_fd(), self.configuration.as_fd()]
    }
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
        for cache in &self.wrapped.caches {
            make_directory_beneath(bottom.as_fd(), &cache.path)?;
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

    /// The caches, each with the person's own below its layer if there is one.
    fn layered_caches<'l>(
        &self,
        layers: impl Iterator<Item = &'l [OwnedFd]>,
        lowers: &[OwnedFd],
    ) -> Result<Vec<OwnedFd>, SetupError> {
        let caches = &self.wrapped.caches;
        if caches.is_empty() {
            return Ok(Vec::new());
        }
        let masks = self.cache_masks().map_err(SetupStep::DiskLayer.failed())?;
        let mut lowers = lowers.iter();
        let mut mounted = Vec::with_capacity(caches.len());
        for ((number, cache), layer) in caches.iter().enumerate().zip(layers) {
            let failed = || SetupStep::DiskLayer.failed::<Errno>();
            let mask = openat(&masks, number.to_string(), DIRECTORY, Mode::empty()).map_err(failed())?;
            let mut lower = vec![&mask];
            if cache.has_lower() {
                let own = lowers.next().ok_or(Errno::BADMSG).map_err(failed())?;
                attach_hidden(own, &self.jail.hidden_root, &format!("cache-{number}")).map_err(failed())?;
                lower.push(own);
            }
            mounted.push(self.layered(&lower, layer, &format!("cache-layer-{number}"))?);
        }
        Ok(mounted)
    }

    /// A directory for each cache, by its number, with empty files and directories over what is masked in it. It is also
    /// what a cache that is not there starts with.
    fn cache_masks(&self) -> Result<OwnedFd, Errno> {
        let caches = &self.wrapped.caches;
        let masked = caches.iter().flat_map(|cache| cache.masked_files.iter().chain(&cache.masked_directories));
        let names = 2 + caches.len() + masked.map(|path| path.components().count()).sum::<usize>();
        // An attribute takes as much as a file.
        let entries = 2 * names;
        let masks = tmpfs("16m", &entries.to_string(), TmpfsMode::OwnerOnly)?;
        for (number, cache) in caches.iter().enumerate() {
            mkdirat(&masks, number.to_string(), Mode::from_raw_mode(0o755))?;
            let mask = openat(&masks, number.to_string(), DIRECTORY, Mode::empty())?;
            cache.masked_files.iter().try_for_each(|path| mask_file(&mask, path))?;
            cache.masked_directories.iter().try_for_each(|path| mask_directory(&mask, path))?;
        }
        attach_hidden(&masks, &self.jail.hidden_root, "cache-masks")?;
        Ok(masks)
    }

    /// One whose place has another thing now, because an earlier program changed the home, is not shown.
    fn attach_caches(&self, home: &OwnedFd, caches: &[OwnedFd]) {
        for (cache, mount) in self.wrapped.caches.iter().zip(caches) {
            if let Ok(Some(target)) = find_beneath(home.as_fd(), &cache.path) {
                let _ = attach_over(mount, target.as_fd());
            }
        }
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
