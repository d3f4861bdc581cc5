//! Pre-images: owners, quotas, and visibility.

use std::os::unix::fs::{MetadataExt as _, symlink};

use ringfence_kernel::{CallLimits, ErrorKind, Principal};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::json;

use super::{journal_of, tree};
use crate::fixture::{FsFixture, FsFixtureConfig};

#[test]
fn a_forged_image_store_is_never_used_and_stops_every_change() {
    let world = FsFixture::new();
    world.write("f", "one");
    world.write(".ringfence/c-00-0", "forged");
    for (tool, arguments) in [
        ("write_file", json!({"path": "f", "content": "two"})),
        ("append_file", json!({"path": "f", "content": "two"})),
        ("delete_file", json!({"path": "f"})),
        ("create_directory", json!({"path": "d"})),
        ("move_file", json!({"from": "f", "to": "g"})),
    ] {
        let answer = world.call(tool, &arguments);
        assert_eq!(answer.error, Some(ErrorKind::Unavailable), "{}", answer.text);
        assert!(answer.text.contains("move it away by hand"), "{}", answer.text);
    }
    assert_eq!(world.value("read_file", &json!({"path": "f"}))["content"], "one");
    std::fs::rename(world.root.join(".ringfence"), world.root.join("moved")).unwrap();
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    // A later replacement of ours is not trusted either.
    std::fs::rename(world.root.join(".ringfence"), world.root.join("ours")).unwrap();
    world.write(format!(".ringfence/{change}-0").as_str(), "forged");
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Unavailable);
    assert_eq!(world.read("f"), "two");
    std::fs::remove_dir_all(world.root.join(".ringfence")).unwrap();
    std::fs::rename(world.root.join("ours"), world.root.join(".ringfence")).unwrap();
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn a_recreated_image_store_with_the_same_inode_is_foreign() {
    let world = FsFixture::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let record = journal_of(&world).join("keep");
    let whole = std::fs::read_to_string(&record).unwrap();
    let Some((id, born)) = whole.trim_end().split_once(':') else {
        return skip_without(Requirement::BirthTime, "this file system does not have the creation time of a file");
    };
    let born: i128 = born.parse().unwrap();
    std::fs::write(&record, format!("{id}:{}\n", born - 1)).unwrap();
    let world = world.reopened(FsFixtureConfig::default());
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Unavailable);
    assert_eq!(world.error("write_file", &json!({"path": "g", "content": "x"})), ErrorKind::Unavailable);
    // Earlier versions did not write it down, and now it is.
    std::fs::write(&record, format!("{id}\n")).unwrap();
    let world = world.reopened(FsFixtureConfig::default());
    world.undo(&change);
    assert_eq!((world.read("f"), std::fs::read_to_string(&record).unwrap()), ("one".to_owned(), whole));
}

#[test]
fn a_recreated_workspace_with_the_same_inode_has_no_changes() {
    let world = FsFixture::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let journal = journal_of(&world);
    let name = journal.file_name().unwrap().to_str().unwrap().to_owned();
    let [device, inode, born] = name.split('-').collect::<Vec<_>>()[..] else {
        return skip_without(Requirement::BirthTime, "this file system does not have the creation time of a file");
    };
    let born: i128 = born.parse().unwrap();
    let before = journal.with_file_name(format!("{device}-{inode}-{}", born - 1));
    std::fs::rename(&journal, &before).unwrap();
    let world = world.reopened(FsFixtureConfig::default());
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::NotFound);
    // What the other one kept is not of this one.
    assert_eq!(world.error("write_file", &json!({"path": "f", "content": "x"})), ErrorKind::Unavailable);
    // Earlier versions called it by device and inode alone.
    std::fs::remove_dir_all(&journal).unwrap();
    std::fs::rename(&before, journal.with_file_name(format!("{device}-{inode}"))).unwrap();
    let world = world.reopened(FsFixtureConfig::default());
    world.undo(&change);
    assert_eq!((world.read("f"), journal.exists()), ("one".to_owned(), true));
}

