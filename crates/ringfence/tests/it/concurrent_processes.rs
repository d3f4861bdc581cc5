//! Many processes change one file at once, and nothing is lost, doubled or torn.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::site::TestSite;

const AGENTS: usize = 8;

/// The replies to eight agents.
struct ConcurrentReplies {
    /// The lines whose change was acknowledged.
    done: BTreeSet<String>,
    /// The codes of the others.
    refused: Vec<String>,
}

/// Eight agents make `rounds` calls each, at once; every call is a process, and has a line of its own.
fn run_concurrently(rounds: usize, change: impl Fn(&str) -> Result<(), String> + Sync) -> ConcurrentReplies {
    let change = &change;
    let agent = |agent: usize| {
        let mut told = ConcurrentReplies { done: BTreeSet::new(), refused: Vec::new() };
        for round in 0..rounds {
            let line = format!("agent {agent} round {round}");
            match change(&line) {
                Ok(()) => assert!(told.done.insert(line)),
                Err(code) => told.refused.push(code),
            }
        }
        told
    };
    let told: Vec<ConcurrentReplies> = thread::scope(|scope| {
        let agents: Vec<_> = (0..AGENTS).map(|number| scope.spawn(move || agent(number))).collect();
        agents.into_iter().map(|agent| agent.join().unwrap()).collect()
    });
    ConcurrentReplies {
        done: told.iter().flat_map(|told| told.done.clone()).collect(),
        refused: told.into_iter().flat_map(|told| told.refused).collect(),
    }
}

fn check_refusals(told: &ConcurrentReplies) {
    println!("{} acknowledged, {} refused", told.done.len(), told.refused.len());
    assert!(told.refused.iter().all(|code| code == "CONFLICT"), "{:?}", told.refused);
    assert!(!told.done.is_empty());
}

#[test]
fn every_acknowledged_edit_of_eight_processes_is_in_the_file_once() {
    let site = TestSite::new();
    site.write("list.txt", "HEAD\nTAIL\n");
    let over = AtomicBool::new(false);
    let told = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !over.load(Ordering::Acquire) {
                let text = site.read("list.txt");
                assert!(text.starts_with("HEAD\n") && text.ends_with("TAIL\n"), "torn: {text:?}");
                reads += 1;
            }
            reads
        });
        let told = run_concurrently(40, |line| {
            let arguments = json!({"path": "list.txt", "oldText": "TAIL", "newText": format!("{line}\nTAIL")});
            let said = site.call("edit_file", &arguments);
            if said.code == Some(0) { Ok(()) } else { Err(said.error()) }
        });
        over.store(true, Ordering::Release);
        assert!(reader.join().unwrap() > 0);
        told
    });
    check_refusals(&told);
    let text = site.read("list.txt");
    let inner = text.strip_prefix("HEAD\n").unwrap().strip_suffix("TAIL\n").unwrap();
    check_lines(inner, &told);
    assert_eq!(site.temp_files(), [] as [&str; 0]);
}

#[test]
fn every_acknowledged_append_of_eight_processes_is_in_the_file_once() {
    let site = TestSite::new();
    // The file is not there at first: its making is part of the race.
    let told = run_concurrently(40, |line| {
        let said = site.call("append_file", &json!({"path": "log.txt", "content": format!("{line}\n")}));
        if said.code == Some(0) { Ok(()) } else { Err(said.error()) }
    });
    check_refusals(&told);
    check_lines(&site.read("log.txt"), &told);
    assert_eq!(site.temp_files(), [] as [&str; 0]);
}

#[track_caller]
fn check_lines(text: &str, told: &ConcurrentReplies) {
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let unique: BTreeSet<String> = lines.iter().cloned().collect();
    assert_eq!(lines.len(), unique.len(), "a line is there twice");
    assert_eq!(unique, told.done);
}

#[test]
fn a_counter_that_eight_processes_raise_by_what_they_read_loses_no_step() {
    let site = TestSite::new();
    site.write("counter", "0");
    let told = run_concurrently(10, |_| {
        loop {
            let read = site.call("read_file", &json!({"path": "counter"})).value();
            let count: u64 = read["content"].as_str().unwrap().parse().unwrap();
            let next = json!({"path": "counter", "content": (count + 1).to_string(), "ifMatchSha256": read["sha256"]});
            let said = site.call("write_file", &next);
            match said.code {
                Some(0) => return Ok(()),
                _ => assert_eq!(said.error(), "CONFLICT"),
            }
        }
    });
    check_refusals(&told);
    assert_eq!(site.read("counter"), (AGENTS * 10).to_string());
    assert_eq!(told.done.len(), AGENTS * 10);
}

#[test]
fn of_eight_processes_that_make_one_file_at_once_one_wins_and_the_others_are_told() {
    let site = TestSite::new();
    for round in 0..4 {
        let path = format!("new-{round}/deep/file.txt");
        let told = run_concurrently(1, |line| {
            let said = site.run(&[
                "call",
                "write_file",
                &json!({"path": path, "content": line, "createDirs": true}).to_string(),
            ]);
            if said.code == Some(0) { Ok(()) } else { Err(said.error()) }
        });
        // Under the preset `ask` no agent may overwrite, so a later one is refused before or after the planning.
        assert!(told.refused.iter().all(|code| code == "CONFLICT" || code == "APPROVAL_DENIED"), "{:?}", told.refused);
        assert_eq!(told.done.iter().map(String::as_str).collect::<Vec<_>>(), [site.read(&path)]);
    }
}
