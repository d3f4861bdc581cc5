//! Branch of a layer: some of its changes as files for a commit, apart from the workspace.
//!
//! What is selected is judged as for a keep. The new contents are staged as a tree of their own in the directory of the
//! layer, for git to read in the jail: git sees what was judged and nothing else of the layer, above all no `.git` of it. The
//! layer stays as it is.
//!
//! Not here: git (`ringfence-git`), and what is kept in the workspace (`layer_keep.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ringfence_kernel::{CallContext, ErrorKind, ExposedDir, Preview, ResourceAccess, ToolError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Fence;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path};
use crate::overlay::group::{is_at_or_below, repository_of};
use crate::overlay::ignored_trees::IgnoredTrees;
use crate::overlay::layer_keep::{KeptAlong, KeptChange, LayerKeep, LayerSelection, MOST_LISTED, RefusedChange};
use crate::overlay::layer_store::check_person;
use crate::overlay::store_directory::errno_store_error;
use crate::overlay::tree_removal::remove_tree;
use crate::path::relative::split;
use crate::read::content::read_chunk;
use crate::read::digest::Sha256Hasher;
use crate::root::path_of;
use crate::root::{open_no_follow, stat};
use crate::sys::errno::errno_error;
use crate::sys::own_files::{open_own_file, open_private_dir, write_all};
use crate::sys::syscall::{fchmod, symlinkat};

/// The directory of the staged files, in that of the layer.
const STAGED: &[u8] = b"branch";

/// Modes of staged entries: a program of another user reads them, and no other process reaches them.
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
const PROGRAM_MODE: u32 = 0o755;

/// Changes of a layer that are to be one commit. The layer is held until this is dropped.
#[derive(Debug)]
pub struct LayerBranch {
    keep: LayerKeep,
    left_out: Vec<RefusedChange>,
    /// Paths that the workspace ignores, by the topmost ignored path that each is in.
    ignored: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
}

/// What is on a branch and what is not, for a reply.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayerBranchContents {
    /// The layer.
    layer: String,
    /// Everything that the commit has, what came along included.
    kept: Vec<KeptChange>,
    /// What the commit has because of something that was selected.
    along: Vec<KeptAlong>,
    /// What is not on the branch.
    refused: Vec<RefusedChange>,
    /// True when longer lists were cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// The files of a commit, for git.
#[derive(Debug)]
pub struct StagedBranch {
    /// New and changed files and links, at their paths.
    pub directory: ExposedDir,
    /// Their paths, each followed by a NUL.
    pub written: Vec<u8>,
    /// Deleted files and directories, likewise.
    pub removed: Vec<u8>,
}

impl Fence {
    /// Plans a commit of some changes of a layer. Fails for an agent.
    pub fn plan_layer_branch(
        &self,
        layer: &str,
        selection: LayerSelection,
        cx: &CallContext<'_>,
    ) -> Result<LayerBranch, ToolError> {
        check_person(cx)?;
        let workspace = self.mounts().first();
        let mount = workspace.ok_or_else(|| ToolError::new(ErrorKind::Internal, "a host without a workspace"))?;
        let keep = LayerKeep::plan(&self.layers(), mount, (layer, selection), cx)?;
        let mut branch = LayerBranch { keep, left_out: Vec::new(), ignored: BTreeMap::new() };
        branch.leave_out_what_git_has_not(cx)?;
        Ok(branch)
    }
}

impl LayerBranch {
    /// Its whole ID.
    pub fn id(&self) -> &str {
        &self.keep.layer.id
    }

    /// Name of the program that wrote the layer.
    pub fn program(&self) -> &str {
        &self.keep.layer.record.program
    }

    /// What the policy has to judge: the same as for keeping these changes.
    pub fn accesses(&self) -> Vec<ResourceAccess> {
        self.keep.changes.accesses.iter().flatten().cloned().collect()
    }

