//! Layer review: the changes in a layer in sections, for a person who decides about them.
//!
//! What makes other programs act comes first, then what cannot be kept, then what goes. These sections are never cut. Trees
//! that the workspace ignores, such as the results of a build, are one line each.
//!
//! Not here: keeping something of it (`layer_keep.rs`), and drawing it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ringfence_kernel::{
    CallContext, ChangeKind, Decision, Dialect, DiffHunk, PolicyAction, ResourceAccess, ToolError, Verdict,
    acting_program,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::mount::Mount;
use crate::overlay::ChangeSet;
use crate::overlay::changes::change_kind_name;
use crate::overlay::checkpoint_memory::LiveComparison;
use crate::overlay::compare::{OverlayChange, OverlayUpperState, display_path};
use crate::overlay::group::is_at_or_below;
use crate::overlay::ignored_trees::IgnoredTrees;
use crate::overlay::layer_record::LayerRecord;
use crate::overlay::layer_store::{HeldLayer, LayerState, LayerStore, workspace_id};
use crate::overlay::text_hunks::{TextHunks, as_text};
use crate::path::name::{escape, unescape};
use crate::path::relative::split;
use crate::read::digest::Digest;
use crate::sys::stat::{FileKind, timestamp};

/// Most lines of hunks in the sections that may be cut.
const MOST_LINES: usize = 20_000;

/// Why a changed `package.json` acts later.
pub(super) const PACKAGE_SCRIPTS: &str = "scripts that package managers run";

/// Why a file has no hunks.
const TOO_LONG: &str = "too long to be compared by lines";

/// A layer in a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListedLayerEntry {
    /// Its id.
    pub(crate) layer: String,
    /// `running`, `ended`, or `interrupted` if the process of its program died.
    state: &'static str,
    /// Name of the program.
    program: String,
    profile: String,
    /// The session and the principal that started it.
    session: String,
    principal: String,
    started: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Counts as of the end or of the last keep; absent while the program runs and after an interruption.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<ListedLayerCounts>,
    /// Paths that others changed too, as far as they were found while the program runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    running_conflicts: Vec<String>,
}

/// Changes in a layer, each path once.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct ListedLayerCounts {
    created: u64,
    changed: u64,
    deleted: u64,
    /// Changes that cannot be kept.
    conflicts: u64,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerReview {
    layer: ListedLayerEntry,
    /// `acts_later`, `conflicts`, `deletions`, `changes` and `additions`, in this order. The first three are never cut.
    sections: Vec<ReviewSection>,
    /// Trees that the workspace ignores.
    derived: Vec<DerivedTree>,
    /// Further ones that are not listed.
    derived_omitted: u64,
}

/// A section of a review.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ReviewSection {
    section: &'static str,
    /// All changes in this section.
    count: u64,
    /// Those of them that are not listed.
    omitted: u64,
    items: Vec<ReviewItem>,
}

/// A change in a review.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ReviewItem {
    path: String,
    /// `created`, `modified`, `deleted`, `renamed`, `mode`, `link` or `unsupported`.
    kind: &'static str,
    /// What the entry is: `file`, `directory`, `symlink`.
    entry: &'static str,
    /// The old path of a renamed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Bytes of a file now.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Bytes of the file before, and of everything in a deleted directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_size: Option<u64>,
    /// Entries in a deleted directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_entries: Option<u64>,
    /// Permissions before and after, in octal, where they change.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<[String; 2]>,
    /// Where a link leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Changes with the same number are kept together.
    group: u64,
    /// Why it is in its section, where that is not plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The decision of the policy about keeping it.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<ReviewPolicy>,
    /// Why it cannot be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<ReviewRefusal>,
    /// The hunks of a text file, each with the number that `keep_layer` takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    hunks: Option<Vec<ReviewHunk>>,
    /// SHA-256 of the file in the workspace that the hunks are for.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<String>,
    /// Why there are no hunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// A decision of the policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReviewPolicy {
    /// `allow`, `ask` or `deny`.
    decision: &'static str,
    rule: String,
    reason: String,
}

