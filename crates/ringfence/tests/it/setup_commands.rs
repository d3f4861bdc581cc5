//! The first five minutes: the demo, a config to begin with, completions and the manual.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::site::{CliOutput, TestSite, cli_output};
use crate::terminal::{ASKED, TestTerminal};

/// The demo with a directory of its own for what is temporary.
fn demo(site: &TestSite, arguments: &[&str]) -> (CliOutput, usize) {
    let temporary = site.root().join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = site.program_without_arguments();
    command.arg("demo").args(arguments).env("TMPDIR", &temporary);
    let said = cli_output(command.output().unwrap());
    (said, std::fs::read_dir(&temporary).unwrap().count())
}

#[test]
fn the_demo_plays_to_its_end_and_leaves_nothing_behind() {
    let site = TestSite::new();
    for (arguments, edit) in [(&[] as &[&str], "refused"), (&["--yes"], "made")] {
        let (said, left) = demo(&site, arguments);
        assert_eq!((said.code, left), (Some(0), 0), "{said:?}");
        for line in [
            "`../letter.txt` leads outside the workspace",
            "* read_file shortcut.txt\n  failed",
            "The model claims that it read the letter. It did not",
            "hash chain verified",
            "Every file is restored, byte for byte.",
            "ringfence mcp install",
        ] {
            assert!(said.out.contains(line), "no {line:?} in {}", said.out);
        }
        assert_eq!(said.out.contains("changed  notes/today.md"), edit == "made", "{}", said.out);
        assert_eq!(said.out.contains("No terminal: the edit was denied"), edit == "refused", "{}", said.out);
        assert!(!said.out.contains(site.root().to_str().unwrap()), "{}", said.out);
    }
    assert!(!site.state.exists() && !site.root().join("xdg-state").exists(), "the user's own state was touched");
}

#[test]
fn at_a_terminal_the_demo_asks_and_does_what_it_is_told() {
    let site = TestSite::new();
    for (answer, shown) in [("y", "changed  notes/today.md"), ("n", "denied   edit_file")] {
        let mut terminal = TestTerminal::new(&site, &["demo"]);
        terminal.until("rye bread");
        terminal.until(ASKED);
        terminal.press(answer);
        if answer == "n" {
            terminal.until("reason (optional");
            terminal.press("\r");
        }
        let said = terminal.end();
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.contains(shown) && said.out.contains("Every file is restored"), "{}", said.out);
    }
}

#[test]
fn a_config_to_begin_with_is_read_and_changes_nothing() {
    let site = TestSite::new();
    site.write("Cargo.toml", "");
    let workspace = site.workspace.to_str().unwrap();
    let shown = |site: &TestSite| site.run(&["policy", "show"]).out;
    let before = shown(&site);
    for (arguments, file) in [
        (&["init"] as &[&str], site.workspace.join("ringfence.toml")),
        (&["init", "--user"], site.config.join("ringfence/config.toml")),
    ] {
        let written = cli_output(site.command(arguments).output().unwrap());
        assert_eq!(written.code, Some(0), "{written:?}");
        assert!(written.out.contains("Wrote `") && !written.out.contains(workspace), "{written:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        let (printed, code) = (site.command(arguments).arg("--print").output().unwrap(), 0);
        assert_eq!((printed.status.code(), printed.stdout), (Some(code), text.clone().into_bytes()));
        assert_eq!(shown(&site), before, "{file:?}");
        let again = cli_output(site.command(arguments).output().unwrap());
        assert_eq!(again.code, Some(2));
        assert!(again.err.contains("already exists and was not changed"), "{again:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
    assert!(std::fs::read_to_string(site.workspace.join("ringfence.toml")).unwrap().contains("Cargo.lock"));
}

#[test]
fn advice_after_init_names_the_initialized_directory() {
    for named in [false, true] {
        let site = TestSite::new();
        let directory = if named { &site.workspace } else { &site.current };
        let mut init = site.program_without_arguments();
        init.arg("init");
        if named {
            init.arg("--workspace").arg(directory);
        }
        let written = cli_output(init.output().unwrap()).out;
        assert_eq!(written.contains("Next in that directory:"), named, "{written}");
        let rule = "[[rules]]\nname = \"of this directory\"\ndecision = \"deny\"\npath = \"x\"\n";
        std::fs::write(directory.join("ringfence.toml"), rule).unwrap();
        let advised: Vec<&str> = written.lines().filter_map(|line| line.strip_prefix("  ringfence ")).collect();
        assert_eq!(advised.len(), 4, "{written}");
        for line in advised {
            assert!(!line.contains("--workspace"), "{line}");
        }
        let shown = cli_output(
            site.program_without_arguments().current_dir(directory).args(["policy", "show"]).output().unwrap(),
        );
        assert!(shown.out.contains("of this directory"), "{shown:?}");
    }
}

#[test]
fn a_link_in_the_place_of_the_config_is_not_followed() {
    let site = TestSite::new();
    let target = site.outside.join("new");
    symlink(&target, site.workspace.join("ringfence.toml")).unwrap();
    let refused = cli_output(site.command(&["init"]).output().unwrap());
    assert_eq!((refused.code, target.exists()), (Some(2), false), "{refused:?}");
}

#[test]
fn shells_understand_their_completions() {
    let site = TestSite::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = cli_output(site.command(&["completions", shell]).output().unwrap());
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(["approvals", "demo", "workspace"].iter().all(|word| said.out.contains(word)), "{shell}");
        if shell == "bash" {
            let file = site.root().join("completions");
            std::fs::write(&file, &said.out).unwrap();
            assert!(Command::new("bash").arg("-n").arg(&file).status().unwrap().success());
        }
    }
}

#[test]
fn every_command_has_a_page_in_the_manual() {
    let site = TestSite::new();
    let directory = site.root().join("man");
    std::fs::create_dir(&directory).unwrap();
    let write = |directory: &Path| cli_output(site.command(&["man", directory.to_str().unwrap()]).output().unwrap());
    assert_eq!(write(&directory).code, Some(0));
    for (page, words) in [
        ("ringfence.1", "tools for AI agents"),
        ("ringfence-call.1", "Call one tool"),
        ("ringfence-mcp-install.1", "install"),
        ("ringfence-policy-grants-revoke.1", "revoke"),
        ("ringfence-undo.1", "dry\\-run"),
    ] {
        let text = std::fs::read_to_string(directory.join(page)).unwrap();
        assert!(text.contains(words) && text.starts_with(".ie"), "{page}: {text}");
    }
    let missing = write(&directory.join("none"));
    assert_eq!(missing.code, Some(2));
    assert!(missing.err.contains("cannot write the manual pages"), "{missing:?}");
}

#[test]
fn the_version_says_what_was_built() {
    let site = TestSite::new();
    let said = cli_output(site.command(&["--version"]).output().unwrap());
    let version = env!("CARGO_PKG_VERSION");
    assert!(said.out.starts_with(&format!("ringfence {version} (")) && said.out.contains("rustc 1."), "{said:?}");
}
