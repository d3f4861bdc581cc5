//! Overlay change lists, for the policy, a reply and an approval prompt.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_kernel::{
    CallContext, ChangeGroup, ChangeGroupDecision, ChangeKind, ChangedPath, PolicyAction, Preview, ResourceAccess,
    Ticket, ToolError, WorkspaceChanges,
};
use rustix::fs::OFlags;

use crate::mount::repository::RepositoryDetector;
use crate::overlay::ChangeSet;
use crate::overlay::commit::commit;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path, resource_at};
use crate::overlay::group::is_at_or_below;
use crate::overlay::upper::open_file;
use crate::path::name::escape;
use crate::path::relative::split;
use crate::preview::{DiffPreview, FileContents, changed_error};
use crate::read::content::hash_up_to;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep};
use crate::root::{open_no_follow, reopen_for_listing, stat};
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::readlinkat;
use crate::txn::manifest::accesses_below;

/// Limits on files compared line by line and on their bytes in all; the rest are listed.
const MOST_DIFFS: usize = 100;
const MOST_BYTES: u64 = 4 << 20;

/// Most protected targets that are named for a file of a repository.
const MOST_LEADS: usize = 20;

/// Most lines about entries that are not compared.
const MOST_LISTED: usize = 1000;

/// An entry that went, or the directory that it went with, and where its contents are now.
#[derive(Debug)]
pub(super) struct DetectedRename {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
}

/// New entries that something which went could have become, each of them once.
struct RenameTargets<'a> {
    /// By size.
    files: HashMap<u64, Vec<(&'a [u8], Digest)>>,
    /// By where they lead.
    links: HashMap<&'a [u8], Vec<&'a [u8]>>,
    /// Those with nothing in them, by mode.
    empty_directories: HashMap<u32, Vec<&'a [u8]>>,
    /// So much is still compared.
    bytes: u64,
}

impl<'a> RenameTargets<'a> {
    fn new(items: &'a [OverlayChange], bytes: u64) -> Self {
        let mut new = Self { files: HashMap::new(), links: HashMap::new(), empty_directories: HashMap::new(), bytes };
        for (at, item) in items.iter().enumerate().filter(|(_, item)| item.lower.is_none()) {
            match &item.upper {
                Some(OverlayUpperState::File { seen, digest, .. }) if seen.size > 0 => {
                    new.files.entry(seen.size).or_default().push((&item.path, *digest));
                }
                Some(OverlayUpperState::Link { target }) => new.links.entry(target).or_default().push(&item.path),
                // Entries of a directory come right behind it.
                Some(OverlayUpperState::Directory { mode })
                    if !items.get(at + 1).is_some_and(|next| is_at_or_below(&next.path, &item.path)) =>
                {
                    new.empty_directories.entry(permissions(*mode)).or_default().push(&item.path);
                }
                _ => {}
            }
        }
        new
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.links.is_empty() && self.empty_directories.is_empty()
    }

    fn take_file(&mut self, size: u64, old: &OwnedFd, cx: &CallContext<'_>) -> Option<Vec<u8>> {
        let candidates = self.files.get_mut(&size)?;
        self.bytes = self.bytes.checked_sub(size)?;
        let digest = hash_up_to(old.as_fd(), size, "", cx).ok()?;
        let index = candidates.iter().position(|(_, new)| *new == digest)?;
        Some(candidates.swap_remove(index).0.to_vec())
    }

    fn take_link(&mut self, target: &[u8]) -> Option<Vec<u8>> {
        Some(self.links.get_mut(target)?.pop()?.to_vec())
    }

    fn take_directory(&mut self, mode: u32) -> Option<Vec<u8>> {
        Some(self.empty_directories.get_mut(&permissions(mode))?.pop()?.to_vec())
    }
}

fn permissions(mode: u32) -> u32 {
    mode & 0o777
}

impl WorkspaceChanges for ChangeSet {
    fn groups(&self) -> Vec<ChangeGroup> {
        self.groups.clone()
    }

    fn merge(&mut self) {
        self.merge_groups();
    }

    fn reconcile(&mut self, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        self.resolve_decisions(wanted)
    }