    /// For a person: what the commit has.
    pub fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        self.keep.preview(cx)
    }

    /// Whether something would be left out unless git has it already.
    pub fn has_ignored(&self) -> bool {
        !self.ignored.is_empty()
    }

    /// Leaves out what the workspace ignores, but for the paths that git has all the same.
    pub fn leave_out_ignored<'p>(&mut self, tracked: impl Iterator<Item = &'p [u8]>) -> Result<(), ToolError> {
        let mut known = BTreeSet::new();
        for path in tracked {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            known.extend(ends.chain([path.len()]).filter_map(|end| path.get(..end)).map(<[u8]>::to_vec));
        }
        let mut unwanted = BTreeSet::new();
        for (top, paths) in std::mem::take(&mut self.ignored) {
            let untracked: Vec<Vec<u8>> = paths.into_iter().filter(|path| !known.contains(path)).collect();
            if !untracked.is_empty() {
                self.leave_out(&top, "git ignores it");
            }
            unwanted.extend(untracked);
        }
        self.retain(|path| !unwanted.contains(path))
    }

    /// Leaves out single files, for the same reason each.
    pub fn leave_out_files(&mut self, paths: &BTreeSet<Vec<u8>>, why: &str) -> Result<(), ToolError> {
        paths.iter().for_each(|path| self.leave_out(path, why));
        self.retain(|path| !paths.contains(path))
    }

    /// Writes the new contents for git. `alias` names the directory for programs.
    pub fn stage(&self, alias: &str, cx: &CallContext<'_>) -> Result<StagedBranch, ToolError> {
        let parent = self.keep.layer.directory();
        remove_tree(parent.as_fd(), STAGED, cx)?;
        let directory = open_private_dir(parent, STAGED).map_err(errno_store_error)?;
        fchmod(&directory, Mode::from_raw_mode(DIRECTORY_MODE)).map_err(errno_store_error)?;
        let (mut written, mut removed) = (Vec::new(), Vec::new());
        let mut writer = BranchWriter { branch: self, top: &directory, last: None, buffer: vec![0; 256 << 10] };
        for item in &self.keep.changes.items {
            cx.check()?;
            let is_replaced_directory = item.changes_kind();
            let list = match &item.upper {
                None => Some(&mut removed),
                Some(OverlayUpperState::Directory { .. }) => None,
                Some(_) => {
                    writer.write(item, cx)?;
                    Some(&mut written)
                }
            };
            if let Some(list) = list {
                list.extend_from_slice(&item.path);
                list.push(0);
            }
            if is_replaced_directory {
                removed.extend_from_slice(&item.path);
                removed.push(0);
            }
        }
        let path = path_of(&directory)?;
        let (alias, masked, hidden) = (alias.to_owned(), Vec::new(), Vec::new());
        Ok(StagedBranch { directory: ExposedDir { alias, directory, path, masked, hidden }, written, removed })
    }

    /// Removes the staged files. What cannot be removed now goes with the layer.
    pub fn clear(&self, cx: &CallContext<'_>) {
        let _ = remove_tree(self.keep.layer.directory().as_fd(), STAGED, cx);
    }

    /// For the reply.
    pub fn contents(&self) -> LayerBranchContents {
        let changes = &self.keep.changes;
        let kept: Vec<KeptChange> = changes.items.iter().map(|item| self.keep.settled_item(item).kept).collect();
        let on_branch: BTreeSet<&str> = kept.iter().map(KeptChange::path).collect();
        let along: Vec<KeptAlong> =
            self.keep.along.iter().filter(|along| on_branch.contains(along.path())).cloned().collect();
        let refused: Vec<RefusedChange> = self.left_out.iter().chain(&self.keep.refused).cloned().collect();
        LayerBranchContents {
            layer: self.id().to_owned(),
            truncated: kept.len().max(along.len()).max(refused.len()) > MOST_LISTED,
            kept: kept.into_iter().take(MOST_LISTED).collect(),
            along: along.into_iter().take(MOST_LISTED).collect(),
            refused: refused.into_iter().take(MOST_LISTED).collect(),
        }
    }

    /// What a commit of this repository cannot have, or must not.
    fn leave_out_what_git_has_not(&mut self, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let keep = &self.keep;
        let changes = &keep.changes;
        let mut repositories = OtherRepositories::new(changes.items.iter().map(|item| item.path.as_slice()));
        let mut ignored = IgnoredTrees::new(&changes.mount);
        let mut left: BTreeMap<Vec<u8>, &str> = BTreeMap::new();
        let (mut wanted, mut ignored_paths) = (Vec::new(), BTreeMap::<Vec<u8>, Vec<Vec<u8>>>::new());
        for item in &changes.items {
            cx.check()?;
            let is_wanted = if !keep.is_kept(item) {
                false
            } else if let Some(repository) = repository_of(&item.path) {
                left.insert(
                    repository.to_vec(),
                    "changes of the repository itself are not committed; keep them if you want them",
                );
                false
            } else if let Some(directory) = repositories.above(keep, &item.path) {
                left.insert(directory, "it is a repository of its own");
                false
            } else if changes.is_secret(item) {
                left.insert(item.path.clone(), "secrets are not committed");
                false
            } else if item.directory_mode().is_some() {
                left.insert(item.path.clone(), "git does not record modes of directories");
                false
            } else {
                true
            };
            wanted.push(is_wanted);
            let is_directory = matches!(item.upper, Some(OverlayUpperState::Directory { .. }));
            if is_wanted
                && !is_directory
                && let Some(top) = ignored.top_of(&item.path, false, cx)
            {
                ignored_paths.entry(top.to_vec()).or_default().push(item.path.clone());
            }
        }
        self.ignored = ignored_paths;
        for (path, why) in left {
            self.leave_out(&path, why);
        }
        let mut wanted = wanted.into_iter();
        self.retain(|_| wanted.next().unwrap_or_default())
    }

    fn leave_out(&mut self, path: &[u8], why: &str) {
        let shown = display_path(&self.keep.changes.mount, path);
        let error = ToolError::new(ErrorKind::PermissionDenied, why.to_owned());
        self.left_out.push(RefusedChange::new(shown, &error));
    }

    /// Drops items, and the new directories that have none any more. Fails where nothing is left.
    fn retain(&mut self, mut is_wanted: impl FnMut(&[u8]) -> bool) -> Result<(), ToolError> {
        let changes = &mut self.keep.changes;
        let accesses = std::mem::take(&mut changes.accesses);
        let items = std::mem::take(&mut changes.items).into_iter().zip(accesses);
        let mut left: Vec<(OverlayChange, Vec<ResourceAccess>)> =
            items.filter(|(item, _)| is_wanted(&item.path)).collect();
        // What is in a directory comes behind it.
        let mut last_kept: Option<Vec<u8>> = None;
        left = left
            .into_iter()
            .rev()
            .filter(|(item, _)| {
                let is_file = !matches!(item.upper, Some(OverlayUpperState::Directory { .. }));
                let has_entries = last_kept.as_ref().is_some_and(|below| is_at_or_below(below, &item.path));
                let stays = is_file || has_entries;
                if stays {
                    last_kept = Some(item.path.clone());
                }
                stays
            })
            .collect();
        (changes.items, changes.accesses) = left.into_iter().rev().unzip();
        if !changes.items.is_empty() {
            return Ok(());
        }
        let message = "nothing of it can be on a branch".to_owned();
        let why = self.left_out.first().map(|left| format!("{message}: `{}`: {}", left.path(), left.message()));
        Err(ToolError::new(ErrorKind::NotFound, why.unwrap_or(message)).hint("keep it with `ringfence layers keep`"))
    }
}

