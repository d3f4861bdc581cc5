//! `list_directory` and `list_dir`: what is in a directory.

use std::os::fd::{AsFd, OwnedFd};

use ringfence_kernel::{
    Context, Face, NameTaken, Place, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fault::fault;
use crate::fence::Given;
use crate::mount::{Spot, look};
use crate::name::show;
use crate::stamp::{Kind, Stamp, timestamp};
use crate::walk::{Ours, Step, Walk, read_directory};

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    let standard = Face::standard::<StandardArgs, Value>("list_directory");
    let miniclaw = Face::miniclaw::<MiniclawArgs>("list_dir", Outcome::to_text);
    let crewagent = Face::crewagent::<CrewagentArgs, Fields>("fs.list");
    registry.register(ListDirectory { fence: fence.clone() }, [standard, miniclaw, crewagent])
}

struct ListDirectory {
    fence: Fence,
}

/// List a directory, sorted by name. Links are listed and never followed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardArgs {
    /// The directory, by its path relative to the workspace; `.` is the workspace itself.
    path: String,
    /// List everything below it.
    #[serde(default)]
    recursive: bool,
    /// Include names that begin with a dot.
    #[serde(default)]
    include_hidden: bool,
}

/// List the entries of a directory in the workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawArgs {
    /// The directory, by its path relative to the workspace; the workspace itself if left out.
    #[serde(default)]
    path: Option<String>,
}

/// List the entries of a directory. Directories end in `/`; hidden entries and links are left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CrewagentArgs {
    /// The directory, by its path from the `@` of a mount.
    path: String,
}

struct Args {
    path: Given,
    depth: Depth,
    hidden: Hidden,
    links: Links,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    One,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hidden {
    Shown,
    LeftOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    Shown,
    LeftOut,
}

impl From<StandardArgs> for Args {
    fn from(args: StandardArgs) -> Self {
        Self {
            path: Given::Standard(args.path),
            depth: if args.recursive { Depth::All } else { Depth::One },
            hidden: if args.include_hidden { Hidden::Shown } else { Hidden::LeftOut },
            links: Links::Shown,
        }
    }
}

impl From<MiniclawArgs> for Args {
    fn from(args: MiniclawArgs) -> Self {
        let path = args.path.filter(|path| !path.trim().is_empty()).unwrap_or_else(|| ".".to_owned());
        Self { path: Given::unless_blank(path), depth: Depth::One, hidden: Hidden::Shown, links: Links::Shown }
    }
}

impl From<CrewagentArgs> for Args {
    fn from(args: CrewagentArgs) -> Self {
        Self { path: Given::Mounted(args.path), depth: Depth::One, hidden: Hidden::LeftOut, links: Links::LeftOut }
    }
}

struct Work {
    spot: Spot,
    place: Place,
    directory: OwnedFd,
    /// Where it really is, below the root of the mount.
    real: String,
    depth: Depth,
    hidden: Hidden,
    links: Links,
}

struct Outcome {
    shown: String,
    entries: Vec<(String, Stamp)>,
    total: u64,
    unreadable: u64,
    /// Names in the listed directory that a mount has too.
    shadowed: Vec<String>,
}

/// What a listing returns in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
struct Value {
    entries: Vec<ValueEntry>,
    /// True when there are more entries than were listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// How many entries there are, when not all were listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Directories that could not be looked into.
    #[serde(skip_serializing_if = "super::is_zero")]
    unreadable: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ValueEntry {
    name: String,
    /// `file`, `directory` or `symlink`; rarely `fifo`, `socket` or `device`.
    r#type: &'static str,
    /// In bytes; 0 for a directory.
    size: u64,
    modified: String,
    /// The name is not UTF-8; bytes of it are written as `\xHH`, and understood so.
    #[serde(rename = "nonUtf8", skip_serializing_if = "std::ops::Not::not")]
    non_utf8: bool,
    /// A mount has this name; the entry is reached with `./` in front.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadowed: bool,
}

/// What a listing returns in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Fields {
    path: String,
    /// Names; a directory ends in `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<String>>,
    /// The first names, where there are too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries_preview: Option<Vec<String>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl From<Outcome> for Fields {
    fn from(outcome: Outcome) -> Self {
        let Outcome { shown: path, entries, total, .. } = outcome;
        let truncated = total > entries.len() as u64;
        let name = |(name, stamp): (String, Stamp)| if stamp.kind == Kind::Directory { name + "/" } else { name };
        let names: Vec<String> = entries.into_iter().map(name).collect();
        if !truncated {
            return Self { path, entries: Some(names), entries_preview: None, truncated, hint: None };
        }
        let hint = format!("{} of {total} entries are listed; list a directory below, or use fs.search", names.len());
        Self { path, entries: None, entries_preview: Some(names), truncated, hint: Some(hint) }
    }
}

impl Tool for ListDirectory {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::List];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let Args { path, depth, hidden, links } = args;
        let spot = self.fence.locate_given(&path, cx)?;
        let opened = spot.open_directory(cx)?;
        let real = opened.resolved.clone().unwrap_or_else(|| spot.path.shown());
        let place = spot.place(opened.resolved);
        let work = Work { spot, place: place.clone(), directory: opened.fd, real, depth, hidden, links };
        Ok(Plan { touches: vec![Touch { verb: Verb::List, place }], work })
    }

    fn preview(&self, work: &mut Work, _: &Context<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new(&format!("list `{}`", work.spot.shown), ""))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let shadowed = self.fence.shadowed(&work.spot);
        let outcome = match work.depth {
            Depth::One => list(work, ticket.context()),
            Depth::All => list_all(work, ticket.context()),
        };
        outcome.map(|outcome| Outcome { shadowed, ..outcome })
    }
}

