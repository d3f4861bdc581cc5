//! Existence leaks: errors do not tell whether something is where the caller may not look.

use std::os::unix::fs::symlink;

use ringfence_kernel::{PolicyRule, RuleText};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

fn rule(rule: &Value) -> PolicyRule {
    let text: RuleText = serde_json::from_value(rule.clone()).unwrap();
    PolicyRule::new(text, "hidden").unwrap()
}

/// The entry at the hidden name.
#[derive(Clone, Copy, Debug)]
enum HiddenTarget {
    Nothing,
    File,
    Unreadable,
    Directory,
    NonEmptyDirectory,
    Link,
    LinkOutside,
    Pipe,
}

impl HiddenTarget {
    const ALL: [Self; 7] = [
        Self::File,
        Self::Unreadable,
        Self::Directory,
        Self::NonEmptyDirectory,
        Self::Link,
        Self::LinkOutside,
        Self::Pipe,
    ];

    fn build(self, world: &FsFixture) {
        let path = world.root.join("d/hidden");
        match self {
            Self::Nothing => {}
            Self::File => world.write("d/hidden", "text\n"),
            Self::Unreadable => {
                world.write("d/hidden", "text\n");
                std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
            }
            Self::Directory => std::fs::create_dir(&path).unwrap(),
            Self::NonEmptyDirectory => world.write("d/hidden/x", "text\n"),
            Self::Link => symlink("plain", &path).unwrap(),
            Self::LinkOutside => symlink("../../outside/secret", &path).unwrap(),
            Self::Pipe => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
        }
    }
}

/// Every tool at a path, in every way that a path is given.
fn calls(path: &str) -> Vec<(&'static str, Value)> {
    let patch = format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-text\n+new\n");
    let new = format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+new\n");
    let gone = format!("--- a/{path}\n+++ /dev/null\n@@ -1 +0,0 @@\n-text\n");
    let both = format!("--- a/d/plain\n+++ b/d/plain\n@@ -1 +1 @@\n-text\n+new\n{patch}");
    vec![
        ("read_file", json!({"path": path})),
        ("read_file", json!({"path": path, "startLine": 1})),
        ("read_file", json!({"path": path, "encoding": "base64"})),
        ("list_directory", json!({"path": path})),
        ("list_directory", json!({"path": path, "recursive": true})),
        ("get_file_info", json!({"path": path})),
        ("find_files", json!({"path": path, "glob": "*"})),
        ("search_files", json!({"path": path, "pattern": "text"})),
        ("write_file", json!({"path": path, "content": "new"})),
        ("write_file", json!({"path": path, "content": "new", "createDirs": true})),
        ("write_file", json!({"path": path, "content": "new", "ifMatchSha256": "0".repeat(64)})),
        ("append_file", json!({"path": path, "content": "new"})),
        ("edit_file", json!({"path": path, "oldText": "text", "newText": "new"})),
        ("edit_file", json!({"path": path, "oldText": "absent", "newText": "new"})),
        ("apply_patch", json!({"path": path, "patch": "@@ -1 +1 @@\n-text\n+new\n"})),
        ("apply_patch", json!({"patch": patch})),
        ("apply_patch", json!({"patch": new})),
        ("apply_patch", json!({"patch": gone})),
        ("apply_patch", json!({"patch": both})),
        ("create_directory", json!({"path": path})),
        ("delete_file", json!({"path": path})),
        ("delete_file", json!({"path": path, "recursive": true})),
        ("copy_file", json!({"from": path, "to": "new"})),
        ("copy_file", json!({"from": "d/plain", "to": path})),
        ("copy_file", json!({"from": "d/plain", "to": path, "overwrite": true})),
        ("move_file", json!({"from": path, "to": "new"})),
        ("move_file", json!({"from": "d/plain", "to": path})),
        ("move_file", json!({"from": "d/plain", "to": path, "overwrite": true})),
        ("move_file", json!({"from": "d/tree", "to": path})),
    ]
}

/// The same calls get the same answers, whatever is there.
#[track_caller]
fn check(deny: &Value, calls: &[(&'static str, Value)]) {
    check_with(&HiddenTarget::ALL, deny, calls);
}

#[track_caller]
fn check_with(all: &[HiddenTarget], deny: &Value, calls: &[(&'static str, Value)]) {
    let answer = |there: HiddenTarget, tool: &str, arguments: &Value| {
        let world = FsFixture::in_memory(FsFixtureConfig { rules: vec![rule(deny)], ..FsFixtureConfig::default() });
        world.write("d/plain", "text\n");
        world.write("d/tree/a", "text\n");
        symlink("d/hidden", world.root.join("link")).unwrap();
        there.build(&world);
        let answer = world.call(tool, arguments);
        assert!(answer.error.is_some() || !answer.text.contains("hidden"), "{tool} {arguments}: {}", answer.text);
        (answer.error, answer.text)
    };
    for (tool, arguments) in calls {
        let nothing = answer(HiddenTarget::Nothing, tool, arguments);
        for there in all {
            assert_eq!(answer(*there, tool, arguments), nothing, "{tool} {arguments}, {there:?}");
        }
    }
}

#[test]
fn a_denied_name_is_answered_alike_whether_it_exists_or_not() {
    let everything = json!({"decision": "deny", "path": ["d/hidden", "d/hidden/**"]});
    for path in ["d/hidden", "d/hidden/", "./d//hidden", "d/hidden/x", "d/hidden/x/y"] {
        check(&everything, &calls(path));
    }
    // A link to it tells no more. What is done to the link itself is another matter.
    let follows = |(tool, _): &(&str, Value)| {
        !matches!(*tool, "get_file_info" | "delete_file" | "move_file" | "copy_file" | "apply_patch")
    };
    let no_link = [
        HiddenTarget::File,
        HiddenTarget::Unreadable,
        HiddenTarget::Directory,
        HiddenTarget::NonEmptyDirectory,
        HiddenTarget::Pipe,
    ];
    for path in ["link", "link/x"] {
        // One that leads through a link at that name is judged by where it ends.
        check_with(&no_link, &everything, &calls(path).into_iter().filter(follows).collect::<Vec<_>>());
    }
    // Several rules may have something to say, and which of them does must not tell either.
    let looks = json!({"decision": "deny", "path": ["d/hidden", "d/hidden/**"], "effect": ["look"]});
    check(&looks, &calls("d/hidden")[..8]);
}

#[test]
fn a_name_that_is_almost_a_denied_one_gets_no_hint_to_it() {
    let deny = json!({"decision": "deny", "path": ["d/hidden", "d/hidden/**"]});
    let near = ["d/hiden", "d/Hidden", "d/hidden.txt", "d/hidde", "hidden"];
    for path in near {
        let reads = calls(path).into_iter().filter(|(tool, arguments)| {
            matches!(*tool, "read_file" | "list_directory" | "get_file_info" | "find_files" | "search_files")
                || (*tool == "edit_file" && arguments["oldText"] == "text")
                || *tool == "delete_file"
        });
        check(&deny, &reads.collect::<Vec<_>>());
    }
}
