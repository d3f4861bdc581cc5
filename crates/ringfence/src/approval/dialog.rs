//! Approval dialog: rendering and key bindings.
//!
//! An approval needs its own key on a screen that describes the effect: there is no default, and pasted text, typeahead
//! and other input are not an answer. Keys count after a short time without input, and an unknown key restarts that
//! time. Text that does not fit is never omitted silently.
//!
//! Not here: the terminal and its clock (`tty.rs`). This only knows keys, lines, sizes and given times.

use std::time::{Duration, Instant};

use ringfence_kernel::{ApprovalRequest, ApprovalResponse, Assurance, GRANT_LIFETIME, Preview, sanitize_line};
use serde_json::Value;

use crate::approval::dialog_lines::{DialogLine, DialogStyle, json_lines, preview_lines, styled_line, wrap_lines};

/// Time without input before keys count, so that a user who was typing something else stops first.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// A reason is a sentence or two.
const MAX_REASON_CHARS: usize = 500;

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialogKey {
    Char(char),
    Enter,
    Backspace,
    Escape,
    Up,
    Down,
    PageUp,
    PageDown,
    /// None that means anything here.
    Other,
}

/// The next step after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialogStep {
    Continue,
    /// Let the person edit these arguments, and say what came of it by `edited`.
    Edit(Value),
    Done(ApprovalResponse),
}

/// Size of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowSize {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// A time without input after which keys count, so that a person who was typing something else stops first.
#[derive(Debug, Default)]
pub(crate) struct QuietPeriod {
    is_over: bool,
    since: Option<Instant>,
}

impl QuietPeriod {
    /// Keys do not count until it was quiet again.
    pub(crate) fn restart(&mut self, now: Instant) {
        *self = Self { is_over: false, since: Some(now) };
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        self.is_over |= self.since.is_some_and(|since| now.saturating_duration_since(since) >= QUIET_TIME);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    #[cfg(test)]
    fn over() -> Self {
        Self { is_over: true, since: None }
    }
}

/// A request on a screen.
#[derive(Debug)]
pub(crate) struct ApprovalDialog<'a> {
    request: &'a ApprovalRequest,
    state: DialogState,
    /// Whether keys count yet.
    quiet: QuietPeriod,
    /// The note about the last key, until the next one.
    note: Option<String>,
    /// The body as it fits a window so wide. Arguments can be long, and the time is drawn every second.
    wrapped: Option<(usize, Vec<DialogLine>)>,
    /// Lines of the body on the screen that was drawn last.
    shown: usize,
}

#[derive(Debug)]
enum DialogState {
    Choose,
    Reason(String),
    Always,
    View {
        top: usize,
    },
    Help,
    /// With what the call would do then.
    Edited(Value, Preview),
}

impl<'a> ApprovalDialog<'a> {
    pub(crate) fn new(request: &'a ApprovalRequest) -> Self {
        Self { request, state: DialogState::Choose, quiet: QuietPeriod::default(), note: None, wrapped: None, shown: 0 }
    }

    /// Requires a short time without input before keys count.
    pub(crate) fn require_quiet(&mut self, now: Instant) {
        self.quiet.restart(now);
    }

