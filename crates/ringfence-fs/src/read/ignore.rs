//! Ignore rules: `.gitignore` and its kin, for one tree.
//!
//! These rules are a convenience and no boundary: what they leave out can still be read by name. The files are read
//! through descriptors that the walk holds, and only so much of them.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ringfence_kernel::{CallContext, ToolError};

use crate::read::content::read_up_to;
use crate::root::MountRoot;
use crate::root::walk::TreeWalk;

/// A longer ignore file is not read to its end.
const MOST_BYTES: u64 = 64 << 10;

/// More rules than these, in all the files that are heeded at once, and further files are not heeded.
const MOST_RULES: u64 = 10_000;

/// The rules of a directory and of those above it.
#[derive(Debug, Default)]
pub(crate) struct IgnoreRules {
    /// The nearest last, each with the length of the path to its directory.
    layers: Vec<IgnoreFile>,
}

#[derive(Debug)]
struct IgnoreFile {
    depth: usize,
    /// Bytes of a path, from the start of the walk, that lead to the directory; `None` for one above the start.
    prefix: Option<usize>,
    /// Path from the directory to the start of the walk, for one above it.
    below: Vec<u8>,
    rules: Gitignore,
}

impl IgnoreRules {
    fn is_full(&self) -> bool {
        self.layers.iter().map(|layer| layer.rules.len() as u64).sum::<u64>() > MOST_RULES
    }

    /// Reads the rules of a directory above the start of the walk; `below` leads from there to the start.
    pub(crate) fn enter_above(
        &mut self,
        mount: &MountRoot,
        directory: BorrowedFd<'_>,
        below: &[u8],
        cx: &CallContext<'_>,
    ) {
        if self.is_full() {
            return;
        }
        for rules in read_rules(mount, directory, cx) {
            self.layers.push(IgnoreFile { depth: 0, prefix: None, below: below.to_vec(), rules });
        }
    }

    /// Reads the rules of the directory that the walk is in, which has the path `path` from its start.
    pub(crate) fn enter(&mut self, walk: &TreeWalk<'_>, path: &[u8], cx: &CallContext<'_>) -> Result<(), ToolError> {
        self.enter_directory(walk.mount(), walk.directory()?, (path, walk.depth()), cx);
        Ok(())
    }

    /// Reads the rules of a directory that has the path `path` from the start, at a depth from there.
    pub(crate) fn enter_directory(
        &mut self,
        mount: &MountRoot,
        directory: BorrowedFd<'_>,
        (path, depth): (&[u8], usize),
        cx: &CallContext<'_>,
    ) {
        let prefix = if path.is_empty() { 0 } else { path.len() + 1 };
        if !self.is_full() {
            for rules in read_rules(mount, directory, cx) {
                self.layers.push(IgnoreFile { depth, prefix: Some(prefix), below: Vec::new(), rules });
            }
        }
    }

    /// Forgets the rules of directories that the walk has left.
    pub(crate) fn leave_depth(&mut self, depth: usize) {
        self.layers.retain(|layer| layer.prefix.is_none() || layer.depth <= depth);
    }

    /// Whether the entry at `path`, from the start of the walk, is left out.
    pub(crate) fn ignores(&self, path: &[u8], is_directory: bool) -> bool {
        for layer in self.layers.iter().rev() {
            let joined;
            let seen = match layer.prefix {
                Some(prefix) => path.get(prefix..).unwrap_or_default(),
                None => {
                    joined = [&layer.below[..], b"/", path].concat();
                    &joined
                }
            };
            match layer.rules.matched(Path::new(OsStr::from_bytes(seen)), is_directory) {
                Match::None => {}
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
            }
        }
        false
    }
}

fn read_rules(mount: &MountRoot, directory: BorrowedFd<'_>, cx: &CallContext<'_>) -> impl Iterator<Item = Gitignore> {
    // The second can overrule the first, so it comes later.
    [&b".gitignore"[..], b".ignore"].into_iter().filter_map(move |name| {
        let (file, _) = mount.open_entry(directory, name).ok()?;
        let text = read_up_to(&file, MOST_BYTES, cx).ok()?;
        let mut builder = GitignoreBuilder::new("");
        for line in String::from_utf8_lossy(&text).lines() {
            // An invalid pattern ignores nothing.
            let _ = builder.add_line(None, line);
        }
        builder.build().ok()
    })
}