#[test]
fn a_pre_image_that_was_changed_or_removed_is_not_restored() {
    let world = FsFixture::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let image = world.root.join(format!(".ringfence/{change}-0"));
    assert_eq!(std::fs::metadata(world.root.join(".ringfence")).unwrap().mode() & 0o777, 0o700);
    std::fs::write(&image, "eno").unwrap();
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Conflict);
    std::fs::remove_file(&image).unwrap();
    assert_eq!(world.error("undo", &json!({"change": change})), ErrorKind::Conflict);
    assert_eq!(world.read("f"), "two");
}

#[test]
fn the_image_store_is_hidden_from_every_tool() {
    let world = FsFixture::new();
    world.write("f", "needle");
    world.value("write_file", &json!({"path": "f", "content": "two"}));
    symlink(".ringfence", world.root.join("link")).unwrap();
    let listed = world.value("list_directory", &json!({"path": ".", "recursive": true, "includeHidden": true}));
    assert!(!listed.to_string().contains("ringfence"), "{listed}");
    let found = world.value("find_files", &json!({"path": ".", "glob": "**"}));
    assert!(!found.to_string().contains("ringfence"), "{found}");
    assert_eq!(world.value("search_files", &json!({"path": ".", "pattern": "needle"}))["matches"], json!([]));
    for path in [".ringfence", ".ringfence/.gitignore", "./.ringfence/", "link/.gitignore"] {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("list_directory", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x"})),
            ("delete_file", json!({"path": path, "recursive": true})),
            ("get_file_info", json!({"path": path})),
            ("move_file", json!({"from": path, "to": "x"})),
            ("search_files", json!({"path": path, "pattern": "x"})),
        ] {
            world.error(tool, &arguments);
        }
    }
    assert_eq!(world.error("list_directory", &json!({"path": "link"})), ErrorKind::PermissionDenied);
    assert!(world.root.join(".ringfence/.gitignore").exists());
}

#[test]
fn pre_images_stay_within_their_quota_and_intermediate_versions_go_first() {
    let limits = CallLimits { undo_session_bytes: 8222, undo_bytes: 12_320, ..FsFixtureConfig::default().limits };
    let world = FsFixture::with(FsFixtureConfig { limits, ..FsFixtureConfig::default() });
    world.write("f", "0123456789");
    let write = |text: &str| world.change("write_file", &json!({"path": "f", "content": text}));
    let changes = [write("1-23456789"), write("2-23456789"), write("3-23456789")];
    let kept = || std::fs::read_dir(world.root.join(".ringfence")).unwrap().count() - 1;
    assert_eq!(kept(), 2);
    let states = || {
        let listed = world.value("list_changes", &json!({}));
        let states = listed["changes"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap().to_owned());
        states.collect::<Vec<_>>()
    };
    assert_eq!(states(), ["done", "gone", "done"]);
    world.undo(&changes[2]);
    assert_eq!(world.error("undo", &json!({"change": changes[1]})), ErrorKind::Conflict);
    assert_eq!(world.error("undo", &json!({"change": changes[0]})), ErrorKind::Conflict);
    assert_eq!(world.read("f"), "2-23456789");
    // All of them together go back to what was there first.
    world.value("undo", &json!({"session": "test"}));
    assert_eq!(world.read("f"), "0123456789");
    world.value("redo", &json!({}));
    assert_eq!(world.read("f"), "2-23456789");
    // A pre-image that does not fit at all needs approval, and there is no approver.
    world.write("large", "x".repeat(4200));
    let answer = world.call("write_file", &json!({"path": "large", "content": "y"}));
    assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{}", answer.text);
    assert!(answer.text.contains("cannot be undone"), "{}", answer.text);
    assert_eq!(world.error("delete_file", &json!({"path": "large"})), ErrorKind::ApprovalDenied);
    // The pre-images of one session do not go for those of another.
    let world = world.by_session("other", Principal::agent("another"));
    world.write("g", "0123456789");
    world.write("h", "x".repeat(4200));
    world.value("write_file", &json!({"path": "g", "content": "x"}));
    assert_eq!(world.error("write_file", &json!({"path": "h", "content": "x"})), ErrorKind::ApprovalDenied);
}

