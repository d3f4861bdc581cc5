//! Home directories of wrapped programs, kept from run to run.
//!
//! Programs of one profile in one workspace share a home directory: what it starts with is written again for every run, and
//! what the programs changed stays in the upper directory above it.
//!
//! Not here: layers on the workspace (`layer_store.rs`), and files that go back to the person (`home_keep.rs`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use ringfence_kernel::{CallContext, ErrorKind, HomeFile, LayerDescription, ToolError};
use rustix::fs::OFlags;

use crate::overlay::kept_directory::{KeptDirectory, KeptDirectoryRecord};
use crate::overlay::store_directory::{StoreLock, errno_store_error, store_error};
use crate::overlay::tree_removal::remove_tree;
use crate::sys::own_files::{open_own_file, open_private_dir, write_all};

/// The directory of the home directories, below the state directory.
pub(super) const HOMES: &str = "homes";

const HOME_PREFIX: &str = "h-";

/// What a home directory starts with.
pub(super) const START: &[u8] = b"start";

/// A home directory that a program runs with.
#[derive(Debug)]
pub(super) struct LayerHome {
    pub(super) start: OwnedFd,
    pub(super) kept: KeptDirectory,
}

/// The home directory for a program that starts now, with its files written.
pub(super) fn create_home(
    homes: &OwnedFd,
    workspace: &str,
    about: &LayerDescription,
    cx: &CallContext<'_>,
) -> Result<LayerHome, ToolError> {
    let kept = KeptDirectory::acquire(homes, HOME_PREFIX, &record_of(&about.profile, workspace), cx)?;
    remove_tree(kept.directory.as_fd(), START, cx)?;
    let start = open_private_dir(&kept.directory, START).map_err(errno_store_error)?;
    about.home_files.iter().try_for_each(|file| write_home_file(&start, file))?;
    Ok(LayerHome { start, kept })
}

/// The home directories of a profile in a workspace in which no program runs, each with its lock.
pub(super) fn idle_homes(
    homes: &OwnedFd,
    workspace: &str,
    profile: &str,
) -> Result<Vec<(OwnedFd, StoreLock)>, ToolError> {
    KeptDirectory::idle(homes, HOME_PREFIX, &record_of(profile, workspace))
}

fn record_of(profile: &str, workspace: &str) -> KeptDirectoryRecord {
    KeptDirectoryRecord {
        profile: profile.to_owned(),
        workspace: workspace.to_owned(),
        ..KeptDirectoryRecord::default()
    }
}

fn write_home_file(start: &OwnedFd, file: &HomeFile) -> Result<(), ToolError> {
    let is_plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let parts: Vec<Component<'_>> = file.path.components().collect();
    let Some((name, above)) = parts.split_last().filter(|_| parts.iter().all(is_plain)) else {
        return Err(ToolError::new(ErrorKind::InvalidPath, "a file of the home directory has a path with `..` or `/`"));
    };
    let mut directory = start.try_clone().map_err(store_error)?;
    for part in above {
        directory = open_private_dir(&directory, part.as_os_str().as_bytes()).map_err(errno_store_error)?;
    }
    let flags = OFlags::CREATE | OFlags::EXCL;
    let opened = open_own_file(&directory, Path::new(name), flags).map_err(errno_store_error)?;
    write_all(opened.as_fd(), &file.contents).map_err(errno_store_error)
}
