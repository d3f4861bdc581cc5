//! What is kept of a program's changes becomes what the workspace has: all of it, or nothing.
//!
//! Everything new is made in the keep first and put on disk. Then a note has every step, the journal has every effect, and
//! the steps are made, each by one rename. The first that cannot be made ends it, and those before it go back; whoever comes
//! after a process that died does the same by the note. It is one change, and is undone like any other.
//!
//! Not here: what changed (`compare.rs`).

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::{Assurance, Context, ErrorKind, Pace, Ticket, ToolError};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::compare::{Item, Now, place, shown};
use super::stage::{FEW, Stage, Staged, sync_directories};
use super::step::{make, take_back};
use super::{Left, step};
use crate::again::fstat;
use crate::batch_note::{BatchNote, Entry, Known, LOST, Step, is_unsettled};
use crate::content::{hash_up_to, read_up_to};
use crate::fault::{fault, unsynced};
use crate::journal::{Effect, Keep, Look, State, cost, drop_images, image_name, open_straight, split, unkept};
use crate::known::At;
use crate::locks::Tree;
use crate::mount::{Durability, Mount, Rights, look};
use crate::name::{alike, show};
use crate::recover::{open_parent, recover_notes, recover_tree};
use crate::replace::Old;
use crate::slot::{check_directory_writable, listing};
use crate::stamp::{Kind, Stamp};
use crate::tools::manifest::{Class, survey};

/// Makes everything that is to be kept of what a program left, or nothing.
pub(super) fn commit(mut left: Left, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mount = &*Arc::clone(&left.mount);
    left.drop_refused();
    if left.items.is_empty() {
        return Ok(());
    }
    if mount.rights == Rights::ReadOnly {
        return Err(ToolError::new(ErrorKind::ReadOnly, "the workspace is read-only; nothing was changed"));
    }
    let Some(journal) = &mount.journal else {
        let message = "without a journal, what a program changed cannot be committed; nothing was changed";
        return Err(ToolError::new(ErrorKind::Unavailable, message));
    };
    if ticket.change().is_empty() {
        return Err(ToolError::new(ErrorKind::Internal, "a call that changes nothing cannot commit changes"));
    }
    mount.check_in_place(Pace::Patient)?;
    // Nobody else of ours changes anything meanwhile.
    let tree = mount.locks.hold_tree(Tree::Alone, ticket.context())?;
    recover_tree(mount, &tree);
    recover_notes(mount);
    if is_unsettled(mount) {
        let message = "an earlier change was interrupted and could not be taken back yet; nothing was changed";
        return Err(ToolError::new(ErrorKind::Conflict, message).hint("see what keeps its files from being changed"));
    }
    withhold_changed(&mut left, ticket)?;
    if left.items.is_empty() {
        tree.settle();
        return Ok(());
    }
    let left = &left;
    check_guards(left, ticket)?;
    let keep = mount.make_keep(journal)?;
    // There is nothing to be taken back yet. What has the change in its name goes with the note.
    let note = BatchNote::write(&mount.locks, ticket.change(), &[])?;
    tree.intend(note.id())?;
    let done = carry_out(left, &keep, &note, ticket);
    drop(note);
    tree.settle();
    done
}

/// A step with what has to be known to make it.
struct Planned {
    entry: Entry,
    shown: String,
    /// A directory that goes, with everything that is in it.
    tree: Option<State>,
}

/// Every step, in order, and what the journal has to know.
#[derive(Default)]
struct Plan {
    steps: Vec<Planned>,
    effects: Vec<Effect>,
}

/// A new directory that gets its mode when it is in its place.
struct Closing {
    path: Vec<u8>,
    inode: u64,
    modes: [u32; 2],
}

fn carry_out(left: &Left, keep: &Keep, note: &BatchNote<'_>, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let (mount, cx) = (&*left.mount, ticket.context());
    let mut images = Vec::new();
    let entered = prepare(left, keep, ticket, &mut images).and_then(|plan| {
        let entries: Vec<Entry> = plan.steps.iter().map(|step| step.entry.clone()).collect();
        note.complete(&entries, mount.durability)?;
        let entered = mount.enter(ticket, Vec::new(), plan.effects)?;
        ticket.commit()?;
        Ok((entered, plan.steps, entries))
    });
    let (entered, steps, entries) = match entered {
        Ok(entered) => entered,
        Err(error) => {
            // Nothing took its place yet: whatever has one of these names was made here.
            drop_images(mount, &images);
            return Err(error);
        }
    };
    let mut parents = Parents::new(mount);
    let made = steps.iter().try_for_each(|planned| perform(mount, keep, &mut parents, planned, cx));
    let done = made.and_then(|()| {
        let synced = sync(mount, keep, &entries);
        note.done().map(|()| synced)
    });
    let synced = match done {
        Ok(synced) => synced.and_then(|()| note.sync(mount.durability)),
        Err(refused) => {
            let back = |entry: &Entry| {
                open_parent(mount, &entry.parent).is_none_or(|parent| take_back(mount, parent.as_fd(), entry).is_ok())
            };
            let all = entries.iter().rev().map(back).collect::<Vec<_>>().into_iter().all(|one| one);
            note.forget_if(all);
            return Err(if all { refused } else { half_done(refused) });
        }
    };
    entries.iter().for_each(|entry| step::clear(mount, entry));
    entered.done();
    remember(left, &mut parents);
    let first = steps.first().map_or("", |planned| &planned.shown);
    synced.map_err(|errno| unsynced(errno, first))
}

