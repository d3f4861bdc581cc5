//! `undo` and `redo`: revert changes, and apply them again.
//!
//! An undo is itself a change of every path that the change had, judged by the same rules. An agent may undo the
//! changes of its own session. A person may undo any, and may force it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    CallContext, CallOrigin, Dialect, DuplicateToolError, ErrorKind, ModelText, PolicyAction, PolicyResource, Preview,
    ResourceAccess, Sensitivity, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, lenient,
    short_change_id,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fence::MountJournalEntries;
use crate::journal::{ChangeStatus, JournalEntry, Retention};
use crate::lock::{HeldLock, TreeLockMode};
use crate::mount::Mount;
use crate::mount::repository::RepositoryDetector;
use crate::path::name::unescape;
use crate::preview::{DiffPreview, fingerprint};
use crate::tools::change_note;
use crate::tools::changes::whole_change_id;
use crate::txn::manifest::{EntryReportReasons, RecursiveAccess, accesses_below, scan_tree};
use crate::txn::recover::recover_under;
use crate::txn::run::interrupted_error;
use crate::undo::apply::{UndoAction, UndoForce, UndoPlan};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let undo = ToolBinding::standard_with_text::<UndoArgs, Outcome>("undo");
    let claude = ToolBinding::model::<ModelUndoArgs, Outcome>(Dialect::Claude, "Undo");
    let gemini = ToolBinding::model::<ModelUndoArgs, Outcome>(Dialect::Gemini, "undo");
    let codex = ToolBinding::model::<ModelUndoArgs, Outcome>(Dialect::Codex, "undo");
    registry.register(UndoTool { fence: fence.clone() }, [undo, claude, gemini, codex])?;
    let redo = ToolBinding::standard_with_text::<RedoArgs, Outcome>("redo");
    registry.register(RedoTool(UndoTool { fence: fence.clone() }), [redo])
}

/// In one line, as many things that would be done are named.
const MOST_NAMED: usize = 20;

struct UndoTool {
    fence: Fence,
}

struct RedoTool(UndoTool);

/// Any change can be undone, so an undo can have the actions of all changes.
const VERBS: [PolicyAction; 7] = [
    PolicyAction::List,
    PolicyAction::Read,
    PolicyAction::Create,
    PolicyAction::Overwrite,
    PolicyAction::Move,
    PolicyAction::Delete,
    PolicyAction::Lose,
];

/// Undo changes of the workspace: the last one of this session, or the given ones. Nothing is undone if a file
/// was modified since.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UndoArgs {
    /// The id of one change.
    change: Option<String>,
    /// Every change of this session.
    session: Option<String>,
    /// Every change since this time (RFC 3339).
    since: Option<String>,
    /// Only report what would be done.
    #[serde(default, deserialize_with = "lenient::scalar")]
    dry_run: bool,
    // Undo even where paths changed since. Only for persons: agents do not see this option.
    #[serde(default)]
    #[schemars(skip)]
    force: bool,
}

/// Undo the last change of this session, or the given one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModelUndoArgs {
    /// Its id, such as `c-1906185f`.
    #[serde(default, alias = "id", alias = "change_id")]
    change: Option<String>,
}

impl From<ModelUndoArgs> for Args {
    fn from(args: ModelUndoArgs) -> Self {
        let named = args.change.filter(|change| !change.is_empty());
        let selector = named.map_or(ChangeSelector::Last, ChangeSelector::One);
        Self { selector, dry_run: false, force: UndoForce::No }
    }
}

/// Reapply what the last `undo` reverted, or the given one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RedoArgs {
    /// The id that `undo` returned.
    change: Option<String>,
}

struct Args {
    selector: ChangeSelector,
    dry_run: bool,
    force: UndoForce,
}

/// Selection of changes.
#[derive(Clone, Debug)]
enum ChangeSelector {
    Last,
    LastUndo,
    One(String),
    OneUndo(String),
    Session(String),
    Since(SystemTime),
}

