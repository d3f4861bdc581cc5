//! The document that the dialect `crewagent` comes from, line by line: each of its acceptance criteria (`ac…`) and each
//! line of its test plan (`plan…`) is a test of its own here.

use std::os::unix::fs::symlink;

use ringfence::app::build_app;
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, MountSetting, load};
use ringfence_fs::MountAccess;
use ringfence_kernel::{Dialect, ToolCall};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::workflow_runs::TestRun;

const WORKFLOW: &str = "---\n# where the run is\nschemaVersion: \"1.1\"\nworkflowType: 'notes'   # of this package\n\
                        currentNodeId: a\nstepsCompleted:\n  - start\nvariables: {mode: fast}\nextra: kept\n---\n\n# Body\n---\n";

const GRAPH: &str = r#"{"schemaVersion": "1.1", "entryNodeId": "a",
    "nodes": [{"id": "a", "type": "step", "file": "a.md"}, {"id": "b", "type": "decision", "file": "b.md"},
              {"id": "c", "type": "end", "file": "c.md"}],
    "edges": [{"from": "a", "to": "b", "label": "next", "isDefault": true},
              {"from": "b", "to": "c", "label": "finish", "conditionText": "all is well"},
              {"from": "b", "to": "a", "label": "again"}]}"#;

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn patch(update: Value) -> Value {
    json!({"path": "@state/workflow.md", "patch": {"operation": "updateFrontmatter", "update": update}})
}

/// A run whose state is `WORKFLOW`, bound to no graph.
fn raw_run() -> TestRun {
    let run = TestRun::new();
    run.fields("fs.write", &json!({"path": "@state/workflow.md", "content": WORKFLOW}));
    run
}

/// A run that goes along `GRAPH`.
fn bound_run() -> TestRun {
    let run = TestRun::with_graph(GRAPH);
    run.fields("fs.write", &json!({"path": "@state/workflow.md", "content": WORKFLOW}));
    run
}

fn state(run: &TestRun) -> String {
    run.fields("fs.read", &json!({"path": "@state/workflow.md"}))["content"].as_str().unwrap().to_owned()
}

#[test]
fn ac1_project_and_state_are_written_and_pkg_is_only_read() {
    let run = TestRun::new();
    for path in ["@project/a.md", "@state/a.md"] {
        run.fields("fs.write", &json!({"path": path, "content": "x"}));
        assert_eq!(run.fields("fs.read", &json!({"path": path}))["content"], "x");
    }
    run.fields("fs.read", &json!({"path": "@pkg/step.md"}));
    let write = json!({"path": "@pkg/a.md", "content": "x"});
    assert_eq!(run.call("fs.write", &write).error(), "E_SANDBOX_VIOLATION");
}

#[test]
fn ac1_all_paths_start_with_a_valid_mount_alias() {
    let run = TestRun::new();
    let paths =
        ["a.md", "", ".", "/a.md", "project/a.md", "@", "@/a.md", "@@project/a", "@other/a", "@project@pkg/a", "\0"];
    for path in paths {
        for (tool, rest) in [("fs.read", json!({})), ("fs.list", json!({})), ("fs.search", json!({"pattern": "x"}))] {
            let mut arguments = rest;
            arguments["path"] = json!(path);
            assert_eq!(run.call(tool, &arguments).error(), "E_SANDBOX_VIOLATION", "{tool} {path:?}");
        }
    }
}

#[test]
fn ac1_a_traversal_that_escapes_a_mount_is_rejected() {
    let run = TestRun::new();
    for path in ["@project/..", "@project/../ws/f", "@pkg/../../etc/passwd", "@state/../x", "@project/a/../../../x"] {
        assert_eq!(run.call("fs.read", &json!({"path": path})).error(), "E_SANDBOX_VIOLATION", "{path}");
    }
}

#[test]
fn ac1_a_link_is_resolved_before_it_is_judged() {
    let run = TestRun::new();
    symlink(&run.site.outside, run.site.workspace.join("out")).unwrap();
    symlink("real.md", run.site.workspace.join("in.md")).unwrap();
    run.site.write("real.md", "inside");
    assert_eq!(run.call("fs.read", &json!({"path": "@project/out/secret"})).error(), "E_SANDBOX_VIOLATION");
    assert_eq!(run.fields("fs.read", &json!({"path": "@project/in.md"}))["content"], "inside");
}

