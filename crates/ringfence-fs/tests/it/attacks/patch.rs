//! Attacks on patches, front matter, and the workflow guard.

use ringfence_fs::MountAccess::{ReadOnly, ReadWrite};
use ringfence_kernel::Dialect;
use ringfence_kernel::ErrorKind::{
    self, AlreadyExists, AmbiguousEdit, Conflict, EditNotFound, Frontmatter, InvalidArgs, InvalidPath, NotFound,
    OutsideWorkspace, PermissionDenied, ReadOnly as OnReadOnly, Schema, Transition, WriteLimit, WrongType,
};
use serde_json::{Value, json};

use super::{FsAttackCase, case, check};
use crate::fixture::FsFixture;

const STATE: &str =
    "---\nschemaVersion: \"1.1\"\nworkflowType: w\ncurrentNodeId: a\nstepsCompleted: [one]\n---\nbody\n";

const GRAPH: &str = r#"{"schemaVersion": "1.1", "entryNodeId": "a", "nodes": [{"id": "a", "type": "step", "file": "a"},
    {"id": "b", "type": "step", "file": "b"}, {"id": "c", "type": "end", "file": "c"}],
    "edges": [{"from": "a", "to": "b", "label": "on"}, {"from": "b", "to": "c", "label": "on"}]}"#;

/// A world with a package and a state, where the state has these contents.
fn with_state(name: &str, state: impl Into<Vec<u8>>) -> FsAttackCase {
    let state = state.into();
    case(name)
        .mounted(&[("pkg", ReadOnly), ("state", ReadWrite)])
        .given(move |world| put(world, "state/workflow.md", &state))
}

/// The same, bound to the graph.
fn with_graph(name: &str) -> FsAttackCase {
    let case = with_state(name, STATE).set(|setup| setup.graph = Some("@pkg/workflow.graph.json"));
    case.given(|world| put(world, "pkg/workflow.graph.json", GRAPH.as_bytes()))
}

fn put(world: &FsFixture, path: &str, content: &[u8]) {
    std::fs::write(world.host_path().join(format!("mount-{path}")), content).unwrap();
}

fn state(world: &FsFixture) -> String {
    std::fs::read_to_string(world.host_path().join("mount-state/workflow.md")).unwrap()
}

fn check_state_unchanged(world: &FsFixture) {
    assert_eq!(state(world), STATE);
}

fn update(update: Value) -> Value {
    json!({"path": "@state/workflow.md", "patch": {"operation": "updateFrontmatter", "update": update}})
}

/// Variables as they are written, for those that are not valid JSON.
fn variables(set: &str) -> String {
    update(json!({"variables": {"set": "HERE"}})).to_string().replace("\"HERE\"", set)
}

fn goes_to(node: &str) -> Value {
    update(json!({"currentNodeId": {"set": node}}))
}

fn diff(text: impl Into<String>) -> Value {
    json!({"patch": text.into()})
}

