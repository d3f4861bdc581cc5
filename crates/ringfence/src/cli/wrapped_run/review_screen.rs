//! Review screen: a layer on the terminal, by section, file and hunk.
//!
//! Keys count after a short time without input: what the program was told last is not an answer. What changes the
//! workspace or loses something is asked about once more. The terminal is restored whatever ends the screen, and the layer
//! stays as it is unless something was chosen.
//!
//! Not here: what can be selected (`review.rs`), and what becomes of it (`cli/layers.rs`).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringfence_kernel::{DiffLineChange, sanitize_line};
use ringfence_sandbox::SignalSource as _;
use rustix::termios::{QueueSelector, tcflush};
use std::os::fd::AsFd as _;
use unicode_width::UnicodeWidthChar as _;

use crate::approval::dialog::{DialogKey, QuietPeriod, WindowSize};
use crate::approval::dialog_lines::{DialogLine, DialogStyle, styled_line, wrap_lines};
use crate::approval::dialog_screen::{ColorMode, DialogEvent, DialogScreen};
use crate::approval::tty::open_terminal;
use crate::cli::wrapped_run::relay_signals::{SignalInbox, SignalThread};
use crate::cli::wrapped_run::review::{
    DERIVED_TITLE, ReviewEntry, ReviewModel, ReviewSelection, Selection, SelectionMark, omitted_text,
};

/// What a person chose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReviewChoice {
    Keep(Vec<Selection>),
    Branch(Vec<Selection>),
    Later,
    Drop,
}

/// Shows a review, and returns what was chosen. Nothing where there is no terminal for it.
pub(crate) fn show_review(model: &ReviewModel, colours: ColorMode) -> io::Result<Option<ReviewChoice>> {
    let Ok(terminal) = open_terminal() else { return Ok(None) };
    let inbox = Arc::new(SignalInbox::new()?);
    let _signals = SignalThread::start(Arc::clone(&inbox))?;
    tcflush(&terminal, QueueSelector::IFlush)?;
    let mut screen = DialogScreen::enter(&terminal, colours)?;
    let mut review = ReviewScreen::new(model);
    review.quiet.restart(Instant::now());
    loop {
        review.quiet.tick(Instant::now());
        screen.draw(&review.lines(screen.size()))?;
        match screen.wait(Some(inbox.as_fd()))? {
            DialogEvent::Nothing => {}
            // A window that changed wakes it too. Anything else ends the review, and decides nothing.
            DialogEvent::Closed => {
                inbox.clear_wakes();
                let was_woken = inbox.take_resized() | inbox.take_continued();
                if inbox.next_signal().is_some() || !was_woken {
                    return Ok(Some(ReviewChoice::Later));
                }
            }
            DialogEvent::Keys(keys) => {
                if let Some(choice) = review.handle_keys(&keys, Instant::now()) {
                    return Ok(Some(choice));
                }
            }
        }
    }
}

/// A line of the list: an entry, or a text between entries.
#[derive(Debug)]
enum ReviewRow {
    Text(DialogLine),
    Entry(ReviewEntry),
}

/// What is on the screen.
#[derive(Debug, PartialEq, Eq)]
enum ReviewView {
    List,
    /// One change with its hunks: the hunk that a key selects, and the first line.
    Change {
        entry: ReviewEntry,
        hunk: usize,
        top: usize,
    },
    Confirm(ConfirmedAction),
    Help,
}

/// What is asked about once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConfirmedAction {
    Keep,
    Branch,
    Drop,
}

#[derive(Debug)]
struct ReviewScreen<'a> {
    model: &'a ReviewModel,
    selection: ReviewSelection<'a>,
    rows: Vec<ReviewRow>,
    /// The row of the entry that keys are about.
    cursor: usize,
    /// The first row on the screen.
    top: usize,
    view: ReviewView,
    quiet: QuietPeriod,
    /// The note about the last key.
    note: Option<String>,
    /// Lines of the body on the screen that was drawn last.
    page: usize,
}

impl<'a> ReviewScreen<'a> {
    fn new(model: &'a ReviewModel) -> Self {
        let rows = list_rows(model);
        let cursor = rows.iter().position(|row| matches!(row, ReviewRow::Entry(_))).unwrap_or_default();
        Self {
            model,
            selection: ReviewSelection::new(model),
            rows,
            cursor,
            top: 0,
            view: ReviewView::List,
            quiet: QuietPeriod::default(),
            note: None,
            page: 1,
        }
    }

