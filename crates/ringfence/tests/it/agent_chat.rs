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
    let mut seat = TestTerminal::all_on_screen(terminal(), command);
    seat.until("type /help for commands");
    seat.until("> ");
    seat
}

fn write(path: &str, content: &str) -> Value {
    call("write_file", json!({"path": path, "content": content}))
}

#[test]
fn a_prompt_makes_changes_that_can_be_undone() {
    let site = TestSite::new();
    let mut seat = chat_terminal(&site, &[write("a.txt", "hello\n"), text("I wrote **a.txt**.")], &[]);
    seat.press("write a filx\x7fe\r");
    seat.until("* write_file a.txt");
    seat.until("+ hello");
    seat.until("ok (");
    seat.until("I wrote **a.txt**.");
    seat.until("created  a.txt");
    seat.until("2 steps");
    seat.until("> ");
    assert_eq!(site.read("a.txt"), "hello\n");
    seat.press("/log\r");
    seat.until("write_file");
    seat.until("> ");
    seat.press("/undo\r");
    seat.until("undid");
    seat.until("> ");
    assert!(!site.workspace.join("a.txt").exists());
    seat.press("/undo\r");
    seat.until("no changes that can be undone");
    seat.until("> ");
    seat.press("\x04");
    assert_eq!(seat.end().code, Some(0));
    let heads: Value = serde_json::from_str(&site.run(&["sessions", "list", "--json"]).out).unwrap();
    assert_eq!(heads[0]["title"], "write a file");
}

#[test]
fn a_slash_command_is_never_a_prompt() {
    let site = TestSite::new();
    let mut seat = chat_terminal(&site, &[], &[]);
    for (typed, shown) in [
        ("/help", "start a new session"),
        ("/tools", "read_file"),
        ("/model", "script"),
        ("/nonsense", "unknown command /nonsense"),
        ("/log", "no changes"),
    ] {
        seat.press(&format!("{typed}\r"));
        seat.until(shown);
        seat.until("> ");
    }
    seat.press("/clear\r");
    seat.until("type /help for commands");
    seat.until("> ");
    seat.press("/quit\r");
    assert_eq!(seat.end().code, Some(0));
}

#[test]
fn an_approval_prompt_appears_in_the_chat() {
    let site = TestSite::new();
    site.write("notes.md", "old\n");
    let mut seat = chat_terminal(&site, &[write("notes.md", "new\n"), text("Changed.")], &[]);
    seat.press("change it\r");
    seat.until("* write_file notes.md");
    seat.until("this would overwrite `notes.md`");
    seat.until(ASKED);
    seat.press("y");
    seat.until("write_file: approved");
    seat.until("Changed.");
    seat.until("> ");
    assert_eq!(site.read("notes.md"), "new\n");
    seat.press("/quit\r");
    assert_eq!(seat.end().code, Some(0));
}

#[test]
fn an_interrupt_cancels_and_a_second_one_leaves() {
    let site = TestSite::new();
    let mut seat = chat_terminal(&site, &[json!({"text": "I am thinking ", "stall": true})], &[]);
    seat.press("think\r");
    seat.until("I am thinking");
    // The model never says more: only the interrupt ends the turn.
    seat.press("\x03");
    seat.until("ended: cancelled");
    seat.until("> ");
    seat.press("\x03");
    assert_eq!(seat.end().code, Some(130));
}

#[test]
fn at_the_prompt_the_first_interrupt_is_only_said() {
    let site = TestSite::new();
    let mut seat = chat_terminal(&site, &[text("Hi.")], &[]);
    seat.press("half a li\x03");
    seat.until("press Ctrl-C again to quit");
    seat.until("> ");
    seat.press("hello\r");
    seat.until("Hi.");
    seat.until("> ");
    seat.press("\x03");
    seat.until("press Ctrl-C again to quit");
    seat.until("> ");
    seat.press("\x03");
    assert_eq!(seat.end().code, Some(130));
}

#[test]
fn an_interrupt_withdraws_a_question_and_the_conversation_goes_on() {
    let site = TestSite::new();
    site.write("notes.md", "old\n");
    let mut seat = chat_terminal(&site, &[write("notes.md", "new\n"), text("Still here.")], &[]);
    seat.press("change it\r");
    seat.until(ASKED);
    seat.press("\x03");
    seat.until("ended: cancelled");
    seat.until("> ");
    assert_eq!(site.read("notes.md"), "old\n");
    seat.press("are you there?\r");
    seat.until("Still here.");
    seat.until("> ");
    seat.press("/quit\r");
    assert_eq!(seat.end().code, Some(0));
}

#[test]
fn one_that_goes_in_circles_asks_whether_to_go_on() {
    let site = TestSite::new();
    let read = || call("read_file", json!({"path": "nowhere"}));
    let mut seat = chat_terminal(&site, &[read(), read(), read(), text("I give up.")], &[]);
    seat.press("look\r");
    seat.until("3 times in a row");
    seat.until("continue? [yes/no]");
    seat.press("yes\r");
    seat.until("I give up.");
    seat.until("> ");
    seat.press("/quit\r");
    assert_eq!(seat.end().code, Some(0));
}

#[test]
fn a_single_prompt_asks_at_an_interactive_terminal() {
    let site = TestSite::new();
    let read = || call("read_file", json!({"path": "nowhere"}));
    for (answer, code, out) in [("yes\r", 0, "I give up.\n"), ("no\r", 1, "repeated the same calls")] {
        drop(scripted_agent(&site, &[read(), read(), read(), text("I give up.")], &[]));
        let mut seat = TestTerminal::new(&site, &["agent", "--script", "script.jsonl", "look"]);
        seat.until("3 times in a row");
        seat.until("continue? [yes/no]");
        seat.press(answer);
        let said = seat.end();
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
    let mut seat = TestTerminal::all_on_screen(terminal(), command);
    seat.until("with 2 messages");
    seat.until("> ");
    seat.press("me again\r");
    seat.until("Hello again.");
    seat.until("> ");
    seat.press("/quit\r");
    assert_eq!(seat.end().code, Some(0));
}

#[test]
fn terminal_escapes_are_printed_escaped() {
    let site = TestSite::new();
    let mut seat = chat_terminal(&site, &[text("\u{1b}[2Jgone\u{202e}"), text("x")], &[]);
    seat.press("hi\r");
    seat.until("\\u{1b}[2Jgone\\u{202e}");
    seat.until("> ");
    seat.press("/quit\r");
    assert_eq!(seat.end().code, Some(0));
}
