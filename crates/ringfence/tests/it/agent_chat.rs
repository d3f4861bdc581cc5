//! Talking with the agent in a real pseudo-terminal, key by key; and cancelling whatever it does.

use serde_json::{Value, json};

use crate::agent::{call, scripted_agent, text};
use crate::site::TestSite;
use crate::terminal::{ASKED, TestTerminal, terminal};

fn chat_terminal(site: &TestSite, answers: &[Value], options: &[&str]) -> TestTerminal {
    drop(scripted_agent(site, answers, &[]));
    let mut arguments = vec!["agent", "--script", "script.jsonl"];
    arguments.extend(options);
    let mut command = TestTerminal::command(site, &arguments);
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    let mut terminal = TestTerminal::all_on_screen(terminal(), command);
    terminal.until("type /help for commands");
    terminal.until("> ");
    terminal
}

fn write(path: &str, content: &str) -> Value {
    call("write_file", json!({"path": path, "content": content}))
}

#[test]
fn a_prompt_makes_changes_that_can_be_undone() {
    let site = TestSite::new();
    let mut terminal = chat_terminal(&site, &[write("a.txt", "hello\n"), text("I wrote **a.txt**.")], &[]);
    terminal.press("write a filx\x7fe\r");
    terminal.until("* write_file a.txt");
    terminal.until("+ hello");
    terminal.until("ok (");
    terminal.until("I wrote **a.txt**.");
    terminal.until("created  a.txt");
    terminal.until("2 steps");
    terminal.until("> ");
    assert_eq!(site.read("a.txt"), "hello\n");
    terminal.press("/log\r");
    terminal.until("write_file");
    terminal.until("> ");
    terminal.press("/undo\r");
    terminal.until("undid");
    terminal.until("> ");
    assert!(!site.workspace.join("a.txt").exists());
    terminal.press("/undo\r");
    terminal.until("no changes that can be undone");
    terminal.until("> ");
    terminal.press("\x04");
    assert_eq!(terminal.end().code, Some(0));
    let heads: Value = serde_json::from_str(&site.run(&["sessions", "list", "--json"]).out).unwrap();
    assert_eq!(heads[0]["title"], "write a file");
}

#[test]
fn a_slash_command_is_never_a_prompt() {
    let site = TestSite::new();
    let mut terminal = chat_terminal(&site, &[], &[]);
    for (typed, shown) in [
        ("/help", "start a new session"),
        ("/tools", "read_file"),
        ("/model", "script"),
        ("/nonsense", "unknown command /nonsense"),
        ("/log", "no changes"),
    ] {
        terminal.press(&format!("{typed}\r"));
        terminal.until(shown);
        terminal.until("> ");
    }
    terminal.press("/clear\r");
    terminal.until("type /help for commands");
    terminal.until("> ");
    terminal.press("/quit\r");
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn an_approval_prompt_appears_in_the_chat() {
    let site = TestSite::new();
    site.write("notes.md", "old\n");
    let mut terminal = chat_terminal(&site, &[write("notes.md", "new\n"), text("Changed.")], &[]);
    terminal.press("change it\r");
    terminal.until("* write_file notes.md");
    terminal.until("this would overwrite `notes.md`");
    terminal.until(ASKED);
    terminal.press("y");
    terminal.until("write_file: approved");
    terminal.until("Changed.");
    terminal.until("> ");
    assert_eq!(site.read("notes.md"), "new\n");
    terminal.press("/quit\r");
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn an_interrupt_cancels_and_a_second_one_leaves() {
    let site = TestSite::new();
    let mut terminal = chat_terminal(&site, &[json!({"text": "I am thinking ", "stall": true})], &[]);
    terminal.press("think\r");
    terminal.until("I am thinking");
    // The model never says more: only the interrupt ends the turn.
    terminal.press("\x03");
    terminal.until("ended: cancelled");
    terminal.until("> ");
    terminal.press("\x03");
    assert_eq!(terminal.end().code, Some(130));
}

#[test]
fn at_the_prompt_the_first_interrupt_is_only_said() {
    let site = TestSite::new();
    let mut terminal = chat_terminal(&site, &[text("Hi.")], &[]);
    terminal.press("half a li\x03");
    terminal.until("press Ctrl-C again to quit");
    terminal.until("> ");
    terminal.press("hello\r");
    terminal.until("Hi.");
    terminal.until("> ");
    terminal.press("\x03");
    terminal.until("press Ctrl-C again to quit");
    terminal.until("> ");
    terminal.press("\x03");
    assert_eq!(terminal.end().code, Some(130));
}

#[test]
fn an_interrupt_withdraws_a_question_and_the_conversation_goes_on() {
    let site = TestSite::new();
    site.write("notes.md", "old\n");
    let mut terminal = chat_terminal(&site, &[write("notes.md", "new\n"), text("Still here.")], &[]);
    terminal.press("change it\r");
    terminal.until(ASKED);
    terminal.press("\x03");
    terminal.until("ended: cancelled");
    terminal.until("> ");
    assert_eq!(site.read("notes.md"), "old\n");
    terminal.press("are you there?\r");
    terminal.until("Still here.");
    terminal.until("> ");
    terminal.press("/quit\r");
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn one_that_goes_in_circles_asks_whether_to_go_on() {
    let site = TestSite::new();
    let read = || call("read_file", json!({"path": "nowhere"}));
    let mut terminal = chat_terminal(&site, &[read(), read(), read(), text("I give up.")], &[]);
    terminal.press("look\r");
    terminal.until("3 times in a row");
    terminal.until("continue? [yes/no]");
    terminal.press("yes\r");
    terminal.until("I give up.");
    terminal.until("> ");
    terminal.press("/quit\r");
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn a_single_prompt_asks_at_an_interactive_terminal() {
    let site = TestSite::new();
    let read = || call("read_file", json!({"path": "nowhere"}));
    for (answer, code, out) in [("yes\r", 0, "I give up.\n"), ("no\r", 1, "repeated the same calls")] {
        drop(scripted_agent(&site, &[read(), read(), read(), text("I give up.")], &[]));
        let mut terminal = TestTerminal::new(&site, &["agent", "--script", "script.jsonl", "look"]);
        terminal.until("3 times in a row");
        terminal.until("continue? [yes/no]");
        terminal.press(answer);
        let said = terminal.end();
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.out.contains(out), "{said:?}");
    }
}

#[test]
fn a_session_goes_on_where_it_was() {
    let site = TestSite::new();
    let mut first = chat_terminal(&site, &[text("Hello.")], &[]);
    first.press("hi\r");
    first.until("Hello.");
    first.until("> ");
    first.press("/quit\r");
    assert_eq!(first.end().code, Some(0));
    drop(scripted_agent(&site, &[text("Hello again.")], &[]));
    let mut command = TestTerminal::command(&site, &["agent", "--script", "script.jsonl", "--resume"]);
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    let mut terminal = TestTerminal::all_on_screen(terminal(), command);
    terminal.until("with 2 messages");
    terminal.until("> ");
    terminal.press("me again\r");
    terminal.until("Hello again.");
    terminal.until("> ");
    terminal.press("/quit\r");
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn terminal_escapes_are_printed_escaped() {
    let site = TestSite::new();
    let mut terminal = chat_terminal(&site, &[text("\u{1b}[2Jgone\u{202e}"), text("x")], &[]);
    terminal.press("hi\r");
    terminal.until("\\u{1b}[2Jgone\\u{202e}");
    terminal.until("> ");
    terminal.press("/quit\r");
    assert_eq!(terminal.end().code, Some(0));
}
