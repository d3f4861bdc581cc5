//! What goes back from an agent's home layer into the person's home directory, and what never does.
//!
//! Not here: reviews and layers of the workspace (`wrapped_run.rs`).

use std::fs;
use std::os::unix::fs::symlink;

use crate::site::{CliOutput, TestSite, cli_output};

/// A site whose profile `mine` names transcripts.
fn site() -> TestSite {
    let site = TestSite::new();
    let profiles = site.config.join("ringfence/profiles");
    fs::create_dir_all(&profiles).unwrap();
    let profile = "[home]\nkeep = [\".mine/sessions/*.jsonl\", \".mine/${workspace:dashes}/*.jsonl\"]\n";
    fs::write(profiles.join("mine.toml"), profile).unwrap();
    site
}

#[track_caller]
fn run(site: &TestSite, script: &str) -> CliOutput {
    let mut program = site.program_without_arguments();
    program.arg("--workspace").arg(&site.workspace).args(["run", "--profile", "mine", "--", "sh", "-c", script]);
    let ended = cli_output(program.output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

/// Everything in the home directory, with its text.
fn home(site: &TestSite) -> Vec<(String, String)> {
    let (mut found, mut left) = (Vec::new(), vec![site.home.clone()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(&site.home).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read_to_string(&path).unwrap_or_default()));
            }
        }
    }
    found.sort();
    found
}

fn files(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn transcripts_go_back_and_grow_with_every_run() {
    let site = site();
    let dashes: String = fs::canonicalize(&site.workspace)
        .unwrap()
        .to_str()
        .unwrap()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let first = run(
        &site,
        &format!(
            "mkdir -p ~/.mine/sessions ~/.mine/{dashes}; echo one > ~/.mine/sessions/a.jsonl; echo p > ~/.mine/{dashes}/p.jsonl"
        ),
    );
    assert!(first.err.contains("in your home directory: ~/.mine/"), "{first:?}");
    let of_project = format!(".mine/{dashes}/p.jsonl");
    assert_eq!(home(&site), files(&[(&of_project, "p\n"), (".mine/sessions/a.jsonl", "one\n")]));
    run(&site, "echo two >> ~/.mine/sessions/a.jsonl; echo b > ~/.mine/sessions/b.jsonl");
    let grown = [(&*of_project, "p\n"), (".mine/sessions/a.jsonl", "one\ntwo\n"), (".mine/sessions/b.jsonl", "b\n")];
    assert_eq!(home(&site), files(&grown));
    let quiet = run(&site, "true");
    assert!(!quiet.err.contains("home directory"), "{quiet:?}");
    // It is on record, as a call of its own.
    let audit = site.run(&["audit", "show"]);
    assert!(audit.out.contains("keep_home") && audit.out.contains("sessions/b.jsonl"), "{audit:?}");
}

#[test]
fn what_an_agent_acts_on_never_goes_back() {
    let site = site();
    fs::write(site.home.join(".claude.json"), "{\"projects\":{}}").unwrap();
    let before = home(&site);
    run(
        &site,
        "mkdir -p ~/.claude/projects/x/memory ~/.claude/hooks ~/.codex ~/.mine/sessions/sub ~/.config/autostart
         echo '{\"projects\":{\"/\":{\"hasTrustDialogAccepted\":true,\"mcpServers\":{\"x\":{\"command\":\"evil\"}}}}}' > ~/.claude.json
         echo '{\"hooks\":{}}' > ~/.claude/settings.json; echo x > ~/.claude/projects/x/memory/MEMORY.md
         echo x > ~/.codex/config.toml; echo x > ~/.bashrc; echo x > ~/.mine/settings.json
         echo x > ~/.mine/sessions/.hidden.jsonl; echo x > ~/.mine/sessions/a.jsonl.sh; echo x > ~/.mine/sessions/sub/a.jsonl",
    );
    assert_eq!(home(&site), before);
}

#[test]
fn links_pipes_and_long_files_of_the_layer_do_nothing() {
    let site = site();
    let ended = run(
        &site,
        "mkdir -p ~/.mine/sessions ~/real; cd ~/.mine/sessions; ln -s /etc/passwd link.jsonl; mkfifo pipe.jsonl
         mkdir directory.jsonl; truncate -s 100M long.jsonl; touch empty.jsonl; echo ok > ok.jsonl; ln ok.jsonl twice.jsonl",
    );
    for name in ["link", "pipe", "directory"] {
        assert!(ended.err.contains(&format!("~/.mine/sessions/{name}.jsonl: it is not a plain file")), "{ended:?}");
    }
    assert!(ended.err.contains("long.jsonl: it is too long"), "{ended:?}");
    assert_eq!(home(&site), files(&[(".mine/sessions/ok.jsonl", "ok\n"), (".mine/sessions/twice.jsonl", "ok\n")]));
    let other = self::site();
    run(
        &other,
        "mkdir -p ~/elsewhere; echo x > ~/elsewhere/a.jsonl; mkdir ~/.mine; ln -s ../elsewhere ~/.mine/sessions",
    );
    assert_eq!(home(&other), []);
}

#[test]
fn files_of_the_person_are_never_replaced_nor_followed() {
    let site = site();
    let sessions = site.home.join(".mine/sessions");
    fs::create_dir_all(&sessions).unwrap();
    fs::write(sessions.join("other.jsonl"), "mine\n").unwrap();
    fs::write(sessions.join("longer.jsonl"), "x\nmore\n").unwrap();
    fs::write(site.home.join("precious"), "x\n").unwrap();
    fs::hard_link(site.home.join("precious"), sessions.join("hard.jsonl")).unwrap();
    symlink("../../precious", sessions.join("soft.jsonl")).unwrap();
    let before = home(&site);
    let ended = run(
        &site,
        "mkdir -p ~/.mine/sessions; cd ~/.mine/sessions; for name in other longer hard soft; do printf 'x\\n' > $name.jsonl; done
         echo evil >> hard.jsonl; echo evil >> soft.jsonl",
    );
    assert!(ended.err.contains("other.jsonl: your home directory has another version of it"), "{ended:?}");
    for name in ["hard", "soft"] {
        assert!(
            ended.err.contains(&format!("{name}.jsonl: it is a link, has another owner or has several names")),
            "{ended:?}"
        );
    }
    assert_eq!(home(&site), before);
    // A directory that leads elsewhere.
    let site = self::site();
    fs::create_dir_all(site.home.join("precious")).unwrap();
    symlink("precious", site.home.join(".mine")).unwrap();
    let ended = run(&site, "mkdir -p ~/.mine/sessions; echo x > ~/.mine/sessions/a.jsonl");
    assert!(ended.err.contains("a directory above it is a link or another mount"), "{ended:?}");
    assert_eq!(home(&site), files(&[(".mine", "")]));
}

#[test]
fn the_config_closes_the_home_directory() {
    let site = site();
    fs::write(site.config.join("ringfence/config.toml"), "[run]\nkeep_home = false\n").unwrap();
    run(&site, "mkdir -p ~/.mine/sessions; echo x > ~/.mine/sessions/a.jsonl");
    assert_eq!(home(&site), []);
    let rule = "[[rules]]\nname = \"no home\"\ndecision = \"deny\"\ntool = \"keep_home\"\n";
    fs::write(site.config.join("ringfence/config.toml"), rule).unwrap();
    let denied = run(&site, "true");
    assert!(denied.err.contains("no home"), "{denied:?}");
    assert_eq!(home(&site), []);
}