impl ChangeSelector {
    /// The same selection with the whole ID of a change that was named by the start of it.
    fn with_whole_id(&self, journals: &[MountJournalEntries], origin: &CallOrigin) -> Result<Self, ToolError> {
        let entries = journals.iter().flat_map(|(_, entries)| entries);
        let mine = entries.filter(|entry| origin.may_undo || entry.change.session == origin.session);
        let whole = |id: &str| whole_change_id(id, mine.map(|entry| entry.change.change.as_str()));
        Ok(match self {
            Self::One(id) => Self::One(whole(id)?),
            Self::OneUndo(id) => Self::OneUndo(whole(id)?),
            other => other.clone(),
        })
    }
}

impl TryFrom<UndoArgs> for Args {
    type Error = ToolError;

    fn try_from(args: UndoArgs) -> Result<Self, ToolError> {
        let which = match (args.change, args.session, args.since) {
            (None, None, None) => ChangeSelector::Last,
            (Some(change), None, None) => ChangeSelector::One(change),
            (None, Some(session), None) => ChangeSelector::Session(session),
            (None, None, Some(time)) => ChangeSelector::Since(
                humantime::parse_rfc3339_weak(&time)
                    .map_err(|_| ToolError::invalid("since", "is not a time such as `2026-01-31T12:00:00Z`"))?,
            ),
            _ => return Err(ToolError::invalid("change", "cannot be combined: set a change, a session or a time")),
        };
        Ok(Self {
            selector: which,
            dry_run: args.dry_run,
            force: if args.force { UndoForce::Yes } else { UndoForce::No },
        })
    }
}

impl From<RedoArgs> for Args {
    fn from(args: RedoArgs) -> Self {
        let which = args.change.map_or(ChangeSelector::LastUndo, ChangeSelector::OneUndo);
        Self { selector: which, dry_run: false, force: UndoForce::No }
    }
}

struct UndoToolPlan {
    /// One for each mount, in the order of the mounts.
    parts: Vec<MountUndo>,
    force: UndoForce,
    dry_run: bool,
    /// The preview would have a secret in it.
    secret: bool,
}

/// The part of an undo on one mount.
struct MountUndo {
    mount: Arc<Mount>,
    entries: Vec<JournalEntry>,
    plan: UndoPlan,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    /// The changes that were undone, newest first.
    undone: Vec<String>,
    /// Every path that this changed.
    paths: Vec<String>,
    /// The id of this change, for `redo`. Absent if nothing was done.
    #[serde(skip_serializing_if = "String::is_empty")]
    change: String,
    /// True for a dry run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// True when the current contents are too large to keep, so that `redo` cannot restore them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
    /// The diff of a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
    /// What was undone is an undo.
    #[serde(skip)]
    is_redo: bool,
}

impl ModelText for Outcome {
    fn model_text(&self, _: Dialect) -> String {
        let undone: Vec<&str> = self.undone.iter().map(|change| short_change_id(change)).collect();
        let verb = match (self.is_redo, self.dry_run) {
            (true, _) => "reverted the undo",
            (false, true) => "would undo",
            (false, false) => "undid",
        };
        let mut text = format!("{verb} {}: {}", undone.join(", "), self.paths.join(", "));
        if !self.change.is_empty() {
            text.push_str(&change_note(&self.change));
        }
        if self.lost {
            text.push_str("\n[the contents before this undo were too large to keep; it cannot be undone]");
        }
        if let Some(diff) = &self.diff {
            text.push_str(&format!("\n{}", diff.trim_end()));
        }
        text
    }
}

