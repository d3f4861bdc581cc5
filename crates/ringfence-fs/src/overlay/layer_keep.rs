//! Selective keep: some of the changes in a layer become the workspace's, as one change that can be undone.
//!
//! What is selected brings along what it cannot be kept without. The versions that the layer will be compared with are
//! recorded first, then the changes are committed like those of any program, and only then what was kept leaves the layer.
//! After a crash in between, what was kept is in both places and no difference any more.
//!
//! Not here: what belongs together (`group.rs`), and the commit itself (`commit.rs`).

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use ringfence_kernel::{
    CallContext, ChangeGroupDecision, Decision, Dialect, ErrorKind, Preview, ResourceAccess, Ticket, ToolError,
    WorkspaceChanges as _,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mount::Mount;
use crate::overlay::changes::change_kind_name;
use crate::overlay::commit::commit;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path};
use crate::overlay::group::{is_at_or_below, repository_of};
use crate::overlay::landing_versions::{LandingVersion, accept_landing};
use crate::overlay::layer_record::LayerCounts;
use crate::overlay::layer_review::PACKAGE_SCRIPTS;
use crate::overlay::layer_store::{HeldLayer, LayerLockMode, LayerState, LayerStore, workspace_id};
use crate::overlay::text_hunks::{TextHunks, as_text};
use crate::overlay::upper::UpperLayer;
use crate::overlay::{ChangeSet, PartialContents};
use crate::path::name::unescape;
use crate::read::content::read_up_to;
use crate::read::digest::Digest;
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileKind, FileStat};

/// Most paths of a list in a reply.
pub(super) const MOST_LISTED: usize = 1000;

/// A change to keep.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerItemChoice {
    /// A path of the review. A directory brings everything below it.
    path: String,
    /// Only these hunks of a text file, by their numbers in the review.
    hunks: Option<Vec<usize>>,
    /// Only the path itself, without what is below it.
    #[serde(default)]
    alone: bool,
    /// The `base` of the review. If the file in the workspace is another by now, nothing is kept.
    base: Option<String>,
}

/// What a person wants of a layer.
#[derive(Debug)]
pub enum LayerSelection {
    /// These changes, and what has to come along.
    Items(Vec<LayerItemChoice>),
    /// Everything that can be kept and that the policy does not deny.
    NotDenied,
    /// Everything that can be kept, that the policy allows without approval, and that no program runs by itself.
    Allowed,
}

/// A planned keep. The layer is held until this is dropped.
#[derive(Debug)]
pub(crate) struct LayerKeep {
    pub(super) store: LayerStore,
    pub(super) layer: HeldLayer,
    pub(super) changes: ChangeSet,
    /// What is kept because of what was selected.
    pub(super) along: Vec<KeptAlong>,
    /// What was not selected by name, and cannot be kept.
    pub(super) refused: Vec<RefusedChange>,
    /// Selected hunks, by path.
    pub(super) hunks: HashMap<Vec<u8>, Vec<usize>>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerKeepOutcome {
    /// The layer.
    layer: String,
    /// The id of this change, for `undo`; null if nothing was kept.
    change: Option<String>,
    /// Everything that was kept, what came along included.
    kept: Vec<KeptChange>,
    /// What was kept because of something that was selected.
    along: Vec<KeptAlong>,
    /// What could not be kept and stays in the layer.
    refused: Vec<RefusedChange>,
    /// True when longer lists were cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Changes that are still in the layer.
    left: u64,
    /// True when nothing was left, so that the layer was removed.
    removed: bool,
    /// What an undo does.
    note: &'static str,
}

/// The old and the new contents of a file.
pub(super) type BothTexts = (Vec<u8>, Vec<u8>);

/// A path that was kept.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptChange {
    path: String,
    /// The kind of change, as in the review.
    kind: &'static str,
    /// The hunks that were kept; absent for the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    hunks: Option<Vec<usize>>,
}

/// A path that was kept because of another.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeptAlong {
    path: String,
    why: String,
}

/// A path that stays in the layer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RefusedChange {
    path: String,
    /// Code of the error, such as `CONFLICT`.
    code: &'static str,
    message: String,
}

const UNDO_NOTE: &str =
    "`undo` reverts this change in the workspace; what was kept whole does not come back into the layer";