/// One directory: every name is read, only those that are listed are looked at.
fn list(work: Work, cx: &Context<'_>) -> Result<Outcome, ToolError> {
    let Work { spot, directory, real, hidden, links, .. } = work;
    let mut names = read_directory(directory.as_fd(), Ours::Hidden, cx.limits.walk_entries, &spot.shown, cx)?;
    for entry in &names {
        // Also what is not listed: another name of it may be read.
        spot.mount.meet(&format!("{real}/{}", show(&entry.name)), directory.as_fd(), &entry.name);
    }
    names.retain(|entry| hidden == Hidden::Shown || !entry.name.starts_with(b"."));
    if links == Links::LeftOut {
        // Where the directory does not say what an entry is, a look does.
        let looked = |name: &[u8]| matches!(look(directory.as_fd(), name), Ok(Some(found)) if found.kind == Kind::Link);
        names.retain(|entry| !entry.is_link().unwrap_or_else(|| looked(&entry.name)));
    }
    let mut total = names.len() as u64;
    let most = usize::try_from(cx.limits.list_entries).unwrap_or(usize::MAX);
    if names.len() > most {
        names.select_nth_unstable(most);
        names.truncate(most);
    }
    names.sort_unstable();
    let mut entries = Vec::with_capacity(names.len());
    for entry in names {
        match look(directory.as_fd(), &entry.name).map_err(|errno| fault(errno, &spot.shown))? {
            Some(stamp) => entries.push((show(&entry.name), stamp)),
            // It went away since its name was read.
            None => total -= 1,
        }
    }
    Ok(Outcome { shown: spot.shown, entries, total, unreadable: 0, shadowed: Vec::new() })
}

/// A whole tree: past the limit, entries are only counted.
fn list_all(work: Work, cx: &Context<'_>) -> Result<Outcome, ToolError> {
    let Work { spot, directory, place, real, hidden, .. } = work;
    let mut outcome =
        Outcome { shown: spot.shown.clone(), entries: Vec::new(), total: 0, unreadable: 0, shadowed: Vec::new() };
    let mut left = cx.limits.list_bytes;
    let of_whole = cx.judge(&Touch { verb: Verb::List, place: place.clone() }).strictness();
    let mut walk = Walk::new(&spot.mount, directory, &spot.shown, cx)?;
    while let Some(step) = walk.next()? {
        let Step::Entry(entry) = step else { continue };
        let path = format!("{real}/{}", show(&walk.path_of(&entry.name)));
        spot.mount.meet(&path, walk.directory()?, &entry.name);
        if hidden == Hidden::LeftOut && entry.name.starts_with(b".") {
            continue;
        }
        outcome.total += 1;
        if (outcome.entries.len() as u64) < cx.limits.list_entries && left > 0 {
            match walk.look(&entry)? {
                Some(stamp) => {
                    let name = show(&walk.path_of(&entry.name));
                    left = left.saturating_sub(name.len() as u64);
                    outcome.entries.push((name, stamp));
                }
                None => outcome.total -= 1,
            }
        }
        if walk.is_directory(&entry)? {
            let inside = Touch { verb: Verb::List, place: place.below(&show(&walk.path_of(&entry.name))) };
            let kept_out = cx.judge(&inside).strictness() > of_whole;
            if kept_out || walk.descend(&entry)?.is_err() {
                outcome.unreadable += 1;
            }
        }
    }
    Ok(outcome)
}

impl Outcome {
    fn to_text(&self) -> String {
        let count = self.entries.len();
        let mut text = format!("ok: listed {count} entries in {}", self.shown);
        if self.total > count as u64 {
            text.push_str(&format!(" (truncated from {})", self.total));
        }
        for (name, stamp) in &self.entries {
            let kind = if stamp.kind == Kind::Directory { "dir" } else { "file" };
            text.push_str(&format!("\n- {name}\t{kind}\t{}", size_of(stamp)));
        }
        text
    }
}

impl From<Outcome> for Value {
    fn from(outcome: Outcome) -> Self {
        let Outcome { entries, total, unreadable, shadowed, .. } = outcome;
        let truncated = total > entries.len() as u64;
        let entries = entries.into_iter().map(|(name, stamp)| ValueEntry {
            r#type: stamp.kind.name(),
            size: size_of(&stamp),
            modified: timestamp(stamp.modified),
            shadowed: shadowed.contains(&name),
            non_utf8: std::str::from_utf8(&crate::name::read_back(&name)).is_err(),
            name,
        });
        Self { entries: entries.collect(), truncated, total: truncated.then_some(total), unreadable }
    }
}

/// What a directory says its own size is depends on the file system and helps nobody.
fn size_of(stamp: &Stamp) -> u64 {
    if stamp.kind == Kind::Directory { 0 } else { stamp.size }
}