/// A hundred writes do not make the first one final.
#[test]
fn the_first_version_of_a_path_is_not_let_go_without_asking() {
    let limits = CallLimits { undo_session_bytes: 40_960, ..FsFixtureConfig::default().limits };
    let setup = |person: &ScriptedApprover| FsFixtureConfig {
        limits: limits.clone(),
        person: Some(person.clone()),
        ..FsFixtureConfig::default()
    };
    let fill = |world: &FsFixture| {
        for number in 0..30 {
            let answer = world.call("write_file", &json!({"path": "own", "content": format!("{number}")}));
            assert_eq!(answer.error, None, "{}", answer.text);
        }
    };
    let first = [
        ("write_file", json!({"path": "f", "content": "evil"})),
        ("edit_file", json!({"path": "f", "oldText": "mine", "newText": "evil"})),
        ("delete_file", json!({"path": "f"})),
        ("move_file", json!({"from": "other", "to": "f", "overwrite": true})),
        ("copy_file", json!({"from": "other", "to": "f", "overwrite": true})),
    ];
    for (tool, arguments) in &first {
        let person = ScriptedApprover::denying();
        let world = FsFixture::with(setup(&person));
        world.write("f", "mine");
        world.write("other", "other");
        let change = world.change(tool, arguments);
        fill(&world);
        world.undo(&change);
        assert_eq!((world.read("f"), person.count()), ("mine".to_owned(), 0), "{tool}");
    }
    // Detours by which another writer's version could be taken for one of the session.
    let evil = json!({"path": "f", "content": "evil"});
    let detours: [&[(&str, serde_json::Value)]; 4] = [
        &[("append_file", json!({"path": "f", "content": "more"}))],
        &[("write_file", evil.clone()), ("undo", json!({}))],
        &[("move_file", json!({"from": "f", "to": "g"})), ("move_file", json!({"from": "g", "to": "f"}))],
        &[("write_file", evil.clone()), ("by hand", json!({}))],
    ];
    for detour in detours {
        let person = ScriptedApprover::denying();
        let world = FsFixture::with(setup(&person));
        world.write("f", "mine");
        for (tool, arguments) in detour {
            match *tool {
                "by hand" => world.write("f", "mine"),
                tool => _ = world.value(tool, arguments),
            }
        }
        let before = world.read("f");
        let change = world.change("write_file", &evil);
        fill(&world);
        world.undo(&change);
        assert_eq!((world.read("f"), person.count()), (before, 0), "{detour:?}");
    }
    // Where there is no room for one more of them, approval is required.
    let person = ScriptedApprover::denying();
    let world = FsFixture::with(setup(&person));
    for number in 0..11 {
        world.write(&format!("f{number}"), "mine");
        let answer = world.call("write_file", &json!({"path": format!("f{number}"), "content": "evil"}));
        let expected = (number >= 9).then_some(ErrorKind::ApprovalDenied);
        assert_eq!(answer.error, expected, "{number}: {}", answer.text);
    }
    assert_eq!(person.last_request().rule, "cannot be undone");
    world.value("undo", &json!({"session": "test"}));
    assert!((0..11).all(|number| world.read(&format!("f{number}")) == "mine"));
}

#[test]
fn an_undo_that_would_displace_more_than_is_kept_is_asked_about() {
    let limits = CallLimits { undo_session_bytes: 10_000, ..FsFixtureConfig::default().limits };
    let setup = |person| FsFixtureConfig { limits: limits.clone(), person, ..FsFixtureConfig::default() };
    let world = FsFixture::with(setup(None));
    let created = world.change("write_file", &json!({"path": "new", "content": "x".repeat(20_000)}));
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    world.write("f", "x".repeat(20_000));
    let answer = world.call("undo", &json!({"change": created}));
    assert_eq!(answer.error, Some(ErrorKind::ApprovalDenied), "{}", answer.text);
    assert!(answer.text.contains("cannot be undone"), "{}", answer.text);
    let said = world.value("undo", &json!({"change": created, "dryRun": true}));
    assert_eq!(said["lost"], json!(true));
    let insist = json!({"change": change, "force": true});
    let world = world.by_person();
    assert_eq!(world.error("undo", &json!({"change": created})), ErrorKind::WriteLimit);
    assert_eq!(world.error("undo", &insist), ErrorKind::ApprovalDenied);
    assert_eq!(world.read("f").len(), 20_000);
    let world = world.reopened(setup(Some(ScriptedApprover::approving()))).by_person();
    let done = world.value("undo", &insist);
    assert_eq!((done["lost"].clone(), world.read("f")), (json!(true), "one".to_owned()));
    assert_eq!(world.error("redo", &json!({"change": done["change"]})), ErrorKind::Conflict);
    assert_eq!(std::fs::read_dir(world.root.join(".ringfence")).unwrap().count(), 1, "only what hides it from git");
    assert_eq!(world.value("list_changes", &json!({}))["changes"][0]["state"], "gone");
}