const UNDO_LIVE_NOTE: &str = "`undo` reverts this change in the workspace; the program goes on with its own version, which is a \
    change in the layer again and waits for the review";

impl LayerKeep {
    /// Finds out what would be kept.
    pub(crate) fn plan(
        store: &LayerStore,
        mount: &Arc<Mount>,
        (id, selection): (&str, LayerSelection),
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        let mut layer = store.hold(id, &workspace_id(mount), LayerLockMode::Exclusive)?;
        let changes = layer.changes(mount, cx)?;
        let (along, refused, hunks) = (Vec::new(), Vec::new(), HashMap::new());
        let mut keep = Self { store: store.clone(), layer, changes, along, refused, hunks };
        match selection {
            LayerSelection::Items(items) => keep.select(&items, cx)?,
            LayerSelection::NotDenied => {
                keep.select_all(&[Decision::Deny], &HashMap::new(), cx);
                keep.check_selected()?;
            }
            LayerSelection::Allowed => {
                let scripts = keep.groups_with_scripts(cx);
                keep.select_all(&[Decision::Deny, Decision::Ask], &scripts, cx);
                keep.check_selected()?;
            }
        }
        Ok(keep)
    }

    /// Groups that change a script that a package manager runs. Policy knows paths only, and allows these.
    pub(super) fn groups_with_scripts(&self, cx: &CallContext<'_>) -> HashMap<usize, ToolError> {
        let message = format!("this changes {PACKAGE_SCRIPTS}; keep it in the review, or by its path");
        let refusal = ToolError::new(ErrorKind::PermissionDenied, message);
        let changing = self.changes.items.iter().filter(|item| self.changes.changes_scripts(item, cx));
        changing.map(|item| (item.group, refusal.clone())).collect()
    }

    /// Everything that can be kept, but for what the policy decides like this, and for these groups.
    pub(super) fn select_all(&mut self, left: &[Decision], excluded: &HashMap<usize, ToolError>, cx: &CallContext<'_>) {
        let decide = |(index, group): (usize, &ringfence_kernel::ChangeGroup)| {
            if let Some(refusal) = &group.refusal {
                return ChangeGroupDecision::Refuse(refusal.clone());
            }
            if let Some(why) = excluded.get(&index) {
                return ChangeGroupDecision::Refuse(why.clone());
            }
            let verdicts = group.accesses.iter().map(|access| cx.evaluate(access));
            let stopped = verdicts.into_iter().find(|verdict| left.contains(&verdict.decision));
            stopped.map_or(ChangeGroupDecision::Keep, |verdict| {
                ChangeGroupDecision::Refuse(ToolError::new(ErrorKind::PermissionDenied, verdict.reason))
            })
        };
        let wanted = self.changes.groups.iter().enumerate().map(decide).collect();
        let decided = self.changes.resolve_decisions(wanted);
        let refusal = |group: usize| match decided.get(group) {
            Some(ChangeGroupDecision::Refuse(error)) => Some(error.clone()),
            _ => None,
        };
        let items = self.changes.items.iter().map(|item| (&item.path, item.group));
        let rejected = self.changes.rejected.iter().map(|(rejected, group)| (&rejected.path, *group));
        let refused = items.chain(rejected).filter_map(|(path, group)| {
            refusal(group).map(|error| RefusedChange::new(display_path(&self.changes.mount, path), &error))
        });
        self.refused = refused.collect();
    }

    /// Whether anything is kept.
    pub(crate) fn keeps_anything(&self) -> bool {
        self.changes.decisions.contains(&ChangeGroupDecision::Keep)
    }

    /// Fails where nothing is kept.
    fn check_selected(&self) -> Result<(), ToolError> {
        if self.keeps_anything() {
            return Ok(());
        }
        let error = self.changes.decisions.iter().find_map(|decision| match decision {
            ChangeGroupDecision::Refuse(error) => Some(error.clone()),
            ChangeGroupDecision::Keep | ChangeGroupDecision::Ask => None,
        });
        Err(error.unwrap_or_else(|| {
            ToolError::new(ErrorKind::NotFound, format!("nothing is left in the layer `{}`", self.layer.id))
        }))
    }

