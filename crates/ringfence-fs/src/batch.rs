//! Several files changed, all or none.
//!
//! Every new file is written beside its place first. Then each takes its name, one after the other; the first that
//! cannot ends it, and those before it go back. A note in our state directory has every step, so that whoever comes
//! after a process that died in between takes the steps back or, once the note says that all were made, clears away
//! what they displaced.
//!
//! Not here: directories, changes on different mounts, and one change alone (`replace.rs`).

use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{Context, ErrorKind, Ticket, ToolError};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use crate::again::{fstat, fsync, renameat_with, unlinkat};
use crate::batch_note::{BatchNote, Entry, Known, Step};
use crate::digest::Digest;
use crate::fault::{fault, unsynced};
use crate::journal::{Effect, Fate, State, Turn, split};
use crate::layer;
use crate::locks::{Held, Tree};
use crate::mount::{Durability, Mount, look, rename_onto_nothing};
use crate::name::show;
use crate::recover::{Directories, recover};
use crate::replace::{
    Body, Displaced, Fresh, Old, Written, changed_meanwhile, check_unmoved, check_writable, future_id, open_old,
    temporary_name,
};
use crate::slot::{Made, Slot};
use crate::stamp::{FileId, Stamp};
use crate::trash::{keep_as_conflict, keep_beside};

/// A file that is to be changed, and what the plan found there.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) slot: Slot,
    pub(crate) seen: Option<Stamp>,
}

/// What shall be at a target.
#[derive(Debug)]
pub(crate) enum Goal {
    Contents(Body),
    Nothing,
}

impl Goal {
    /// What there is to say where the file has these contents already.
    fn kept(&self, old: Option<&Old>, cx: &Context<'_>) -> Option<Written> {
        match self {
            Self::Contents(body) => body.kept(old?, cx),
            Self::Nothing => None,
        }
    }

    /// How much it holds.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Contents(Body::Bytes(bytes)) => bytes.len() as u64,
            Self::Contents(Body::File { .. }) | Self::Nothing => 0,
        }
    }
}

/// Changes files of one mount, all or none. `make` is called for each with what is there now, under the locks of all,
/// and says what shall be there instead. Nothing comes back for a file that went.
pub(crate) fn change_all(
    targets: &[Target],
    ticket: &Ticket<'_>,
    mut make: impl FnMut(usize, Option<&Old>) -> Result<Goal, ToolError>,
) -> Result<Vec<Option<Written>>, ToolError> {
    let Some(Target { slot: first, .. }) = targets.first() else { return Ok(Vec::new()) };
    let (mount, cx) = (&*first.mount, ticket.context());
    // Alone: between the first step and the last, nobody else may take what stands there for what will stay.
    let tree = first.hold_place(Tree::Alone, cx)?;
    for target in &targets[1..] {
        target.slot.check_place()?;
    }
    let locks = hold_all(mount, targets, cx)?;
    let mut made = Parents(Vec::new());
    let mut goals = Vec::new();
    for (index, Target { slot, seen }) in targets.iter().enumerate() {
        let parents = slot.make_parents(cx)?;
        let old = open_old(slot, parents.parent.as_fd())?;
        check_unmoved(slot, *seen, old.as_ref().map(|old| old.stamp), ticket)?;
        check_writable(slot, parents.parent.as_fd(), old.as_ref())?;
        goals.push((make(index, old.as_ref())?, old));
        made.0.push(parents);
    }
    let mut kept: Vec<Option<Written>> = goals.iter().map(|(goal, old)| goal.kept(old.as_ref(), cx)).collect();
    let written = {
        let mut members = Vec::new();
        let changing = targets.iter().zip(goals).zip(&made.0).zip(&kept).filter(|(_, kept)| kept.is_none());
        for (((target, (goal, old)), parents), _) in changing {
            members.push(Member::plan(&target.slot, parents, goal, old, ticket)?);
        }
        if members.is_empty() {
            return Ok(kept);
        }
        let entries = members.iter().map(Member::entry).collect::<Result<Vec<Entry>, _>>()?;
        let note = BatchNote::write(&mount.locks, ticket.change(), &entries)?;
        note.put_on_disk(mount.durability)?;
        tree.intend(note.id())?;
        let written = plan_images(&mut members, ticket).and_then(|()| carry_out(&mut members, &note, mount, ticket));
        // What was prepared goes before the note that names it.
        drop(members);
        drop(note);
        tree.settle();
        written?
    };
    drop(locks);
    for (parents, target) in std::mem::take(&mut made.0).into_iter().zip(targets) {
        parents.keep(mount.durability, &target.slot.shown)?;
    }
    for (place, written) in kept.iter_mut().filter(|kept| kept.is_none()).zip(written) {
        *place = written;
    }
    Ok(kept)
}

