//! Taking changes back: what would have to be done, and doing it, all of it or nothing.
//!
//! What is done is renames only, to and from the keep, with a note of every one, so that whoever comes after a crash takes them
//! back. It is a change like any other, and can itself be taken back.
//!
//! Not here: what has to be done (`retrace.rs`), and which changes are meant and who may (`tools/undo.rs`).

use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{Assurance, Context, ErrorKind, Ticket, ToolError, Verb};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::effect::{Effect, split};
use super::keep::Keep;
use super::picture::{Source, Which, open_source, open_straight};
use super::sight::Sights;
use super::state::{Form, State};
use super::{Afterwards, image_name, unkept};
use crate::again::{fstat, fsync, renameat_with};
use crate::batch::take_back;
use crate::batch_note::{BatchNote, Entry as Noted, Known, Step, is_unsettled};
use crate::content::read_up_to;
use crate::fault::{fault, unsynced};
use crate::known::At;
use crate::layer::permit_directory;
use crate::locks::TreeHeld;
use crate::mount::{Durability, Mount, look, rename_onto_nothing};
use crate::name::show;
use crate::recover::{Directories, open_parent};
use crate::replace::Old;
use crate::slot::{check_directory_writable, listing};
use crate::stamp::Stamp;
use crate::walk::names_in;

/// Whether a place that is not as the change left it stops the undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Force {
    No,
    /// What is there now is put away, too.
    Yes,
}

/// What taking changes back would do.
#[derive(Debug)]
pub(crate) struct Reversal {
    pub(super) undoes: Vec<String>,
    pub(super) effects: Vec<Effect>,
    pub(super) moves: Vec<Planned>,
    pub(super) spares: Vec<Spare>,
    pub(super) judged: Vec<Judged>,
    pub(super) sights: Sights,
    /// Places that are not as they should be.
    pub(crate) conflicts: Vec<Conflict>,
}

/// A place that is not as the change left it.
#[derive(Clone, Debug)]
pub(crate) struct Conflict {
    pub(crate) path: String,
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// One thing that would be done, as the policy has to know it.
#[derive(Debug)]
pub(crate) struct Doing {
    pub(crate) verb: Verb,
    /// Below the root.
    pub(crate) path: String,
    /// A directory that it is done to, with all that is in it.
    pub(crate) tree: Option<Source>,
}

/// One rename.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) kind: Kind,
    pub(super) path: Vec<u8>,
    /// The name in the keep. One that begins with `-` is new, and gets the change in front.
    pub(super) image: String,
    pub(super) to: Vec<u8>,
    pub(super) here: Which,
    pub(super) kept: Which,
    /// What the thing that goes from here must be in the last moment.
    pub(super) leaving: Option<State>,
    /// A directory that must have nothing in it.
    pub(super) empty: bool,
    /// The directories of `path` and `to`, by inode.
    pub(super) directories: [Option<u64>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Swap,
    Keep,
    Restore,
    Move,
    /// A directory gets other permissions.
    Mode {
        from: u32,
        to: u32,
    },
}

/// A file that has to be made first: the beginning of another one.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) from: Source,
    pub(super) state: State,
    pub(super) image: String,
    pub(super) shown: String,
}

/// Contents of a guarded file, before and after.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) path: Vec<u8>,
    pub(super) before: Option<(Source, u64)>,
    pub(super) after: Option<(Source, u64)>,
}

impl Reversal {
    /// What would be done, for the policy and for a person.
    pub(crate) fn doings(&self) -> Vec<Doing> {
        let mut doings = Vec::new();
        for Planned { kind, path, image, to, leaving, .. } in &self.moves {
            let is_tree = leaving.as_ref().is_some_and(|state| state.kind == Form::Directory);
            let here = is_tree.then(|| Source::Disk(path.clone()));
            let mut doing = |verb, path: &[u8], tree| doings.push(Doing { verb, path: show(path), tree });
            match kind {
                Kind::Swap | Kind::Mode { .. } => doing(Verb::Overwrite, path, None),
                Kind::Keep => doing(Verb::Delete, path, here),
                Kind::Restore => doing(Verb::Create, path, Some(Source::Kept(image.clone(), Vec::new()))),
                Kind::Move => {
                    doing(Verb::MoveAway, path, here.clone());
                    doing(Verb::Create, to, here);
                }
            }
        }
        doings
    }