    /// What was selected, with what has to come along.
    fn select(&mut self, choices: &[LayerItemChoice], cx: &CallContext<'_>) -> Result<(), ToolError> {
        let mut selected = BTreeSet::new();
        for choice in choices {
            let path = choice_path(&choice.path);
            let found = self.matching(&path, choice.alone)?;
            if let Some(base) = &choice.base {
                self.check_base(&path, base, cx)?;
            }
            if let Some(hunks) = &choice.hunks {
                self.select_hunks(&path, hunks, cx)?;
            }
            selected.extend(found);
        }
        if selected.is_empty() {
            return Err(ToolError::invalid("items", "must name at least one path; leave it out for all of them"));
        }
        let groups = self.close(&selected);
        let mut decisions = Vec::new();
        for (index, group) in self.changes.groups.iter().enumerate() {
            decisions.push(match &group.refusal {
                _ if !groups.contains(&index) => ChangeGroupDecision::Refuse(not_selected_error()),
                Some(refusal) => return Err(refusal.clone()),
                None => ChangeGroupDecision::Keep,
            });
        }
        let decided = self.changes.resolve_decisions(decisions);
        let refused = groups.iter().find_map(|group| match decided.get(*group) {
            Some(ChangeGroupDecision::Refuse(error)) => Some((*group, error.clone())),
            _ => None,
        });
        match refused {
            None => Ok(()),
            Some((group, error)) if error == not_selected_error() => {
                let item = self.changes.items.iter().find(|item| item.group == group);
                let name = item.map(|item| display_path(&self.changes.mount, &item.path)).unwrap_or_default();
                let why = format!("names `{name}` without anything that the directory was made for");
                Err(ToolError::invalid("items", &why))
            }
            Some((_, error)) => Err(error),
        }
    }

    /// Indices of the items at a path, and below it.
    fn matching(&self, path: &[u8], alone: bool) -> Result<Vec<usize>, ToolError> {
        let is_meant = |of: &[u8]| of == path || (!alone && is_at_or_below(of, path));
        let found: Vec<usize> =
            self.changes.items.iter().enumerate().filter(|(_, item)| is_meant(&item.path)).map(|(at, _)| at).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        if let Some((rejected, _)) = self.changes.rejected.iter().find(|(rejected, _)| is_meant(&rejected.path)) {
            return Err(rejected.error.clone());
        }
        let message = format!("the layer has no change of `{}`", display_path(&self.changes.mount, path));
        Err(ToolError::new(ErrorKind::NotFound, message).hint("`review_layer` lists the changes"))
    }

    fn item(&self, path: &[u8]) -> Option<&OverlayChange> {
        self.changes.items.iter().find(|item| item.path == path)
    }

    /// Fails where a file is not the one that was reviewed.
    fn check_base(&self, path: &[u8], base: &str, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let contents = self.item(path).map(|item| self.changes.lower_bytes(item, cx)).transpose()?.flatten();
        if contents.is_some_and(|contents| Digest::of(&contents).to_hex() == base) {
            return Ok(());
        }
        let message = format!("`{}` changed since the review", display_path(&self.changes.mount, path));
        Err(ToolError::new(ErrorKind::Conflict, message).hint("review the layer again"))
    }