/// Makes everything new in the keep, and says which steps there are.
fn prepare(left: &Left, keep: &Keep, ticket: &Ticket<'_>, images: &mut Vec<String>) -> Result<Plan, ToolError> {
    let (mount, cx) = (&*left.mount, ticket.context());
    let bytes = left.items.iter().map(Item::displaced_bytes).fold(0u64, u64::saturating_add);
    let kept = mount.can_be_kept(bytes, &[], cx)?;
    if !kept && !ticket.may_lose() {
        return Err(unkept());
    }
    let stage = Stage::new(mount, keep, (&left.upper, left.items.len()), cx)?;
    let mut planner = Planner {
        mount,
        keep,
        stage,
        ticket,
        kept,
        images,
        opened: HashSet::new(),
        parents: Parents::new(mount),
        plan: Plan::default(),
    };
    let tops: Vec<(&Item, &[Item])> = tops(&left.items).collect();
    let opens = |mode: u32| mode & 0o300 == 0o300;
    // What is to be written to is opened first, and closed last.
    for (item, _) in &tops {
        if let Some(mode) = item.directory_mode().filter(|mode| opens(*mode)) {
            planner.permit(item, mode)?;
            planner.opened.insert(item.path.clone());
        }
    }
    for (item, _) in tops.iter().filter(|(item, _)| item.now.is_none() || item.changes_kind()) {
        planner.away(item)?;
    }
    let mut later = Vec::new();
    for (item, inside) in tops.iter().filter(|(item, _)| item.now.is_some() && item.directory_mode().is_none()) {
        later.extend(planner.put(item, inside)?);
    }
    for (item, _) in &tops {
        if let Some(mode) = item.directory_mode().filter(|mode| !opens(*mode)) {
            planner.permit(item, mode)?;
        }
    }
    for Closing { path, inode, modes } in later {
        planner.push_mode(&path, inode, modes);
    }
    planner.stage.sync()?;
    Ok(planner.plan)
}

/// Items that have a step of their own, each with those that come with it.
fn tops(items: &[Item]) -> impl Iterator<Item = (&Item, &[Item])> {
    items.iter().enumerate().filter(|(_, item)| !item.within).map(|(index, item)| {
        let rest = &items[index + 1..];
        let inside = rest.iter().take_while(|next| next.within).count();
        (item, &rest[..inside])
    })
}

struct Planner<'a> {
    mount: &'a Mount,
    keep: &'a Keep,
    stage: Stage<'a>,
    ticket: &'a Ticket<'a>,
    /// Whether what is displaced is kept.
    kept: bool,
    images: &'a mut Vec<String>,
    /// Directories that can be written to when their turn comes.
    opened: HashSet<Vec<u8>>,
    parents: Parents<'a>,
    plan: Plan,
}

