//! What a person is shown of a request, and what their keys mean.
//!
//! Nothing is approved but by its own key on a screen that says what it does: there is no default, and what was pasted,
//! typed ahead or typed for something else is not an answer. Keys count once it was quiet for a moment, and a key that
//! means nothing here begins another such moment. What does not fit is never left out in silence.
//!
//! Not here: the terminal and its clock (`terminal.rs`). This only knows keys, lines, sizes and given times.

use std::time::{Duration, Instant};

use ringfence_kernel::{ApprovalRequest, ApprovalResponse, Assurance, GRANT_TIME, visible_line};
use serde_json::Value;
use unicode_width::UnicodeWidthChar as _;

use crate::approvals_text::lines_of;

/// How long no key may come before keys count: whoever was typing something else stops first.
const SETTLE: Duration = Duration::from_millis(500);

/// A reason is a sentence or two.
const LONGEST_REASON: usize = 500;

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
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

/// What is to be done after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Stay,
    /// Let the person edit these arguments, and say what came of it by `edited`.
    Edit(Value),
    Done(ApprovalResponse),
}

/// How large the window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Title,
    Faint,
    Added,
    Removed,
    Hunk,
    Prompt,
}

/// A line that fits the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) style: Style,
    pub(crate) text: String,
}

/// A request on a screen.
#[derive(Debug)]
pub(crate) struct Dialog<'a> {
    request: &'a ApprovalRequest,
    state: State,
    /// Whether keys count yet.
    ready: bool,
    /// Since when there was no key, while they do not.
    quiet_since: Option<Instant>,
    /// What came of the last key, until the next one.
    note: Option<String>,
    /// The body as it fits a window so wide. Arguments can be long, and the time is drawn every second.
    fitted: Option<(usize, Vec<Line>)>,
}

#[derive(Debug)]
enum State {
    Choose,
    Reason(String),
    Always,
    View {
        top: usize,
    },
    Help,
    /// With what the call would do then.
    Edited(Value, String),
}

impl<'a> Dialog<'a> {
    pub(crate) fn new(request: &'a ApprovalRequest) -> Self {
        Self { request, state: State::Choose, ready: false, quiet_since: None, note: None, fitted: None }
    }

    /// From here on it has to be quiet for a moment before keys count.
    pub(crate) fn unsettle(&mut self, now: Instant) {
        self.ready = false;
        self.quiet_since = Some(now);
    }

