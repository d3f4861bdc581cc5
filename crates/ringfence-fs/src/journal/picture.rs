//! The tree as it would be, once a part of an undo was done.
//!
//! Nothing of it is done yet. What would be at a path is at present somewhere else: at another path, or in the keep.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};

use ringfence_kernel::{Context, Pace, ToolError};
use rustix::fs::OFlags;

use super::effect::split;
use super::reverse::changed;
use super::state::{Form, Look, State};
use crate::batch_note::Known;
use crate::fault::fault;
use crate::known::At;
use crate::mount::Mount;
use crate::path::GuestPath;
use crate::resolve::CAREFUL;
use crate::walk::names_in;

/// The picture: what is there, and what was done to it since.
pub(super) struct Picture<'a> {
    pub(super) mount: &'a Mount,
    pub(super) cx: &'a Context<'a>,
    strokes: Vec<Stroke>,
    /// The last stroke that set each path, to find it among very many.
    set: HashMap<Vec<u8>, usize>,
    moved: bool,
}

/// Where something is at present.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Below the root.
    Disk(Vec<u8>),
    /// In the keep, and below that.
    Kept(String, Vec<u8>),
}

/// Which file it is, where that is not known before it is made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    Known(Known),
    Spare(usize),
}

/// What stands at a path of the picture.
#[derive(Clone, Debug)]
pub(super) struct Thing {
    pub(super) state: State,
    pub(super) which: Which,
    pub(super) source: Source,
}

/// What was done to the picture.
#[derive(Debug)]
pub(super) enum Stroke {
    Set { path: Vec<u8>, thing: Option<Thing> },
    Move { from: Vec<u8>, to: Vec<u8> },
}

enum Located {
    Nothing,
    Known(Box<Thing>),
    At(Source),
}

impl<'a> Picture<'a> {
    pub(super) fn new(mount: &'a Mount, cx: &'a Context<'a>) -> Self {
        Self { mount, cx, strokes: Vec::new(), set: HashMap::new(), moved: false }
    }

    pub(super) fn paint(&mut self, stroke: Stroke) {
        match &stroke {
            Stroke::Set { path, .. } => _ = self.set.insert(path.clone(), self.strokes.len()),
            Stroke::Move { .. } => self.moved = true,
        }
        self.strokes.push(stroke);
    }

    pub(super) fn has_strokes_below(&self, path: &[u8]) -> bool {
        let inside = |at: &[u8]| below(at, path).is_some_and(|rest| !rest.is_empty());
        self.strokes.iter().any(|stroke| match stroke {
            Stroke::Set { path: at, .. } => inside(at),
            Stroke::Move { from, to } => inside(from) || inside(to),
        })
    }

    /// The last stroke that set a path or a directory above it. Where nothing was moved, no other one counts.
    fn last_set(&self, path: &[u8]) -> Option<usize> {
        let mut last = self.set.get(path).copied();
        let mut above = path;
        while !above.is_empty() {
            above = split(above).0;
            last = last.max(self.set.get(above).copied());
        }
        last
    }

    /// Where what would be at a path is at present.
    fn locate(&self, path: &[u8]) -> Located {
        let mut path = path.to_vec();
        let end = if self.moved { self.strokes.len() } else { self.last_set(&path).map_or(0, |last| last + 1) };
        for stroke in self.strokes[..end].iter().rev() {
            match stroke {
                Stroke::Set { path: at, thing } => match (below(&path, at), thing) {
                    (None, _) => {}
                    (Some(_), None) => return Located::Nothing,
                    (Some(b""), Some(thing)) => return Located::Known(Box::new(thing.clone())),
                    (Some(rest), Some(thing)) => return Located::At(thing.source.join(rest)),
                },
                Stroke::Move { from, to } => {
                    if let Some(rest) = below(&path, to) {
                        path = join(from, rest);
                    } else if below(&path, from).is_some() {
                        return Located::Nothing;
                    }
                }
            }
        }
        Located::At(Source::Disk(path))
    }

