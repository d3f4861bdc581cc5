//! File identity: a secret stays one under any name, and so does what other programs act on.

use std::fs::hard_link;
use std::os::unix::fs::symlink;

use ringfence_fs::ResolverBackend;
use ringfence_kernel::{ErrorKind, Preset};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

const ENV: &str = "KEY=SECRET\n";

fn setup(person: &ScriptedApprover) -> FsFixtureConfig {
    FsFixtureConfig { preset: Preset::Edits, person: Some(person.clone()), ..FsFixtureConfig::default() }
}

/// A path can neither be read, nor searched, nor described by its contents, without approval.
#[track_caller]
fn check_secret(world: &FsFixture, path: &str) {
    let asked = |tool: &str, arguments: Value| {
        let answer = world.call(tool, &arguments);
        assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{tool} {arguments}: {}", answer.text);
        assert!(!answer.text.contains("SECRET"), "{tool} {arguments}: {}", answer.text);
    };
    asked("read_file", json!({"path": path}));
    asked("search_files", json!({"path": path, "pattern": "KEY"}));
    asked("copy_file", json!({"from": path, "to": "copied"}));
    asked("move_file", json!({"from": path, "to": "moved"}));
    asked("edit_file", json!({"path": path, "oldText": "KEY", "newText": "K"}));
    asked("write_file", json!({"path": path, "content": "K"}));
    asked("append_file", json!({"path": path, "content": "K"}));
    asked("delete_file", json!({"path": path}));
    let patch = format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-KEY=SECRET\n+K\n");
    asked("apply_patch", json!({"patch": patch}));
    let found = world.call("search_files", &json!({"path": ".", "pattern": "KEY", "includeIgnored": true}));
    assert!(found.error.is_none() && !found.text.contains("SECRET"), "{}", found.text);
    let described = world.value("get_file_info", &json!({"path": path}));
    assert!(described["sha256"].is_null(), "{described}");
}

/// A path is like any other.
#[track_caller]
fn check_plain(world: &FsFixture, path: &str) {
    world.value("read_file", &json!({"path": path}));
}

#[test]
fn a_link_to_a_secret_is_a_secret_under_any_name() {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        for secret in [".env", ".ssh/config", ".aws/credentials", "server.pem"] {
            let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
            world.write(secret, ENV);
            world.write("plain", "KEY\n");
            hard_link(world.root.join(secret), world.root.join("notes.txt")).unwrap();
            check_secret(&world, "notes.txt");
            check_plain(&world, "plain");
        }
    }
}

#[test]
fn the_target_of_a_sensitive_link_is_sensitive_under_its_own_name() {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        for link in [".env", ".ssh/config"] {
            let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
            world.write("conf/app.txt", ENV);
            world.write(".ssh/other", "");
            let target = if link.contains('/') { "../conf/app.txt" } else { "conf/app.txt" };
            symlink(target, world.root.join(link)).unwrap();
            check_secret(&world, "conf/app.txt");
        }
        let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
        world.write("docs/guide.md", "be kind\n");
        symlink("docs/guide.md", world.root.join("AGENTS.md")).unwrap();
        check_plain(&world, "docs/guide.md");
        let arguments = json!({"path": "docs/guide.md", "content": "be evil"});
        assert_eq!(world.error("write_file", &arguments), ErrorKind::ApprovalDenied);
    }
}

#[test]
fn a_link_does_not_get_a_name_below_which_programs_look_for_settings() {
    let world = FsFixture::with(setup(&ScriptedApprover::denying()));
    world.write("plain/file", "x");
    symlink("plain", world.root.join("link")).unwrap();
    for name in [".cargo", ".github", ".config", "plain/.CARGO"] {
        let arguments = json!({"from": "link", "to": name});
        assert_eq!(world.error("move_file", &arguments), ErrorKind::ApprovalDenied, "{name}");
    }
    world.value("move_file", &json!({"from": "link", "to": "other"}));
}