    /// Lets keys count, and shows them, once it was quiet for long enough.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.quiet.tick(now);
    }

    /// As `accept_keys`, at a time.
    pub(crate) fn handle_keys(&mut self, keys: &[DialogKey], now: Instant) -> DialogStep {
        if !self.quiet.is_over() {
            self.require_quiet(now);
            return DialogStep::Continue;
        }
        let chose = matches!(self.state, DialogState::Choose);
        let step = self.accept_keys(keys);
        // An unknown key is part of other input.
        if chose && matches!(self.state, DialogState::Choose) && step == DialogStep::Continue && self.note.is_none() {
            self.require_quiet(now);
        }
        step
    }

    /// Handles keys that came at once. Where one key is an answer, several at once are a paste and are ignored.
    fn accept_keys(&mut self, keys: &[DialogKey]) -> DialogStep {
        let writes = matches!(self.state, DialogState::Reason(_));
        match keys {
            _ if !self.quiet.is_over() => DialogStep::Continue,
            [key] => self.press(*key),
            _ if writes => {
                let mut steps = keys.iter().map(|key| self.press(*key));
                steps.find(|step| *step != DialogStep::Continue).unwrap_or(DialogStep::Continue)
            }
            _ => DialogStep::Continue,
        }
    }

    fn press(&mut self, key: DialogKey) -> DialogStep {
        self.note = None;
        match &mut self.state {
            DialogState::Choose => self.choose(key),
            DialogState::Reason(reason) => match key {
                DialogKey::Enter => DialogStep::Done(ApprovalResponse {
                    reason: Some(std::mem::take(reason)).filter(|reason| !reason.trim().is_empty()),
                    ..ApprovalResponse::default()
                }),
                DialogKey::Escape => self.set_state(DialogState::Choose),
                DialogKey::Backspace => {
                    reason.pop();
                    DialogStep::Continue
                }
                DialogKey::Char(c) if !c.is_control() && reason.chars().count() < MAX_REASON_CHARS => {
                    reason.push(c);
                    DialogStep::Continue
                }
                _ => DialogStep::Continue,
            },
            DialogState::Always => match key {
                DialogKey::Char('y') => DialogStep::Done(ApprovalResponse { remember: true, ..approved_once() }),
                DialogKey::Char('n') | DialogKey::Escape => self.set_state(DialogState::Choose),
                _ => DialogStep::Continue,
            },
            DialogState::View { top } => {
                // No line is between two pages.
                let page = self.shown.max(1);
                match key {
                    DialogKey::Char('v' | 'q') | DialogKey::Escape => return self.set_state(DialogState::Choose),
                    DialogKey::Char('j') | DialogKey::Down | DialogKey::Enter => *top += 1,
                    DialogKey::Char('k') | DialogKey::Up => *top = top.saturating_sub(1),
                    DialogKey::Char(' ') | DialogKey::PageDown => *top += page,
                    DialogKey::Char('b') | DialogKey::PageUp => *top = top.saturating_sub(page),
                    _ => {}
                }
                DialogStep::Continue
            }
            DialogState::Help => self.set_state(DialogState::Choose),
            DialogState::Edited(args, _) => match key {
                DialogKey::Char('y') => {
                    DialogStep::Done(ApprovalResponse { modified_args: Some(std::mem::take(args)), ..approved_once() })
                }
                DialogKey::Char('e') => DialogStep::Edit(args.clone()),
                DialogKey::Char('n') | DialogKey::Escape => self.set_state(DialogState::Choose),
                _ => DialogStep::Continue,
            },
        }
    }

    fn choose(&mut self, key: DialogKey) -> DialogStep {
        match key {
            DialogKey::Char('y') => DialogStep::Done(approved_once()),
            DialogKey::Char('n') => self.set_state(DialogState::Reason(String::new())),
            DialogKey::Char('e') => DialogStep::Edit(self.request.args.clone()),
            DialogKey::Char('a') if self.request.grant.is_some() => self.set_state(DialogState::Always),
            DialogKey::Char('a') => self.set_note("this cannot be allowed permanently; `y` allows it once"),
            DialogKey::Char('v') => self.set_state(DialogState::View { top: 0 }),
            DialogKey::Char('?') => self.set_state(DialogState::Help),
            _ => DialogStep::Continue,
        }
    }

    /// Sets the result of the editor, with the preview of the changed call.
    pub(crate) fn set_edited(&mut self, left: Result<Value, String>, preview: Preview) {
        self.wrapped = None;
        match left {
            Ok(args) if args == self.request.args => {
                self.state = DialogState::Choose;
                self.note = Some("the arguments are unchanged".to_owned());
            }
            Ok(args) => self.state = DialogState::Edited(args, preview),
            Err(problem) => self.note = Some(sanitize_line(&problem)),
        }
    }

    fn set_state(&mut self, state: DialogState) -> DialogStep {
        self.wrapped = None;
        self.state = state;
        DialogStep::Continue
    }

    fn set_note(&mut self, note: &str) -> DialogStep {
        self.note = Some(note.to_owned());
        DialogStep::Continue
    }

    /// The whole screen, with what is left of the time to answer.
    pub(crate) fn screen(&mut self, size: WindowSize, left: Duration) -> Vec<DialogLine> {
        let width = size.columns.max(8);
        let body = match self.wrapped.take() {
            Some((same, body)) if same == width => body,
            _ => wrap_lines(self.body(), width),
        };
        let mut foot = wrap_lines(self.foot(left), width);
        foot.truncate(size.rows);
        let room = size.rows - foot.len();
        let top = match &mut self.state {
            // Not past the end, where there is nothing to be seen.
            DialogState::View { top } => {
                *top = (*top).min(body.len().saturating_sub(room.max(1)));
                *top
            }
            _ => 0,
        };
        let hidden = (body.len() - top).saturating_sub(room);
        let mut lines: Vec<DialogLine> = body.iter().skip(top).take(room).cloned().collect();
        self.wrapped = Some((width, body));
        let is_cut = hidden > 0 && lines.pop().is_some();
        self.shown = lines.len();
        if is_cut {
            let how = if matches!(self.state, DialogState::View { .. }) { "space continues" } else { "`v` shows all" };
            let text = format!("… {} more lines; {how}", hidden + 1);
            lines.extend(wrap_lines(vec![styled_line(DialogStyle::Prompt, text)], width).into_iter().take(1));
        }
        lines.extend(foot);
        lines
    }

    fn body(&self) -> Vec<DialogLine> {
        match &self.state {
            DialogState::Help => HELP.iter().map(|text| styled_line(DialogStyle::Plain, (*text).to_owned())).collect(),
            DialogState::Always => self.rule(),
            DialogState::Edited(args, shown) => {
                let mut lines = self.head();
                lines.extend(preview_lines(shown));
                lines.push(styled_line(DialogStyle::Plain, String::new()));
                lines.push(styled_line(DialogStyle::Title, "Arguments, edited by you:".to_owned()));
                lines.extend(json_lines(args));
                lines
            }
            DialogState::Choose | DialogState::Reason(_) | DialogState::View { .. } => {
                let mut lines = self.head();
                lines.extend(preview_lines(&self.request.preview));
                lines.push(styled_line(DialogStyle::Plain, String::new()));
                lines.push(styled_line(DialogStyle::Faint, "Arguments sent by the agent:".to_owned()));
                lines.extend(json_lines(&self.request.args));
                lines
            }
        }
    }

    /// The caller, the call and the reason.
    fn head(&self) -> Vec<DialogLine> {
        let ApprovalRequest { principal, agent, tool, reason, rule, layer, assurance, .. } = self.request;
        let agent = agent.as_deref().map(|agent| format!(", agent `{}`,", sanitize_line(agent))).unwrap_or_default();
        let mut lines = vec![
            styled_line(
                DialogStyle::Title,
                format!("`{}`{agent} wants to call `{}`", sanitize_line(principal), sanitize_line(tool)),
            ),
            styled_line(DialogStyle::Plain, sanitize_line(reason)),
            styled_line(
                DialogStyle::Faint,
                format!("required by the rule `{}` ({})", sanitize_line(rule), layer.name()),
            ),
        ];
        if *assurance == Assurance::Person {
            lines.push(styled_line(
                DialogStyle::Faint,
                "requires an answer from a person, here or in the web UI".to_owned(),
            ));
        }
        lines.push(styled_line(DialogStyle::Plain, String::new()));
        lines
    }

    fn rule(&self) -> Vec<DialogLine> {
        let days = GRANT_LIFETIME.as_secs() / (24 * 60 * 60);
        let rule = self.request.grant.as_deref().unwrap_or_default();
        vec![
            styled_line(DialogStyle::Title, "Rule to add:".to_owned()),
            styled_line(DialogStyle::Plain, sanitize_line(rule)),
            styled_line(DialogStyle::Plain, String::new()),
            styled_line(DialogStyle::Plain, format!("It applies for {days} days, in this directory only.")),
            styled_line(DialogStyle::Plain, "Revoke it with `ringfence policy grants revoke ID`.".to_owned()),
        ]
    }

    fn foot(&self, left: Duration) -> Vec<DialogLine> {
        let seconds = left.as_secs();
        let time = format!("{}:{:02} left", seconds / 60, seconds % 60);
        let keys = match &self.state {
            _ if !self.quiet.is_over() => time,
            DialogState::Choose => {
                format!("[y] yes  [n] no  [e] edit  [a] always  [v] view all  [?] help   {time}")
            }
            DialogState::Reason(reason) => {
                format!("reason (optional; Enter denies, Esc goes back): {}", sanitize_line(reason))
            }
            DialogState::Always => format!("add this rule?  [y] yes  [n] back   {time}"),
            DialogState::View { .. } => format!("[space] next  [b] back  [j][k] line  [q] done   {time}"),
            DialogState::Help => format!("press any key to go back   {time}"),
            DialogState::Edited(..) => {
                format!("call with these arguments?  [y] yes  [n] discard  [e] edit   {time}")
            }
        };
        let note = self.note.iter().map(|note| styled_line(DialogStyle::Prompt, note.clone()));
        note.chain([styled_line(DialogStyle::Prompt, keys)]).collect()
    }
}