    /// Lets keys count, and shows them, once it was quiet for long enough.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.quiet_since.is_some_and(|since| now.saturating_duration_since(since) >= SETTLE) {
            self.ready = true;
        }
    }

    /// As `type_in`, at a time.
    pub(crate) fn typed(&mut self, keys: &[Key], now: Instant) -> Step {
        if !self.ready {
            self.unsettle(now);
            return Step::Stay;
        }
        let chose = matches!(self.state, State::Choose);
        let step = self.type_in(keys);
        // Whoever types what means nothing here means something else.
        if chose && matches!(self.state, State::Choose) && step == Step::Stay && self.note.is_none() {
            self.unsettle(now);
        }
        step
    }

    /// What came in at once. Where one key is an answer, several at once are a paste and mean nothing.
    fn type_in(&mut self, keys: &[Key]) -> Step {
        let writes = matches!(self.state, State::Reason(_));
        match keys {
            _ if !self.ready => Step::Stay,
            [key] => self.press(*key),
            _ if writes => {
                let mut steps = keys.iter().map(|key| self.press(*key));
                steps.find(|step| *step != Step::Stay).unwrap_or(Step::Stay)
            }
            _ => Step::Stay,
        }
    }

    fn press(&mut self, key: Key) -> Step {
        self.note = None;
        match &mut self.state {
            State::Choose => self.choose(key),
            State::Reason(reason) => match key {
                Key::Enter => Step::Done(ApprovalResponse {
                    reason: Some(std::mem::take(reason)).filter(|reason| !reason.trim().is_empty()),
                    ..ApprovalResponse::default()
                }),
                Key::Escape => self.show(State::Choose),
                Key::Backspace => {
                    reason.pop();
                    Step::Stay
                }
                Key::Char(c) if !c.is_control() && reason.chars().count() < LONGEST_REASON => {
                    reason.push(c);
                    Step::Stay
                }
                _ => Step::Stay,
            },
            State::Always => match key {
                Key::Char('y') => Step::Done(ApprovalResponse { remember: true, ..yes() }),
                Key::Char('n') | Key::Escape => self.show(State::Choose),
                _ => Step::Stay,
            },
            State::View { top } => {
                const PAGE: usize = 10;
                match key {
                    Key::Char('v' | 'q') | Key::Escape => return self.show(State::Choose),
                    Key::Char('j') | Key::Down | Key::Enter => *top += 1,
                    Key::Char('k') | Key::Up => *top = top.saturating_sub(1),
                    Key::Char(' ') | Key::PageDown => *top += PAGE,
                    Key::Char('b') | Key::PageUp => *top = top.saturating_sub(PAGE),
                    _ => {}
                }
                Step::Stay
            }
            State::Help => self.show(State::Choose),
            State::Edited(args, _) => match key {
                Key::Char('y') => Step::Done(ApprovalResponse { modified_args: Some(std::mem::take(args)), ..yes() }),
                Key::Char('e') => Step::Edit(args.clone()),
                Key::Char('n') | Key::Escape => self.show(State::Choose),
                _ => Step::Stay,
            },
        }
    }

    fn choose(&mut self, key: Key) -> Step {
        match key {
            Key::Char('y') => Step::Done(yes()),
            Key::Char('n') => self.show(State::Reason(String::new())),
            Key::Char('e') => Step::Edit(self.request.args.clone()),
            Key::Char('a') if self.request.grant.is_some() => self.show(State::Always),
            Key::Char('a') => self.tell("this cannot be allowed for good; `y` allows it once"),
            Key::Char('v') => self.show(State::View { top: 0 }),
            Key::Char('?') => self.show(State::Help),
            _ => Step::Stay,
        }
    }

    /// What the editor left behind, and what the call would do with it.
    pub(crate) fn edited(&mut self, left: Result<Value, String>, preview: String) {
        self.fitted = None;
        match left {
            Ok(args) if args == self.request.args => {
                self.state = State::Choose;
                self.note = Some("the arguments are as they were".to_owned());
            }
            Ok(args) => self.state = State::Edited(args, preview),
            Err(problem) => self.note = Some(visible_line(&problem)),
        }
    }

    fn show(&mut self, state: State) -> Step {
        self.fitted = None;
        self.state = state;
        Step::Stay
    }

    fn tell(&mut self, note: &str) -> Step {
        self.note = Some(note.to_owned());
        Step::Stay
    }

    /// The whole screen, with what is left of the time to answer.
    pub(crate) fn screen(&mut self, size: Size, left: Duration) -> Vec<Line> {
        let width = size.columns.max(8);
        let body = match self.fitted.take() {
            Some((same, body)) if same == width => body,
            _ => fitted(self.body(), width),
        };
        let mut foot = fitted(self.foot(left), width);
        foot.truncate(size.rows);
        let room = size.rows - foot.len();
        let top = match &mut self.state {
            // Not past the end, where there is nothing to be seen.
            State::View { top } => {
                *top = (*top).min(body.len().saturating_sub(room.max(1)));
                *top
            }
            _ => 0,
        };
        let hidden = (body.len() - top).saturating_sub(room);
        let mut lines: Vec<Line> = body.iter().skip(top).take(room).cloned().collect();
        self.fitted = Some((width, body));
        if hidden > 0 && lines.pop().is_some() {
            let how = if matches!(self.state, State::View { .. }) { "space goes on" } else { "`v` shows all" };
            let text = format!("… {} more lines; {how}", hidden + 1);
            lines.extend(fitted(vec![line(Style::Prompt, text)], width).into_iter().take(1));
        }
        lines.extend(foot);
        lines
    }

    fn body(&self) -> Vec<Line> {
        match &self.state {
            State::Help => HELP.iter().map(|text| line(Style::Plain, (*text).to_owned())).collect(),
            State::Always => self.rule(),
            State::Edited(args, shown) => {
                let mut lines = self.head();
                lines.extend(preview(shown));
                lines.push(line(Style::Plain, String::new()));
                lines.push(line(Style::Title, "the arguments, as you changed them:".to_owned()));
                lines.extend(pretty(args));
                lines
            }
            State::Choose | State::Reason(_) | State::View { .. } => {
                let mut lines = self.head();
                lines.extend(preview(&self.request.preview));
                lines.push(line(Style::Plain, String::new()));
                lines.push(line(Style::Faint, "the arguments, in the words of whoever calls:".to_owned()));
                lines.extend(pretty(&self.request.args));
                lines
            }
        }
    }

    /// Who wants what, and why that is asked.
    fn head(&self) -> Vec<Line> {
        let ApprovalRequest { principal, agent, tool, reason, rule, layer, assurance, .. } = self.request;
        let agent = agent.as_deref().map(|agent| format!(", agent `{}`,", visible_line(agent))).unwrap_or_default();
        let mut lines = vec![
            line(Style::Title, format!("`{}`{agent} wants to call `{}`", visible_line(principal), visible_line(tool))),
            line(Style::Plain, visible_line(reason)),
            line(Style::Faint, format!("asked by the rule `{}` ({})", visible_line(rule), layer.name())),
        ];
        if *assurance == Assurance::Person {
            lines.push(line(Style::Faint, "only a person's own answer counts here".to_owned()));
        }
        lines.push(line(Style::Plain, String::new()));
        lines
    }

    fn rule(&self) -> Vec<Line> {
        let days = GRANT_TIME.as_secs() / (24 * 60 * 60);
        let rule = self.request.grant.as_deref().unwrap_or_default();
        vec![
            line(Style::Title, "this rule would be added:".to_owned()),
            line(Style::Plain, visible_line(rule)),
            line(Style::Plain, String::new()),
            line(Style::Plain, format!("It holds for {days} days, in this directory and no other.")),
            line(Style::Plain, "`ringfence policy grants revoke ID` takes it back.".to_owned()),
        ]
    }

    fn foot(&self, left: Duration) -> Vec<Line> {
        let seconds = left.as_secs();
        let time = format!("{}:{:02} left", seconds / 60, seconds % 60);
        let keys = match &self.state {
            _ if !self.ready => time,
            State::Choose => {
                format!("[y] yes  [n] no  [e] edit  [a] always  [v] view all  [?] help   {time}")
            }
            State::Reason(reason) => format!("no, because (Enter sends, Esc goes back): {}", visible_line(reason)),
            State::Always => format!("allow this for good?  [y] yes  [n] back   {time}"),
            State::View { .. } => format!("[space] on  [b] back up  [j][k] a line  [q] done   {time}"),
            State::Help => format!("any key goes back   {time}"),
            State::Edited(..) => format!("call it with these arguments?  [y] yes  [n] drop them  [e] edit   {time}"),
        };
        let note = self.note.iter().map(|note| line(Style::Prompt, note.clone()));
        note.chain([line(Style::Prompt, keys)]).collect()
    }
}

