//! Calls that models make by habit, with the argument names and types of other systems' tools.
//!
//! Each has one meaning and is served, or is refused with a sentence that names the right argument. Never in the dialects of
//! the seeds.

use serde_json::{Value, json};

use crate::site::TestSite;

/// Served, or the part of the refusal that names the fix.
enum HabitualOutcome {
    Served,
    Refused(&'static str),
}

use HabitualOutcome::{Refused, Served};

fn calls() -> Vec<(&'static str, Value, HabitualOutcome)> {
    let edit = |names: [&str; 3]| json!({names[0]: "src/a.rs", names[1]: "let one = 1;", names[2]: "let one = 2;"});
    vec![
        ("read_file", json!({"path": "src/a.rs"}), Served),
        ("read_file", json!({"path": "./src/a.rs"}), Served),
        ("read_file", json!({"path": "/workspace/src/a.rs"}), Served),
        ("read_file", json!({"file_path": "src/a.rs"}), Served),
        ("read_file", json!({"filePath": "src/a.rs"}), Served),
        ("read_file", json!({"file_path": "src/a.rs", "offset": 1, "limit": 2}), Served),
        ("read_file", json!({"path": "src/a.rs", "offset": "1", "limit": "2"}), Served),
        ("read_file", json!({"path": "src/a.rs", "start_line": 1, "end_line": 2}), Served),
        ("read_file", json!({"path": "src/a.rs", "startLine": "1", "endLine": "2"}), Served),
        ("read_file", json!({"filename": "src/a.rs"}), Refused("path")),
        ("edit_file", edit(["path", "oldText", "newText"]), Served),
        ("edit_file", edit(["file_path", "old_string", "new_string"]), Served),
        ("edit_file", edit(["path", "old_str", "new_str"]), Served),
        ("edit_file", edit(["filePath", "oldString", "newString"]), Served),
        ("edit_file", edit(["path", "old_text", "new_text"]), Served),
        (
            "edit_file",
            json!({"path": "src/a.rs", "old_string": "let one", "new_string": "let uno", "replace_all": "false"}),
            Served,
        ),
        ("edit_file", json!({"path": "src/a.rs", "search": "one", "replace": "uno"}), Refused("oldText")),
        ("write_file", json!({"path": "new.txt", "content": "x"}), Served),
        ("write_file", json!({"file_path": "new.txt", "content": "x"}), Served),
        ("write_file", json!({"filePath": "new.txt", "content": "x"}), Served),
        ("write_file", json!({"path": "/workspace/new.txt", "content": "x"}), Served),
        ("write_file", json!({"path": "new.txt", "text": "x"}), Refused("content")),
        ("list_directory", json!({}), Served),
        ("list_directory", json!({"path": "/workspace"}), Served),
        ("list_directory", json!({"dir_path": "src"}), Served),
        ("list_directory", json!({"directory": "src"}), Served),
        ("list_directory", json!({"path": "src", "recursive": "true"}), Served),
        ("find_files", json!({"pattern": "**/*.rs"}), Served),
        ("find_files", json!({"glob": "**/*.rs"}), Served),
        ("find_files", json!({"pattern": "*.rs", "path": "src"}), Served),
        ("find_files", json!({"pattern": "*.rs", "dir_path": "src"}), Served),
        ("search_files", json!({"pattern": "one"}), Served),
        ("search_files", json!({"pattern": "one", "path": "src"}), Served),
        ("search_files", json!({"pattern": "one", "dir_path": "src"}), Served),
        ("search_files", json!({"pattern": "one", "path": "/workspace/src"}), Served),
        ("search_files", json!({"query": "one"}), Refused("pattern")),
        ("run_code", json!({"command": "true"}), Served),
        ("run_code", json!({"cmd": "true"}), Served),
        ("run_code", json!({"language": "bash", "code": "true"}), Served),
    ]
}

#[test]
fn habitual_calls_are_served_or_refused_with_the_fix() {
    let calls = calls();
    assert_eq!(calls.len(), 39);
    let served = calls.iter().filter(|(.., outcome)| matches!(outcome, Served)).count();
    assert!(served >= 33, "{served} of {}", calls.len());
    let mut wrong = Vec::new();
    for (tool, arguments, outcome) in calls {
        let site = TestSite::new();
        site.write("src/a.rs", "fn main() {\n    let one = 1;\n}\n");
        let said = site.run(&["--preset", "edits", "call", tool, &arguments.to_string()]);
        let is_right = match outcome {
            Served => said.code == Some(0),
            Refused(fix) => said.code != Some(0) && said.out.contains(fix),
        };
        if !is_right {
            wrong.push(format!("{tool} {arguments}: {}", said.out));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_seeds_take_no_other_name() {
    for (dialect, tool, arguments) in [
        ("miniclaw", "read_file", json!({"file_path": "a.txt"})),
        ("miniclaw", "read_file", json!({"path": "/workspace/a.txt"})),
        ("crewagent", "fs.read", json!({"file_path": "@project/a.txt"})),
        ("crewagent", "fs.read", json!({"path": "@project/a.txt", "startLine": "1"})),
    ] {
        let site = TestSite::new();
        site.write("a.txt", "text\n");
        let said = site.run(&["--dialect", dialect, "call", tool, &arguments.to_string()]);
        assert_ne!(said.code, Some(0), "{dialect} {arguments}: {}", said.out);
    }
}
