//! `ringfence agent` through the binary, with a model that plays a script.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite, cli_output};

/// A script in the site, and the command that plays it.
pub(crate) fn scripted_agent(site: &TestSite, answers: &[Value], arguments: &[&str]) -> Command {
    let text: String = answers.iter().map(|answer| format!("{answer}\n")).collect();
    std::fs::write(site.current.join("script.jsonl"), text).unwrap();
    let mut command = site.command(&["agent", "--script", "script.jsonl"]);
    command.args(arguments);
    command
}

fn run_scripted_agent(site: &TestSite, answers: &[Value], arguments: &[&str]) -> CliOutput {
    cli_output(scripted_agent(site, answers, arguments).output().unwrap())
}

pub(crate) fn call(name: &str, arguments: Value) -> Value {
    json!({"calls": [{"name": name, "arguments": arguments}]})
}

pub(crate) fn text(text: &str) -> Value {
    json!({"text": text})
}

fn write(path: &str, content: &str) -> Value {
    call("write_file", json!({"path": path, "content": content}))
}

/// The lines of `--json`.
pub(crate) fn events(said: &CliOutput) -> Vec<Value> {
    said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_answer_is_on_standard_output_and_the_rest_on_standard_error() {
    let site = TestSite::new();
    let said = run_scripted_agent(&site, &[write("a.txt", "hello\n"), text("I wrote it.")], &["write a.txt"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "I wrote it.\n"));
    assert_eq!(site.read("a.txt"), "hello\n");
    for line in ["* write_file a.txt\n", "    + hello\n", "actions taken:\n  created  a.txt\n", "2 steps"] {
        assert!(said.err.contains(line), "no {line:?} in {}", said.err);
    }
}

#[test]
fn with_json_everything_is_an_object_a_line_in_order() {
    let site = TestSite::new();
    let said = run_scripted_agent(&site, &[write("a.txt", "x"), text("Done.")], &["--json", "-p", "write"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let events = events(&said);
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let whole =
        ["step", "callStarted", "usage", "answered", "call", "result", "step", "text", "usage", "answered", "finished"];
    assert_eq!(types, whole);
    let last = events.last().unwrap();
    assert_eq!((&last["end"], &last["text"]), (&json!("answered"), &json!("Done.")));
    assert_eq!(last["ledger"]["files"], json!([{"path": "a.txt", "what": "created"}]));
    assert_eq!(events[5]["isError"], false);
}

#[test]
fn exit_codes_tell_a_script_how_it_ended() {
    let site = TestSite::new();
    let cases: [(&[Value], &[&str], i32, &str); 6] = [
        (&[text("hi")], &["hello"], 0, ""),
        (&[text(""), text("")], &["hello"], 1, "empty answer twice"),
        (&[json!({"refusal": "I will not"})], &["hello"], 1, "refused"),
        (&[], &["hello"], 3, "the script has no further answer"),
        (&[json!({"error": "denied"})], &["hello"], 3, "the script says: denied"),
        (&[text("hi")], &["--resume", "agent-nowhere", "-p", "hello"], 2, "no session `agent-nowhere`"),
    ];
    for (answers, arguments, code, complaint) in cases {
        let said = run_scripted_agent(&site, answers, arguments);
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.err.contains(complaint), "{said:?}");
    }
    let said = run_bare(&site, &["agent", "hello"]);
    assert_eq!(said.code, Some(2));
    for way in ["base_url = \"http://127.0.0.1", "api_key_env", "ringfence demo"] {
        assert!(said.err.contains(way), "no {way} in {}", said.err);
    }
}

fn run_bare(site: &TestSite, arguments: &[&str]) -> CliOutput {
    cli_output(site.command(arguments).output().unwrap())
}

#[test]
fn the_bound_of_the_config_holds_and_the_host_has_the_last_word() {
    let site = TestSite::new();
    let config = site.root().join("agent.toml");
    std::fs::write(&config, "[agents.defaults]\nmax_tool_iterations = 1\n").unwrap();
    let answers = [write("a.txt", "x"), call("write_file", json!({"path": "b.txt", "content": ""}))];
    let said = run_scripted_agent(&site, &answers, &["--config", config.to_str().unwrap(), "write"]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("The step limit was reached") && said.out.contains("created  a.txt"), "{said:?}");
    assert!(!site.workspace.join("b.txt").exists());
}

#[test]
fn project_instructions_are_sent_and_their_read_is_recorded() {
    let site = TestSite::new();
    site.write("AGENTS.md", "Always write tests.\n");
    let said = run_scripted_agent(&site, &[text("ok")], &["hello"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let records = site.run(&["audit", "show", "--json"]).out;
    assert!(records.contains("project-instructions") && records.contains("AGENTS.md"), "{records}");
    let config = site.root().join("agent.toml");
    std::fs::write(&config, "[agents.defaults]\nproject_instructions = false\n").unwrap();
    let before = records.lines().count();
    run_scripted_agent(&site, &[text("ok")], &["--config", config.to_str().unwrap(), "hello"]);
    assert_eq!(site.run(&["audit", "show", "--json"]).out.lines().count(), before);
}

#[test]
fn a_workspace_cannot_choose_the_model() {
    let site = TestSite::new();
    for line in ["[agents.defaults]\nbase_url = \"http://evil\"", "[agents.defaults]\napi_key_env = \"HOME\""] {
        site.write("ringfence.toml", line);
        let said = run_scripted_agent(&site, &[text("ok")], &["hello"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains("agents"), "{said:?}");
    }
}

#[test]
fn every_dialect_can_be_driven() {
    let cases = [
        ("standard", "write_file", json!({"path": "a", "content": "x"})),
        ("miniclaw", "write_file", json!({"path": "a", "content": "x"})),
        ("crewagent", "fs.write", json!({"path": "@project/a", "content": "x"})),
    ];
    for (dialect, tool, arguments) in cases {
        let site = TestSite::new();
        site.write("AGENTS.md", "Be kind.\n");
        let said =
            run_scripted_agent(&site, &[call(tool, arguments), text("Done.")], &["--dialect", dialect, "--json", "go"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(site.read("a"), "x", "{dialect}");
        let ledger = events(&said).last().unwrap()["ledger"].clone();
        assert_eq!(ledger["files"][0]["what"], "created", "{dialect}: {ledger}");
    }
}

#[test]
fn a_signal_cancels_and_leaves_a_session_that_goes_on() {
    let site = TestSite::new();
    let mut command = scripted_agent(&site, &[json!({"text": "I thi", "stall": true})], &["--json", "think"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("\"text\"") {}
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let last = lines.last().unwrap().unwrap();
    assert!(last.contains("\"end\":\"cancelled\""), "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let said = run_scripted_agent(&site, &[text("Here I am.")], &["--resume", "-p", "go on"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "Here I am.\n"), "{said:?}");
}

#[test]
fn sessions_are_listed_shown_and_exported() {
    let site = TestSite::new();
    let said = site.run(&["sessions", "list"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), ""));
    run_scripted_agent(&site, &[write("a.txt", "```\nx"), text("Wrote it.")], &["write a file\nwith a fence"]);
    let heads: Value = serde_json::from_str(&site.run(&["sessions", "list", "--json"]).out).unwrap();
    let id = heads[0]["id"].as_str().unwrap();
    assert_eq!((&heads[0]["title"], &heads[0]["model"]), (&json!("write a file with a fence"), &json!("script")));
    assert!(site.run(&["sessions", "list"]).out.starts_with(id));
    let shown = site.run(&["sessions", "show", id]).out;
    for line in ["> write a file\n", "* write_file {", "Wrote it.\n", "  created  a.txt\n"] {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
    let exported: Value = serde_json::from_str(&site.run(&["sessions", "export", id]).out).unwrap();
    let roles: Vec<&str> =
        exported["entries"].as_array().unwrap().iter().map(|entry| entry["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "host"]);
    let page = site.run(&["sessions", "export", id, "--format", "md"]).out;
    assert!(page.starts_with("# write a file with a fence\n") && page.contains("created  a.txt"), "{page}");
}

#[test]
fn sessions_of_a_workspace_are_not_those_of_another() {
    let site = TestSite::new();
    run_scripted_agent(&site, &[text("hi")], &["hello"]);
    let heads: Value = serde_json::from_str(&site.run(&["sessions", "list", "--json"]).out).unwrap();
    let id = heads[0]["id"].as_str().unwrap();
    let other = site.root().join("other");
    std::fs::create_dir(&other).unwrap();
    let elsewhere = |arguments: &[&str]| {
        cli_output(site.program_without_arguments().args(arguments).arg("--workspace").arg(&other).output().unwrap())
    };
    assert_eq!(elsewhere(&["sessions", "list"]).out, "");
    for arguments in [vec!["sessions", "show", id], vec!["sessions", "export", id]] {
        let said = elsewhere(&arguments);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{said:?}");
    }
    let said = elsewhere(&["agent", "--script", "script.jsonl", "--resume", id, "-p", "hello"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("no session"), "{said:?}");
}

#[test]
fn a_session_remembers_what_it_has_been_through() {
    let site = TestSite::new();
    site.write(".env", "KEY=1\n");
    let state = site.state.clone();
    let config = site.root().join("agent.toml");
    let rules = "[[rules]]\ndecision = \"allow\"\neffect = \"read\"\npath = \".env\"\nsecret = true\n";
    std::fs::write(&config, rules).unwrap();
    let arguments = ["--config", config.to_str().unwrap(), "look"];
    let read = run_scripted_agent(&site, &[call("read_file", json!({"path": ".env"})), text("seen")], &arguments);
    assert_eq!(read.code, Some(0), "{read:?}");
    let sessions = ringfence::store::transcripts::SqliteTranscripts::new(std::sync::Arc::new(
        ringfence::store::SqliteStore::new(&state),
    ));
    let directory = sessions_directory(&site);
    let resumed = sessions.resume(&directory, None).unwrap();
    assert!(resumed.taint.contains(ringfence_kernel::Taint::ReadSecret), "{resumed:?}");
}

fn sessions_directory(site: &TestSite) -> String {
    ringfence_fs::content_id(site.workspace.as_os_str().as_encoded_bytes())
}

#[test]
fn a_running_program_is_ended_at_once() {
    let site = TestSite::new();
    let program = json!({"language": "bash", "code": "touch made; echo started; sleep 1000 & sleep 1000"});
    let mut command = scripted_agent(&site, &[call("run_code", program)], &["--json", "run it"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut seen = Vec::new();
    while !seen.last().is_some_and(|line: &String| line.contains("\"output\"")) {
        seen.push(lines.next().unwrap_or_else(|| panic!("it never started: {seen:?}")));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    // Without the signal, the program would go on for longer than a test may take.
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("CANCELLED")), "{rest:?}");
    assert!(rest.last().unwrap().contains("\"end\":\"cancelled\""), "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!site.workspace.join("made").exists(), "what it made was kept");
}

#[test]
fn the_health_of_the_model_is_told_without_a_prompt() {
    let site = TestSite::new();
    let said = run_scripted_agent(&site, &[], &["--health"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "ok: script\n"));
}

#[test]
fn a_session_goes_on_in_its_own_dialect_and_in_one_process_at_a_time() {
    let site = TestSite::new();
    run_scripted_agent(&site, &[text("hi")], &["--dialect", "miniclaw", "hello"]);
    let said = run_scripted_agent(&site, &[text("hi")], &["--resume", "-p", "hello"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("add `--dialect miniclaw`"), "{said:?}");
    let mut command = scripted_agent(&site, &[json!({"text": "I thi", "stall": true})], &["--json", "think"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("\"text\"") {}
    let said = run_scripted_agent(&site, &[text("hi")], &["--resume", "-p", "hello"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("in use by another process"), "{said:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let said = run_scripted_agent(&site, &[text("Here I am.")], &["--resume", "-p", "hello"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "Here I am.\n"), "{said:?}");
}

#[test]
fn an_idle_session_expires() {
    let site = TestSite::new();
    run_scripted_agent(&site, &[text("hi")], &["old"]);
    run_scripted_agent(&site, &[text("hi")], &["young"]);
    let store = rusqlite::Connection::open(site.state.join(ringfence::store::STORE_FILE)).unwrap();
    store.execute("UPDATE sessions SET updated = updated - 91 * 86400 * 1000000000 WHERE title = 'old'", []).unwrap();
    run_scripted_agent(&site, &[text("hi")], &["new"]);
    let heads: Value = serde_json::from_str(&site.run(&["sessions", "list", "--json"]).out).unwrap();
    let titles: Vec<&Value> = heads.as_array().unwrap().iter().map(|head| &head["title"]).collect();
    assert_eq!(titles, ["new", "young"]);
    let left: i64 = store
        .query_row("SELECT count(*) FROM entries WHERE session NOT IN (SELECT id FROM sessions)", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0, "what was said in it goes too");
}
