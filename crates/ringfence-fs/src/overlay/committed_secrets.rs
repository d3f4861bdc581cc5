//! Committed secrets: files with names of secrets that the index of a repository has.
//!
//! A program finds such a file empty, but git gives it the contents from the objects, which may be packed and cannot be
//! masked one by one. So it counts as in reach of every program. An index that cannot be read counts as one that has a
//! secret.
//!
//! Not here: what only the history has. It is too large to be searched before a program.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use ringfence_kernel::{CallContext, ToolError, sensitivity};
use rustix::fs::OFlags;

use crate::git::{GitFile, GitIndex, GitReadBudget, GitReadError};
use crate::mount::Mount;
use crate::path::name::escape;
use crate::path::relative::{join, range_below, split};
use crate::root::stat;
use crate::sys::stat::{FileKind, FileStat};

/// Name of the index in a repository.
const INDEX: &[u8] = b"index";

/// The indexes of a mount by their paths.
#[derive(Debug, Default)]
pub(super) struct CommittedSecrets(BTreeMap<Vec<u8>, ScannedIndex>);

/// An index as it was read. It is read again when its stat is another.
#[derive(Debug)]
struct ScannedIndex {
    stat: FileStat,
    /// The path of one below the root of the mount.
    secret: Option<Vec<u8>>,
}

impl CommittedSecrets {
    /// The path of one, or of an index that cannot be read.
    pub(super) fn first(&self) -> Option<&[u8]> {
        self.0.values().find_map(|index| index.secret.as_deref())
    }

    /// Reads the entry at `path` if it is an index that changed. Returns whether it may become one.
    pub(super) fn scan(
        &mut self,
        mount: &Mount,
        cx: &CallContext<'_>,
        directory: BorrowedFd<'_>,
        path: &[u8],
    ) -> Result<bool, ToolError> {
        let (parent, name) = split(path);
        if name != INDEX {
            return Ok(false);
        }
        let found = stat(directory, name).ok().flatten().filter(|found| found.kind == FileKind::File);
        let is_repository = matches!(stat(directory, b"HEAD"), Ok(Some(_)));
        let Some(found) = found.filter(|_| is_repository) else {
            self.0.remove(path);
            return Ok(true);
        };
        if self.0.get(path).is_none_or(|known| known.stat != found) {
            let secret = match read(mount, cx, directory, found.size) {
                Ok(None) => None,
                // The paths of other repositories, such as submodules, begin in a directory that only their settings name.
                Ok(Some(secret)) if split(parent).1 == b".git" => Some(join(split(parent).0, &secret)),
                Ok(Some(_)) | Err(_) => Some(path.to_vec()),
            };
            // A call that ended read nothing.
            cx.check()?;
            self.0.insert(path.to_vec(), ScannedIndex { stat: found, secret });
        }
        Ok(true)
    }

    /// Forgets an entry that does not exist any more.
    pub(super) fn remove(&mut self, path: &[u8]) {
        self.0.remove(path);
    }

    /// Forgets what was found below a directory.
    pub(super) fn forget_below(&mut self, path: &[u8]) {
        let (from, to) = range_below(path);
        let below: Vec<_> = self.0.range(from..to).map(|(path, _)| path.clone()).collect();
        below.iter().for_each(|path| _ = self.0.remove(path));
    }
}

fn read(
    mount: &Mount,
    cx: &CallContext<'_>,
    directory: BorrowedFd<'_>,
    size: u64,
) -> Result<Option<Vec<u8>>, GitReadError> {
    let fd = mount.open_at(directory, INDEX, OFlags::RDONLY).map_err(|_| GitReadError("a file cannot be read"))?;
    let bytes = GitFile { fd, size }.read_whole(&GitReadBudget::new(cx))?;
    GitIndex::find_file(&bytes, |path| sensitivity(&escape(path)).secret)
}