#[test]
fn the_target_of_a_protected_directory_link_is_protected_from_every_tool() {
    for (link, to, directory) in [
        (".vscode", "cfg", "cfg"),
        (".claude", "settings/claude", "settings/claude"),
        (".claude", "settings/claude", "settings/claude/deep"),
        (".github", "meta", "meta/workflows"),
        (".claude/commands", "../prompts", "prompts"),
    ] {
        for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
            let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
            world.write(&format!("{directory}/old"), "x\n");
            world.write("src/x", "x\n");
            if link.contains('/') {
                world.write(".claude/x", "x\n");
            }
            symlink(to, world.root.join(link)).unwrap();
            let (old, new) = (format!("{directory}/old"), format!("{directory}/new"));
            let first = directory.split('/').next().unwrap();
            for (tool, arguments) in [
                ("write_file", json!({"path": new, "content": "x"})),
                ("write_file", json!({"path": format!("{directory}/a/b"), "content": "x", "createDirs": true})),
                ("append_file", json!({"path": old, "content": "x"})),
                ("edit_file", json!({"path": old, "oldText": "x", "newText": "y"})),
                ("copy_file", json!({"from": "src/x", "to": new})),
                ("move_file", json!({"from": "src/x", "to": new})),
                ("move_file", json!({"from": "src", "to": new})),
                ("move_file", json!({"from": first, "to": "elsewhere"})),
                ("create_directory", json!({"path": new})),
                ("delete_file", json!({"path": old})),
                ("apply_patch", json!({"patch": format!("--- a/{old}\n+++ b/{old}\n@@ -1 +1 @@\n-x\n+y\n")})),
            ] {
                assert_eq!(world.error(tool, &arguments), ErrorKind::ApprovalDenied, "{link}: {tool} {arguments}");
            }
            check_plain(&world, &old);
            world.value("write_file", &json!({"path": "src/y", "content": "x"}));
            world.value("write_file", &json!({"path": "cfg2/y", "content": "x", "createDirs": true}));
        }
    }
}

#[test]
fn the_target_of_a_secret_directory_link_is_secret() {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        for (link, path) in [(".ssh", "keys/deep/main"), (".aws", "keys/credentials")] {
            let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
            world.write(path, ENV);
            world.write("plain", "KEY\n");
            symlink("keys", world.root.join(link)).unwrap();
            check_secret(&world, path);
            check_plain(&world, "plain");
        }
    }
}

#[test]
fn an_absolute_link_that_leads_inside_is_followed_like_a_relative_one() {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        for (link, to, path) in [
            (".vscode", "cfg", "cfg/tasks.json"),
            (".vscode", "via", "cfg/tasks.json"),
            (".vscode", "cfg/../cfg", "cfg/tasks.json"),
            (".github", "cfg", "cfg/workflows/ci.yml"),
            ("AGENTS.md", "cfg/agents.txt", "cfg/agents.txt"),
        ] {
            let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
            world.write(path, "x\n");
            world.write("cfg2/x", "x\n");
            symlink(world.root.join("cfg"), world.root.join("via")).unwrap();
            symlink(world.root.join(to), world.root.join(link)).unwrap();
            let write = |path: &str| json!({"path": path, "content": "y"});
            assert_eq!(world.error("write_file", &write(path)), ErrorKind::ApprovalDenied, "{link} {to}");
            world.value("write_file", &write("cfg2/x"));
        }
        let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
        world.write("keys/main", ENV);
        symlink(world.root.join("keys"), world.root.join(".ssh")).unwrap();
        check_secret(&world, "keys/main");
    }
}

#[test]
fn a_link_that_is_made_after_the_first_look_is_followed_too() {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        for (link, to) in [(".vscode", "cfg"), ("sub/../.vscode", "cfg"), (".claude/commands", "../cfg")] {
            let world = FsFixture::with(setup(&ScriptedApprover::denying()).on(backend));
            world.write("cfg/tasks.json", "x\n");
            world.write("sub/x", "x\n");
            world.write(".claude/x", "x\n");
            let write = json!({"path": "cfg/tasks.json", "content": "y"});
            world.value("write_file", &write);
            symlink(to, world.root.join(link)).unwrap();
            assert_eq!(world.error("write_file", &write), ErrorKind::ApprovalDenied, "{link}");
            check_plain(&world, "cfg/tasks.json");
        }
    }
}

