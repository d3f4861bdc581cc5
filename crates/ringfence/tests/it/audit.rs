//! The audit log through the program: it shows, it checks, and it survives being killed.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::site::{TestSite, cli_output};

fn verify(site: &TestSite) -> String {
    let said = site.run(&["audit", "verify"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out
}

fn records(site: &TestSite) -> Vec<Value> {
    let said = site.run(&["audit", "show", "--json"]);
    said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_call_leaves_a_trace_and_the_trace_says_no_contents() {
    let site = TestSite::new();
    site.write("f", "CONTENTS");
    site.call("read_file", &json!({"path": "f"})).value();
    site.call("write_file", &json!({"path": "new", "content": "MORE"})).value();
    assert_eq!(site.call("read_file", &json!({"path": "../outside/secret"})).error(), "INVALID_PATH");
    assert_eq!(site.call("no_such_tool", &json!({})).error(), "UNKNOWN_TOOL");
    assert_eq!(verify(&site), "ok: 7 records, signed up to 7\n");
    let records = records(&site);
    let events: Vec<&str> = records.iter().map(|record| record["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["genesis", "begin", "end", "begin", "end", "refused", "refused"]);
    let text = format!("{records:?}");
    for word in ["CONTENTS", "MORE", "SECRET", site.root().to_str().unwrap()] {
        assert!(!text.contains(word), "{word} is in the log");
    }
    let shown = site.run(&["audit", "show"]).out;
    assert!(shown.contains("refused  read_file  \"../outside/secret\"  INVALID_PATH"), "{shown}");
}

#[test]
fn a_call_has_one_beginning_and_its_tool_one_name() {
    let site = TestSite::new();
    site.write("large", "x".repeat(300 << 10));
    site.call("read_file", &json!({"path": "large"})).value();
    site.call("read_file", &json!({"path": "large", "startLine": 1, "endLine": 1})).value();
    let said = site.run(&["call", "fs-list", r#"{"path":"@project"}"#, "--dialect", "crewagent"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let records = records(&site);
    let of =
        |record: &Value| format!("{} {}", record["event"].as_str().unwrap(), record["tool"].as_str().unwrap_or(""));
    let lines: Vec<String> = records.iter().skip(1).map(of).collect();
    let expected =
        ["begin read_file", "end read_file", "begin read_file", "end read_file", "begin fs.list", "end fs.list"];
    assert_eq!(lines, expected);
}

#[test]
fn a_change_to_the_log_ends_the_check_with_one_and_a_head_kept_elsewhere_shows_a_cut() {
    let site = TestSite::new();
    site.call("list_directory", &json!({"path": "."})).value();
    let head = site.run(&["audit", "head"]).out;
    let head = head.trim();
    assert_eq!(site.run(&["audit", "verify", "--head", head]).code, Some(0));
    let file = site.state.join("audit/000001.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("list_directory", "read_file")).unwrap();
    let said = site.run(&["audit", "verify"]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.starts_with("broken: 000001.jsonl, line 3: "), "{said:?}");
    // Cut together with its own heads, only the one that was kept tells.
    std::fs::write(&file, text.lines().next().unwrap().to_owned() + "\n").unwrap();
    std::fs::remove_file(site.state.join("audit/heads.jsonl")).unwrap();
    let said = site.run(&["audit", "verify"]);
    assert_eq!(said.code, Some(1), "the heads beside the log tell: {said:?}");
    std::fs::remove_file(site.state.join("audit-heads.jsonl")).unwrap();
    assert_eq!(site.run(&["audit", "verify"]).code, Some(0));
    let said = site.run(&["audit", "verify", "--head", head]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("the end was cut off"), "{said:?}");
    assert_eq!(site.run(&["audit", "verify", "--head", "nonsense"]).code, Some(2));
}

#[test]
fn a_name_that_a_caller_made_up_does_nothing_to_a_terminal() {
    let site = TestSite::new();
    site.call("a\u{1b}[2J\u{202e}b\n9  begin", &json!({}));
    let shown = site.run(&["audit", "show"]).out;
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']) && shown.contains("UNKNOWN_TOOL"), "{shown}");
}

#[test]
fn nothing_runs_where_no_trace_can_be_kept() {
    let site = TestSite::new();
    std::fs::create_dir_all(site.state.join("audit/lock")).unwrap();
    let said = site.call("write_file", &json!({"path": "new", "content": "x"}));
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{said:?}");
    assert!(said.err.contains("cannot open the audit log"), "{said:?}");
    assert!(!site.workspace.join("new").exists());
}

#[test]
fn the_chain_survives_kills_and_no_acknowledged_call_is_missing() {
    const PROCESSES: u64 = 4;
    const KILLS: u64 = 55;
    let site = TestSite::in_memory();
    let kill_some = |process: u64| {
        let mut acknowledged = BTreeSet::new();
        // As long as the program lives on this machine now. Every eleventh is not killed, and says so.
        let mut lifetime = Duration::ZERO;
        for kill in 0..KILLS {
            let path = format!("{process}-{kill}");
            let arguments = json!({"path": path, "content": "x"}).to_string();
            let mut command = site.command(&["call", "write_file", &arguments]);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let (started, is_spared) = (Instant::now(), kill % 11 == 0);
            if !is_spared {
                // Another moment of the program's short life each time.
                let permille = 7919 * (kill * PROCESSES + process) % 1_000;
                std::thread::park_timeout(lifetime * permille as u32 / 1_000);
                let _ = child.kill();
            }
            let said = cli_output(child.wait_with_output().unwrap());
            if said.out.starts_with(r#"{"ok":true"#) {
                acknowledged.insert(path);
            }
            if is_spared {
                lifetime = started.elapsed();
            }
        }
        acknowledged
    };
    let acknowledged: BTreeSet<String> = std::thread::scope(|scope| {
        let processes: Vec<_> = (0..PROCESSES).map(|process| scope.spawn(move || kill_some(process))).collect();
        processes.into_iter().flat_map(|process| process.join().unwrap()).collect()
    });
    site.call("list_directory", &json!({"path": "."})).value();
    verify(&site);
    let records = records(&site);
    let paths_of = |event: &str| -> BTreeSet<String> {
        let of_event = records.iter().filter(|record| record["event"] == event);
        of_event.filter_map(|record| Some(record["accesses"][0]["path"].as_str()?.to_owned())).collect()
    };
    let (begun, ended) = (paths_of("begin"), paths_of("end"));
    println!("{} kills, {} begun, {} acknowledged", PROCESSES * KILLS, begun.len(), acknowledged.len());
    assert!(acknowledged.is_subset(&ended), "{:?}", acknowledged.difference(&ended));
    // What is in the workspace was begun in the log before.
    for (path, _) in site.tree() {
        assert!(begun.contains(&path) || path.contains(".ringfence-tmp-"), "{path} has no record");
    }
    assert!(begun.len() > acknowledged.len() && !acknowledged.is_empty(), "the kills all came at the same moment");
}

#[test]
fn no_line_of_json_has_a_character_that_a_terminal_would_obey() {
    let site = TestSite::new();
    let config = site.root().join("log.toml");
    std::fs::write(&config, "log = \"stderr\"\n").unwrap();
    let path = "x\u{9b}2J\u{202e}";
    let called = site.call_with(&["--config", config.to_str().unwrap()], "read_file", &json!({"path": path}));
    let shown = site.run(&["audit", "show", "--json"]);
    for lines in [&called.err, &shown.out] {
        assert!(lines.is_ascii() && lines.contains(r"x\u009b2J\u202e"), "{lines}");
        for line in lines.lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
    }
}

#[test]
fn a_record_of_a_later_version_is_shown_and_the_log_takes_no_other() {
    let site = TestSite::new();
    site.call("list_directory", &json!({"path": "."})).value();
    let head = site.run(&["audit", "head"]).out;
    let (number, hash) = head.trim().split_once(':').unwrap();
    let later = json!({"v": 3, "seq": number.parse::<u64>().unwrap() + 1, "moment": "reached", "prev": hash});
    let file = site.state.join("audit/000001.jsonl");
    let log = format!("{}{later}\n", std::fs::read_to_string(&file).unwrap());
    std::fs::write(&file, &log).unwrap();
    for arguments in [&["audit", "show"][..], &["audit", "show", "--json"]] {
        let shown = site.run(arguments).out;
        assert_eq!(shown.lines().last(), Some(later.to_string().as_str()));
    }
    for arguments in [&["audit", "verify"][..], &["call", "list_directory", "{}"], &["serve"]] {
        let refused = site.run(arguments);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains("install the newer version"), "{refused:?}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), log);
}