    /// Replaces the new contents of a file by those with some of its hunks.
    fn select_hunks(&mut self, path: &[u8], wanted: &[usize], cx: &CallContext<'_>) -> Result<(), ToolError> {
        let shown = display_path(&self.changes.mount, path);
        let refuse = |why: &str| Err(ToolError::invalid("hunks", &format!("`{shown}` {why}")));
        if wanted.is_empty() {
            return refuse("needs at least one hunk");
        }
        let Some(item) = self.item(path) else { return refuse("is not a changed file") };
        let is_alone = self.changes.items.iter().filter(|other| other.group == item.group).count() == 1;
        let texts = self.changes.both_texts(item, cx)?;
        let Some((old, new)) = texts else { return refuse("has no hunks: keep it whole, or not at all") };
        let (Some(before), Some(after)) = (as_text(&old), as_text(&new)) else {
            return refuse("is not text: keep it whole, or not at all");
        };
        let Some(hunks) = TextHunks::compare(before, after) else {
            return refuse("is too long to be compared by lines: keep it whole, or not at all");
        };
        if let Some(unknown) = wanted.iter().find(|index| **index >= hunks.len()) {
            return refuse(&format!("has {} hunks, and none with the number {unknown}", hunks.len()));
        }
        let chosen: BTreeSet<usize> = wanted.iter().copied().collect();
        if chosen.len() == hunks.len() {
            return Ok(());
        }
        if !is_alone {
            return refuse("belongs together with other changes: keep it whole, or not at all");
        }
        let chosen: Vec<usize> = chosen.into_iter().collect();
        let contents = hunks.apply(&chosen).into_bytes();
        let base = Digest::of(&old);
        let Some(item) = self.changes.items.iter_mut().find(|item| item.path == path) else { return Ok(()) };
        let mode = item.lower.as_ref().map_or(0o644, |was| was.stat.mode & 0o777);
        if let Some(OverlayUpperState::File { seen, .. }) = &item.upper {
            let seen = FileStat { size: contents.len() as u64, ..*seen };
            let digest = Digest::of(&contents);
            item.upper = Some(OverlayUpperState::File { seen, digest, mode, only_mode: false });
        }
        self.changes.partial.insert(path.to_vec(), PartialContents { base, contents });
        self.hunks.insert(path.to_vec(), chosen);
        Ok(())
    }

    /// The groups of the selected items and of everything that those cannot be kept without.
    fn close(&mut self, selected: &BTreeSet<usize>) -> BTreeSet<usize> {
        let (items, parents) = (&self.changes.items, self.changes.parents());
        let group_of = |at: usize| items.get(at).map(|item| item.group);
        let mut groups: BTreeSet<usize> = selected.iter().filter_map(|at| group_of(*at)).collect();
        // The item that a group is kept for.
        let mut causes: HashMap<usize, usize> =
            selected.iter().rev().filter_map(|at| Some((group_of(*at)?, *at))).collect();
        loop {
            let before = groups.len();
            for (at, item) in items.iter().enumerate() {
                if !groups.contains(&item.group) {
                    continue;
                }
                let Some(group) = parents.get(at).copied().flatten().and_then(group_of) else { continue };
                if groups.insert(group) {
                    causes.insert(group, at);
                }
            }
            if groups.len() == before {
                break;
            }
        }
        let along =
            items.iter().enumerate().filter(|(at, item)| groups.contains(&item.group) && !selected.contains(at));
        let mount = &self.changes.mount;
        self.along = along
            .map(|(_, item)| {
                let cause = causes.get(&item.group).and_then(|at| items.get(*at));
                KeptAlong { path: display_path(mount, &item.path), why: along_reason(mount, item, cause) }
            })
            .collect();
        groups
    }

    /// What the policy has to judge.
    pub(crate) fn accesses(&self) -> Vec<ResourceAccess> {
        let kept = |item: &&OverlayChange| self.is_kept(item);
        let kept: BTreeSet<usize> = self.changes.items.iter().filter(kept).map(|item| item.group).collect();
        let groups = self.changes.groups.iter().enumerate().filter(|(index, _)| kept.contains(index));
        groups.flat_map(|(_, group)| group.accesses.iter().cloned()).collect()
    }

    pub(super) fn is_kept(&self, item: &OverlayChange) -> bool {
        self.changes.decisions.get(item.group) == Some(&ChangeGroupDecision::Keep)
    }