impl Tool for UndoTool {
    type Args = Args;
    type Prepared = UndoToolPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &VERBS;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<UndoToolPlan>, ToolError> {
        let origin = cx.origin().cloned().unwrap_or_default();
        if args.force == UndoForce::Yes && !origin.may_undo {
            let message = "only a person may force an undo over later changes";
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        let found = self.find(&args.selector, &origin)?;
        let changes = found.iter().flat_map(|(_, entries)| entries).map(|entry| entry.change.change.as_str());
        cx.set_subject(&changes.collect::<Vec<_>>().join(" "));
        let mut parts = Vec::new();
        for (mount, entries) in found {
            mount.check_in_place(cx.io_mode)?;
            mount.check_image_store()?;
            let reversal = UndoPlan::plan(&mount, &entries, args.force, cx)?;
            check_conflicts(&mount, &reversal, &origin)?;
            mount.scan_root(cx)?;
            parts.push(MountUndo { mount, entries, plan: reversal });
        }
        let mut accesses = Vec::new();
        for MountUndo { mount, plan: reversal, .. } in &parts {
            if args.dry_run {
                accesses.extend(read_accesses(mount, reversal));
            } else {
                check_redoable(mount, reversal, args.force, cx)?;
                accesses.extend(change_accesses(mount, reversal, cx)?);
            }
        }
        let secret = accesses.iter().any(|access| access.resource.effective_sensitivity().secret);
        Ok(ToolPlan { accesses, prepared: UndoToolPlan { parts, force: args.force, dry_run: args.dry_run, secret } })
    }

    fn preview(&self, work: &mut UndoToolPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let UndoToolPlan { parts, secret, .. } = work;
        let doings: Vec<String> = parts
            .iter()
            .flat_map(|MountUndo { mount, plan: reversal, .. }| {
                let doings = reversal.actions().into_iter();
                doings.map(|doing| format!("{} `{}`", doing.action.as_str(), mount.display_path(&doing.path)))
            })
            .collect();
        let mut words: Vec<String> = doings.iter().take(MOST_NAMED).cloned().collect();
        if doings.len() > MOST_NAMED {
            words.push(format!("{} more", doings.len() - MOST_NAMED));
        }
        let text = format!("undo {}: {}", undone_changes(parts).join(", "), words.join(", "));
        let bound: Vec<_> = parts.iter().map(|part| (part.plan.undoes(), part.plan.effects())).collect();
        Ok(Preview::new(&text, fingerprint(bound))
            .with_body(preview_diffs(parts, cx)?.into_body())
            .with_secret(*secret))
    }

    fn run(&self, work: UndoToolPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let UndoToolPlan { parts, force, dry_run, .. } = work;
        let cx = ticket.context();
        let paths =
            parts.iter().flat_map(|part| part.plan.paths().into_iter().map(|path| part.mount.display_path(&path)));
        let kept = parts.iter().map(|part| part.plan.fits_quota(&part.mount, cx)).collect::<Result<Vec<_>, _>>()?;
        let lost = kept.contains(&false);
        let mut outcome = Outcome {
            undone: undone_changes(&parts),
            paths: paths.collect(),
            change: String::new(),
            dry_run,
            lost,
            diff: None,
            is_redo: false,
        };
        if dry_run {
            outcome.diff = Some(preview_diffs(&parts, cx)?.into_text());
            return Ok(outcome);
        }
        let mut ready = Vec::new();
        for part in parts {
            ready.push(part.lock_and_replan(force, ticket)?);
        }
        // Every path of every mount was checked: only now the first one is changed.
        let mut done: Vec<String> = Vec::new();
        outcome.lost = false;
        for LockedUndo { mount, tree, plan: reversal } in ready {
            let carried_out =
                reversal.execute(&mount, &tree, ticket).map_err(|error| partial_failure(error, &done, ticket));
            outcome.lost |= carried_out? == Retention::Discard;
            done.push(format!("@{}", mount.alias));
        }
        outcome.change = ticket.change_id().to_owned();
        Ok(outcome)
    }
}

/// A mount under the exclusive lock, with its plan.
struct LockedUndo {
    mount: Arc<Mount>,
    tree: HeldLock,
    plan: UndoPlan,
}

impl MountUndo {
    /// Takes the tree, and looks once more at everything.
    fn lock_and_replan(self, force: UndoForce, ticket: &Ticket<'_>) -> Result<LockedUndo, ToolError> {
        let Self { mount, entries, plan: reversal } = self;
        let tree = mount.locks.lock_tree(TreeLockMode::Exclusive, ticket.context())?;
        // The steps of an interrupted change, rolled back later, would overwrite this undo.
        if !recover_under(&mount, &tree)? {
            return Err(interrupted_error("undone"));
        }
        check_still_undoable(&mount, &entries)?;
        let now = UndoPlan::plan(&mount, &entries, force, ticket.context())?;
        check_conflicts(&mount, &now, &ticket.context().origin().cloned().unwrap_or_default())?;
        if !now.has_same_steps(&reversal) {
            let message = "the changes to undo were modified since the call was planned; nothing was undone";
            return Err(ToolError::new(ErrorKind::Conflict, message).hint("try again"));
        }
        now.check(&mount, ticket)?;
        Ok(LockedUndo { mount, tree, plan: now })
    }
}

/// The error of one mount, where others were done before it: each mount is all or nothing, all of them together are not.
fn partial_failure(error: ToolError, done: &[String], ticket: &Ticket<'_>) -> ToolError {
    if done.is_empty() {
        return error;
    }
    let (kind, change) = (error.kind, ticket.change_id());
    let message = format!("{error} there; the changes on {} were undone by `{change}`", done.join(", "));
    ToolError { details: error.details, ..ToolError::new(kind, message) }
        .hint("`redo` reverts that, and `undo` retries the rest")
        .detail("change", change)
        .detail("undoneOn", done.to_vec())
}

/// The changes that are undone, each once.
fn undone_changes(parts: &[MountUndo]) -> Vec<String> {
    let mut undone: Vec<String> = Vec::new();
    for change in parts.iter().flat_map(|part| part.plan.undoes()) {
        if !undone.contains(change) {
            undone.push(change.clone());
        }
    }
    undone
}

fn preview_diffs(parts: &[MountUndo], cx: &CallContext<'_>) -> Result<DiffPreview, ToolError> {
    let mut diffs = DiffPreview::new();
    for MountUndo { mount, plan: reversal, .. } in parts {
        reversal.add_preview(&mut diffs, mount, cx)?;
    }
    Ok(diffs)
}

impl Tool for RedoTool {
    type Args = Args;
    type Prepared = UndoToolPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &VERBS;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<UndoToolPlan>, ToolError> {
        self.0.plan(args, cx)
    }

