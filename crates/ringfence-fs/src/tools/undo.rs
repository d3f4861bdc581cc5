//! `undo` and `redo`: changes are taken back, and brought back.
//!
//! A change of a journal is undone as what it is: a change of every path that it touched, judged by the same rules. An
//! agent takes back what its own session did. A person takes back anything, and may insist.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Origin, Place, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::manifest::{Class, Whole, survey, touches_below};
use crate::Fence;
use crate::fence::Journaled;
use crate::journal::{Afterwards, Doing, Entry, Force, Reversal, Status};
use crate::locks::Tree;
use crate::mount::Mount;
use crate::preview::fingerprint;
use crate::recover::{recover_notes, recover_tree};

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

/// Take back changes of the workspace: the last one of this session, or those that are named. Everything goes back to
/// what it was, or, where something was changed since, nothing does.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UndoArgs {
    /// The id of one change, as the call that made it returned it.
    change: Option<String>,
    /// Every change of this session.
    session: Option<String>,
    /// Every change since this time, such as `2026-01-31T12:00:00Z`.
    since: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Take back also what was changed since; what is there now is kept, unless it is too large. For persons.
    #[serde(default)]
    force: bool,
}

/// Bring back what the last `undo` took back, or the one that is named.
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
    mount: Arc<Mount>,
    entries: Vec<Entry>,
    force: Force,
    dry_run: bool,
    reversal: Reversal,
    /// What would be shown has a secret in it.
    secret: bool,
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
        let (mount, entries) = self.find(&args.which, &origin)?;
        cx.name_subject(&entries.iter().map(|entry| entry.change.change.as_str()).collect::<Vec<_>>().join(" "));
        mount.check_in_place(cx.pace)?;
        mount.check_keep()?;
        let reversal = Reversal::plan(&mount, &entries, args.force, cx)?;
        check_conflicts(&mount, &reversal, &origin)?;
        mount.look_around(cx)?;
        let touches: Vec<Touch> = if args.dry_run {
            // What is there is shown, and what would be there.
            let known = mount.known_of(reversal.effects());
            let read =
                |path: &String| Touch { verb: Verb::Read, place: Place { sensitivity: known, ..place(&mount, path) } };
            reversal.paths().iter().map(read).collect()
        } else {
            check_kept(&mount, &reversal, args.force, cx)?;
            touches(&mount, &reversal, cx)?
        };
        let secret = touches.iter().any(|touch| touch.place.sensitive().secret);
        let work = Work { mount, entries, force: args.force, dry_run: args.dry_run, reversal, secret };
        Ok(Plan { touches, work })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Work { mount, reversal, secret, .. } = work;
        let doings = reversal.doings();
        let named = doings.iter().take(MOST_NAMED);
        let mut words: Vec<String> =
            named.map(|doing| format!("{} `{}`", doing.verb.as_str(), mount.shown(&doing.path))).collect();
        if doings.len() > MOST_NAMED {
            words.push(format!("{} more", doings.len() - MOST_NAMED));
        }
        let text = format!("take back {}: {}", reversal.undoes().join(", "), words.join(", "));
        let preview = Preview::new(&text, fingerprint((reversal.undoes(), reversal.effects())));
        Ok(preview.with(reversal.to_diffs(mount, cx)?.into_body()).secret_if(*secret))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { mount, entries, force, dry_run, reversal, .. } = work;
        let paths = reversal.paths().iter().map(|path| mount.shown(path)).collect();
        let lost = !reversal.is_kept(&mount, ticket.context());
        let undone = reversal.undoes().to_vec();
        let mut outcome = Outcome { undone, paths, change: String::new(), dry_run, lost, diff: None };
        if dry_run {
            outcome.diff = Some(reversal.to_diffs(&mount, ticket.context())?.into_text());
            return Ok(outcome);
        }
        // Nobody else of ours changes anything meanwhile.
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
        outcome.lost = now.carry_out(&mount, &tree, ticket)? == Afterwards::Lost;
        outcome.change = ticket.change().to_owned();
        Ok(outcome)
    }
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
    /// The changes that are meant, the newest first, and the mount that they are on.
    fn find(&self, which: &Which, origin: &Origin) -> Result<Journaled, ToolError> {
        let mut found: Vec<Journaled> = Vec::new();
        for (mount, entries) in self.fence.journals()? {
            let picked = pick(which, &entries, origin)?;
            if !picked.is_empty() {
                found.push((mount, picked));
            }
        }
        if matches!(which, Which::Last | Which::LastUndo) {
            // One for each mount; the last of them is meant.
            found.sort_by(|(_, a), (_, b)| when(b).cmp(when(a)));
            found.truncate(1);
        }
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(_), false) => {
                let message = "these changes are on several mounts, and are undone one by one";
                Err(ToolError::new(ErrorKind::InvalidArgs, message).hint("name each change"))
            }
            (None, _) => Err(nothing(which, origin)),
        }
    }
}

fn when(entries: &[Entry]) -> &str {
    entries.first().map_or("", |entry| &entry.change.at)
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
    for Entry { change, .. } in entries {
        let now = journal.entry(&change.change).ok().flatten();
        if !now.is_some_and(|now| now.is_live() && !now.evicted) {
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
    if !by_person || force == Force::Yes || reversal.is_kept(mount, cx) {
        return Ok(());
    }
    let message = "what is there now is too large to be kept, and no redo would bring it back; nothing was undone";
    Err(ToolError::new(ErrorKind::WriteLimit, message).hint("raise max_undo_session_bytes, or insist"))
}

/// Everything that would be touched, with what is in directories.
fn touches(mount: &Mount, reversal: &Reversal, cx: &Context<'_>) -> Result<Vec<Touch>, ToolError> {
    let known = mount.known_of(reversal.effects());
    let mut touches = Vec::new();
    for Doing { verb, path, tree } in reversal.doings() {
        let place = Place { sensitivity: known, ..place(mount, &path) };
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
    if !reversal.is_kept(mount, cx) {
        let lost = |path| Touch { verb: Verb::Lose, place: Place { sensitivity: known, ..place(mount, path) } };
        touches.extend(reversal.displaced().map(lost));
    }
    Ok(touches)
}

fn place(mount: &Mount, path: &str) -> Place {
    Place { mount: Arc::clone(&mount.alias), given: path.to_owned(), shown: mount.shown(path), ..Place::default() }
}
