//! Jails of wrapped programs: checks of their places, and what the spawner needs to build them.
//!
//! Not here: what a caller says about a program (`wrapped_environment.rs`), and the mounts themselves
//! (`wrapped_mounts.rs`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use ringfence_kernel::OverlayDirectories;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::job::{JailError, JailJob};
use crate::layer_source::{find_layer, locate_layer, prepare_layer, unusable};
use crate::mounts::{NOSUID_NODEV, READ_ONLY, SYSTEM_DIRS, clone_mount};
use crate::protocol::{CacheSpec, IdMapping, ImagePlan, JailKind, JailUser, LayerPath, PlacedRunFile, WrappedSpec};
use crate::spawner_handle::{SpawnerHandle, owner};
use crate::sys::{MountFlagScope, held_path, set_mount_flags};
use crate::tool_caches::ToolCache;
use crate::toolchain_secrets::SecretPath;
use crate::toolchains::Toolchain;
use crate::wrapped_environment::{WrappedCache, WrappedEnvironment, WrappedUser};

/// Directories that a jail has of its own, and everything below them.
const OWN_TREES: [&str; 5] = ["/proc", "/dev", "/sys", "/run/ringfence", "/run/nothing"];

/// Directories that a jail has of its own, or that programs do not work without.
const OWN_DIRECTORIES: [&str; 6] = ["/", "/etc", "/run", "/tmp", "/mnt", "/var"];

impl WrappedEnvironment<'_> {
    /// Checks paths and names, before anything is made.
    pub(crate) fn check(&self) -> Result<(), JailError> {
        let hint = "use a directory of its own, for example below a home directory, `/srv` or `/tmp`";
        if !is_place(&self.workspace_path) {
            return Err(JailError::unavailable("the sandbox cannot show a workspace at this path", hint));
        }
        if !is_place(&self.identity.home) {
            return Err(JailError::unavailable("the sandbox cannot show a home directory at the user's path", hint));
        }
        if self.workspace_path == self.identity.home {
            return Err(JailError::unavailable(
                "the workspace is the home directory itself",
                "start the program in a directory below it",
            ));
        }
        if self.files.iter().any(|file| !is_plain(&file.path) || is_in_own_tree(&file.path)) {
            return Err(JailError::unavailable(
                "a file cannot be placed in a directory of the sandbox",
                "place it at an absolute path outside `/proc`, `/dev`, `/sys` and `/run/ringfence`",
            ));
        }
        let is_relative = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        if self.caches.iter().any(|cache| cache.cache.path == Path::new("") || !is_relative(&cache.cache.path)) {
            return Err(JailError::unavailable(
                "a cache is not below the home directory",
                "name caches by paths below the home directory, such as `.cache/pip`",
            ));
        }
        let WrappedUser { name, home, shell, .. } = &self.identity;
        let fields = [name.as_bytes(), home.as_os_str().as_bytes(), shell.as_os_str().as_bytes()];
        if name.is_empty() || fields.iter().any(|field| field.iter().any(|byte| matches!(byte, b':' | b'\n' | b'\0'))) {
            return Err(JailError::unavailable(
                "the name or a path of the user is empty, or has a colon or a line break",
                "start it as another user",
            ));
        }
        Ok(())
    }

    /// The kind of jail that it needs.
    pub(crate) fn kind(&self) -> JailKind {
        if self.terminal.is_some() { JailKind::WrappedOnTerminal } else { JailKind::Wrapped }
    }

    /// The user inside, who is that one outside.
    pub(crate) fn id_mapping(&self, outside: JailUser) -> IdMapping {
        IdMapping { inside: JailUser { uid: self.identity.uid, gid: self.identity.gid }, outside }
    }

    /// What its image has besides the system.
    pub(crate) fn image_plan(&self, toolchains: &[Toolchain]) -> ImagePlan {
        ImagePlan {
            toolchains: self.shown_toolchains(toolchains).cloned().collect(),
            directories: vec![self.identity.home.clone(), self.workspace_path.clone()],
            files: self.files.iter().map(|file| file.path.clone()).collect(),
        }
    }

    /// What is shown of toolchains. A cache under a layer is not shown a second time.
    fn shown_toolchains<'t>(&self, toolchains: &'t [Toolchain]) -> impl Iterator<Item = &'t PathBuf> {
        let caches: Vec<PathBuf> = self.caches.iter().map(|cache| self.identity.home.join(&cache.cache.path)).collect();
        let shown = toolchains.iter().flat_map(|toolchain| &toolchain.shown);
        shown.filter(move |path| !caches.iter().any(|cache| path.starts_with(cache)))
    }

    /// The files of the caller, and those that name the user.
    fn placed_files(&self) -> Vec<PlacedRunFile> {
        let WrappedUser { name, home, shell, uid, gid } = &self.identity;
        let (home, shell) = (home.as_os_str().as_bytes(), shell.as_os_str().as_bytes());
        let person = [format!("{name}:x:{uid}:{gid}::").as_bytes(), home, b":", shell, b"\n"].concat();
        let nobody = b"nobody:x:65534:65534:not in the jail:/nonexistent:/bin/false\n";
        let own = [
            ("/etc/passwd", [&person[..], nobody].concat()),
            ("/etc/group", format!("{name}:x:{gid}:\nnogroup:x:65534:\n").into_bytes()),
        ];
        let given =
            self.files.iter().map(|file| PlacedRunFile { path: file.path.clone(), contents: file.contents.clone() });
        let own = own.into_iter().filter(|(path, _)| !self.files.iter().any(|file| file.path == Path::new(path)));
        own.map(|(path, contents)| PlacedRunFile { path: path.into(), contents }).chain(given).collect()
    }
}