    fn preview(&self, work: &mut UndoToolPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        self.0.preview(work, cx)
    }

    fn run(&self, work: UndoToolPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        self.0.run(work, ticket).map(|outcome| Outcome { is_redo: true, ..outcome })
    }
}

impl UndoTool {
    /// The changes that are meant, the newest first, by the mounts that they are on.
    fn find(&self, which: &ChangeSelector, origin: &CallOrigin) -> Result<Vec<MountJournalEntries>, ToolError> {
        let (mut found, mut refused): (Vec<MountJournalEntries>, _) = (Vec::new(), None);
        let journals = self.fence.mount_changes()?;
        let which = &which.with_whole_id(&journals, origin)?;
        for (mount, entries) in journals {
            match select_changes(which, &entries, origin) {
                Ok(picked) if picked.is_empty() => {}
                Ok(picked) => found.push((mount, picked)),
                // A change on one mount may not have been made on another.
                Err(error) => refused = Some(error),
            }
        }
        if matches!(which, ChangeSelector::Last | ChangeSelector::LastUndo) {
            // One for each mount; the last of them is meant, wherever else it was made.
            found.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.first().map(|entry| entry.change.sequence())));
            let last = found.first().and_then(|(_, entries)| entries.first()).map(|entry| entry.change.change.clone());
            found.retain(|(_, entries)| entries.first().map(|entry| &entry.change.change) == last.as_ref());
        }
        if found.is_empty() {
            return Err(refused.unwrap_or_else(|| nothing_to_undo(which, origin)));
        }
        Ok(found)
    }
}

