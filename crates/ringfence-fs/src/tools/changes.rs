//! `list_changes` and `show_change`: the journal, and the diff of one change.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use ringfence_kernel::{
    CallContext, CallOrigin, Dialect, DuplicateToolError, ErrorKind, ModelText, PolicyAction, PolicyResource, Preview,
    ResourceAccess, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, short_change_id,
};
use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use similar::TextDiff;

use crate::Fence;
use crate::journal::{ChangeStatus, FileState, FileStateDepth, JournalEffect, JournalEntry};
use crate::mount::Mount;
use crate::mount::node_source::FileEntryLocation;
use crate::path::name::unescape;
use crate::read::content::{decode_text, read_up_to};
use crate::root::stat;
use crate::sys::stat::FileKind;

/// Larger files are shown by their sizes.
const MOST_SHOWN: u64 = 1 << 20;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let list = ToolBinding::standard_with_text::<ListChangesArgs, ChangeListing>("list_changes");
    registry.register(ListChanges { fence: fence.clone() }, [list])?;
    let show = ToolBinding::standard_with_text::<ShowChangeArgs, ChangeDiff>("show_change");
    registry.register(ShowChange { fence: fence.clone() }, [show])
}

struct ListChanges {
    fence: Fence,
}

/// List the changes made in this workspace, newest first, with the ids that `undo` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListChangesArgs {
    /// Only changes of this session.
    session: Option<String>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct ChangeListing {
    changes: Vec<ListedChange>,
    /// True when older changes are not listed.
    truncated: bool,
}

/// One change.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedChange {
    /// Its id.
    change: String,
    time: String,
    session: String,
    call: String,
    tool: String,
    paths: Vec<String>,
    /// `done`, `undone`, `gone` when it can no longer be undone, or `pending` while it is being made.
    state: &'static str,
    /// The changes that it reverted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    undoes: Vec<String>,
}

impl ListedChange {
    fn new(mount: &Mount, entry: &JournalEntry) -> Self {
        let JournalEntry { change, status, evicted, undone_by, .. } = entry;
        let lost = change.effects.iter().any(|effect| matches!(effect, JournalEffect::Lost { .. }));
        let mut paths: Vec<String> =
            change.effects.iter().flat_map(JournalEffect::paths).map(|at| mount.display_path(at)).collect();
        paths.dedup();
        Self {
            change: change.change.clone(),
            time: change.at.clone(),
            session: change.session.clone(),
            call: change.call.clone(),
            tool: change.tool.clone(),
            paths,
            state: match status {
                ChangeStatus::Pending | ChangeStatus::Void => "pending",
                ChangeStatus::Done if undone_by.is_some() => "undone",
                ChangeStatus::Done if *evicted || lost => "gone",
                ChangeStatus::Done => "done",
            },
            undoes: change.undoes.clone(),
        }
    }
}

impl ModelText for ListedChange {
    fn model_text(&self, _: Dialect) -> String {
        let Self { change, time, tool, paths, state, .. } = self;
        format!("{} {time} {state} {tool}: {}", short_change_id(change), paths.join(", "))
    }
}

impl ModelText for ChangeListing {
    fn model_text(&self, dialect: Dialect) -> String {
        let mut lines: Vec<String> = self.changes.iter().map(|change| change.model_text(dialect)).collect();
        if lines.is_empty() {
            lines.push("[no changes]".to_owned());
        }
        if self.truncated {
            lines.push(format!("[the newest {}; there are older ones]", self.changes.len()));
        }
        lines.join("\n")
    }
}

impl ModelText for ChangeDiff {
    fn model_text(&self, dialect: Dialect) -> String {
        format!("{}\n{}", self.change.model_text(dialect), self.diff.trim_end())
    }
}