/// Whether a workspace or a home can be shown at a path.
fn is_place(path: &Path) -> bool {
    let is_system = |name: &&str| Path::new("/").join(name) == path;
    is_plain(path)
        && !is_in_own_tree(path)
        && !OWN_DIRECTORIES.iter().any(|own| Path::new(own) == path)
        && !SYSTEM_DIRS.iter().any(is_system)
}

fn is_in_own_tree(path: &Path) -> bool {
    OWN_TREES.iter().any(|own| path.starts_with(own))
}

/// Whether a path is absolute, and has neither `.` nor `..` in it.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && !path.as_os_str().as_bytes().contains(&b'\0')
}

/// What the spawner and the jail need of a wrapped program.
#[derive(Debug)]
pub(crate) struct WrappedSource {
    pub(crate) spec: WrappedSpec,
    descriptors: Vec<OwnedFd>,
}

impl WrappedSource {
    /// For root: mounts on which the owner of the workspace is the program, `outside`. For others: the held directories.
    pub(crate) fn new(
        spawner: &SpawnerHandle,
        job: &JailJob<'_>,
        wrapped: &WrappedEnvironment<'_>,
        outside: JailUser,
    ) -> Result<Self, JailError> {
        let failed = || JailError::io::<Errno>("find a layer on disk");
        let workspace = &job.view.workspace.directory;
        let (owned_by, mode) = (owner(workspace)?, fstat(workspace).map_err(failed())?.st_mode & 0o777);
        prepare_layer(wrapped.workspace_layer, owned_by, Some(mode))?;
        prepare_layer(wrapped.home_layer, owned_by, None)?;
        for WrappedCache { cache, layer } in &wrapped.caches {
            prepare_layer(layer, owned_by, Some(cache.mode()))?;
        }
        let cache_layers = wrapped.caches.iter().map(|cache| cache.layer);
        let layers: Vec<&OverlayDirectories> =
            [wrapped.workspace_layer, wrapped.home_layer].into_iter().chain(cache_layers).collect();
        let paths = layers.iter().map(|layer| locate_layer(layer));
        let paths: Vec<LayerPath> = paths.collect::<Result<_, Errno>>().map_err(failed())?;
        let is_mounted = geteuid().is_root();
        let mut descriptors = Vec::new();
        if is_mounted {
            descriptors.push(mounted_start(spawner, wrapped.home_start, outside)?);
        } else {
            descriptors.push(wrapped.home_start.try_clone().map_err(JailError::io("hold a home directory"))?);
        }
        for (layer, path) in layers.into_iter().zip(&paths) {
            descriptors.extend(if is_mounted {
                mounted_layer(spawner, layer, path, owned_by, outside)?
            } else {
                held_layer(layer).map_err(JailError::io("hold a layer on disk"))?
            });
        }
        for lower in wrapped.caches.iter().filter_map(|cache| cache.cache.lower.as_ref()) {
            let held = || lower.directory.try_clone().map_err(JailError::io("hold a cache"));
            // Where owners cannot be mapped, others read what everyone may read.
            let plain = || mounted_start(spawner, &lower.directory, owner(&lower.directory)?);
            let mounted = || mounted_start(spawner, &lower.directory, outside).or_else(|_| plain());
            descriptors.push(if is_mounted { mounted()? } else { held()? });
        }
        let terminal = wrapped.terminal.as_ref().map(|terminal| terminal.size);
        let toolchains = wrapped.shown_toolchains(job.toolchains);
        let mut paths = paths.into_iter();
        let (workspace_layer, home_layer) = (paths.next().unwrap_or_default(), paths.next().unwrap_or_default());
        let caches = wrapped.caches.iter().zip(paths).map(|(cache, layer)| cache_spec(cache.cache, layer)).collect();
        let spec = WrappedSpec {
            workspace_path: wrapped.workspace_path.clone(),
            home: wrapped.identity.home.clone(),
            home_toolchains: toolchains.filter(|path| path.starts_with(&wrapped.identity.home)).cloned().collect(),
            files: wrapped.placed_files(),
            is_mounted,
            home_start: held_path(wrapped.home_start).map_err(failed())?,
            workspace_layer,
            home_layer,
            caches,
            terminal,
            recorded: wrapped.recorded,
        };
        Ok(Self { spec, descriptors })
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.descriptors.iter().map(AsFd::as_fd)
    }
}