#[test]
fn a_link_of_an_ordinary_directory_protects_nothing_and_one_that_leads_out_is_passed_over() {
    let world = FsFixture::with(setup(&ScriptedApprover::denying()));
    world.write("docs/guide.md", "x\n");
    world.write("meta/notes.md", "x\n");
    world.write("meta/FUNDING.yml", "x\n");
    symlink("docs", world.root.join("manual")).unwrap();
    symlink("meta", world.root.join(".github")).unwrap();
    symlink(&world.outside, world.root.join(".vscode")).unwrap();
    for path in ["docs/guide.md", "meta/FUNDING.yml", "new"] {
        world.value("write_file", &json!({"path": path, "content": "y"}));
    }
    let notes = json!({"path": "meta/notes.md", "content": "y"});
    assert_eq!(world.error("write_file", &notes), ErrorKind::ApprovalDenied);
}

#[test]
fn hooks_that_a_repository_has_elsewhere_are_protected_from_every_tool() {
    let world = FsFixture::with(setup(&ScriptedApprover::denying()));
    world.write(".git/config", "[core]\n\thooksPath = scripts\n");
    world.write("scripts/old", "x\n");
    world.write("src/x", "x\n");
    for (tool, arguments) in [
        ("write_file", json!({"path": "scripts/pre-commit", "content": "x"})),
        ("append_file", json!({"path": "scripts/old", "content": "x"})),
        ("copy_file", json!({"from": "src/x", "to": "scripts/x"})),
        ("move_file", json!({"from": "src/x", "to": "scripts/x"})),
        ("apply_patch", json!({"patch": "--- a/scripts/old\n+++ b/scripts/old\n@@ -1 +1 @@\n-x\n+y\n"})),
    ] {
        assert_eq!(world.error(tool, &arguments), ErrorKind::ApprovalDenied, "{tool}");
    }
    world.value("write_file", &json!({"path": "src/y", "content": "x"}));
}

#[test]
fn a_secret_deep_inside_is_known_once_anything_came_across_it() {
    let sights = [
        ("list_directory", json!({"path": "a/b/c"})),
        ("list_directory", json!({"path": "a", "recursive": true})),
        ("find_files", json!({"path": "a", "glob": "*.md"})),
        ("search_files", json!({"path": "a", "pattern": "nothing"})),
        ("get_file_info", json!({"path": "a/b/c/.env"})),
        ("read_file", json!({"path": "a/b/c/.env"})),
        ("delete_file", json!({"path": "a/b", "recursive": true})),
        ("move_file", json!({"from": "a/b", "to": "z"})),
    ];
    for (tool, arguments) in sights {
        let world = FsFixture::with(setup(&ScriptedApprover::denying()));
        world.write("a/b/c/.env", ENV);
        hard_link(world.root.join("a/b/c/.env"), world.root.join("notes.txt")).unwrap();
        check_plain(&world, "notes.txt");
        let answer = world.call(tool, &arguments);
        assert!(matches!(answer.error, None | Some(ErrorKind::ApprovalDenied)), "{tool}: {}", answer.text);
        check_secret(&world, "notes.txt");
    }
}

#[test]
fn a_search_shows_no_secret_that_it_comes_across_later() {
    let world = FsFixture::with(setup(&ScriptedApprover::denying()));
    world.write("z/deep/.env", ENV);
    hard_link(world.root.join("z/deep/.env"), world.root.join("a.txt")).unwrap();
    let value = world.value("search_files", &json!({"path": ".", "pattern": "KEY"}));
    assert_eq!((&value["matches"], &value["stats"]["skippedSecret"]), (&json!([]), &json!(1)));
}