#[test]
fn ac1_writes_to_pkg_are_rejected_by_every_tool_that_writes() {
    let run = TestRun::new();
    let write = json!({"path": "@pkg/step.md", "content": "x"});
    assert_eq!(run.call("fs.write", &write).error(), "E_SANDBOX_VIOLATION");
    let mut update = patch(json!({"currentNodeId": {"set": "x"}}));
    update["path"] = json!("@pkg/step.md");
    assert_eq!(run.call("fs.apply_patch", &update).error(), "E_SANDBOX_VIOLATION");
    assert_eq!(run.fields("fs.read", &json!({"path": "@pkg/step.md"}))["content"], "# Step\n");
}

#[test]
fn ac2_list_gives_the_contents_of_a_directory() {
    let run = TestRun::new();
    run.site.write("d/b.md", "");
    run.site.write("d/a/x.md", "");
    let listed = run.fields("fs.list", &json!({"path": "@project/d"}));
    assert_eq!(listed, json!({"ok": true, "path": "@project/d", "entries": ["a/", "b.md"]}));
}

#[test]
fn ac2_read_takes_a_window_and_returns_the_hash_of_the_whole_file() {
    let run = TestRun::new();
    run.site.write("f.md", "one\ntwo\nthree\n");
    let read = run.fields("fs.read", &json!({"path": "@project/f.md", "startLine": 2, "endLine": 2}));
    assert_eq!(read["content"], "two\n");
    assert_eq!((&read["sha256"], &read["bytes"]), (&json!(sha256("one\ntwo\nthree\n")), &json!(14)));
}

#[test]
fn ac2_write_is_atomic_and_returns_the_new_hash() {
    let run = TestRun::new();
    run.site.write("f.md", "old");
    let before = inode(&run);
    let written = run.fields("fs.write", &json!({"path": "@project/f.md", "content": "new"}));
    assert_eq!(written, json!({"ok": true, "path": "@project/f.md", "bytesWritten": 3, "sha256After": sha256("new")}));
    // A new file took the name: a partial file was never visible.
    assert_ne!(inode(&run), before);
    assert_eq!(run.site.temp_files(), [""; 0]);
}

fn inode(run: &TestRun) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(run.site.workspace.join("f.md")).unwrap().ino()
}

#[test]
fn ac2_search_gives_structured_matches_with_lines_around_them() {
    let run = TestRun::new();
    run.site.write("f.md", "a\nb needle\nc\n");
    let found = run.fields("fs.search", &json!({"path": "@project", "pattern": "needle"}));
    let one =
        json!({"path": "@project/f.md", "line": 2, "column": 3, "text": "b needle", "before": ["a"], "after": ["c"]});
    assert_eq!(found["matches"], json!([one]));
    assert_eq!(found["stats"], json!({"filesScanned": 1, "matchesFound": 1}));
}

#[test]
fn ac2_apply_patch_updates_the_front_matter_of_the_workflow() {
    let run = raw_run();
    let update = json!({"stepsCompleted": {"append": ["start", "one"]}, "variables": {"set": {"n": 1}},
        "currentNodeId": {"set": "b"}});
    let patched = run.fields("fs.apply_patch", &patch(update));
    let text = state(&run);
    assert_eq!(
        patched,
        json!({"ok": true, "path": "@state/workflow.md", "sha256Before": sha256(WORKFLOW), "sha256After": sha256(&text)})
    );
    for kept in ["# where the run is", "workflowType: 'notes'   # of this package", "extra: kept\n---\n\n# Body\n---\n"]
    {
        assert!(text.contains(kept), "{kept} is gone:\n{text}");
    }
    assert_eq!(text.matches("start").count(), 1, "{text}");
}

