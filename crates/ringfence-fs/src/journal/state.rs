//! Recorded file states, which the journal compares later.
//!
//! A file is its contents and mode, a link where it leads. A directory that moves is the directory itself, whatever is in
//! it; one that went is also everything in it, by what the file system says of each entry.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{CallContext, ToolError};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::path::name::escape;
use crate::read::content::hash_up_to;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep};
use crate::root::{MountRoot, stat};
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, readlinkat};

/// One thing, as it was when we looked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileState {
    pub(crate) kind: FileStateKind,
    pub(crate) mode: u32,
    /// Of a directory, the bytes of everything in it.
    pub(crate) size: u64,
    /// Of a directory, how much is in it.
    #[serde(default, skip_serializing_if = "is_zero_entries")]
    pub(crate) entries: u64,
    /// 0 if it was not there yet when this was written.
    pub(crate) inode: u64,
    /// Nanoseconds since 1970.
    pub(crate) modified: i64,
    /// Of the contents of a file, or of what is in a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FileStateKind {
    File,
    Directory,
    Link,
    Other,
}

/// How closely a thing is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileStateDepth {
    /// Contents of files, and what is in a directory.
    Recursive,
    /// Contents of files; a directory is only itself.
    Shallow,
}

impl FileState {
    pub(crate) fn from_stat(stamp: &FileStat) -> Self {
        Self {
            kind: match stamp.kind {
                FileKind::File => FileStateKind::File,
                FileKind::Directory => FileStateKind::Directory,
                FileKind::Link => FileStateKind::Link,
                FileKind::Fifo | FileKind::Socket | FileKind::Device => FileStateKind::Other,
            },
            mode: stamp.mode,
            size: if stamp.kind == FileKind::Directory { 0 } else { stamp.size },
            entries: 0,
            inode: stamp.id.inode,
            modified: i64::try_from(stamp.modified).unwrap_or_default(),
            sha256: None,
            target: None,
        }
    }

    /// Something that is not there yet.
    pub(crate) fn planned(kind: FileStateKind) -> Self {
        Self { kind, mode: 0, size: 0, entries: 0, inode: 0, modified: 0, sha256: None, target: None }
    }

    /// A file that was just written.
    pub(crate) fn of_file(stamp: &FileStat, digest: Option<Digest>) -> Self {
        Self { sha256: digest.map(Digest::to_hex), ..Self::from_stat(stamp) }
    }

    /// A file that we hold open. Where it may not be read, or is too large to be hashed, it is known by its identity and
    /// times.
    pub(crate) fn of_open(
        fd: &OwnedFd,
        stamp: &FileStat,
        shown: &str,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        if stamp.size > cx.limits.hash_bytes {
            return Ok(Self::from_stat(stamp));
        }
        let digest = hash_up_to(fd.as_fd(), stamp.size, shown, cx);
        cx.check()?;
        Ok(Self::of_file(stamp, digest.ok()))
    }

    /// What stands at a name in a directory that we hold.
    pub(crate) fn read_at(
        mount: &MountRoot,
        parent: BorrowedFd<'_>,
        name: &[u8],
        how: FileStateDepth,
        cx: &CallContext<'_>,
    ) -> Result<Option<Self>, ToolError> {
        let shown = escape(name);
        let fail = |errno| errno_error(errno, &shown);
        let Some(stamp) = stat(parent, name).map_err(fail)? else { return Ok(None) };
        Ok(Some(match stamp.kind {
            FileKind::File => match mount.open_at(parent, name, OFlags::RDONLY) {
                Ok(fd) => {
                    let stamp = FileStat::from_stat(&fstat(&fd).map_err(fail)?);
                    Self::of_open(&fd, &stamp, &shown, cx)?
                }
                Err(_) => Self::from_stat(&stamp),
            },
            FileKind::Link => {
                let target = readlinkat(parent, name).map_err(fail)?;
                Self { target: Some(escape(target.as_bytes())), ..Self::from_stat(&stamp) }
            }
            FileKind::Directory if how == FileStateDepth::Recursive => {
                let start = mount.resolver.open_child(parent, name).map_err(fail)?;
                let DirectoryDigest { digest, size, entries } = hash_directory(mount, start, &shown, cx)?;
                Self { size, entries, sha256: Some(digest.to_hex()), ..Self::from_stat(&stamp) }
            }
            _ => Self::from_stat(&stamp),
        }))
    }