/// The locks of every target, so that what dead processes left there is cleaned up first.
fn hold_all(mount: &Mount, targets: &[Target], cx: &Context<'_>) -> Result<Vec<Held>, ToolError> {
    loop {
        let ids = targets.iter().map(|target| lock_of(&target.slot)).collect::<Result<Vec<_>, _>>()?;
        let mut held = Vec::new();
        for (lock, left) in mount.locks.hold_all(&ids, cx)? {
            recover(mount, &lock, &left)?;
            held.push(lock);
        }
        // While we waited for one file, another may have come to stand in its place.
        if targets.iter().zip(&ids).all(|(target, id)| lock_of(&target.slot).is_ok_and(|now| now == *id)) {
            return Ok(held);
        }
        cx.check()?;
    }
}

fn lock_of(slot: &Slot) -> Result<FileId, ToolError> {
    let fail = |errno| fault(errno, &slot.shown);
    if slot.lacks_parents() {
        return future_id(slot.base(), &slot.parent_path()).map_err(fail);
    }
    match slot.look()? {
        Some(found) => Ok(found.id),
        None => future_id(slot.base(), &slot.name).map_err(fail),
    }
}

/// Directories that were made; the last ones go first, because they are inside the others.
struct Parents(Vec<Made>);

impl Drop for Parents {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// One change of a batch on its way.
struct Member<'a> {
    slot: &'a Slot,
    parent: BorrowedFd<'a>,
    made: &'a Made,
    goal: Goal,
    old: Option<Old>,
    displaced: Option<Displaced>,
    temporary: Vec<u8>,
    fresh: Option<Fresh<'a>>,
    written: (u64, Option<Digest>),
}

impl<'a> Member<'a> {
    fn plan(
        slot: &'a Slot,
        made: &'a Made,
        goal: Goal,
        old: Option<Old>,
        ticket: &Ticket<'_>,
    ) -> Result<Self, ToolError> {
        let goal = match goal {
            Goal::Contents(body) => Goal::Contents(slot.judged(body, old.as_ref(), ticket)?),
            Goal::Nothing if old.is_none() => return Err(fault(Errno::NOENT, &slot.shown)),
            Goal::Nothing => {
                slot.judge_removal(ticket)?;
                Goal::Nothing
            }
        };
        let temporary = temporary_name().map_err(|errno| fault(errno, &slot.shown))?;
        let parent = made.parent.as_fd();
        Ok(Self { slot, parent, made, goal, old, displaced: None, temporary, fresh: None, written: (0, None) })
    }

    /// Finds out what becomes of the file that is displaced.
    fn plan_image(&mut self, turn: Turn, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        let Some(old) = &self.old else { return Ok(()) };
        self.displaced = Some(match self.goal {
            Goal::Contents(_) => Displaced::new(self.slot, self.parent, old, turn, ticket)?,
            Goal::Nothing => {
                let state = State::of_open(&old.fd, &old.stamp, &self.slot.shown, ticket.context())?;
                let image = self.slot.mount.removal_image(&state, self.parent, turn, ticket)?;
                Displaced { state, fate: image.map_or(Fate::Gone, |image| Fate::Kept { image }) }
            }
        });
        Ok(())
    }

    /// For the journal, once the new file is there.
    fn effects(&self) -> Result<Vec<Effect>, ToolError> {
        let before = self.displaced.as_ref().map(|displaced| (&displaced.state, &displaced.fate));
        let Some(fresh) = &self.fresh else {
            let path = show(&self.slot.path());
            return Ok(match before {
                Some((before, Fate::Kept { image })) => {
                    vec![Effect::Removed { path, before: before.clone(), image: image.clone(), copied: false }]
                }
                _ => vec![Effect::Lost { path }],
            });
        };
        let stamp = Stamp::of(&fstat(&fresh.fd).map_err(|errno| fault(errno, &self.slot.shown))?);
        Ok(self.slot.effects(self.made, before, State::of_file(&stamp, self.written.1)))
    }