#[test]
fn ac3_every_reply_is_ok_with_data_or_an_error() {
    let run = raw_run();
    let calls = [
        ("fs.list", json!({"path": "@project"})),
        ("fs.read", json!({"path": "@state/workflow.md"})),
        ("fs.search", json!({"path": "@state", "pattern": "start"})),
        ("fs.write", json!({"path": "@project/f", "content": ""})),
        ("fs.apply_patch", patch(json!({"currentNodeId": {"set": "b"}}))),
    ];
    for (tool, good) in calls {
        let reply = run.fields(tool, &good);
        assert_eq!(reply["ok"], true, "{tool}");
        assert!(reply.as_object().unwrap().len() > 1 && reply["error"].is_null(), "{tool}: {reply}");
        let refused = run.call(tool, &json!({"path": "@nowhere/x"}));
        let error = &refused.reply()["error"];
        assert!(error["code"].is_string() && error["message"].is_string(), "{tool}: {error}");
    }
}

#[test]
fn ac4_enoent_is_a_file_that_is_not_there() {
    let run = TestRun::new();
    for (tool, arguments) in [
        ("fs.read", json!({"path": "@project/none"})),
        ("fs.list", json!({"path": "@project/none"})),
        ("fs.search", json!({"path": "@project/none", "pattern": "x"})),
    ] {
        assert_eq!(run.call(tool, &arguments).error(), "ENOENT", "{tool}");
    }
    let mut update = patch(json!({"currentNodeId": {"set": "x"}}));
    update["path"] = json!("@state/none.md");
    assert_eq!(run.call("fs.apply_patch", &update).error(), "ENOENT");
}

#[test]
fn ac4_e_sandbox_violation_is_a_path_outside_of_the_mounts() {
    let run = TestRun::new();
    assert_eq!(run.call("fs.read", &json!({"path": "/etc/passwd"})).error(), "E_SANDBOX_VIOLATION");
}

#[test]
fn ac4_e_read_limit_is_a_window_that_is_too_large() {
    let run = TestRun::new();
    run.site.write("f", "line\n".repeat(20_000));
    let window = json!({"path": "@project/f", "startLine": 1, "endLine": 20_000});
    assert_eq!(run.call("fs.read", &window).error(), "E_READ_LIMIT");
}

#[test]
fn ac4_e_write_limit_is_content_that_is_too_large() {
    let run = TestRun::new();
    let write = json!({"path": "@project/f", "content": "x".repeat(100_001)});
    assert_eq!(run.call("fs.write", &write).error(), "E_WRITE_LIMIT");
    assert!(!run.site.workspace.join("f").exists());
}

#[test]
fn ac4_e_invalid_frontmatter_is_yaml_that_does_not_parse() {
    let run = raw_run();
    for content in
        ["no front matter", "---\na: [\n---\n", "---\na: 1\na: 2\n---\n", "---\na: 1\n", "---\na: &x [*x]\n---\n"]
    {
        let write = json!({"path": "@state/workflow.md", "content": content});
        assert_eq!(run.call("fs.write", &write).error(), "E_INVALID_FRONTMATTER", "{content}");
    }
    assert_eq!(state(&run), WORKFLOW);
}

#[test]
fn ac4_e_schema_validation_is_front_matter_of_the_wrong_shape() {
    let run = raw_run();
    let breaks = [
        ("schemaVersion: \"1.1\"", "schemaVersion: \"2.0\""),
        ("schemaVersion: \"1.1\"", "schemaVersion: 1.1"),
        ("workflowType: 'notes'", "workflowType: ''"),
        ("currentNodeId: a", "currentNode: a"),
        ("currentNodeId: a", "currentNodeId: 7"),
        ("variables: {mode: fast}", "variables: fast"),
        ("extra: kept", "updatedAt: yesterday"),
        ("extra: kept", "decisionLog: [{from: a, to: b, label: x, why: y}]"),
        ("extra: kept", "decisionLog: [{from: a, to: b}]"),
        ("extra: kept", "artifacts: [1]"),
    ];
    for (good, bad) in breaks {
        let write = json!({"path": "@state/workflow.md", "content": WORKFLOW.replace(good, bad)});
        assert_eq!(run.call("fs.write", &write).error(), "E_SCHEMA_VALIDATION", "{bad}");
    }
    assert_eq!(state(&run), WORKFLOW);
}