impl Planner<'_> {
    /// A new name in the keep.
    fn image(&mut self) -> String {
        let image = image_name(self.ticket.change(), self.images.len());
        self.images.push(image.clone());
        image
    }

    fn check_writable(&mut self, path: &[u8], shown: &str) -> Result<(), ToolError> {
        if self.opened.contains(split(path).0) {
            return Ok(());
        }
        check_directory_writable(self.parents.open(path)?, shown)
    }

    fn push(&mut self, path: &[u8], step: Step, image: &str, lost: bool, tree: Option<State>) {
        let (parent, name) = split(path);
        let directory = self.parents.open(path).ok().and_then(|parent| fstat(parent).ok());
        let entry = Entry {
            step,
            parent: parent.to_vec(),
            directories: [directory.map(|stat| Stamp::of(&stat).id.inode), None],
            name: name.to_vec(),
            temporary: image.as_bytes().to_vec(),
            other: if lost { LOST.to_vec() } else { Vec::new() },
        };
        self.plan.steps.push(Planned { entry, shown: shown(self.mount, path), tree });
    }

    fn permit(&mut self, item: &Item, mode: u32) -> Result<(), ToolError> {
        let name = shown(self.mount, &item.path);
        let was = item.was.as_ref().ok_or_else(|| meanwhile(&name))?.stamp;
        // What a program cannot see it does not change.
        self.push_mode(&item.path, was.id.inode, [was.mode, was.mode & 0o7000 | mode]);
        Ok(())
    }

    fn push_mode(&mut self, path: &[u8], inode: u64, [from, to]: [u32; 2]) {
        self.push(path, Step::Mode { inode, from, to }, "", false, None);
        self.plan.effects.push(Effect::Mode { path: show(path), inode, before: from, after: to });
    }

    fn away(&mut self, item: &Item) -> Result<(), ToolError> {
        let name = shown(self.mount, &item.path);
        let cx = self.ticket.context();
        let was = item.was.as_ref().ok_or_else(|| meanwhile(&name))?.stamp;
        self.check_writable(&item.path, &name)?;
        let parent = self.parents.open(&item.path)?;
        let state = State::at(self.mount, parent, split(&item.path).1, Look::Whole, cx)?;
        let state = state.filter(|state| state.inode == was.id.inode).ok_or_else(|| meanwhile(&name))?;
        let image = self.image();
        let tree = (was.kind == Kind::Directory).then(|| state.clone());
        self.push(&item.path, Step::Away { old: Known::of(&was) }, &image, !self.kept, tree);
        let path = show(&item.path);
        self.plan.effects.push(match self.kept {
            true => Effect::Removed { path, before: state, image, copied: false },
            false => Effect::Lost { path },
        });
        Ok(())
    }

    /// Makes something new and says how it takes its place. Comes back with the mode that a directory gets later.
    fn put(&mut self, item: &Item, inside: &[Item]) -> Result<Option<Closing>, ToolError> {
        let name = shown(self.mount, &item.path);
        self.check_writable(&item.path, &name)?;
        let was = item.was.as_ref().filter(|_| !item.changes_kind()).map(|was| was.stamp);
        let old = was.map(|was| self.open_old(item, &was)).transpose()?.flatten();
        let image = self.image();
        let above = fstat(self.parents.open(&item.path)?).map_err(|errno| fault(errno, &name))?;
        let staged = self
            .stage
            .make(&image, (item, inside), &Stamp::of(&above), old.as_ref())?
            .ok_or_else(|| meanwhile(&name))?;
        let new = Known::of(&staged.stamp);
        let path = show(&item.path);
        let Some(was) = was else {
            self.push(&item.path, Step::Put { new }, &image, false, None);
            let Staged { stamp, state, later } = staged;
            self.plan.effects.push(Effect::Created { path, after: state, image: Some(image) });
            let closing = |mode| Closing { path: item.path.clone(), inode: stamp.id.inode, modes: [stamp.mode, mode] };
            return Ok(later.map(closing));
        };
        let (effect, lost) = self.displace(item, &was, old.as_ref(), &image, staged.state)?;
        self.push(&item.path, Step::Over { old: Known::of(&was), new }, &image, lost, None);
        self.plan.effects.push(effect);
        Ok(None)
    }

    /// The effect of taking the place of a file or link, and whether that goes for good.
    fn displace(
        &mut self,
        item: &Item,
        was: &Stamp,
        old: Option<&Old>,
        image: &str,
        after: State,
    ) -> Result<(Effect, bool), ToolError> {
        let (path, name) = (show(&item.path), shown(self.mount, &item.path));
        let cx = self.ticket.context();
        if !self.kept {
            return Ok((Effect::Lost { path }, true));
        }
        if let Some(old) = old.filter(|_| was.links > 1) {
            // Whoever writes to it by another name would change what is kept.
            let copy = self.image();
            let before = self.keep.copy(self.mount, old, was.size, &copy, cx)?;
            return Ok((Effect::Replaced { path, before, after, image: copy, copied: true }, true));
        }
        let before = State::at(self.mount, self.parents.open(&item.path)?, split(&item.path).1, Look::Whole, cx)?;
        let before = before.filter(|state| state.inode == was.id.inode).ok_or_else(|| meanwhile(&name))?;
        Ok((Effect::Replaced { path, before, after, image: image.to_owned(), copied: false }, false))
    }

    /// The file that is to be replaced. Nothing for a link, and for what may not be read.
    fn open_old(&mut self, item: &Item, was: &Stamp) -> Result<Option<Old>, ToolError> {
        let name = shown(self.mount, &item.path);
        if was.kind != Kind::File {
            return Ok(None);
        }
        // Whether it may be written is not asked: the program gave its name to another one, and had the right to.
        let fd = match self.mount.open_at(self.parents.open(&item.path)?, split(&item.path).1, OFlags::RDONLY) {
            Err(Errno::ACCESS) => return Ok(None),
            opened => opened.map_err(|errno| fault(errno, &name))?,
        };
        let stamp = Stamp::of(&fstat(&fd).map_err(|errno| fault(errno, &name))?);
        if stamp == *was { Ok(Some(Old { fd, stamp })) } else { Err(meanwhile(&name)) }
    }
}