impl Tool for ListChanges {
    type Args = ListChangesArgs;
    type Prepared = Option<String>;
    type Outcome = ChangeListing;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: ListChangesArgs, cx: &CallContext<'_>) -> Result<ToolPlan<Option<String>>, ToolError> {
        let located = self.fence.locate(".", cx)?;
        let accesses = vec![ResourceAccess { action: PolicyAction::List, resource: located.resource(None) }];
        Ok(ToolPlan { accesses, prepared: args.session })
    }

    fn preview(&self, _: &mut Option<String>, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("list the changes", ""))
    }

    fn run(&self, session: Option<String>, ticket: &Ticket<'_>) -> Result<ChangeListing, ToolError> {
        let cx = ticket.context();
        let origin = cx.origin().cloned().unwrap_or_default();
        let wanted = |entry: &JournalEntry| {
            is_visible_to(entry, &origin)
                && entry.status != ChangeStatus::Void
                && session.as_ref().is_none_or(|session| entry.change.session == *session)
        };
        let mut changes = Vec::new();
        for (mount, entries) in self.fence.mount_changes()? {
            cx.check()?;
            let listed = |entry: &JournalEntry| (entry.change.sequence(), ListedChange::new(&mount, entry));
            changes.extend(entries.iter().filter(|entry| wanted(entry)).map(listed));
        }
        // Changes with equal sequence numbers keep the order of their journal.
        changes.reverse();
        changes.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        let mut changes: Vec<ListedChange> = changes.into_iter().map(|(_, listed)| listed).collect();
        let most = usize::try_from(cx.limits.list_entries).unwrap_or(usize::MAX);
        let truncated = changes.len() > most;
        changes.truncate(most);
        Ok(ChangeListing { changes, truncated })
    }
}

struct ShowChange {
    fence: Fence,
}

/// Show what one change did, as a diff for text files.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowChangeArgs {
    /// Its id.
    change: String,
}

struct ShowChangePlan {
    mount: Arc<Mount>,
    entry: JournalEntry,
    /// Every pre-image that may be there: what a change left, a later one displaced.
    images: Vec<FileEntryLocation>,
}

/// The difference that a change made.
#[derive(Debug, Serialize, JsonSchema)]
struct ChangeDiff {
    #[serde(flatten)]
    change: ListedChange,
    diff: String,
}

impl Tool for ShowChange {
    type Args = ShowChangeArgs;
    type Prepared = ShowChangePlan;
    type Outcome = ChangeDiff;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: ShowChangeArgs, cx: &CallContext<'_>) -> Result<ToolPlan<ShowChangePlan>, ToolError> {
        let origin = cx.origin().cloned().unwrap_or_default();
        let journals = self.fence.mount_changes()?;
        let visible = journals.iter().flat_map(|(_, entries)| entries).filter(|entry| is_visible_to(entry, &origin));
        let wanted = whole_change_id(&args.change, visible.map(|entry| entry.change.change.as_str()))?;
        for (mount, entries) in journals {
            let is_it = |entry: &JournalEntry| entry.change.change == wanted && is_visible_to(entry, &origin);
            let images = entries.iter().flat_map(|entry| &entry.change.effects).filter_map(JournalEffect::image);
            let images = images.map(|(image, _)| image_source(image)).collect();
            if let Some(entry) = entries.into_iter().find(is_it) {
                mount.scan_root(cx)?;
                let known = mount.sensitivity_of(&entry.change.effects);
                let read = |path: &str| ResourceAccess {
                    action: PolicyAction::Read,
                    resource: PolicyResource {
                        mount: Arc::clone(&mount.alias),
                        requested_path: path.to_owned(),
                        display_path: mount.display_path(path),
                        sensitivity: known.union(mount.sensitive_files.linked().sensitivity(&unescape(path))),
                        ..PolicyResource::default()
                    },
                };
                let accesses = entry.change.effects.iter().flat_map(JournalEffect::paths).map(read).collect();
                return Ok(ToolPlan { accesses, prepared: ShowChangePlan { mount, entry, images } });
            }
        }
        let id = &args.change[..args.change.floor_char_boundary(64)];
        Err(ToolError::new(ErrorKind::NotFound, format!("unknown change `{id}`")))
    }

    fn preview(&self, work: &mut ShowChangePlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let text = format!("show the change {}", work.entry.change.change);
        Ok(Preview::new(&text, text.clone()))
    }

    fn run(&self, work: ShowChangePlan, ticket: &Ticket<'_>) -> Result<ChangeDiff, ToolError> {
        let ShowChangePlan { mount, entry, images } = work;
        let mut diff = String::new();
        for effect in &entry.change.effects {
            ticket.context().check()?;
            describe_effect(&mut diff, &mount, effect, &images, ticket.context());
        }
        Ok(ChangeDiff { change: ListedChange::new(&mount, &entry), diff })
    }
}