#[test]
fn ac4_e_invalid_transition_is_a_step_that_the_graph_does_not_have() {
    let run = bound_run();
    let refused = run.call("fs.apply_patch", &patch(json!({"currentNodeId": {"set": "c"}})));
    assert_eq!(refused.error(), "E_INVALID_TRANSITION");
    let expected = json!({"from": "a", "to": "c", "allowedNext": [{"to": "b", "label": "next", "isDefault": true}]});
    assert_eq!(refused.reply()["error"]["details"], expected);
    assert_eq!(state(&run), WORKFLOW);
    run.fields("fs.apply_patch", &patch(json!({"currentNodeId": {"set": "b"}})));
    let refused = run.call("fs.apply_patch", &patch(json!({"currentNodeId": {"set": "elsewhere"}})));
    let next = json!([{"to": "c", "label": "finish", "conditionText": "all is well"}, {"to": "a", "label": "again"}]);
    assert_eq!(refused.reply()["error"]["details"]["allowedNext"], next);
}

#[test]
fn ac4_e_precondition_failed_is_another_hash() {
    let run = raw_run();
    let mut update = patch(json!({"currentNodeId": {"set": "b"}}));
    update["patch"]["ifMatchSha256"] = json!("0".repeat(64));
    assert_eq!(run.call("fs.apply_patch", &update).error(), "E_PRECONDITION_FAILED");
    update["patch"]["ifMatchSha256"] = json!(sha256(WORKFLOW));
    run.fields("fs.apply_patch", &update);
}

#[test]
fn ac4_e_internal_is_what_nothing_else_fits() {
    let run = TestRun::new();
    let reply = run.call("fs.read", &json!({"path": "@project"}));
    assert_eq!(reply.error(), "E_INTERNAL");
    assert!(!reply.out.contains(run.site.root().to_str().unwrap()), "{reply:?}");
}

#[test]
fn ac5_a_large_file_is_read_in_part_with_a_hint() {
    let run = TestRun::new();
    run.site.write("f", "x".repeat(60_000));
    let read = run.fields("fs.read", &json!({"path": "@project/f"}));
    assert_eq!((&read["truncated"], read["contentPreview"].as_str().unwrap().len()), (&json!(true), 50_000));
    assert!(read["hint"].as_str().unwrap().contains("fs.search"), "{read}");
}

#[test]
fn ac5_the_limits_of_the_agent_hold() {
    let run = TestRun::new();
    run.site.write("f", "x".repeat(2000));
    let config = "[policy.fs]\n[agents.small.tools.fs]\nmaxReadBytes = 1000\nmaxWriteBytes = 500\n";
    let with = |tool: &str, arguments: Value| run.call_as("small", config, tool, &arguments);
    let read = with("fs.read", json!({"path": "@project/f"})).reply();
    assert_eq!(read["contentPreview"].as_str().unwrap().len(), 1000);
    let write = json!({"path": "@project/g", "content": "x".repeat(501)});
    assert_eq!(with("fs.write", write).error(), "E_WRITE_LIMIT");
    let off = "[agents.small.tools.fs]\nenabled = false\n";
    let refused = run.call_as("small", off, "fs.read", &json!({"path": "@project/f"}));
    assert_eq!(refused.error(), "TOOL_NOT_AVAILABLE");
}

#[test]
fn ac5_every_execution_is_in_the_log_of_the_run() {
    let run = raw_run();
    run.call("fs.apply_patch", &patch(json!({"currentNodeId": {"set": "b"}})));
    run.call("fs.apply_patch", &json!({"path": "@project/f"}));
    let log = run.fields("fs.read", &json!({"path": "@state/logs/execution.jsonl"}));
    let lines: Vec<Value> =
        log["content"].as_str().unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended: Vec<_> = lines.iter().map(|line| (line["toolName"].as_str().unwrap(), &line["output"]["ok"])).collect();
    assert_eq!(
        ended,
        [("fs.write", &json!(true)), ("fs.apply_patch", &json!(true)), ("fs.apply_patch", &json!(false))]
    );
    assert!(lines.iter().all(|line| line["durationMs"].is_u64() && line["ts"].is_string()));
}