/// A reason for which a change cannot be kept.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReviewRefusal {
    /// Code of the error, such as `CONFLICT`.
    code: &'static str,
    message: String,
}

/// A hunk.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReviewHunk {
    /// Its number, from 0.
    index: usize,
    /// As in a unified diff: `@@ -1,3 +1,4 @@`.
    header: String,
    #[serde(flatten)]
    hunk: DiffHunk,
}

/// A tree that the workspace ignores.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct DerivedTree {
    path: String,
    /// Changed files and links in it.
    count: u64,
    /// Bytes of the new files in it.
    bytes: u64,
}

/// The sections that items are listed in, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReviewSectionKind {
    ActsLater,
    Conflicts,
    Deletions,
    Changes,
    Additions,
}

impl ReviewSectionKind {
    const ALL: [Self; 5] = [Self::ActsLater, Self::Conflicts, Self::Deletions, Self::Changes, Self::Additions];

    fn name(self) -> &'static str {
        match self {
            Self::ActsLater => "acts_later",
            Self::Conflicts => "conflicts",
            Self::Deletions => "deletions",
            Self::Changes => "changes",
            Self::Additions => "additions",
        }
    }

    fn is_cut(self) -> bool {
        matches!(self, Self::Changes | Self::Additions)
    }
}

/// A planned review. A layer whose program runs is held until this is dropped.
#[derive(Debug)]
pub(crate) struct LayerReviewPlan {
    listed: ListedLayerEntry,
    changes: ChangeSet,
    /// By section, then by index of the item.
    items: Vec<PlannedReviewItem>,
    /// Paths that cannot be kept whatever they are: indices of rejected paths.
    rejected: Vec<usize>,
    derived: BTreeMap<Vec<u8>, DerivedTree>,
    omitted: BTreeMap<ReviewSectionKind, u64>,
    /// The layer, if its program runs: the copies of its files are there.
    running: Option<HeldLayer>,
}

#[derive(Debug)]
struct PlannedReviewItem {
    section: ReviewSectionKind,
    index: usize,
    why: Option<String>,
    /// The access of reading both sides, where the policy lets a person read them.
    read: Option<ResourceAccess>,
}

/// The layers of a workspace, the oldest first.
pub(crate) fn list_layers(store: &LayerStore, mount: &Mount) -> Result<Vec<ListedLayerEntry>, ToolError> {
    let workspace = workspace_id(mount);
    let layers = store.layers()?.into_iter().filter(|layer| layer.record.workspace == workspace);
    Ok(layers.map(|layer| ListedLayerEntry::new(&layer.id, layer.state, &layer.record)).collect())
}

impl ListedLayerEntry {
    fn new(id: &str, state: LayerState, record: &LayerRecord) -> Self {
        Self {
            layer: id.to_owned(),
            state: state.name(),
            program: record.program.clone(),
            profile: record.profile.clone(),
            session: record.session.clone(),
            principal: record.principal.clone(),
            started: timestamp(i128::from(record.started)),
            ended: record.end.map(|end| timestamp(i128::from(end.at))),
            exit_code: record.end.map(|end| end.exit_code),
            counts: record.summary.map(|counts| ListedLayerCounts {
                created: counts.created,
                changed: counts.changed,
                deleted: counts.deleted,
                conflicts: counts.conflicts,
            }),
            running_conflicts: record.running_conflicts.iter().cloned().collect(),
        }
    }
}

impl LayerReviewPlan {
    /// Sorts the changes of a layer into sections: all of them, or those at a path and below it.
    pub(crate) fn new(
        store: &LayerStore,
        mount: &Arc<Mount>,
        (id, path): (&str, Option<&str>),
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        let mut layer = store.hold_to_look(id, &workspace_id(mount))?;
        if layer.state == LayerState::Running {
            layer.live = Some(LiveComparison::begin(layer.directory(), &Arc::default())?);
        }
        let changes = layer.changes(mount, cx)?;
        let listed = ListedLayerEntry::new(&layer.id, layer.state, &layer.record);
        let (derived, omitted) = (BTreeMap::new(), BTreeMap::new());
        let running = (layer.state == LayerState::Running).then_some(layer);
        let mut plan = Self { listed, changes, items: Vec::new(), rejected: Vec::new(), derived, omitted, running };
        plan.sort_items(path.map(unescape).as_deref(), cx);
        if plan.running.is_some() {
            // The program is not to see its directories open. Its files are read from their copies.
            plan.changes.upper.close_again();
        }
        Ok(plan)
    }

