//! Path syntax of callers, and its meaning in each dialect.

use ringfence_fs::MountAccess;
use ringfence_kernel::{Dialect, ErrorKind};
use ringfence_testkit::audit_trace::AuditTrace;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

/// The result for a path in each dialect: the text of the file, or the kind of error.
#[track_caller]
fn check_read(world: &FsFixture, path: &str, expected: Result<&str, ErrorKind>) {
    let answer = world.call("read_file", &json!({ "path": path }));
    match (answer.error, expected) {
        (None, Ok(content)) => assert!(answer.text.contains(content), "{path}: {}", answer.text),
        (Some(kind), Err(expected)) => assert_eq!(kind, expected, "{path}: {}", answer.text),
        _ => panic!("{path}: {}", answer.text),
    }
}

#[test]
fn the_path_that_programs_see_is_the_workspace_in_the_standard_dialect() {
    let world = FsFixture::new();
    world.write("d/f.txt", "inside");
    for path in ["/workspace/d/f.txt", "/workspace//d/./f.txt", "/workspace/d/../d/f.txt"] {
        check_read(&world, path, Ok("inside"));
    }
    for path in ["/workspace/../ws/d/f.txt", "/workspace/../etc/passwd", "/workspace/d/../../../etc/passwd"] {
        check_read(&world, path, Err(ErrorKind::OutsideWorkspace));
    }
    for path in ["/workspacex/d/f.txt", "//workspace/d/f.txt", "/workspaces/d/f.txt", "/Workspace/d/f.txt", "/workspac"]
    {
        check_read(&world, path, Err(ErrorKind::OutsideWorkspace));
    }
    check_read(&world, "/workspace", Err(ErrorKind::WrongType));
    check_read(&world, "/workspace/.ringfence/x", Err(ErrorKind::InvalidPath));
    check_read(&world, "/workspace/nothing", Err(ErrorKind::NotFound));
}

#[test]
fn white_space_that_hides_the_start_of_a_path_is_named() {
    let hint = "remove the white space at the start of the path";
    let world = FsFixture::new();
    for (tool, arguments) in [
        ("read_file", json!({"path": " /workspace/f"})),
        ("write_file", json!({"path": "\t/workspace/f", "content": "x"})),
        ("create_directory", json!({"path": " f"})),
    ] {
        let answer = world.call(tool, &arguments);
        let is_hidden = tool != "create_directory";
        assert_eq!((answer.error.is_some(), answer.text.contains(hint)), (is_hidden, is_hidden), "{}", answer.text);
    }
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Crewagent));
    let answer = world.call("fs.read", &json!({"path": " @project/f"}));
    assert!(answer.text.contains(hint), "{}", answer.text);
    let answer = world.call("fs.read", &json!({"path": "project/f"}));
    assert!(!answer.text.contains(hint), "{}", answer.text);
}

#[test]
fn every_tool_of_the_standard_dialect_takes_the_path_that_programs_see() {
    let world = FsFixture::new();
    let calls: [(&str, Value, &str); 14] = [
        ("create_directory", json!({"path": "/workspace/d"}), "d"),
        ("write_file", json!({"path": "/workspace/d/f", "content": "a\n"}), "d/f"),
        ("append_file", json!({"path": "/workspace/d/f", "content": "b\n"}), "d/f"),
        ("edit_file", json!({"path": "/workspace/d/f", "oldText": "b", "newText": "c"}), "d/f"),
        ("apply_patch", json!({"path": "/workspace/d/f", "patch": "@@\n-c\n+d\n"}), "d/f"),
        ("apply_patch", json!({"path": "/workspace/d/f", "patch": "--- a/d/f\n+++ b/d/f\n@@\n-d\n+e\n"}), "d/f"),
        ("apply_patch", json!({"patch": "--- /workspace/d/f\n+++ /workspace/d/f\n@@\n-e\n+g\n"}), "d/f"),
        ("get_file_info", json!({"path": "/workspace/d/f"}), "d/f"),
        ("list_directory", json!({"path": "/workspace/d"}), "f"),
        ("find_files", json!({"path": "/workspace/d", "glob": "*"}), "f"),
        ("search_files", json!({"path": "/workspace", "pattern": "g"}), "d/f"),
        ("copy_file", json!({"from": "/workspace/d/f", "to": "/workspace/d/g"}), "d/g"),
        ("move_file", json!({"from": "/workspace/d/g", "to": "/workspace/d/h"}), "d/h"),
        ("read_file", json!({"path": "/workspace/d/f"}), "a\ng\n"),
    ];
    for (tool, arguments, wanted) in calls {
        let value = world.value(tool, &arguments);
        assert!(value.to_string().contains(&json!(wanted).to_string()), "{tool}: {value}");
        assert!(!value.to_string().contains("/workspace"), "{tool}: {value}");
    }
    assert_eq!((world.read("d/f"), world.read("d/h")), ("a\ng\n".to_owned(), "a\ng\n".to_owned()));
}