#[test]
fn ac6_writes_of_the_workflow_are_parsed_then_matched_with_the_schema_then_with_the_graph() {
    let run = bound_run();
    // Each text breaks everything that comes after it too, and the first complaint is the one that is made.
    for (content, code) in [
        ("---\na: [\n---\n", "E_INVALID_FRONTMATTER"),
        ("---\ncurrentNodeId: c\n---\n", "E_SCHEMA_VALIDATION"),
        (&WORKFLOW.replace("currentNodeId: a", "currentNodeId: c"), "E_INVALID_TRANSITION"),
        (&WORKFLOW.replace("  - start", "  - other"), "E_SCHEMA_VALIDATION"),
    ] {
        let write = json!({"path": "@state/workflow.md", "content": content});
        assert_eq!(run.call("fs.write", &write).error(), code, "{content}");
    }
    assert_eq!(state(&run), WORKFLOW);
    let removed = json!({"path": "@state/workflow.md", "content": WORKFLOW.replace("  - start", "  - other")});
    assert_eq!(run.call("fs.write", &removed).reply()["error"]["details"]["removed"], json!(["start"]));
}

#[test]
fn plan_traversal_is_rejected() {
    let run = TestRun::new();
    assert_eq!(run.call("fs.read", &json!({"path": "@project/../evil.txt"})).error(), "E_SANDBOX_VIOLATION");
    let write = json!({"path": "@project/../evil.txt", "content": "x"});
    assert_eq!(run.call("fs.write", &write).error(), "E_SANDBOX_VIOLATION");
    assert!(!run.site.root().join("evil.txt").exists());
}

#[test]
fn plan_a_link_under_project_that_points_outside_is_rejected() {
    let run = TestRun::new();
    symlink(run.site.outside.join("secret"), run.site.workspace.join("link")).unwrap();
    symlink("../outside/secret", run.site.workspace.join("relative")).unwrap();
    for name in ["link", "relative"] {
        let path = format!("@project/{name}");
        assert_eq!(run.call("fs.read", &json!({"path": path})).error(), "E_SANDBOX_VIOLATION");
        assert_eq!(run.call("fs.write", &json!({"path": path, "content": "x"})).error(), "E_SANDBOX_VIOLATION");
    }
    assert_eq!(std::fs::read_to_string(run.site.outside.join("secret")).unwrap(), "SECRET\n");
}

#[test]
fn plan_a_write_to_pkg_is_rejected() {
    let run = TestRun::new();
    let write = json!({"path": "@pkg/new.md", "content": "x"});
    assert_eq!(run.call("fs.write", &write).error(), "E_SANDBOX_VIOLATION");
    assert!(!run.site.root().join("pkg/new.md").exists());
}

#[test]
fn plan_read_windows_truncates_and_hashes() {
    let run = TestRun::new();
    let text = "line\n".repeat(12_000);
    run.site.write("f", &text);
    let whole = run.fields("fs.read", &json!({"path": "@project/f"}));
    let window = run.fields("fs.read", &json!({"path": "@project/f", "startLine": 2, "endLine": 3}));
    assert_eq!((&whole["truncated"], &window["truncated"]), (&json!(true), &json!(false)));
    assert_eq!(window["content"], "line\nline\n");
    assert_eq!((&whole["sha256"], &window["sha256"]), (&json!(sha256(&text)), &json!(sha256(&text))));
}

#[test]
fn plan_list_truncates_and_skips_hidden_entries_and_links() {
    let run = TestRun::new();
    for number in 0..201 {
        run.site.write(&format!("many/{number:03}"), "");
    }
    run.site.write("some/.hidden", "");
    run.site.write("some/seen", "");
    symlink("seen", run.site.workspace.join("some/link")).unwrap();
    let many = run.fields("fs.list", &json!({"path": "@project/many"}));
    assert_eq!((many["entriesPreview"].as_array().unwrap().len(), &many["truncated"]), (200, &json!(true)));
    assert_eq!(run.fields("fs.list", &json!({"path": "@project/some"}))["entries"], json!(["seen"]));
}

#[test]
fn plan_search_has_matches_with_context_and_truncates() {
    let run = TestRun::new();
    run.site.write("f", "x\nneedle\ny\n".repeat(60));
    run.site.write(".git/f", "needle");
    run.site.write("node_modules/f", "needle");
    let found = run.fields("fs.search", &json!({"path": "@project", "pattern": "/NEE[D]LE/i"}));
    let matches = found["matches"].as_array().unwrap();
    assert_eq!((matches.len(), &found["truncated"]), (50, &json!(true)));
    assert_eq!((&matches[0]["before"], &matches[0]["after"]), (&json!(["x"]), &json!(["y"])));
    let few =
        run.fields("fs.search", &json!({"path": "@project/f", "pattern": "needle", "maxMatches": 2, "before": 0}));
    assert_eq!((few["matches"].as_array().unwrap().len(), &few["matches"][0]["before"]), (2, &json!([])));
}