fn cache_spec(cache: &ToolCache, layer: LayerPath) -> CacheSpec {
    let mut spec = CacheSpec { path: cache.path.clone(), layer, ..CacheSpec::default() };
    if let Some(lower) = &cache.lower {
        spec.lower.clone_from(&lower.host_path);
        for secret in &lower.masked {
            match secret {
                SecretPath::File(path) => spec.masked_files.push(path.clone()),
                SecretPath::Directory(path) => spec.masked_directories.push(path.clone()),
            }
        }
    }
    spec
}

fn held_layer(layer: &OverlayDirectories) -> std::io::Result<[OwnedFd; 3]> {
    Ok([layer.upper.try_clone()?, layer.upper.try_clone()?, layer.work.try_clone()?])
}

/// A read-only mount of a directory below a layer.
fn mounted_start(spawner: &SpawnerHandle, start: &OwnedFd, outside: JailUser) -> Result<OwnedFd, JailError> {
    let failed = || JailError::io::<Errno>("mount a home directory");
    if owner(start)? == outside {
        let mount = clone_mount(start.as_fd(), "", MountFlagScope::Mount).map_err(failed())?;
        set_mount_flags(mount.as_fd(), READ_ONLY, MountFlagScope::Mount, None).map_err(failed())?;
        return Ok(mount);
    }
    spawner.idmapped_mount(start, outside)?.map_err(|_| unusable("cannot map owners"))
}

/// The parts of a layer below a mount on which its owner is the program.
fn mounted_layer(
    spawner: &SpawnerHandle,
    layer: &OverlayDirectories,
    path: &LayerPath,
    owned_by: JailUser,
    outside: JailUser,
) -> Result<[OwnedFd; 3], JailError> {
    let held = [layer.upper.as_fd(), layer.upper.as_fd(), layer.work.as_fd()];
    let parts = find_layer(path, &held).map_err(JailError::io("mount a layer on disk"))?;
    if owned_by != outside {
        let map = spawner.user_ns_for(owned_by, outside)?;
        // The parts are open: below the mapped mount, the directory that has them may be closed to everyone.
        set_mount_flags(parts[0].as_fd(), NOSUID_NODEV, MountFlagScope::Mount, Some((*map).as_fd()))
            .map_err(|_| unusable("cannot map owners"))?;
    }
    Ok(parts)
}