#[test]
fn a_secret_that_is_moved_or_copied_stays_one_and_the_next_process_knows() {
    for (tool, from) in
        [("move_file", ".env"), ("copy_file", ".env"), ("move_file", "a/b/.env"), ("copy_file", "a/b/.env")]
    {
        let person = ScriptedApprover::approving();
        let world = FsFixture::with(setup(&person));
        world.write(from, ENV);
        world.value(tool, &json!({"from": from, "to": "notes.txt"}));
        assert_eq!(person.count(), 1);
        world.value("read_file", &json!({"path": "notes.txt"}));
        assert_eq!(person.count(), 2, "{tool}");
        let world = world.reopened(setup(&ScriptedApprover::denying()));
        std::fs::rename(world.root.join("notes.txt"), world.root.join("other.txt")).unwrap();
        check_secret(&world, "other.txt");
    }
}

#[test]
fn a_secret_that_a_patch_moves_stays_one_and_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt as _;
    for (hunk, to) in
        [("", "notes.txt"), ("@@\n-KEY=SECRET\n+KEY=OTHER-SECRET\n", "notes.txt"), ("", "new/deep/notes.txt")]
    {
        let person = ScriptedApprover::approving();
        let world = FsFixture::with(setup(&person));
        world.write(".env", ENV);
        std::fs::set_permissions(world.root.join(".env"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let patch = format!("*** Begin Patch\n*** Update File: .env\n*** Move to: {to}\n{hunk}*** End Patch\n");
        world.value("apply_patch", &json!({"patch": patch}));
        assert_eq!(person.count(), 1);
        let mode = std::fs::metadata(world.root.join(to)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{to}");
        world.value("read_file", &json!({"path": to}));
        assert_eq!(person.count(), 2, "{patch}");
        let world = world.reopened(setup(&ScriptedApprover::denying()));
        std::fs::rename(world.root.join(to), world.root.join("other.txt")).unwrap();
        check_secret(&world, "other.txt");
    }
}

#[test]
fn a_directory_that_moves_takes_its_secrets_along() {
    let person = ScriptedApprover::approving();
    let world = FsFixture::with(setup(&person));
    world.write("x/.ssh/config", ENV);
    world.value("move_file", &json!({"from": "x/.ssh", "to": "stuff"}));
    let world = world.reopened(setup(&ScriptedApprover::denying()));
    check_secret(&world, "stuff/config");
    // Nor does it go with the directory that it is in now.
    assert_eq!(world.error("delete_file", &json!({"path": "stuff", "recursive": true})), ErrorKind::ApprovalDenied);
    assert_eq!(world.error("move_file", &json!({"from": "stuff", "to": "things"})), ErrorKind::ApprovalDenied);
}

#[test]
fn a_secret_that_is_changed_stays_one() {
    let patch = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1,2 @@\n KEY=SECRET\n+B\n";
    let changes = [
        ("edit_file", json!({"path": "notes.txt", "oldText": "=", "newText": " = "})),
        ("append_file", json!({"path": "notes.txt", "content": "B\n"})),
        ("apply_patch", json!({"patch": patch})),
        ("move_file", json!({"from": "notes.txt", "to": "plain", "overwrite": true})),
        ("copy_file", json!({"from": "notes.txt", "to": "plain", "overwrite": true})),
    ];
    for (tool, arguments) in changes {
        let person = ScriptedApprover::approving();
        let world = FsFixture::with(setup(&person));
        world.write(".env", ENV);
        world.write("plain", "x");
        world.value("move_file", &json!({"from": ".env", "to": "notes.txt"}));
        world.value(tool, &arguments);
        let path = if arguments["to"].is_null() { "notes.txt" } else { "plain" };
        let before = person.count();
        world.value("read_file", &json!({"path": path}));
        assert_eq!(person.count(), before + 1, "{tool}");
    }
}

#[test]
fn a_secret_that_was_moved_and_changed_stays_one_when_that_is_undone_and_redone() {
    let patch = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1 +1,2 @@\n KEY=SECRET\n+B\n";
    for (tool, arguments) in [
        ("edit_file", json!({"path": "notes.txt", "oldText": "=", "newText": " = "})),
        ("append_file", json!({"path": "notes.txt", "content": "B\n"})),
        ("apply_patch", json!({"patch": patch})),
        ("delete_file", json!({"path": "notes.txt"})),
    ] {
        let world = FsFixture::with(setup(&ScriptedApprover::approving()));
        world.write(".env", ENV);
        world.value("move_file", &json!({"from": ".env", "to": "notes.txt"}));
        let change = world.value(tool, &arguments)["change"].clone();
        let undo = world.value("undo", &json!({"change": change}))["change"].clone();
        let world = world.reopened(setup(&ScriptedApprover::denying()));
        check_secret(&world, "notes.txt");
        // Nor can it be seen on the way.
        for (tool, arguments) in [
            ("redo", json!({"change": undo})),
            ("show_change", json!({"change": change})),
            ("undo", json!({"change": undo, "dryRun": true})),
        ] {
            let answer = world.call(tool, &arguments);
            assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{tool}: {}", answer.text);
        }
        let world = world.reopened(setup(&ScriptedApprover::approving()));
        world.value("redo", &json!({"change": undo}));
        let world = world.reopened(setup(&ScriptedApprover::denying()));
        if tool != "delete_file" {
            assert_eq!(world.error("read_file", &json!({"path": "notes.txt"})), ErrorKind::ApprovalDenied, "{tool}");
        }
        let world = world.reopened(setup(&ScriptedApprover::approving()));
        world.value("undo", &json!({"session": "test"}));
        assert_eq!(world.read(".env"), ENV, "{tool}");
    }
}

#[test]
fn a_recreated_file_or_a_reused_inode_is_not_secret() {
    let person = ScriptedApprover::approving();
    let world = FsFixture::with(setup(&person));
    world.write(".env", ENV);
    world.value("move_file", &json!({"from": ".env", "to": "notes.txt"}));
    let made = std::fs::metadata(world.root.join("notes.txt")).unwrap().created().ok();
    world.value("write_file", &json!({"path": "notes.txt", "content": "x"}));
    let before = person.count();
    check_plain(&world, "notes.txt");
    // A clock that ticks seldom could give two files the same time.
    let ticked = || {
        world.write("tick", "");
        let now = std::fs::metadata(world.root.join("tick")).unwrap().created().ok();
        std::fs::remove_file(world.root.join("tick")).unwrap();
        now.is_none() || now != made
    };
    while !ticked() {}
    for number in 0..50 {
        world.write(&format!("new-{number}"), "x");
        check_plain(&world, &format!("new-{number}"));
    }
    assert_eq!(person.count(), before);
}

#[test]
fn files_that_other_programs_execute_stay_protected() {
    let person = ScriptedApprover::approving();
    let world = FsFixture::with(setup(&person));
    world.write(".git/hooks/pre-commit", "#!/bin/sh\n");
    world.value("move_file", &json!({"from": ".git/hooks/pre-commit", "to": "hook"}));
    let world = world.reopened(setup(&ScriptedApprover::denying()));
    check_plain(&world, "hook");
    assert_eq!(world.error("append_file", &json!({"path": "hook", "content": "x"})), ErrorKind::ApprovalDenied);
}

#[test]
fn a_hint_names_no_contents() {
    let world = FsFixture::with(setup(&ScriptedApprover::denying()));
    world.write(".env", ENV);
    hard_link(world.root.join(".env"), world.root.join("notes.txt")).unwrap();
    for path in ["notes.tx", ".en", "notes.txt/x"] {
        let answer = world.call("read_file", &json!({"path": path}));
        assert!(answer.error.is_some() && !answer.text.contains("KEY"), "{}", answer.text);
    }
}

#[test]
fn a_credential_in_settings_makes_them_a_secret() {
    let person = ScriptedApprover::denying();
    let with = |address: &str| format!("[remote \"origin\"]\n\turl = {address}\nKEY=SECRET\n");
    for path in
        [".git/config", "sub/.git/config", "bare.git/config", ".gitmodules", ".git/modules/x/config", "pip.conf"]
    {
        for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
            let world = FsFixture::with(setup(&person).on(backend));
            world.write(path, with("https://me:hunter2@example.com/x.git"));
            check_secret_reads(&world, path);
            // By any other name too.
            hard_link(world.root.join(path), world.root.join("notes.txt")).unwrap();
            check_secret_reads(&world, "notes.txt");
            let world = FsFixture::with(setup(&person).on(backend));
            world.write(path, with("https://example.com/x.git"));
            check_plain(&world, path);
            // In the same file, a short time later.
            std::fs::write(world.root.join(path), with("https://me:hunter2@example.com/x.git")).unwrap();
            check_secret_reads(&world, path);
        }
    }
}

/// Neither read, nor searched, nor copied to another name.
#[track_caller]
fn check_secret_reads(world: &FsFixture, path: &str) {
    for (tool, arguments) in [
        ("read_file", json!({"path": path})),
        ("search_files", json!({"path": path, "pattern": "KEY"})),
        ("copy_file", json!({"from": path, "to": "copied"})),
        ("move_file", json!({"from": path, "to": "moved"})),
    ] {
        let answer = world.call(tool, &arguments);
        assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{tool} {arguments}: {}", answer.text);
        assert!(!answer.text.contains("hunter2"), "{tool} {arguments}: {}", answer.text);
    }
    let everywhere = json!({"path": ".", "pattern": "KEY", "includeIgnored": true});
    assert!(!world.call("search_files", &everywhere).text.contains("SECRET"), "{path}");
}

#[test]
fn a_repository_is_not_made_piece_by_piece() {
    let person = ScriptedApprover::denying();
    let new = |path: &str| format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n");
    let whole = ["x/HEAD", "x/objects/a", "x/refs/a"].map(new).concat();
    for (there, tool, arguments) in [
        (["x/HEAD", "x/objects/a"], "create_directory", json!({"path": "x/refs"})),
        (
            ["x/HEAD", "x/objects/a"],
            "write_file",
            json!({"path": "x/refs/heads/a", "content": "x", "createDirs": true}),
        ),
        (["x/objects/a", "x/refs/a"], "write_file", json!({"path": "x/HEAD", "content": "x"})),
        (["x/HEAD", "a"], "write_file", json!({"path": "x/commondir", "content": "x"})),
        (["x/HEAD", "x/refs/a"], "apply_patch", json!({"patch": new("x/objects/a")})),
        (["x/a", "b"], "apply_patch", json!({"patch": whole})),
        (["HEAD", "objects/a"], "create_directory", json!({"path": "refs"})),
        // Not every file system tells these from the names that git looks for.
        (["x/objects/a", "x/refs/a"], "write_file", json!({"path": "x/head", "content": "x"})),
        (["x/HEAD", "x/objects/a"], "create_directory", json!({"path": "x/Refs"})),
        (["x/HEAD", "x/refs/a"], "apply_patch", json!({"patch": new("x/OBJECTS/a")})),
    ] {
        let world = FsFixture::with(setup(&person));
        there.iter().for_each(|path| world.write(path, "x"));
        assert_eq!(world.error(tool, &arguments), ErrorKind::ApprovalDenied, "{tool} {arguments}");
    }
    let world = FsFixture::with(setup(&person));
    ["x/HEAD", "x/objects/a", "x/refs/a"].iter().for_each(|path| world.write(path, "x"));
    for path in ["x/config", "x/hooks/post-update"] {
        let arguments = json!({"path": path, "content": "x", "createDirs": true});
        assert_eq!(world.error("write_file", &arguments), ErrorKind::ApprovalDenied, "{path}");
    }
    world.value("write_file", &json!({"path": "y/HEAD", "content": "x", "createDirs": true}));
    world.value("create_directory", &json!({"path": "y/objects"}));
}