    /// For a person: what is kept.
    pub(crate) fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let decided = self.changes.decisions.clone();
        for decision in &mut self.changes.decisions {
            if *decision == ChangeGroupDecision::Keep {
                *decision = ChangeGroupDecision::Ask;
            }
        }
        let preview = self.changes.preview(cx);
        self.changes.decisions = decided;
        preview
    }

    /// Makes the change, and takes what was kept out of the layer.
    pub(crate) fn run(self, ticket: &Ticket<'_>) -> Result<LayerKeepOutcome, ToolError> {
        let cx = ticket.context();
        let baseline = self.layer.baseline();
        let kept: Vec<&OverlayChange> = self.changes.items.iter().filter(|item| self.is_kept(item)).collect();
        let mut accepted = self.layer.record.accepted();
        self.changes.accept_keep(&mut accepted, &kept, &baseline, cx)?;
        let is_running = self.layer.state == LayerState::Running;
        if is_running {
            self.hide_below_new_directories(&kept)?;
        }
        let landing = if is_running { accept_landing(&mut accepted, &kept) } else { Vec::new() };
        let listed: Vec<SettledItem> = kept.iter().map(|item| self.settled_item(item)).collect();
        let total = (self.changes.items.len() + self.changes.rejected.len()) as u64;
        let Self { store, mut layer, changes, mut along, mut refused, .. } = self;
        let mount = Arc::clone(&changes.mount);
        if !listed.is_empty() {
            layer.record.set_accepted(&accepted);
            layer.save()?;
        }
        let committed = commit(changes, ticket);
        let withheld = ticket.withheld();
        let is_withheld = |group: usize| withheld.iter().any(|(other, _)| *other == group);
        let (missing, landed): (Vec<LandingVersion>, Vec<LandingVersion>) =
            landing.into_iter().partition(|version| committed.is_err() || is_withheld(version.group));
        if !missing.is_empty() {
            missing.iter().for_each(|version| accepted.forget(&version.path, version.digest));
            layer.record.set_accepted(&accepted);
            layer.save()?;
        }
        committed?;
        if is_running {
            let upper = UpperLayer::of_running(layer.upper()?);
            for version in landed.iter().filter(|version| version.is_new_name) {
                // Where this cannot be done, the program sees again what it removed a moment ago.
                let _ = upper.hide_removed(&version.path);
            }
        }
        let is_made = |item: &&SettledItem| !is_withheld(item.group);
        for item in listed.iter().filter(|item| !is_made(item)) {
            let why = withheld.iter().find(|(group, _)| *group == item.group).map(|(_, error)| error);
            refused.extend(why.map(|error| RefusedChange::new(item.kept.path.clone(), error)));
            along.retain(|along| along.path != item.kept.path);
        }
        let made: Vec<SettledItem> = listed.iter().filter(is_made).cloned().collect();
        if let (true, Some((_, error))) = (made.is_empty(), withheld.first()) {
            return Err(error.clone());
        }
        let (id, most) = (layer.id.clone(), made.len().max(along.len()).max(refused.len()));
        // The change is made and on disk: what cannot be cleared away now makes no difference in the next review.
        let left = match is_running {
            // What was kept is there as before, and no change any more.
            true => total - made.len() as u64,
            false => settle(&store, layer, &made, &mount, cx).unwrap_or(total),
        };
        Ok(LayerKeepOutcome {
            layer: id,
            change: (!made.is_empty()).then(|| ticket.change_id().to_owned()),
            truncated: most > MOST_LISTED,
            kept: made.iter().map(|item| item.kept.clone()).take(MOST_LISTED).collect(),
            along: along.into_iter().take(MOST_LISTED).collect(),
            refused: refused.into_iter().take(MOST_LISTED).collect(),
            left,
            removed: left == 0 && !is_running,
            note: if is_running { UNDO_LIVE_NOTE } else { UNDO_NOTE },
        })
    }

    /// What is new for the workspace as a whole stays so for the program.
    fn hide_below_new_directories(&self, kept: &[&OverlayChange]) -> Result<(), ToolError> {
        let is_top =
            |item: &&&OverlayChange| item.is_new_directory() && !item.in_new_directory && !item.in_hidden_directory;
        kept.iter().filter(is_top).try_for_each(|item| {
            match self.changes.upper.hide_lower(&item.path) {
                // The program removed it meanwhile, which the commit finds out.
                Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
                hidden => hidden.map_err(|errno| errno_error(errno, &display_path(&self.changes.mount, &item.path))),
            }
        })
    }

    pub(super) fn settled_item(&self, item: &OverlayChange) -> SettledItem {
        let changed = self.changes.changed_path(item);
        let hunks = self.hunks.get(&item.path).cloned();
        let leaves = hunks.is_none() && item.directory_mode().is_none() && !item.in_hidden_directory;
        SettledItem {
            unhides: leaves && item.is_new_directory(),
            leaves,
            path: item.path.clone(),
            group: item.group,
            kept: KeptChange { path: changed.path, kind: change_kind_name(&changed.kind), hunks },
        }
    }
}

