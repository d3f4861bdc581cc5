//! What stands at a place, as the journal writes it down and later compares.
//!
//! A file is its contents and mode, a link where it leads. A directory that moves is the directory itself, whatever is in
//! it; one that went is also everything in it, by what the file system says of each entry.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{Context, ToolError};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::again::{fstat, readlinkat};
use crate::content::hash_up_to;
use crate::digest::{Digest, Hasher};
use crate::fault::fault;
use crate::mount::{Mount, look};
use crate::name::show;
use crate::stamp::{Kind, Stamp};
use crate::walk::{Ours, Step, Walk};

/// One thing, as it was when we looked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) kind: Form,
    pub(crate) mode: u32,
    /// Of a directory, the bytes of everything in it.
    pub(crate) size: u64,
    /// Of a directory, how much is in it.
    #[serde(default, skip_serializing_if = "is_none")]
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
pub(crate) enum Form {
    File,
    Directory,
    Link,
    Other,
}

/// How closely a thing is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Contents of files, and what is in a directory.
    Whole,
    /// Contents of files; a directory is only itself.
    Itself,
}

impl State {
    pub(crate) fn of_stamp(stamp: &Stamp) -> Self {
        Self {
            kind: match stamp.kind {
                Kind::File => Form::File,
                Kind::Directory => Form::Directory,
                Kind::Link => Form::Link,
                Kind::Fifo | Kind::Socket | Kind::Device => Form::Other,
            },
            mode: stamp.mode,
            size: if stamp.kind == Kind::Directory { 0 } else { stamp.size },
            entries: 0,
            inode: stamp.id.inode,
            modified: i64::try_from(stamp.modified).unwrap_or_default(),
            sha256: None,
            target: None,
        }
    }

    /// Something that is not there yet.
    pub(crate) fn to_be(kind: Form) -> Self {
        Self { kind, mode: 0, size: 0, entries: 0, inode: 0, modified: 0, sha256: None, target: None }
    }

    /// A file that was just written.
    pub(crate) fn of_file(stamp: &Stamp, digest: Option<Digest>) -> Self {
        Self { sha256: digest.map(Digest::to_hex), ..Self::of_stamp(stamp) }
    }

    /// A file that we hold open. Where it may not be read, or is too large to be hashed, it is known by its identity and
    /// times.
    pub(crate) fn of_open(fd: &OwnedFd, stamp: &Stamp, shown: &str, cx: &Context<'_>) -> Result<Self, ToolError> {
        if stamp.size > cx.limits.hash_bytes {
            return Ok(Self::of_stamp(stamp));
        }
        let digest = hash_up_to(fd.as_fd(), stamp.size, shown, cx);
        cx.check()?;
        Ok(Self::of_file(stamp, digest.ok()))
    }

    /// What stands at a name in a directory that we hold.
    pub(crate) fn at(
        mount: &Mount,
        parent: BorrowedFd<'_>,
        name: &[u8],
        how: Look,
        cx: &Context<'_>,
    ) -> Result<Option<Self>, ToolError> {
        let shown = show(name);
        let fail = |errno| fault(errno, &shown);
        let Some(stamp) = look(parent, name).map_err(fail)? else { return Ok(None) };
        Ok(Some(match stamp.kind {
            Kind::File => match mount.open_at(parent, name, OFlags::RDONLY) {
                Ok(fd) => {
                    let stamp = Stamp::of(&fstat(&fd).map_err(fail)?);
                    Self::of_open(&fd, &stamp, &shown, cx)?
                }
                Err(_) => Self::of_stamp(&stamp),
            },
            Kind::Link => {
                let target = readlinkat(parent, name).map_err(fail)?;
                Self { target: Some(show(target.as_bytes())), ..Self::of_stamp(&stamp) }
            }
            Kind::Directory if how == Look::Whole => {
                let start = mount.resolver.open_child(parent, name).map_err(fail)?;
                let Inside { digest, size, entries } = inside(mount, start, &shown, cx)?;
                Self { size, entries, sha256: Some(digest.to_hex()), ..Self::of_stamp(&stamp) }
            }
            _ => Self::of_stamp(&stamp),
        }))
    }

