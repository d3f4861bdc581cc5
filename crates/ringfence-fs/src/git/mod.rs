//! Git repository reader: objects, references and the index, as data.
//!
//! A program's changes of a repository are judged by their effects, so trees and the index are read here, within
//! bounds, from held files alone. Git itself is never run, and no setting of the repository is obeyed. Unreadable or
//! unknown data is an error, and callers treat it as protected.
//!
//! Not here: which files of a repository a change may write without approval (`overlay/repository_data.rs`).

mod index;
mod object;
mod pack;
mod refs;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::os::fd::{AsFd as _, OwnedFd};

use ringfence_kernel::CallContext;

pub(crate) use self::index::{GitIndex, GitIndexEntry};
pub(crate) use self::object::{
    EMPTY_BLOB, GitObjectStore, GitTreeDifference, LINK_MODE, blob_names, objects_named_in, through_link,
};
pub(crate) use self::refs::{GitRefStore, oids_in, parse_oids};
use crate::sys::syscall::pread;

/// The name of an object.
pub(crate) type GitOid = [u8; 20];

/// Most bytes that are read for one repository, compressed or not.
const MOST_BYTES: u64 = 256 << 20;

/// Most objects that are read for one repository.
const MOST_OBJECTS: u64 = 200_000;

/// A file of a repository that is larger is not read whole: an index of a million entries fits.
const MOST_FILE_BYTES: u64 = 128 << 20;

/// Failure to read a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GitReadError(pub(crate) &'static str);

/// The files of a repository, as they were or as they are going to be.
pub(crate) trait RepositoryFiles {
    /// A regular file by its path below the repository.
    fn open(&self, path: &[u8]) -> Result<Option<GitFile>, GitReadError>;

    /// The names in a directory; none where there is no directory.
    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, GitReadError>;
}

/// A file that is open, with its size when it was opened.
#[derive(Debug)]
pub(crate) struct GitFile {
    pub(crate) fd: OwnedFd,
    pub(crate) size: u64,
}

impl GitFile {
    /// Reads bytes from an offset, up to a limit.
    pub(crate) fn read_at(
        &self,
        offset: u64,
        length: usize,
        budget: &GitReadBudget<'_>,
    ) -> Result<Vec<u8>, GitReadError> {
        let there = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = length.min(there);
        budget.spend(length as u64)?;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match pread(self.fd.as_fd(), rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(_) => return Err(GitReadError("a file cannot be read")),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    pub(crate) fn read_whole(&self, budget: &GitReadBudget<'_>) -> Result<Vec<u8>, GitReadError> {
        if self.size > MOST_FILE_BYTES {
            return Err(GitReadError("a file is too large"));
        }
        self.read_at(0, usize::try_from(self.size).unwrap_or(usize::MAX), budget)
    }
}

/// Remaining read budget of a call, which may be cancelled.
#[derive(Debug)]
pub(crate) struct GitReadBudget<'a> {
    cx: &'a CallContext<'a>,
    bytes: Cell<u64>,
    objects: Cell<u64>,
}

impl<'a> GitReadBudget<'a> {
    pub(crate) fn new(cx: &'a CallContext<'a>) -> Self {
        Self { cx, bytes: Cell::new(MOST_BYTES), objects: Cell::new(MOST_OBJECTS) }
    }

    pub(crate) fn spend(&self, bytes: u64) -> Result<(), GitReadError> {
        let left = self.bytes.get().checked_sub(bytes).ok_or(GitReadError("the repository is too large"))?;
        self.bytes.set(left);
        self.cx.check().map_err(|_| GitReadError("the call ended"))
    }

    fn spend_object(&self) -> Result<(), GitReadError> {
        let left = self.objects.get().checked_sub(1).ok_or(GitReadError("there are too many objects"))?;
        self.objects.set(left);
        Ok(())
    }
}

/// An object's name of 40 digits, and nothing else.
pub(crate) fn parse_oid(text: &[u8]) -> Option<GitOid> {
    if text.len() != 40 {
        return None;
    }
    let mut oid = GitOid::default();
    for (byte, digits) in oid.iter_mut().zip(text.chunks_exact(2)) {
        // Git writes lower case alone.
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit(*digits.first()?)? << 4 | digit(*digits.get(1)?)?;
    }
    Some(oid)
}

fn hex(oid: &GitOid) -> String {
    use std::fmt::Write as _;
    oid.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
