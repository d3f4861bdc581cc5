//! Approval at a terminal: the dialog in a real pseudo-terminal, key by key.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use ringfence::store::SqliteStore;
use ringfence_kernel::ApprovalStore as _;
use ringfence_testkit::patience::PATIENCE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

use crate::site::{CliOutput, PROGRAM, TestSite, cli_output};
use crate::workflow_runs::TestRun;

/// The last line of the dialog.
pub(crate) const ASKED: &str = "[?] help";

/// A terminal with the program on it. Its standard output is a pipe, as in a script.
pub(crate) struct TestTerminal {
    pub(crate) master: File,
    slave: File,
    pub(crate) child: Child,
    /// Output to the screen.
    seen: String,
    /// The beginning of a character, of which the rest was not read yet.
    partial: Vec<u8>,
    /// How far it was looked at.
    read_to: usize,
}

/// An unused terminal.
pub(crate) fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    resize(&slave, 24, 80);
    (File::from(master), slave)
}

fn resize(terminal: &File, rows: u16, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

impl TestTerminal {
    pub(crate) fn new(site: &TestSite, arguments: &[&str]) -> Self {
        Self::in_terminal(terminal(), site, arguments)
    }

    /// A call with the preset `ask`.
    fn call(site: &TestSite, tool: &str, arguments: &Value) -> Self {
        Self::new(site, &["call", tool, &arguments.to_string()])
    }

    fn in_terminal(terminal: (File, File), site: &TestSite, arguments: &[&str]) -> Self {
        Self::start(terminal, Self::command(site, arguments))
    }

    pub(crate) fn command(site: &TestSite, arguments: &[&str]) -> Command {
        // The program gets a session of its own, and the terminal on its standard input as the one of that session.
        let mut command = site.program_at_terminal("setsid");
        command.arg("--ctty").arg(PROGRAM).args(arguments).arg("--workspace").arg(&site.workspace);
        command.env("USER", "tess").env("EDITOR", site.root().join("editor"));
        command
    }

    fn start((master, slave): (File, File), mut command: Command) -> Self {
        let child =
            command.stdin(slave.try_clone().unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { master, slave, child, seen: String::new(), partial: Vec::new(), read_to: 0 }
    }

    /// The program with everything that it prints on the terminal.
    pub(crate) fn all_on_screen((master, slave): (File, File), mut command: Command) -> Self {
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Self { master, slave, child, seen: String::new(), partial: Vec::new(), read_to: 0 }
    }

    /// Reads the screen until this is on it, after what was waited for before.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) {
        self.until_one_of(&[text]);
    }

    /// Reads the screen until one of these is on it: the one that comes first.
    #[track_caller]
    pub(crate) fn until_one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let unread = &self.seen[self.read_to..];
            let found = texts.iter().filter_map(|text| Some((unread.find(text)?, *text))).min();
            if let Some((at, text)) = found {
                self.read_to += at + text.len();
                return text;
            }
            assert!(Instant::now() < deadline, "none of {texts:?} on the screen: {unread:?}");
            let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
            if fds[0].revents().contains(PollFlags::IN) {
                let mut bytes = [0; 4096];
                let count = self.master.read(&mut bytes).unwrap();
                self.partial.extend(&bytes[..count]);
                self.decode_partial();
            }
        }
    }

    /// Takes what was read as text, but for a character of which only a part came yet.
    fn decode_partial(&mut self) {
        let incomplete = match std::str::from_utf8(&self.partial) {
            Err(error) if error.error_len().is_none() => self.partial.split_off(error.valid_up_to()),
            _ => Vec::new(),
        };
        self.seen.push_str(&String::from_utf8_lossy(&self.partial));
        self.partial = incomplete;
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// The end of the program. The terminal must be as it was.
    #[track_caller]
    pub(crate) fn end(self) -> CliOutput {
        let said = cli_output(self.child.wait_with_output().unwrap());
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        said
    }
}

/// Approves a request at a terminal.
pub(crate) fn approve_at_terminal(site: &TestSite, request: &str) {
    let mut terminal = TestTerminal::new(site, &["approvals", "answer", request]);
    terminal.until(ASKED);
    terminal.press("y");
    assert_eq!(terminal.end().code, Some(0));
}

fn site() -> TestSite {
    let site = TestSite::new();
    site.write("notes.md", "old\n");
    site
}

