//! What a layer means for the workspace: every path that is to be another than it is.
//!
//! Contents are compared, never times. A directory that was removed and made again hides what was in it; everything that it
//! hides is a delete here. What cannot be committed at all, such as a pipe, is left out and named.
//!
//! Not here: reading the layer (`upper.rs`), and what is done about it (`commit.rs`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use ringfence_kernel::{Context, ErrorKind, Place, Sensitivity, ToolError, Verb};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::upper::{Entry, Listing, Upper, What, open_file};
use crate::again::{fstat, readlinkat};
use crate::content::hash_up_to;
use crate::digest::Digest;
use crate::fault::fault;
use crate::journal::{open_straight, split};
use crate::known::At;
use crate::mount::{Mount, look};
use crate::name::{is_reserved, may_create, show};
use crate::path::LONGEST_PATH;
use crate::slot::listing as listing_of;
use crate::stamp::{Kind, Stamp};
use crate::tools::manifest::{Class, Manifest, Whole, survey};
use crate::walk::{Ours, read_directory};

/// As the kernel counts them.
const MOST_LINKS: usize = 40;

/// One path that is to be another than it is.
#[derive(Debug)]
pub(super) struct Item {
    /// Below the root.
    pub(super) path: Vec<u8>,
    /// What stands there in the workspace.
    pub(super) was: Option<Was>,
    /// What shall stand there.
    pub(super) now: Option<Now>,
    /// It comes with a new directory that it is in.
    pub(super) within: bool,
    /// What it stands or falls with.
    pub(super) group: usize,
    /// Data of a git repository that was there before, which leads to nothing protected.
    pub(super) is_data: bool,
}

/// A path that cannot be committed, whatever the policy says, with everything below it.
#[derive(Debug)]
pub(super) struct Unkeepable {
    pub(super) path: Vec<u8>,
    pub(super) error: ToolError,
}

#[derive(Debug)]
pub(super) struct Was {
    pub(super) stamp: Stamp,
    /// What is known of it, by its names and by what it is.
    pub(super) sensitivity: Sensitivity,
    /// What is in a directory that goes.
    pub(super) tree: Option<Manifest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Now {
    File {
        /// In the layer.
        seen: Stamp,
        digest: Digest,
        mode: u32,
        /// The same contents are there already.
        only_mode: bool,
    },
    Link {
        target: Vec<u8>,
    },
    Directory {
        mode: u32,
    },
}

/// What was found.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) items: Vec<Item>,
    /// Paths that another process changed since the program started. What is below a directory among them is stale too.
    pub(super) stale: BTreeSet<Vec<u8>>,
    pub(super) unkeepable: Vec<Unkeepable>,
}

impl Item {
    pub(super) fn new(path: Vec<u8>, was: Option<Was>, now: Option<Now>) -> Self {
        Self { path, was, now, within: false, group: 0, is_data: false }
    }

    /// A directory that was not there, or takes the place of something else.
    pub(super) fn is_new_directory(&self) -> bool {
        matches!(self.now, Some(Now::Directory { .. })) && self.directory_mode().is_none()
    }

    /// A directory takes the place of something else, or the other way round: that cannot be done in one step.
    pub(super) fn changes_kind(&self) -> bool {
        let was = self.was.as_ref().map(|was| was.stamp.kind == Kind::Directory);
        let now = self.now.as_ref().map(|now| matches!(now, Now::Directory { .. }));
        matches!((was, now), (Some(was), Some(now)) if was != now)
    }

    /// Only the permissions of a directory are others.
    pub(super) fn directory_mode(&self) -> Option<u32> {
        match (&self.was, &self.now) {
            (Some(_), Some(Now::Directory { mode })) if !self.changes_kind() => Some(*mode),
            _ => None,
        }
    }
}

/// Compares a layer with the workspace. `started` is in nanoseconds since 1970.
pub(super) fn compare(mount: &Mount, upper: &Upper, started: i128, cx: &Context<'_>) -> Result<Comparison, ToolError> {
    let mut comparer = Comparer {
        mount,
        upper,
        started,
        cx,
        entries: cx.limits.walk_entries,
        bytes: cx.limits.copy_bytes,
        directories: vec![Directory { path: Vec::new(), below: Below::Seen, unmatched: false }],
        found: Comparison { items: Vec::new(), stale: BTreeSet::new(), unkeepable: Vec::new() },
    };
    while let Some(directory) = comparer.directories.pop() {
        let compared = comparer.compare_directory(&directory);
        comparer.leave_out(compared, &directory.path)?;
    }
    let mut found = comparer.found;
    // What is in a directory comes right behind it.
    found.items.sort_by(|a, b| a.path.split(|byte| *byte == b'/').cmp(b.path.split(|byte| *byte == b'/')));
    Ok(found)
}

