//! Home directories of wrapped programs, kept from run to run.
//!
//! Programs of one profile in one workspace share a home directory: what it starts with is written anew for every run, and
//! what the programs changed stays in the upper directory above it. Of two runs at once, the second gets another one.
//!
//! Not here: layers on the workspace (`layer_store.rs`), and files that go back to the person (`home_keep.rs`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use ringfence_kernel::{CallContext, ErrorKind, HomeFile, LayerDescription, OverlayDirectories, ToolError};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::overlay::layer_record::write_json;
use crate::overlay::store_directory::{
    UPPER, WORK, errno_store_error, has_name, now_nanos, open_checked, store_error, try_lock,
};
use crate::overlay::tree_removal::remove_tree;
use crate::read::digest::content_id;
use crate::root::stat;
use crate::sys::own_files::{open_own_file, open_private_dir, write_all};

/// The directory of the home directories, below the state directory.
pub(super) const HOMES: &str = "homes";

/// What a home directory starts with.
const START: &[u8] = b"start";

pub(super) const HOME_ABOUT: &str = "about.json";
const HOME_ABOUT_NEW: &str = "about.new";

/// Programs of one profile that run in one workspace at once.
const MOST_AT_ONCE: usize = 64;

/// A home directory that a program runs with.
#[derive(Debug)]
pub(super) struct LayerHome {
    pub(super) start: OwnedFd,
    pub(super) directories: OverlayDirectories,
    _lock: OwnedFd,
}

/// The description of a home directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HomeRecord {
    pub(super) profile: String,
    pub(super) workspace: String,
    /// Start of the last program, in nanoseconds since 1970.
    pub(super) used: u64,
}

/// The home directory for a program that starts now, with its files written.
pub(super) fn create_home(
    homes: &OwnedFd,
    workspace: &str,
    about: &LayerDescription,
    cx: &CallContext<'_>,
) -> Result<LayerHome, ToolError> {
    for name in home_names(&about.profile, workspace) {
        let directory = open_checked(homes, name.as_bytes())?;
        let Some(lock) = try_lock(&directory)? else { continue };
        if !has_name(homes, name.as_bytes(), &directory)? {
            continue;
        }
        let record = HomeRecord { profile: about.profile.clone(), workspace: workspace.to_owned(), used: now_nanos() };
        write_json(&directory, [HOME_ABOUT_NEW, HOME_ABOUT], &record).map_err(store_error)?;
        remove_tree(directory.as_fd(), START, cx)?;
        let start = open_private_dir(&directory, START).map_err(errno_store_error)?;
        about.home_files.iter().try_for_each(|file| write_home_file(&start, file))?;
        // The overlay takes a work directory of an earlier run only if it is empty.
        remove_tree(directory.as_fd(), WORK, cx)?;
        let upper = open_private_dir(&directory, UPPER).map_err(errno_store_error)?;
        let work = open_private_dir(&directory, WORK).map_err(errno_store_error)?;
        return Ok(LayerHome { start, directories: OverlayDirectories { upper, work }, _lock: lock });
    }
    let message = format!("{MOST_AT_ONCE} programs with this profile run in this workspace already");
    Err(ToolError::new(ErrorKind::Unavailable, message))
}

/// Names of the home directories of one profile in one workspace.
fn home_names(profile: &str, workspace: &str) -> impl Iterator<Item = String> {
    let key = content_id(format!("{profile}\0{workspace}").as_bytes());
    let key = format!("h-{}", &key[..16]);
    (1..=MOST_AT_ONCE).map(move |number| if number == 1 { key.clone() } else { format!("{key}-{number}") })
}

/// The home directories of a profile in a workspace in which no program runs, each with its lock.
pub(super) fn idle_homes(
    homes: &OwnedFd,
    workspace: &str,
    profile: &str,
) -> Result<Vec<(OwnedFd, OwnedFd)>, ToolError> {
    let mut found = Vec::new();
    for name in home_names(profile, workspace) {
        if stat(homes.as_fd(), name.as_bytes()).map_err(errno_store_error)?.is_none() {
            continue;
        }
        let directory = open_checked(homes, name.as_bytes())?;
        let Some(lock) = try_lock(&directory)? else { continue };
        if has_name(homes, name.as_bytes(), &directory)? {
            found.push((directory, lock));
        }
    }
    Ok(found)
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
