//! Masked paths: files and directories that a program saw empty, because they are secrets or it may not read them.
//!
//! Git in a program takes the empty mask for the contents. So an empty file that it stages at a masked path, and the
//! loss of the entries of a masked directory, do not count as the program's changes.
//!
//! Not here: which paths are masked (`view.rs`), and reading what git staged (`repository_data.rs`).

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;

use ringfence_kernel::{ErrorKind, ExposedDir, ToolError};

use crate::git::{EMPTY_BLOB, GitOid};
use crate::mount::Mount;
use crate::path::name::escape;
use crate::path::relative::{range_below, split};
use crate::root::{open_no_follow, stat};
use crate::sys::stat::FileKind;

/// Paths below the root that a program saw empty.
#[derive(Debug, Default)]
pub(super) struct MaskedPaths(BTreeSet<Vec<u8>>);

/// An entry of a git tree or index that a program made, at a path of the worktree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GitStagedEntry {
    Object(GitOid),
    Removed,
    /// In a tree that was there before the program ran.
    Known,
}

impl MaskedPaths {
    pub(super) fn of(shown: &ExposedDir) -> Self {
        Self(shown.masked.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect())
    }

    pub(super) fn from_paths(paths: impl Iterator<Item = Vec<u8>>) -> Self {
        Self(paths.collect())
    }

    /// A masked path that is this one, above it, or in it where it is a directory that goes.
    pub(super) fn affected_by(&self, path: &[u8], goes_whole: bool) -> Option<&[u8]> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let covering = ends.chain([path.len()]).find_map(|end| self.0.get(&path[..end]));
        let (from, to) = range_below(path);
        let inside = || self.0.range(from..to).next();
        covering.or_else(|| inside().filter(|_| goes_whole)).map(Vec::as_slice)
    }

    /// The masked path that git took the mask of for its contents, if it did.
    pub(super) fn mistaken<'p>(&self, mount: &Mount, path: &'p [u8], staged: GitStagedEntry) -> Option<&'p [u8]> {
        if matches!(staged, GitStagedEntry::Known) || matches!(staged, GitStagedEntry::Object(oid) if oid != EMPTY_BLOB)
        {
            return None;
        }
        let above = |path: &&'p [u8]| Some(split(path).0).filter(|above| !above.is_empty());
        let masked = std::iter::successors(Some(path), above).find(|path| self.0.contains(*path))?;
        let (parent, name) = split(masked);
        let found = open_no_follow(mount, parent).and_then(|parent| stat(parent.as_fd(), name).ok()?)?;
        let is_mistaken = match found.kind {
            FileKind::Directory => staged == GitStagedEntry::Removed,
            // An empty file looks the same behind a mask.
            _ => staged == GitStagedEntry::Object(EMPTY_BLOB) && masked == path && found.size > 0,
        };
        is_mistaken.then_some(masked)
    }
}

/// The error for a repository in which git staged the mask of a path. `path` is in the worktree.
pub(super) fn staged_mask(path: &[u8], staged: GitStagedEntry) -> ToolError {
    let path = escape(path);
    let what = match staged {
        GitStagedEntry::Removed => "git staged the removal of what is in it",
        GitStagedEntry::Object(_) | GitStagedEntry::Known => "git staged an empty file",
    };
    let message = format!("`{path}` is masked in programs, so {what}; no changes to the repository were kept");
    let hint = format!("run `git restore --staged {path}`, or commit without it");
    ToolError::new(ErrorKind::PermissionDenied, message).hint(&hint)
}