    /// Keys that came at once. Where one key decides, several are a paste; only those that move count then.
    fn handle_keys(&mut self, keys: &[DialogKey], now: Instant) -> Option<ReviewChoice> {
        if !self.quiet.is_over() {
            self.quiet.restart(now);
            return None;
        }
        let is_paste = keys.len() > 1;
        let moves =
            |key: &DialogKey| matches!(key, DialogKey::Up | DialogKey::Down | DialogKey::PageUp | DialogKey::PageDown);
        keys.iter().filter(|key| !is_paste || moves(key)).find_map(|key| self.press(*key))
    }

    fn press(&mut self, key: DialogKey) -> Option<ReviewChoice> {
        self.note = None;
        match self.view {
            ReviewView::List => return self.press_in_list(key),
            ReviewView::Change { entry, .. } => self.press_in_change(key, entry),
            ReviewView::Help => self.view = ReviewView::List,
            ReviewView::Confirm(action) => match key {
                DialogKey::Char('y') => return Some(self.choice(action)),
                DialogKey::Char('n') | DialogKey::Escape => self.view = ReviewView::List,
                _ => {}
            },
        }
        None
    }

    fn press_in_list(&mut self, key: DialogKey) -> Option<ReviewChoice> {
        let entry = self.entry();
        match (key, entry) {
            (DialogKey::Up, _) => self.move_cursor(-1),
            (DialogKey::Down, _) => self.move_cursor(1),
            (DialogKey::PageUp, _) => (0..self.page).for_each(|_| self.move_cursor(-1)),
            (DialogKey::PageDown, _) => (0..self.page).for_each(|_| self.move_cursor(1)),
            (DialogKey::Char(' '), Some(entry)) => match self.selection.toggle(entry) {
                Ok(()) => self.move_cursor(1),
                Err(reason) => self.note = Some(reason),
            },
            (DialogKey::Char('d' | 'h') | DialogKey::Enter, Some(entry @ ReviewEntry::Change(..))) => {
                self.view = ReviewView::Change { entry, hunk: 0, top: 0 };
            }
            (DialogKey::Char('d' | 'h') | DialogKey::Enter, Some(ReviewEntry::Tree(_))) => {
                self.note = Some("git ignores this directory: it is kept whole, or not at all".to_owned());
            }
            (DialogKey::Char('a'), _) => self.selection.select_plain(),
            (DialogKey::Char('k' | 'b'), _) if self.selection.count() == 0 => {
                self.note = Some("nothing is selected: space selects a change".to_owned());
            }
            (DialogKey::Char('k'), _) => self.view = ReviewView::Confirm(ConfirmedAction::Keep),
            (DialogKey::Char('b'), _) => self.view = ReviewView::Confirm(ConfirmedAction::Branch),
            (DialogKey::Char('x'), _) => self.view = ReviewView::Confirm(ConfirmedAction::Drop),
            (DialogKey::Char('l' | 'q') | DialogKey::Escape, _) => return Some(ReviewChoice::Later),
            (DialogKey::Char('?'), _) => self.view = ReviewView::Help,
            _ => {}
        }
        None
    }

    fn press_in_change(&mut self, key: DialogKey, shown: ReviewEntry) {
        let hunks = self.selection.change(shown).and_then(|change| change.hunks.as_ref()).map_or(0, Vec::len);
        let page = self.page;
        let ReviewView::Change { hunk, top, .. } = &mut self.view else { return };
        match key {
            DialogKey::Up => *top = top.saturating_sub(1),
            DialogKey::Down => *top += 1,
            DialogKey::PageUp => *top = top.saturating_sub(page),
            DialogKey::PageDown => *top += page,
            DialogKey::Char('n') => self.show_hunk(shown, hunks, 1),
            DialogKey::Char('p') => self.show_hunk(shown, hunks, -1),
            DialogKey::Char(' ') => {
                let index = self.selection.change(shown).and_then(|change| change.hunks.as_ref()?.get(*hunk));
                let toggled = match index.map(|hunk| hunk.index) {
                    Some(index) => self.selection.toggle_hunk(shown, index),
                    None => self.selection.toggle(shown),
                };
                self.note = toggled.err();
            }
            DialogKey::Char('d' | 'h' | 'q') | DialogKey::Escape | DialogKey::Enter => self.view = ReviewView::List,
            _ => {}
        }
    }

