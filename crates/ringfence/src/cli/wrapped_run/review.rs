//! Review of a layer: what was changed, and what a person selects of it.
//!
//! Nothing is selected at the start, and no key selects what acts later, what is in conflict or what is deleted but the one
//! for each of them. What the policy denies and what cannot be kept cannot be selected.
//!
//! Not here: the review itself (`ringfence-fs`), and the screen (`review_screen.rs`).

use std::collections::BTreeSet;

use ringfence_kernel::{DiffHunk, DiffLineChange, UNTERMINATED_NOTE, sanitize_line};
use serde::Deserialize;

/// Sections that may be selected with one key. Those before them are decided one by one.
const PLAIN_SECTIONS: [&str; 2] = ["changes", "additions"];

/// Section of changes in the agent's own home directory.
const HOME_SECTION: &str = "home";

/// A review, as its tool replies with it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReviewModel {
    pub(crate) layer: ReviewedLayer,
    pub(crate) sections: Vec<ReviewedSection>,
    pub(crate) derived: Vec<ReviewedTree>,
    pub(crate) derived_omitted: u64,
}

/// The layer that is reviewed.
#[derive(Debug, Deserialize)]
pub(crate) struct ReviewedLayer {
    pub(crate) layer: String,
    pub(crate) program: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) profile: String,
    #[serde(default)]
    pub(crate) started: String,
}

/// What an agent changed in its own home directory, as its tool replies with it.
#[derive(Debug, Deserialize)]
pub(crate) struct HomeReviewModel {
    pub(crate) changes: Vec<ReviewedChange>,
    omitted: u64,
}

/// Changes of one kind.
#[derive(Debug, Deserialize)]
pub(crate) struct ReviewedSection {
    pub(crate) section: String,
    pub(crate) count: u64,
    pub(crate) omitted: u64,
    pub(crate) items: Vec<ReviewedChange>,
}

/// A change of one path.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReviewedChange {
    pub(crate) path: String,
    pub(crate) kind: String,
    entry: String,
    from: Option<String>,
    size: Option<u64>,
    old_size: Option<u64>,
    old_entries: Option<u64>,
    mode: Option<[String; 2]>,
    target: Option<String>,
    #[serde(default)]
    group: u64,
    why: Option<String>,
    policy: Option<ReviewedPolicy>,
    refusal: Option<ReviewedRefusal>,
    pub(crate) hunks: Option<Vec<ReviewedHunk>>,
    base: Option<String>,
    note: Option<String>,
    /// Of a change in the agent's home directory.
    pub(crate) version: Option<String>,
}

/// The decision of the policy about keeping a change.
#[derive(Debug, Deserialize)]
struct ReviewedPolicy {
    decision: String,
    rule: String,
    reason: String,
}

/// Why a change cannot be kept.
#[derive(Debug, Deserialize)]
struct ReviewedRefusal {
    message: String,
}

/// A hunk with its number.
#[derive(Debug, Deserialize)]
pub(crate) struct ReviewedHunk {
    pub(crate) index: usize,
    pub(crate) header: String,
    #[serde(flatten)]
    pub(crate) hunk: DiffHunk,
}

/// A tree that git ignores.
#[derive(Debug, Deserialize)]
pub(crate) struct ReviewedTree {
    path: String,
    count: u64,
    bytes: u64,
}

/// A selected path, as `keep_layer` takes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) path: String,
    pub(crate) hunks: Option<Vec<usize>>,
    pub(crate) alone: bool,
    pub(crate) base: Option<String>,
    /// The version of a change in the agent's home directory. Nothing for one of the workspace.
    pub(crate) home: Option<String>,
}

impl HomeReviewModel {
    /// The changes as text, without those of a workspace.
    pub(crate) fn to_text(&self) -> String {
        let lines: Vec<String> = self.changes.iter().flat_map(ReviewedChange::text_lines).collect();
        if lines.is_empty() { "nothing that agents act on was changed\n".to_owned() } else { lines.join("\n") + "\n" }
    }
}