#[test]
fn a_change_never_lets_go_what_it_keeps_itself() {
    let limits = CallLimits { undo_session_bytes: 10_000, ..FsFixtureConfig::default().limits };
    let world = FsFixture::with(FsFixtureConfig { limits, ..FsFixtureConfig::default() });
    for name in ["a", "b", "c"] {
        world.write(name, "x\n");
    }
    let patch = |names: &[&str], old: &str, new: &str| {
        let one = |name: &&str| format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{old}\n+{new}\n");
        json!({"patch": names.iter().map(one).collect::<String>()})
    };
    // All of it together must fit, not each for itself.
    assert_eq!(world.error("apply_patch", &patch(&["a", "b", "c"], "x", "y")), ErrorKind::ApprovalDenied);
    // One that the session made itself goes for them.
    world.value("write_file", &json!({"path": "d", "content": "x\n"}));
    let first = world.change("write_file", &json!({"path": "d", "content": "y\n"}));
    let second = world.change("apply_patch", &patch(&["a", "b"], "x", "y"));
    assert_eq!(world.error("undo", &json!({"change": first})), ErrorKind::Conflict);
    let undo = world.undo(&second)["change"].as_str().unwrap().to_owned();
    // Brought back, they are kept once and not twice.
    world.value("redo", &json!({"change": undo}));
    world.undo(&second);
    assert_eq!((world.read("a"), world.read("b")), ("x\n".to_owned(), "x\n".to_owned()));
}

/// Versions that came about in another way than by plain writing stay: an undo of the session goes through them.
#[test]
fn an_undo_of_the_session_restores_everything_after_its_quota_was_used_up() {
    let write =
        |path: &str, content: &str| ("write_file", json!({"path": path, "content": content, "createDirs": true}));
    let rename = |from: &str, to: &str| ("move_file", json!({"from": from, "to": to, "overwrite": true}));
    let append = |path: &str| ("append_file", json!({"path": path, "content": "2"}));
    let cases: [&[(&str, serde_json::Value)]; 6] = [
        &[write("e", "evil"), rename("e", "a"), write("a", "x")],
        &[write("a", "1"), append("a"), write("a", "3")],
        &[write("a", "1"), rename("a", "b"), write("b", "2"), write("a", "3")],
        &[write("d/x", "1"), rename("d", "e"), rename("e", "d"), write("d/x", "2")],
        &[
            write("d/x", "1"),
            ("delete_file", json!({"path": "d", "recursive": true})),
            write("d/x", "1"),
            write("d/x", "2"),
        ],
        &[write("a", "1"), ("chmod", json!({})), write("a", "2")],
    ];
    for case in cases {
        let limits = CallLimits { undo_session_bytes: 40_960, ..FsFixtureConfig::default().limits };
        let person = Some(ScriptedApprover::denying());
        let world = FsFixture::with(FsFixtureConfig { limits, person, ..FsFixtureConfig::default() });
        world.write("a", "mine a");
        let first = tree(&world.root);
        for (tool, arguments) in case {
            match *tool {
                "chmod" => {
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                    std::fs::set_permissions(world.root.join("a"), mode).unwrap();
                }
                tool => _ = world.value(tool, arguments),
            }
        }
        for number in 0..30 {
            _ = world.call("write_file", &json!({"path": "own", "content": format!("{number}")}));
        }
        let world = world.with_limits(FsFixtureConfig::default().limits).by_person();
        world.value("undo", &json!({"session": "test", "force": true}));
        assert_eq!(tree(&world.root), first, "{case:?}");
    }
}