    /// Goes to another hunk of the change that is shown.
    fn show_hunk(&mut self, shown: ReviewEntry, count: usize, by: isize) {
        let ReviewView::Change { hunk, top, .. } = &mut self.view else { return };
        *hunk = hunk.saturating_add_signed(by).min(count.saturating_sub(1));
        let current = *hunk;
        let mut headers =
            self.selection.change(shown).map(|change| (change.remarks().len() + 2, change.hunks.as_ref()));
        if let Some((before, Some(hunks))) = headers.take() {
            *top = before + hunks.iter().take(current).map(|hunk| hunk.lines().count() + 1).sum::<usize>();
        }
    }

    fn entry(&self) -> Option<ReviewEntry> {
        match self.rows.get(self.cursor)? {
            ReviewRow::Entry(entry) => Some(*entry),
            ReviewRow::Text(_) => None,
        }
    }

    fn move_cursor(&mut self, by: isize) {
        let mut next = self.cursor;
        while let Some(row) = next.checked_add_signed(by).filter(|row| *row < self.rows.len()) {
            next = row;
            if matches!(self.rows.get(next), Some(ReviewRow::Entry(_))) {
                self.cursor = next;
                return;
            }
        }
    }

    fn choice(&self, action: ConfirmedAction) -> ReviewChoice {
        match action {
            ConfirmedAction::Keep => ReviewChoice::Keep(self.selection.selections()),
            ConfirmedAction::Branch => ReviewChoice::Branch(self.selection.selections()),
            ConfirmedAction::Drop => ReviewChoice::Drop,
        }
    }

    /// The whole screen.
    fn lines(&mut self, size: WindowSize) -> Vec<DialogLine> {
        let width = size.columns.max(8);
        let mut foot = wrap_lines(self.foot(), width);
        foot.truncate(size.rows);
        let room = (size.rows - foot.len()).max(1);
        let mut lines = match self.view {
            ReviewView::List | ReviewView::Confirm(_) => self.list(width, room),
            ReviewView::Change { entry, hunk, .. } => self.change_lines(entry, hunk, width, room),
            ReviewView::Help => {
                let help = HELP.iter().map(|text| styled_line(DialogStyle::Plain, (*text).to_owned()));
                wrap_lines(help.collect(), width)
            }
        };
        lines.truncate(size.rows.saturating_sub(foot.len()));
        lines.resize(size.rows.saturating_sub(foot.len()), styled_line(DialogStyle::Plain, String::new()));
        lines.extend(foot);
        lines
    }

    /// The rows around the cursor. A row is one line, and one that is too long says so.
    fn list(&mut self, width: usize, room: usize) -> Vec<DialogLine> {
        // The title of a section is seen with its first entry.
        let first = self.cursor.saturating_sub(2).min(self.top);
        self.top = first.max((self.cursor + 1).saturating_sub(room));
        self.page = room;
        let rows = self.rows.iter().enumerate().skip(self.top).take(room);
        rows.map(|(index, row)| match row {
            ReviewRow::Text(line) => styled_line(line.style, clip_line(&line.text, width)),
            ReviewRow::Entry(entry) => self.entry_line(*entry, index == self.cursor, width),
        })
        .collect()
    }

    fn entry_line(&self, entry: ReviewEntry, is_current: bool, width: usize) -> DialogLine {
        let change = self.selection.change(entry);
        let mark = match self.selection.mark(entry) {
            _ if change.is_some_and(|change| !change.can_be_kept()) => "[!]".to_owned(),
            SelectionMark::Unselected => "[ ]".to_owned(),
            SelectionMark::Whole => "[x]".to_owned(),
            SelectionMark::Hunks(_) => "[~]".to_owned(),
        };
        let text = match (change, entry) {
            (Some(change), _) => {
                let remark = change.remarks().first().map(|remark| format!("  ({remark})")).unwrap_or_default();
                let hunks = match self.selection.mark(entry) {
                    SelectionMark::Hunks(chosen) => {
                        format!("  {} of {} hunks", chosen.len(), change.hunks.as_ref().map_or(0, Vec::len))
                    }
                    _ => String::new(),
                };
                format!("{}{hunks}{remark}", change.summary())
            }
            (None, ReviewEntry::Tree(tree)) => {
                self.model.derived.get(tree).map(|tree| tree.summary()).unwrap_or_default()
            }
            (None, ReviewEntry::Change(..)) => String::new(),
        };
        let pointer = if is_current { '>' } else { ' ' };
        let style = match (is_current, change.is_none_or(|change| change.can_be_kept())) {
            (true, _) => DialogStyle::Prompt,
            (false, true) => DialogStyle::Plain,
            (false, false) => DialogStyle::Faint,
        };
        styled_line(style, clip_line(&format!("{pointer} {mark} {text}"), width))
    }

