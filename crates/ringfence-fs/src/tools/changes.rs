//! `list_changes` and `show_change`: what the journal has, and what one change did.

use std::fmt::Write as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Origin, Place, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use similar::TextDiff;

use crate::Fence;
use crate::content::{read_up_to, text_of};
use crate::journal::{Effect, Entry, Look, Source, State, Status};
use crate::mount::{Mount, look};
use crate::name::read_back;
use crate::stamp::Kind;

/// Larger files are shown by their sizes.
const MOST_SHOWN: u64 = 1 << 20;

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    let list = Face::standard::<ListArgs, Changes>("list_changes");
    registry.register(ListChanges { fence: fence.clone() }, [list])?;
    let show = Face::standard::<ShowArgs, Shown>("show_change");
    registry.register(ShowChange { fence: fence.clone() }, [show])
}

struct ListChanges {
    fence: Fence,
}

/// List the changes made in this workspace, newest first, with the ids that `undo` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListArgs {
    /// Only changes of this session.
    session: Option<String>,
}

/// What there is.
#[derive(Debug, Serialize, JsonSchema)]
struct Changes {
    changes: Vec<Listed>,
    /// True when there are older ones that are not listed.
    truncated: bool,
}

/// One change.
#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// Its id.
    change: String,
    time: String,
    session: String,
    call: String,
    tool: String,
    paths: Vec<String>,
    /// `done`, `undone`, `gone` when it can no longer be undone, or `pending` while it is being made.
    state: &'static str,
    /// The changes that it took back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    undoes: Vec<String>,
}

impl Listed {
    fn new(mount: &Mount, entry: &Entry) -> Self {
        let Entry { change, status, evicted, undone_by, .. } = entry;
        let lost = change.effects.iter().any(|effect| matches!(effect, Effect::Lost { .. }));
        let mut paths: Vec<String> = change.effects.iter().flat_map(Effect::paths).map(|at| mount.shown(at)).collect();
        paths.dedup();
        Self {
            change: change.change.clone(),
            time: change.at.clone(),
            session: change.session.clone(),
            call: change.call.clone(),
            tool: change.tool.clone(),
            paths,
            state: match status {
                Status::Pending | Status::Void => "pending",
                Status::Done if undone_by.is_some() => "undone",
                Status::Done if *evicted || lost => "gone",
                Status::Done => "done",
            },
            undoes: change.undoes.clone(),
        }
    }
}

impl Tool for ListChanges {
    type Args = ListArgs;
    type Work = Option<String>;
    type Outcome = Changes;
    const VERBS: &'static [Verb] = &[Verb::List];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: ListArgs, cx: &Context<'_>) -> Result<Plan<Option<String>>, ToolError> {
        let spot = self.fence.locate(".", cx)?;
        let touches = vec![Touch { verb: Verb::List, place: spot.place(None) }];
        Ok(Plan { touches, work: args.session })
    }

    fn preview(&self, _: &mut Option<String>, _: &Context<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("list the changes", ""))
    }

    fn run(&self, session: Option<String>, ticket: &Ticket<'_>) -> Result<Changes, ToolError> {
        let cx = ticket.context();
        let origin = cx.origin().cloned().unwrap_or_default();
        let wanted = |entry: &Entry| {
            may_see(entry, &origin)
                && entry.status != Status::Void
                && session.as_ref().is_none_or(|session| entry.change.session == *session)
        };
        let mut changes = Vec::new();
        for (mount, entries) in self.fence.journals()? {
            cx.check()?;
            let listed = |entry: &Entry| (entry.change.place(), Listed::new(&mount, entry));
            changes.extend(entries.iter().filter(|entry| wanted(entry)).map(listed));
        }
        // The order of one journal is kept where two have the same place.
        changes.reverse();
        changes.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        let mut changes: Vec<Listed> = changes.into_iter().map(|(_, listed)| listed).collect();
        let most = usize::try_from(cx.limits.list_entries).unwrap_or(usize::MAX);
        let truncated = changes.len() > most;
        changes.truncate(most);
        Ok(Changes { changes, truncated })
    }
}

struct ShowChange {
    fence: Fence,
}

/// Show what one change did, as a diff where it is text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowArgs {
    /// Its id.
    change: String,
}

struct ShowWork {
    mount: Arc<Mount>,
    entry: Entry,
    /// Every pre-image that may be there: what a change left, a later one displaced.
    images: Vec<Source>,
}

/// What a change did.
#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    #[serde(flatten)]
    change: Listed,
    diff: String,
}