    /// What it counts as in the quota while it is kept.
    pub(crate) fn cost(&self) -> u64 {
        cost(self.size, self.entries)
    }

    /// How closely something has to be looked at to be compared with this.
    pub(crate) fn look(&self) -> Look {
        if self.kind == Form::Directory && self.sha256.is_some() { Look::Whole } else { Look::Itself }
    }

    /// Whether what is there now is still this.
    pub(crate) fn is(&self, now: &Self) -> bool {
        let same_one = self.inode == 0 || self.inode == now.inode;
        self.kind == now.kind
            && match self.kind {
                Form::File => {
                    self.mode == now.mode
                        && self.size == now.size
                        && match (&self.sha256, &now.sha256) {
                            (Some(then), Some(now)) => then == now,
                            _ => same_one && self.modified == now.modified,
                        }
                }
                Form::Directory => same_one && (self.sha256.is_none() || self.sha256 == now.sha256),
                Form::Link => self.target == now.target,
                Form::Other => same_one,
            }
    }

    /// For a person who has to see what differs.
    pub(crate) fn described(&self) -> String {
        match (self.kind, &self.sha256, &self.target) {
            (Form::File, Some(sha256), _) => format!("a file of {} bytes, mode {:o}, {sha256}", self.size, self.mode),
            (Form::File, None, _) => format!("a file of {} bytes, mode {:o}", self.size, self.mode),
            (Form::Directory, Some(sha256), _) => format!("a directory with {} bytes in it, {sha256}", self.size),
            (Form::Directory, None, _) => "a directory".to_owned(),
            // Where it leads may be a path of the host.
            (Form::Link, _, Some(_)) => "a link".to_owned(),
            (Form::Link | Form::Other, ..) => "something else".to_owned(),
        }
    }
}

/// A file takes room even if it is empty: its inode, and its name in a directory.
const OVERHEAD: u64 = 4096;

/// What so many bytes, with so many entries below the thing itself, count as in the quota.
pub(crate) fn cost(bytes: u64, entries: u64) -> u64 {
    entries.saturating_add(1).saturating_mul(OVERHEAD).saturating_add(bytes)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "it is what `skip_serializing_if` gives")]
fn is_none(entries: &u64) -> bool {
    *entries == 0
}

/// What is in a directory.
struct Inside {
    /// All of it as one number.
    digest: Digest,
    size: u64,
    entries: u64,
}

fn inside(mount: &Mount, start: OwnedFd, shown: &str, cx: &Context<'_>) -> Result<Inside, ToolError> {
    let (mut hasher, mut size, mut entries) = (Hasher::default(), 0u64, 0u64);
    let mut walk = Walk::seeing(Ours::Seen, mount, start, shown, cx)?;
    while let Some(step) = walk.next()? {
        let Step::Entry(entry) = step else { continue };
        let Some(stamp) = walk.look(&entry)? else { continue };
        // The times of a directory, and the number of names that a file has, change without it being another.
        let (bytes, modified) = if stamp.kind == Kind::Directory { (0, 0) } else { (stamp.size, stamp.modified) };
        let facts = format!("{}\0{:?}\0{:o}\0{bytes}\0{modified}\0", stamp.id.inode, stamp.kind, stamp.mode);
        hasher.update(facts.as_bytes());
        hasher.update(&walk.path_of(&entry.name));
        hasher.update(b"\0");
        size = size.saturating_add(bytes);
        entries += 1;
        if stamp.kind == Kind::Directory {
            walk.descend(&entry)?.map_err(|errno| fault(errno, shown))?;
        }
    }
    Ok(Inside { digest: hasher.finish(), size, entries })
}
