//! `undo` and `redo`: changes are taken back, and brought back.
//!
//! A change of a journal is undone as what it is: a change of every path that it touched, judged by the same rules. An
//! agent takes back what its own session did. A person takes back anything, and may insist.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Origin, Place, Plan, Preview, Registry, Sensitivity, Ticket, Tool, ToolError,
    Touch, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::manifest::{Class, Whole, survey, touches_below};
use crate::Fence;
use crate::fence::Journaled;
use crate::journal::{Afterwards, Doing, Entry, Force, Reversal, Status};
use crate::locks::{Tree, TreeHeld};
use crate::mount::Mount;
use crate::name::read_back;
use crate::preview::{Diffs, fingerprint};
use crate::recover::{recover_notes, recover_tree};
use crate::repository::Repositories;

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(Undo { fence: fence.clone() }, [Face::standard::<UndoArgs, Outcome>("undo")])?;
    registry.register(Redo(Undo { fence: fence.clone() }), [Face::standard::<RedoArgs, Outcome>("redo")])
}

/// In one line, as many things that would be done are named.
const MOST_NAMED: usize = 20;

struct Undo {
    fence: Fence,
}

struct Redo(Undo);

/// Whatever was done can be taken back, and nothing else happens by that.
const VERBS: [Verb; 7] =
    [Verb::List, Verb::Read, Verb::Create, Verb::Overwrite, Verb::MoveAway, Verb::Delete, Verb::Lose];

/// Undo changes of the workspace: the last one of this session, or those that are named. All or none: nothing is undone
/// where something was changed since.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UndoArgs {
    /// The id of one change.
    change: Option<String>,
    /// Every change of this session.
    session: Option<String>,
    /// Every change since this time (RFC 3339).
    since: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
    // Undo also what was changed since. Only a person may: agents are not told of it.
    #[serde(default)]
    #[schemars(skip)]
    force: bool,
}

/// Apply again what the last `undo` reverted, or the one that is named.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RedoArgs {
    /// The id that `undo` returned.
    change: Option<String>,
}

struct Args {
    which: Which,
    dry_run: bool,
    force: Force,
}

/// Which changes are meant.
#[derive(Clone, Debug)]
enum Which {
    Last,
    LastUndo,
    One(String),
    OneUndo(String),
    Session(String),
    Since(SystemTime),
}

impl TryFrom<UndoArgs> for Args {
    type Error = ToolError;

    fn try_from(args: UndoArgs) -> Result<Self, ToolError> {
        let which = match (args.change, args.session, args.since) {
            (None, None, None) => Which::Last,
            (Some(change), None, None) => Which::One(change),
            (None, Some(session), None) => Which::Session(session),
            (None, None, Some(time)) => Which::Since(
                humantime::parse_rfc3339_weak(&time)
                    .map_err(|_| ToolError::invalid("since", "is not a time such as `2026-01-31T12:00:00Z`"))?,
            ),
            _ => return Err(ToolError::invalid("change", "is for itself: name a change, a session or a time")),
        };
        Ok(Self { which, dry_run: args.dry_run, force: if args.force { Force::Yes } else { Force::No } })
    }
}

impl From<RedoArgs> for Args {
    fn from(args: RedoArgs) -> Self {
        let which = args.change.map_or(Which::LastUndo, Which::OneUndo);
        Self { which, dry_run: false, force: Force::No }
    }
}

struct Work {
    /// One for each mount, in the order of the mounts.
    parts: Vec<Part>,
    force: Force,
    dry_run: bool,
    /// What would be shown has a secret in it.
    secret: bool,
}

/// What is taken back on one mount.
struct Part {
    mount: Arc<Mount>,
    entries: Vec<Entry>,
    reversal: Reversal,
}

/// What an undo returns.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    /// The changes that were taken back, the newest first.
    undone: Vec<String>,
    /// Every path that was changed by that.
    paths: Vec<String>,
    /// The id of this change, for `redo`. Nothing if nothing was done.
    #[serde(skip_serializing_if = "String::is_empty")]
    change: String,
    /// True when it was only said what would be done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// True when what it displaces is too large to be kept, so that no `redo` brings it back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
    /// What would be done to contents, when that was only asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
}