impl Tool for ShowChange {
    type Args = ShowArgs;
    type Work = ShowWork;
    type Outcome = Shown;
    const VERBS: &'static [Verb] = &[Verb::Read];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: ShowArgs, cx: &Context<'_>) -> Result<Plan<ShowWork>, ToolError> {
        let origin = cx.origin().cloned().unwrap_or_default();
        for (mount, entries) in self.fence.journals()? {
            let is_it = |entry: &Entry| entry.change.change == args.change && may_see(entry, &origin);
            let images = entries.iter().flat_map(|entry| &entry.change.effects).filter_map(Effect::image);
            let images = images.map(|(image, _)| kept(image)).collect();
            if let Some(entry) = entries.into_iter().find(is_it) {
                mount.look_around(cx)?;
                let known = mount.known_of(&entry.change.effects);
                let read = |path: &str| Touch {
                    verb: Verb::Read,
                    place: Place {
                        mount: Arc::clone(&mount.alias),
                        given: path.to_owned(),
                        shown: mount.shown(path),
                        sensitivity: known.or(mount.known.linked().sensitivity(&read_back(path))),
                        ..Place::default()
                    },
                };
                let touches = entry.change.effects.iter().flat_map(Effect::paths).map(read).collect();
                return Ok(Plan { touches, work: ShowWork { mount, entry, images } });
            }
        }
        let id = &args.change[..args.change.floor_char_boundary(64)];
        Err(ToolError::new(ErrorKind::NotFound, format!("there is no change `{id}`")))
    }

    fn preview(&self, work: &mut ShowWork, _: &Context<'_>) -> Result<Preview, ToolError> {
        let text = format!("show the change {}", work.entry.change.change);
        Ok(Preview::new(&text, text.clone()))
    }

    fn run(&self, work: ShowWork, ticket: &Ticket<'_>) -> Result<Shown, ToolError> {
        let ShowWork { mount, entry, images } = work;
        let mut diff = String::new();
        for effect in &entry.change.effects {
            ticket.context().check()?;
            describe(&mut diff, &mount, effect, &images, ticket.context());
        }
        Ok(Shown { change: Listed::new(&mount, &entry), diff })
    }
}

/// An agent sees what its own session did.
fn may_see(entry: &Entry, origin: &Origin) -> bool {
    origin.may_undo || entry.change.session == origin.session
}

fn kept(image: &str) -> Source {
    Source::Kept(image.to_owned(), Vec::new())
}

fn describe(diff: &mut String, mount: &Mount, effect: &Effect, images: &[Source], cx: &Context<'_>) {
    let (path, before, after) = match effect {
        Effect::Moved { from, to, .. } => {
            let _ = writeln!(diff, "rename from {}\nrename to {}", mount.shown(from), mount.shown(to));
            return;
        }
        Effect::Lost { path } => {
            let _ = writeln!(diff, "{}: what was there was not kept", mount.shown(path));
            return;
        }
        Effect::Mode { path, before, after, .. } => {
            let _ = writeln!(diff, "{}: mode {before:o} became {after:o}", mount.shown(path));
            return;
        }
        Effect::Created { path, after, .. } => (path, None, Some(after)),
        Effect::Removed { path, before, .. } => (path, Some(before), None),
        Effect::Replaced { path, before, after, .. } | Effect::Appended { path, before, after } => {
            (path, Some(before), Some(after))
        }
    };
    let here = Source::Disk(read_back(path));
    let own = effect.image().map(|(image, _)| kept(image));
    let places: Vec<&Source> = own.iter().chain([&here]).chain(images).collect();
    let path = mount.shown(path);
    let text = |side: Option<&State>| match side {
        None => Some(String::new()),
        Some(state) => places.iter().find_map(|place| text_at(mount, place, state, cx)),
    };
    let name = |side: bool, mark: &str| if side { format!("{mark}/{path}") } else { "/dev/null".to_owned() };
    if let (Some(old), Some(new)) = (text(before), text(after)) {
        let header = (name(before.is_some(), "a"), name(after.is_some(), "b"));
        let _ = write!(diff, "{}", TextDiff::from_lines(&old, &new).unified_diff().header(&header.0, &header.1));
        return;
    }
    let described = |side: Option<&State>| side.map_or_else(|| "nothing".to_owned(), State::described);
    let _ = writeln!(diff, "{path}: {} became {}", described(before), described(after));
}

/// The text of a file that is still what it was, or its beginning still is.
fn text_at(mount: &Mount, place: &Source, state: &State, cx: &Context<'_>) -> Option<String> {
    state.sha256.as_ref().filter(|_| state.size <= MOST_SHOWN && state.look() == Look::Itself)?;
    let (parent, name) = place.open_parent(mount)?;
    // What is shorter cannot be it, and is not read.
    look(parent.as_fd(), &name).ok()?.filter(|found| found.kind == Kind::File && found.size >= state.size)?;
    let fd = mount.open_at(parent.as_fd(), &name, OFlags::RDONLY).ok()?;
    let mut bytes = read_up_to(&fd, MOST_SHOWN * 2, cx).ok()?;
    bytes.truncate(usize::try_from(state.size).ok()?);
    let same = state.sha256.as_deref() == Some(&crate::digest::Digest::of(&bytes).to_hex());
    text_of(bytes, false, "").ok().filter(|_| same)
}