/// A diff of one line of one file.
fn one_line(path: &str) -> Value {
    diff(format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-old\n+new\n"))
}

#[test]
fn invalid_front_matter_is_refused_by_every_writing_tool() {
    check(|| {
        let bombs: Vec<(&str, String)> = vec![
            ("none at all", "body\n".to_owned()),
            ("a blank line before it", "\n---\na: 1\n---\n".to_owned()),
            ("a comment before it", "# c\n---\na: 1\n---\n".to_owned()),
            ("a byte order mark before it", "\u{feff}---\na: 1\n---\n".to_owned()),
            ("no end", "---\na: 1\n".to_owned()),
            ("keys given twice", STATE.replace("---\nbody", "workflowType: x\n---\nbody")),
            ("keys that become the same", STATE.replace("---\nbody", "1: x\n\"1\": y\n---\nbody")),
            ("a bomb of aliases", STATE.replace("---\nbody", &format!("{}---\nbody", billion_laughs()))),
            ("an anchor in itself", STATE.replace("---\nbody", "x: &a [*a]\n---\nbody")),
            ("an alias of nothing", STATE.replace("---\nbody", "x: *nothing\n---\nbody")),
            ("a depth of thousands", STATE.replace("---\nbody", &format!("x: {}\n---\nbody", "[".repeat(20_000)))),
            (
                "more items than there may be",
                STATE.replace("---\nbody", &format!("x: [{}]\n---\nbody", "1,".repeat(20_000))),
            ),
            (
                "more bytes than there may be",
                STATE.replace("---\nbody", &format!("x: {}\n---\nbody", "y".repeat(70_000))),
            ),
            ("a tab as indentation", STATE.replace("---\nbody", "x:\n\ty: 1\n---\nbody")),
            ("a tag that loads code", STATE.replace("---\nbody", "x: !!python/object:os.system id\n---\nbody")),
            ("a tag that includes", STATE.replace("---\nbody", "x: !include /etc/passwd\n---\nbody")),
            ("bytes in a tag", STATE.replace("---\nbody", "x: !!binary aGVsbG8=\n---\nbody")),
            ("a NUL", STATE.replace("---\nbody", "x: \"a\0b\"\n---\nbody")),
            ("a key that is too long", STATE.replace("---\nbody", &format!("{}: 1\n---\nbody", "k".repeat(2000)))),
            ("a list in the place of keys", "---\n- a\n---\n".to_owned()),
            ("a line that only some readers see", STATE.replace("---\nbody", "z: 1 # x\u{2028}y: c\n---\nbody")),
            ("a paragraph that only some readers see", STATE.replace("---\nbody", "z: 1 # x\u{2029}y: 2\n---\nbody")),
            ("a line that only some readers end at", STATE.replace("workflowType", "---x: 1\nworkflowType")),
            ("a key that only some readers merge", STATE.replace("---\nbody", "<<: {currentNodeId: c}\n---\nbody")),
        ];
        let mut cases = Vec::new();
        for (name, content) in bombs {
            let write = json!({"path": "@state/workflow.md", "content": content});
            let copy = json!({"from": "bomb.md", "to": "@state/workflow.md", "overwrite": true});
            let edit = json!({"path": "@state/workflow.md", "oldText": STATE, "newText": content});
            cases.push(
                with_state(name, STATE)
                    .given(move |world| world.write("bomb.md", &content))
                    .fails("write_file", write, Frontmatter)
                    .fails("copy_file", copy, Frontmatter)
                    .fails("edit_file", edit, Frontmatter)
                    .then(check_state_unchanged),
            );
        }
        cases
    });
}

fn billion_laughs() -> String {
    let mut text = "l0: &l0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let above = vec![format!("*l{}", level - 1); 9].join(", ");
        text.push_str(&format!("l{level}: &l{level} [{above}]\n"));
    }
    text
}

#[test]
fn an_update_value_cannot_escape_its_key() {
    check(|| {
        let values = [
            "a\n---\nadmin: true",
            "a: 1\nadmin: true",
            "\"",
            "'",
            "x # y",
            "{{",
            "- z",
            "\u{2028}---\u{2028}",
            "...",
            "\0",
            "!!str x",
            "*a",
            "&a b",
        ];
        let mut cases = Vec::new();
        for value in values {
            let call = update(json!({"variables": {"set": {"v": value, value: 1}}, "artifacts": {"append": [value]},
            "decisionLog": {"append": [{"from": value, "to": "b", "label": value}]}}));
            cases.push(with_state(&format!("the value {value:?}"), STATE).succeeds("apply_patch", call, |world, _| {
                let text = state(world);
                assert!(text.starts_with("---\nschemaVersion: \"1.1\"\nworkflowType: w\ncurrentNodeId: a\n"), "{text}");
                assert!(text.ends_with("\n---\nbody\n"), "{text}");
                assert!(!text.contains("\nadmin"), "{text}");
                assert_eq!(text.matches("\n---\n").count(), 1, "{text}");
            }));
        }
        cases
    });
}

