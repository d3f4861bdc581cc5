//! What a program changed, for the policy, for a reply, and for a person who is asked.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_kernel::{
    ChangeGroup, ChangeKind, ChangedPath, Changes, Context, KeepDecision, Preview, Ticket, ToolError, Touch, Verb,
};
use rustix::fs::OFlags;

use super::Left;
use super::commit::commit;
use super::compare::{Item, Now, place, shown};
use super::upper::open_file;
use crate::content::hash_up_to;
use crate::digest::{Digest, Hasher};
use crate::fault::fault;
use crate::journal::{open_straight, split};
use crate::mount::look;
use crate::name::show;
use crate::preview::{Contents, Diffs, changed};
use crate::repository::Repositories;
use crate::slot::listing;
use crate::stamp::{Kind, Stamp};
use crate::tools::manifest::touches_below;
use crate::walk::{Ours, Step as WalkStep, Walk};

/// So many files are compared line by line, with so many bytes in all; the rest are listed.
const MOST_DIFFS: usize = 100;
const MOST_BYTES: u64 = 4 << 20;

/// So many protected paths are named that a file of a repository leads to.
const MOST_LEADS: usize = 20;

/// So many lines say what is not compared.
const MOST_LISTED: usize = 1000;

/// A file that went, or the directory that it went with, and where its contents are now.
#[derive(Debug)]
pub(super) struct Renamed {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
}

impl Changes for Left {
    fn groups(&self) -> Vec<ChangeGroup> {
        self.groups.clone()
    }

    fn merge(&mut self) {
        self.merge_groups();
    }

    fn settle(&mut self, wanted: Vec<KeepDecision>) -> Vec<KeepDecision> {
        self.settle_groups(wanted)
    }

    fn list(&self) -> Vec<ChangedPath> {
        let gone: HashSet<&Vec<u8>> = self.renamed.values().collect();
        let stays = |item: &&Item| !gone.contains(&item.path) || item.now.is_some();
        let unkeepable = self.unkeepable.iter().map(|(unkeepable, group)| ChangedPath {
            path: shown(&self.mount, &unkeepable.path),
            what: ChangeKind::Created,
            size: None,
            group: *group,
        });
        self.items.iter().filter(stays).map(|item| self.changed_path(item)).chain(unkeepable).collect()
    }

    fn preview(&mut self, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let (mut diffs, mut left, mut shown_files, mut listed) = (Diffs::new(), MOST_BYTES, 0, 0);
        let mut secret = false;
        let mut previewed = HashMap::new();
        let asked = self.weightiest_first();
        for line in self.leads(&asked) {
            diffs.say(&line);
        }
        for item in &asked {
            cx.check()?;
            let size = item.contents_bytes();
            if item.has_contents() && shown_files < MOST_DIFFS && size <= left {
                secret |= self.is_secret(item);
                self.add_diff(&mut diffs, item, &mut previewed, cx)?;
                (shown_files, left) = (shown_files + 1, left - size);
            } else if listed < MOST_LISTED {
                diffs.say(&self.line(item));
                listed += 1;
            }
        }
        let unlisted = asked.len() - shown_files - listed;
        if unlisted > 0 {
            diffs.say(&format!("… and {unlisted} more changes"));
        }
        let preview = Preview::new(&summary(&asked), fingerprint(&asked).to_hex());
        self.previewed = previewed;
        Ok(preview.with(diffs.into_body()).secret_if(secret))
    }

    fn commit(self: Box<Self>, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        commit(*self, ticket)
    }
}

impl Item {
    /// Whether a diff shows what happens to it.
    fn has_contents(&self) -> bool {
        let now = matches!(self.now, Some(Now::File { only_mode: false, .. }));
        now && self.was.as_ref().is_none_or(|was| was.stamp.kind == Kind::File)
    }

    fn contents_bytes(&self) -> u64 {
        let was = self.was.as_ref().map_or(0, |was| was.stamp.size);
        match &self.now {
            Some(Now::File { seen, .. }) => was.saturating_add(seen.size),
            _ => was,
        }
    }
}