/// An item that is kept.
#[derive(Clone, Debug)]
pub(super) struct SettledItem {
    path: Vec<u8>,
    group: usize,
    pub(super) kept: KeptChange,
    /// It is removed from the layer. Otherwise it stays, and makes no difference any more.
    leaves: bool,
    /// A new directory, of which some entries may stay in the layer.
    unhides: bool,
}

/// Takes what was kept whole out of the layer, and removes a layer that has nothing left. Returns what is left.
fn settle(
    store: &LayerStore,
    mut layer: HeldLayer,
    made: &[SettledItem],
    mount: &Arc<Mount>,
    cx: &CallContext<'_>,
) -> Result<u64, ToolError> {
    let upper = UpperLayer::with_closed_modes(layer.upper()?, layer.record.closed_modes());
    for item in made.iter().filter(|item| item.unhides) {
        upper.unhide(&item.path).map_err(|errno| errno_error(errno, &item.kept.path))?;
    }
    // What is in a directory comes behind it, and leaves first.
    for item in made.iter().rev().filter(|item| item.leaves) {
        upper.remove(&item.path).map_err(|errno| errno_error(errno, &item.kept.path))?;
    }
    upper.sync().map_err(|errno: Errno| errno_error(errno, "."))?;
    let counts = layer.changes(mount, cx)?.counts();
    layer.record.summary = Some(counts);
    if counts == LayerCounts::default() {
        store.remove(layer, cx)?;
    } else {
        layer.save()?;
    }
    Ok(counts.total())
}

impl KeptChange {
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

impl KeptAlong {
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

impl RefusedChange {
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn new(path: String, error: &ToolError) -> Self {
        Self { path, code: Dialect::Standard.error_code(error), message: error.to_string() }
    }
}

impl ChangeSet {
    /// Both sides of a text file that is modified; for a new file the old side is empty. `None` for everything else.
    pub(super) fn both_texts(
        &self,
        item: &OverlayChange,
        cx: &CallContext<'_>,
    ) -> Result<Option<BothTexts>, ToolError> {
        let Some(OverlayUpperState::File { seen, only_mode: false, .. }) = &item.upper else { return Ok(None) };
        let old = match &item.lower {
            None => Some(Vec::new()),
            Some(_) => self.lower_bytes(item, cx)?,
        };
        let Some(old) = old.filter(|_| seen.size <= super::text_hunks::LONGEST_TEXT) else { return Ok(None) };
        let new = read_up_to(self.open(item, seen)?, seen.size, cx);
        let new = new.map_err(|errno| errno_error(errno, &display_path(&self.mount, &item.path)))?;
        Ok(Some((old, new)))
    }

    /// The current contents of a file that an item changes, if it is short enough to have hunks.
    pub(super) fn lower_bytes(&self, item: &OverlayChange, cx: &CallContext<'_>) -> Result<Option<Vec<u8>>, ToolError> {
        let Some(was) = item.lower.as_ref().map(|was| was.stat) else { return Ok(None) };
        if was.kind != FileKind::File || was.denies_read() || was.size > super::text_hunks::LONGEST_TEXT {
            return Ok(None);
        }
        let file = self.open_lower(item)?;
        let bytes = read_up_to(file.as_fd(), was.size, cx);
        bytes.map(Some).map_err(|errno| errno_error(errno, &display_path(&self.mount, &item.path)))
    }
}

fn along_reason(mount: &Mount, item: &OverlayChange, cause: Option<&OverlayChange>) -> String {
    if let Some(repository) = repository_of(&item.path) {
        return format!("the changes of `{}` are kept together", display_path(mount, repository));
    }
    let Some(cause) = cause else { return "it belongs to what is kept".to_owned() };
    let name = display_path(mount, &cause.path);
    if is_at_or_below(&cause.path, &item.path) {
        return format!("`{name}` is in it");
    }
    format!("it belongs to the change of `{name}`")
}

fn choice_path(text: &str) -> Vec<u8> {
    let text = text.strip_prefix("./").unwrap_or(text);
    unescape(text.strip_suffix('/').unwrap_or(text))
}

fn not_selected_error() -> ToolError {
    ToolError::new(ErrorKind::Cancelled, "it was not selected")
}