    /// Whether two plans do the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.undoes == other.undoes && self.effects == other.effects
    }

    pub(crate) fn effects(&self) -> &[Effect] {
        &self.effects
    }

    pub(crate) fn undoes(&self) -> &[String] {
        &self.undoes
    }

    /// Whether what it displaces can be kept, so that it can itself be taken back.
    pub(crate) fn is_kept(&self, mount: &Mount, cx: &Context<'_>) -> Result<bool, ToolError> {
        let cost = self.effects.iter().filter_map(Effect::image).map(|(_, cost)| cost).fold(0, u64::saturating_add);
        Ok(cost == 0 || mount.can_be_kept(cost, &self.undoes, cx)?)
    }

    /// The paths of what it displaces.
    pub(crate) fn displaced(&self) -> impl Iterator<Item = &str> {
        self.effects.iter().filter(|effect| effect.image().is_some()).flat_map(Effect::paths)
    }

    /// Every path that it changes, each once.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.effects.iter().flat_map(Effect::paths).map(str::to_owned).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// Fails where it may not be done, whatever is there. Says what would become of what it displaces.
    pub(crate) fn check(&self, mount: &Mount, ticket: &Ticket<'_>) -> Result<Afterwards, ToolError> {
        self.judge(mount, ticket)?;
        // Some are opened on the way.
        let opened: Vec<&[u8]> =
            self.moves.iter().filter(|planned| planned.opens()).map(|planned| &*planned.path).collect();
        for planned in &self.moves {
            planned.check_directories(mount, &opened)?;
        }
        // Its steps and ours would be about the same files: taken back later, they would undo what we are about to do.
        if is_unsettled(mount) {
            let message = "an earlier change was interrupted and could not be taken back yet; nothing was undone";
            return Err(
                ToolError::new(ErrorKind::Conflict, message).hint("see what keeps its files from being changed")
            );
        }
        if self.is_kept(mount, ticket.context())? {
            Ok(Afterwards::Kept)
        } else if ticket.may_lose() {
            Ok(Afterwards::Lost)
        } else {
            Err(unkept())
        }
    }

    /// Does it, and says what became of what it displaced. Whoever calls has the tree alone.
    pub(crate) fn carry_out(
        self,
        mount: &Mount,
        tree: &TreeHeld,
        ticket: &Ticket<'_>,
    ) -> Result<Afterwards, ToolError> {
        let Some(journal) = &mount.journal else { return Err(fault(Errno::NOENT, "journal")) };
        let displaced = self.check(mount, ticket)?;
        let change = ticket.change();
        let keep = mount.make_keep(journal)?;
        let named = |image: &str| name_image(change, image);
        let spare_entries: Vec<Noted> = self.spares.iter().map(|spare| spare.entry(&named(&spare.image))).collect();
        let note = BatchNote::write(&mount.locks, change, &spare_entries)?;
        tree.intend(note.id())?;
        let done = self.carry_out_noted(mount, &keep, &note, spare_entries, displaced, ticket);
        drop(note);
        tree.settle();
        done.map(|()| displaced)
    }

    fn carry_out_noted(
        &self,
        mount: &Mount,
        keep: &Keep,
        note: &BatchNote<'_>,
        mut entries: Vec<Noted>,
        displaced: Afterwards,
        ticket: &Ticket<'_>,
    ) -> Result<(), ToolError> {
        let change = ticket.change();
        let made = self.make_spares(mount, keep, change, ticket.context());
        let back = |entries: &[Noted]| {
            let directories = Directories::new(mount);
            let back = entries.iter().rev().map(|entry| undo_step(&directories, entry));
            note.forget_if(back.collect::<Vec<_>>().into_iter().all(|one| one));
        };
        let spares = match made {
            Ok(spares) => spares,
            Err(error) => {
                back(&entries);
                return Err(error);
            }
        };
        let first = entries.len();
        entries.extend(self.moves.iter().map(|planned| planned.entry(change, &spares)));
        let effects = self.effects.iter().map(|effect| self.name_effect(change, effect, &spares)).collect();
        let entered = note
            .complete(&entries, mount.durability)
            .and_then(|()| mount.enter(ticket, self.undoes.clone(), effects))
            .and_then(|entered| ticket.commit().map(|()| entered));
        let entered = match entered {
            Ok(entered) => entered,
            Err(error) => {
                back(&entries[..first]);
                return Err(error);
            }
        };
        for (index, planned) in self.moves.iter().enumerate() {
            let step = &entries[first + index];
            if let Err(error) = planned.perform(mount, keep, step, ticket.context()) {
                back(&entries[..first + index]);
                return Err(error);
            }
        }
        if let Err(error) = note.done() {
            back(&entries);
            return Err(error);
        }
        entered.then(displaced).done();
        self.sync(mount, keep)
    }

    /// Asks the rules about guarded files, whatever the way that they change.
    fn judge(&self, mount: &Mount, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        let cx = ticket.context();
        let answered = ticket.approval().is_some_and(|approval| approval.assurance == Assurance::Person);
        let by_person = answered || cx.origin().is_some_and(|origin| origin.may_undo);
        for Judged { path, before, after } in &self.judged {
            let read = |thing: &Option<(Source, u64)>| {
                thing.as_ref().map(|(source, size)| contents(mount, source, *size, cx)).transpose()
            };
            mount.judge(path, read(before)?.as_deref(), read(after)?.as_deref(), by_person)?;
        }
        Ok(())
    }

    fn make_spares(&self, mount: &Mount, keep: &Keep, change: &str, cx: &Context<'_>) -> Result<Vec<Known>, ToolError> {
        let mut spares = Vec::new();
        for Spare { from, state, image, shown } in &self.spares {
            let fd = open_source(mount, from, shown)?;
            let stamp = Stamp::of(&fstat(&fd).map_err(|errno| fault(errno, shown))?);
            let old = Old { fd, stamp: Stamp { mode: state.mode, ..stamp } };
            let made = keep.copy(mount, &old, state.size, &name_image(change, image), cx)?;
            if !state.is(&made) {
                return Err(changed(shown));
            }
            let name = name_image(change, image);
            spares.push(Known::of_state(&made, At { fd: keep.fd(), name: name.as_bytes() }));
        }
        Ok(spares)
    }

    /// An effect for the journal, with what was not known before: names of images, and which file a spare one is.
    fn name_effect(&self, change: &str, effect: &Effect, spares: &[Known]) -> Effect {
        let mut effect = effect.clone();
        match &mut effect {
            Effect::Removed { image, .. } => *image = name_image(change, image),
            Effect::Replaced { image, after, .. } => {
                let spare = self.spares.iter().position(|spare| spare.image == *image);
                after.inode = spare.and_then(|spare| spares.get(spare)).map_or(after.inode, |spare| spare.inode);
                *image = name_image(change, image);
            }
            Effect::Created { .. }
            | Effect::Moved { .. }
            | Effect::Appended { .. }
            | Effect::Lost { .. }
            | Effect::Mode { .. } => {}
        }
        effect
    }

    fn sync(&self, mount: &Mount, keep: &Keep) -> Result<(), ToolError> {
        if mount.durability != Durability::Full {
            return Ok(());
        }
        let mut parents: Vec<&[u8]> = Vec::new();
        for planned in &self.moves {
            parents.push(split(&planned.path).0);
            parents.push(if planned.kind == Kind::Move { split(&planned.to).0 } else { split(&planned.path).0 });
        }
        parents.sort_unstable();
        parents.dedup();
        let shown = self.moves.first().map(|planned| show(&planned.path)).unwrap_or_default();
        fsync(keep.fd()).map_err(|errno| unsynced(errno, &shown))?;
        // One that went itself has nothing that could get lost.
        for parent in parents.into_iter().filter_map(|parent| open_parent(mount, parent)) {
            listing(parent.as_fd()).and_then(fsync).map_err(|errno| unsynced(errno, &shown))?;
        }
        Ok(())
    }
}