    fn changed_paths(&self) -> Vec<ChangedPath> {
        let gone: HashSet<&Vec<u8>> = self.renamed.values().collect();
        let stays = |item: &&OverlayChange| !gone.contains(&item.path) || item.upper.is_some();
        let unkeepable = self.rejected.iter().map(|(unkeepable, group)| ChangedPath {
            path: display_path(&self.mount, &unkeepable.path),
            kind: ChangeKind::Created,
            size: None,
            group: *group,
        });
        self.items.iter().filter(stays).map(|item| self.changed_path(item)).chain(unkeepable).collect()
    }

    fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let (mut diffs, mut left, mut shown_files, mut listed) = (DiffPreview::new(), MOST_BYTES, 0, 0);
        let mut secret = false;
        let mut previewed = HashMap::new();
        let asked = self.most_sensitive_first();
        for line in self.lead_lines(&asked) {
            diffs.add_note(&line);
        }
        for item in &asked {
            cx.check()?;
            let size = item.contents_bytes();
            if item.has_contents() && shown_files < MOST_DIFFS && size <= left {
                secret |= self.is_secret(item);
                self.add_diff(&mut diffs, item, &mut previewed, cx)?;
                (shown_files, left) = (shown_files + 1, left - size);
            } else if listed < MOST_LISTED {
                diffs.add_note(&self.describe_change(item));
                listed += 1;
            }
        }
        let unlisted = asked.len() - shown_files - listed;
        if unlisted > 0 {
            diffs.add_note(&format!("… and {unlisted} more changes"));
        }
        let preview = Preview::new(&summary(&asked), fingerprint(&asked).to_hex());
        self.previewed = previewed;
        Ok(preview.with_body(diffs.into_body()).with_secret(secret))
    }

    fn commit(self: Box<Self>, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        commit(*self, ticket)
    }
}

impl OverlayChange {
    /// Whether a diff shows what happens to it.
    fn has_contents(&self) -> bool {
        let now = matches!(self.upper, Some(OverlayUpperState::File { only_mode: false, .. }));
        now && self.lower.as_ref().is_none_or(|was| was.stat.kind == FileKind::File)
    }

    fn contents_bytes(&self) -> u64 {
        let was = self.lower.as_ref().map_or(0, |was| was.stat.size);
        match &self.upper {
            Some(OverlayUpperState::File { seen, .. }) => was.saturating_add(seen.size),
            _ => was,
        }
    }
}

impl ChangeSet {
    /// Collects the accesses for the policy: every path, and the contents of directories that are deleted.
    pub(super) fn find_accesses(&mut self, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let mut accesses = Vec::new();
        // A deletion may be discarded, so the entries of a repository that are deleted count as present.
        let there = self.items.iter().filter(|item| item.upper.is_some()).map(|item| item.path.as_slice());
        let mut repositories = RepositoryDetector::new(&self.mount, there);
        let bytes = self.items.iter().map(OverlayChange::displaced_bytes).fold(0u64, u64::saturating_add);
        let is_lost = bytes > 0 && self.mount.undo_journal().is_some() && !self.mount.fits_quota(bytes, &[], cx)?;
        for item in &self.items {
            let mut own = Vec::new();
            let mut place = resource_at(&self.mount, &item.path);
            place.sensitivity = item.lower.as_ref().map(|was| was.sensitivity).unwrap_or_default();
            place.repository_data = item.is_data;
            place.sensitivity.protected =
                !item.is_data && (place.sensitivity.protected || repositories.contains(&item.path));
            let action = match (&item.lower, &item.upper) {
                (None, _) => PolicyAction::Create,
                (_, None) => PolicyAction::Delete,
                (Some(_), Some(_)) if item.changes_kind() => PolicyAction::Delete,
                (Some(_), Some(_)) => PolicyAction::Overwrite,
            };
            let below = item.lower.iter().filter_map(|was| was.tree.as_ref());
            own.extend(below.flat_map(|tree| accesses_below(&place, &tree.sensitive, PolicyAction::Delete)));
            if item.is_data {
                // Entries of a directory of objects or references are data as well.
                for access in &mut own {
                    access.resource.repository_data = true;
                    access.resource.sensitivity.protected = false;
                }
            }
            if item.changes_kind() {
                own.push(ResourceAccess { action: PolicyAction::Create, resource: place.clone() });
            }
            if is_lost && item.displaced_bytes() > 0 {
                own.push(ResourceAccess { action: PolicyAction::Lose, resource: place.clone() });
            }
            if matches!(item.upper, Some(OverlayUpperState::Link { .. })) {
                own.extend(
                    place
                        .settings_through_link()
                        .map(|place| ResourceAccess { action: PolicyAction::Create, resource: place }),
                );
            }
            own.push(ResourceAccess { action, resource: place });
            accesses.push(own);
        }
        self.accesses = accesses;
        Ok(())
    }

