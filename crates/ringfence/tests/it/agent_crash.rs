//! A session goes on after its process was killed, wherever that was, and nothing is done twice.
//!
//! `strace` kills the program as it enters a system call: writes of the store, of the audit log and of the files. With
//! `RINGFENCE_FULL=1` at every one of them.

use serde_json::{Value, json};

use crate::agent::{call, scripted_agent, text};
use crate::crash::{CrashPoint, CrashTamper, has_strace, is_full_run, run_under_strace};
use crate::site::{TestSite, cli_output};

/// Lines that the script appends, each by a call of its own.
const LINES: usize = 3;

fn append(number: usize) -> Value {
    call("append_file", json!({"path": "log.txt", "content": format!("line {number}\n")}))
}

fn lines(site: &TestSite) -> usize {
    std::fs::read_to_string(site.workspace.join("log.txt")).unwrap_or_default().lines().count()
}

/// Kills a run at one point, and goes on with its session. False where the point was never met.
fn killed_at(call: &'static str, nth: usize) -> bool {
    let site = TestSite::in_memory();
    let mut answers: Vec<Value> = (1..=LINES).map(append).collect();
    answers.push(text("All lines are there."));
    drop(scripted_agent(&site, &answers, &[]));
    let program = ["--preset", "edits", "agent", "--script", "script.jsonl", "-p", "append"];
    let ended = run_under_strace(&site, CrashPoint { call, nth, tamper: CrashTamper::Kill }, &program, b"", None);
    if !ended.reached {
        assert_eq!(lines(&site), LINES, "{call} {nth}: {ended:?}");
        return false;
    }
    let before = lines(&site);
    let said = cli_output(scripted_agent(&site, &[text("I go on.")], &["--resume", "-p", "go on"]).output().unwrap());
    if said.code == Some(2) {
        // It was killed before there was a session, so before anything was done.
        assert!(said.err.contains("no session"), "{call} {nth}: {said:?}");
        assert_eq!(before, 0);
        return true;
    }
    assert_eq!((said.code, said.out.as_str()), (Some(0), "I go on.\n"), "{call} {nth}: {said:?}");
    assert_eq!(lines(&site), before, "{call} {nth}: a call was made again");
    check_history(&site, before, &format!("{call} {nth}"));
    true
}

/// Every call has one result, and those that say that it went well are in the file.
fn check_history(site: &TestSite, there: usize, what: &str) {
    let heads: Value = serde_json::from_str(&site.run(&["sessions", "list", "--json"]).out).unwrap();
    let id = heads[0]["id"].as_str().unwrap();
    let exported: Value = serde_json::from_str(&site.run(&["sessions", "export", id]).out).unwrap();
    let entries = exported["entries"].as_array().unwrap();
    let calls: Vec<&Value> = entries.iter().flat_map(|entry| entry["calls"].as_array().into_iter().flatten()).collect();
    let results: Vec<&Value> = entries.iter().filter(|entry| entry["role"] == "tool").collect();
    let ids = |list: &[&Value], key: &str| list.iter().map(|item| item[key].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&calls, "id"), ids(&results, "call_id"), "{what}");
    let well = results.iter().filter(|result| result["is_error"] == false).count();
    let unknown = results.iter().filter(|result| result["text"].as_str().unwrap().contains("effects unknown")).count();
    assert_eq!(well + unknown, results.len(), "{what}: {results:?}");
    assert!(unknown <= 1 && (well..=well + unknown).contains(&there), "{what}: {there} lines, {well} + {unknown}");
}

#[test]
fn a_killed_session_goes_on_and_nothing_is_done_twice() {
    if !has_strace() {
        return;
    }
    let mut met = 0;
    for (call, stride) in [("pwrite64", 9), ("write", 11), ("fdatasync", 4), ("flock", 7)] {
        let stride = if is_full_run() { 1 } else { stride };
        met += (1..400).step_by(stride).take_while(|nth| killed_at(call, *nth)).count();
    }
    println!("killed at {met} points");
    assert!(met >= 10, "only {met} points were met");
}