    /// For the note: as far as it is known, which files stand where.
    fn entry(&self) -> Result<Entry, ToolError> {
        let stamp_of = |fd: BorrowedFd<'_>| match fstat(fd) {
            Ok(stat) => Ok(Stamp::of(&stat)),
            Err(errno) => Err(fault(errno, &self.slot.shown)),
        };
        let new =
            self.fresh.as_ref().map(|fresh| stamp_of(fresh.fd.as_fd())).transpose()?.map(|stamp| Known::of(&stamp));
        let old = self.old.as_ref().map(|old| Known::of(&old.stamp));
        let step = match (&self.goal, old, new) {
            (Goal::Nothing, Some(old), _) => Step::Remove { old },
            (Goal::Contents(_), Some(old), Some(new)) => Step::Replace { old, new },
            (Goal::Contents(_), None, Some(new)) => Step::Create { new },
            _ => Step::Prepare,
        };
        let (parent, name) = (self.slot.parent_path(), self.slot.name.clone());
        let image = self.displaced.as_ref().and_then(|displaced| displaced.fate.image()).unwrap_or_default();
        let directory = Some(stamp_of(self.parent)?.id.inode);
        let (temporary, other) = (self.temporary.clone(), image.as_bytes().to_vec());
        Ok(Entry { step, parent, directories: [directory, None], name, temporary, other })
    }

    /// Writes the new file beside its place.
    fn prepare(&mut self, cx: &Context<'_>) -> Result<(), ToolError> {
        let Goal::Contents(body) = &self.goal else { return Ok(()) };
        let fail = |errno| fault(errno, &self.slot.shown);
        let fresh = Fresh::create(self.parent, self.temporary.clone(), body.mode(self.old.as_ref())).map_err(fail)?;
        let (size, digest) = fresh.fill(body, cx, &self.slot.shown)?;
        fresh.set_access(body, self.old.as_ref(), &self.slot.shown)?;
        fsync(&fresh.fd).map_err(fail)?;
        self.written = (size, Some(digest));
        self.fresh = Some(fresh);
        Ok(())
    }

    /// Puts it in its place, or says why not and leaves everything as it was.
    fn publish(&self) -> Result<(), ToolError> {
        let Self { slot, parent, temporary, .. } = self;
        let (here, there) = ((*parent, temporary.as_slice()), (*parent, slot.name.as_slice()));
        match (&self.goal, &self.old) {
            (Goal::Contents(_), None) => rename_onto_nothing(here, there).map_err(|errno| match errno {
                Errno::EXIST => changed_meanwhile(slot, None),
                other => fault(other, &slot.shown),
            }),
            (Goal::Contents(_), Some(old)) => {
                exchange(*parent, temporary, &slot.name).map_err(|errno| no_exchange(errno, slot))?;
                if self.displaced(old) {
                    return Ok(());
                }
                // What was there is not what was read: it gets its name back.
                exchange(*parent, temporary, &slot.name).map_err(|errno| fault(errno, &slot.shown))?;
                Err(changed_meanwhile(slot, None))
            }
            (Goal::Nothing, old) => {
                rename_onto_nothing(there, here).map_err(|errno| fault(errno, &slot.shown))?;
                if old.as_ref().is_some_and(|old| self.displaced(old)) {
                    return Ok(());
                }
                rename_onto_nothing(here, there).map_err(|errno| fault(errno, &slot.shown))?;
                Err(changed_meanwhile(slot, None))
            }
        }
    }

    fn displaced(&self, old: &Old) -> bool {
        matches!(look(self.parent, &self.temporary), Ok(Some(now)) if now.same_content(&old.stamp))
    }

    fn outcome(&self) -> Option<Written> {
        let (size, digest) = self.written;
        matches!(self.goal, Goal::Contents(_)).then(|| Written {
            unchanged: false,
            size,
            digest,
            created: self.old.is_none(),
            links_broken: self.old.as_ref().map_or(0, |old| old.stamp.links.saturating_sub(1)),
            collides_with: if self.old.is_none() { self.slot.collision(self.parent) } else { None },
        })
    }
}