    /// An entry that went and one that came with the same contents were one. Returns each pair, with the entry's own path
    /// or that of the directory that went with it.
    pub(super) fn find_renames(&mut self, cx: &CallContext<'_>) -> Result<Vec<DetectedRename>, ToolError> {
        let mut new = RenameTargets::new(&self.items, cx.limits.copy_bytes);
        let (mut renamed, mut moved) = (HashMap::new(), Vec::new());
        for item in self.items.iter().filter(|item| item.upper.is_none()) {
            let Some(was) = item.lower.as_ref().filter(|_| !new.is_empty()) else { continue };
            cx.check()?;
            match was.stat.kind {
                FileKind::File => {
                    let Ok(old) = self.open_lower(item) else { continue };
                    if let Some(path) = new.take_file(was.stat.size, &old, cx) {
                        renamed.insert(path.clone(), item.path.clone());
                        moved.push(DetectedRename { from: item.path.clone(), to: path });
                    }
                }
                FileKind::Link => {
                    let (above, name) = split(&item.path);
                    let Some(parent) = open_no_follow(&self.mount, above) else { continue };
                    let Ok(target) = readlinkat(parent.as_fd(), name) else { continue };
                    let to = new.take_link(target.as_bytes());
                    moved.extend(to.map(|to| DetectedRename { from: item.path.clone(), to }));
                }
                FileKind::Directory => {
                    let paths = self.find_moved_entries(item, was.stat.mode, &mut new, cx)?;
                    moved.extend(paths.into_iter().map(|to| DetectedRename { from: item.path.clone(), to }));
                }
                _ => {}
            }
        }
        self.renamed = renamed;
        Ok(moved)
    }

    /// New entries that have the contents of those in a directory that goes.
    fn find_moved_entries(
        &self,
        item: &OverlayChange,
        mode: u32,
        new: &mut RenameTargets<'_>,
        cx: &CallContext<'_>,
    ) -> Result<Vec<Vec<u8>>, ToolError> {
        let Some(start) = open_no_follow(&self.mount, &item.path) else { return Ok(Vec::new()) };
        let Ok(start) = reopen_for_listing(start.as_fd()) else { return Ok(Vec::new()) };
        let name = display_path(&self.mount, &item.path);
        let mut walk = TreeWalk::with_temp_visibility(TempVisibility::Hidden, &self.mount, start, &name, cx)?;
        let mut found = Vec::new();
        // The item itself has the empty path.
        let (mut directories, mut with_entries) = (vec![(Vec::new(), mode)], HashSet::new());
        while let Some(step) = walk.next()? {
            let WalkStep::Entry(entry) = step else { continue };
            let path = walk.path_of(&entry.name);
            with_entries.insert(split(&path).0.to_vec());
            let Some(stamp) = walk.stat(&entry)? else { continue };
            match stamp.kind {
                FileKind::Directory => {
                    // A directory that cannot be read has no entry that is known to have moved.
                    let is_read = walk.descend(&entry)?.is_ok();
                    directories.extend(is_read.then_some((path, stamp.mode)));
                }
                FileKind::File => {
                    if let Ok(file) = self.mount.open_at(walk.directory()?, &entry.name, OFlags::RDONLY) {
                        found.extend(new.take_file(stamp.size, &file, cx));
                    }
                }
                FileKind::Link => {
                    if let Ok(target) = readlinkat(walk.directory()?, entry.name.as_slice()) {
                        found.extend(new.take_link(target.as_bytes()));
                    }
                }
                _ => {}
            }
        }
        directories.retain(|(path, _)| !with_entries.contains(path));
        found.extend(directories.into_iter().filter_map(|(_, mode)| new.take_directory(mode)));
        Ok(found)
    }