const HELP: &[&str] = &[
    "y  allow this call, once, as it is shown",
    "n  refuse it, with a reason that the caller is told",
    "e  change the arguments in your editor; you see what they would do before they are used",
    "a  allow the same from now on; the exact rule is shown first",
    "v  page through everything that is shown",
    "",
    "If the target changes before you answer, the call fails and nothing is touched.",
    "Characters that cannot be seen are written as \\u{…}.",
];

fn yes() -> ApprovalResponse {
    ApprovalResponse { approved: true, ..ApprovalResponse::default() }
}

fn line(style: Style, text: String) -> Line {
    Line { style, text }
}

fn pretty(args: &Value) -> Vec<Line> {
    let text = serde_json::to_string_pretty(args).unwrap_or_default();
    lines_of(&text).into_iter().map(|text| line(Style::Plain, text)).collect()
}

/// The preview; a diff has its colours.
fn preview(text: &str) -> Vec<Line> {
    let lines = lines_of(text.trim_end_matches('\n'));
    let is_diff = lines.iter().any(|line| line.starts_with("@@ "));
    let style = |line: &str| match line.as_bytes().first() {
        Some(b'+') if is_diff => Style::Added,
        Some(b'-') if is_diff => Style::Removed,
        Some(b'@') if is_diff => Style::Hunk,
        _ => Style::Plain,
    };
    lines.into_iter().map(|text| line(style(&text), text)).collect()
}