#[test]
fn later_versions_stay_when_an_earlier_change_was_undone() {
    let limits = CallLimits { undo_session_bytes: 40_960, ..FsFixtureConfig::default().limits };
    let world = FsFixture::with(FsFixtureConfig { limits, ..FsFixtureConfig::default() });
    world.write("a", "mine a");
    let changes = ["1", "2", "1"].map(|content| world.change("write_file", &json!({"path": "a", "content": content})));
    world.undo(&changes[0]);
    for number in 0..30 {
        world.value("write_file", &json!({"path": "own", "content": format!("{number}")}));
    }
    let world = world.by_person();
    world.value("undo", &json!({"change": changes[2], "force": true}));
    assert_eq!(world.read("a"), "2");
    world.undo(&changes[1]);
    assert_eq!(world.read("a"), "1");
}

#[test]
fn a_redone_change_stays_when_its_session_changes_more() {
    // Room for two, the third one would be what was brought back.
    let limits = CallLimits { undo_session_bytes: 8300, ..FsFixtureConfig::default().limits };
    let world = FsFixture::with(FsFixtureConfig { limits, ..FsFixtureConfig::default() });
    world.write("f", "one");
    world.write("g", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let world = world.by_person();
    let undo = world.undo(&change)["change"].as_str().unwrap().to_owned();
    world.value("redo", &json!({"change": undo}));
    for text in ["two", "three", "four"] {
        world.value("write_file", &json!({"path": "g", "content": text}));
    }
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn empty_files_are_not_kept_for_nothing() {
    let limits = CallLimits { undo_session_bytes: 40_960, ..FsFixtureConfig::default().limits };
    let world = FsFixture::with(FsFixtureConfig { limits, ..FsFixtureConfig::default() });
    for number in 0..10 {
        world.write(&format!("few/{number}"), "");
        world.write(&format!("many/{number}"), "");
    }
    std::fs::remove_file(world.root.join("few/9")).unwrap();
    assert_eq!(world.error("delete_file", &json!({"path": "many", "recursive": true})), ErrorKind::ApprovalDenied);
    let first = world.change("delete_file", &json!({"path": "few", "recursive": true}));
    assert_eq!(world.error("delete_file", &json!({"path": "many/0"})), ErrorKind::ApprovalDenied);
    world.undo(&first);
    world.value("delete_file", &json!({"path": "many/0"}));
}

#[test]
fn a_file_too_large_to_hash_is_known_by_its_identity() {
    let limits = CallLimits { hash_bytes: 4, ..FsFixtureConfig::default().limits };
    let world = FsFixture::with(FsFixtureConfig { limits, ..FsFixtureConfig::default() });
    for name in ["replaced", "deleted", "moved", "linked"] {
        world.write(name, "a long one");
    }
    std::fs::hard_link(world.root.join("linked"), world.root.join("other")).unwrap();
    let first = tree(&world.root);
    world.value("write_file", &json!({"path": "replaced", "content": "another long one"}));
    world.value("write_file", &json!({"path": "linked", "content": "another long one"}));
    world.value("delete_file", &json!({"path": "deleted"}));
    world.value("move_file", &json!({"from": "moved", "to": "there"}));
    let last = tree(&world.root);
    let undo = world.change("undo", &json!({"session": "test"}));
    assert_eq!(tree(&world.root), first);
    world.value("redo", &json!({"change": undo}));
    assert_eq!(tree(&world.root), last);
    // Another program wrote to it since, even if the same.
    world.write("replaced", "another long one");
    let changes = world.value("list_changes", &json!({}));
    let write = changes["changes"].as_array().unwrap().iter().find(|one| one["paths"] == json!(["replaced"])).unwrap();
    assert_eq!(world.error("undo", &json!({"change": write["change"]})), ErrorKind::Conflict);
}

#[test]
fn a_restart_does_not_raise_the_sensitivity_of_pre_images() {
    let world = FsFixture::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let world = world.reopened(FsFixtureConfig::default());
    world.value("list_directory", &json!({"path": "."}));
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
    let world = world.reopened(FsFixtureConfig::default());
    world.value("write_file", &json!({"path": "f", "content": "three"}));
}