    fn change_lines(&mut self, entry: ReviewEntry, current: usize, width: usize, room: usize) -> Vec<DialogLine> {
        let Some(change) = self.selection.change(entry) else { return Vec::new() };
        let mark = self.selection.mark(entry);
        let mut lines = vec![styled_line(DialogStyle::Title, change.summary())];
        lines.extend(change.remarks().into_iter().map(|remark| styled_line(DialogStyle::Faint, remark)));
        lines.push(styled_line(DialogStyle::Plain, String::new()));
        for (number, hunk) in change.hunks.iter().flatten().enumerate() {
            let is_selected = match &mark {
                SelectionMark::Unselected => false,
                SelectionMark::Whole => true,
                SelectionMark::Hunks(chosen) => chosen.contains(&hunk.index),
            };
            let pointer = if number == current { '>' } else { ' ' };
            let sign = if is_selected { "[x]" } else { "[ ]" };
            let header = format!("{pointer} {sign} {}", sanitize_line(&hunk.header));
            lines.push(styled_line(DialogStyle::Hunk, header));
            lines.extend(hunk.lines().map(|(kind, text)| {
                let style = match kind {
                    DiffLineChange::Added => DialogStyle::Added,
                    DiffLineChange::Removed => DialogStyle::Removed,
                    DiffLineChange::Unchanged => DialogStyle::Plain,
                };
                styled_line(style, text)
            }));
        }
        let ReviewView::Change { top, .. } = &mut self.view else { return Vec::new() };
        // Not past the last line.
        *top = (*top).min(lines.len().saturating_sub(1));
        let shown = wrap_lines(lines.into_iter().skip(*top).collect(), width);
        self.page = room.saturating_sub(1).max(1);
        let hidden = shown.len().saturating_sub(room);
        let mut shown: Vec<DialogLine> = shown.into_iter().take(room).collect();
        if hidden > 0 && shown.pop().is_some() {
            let more = format!("… {} more lines; page down shows them", hidden + 1);
            shown.push(styled_line(DialogStyle::Prompt, clip_line(&more, width)));
        }
        shown
    }

    fn foot(&self) -> Vec<DialogLine> {
        let selected = self.selection.count();
        let along = match self.selection.count_along() {
            0 => String::new(),
            along => format!(", and {along} that belong to them"),
        };
        let plural = if selected == 1 { "change" } else { "changes" };
        let what = format!("{selected} {plural}{along}");
        let keys = match self.view {
            _ if !self.quiet.is_over() => format!("{what} selected"),
            ReviewView::List => format!(
                "{what} selected  [space] select  [d] diff  [a] plain ones  [k] keep  [b] branch  [l] later  [x] drop  [?]"
            ),
            ReviewView::Change { .. } => "[space] select  [n][p] hunk  [d] back to the list".to_owned(),
            ReviewView::Help => "press any key to go back".to_owned(),
            ReviewView::Confirm(ConfirmedAction::Keep) => {
                let acting = match self.selection.count_in("acts_later") {
                    0 => String::new(),
                    acting => format!(" ({acting} of them act later)"),
                };
                format!("keep {what}{acting} in the workspace?  [y] yes  [n] back")
            }
            ReviewView::Confirm(ConfirmedAction::Branch) => format!("commit {what} to a branch?  [y] yes  [n] back"),
            ReviewView::Confirm(ConfirmedAction::Drop) => {
                "drop the layer with every change in it? This cannot be undone.  [y] yes  [n] back".to_owned()
            }
        };
        let note = self.note.iter().map(|note| styled_line(DialogStyle::Prompt, note.clone()));
        note.chain([styled_line(DialogStyle::Prompt, keys)]).collect()
    }
}