/// Lines that are wider than the window go on in the next.
fn fitted(lines: Vec<Line>, width: usize) -> Vec<Line> {
    let mut fitted = Vec::new();
    for Line { style, text } in lines {
        let (mut part, mut used) = (String::new(), 0);
        for c in text.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > width {
                fitted.push(line(style, std::mem::take(&mut part)));
                used = 0;
            }
            part.push(c);
            used += wide;
        }
        fitted.push(line(style, part));
    }
    fitted
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use ringfence_kernel::{ApprovalRequest, ApprovalResponse, Assurance, Layer};
    use serde_json::{Value, json};

    use super::{Dialog, Key, Size, State, Step, Style, yes};

    const PREVIEW: &str = "--- a\n+++ a\n@@ -1 +1 @@\n-old\n+changed\n";

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
            layer: Layer::Preset,
            assurance: Assurance::Relayed,
            summary: String::new(),
            secret: false,
            preview: text("--- a\n+++ a\n@@ -1 +1 @@\n-old\n+new\u{202e}\n same\n"),
            fingerprint: text("f"),
            grant: Some(text("{ decision = \"allow\" }")),
            suspended: false,
            opened: SystemTime::UNIX_EPOCH,
            expires: SystemTime::UNIX_EPOCH,
        }
    }

    fn chars(text: &str) -> Vec<Key> {
        text.chars().map(Key::Char).collect()
    }

    /// What comes of these keys, each by itself, in a dialog that may be answered.
    fn pressed(request: &ApprovalRequest, keys: &str) -> Step {
        let mut dialog = Dialog::new(request);
        dialog.ready = true;
        let mut step = Step::Stay;
        for key in chars(keys) {
            assert_eq!(step, Step::Stay, "{keys}");
            step = dialog.type_in(&[key]);
        }
        step
    }

    fn screen(dialog: &mut Dialog<'_>, rows: usize, columns: usize) -> Vec<String> {
        let lines = dialog.screen(Size { rows, columns }, Duration::from_secs(61));
        assert!(lines.len() <= rows);
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn one_key_answers_and_only_that_key() {
        let request = request();
        assert_eq!(pressed(&request, "y"), Step::Done(yes()));
        assert_eq!(pressed(&request, "ay"), Step::Done(ApprovalResponse { remember: true, ..yes() }));
        assert_eq!(pressed(&request, "any"), Step::Done(yes()));
        assert_eq!(pressed(&request, "vqy"), Step::Done(yes()));
        assert_eq!(pressed(&request, "e"), Step::Edit(request.args.clone()));
        for nothing in ["Y", "x", "v", "?", "?y", "a", "aa", "vy", "n", "ny"] {
            assert_eq!(pressed(&request, nothing), Step::Stay, "{nothing}");
        }
        for key in [Key::Enter, Key::Escape, Key::Backspace, Key::Other, Key::Up, Key::PageDown] {
            let mut dialog = Dialog::new(&request);
            dialog.ready = true;
            assert_eq!(dialog.type_in(&[key]), Step::Stay);
        }
    }

    #[test]
    fn keys_before_the_dialog_is_ready_and_several_at_once_are_no_answer() {
        let request = request();
        let mut dialog = Dialog::new(&request);
        assert_eq!(dialog.type_in(&chars("y")), Step::Stay);
        assert!(!screen(&mut dialog, 24, 80).concat().contains("[y]"));
        dialog.ready = true;
        assert!(screen(&mut dialog, 24, 80).concat().contains("[y] yes"));
        for pasted in ["yy", "yes", "ny"] {
            assert_eq!(dialog.type_in(&chars(pasted)), Step::Stay);
        }
        assert!(matches!(dialog.state, State::Choose));
    }

    #[test]
    fn a_no_has_the_reason_that_was_written() {
        let request = request();
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.type_in(&chars("n"));
        assert_eq!(dialog.type_in(&chars("not y\u{7}et")), Step::Stay);
        dialog.type_in(&[Key::Backspace]);
        let no = |reason: Option<&str>| {
            Step::Done(ApprovalResponse { reason: reason.map(str::to_owned), ..ApprovalResponse::default() })
        };
        assert_eq!(dialog.type_in(&[Key::Enter]), no(Some("not ye")));
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.type_in(&chars("n"));
        assert_eq!(dialog.type_in(&[Key::Enter]), no(None));
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.type_in(&chars("n"));
        dialog.type_in(&chars(&"long ".repeat(1000)));
        let Step::Done(response) = dialog.type_in(&[Key::Enter]) else { panic!("no answer") };
        assert_eq!(response.reason.unwrap().chars().count(), 500);
    }

    #[test]
    fn edited_arguments_are_asked_about_again() {
        let request = request();
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.edited(Ok(json!({"path": "b"})), PREVIEW.to_owned());
        assert!(screen(&mut dialog, 24, 80).concat().contains("\"path\": \"b\""));
        assert_eq!(dialog.type_in(&chars("e")), Step::Edit(json!({"path": "b"})));
        let changed = ApprovalResponse { modified_args: Some(json!({"path": "b"})), ..yes() };
        assert_eq!(dialog.type_in(&chars("y")), Step::Done(changed));
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.edited(Ok(Value::Null), PREVIEW.to_owned());
        dialog.type_in(&chars("n"));
        assert_eq!(dialog.type_in(&chars("y")), Step::Done(yes()));
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.edited(Err("bad\u{1b}".to_owned()), PREVIEW.to_owned());
        assert!(screen(&mut dialog, 24, 80).concat().contains(r"bad\u{1b}"));
        dialog.edited(Ok(request.args.clone()), PREVIEW.to_owned());
        assert_eq!(dialog.type_in(&chars("y")), Step::Done(yes()));
    }

    #[test]
    fn without_a_rule_to_add_there_is_no_always() {
        let request = ApprovalRequest { grant: None, ..request() };
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        assert_eq!(dialog.type_in(&chars("a")), Step::Stay);
        assert!(screen(&mut dialog, 24, 80).concat().contains("cannot be allowed for good"));
        assert_eq!(dialog.type_in(&chars("y")), Step::Done(yes()));
    }

    #[test]
    fn nothing_on_the_screen_is_what_it_does_not_look_like() {
        let request = request();
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        for keys in ["", "v", "?", "a"] {
            dialog.type_in(&chars(keys));
            let text = screen(&mut dialog, 50, 80).concat();
            assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
            dialog.type_in(&[Key::Escape]);
        }
        assert!(screen(&mut dialog, 50, 80).concat().contains(r"the agent\u{1b}[2J"));
    }

    #[test]
    fn a_diff_has_colours_and_other_previews_have_none() {
        let request = request();
        let style = |request: &ApprovalRequest, text: &str| {
            let lines = Dialog::new(request).screen(Size { rows: 50, columns: 80 }, Duration::ZERO);
            lines.into_iter().find(|line| line.text.starts_with(text)).unwrap().style
        };
        assert_eq!(style(&request, "+new"), Style::Added);
        assert_eq!(style(&request, "-old"), Style::Removed);
        assert_eq!(style(&request, "@@"), Style::Hunk);
        assert_eq!(style(&request, " same"), Style::Plain);
        let list = ApprovalRequest { preview: "- one\n- two".to_owned(), ..request };
        assert_eq!(style(&list, "- one"), Style::Plain);
    }

    #[test]
    fn whatever_the_window_keys_are_shown_and_what_is_left_out_is_counted() {
        let preview = (0..100).map(|line| format!("line {line} of many\n")).collect::<String>();
        let request = ApprovalRequest { preview, ..request() };
        for (rows, columns) in [(24, 80), (10, 40), (6, 200), (3, 80), (1, 80), (24, 12), (200, 10)] {
            let mut dialog = Dialog::new(&request);
            dialog.ready = true;
            let shown = screen(&mut dialog, rows, columns);
            assert!(shown.concat().contains("[y] yes"), "{rows}x{columns}: {shown:?}");
            assert!(!(3..=150).contains(&rows) || shown.concat().contains(" more "), "{rows}x{columns}: {shown:?}");
            assert!(shown.iter().all(|line| line.chars().count() <= columns), "{rows}x{columns}: {shown:?}");
        }
    }

    #[test]
    fn paging_comes_to_every_line_and_stops_at_the_end() {
        let preview = (0..100).map(|line| format!("line {line} of many\n")).collect::<String>();
        let request = ApprovalRequest { preview, ..request() };
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.type_in(&chars("v"));
        let mut seen = String::new();
        for _ in 0..200 {
            seen.push_str(&screen(&mut dialog, 10, 40).join("\n"));
            dialog.type_in(&[Key::Down]);
        }
        for line in 0..100 {
            assert!(seen.contains(&format!("line {line} of many")), "{line}");
        }
        let end = screen(&mut dialog, 10, 40);
        assert!(end.contains(&"}".to_owned()) && !end.concat().contains("more lines"), "{end:?}");
        dialog.type_in(&[Key::PageUp]);
        assert!(screen(&mut dialog, 10, 40).concat().contains("more lines"));
    }

    #[test]
    fn wide_letters_count_twice() {
        let request = ApprovalRequest { preview: "漢".repeat(30), ..request() };
        let shown = screen(&mut Dialog::new(&request), 50, 20);
        assert!(shown.contains(&"漢".repeat(10)), "{shown:?}");
    }

    #[test]
    fn keys_count_once_it_was_quiet_and_typing_begins_that_moment_again() {
        let request = request();
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut dialog = Dialog::new(&request);
        dialog.unsettle(start);
        // Somebody writes a sentence, slowly: no letter of it is an answer, and each keeps the dialog waiting.
        for (count, letter) in "yes, any day y".chars().enumerate() {
            let now = at(count as u64 * 400);
            dialog.tick(now);
            assert_eq!(dialog.typed(&[Key::Char(letter)], now), Step::Stay, "{letter} {count}");
        }
        let stopped = 13 * 400;
        dialog.tick(at(stopped + 499));
        assert_eq!(dialog.typed(&[Key::Char('y')], at(stopped + 499)), Step::Stay);
        dialog.tick(at(stopped + 999));
        assert_eq!(dialog.typed(&[Key::Char('y')], at(stopped + 999)), Step::Done(yes()));
        // A key that means nothing here was meant for something else, and so is what follows it.
        let mut dialog = Dialog::new(&request);
        dialog.unsettle(start);
        dialog.tick(at(500));
        for keys in [&[Key::Char('k')] as &[_], &[Key::Char('l'), Key::Char('s')]] {
            assert_eq!(dialog.typed(keys, at(600)), Step::Stay);
            assert_eq!(dialog.typed(&[Key::Char('y')], at(700)), Step::Stay);
            dialog.tick(at(1200));
            assert!(dialog.ready);
        }
    }

    #[test]
    fn what_changed_arguments_would_do_is_shown_before_they_are_used() {
        let request = request();
        let mut dialog = Dialog::new(&request);
        dialog.ready = true;
        dialog.edited(Ok(json!({"path": "b"})), PREVIEW.to_owned());
        let screen = dialog.screen(Size { rows: 40, columns: 80 }, Duration::from_secs(60));
        let found = |text: &str| screen.iter().find(|line| line.text == text).map(|line| line.style);
        assert_eq!((found("+changed"), found("+new")), (Some(Style::Added), None));
    }
}
