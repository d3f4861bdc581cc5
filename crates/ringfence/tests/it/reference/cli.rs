//! `docs/reference/cli.md`: the `--help` text of every command.

use super::{check_page, opening};
use crate::site::{PROGRAM, TestSite, cli_output};

/// The help of a command.
fn help(site: &TestSite, words: &[String]) -> String {
    let said = cli_output(site.program_without_arguments().args(words).arg("--help").output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{words:?}: {said:?}");
    said.out.trim_end().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let mut names = Vec::new();
    for group in help.split("\n\n").filter_map(|group| group.split_once("ommands:\n")) {
        let listed = group.1.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        names.extend(listed.filter_map(|line| line.split_whitespace().next()).map(str::to_owned));
    }
    names.retain(|name| name != "help");
    names
}

/// The name of the option that a line of help begins, such as `--workspace`.
fn option(line: &str) -> Option<&str> {
    let indent = line.len() - line.trim_start().len();
    let words = line.trim_start().starts_with('-').then(|| line.split_whitespace());
    words.filter(|_| indent < 8)?.find(|word| word.starts_with("--"))
}

/// Leaves out global options, which are shown once for the program itself.
fn without_common(help: &str, common: &[&str]) -> String {
    let mut kept = String::new();
    let mut left_out = false;
    for line in help.lines() {
        if let Some(name) = option(line) {
            left_out = common.contains(&name);
        }
        left_out &= line.starts_with(' ');
        if !left_out {
            kept.push_str(&format!("{line}\n"));
        }
    }
    // A heading whose options were all left out.
    let bare = |part: &&str| ["Options:", "Global options:"].contains(&part.trim());
    let parts = kept.split("\n\n").map(|part| part.trim_matches('\n'));
    parts.filter(|part| !part.is_empty() && !bare(part)).collect::<Vec<_>>().join("\n\n")
}

fn add(text: &mut String, site: &TestSite, words: &[String], common: &[&str]) {
    let help = help(site, words);
    let shown = if words.is_empty() { help.trim_end().to_owned() } else { without_common(&help, common) };
    let name = [&["ringfence".to_owned()], words].concat().join(" ");
    text.push_str(&format!("\n## `{name}`\n\n```text\n{shown}\n```\n"));
    for command in commands(&help) {
        add(text, site, &[words, &[command]].concat(), common);
    }
}

#[test]
fn the_reference_of_the_command_line_is_what_help_says() {
    let site = TestSite::new();
    let what =
        "The `--help` text of every command. The options of `ringfence` itself are global, and are shown only once.";
    let mut text = opening("The command line", "the help texts", what);
    let whole = help(&site, &[]);
    let common: Vec<&str> = whole.lines().filter_map(option).collect();
    assert!(common.len() > 5, "{PROGRAM} has no options of its own: {whole}");
    add(&mut text, &site, &[], &common);
    check_page("cli.md", text);
}