impl Left {
    /// What the policy has to judge: every path, and what is in directories that go.
    pub(super) fn find_touches(&mut self, cx: &Context<'_>) -> Result<(), ToolError> {
        let mut touches = Vec::new();
        // What goes may be kept all the same, so a repository may need it no longer, and still have it.
        let there = self.items.iter().filter(|item| item.now.is_some()).map(|item| item.path.as_slice());
        let mut repositories = Repositories::new(&self.mount, there);
        let bytes = self.items.iter().map(Item::displaced_bytes).fold(0u64, u64::saturating_add);
        let is_lost = bytes > 0 && self.mount.journal.is_some() && !self.mount.can_be_kept(bytes, &[], cx)?;
        for item in &self.items {
            let mut own = Vec::new();
            let mut place = place(&self.mount, &item.path);
            place.sensitivity = item.was.as_ref().map(|was| was.sensitivity).unwrap_or_default();
            place.repository_data = item.is_data;
            place.sensitivity.protected =
                !item.is_data && (place.sensitivity.protected || repositories.have(&item.path));
            let verb = match (&item.was, &item.now) {
                (None, _) => Verb::Create,
                (_, None) => Verb::Delete,
                (Some(_), Some(_)) if item.changes_kind() => Verb::Delete,
                (Some(_), Some(_)) => Verb::Overwrite,
            };
            let below = item.was.iter().filter_map(|was| was.tree.as_ref());
            own.extend(below.flat_map(|tree| touches_below(&place, &tree.sensitive, Verb::Delete)));
            if item.is_data {
                // What is in a directory of objects or references is data as well.
                for touch in &mut own {
                    touch.place.repository_data = true;
                    touch.place.sensitivity.protected = false;
                }
            }
            if item.changes_kind() {
                own.push(Touch { verb: Verb::Create, place: place.clone() });
            }
            if is_lost && item.displaced_bytes() > 0 {
                own.push(Touch { verb: Verb::Lose, place: place.clone() });
            }
            if matches!(item.now, Some(Now::Link { .. })) {
                own.extend(place.through_link().map(|place| Touch { verb: Verb::Create, place }));
            }
            own.push(Touch { verb, place });
            touches.push(own);
        }
        self.touches = touches;
        Ok(())
    }

    /// A file that went and one that came with the same contents were one file. Returns each pair, with the file's own path
    /// or that of the directory that went with it.
    pub(super) fn find_renames(&mut self, cx: &Context<'_>) -> Result<Vec<Renamed>, ToolError> {
        let mut new: HashMap<u64, Vec<(&[u8], Digest)>> = HashMap::new();
        for item in &self.items {
            if let (None, Some(Now::File { seen, digest, .. })) = (&item.was, &item.now)
                && seen.size > 0
            {
                new.entry(seen.size).or_default().push((&item.path, *digest));
            }
        }
        let (mut renamed, mut moved) = (HashMap::new(), Vec::new());
        let mut bytes = cx.limits.copy_bytes;
        for item in self.items.iter().filter(|item| item.now.is_none()) {
            let Some(was) = item.was.as_ref().filter(|_| !new.is_empty()) else { continue };
            cx.check()?;
            let mut take = |size: u64, old: &OwnedFd| {
                let candidates = new.get_mut(&size)?;
                bytes = bytes.checked_sub(size)?;
                let digest = hash_up_to(old.as_fd(), size, "", cx).ok()?;
                let index = candidates.iter().position(|(_, new)| *new == digest)?;
                Some(candidates.swap_remove(index).0.to_vec())
            };
            match was.stamp.kind {
                Kind::File => {
                    let Ok(old) = self.open_lower(item) else { continue };
                    if let Some(path) = take(was.stamp.size, &old) {
                        renamed.insert(path.clone(), item.path.clone());
                        moved.push(Renamed { from: item.path.clone(), to: path });
                    }
                }
                Kind::Directory => {
                    let paths = self.moved_along(item, &mut take, cx)?;
                    moved.extend(paths.into_iter().map(|to| Renamed { from: item.path.clone(), to }));
                }
                _ => {}
            }
        }
        self.renamed = renamed;
        Ok(moved)
    }