    fn sort_items(&mut self, path: Option<&[u8]>, cx: &CallContext<'_>) {
        let changes = &self.changes;
        let is_wanted = |of: &[u8]| path.is_none_or(|path| path == b"." || is_at_or_below(of, path));
        let gone: HashSet<&Vec<u8>> = changes.renamed.values().collect();
        let mut ignored = IgnoredTrees::new(&changes.mount);
        for (index, item) in changes.items.iter().enumerate() {
            // The old path of a rename is named with the new one.
            if !is_wanted(&item.path) || (item.upper.is_none() && gone.contains(&item.path)) {
                continue;
            }
            let (section, why) = changes.section_of(index, item, cx);
            let is_secret = changes.is_sensitive(index);
            if section.is_cut() && !is_secret {
                let is_directory = matches!(item.upper, Some(OverlayUpperState::Directory { .. }));
                if let Some(top) = ignored.top_of(&item.path, is_directory, cx) {
                    let tree = self.derived.entry(top.to_vec()).or_default();
                    tree.count += u64::from(!is_directory);
                    if let Some(OverlayUpperState::File { seen, .. }) = &item.upper {
                        tree.bytes = tree.bytes.saturating_add(seen.size);
                    }
                    continue;
                }
            }
            let listed = self.items.iter().filter(|other| other.section == section).count() as u64;
            if section.is_cut() && listed >= cx.limits.list_entries {
                *self.omitted.entry(section).or_default() += 1;
                continue;
            }
            self.items.push(PlannedReviewItem { section, index, why, read: changes.read_access(index, item, cx) });
        }
        let rejected = changes.rejected.iter().enumerate().filter(|(_, (rejected, _))| is_wanted(&rejected.path));
        self.rejected = rejected.map(|(index, _)| index).collect();
    }

    /// Both sides of the files that are shown.
    pub(crate) fn accesses(&self) -> Vec<ResourceAccess> {
        self.items.iter().filter_map(|item| item.read.clone()).collect()
    }

    /// The review itself.
    pub(crate) fn run(self, cx: &CallContext<'_>) -> Result<LayerReview, ToolError> {
        let mut lines_left = MOST_LINES;
        let mut sections = Vec::new();
        for kind in ReviewSectionKind::ALL {
            let mut items = Vec::new();
            for planned in self.items.iter().filter(|planned| planned.section == kind) {
                cx.check()?;
                let Some(item) = self.changes.items.get(planned.index) else { continue };
                let mut shown = self.changes.review_item(planned, item, cx);
                let is_over = kind.is_cut() && lines_left == 0;
                if planned.read.is_some() && is_over {
                    shown.note = Some("not shown for its length: review the path alone");
                } else if planned.read.is_some() {
                    self.changes.add_hunks(&mut shown, item, cx)?;
                }
                let lines = shown.hunks.iter().flatten().map(|hunk| hunk.hunk.lines.len()).sum::<usize>();
                lines_left = if kind.is_cut() { lines_left.saturating_sub(lines) } else { lines_left };
                items.push(shown);
            }
            if kind == ReviewSectionKind::Conflicts {
                items.extend(self.rejected.iter().filter_map(|index| self.changes.rejected_item(*index)));
            }
            let omitted = self.omitted.get(&kind).copied().unwrap_or_default();
            sections.push(ReviewSection { section: kind.name(), count: items.len() as u64 + omitted, omitted, items });
        }
        let most = usize::try_from(cx.limits.list_entries).unwrap_or(usize::MAX);
        let derived_omitted = self.derived.len().saturating_sub(most) as u64;
        let mount = &self.changes.mount;
        let tree = |(path, tree): (&Vec<u8>, &DerivedTree)| DerivedTree {
            path: display_path(mount, path),
            count: tree.count,
            bytes: tree.bytes,
        };
        let derived = self.derived.iter().take(most).map(tree).collect();
        Ok(LayerReview { layer: self.listed, sections, derived, derived_omitted })
    }
}