fn overwrite(path: &str) -> Value {
    json!({"path": path, "content": "new\n"})
}

/// An editor that does this to the file it is given.
fn editor(site: &TestSite, script: &str) {
    let path = site.root().join("editor");
    ringfence_testkit::executable::write_script(&path, &format!("#!/bin/sh\n{script}\n"));
}

fn last_record(site: &TestSite, event: &str) -> Value {
    let shown = site.run(&["audit", "show", "--json"]).out;
    let mut records = shown.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.rfind(|record| record["event"] == event).unwrap()
}

#[test]
fn a_yes_runs_the_call_and_the_record_says_whose_it_was() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until("`command line` wants to call `write_file`");
    terminal.until("this would overwrite `notes.md`");
    terminal.until("preset ask");
    terminal.until(ASKED);
    assert_eq!(site.read("notes.md"), "old\n");
    terminal.press("y");
    terminal.until("write_file: approved");
    let said = terminal.end();
    assert_eq!(said.value()["path"], "notes.md");
    assert_eq!((site.read("notes.md").as_str(), said.err.as_str()), ("new\n", ""));
    let begin = last_record(&site, "begin");
    assert_eq!((&begin["approver"], &begin["assurance"]), (&json!("tess at the terminal"), &json!("person")));
    assert!(SqliteStore::new(&site.state).pending(std::time::SystemTime::now()).unwrap().is_empty());
}

#[test]
fn a_no_is_told_with_its_reason() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "delete_file", &json!({"path": "notes.md"}));
    terminal.until(ASKED);
    terminal.press("n");
    terminal.until("reason (optional");
    terminal.press("keep it, plaese\x7f\x7f\x7f\x7fease");
    terminal.until("keep it, please");
    terminal.press("\r");
    terminal.until("delete_file: denied");
    let said = terminal.end();
    assert_eq!(said.error(), "APPROVAL_DENIED");
    let message = said.reply()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "denied by the user: \"keep it, please\" (delete `notes.md`)");
    assert_eq!(site.read("notes.md"), "old\n");
}

#[test]
fn an_unbound_key_does_not_answer() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    terminal.press("yes\r");
    // The time goes on, so the dialog is still there.
    terminal.until(ASKED);
    terminal.press("?");
    terminal.until("press any key to go back");
    terminal.press("y");
    terminal.until(ASKED);
    assert_eq!(site.read("notes.md"), "old\n");
    terminal.press("y");
    terminal.until("approved");
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn typed_ahead_keys_do_not_answer() {
    let site = site();
    let (mut master, slave) = terminal();
    master.write_all(b"y").unwrap();
    let arguments = overwrite("notes.md").to_string();
    let mut terminal = TestTerminal::in_terminal((master, slave), &site, &["call", "write_file", &arguments]);
    terminal.until(ASKED);
    terminal.press("n");
    terminal.until("reason (optional");
    terminal.press("\r");
    assert_eq!(terminal.end().error(), "APPROVAL_DENIED");
    assert_eq!(site.read("notes.md"), "old\n");
}

#[test]
fn arguments_are_edited_shown_and_asked_about_before_they_are_used() {
    let site = site();
    editor(&site, r#"test "$(stat -c %a "$1")" = 600 && sed -i 's/new/mine/' "$1""#);
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    terminal.press("e");
    // What they would do comes before what they are.
    terminal.until("-old");
    terminal.until("+mine");
    terminal.until("edited by you");
    terminal.until(r#""content": "mine\n""#);
    terminal.until("call with these arguments?");
    assert_eq!(site.read("notes.md"), "old\n");
    terminal.press("y");
    let said = terminal.end();
    assert_eq!((said.reply()["modified"].clone(), site.read("notes.md").as_str()), (json!(true), "mine\n"));
    let left = std::fs::read_dir(&site.state).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_str().unwrap().starts_with("arguments")));
}

