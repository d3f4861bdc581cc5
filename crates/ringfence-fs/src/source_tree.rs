//! Source trees: the files of a directory with their stats, and their contents, for an index of another crate.
//!
//! A walk lists what a search would read: no ignored or hidden entries, no secrets, and for each file whether the policy lets
//! this call read it. Contents are opened as for any read, and those of secrets never are.
//!
//! Not here: listings that are kept between calls (`source_listing.rs`), and the index (`ringfence-code-search`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::{CallContext, ErrorKind, PolicyAction, PolicyResource, ResourceAccess, ToolError, sensitivity};

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::{LocatedPath, Mount};
use crate::path::guest::GuestPath;
use crate::path::name::{escape, unescape};
use crate::read::content::read_up_to;
use crate::root::walk::{TreeWalk, WalkStep};
use crate::root::watched_directories::WatchedDirectories;
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::FileStat;
use crate::sys::syscall::fstat;

/// Directories without sources of the project.
const EXCLUDED_DIRECTORIES: &[&[u8]] = &[b".git", b"node_modules", b"__pycache__"];

/// A file or a directory whose sources are read.
#[derive(Debug)]
pub struct SourceTree {
    located: LocatedPath,
    resource: PolicyResource,
    start: SourceStart,
}

#[derive(Debug)]
enum SourceStart {
    Directory(OwnedFd),
    File(SourceStamp),
}

/// A file of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceEntry {
    /// From the root of the mount.
    pub path: String,
    pub stamp: SourceStamp,
    /// The policy lets the call read it as it may read the tree.
    pub is_readable: bool,
}

/// The files that a walk found.
#[derive(Debug)]
pub(crate) struct WalkedSources {
    pub(crate) entries: Vec<SourceEntry>,
    /// A file may have a name elsewhere, by which it changes without a report here.
    pub(crate) has_other_names: bool,
}

/// State of a file. While it is the same and older than a read, so are the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStamp {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i128,
    /// The same of the last change of the inode, which no program sets.
    pub changed: i128,
}

/// Contents of a file.
#[derive(Clone, Debug)]
pub struct SourceContent {
    pub bytes: Vec<u8>,
    /// Its state before and after it was read are the same.
    pub stamp: Option<SourceStamp>,
    /// For the policy.
    pub resource: PolicyResource,
}

/// Reads files of a mount by their paths from its root.
#[derive(Clone, Debug)]
pub struct SourceReader {
    mount: Arc<Mount>,
}

impl SourceStamp {
    pub(crate) fn of(stat: &FileStat) -> Self {
        let FileStat { id, size, modified, changed, .. } = *stat;
        Self { device: id.device, inode: id.inode, size, modified, changed }
    }
}

impl Fence {
    /// The tree at a path of the standard dialect; the workspace where none is given.
    pub fn source_tree(&self, path: Option<String>, cx: &CallContext<'_>) -> Result<SourceTree, ToolError> {
        let located = self.locate_arg(&PathArg::directory(path), cx)?;
        match located.open_directory(cx) {
            Ok(opened) => {
                let resource = located.resource(opened.resolved);
                Ok(SourceTree { located, resource, start: SourceStart::Directory(opened.fd) })
            }
            Err(error) if error.kind == ErrorKind::WrongType => {
                let mut opened = located.open_content(cx)?;
                let resource = located.resource_of(&mut opened, cx)?;
                Ok(SourceTree { located, resource, start: SourceStart::File(SourceStamp::of(&opened.stat)) })
            }
            Err(error) => Err(error),
        }
    }
}

impl SourceTree {
    /// As replies spell it.
    pub fn shown(&self) -> &str {
        &self.located.shown
    }

    /// The access that a search of it is.
    pub fn access(&self) -> ResourceAccess {
        ResourceAccess { action: PolicyAction::Read, resource: self.resource.clone() }
    }

    /// Its path from the root of the mount; empty for the root itself.
    pub fn path(&self) -> &str {
        match self.resource.resolved_path.as_deref().unwrap_or(&self.resource.requested_path) {
            "." => "",
            path => path,
        }
    }

    /// Identifies the directory that is mounted, also in other processes.
    pub fn mount_id(&self) -> String {
        let root = &self.located.mount.root;
        let id = self.located.mount.id;
        let born = FileRef::open(root).birth_time().unwrap_or_default();
        format!("{:x}-{:x}-{born}", id.device, id.inode)
    }

    /// Reads its files.
    pub fn reader(&self) -> SourceReader {
        SourceReader { mount: Arc::clone(&self.located.mount) }
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        &self.located.mount
    }

    /// Whether it is all of a mount.
    pub(crate) fn is_whole_mount(&self) -> bool {
        self.path().is_empty()
    }