/// The whole ID of a change that was named by a whole one or by its start, as texts for models have it. An ID that no
/// change has stays as it is.
pub(super) fn whole_change_id<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Result<String, ToolError> {
    // `c-` and 8 digits, or more of them.
    let is_short = wanted.len() >= 10;
    let mut found: BTreeSet<&str> = known.filter(|id| *id == wanted || (is_short && id.starts_with(wanted))).collect();
    if found.contains(wanted) {
        return Ok(wanted.to_owned());
    }
    if found.len() > 1 {
        let named: Vec<&str> = found.iter().copied().take(8).collect();
        let message = format!("`{wanted}` is the start of several changes: {}", named.join(", "));
        return Err(ToolError::new(ErrorKind::InvalidArgs, message).hint("give the whole id"));
    }
    Ok(found.pop_first().unwrap_or(wanted).to_owned())
}

/// An agent sees what its own session did.
fn is_visible_to(entry: &JournalEntry, origin: &CallOrigin) -> bool {
    origin.may_undo || entry.change.session == origin.session
}

fn image_source(image: &str) -> FileEntryLocation {
    FileEntryLocation::Image(image.to_owned(), Vec::new())
}

fn describe_effect(
    diff: &mut String,
    mount: &Mount,
    effect: &JournalEffect,
    images: &[FileEntryLocation],
    cx: &CallContext<'_>,
) {
    let (path, before, after) = match effect {
        JournalEffect::Moved { from, to, .. } => {
            let _ = writeln!(diff, "rename from {}\nrename to {}", mount.display_path(from), mount.display_path(to));
            return;
        }
        JournalEffect::Lost { path } => {
            let _ = writeln!(diff, "{}: the previous contents were not kept", mount.display_path(path));
            return;
        }
        JournalEffect::Mode { path, before, after, .. } => {
            let _ = writeln!(diff, "{}: mode {before:o} became {after:o}", mount.display_path(path));
            return;
        }
        JournalEffect::Created { path, after, .. } => (path, None, Some(after)),
        JournalEffect::Removed { path, before, .. } => (path, Some(before), None),
        JournalEffect::Replaced { path, before, after, .. } | JournalEffect::Appended { path, before, after } => {
            (path, Some(before), Some(after))
        }
    };
    let here = FileEntryLocation::Disk(unescape(path));
    let own = effect.image().map(|(image, _)| image_source(image));
    let places: Vec<&FileEntryLocation> = own.iter().chain([&here]).chain(images).collect();
    let path = mount.display_path(path);
    let text = |side: Option<&FileState>| match side {
        None => Some(String::new()),
        Some(state) => places.iter().find_map(|place| text_at(mount, place, state, cx)),
    };
    let name = |side: bool, mark: &str| if side { format!("{mark}/{path}") } else { "/dev/null".to_owned() };
    if let (Some(old), Some(new)) = (text(before), text(after)) {
        let header = (name(before.is_some(), "a"), name(after.is_some(), "b"));
        let _ = write!(diff, "{}", TextDiff::from_lines(&old, &new).unified_diff().header(&header.0, &header.1));
        return;
    }
    let described = |side: Option<&FileState>| side.map_or_else(|| "nothing".to_owned(), FileState::describe);
    let _ = writeln!(diff, "{path}: {} became {}", described(before), described(after));
}

/// The text of a file that is still what it was, or its beginning still is.
fn text_at(mount: &Mount, place: &FileEntryLocation, state: &FileState, cx: &CallContext<'_>) -> Option<String> {
    state.sha256.as_ref().filter(|_| state.size <= MOST_SHOWN && state.depth() == FileStateDepth::Shallow)?;
    let (parent, name) = place.open_parent(mount)?;
    // A shorter file cannot match, and is not read.
    stat(parent.as_fd(), &name).ok()?.filter(|found| found.kind == FileKind::File && found.size >= state.size)?;
    let fd = mount.open_at(parent.as_fd(), &name, OFlags::RDONLY).ok()?;
    let mut bytes = read_up_to(&fd, MOST_SHOWN * 2, cx).ok()?;
    bytes.truncate(usize::try_from(state.size).ok()?);
    let same = state.sha256.as_deref() == Some(&crate::read::digest::Digest::of(&bytes).to_hex());
    decode_text(bytes, false, "").ok().filter(|_| same)
}