impl ReviewModel {
    /// The review with what the agent changed in its own home directory, as its last section.
    pub(crate) fn with_home(mut self, home: HomeReviewModel) -> Self {
        let (count, omitted) = (home.changes.len() as u64 + home.omitted, home.omitted);
        // Each stands for itself: no number is that of a group of the layer.
        let numbered = (0..u64::MAX).rev().zip(home.changes);
        let items = numbered.map(|(group, change)| ReviewedChange { group, ..change }).collect();
        self.sections.push(ReviewedSection { section: HOME_SECTION.to_owned(), count, omitted, items });
        self
    }
    /// The title of a section.
    pub(crate) fn title(section: &str) -> String {
        let title = match section {
            "acts_later" => "Acts later: other programs run or obey these",
            "conflicts" => "Conflicts: these cannot be kept as they are",
            "deletions" => "Deletions",
            "changes" => "Changes",
            "additions" => "Additions",
            HOME_SECTION => "Home of the agent: agents act on these; to keep one changes your own file",
            other => other,
        };
        sanitize_line(title)
    }

    /// The whole review as text.
    pub(crate) fn to_text(&self) -> String {
        let ReviewedLayer { layer, program, state, .. } = &self.layer;
        let mut lines = vec![sanitize_line(&format!("layer {layer} of `{program}`, {state}"))];
        if state == "running" {
            lines.push(RUNNING_NOTE.to_owned());
        }
        for section in self.sections.iter().filter(|section| section.count > 0) {
            lines.push(format!("\n{} ({})", Self::title(&section.section), section.count));
            lines.extend(section.items.iter().flat_map(ReviewedChange::text_lines));
            if section.omitted > 0 {
                lines.push(format!("  {}", omitted_text(section.omitted)));
            }
        }
        if !self.derived.is_empty() {
            lines.push(format!("\n{} ({})", DERIVED_TITLE, self.derived.len() as u64 + self.derived_omitted));
            lines.extend(self.derived.iter().map(|tree| format!("  {}", tree.summary())));
        }
        if !self.sections.iter().any(|section| section.count > 0) && self.derived.is_empty() {
            let nothing = if state == "running" { "no changes so far" } else { "nothing is left in it" };
            lines.push(nothing.to_owned());
        }
        lines.join("\n") + "\n"
    }
}

/// Which version of a file the program has seen is known at its end, or to its own process.
const RUNNING_NOTE: &str = "while it runs, a change of yours that the program has seen is listed as a conflict too; `ringfence layers list` has \
                            the number of conflicts";

/// The title of trees that git ignores.
pub(crate) const DERIVED_TITLE: &str = "Ignored by git";

/// Says that a list was cut.
pub(crate) fn omitted_text(omitted: u64) -> String {
    format!("… and {omitted} more: review a directory of them alone")
}

impl ReviewedChange {
    /// Whether it can be selected at all.
    pub(crate) fn can_be_kept(&self) -> bool {
        self.refusal.is_none() && self.policy.as_ref().is_none_or(|policy| policy.decision != "deny")
    }

    /// Whether its hunks can be selected one by one.
    pub(crate) fn can_be_split(&self) -> bool {
        let has_several = self.hunks.as_ref().is_some_and(|hunks| hunks.len() > 1);
        self.can_be_kept() && has_several && self.base.is_some() && self.kind != "deleted"
    }

    /// Everything about it.
    fn text_lines(&self) -> Vec<String> {
        let mut lines = vec![format!("  {}", self.summary())];
        lines.extend(self.remarks().into_iter().map(|remark| format!("      {remark}")));
        for hunk in self.hunks.iter().flatten() {
            lines.push(format!("      {}", sanitize_line(&hunk.header)));
            lines.extend(hunk.lines().map(|(_, text)| format!("      {text}")));
        }
        lines
    }

