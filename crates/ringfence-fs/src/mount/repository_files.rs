//! Files of a git repository in the workspace as it is, for the repository reader.
//!
//! Links are not followed, and a file that is a link is an error.
//!
//! Not here: what the files mean (`git/`).

use std::os::fd::AsFd as _;

use rustix::fs::OFlags;

use crate::git::{GitFile, GitReadError, RepositoryFiles};
use crate::mount::Mount;
use crate::path::relative::{join, split};
use crate::root::{open_no_follow, stat};
use crate::sys::own_files::names_in;
use crate::sys::stat::FileKind;

/// Most names of a directory of a repository that are examined.
const MOST_NAMES: usize = 100_000;

/// The files of a repository in the workspace as it is.
#[derive(Clone, Copy)]
pub(crate) struct LowerRepositoryFiles<'a> {
    pub(crate) mount: &'a Mount,
    pub(crate) root: &'a [u8],
}

impl RepositoryFiles for LowerRepositoryFiles<'_> {
    fn open(&self, path: &[u8]) -> Result<Option<GitFile>, GitReadError> {
        let full = join(self.root, path);
        let (parent, name) = split(&full);
        let Some(parent) = open_no_follow(self.mount, parent) else { return Ok(None) };
        let unreadable = |_| GitReadError("a file cannot be read");
        match stat(parent.as_fd(), name).map_err(unreadable)? {
            None => Ok(None),
            Some(stamp) if stamp.kind == FileKind::File => {
                let fd = self.mount.open_at(parent.as_fd(), name, OFlags::RDONLY).map_err(unreadable)?;
                Ok(Some(GitFile { fd, size: stamp.size }))
            }
            Some(stamp) if stamp.kind == FileKind::Directory => Ok(None),
            Some(_) => Err(GitReadError("a file is a link")),
        }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, GitReadError> {
        let Some(directory) = open_no_follow(self.mount, &join(self.root, path)) else { return Ok(Vec::new()) };
        let names = names_in(directory.as_fd(), MOST_NAMES).map_err(|_| GitReadError("a directory cannot be read"))?;
        Ok(names.into_iter().filter(|name| name != "." && name != "..").map(String::into_bytes).collect())
    }
}