    /// What would be at a path.
    pub(super) fn thing(&self, path: &[u8], how: Look) -> Result<Option<Thing>, ToolError> {
        let source = match self.locate(path) {
            Located::Nothing => return Ok(None),
            Located::Known(thing) if thing.state.kind != Form::Directory => return Ok(Some(*thing)),
            // How closely it has to be looked at is another question each time.
            Located::Known(thing) => thing.source,
            Located::At(source) => source,
        };
        let Some((parent, name)) = source.open_parent(self.mount) else { return Ok(None) };
        let state = State::at(self.mount, parent.as_fd(), &name, how, self.cx)?;
        Ok(state.map(|state| {
            let known = Known::of_state(&state, At { fd: parent.as_fd(), name: &name });
            Thing { which: Which::Known(known), state, source }
        }))
    }

    /// The directory that a path would be in. Nothing where that is not there yet.
    pub(super) fn directory_of(&self, path: &[u8]) -> Result<Option<u64>, ToolError> {
        match split(path).0 {
            b"" => Ok(Some(self.mount.id.inode)),
            parent => Ok(self.thing(parent, Look::Itself)?.map(|thing| thing.state.inode)),
        }
    }

    /// Whether a directory would have nothing in it.
    pub(super) fn is_empty(&self, path: &[u8], thing: &Thing) -> Result<bool, ToolError> {
        let there = thing.source.open_parent(self.mount);
        let listed = there.and_then(|(parent, name)| {
            let directory = self.mount.resolver.open_child(parent.as_fd(), &name).ok()?;
            names_in(directory.as_fd(), usize::MAX).ok()
        });
        let listed = listed.unwrap_or_default().into_iter().filter(|name| name != "." && name != "..");
        let painted = self.strokes.iter().filter_map(|stroke| {
            let at = match stroke {
                Stroke::Set { path, .. } => path,
                Stroke::Move { to, .. } => to,
            };
            let rest = below(at, path)?;
            let name = rest.split(|byte| *byte == b'/').next()?;
            (!name.is_empty()).then(|| name.to_vec())
        });
        for name in listed.map(String::into_bytes).chain(painted) {
            if self.thing(&join(path, &name), Look::Itself)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Source {
    fn join(&self, rest: &[u8]) -> Self {
        match self {
            Self::Disk(path) => Self::Disk(join(path, rest)),
            Self::Kept(image, path) => Self::Kept(image.clone(), join(path, rest)),
        }
    }

    /// The directory that has it, and its name there.
    pub(crate) fn open_parent(&self, mount: &Mount) -> Option<(OwnedFd, Vec<u8>)> {
        match self {
            Self::Disk(path) => {
                let (parent, name) = split(path);
                Some((open_straight(mount, parent)?, name.to_vec()))
            }
            Self::Kept(image, path) => {
                let keep = mount.keep()?;
                let whole = join(image.as_bytes(), path);
                let mut names = whole.split(|byte| *byte == b'/').collect::<Vec<_>>();
                let last = names.pop()?;
                let mut at = keep.fd().try_clone_to_owned().ok()?;
                for name in names {
                    at = mount.resolver.open_child(at.as_fd(), name).ok()?;
                }
                Some((at, last.to_vec()))
            }
        }
    }
}

/// A directory below the root, reached through no link.
pub(crate) fn open_straight(mount: &Mount, path: &[u8]) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL;
    let opened = mount.lookup(&GuestPath::real(path), flags, Pace::Patient).ok()?;
    opened.resolved.is_none().then_some(opened.fd)
}

pub(super) fn open_source(mount: &Mount, source: &Source, shown: &str) -> Result<OwnedFd, ToolError> {
    let (parent, name) = source.open_parent(mount).ok_or_else(|| changed(shown))?;
    mount.open_at(parent.as_fd(), &name, OFlags::RDONLY).map_err(|errno| fault(errno, shown))
}

/// What is left of a path below a directory; nothing for the directory itself.
pub(crate) fn below<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(directory)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

fn join(directory: &[u8], rest: &[u8]) -> Vec<u8> {
    match (directory, rest) {
        (directory, b"") => directory.to_vec(),
        (b"", rest) => rest.to_vec(),
        (directory, rest) => [directory, b"/", rest].concat(),
    }
}