    /// What it counts as in the quota while it is kept.
    pub(crate) fn cost(&self) -> u64 {
        cost(self.size, self.entries)
    }

    /// How closely something has to be looked at to be compared with this.
    pub(crate) fn depth(&self) -> FileStateDepth {
        if self.kind == FileStateKind::Directory && self.sha256.is_some() {
            FileStateDepth::Recursive
        } else {
            FileStateDepth::Shallow
        }
    }

    /// Whether what is there now is still this.
    pub(crate) fn matches(&self, now: &Self) -> bool {
        let same_one = self.inode == 0 || self.inode == now.inode;
        self.kind == now.kind
            && match self.kind {
                FileStateKind::File => {
                    self.mode == now.mode
                        && self.size == now.size
                        && match (&self.sha256, &now.sha256) {
                            (Some(then), Some(now)) => then == now,
                            _ => same_one && self.modified == now.modified,
                        }
                }
                FileStateKind::Directory => same_one && (self.sha256.is_none() || self.sha256 == now.sha256),
                FileStateKind::Link => self.target == now.target,
                FileStateKind::Other => same_one,
            }
    }

    /// For a person who has to see what differs.
    pub(crate) fn describe(&self) -> String {
        match (self.kind, &self.sha256, &self.target) {
            (FileStateKind::File, Some(sha256), _) => {
                format!("a file of {} bytes, mode {:o}, {sha256}", self.size, self.mode)
            }
            (FileStateKind::File, None, _) => format!("a file of {} bytes, mode {:o}", self.size, self.mode),
            (FileStateKind::Directory, Some(sha256), _) => {
                format!("a directory with {} bytes in it, {sha256}", self.size)
            }
            (FileStateKind::Directory, None, _) => "a directory".to_owned(),
            // Where it leads may be a path of the host.
            (FileStateKind::Link, _, Some(_)) => "a link".to_owned(),
            (FileStateKind::Link | FileStateKind::Other, ..) => "something else".to_owned(),
        }
    }
}

/// A file takes room even if it is empty: its inode, and its name in a directory.
const ENTRY_OVERHEAD: u64 = 4096;

/// What so many bytes, with so many entries below the thing itself, count as in the quota.
pub(crate) fn cost(bytes: u64, entries: u64) -> u64 {
    entries.saturating_add(1).saturating_mul(ENTRY_OVERHEAD).saturating_add(bytes)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "it is what `skip_serializing_if` gives")]
fn is_zero_entries(entries: &u64) -> bool {
    *entries == 0
}

/// What is in a directory.
struct DirectoryDigest {
    /// All of it as one number.
    digest: Digest,
    size: u64,
    entries: u64,
}

fn hash_directory(
    mount: &MountRoot,
    start: OwnedFd,
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<DirectoryDigest, ToolError> {
    let (mut hasher, mut size, mut entries) = (Sha256Hasher::default(), 0u64, 0u64);
    let mut walk = TreeWalk::with_temp_visibility(TempVisibility::Visible, mount, start, shown, cx)?;
    while let Some(step) = walk.next()? {
        let WalkStep::Entry(entry) = step else { continue };
        let Some(stamp) = walk.stat(&entry)? else { continue };
        // The times of a directory, and the number of names that a file has, change without it being another.
        let (bytes, modified) = if stamp.kind == FileKind::Directory { (0, 0) } else { (stamp.size, stamp.modified) };
        let facts = format!("{}\0{:?}\0{:o}\0{bytes}\0{modified}\0", stamp.id.inode, stamp.kind, stamp.mode);
        hasher.update(facts.as_bytes());
        hasher.update(&walk.path_of(&entry.name));
        hasher.update(b"\0");
        size = size.saturating_add(bytes);
        entries += 1;
        if stamp.kind == FileKind::Directory {
            walk.descend(&entry)?.map_err(|errno| errno_error(errno, shown))?;
        }
    }
    Ok(DirectoryDigest { digest: hasher.finish(), size, entries })
}