#[test]
fn a_front_matter_is_updated_only_in_the_state_and_only_as_it_was_seen() {
    check(|| {
        let of = |path: &str| {
            let mut call = goes_to("b");
            call["path"] = json!(path);
            call
        };
        let stale = {
            let mut call = goes_to("b");
            call["patch"]["ifMatchSha256"] = json!("0".repeat(64));
            call
        };
        vec![
            with_state("another mount", STATE)
                .file("f.md", STATE)
                .given(|world| {
                    std::fs::create_dir(world.host_path().join("mount-state/logs")).unwrap();
                    put(world, "state/logs/execution.jsonl", STATE.as_bytes());
                })
                .fails("apply_patch", of("f.md"), InvalidPath)
                .fails("apply_patch", of("@pkg/f.md"), InvalidPath)
                .fails("apply_patch", of("@state/../workflow.md"), OutsideWorkspace)
                .fails("apply_patch", of("@state"), PermissionDenied)
                .fails("apply_patch", of("@state/none.md"), NotFound)
                .fails("apply_patch", of("@state/logs/execution.jsonl"), PermissionDenied)
                .then(check_state_unchanged),
            with_state("another hash", STATE).fails("apply_patch", stale, Conflict).then(check_state_unchanged),
            with_state("a state that is damaged", "---\na: [\n---\n").fails("apply_patch", goes_to("b"), Frontmatter),
            with_state("no update at all", STATE)
                .fails(
                    "apply_patch",
                    json!({"path": "@state/workflow.md", "patch": {"operation": "updateFrontmatter"}}),
                    InvalidArgs,
                )
                .fails(
                    "apply_patch",
                    json!({"path": "@state/workflow.md", "patch": {"operation": "delete", "update": {}}}),
                    InvalidArgs,
                )
                .fails("apply_patch", update(json!({"stepsCompleted": {"set": []}})), InvalidArgs)
                .fails("apply_patch", update(json!({"stepsCompleted": {"append": [1]}})), InvalidArgs)
                .fails("apply_patch", update(json!({"other": {"set": 1}})), InvalidArgs)
                .fails("apply_patch", variables(r#"{"a": 1, "a": 2}"#), InvalidArgs)
                .fails("apply_patch", variables(r#"{"a": 123456789012345678901234567890}"#), InvalidArgs)
                .fails(
                    "apply_patch",
                    json!({"path": "@state/workflow.md", "ifMatchSha256": "0".repeat(64), "patch":
                        {"operation": "updateFrontmatter", "update": {}, "ifMatchSha256": "0".repeat(64)}}),
                    InvalidArgs,
                )
                .fails("apply_patch", json!({"patch": {"operation": "updateFrontmatter", "update": {}}}), InvalidArgs)
                .then(check_state_unchanged),
            with_state("too much", STATE)
                .set(|setup| setup.limits.edit_bytes = 200)
                .fails("apply_patch", update(json!({"variables": {"set": {"v": "x".repeat(200)}}})), WriteLimit)
                .then(check_state_unchanged),
            with_state("a link in the place of the state", STATE)
                .given(|world| {
                    let state = world.host_path().join("mount-state");
                    std::fs::rename(state.join("workflow.md"), state.join("real.md")).unwrap();
                    std::os::unix::fs::symlink("real.md", state.join("workflow.md")).unwrap();
                })
                .fails("apply_patch", goes_to("b"), WrongType),
        ]
    });
}

#[test]
fn no_tool_gets_the_workflow_past_its_graph() {
    check(|| {
        let skipped = STATE.replace("currentNodeId: a", "currentNodeId: c");
        let undone = STATE.replace("[one]", "[]");
        let write = |content: &str| json!({"path": "@state/workflow.md", "content": content});
        let edit = |old: &str, new: &str| json!({"path": "@state/workflow.md", "oldText": old, "newText": new});
        let onto = |from: &str| json!({"from": from, "to": "@state/workflow.md", "overwrite": true});
        let from_a_to_c =
            "--- @state/workflow.md\n+++ @state/workflow.md\n@@ -4 +4 @@\n-currentNodeId: a\n+currentNodeId: c\n";
        vec![
            with_graph("by a write")
                .fails("write_file", write(&skipped), Transition)
                .fails("write_file", write(&undone), Schema)
                .then(check_state_unchanged),
            with_graph("by an edit")
                .fails_saying(
                    "edit_file",
                    edit("currentNodeId: a", "currentNodeId: c"),
                    Transition,
                    &["allowedNext", "`b` (on)"],
                )
                .fails("edit_file", edit("[one]", "[]"), Schema)
                .fails("edit_file", edit("---\nbody", "body"), Frontmatter)
                .then(check_state_unchanged),
            with_graph("by a patch")
                .fails("apply_patch", goes_to("c"), Transition)
                .fails("apply_patch", goes_to("x"), Transition)
                .then(check_state_unchanged),
            with_graph("by a diff").fails("apply_patch", diff(from_a_to_c), Transition).then(check_state_unchanged),
            with_graph("by an undo")
                .succeeds("apply_patch", goes_to("b"), |_, _| {})
                .fails("undo", json!({}), Transition)
                .then(|world| assert!(!state(world).contains("currentNodeId: a")))
                .succeeds("append_file", json!({"path": "@state/workflow.md", "content": "more\n"}), |_, _| {})
                .succeeds("undo", json!({}), |world, _| assert!(state(world).ends_with("body\n"))),
            with_graph("by an append").succeeds(
                "append_file",
                json!({"path": "@state/workflow.md", "content": "more\n"}),
                |world, _| {
                    assert_eq!(state(world), format!("{STATE}more\n"));
                },
            ),
            with_graph("by an append to what has no end yet")
                .given(|world| {
                    put(
                        world,
                        "state/workflow.md",
                        b"---\nschemaVersion: \"1.1\"\nworkflowType: w\ncurrentNodeId: a\nstepsCompleted: []\n",
                    )
                })
                .fails("append_file", json!({"path": "@state/workflow.md", "content": "---\n"}), Frontmatter),
            with_graph("by a copy")
                .file("f.md", skipped.clone())
                .fails("copy_file", onto("f.md"), Transition)
                .then(check_state_unchanged),
            with_graph("by a move")
                .given(move |world| put(world, "state/f.md", skipped.as_bytes()))
                .fails("move_file", onto("@state/f.md"), Transition)
                .then(check_state_unchanged),
            with_graph("by deleting it")
                .fails_saying("delete_file", json!({"path": "@state/workflow.md"}), PermissionDenied, &["not removed"])
                .fails(
                    "apply_patch",
                    diff(format!("--- @state/workflow.md\n+++ /dev/null\n@@ -1,7 +0,0 @@\n{}", removed(STATE))),
                    PermissionDenied,
                )
                .then(check_state_unchanged),
            with_graph("by moving it away")
                .fails("move_file", json!({"from": "@state/workflow.md", "to": "@state/old.md"}), PermissionDenied)
                .then(check_state_unchanged),
            with_graph("by a directory or a link in its place")
                .given(|world| {
                    std::fs::remove_file(world.host_path().join("mount-state/workflow.md")).unwrap();
                    std::fs::create_dir(world.host_path().join("mount-state/d")).unwrap();
                    std::os::unix::fs::symlink("f.md", world.host_path().join("mount-state/link")).unwrap();
                })
                .fails("create_directory", json!({"path": "@state/workflow.md"}), PermissionDenied)
                .fails("create_directory", json!({"path": "@state/workflow.md/deep"}), PermissionDenied)
                .fails(
                    "write_file",
                    json!({"path": "@state/workflow.md/f", "content": "", "createDirs": true}),
                    PermissionDenied,
                )
                .fails("move_file", json!({"from": "@state/d", "to": "@state/workflow.md"}), PermissionDenied)
                .fails("move_file", json!({"from": "@state/link", "to": "@state/workflow.md"}), PermissionDenied),
            with_graph("by a name that is almost the same")
                .fails("write_file", json!({"path": "@state/Workflow.MD", "content": ""}), PermissionDenied)
                .fails(
                    "write_file",
                    json!({"path": "@state/Workflow.MD/x", "content": "", "createDirs": true}),
                    PermissionDenied,
                )
                .fails(
                    "write_file",
                    json!({"path": "@state/Logs/x", "content": "", "createDirs": true}),
                    PermissionDenied,
                )
                .then(check_state_unchanged),
            with_graph("by another way to its name")
                .given(|world| std::os::unix::fs::symlink(".", world.host_path().join("mount-state/here")).unwrap())
                .fails("write_file", json!({"path": "@state/here/workflow.md", "content": "x"}), Frontmatter)
                .fails("write_file", json!({"path": "@state/./workflow.md", "content": "x"}), Frontmatter)
                .then(check_state_unchanged),
        ]
    });
}

fn removed(text: &str) -> String {
    text.lines().map(|line| format!("-{line}\n")).collect()
}

#[test]
fn a_workflow_begins_at_its_entry_goes_along_its_edges_and_needs_its_graph() {
    check(|| {
        let write = |content: &str| json!({"path": "@state/workflow.md", "content": content});
        let gone = |world: &FsFixture| std::fs::remove_file(world.host_path().join("mount-state/workflow.md")).unwrap();
        let graph = |text: &'static str| {
            with_graph(text).given(move |world| put(world, "pkg/workflow.graph.json", text.as_bytes()))
        };
        let ok = |world: &FsFixture, _: &Value| assert!(state(world).starts_with("---\n"));
        let spaced = STATE.replace("currentNodeId: a", "currentNodeId: ' '");
        vec![
        with_graph("it begins at the entry")
            .given(gone)
            .fails("write_file", write(&STATE.replace("currentNodeId: a", "currentNodeId: b")), Transition)
            .succeeds("write_file", write(STATE), ok),
        with_graph("nothing is the entry too").given(gone).succeeds("write_file", write(&spaced), ok).succeeds("apply_patch", goes_to("b"), ok),
        with_graph("names of any length").fails_saying("apply_patch", goes_to(&"x\n".repeat(10_000)), Transition, &["…"]),
        with_graph("staying is fine").succeeds("write_file", write(&STATE.replace("body", "other")), ok),
        with_graph("on and on").succeeds("apply_patch", goes_to(" b "), ok).succeeds("apply_patch", goes_to("c"), ok)
            .fails("apply_patch", goes_to("a"), Transition),
        with_graph("no graph, no change")
            .given(|world| std::fs::remove_file(world.host_path().join("mount-pkg/workflow.graph.json")).unwrap())
            .fails_saying("apply_patch", goes_to("b"), Schema, &["@pkg/workflow.graph.json", "does not exist"])
            .then(check_state_unchanged),
        graph("{").fails("apply_patch", goes_to("b"), Schema).then(check_state_unchanged),
        graph("[]").fails("apply_patch", goes_to("b"), Schema).then(check_state_unchanged),
        graph(r#"{"schemaVersion": "1", "entryNodeId": "z", "nodes": [{"id": "a", "type": "step", "file": ""}], "edges": []}"#)
            .fails_saying("apply_patch", goes_to("b"), Schema, &["unknown node `z`"]),
        graph(r#"{"schemaVersion": "1", "entryNodeId": "a", "nodes": [{"id": "a", "type": "cloud", "file": ""}], "edges": []}"#)
            .fails("apply_patch", goes_to("b"), Schema),
        graph(r#"{"schemaVersion": "1", "entryNodeId": "a", "nodes": [{"id": "a", "type": "step", "file": ""}, {"id": "a", "type": "end", "file": ""}], "edges": []}"#)
            .fails_saying("apply_patch", goes_to("b"), Schema, &["duplicate node `a`"]),
        graph(r#"{"schemaVersion": "1", "entryNodeId": "a", "nodes": [{"id": "a", "type": "step", "file": ""}], "edges": [{"from": "a", "to": "b", "label": ""}]}"#)
            .fails_saying("apply_patch", goes_to("b"), Schema, &["unknown node `b`"]),
        with_graph("what is damaged is replaced by a person only")
            .given(|world| put(world, "state/workflow.md", b"---\na: [\n---\n"))
            .fails_saying("write_file", write(STATE), Frontmatter, &["only a person"]),
        with_state("without a graph, the shape is all", STATE).succeeds("apply_patch", goes_to("anywhere"), ok)
            .succeeds("write_file", write(&STATE.replace("[one]", "[]")), ok)
            .fails("write_file", write("---\na: 1\n---\n"), Schema),
        with_state("without a graph, what is damaged is replaced", "---\na: [\n---\n").succeeds("write_file", write(STATE), ok),
    ]
    });
}

#[test]
fn the_guard_holds_in_every_dialect() {
    check(|| {
        let skipped = STATE.replace("currentNodeId: a", "currentNodeId: c");
        let write = json!({"path": "@state/workflow.md", "content": skipped});
        vec![
            with_graph("miniclaw")
                .with_dialect(Dialect::Miniclaw)
                .set(|setup| setup.graph = Some("@pkg/workflow.graph.json"))
                .fails("write_file", write.clone(), Transition)
                .fails(
                    "edit_file",
                    json!({"path": "@state/workflow.md", "old_text": "[one]", "new_text": "[]"}),
                    Schema,
                )
                .then(check_state_unchanged),
            with_graph("crewagent")
                .with_dialect(Dialect::Crewagent)
                .set(|setup| setup.graph = Some("@pkg/workflow.graph.json"))
                .fails("fs.write", write, Transition)
                .fails("fs.apply_patch", goes_to("c"), Transition)
                .then(check_state_unchanged),
        ]
    });
}

#[test]
fn a_diff_names_paths_and_they_are_judged_as_paths() {
    check(|| {
        let refused =
            |path: &str, kind: ErrorKind| case(format!("the path {path:?}")).fails("apply_patch", one_line(path), kind);
        vec![
            refused("../outside/secret", OutsideWorkspace),
            refused("a/../../outside/secret", OutsideWorkspace).directory("a"),
            refused("/etc/passwd", OutsideWorkspace),
            refused("{HOST}/outside/secret", OutsideWorkspace),
            refused("way-out/secret", OutsideWorkspace).link("way-out", "{HOST}/outside"),
            refused("link", OutsideWorkspace).link("link", "{HOST}/outside/secret"),
            refused("@nowhere/f", InvalidPath).mounted(&[("pkg", ReadOnly)]),
            refused("@pkg/f", OnReadOnly).mounted(&[("pkg", ReadOnly)]),
            refused("C:\\f", InvalidPath),
            refused("none", NotFound),
            refused("d", WrongType).directory("d"),
            refused(".", PermissionDenied),
            case("a path beside the diff that is another")
                .file("f", "old\n")
                .file("g", "old\n")
                .fails("apply_patch", json!({"path": "g", "patch": one_line("f")["patch"]}), InvalidArgs)
                .succeeds("apply_patch", json!({"path": "./f", "patch": one_line("f")["patch"]}), |world, _| {
                    assert_eq!(world.read("f"), "new\n")
                }),
            case("no path at all")
                .file("f", "old\n")
                .fails("apply_patch", diff("@@ -1 +1 @@\n-old\n+new\n"), InvalidArgs)
                .succeeds("apply_patch", json!({"path": "f", "patch": "@@ -1 +1 @@\n-old\n+new\n"}), |world, _| {
                    assert_eq!(world.read("f"), "new\n")
                }),
            case("two ways to one file")
                .file("d/f", "old\n")
                .link("l", "d")
                .fails_saying(
                    "apply_patch",
                    diff(format!("{}{}", text_of(&one_line("d/f")), text_of(&one_line("l/f")))),
                    InvalidArgs,
                    &["the same"],
                )
                .then(|world| assert_eq!(world.read("d/f"), "old\n")),
            case("files on two mounts")
                .mounted(&[("rw", ReadWrite)])
                .file("f", "old\n")
                .given(|world| put(world, "rw/g", b"old\n"))
                .fails(
                    "apply_patch",
                    diff(format!("{}{}", text_of(&one_line("f")), text_of(&one_line("@rw/g")))),
                    InvalidArgs,
                )
                .then(|world| assert_eq!(world.read("f"), "old\n")),
        ]
    });
}

fn text_of(arguments: &Value) -> String {
    arguments["patch"].as_str().unwrap().to_owned()
}

#[test]
fn a_diff_over_several_files_is_applied_to_all_or_to_none() {
    check(|| {
        let three = |second: &str| {
            format!(
                "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+new\n{second}--- /dev/null\n+++ b/deep/er/new\n@@ -0,0 +1 @@\n+new\n\
             --- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
            )
        };
        let prepared = |name: &str| case(name).file("f", "old\n").file("g", "old\n").file("gone", "old\n");
        let untouched = |world: &FsFixture| {
            assert_eq!([world.read("f"), world.read("g"), world.read("gone")], ["old\n"; 3]);
            assert!(!world.root.join("deep").exists());
        };
        let second = "--- a/g\n+++ b/g\n@@ -1 +1 @@\n-old\n+new\n";
        vec![
            prepared("all").succeeds("apply_patch", diff(three(second)), |world, value| {
                assert_eq!([world.read("f"), world.read("g"), world.read("deep/er/new")], ["new\n"; 3]);
                assert!(!world.root.join("gone").exists());
                let actions: Vec<&Value> =
                    value["files"].as_array().unwrap().iter().map(|file| &file["action"]).collect();
                assert_eq!(actions, ["modified", "modified", "created", "deleted"]);
            }),
            prepared("a hunk that does not fit")
                .fails("apply_patch", diff(three(&second.replace("-old", "-other"))), EditNotFound)
                .then(untouched),
            prepared("a file that is not there")
                .fails("apply_patch", diff(three(&second.replace("/g", "/none"))), NotFound)
                .then(untouched),
            prepared("a file that is there already")
                .file("deep/er/new", "x")
                .fails("apply_patch", diff(three(second)), AlreadyExists)
                .then(|world| assert_eq!(world.read("f"), "old\n")),
            prepared("a file that nobody may write")
                .given(|world| {
                    use std::os::unix::fs::PermissionsExt as _;
                    std::fs::set_permissions(world.root.join("gone"), std::fs::Permissions::from_mode(0o444)).unwrap();
                })
                .fails("apply_patch", diff(three(second)), PermissionDenied)
                .then(untouched),
            prepared("more than may be written at once")
                .set(|setup| setup.limits.appended_file_bytes = 11)
                .fails_saying("apply_patch", diff(three(second)), WriteLimit, &["at once"])
                .then(untouched),
            prepared("more than may be written")
                .set(|setup| setup.limits.edit_bytes = 3)
                .fails("apply_patch", diff(three(second)), WriteLimit)
                .then(untouched),
            case("one that is deleted alone").file("f", "old\n").succeeds(
                "apply_patch",
                diff("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"),
                |world, _| assert!(!world.root.join("f").exists()),
            ),
            case("a delete of more than was said")
                .file("f", "old\nmore\n")
                .fails("apply_patch", diff("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"), Conflict)
                .then(|world| assert_eq!(world.read("f"), "old\nmore\n")),
        ]
    });
}

#[test]
fn a_hunk_goes_where_it_says_or_to_the_only_other_place_and_the_reply_says_so() {
    check(|| {
        let hunk = "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n";
        vec![
        case("where it says").file("f", "a\nb\nc\n").succeeds("apply_patch", diff(hunk), |world, value| {
            assert_eq!(world.read("f"), "a\nB\nc\n");
            assert_eq!(value["files"][0]["hunks"], json!([{"hunk": 1, "line": 1, "offset": 0, "added": 1, "removed": 1}]));
        }),
        case("elsewhere").file("f", "x\ny\na\nb\nc\n").succeeds("apply_patch", diff(hunk), |world, value| {
            assert_eq!(world.read("f"), "x\ny\na\nB\nc\n");
            assert_eq!(value["files"][0]["hunks"][0]["offset"], 2);
        }),
        case("in several places").file("f", "x\na\nb\na\nb\n").fails("apply_patch", diff(hunk), AmbiguousEdit),
        case("nowhere").file("f", "a\nc\n").fails_saying("apply_patch", diff(hunk), EditNotFound, &["hunk 1"]),
        case("with other line ends").file("f", "a\r\nb\r\n").succeeds("apply_patch", diff(hunk), |world, _| assert_eq!(world.read("f"), "a\r\nB\r\n")),
        case("with both line ends").file("f", "a\r\nb\n").fails_saying("apply_patch", diff(hunk), EditNotFound, &["line end"]),
        case("twice").file("f", "a\n")
            .succeeds("apply_patch", json!({"path": "f", "patch": "@@ -1 +1,2 @@\n a\n+b\n"}), |world, _| assert_eq!(world.read("f"), "a\nb\n"))
            .fails_saying("apply_patch", json!({"path": "f", "patch": "@@ -1 +1,2 @@\n a\n+b\n"}), EditNotFound, &["already"]),
        case("without numbers, in a fence").file("f", "x\na\nb\n")
            .succeeds("apply_patch", diff("```diff\n--- a/f\n+++ b/f\n@@ ... @@\n a\n-b\n+B\n```\n"), |world, value| {
                assert_eq!((world.read("f").as_str(), &value["files"][0]["hunks"][0]["offset"]), ("x\na\nB\n", &Value::Null));
            }),
        case("no diff").fails("apply_patch", diff("hello"), InvalidArgs).fails("apply_patch", diff(""), InvalidArgs)
            .fails("apply_patch", json!({"patch": 7}), InvalidArgs).fails("apply_patch", json!({}), InvalidArgs)
            .fails("apply_patch", diff("*** Begin Patch\n*** End Patch\n"), InvalidArgs),
        case("a rename, a mode, a link, bytes").file("f", "a\n")
            .fails("apply_patch", diff("diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n"), InvalidArgs)
            .fails("apply_patch", diff("diff --git a/f b/f\nold mode 100644\nnew mode 100755\n"), InvalidArgs)
            .fails("apply_patch", diff("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n"), InvalidArgs)
            .fails("apply_patch", diff("diff --git a/f b/f\nBinary files a/f and b/f differ\n"), InvalidArgs),
        case("a file that is not text").file("f", b"a\0\nb\n").fails("apply_patch", diff(hunk), ErrorKind::NotText),
        case("another hash").file("f", "a\nb\n")
            .fails("apply_patch", json!({"patch": hunk, "ifMatchSha256": "0".repeat(64)}), Conflict)
            .then(|world| assert_eq!(world.read("f"), "a\nb\n")),
    ]
    });
}
