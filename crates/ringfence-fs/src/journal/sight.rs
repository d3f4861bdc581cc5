//! What a person is shown of an undo: what it would do to contents, each path once.
//!
//! Where several changes of one file are taken back, what is there now is compared with what would be there in the end.
//!
//! Not here: what has to be done (`retrace.rs`), and how a diff looks (`preview.rs`).

use std::collections::HashMap;
use std::os::fd::AsFd as _;

use ringfence_kernel::{Context, ToolError};

use super::picture::{Source, Thing, open_source};
use super::reverse::Reversal;
use super::state::{Form, State};
use crate::mount::Mount;
use crate::name::show;
use crate::preview::{Contents, Diffs};

/// So many paths are shown; nobody reads more before saying yes.
const MOST_PATHS: usize = 200;

/// What an undo would do, as it is seen from outside.
#[derive(Debug, Default)]
pub(super) struct Sights {
    all: Vec<Sight>,
    /// Where each path is in there, since the last movement.
    places: HashMap<Vec<u8>, usize>,
}

#[derive(Debug)]
enum Sight {
    Change { path: Vec<u8>, before: Option<Box<Seen>>, after: Option<Box<Seen>> },
    Move { from: Vec<u8>, to: Vec<u8> },
}

/// Something, and where it is at present.
#[derive(Debug)]
struct Seen {
    state: State,
    source: Source,
}

impl Seen {
    fn new(thing: &Thing) -> Box<Self> {
        Box::new(Self { state: thing.state.clone(), source: thing.source.clone() })
    }
}

impl Sights {
    /// Notes what would come to stand at a path instead of something else.
    pub(super) fn change(&mut self, path: &[u8], before: Option<&Thing>, after: Option<&Thing>) {
        let after = after.map(Seen::new);
        let earlier = self.places.get(path).and_then(|place| self.all.get_mut(*place));
        if let Some(Sight::Change { after: last, .. }) = earlier {
            *last = after;
            return;
        }
        self.places.insert(path.to_vec(), self.all.len());
        self.all.push(Sight::Change { path: path.to_vec(), before: before.map(Seen::new), after });
    }

    pub(super) fn movement(&mut self, from: &[u8], to: &[u8]) {
        self.places.clear();
        self.all.push(Sight::Move { from: from.to_vec(), to: to.to_vec() });
    }
}

impl Reversal {
    /// What it would do to contents. Reads as much as can be shown.
    pub(crate) fn add_to(&self, diffs: &mut Diffs, mount: &Mount, cx: &Context<'_>) -> Result<(), ToolError> {
        let shown = |path: &[u8]| mount.shown(&show(path));
        let all = &self.sights.all;
        for (index, sight) in all.iter().enumerate() {
            cx.check()?;
            if index >= MOST_PATHS || diffs.is_full() {
                diffs.say(&format!("… and {} more", all.len() - index));
                break;
            }
            match sight {
                Sight::Move { from, to } => diffs.say(&format!("move `{}` to `{}`", shown(from), shown(to))),
                Sight::Change { before: None, after: None, .. } => {}
                Sight::Change { path, before, after } => {
                    add(diffs, mount, &shown(path), [before.as_deref(), after.as_deref()], cx)?;
                }
            }
        }
        Ok(())
    }
}

fn add(
    diffs: &mut Diffs,
    mount: &Mount,
    shown: &str,
    sides: [Option<&Seen>; 2],
    cx: &Context<'_>,
) -> Result<(), ToolError> {
    let is_file = |side: &Option<&Seen>| side.is_none_or(|seen| seen.state.kind == Form::File);
    if !sides.iter().all(is_file) {
        let [before, after] =
            sides.map(|side| side.map_or_else(|| "nothing".to_owned(), |seen| seen.state.described()));
        diffs.say(&format!("`{shown}`: {before} becomes {after}"));
        return Ok(());
    }
    let contents = |Seen { state, source }: &Seen| match open_source(mount, source, shown) {
        Ok(fd) => Contents::first(fd.as_fd(), state.size, shown, cx),
        // It may not be ours to read, and can be renamed all the same.
        Err(_) => Ok(Contents::unread(state.size)),
    };
    let [before, after] = sides.map(|side| side.map(contents).transpose());
    diffs.add(shown, before?.as_ref(), after?.as_ref());
    Ok(())
}
