//! Virtual tree: the workspace as it would be after a part of an undo.
//!
//! Nothing of it is done yet. The entry that would be at a path is at present at another path, or in the image store.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::OFlags;

use crate::journal::FileIdentity;
use crate::journal::state::{FileState, FileStateDepth, FileStateKind};
use crate::mount::Mount;
use crate::mount::node_source::FileEntryLocation;
use crate::path::relative::{join, relative_to, split};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::names_in;

/// The picture: what is there, and what was done to it since.
pub(crate) struct VirtualTree<'a> {
    pub(crate) mount: &'a Mount,
    pub(crate) cx: &'a CallContext<'a>,
    edits: Vec<TreeEdit>,
    /// The last stroke that set each path, to find it among very many.
    last_edits: HashMap<Vec<u8>, usize>,
    has_moves: bool,
}

/// Identity of an entry, unknown for one that is not made yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TreeNodeIdentity {
    Existing(FileIdentity),
    Scratch(usize),
}

/// An entry at a path of the virtual tree.
#[derive(Clone, Debug)]
pub(crate) struct TreeNode {
    pub(crate) state: FileState,
    pub(crate) identity: TreeNodeIdentity,
    pub(crate) source: FileEntryLocation,
}

/// An edit of the virtual tree.
#[derive(Debug)]
pub(crate) enum TreeEdit {
    Set { path: Vec<u8>, thing: Option<TreeNode> },
    Move { from: Vec<u8>, to: Vec<u8> },
}

enum TreeNodeLookup {
    Missing,
    Resolved(Box<TreeNode>),
    OnDisk(FileEntryLocation),
}

impl<'a> VirtualTree<'a> {
    pub(crate) fn new(mount: &'a Mount, cx: &'a CallContext<'a>) -> Self {
        Self { mount, cx, edits: Vec::new(), last_edits: HashMap::new(), has_moves: false }
    }

    pub(crate) fn apply(&mut self, stroke: TreeEdit) {
        match &stroke {
            TreeEdit::Set { path, .. } => _ = self.last_edits.insert(path.clone(), self.edits.len()),
            TreeEdit::Move { .. } => self.has_moves = true,
        }
        self.edits.push(stroke);
    }

    pub(crate) fn has_edits_below(&self, path: &[u8]) -> bool {
        let inside = |at: &[u8]| relative_to(at, path).is_some_and(|rest| !rest.is_empty());
        self.edits.iter().any(|stroke| match stroke {
            TreeEdit::Set { path: at, .. } => inside(at),
            TreeEdit::Move { from, to } => inside(from) || inside(to),
        })
    }

    /// The last stroke that set a path or a directory above it. Where nothing was moved, no other one counts.
    fn last_set(&self, path: &[u8]) -> Option<usize> {
        let mut last = self.last_edits.get(path).copied();
        let mut above = path;
        while !above.is_empty() {
            above = split(above).0;
            last = last.max(self.last_edits.get(above).copied());
        }
        last
    }

    /// Present location of the entry that would be at a path.
    fn locate(&self, path: &[u8]) -> TreeNodeLookup {
        let mut path = path.to_vec();
        let end = if self.has_moves { self.edits.len() } else { self.last_set(&path).map_or(0, |last| last + 1) };
        for stroke in self.edits[..end].iter().rev() {
            match stroke {
                TreeEdit::Set { path: at, thing } => match (relative_to(&path, at), thing) {
                    (None, _) => {}
                    (Some(_), None) => return TreeNodeLookup::Missing,
                    (Some(b""), Some(thing)) => return TreeNodeLookup::Resolved(Box::new(thing.clone())),
                    (Some(rest), Some(thing)) => return TreeNodeLookup::OnDisk(thing.source.join(rest)),
                },
                TreeEdit::Move { from, to } => {
                    if let Some(rest) = relative_to(&path, to) {
                        path = join(from, rest);
                    } else if relative_to(&path, from).is_some() {
                        return TreeNodeLookup::Missing;
                    }
                }
            }
        }
        TreeNodeLookup::OnDisk(FileEntryLocation::Disk(path))
    }

    /// The entry that would be at a path.
    pub(crate) fn node(&self, path: &[u8], how: FileStateDepth) -> Result<Option<TreeNode>, ToolError> {
        let source = match self.locate(path) {
            TreeNodeLookup::Missing => return Ok(None),
            TreeNodeLookup::Resolved(thing) if thing.state.kind != FileStateKind::Directory => return Ok(Some(*thing)),
            // How closely it has to be looked at is another question each time.
            TreeNodeLookup::Resolved(thing) => thing.source,
            TreeNodeLookup::OnDisk(source) => source,
        };
        let Some((parent, name)) = source.open_parent(self.mount) else { return Ok(None) };
        let state = FileState::read_at(self.mount, parent.as_fd(), &name, how, self.cx)?;
        Ok(state.map(|state| {
            let known = FileIdentity::from_state(&state, FileRef { fd: parent.as_fd(), name: &name });
            TreeNode { identity: TreeNodeIdentity::Existing(known), state, source }
        }))
    }

    /// The directory that a path would be in. Nothing where that is not there yet.
    pub(crate) fn directory_of(&self, path: &[u8]) -> Result<Option<u64>, ToolError> {
        match split(path).0 {
            b"" => Ok(Some(self.mount.id.inode)),
            parent => Ok(self.node(parent, FileStateDepth::Shallow)?.map(|thing| thing.state.inode)),
        }
    }

    /// Whether a directory would have nothing in it.
    pub(crate) fn is_empty(&self, path: &[u8], thing: &TreeNode) -> Result<bool, ToolError> {
        let there = thing.source.open_parent(self.mount);
        let listed = there.and_then(|(parent, name)| {
            let directory = self.mount.resolver.open_child(parent.as_fd(), &name).ok()?;
            names_in(directory.as_fd(), usize::MAX).ok()
        });
        let listed = listed.unwrap_or_default().into_iter().filter(|name| name != "." && name != "..");
        let painted = self.edits.iter().filter_map(|stroke| {
            let at = match stroke {
                TreeEdit::Set { path, .. } => path,
                TreeEdit::Move { to, .. } => to,
            };
            let rest = relative_to(at, path)?;
            let name = rest.split(|byte| *byte == b'/').next()?;
            (!name.is_empty()).then(|| name.to_vec())
        });
        for name in listed.map(String::into_bytes).chain(painted) {
            if self.node(&join(path, &name), FileStateDepth::Shallow)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(crate) fn open_source(mount: &Mount, source: &FileEntryLocation, shown: &str) -> Result<OwnedFd, ToolError> {
    let (parent, name) = source.open_parent(mount).ok_or_else(|| changed_error(shown))?;
    mount.open_at(parent.as_fd(), &name, OFlags::RDONLY).map_err(|errno| errno_error(errno, shown))
}

pub(crate) fn changed_error(shown: &str) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("`{shown}` was changed concurrently; nothing was undone"))
}
