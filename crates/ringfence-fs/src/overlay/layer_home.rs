//! Home directories of wrapped programs, kept from run to run.
//!
//! Programs of one profile in one workspace share a home directory: what it starts with is written again for every run, and
//! what the programs changed stays in the upper directory above it, but for files that are renewed.
//!
//! Not here: layers on the workspace (`layer_store.rs`), and files that go back to the person (`home_keep.rs`).

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use ringfence_kernel::{CallContext, ErrorKind, HomeFile, LayerDescription, ToolError};
use rustix::fs::{AtFlags, OFlags};

use crate::overlay::kept_directory::{KeptDirectory, KeptDirectoryRecord};
use crate::overlay::store_directory::{StoreLock, errno_store_error, store_error};
use crate::overlay::tree_removal::{open_emptied, remove_tree};
use crate::root::stat;
use crate::sys::own_files::{open_own_file, open_private_dir, write_all};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, unlinkat};

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
    for file in &about.home_files {
        write_home_file(&start, file)?;
        if file.is_renewed {
            renew_home_file(&kept.overlay.upper, file, cx)?;
        }
    }
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

/// The directories of a file, and its name.
fn parts_of(file: &HomeFile) -> Result<(Vec<&[u8]>, &[u8]), ToolError> {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let is_plain = file.path.components().all(plain);
    let mut parts: Vec<&[u8]> = file.path.iter().map(OsStrExt::as_bytes).collect();
    match parts.pop().filter(|_| is_plain) {
        Some(name) => Ok((parts, name)),
        None => Err(ToolError::new(ErrorKind::InvalidPath, "a file of the home directory has a path with `..` or `/`")),
    }
}

fn write_home_file(start: &OwnedFd, file: &HomeFile) -> Result<(), ToolError> {
    let (above, name) = parts_of(file)?;
    let mut directory = start.try_clone().map_err(store_error)?;
    for part in above {
        directory = open_private_dir(&directory, part).map_err(errno_store_error)?;
    }
    write_new(&directory, name, &file.contents)
}

fn write_new(directory: &OwnedFd, name: &[u8], contents: &[u8]) -> Result<(), ToolError> {
    let flags = OFlags::CREATE | OFlags::EXCL;
    let opened = open_own_file(directory, Path::new(OsStr::from_bytes(name)), flags).map_err(errno_store_error)?;
    write_all(opened.as_fd(), contents).map_err(errno_store_error)
}

/// Removes what programs made of a file, or put in its way. The upper directory is theirs and therefore untrusted. Where they
/// have its directory, which may hide what is below it, the file is written there too.
fn renew_home_file(upper: &OwnedFd, file: &HomeFile, cx: &CallContext<'_>) -> Result<(), ToolError> {
    let (above, name) = parts_of(file)?;
    let device = FileStat::from_stat(&fstat(upper).map_err(errno_store_error)?).id.device;
    let mut directory = upper.try_clone().map_err(store_error)?;
    for part in above {
        match stat(directory.as_fd(), part).map_err(errno_store_error)? {
            Some(found) if found.kind == FileKind::Directory => {
                directory = open_emptied(directory.as_fd(), part, device).map_err(errno_store_error)?;
            }
            Some(_) => return unlinkat(&directory, part, AtFlags::empty()).map_err(errno_store_error),
            None => return Ok(()),
        }
    }
    remove_tree(directory.as_fd(), name, cx)?;
    write_new(&directory, name, &file.contents)
}
