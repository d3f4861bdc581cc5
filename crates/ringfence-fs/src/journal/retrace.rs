//! What has to be done to take changes back, found by going through their effects from the last to the first.
//!
//! Every place must be as the change left it, every pre-image as it was put away. Where one is not, it is a conflict, and
//! nothing will be done.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::fd::AsFd as _;

use ringfence_kernel::{Context, ErrorKind, ToolError};

use super::Entry;
use super::effect::{Effect, split};
use super::keep::Keep;
use super::picture::{Picture, Source, Stroke, Thing, Which, below};
use super::reverse::{Conflict, Force, Judged, Kind, Planned, Reversal, Spare};
use super::sight::Sights;
use super::state::{Form, Look, State};
use crate::batch_note::Known;
use crate::known::At;
use crate::links::{Relocation, check_links_stay_inside};
use crate::mount::Mount;
use crate::name::{read_back, show};

impl Reversal {
    /// Finds out what taking back these changes, the newest first, would do. Reads only.
    pub(crate) fn plan(mount: &Mount, entries: &[Entry], force: Force, cx: &Context<'_>) -> Result<Self, ToolError> {
        let mut painter = Painter {
            picture: Picture::new(mount, cx),
            force,
            keep: mount.keep(),
            plan: Self {
                undoes: entries.iter().map(|entry| entry.change.change.clone()).collect(),
                effects: Vec::new(),
                moves: Vec::new(),
                spares: Vec::new(),
                judged: Vec::new(),
                sights: Sights::default(),
                conflicts: Vec::new(),
            },
        };
        for Retraced { change, effect, .. } in bridged(entries)? {
            cx.check()?;
            painter.take_back(change, &effect)?;
        }
        Ok(painter.plan)
    }
}

/// An effect that is to be taken back.
struct Retraced<'a> {
    change: &'a str,
    effect: Cow<'a, Effect>,
    /// Its pre-image went to make room.
    evicted: bool,
}

/// The effects of changes, the last first. Where a version between two of them was let go, they are one: what the later
/// made is taken back to what the earlier displaced.
fn bridged(entries: &[Entry]) -> Result<Vec<Retraced<'_>>, ToolError> {
    let effects = entries.iter().flat_map(|entry| entry.change.effects.iter().rev().map(move |effect| (entry, effect)));
    let mut left: VecDeque<Retraced<'_>> = effects
        .map(|(entry, effect)| Retraced {
            change: &entry.change.change,
            effect: Cow::Borrowed(effect),
            evicted: entry.evicted,
        })
        .collect();
    let mut bridged = Vec::new();
    while let Some(next) = left.pop_front() {
        if !next.evicted || next.effect.image().is_none() {
            bridged.push(next);
            continue;
        }
        let path = next.effect.paths().next().unwrap_or_default();
        let is_related = |other: &str| other == path || is_inside(other, path) || is_inside(path, other);
        let earlier = left.iter_mut().find(|earlier| earlier.effect.paths().any(is_related));
        let joined = earlier.and_then(|earlier| Some((join_effects(&next.effect, &earlier.effect)?, earlier)));
        let Some((effect, earlier)) = joined else {
            return Err(gone(next.change, "what it displaced was let go to make room"));
        };
        match effect {
            Some(effect) => earlier.effect = Cow::Owned(effect),
            // It came and went: there is nothing to be done.
            None => {
                let path = path.to_owned();
                let position = left.iter().position(|earlier| earlier.effect.paths().any(|other| other == path));
                position.and_then(|position| left.remove(position));
            }
        }
    }
    Ok(bridged)
}

fn is_inside(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Two effects on one path as one, where the later displaced what the earlier made. The inner nothing is that they cancel
/// each other out.
fn join_effects(later: &Effect, earlier: &Effect) -> Option<Option<Effect>> {
    let (path, displaced, now) = match later {
        Effect::Replaced { path, before, after, .. } => (path, before, Some(after)),
        Effect::Removed { path, before, .. } => (path, before, None),
        _ => return None,
    };
    match earlier {
        Effect::Created { path: at, after, .. } if at == path && after.is(displaced) => {
            Some(now.map(|after| Effect::Created { path: path.clone(), after: after.clone(), image: None }))
        }
        Effect::Replaced { path: at, before, after, image, copied } if at == path && after.is(displaced) => {
            let (path, before, image, copied) = (path.clone(), before.clone(), image.clone(), *copied);
            Some(Some(match now {
                Some(after) => Effect::Replaced { path, before, after: after.clone(), image, copied },
                None => Effect::Removed { path, before, image, copied },
            }))
        }
        _ => None,
    }
}

/// Goes through the changes and paints what the tree would be.
struct Painter<'a> {
    picture: Picture<'a>,
    force: Force,
    keep: Option<Keep>,
    plan: Reversal,
}