    /// One line about it.
    pub(crate) fn summary(&self) -> String {
        let letter = match self.kind.as_str() {
            "created" => 'A',
            "modified" => 'M',
            "deleted" => 'D',
            "renamed" => 'R',
            "mode" => 'P',
            "link" => 'L',
            _ => '!',
        };
        let mut text = format!("{letter} {}", self.path);
        if self.entry == "directory" {
            text.push('/');
        }
        if let Some(from) = &self.from {
            text.push_str(&format!(" from {from}"));
        }
        if let Some(target) = &self.target {
            text.push_str(&format!(" to {target}"));
        }
        if let Some([old, new]) = &self.mode {
            text.push_str(&format!(", permissions {old} to {new}"));
        }
        match (self.old_entries, self.old_size, self.size) {
            (Some(entries), Some(bytes), _) => text.push_str(&format!(", {entries} entries, {bytes} bytes")),
            (None, Some(old), Some(new)) if old != new => text.push_str(&format!(", {old} to {new} bytes")),
            (None, Some(bytes), None) | (None, None, Some(bytes)) => text.push_str(&format!(", {bytes} bytes")),
            _ => {}
        }
        sanitize_line(&text)
    }

    /// Lines that say why it is where it is, and what keeps it from being kept.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        remarks.extend(self.why.clone());
        remarks.extend(self.refusal.as_ref().map(|refusal| format!("cannot be kept: {}", refusal.message)));
        if let Some(policy) = self.policy.as_ref().filter(|policy| policy.decision != "allow") {
            let verb = if policy.decision == "deny" { "denied" } else { "requires approval" };
            remarks.push(format!("{verb} by the rule `{}`: {}", policy.rule, policy.reason));
        }
        remarks.extend(self.note.clone());
        remarks.iter().map(|remark| sanitize_line(remark)).collect()
    }
}

impl ReviewedHunk {
    /// Its lines with their signs.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (DiffLineChange, String)> {
        self.hunk.lines.iter().flat_map(|line| {
            let text = line.text.replace('\t', "    ");
            let shown = (line.change, format!("{}{}", line.change.sign(), sanitize_line(&text)));
            let end = line.unterminated.then(|| (DiffLineChange::Unchanged, UNTERMINATED_NOTE.to_owned()));
            std::iter::once(shown).chain(end)
        })
    }
}

impl ReviewedTree {
    /// One line about it.
    pub(crate) fn summary(&self) -> String {
        sanitize_line(&format!("{}/, {} files, {} bytes", self.path.trim_end_matches('/'), self.count, self.bytes))
    }
}

/// What is selected of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SelectionMark {
    Unselected,
    Whole,
    /// Some of its hunks, by their numbers.
    Hunks(BTreeSet<usize>),
}

/// A change, or a tree that git ignores, of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReviewEntry {
    /// By section and item.
    Change(usize, usize),
    Tree(usize),
}

/// What a person selected so far.
#[derive(Debug)]
pub(crate) struct ReviewSelection<'a> {
    model: &'a ReviewModel,
    /// By section and item.
    changes: Vec<Vec<SelectionMark>>,
    trees: Vec<bool>,
}

impl<'a> ReviewSelection<'a> {
    pub(crate) fn new(model: &'a ReviewModel) -> Self {
        let changes =
            model.sections.iter().map(|section| vec![SelectionMark::Unselected; section.items.len()]).collect();
        Self { model, changes, trees: vec![false; model.derived.len()] }
    }