impl Tool for Undo {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &VERBS;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let origin = cx.origin().cloned().unwrap_or_default();
        if args.force == Force::Yes && !origin.may_undo {
            let message = "only a person may insist on an undo of what was changed since";
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        let found = self.find(&args.which, &origin)?;
        let changes = found.iter().flat_map(|(_, entries)| entries).map(|entry| entry.change.change.as_str());
        cx.name_subject(&changes.collect::<Vec<_>>().join(" "));
        let mut parts = Vec::new();
        for (mount, entries) in found {
            mount.check_in_place(cx.pace)?;
            mount.check_keep()?;
            let reversal = Reversal::plan(&mount, &entries, args.force, cx)?;
            check_conflicts(&mount, &reversal, &origin)?;
            mount.look_around(cx)?;
            parts.push(Part { mount, entries, reversal });
        }
        let mut touches = Vec::new();
        for Part { mount, reversal, .. } in &parts {
            if args.dry_run {
                touches.extend(looks(mount, reversal));
            } else {
                check_kept(mount, reversal, args.force, cx)?;
                touches.extend(changes_of(mount, reversal, cx)?);
            }
        }
        let secret = touches.iter().any(|touch| touch.place.sensitive().secret);
        Ok(Plan { touches, work: Work { parts, force: args.force, dry_run: args.dry_run, secret } })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Work { parts, secret, .. } = work;
        let doings: Vec<String> = parts
            .iter()
            .flat_map(|Part { mount, reversal, .. }| {
                let doings = reversal.doings().into_iter();
                doings.map(|doing| format!("{} `{}`", doing.verb.as_str(), mount.shown(&doing.path)))
            })
            .collect();
        let mut words: Vec<String> = doings.iter().take(MOST_NAMED).cloned().collect();
        if doings.len() > MOST_NAMED {
            words.push(format!("{} more", doings.len() - MOST_NAMED));
        }
        let text = format!("take back {}: {}", undone(parts).join(", "), words.join(", "));
        let bound: Vec<_> = parts.iter().map(|part| (part.reversal.undoes(), part.reversal.effects())).collect();
        Ok(Preview::new(&text, fingerprint(bound)).with(diffs(parts, cx)?.into_body()).secret_if(*secret))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { parts, force, dry_run, .. } = work;
        let cx = ticket.context();
        let paths = parts.iter().flat_map(|part| part.reversal.paths().into_iter().map(|path| part.mount.shown(&path)));
        let kept = parts.iter().map(|part| part.reversal.is_kept(&part.mount, cx)).collect::<Result<Vec<_>, _>>()?;
        let lost = kept.contains(&false);
        let mut outcome = Outcome {
            undone: undone(&parts),
            paths: paths.collect(),
            change: String::new(),
            dry_run,
            lost,
            diff: None,
        };
        if dry_run {
            outcome.diff = Some(diffs(&parts, cx)?.into_text());
            return Ok(outcome);
        }
        let mut ready = Vec::new();
        for part in parts {
            ready.push(part.make_ready(force, ticket)?);
        }
        // Every path of every mount is as it should be: only now the first one is touched.
        let mut done: Vec<String> = Vec::new();
        outcome.lost = false;
        for Ready { mount, tree, reversal } in ready {
            let carried_out = reversal.carry_out(&mount, &tree, ticket).map_err(|error| in_part(error, &done, ticket));
            outcome.lost |= carried_out? == Afterwards::Lost;
            done.push(format!("@{}", mount.alias));
        }
        outcome.change = ticket.change().to_owned();
        Ok(outcome)
    }
}

/// A mount that nobody else of ours changes meanwhile, and what will be done there.
struct Ready {
    mount: Arc<Mount>,
    tree: TreeHeld,
    reversal: Reversal,
}

impl Part {
    /// Takes the tree, and looks once more at everything.
    fn make_ready(self, force: Force, ticket: &Ticket<'_>) -> Result<Ready, ToolError> {
        let Self { mount, entries, reversal } = self;
        let tree = mount.locks.hold_tree(Tree::Alone, ticket.context())?;
        recover_tree(&mount, &tree);
        recover_notes(&mount);
        check_still_so(&mount, &entries)?;
        let now = Reversal::plan(&mount, &entries, force, ticket.context())?;
        check_conflicts(&mount, &now, &ticket.context().origin().cloned().unwrap_or_default())?;
        if !now.is_same(&reversal) {
            let message = "what would be undone changed since the call was planned; nothing was undone";
            return Err(ToolError::new(ErrorKind::Conflict, message).hint("try again"));
        }
        now.check(&mount, ticket)?;
        Ok(Ready { mount, tree, reversal: now })
    }
}

/// The error of one mount, where others were done before it: each mount is all or nothing, all of them together are not.
fn in_part(error: ToolError, done: &[String], ticket: &Ticket<'_>) -> ToolError {
    if done.is_empty() {
        return error;
    }
    let (kind, change) = (error.kind, ticket.change());
    let message = format!("{error} there; but what was on {} was undone, by `{change}`", done.join(", "));
    ToolError { details: error.details, ..ToolError::new(kind, message) }
        .hint("`redo` brings that back, and `undo` tries the rest again")
        .detail("change", change)
        .detail("undoneOn", done.to_vec())
}

