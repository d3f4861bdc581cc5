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

/// A site whose profile `mine` names files that agents act on.
fn reviewed_site() -> TestSite {
    let site = TestSite::new();
    let profiles = site.config.join("ringfence/profiles");
    fs::create_dir_all(&profiles).unwrap();
    let profile = "[home]\ncopy = [\".mine/settings.json\"]\nreview = [\".mine/settings.json\", \".mine/memory/*.md\", \
         \".mine.json#/servers\", \".mine.json#/projects/${workspace}/allowed\"]\n\
         [home.files]\n\".mine.json\" = '{\"started\":true}'\n";
    fs::write(profiles.join("mine.toml"), profile).unwrap();
    fs::create_dir(site.home.join(".mine")).unwrap();
    fs::write(site.home.join(".mine/settings.json"), "{\"theme\":\"dark\"}\n").unwrap();
    fs::write(site.home.join(".mine.json"), "{\"account\":\"ada\",\"projects\":{}}\n").unwrap();
    site
}

const CHANGES_ITSELF: &str = r#"mkdir -p ~/.mine/memory; echo '{"theme":"dark","allow":["Bash(*)"]}' > ~/.mine/settings.json
echo 'remember' > ~/.mine/memory/a.md; echo x > ~/.mine/cache; ln -s /etc/passwd ~/.mine/memory/link.md
printf '{"started":true,"servers":{"s":{"command":"evil"}},"projects":{"%s":{"allowed":["rm"]}}}' "$PWD" > ~/.mine.json"#;

#[test]
fn what_an_agent_changed_of_its_settings_is_reviewed_and_taken_by_choice() {
    let site = reviewed_site();
    let before = home(&site);
    let ended = run(&site, CHANGES_ITSELF);
    assert!(
        ended.err.contains("changed in the agent's own home: ~/.mine/settings.json ~/.mine/memory/a.md"),
        "{ended:?}"
    );
    assert!(ended.err.contains("see `ringfence layers home mine`"), "{ended:?}");
    assert_eq!(home(&site), before);
    let layers = |words: &[&str]| {
        let mut program = site.program_without_arguments();
        cli_output(
            program.arg("--workspace").arg(&site.workspace).args(["layers", "home"]).args(words).output().unwrap(),
        )
    };
    let shown = layers(&["mine"]).out;
    for part in
        ["M ~/.mine/settings.json", "+{\"theme\":\"dark\",\"allow\":[\"Bash(*)\"]}", "A ~/.mine.json#/servers", "evil"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("cache") && !shown.contains("link.md") && !shown.contains("started"), "{shown}");
    // One value goes into the person's own file, and the rest of that stays.
    // A shell makes an absolute path of the second.
    let settings = site.home.join(".mine/settings.json");
    let taken = layers(&["mine", "~/.mine.json#/servers", settings.to_str().unwrap()]);
    assert_eq!(taken.code, Some(0), "{taken:?}");
    assert!(taken.err.contains("your version of before is ~/.mine/settings.json.before-ringfence"), "{taken:?}");
    let read = |path: &str| fs::read_to_string(site.home.join(path)).unwrap();
    let own: serde_json::Value = serde_json::from_str(&read(".mine.json")).unwrap();
    assert_eq!(own, serde_json::json!({"account": "ada", "projects": {}, "servers": {"s": {"command": "evil"}}}));
    assert_eq!(read(".mine.json.before-ringfence"), "{\"account\":\"ada\",\"projects\":{}}\n");
    assert_eq!(read(".mine/settings.json"), "{\"theme\":\"dark\",\"allow\":[\"Bash(*)\"]}\n");
    assert_eq!(read(".mine/settings.json.before-ringfence"), "{\"theme\":\"dark\"}\n");
    // What is taken is not listed any more, and a run that changes nothing says nothing.
    assert!(!layers(&["mine"]).out.contains("settings.json"));
    assert!(!run(&site, "true").err.contains("own home"));
    let audit = site.run(&["audit", "show"]);
    assert!(audit.out.contains("take_home") && audit.out.contains("review_home"), "{audit:?}");
}

#[test]
fn a_setting_that_the_person_changed_meanwhile_is_not_replaced() {
    let site = reviewed_site();
    run(&site, CHANGES_ITSELF);
    fs::write(site.home.join(".mine/settings.json"), "{\"theme\":\"light\"}\n").unwrap();
    fs::write(site.home.join(".mine.json"), "not JSON").unwrap();
    let before = home(&site);
    for (change, message) in [
        (".mine/settings.json", "your version is not the one that the agent started with"),
        (".mine.json#/servers", "your version is not the one that the agent started with"),
        (".mine/cache", "has no change to take"),
        (".mine/memory/link.md", "has no change to take"),
    ] {
        let mut program = site.program_without_arguments();
        program.arg("--workspace").arg(&site.workspace).args(["layers", "home", "mine", change]);
        let ended = cli_output(program.output().unwrap());
        assert!(ended.code == Some(1) && ended.err.contains(message), "{change}: {ended:?}");
        assert_eq!(home(&site), before, "{change}");
    }
}