/// The list: a title for each section, and its entries.
fn list_rows(model: &ReviewModel) -> Vec<ReviewRow> {
    let text = |style, text: String| ReviewRow::Text(styled_line(style, text));
    let title = format!("Layer {} of `{}`, {}", model.layer.layer, model.layer.program, model.layer.state);
    let mut rows = vec![text(DialogStyle::Title, sanitize_line(&title))];
    for (index, section) in model.sections.iter().enumerate().filter(|(_, section)| section.count > 0) {
        rows.push(text(DialogStyle::Plain, String::new()));
        let title = format!("{} ({})", ReviewModel::title(&section.section), section.count);
        rows.push(text(DialogStyle::Title, title));
        rows.extend((0..section.items.len()).map(|item| ReviewRow::Entry(ReviewEntry::Change(index, item))));
        if section.omitted > 0 {
            rows.push(text(DialogStyle::Faint, format!("    {}", omitted_text(section.omitted))));
        }
    }
    if !model.derived.is_empty() {
        rows.push(text(DialogStyle::Plain, String::new()));
        let count = model.derived.len() as u64 + model.derived_omitted;
        rows.push(text(DialogStyle::Title, format!("{DERIVED_TITLE} ({count})")));
        rows.extend((0..model.derived.len()).map(|tree| ReviewRow::Entry(ReviewEntry::Tree(tree))));
    }
    if rows.len() == 1 {
        rows.push(text(DialogStyle::Plain, "Nothing is left in it.".to_owned()));
    }
    rows
}