/// What each displaces counts for the next: all of them together must fit.
fn plan_images(members: &mut [Member<'_>], ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let mut turn = Turn::default();
    for member in members {
        member.plan_image(turn, ticket)?;
        let kept = member.displaced.as_ref().filter(|displaced| displaced.fate != Fate::Gone);
        turn.before = turn.before.saturating_add(kept.map_or(0, |displaced| displaced.state.cost()));
        turn.index += 1;
    }
    Ok(())
}

/// From the first temporary file to the last that is cleared away.
fn carry_out(
    members: &mut [Member<'_>],
    note: &BatchNote<'_>,
    mount: &Mount,
    ticket: &Ticket<'_>,
) -> Result<Vec<Option<Written>>, ToolError> {
    for member in &mut *members {
        member.prepare(ticket.context())?;
    }
    let entries = members.iter().map(Member::entry).collect::<Result<Vec<Entry>, _>>()?;
    note.complete(&entries, mount.durability)?;
    let effects = members.iter().map(Member::effects).collect::<Result<Vec<_>, _>>()?;
    let entered = mount.enter(ticket, Vec::new(), effects.concat())?;
    ticket.commit()?;
    let published = members.iter().try_for_each(Member::publish);
    // From now on a temporary name may have a file that is not ours: what goes there goes by its inode.
    for fresh in members.iter_mut().filter_map(|member| member.fresh.take()) {
        fresh.published();
    }
    let done = published.and_then(|()| {
        let synced = sync(members, mount);
        note.done().map(|()| synced)
    });
    let synced = match done {
        Ok(synced) => synced.and_then(|()| note.sync(mount.durability).map_err(|errno| unsynced(errno, what(members)))),
        Err(refused) => {
            let directories = Directories::new(mount);
            let back =
                members.iter().zip(&entries).rev().map(|(member, entry)| take_back(&directories, member.parent, entry));
            let all = back.collect::<Vec<_>>().iter().all(Result::is_ok);
            note.forget_if(all);
            return Err(if all { refused } else { half_done(refused) });
        }
    };
    let cleared = members.iter().zip(&entries).map(|(member, entry)| clear(mount, member.parent, entry));
    let cleared = cleared.collect::<Vec<_>>();
    entered.done();
    note.forget_if(cleared.iter().all(Result::is_ok));
    synced?;
    Ok(members.iter().map(Member::outcome).collect())
}

/// What a message about all of them names: the first.
fn what<'a>(members: &[Member<'a>]) -> &'a str {
    members.first().map_or("", |member| &member.slot.shown)
}