/// The changes that are taken back, each once.
fn undone(parts: &[Part]) -> Vec<String> {
    let mut undone: Vec<String> = Vec::new();
    for change in parts.iter().flat_map(|part| part.reversal.undoes()) {
        if !undone.contains(change) {
            undone.push(change.clone());
        }
    }
    undone
}

fn diffs(parts: &[Part], cx: &Context<'_>) -> Result<Diffs, ToolError> {
    let mut diffs = Diffs::new();
    for Part { mount, reversal, .. } in parts {
        reversal.add_to(&mut diffs, mount, cx)?;
    }
    Ok(diffs)
}

impl Tool for Redo {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &VERBS;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        self.0.plan(args, cx)
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        self.0.preview(work, cx)
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        self.0.run(work, ticket)
    }
}

impl Undo {
    /// The changes that are meant, the newest first, by the mounts that they are on.
    fn find(&self, which: &Which, origin: &Origin) -> Result<Vec<Journaled>, ToolError> {
        let (mut found, mut refused): (Vec<Journaled>, _) = (Vec::new(), None);
        for (mount, entries) in self.fence.journals()? {
            match pick(which, &entries, origin) {
                Ok(picked) if picked.is_empty() => {}
                Ok(picked) => found.push((mount, picked)),
                // What was made on one mount may not have been made on another.
                Err(error) => refused = Some(error),
            }
        }
        if matches!(which, Which::Last | Which::LastUndo) {
            // One for each mount; the last of them is meant, wherever else it was made.
            found.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.first().map(|entry| entry.change.place())));
            let last = found.first().and_then(|(_, entries)| entries.first()).map(|entry| entry.change.change.clone());
            found.retain(|(_, entries)| entries.first().map(|entry| &entry.change.change) == last.as_ref());
        }
        if found.is_empty() {
            return Err(refused.unwrap_or_else(|| nothing(which, origin)));
        }
        Ok(found)
    }
}

/// The changes of one journal that are meant, the newest first.
fn pick(which: &Which, entries: &[Entry], origin: &Origin) -> Result<Vec<Entry>, ToolError> {
    let undos: BTreeSet<&str> =
        entries.iter().filter(|entry| entry.is_undo()).map(|entry| entry.change.change.as_str()).collect();
    let is_redo = |entry: &Entry| entry.change.undoes.iter().any(|undone| undos.contains(undone.as_str()));
    let mine = |entry: &&Entry| origin.may_undo || entry.change.session == origin.session;
    let live = entries.iter().rev().filter(mine).filter(|entry| entry.is_live());
    let plain = live.clone().filter(|entry| !entry.is_undo());
    Ok(match which {
        Which::Last => plain.take(1).cloned().collect(),
        Which::LastUndo => live.filter(|entry| entry.is_undo() && !is_redo(entry)).take(1).cloned().collect(),
        Which::Session(session) => plain.filter(|entry| entry.change.session == *session).cloned().collect(),
        Which::Since(time) => {
            let since = humantime::format_rfc3339_millis(*time).to_string();
            plain.filter(|entry| entry.change.at >= since).cloned().collect()
        }
        Which::One(id) | Which::OneUndo(id) => {
            let Some(entry) = entries.iter().filter(mine).find(|entry| entry.change.change == *id) else {
                return Ok(Vec::new());
            };
            check_one(entry, is_redo(entry), which)?;
            vec![entry.clone()]
        }
    })
}

fn check_one(entry: &Entry, is_redo: bool, which: &Which) -> Result<(), ToolError> {
    let id = &entry.change.change;
    let refuse = |kind, why: String| Err(ToolError::new(kind, format!("the change `{id}` {why}")));
    match (entry.status, &entry.undone_by) {
        (Status::Pending | Status::Void, _) => refuse(ErrorKind::NotFound, "was not made".to_owned()),
        (Status::Done, Some(by)) => refuse(ErrorKind::Conflict, format!("was undone already, by `{by}`")),
        (Status::Done, None) if is_redo => {
            refuse(ErrorKind::InvalidArgs, "is a redo; undo the change that it brought back".to_owned())
        }
        (Status::Done, None) if matches!(which, Which::OneUndo(_)) && !entry.is_undo() => {
            refuse(ErrorKind::InvalidArgs, "is not an undo".to_owned())
        }
        (Status::Done, None) => Ok(()),
    }
}

fn nothing(which: &Which, origin: &Origin) -> ToolError {
    let whose = if origin.may_undo { "" } else { " of this session" };
    let message = match which {
        Which::One(id) | Which::OneUndo(id) => {
            format!("there is no change `{}`{whose}", &id[..id.floor_char_boundary(64)])
        }
        Which::LastUndo => format!("there is no undo{whose} to be brought back"),
        Which::Last | Which::Session(_) | Which::Since(_) => format!("there is no such change{whose} to be undone"),
    };
    ToolError::new(ErrorKind::NotFound, message)
}