#[test]
fn the_other_dialects_do_not_know_the_path_that_programs_see() {
    for dialect in [Dialect::Miniclaw, Dialect::Crewagent] {
        let world = FsFixture::with(FsFixtureConfig::of(dialect));
        world.write("f.txt", "inside");
        let tools: &[&str] = match dialect {
            Dialect::Miniclaw => &["read_file", "list_dir"],
            _ => &["fs.read", "fs.list"],
        };
        for tool in tools {
            let kind = world.error(tool, &json!({"path": "/workspace/f.txt"}));
            assert!(matches!(kind, ErrorKind::OutsideWorkspace | ErrorKind::InvalidPath), "{tool}: {kind:?}");
        }
    }
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Miniclaw));
    for (tool, arguments) in [
        ("write_file", json!({"path": "/workspace/f", "content": "x"})),
        ("append_file", json!({"path": "/workspace/f", "content": "x"})),
        ("edit_file", json!({"path": "/workspace/f", "old_text": "x", "new_text": "y"})),
    ] {
        assert_eq!(world.error(tool, &arguments), ErrorKind::OutsideWorkspace, "{tool}");
    }
}

#[test]
fn policy_and_records_see_the_path_inside_the_workspace() {
    let trace = AuditTrace::default();
    let world = FsFixture::with(FsFixtureConfig { trace: Some(trace.clone()), ..FsFixtureConfig::default() });
    assert_eq!(
        world.error("write_file", &json!({"path": "/workspace/.git/hooks/x", "content": "", "createDirs": true})),
        ErrorKind::ApprovalDenied
    );
    world.value("write_file", &json!({"path": "/workspace/f", "content": "x"}));
    assert!(trace.named_paths().iter().all(|place| !place.contains("/workspace")), "{:?}", trace.named_paths());
    assert!(trace.named_paths().iter().any(|place| place == "f"), "{:?}", trace.named_paths());
}

#[test]
fn a_path_of_crewagent_is_read_as_its_origin_read_it() {
    let world = FsFixture::with(FsFixtureConfig {
        mounts: vec![("project", MountAccess::ReadWrite)],
        ..FsFixtureConfig::of(Dialect::Crewagent)
    });
    let root = world.host_path().join("mount-project");
    std::fs::create_dir(root.join("d")).unwrap();
    std::fs::write(root.join("d/f.txt"), "inside").unwrap();
    for path in
        ["@project/d/f.txt", "@project//d/f.txt", "@project///d//f.txt", "@project\\d\\f.txt", "@project\\\\d/f.txt"]
    {
        let answer = world.call("fs.read", &json!({ "path": path }));
        assert_eq!(answer.error, None, "{path}: {}", answer.text);
        assert!(answer.text.contains("\"@project/d/f.txt\""), "{path}: {}", answer.text);
    }
    for path in ["@project\\..\\x", "@project\\d\\..\\f.txt", "@project//../x", "@project\\C:\\x", "\\@project\\x"] {
        let kind = world.error("fs.read", &json!({ "path": path }));
        assert!(matches!(kind, ErrorKind::OutsideWorkspace | ErrorKind::InvalidPath), "{path}: {kind:?}");
    }
    let answer = world.call("fs.read", &json!({"path": "@nope/x"}));
    assert!(answer.text.contains("there are @workspace, @project"), "{}", answer.text);
    assert!(!answer.text.contains("./"), "{}", answer.text);
}

#[test]
fn blank_text_is_not_a_miniclaw_path() {
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Miniclaw));
    world.write("f.txt", "inside");
    for path in ["", " ", "\n\t "] {
        let listed = world.call("list_dir", &json!({ "path": path })).text;
        assert_eq!(listed, "ok: listed 1 entries in .\n- f.txt\tfile\t6", "{path:?}");
        for (tool, mut arguments) in [
            ("read_file", json!({})),
            ("write_file", json!({"content": "x"})),
            ("append_file", json!({"content": "x"})),
            ("edit_file", json!({"old_text": "x", "new_text": "y"})),
        ] {
            arguments["path"] = json!(path);
            assert_eq!(world.call(tool, &arguments).text, "invalid_path: path must not be empty", "{tool} {path:?}");
        }
    }
    // Around a name it may be part of it, and the near name is suggested.
    let answer = world.call("read_file", &json!({"path": " f.txt"}));
    assert!(answer.text.ends_with("did you mean `f.txt`?"), "{}", answer.text);
}