/// Directories that have a `.git` of their own, but for the top of the workspace.
struct OtherRepositories {
    /// By the path of the directory.
    known: BTreeMap<Vec<u8>, bool>,
}

impl OtherRepositories {
    /// Those that the changes make or change are known from the start.
    fn new<'p>(changed: impl Iterator<Item = &'p [u8]>) -> Self {
        let roots = changed.filter_map(repository_of).map(|repository| split(repository).0.to_vec());
        Self { known: roots.filter(|root| !root.is_empty()).map(|root| (root, true)).collect() }
    }

    /// The topmost of them that a path is, or is in.
    fn above(&mut self, keep: &LayerKeep, path: &[u8]) -> Option<Vec<u8>> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()])
            .filter_map(|end| path.get(..end))
            .find(|directory| self.is_one(keep, directory))
            .map(<[u8]>::to_vec)
    }

    fn is_one(&mut self, keep: &LayerKeep, directory: &[u8]) -> bool {
        if let Some(known) = self.known.get(directory) {
            return *known;
        }
        let opened = open_no_follow(&keep.changes.mount, directory);
        let found = opened.is_some_and(|opened| matches!(stat(opened.as_fd(), b".git"), Ok(Some(_)) | Err(_)));
        self.known.insert(directory.to_vec(), found);
        found
    }
}