impl ChangeSet {
    fn section_of(
        &self,
        index: usize,
        item: &OverlayChange,
        cx: &CallContext<'_>,
    ) -> (ReviewSectionKind, Option<String>) {
        if let Some(why) = self.acts_later(index, item, cx) {
            return (ReviewSectionKind::ActsLater, Some(why));
        }
        let is_refused = self.groups.get(item.group).is_some_and(|group| group.refusal.is_some());
        let section = match (&item.lower, &item.upper) {
            _ if is_refused => ReviewSectionKind::Conflicts,
            (_, None) => ReviewSectionKind::Deletions,
            (None, Some(_)) if !self.renamed.contains_key(&item.path) => ReviewSectionKind::Additions,
            _ => ReviewSectionKind::Changes,
        };
        (section, None)
    }

    /// Why a change makes another program act, if it does.
    fn acts_later(&self, index: usize, item: &OverlayChange, cx: &CallContext<'_>) -> Option<String> {
        let accesses = self.accesses.get(index).into_iter().flatten();
        let protected = accesses.into_iter().find(|access| access.resource.effective_sensitivity().protected);
        if let Some(access) = protected {
            let program = access.resource.names().find_map(acting_program);
            return Some(match (program, self.repositories.leads.get(&item.path).and_then(|leads| leads.first())) {
                (Some(program), _) => format!("a setting that {program} acts on"),
                (None, Some(lead)) => format!("it changes `{}`", escape(lead)),
                (None, None) => "a setting that other programs act on".to_owned(),
            });
        }
        self.changes_scripts(item, cx).then(|| PACKAGE_SCRIPTS.to_owned())
    }

    /// Whether a change is one of the scripts in a `package.json`. Those of installed packages have run already.
    pub(super) fn changes_scripts(&self, item: &OverlayChange, cx: &CallContext<'_>) -> bool {
        let is_installed = item.path.split(|byte| *byte == b'/').any(|part| part == b"node_modules");
        if split(&item.path).1 != b"package.json" || is_installed {
            return false;
        }
        let scripts = |text: &[u8]| serde_json::from_slice::<Value>(text).ok().map(|json| json.get("scripts").cloned());
        match (&item.upper, self.both_texts(item, cx)) {
            (None | Some(OverlayUpperState::File { only_mode: true, .. } | OverlayUpperState::Directory { .. }), _) => {
                false
            }
            (_, Ok(Some((old, new)))) => match (scripts(&old), scripts(&new)) {
                (old, Some(new)) => new.is_some() && old.flatten() != new,
                // What cannot be read may have any.
                (_, None) => true,
            },
            // Nor can what is too long, or another file by a link.
            _ => true,
        }
    }

    fn is_sensitive(&self, index: usize) -> bool {
        let accesses = self.accesses.get(index).into_iter().flatten();
        accesses.into_iter().any(|access| access.resource.effective_sensitivity().is_any())
    }

    /// The access of showing a file's contents. Nothing where there are none, or where the policy denies it.
    fn read_access(&self, index: usize, item: &OverlayChange, cx: &CallContext<'_>) -> Option<ResourceAccess> {
        let was_file = item.lower.as_ref().map(|was| was.stat.kind == FileKind::File);
        let has_contents = match &item.upper {
            Some(OverlayUpperState::File { only_mode, .. }) => !only_mode && was_file.unwrap_or(true),
            Some(_) => false,
            None => was_file == Some(true),
        };
        let own = self.accesses.get(index)?.last().filter(|_| has_contents)?;
        let access = ResourceAccess { action: PolicyAction::Read, resource: own.resource.clone() };
        (cx.evaluate(&access).decision != Decision::Deny).then_some(access)
    }