    /// New files that have the contents of files in a directory that goes.
    fn moved_along(
        &self,
        item: &Item,
        take: &mut impl FnMut(u64, &OwnedFd) -> Option<Vec<u8>>,
        cx: &Context<'_>,
    ) -> Result<Vec<Vec<u8>>, ToolError> {
        let Some(start) = open_straight(&self.mount, &item.path) else { return Ok(Vec::new()) };
        let Ok(start) = listing(start.as_fd()) else { return Ok(Vec::new()) };
        let name = shown(&self.mount, &item.path);
        let mut walk = Walk::seeing(Ours::Hidden, &self.mount, start, &name, cx)?;
        let mut found = Vec::new();
        while let Some(step) = walk.next()? {
            let WalkStep::Entry(entry) = step else { continue };
            if walk.is_directory(&entry)? {
                // What cannot be looked into has nothing that is known to have moved.
                let _ = walk.descend(&entry)?;
            } else if let Some(stamp) = walk.look(&entry)?.filter(|stamp| stamp.kind == Kind::File)
                && let Ok(file) = self.mount.open_at(walk.directory()?, &entry.name, OFlags::RDONLY)
            {
                found.extend(take(stamp.size, &file));
            }
        }
        Ok(found)
    }

    /// The new contents of an item.
    pub(super) fn open(&self, item: &Item, seen: &Stamp) -> Result<OwnedFd, ToolError> {
        let name = shown(&self.mount, &item.path);
        let (above, file) = split(&item.path);
        let directory = self.upper.open_directory(above).map_err(|errno| fault(errno, &name))?;
        Ok(open_file(directory.as_fd(), file, seen, &name)?.fd)
    }

    /// What an item replaces, if it is still what was compared.
    fn open_lower(&self, item: &Item) -> Result<OwnedFd, ToolError> {
        let name = shown(&self.mount, &item.path);
        let (above, file) = split(&item.path);
        let parent = open_straight(&self.mount, above).ok_or_else(|| changed(&name))?;
        let seen = item.was.as_ref().map(|was| was.stamp);
        if look(parent.as_fd(), file).map_err(|errno| fault(errno, &name))? != seen {
            return Err(changed(&name));
        }
        self.mount.open_at(parent.as_fd(), file, OFlags::RDONLY).map_err(|errno| fault(errno, &name))
    }

    fn add_diff(
        &self,
        diffs: &mut Diffs,
        item: &Item,
        previewed: &mut HashMap<Vec<u8>, Digest>,
        cx: &Context<'_>,
    ) -> Result<(), ToolError> {
        let Some(Now::File { seen, .. }) = &item.now else { return Ok(()) };
        let name = shown(&self.mount, &item.path);
        let new = Contents::of(self.open(item, seen)?.as_fd(), seen, &name, cx)?;
        let old = match &item.was {
            Some(was) => Some(Contents::of(self.open_lower(item)?.as_fd(), &was.stamp, &name, cx)?),
            None => None,
        };
        if let Some(digest) = old.as_ref().and_then(|old| old.digest) {
            previewed.insert(item.path.clone(), digest);
        }
        diffs.add(&name, old.as_ref(), Some(&new));
        Ok(())
    }

    /// What deserves a second look comes before what does not: however much a program left, none of it is among the rest
    /// that is only counted, as long as there are no more of its kind.
    fn weightiest_first(&self) -> Vec<&Item> {
        let weighty = |touch: &&Touch| touch.verb == Verb::Lose || touch.place.sensitive().is_any();
        let weighty = self.touches.iter().flatten().filter(weighty);
        // A directory that goes is as weighty as what is in it.
        let paths: HashSet<&Path> = weighty.flat_map(|touch| Path::new(&touch.place.given).ancestors()).collect();
        let mut items: Vec<&Item> = self.items.iter().filter(|item| self.is_asked(item)).collect();
        items.sort_by_key(|item| !paths.contains(Path::new(&show(&item.path))));
        items
    }

