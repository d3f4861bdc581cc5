//! Untrusted text is shown to a person without terminal escapes.

use serde_json::json;

use crate::site::TestSite;
use crate::terminal::{TestTerminal, terminal};

/// A workspace whose own file says this.
fn site(config: &str) -> TestSite {
    let site = TestSite::new();
    site.write("a.md", "x\n");
    site.write("ringfence.toml", config);
    site
}

/// Everything that a command prints, if there is nothing in it that steers a terminal.
#[track_caller]
fn printed(config: &str, arguments: &[&str]) -> String {
    let said = site(config).run(arguments);
    let all = said.out + &said.err;
    assert!(!all.chars().any(|c| c.is_control() && c != '\n'), "{config:?} {arguments:?}: {all:?}");
    all
}

const EXPLAIN: [&str; 4] = ["policy", "explain", "read_file", r#"{"path": "a.md"}"#];

#[test]
fn a_workspace_s_own_file_does_not_steer_the_terminal() {
    for config in [
        "preset = \"x\\u001b]0;PWNED\\u0007\\u009b2J\"\n",
        "preset = \"\x1b[2J\"\n",
        "[tools]\ndeny = [\"a\\u001b[2J\"]\n",
        "[[rules]]\ndecision = \"deny\"\ntool = \"a\\u001b[2J\"\n",
        "[[rules]]\ndecision = \"deny\"\npath = \"a\"\nmatch = \"delete \\u001b[2J\"\n",
        "[[rules]]\nname = \"a\\u001b[2J\"\ndecision = \"deny\"\npath = \"a\"\nmatch = \"delete b\"\n",
        "\"a\\u001b[2J\" = 1\n",
    ] {
        for arguments in [&["policy", "show"] as &[&str], &EXPLAIN, &["tools"]] {
            let all = printed(config, arguments);
            assert!(all.contains("u{1b}") || all.contains("u001b"), "{config:?} {arguments:?}: {all}");
        }
    }
}

#[test]
fn a_rule_of_the_workspace_that_decides_does_not_steer_the_terminal() {
    let name = "\"x\\u001b]0;PWNED\\u0007\\u009b2J\\u202e\\nallow by the rule `y`\"";
    let config = format!("[[rules]]\nname = {name}\ndecision = \"deny\"\npath = \"*.md\"\nbecause = {name}\n");
    let explained = printed(&config, &EXPLAIN);
    assert!(
        explained.starts_with("deny by the rule `x\\u{1b}]0;PWNED\\u{7}\\u{9b}2J\\u{202e}\\u{a}allow"),
        "{explained}"
    );
    let shown = printed(&config, &["policy", "show"]);
    assert!(!shown.contains('\u{202e}') && shown.contains("\\u{202e}"), "{shown}");
}

#[test]
fn a_reply_at_a_terminal_is_seen_and_not_obeyed() {
    let site = site("");
    site.write("evil.txt", format!("a\x1b]0;PWNED\x07\u{9b}2J{}\n", "x".repeat(3000)));
    let read = json!({"path": "evil.txt"}).to_string();
    let command = TestTerminal::command(&site, &["--dialect", "miniclaw", "call", "read_file", &read]);
    let mut terminal = TestTerminal::all_on_screen(terminal(), command);
    terminal.until("a\\u{1b}]0;PWNED\\u{7}\\u{9b}2Jxx");
    terminal.until(&"x".repeat(2990));
    assert_eq!(terminal.end().code, Some(0));
}

#[test]
fn a_json_reply_in_a_pipe_does_not_steer_the_terminal_behind_it() {
    let site = site("");
    let name = "q\u{9b}2J\u{202e}x";
    site.write(name, "x\n");
    let said = site.call("list_directory", &json!({"path": "."}));
    assert!(said.out.contains(r"q\u009b2J\u202ex"), "{said:?}");
    assert!(!said.out.contains(['\u{9b}', '\u{202e}']), "{said:?}");
    assert!(said.value().to_string().contains(name), "JSON means the same");
}