/// A text that fits a line, with a sign where it was cut: the view of the change has all of it.
fn clip_line(text: &str, width: usize) -> String {
    let total: usize = text.chars().map(|c| c.width().unwrap_or(0)).sum();
    if total <= width {
        return text.to_owned();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used < width
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

const HELP: &[&str] = &[
    "space  select the change, or take it out of the selection",
    "d      show the whole change with its hunks; space selects a hunk there",
    "a      select all changes and additions that can be kept",
    "       (not what acts later, conflicts, deletions and ignored directories)",
    "k      keep what is selected, as one change that `ringfence undo` reverts",
    "b      commit what is selected to a branch of its own",
    "l      decide later; the layer stays",
    "x      drop the layer",
    "",
    "[!] cannot be kept; `d` says why.  [~] some hunks are selected.",
    "A added, M modified, D deleted, R renamed, P permissions, L link",
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::wrapped_run::review::tests::model;

    const SIZE: WindowSize = WindowSize { rows: 24, columns: 100 };

    fn shown(review: &mut ReviewScreen<'_>, size: WindowSize) -> Vec<String> {
        review.lines(size).into_iter().map(|line| line.text.trim_end().to_owned()).collect()
    }

    /// A screen on which keys count, after these.
    fn after<'a>(model: &'a ReviewModel, keys: &str) -> (ReviewScreen<'a>, Option<ReviewChoice>) {
        let mut review = ReviewScreen::new(model);
        let start = Instant::now();
        review.quiet.restart(start);
        review.quiet.tick(start + Duration::from_secs(1));
        let mut choice = None;
        for key in keys.chars() {
            shown(&mut review, SIZE);
            let key = match key {
                '↓' => DialogKey::Down,
                '↑' => DialogKey::Up,
                '⏎' => DialogKey::Enter,
                key => DialogKey::Char(key),
            };
            choice = review.handle_keys(&[key], start);
        }
        (review, choice)
    }

    #[test]
    fn the_list_has_every_section_with_its_changes() {
        let model = model();
        let (mut review, _) = after(&model, "a");
        let lines = shown(&mut review, SIZE);
        let body: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        let expected = [
            "Layer l-1 of `claude`, ended",
            "Acts later: other programs run or obey these (1)",
            "> [ ] A .git/hooks/x, 9 bytes  (a setting that git acts on)",
            "Conflicts: these cannot be kept as they are (1)",
            "  [!] M both  (cannot be kept: `both` changed meanwhile)",
            "Deletions (1)",
            "  [ ] D gone, 4 bytes  (requires approval by the rule `preset ask`: this would overwrite it)",
            "Changes (2)",
            "  [x] M src/a.rs, 6 to 8 bytes",
            "  [!] M secret  (denied by the rule `mine`: not here)",
            "Additions (2)",
            "  [x] A d/",
            "  [x] A d/new, 2 bytes",
            "Ignored by git (1)",
            "  [ ] target/, 3 files, 10 bytes",
        ];
        assert_eq!(&body[..expected.len()], expected);
        assert!(body[expected.len()].starts_with("3 changes selected"), "{body:?}");
    }

    #[test]
    fn nothing_is_done_without_a_second_yes() {
        let model = model();
        let check = |keys: &str, expected: Option<ReviewChoice>| assert_eq!(after(&model, keys).1, expected, "{keys}");
        check("ak", None);
        check("akn", None);
        check("x", None);
        check("xn", None);
        check("k", None);
        check("ky", None);
        check("xy", Some(ReviewChoice::Drop));
        check("l", Some(ReviewChoice::Later));
        let selected = |keys: &str| match after(&model, keys).1 {
            Some(ReviewChoice::Keep(selected) | ReviewChoice::Branch(selected)) => {
                selected.into_iter().map(|one| one.path).collect::<Vec<_>>()
            }
            other => panic!("{keys}: {other:?}"),
        };
        assert_eq!(selected("aky"), ["src/a.rs", "d", "d/new"]);
        assert_eq!(selected("aby"), ["src/a.rs", "d", "d/new"]);
        assert_eq!(selected(" ky"), [".git/hooks/x"]);
        // The cursor is on the conflict after the first, and stays there with a note.
        let (review, _) = after(&model, "  ");
        assert_eq!(review.note.as_deref(), Some("cannot be kept: `both` changed meanwhile"));
    }

    #[test]
    fn a_hunk_is_selected_in_the_view_of_its_change() {
        let model = model();
        let (mut review, choice) = after(&model, "↓↓↓dn dky");
        let lines = shown(&mut review, SIZE);
        assert!(lines.iter().any(|line| line == "> [~] M src/a.rs, 6 to 8 bytes  1 of 2 hunks"), "{lines:?}");
        let Some(ReviewChoice::Keep(selected)) = choice else { panic!("{choice:?}") };
        assert_eq!(selected.first().and_then(|one| one.hunks.clone()), Some(vec![1]));
        let (mut review, _) = after(&model, "↓↓↓⏎");
        let lines = shown(&mut review, SIZE);
        assert_eq!(&lines[..4], ["M src/a.rs, 6 to 8 bytes", "", "> [ ] @@ -1 +1 @@", "-one"]);
        assert!(lines.contains(&"-three\\u{1b}[2J".to_owned()), "{lines:?}");
    }

    #[test]
    fn keys_count_when_it_was_quiet_and_pastes_decide_nothing() {
        let model = model();
        let mut review = ReviewScreen::new(&model);
        let start = Instant::now();
        review.quiet.restart(start);
        assert_eq!(review.handle_keys(&[DialogKey::Char('x')], start), None);
        assert_eq!(review.view, ReviewView::List);
        review.quiet.tick(start + Duration::from_secs(1));
        let paste = [DialogKey::Char('x'), DialogKey::Char('y'), DialogKey::Down];
        assert_eq!(review.handle_keys(&paste, start), None);
        assert_eq!(review.entry_index(), 1);
        assert_eq!(review.view, ReviewView::List);
    }

    impl ReviewScreen<'_> {
        /// Number of the entry that keys are about.
        fn entry_index(&self) -> usize {
            self.rows[..self.cursor].iter().filter(|row| matches!(row, ReviewRow::Entry(_))).count()
        }
    }

    #[test]
    fn every_change_can_be_reached_in_any_window() {
        let model = model();
        for rows in 1..30 {
            for columns in [1, 10, 40, 200] {
                let size = WindowSize { rows, columns };
                let mut review = ReviewScreen::new(&model);
                review.quiet.tick(Instant::now());
                for _ in 0..10 {
                    let lines = review.lines(size);
                    assert!(lines.len() <= rows.max(1), "{size:?}");
                    review.move_cursor(1);
                }
                assert_eq!(review.entry_index(), 7, "{size:?}");
                for view in [
                    ReviewView::Change { entry: ReviewEntry::Change(3, 0), hunk: 1, top: 500 },
                    ReviewView::Help,
                    ReviewView::Confirm(ConfirmedAction::Drop),
                ] {
                    review.view = view;
                    assert!(review.lines(size).len() <= rows.max(1), "{size:?}");
                }
            }
        }
    }

    #[test]
    fn an_empty_review_can_be_left() {
        let empty =
            r#"{"layer":{"layer":"l-1","program":"sh","state":"ended"},"sections":[],"derived":[],"derivedOmitted":0}"#;
        let model: ReviewModel = serde_json::from_str(empty).unwrap();
        let (mut review, _) = after(&model, " d↓a");
        assert!(shown(&mut review, SIZE).contains(&"Nothing is left in it.".to_owned()));
        assert_eq!(after(&model, "l").1, Some(ReviewChoice::Later));
    }
}