    /// Every file with a wanted path that is not a secret, in the order of paths. Where there are watches, every directory is
    /// watched before it is listed.
    pub(crate) fn walk(
        self,
        wanted: impl Fn(&str) -> bool,
        mut watches: Option<&mut WatchedDirectories>,
        cx: &CallContext<'_>,
    ) -> Result<WalkedSources, ToolError> {
        let above = self.path().to_owned();
        let start = match self.start {
            SourceStart::Directory(start) => start,
            SourceStart::File(stamp) => {
                let is_wanted = wanted(&above) && !self.resource.effective_sensitivity().secret;
                let entry = SourceEntry { path: above, stamp, is_readable: true };
                let entries = if is_wanted { vec![entry] } else { Vec::new() };
                return Ok(WalkedSources { entries, has_other_names: true });
            }
        };
        if let Some(watches) = &mut watches {
            watches.add(b"", start.as_fd());
        }
        let mount = &self.located.mount;
        let of_whole = cx.evaluate(&ResourceAccess { action: PolicyAction::Read, resource: self.resource.clone() });
        let mut rules = self.located.ignore_rules_above(&self.resource, cx);
        let mut walk = TreeWalk::new(mount, start, &self.located.shown, cx)?;
        rules.enter(&walk, b"", cx)?;
        let (mut entries, mut has_other_names) = (Vec::new(), false);
        while let Some(step) = walk.next()? {
            let entry = match step {
                WalkStep::Entry(entry) => entry,
                WalkStep::Leave(_) => {
                    rules.leave_depth(walk.depth());
                    continue;
                }
            };
            let path = walk.path_of(&entry.name);
            let below_start = escape(&path);
            let real = if above.is_empty() { below_start.clone() } else { format!("{above}/{below_start}") };
            let is_directory = walk.is_directory(&entry)?;
            let access = ResourceAccess { action: PolicyAction::Read, resource: self.resource.join(&below_start) };
            let is_wanted = !is_directory && wanted(&real);
            if !is_directory {
                // That of a wanted file is computed once, for the policy too.
                let by_name = if is_wanted { access.resource.effective_sensitivity() } else { sensitivity(&real) };
                let named = by_name.union(mount.sensitive_files.linked().sensitivity(&unescape(&real)));
                // Also what is left out: another name of it may not be.
                mount.observe_named(named, walk.directory()?, &entry.name);
                if named.secret {
                    continue;
                }
            }
            if entry.name.starts_with(b".") || rules.ignores(&path, is_directory) {
                continue;
            }
            if is_directory {
                let is_excluded = EXCLUDED_DIRECTORIES.contains(&entry.name.as_slice());
                let watch = |directory: BorrowedFd<'_>| {
                    if let Some(watches) = &mut watches {
                        watches.add(&path, directory);
                    }
                };
                if !is_excluded && walk.descend_after(&entry, watch)?.is_ok() {
                    rules.enter(&walk, &path, cx)?;
                }
                continue;
            }
            if !is_wanted || !walk.is_file(&entry)? {
                continue;
            }
            let Some(stat) = walk.stat(&entry)? else { continue };
            let is_readable = cx.evaluate(&access).strictness() <= of_whole.strictness();
            has_other_names |= stat.links > 1;
            entries.push(SourceEntry { path: real, stamp: SourceStamp::of(&stat), is_readable });
        }
        Ok(WalkedSources { entries, has_other_names })
    }
}

impl SourceReader {
    /// A file by its path from the root, up to a length. `None` for one that is longer, and for a secret.
    pub fn read(&self, path: &str, most: u64, cx: &CallContext<'_>) -> Result<Option<SourceContent>, ToolError> {
        let path = GuestPath::from_kernel(&unescape(path));
        let shown = self.shown(&path.display());
        let located = LocatedPath { mount: Arc::clone(&self.mount), path, shown };
        let mut opened = located.open_content(cx)?;
        let resource = located.resource_of(&mut opened, cx)?;
        if opened.stat.size > most || resource.effective_sensitivity().secret {
            return Ok(None);
        }
        let fail = |errno| errno_error(errno, &located.shown);
        let bytes = read_up_to(&opened.fd, most, cx).map_err(fail)?;
        let after = FileStat::from_stat(&fstat(&opened.fd).map_err(fail)?);
        let before = SourceStamp::of(&opened.stat);
        let stamp = (before == SourceStamp::of(&after) && bytes.len() as u64 == before.size).then_some(before);
        Ok(Some(SourceContent { bytes, stamp, resource }))
    }

    /// A path from the root as replies spell it.
    pub fn shown(&self, path: &str) -> String {
        if self.mount.shows_alias { format!("@{}/{path}", self.mount.alias) } else { path.to_owned() }
    }
}
