//! Directories that git takes for a repository, whatever they are called.
//!
//! Git runs what the config and the hooks of a repository name, and looks for one in every directory above it. One without a
//! `.git` is not known by its name: whoever makes one, be it piece by piece, would have git run its commands later.

use std::collections::HashMap;
use std::os::fd::AsFd as _;

use crate::journal::{open_straight, split};
use crate::mount::{Mount, look};

/// The workspace as it is going to be, asked about repositories.
pub(crate) struct Repositories<'a> {
    mount: &'a Mount,
    /// What is there after the change, and what is not, by path.
    items: HashMap<&'a [u8], bool>,
    /// Whether a directory is one or lies in one.
    known: HashMap<Vec<u8>, bool>,
}

impl<'a> Repositories<'a> {
    pub(crate) fn new(mount: &'a Mount, items: impl Iterator<Item = (&'a [u8], bool)>) -> Self {
        Self { mount, items: items.collect(), known: HashMap::new() }
    }

    /// The workspace with these paths, and the directories above them, in it.
    pub(crate) fn with(mount: &'a Mount, paths: impl Iterator<Item = &'a [u8]>) -> Self {
        let above = |path: &'a [u8]| {
            let next = |path: &&'a [u8]| Some(split(path).0).filter(|above| !above.is_empty());
            std::iter::successors(Some(path), next).map(|path| (path, true))
        };
        Self::new(mount, paths.flat_map(above))
    }

    /// Whether a path lies in one.
    pub(crate) fn have(&mut self, path: &[u8]) -> bool {
        let mut directory = split(path).0;
        // Each directory is asked about once, however deep the tree.
        let mut unknown = Vec::new();
        let mut inside = loop {
            if let Some(known) = self.known.get(directory) {
                break *known;
            }
            unknown.push(directory);
            if directory.is_empty() {
                break false;
            }
            directory = split(directory).0;
        };
        for directory in unknown.into_iter().rev() {
            inside = inside || self.is_one(directory);
            self.known.insert(directory.to_vec(), inside);
        }
        inside
    }

    fn is_one(&self, directory: &[u8]) -> bool {
        let has = |name: &[u8]| self.has(directory, name);
        has(b"HEAD") && (has(b"commondir") || (has(b"objects") && has(b"refs")))
    }

    fn has(&self, directory: &[u8], name: &[u8]) -> bool {
        let path = if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() };
        if let Some(there) = self.items.get(path.as_slice()) {
            return *there;
        }
        let directory = open_straight(self.mount, directory);
        directory.is_some_and(|directory| matches!(look(directory.as_fd(), name), Ok(Some(_))))
    }
}