/// Between the plan and now, somebody may have undone the same.
fn check_still_so(mount: &Mount, entries: &[Entry]) -> Result<(), ToolError> {
    let Some(journal) = &mount.journal else { return Ok(()) };
    for Entry { change, evicted, .. } in entries {
        let now = journal.entry(&change.change).ok().flatten();
        if !now.is_some_and(|now| now.is_live() && now.evicted == *evicted) {
            let message = format!("the change `{}` was undone or let go meanwhile", change.change);
            return Err(ToolError::new(ErrorKind::Conflict, message));
        }
    }
    Ok(())
}

/// An agent is told which paths, and not what is there: it may not be its to see.
fn check_conflicts(mount: &Mount, reversal: &Reversal, origin: &Origin) -> Result<(), ToolError> {
    let Some(first) = reversal.conflicts.first() else { return Ok(()) };
    if !origin.may_undo {
        let paths: Vec<String> = reversal.conflicts.iter().map(|conflict| mount.shown(&conflict.path)).collect();
        let message = format!("`{}` is not as the change left it; nothing was undone", mount.shown(&first.path));
        return Err(ToolError::new(ErrorKind::Conflict, message).detail("conflicts", paths));
    }
    let paths: Vec<serde_json::Value> = reversal
        .conflicts
        .iter()
        .map(|conflict| {
            serde_json::json!({
                "path": mount.shown(&conflict.path),
                "expected": conflict.expected,
                "found": conflict.found,
            })
        })
        .collect();
    let more = match paths.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let message = format!(
        "`{}` is not as the change left it: {} was expected, {} is there{more}; nothing was undone",
        mount.shown(&first.path),
        first.expected,
        first.found
    );
    Err(ToolError::new(ErrorKind::Conflict, message).detail("conflicts", paths))
}

/// Nobody is asked about what a person does themselves: where that could not be taken back, they have to say so.
fn check_kept(mount: &Mount, reversal: &Reversal, force: Force, cx: &Context<'_>) -> Result<(), ToolError> {
    let by_person = cx.origin().is_some_and(|origin| origin.may_undo);
    if !by_person || force == Force::Yes || reversal.is_kept(mount, cx)? {
        return Ok(());
    }
    let message = "what is there now is too large to be kept, and no redo would bring it back; nothing was undone";
    Err(ToolError::new(ErrorKind::WriteLimit, message).hint("raise max_undo_session_bytes, or insist"))
}

/// To be shown what is there, and what would be there, is to read it.
fn looks(mount: &Mount, reversal: &Reversal) -> Vec<Touch> {
    let known = mount.known_of(reversal.effects());
    let read = |path: &String| {
        let place = place(mount, path);
        Touch { verb: Verb::Read, place: Place { sensitivity: known.or(place.sensitivity), ..place } }
    };
    reversal.paths().iter().map(read).collect()
}

/// Everything that would be touched, with what is in directories.
fn changes_of(mount: &Mount, reversal: &Reversal, cx: &Context<'_>) -> Result<Vec<Touch>, ToolError> {
    let known = mount.known_of(reversal.effects());
    let mut repositories = Repositories::after(mount, reversal.effects());
    let mut touches = Vec::new();
    for Doing { verb, path, tree } in reversal.doings() {
        let completes = repositories.have(&read_back(&path));
        let known = known.or(Sensitivity { secret: false, protected: completes });
        let place = place(mount, &path);
        let place = Place { sensitivity: known.or(place.sensitivity), ..place };
        let directory = tree.and_then(|tree| {
            let (parent, name) = tree.open_parent(mount)?;
            mount.resolver.open_child(std::os::fd::AsFd::as_fd(&parent), &name).ok()
        });
        if let Some(directory) = directory {
            let wholes = [Whole::new(verb, &place, cx)];
            let classify = |path: &str| Class::of(&wholes, path, cx);
            let found = survey(mount, directory, &place.shown, classify, cx)?;
            touches.extend(touches_below(&place, &found.sensitive, verb));
        }
        touches.push(Touch { verb, place });
    }
    if !reversal.is_kept(mount, cx)? {
        let lost = |path| Touch { verb: Verb::Lose, place: Place { sensitivity: known, ..place(mount, path) } };
        touches.extend(reversal.displaced().map(lost));
    }
    Ok(touches)
}

fn place(mount: &Mount, path: &str) -> Place {
    Place {
        mount: Arc::clone(&mount.alias),
        given: path.to_owned(),
        shown: mount.shown(path),
        sensitivity: mount.known.linked().sensitivity(&read_back(path)),
        ..Place::default()
    }
}