    fn review_item(&self, planned: &PlannedReviewItem, item: &OverlayChange, cx: &CallContext<'_>) -> ReviewItem {
        let changed = self.changed_path(item);
        let accesses = self.accesses.get(planned.index).into_iter().flatten();
        let verdicts = accesses.into_iter().map(|access| cx.evaluate(access));
        let strictest =
            verdicts.reduce(|first, next| if next.strictness() > first.strictness() { next } else { first });
        let refusal = self.groups.get(item.group).and_then(|group| group.refusal.as_ref()).map(ReviewRefusal::new);
        let was = item.lower.as_ref();
        let tree = was.and_then(|was| was.tree.as_ref());
        let old_mode = was.map(|was| was.stat.mode & 0o777);
        let (entry, new_mode, target) = match &item.upper {
            Some(OverlayUpperState::File { mode, .. }) => ("file", Some(*mode), None),
            Some(OverlayUpperState::Directory { mode }) => ("directory", Some(*mode), None),
            Some(OverlayUpperState::Link { target }) => ("symlink", None, Some(escape(target))),
            None => (was.map_or("file", |was| was.stat.kind.name()), None, None),
        };
        let mode = old_mode.zip(new_mode).filter(|(old, new)| old != new && !item.changes_kind());
        ReviewItem {
            path: changed.path,
            kind: change_kind_name(&changed.kind),
            entry,
            from: match changed.kind {
                ChangeKind::Renamed { from } => Some(from),
                _ => None,
            },
            size: changed.size,
            old_size: was.and_then(|was| match (tree, was.stat.kind) {
                (Some(tree), _) => Some(tree.bytes),
                (None, FileKind::File) => Some(was.stat.size),
                _ => None,
            }),
            old_entries: tree.map(|tree| tree.entries),
            mode: mode.map(|(old, new)| [format!("{old:o}"), format!("{new:o}")]),
            target,
            group: item.group as u64,
            why: planned.why.clone(),
            policy: strictest.map(ReviewPolicy::from),
            refusal,
            hunks: None,
            base: None,
            note: None,
        }
    }

    fn rejected_item(&self, index: usize) -> Option<ReviewItem> {
        let (rejected, group) = self.rejected.get(index)?;
        Some(ReviewItem {
            path: display_path(&self.mount, &rejected.path),
            kind: "unsupported",
            entry: "other",
            from: None,
            size: None,
            old_size: None,
            old_entries: None,
            mode: None,
            target: None,
            group: *group as u64,
            why: None,
            policy: None,
            refusal: Some(ReviewRefusal::new(&rejected.error)),
            hunks: None,
            base: None,
            note: None,
        })
    }

    fn add_hunks(&self, shown: &mut ReviewItem, item: &OverlayChange, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let texts = match &item.upper {
            None => self.lower_bytes(item, cx)?.map(|old| (old, Vec::new())),
            Some(_) => self.both_texts(item, cx)?,
        };
        let Some((old, new)) = texts else {
            shown.note = Some(TOO_LONG);
            return Ok(());
        };
        match review_hunks(&old, &new) {
            Ok(hunks) => shown.hunks = Some(hunks),
            Err(note) => {
                shown.note = Some(note);
                return Ok(());
            }
        }
        shown.base = item.lower.as_ref().map(|_| Digest::of(&old).to_hex());
        Ok(())
    }
}

/// The hunks of two texts, each with its number. Fails with the reason for which there are none.
pub(super) fn review_hunks(old: &[u8], new: &[u8]) -> Result<Vec<ReviewHunk>, &'static str> {
    let (before, after) = as_text(old).zip(as_text(new)).ok_or("not text")?;
    let hunks = TextHunks::compare(before, after).ok_or(TOO_LONG)?;
    let hunk = |(index, hunk): (usize, DiffHunk)| ReviewHunk { index, header: hunk.to_string(), hunk };
    Ok(hunks.shown().into_iter().enumerate().map(hunk).collect())
}

impl From<Verdict> for ReviewPolicy {
    fn from(verdict: Verdict) -> Self {
        Self { decision: verdict.decision.name(), rule: verdict.rule.to_string(), reason: verdict.reason }
    }
}

impl ReviewRefusal {
    pub(super) fn new(error: &ToolError) -> Self {
        Self { code: Dialect::Standard.error_code(error), message: error.to_string() }
    }
}
