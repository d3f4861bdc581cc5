//! Effects of a change on one path, and whether one is seen to have happened.

use std::os::fd::AsFd as _;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::journal::images::PreImageStore;
use crate::journal::state::{FileState, FileStateKind};
use crate::path::name::unescape;
use crate::path::relative::split;
use crate::root::{MountRoot, parent_at, stat};
use crate::sys::stat::FileStat;

/// One effect. Paths are below the root, in the text form of `path/name.rs`; an image is a name in the image store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "lowercase")]
pub(crate) enum JournalEffect {
    /// An entry was created where there was none. If it came from the image store, its image had this name.
    Created {
        path: String,
        after: FileState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<String>,
    },
    /// The entry, or a copy of it, is in the image store now.
    Removed {
        path: String,
        before: FileState,
        image: String,
        #[serde(default)]
        copied: bool,
    },
    /// The old entry is in the image store now, or a copy of it where it has other hard links.
    Replaced {
        path: String,
        before: FileState,
        after: FileState,
        image: String,
        #[serde(default)]
        copied: bool,
    },
    Moved {
        from: String,
        to: String,
        state: FileState,
    },
    /// Bytes came to the end of a file.
    Appended {
        path: String,
        before: FileState,
        after: FileState,
    },
    /// The old entry was deleted permanently.
    Lost {
        path: String,
    },
    /// The permissions of a directory are others.
    Mode {
        path: String,
        inode: u64,
        before: u32,
        after: u32,
    },
}

impl JournalEffect {
    /// Every path that it is about.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Self::Created { path, .. }
            | Self::Removed { path, .. }
            | Self::Replaced { path, .. }
            | Self::Appended { path, .. }
            | Self::Mode { path, .. }
            | Self::Lost { path } => (path, None),
            Self::Moved { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(one).chain(other).map(String::as_str)
    }

    /// The pre-image that it needs, and what that counts as in the quota.
    pub(crate) fn image(&self) -> Option<(&str, u64)> {
        match self {
            Self::Removed { before, image, .. } | Self::Replaced { before, image, .. } => Some((image, before.cost())),
            Self::Created { .. }
            | Self::Moved { .. }
            | Self::Appended { .. }
            | Self::Lost { .. }
            | Self::Mode { .. } => None,
        }
    }

    /// A copy that was made for it before it happened.
    pub(crate) fn copy(&self) -> Option<&str> {
        match self {
            Self::Replaced { image, copied: true, .. } | Self::Removed { image, copied: true, .. } => Some(image),
            _ => None,
        }
    }

    pub(crate) fn makes_directory(&self) -> bool {
        matches!(self, Self::Created { after, .. } if after.kind == FileStateKind::Directory)
    }

    /// Whether it happened, by what is there.
    pub(crate) fn has_happened(&self, mount: &MountRoot, keep: Option<&PreImageStore>) -> Result<bool, Errno> {
        let kept = |image: &str| {
            let found = keep.map(|keep| stat(keep.fd(), image.as_bytes())).transpose()?;
            Ok(found.flatten().map(|stamp| stamp.id.inode))
        };
        let at = |path: &str| stat_at(mount, path);
        let stands = |path: &str, state: &FileState| {
            Ok(at(path)?.is_some_and(|found| match state.inode {
                0 => FileState::from_stat(&found).kind == state.kind,
                inode => found.id.inode == inode,
            }))
        };
        match self {
            Self::Created { path, after, .. } => stands(path, after),
            Self::Removed { before, image, copied, .. } => Ok(!copied && kept(image)? == Some(before.inode)),
            Self::Replaced { path, before, after, image, copied } => {
                Ok(stands(path, after)? || (!copied && kept(image)? == Some(before.inode)))
            }
            Self::Moved { to, state, .. } => stands(to, state),
            Self::Appended { path, after, .. } => {
                Ok(at(path)?.is_some_and(|found| found.id.inode == after.inode && found.size >= after.size))
            }
            Self::Lost { path: _ } => Ok(false),
            Self::Mode { path, inode, after, .. } => {
                Ok(at(path)?.is_some_and(|found| found.id.inode == *inode && found.mode == *after))
            }
        }
    }
}

fn stat_at(mount: &MountRoot, path: &str) -> Result<Option<FileStat>, Errno> {
    let path = unescape(path);
    let (parent, name) = split(&path);
    let Some(parent) = parent_at(mount, parent)? else { return Ok(None) };
    stat(parent.as_fd(), name)
}
