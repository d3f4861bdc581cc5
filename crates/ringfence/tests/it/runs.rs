//! Runs of the dialect `crewagent`: mounts, the state of a run, and its log.

use serde_json::{Value, json};

use crate::site::{Said, Site};

struct Run {
    site: Site,
    id: String,
}

impl Run {
    fn new() -> Self {
        let site = Site::new();
        std::fs::create_dir(site.root().join("pkg")).unwrap();
        std::fs::write(site.root().join("pkg/step.md"), "# Step\n").unwrap();
        let said = site.run(&["workflow", "new", "--run", "first"]);
        assert_eq!((said.code, said.out.as_str()), (Some(0), "first\n"), "{said:?}");
        Self { site, id: "first".to_owned() }
    }

    fn call(&self, tool: &str, arguments: &Value) -> Said {
        let mount = format!("pkg={}:ro", self.site.root().join("pkg").display());
        let arguments = arguments.to_string();
        self.site.run(&["call", tool, &arguments, "--dialect", "crewagent", "--mount", &mount, "--run", &self.id])
    }

    fn fields(&self, tool: &str, arguments: &Value) -> Value {
        let said = self.call(tool, arguments);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.reply()
    }
}

#[test]
fn the_three_mounts_are_reached_by_their_aliases_and_nothing_else_is() {
    let run = Run::new();
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
fn a_run_has_a_state_of_its_own_and_its_id_is_taken_once() {
    let run = Run::new();
    run.fields("fs.write", &json!({"path": "@state/notes.md", "content": "of the first"}));
    assert_eq!(run.site.run(&["workflow", "new", "--run", "first"]).code, Some(2));
    assert_eq!(run.site.run(&["workflow", "new", "--run", "../first"]).code, Some(2));
    assert_eq!(run.site.run(&["workflow", "new", "--run", "second"]).code, Some(0));
    let second = Run { id: "second".to_owned(), ..run };
    assert_eq!(second.call("fs.read", &json!({"path": "@state/notes.md"})).error(), "ENOENT");
    let missing = Run { id: "third".to_owned(), ..second };
    let said = missing.call("fs.read", &json!({"path": "@state/notes.md"}));
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("there is no run `third`"), "{said:?}");
}

#[test]
fn every_finished_call_is_one_line_in_the_log_of_the_run() {
    let run = Run::new();
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
fn what_is_too_large_is_shown_in_part_and_by_lines() {
    let run = Run::new();
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
    let run = Run::new();
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