/// Writes staged files.
struct BranchWriter<'a> {
    branch: &'a LayerBranch,
    top: &'a OwnedFd,
    /// The directory of the last file, with its path.
    last: Option<(Vec<u8>, OwnedFd)>,
    buffer: Vec<u8>,
}

impl BranchWriter<'_> {
    fn write(&mut self, item: &OverlayChange, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let changes = &self.branch.keep.changes;
        let shown = display_path(&changes.mount, &item.path);
        let fail = |errno: Errno| errno_error(errno, &shown);
        let (above, name) = split(&item.path);
        if self.last.as_ref().is_none_or(|(path, _)| path != above) {
            self.last = Some((above.to_vec(), make_directories(self.top, above).map_err(fail)?));
        }
        let Some((_, directory)) = &self.last else { return Err(fail(Errno::NOENT)) };
        let (seen, digest, mode) = match &item.upper {
            Some(OverlayUpperState::File { seen, digest, mode, .. }) => (seen, digest, *mode),
            Some(OverlayUpperState::Link { target }) => {
                return symlinkat(target.as_slice(), directory, name).map_err(fail);
            }
            Some(OverlayUpperState::Directory { .. }) | None => return Ok(()),
        };
        let path = Path::new(OsStr::from_bytes(name));
        let file = open_own_file(directory, path, OFlags::CREATE | OFlags::EXCL).map_err(fail)?;
        if let Some(partial) = changes.partial.get(&item.path) {
            write_all(file.as_fd(), &partial.contents).map_err(fail)?;
        } else {
            let from = changes.open(item, seen)?;
            let mut hasher = Sha256Hasher::default();
            let mut done = 0;
            while done < seen.size {
                cx.check()?;
                let length = read_chunk(from.as_fd(), &mut self.buffer, done, cx).map_err(fail)?;
                let Some(part) = self.buffer.get(..length).filter(|part| !part.is_empty()) else { break };
                hasher.update(part);
                write_all(file.as_fd(), part).map_err(fail)?;
                done += length as u64;
            }
            if hasher.finish() != *digest {
                let message = format!("`{shown}` changed in the layer after it was examined");
                return Err(ToolError::new(ErrorKind::Conflict, message).hint("review the layer again"));
            }
        }
        let mode = if mode & 0o100 == 0 { FILE_MODE } else { PROGRAM_MODE };
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(fail)
    }
}

/// The directory at a path below one of our own, made with those above it.
fn make_directories(top: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut directory = top.try_clone().map_err(|_| Errno::MFILE)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        directory = open_private_dir(&directory, name)?;
        fchmod(&directory, Mode::from_raw_mode(DIRECTORY_MODE))?;
    }
    Ok(directory)
}
