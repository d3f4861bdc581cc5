//! What a run records of its program's calls: `--learn`, a draft of a profile from a real run and a second run with it, and
//! `--exec-log`, the programs that it started.
//!
//! Not here: the text of a draft (`cli/learn.rs`), and what was refused (`wrapped_refusals.rs`).

use std::fs;
use std::net::TcpListener;

use ringfence_testkit::executable::write_script;
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::Value;

use crate::site::{CliOutput, TestSite, cli_output};

/// Looks for files, asks a host, and listens until that was refused, which the second time it is not.
const AGENT: &str = r#"#!/bin/sh
for name in .config/tool/rc .ssh/id_ed25519 .toolrc; do cat "$HOME/$name" 2>/dev/null; done
python3 - "$1" "$2" <<'END'
import socket, sys, time, urllib.request
try: urllib.request.urlopen("http://learned.ringfence-test.org/", timeout=20)
except OSError as error: print(error)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while sys.argv[2] == "first" and "port" not in open("/run/ringfence/refused").read(): time.sleep(0.05)
END
"#;

const SECRET: &str = "private-7d1f20c3";

fn run(site: &TestSite, options: &[&str], words: &[&str]) -> CliOutput {
    let mut program = site.program_without_arguments();
    program.arg("--workspace").arg(&site.workspace).arg("run").args(options).arg("--").args(words);
    cli_output(program.current_dir(&site.workspace).output().unwrap())
}

fn has_python() -> bool {
    std::process::Command::new("/usr/bin/python3").arg("--version").output().is_ok_and(|ended| ended.status.success())
}

#[test]
fn the_run_with_the_draft_asks_nothing_and_gets_no_secret() {
    if !has_python() {
        return skip_without(Requirement::Python, "a program that asks and listens");
    }
    let site = TestSite::new();
    write_script(&site.workspace.join("agent"), &AGENT.replace("python3", "/usr/bin/python3"));
    for (name, text) in [
        (".config/tool/rc", "color = 1\n".to_owned()),
        (".ssh/id_ed25519", format!("{SECRET}\n")),
        (".toolrc", format!("{{\"apiKey\": \"sk-ant-api03-{SECRET}-0123456789abcdef\"}}\n")),
    ] {
        let file = site.home.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    // Below the ports that the kernel chooses.
    let port = (20_000 + taken.local_addr().unwrap().port() % 10_000).to_string();
    let file = site.root().join("draft.toml");
    let file = file.to_str().unwrap();
    let first = run(&site, &["--learn", file], &["./agent", &port, "first"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(!first.out.contains("color") && !first.out.contains(SECRET), "{first:?}");
    let text = fs::read_to_string(file).unwrap();
    let draft: toml::Table = toml::from_str(&text).unwrap();
    assert_eq!(draft["hosts"].as_array().unwrap(), &["learned.ringfence-test.org:80".into()], "{text}");
    assert_eq!(draft["home"]["copy"].as_array().unwrap(), &[".config/tool/rc".into()], "{text}");
    assert!(text.contains("\".config/tool/rc\", # for cat"), "{text}");
    assert!(draft["publish"][0].as_str().unwrap().ends_with(&port), "{text}");
    for secret in [".ssh/id_ed25519", ".toolrc"] {
        let is_comment = |line: &str| line.starts_with("# ") && line.contains(secret);
        assert!(text.lines().any(is_comment) && !draft.to_string().contains(secret), "{secret}: {text}");
    }
    assert!(!text.contains(SECRET));
    let second = run(&site, &["--profile", file], &["./agent", &port, "second"]);
    assert!(second.out.contains("color = 1") && !second.out.contains(SECRET), "{second:?}");
    assert!(!second.err.contains("approval required"), "{second:?}");
    let refused = cli_output(site.program_without_arguments().args(["why", "--json"]).output().unwrap());
    let refused: Value = serde_json::from_str(&refused.out).unwrap();
    assert_eq!((refused["profile"].as_str(), &refused["refusals"]), (Some("draft"), &Value::Array(Vec::new())));
}

#[test]
fn a_draft_and_a_profile_are_never_where_programs_can_change_them() {
    let site = TestSite::new();
    site.write("mine.toml", "hosts = [\"a.org\"]\n");
    let beside = site.root().join("there.toml");
    fs::write(&beside, "").unwrap();
    for (options, expected) in [
        (["--learn", "draft.toml"], "must be outside of the workspace"),
        (["--learn", beside.to_str().unwrap()], "cannot write the profile draft"),
        (["--learn", "../draft"], "must end in `.toml`"),
        (["--profile", "./mine.toml"], "must be outside of the workspace"),
        (["--profile", "../absent.toml"], "cannot read the profile `absent`"),
    ] {
        let ended = run(&site, &options, &["sh", "-c", "echo started"]);
        assert!(ended.err.contains(expected) && !ended.out.contains("started"), "{options:?}: {ended:?}");
    }
}

#[test]
fn programs_that_are_started_are_in_the_log() {
    let site = TestSite::new();
    write_script(&site.workspace.join("tool.sh"), "#!/bin/sh\nexit 0\n");
    let (log, report) = (site.root().join("programs.jsonl"), site.root().join("report.json"));
    let options = ["--exec-log", log.to_str().unwrap(), "--report", "json", report.to_str().unwrap()];
    // A program that is not there is tried in every directory of the search path. `true` by its path is no builtin.
    let script = "/bin/true one 'two words'; ./tool.sh three; env true four; nosuch; cd / && exec bin/true five";
    let ended = run(&site, &options, &["/bin/sh", "-c", script]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let started: Vec<(&str, Vec<&str>)> = lines
        .iter()
        .map(|line| {
            let arguments = line["arguments"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
            let program = line["program"].as_str().unwrap();
            (program.rsplit('/').next().unwrap(), arguments.collect())
        })
        .collect();
    let expected = [
        ("true", vec!["/bin/true", "one", "two words"]),
        ("tool.sh", vec!["./tool.sh", "three"]),
        ("env", vec!["env", "true", "four"]),
        ("true", vec!["true", "four"]),
        ("true", vec!["bin/true", "five"]),
    ];
    assert_eq!(started, expected, "{text}");
    assert!(lines.iter().all(|line| line["time"].as_str().is_some_and(|time| time.ends_with('Z'))), "{text}");
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((&report["programs"]["starts"], &report["programs"]["missing"]), (&5.into(), &0.into()), "{report}");
    assert_eq!(report["programs"]["byProgram"]["/bin/true"], 1, "{report}");
}

#[test]
fn a_log_of_programs_is_new_and_outside_of_the_workspace() {
    let site = TestSite::new();
    let there = site.root().join("there");
    fs::write(&there, "mine").unwrap();
    let check = |file: &str, expected: &str| {
        let ended = run(&site, &["--exec-log", file], &["/bin/true"]);
        assert!(ended.code != Some(0) && ended.err.contains(expected), "{file}: {ended:?}");
    };
    check("programs.jsonl", "a log of programs must be outside of the workspace");
    check(there.to_str().unwrap(), "cannot write the log of programs: the file is there already; name a new one");
    check("/nosuch/directory/log", "cannot write the log of programs: ");
    assert_eq!(fs::read_to_string(there).unwrap(), "mine");
}