/// The changes of one journal that are meant, the newest first.
fn select_changes(
    which: &ChangeSelector,
    entries: &[JournalEntry],
    origin: &CallOrigin,
) -> Result<Vec<JournalEntry>, ToolError> {
    let undos: BTreeSet<&str> =
        entries.iter().filter(|entry| entry.is_undo()).map(|entry| entry.change.change.as_str()).collect();
    let is_redo = |entry: &JournalEntry| entry.change.undoes.iter().any(|undone| undos.contains(undone.as_str()));
    let mine = |entry: &&JournalEntry| origin.may_undo || entry.change.session == origin.session;
    let live = entries.iter().rev().filter(mine).filter(|entry| entry.is_live());
    let plain = live.clone().filter(|entry| !entry.is_undo());
    Ok(match which {
        ChangeSelector::Last => plain.take(1).cloned().collect(),
        ChangeSelector::LastUndo => live.filter(|entry| entry.is_undo() && !is_redo(entry)).take(1).cloned().collect(),
        ChangeSelector::Session(session) => plain.filter(|entry| entry.change.session == *session).cloned().collect(),
        ChangeSelector::Since(time) => {
            let since = humantime::format_rfc3339_millis(*time).to_string();
            plain.filter(|entry| entry.change.at >= since).cloned().collect()
        }
        ChangeSelector::One(id) | ChangeSelector::OneUndo(id) => {
            let Some(entry) = entries.iter().filter(mine).find(|entry| entry.change.change == *id) else {
                return Ok(Vec::new());
            };
            check_one(entry, is_redo(entry), which)?;
            vec![entry.clone()]
        }
    })
}

fn check_one(entry: &JournalEntry, is_redo: bool, which: &ChangeSelector) -> Result<(), ToolError> {
    let id = &entry.change.change;
    let refuse = |kind, why: String| Err(ToolError::new(kind, format!("the change `{id}` {why}")));
    match (entry.status, &entry.undone_by) {
        (ChangeStatus::Pending | ChangeStatus::Void, _) => refuse(ErrorKind::NotFound, "was not made".to_owned()),
        (ChangeStatus::Done, Some(by)) => refuse(ErrorKind::Conflict, format!("was already undone by `{by}`")),
        (ChangeStatus::Done, None) if is_redo => {
            refuse(ErrorKind::InvalidArgs, "is a redo; undo the change that it reapplied".to_owned())
        }
        (ChangeStatus::Done, None) if matches!(which, ChangeSelector::OneUndo(_)) && !entry.is_undo() => {
            refuse(ErrorKind::InvalidArgs, "is not an undo".to_owned())
        }
        (ChangeStatus::Done, None) => Ok(()),
    }
}

fn nothing_to_undo(which: &ChangeSelector, origin: &CallOrigin) -> ToolError {
    let whose = if origin.may_undo { "" } else { " of this session" };
    let message = match which {
        ChangeSelector::One(id) | ChangeSelector::OneUndo(id) => {
            format!("unknown change `{}`{whose}", &id[..id.floor_char_boundary(64)])
        }
        ChangeSelector::LastUndo => format!("there is no undo{whose} to redo"),
        ChangeSelector::Last | ChangeSelector::Session(_) | ChangeSelector::Since(_) => {
            format!("there is no change{whose} to undo")
        }
    };
    ToolError::new(ErrorKind::NotFound, message)
}

/// Fails where another call undid the same changes since the plan.
fn check_still_undoable(mount: &Mount, entries: &[JournalEntry]) -> Result<(), ToolError> {
    let Some(journal) = mount.undo_journal() else { return Ok(()) };
    for JournalEntry { change, evicted, .. } in entries {
        let now = journal.entry(&change.change).ok().flatten();
        if !now.is_some_and(|now| now.is_live() && now.evicted == *evicted) {
            let message = format!("the change `{}` was undone or evicted in the meantime", change.change);
            return Err(ToolError::new(ErrorKind::Conflict, message));
        }
    }
    Ok(())
}