    /// The change at an entry.
    pub(crate) fn change(&self, entry: ReviewEntry) -> Option<&'a ReviewedChange> {
        match entry {
            ReviewEntry::Change(section, item) => self.model.sections.get(section)?.items.get(item),
            ReviewEntry::Tree(_) => None,
        }
    }

    pub(crate) fn mark(&self, entry: ReviewEntry) -> SelectionMark {
        match entry {
            ReviewEntry::Change(section, item) => {
                let mark = self.changes.get(section).and_then(|marks| marks.get(item));
                mark.cloned().unwrap_or(SelectionMark::Unselected)
            }
            ReviewEntry::Tree(tree) if self.trees.get(tree) == Some(&true) => SelectionMark::Whole,
            ReviewEntry::Tree(_) => SelectionMark::Unselected,
        }
    }

    /// Selects an entry, or takes it out of the selection. The reason where it cannot be selected.
    pub(crate) fn toggle(&mut self, entry: ReviewEntry) -> Result<(), String> {
        let is_selected = self.mark(entry) != SelectionMark::Unselected;
        self.set(entry, if is_selected { SelectionMark::Unselected } else { SelectionMark::Whole })
    }

    /// The same for one hunk of a change.
    pub(crate) fn toggle_hunk(&mut self, entry: ReviewEntry, hunk: usize) -> Result<(), String> {
        let Some(change) = self.change(entry) else { return Ok(()) };
        if !change.can_be_split() {
            return self.toggle(entry);
        }
        let all: BTreeSet<usize> = change.hunks.iter().flatten().map(|hunk| hunk.index).collect();
        let mut chosen = match self.mark(entry) {
            SelectionMark::Unselected => BTreeSet::new(),
            SelectionMark::Whole => all.clone(),
            SelectionMark::Hunks(chosen) => chosen,
        };
        if !chosen.remove(&hunk) {
            chosen.insert(hunk);
        }
        self.set(
            entry,
            match chosen.len() {
                0 => SelectionMark::Unselected,
                count if count == all.len() => SelectionMark::Whole,
                _ => SelectionMark::Hunks(chosen),
            },
        )
    }

    /// Selects every change and addition that can be kept.
    pub(crate) fn select_plain(&mut self) {
        for (section, marks) in self.model.sections.iter().zip(&mut self.changes) {
            if !PLAIN_SECTIONS.contains(&section.section.as_str()) {
                continue;
            }
            for (change, mark) in section.items.iter().zip(marks) {
                if change.can_be_kept() && *mark == SelectionMark::Unselected {
                    *mark = SelectionMark::Whole;
                }
            }
        }
    }

    fn set(&mut self, entry: ReviewEntry, mark: SelectionMark) -> Result<(), String> {
        if let Some(change) = self.change(entry).filter(|change| !change.can_be_kept()) {
            return Err(change.remarks().pop().unwrap_or_else(|| "this cannot be kept".to_owned()));
        }
        match entry {
            ReviewEntry::Change(section, item) => {
                if let Some(place) = self.changes.get_mut(section).and_then(|marks| marks.get_mut(item)) {
                    *place = mark;
                }
            }
            ReviewEntry::Tree(tree) => {
                if let Some(place) = self.trees.get_mut(tree) {
                    *place = mark == SelectionMark::Whole;
                }
            }
        }
        Ok(())
    }

    /// Selected changes and trees.
    pub(crate) fn count(&self) -> usize {
        let changes = self.changes.iter().flatten().filter(|mark| **mark != SelectionMark::Unselected).count();
        changes + self.trees.iter().filter(|is_selected| **is_selected).count()
    }

    /// Selected changes of a section.
    pub(crate) fn count_in(&self, name: &str) -> usize {
        let sections = self.model.sections.iter().zip(&self.changes).filter(|(section, _)| section.section == name);
        sections.flat_map(|(_, marks)| marks).filter(|mark| **mark != SelectionMark::Unselected).count()
    }

    /// Changes that are kept with selected ones although they are not selected.
    pub(crate) fn count_along(&self) -> usize {
        let all = || {
            self.model.sections.iter().zip(&self.changes).flat_map(|(section, marks)| section.items.iter().zip(marks))
        };
        let is_selected = |mark: &SelectionMark| *mark != SelectionMark::Unselected;
        let groups: BTreeSet<u64> =
            all().filter(|(_, mark)| is_selected(mark)).map(|(change, _)| change.group).collect();
        all().filter(|(change, mark)| !is_selected(mark) && groups.contains(&change.group)).count()
    }

    /// What is selected, for `keep_layer` and `take_home`.
    pub(crate) fn selections(&self) -> Vec<Selection> {
        let changes = self.model.sections.iter().zip(&self.changes);
        let changes = changes.flat_map(|(section, marks)| section.items.iter().zip(marks));
        let selected = changes.filter_map(|(change, mark)| {
            let hunks = match mark {
                SelectionMark::Unselected => return None,
                SelectionMark::Whole => None,
                SelectionMark::Hunks(chosen) => Some(chosen.iter().copied().collect()),
            };
            let (path, base, home) = (change.path.clone(), change.base.clone(), change.version.clone());
            Some(Selection { path, hunks, alone: true, base, home })
        });
        let trees = self.model.derived.iter().zip(&self.trees).filter(|(_, is_selected)| **is_selected);
        let trees = trees.map(|(tree, _)| Selection {
            path: tree.path.clone(),
            hunks: None,
            alone: false,
            base: None,
            home: None,
        });
        selected.chain(trees).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn hunk(index: usize, old: &str, new: &str) -> Value {
        let line = |change: &str, text: &str| json!({"change": change, "text": text});
        let first = index * 10 + 1;
        json!({
            "index": index, "header": format!("@@ -{first} +{first} @@"),
            "old": {"first": first, "count": 1}, "new": {"first": first, "count": 1},
            "lines": [line("removed", old), line("added", new)],
        })
    }

    fn section(name: &str, items: &[Value]) -> Value {
        json!({"section": name, "count": items.len(), "omitted": 0, "items": items})
    }

    /// A review with a change of every kind.
    pub(crate) fn model() -> ReviewModel {
        let allowed = json!({"decision": "allow", "rule": "preset edits", "reason": ""});
        let asked = json!({"decision": "ask", "rule": "preset ask", "reason": "this would overwrite it"});
        let denied = json!({"decision": "deny", "rule": "mine", "reason": "not here"});
        let value = json!({
            "layer": {"layer": "l-1", "program": "claude", "state": "ended"},
            "sections": [
                section("acts_later", &[json!({"path": ".git/hooks/x", "kind": "created", "entry": "file", "size": 9,
                    "group": 0, "why": "a setting that git acts on", "policy": asked})]),
                section("conflicts", &[json!({"path": "both", "kind": "modified", "entry": "file", "group": 1,
                    "refusal": {"code": "CONFLICT", "message": "`both` changed meanwhile"}})]),
                section("deletions", &[json!({"path": "gone", "kind": "deleted", "entry": "file", "oldSize": 4,
                    "group": 2, "policy": asked})]),
                section("changes", &[
                    json!({"path": "src/a.rs", "kind": "modified", "entry": "file", "size": 8, "oldSize": 6, "group": 3,
                        "policy": allowed, "base": "b0", "hunks": [hunk(0, "one", "two"), hunk(1, "three\u{1b}[2J", "four")]}),
                    json!({"path": "secret", "kind": "modified", "entry": "file", "group": 4, "policy": denied}),
                ]),
                section("additions", &[
                    json!({"path": "d", "kind": "created", "entry": "directory", "group": 5, "policy": allowed}),
                    json!({"path": "d/new", "kind": "created", "entry": "file", "size": 2, "group": 5, "policy": allowed,
                        "hunks": [hunk(0, "", "x")]}),
                ]),
            ],
            "derived": [{"path": "target", "count": 3, "bytes": 10}],
            "derivedOmitted": 0,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_review_is_text_with_every_change_and_its_reasons() {
        let text = model().to_text();
        let expected = "layer l-1 of `claude`, ended\n\n\
            Acts later: other programs run or obey these (1)\n  A .git/hooks/x, 9 bytes\n      a setting that git acts on\n      \
            requires approval by the rule `preset ask`: this would overwrite it\n\n\
            Conflicts: these cannot be kept as they are (1)\n  M both\n      cannot be kept: `both` changed meanwhile\n\n\
            Deletions (1)\n  D gone, 4 bytes\n      requires approval by the rule `preset ask`: this would overwrite it\n\n\
            Changes (2)\n  M src/a.rs, 6 to 8 bytes\n      @@ -1 +1 @@\n      -one\n      +two\n      @@ -11 +11 @@\n      \
            -three\\u{1b}[2J\n      +four\n  M secret\n      denied by the rule `mine`: not here\n\n\
            Additions (2)\n  A d/\n  A d/new, 2 bytes\n      @@ -1 +1 @@\n      -\n      +x\n\n\
            Ignored by git (1)\n  target/, 3 files, 10 bytes\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn one_key_selects_no_setting_conflict_deletion_or_denied_change() {
        let model = model();
        let mut selection = ReviewSelection::new(&model);
        assert_eq!(selection.count(), 0);
        selection.select_plain();
        let paths: Vec<String> = selection.selections().into_iter().map(|selected| selected.path).collect();
        assert_eq!(paths, ["src/a.rs", "d", "d/new"]);
        for (entry, reason) in [
            (ReviewEntry::Change(1, 0), "cannot be kept: `both` changed meanwhile"),
            (ReviewEntry::Change(3, 1), "denied by the rule `mine`: not here"),
        ] {
            assert_eq!(selection.toggle(entry), Err(reason.to_owned()));
        }
        assert_eq!(selection.toggle(ReviewEntry::Change(0, 0)), Ok(()));
        assert_eq!((selection.count(), selection.count_in("acts_later")), (4, 1));
    }

    #[test]
    fn hunks_are_selected_one_by_one_and_all_of_them_are_the_file() {
        let model = model();
        let mut selection = ReviewSelection::new(&model);
        let entry = ReviewEntry::Change(3, 0);
        let base = Some("b0".to_owned());
        let whole = Selection { path: "src/a.rs".to_owned(), hunks: None, alone: true, base: base.clone(), home: None };
        selection.toggle_hunk(entry, 1).unwrap();
        assert_eq!(selection.selections(), [Selection { hunks: Some(vec![1]), base, ..whole_of("src/a.rs") }]);
        selection.toggle_hunk(entry, 0).unwrap();
        assert_eq!(selection.selections(), [whole]);
        selection.toggle_hunk(entry, 0).unwrap();
        selection.toggle_hunk(entry, 1).unwrap();
        assert_eq!(selection.selections(), []);
        // A new file is kept whole.
        selection.toggle_hunk(ReviewEntry::Change(4, 1), 0).unwrap();
        assert_eq!(selection.selections(), [whole_of("d/new")]);
        assert_eq!(selection.count_along(), 1);
    }

    fn whole_of(path: &str) -> Selection {
        Selection { path: path.to_owned(), hunks: None, alone: true, base: None, home: None }
    }

    #[test]
    fn a_change_of_the_agent_s_home_is_selected_by_itself() {
        let change = json!({"path": "~/.a.json#/x", "kind": "modified", "entry": "value", "size": 2, "oldSize": 2, "version": "v",
            "why": "agents act on it", "hunks": [hunk(0, "1", "2"), hunk(1, "3", "4")]});
        let home: HomeReviewModel = serde_json::from_value(json!({"changes": [change], "omitted": 0})).unwrap();
        assert!(home.to_text().starts_with("  M ~/.a.json#/x\n      agents act on it\n"), "{}", home.to_text());
        let model = model().with_home(home);
        let mut selection = ReviewSelection::new(&model);
        selection.select_plain();
        assert!(selection.selections().iter().all(|selected| selected.home.is_none()));
        // It is taken whole.
        let mut selection = ReviewSelection::new(&model);
        selection.toggle_hunk(ReviewEntry::Change(5, 0), 1).unwrap();
        let expected = Selection { home: Some("v".to_owned()), ..whole_of("~/.a.json#/x") };
        assert_eq!((selection.selections(), selection.count_along()), (vec![expected], 0));
    }

    #[test]
    fn an_ignored_tree_is_selected_with_everything_in_it() {
        let model = model();
        let mut selection = ReviewSelection::new(&model);
        selection.toggle(ReviewEntry::Tree(0)).unwrap();
        assert_eq!(selection.selections(), [Selection { alone: false, ..whole_of("target") }]);
        selection.toggle(ReviewEntry::Tree(0)).unwrap();
        assert_eq!(selection.count(), 0);
    }
}