/// How replies spell a path below the root.
pub(super) fn shown(mount: &Mount, path: &[u8]) -> String {
    let path = show(path);
    if mount.named { format!("@{}/{path}", mount.alias) } else { path }
}

/// A path below the root, as the policy has to know it.
pub(super) fn place(mount: &Mount, path: &[u8]) -> Place {
    let given = show(path);
    let sensitivity = mount.known.linked().sensitivity(path);
    Place { mount: Arc::clone(&mount.alias), shown: shown(mount, path), given, sensitivity, ..Place::default() }
}

struct Comparer<'a> {
    mount: &'a Mount,
    upper: &'a Upper,
    started: i128,
    cx: &'a Context<'a>,
    /// How much may still be looked at.
    entries: u64,
    bytes: u64,
    /// Still to be compared.
    directories: Vec<Directory>,
    found: Comparison,
}

struct Directory {
    path: Vec<u8>,
    below: Below,
    /// The workspace has nothing of this name in a directory that it has.
    unmatched: bool,
}

/// What the workspace has where the layer has a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    /// A directory whose entries are seen through the layer.
    Seen,
    /// A directory whose entries are hidden.
    Hidden,
    /// No directory.
    Nothing,
}

impl Comparer<'_> {
    fn compare_directory(&mut self, directory: &Directory) -> Result<(), ToolError> {
        let Directory { path, below, unmatched } = directory;
        let name = shown(self.mount, path);
        let listing = self.upper.list(path, self.entries, &name, self.cx)?;
        self.entries = self.entries.saturating_sub(listing.entries.len() as u64);
        let below = if *below == Below::Seen && listing.opaque { Below::Hidden } else { *below };
        if below == Below::Nothing {
            if listing.copied_up && *unmatched {
                // It was made for a directory that is no longer there.
                self.found.stale.insert(path.clone());
            }
            return listing.entries.iter().try_for_each(|entry| self.compare_one(directory, &listing, None, entry));
        }
        let lower = open_straight(self.mount, path).ok_or_else(|| gone(&name))?;
        self.check_directory(path, &Stamp::of(&fstat(&lower).map_err(|errno| fault(errno, &name))?), below);
        let inside = Directory { path: path.clone(), below, unmatched: *unmatched };
        for entry in &listing.entries {
            self.compare_one(&inside, &listing, Some(lower.as_fd()), entry)?;
        }
        if below == Below::Hidden {
            self.remove_hidden(path, lower.as_fd(), &listing)?;
        }
        Ok(())
    }

    /// Somebody may have moved the directory, changed its mode, or changed what is hidden in it.
    fn check_directory(&mut self, path: &[u8], stamp: &Stamp, below: Below) {
        let moved = stamp.changed >= self.started && stamp.modified < self.started;
        let hidden = below == Below::Hidden && stamp.changed >= self.started;
        if !path.is_empty() && (moved || hidden) {
            self.found.stale.insert(path.to_vec());
        }
    }

    /// What was there before the directory was made anew is gone.
    fn remove_hidden(&mut self, path: &[u8], lower: BorrowedFd<'_>, listing: &Listing) -> Result<(), ToolError> {
        let name = shown(self.mount, path);
        let kept: HashSet<&[u8]> = listing.entries.iter().map(|entry| entry.name.as_slice()).collect();
        // `cap-std` gives a descriptor that cannot be listed.
        let listed = listing_of(lower).map_err(|errno| fault(errno, &name))?;
        let there = read_directory(listed.as_fd(), Ours::Hidden, self.entries, &name, self.cx)?;
        self.entries = self.entries.saturating_sub(there.len() as u64);
        for entry in there.iter().filter(|entry| !kept.contains(entry.name.as_slice())) {
            let stamp = look(lower, &entry.name).map_err(|errno| fault(errno, &name))?;
            if let Some(stamp) = stamp {
                let path = joined(path, &entry.name);
                let removed = self.remove(lower, &path, &stamp);
                self.leave_out(removed, &path)?;
            }
        }
        Ok(())
    }

    fn compare_one(
        &mut self,
        directory: &Directory,
        listing: &Listing,
        lower: Option<BorrowedFd<'_>>,
        entry: &Entry,
    ) -> Result<(), ToolError> {
        let compared = self.compare_entry(directory, listing, lower, entry);
        self.leave_out(compared, &joined(&directory.path, &entry.name))
    }

    /// An error about one path leaves out that path alone. One that ends the call, or is about all paths, fails the whole.
    fn leave_out(&mut self, compared: Result<(), ToolError>, path: &[u8]) -> Result<(), ToolError> {
        let is_about_all = |kind: ErrorKind| {
            use ErrorKind::{Cancelled, Internal, Io, ReadLimit, Timeout, WriteLimit};
            path.is_empty() || matches!(kind, Cancelled | Internal | Io | ReadLimit | Timeout | WriteLimit)
        };
        match compared {
            Err(error) if !is_about_all(error.kind) => {
                self.found.unkeepable.push(Unkeepable { path: path.to_vec(), error });
                Ok(())
            }
            compared => compared,
        }
    }

    fn compare_entry(
        &mut self,
        directory: &Directory,
        listing: &Listing,
        lower: Option<BorrowedFd<'_>>,
        entry: &Entry,
    ) -> Result<(), ToolError> {
        self.cx.check()?;
        let path = joined(&directory.path, &entry.name);
        let name = shown(self.mount, &path);
        if is_reserved(&entry.name) {
            // Hidden or not, it is never a program's to remove.
            return if entry.what == What::Whiteout { Ok(()) } else { Err(refused(&name, "is the host's own")) };
        }
        if path.len() > LONGEST_PATH {
            let start: String = name.chars().take(200).collect();
            let message = format!("`{start}…` is deeper than a path may be");
            return Err(ToolError::new(ErrorKind::InvalidPath, message));
        }
        let fail = |errno| fault(errno, &name);
        let was = lower.map(|lower| look(lower, &entry.name)).transpose().map_err(fail)?.flatten();
        if was.is_some_and(|was| was.id.device != self.mount.id.device) {
            return Err(fail(Errno::XDEV));
        }
        if was.is_none() && entry.what != What::Whiteout {
            may_create(&entry.name, self.mount.names)?;
        }
        match (entry.what, lower.zip(was)) {
            (What::Whiteout, None) => Ok(()),
            (What::Whiteout, Some((lower, was))) => self.remove(lower, &path, &was),
            (What::Special, _) => {
                Err(refused(&name, &format!("is {}, and such things are not committed", entry.stamp.kind.described())))
            }
            (What::Directory, was) => self.compare_subdirectory(directory, path, entry, was),
            (What::Link, was) => self.compare_link(directory, path, listing, entry, was),
            (What::File, was) => self.compare_file(directory, path, (listing, lower), entry, was),
        }
    }

    fn compare_subdirectory(
        &mut self,
        directory: &Directory,
        path: Vec<u8>,
        entry: &Entry,
        was: Option<(BorrowedFd<'_>, Stamp)>,
    ) -> Result<(), ToolError> {
        // Its owner keeps the right to look into it: what cannot be looked into can be neither searched nor undone.
        let mode = entry.stamp.mode & 0o777 | 0o500;
        let now = Now::Directory { mode };
        let merged = was.filter(|(_, was)| was.kind == Kind::Directory);
        let Some((_, stamp)) = merged else {
            let unmatched = was.is_none() && directory.below != Below::Nothing;
            self.put(directory, path.clone(), was, now)?;
            self.directories.push(Directory { path, below: Below::Nothing, unmatched });
            return Ok(());
        };
        let below = if directory.below == Below::Hidden { Below::Hidden } else { Below::Seen };
        self.directories.push(Directory { path: path.clone(), below, unmatched: false });
        if stamp.mode & 0o777 != mode {
            let was = Some(Was { stamp, sensitivity: Sensitivity::default(), tree: None });
            self.found.items.push(Item::new(path, was, Some(now)));
        }
        Ok(())
    }

    fn compare_link(
        &mut self,
        directory: &Directory,
        path: Vec<u8>,
        listing: &Listing,
        entry: &Entry,
        was: Option<(BorrowedFd<'_>, Stamp)>,
    ) -> Result<(), ToolError> {
        let fail = |errno| fault(errno, &shown(self.mount, &path));
        let read = |parent: BorrowedFd<'_>| readlinkat(parent, entry.name.as_slice()).map_err(fail);
        let target = read(listing.fd.as_fd())?.into_bytes();
        if let Some((lower, Stamp { kind: Kind::Link, .. })) = was
            && read(lower)?.as_bytes() == target
        {
            return Ok(());
        }
        self.put(directory, path, was, Now::Link { target })
    }

    fn compare_file(
        &mut self,
        directory: &Directory,
        path: Vec<u8>,
        (listing, lower): (&Listing, Option<BorrowedFd<'_>>),
        entry: &Entry,
        was: Option<(BorrowedFd<'_>, Stamp)>,
    ) -> Result<(), ToolError> {
        let name = shown(self.mount, &path);
        let file = open_file(listing.fd.as_fd(), &entry.name, &entry.stamp, &name)?;
        let size = entry.stamp.size;
        self.bytes = self.bytes.checked_sub(size).ok_or_else(|| {
            let message = format!(
                "with `{name}` the files that were written have more than the {} bytes that are committed at once",
                self.cx.limits.copy_bytes
            );
            ToolError::new(ErrorKind::WriteLimit, message).hint("nothing was changed; write less")
        })?;
        let digest = hash_up_to(file.fd.as_fd(), size, &name, self.cx)?;
        let mode = entry.stamp.mode & 0o777;
        let old = was.filter(|(_, was)| was.kind == Kind::File && was.size == size);
        let same = old.is_some_and(|(lower, was)| self.has_contents(lower, &entry.name, &was, digest));
        if same && was.is_some_and(|(_, was)| was.mode & 0o777 == mode) {
            return Ok(());
        }
        if let (None, true, Some(lower)) = (was, file.copied_up, lower) {
            // It was made for a file that has no name here now: the program renamed that, or somebody removed it.
            let above = Stamp::of(&fstat(lower).map_err(|errno| fault(errno, &name))?);
            if above.modified >= self.started {
                self.found.stale.insert(path.clone());
            }
        }
        self.put(directory, path, was, Now::File { seen: entry.stamp, digest, mode, only_mode: same })
    }

    /// Whether a file of the workspace has these contents. One that cannot be read has others.
    fn has_contents(&self, lower: BorrowedFd<'_>, name: &[u8], was: &Stamp, digest: Digest) -> bool {
        let Ok(fd) = self.mount.open_at(lower, name, OFlags::RDONLY) else { return false };
        let is_it = fstat(&fd).is_ok_and(|stat| Stamp::of(&stat) == *was);
        is_it && hash_up_to(fd.as_fd(), was.size, "", self.cx).is_ok_and(|old| old == digest)
    }

    /// Something comes to be at a path, perhaps in the place of something else.
    fn put(
        &mut self,
        directory: &Directory,
        path: Vec<u8>,
        was: Option<(BorrowedFd<'_>, Stamp)>,
        now: Now,
    ) -> Result<(), ToolError> {
        let was = was.map(|(lower, stamp)| self.look_closely(lower, &path, &stamp)).transpose()?;
        let within = directory.below == Below::Nothing;
        self.found.items.push(Item { within, ..Item::new(path, was, Some(now)) });
        Ok(())
    }

    fn remove(&mut self, lower: BorrowedFd<'_>, path: &[u8], stamp: &Stamp) -> Result<(), ToolError> {
        let was = self.look_closely(lower, path, stamp)?;
        self.found.items.push(Item::new(path.to_vec(), Some(was), None));
        Ok(())
    }

    /// Something that is about to go: what is known of it, what is in it, and whether the program can have seen it so.
    fn look_closely(&mut self, lower: BorrowedFd<'_>, path: &[u8], stamp: &Stamp) -> Result<Was, ToolError> {
        let (_, name) = split(path);
        let place = place(self.mount, path);
        let sensitivity = self.mount.weigh(place.sensitive(), At { fd: lower, name }, stamp);
        let mut newest = stamp.changed;
        let tree = match stamp.kind {
            Kind::Directory => {
                let start = self.mount.resolver.open_child(lower, name).map_err(|errno| fault(errno, &place.shown))?;
                let whole = [Whole::new(Verb::Delete, &place, self.cx)];
                let classify = |path: &str| Class::of(&whole, path, self.cx);
                let tree = survey(self.mount, start, &place.shown, classify, self.cx)?;
                if let Some(locked) = &tree.locked {
                    return Err(fault(Errno::ACCESS, format!("{}/{locked}", place.shown).trim_end_matches('/')));
                }
                newest = newest.max(tree.newest);
                Some(tree)
            }
            _ => None,
        };
        if newest >= self.started {
            self.found.stale.insert(path.to_vec());
        }
        Ok(Was { stamp: *stamp, sensitivity, tree })
    }
}

/// A path in a directory, both below the root.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

fn refused(shown: &str, why: &str) -> ToolError {
    ToolError::new(ErrorKind::WrongType, format!("`{shown}` {why}"))
}

fn gone(shown: &str) -> ToolError {
    let message = format!("`{shown}` was removed or replaced while the program ran");
    ToolError::new(ErrorKind::Conflict, message)
}

/// New links that would lead outside, themselves or by way of another one, where these items are kept and no others.
pub(super) fn links_outside<'a>(mount: &Mount, kept: &[&'a Item]) -> Vec<(&'a Item, ToolError)> {
    let links: Vec<(&'a Item, &[u8])> = kept.iter().filter_map(|item| Some((*item, link_of(item)?))).collect();
    if links.is_empty() {
        return Vec::new();
    }
    let tree = Links { mount, items: kept.iter().map(|item| (item.path.as_slice(), *item)).collect() };
    let leads_outside = |(item, target): &(&Item, &[u8])| !tree.stays_inside(&item.path, target);
    let why = |item: &Item| refused(&shown(mount, &item.path), "is a link that leads outside the workspace");
    links.into_iter().filter(leads_outside).map(|(item, _)| (item, why(item))).collect()
}

/// Whether a link leads to the system's own programs, as those of every virtual environment do. They are there for
/// everybody to read, inside the jail and out.
fn is_of_system(target: &[u8]) -> bool {
    let climbs = target.split(|byte| *byte == b'/').any(|name| name == b"..");
    !climbs && [b"/usr/".as_slice(), b"/bin/", b"/lib/", b"/lib64/"].iter().any(|place| target.starts_with(place))
}

fn link_of(item: &Item) -> Option<&[u8]> {
    match &item.now {
        Some(Now::Link { target }) => Some(target),
        _ => None,
    }
}

/// The links of the workspace as it is going to be.
struct Links<'a> {
    mount: &'a Mount,
    items: HashMap<&'a [u8], &'a Item>,
}

impl Links<'_> {
    /// Whether a link goes up no further than to the root. A `..` behind a name is never taken: what that name will be one
    /// day decides where it leads.
    fn stays_inside(&self, path: &[u8], target: &[u8]) -> bool {
        let names = |path: &[u8]| -> Vec<Vec<u8>> {
            let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
            names.map(<[u8]>::to_vec).collect()
        };
        let climbs_late = names(target).iter().skip_while(|name| *name == b"..").any(|name| name == b"..");
        if climbs_late {
            return false;
        }
        if target.starts_with(b"/") {
            return is_of_system(target);
        }
        let mut here = names(split(path).0);
        let mut ahead = names(target);
        ahead.reverse();
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            if name == b".." {
                if here.pop().is_none() {
                    return false;
                }
                continue;
            }
            here.push(name);
            let Some(next) = self.target_at(&here.join(&b'/')) else { continue };
            links += 1;
            if next.starts_with(b"/") {
                return is_of_system(&next);
            }
            // One that goes in circles leads nowhere.
            if links > MOST_LINKS {
                return true;
            }
            here.pop();
            ahead.extend(names(&next).into_iter().rev());
        }
        true
    }

    /// Where a link leads that will be at a path.
    fn target_at(&self, path: &[u8]) -> Option<Vec<u8>> {
        if let Some(item) = self.items.get(path) {
            return link_of(item).map(<[u8]>::to_vec);
        }
        let (parent, name) = split(path);
        let parent = open_straight(self.mount, parent)?;
        Some(readlinkat(&parent, name).ok()?.into_bytes())
    }
}
