//! Regression tests.

use ringfence_fs::MountAccess;
use ringfence_kernel::{Dialect, ErrorKind};
use serde_json::json;

use crate::fixture::{FsFixture, FsFixtureConfig};

#[test]
fn a_sensitive_entry_is_found_among_many_ordinary_ones() {
    let world = FsFixture::new();
    for number in 0..150 {
        world.write(&format!("x/CREDENTIALS/f{number}"), "");
    }
    world.write("x/config.toml", "[build]");
    assert_eq!(world.error("move_file", &json!({"from": "x", "to": ".cargo"})), ErrorKind::ApprovalDenied);
}

#[test]
fn a_name_that_is_secret_and_protected_is_both() {
    let world = FsFixture::new();
    for path in ["x.env/.git/hooks/pre-commit", ".git/x.key", ".vscode/a.env", ".ssh/config", ".npmrc"] {
        let arguments = json!({"path": path, "content": "x", "createDirs": true});
        assert_eq!(world.error("write_file", &arguments), ErrorKind::ApprovalDenied, "{path}");
    }
}

#[test]
fn a_link_that_moves_gives_what_it_leads_to_another_name() {
    let world = FsFixture::new();
    world.write("v1/config.toml", "[build]");
    std::os::unix::fs::symlink("v1", world.root.join("latest")).unwrap();
    assert_eq!(world.error("move_file", &json!({"from": "latest", "to": ".cargo"})), ErrorKind::ApprovalDenied);
    world.value("move_file", &json!({"from": "latest", "to": "newest"}));
}

#[test]
fn nothing_comes_to_be_in_a_directory_while_it_moves() {
    for _ in 0..12 {
        let world = FsFixture::new();
        std::fs::create_dir(world.root.join("x")).unwrap();
        let content = "x".repeat(9 << 20);
        std::thread::scope(|scope| {
            let write = scope.spawn(|| world.call("write_file", &json!({"path": "x/config.toml", "content": content})));
            // As soon as the write is under way, and before it is done.
            let begun = || std::fs::read_dir(world.root.join("x")).is_ok_and(|mut entries| entries.next().is_some());
            while !begun() && !write.is_finished() {
                std::thread::yield_now();
            }
            world.call("move_file", &json!({"from": "x", "to": ".cargo"}));
        });
        assert!(!world.root.join(".cargo/config.toml").exists(), "a file got a name that nobody judged");
    }
}

#[test]
fn an_edit_of_a_large_file_with_a_long_missing_text_ends() {
    let world = FsFixture::new();
    world.write("lines", "a\n".repeat(2_000_000));
    let arguments = json!({"path": "lines", "oldText": "B".repeat(4 << 20), "newText": ""});
    assert_eq!(world.error("edit_file", &arguments), ErrorKind::EditNotFound);
}

#[test]
fn a_pattern_of_nothing_but_braces_is_refused() {
    let world = FsFixture::new();
    let glob = format!("{}a{}", "{".repeat(300), "}".repeat(300));
    assert_eq!(world.error("find_files", &json!({"path": ".", "glob": glob})), ErrorKind::InvalidArgs);
    let arguments = json!({"path": ".", "pattern": "x", "glob": glob});
    assert_eq!(world.error("search_files", &arguments), ErrorKind::InvalidArgs);
}

#[test]
fn an_ignore_file_of_any_size_is_heeded_only_so_far() {
    let world = FsFixture::new();
    world.write(".gitignore", "a\n".repeat(500_000));
    world.write("b", "hit\n");
    let value = world.value("search_files", &json!({"path": ".", "pattern": "hit"}));
    assert_eq!(value["stats"]["matchesFound"], 1);
}

#[test]
fn a_directory_whose_name_looks_like_a_drive_is_a_directory() {
    let world = FsFixture::new();
    world.write("c:d/f", "x");
    world.write("mv/g", "y");
    world.value("move_file", &json!({"from": "mv", "to": "./c:d/mv"}));
    world.value("write_file", &json!({"path": "./c:d/new", "content": "z"}));
    assert_eq!(world.read("c:d/mv/g"), "y");
}

#[test]
fn a_file_that_is_too_large_to_be_written_can_be_made_smaller() {
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Miniclaw));
    world.write("big", format!("{}end", "x".repeat(1_200_000)));
    let arguments = json!({"path": "big", "old_text": "x", "new_text": "", "replace_all": true});
    assert_eq!(world.call("edit_file", &arguments).text, "ok: replaced 1200000 match(es) in big");
    assert_eq!(world.read("big"), "end");
}

#[test]
fn the_last_match_that_is_wanted_has_all_its_lines_after_it() {
    let world = FsFixture::new();
    world.write("f", "hit 1\nhit 2\nx\ny\nz\n");
    let arguments = json!({"path": "f", "pattern": "hit", "maxMatches": 1, "after": 3});
    let value = world.value("search_files", &arguments);
    assert_eq!((&value["truncated"], &value["matches"][0]["after"]), (&json!(true), &json!(["hit 2", "x", "y"])));
    assert_eq!(value["matches"].as_array().unwrap().len(), 1);
}

#[test]
fn a_reply_to_a_search_is_counted_as_it_is_written() {
    let mut setup = FsFixtureConfig::default();
    setup.limits.search_bytes = 2000;
    let world = FsFixture::with(setup);
    world.write("f", format!("hit{}\n", "\u{1}".repeat(900)));
    let value = world.value("search_files", &json!({"path": "f", "pattern": "hit"}));
    assert_eq!((&value["truncated"], &value["matches"]), (&json!(true), &json!([])));
}

#[test]
fn hints_name_paths_as_the_dialect_does() {
    let world = FsFixture::with(FsFixtureConfig::of(Dialect::Crewagent));
    world.write("src/main.rs", "");
    let answer = world.call("fs.read", &json!({"path": "@workspace/src/mian.rs"}));
    assert!(answer.text.contains("did you mean `@workspace/src/main.rs`?"), "{}", answer.text);
    assert!(world.call("fs.read", &json!({"path": "@state/x"})).text.contains("--workflow-run ID"));
}

#[test]
fn the_log_of_a_run_is_read_and_not_written() {
    let mut setup = FsFixtureConfig::of(Dialect::Crewagent);
    setup.mounts = vec![("state", MountAccess::ReadWrite)];
    let world = FsFixture::with(setup);
    for path in ["@state/logs/execution.jsonl", "@state/logs/other", "@state/logs"] {
        let arguments = json!({"path": path, "content": "forged"});
        assert_eq!(world.error("fs.write", &arguments), ErrorKind::PermissionDenied, "{path}");
    }
    assert_eq!(world.call("fs.write", &json!({"path": "@state/notes.md", "content": "x"})).error, None);
}
