//! Runs of the dialect `crewagent`: mounts, the state of a run, and its log.

use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite, cli_output};

/// A run of a project with a package beside it.
pub(crate) struct TestRun {
    pub(crate) site: TestSite,
    pub(crate) id: String,
}

impl TestRun {
    pub(crate) fn new() -> Self {
        Self::start(None)
    }

    /// A run that goes along this graph.
    pub(crate) fn with_graph(graph: &str) -> Self {
        Self::start(Some(graph))
    }

    fn start(graph: Option<&str>) -> Self {
        let site = TestSite::new();
        std::fs::create_dir(site.root().join("pkg")).unwrap();
        std::fs::write(site.root().join("pkg/step.md"), "# Step\n").unwrap();
        let run = Self { site, id: "first".to_owned() };
        let mut command = run.site.command(&["workflow", "new", "--run", "first", "--mount", &run.mount()]);
        if let Some(graph) = graph {
            std::fs::write(run.site.root().join("pkg/workflow.graph.json"), graph).unwrap();
            command.args(["--graph", "@pkg/workflow.graph.json"]);
        }
        let said = cli_output(command.output().unwrap());
        assert_eq!((said.code, said.out.as_str()), (Some(0), "first\n"), "{said:?}");
        run
    }

    pub(crate) fn mount(&self) -> String {
        format!("pkg={}:ro", self.site.root().join("pkg").display())
    }

    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> CliOutput {
        self.call_with(&["--dialect", "crewagent"], tool, arguments)
    }

    /// The same in another dialect, or with further options.
    pub(crate) fn call_with(&self, options: &[&str], tool: &str, arguments: &Value) -> CliOutput {
        let arguments = arguments.to_string();
        let mut command = self.site.command(&["call", tool, &arguments, "--mount", &self.mount(), "--run", &self.id]);
        cli_output(command.args(options).output().unwrap())
    }

    /// The same as an agent of this config.
    pub(crate) fn call_as(&self, agent: &str, config: &str, tool: &str, arguments: &Value) -> CliOutput {
        let file = self.site.root().join("agents.toml");
        std::fs::write(&file, config).unwrap();
        let options = ["--dialect", "crewagent", "--agent", agent, "--config", file.to_str().unwrap()];
        self.call_with(&options, tool, arguments)
    }

    pub(crate) fn fields(&self, tool: &str, arguments: &Value) -> Value {
        let said = self.call(tool, arguments);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.reply()
    }
}

#[test]
fn the_three_mounts_are_reached_by_their_aliases_and_nothing_else_is() {
    let run = TestRun::new();
    assert_eq!(run.fields("fs.read", &json!({"path": "@pkg/step.md"}))["content"], "# Step\n");
    let written = run.fields("fs.write", &json!({"path": "@project/a/b.md", "content": "x"}));
    assert_eq!((&written["path"], &written["bytesWritten"]), (&json!("@project/a/b.md"), &json!(1)));
    run.fields("fs.write", &json!({"path": "@state/notes.md", "content": "x"}));
    assert_eq!(
        run.fields("fs.list", &json!({"path": "@state"}))["entries"],
        json!(["logs/", "notes.md", "workflow.md"])
    );
    for path in ["a/b.md", "@nowhere/x", "@project/../x", "/etc/passwd", "@project/a/../b", "@", "C:\\x"] {
        assert_eq!(run.call("fs.read", &json!({"path": path})).error(), "E_SANDBOX_VIOLATION", "{path}");
    }
    let arguments = json!({"path": "@pkg/step.md", "content": "x"});
    assert_eq!(run.call("fs.write", &arguments).error(), "E_SANDBOX_VIOLATION");
}