    /// The new contents of an item.
    pub(super) fn open(&self, item: &OverlayChange, seen: &FileStat) -> Result<OwnedFd, ToolError> {
        let name = display_path(&self.mount, &item.path);
        if let Some(copy) = self.captured.as_ref().and_then(|captured| captured.open(&item.path)) {
            return copy.map_err(|errno| errno_error(errno, &name));
        }
        let (above, file) = split(&item.path);
        let directory = self.upper.open_directory(above).map_err(|errno| errno_error(errno, &name))?;
        Ok(open_file(directory.as_fd(), file, seen, &name)?.fd)
    }

    /// Opens the file that an item replaces, if it is still the one that was compared.
    pub(super) fn open_lower(&self, item: &OverlayChange) -> Result<OwnedFd, ToolError> {
        let name = display_path(&self.mount, &item.path);
        let (above, file) = split(&item.path);
        let parent = open_no_follow(&self.mount, above).ok_or_else(|| changed_error(&name))?;
        let seen = item.lower.as_ref().map(|was| was.stat);
        if stat(parent.as_fd(), file).map_err(|errno| errno_error(errno, &name))? != seen {
            return Err(changed_error(&name));
        }
        self.mount.open_at(parent.as_fd(), file, OFlags::RDONLY).map_err(|errno| errno_error(errno, &name))
    }

    fn add_diff(
        &self,
        diffs: &mut DiffPreview,
        item: &OverlayChange,
        previewed: &mut HashMap<Vec<u8>, Digest>,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let Some(OverlayUpperState::File { seen, .. }) = &item.upper else { return Ok(()) };
        let name = display_path(&self.mount, &item.path);
        let new = match self.partial.get(&item.path) {
            Some(partial) => FileContents::from_bytes(&partial.contents),
            None => FileContents::read_file(self.open(item, seen)?.as_fd(), seen, &name, cx)?,
        };
        let old = match &item.lower {
            Some(was) => Some(FileContents::read_file(self.open_lower(item)?.as_fd(), &was.stat, &name, cx)?),
            None => None,
        };
        if let Some(digest) = old.as_ref().and_then(|old| old.digest) {
            previewed.insert(item.path.clone(), digest);
        }
        diffs.add(&name, old.as_ref(), Some(&new));
        Ok(())
    }

    /// Sensitive changes first, so that they are not among the rest that is only counted, as long as they themselves
    /// fit.
    fn most_sensitive_first(&self) -> Vec<&OverlayChange> {
        let weighty = |access: &&ResourceAccess| {
            access.action == PolicyAction::Lose || access.resource.effective_sensitivity().is_any()
        };
        let weighty = self.accesses.iter().flatten().filter(weighty);
        // A directory that goes is as weighty as what is in it.
        let paths: HashSet<&Path> =
            weighty.flat_map(|access| Path::new(&access.resource.requested_path).ancestors()).collect();
        let mut items: Vec<&OverlayChange> = self.items.iter().filter(|item| self.needs_approval(item)).collect();
        items.sort_by_key(|item| !paths.contains(Path::new(&escape(&item.path))));
        items
    }