impl Painter<'_> {
    fn take_back(&mut self, change: &str, effect: &Effect) -> Result<(), ToolError> {
        match effect {
            Effect::Created { path, after, image } => self.remove(path, after, image.as_deref()),
            Effect::Removed { path, before, image, .. } => self.restore(change, path, before, image),
            Effect::Replaced { path, before, after, image, .. } => self.exchange(change, path, [before, after], image),
            Effect::Moved { from, to, state } => self.move_back(from, to, state),
            Effect::Appended { path, before, after } => self.shorten(path, before, after),
            Effect::Lost { path } => Err(gone(change, &format!("what was at `{path}` was not kept"))),
            Effect::Mode { path, inode, before, after } => self.permit(path, *inode, [*before, *after]),
        }
    }

    /// Takes back that something came to be.
    fn remove(&mut self, shown: &str, after: &State, image: Option<&str>) -> Result<(), ToolError> {
        let path = read_back(shown);
        let Some(now) = self.picture.thing(&path, after.look())? else {
            self.conflict_unless_forced(shown, Some(after), None);
            return Ok(());
        };
        // What is in a directory that this very undo changes can only be compared once it did.
        let changed_inside = after.look() == Look::Whole && self.picture.has_strokes_below(&path);
        if !changed_inside
            && !after.is(&now.state)
            && !self.conflict_unless_forced(shown, Some(after), Some(&now.state))
        {
            return Ok(());
        }
        let empty = after.kind == Form::Directory && after.look() == Look::Itself;
        if empty && !self.picture.is_empty(&path, &now)? {
            let found = "a directory that is not empty".to_owned();
            let expected = "an empty directory".to_owned();
            self.plan.conflicts.push(Conflict { path: shown.to_owned(), expected, found });
            return Ok(());
        }
        self.judge(&path, Some(&now), None)?;
        self.plan.sights.change(&path, Some(&now), None);
        let image = image.map_or_else(|| self.new_image(), str::to_owned);
        let state = if changed_inside { State { inode: now.state.inode, ..after.clone() } } else { now.state.clone() };
        self.push(Planned {
            kind: Kind::Keep,
            path: path.clone(),
            image: image.clone(),
            to: Vec::new(),
            here: now.which,
            kept: Which::Known(Known::default()),
            leaving: Some(state.clone()),
            empty,
            directories: [None; 2],
        })?;
        self.plan.effects.push(Effect::Removed { path: shown.to_owned(), before: state, image, copied: false });
        self.picture.paint(Stroke::Set { path, thing: None });
        Ok(())
    }

    /// Takes back that something went.
    fn restore(&mut self, change: &str, shown: &str, before: &State, image: &str) -> Result<(), ToolError> {
        let path = read_back(shown);
        let thing = self.kept(change, before, image)?;
        if let Some(there) = self.picture.thing(&path, Look::Whole)? {
            if !self.conflict_unless_forced(shown, None, Some(&there.state)) {
                return Ok(());
            }
            self.remove(shown, &there.state, None)?;
        }
        if !self.has_directory(&path)? {
            return Ok(());
        }
        self.judge(&path, None, Some(&thing))?;
        self.plan.sights.change(&path, None, Some(&thing));
        self.push(Planned {
            kind: Kind::Restore,
            path: path.clone(),
            image: image.to_owned(),
            to: Vec::new(),
            here: Which::Known(Known::default()),
            kept: thing.which,
            leaving: None,
            empty: false,
            directories: [None; 2],
        })?;
        let image = Some(image.to_owned());
        self.plan.effects.push(Effect::Created { path: shown.to_owned(), after: thing.state.clone(), image });
        self.picture.paint(Stroke::Set { path, thing: Some(thing) });
        Ok(())
    }

    /// Takes back that something took the place of something else.
    fn exchange(
        &mut self,
        change: &str,
        shown: &str,
        [before, after]: [&State; 2],
        image: &str,
    ) -> Result<(), ToolError> {
        let path = read_back(shown);
        let Some(now) = self.picture.thing(&path, Look::Itself)? else {
            if self.conflict_unless_forced(shown, Some(after), None) {
                return self.restore(change, shown, before, image);
            }
            return Ok(());
        };
        if !after.is(&now.state) && !self.conflict_unless_forced(shown, Some(after), Some(&now.state)) {
            return Ok(());
        }
        let thing = self.kept(change, before, image)?;
        self.swap(shown, path, now, thing, image)
    }

    /// Takes back that bytes came to the end of a file.
    fn shorten(&mut self, shown: &str, before: &State, after: &State) -> Result<(), ToolError> {
        let path = read_back(shown);
        let now = self.picture.thing(&path, Look::Itself)?;
        let Some(now) = now.as_ref().filter(|now| after.is(&now.state) && before.sha256.is_some()) else {
            let found = now.as_ref().map(|now| &now.state);
            self.conflict(shown, Some(after), found);
            return Ok(());
        };
        let image = self.new_image();
        let thing = Thing {
            which: Which::Spare(self.plan.spares.len()),
            source: now.source.clone(),
            state: State { inode: 0, ..before.clone() },
        };
        self.plan.spares.push(Spare {
            from: now.source.clone(),
            state: thing.state.clone(),
            image: image.clone(),
            shown: shown.to_owned(),
        });
        self.swap(shown, path, now.clone(), thing, &image)
    }

    fn swap(&mut self, shown: &str, path: Vec<u8>, now: Thing, thing: Thing, image: &str) -> Result<(), ToolError> {
        self.judge(&path, Some(&now), Some(&thing))?;
        self.plan.sights.change(&path, Some(&now), Some(&thing));
        self.push(Planned {
            kind: Kind::Swap,
            path: path.clone(),
            image: image.to_owned(),
            to: Vec::new(),
            here: now.which,
            kept: thing.which,
            leaving: Some(now.state.clone()),
            empty: false,
            directories: [None; 2],
        })?;
        self.plan.effects.push(Effect::Replaced {
            path: shown.to_owned(),
            before: now.state,
            after: thing.state.clone(),
            image: image.to_owned(),
            copied: false,
        });
        self.picture.paint(Stroke::Set { path, thing: Some(thing) });
        Ok(())
    }

    /// Takes back that something got another path.
    fn move_back(&mut self, from: &str, to: &str, state: &State) -> Result<(), ToolError> {
        let (back, here) = (read_back(from), read_back(to));
        let now = self.picture.thing(&here, Look::Itself)?;
        let Some(now) = now.filter(|now| state.is(&now.state)) else {
            let found = self.picture.thing(&here, Look::Itself)?;
            self.conflict(to, Some(state), found.as_ref().map(|found| &found.state));
            return Ok(());
        };
        if let Some(there) = self.picture.thing(&back, Look::Whole)? {
            if !self.conflict_unless_forced(from, None, Some(&there.state)) {
                return Ok(());
            }
            self.remove(from, &there.state, None)?;
        }
        if !self.has_directory(&back)? {
            return Ok(());
        }
        if let Some((parent, name)) = now.source.open_parent(self.picture.mount) {
            let moved = Relocation { at: (parent.as_fd(), &name), from: &here, to: &back };
            check_links_stay_inside(self.picture.mount, moved, self.picture.cx)?;
        }
        self.judge(&here, Some(&now), None)?;
        self.judge(&back, None, Some(&now))?;
        self.plan.sights.movement(&here, &back);
        self.push(Planned {
            kind: Kind::Move,
            path: here.clone(),
            image: String::new(),
            to: back.clone(),
            here: now.which,
            kept: Which::Known(Known::default()),
            leaving: Some(now.state.clone()),
            empty: false,
            directories: [None; 2],
        })?;
        self.plan.effects.push(Effect::Moved { from: to.to_owned(), to: from.to_owned(), state: now.state });
        self.picture.paint(Stroke::Move { from: here, to: back });
        Ok(())
    }

    /// Takes back that a directory got other permissions.
    fn permit(&mut self, shown: &str, inode: u64, [before, after]: [u32; 2]) -> Result<(), ToolError> {
        let path = read_back(shown);
        let now = self.picture.thing(&path, Look::Itself)?;
        let Some(now) = now.filter(|now| now.state.inode == inode && now.state.mode == after) else {
            let found = self.picture.thing(&path, Look::Itself)?;
            let expected = format!("a directory of mode {after:o}");
            let found = found.map_or_else(|| "nothing".to_owned(), |found| found.state.described());
            self.plan.conflicts.push(Conflict { path: shown.to_owned(), expected, found });
            return Ok(());
        };
        self.push(Planned {
            kind: Kind::Mode { from: after, to: before },
            path,
            image: String::new(),
            to: Vec::new(),
            here: now.which,
            kept: Which::Known(Known::default()),
            leaving: None,
            empty: false,
            directories: [None; 2],
        })?;
        self.plan.effects.push(Effect::Mode { path: shown.to_owned(), inode, before: after, after: before });
        Ok(())
    }

    fn push(&mut self, mut planned: Planned) -> Result<(), ToolError> {
        let to = if planned.kind == Kind::Move { self.picture.directory_of(&planned.to)? } else { None };
        planned.directories = [self.picture.directory_of(&planned.path)?, to];
        self.plan.moves.push(planned);
        Ok(())
    }

    fn new_image(&self) -> String {
        format!("-{}", self.plan.moves.len())
    }

    /// The pre-image of a place, if it is what was put away.
    fn kept(&mut self, change: &str, before: &State, image: &str) -> Result<Thing, ToolError> {
        let keep = self.keep.as_ref().ok_or_else(|| gone(change, "what it displaced is no longer there"))?;
        let kept = State::at(self.picture.mount, keep.fd(), image.as_bytes(), before.look(), self.picture.cx)?;
        let kept = kept.ok_or_else(|| gone(change, "what it displaced is no longer there"))?;
        if before.is(&kept) {
            let known = Known::of_state(&kept, At { fd: keep.fd(), name: image.as_bytes() });
            let source = Source::Kept(image.to_owned(), Vec::new());
            return Ok(Thing { which: Which::Known(known), source, state: kept });
        }
        Err(gone(change, "what it displaced was changed since"))
    }

    /// Asks about guarded files only; a directory that has one in it stays where it is.
    fn judge(&mut self, path: &[u8], before: Option<&Thing>, after: Option<&Thing>) -> Result<(), ToolError> {
        let is_file = |thing: Option<&Thing>| thing.is_none_or(|thing| thing.state.kind == Form::File);
        for guard in &self.picture.mount.guards {
            let inside = below(&guard.path, path);
            if inside == Some(b"") && is_file(before) && is_file(after) {
                let contents = |thing: Option<&Thing>| thing.map(|thing| (thing.source.clone(), thing.state.size));
                let (before, after) = (contents(before), contents(after));
                self.plan.judged.push(Judged { path: path.to_vec(), before, after });
            } else if inside.is_some() {
                let message = format!("`{}` is the place of `{}`, which is guarded", show(path), show(&guard.path));
                return Err(ToolError::new(ErrorKind::PermissionDenied, message));
            }
        }
        Ok(())
    }

    /// Notes a conflict. True where the undo goes on all the same.
    fn conflict_unless_forced(&mut self, path: &str, expected: Option<&State>, found: Option<&State>) -> bool {
        if self.force == Force::No {
            self.conflict(path, expected, found);
        }
        self.force == Force::Yes
    }

    fn conflict(&mut self, path: &str, expected: Option<&State>, found: Option<&State>) {
        let described = |state: Option<&State>| state.map_or_else(|| "nothing".to_owned(), State::described);
        let (expected, found) = (described(expected), described(found));
        self.plan.conflicts.push(Conflict { path: path.to_owned(), expected, found });
    }

    /// Whether the directory of a path would be there; a conflict if not.
    fn has_directory(&mut self, path: &[u8]) -> Result<bool, ToolError> {
        let (parent, _) = split(path);
        if parent.is_empty() {
            return Ok(true);
        }
        let found = self.picture.thing(parent, Look::Itself)?;
        let there = found.as_ref().is_some_and(|found| found.state.kind == Form::Directory);
        if !there {
            let described = found.map_or_else(|| "nothing".to_owned(), |found| found.state.described());
            let expected = "a directory".to_owned();
            self.plan.conflicts.push(Conflict { path: show(parent), expected, found: described });
        }
        Ok(there)
    }
}

fn gone(change: &str, why: &str) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("the change `{change}` can no longer be undone: {why}"))
}