/// Reports conflicts. An agent gets the paths without their state, which it may not be allowed to see.
fn check_conflicts(mount: &Mount, reversal: &UndoPlan, origin: &CallOrigin) -> Result<(), ToolError> {
    let Some(first) = reversal.conflicts.first() else { return Ok(()) };
    if !origin.may_undo {
        let paths: Vec<String> = reversal.conflicts.iter().map(|conflict| mount.display_path(&conflict.path)).collect();
        let message =
            format!("`{}` was modified after the change; nothing was undone", mount.display_path(&first.path));
        return Err(ToolError::new(ErrorKind::Conflict, message).detail("conflicts", paths));
    }
    let paths: Vec<serde_json::Value> = reversal
        .conflicts
        .iter()
        .map(|conflict| {
            serde_json::json!({
                "path": mount.display_path(&conflict.path),
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
        "`{}` was modified after the change: expected {}, found {}{more}; nothing was undone",
        mount.display_path(&first.path),
        first.expected,
        first.found
    );
    Err(ToolError::new(ErrorKind::Conflict, message).detail("conflicts", paths))
}

/// Fails where an undo by a person could not itself be undone, unless it is forced: a person's own calls need no
/// approval.
fn check_redoable(mount: &Mount, reversal: &UndoPlan, force: UndoForce, cx: &CallContext<'_>) -> Result<(), ToolError> {
    let by_person = cx.origin().is_some_and(|origin| origin.may_undo);
    if !by_person || force == UndoForce::Yes || reversal.fits_quota(mount, cx)? {
        return Ok(());
    }
    let message = "the current contents are too large to keep, so the undo could not be redone; nothing was undone";
    Err(ToolError::new(ErrorKind::WriteLimit, message).hint("raise max_undo_session_bytes, or force the undo"))
}

/// To be shown what is there, and what would be there, is to read it.
fn read_accesses(mount: &Mount, reversal: &UndoPlan) -> Vec<ResourceAccess> {
    let known = mount.sensitivity_of(reversal.effects());
    let read = |path: &String| {
        let place = resource_at(mount, path);
        ResourceAccess {
            action: PolicyAction::Read,
            resource: PolicyResource { sensitivity: known.union(place.sensitivity), ..place },
        }
    };
    reversal.paths().iter().map(read).collect()
}

/// Accesses to every path of the undo, with the contents of directories.
fn change_accesses(mount: &Mount, reversal: &UndoPlan, cx: &CallContext<'_>) -> Result<Vec<ResourceAccess>, ToolError> {
    let known = mount.sensitivity_of(reversal.effects());
    let mut repositories = RepositoryDetector::after_effects(mount, reversal.effects());
    let mut accesses = Vec::new();
    for UndoAction { action, path, tree } in reversal.actions() {
        let completes = repositories.contains(&unescape(&path));
        let known = known.union(Sensitivity { secret: false, protected: completes });
        let place = resource_at(mount, &path);
        let place = PolicyResource { sensitivity: known.union(place.sensitivity), ..place };
        let directory = tree.and_then(|tree| {
            let (parent, name) = tree.open_parent(mount)?;
            mount.resolver.open_child(std::os::fd::AsFd::as_fd(&parent), &name).ok()
        });
        if let Some(directory) = directory {
            let wholes = [RecursiveAccess::new(action, &place, cx)];
            let classify = |path: &str| EntryReportReasons::of(&wholes, path, cx);
            let found = scan_tree(mount, directory, &place.display_path, classify, cx)?;
            accesses.extend(accesses_below(&place, &found.sensitive, action));
        }
        accesses.push(ResourceAccess { action, resource: place });
    }
    if !reversal.fits_quota(mount, cx)? {
        let lost = |path| ResourceAccess {
            action: PolicyAction::Lose,
            resource: PolicyResource { sensitivity: known, ..resource_at(mount, path) },
        };
        accesses.extend(reversal.displaced().map(lost));
    }
    Ok(accesses)
}

fn resource_at(mount: &Mount, path: &str) -> PolicyResource {
    PolicyResource {
        mount: Arc::clone(&mount.alias),
        requested_path: path.to_owned(),
        display_path: mount.display_path(path),
        sensitivity: mount.sensitive_files.linked().sensitivity(&unescape(path)),
        ..PolicyResource::default()
    }
}