    /// What files of a repository lead to, and may not be written unasked.
    fn leads(&self, items: &[&Item]) -> Vec<String> {
        let leads = items.iter().filter_map(|item| Some((item, self.repositories.leads.get(&item.path)?)));
        let line = |(item, paths): (&&Item, &Vec<Vec<u8>>)| {
            let names: Vec<String> = paths.iter().take(MOST_LEADS).map(|path| format!("`{}`", show(path))).collect();
            let more = match paths.len().saturating_sub(MOST_LEADS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("`{}` brings another {}{more}", shown(&self.mount, &item.path), names.join(", "))
        };
        leads.map(line).collect()
    }

    fn is_secret(&self, item: &Item) -> bool {
        let known = item.was.as_ref().map(|was| was.sensitivity).unwrap_or_default();
        place(&self.mount, &item.path).sensitive().or(known).secret
    }

    fn changed_path(&self, item: &Item) -> ChangedPath {
        let is_file = |stamp: &Stamp| (stamp.kind == Kind::File).then_some(stamp.size);
        let (what, size) = match (&item.was, &item.now) {
            (_, None) => (ChangeKind::Deleted, None),
            (_, Some(Now::Link { .. })) => (ChangeKind::Link, None),
            (Some(_), Some(Now::Directory { .. })) if !item.changes_kind() => (ChangeKind::Mode, None),
            (Some(_), Some(Now::File { seen, only_mode: true, .. })) => (ChangeKind::Mode, is_file(seen)),
            (Some(_), Some(Now::File { seen, .. })) => (ChangeKind::Modified, is_file(seen)),
            (Some(_), Some(Now::Directory { .. })) => (ChangeKind::Modified, None),
            (None, Some(Now::Directory { .. })) => (ChangeKind::Created, None),
            (None, Some(Now::File { seen, .. })) => match self.renamed.get(&item.path) {
                Some(from) => (ChangeKind::Renamed { from: shown(&self.mount, from) }, is_file(seen)),
                None => (ChangeKind::Created, is_file(seen)),
            },
        };
        ChangedPath { path: shown(&self.mount, &item.path), what, size, group: item.group }
    }

    /// One change in words.
    fn line(&self, item: &Item) -> String {
        let ChangedPath { path, what, size, .. } = self.changed_path(item);
        let size = size.map(|size| format!(" ({size} bytes)")).unwrap_or_default();
        match (what, &item.was, &item.now) {
            (ChangeKind::Created, ..) => format!("create `{path}`{size}"),
            (ChangeKind::Modified, ..) => format!("change `{path}`{size}"),
            (ChangeKind::Renamed { from }, ..) => format!("create `{path}`{size} with what was in `{from}`"),
            (ChangeKind::Link, ..) => format!("make `{path}` a link"),
            (ChangeKind::Mode, Some(was), Some(Now::File { mode, .. } | Now::Directory { mode })) => {
                format!("change the mode of `{path}` from {:o} to {mode:o}", was.stamp.mode & 0o777)
            }
            (ChangeKind::Mode, ..) => format!("change the mode of `{path}`"),
            (ChangeKind::Deleted, Some(was), _) => match &was.tree {
                Some(tree) => {
                    format!("delete the directory `{path}` with {} entries ({} bytes)", tree.entries, tree.bytes)
                }
                None => format!("delete `{path}` ({} bytes)", was.stamp.size),
            },
            (ChangeKind::Deleted, ..) => format!("delete `{path}`"),
        }
    }
}

fn summary(items: &[&Item]) -> String {
    let count = |wanted: fn(&Item) -> bool| items.iter().filter(|item| wanted(item)).count();
    let (created, deleted) = (count(|item| item.was.is_none()), count(|item| item.now.is_none()));
    let others = items.len() - created - deleted;
    format!("commit what a program changed: {created} new, {others} changed, {deleted} deleted")
}

/// Everything that would happen, and everything that it would happen to.
fn fingerprint(items: &[&Item]) -> Digest {
    let mut hasher = Hasher::default();
    for item in items {
        let was = item.was.as_ref().map(|was| (was.stamp, was.tree.as_ref().map(|tree| tree.digest)));
        let now = item.now.as_ref().map(|now| match now {
            Now::File { digest, mode, .. } => format!("file {} {mode:o}", digest.to_hex()),
            Now::Link { target } => format!("link {target:?}"),
            Now::Directory { mode } => format!("directory {mode:o}"),
        });
        hasher.update(format!("{:?}\0{was:?}\0{now:?}\0", item.path).as_bytes());
    }
    hasher.finish()
}