    /// Protected targets of files of a repository, whose writing needs approval.
    fn lead_lines(&self, items: &[&OverlayChange]) -> Vec<String> {
        let leads = items.iter().filter_map(|item| Some((item, self.repositories.leads.get(&item.path)?)));
        let line = |(item, paths): (&&OverlayChange, &Vec<Vec<u8>>)| {
            let names: Vec<String> = paths.iter().take(MOST_LEADS).map(|path| format!("`{}`", escape(path))).collect();
            let more = match paths.len().saturating_sub(MOST_LEADS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("`{}` changes {}{more}", display_path(&self.mount, &item.path), names.join(", "))
        };
        leads.map(line).collect()
    }

    pub(super) fn is_secret(&self, item: &OverlayChange) -> bool {
        let known = item.lower.as_ref().map(|was| was.sensitivity).unwrap_or_default();
        resource_at(&self.mount, &item.path).effective_sensitivity().union(known).secret
    }

    pub(super) fn changed_path(&self, item: &OverlayChange) -> ChangedPath {
        let is_file = |stamp: &FileStat| (stamp.kind == FileKind::File).then_some(stamp.size);
        let (what, size) = match (&item.lower, &item.upper) {
            (_, None) => (ChangeKind::Deleted, None),
            (_, Some(OverlayUpperState::Link { .. })) => (ChangeKind::Link, None),
            (Some(_), Some(OverlayUpperState::Directory { .. })) if !item.changes_kind() => (ChangeKind::Mode, None),
            (Some(_), Some(OverlayUpperState::File { seen, only_mode: true, .. })) => (ChangeKind::Mode, is_file(seen)),
            (Some(_), Some(OverlayUpperState::File { seen, .. })) => (ChangeKind::Modified, is_file(seen)),
            (Some(_), Some(OverlayUpperState::Directory { .. })) => (ChangeKind::Modified, None),
            (None, Some(OverlayUpperState::Directory { .. })) => (ChangeKind::Created, None),
            (None, Some(OverlayUpperState::File { seen, .. })) => match self.renamed.get(&item.path) {
                Some(from) => (ChangeKind::Renamed { from: display_path(&self.mount, from) }, is_file(seen)),
                None => (ChangeKind::Created, is_file(seen)),
            },
        };
        ChangedPath { path: display_path(&self.mount, &item.path), kind: what, size, group: item.group }
    }

    /// One change in words.
    fn describe_change(&self, item: &OverlayChange) -> String {
        let ChangedPath { path, kind: what, size, .. } = self.changed_path(item);
        let size = size.map(|size| format!(" ({size} bytes)")).unwrap_or_default();
        match (what, &item.lower, &item.upper) {
            (ChangeKind::Created, ..) => format!("create `{path}`{size}"),
            (ChangeKind::Modified, ..) => format!("change `{path}`{size}"),
            (ChangeKind::Renamed { from }, ..) => format!("create `{path}`{size} with the contents of `{from}`"),
            (ChangeKind::Link, ..) => format!("replace `{path}` with a link"),
            (
                ChangeKind::Mode,
                Some(was),
                Some(OverlayUpperState::File { mode, .. } | OverlayUpperState::Directory { mode }),
            ) => {
                format!("change the mode of `{path}` from {:o} to {mode:o}", was.stat.mode & 0o777)
            }
            (ChangeKind::Mode, ..) => format!("change the mode of `{path}`"),
            (ChangeKind::Deleted, Some(was), _) => match &was.tree {
                Some(tree) => {
                    format!("delete the directory `{path}` with {} entries ({} bytes)", tree.entries, tree.bytes)
                }
                None => format!("delete `{path}` ({} bytes)", was.stat.size),
            },
            (ChangeKind::Deleted, ..) => format!("delete `{path}`"),
        }
    }
}

/// Name of a kind of change in replies.
pub(super) fn change_kind_name(kind: &ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "created",
        ChangeKind::Modified => "modified",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Renamed { .. } => "renamed",
        ChangeKind::Mode => "mode",
        ChangeKind::Link => "link",
    }
}

fn summary(items: &[&OverlayChange]) -> String {
    let count = |wanted: fn(&OverlayChange) -> bool| items.iter().filter(|item| wanted(item)).count();
    let (created, deleted) = (count(|item| item.lower.is_none()), count(|item| item.upper.is_none()));
    let others = items.len() - created - deleted;
    format!("commit a program's changes: {created} new, {others} changed, {deleted} deleted")
}

/// Everything that would happen, and everything that it would happen to.
fn fingerprint(items: &[&OverlayChange]) -> Digest {
    let mut hasher = Sha256Hasher::default();
    for item in items {
        let was = item.lower.as_ref().map(|was| (was.stat, was.tree.as_ref().map(|tree| tree.digest)));
        let now = item.upper.as_ref().map(|now| match now {
            OverlayUpperState::File { digest, mode, .. } => format!("file {} {mode:o}", digest.to_hex()),
            OverlayUpperState::Link { target } => format!("link {target:?}"),
            OverlayUpperState::Directory { mode } => format!("directory {mode:o}"),
        });
        hasher.update(format!("{:?}\0{was:?}\0{now:?}\0", item.path).as_bytes());
    }
    hasher.finish()
}