const HELP: &[&str] = &[
    "y  allow this call once, as shown",
    "n  deny it, with a reason for the agent",
    "e  edit the arguments; their effect is shown before you approve",
    "a  always allow this; the exact rule is shown first",
    "v  page through the whole request",
    "",
    "If the target changes before you answer, the call fails and changes nothing.",
    "Invisible characters are shown as \\u{…}.",
];

fn approved_once() -> ApprovalResponse {
    ApprovalResponse { approved: true, ..ApprovalResponse::default() }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use ringfence_kernel::{
        ApprovalRequest, ApprovalResponse, Assurance, DiffHunk, DiffLine, DiffLineChange, DiffPart, DiffRange,
        FileDiff, LineDiff, PolicyLayer, Preview, PreviewBody,
    };
    use serde_json::{Value, json};

    use super::{
        ApprovalDialog, DialogKey, DialogState, DialogStep, DialogStyle, QuietPeriod, WindowSize, approved_once,
    };

    /// A diff in which `old` becomes another line.
    fn diff_preview(new: &str) -> Preview {
        let line = |change, text: &str| DiffLine { change, text: text.to_owned(), unterminated: false };
        let lines = vec![
            line(DiffLineChange::Removed, "old"),
            line(DiffLineChange::Added, new),
            line(DiffLineChange::Unchanged, "same"),
        ];
        let range = DiffRange { first: 1, count: 2 };
        let path = Some("a".to_owned());
        let hunks = vec![DiffHunk { old: range, new: range, lines }];
        let file = FileDiff { old_path: path.clone(), new_path: path, hunks };
        let diff = LineDiff { parts: vec![DiffPart::File(file)] };
        Preview::new("overwrite `a`", "f").with_body(PreviewBody::Diff(diff))
    }

    fn text_preview(text: &str) -> Preview {
        Preview::new("overwrite `a`", "f").with_body(PreviewBody::Text(text.to_owned()))
    }

    fn request() -> ApprovalRequest {
        let text = |text: &str| text.to_owned();
        ApprovalRequest {
            id: text("a-1"),
            step_id: text("1"),
            session: text("s"),
            principal: text("the agent\u{1b}[2J"),
            agent: Some(text("writer")),
            tool: text("write_file"),
            args: json!({"path": "a", "content": "x"}),
            reason: text("this would overwrite `a`"),
            rule: text("preset ask"),
            layer: PolicyLayer::Preset,
            assurance: Assurance::Relayed,
            preview: diff_preview("new\u{202e}"),
            grant: Some(text("{ decision = \"allow\" }")),
            suspended: false,
            opened: SystemTime::UNIX_EPOCH,
            expires: SystemTime::UNIX_EPOCH,
        }
    }

    fn chars(text: &str) -> Vec<DialogKey> {
        text.chars().map(DialogKey::Char).collect()
    }

    /// The result of these keys, each by itself, in a dialog that may be answered.
    fn pressed(request: &ApprovalRequest, keys: &str) -> DialogStep {
        let mut dialog = ApprovalDialog::new(request);
        dialog.quiet = QuietPeriod::over();
        let mut step = DialogStep::Continue;
        for key in chars(keys) {
            assert_eq!(step, DialogStep::Continue, "{keys}");
            step = dialog.accept_keys(&[key]);
        }
        step
    }

    fn screen(dialog: &mut ApprovalDialog<'_>, rows: usize, columns: usize) -> Vec<String> {
        let lines = dialog.screen(WindowSize { rows, columns }, Duration::from_secs(61));
        assert!(lines.len() <= rows);
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn one_key_answers_and_only_that_key() {
        let request = request();
        assert_eq!(pressed(&request, "y"), DialogStep::Done(approved_once()));
        assert_eq!(pressed(&request, "ay"), DialogStep::Done(ApprovalResponse { remember: true, ..approved_once() }));
        assert_eq!(pressed(&request, "any"), DialogStep::Done(approved_once()));
        assert_eq!(pressed(&request, "vqy"), DialogStep::Done(approved_once()));
        assert_eq!(pressed(&request, "e"), DialogStep::Edit(request.args.clone()));
        for nothing in ["Y", "x", "v", "?", "?y", "a", "aa", "vy", "n", "ny"] {
            assert_eq!(pressed(&request, nothing), DialogStep::Continue, "{nothing}");
        }
        for key in [
            DialogKey::Enter,
            DialogKey::Escape,
            DialogKey::Backspace,
            DialogKey::Other,
            DialogKey::Up,
            DialogKey::PageDown,
        ] {
            let mut dialog = ApprovalDialog::new(&request);
            dialog.quiet = QuietPeriod::over();
            assert_eq!(dialog.accept_keys(&[key]), DialogStep::Continue);
        }
    }

    #[test]
    fn early_keys_and_pasted_keys_do_not_answer() {
        let request = request();
        let mut dialog = ApprovalDialog::new(&request);
        assert_eq!(dialog.accept_keys(&chars("y")), DialogStep::Continue);
        assert!(!screen(&mut dialog, 24, 80).concat().contains("[y]"));
        dialog.quiet = QuietPeriod::over();
        assert!(screen(&mut dialog, 24, 80).concat().contains("[y] yes"));
        for pasted in ["yy", "yes", "ny"] {
            assert_eq!(dialog.accept_keys(&chars(pasted)), DialogStep::Continue);
        }
        assert!(matches!(dialog.state, DialogState::Choose));
    }

    #[test]
    fn a_no_has_the_reason_that_was_written() {
        let request = request();
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        dialog.accept_keys(&chars("n"));
        assert_eq!(dialog.accept_keys(&chars("not y\u{7}et")), DialogStep::Continue);
        dialog.accept_keys(&[DialogKey::Backspace]);
        let no = |reason: Option<&str>| {
            DialogStep::Done(ApprovalResponse { reason: reason.map(str::to_owned), ..ApprovalResponse::default() })
        };
        assert_eq!(dialog.accept_keys(&[DialogKey::Enter]), no(Some("not ye")));
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        dialog.accept_keys(&chars("n"));
        assert_eq!(dialog.accept_keys(&[DialogKey::Enter]), no(None));
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        dialog.accept_keys(&chars("n"));
        dialog.accept_keys(&chars(&"long ".repeat(1000)));
        let DialogStep::Done(response) = dialog.accept_keys(&[DialogKey::Enter]) else { panic!("no answer") };
        assert_eq!(response.reason.unwrap().chars().count(), 500);
    }

    #[test]
    fn edited_arguments_are_asked_about_again() {
        let request = request();
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        dialog.set_edited(Ok(json!({"path": "b"})), diff_preview("changed"));
        assert!(screen(&mut dialog, 24, 80).concat().contains("\"path\": \"b\""));
        assert_eq!(dialog.accept_keys(&chars("e")), DialogStep::Edit(json!({"path": "b"})));
        let changed = ApprovalResponse { modified_args: Some(json!({"path": "b"})), ..approved_once() };
        assert_eq!(dialog.accept_keys(&chars("y")), DialogStep::Done(changed));
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        dialog.set_edited(Ok(Value::Null), diff_preview("changed"));
        dialog.accept_keys(&chars("n"));
        assert_eq!(dialog.accept_keys(&chars("y")), DialogStep::Done(approved_once()));
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        dialog.set_edited(Err("bad\u{1b}".to_owned()), diff_preview("changed"));
        assert!(screen(&mut dialog, 24, 80).concat().contains(r"bad\u{1b}"));
        dialog.set_edited(Ok(request.args.clone()), diff_preview("changed"));
        assert_eq!(dialog.accept_keys(&chars("y")), DialogStep::Done(approved_once()));
    }

    #[test]
    fn always_is_offered_only_with_a_rule_to_add() {
        let request = ApprovalRequest { grant: None, ..request() };
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        assert_eq!(dialog.accept_keys(&chars("a")), DialogStep::Continue);
        assert!(screen(&mut dialog, 24, 80).concat().contains("cannot be allowed permanently"));
        assert_eq!(dialog.accept_keys(&chars("y")), DialogStep::Done(approved_once()));
    }

    #[test]
    fn nothing_on_the_screen_is_what_it_does_not_look_like() {
        let request = request();
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        for keys in ["", "v", "?", "a"] {
            dialog.accept_keys(&chars(keys));
            let text = screen(&mut dialog, 50, 80).concat();
            assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
            dialog.accept_keys(&[DialogKey::Escape]);
        }
        assert!(screen(&mut dialog, 50, 80).concat().contains(r"the agent\u{1b}[2J"));
    }

    #[test]
    fn a_diff_has_colours_and_other_previews_have_none() {
        let request = request();
        let style = |request: &ApprovalRequest, text: &str| {
            let lines = ApprovalDialog::new(request).screen(WindowSize { rows: 50, columns: 80 }, Duration::ZERO);
            lines.into_iter().find(|line| line.text.starts_with(text)).unwrap().style
        };
        assert_eq!(style(&request, "+new"), DialogStyle::Added);
        assert_eq!(style(&request, "-old"), DialogStyle::Removed);
        assert_eq!(style(&request, "@@"), DialogStyle::Hunk);
        assert_eq!(style(&request, " same"), DialogStyle::Plain);
        let list = ApprovalRequest { preview: text_preview("- one\n@@ -1 +1 @@\n- two"), ..request };
        assert_eq!(style(&list, "- one"), DialogStyle::Plain);
    }

    #[test]
    fn any_window_shows_the_keys_and_counts_hidden_lines() {
        let preview = (0..100).map(|line| format!("line {line} of many\n")).collect::<String>();
        let request = ApprovalRequest { preview: text_preview(&preview), ..request() };
        for (rows, columns) in [(24, 80), (10, 40), (6, 200), (3, 80), (1, 80), (24, 12), (200, 10)] {
            let mut dialog = ApprovalDialog::new(&request);
            dialog.quiet = QuietPeriod::over();
            let shown = screen(&mut dialog, rows, columns);
            assert!(shown.concat().contains("[y] yes"), "{rows}x{columns}: {shown:?}");
            assert!(!(3..=150).contains(&rows) || shown.concat().contains(" more "), "{rows}x{columns}: {shown:?}");
            assert!(shown.iter().all(|line| line.chars().count() <= columns), "{rows}x{columns}: {shown:?}");
        }
    }

    #[test]
    fn paging_comes_to_every_line_and_stops_at_the_end() {
        let preview = (0..100).map(|line| format!("line {line} of many\n")).collect::<String>();
        let request = ApprovalRequest { preview: text_preview(&preview), ..request() };
        for (rows, columns) in [(4, 80), (8, 30), (10, 40), (24, 80), (60, 80)] {
            for key in [DialogKey::Down, DialogKey::Char(' '), DialogKey::PageDown] {
                let mut dialog = ApprovalDialog::new(&request);
                dialog.quiet = QuietPeriod::over();
                dialog.accept_keys(&chars("v"));
                let mut seen = String::new();
                for _ in 0..200 {
                    seen.push_str(&screen(&mut dialog, rows, columns).join("\n"));
                    dialog.accept_keys(&[key]);
                }
                for line in 0..100 {
                    assert!(seen.contains(&format!("line {line} of many")), "{line} in {rows}x{columns} by {key:?}");
                }
                let end = screen(&mut dialog, rows, columns);
                assert!(end.contains(&"}".to_owned()) && !end.concat().contains("more lines"), "{end:?}");
                dialog.accept_keys(&[DialogKey::PageUp]);
                assert!(screen(&mut dialog, rows, columns).concat().contains("more lines"));
            }
        }
    }

    #[test]
    fn wide_letters_count_twice() {
        let request = ApprovalRequest { preview: text_preview(&"漢".repeat(30)), ..request() };
        let shown = screen(&mut ApprovalDialog::new(&request), 50, 20);
        assert!(shown.contains(&"漢".repeat(10)), "{shown:?}");
    }

    #[test]
    fn keys_count_once_it_was_quiet_and_typing_begins_that_moment_again() {
        let request = request();
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut dialog = ApprovalDialog::new(&request);
        dialog.require_quiet(start);
        // A user types a sentence, slowly: no letter of it is an answer, and each keeps the dialog waiting.
        for (count, letter) in "yes, any day y".chars().enumerate() {
            let now = at(count as u64 * 400);
            dialog.tick(now);
            assert_eq!(dialog.handle_keys(&[DialogKey::Char(letter)], now), DialogStep::Continue, "{letter} {count}");
        }
        let stopped = 13 * 400;
        dialog.tick(at(stopped + 499));
        assert_eq!(dialog.handle_keys(&[DialogKey::Char('y')], at(stopped + 499)), DialogStep::Continue);
        dialog.tick(at(stopped + 999));
        assert_eq!(dialog.handle_keys(&[DialogKey::Char('y')], at(stopped + 999)), DialogStep::Done(approved_once()));
        // A key that means nothing here was meant for something else, and so is what follows it.
        let mut dialog = ApprovalDialog::new(&request);
        dialog.require_quiet(start);
        dialog.tick(at(500));
        for keys in [&[DialogKey::Char('k')] as &[_], &[DialogKey::Char('l'), DialogKey::Char('s')]] {
            assert_eq!(dialog.handle_keys(keys, at(600)), DialogStep::Continue);
            assert_eq!(dialog.handle_keys(&[DialogKey::Char('y')], at(700)), DialogStep::Continue);
            dialog.tick(at(1200));
            assert!(dialog.quiet.is_over());
        }
    }

    #[test]
    fn edited_arguments_are_previewed_before_use() {
        let request = request();
        let mut dialog = ApprovalDialog::new(&request);
        dialog.quiet = QuietPeriod::over();
        dialog.set_edited(Ok(json!({"path": "b"})), diff_preview("changed"));
        let screen = dialog.screen(WindowSize { rows: 40, columns: 80 }, Duration::from_secs(60));
        let found = |text: &str| screen.iter().find(|line| line.text == text).map(|line| line.style);
        assert_eq!((found("+changed"), found("+new")), (Some(DialogStyle::Added), None));
    }
}