impl Item {
    /// How much would have to be kept, as the quota counts it.
    pub(super) fn displaced_bytes(&self) -> u64 {
        match (&self.was, self.directory_mode()) {
            (Some(was), None) => {
                was.tree.as_ref().map_or_else(|| cost(was.stamp.size, 0), |tree| cost(tree.bytes, tree.entries))
            }
            _ => 0,
        }
    }
}

/// Directories of the workspace, the last one held.
struct Parents<'a> {
    mount: &'a Mount,
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl<'a> Parents<'a> {
    fn new(mount: &'a Mount) -> Self {
        Self { mount, last: None }
    }

    /// The directory of a path, reached through no link.
    fn open(&mut self, path: &[u8]) -> Result<std::os::fd::BorrowedFd<'_>, ToolError> {
        let (above, _) = split(path);
        let gone = || meanwhile(&shown(self.mount, path));
        if self.last.as_ref().is_none_or(|(last, _)| last != above) {
            self.last = Some((above.to_vec(), open_straight(self.mount, above).ok_or_else(gone)?));
        }
        self.last.as_ref().map(|(_, fd)| fd.as_fd()).ok_or_else(gone)
    }
}

fn perform(
    mount: &Mount,
    keep: &Keep,
    parents: &mut Parents<'_>,
    planned: &Planned,
    cx: &Context<'_>,
) -> Result<(), ToolError> {
    let Planned { entry, shown, tree } = planned;
    let path = [entry.parent.as_slice(), b"/", &entry.name].concat();
    let parent = parents.open(if entry.parent.is_empty() { &entry.name } else { &path })?;
    make(keep, parent, entry).map_err(|errno| match errno {
        Errno::BUSY => meanwhile(shown),
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => {
            let message = "this file system cannot exchange two files, so changes of programs cannot be committed";
            ToolError::new(ErrorKind::Unavailable, message)
        }
        other => fault(other, shown),
    })?;
    // Nobody comes to it any more: now it shows whether it went as it was seen.
    if let Some(tree) = tree {
        let now = State::at(mount, keep.fd(), &entry.temporary, Look::Whole, cx)?;
        if !now.is_some_and(|now| tree.is(&now)) {
            return Err(meanwhile(shown));
        }
    }
    Ok(())
}

fn sync(mount: &Mount, keep: &Keep, entries: &[Entry]) -> Result<(), Errno> {
    if mount.durability != Durability::Full {
        return Ok(());
    }
    let parents: BTreeSet<&[u8]> = entries.iter().map(|entry| entry.parent.as_slice()).collect();
    let few = parents.iter().take(FEW + 1).filter_map(|parent| open_parent(mount, parent));
    let few = few.map(|parent| listing(parent.as_fd())).collect::<Result<Vec<_>, _>>()?;
    sync_directories(keep, &few)
}

/// New contents are another file: it is as sensitive as the one before.
fn remember(left: &Left, parents: &mut Parents<'_>) {
    let named = |item: &&Item| !item.is_data && matches!(item.now, Some(Now::File { .. }));
    for item in left.items.iter().filter(named) {
        let was = item.was.as_ref().map(|was| was.sensitivity).unwrap_or_default();
        let known = place(&left.mount, &item.path).sensitive().or(was);
        if !known.is_any() {
            continue;
        }
        let (_, name) = split(&item.path);
        if let Ok(parent) = parents.open(&item.path)
            && let Ok(Some(stamp)) = look(parent, name)
        {
            left.mount.weigh(known, At { fd: parent, name }, &stamp);
        }
    }
}