impl Planned {
    fn entry(&self, change: &str, spares: &[Known]) -> Noted {
        let known = |which| match which {
            Which::Known(known) => known,
            Which::Spare(index) => spares.get(index).copied().unwrap_or_default(),
        };
        let step = match self.kind {
            Kind::Swap => Step::Swap { here: known(self.here), kept: known(self.kept) },
            Kind::Keep => Step::Keep { here: known(self.here) },
            Kind::Restore => Step::Restore { kept: known(self.kept) },
            Kind::Move => Step::Move { here: known(self.here) },
            Kind::Mode { from, to } => Step::Mode { inode: known(self.here).inode, from, to },
        };
        let (parent, name) = split(&self.path);
        Noted {
            step,
            parent: parent.to_vec(),
            directories: self.directories,
            name: name.to_vec(),
            temporary: name_image(change, &self.image).into_bytes(),
            other: self.to.clone(),
        }
    }

    /// Whether it lets things go and come in a directory.
    fn opens(&self) -> bool {
        matches!(self.kind, Kind::Mode { to, .. } if to & 0o200 != 0)
    }

    /// Fails at directories that are there already and let nothing go or come, but for those that are `opened` first.
    fn check_directories(&self, mount: &Mount, opened: &[&[u8]]) -> Result<(), ToolError> {
        let own = (!matches!(self.kind, Kind::Mode { .. })).then_some(&self.path);
        let to = (self.kind == Kind::Move).then_some(&self.to);
        for path in own.into_iter().chain(to) {
            if opened.contains(&split(path).0) {
                continue;
            }
            if let Some(parent) = open_straight(mount, split(path).0) {
                check_directory_writable(parent.as_fd(), &show(path))?;
            }
        }
        Ok(())
    }