#[test]
fn a_program_that_was_edited_runs_as_it_was_edited() {
    let site = site();
    editor(&site, r#"sed -i 's/echo one/echo two/' "$1""#);
    let config = site.root().join("user.toml");
    std::fs::write(&config, "[[rules]]\ndecision = \"ask\"\ntool = \"run_code\"\n").unwrap();
    let arguments = json!({"language": "bash", "code": "echo one"}).to_string();
    let mut terminal =
        TestTerminal::new(&site, &["--config", config.to_str().unwrap(), "call", "run_code", &arguments]);
    terminal.until(ASKED);
    terminal.press("e");
    terminal.until("call with these arguments?");
    terminal.press("y");
    let said = terminal.end();
    assert_eq!((&said.reply()["modified"], &said.value()["stdout"]), (&json!(true), &json!("two\n")), "{said:?}");
}

#[test]
fn edited_text_must_be_valid_arguments() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    for (script, note) in [
        ("echo '{' > \"$1\"", "invalid JSON"),
        ("echo '[1]' > \"$1\"", "the arguments must be a JSON object"),
        ("exit 1", "the editor failed"),
        ("true", "the arguments are unchanged"),
    ] {
        editor(&site, script);
        terminal.press("e");
        terminal.until(note);
        terminal.until(ASKED);
    }
    terminal.press("y");
    terminal.until("approved");
    assert_eq!(terminal.end().reply().get("modified"), None);
    assert_eq!(site.read("notes.md"), "new\n");
}