fn sync(members: &[Member<'_>], mount: &Mount) -> Result<(), ToolError> {
    if mount.durability != Durability::Full {
        return Ok(());
    }
    let mut synced = Vec::new();
    for member in members {
        let id = fstat(member.parent).map_err(|errno| unsynced(errno, &member.slot.shown))?;
        let id = Stamp::of(&id).id;
        if !synced.contains(&id) {
            fsync(member.parent).map_err(|errno| unsynced(errno, &member.slot.shown))?;
            synced.push(id);
        }
    }
    Ok(())
}

/// The error where not every step could be taken back.
fn half_done(refused: ToolError) -> ToolError {
    refused
        .hint("some of the files are changed and could not be changed back; the next start tries again")
        .detail("committed", "unknown")
}

/// Takes one step back, however far it had come. Safe to repeat. What is not what we put there, by its contents too, is
/// left, or kept under a name that everybody sees.
pub(crate) fn take_back(directories: &Directories<'_>, parent: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
    let Entry { step, name, temporary, .. } = entry;
    let (here, there) = ((parent, temporary.as_slice()), (parent, name.as_slice()));
    let remove = || unlinkat(parent, temporary.as_slice(), AtFlags::empty());
    let keep = || keep_as_conflict(parent, temporary).map(drop);
    // If the name was taken meanwhile, ours would be out of everybody's sight.
    let put_back = || rename_onto_nothing(here, there).or_else(|_| keep());
    let has = |place: &[u8], known: &Known| Ok(look(parent, place)?.is_some_and(|found| known.is(&found)));
    // In the last moment the name may have been somebody else's.
    let remove_or_put_back = |new: &Known| if has(temporary, new)? { remove() } else { put_back() };
    match (step, look(parent, temporary)?) {
        // Only we can have put it there.
        (Step::Prepare, Some(_)) => remove(),
        (Step::Create { new } | Step::Replace { new, .. }, Some(found)) if new.is(&found) => remove(),
        (Step::Create { new }, None) if has(name, new)? => {
            rename_onto_nothing(there, here)?;
            remove_or_put_back(new)
        }
        (Step::Replace { new, .. }, Some(_)) if has(name, new)? => {
            exchange(parent, temporary, name)?;
            remove_or_put_back(new)
        }
        (Step::Replace { .. } | Step::Remove { .. }, Some(_)) => put_back(),
        (Step::Create { .. }, Some(_)) => keep(),
        (Step::Prepare | Step::Create { .. } | Step::Replace { .. } | Step::Remove { .. }, None) => Ok(()),
        (Step::Swap { .. } | Step::Keep { .. } | Step::Restore { .. } | Step::Move { .. } | Step::Spare, _) => {
            reverse_back(directories, parent, entry)
        }
        (Step::Put { .. } | Step::Over { .. } | Step::Away { .. } | Step::Mode { .. }, _) => {
            layer::take_back(directories.mount, parent, entry)
        }
    }
}

/// The same for the steps of an undo. What is not where the step would have brought it was not brought there. What somebody
/// wrote to since stays where it is, and what would have its place is kept beside it.
fn reverse_back(directories: &Directories<'_>, parent: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
    let Entry { step, name, temporary, other, .. } = entry;
    let mount = directories.mount;
    if let Step::Move { here: it } = step {
        let (to_parent, to_name) = split(other);
        let to_parent = directories.open(to_parent, entry.directories[1]).map_err(|_| Errno::IO)?;
        let Some(to_parent) = to_parent else { return Ok(()) };
        let there = (to_parent.as_fd(), to_name);
        return if it.fits(Known::at(there.0, there.1)?) { rename_onto_nothing(there, (parent, name)) } else { Ok(()) };
    }
    let Some(keep) = mount.find_keep()? else { return Ok(()) };
    let (in_keep, at_name) = ((keep.fd(), temporary.as_slice()), (parent, name.as_slice()));
    let (kept, here) = (Known::at(in_keep.0, in_keep.1)?, Known::at(at_name.0, at_name.1)?);
    let back = || match rename_onto_nothing(in_keep, at_name) {
        Err(Errno::EXIST) => keep_beside(parent, in_keep).map(drop),
        result => result,
    };
    match step {
        Step::Swap { here: old, kept: new } if old.fits(kept) && new.fits(here) => {
            renameat_with(in_keep.0, in_keep.1, at_name.0, at_name.1, RenameFlags::EXCHANGE)
        }
        Step::Swap { here: old, .. } | Step::Keep { here: old } if old.fits(kept) => back(),
        Step::Restore { kept: it } if it.fits(here) && kept.is_none() => rename_onto_nothing(at_name, in_keep),
        Step::Spare if kept.is_some() => unlinkat(in_keep.0, in_keep.1, AtFlags::empty()),
        _ => Ok(()),
    }
}

/// Removes what a step displaced, once all steps are made: for good, or to where it can be restored from. What was
/// written to since is kept in sight.
pub(crate) fn clear(mount: &Mount, parent: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
    let (Step::Replace { old, .. } | Step::Remove { old }) = &entry.step else {
        layer::clear(mount, entry);
        return Ok(());
    };
    let Some(found) = look(parent, &entry.temporary)? else { return Ok(()) };
    match mount.find_keep()? {
        _ if !old.is(&found) => {}
        _ if entry.other.is_empty() => return unlinkat(parent, entry.temporary.as_slice(), AtFlags::empty()),
        Some(keep) => return keep.take(parent, &entry.temporary, &String::from_utf8_lossy(&entry.other)),
        // What was to be kept stays in sight where there is no keep.
        None => {}
    }
    keep_as_conflict(parent, &entry.temporary).map(drop)
}

fn exchange(parent: BorrowedFd<'_>, one: &[u8], other: &[u8]) -> Result<(), Errno> {
    renameat_with(parent, one, parent, other, RenameFlags::EXCHANGE)
}

fn no_exchange(errno: Errno, slot: &Slot) -> ToolError {
    match errno {
        Errno::NOENT => changed_meanwhile(slot, None),
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => {
            let message = "this file system cannot change several files in steps that can be taken back";
            ToolError::new(ErrorKind::Unavailable, message).hint("change them one by one")
        }
        other => fault(other, &slot.shown),
    }
}