#[test]
fn state_requires_a_run() {
    let run = TestRun::new();
    let state = format!("state={}:rw", run.site.outside.display());
    for options in [&["--mount", &state][..], &["--mount", &state, "--run", "first"]] {
        let said =
            run.site.run(&[&["call", "fs.list", r#"{"path":"@state"}"#, "--dialect", "crewagent"], options].concat());
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains("start with `--workflow-run ID`"), "{said:?}");
    }
    let said = run.site.run(&["call", "fs.list", r#"{"path":"@state"}"#, "--dialect", "crewagent"]);
    assert_eq!(said.error(), "E_SANDBOX_VIOLATION");
}

#[test]
fn a_call_is_made_for_the_agent_of_the_node_that_the_run_stands_at() {
    let node = |id: &str, agent: Option<&str>| json!({"id": id, "type": "step", "file": "a.md", "agentId": agent});
    let mut nodes = [node("one", Some("scout")), node("two", Some("stranger")), node("three", None)];
    nodes[2].as_object_mut().unwrap().remove("agentId");
    let edges = json!([{"from": "one", "to": "two", "label": "x"}, {"from": "two", "to": "three", "label": "y"}]);
    let graph = json!({"schemaVersion": "1.1", "entryNodeId": "one", "nodes": nodes, "edges": edges});
    let run = TestRun::with_graph(&graph.to_string());
    run.site.write("long.txt", "x".repeat(100));
    let config = run.site.root().join("agents.toml");
    std::fs::write(&config, "[agents.scout.tools.fs]\nmaxReadBytes = 10\n[agents.other.tools.fs]\nmaxReadBytes = 20\n")
        .unwrap();
    let options = ["--dialect", "crewagent", "--config", config.to_str().unwrap()];
    let read = |more: &[&str]| {
        let options = [&options[..], more].concat();
        run.call_with(&options, "fs.read", &json!({"path": "@project/long.txt"})).reply()
    };
    let whose = || {
        let log = run.fields("fs.read", &json!({"path": "@state/logs/execution.jsonl"}))["content"].clone();
        let last = log.as_str().unwrap().lines().last().unwrap().to_owned();
        serde_json::from_str::<Value>(&last).unwrap()["agentId"].clone()
    };
    let go = |to: &str| {
        let update = json!({"currentNodeId": {"set": to}});
        let patch =
            json!({"path": "@state/workflow.md", "patch": {"operation": "updateFrontmatter", "update": update}});
        run.fields("fs.apply_patch", &patch);
    };
    let limited = |reply: &Value| reply["contentPreview"].as_str().map(str::len);
    assert_eq!((limited(&read(&[])), whose()), (Some(10), json!("scout")));
    // Who is named holds.
    assert_eq!((limited(&read(&["--agent", "other"])), whose()), (Some(20), json!("other")));
    go("two");
    assert_eq!((limited(&read(&[])), whose()), (None, json!("stranger")));
    go("three");
    assert_eq!((limited(&read(&[])), whose()), (None, json!(null)));
}

#[test]
fn a_run_has_a_state_of_its_own_and_its_id_is_taken_once() {
    let run = TestRun::new();
    run.fields("fs.write", &json!({"path": "@state/notes.md", "content": "of the first"}));
    assert_eq!(run.site.run(&["workflow", "new", "--run", "first"]).code, Some(2));
    assert_eq!(run.site.run(&["workflow", "new", "--run", "../first"]).code, Some(2));
    assert_eq!(run.site.run(&["workflow", "new", "--run", "second"]).code, Some(0));
    let second = TestRun { id: "second".to_owned(), ..run };
    assert_eq!(second.call("fs.read", &json!({"path": "@state/notes.md"})).error(), "ENOENT");
    let missing = TestRun { id: "third".to_owned(), ..second };
    let said = missing.call("fs.read", &json!({"path": "@state/notes.md"}));
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("this project has no run `third`"), "{said:?}");
}

#[test]
fn every_finished_call_is_one_line_in_the_log_of_the_run() {
    let run = TestRun::new();
    run.fields("fs.write", &json!({"path": "@project/f", "content": "CONTENTS"}));
    run.fields("fs.read", &json!({"path": "@project/f"}));
    assert_eq!(run.call("fs.read", &json!({"path": "@project/missing"})).error(), "ENOENT");
    assert_eq!(run.call("fs.read", &json!({"pat": "x"})).error(), "E_INVALID_ARGS");
    let forged = json!({"path": "@state/logs/execution.jsonl", "content": "forged"});
    assert_eq!(run.call("fs.write", &forged).error(), "E_INTERNAL");
    let read = run.fields("fs.read", &json!({"path": "@state/logs/execution.jsonl"}));
    let text = read["content"].as_str().unwrap();
    assert!(!text.contains("CONTENTS") && !text.contains("forged"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |line: &Value| (line["toolName"].clone(), line["input"]["path"].clone(), line["output"]["ok"].clone());
    let expected = [
        (json!("fs.write"), json!("@project/f"), json!(true)),
        (json!("fs.read"), json!("@project/f"), json!(true)),
        (json!("fs.read"), json!("@project/missing"), json!(false)),
        (json!("fs.read"), Value::Null, json!(false)),
        (json!("fs.write"), json!("@state/logs/execution.jsonl"), json!(false)),
    ];
    assert_eq!(lines.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(lines[0]["input"]["content"]["bytes"], 8);
    assert!(lines.iter().all(|line| line["kind"] == "tool.exec" && line["toolCallId"].is_string()));
}

#[test]
fn large_files_are_read_in_part_and_by_lines() {
    let run = TestRun::new();
    run.site.write("large.txt", "line\n".repeat(20_000));
    let read = run.fields("fs.read", &json!({"path": "@project/large.txt"}));
    assert_eq!((&read["truncated"], &read["bytes"]), (&json!(true), &json!(100_000)));
    assert_eq!(read["contentPreview"].as_str().unwrap().len(), 50_000);
    assert!(read["content"].is_null() && read["hint"].is_string());
    let window = json!({"path": "@project/large.txt", "startLine": 3, "endLine": 4});
    let part = run.fields("fs.read", &window);
    assert_eq!(
        (&part["content"], &part["sha256"], &part["bytes"]),
        (&json!("line\nline\n"), &read["sha256"], &read["bytes"])
    );
    let wide = json!({"path": "@project/large.txt", "startLine": 1});
    assert_eq!(run.call("fs.read", &wide).error(), "E_READ_LIMIT");
    let backwards = json!({"path": "@project/large.txt", "startLine": 4, "endLine": 3});
    assert_eq!(run.call("fs.read", &backwards).error(), "E_INVALID_ARGS");
    let long = json!({"path": "@project/new.txt", "content": "x".repeat(100_001)});
    assert_eq!(run.call("fs.write", &long).error(), "E_WRITE_LIMIT");
    let stale = json!({"path": "@project/large.txt", "content": "x", "ifMatchSha256": "0".repeat(64)});
    assert_eq!(run.call("fs.write", &stale).error(), "E_PRECONDITION_FAILED");
    run.site.write("binary", b"a\0b");
    assert_eq!(run.call("fs.read", &json!({"path": "@project/binary"})).error(), "FS_READ_BINARY_FALLBACK");
}

#[test]
fn a_listing_leaves_hidden_entries_and_links_out_and_stops_at_two_hundred() {
    let run = TestRun::new();
    run.site.write("d/b.txt", "");
    run.site.write("d/.hidden", "");
    run.site.write("d/a/x", "");
    std::os::unix::fs::symlink("b.txt", run.site.workspace.join("d/link")).unwrap();
    assert_eq!(
        run.fields("fs.list", &json!({"path": "@project/d"})),
        json!({"ok": true, "path": "@project/d", "entries": ["a/", "b.txt"]})
    );
    for number in 0..201 {
        run.site.write(&format!("many/{number:03}"), "");
    }
    let many = run.fields("fs.list", &json!({"path": "@project/many"}));
    assert_eq!((many["entriesPreview"].as_array().unwrap().len(), &many["truncated"]), (200, &json!(true)));
    assert!(many["entries"].is_null() && many["hint"].is_string());
}

const GRAPH: &str = r#"{"schemaVersion": "1.1", "entryNodeId": "first", "nodes": [{"id": "first", "type": "step", "file": "f"},
    {"id": "second", "type": "end", "file": "s"}], "edges": [{"from": "first", "to": "second", "label": "on"}]}"#;

fn transition_to(node: &str) -> Value {
    json!({"path": "@state/workflow.md", "operation": "updateFrontmatter", "update": {"currentNodeId": {"set": node}}})
}

#[test]
fn a_run_that_was_made_with_a_graph_keeps_it_whatever_is_said_later() {
    let run = TestRun::with_graph(GRAPH);
    let state = run.fields("fs.read", &json!({"path": "@state/workflow.md"}));
    assert!(state["content"].as_str().unwrap().contains("currentNodeId: \"first\""), "{state}");
    assert_eq!(run.call("fs.apply_patch", &transition_to("third")).error(), "E_INVALID_TRANSITION");
    let options = ["--dialect", "crewagent", "--graph", "@pkg/other.json"];
    let said = run.call_with(&options, "fs.apply_patch", &transition_to("third"));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("uses the graph `@pkg/workflow.graph.json`"), "{said:?}");
    let same = ["--dialect", "crewagent", "--graph", "@pkg/workflow.graph.json"];
    assert_eq!(run.call_with(&same, "fs.apply_patch", &transition_to("second")).code, Some(0));
}

#[test]
fn a_graph_binds_a_run_only_where_no_tool_can_change_it() {
    let run = TestRun::new();
    run.site.write("graph.json", GRAPH);
    std::fs::write(run.site.root().join("pkg/graph.json"), GRAPH).unwrap();
    let with = |graph: &str| {
        run.call_with(&["--dialect", "crewagent", "--graph", graph], "fs.apply_patch", &transition_to("third"))
    };
    for graph in ["@project/graph.json", "@state/graph.json", "graph.json", "@nowhere/graph.json"] {
        let said = with(graph);
        assert_eq!(said.code, Some(2), "{graph}: {said:?}");
        assert!(!said.err.contains(run.site.root().to_str().unwrap()), "{said:?}");
    }
    assert_eq!(with("@pkg/graph.json").error(), "E_INVALID_TRANSITION");
    assert_eq!(with("@pkg/none.json").error(), "E_SCHEMA_VALIDATION");
    let alone = run.site.run(&["tools", "--graph", "@pkg/graph.json"]);
    assert_eq!(alone.code, Some(2), "{alone:?}");
    let broken = run.site.root().join("pkg/broken.json");
    std::fs::write(&broken, "{").unwrap();
    let mount = format!("pkg={}:ro", run.site.root().join("pkg").display());
    let made = run.site.run(&["workflow", "new", "--run", "x", "--mount", &mount, "--graph", "@pkg/broken.json"]);
    assert_eq!(made.code, Some(2), "{made:?}");
}

#[test]
fn the_prompt_states_the_limits_of_the_agent() {
    let run = TestRun::new();
    let config = "[policy.fs]\nmaxWriteBytes = 5000\n[agents.small.tools.fs]\nmaxReadBytes = 1000\n\
                  [agents.none.tools.fs]\nenabled = false\n";
    let file = run.site.root().join("agents.toml");
    std::fs::write(&file, config).unwrap();
    let mount = format!("pkg={}:ro", run.site.root().join("pkg").display());
    let told = |agent: &str| {
        let options = ["--dialect", "crewagent", "--agent", agent, "--config", file.to_str().unwrap()];
        let mut command = run.site.command(&["tools", "--format", "prompt", "--run", "first", "--mount", &mount]);
        cli_output(command.args(options).output().unwrap()).out
    };
    expect_test::expect![[r#"
        You have these tools for files:
        - fs.read: Read a text file, or some of its lines.
        - fs.write: Write a text file: create it, or replace its contents.
        - fs.list: List the entries of a directory.
        - fs.apply_patch: Update the front matter of a run's state file; the rest of the file does not change.
        - fs.search: Search a file, or all files in a directory tree, for matching lines.
        Every path begins with one of `@project`, `@pkg` (read-only), `@state`.
        One read returns at most 1000 bytes and one write takes at most 5000; search larger files, or read them by lines.
        A call is stopped after 30 seconds.
    "#]]
    .assert_eq(&told("small"));
    assert_eq!(told("none"), "You have no tools for files.\n");
    let said = run.call_as("small", config, "fs.write", &json!({"path": "@project/f", "content": "x".repeat(5001)}));
    assert_eq!(said.error(), "E_WRITE_LIMIT");
}

#[test]
fn a_prompt_says_of_larger_files_what_the_tools_can_do() {
    let site = TestSite::new();
    let told = |dialect| {
        let out =
            cli_output(site.command(&["tools", "--format", "prompt", "--dialect", dialect]).output().unwrap()).out;
        out.lines().find(|line| line.starts_with("One read")).unwrap().to_owned()
    };
    assert!(told("miniclaw").ends_with("takes at most 1048576; larger files cannot be read."), "{}", told("miniclaw"));
    assert!(told("crewagent").ends_with("; search larger files, or read them by lines."), "{}", told("crewagent"));
    assert!(told("standard").ends_with("; search larger files, or read them by lines."), "{}", told("standard"));
    for (dialect, hint) in [
        ("claude", "search larger files, or read them by lines."),
        ("codex", "read larger files by lines."),
        ("gemini", "search larger files, or read them by lines."),
    ] {
        let told = told(dialect);
        assert!(told.starts_with("One read returns at most 32000 bytes") && told.ends_with(hint), "{told}");
    }
}

#[test]
fn a_prompt_says_when_a_call_and_a_program_are_stopped() {
    let site = TestSite::new();
    let told = |options: &[&str]| {
        let out = cli_output(site.command(&[&["tools", "--format", "prompt"], options].concat()).output().unwrap()).out;
        out.lines().last().unwrap().to_owned()
    };
    for (dialect, expected) in [
        ("standard", "A call is stopped after 30 seconds, a program after 60."),
        ("claude", "A call is stopped after 30 seconds, a command after 120."),
        ("codex", "A call is stopped after 30 seconds; a command goes on in the background."),
        ("gemini", "A call is stopped after 30 seconds, a command after 120."),
        ("miniclaw", "A call is stopped after 10 seconds."),
    ] {
        assert_eq!(told(&["--dialect", dialect]), expected);
    }
    assert_eq!(told(&["--deny-tool", "run_code"]), "A call is stopped after 30 seconds.");
}

#[test]
fn a_run_that_was_not_made_whole_cannot_be_used() {
    let run = TestRun::with_graph(GRAPH);
    let project = std::fs::read_dir(run.site.state.join("projects")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(project.join("runs/first/run.json")).unwrap();
    let said = run.call("fs.read", &json!({"path": "@state/workflow.md"}));
    assert_eq!(said.code, Some(2), "{said:?}");
}

#[test]
fn the_log_of_a_run_has_no_contents_under_any_name_and_no_line_of_any_length() {
    let run = TestRun::new();
    let long = "k".repeat(100_000);
    for arguments in
        [json!({"contents": "HIDDEN"}), json!({"path": "@project/f", "text": "HIDDEN"}), json!({long: "x"})]
    {
        run.call("fs.write", &arguments);
    }
    let log = run.fields("fs.read", &json!({"path": "@state/logs/execution.jsonl"}));
    let text = log["content"].as_str().unwrap();
    assert!(!text.contains("HIDDEN"), "{text}");
    assert!(text.lines().all(|line| line.len() < 4000), "{text}");
}