#[test]
fn edited_arguments_that_leave_the_workspace_are_refused() {
    let site = site();
    for outside in ["../outside/secret", "/etc/passwd"] {
        editor(&site, &format!(r#"sed -i 's|notes.md|{outside}|' "$1""#));
        let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
        terminal.until(ASKED);
        terminal.press("e");
        terminal.until("call with these arguments?");
        terminal.press("y");
        assert_eq!(terminal.end().error(), "INVALID_PATH");
    }
    assert_eq!(std::fs::read_to_string(site.outside.join("secret")).unwrap(), "SECRET\n");
    assert_eq!(site.read("notes.md"), "old\n");
}

#[test]
fn always_shows_its_rule_and_holds_until_it_is_revoked() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    terminal.press("a");
    terminal.until(r#"decision = "allow", tool = "write_file", effect = "overwrite""#);
    terminal.until("add this rule?");
    terminal.press("y");
    terminal.until("approved");
    assert_eq!(terminal.end().code, Some(0));
    // The same is not asked about again, nor anything else allowed.
    assert_eq!(site.run(&["call", "write_file", &overwrite("notes.md").to_string()]).code, Some(0));
    site.write("other.md", "old\n");
    assert_eq!(site.run(&["call", "write_file", &overwrite("other.md").to_string()]).error(), "APPROVAL_DENIED");
    assert_eq!(site.run(&["call", "delete_file", r#"{"path":"notes.md"}"#]).error(), "APPROVAL_DENIED");
    let listed = site.run(&["policy", "grants"]).out;
    assert!(listed.contains("by tess at the terminal") && listed.contains(r#"path = "./notes.md""#), "{listed}");
    let id = listed.split_whitespace().next().unwrap().to_owned();
    assert!(site.run(&["policy", "show"]).out.contains(&id));
    let json: Value = serde_json::from_str(&site.run(&["policy", "grants", "list", "--json"]).out).unwrap();
    assert_eq!(json[0]["id"], json!(id));
    assert_eq!(site.run(&["policy", "grants", "revoke", &id]).code, Some(0));
    assert_eq!(site.run(&["policy", "grants", "revoke", &id]).code, Some(1));
    assert_eq!(site.run(&["call", "write_file", &overwrite("notes.md").to_string()]).error(), "APPROVAL_DENIED");
}

#[test]
fn a_grant_is_none_in_another_workspace() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    terminal.press("a");
    terminal.until("add this rule?");
    terminal.press("y");
    assert_eq!(terminal.end().code, Some(0));
    std::fs::write(site.outside.join("notes.md"), "old\n").unwrap();
    let mut command = site.program_without_arguments();
    command.args(["call", "write_file", &overwrite("notes.md").to_string(), "--workspace"]).arg(&site.outside);
    assert_eq!(cli_output(command.output().unwrap()).error(), "APPROVAL_DENIED");
}

#[test]
fn a_secret_is_never_granted() {
    let site = site();
    site.write(".env", "KEY=1\n");
    let mut terminal = TestTerminal::call(&site, "read_file", &json!({"path": ".env"}));
    terminal.until("requires an answer from a person");
    terminal.until(ASKED);
    terminal.press("a");
    terminal.until("this cannot be allowed permanently");
    terminal.press("y");
    assert_eq!(terminal.end().value()["content"], "KEY=1\n");
    assert_eq!(site.run(&["policy", "grants"]).out, "");
}

const TIMED_OUT: &str = "the request timed out";

fn set_answer_timeout(site: &TestSite, time: &str) {
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    let config = format!("[limits]\nmax_approval_duration = \"{time}\"\n");
    std::fs::write(site.config.join("ringfence/config.toml"), config).unwrap();
}

#[test]
fn an_unanswered_request_is_denied() {
    let site = site();
    for seconds in [1, 4, 16, 64] {
        set_answer_timeout(&site, &format!("{seconds}s"));
        let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
        let first = terminal.until_one_of(&[ASKED, TIMED_OUT]);
        if first == ASKED {
            terminal.until(TIMED_OUT);
        }
        let said = terminal.end();
        assert_eq!(said.error(), "APPROVAL_DENIED");
        assert_eq!(site.read("notes.md"), "old\n");
        // On a busy machine the time can be over before the dialog is drawn.
        if first == ASKED {
            return;
        }
    }
    panic!("the dialog was never drawn");
}

#[test]
fn a_window_that_gets_smaller_still_shows_what_can_be_pressed() {
    let site = site();
    let content = (1..100).map(|line| format!("line {line}\n")).collect::<String>();
    let mut terminal = TestTerminal::call(&site, "write_file", &json!({"path": "notes.md", "content": content}));
    terminal.until(ASKED);
    resize(&terminal.slave, 8, 30);
    terminal.until("more lines; `v` shows");
    terminal.until("[v] view");
    terminal.press("v");
    terminal.until("space cont");
    // The arguments come after the preview, some pages on.
    let (before, mut pages) = (terminal.read_to, 0);
    while !terminal.seen[before..].contains(r#""path": "notes.md""#) {
        terminal.press(" ");
        terminal.until("[space] next");
        pages += 1;
        assert!(pages < 100, "no arguments on any page");
    }
    assert!(terminal.seen[before..].contains("Arguments sent by") && pages > 2, "{pages}");
    resize(&terminal.slave, 40, 200);
    terminal.press("q");
    terminal.until(ASKED);
    terminal.press("y");
    assert_eq!(terminal.end().code, Some(0));
    assert_eq!(site.read("notes.md"), content);
}

#[test]
fn no_color_disables_colours() {
    for (no_color, coloured) in [("", true), ("1", false)] {
        let site = site();
        let mut command = TestTerminal::command(&site, &["call", "write_file", &overwrite("notes.md").to_string()]);
        command.env("NO_COLOR", no_color);
        let mut terminal = TestTerminal::start(terminal(), command);
        terminal.until(ASKED);
        assert_eq!(
            terminal.seen.contains("\x1b[32m") || terminal.seen.contains("\x1b[1;33m"),
            coloured,
            "{:?}",
            terminal.seen
        );
        assert!(terminal.seen.contains("\x1b[1m"));
        terminal.press("y");
        assert_eq!(terminal.end().code, Some(0));
    }
}

#[test]
fn a_request_of_a_killed_process_is_not_shown() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    let id = site.run(&["approvals", "list"]).out.split_whitespace().next().unwrap().to_owned();
    terminal.child.kill().unwrap();
    terminal.child.wait().unwrap();
    assert_eq!(site.run(&["approvals", "list"]).out, "");
    let said = with_config(&site, "[approval]\nunattended = true\n", &["approvals", "answer", &id, "--yes"]);
    assert!(said.code == Some(2) && said.err.contains("no pending request"), "{said:?}");
    let left = std::fs::read_dir(&site.state).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_str().unwrap().starts_with("approvals-")));
}

#[test]
fn a_person_trusts_a_workspace_until_its_file_changes() {
    let site = site();
    site.write(".env", "KEY=1\n");
    let rules = "[[rules]]\ndecision = \"allow\"\npath = [\"notes.md\", \".env\"]\n";
    site.write("ringfence.toml", rules);
    let write = |path: &str| site.run(&["call", "write_file", &overwrite(path).to_string()]);
    let trust = |word: &str| {
        let mut terminal = TestTerminal::new(&site, &["policy", "trust"]);
        terminal.until("ringfence.toml (SHA-256 ");
        terminal.until(r#"decision = "allow", path = ["notes.md", ".env"]"#);
        terminal.until("# ringfence.toml line 1");
        terminal.until("[yes/no]");
        terminal.press(&format!("{word}\r"));
        terminal.end().code
    };
    for word in ["no", "", "y", "yess"] {
        assert_eq!(trust(word), Some(1), "{word}");
        assert_eq!(write("notes.md").error(), "APPROVAL_DENIED");
    }
    assert_eq!(trust("yes"), Some(0));
    let said = write("notes.md");
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    // A name that is among others by chance is still a secret.
    assert_eq!(write(".env").error(), "APPROVAL_DENIED");
    assert!(site.run(&["policy", "show"]).out.contains("trusted: allow rules of the workspace"));
    assert!(site.run(&["policy", "trust"]).out.contains("already trusted"));
    let begin = last_record(&site, "begin");
    assert_eq!((&begin["rule"], &begin["layer"]), (&json!("rule 1"), &json!("trusted")));
    // A byte more is another file.
    site.write("ringfence.toml", format!("{rules}\n"));
    assert_eq!(write("notes.md").error(), "APPROVAL_DENIED");
    site.write("ringfence.toml", rules);
    assert_eq!(write("notes.md").code, Some(0));
    assert_eq!(site.run(&["policy", "trust", "--revoke"]).code, Some(0));
    assert_eq!(write("notes.md").error(), "APPROVAL_DENIED");
}

#[test]
fn a_person_resumes_a_session_that_was_refused_too_often() {
    let site = site();
    let store = SqliteStore::new(&site.state);
    for _ in 0..3 {
        store.record_denial("s-1", "the agent", std::time::SystemTime::now()).unwrap();
    }
    assert_eq!(site.run(&["approvals", "list"]).out, "s-1  paused after 3 consecutive denials  the agent\n");
    let said = site.run(&["approvals", "resume", "s-1"]);
    assert!(said.code == Some(2) && said.err.contains("requires an interactive terminal"), "{said:?}");
    let resume = |session: &str, word: &str| {
        let mut terminal = TestTerminal::new(&site, &["approvals", "resume", session]);
        terminal.until("resume this session? [yes/no]");
        terminal.press(&format!("{word}\r"));
        terminal.end()
    };
    assert_eq!(resume("s-1", "no").code, Some(1));
    assert_eq!(store.denial_streaks().unwrap().len(), 1);
    assert_eq!(resume("s-1", "yes").out, "resumed s-1\n");
    assert_eq!(site.run(&["approvals", "list"]).out, "");
    assert!(site.run(&["approvals", "resume", "s-1"]).err.contains("session `s-1` is not paused"));
}

#[test]
fn names_cannot_draw_on_the_screen() {
    let site = TestSite::new();
    let name = "a\u{1b}[2J\u{202e}b\r\n[y] fake";
    site.write(name, "old\n");
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite(name));
    terminal.until(r"`a\x1b[2J\u{202e}b\x0d\x0a[y] fake`");
    terminal.until(r#""path": "a\u001b[2J\u{202e}b\r\n[y] fake""#);
    terminal.until(ASKED);
    assert!(!terminal.seen.contains('\u{202e}') && !terminal.seen.contains("a\u{1b}[2J"));
    terminal.press("n");
    terminal.until("reason (optional");
    terminal.press("\r");
    assert_eq!(terminal.end().error(), "APPROVAL_DENIED");
}

#[test]
fn a_target_that_was_swapped_between_preview_and_yes_is_a_conflict_and_stays() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    std::fs::remove_file(site.workspace.join("notes.md")).unwrap();
    site.write("notes.md", "somebody else's\n");
    terminal.press("y");
    assert_eq!(terminal.end().error(), "CONFLICT");
    assert_eq!(site.read("notes.md"), "somebody else's\n");
}

#[test]
fn another_front_can_be_first() {
    let site = site();
    let mut first = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    first.until(ASKED);
    let listed = site.run(&["approvals", "list"]).out;
    assert!(listed.contains("command line  write_file  this would overwrite `notes.md`"), "{listed}");
    let id = listed.split_whitespace().next().unwrap().to_owned();
    let json: Value = serde_json::from_str(&site.run(&["approvals", "list", "--json"]).out).unwrap();
    assert_eq!((&json[0]["id"], &json[0]["args"]["path"]), (&json!(id), &json!("notes.md")));
    let shown = site.run(&["approvals", "show", &id]).out;
    assert!(shown.contains("tool: write_file\n") && shown.contains("preview:\n"), "{shown}");
    // Without a terminal there is no answer, whatever the arguments.
    for arguments in [&["approvals", "answer", &id] as &[&str], &["approvals", "answer", &id, "--yes"]] {
        let refused = site.run(arguments);
        assert_eq!(refused.code, Some(2));
        assert!(refused.err.contains("no terminal to answer at"), "{}", refused.err);
    }
    let mut second = TestTerminal::new(&site, &["approvals", "answer", &id]);
    second.until("`command line` wants to call `write_file`");
    second.until(ASKED);
    second.press("y");
    assert_eq!(second.end().code, Some(0));
    first.until("answered by another client");
    assert_eq!(first.end().code, Some(0));
    assert_eq!(site.read("notes.md"), "new\n");
    let late = site.run(&["approvals", "show", &id]);
    assert!(late.code == Some(2) && late.err.contains("no pending request"), "{late:?}");
}

#[test]
fn an_editor_does_not_outlive_the_time_to_answer() {
    let site = site();
    editor(&site, &format!("echo $$ > {}/pid; echo editing; exec sleep 1000", site.current.display()));
    for seconds in [3, 12, 48] {
        set_answer_timeout(&site, &format!("{seconds}s"));
        let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
        let mut first = terminal.until_one_of(&[ASKED, TIMED_OUT]);
        if first == ASKED {
            terminal.press("e");
            first = terminal.until_one_of(&["editing", TIMED_OUT]);
        }
        if first == "editing" {
            terminal.until(TIMED_OUT);
        }
        assert_eq!(terminal.end().error(), "APPROVAL_DENIED");
        assert_eq!(site.read("notes.md"), "old\n");
        // On a busy machine the time can be over before the editor starts.
        if first == "editing" {
            let pid = std::fs::read_to_string(site.current.join("pid")).unwrap();
            let command = std::fs::read(Path::new("/proc").join(pid.trim()).join("cmdline")).unwrap_or_default();
            assert!(!command.starts_with(b"sleep\x001000"), "the editor is still there");
            return;
        }
    }
    panic!("the editor was never started");
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let site = site();
        let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
        terminal.until(ASKED);
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        terminal.until("request closed");
        assert_eq!(terminal.end().error(), "CANCELLED");
        assert_eq!(site.read("notes.md"), "old\n");
    }
}

#[test]
fn a_cancel_leaves_the_terminal_as_it_was() {
    let site = site();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    terminal.press("\x03");
    terminal.until("request closed");
    assert_eq!(terminal.end().error(), "CANCELLED");
    assert_eq!(site.read("notes.md"), "old\n");
}

#[test]
fn a_long_call_shows_a_temporary_progress_line() {
    let site = site();
    let arguments = json!({"language": "bash", "code": "sleep 600"}).to_string();
    let command = TestTerminal::command(&site, &["call", "run_code", &arguments]);
    let mut terminal = TestTerminal::all_on_screen(terminal(), command);
    terminal.until("\rrun_code: ");
    terminal.until(" s, Ctrl-C to cancel\rrun_code: ");
    terminal.press("\x03");
    terminal.until(&format!("\r{}", " ".repeat("run_code: 2 s, Ctrl-C to cancel".len())));
    terminal.until("CANCELLED");
    assert_eq!(terminal.end().code, Some(1));
}

#[test]
fn a_dialog_is_kept_from_who_does_not_want_it() {
    let site = site();
    let arguments = overwrite("notes.md").to_string();
    for (how, why) in [("never", "approval requests are disabled"), ("policy", "only calls that the policy allows")] {
        let terminal = TestTerminal::new(&site, &["--approve", how, "call", "write_file", &arguments]);
        let said = terminal.end();
        assert_eq!(said.error(), "APPROVAL_DENIED");
        assert!(said.out.contains(why), "{}", said.out);
    }
}

/// The program's output with this in the user's config, without a terminal.
fn with_config(site: &TestSite, config: &str, arguments: &[&str]) -> CliOutput {
    let path = site.root().join("user.toml");
    std::fs::write(&path, config).unwrap();
    site.run(&[&["--config", path.to_str().unwrap()], arguments].concat())
}

#[test]
fn approve_always_needs_user_config_and_is_not_a_person() {
    let site = site();
    site.write(".env", "KEY=1\n");
    let write = overwrite("notes.md").to_string();
    let always = &["--approve", "always", "call", "write_file", &write];
    let refused = with_config(&site, "", always);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("unattended = true"), "{}", refused.err);
    site.write("ringfence.toml", "[approval]\nunattended = true\n");
    assert_eq!(with_config(&site, "", always).code, Some(2));
    std::fs::remove_file(site.workspace.join("ringfence.toml")).unwrap();
    let unattended = "[approval]\nunattended = true\n";
    assert_eq!(with_config(&site, unattended, &["call", "write_file", &write]).error(), "APPROVAL_DENIED");
    assert_eq!(with_config(&site, unattended, always).code, Some(0));
    assert_eq!(last_record(&site, "begin")["assurance"], "relayed");
    for (tool, arguments) in [
        ("read_file", r#"{"path":".env"}"#),
        ("write_file", r#"{"path":".git/hooks/pre-commit","content":"","createDirs":true}"#),
    ] {
        let said = with_config(&site, unattended, &["--approve", "always", "call", tool, arguments]);
        assert_eq!(said.error(), "APPROVAL_DENIED");
        assert!(said.out.contains("must come from a person"), "{}", said.out);
    }
}

#[test]
fn a_program_answers_for_the_user_where_they_want_it_and_no_person_is_needed() {
    let site = site();
    site.write(".env", "KEY=1\n");
    let unattended = "[approval]\nunattended = true\n";
    let id = |site: &TestSite| site.run(&["approvals", "list"]).out.split_whitespace().next().unwrap().to_owned();
    let mut terminal = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    terminal.until(ASKED);
    let answer = ["approvals", "answer", &id(&site), "--no", "--reason", "not now"];
    assert_eq!(with_config(&site, unattended, &answer).code, Some(0));
    terminal.until("answered by another client");
    let said = terminal.end();
    assert!(said.error() == "APPROVAL_DENIED" && said.out.contains("not now"), "{}", said.out);
    let mut terminal = TestTerminal::call(&site, "read_file", &json!({"path": ".env"}));
    terminal.until(ASKED);
    let refused = with_config(&site, unattended, &["approvals", "answer", &id(&site), "--yes"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("only a person at Ringfence's own"), "{}", refused.err);
    // The request is still there for one.
    terminal.press("y");
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn a_second_answer_is_rejected() {
    let site = site();
    let mut first = TestTerminal::call(&site, "write_file", &overwrite("notes.md"));
    first.until(ASKED);
    let id = site.run(&["approvals", "list"]).out.split_whitespace().next().unwrap().to_owned();
    let mut second = TestTerminal::new(&site, &["approvals", "answer", &id]);
    second.until(ASKED);
    first.press("y");
    assert_eq!(first.end().code, Some(0));
    second.press("n");
    second.until("reason (optional");
    second.press("\r");
    let said = second.end();
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("no pending request"), "{}", said.err);
    assert_eq!(site.read("notes.md"), "new\n");
}

#[test]
fn a_guarded_file_that_is_damaged_takes_a_person_and_not_a_program() {
    let graph =
        r#"{"schemaVersion":"1.1","entryNodeId":"a","nodes":[{"id":"a","type":"end","file":"step.md"}],"edges":[]}"#;
    let run = TestRun::with_graph(graph);
    let good = run.call("fs.read", &json!({"path": "@state/workflow.md"})).reply()["content"].clone();
    let kept = walk(&run.site.state).into_iter().find(|path| path.ends_with("state/workflow.md")).unwrap();
    std::fs::write(&kept, "no front matter at all\n").unwrap();
    let config = run.site.root().join("user.toml");
    std::fs::write(&config, "[approval]\nunattended = true\n").unwrap();
    let (config, mount) = (config.to_str().unwrap(), run.mount());
    let write = json!({"path": "@state/workflow.md", "content": good}).to_string();
    let call = ["call", "write_file", &write, "--mount", &mount, "--run", "first", "--config", config];
    assert_eq!(run.site.run(&[&call as &[&str], &["--approve", "always"]].concat()).code, Some(1));
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "no front matter at all\n");
    let mut terminal = TestTerminal::new(&run.site, &call);
    terminal.until(ASKED);
    terminal.press("y");
    let said = terminal.end();
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), good.as_str().unwrap());
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn a_damaged_store_lets_nothing_be_asked() {
    let site = site();
    std::fs::create_dir_all(&site.state).unwrap();
    std::fs::write(site.state.join("state.db"), "x".repeat(5000)).unwrap();
    let said = site.run(&["call", "write_file", &overwrite("notes.md").to_string()]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("of an earlier version, is damaged"), "{}", said.err);
    assert_eq!(site.read("notes.md"), "old\n");
}