    /// Does it, or leaves everything as it was and says why.
    fn perform(&self, mount: &Mount, keep: &Keep, step: &Noted, cx: &Context<'_>) -> Result<(), ToolError> {
        let shown = show(&self.path);
        let fail = |errno| match errno {
            Errno::EXIST | Errno::NOENT => changed(&shown),
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => ToolError::new(
                ErrorKind::Unavailable,
                "this file system cannot exchange two files, so nothing is undone",
            ),
            other => fault(other, &shown),
        };
        let parent = open_straight(mount, &step.parent).ok_or_else(|| changed(&shown))?;
        if !matches!(self.kind, Kind::Mode { .. }) {
            check_directory_writable(parent.as_fd(), &shown)?;
        }
        let (here, kept) = ((parent.as_fd(), step.name.as_slice()), (keep.fd(), step.temporary.as_slice()));
        self.check_leaving(mount, here, &shown, cx)?;
        match step.step {
            Step::Swap { here: old, .. } => {
                let swap = || renameat_with(here.0, here.1, kept.0, kept.1, RenameFlags::EXCHANGE);
                swap().map_err(fail)?;
                if is_at(kept, old) {
                    return Ok(());
                }
                swap().map_err(fail)?;
                Err(changed(&shown))
            }
            Step::Keep { here: it } => {
                rename_onto_nothing(here, kept).map_err(fail)?;
                if is_at(kept, it) && (!self.empty || is_empty(mount, kept.0, kept.1)) {
                    return Ok(());
                }
                rename_onto_nothing(kept, here).map_err(fail)?;
                Err(changed(&shown))
            }
            Step::Restore { .. } => rename_onto_nothing(kept, here).map_err(fail),
            Step::Move { here: it } => {
                let (to, name) = split(&step.other);
                let to = open_straight(mount, to).ok_or_else(|| changed(&shown))?;
                check_directory_writable(to.as_fd(), &shown)?;
                let there = (to.as_fd(), name);
                rename_onto_nothing(here, there).map_err(fail)?;
                if is_at(there, it) {
                    return Ok(());
                }
                rename_onto_nothing(there, here).map_err(fail)?;
                Err(changed(&shown))
            }
            Step::Mode { inode, from, to } => permit_directory(here, inode, [from, to]).map_err(fail),
            _ => Ok(()),
        }
    }

    /// What was looked at for the plan must still be there. What is in a directory could only be looked at now.
    fn check_leaving(
        &self,
        mount: &Mount,
        (parent, name): (BorrowedFd<'_>, &[u8]),
        shown: &str,
        cx: &Context<'_>,
    ) -> Result<(), ToolError> {
        let Some(state) = &self.leaving else { return Ok(()) };
        let fits = if state.kind == Form::Directory {
            State::at(mount, parent, name, state.look(), cx)?.is_some_and(|now| state.is(&now))
        } else {
            let now = look(parent, name).map_err(|errno| fault(errno, shown))?.map(|stamp| State::of_stamp(&stamp));
            let known = matches!(self.here, Which::Known(_));
            now.is_some_and(|now| {
                now.size == state.size && (!known || (now.inode == state.inode && now.modified == state.modified))
            })
        };
        if fits { Ok(()) } else { Err(changed(shown)) }
    }
}

impl Spare {
    fn entry(&self, image: &str) -> Noted {
        Noted {
            step: Step::Spare,
            parent: Vec::new(),
            directories: [None; 2],
            name: Vec::new(),
            temporary: image.as_bytes().to_vec(),
            other: Vec::new(),
        }
    }
}

fn contents(mount: &Mount, source: &Source, size: u64, cx: &Context<'_>) -> Result<Vec<u8>, ToolError> {
    let most = cx.limits.appended_file_bytes;
    if size > most {
        let message = format!("a guarded file has more than {most} bytes, which cannot be judged");
        return Err(ToolError::new(ErrorKind::WriteLimit, message));
    }
    let fd = open_source(mount, source, "a guarded file")?;
    read_up_to(&fd, size, cx).map_err(|errno| fault(errno, "a guarded file"))
}

fn is_empty(mount: &Mount, parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    let directory = mount.resolver.open_child(parent, name);
    directory.is_ok_and(|directory| names_in(directory.as_fd(), 2).is_ok_and(|names| names.len() == 2))
}

fn is_at((parent, name): (BorrowedFd<'_>, &[u8]), known: Known) -> bool {
    Known::at(parent, name).is_ok_and(|found| known.fits(found))
}

/// Takes one step back, wherever its directory is by now. False if it could not be done.
fn undo_step(directories: &Directories<'_>, entry: &Noted) -> bool {
    let parent = directories.open(&entry.parent, entry.directories[0]).ok().flatten();
    parent.is_some_and(|parent| take_back(directories, parent.as_fd(), entry).is_ok())
}

fn name_image(change: &str, image: &str) -> String {
    match image.strip_prefix('-').and_then(|index| index.parse().ok()) {
        Some(index) => image_name(change, index),
        None => image.to_owned(),
    }
}

pub(super) fn changed(shown: &str) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("`{shown}` was changed at the same moment; nothing was undone"))
}