/// Every path must be as it was when the program started, and when it was looked at. A group with another one is withheld.
fn withhold_changed(left: &mut Left, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mount = Arc::clone(&left.mount);
    let mut parents = Parents::new(&mount);
    let mut stale: Vec<(usize, ToolError)> = Vec::new();
    for (item, _) in tops(&left.items) {
        ticket.context().check()?;
        if !is_unchanged(left, item, &mut parents, ticket.context())? {
            stale.push((item.group, changed_below(&shown(&mount, &item.path))));
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    for (group, error) in left.refuse_groups(stale) {
        ticket.withhold(group, error);
    }
    left.drop_refused();
    Ok(())
}

/// The error for a path that another process changed since the program started.
pub(super) fn changed_below(shown: &str) -> ToolError {
    let message = format!("`{shown}` changed in the workspace since the program started");
    ToolError::new(ErrorKind::Conflict, message).hint("run it again")
}

fn is_unchanged(left: &Left, item: &Item, parents: &mut Parents<'_>, cx: &Context<'_>) -> Result<bool, ToolError> {
    let mount = &*left.mount;
    let (_, name) = split(&item.path);
    let name_shown = shown(mount, &item.path);
    let Ok(parent) = parents.open(&item.path) else { return Ok(false) };
    let now = look(parent, name).map_err(|errno| fault(errno, &name_shown))?;
    let (was, now) = match (&item.was, now) {
        (None, None) => return Ok(true),
        (Some(was), Some(now)) => (was, now),
        _ => return Ok(false),
    };
    if item.directory_mode().is_some() {
        return Ok(was.stamp.id == now.id && was.stamp.mode == now.mode);
    }
    if was.stamp != now {
        return Ok(false);
    }
    if let Some(tree) = &was.tree {
        let start = mount.resolver.open_child(parent, name).map_err(|errno| fault(errno, &name_shown))?;
        return Ok(survey(mount, start, &name_shown, |_| Class::default(), cx)?.digest == tree.digest);
    }
    let Some(seen) = left.previewed.get(&item.path) else { return Ok(true) };
    let fd = mount.open_at(parent, name, OFlags::RDONLY).map_err(|errno| fault(errno, &name_shown))?;
    Ok(hash_up_to(fd.as_fd(), now.size, &name_shown, cx)? == *seen)
}

/// The rules about the contents of single files hold, whoever changes them.
fn check_guards(left: &Left, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mount = &*left.mount;
    for guard in &mount.guards {
        for item in &left.items {
            let inside = |path: &[u8], above: &[u8]| {
                path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            };
            let alike = |path: &[u8]| alike(path).unwrap_or_default();
            let name = shown(mount, &item.path);
            let refuse = |how: &str| {
                let message = format!("`{name}` {how} `{}`, which is guarded; nothing was changed", show(&guard.path));
                Err(ToolError::new(ErrorKind::PermissionDenied, message))
            };
            if item.path == guard.path {
                judge(left, item, ticket)?;
            } else if inside(alike(&item.path).as_bytes(), alike(&guard.path).as_bytes()) {
                return refuse("is too much like, or lies below,");
            } else if inside(&guard.path, &item.path) && item.was.is_some() && item.directory_mode().is_none() {
                return refuse("is the place of");
            }
        }
    }
    Ok(())
}

fn judge(left: &Left, item: &Item, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let (mount, cx) = (&*left.mount, ticket.context());
    let name = shown(mount, &item.path);
    let most = cx.limits.appended_file_bytes;
    let read = |fd: OwnedFd, stamp: &Stamp| {
        if stamp.kind != Kind::File || stamp.size > most {
            let message = format!("`{name}` is guarded, and only a file of up to {most} bytes can be judged");
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        read_up_to(&fd, stamp.size, cx).map_err(|errno| fault(errno, &name))
    };
    let before = match &item.was {
        Some(was) => {
            let mut parents = Parents::new(mount);
            let parent = parents.open(&item.path)?;
            let fd = mount.open_at(parent, split(&item.path).1, OFlags::RDONLY);
            Some(read(fd.map_err(|errno| fault(errno, &name))?, &was.stamp)?)
        }
        None => None,
    };
    let after = match &item.now {
        Some(Now::File { seen, .. }) => Some(read(left.open(item, seen)?, seen)?),
        Some(_) => {
            let message = format!("`{name}` is guarded, and only a file can be there; nothing was changed");
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        None => None,
    };
    let by_person = ticket.approval().is_some_and(|approval| approval.assurance == Assurance::Person);
    mount.judge(&item.path, before.as_deref(), after.as_deref(), by_person)
}

fn meanwhile(shown: &str) -> ToolError {
    let message = format!("`{shown}` was changed by another program at the same moment; nothing was changed");
    ToolError::new(ErrorKind::Conflict, message)
}

/// The error where not every step could be taken back.
fn half_done(refused: ToolError) -> ToolError {
    refused
        .hint("some of the files are changed and could not be changed back; the next start tries again")
        .detail("committed", "unknown")
}