#[test]
fn plan_write_is_atomic_limited_and_conditional() {
    let run = TestRun::new();
    run.site.write("f", "old");
    let write = |content: &str, hash: &str| json!({"path": "@project/f", "content": content, "ifMatchSha256": hash});
    assert_eq!(run.call("fs.write", &write("new", &sha256("other"))).error(), "E_PRECONDITION_FAILED");
    assert_eq!(run.call("fs.write", &write(&"x".repeat(100_001), &sha256("old"))).error(), "E_WRITE_LIMIT");
    assert_eq!(run.site.read("f"), "old");
    run.fields("fs.write", &write("new", &sha256("old")));
    assert_eq!(run.site.read("f"), "new");
}

#[test]
fn plan_apply_patch_updates_atomically_and_conditionally() {
    let run = raw_run();
    let mut update = patch(json!({"stepsCompleted": {"append": ["one"]}}));
    update["patch"]["ifMatchSha256"] = json!(sha256("other"));
    assert_eq!(run.call("fs.apply_patch", &update).error(), "E_PRECONDITION_FAILED");
    assert_eq!(state(&run), WORKFLOW);
    let flat = json!({"path": "@state/workflow.md", "operation": "updateFrontmatter",
        "update": {"stepsCompleted": {"append": ["one"]}}, "ifMatchSha256": sha256(WORKFLOW)});
    run.fields("fs.apply_patch", &flat);
    assert!(state(&run).contains("one"));
    assert_eq!(run.fields("fs.list", &json!({"path": "@state"}))["entries"], json!(["logs/", "workflow.md"]));
}

#[test]
fn plan_the_tool_calls_of_a_model_become_tool_messages_and_lines_in_the_log() {
    let run = raw_run();
    let message = json!({"role": "assistant", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "fs-list", "arguments": "{\"path\": \"@state\"}"}},
        {"id": "call_2", "type": "function", "function": {"name": "fs.read", "arguments": "{\"path\": \"@nowhere\"}"}},
        {"id": "call_3", "type": "function", "function": {"name": "fs-fly", "arguments": "{}"}},
        {"id": "call_4", "type": "function", "function": {"name": "fs-read", "arguments": "{\"path\": "}},
    ]});
    let flags = CliFlags {
        workspace: Some(run.site.workspace.display().to_string()),
        dialect: Some(Dialect::Crewagent),
        mounts: vec![MountSetting {
            alias: "pkg".to_owned(),
            path: run.site.root().join("pkg").display().to_string(),
            rights: MountAccess::ReadOnly,
        }],
        run: Some(run.id.clone()),
        ..CliFlags::default()
    };
    let environment = run.site.environment();
    let app = build_app(load(&flags, &environment).unwrap(), &environment, Box::new(deny_all())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let messages: Vec<Value> = message["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|asked| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let call = ToolCall {
                id: text(&asked["id"]),
                name: text(&asked["function"]["name"]),
                arguments: text(&asked["function"]["arguments"]),
            };
            let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap();
            json!({"role": "tool", "tool_call_id": reply.call_id, "content": reply.text})
        })
        .collect();
    let contents: Vec<Value> =
        messages.iter().map(|message| serde_json::from_str(message["content"].as_str().unwrap()).unwrap()).collect();
    assert_eq!(contents[0], json!({"ok": true, "path": "@state", "entries": ["logs/", "workflow.md"]}));
    let codes: Vec<&Value> = contents[1..].iter().map(|content| &content["error"]["code"]).collect();
    assert_eq!(codes, ["E_SANDBOX_VIOLATION", "TOOL_NOT_AVAILABLE", "E_INVALID_ARGS"]);
    let log = run.fields("fs.read", &json!({"path": "@state/logs/execution.jsonl"}));
    let lines: Vec<Value> =
        log["content"].as_str().unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<&Value> = lines.iter().map(|line| &line["toolCallId"]).skip(1).collect();
    assert_eq!(ids, ["call_1", "call_2", "call_3", "call_4"]);
}
